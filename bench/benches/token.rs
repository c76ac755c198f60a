//! The token check that every request waits for, at the gateway and again at the agent: kept decisions are to take at
//! most 2 microseconds, an RS256 token that is new 80. `bench run --scenario tokens` measures the same for
//! `bench check`.

#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::{hint::black_box, time::SystemTime};

use auth::token::{
    RawIssuer, Verifier,
    testing::{TestIssuer, TestKey, verifier},
};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use serde_json::json;
use tokio::runtime::{Builder, Runtime};

const URL: &str = "https://issuer.test";
const AUDIENCE: &str =
    "towline:cluster:/subscriptions/s/resourcegroups/g/providers/microsoft.kubernetes/connectedclusters/c";

fn runtime() -> Runtime {
    Builder::new_current_thread().build().expect("a runtime without drivers")
}

/// A token of about 1 KB, or of 40 KB with so many groups.
fn token(issuer: &TestIssuer, subject: &str, groups: usize) -> String {
    let mut claims = issuer.claims(subject, AUDIENCE, SystemTime::now());
    claims["groups"] = (0..groups).map(|n| format!("group-{n:0>90}")).collect();
    claims["fill"] = json!("x".repeat(if groups == 0 { 260 } else { 0 }));
    issuer.mint(&claims)
}

/// A verifier that has decided nothing yet.
fn fresh(issuer: &TestIssuer) -> Verifier {
    verifier(vec![issuer.fixed(RawIssuer::new("test", URL))])
}

fn verification(c: &mut Criterion) {
    let runtime = runtime();
    let mut group = c.benchmark_group("token");
    for (algorithm, key) in [("RS256", TestKey::rs256("k1", 0)), ("ES256", TestKey::es256("k1"))] {
        let issuer = TestIssuer { url: URL.to_owned(), keys: vec![key] };
        for (size, groups) in [("1 KB", 0), ("300 groups", 300)] {
            let token = token(&issuer, "ann", groups);
            let verify = |verifier: &Verifier| {
                runtime.block_on(verifier.verify(black_box(&token), AUDIENCE, SystemTime::now())).expect("a good token")
            };
            let known = fresh(&issuer);
            verify(&known);
            group.bench_function(format!("{algorithm}, {size}, cached"), |b| b.iter(|| verify(&known)));
            group.bench_function(format!("{algorithm}, {size}, cold"), |b| {
                b.iter_batched_ref(|| fresh(&issuer), |verifier| verify(verifier), BatchSize::SmallInput);
            });
        }
    }
    group.finish();
}

criterion_group!(benches, verification);
criterion_main!(benches);
