//! 10,000 clusters. How long it takes is shown and decides nothing; that every question has an index does (a test
//! beside the statements).

use std::time::Instant;

use gateway::store::{
    batch::{Batch, Expect},
    resources::{PAGE_ROWS, Stored},
};
use serde_json::json;

use crate::place::{CLUSTERS, GROUP, Place, cluster, since};

const MANY: usize = 10_000;

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![ten_thousand_clusters_are_paged_and_found]
}

async fn ten_thousand_clusters_are_paged_and_found(place: Place) {
    let store = place.with_group().await;
    let stored = |n: usize| {
        let mut stored = cluster(&format!("c{n}"));
        stored.body =
            json!({"tags": {"n": n.to_string()}, "properties": {"agentPublicKeyCertificate": "x".repeat(700)}});
        (stored, Expect::Absent)
    };
    let begun = Instant::now();
    store.apply(&Batch { puts: (0..MANY).map(stored).collect(), ..Batch::default() }).await.unwrap().unwrap();
    let written = begun.elapsed();
    let begun = Instant::now();
    let mut all: Vec<Stored> = Vec::new();
    loop {
        let after = all.last().map(|last| last.key.clone()).unwrap_or_default();
        let page = store.page(CLUSTERS, GROUP, &after, PAGE_ROWS).await.unwrap();
        if page.is_empty() {
            break;
        }
        all.extend(page);
    }
    let paged = begun.elapsed();
    assert_eq!(all.len(), MANY);
    assert!(all.is_sorted_by(|a, b| a.key < b.key));
    assert_eq!(store.count(CLUSTERS, GROUP).await.unwrap(), MANY as u64);
    let begun = Instant::now();
    for n in (0..MANY).step_by(100) {
        assert_eq!(store.get(&stored(n).0.key).await.unwrap().unwrap().body["tags"]["n"], n.to_string());
    }
    let got = begun.elapsed() / (MANY / 100) as u32;
    let begun = Instant::now();
    store.page(CLUSTERS, GROUP, &all[MANY / 2].key, 100).await.unwrap();
    let page = begun.elapsed();
    assert_eq!(since(&store, 0).await.len(), MANY + 1);
    assert_eq!(store.delete(GROUP, Expect::Any).await.unwrap(), Ok(MANY as u64 + 1));
    println!("{MANY} written in {written:?}, paged in {paged:?}; 100 from the middle in {page:?}; each got in {got:?}");
}
