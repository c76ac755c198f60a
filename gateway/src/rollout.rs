//! Carries out fleet assignments ([`crate::resources::fleet_assignment`]; docs/features.md G13): makes what one wants in its
//! clusters, wave by wave, and takes it away where it is not wanted any more. What is written goes through the resource
//! API's own writes, with the same checks and operations, in the name of the assignment.
//!
//! Each assignment has an operation that no client sees and that goes on for as long as it is there. Of it one process at a
//! time has a claim, and what is to be done follows from what is kept: whoever goes on after a crash sees the same.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use aws_lc_rs::digest;
use daemon::Shutdown;
use futures_util::future::{BoxFuture, join_all};
use http::{HeaderMap, Method};
use serde_json::{Map, Value, json};
use types::api::ResourceId;

use crate::{
    api::{Call, write},
    api_error::ApiError,
    audit::AuditLog,
    control::{
        Control,
        work::{Step, Work},
    },
    identity::Caller,
    managed::Managed,
    metrics::Metrics,
    resources::fleet_assignment::{
        self, Assignment, ROLLOUT, WITHDRAWAL,
        members::{self, Fleet, REFUSED, Refusal, Refusals, State},
    },
    snapshot::Snapshot,
    store::{
        batch::{Batch, Expect},
        operations::Operation,
        resources::Stored,
        statuses::Told,
    },
};

/// Between two looks of one process at what is to be done: many clusters tell at once, and one look sees what all told.
const LEAST: Duration = Duration::from_millis(250);
/// How long one assignment is worked at before others have their turn.
const TURN: Duration = Duration::from_secs(3);
/// Writes that are under way at once.
const AT_ONCE: usize = 16;
/// Clusters that an assignment names as failed at most; the list of clusters has all.
const NAMED: usize = 100;
/// Characters of a message that is kept.
const MESSAGE: usize = 300;

/// What carries assignments out.
pub struct Rollouts {
    /// Where it is written down what was done, and in whose name.
    pub audit: Arc<AuditLog>,
    /// Counts lines that could not be written.
    pub metrics: Arc<Metrics>,
}

impl Rollouts {
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
        self.audit.done_for(&self.metrics, by.as_str(), (method, id), refused);
    }

    /// Begins the deletion of what an assignment made in some clusters, for as long as there is time. Whether there
    /// was no time for all; or why one of them could not be.
    async fn withdraw(&self, site: &Site<'_>, ids: &[String], until: Instant) -> Result<bool, String> {
        let (mut failed, mut late) = (None, false);
        for some in ids.chunks(AT_ONCE) {
            if Instant::now() >= until {
                late = true;
                break;
            }
            let mut begun: Vec<BoxFuture<'_, Result<(), String>>> = Vec::with_capacity(AT_ONCE);
            for id in some {
                begun.push(Box::pin(self.withdraw_one(site, id)));
            }
            let refused = join_all(begun).await.into_iter().filter_map(Result::err).next();
            failed = failed.or(refused);
        }
        failed.map_or(Ok(late), Err)
    }

    async fn withdraw_one(&self, site: &Site<'_>, id: &str) -> Result<(), String> {
        let id = ResourceId::parse(id).map_err(|error| error.to_string())?;
        let done = write::withdraw(&site.call(), &id, &site.assignment.id).await;
        self.record(&site.assignment.id, "DELETE", id.as_str(), &done);
        done.map(drop).map_err(|error| format!("{id}: {}", why(&error).1))
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

    /// A request of the gateway itself in the name of the assignment. Whether it may was asked when somebody wrote that.
    fn call(&self) -> Call<'_> {
        Call {
            control: self.control,
            snapshot: &self.snapshot,
            caller: Caller::by_assignment(self.assignment.id.as_str()),
            method: Method::PUT,
            headers: &self.headers,
            path: self.assignment.id.as_str(),
            query: Vec::new(),
            now_ms: self.control.now_ms(),
            issuer: None,
            sessions: None,
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
            let stored = control.store.get(&operation.resource).await.map_err(|error| daemon::chain(&error))?;
            // Deleted, or being so: its withdrawal goes on with it.
            let Some(stored) = stored.filter(|stored| !stored.is_deleting()) else {
                return Ok(Step::Ends(Batch::default()));
            };
            let site = Site::of(control, &stored).ok_or_else(|| format!("{} cannot be read", stored.id))?;
            let until = Instant::now() + TURN;
            let more = self.0.keep_up(&site, until).await?;
            Ok(Step::Waits(if more { 0 } else { i64::MAX }))
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
            let late = self.0.withdraw(&site, &ids, Instant::now() + TURN).await?;
            Ok(if late { Step::Waits(0) } else { ends })
        })
    }
}

impl Rollouts {
    /// Does what can be done for an assignment now, and notes how far its clusters are. Whether there is more to do.
    async fn keep_up(&self, site: &Site<'_>, until: Instant) -> Result<bool, String> {
        let Site { control, assignment, stored, .. } = site;
        let chain = |error| daemon::chain(&error);
        let told = control.store.told(&stored.key).await.map_err(chain)?;
        let mut noted = Noted::of(told.as_ref(), assignment, control.now_ms());
        let mut fleet = members::look(control, assignment, &noted.refused).await.map_err(chain)?;
        // One that cannot be taken away keeps nobody else from what they get.
        let leaving = self.withdraw(site, &fleet.leaving, until).await;
        let late = self.advance(site, &mut fleet, &mut noted, until).await?;
        let status = noted.status(&fleet, assignment);
        if told.is_none_or(|told| told.status != status) {
            let told = Told { generation: assignment.template, told_ms: control.now_ms(), status };
            control.store.keep_told(&stored.key, &told, |events| events).await.map_err(chain)?;
        }
        Ok(leaving? || late)
    }

    /// Writes what waits to be written, as far as the bounds of the assignment go. Whether there was no time for more.
    async fn advance(
        &self,
        site: &Site<'_>,
        fleet: &mut Fleet,
        noted: &mut Noted,
        until: Instant,
    ) -> Result<bool, String> {
        let assignment = &site.assignment;
        noted.judge(fleet, assignment);
        if assignment.paused || noted.paused.is_some() {
            return Ok(false);
        }
        let protected = fleet_assignment::protected(site.stored, site.control)?;
        let body = assignment.body(site.stored, protected.as_ref()).ok_or("the template cannot be read")?;
        let unfinished = fleet.count(&[State::Applying]);
        let mut room = assignment.at_once(fleet.members.len()).saturating_sub(unfinished);
        let mut waiting: Vec<usize> = (0..fleet.members.len())
            .filter(|place| fleet.members[*place].state == State::Waiting && fleet.members[*place].is_ready)
            .collect();
        waiting.sort_by_cached_key(|place| order(&fleet.members[*place].key));
        let mut waiting = waiting.into_iter().peekable();
        while room > 0 && waiting.peek().is_some() {
            if Instant::now() >= until {
                return Ok(true);
            }
            // No more at once than may fail without a pause.
            let some = room.min(AT_ONCE).min(noted.left(fleet, assignment).saturating_add(1));
            let some: Vec<usize> = waiting.by_ref().take(some).collect();
            let mut writes: Vec<BoxFuture<'_, Result<(), (String, String)>>> = Vec::with_capacity(AT_ONCE);
            for place in &some {
                writes.push(Box::pin(self.make(site, &fleet.members[*place].id, &body)));
            }
            let written = join_all(writes).await;
            for (place, written) in some.into_iter().zip(written) {
                let member = &mut fleet.members[place];
                match written {
                    Ok(()) => {
                        (member.state, member.is_made) = (State::Applying, true);
                        room -= 1;
                    }
                    Err(why) => {
                        (member.state, member.why) = (State::Failed, Some(why.clone()));
                        let at_ms = site.control.now_ms();
                        noted.refused.insert(member.key.clone(), Refusal { why, at_ms });
                    }
                }
            }
            noted.judge(fleet, assignment);
            if noted.paused.is_some() {
                break;
            }
        }
        Ok(false)
    }

    /// Makes what the assignment wants in a cluster, or changes what it made there; or why not.
    async fn make(&self, site: &Site<'_>, cluster: &str, body: &Map<String, Value>) -> Result<(), (String, String)> {
        let assignment = &site.assignment;
        let id = format!("{cluster}/providers/{}/{}", assignment.kind.name(), assignment.name);
        let id = ResourceId::parse(&id).map_err(|error| ("InvalidResourceId".to_owned(), error.to_string()))?;
        let mark = Managed { by: assignment.id.as_str().to_owned(), template: assignment.template };
        let made = write::manage(&site.call(), &id, body, mark).await;
        self.record(&assignment.id, "PUT", id.as_str(), &made);
        made.map(drop).map_err(|error| why(&error))
    }
}

/// Where a cluster stands in the order of the waves: as good as by chance, and the same each time.
fn order(key: &str) -> [u8; 8] {
    let sum = digest::digest(&digest::SHA256, key.as_bytes());
    std::array::from_fn(|at| sum.as_ref()[at])
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
}

impl Noted {
    fn of(told: Option<&Told>, assignment: &Assignment, now_ms: i64) -> Self {
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
            Some(status) if same_template => {
                count(&status["counts"]["failed"]) + count(&status["counts"]["nonCompliant"])
            }
            _ => 0,
        };
        Self { refused, paused, forgiven }
    }

    fn failed(fleet: &Fleet) -> usize {
        fleet.count(&[State::Failed, State::NonCompliant])
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
        let reason = match (&self.paused, assignment.paused) {
            (Some(why), _) => Some(why.clone()),
            (None, true) => Some("Somebody paused it.".to_owned()),
            (None, false) => None,
        };
        let state = match (&reason, pending) {
            (Some(_), _) => "Paused",
            (None, 0) => "Complete",
            (None, _) => "RollingOut",
        };
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
            "paused": self.paused, "forgiven": self.forgiven, "refused": refused,
        })
    }
}
