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

impl Site {
    /// Kinds, statuses and versions of the events of a cluster's agents, oldest first.
    async fn agent_events(&self, name: &str) -> Vec<(String, String, String)> {
        let token = self.world.issuer.token("owner", &[], URL, SystemTime::now());
        let target = format!("{}/providers/Microsoft.Kubernetes/events?api-version={NEWEST}", id(name));
        let events = self.http("GET", &target, Some(&token), None, None).await.json();
        let short = |event: &Value| {
            let kind = event["type"].as_str()?.strip_prefix("io.towline.cluster.agent")?.to_owned();
            let text = |name: &str| event["data"][name].as_str().unwrap_or_default().to_owned();
            Some((kind, text("status"), text("agentVersion")))
        };
        events["value"].as_array().unwrap().iter().filter_map(short).collect()
    }
}

fn of_agents(kind: &str, status: &str, version: &str) -> (String, String, String) {
    (kind.to_owned(), status.to_owned(), version.to_owned())
}

#[tokio::test]
async fn u4_agents_that_are_two_minor_versions_away_are_refused_with_what_to_do_and_older_ones_shown_as_outdated() {
    let site = Site::new().await;
    let key = Onboarding::new();
    site.cluster("edge", &key).await;
    let given = site.enrol("edge", &key).await;
    let hello = async |version: &str| {
        let side = tunnel::transport::session::AgentSide { agent_version: version.to_owned(), ..world::agent_side() };
        site.world.dial_as(&given.own, side).await
    };
    let refused = hello("0.0.9").await.err().unwrap();
    let HelloError::Refused { code: CloseCode::Outdated, message, retry_after, .. } = refused else {
        panic!("{refused}")
    };
    assert!(message.starts_with("AgentTooOld: these agents have version 0.0.9"), "{message}");
    assert!(message.contains("towline update --auto-upgrade false --upgrade"), "{message}");
    assert!(retry_after.unwrap() >= Duration::from_secs(60), "it is of no use soon");
    // Of a wrong certificate it is said first.
    assert_eq!(site.agent_events("edge").await, [of_agents("version", "TooOld", "0.0.9")]);
    // Nor does such an agent get a certificate, once it has proved whose it is.
    let (_, csr) = request(|_| {});
    let mut enrolment = Site::enrolment("edge", &key, &site.challenge("edge").await, &csr, "uid-of-edge");
    enrolment["agentVersion"] = "0.0.9".into();
    let answer = site.agents("certificate", enrolment).await;
    assert_eq!((answer.status, code(&answer).as_str()), (400, codes::AGENT_TOO_OLD), "{}", answer.text());

    // The minor version before is served.
    let tunnel = hello("0.1.7").await.unwrap_or_else(|error| panic!("{error}"));
    let told = json!({"agentVersion": "0.1.7", "kubeSystemUid": "uid-of-edge"});
    for _ in 0..2 {
        assert_eq!(ask(&tunnel, Method::POST, paths::HEARTBEAT, &told).await.0, 200);
    }
    let shown = site.properties("edge").await;
    assert_eq!(shown["miscellaneousProperties"], json!({"agentVersionState": "Outdated"}), "{shown}");
    let own = gateway::skew::OWN;
    let told = json!({"agentVersion": own, "kubeSystemUid": "uid-of-edge"});
    assert_eq!(ask(&tunnel, Method::POST, paths::HEARTBEAT, &told).await.0, 200);
    let expected = [
        of_agents("version", "TooOld", "0.0.9"),
        of_agents("version", "Outdated", "0.1.7"),
        of_agents("version", "Current", own),
    ];
    assert_eq!(site.agent_events("edge").await, expected, "each change once");
    let metrics = site.world.gateway.core().metrics.render();
    for line in [
        "gateway_hellos_total{state=\"TooOld\"} 1",
        "gateway_hellos_total{state=\"Outdated\"} 1",
        "gateway_tunnels_by_agent_version{state=\"Outdated\"} 1",
        &format!("gateway_build_info{{version=\"{own}\"}} 1"),
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    // The next minor version, and those whose version says nothing, are served too.
    for version in [&format!("{}.5", gateway::skew::newest_served()), "by-hand"] {
        assert!(hello(version).await.is_ok(), "{version}");
    }
    // Newer ones are not: the gateway is upgraded first.
    let refused = hello("9.0.0").await.err().unwrap();
    let HelloError::Refused { code: CloseCode::Outdated, message, retry_after, .. } = refused else {
        panic!("{refused}")
    };
    assert!(message.starts_with("AgentTooNew: these agents have version 9.0.0, and this gateway, "), "{message}");
    assert!(message.contains("upgrade the gateway first"), "{message}");
    assert!(retry_after.unwrap() >= Duration::from_secs(60), "it is of no use soon");
    assert_eq!(site.agent_events("edge").await.last(), Some(&of_agents("version", "TooNew", "9.0.0")));
    let mut enrolment = Site::enrolment("edge", &key, &site.challenge("edge").await, &csr, "uid-of-edge");
    enrolment["agentVersion"] = "9.0.0".into();
    let answer = site.agents("certificate", enrolment).await;
    assert_eq!((answer.status, code(&answer).as_str()), (400, codes::AGENT_TOO_NEW), "{}", answer.text());
}

#[tokio::test]
async fn u1_c8_what_came_of_an_upgrade_is_told_once_counted_and_shown() {
    let site = Site::new().await;
    let tunnel = site.connected("edge").await;
    let tell = async |state: &str, reason: &str| {
        let upgrade = json!({
            "version": "0.3.0", "state": state, "reason": reason, "message": "why", "time": "2026-11-27T12:00:00Z",
        });
        let told = json!({"agentVersion": gateway::skew::OWN, "kubeSystemUid": "uid-of-edge", "upgrade": upgrade});
        let (status, body) = ask(&tunnel, Method::POST, paths::HEARTBEAT, &told).await;
        assert_eq!(status, 200, "{body}");
    };
    for state in ["Running", "Running", "RolledBack", "RolledBack"] {
        tell(state, "ImagePull").await;
    }
    let expected = [of_agents("upgrade", "Running", "0.3.0"), of_agents("upgrade", "RolledBack", "0.3.0")];
    assert_eq!(site.agent_events("edge").await, expected);
    let shown = site.properties("edge").await;
    let error = &shown["arcAgentProfile"]["agentErrors"][0];
    assert_eq!((&error["component"], &error["severity"]), (&json!("upgrader"), &json!("Error")), "{shown}");
    assert_eq!(error["message"], "upgrade to 0.3.0: RolledBack (ImagePull): why");
    assert_eq!(shown["miscellaneousProperties"]["upgradeState"], "RolledBack");
    let metrics = site.world.gateway.core().metrics.render();
    assert!(metrics.contains("gateway_agent_upgrades_total{state=\"RolledBack\"} 1"), "{metrics}");
    // The admin listener tells of the fleet, pauses and resumes.
    let (status, body) = site.world.admin("GET", "/upgrades", "").await;
    let fleet: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &fleet["paused"], &fleet["clusters"]["current"]), (200, &json!(false), &json!(1)), "{fleet}");
    assert_eq!(site.world.admin("POST", "/upgrades/pause", "").await.0, 200);
    let fleet: Value = serde_json::from_str(&site.world.admin("GET", "/upgrades", "").await.1).unwrap();
    assert_eq!((&fleet["paused"], &fleet["closed"]), (&json!(true), &json!("Somebody paused it.")));
    assert_eq!(site.world.admin("POST", "/upgrades/resume", "").await.0, 200);
    let fleet: Value = serde_json::from_str(&site.world.admin("GET", "/upgrades", "").await.1).unwrap();
    assert_eq!((&fleet["paused"], &fleet["closed"]), (&json!(false), &Value::Null));
}
