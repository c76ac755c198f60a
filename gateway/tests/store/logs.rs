//! Log lines of controllers: each is taken once, the newest are kept, and they go with what they are about.

use gateway::store::{
    batch::Expect,
    logs::{Bound, Line, Part, Room},
};
use serde_json::json;
use types::agent_api::{LogLevel, LogPosition};

use crate::place::{Place, cluster};

const BYTES: i64 = 64 * 1024;
const ROOM: Room =
    Room { of_resource: Bound { lines: 120, bytes: BYTES }, of_cluster: Bound { lines: 200, bytes: 2 * BYTES } };

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![lines_are_taken_once_and_the_newest_are_kept, lines_are_kept_within_bytes_and_read_by_level]
}

fn line(key: &str, nanos: i64) -> Line {
    Line {
        key: key.to_owned(),
        source: "pod".to_owned(),
        position: LogPosition { nanos, nth: 1 },
        level: LogLevel::Info,
        line: json!({"at": nanos}),
    }
}

async fn lines_are_taken_once_and_the_newest_are_kept(place: Place) {
    let store = place.with_group().await;
    // To the store a line is of any resource: these two stand for a cluster and what is in it.
    let (one, other) = (cluster("one"), cluster("other"));
    for made in [&one, &other] {
        store.put(made, Expect::Absent).await.unwrap().unwrap();
    }
    let keep = async |lines: Vec<Line>| store.keep_lines(&one.key, &lines, ROOM).await.unwrap();
    let kept = async |key: &str, after: i64| {
        let lines = store.lines_of(key, Part { after, ..Part::ALL }).await.unwrap();
        lines.into_iter().map(|(_, line)| line["at"].as_i64().unwrap()).collect::<Vec<_>>()
    };
    assert!(!store.keep_lines("/none", &[line("/none", 1)], ROOM).await.unwrap());
    // More than one statement writes.
    assert!(keep((1..=250).map(|nanos| line(&one.key, nanos)).collect()).await);
    assert_eq!(kept(&one.key, 0).await, (131..=250).collect::<Vec<_>>());
    assert_eq!(kept(&one.key, 249).await, [250]);
    assert!(keep(vec![line(&one.key, 250), line("/absent", 251), line(&other.key, 252)]).await);
    assert!(kept("/absent", 0).await.is_empty(), "and the next one goes on behind it");
    assert_eq!(kept(&other.key, 0).await, [252]);
    assert_eq!(store.log_positions(&one.key).await.unwrap().sources["pod"], LogPosition { nanos: 252, nth: 1 });
    assert!(keep((300..400).map(|nanos| line(&other.key, nanos)).collect()).await);
    assert_eq!((kept(&one.key, 0).await.len(), kept(&other.key, 0).await.len()), (99, 101));
    store.delete(&other.key, Expect::Any).await.unwrap().unwrap();
    assert!(kept(&other.key, 0).await.is_empty());
    store.delete(&one.key, Expect::Any).await.unwrap().unwrap();
    assert!(kept(&one.key, 0).await.is_empty());
    assert!(store.log_positions(&one.key).await.unwrap().sources.is_empty());
    store.close().await;
}

async fn lines_are_kept_within_bytes_and_read_by_level(place: Place) {
    let store = place.with_group().await;
    let (one, other) = (cluster("one"), cluster("other"));
    for made in [&one, &other] {
        store.put(made, Expect::Absent).await.unwrap().unwrap();
    }
    let long = |key: &str, nanos: i64| Line {
        level: if nanos % 10 == 0 { LogLevel::Error } else { LogLevel::Debug },
        line: json!({"at": nanos, "text": "x".repeat(4000)}),
        ..line(key, nanos)
    };
    let keep = async |lines: Vec<Line>| assert!(store.keep_lines(&one.key, &lines, ROOM).await.unwrap());
    let read = async |key: &str, part: Part| {
        let lines = store.lines_of(key, part).await.unwrap();
        let bytes: usize = lines.iter().map(|(_, line)| line.to_string().len()).sum();
        (lines.into_iter().map(|(_, line)| line["at"].as_i64().unwrap()).collect::<Vec<_>>(), bytes)
    };
    keep((1..=100).map(|nanos| long(&one.key, nanos)).collect()).await;
    let (kept, bytes) = read(&one.key, Part::ALL).await;
    assert_eq!(kept, (85..=100).collect::<Vec<_>>());
    assert!(i64::try_from(bytes).unwrap() <= BYTES);
    assert_eq!(read(&one.key, Part { level: LogLevel::Error, ..Part::ALL }).await.0, [90, 100]);
    assert_eq!(read(&one.key, Part { newest: 2, ..Part::ALL }).await.0, [99, 100]);
    assert_eq!((store.newest_line(&one.key).await.unwrap(), store.newest_line("/none").await.unwrap()), (100, 0));
    // A cluster has less room than all of its resources together.
    let room = Room { of_cluster: Bound { lines: 200, bytes: BYTES }, ..ROOM };
    let lines: Vec<Line> = (101..=150).map(|nanos| long(&other.key, nanos)).collect();
    assert!(store.keep_lines(&one.key, &lines, room).await.unwrap());
    assert_eq!((read(&one.key, Part::ALL).await.0.len(), read(&other.key, Part::ALL).await.0.len()), (0, 16));
    store.close().await;
}
