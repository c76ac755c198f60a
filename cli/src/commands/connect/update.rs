//! Another proxy for agents that are there, extensions on or off, and this program's version where that is asked for. All else
//! that they were told stays, their version too; the new pods hold their tunnels through the new proxy before those of
//! before go.

use std::time::Duration;

use anyhow::anyhow;
use secrecy::ExposeSecret;
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
        KubeArgs, Kubernetes,
        installed::{group_and_name, is_definition, is_elsewhere},
        turn::Turn,
    },
    manifests,
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
            wait,
        }))
    }

    /// Extensions and guard, on or off; guard as it is without `guard`.
    pub fn of_features(kube: &'a KubeArgs, guard: Option<bool>, extensions: extensions::Typed, wait: Wait) -> Self {
        Self { kube, typed: Typed::default(), guard, extensions, upgrades: false, wait }
    }
}

/// Gives the agents of a cluster other settings, and waits for the new pods.
pub async fn update_agents(update: Update<'_>, context: &Context, id: &ResourceId) -> Outcome<()> {
    let mut steps = Steps::default();
    let client = context.client()?;
    let settings = steps.run("Asking the gateway what agents need", values::settings(&client)).await?;
    let cluster = steps.run("Reaching the cluster", precheck::reach(update.kube)).await?;
    let installed = steps.run("Looking for agents that are there", precheck::installed(&cluster)).await?;
    let choose = "choose its kubeconfig: --kube-config FILE, --kube-context NAME";
    let Some(there) = installed else {
        return Err(Failure::from(anyhow!("context {} has no agents of {}", cluster.context, id.name())).hint(choose));
    };
    if !is_same(&there.cluster_id, id.as_str()) || !there.is_at(&settings.urls) {
        return Err(is_elsewhere(&group_and_name(&there.cluster_id), choose));
    }
    let namespace = there.namespace.as_str();
    steps.run("Checking rights in the cluster", precheck::may_install(&cluster, namespace, false, false)).await?;
    let mut interrupt = Interrupt::listen()?;
    let mut turn = Turn::new(&cluster, namespace, format!("update {}", id.name()))?;
    let changing = async {
        turn.take().await?;
        change(update, (context, id), (&cluster, namespace), &settings, &mut steps).await
    };
    let changed = interrupt.unless_heard(changing).await;
    turn.give_up().await;
    drop(steps);
    changed.unwrap_or_else(|| {
        say("interrupted: the same command again goes on from here");
        Err(Failure::interrupted())
    })
}

async fn change(
    update: Update<'_>,
    (context, id): (&Context, &ResourceId),
    (cluster, namespace): (&Kubernetes, &str),
    settings: &InstallSettings,
    steps: &mut Steps,
) -> Outcome<()> {
    let kept = cluster.kept(namespace).await?;
    let version = kept.version.clone().filter(|_| !update.upgrades);
    let typed = (update.guard, update.typed, &update.extensions);
    let (mut values, said) = values::again(id.as_str(), kept, version.as_deref(), typed, settings)?;
    values::fit(&mut values, cluster);
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
    for manifest in &manifests {
        let (place, is_new) = cluster.apply(manifest).await?;
        if is_new && is_definition(manifest) {
            cluster.await_established(&place.name, ESTABLISHED).await?;
        }
    }
    cluster.prune(namespace, &manifests).await?;
    cluster.restart_gitops(namespace, &manifests).await?;
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
        hint: "agents of before hold their tunnel until new ones have one: towline update again with what is right, or towline troubleshoot",
    };
    waiting.until(steps, async || status(&api, id).await).await?;
    steps.end("connected");
    Ok(())
}
