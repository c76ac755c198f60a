//! Who follows the changes knows what is there, whatever happens and however long they looked away.

use std::collections::BTreeMap;

use gateway::store::{
    Store,
    batch::{Batch, Expect},
    changes::{CHANGES_AT_ONCE, CHILDREN_DELETED, CHILDREN_GONE, Change, Changes, PARENT_DELETED},
    resources::{PAGE_ROWS, Stored},
};
use proptest::{
    prelude::*,
    strategy::ValueTree as _,
    test_runner::{Config, TestRunner},
};
use serde_json::json;
use sqlx::{AnyConnection, Connection as _, Row as _};

use crate::place::{CLUSTERS, GROUP, GROUPS, Place, cluster, group, resource, since};

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![
        changes_are_seen_once_and_in_order,
        a_revision_is_told_whole,
        what_is_forgotten_is_not_told_as_nothing,
        a_follower_knows_what_is_there,
        a_follower_misses_nothing_while_others_write,
        deletions_below_one_cluster_are_read_by_its_keys,
    ]
}

/// What somebody knows who follows.
#[derive(Default)]
struct Follower {
    known: BTreeMap<String, Stored>,
    since: i64,
    loads: usize,
}

impl Follower {
    async fn follow(&mut self, store: &Store) {
        loop {
            match store.changes(self.since).await.unwrap() {
                Changes::Since(changes) if changes.is_empty() => return,
                Changes::Since(changes) => changes.into_iter().for_each(|change| self.take(change)),
                Changes::TooOld => self.load(store).await,
            }
        }
    }

    fn take(&mut self, change: Change) {
        assert!(change.revision() >= self.since);
        self.since = change.revision();
        match change {
            Change::Put(stored) => drop(self.known.insert(stored.key.clone(), stored)),
            Change::Deleted { key, .. } => drop(self.known.remove(&key)),
        }
    }

    async fn load(&mut self, store: &Store) {
        self.loads += 1;
        self.since = store.revision().await.unwrap();
        self.known = everything(store).await;
    }
}

async fn everything(store: &Store) -> BTreeMap<String, Stored> {
    let mut all = store.page(GROUPS, "", "", PAGE_ROWS).await.unwrap().rows;
    all.extend(store.page(CLUSTERS, "", "", PAGE_ROWS).await.unwrap());
    all.into_iter().map(|stored| (stored.key.clone(), stored)).collect()
}

async fn changes_are_seen_once_and_in_order(place: Place) {
    let store = place.with_group().await;
    let one = store.put(&cluster("one"), Expect::Absent).await.unwrap().unwrap();
    store.put(&cluster("two"), Expect::Absent).await.unwrap().unwrap();
    let newer = store.put(&cluster("one"), Expect::Revision(one)).await.unwrap().unwrap();
    let changes = since(&store, 0).await;
    let keys: Vec<&str> = changes.iter().map(Change::key).collect();
    assert_eq!(keys, [GROUP, &cluster("two").key, &cluster("one").key]);
    assert_eq!(changes.last().unwrap().revision(), newer);
    assert_eq!(since(&store, newer).await, []);
}

/// A page of changes that ended within a revision would hide the rest of it from who goes on behind.
async fn a_revision_is_told_whole(place: Place) {
    let store = place.with_group().await;
    let many = CHANGES_AT_ONCE as usize + 7;
    let puts = (0..many).map(|n| (cluster(&format!("c{n}")), Expect::Absent)).collect();
    let put = store.apply(&Batch { puts, ..Batch::default() }).await.unwrap().unwrap();
    let other = store.put(&group("other"), Expect::Absent).await.unwrap().unwrap();
    let changes = since(&store, 0).await;
    assert_eq!((changes.len(), changes.last().unwrap().revision()), (many + 1, put.revision));
    assert_eq!(since(&store, put.revision).await.len(), 1);
    store.delete(GROUP, Expect::Any).await.unwrap().unwrap();
    assert_eq!(since(&store, other).await.len(), many + 1);
    let mut follower = Follower::default();
    follower.follow(&store).await;
    assert_eq!(follower.known.len(), 1);
}

async fn what_is_forgotten_is_not_told_as_nothing(place: Place) {
    let store = place.with_group().await;
    store.put(&cluster("a"), Expect::Absent).await.unwrap().unwrap();
    store.delete(&cluster("a").key, Expect::Any).await.unwrap().unwrap();
    let deleted = store.revision().await.unwrap();
    let newest = store.put(&cluster("b"), Expect::Absent).await.unwrap().unwrap();
    assert_eq!(store.forget_tombstones(deleted).await.unwrap(), 0, "older than that, there is none");
    assert_eq!(store.changes(deleted - 2).await.unwrap(), Changes::TooOld);
    assert_eq!(since(&store, deleted - 1).await.len(), 2);
    assert_eq!(store.forget_tombstones(deleted + 1).await.unwrap(), 1);
    assert_eq!(store.changes(deleted - 1).await.unwrap(), Changes::TooOld);
    assert_eq!(since(&store, deleted).await.len(), 1, "who knows of the deletion needs no tombstone");
    // Once forgotten, always forgotten.
    store.forget_tombstones(1).await.unwrap();
    assert_eq!(store.changes(deleted - 1).await.unwrap(), Changes::TooOld);
    // More than there is cannot be forgotten: who is up to date stays so.
    store.forget_tombstones(i64::MAX).await.unwrap();
    assert_eq!(since(&store, newest).await, []);
    store.delete(&cluster("b").key, Expect::Any).await.unwrap().unwrap();
    assert_eq!(since(&store, newest).await.len(), 1);
    store.forget_tombstones(i64::MIN).await.unwrap();
    assert_eq!(since(&store, newest).await.len(), 1);
    assert_eq!(store.changes(newest + 99).await.unwrap(), Changes::TooOld, "of a database that was restored");
}

#[derive(Debug, Clone)]
enum Step {
    Batch {
        puts: Vec<(usize, usize)>,
        deletes: Vec<(usize, Option<usize>)>,
    },
    Follow,
    /// All tombstones but those of as many revisions.
    Forget(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let of = || (0..2usize, 0..4usize);
    let batch =
        (prop::collection::vec(of(), 0..4), prop::collection::vec((0..2usize, prop::option::of(0..4usize)), 0..2));
    let step = prop_oneof![
        6 => batch.prop_map(|(puts, deletes)| Step::Batch { puts, deletes }),
        2 => Just(Step::Follow),
        1 => (0..6i64).prop_map(Step::Forget),
    ];
    prop::collection::vec(step, 1..40)
}

fn nth(case: usize, of: usize, name: usize) -> (Stored, Stored) {
    let group = group(&format!("{case}-{of}"));
    let id = format!("{}/providers/Microsoft.Kubernetes/connectedClusters/c{name}", group.id);
    let cluster = resource(CLUSTERS, &group.key, &id);
    (group, cluster)
}

/// Any batches, against a map that does the same.
async fn a_follower_knows_what_is_there(place: Place) {
    const CASES: usize = 24;
    let store = place.open().await;
    let mut runner = TestRunner::new(Config::default());
    let mut follower = Follower::default();
    let mut model: BTreeMap<String, u64> = BTreeMap::new();
    let mut count = 0;
    for case in 0..CASES {
        let steps = steps().new_tree(&mut runner).unwrap().current();
        for step in &steps {
            match step {
                Step::Batch { puts, deletes } => {
                    let mut batch = Batch::default();
                    for (of, name) in deletes {
                        let (group, cluster) = nth(case, *of, name.unwrap_or_default());
                        let key = if name.is_some() { cluster.key } else { group.key };
                        model.retain(|other, _| *other != key && !other.starts_with(&format!("{key}/")));
                        batch.deletes.push((key, Expect::Any));
                    }
                    for (of, name) in puts {
                        let (group, mut cluster) = nth(case, *of, *name);
                        count += 1;
                        cluster.body = json!({"n": count});
                        model.insert(group.key.clone(), 0);
                        model.insert(cluster.key.clone(), count);
                        batch.puts.extend([(group, Expect::Any), (cluster, Expect::Any)]);
                    }
                    store.apply(&batch).await.unwrap().unwrap();
                }
                Step::Follow => follower.follow(&store).await,
                Step::Forget(kept) => {
                    let before = store.revision().await.unwrap() + 1 - kept;
                    store.forget_tombstones(before).await.unwrap();
                }
            }
        }
        follower.follow(&store).await;
        let known = follower.known.iter().map(|(key, stored)| (key.clone(), stored.body["n"].as_u64().unwrap()));
        assert_eq!(known.collect::<BTreeMap<_, _>>(), model, "case {case}: {steps:?}");
        assert_eq!(follower.known, everything(&store).await);
    }
    assert!(follower.loads > 0, "none looked away for too long: the test shows less than it says");
}

async fn a_follower_misses_nothing_while_others_write(place: Place) {
    const WRITERS: usize = 4;
    const ROUNDS: usize = 40;
    let store = place.with_group().await;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let store = store.clone();
        writers.spawn(async move {
            for round in 0..ROUNDS {
                // None comes back: a deletion that is missed stays missed.
                let (one, other) = (format!("{writer}-{}", round + 1), format!("{writer}-{round}"));
                let batch = Batch {
                    puts: vec![(cluster(&one), Expect::Any)],
                    deletes: vec![(cluster(&other).key, Expect::Any)],
                    ..Batch::default()
                };
                store.apply(&batch).await.unwrap().unwrap();
            }
        });
    }
    let mut follower = Follower::default();
    let mut watch = store.watch();
    let last = 1 + (WRITERS * ROUNDS) as i64;
    while follower.since < last {
        watch.wait_for(|newest| *newest > follower.since).await.unwrap();
        follower.follow(&store).await;
    }
    writers.join_all().await;
    assert_eq!(follower.known, everything(&store).await);
    assert_eq!(follower.loads, 0);
}

/// The plan of a statement, as the database tells it.
async fn plan(connection: &mut AnyConnection, sql: String, column: &str) -> String {
    let rows = sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).fetch_all(connection).await.unwrap();
    rows.iter().map(|row| row.try_get::<String, _>(column).unwrap()).collect::<Vec<_>>().join("\n")
}

/// Agents that begin ask for all deletions that are remembered below their own cluster. Thousands begin at once after a
/// restart, and each of them had every deletion of all clusters read.
async fn deletions_below_one_cluster_are_read_by_its_keys(place: Place) {
    const KIND: &str = "microsoft.kubernetesconfiguration/extensions";
    const ALL: i64 = 20_000;
    let store = place.with_group().await;
    let parent = cluster("c7").key;
    let others = parent.strip_suffix("c7").unwrap();
    // Of 2,000 clusters ten each.
    place
        .sql(&format!(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ALL}) \
             INSERT INTO tombstones (revision, resource_key, kind) \
             SELECT i, '{others}c' || (i % 2000) || '/providers/{KIND}/e' || i, '{KIND}' FROM n; \
             INSERT INTO tombstones (revision, resource_key, kind) VALUES (10000, '{parent}', '{CLUSTERS}'); \
             INSERT INTO tombstones (revision, resource_key, kind) VALUES (19000, '{parent}', 'another/kind'); \
             UPDATE revisions SET revision = {ALL}; ANALYZE"
        ))
        .await;
    let mut connection = place.connect().await;
    let (from, to) = (format!("'{parent}/'"), format!("'{parent}0'"));
    for (sql, types, values) in [
        (CHILDREN_GONE, "bigint, bigint, text, text, text", vec!["0", "20000", "'KIND'", &from, &to]),
        (CHILDREN_DELETED, "bigint, bigint, text, text, text", vec!["0", "20000", "'KIND'", &from, &to]),
        (PARENT_DELETED, "bigint, text, text", vec!["0", &from, "'KIND'"]),
    ] {
        let values: Vec<String> = values.iter().map(|value| value.replace("KIND", KIND)).collect();
        let plain = (1..).zip(&values).fold(sql.to_owned(), |sql, (n, value)| sql.replace(&format!("${n}"), value));
        let plans = if place.is_sqlite {
            vec![plan(&mut connection, format!("EXPLAIN QUERY PLAN {plain}"), "detail").await]
        } else {
            let generic =
                format!("DEALLOCATE ALL; SET plan_cache_mode = force_generic_plan; PREPARE s ({types}) AS {sql}");
            sqlx::raw_sql(sqlx::AssertSqlSafe(generic)).execute(&mut connection).await.unwrap();
            let of_any = format!("EXPLAIN EXECUTE s ({})", values.join(", "));
            vec![
                plan(&mut connection, format!("EXPLAIN {plain}"), "QUERY PLAN").await,
                plan(&mut connection, of_any, "QUERY PLAN").await,
            ]
        };
        for plan in plans {
            assert!(plan.contains("tombstones_by_kind"), "{sql}: {plan}");
            for whole in ["Seq Scan on tombstones", "tombstones_pkey", "autoindex_tombstones", "SCAN t"] {
                assert!(!plan.contains(whole), "{sql}: {plan}");
            }
        }
    }
    connection.close().await.unwrap();
    // What went with a former cluster of the name is left out.
    let page = store.changes_at(KIND, &parent, None, 100).await.unwrap();
    let told: Vec<i64> = page.changes.iter().map(Change::revision).collect();
    assert_eq!(told, [10_007, 12_007, 14_007, 16_007, 18_007]);
    assert!(page.changes.iter().all(|change| change.key().starts_with(&format!("{parent}/"))));
    let page = store.changes_at(KIND, &parent, Some(15_000), 100).await.unwrap();
    assert_eq!(page.changes.iter().map(Change::revision).collect::<Vec<_>>(), [16_007, 18_007]);
}
