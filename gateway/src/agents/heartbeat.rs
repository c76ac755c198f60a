//! What an agent tells of its cluster every few minutes (`POST /v1/heartbeat`; docs/features.md C6, M1-M5, D7). It is
//! bounded and checked before it is kept; when it came is what this gateway's clock says, whatever the agent's does.

use http::StatusCode;
use types::{
    agent_api::{AgentError, Heartbeat, HeartbeatAnswer, PLATFORMS_MAX, Upgrade, codes},
    instants::{self, instant},
};

use super::{Agent, Call, Reply, certificate::later, desired::wanted, objects::stored_key};
use crate::{
    api_error::ApiError,
    cluster::upgrade::{State, mark},
    control::tell,
    skew::{self, Skew},
    store::agents::Kept,
};

/// When the next one is expected. Five minutes at most (C6).
const NEXT_SECONDS: u64 = 240;
/// Characters of a version or a name.
const NAME: usize = 128;
/// Characters of an error's message; a longer one is cut.
const MESSAGE: usize = 1024;
/// Errors that are kept, the newest.
const ERRORS: usize = 32;
/// Roles that are kept.
const ROLES: usize = 64;
/// Nodes, and cores of all nodes, that a cluster may have.
const MOST: u32 = 10_000_000;
/// What a role can be.
const STATES: [&str; 3] = ["Running", "Failing", "Starting"];

/// Stores what the agent reports, and answers with the next interval and the desired revision.
pub async fn serve(call: &Call, agent: &Agent) -> Result<Reply, ApiError> {
    let now_ms = call.control.now_ms();
    let told = checked(call.message().await?, now_ms)?;
    let wanted = wanted(call, agent)?;
    if stored_key(call, agent)?.is_some() {
        keep(call, agent, &told, now_ms).await?;
    }
    Reply::json(&HeartbeatAnswer {
        received: instant(now_ms),
        next_in_seconds: NEXT_SECONDS,
        desired_revision: wanted.revision,
        renew_certificate: is_of_another_authority(call, agent),
    })
}

/// Whether the certificate is of an authority that the present one follows. Certificates of clusters that the
/// configuration names are made by who runs them.
fn is_of_another_authority(call: &Call, agent: &Agent) -> bool {
    let present = call.core.trust.authority_id();
    agent.cluster.agents.principal().is_some() && present.is_some() && agent.authority != present
}

async fn keep(call: &Call, agent: &Agent, told: &Heartbeat, now_ms: i64) -> Result<(), ApiError> {
    let (store, key) = (&call.control.store, agent.cluster.id.as_str());
    let known = store.agent(key).await?.ok_or_else(|| later(&agent.cluster.id))?;
    let uid = told.kube_system_uid.as_deref();
    // A certificate was issued to the cluster of that UID; without one (of a file) nothing is known of it but this.
    if let (Some(before), Some(now), true) = (&known.kube_system_uid, uid, known.certificate.is_some())
        && before != now
    {
        let message = format!(
            "The resource '{key}' is the Kubernetes cluster whose namespace kube-system has UID {before}; this one has \
             {now}. Connect this cluster as a resource of its own."
        );
        return Err(ApiError::of(StatusCode::CONFLICT, codes::ALREADY_CONNECTED, message));
    }
    if known.authority != agent.authority {
        let principal = agent.cluster.agents.principal();
        call.control.store.put_authority(key, principal, agent.authority.as_deref()).await?;
    }
    // What differs from what events told last is told; nothing is written for what does not.
    let fits = skew::judge(&told.agent_version).event();
    if known.told_version.as_deref().unwrap_or(Skew::Current.as_str()) != fits {
        tell::of_version(&call.control, &agent.cluster.id, &told.agent_version).await;
    }
    if let Some(upgrade) = &told.upgrade
        && known.told_upgrade.as_deref() != Some(mark(upgrade).as_str())
    {
        tell::of_upgrade(&call.control, &call.core.metrics, &agent.cluster.id, upgrade).await;
    }
    let facts = serde_json::to_value(told).map_err(ApiError::internal)?;
    if known.facts == facts && known.kube_system_uid.as_deref() == uid {
        // Nothing new but that it is there, which is kept together with others'.
        call.core.tunnels.note(&agent.cluster);
        return Ok(());
    }
    match store.put_facts(key, agent.cluster.agents.principal(), &facts, uid, now_ms).await? {
        Kept::Done => Ok(()),
        Kept::Gone => Err(later(&agent.cluster.id)),
        Kept::Other { id } => {
            let message = format!(
                "This Kubernetes cluster is connected as '{id}' already and cannot also be '{key}'. Delete one of the two."
            );
            Err(ApiError::of(StatusCode::CONFLICT, codes::ALREADY_CONNECTED, message))
        }
    }
}

/// A heartbeat as it may be kept: lists are cut, what is too long or makes no sense is refused by name.
fn checked(mut told: Heartbeat, now_ms: i64) -> Result<Heartbeat, ApiError> {
    let named = [
        ("agentVersion", Some(&told.agent_version)),
        ("kubeSystemUid", told.kube_system_uid.as_ref()),
        ("kubernetesVersion", told.kubernetes_version.as_ref()),
        ("distribution", told.distribution.as_ref()),
        ("distributionVersion", told.distribution_version.as_ref()),
        ("infrastructure", told.infrastructure.as_ref()),
    ];
    for (name, text) in named {
        if text.is_some_and(|text| !is_name(text)) {
            return Err(refused(name, &format!("a text of at most {NAME} characters without control characters")));
        }
    }
    for (name, count) in [("totalNodeCount", told.total_node_count), ("totalCoreCount", told.total_core_count)] {
        if count.is_some_and(|count| count > MOST) {
            return Err(refused(name, &format!("a whole number from 0 to {MOST}")));
        }
    }
    let is_platform = |text: &String| is_name(text) && text.split('/').count() == 2;
    if told.platforms.len() > PLATFORMS_MAX || !told.platforms.iter().all(is_platform) {
        return Err(refused("platforms", &format!("at most {PLATFORMS_MAX} platforms such as linux/amd64")));
    }
    let strange = |(role, state): (&String, &String)| !is_name(role) || !STATES.contains(&state.as_str());
    if told.roles.len() > ROLES || told.roles.iter().any(strange) {
        return Err(refused("roles", &format!("at most {ROLES} names, each with one of {}", STATES.join(", "))));
    }
    told.errors.truncate(ERRORS);
    for error in &mut told.errors {
        check_error(error, now_ms)?;
    }
    if let Some(upgrade) = &mut told.upgrade {
        check_upgrade(upgrade, now_ms)?;
    }
    Ok(told)
}

fn check_upgrade(upgrade: &mut Upgrade, now_ms: i64) -> Result<(), ApiError> {
    if upgrade.version.contains(' ') || !is_name(&upgrade.version) || !is_name(&upgrade.reason) {
        return Err(refused(
            "upgrade",
            &format!("a version without blanks and a reason, at most {NAME} characters each"),
        ));
    }
    upgrade.time = past("upgrade.time", &upgrade.time, now_ms)?;
    State::of(upgrade).as_str().clone_into(&mut upgrade.state);
    upgrade.message = shortened(&upgrade.message);
    Ok(())
}

fn check_error(error: &mut AgentError, now_ms: i64) -> Result<(), ApiError> {
    let time = past("errors[].time", &error.time, now_ms)?;
    if !is_name(&error.severity) || !is_name(&error.component) {
        return Err(refused("errors[]", &format!("severity and component of at most {NAME} characters")));
    }
    error.time = time;
    error.message = shortened(&error.message);
    Ok(())
}

/// An instant by an agent's clock, which may go ahead.
fn past(name: &str, time: &str, now_ms: i64) -> Result<String, ApiError> {
    let at = instants::parse(time).map_err(|_| refused(name, "an instant such as 2030-01-31T12:00:00Z"))?;
    let at_ms = i64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or(now_ms);
    Ok(instant(at_ms.clamp(0, now_ms)))
}

fn shortened(message: &str) -> String {
    message.chars().filter(|c| !c.is_control()).take(MESSAGE).collect()
}

fn is_name(text: &str) -> bool {
    text.chars().count() <= NAME && !text.chars().any(char::is_control)
}

fn refused(name: &str, wanted: &str) -> ApiError {
    let message = format!("The property '{name}' must be {wanted}; nothing of this heartbeat was kept.");
    ApiError::bad_request("InvalidRequestContent", message).at(name)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: i64 = 1_800_000_000_000;

    fn check(change: Value) -> Result<Heartbeat, String> {
        let mut told = json!({"agentVersion": "1.2.3", "totalNodeCount": 3});
        told.as_object_mut().unwrap().extend(change.as_object().cloned().unwrap());
        checked(serde_json::from_value(told).unwrap(), NOW).map_err(|error| error.detail.target.unwrap_or_default())
    }

    fn error(time: &str, message: &str) -> Value {
        json!({"message": message, "severity": "Error", "component": "metrics-agent", "time": time})
    }

    #[test]
    fn c6_what_an_agent_tells_is_bounded_and_refused_by_name() {
        assert!(check(json!({"totalNodeCount": 0, "totalCoreCount": MOST})).is_ok());
        assert_eq!(check(json!({"platforms": ["linux/arm64"]})).unwrap().platforms, ["linux/arm64"]);
        assert!(check(json!({})).unwrap().platforms.is_empty(), "an older agent");
        let long = "x".repeat(NAME + 1);
        for (change, target) in [
            (json!({"agentVersion": long}), "agentVersion"),
            (json!({"kubernetesVersion": "1\u{0}"}), "kubernetesVersion"),
            (json!({"kubeSystemUid": "a\nb"}), "kubeSystemUid"),
            (json!({"totalNodeCount": MOST + 1}), "totalNodeCount"),
            (json!({"roles": {"a": "Dancing"}}), "roles"),
            (
                json!({"roles": (0..=ROLES).map(|n| (n.to_string(), json!("Running"))).collect::<serde_json::Map<_, _>>()}),
                "roles",
            ),
            (json!({"errors": [error("yesterday", "m")]}), "errors[].time"),
            (json!({"platforms": vec!["linux/amd64"; PLATFORMS_MAX + 1]}), "platforms"),
            (json!({"platforms": ["linux"]}), "platforms"),
            (json!({"platforms": ["linux/\u{0}"]}), "platforms"),
        ] {
            assert_eq!(check(change.clone()).unwrap_err(), target, "{change}");
        }
    }

    #[test]
    fn u1_what_is_told_of_an_upgrade_is_bounded_and_an_unknown_state_is_running() {
        let upgrade = |version: &str, state: &str, time: &str| json!({"upgrade": {"version": version, "state": state, "time": time, "message": "m".repeat(3 * MESSAGE)}});
        let kept = check(upgrade("0.3.0", "Dancing", "2099-01-01T00:00:00Z")).unwrap().upgrade.unwrap();
        assert_eq!(
            (kept.state.as_str(), kept.time.as_str()),
            ("Running", "2027-01-15T08:00:00Z"),
            "never of the future"
        );
        assert_eq!(kept.message.chars().count(), MESSAGE);
        let kept = check(upgrade("0.3.0", "RolledBack", "2027-01-15T07:00:00Z")).unwrap().upgrade.unwrap();
        assert_eq!((kept.state.as_str(), kept.time.as_str()), ("RolledBack", "2027-01-15T07:00:00Z"));
        for (bad, target) in [
            (upgrade("0.3.0", "Running", "now"), "upgrade.time"),
            (upgrade("0.3 0", "Running", "2027-01-15T07:00:00Z"), "upgrade"),
            (upgrade(&"0".repeat(NAME + 1), "Running", "2027-01-15T07:00:00Z"), "upgrade"),
        ] {
            assert_eq!(check(bad.clone()).unwrap_err(), target, "{bad}");
        }
    }

    #[test]
    fn d7_errors_are_cut_and_never_of_the_future() {
        let many: Vec<Value> = (0..100).map(|n| error("2027-01-16T08:00:00+00:00", &format!("{n}\u{7}"))).collect();
        let kept = check(json!({"errors": many})).unwrap().errors;
        assert_eq!(kept.len(), ERRORS);
        assert_eq!((kept[0].message.as_str(), kept[0].time.as_str()), ("0", "2027-01-15T08:00:00Z"), "a day ahead");
        let kept = check(json!({"errors": [error("2027-01-14T09:00:00+01:00", &"é".repeat(2 * MESSAGE))]})).unwrap();
        assert_eq!(kept.errors[0].time, "2027-01-14T08:00:00Z");
        assert_eq!(kept.errors[0].message.chars().count(), MESSAGE);
    }
}
