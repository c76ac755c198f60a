//! What is known of one object: what the gateway wants of it, how far it is, and what happened. It is kept in the custom
//! resource ([`super::store`]), so that a restart and a link that is down lose nothing.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use types::agent_api::{Object, ObjectError, ObjectEvent, ObjectState, StatusLine};

use super::Kind;
use crate::identity::{parse, spell};

/// Lines of `statuses`, events of an object, and characters of a message; the definition of the custom resource has
/// room for a few more.
pub const LINES_MAX: usize = 8;
/// Events that are kept.
pub const EVENTS_MAX: usize = 100;
/// Characters of a message.
pub const MESSAGE_CHARS: usize = 3000;
const EVENT_CHARS: usize = 800;
/// Events in which another of the same kind is looked for.
const DEDUPLICATED: usize = 20;
/// Waits after a failure that may pass by itself: the first, which doubles, and the longest.
const AGAIN_FIRST: Duration = Duration::from_secs(30);
const AGAIN_MAX: Duration = Duration::from_secs(3600);
/// The longest wait while the apiserver or the gateway does not answer.
const HELD_UP_AGAIN_MAX: Duration = Duration::from_secs(300);
/// How long an object is held up ([`Fault::Cluster`]) before it is told to have failed.
pub const HELD_UP_MAX: Duration = Duration::from_secs(1800);

/// What the gateway wants of an object: `spec` of the custom resource.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Wanted {
    /// Its ARM id.
    pub id: String,
    /// Rises with every change.
    pub generation: i64,
    /// It is to be taken down.
    pub deleting: bool,
    /// The operation that wanted it so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// The object id of its identity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal_id: Option<String>,
    /// Names its protected settings.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protected: Option<String>,
    /// The first generation of this object, where another one of this name was before it: that one is taken down first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<i64>,
    /// The object's spec from the gateway, without protected settings; an empty object if there is no spec.
    pub properties: Value,
    /// Who wants it.
    #[serde(skip)]
    pub origin: Origin,
}

/// Who wants an object: annotations of the custom resource. They tell what somebody deleted from what is merely not known
/// at a gateway, because it is another one, or its database was restored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origin {
    /// The object id of the first identity of the cluster's resource; none of a gateway that does not say.
    pub identity: Option<String>,
    /// The gateway's position when this generation came. What was deleted there before is another one of its name.
    pub position: i64,
    /// The generation with which another cluster's resource, or a restored database, took the object over.
    pub adopted: Option<i64>,
}

impl Wanted {
    /// As the gateway says. An object without a spec is one that is to be taken down.
    pub fn of(object: Object) -> Self {
        Self {
            id: object.id,
            generation: object.generation,
            deleting: object.deleting || object.spec.is_none(),
            operation: object.operation,
            principal_id: object.principal_id,
            protected: object.protected,
            since: None,
            properties: object.spec.unwrap_or_else(|| Value::Object(serde_json::Map::new())),
            origin: Origin::default(),
        }
    }

    /// As the gateway says, where this was wanted before. What was being taken down is not changed into something
    /// else: an object of another generation is another one of the same name. What another resource of the cluster wanted
    /// (`is_strange`), or is wanted as it was before, in a database that was restored, is taken over as it is.
    #[must_use]
    pub fn after(mut self, before: &Self, is_strange: bool) -> Self {
        self.since = match () {
            () if self.deleting => None,
            () if before.deleting && before.generation != self.generation => Some(self.generation),
            () => before.since,
        };
        let is_older = !self.deleting && self.generation < before.generation;
        self.origin.adopted = match before.deleting {
            false if is_strange || is_older => Some(self.generation),
            _ => before.origin.adopted,
        };
        // None: of an agent that did not note it. A later one: of a database that was restored since.
        if !is_strange
            && self.generation == before.generation
            && (1..=self.origin.position).contains(&before.origin.position)
        {
            self.origin.position = before.origin.position;
        }
        if self.origin.identity.is_none() {
            self.origin.identity.clone_from(&before.origin.identity);
        }
        self
    }

    /// Whether the same is wanted, in whatever generation.
    pub fn is_same_wish(&self, other: &Self) -> bool {
        (&self.id, self.deleting, self.since) == (&other.id, other.deleting, other.since)
            && (&self.protected, &self.properties) == (&other.protected, &other.properties)
    }
}

/// What a role needs to know after a restart.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, bound = "")]
pub struct Record<K: Kind> {
    /// What was tried last and failed: not tried again while it is the same, but for [`Self::retry_at`].
    pub failed: Option<String>,
    /// When it is tried again, RFC 3339; not at all without it.
    pub retry_at: Option<String>,
    /// Failures in a row.
    pub attempts: u32,
    /// Since when something that is not the object's fault holds it up, RFC 3339.
    pub held_up_since: Option<String>,
    /// [`Wanted::since`] of the object that the rest is about: what was before it is taken down.
    pub since: Option<i64>,
    /// [`Origin::adopted`] of the object that the rest is about: what was before it is left alone.
    pub adopted: Option<i64>,
    /// The number of the last event.
    pub last_event: u64,
    /// What this kind needs beside.
    #[serde(flatten)]
    pub own: K::Own,
}

/// How far an object is: `status` of the custom resource, but for what was told.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default, bound = "")]
pub struct Status<K: Kind> {
    /// What of the spec this is about.
    pub observed_generation: i64,
    /// How far; none at first.
    pub state: Option<ObjectState>,
    /// The version that is installed.
    pub current_version: Option<String>,
    /// Why it failed.
    pub error_info: Option<ObjectError>,
    /// The newest first.
    pub statuses: Vec<StatusLine>,
    /// The oldest first.
    pub events: Vec<ObjectEvent>,
    /// What this kind shows beside.
    #[serde(flatten)]
    pub shown: K::Shown,
    /// For the role.
    pub record: Record<K>,
}

/// What the gateway has taken of a status.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Acknowledged {
    /// Digest of the status.
    pub digest: String,
    /// The number of the last event.
    pub event: u64,
    /// The latest instant of the events that were told.
    pub last: String,
}

/// An object that the gateway wants, as it is kept in the cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Item<K: Kind> {
    /// Its name, and that of its custom resource.
    pub name: String,
    /// UID of the custom resource.
    pub uid: String,
    /// When the custom resource was made, RFC 3339.
    pub created: String,
    /// What is wanted.
    pub wanted: Wanted,
    /// How far it is.
    pub status: Status<K>,
    /// What was told of it.
    pub told: Acknowledged,
    /// Bytes of its properties.
    pub bytes: usize,
}

/// Why something failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// A word for programs.
    pub code: &'static str,
    /// What was tried, what was found, what to do.
    pub message: String,
    /// Whether it may pass by itself.
    pub passes: bool,
    /// Whose it is.
    pub fault: Fault,
}

/// Whose a problem is: an object has failed only by its own, others hold it up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// An answer about the object.
    Object,
    /// The apiserver or helm did not answer, or somebody has yet to put something in place for it; for good after
    /// [`HELD_UP_MAX`].
    Cluster,
    /// The gateway did not answer.
    Gateway,
}

impl Problem {
    /// One that stays until something is changed.
    pub fn stays(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), passes: false, fault: Fault::Object }
    }

    /// One that may pass by itself.
    pub fn passes(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), passes: true, fault: Fault::Object }
    }

    /// One that may pass by itself and says nothing about the object.
    pub fn of(fault: Fault, code: &'static str, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), passes: true, fault }
    }
}

/// What is being done to an object, as events have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// A first installation.
    Create,
    /// Another version or other settings.
    Upgrade,
    /// Back to what ran before.
    Rollback,
    /// Taking it down.
    Delete,
    /// Putting right what somebody changed.
    Repair,
}

impl Phase {
    /// As in events.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Create => "Create",
            Self::Upgrade => "Upgrade",
            Self::Rollback => "Rollback",
            Self::Delete => "Delete",
            Self::Repair => "Repair",
        }
    }
}

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Happened<'a> {
    /// What the agent was doing to the object.
    pub phase: Phase,
    /// Whether somebody should look.
    pub warning: bool,
    /// A word for programs.
    pub reason: &'a str,
    /// A sentence for a person.
    pub message: &'a str,
    /// The Kubernetes object that it is about.
    pub object: Option<&'a str>,
}

/// A text of at most so many characters, without control characters but for line ends. Of a longer one both ends are kept:
/// the beginning says what it is about, and the end why.
pub fn bounded(text: &str, chars: usize) -> String {
    let plain = |c: char| if c.is_control() && c != '\n' { ' ' } else { c };
    let count = text.chars().count();
    if count <= chars {
        return text.chars().map(plain).collect();
    }
    let first = chars.saturating_sub(1) / 3;
    let last = chars.saturating_sub(first + 1);
    let (begin, end) = (text.chars().take(first), text.chars().skip(count - last));
    begin.chain(std::iter::once('…')).chain(end).map(plain).collect()
}

impl<K: Kind> Status<K> {
    /// A new line of `statuses`; the same code again replaces the newest one.
    pub fn line(&mut self, code: &str, display: &str, level: &str, message: &str, now: SystemTime) {
        let message = bounded(message, MESSAGE_CHARS);
        if self.statuses.first().is_some_and(|line| line.code == code && line.message == message) {
            return;
        }
        self.statuses.retain(|line| line.code != code);
        let line = StatusLine {
            code: code.to_owned(),
            display_status: display.to_owned(),
            level: level.to_owned(),
            message,
            time: spell(now),
        };
        self.statuses.insert(0, line);
        self.statuses.truncate(LINES_MAX);
    }

    /// An event; one that is like one of the last is counted there.
    pub fn event(&mut self, operation: Option<&str>, what: &Happened<'_>, now: SystemTime) {
        let now = spell(now);
        let message = bounded(what.message, EVENT_CHARS);
        let same = self.events.iter_mut().rev().take(DEDUPLICATED).find(|event| {
            event.operation.as_deref() == operation
                && event.phase == what.phase.as_str()
                && event.reason == what.reason
                && event.message == message
                && event.object.as_deref() == what.object
        });
        if let Some(same) = same {
            same.count = same.count.saturating_add(1);
            same.last = now;
            return;
        }
        self.record.last_event += 1;
        self.events.push(ObjectEvent {
            number: self.record.last_event,
            operation: operation.map(str::to_owned),
            phase: what.phase.as_str().to_owned(),
            level: if what.warning { "Warning" } else { "Normal" }.to_owned(),
            reason: what.reason.to_owned(),
            message,
            object: what.object.map(str::to_owned),
            first: now.clone(),
            last: now,
            count: 1,
        });
        let over = self.events.len().saturating_sub(EVENTS_MAX);
        self.events.drain(..over);
    }

    /// It is as it is wanted.
    pub fn succeeded(&mut self, generation: i64) {
        self.observed_generation = generation;
        self.state = Some(ObjectState::Succeeded);
        self.error_info = None;
        self.record.failed = None;
        self.record.retry_at = None;
        self.record.attempts = 0;
        self.record.held_up_since = None;
    }

    fn put_off(&mut self, tried: &str, problem: &Problem, longest: Duration, now: SystemTime) {
        let same = self.record.failed.as_deref() == Some(tried);
        self.record.attempts = if same { self.record.attempts.saturating_add(1) } else { 1 };
        self.record.failed = Some(tried.to_owned());
        let wait = AGAIN_FIRST.saturating_mul(1 << (self.record.attempts - 1).min(12)).min(longest);
        self.record.retry_at = problem.passes.then(|| spell(now + wait));
    }

    /// Something that is not the object's fault keeps `tried` from being done, which is tried again later; false: for
    /// so long that it is told to have failed.
    pub fn held_up(&mut self, tried: &str, problem: &Problem, now: SystemTime) -> bool {
        let since = self.record.held_up_since.get_or_insert_with(|| spell(now));
        let since = parse(since).unwrap_or(now);
        if problem.fault == Fault::Cluster && now >= since + HELD_UP_MAX {
            return false;
        }
        self.put_off(tried, problem, HELD_UP_AGAIN_MAX, now);
        let message = format!("{}: {}; it is tried again", problem.code, problem.message);
        self.line("Waiting", "Waiting", "Warning", &message, now);
        true
    }

    /// It failed at `tried`, which is tried again later if the problem may pass.
    pub fn failed(&mut self, generation: i64, tried: &str, problem: &Problem, now: SystemTime) {
        if problem.fault == Fault::Object {
            self.record.held_up_since = None;
        }
        self.put_off(tried, problem, AGAIN_MAX, now);
        self.observed_generation = generation;
        self.state = Some(ObjectState::Failed);
        let message = bounded(&problem.message, MESSAGE_CHARS);
        self.line(problem.code, "Failed", "Error", &message, now);
        self.error_info = Some(ObjectError { code: problem.code.to_owned(), message });
    }

    /// Whether `tried` failed and is not to be tried now.
    pub fn is_put_off(&self, tried: &str, now: SystemTime) -> bool {
        if self.record.failed.as_deref() != Some(tried) {
            return false;
        }
        let due = self.record.retry_at.as_deref().and_then(|at| parse(at).ok());
        due.is_none_or(|due| now < due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roles::extension_manager::Extensions;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    #[test]
    fn d4_events_are_numbered_counted_and_bounded() {
        let mut status = Status::<Extensions>::default();
        fn what(message: &str) -> Happened<'_> {
            Happened { phase: Phase::Create, warning: true, reason: "Pod", message, object: None }
        }
        for _ in 0..5 {
            status.event(Some("op"), &what("not ready"), NOW);
        }
        assert_eq!((status.events.len(), status.events[0].count, status.events[0].number), (1, 5, 1));
        for n in 0..2 * EVENTS_MAX {
            let message = n.to_string();
            status.event(Some("op"), &what(&message), NOW);
        }
        assert_eq!(status.events.len(), EVENTS_MAX);
        let numbers: Vec<_> = status.events.iter().map(|event| event.number).collect();
        assert!(numbers.is_sorted() && numbers.last() == Some(&(2 * EVENTS_MAX as u64 + 1)));
    }

    #[test]
    fn failure_that_passes_is_tried_again_later_and_later() {
        let mut status = Status::<Extensions>::default();
        let after = |seconds| NOW + Duration::from_secs(seconds);
        status.failed(1, "a", &Problem::passes("Quota", "full"), NOW);
        assert!(status.is_put_off("a", after(29)) && !status.is_put_off("a", after(31)));
        assert!(!status.is_put_off("b", NOW), "something else is tried at once");
        status.failed(1, "a", &Problem::passes("Quota", "full"), NOW);
        assert!(status.is_put_off("a", after(59)) && !status.is_put_off("a", after(61)));
        for _ in 0..40 {
            status.failed(1, "a", &Problem::passes("Quota", "full"), NOW);
        }
        assert!(!status.is_put_off("a", after(3601)));
        status.failed(2, "a", &Problem::stays("Schema", "no"), NOW);
        assert!(status.is_put_off("a", after(1_000_000)));
        status.succeeded(3);
        assert!(status.error_info.is_none() && !status.is_put_off("a", NOW));
    }

    #[test]
    fn held_up_object_fails_only_by_its_cluster_and_after_long() {
        let after = |seconds| NOW + Duration::from_secs(seconds);
        for (fault, ends) in [(Fault::Cluster, true), (Fault::Gateway, false)] {
            let mut status = Status::<Extensions> { state: Some(ObjectState::Creating), ..Status::default() };
            let problem = Problem::of(fault, "X", "no answer");
            assert!(status.held_up("a", &problem, NOW) && status.is_put_off("a", after(29)));
            assert!(status.held_up("a", &problem, after(1799)) && status.state == Some(ObjectState::Creating));
            assert_eq!(status.held_up("a", &problem, after(1800)), !ends);
        }
    }

    #[test]
    fn object_after_one_that_is_taken_down_is_another_one() {
        let of = |generation, deleting| Wanted { generation, deleting, ..Wanted::default() };
        assert_eq!(of(2, false).after(&of(1, false), false).since, None);
        assert_eq!(of(1, false).after(&of(1, true), false).since, None, "it is wanted again");
        let another = of(7, false).after(&of(1, true), false);
        assert_eq!((another.since, of(8, false).after(&another, false).since), (Some(7), Some(7)));
        assert!(of(9, false).is_same_wish(&of(7, false)) && !of(9, false).is_same_wish(&another));
    }

    #[test]
    fn long_text_keeps_its_end() {
        assert_eq!(bounded("abc\u{7}d", 9), "abc d");
        assert_eq!(bounded("0123456789", 4), "0…89");
        assert_eq!((bounded("0123456789", 1), bounded("0123456789", 2)), ("…".to_owned(), "…9".to_owned()));
        let long = format!("Kustomization web: Job/shop/j is invalid: {}: field is immutable", "x".repeat(5000));
        let kept = bounded(&long, 2000);
        assert_eq!(kept.chars().count(), 2000);
        assert!(kept.starts_with("Kustomization web: Job/shop/j") && kept.ends_with(": field is immutable"), "{kept}");
    }
}
