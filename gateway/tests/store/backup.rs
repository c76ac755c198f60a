//! A copy that is made while others write is the whole store of one moment.

use std::{
    collections::BTreeMap,
    os::unix::fs::PermissionsExt as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use gateway::store::{
    Store, StoreError,
    batch::{Batch, Expect},
    resources::PAGE_ROWS,
};
use serde_json::json;

use crate::place::{CLUSTERS, GROUP, Place, cluster};

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![
        a_backup_while_writing_is_the_store_of_one_revision,
        a_backup_replaces_nothing_and_only_its_owner_reads_it,
    ]
}

/// What each revision wrote: two keys and a number.
type Written = Arc<Mutex<BTreeMap<i64, ([String; 2], u64)>>>;

async fn write(store: Store, writer: u64, written: Written, stop: Arc<AtomicBool>) {
    let mut n = 0;
    while !stop.load(Ordering::Relaxed) {
        n += 1;
        let keys = [n % 5, 5 + n % 7].map(|of| cluster(&format!("{writer}-{of}")));
        let puts = keys.clone().map(|mut stored| {
            stored.body = json!({"n": n});
            (stored, Expect::Any)
        });
        let applied = store.apply(&Batch { puts: puts.into(), ..Batch::default() }).await.unwrap().unwrap();
        written.lock().unwrap().insert(applied.revision, (keys.map(|stored| stored.key), n));
    }
}

async fn a_backup_while_writing_is_the_store_of_one_revision(place: Place) {
    const BACKUPS: usize = 8;
    let store = place.with_group().await;
    let (written, stop) = (Written::default(), Arc::new(AtomicBool::new(false)));
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..3 {
        writers.spawn(write(store.clone(), writer, Arc::clone(&written), Arc::clone(&stop)));
    }
    let mut watch = store.watch();
    let mut copies = Vec::new();
    for n in 0..BACKUPS {
        let from = store.revision().await.unwrap();
        let to = place.folder.path().join(format!("copy {n}.db"));
        store.backup(&to).await.unwrap();
        copies.push((from, to));
        // They do write meanwhile.
        watch.wait_for(|newest| *newest > from + 3).await.unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    writers.join_all().await;
    let written = written.lock().unwrap().clone();
    for (from, copy) in copies {
        let restored = Store::open_file(&copy).await.unwrap();
        let of = restored.revision().await.unwrap();
        assert!(of >= from, "what was acknowledged before is in it");
        let mut expected: BTreeMap<&str, (i64, u64)> = BTreeMap::new();
        for (revision, (keys, n)) in written.range(..=of) {
            expected.extend(keys.iter().map(|key| (key.as_str(), (*revision, *n))));
        }
        let found = restored.page(CLUSTERS, GROUP, "", PAGE_ROWS).await.unwrap();
        let found = found.iter().map(|it| (it.key.as_str(), (it.revision, it.body["n"].as_u64().unwrap()))).collect();
        assert_eq!(expected, found);
        // It goes on from there as the store would have.
        assert_eq!(restored.put(&cluster("later"), Expect::Absent).await.unwrap(), Ok(of + 1));
        restored.close().await;
    }
}

async fn a_backup_replaces_nothing_and_only_its_owner_reads_it(place: Place) {
    let store = place.with_group().await;
    let to = place.folder.path().join("copy.db");
    // What an interrupted one left is no obstacle.
    std::fs::write(place.folder.path().join("copy.db.partial"), "half a backup").unwrap();
    store.backup(&to).await.unwrap();
    for file in [to.clone(), gateway::store::sqlite_file(&place.url).unwrap()] {
        assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    }
    store.put(&cluster("later"), Expect::Absent).await.unwrap().unwrap();
    let error = store.backup(&to).await.unwrap_err();
    assert!(matches!(error, StoreError::File { .. }), "{error}");
    let copy = Store::open_file(&to).await.unwrap();
    assert_eq!(copy.get(GROUP).await.unwrap(), store.get(GROUP).await.unwrap());
    assert_eq!(copy.get(&cluster("later").key).await.unwrap(), None);
}
