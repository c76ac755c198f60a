//! Until the agents of this run, and not those of before, are connected (docs/features.md I4).

use std::time::{Duration, Instant};

use anyhow::anyhow;
use http::StatusCode;
use serde_json::Value;
use types::api::ResourceId;

use super::{Args, precheck::Prepared, resource::find};
use crate::{
    api::{Api, ApiError},
    commands::{known, steps::Steps},
    failure::{Failure, Outcome},
    kubernetes::{
        Kubernetes,
        pods::{Obstacle, Rollout, Standing},
    },
};

/// Between looks at what agents and gateway make of each other.
const PAUSE: Duration = Duration::from_secs(1);

/// Returns the resource, or, for who may not read it, what was known of it, once all pods are of this run and ready,
/// which means that each has a tunnel, and the gateway says so too.
pub async fn connected(args: &Args, prepared: &Prepared, known: Value, steps: &mut Steps) -> Outcome<Value> {
    let look = async || match &prepared.token {
        // Who holds a token reads nothing, and believes the pods.
        Some(_) => {
            let mut known = known.clone();
            known["properties"]["connectivityStatus"] = "Connected".into();
            Ok((known, "Connected".to_owned()))
        }
        None => status(&prepared.api, &prepared.id).await,
    };
    let waiting = Waiting {
        cluster: &prepared.cluster,
        namespace: &prepared.namespace,
        within: args.onboarding_timeout,
        hint: "towline connect --no-wait leaves the agents there to be looked at: towline troubleshoot; --onboarding-timeout waits for longer",
    };
    waiting.until(steps, look).await
}

/// The resource, and its status in words.
pub async fn status(api: &Api, id: &ResourceId) -> Outcome<(Value, String)> {
    match find(api, id).await {
        Ok(found) => {
            let resource = found.resource.unwrap_or_default();
            let status = resource["properties"]["connectivityStatus"].as_str().unwrap_or("gone").to_owned();
            Ok((resource, status))
        }
        // A gateway or a network that is away for a moment takes nothing back that was made.
        Err(failure) if passes(ApiError::behind(&failure).map(|error| error.status)) => {
            Ok((Value::Null, "not known, the gateway does not answer".to_owned()))
        }
        Err(failure) => Err(failure),
    }
}

/// Whether a failure to ask says nothing of what was asked for: no answer at all, no time for it, too many questions.
fn passes(status: Option<StatusCode>) -> bool {
    let Some(status) = status else { return true };
    !status.is_client_error() || matches!(status, StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS)
}

/// A wait for agents.
pub struct Waiting<'a> {
    /// Where they are.
    pub cluster: &'a Kubernetes,
    /// Namespace of the agents.
    pub namespace: &'a str,
    /// The longest time to wait.
    pub within: Duration,
    /// What to type when they are late.
    pub hint: &'a str,
}

impl Waiting<'_> {
    /// Until all pods are new and ready, and `look` says `Connected` of the resource, which is returned.
    pub async fn until(&self, steps: &mut Steps, look: impl AsyncFn() -> Outcome<(Value, String)>) -> Outcome<Value> {
        let end = Instant::now() + self.within;
        let mut last = String::new();
        let mut standing = Standing::default();
        loop {
            let (resource, status) = look().await?;
            let rollout = match self.cluster.rollout(self.namespace).await {
                Ok(rollout) => rollout,
                Err(error) => {
                    let state = format!("the pods are not known: {error}");
                    Rollout { is_done: false, state, obstacles: Vec::new() }
                }
            };
            if status == "Connected" && rollout.is_done {
                return Ok(resource);
            }
            // What is known first: it is what somebody has to act on.
            let reason = rollout.obstacles.first().map_or_else(String::new, |obstacle| format!("{}; ", obstacle.text));
            let state = format!("{reason}{status}; {}", rollout.state);
            if state != last {
                steps.note(&state);
                last = state;
            }
            if let Some(obstacle) = standing.look(&rollout.obstacles, Instant::now()) {
                return Err(stuck(obstacle));
            }
            if Instant::now() > end {
                return Err(self.late(&status, &rollout.state).await);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn late(&self, status: &str, rollout: &str) -> Failure {
        let why = self.cluster.why_not_ready(self.namespace).await;
        let error = anyhow!(
            "the agents have not connected within {} s: the resource is {status}, {rollout}\n{}",
            self.within.as_secs(),
            why.join("\n"),
        );
        let known = known::remedies_of(&why);
        Failure::from(error).hint(known.into_iter().chain([self.hint.to_owned()]).collect::<Vec<_>>().join("; "))
    }
}

/// What is known of the reason, else what is said in general.
pub fn hint_of(why: &str, otherwise: &str) -> String {
    let known = known::remedies(why);
    if known.is_empty() { otherwise.to_owned() } else { known.join("; ") }
}

fn stuck(obstacle: &Obstacle) -> Failure {
    let error = anyhow!("the agents cannot run: {}", obstacle.text);
    Failure::from(error).hint(hint_of(&obstacle.text, "kubectl describe the pod, and take away what keeps it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i4_a_gateway_that_has_no_time_is_no_reason_to_take_all_back() {
        for passing in [408, 429, 500, 502, 503, 504] {
            assert!(passes(StatusCode::from_u16(passing).ok()), "{passing}");
        }
        assert!(passes(None), "nobody answered");
        for last in [400, 401, 403, 404, 409, 410] {
            assert!(!passes(StatusCode::from_u16(last).ok()), "{last}");
        }
    }
}
