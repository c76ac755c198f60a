//! Long-running operations are carried out here, whoever began them, and what has ended long ago is forgotten.
//!
//! A kind of work is one file and one line in [`WORKS`]. Of one operation one process is in charge: it has a claim in
//! the store, which ends by itself, so that the work of a process that was killed is resumed by another. Kinds
//! that this program does not know are left to the newer one that began them.

pub mod converge;
mod delete;
pub mod take_down;

use std::{sync::Arc, time::Duration};

use daemon::Shutdown;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};

use super::{Control, LOOK_EVERY};
use crate::store::{
    batch::{Batch, Ended},
    operations::{Claim, Operation, Status, Waiting},
};

/// All kinds of work.
pub static WORKS: &[&dyn Work] = &[&converge::Converge, &delete::Delete, &take_down::TakeDown];

/// One kind of work that an operation may be about.
pub trait Work: Send + Sync {
    /// The word at `kind` of the operation's work.
    fn name(&self) -> &'static str;

    /// Does what can be done now. It may have been done before in part, or as a whole, by a process that was killed
    /// then.
    fn go_on<'a>(&'a self, control: &'a Arc<Control>, operation: &'a Operation) -> BoxFuture<'a, Result<Step, String>>;

    /// What it waits for, in a sentence, for whom it did not end for in time.
    fn waits_for(&self, _control: &Control, _operation: &Operation) -> String {
        "It did not end in time.".to_owned()
    }

    /// What is written together with its end where it did not end in time.
    fn gives_up<'a>(&'a self, _: &'a Control, _: &'a Operation) -> BoxFuture<'a, Result<Batch, String>> {
        Box::pin(async { Ok(Batch::default()) })
    }
}

/// What came of going on with an operation.
pub enum Step {
    /// It has ended, together with these writes.
    Ends(Batch),
    /// It has failed: ARM's error body.
    Fails(Value),
    /// It has failed, together with these writes.
    FailsWith(Batch, Value),
    /// Something newer took its place: ARM's error body says what.
    Cancels(Value),
    /// It waits for something else, and is looked at again at this instant, milliseconds since 1970; in five minutes at
    /// the latest, and in an hour if it is due at some time.
    Waits(i64),
}

/// How long it takes at most until operations are looked for again, while none of them can be ended.
const PAUSE_MOST: Duration = Duration::from_secs(15);
/// The same where there are several gateways and no operation is due. The gateway that begins or wakes an operation carries
/// it on at once; another one takes it over only if that gateway has ended in between.
const LOOK_AS_REPLICA: Duration = Duration::from_secs(10);
/// Operations of a kind that are taken up at once.
const OPERATIONS_AT_ONCE: u32 = 64;
/// How long a claim holds.
const CLAIM: Duration = Duration::from_secs(60);
/// How long one step of a work may take: what is left of the claim then is for writing down what came of it.
const STEP: Duration = Duration::from_secs(30);
/// How long one rests that could not be ended, the first time; twice as long each time after, up to [`REST_MOST`].
const REST: Duration = Duration::from_secs(1);
/// The same at most.
const REST_MOST: Duration = Duration::from_secs(300);
/// The same of one that has a due time: what it waits for wakes it.
const REST_TOLD: Duration = Duration::from_secs(3600);
/// How long an operation that has ended is remembered.
const REMEMBERED: Duration = Duration::from_secs(24 * 3600);
/// How long agents of a deleted cluster are told that it was: longer than any certificate of it holds.
const DELETED_REMEMBERED: Duration = Duration::from_secs(100 * 24 * 3600);
/// A replica that is further behind than this reads everything anew.
const FOLLOWED_REVISIONS: i64 = 100_000;
/// How often what has ended long ago is forgotten.
const FORGET_EVERY: Duration = Duration::from_secs(600);

/// What came of operations that were taken up at once.
#[derive(Default)]
pub(crate) struct Round {
    /// Operations that were gone on with.
    pub done: u32,
    failed: u32,
    /// The first failure: one line of a log for all of them.
    pub error: Option<String>,
    /// In how many milliseconds the first is due, if none was yet.
    idle_ms: Option<u64>,
}

impl Round {
    /// How long to wait after it, if it was `before` the last time: longer while nothing works, and while nothing is due
    /// `most` at most.
    fn pause(&self, before: Duration, most: Duration) -> Duration {
        if self.error.is_some() && self.done == 0 {
            return (before * 2).min(PAUSE_MOST);
        }
        self.idle_ms.map_or(LOOK_EVERY, |due| Duration::from_millis(due).clamp(LOOK_EVERY, most))
    }
}

/// How long one rests that could not be ended, and was tried that often before.
fn rest(tries: u32) -> Duration {
    REST.saturating_mul(2_u32.saturating_pow(tries)).min(REST_MOST)
}

/// As the store has spans of time.
fn in_ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

impl Control {
    /// Carries out long-running operations of these kinds, also those that an earlier process began, until the gateway
    /// drains.
    pub async fn work(self: Arc<Self>, works: &[&dyn Work], shutdown: Shutdown) {
        self.work_at(works, Duration::ZERO, shutdown).await;
    }

    /// The same, with a rest of so long at least between two looks for what waits, so that what is woken over and over
    /// is done once for all of that.
    pub async fn work_at(self: Arc<Self>, works: &[&dyn Work], least: Duration, shutdown: Shutdown) {
        let mut woken = self.operations.subscribe();
        let process = crate::random::guid();
        let mut forget = tokio::time::interval(FORGET_EVERY);
        forget.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut pause = LOOK_EVERY;
        // What could not be ended may work now: it is often restarted because something was repaired.
        self.wake(true).await;
        loop {
            let (round, more) = self.carry_out_some(works, &process).await;
            if let Some(error) = &round.error {
                tracing::error!(failed = round.failed, error, "operations are not ended; they are tried again");
            }
            if round.done > 0 && more {
                continue;
            }
            pause = round.pause(pause, if self.replicas().is_some() { LOOK_AS_REPLICA } else { LOOK_EVERY });
            if !least.is_zero() {
                tokio::select! {
                    biased;
                    () = shutdown.draining() => return,
                    () = tokio::time::sleep(least) => {}
                }
            }
            tokio::select! {
                biased;
                () = shutdown.draining() => return,
                _ = woken.changed() => {}
                () = tokio::time::sleep(pause) => {}
                _ = forget.tick() => self.forget().await,
            }
        }
    }

    /// Carries out some of those that wait, in the name of a process. Whether there may be more.
    pub(crate) async fn carry_out_some(self: &Arc<Self>, works: &[&dyn Work], process: &str) -> (Round, bool) {
        let (mut round, mut more) = (Round::default(), false);
        let kinds: Vec<&str> = works.iter().map(|work| work.name()).collect();
        match self.store.next_operation(&kinds).await {
            Ok(next) => {
                let due = next.map_or(i64::MAX, |next| next.saturating_sub(self.now_ms()));
                if due > 0 {
                    return (Round { idle_ms: Some(due.unsigned_abs()), ..round }, false);
                }
            }
            Err(error) => return (Round { error: Some(daemon::chain(&error)), ..round }, false),
        }
        for work in works {
            let waiting = match self.store.operations_waiting(work.name(), self.now_ms(), OPERATIONS_AT_ONCE).await {
                Ok(waiting) => waiting,
                Err(error) => {
                    round.error = Some(daemon::chain(&error));
                    continue;
                }
            };
            more |= waiting.len() == OPERATIONS_AT_ONCE as usize;
            for one in &waiting {
                match self.take_up(*work, one, process).await {
                    Ok(true) => round.done += 1,
                    Ok(false) => {}
                    Err(error) => {
                        round.failed += 1;
                        round.error.get_or_insert(format!("{}: {error}", one.operation.id));
                    }
                }
            }
        }
        (round, more)
    }

    /// Has looked at again what would rest for longer than anything rests, or whatever rests.
    pub(crate) async fn wake(&self, resting: bool) {
        let now = self.now_ms();
        if let Err(error) = self.store.wake_operations(now, now + in_ms(REST_TOLD + CLAIM), resting).await {
            tracing::warn!(%error, "operations that rest cannot be woken");
        }
    }

    async fn forget(&self) {
        self.wake(false).await;
        let before = self.now_ms() - in_ms(REMEMBERED);
        if let Err(error) = self.store.forget_operations(before).await {
            tracing::warn!(%error, "operations that ended long ago cannot be forgotten");
        }
        if let Err(error) = self.forget_protected().await {
            tracing::warn!(%error, "protected settings that are older than 48 hours cannot be taken away");
        }
        if let Err(error) = self.store.forget_held().await {
            tracing::warn!(%error, "challenges that were used long ago cannot be forgotten");
        }
        let before = self.now_ms() - in_ms(DELETED_REMEMBERED);
        if let Err(error) = self.store.forget_deleted_identities(self.now_ms(), before).await {
            tracing::warn!(%error, "clusters that were deleted long ago cannot be forgotten");
        }
        let before = self.directory().revision() - FOLLOWED_REVISIONS;
        if let Err(error) = self.store.forget_tombstones(before).await {
            tracing::warn!(%error, "deletions that all replicas know of cannot be forgotten");
        }
    }

    /// Goes on with an operation, unless another process does. Whether it did.
    async fn take_up(self: &Arc<Self>, work: &dyn Work, waiting: &Waiting, process: &str) -> Result<bool, String> {
        let until = self.now_ms() + in_ms(CLAIM);
        let claimed = self.store.claim_operation(waiting, process, until).await;
        let Some(claim) = claimed.map_err(|error| daemon::chain(&error))? else { return Ok(false) };
        let done = self.carry_out(work, &waiting.operation, &claim).await;
        if done.is_err() {
            let next = self.now_ms() + in_ms(rest(waiting.tries));
            let next = waiting.operation.due_ms.map_or(next, |due| next.min(due.max(self.now_ms() + in_ms(REST))));
            if let Err(error) = self.store.release_operation(&claim, self.now_ms(), next, false).await {
                tracing::debug!(operation = waiting.operation.id, %error, "a claim ends by itself");
            }
        }
        done.map(|()| true)
    }

    /// Goes on with one operation; what ends it happens together with its end, or not at all.
    async fn carry_out(self: &Arc<Self>, work: &dyn Work, operation: &Operation, claim: &Claim) -> Result<(), String> {
        let now_ms = self.now_ms();
        let overdue = operation.due_ms.is_some_and(|due| due <= now_ms);
        let late = async |why: &str| {
            let message = [&work.waits_for(self, operation), why].join(" ");
            let error = json!({"code": "OperationTimedOut", "message": message.trim_end()});
            work.gives_up(self, operation).await.map(|batch| (batch, Status::Failed, Some(error)))
        };
        let step = tokio::time::timeout(STEP, work.go_on(self, operation)).await;
        let step = step.unwrap_or_else(|_| Err(format!("no end of a step within {} s", STEP.as_secs())));
        let (mut batch, status, error) = match step {
            Ok(Step::Ends(batch)) => (batch, Status::Succeeded, None),
            Ok(Step::Fails(error)) => (Batch::default(), Status::Failed, Some(error)),
            Ok(Step::FailsWith(batch, error)) => (batch, Status::Failed, Some(error)),
            Ok(Step::Cancels(error)) => (Batch::default(), Status::Canceled, Some(error)),
            Ok(Step::Waits(_)) if overdue => late("").await?,
            Err(error) if overdue => late(&error).await?,
            Err(error) => return Err(error),
            Ok(Step::Waits(next)) => {
                let rest = if operation.due_ms.is_some() { REST_TOLD } else { REST_MOST };
                let next = next.min(now_ms + in_ms(rest));
                let next = operation.due_ms.map_or(next, |due| next.min(due));
                return match self.store.release_operation(claim, self.now_ms(), next, true).await {
                    Ok(_) => Ok(()),
                    Err(error) => Err(daemon::chain(&error)),
                };
            }
        };
        batch.ends.push(Ended { id: operation.id.clone(), status, error, now_ms });
        batch.claim = Some(claim.clone());
        match self.write(&batch).await {
            Ok(Ok(_)) => {
                let (operation, resource, status) = (&operation.id, &operation.resource, status.as_str());
                tracing::info!(operation, resource, status, "operation ended");
                Ok(())
            }
            Ok(Err(refused)) => Err(refused.to_string()),
            Err(error) => Err(daemon::chain(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r10_operations_that_all_fail_are_tried_again_after_pauses() {
        let round =
            |done, failed| Round { done, failed, error: (failed > 0).then(|| "locked".to_owned()), idle_ms: None };
        let pauses = (0..8).scan(LOOK_EVERY, |pause, _| {
            *pause = round(0, OPERATIONS_AT_ONCE).pause(*pause, LOOK_EVERY);
            Some(*pause)
        });
        let pauses: Vec<_> = pauses.map(|pause| pause.as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 15, 15, 15, 15]);
        for fine in [round(0, 0), round(1, 2)] {
            assert_eq!(fine.pause(PAUSE_MOST, LOOK_AS_REPLICA), LOOK_EVERY);
        }
    }

    #[test]
    fn t12_while_nothing_is_due_nobody_asks_before_it_is() {
        let pause = |due, most| Round { idle_ms: Some(due), ..Round::default() }.pause(PAUSE_MOST, most);
        assert_eq!(pause(1, LOOK_AS_REPLICA), LOOK_EVERY);
        assert_eq!(pause(3_000, LOOK_AS_REPLICA), Duration::from_secs(3));
        assert_eq!(pause(u64::MAX, LOOK_AS_REPLICA), LOOK_AS_REPLICA);
        assert_eq!(pause(u64::MAX, LOOK_EVERY), LOOK_EVERY, "another process may begin something in SQLite");
    }

    #[test]
    fn r10_what_cannot_be_ended_rests_longer_each_time_and_the_rest_is_bounded() {
        let rests: Vec<_> = (0..11).map(|tries| rest(tries).as_secs()).collect();
        assert_eq!(rests, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
        assert_eq!(rest(u32::MAX), REST_MOST);
    }

    #[test]
    fn every_kind_of_work_is_there_once() {
        for work in WORKS {
            assert_eq!(WORKS.iter().filter(|other| other.name() == work.name()).count(), 1, "{}", work.name());
        }
    }
}
