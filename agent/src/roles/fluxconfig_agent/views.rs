//! What Flux says in the cluster: a watch of each kind of its objects that are ours, kept in memory as far as it is read.
//! The objects of charts that a kustomization applied (HelmRelease) are watched where there are any.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::{StreamExt as _, TryStreamExt as _};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams},
    core::GroupVersionKind,
};
use serde_json::Value;
use tokio::sync::watch;
use types::agent_api::PARTS_OF_AN_OBJECT;

use super::render::{MANAGED, MANAGER, REPLACED_BY, owner_of, repository_of};
use crate::{chain, roles::objects::state::bounded};

/// Objects of all kinds that are kept at most.
const VIEWS_MAX: usize = 20_000;
/// Conditions of an object, and characters of the message of one, that are kept.
const CONDITIONS_MAX: usize = 20;
const MESSAGE_CHARS: usize = 20_000;
/// Objects of one page of a list: one may have thousands of entries in its inventory.
const PAGE: u32 = 20;
/// Between two attempts; where the kind is not there, the longer one.
const AGAIN: Duration = Duration::from_secs(3);
const ABSENT_AGAIN: Duration = Duration::from_secs(15);
/// On objects that a kustomization applied.
const APPLIED: &str = "kustomize.toolkit.fluxcd.io/name";

/// A kind of Flux's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FluxKind {
    /// A source: a Git repository.
    GitRepository,
    /// A source: a bucket of an object store.
    Bucket,
    /// A source: an artifact of an OCI registry.
    OciRepository,
    /// What applies a source.
    Kustomization,
    /// A chart that was applied.
    HelmRelease,
}

impl FluxKind {
    /// The kinds of sources.
    pub const SOURCES: [Self; 3] = [Self::GitRepository, Self::Bucket, Self::OciRepository];
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::GitRepository, Self::Bucket, Self::OciRepository, Self::Kustomization, Self::HelmRelease];

    /// Group, version, kind and plural name.
    pub fn names(self) -> (&'static str, &'static str, &'static str, &'static str) {
        match self {
            Self::GitRepository => ("source.toolkit.fluxcd.io", "v1", "GitRepository", "gitrepositories"),
            Self::Bucket => ("source.toolkit.fluxcd.io", "v1", "Bucket", "buckets"),
            Self::OciRepository => ("source.toolkit.fluxcd.io", "v1", "OCIRepository", "ocirepositories"),
            Self::Kustomization => ("kustomize.toolkit.fluxcd.io", "v1", "Kustomization", "kustomizations"),
            Self::HelmRelease => ("helm.toolkit.fluxcd.io", "v2", "HelmRelease", "helmreleases"),
        }
    }

    /// The kind as the client library takes it for requests.
    pub fn resource(self) -> ApiResource {
        let (group, version, kind, plural) = self.names();
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    }

    /// Whether a Flux may be without this kind, at the version that is read: one that somebody else installed, and is older.
    /// Then there are no such objects, and what there is of the other kinds is told.
    fn is_optional(self) -> bool {
        matches!(self, Self::Bucket | Self::OciRepository | Self::HelmRelease)
    }

    fn selector(self) -> String {
        match self {
            Self::HelmRelease => APPLIED.to_owned(),
            // Each kind of configurations has a label of its own beside it.
            _ => format!("{MANAGED}={MANAGER}"),
        }
    }
}

/// The generations of Flux's objects, by kind and name.
pub type Generations = HashMap<(FluxKind, String), i64>;

/// A condition of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// The type of the condition, such as `Ready`.
    pub name: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// A word for programs.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
    /// When it last changed, RFC 3339.
    pub time: String,
    /// Of which generation of the object that was said.
    pub generation: i64,
}

/// What is read of one of Flux's objects.
#[derive(Debug, Clone, PartialEq)]
pub struct View {
    /// The object's kind.
    pub kind: FluxKind,
    /// The object's namespace.
    pub namespace: String,
    /// The object's name.
    pub name: String,
    /// The object's UID.
    pub uid: String,
    /// The configuration that it was made for.
    pub owner: Option<String>,
    /// Where a source pulls from.
    pub from: Option<String>,
    /// How long a source may take to fetch, and a kustomization to apply.
    pub timeout: Option<Duration>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether it is suspended.
    pub suspended: bool,
    /// What a kustomization waits for that is not wanted any more: names with commas between them.
    pub replaced_by: Option<String>,
    /// Rises with its spec.
    pub generation: i64,
    /// Of which generation the status is.
    pub observed: i64,
    /// Conditions of its status.
    pub conditions: Vec<Condition>,
    /// The revision of a source's artifact.
    pub revision: Option<String>,
    /// When the artifact came.
    pub updated: Option<String>,
    /// The revision that a kustomization applied last.
    pub applied: Option<String>,
    /// The revision that it tried last.
    pub attempted: Option<String>,
    /// Ids of what it applied.
    pub inventory: Arc<[String]>,
    /// What the resource shows of a chart.
    pub helm: Option<Value>,
}

impl View {
    /// Reads an object.
    pub fn of(kind: FluxKind, object: &DynamicObject) -> Option<Self> {
        let (meta, data) = (&object.metadata, &object.data);
        let (spec, status, is_own) = (&data["spec"], &data["status"], kind != FluxKind::HelmRelease);
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let conditions = status["conditions"].as_array().into_iter().flatten().take(CONDITIONS_MAX).map(|one| {
            let text = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
            Condition {
                name: text("type"),
                status: text("status"),
                reason: text("reason"),
                message: bounded(&text("message"), MESSAGE_CHARS),
                time: text("lastTransitionTime"),
                generation: one["observedGeneration"].as_i64().unwrap_or(0),
            }
        });
        let entries = status["inventory"]["entries"].as_array().into_iter().flatten().take(PARTS_OF_AN_OBJECT);
        Some(Self {
            kind,
            namespace: meta.namespace.clone()?,
            name: meta.name.clone()?,
            uid: meta.uid.clone()?,
            // Charts are of a repository, which chooses their labels.
            owner: owner_of(meta.labels.as_ref()).filter(|_| is_own),
            from: FluxKind::SOURCES.contains(&kind).then(|| repository_of(spec)).flatten(),
            timeout: is_own.then(|| timeout(&spec["timeout"])),
            deleting: meta.deletion_timestamp.is_some(),
            suspended: spec["suspend"].as_bool().unwrap_or(false),
            replaced_by: meta.annotations.as_ref().and_then(|all| all.get(REPLACED_BY)).filter(|_| is_own).cloned(),
            generation: meta.generation.unwrap_or(0),
            observed: status["observedGeneration"].as_i64().unwrap_or(0),
            conditions: conditions.collect(),
            revision: text(&status["artifact"]["revision"]),
            updated: text(&status["artifact"]["lastUpdateTime"]),
            applied: text(&status["lastAppliedRevision"]),
            attempted: text(&status["lastAttemptedRevision"]),
            inventory: entries.filter_map(|one| text(&one["id"])).collect(),
            helm: (kind == FluxKind::HelmRelease).then(|| helm(status)),
        })
    }

    /// The condition of that name.
    pub fn condition(&self, name: &str) -> Option<&Condition> {
        self.conditions.iter().find(|one| one.name == name)
    }
}

/// The timeout of an object as the agent writes it, in seconds. What the agent makes has no other form; the default is Flux's.
fn timeout(value: &Value) -> Duration {
    let seconds = value.as_str().and_then(|text| text.strip_suffix('s')?.parse().ok());
    Duration::from_secs(seconds.unwrap_or(60))
}

/// `helmReleaseProperties` of a resource's status.
fn helm(status: &Value) -> Value {
    let newest = status["history"].as_array().and_then(|all| all.first());
    let chart = status["helmChart"].as_str().and_then(|text| text.split_once('/'));
    let mut properties = serde_json::Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            properties.insert(name.to_owned(), value);
        }
    };
    let number = |key: &str| status[key].as_i64().map(Value::from);
    put("lastRevisionApplied", newest.and_then(|one| one["version"].as_i64()).map(Value::from));
    put("helmChartRef", chart.map(|(namespace, name)| serde_json::json!({ "namespace": namespace, "name": name })));
    put("failureCount", number("failures"));
    put("installFailureCount", number("installFailures"));
    put("upgradeFailureCount", number("upgradeFailures"));
    Value::Object(properties)
}

type Key = (FluxKind, String, String);

/// What is known of Flux's objects.
pub struct Views {
    client: Client,
    all: Mutex<BTreeMap<Key, Arc<View>>>,
    /// Why a kind is not known.
    problems: Mutex<BTreeMap<FluxKind, Option<String>>>,
    changed: watch::Sender<u64>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How a watch ended.
enum Ended {
    /// The kind is not there.
    Absent,
    /// The watch failed; the text says why.
    Problem(String),
}

impl Ended {
    fn of(err: &kube::Error) -> Self {
        match err {
            kube::Error::Api(status) if status.code == 404 => Self::Absent,
            other => Self::Problem(chain(other)),
        }
    }
}

impl Views {
    /// Nothing is known yet.
    pub fn new(client: Client) -> Self {
        Self { client, all: Mutex::default(), problems: Mutex::default(), changed: watch::Sender::new(0) }
    }

    /// Tells of changes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Whether all kinds of sources and kustomizations were listed.
    ///
    /// # Errors
    /// Why one was not.
    pub fn known(&self) -> Result<(), Option<String>> {
        let problems = locked(&self.problems);
        let needed = FluxKind::ALL.into_iter().filter(|kind| *kind != FluxKind::HelmRelease);
        for kind in needed {
            match problems.get(&kind) {
                None => return Err(None),
                Some(Some(problem)) => return Err(Some(problem.clone())),
                Some(None) => {}
            }
        }
        Ok(())
    }

    /// Those that were made for a configuration.
    pub fn of(&self, configuration: &str) -> Vec<Arc<View>> {
        let all = locked(&self.all);
        all.values().filter(|view| view.owner.as_deref() == Some(configuration)).cloned().collect()
    }

    /// Configurations that something was made for, and where.
    pub fn owners(&self) -> BTreeMap<String, String> {
        let all = locked(&self.all);
        all.values().filter_map(|view| Some((view.owner.clone()?, view.namespace.clone()))).collect()
    }

    /// Those that have something in a namespace.
    pub fn owners_in(&self, namespace: &str) -> BTreeSet<String> {
        let all = locked(&self.all);
        all.values().filter(|view| view.namespace == namespace).filter_map(|view| view.owner.clone()).collect()
    }

    /// All kustomizations of configurations.
    pub fn kustomizations(&self) -> Vec<Arc<View>> {
        locked(&self.all).values().filter(|view| view.kind == FluxKind::Kustomization).cloned().collect()
    }

    /// UIDs of all of them.
    pub fn uids(&self) -> HashSet<String> {
        locked(&self.all).values().map(|view| view.uid.clone()).collect()
    }

    /// One of them.
    pub fn get(&self, kind: FluxKind, namespace: &str, name: &str) -> Option<Arc<View>> {
        locked(&self.all).get(&(kind, namespace.to_owned(), name.to_owned())).cloned()
    }

    /// This is how it was just written.
    pub fn put(&self, kind: FluxKind, object: &DynamicObject) {
        self.take(kind, object, false);
    }

    /// Follows all of them for ever.
    pub async fn run(&self) {
        let follow = FluxKind::ALL.map(|kind| self.follow(kind));
        futures_util::future::join_all(follow).await;
    }

    async fn follow(&self, kind: FluxKind) {
        loop {
            let (wait, problem) = match self.cycle(kind).await {
                Ok(()) => (Duration::from_millis(200), None),
                Err(Ended::Absent) if kind.is_optional() => {
                    self.has_none(kind);
                    (ABSENT_AGAIN, None)
                }
                Err(Ended::Absent) => {
                    let (group, _, _, plural) = kind.names();
                    let text = format!(
                        "the definition {plural}.{group} is missing: Flux is not installed (extension type microsoft.flux)"
                    );
                    (ABSENT_AGAIN, Some(text))
                }
                Err(Ended::Problem(text)) => (AGAIN, Some(format!("{} cannot be watched: {text}", kind.names().3))),
            };
            if let Some(problem) = problem {
                tracing::debug!(problem, "Flux's objects are not followed");
                let is_new = locked(&self.problems).insert(kind, Some(problem.clone())) != Some(Some(problem));
                if is_new {
                    self.tell();
                }
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// There is no such kind, and so there are no such objects.
    fn has_none(&self, kind: FluxKind) {
        let is_new = locked(&self.problems).insert(kind, None) != Some(None);
        let mut all = locked(&self.all);
        let before = all.len();
        all.retain(|(one, _, _), _| *one != kind);
        let is_less = all.len() < before;
        drop(all);
        if is_new || is_less {
            self.tell();
        }
    }

    fn tell(&self) {
        self.changed.send_modify(|changes| *changes += 1);
    }

    /// Lists, then watches until the apiserver ends it.
    async fn cycle(&self, kind: FluxKind) -> Result<(), Ended> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &kind.resource());
        let selector = kind.selector();
        let (mut params, mut found) = (ListParams::default().labels(&selector).limit(PAGE), BTreeMap::new());
        let version = loop {
            let page = api.list(&params).await.map_err(|err| Ended::of(&err))?;
            for view in page.items.iter().filter_map(|object| View::of(kind, object)) {
                found.insert((kind, view.namespace.clone(), view.name.clone()), Arc::new(view));
            }
            match page.metadata.continue_.filter(|token| !token.is_empty() && found.len() < VIEWS_MAX) {
                Some(token) => params.continue_token = Some(token),
                None => break page.metadata.resource_version.unwrap_or_default(),
            }
        };
        {
            let mut all = locked(&self.all);
            all.retain(|(one, _, _), _| *one != kind);
            let room = VIEWS_MAX.saturating_sub(all.len());
            all.extend(found.into_iter().take(room));
        }
        locked(&self.problems).insert(kind, None);
        self.tell();
        let params = WatchParams::default().labels(&selector);
        let mut events = api.watch(&params, &version).await.map_err(|err| Ended::of(&err))?.boxed();
        while let Some(event) = events.try_next().await.map_err(|err| Ended::of(&err))? {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => self.take(kind, &object, false),
                WatchEvent::Deleted(object) => self.take(kind, &object, true),
                WatchEvent::Bookmark(_) => {}
                // Too old: listed anew.
                WatchEvent::Error(_) => return Ok(()),
            }
        }
        Ok(())
    }

    fn take(&self, kind: FluxKind, object: &DynamicObject, gone: bool) {
        let Some(view) = View::of(kind, object) else { return };
        let key = (kind, view.namespace.clone(), view.name.clone());
        let mut all = locked(&self.all);
        let changed = if gone {
            all.remove(&key).is_some()
        } else if all.len() >= VIEWS_MAX && !all.contains_key(&key) {
            false
        } else {
            let changed = all.get(&key).is_none_or(|known| **known != view);
            if changed {
                all.insert(key, Arc::new(view));
            }
            changed
        };
        drop(all);
        if changed {
            self.tell();
        }
    }
}
