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
//!
//! What the agents are told may be changed by somebody meanwhile, such as by `towline update`. What is not as it was
//! gathered is not overwritten: before anything was applied it is gathered again, and later the upgrade gives way. What is
//! not of the new version then stays as it is, and the upgrade is tried again.

use std::time::{Duration, Instant, SystemTime};

use agent::roles::upgrader::state::{self, Kept, Phase, State};
use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};

use super::gate::{Fault, Gate, last_heard};
use crate::{
    kubernetes::{
        Kubernetes, Place,
        compare::{is_changed, lacking, to_apply_again},
        kept::{Gathered, is_another},
        place::{CONNECTED_CLUSTER, DEPLOYMENT, EVENT},
    },
    manifests::{AGENT, MANAGER, UPGRADER, VERSION_LABEL},
};

/// Bytes of the old objects that are kept: a ConfigMap holds 1 MiB.
const BEFORE_MAX: usize = 800 * 1024;
/// Objects of unknown kinds that are named at most, and characters of a name.
const KINDS_NAMED: usize = 10;
const NAME_CHARS: usize = 100;
/// Pods that may begin to apply: the next one goes back.
const ATTEMPTS_MAX: u32 = 3;
/// Pods that gather what the agents are told, where somebody changes it each time; then the upgrade waits.
const GATHERS_MAX: u32 = 2;
/// Why an upgrade waits then, and where it has given way.
const CHANGED: &str = state::SETTINGS_CHANGED;
/// Why a pod ends before its upgrade has.
const NOT_OURS: &str =
    "somebody else has written how far the upgrade is: another pod goes on with it, or it was taken back";
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
    /// What the new version's objects were made of.
    gathered: Option<&'a Gathered>,
}

impl<'a> Upgrade<'a> {
    /// As the pod's service account.
    pub fn new(cluster: &'a Kubernetes, namespace: &'a str, times: Times, gathered: Option<&'a Gathered>) -> Self {
        Self { cluster, namespace, kept: cluster.upgrade(), times, gathered }
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

    async fn set(&self, from: &State, to: &State) -> anyhow::Result<()> {
        self.set_with(from, to, None).await
    }

    /// Writes how far the upgrade is, and what goes back, where that is as this pod knows it. Where another pod, or the
    /// upgrader, has written, this one gives up: it may be on a machine that counts as lost.
    async fn set_with(&self, from: &State, to: &State, before: Option<&str>) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            match self.kept.change(Some(from), Some(to), before).await {
                Ok(true) => return Ok(()),
                Ok(false) => bail!(NOT_OURS),
                Err(error) if begun.elapsed() > PATIENCE => {
                    return Err(error).context("cannot write how far the upgrade is");
                }
                Err(error) => tracing::warn!(%error, "how far the upgrade is cannot be written"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Before objects are applied: another pod may go on or back by now.
    async fn must_be_ours(&self, state: &State) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            match self.kept.state().await {
                Ok(now) if now.as_ref() == Some(state) => return Ok(()),
                Ok(_) => bail!(NOT_OURS),
                Err(error) if begun.elapsed() > PATIENCE => {
                    return Err(error).context("cannot read how far the upgrade is");
                }
                Err(error) => tracing::warn!(%error, "how far the upgrade is cannot be read"),
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
        if let Some(gathered) = self.gathered {
            let now = self
                .cluster
                .gathered(self.namespace)
                .await
                .context("cannot see whether the agents' settings changed")?;
            let changed = gathered.changed(&now);
            if !changed.is_empty() {
                return self.gather_again(state, &changed).await;
            }
        }
        let next = State { attempts: 0, ..state.at(Phase::Applying, "", "", SystemTime::now()) };
        self.set_with(&state, &next, Some(&text)).await?;
        self.tell("AgentUpgradeStarted", &format!("from version {} to {}", next.from, next.version), false).await;
        self.apply(next, objects).await
    }

    /// Nothing was applied. The pod that follows on one that fails gathers anew what the agents are told.
    async fn gather_again(&self, state: State, changed: &[String]) -> anyhow::Result<()> {
        let (what, version) = (changed.join(", "), state.version.clone());
        let next = State { attempts: state.attempts + 1, ..state.clone() };
        if next.attempts < GATHERS_MAX {
            self.set(&state, &next).await?;
            bail!(
                "somebody changed what the agents are told ({what}) while version {version} was prepared: nothing was changed, and it is gathered again"
            );
        }
        let message = format!(
            "somebody changed what the agents are told ({what}) each time that version {version} was prepared. Nothing was changed; the upgrade is tried again by itself once that has settled"
        );
        self.end(&state, Phase::Waiting, CHANGED, &message).await
    }

    /// Somebody has changed an object since it was gathered, and others are of the new version by now. Those go back. What
    /// is not of the new version, such as what was changed, is kept as it is now.
    async fn give_way(&self, state: State, place: &Place) -> anyhow::Result<()> {
        let mut before = Vec::new();
        for one in self.before().await? {
            let place = Place::of_manifest(&one).context("an object is of an unknown kind")?;
            let there = self.cluster.get(&place).await.with_context(|| format!("read {place}"))?;
            match there {
                Some(there) if there["metadata"]["labels"][VERSION_LABEL] == *state.version => before.push(one),
                Some(there) => before.push(to_apply_again(&there)),
                None => {}
            }
        }
        let text = Value::Array(before).to_string();
        self.set_with(&state, &state, Some(&text)).await?;
        let message = format!("somebody changed {place} while the agents were upgraded");
        self.undo(state, Fault::new(CHANGED, message)).await
    }

    async fn before(&self) -> anyhow::Result<Vec<Value>> {
        let before = self.kept.read(state::BEFORE).await.context("cannot read the objects of the old version")?;
        Ok(serde_json::from_str(before.as_deref().unwrap_or("[]"))?)
    }

    /// Steps 3 to 5.
    async fn apply(&self, begun: State, objects: &[Value]) -> anyhow::Result<()> {
        let mut state = State { attempts: begun.attempts + 1, ..begun.clone() };
        self.set(&begun, &state).await?;
        let stages = [Stage::Manager, Stage::Others, Stage::Upgrader];
        for stage in stages {
            let of_stage: Vec<&Value> = objects.iter().filter(|object| stage.has(object)).collect();
            tracing::info!(version = state.version, ?stage, objects = of_stage.len(), "objects are applied");
            for object in &of_stage {
                self.must_be_ours(&state).await?;
                let was = self.gathered.and_then(|gathered| gathered.find(object));
                match self.apply_one(object, was).await {
                    Ok(None) => {}
                    Ok(Some(changed)) => return self.give_way(state, &changed).await,
                    Err(error) => return self.undo(state, Fault::new("NotApplied", format!("{error:#}"))).await,
                }
            }
            let version = state.version.clone();
            let mut gate = self.gate(&version, stage, &of_stage);
            if stage == Stage::Others {
                // The gateway was heard through pods that are replaced now: with the new ones it must be heard anew.
                let heard = self.replaced(&gate).await;
                match heard {
                    Ok(before) => gate.heard_before = before,
                    Err(fault) => return self.undo(state, fault).await,
                }
                let message = "the new pods of the other agents are ready; the gateway must answer through them";
                let next = state.at(Phase::Applying, "", message, SystemTime::now());
                self.set(&state, &next).await?;
                state = next;
            }
            if let Err(fault) = gate.pass().await {
                return self.undo(state, fault).await;
            }
        }
        let message = format!("from version {} to {}", state.from, state.version);
        self.tell("AgentUpgraded", &message, false).await;
        tracing::info!(version = state.version, "the agents are upgraded");
        self.set(&state, &state.at(Phase::Succeeded, "", "", SystemTime::now())).await
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

    fn gate<'b>(&'b self, version: &'b str, stage: Stage, objects: &[&'b Value]) -> Gate<'b> {
        let deployments = objects.iter().filter(|object| object["kind"] == DEPLOYMENT.name);
        Gate {
            cluster: self.cluster,
            namespace: self.namespace,
            version,
            deployments: deployments.filter_map(|object| object["metadata"]["name"].as_str()).collect(),
            must_be_heard: stage != Stage::Upgrader,
            heard_before: None,
            window: if stage == Stage::Upgrader { self.times.window.min(UPGRADER_WINDOW) } else { self.times.window },
            timeout: self.times.timeout,
        }
    }

    /// Applies an object, with the digest of Secrets that is there: these are not changed. One that somebody has changed
    /// since it `was` gathered is not applied, and returned.
    async fn apply_one(&self, object: &Value, was: Option<&Value>) -> anyhow::Result<Option<Place>> {
        let mut object = object.clone();
        let place = Place::of_manifest(&object).context("an object has no name")?;
        let version = object["metadata"]["labels"][VERSION_LABEL].clone();
        let begun = Instant::now();
        loop {
            let done = async {
                let there = match object["kind"] == DEPLOYMENT.name || was.is_some() {
                    true => self.cluster.get(&place).await?.unwrap_or_default(),
                    false => Value::Null,
                };
                if let Some(was) = was {
                    // An attempt whose answer was lost may have applied it.
                    let is_applied = version.is_string() && there["metadata"]["labels"][VERSION_LABEL] == version;
                    if is_another(was, &there) && !is_applied {
                        return Ok(Some(place.clone()));
                    }
                    // What is changed from here on makes the apiserver refuse: then it is looked at again.
                    object["metadata"]["resourceVersion"] = there["metadata"]["resourceVersion"].clone();
                }
                if object["kind"] == DEPLOYMENT.name {
                    let of = |object: &Value| object["spec"]["template"]["metadata"]["annotations"][SECRETS].clone();
                    let digest = of(&there);
                    if digest.is_string() {
                        object["spec"]["template"]["metadata"]["annotations"][SECRETS] = digest;
                    }
                }
                self.cluster.apply(&object).await.map(|_| None)
            };
            match done.await {
                Ok(changed) => return Ok(changed),
                Err(error) => {
                    let passes = error.chain().any(|cause| {
                        cause
                            .downcast_ref::<crate::kubernetes::Error>()
                            .is_some_and(|error| error.is_passing() || was.is_some() && error.is_conflict())
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
        self.set(&state, &next).await?;
        self.undo_again(next).await
    }

    async fn undo_again(&self, state: State) -> anyhow::Result<()> {
        let before = self.before().await?;
        // Somebody removed them: nothing was taken back, whatever the pods look like.
        let mut failed = before.is_empty().then(|| anyhow!("the objects of that version are no longer kept"));
        for object in &before {
            self.must_be_ours(&state).await?;
            if let Err(error) = self.apply_one(object, None).await {
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
            (None, None) if State::is_tried_again_after(&state.reason) => {
                let message = format!(
                    "version {version} of the agents was taken back: {why}. They have version {from} with what they are told now, and the upgrade is tried again by itself"
                );
                self.end(&state, Phase::Waiting, &state.reason, &message).await
            }
            (None, None) => {
                let message = format!(
                    "version {version} of the agents was taken back, and they have version {from} again: {why}. Version {version} is not tried again here; another one is"
                );
                self.tell("AgentUpgradeRolledBack", &message, true).await;
                let next = state.rolled_back(&state.reason, &message, SystemTime::now());
                self.set(&state, &next).await
            }
            (failed, standing) => {
                let now = failed.map(|error| format!("{error:#}")).or(standing).unwrap_or_default();
                let message = format!(
                    "version {version} of the agents failed ({why}), and version {from} did not come back: {now}. Look at the pods: towline troubleshoot; or install the agents again: towline connect"
                );
                self.tell_end("AgentUpgradeFailed", &state.version, &state.reason, &message).await;
                let now = SystemTime::now();
                let refused = state.rolled_back(&state.reason, "", now);
                self.set(&state, &refused.at(Phase::Failed, &state.reason, &message, now)).await
            }
        }
    }

    async fn end(&self, state: &State, phase: Phase, reason: &str, message: &str) -> anyhow::Result<()> {
        let event = if phase == Phase::Waiting { "AgentUpgradeWaiting" } else { "AgentUpgradeFailed" };
        self.tell_end(event, &state.version, reason, message).await;
        self.set(state, &state.at(phase, reason, message, SystemTime::now())).await
    }

    async fn tell_end(&self, event: &str, version: &str, reason: &str, message: &str) {
        tracing::warn!(version, reason, message, "{event}");
        self.tell(event, message, true).await;
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
    use std::{
        collections::BTreeMap,
        sync::{Arc, Mutex},
    };

    use http::{Method, Request, Response};
    use http_body_util::BodyExt as _;
    use kube::{Client, client::Body};

    use super::*;
    use crate::manifests::{self, Values};

    const NEW: &str = "9.9.9";
    /// Names of objects in the namespace of the agents, by their paths.
    const MAPS: &str = "/api/v1/namespaces/towline/configmaps/";
    const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/towline/deployments/";

    /// An apiserver of the agents' objects, whose pods are always as they should be.
    #[derive(Default)]
    struct Apiserver {
        objects: BTreeMap<String, Value>,
        revision: u64,
        /// After this object was applied, somebody changes that one.
        changes: Option<(String, String)>,
        /// After this object was applied, another pod, or the upgrader, writes this state.
        taken_after: Option<(String, State)>,
        /// The same, just before the next state is written.
        taken: Option<State>,
    }

    impl Apiserver {
        fn put(&mut self, path: &str, mut object: Value) -> Value {
            self.revision += 1;
            let before = self.objects.get(path);
            let generation = before.map_or(0, |before| before["metadata"]["generation"].as_u64().unwrap());
            object["metadata"]["generation"] = (generation + 1).into();
            object["metadata"]["resourceVersion"] = self.revision.to_string().into();
            object["metadata"]["uid"] = path.into();
            self.objects.insert(path.to_owned(), object.clone());
            object
        }

        /// As an administrator does, with the version that was there.
        fn change(&mut self, path: &str) {
            let mut object = self.objects[path].clone();
            object["data"]["by-hand"] = "yes".into();
            self.put(path, object);
        }

        fn answer(&mut self, method: &Method, path: &str, patch: &str, sent: Value) -> (u16, Value) {
            let status =
                |code: u16| (code, json!({"kind": "Status", "status": "Failure", "message": "m", "code": code}));
            let there = self.objects.get(path).cloned();
            match (method, there) {
                (&Method::GET, None) if path.ends_with("/pods") => {
                    (200, json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": []}))
                }
                (&Method::GET, Some(mut object)) => {
                    self.revision += 1;
                    if path.starts_with(DEPLOYMENTS) {
                        let pods = object["spec"]["replicas"].clone();
                        let generation = object["metadata"]["generation"].clone();
                        object["status"] = json!({
                            "observedGeneration": generation, "replicas": pods, "updatedReplicas": pods,
                            "readyReplicas": pods, "availableReplicas": pods,
                        });
                        // Now and then its controller writes that pods are ready.
                        if self.revision.is_multiple_of(4) {
                            object["metadata"]["resourceVersion"] = self.revision.to_string().into();
                        }
                        self.objects.insert(path.to_owned(), object.clone());
                    }
                    if object["kind"] == CONNECTED_CLUSTER.name {
                        object["status"]["lastConnectivityTime"] = self.revision.to_string().into();
                    }
                    (200, object)
                }
                (&Method::POST, None) => (201, sent),
                (&Method::PATCH, Some(mut object)) if patch.contains("merge-patch") => {
                    if let Some(taken) = self.taken.take_if(|_| sent["data"][state::STATE].is_string()) {
                        object["data"][state::STATE] = serde_json::to_string(&taken).unwrap().into();
                        object = self.put(path, object);
                    }
                    let wanted = &sent["metadata"]["resourceVersion"];
                    if wanted.is_string() && object["metadata"]["resourceVersion"] != *wanted {
                        return status(409);
                    }
                    for (name, value) in sent["data"].as_object().unwrap() {
                        object["data"][name] = value.clone();
                    }
                    object["data"].as_object_mut().unwrap().retain(|_, value| !value.is_null());
                    (200, self.put(path, object))
                }
                (&Method::PATCH, there) => {
                    let wanted = &sent["metadata"]["resourceVersion"];
                    if wanted.is_string() && there.is_none_or(|there| there["metadata"]["resourceVersion"] != *wanted) {
                        return status(409);
                    }
                    let applied = self.put(path, sent);
                    if let Some((_, taken)) = self.taken_after.take_if(|(after, _)| after == path) {
                        let map = format!("{MAPS}{}", state::OBJECT);
                        let mut object = self.objects[&map].clone();
                        object["data"][state::STATE] = serde_json::to_string(&taken).unwrap().into();
                        self.put(&map, object);
                    }
                    if let Some((after, changed)) = self.changes.take_if(|(after, _)| after == path) {
                        assert_eq!(after, path);
                        self.change(&changed);
                    }
                    (200, applied)
                }
                _ => status(404),
            }
        }

        fn state(&self) -> State {
            let map = &self.objects[&format!("{MAPS}{}", state::OBJECT)];
            serde_json::from_str(map["data"][state::STATE].as_str().unwrap()).unwrap()
        }

        fn version(&self, path: &str) -> &str {
            self.objects[path]["metadata"]["labels"][VERSION_LABEL].as_str().unwrap()
        }
    }

    struct Lab {
        apiserver: Arc<Mutex<Apiserver>>,
        cluster: Kubernetes,
        /// The new version's objects.
        objects: Vec<Value>,
    }

    impl Lab {
        fn new() -> Self {
            let mut values = Values::default();
            values.upgrades.enabled = true;
            let mut objects = manifests::objects(&values, "towline");
            objects.retain(|object| object["kind"] != "Secret");
            let mut apiserver = Apiserver::default();
            for object in &objects {
                apiserver.put(&path(object), object.clone());
            }
            let state = State::new(NEW, manifests::version(), None, SystemTime::UNIX_EPOCH);
            let text = serde_json::to_string(&state).unwrap();
            let map = json!({
                "kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": state::OBJECT}, "data": {state::STATE: text},
            });
            apiserver.put(&format!("{MAPS}{}", state::OBJECT), map);
            let heard = json!({
                "kind": CONNECTED_CLUSTER.name, "apiVersion": "towline.io/v1", "metadata": {"name": "clustermetadata"},
                "status": {"agentVersion": NEW},
            });
            let place = Place::within(CONNECTED_CLUSTER, "towline", "clustermetadata");
            apiserver.put(&at(&place), heard);
            for object in &mut objects {
                if object["metadata"]["labels"].is_object() {
                    object["metadata"]["labels"][VERSION_LABEL] = NEW.into();
                }
            }
            let apiserver = Arc::new(Mutex::new(apiserver));
            let answering = Arc::clone(&apiserver);
            let service = tower::service_fn(move |request: Request<Body>| {
                let answering = Arc::clone(&answering);
                async move {
                    let (head, body) = request.into_parts();
                    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
                    let sent = serde_json::from_slice(&body).unwrap_or_default();
                    let patch = head.headers.get("content-type").map_or("", |value| value.to_str().unwrap());
                    let (code, body) = answering.lock().unwrap().answer(&head.method, head.uri.path(), patch, sent);
                    let body = Body::from(serde_json::to_vec(&body).unwrap());
                    let answer = Response::builder().status(code).header("content-type", "application/json").body(body);
                    Ok::<_, std::io::Error>(answer.unwrap())
                }
            });
            Self { apiserver, cluster: Kubernetes::answered_by(Client::new(service, "towline")), objects }
        }

        async fn run(&self, gathered: &Gathered) -> anyhow::Result<()> {
            let times = Times { window: Duration::ZERO, timeout: Duration::from_secs(60) };
            Upgrade::new(&self.cluster, "towline", times, Some(gathered)).run(Some(&self.objects)).await
        }

        fn apiserver(&self) -> std::sync::MutexGuard<'_, Apiserver> {
            self.apiserver.lock().unwrap()
        }
    }

    fn at(place: &Place) -> String {
        let resource = place.kind.resource();
        let root =
            if resource.group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{}", resource.api_version) };
        let within = place.namespace.as_ref().map_or_else(String::new, |name| format!("/namespaces/{name}"));
        format!("{root}{within}/{}/{}", resource.plural, place.name)
    }

    fn path(object: &Value) -> String {
        at(&Place::of_manifest(object).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn u1_settings_that_are_changed_before_an_upgrade_begins_are_gathered_again() {
        let lab = Lab::new();
        let map = format!("{MAPS}{AGENT}");
        let gathered = lab.cluster.gathered("towline").await.unwrap();
        lab.apiserver().change(&map);
        let error = lab.run(&gathered).await.unwrap_err().to_string();
        assert!(error.contains(AGENT) && error.contains("it is gathered again"), "{error}");
        let state = lab.apiserver().state();
        assert_eq!((state.phase, state.attempts), (Phase::Preparing, 1));
        // The pod that follows knows them, unless they change again and again.
        let gathered = lab.cluster.gathered("towline").await.unwrap();
        lab.apiserver().change(&map);
        lab.run(&gathered).await.unwrap();
        let state = lab.apiserver().state();
        assert_eq!((state.phase, state.reason.as_str()), (Phase::Waiting, CHANGED), "{}", state.message);
        assert_eq!(lab.apiserver().objects[&map]["data"]["by-hand"], "yes");
        assert_eq!(lab.apiserver().version(&map), manifests::version());
    }

    /// Users' settings that somebody gave the agents while controller-manager was watched were overwritten by what had
    /// been gathered before.
    #[tokio::test(start_paused = true)]
    async fn u1_settings_that_are_changed_while_an_upgrade_is_applied_are_not_overwritten() {
        let lab = Lab::new();
        let (map, manager) = (format!("{MAPS}{AGENT}"), format!("{DEPLOYMENTS}{MANAGER}"));
        let gathered = lab.cluster.gathered("towline").await.unwrap();
        lab.apiserver().changes = Some((manager.clone(), map.clone()));
        lab.run(&gathered).await.unwrap();
        let state = lab.apiserver().state();
        assert_eq!((state.phase, state.reason.as_str()), (Phase::Waiting, CHANGED), "{}", state.message);
        assert!(state.refused.is_empty(), "it is tried again");
        let (apiserver, own) = (lab.apiserver(), manifests::version());
        assert_eq!((apiserver.version(&manager), apiserver.version(&map)), (own, own));
        assert_eq!(apiserver.objects[&map]["data"]["by-hand"], "yes");
        let agent = &apiserver.objects[&format!("{DEPLOYMENTS}{AGENT}")];
        assert_eq!(agent["metadata"]["labels"][VERSION_LABEL], own);
    }

    /// The upgrader took the upgrade back while its pod began: that one applied nothing from then on.
    #[tokio::test(start_paused = true)]
    async fn u1_a_pod_whose_upgrade_was_taken_back_changes_nothing() {
        let lab = Lab::new();
        let gathered = lab.cluster.gathered("towline").await.unwrap();
        let ends = lab.apiserver().state().at(Phase::RolledBack, "NoPod", "m", SystemTime::now());
        lab.apiserver().taken = Some(ends.clone());
        let error = lab.run(&gathered).await.unwrap_err().to_string();
        assert_eq!(error, NOT_OURS);
        let (apiserver, own) = (lab.apiserver(), manifests::version());
        assert_eq!(apiserver.state(), ends);
        assert!(apiserver.objects[&format!("{MAPS}{}", state::OBJECT)]["data"][state::BEFORE].is_null());
        assert_eq!(apiserver.version(&format!("{DEPLOYMENTS}{MANAGER}")), own);
    }

    /// Its machine counted as lost, and a pod on another one goes back: the two did not apply at the same time.
    #[tokio::test(start_paused = true)]
    async fn u1_a_pod_that_another_one_follows_applies_no_more() {
        let lab = Lab::new();
        let manager = format!("{DEPLOYMENTS}{MANAGER}");
        let gathered = lab.cluster.gathered("towline").await.unwrap();
        let undoes = lab.apiserver().state().at(Phase::Undoing, "Interrupted", "m", SystemTime::now());
        lab.apiserver().taken_after = Some((manager.clone(), undoes.clone()));
        let error = lab.run(&gathered).await.unwrap_err().to_string();
        assert_eq!(error, NOT_OURS);
        let (apiserver, own) = (lab.apiserver(), manifests::version());
        assert_eq!(apiserver.state(), undoes);
        assert_eq!((apiserver.version(&manager), apiserver.version(&format!("{DEPLOYMENTS}{AGENT}"))), (NEW, own));
    }

    /// A machine that died counted as a failure of the version, which was refused from then on.
    #[tokio::test(start_paused = true)]
    async fn u1_an_upgrade_whose_machine_was_lost_is_taken_back_and_tried_again() {
        let lab = Lab::new();
        let (map, manager) = (format!("{MAPS}{}", state::OBJECT), format!("{DEPLOYMENTS}{MANAGER}"));
        let gathered = lab.cluster.gathered("towline").await.unwrap();
        let before = lab.apiserver().objects[&manager].clone();
        let applies = lab.apiserver().state().at(Phase::Applying, "", "", SystemTime::now());
        let undoes = applies.on_lost_machine("pod p on node n1 is deleted", SystemTime::now()).unwrap();
        {
            let mut apiserver = lab.apiserver();
            let mut object = apiserver.objects[&map].clone();
            object["data"][state::STATE] = serde_json::to_string(&undoes).unwrap().into();
            object["data"][state::BEFORE] = json!([to_apply_again(&before)]).to_string().into();
            apiserver.put(&map, object);
            let new = lab.objects.iter().find(|object| path(object) == manager).unwrap();
            apiserver.put(&manager, new.clone());
        }
        lab.run(&gathered).await.unwrap();
        let apiserver = lab.apiserver();
        let state = apiserver.state();
        assert_eq!((state.phase, state.reason.as_str()), (Phase::Waiting, state::NODE_LOST), "{}", state.message);
        assert!(state.refused.is_empty() && state.message.contains("node n1"), "{}", state.message);
        assert_eq!(apiserver.version(&manager), manifests::version());
    }

    #[tokio::test(start_paused = true)]
    async fn u1_pods_that_report_while_an_upgrade_is_applied_are_no_other_settings() {
        let lab = Lab::new();
        let gathered = lab.cluster.gathered("towline").await.unwrap();
        lab.run(&gathered).await.unwrap();
        let apiserver = lab.apiserver();
        let state = apiserver.state();
        assert_eq!(state.phase, Phase::Succeeded, "{}: {}", state.reason, state.message);
        let changed =
            lab.objects.iter().filter(|object| is_changed(object) && object["metadata"]["name"] != state::OBJECT);
        for object in changed {
            assert_eq!(apiserver.version(&path(object)), NEW, "{object}");
        }
    }

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
