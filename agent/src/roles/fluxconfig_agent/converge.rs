//! Makes the cluster what is wanted of a kind of configurations: each as Flux's objects and what they need, compared again
//! whenever something of it changes, and now and then. What the owner of the cluster does not allow is suspended before
//! anything else. What Flux says of it becomes the configuration's status.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use k8s_openapi::api::core::v1::Secret;
use kube::{Client, ResourceExt as _, api::DeleteParams};
use types::agent_api::{ObjectState, codes, compliance};

use super::{
    About, Configurations, Own, Shown, Troubles,
    comply::{self, Compliance, Judged, Material, Memory},
    handover,
    key::KeyPair,
    left, pins,
    place::{Place, SecretOwner},
    render::{Configuration, Proxy, Rendered, called, destination, named_secret, needs_key},
    spec::{Properties, Scope, Secrets},
    views::{FluxKind, Generations, View, Views},
};
use crate::{
    chain,
    config::Gitops,
    identity::{clock::SharedClock, parse, spell},
    roles::{
        egress_proxy::Grants,
        objects::{
            follow::Follow,
            gateway::Gateway,
            hidden::Hidden,
            parts::Ledger,
            progress::{Progress, operation, working},
            state::{Fault, Happened, Item, Phase, Problem, Record, Status, Wanted},
            store::{CONTENT, Store, content},
        },
    },
};

const KEPT_KEY: &str = "the Secret of a generated key";
/// How often everything is looked at though nothing changed, and while something waits.
const LOOK: Duration = Duration::from_secs(30);
const LOOK_SOON: Duration = Duration::from_secs(2);
/// Changes that come together are one.
const TOGETHER: Duration = Duration::from_millis(500);
/// How often everything is read anew from the apiserver.
const RELOAD: Duration = Duration::from_secs(60);
/// How long Flux may take from the deletion of a kustomization to remove what it applied, and from that of a source to let
/// it go. Then its finalizer is taken off: Flux may be gone. A kustomize-controller that is known to run has longer, because
/// it may have thousands of objects to remove.
const PRUNED: Duration = Duration::from_secs(180);
const PRUNED_BY_ONE_THAT_RUNS: Duration = Duration::from_secs(1800);
/// A controller that said within this time that it runs does. It says so every few seconds.
const RUNS: Duration = Duration::from_secs(60);
const LET_GO: Duration = Duration::from_secs(60);
/// A controller that has not said for this long that it runs has stopped: nobody looks at sources or applies.
const STOPPED: Duration = Duration::from_secs(120);
/// Without them nothing is pulled, and nothing applied.
const CONTROLLERS: [&str; 2] = ["source-controller", "kustomize-controller"];
/// Objects that do not comply, in the custom resource.
const FAILING_MAX: usize = 10;
/// Objects that two configurations own, of which is told.
const SHARED_MAX: usize = 50;

/// Makes the cluster what is wanted.
pub struct Converge<'a, G, K: Configurations> {
    /// To the apiserver.
    pub client: &'a Client,
    /// What is wanted, and how far it is.
    pub store: &'a Store<K>,
    /// Configurations of other kinds that are in the same namespaces; none while they could not be read, and nothing is
    /// given rights meanwhile.
    pub others: &'a (dyn Fn() -> Option<Vec<Placed>> + Send + Sync),
    /// Held while one configuration is worked at, whatever its kind: they share namespaces and service accounts.
    pub turn: &'a tokio::sync::Mutex<()>,
    /// Why protected settings are not here.
    pub follow: &'a Follow<'a, G, K>,
    /// What Flux says.
    pub views: &'a Views,
    /// What is told of parts, where the kind has some.
    pub ledger: Option<&'a Ledger>,
    /// What the owner of the cluster allows.
    pub settings: &'a Gitops,
    /// Who may reach a source through the gateway.
    pub egress: &'a Grants,
    /// How Flux reaches the proxy that leads there.
    pub proxy: Option<&'a str>,
    /// Writes down how far each is.
    pub progress: Progress<'a, K>,
    /// The time of day.
    pub clock: SharedClock,
    /// What keeps the role from working.
    pub troubles: &'a Troubles,
    /// What was made of each in this process.
    pub made: Mutex<HashMap<String, Made>>,
    /// What Flux said before.
    pub memory: Mutex<Memory>,
    /// Namespaces in which no controllers of Flux were, and when that was looked up.
    pub apart: Mutex<HashMap<String, Instant>>,
    /// Configurations that have no custom resource and of which something is there.
    pub orphans: Mutex<BTreeSet<String>>,
    /// Controllers of Flux that do not run, as what is said of them, and when that was looked up.
    pub stopped: Mutex<(Option<Instant>, Option<String>)>,
    /// What each controller wrote last, and since when that is known here: clocks of nodes differ, and what is from before
    /// this process, or from before Flux was installed again, says nothing.
    pub renewed: Mutex<Renewals>,
}

/// Of each controller the instant that it wrote last, and since when that is known here.
#[derive(Default)]
pub struct Renewals(HashMap<&'static str, (SystemTime, SystemTime)>);

impl Renewals {
    /// Whether a controller that wrote `at` has written nothing else for so long that it does not run.
    pub fn is_stopped(&mut self, controller: &'static str, at: SystemTime, now: SystemTime) -> bool {
        let known = self.0.entry(controller).or_insert((at, now));
        if known.0 != at {
            *known = (at, now);
        }
        now.duration_since(known.1).unwrap_or_default() >= STOPPED
    }
}

/// What was made of a configuration.
#[derive(Clone)]
pub struct Made {
    /// The configuration that it was made from.
    wanted: Wanted,
    rendered: Arc<Rendered>,
    public_key: Option<String>,
    hidden: Arc<Hidden>,
    /// Sources of others that name one of its Secrets were suspended.
    kept_away: bool,
    /// When it was applied last, and the generations that Flux's objects had then, by kind and name.
    applied: Option<(Instant, Generations)>,
}

impl Made {
    /// The name of a kustomization that is not wanted any more and stays for now, and what it waits for.
    fn leaves<'v>(&self, view: &'v View) -> Option<(&'v str, &'v str)> {
        let waits_for = view.replaced_by.as_deref().filter(|_| !view.deleting)?;
        let is_wanted = self.rendered.kustomizations.values().any(|one| one["metadata"]["name"] == *view.name);
        (!is_wanted).then_some((view.name.as_str(), waits_for))
    }
}

/// Why nothing can be made of a configuration.
enum Stop {
    /// It has failed at this attempt.
    Failed(String, Problem),
    /// It waits; whether it is to be looked at soon.
    Waits(bool),
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where a configuration is, as others of its namespace see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// What it is called in messages.
    name: String,
    /// Whose Flux's objects are.
    owner: String,
    /// When it came.
    created: String,
    deleting: bool,
    made: Option<(String, Scope)>,
    wanted: Option<(String, Scope)>,
}

impl Placed {
    fn of<K: Configurations>(item: &Item<K>) -> Self {
        Self {
            name: format!("{} {}", K::NOUN, item.name),
            owner: K::owner(&item.name),
            created: item.created.clone(),
            deleting: item.wanted.deleting,
            made: made_in(item),
            wanted: wanted_in(item),
        }
    }

    /// All of a kind.
    pub fn all<K: Configurations>(store: &Store<K>) -> Vec<Self> {
        store.all().iter().map(Self::of).collect()
    }
}

/// Where something was made of a configuration, and with whose rights; also while it is taken down.
fn made_in<K: Configurations>(item: &Item<K>) -> Option<(String, Scope)> {
    let own = &item.status.record.own;
    let wanted = wanted_in(item);
    let Some(namespace) = own.namespace.clone() else {
        // The record may be lost.
        return wanted.filter(|_| item.wanted.deleting && item.status.state != Some(ObjectState::Deleted));
    };
    let scope = own.scope.as_deref().and_then(Scope::of).or(wanted.map(|(_, scope)| scope));
    Some((namespace, scope.unwrap_or(Scope::Cluster)))
}

/// Where something is to be made, and with whose rights.
fn wanted_in<K: Configurations>(item: &Item<K>) -> Option<(String, Scope)> {
    let properties = K::properties(&item.wanted).ok()?;
    Some((properties.namespace().to_owned(), properties.scope().ok()?))
}

fn key_name<K: Configurations>(name: &str) -> String {
    format!("{}-{name}-key", K::SECRET)
}

impl<G: Gateway, K: Configurations> Converge<'_, G, K> {
    /// Works for ever.
    pub async fn run(&self) {
        let (mut changes, mut seen) = (self.store.changes(), self.views.changes());
        let mut loaded: Option<Instant> = None;
        loop {
            changes.mark_unchanged();
            seen.mark_unchanged();
            let mut problem = None;
            if loaded.is_none_or(|at| at.elapsed() >= RELOAD) {
                match self.store.load().await {
                    Ok(()) => loaded = Some(Instant::now()),
                    Err(err) => problem = Some(("NotLoaded", err)),
                }
            }
            let soon = self.pass().await;
            self.says(problem);
            let changed = async {
                tokio::select! {
                    _ = changes.changed() => {}
                    _ = seen.changed() => {}
                }
                tokio::time::sleep(TOGETHER).await;
            };
            let wait = if soon || locked(&self.memory).holds() { LOOK_SOON } else { LOOK };
            let _ = tokio::time::timeout(wait, changed).await;
        }
    }

    fn says(&self, problem: Option<(&'static str, String)>) {
        let follow = locked(&self.follow.problem).clone().map(|message| ("NotFollowed", message));
        let flux = || Some(("FluxNotRead", self.views.known().err().flatten()?));
        self.troubles.say(K::TYPE, problem.or(follow).or_else(flux));
    }

    /// Looks at each; whether one is to be looked at again soon.
    pub async fn pass(&self) -> bool {
        let mut soon = false;
        self.look_at_controllers().await;
        let shared = comply::shared(&self.views.kustomizations(), SHARED_MAX);
        for one in self.store.all() {
            let _turn = self.turn.lock().await;
            let Some(item) = self.store.get(&one.name) else { continue };
            soon |= match item.wanted.deleting {
                true => self.delete(&item).await,
                false => self.step(&item, shared.get(&K::owner(&item.name)).map_or(&[], Vec::as_slice)).await,
            };
        }
        self.tell_left();
        let all = self.store.all();
        let names: Vec<_> = all.iter().map(|item| item.name.as_str()).collect();
        self.egress.keep(|owner| K::owned(owner).is_none_or(|name| names.contains(&name)));
        if let Some(ledger) = self.ledger {
            ledger.keep(&names);
        }
        locked(&self.made).retain(|name, _| names.contains(&name.as_str()));
        let uids = self.views.uids();
        locked(&self.memory).keep(|uid| uids.contains(uid));
        self.progress.forget_waits();
        soon
    }

    async fn step(&self, item: &Item<K>, shared: &[(String, String)]) -> bool {
        if let Some(since) = item.wanted.since.filter(|since| item.status.record.since != Some(*since)) {
            return self.replace(item, Some(since)).await;
        }
        if let Some(adopted) = item.wanted.origin.adopted.filter(|at| item.status.record.adopted != Some(*at)) {
            return self.adopt(item, adopted).await;
        }
        if self.has_moved(item) {
            return self.replace(item, item.status.record.since).await;
        }
        let made = match self.make(item).await {
            Ok(made) => made,
            Err(Stop::Waits(soon)) => return soon,
            Err(Stop::Failed(attempt, problem)) => {
                self.progress.fail(item, &attempt, &problem).await;
                let known = locked(&self.made).get(&item.name).cloned();
                match known {
                    Some(made) => made,
                    None => self.unmade(item).await,
                }
            }
        };
        self.comply(&item.name, &made, shared).await
    }

    /// Whether Flux runs. Where its controllers never said so in the namespace that the extension installs them in, it is
    /// somebody else's Flux, and nothing is known of that.
    async fn look_at_controllers(&self) {
        if locked(&self.stopped).0.is_some_and(|at| at.elapsed() < LOOK) {
            return;
        }
        let (now, place) = (self.clock.now(), Place { client: self.client });
        let mut stopped = Vec::new();
        for controller in CONTROLLERS {
            let Ok(Some(at)) = place.last_renewed(controller).await else { continue };
            if locked(&self.renewed).is_stopped(controller, at, now) {
                stopped.push(format!("{controller} does not run, and was seen last at {}", spell(at)));
            }
        }
        let message = (!stopped.is_empty()).then(|| {
            format!(
                "{}: nobody follows the source or repairs what was applied; see kubectl get pods -n {}",
                stopped.join("; "),
                pins::FLUX
            )
        });
        self.troubles.warn(K::TYPE, About::Controllers, message.clone());
        *locked(&self.stopped) = (Some(Instant::now()), message);
    }

    /// Says which configurations go on that the gateway does not know: with a custom resource, or with Flux's objects alone,
    /// as after the cluster was connected again. Nobody said that they were to be deleted, and so nothing of them is.
    fn tell_left(&self) {
        if self.views.known().is_err() {
            return;
        }
        let owners = self.views.owners();
        let has_none = |name: &&str| self.store.get(name).is_none();
        let names: BTreeSet<_> = owners.keys().filter_map(|owner| K::owned(owner)).filter(has_none).collect();
        let is_listed = locked(&self.follow.listed).is_some();
        {
            let mut orphans = locked(&self.orphans);
            let lost = names.iter().any(|name| !orphans.contains(*name));
            if lost {
                tracing::warn!(?names, kind = K::TYPE, "there are objects of configurations that are not known");
                // A custom resource that somebody removed comes back.
                self.store.lost.notify_one();
            }
            *orphans = names.iter().map(|name| (*name).to_owned()).collect();
        }
        let names = names.into_iter().filter(|_| is_listed).map(str::to_owned);
        self.troubles.warn(K::TYPE, About::Left, self.follow.left_behind(names));
    }

    /// Of a configuration of which nothing was made.
    async fn unmade(&self, item: &Item<K>) -> Made {
        let settings = match item.wanted.protected {
            Some(_) => self.store.protected(&item.name).await.unwrap_or_default(),
            None => Default::default(),
        };
        let namespace = item.status.record.own.namespace.clone().unwrap_or_default();
        let rendered = Rendered {
            namespace,
            scope: Scope::Namespace,
            secrets: Default::default(),
            source: serde_json::Value::Null,
            kustomizations: Default::default(),
        };
        Made {
            wanted: item.wanted.clone(),
            rendered: Arc::new(rendered),
            public_key: None,
            hidden: Arc::new(Secrets(settings).hidden()),
            kept_away: false,
            applied: None,
        }
    }

    /// Makes a configuration what is wanted.
    async fn make(&self, item: &Item<K>) -> Result<Made, Stop> {
        let generation = item.wanted.generation;
        let stop = |what: &str| {
            let attempt = format!("{what}/{generation}");
            move |problem: Problem| Stop::Failed(attempt, problem)
        };
        let properties = match self.allowed(item).await {
            Ok(properties) => properties,
            Err((what, problem)) => {
                // An apiserver that does not answer says nothing about the configuration.
                if problem.fault == Fault::Object {
                    self.suspend(item).await.map_err(stop("suspend"))?;
                }
                return Err(stop(what)(problem));
            }
        };
        if let Some(tag) = &item.wanted.protected
            && self.store.tag(&item.name).as_ref() != Some(tag)
        {
            return Err(self.without_settings(item, tag).await);
        }
        // Where the record was lost, everything is made anew.
        let same = |made: &&Made| made.wanted == item.wanted && item.status.record.own.namespace.is_some();
        let known = locked(&self.made).get(&item.name).filter(same).cloned();
        let mut made = match known {
            Some(made) => made,
            None => self.prepare(item, &properties).await.map_err(stop("prepare"))?,
        };
        // A status that was lost is written again.
        let is_written = item.status.record.own.applied == Some(generation);
        if is_written && !self.differs(item, &made) {
            return Ok(made);
        }
        let attempt = format!("apply/{generation}");
        if item.status.is_put_off(&attempt, self.clock.now()) {
            locked(&self.made).insert(item.name.clone(), made.clone());
            return Ok(made);
        }
        if (self.others)().is_none() {
            locked(&self.made).insert(item.name.clone(), made.clone());
            if is_written {
                return Ok(made);
            }
            let message = "the configurations of the other kind cannot be read, and one in the same namespace may have another scope; see what the agent's status says of that kind";
            let problem = Problem::of(Fault::Cluster, "ScopesNotKnown", message);
            return Err(Stop::Waits(self.progress.wait(item, "WaitingForScopes", problem, false).await));
        }
        if !made.kept_away {
            made.kept_away = true;
            if self.keep_away(item, &made.rendered).await.map_err(stop("apply"))? {
                locked(&self.made).insert(item.name.clone(), made);
                return Err(Stop::Waits(true));
            }
        }
        self.begin(item, &made).await.map_err(stop("apply"))?;
        let repaired = made.applied.is_some();
        let applied = self.apply(item, &made.rendered).await;
        locked(&self.made).insert(item.name.clone(), made.clone());
        made.applied = Some((Instant::now(), applied.map_err(|problem| Stop::Failed(attempt, problem))?));
        locked(&self.made).insert(item.name.clone(), made.clone());
        self.applied(item, repaired).await;
        Ok(made)
    }

    /// Protected settings have not come.
    async fn without_settings(&self, item: &Item<K>, tag: &str) -> Stop {
        let why = self.follow.why_unprotected(&item.name, tag);
        let at_once = why.as_ref().is_some_and(|why| why.code == codes::PROTECTED_SETTINGS_GONE);
        let none =
            || Problem::of(Fault::Gateway, "ProtectedSettingsNotFetched", "the protected settings have not come yet");
        let waits = self.progress.wait(item, "WaitingForProtectedSettings", why.unwrap_or_else(none), at_once).await;
        Stop::Waits(waits)
    }

    /// What is wanted of a configuration, where its cluster lets it be: otherwise what there is of it must not run. What is
    /// there is judged too, as something else may be wanted that never comes about: it is suspended until it does.
    async fn allowed(&self, item: &Item<K>) -> Result<Properties, (&'static str, Problem)> {
        let properties = K::properties(&item.wanted).map_err(|problem| ("properties", problem))?;
        pins::judge(self.settings, &properties, self.store.namespace()).map_err(|problem| ("pins", problem))?;
        self.only_scope(item, &properties).map_err(|problem| ("scope", problem))?;
        self.only_scope_of_strangers(&properties).await.map_err(|problem| ("scope", problem))?;
        if properties.scope() == Ok(Scope::Namespace) {
            self.is_apart(properties.namespace()).await.map_err(|problem| ("controllers", problem))?;
        }
        self.own_credentials(&properties).await.map_err(|problem| ("credentials", problem))?;
        if let Err(problem) = self.judge_made(item) {
            tracing::warn!(
                object = item.name,
                problem = problem.message,
                "what there is of a configuration is suspended"
            );
            self.suspend(item).await.map_err(|problem| ("suspend", problem))?;
        }
        Ok(properties)
    }

    /// Whether what was made of a configuration is allowed in this cluster.
    fn judge_made(&self, item: &Item<K>) -> Result<(), Problem> {
        if let Some((namespace, scope)) = made_in(item) {
            pins::judge_place(self.settings, scope, &namespace, self.store.namespace())?;
        }
        let views = self.views.of(&K::owner(&item.name));
        // A kustomization that is suspended applies nothing. If it counted, one that a former configuration left suspended
        // would suspend this one at every look.
        let runs = |view: &&Arc<View>| !view.deleting && !view.suspended;
        let mut sources = views.iter().filter(runs).filter_map(|view| view.from.as_ref());
        sources.try_for_each(|from| pins::judge_source(self.settings, || Ok(from.clone())))
    }

    /// Whether it was made in another namespace or with other rights: a configuration cannot be changed in that, so what is
    /// there is of another one of its name, which was removed while nobody told this cluster.
    fn has_moved(&self, item: &Item<K>) -> bool {
        let Some(made) = made_in(item) else { return false };
        let Ok(properties) = K::properties(&item.wanted) else { return false };
        let moved = |scope| made != (properties.namespace().to_owned(), scope);
        properties.scope().is_ok_and(moved)
    }

    /// A namespace has one service account that applies, and so configurations of one scope: of those that have something
    /// there, also while they are taken down, and otherwise of the first one.
    fn only_scope(&self, item: &Item<K>, properties: &Properties) -> Result<(), Problem> {
        let (scope, namespace) = (properties.scope()?, properties.namespace());
        let own = Placed::of(item);
        let others = (self.others)().unwrap_or_default();
        for other in Placed::all(self.store).into_iter().chain(others).filter(|other| other.owner != own.owner) {
            let first = (&other.created, &other.owner) < (&own.created, &own.owner);
            let waits = own.made.is_none() && first && !other.deleting;
            let Some((theirs, their_scope)) = other.made.or(other.wanted.filter(|_| waits)) else { continue };
            if theirs == namespace && their_scope != scope {
                let message = format!(
                    "the {} of scope {} is in the namespace {namespace}, and one of scope {} there would share its service account: choose another namespace",
                    other.name,
                    their_scope.as_str(),
                    scope.as_str()
                );
                return Err(Problem::passes("ScopeConflict", message));
            }
        }
        Ok(())
    }

    /// What is left of configurations without a custom resource is applied by the same service account, and keeps the
    /// rights that it had.
    async fn only_scope_of_strangers(&self, properties: &Properties) -> Result<(), Problem> {
        let (scope, namespace) = (properties.scope()?, properties.namespace());
        let Some(others) = (self.others)() else { return Ok(()) };
        let known: BTreeSet<_> = Placed::all(self.store).into_iter().chain(others).map(|one| one.owner).collect();
        let Some(owner) = self.views.owners_in(namespace).into_iter().find(|one| !known.contains(one)) else {
            return Ok(());
        };
        if !(Place { client: self.client }).has_other_scope(namespace, scope).await? {
            return Ok(());
        }
        let message = format!(
            "what is left of the {} in the namespace {namespace} has another scope, and would share the service account of one of scope {}: choose another namespace, or delete its Kustomizations with kubectl",
            called(&owner),
            scope.as_str()
        );
        Err(Problem::passes("ScopeConflict", message))
    }

    /// Where the controllers of Flux run, an administrator of the namespace has their rights. The gateway chooses where
    /// that is: it is looked up.
    async fn is_apart(&self, namespace: &str) -> Result<(), Problem> {
        let known = locked(&self.apart).get(namespace).is_some_and(|at| at.elapsed() < LOOK);
        if known {
            return Ok(());
        }
        if (Place { client: self.client }).has_controllers(namespace).await? {
            return Err(pins::of_controllers(namespace));
        }
        let mut apart = locked(&self.apart);
        apart.retain(|_, at| at.elapsed() < LOOK);
        apart.insert(namespace.to_owned(), Instant::now());
        drop(apart);
        Ok(())
    }

    /// Keys and passwords that were given for a configuration are for its source alone. A name would otherwise have the
    /// cluster send them wherever somebody says who does not know them.
    async fn own_credentials(&self, properties: &Properties) -> Result<(), Problem> {
        let (Some(name), namespace) = (named_secret(properties), properties.namespace()) else { return Ok(()) };
        let others = (self.others)().unwrap_or_default();
        let is_here =
            |one: &Placed| [&one.made, &one.wanted].into_iter().flatten().any(|(theirs, _)| theirs == namespace);
        let here = Placed::all(self.store).into_iter().chain(others).filter(is_here).map(|one| one.owner);
        match (Place { client: self.client }).secret_owner(namespace, name, here).await? {
            SecretOwner::Nobody => Ok(()),
            SecretOwner::Configuration(owner) => {
                let message = format!(
                    "localAuthRef names the Secret {name}, which is made for the {} and goes to no other source: give keys and passwords of its own, or make a Secret with another name in {namespace}",
                    called(&owner)
                );
                Err(Problem::passes("SecretOfConfiguration", message))
            }
            SecretOwner::Later => {
                let message = format!(
                    "localAuthRef names the Secret {name}, which is not there in {namespace}, and which a later configuration could have by its name: make it first, or give it a name with another end than -auth, -tls, -verify or -proxy"
                );
                Err(Problem::passes("SecretMissing", message))
            }
        }
    }

    /// Suspends sources of other configurations that name a Secret which is about to be made; whether there was one. Flux
    /// must hear of that before the Secret is there, and so it is made at the next look; not later, as who changes sources in
    /// the cluster could hold up others.
    async fn keep_away(&self, item: &Item<K>, wanted: &Rendered) -> Result<bool, Problem> {
        let (place, owner) = (Place { client: self.client }, K::owner(&item.name));
        let mut found = false;
        for (kind, source) in place.sources_with(&owner, &wanted.namespace, wanted.secrets.keys()).await? {
            if source.data["spec"]["suspend"] != true {
                found = true;
                let (object, name) = (&item.name, source.name_any());
                tracing::warn!(object, name, "a source names the Secret of another configuration: suspended");
                place.suspend(kind, &source).await?;
            }
        }
        Ok(found)
    }

    /// What is to be made of it.
    async fn prepare(&self, item: &Item<K>, properties: &Properties) -> Result<Made, Problem> {
        let not_read = |err| Problem::of(Fault::Cluster, "SecretNotRead", err);
        let settings = match item.wanted.protected {
            Some(_) => self.store.protected(&item.name).await.map_err(not_read)?,
            None => Default::default(),
        };
        let secrets = Secrets(settings);
        let mut hidden = secrets.clone();
        let (mut properties, owner) = (properties.clone(), K::owner(&item.name));
        K::reveal(&mut properties, &secrets)?;
        let generated = match needs_key(&properties, &secrets) {
            true => Some(self.key(item).await?),
            false => None,
        };
        let proxy = self.way_out(item, &owner, &properties)?;
        hidden.0.extend(proxy.iter().map(|proxy| ("proxy".to_owned(), proxy.credentials.password.clone())));
        let hidden = hidden.hidden();
        let configuration = Configuration {
            name: &owner,
            generation: item.wanted.generation,
            properties: &properties,
            secrets: &secrets,
            generated: generated.as_ref(),
            proxy: proxy.as_ref(),
        };
        let rendered = configuration.render()?;
        let given = || KeyPair::public_of(&secrets.bytes("sshPrivateKey").ok()??);
        let public_key = generated.as_ref().map(|pair| pair.public.clone()).or_else(given);
        let wanted = item.wanted.clone();
        let (rendered, hidden) = (Arc::new(rendered), Arc::new(hidden));
        Ok(Made { wanted, rendered, public_key, hidden, kept_away: false, applied: None })
    }

    /// How the source is reached through the gateway, where it is to be.
    fn way_out(&self, item: &Item<K>, owner: &str, properties: &Properties) -> Result<Option<Proxy>, Problem> {
        if properties.through_gateway != Some(true) {
            self.egress.take(owner);
            return Ok(None);
        }
        let to = destination(properties)?;
        let address = self.proxy.ok_or_else(|| {
            let message = "the source is to be reached through the gateway, and the Service egress-proxy was not there when this pod started: upgrade the extension microsoft.flux, or restart the Deployment fluxconfig-agent";
            Problem::of(Fault::Cluster, "NoEgressProxy", message)
        })?;
        let no_grant = |err| Problem::of(Fault::Cluster, "NoEgressProxy", err);
        let credentials = self.egress.give(owner, &item.name, &to).map_err(no_grant)?;
        Ok(Some(Proxy { address: address.to_owned(), credentials }))
    }

    /// The key of a configuration that has none of its own: the same one for its life. Of two processes that make one at
    /// once, as before and after a partition of the network, that of the first is the key of both.
    async fn key(&self, item: &Item<K>) -> Result<KeyPair, Problem> {
        let mut is_first = true;
        loop {
            if let Some(kept) = self.kept_key(item).await? {
                return Ok(kept);
            }
            let not_kept = |err: String| Problem::of(Fault::Cluster, "KeyNotKept", err);
            let pair = KeyPair::generate(&format!("towline/{}", item.name)).map_err(not_kept)?;
            if self.store.keep_first(&self.key_secret(item, &pair)?, KEPT_KEY).await.map_err(not_kept)? {
                return Ok(pair);
            }
            if !std::mem::take(&mut is_first) {
                return Err(not_kept(format!(
                    "{KEPT_KEY} comes and goes while it is written; something else writes it"
                )));
            }
        }
    }

    /// The key that was made before.
    async fn kept_key(&self, item: &Item<K>) -> Result<Option<KeyPair>, Problem> {
        let name = key_name::<K>(&item.name);
        let not_kept = |err: String| Problem::of(Fault::Cluster, "KeyNotKept", err);
        let found = self.store.secrets().get_opt(&name).await;
        let found = found.map_err(|err| not_kept(format!("the Secret {name} cannot be read: {}", chain(&err))))?;
        let Some(secret) = found else { return Ok(None) };
        // The custom resource may have been made anew: the key would go with the one from before.
        let is_own = self.store.is_owned(&secret.metadata, item);
        let kept = secret.data.and_then(|mut data| data.remove(CONTENT));
        let private: Option<String> = kept.and_then(|kept| serde_json::from_slice(&kept.0).ok());
        let pair = private.and_then(|private| KeyPair::read(private.as_bytes()));
        if let Some(pair) = pair.as_ref().filter(|_| !is_own) {
            let secret = self.key_secret(item, pair)?;
            self.store.keep(secret, KEPT_KEY).await.map_err(not_kept)?;
        }
        // A new one would not be the one that the repository knows.
        let unreadable = || {
            let message = format!(
                "the key in Secret {name} was changed; remove that Secret, and give the new public key to the repository"
            );
            Problem::stays("KeyUnreadable", message)
        };
        pair.map(Some).ok_or_else(unreadable)
    }

    fn key_secret(&self, item: &Item<K>, pair: &KeyPair) -> Result<Secret, Problem> {
        let not_kept = |err: String| Problem::of(Fault::Cluster, "KeyNotKept", err);
        let mut secret = content(&key_name::<K>(&item.name), &pair.private).map_err(not_kept)?;
        secret.metadata.owner_references = Some(vec![self.store.owner(item)]);
        Ok(secret)
    }

    /// Whether what is there is not what was made, or was not looked at for long.
    fn differs(&self, item: &Item<K>, made: &Made) -> bool {
        let Some((at, generations)) = &made.applied else { return true };
        if at.elapsed() >= self.settings.resync_interval {
            return true;
        }
        if self.views.known().is_err() {
            return false;
        }
        let views = self.views.of(&K::owner(&item.name));
        let key = |view: &View| (view.kind, view.name.clone());
        let left = self.left(&item.name);
        let is_own = |view: &View| !left.contains(&left::name(view.kind, &view.namespace, &view.name));
        let counts = |view: &&Arc<View>| is_own(view) && (!view.deleting || generations.contains_key(&key(view)));
        let here: HashMap<_, _> = views.iter().filter(counts).map(|view| (key(view), view.generation)).collect();
        // What is there beside is removed.
        here != *generations
    }

    async fn begin(&self, item: &Item<K>, made: &Made) -> Result<(), Problem> {
        let is_new = item.status.observed_generation != item.wanted.generation || item.status.state.is_none();
        let own = &item.status.record.own;
        // It may have waited in this generation before, as for protected settings.
        let takes = own.left.iter().flatten().any(|name| left::is_wanted(name, &made.rendered));
        if !is_new && own.scope.is_some() && !takes {
            return Ok(());
        }
        let mut status = if is_new { self.progress.begun(item) } else { item.status.clone() };
        if own.left.is_none() && own.scope.is_none() && own.applied.is_none() {
            let (place, owner) = (Place { client: self.client }, K::owner(&item.name));
            let names = left::besides(&place.list(&owner, &left::KINDS).await?, &made.rendered);
            if let Some(message) = left::told(&names) {
                let now = self.clock.now();
                tracing::warn!(object = item.name, message, "a configuration of this name was here before");
                let reason = left::LINE;
                let happened =
                    Happened { phase: Phase::Create, warning: true, reason, message: &message, object: None };
                status.event(operation(item), &happened, now);
            }
            status.record.own.left = Some(names);
        }
        if let Some(names) = &mut status.record.own.left {
            left::keep(names, &made.rendered);
        }
        status.record.own.namespace = Some(made.rendered.namespace.clone());
        status.record.own.scope = Some(made.rendered.scope.as_str().to_owned());
        self.progress.save(&item.name, &status).await;
        Ok(())
    }

    /// What was there before a configuration and is none of its own.
    fn left(&self, name: &str) -> Vec<String> {
        self.store.get(name).and_then(|item| item.status.record.own.left).unwrap_or_default()
    }

    /// What Flux says of what a configuration made itself.
    fn own_views(&self, name: &str) -> Vec<Arc<View>> {
        let (left, mut views) = (self.left(name), self.views.of(&K::owner(name)));
        views.retain(|view| !left.contains(&left::name(view.kind, &view.namespace, &view.name)));
        views
    }

    /// Makes everything; the generations of Flux's objects.
    async fn apply(&self, item: &Item<K>, wanted: &Rendered) -> Result<Generations, Problem> {
        let (place, owner) = (Place { client: self.client }, K::owner(&item.name));
        let name = owner.as_str();
        place.namespace(&wanted.namespace).await?;
        place.applier(&wanted.namespace, wanted.scope).await?;
        place.secrets(name, &wanted.namespace, &wanted.secrets).await?;
        let left = self.left(&item.name);
        let mut there = place.list(name, &left::KINDS).await?;
        there.retain(|(kind, object)| !left.contains(&left::name_of(*kind, object)));
        // Before those that take their place are made: a process that ends between the two leaves what it waits for.
        let leaving = handover::leaving(&there, wanted);
        for one in leaving.iter().filter(|one| !one.is_held()) {
            let held = place.flux(FluxKind::Kustomization, name, &one.held(name)).await?;
            self.views.put(FluxKind::Kustomization, &held);
        }
        let mut generations = HashMap::new();
        let kind_of = |kind: &serde_json::Value| FluxKind::SOURCES.into_iter().find(|one| kind == one.names().2);
        let source = kind_of(&wanted.source["kind"]).unwrap_or(FluxKind::GitRepository);
        let all = std::iter::once((source, &wanted.source));
        for (kind, object) in all.chain(wanted.kustomizations.values().map(|one| (FluxKind::Kustomization, one))) {
            let made = place.flux(kind, name, object).await?;
            self.views.put(kind, &made);
            generations.insert((kind, made.name_any()), made.metadata.generation.unwrap_or(0));
        }
        for (kind, object) in &there {
            let is_wanted = generations.contains_key(&(*kind, object.name_any()))
                && object.metadata.namespace.as_ref() == Some(&wanted.namespace);
            if is_wanted || object.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let waits = leaving.iter().find(|one| std::ptr::eq(one.object, object));
            if waits.is_some_and(|one| !handover::is_done(self.views, &wanted.namespace, &generations, &one.waits_for))
            {
                continue;
            }
            tracing::info!(
                object = item.name,
                kind = kind.names().2,
                name = object.name_any(),
                "removed from a configuration"
            );
            place.retire(*kind, name, object, waits.is_some()).await?;
        }
        Ok(generations)
    }

    /// It was applied.
    async fn applied(&self, item: &Item<K>, repaired: bool) {
        let Some(known) = self.store.get(&item.name) else { return };
        let (mut status, generation, now) = (known.status, item.wanted.generation, self.clock.now());
        if status.record.own.applied == Some(generation) && status.record.failed.is_none() {
            // Looked at again; something may have been put right.
            tracing::debug!(object = item.name, repaired, "a configuration was applied again");
            return;
        }
        let phase = if status.record.own.applied.is_some() { Phase::Upgrade } else { Phase::Create };
        status.record.own.applied = Some(generation);
        status.record.own.applied_at = Some(spell(now));
        (status.record.failed, status.record.retry_at, status.record.attempts) = (None, None, 0);
        let message = "Flux's objects were made";
        status.event(
            operation(item),
            &Happened { phase, warning: false, reason: "Applied", message, object: None },
            now,
        );
        tracing::info!(object = item.name, generation, "a configuration was applied");
        self.progress.save(&item.name, &status).await;
    }

    /// Suspends whatever there is of a configuration that is not allowed.
    async fn suspend(&self, item: &Item<K>) -> Result<(), Problem> {
        let owner = K::owner(&item.name);
        self.egress.take(&owner);
        let all_suspended = self.views.known().is_ok() && self.views.of(&owner).iter().all(|view| view.suspended);
        if all_suspended {
            return Ok(());
        }
        locked(&self.made).remove(&item.name);
        let place = Place { client: self.client };
        let kinds = [FluxKind::Kustomization, FluxKind::GitRepository, FluxKind::Bucket, FluxKind::OciRepository];
        for (kind, object) in place.list(&owner, &kinds).await? {
            if object.data["spec"]["suspend"] != true {
                tracing::warn!(
                    object = item.name,
                    name = object.name_any(),
                    "a configuration is not allowed in this cluster: suspended"
                );
                place.suspend(kind, &object).await?;
            }
        }
        Ok(())
    }

    /// Reads what Flux says of a configuration; whether it is to be looked at again soon.
    async fn comply(&self, name: &str, made: &Made, shared: &[(String, String)]) -> bool {
        let Some(item) = self.store.get(name) else { return false };
        let now = self.clock.now();
        let mut status = item.status.clone();
        if self.views.known().is_err() {
            let waits = self.settle(&mut status, &item, made, Compliance::Pending, now);
            if status.shown.compliance_state.is_none() {
                status.shown.compliance_state = Some(Compliance::Pending.as_str().to_owned());
            }
            self.progress.save(name, &status).await;
            return waits;
        }
        let mut report = self.report(name, made, shared);
        let failed = status.error_info.as_ref().filter(|_| status.state == Some(ObjectState::Failed));
        if let Some(failed) = failed {
            report.error = Some(failed.message.clone());
            report.compliance = Compliance::NonCompliant;
        }
        let stopped = locked(&self.stopped).1.clone().filter(|_| report.compliance != Compliance::Suspended);
        if let Some(stopped) = stopped.filter(|_| failed.is_none()) {
            report.error = Some(stopped);
            report.compliance = Compliance::NonCompliant;
        }
        report.error = report.error.take().or_else(|| K::remark(&item.wanted));
        let parts = std::mem::take(&mut report.parts);
        let news = self.ledger.is_some_and(|ledger| ledger.set(name, parts));
        let shown = Shown {
            compliance_state: Some(report.compliance.as_str().to_owned()),
            error_message: report.error.clone(),
            repository_public_key: made.public_key.clone(),
            source_synced_commit_id: report.commit.clone(),
            source_updated_at: report.updated.clone(),
            status_updated_at: status.shown.status_updated_at.clone(),
            objects: report.counts.total,
            compliant_objects: report.counts.compliant,
            non_compliant_objects: report.counts.non_compliant,
            pending_objects: report.counts.pending,
            non_compliant: report.failing.clone(),
        };
        if shown != status.shown || news {
            self.tell_change(&mut status, &item, &shown, now);
            status.shown = Shown { status_updated_at: Some(spell(now)), ..shown };
        }
        let waits = self.settle(&mut status, &item, made, report.compliance, now);
        self.tell_leaving(&mut status, &item, made, now);
        self.progress.save(name, &status).await;
        if news {
            self.store.nudge();
        }
        waits
    }

    /// What Flux says of a configuration.
    fn report(&self, name: &str, made: &Made, shared: &[(String, String)]) -> comply::Report {
        let (source, mut kustomizations) = self.judged(name);
        // It is suspended because it waits, and the configuration is not.
        for one in kustomizations.iter_mut().filter(|one| made.leaves(&one.view).is_some()) {
            one.compliance = Compliance::Pending;
        }
        let chart = |namespace: &str, name: &str| {
            let view = self.views.get(FluxKind::HelmRelease, namespace, name)?;
            Some(locked(&self.memory).judge(&view, None, Instant::now()))
        };
        let material = Material {
            source: source.as_ref(),
            kustomizations: &kustomizations,
            wanted: made.rendered.kustomizations.len(),
            chart: &chart,
            hidden: &made.hidden,
            shared,
        };
        let suspended = made.rendered.source["spec"]["suspend"] == true;
        material.report(suspended, FAILING_MAX)
    }

    /// The source and the kustomizations of a configuration, with what holds of them.
    fn judged(&self, name: &str) -> (Option<Judged>, Vec<Judged>) {
        let (views, now) = (self.own_views(name), Instant::now());
        let mut memory = locked(&self.memory);
        let is_source = |view: &&Arc<View>| FluxKind::SOURCES.contains(&view.kind) && !view.deleting;
        let source = views.iter().find(is_source).map(|view| memory.judge(view, None, now));
        let revision = source.as_ref().and_then(|source| source.view.revision.clone());
        let kustomizations = views.iter().filter(|view| view.kind == FluxKind::Kustomization);
        let judge = |view| comply::anew(source.as_ref(), memory.judge(view, revision.as_deref(), now));
        let judged = kustomizations.map(judge).collect();
        (source, judged)
    }

    /// Says which kustomizations left and stay for now; of what was never made here nothing is known.
    fn tell_leaving(&self, status: &mut Status<K>, item: &Item<K>, made: &Made, now: SystemTime) {
        let views = self.own_views(&item.name);
        let leaving: Vec<_> = views.iter().filter_map(|view| made.leaves(view)).collect();
        let Some(message) = handover::told(&leaving) else {
            status.statuses.retain(|line| line.code != handover::LINE);
            return;
        };
        if status.statuses.iter().any(|line| line.code == handover::LINE && line.message == message) {
            return;
        }
        status.line(handover::LINE, "Handing over", "Information", &message, now);
        let happened =
            Happened { phase: Phase::Upgrade, warning: false, reason: handover::LINE, message: &message, object: None };
        status.event(operation(item), &happened, now);
    }

    fn tell_change(&self, status: &mut Status<K>, item: &Item<K>, shown: &Shown, now: SystemTime) {
        let before = &status.shown;
        if before.compliance_state == shown.compliance_state
            && before.source_synced_commit_id == shown.source_synced_commit_id
        {
            return;
        }
        let warning = shown.compliance_state.as_deref() == Some(Compliance::NonCompliant.as_str());
        let (reason, message) = match shown.compliance_state.as_deref() {
            Some(compliance::COMPLIANT) => (
                "Compliant",
                format!("{} is applied", shown.source_synced_commit_id.as_deref().unwrap_or("the source")),
            ),
            Some(compliance::NON_COMPLIANT) => ("NonCompliant", shown.error_message.clone().unwrap_or_default()),
            _ => return,
        };
        let happened = Happened { phase: Phase::Upgrade, warning, reason, message: &message, object: None };
        status.event(operation(item), &happened, now);
    }

    /// It has succeeded when it was applied, and where it waits for that, when it complies or has waited long enough.
    fn settle(
        &self,
        status: &mut Status<K>,
        item: &Item<K>,
        made: &Made,
        compliance: Compliance,
        now: SystemTime,
    ) -> bool {
        let generation = item.wanted.generation;
        let is_applied = made.applied.is_some() && status.record.own.applied == Some(generation);
        let is_done = status.state == Some(ObjectState::Succeeded) && status.observed_generation == generation;
        if !is_applied || is_done || status.record.failed.is_some() {
            return false;
        }
        let wait = K::properties(&item.wanted).ok().and_then(|properties| properties.wait());
        let since = status.record.own.applied_at.as_deref().and_then(|at| parse(at).ok()).unwrap_or(now);
        let compliant = matches!(compliance, Compliance::Compliant | Compliance::Suspended);
        let is_over = |wait| since.checked_add(wait).is_some_and(|end| now >= end);
        if wait.is_some_and(|wait| !compliant && !is_over(wait)) {
            let message = "it was applied, and waits until it complies";
            status.line("WaitingForReconciliation", "Waiting", "Information", message, now);
            return true;
        }
        status.succeeded(generation);
        status.statuses.clear();
        false
    }

    /// Takes over what another resource of this name made: what this one does not name of it stays.
    async fn adopt(&self, item: &Item<K>, adopted: i64) -> bool {
        let Some(status) = self.store.get(&item.name).map(|now| now.status) else { return false };
        tracing::info!(object = item.name, "what another configuration of this name made is taken over");
        locked(&self.made).remove(&item.name);
        let record = Record {
            since: status.record.since,
            adopted: Some(adopted),
            last_event: status.record.last_event,
            ..Record::default()
        };
        let fresh = Status { events: status.events, record, ..Status::default() };
        self.progress.save(&item.name, &working(fresh, &item.wanted)).await;
        true
    }

    /// Takes down what a configuration of this name before it left.
    async fn replace(&self, item: &Item<K>, since: Option<i64>) -> bool {
        let attempt = format!("replace/{}", item.wanted.generation);
        if item.status.is_put_off(&attempt, self.clock.now()) {
            return false;
        }
        match self.take_down(item).await {
            Ok(false) => true,
            Ok(true) => {
                let status = self.store.get(&item.name).map(|now| now.status).unwrap_or_default();
                let (adopted, last_event) = (item.wanted.origin.adopted, status.record.last_event);
                let record = Record { since, adopted, last_event, ..Record::default() };
                let fresh = Status { events: status.events, record, ..Status::default() };
                self.progress.save(&item.name, &working(fresh, &item.wanted)).await;
                true
            }
            Err(problem) => {
                self.progress.fail(item, &attempt, &problem).await;
                false
            }
        }
    }

    /// Takes a configuration down; whether it is to be looked at again soon.
    async fn delete(&self, item: &Item<K>) -> bool {
        let generation = item.wanted.generation;
        if item.status.state == Some(ObjectState::Deleted) && item.status.observed_generation == generation {
            return false;
        }
        let attempt = format!("delete/{generation}");
        if item.status.is_put_off(&attempt, self.clock.now()) {
            return false;
        }
        match self.take_down(item).await {
            Ok(false) => true,
            Ok(true) => {
                let mut status = self.store.get(&item.name).map(|now| now.status).unwrap_or_default();
                let now = self.clock.now();
                status.succeeded(generation);
                status.state = Some(ObjectState::Deleted);
                status.shown = Shown::default();
                status.record.own = Own::default();
                let message = "it is gone";
                let happened =
                    Happened { phase: Phase::Delete, warning: false, reason: "Succeeded", message, object: None };
                status.event(operation(item), &happened, now);
                tracing::info!(object = item.name, "a configuration is gone");
                self.progress.save(&item.name, &status).await;
                false
            }
            Err(problem) => {
                self.progress.fail(item, &attempt, &problem).await;
                false
            }
        }
    }

    /// Removes what a configuration made, first what applies, so that Flux removes what it applied; whether all is gone.
    async fn take_down(&self, item: &Item<K>) -> Result<bool, Problem> {
        let (now, name, place) = (self.clock.now(), item.name.as_str(), Place { client: self.client });
        let owner = K::owner(name);
        locked(&self.made).remove(name);
        self.egress.take(&owner);
        let mut status = item.status.clone();
        if status.record.own.deleting_since.is_none() {
            status = self.progress.begun(item);
            status.record.own.deleting_since = Some(spell(now));
            status.statuses.clear();
            let message = "it is being taken down";
            let happened = Happened { phase: Phase::Delete, warning: false, reason: "Started", message, object: None };
            status.event(operation(item), &happened, now);
            tracing::info!(object = item.name, "a configuration is taken down");
            self.progress.save(name, &status).await;
        }
        let names = item.status.record.own.left.clone().unwrap_or_default();
        let steps: [(&[FluxKind], Duration, &str); 2] = [
            (&[FluxKind::Kustomization], PRUNED, "kustomize-controller"),
            (&FluxKind::SOURCES, LET_GO, "source-controller"),
        ];
        for (kinds, bound, controller) in steps {
            let left = place.list(&owner, kinds).await?;
            if left.is_empty() {
                continue;
            }
            let mut late = Vec::new();
            for (kind, object) in left {
                // By the apiserver's word: Flux had that long, whatever held this role up.
                let asked = object.metadata.deletion_timestamp.as_ref().map(|at| SystemTime::from(at.0));
                match asked.map(|asked| now.duration_since(asked).unwrap_or_default()) {
                    None if names.contains(&left::name_of(kind, &object)) => {
                        place.let_stay(kind, &owner, &object).await?;
                    }
                    None => place.retire(kind, &owner, &object, false).await?,
                    Some(passed) if passed >= bound && Place::is_held(&object) => late.push((kind, object, passed)),
                    Some(_) => {}
                }
            }
            if !late.is_empty() {
                self.is_late(item, status, late, controller).await?;
            }
            return Ok(false);
        }
        // Where the record was lost, what is wanted says where it was.
        let usable =
            |namespace: &String| pins::judge_namespace(namespace, Scope::Cluster, self.store.namespace()).is_ok();
        let wanted = wanted_in(item).map(|(namespace, _)| namespace).filter(&usable);
        // Secrets and rights of what was there before go with it: their objects are gone by now.
        let before = names.iter().filter_map(|name| name.split('/').nth(1)).map(str::to_owned).filter(&usable);
        let own = item.status.record.own.namespace.clone();
        let namespaces: BTreeSet<_> = own.into_iter().chain(wanted).chain(before).collect();
        let others = (self.others)().unwrap_or_default();
        for namespace in &namespaces {
            place.secrets(&owner, namespace, &Default::default()).await?;
            let is_here = |(theirs, _): &(String, Scope)| theirs == namespace;
            let uses = |other: &Placed| other.owner != owner && other.made.as_ref().is_some_and(is_here);
            let is_used = Placed::all(self.store).iter().chain(&others).any(uses);
            let has_objects = self.views.owners_in(namespace).iter().any(|other| *other != owner);
            if !is_used && !has_objects {
                place.remove_applier(namespace).await?;
            }
        }
        match self.store.secrets().delete(&key_name::<K>(name), &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(err) => {
                return Err(crate::roles::objects::store::failed(
                    "the Secret of a generated key cannot be removed",
                    &err,
                ));
            }
        }
        Ok(true)
    }

    /// Flux has not ended what it had to: it has longer where it is at work, and otherwise its finalizers are taken off. Says
    /// what is known of it.
    async fn is_late(
        &self,
        item: &Item<K>,
        mut status: Status<K>,
        late: Vec<(FluxKind, kube::api::DynamicObject, Duration)>,
        controller: &str,
    ) -> Result<(), Problem> {
        let (now, place) = (self.clock.now(), Place { client: self.client });
        let seen = place.last_seen(controller).await;
        let runs = matches!(&seen, Ok(Some(at)) if now.duration_since(*at).unwrap_or_default() < RUNS);
        let known = match &seen {
            _ if runs => format!("{controller} runs"),
            Ok(Some(at)) => format!("{controller} does not run, and was seen last at {}", spell(*at)),
            Ok(None) => format!("{controller} does not run in {}", pins::FLUX),
            Err(problem) => problem.message.clone(),
        };
        let (mut waits, mut kept, mut longest) = (Vec::new(), Vec::new(), Duration::ZERO);
        for (kind, object, passed) in late {
            let name = format!("{} {}", kind.names().2, object.name_any());
            if runs && kind == FluxKind::Kustomization && passed < PRUNED_BY_ONE_THAT_RUNS {
                waits.push(name);
            } else if place.let_go(kind, &object).await? {
                kept.push(name);
                longest = longest.max(passed);
            }
        }
        let first = |names: &[String]| names.iter().take(5).cloned().collect::<Vec<_>>().join(", ");
        if !waits.is_empty() {
            let message = format!(
                "{known}, and removes what {} kustomizations had applied ({}), or tries to: its log and the events of the kustomizations say what keeps it. It has {} minutes for that",
                waits.len(),
                first(&waits),
                PRUNED_BY_ONE_THAT_RUNS.as_secs() / 60
            );
            status.line("Pruning", "Pruning", "Information", &message, now);
        }
        if !kept.is_empty() {
            let message = format!(
                "Flux did not finish deleting {} objects within {} seconds ({}): {known}. Their finalizers were removed, and what they had applied may still be there",
                kept.len(),
                longest.as_secs(),
                first(&kept)
            );
            tracing::warn!(object = item.name, message, "a configuration is taken down without Flux");
            status.line("FinalizersRemoved", "Finalizers removed", "Warning", &message, now);
            let happened = Happened {
                phase: Phase::Delete,
                warning: true,
                reason: "FinalizersRemoved",
                message: &message,
                object: None,
            };
            status.event(operation(item), &happened, now);
        }
        if !(waits.is_empty() && kept.is_empty()) {
            self.progress.save(&item.name, &status).await;
        }
        Ok(())
    }
}
