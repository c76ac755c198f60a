//! What happens to clusters is told once, in one order, and followed by number (features row C8).

use std::sync::Arc;

use gateway::{
    connectivity::{OFFLINE_AFTER_MS, Status},
    store::{
        Store,
        agents::Certified,
        batch::{Batch, Expect},
        events::{Event, Kind},
        resources::Stored,
    },
};
use serde_json::json;

use crate::place::{GROUP, Place, cluster};

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![
        c8_each_change_is_told_once_and_survives_a_restart,
        c8_what_the_store_tells_is_what_is_shown,
        c8_two_replicas_tell_each_change_once,
        c8_a_webhook_goes_on_where_it_was,
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
    let events = store.events(after, 1000).await.unwrap();
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
    let events = store.events(0, 1000).await.unwrap();
    assert_eq!(events.iter().map(|event| event.number).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert_eq!((events[2].id.as_str(), events[2].at_ms), (cluster("A").id.as_str(), DAY + OFFLINE_AFTER_MS));
    assert_eq!((store.newest_event().await.unwrap(), store.events(0, 2).await.unwrap().len()), (4, 2));
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
            store.put_certificate((&key(name), None), &certified, None).await.unwrap();
        }
    }
    store.tell(DAY).await.unwrap();
    for (name, ..) in &rows {
        let agent = store.agent(&key(name)).await.unwrap().unwrap();
        let shown = Status::of(&agent, false, DAY);
        assert_eq!(told(&store, 0, name).await, [(Kind::Created, None, some(shown.as_str()))], "{agent:?}");
    }
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
    let events: Vec<Event> = store.events(0, 1000).await.unwrap();
    assert_eq!(events.iter().map(|event| event.number).collect::<Vec<_>>(), (1..=600).collect::<Vec<_>>());
    let keys: std::collections::BTreeSet<_> = events.iter().map(|event| &event.key).collect();
    assert_eq!(keys.len(), 600);
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
