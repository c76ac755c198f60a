use std::{path::PathBuf, process::Command};

use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{values::Metadata, *};

const PEM: &str = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n";

fn plain() -> Values {
    let mut values = Values::default();
    values.gateway.url = "https://gateway.example.org".to_owned();
    values.identity.cluster_id =
        "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c".to_owned();
    values.identity.onboarding_key =
        SecretString::from("-----BEGIN PRIVATE KEY-----\nMA==\n-----END PRIVATE KEY-----\n");
    values
}

/// Sets of values that differ in what they make.
fn sets() -> Vec<(&'static str, Values)> {
    let with = |change: &dyn Fn(&mut Values)| {
        let mut values = plain();
        change(&mut values);
        values
    };
    vec![
        ("plain", plain()),
        (
            "proxy",
            with(&|v| {
                v.proxy.url = "https://proxy.example.org:3128".to_owned();
                v.proxy.ca = PEM.to_owned();
                v.proxy.username = "me".to_owned();
                v.proxy.password = SecretString::from("a\"b<&>");
                v.proxy.no_proxy = vec![".svc".to_owned(), "10.0.0.0/8".to_owned()];
            }),
        ),
        (
            "authorities",
            with(&|v| {
                v.gateway.ca = PEM.to_owned();
                v.extra_ca = PEM.to_owned();
                v.gateway.server_name = "gw".to_owned();
            }),
        ),
        (
            "hosts",
            with(&|v| {
                v.host_aliases =
                    vec![HostAlias { ip: "192.0.2.7".to_owned(), hostnames: vec!["a.example.org".to_owned()] }];
                v.gateway.addresses = vec!["192.0.2.7".to_owned()];
            }),
        ),
        (
            "extensions",
            with(&|v| {
                v.extensions.enabled = true;
                v.extensions.catalogue_keys =
                    vec!["-----BEGIN PUBLIC KEY-----\nMA==\n-----END PUBLIC KEY-----\n".to_owned()];
                v.extra_ca = PEM.to_owned();
            }),
        ),
        (
            "extensions that are bounded",
            with(&|v| {
                v.extensions.enabled = true;
                v.extensions.catalogue_keys = vec!["-----BEGIN PUBLIC KEY-----\nMA+/\n".to_owned()];
                v.extensions.catalogue_id = "0123456789abcdef".repeat(2);
                v.extensions.allowed_types = vec!["example.web".to_owned(), "example.db".to_owned()];
                v.extensions.locked_settings = vec!["*:image".to_owned(), "example.db:user=a\"b".to_owned()];
                v.extensions.chart_registry = "oci://registry.example.org:5000/charts".to_owned();
                v.extensions.registry_secret = "registry".to_owned();
                v.extensions.local_registry = "registry.example.org/mirror".to_owned();
                v.extensions.image.repository = "registry.example.org:5000/extensions".to_owned();
                v.extensions.image.digest = format!("sha256:{}", "b".repeat(64));
                v.extensions.work_size = "1Gi".to_owned();
                v.gitops.allowed_repositories = vec!["https://git.example.org/team/*".to_owned()];
                v.gitops.allowed_scopes = vec!["namespace".to_owned()];
                v.gitops.allowed_namespaces = vec!["team-a".to_owned(), "team-b".to_owned()];
                v.extensions.service_account.annotations.insert("a".to_owned(), "b".to_owned());
                v.limits.drain_grace = "2m".to_owned();
                v.pod_labels.insert("team".to_owned(), "a".to_owned());
                v.tolerations = vec![json!({"operator": "Exists"})];
            }),
        ),
        (
            "guard",
            with(&|v| {
                v.guard.enabled = true;
                v.issuers = serde_json::from_value(
                    json!([{"name": "towline", "url": "https://a.example.org", "pinnedKeys": "{}"}]),
                )
                .unwrap();
                v.azure_rbac.enabled = true;
            }),
        ),
        (
            "guard behind a proxy",
            with(&|v| {
                v.guard.enabled = true;
                v.guard.server = "https://guard.example.org:8444".to_owned();
                v.guard.cluster_ip = "10.96.0.20".to_owned();
                v.guard.skip_users = vec!["break-glass".to_owned()];
                v.guard.cache_entries = 0;
                v.guard.cache_allowed_for = "1h".to_owned();
                v.guard.cache_denied_for = "10s".to_owned();
                v.guard.replicas = 1;
                v.guard.service_account.annotations.insert("a".to_owned(), "b".to_owned());
                v.issuers = serde_json::from_value(json!([{"name": "b", "url": "https://b", "ca": PEM}])).unwrap();
                v.proxy.url = "https://proxy.example.org:3128".to_owned();
                v.proxy.ca = PEM.to_owned();
                v.proxy.username = "me".to_owned();
                v.proxy.password = SecretString::from("secret");
            }),
        ),
        (
            "upgrades",
            with(&|v| {
                v.upgrades.enabled = true;
                v.upgrades.catalogue_keys = vec!["-----BEGIN PUBLIC KEY-----\nMA+/\n".to_owned()];
                v.upgrades.catalogue_id = "0123456789abcdef".repeat(2);
                v.upgrades.window = "1m".to_owned();
                v.extra_ca = PEM.to_owned();
                v.upgrades.service_account.annotations.insert("a".to_owned(), "b".to_owned());
            }),
        ),
        (
            "one pod on one carrier",
            with(&|v| {
                v.replicas = 1;
                v.gateway.carrier = "websocket".to_owned();
                v.gateway.urls = vec!["https://a.example.org".to_owned(), "https://b.example.org:8443".to_owned()];
                v.gateway.url = String::new();
            }),
        ),
        (
            "everything else",
            with(&|v| {
                let issuers = json!([
                    {"name": "towline", "url": "https://a.example.org/x?y=<&>", "usernameClaim": "preferred_username",
                     "ca": PEM, "pinnedKeys": "{\"keys\": []}"},
                    {"name": "b", "url": "https://b", "audiences": ["one", "two"], "extra": {"oid": "oid", "a/b": "c"},
                     "requiredClaims": {"tenant": ["a", "b"]}, "keys": "{}", "jwksUrl": "https://b/keys", "pop": "required"},
                ]);
                v.issuers = serde_json::from_value(issuers).unwrap();
                v.impersonation.extras = vec!["oid".to_owned(), "example.org/team".to_owned()];
                v.metadata = Metadata { distribution: "k3s".to_owned(), infrastructure: "generic".to_owned() };
                v.identity.onboarding_key = SecretString::from("");
                v.identity.existing_onboarding_secret = "theirs".to_owned();
                v.azure_rbac.enabled = true;
                v.identity_tokens.enabled = false;
                v.network_policy.enabled = false;
                v.pod_security_context = serde_json::from_value(json!({"runAsUser": 1000, "fsGroup": 1000})).unwrap();
                v.limits.drain_grace = "2m".to_owned();
                v.image.digest = format!("sha256:{}", "a".repeat(64));
                v.image.pull_secrets = vec!["registry".to_owned()];
                v.node_selector.insert("kubernetes.io/os".to_owned(), "linux".to_owned());
                v.tolerations = vec![json!({"operator": "Exists"})];
                v.pod_labels.insert("team".to_owned(), "a".to_owned());
                v.pod_annotations.insert("note".to_owned(), "b".to_owned());
                v.priority_class_name = "system-cluster-critical".to_owned();
                v.affinity = serde_json::from_value(json!({"nodeAffinity": {}})).unwrap();
                v.service_account.annotations.insert("a".to_owned(), "b".to_owned());
                v.topology_spread.enabled = false;
            }),
        ),
    ]
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Objects by kind and name, without what says who made them.
fn by_name(objects: Vec<Value>) -> Vec<(String, Value)> {
    fn without_maker(value: &mut Value) {
        match value {
            Value::Object(map) => {
                if let Some(Value::Object(labels)) = map.get_mut("labels") {
                    labels.remove("helm.sh/chart");
                    labels.remove("app.kubernetes.io/managed-by");
                }
                map.values_mut().for_each(without_maker);
            }
            Value::Array(list) => list.iter_mut().for_each(without_maker),
            _ => {}
        }
    }
    let mut named: Vec<_> = objects
        .into_iter()
        .map(|mut object| {
            without_maker(&mut object);
            (format!("{}/{}", object["kind"], object["metadata"]["name"]), object)
        })
        .collect();
    named.sort_by(|a, b| a.0.cmp(&b.0));
    named
}

fn helm() -> PathBuf {
    let tool = root().join("tests/cluster/cluster");
    assert!(Command::new(&tool).args(["build", "helm"]).status().unwrap().success());
    let program = Command::new(tool).args(["program", "helm"]).output().unwrap();
    String::from_utf8(program.stdout).unwrap().trim().into()
}

#[test]
fn i3_the_manifests_are_those_of_the_chart() {
    let (helm, dir) = (helm(), tempfile::tempdir().unwrap());
    for (name, values) in sets() {
        let file = dir.path().join("values.yaml");
        std::fs::write(&file, crate::yaml::to_string(&serde_json::to_value(&values).unwrap())).unwrap();
        let mut command = Command::new(&helm);
        command.args(["template", RELEASE]).arg(root().join("docker/chart/towline-agent"));
        let out = command.args(["--namespace", "edge", "--values"]).arg(&file).output().unwrap();
        assert!(out.status.success(), "{name}: {}", String::from_utf8_lossy(&out.stderr));
        let chart: Vec<Value> = serde_yaml::Deserializer::from_slice(&out.stdout)
            .map(|document| Value::deserialize(document).unwrap())
            .filter(|object| !object.is_null())
            .collect();
        let (chart, ours) = (by_name(chart), by_name(objects(&values, "edge")));
        let names = |all: &[(String, Value)]| all.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&chart), names(&ours), "{name}");
        for ((object, chart), (_, ours)) in chart.into_iter().zip(ours) {
            assert_eq!(chart, ours, "{name}: {object}");
        }
    }
}

/// The right of an administrator is there with extensions, and with nothing else.
#[test]
fn cluster_admin_is_bound_only_with_extensions() {
    for (name, values) in sets() {
        let objects = objects(&values, "edge");
        let administers = objects.iter().filter(|object| object["roleRef"]["name"] == CLUSTER_ADMIN);
        let accounts: Vec<_> = administers.map(|object| object["subjects"][0]["name"].clone()).collect();
        let expected: &[&str] = if values.extensions.enabled { &[EXTENSIONS] } else { &[] };
        assert_eq!(accounts, expected, "{name}");
        let theirs = objects.iter().filter(|object| {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            name.contains(EXTENSIONS)
                || ["extensionconfigs", "fluxconfigs", "gitconfigs"].iter().any(|one| name.contains(one))
        });
        assert_eq!(theirs.count(), if values.extensions.enabled { 7 } else { 0 }, "{name}");
    }
}

#[test]
fn what_pods_use_exists_before_the_pods() {
    let kinds: Vec<_> =
        objects(&plain(), "edge").iter().map(|object| object["kind"].as_str().unwrap().to_owned()).collect();
    let at = |kind: &str| kinds.iter().position(|known| known == kind).unwrap();
    for kind in [
        "CustomResourceDefinition",
        "ServiceAccount",
        "RoleBinding",
        "ClusterRoleBinding",
        "Secret",
        "ConfigMap",
        "Service",
    ] {
        assert!(at(kind) < at("Deployment"), "{kind}");
    }
    let chart = include_str!("../../../docker/chart/towline-agent/Chart.yaml");
    let said = |key: &str| chart.lines().find_map(|line| line.strip_prefix(key)).map(str::trim);
    assert_eq!((said("appVersion:"), said("version:")), (Some(version()), Some(version())));
}
