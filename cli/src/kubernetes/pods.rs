//! The agents' pods: whether the newest are all there, and which are not ready (docs/features.md I4).

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{Error, Kubernetes, Place, place};
use crate::{
    manifests::{AGENT, EXTENSIONS, GUARD, MANAGER, UPGRADER},
    terminal::line,
};

/// The pods of all Deployments.
pub const PODS: &str = "app.kubernetes.io/name in (towline-agent,towline-controller-manager,towline-extension-manager,towline-guard,towline-upgrader)";
/// Characters of a line of a log that are shown, and of an event.
const SHOWN: usize = 600;

/// What is known of a pod.
pub struct PodState {
    pub name: String,
    /// Whether all of its containers are ready.
    pub ready: bool,
    /// Whether it is on its way out.
    pub going: bool,
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
        let going = !pod["metadata"]["deletionTimestamp"].is_null();
        Self { name: pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(), ready, going, state }
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

/// Reasons of a waiting container that no waiting changes: they are about what was typed.
const FOR_GOOD: &[&str] = &["ErrImageNeverPull", "InvalidImageName"];
/// Reasons that may pass: a Secret or a volume comes later, a container runtime has no time.
const MAY_PASS: &[&str] = &["CreateContainerConfigError", "CreateContainerError"];

/// What it is that keeps pods from running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Hindrance {
    /// A quota, a webhook or a policy refuses the pod.
    Refused,
    /// The container cannot be made, ever.
    Image,
    /// The container cannot be made now.
    Container,
    /// No node takes the pod.
    NoNode,
}

impl Hindrance {
    /// How long it has to stand before a wait ends with it: a quota may be raised meanwhile, a node added by somebody
    /// or by an autoscaler.
    pub fn patience(self) -> Duration {
        Duration::from_secs(match self {
            Self::Refused | Self::Image => 20,
            Self::Container => 120,
            Self::NoNode => 600,
        })
    }
}

/// What keeps pods from running that waiting alone may not take away.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// The Deployment, Job or pod that it is about.
    pub on: String,
    /// What it is.
    pub hindrance: Hindrance,
    /// In the words of Kubernetes.
    pub text: String,
}

impl Obstacle {
    /// Of a Deployment: its newest ReplicaSet, in a condition of which stands why it makes no pod, and the pods of that
    /// one. What hinders pods of earlier ReplicaSets goes with them.
    fn of(name: &str, deployment: &Value, sets: &[Value], pods: &[Value]) -> Vec<Self> {
        const REVISION: &str = "deployment.kubernetes.io/revision";
        let count = |value: &Value| value.as_u64().unwrap_or(0);
        let meta = &deployment["metadata"];
        if count(&deployment["status"]["observedGeneration"]) < count(&meta["generation"]) {
            return Vec::new();
        }
        let owned = |object: &&Value, by: &Value| {
            let owners = object["metadata"]["ownerReferences"].as_array();
            owners.into_iter().flatten().any(|owner| !by.is_null() && owner["uid"] == *by)
        };
        let newest = |set: &&Value| set["metadata"]["annotations"][REVISION] == meta["annotations"][REVISION];
        let Some(set) = sets.iter().filter(|set| owned(set, &meta["uid"])).find(newest) else { return Vec::new() };
        let conditions = set["status"]["conditions"].as_array().into_iter().flatten();
        let refused = { conditions }.find(|one| one["type"] == "ReplicaFailure" && one["status"] == "True");
        let refused = refused.and_then(|one| one["message"].as_str()).map(|message| Self {
            on: name.to_owned(),
            hindrance: Hindrance::Refused,
            text: short(&format!("no pod of {name} is made: {message}")),
        });
        let of_pods = pods.iter().filter(|pod| owned(pod, &set["metadata"]["uid"])).filter_map(Self::of_pod);
        refused.into_iter().chain(of_pods).collect()
    }

    /// Of one pod; none of one that is on its way out.
    pub fn of_pod(pod: &Value) -> Option<Self> {
        if !pod["metadata"]["deletionTimestamp"].is_null() {
            return None;
        }
        let list = |name: &str| pod["status"][name].as_array().into_iter().flatten();
        let no_node = list("conditions").any(|one| one["type"] == "PodScheduled" && one["reason"] == "Unschedulable");
        let containers = list("initContainerStatuses").chain(list("containerStatuses"));
        let waits: Vec<&str> =
            containers.filter_map(|container| container["state"]["waiting"]["reason"].as_str()).collect();
        let waits_for = |reasons: &[&str]| waits.iter().any(|reason| reasons.contains(reason));
        let hindrance = match () {
            () if no_node => Hindrance::NoNode,
            () if waits_for(FOR_GOOD) => Hindrance::Image,
            () if waits_for(MAY_PASS) => Hindrance::Container,
            () => return None,
        };
        let state = PodState::of(pod);
        let text = short(&format!("pod {} is {}", state.name, state.state));
        Some(Self { on: state.name, hindrance, text })
    }
}

impl Kubernetes {
    /// What keeps a Job from running that waiting may not take away.
    pub async fn obstacle_of_job(&self, namespace: &str, name: &str) -> Option<String> {
        let pods = self
            .list(&Place::within(place::POD, namespace, ""), &format!("app.kubernetes.io/name={name}"))
            .await
            .ok()?;
        if pods.is_empty() {
            return self
                .job_refused(namespace, name)
                .await
                .map(|why| format!("no pod of the Job {name} is made: {why}"));
        }
        pods.iter().find_map(Obstacle::of_pod).map(|obstacle| obstacle.text)
    }

    /// Why no pod of a Job is made: it stands in an event alone.
    pub async fn job_refused(&self, namespace: &str, name: &str) -> Option<String> {
        let job = self.get(&Place::within(place::JOB, namespace, name)).await.ok()??;
        let events = self.list(&Place::within(place::EVENT, namespace, ""), "").await.ok()?;
        // Events of an earlier job may still be there.
        let of_job = |event: &&Value| event["involvedObject"]["uid"] == job["metadata"]["uid"];
        let refused = events.iter().filter(of_job).find(|event| event["reason"] == "FailedCreate")?;
        Some(short(refused["message"].as_str().unwrap_or_default()))
    }
}

/// Since when obstacles stand, each by a clock of its own: a pod that waits for its volume after it has waited for a
/// node has the whole time for that.
#[derive(Default)]
pub struct Standing {
    since: HashMap<(String, Hindrance), Instant>,
}

impl Standing {
    /// Notes what stands in the way at this time; returns what has for longer than its patience.
    pub fn look<'a>(&mut self, obstacles: &'a [Obstacle], now: Instant) -> Option<&'a Obstacle> {
        let key = |one: &Obstacle| (one.on.clone(), one.hindrance);
        let old = std::mem::take(&mut self.since);
        let since = |one: &Obstacle| old.get(&key(one)).copied().unwrap_or(now);
        self.since = obstacles.iter().map(|one| (key(one), since(one))).collect();
        obstacles.iter().find(|one| now.duration_since(self.since[&key(one)]) > one.hindrance.patience())
    }
}

/// How far the Deployments are with the pods that they were given last.
pub struct Rollout {
    /// Whether all pods are new and ready, and none of before is left.
    pub is_done: bool,
    /// How far they are, in a sentence for people.
    pub state: String,
    /// What keeps it from going on.
    pub obstacles: Vec<Obstacle>,
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
            let old = if old > 0 { format!(", {old} of the previous version left") } else { String::new() };
            let ready = if is_seen { ready } else { 0 };
            (done, format!("{ready} of {wanted} pods of {name} are ready{old}"))
        };
        let (done, states): (Vec<bool>, Vec<String>) = deployments.iter().map(one).unzip();
        Self { is_done: done.into_iter().all(|done| done), state: states.join("; "), obstacles: Vec::new() }
    }
}

impl Kubernetes {
    /// How far these Deployments are with what was applied last; a missing one is not done.
    pub async fn rollout_of(&self, namespace: &str, names: &[&str]) -> Result<Rollout, Error> {
        let mut deployments = Vec::new();
        for name in names {
            deployments.push((*name, self.get(&Place::within(place::DEPLOYMENT, namespace, name)).await?));
        }
        Ok(Rollout::of(&deployments))
    }

    /// How far the agents are with what was applied last.
    pub async fn rollout(&self, namespace: &str) -> Result<Rollout, Error> {
        let mut deployments = Vec::new();
        for name in [AGENT, MANAGER] {
            deployments.push((name, self.get(&Place::within(place::DEPLOYMENT, namespace, name)).await?));
        }
        // Only where they are on.
        for name in [EXTENSIONS, GUARD, UPGRADER] {
            let there = self.get(&Place::within(place::DEPLOYMENT, namespace, name)).await?;
            deployments.extend(there.map(|deployment| (name, Some(deployment))));
        }
        let mut rollout = Rollout::of(&deployments);
        if !rollout.is_done {
            let pods = self.list(&Place::within(place::POD, namespace, ""), PODS).await?;
            // Who may not list them is told of an obstacle when the time is over.
            let sets = self.list(&Place::within(place::REPLICA_SET, namespace, ""), PODS).await.unwrap_or_default();
            let there = deployments.iter().filter_map(|(name, deployment)| Some((name, deployment.as_ref()?)));
            rollout.obstacles =
                there.flat_map(|(name, deployment)| Obstacle::of(name, deployment, &sets, &pods)).collect();
        }
        Ok(rollout)
    }

    /// The agents' pods.
    pub async fn agents(&self, namespace: &str) -> Result<Vec<PodState>, Error> {
        let pods = self.list(&Place::within(place::POD, namespace, ""), PODS).await?;
        Ok(pods.iter().map(PodState::of).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(name: &str, status: Value) -> Value {
        json!({"metadata": {"name": name, "ownerReferences": [{"uid": "new"}]}, "status": status})
    }

    fn waits(reason: &str) -> Value {
        json!({"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": reason}}}]})
    }

    #[test]
    fn obstacle_is_told_in_the_words_of_kubernetes() {
        let taint = pod(
            "p",
            json!({"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "1 node(s) had untolerated taint {x: y}"},
            ]}),
        );
        let taint = Obstacle::of_pod(&taint).unwrap();
        assert!(taint.text.contains("untolerated taint") && taint.hindrance == Hindrance::NoNode, "{}", taint.text);
        let of = |reason: &str| Obstacle::of_pod(&pod("p", waits(reason))).map(|obstacle| obstacle.hindrance);
        assert_eq!(of("InvalidImageName"), Some(Hindrance::Image));
        assert_eq!(of("CreateContainerError"), Some(Hindrance::Container));
        for passing in ["ContainerCreating", "ImagePullBackOff", "CrashLoopBackOff"] {
            assert_eq!(of(passing), None, "{passing}");
        }
        assert!(Hindrance::Refused.patience() < Hindrance::Container.patience());
        assert!(Hindrance::Container.patience() < Hindrance::NoNode.patience());
        let init = json!({"initContainerStatuses": [{"state": {"waiting": {"reason": "InvalidImageName"}}}]});
        assert!(Obstacle::of_pod(&pod("p", init)).is_some());
        let mut going = pod("p", waits("InvalidImageName"));
        going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert_eq!(Obstacle::of_pod(&going), None);
        assert!(PodState::of(&going).going && !PodState::of(&pod("p", waits("InvalidImageName"))).going);
    }

    /// A wrong image is put right by another run, whose rollout begins while the wrong pod is still there.
    #[test]
    fn obstacle_of_an_earlier_replica_set_does_not_count() {
        let deployment = |observed: u32| {
            json!({
                "metadata": {"uid": "d", "generation": 2, "annotations": {"deployment.kubernetes.io/revision": "2"}},
                "status": {"observedGeneration": observed},
            })
        };
        let set = |uid: &str, revision: &str, refused: bool| {
            json!({
                "metadata": {
                    "uid": uid, "ownerReferences": [{"uid": "d"}],
                    "annotations": {"deployment.kubernetes.io/revision": revision},
                },
                "status": {"conditions": if refused {
                    json!([{"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: q"}])
                } else {
                    Value::Null
                }},
            })
        };
        let mut old = pod("old", waits("InvalidImageName"));
        old["metadata"]["ownerReferences"][0]["uid"] = "old".into();
        let new = pod("new", waits("InvalidImageName"));
        let of = |observed, sets: &[Value], pods: &[Value]| {
            let found = Obstacle::of(AGENT, &deployment(observed), sets, pods);
            found.into_iter().map(|obstacle| obstacle.on).collect::<Vec<_>>()
        };
        let sets = [set("old", "1", true), set("new", "2", false)];
        assert!(of(2, &sets, std::slice::from_ref(&old)).is_empty(), "it goes with the old pods");
        assert_eq!(of(2, &sets, &[old.clone(), new.clone()]), ["new"]);
        assert!(of(1, &sets, &[new]).is_empty(), "the controller has not seen the new template");
        let refused = Obstacle::of(AGENT, &deployment(2), &[set("new", "2", true)], &[]);
        assert!(refused[0].text.contains("exceeded quota: q") && refused[0].text.contains(AGENT), "{refused:?}");
        assert!(of(2, &[set("old", "1", true)], &[old]).is_empty(), "there is no new ReplicaSet yet");
    }

    #[test]
    fn each_obstacle_has_a_clock_of_its_own() {
        let of = |on: &str, hindrance| Obstacle { on: on.to_owned(), hindrance, text: String::new() };
        let (begun, mut standing) = (Instant::now(), Standing::default());
        let at = |seconds| begun + Duration::from_secs(seconds);
        let node = [of("p", Hindrance::NoNode)];
        assert_eq!(standing.look(&node, at(0)), None);
        assert_eq!(standing.look(&node, at(500)), None);
        // A node came; the pod waits for something else now, and another pod for a node.
        let next = [of("p", Hindrance::Container), of("q", Hindrance::NoNode)];
        assert_eq!(standing.look(&next, at(590)), None);
        assert_eq!(standing.look(&next, at(700)), None);
        assert_eq!(standing.look(&next, at(711)), Some(&next[0]));
        // What went and came back begins anew.
        assert_eq!(standing.look(&next[1..], at(712)), None);
        assert_eq!(standing.look(&next, at(713)), None);
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
        assert_eq!(
            of(3, 3, 3, 1, 2).state,
            "1 of 2 pods of clusterconnect-agent are ready, 2 of the previous version left"
        );
    }
}
