//! Server-side apply of our manifests, and the way back: what a run made is known, so that it can be taken away again.

use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use aws_lc_rs::digest;
use kube::api::{DeleteParams, Patch, PatchParams, PropagationPolicy};
use serde_json::{Value, json};

use super::{Error, Kubernetes, Place, place, pods::PODS};
use crate::{
    manifests::{FLUX_LOGS, GITOPS},
    terminal::say,
};

/// Who applied, as managed fields have it.
const MANAGER: &str = "towline";
/// Between looks at what is going away.
const PAUSE: Duration = Duration::from_millis(250);
/// How long a deletion is tried where the apiserver has no answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one object may take to go away before its finalizers are removed by force.
pub const FORCE_AFTER: Duration = Duration::from_secs(20);
/// How long something may take to go away before it is said what is waited for.
const SILENT: Duration = Duration::from_secs(5);
/// How long a definition may take to go away before the apiserver is asked to look at it again, and again after that.
const AGAIN: Duration = Duration::from_secs(1);
/// On a definition: how many seconds its deletion had gone on when it was asked again.
const AGAIN_ANNOTATION: &str = "towline.io/deletion-seconds";

/// What Kubernetes and its distributions put into every namespace by themselves.
const EVERYWHERE: [&str; 3] = ["kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert"];
/// Secrets that belong to service accounts.
const ACCOUNT_SECRETS: [&str; 2] = ["kubernetes.io/service-account-token", "kubernetes.io/dockercfg"];

impl Kubernetes {
    /// Applies a manifest. Tells whether the object is new.
    pub async fn apply(&self, manifest: &Value) -> anyhow::Result<(Place, bool)> {
        let place = Place::of_manifest(manifest).context("a manifest is of an unknown kind")?;
        let was_there = self.get(&place).await.with_context(|| format!("cannot read {place}"))?.is_some();
        let params = PatchParams::apply(MANAGER).force();
        let api = self.api(&place);
        let applied = api.patch(&place.name, &params, &Patch::Apply(manifest)).await.map_err(Error::from);
        applied.with_context(|| format!("cannot apply {place}"))?;
        Ok((place, !was_there))
    }

    /// Replaces the pods of the extension microsoft.flux beside the agents where their settings have changed: their
    /// Deployments are of another release, which does not see that. Nothing where there are no such Deployments.
    pub async fn restart_gitops(&self, namespace: &str, manifests: &[Value]) -> anyhow::Result<()> {
        for name in [GITOPS, FLUX_LOGS] {
            let settings = manifests.iter().find(|one| one["kind"] == "ConfigMap" && one["metadata"]["name"] == name);
            let place = Place::within(place::DEPLOYMENT, namespace, name);
            let Some(settings) = settings else { continue };
            if self.get(&place).await.with_context(|| format!("cannot read {place}"))?.is_none() {
                continue;
            }
            let digest = digest::digest(&digest::SHA256, settings["data"].to_string().as_bytes());
            let annotations = json!({"towline.io/settings": types::ids::hex(digest.as_ref())});
            let patch = json!({"spec": {"template": {"metadata": {"annotations": annotations}}}});
            let patched = self.api(&place).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
            patched.map(drop).map_err(Error::from).with_context(|| format!("cannot restart {place}"))?;
        }
        Ok(())
    }

    /// Waits until a definition is served: its objects cannot be made before.
    pub async fn await_established(&self, name: &str, within: Duration) -> anyhow::Result<()> {
        let (place, end) = (Place::of(place::DEFINITION, name), Instant::now() + within);
        loop {
            let object = self.get(&place).await?.unwrap_or_default();
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            if conditions.iter().any(|one| one["type"] == "Established" && one["status"] == "True") {
                return Ok(());
            }
            if Instant::now() > end {
                bail!("{place} is not served after {within:?}: {}", json!(conditions));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Begins to delete an object, with what it owns. Nothing if it is gone already. An apiserver without an answer is
    /// asked again for [`PATIENCE`].
    pub async fn delete(&self, place: &Place) -> anyhow::Result<()> {
        let params =
            DeleteParams { propagation_policy: Some(PropagationPolicy::Foreground), ..DeleteParams::default() };
        let begun = Instant::now();
        loop {
            match self.api(place).delete(&place.name, &params).await.map_err(Error::from) {
                Ok(_) => return Ok(()),
                Err(error) if error.is_missing() => return Ok(()),
                Err(error) if error.is_passing() && begun.elapsed() < PATIENCE => tokio::time::sleep(PAUSE).await,
                Err(error) => return Err(anyhow!(error).context(format!("cannot delete {place}"))),
            }
        }
    }

    /// Waits until an object is gone. With `force` finalizers that keep it are removed after [`FORCE_AFTER`].
    pub async fn await_gone(&self, place: &Place, within: Duration, force: bool) -> anyhow::Result<()> {
        let begun = Instant::now();
        let (mut forced, mut asked, mut looked, mut said) = (false, begun, begun, None);
        loop {
            let late = begun.elapsed() > within;
            let object = match self.get(place).await {
                Ok(Some(object)) => object,
                Ok(None) => return Ok(()),
                // An apiserver that has no answer for a moment is asked again as one that still has the object.
                Err(error) if error.is_passing() && !late => Value::Null,
                Err(error) => return Err(anyhow!(error).context(format!("cannot read {place}"))),
            };
            if late || looked.elapsed() > SILENT {
                looked = Instant::now();
                let why = self.why_stays(place, &object).await;
                if late {
                    bail!("{place} is still there after {within:?}{why}");
                }
                if said.as_ref() != Some(&why) {
                    say(&format!("  waiting until {place} is gone{why}"));
                    said = Some(why);
                }
            }
            if force && !forced && begun.elapsed() > FORCE_AFTER {
                forced = true;
                self.strip(place).await?;
            }
            if place.kind == place::DEFINITION && asked.elapsed() > AGAIN {
                asked = Instant::now();
                self.ask_again(place, begun.elapsed()).await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// What keeps an object: its own finalizers, and those of pods that have to go before it.
    async fn why_stays(&self, place: &Place, object: &Value) -> String {
        let mut why = why_there(object);
        if place.kind == place::DEPLOYMENT
            && let Some(namespace) = &place.namespace
        {
            let pods = self.list(&Place::within(place::POD, namespace, ""), PODS).await.unwrap_or_default();
            for pod in pods.iter().filter(|pod| !pod["metadata"]["deletionTimestamp"].is_null()) {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                why.push_str(&format!("; pod {name} is on its way out{}", why_there(pod)));
            }
        }
        why
    }

    /// Changes an annotation of a definition that is on its way out. Before it goes, kube-apiserver lists its objects;
    /// where that fails (a definition that is new, whose storage is not initialized yet) and the next attempt meets its
    /// own update as a conflict, it takes that for another's and forgets the definition until it looks at all of them,
    /// up to five minutes later. A change of anything but that condition makes it look at once.
    async fn ask_again(&self, place: &Place, after: Duration) {
        let patch = json!({"metadata": {"annotations": {AGAIN_ANNOTATION: after.as_secs().to_string()}}});
        // It goes by itself, only later.
        if let Err(error) = self.api(place).patch(&place.name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            tracing::debug!("{place} is not asked for again: {error}");
        }
    }

    /// Removes an object's finalizers, so that nothing waits for who no longer runs (docs/features.md I6).
    async fn strip(&self, place: &Place) -> anyhow::Result<()> {
        tracing::warn!("{place} does not go away: its finalizers are removed");
        let patch = json!({"metadata": {"finalizers": null}});
        let api = self.api(place);
        match api.patch(&place.name, &PatchParams::default(), &Patch::Merge(&patch)).await.map_err(Error::from) {
            Ok(_) => Ok(()),
            Err(error) if error.is_missing() => Ok(()),
            Err(error) => Err(anyhow!(error).context(format!("cannot remove the finalizers of {place}"))),
        }
    }

    /// What others have in a namespace: it is theirs too, and stays. Ours is gone when this is asked.
    pub async fn foreign(&self, namespace: &str) -> anyhow::Result<Vec<Place>> {
        let mut found = Vec::new();
        for kind in place::KEPT {
            let all = Place::within(*kind, namespace, "");
            let listed =
                self.list(&all, "").await.with_context(|| format!("cannot list {} in {namespace}", kind.plural))?;
            for object in listed {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let going = !object["metadata"]["deletionTimestamp"].is_null();
                let fixed = EVERYWHERE.contains(&name)
                    || object["type"].as_str().is_some_and(|kind| ACCOUNT_SECRETS.contains(&kind));
                if !going && !fixed {
                    found.push(Place::within(*kind, namespace, name));
                }
            }
        }
        Ok(found)
    }
}

/// What an object says of why it does not go away.
pub fn why_there(object: &Value) -> String {
    let finalizers = &object["metadata"]["finalizers"];
    let finalizers = if finalizers.is_null() { String::new() } else { format!("; its finalizers: {finalizers}") };
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    // Of definitions, and of namespaces.
    let is_why = |name: &str| name == "Terminating" || name.starts_with("Namespace");
    let told = conditions.filter(|one| one["type"].as_str().is_some_and(is_why) && one["status"] == "True");
    let told = told.filter_map(|one| one["message"].as_str());
    told.fold(finalizers, |why, message| format!("{why}; {message}"))
}
