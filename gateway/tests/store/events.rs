//! What happens to clusters is told once, in one order, and followed by number (docs/features.md C8).

use std::sync::Arc;

use gateway::{
    connectivity::Status,
    store::agents::OFFLINE_AFTER_MS,
    store::{
        Store,
        agents::Certified,
        batch::{Batch, Expect},
        events::{Event, KEPT, KEPT_OF_GROUP, Kind, Of},
        resources::Stored,
    },
};
use serde_json::json;

use crate::place::{GROUP, Place, cluster};

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![
        c8_each_change_is_told_once_and_survives_a_restart,
        c8_what_the_store_tells_is_what_is_shown,
        c8_a_change_from_every_state_to_every_other_is_found,
        c8_events_of_a_cluster_and_of_a_group_are_found_by_their_keys,
        c8_two_replicas_tell_each_change_once,
        c8_a_webhook_goes_on_where_it_was,
        c8_a_group_has_a_share_of_the_events_that_are_kept,
        c8_a_subscription_with_most_events_gives_way_to_others,
    ]
}

const DAY: i64 = 24 * 3600 * 1000;

fn keyed(name: &str, key: &str) -> Stored {
    Stored { body: json!({"properties": {"agentPublicKeyCertificate": key}}), ..cluster(name) }
}

fn key(name: &str) -> String {
    cluster(name).key
}

/// Kind, status before and status of events behind a number, of one cluster.
async fn told(store: &Store, after: i64, name: &str) -> Vec<(Kind, Option<String>, Option<String>)> {
    let events = store.events(Of::All, after, 1000).await.unwrap();
    events.into_iter().filter(|e| e.key == key(name)).map(|e| (e.kind, e.before, e.status)).collect()
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

async fn c8_each_change_is_told_once_and_survives_a_restart(place: Place) {
    let store = place.with_group().await;
    store.put(&keyed("A", "MII="), Expect::Absent).await.unwrap().unwrap();
    assert_eq!((store.tell(DAY).await.unwrap(), store.tell(DAY).await.unwrap()), (1, 0));
    store.seen(&[key("A")], DAY).await.unwrap();
    store.tell(DAY).await.unwrap();
    store.tell(DAY + OFFLINE_AFTER_MS - 1).await.unwrap();
    store.close().await;
    let store = place.open().await;
    store.tell(DAY + OFFLINE_AFTER_MS).await.unwrap();
    store.delete(GROUP, Expect::Any).await.unwrap().unwrap();
    assert_eq!(store.tell(2 * DAY).await.unwrap(), 1);
    let expected = [
        (Kind::Created, None, some("Connecting")),
        (Kind::Connectivity, some("Connecting"), some("Connected")),
        (Kind::Connectivity, some("Connected"), some("Offline")),
        (Kind::Deleted, some("Offline"), None),
    ];
    assert_eq!(told(&store, 0, "A").await, expected);
    assert_eq!(told(&store, 2, "A").await, expected[2..]);
    let events = store.events(Of::All, 0, 1000).await.unwrap();
    assert_eq!(events.iter().map(|event| event.number).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!((events[2].id.as_str(), events[2].at_ms), (cluster("A").id.as_str(), DAY + OFFLINE_AFTER_MS));
    assert_eq!((store.newest_event().await.unwrap(), store.events(Of::All, 0, 2).await.unwrap().len()), (4, 2));
    // Created again before anybody was told of the deletion.
    store.put(&crate::place::group("g"), Expect::Absent).await.unwrap().unwrap();
    store.put(&keyed("A", "MII="), Expect::Absent).await.unwrap().unwrap();
    store.tell(2 * DAY).await.unwrap();
    store.delete(&key("A"), Expect::Any).await.unwrap().unwrap();
    store.put(&keyed("A", ""), Expect::Absent).await.unwrap().unwrap();
    store.tell(2 * DAY).await.unwrap();
    let expected = [
        (Kind::Created, None, some("Connecting")),
        (Kind::Deleted, some("Connecting"), None),
        (Kind::Created, None, some("AgentNotInstalled")),
    ];
    assert_eq!(told(&store, 4, "A").await, expected);
}

/// The statement that finds what to tell says what the API says.
async fn c8_what_the_store_tells_is_what_is_shown(place: Place) {
    let store = place.with_group().await;
    let mut batch = Batch::default();
    let mut rows = Vec::new();
    for agentless in [true, false] {
        for seen in [None, Some(DAY - OFFLINE_AFTER_MS), Some(DAY - OFFLINE_AFTER_MS + 1), Some(DAY), Some(2 * DAY)] {
            for ends in [None, Some(DAY - 1), Some(DAY), Some(DAY + 1)] {
                let name = format!("c{}", rows.len());
                batch.puts.push((keyed(&name, if agentless { "" } else { "MII=" }), Expect::Absent));
                rows.push((name, seen, ends));
            }
        }
    }
    store.apply(&batch).await.unwrap().unwrap();
    for (name, seen, ends) in &rows {
        if let Some(seen) = seen {
            store.seen(&[key(name)], *seen).await.unwrap();
        }
        if let Some(ends_ms) = *ends {
            let certified = Certified { begins_ms: 0, ends_ms, serial: String::new(), key: String::new() };
            store.put_certificate(&key(name), None, &certified, None).await.unwrap();
        }
    }
    store.tell(DAY).await.unwrap();
    for (name, ..) in &rows {
        let agent = store.agent(&key(name)).await.unwrap().unwrap();
        let shown = Status::of(&agent, false, DAY);
        assert_eq!(told(&store, 0, name).await, [(Kind::Created, None, some(shown.as_str()))], "{agent:?}");
    }
}

/// Parts of a statement with an index each must together find what looking at everybody finds.
async fn c8_a_change_from_every_state_to_every_other_is_found(place: Place) {
    let store = place.with_group().await;
    let mut states = Vec::new();
    for agentless in [0, 1] {
        for seen in ["NULL".to_owned(), "0".to_owned(), (DAY - OFFLINE_AFTER_MS).to_string(), DAY.to_string()] {
            for ends in ["NULL".to_owned(), (DAY - 1).to_string(), (DAY + 1).to_string()] {
                states.push(format!(
                        "agentless = {agentless}, last_seen_ms = {seen}, certificate_begins_ms = 0, certificate_ends_ms = {ends}"
                    ));
            }
        }
    }
    let names: Vec<(usize, usize, String)> = (0..states.len())
        .flat_map(|from| (0..states.len()).map(move |to| (from, to, format!("c{from}-{to}"))))
        .collect();
    let puts = names.iter().map(|(.., name)| (keyed(name, "MII="), Expect::Absent)).collect();
    store.apply(&Batch { puts, ..Batch::default() }).await.unwrap().unwrap();
    let set = async |which: fn(&(usize, usize, String)) -> usize| {
        let update = |one: &(usize, usize, String)| {
            let (.., name) = one;
            format!("UPDATE agents SET {} WHERE resource_key = '{}'", states[which(one)], key(name))
        };
        let all: Vec<String> = names.iter().map(update).collect();
        place.sql(&all.join("; ")).await;
    };
    let mut before = 0;
    for which in [|one: &(usize, usize, String)| one.0, |one: &(usize, usize, String)| one.1] {
        set(which).await;
        let shown =
            async |name: &str| Status::of(&store.agent(&key(name)).await.unwrap().unwrap(), false, DAY).as_str();
        store.tell(DAY).await.unwrap();
        assert_eq!(store.tell(DAY).await.unwrap(), 0, "each once");
        let told = place.texts("SELECT resource_key || ' ' || told_status FROM agents ORDER BY resource_key").await;
        assert_eq!(told.len(), names.len());
        for (.., name) in &names {
            let expected = format!("{} {}", key(name), shown(name).await);
            assert!(told.contains(&expected), "{expected}");
        }
        assert!(store.newest_event().await.unwrap() > before);
        before = store.newest_event().await.unwrap();
    }
}

async fn c8_events_of_a_cluster_and_of_a_group_are_found_by_their_keys(place: Place) {
    let store = place.with_group().await;
    store.put(&crate::place::group("g2"), Expect::Absent).await.unwrap().unwrap();
    let in_other = |name: &str| {
        let elsewhere = |text: String| text.replace("/g/", "/g2/");
        let made = keyed(name, "MII=");
        Stored { key: elsewhere(made.key), id: elsewhere(made.id), parent: format!("{}2", made.parent), ..made }
    };
    for made in [keyed("a", "MII="), keyed("aa", "MII="), in_other("a")] {
        store.put(&made, Expect::Absent).await.unwrap().unwrap();
    }
    store.tell(DAY).await.unwrap();
    store.seen(&[key("a")], DAY).await.unwrap();
    store.tell(DAY).await.unwrap();
    let keys = async |of: Of<'_>, after: i64| -> Vec<String> {
        store.events(of, after, 10).await.unwrap().into_iter().map(|event| event.key).collect()
    };
    assert_eq!(keys(Of::Cluster(&key("a")), 0).await, [key("a"), key("a")]);
    assert_eq!(keys(Of::Cluster(&key("a")), 3).await, [key("a")], "behind a number");
    assert_eq!(keys(Of::Group(GROUP), 0).await, [key("a"), key("aa"), key("a")]);
    assert_eq!(keys(Of::Group(&format!("{GROUP}2")), 0).await, [in_other("a").key]);
    assert_eq!(keys(Of::Group("/none\0"), 0).await, Vec::<String>::new());
    assert_eq!(keys(Of::All, 0).await.len(), 4);
    // What was told before there was such a column is found, too.
    store.close().await;
    let undo = "DROP INDEX events_by_cluster; DROP INDEX events_by_group; DROP INDEX agents_by_end; \
                DROP INDEX agents_by_key; DROP INDEX deleted_identities_by_time; \
                ALTER TABLE events DROP COLUMN group_key; DELETE FROM _sqlx_migrations WHERE version = 5;";
    place.sql(undo).await;
    let store = place.open().await;
    assert_eq!(store.events(Of::Group(GROUP), 0, 10).await.unwrap().len(), 3);
}

async fn c8_two_replicas_tell_each_change_once(place: Place) {
    let store = place.with_group().await;
    let puts = (0..600).map(|n| (keyed(&format!("c{n}"), "MII="), Expect::Absent)).collect();
    store.apply(&Batch { puts, ..Batch::default() }).await.unwrap().unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let other = Arc::new(place.open().await);
        tasks.spawn(async move { other.tell(DAY).await.unwrap() });
    }
    assert_eq!(tasks.join_all().await.iter().sum::<usize>(), 600);
    let events: Vec<Event> = store.events(Of::All, 0, 1000).await.unwrap();
    assert_eq!(events.iter().map(|event| event.number).collect::<Vec<_>>(), (1..=600).collect::<Vec<_>>());
    let keys: std::collections::BTreeSet<_> = events.iter().map(|event| &event.key).collect();
    assert_eq!(keys.len(), 600);
}

/// Puts events of a group into the store, as if they had been told. The number of the last one.
async fn many(place: &Place, group: &str, first: i64, count: i64) -> i64 {
    let last = first + count - 1;
    let sql = format!(
        "INSERT INTO events (number, resource_key, id, kind, at_ms, group_key) \
         WITH RECURSIVE n(i) AS (SELECT {first} UNION ALL SELECT i + 1 FROM n WHERE i < {last}) \
         SELECT i, '{group}/providers/p/c/x', 'x', 'deleted', 1, '{group}' FROM n; \
         UPDATE event_numbers SET newest = {last}"
    );
    place.sql(&sql).await;
    last
}

/// Four groups of one tenant took all events that are kept, and pushed out what others were still to be told.
async fn c8_a_subscription_with_most_events_gives_way_to_others(place: Place) {
    let store = place.with_group().await;
    let elsewhere = |made: Stored| {
        let other = |text: String| text.replace("/subscriptions/s/", "/subscriptions/t/");
        Stored { key: other(made.key), id: other(made.id), parent: other(made.parent), ..made }
    };
    store.put(&elsewhere(crate::place::group("g")), Expect::Absent).await.unwrap().unwrap();
    let quiet = elsewhere(keyed("quiet", "MII=")).key;
    let of_quiet = async || -> Vec<i64> {
        let events = store.events(Of::Cluster(&quiet), 0, 10).await.unwrap();
        events.into_iter().map(|event| event.number).collect()
    };
    store.put(&elsewhere(keyed("quiet", "MII=")), Expect::Absent).await.unwrap().unwrap();
    store.tell(DAY).await.unwrap();
    let mut last = 1;
    for n in 0..KEPT / KEPT_OF_GROUP {
        last = many(&place, &format!("{GROUP}-{n}"), last + 1, KEPT_OF_GROUP).await;
    }
    // The subscription that has nearly all gives way, to the other one and to itself.
    store.seen(std::slice::from_ref(&quiet), DAY).await.unwrap();
    store.put(&keyed("a", "MII="), Expect::Absent).await.unwrap().unwrap();
    assert_eq!(store.tell(DAY).await.unwrap(), 2);
    assert_eq!(of_quiet().await.len(), 2);
    let kept = async || place.texts("SELECT CAST(COUNT(*) AS TEXT) FROM events").await;
    assert_eq!(kept().await, [KEPT.to_string()]);
    let first_of = |n: i64| 2 + n * KEPT_OF_GROUP;
    let oldest = async |of: Of<'_>| store.events(of, 0, 1).await.unwrap().first().map(|event| event.number);
    assert_eq!(oldest(Of::Group(&format!("{GROUP}-0"))).await, Some(first_of(0) + 3));
    assert_eq!(oldest(Of::Group(&format!("{GROUP}-1"))).await, Some(first_of(1)));
    // Its own followers may have missed some, and those of the other one have not.
    let forgotten = async |of: Of<'_>| store.forgotten(of).await.unwrap();
    assert_eq!(forgotten(Of::Group(&format!("{GROUP}-0"))).await, first_of(0) + 2);
    assert_eq!((forgotten(Of::Cluster(&key("a"))).await, forgotten(Of::Cluster(&quiet)).await), (first_of(0) + 2, 0));
    let of_both = (Of::Subscription("/subscriptions/s"), Of::Subscription("/subscriptions/t"));
    // Of groups with as many as they keep nobody knows after a count of all whether they had more.
    assert!(forgotten(of_both.0).await >= first_of(0) + 2);
    assert_eq!(forgotten(of_both.1).await, 0);
    assert_eq!(store.events(of_both.1, 0, 10).await.unwrap().len(), 2, "and none of the other one's is among theirs");
    // Each further one takes the place of one, also where a replica of the version before told meanwhile and counted
    // none.
    store.seen(&[key("a")], DAY).await.unwrap();
    store.tell(DAY).await.unwrap();
    many(&place, &format!("{GROUP}-9"), last + 4, 5).await;
    store.tell(DAY).await.unwrap();
    assert_eq!((kept().await, of_quiet().await.len()), (vec![KEPT.to_string()], 2));
    assert_eq!(oldest(Of::Group(&format!("{GROUP}-0"))).await, Some(first_of(0) + 9));
    let counted = "SELECT CAST(SUM(kept) AS TEXT) FROM event_";
    for table in ["groups", "subscriptions"] {
        assert_eq!(place.texts(&format!("{counted}{table}")).await, [KEPT.to_string()]);
    }
    assert_eq!(place.texts("SELECT group_key FROM event_groups").await.len(), 7);
}

/// Clusters that came and went in one group pushed out what others were still to be told.
async fn c8_a_group_has_a_share_of_the_events_that_are_kept(place: Place) {
    let store = place.with_group().await;
    let quiet = format!("{GROUP}-quiet");
    let oldest = async |of: Of<'_>| store.events(of, 0, 1).await.unwrap().first().map(|event| event.number);
    many(&place, &quiet, 1, 1).await;
    let mut last = many(&place, GROUP, 2, KEPT_OF_GROUP).await;
    store.put(&keyed("a", "MII="), Expect::Absent).await.unwrap().unwrap();
    store.tell(DAY).await.unwrap();
    last += 1;
    assert_eq!(store.newest_event().await.unwrap(), last);
    assert_eq!((oldest(Of::Group(GROUP)).await, oldest(Of::Group(&quiet)).await), (Some(3), Some(1)));
    // Who follows the group may have missed some, and nobody else has.
    let forgotten = async |of: Of<'_>| store.forgotten(of).await.unwrap();
    assert_eq!((forgotten(Of::Group(GROUP)).await, forgotten(Of::Cluster(&key("a"))).await), (2, 2));
    assert_eq!((forgotten(Of::Group(&quiet)).await, forgotten(Of::All).await), (0, 0));
    assert_eq!(forgotten(Of::Subscription("/subscriptions/s")).await, 2, "nor has who follows all of its groups");
    // Where many have their share, the oldest of all go.
    for n in 0..KEPT / KEPT_OF_GROUP - 1 {
        last = many(&place, &format!("{GROUP}-{n}"), last + 1, KEPT_OF_GROUP).await;
    }
    assert_eq!(oldest(Of::All).await, Some(1), "one more than are kept");
    store.seen(&[key("a")], DAY).await.unwrap();
    store.tell(DAY).await.unwrap();
    // One of the group went for its share, and then the oldest of all.
    assert_eq!((oldest(Of::All).await, oldest(Of::Group(&quiet)).await), (Some(4), None));
    assert_eq!((forgotten(Of::All).await, forgotten(Of::Group(&quiet)).await), (3, 3));
    let kept = place.texts("SELECT CAST(COUNT(*) AS TEXT) FROM events").await;
    assert_eq!(kept, [KEPT.to_string()]);
}

async fn c8_a_webhook_goes_on_where_it_was(place: Place) {
    let store = place.with_group().await;
    store.put(&keyed("a", "MII="), Expect::Absent).await.unwrap().unwrap();
    store.tell(DAY).await.unwrap();
    assert_eq!(store.webhook("w").await.unwrap(), 1, "what was before is not told");
    store.set_webhook("w", 7).await.unwrap();
    store.set_webhook("w", 3).await.unwrap();
    store.close().await;
    let store = place.open().await;
    assert_eq!(store.webhook("w").await.unwrap(), 7);
    assert_eq!(store.webhook("other").await.unwrap(), 1);
}
