//! How far an upgrade is: one ConfigMap, `towline-upgrade`, which the upgrader and its Job write and the
//! controller-manager reads for its heartbeat. It outlives all pods, so that a later Job can finish or undo an
//! upgrade that was interrupted.

use std::{collections::BTreeMap, time::SystemTime};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use types::agent_api::{Upgrade, upgrade_states};

use crate::identity::spell;

/// The ConfigMap's name. The installation makes it empty.
pub const OBJECT: &str = "towline-upgrade";
/// Its keys: [`State`], the objects of the old version, what is trusted of the catalogue.
pub const STATE: &str = "state";
/// The key of the ConfigMap with the objects of the old version.
pub const BEFORE: &str = "before";
/// The key of the ConfigMap with what is trusted of the catalogue.
pub const TRUST: &str = "trust";
/// The key of the ConfigMap with the newest version that ran here.
pub const NEWEST: &str = "newest";
/// The key of the ConfigMap that shows whether the gateway chooses versions by itself, under the name that Arc gives it:
/// `true` or `false`.
pub const AUTO_UPDATE: &str = "AZURE_ARC_AUTOUPDATE";
/// Versions that are remembered as rolled back.
const REFUSED_MAX: usize = 20;
/// How often a write is tried again that met another one.
const CONFLICTS_MAX: u32 = 5;
/// Why an upgrade went back that was cut off with the machine of its pod: the version has no part in it.
pub const NODE_LOST: &str = "NodeLost";
/// Why an upgrade gave way, or waits: somebody changed what the agents are told meanwhile.
pub const SETTINGS_CHANGED: &str = "SettingsChanged";
/// Characters of a message.
const MESSAGE_CHARS: usize = 2000;

/// Where an upgrade stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// It is not begun; the message says what for.
    Waiting,
    /// The new version renders its objects; nothing is changed yet.
    Preparing,
    /// Objects of the new version are applied and watched.
    Applying,
    /// Objects of the old version are applied again.
    Undoing,
    /// The new version runs.
    Succeeded,
    /// The old version runs again, or still.
    RolledBack,
    /// Neither runs as it should.
    Failed,
}

impl Phase {
    /// As in a heartbeat.
    pub fn word(self) -> &'static str {
        match self {
            Self::Waiting => upgrade_states::WAITING,
            Self::Preparing | Self::Applying | Self::Undoing => upgrade_states::RUNNING,
            Self::Succeeded => upgrade_states::SUCCEEDED,
            Self::RolledBack => upgrade_states::ROLLED_BACK,
            Self::Failed => upgrade_states::FAILED,
        }
    }

    /// Whether a Job is at work, or should be.
    pub fn is_running(self) -> bool {
        self.word() == "Running"
    }

    /// Whether objects may be those of the new version.
    pub fn has_changed(self) -> bool {
        matches!(self, Self::Applying | Self::Undoing)
    }
}

/// The last upgrade.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct State {
    /// The version that is wanted.
    pub version: String,
    /// The version that ran before.
    pub from: String,
    /// The phase that the upgrade is in.
    pub phase: Phase,
    /// Why, in one word; empty where all is well.
    #[serde(default)]
    pub reason: String,
    /// What was tried, why it failed, what to do.
    #[serde(default)]
    pub message: String,
    /// Since when, RFC 3339.
    pub time: String,
    /// Pods that have begun to apply; a successor of several that were cut off goes back. Before that, pods that found
    /// other settings than had been gathered.
    #[serde(default)]
    pub attempts: u32,
    /// Versions that were rolled back here, the newest last: they are not tried again.
    #[serde(default)]
    pub refused: Vec<String>,
    /// It waited before, and whether it can begin now is being tried: until then it is told as waiting.
    #[serde(default)]
    pub is_tried_again: bool,
}

/// What every version understands of a state that another version has written.
#[derive(Deserialize)]
struct Remains {
    #[serde(default)]
    from: String,
    #[serde(default)]
    time: String,
    #[serde(default)]
    refused: Vec<String>,
}

impl State {
    /// Of what is kept. Of a state that another version wrote in other words, the versions that were rolled back stay
    /// known; none where there are none.
    pub fn of(text: &str) -> Option<Self> {
        if let Ok(state) = serde_json::from_str(text) {
            return Some(state);
        }
        let Remains { from, time, refused } = serde_json::from_str(text).ok()?;
        let version = refused.last()?.clone();
        let message = "another version of the agents wrote how far the upgrade is, and this one does not understand it";
        Some(Self {
            version,
            from,
            phase: Phase::RolledBack,
            reason: String::new(),
            message: message.to_owned(),
            time,
            attempts: 0,
            refused,
            is_tried_again: false,
        })
    }

    /// An upgrade that is to begin.
    pub fn new(version: &str, from: &str, last: Option<&Self>, now: SystemTime) -> Self {
        Self {
            version: version.to_owned(),
            from: from.to_owned(),
            phase: Phase::Preparing,
            reason: String::new(),
            message: String::new(),
            time: spell(now),
            attempts: 0,
            refused: last.map(|last| last.refused.clone()).unwrap_or_default(),
            is_tried_again: false,
        }
    }

    /// This upgrade, which is to begin, after one of the same version that waits: what it waits for is kept until it is
    /// known to be gone.
    #[must_use]
    pub fn after(self, last: Option<&Self>) -> Self {
        match last.filter(|last| last.version == self.version && last.is_told_as_waiting()) {
            Some(last) => Self { phase: Phase::Preparing, attempts: 0, is_tried_again: true, ..last.clone() },
            None => self,
        }
    }

    fn is_told_as_waiting(&self) -> bool {
        self.phase == Phase::Waiting || self.phase == Phase::Preparing && self.is_tried_again
    }

    /// The same upgrade from now on in another phase.
    #[must_use]
    pub fn at(&self, phase: Phase, reason: &str, message: &str, now: SystemTime) -> Self {
        let mut next = self.clone();
        // Who looks again and finds the same does not make it younger.
        let is_same = phase == self.phase || phase == Phase::Waiting && self.is_told_as_waiting();
        if !is_same || reason != self.reason {
            next.time = spell(now);
        }
        next.phase = phase;
        next.is_tried_again = false;
        reason.clone_into(&mut next.reason);
        next.message = message.chars().take(MESSAGE_CHARS).collect();
        next
    }

    /// The old version runs again after objects had been changed: the new one is not tried again.
    #[must_use]
    pub fn rolled_back(&self, reason: &str, message: &str, now: SystemTime) -> Self {
        let mut next = self.at(Phase::RolledBack, reason, message, now);
        next.refused.retain(|version| *version != self.version);
        next.refused.push(self.version.clone());
        let over = next.refused.len().saturating_sub(REFUSED_MAX);
        next.refused.drain(..over);
        next
    }

    /// After the machine of its pod was lost: another pod goes back, and the version has no part in it. The pod before
    /// applies nothing more, because this was written. None where it need not be written.
    #[must_use]
    pub fn on_lost_machine(&self, message: &str, now: SystemTime) -> Option<Self> {
        (self.phase == Phase::Applying).then(|| self.at(Phase::Undoing, NODE_LOST, message, now))
    }

    /// Whether the version is tried again here once it was taken back: what ended it was none of its doing.
    pub fn is_tried_again_after(reason: &str) -> bool {
        reason == NODE_LOST || reason == SETTINGS_CHANGED
    }

    /// Whether it is forgotten once the gateway wants nothing: it was not begun, so that it says nothing of its version.
    pub fn is_passing(&self) -> bool {
        match self.phase {
            Phase::Waiting | Phase::Preparing => true,
            Phase::RolledBack => !self.refused.contains(&self.version),
            Phase::Applying | Phase::Undoing | Phase::Succeeded | Phase::Failed => false,
        }
    }

    /// What is left once it is forgotten: the version that was rolled back here last, for none of these is tried again.
    pub fn forgotten(&self, now: SystemTime) -> Option<Self> {
        let version = self.refused.last()?.clone();
        let message = format!("version {version} of the agents was rolled back here before, and is not tried again");
        Some(Self { version, ..self.at(Phase::RolledBack, "", &message, now) })
    }

    /// As the heartbeat tells it.
    pub fn told(&self) -> Upgrade {
        Upgrade {
            version: self.version.clone(),
            state: if self.is_told_as_waiting() { Phase::Waiting.word() } else { self.phase.word() }.to_owned(),
            reason: self.reason.clone(),
            message: self.message.clone(),
            time: self.time.clone(),
        }
    }
}

/// The ConfigMap of the agents' namespace.
#[derive(Clone)]
pub struct Kept {
    api: Api<ConfigMap>,
}

impl Kept {
    /// In the client's namespace.
    pub fn new(client: &Client) -> Self {
        Self { api: Api::default_namespaced(client.clone()) }
    }

    /// What is under a key; none where it is not there.
    ///
    /// # Errors
    /// When the ConfigMap cannot be read or is not there.
    pub async fn read(&self, key: &str) -> Result<Option<String>, kube::Error> {
        let data: Option<BTreeMap<String, String>> = self.api.get(OBJECT).await?.data;
        Ok(data.and_then(|mut data| data.remove(key)))
    }

    /// The last upgrade; none where there was none, or what is there is not understood.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub async fn state(&self) -> Result<Option<State>, kube::Error> {
        Ok(self.read(STATE).await?.as_deref().and_then(State::of))
    }

    /// Shows people in the cluster whether the gateway chooses versions by itself ([`AUTO_UPDATE`]).
    ///
    /// # Errors
    /// As [`Self::read`], and when the apiserver refuses.
    pub async fn show_auto_update(&self, is_on: bool) -> Result<(), kube::Error> {
        let text = if is_on { "true" } else { "false" };
        if self.read(AUTO_UPDATE).await?.as_deref() == Some(text) {
            return Ok(());
        }
        self.write(&json!({ AUTO_UPDATE: text })).await
    }

    /// Writes what is under some keys; null takes one out.
    ///
    /// # Errors
    /// When the apiserver refuses.
    pub async fn write(&self, data: &Value) -> Result<(), kube::Error> {
        let patch = json!({ "data": data });
        self.api.patch(OBJECT, &PatchParams::default(), &Patch::Merge(&patch)).await.map(drop)
    }

    /// Writes how far the upgrade is, where it is as far as the caller knows: `from`. The objects of the old version go when
    /// they are not needed any more; `before` writes them with it. False where another process has written meanwhile:
    /// whatever the caller is about to do is no longer its own.
    ///
    /// # Errors
    /// When the apiserver refuses.
    pub async fn change(
        &self,
        from: Option<&State>,
        to: Option<&State>,
        before: Option<&str>,
    ) -> Result<bool, kube::Error> {
        let mut data = json!({ STATE: to.map(serde_json::to_string).transpose().map_err(kube::Error::SerdeError)? });
        if let Some(before) = before {
            data[BEFORE] = before.into();
        } else if to.is_none_or(|to| !to.phase.has_changed() && to.phase != Phase::Failed) {
            data[BEFORE] = Value::Null;
        }
        let mut tries = 0;
        loop {
            let map = self.api.get(OBJECT).await?;
            let text = map.data.as_ref().and_then(|data| data.get(STATE));
            let now = text.and_then(|text| State::of(text));
            // Also after an answer that was lost: nobody can tell who has written it.
            if now.as_ref() != from {
                return Ok(false);
            }
            // What else is in the object has other writers; then it is looked at again.
            let patch = json!({"metadata": {"resourceVersion": map.metadata.resource_version}, "data": data});
            match self.api.patch(OBJECT, &PatchParams::default(), &Patch::Merge(&patch)).await {
                Err(kube::Error::Api(status)) if status.code == 409 && tries < CONFLICTS_MAX => tries += 1,
                done => return done.map(|_| true),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        convert::Infallible,
        sync::{Arc, Mutex},
    };

    use bytes::Bytes;
    use http_body_util::{BodyExt as _, Full};

    use super::*;

    #[test]
    fn u1_version_that_was_rolled_back_is_remembered() {
        let now = SystemTime::UNIX_EPOCH;
        let mut state = State::new("0.3.0", "0.2.0", None, now);
        for number in 0..30 {
            state.version = format!("0.3.{number}");
            state = state.rolled_back("Crash", "m", now);
        }
        assert_eq!((state.refused.len(), state.refused.last().map(String::as_str)), (REFUSED_MAX, Some("0.3.29")));
        let next = State::new("0.4.0", "0.2.0", Some(&state), now);
        assert!(next.refused.contains(&"0.3.29".to_owned()) && next.phase.is_running() && !next.phase.has_changed());
        assert_eq!(state.told().state, "RolledBack");
    }

    #[test]
    fn u1_what_was_not_begun_is_forgotten_and_what_was_rolled_back_is_not() {
        let now = SystemTime::UNIX_EPOCH;
        let fresh = State::new("0.3.1", "0.2.0", None, now);
        let no_image = fresh.at(Phase::RolledBack, "ImagePull", "m", now);
        assert!(no_image.is_passing() && no_image.forgotten(now).is_none());
        let crashed = State { version: "0.3.0".to_owned(), ..fresh.clone() }.rolled_back("Crash", "m", now);
        assert!(!crashed.is_passing());
        let waits = State::new("0.3.1", "0.2.0", Some(&crashed), now).at(Phase::Waiting, "Rights", "m", now);
        assert!(waits.is_passing());
        let left = waits.forgotten(now).unwrap();
        assert_eq!((left.version.as_str(), left.told().state.as_str()), ("0.3.0", "RolledBack"));
        assert_eq!(left.refused, ["0.3.0"]);
        assert!(!left.is_passing());
    }

    #[test]
    fn u1_an_upgrade_whose_machine_is_lost_goes_back_and_is_none_of_its_versions_failures() {
        let now = SystemTime::UNIX_EPOCH;
        let prepares = State::new("0.3.0", "0.2.0", None, now);
        assert_eq!(prepares.on_lost_machine("m", now), None, "nothing was changed");
        let applies = State { attempts: 1, ..prepares.at(Phase::Applying, "", "", now) };
        let undoes = applies.on_lost_machine("node n1", now).unwrap();
        assert_eq!(
            (undoes.phase, undoes.reason.as_str(), undoes.message.as_str()),
            (Phase::Undoing, NODE_LOST, "node n1")
        );
        assert!(State::is_tried_again_after(&undoes.reason) && !State::is_tried_again_after("NotReady"));
        assert_eq!(undoes.on_lost_machine("m", now), None, "what it goes back for is kept");
    }

    #[test]
    fn u1_what_waits_is_told_as_waiting_while_it_is_tried_again() {
        let (first, later) = (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(3600));
        let waits = State::new("0.3.1", "0.2.0", None, first).at(Phase::Waiting, "Rights", "m", first);
        let again = State::new("0.3.1", "0.2.0", Some(&waits), later).after(Some(&waits));
        assert!(again.phase == Phase::Preparing && again.is_passing());
        assert_eq!(again.told(), waits.told(), "nobody is told of an upgrade that has not begun");
        assert_eq!(again.at(Phase::Waiting, "Rights", "m", later), waits, "it has waited since the first time");
        let begun = again.at(Phase::Applying, "", "", later);
        assert_eq!((begun.told().state.as_str(), begun.is_tried_again), ("Running", false));
        assert_ne!(begun.time, waits.time);
        let other = State::new("0.3.2", "0.2.0", Some(&waits), later).after(Some(&waits));
        assert_eq!((other.told().state.as_str(), other.version.as_str()), ("Running", "0.3.2"));
    }

    #[test]
    fn u1_versions_that_were_rolled_back_are_read_of_a_state_of_another_version() {
        let state = State::of(r#"{"version": "0.5.0", "phase": "Rehearsing", "refused": ["0.3.0", "0.4.0"]}"#).unwrap();
        assert_eq!((state.phase, state.refused.len(), state.is_passing()), (Phase::RolledBack, 2, false));
        assert_eq!(State::of(r#"{"phase": "Rehearsing"}"#), None);
        assert_eq!(State::of("x"), None);
    }

    /// The ConfigMap of an apiserver.
    #[derive(Clone, Default)]
    struct OneMap(Arc<Mutex<Held>>);

    #[derive(Default)]
    struct Held {
        data: serde_json::Map<String, Value>,
        version: u64,
        /// What somebody writes before the next patch.
        meanwhile: Option<Value>,
    }

    impl OneMap {
        fn kept(&self) -> Kept {
            let own = self.clone();
            let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
                let own = own.clone();
                async move {
                    let (head, body) = request.into_parts();
                    let body = body.collect().await.unwrap().to_bytes();
                    let mut now = own.0.lock().unwrap();
                    let mut answer = None;
                    if head.method == http::Method::PATCH {
                        if let Some(other) = now.meanwhile.take() {
                            now.version += 1;
                            now.data.extend(other.as_object().unwrap().clone());
                        }
                        let patch: Value = serde_json::from_slice(&body).unwrap();
                        if patch["metadata"]["resourceVersion"] == now.version.to_string().as_str() {
                            now.version += 1;
                            now.data.extend(patch["data"].as_object().unwrap().clone());
                            now.data.retain(|_, value| !value.is_null());
                        } else if patch["metadata"].is_null() {
                            now.version += 1;
                            now.data.extend(patch["data"].as_object().unwrap().clone());
                        } else {
                            answer = Some(json!({"kind": "Status", "status": "Failure", "message": "m", "code": 409}));
                        }
                    }
                    let code = if answer.is_some() { 409 } else { 200 };
                    let answer = answer.unwrap_or_else(|| {
                        json!({"apiVersion": "v1", "kind": "ConfigMap", "data": now.data.clone(),
                            "metadata": {"name": OBJECT, "resourceVersion": now.version.to_string()}})
                    });
                    let answer =
                        http::Response::builder().status(code).body(Full::new(Bytes::from(answer.to_string())));
                    Ok::<_, Infallible>(answer.unwrap())
                }
            });
            Kept::new(&Client::new(service, "towline"))
        }

        fn meanwhile(&self, data: Value) {
            self.0.lock().unwrap().meanwhile = Some(data);
        }
    }

    /// A pod that had just kept the objects of the old version went on after the upgrader had taken the upgrade back.
    #[tokio::test]
    async fn u1_state_is_written_only_where_nobody_else_has_written_it() {
        let (map, now) = (OneMap::default(), SystemTime::UNIX_EPOCH);
        let kept = map.kept();
        let prepares = State::new("0.3.0", "0.2.0", None, now);
        assert!(kept.change(None, Some(&prepares), None).await.unwrap());
        let (applies, ends) =
            (prepares.at(Phase::Applying, "", "", now), prepares.at(Phase::RolledBack, "r", "m", now));
        map.meanwhile(json!({STATE: serde_json::to_string(&ends).unwrap()}));
        assert!(!kept.change(Some(&prepares), Some(&applies), Some("[1]")).await.unwrap());
        assert_eq!((kept.state().await.unwrap(), kept.read(BEFORE).await.unwrap()), (Some(ends.clone()), None));
        // What else is in it is nobody's upgrade.
        map.meanwhile(json!({TRUST: "t"}));
        assert!(kept.change(Some(&ends), Some(&applies), Some("[1]")).await.unwrap());
        assert_eq!(kept.read(BEFORE).await.unwrap().as_deref(), Some("[1]"));
        assert!(!kept.change(Some(&ends), Some(&applies), Some("[1]")).await.unwrap(), "somebody has done so before");
        assert!(kept.change(Some(&applies), None, None).await.unwrap());
        assert_eq!((kept.state().await.unwrap(), kept.read(BEFORE).await.unwrap()), (None, None));
        assert_eq!(kept.read(TRUST).await.unwrap().as_deref(), Some("t"));
    }

    #[tokio::test]
    async fn u2_the_switch_of_the_gateway_is_shown_in_the_cluster() {
        let map = OneMap::default();
        let kept = map.kept();
        for (is_on, shown, writes) in [(true, "true", 1), (true, "true", 1), (false, "false", 2)] {
            kept.show_auto_update(is_on).await.unwrap();
            assert_eq!(kept.read(AUTO_UPDATE).await.unwrap().as_deref(), Some(shown));
            assert_eq!(map.0.lock().unwrap().version, writes);
        }
    }

    #[test]
    fn same_reason_again_keeps_its_time() {
        let (first, later) = (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(60));
        let state = State::new("1", "0", None, first).at(Phase::Waiting, "Rights", "a", first);
        assert_eq!(state.at(Phase::Waiting, "Rights", "b", later).time, state.time);
        assert_ne!(state.at(Phase::Waiting, "Helm", "b", later).time, state.time);
    }
}
