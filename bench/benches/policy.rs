//! The decisions that every request waits for: on grants of the gateway's configuration, and with 100,000 role
//! assignments on 10,000 clusters, under 20 microseconds each.

#![allow(clippy::print_stderr, reason = "a figure beside the times")]
#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::{
    collections::{BTreeSet, HashSet},
    hint::black_box,
    sync::Arc,
    time::SystemTime,
};

use auth::{
    rbac::{
        Action, Assignment, Plane, Policy, Scope, Window,
        kubernetes::{Target, data_action},
        role::built_in,
    },
    token::testing::TestIssuer,
};
use criterion::{Criterion, criterion_group, criterion_main};
use gateway::{
    config::{Grant, GrantScope},
    identity::Principal,
};
use tokio::runtime::Builder;
use types::ids::ClusterId;

const CLUSTERS: usize = 10_000;
const ASSIGNMENTS: usize = 100_000;
const USERS: usize = 20_000;
/// Groups of a user in a large company.
const GROUPS: usize = 200;
const NOW: i64 = 1_800_000_000;

fn cluster(n: usize) -> String {
    let (subscription, group) = (n % 10, n % 500);
    format!(
        "/subscriptions/s{subscription}/resourceGroups/g{group}/providers/Microsoft.Kubernetes/connectedClusters/c{n}"
    )
}

/// Assignments at namespaces, clusters, resource groups and a few subscriptions, of all built-in roles, some with a
/// window.
fn policy() -> Policy {
    let roles = built_in();
    let assignment = |n: usize| {
        let cluster = cluster(n % CLUSTERS);
        let scope = match n % 20 {
            0..10 => format!("{cluster}/namespaces/team-{}", n % 7),
            10..17 => cluster,
            17..19 => format!("/subscriptions/s{}/resourceGroups/g{}", n % 10, n % 500),
            _ => format!("/subscriptions/s{}", n % 10),
        };
        Assignment {
            id: n.to_string().into(),
            // The first principals are groups with many assignments each.
            principal: if n.is_multiple_of(3) {
                format!("group-{}", n % GROUPS)
            } else {
                format!("user-{}", n % USERS)
            }
            .into(),
            scope: scope.parse().expect("a scope"),
            role: Arc::clone(&roles[n % roles.len()].role),
            window: if n.is_multiple_of(11) { Window { starts: Some(0), ends: Some(NOW) } } else { Window::default() },
        }
    };
    (0..ASSIGNMENTS).map(assignment).collect()
}

fn decisions(c: &mut Criterion) {
    let policy = policy();
    assert_eq!(policy.len(), ASSIGNMENTS);
    let mut everyone: Vec<String> = (0..GROUPS).map(|n| format!("group-{n}")).collect();
    everyone.push("user-1".to_owned());
    let strangers: Vec<String> = (0..GROUPS).map(|n| format!("other-{n}")).collect();
    let at = |n: usize| -> Scope { format!("{}/namespaces/team-0", cluster(n)).parse().expect("a scope") };
    let secrets = Target::Resource { group: "", resource: "secrets", subresource: "", safe: true };
    let reads = data_action("get", secrets).expect("a verb of Kubernetes");
    // No role has it, so that everything is looked at.
    let nobody = Action::new("Contoso.Nothing/of/this/action");
    let most = (0..CLUSTERS).map(|n| policy.examined(&everyone, &at(n))).max().unwrap_or_default();
    eprintln!("a decision for 200 groups looks at {most} of {ASSIGNMENTS} assignments at most");
    let mut group = c.benchmark_group("policy");
    for (name, principals, plane, action) in [
        ("200 groups, denied after all of them", &everyone, Plane::Data, &nobody),
        ("200 groups, secrets", &everyone, Plane::Data, &reads),
        ("200 groups without any role", &strangers, Plane::Control, &nobody),
    ] {
        let scopes: Vec<Scope> = (0..64).map(|n| at(n * 151 % CLUSTERS)).collect();
        let mut next = 0;
        group.bench_function(name, |b| {
            b.iter(|| {
                next = (next + 1) % scopes.len();
                black_box(policy.decide(black_box(principals), plane, action, &scopes[next], NOW)).is_ok()
            });
        });
    }
    let write = Action::new("Microsoft.Kubernetes/connectedClusters/write");
    let one = ["user-16".to_owned()];
    let scope: Scope = cluster(16).parse().expect("a scope");
    group.bench_function("one user, a write", |b| {
        b.iter(|| black_box(policy.decide(black_box(&one), Plane::Control, &write, &scope, NOW)).is_ok());
    });
    let mut changed = policy.clone();
    group.bench_function("an assignment more and less, while another policy is in use", |b| {
        let extra = Assignment {
            id: "extra".into(),
            principal: "group-0".into(),
            scope: scope.clone(),
            role: Arc::clone(&built_in()[0].role),
            window: Window::default(),
        };
        b.iter(|| {
            changed.insert(extra.clone());
            changed.remove("group-0", &scope, "extra");
        });
    });
    group.finish();
}

/// A user with so many groups.
fn user(groups: usize) -> Principal {
    let (issuer, now) = (TestIssuer::new("https://issuer.test"), SystemTime::now());
    let names: Vec<_> = (0..groups).map(|n| format!("group-{n:0>90}")).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let (token, verifier) = (issuer.token("ann", &names, "bench", now), issuer.verifier());
    let runtime = Builder::new_current_thread().build().expect("a runtime without drivers");
    Principal::User(runtime.block_on(verifier.verify(&token, "bench", now)).expect("a good token"))
}

/// Each of one user and of two groups, in one cluster.
fn grants(count: usize) -> gateway::policy::Policy {
    let grant = |n: usize| Grant {
        cluster: GrantScope::Cluster(cluster(n).parse().expect("a cluster id")),
        users: BTreeSet::from([format!("user-{n}")]),
        groups: BTreeSet::from([format!("team-{n:0>90}"), format!("group-{n:0>90}")]),
    };
    gateway::policy::Policy::new((0..count).map(grant).collect(), HashSet::from(["mallory".to_owned()]))
}

fn at_the_gateway(c: &mut Criterion) {
    let mut group = c.benchmark_group("grants");
    for (count, groups) in [(10, 2), (10, 300), (1000, 2), (1000, 300)] {
        let (policy, user) = (grants(count), user(groups));
        let cluster: ClusterId = cluster(1).parse().expect("a cluster id");
        assert!(policy.decide(&user, Some(&cluster)).is_ok());
        group.bench_function(format!("{count} grants, {groups} groups"), |b| {
            b.iter(|| policy.decide(black_box(&user), Some(&cluster)));
        });
    }
    group.finish();
}

criterion_group!(policies, at_the_gateway, decisions);
criterion_main!(policies);
