//! Source control configurations (docs/features.md G10): what is written and refused, what agents pull, and what is shown
//! of what they push. What is the same as of flux configurations is tested there.

use types::agent_api::{
    Object, ObjectError, ObjectState, ObjectStatus, ObjectStatuses, Objects, ProtectedQuestion, encode,
};

use super::{flux_configurations::site, *};

const CONFIGURATIONS: &str = "Microsoft.KubernetesConfiguration/sourceControlConfigurations";
const VERSIONS: [&str; 5] = ["2021-03-01", "2022-03-01", "2022-07-01", "2022-11-01", "2023-05-01"];

fn id(name: &str) -> String {
    format!("{}/providers/{CONFIGURATIONS}/{name}", cluster_id("g", "c"))
}

fn at(name: &str) -> String {
    format!("{}?api-version=2023-05-01", id(name))
}

fn extension() -> String {
    format!(
        "{}/providers/Microsoft.KubernetesConfiguration/extensions/flux?api-version=2025-03-01",
        cluster_id("g", "c")
    )
}

fn https() -> Value {
    json!({"properties": {
        "repositoryUrl": "https://example.com/shop.git", "operatorNamespace": "shop", "operatorScope": "namespace",
        "operatorParams": "--git-branch=main --git-path=apps,infra --git-readonly",
        "configurationProtectedSettings": {"httpsUser": encode(b"reader"), "httpsKey": encode(b"geheim-1")},
    }})
}

/// As much of a private key as the gateway reads.
const KEY: &[u8] = b"-----BEGIN RSA PRIVATE KEY-----\nZ2VoZWltLTI=\n-----END RSA PRIVATE KEY-----\n";

/// Lines of `known_hosts`.
fn known_hosts() -> String {
    types::known_hosts::built_in("git@github.com:x").unwrap()
}

fn ssh() -> Value {
    json!({"properties": {
        "repositoryUrl": "git@example.com:team/shop", "sshKnownHostsContents": encode(known_hosts().as_bytes()),
        "configurationProtectedSettings": {"sshPrivateKey": encode(KEY)},
    }})
}

impl Bench {
    async fn source_control(&self, method: &str, name: &str, body: Option<Value>) -> Answer {
        self.call("owner", method, &at(name), body).await
    }

    async fn made_of(&self, name: &str, body: Value) -> Value {
        let made = self.source_control("PUT", name, Some(body)).await;
        assert_eq!(made.status, 201, "{}", made.body);
        made.body["properties"].clone()
    }

    async fn pulled(&self) -> Objects {
        let key = cluster_id("g", "c").to_ascii_lowercase();
        self.control.objects(&key, Some(CONFIGURATIONS), None).await.unwrap()
    }

    /// Protected settings of the only configuration, as the agent gets them.
    async fn pulled_settings(&self) -> Vec<String> {
        let object = self.pulled().await.objects.remove(0);
        let question = ProtectedQuestion { id: object.id, protected: object.protected.unwrap() };
        let key = cluster_id("g", "c").to_ascii_lowercase();
        let told = self.control.protected_of(&key, &question).await.unwrap().settings;
        told.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    async fn pushed(&self, name: &str, state: ObjectState, details: Option<Value>, error: Option<&str>) {
        let object = self.pulled().await.objects.into_iter().find(|one| one.id.ends_with(name)).unwrap();
        self.pushed_of(object, state, details, error).await;
    }

    async fn pushed_of(&self, object: Object, state: ObjectState, details: Option<Value>, error: Option<&str>) {
        let error = error.map(|text| ObjectError { code: "NotAllowedInCluster".to_owned(), message: text.to_owned() });
        let told = ObjectStatus {
            id: object.id,
            generation: object.generation,
            state,
            current_version: None,
            error,
            statuses: Vec::new(),
            events: Vec::new(),
            details,
            parts: None,
        };
        let key = cluster_id("g", "c").to_ascii_lowercase();
        self.control.objects_told(&key, ObjectStatuses { objects: vec![told] }).await.unwrap();
    }

    async fn shown(&self, name: &str) -> Value {
        let shown = self.source_control("GET", name, None).await;
        assert_eq!(shown.status, 200, "{}", shown.body);
        shown.body["properties"].clone()
    }
}

#[tokio::test]
async fn g10_data_exchange_agent_pulls_repo_url_and_operator_parameters() {
    let site = site().await;
    let own = site.made_of("shop", https()).await;
    assert_eq!((&own["operatorType"], &own["operatorInstanceName"]), (&json!("Flux"), &json!("shop")));
    assert_eq!((&own["enableHelmOperator"], &own["provisioningState"]), (&json!(false), &json!("Accepted")));
    assert_eq!(own["complianceStatus"]["complianceState"], "Pending");
    let spec = site.pulled().await.objects.remove(0).spec.unwrap();
    assert_eq!(spec["repositoryUrl"], "https://example.com/shop.git");
    assert_eq!(spec["operatorParams"], "--git-branch=main --git-path=apps,infra --git-readonly");
    assert_eq!((&spec["operatorNamespace"], &spec["operatorScope"]), (&json!("shop"), &json!("namespace")));
    assert!(spec.get("complianceStatus").is_none() && spec.get("provisioningState").is_none(), "{spec}");
    let defaults = site.made_of("other", json!({"properties": {"repositoryUrl": "https://example.com/x"}})).await;
    assert_eq!((&defaults["operatorNamespace"], &defaults["operatorScope"]), (&json!("default"), &json!("cluster")));
}

#[tokio::test]
async fn g10_data_exchange_agent_pulls_private_key_and_known_hosts_content() {
    let site = site().await;
    let own = site.made_of("shop", ssh()).await;
    assert!(own.get("configurationProtectedSettings").is_none(), "{own}");
    assert_eq!(site.pulled_settings().await, [format!("sshPrivateKey={}", encode(KEY))]);
    let spec = site.pulled().await.objects.remove(0).spec.unwrap();
    assert_eq!(spec["sshKnownHostsContents"], encode(known_hosts().as_bytes()));
}

#[tokio::test]
async fn g10_data_exchange_agent_pulls_https_username_and_token_for_48_hours() {
    let site = site().await;
    let made = site.source_control("PUT", "shop", Some(https())).await;
    let kept = site.control.store.get(&id("shop").to_ascii_lowercase()).await.unwrap().unwrap();
    let spec = serde_json::to_string(&site.pulled().await.objects[0]).unwrap();
    for text in [made.body.to_string(), kept.body.to_string(), spec] {
        assert!(!text.contains(&encode(b"geheim-1")) && !text.contains(&encode(b"reader")), "{text}");
    }
    let wanted = [format!("httpsKey={}", encode(b"geheim-1")), format!("httpsUser={}", encode(b"reader"))];
    assert_eq!(site.pulled_settings().await, wanted);
    // What a PUT does not name of them stays.
    let mut same = https();
    same["properties"].as_object_mut().unwrap().remove("configurationProtectedSettings");
    assert_eq!(site.source_control("PUT", "shop", Some(same)).await.status, 200);
    assert_eq!(site.pulled_settings().await, wanted);
    site.clock_ms.fetch_add(DUE_MS, Ordering::SeqCst);
    site.control.forget_protected().await.unwrap();
    let object = site.pulled().await.objects.remove(0);
    let question = ProtectedQuestion { id: object.id, protected: object.protected.unwrap() };
    let gone = site.control.protected_of(&cluster_id("g", "c").to_ascii_lowercase(), &question).await.unwrap_err();
    assert_eq!(gone.status.as_u16(), 410);
}

#[tokio::test]
async fn g10_data_exchange_agent_pushes_status_of_the_operator() {
    let site = site().await;
    site.made_of("shop", https()).await;
    site.pushed("shop", ObjectState::Creating, None, None).await;
    assert_eq!(site.shown("shop").await["provisioningState"], "Running");
    let told = |state: &str| {
        json!({
            "complianceStatus": {
                "complianceState": state, "lastConfigApplied": "2026-11-27T12:00:00Z", "message": "m", "messageLevel": "Warning",
                "html": "x",
            },
            "repositoryPublicKey": "ssh-ed25519 AAAA", "repositoryUrl": "https://evil.example.com",
        })
    };
    for state in ["Pending", "Installed", "Compliant", "Noncompliant", "Failed"] {
        site.pushed("shop", ObjectState::Succeeded, Some(told(state)), None).await;
        let own = site.shown("shop").await;
        let wanted = json!({
            "complianceState": state, "lastConfigApplied": "2026-11-27T12:00:00Z", "message": "m", "messageLevel": "Warning",
        });
        assert_eq!((&own["complianceStatus"], &own["provisioningState"]), (&wanted, &json!("Succeeded")));
        assert_eq!(
            (&own["repositoryPublicKey"], &own["repositoryUrl"]),
            (&json!("ssh-ed25519 AAAA"), &json!("https://example.com/shop.git"))
        );
    }
    site.pushed(
        "shop",
        ObjectState::Succeeded,
        Some(json!({"complianceStatus": {"complianceState": "Splendid"}})),
        None,
    )
    .await;
    assert_eq!(site.shown("shop").await["complianceStatus"]["complianceState"], Value::Null);
    // What failed before anything was made.
    site.made_of("other", https()).await;
    site.pushed("other", ObjectState::Failed, None, Some("pinned in the cluster")).await;
    let own = site.shown("other").await;
    let failed = json!({"complianceState": "Failed", "message": "pinned in the cluster", "messageLevel": "Error"});
    assert_eq!((&own["complianceStatus"], &own["provisioningState"]), (&failed, &json!("Failed")));
}

#[tokio::test]
async fn g10_all_api_versions_answer_and_a_deletion_is_a_200_with_an_operation() {
    let site = site().await;
    for version in VERSIONS {
        let one = format!("{}?api-version={version}", id("shop"));
        let made = site.call("owner", "PUT", &one, Some(https())).await;
        assert_eq!(made.status, 201, "{version}: {}", made.body);
        assert_eq!(site.call("owner", "PUT", &one, Some(https())).await.status, 200);
        let patch = site.call("owner", "PATCH", &one, Some(json!({"properties": {}}))).await;
        assert_eq!((patch.status, &patch.body["error"]["code"]), (405, &json!("MethodNotAllowed")));
        let listed = format!("{}/providers/{CONFIGURATIONS}?api-version={version}", cluster_id("g", "c"));
        assert_eq!(site.call("owner", "GET", &listed, None).await.body["value"].as_array().map(Vec::len), Some(1));
        let gone = site.call("owner", "DELETE", &one, None).await;
        assert_eq!((gone.status, gone.body.to_string().len() < 5), (200, true), "{}", gone.body);
        // It may be gone by itself, at any moment: no cluster ever had it.
        if let Some(object) = site.pulled().await.objects.pop() {
            site.pushed_of(object, ObjectState::Deleted, None, None).await;
        }
        assert_eq!(site.ended("owner", gone.header("azure-asyncoperation")).await.body["status"], "Succeeded");
        assert_eq!(site.call("owner", "GET", &one, None).await.status, 404);
        assert_eq!(site.call("owner", "DELETE", &one, None).await.status, 204);
    }
    let preview = format!("{}?api-version=2019-11-01-preview", id("shop"));
    assert_eq!(site.call("owner", "GET", &preview, None).await.status, 400);
}

#[tokio::test]
async fn g10_lists_have_pages() {
    let site = site().await;
    for name in ["a", "b", "c"] {
        site.made_of(name, https()).await;
    }
    let first = format!("{}/providers/{CONFIGURATIONS}?api-version=2023-05-01&$top=2", cluster_id("g", "c"));
    let page = site.call("owner", "GET", &first, None).await;
    assert_eq!(page.body["value"].as_array().map(Vec::len), Some(2));
    let next = page.body["nextLink"].as_str().unwrap().strip_prefix(URL).unwrap().to_owned();
    let page = site.call("owner", "GET", &next, None).await;
    assert_eq!((page.body["value"][0]["name"].as_str(), page.body.get("nextLink")), (Some("c"), None));
}

#[tokio::test]
async fn g10_what_flux_could_not_do_is_refused_with_its_place() {
    let site = site().await;
    let with = |body: Value, name: &str, value: Value| {
        let mut body = body;
        body["properties"][name] = value;
        body
    };
    let key = |name: &str| json!({name: encode(if name == "sshPrivateKey" { KEY } else { b"x" })});
    let sealed = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nYQ==\n-----END RSA PRIVATE KEY-----\n";
    let settings = "configurationProtectedSettings";
    for (body, code, target) in [
        (with(https(), "operatorParams", json!("--git-exec=sh")), "InvalidOperatorParams", "operatorParams"),
        (with(https(), "operatorParams", json!("--git-poll-interval=5")), "InvalidOperatorParams", "operatorParams"),
        (with(https(), "repositoryUrl", json!("ftp://example.com/x")), "InvalidRequestContent", "repositoryUrl"),
        (with(https(), "repositoryUrl", json!("https://u:p@example.com/x")), "InvalidRequestContent", "repositoryUrl"),
        (with(https(), "operatorType", json!("Argo")), "InvalidRequestContent", "operatorType"),
        (with(https(), "operatorNamespace", json!("Shop")), "InvalidRequestContent", "operatorNamespace"),
        (with(https(), "sshKnownHostsContents", json!("no base64")), "InvalidRequestContent", "sshKnownHostsContents"),
        (
            with(https(), "sshKnownHostsContents", json!(encode(known_hosts().as_bytes()))),
            "InvalidCredentials",
            "sshKnownHostsContents",
        ),
        (with(ssh(), "sshKnownHostsContents", json!("AAEC")), "InvalidRequestContent", "sshKnownHostsContents"),
        (with(ssh(), "sshKnownHostsContents", json!("")), "InvalidCredentials", "sshKnownHostsContents"),
        (
            with(https(), settings, json!({"password": "aGk="})),
            "UnknownProperty",
            "configurationProtectedSettings.password",
        ),
        (with(https(), settings, key("httpsKey")), "InvalidCredentials", "configurationProtectedSettings.httpsKey"),
        (
            with(https(), settings, key("sshPrivateKey")),
            "InvalidCredentials",
            "configurationProtectedSettings.sshPrivateKey",
        ),
        (with(ssh(), settings, key("httpsKey")), "InvalidCredentials", "configurationProtectedSettings.httpsKey"),
        (
            with(ssh(), settings, json!({"sshPrivateKey": encode(b"hello")})),
            "InvalidRequestContent",
            "configurationProtectedSettings.sshPrivateKey",
        ),
        (
            with(ssh(), settings, json!({"sshPrivateKey": encode(sealed.as_bytes())})),
            "InvalidRequestContent",
            "configurationProtectedSettings.sshPrivateKey",
        ),
        (json!({"properties": {}}), "MissingRequiredProperty", "repositoryUrl"),
    ] {
        let refused = site.source_control("PUT", "shop", Some(body.clone())).await;
        let error = &refused.body["error"];
        assert_eq!((refused.status, error["code"].as_str()), (400, Some(code)), "{body}: {}", refused.body);
        assert_eq!(error["target"], format!("properties.{target}"), "{body}");
    }
    let refused =
        site.source_control("PUT", "shop", Some(with(https(), "operatorParams", json!("--git-exec=sh")))).await;
    let message = refused.body["error"]["message"].as_str().unwrap();
    assert!(message.contains("'--git-exec'") && message.contains("--git-branch, --git-path"), "{message}");
    let clear = with(https(), "repositoryUrl", json!("http://example.com/x"));
    assert!(site.source_control("PUT", "shop", Some(clear)).await.body.to_string().contains("clear text"));
    for url in ["git@example.com:org/repo", "ssh://git@example.com:2222/org/repo"] {
        let made = site.source_control("PUT", "fine", Some(with(ssh(), "repositoryUrl", json!(url)))).await;
        assert!(made.status < 300, "{url}: {}", made.body);
    }
    assert_eq!(site.source_control("PUT", "Shop", Some(https())).await.body["error"]["target"], "name");
    // Clients send empty texts along.
    let empty = json!({"properties": {
        "repositoryUrl": "https://example.com/x", "operatorParams": "", "sshKnownHostsContents": "", "enableHelmOperator": true,
        "helmOperatorProperties": {"chartVersion": "1.2.0", "chartValues": "--set helm.versions=v3"},
    }});
    let own = site.made_of("empty", empty).await;
    assert_eq!((&own["enableHelmOperator"], own.get("sshKnownHostsContents")), (&json!(true), None));
    // It stays where it was created.
    let moved = json!({"properties": {"repositoryUrl": "https://example.com/x", "operatorNamespace": "other"}});
    let moved = site.source_control("PUT", "empty", Some(moved)).await;
    assert_eq!((moved.status, &moved.body["error"]["code"]), (400, &json!("PropertyChangeNotAllowed")));
}

#[tokio::test]
async fn g2_g10_flux_comes_with_the_first_and_stays_while_there_is_one() {
    let site = site().await;
    site.made_of("shop", https()).await;
    let flux = site.call("owner", "GET", &extension(), None).await;
    assert_eq!(flux.body["properties"]["extensionType"], "microsoft.flux");
    let kept = site.call("owner", "DELETE", &extension(), None).await;
    assert_eq!((kept.status, &kept.body["error"]["code"]), (409, &json!("ExtensionInUse")), "{}", kept.body);
    let message = kept.body["error"]["message"].as_str().unwrap();
    assert!(message.contains("source control configurations") && message.contains("shop"), "{message}");
    // A flux configuration of the same name is another one.
    let other = format!(
        "{}/providers/Microsoft.KubernetesConfiguration/fluxConfigurations/shop?api-version=2023-05-01",
        cluster_id("g", "c")
    );
    let body =
        json!({"properties": {"sourceKind": "GitRepository", "gitRepository": {"url": "https://example.com/x"}}});
    assert_eq!(site.call("owner", "PUT", &other, Some(body)).await.status, 201);
    let gone = site.call("owner", "DELETE", &format!("{}&forceDelete=true", at("shop")), None).await;
    assert_eq!(gone.status, 200, "{}", gone.body);
    assert!(site.call("owner", "DELETE", &extension(), None).await.body.to_string().contains("ExtensionInUse"));
}

#[tokio::test]
async fn g10_compliance_of_what_was_wanted_before_is_not_that_of_today() {
    let site = site().await;
    site.made_of("shop", https()).await;
    let details = json!({
        "complianceStatus": {
            "complianceState": "Compliant", "lastConfigApplied": "2026-11-27T12:00:00Z", "message": "a is applied",
            "messageLevel": "Information",
        },
        "repositoryPublicKey": "ssh-ed25519 AAAA",
    });
    site.pushed("shop", ObjectState::Succeeded, Some(details.clone()), None).await;
    assert_eq!(site.shown("shop").await["complianceStatus"], details["complianceStatus"]);
    let mut other = https();
    other["properties"]["operatorParams"] = json!("--git-branch=next");
    let answered = site.source_control("PUT", "shop", Some(other)).await.body["properties"].clone();
    for own in [answered, site.shown("shop").await] {
        let pending = json!({"complianceState": "Pending", "lastConfigApplied": "2026-11-27T12:00:00Z"});
        assert_eq!((&own["complianceStatus"], &own["provisioningState"]), (&pending, &json!("Accepted")));
        assert_eq!(own["repositoryPublicKey"], "ssh-ed25519 AAAA");
    }
    site.pushed("shop", ObjectState::Succeeded, Some(details.clone()), None).await;
    assert_eq!(site.shown("shop").await["complianceStatus"], details["complianceStatus"]);
}

#[tokio::test]
async fn g10_kept_secrets_are_not_sent_to_another_host() {
    let site = site().await;
    site.made_of("shop", https()).await;
    let kept = site.pulled_settings().await;
    let at = |url: &str| {
        let mut body = https();
        body["properties"]["repositoryUrl"] = json!(url);
        body["properties"].as_object_mut().unwrap().remove("configurationProtectedSettings");
        body
    };
    let refused = async |site: &Bench| {
        for url in ["https://mine.example/shop.git", "https://example.com:8443/shop.git"] {
            let answer = site.source_control("PUT", "shop", Some(at(url))).await;
            assert_eq!((answer.status, answer.code()), (400, "InvalidCredentials"), "{url}: {}", answer.body);
            assert_eq!(answer.body["error"]["target"], "properties.configurationProtectedSettings", "{}", answer.body);
        }
    };
    refused(&site).await;
    // Another path of the same host is reached with the same credentials.
    assert_eq!(site.source_control("PUT", "shop", Some(at("https://example.com/other.git"))).await.status, 200);
    assert_eq!(site.pulled_settings().await, kept);
    // Also when only the cluster still has them, and the gateway does not.
    site.clock_ms.fetch_add(DUE_MS, Ordering::SeqCst);
    site.control.forget_protected().await.unwrap();
    refused(&site).await;
    let mut again = at("https://mine.example/shop.git");
    again["properties"]["configurationProtectedSettings"] =
        json!({"httpsUser": encode(b"me"), "httpsKey": encode(b"mine")});
    assert_eq!(site.source_control("PUT", "shop", Some(again)).await.status, 200);
    assert_eq!(
        site.pulled_settings().await,
        [format!("httpsKey={}", encode(b"mine")), format!("httpsUser={}", encode(b"me"))]
    );
    // None may go anywhere.
    let mut none = at("https://other.example/shop.git");
    none["properties"]["configurationProtectedSettings"] = json!({});
    assert_eq!(site.source_control("PUT", "shop", Some(none)).await.status, 200);
    assert!(site.pulled_settings().await.is_empty(), "a new tag, of which there is nothing");
}
