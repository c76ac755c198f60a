//! What is known of clusters' agents outlives restarts, makes no revisions, and goes with the cluster.

use std::sync::Arc;

use gateway::store::{
    Store,
    agents::{Agent, Certified, Kept},
    batch::Expect,
    resources::Stored,
};
use serde_json::{Value, json};

use crate::place::{CLUSTERS, GROUP, Place, cluster};

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![
        c3_signs_of_life_outlive_a_restart_and_take_no_revision,
        c6_a_sign_of_life_does_not_go_back_but_for_a_wrong_clock,
        c9_many_are_seen_in_one_write_and_read_in_one_page,
        c9_agents_that_stay_are_written_every_four_minutes_by_one_of_all_replicas,
        c5_taking_the_key_away_is_removing_the_agents,
        r4_one_cluster_is_one_resource_whoever_is_faster,
        r7_a_certificate_is_kept_until_the_next_one,
        r10_everything_goes_with_the_cluster_or_its_group,
        r8_what_was_deleted_is_remembered_by_its_identity,
        r8_nothing_is_kept_of_the_identity_of_before,
        r8_rows_that_an_older_replica_made_learn_whose_they_are,
        rows_without_a_claimant_get_it_and_are_not_looked_for_again,
        r8_who_lives_on_another_authority_is_counted,
        m1_facts_are_what_was_told_last,
    ]
}

fn with_key(name: &str, key: &str) -> Stored {
    Stored { body: json!({"properties": {"agentPublicKeyCertificate": key}}), ..cluster(name) }
}

async fn with(place: &Place, names: &[&str]) -> Store {
    let store = place.with_group().await;
    for name in names {
        store.put(&with_key(name, "MII="), Expect::Absent).await.unwrap().unwrap();
    }
    store
}

fn key(name: &str) -> String {
    cluster(name).key
}

async fn agent(store: &Store, name: &str) -> Agent {
    store.agent(&key(name)).await.unwrap().unwrap()
}

fn certified(serial: &str, ends_ms: i64) -> Certified {
    Certified { begins_ms: 1, ends_ms, serial: serial.to_owned(), key: "sha256".to_owned() }
}

async fn c3_signs_of_life_outlive_a_restart_and_take_no_revision(place: Place) {
    let store = with(&place, &["a", "b"]).await;
    let before = store.revision().await.unwrap();
    assert_eq!(agent(&store, "a").await, Agent::default());
    store.seen(&[key("a"), key("gone"), "x' OR '1'='1".to_owned()], 1000).await.unwrap();
    store.seen(&[key("a")], 2000).await.unwrap();
    store.seen(&[], 3000).await.unwrap();
    store.close().await;
    let store = place.open().await;
    let seen = agent(&store, "a").await;
    assert_eq!((seen.first_seen_ms, seen.last_seen_ms), (Some(1000), Some(2000)));
    assert_eq!(agent(&store, "b").await.last_seen_ms, None);
    assert_eq!(store.agent(&key("gone")).await.unwrap(), None);
    assert_eq!(store.revision().await.unwrap(), before);
    assert!(store.seen(&["\0".to_owned()], 1).await.is_err());
}

async fn c6_a_sign_of_life_does_not_go_back_but_for_a_wrong_clock(place: Place) {
    let store = with(&place, &["a"]).await;
    const DAY: i64 = 24 * 3600 * 1000;
    for (now, kept) in [(DAY, DAY), (DAY - 60_000, DAY), (3 * DAY, 3 * DAY), (2 * DAY, 2 * DAY)] {
        store.seen(&[key("a")], now).await.unwrap();
        assert_eq!(agent(&store, "a").await.last_seen_ms, Some(kept));
    }
    for (now, kept) in [(2 * DAY - 60_000, 2 * DAY), (DAY, DAY)] {
        store.forget_future(now).await.unwrap();
        assert_eq!(agent(&store, "a").await.last_seen_ms, Some(kept));
    }
}

/// Each of the replicas that a cluster has tunnels to wrote its row each minute.
async fn c9_agents_that_stay_are_written_every_four_minutes_by_one_of_all_replicas(place: Place) {
    const MINUTE: i64 = 60_000;
    let (one, other) = (with(&place, &["a", "b"]).await, place.open().await);
    let both = [key("a"), key("b")];
    one.seen_again(&both[..1], 10 * MINUTE).await.unwrap();
    assert_eq!(agent(&one, "a").await.first_seen_ms, Some(10 * MINUTE), "it was never seen");
    for (store, now, kept) in [
        (&other, 10 * MINUTE + 1, 10 * MINUTE),
        (&one, 14 * MINUTE - 1, 10 * MINUTE),
        (&other, 14 * MINUTE, 14 * MINUTE),
        (&one, 13 * MINUTE, 14 * MINUTE),
        // What was kept under a clock that goes ahead is none of now.
        (&one, 13 * MINUTE - 1, 13 * MINUTE - 1),
    ] {
        store.seen_again(&both[..1], now).await.unwrap();
        assert_eq!(agent(&one, "a").await.last_seen_ms, Some(kept), "at {now}");
    }
    assert_eq!(agent(&one, "b").await.last_seen_ms, None);
    one.seen_again(&[], 1).await.unwrap();
    assert!(one.seen_again(&["\0".to_owned()], 1).await.is_err());
    // What comes or goes is written at once, however short it is after the last time.
    one.seen(&both, 13 * MINUTE + 5).await.unwrap();
    assert_eq!(agent(&one, "a").await.last_seen_ms, Some(13 * MINUTE + 5));
}

async fn c9_many_are_seen_in_one_write_and_read_in_one_page(place: Place) {
    let store = place.with_group().await;
    let names: Vec<String> = (0..950).map(|n| format!("c{n:04}")).collect();
    let puts = names.iter().map(|name| (with_key(name, "MII="), Expect::Absent)).collect();
    store.apply(&gateway::store::batch::Batch { puts, ..Default::default() }).await.unwrap().unwrap();
    let keys: Vec<String> = names.iter().rev().map(|name| key(name)).collect();
    store.seen(&keys, 5).await.unwrap();
    let page = store.page_with_agents(CLUSTERS, GROUP, "", 1000).await.unwrap();
    assert_eq!(page.len(), 950);
    assert!(page.iter().all(|(_, agent)| agent.as_ref().unwrap().last_seen_ms == Some(5)));
    let plain = store.page(CLUSTERS, GROUP, &page[9].0.key, 5).await.unwrap();
    let joined = store.page_with_agents(CLUSTERS, GROUP, &page[9].0.key, 5).await.unwrap();
    assert_eq!(joined.into_iter().map(|(stored, _)| stored).collect::<Vec<_>>(), plain.rows);
    let (stored, row) = store.get_with_agent(&key("c0007")).await.unwrap().unwrap();
    assert_eq!((stored.id, row.unwrap().first_seen_ms), (cluster("c0007").id, Some(5)));
    let (_, none) = store.get_with_agent(GROUP).await.unwrap().unwrap();
    assert_eq!(none, None);
    assert_eq!(store.get_with_agent("/nowhere").await.unwrap(), None);
}

async fn c5_taking_the_key_away_is_removing_the_agents(place: Place) {
    let store = with(&place, &["a"]).await;
    store.seen(&[key("a")], 7).await.unwrap();
    store.put(&with_key("a", "other"), Expect::Any).await.unwrap().unwrap();
    assert_eq!(agent(&store, "a").await.last_seen_ms, Some(7), "another key is no removal");
    store.put(&with_key("a", ""), Expect::Any).await.unwrap().unwrap();
    let removed = agent(&store, "a").await;
    assert_eq!((removed.agentless, removed.last_seen_ms, removed.first_seen_ms), (true, None, Some(7)));
    store.seen(&[key("a")], 8).await.unwrap();
    store.put(&with_key("a", ""), Expect::Any).await.unwrap().unwrap();
    assert_eq!(agent(&store, "a").await.last_seen_ms, Some(8), "it was agentless before");
}

async fn r4_one_cluster_is_one_resource_whoever_is_faster(place: Place) {
    let names: Vec<String> = (0..8).map(|n| format!("c{n}")).collect();
    let store = with(&place, &names.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let store = Arc::new(store);
    let mut tasks = tokio::task::JoinSet::new();
    for name in &names {
        let (store, name) = (Arc::clone(&store), name.clone());
        tasks.spawn(async move {
            let kept = store.put_certificate(&key(&name), None, &certified(&name, 9), Some("uid")).await.unwrap();
            (name, kept)
        });
    }
    let mut outcomes = tasks.join_all().await;
    outcomes.sort_by_key(|(_, kept)| *kept != Kept::Done);
    let winner = outcomes.remove(0);
    assert_eq!(winner.1, Kept::Done);
    for (name, kept) in outcomes {
        assert_eq!(kept, Kept::Other { id: cluster(&winner.0).id });
        assert_eq!(agent(&store, &name).await, Agent::default(), "nothing of it was kept");
    }
    assert_eq!(store.other_of_uid("uid", &key("new")).await.unwrap(), Some(cluster(&winner.0).id));
    assert_eq!(store.other_of_uid("uid", &key(&winner.0)).await.unwrap(), None);
    // Again for itself, and with facts.
    let again = store.put_facts(&key(&winner.0), None, &json!({}), Some("uid"), 1).await.unwrap();
    assert_eq!(again, Kept::Done);
    let loser = names.iter().find(|name| **name != winner.0).unwrap();
    let refused = store.put_facts(&key(loser), None, &json!({}), Some("uid"), 1).await.unwrap();
    assert_eq!(refused, Kept::Other { id: cluster(&winner.0).id });
    // Once that resource is gone the cluster may be another one.
    store.delete(&key(&winner.0), Expect::Any).await.unwrap().unwrap();
    assert_eq!(store.put_certificate(&key(loser), None, &certified("1", 9), Some("uid")).await.unwrap(), Kept::Done);
    assert_eq!(agent(&store, loser).await.kube_system_uid.as_deref(), Some("uid"));
}

async fn r7_a_certificate_is_kept_until_the_next_one(place: Place) {
    let store = with(&place, &["a"]).await;
    assert_eq!(store.put_certificate(&key("a"), None, &certified("1", 90), Some("uid")).await.unwrap(), Kept::Done);
    assert_eq!(store.put_certificate(&key("a"), None, &certified("2", 180), None).await.unwrap(), Kept::Done);
    store.close().await;
    let store = place.open().await;
    let kept = agent(&store, "a").await;
    assert_eq!(kept.certificate, Some(certified("2", 180)));
    assert_eq!(kept.kube_system_uid.as_deref(), Some("uid"), "a renewal names none");
    assert_eq!(store.put_certificate(&key("gone"), None, &certified("1", 9), Some("other")).await.unwrap(), Kept::Gone);
}

async fn r10_everything_goes_with_the_cluster_or_its_group(place: Place) {
    let store = with(&place, &["a", "b"]).await;
    for name in ["a", "b"] {
        store.put_certificate(&key(name), None, &certified("1", 90), Some(name)).await.unwrap();
    }
    store.delete(&key("a"), Expect::Any).await.unwrap().unwrap();
    assert_eq!(store.agent(&key("a")).await.unwrap(), None);
    store.put(&with_key("a", "MII="), Expect::Absent).await.unwrap().unwrap();
    assert_eq!(agent(&store, "a").await, Agent::default(), "another cluster of that name");
    store.delete(GROUP, Expect::Any).await.unwrap().unwrap();
    assert_eq!(place.texts("SELECT resource_key FROM agents").await, [""; 0]);
}

fn of(name: &str, principal: &str) -> Stored {
    let mut of = with_key(name, "MII=");
    of.body["identity"] = json!({"type": "SystemAssigned", "principalId": principal});
    of
}

async fn r8_what_was_deleted_is_remembered_by_its_identity(place: Place) {
    const DAY: i64 = 24 * 3600 * 1000;
    let store = place.with_group().await;
    for (name, principal) in [("a", "1"), ("b", "2"), ("c", "3")] {
        store.put(&of(name, principal), Expect::Absent).await.unwrap().unwrap();
    }
    assert_eq!(store.deleted_identities(10).await.unwrap(), [""; 0]);
    store.delete(&key("a"), Expect::Any).await.unwrap().unwrap();
    store.put(&of("a", "4"), Expect::Absent).await.unwrap().unwrap();
    assert_eq!(store.deleted_identities(10).await.unwrap(), ["1"], "and not the one that has its name now");
    assert_eq!(store.forget_deleted_identities(DAY, 0).await.unwrap(), 0);
    store.delete(GROUP, Expect::Any).await.unwrap().unwrap();
    store.close().await;
    // Rows of before identities were kept learn whose they are.
    place.sql("UPDATE deleted_identities SET resource_key = 'x' WHERE principal = '4'").await;
    let store = place.open().await;
    let mut all = store.deleted_identities(10).await.unwrap();
    assert_eq!((all.last().map(String::as_str), store.deleted_identities(3).await.unwrap().len()), (Some("1"), 3));
    all.sort();
    assert_eq!(all, ["1", "2", "3", "4"], "a group takes what it holds");
    assert_eq!(store.forget_deleted_identities(2 * DAY, DAY + 1).await.unwrap(), 1, "the oldest");
    assert_eq!(store.forget_deleted_identities(3 * DAY, 2 * DAY + 1).await.unwrap(), 3);
}

async fn r8_nothing_is_kept_of_the_identity_of_before(place: Place) {
    let store = place.with_group().await;
    store.put(&of("a", "1"), Expect::Absent).await.unwrap().unwrap();
    place.sql("UPDATE agents SET principal = NULL").await;
    store.close().await;
    let store = place.open().await;
    let key = key("a");
    for (principal, kept) in [(Some("1"), Kept::Done), (Some("0"), Kept::Gone), (None, Kept::Done)] {
        let told = store.put_facts(&key, principal, &json!({"a": 1}), None, 5).await.unwrap();
        assert_eq!(told, kept, "{principal:?}");
        assert_eq!(store.put_certificate(&key, principal, &certified("1", 9), Some("u")).await.unwrap(), kept);
    }
}

/// As a store of before claimants were kept has them.
async fn rows_without_a_claimant_get_it_and_are_not_looked_for_again(place: Place) {
    with(&place, &["a", "b"]).await.close().await;
    place.sql("UPDATE agents SET kube_system_uid = 'u', claimant = NULL; DELETE FROM rows_named;").await;
    let claims = async || place.texts("SELECT coalesce(claimant, 'none') FROM agents ORDER BY 1").await;
    let noted = async || place.texts("SELECT 'noted' FROM rows_named").await.len();
    place.open().await.close().await;
    let named = claims().await;
    assert!(
        named.len() == 2 && named.iter().filter(|claim| *claim == "none").count() == 1,
        "no two claim one: {named:?}"
    );
    assert_eq!(noted().await, 0, "replicas of the version before may still write");
    place.open().await.close().await;
    assert_eq!((claims().await, noted().await), (named, 1));
    place.sql("UPDATE agents SET claimant = NULL").await;
    place.open().await.close().await;
    assert_eq!(claims().await, ["none", "none"], "no start reads them again");
}

/// Beside this program one of before identities were kept writes: its rows name none.
async fn r8_rows_that_an_older_replica_made_learn_whose_they_are(place: Place) {
    let store = place.with_group().await;
    for (name, principal) in [("a", "1"), ("b", "2"), ("c", "3")] {
        store.put(&of(name, principal), Expect::Absent).await.unwrap().unwrap();
    }
    place.sql("UPDATE agents SET principal = NULL").await;
    for (principal, kept) in [("0", Kept::Gone), ("1", Kept::Done)] {
        let told = store.put_facts(&key("a"), Some(principal), &json!({"n": 1}), None, 5).await.unwrap();
        assert_eq!(told, kept, "{principal}");
    }
    let kept = store.put_certificate(&key("b"), Some("2"), &certified("1", 9), Some("u")).await.unwrap();
    assert_eq!(kept, Kept::Done);
    // What is deleted is remembered by its identity all the same.
    store.delete(&key("c"), Expect::Any).await.unwrap().unwrap();
    assert_eq!(store.deleted_identities(9).await.unwrap(), ["3"]);
}

async fn r8_who_lives_on_another_authority_is_counted(place: Place) {
    let store = place.with_group().await;
    for name in ["a", "b", "c", "d"] {
        store.put(&of(name, name), Expect::Absent).await.unwrap().unwrap();
    }
    for (name, ends) in [("a", 100), ("b", 100), ("c", 50)] {
        store.put_certificate(&key(name), None, &certified("1", ends), None).await.unwrap();
    }
    let count = async |authority: &str, now| store.on_other_authorities(authority, now, 1).await.unwrap();
    assert_eq!(count("new", 1).await, (3, vec![cluster("a").id]), "nobody knows of which");
    assert_eq!(count("new", 60).await.0, 2, "without those whose certificate has ended");
    store.put_authority(&key("a"), Some("a"), Some("new")).await.unwrap();
    store.put_authority(&key("b"), Some("other"), Some("new")).await.unwrap();
    assert_eq!(count("new", 60).await, (1, vec![cluster("b").id]), "and what another identity tells is nothing");
    assert_eq!(count("old", 60).await.0, 2);
    assert_eq!(agent(&store, "a").await.authority.as_deref(), Some("new"));
}

async fn m1_facts_are_what_was_told_last(place: Place) {
    let store = with(&place, &["a"]).await;
    assert_eq!(agent(&store, "a").await.facts, Value::Null);
    for (told, now) in [(json!({"totalNodeCount": 3}), 5), (json!({"it's": "\"quoted\" é"}), 6)] {
        assert_eq!(store.put_facts(&key("a"), None, &told, None, now).await.unwrap(), Kept::Done);
        let kept = agent(&store, "a").await;
        assert_eq!((kept.facts, kept.last_seen_ms, kept.first_seen_ms), (told, Some(now), Some(5)));
    }
    assert_eq!(store.put_facts(&key("gone"), None, &json!({}), None, 1).await.unwrap(), Kept::Gone);
}
