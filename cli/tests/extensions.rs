//! Extensions as somebody types them (docs/features.md E1, E2, E5, E6), at a gateway whose cluster has no agent.
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::{fs, path::Path, process::Command};

use catalogue::testing::{chart, metadata};
use serde_json::{Value, json};
use support::{
    Running,
    site::{Site, Talking},
};

const CLUSTERS: &str = "providers/Microsoft.Kubernetes/connectedClusters";
const WEB: [&str; 6] = ["-g", "edge", "-c", "shop", "-n", "web"];

/// Makes a catalogue with `example.web` 1.0.0 and 1.1.0 (Stable) and 2.0.0 (Preview); the last needs Kubernetes 1.40.
fn make_catalogue(folder: &Path) {
    let towline = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_towline"));
        command.arg("catalogue").args(args).current_dir(folder);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    towline(&["init", "--catalogue", "c", "--key", "k"]);
    for (version, train, more) in
        [("1.0.0", "Stable", ""), ("1.1.0", "Stable", ""), ("2.0.0", "Preview", "kubeVersion: '>=1.40'\n")]
    {
        let file = format!("web-{version}.tgz");
        fs::write(folder.join(&file), chart(&(metadata("web", version) + more), &[])).unwrap();
        towline(&[
            "add",
            &file,
            "--catalogue",
            "c",
            "--type",
            "example.web",
            "--train",
            train,
            "--release-namespace",
            "web",
        ]);
    }
    towline(&["sign", "--catalogue", "c", "--key", "k"]);
}

fn site() -> (tempfile::TempDir, Site) {
    let folder = tempfile::tempdir().unwrap();
    make_catalogue(folder.path());
    let setting = format!("api.catalogue_dir={}", folder.path().join("c").display());
    let site = Site::signed_in(&["--set", &setting]);
    site.ok(&["group", "create", "-g", "edge", "-l", "eastus"]);
    let url = format!("/subscriptions/{{subscription}}/resourceGroups/edge/{CLUSTERS}/shop?api-version=2026-05-01");
    let body = json!({"location": "eastus", "identity": {"type": "SystemAssigned"},
        "properties": {"agentPublicKeyCertificate": "", "distribution": "k3s"}});
    let body = site.file("body.json", &body.to_string());
    site.ok(&["rest", "-m", "put", "-u", &url, "-b", &format!("@{body}")]);
    (folder, site)
}

#[test]
fn e2_types_and_versions_of_the_catalogue_are_listed() {
    let (_folder, site) = site();
    let names =
        |args: &[&str]| site.ok(&[&["extension", "types"], args, &["--query", "[].name", "-o", "tsv"]].concat());
    assert_eq!(names(&["list"]), "example.web");
    assert_eq!(names(&["list", "-g", "edge", "-c", "shop", "--train", "Stable"]), "example.web");
    let versions = ["versions", "--type", "example.web"];
    assert_eq!(names(&versions), "2.0.0\n1.1.0\n1.0.0");
    assert_eq!(names(&[&versions[..], &["--train", "stable", "--latest"]].concat()), "1.1.0");
    assert_eq!(names(&[&versions[..], &["--major", "2"]].concat()), "2.0.0");
    let table = site.ok(&["extension", "types", "list"]);
    assert!(table.starts_with("NAME         PUBLISHER") && table.contains("Preview"), "{table}");
    let shown = site.json(&["extension", "types", "show", "--type", "example.web", "-g", "edge", "-c", "shop"]);
    let settings = &shown["properties"]["supportedScopes"]["clusterScopeSettings"]["properties"];
    assert_eq!(settings["defaultReleaseNamespace"], "web", "{shown}");
    let unknown = site.fails(1, &["extension", "types", "show", "--type", "example.none"]);
    assert!(unknown.contains("ExtensionTypeNotFound") && unknown.contains("hint: see which there are"), "{unknown}");
    let train = site.fails(1, &["extension", "types", "versions", "--type", "example.web", "--train", "Nightly"]);
    assert!(train.contains("there is no release train") && train.contains("InvalidReleaseTrain"), "{train}");
}

#[test]
fn e1_extension_is_created_changed_and_deleted_by_name() {
    let (_folder, site) = site();
    let run = |verb: &str, more: &[&str]| site.json(&[&["extension", verb], &WEB[..], more].concat());
    let secret = site.file("secret.yaml", "password: geheim\n");
    let create = ["--type", "example.web", "--set", "a.b=1", "--set", "c=2", "--protected-file", &secret, "--no-wait"];
    let made = run("create", &[&create[..], &["--release-namespace", "shop"]].concat());
    let properties = &made["properties"];
    assert_eq!(properties["configurationSettings"], json!({"a.b": "1", "c": "2"}), "{made}");
    assert_eq!(properties["scope"], json!({"cluster": {"releaseNamespace": "shop"}}));
    assert_eq!(properties["provisioningState"], "Creating");
    assert!(!made.to_string().contains("geheim"), "{made}");
    let settings = site.file("settings.yaml", "d:\n  e: 1.10\n");
    let changed =
        run("update", &["--settings-file", &settings, "--unset", "c", "--auto-upgrade", "patch", "--no-wait"]);
    assert_eq!(changed["properties"]["configurationSettings"], json!({"a.b": "1", "d.e": "1.10"}), "{changed}");
    assert_eq!(changed["properties"]["autoUpgradeMode"], "patch");

    let on = ["-g", "edge", "-c", "shop"];
    let list = site.ok(&[&["extension", "list"], &on[..]].concat());
    assert!(list.lines().nth(1).unwrap().starts_with("web   example.web"), "{list}");
    assert_eq!(run("show", &[])["name"], "web");
    assert_eq!(site.json(&[&["extension", "events"], &WEB[..]].concat()), json!([]));
    let asked = site.fails(2, &[&["extension", "update"], &WEB[..], &["--protected", "a=b", "--no-wait"]].concat());
    assert!(asked.contains("are replaced as a whole") && asked.contains("hint: --yes"), "{asked}");
    run("update", &["--protected", "a=b", "--no-wait", "--yes"]);

    site.ok(&[&["extension", "delete"], &WEB[..], &["--force", "--yes"]].concat());
    assert_eq!(site.json(&[&["extension", "list"], &on[..]].concat()), json!([]));
    let gone = site.fails(1, &[&["extension", "show"], &WEB[..]].concat());
    assert!(gone.contains("hint: see which there are: towline extension list -g edge -c shop"), "{gone}");
}

#[test]
fn e6_protected_value_is_in_no_file_that_the_gateway_writes() {
    let (_folder, site) = site();
    let secret = site.file("secret.yaml", "password: geheim-4711\n");
    let create = ["--type", "example.web", "--protected-file", &secret, "--no-wait"];
    site.ok(&[&["extension", "create"], &WEB[..], &create].concat());
    fs::remove_file(&secret).unwrap();
    let mut folders = vec![site.dir.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                folders.push(entry.path());
            } else if let Ok(bytes) = fs::read(entry.path()) {
                let found = bytes.windows(11).any(|part| part == b"geheim-4711");
                assert!(!found, "{}", entry.path().display());
            }
        }
    }
}

#[test]
fn e1_what_cannot_be_is_refused_before_the_cluster_is_asked() {
    let (_folder, site) = site();
    let fails = |code: i32, more: &[&str]| {
        site.fails(code, &[&["extension", "create"], &WEB[..], &["--no-wait"], more].concat())
    };
    assert!(
        fails(2, &["--type", "t", "--version", "1.0.0", "--auto-upgrade", "patch"]).contains("give one of the two")
    );
    assert!(fails(2, &["--type", "t", "--scope", "namespace"]).contains("needs --target-namespace"));
    assert!(fails(2, &["--type", "t", "--settings-file", "/nonexistent"]).contains("cannot read /nonexistent"));
    let bad = site.file("bad.yaml", "- geheim\n");
    let refused = fails(2, &["--type", "t", "--protected-file", &bad]);
    assert!(refused.contains("is not a map of settings") && !refused.contains("geheim"), "{refused}");
    let nothing = site.fails(2, &[&["extension", "update"], &WEB[..]].concat());
    assert!(nothing.contains("hint: such as --set KEY=VALUE"), "{nothing}");
    let unknown = site.fails(1, &[&["extension", "update"], &WEB[..], &["--set", "a=1"]].concat());
    assert!(unknown.contains("ResourceNotFound"), "{unknown}");
}

#[test]
fn e2_whoever_installs_agents_is_told_the_keys_of_the_catalogue() {
    let (folder, site) = site();
    let settings: Value = site.json(&["rest", "-u", "/.towline/agent/settings"]);
    let key = fs::read_to_string(folder.path().join("k.pub")).unwrap();
    assert_eq!(settings["catalogue"]["keys"], json!([key]), "{settings}");
    assert_eq!(settings["catalogue"]["id"].as_str().map(str::len), Some(32));
}

#[test]
fn e14_cluster_that_a_rollout_names_and_that_is_not_there_is_told_of() {
    let (_folder, site) = site();
    let start =
        ["extension", "rollout", "start", "-g", "edge", "-n", "r", "--extension", "web", "--type", "example.web"];
    let output = site.run(&[&start[..], &["--version", "1.1.0", "--clusters", "shop,shpo"]].concat());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("warning: there is no cluster shpo;"), "{said}");
    assert!(!said.contains("no cluster shop;"), "{said}");
    // Pages are posted, and none has anything here.
    assert_eq!(site.json(&["extension", "rollout", "status", "-g", "edge", "-n", "r"])["clusters"], json!([]));
}

#[test]
fn e14_start_again_keeps_the_bounds_of_a_rollout() {
    let (_folder, site) = site();
    let start = |more: &[&'static str]| {
        let named = ["extension", "rollout", "start", "-g", "edge", "-n", "r", "--extension", "web"];
        [&named[..], &["--type", "example.web", "--version", "1.1.0"], more].concat()
    };
    let rollout =
        || site.json(&["extension", "rollout", "status", "-g", "edge", "-n", "r"])["properties"]["rollout"].clone();
    site.ok(&start(&[]));
    assert_eq!(rollout(), json!({"maxConcurrentPercent": 10, "maxFailuresPercent": 2, "paused": false}));
    site.ok(&start(&["--percent", "3", "--max-failures", "0%"]));
    let narrow = json!({"maxConcurrentPercent": 3, "maxFailuresPercent": 0, "paused": false});
    assert_eq!(rollout(), narrow);
    site.ok(&start(&[]));
    assert_eq!(rollout(), narrow, "what is not named stays");
    assert!(site.fails(2, &start(&["--percent", "10"])).contains("--yes"));
    site.ok(&start(&["--percent", "10", "--yes"]));
}

/// As `kubectl get -w` does.
#[test]
fn d4_what_is_followed_goes_on_when_the_gateway_was_away() {
    let (folder, mut site) = site();
    let web: Vec<&str> = ["extension", "create", "--type", "example.web", "--no-wait"].into_iter().chain(WEB).collect();
    site.ok(&web);
    let events: Vec<&str> = ["extension", "events", "-f"].into_iter().chain(WEB).collect();
    let mut events = Talking::start(site.command(&events));
    let mut clusters = Running::start(site.command(&["events", "-f", "--after", "0", "-o", "tsv"]));
    assert!(clusters.line().ends_with("/connectedClusters/shop"));
    site.away();
    events.line_with("the gateway does not answer; this goes on when it does");
    site.back(&["--set", &format!("api.catalogue_dir={}", folder.path().join("c").display())]);
    events.line_with("the gateway answers again");
    let url = format!("/subscriptions/{{subscription}}/resourceGroups/edge/{CLUSTERS}/late?api-version=2026-05-01");
    let body = json!({"location": "eastus", "identity": {"type": "SystemAssigned"},
        "properties": {"agentPublicKeyCertificate": ""}});
    let body = site.file("body.json", &body.to_string());
    site.ok(&["rest", "-m", "put", "-u", &url, "-b", &format!("@{body}")]);
    while !clusters.line().ends_with("/connectedClusters/late") {}
    for id in [events.child.id(), clusters.child.id()] {
        assert!(Command::new("kill").args(["-s", "INT", &id.to_string()]).status().unwrap().success());
    }
    assert_eq!((events.end().0, clusters.code()), (Some(130), Some(130)));
}
