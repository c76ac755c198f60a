//! Another proxy for agents that are there, extensions on or off, and this program's version where that is asked for. All else
//! that they were told stays, their version too; the new pods hold their tunnels through the new proxy before those of
//! before go.

use std::time::Duration;

use agent::roles::upgrader::judge;
use anyhow::anyhow;
use secrecy::ExposeSecret;
use serde_json::Value;
use types::{
    agent_api::InstallSettings,
    api::{ResourceId, id::is_same},
};

use super::{
    extensions,
    install::ESTABLISHED,
    precheck,
    proxy::{AgentProxyArgs, Typed},
    values,
    wait::{Waiting, status},
};
use crate::{
    api::{Api, Wait},
    commands::{interrupt::Interrupt, steps::Steps},
    context::Context,
    failure::{Failure, Outcome},
    kubernetes::{
        KubeArgs, Kubernetes, Place,
        compare::{is_changed, to_apply_again},
        installed::{Installed, is_definition, is_elsewhere},
        place::{DEPLOYMENT, SECRET},
        turn::Turn,
    },
    manifests::{self, UPGRADER},
    terminal::say,
};

/// What is asked of the agents of a cluster.
pub struct Update<'a> {
    kube: &'a KubeArgs,
    typed: Typed,
    guard: Option<bool>,
    extensions: extensions::Typed,
    /// Whether they become this program's version too.
    upgrades: bool,
    /// Whether only that is made which an upgrade in the cluster may not give.
    rights_only: bool,
    /// Whether the old objects come back where the new agents do not connect in time.
    goes_back: bool,
    wait: Wait,
}

impl<'a> Update<'a> {
    /// Reads it; none if nothing was typed.
    ///
    /// # Errors
    /// When it cannot be meant.
    pub fn read(kube: &'a KubeArgs, proxy: &AgentProxyArgs, upgrades: bool, wait: Wait) -> Outcome<Option<Self>> {
        let typed = Typed::read(proxy)?;
        let is_asked = upgrades || !typed.is_nothing();
        Ok(is_asked.then(|| Self {
            kube,
            typed,
            guard: None,
            extensions: extensions::Typed::default(),
            upgrades,
            rights_only: false,
            goes_back: false,
            wait,
        }))
    }

    /// Extensions and guard, on or off; guard as it is without `guard`.
    pub fn of_features(kube: &'a KubeArgs, guard: Option<bool>, extensions: extensions::Typed, wait: Wait) -> Self {
        let typed = Typed::default();
        Self { kube, typed, guard, extensions, upgrades: false, rights_only: false, goes_back: false, wait }
    }

    /// This program's version, and the old one again where that does not connect in time; or only what agents that wait
    /// for rights wait for.
    pub fn of_upgrade(kube: &'a KubeArgs, rights_only: bool, wait: Wait) -> Self {
        let (typed, extensions) = (Typed::default(), extensions::Typed::default());
        Self { kube, typed, guard: None, extensions, upgrades: true, rights_only, goes_back: true, wait }
    }
}

/// Whether the agents of a cluster upgrade themselves.
pub async fn has_upgrader(kube: &KubeArgs, context: &Context, id: &ResourceId) -> Outcome<bool> {
    let settings = values::settings(&context.client()?).await?;
    let cluster = precheck::reach(kube).await?;
    let there = belonging(&cluster, precheck::installed(&cluster).await?, &settings, id)?;
    let place = Place::within(DEPLOYMENT, &there.namespace, UPGRADER);
    let upgrader = cluster.get(&place).await.map_err(|error| anyhow!(error).context(format!("cannot read {place}")))?;
    Ok(upgrader.is_some())
}

/// The agents that are there, if they are this cluster's.
fn belonging(
    cluster: &Kubernetes,
    installed: Option<Installed>,
    settings: &InstallSettings,
    id: &ResourceId,
) -> Outcome<Installed> {
    let choose = "choose its kubeconfig: --kube-config FILE, --kube-context NAME";
    let Some(there) = installed else {
        return Err(Failure::from(anyhow!("context {} has no agents of {}", cluster.context, id.name())).hint(choose));
    };
    if !is_same(&there.cluster_id, id.as_str()) || !there.is_at(&settings.urls) {
        return Err(is_elsewhere(&there.cluster_id, choose));
    }
    Ok(there)
}

/// Gives the agents of a cluster other settings, and waits for the new pods.
pub async fn update_agents(update: Update<'_>, context: &Context, id: &ResourceId) -> Outcome<()> {
    let mut steps = Steps::default();
    let client = context.client()?;
    let settings = steps.run("Asking the gateway what agents need", values::settings(&client)).await?;
    let cluster = steps.run("Reaching the cluster", precheck::reach(update.kube)).await?;
    let installed = steps.run("Looking for agents that are there", precheck::installed(&cluster)).await?;
    let there = belonging(&cluster, installed, &settings, id)?;
    if update.goes_back && !there.is_ours() {
        let error = anyhow!("{} installed the agents of {}, and upgrades them", there.managed_by, id.name());
        return Err(Failure::from(error).hint("helm upgrade, with the chart of the new version"));
    }
    let namespace = there.namespace.as_str();
    steps.run("Checking rights in the cluster", precheck::may_install(&cluster, namespace, false, false)).await?;
    let mut interrupt = Interrupt::listen()?;
    let mut turn = Turn::new(&cluster, namespace, format!("update {}", id.name()))?;
    let changing = async {
        turn.take().await?;
        let at = At { context, id, cluster: &cluster, namespace };
        change(update, at, &settings, &mut steps).await
    };
    let changed = interrupt.unless_heard(changing).await;
    turn.give_up().await;
    drop(steps);
    changed.unwrap_or_else(|| {
        say("interrupted: run the same command again to continue from here");
        Err(Failure::interrupted())
    })
}

/// The cluster as the gateway has it, and where its agents are.
#[derive(Clone, Copy)]
struct At<'a> {
    context: &'a Context,
    id: &'a ResourceId,
    cluster: &'a Kubernetes,
    namespace: &'a str,
}

async fn change(mut update: Update<'_>, at: At<'_>, settings: &InstallSettings, steps: &mut Steps) -> Outcome<()> {
    let At { id, cluster, namespace, .. } = at;
    cluster.refuse_during_an_upgrade(namespace).await?;
    let kept = cluster.kept(namespace).await?;
    if update.upgrades {
        may_become_ours(kept.version.as_deref())?;
    }
    let version = kept.version.clone().filter(|_| !update.upgrades);
    let (guard, proxy) = (update.guard, std::mem::take(&mut update.typed));
    let again = values::again(id.as_str(), kept, version.as_deref(), guard, proxy, &update.extensions, settings);
    let (mut values, said) = again?;
    values::fit(&mut values, cluster.minor);
    precheck::may_extend(cluster, &values).await?;
    said.iter().for_each(|line| steps.note(line));
    if let Some(key) = cluster.onboarding_key(namespace).await? {
        values.identity.onboarding_key = key.expose_secret().into();
    }
    steps.begin("Changing the agents");
    let mut manifests = manifests::objects(&values, namespace);
    if let Some(version) = &version {
        manifests::relabel(&mut manifests, version);
    }
    if update.rights_only {
        give_rights(cluster, &manifests).await?;
        steps.end("done");
        return Ok(());
    }
    let before = if update.goes_back { before(cluster, &manifests).await? } else { Vec::new() };
    let changed = apply_and_wait(&update, at, &manifests, steps).await;
    let Err(failure) = changed else {
        if update.goes_back {
            cluster.prune(namespace, &manifests).await?;
        }
        return Ok(());
    };
    if !update.goes_back {
        return Err(failure);
    }
    steps.begin("Giving the agents their old version again");
    for (place, there) in before {
        match there {
            Some(there) => drop(cluster.apply(&there).await?),
            None => cluster.delete(&place).await?,
        }
    }
    steps.end("done");
    Err(failure.hint("the agents have their old version again; what kept the new one from connecting stands above"))
}

/// The objects as they are, of those that are to be applied, so that they can be applied again.
async fn before(cluster: &Kubernetes, manifests: &[Value]) -> Outcome<Vec<(Place, Option<Value>)>> {
    let mut all = Vec::new();
    for manifest in manifests {
        let Some(place) = Place::of_manifest(manifest) else { continue };
        let there =
            cluster.get(&place).await.map_err(|error| anyhow!(error).context(format!("cannot read {place}")))?;
        all.push((place, there.as_ref().map(to_apply_again)));
    }
    Ok(all)
}

/// What an upgrade in the cluster may not give: all kinds that it does not change, and what is not there.
async fn give_rights(cluster: &Kubernetes, manifests: &[Value]) -> Outcome<()> {
    for manifest in manifests {
        let Some(place) = Place::of_manifest(manifest) else { continue };
        let there =
            cluster.get(&place).await.map_err(|error| anyhow!(error).context(format!("cannot read {place}")))?;
        if there.is_some() && (is_changed(manifest) || place.kind == SECRET) {
            continue;
        }
        cluster.apply(&only_more(manifest, there.as_ref())).await?;
        if is_definition(manifest) {
            cluster.await_established(&place.name, ESTABLISHED).await?;
        }
    }
    Ok(())
}

/// An object as an administrator gives it before an upgrade: rights that are there stay, because the version that runs may
/// need them and may have to come back; and pods of a new Deployment start only with the upgrade, which watches them.
fn only_more(manifest: &Value, there: Option<&Value>) -> Value {
    let mut given = manifest.clone();
    match (manifest["kind"].as_str().unwrap_or_default(), there) {
        ("Role" | "ClusterRole", Some(there)) => {
            let Some(rules) = given["rules"].as_array_mut() else { return given };
            for rule in there["rules"].as_array().into_iter().flatten() {
                if !rules.contains(rule) {
                    rules.push(rule.clone());
                }
            }
        }
        ("Deployment", None) => given["spec"]["replicas"] = 0.into(),
        _ => {}
    }
    given
}

async fn apply_and_wait(update: &Update<'_>, at: At<'_>, manifests: &[Value], steps: &mut Steps) -> Outcome<()> {
    let At { context, id, cluster, namespace } = at;
    for manifest in manifests {
        let (place, is_new) = cluster.apply(manifest).await?;
        if is_new && is_definition(manifest) {
            cluster.await_established(&place.name, ESTABLISHED).await?;
        }
    }
    // What the old version alone needs must be there if it has to come back.
    if !update.goes_back {
        cluster.prune(namespace, manifests).await?;
    }
    cluster.restart_gitops(namespace, manifests).await?;
    steps.end("done");
    if update.wait.none {
        return Ok(());
    }
    steps.begin("Waiting for the new agents to connect");
    let api = Api::of(context)?;
    let waiting = Waiting {
        cluster,
        namespace,
        within: update.wait.limit.max(Duration::from_secs(1)),
        hint: "the previous agents keep their tunnel until the new ones have one: run towline update again with the right values, or towline troubleshoot",
    };
    waiting.until(steps, async || status(&api, id).await).await?;
    steps.end("connected");
    Ok(())
}

/// Whether agents that are there may become this program's version.
///
/// # Errors
/// When that goes back too far.
fn may_become_ours(there: Option<&str>) -> Outcome<()> {
    let Some(there) = there else { return Ok(()) };
    judge::may_follow(there, manifests::version())
        .map_err(|why| Failure::from(anyhow!(why)).hint(format!("use towline of version {there} or of a newer one")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn u1_rights_before_an_upgrade_are_added_and_none_is_taken() {
        let role = |rules: Value| json!({"kind": "Role", "metadata": {"name": "a"}, "rules": rules});
        let rule = |verb: &str| json!({"apiGroups": [""], "resources": ["secrets"], "verbs": [verb]});
        let given =
            only_more(&role(json!([rule("get"), rule("list")])), Some(&role(json!([rule("watch"), rule("get")]))));
        assert_eq!(given["rules"], json!([rule("get"), rule("list"), rule("watch")]));
        assert_eq!(only_more(&role(json!([rule("get")])), None)["rules"], json!([rule("get")]));
        let new = json!({"kind": "Deployment", "spec": {"replicas": 2}});
        assert_eq!(only_more(&new, None)["spec"]["replicas"], 0);
    }

    #[test]
    fn u3_agents_that_are_much_newer_stay_what_they_are() {
        assert!(may_become_ours(None).is_ok() && may_become_ours(Some(manifests::version())).is_ok());
        assert!(may_become_ours(Some("0.99.0")).is_err());
    }
}
