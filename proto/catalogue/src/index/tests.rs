use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::testing;

fn edited(edit: impl FnOnce(&mut Value)) -> Result<Index, IndexError> {
    let mut value = serde_json::to_value(testing::index(&[("1.0.0", &["Stable"]), ("1.1.0", &["Preview"])])).unwrap();
    edit(&mut value);
    Index::parse(&serde_json::to_vec(&value).unwrap())
}

/// Where it is refused, and why.
fn refused(at: &str, value: Value) -> (String, String) {
    let edit = |index: &mut Value| {
        let (parent, field) = at.rsplit_once('/').unwrap();
        index.pointer_mut(parent).unwrap()[field] = value;
    };
    match edited(edit).unwrap_err() {
        IndexError::Invalid { place, reason } => (place, reason),
        other => panic!("{at}: {other}"),
    }
}

#[test]
fn index_is_read_as_it_was_written() {
    let index = testing::index(&[("1.0.0", &["Stable"]), ("v2.0.0-rc.1", &["Stable", "Preview"])]);
    assert_eq!(Index::parse(&index.to_bytes().unwrap()).unwrap(), index);
    assert!(index.extension_type("EXAMPLE.web").is_some() && index.extension_type("example.we").is_none());
    let kind = &index.types[0];
    assert_eq!(kind.release(&"2.0.0-rc.1".parse().unwrap()).unwrap().version.to_string(), "v2.0.0-rc.1");
}

#[test]
fn field_that_is_not_known_is_refused() {
    for place in ["", "/types/0", "/types/0/supportedScopes", "/types/0/versions/0", "/types/0/versions/0/chart"] {
        let result = edited(|index| index.pointer_mut(place).unwrap()["restriction"] = json!(true));
        assert!(matches!(result, Err(IndexError::Syntax(reason)) if reason.contains("restriction")), "{place}");
    }
    assert_eq!(edited(|index| index["format"] = json!(2)).unwrap_err(), IndexError::Newer(2));
    let twice = br#"{"format": 1, "format": 1}"#;
    assert!(matches!(Index::parse(twice), Err(IndexError::Syntax(reason)) if reason.contains("duplicate")));
}

#[test]
fn every_field_is_bounded_and_of_its_form() {
    assert_eq!(Index::parse(&vec![b' '; INDEX_BYTES + 1]), Err(IndexError::TooLarge(INDEX_BYTES + 1)));
    let index = edited(|_| ()).unwrap();
    let key = serde_json::to_value(index.keys[0]).unwrap();
    let release = serde_json::to_value(&index.types[0].versions[0]).unwrap();
    let kind = serde_json::to_value(&index.types[0]).unwrap();
    let other = json!({"file": "web-1.0.0.tgz", "name": "web", "size": 1, "sha256": Sha256::of(b"other")});
    let rule = json!({"key": "a"});
    for (at, value, place) in [
        ("/format", json!(0), "format"),
        ("/expires", json!("2026-11-26T00:00:00Z"), "expires"),
        ("/keys", json!([]), "keys"),
        ("/keys", json!([key, key]), "keys"),
        ("/keys", json!(vec![key; 17]), "keys"),
        ("/types", json!([kind, kind]), "types[1]"),
        ("/types/0/name", json!("Example.web"), "types[0].name"),
        ("/types/0/name", json!("example..web"), "types[0].name"),
        ("/types/0/name", json!("a".repeat(64)), "types[0].name"),
        ("/types/0/publisher", json!("a\u{1b}[31m"), "types[0].publisher"),
        ("/types/0/description", json!("a".repeat(1001)), "types[0].description"),
        ("/types/0/supportedScopes/scopes", json!([]), "types[0].supportedScopes.scopes"),
        ("/types/0/supportedScopes/defaultScope", json!("namespace"), "types[0].supportedScopes.defaultScope"),
        ("/types/0/supportedScopes/clusterScopeSettings", json!(null), "types[0].supportedScopes.clusterScopeSettings"),
        (
            "/types/0/supportedScopes/clusterScopeSettings/defaultReleaseNamespace",
            json!("No"),
            "types[0].supportedScopes.clusterScopeSettings",
        ),
        ("/types/0/allowedSettings", json!([{"key": ""}]), "types[0].allowedSettings[0]"),
        ("/types/0/allowedSettings", json!([{"key": "a", "values": []}]), "types[0].allowedSettings[0]"),
        ("/types/0/allowedSettings", json!(vec![rule; 257]), "types[0].allowedSettings"),
        ("/types/0/versions", json!([release, release]), "types[0].versions"),
        ("/types/0/versions", json!(vec![release; 1001]), "types[0].versions"),
        ("/types/0/versions/0/releaseTrains", json!([]), "types[0].versions[0].releaseTrains"),
        ("/types/0/versions/0/releaseTrains", json!(["Stable", "stable"]), "types[0].versions[0].releaseTrains"),
        ("/types/0/versions/0/releaseTrains", json!(["a b"]), "types[0].versions[0].releaseTrains"),
        ("/types/0/versions/0/platforms", json!(["linux"]), "types[0].versions[0].platforms"),
        ("/types/0/versions/0/platforms", json!(["linux/arm/v7"]), "types[0].versions[0].platforms"),
        ("/types/0/versions/0/supportedDistributions", json!([""]), "types[0].versions[0].supportedDistributions"),
        (
            "/types/0/versions/0/unsupportedKubernetesVersions",
            json!([{"unsupportedVersions": []}]),
            "types[0].versions[0].unsupportedKubernetesVersions",
        ),
        ("/types/0/versions/0/chart/file", json!("../web-1.0.0.tgz"), "types[0].versions[0].chart.file"),
        ("/types/0/versions/0/chart/file", json!(".tgz"), "types[0].versions[0].chart.file"),
        ("/types/0/versions/0/chart/file", json!("web"), "types[0].versions[0].chart.file"),
        ("/types/0/versions/0/chart/size", json!(0), "types[0].versions[0].chart.size"),
        ("/types/0/versions/0/chart/size", json!(ARCHIVE_BYTES + 1), "types[0].versions[0].chart.size"),
        ("/types/0/versions/1/chart", other, "types[0].versions[1].chart"),
    ] {
        assert_eq!(refused(at, value).0, place, "{at}");
    }
    for (at, value) in [
        ("/revision", json!(-1)),
        ("/catalogue", json!("x")),
        ("/made", json!("yesterday")),
        ("/types/0/versions/0/version", json!("1")),
        ("/types/0/versions/0/kubeVersion", json!("new")),
        ("/types/0/versions/0/chart/sha256", json!("00")),
        ("/types/0/supportedScopes/scopes", json!(["planet"])),
    ] {
        let (parent, field) = at.rsplit_once('/').unwrap();
        let result = edited(|index| index.pointer_mut(parent).unwrap()[field] = value);
        assert!(matches!(result, Err(IndexError::Syntax(_))), "{at}");
    }
}

use crate::limits::ARCHIVE_BYTES;

#[test]
fn versions_that_differ_in_build_metadata_alone_are_one() {
    let twice = edited(|index| index["types"][0]["versions"][1]["version"] = json!("1.0.0+b")).unwrap_err();
    assert!(twice.to_string().contains("1.0.0 and 1.0.0+b are one version"), "{twice}");
}

#[test]
fn settings_are_allowed_by_key_and_value() {
    let rules =
        json!([{"key": "replicas", "values": [1, 2, true]}, {"key": "service.*"}, {"key": "mode", "values": ["a"]}]);
    let index = edited(|index| index["types"][0]["allowedSettings"] = rules).unwrap();
    let kind = &index.types[0];
    for (key, value, allowed) in [
        ("replicas", json!(2), true),
        ("replicas", json!("2"), true),
        ("replicas", json!("true"), true),
        ("replicas", json!(3), false),
        ("replicas.x", json!(2), false),
        ("service.port", json!([1]), true),
        ("service", json!({}), false),
        ("service.", json!(1), false),
        ("services.port", json!(1), false),
        ("mode", json!("a"), true),
        ("mode", json!("b"), false),
        ("other", json!("a"), false),
    ] {
        assert_eq!(kind.allows(key, &value), allowed, "{key}={value}");
    }
    assert!(edited(|_| ()).unwrap().types[0].allows("anything", &json!(1)));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Index::parse(&bytes);
    }
}
