//! What a hostile or broken gateway can do: an apiserver that is a map, and a gateway that says what the test wants.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use ::catalogue::{
    digest::Sha256,
    index::{CatalogueId, Index, Release},
    key::SigningKey,
    signature::Signatures,
    testing,
};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use serde_json::json;
use types::agent_api::{
    CatalogueIndex, Object, ObjectState, ObjectStatuses, ObjectStatusesAnswer, Objects, ProtectedQuestion,
    ProtectedSettings, encode,
};

use super::{
    Engine, ExtensionManager, Extensions,
    state::{Fault, Problem},
    store::Store,
};
use crate::{
    config,
    identity::clock::SystemClock,
    roles::{
        catalogue::{
            Catalogue, Charts, Pinned,
            gateway::{Asked, Gateway, Library},
        },
        health::Health,
        objects::{Kind as _, follow::Follow, report::Report, testing::Map},
    },
    tunnel::api::{ApiError, Refused},
};

const CLUSTER: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c";
const KIND: &str = "Microsoft.KubernetesConfiguration/extensions";

/// A store on an apiserver that is this map.
fn store(map: &Map) -> Store {
    Store::new(map.client())
}

/// A gateway that says what it was told to.
#[derive(Default)]
struct Scripted {
    pages: Mutex<VecDeque<Objects>>,
    index: Mutex<Option<CatalogueIndex>>,
    charts: Mutex<HashMap<Sha256, Bytes>>,
    /// What is said of a chart that is not among them.
    no_chart: Mutex<Option<Refused>>,
    told: Mutex<Vec<ObjectStatuses>>,
    /// From where objects were asked for.
    asked: Mutex<Vec<Option<i64>>>,
    unknown: Mutex<Vec<String>>,
    gone: bool,
}

impl Gateway for Scripted {
    fn up(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    fn objects<'a>(&'a self, kind: &'a str, after: Option<i64>) -> Asked<'a, Option<Objects>> {
        assert_eq!(kind, KIND);
        self.asked.lock().unwrap().push(after);
        let page = self.pages.lock().unwrap().pop_front();
        Box::pin(async move {
            match page {
                Some(page) => Ok(Some(page)),
                None => std::future::pending().await,
            }
        })
    }

    fn protected<'a>(&'a self, question: &'a ProtectedQuestion) -> Asked<'a, ProtectedSettings> {
        Box::pin(async move {
            if self.gone {
                let (code, message) = ("ProtectedSettingsGone".to_owned(), "gone".to_owned());
                return Err(ApiError::Refused(Refused { status: 410, code, message, retry_after: None }));
            }
            Ok(ProtectedSettings { settings: [("password".to_owned(), question.protected.clone())].into() })
        })
    }

    fn statuses<'a>(&'a self, statuses: &'a ObjectStatuses) -> Asked<'a, ObjectStatusesAnswer> {
        self.told.lock().unwrap().push(statuses.clone());
        let unknown = self.unknown.lock().unwrap().clone();
        Box::pin(async move { Ok(ObjectStatusesAnswer { unknown, ..ObjectStatusesAnswer::default() }) })
    }
}

impl Library for Scripted {
    fn catalogue(&self, _: Option<Sha256>) -> Asked<'_, Option<CatalogueIndex>> {
        let index = self.index.lock().unwrap().clone();
        Box::pin(async move { Ok(index) })
    }

    fn chart(&self, sha256: Sha256) -> Asked<'_, Bytes> {
        let bytes = self.charts.lock().unwrap().get(&sha256).cloned();
        let refused = self.no_chart.lock().unwrap().clone().map(ApiError::Refused);
        Box::pin(async move { bytes.ok_or_else(|| refused.unwrap_or(ApiError::Unreachable("no chart".to_owned()))) })
    }
}

fn object(name: &str, generation: i64) -> Object {
    Object {
        id: format!("{CLUSTER}/providers/{KIND}/{name}"),
        kind: KIND.to_owned(),
        generation,
        spec: Some(json!({"extensionType": "example.web"})),
        deleting: false,
        protected: None,
        operation: None,
        principal_id: None,
    }
}

fn page(position: i64, whole: bool, more: bool, objects: Vec<Object>) -> Objects {
    Objects { position, identity: None, whole, more, objects }
}

/// Deleted at a position.
fn deleted_at(name: &str, position: i64) -> Object {
    Object { spec: None, ..object(name, position) }
}

/// Follows these pages, each of the cluster's resource with this identity, until something holds of the store.
async fn followed(store: &Store, identity: &str, pages: Vec<Objects>, holds: impl Fn(&Store) -> bool) {
    let (gateway, cluster) = (Scripted::default(), CLUSTER.parse().unwrap());
    let of = |page| Objects { identity: Some(identity.to_owned()), ..page };
    let count = pages.len();
    gateway.pages.lock().unwrap().extend(pages.into_iter().map(of));
    let follow = Follow::new(&gateway, store, &cluster);
    tokio::select! {
        () = follow.run() => {}
        // All pages were taken when one more is asked for.
        () = until(|| gateway.asked.lock().unwrap().len() > count && holds(store)) => {}
    }
}

async fn until(mut holds: impl FnMut() -> bool) {
    for _ in 0..600 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it did not come about");
}

fn deleting(store: &Store, name: &str) -> Option<bool> {
    store.get(name).map(|one| one.wanted.deleting)
}

#[tokio::test]
async fn e1_what_is_on_no_page_of_a_whole_listing_stays_and_what_was_deleted_is_taken_down() {
    let (map, gateway, cluster) = (Map::default(), Scripted::default(), CLUSTER.parse().unwrap());
    let store = store(&map);
    let mut foreign = object("foreign", 1);
    foreign.id = foreign.id.replace("connectedClusters/c", "connectedClusters/other");
    let mut changed = object("b", 2);
    changed.spec = Some(json!({"extensionType": "example.other"}));
    gateway.pages.lock().unwrap().extend([
        page(1, true, true, vec![object("a", 1), foreign]),
        page(2, false, false, vec![object("b", 1)]),
        page(3, false, false, vec![changed]),
    ]);
    let follow = Follow::new(&gateway, &store, &cluster);
    tokio::select! {
        () = follow.run() => {}
        () = until(|| store.get("b").is_some_and(|one| one.wanted.generation == 2)) => {}
    }
    assert_eq!(store.get("b").unwrap().wanted.properties, json!({"extensionType": "example.other"}));
    assert!(store.get("foreign").is_none());
    // A listing from the beginning, at any time: `a` is on none of its pages, which says nothing of it.
    gateway.pages.lock().unwrap().extend([page(9, true, false, vec![object("b", 2)])]);
    let follow = Follow::new(&gateway, &store, &cluster);
    tokio::select! {
        () = follow.run() => {}
        () = until(|| follow.left_behind(std::iter::empty()).is_some()) => {}
    }
    assert!(
        follow.left_behind(std::iter::empty()).unwrap().contains("1 extensions go on that the gateway does not know")
    );
    assert_eq!((deleting(&store, "a"), deleting(&store, "b")), (Some(false), Some(false)));
    // Where it says that it was deleted, while this agent was away.
    gateway.pages.lock().unwrap().extend([page(12, true, false, vec![object("b", 2), deleted_at("a", 11)])]);
    let follow = Follow::new(&gateway, &store, &cluster);
    tokio::select! {
        () = follow.run() => {}
        () = until(|| deleting(&store, "a") == Some(true)) => {}
    }
    assert!(follow.left_behind(std::iter::empty()).is_none());
    assert_eq!(deleting(&store, "b"), Some(false));
    // All of it is in the cluster: another process knows it without a gateway.
    let again = super::tests::store(&map);
    again.load().await.unwrap();
    assert_eq!((deleting(&again, "a"), deleting(&again, "b")), (Some(true), Some(false)));
}

#[tokio::test]
async fn listing_that_begins_again_forgets_what_it_had_and_what_is_gone_meanwhile() {
    let (map, gateway, cluster) = (Map::default(), Scripted::default(), CLUSTER.parse().unwrap());
    let store = store(&map);
    let mut gone = object("c", 0);
    gone.spec = None;
    gateway.pages.lock().unwrap().extend([
        page(1, true, true, vec![object("a", 1), object("b", 1), object("c", 1)]),
        // Again from the beginning: `a` is wanted no more. `c` is removed while it is listed.
        page(2, true, true, vec![object("b", 1), object("c", 1)]),
        page(3, false, false, vec![object("d", 1), gone]),
    ]);
    let follow = Follow::new(&gateway, &store, &cluster);
    tokio::select! {
        () = follow.run() => {}
        () = until(|| follow.left_behind(std::iter::empty()).is_some()) => {}
    }
    let all = ["a", "b", "c", "d"].map(|name| deleting(&store, name));
    assert_eq!(all, [Some(false), Some(false), Some(true), Some(false)]);
    assert!(
        follow.left_behind(std::iter::empty()).unwrap().contains(": a. "),
        "{:?}",
        follow.left_behind([].into_iter())
    );
    // Another one of the same name: what is being taken down is taken down first.
    gateway.pages.lock().unwrap().extend([page(4, false, false, vec![object("c", 7), object("b", 2)])]);
    let follow = Follow::new(&gateway, &store, &cluster);
    tokio::select! {
        () = follow.run() => {}
        () = until(|| store.get("b").is_some_and(|one| one.wanted.generation == 2)) => {}
    }
    assert_eq!((store.get("c").unwrap().wanted.since, store.get("b").unwrap().wanted.since), (Some(7), None));
    gateway.pages.lock().unwrap().extend([page(5, false, false, vec![object("c", 8)])]);
    let follow = Follow::new(&gateway, &store, &cluster);
    tokio::select! {
        () = follow.run() => {}
        () = until(|| store.get("c").is_some_and(|one| one.wanted.generation == 8)) => {}
    }
    assert_eq!(store.get("c").unwrap().wanted.since, Some(7));
}

#[tokio::test]
async fn e1_another_resource_of_the_cluster_takes_nothing_down_and_takes_over_what_it_names() {
    let map = Map::default();
    let store = store(&map);
    let names = ["a", "b", "c"];
    let all = names.map(|name| object(name, 1_000)).to_vec();
    followed(&store, "one", vec![page(50, true, false, all)], |store| store.all().len() == 3).await;
    // It knows nothing of them, or of others of these names that were deleted there, at any position.
    let going = Object { deleting: true, ..object("b", 2_000) };
    let pages = vec![
        page(900, true, false, vec![deleted_at("a", 800), going]),
        page(901, false, false, vec![deleted_at("c", 901)]),
    ];
    followed(&store, "two", pages, |_| true).await;
    assert_eq!(names.map(|name| deleting(&store, name)), [Some(false); 3]);
    // Another process knows whose they are.
    let again = super::tests::store(&map);
    again.load().await.unwrap();
    assert_eq!(again.get("a").unwrap().wanted, store.get("a").unwrap().wanted);
    let wanted = vec![page(950, false, false, vec![object("a", 3_000)])];
    followed(&again, "two", wanted, |store| store.get("a").unwrap().wanted.generation == 3_000).await;
    let origin = again.get("a").unwrap().wanted.origin;
    assert_eq!((origin.identity.as_deref(), origin.position, origin.adopted), (Some("two"), 950, Some(3_000)));
    // From then on its word holds.
    followed(&again, "two", vec![page(960, false, false, vec![deleted_at("a", 960)])], |store| {
        deleting(store, "a") == Some(true)
    })
    .await;
}

#[tokio::test]
async fn e1_database_that_was_restored_takes_down_nothing_that_it_does_not_know() {
    let map = Map::default();
    let store = store(&map);
    let all = vec![object("new", 5_000), object("again", 6_000), object("going", 6_000), object("changed", 7_000)];
    followed(&store, "one", vec![page(120, true, false, all)], |store| store.all().len() == 4).await;
    // The copy is of position 100: `new` did not exist yet; `again` had been deleted, and was made anew later, as `going` was;
    // `changed` is as it was.
    let going = Object { deleting: true, ..object("going", 2_000) };
    let restored = vec![deleted_at("again", 90), going, object("changed", 4_000)];
    followed(&store, "one", vec![page(100, true, false, restored)], |store| {
        store.get("changed").unwrap().wanted.generation == 4_000
    })
    .await;
    assert_eq!(["new", "again", "going", "changed"].map(|name| deleting(&store, name)), [Some(false); 4]);
    assert_eq!(store.get("changed").unwrap().wanted.origin.adopted, Some(4_000));
    // What is deleted without waiting for the cluster is taken down: at once, and when it was away.
    followed(&store, "one", vec![page(101, false, false, vec![deleted_at("changed", 101)])], |store| {
        deleting(store, "changed") == Some(true)
    })
    .await;
    followed(&store, "one", vec![page(300, true, false, vec![deleted_at("new", 200)])], |store| {
        deleting(store, "new") == Some(true)
    })
    .await;
    assert_eq!(deleting(&store, "again"), Some(false));
}

#[tokio::test]
async fn ten_thousand_objects_are_bounded_and_told_about() {
    let (map, gateway, cluster) = (Map::default(), Scripted::default(), CLUSTER.parse().unwrap());
    let store = store(&map);
    let objects: Vec<_> = (0..10_000).map(|n| object(&format!("e{n}"), 1)).collect();
    gateway.pages.lock().unwrap().extend([page(1, true, false, objects)]);
    let follow = Follow::new(&gateway, &store, &cluster);
    let report = Report { gateway: &gateway, store: &store, follow: &follow, parts: None };
    let refused = || gateway.told.lock().unwrap().iter().flat_map(|one| one.objects.clone()).count() > 0;
    tokio::select! {
        () = follow.run() => {}
        () = report.run() => {}
        () = until(refused) => {}
    }
    assert_eq!(store.all().len(), Extensions::MAX);
    let told = gateway.told.lock().unwrap();
    let first = &told[0].objects[0];
    assert_eq!((first.state, first.error.as_ref().unwrap().code.as_str()), (ObjectState::Failed, "TooManyExtensions"));
}

/// One more than there may be waits for one that is being taken down, and is asked for again when that is gone.
#[tokio::test]
async fn e1_one_more_than_there_may_be_is_taken_when_another_is_gone() {
    let (map, gateway, cluster) = (Map::default(), Scripted::default(), CLUSTER.parse().unwrap());
    let store = store(&map);
    let objects: Vec<_> = (0..Extensions::MAX).map(|n| object(&format!("e{n}"), 1)).collect();
    let going = Object { deleting: true, generation: 2, ..object("e7", 2) };
    gateway.pages.lock().unwrap().extend([
        page(1, true, false, objects.clone()),
        page(2, false, false, vec![going]),
        page(3, false, false, vec![object("more", 3)]),
    ]);
    let follow = Follow::new(&gateway, &store, &cluster);
    let report = Report { gateway: &gateway, store: &store, follow: &follow, parts: None };
    let of_more = || {
        let told = gateway.told.lock().unwrap();
        told.iter().flat_map(|one| one.objects.clone()).find(|one| one.id.ends_with("/more"))
    };
    let goes = async {
        until(|| of_more().is_some()).await;
        let told = of_more().unwrap();
        assert_eq!((told.state, told.generation, &told.error), (ObjectState::Creating, 3, &None));
        let line = &told.statuses[0];
        assert!(line.code == "Waiting" && line.message.contains("at most 200 extensions, and 1 of them"), "{line:?}");
        assert!(store.get("more").is_none());
        // The wait for news of what is wanted goes on until something is gone.
        until(|| *gateway.asked.lock().unwrap() == [None, Some(1), Some(2), Some(3)]).await;
        let left = objects.into_iter().filter(|one| !one.id.ends_with("/e7")).chain([object("more", 3)]).collect();
        gateway.pages.lock().unwrap().push_back(page(4, true, false, left));
        store.remove(&store.get("e7").unwrap()).await.unwrap();
        until(|| store.get("more").is_some()).await;
    };
    tokio::select! {
        () = follow.run() => {}
        () = report.run() => {}
        () = goes => {}
    }
    assert_eq!(store.all().len(), Extensions::MAX);
    assert_eq!(gateway.asked.lock().unwrap()[4], None, "all of it is asked for again");
}

#[tokio::test]
async fn e6_protected_settings_are_a_secret_named_by_their_tag() {
    let (map, gateway, cluster) = (Map::default(), Scripted::default(), CLUSTER.parse().unwrap());
    let store = store(&map);
    let mut web = object("web", 1);
    web.protected = Some("tag-1".to_owned());
    gateway.pages.lock().unwrap().push_back(page(1, true, false, vec![web.clone()]));
    let follow = Follow::new(&gateway, &store, &cluster);
    tokio::select! {
        () = follow.run() => {}
        () = until(|| store.tag("web").as_deref() == Some("tag-1")) => {}
    }
    assert_eq!(store.protected("web").await.unwrap()["password"], "tag-1");
    let shown = map.all()["/apis/towline.io/v1alpha1/namespaces/towline/extensionconfigs/web"].to_string();
    assert!(!shown.contains("password"), "{shown}");
    store.remove(&store.get("web").unwrap()).await.unwrap();
    assert!(map.all().is_empty());
    // Kept too long at the gateway.
    let gateway = Scripted { gone: true, ..Scripted::default() };
    gateway.pages.lock().unwrap().push_back(page(1, true, false, vec![web]));
    let follow = Follow::new(&gateway, &store, &cluster);
    tokio::select! {
        () = follow.run() => {}
        () = until(|| follow.why_unprotected("web", "tag-1").is_some()) => {}
    }
    assert_eq!(follow.why_unprotected("web", "tag-1").unwrap().code, "ProtectedSettingsGone");
}

#[tokio::test]
async fn e1_what_is_gone_leaves_the_cluster_when_the_gateway_knows() {
    let (map, gateway, cluster) = (Map::default(), Scripted::default(), CLUSTER.parse().unwrap());
    let store = store(&map);
    let follow = Follow::new(&gateway, &store, &cluster);
    let mut gone = super::state::Wanted::of(object("web", 1));
    gone.deleting = true;
    store.want("web", gone).await.unwrap();
    let mut status = store.get("web").unwrap().status;
    status.state = Some(ObjectState::Deleted);
    store.set_status("web", &status).await.unwrap();
    let report = Report { gateway: &gateway, store: &store, follow: &follow, parts: None };
    tokio::select! {
        () = report.run() => {}
        () = until(|| map.all().is_empty()) => {}
    }
    let told = gateway.told.lock().unwrap();
    assert_eq!((told.len(), told[0].objects[0].state), (1, ObjectState::Deleted));
}

fn signed(index: &Index, key: &SigningKey) -> CatalogueIndex {
    let bytes = index.to_bytes().unwrap();
    let copy = SigningKey::from_pem(key.to_pem().unwrap().as_bytes()).unwrap();
    let signatures = Signatures::make(&bytes, &[copy]).to_bytes().unwrap();
    CatalogueIndex { index: encode(&bytes), signatures: encode(&signatures) }
}

/// What becomes of an index that a gateway sends: its revision, or a word for why not.
async fn accepted(map: &Map, keys: &[&SigningKey], sent: CatalogueIndex) -> Result<u64, (&'static str, String)> {
    let gateway = Scripted::default();
    *gateway.index.lock().unwrap() = Some(sent);
    let store = store(map);
    let pinned = Pinned { keys: keys.iter().map(|key| key.public()).collect(), catalogue: None };
    let catalogue = Catalogue::new(&gateway, &store, pinned, Arc::new(SystemClock), Duration::from_secs(180));
    let known = catalogue.known();
    tokio::select! {
        () = catalogue.run() => {}
        () = until(|| known.borrow().verified.is_some() || known.borrow().problem.is_some()) => {}
    }
    let known = known.borrow().clone();
    match (known.verified, known.problem) {
        (Some(verified), _) => Ok(verified.index().revision),
        (None, Some(problem)) => Err((problem.code, problem.message)),
        (None, None) => unreachable!("one of both is there"),
    }
}

#[tokio::test]
async fn e2_index_that_is_not_signed_old_or_foreign_is_refused_after_a_restart_too() {
    let (map, own, other) = (Map::default(), SigningKey::generate().unwrap(), SigningKey::generate().unwrap());
    let index = |revision: u64| {
        let mut index = testing::index(&[("1.0.0", &["Stable"])]);
        (index.revision, index.keys) = (revision, vec![own.public()]);
        index
    };
    let why = |result: Result<u64, (&'static str, String)>| result.unwrap_err();
    assert_eq!(why(accepted(&map, &[], signed(&index(5), &own)).await).0, "NoCatalogueKey");
    let (code, message) = why(accepted(&map, &[&own], signed(&index(5), &other)).await);
    assert!(code == "CatalogueRefused" && message.contains("none of the pinned keys"), "{message}");
    let garbage = CatalogueIndex { index: "%".to_owned(), signatures: String::new() };
    assert_eq!(why(accepted(&map, &[&own], garbage).await).0, "CatalogueRefused");
    assert_eq!(accepted(&map, &[&own], signed(&index(5), &own)).await, Ok(5));
    let (_, message) = why(accepted(&map, &[&own], signed(&index(4), &own)).await);
    assert!(message.contains("played back"), "{message}");
    let mut foreign = index(6);
    foreign.catalogue = CatalogueId::generate().unwrap();
    let (_, message) = why(accepted(&map, &[&own], signed(&foreign, &own)).await);
    assert!(message.contains("of the catalogue"), "{message}");
    // The operator's own word holds at once, and does not bring an old index back.
    let mut newer = index(7);
    newer.keys = vec![other.public()];
    assert_eq!(accepted(&map, &[&other], signed(&newer, &other)).await, Ok(7));
    // What is kept was changed by somebody.
    for secret in map.all().values_mut() {
        secret["data"]["content.json"] = "eA==".into();
    }
    let (code, message) = why(accepted(&map, &[&own], signed(&index(9), &own)).await);
    assert!(code == "TrustNotRead" && message.contains("delete it"), "{message}");
}

/// A registry that has other bytes than the index says.
struct Elsewhere(Vec<u8>);

impl Charts for Elsewhere {
    fn name(&self) -> &str {
        "oci://registry.test/charts"
    }

    fn chart<'a>(&'a self, _: &'a Release) -> BoxFuture<'a, Result<Bytes, Problem>> {
        Box::pin(async { Ok(self.0.clone().into()) })
    }
}

#[tokio::test]
async fn e2_chart_with_another_digest_is_not_opened() {
    let (map, own) = (Map::default(), SigningKey::generate().unwrap());
    let mut index = testing::index(&[("1.0.0", &["Stable"])]);
    index.keys = vec![own.public()];
    index.revision = 1;
    let trust = ::catalogue::verify::Trust::new(vec![own.public()], None);
    let sent = signed(&index, &own);
    let decoded = |text: &str| types::agent_api::decode(text).unwrap();
    let now = std::time::SystemTime::now().into();
    let verified = trust.verify(&decoded(&sent.index), &decoded(&sent.signatures), now).unwrap();
    let release = &verified.index().types[0].versions[0];
    let (gateway, store) = (Scripted::default(), store(&map));
    let pinned = Pinned { keys: vec![own.public()], catalogue: None };
    let catalogue = Catalogue::new(&gateway, &store, pinned, Arc::new(SystemClock), Duration::from_secs(180));
    let give = |bytes: Vec<u8>| drop(gateway.charts.lock().unwrap().insert(release.chart.sha256, bytes.into()));
    let refused = async || catalogue.chart(&verified, "example.web", release).await.unwrap_err();
    assert_eq!((refused().await.code, refused().await.fault), ("ChartNotFetched", Fault::Gateway));
    // One that is not there yet is waited for, and not for as long as a gateway that does not answer.
    for (status, code, fault) in
        [(503, "ChartUnavailable", Fault::Cluster), (404, "ChartNotFound", Fault::Object), (500, "X", Fault::Gateway)]
    {
        let (code, message) = (code.to_owned(), "The file charts/web.tgz is not there".to_owned());
        *gateway.no_chart.lock().unwrap() = Some(Refused { status, code, message, retry_after: None });
        let problem = refused().await;
        assert!(problem.fault == fault && problem.message.contains("charts/web.tgz is not there"), "{problem:?}");
    }
    let good = testing::chart(&testing::metadata("web", "1.0.0"), &[]);
    let mut bad = good.clone();
    *bad.last_mut().unwrap() ^= 1;
    for bad in [bad, b"no chart".to_vec(), Vec::new()] {
        give(bad);
        assert_eq!(catalogue.chart(&verified, "example.web", release).await.unwrap_err().code, "ChartRefused");
    }
    // Nor one of a registry, which is asked in place of the gateway.
    give(good.clone());
    let mut bad = good.clone();
    bad[20] ^= 1;
    for (bytes, is_good) in [(bad, false), (good.clone(), true)] {
        let elsewhere = Elsewhere(bytes);
        let pinned = Pinned { keys: vec![own.public()], catalogue: None };
        let catalogue = Catalogue::new(&gateway, &store, pinned, Arc::new(SystemClock), Duration::from_secs(180))
            .with_charts(Some(&elsewhere));
        match catalogue.chart(&verified, "example.web", release).await {
            Ok(chart) => assert!(is_good && chart.bytes() == good),
            Err(refused) => {
                assert!(!is_good && refused.code == "ChartRefused", "{refused:?}");
                assert!(refused.message.contains("that oci://registry.test/charts sent"), "{}", refused.message);
            }
        }
    }
    assert_eq!(catalogue.chart(&verified, "example.web", release).await.unwrap().bytes(), good);
    // It is kept for when the link is down.
    gateway.charts.lock().unwrap().clear();
    assert!(catalogue.chart(&verified, "example.web", release).await.is_ok());
}

#[tokio::test]
async fn e9_extension_says_what_keeps_all_of_them_from_being_looked_at() {
    let (map, gateway, dir) = (Map::default(), Scripted::default(), tempfile::tempdir().unwrap());
    gateway.pages.lock().unwrap().extend([page(1, true, false, vec![object("web", 1)])]);
    let settings = config::Extensions {
        helm: dir.path().join("no-helm"),
        work_dir: dir.path().to_owned(),
        timeout: Duration::from_secs(5),
        catalogue_interval: Duration::from_secs(180),
        ..config::Extensions::default()
    };
    let engine = Engine {
        client: map.client(),
        cluster: CLUSTER.parse().unwrap(),
        access: config::Cluster::Kubeconfig { path: dir.path().join("kubeconfig"), context: None },
        settings,
        distribution: None,
        clock: Arc::new(SystemClock),
        health: Health::default().of(super::NAME),
        grace: Duration::from_secs(50),
    };
    let manager = ExtensionManager::new(engine, gateway).unwrap();
    let told =
        || manager.store.get("web").and_then(|web| Some((web.status.state?, web.status.statuses.first()?.clone())));
    tokio::select! {
        () = manager.work() => {}
        () = until(|| told().is_some()) => {}
    }
    let (state, line) = told().unwrap();
    assert_eq!((state, line.code.as_str()), (ObjectState::Creating, "Waiting"));
    assert!(line.message.contains("no-helm cannot be run"), "{}", line.message);
}
