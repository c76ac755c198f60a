//! Resources are read as they were written, by key, by page, below a parent.

use gateway::store::{
    batch::{Expect, Refused},
    changes::Change,
    resources::{PAGE_ROWS, Stored},
};
use serde_json::json;

use crate::place::{CLUSTERS, GROUP, GROUPS, Place, cluster, group, name, resource, since};

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![
        what_is_written_is_read_back,
        a_child_needs_its_parent,
        pages_stay_right_while_rows_change,
        order_is_that_of_bytes_whatever_the_collation,
        deleting_takes_what_is_below_and_nothing_beside,
        children_lie_exactly_at_their_parent,
        z6_what_lies_at_a_namespace_is_held_by_the_cluster,
        what_exists_keeps_its_kind_and_its_id,
    ]
}

async fn what_is_written_is_read_back(place: Place) {
    let store = place.with_group().await;
    let mut wanted = cluster("One");
    wanted.protected = Some(vec![0, 1, 255]);
    wanted.body = json!({"a": [1, 2.5, null, true], "big": u64::MAX, "text": "\u{0}\u{1F980}'\"\\"});
    wanted.revision = store.put(&wanted, Expect::Absent).await.unwrap().unwrap();
    assert_eq!(store.get(&wanted.key).await.unwrap().unwrap(), wanted);
    assert_eq!(store.get("/nothing").await.unwrap(), None);
    assert_eq!(store.get(&wanted.id).await.unwrap(), None, "keys are in lower case");
    assert_eq!(store.revision().await.unwrap(), wanted.revision);
    wanted.protected = None;
    wanted.revision = store.put(&wanted, Expect::Any).await.unwrap().unwrap();
    assert_eq!(store.get(&wanted.key).await.unwrap().unwrap(), wanted);
    store.close().await;
    let again = place.open().await;
    assert_eq!(again.get(&wanted.key).await.unwrap().unwrap(), wanted);
}

async fn a_child_needs_its_parent(place: Place) {
    let store = place.open().await;
    let refused = store.put(&cluster("a"), Expect::Absent).await.unwrap();
    assert_eq!(refused, Err(Refused::NoParent { key: cluster("a").key }));
    assert_eq!(store.revision().await.unwrap(), 0, "what did not happen has no revision");
}

async fn pages_stay_right_while_rows_change(place: Place) {
    let store = place.with_group().await;
    let mut names = ["a", "B", "a-b", "a_b", "a.b", "aB", "z", "Z1"].map(str::to_owned);
    for name in &names {
        store.put(&cluster(name), Expect::Absent).await.unwrap().unwrap();
    }
    names.sort_by_key(|name| name.to_lowercase());
    let names_of = |page: &[Stored]| page.iter().map(name).collect::<Vec<_>>();
    let first = store.page(CLUSTERS, GROUP, "", 3).await.unwrap();
    assert_eq!(names_of(&first), names[..3]);
    let after = &first.last().unwrap().key;
    // Gone and come before the place where the next one begins: nothing is skipped and nothing is there twice.
    store.delete(&first[0].key, Expect::Revision(first[0].revision)).await.unwrap().unwrap();
    store.put(&cluster("0"), Expect::Absent).await.unwrap().unwrap();
    let rest = store.page(CLUSTERS, GROUP, after, PAGE_ROWS).await.unwrap();
    assert_eq!(names_of(&rest), names[3..]);
    // The one that the page ended with may be gone itself.
    store.delete(after, Expect::Any).await.unwrap().unwrap();
    assert_eq!(names_of(&store.page(CLUSTERS, GROUP, after, PAGE_ROWS).await.unwrap()), names[3..]);
    assert_eq!(store.page(CLUSTERS, "/subscriptions/s/resourcegroups/other", "", 9).await.unwrap(), []);
    assert_eq!(store.page(CLUSTERS, GROUP, "", 0).await.unwrap(), []);
    assert_eq!(store.page(CLUSTERS, "", "", u32::MAX).await.unwrap().len(), names.len() - 1);
    assert_eq!(store.count(CLUSTERS, "").await.unwrap(), names.len() as u64 - 1);
    assert_eq!(store.count(CLUSTERS, GROUP).await.unwrap(), names.len() as u64 - 1);
    assert_eq!(store.count(GROUPS, GROUP).await.unwrap(), 0, "a group is not below itself");
}

async fn order_is_that_of_bytes_whatever_the_collation(place: Place) {
    if !place.is_sqlite {
        let sorted = place.texts("SELECT v FROM (VALUES ('a_b'), ('ab'), ('aB'), ('a-c')) AS t (v) ORDER BY v").await;
        assert_ne!(
            sorted,
            ["a-c", "aB", "a_b", "ab"],
            "the server's own order is that of bytes: the test shows nothing"
        );
    }
    let store = place.with_group().await;
    let mut names =
        ["é", "e", "f", "ß", "ss", "a_b", "ab", "a-c", "a c", "~", "0", "10", "9", "ǆ", "\u{1F980}", "\u{FFFD}"]
            .map(str::to_owned);
    for name in &names {
        store.put(&cluster(name), Expect::Absent).await.unwrap().unwrap();
    }
    names.sort();
    // One at a time: each page begins behind the last one by the same order.
    let mut found: Vec<Stored> = Vec::new();
    loop {
        let after = found.last().map(|last| last.key.clone()).unwrap_or_default();
        let page = store.page(CLUSTERS, GROUP, &after, 1).await.unwrap();
        let children = store.children(CLUSTERS, GROUP, &after, 1).await.unwrap();
        assert_eq!(page, children);
        match page.into_iter().next() {
            Some(one) => found.push(one),
            None => break,
        }
    }
    assert_eq!(found.iter().map(name).collect::<Vec<_>>(), names);
}

async fn deleting_takes_what_is_below_and_nothing_beside(place: Place) {
    let store = place.with_group().await;
    // Characters around the slash, and a name that begins with the other.
    for name in ["g2", "g-", "g.", "g0"] {
        store.put(&group(name), Expect::Absent).await.unwrap().unwrap();
    }
    store.put(&cluster("a"), Expect::Absent).await.unwrap().unwrap();
    let before = store.revision().await.unwrap();
    let found = store.get(GROUP).await.unwrap().unwrap();
    let refused = store.delete(GROUP, Expect::Revision(0)).await.unwrap();
    assert_eq!(refused, Err(Refused::Changed { key: GROUP.to_owned(), found: Some(found.revision) }));
    assert_eq!(store.delete(GROUP, Expect::Revision(found.revision)).await.unwrap(), Ok(2));
    assert_eq!(store.get(&cluster("a").key).await.unwrap(), None);
    assert_eq!(store.count(GROUPS, "").await.unwrap(), 4);
    let changes = since(&store, before).await;
    assert!(changes.iter().all(|change| matches!(change, Change::Deleted { .. })), "{changes:?}");
    assert_eq!(changes.iter().map(Change::key).collect::<Vec<_>>(), [GROUP, &cluster("a").key]);
    assert_eq!(store.delete(GROUP, Expect::Any).await.unwrap(), Ok(0));
}

async fn children_lie_exactly_at_their_parent(place: Place) {
    const ASSIGNMENTS: &str = "microsoft.authorization/roleassignments";
    let store = place.with_group().await;
    store.put(&cluster("c"), Expect::Absent).await.unwrap().unwrap();
    let at = |scope: &str, name: &str| {
        resource(ASSIGNMENTS, scope, &format!("{scope}/providers/Microsoft.Authorization/roleAssignments/{name}"))
    };
    for assignment in [at(GROUP, "1"), at(GROUP, "2"), at(&cluster("c").key, "3")] {
        store.put(&assignment, Expect::Absent).await.unwrap().unwrap();
    }
    let names = |found: Vec<Stored>| found.iter().map(name).collect::<Vec<_>>();
    assert_eq!(names(store.children(ASSIGNMENTS, GROUP, "", 9).await.unwrap().rows), ["1", "2"]);
    assert_eq!(names(store.children(ASSIGNMENTS, GROUP, &at(GROUP, "1").key, 9).await.unwrap().rows), ["2"]);
    assert_eq!(names(store.children(ASSIGNMENTS, &cluster("c").key, "", 9).await.unwrap().rows), ["3"]);
    assert_eq!(store.count(ASSIGNMENTS, GROUP).await.unwrap(), 3);
}

async fn z6_what_lies_at_a_namespace_is_held_by_the_cluster(place: Place) {
    let store = place.with_group().await;
    let scope = format!("{}/namespaces/dev", cluster("c").key);
    let assignment = resource("microsoft.authorization/roleassignments", &scope, &format!("{scope}/providers/x/y/z"));
    let refused = store.put(&assignment, Expect::Absent).await.unwrap();
    assert_eq!(refused, Err(Refused::NoParent { key: assignment.key.clone() }));
    store.put(&cluster("c"), Expect::Absent).await.unwrap().unwrap();
    store.put(&assignment, Expect::Absent).await.unwrap().unwrap();
    assert_eq!(store.children(&assignment.kind, &scope, "", 9).await.unwrap().len(), 1);
    assert_eq!(store.children(&assignment.kind, &cluster("c").key, "", 9).await.unwrap().len(), 0);
    assert_eq!(store.delete(&cluster("c").key, Expect::Any).await.unwrap(), Ok(2));
}

async fn what_exists_keeps_its_kind_and_its_id(place: Place) {
    let store = place.with_group().await;
    store.put(&cluster("One"), Expect::Absent).await.unwrap().unwrap();
    store.put(&cluster("ONE"), Expect::Any).await.unwrap().unwrap();
    assert_eq!(name(&store.get(&cluster("one").key).await.unwrap().unwrap()), "One");
}
