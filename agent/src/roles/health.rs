//! How each role fares, and what is wrong if it does not: read by readiness, status, metrics, the custom resource and
//! the heartbeat.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::{identity::spell, metrics};

/// Characters of an error that are kept.
const ERROR_CHARS: usize = 2000;

/// How a role fares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not yet known.
    Starting,
    /// It does its work.
    Running,
    /// It does not, and tries again.
    Failing,
}

impl State {
    /// As in a heartbeat.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "Starting",
            Self::Running => "Running",
            Self::Failing => "Failing",
        }
    }
}

/// What is known of one role.
#[derive(Debug, Clone)]
pub struct RoleHealth {
    /// Whether the role works.
    pub state: State,
    /// One word for why, as a condition has it.
    pub reason: &'static str,
    /// What is wrong; empty if nothing is.
    pub message: String,
    /// Since when it is so.
    pub since: SystemTime,
    /// The facts beside it that do not work, such as what RBAC forbids; what was tried and why it failed.
    pub warnings: Vec<String>,
}

/// The state of every role in this process. Clones share it.
#[derive(Debug, Clone)]
pub struct Health {
    roles: Arc<Mutex<BTreeMap<&'static str, RoleHealth>>>,
    changed: watch::Sender<u64>,
}

impl Default for Health {
    fn default() -> Self {
        Self { roles: Arc::default(), changed: watch::Sender::new(0) }
    }
}

impl Health {
    fn roles(&self) -> MutexGuard<'_, BTreeMap<&'static str, RoleHealth>> {
        self.roles.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The part of one role.
    pub fn of(&self, role: &'static str) -> Reporter {
        Reporter { board: self.clone(), role }
    }

    /// What is known now.
    pub fn all(&self) -> BTreeMap<&'static str, RoleHealth> {
        self.roles().clone()
    }

    /// Tells of changes.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// A JSON object with the state, reason, message and warnings of each role, by its name.
    pub fn json(&self) -> Value {
        let roles = self.all().into_iter().map(|(name, health)| {
            let value = json!({
                "state": health.state.as_str(), "reason": health.reason, "message": health.message,
                "since": spell(health.since), "warnings": health.warnings,
            });
            (name.to_owned(), value)
        });
        Value::Object(roles.collect())
    }

    fn set(&self, role: &'static str, state: State, reason: &'static str, message: &str) {
        let message: String = message.chars().take(ERROR_CHARS).collect();
        let mut roles = self.roles();
        let known = roles.get(role);
        if known.is_some_and(|old| (old.state, old.reason, &old.message) == (state, reason, &message)) {
            return;
        }
        let since = known.filter(|old| old.state == state).map_or_else(SystemTime::now, |old| old.since);
        let warnings = known.map(|old| old.warnings.clone()).unwrap_or_default();
        roles.insert(role, RoleHealth { state, reason, message, since, warnings });
        drop(roles);
        metrics::role(role, state == State::Running);
        self.changed.send_modify(|changes| *changes += 1);
    }

    fn warn(&self, role: &'static str, warnings: Vec<String>) {
        let mut roles = self.roles();
        let Some(health) = roles.get_mut(role).filter(|health| health.warnings != warnings) else { return };
        health.warnings = warnings;
        drop(roles);
        self.changed.send_modify(|changes| *changes += 1);
    }
}

/// What one role writes.
#[derive(Debug, Clone)]
pub struct Reporter {
    board: Health,
    role: &'static str,
}

impl Reporter {
    /// The role has started, and has not done its work yet.
    pub fn starting(&self) {
        self.board.set(self.role, State::Starting, "Starting", "");
    }

    /// It does its work.
    pub fn running(&self) {
        self.board.set(self.role, State::Running, "Running", "");
    }

    /// It does not: one word for why, and what was tried, why it failed, what to do.
    pub fn failing(&self, reason: &'static str, message: &str) {
        self.board.set(self.role, State::Failing, reason, message);
    }

    /// It waits for something that is not there yet.
    pub fn waiting(&self, reason: &'static str, message: &str) {
        self.board.set(self.role, State::Starting, reason, message);
    }

    /// What does not work beside it.
    pub fn warnings(&self, warnings: Vec<String>) {
        self.board.warn(self.role, warnings);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn d7_a_state_keeps_its_beginning_and_only_changes_are_told() {
        let health = Health::default();
        let changes = health.changes();
        let reporter = health.of("metrics-agent");
        reporter.starting();
        reporter.failing("Unreachable", "one");
        let since = health.all()["metrics-agent"].since;
        assert_eq!(*changes.borrow(), 2);
        reporter.failing("Unreachable", "one");
        assert_eq!(*changes.borrow(), 2);
        reporter.failing("Unreachable", "two");
        assert_eq!(health.all()["metrics-agent"].since, since);
        reporter.warnings(vec!["nodes".to_owned()]);
        reporter.running();
        let all = health.all();
        assert_eq!((all["metrics-agent"].state, all["metrics-agent"].warnings.len()), (State::Running, 1));
        assert!(all["metrics-agent"].message.is_empty());
    }
}
