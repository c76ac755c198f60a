//! What an agent tells on its tunnel and what it is told there (docs/features.md C1-C6, K9, M1, M5, R4, D7).

use super::*;

const NEWEST: &str = "2026-05-01";

impl Site {
    async fn properties(&self, name: &str) -> Value {
        let token = self.world.issuer.token("owner", &[], URL, SystemTime::now());
        let target = format!("{}?api-version={NEWEST}", id(name));
        self.http("GET", &target, Some(&token), None, None).await.json()["properties"].clone()
    }

    /// A cluster with its tunnel.
    async fn connected(&self, name: &str) -> TunnelHandle {
        let key = Onboarding::new();
        self.cluster(name, &key).await;
        let given = self.enrol(name, &key).await;
        self.tunnel(&given).await
    }

    async fn switch(&self, name: &str, enabled: &str) {
        let token = self.world.issuer.token("owner", &[], URL, SystemTime::now());
        let target = format!("{}?api-version={NEWEST}", id(name));
        let shown = self.http("GET", &target, Some(&token), None, None).await.json();
        let entry = json!([{"feature": "cluster-connect", "settings": {"enabled": enabled}}]);
        let mut body = json!({"location": "here", "identity": {"type": "SystemAssigned"}});
        body["properties"] = json!({
            "agentPublicKeyCertificate": shown["properties"]["agentPublicKeyCertificate"],
            "arcAgentryConfigurations": entry,
        });
        let answer = self.http("PUT", &target, Some(&token), Some(body), None).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

fn told() -> Value {
    json!({
        "agentVersion": "1.2.3", "kubeSystemUid": "uid-of-edge", "kubernetesVersion": "1.36.0", "totalCoreCount": 8,
        "distribution": "k3s", "roles": {"metrics-agent": "Failing"}, "desiredRevision": 0,
        "errors": [{"message": "nodes: forbidden", "severity": "Warning", "component": "x", "time": "2099-01-01T00:00:00Z"}],
    })
}

#[tokio::test]
async fn c1_c2_c6_m1_m5_d7_a_tunnel_and_its_heartbeats_make_a_cluster_connected_and_known() {
    let site = Site::new().await;
    let key = Onboarding::new();
    site.cluster("edge", &key).await;
    assert_eq!(site.properties("edge").await["connectivityStatus"], "Connecting");
    let given = site.enrol("edge", &key).await;
    assert_eq!(site.properties("edge").await["connectivityStatus"], "Connecting", "a certificate is no sign of life");
    let tunnel = site.tunnel(&given).await;
    let (status, answer) = ask(&tunnel, Method::POST, paths::HEARTBEAT, &told()).await;
    assert_eq!(status, 200, "{answer}");
    assert!(answer["nextInSeconds"].as_u64().unwrap() <= 300, "{answer}");
    let shown = site.properties("edge").await;
    assert_eq!(shown["connectivityStatus"], "Connected");
    assert_eq!(shown["lastConnectivityTime"], answer["received"], "by the gateway's clock");
    assert_eq!((&shown["agentVersion"], &shown["totalCoreCount"]), (&json!("1.2.3"), &json!(8)));
    assert_eq!((&shown["distribution"], &shown["totalNodeCount"]), (&json!("k3s"), &Value::Null));
    let profile = &shown["arcAgentProfile"];
    assert_eq!((&profile["agentState"], &profile["agentErrors"][0]["component"]), (&json!("Failing"), &json!("x")));
    assert_eq!(profile["agentErrors"][0]["time"], answer["received"], "a clock that goes ahead is not believed");

    // Nothing that makes no sense is kept; nor that this is another cluster, or one that is a resource already (R4).
    let with = |name: &str, value: Value| {
        let mut told = told();
        told[name] = value;
        told
    };
    for (bad, status, code) in [
        (with("totalNodeCount", json!(4_000_000_000_u32)), 400, "InvalidRequestContent"),
        (with("totalNodeCount", json!(-1)), 400, "InvalidRequestContent"),
        (with("agentVersion", json!("x".repeat(10_000))), 400, "InvalidRequestContent"),
        (json!([]), 400, "InvalidRequestContent"),
        (with("kubeSystemUid", json!("another")), 409, codes::ALREADY_CONNECTED),
    ] {
        let (found, body) = ask(&tunnel, Method::POST, paths::HEARTBEAT, &bad).await;
        assert_eq!((found, &body["error"]["code"]), (status, &json!(code)), "{body}");
    }
    assert_eq!(site.properties("edge").await["agentVersion"], "1.2.3");
    let other = site.connected("other").await;
    let (status, body) = ask(&other, Method::POST, paths::HEARTBEAT, &told()).await;
    assert_eq!((status, &body["error"]["code"]), (409, &json!(codes::ALREADY_CONNECTED)), "{body}");
}

#[tokio::test]
async fn c3_c4_silence_and_the_end_of_a_certificate_are_seen_by_the_gateways_clock() {
    let site = Site::new().await;
    let tunnel = site.connected("edge").await;
    let (status, _) = ask(&tunnel, Method::POST, paths::HEARTBEAT, &told()).await;
    assert_eq!(status, 200);
    tunnel.close(CloseCode::Shutdown, "the test ends it");
    let down = async {
        while site.world.gateway.core().control.as_ref().unwrap().is_live(&id("edge").key()) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, down).await.unwrap();
    site.ahead.store(14 * 60, Ordering::SeqCst);
    assert_eq!(site.properties("edge").await["connectivityStatus"], "Connected");
    site.ahead.store(16 * 60, Ordering::SeqCst);
    assert_eq!(site.properties("edge").await["connectivityStatus"], "Offline");
    site.ahead.store(91 * DAY, Ordering::SeqCst);
    assert_eq!(site.properties("edge").await["connectivityStatus"], "Expired");
}

#[tokio::test]
async fn k9_an_agent_is_told_at_once_and_users_do_not_get_through() {
    let site = Site::new().await;
    let tunnel = site.connected("edge").await;
    let (status, first) = ask(&tunnel, Method::GET, paths::DESIRED, &Value::Null).await;
    assert_eq!((status, &first["clusterConnect"], &first["azureRbac"]), (200, &json!(true), &json!(false)), "{first}");
    let (status, _) = ask(&tunnel, Method::GET, &format!("{}?after=x", paths::DESIRED), &Value::Null).await;
    assert_eq!(status, 400);
    // Who waits is woken by the change, not by time.
    let after = format!("{}?after={}", paths::DESIRED, first["revision"]);
    let no_body = Value::Null;
    let waits = ask(&tunnel, Method::GET, &after, &no_body);
    let ((status, second), ()) =
        tokio::time::timeout(LONG, async { tokio::join!(waits, site.switch("edge", "false")) })
            .await
            .expect("the change wakes who waits");
    assert_eq!((status, &second["clusterConnect"]), (200, &json!(false)), "{second}");
    assert!(second["revision"].as_i64() > first["revision"].as_i64());
    let user = |name: &str| site.world.issuer.token(name, &[], &id("edge").audience(), SystemTime::now());
    let target = format!("/{}/version", id("edge").key().hex());
    let refused = site.http("GET", &target, Some(&user("owner")), None, None).await;
    assert_eq!((refused.status, &refused.json()["kind"]), (403, &json!("Status")));
    assert!(refused.text().contains("cluster-connect"), "{}", refused.text());
    let stranger = site.http("GET", &target, Some(&user("stranger")), None, None).await;
    assert_eq!(stranger.status, 403);
    assert!(!stranger.text().contains("cluster-connect"), "who has no right learns nothing: {}", stranger.text());
    site.switch("edge", "true").await;
    let (_, third) = ask(&tunnel, Method::GET, paths::DESIRED, &Value::Null).await;
    assert_eq!(third["clusterConnect"], true);
}
