//! Long-running operations: followed until they end, with what is going on, for so long at most.

use std::{io::ErrorKind, time::Duration};

use daemon::settings::positive_duration;
use http::{HeaderMap, Method, StatusCode};
use serde_json::Value;
use tokio::time::timeout;
use tunnel::transport::dial::DialError;

use super::{Answer, Api, ApiError, Call};
use crate::{
    client::retry_after,
    failure::{Failure, Outcome},
    oauth,
    terminal::Progress,
};

/// Between looks where the gateway does not say.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause that is believed.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// How often in a row nothing is learnt of an operation, because a connection is lost or the gateway has no time,
/// before that is a failure. With pauses that double up to [`PAUSE_MAX`] this is some four minutes.
const LOST_MAX: u32 = 12;

/// How to wait.
#[derive(Debug, Clone, Copy)]
pub struct Wait {
    /// Not at all: what was begun goes on by itself.
    pub none: bool,
    /// The longest time to wait.
    pub limit: Duration,
}

/// How long to wait for what takes its time.
#[derive(Debug, clap::Args, Clone)]
pub struct WaitArgs {
    /// Do not wait until it has ended
    #[arg(long)]
    pub no_wait: bool,
    /// Wait for so long at most, such as 90s or 20m
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, default_value = "20m")]
    pub timeout: Duration,
}

impl WaitArgs {
    /// What was typed.
    pub fn wait(&self) -> Wait {
        Wait { none: self.no_wait, limit: self.timeout }
    }
}

impl Default for Wait {
    fn default() -> Self {
        Self { none: false, limit: Duration::from_secs(1200) }
    }
}

/// What was waited for takes longer than the wait; it goes on by itself.
#[derive(Debug, thiserror::Error)]
#[error("{what} has not ended after {}", seconds(*.limit))]
pub struct TimedOut {
    what: String,
    limit: Duration,
}

impl TimedOut {
    /// A failure with what to type next, if this is what failed. `option`: how to wait for longer; `show`: the command that
    /// says how far it is.
    #[must_use]
    pub fn advised(failure: Failure, option: &str, show: &str) -> Failure {
        if !failure.error().is::<Self>() {
            return failure;
        }
        failure.hint(format!("it goes on by itself; wait for longer with {option}, or see how far it is: {show}"))
    }
}

/// Whole seconds, one at least.
fn seconds(limit: Duration) -> String {
    match limit.as_secs() {
        0 | 1 => "a second".to_owned(),
        seconds => format!("{seconds} seconds"),
    }
}

impl Api {
    /// Follows what an answer began, until it ends. `what` is for people, such as `deleting cluster x`.
    ///
    /// # Errors
    /// When it failed, or takes longer than `wait.limit`; it goes on by itself then.
    pub async fn follow(&self, answer: &Answer, what: &str, wait: Wait) -> Outcome<()> {
        let link = ["azure-asyncoperation", "location"].iter().find_map(|name| answer.header(name));
        let Some(link) = link.map(str::to_owned) else { return Ok(()) };
        if wait.none {
            return Ok(());
        }
        let progress = Progress::new(what);
        let look = async || self.send(&Call::new(Method::GET, &link)).await;
        match timeout(wait.limit, until_ended(look, &answer.headers, what, &progress)).await {
            Ok(result) => result,
            Err(_) => Err(Failure::from(TimedOut { what: what.to_owned(), limit: wait.limit })
                .hint("it goes on by itself; towline show says how far it is")),
        }
    }

    /// As [`Self::follow`], and then what the resource is.
    pub async fn followed(&self, answer: Answer, target: &str, what: &str, wait: Wait) -> Outcome<Value> {
        self.follow(&answer, what, wait).await?;
        let done = answer.body["properties"]["provisioningState"].as_str().is_none_or(|state| state == "Succeeded");
        if done || wait.none { Ok(answer.body) } else { self.get(target).await }
    }
}

/// Looks until it has ended. What goes on at the gateway goes on whether a look gets through or not.
async fn until_ended(
    look: impl AsyncFn() -> Outcome<Answer>,
    headers: &HeaderMap,
    what: &str,
    progress: &Progress,
) -> Outcome<()> {
    let (mut pause, mut lost) = (retry_after(headers), 0);
    loop {
        let answer = match look().await {
            Ok(answer) => answer,
            Err(failure) if says_nothing(&failure) && lost < LOST_MAX => {
                lost += 1;
                progress.note("not known, the gateway does not answer; asking again");
                tokio::time::sleep(pause_after(lost)).await;
                continue;
            }
            Err(failure) => return Err(failure),
        };
        lost = 0;
        match answer.body["status"].as_str() {
            Some("Succeeded") => return Ok(()),
            Some("Failed" | "Canceled") => {
                return Err(ApiError::of_operation(what, &answer.body["error"]).into());
            }
            // A result's address has no status: 202 until it has ended.
            None if answer.status != StatusCode::ACCEPTED => return Ok(()),
            _ => {}
        }
        progress.note(answer.body["status"].as_str().unwrap_or("InProgress"));
        pause = retry_after(&answer.headers).or(pause);
        tokio::time::sleep(pause.unwrap_or(PAUSE).min(PAUSE_MAX)).await;
    }
}

/// Before the next look after so many that learnt nothing: doubles, up to [`PAUSE_MAX`].
pub(super) fn pause_after(lost: u32) -> Duration {
    PAUSE.saturating_mul(1 << lost.min(6)).min(PAUSE_MAX)
}

/// Whether a look learnt nothing: there was no answer, or one that tells only that there is no time for one.
pub(super) fn says_nothing(failure: &Failure) -> bool {
    let is_busy = |status: StatusCode| status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
    match ApiError::behind(failure) {
        Some(error) => is_busy(error.status),
        None => failure.error().chain().any(|cause| {
            cause.downcast_ref::<oauth::Refused>().is_some_and(|refused| is_busy(refused.status)) || is_lost(cause)
        }),
    }
}

/// Whether there was no connection, or it broke off, or took too long; not that its other end is not trusted.
fn is_lost(cause: &(dyn std::error::Error + 'static)) -> bool {
    let dial = cause.downcast_ref::<DialError>();
    let io = cause.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
    cause.is::<hyper::Error>()
        || matches!(dial, Some(DialError::Resolve { .. } | DialError::Connect { .. } | DialError::ProxyBroken { .. }))
        || io.is_some_and(|kind| {
            !matches!(kind, ErrorKind::InvalidData | ErrorKind::NotFound | ErrorKind::PermissionDenied)
        })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use anyhow::anyhow;
    use serde_json::json;

    use super::*;

    fn answer(status: &str) -> Answer {
        Answer { status: StatusCode::OK, headers: HeaderMap::new(), body: json!({"status": status}) }
    }

    #[test]
    fn e1_what_is_not_waited_for_any_longer_names_the_option_and_the_command() {
        let failure =
            || Failure::from(TimedOut { what: "installing web".to_owned(), limit: Duration::from_millis(5_005) });
        assert_eq!(failure().error().to_string(), "installing web has not ended after 5 seconds");
        let advised = TimedOut::advised(failure(), "--timeout", "towline extension show -n web");
        let hint =
            "it goes on by itself; wait for longer with --timeout, or see how far it is: towline extension show -n web";
        assert_eq!(advised.advice(), Some(hint));
        assert_eq!(TimedOut::advised(anyhow!("other").into(), "--timeout", "x").advice(), None);
        assert_eq!(seconds(Duration::from_millis(300)), "a second");
    }

    #[tokio::test(start_paused = true)]
    async fn c1_a_lost_connection_is_no_end_of_what_is_followed() {
        let (headers, progress) = (HeaderMap::new(), Progress::new("a test"));
        let looks = Cell::new(0);
        let look = async || {
            looks.set(looks.get() + 1);
            match looks.get() {
                1 | 4 => Ok(answer("InProgress")),
                2 | 3 | 5 => Err(std::io::Error::from(ErrorKind::ConnectionReset).into()),
                _ => Ok(answer("Succeeded")),
            }
        };
        until_ended(look, &headers, "a test", &progress).await.unwrap();
        assert_eq!(looks.get(), 6);
        let looks = Cell::new(0);
        let never = async || {
            looks.set(looks.get() + 1);
            Err(std::io::Error::from(ErrorKind::ConnectionRefused).into())
        };
        let failure = until_ended(never, &headers, "a test", &progress).await.unwrap_err();
        assert!(failure.into_error().to_string().contains("connection refused"));
        assert_eq!(looks.get(), LOST_MAX + 1);
        let looks = Cell::new(0);
        let wrong = async || {
            looks.set(looks.get() + 1);
            Err(anyhow!("it is no JSON").into())
        };
        until_ended(wrong, &headers, "a test", &progress).await.unwrap_err();
        assert_eq!(looks.get(), 1, "what asking again does not mend is told at once");
    }
}
