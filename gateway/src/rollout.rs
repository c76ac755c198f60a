//! Carries out fleet assignments ([`crate::resources::fleet_assignment`]; docs/features.md G13): makes what one wants in its
//! clusters, wave by wave, and takes it away where it is not wanted any more. What is written goes through the resource
//! API's own writes, with the same checks and operations, in the name of the assignment.
//!
//! Each assignment has an operation that no client sees and that goes on for as long as it is there. Of it one process at a
//! time has a claim, and what is to be done follows from what is kept: whoever goes on after a crash sees the same.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use daemon::Shutdown;
use futures_util::future::{BoxFuture, join_all};
use http::{HeaderMap, Method};
use serde_json::{Map, Value, json};
use types::api::ResourceId;

use crate::{
    api::{
        Call,
        judged::{Basis, Judged},
        write::{self, AssignmentRead, Seen},
    },
    api_error::ApiError,
    audit::AuditLog,
    cluster::wave_order,
    control::{
        Control,
        work::{Step, Work},
    },
    identity::Caller,
    managed::Managed,
    metrics::Metrics,
    resources::fleet_assignment::{
        self, Assignment, ROLLOUT, WITHDRAWAL,
        members::{self, Fleet, Member, REFUSED, Refusal, Refusals, State},
    },
    snapshot::Snapshot,
    store::{
        batch::{Batch, Expect},
        operations::Operation,
        resources::Stored,
        statuses::ReportedStatus,
    },
};

/// Between two looks of one process at what is to be done: many clusters tell at once, and one look sees what all told.
const LEAST: Duration = Duration::from_millis(250);
/// How long an assignment is written for, and taken away for, before others have their turn.
const TURN: Duration = Duration::from_secs(3);
/// How long an assignment with nothing left to do rests at least, beside as long as the look at it took: a look reads all
/// clusters of its scope, and any of them may wake it.
const REST: Duration = Duration::from_secs(2);
/// When it is tried again what only the moment kept from being done, milliseconds.
const SOON_MS: i64 = 15_000;
/// Writes that are under way at once.
const AT_ONCE: usize = 16;
/// Clusters whose place in the order is found before other work has its turn.
const MEMBERS_A_TURN: usize = 256;
/// Clusters that an assignment names as failed at most; the list of clusters has all.
const NAMED: usize = 100;
/// Characters of a message that is kept.
const MESSAGE: usize = 300;

/// What carries assignments out.
pub struct Rollouts {
    /// Where it is written down what was done, and in whose name.
    audit: Arc<AuditLog>,
    /// Counts lines that could not be written.
    metrics: Arc<Metrics>,
    /// How long one has its turn, and rests after it.
    turn: Duration,
    rest: Duration,
    /// Until when each rests that was looked at, by its operation. As many as there are assignments at most.
    resting: Mutex<HashMap<String, Instant>>,
}

impl Rollouts {
    /// Carries out what it has the records of.
    pub fn new(audit: Arc<AuditLog>, metrics: Arc<Metrics>) -> Self {
        Self { audit, metrics, turn: TURN, rest: REST, resting: Mutex::default() }
    }

    /// With other turns and rests.
    #[cfg(test)]
    #[must_use]
    pub fn at(self, turn: Duration, rest: Duration) -> Self {
        Self { turn, rest, ..self }
    }

    /// How long one still rests.
    fn rests(&self, operation: &str) -> Option<Duration> {
        let resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        let left = resting.get(operation).map(|until| until.saturating_duration_since(Instant::now()));
        left.filter(|left| !left.is_zero())
    }

    /// One whose look took so long rests.
    fn rest(&self, operation: &str, took: Duration) {
        let now = Instant::now();
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        resting.retain(|_, until| *until > now);
        resting.insert(operation.to_owned(), now + self.rest + took.min(self.rest));
    }

    /// Its kinds of work.
    pub fn works(&self) -> [Box<dyn Work + '_>; 2] {
        [Box::new(Rollout(self)), Box::new(Withdrawal(self))]
    }

    /// Keeps up with all assignments until the gateway drains.
    pub async fn run(self, control: Arc<Control>, shutdown: Shutdown) {
        let works = self.works();
        let works = works.each_ref().map(AsRef::as_ref);
        control.work_at(&works, LEAST, shutdown).await;
    }

    /// Takes note of something that was done in the name of an assignment.
    fn record<T>(&self, by: &ResourceId, method: &str, id: &str, outcome: &Result<T, ApiError>) {
        let refused = outcome.as_ref().err().map(|error| error.detail.code.as_str());
        self.audit.done_for(&self.metrics, by.as_str(), method, id, refused);
    }

    /// Begins the deletion of what an assignment made in `room` of some clusters at most, for as long as its turn is, and
    /// of some in any case.
    async fn withdraw(&self, site: &Site<'_>, ids: &[String], room: usize) -> Withdrawn {
        let until = Instant::now() + self.turn;
        let mut withdrawn = Withdrawn::default();
        // Not the same ones first each time: those that cannot be taken away would keep the others.
        let first = usize::try_from(site.control.now_ms()).unwrap_or_default() % ids.len().max(1);
        let mut tried = 0;
        while tried < ids.len() && withdrawn.begun < room {
            let some = AT_ONCE.min(room - withdrawn.begun).min(ids.len() - tried);
            let mut begun: Vec<BoxFuture<'_, Result<(), Refused>>> = Vec::with_capacity(AT_ONCE);
            for place in tried..tried + some {
                begun.push(Box::pin(self.withdraw_one(site, &ids[(first + place) % ids.len()])));
            }
            tried += some;
            for done in join_all(begun).await {
                match done {
                    Ok(()) => withdrawn.begun += 1,
                    Err(Refused::Changed) => withdrawn.late = true,
                    Err(Refused::Kind(_, why) | Refused::Passes(why) | Refused::Broken(why)) => {
                        withdrawn.trouble.get_or_insert(why);
                    }
                }
            }
            if withdrawn.late || (tried < ids.len() && Instant::now() >= until) {
                withdrawn.late = true;
                break;
            }
        }
        withdrawn
    }

    async fn withdraw_one(&self, site: &Site<'_>, id: &str) -> Result<(), Refused> {
        let id = ResourceId::parse(id).map_err(|error| Refused::Broken(error.to_string()))?;
        let done = write::withdraw(&site.call(), &id, site.assignment_read()).await;
        self.record(&site.assignment.id, "DELETE", id.as_str(), &done);
        done.map(drop).map_err(|error| match Refused::of(&error) {
            Refused::Kind(code, why) => Refused::Kind(code, format!("{id}: {why}")),
            Refused::Passes(why) | Refused::Broken(why) => Refused::Broken(format!("{id}: {why}")),
            Refused::Changed => Refused::Changed,
        })
    }
}

/// What came of taking away.
#[derive(Default)]
struct Withdrawn {
    /// In how many clusters it was begun.
    begun: usize,
    /// There was no time for all.
    late: bool,
    /// Why one of them could not be.
    trouble: Option<String>,
}

/// What came of a turn at an assignment.
#[derive(Default)]
struct Turn {
    /// There was no time for all of it, or somebody changed the assignment.
    more: bool,
    /// What only the moment kept from being done.
    passes: bool,
    /// What the gateway could not do, which is no failure of a cluster.
    trouble: Option<String>,
}

/// Why something was not written in a cluster.
enum Refused {
    /// It cannot be there: a code, and a sentence.
    Kind(String, String),
    /// It cannot be at the moment, because something there is being deleted, or was changed at the same time.
    Passes(String),
    /// The gateway cannot write.
    Broken(String),
    /// Somebody has changed the assignment.
    Changed,
}

impl Refused {
    fn of(error: &ApiError) -> Self {
        const PASSING: [&str; 4] =
            ["Conflict", "ResourceBeingDeleted", "ParentResourceBeingDeleted", "ResourceGroupBeingDeleted"];
        let (code, message) = why(error);
        if code == write::ASSIGNMENT_CHANGED {
            return Self::Changed;
        }
        if error.status.is_server_error() {
            return Self::Broken(error.log.clone().unwrap_or(message));
        }
        // Of a cluster that was deleted since it was looked at nothing is found.
        let passes = matches!(error.status.as_u16(), 404 | 408 | 429) || PASSING.contains(&code.as_str());
        if passes { Self::Passes(message) } else { Self::Kind(code, message) }
    }
}

/// An assignment that is worked at.
struct Site<'a> {
    control: &'a Arc<Control>,
    snapshot: Arc<Snapshot>,
    headers: HeaderMap,
    assignment: Assignment,
    stored: &'a Stored,
}

impl<'a> Site<'a> {
    fn of(control: &'a Arc<Control>, stored: &'a Stored) -> Option<Self> {
        let assignment = Assignment::of(stored)?;
        Some(Self { control, snapshot: control.snapshot(), headers: HeaderMap::new(), assignment, stored })
    }

    /// What a write decides by: nothing is written once the assignment is another one.
    fn assignment_read(&self) -> AssignmentRead<'_> {
        AssignmentRead { id: &self.assignment.id, revision: self.stored.revision }
    }

    /// A request of the gateway itself in the name of the assignment. Whether it may was asked when somebody wrote that.
    fn call(&self) -> Call<'_> {
        let began = Basis { snapshot: Arc::clone(&self.snapshot), now_ms: self.control.now_ms() };
        Call {
            control: self.control,
            judged: Judged::new(began, None),
            caller: Caller::by_assignment(self.assignment.id.as_str()),
            method: Method::PUT,
            headers: &self.headers,
            path: self.assignment.id.as_str(),
            query: Vec::new(),
            issuer: None,
            sessions: None,
            hops: None,
        }
    }
}

/// Keeps up with an assignment.
struct Rollout<'a>(&'a Rollouts);

impl Work for Rollout<'_> {
    fn name(&self) -> &'static str {
        ROLLOUT
    }

    fn go_on<'a>(&'a self, control: &'a Arc<Control>, operation: &'a Operation) -> BoxFuture<'a, Result<Step, String>> {
        Box::pin(async move {
            // What is woken over and over is looked at once for all of that.
            if let Some(left) = self.0.rests(&operation.id) {
                return Ok(Step::Waits(control.now_ms() + i64::try_from(left.as_millis()).unwrap_or_default() + 1));
            }
            let began = Instant::now();
            let stored = control.store.get(&operation.resource).await.map_err(|error| daemon::chain(&error))?;
            // Deleted, or being so: its withdrawal goes on with it.
            let Some(stored) = stored.filter(|stored| !stored.is_deleting()) else {
                return Ok(Step::Ends(Batch::default()));
            };
            let site = Site::of(control, &stored).ok_or_else(|| format!("{} cannot be read", stored.id))?;
            let turn = self.0.keep_up(&site).await?;
            if let Some(trouble) = turn.trouble {
                return Err(trouble);
            }
            // After those that have waited longer.
            if turn.more {
                return Ok(Step::Waits(control.now_ms()));
            }
            self.0.rest(&operation.id, began.elapsed());
            Ok(Step::Waits(if turn.passes { control.now_ms() + SOON_MS } else { i64::MAX }))
        })
    }
}

/// Takes away what an assignment made, and then the assignment.
struct Withdrawal<'a>(&'a Rollouts);

impl Work for Withdrawal<'_> {
    fn name(&self) -> &'static str {
        WITHDRAWAL
    }

    fn go_on<'a>(&'a self, control: &'a Arc<Control>, operation: &'a Operation) -> BoxFuture<'a, Result<Step, String>> {
        Box::pin(async move {
            let stored = control.store.get(&operation.resource).await.map_err(|error| daemon::chain(&error))?;
            let Some(stored) = stored.filter(Stored::is_deleting) else { return Ok(Step::Ends(Batch::default())) };
            let deletes = vec![(stored.key.clone(), Expect::Revision(stored.revision))];
            let ends = Step::Ends(Batch { deletes, ..Batch::default() });
            // What cannot be read has made nothing.
            let Some(site) = Site::of(control, &stored) else { return Ok(ends) };
            let ids = members::made_by(control, &site.assignment).await.map_err(|error| daemon::chain(&error))?;
            let done = self.0.withdraw(&site, &ids, usize::MAX).await;
            let Some(trouble) = done.trouble else {
                return Ok(if done.late { Step::Waits(control.now_ms()) } else { ends });
            };
            // Who looks at the assignment sees what keeps it.
            let told = control.store.told(&stored.key).await.map_err(|error| daemon::chain(&error))?;
            if let Some(mut told) = told {
                told.status["reason"] = format!("What it made could not be deleted: {trouble}").into();
                let kept = control.store.keep_told(&stored.key, &told, |events| events).await;
                kept.map_err(|error| daemon::chain(&error))?;
            }
            Err(trouble)
        })
    }
}

impl Rollouts {
    /// Does what can be done for an assignment now, and notes how far its clusters are.
    async fn keep_up(&self, site: &Site<'_>) -> Result<Turn, String> {
        let Site { control, assignment, stored, .. } = site;
        let chain = |error| daemon::chain(&error);
        let told = control.store.told(&stored.key).await.map_err(chain)?;
        let mut noted = Noted::of(told.as_ref(), assignment, control.now_ms());
        let mut fleet = members::look(control, assignment, &noted.refused).await.map_err(chain)?;
        // A share of the clusters that are to have it, and the same share of those that leave: neither waits for the other.
        let room = assignment.at_once(fleet.members.len()).saturating_sub(fleet.unfinished());
        let mut turn = Turn::default();
        let leaving = assignment.at_once(fleet.leaving.len() + fleet.going).saturating_sub(fleet.going);
        // Who pauses it may have seen that the wrong clusters lose it.
        let leaving = if assignment.paused { 0 } else { leaving };
        let withdrawn = self.withdraw(site, &fleet.leaving, leaving).await;
        turn.more = withdrawn.late;
        // One that cannot be taken away keeps nobody else from what they get.
        if let Some(trouble) = withdrawn.trouble {
            tracing::warn!(assignment = %assignment.id, trouble, "a fleet assignment could not take away what it made");
            turn.passes = true;
            noted.trouble = Some(format!("What it made could not be deleted: {trouble}"));
        }
        // Nobody tells of the last one that is gone.
        turn.passes |= !assignment.paused && fleet.is_left();
        self.advance(site, &mut fleet, &mut noted, room, &mut turn).await;
        // What others made does not wake the assignment when its cluster tells of it.
        let is_under_way = fleet.unfinished() + fleet.count(&[State::Waiting]) > 0;
        turn.passes |= assignment.existing && is_under_way && !assignment.paused && noted.paused.is_none();
        if let Some(trouble) = &turn.trouble {
            noted.trouble = Some(format!("It cannot go on: {}", trouble.chars().take(MESSAGE).collect::<String>()));
        }
        let status = noted.status(&fleet, assignment);
        if told.is_none_or(|told| told.status != status) {
            let told = ReportedStatus { generation: assignment.template, told_ms: control.now_ms(), status };
            control.store.keep_told(&stored.key, &told, |events| events).await.map_err(chain)?;
        }
        Ok(turn)
    }

    /// Writes what waits to be written, in `room` clusters at most.
    async fn advance(&self, site: &Site<'_>, fleet: &mut Fleet, noted: &mut Noted, mut room: usize, turn: &mut Turn) {
        let assignment = &site.assignment;
        noted.judge(fleet, assignment);
        if assignment.paused || noted.paused.is_some() {
            return;
        }
        let mut waiting = Vec::new();
        for (place, member) in fleet.members.iter().enumerate() {
            if place % MEMBERS_A_TURN == MEMBERS_A_TURN - 1 {
                tokio::task::yield_now().await;
            }
            if member.state == State::Waiting && member.is_ready {
                waiting.push((wave_order(&member.key), place));
            }
        }
        if room == 0 || waiting.is_empty() {
            return;
        }
        let body = match fleet_assignment::protected(site.stored, site.control) {
            Ok(protected) => assignment.body(site.stored, protected.as_ref()),
            Err(trouble) => {
                turn.trouble = Some(trouble);
                return;
            }
        };
        let body = if assignment.existing { assignment.part() } else { body };
        let Some(body) = body else {
            turn.trouble = Some("the template cannot be read".to_owned());
            return;
        };
        let until = Instant::now() + self.turn;
        waiting.sort_unstable();
        let mut waiting = waiting.into_iter().map(|(_, place)| place).peekable();
        while room > 0 && waiting.peek().is_some() {
            // No more at once than may fail without a pause.
            let some = room.min(AT_ONCE).min(noted.left(fleet, assignment).saturating_add(1));
            let some: Vec<usize> = waiting.by_ref().take(some).collect();
            let mut writes: Vec<BoxFuture<'_, Result<(), Refused>>> = Vec::with_capacity(AT_ONCE);
            for place in &some {
                writes.push(Box::pin(self.make(site, &fleet.members[*place], &body)));
            }
            let written = join_all(writes).await;
            for (place, written) in some.into_iter().zip(written) {
                let member = &mut fleet.members[place];
                match written {
                    Ok(()) => {
                        (member.state, member.is_made) = (State::Applying, true);
                        room -= 1;
                    }
                    Err(Refused::Kind(code, message)) => {
                        let why = (code, message);
                        (member.state, member.why) = (State::Failed, Some(why.clone()));
                        let at_ms = site.control.now_ms();
                        noted.refused.insert(member.key.clone(), Refusal { why, at_ms });
                    }
                    // It still waits.
                    Err(Refused::Passes(_)) => turn.passes = true,
                    Err(Refused::Broken(trouble)) => drop(turn.trouble.get_or_insert(trouble)),
                    Err(Refused::Changed) => turn.more = true,
                }
            }
            noted.judge(fleet, assignment);
            if noted.paused.is_some() || turn.trouble.is_some() || turn.more {
                return;
            }
            if room > 0 && waiting.peek().is_some() && Instant::now() >= until {
                turn.more = true;
                return;
            }
        }
    }

    /// Makes what the assignment wants in a cluster, or changes what it made there, or what others did where it is for
    /// that; or why not.
    async fn make(&self, site: &Site<'_>, member: &Member, body: &Map<String, Value>) -> Result<(), Refused> {
        let assignment = &site.assignment;
        let id = format!("{}/providers/{}/{}", member.id, assignment.kind.name(), assignment.name);
        let id = ResourceId::parse(&id).map_err(|error| Refused::Broken(error.to_string()))?;
        if assignment.existing {
            let rolled = write::roll(&site.call(), &id, body, site.assignment_read()).await;
            self.record(&assignment.id, "PATCH", id.as_str(), &rolled);
            return rolled.map(drop).map_err(|error| Refused::of(&error));
        }
        let mark = Managed { by: assignment.id.as_str().to_owned(), template: assignment.template };
        let cluster = (member.key.clone(), member.revision);
        let seen = Seen { assignment: site.stored.revision, cluster };
        let made = write::manage(&site.call(), &id, body, mark, seen).await;
        self.record(&assignment.id, "PUT", id.as_str(), &made);
        made.map(drop).map_err(|error| Refused::of(&error))
    }
}

/// A refusal as it is kept.
fn why(error: &ApiError) -> (String, String) {
    if let Some(log) = &error.log {
        tracing::warn!(error = log, "a fleet assignment could not write");
    }
    let first = error.detail.details.first().filter(|_| error.detail.code == "InvalidRequestContent");
    let detail = first.unwrap_or(&error.detail);
    (detail.code.clone(), detail.message.chars().take(MESSAGE).collect())
}

/// What is noted of an assignment from look to look.
struct Noted {
    refused: Refusals,
    /// Why it paused by itself.
    paused: Option<String>,
    /// Failures that whoever resumed it has seen.
    forgiven: usize,
    /// What keeps it from being carried out, which is no failure of a cluster.
    trouble: Option<String>,
}

impl Noted {
    fn of(told: Option<&ReportedStatus>, assignment: &Assignment, now_ms: i64) -> Self {
        let refused = members::refused(told, assignment, now_ms);
        let status = told.map(|told| &told.status);
        let same_template = status.is_some_and(|status| status["template"] == assignment.template);
        let is_same = same_template && status.is_some_and(|status| status["resumed"] == assignment.resumed);
        let kept = status.filter(|_| is_same);
        let paused = kept.and_then(|status| status["paused"].as_str()).map(str::to_owned);
        let count = |value: &Value| value.as_u64().and_then(|count| usize::try_from(count).ok()).unwrap_or_default();
        let forgiven = match status {
            Some(status) if is_same => count(&status["forgiven"]),
            // Resumed since: by somebody who has seen these.
            Some(status) if same_template => match &status["counted"] {
                // Kept by a version that counted all of them.
                Value::Null => count(&status["counts"]["failed"]) + count(&status["counts"]["nonCompliant"]),
                counted => count(counted),
            },
            _ => 0,
        };
        Self { refused, paused, forgiven, trouble: None }
    }

    /// Those that speak against the template. That a group or subscription is full does not.
    fn failed(fleet: &Fleet) -> usize {
        let is_failure = |member: &&Member| match member.state {
            State::Failed => !member.has_no_room(),
            state => state == State::NonCompliant,
        };
        fleet.members.iter().filter(is_failure).count()
    }

    /// How many more may fail without a pause.
    fn left(&self, fleet: &Fleet, assignment: &Assignment) -> usize {
        let most = assignment.failures(fleet.members.len()).unwrap_or(usize::MAX);
        most.saturating_add(self.forgiven).saturating_sub(Self::failed(fleet))
    }

    /// Pauses where too many have failed and others still wait.
    fn judge(&mut self, fleet: &Fleet, assignment: &Assignment) {
        let failed = Self::failed(fleet);
        if self.paused.is_some() || fleet.count(&[State::Waiting]) == 0 {
            return;
        }
        let most = assignment.failures(fleet.members.len()).map(|most| most.saturating_add(self.forgiven));
        if self.refused.len() >= REFUSED {
            self.paused = Some(format!("{REFUSED} clusters refused it; see failures, and resume it then."));
        } else if let Some(most) = most.filter(|most| failed > *most) {
            let seen =
                if self.forgiven > 0 { format!(", {} of them known before", self.forgiven) } else { String::new() };
            let allowed = most - self.forgiven;
            self.paused = Some(format!(
                "{failed} clusters failed or do not comply{seen}; {allowed} may. See failures, and resume it then."
            ));
        }
    }

    /// What is kept, and shown in part.
    fn status(&self, fleet: &Fleet, assignment: &Assignment) -> Value {
        let count = |states: &[State]| fleet.count(states);
        let pending = count(&[State::Waiting, State::Applying]);
        let held = match (&self.paused, assignment.paused) {
            (Some(why), _) => Some(why.clone()),
            (None, true) => Some("Somebody paused it.".to_owned()),
            (None, false) => None,
        };
        // One that has come to an end before, and works at something new from its source, is no part of a rollout.
        let state = match &held {
            Some(_) => "Paused",
            None if fleet.unfinished() + count(&[State::Waiting]) == 0 && !fleet.is_left() => "Complete",
            None => "RollingOut",
        };
        let reason = held.or_else(|| self.trouble.clone());
        let failures =
            fleet.members.iter().filter(|member| matches!(member.state, State::Failed | State::NonCompliant));
        let named: Vec<Value> = failures
            .take(NAMED)
            .map(|member| {
                let (code, message) = member.why.clone().unzip();
                let message = message.map(|text| text.chars().take(MESSAGE).collect::<String>());
                json!({"id": member.id, "state": member.state.as_str(), "code": code, "message": message})
            })
            .collect();
        let refused: Map<String, Value> = self
            .refused
            .iter()
            .map(|(key, Refusal { why: (code, message), at_ms })| {
                (key.clone(), json!({"code": code, "message": message, "at": at_ms}))
            })
            .collect();
        json!({
            "counts": {
                "matched": fleet.members.len(),
                "applied": fleet.members.iter().filter(|member| member.is_made).count(),
                "compliant": count(&[State::Compliant]),
                "nonCompliant": count(&[State::NonCompliant]),
                "suspended": count(&[State::Suspended]),
                "failed": count(&[State::Failed]),
                "pending": pending,
            },
            "state": state, "reason": reason, "failures": named,
            "template": assignment.template, "resumed": assignment.resumed,
            "paused": self.paused, "forgiven": self.forgiven, "refused": refused, "counted": Self::failed(fleet),
        })
    }
}
