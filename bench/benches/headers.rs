//! What a request's headers cost on their way: the gateway's checks and what it takes out, the agent's admission, and
//! the fresh head in the user's name, of a small request and of a user with 300 groups.

#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::{hint::black_box, sync::Arc, time::SystemTime};

use agent::{
    config::Impersonation,
    roles::kube_aad_proxy::{
        admit::admit,
        impersonate::{Names, Principal, Subject, UpstreamHead},
    },
};
use auth::token::{Identity, testing::TestIssuer};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use gateway::request::headers;
use http::Version;
use tokio::runtime::Builder;

mod kubectl;

use kubectl::{head, sent};

/// Of a verified token with so many groups.
fn identity(groups: usize) -> Arc<Identity> {
    let (issuer, now) = (TestIssuer::new("https://issuer.test"), SystemTime::now());
    let names: Vec<_> = (0..groups).map(|n| format!("group-{n:0>90}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let (token, verifier) = (issuer.token("ann", &names, "bench", now), issuer.verifier());
    let runtime = Builder::new_current_thread().build().expect("a runtime without drivers");
    runtime.block_on(verifier.verify(&token, "bench", now)).expect("a good token")
}

fn translation(c: &mut Criterion) {
    for (name, token, groups) in [("small", 800, 2), ("300 groups", 40_000, 300)] {
        let mut group = c.benchmark_group(format!("headers/{name}"));
        let sent = sent(token);
        group.bench_function("gateway: check, strip", |b| {
            b.iter_batched(
                || sent.clone(),
                |mut headers| {
                    headers::check(Version::HTTP_2, &headers).expect("within limits");
                    headers::strip_request(&mut headers, false);
                    let asked = headers::impersonation(&mut headers).expect("nobody is asked for");
                    (headers, asked)
                },
                BatchSize::SmallInput,
            );
        });
        group.bench_function("agent: admit", |b| {
            b.iter_batched(|| head(sent.clone()), |head| admit(head).expect("a good request"), BatchSize::SmallInput);
        });
        let (identity, names) = (identity(groups), Names::new(&Impersonation::default()));
        group.bench_function("agent: impersonate", |b| {
            b.iter_batched(
                || admit(head(sent.clone())).expect("a good request"),
                |admitted| {
                    let subject = Subject::of(black_box(&identity), &names).expect("no reserved name");
                    UpstreamHead::new(admitted, &Principal::Impersonated(subject)).expect("within limits")
                },
                BatchSize::SmallInput,
            );
        });
        group.bench_function("gateway: strip an answer", |b| {
            b.iter_batched_ref(
                || sent.clone(),
                |headers| headers::strip_response(headers, false),
                BatchSize::SmallInput,
            );
        });
        group.finish();
    }
}

criterion_group!(benches, translation);
criterion_main!(benches);
