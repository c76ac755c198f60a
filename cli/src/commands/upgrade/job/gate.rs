//! Whether the new pods are as they should be: ready, heard by the gateway, and without a restart for a while.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{
    kubernetes::{
        Kubernetes, Place,
        place::{CONNECTED_CLUSTER, POD},
        pods::{PODS, short},
    },
    manifests::VERSION_LABEL,
};

/// Between two looks.
const LOOK: Duration = Duration::from_secs(2);
/// Restarts after which a pod that was not ready yet is one that crashes: the first may be an accident.
const CRASHES: u64 = 3;
/// Why a container waits for its image.
const IMAGE: [&str; 4] = ["ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"];
const COMPONENT: &str = "app.kubernetes.io/component";

/// Why the new pods are not as they should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The cause as one word for programs.
    pub reason: &'static str,
    /// In the words of Kubernetes.
    pub message: String,
}

impl Fault {
    /// One word, and what was seen.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// What is watched.
pub struct Gate<'a> {
    /// The cluster whose agents are upgraded.
    pub cluster: &'a Kubernetes,
    /// Namespace of the agents.
    pub namespace: &'a str,
    /// The new version.
    pub version: &'a str,
    /// Deployments whose pods are new.
    pub deployments: Vec<&'a str>,
    /// Whether the gateway must have answered a heartbeat of the new version.
    pub must_be_heard: bool,
    /// An answer of the gateway that is not enough: the last one, as it stood before a new one was asked for.
    pub heard_before: Option<String>,
    /// How long they are watched once they are ready.
    pub window: Duration,
    /// How long they may take for that.
    pub timeout: Duration,
}

/// What was seen at one time.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    /// Whether all pods are new and ready.
    done: bool,
    /// Whether the gateway has answered the new version.
    heard: bool,
    /// Of the new pods, in all.
    restarts: u64,
    /// What is wrong, as far as it is known.
    fault: Option<Fault>,
}

impl Gate<'_> {
    /// Waits until the new pods have been well for the window.
    pub async fn pass(&self) -> Result<(), Fault> {
        let end = Instant::now() + self.timeout;
        let mut well: Option<(Instant, u64)> = None;
        let mut last = Fault::new("NotReady", "nothing was seen of the new pods");
        loop {
            match self.look().await {
                Ok(seen) => {
                    let is_crash = seen.restarts > well.map_or(CRASHES - 1, |(_, restarts)| restarts);
                    if let Some(fault) = seen.fault {
                        last = fault;
                    }
                    if is_crash {
                        return Err(Fault { reason: "Crash", ..last });
                    }
                    match (seen.done && seen.heard, well) {
                        (true, Some((since, _))) if since.elapsed() >= self.window => return Ok(()),
                        (true, None) => well = Some((Instant::now(), seen.restarts)),
                        (true, Some(_)) => {}
                        (false, _) => well = None,
                    }
                }
                Err(error) => tracing::warn!("the new pods are not seen: {error:#}"),
            }
            if well.is_none() && Instant::now() > end {
                return Err(last);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn look(&self) -> anyhow::Result<Seen> {
        let rollout = self.cluster.rollout_of(self.namespace, &self.deployments).await?;
        let pods = self.cluster.list(&Place::within(POD, self.namespace, ""), PODS).await?;
        let heard = if self.must_be_heard {
            let place = Place::within(CONNECTED_CLUSTER, self.namespace, "clustermetadata");
            self.cluster.get(&place).await?.unwrap_or_default()
        } else {
            Value::Null
        };
        let is_anew = self.heard_before.as_deref().is_none_or(|before| last_heard(&heard) != Some(before));
        let heard = !self.must_be_heard || is_heard(&heard, self.version) && is_anew;
        Ok(self.judge(rollout.is_done, &rollout.state, heard, &pods))
    }

    fn judge(&self, done: bool, state: &str, heard: bool, pods: &[Value]) -> Seen {
        let is_new = |pod: &&Value| {
            let labels = &pod["metadata"]["labels"];
            labels[VERSION_LABEL] == self.version && self.deployments.iter().any(|name| labels[COMPONENT] == *name)
        };
        let mut seen = Seen { done, heard, ..Seen::default() };
        if !done {
            seen.fault = Some(Fault::new("NotReady", state));
        } else if !heard {
            let message = "the new pods are ready, and the gateway has not answered a heartbeat of the new version";
            seen.fault = Some(Fault::new("NotHeard", message));
        }
        for pod in pods.iter().filter(is_new) {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            for container in pod["status"]["containerStatuses"].as_array().into_iter().flatten() {
                seen.restarts += container["restartCount"].as_u64().unwrap_or(0);
                let waiting = &container["state"]["waiting"];
                let reason = waiting["reason"].as_str().unwrap_or_default();
                let why = short(waiting["message"].as_str().unwrap_or_default());
                if IMAGE.contains(&reason) {
                    let image = container["image"].as_str().unwrap_or_default();
                    let message = format!("pod {name}: the image {image} cannot be pulled: {reason}: {why}");
                    seen.fault = Some(Fault::new("ImagePull", message));
                }
                let ended = &container["lastState"]["terminated"];
                if !ended.is_null() {
                    let code = ended["exitCode"].as_i64().unwrap_or_default();
                    let why = ended["reason"].as_str().unwrap_or("Error");
                    let count = container["restartCount"].as_u64().unwrap_or(0);
                    let message = format!("pod {name} ended with exit code {code} ({why}), {count} times");
                    seen.fault = Some(Fault::new("Crash", message));
                }
            }
        }
        seen
    }
}

/// When the gateway last answered a heartbeat.
pub fn last_heard(object: &Value) -> Option<&str> {
    object["status"]["lastConnectivityTime"].as_str()
}

/// Whether the controller-manager of this version has written that the gateway answered it. A process that starts writes
/// its version and takes the time out, until its first heartbeat is answered.
fn is_heard(object: &Value, version: &str) -> bool {
    let status = &object["status"];
    status["agentVersion"] == version && last_heard(object).is_some()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn judged(done: bool, heard: bool, pods: &[Value]) -> Seen {
        let cluster = Kubernetes::nowhere();
        let gate = Gate {
            cluster: &cluster,
            namespace: "towline",
            version: "0.3.0",
            deployments: vec!["controller-manager"],
            must_be_heard: true,
            heard_before: None,
            window: Duration::ZERO,
            timeout: Duration::ZERO,
        };
        gate.judge(done, "0 of 1 pods are ready", heard, pods)
    }

    fn pod(version: &str, component: &str, container: Value) -> Value {
        json!({"metadata": {"name": "p", "labels": {VERSION_LABEL: version, COMPONENT: component}},
               "status": {"containerStatuses": [container]}})
    }

    #[tokio::test]
    async fn u1_restarts_of_new_pods_count_and_those_of_others_do_not() {
        let crashed = json!({"restartCount": 2, "lastState": {"terminated": {"exitCode": 3, "reason": "Error"}}});
        let seen = judged(
            true,
            true,
            &[
                pod("0.3.0", "controller-manager", crashed.clone()),
                pod("0.2.0", "controller-manager", crashed.clone()),
                pod("0.3.0", "guard", crashed),
            ],
        );
        let fault = seen.fault.unwrap();
        assert_eq!((seen.restarts, fault.reason), (2, "Crash"));
        assert!(fault.message.contains("exit code 3"), "{}", fault.message);
    }

    #[tokio::test]
    async fn u1_reason_is_the_image_the_readiness_or_the_heartbeat() {
        let pulls = json!({"image": "r/a:0.3.0", "state": {"waiting": {"reason": "ErrImagePull", "message": "none"}}});
        let reason = |seen: Seen| seen.fault.map(|fault| fault.reason);
        assert_eq!(reason(judged(false, false, &[pod("0.3.0", "controller-manager", pulls)])), Some("ImagePull"));
        assert_eq!(reason(judged(false, false, &[])), Some("NotReady"));
        assert_eq!(reason(judged(true, false, &[])), Some("NotHeard"));
        assert_eq!(judged(true, true, &[]), Seen { done: true, heard: true, restarts: 0, fault: None });
    }

    #[test]
    fn u1_heartbeat_counts_that_was_answered_to_the_new_version() {
        let told =
            |version: &str, time: Value| json!({"status": {"agentVersion": version, "lastConnectivityTime": time}});
        assert!(is_heard(&told("0.3.0", json!("2026-11-27T10:00:00Z")), "0.3.0"));
        assert!(!is_heard(&told("0.2.0", json!("2026-11-27T10:00:00Z")), "0.3.0"));
        assert!(!is_heard(&told("0.3.0", Value::Null), "0.3.0") && !is_heard(&Value::Null, "0.3.0"));
    }
}
