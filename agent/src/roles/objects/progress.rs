//! Writes down how far objects are: what is begun, what waits, what failed and when it is tried again.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use types::agent_api::ObjectState;

use super::{
    Kind,
    state::{Fault, HELD_UP_MAX, Happened, Item, Phase, Problem, Status, Wanted},
    store::Store,
};
use crate::identity::clock::SharedClock;

/// How long an object waits for what the gateway has before it is told to have failed.
pub const WAIT: Duration = Duration::from_secs(180);

/// Writes down how far objects of a kind are.
pub struct Progress<'a, K: Kind> {
    /// Where that is kept.
    pub store: &'a Store<K>,
    /// The time of day.
    pub clock: SharedClock,
    /// Since when an object waits, by name and generation.
    waits: Mutex<HashMap<(String, i64), Instant>>,
}

/// The operation that wanted it so.
pub fn operation<K: Kind>(item: &Item<K>) -> Option<&str> {
    item.wanted.operation.as_deref()
}

impl<'a, K: Kind> Progress<'a, K> {
    /// In this store.
    pub fn new(store: &'a Store<K>, clock: SharedClock) -> Self {
        Self { store, clock, waits: Mutex::default() }
    }

    /// What is wanted otherwise by now waits no more.
    pub fn forget_waits(&self) {
        let generations: HashMap<_, _> =
            self.store.all().into_iter().map(|one| (one.name.clone(), one.wanted.generation)).collect();
        let mut waiting = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|(name, generation), _| generations.get(name) == Some(generation));
    }

    /// Writes a status down. Where that fails, memory has it, and the next write tells it.
    pub async fn save(&self, name: &str, status: &Status<K>) {
        if let Err(problem) = self.store.set_status(name, status).await {
            tracing::warn!(object = name, problem, kind = K::TYPE, "the status of an object is not written");
        }
    }

    /// The object as it is wanted by now, if the same is wanted: its newest generation.
    pub fn newest(&self, item: &Item<K>) -> Item<K> {
        let now = self.store.get(&item.name).map(|now| now.wanted);
        let wanted = now.filter(|now| now.is_same_wish(&item.wanted)).unwrap_or_else(|| item.wanted.clone());
        Item { wanted, ..item.clone() }
    }

    /// Something that says nothing about the object keeps it from being worked at; whether that is all.
    pub async fn held_up(&self, item: &Item<K>, mut status: Status<K>, attempt: &str, problem: &Problem) -> bool {
        let now = self.clock.now();
        if status.is_put_off(attempt, now) {
            return true;
        }
        let is_new = status.observed_generation != item.wanted.generation;
        if is_new {
            status.record.held_up_since = None;
        }
        if !status.held_up(attempt, problem, now) {
            return false;
        }
        if is_new || !status.state.is_some_and(ObjectState::is_end) {
            status = working(status, &item.wanted);
        }
        note(&mut status, item, problem, now);
        tracing::info!(
            object = item.name,
            kind = K::TYPE,
            code = problem.code,
            problem = problem.message,
            "an object waits"
        );
        self.save(&item.name, &status).await;
        true
    }

    /// It failed at `attempt`, unless the problem says nothing about the object and may still pass.
    pub async fn fail(&self, item: &Item<K>, attempt: &str, problem: &Problem) {
        let item = &self.newest(item);
        let (now, generation) = (self.clock.now(), item.wanted.generation);
        let known = self.store.get(&item.name).map(|one| one.status).unwrap_or_else(|| item.status.clone());
        if problem.fault != Fault::Object && self.held_up(item, known.clone(), attempt, problem).await {
            return;
        }
        let told = known.error_info.as_ref().is_some_and(|error| error.code == problem.code);
        let same = known.state == Some(ObjectState::Failed) && known.observed_generation == generation && told;
        if same && known.is_put_off(attempt, now) {
            return;
        }
        let mut status = known;
        status.failed(generation, attempt, problem, now);
        note(&mut status, item, problem, now);
        tracing::warn!(
            object = item.name,
            kind = K::TYPE,
            code = problem.code,
            problem = problem.message,
            "an object failed"
        );
        self.save(&item.name, &status).await;
    }

    /// It is being worked at.
    pub fn begun(&self, item: &Item<K>) -> Status<K> {
        working(item.status.clone(), &item.wanted)
    }

    /// How long an object waits in this generation.
    pub fn waited(&self, item: &Item<K>) -> Duration {
        let key = (item.name.clone(), item.wanted.generation);
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        waits.entry(key).or_insert_with(Instant::now).elapsed()
    }

    /// Waits for something that comes by itself; not for ever.
    pub async fn wait(&self, item: &Item<K>, code: &str, problem: Problem, at_once: bool) -> bool {
        let waited = self.waited(item);
        let ends = match problem.fault {
            Fault::Object => waited >= WAIT,
            Fault::Cluster => waited >= HELD_UP_MAX,
            Fault::Gateway => false,
        };
        if at_once || ends {
            let attempt = format!("{code}/{}", item.wanted.generation);
            self.fail(item, &attempt, &problem).await;
            return false;
        }
        if item.status.state != Some(ObjectState::Failed) || item.status.observed_generation != item.wanted.generation {
            let mut status = self.begun(item);
            status.line(code, "Waiting", "Information", &problem.message, self.clock.now());
            self.save(&item.name, &status).await;
        }
        waited < WAIT
    }
}

/// It is being worked at.
pub fn working<K: Kind>(mut status: Status<K>, wanted: &Wanted) -> Status<K> {
    if status.observed_generation != wanted.generation {
        status.record.held_up_since = None;
    }
    status.observed_generation = wanted.generation;
    status.state = Some(if wanted.deleting {
        ObjectState::Deleting
    } else if K::is_there(&status) {
        ObjectState::Updating
    } else {
        ObjectState::Creating
    });
    status.error_info = None;
    status
}

/// Keeps a problem among the events.
pub fn note<K: Kind>(status: &mut Status<K>, item: &Item<K>, problem: &Problem, now: SystemTime) {
    let phase = phase_of(item);
    let happened = Happened { phase, warning: true, reason: problem.code, message: &problem.message, object: None };
    status.event(operation(item), &happened, now);
}

fn phase_of<K: Kind>(item: &Item<K>) -> Phase {
    if item.wanted.deleting {
        Phase::Delete
    } else if K::is_there(&item.status) {
        Phase::Upgrade
    } else {
        Phase::Create
    }
}
