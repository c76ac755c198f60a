//! What the catalogue offers, by location and by cluster (docs/features.md E2).

use ::catalogue::index::{Index, UnsupportedVersions};

use super::*;

const QUERY: &str = "api-version=2024-11-01-preview";
const TYPES: &str = "Microsoft.KubernetesConfiguration/extensionTypes";
const VERSIONS: &[(&str, &[&str])] =
    &[("1.0.0", &["Stable"]), ("1.2.0", &["Stable", "Preview"]), ("2.0.0", &["Preview"]), ("2.1.0", &["Preview"])];

/// With a catalogue of `example.web` whose version 1.2.0 needs Kubernetes 1.30.
async fn site() -> Bench {
    let folder = tempfile::tempdir().unwrap();
    crate::catalogue::tests::make(&folder.path().join("catalogue"), VERSIONS, |index: &mut Index| {
        let releases = &mut index.types[0].versions;
        releases[1].kube_version = Some(">=1.30.0-0".parse().unwrap());
        releases[2].supported_distributions = vec!["eks".to_owned()];
        releases[3].unsupported_kubernetes_versions = vec![UnsupportedVersions {
            distributions: vec!["k3s".to_owned()],
            unsupported_versions: vec!["<1.31".parse().unwrap()],
        }];
    });
    let clock_ms = Arc::new(AtomicI64::new(1_800_000_000_000));
    Bench::open(folder, TestIssuer::new("https://issuer.test"), clock_ms, None).await
}

fn by_location(rest: &str) -> String {
    format!(
        "/subscriptions/{SUBSCRIPTION}/providers/Microsoft.KubernetesConfiguration/locations/eastus/extensionTypes{rest}"
    )
}

fn by_cluster(rest: &str) -> String {
    format!("{}/providers/{TYPES}{rest}", cluster_id("G", "edge"))
}

impl Bench {
    async fn offered(&self, path: &str) -> Vec<String> {
        let separator = if path.contains('?') { '&' } else { '?' };
        let answer = self.call("owner", "GET", &format!("{path}{separator}{QUERY}"), None).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        let value = answer.body["value"].as_array().unwrap();
        value.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    }

    async fn tell_facts(&self, facts: Value) {
        let key = cluster_id("g", "edge").to_ascii_lowercase();
        let shown = self.call("owner", "GET", &cluster("G", "edge"), None).await;
        let principal = shown.body["identity"]["principalId"].as_str().unwrap();
        self.control.store.put_facts(&key, Some(principal), &facts, None, 1_800_000_000_000).await.unwrap();
    }
}

#[tokio::test]
async fn e2_types_and_versions_are_listed_by_location() {
    let site = site().await;
    assert_eq!(site.offered(&by_location("")).await, ["example.web"]);
    let path = format!("{}?{QUERY}", by_location("/Example.WEB"));
    let shown = site.call("owner", "GET", &path, None).await;
    assert_eq!(shown.status, 200, "{}", shown.body);
    assert_eq!(shown.body["id"], by_location("/example.web"));
    assert_eq!(shown.body["properties"]["publisher"], "Example");
    let settings = &shown.body["properties"]["supportedScopes"]["clusterScopeSettings"]["properties"];
    assert_eq!(settings["defaultReleaseNamespace"], "web");
    for (filter, expected) in [
        ("publisherId=EXAMPLE&clusterType=connectedClusters&releaseTrain=preview", 1),
        ("publisherId=other", 0),
        ("offerId=x", 0),
        ("clusterType=managedClusters", 0),
        ("releaseTrain=Nightly", 0),
    ] {
        assert_eq!(site.offered(&by_location(&format!("?{filter}"))).await.len(), expected, "{filter}");
    }
    let versions = by_location("/example.web/versions");
    assert_eq!(site.offered(&versions).await, ["2.1.0", "2.0.0", "1.2.0", "1.0.0"]);
    for (filter, expected) in [
        ("releaseTrain=Stable", vec!["1.2.0", "1.0.0"]),
        ("majorVersion=1&showLatest=true", vec!["1.2.0"]),
        ("showLatest=True", vec!["2.1.0"]),
        ("majorVersion=7", vec![]),
        ("clusterType=provisionedClusters", vec![]),
    ] {
        assert_eq!(site.offered(&format!("{versions}?{filter}")).await, expected, "{filter}");
    }
    let one = site.call("owner", "GET", &format!("{versions}/1.2.0?{QUERY}"), None).await;
    assert_eq!(one.body["properties"]["kubeVersion"], ">=1.30.0-0", "{}", one.body);
}

#[tokio::test]
async fn e2_cluster_sees_only_what_works_on_it() {
    let site = site().await;
    site.group("G").await;
    site.cluster("G", "edge").await;
    let versions = by_cluster("/example.web/versions");
    // The resource says k3s; the version of Kubernetes is not known.
    assert_eq!(site.offered(&versions).await, ["2.1.0", "1.2.0", "1.0.0"]);
    site.tell_facts(json!({"kubernetesVersion": "v1.29.4+k3s1", "distribution": "k3s"})).await;
    assert_eq!(site.offered(&versions).await, ["1.0.0"]);
    assert_eq!(site.offered(&by_cluster("?releaseTrain=Preview")).await.len(), 0);
    let refused = site.call("owner", "GET", &format!("{versions}/1.2.0?{QUERY}"), None).await;
    assert_eq!((refused.status, refused.code()), (404, "ExtensionTypeVersionNotFound"));
    let message = refused.body["error"]["message"].as_str().unwrap();
    assert!(message.contains("needs Kubernetes >=1.30.0-0, and the cluster has 1.29.4"), "{message}");
    site.tell_facts(json!({"kubernetesVersion": "v1.34.1", "distribution": "k3s"})).await;
    assert_eq!(site.offered(&versions).await, ["2.1.0", "1.2.0", "1.0.0"]);
    site.tell_facts(json!({"kubernetesVersion": "v1.34.1", "distribution": "eks"})).await;
    assert_eq!(site.offered(&versions).await.len(), 4);
}

#[tokio::test]
async fn e2_bad_questions_about_types_are_refused() {
    let site = site().await;
    site.group("G").await;
    for (path, status, code) in [
        (by_location("/none"), 404, "ExtensionTypeNotFound"),
        (by_location("/example.web/versions/9.9.9"), 404, "ExtensionTypeVersionNotFound"),
        (by_location("/example.web/versions/nine"), 404, "ExtensionTypeVersionNotFound"),
        (by_location("/example.web/versions?releaseTrain=Nightly"), 400, "InvalidReleaseTrain"),
        (by_location("/example.web/versions?majorVersion=x"), 400, "InvalidQueryParameterValue"),
        (by_location("/example.web/versions?showLatest=x"), 400, "InvalidQueryParameterValue"),
        (by_cluster(""), 404, "ResourceNotFound"),
        (
            by_cluster("").replace("Kubernetes/connectedClusters", "ContainerService/managedClusters"),
            404,
            "InvalidResourceType",
        ),
    ] {
        let separator = if path.contains('?') { '&' } else { '?' };
        let answer = site.call("owner", "GET", &format!("{path}{separator}{QUERY}"), None).await;
        assert_eq!((answer.status, answer.code()), (status, code), "{path}: {}", answer.body);
    }
    let old = site.call("owner", "GET", &format!("{}?{VERSION}", by_location("")), None).await;
    assert_eq!((old.status, old.code()), (400, "NoRegisteredProviderFound"));
    let stranger = site.call("stranger", "GET", &format!("{}?{QUERY}", by_location("")), None).await;
    assert_eq!((stranger.status, stranger.code()), (403, "AuthorizationFailed"));
    let put = site.call("owner", "PUT", &format!("{}?{QUERY}", by_location("/x")), Some(json!({}))).await;
    assert_eq!(put.status, 405);
}

#[tokio::test]
async fn e2_gateway_without_a_catalogue_offers_nothing_and_says_so() {
    let site = Bench::new().await;
    assert!(site.offered(&by_location("")).await.is_empty());
    let answer = site.call("owner", "GET", &format!("{}?{QUERY}", by_location("/example.web")), None).await;
    assert_eq!((answer.status, answer.code()), (404, "ExtensionTypeNotFound"));
    assert!(answer.body["error"]["message"].as_str().unwrap().contains("no catalogue"), "{}", answer.body);
}
