//! The worst input of each piece of work whose size a caller or a tenant chooses, within the bounds on it: none holds
//! up a thread that serves requests for more than 5 ms. What takes longer is done on a thread of its own, and says so
//! here.
//!
//! Not here: answers of webhooks, of which the status is read and up to 64 KiB are thrown away; kubeconfigs, which the
//! command and the agent read from files of the person who runs them.

#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::{fmt::Write as _, hint::black_box, sync::Arc, time::SystemTime};

use auth::{
    kubernetes::RequestInfo,
    rbac::{
        Action, Assignment, Plane, Policy, Role, Scope, Window,
        budget::DECISION_STEPS,
        call::Asking,
        role::{RawPermission, built_in},
        snapshot::Document,
    },
};
use certs::{AgentRequest, Authority, Peer, PeerError, Validity};
use criterion::{Criterion, criterion_group, criterion_main};
use gateway::{
    api::{body, route},
    resources::{fleet_assignment, kind, schema},
    store::resources::Stored,
};
use http::Method;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose, SanType,
};
use serde_json::{Value, json};
use types::ids::ClusterId;

const CLUSTER: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c";
/// Bytes of a body of the resource API that is read where its request is served, and of the longest.
const SHORT: usize = 32 * 1024;
const LONG: usize = 256 * 1024;
/// Bytes of a request for a certificate at most.
const REQUEST_BYTES: usize = 8 * 1024;

/// A role of so many wildcards that match nothing before their end, of the longest patterns that are taken.
fn role(number: usize, wildcards: usize, stars: usize) -> Arc<Role> {
    let one = |n: usize| {
        let part = format!("*{}", "a".repeat(500 / stars - 1));
        format!("a/{}b{n}", part.repeat(stars - 1))
    };
    let patterns: Vec<String> = (0..wildcards).map(one).collect();
    let raw = RawPermission { actions: patterns.clone(), data_actions: patterns, ..RawPermission::default() };
    Arc::new(Role::new(&format!("r{number}"), &[raw]).expect("patterns"))
}

fn assignment(number: usize, role: &Arc<Role>, scope: &str) -> Assignment {
    Assignment {
        id: number.to_string().into(),
        principal: "ann".into(),
        scope: scope.parse().expect("a scope"),
        role: Arc::clone(role),
        window: Window::default(),
    }
}

fn decisions(c: &mut Criterion) {
    let namespace = format!("{CLUSTER}/namespaces/dev");
    let cluster: ClusterId = CLUSTER.parse().expect("an id");
    let mut group = c.benchmark_group("worst decision");
    group.sample_size(20);
    for (name, roles, wildcards, stars) in [
        ("2 roles of 480 wildcards", 2, 480, 2),
        ("100 roles of 200 wildcards, 8 times *", 100, 200, 8),
        ("100 roles of 480 wildcards, 200 times *", 100, 480, 200),
        ("10,000 roles of one wildcard", 10_000, 1, 2),
    ] {
        let policy: Policy = (0..roles).map(|n| assignment(n, &role(n, wildcards, stars), &namespace)).collect();
        let action = Action::new(&format!("a/{}", "a".repeat(500)));
        let scope: Scope = namespace.parse().expect("a scope");
        group.bench_function(format!("{name}: {DECISION_STEPS} steps at most"), |b| {
            b.iter(|| policy.decide(black_box(&["ann"]), Plane::Data, &action, &scope, 0).is_ok());
        });
        group.bench_function(format!("{name}: below"), |b| {
            b.iter(|| policy.decide_below(black_box(&["ann"]), Plane::Data, &action, &Scope::root(), 0));
        });
        let principals = ["ann".to_owned()];
        let asking = Asking { policy: &policy, principals: &principals, cluster: &cluster, now: 0 };
        for (what, path) in [
            ("a call", format!("/apis/{}/v1/namespaces/dev/{}/x", "a".repeat(253), "a".repeat(63))),
            ("a request for a certificate", "/apis/certificates.k8s.io/v1/certificatesigningrequests".to_owned()),
        ] {
            let info = RequestInfo::parse(&Method::POST, &path, None);
            group.bench_function(format!("{name}: {what}"), |b| b.iter(|| asking.call(black_box(&info), &path, false)));
        }
        let mut asker = policy.asker(&["ann"], Plane::Data, action.clone(), 0);
        group.bench_function(format!("{name}: a row of a list"), |b| b.iter(|| asker.may(black_box(&scope))));
    }
    group.finish();
}

fn texts(c: &mut Criterion) {
    let mut group = c.benchmark_group("worst text");
    group.sample_size(20);
    for (name, path) in [("of slashes", "/".repeat(1 << 20)), ("of names", "/apis/a".repeat((1 << 20) / 7))] {
        group.bench_function(format!("a call's path {name}, 1 MiB"), |b| {
            b.iter(|| RequestInfo::parse(&Method::GET, black_box(&path), None));
        });
        group.bench_function(format!("a path {name} of the resource API, 1 MiB"), |b| {
            b.iter(|| route::parse(&Method::GET, black_box(&path)).is_ok());
        });
    }
    // As many parameters as are taken, and one as long as fits.
    for (name, query) in [
        ("10,000 parameters", "w%61tch=;&".repeat(10_000)),
        ("a parameter of 1 MiB", format!("watc={}", "%41".repeat((1 << 20) / 3))),
        ("a name of 1 MiB", "%41".repeat((1 << 20) / 3)),
    ] {
        group.bench_function(format!("a call's query with {name}"), |b| {
            b.iter(|| RequestInfo::parse(&Method::GET, "/api/v1/pods", black_box(Some(&query))));
        });
    }
    let deep = format!("{CLUSTER}{}", "/providers/a/b/c".repeat(120));
    group.bench_function("an id of 2 KiB", |b| b.iter(|| route::parse(&Method::GET, black_box(&deep)).is_ok()));
    let filter = "a eq 'b' and ".repeat(70) + "a eq 'c'";
    group.bench_function("a filter of 1 KiB", |b| {
        b.iter(|| gateway::resources::filter::all(black_box(&filter), |_| Some(true)).is_ok());
    });
    group.finish();
}

fn bodies(c: &mut Criterion) {
    let names = |bytes: usize| {
        let mut text = String::from("{");
        for n in 0.. {
            if text.len() > bytes - 16 {
                break;
            }
            let _ = write!(text, "\"{n:x}\":0,");
        }
        text.pop();
        text + "}"
    };
    let lists = |bytes: usize| format!("{{\"a\":[{}[]]}}", "[[[[]]]],".repeat((bytes - 16) / 9));
    let mut group = c.benchmark_group("worst body");
    group.sample_size(20);
    for (where_, bytes) in [("where it is served", SHORT), ("on a thread of its own", LONG)] {
        for (name, text) in [("of names", names(bytes)), ("of lists", lists(bytes))] {
            group.bench_function(format!("{name}, {bytes} bytes, {where_}"), |b| {
                b.iter(|| body::parse(black_box(text.as_bytes())).is_ok());
            });
        }
    }
    // Such rows are read and written beside the thread that serves their request; who reads several yields between them.
    for (name, text) in [("of names", names(LONG)), ("of lists", lists(LONG))] {
        let kept: Value = serde_json::from_str(&text).expect("a document");
        group.bench_function(format!("a row {name}, {LONG} bytes, read"), |b| {
            b.iter(|| serde_json::from_str::<Value>(black_box(&text)).is_ok());
        });
        group.bench_function(format!("a row {name}, {LONG} bytes, written"), |b| {
            b.iter(|| black_box(&kept).to_string())
        });
    }
    let cluster = kind("Microsoft.Kubernetes/connectedClusters").expect("a kind");
    let unknown = body::parse(names(LONG).as_bytes()).expect("an object");
    group.bench_function("a check of 256 KiB of unknown names", |b| {
        b.iter(|| schema::check(cluster.schema(), black_box(&unknown)).is_ok());
    });
    let roles = kind("Microsoft.Authorization/roleDefinitions").expect("a kind");
    let permissions: Vec<_> = (0..1000).map(|_| serde_json::json!({"actions": ["a/b", 7], "x": 1})).collect();
    let many = serde_json::json!({"properties": {"permissions": permissions}});
    let many = many.as_object().expect("an object");
    group.bench_function("a check of 1,000 objects with faults", |b| {
        b.iter(|| schema::check(roles.schema(), black_box(many)).is_ok());
    });
    for (what, kind_name, body) in longest() {
        let kind = kind(kind_name).expect("a kind");
        let text = body.to_string();
        assert!((LONG - 40 * 1024..=LONG).contains(&text.len()), "{what}: {}", text.len());
        group.bench_function(
            format!("{what} of {} bytes, read and checked, on a thread of its own", text.len()),
            |b| {
                b.iter(|| {
                    let body = body::parse(black_box(text.as_bytes())).expect("an object");
                    schema::check(kind.schema(), &body).expect("a valid one")
                });
            },
        );
    }
    group.finish();
}

/// Valid bodies of almost 256 KiB, of as many values as fit.
fn longest() -> [(&'static str, &'static str, Value); 3] {
    const EXTENSIONS: &str = "Microsoft.KubernetesConfiguration/extensions";
    const FLUX: &str = "Microsoft.KubernetesConfiguration/fluxConfigurations";
    let extension = |room: usize| {
        let each = "a".repeat(room / 1000 - 16);
        let settings: serde_json::Map<_, _> = (100_000..101_000).map(|n| (n.to_string(), json!(each))).collect();
        json!({"extensionType": "example.web", "configurationSettings": settings})
    };
    let flux = |room: usize| {
        let each: serde_json::Map<_, _> = (0..room / 1200).map(|n| (format!("v{n:04}"), json!(""))).collect();
        let one = json!({"path": "./a", "prune": true, "postBuild": {"substitute": each}});
        let kustomizations: serde_json::Map<_, _> = (10..110).map(|n| (format!("k{n}"), one.clone())).collect();
        json!({
            "sourceKind": "GitRepository", "namespace": "flux",
            "gitRepository": {"url": "https://example.com/a", "repositoryRef": {"branch": "main"}},
            "kustomizations": kustomizations,
        })
    };
    let names: serde_json::Map<_, _> = (10..60).map(|n| (format!("{n}{}", "a".repeat(510)), json!("b"))).collect();
    let template = json!({"type": FLUX, "name": "web", "properties": flux(LONG - 40 * 1024)});
    let fleet = json!({"properties": {"selector": {"tags": names}, "template": template}});
    [
        ("an extension", EXTENSIONS, json!({"properties": extension(LONG - 4 * 1024)})),
        ("a flux configuration", FLUX, json!({"properties": flux(LONG - 12 * 1024)})),
        ("a fleet assignment", "Towline.Fleet/assignments", fleet),
    ]
}

/// A selector of 50 tags beside 1,000 clusters of 50 tags each, all of names that are alike but for their ends: a few
/// clusters at a time.
fn selectors(c: &mut Criterion) {
    let tags: serde_json::Map<_, _> = (0..50).map(|n| (format!("{}{n}", "Ä".repeat(250)), json!("b"))).collect();
    let wanted: serde_json::Map<_, _> = tags.iter().map(|(name, _)| (name.to_lowercase(), json!("b"))).collect();
    let body = json!({
        "fleet": {"template": 1, "resumed": 0},
        "properties": {
            "selector": {"tags": wanted},
            "template": {"type": "Microsoft.KubernetesConfiguration/extensions", "name": "web", "properties": {}},
        },
    });
    let id = "/subscriptions/s/resourceGroups/g/providers/Towline.Fleet/assignments/all".to_owned();
    let stored = Stored {
        key: id.to_lowercase(),
        kind: "towline.fleet/assignments".to_owned(),
        parent: String::new(),
        id,
        revision: 1,
        body,
        protected: None,
    };
    let assignment = fleet_assignment::Assignment::of(&stored).expect("an assignment");
    let tags = Value::Object(tags);
    assert!(assignment.selects(CLUSTER, Some(&tags)));
    let mut group = c.benchmark_group("worst selector");
    group.sample_size(20);
    group.bench_function("50 tags of 512 bytes beside 4 clusters of 50, then others have their turn", |b| {
        b.iter(|| (0..4).all(|_| assignment.selects(CLUSTER, black_box(Some(&tags)))));
    });
    group.finish();
}

/// Put together at the gateway and read at the agent on threads of their own.
fn documents(c: &mut Criterion) {
    let cluster: ClusterId = CLUSTER.parse().expect("an id");
    let viewer = &built_in().iter().find(|role| role.name == "Azure Arc Kubernetes Viewer").expect("a role").role;
    let heavy: Vec<Arc<Role>> = (0..20).map(|n| role(n, 500, 2)).collect();
    let of_heavy =
        heavy.iter().enumerate().map(|(n, role)| assignment(n, role, &format!("{CLUSTER}/namespaces/heavy")));
    let of_viewers = (0..20_000).map(|n| assignment(n, viewer, &format!("{CLUSTER}/namespaces/n{}", n % 1000)));
    let all: Vec<Assignment> = of_heavy.chain(of_viewers).collect();
    let mut group = c.benchmark_group("worst document, on a thread of its own");
    group.sample_size(10);
    group.bench_function("20,020 assignments, put together and made to fit", |b| {
        b.iter(|| {
            let mut document = Document::new(&cluster, 1, true, &all);
            document.fit()
        });
    });
    let mut document = Document::new(&cluster, 1, true, &all);
    document.fit();
    let text = serde_json::to_string(&document).expect("a document");
    group.bench_function("read", |b| {
        b.iter(|| {
            serde_json::from_str::<Document>(black_box(&text)).is_ok_and(|document| document.policy(&cluster).is_ok())
        });
    });
    group.finish();
}

/// Whoever connects shows a chain, and whoever has an onboarding key sends a request for a certificate.
fn certificates(c: &mut Criterion) {
    const NAME: &str = "bench";
    /// Of a chain, the own certificate among them.
    const CHAIN: usize = 4;
    let authority = Authority::create(NAME, Validity::days(1)).expect("an authority");
    let roots = authority.roots().expect("its certificate");
    // Authorities by the name of the one that is trusted, each with another key: any of them may have issued any other.
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, NAME);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let fake =
        || CertifiedIssuer::self_signed(params.clone(), KeyPair::generate().expect("a key")).expect("a certificate");
    let fakes: Vec<_> = (1..CHAIN).map(|_| fake()).collect();
    let mut own = CertificateParams::default();
    own.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let own = own.signed_by(&KeyPair::generate().expect("a key"), &fakes[0]).expect("a certificate");
    let mut chain = vec![own.der().clone()];
    chain.extend(fakes.iter().map(|fake| fake.der().clone()));
    let refused = Peer::verify(&chain, &roots, SystemTime::now());
    assert!(matches!(refused, Err(PeerError::Chain(_) | PeerError::UnknownIssuer)), "{refused:?}");
    let mut group = c.benchmark_group("worst certificate");
    group.sample_size(20);
    group.bench_function(format!("a chain of {CHAIN} that seem to have issued each other"), |b| {
        b.iter(|| Peer::verify(black_box(&chain), &roots, SystemTime::now()).is_err());
    });

    let key = KeyPair::generate().expect("a key");
    let request = |names: usize| {
        let mut params = CertificateParams::default();
        params.subject_alt_names =
            (0..names).map(|n| SanType::URI(format!("a:{n}").try_into().expect("a text"))).collect();
        params.serialize_request(&key).expect("a request").der().to_vec()
    };
    let names = (1..).take_while(|n| request(n * 50).len() <= REQUEST_BYTES).last().unwrap_or(1) * 50;
    let request = request(names);
    group.bench_function(format!("a request of {} bytes with {names} names", request.len()), |b| {
        b.iter(|| AgentRequest::read(black_box(&request), CLUSTER, &[]).is_err());
    });
    group.finish();
}

criterion_group!(worst, decisions, texts, bodies, selectors, documents, certificates);
criterion_main!(worst);
