//! Which version clusters' agents are to have (docs/features.md U1-U3): by the catalogue in waves, or as somebody says.

use std::collections::BTreeMap;

use super::{connectivity::key_of, *};
use crate::{
    skew,
    store::{batch::Batch, batch::Expect, resources::Stored},
    upgrades::{self, plan::Phase},
};

const NEWEST: &str = "api-version=2026-05-01";
const MINUTE: i64 = 60_000;

/// A gateway whose catalogue has these versions of the agents.
async fn site_with_agents(versions: &[&str]) -> Bench {
    let folder = tempfile::tempdir().unwrap();
    let releases: Vec<(&str, &[&str])> = versions.iter().map(|version| (*version, &["Stable"][..])).collect();
    crate::catalogue::tests::make(&folder.path().join("catalogue"), &releases, |index| {
        "towline.agent".clone_into(&mut index.types[0].name);
    });
    let clock_ms = Arc::new(AtomicI64::new(1_800_000_000_000));
    let site = Bench::open(folder, TestIssuer::new("https://issuer.test"), clock_ms, None).await;
    site.group("g").await;
    while site.control.catalogue().is_none() {
        tokio::task::yield_now().await;
    }
    site
}

fn name_of(number: usize) -> String {
    format!("c{number:03}")
}

/// As an agent tells of its version and of an upgrade.
fn facts(version: &str, upgrade: Option<(&str, &str, &str)>) -> Value {
    let mut facts = json!({"agentVersion": version, "kubernetesVersion": "v1.36.0"});
    if let Some((version, state, reason)) = upgrade {
        let time = "2027-01-15T08:00:00Z";
        facts["upgrade"] = json!({"version": version, "state": state, "reason": reason, "message": "m", "time": time});
    }
    facts
}

impl Bench {
    /// So many clusters with agents of a version, all at once.
    async fn fleet_of(&self, count: usize, version: &str) {
        let put = |number| {
            let id = cluster_id("g", &name_of(number));
            let body = json!({
                "location": "here", "identity": {"type": "SystemAssigned", "principalId": crate::random::guid()},
                "properties": {"agentPublicKeyCertificate": "MII=", "provisioningState": "Succeeded"},
            });
            let stored = Stored {
                key: id.to_ascii_lowercase(),
                kind: CLUSTERS.to_ascii_lowercase(),
                parent: format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/g").to_ascii_lowercase(),
                id,
                revision: 0,
                body,
                protected: None,
            };
            (stored, Expect::Absent)
        };
        let batch = Batch { puts: (0..count).map(put).collect(), ..Batch::default() };
        self.control.write(&batch).await.unwrap().unwrap_or_else(|refused| panic!("{refused}"));
        for number in 0..count {
            self.tells(&name_of(number), &facts(version, None)).await;
        }
    }

    async fn tells(&self, name: &str, facts: &Value) {
        self.control.store.put_facts(&key_of(name), None, facts, None, self.now()).await.unwrap();
    }

    /// Which version the agents of a cluster are told to have.
    fn told_version(&self, name: &str) -> Option<String> {
        let id: types::ids::ClusterId = cluster_id("g", name).parse().unwrap();
        self.snapshots.load().cluster(&id.key()).unwrap().wanted.agent_version.clone()
    }

    async fn look_for_upgrades(&self) -> upgrades::plan::Plan {
        upgrades::look(&self.control, &Metrics::new()).await.unwrap()
    }

    async fn fleet_status(&self) -> Value {
        upgrades::status(&self.control).await.unwrap()
    }
}

/// Clusters that carry out what they are told, but for those that cannot.
#[derive(Default)]
struct Simulated {
    versions: BTreeMap<usize, String>,
    most_at_once: usize,
}

impl Simulated {
    /// One look of the gateway, and what all clusters do about it. How many were told something new.
    async fn round(&mut self, site: &Bench, fails: impl Fn(usize, &str) -> bool) -> usize {
        site.look_for_upgrades().await;
        let mut told = 0;
        let all: Vec<String> = self.versions.keys().map(|number| key_of(&name_of(*number))).collect();
        site.at(site.now() + MINUTE);
        site.control.store.seen(&all, site.now()).await.unwrap();
        for (number, version) in &mut self.versions {
            let name = name_of(*number);
            let Some(wanted) = site.told_version(&name).filter(|wanted| wanted != version) else { continue };
            told += 1;
            if fails(*number, &wanted) {
                site.tells(&name, &facts(version, Some((&wanted, "RolledBack", "ImagePull")))).await;
            } else {
                site.tells(&name, &facts(&wanted, Some((&wanted, "Succeeded", "")))).await;
                *version = wanted;
            }
        }
        self.most_at_once = self.most_at_once.max(told);
        told
    }

    fn count(&self, version: &str) -> usize {
        self.versions.values().filter(|own| *own == version).count()
    }
}

/// 500 clusters of which 3 in 100 cannot take the new version: 2 in 100 may fail.
#[tokio::test]
async fn u1_waves_over_500_clusters_pause_at_failures_name_them_and_are_resumed() {
    const CLUSTERS_OF_FLEET: usize = 500;
    let own = skew::OWN;
    let next = "0.3.999";
    let site = site_with_agents(&[own, next]).await;
    site.fleet_of(CLUSTERS_OF_FLEET, own).await;
    let mut fleet = Simulated {
        versions: (0..CLUSTERS_OF_FLEET).map(|number| (number, own.to_owned())).collect(),
        ..Simulated::default()
    };
    let fails = |number: usize, _: &str| number % 33 == 5;
    let failing = (0..CLUSTERS_OF_FLEET).filter(|number| fails(*number, next)).count();
    assert_eq!(failing, 15);
    let mut rounds = 0;
    while fleet.round(&site, fails).await > 0 {
        rounds += 1;
        assert!(rounds < 100);
    }
    // It paused once more than 10 had failed, with at most one more wave of failures.
    let status = site.fleet_status().await;
    let of = &status["versions"][next];
    assert_eq!((&of["state"], &status["mayFail"]), (&json!("Paused"), &json!(10)), "{status}");
    let failed = usize::try_from(of["failed"].as_u64().unwrap()).unwrap();
    assert!((11..15).contains(&failed), "{status}");
    assert!(of["reason"].as_str().unwrap().contains(&format!("{failed} clusters failed; 10 may")), "{status}");
    let named = status["failures"].as_array().unwrap();
    assert_eq!(named.len(), failed);
    assert_eq!((&named[0]["reason"], &named[0]["version"]), (&json!("ImagePull"), &json!(next)));
    assert!(fleet.count(next) > 250 && fleet.count(next) < CLUSTERS_OF_FLEET - failing, "{}", fleet.count(next));
    assert_eq!(fleet.most_at_once, 50, "a tenth of the fleet at once");
    assert!(rounds >= 5, "in waves: {rounds}");
    // A restart changes nothing of that.
    let site = site.restart().await;
    while site.control.catalogue().is_none() {
        tokio::task::yield_now().await;
    }
    assert_eq!(fleet.round(&site, fails).await, 0);
    assert_eq!(site.fleet_status().await["versions"][next]["state"], "Paused");
    // What failed is left alone and shown; the others go on once somebody has resumed it.
    let bad = (0..CLUSTERS_OF_FLEET)
        .find(|number| fails(*number, next) && named.iter().any(|one| one["id"] == cluster_id("g", &name_of(*number))))
        .unwrap();
    let shown = site.properties(&name_of(bad)).await["miscellaneousProperties"].clone();
    assert_eq!((&shown["failedAgentVersion"], &shown["targetAgentVersion"]), (&json!(next), &Value::Null), "{shown}");
    assert!(shown["failedAgentVersionReason"].as_str().unwrap().starts_with("ImagePull: "), "{shown}");
    assert!(upgrades::resume(&site.control).await.unwrap());
    while fleet.round(&site, fails).await > 0 {}
    let status = site.fleet_status().await;
    assert_eq!(
        (&status["versions"][next]["state"], &status["versions"][next]["failed"]),
        (&json!("Complete"), &json!(15))
    );
    assert_eq!(fleet.count(next), CLUSTERS_OF_FLEET - failing, "{status}");
}

/// After a bad version was paused, the rest of its wave began all the same.
#[tokio::test]
async fn u1_a_pause_holds_for_what_was_planned_before_it() {
    let own = skew::OWN;
    let site = site_with_agents(&[own, "0.3.98"]).await;
    site.fleet_of(30, own).await;
    let told = || (0..30).filter(|number| site.told_version(&name_of(*number)).is_some()).count();
    let planned = upgrades::planned(&site.control).await.unwrap();
    upgrades::pause(&site.control).await.unwrap();
    upgrades::carry_out(&site.control, &planned).await.unwrap();
    assert_eq!(told(), 0);
    // Nor does somebody who looked before the pause resume it.
    assert!(!upgrades::resume_as(&site.control, &planned).await.unwrap());
    assert_eq!(site.fleet_status().await["paused"], true);
    assert!(upgrades::resume(&site.control).await.unwrap());
    site.look_for_upgrades().await;
    assert_eq!(told(), 3);
}

/// The gateway refuses the hello of agents of such a version, so that each of them would be rolled back.
#[tokio::test]
async fn u4_agents_are_never_given_a_version_that_this_gateway_does_not_serve() {
    let own = skew::OWN;
    let too_new = "0.98.0";
    let site = site_with_agents(&[own, too_new]).await;
    site.fleet_of(1, own).await;
    let name = name_of(0);
    assert_eq!(site.look_for_upgrades().await.count(Phase::Current), 1);
    assert_eq!(site.told_version(&name), None);
    let next = format!("{}.7", skew::newest_served());
    let versions: [(&str, &[&str]); 3] = [(own, &["Stable"]), (&next, &["Stable"]), (too_new, &["Stable"])];
    crate::catalogue::tests::make(&site.folder.path().join("catalogue"), &versions, |index| {
        "towline.agent".clone_into(&mut index.types[0].name);
        index.revision = 9;
    });
    let site = site.restart().await;
    while site.control.catalogue().is_none() {
        tokio::task::yield_now().await;
    }
    site.control.store.seen(&[key_of(&name)], site.now()).await.unwrap();
    site.look_for_upgrades().await;
    assert_eq!(site.told_version(&name).as_deref(), Some(next.as_str()));
    // Nor by somebody's word.
    let wanted =
        json!({"properties": {"arcAgentProfile": {"desiredAgentVersion": too_new, "agentAutoUpgrade": "Disabled"}}});
    let refused = site.call("owner", "PATCH", &format!("{}?{NEWEST}", cluster_id("g", &name)), Some(wanted)).await;
    assert_eq!(refused.status, 400, "{}", refused.body);
    let message = refused.body["error"]["message"].as_str().unwrap();
    assert!(message.contains(&format!("serves agents from version {} to", skew::oldest_served())), "{message}");
}

#[tokio::test]
async fn u1_a_version_that_was_rolled_back_is_not_wanted_there_again_until_another_comes() {
    let own = skew::OWN;
    let site = site_with_agents(&[own, "0.3.98"]).await;
    site.fleet_of(1, own).await;
    let name = name_of(0);
    site.look_for_upgrades().await;
    assert_eq!(site.told_version(&name).as_deref(), Some("0.3.98"));
    site.tells(&name, &facts(own, Some(("0.3.98", "RolledBack", "Probe")))).await;
    site.look_for_upgrades().await;
    assert_eq!(site.told_version(&name), None);
    // Also where its agents forget that they tried.
    site.tells(&name, &facts(own, None)).await;
    assert_eq!(site.look_for_upgrades().await.count(Phase::Failed), 1);
    assert_eq!(site.told_version(&name), None);
    crate::catalogue::tests::make(
        &site.folder.path().join("catalogue"),
        &[(own, &["Stable"]), ("0.3.98", &["Stable"]), ("0.3.99", &["Stable"])],
        |index| {
            "towline.agent".clone_into(&mut index.types[0].name);
            index.revision = 9;
        },
    );
    let site = site.restart().await;
    while site.control.catalogue().is_none() {
        tokio::task::yield_now().await;
    }
    site.control.store.seen(&[key_of(&name)], site.now()).await.unwrap();
    site.look_for_upgrades().await;
    assert_eq!(site.told_version(&name).as_deref(), Some("0.3.99"));
}

#[tokio::test]
async fn u2_auto_upgrade_is_switched_by_patch_and_by_put_alike() {
    let site = site_with_agents(&[skew::OWN, "0.3.98"]).await;
    site.with_agents("a").await;
    site.tells("a", &facts(skew::OWN, None)).await;
    let target = format!("{}?{NEWEST}", cluster_id("g", "a"));
    let patch = async |profile: Value| {
        let body = json!({"properties": {"arcAgentProfile": profile}});
        site.call("owner", "PATCH", &target, Some(body)).await
    };
    let profile = async || site.properties("a").await["arcAgentProfile"].clone();
    site.look_for_upgrades().await;
    assert_eq!(site.told_version("a").as_deref(), Some("0.3.98"), "upgrades are on where nobody said otherwise");
    let off = patch(json!({"agentAutoUpgrade": "disabled"})).await;
    assert_eq!((off.status, &off.body["properties"]["arcAgentProfile"]["agentAutoUpgrade"]), (200, &json!("Disabled")));
    assert_eq!(site.told_version("a"), None, "what the gateway chose does not count any more");
    assert_eq!(site.look_for_upgrades().await.count(Phase::Off), 1);
    // One member of the profile leaves the others as they are.
    assert_eq!(patch(json!({"desiredAgentVersion": "0.3.98"})).await.status, 200);
    assert_eq!(profile().await["agentAutoUpgrade"], "Disabled");
    assert_eq!(site.told_version("a").as_deref(), Some("0.3.98"));
    // A client that sends back what it read, with the switch turned.
    let mut read = site.call("owner", "GET", &target, None).await.body;
    read["properties"]["arcAgentProfile"]["agentAutoUpgrade"] = "Enabled".into();
    let on = site.call("owner", "PUT", &target, Some(read)).await;
    assert_eq!(on.status, 200, "{}", on.body);
    assert_eq!(profile().await["agentAutoUpgrade"], "Enabled");
    assert_eq!(site.told_version("a"), None, "until its turn comes");
    site.look_for_upgrades().await;
    assert_eq!(site.told_version("a").as_deref(), Some("0.3.98"));
    for wrong in [json!({"agentAutoUpgrade": "Perhaps"}), json!({"agentState": "Running", "unknown": 1}), json!("on")] {
        let refused = patch(wrong.clone()).await;
        assert_eq!(refused.status, 400, "{wrong}: {}", refused.body);
    }
}

/// As docs/upgrades.md says: a version that failed is left alone until another one comes, or until somebody turns
/// upgrades off and on; nothing else that is written makes the gateway forget it.
#[tokio::test]
async fn u2_upgrades_off_and_on_forget_what_failed_and_no_other_write_does() {
    const NEXT: &str = "0.3.98";
    let site = site_with_agents(&[skew::OWN, NEXT]).await;
    site.with_agents("a").await;
    let target = format!("{}?{NEWEST}", cluster_id("g", "a"));
    let patch = async |profile: Value| {
        let body = json!({"properties": {"arcAgentProfile": profile}});
        let answer = site.call("owner", "PATCH", &target, Some(body)).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
    };
    let left = async || site.properties("a").await["miscellaneousProperties"]["failedAgentVersion"].clone();
    let fails = async || {
        site.look_for_upgrades().await;
        assert_eq!(site.told_version("a").as_deref(), Some(NEXT));
        site.tells("a", &facts(skew::OWN, Some((NEXT, "RolledBack", "Crash")))).await;
        site.look_for_upgrades().await;
        assert_eq!((left().await, site.told_version("a")), (json!(NEXT), None));
    };
    site.tells("a", &facts(skew::OWN, None)).await;
    fails().await;

    // Agents that were installed anew have forgotten it, and the gateway has not.
    site.tells("a", &facts(skew::OWN, None)).await;
    patch(json!({"agentAutoUpgrade": "Enabled"})).await;
    let read = site.call("owner", "GET", &target, None).await.body;
    let mut forged = read.clone();
    forged["properties"]["miscellaneousProperties"] = json!({"targetAgentVersion": NEXT});
    for body in [read, forged] {
        assert_eq!(site.call("owner", "PUT", &target, Some(body)).await.status, 200);
        site.look_for_upgrades().await;
        assert_eq!((left().await, site.told_version("a")), (json!(NEXT), None), "what is on stays on");
    }

    patch(json!({"agentAutoUpgrade": "Disabled"})).await;
    assert_eq!((left().await, site.told_version("a")), (Value::Null, None));
    patch(json!({"agentAutoUpgrade": "Enabled"})).await;
    fails().await;

    // Agents that still tell of the failure decide for themselves: the same version does not come back to them.
    patch(json!({"agentAutoUpgrade": "Disabled"})).await;
    assert_eq!(left().await, Value::Null);
    patch(json!({"agentAutoUpgrade": "Enabled"})).await;
    site.look_for_upgrades().await;
    assert_eq!((left().await, site.told_version("a")), (json!(NEXT), None));
}

#[tokio::test]
async fn u3_a_version_by_hand_needs_auto_upgrade_off_and_must_be_one_that_can_be_had() {
    let site = site_with_agents(&[skew::OWN, "0.3.98"]).await;
    site.with_agents("a").await;
    site.tells("a", &facts("0.98.0", None)).await;
    let target = format!("{}?{NEWEST}", cluster_id("g", "a"));
    let patch = async |profile: Value| {
        let body = json!({"properties": {"arcAgentProfile": profile}});
        site.call("owner", "PATCH", &target, Some(body)).await
    };
    // Azure's clients send a version beside automatic upgrades, where it says nothing.
    let ignored = patch(json!({"desiredAgentVersion": "0.1.0", "agentAutoUpgrade": "Enabled"})).await;
    assert_eq!((ignored.status, site.told_version("a")), (200, None), "{}", ignored.body);
    // Who turns them off, and names no version, is neither refused for that one nor gets it.
    let off = patch(json!({"agentAutoUpgrade": "Disabled"})).await;
    assert_eq!((off.status, site.told_version("a")), (200, None), "{}", off.body);
    assert_eq!(off.body["properties"]["arcAgentProfile"]["desiredAgentVersion"], Value::Null);
    assert_eq!(patch(json!({"agentAutoUpgrade": "Enabled"})).await.status, 200);
    for (version, why) in [
        ("newest", "is not a version"),
        ("0.0.1", "serves agents from version"),
        (skew::OWN, "a downgrade of more than 1 minor version is not supported"),
        ("0.97.0", "serves agents from version"),
    ] {
        let refused = patch(json!({"desiredAgentVersion": version, "agentAutoUpgrade": "Disabled"})).await;
        assert_eq!((refused.status, refused.code()), (400, "InvalidAgentVersion"), "{version}: {}", refused.body);
        assert_eq!(refused.body["error"]["target"], "properties.arcAgentProfile.desiredAgentVersion");
        let message = refused.body["error"]["message"].as_str().unwrap();
        assert!(message.contains(why), "{version}: {message}");
    }
    site.tells("a", &facts(skew::OWN, None)).await;
    let unknown = patch(json!({"desiredAgentVersion": "0.3.97", "agentAutoUpgrade": "Disabled"})).await;
    assert_eq!((unknown.status, unknown.code()), (400, "InvalidAgentVersion"), "{}", unknown.body);
    assert!(unknown.body.to_string().contains("catalogue has no such version"), "{}", unknown.body);
    let wanted = patch(json!({"desiredAgentVersion": "0.3.98", "agentAutoUpgrade": "Disabled"})).await;
    assert_eq!(wanted.status, 200, "{}", wanted.body);
    assert_eq!(site.told_version("a").as_deref(), Some("0.3.98"), "at once, and in no wave");
    // A version that went from the catalogue since keeps nobody from other changes.
    assert_eq!(patch(json!({"desiredAgentVersion": "0.3.98"})).await.status, 200);
}

#[tokio::test]
async fn u1_the_agents_are_no_extension_of_the_catalogue() {
    let site = site_with_agents(&[skew::OWN]).await;
    site.with_agents("a").await;
    let id = format!("{}/providers/Microsoft.KubernetesConfiguration/extensions/x", cluster_id("g", "a"));
    let body = json!({"properties": {"extensionType": "Towline.Agent"}});
    let refused = site.call("owner", "PUT", &format!("{id}?api-version=2023-05-01"), Some(body)).await;
    assert_eq!((refused.status, refused.code()), (400, "ExtensionTypeNotSupported"), "{}", refused.body);
}
