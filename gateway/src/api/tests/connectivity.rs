//! What the API says of clusters' agents (docs/features.md C1-C7, C9, M1-M5, D7), with the clock in the test's hand.

use std::{collections::HashSet, time::Instant};

use aws_lc_rs::{
    rsa::{KeyPair, KeySize},
    signature::KeyPair as _,
};

use super::*;
use crate::{
    cluster::ClusterRef,
    connectivity,
    fleet::registry::Registry,
    store::agents::{Certified, Kept},
};

const MINUTE: i64 = 60_000;
const DAY: i64 = 24 * 60 * MINUTE;
const NEWEST: &str = "api-version=2026-05-01";

/// The public key of a cluster that is to have agents.
pub fn public_key() -> String {
    BASE64.encode(KeyPair::generate(KeySize::Rsa2048).unwrap().public_key().as_ref())
}

pub fn key_of(name: &str) -> String {
    cluster_id("g", name).to_ascii_lowercase()
}

impl Bench {
    /// A cluster that is to have agents, in the group `g`.
    pub async fn with_agents(&self, name: &str) -> Answer {
        let mut body = new_cluster();
        body["properties"]["agentPublicKeyCertificate"] = public_key().into();
        let made = self.call("owner", "PUT", &cluster("g", name), Some(body)).await;
        assert_eq!(made.status, 201, "{}", made.body);
        made
    }

    pub async fn properties(&self, name: &str) -> Value {
        let shown = self.call("owner", "GET", &format!("{}?{NEWEST}", cluster_id("g", name)), None).await;
        assert_eq!(shown.status, 200, "{}", shown.body);
        shown.body["properties"].clone()
    }

    async fn status(&self, name: &str) -> Value {
        self.properties(name).await["connectivityStatus"].clone()
    }

    pub fn now(&self) -> i64 {
        self.clock_ms.load(Ordering::SeqCst)
    }

    pub fn at(&self, now_ms: i64) {
        self.clock_ms.store(now_ms, Ordering::SeqCst);
    }

    /// Tunnels, and the task that keeps which of them are up until it is told to end.
    fn keeper(&self) -> (Arc<Registry>, Shutdown, tokio::task::JoinHandle<()>) {
        let (tunnels, shutdown) = (Arc::new(Registry::default()), Shutdown::new());
        let keep = connectivity::keep(Arc::clone(&self.control), Arc::clone(&tunnels), shutdown.clone());
        (tunnels, shutdown, tokio::spawn(keep))
    }

    /// A cluster as tunnels have it.
    pub fn known(&self, name: &str) -> ClusterRef {
        let id: types::ids::ClusterId = cluster_id("g", name).parse().unwrap();
        Arc::clone(self.snapshots.load().cluster(&id.key()).unwrap())
    }

    pub async fn seen(&self, name: &str) {
        self.control.store.seen(&[key_of(name)], self.now()).await.unwrap();
    }
}

#[tokio::test]
async fn c1_c2_c3_a_clusters_status_follows_its_agents_also_over_a_restart() {
    let site = Bench::new().await;
    site.group("g").await;
    let made = site.with_agents("a").await;
    let start = site.now();
    assert_eq!(made.body["properties"]["connectivityStatus"], "Connecting");
    assert_eq!(made.body["properties"]["lastConnectivityTime"], Value::Null);
    let version = |answer: &Answer| answer.header("etag").split('.').next().map(str::to_owned);
    let first = version(&made);
    site.seen("a").await;
    assert_eq!(site.status("a").await, "Connected");
    let site = site.restart().await;
    site.at(start + 14 * MINUTE + 59_000);
    assert_eq!(site.status("a").await, "Connected", "14:59, after a restart");
    site.at(start + 15 * MINUTE);
    assert_eq!(site.status("a").await, "Offline", "15:00");
    let site = site.restart().await;
    assert_eq!(site.status("a").await, "Offline", "after a restart");
    assert_eq!(site.properties("a").await["lastConnectivityTime"], "2027-01-15T08:00:00Z", "C7: UTC, by Z");
    site.seen("a").await;
    assert_eq!(site.status("a").await, "Connected", "it came back");
    let shown = site.call("owner", "GET", &cluster("g", "a"), None).await;
    assert_eq!(version(&shown), first, "none of this was a change of the resource");
    // A write of the resource leaves it alone.
    let tags = json!({"tags": {"a": "b"}});
    let patched = site.call("owner", "PATCH", &cluster("g", "a"), Some(tags)).await;
    assert_eq!(patched.body["properties"]["connectivityStatus"], "Connected");
}

#[tokio::test]
async fn c4_expired_on_day_90_over_all_and_c7_the_end_of_the_certificate_is_shown() {
    let site = Bench::new().await;
    site.group("g").await;
    site.with_agents("a").await;
    let start = site.now();
    let certified =
        Certified { begins_ms: start, ends_ms: start + 90 * DAY, serial: "1".to_owned(), key: "sha256".to_owned() };
    let kept = site.control.store.put_certificate(&key_of("a"), None, &certified, Some("uid")).await.unwrap();
    assert_eq!(kept, Kept::Done);
    let ends = site.properties("a").await["managedIdentityCertificateExpirationTime"].clone();
    assert_eq!(ends, "2027-04-15T08:00:00Z");
    for (day, status) in [(45, "Connected"), (46, "Connected"), (89, "Connected"), (90, "Expired"), (91, "Expired")] {
        site.at(start + day * DAY);
        site.seen("a").await;
        assert_eq!(site.status("a").await, status, "day {day}");
    }
    // Connected anew into the same resource.
    let again = Certified { ends_ms: site.now() + 90 * DAY, ..certified };
    site.control.store.put_certificate(&key_of("a"), None, &again, Some("uid")).await.unwrap();
    assert_eq!(site.status("a").await, "Connected");
}

#[tokio::test]
async fn c5_without_a_key_no_agent_is_installed() {
    let site = Bench::new().await;
    site.group("g").await;
    let made = site.cluster("g", "a").await;
    assert_eq!(made.body["properties"]["connectivityStatus"], "AgentNotInstalled");
    assert_eq!(site.status("a").await, "AgentNotInstalled");
    // Removed: the key is taken away.
    site.with_agents("b").await;
    site.seen("b").await;
    assert_eq!(site.status("b").await, "Connected");
    let removed = site.cluster("g", "b").await;
    assert_eq!(removed.body["properties"]["connectivityStatus"], "AgentNotInstalled", "{}", removed.body);
}

#[tokio::test]
async fn c9_a_page_tells_the_status_of_each() {
    let site = Bench::new().await;
    site.group("g").await;
    for name in ["a", "b", "c"] {
        site.with_agents(name).await;
    }
    site.cluster("g", "d").await;
    site.seen("b").await;
    site.at(site.now() + 15 * MINUTE);
    site.seen("a").await;
    let all = format!("/subscriptions/{SUBSCRIPTION}/providers/{CLUSTERS}?{VERSION}");
    let page = site.call("owner", "GET", &all, None).await;
    let statuses: Vec<_> = page.body["value"].as_array().unwrap().iter().map(|c| &c["properties"]).collect();
    let statuses: Vec<_> =
        statuses.iter().map(|properties| properties["connectivityStatus"].as_str().unwrap()).collect();
    assert_eq!(statuses, ["Connected", "Offline", "Connecting", "AgentNotInstalled"]);
}

#[tokio::test]
async fn c2_what_comes_and_goes_is_kept_as_seen_at_once() {
    let site = Bench::new().await;
    site.group("g").await;
    site.with_agents("a").await;
    let (tunnels, shutdown, keeper) = site.keeper();
    tunnels.touch(&site.known("a"));
    while site.status("a").await != "Connected" {
        tokio::task::yield_now().await;
    }
    // What came last before the end is not lost either.
    site.at(site.now() + MINUTE);
    tunnels.touch(&site.known("a"));
    shutdown.close();
    keeper.await.unwrap();
    assert_eq!(site.properties("a").await["lastConnectivityTime"], "2027-01-15T08:01:00Z");
}

#[tokio::test]
async fn c2_what_stays_is_kept_as_seen_every_four_minutes() {
    let site = Bench::new().await;
    site.group("g").await;
    site.with_agents("a").await;
    site.with_agents("b").await;
    let (tunnels, shutdown, keeper) = site.keeper();
    let last_seen = async |name| site.control.store.agent(&key_of(name)).await.unwrap().unwrap().last_seen_ms;
    let start = site.now();
    for (minute, kept) in [(0, 0), (1, 0), (3, 0), (4, 4), (5, 4)] {
        site.at(start + minute * MINUTE);
        tunnels.note(&site.known("a"));
        // What moves is written after it.
        tunnels.touch(&site.known("b"));
        while last_seen("b").await != Some(site.now()) {
            tokio::task::yield_now().await;
        }
        assert_eq!(last_seen("a").await, Some(start + kept * MINUTE), "after {minute} minutes");
    }
    shutdown.close();
    keeper.await.unwrap();
}

#[tokio::test]
async fn c2_agents_that_come_back_at_once_are_few_writes() {
    let site = Bench::new().await;
    site.group("g").await;
    site.with_agents("a").await;
    let (tunnels, shutdown, keeper) = site.keeper();
    let last_seen = async || site.control.store.agent(&key_of("a")).await.unwrap().unwrap().last_seen_ms;
    let (begin, mut kept) = (Instant::now(), HashSet::new());
    for _ in 0..300 {
        site.at(site.now() + 1);
        tunnels.touch(&site.known("a"));
        kept.extend(last_seen().await);
    }
    let may = 2 + begin.elapsed().as_millis() / connectivity::APART.as_millis();
    assert!(kept.len() as u128 <= may, "{} writes where there may be {may}", kept.len());
    // What came meanwhile is kept with the next one.
    while last_seen().await != Some(site.now()) {
        tokio::task::yield_now().await;
    }
    shutdown.close();
    keeper.await.unwrap();
}

#[tokio::test]
async fn c6_signs_of_life_of_a_clock_that_was_wrong_are_taken_back() {
    let site = Bench::new().await;
    site.group("g").await;
    site.with_agents("a").await;
    let start = site.now();
    site.at(start + 400 * DAY);
    site.seen("a").await;
    site.at(start);
    assert_eq!(site.properties("a").await["lastConnectivityTime"], "2027-01-15T08:00:00Z", "not of the future");
    let (_tunnels, shutdown, keeper) = site.keeper();
    while site.control.store.agent(&key_of("a")).await.unwrap().unwrap().last_seen_ms != Some(start) {
        tokio::task::yield_now().await;
    }
    shutdown.close();
    keeper.await.unwrap();
    site.at(start + 15 * MINUTE);
    assert_eq!(site.status("a").await, "Offline");
}

#[tokio::test]
async fn m3_who_sends_back_what_an_agent_found_has_not_written_it() {
    let site = Bench::new().await;
    site.group("g").await;
    let mut body = new_cluster();
    body["properties"].as_object_mut().unwrap().remove("distribution");
    assert_eq!(site.call("owner", "PUT", &cluster("g", "a"), Some(body)).await.status, 201);
    let mut facts = json!({"distribution": "k3s", "distributionVersion": "1.36", "infrastructure": "aws"});
    site.control.store.put_facts(&key_of("a"), None, &facts, None, site.now()).await.unwrap();
    let names = ["distribution", "distributionVersion", "infrastructure"];
    let shown = async || {
        let properties = site.call("owner", "GET", &cluster("g", "a"), None).await.body["properties"].clone();
        names.map(|name| properties[name].clone())
    };
    assert_eq!(shown().await, ["k3s", "1.36", "aws"]);
    let mut read = site.call("owner", "GET", &cluster("g", "a"), None).await.body;
    assert_eq!(site.call("owner", "PUT", &cluster("g", "a"), Some(read.clone())).await.status, 200);
    facts["distribution"] = "rancher_rke".into();
    facts["distributionVersion"] = "1.37".into();
    site.control.store.put_facts(&key_of("a"), None, &facts, None, site.now()).await.unwrap();
    assert_eq!(shown().await, ["rancher_rke", "1.37", "aws"], "what is found later is shown");
    // What somebody does write stays.
    read["properties"]["infrastructure"] = "azure".into();
    read["properties"]["distribution"] = "generic".into();
    assert_eq!(site.call("owner", "PUT", &cluster("g", "a"), Some(read)).await.status, 200);
    assert_eq!(shown().await[2], "azure");
}

#[tokio::test]
async fn m1_m5_facts_are_shown_and_what_is_not_known_is_null() {
    let site = Bench::new().await;
    site.group("g").await;
    site.with_agents("a").await;
    let before = site.properties("a").await;
    for name in ["kubernetesVersion", "totalNodeCount", "totalCoreCount", "agentVersion"] {
        assert_eq!(before[name], Value::Null, "{name}");
    }
    let facts = json!({
        "agentVersion": "1.2.3", "kubernetesVersion": "1.36.0", "infrastructure": "aws", "distribution": "eks",
        "errors": [{"message": "nodes: forbidden", "severity": "Warning", "component": "x", "time": "2027-01-15T08:00:00Z"}],
        "roles": {"x": "Running"},
    });
    site.control.store.put_facts(&key_of("a"), None, &facts, None, site.now()).await.unwrap();
    let after = site.properties("a").await;
    assert_eq!((&after["agentVersion"], &after["kubernetesVersion"]), (&json!("1.2.3"), &json!("1.36.0")));
    assert_eq!(after["totalNodeCount"], Value::Null);
    assert_eq!(after["infrastructure"], "aws", "nobody wrote one");
    assert_eq!(after["distribution"], "k3s", "somebody did");
    assert_eq!(after["arcAgentProfile"]["agentErrors"], facts["errors"]);
    assert_eq!(after["arcAgentProfile"]["agentState"], "Running");
    assert_eq!(after["connectivityStatus"], "Connected", "who tells something is there");
}

/// What a cluster is charged by elsewhere is shown here, and nobody is charged.
#[tokio::test]
async fn n6_counts_of_cores_and_nodes_are_shown() {
    let site = Bench::new().await;
    site.group("g").await;
    site.with_agents("a").await;
    let facts = json!({"agentVersion": "1", "totalNodeCount": 3, "totalCoreCount": 24});
    site.control.store.put_facts(&key_of("a"), None, &facts, None, site.now()).await.unwrap();
    let shown = site.properties("a").await;
    assert_eq!((&shown["totalNodeCount"], &shown["totalCoreCount"]), (&json!(3), &json!(24)));
}

#[tokio::test]
async fn c7_when_it_was_seen_and_when_its_certificate_ends_are_instants_of_utc() {
    let site = Bench::new().await;
    site.group("g").await;
    site.with_agents("a").await;
    let names = ["lastConnectivityTime", "managedIdentityCertificateExpirationTime"];
    let before = site.properties("a").await;
    assert!(names.iter().all(|name| before[name].is_null()), "nobody knows yet: {before}");
    site.seen("a").await;
    let certified = Certified { begins_ms: 0, ends_ms: site.now() + DAY, serial: "1".to_owned(), key: String::new() };
    site.control.store.put_certificate(&key_of("a"), None, &certified, None).await.unwrap();
    let after = site.properties("a").await;
    assert_eq!(after[names[0]], "2027-01-15T08:00:00Z");
    assert_eq!(after[names[1]], "2027-01-16T08:00:00Z");
}

#[tokio::test]
async fn k9_without_cluster_connect_nobody_gets_through_and_nobody_is_told_how() {
    let site = Bench::new().await;
    site.group("g").await;
    let body = json!({"authenticationMethod": "AAD", "clientProxy": false});
    let ask = format!("{}/listClusterUserCredential?{VERSION}", cluster_id("g", "a"));
    let id: types::ids::ClusterId = cluster_id("g", "a").parse().unwrap();
    let decide = async |user: &str| {
        let user = Principal::User(site.identity(user, &id.audience()).await);
        let snapshot = site.snapshots.load();
        snapshot.decide(&user, snapshot.cluster(&id.key()))
    };
    let put = async |properties: Value| {
        let mut made = new_cluster();
        made["properties"].as_object_mut().unwrap().extend(properties.as_object().cloned().unwrap());
        site.call("owner", "PUT", &format!("{}?{NEWEST}", cluster_id("g", "a")), Some(made)).await
    };
    let switch = |enabled: &str| json!({"arcAgentryConfigurations": [{"feature": "cluster-connect", "settings": {"enabled": enabled}}]});
    for (properties, on) in [
        (json!({}), true),
        (switch("false"), false),
        (switch("true"), true),
        (json!({"privateLinkState": "Enabled"}), false),
        (json!({"privateLinkState": "Disabled"}), true),
    ] {
        let made = put(properties.clone()).await;
        assert!(matches!(made.status, 200 | 201), "{}", made.body);
        let expected = if on { Ok(()) } else { Err(DenialReason::ConnectOff) };
        assert_eq!(decide("owner").await, expected, "{properties}");
        assert_eq!(decide("stranger").await, Err(DenialReason::NoGrant), "who has no right learns nothing");
        let answer = site.call("owner", "POST", &ask, Some(body.clone())).await;
        assert_eq!(answer.status, if on { 200 } else { 409 }, "{}", answer.body);
        if !on {
            assert_eq!(answer.code(), "ClusterConnectDisabled");
            assert!(answer.body["error"]["message"].as_str().unwrap().contains("cluster-connect"));
        }
    }
    let bad = put(switch("perhaps")).await;
    let target = "properties.arcAgentryConfigurations[0].settings.enabled";
    assert_eq!((bad.status, &bad.body["error"]["target"]), (400, &json!(target)), "{}", bad.body);
}

/// S1, R3: with the onboarding role somebody wrote a connected cluster without its identity, which cut its agents, and
/// then with a key of their own, and so became its agents.
#[tokio::test]
async fn r3_who_may_only_write_a_cluster_cannot_become_its_agents() {
    let site = Bench::new().await;
    site.group("g").await;
    site.with_agents("a").await;
    let scope = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g");
    assert_eq!(site.assign("onboarder", ONBOARDING, &scope, json!({})).await.status, 201);
    let kept = site.call("owner", "GET", &cluster("g", "a"), None).await.body;
    let written = async |user: &str, key: Option<String>, identity: &str| {
        let mut body = new_cluster();
        let old = kept["properties"]["agentPublicKeyCertificate"].as_str().unwrap().to_owned();
        body["properties"]["agentPublicKeyCertificate"] = key.unwrap_or(old).into();
        body["identity"]["type"] = identity.into();
        let answer = site.call(user, "PUT", &cluster("g", "a"), Some(body)).await;
        (answer.status, answer.code().to_owned())
    };
    let start = site.now();
    let certificate =
        Certified { begins_ms: start, ends_ms: start + 90 * DAY, serial: "1".to_owned(), key: "k".to_owned() };
    assert_eq!(site.control.store.put_certificate(&key_of("a"), None, &certificate, None).await.unwrap(), Kept::Done);
    site.seen("a").await;
    let (conflict, forbidden) = ((409, "PublicKeyMismatch".to_owned()), (403, "AuthorizationFailed".to_owned()));
    for user in ["onboarder", "owner"] {
        assert_eq!(written(user, None, "None").await, conflict, "{user}, connected, without its identity");
        assert_eq!(written(user, Some(public_key()), "SystemAssigned").await, conflict, "{user}, connected");
    }
    assert_eq!(written("onboarder", None, "SystemAssigned").await.0, 200, "the same key and identity");
    site.at(start + 16 * MINUTE);
    assert_eq!(site.status("a").await, "Offline");
    assert_eq!(written("onboarder", None, "None").await, forbidden);
    assert_eq!(written("onboarder", Some(public_key()), "SystemAssigned").await, forbidden);
    // Who may delete it may as well give it other agents.
    assert_eq!(written("owner", Some(public_key()), "SystemAssigned").await.0, 200);
    // An expired one is connected anew by whoever connects clusters (C4).
    site.at(start + 91 * DAY);
    assert_eq!(site.status("a").await, "Expired");
    assert_eq!(written("onboarder", Some(public_key()), "SystemAssigned").await.0, 200);
}

/// What is assigned to a cluster's identity was given to the holder of its key. Without the right to delete, a PUT with
/// another key would take over all of it.
#[tokio::test]
async fn another_key_is_another_identity_unless_the_writer_may_delete() {
    let site = Bench::new().await;
    site.group("g").await;
    let scope = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g");
    assert_eq!(site.assign("onboarder", ONBOARDING, &scope, json!({})).await.status, 201);
    let write = async |user: &str, name: &str, key: &str| {
        let mut body = new_cluster();
        body["properties"]["agentPublicKeyCertificate"] = key.into();
        let answer = site.call(user, "PUT", &cluster("g", name), Some(body)).await;
        let principal = answer.body["identity"]["principalId"].as_str().map(str::to_owned);
        (answer.status, principal.unwrap_or_else(|| answer.code().to_owned()))
    };
    let key_of_now = async |name: &str| site.properties(name).await["agentPublicKeyCertificate"].clone();
    let forbidden = (403, "AuthorizationFailed".to_owned());
    let keys: Vec<String> = (0..4).map(|_| public_key()).collect();

    // Created before its agents come: the key that was given binds (R13), taken away or changed.
    let (_, made) = write("owner", "before", &keys[0]).await;
    assert_eq!(write("onboarder", "before", &keys[1]).await, forbidden);
    assert_eq!(write("onboarder", "before", "").await, forbidden);
    assert_eq!(key_of_now("before").await, keys[0].as_str());
    assert_eq!(write("onboarder", "before", &keys[0]).await, (200, made.clone()), "the same key");
    assert_eq!(write("owner", "before", &keys[1]).await, (200, made), "who may delete it");

    // Without a key it waits for whoever brings one, and that is somebody else than what was assigned something.
    let (_, made) = write("owner", "keyless", "").await;
    let (status, principal) = write("onboarder", "keyless", &keys[1]).await;
    assert_eq!(status, 200);
    assert_ne!(principal, made);
    assert_eq!(write("onboarder", "keyless", &keys[2]).await, forbidden, "it is the owner's, and has a key now");

    // Who created it may begin again: it was their key.
    let (status, made) = write("onboarder", "own", &keys[0]).await;
    assert_eq!(status, 201);
    let (status, principal) = write("onboarder", "own", &keys[1]).await;
    assert_eq!(status, 200);
    assert_ne!(principal, made, "also to its creator somebody may have assigned something");

    // Expired: connected anew by whoever connects clusters, and what it holds stays.
    let (_, made) = write("owner", "expired", &keys[0]).await;
    let held = site.assign("ann", CLUSTER_USER, &cluster_id("g", "expired"), json!({})).await;
    let held = format!("{}?api-version=2022-04-01", held.body["id"].as_str().unwrap());
    let start = site.now();
    let certificate =
        Certified { begins_ms: start, ends_ms: start + 90 * DAY, serial: "1".to_owned(), key: "k".to_owned() };
    let kept = site.control.store.put_certificate(&key_of("expired"), None, &certificate, None).await.unwrap();
    assert_eq!(kept, Kept::Done);
    site.at(start + 91 * DAY);
    let (status, principal) = write("onboarder", "expired", &keys[1]).await;
    assert_eq!(status, 200);
    assert_ne!(principal, made);
    assert_eq!(site.call("owner", "GET", &held, None).await.status, 200);
    assert_eq!(write("owner", "expired", &keys[2]).await, (200, principal), "who may delete it");
    assert!(!site.snapshots.load().is_identity(&made), "the old identity is nobody's");
}

/// Below the cluster lie identities to which something was assigned, and secrets for its agents alone: the holder of
/// another key would have all of them.
#[tokio::test]
async fn another_key_gets_no_identity_and_no_secret_that_is_below_the_cluster() {
    const EXTENSIONS: &str = "Microsoft.KubernetesConfiguration/extensions";
    let site = Bench::new().await;
    site.group("g").await;
    let scope = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g");
    assert_eq!(site.assign("onboarder", ONBOARDING, &scope, json!({})).await.status, 201);
    let keyed = async |user: &str, key: &str| {
        let mut body = new_cluster();
        body["properties"]["agentPublicKeyCertificate"] = key.into();
        site.call(user, "PUT", &cluster("g", "edge"), Some(body)).await.status
    };
    assert_eq!(keyed("owner", "").await, 201);
    let at = |name: &str| format!("{}/providers/{EXTENSIONS}/{name}", cluster_id("g", "edge"));
    let target = |name: &str| format!("{}?api-version=2025-03-01", at(name));
    for (name, more) in
        [("web", json!({"configurationProtectedSettings": {"password": "hunter2-hunter2"}})), ("plain", json!({}))]
    {
        let mut body = json!({"identity": {"type": "SystemAssigned"}, "properties": {"extensionType": "example.web"}});
        body["properties"].as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        let made = site.call("owner", "PUT", &target(name), Some(body)).await;
        assert_eq!(made.status, 201, "{}", made.body);
    }
    let role = site.assign("ann", CLUSTER_USER, &cluster_id("g", "edge"), json!({})).await;
    let role = format!("{}?api-version=2022-04-01", role.body["id"].as_str().unwrap());
    let role_before = site.call("owner", "GET", &role, None).await.body;
    let principal = async |name: &str| {
        let shown = site.call("owner", "GET", &target(name), None).await.body;
        shown["identity"]["principalId"].as_str().unwrap().to_owned()
    };
    let key = cluster_id("g", "edge").to_ascii_lowercase();
    let asked = async || {
        let objects = site.control.objects(&key, Some(EXTENSIONS), None).await.unwrap().objects;
        let web = objects.into_iter().find(|object| object.id == at("web")).unwrap();
        let principal = web.principal_id.clone();
        let question = types::agent_api::ProtectedQuestion { id: web.id, protected: web.protected.unwrap() };
        (principal, site.control.protected_of(&key, &question).await.map(|given| given.settings))
    };
    let before = [principal("web").await, principal("plain").await];
    assert_eq!(asked().await.1.unwrap()["password"], "hunter2-hunter2");

    // Who may delete the cluster gives it to agents of their own choice.
    assert_eq!(keyed("owner", &public_key()).await, 200);
    assert_eq!([principal("web").await, principal("plain").await], before);
    assert!(asked().await.1.is_ok());
    assert_eq!(keyed("owner", "").await, 200);

    assert_eq!(keyed("onboarder", &public_key()).await, 200);
    let after = [principal("web").await, principal("plain").await];
    for (old, new) in before.iter().zip(&after) {
        let snapshot = site.snapshots.load();
        assert!(old != new && !snapshot.is_identity(old) && snapshot.is_identity(new), "{old} {new}");
    }
    let (told, gone) = asked().await;
    assert_eq!(told.as_ref(), Some(&after[0]), "its agents are told of the new one");
    assert_eq!(gone.unwrap_err().detail.code, "ProtectedSettingsGone");
    assert_eq!(site.call("owner", "GET", &role, None).await.body, role_before, "roles at the cluster are its users'");
    assert!(site.call("owner", "GET", &cluster("g", "edge"), None).await.body.get("passedAt").is_none());
    // A caller who gives them again gives them to these agents.
    let again = json!({"properties": {"configurationProtectedSettings": {"password": "another"}}});
    assert_eq!(site.call("owner", "PATCH", &target("web"), Some(again)).await.status, 202);
    assert_eq!(asked().await.1.unwrap()["password"], "another");
    // And a further change of the cluster takes nothing.
    let tags = json!({"tags": {"a": "b"}});
    assert_eq!(site.call("onboarder", "PATCH", &cluster("g", "edge"), Some(tags)).await.status, 200);
    assert!(asked().await.1.is_ok());
    assert_eq!(principal("web").await, after[0]);
}
