//! Long-running operations: followed until they end, with what is going on, for so long at most.

use std::time::{Duration, Instant};

use anyhow::anyhow;
use http::{HeaderMap, Method};
use serde_json::Value;
use tokio::time::timeout;

use super::{Answer, Api, ApiError, Call, retry_after};
use crate::{
    failure::{Failure, Outcome},
    output::Progress,
};

/// Between looks where the gateway does not say.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest pause that is believed.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// How to wait.
#[derive(Debug, Clone, Copy)]
pub struct Wait {
    /// Not at all: what was begun goes on by itself.
    pub none: bool,
    /// For so long at most.
    pub limit: Duration,
}

impl Default for Wait {
    fn default() -> Self {
        Self { none: false, limit: Duration::from_secs(1200) }
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
        let begun = Instant::now();
        match timeout(wait.limit, self.until_ended(&link, &answer.headers, what, &progress)).await {
            Ok(result) => result,
            Err(_) => Err(Failure::from(anyhow!("{what} has not ended after {:?}", begun.elapsed()))
                .hint("it goes on by itself; wait for longer with --timeout, or look with towline show")),
        }
    }

    async fn until_ended(&self, link: &str, headers: &HeaderMap, what: &str, progress: &Progress) -> Outcome<()> {
        let mut pause = retry_after(headers);
        loop {
            let answer = self.send(&Call::new(Method::GET, link)).await?;
            match answer.body["status"].as_str() {
                Some("Succeeded") => return Ok(()),
                Some("Failed" | "Canceled") => {
                    return Err(ApiError::of_operation(what, &answer.body["error"]).into());
                }
                // A result's address has no status: 202 until it has ended.
                None if answer.status != http::StatusCode::ACCEPTED => return Ok(()),
                _ => {}
            }
            progress.note(answer.body["status"].as_str().unwrap_or("InProgress"));
            pause = retry_after(&answer.headers).or(pause);
            tokio::time::sleep(pause.unwrap_or(PAUSE).min(PAUSE_MAX)).await;
        }
    }

    /// As [`Self::follow`], and then what the resource is.
    pub async fn followed(&self, answer: Answer, target: &str, what: &str, wait: Wait) -> Outcome<Value> {
        self.follow(&answer, what, wait).await?;
        let done = answer.body["properties"]["provisioningState"].as_str().is_none_or(|state| state == "Succeeded");
        if done || wait.none { Ok(answer.body) } else { self.get(target).await }
    }
}
