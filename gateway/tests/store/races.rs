//! Many at once: no update is lost, nobody is stuck, and who goes away in the middle leaves nothing half done.

use futures_util::poll;
use gateway::store::{
    Store,
    batch::{AtMost, Batch, Expect, Refused},
    protect::{ProtectError, Protector},
};
use serde_json::json;

use crate::place::{CLUSTERS, GROUP, Place, cluster, group};

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![
        two_writers_never_lose_an_update,
        one_name_is_won_once,
        of_two_that_exclude_each_other_one_is_kept,
        children_put_at_once_are_no_more_than_may_be,
        a_child_never_outlives_its_parent,
        a_caller_who_goes_away_leaves_nothing_half_done,
        of_two_keys_made_beside_nothing_the_first_is_kept,
    ]
}

/// Two stores, as of two processes.
async fn two(place: &Place) -> [Store; 2] {
    [place.with_group().await, place.open().await]
}

async fn two_writers_never_lose_an_update(place: Place) {
    const WRITERS: u64 = 4;
    const ROUNDS: u64 = 25;
    let stores = two(&place).await;
    stores[0].put(&cluster("a"), Expect::Absent).await.unwrap().unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let store = stores[writer as usize % 2].clone();
        tasks.spawn(async move {
            for _ in 0..ROUNDS {
                loop {
                    let mut it = store.get(&cluster("a").key).await.unwrap().unwrap();
                    it.body["n"] = json!(it.body["n"].as_u64().unwrap() + 1);
                    match store.put(&it, Expect::Revision(it.revision)).await.unwrap() {
                        Ok(_) => break,
                        Err(refused) => assert!(matches!(refused, Refused::Changed { found: Some(_), .. })),
                    }
                }
            }
        });
    }
    tasks.join_all().await;
    let body = stores[0].get(&cluster("a").key).await.unwrap().unwrap().body;
    assert_eq!(body["n"], json!(WRITERS * ROUNDS));
}

async fn one_name_is_won_once(place: Place) {
    const WRITERS: usize = 8;
    let stores = two(&place).await;
    for round in 0..10 {
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let store = stores[writer % 2].clone();
            tasks.spawn(async move { store.put(&cluster(&format!("{round}")), Expect::Absent).await.unwrap().is_ok() });
        }
        assert_eq!(tasks.join_all().await.into_iter().filter(|won| *won).count(), 1);
    }
}

/// Each was decided by there being nothing where the other one is to be.
async fn of_two_that_exclude_each_other_one_is_kept(place: Place) {
    let stores = two(&place).await;
    for round in 0..50 {
        let both = ["a", "b"].map(|name| cluster(&format!("{name}{round}")));
        let batch = |own: usize| Batch {
            puts: vec![(both[own].clone(), Expect::Absent)],
            as_read: vec![(both[1 - own].key.clone(), None)],
            ..Batch::default()
        };
        let (one, other) = (batch(0), batch(1));
        let (one, other) = tokio::join!(stores[0].apply(&one), stores[1].apply(&other));
        let refused = match (one.unwrap(), other.unwrap()) {
            (Ok(_), Err(refused)) | (Err(refused), Ok(_)) => refused,
            both => panic!("round {round}: {both:?}"),
        };
        assert!(matches!(refused, Refused::Changed { found: Some(_), .. }), "{refused:?}");
    }
}

async fn children_put_at_once_are_no_more_than_may_be(place: Place) {
    const WRITERS: usize = 8;
    const MOST: usize = 3;
    let stores = two(&place).await;
    for round in 0..10 {
        let parent = group(&format!("g{round}"));
        stores[0].put(&parent, Expect::Absent).await.unwrap().unwrap();
        let mut tasks = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let (store, parent) = (stores[writer % 2].clone(), parent.clone());
            tasks.spawn(async move {
                let child = crate::place::resource(CLUSTERS, &parent.key, &format!("{}/c/{writer}", parent.id));
                let bound = AtMost { kind: CLUSTERS.to_owned(), parent: parent.key, count: MOST as u64 };
                let batch = Batch { puts: vec![(child, Expect::Absent)], at_most: vec![bound], ..Batch::default() };
                match store.apply(&batch).await.unwrap() {
                    Ok(_) => true,
                    Err(refused) => {
                        assert!(matches!(refused, Refused::Full { .. }), "{refused:?}");
                        false
                    }
                }
            });
        }
        assert_eq!(tasks.join_all().await.into_iter().filter(|kept| *kept).count(), MOST, "round {round}");
        assert_eq!(stores[1].count_children(CLUSTERS, &parent.key).await.unwrap(), MOST as u64);
    }
}

async fn a_child_never_outlives_its_parent(place: Place) {
    let stores = two(&place).await;
    for _ in 0..20 {
        stores[0].put(&crate::place::group("g"), Expect::Any).await.unwrap().unwrap();
        let (child, group) = (cluster("a"), GROUP);
        let (put, deleted) = tokio::join!(stores[0].put(&child, Expect::Absent), stores[1].delete(group, Expect::Any));
        let put = put.unwrap().is_ok();
        assert_eq!(deleted.unwrap().unwrap(), if put { 2 } else { 1 });
        assert_eq!(stores[0].count(CLUSTERS, "").await.unwrap(), 0);
    }
}

async fn a_caller_who_goes_away_leaves_nothing_half_done(place: Place) {
    const ROUNDS: usize = 150;
    let store = place.with_group().await;
    let both = |n: usize| {
        let puts = ["a", "b"].map(|name| {
            let mut stored = cluster(name);
            stored.body = json!({"n": n});
            (stored, Expect::Any)
        });
        Batch { puts: puts.into(), ..Batch::default() }
    };
    store.apply(&both(0)).await.unwrap().unwrap();
    for n in 1..=ROUNDS {
        let batch = both(n);
        let mut abandoned = Box::pin(store.apply(&batch));
        // As far as it gets in so many turns.
        for _ in 0..n % 25 {
            if poll!(&mut abandoned).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(abandoned);
        let n_of = async |name| store.get(&cluster(name).key).await.unwrap().unwrap().body["n"].clone();
        // The next one gets its turn, and finds all of that batch or nothing.
        let before = store.put(&cluster("c"), Expect::Any).await.unwrap().unwrap();
        let (a, b) = (n_of("a").await, n_of("b").await);
        assert_eq!(a, b, "round {n}");
        assert_eq!(store.revision().await.unwrap(), before, "and nothing goes on behind it");
    }
}

/// Two gateways start for the first time, each with a key file of its own: what one seals the other could not read.
async fn of_two_keys_made_beside_nothing_the_first_is_kept(place: Place) {
    let stores = two(&place).await;
    let folder = tempfile::tempdir().unwrap();
    let paths = ["one.key", "two.key"].map(|name| folder.path().join(name));
    let keys = paths.each_ref().map(|path| Protector::open_or_create(path).unwrap());
    let keep = async |n: usize| stores[n].keep_key(&keys[n], &paths[n]).await.unwrap();
    let kept = tokio::join!(keep(0), keep(1));
    let winner = usize::from(kept.0.is_some());
    let refused = [kept.0, kept.1].into_iter().flatten().collect::<Vec<_>>();
    assert!(matches!(&refused[..], [ProtectError::Exchanged { .. }]), "{refused:?}");
    assert_eq!(place.texts("SELECT key_id FROM protecting_key").await, [keys[winner].newest()]);
    assert!(keep(winner).await.is_none() && keep(1 - winner).await.is_some(), "and stays so");
}
