//! The agents' pods: whether the newest are all there, which are not ready, and what they say (features row I4).

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::LogParams};
use serde_json::Value;

use super::{Error, Kubernetes, Place, place};
use crate::{
    manifests::{AGENT, MANAGER},
    output::line,
};

/// The pods of both Deployments.
pub const PODS: &str = "app.kubernetes.io/name in (towline-agent,towline-controller-manager)";
/// Characters of a line of a log that are shown, and of an event.
const SHOWN: usize = 600;
/// Bytes and lines of a log that are read.
const LOG_BYTES: i64 = 1024 * 1024;

/// What is known of a pod.
pub struct PodState {
    /// Its name.
    pub name: String,
    /// Whether all of its containers are ready.
    pub ready: bool,
    /// Its phase, and why a container waits or ended.
    pub state: String,
}

impl PodState {
    /// Of a pod as the apiserver has it.
    pub fn of(pod: &Value) -> Self {
        let status = &pod["status"];
        let conditions = status["conditions"].as_array().into_iter().flatten();
        let ready = conditions.clone().any(|one| one["type"] == "Ready" && one["status"] == "True");
        let mut state = status["phase"].as_str().unwrap_or("Unknown").to_owned();
        for condition in conditions.filter(|one| one["type"] == "PodScheduled" && one["status"] == "False") {
            push(&mut state, &condition["reason"], &condition["message"]);
        }
        for container in status["containerStatuses"].as_array().into_iter().flatten() {
            for now in ["waiting", "terminated"] {
                push(&mut state, &container["state"][now]["reason"], &container["state"][now]["message"]);
            }
            if let Some(restarts) = container["restartCount"].as_u64().filter(|count| *count > 0) {
                state += &format!("; restarted {restarts} times");
            }
        }
        Self { name: pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(), ready, state }
    }
}

fn push(state: &mut String, reason: &Value, message: &Value) {
    for text in [reason, message].into_iter().filter_map(Value::as_str).filter(|text| !text.is_empty()) {
        *state += "; ";
        *state += &short(text);
    }
}

/// One line of what a cluster says, without what could steer a terminal.
pub fn short(text: &str) -> String {
    line(text.trim()).chars().take(SHOWN).collect()
}

/// Words of a pod's state that no waiting changes.
const FOR_GOOD: &[&str] =
    &["ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError"];
/// How long a refusal is waited for: a quota may be raised meanwhile.
pub const REFUSED: Duration = Duration::from_secs(20);
/// How long a pod is waited for that no node takes: a node may be added.
const NO_NODE: Duration = Duration::from_secs(90);

/// What keeps pods from running that waiting alone does not take away.
#[derive(Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// In the words of Kubernetes.
    pub text: String,
    /// How long it is waited for all the same.
    pub patience: Duration,
}

impl Obstacle {
    /// Of pods, and of what makes them: a refusal of a quota, a webhook or a policy stands in a condition of the Deployment.
    fn of(deployments: &[(&str, Option<Value>)], pods: &[Value]) -> Option<Self> {
        let conditions = |object: &Value| object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        for (name, deployment) in deployments {
            let all = deployment.as_ref().map(conditions).unwrap_or_default();
            let refused = all.iter().find(|one| one["type"] == "ReplicaFailure" && one["status"] == "True");
            if let Some(message) = refused.and_then(|one| one["message"].as_str()) {
                return Some(Self { text: short(&format!("no pod of {name} is made: {message}")), patience: REFUSED });
            }
        }
        pods.iter().find_map(Self::of_pod)
    }

    /// Of one pod.
    pub fn of_pod(pod: &Value) -> Option<Self> {
        let state = PodState::of(pod);
        let text = short(&format!("pod {} is {}", state.name, state.state));
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        let no_node = { conditions }.any(|one| one["type"] == "PodScheduled" && one["reason"] == "Unschedulable");
        if no_node {
            return Some(Self { text, patience: NO_NODE });
        }
        FOR_GOOD.iter().any(|words| state.state.contains(words)).then_some(Self { text, patience: REFUSED })
    }
}

/// How far both Deployments are with the pods that they were given last.
pub struct Rollout {
    /// Whether all pods are new and ready, and none of before is left.
    pub is_done: bool,
    /// For people.
    pub state: String,
    /// What keeps it from going on.
    pub obstacle: Option<Obstacle>,
}

impl Rollout {
    /// Of Deployments by their names; a missing one is not done.
    fn of(deployments: &[(&str, Option<Value>)]) -> Self {
        let one = |(name, deployment): &(&str, Option<Value>)| {
            let Some(deployment) = deployment else { return (false, format!("{name} is not there")) };
            let (status, count) = (&deployment["status"], |value: &Value| value.as_u64().unwrap_or(0));
            let wanted = deployment["spec"]["replicas"].as_u64().unwrap_or(1);
            // A status of before the last change tells nothing of it.
            let is_seen = count(&status["observedGeneration"]) >= count(&deployment["metadata"]["generation"]);
            let (new, all) = (count(&status["updatedReplicas"]), count(&status["replicas"]));
            // Which pods are ready is not said; all are once no others are left.
            let ready = count(&status["availableReplicas"]).min(new);
            let done = is_seen && wanted > 0 && new == wanted && all == wanted && ready == wanted;
            let old = all.saturating_sub(new);
            let old = if old > 0 { format!(", {old} of before left") } else { String::new() };
            let ready = if is_seen { ready } else { 0 };
            (done, format!("{ready} of {wanted} pods of {name} are ready{old}"))
        };
        let (done, states): (Vec<bool>, Vec<String>) = deployments.iter().map(one).unzip();
        Self { is_done: done.into_iter().all(|done| done), state: states.join("; "), obstacle: None }
    }
}

impl Kubernetes {
    /// How far the agents are with what was applied last.
    pub async fn rollout(&self, namespace: &str) -> Result<Rollout, Error> {
        let mut deployments = Vec::new();
        for name in [AGENT, MANAGER] {
            deployments.push((name, self.get(&Place::within(place::DEPLOYMENT, namespace, name)).await?));
        }
        let mut rollout = Rollout::of(&deployments);
        if !rollout.is_done {
            let pods = self.list(&Place::within(place::POD, namespace, ""), PODS).await?;
            rollout.obstacle = Obstacle::of(&deployments, &pods);
        }
        Ok(rollout)
    }

    /// The agents' pods.
    pub async fn agents(&self, namespace: &str) -> Result<Vec<PodState>, Error> {
        let pods = self.list(&Place::within(place::POD, namespace, ""), PODS).await?;
        Ok(pods.iter().map(PodState::of).collect())
    }

    /// Why the agents are not ready: each pod with its state, its last event and the last line of its log. What cannot be
    /// read is said in its place.
    pub async fn why_not_ready(&self, namespace: &str) -> Vec<String> {
        let pods = match self.agents(namespace).await {
            Ok(pods) => pods,
            Err(error) => return vec![format!("the pods in {namespace} cannot be listed: {error}")],
        };
        if pods.is_empty() {
            let events = self.events(namespace, None).await;
            let last = events.last().map_or_else(String::new, |event| format!("; last event: {event}"));
            return vec![format!("there are no pods in {namespace}{last}")];
        }
        let mut lines = Vec::new();
        for pod in pods.iter().filter(|pod| !pod.ready) {
            let event = self.events(namespace, Some(&pod.name)).await.pop().unwrap_or_else(|| "none".to_owned());
            let log = self.log(namespace, &pod.name, 1).await.unwrap_or_default();
            let log = if log.trim().is_empty() { "nothing".to_owned() } else { short(&log) };
            lines.push(format!(
                "pod {} is not ready: {}\n  last event: {event}\n  last line of its log: {log}",
                pod.name, pod.state
            ));
        }
        if lines.is_empty() {
            lines.push(format!("all {} pods are ready; the gateway has not heard of them", pods.len()));
        }
        lines
    }

    /// Events of a pod, or of all objects, the newest last.
    pub async fn events(&self, namespace: &str, pod: Option<&str>) -> Vec<String> {
        let mut events = self.list(&Place::within(place::EVENT, namespace, ""), "").await.unwrap_or_default();
        events.retain(|event| pod.is_none_or(|pod| event["involvedObject"]["name"] == pod));
        let time = |event: &Value| {
            let named = ["lastTimestamp", "eventTime"].into_iter().find_map(|name| event[name].as_str());
            named.or_else(|| event["metadata"]["creationTimestamp"].as_str()).unwrap_or_default().to_owned()
        };
        events.sort_by_key(time);
        let text = |event: &Value, name: &str| event[name].as_str().unwrap_or_default().to_owned();
        events
            .iter()
            .map(|event| {
                let object = event["involvedObject"]["name"].as_str().unwrap_or_default();
                let said = short(&text(event, "message"));
                format!("{} {} {object}: {said}", time(event), text(event, "reason"))
            })
            .collect()
    }

    /// The last lines of a pod's log.
    pub async fn log(&self, namespace: &str, pod: &str, lines: i64) -> Result<String, Error> {
        let params = LogParams { tail_lines: Some(lines), limit_bytes: Some(LOG_BYTES), ..LogParams::default() };
        Api::<Pod>::namespaced(self.client.clone(), namespace).logs(pod, &params).await.map_err(Error::from)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn obstacle_that_waiting_does_not_take_away_is_seen_at_once() {
        let refused = json!({"status": {"conditions": [
            {"type": "Progressing", "status": "True"},
            {"type": "ReplicaFailure", "status": "True", "message": "pods \"a\" is forbidden: exceeded quota: q"},
        ]}});
        let quota = Obstacle::of(&[(AGENT, Some(refused)), (MANAGER, None)], &[]).unwrap();
        assert!(quota.text.contains("exceeded quota") && quota.text.contains(AGENT), "{}", quota.text);
        let pod = |status: Value| json!({"metadata": {"name": "p"}, "status": status});
        let taint = pod(json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "1 node(s) had untolerated taint {x: y}"},
        ]}));
        let taint = Obstacle::of_pod(&taint).unwrap();
        assert!(taint.text.contains("untolerated taint") && taint.patience > quota.patience, "{}", taint.text);
        let waits = |reason: &str| {
            pod(json!({"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": reason}}}]}))
        };
        assert!(Obstacle::of_pod(&waits("InvalidImageName")).is_some());
        for passing in ["ContainerCreating", "ImagePullBackOff", "CrashLoopBackOff"] {
            assert_eq!(Obstacle::of_pod(&waits(passing)), None, "{passing}");
        }
    }

    #[test]
    fn i4_pods_of_before_are_not_those_that_are_waited_for() {
        let of = |generation: u32, observed: u32, replicas: u32, updated: u32, available: u32| {
            let deployment = json!({
                "metadata": {"generation": generation}, "spec": {"replicas": 2},
                "status": {"observedGeneration": observed, "replicas": replicas, "updatedReplicas": updated, "availableReplicas": available},
            });
            Rollout::of(&[(AGENT, Some(deployment))])
        };
        assert!(of(3, 3, 2, 2, 2).is_done);
        for (case, rollout) in [
            ("the change is not seen yet", of(4, 3, 2, 2, 2)),
            ("one of before is left", of(3, 3, 3, 2, 2)),
            ("only one is new", of(3, 3, 2, 1, 2)),
            ("one is not ready", of(3, 3, 2, 2, 1)),
            ("there are none", of(3, 3, 0, 0, 0)),
            ("there is no Deployment", Rollout::of(&[(MANAGER, None)])),
        ] {
            assert!(!rollout.is_done, "{case}: {}", rollout.state);
        }
        assert_eq!(of(3, 3, 3, 1, 2).state, "1 of 2 pods of clusterconnect-agent are ready, 2 of before left");
    }
}
