//! The network as the agents see it (features row B2): a job of their own image, with their settings, tries DNS, QUIC, TCP and
//! WebSocket to each address of the gateway, the proxy on the way, the issuers and the apiserver, and says what it found.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use serde_json::{Value, json};

use crate::kubernetes::{
    Kubernetes, Place,
    place::{DEPLOYMENT, JOB, POD},
};
use crate::manifests::AGENT;

const NAME: &str = "towline-diagnoser";
/// How long it may take.
const WITHIN: Duration = Duration::from_secs(90);
const PAUSE: Duration = Duration::from_millis(500);

/// Runs it, and takes it away again. What `towline-agent check --json` says.
pub async fn run(cluster: &Kubernetes, namespace: &str) -> anyhow::Result<Value> {
    let job = Place::within(JOB, namespace, NAME);
    cluster.delete(&job).await?;
    cluster.await_gone(&job, WITHIN, false).await?;
    let place = Place::within(DEPLOYMENT, namespace, AGENT);
    let agent = cluster.get(&place).await?.ok_or_else(|| anyhow!("there is no {place}"))?;
    cluster.apply(&manifest(&agent, namespace)).await?;
    let said = said(cluster, namespace).await;
    cluster.delete(&job).await?;
    cluster.await_gone(&job, WITHIN, false).await?;
    said
}

/// The agents' pod with another word to begin with.
fn manifest(agent: &Value, namespace: &str) -> Value {
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
    let labels = json!({"app.kubernetes.io/name": NAME});
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": NAME, "namespace": namespace, "labels": labels},
        "spec": {
            "backoffLimit": 0, "activeDeadlineSeconds": WITHIN.as_secs(), "ttlSecondsAfterFinished": 300,
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    })
}

async fn said(cluster: &Kubernetes, namespace: &str) -> anyhow::Result<Value> {
    let end = Instant::now() + WITHIN;
    loop {
        let pods = cluster.list(&Place::within(POD, namespace, ""), &format!("app.kubernetes.io/name={NAME}")).await?;
        let ended = pods.iter().find(|pod| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed")));
        if let Some(pod) = ended {
            let name = pod["metadata"]["name"].as_str().unwrap_or_default();
            let log = cluster.log(namespace, name, 1000).await.context("the job's log")?;
            // Its last JSON line with checks: what is logged goes there too.
            let lines = log.lines().rev().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let found = lines.into_iter().find(|line| line["checks"].is_array());
            return found.ok_or_else(|| anyhow!("it said: {}", crate::kubernetes::pods::short(&log)));
        }
        if Instant::now() > end {
            return Err(anyhow!("it has not ended within {} s", WITHIN.as_secs()));
        }
        tokio::time::sleep(PAUSE).await;
    }
}
