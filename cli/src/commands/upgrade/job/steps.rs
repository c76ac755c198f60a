//! The steps of an upgrade. What is done is written down before it is begun (`towline-upgrade`), and every step can be
//! done again: a pod that is evicted is followed by another, which goes on or goes back.
//!
//! 1. compare: where the new version needs what an upgrade may not give, the upgrade waits, and nothing is changed
//! 2. keep the objects of the old version
//! 3. controller-manager, alone: if the new version crashes or does not connect, users still have the old version's tunnels
//! 4. the other agents: new pods hold a tunnel before old ones let go of theirs
//! 5. the upgrader
//!
//! After each of 3 to 5 the new pods are watched ([`super::gate`]). Where they are not as they should be, the kept objects
//! are applied again.

use std::time::{Duration, Instant, SystemTime};

use agent::roles::upgrader::state::{self, Kept, Phase, State};
use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};

use super::gate::{Fault, Gate, last_heard};
use crate::{
    kubernetes::{
        Kubernetes, Place,
        compare::{is_changed, lacking, to_apply_again},
        place::{CONNECTED_CLUSTER, DEPLOYMENT, EVENT},
    },
    manifests::{AGENT, MANAGER, UPGRADER},
};

/// Bytes of the old objects that are kept: a ConfigMap holds 1 MiB.
const BEFORE_MAX: usize = 800 * 1024;
/// Objects of unknown kinds that are named at most, and characters of a name.
const KINDS_NAMED: usize = 10;
const NAME_CHARS: usize = 100;
/// Pods that may begin to apply: the next one goes back.
const ATTEMPTS_MAX: u32 = 3;
/// How long an apiserver that has no answer is asked again, and how often.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_secs(2);
/// How long the old version may take to come back at least, however short new pods are waited for: it is known to work,
/// and nothing else is left to try.
const BACK: Duration = Duration::from_secs(600);
/// Between two looks at the old pods.
const LOOK: Duration = Duration::from_secs(2);
/// How long the upgrader's new pod is watched: it is not what the others need.
const UPGRADER_WINDOW: Duration = Duration::from_secs(20);
/// The annotation that carries a digest of Secrets, which nobody reads here.
const SECRETS: &str = "towline.io/secrets";

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// How long new pods are watched once they are ready.
    pub window: Duration,
    /// How long they may take for that.
    pub timeout: Duration,
}

/// An upgrade of the agents in a namespace.
pub struct Upgrade<'a> {
    cluster: &'a Kubernetes,
    namespace: &'a str,
    kept: Kept,
    times: Times,
}

impl<'a> Upgrade<'a> {
    /// As the pod's service account.
    pub fn new(cluster: &'a Kubernetes, namespace: &'a str, times: Times) -> Self {
        Self { cluster, namespace, kept: cluster.upgrade(), times }
    }

    /// From where it stands to its end; without `objects` only one that was cut off.
    pub async fn run(&self, objects: Option<&[Value]>) -> anyhow::Result<()> {
        let Some(state) = self.kept.state().await.context("cannot read how far the upgrade is")? else {
            bail!("ConfigMap {} does not say which version is wanted", state::OBJECT);
        };
        match (state.phase, objects) {
            (Phase::Preparing, Some(objects)) => self.begin(state, objects).await,
            (Phase::Applying, Some(objects)) if state.attempts < ATTEMPTS_MAX => self.apply(state, objects).await,
            (Phase::Applying, _) => {
                let message = "the Job of the upgrade was cut off several times, or its image is no longer there";
                self.undo(state, Fault::new("Interrupted", message)).await
            }
            (Phase::Undoing, _) => self.undo_again(state).await,
            (Phase::Preparing, None) => bail!("there are no objects of version {}", state.version),
            // The pod before has come to its end.
            (Phase::Waiting | Phase::Succeeded | Phase::RolledBack | Phase::Failed, _) => Ok(()),
        }
    }

    async fn set(&self, state: &State) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            match self.kept.set(state).await {
                Ok(()) => return Ok(()),
                Err(error) if begun.elapsed() > PATIENCE => {
                    return Err(error).context("cannot write how far the upgrade is");
                }
                Err(error) => tracing::warn!(%error, "how far the upgrade is cannot be written"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Steps 1 and 2.
    async fn begin(&self, state: State, objects: &[Value]) -> anyhow::Result<()> {
        let (mut missing, mut before) = (Vec::new(), Vec::new());
        if let Some(message) = unknown_kinds(&state, objects) {
            return self.end(&state, Phase::Waiting, "Kind", &message).await;
        }
        for object in objects {
            let place = Place::of_manifest(object).context("an object is of an unknown kind")?;
            let there = match self.cluster.get(&place).await {
                Ok(there) => there.unwrap_or_default(),
                // Its name is not one that the rights of this version know.
                Err(error) if error.is_forbidden() => Value::Null,
                Err(error) => return Err(anyhow!(error).context(format!("cannot read {place}"))),
            };
            missing.extend(lacking(object, &there));
            if is_changed(object) && place.name != state::OBJECT {
                before.push(to_apply_again(&there));
            }
        }
        let version = &state.version;
        if !missing.is_empty() {
            let message = format!(
                "version {version} of the agents needs what an upgrade may not give: {}. An administrator of the cluster gives it with towline of version {version}: towline upgrade --rights-only -g GROUP -n NAME; then the upgrade continues by itself",
                missing.join("; ")
            );
            return self.end(&state, Phase::Waiting, "Rights", &message).await;
        }
        let text = Value::Array(before).to_string();
        if text.len() > BEFORE_MAX {
            let message = format!(
                "the objects of the agents that are there have {} bytes, and at most {BEFORE_MAX} are kept to go back to: upgrade by hand (towline upgrade)",
                text.len()
            );
            return self.end(&state, Phase::Waiting, "TooLarge", &message).await;
        }
        self.kept.write(&json!({ state::BEFORE: text })).await.context("cannot keep the objects of the old version")?;
        let next = state.at(Phase::Applying, "", "", SystemTime::now());
        self.set(&next).await?;
        self.tell("AgentUpgradeStarted", &format!("from version {} to {}", next.from, next.version), false).await;
        self.apply(next, objects).await
    }

    /// Steps 3 to 5.
    async fn apply(&self, mut state: State, objects: &[Value]) -> anyhow::Result<()> {
        state.attempts += 1;
        self.set(&state).await?;
        let stages = [Stage::Manager, Stage::Others, Stage::Upgrader];
        for stage in stages {
            let of_stage: Vec<&Value> = objects.iter().filter(|object| stage.has(object)).collect();
            tracing::info!(version = state.version, ?stage, objects = of_stage.len(), "objects are applied");
            for object in &of_stage {
                if let Err(error) = self.apply_one(object).await {
                    return self.undo(state, Fault::new("NotApplied", format!("{error:#}"))).await;
                }
            }
            let mut gate = self.gate(&state, stage, &of_stage);
            if stage == Stage::Others {
                // The gateway was heard through pods that are replaced now: with the new ones it must be heard anew.
                let heard = self.replaced(&gate).await;
                match heard {
                    Ok(before) => gate.heard_before = before,
                    Err(fault) => return self.undo(state, fault).await,
                }
                let message = "the new pods of the other agents are ready; the gateway must answer through them";
                self.set(&state.at(Phase::Applying, "", message, SystemTime::now())).await?;
            }
            if let Err(fault) = gate.pass().await {
                return self.undo(state, fault).await;
            }
        }
        let message = format!("from version {} to {}", state.from, state.version);
        self.tell("AgentUpgraded", &message, false).await;
        tracing::info!(version = state.version, "the agents are upgraded");
        self.set(&state.at(Phase::Succeeded, "", "", SystemTime::now())).await
    }

    /// Waits until the pods of a stage are replaced; then, when the gateway last answered. What is told of the upgrade from
    /// here on makes controller-manager send another heartbeat at once.
    async fn replaced(&self, gate: &Gate<'_>) -> Result<Option<String>, Fault> {
        let replaced = Gate {
            deployments: gate.deployments.clone(),
            must_be_heard: false,
            heard_before: None,
            window: Duration::ZERO,
            ..*gate
        };
        replaced.pass().await?;
        let place = Place::within(CONNECTED_CLUSTER, self.namespace, "clustermetadata");
        let begun = Instant::now();
        loop {
            match self.cluster.get(&place).await {
                Ok(object) => return Ok(object.as_ref().and_then(last_heard).map(str::to_owned)),
                Err(error) if begun.elapsed() > PATIENCE => {
                    return Err(Fault::new("NotHeard", format!("cannot read {place}: {error}")));
                }
                Err(error) => tracing::warn!("cannot read {place}: {error}"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn gate<'b>(&'b self, state: &'b State, stage: Stage, objects: &[&'b Value]) -> Gate<'b> {
        let deployments = objects.iter().filter(|object| object["kind"] == DEPLOYMENT.name);
        Gate {
            cluster: self.cluster,
            namespace: self.namespace,
            version: &state.version,
            deployments: deployments.filter_map(|object| object["metadata"]["name"].as_str()).collect(),
            must_be_heard: stage != Stage::Upgrader,
            heard_before: None,
            window: if stage == Stage::Upgrader { self.times.window.min(UPGRADER_WINDOW) } else { self.times.window },
            timeout: self.times.timeout,
        }
    }

    /// Applies an object, with the digest of Secrets that is there: these are not changed.
    async fn apply_one(&self, object: &Value) -> anyhow::Result<()> {
        let mut object = object.clone();
        let begun = Instant::now();
        loop {
            let done = async {
                if object["kind"] == DEPLOYMENT.name {
                    let place = Place::of_manifest(&object).context("an object has no name")?;
                    let there = self.cluster.get(&place).await?.unwrap_or_default();
                    let of = |object: &Value| object["spec"]["template"]["metadata"]["annotations"][SECRETS].clone();
                    let digest = of(&there);
                    if digest.is_string() {
                        object["spec"]["template"]["metadata"]["annotations"][SECRETS] = digest;
                    }
                }
                self.cluster.apply(&object).await
            };
            match done.await {
                Ok(_) => return Ok(()),
                Err(error) => {
                    let passes = error.chain().any(|cause| {
                        cause
                            .downcast_ref::<crate::kubernetes::Error>()
                            .is_some_and(crate::kubernetes::Error::is_passing)
                    });
                    if !passes || begun.elapsed() > PATIENCE {
                        return Err(error);
                    }
                    tracing::warn!("{error:#}");
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn undo(&self, state: State, fault: Fault) -> anyhow::Result<()> {
        let Fault { reason, message } = fault;
        tracing::warn!(version = state.version, reason, message, "the upgrade is taken back");
        let next = state.at(Phase::Undoing, reason, &message, SystemTime::now());
        self.set(&next).await?;
        self.undo_again(next).await
    }

    async fn undo_again(&self, state: State) -> anyhow::Result<()> {
        let before = self.kept.read(state::BEFORE).await.context("cannot read the objects of the old version")?;
        let before: Vec<Value> = serde_json::from_str(before.as_deref().unwrap_or("[]"))?;
        // Somebody removed them: nothing was taken back, whatever the pods look like.
        let mut failed = before.is_empty().then(|| anyhow!("the objects of that version are no longer kept"));
        for object in &before {
            if let Err(error) = self.apply_one(object).await {
                tracing::warn!("{error:#}");
                failed.get_or_insert(error);
            }
        }
        // One that has no pods, such as what only rights were given for or somebody scaled down, has none to wait for.
        let is_run = |object: &&Value| object["kind"] == DEPLOYMENT.name && object["spec"]["replicas"] != 0;
        let names = before.iter().filter(is_run);
        let names: Vec<&str> = names.filter_map(|object| object["metadata"]["name"].as_str()).collect();
        let begun = Instant::now();
        let standing = loop {
            let standing = match self.cluster.rollout_of(self.namespace, &names).await {
                Ok(rollout) if rollout.is_done => break None,
                Ok(rollout) => rollout.state,
                Err(error) => error.to_string(),
            };
            if begun.elapsed() > self.times.timeout.max(BACK) {
                break Some(standing);
            }
            tokio::time::sleep(LOOK).await;
        };
        let (version, from, why) = (&state.version, &state.from, &state.message);
        match (failed, standing) {
            (None, None) => {
                let message = format!(
                    "version {version} of the agents was taken back, and they have version {from} again: {why}. Version {version} is not tried again here; another one is"
                );
                self.tell("AgentUpgradeRolledBack", &message, true).await;
                let next = state.rolled_back(&state.reason, &message, SystemTime::now());
                self.set(&next).await
            }
            (failed, standing) => {
                let now = failed.map(|error| format!("{error:#}")).or(standing).unwrap_or_default();
                let message = format!(
                    "version {version} of the agents failed ({why}), and version {from} did not come back: {now}. Look at the pods: towline troubleshoot; or install the agents again: towline connect"
                );
                let refused = state.rolled_back(&state.reason, "", SystemTime::now());
                self.end(&refused, Phase::Failed, &state.reason, &message).await
            }
        }
    }

    async fn end(&self, state: &State, phase: Phase, reason: &str, message: &str) -> anyhow::Result<()> {
        let event = if phase == Phase::Waiting { "AgentUpgradeWaiting" } else { "AgentUpgradeFailed" };
        tracing::warn!(version = state.version, reason, message, "{event}");
        self.tell(event, message, true).await;
        self.set(&state.at(phase, reason, message, SystemTime::now())).await
    }

    /// An event of the Deployment that holds users' tunnel; what it says is kept elsewhere too.
    async fn tell(&self, reason: &str, message: &str, is_warning: bool) {
        let now = types::instants::rfc3339_seconds(SystemTime::now());
        let message: String = message.chars().take(1000).collect();
        let event = json!({
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": "towline-upgrade.", "namespace": self.namespace},
            "involvedObject": {
                "apiVersion": "apps/v1", "kind": "Deployment", "name": AGENT, "namespace": self.namespace,
            },
            "reason": reason,
            "message": message,
            "type": if is_warning { "Warning" } else { "Normal" },
            "source": {"component": UPGRADER},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        });
        if let Err(error) = self.cluster.create(&Place::within(EVENT, self.namespace, ""), &event).await {
            tracing::warn!("the event {reason} cannot be written: {error}");
        }
    }
}

/// What an administrator has to do where the new version has objects of kinds that this version does not know, if there
/// are any: this program can neither compare nor apply them, so that giving rights beforehand would not help.
fn unknown_kinds(state: &State, objects: &[Value]) -> Option<String> {
    let text = |value: &Value| value.as_str().unwrap_or("?").chars().take(NAME_CHARS).collect::<String>();
    let unknown = objects.iter().filter(|object| Place::of_manifest(object).is_none());
    let mut named: Vec<String> = unknown
        .map(|object| format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"])))
        .take(KINDS_NAMED)
        .collect();
    named.sort_unstable();
    named.dedup();
    let State { version, from, .. } = state;
    (!named.is_empty()).then(|| {
        format!(
            "version {version} of the agents has objects of kinds that version {from} does not know: {}. Nothing was changed. An administrator of the cluster upgrades by hand, with towline of version {version}: towline update -g GROUP -n NAME --auto-upgrade false; towline upgrade -g GROUP -n NAME; towline update -g GROUP -n NAME --auto-upgrade true",
            named.join(", ")
        )
    })
}

/// Which objects are applied together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Of the controller-manager.
    Manager,
    /// Of all but that and the upgrader.
    Others,
    /// Of the upgrader.
    Upgrader,
}

impl Stage {
    fn has(self, object: &Value) -> bool {
        // The state of this very upgrade is not for the new version to apply.
        if !is_changed(object) || object["metadata"]["name"] == state::OBJECT {
            return false;
        }
        let component = object["metadata"]["labels"]["app.kubernetes.io/component"].as_str();
        self == match component {
            Some(MANAGER) => Self::Manager,
            Some(UPGRADER) => Self::Upgrader,
            _ => Self::Others,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::{self, Values};

    #[test]
    fn u1_a_kind_that_the_old_version_does_not_know_is_left_to_an_administrator() {
        let state = State::new("0.3.0", "0.2.0", None, SystemTime::UNIX_EPOCH);
        let mut objects = manifests::objects(&Values::default(), "towline");
        assert_eq!(unknown_kinds(&state, &objects), None);
        objects.push(json!({"kind": "ValidatingAdmissionPolicy", "metadata": {"name": "agents"}}));
        let told = unknown_kinds(&state, &objects).unwrap();
        assert!(told.contains("ValidatingAdmissionPolicy agents") && told.contains("towline upgrade"), "{told}");
        let many: Vec<Value> =
            (0..100).map(|n| json!({"kind": "K".repeat(5000), "metadata": {"name": n.to_string()}})).collect();
        assert!(unknown_kinds(&state, &many).unwrap().len() < 2000);
        objects.push(json!({"metadata": {}}));
        assert!(unknown_kinds(&state, &objects).unwrap().contains("? ?"));
    }

    /// The users' tunnels are replaced only after another pod of the new version was well for a while.
    #[test]
    fn u1_controller_manager_goes_first_and_the_upgrader_last() {
        let mut values = Values::default();
        (values.upgrades.enabled, values.extensions.enabled, values.guard.enabled) = (true, true, true);
        let objects = manifests::objects(&values, "towline");
        let of = |stage: Stage| -> Vec<&str> {
            let deployments = objects.iter().filter(|object| object["kind"] == "Deployment" && stage.has(object));
            deployments.filter_map(|object| object["metadata"]["name"].as_str()).collect()
        };
        assert_eq!(of(Stage::Manager), ["controller-manager"]);
        let mut others = of(Stage::Others);
        others.sort_unstable();
        assert_eq!(others, ["clusterconnect-agent", "extension-manager", "guard"]);
        assert_eq!(of(Stage::Upgrader), ["upgrader"]);
        for object in &objects {
            let stages = [Stage::Manager, Stage::Others, Stage::Upgrader];
            let count = stages.iter().filter(|stage| stage.has(object)).count();
            let expected = usize::from(is_changed(object) && object["metadata"]["name"] != state::OBJECT);
            assert_eq!(count, expected, "{object}");
        }
    }
}
