//! What agents and gateways of released versions say to each other (`types::agent_api`), as files of each release: today's
//! code reads all of it, and writes all of its members with the same values, so that a peer of that release reads what
//! today's code writes. Members may be added; none may go, or mean something else.
//!
//! The wire format has files of its own (`proto/tunnel/testdata`), which never change.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

use std::{collections::BTreeSet, fs, path::PathBuf};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use types::agent_api::{
    CatalogueIndex, Certificate, Challenge, ChallengeRequest, Desired, EnrolledQuestion, Enrolment, Heartbeat,
    HeartbeatAnswer, InstallSettings, LogLines, LogPositions, ObjectStatuses, ObjectStatusesAnswer, Objects,
    ProtectedQuestion, ProtectedSettings, Renewal, Token, TokenEnrolled, TokenEnrolment, TokenRequest,
};

/// Releases whose peers today's code still meets, oldest first. A release that is no longer served goes, with its files.
const RELEASES: &[&str] = &["0.1", "0.2"];

/// Reads a message and writes it again.
type Again = fn(&Value) -> Result<Value, String>;

fn again<T: Serialize + DeserializeOwned>(message: &Value) -> Result<Value, String> {
    let read: T = serde_json::from_value(message.clone()).map_err(|error| error.to_string())?;
    serde_json::to_value(read).map_err(|error| error.to_string())
}

const CLUSTER: &str = "/subscriptions/11111111-1111-4111-8111-111111111111/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c";
const TIME: &str = "2026-11-27T12:00:00Z";

/// Every message by the name of its file, with every member of today.
fn messages() -> Vec<(&'static str, Again, Value)> {
    let object = json!({
        "id": format!("{CLUSTER}/providers/Microsoft.KubernetesConfiguration/extensions/web"),
        "kind": "Microsoft.KubernetesConfiguration/extensions", "generation": 3,
        "spec": {"extensionType": "example.web"}, "deleting": true, "protected": "p1", "operation": "o1",
        "principalId": "22222222-2222-4222-8222-222222222222",
    });
    let status = json!({
        "id": object["id"], "generation": 3, "state": "Failed", "currentVersion": "1.0.0",
        "error": {"code": "ExtensionOperationFailed", "message": "m"},
        "statuses": [{"code": "c", "displayStatus": "d", "level": "Error", "message": "m", "time": TIME}],
        "events": [{
            "number": 1, "operation": "o1", "phase": "Create", "level": "Warning", "reason": "r", "message": "m",
            "object": "Pod web/web-0", "first": TIME, "last": TIME, "count": 2,
        }],
        "details": {"complianceState": "Compliant"},
        "parts": {"after": 1, "position": 2, "values": {"a": {"x": 1}, "b": null}},
    });
    let line = json!({
        "id": object["id"], "source": "s", "position": {"nanos": 1, "nth": 2}, "level": "error",
        "controller": "kustomize-controller", "kind": "Kustomization", "namespace": "n", "name": "x", "message": "m",
        "leftOut": 4,
    });
    let heartbeat = json!({
        "agentVersion": "0.2.0", "kubeSystemUid": "u", "kubernetesVersion": "v1.36.0", "totalNodeCount": 3,
        "totalCoreCount": 12, "distribution": "k3s", "distributionVersion": "1.36", "infrastructure": "generic",
        "platforms": ["linux/amd64", "linux/arm64"],
        "errors": [{"message": "m", "severity": "Error", "component": "c", "time": TIME}],
        "roles": {"refresh": "Running"}, "desiredRevision": 7,
        "upgrade": {"version": "0.2.1", "state": "RolledBack", "reason": "ImagePull", "message": "m", "time": TIME},
    });
    let settings = json!({
        "urls": ["https://gateway.test"], "roots": "pem", "issuers": [{"name": "own"}], "version": "0.2.0",
        "tenantId": "t", "catalogue": {"id": "0123456789abcdef0123456789abcdef", "keys": ["pem"]},
    });
    vec![
        ("challenge-request", again::<ChallengeRequest>, json!({"clusterId": CLUSTER})),
        ("challenge", again::<Challenge>, json!({"challenge": "YQ==", "expiresInSeconds": 60})),
        (
            "enrolment",
            again::<Enrolment>,
            json!({
                "clusterId": CLUSTER, "challenge": "YQ==", "csr": "YQ==", "kubeSystemUid": "u", "signature": "YQ==",
                "agentVersion": "0.2.0",
            }),
        ),
        ("renewal", again::<Renewal>, json!({"csr": "YQ=="})),
        (
            "certificate",
            again::<Certificate>,
            json!({
                "certificate": "pem", "roots": "pem", "notBefore": TIME, "notAfter": TIME, "principalId": "p",
                "tenantId": "t",
            }),
        ),
        (
            "token-enrolment",
            again::<TokenEnrolment>,
            json!({"token": "t", "name": "c", "publicKey": "YQ==", "location": "here", "tags": {"a": "b"}}),
        ),
        ("token-enrolled", again::<TokenEnrolled>, json!({"clusterId": CLUSTER, "principalId": "p", "tenantId": "t"})),
        (
            "enrolled-question",
            again::<EnrolledQuestion>,
            json!({"clusterId": CLUSTER, "challenge": "YQ==", "signature": "YQ=="}),
        ),
        ("install-settings", again::<InstallSettings>, settings),
        ("heartbeat", again::<Heartbeat>, heartbeat),
        ("heartbeat-bare", again::<Heartbeat>, json!({"agentVersion": "0.2.0", "desiredRevision": 0})),
        (
            "heartbeat-answer",
            again::<HeartbeatAnswer>,
            json!({"received": TIME, "nextInSeconds": 240, "desiredRevision": 7, "renewCertificate": true}),
        ),
        (
            "desired",
            again::<Desired>,
            json!({"revision": 7, "clusterConnect": true, "azureRbac": true, "agentVersion": "0.2.1"}),
        ),
        ("desired-bare", again::<Desired>, json!({"revision": 7, "clusterConnect": true, "azureRbac": false})),
        ("objects", again::<Objects>, json!({"position": 9, "whole": true, "more": true, "objects": [object]})),
        ("protected-question", again::<ProtectedQuestion>, json!({"id": CLUSTER, "protected": "p1"})),
        ("protected-settings", again::<ProtectedSettings>, json!({"settings": {"a": "b"}})),
        ("object-statuses", again::<ObjectStatuses>, json!({"objects": [status]})),
        ("object-statuses-answer", again::<ObjectStatusesAnswer>, json!({"unknown": ["x"], "again": ["y"]})),
        ("log-lines", again::<LogLines>, json!({"lines": [line]})),
        ("log-positions", again::<LogPositions>, json!({"sources": {"s": {"nanos": 1, "nth": 2}}})),
        ("catalogue-index", again::<CatalogueIndex>, json!({"index": "YQ==", "signatures": "YQ=="})),
        ("token-request", again::<TokenRequest>, json!({"audience": "https://gateway.test", "extension": "web"})),
        ("token", again::<Token>, json!({"token": "t", "expiresOn": 1_800_000_000})),
    ]
}

fn folder(release: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/released").join(release)
}

/// The release that this code is, or is to become.
fn own_release() -> &'static str {
    let version = env!("CARGO_PKG_VERSION");
    version.rsplit_once('.').map_or(version, |(minor, _)| minor)
}

/// Which members of `old` are not in `new` with the same value.
fn missing(old: &Value, new: &Value, at: &str, found: &mut Vec<String>) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for (name, value) in old {
                let at = format!("{at}.{name}");
                match new.get(name) {
                    Some(same) => missing(value, same, &at, found),
                    None => found.push(at),
                }
            }
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            for (place, (old, new)) in old.iter().zip(new).enumerate() {
                missing(old, new, &format!("{at}[{place}]"), found);
            }
        }
        (old, new) if old == new => {}
        _ => found.push(at.to_owned()),
    }
}

#[test]
fn u4_messages_of_released_versions_are_read_and_written_alike() {
    let known = messages();
    for release in RELEASES {
        let mut names = BTreeSet::new();
        for entry in fs::read_dir(folder(release)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let kept: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            let (_, again, _) = known.iter().find(|(known, ..)| *known == name).unwrap_or_else(|| panic!("{path:?}"));
            let written = again(&kept).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            let mut gone = Vec::new();
            missing(&kept, &written, &name, &mut gone);
            assert!(gone.is_empty(), "a peer of {release} says or expects what today's code does not: {gone:?}");
            names.insert(name);
        }
        assert!(!names.is_empty(), "{release} has no files");
        if *release == own_release() {
            let all: BTreeSet<String> = known.iter().map(|(name, ..)| (*name).to_owned()).collect();
            assert_eq!(names, all, "write the files of new messages, as below");
        }
    }
    assert_eq!(RELEASES.last(), Some(&own_release()), "a release adds itself here");
}

/// What a newer peer adds is passed over.
#[test]
fn u4_members_that_are_not_known_are_ignored() {
    for (name, again, mut message) in messages() {
        message.as_object_mut().unwrap().insert("ofTheFuture".to_owned(), json!({"a": [1]}));
        let written = again(&message).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(written.get("ofTheFuture").is_none(), "{name}");
    }
}

/// Before a release, and after a message was added: the test binary `released` of `proto/types`, with
/// `--ignored write_the_messages_of_this_release`. Files that are there stay as they are.
#[test]
#[ignore = "writes into the project"]
fn write_the_messages_of_this_release() {
    let folder = folder(own_release());
    fs::create_dir_all(&folder).unwrap();
    for (name, again, message) in messages() {
        let path = folder.join(format!("{name}.json"));
        if !path.exists() {
            let text = serde_json::to_string_pretty(&again(&message).unwrap()).unwrap();
            fs::write(path, text + "\n").unwrap();
        }
    }
}
