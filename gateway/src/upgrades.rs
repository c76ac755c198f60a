//! Automatic upgrades of clusters' agents (docs/features.md U1; docs/upgrades.md): which cluster is to have which version
//! of the catalogue's type `towline.agent`, in waves over the fleet. The version is noted in the cluster's resource, from
//! where agents are told it (`types::agent_api::Desired`). Agents fetch the release, verify it by the keys that the
//! cluster pinned, and tell what came of it.
//!
//! What is decided follows from what is kept ([`plan`]), and every note is written only if the resource is still the one
//! that was read. So several replicas may look at the same time.

pub mod plan;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use ::catalogue::index::ExtensionType;
use daemon::Shutdown;
use futures_util::future::join_all;
use serde_json::Value;
use types::{ids::ClusterId, instants};

use self::plan::{Change, Member, Offer, Phase, Plan, Said};
use crate::{
    aside::aside,
    cluster::upgrade::{self, Noted, TYPE},
    connectivity::Status,
    control::Control,
    metrics::Metrics,
    resources::connected_cluster,
    skew,
    store::{
        agents::Agent,
        batch::{Batch, Expect},
        resources::{PAGE_ROWS, Stored},
    },
    stored::{properties, properties_mut},
};

/// How often it is looked what is to be done.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// Notes that are written at once, and by one look at most.
const AT_ONCE: usize = 16;
const NOTES: usize = 1024;
/// How often a pause is tried that meets what somebody else says at the same moment.
const PAUSE_TRIES: u32 = 16;

/// Keeps looking until the gateway drains.
pub async fn run(control: Arc<Control>, metrics: Arc<Metrics>, shutdown: Shutdown) {
    let mut every = tokio::time::interval(LOOK_EVERY);
    every.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    // A gateway whose catalogue has no agents has nothing to look for, once nothing is noted any more.
    let mut is_idle = false;
    loop {
        tokio::select! {
            biased;
            () = shutdown.draining() => return,
            _ = every.tick() => {}
        }
        let offers = offers(&control);
        if is_idle && !offers {
            continue;
        }
        match look(&control, &metrics).await {
            Ok(plan) => is_idle = !offers && plan.changes.is_empty(),
            Err(error) => tracing::error!(error, "upgrades of agents cannot go on; they are tried again"),
        }
    }
}

/// Whether the catalogue has agents.
fn offers(control: &Control) -> bool {
    control.catalogue().is_some_and(|index| index.types.iter().any(|kind| kind.name == TYPE))
}

/// Looks once at all clusters, and notes which version each is to have.
///
/// # Errors
/// The store cannot be read.
pub async fn look(control: &Arc<Control>, metrics: &Metrics) -> Result<Plan, String> {
    let planned = planned(control).await?;
    for phase in Phase::ALL {
        metrics.upgrade_clusters(phase.as_str(), planned.plan.count(phase));
    }
    carry_out(control, &planned).await?;
    Ok(planned.plan)
}

/// Notes what was planned, unless an operator has said something since: the next look decides by that.
pub(crate) async fn carry_out(control: &Control, planned: &Planned) -> Result<(), String> {
    let changes = &planned.plan.changes;
    for some in changes[..changes.len().min(NOTES)].chunks(AT_ONCE) {
        let noting = some.iter().map(|change| note(control, change, &planned.revisions, planned.kept.as_ref()));
        for done in join_all(noting).await {
            done?;
        }
    }
    Ok(())
}

/// How far everything is, for operators.
///
/// # Errors
/// The store cannot be read.
pub async fn status(control: &Control) -> Result<Value, String> {
    let planned = planned(control).await?;
    Ok(planned.plan.status(&control.settings.upgrades, &Said::of(planned.kept.as_ref())))
}

/// No cluster gets another version once this has returned, by whatever replica; what has begun comes to its end.
///
/// # Errors
/// The store cannot be written.
pub async fn pause(control: &Control) -> Result<(), String> {
    for _ in 0..PAUSE_TRIES {
        let kept = control.store.upgrades().await.map_err(|error| daemon::chain(&error))?;
        let said = Said { paused: true, ..Said::of(kept.as_ref()) };
        // Whatever is said meanwhile, it is paused.
        if control.store.put_upgrades(kept.as_ref(), &said.kept()).await.map_err(|error| daemon::chain(&error))? {
            return Ok(());
        }
    }
    Err("others keep saying something else of upgrades".to_owned())
}

/// It goes on, also past the failures that there are so far. Clusters that were left alone with a version get it again,
/// where their agents do not tell of its failure any more. False where somebody has said something meanwhile, such as to
/// pause it: then that holds, and nothing has changed.
///
/// # Errors
/// The store cannot be read or written.
pub async fn resume(control: &Control) -> Result<bool, String> {
    let planned = planned(control).await?;
    resume_as(control, &planned).await
}

pub(crate) async fn resume_as(control: &Control, planned: &Planned) -> Result<bool, String> {
    let said = planned.plan.resumed().kept();
    if !control.store.put_upgrades(planned.kept.as_ref(), &said).await.map_err(|error| daemon::chain(&error))? {
        return Ok(false);
    }
    for change in planned.plan.tried_again().iter().take(NOTES) {
        note(control, change, &planned.revisions, Some(&said)).await?;
    }
    Ok(true)
}

/// What is to be done.
pub(crate) struct Planned {
    plan: Plan,
    /// Of the resources that change; of the resources themselves each may have 256 KiB.
    revisions: HashMap<String, i64>,
    /// What operators had said.
    kept: Option<Value>,
}

/// Looks at all clusters.
pub(crate) async fn planned(control: &Control) -> Result<Planned, String> {
    let chain = |error| daemon::chain(&error);
    let kept = control.store.upgrades().await.map_err(chain)?;
    let (now_ms, mut members, mut all) = (control.now_ms(), Vec::new(), HashMap::new());
    let kind = connected_cluster::NAME.to_ascii_lowercase();
    let mut after = String::new();
    loop {
        let page = control.store.page_with_agents(&kind, "", &after, PAGE_ROWS).await.map_err(chain)?;
        for (stored, agent) in page.rows {
            if let Some(member) = agent.as_ref().and_then(|agent| member(control, &stored, agent, now_ms)) {
                members.push(member);
                all.insert(stored.key, stored.revision);
            }
        }
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    let others = control.replicas().map(|replicas| replicas.others());
    let others: Vec<String> = others.iter().flat_map(|all| all.iter().map(|one| one.version.clone())).collect();
    let (index, settings, so_far) = (control.catalogue(), control.settings.upgrades.clone(), Said::of(kept.as_ref()));
    // All clusters of all tenants in one piece.
    let planning = aside(move || {
        let offered = index
            .as_ref()
            .and_then(|index| index.types.iter().find(|kind| kind.name == TYPE))
            .map(|kind| served(kind, &others));
        let offer = match (&index, &offered) {
            (None, _) => Offer::Unknown,
            (Some(_), None) => Offer::Nothing,
            (Some(_), Some(kind)) => Offer::Of(kind),
        };
        let plan = plan::plan(&members, offer, &settings, &so_far, now_ms);
        let changed: HashSet<&str> =
            plan.changes.iter().chain(plan.tried_again()).map(|one| one.key.as_str()).collect();
        all.retain(|key, _| changed.contains(key.as_str()));
        (plan, all)
    });
    let (plan, revisions) = planning.await.map_err(|error| error.to_string())?;
    Ok(Planned { plan, revisions, kept })
}

/// Of the catalogue's versions those that this gateway serves, and all other replicas (their versions). A newer one waits
/// for an upgrade of them all, and is noted for nobody before that: its agents may come to any of them.
fn served(kind: &ExtensionType, others: &[String]) -> ExtensionType {
    let mut kind = kind.clone();
    kind.versions.retain(|release| {
        let version = release.version.number().to_string();
        let mut all = std::iter::once(skew::OWN).chain(others.iter().map(String::as_str));
        all.all(|gateway| skew::between(&version, gateway).refused().is_none())
    });
    kind
}

/// A cluster whose agents are the gateway's to upgrade: one that the API manages and that has agents.
fn member(control: &Control, stored: &Stored, agent: &Agent, now_ms: i64) -> Option<Member> {
    let id: ClusterId = stored.id.parse().ok()?;
    let is_provisioned = stored.body.get("kind").is_some_and(|kind| kind == "ProvisionedCluster");
    if stored.is_deleting() || agent.agentless || is_provisioned || !control.decides_about(&id) {
        return None;
    }
    let own = stored.body.as_object().and_then(properties)?;
    let noted = Noted::of(own);
    let milliseconds = |time: &Option<String>| {
        let time = instants::parse(time.as_deref()?).ok()?;
        Some(time.unix_timestamp() * 1000)
    };
    let fact = |name: &str| agent.facts.get(name).and_then(Value::as_str);
    let live = control.is_live(&id.key());
    Some(Member {
        key: stored.key.clone(),
        id: stored.id.clone(),
        is_automatic: upgrade::is_automatic(own),
        is_connected: Status::of(agent, live, now_ms) == Status::Connected,
        running: fact("agentVersion").and_then(|text| text.parse().ok()),
        kubernetes: fact("kubernetesVersion").and_then(|text| text.parse().ok()),
        distribution: fact("distribution").map(str::to_owned),
        since_ms: milliseconds(&noted.since),
        begun_ms: milliseconds(&noted.begun),
        told: upgrade::told(&agent.facts),
        noted,
    })
}

/// Writes what is to be noted, unless somebody has changed the resource, or `said` something else of upgrades: then the
/// next look decides again.
async fn note(
    control: &Control,
    change: &Change,
    revisions: &HashMap<String, i64>,
    said: Option<&Value>,
) -> Result<(), String> {
    let stored = control.store.get(&change.key).await.map_err(|error| daemon::chain(&error))?;
    let is_as_read = |stored: &Stored| revisions.get(&stored.key) == Some(&stored.revision);
    let Some(mut stored) = stored.filter(is_as_read) else { return Ok(()) };
    let revision = stored.revision;
    let Some(body) = stored.body.as_object_mut() else { return Ok(()) };
    let before = Noted::of(properties_mut(body));
    change.noted.keep(properties_mut(body));
    let id = stored.id.clone();
    let puts = vec![(stored, Expect::Revision(revision))];
    let batch = Batch { puts, said: Some(said.cloned()), ..Batch::default() };
    if control.write(&batch).await.map_err(|error| daemon::chain(&error))?.is_ok() {
        let Noted { target, left, why, .. } = &change.noted;
        tracing::info!(
            cluster.id = id,
            before = before.target,
            target,
            left,
            why,
            "another version is noted for a cluster's agents"
        );
    }
    Ok(())
}
