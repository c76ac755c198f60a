//! What a client's certificate costs the gateway: once when the connection comes, and at each request on it. `bench run
//! --scenario tokens` measures the same in a report.

#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::{
    hint::black_box,
    time::{Duration, SystemTime},
};

use certs::{Authority, Peer, Validity};
use criterion::{Criterion, criterion_group, criterion_main};
use gateway::identity::{Access, Proof};

const CLUSTER: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/a-usual-name";

fn certificates(c: &mut Criterion) {
    let valid = Validity::for_duration(Duration::from_secs(3600));
    let authority = Authority::create("bench", valid).expect("an authority");
    let roots = authority.roots().expect("its certificate");
    let agent = authority.issue_agent(CLUSTER, valid).expect("an agent's certificate");
    let access = authority.issue_access(CLUSTER, "ann", valid).expect("an access certificate");
    let mut group = c.benchmark_group("certificate");
    for (name, shown) in [("agent, cold", &agent), ("access, cold", &access)] {
        let chain = shown.credentials().chain();
        group.bench_function(name, |b| b.iter(|| Peer::verify(black_box(chain), &roots, SystemTime::now())));
    }
    let proof = Proof { chain: access.credentials().chain().to_vec(), judged_by: roots.clone() };
    let judged = Access {
        cluster: CLUSTER.parse().expect("a cluster id"),
        name: "ann".to_owned(),
        holder: None,
        expires: valid.not_after,
        proof: Some(proof),
    };
    let other = Authority::create("the next one", valid).expect("an authority").roots().expect("its certificate");
    let both = roots.and(&other);
    assert!(judged.is_of(&roots) && judged.is_of(&both) && !judged.is_of(&other));
    group.bench_function("access, request", |b| b.iter(|| black_box(&judged).is_of(&roots)));
    group.bench_function("access, request after an authority was added", |b| {
        b.iter(|| black_box(&judged).is_of(&both));
    });
    group.finish();
}

criterion_group!(benches, certificates);
criterion_main!(benches);
