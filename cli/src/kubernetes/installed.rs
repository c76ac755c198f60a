//! The agents that a cluster has: whose they are, what they are made of, and how they are removed.

use std::time::Duration;

use agent::roles::upgrader::{
    job,
    state::{self, State},
};
use anyhow::{Context, anyhow};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use secrecy::SecretString;
use serde_json::Value;

use super::{
    Kubernetes, Place,
    place::{self, CLUSTER_ROLE_BINDING, CONFIG_MAP, DEFINITION, DEPLOYMENT, JOB, KINDS, NAMESPACE, SECRET},
};
use crate::{
    failure::Failure,
    manifests::{
        self, AGENT, CONFIG_FILE, DIAGNOSER, DIAGNOSER_PROXY_SECRET, EXTENSIONS, GUARD, IDENTITY_SECRET, MANAGED_BY,
        MANAGER, ONBOARDING_SECRET, PROXY_SECRET, UPGRADER,
    },
};

const MANAGED_BY_LABEL: &str = "app.kubernetes.io/managed-by";
/// On a namespace: which run made it.
pub const RUN_ANNOTATION: &str = "towline.io/made-by-run";
/// How long what was deleted may take to go away.
const GONE: Duration = Duration::from_secs(180);

/// Whether a namespace goes with what is in it.
#[derive(Debug, Clone, Copy)]
pub enum Whole<'a> {
    /// The namespace stays.
    Stays,
    /// It goes if this program made it, whichever run.
    IfOurs,
    /// It goes if this run made it.
    Run(&'a str),
}

/// Agents in a cluster.
#[derive(Debug, Clone)]
pub struct Installed {
    /// The namespace that they are in.
    pub namespace: String,
    /// The resource's ARM id, as their configuration has it.
    pub cluster_id: String,
    /// Who installed them: `towline`, or `Helm`.
    pub managed_by: String,
    /// Addresses of the gateway that they belong to.
    pub urls: Vec<String>,
}

impl Installed {
    /// Whether this program installed them.
    pub fn is_ours(&self) -> bool {
        self.managed_by == MANAGED_BY
    }

    /// Whether one of these is an address of their gateway.
    pub fn is_at(&self, urls: &[String]) -> bool {
        let plain = |url: &str| url.trim_end_matches('/').to_ascii_lowercase();
        self.urls.iter().any(|own| urls.iter().any(|url| plain(own) == plain(url)))
    }
}

impl Kubernetes {
    /// The agents that are there, whatever their namespace. Those with a certificate that somebody else made have no
    /// resource, and are not told of.
    pub async fn installed(&self) -> anyhow::Result<Option<Installed>> {
        let labels = format!("app.kubernetes.io/name=towline-agent,app.kubernetes.io/component={AGENT}");
        let maps =
            self.list(&Place::of(CONFIG_MAP, ""), &labels).await.context("cannot look for agents that are there")?;
        if maps.is_empty() {
            return Ok(None);
        }
        // Whoever may write in some namespace can make such a ConfigMap; the agents' rights only the cluster's
        // administrators give. Where these are is where the agents are.
        let bindings = self.list(&Place::of(CLUSTER_ROLE_BINDING, ""), "app.kubernetes.io/name=towline-agent").await;
        let bindings = bindings.context("cannot look for agents that are there")?;
        let has_rights = |namespace: &str| {
            let subjects = bindings.iter().filter_map(|binding| binding["subjects"].as_array()).flatten();
            { subjects }.any(|subject| subject["kind"] == "ServiceAccount" && subject["namespace"] == namespace)
        };
        Ok(maps.iter().find_map(|map| {
            let meta = &map["metadata"];
            meta["namespace"].as_str().filter(|namespace| has_rights(namespace))?;
            let config: toml::Table = map["data"][CONFIG_FILE].as_str()?.parse().ok()?;
            Some(Installed {
                namespace: meta["namespace"].as_str()?.to_owned(),
                cluster_id: config.get("identity")?.get("cluster_id")?.as_str()?.to_owned(),
                managed_by: meta["labels"][MANAGED_BY_LABEL].as_str().unwrap_or_default().to_owned(),
                urls: urls(&config),
            })
        }))
    }

    /// Refuses to change the agents in the middle of an upgrade: it would bring back what it has kept.
    ///
    /// # Errors
    /// While an upgrade is at work.
    pub async fn refuse_during_an_upgrade(&self, namespace: &str) -> Result<(), Failure> {
        let Some(state) = self.upgrade_state(namespace).await? else { return Ok(()) };
        if !state.phase.is_running() {
            return Ok(());
        }
        let error = anyhow!(
            "the agents are being upgraded from version {} to {}, and nothing was changed",
            state.from,
            state.version
        );
        let hint = format!(
            "wait until it has come to its end: kubectl -n {namespace} get configmap {} -o jsonpath={{.data.state}}; or end it: kubectl -n {namespace} delete job {}. What was changed is taken back then; that version counts as failed and is not tried again here",
            state::OBJECT,
            job::NAME
        );
        Err(Failure::from(error).hint(hint))
    }

    /// How far the last upgrade of the agents is; none where there was none, or they do not upgrade themselves.
    pub async fn upgrade_state(&self, namespace: &str) -> anyhow::Result<Option<State>> {
        let place = Place::within(CONFIG_MAP, namespace, state::OBJECT);
        let map = self.get(&place).await.with_context(|| format!("cannot read {place}"))?.unwrap_or_default();
        Ok(map["data"][state::STATE].as_str().and_then(|text| serde_json::from_str(text).ok()))
    }

    /// The onboarding key that is there.
    pub async fn onboarding_key(&self, namespace: &str) -> anyhow::Result<Option<SecretString>> {
        let place = Place::within(SECRET, namespace, ONBOARDING_SECRET);
        let secret = self.get(&place).await.with_context(|| format!("cannot read {place}"))?.unwrap_or_default();
        let bytes = secret["data"]["key.pem"].as_str().and_then(|text| BASE64.decode(text).ok());
        Ok(bytes.and_then(|bytes| String::from_utf8(bytes).ok()).map(SecretString::from))
    }

    /// Removes everything that makes the agents, whoever installed them, and what they made. `force` removes finalizers
    /// of what does not go away. Tells what is left of the namespace.
    pub async fn uninstall(&self, namespace: &str, wait: bool, force: bool) -> anyhow::Result<Vec<Place>> {
        let all = self.everything_there(namespace).await;
        self.remove(&all, namespace, Whole::IfOurs, wait, force).await
    }

    /// The same where others are installed next: the namespace stays, and with it the turn of this run.
    pub async fn uninstall_within(&self, namespace: &str) -> anyhow::Result<()> {
        let all = self.everything_there(namespace).await;
        self.remove(&all, namespace, Whole::Stays, true, false).await.map(drop)
    }

    async fn everything_there(&self, namespace: &str) -> Vec<Place> {
        let mut all = everything(namespace);
        // Objects of the kind go before the kind, and by themselves where a finalizer keeps them.
        let mut made = Vec::new();
        for kind in place::OURS {
            let objects = self.list(&Place::within(kind, namespace, ""), "").await.unwrap_or_default();
            let names = objects.iter().filter_map(|object| object["metadata"]["name"].as_str());
            made.extend(names.map(|name| Place::within(kind, namespace, name)));
        }
        let definition = all.iter().position(|place| place.kind == DEFINITION).unwrap_or(all.len());
        all.splice(definition..definition, made);
        all.extend(self.extension_secrets(namespace).await);
        let others = self.rights_of_other_versions(namespace, &all).await;
        all.extend(others);
        // After the upgrader, which would make it again.
        all.push(Place::within(JOB, namespace, job::NAME));
        all
    }

    /// Rights in the whole cluster that another version of this program gave the agents, and this one does not know: left
    /// behind, they would be those of whoever makes a namespace of this name later.
    async fn rights_of_other_versions(&self, namespace: &str, known: &[Place]) -> Vec<Place> {
        // What agents gave configurations and extensions names no component: these outlive the agents.
        let labels = format!("{MANAGED_BY_LABEL}={MANAGED_BY},app.kubernetes.io/component");
        let prefix = format!("{namespace}:");
        let mut found = Vec::new();
        for kind in [place::CLUSTER_ROLE_BINDING, place::CLUSTER_ROLE] {
            let objects = self.list(&Place::of(kind, ""), &labels).await.unwrap_or_default();
            let names = objects.iter().filter_map(|object| object["metadata"]["name"].as_str());
            let ours = names.filter(|name| name.starts_with(&prefix)).map(|name| Place::of(kind, name));
            found.extend(ours.filter(|place| !known.contains(place)));
        }
        found
    }

    /// What the extension-manager keeps in its namespace: protected settings, and what it knows of the catalogue.
    async fn extension_secrets(&self, namespace: &str) -> Vec<Place> {
        let secrets = self.list(&Place::within(SECRET, namespace, ""), "").await.unwrap_or_default();
        let names = secrets.iter().filter_map(|secret| secret["metadata"]["name"].as_str());
        names.filter(|name| is_extension_secret(name)).map(|name| Place::within(SECRET, namespace, name)).collect()
    }

    /// Deletes what settings of before made, and these manifests have not: roles, a proxy's password.
    pub async fn prune(&self, namespace: &str, applied: &[Value]) -> anyhow::Result<()> {
        let own = [ONBOARDING_SECRET, IDENTITY_SECRET].map(|name| Place::within(SECRET, namespace, name));
        let applied: Vec<Place> = applied.iter().filter_map(Place::of_manifest).chain(own).collect();
        let mut all = everything(namespace);
        if !applied.contains(&Place::within(DEPLOYMENT, namespace, EXTENSIONS)) {
            // Its Deployment is first in the list: what its pod has made goes after it.
            all.extend(self.extension_secrets(namespace).await);
        }
        for place in all.iter().filter(|place| !applied.contains(place)) {
            if self.get(place).await.with_context(|| format!("cannot read {place}"))?.is_some() {
                self.delete(place).await?;
            }
        }
        Ok(())
    }

    /// Deletes objects in this order, and the namespace too if that is meant and nobody else uses it.
    pub async fn remove(
        &self,
        objects: &[Place],
        namespace: &str,
        whole: Whole<'_>,
        wait: bool,
        force: bool,
    ) -> anyhow::Result<Vec<Place>> {
        for place in objects {
            self.delete(place).await?;
        }
        if wait {
            // Objects of our kind go with the kind, after which nobody can be asked for them.
            for place in objects.iter().filter(|place| force || !place::OURS.contains(&place.kind)) {
                self.await_gone(place, GONE, force).await?;
            }
        }
        let place = Place::of(NAMESPACE, namespace);
        let there = self.get(&place).await?;
        let Some(meta) = there.map(|there| there["metadata"].clone()) else { return Ok(Vec::new()) };
        let goes = match whole {
            Whole::Stays => false,
            Whole::IfOurs => meta["labels"][MANAGED_BY_LABEL] == MANAGED_BY,
            Whole::Run(run) => meta["annotations"][RUN_ANNOTATION] == run,
        };
        if !goes {
            return Ok(Vec::new());
        }
        let identity = Place::within(SECRET, namespace, IDENTITY_SECRET);
        if objects.contains(&identity) {
            // A controller-manager that was still there may have made it once more.
            self.delete(&identity).await?;
        }
        let manager = Place::within(DEPLOYMENT, namespace, EXTENSIONS);
        if objects.contains(&manager) {
            for secret in self.extension_secrets(namespace).await {
                self.delete(&secret).await?;
            }
        }
        let left = self.foreign(namespace).await?;
        // Pods of ours that nobody waits for go by themselves.
        let goes = |left: &Place| {
            let ours =
                [AGENT, MANAGER, EXTENSIONS, GUARD, UPGRADER, job::NAME].iter().any(|ours| left.name.starts_with(ours));
            left.kind == place::POD && ours
        };
        let left: Vec<Place> = left.into_iter().filter(|left| !goes(left) && !objects.contains(left)).collect();
        if left.is_empty() {
            // One that was made anew in between is somebody else's.
            self.delete_exactly(&place, meta["uid"].as_str().unwrap_or_default()).await?;
            if wait {
                self.await_gone(&place, GONE, force).await?;
            }
        }
        Ok(left)
    }
}

/// All that may be there by whatever settings, in the order in which it is removed.
fn everything(namespace: &str) -> Vec<Place> {
    let mut values = manifests::Values::default();
    values.azure_rbac.enabled = true;
    values.extensions.enabled = true;
    values.guard.enabled = true;
    values.upgrades.enabled = true;
    values.replicas = values.replicas.max(2);
    let objects = manifests::objects(&values, namespace);
    let mut all: Vec<Place> = objects.iter().filter_map(Place::of_manifest).rev().collect();
    all.extend([ONBOARDING_SECRET, IDENTITY_SECRET, PROXY_SECRET].map(|name| Place::within(SECRET, namespace, name)));
    // A connect that was killed leaves them; the job itself ends, and goes a while after.
    all.push(Place::within(SECRET, namespace, DIAGNOSER_PROXY_SECRET));
    all.push(Place::within(CONFIG_MAP, namespace, DIAGNOSER));
    all
}

/// Whether the name is `extension-catalogue` or `extension-<name>-protected`.
fn is_extension_secret(name: &str) -> bool {
    let protected = name.strip_prefix("extension-").and_then(|name| name.strip_suffix("-protected"));
    name == "extension-catalogue" || protected.is_some_and(|name| !name.is_empty())
}

fn urls(config: &toml::Table) -> Vec<String> {
    let urls = config.get("gateway").and_then(|gateway| gateway.get("urls")?.as_array());
    urls.into_iter().flatten().filter_map(|url| Some(url.as_str()?.to_owned())).collect()
}

/// The kinds that the manifests have, without namespaces.
pub fn kinds() -> impl Iterator<Item = &'static place::Kind> {
    KINDS.iter().filter(|kind| **kind != NAMESPACE)
}

/// The agents in the cluster belong to the resource `cluster_id`, not to the one that the caller named.
pub fn is_elsewhere(cluster_id: &str, hint: &str) -> Failure {
    let (group, name) = group_and_name(cluster_id);
    let error = anyhow!(
        "The current context in the kubeconfig file does not correspond to the connected cluster resource specified. Agents installed on this cluster correspond to the resource group name '{group}' and resource name '{name}'"
    );
    Failure::from(error).hint(hint)
}

/// Resource group and name of an ARM id.
pub fn group_and_name(id: &str) -> (String, String) {
    let words: Vec<&str> = id.split('/').collect();
    let after = |word: &str| words.iter().position(|w| w.eq_ignore_ascii_case(word)).and_then(|at| words.get(at + 1));
    let text = |word: Option<&&str>| word.map_or_else(String::new, |word| (*word).to_owned());
    (text(after("resourceGroups")), text(after("connectedClusters")))
}

/// Says of an object that it is the definition of a kind of ours.
pub fn is_definition(manifest: &Value) -> bool {
    manifest["kind"] == DEFINITION.name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r4_agents_of_another_gateway_are_told_from_those_of_this_one() {
        let config: toml::Table = "[gateway]\nurls = [\"https://gw.example.org/\"]\n".parse().unwrap();
        let there = Installed {
            namespace: "towline".to_owned(),
            cluster_id: String::new(),
            managed_by: MANAGED_BY.to_owned(),
            urls: urls(&config),
        };
        let at = |url: &str| there.is_at(&[url.to_owned()]);
        assert!(at("https://GW.example.org") && !at("https://gw.example.org:8443") && !there.is_at(&[]));
    }
}
