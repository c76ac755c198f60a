//! The network as the agents see it: a job of their own image, with their settings, tries DNS, QUIC,
//! TCP and WebSocket to each address of the gateway, the proxy on the way, the issuers and the apiserver, and says what
//! it found. `troubleshoot` runs it beside the agents, `connect` before there are any.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use serde_json::{Value, json};

use crate::{
    kubernetes::{
        Kubernetes, Place,
        place::{CONFIG_MAP, DEPLOYMENT, JOB, POD, SECRET},
        pods::{Hindrance, Obstacle, PodState, Standing, short},
    },
    manifests::{self, AGENT, DIAGNOSER as NAME, Values},
    terminal::say,
};

/// How long it may take once it runs.
pub const WITHIN: Duration = Duration::from_secs(90);
/// Seconds that a job may have at most.
const DEADLINE_MAX: u64 = 31_536_000;
const PAUSE: Duration = Duration::from_millis(500);

/// The job, and what it needs. Whatever ends it, [`Self::remove`] has to be awaited after [`Self::ask`] was begun.
pub struct Diagnoser {
    cluster: Kubernetes,
    namespace: String,
    objects: Vec<Value>,
}

impl Diagnoser {
    /// Beside agents that are there, with what they have.
    ///
    /// # Errors
    /// When there are none, or they cannot be read.
    pub async fn of_agents(cluster: &Kubernetes, namespace: &str) -> anyhow::Result<Self> {
        let place = Place::within(DEPLOYMENT, namespace, AGENT);
        let agent = cluster.get(&place).await?.ok_or_else(|| anyhow!("there is no {place}"))?;
        let spec = pod(&agent);
        Ok(Self { cluster: cluster.clone(), namespace: namespace.to_owned(), objects: vec![job(spec, namespace)] })
    }

    /// For agents that are not there yet: the job brings their settings, and neither key nor rights.
    pub fn of_values(cluster: &Kubernetes, values: &Values, namespace: &str) -> Self {
        Self { cluster: cluster.clone(), namespace: namespace.to_owned(), objects: objects(values, namespace) }
    }

    /// Runs it. What `towline-agent check --json` says. Its pod may take `starting` until it runs: an image may have to
    /// be pulled.
    ///
    /// # Errors
    /// When it cannot be made, does not run within that time, or has not ended [`WITHIN`] after: says what its pod
    /// waits for.
    pub async fn ask(&self, starting: Duration) -> anyhow::Result<Value> {
        // One that was left by somebody whose machine went away.
        self.remove().await?;
        for object in &self.objects {
            let mut object = object.clone();
            if object["kind"] == JOB.name {
                // It is counted from when the job is made.
                let deadline = starting.saturating_add(WITHIN).as_secs().min(DEADLINE_MAX);
                object["spec"]["activeDeadlineSeconds"] = deadline.into();
            }
            self.cluster.apply(&object).await?;
        }
        self.said(starting).await
    }

    /// Takes it away again, with its pod.
    pub async fn remove(&self) -> anyhow::Result<()> {
        let places: Vec<Place> = self.places();
        for place in &places {
            self.cluster.delete(place).await?;
        }
        for place in &places {
            self.cluster.await_gone(place, WITHIN, false).await?;
        }
        Ok(())
    }

    /// What [`Self::ask`] makes, the job first.
    pub fn places(&self) -> Vec<Place> {
        self.objects.iter().rev().filter_map(Place::of_manifest).collect()
    }

    async fn said(&self, starting: Duration) -> anyhow::Result<Value> {
        let (mut begun, mut within, mut runs) = (Instant::now(), starting, false);
        let (mut standing, mut said) = (Standing::default(), String::new());
        let namespace = &self.namespace;
        let selector = format!("app.kubernetes.io/name={NAME}");
        loop {
            let pods = self.cluster.list(&Place::within(POD, namespace, ""), &selector).await?;
            let ended = pods.iter().find(|pod| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")));
            if let Some(pod) = ended {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                let log = self.cluster.log(namespace, name, 1000).await.context("cannot read the job's log")?;
                // Its last JSON line with checks: what is logged goes there too.
                let lines = log.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
                let found = lines.into_iter().find(|line| line["checks"].is_array());
                return found.ok_or_else(|| anyhow!("it said: {}", short(&log)));
            }
            if !runs && pods.iter().any(|pod| pod["status"]["phase"] == "Running") {
                (begun, within, runs) = (Instant::now(), WITHIN, true);
            }
            let obstacles = self.obstacles(&pods).await;
            if let Some(obstacle) = standing.look(&obstacles, Instant::now()) {
                return Err(anyhow!("it cannot run: {}", obstacle.text));
            }
            if let Some(obstacle) = obstacles.first().filter(|obstacle| obstacle.text != said) {
                say(&format!("  {}", obstacle.text));
                said.clone_from(&obstacle.text);
            }
            if begun.elapsed() > within {
                let why = self.why(pods.first()).await;
                let what = if runs { "ended" } else { "begun to run" };
                return Err(anyhow!("{why}; the check has not {what} within {} s", within.as_secs()));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// What keeps the job from running that waiting may not take away: a refusal of its pod, which stands in an event
    /// alone, or a pod that no node takes.
    async fn obstacles(&self, pods: &[Value]) -> Vec<Obstacle> {
        if pods.is_empty() {
            return self.refused().await.into_iter().collect();
        }
        pods.iter().filter_map(Obstacle::of_pod).collect()
    }

    async fn refused(&self) -> Option<Obstacle> {
        let text = self.cluster.job_refused(&self.namespace, NAME).await?;
        Some(Obstacle { on: NAME.to_owned(), hindrance: Hindrance::Refused, text })
    }

    /// What a pod that has not ended waits for.
    async fn why(&self, pod: Option<&Value>) -> String {
        let state = pod.map(PodState::of);
        let name = state.as_ref().map(|state| state.name.as_str());
        // Without a pod the job's own events say why there is none.
        let event = self.cluster.events(&self.namespace, Some(name.unwrap_or(NAME))).await.pop();
        let event = event.map_or_else(String::new, |event| format!("; last event: {event}"));
        let state =
            state.map_or_else(|| "there is no pod".to_owned(), |one| format!("pod {} is {}", one.name, one.state));
        format!("{state}{event}")
    }
}

/// The job with what it needs, of the agents' manifests.
fn objects(values: &Values, namespace: &str) -> Vec<Value> {
    let (mut objects, mut spec) = (Vec::new(), Value::Null);
    for mut object in manifests::objects(values, namespace) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let is = |kind: &str| object["kind"] == kind;
        if is(DEPLOYMENT.name) && name == AGENT {
            spec = pod(&object);
        } else if name.starts_with(AGENT) && (is(CONFIG_MAP.name) || is(SECRET.name)) {
            // The agents' configuration and the password of their proxy, not by the labels by which agents are found.
            object["metadata"]["labels"] = labels();
            object["metadata"]["name"] = own_name(&name).into();
            objects.push(object);
        }
    }
    for volume in spec["volumes"].as_array_mut().into_iter().flatten() {
        for (kind, key) in [("configMap", "name"), ("secret", "secretName")] {
            if let Some(name) = volume[kind][key].as_str().map(own_name) {
                volume[kind][key] = name.into();
            }
        }
    }
    spec["automountServiceAccountToken"] = false.into();
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("serviceAccountName");
    }
    objects.push(job(spec, namespace));
    objects
}

fn own_name(name: &str) -> String {
    name.strip_prefix(AGENT).map_or_else(|| name.to_owned(), |rest| format!("{NAME}{rest}"))
}

fn labels() -> Value {
    json!({"app.kubernetes.io/name": NAME})
}

/// The agents' pod with another word to begin with.
fn pod(agent: &Value) -> Value {
    let mut spec = agent["spec"]["template"]["spec"].clone();
    let mut container = spec["containers"][0].clone();
    container["args"] = json!(["check", "--config", "/etc/towline/agent.toml", "--json"]);
    if let Some(container) = container.as_object_mut() {
        for name in ["livenessProbe", "readinessProbe", "ports"] {
            container.remove(name);
        }
    }
    spec["containers"] = json!([container]);
    spec["restartPolicy"] = "Never".into();
    if let Some(spec) = spec.as_object_mut() {
        spec.remove("topologySpreadConstraints");
    }
    spec
}

fn job(spec: Value, namespace: &str) -> Value {
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": NAME, "namespace": namespace, "labels": labels()},
        "spec": {
            "backoffLimit": 0, "ttlSecondsAfterFinished": 300,
            "template": {"metadata": {"labels": labels()}, "spec": spec},
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i3_the_network_is_checked_with_the_agents_settings_and_without_key_or_rights() {
        let mut values = Values::default();
        values.gateway.urls = vec!["https://gateway.example.org".to_owned()];
        values.identity.onboarding_key = "private".to_owned().into();
        values.proxy.url = "http://proxy.example.org:3128".to_owned();
        values.proxy.username = "me".to_owned();
        values.proxy.password = "a".to_owned().into();
        let objects = objects(&values, "towline");
        let names: Vec<_> = objects.iter().map(|one| (one["kind"].clone(), one["metadata"]["name"].clone())).collect();
        let expected = [("Secret", "towline-diagnoser-proxy"), ("ConfigMap", NAME), ("Job", NAME)];
        assert_eq!(names, expected.map(|(kind, name)| (json!(kind), json!(name))));
        let spec = &objects[2]["spec"]["template"]["spec"];
        assert_eq!(spec["volumes"][0]["configMap"]["name"], NAME);
        assert_eq!(spec["volumes"][1]["secret"]["secretName"], "towline-diagnoser-proxy");
        assert_eq!((&spec["automountServiceAccountToken"], &spec["serviceAccountName"]), (&json!(false), &Value::Null));
        assert_eq!(spec["containers"][0]["args"][0], "check");
        assert!(!json!(objects).to_string().contains("onboarding"), "no key goes there");
        let labels = objects.iter().map(|one| one["metadata"]["labels"].to_string());
        assert!(labels.into_iter().all(|labels| !labels.contains("towline-agent")), "nobody takes them for agents");
    }
}
