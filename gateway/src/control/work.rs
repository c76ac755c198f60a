//! Long-running operations are carried out here, whoever began them, and what has ended long ago is forgotten.

use std::{collections::HashMap, sync::Arc, time::Duration};

use daemon::Shutdown;
use serde_json::json;
use tokio::time::Instant;

use super::{Control, LOOK_EVERY};
use crate::store::{
    batch::{Batch, Ended, Expect},
    operations::{Operation, Status},
};

/// The same at most, while none of them can be ended.
const PAUSE_MOST: Duration = Duration::from_secs(15);
/// Operations that are taken up at once.
const OPERATIONS_AT_ONCE: u32 = 64;
/// How long one rests that could not be ended, the first time; twice as long each time after, up to [`REST_MOST`].
const REST: Duration = Duration::from_secs(1);
/// The same at most.
const REST_MOST: Duration = Duration::from_secs(300);
/// Operations that rest at most; more are tried each time.
const RESTING: usize = 10_000;
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
struct Round {
    done: u32,
    failed: u32,
    /// The first failure: one line of a log for all of them.
    error: Option<String>,
}

impl Round {
    /// How long to wait after it, if it was `before` the last time: longer while nothing works.
    fn pause(&self, before: Duration) -> Duration {
        if self.error.is_some() && self.done == 0 { (before * 2).min(PAUSE_MOST) } else { LOOK_EVERY }
    }
}

/// Which operations are to be looked at next. Those that cannot be ended rest, and keep nobody waiting meanwhile.
#[derive(Default)]
struct Waiting {
    /// The last one that was looked at, where there are more behind it.
    behind: Option<(i64, String)>,
    /// How often those that could not be ended were tried, and until when they rest.
    resting: HashMap<String, (u32, Instant)>,
}

impl Waiting {
    /// Those of a page that do not rest.
    fn due<'a>(&self, page: &'a [Operation], now: Instant) -> Vec<&'a Operation> {
        let rests = |operation: &Operation| self.resting.get(&operation.id).is_some_and(|(_, until)| *until > now);
        page.iter().filter(|operation| !rests(operation)).collect()
    }

    fn ended(&mut self, id: &str) {
        self.resting.remove(id);
    }

    fn failed(&mut self, id: &str, now: Instant) {
        if self.resting.len() >= RESTING && !self.resting.contains_key(id) {
            // Those of long ago were ended by another replica, or rest no more.
            self.resting.retain(|_, (_, until)| *until > now);
            if self.resting.len() >= RESTING {
                return;
            }
        }
        let (tries, until) = self.resting.entry(id.to_owned()).or_insert((0, now));
        let rest = REST.saturating_mul(2_u32.saturating_pow(*tries)).min(REST_MOST);
        (*tries, *until) = (*tries + 1, now + rest);
    }
}

impl Control {
    /// Carries out long-running operations, also those that an earlier process began, until the gateway drains.
    pub async fn work(self: Arc<Self>, shutdown: Shutdown) {
        let mut forget = tokio::time::interval(FORGET_EVERY);
        forget.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut pause, mut waiting) = (LOOK_EVERY, Waiting::default());
        loop {
            let round = self.carry_out_some(&mut waiting).await;
            if let Some(error) = &round.error {
                tracing::error!(failed = round.failed, error, "operations are not ended; they are tried again");
            }
            if round.done > 0 && waiting.behind.is_some() {
                continue;
            }
            pause = round.pause(pause);
            tokio::select! {
                biased;
                () = shutdown.draining() => return,
                () = self.operations.notified() => {}
                () = tokio::time::sleep(pause) => {}
                _ = forget.tick() => self.forget().await,
            }
        }
    }

    /// Carries out some of those that wait, behind those that were looked at before.
    async fn carry_out_some(&self, waiting: &mut Waiting) -> Round {
        let mut round = Round::default();
        loop {
            let found = match &waiting.behind {
                Some((begun_ms, id)) => self.store.operations_behind((*begun_ms, id), OPERATIONS_AT_ONCE).await,
                None => self.store.operations_under_way(OPERATIONS_AT_ONCE).await,
            };
            let operations = match found {
                Ok(operations) => operations,
                Err(error) => {
                    round.error = Some(daemon::chain(&error));
                    return round;
                }
            };
            for operation in waiting.due(&operations, Instant::now()) {
                match self.carry_out(operation).await {
                    Ok(()) => {
                        round.done += 1;
                        waiting.ended(&operation.id);
                    }
                    Err(error) => {
                        round.failed += 1;
                        waiting.failed(&operation.id, Instant::now());
                        round.error.get_or_insert(format!("{}: {error}", operation.id));
                    }
                }
            }
            let last = operations.last().filter(|_| operations.len() == OPERATIONS_AT_ONCE as usize);
            waiting.behind = last.map(|last| (last.begun_ms, last.id.clone()));
            if waiting.behind.is_none() || round.done + round.failed > 0 {
                return round;
            }
        }
    }

    async fn forget(&self) {
        let before = self.now_ms() - i64::try_from(REMEMBERED.as_millis()).unwrap_or(i64::MAX);
        if let Err(error) = self.store.forget_operations(before).await {
            tracing::warn!(%error, "operations that ended long ago cannot be forgotten");
        }
        let before = self.now_ms() - i64::try_from(DELETED_REMEMBERED.as_millis()).unwrap_or(i64::MAX);
        if let Err(error) = self.store.forget_deleted_identities(self.now_ms(), before).await {
            tracing::warn!(%error, "clusters that were deleted long ago cannot be forgotten");
        }
        let before = self.directory().revision() - FOLLOWED_REVISIONS;
        if let Err(error) = self.store.forget_tombstones(before).await {
            tracing::warn!(%error, "deletions that all replicas know of cannot be forgotten");
        }
    }

    /// Does one operation and ends it, together or not at all.
    async fn carry_out(&self, operation: &Operation) -> Result<(), String> {
        let ended = Ended { id: operation.id.clone(), status: Status::Succeeded, error: None, now_ms: self.now_ms() };
        let mut batch = Batch { ends: vec![ended], ..Batch::default() };
        if operation.work.get("kind").is_some_and(|kind| kind == "delete") {
            match self.store.get(&operation.resource).await {
                Ok(Some(stored)) if stored.is_deleting() => {
                    batch.deletes.push((stored.key, Expect::Revision(stored.revision)));
                }
                // Deleted by another operation; what is there now was created since.
                Ok(_) => {}
                Err(error) => return Err(daemon::chain(&error)),
            }
        } else {
            batch.ends[0].status = Status::Failed;
            batch.ends[0].error = Some(json!({
                "code": "InternalServerError",
                "message": "The operation was begun by another version of the gateway, which this one cannot go on with.",
            }));
        }
        match self.write(&batch).await {
            Ok(Ok(_)) => {
                tracing::info!(operation = operation.id, resource = operation.resource, "operation ended");
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
        let round = |done, failed| Round { done, failed, error: (failed > 0).then(|| "locked".to_owned()) };
        let pauses = (0..8).scan(LOOK_EVERY, |pause, _| {
            *pause = round(0, OPERATIONS_AT_ONCE).pause(*pause);
            Some(*pause)
        });
        let pauses: Vec<_> = pauses.map(|pause| pause.as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 15, 15, 15, 15]);
        for fine in [round(0, 0), round(1, 2)] {
            assert_eq!(fine.pause(PAUSE_MOST), LOOK_EVERY);
        }
    }

    #[test]
    fn r10_what_cannot_be_ended_rests_longer_each_time_and_the_rest_is_bounded() {
        let (mut waiting, mut now) = (Waiting::default(), Instant::now());
        let page = ["a", "b"].map(|id| Operation {
            id: id.to_owned(),
            resource: "/g".to_owned(),
            status: Status::InProgress,
            begun_ms: 1,
            ended_ms: None,
            work: json!({}),
            error: None,
        });
        for rest in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            waiting.failed("a", now);
            let due = |at| waiting.due(&page, at).iter().map(|one| one.id.clone()).collect::<Vec<_>>();
            assert_eq!(due(now + Duration::from_secs(rest) - Duration::from_millis(1)), ["b"]);
            now += Duration::from_secs(rest);
            assert_eq!(due(now), ["a", "b"]);
        }
        waiting.ended("a");
        assert!(waiting.resting.is_empty());
        for n in 0..RESTING + 5 {
            waiting.failed(&n.to_string(), now);
        }
        assert_eq!(waiting.resting.len(), RESTING);
    }
}
