//! What clusters tell of the parts of resources: changes that build on one another, in bounds.

use gateway::store::{
    batch::Expect,
    parts::{Kept, Part, PartsTold, Room},
};
use serde_json::json;

use crate::place::{Place, cluster};

const ROOM: Room = Room { parts: 300, bytes: 100_000 };

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![parts_are_kept_as_changes_and_go_with_their_resource, parts_beyond_the_room_are_left_out]
}

fn part(name: impl Into<String>, rank: i64) -> Part {
    let name = name.into();
    Part { rank, told: Some(json!({"name": name})), name }
}

async fn parts_are_kept_as_changes_and_go_with_their_resource(place: Place) {
    let store = place.with_group().await;
    let (one, other) = (cluster("one"), cluster("other"));
    for made in [&one, &other] {
        store.put(made, Expect::Absent).await.unwrap().unwrap();
    }
    let keep = async |key: &str, after, position, parts: Vec<Part>| {
        let told = PartsTold { key, cluster: key, after, position, parts: &parts };
        store.keep_parts(told, ROOM, ROOM).await.unwrap()
    };
    let names = async |key: &str, most| {
        let told = store.parts_of(key, most).await.unwrap();
        told.iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(keep("/none", None, 1, vec![part("a", 0)]).await, Kept::Unknown);
    // More than one statement writes, in the order of bytes and not of a language.
    let many: Vec<_> = (0..250).map(|n| part(format!("p{n:03}"), 1)).chain([part("ä", 1), part("Z", 1)]).collect();
    assert_eq!(keep(&one.key, None, 1, many).await, Kept::Taken);
    assert_eq!(keep(&one.key, Some(1), u64::MAX, vec![part("p249", 0)]).await, Kept::Taken);
    assert_eq!(keep(&one.key, Some(1), 3, vec![part("x", 0)]).await, Kept::Again);
    assert_eq!(keep(&one.key, Some(1), u64::MAX, vec![part("x", 0)]).await, Kept::Taken, "taken before");
    assert_eq!(names(&one.key, 3).await, ["p249", "Z", "p000"]);
    assert_eq!(names(&one.key, 1000).await.len(), 252);
    assert_eq!(names(&one.key, 1000).await[251], "ä");
    let gone = Part { told: None, ..part("Z", 0) };
    assert_eq!(keep(&one.key, Some(u64::MAX), 4, vec![gone]).await, Kept::Taken);
    assert_eq!(keep(&other.key, None, 9, vec![part("b", 1), part("a", 1)]).await, Kept::Taken);
    let each = store.parts_of_each(&[one.key.clone(), other.key.clone(), "/none".to_owned()], 2).await.unwrap();
    assert_eq!((each.len(), &each[&other.key]), (2, &vec![json!({"name": "a"}), json!({"name": "b"})]));
    assert_eq!(each[&one.key], [json!({"name": "p249"}), json!({"name": "p000"})]);
    store.delete(&one.key, Expect::Any).await.unwrap().unwrap();
    assert!(names(&one.key, 10).await.is_empty());
    store.put(&one, Expect::Absent).await.unwrap().unwrap();
    assert_eq!(keep(&one.key, Some(4), 5, vec![part("a", 0)]).await, Kept::Again);
    store.close().await;
}

async fn parts_beyond_the_room_are_left_out(place: Place) {
    let store = place.with_group().await;
    let (one, other) = (cluster("one"), cluster("other"));
    for made in [&one, &other] {
        store.put(made, Expect::Absent).await.unwrap().unwrap();
    }
    // Both are in the same group, which stands for their cluster.
    let group = one.parent.clone();
    let keep = async |key: &str, after, position, parts: Vec<Part>| {
        let told = PartsTold { key, cluster: &group, after, position, parts: &parts };
        store.keep_parts(told, Room { parts: 3, ..ROOM }, Room { parts: 5, ..ROOM }).await.unwrap()
    };
    let of = |names: &str| names.chars().map(|name| part(name, 1)).collect::<Vec<_>>();
    let count = async |key: &str| store.parts_of(key, 100).await.unwrap().len();
    keep(&one.key, None, 1, of("abcd")).await;
    keep(&other.key, None, 1, of("abcd")).await;
    assert_eq!((count(&one.key).await, count(&other.key).await), (3, 2));
    // What has room again is told with its next change.
    keep(&one.key, Some(1), 2, vec![Part { told: None, ..part("a", 1) }]).await;
    keep(&other.key, Some(1), 2, of("d")).await;
    assert_eq!((count(&one.key).await, count(&other.key).await), (2, 3));
    let large = Part { told: Some(json!("x".repeat(100_000))), ..part("b", 1) };
    keep(&one.key, Some(2), 3, vec![large]).await;
    assert_eq!(count(&one.key).await, 1, "one that has grown too large is not shown as it was");
    store.close().await;
}
