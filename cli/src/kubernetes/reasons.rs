//! Why the agents' pods are not ready, the reason first: what a program says is wrong, then what the kubelet and the
//! scheduler say of its pod (docs/features.md I4, B1).

use std::fmt;

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::LogParams};
use serde_json::Value;

use super::{
    Error, Kubernetes, Place, place,
    pods::{PodState, short},
};
use crate::manifests::AGENT;

/// Bytes of a log that are read.
const LOG_BYTES: i64 = 1024 * 1024;
/// Lines of a log in which the reason is looked for.
const REASON_LINES: i64 = 40;
/// Events that repeat what the state of the pod says, where the program itself says why.
const REPEATS: &[&str] = &["Unhealthy", "BackOff"];

/// An event of an object, as people read it.
pub struct Event {
    time: String,
    /// What happened, in one word.
    reason: String,
    /// The name of the object.
    pub object: String,
    message: String,
}

impl Event {
    fn of(event: &Value) -> Self {
        let text = |event: &Value, name: &str| event[name].as_str().unwrap_or_default().to_owned();
        let named = ["lastTimestamp", "eventTime"].into_iter().find_map(|name| event[name].as_str());
        Self {
            time: named.or_else(|| event["metadata"]["creationTimestamp"].as_str()).unwrap_or_default().to_owned(),
            reason: text(event, "reason"),
            object: text(&event["involvedObject"], "name"),
            message: short(&text(event, "message")),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}: {}", self.time, self.reason, self.object, self.message)
    }
}

/// What a log says is wrong: its newest warning or error. Of a line that is no JSON nobody knows how bad it is; it is
/// what a program says that does not even start.
fn complaint(log: &str) -> Option<String> {
    log.lines().rev().filter(|line| !line.trim().is_empty()).find_map(|line| {
        let Ok(entry) = serde_json::from_str::<Value>(line) else { return Some(short(line)) };
        let text = |name: &str| entry[name].as_str().filter(|text| !text.is_empty());
        if !matches!(text("level"), Some("WARN" | "ERROR")) {
            return None;
        }
        let reason = text("reason").map_or_else(String::new, |reason| format!(" ({reason})"));
        let error = text("error").map_or_else(String::new, |error| format!(": {error}"));
        Some(short(&format!("{}{reason}{error}", text("message").unwrap_or("it does not say what"))))
    })
}

/// Why one pod is not ready.
fn why(pod: &PodState, complaint: Option<String>, event: Option<&Event>) -> String {
    // The phase of a pod that runs says nothing of why it is not ready.
    let state = Some(pod.state.clone()).filter(|state| state != "Running");
    let event = event
        .filter(|event| complaint.is_none() || !REPEATS.contains(&event.reason.as_str()))
        .filter(|event| !pod.state.contains(&event.message))
        .map(|event| format!("{}: {}", event.reason, event.message));
    let all: Vec<String> = [complaint, state, event].into_iter().flatten().collect();
    if all.is_empty() { "it runs, and does not say why".to_owned() } else { all.join("; ") }
}

/// A sentence for each reason with the pods that have it. What is wrong because the pods do not run through which it
/// goes out is last.
fn sentences(reasons: Vec<(String, String)>) -> Vec<String> {
    let mut grouped: Vec<(Vec<String>, String)> = Vec::new();
    for (pod, reason) in reasons {
        match grouped.iter_mut().find(|(_, known)| *known == reason) {
            Some((pods, _)) => pods.push(pod),
            None => grouped.push((vec![pod], reason)),
        }
    }
    grouped.sort_by_key(|(_, reason)| follows(reason));
    let said = |(pods, reason): &(Vec<String>, String)| match pods.as_slice() {
        [pod] => format!("pod {pod} is not ready: {reason}"),
        pods => format!("pods {} are not ready: {reason}", pods.join(", ")),
    };
    grouped.iter().map(said).collect()
}

/// Whether a reason is that the pods are missing through which the other agents reach the gateway.
fn follows(reason: &str) -> bool {
    reason.contains(&format!("{AGENT}.")) && reason.contains(".svc")
}

impl Kubernetes {
    /// Why the agents are not ready: a sentence for each reason. What cannot be read is said in its place.
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
        let mut reasons = Vec::new();
        for pod in pods.iter().filter(|pod| !pod.ready && !pod.going) {
            let event = self.events(namespace, Some(&pod.name)).await.pop();
            let complaint = self.complaint(namespace, &pod.name).await;
            reasons.push((pod.name.clone(), why(pod, complaint, event.as_ref())));
        }
        if reasons.is_empty() {
            return vec![format!("all {} pods are ready; the gateway has not heard of them", pods.len())];
        }
        sentences(reasons)
    }

    /// Events of a pod, or of all objects, the newest last.
    pub async fn events(&self, namespace: &str, pod: Option<&str>) -> Vec<Event> {
        let mut events = self.list(&Place::within(place::EVENT, namespace, ""), "").await.unwrap_or_default();
        events.retain(|event| pod.is_none_or(|pod| event["involvedObject"]["name"] == pod));
        let mut events: Vec<Event> = events.iter().map(Event::of).collect();
        events.sort_by(|one, other| one.time.cmp(&other.time));
        events
    }

    /// The last lines of a pod's log.
    pub async fn log(&self, namespace: &str, pod: &str, lines: i64) -> Result<String, Error> {
        self.log_of(namespace, pod, lines, false).await
    }

    async fn log_of(&self, namespace: &str, pod: &str, lines: i64, previous: bool) -> Result<String, Error> {
        let params =
            LogParams { tail_lines: Some(lines), limit_bytes: Some(LOG_BYTES), previous, ..LogParams::default() };
        Api::<Pod>::namespaced(self.client.clone(), namespace).logs(pod, &params).await.map_err(Error::from)
    }

    /// Of a container that was started again and has not said anything yet, what the one before it said.
    async fn complaint(&self, namespace: &str, pod: &str) -> Option<String> {
        for previous in [false, true] {
            let log = self.log_of(namespace, pod, REASON_LINES, previous).await.unwrap_or_default();
            if let Some(complaint) = complaint(&log) {
                return Some(complaint);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(name: &str, state: &str) -> PodState {
        PodState { name: name.to_owned(), ready: false, going: false, state: state.to_owned() }
    }

    fn event(reason: &str, message: &str) -> Event {
        let text = |text: &str| text.to_owned();
        Event { time: text("2026-01-01T00:00:00Z"), reason: text(reason), object: text("p"), message: text(message) }
    }

    #[test]
    fn b1_of_a_log_the_newest_complaint_is_the_reason() {
        let warns = r#"{"timestamp":"t","level":"WARN","message":"no tunnel","error":"h2: cannot look up gw","retry_in_ms":"6"}"#;
        let informs = r#"{"timestamp":"t","level":"INFO","message":"the cluster has a certificate"}"#;
        assert_eq!(complaint(&format!("{warns}\n{informs}\n")).unwrap(), "no tunnel: h2: cannot look up gw");
        assert_eq!(complaint(informs), None, "what is well is no reason");
        assert_eq!(complaint(""), None);
        let coded =
            r#"{"level":"ERROR","message":"no certificate","reason":"ResourceDeleted","error":"it was deleted"}"#;
        assert_eq!(complaint(coded).unwrap(), "no certificate (ResourceDeleted): it was deleted");
        assert_eq!(complaint("a.toml: cannot be read\n").unwrap(), "a.toml: cannot be read");
        assert!(!complaint(r#"{"level":"WARN","message":"a\u001b[31mb"}"#).unwrap().contains('\u{1b}'));
    }

    #[test]
    fn b1_the_reason_of_a_pod_is_said_first_and_once() {
        let probe = event("Unhealthy", "Readiness probe failed: HTTP probe failed with statuscode: 503");
        let of = |state: &str, complaint: Option<&str>, event: &Event| {
            why(&running("p", state), complaint.map(str::to_owned), Some(event))
        };
        assert_eq!(of("Running", Some("no tunnel: refused"), &probe), "no tunnel: refused");
        assert!(of("Running", None, &probe).starts_with("Unhealthy: Readiness probe failed"));
        let back_off = event("BackOff", "Back-off restarting failed container a in pod p");
        let crashed = of("Running; CrashLoopBackOff; restarted 2 times", Some("a.toml: cannot be read"), &back_off);
        assert_eq!(crashed, "a.toml: cannot be read; Running; CrashLoopBackOff; restarted 2 times");
        let pull = "Pending; ErrImagePull; no such host";
        assert_eq!(of(pull, None, &event("Failed", "no such host")), pull);
        assert_eq!(why(&running("p", "Running"), None, None), "it runs, and does not say why");
    }

    #[test]
    fn b1_pods_with_one_reason_share_a_sentence_and_what_follows_from_it_is_last() {
        let of = |pod: &str, reason: &str| (pod.to_owned(), reason.to_owned());
        let through = "no tunnel: h2: TLS with clusterconnect-agent.towline.svc: Connection reset by peer";
        let said = sentences(vec![of("m", through), of("a", "proxy p refused: 403"), of("b", "proxy p refused: 403")]);
        assert_eq!(said[0], "pods a, b are not ready: proxy p refused: 403");
        assert_eq!(said[1], format!("pod m is not ready: {through}"));
        assert_eq!(said.len(), 2);
    }
}
