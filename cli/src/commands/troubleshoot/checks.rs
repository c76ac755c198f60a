//! The checks, by the names of `az connectedk8s troubleshoot`. What one of them finds goes into the archive.

use std::time::{Duration, SystemTime};

use agent::roles::upgrader::{
    job,
    state::{Phase, State as Upgrade},
};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use certs::Credentials;
use daemon::chain;
use http::StatusCode;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;
use time::OffsetDateTime;
use types::{
    api::{ResourceId, id::is_same},
    instants::{self, rfc3339_seconds},
};

use super::{Bundle, Diagnoser, Finding, Job, State, guard};
use crate::{
    api::{Api, ApiError, at, versions},
    commands::{address, diagnoser::WITHIN, known, left, target::Target},
    failure::Failure,
    kubeconfig::AddressForm,
    kubernetes::{
        self, Kubernetes, Place,
        apply::why_there,
        contexts_of,
        installed::group_and_name,
        place::{
            CONFIG_MAP, CONNECTED_CLUSTER, DEPLOYMENT, EXTENSION_CONFIG, FLUX_CONFIG, GIT_CONFIG, JOB, NAMESPACE, POD,
            SECRET,
        },
        pods::PODS,
        turn::Turn,
    },
    manifests::{self, AGENT, EXTENSIONS, GUARD, IDENTITY_SECRET, MANAGER, UPGRADER, VERSION_LABEL},
    terminal::say,
};

/// Lines of a pod's log that are kept.
const LOG_LINES: i64 = 5000;
/// A certificate that ends sooner is said to.
const DAYS_LEFT: i64 = 7;
/// How long a Deployment may take until a pod of it is ready.
const STARTS_WITHIN: time::Duration = time::Duration::minutes(3);
/// Minor versions that agents may be behind.
const MINORS_BEHIND: u64 = 2;

/// All of them. None ends the others.
pub async fn run(
    api: &Api,
    id: &ResourceId,
    cluster: &Kubernetes,
    target: &Target,
    bundle: &mut Bundle,
    job: &mut Job,
) -> Vec<Finding> {
    let mut all = Vec::new();
    let reached = info(cluster, bundle).await;
    let is_reached = reached.state == State::Passed;
    all.push(reached);
    let (finding, resource) = resource(api, id, bundle).await;
    all.push(finding);
    all.push(judge_forms(&address::try_all(target).await, &contexts_of(&target.key), id));
    let namespace = if is_reached { agents(id, cluster, resource.is_some(), &mut all).await } else { None };
    if let Some(namespace) = &namespace {
        all.push(logs(cluster, namespace, bundle).await);
        all.push(events(cluster, namespace, bundle).await);
        all.push(deployments(cluster, namespace, bundle).await);
        all.push(states(cluster, namespace, bundle).await);
        all.push(upgrade(cluster, namespace, bundle).await);
        all.push(certificate(cluster, namespace).await);
        all.push(users_way(cluster, namespace).await);
        if resource.is_some() {
            all.push(left_behind(api, id, cluster, namespace).await);
        }
        guard::run(cluster, namespace, &mut all).await;
    }
    if let Some(resource) = &resource {
        all.push(expiry(resource));
        all.push(version(resource));
    }
    if let Some(namespace) = &namespace {
        all.push(network(cluster, namespace, bundle, job).await);
    }
    all
}

async fn info(cluster: &Kubernetes, bundle: &mut Bundle) -> Finding {
    const NAME: &str = "kubectl_cluster_info";
    match cluster.version().await {
        Ok(version) => {
            let text = format!("{} at {} (context {})", version.text, cluster.server, cluster.context);
            bundle.put("k8s_cluster_info.txt", &text);
            Finding::new(NAME, State::Passed, text)
        }
        Err(error) => Finding::new(NAME, State::Failed, format!("{}: {error:#}", cluster.server))
            .remedy("kubectl version must work with the same kubeconfig: --kube-config FILE, --kube-context NAME; what is in the cluster was not looked at"),
    }
}

async fn resource(api: &Api, id: &ResourceId, bundle: &mut Bundle) -> (Finding, Option<Value>) {
    const NAME: &str = "fetch_connected_cluster_resource";
    match api.get(&at(id, versions::CLUSTERS)).await {
        Ok(resource) => {
            bundle.put("connected_cluster_resource_snapshot.txt", &format!("{resource:#}"));
            let status = resource["properties"]["connectivityStatus"].as_str().unwrap_or("unknown");
            let state = if status == "Connected" { State::Passed } else { State::Failed };
            let mut finding = Finding::new(NAME, state, format!("connectivityStatus is {status}"));
            if let Some(remedy) = remedy_of(status) {
                finding = finding.remedy(remedy);
            }
            for error in resource["properties"]["arcAgentProfile"]["agentErrors"].as_array().into_iter().flatten() {
                finding.remedies.extend(error["message"].as_str().map(str::to_owned));
            }
            (finding, Some(resource))
        }
        Err(failure) => (judge_absence(NAME, &failure), None),
    }
}

/// Why the resource could not be read. What the gateway says is the reason, and not which request it says it to.
fn judge_absence(name: &'static str, failure: &Failure) -> Finding {
    let refused = ApiError::behind(failure);
    let detail = refused.map_or_else(|| format!("{:#}", failure.error()), ApiError::reason);
    let remedy = match refused {
        Some(error) if error.status == StatusCode::NOT_FOUND => {
            "towline list shows which clusters there are; if this one was deleted, towline connect makes it again"
                .to_owned()
        }
        _ => {
            let known = failure.advice().map(str::to_owned).or_else(|| refused.and_then(ApiError::hint));
            known.unwrap_or_else(|| "see whether the gateway runs, and how this machine reaches it".to_owned())
        }
    };
    Finding::new(name, State::Failed, detail).remedy(remedy)
}

/// How the last upgrade of the agents went.
async fn upgrade(cluster: &Kubernetes, namespace: &str, bundle: &mut Bundle) -> Finding {
    let state = match cluster.upgrade_state(namespace).await {
        Ok(state) => state,
        Err(error) => return Finding::new(UPGRADE, State::Incomplete, format!("{error:#}")),
    };
    if let Some(state) = &state {
        bundle.put("agent_upgrade.txt", &format!("{:#}", serde_json::json!(state)));
    }
    let place = Place::within(DEPLOYMENT, namespace, AGENT);
    let installed = match cluster.get(&place).await {
        Ok(there) => there.unwrap_or_default()["metadata"]["labels"][VERSION_LABEL].as_str().map(str::to_owned),
        Err(_) => None,
    };
    let now = SystemTime::now();
    let (mut obstacle, mut minutes) = (None, UPGRADE_MINUTES);
    if let Some(state) = state.as_ref().filter(|state| state.phase.is_running()) {
        let of_job = cluster.get(&Place::within(JOB, namespace, UPGRADE_JOB)).await.ok().flatten();
        minutes = upgrade_minutes(&of_job.unwrap_or_default());
        obstacle = cluster.obstacle_of_job(namespace, UPGRADE_JOB).await;
        if obstacle.is_none() {
            let its = format!("app.kubernetes.io/name={UPGRADE_JOB}");
            let pods = cluster.list(&Place::within(POD, namespace, ""), &its).await.unwrap_or_default();
            obstacle = held_up(pods, minutes_of(state, now) > minutes && !state.is_tried_again, now);
        }
    }
    judge_upgrade(state.as_ref(), installed.as_deref(), obstacle.as_deref(), minutes, now)
}

/// What the upgrader sees in the pods of its Job, beyond what holds up any Job: a machine that is lost, an image that
/// cannot be pulled, and of one that is late also a container that does not come to its end.
fn held_up(pods: Vec<Value>, is_late: bool, now: SystemTime) -> Option<String> {
    let pods = pods.into_iter().filter_map(|pod| serde_json::from_value::<Pod>(pod).ok());
    // One that is deleted goes by itself in seconds.
    let is_just_going = |pod: &Pod| {
        let deleted = pod.metadata.deletion_timestamp.as_ref().map(|time| SystemTime::from(time.0));
        deleted.is_some_and(|deleted| now < deleted + GOING)
    };
    let pods: Vec<Pod> = pods.filter(|pod| !is_just_going(pod)).collect();
    // A container that failed once is followed by another one.
    let trouble = job::trouble(&pods).filter(|trouble| trouble.is_final || trouble.reason != "DoesNotStart");
    let trouble = trouble.or_else(|| (is_late && !pods.is_empty()).then(|| job::unended(&pods, &[])));
    trouble.map(|trouble| trouble.message)
}

/// How long a pod may be on its way out.
const GOING: Duration = Duration::from_secs(60);

/// After how many minutes an upgrade counts as held up: by the times that this one has, which its Job names.
fn upgrade_minutes(of_job: &Value) -> i64 {
    let deadline = of_job["spec"]["activeDeadlineSeconds"].as_u64().unwrap_or_default();
    let usual = job::usual_max(Duration::from_secs(deadline)).as_secs() / 60;
    UPGRADE_MINUTES.max(i64::try_from(usual).unwrap_or(UPGRADE_MINUTES))
}

fn minutes_of(state: &Upgrade, now: SystemTime) -> i64 {
    instants::parse(&state.time).map_or(0, |since| (OffsetDateTime::from(now) - since).whole_minutes())
}

const UPGRADE: &str = "agent_upgrade_check";
const UPGRADE_JOB: &str = job::NAME;

/// An upgrade that runs longer is held up, and later one whose times are longer: three stages of new pods, and the way back, by the times that upgrades have
/// where nobody has set others.
const UPGRADE_MINUTES: i64 = 90;

/// `installed`: the version that the agents' objects name; `obstacle`: what holds up the Job of one that runs; `longest`:
/// minutes that it may run.
fn judge_upgrade(
    state: Option<&Upgrade>,
    installed: Option<&str>,
    obstacle: Option<&str>,
    longest: i64,
    now: SystemTime,
) -> Finding {
    let Some(state) = state else {
        return Finding::new(UPGRADE, State::Passed, "no upgrade of the agents was begun");
    };
    let said = format!("version {} of the agents: {} since {}", state.version, state.phase.word(), state.time);
    // Somebody has upgraded by hand since: what came of this one is of no interest any more. Of one that failed, objects of
    // both versions may be left.
    let is_other =
        |version: &&str| *version != state.from && (state.phase != Phase::Failed || *version != state.version);
    if let Some(version) = installed.filter(is_other).filter(|_| !state.phase.is_running()) {
        return Finding::new(UPGRADE, State::Passed, format!("{said}; the agents have version {version} by now"));
    }
    match state.phase {
        Phase::Succeeded => Finding::new(UPGRADE, State::Passed, said),
        Phase::Preparing | Phase::Applying | Phase::Undoing => {
            // One that was tried again has waited since then.
            let is_late = minutes_of(state, now) > longest && !state.is_tried_again;
            match obstacle {
                None if !is_late => Finding::new(UPGRADE, State::Passed, said),
                obstacle => {
                    let why = obstacle.unwrap_or("it is longer at work than an upgrade takes");
                    let remedy = format!(
                        "remove what holds up the Job {UPGRADE_JOB} (kubectl describe job {UPGRADE_JOB}). To end it, delete the Job: what has not begun is given up, and what has is taken back"
                    );
                    Finding::new(UPGRADE, State::Failed, format!("{said}: {why}")).remedy(remedy)
                }
            }
        }
        Phase::Waiting | Phase::RolledBack | Phase::Failed => {
            Finding::new(UPGRADE, State::Failed, format!("{said} ({})", state.reason)).remedy(state.message.clone())
        }
    }
}

/// What to do about a cluster that is not connected; of agents that are there, the checks of their pods say it.
fn remedy_of(status: &str) -> Option<&'static str> {
    match status {
        "AgentNotInstalled" => Some("towline connect with this name and group installs agents for the resource"),
        "Expired" => Some("towline connect with this name and group gives the agents another certificate"),
        _ => None,
    }
}

/// Whether users' kubeconfigs lead to the cluster: each form of address that was tried, and the contexts of this user.
fn judge_forms(
    tried: &[(AddressForm, Result<(), String>)],
    used: &[(String, AddressForm)],
    id: &ResourceId,
) -> Finding {
    const NAME: &str = "address_form_check";
    let word = |form: AddressForm| match form {
        AddressForm::Name => "name",
        AddressForm::Path => "path",
        AddressForm::Host => "host",
    };
    let works = |form: AddressForm| tried.iter().any(|(tried, result)| *tried == form && result.is_ok());
    let mut said: Vec<String> = tried
        .iter()
        .map(|(form, result)| match result {
            Ok(()) => format!("{} works", word(*form)),
            Err(why) => format!("{} does not: {why}", word(*form)),
        })
        .collect();
    let Some((best, _)) = tried.iter().find(|(_, result)| result.is_ok()) else {
        return Finding::new(NAME, State::Failed, said.join("; ")).remedy(
            "the gateway is not reached as users reach it: look at its address, its certificate and what is in between",
        );
    };
    let broken: Vec<_> = used.iter().filter(|(_, form)| !works(*form)).collect();
    if broken.is_empty() {
        said.extend(used.iter().map(|(context, form)| format!("context {context} has {}", word(*form))));
        return Finding::new(NAME, State::Passed, said.join("; "));
    }
    let broken: Vec<_> =
        { broken }.iter().map(|(context, form)| format!("context {context} has {}", word(*form))).collect();
    Finding::new(NAME, State::Failed, format!("{}; {}", broken.join("; "), said.join("; "))).remedy(format!(
        "write the kubeconfig again: towline kubeconfig -n {} -g {} --address {}",
        id.name(),
        id.resource_group().unwrap_or_default(),
        word(*best)
    ))
}

/// Where the agents are.
async fn agents(id: &ResourceId, cluster: &Kubernetes, has_resource: bool, all: &mut Vec<Finding>) -> Option<String> {
    const NAME: &str = "arc_agents_present_check";
    let finding = match cluster.installed().await {
        Ok(Some(there)) if is_same(&there.cluster_id, id.as_str()) => {
            all.extend(leaving(cluster, &there.namespace).await);
            return Some(there.namespace);
        }
        Ok(Some(there)) => {
            let (group, name) = group_and_name(&there.cluster_id);
            let said = format!("the agents in this cluster are those of {name} in resource group {group}");
            Finding::new(NAME, State::Failed, said).remedy("choose the cluster's kubeconfig: --kube-config FILE")
        }
        Ok(None) => Finding::new(NAME, State::Failed, "agents are not present on the cluster").remedy(format!(
            "if this is its cluster, connect it{}: towline connect{} -n {} -g {}; else choose its kubeconfig: --kube-config FILE",
            if has_resource { " to the resource that is there" } else { "" },
            if has_resource { " --existing" } else { "" },
            id.name(),
            id.resource_group().unwrap_or_default()
        )),
        Err(error) => {
            let hint = error.downcast_ref().and_then(kubernetes::Error::hint);
            let mut finding = Finding::new(NAME, State::Incomplete, format!("{error:#}"));
            finding.remedies.extend(hint);
            finding
        }
    };
    all.push(finding);
    None
}

/// A finding where the namespace of the agents is on its way out: nothing that is installed there starts any more.
async fn leaving(cluster: &Kubernetes, namespace: &str) -> Option<Finding> {
    let there = cluster.get(&Place::of(NAMESPACE, namespace)).await.ok()??;
    judge_namespace(&there, namespace)
}

const LEFT: &str = "left_behind_check";

/// What goes on in the cluster that the gateway does not know.
async fn left_behind(api: &Api, id: &ResourceId, cluster: &Kubernetes, namespace: &str) -> Finding {
    // The cluster first: what is made in between is known at the gateway.
    let there = match cluster.managed(namespace).await {
        Ok(there) => there,
        Err(error) => return unlooked(&error),
    };
    match left::known(api, id).await {
        Ok(known) => judge_left(left::lines(&there, &known, namespace)),
        Err(failure) => unlooked(&failure.into_error()),
    }
}

/// It needs more rights than the other checks: who has not got them, or has a gateway that does not know all three kinds,
/// has no fault to see to.
fn unlooked(error: &anyhow::Error) -> Finding {
    let is_refused = error.downcast_ref().is_some_and(kubernetes::Error::is_forbidden)
        || error.downcast_ref::<ApiError>().is_some_and(|error| matches!(error.status.as_u16(), 403 | 404));
    match is_refused {
        true => Finding::new(LEFT, State::Passed, format!("not looked for, because you may not: {error:#}")),
        false => Finding::new(LEFT, State::Incomplete, format!("{error:#}")),
    }
}

/// It is told and no fault: somebody may want it so.
fn judge_left(lines: Vec<String>) -> Finding {
    if lines.is_empty() {
        return Finding::new(LEFT, State::Passed, "the gateway knows all extensions and configurations in the cluster");
    }
    let names: Vec<&str> =
        lines.iter().map(|line| line.split_once(": ").map_or(line.as_str(), |(name, _)| name)).collect();
    let mut finding = Finding::new(LEFT, State::Passed, format!("{}: {}", left::HEADING, names.join(", ")));
    finding.remedies = std::iter::once(left::ADVICE.to_owned()).chain(lines).collect();
    finding
}

fn judge_namespace(there: &Value, namespace: &str) -> Option<Finding> {
    if there["metadata"]["deletionTimestamp"].is_null() {
        return None;
    }
    let said = format!("namespace {namespace} is being deleted{}", why_there(there));
    Some(Finding::new("namespace_check", State::Failed, said).remedy(format!(
        "when it is gone, connect the cluster again: kubectl wait --for=delete namespace/{namespace}, then towline connect with the same name and group"
    )))
}

async fn logs(cluster: &Kubernetes, namespace: &str, bundle: &mut Bundle) -> Finding {
    const NAME: &str = "retrieved_arc_agents_logs";
    let pods = match cluster.agents(namespace).await {
        Ok(pods) => pods,
        Err(error) => return Finding::untried(NAME, &error),
    };
    let mut missing = Vec::new();
    for pod in &pods {
        match cluster.log(namespace, &pod.name, LOG_LINES).await {
            Ok(text) => bundle.put(&format!("arc_agents_logs/{}.txt", pod.name), &text),
            Err(error) => missing.push(format!("{}: {error}", pod.name)),
        }
    }
    match missing.as_slice() {
        [] => Finding::new(NAME, State::Passed, format!("of {} pods", pods.len())),
        missing => Finding::new(NAME, State::Incomplete, missing.join("; ")),
    }
}

async fn events(cluster: &Kubernetes, namespace: &str, bundle: &mut Bundle) -> Finding {
    let mut events = cluster.events(namespace, None).await;
    // What others run in the namespace is none of ours.
    events.retain(|event| is_ours(&event.object));
    let lines: Vec<String> = events.iter().map(ToString::to_string).collect();
    bundle.put("arc_agent_events.txt", &lines.join("\n"));
    Finding::new("retrieved_arc_agents_event_logs", State::Passed, format!("{} events", events.len()))
}

/// Whether an object, by its name, belongs to the agents.
fn is_ours(name: &str) -> bool {
    let is_guards = name.strip_prefix(GUARD).is_some_and(|rest| rest.is_empty() || rest.starts_with(['-', '.']));
    is_guards || [AGENT, MANAGER, EXTENSIONS, UPGRADER, "towline-"].iter().any(|ours| name.starts_with(ours))
}

/// What is installed, by its labels, without what is in Secrets: their names alone.
async fn deployments(cluster: &Kubernetes, namespace: &str, bundle: &mut Bundle) -> Finding {
    const NAME: &str = "retrieved_deployments_logs";
    let mut missing = Vec::new();
    // The agents make objects of their own kind, without labels.
    let own = [(CONNECTED_CLUSTER, ""), (EXTENSION_CONFIG, ""), (FLUX_CONFIG, ""), (GIT_CONFIG, "")];
    for (kind, labels) in [(DEPLOYMENT, PODS), (CONFIG_MAP, PODS)].into_iter().chain(own) {
        match cluster.list(&Place::within(kind, namespace, ""), labels).await {
            Ok(list) => {
                bundle.put(&format!("arc_deployment_logs/{}.json", kind.plural), &format!("{:#}", Value::from(list)))
            }
            Err(error) => missing.push(error.to_string()),
        }
    }
    match cluster.list(&Place::within(SECRET, namespace, ""), "").await {
        Ok(list) => {
            let names =
                list.iter().filter_map(|secret| secret["metadata"]["name"].as_str()).filter(|name| is_ours(name));
            bundle.put("arc_deployment_logs/secrets.txt", &names.collect::<Vec<_>>().join("\n"));
        }
        Err(error) => missing.push(error.to_string()),
    }
    let state = if missing.is_empty() { State::Passed } else { State::Incomplete };
    Finding::new(NAME, state, missing.join("; "))
}

async fn states(cluster: &Kubernetes, namespace: &str, bundle: &mut Bundle) -> Finding {
    const NAME: &str = "arc_agent_state_check";
    let pods = match cluster.agents(namespace).await {
        Ok(pods) => pods,
        Err(error) => return Finding::untried(NAME, &error),
    };
    let text: Vec<String> = pods.iter().map(|pod| format!("{} ready={} {}", pod.name, pod.ready, pod.state)).collect();
    bundle.put("agent_state.txt", &text.join("\n"));
    // What is on its way out was followed by another pod.
    let pods: Vec<_> = pods.into_iter().filter(|pod| !pod.going).collect();
    let missing = [AGENT, MANAGER].into_iter().filter(|name| !pods.iter().any(|pod| pod.name.starts_with(name)));
    let missing: Vec<&str> = missing.collect();
    if !missing.is_empty() {
        return without_pods(NAME, cluster, namespace, &missing).await;
    }
    if pods.iter().all(|pod| pod.ready) {
        let beside = match cluster.list(&Place::within(DEPLOYMENT, namespace, ""), "").await {
            Ok(deployments) => unavailable_beside(&deployments, OffsetDateTime::now_utc()),
            Err(error) => return Finding::untried(NAME, &error),
        };
        return judge_beside(NAME, namespace, pods.len(), &beside);
    }
    let why = cluster.why_not_ready(namespace).await;
    let mut finding = Finding::new(NAME, State::Failed, why.join("; "));
    finding.remedies = known::remedies_of(&why);
    finding
}

/// Deployments of the agents' namespace that are no agents, such as those of extensions, and that have had no pod that is
/// ready for longer than a start takes: their names, and since when.
fn unavailable_beside(deployments: &[Value], now: OffsetDateTime) -> Vec<(String, String)> {
    let one = |deployment: &Value| {
        let metadata = &deployment["metadata"];
        // Those of the agents have been looked at.
        let label = metadata["labels"]["app.kubernetes.io/name"].as_str();
        let own = label.is_some_and(|name| PODS.split(['(', ',', ')']).any(|one| one == name));
        let conditions = deployment["status"]["conditions"].as_array().filter(|_| !own)?;
        let available = conditions.iter().find(|one| one["type"] == "Available" && one["status"] == "False")?;
        let since = available["lastTransitionTime"].as_str()?;
        let long = instants::parse(since).is_ok_and(|since| now - since > STARTS_WITHIN);
        long.then(|| (metadata["name"].as_str().unwrap_or_default().to_owned(), since.to_owned()))
    };
    deployments.iter().filter_map(one).collect()
}

fn judge_beside(check: &'static str, namespace: &str, ready: usize, beside: &[(String, String)]) -> Finding {
    if beside.is_empty() {
        return Finding::new(check, State::Passed, format!("{ready} pods are ready"));
    }
    let said: Vec<String> = beside.iter().map(|(name, since)| format!("{name} since {since}")).collect();
    let names: Vec<&str> = beside.iter().map(|(name, _)| name.as_str()).collect();
    let said = format!("{ready} pods are ready; Deployments beside them have none that is: {}", said.join(", "));
    Finding::new(check, State::Failed, said)
        .remedy(format!("see why: kubectl -n {namespace} logs deployment/{}", names[0]))
        .remedy(format!(
            "if a former connection left them: kubectl -n {namespace} rollout restart deployment {}",
            names.join(" ")
        ))
}

/// Why Deployments have no pods, each.
async fn without_pods(check: &'static str, cluster: &Kubernetes, namespace: &str, names: &[&str]) -> Finding {
    let obstacles = cluster.rollout(namespace).await.map(|rollout| rollout.obstacles).unwrap_or_default();
    let mut all = Finding::new(check, State::Failed, "");
    for name in names {
        let deployment = match cluster.get(&Place::within(DEPLOYMENT, namespace, name)).await {
            Ok(deployment) => deployment,
            Err(error) => return Finding::untried(check, &error),
        };
        let obstacle = obstacles.iter().find(|obstacle| obstacle.on == *name).map(|obstacle| obstacle.text.as_str());
        let one = judge_without_pods(check, name, namespace, deployment.as_ref(), obstacle);
        all.detail += &format!("{}{}", if all.detail.is_empty() { "" } else { "; " }, one.detail);
        all.remedies.extend(one.remedies);
    }
    all.remedies.dedup();
    all
}

/// `obstacle`: what refuses the pods.
fn judge_without_pods(
    check: &'static str,
    name: &str,
    namespace: &str,
    deployment: Option<&Value>,
    obstacle: Option<&str>,
) -> Finding {
    let failed = |said: String| Finding::new(check, State::Failed, said);
    let Some(deployment) = deployment else {
        return failed(format!("Deployment {name} is not there"))
            .remedy("towline connect with the same name and group installs again what is missing");
    };
    if deployment["spec"]["replicas"] == 0 {
        return failed(format!("Deployment {name} is scaled to no pods"))
            .remedy(format!("kubectl -n {namespace} scale deployment {name} --replicas=1"));
    }
    let describe = format!("kubectl -n {namespace} describe deployment {name}");
    match obstacle {
        Some(why) => {
            let mut finding = failed(why.to_owned());
            finding.remedies = known::remedies(why);
            if finding.remedies.is_empty() { finding.remedy(describe) } else { finding }
        }
        None => failed(format!("{name} has no pods")).remedy(describe),
    }
}

async fn certificate(cluster: &Kubernetes, namespace: &str) -> Finding {
    const NAME: &str = "msi_cert_check";
    let place = Place::within(SECRET, namespace, IDENTITY_SECRET);
    match cluster.get(&place).await {
        Ok(Some(secret)) if !secret["data"]["tls.crt"].is_null() => {
            judge_certificate(NAME, &secret["data"], &place, SystemTime::now())
        }
        Ok(_) => Finding::new(NAME, State::Failed, format!("there is no certificate yet: {place}"))
            .remedy(format!("see why: kubectl -n {namespace} logs deployment/{MANAGER}")),
        Err(error) => Finding::untried(NAME, &error),
    }
}

/// Whether the certificate in a Secret is one, fits its key, and holds.
fn judge_certificate(name: &'static str, data: &Value, place: &Place, now: SystemTime) -> Finding {
    let pem = |key: &str| data[key].as_str().and_then(|text| BASE64.decode(text).ok()).unwrap_or_default();
    let again = format!(
        "let the controller-manager get another one: kubectl -n {0} delete secret {1} && kubectl -n {0} rollout restart deployment {MANAGER}",
        place.namespace.as_deref().unwrap_or_default(),
        place.name
    );
    match Credentials::from_pem(&pem("tls.crt"), &pem("tls.key")) {
        Ok(pair) if pair.not_after() <= now => {
            let ended = rfc3339_seconds(pair.not_after());
            Finding::new(name, State::Failed, format!("the certificate in {place} ended at {ended}")).remedy(
                "connect the cluster again, which keeps its resource: towline connect with the same name and group",
            )
        }
        Ok(pair) => {
            let until = rfc3339_seconds(pair.not_after());
            Finding::new(name, State::Passed, format!("{place}, until {until}"))
        }
        Err(error) => Finding::new(
            name,
            State::Failed,
            format!("what is in {place} is not a certificate with its key: {}", chain(&error)),
        )
        .remedy(again),
    }
}

fn expiry(resource: &Value) -> Finding {
    const NAME: &str = "msi_cert_expiry_check";
    let until = resource["properties"]["managedIdentityCertificateExpirationTime"].as_str();
    let parsed = until.and_then(|until| instants::parse(until).ok());
    let Some(parsed) = parsed else {
        return Finding::new(NAME, State::Incomplete, "the gateway knows of no certificate")
            .remedy("agents get one when they are connected: the checks of their pods say what keeps them");
    };
    let left = (parsed - OffsetDateTime::now_utc()).whole_days();
    let said = format!("until {}", until.unwrap_or_default());
    match left {
        left if left < 0 => Finding::new(NAME, State::Failed, format!("it ended {} days ago, {said}", -left))
            .remedy("connect the cluster again, which keeps its resource and all below it: towline connect with the same name and group"),
        left if left < DAYS_LEFT => Finding::new(NAME, State::Failed, format!("{left} days are left, {said}"))
            .remedy("it is renewed from half of its life on: see why not in the controller-manager's log"),
        left => Finding::new(NAME, State::Passed, format!("{left} days are left, {said}")),
    }
}

/// kube-aad-proxy is a role of the pods that hold users' tunnel.
async fn users_way(cluster: &Kubernetes, namespace: &str) -> Finding {
    const NAME: &str = "kap_security_policy_check";
    match cluster.agents(namespace).await {
        Ok(pods) if pods.iter().any(|pod| pod.name.starts_with(AGENT)) => {
            Finding::new(NAME, State::Passed, format!("{AGENT} has pods"))
        }
        Ok(_) => Finding::new(NAME, State::Failed, "no pod takes users' requests").remedy("see arc_agent_state_check"),
        Err(error) => Finding::untried(NAME, &error),
    }
}

fn version(resource: &Value) -> Finding {
    const NAME: &str = "agent_version_check";
    let numbers = |text: &str| {
        let mut words = text.trim_start_matches('v').split(['.', '-']).map(|word| word.parse::<u64>().unwrap_or(0));
        (words.next().unwrap_or(0), words.next().unwrap_or(0))
    };
    let Some(agent) = resource["properties"]["agentVersion"].as_str() else {
        return Finding::new(NAME, State::Incomplete, "the gateway does not know the agents' version yet")
            .remedy("agents tell it when they are connected: the checks of their pods say what keeps them");
    };
    let (theirs, ours) = (numbers(agent), numbers(manifests::version()));
    let said = format!("agents have {agent}, this command installs {}", manifests::version());
    if theirs.0 < ours.0 || (theirs.0 == ours.0 && theirs.1 + MINORS_BEHIND < ours.1) {
        return Finding::new(NAME, State::Failed, said).remedy("towline connect again brings them up to date");
    }
    Finding::new(NAME, State::Passed, said)
}

/// The job is kept in `job` while it may be there, and the turn.
async fn network(cluster: &Kubernetes, namespace: &str, bundle: &mut Bundle, job: &mut Job) -> Finding {
    const NAME: &str = "diagnoser_check";
    say("Checking the network from inside the cluster ...");
    let asked = async {
        // A connect that is at work has a job of the same name.
        job.turn.insert(Turn::new(cluster, namespace, "troubleshoot".to_owned())?).take().await?;
        let diagnoser = job.diagnoser.insert(Diagnoser::of_agents(cluster, namespace).await?);
        let said = diagnoser.ask(WITHIN).await;
        diagnoser.remove().await?;
        job.diagnoser = None;
        said
    };
    let asked: anyhow::Result<Value> = asked.await;
    job.give_up_turn().await;
    match asked {
        Ok(said) => {
            bundle.put("diagnoser_output.txt", &format!("{said:#}"));
            judge_network(NAME, &said)
        }
        Err(error) => {
            let why = format!("{error:#}");
            let mut finding = Finding::new(NAME, State::Incomplete, why.as_str());
            let hint = error.downcast_ref().and_then(kubernetes::Error::hint);
            finding.remedies = known::remedies(&why);
            if finding.remedies.is_empty() {
                finding.remedies.extend(hint);
            }
            finding
        }
    }
}

/// What agents see of the network: each fault first and once, whichever carriers meet it, with what to do about it.
fn judge_network(name: &'static str, said: &Value) -> Finding {
    let checks = said["checks"].as_array().cloned().unwrap_or_default();
    let text = |one: &Value, name: &str| one[name].as_str().unwrap_or_default().to_owned();
    let of = |verdict: &'static str| checks.iter().filter(move |one| one["verdict"] == verdict);
    let faults = |verdict: &'static str| {
        let mut faults: Vec<(String, String)> = Vec::new();
        for one in of(verdict) {
            let detail = text(one, "detail");
            if !faults.iter().any(|(_, known)| *known == detail) {
                faults.push((text(one, "check"), detail));
            }
        }
        faults.into_iter().map(|(check, detail)| format!("{check}: {detail}"))
    };
    let mut all: Vec<String> = faults("failed").collect();
    all.extend(faults("warning").map(|fault| format!("warning: {fault}")));
    let mut count = format!("{} of {} passed", of("passed").count(), checks.len());
    for (verdict, word) in [("skipped", "not tried"), ("warning", "with a warning"), ("failed", "failed")] {
        let found = of(verdict).count();
        if found > 0 {
            count += &format!(", {found} {word}");
        }
    }
    all.push(count);
    let state = if of("failed").next().is_none() { State::Passed } else { State::Failed };
    let mut finding = Finding::new(name, state, all.join("; "));
    let mut known: Vec<String> = Vec::new();
    for one in of("failed") {
        let remedy = text(one, "remedy");
        if !remedy.is_empty() && !known.contains(&remedy) {
            finding.remedies.push(format!("{}: {}", text(one, "check"), known::as_options(&remedy)));
            known.push(remedy);
        }
    }
    finding
}

#[cfg(test)]
mod tests {
    use certs::{Authority, Validity};
    use serde_json::json;

    use super::*;

    /// Pods that a former connection left were not ready for ever, and all checks passed.
    #[test]
    fn b1_deployments_beside_the_agents_that_have_no_ready_pod_are_named() {
        let deployment = |name: &str, app: &str, status: &str, since: &str| {
            json!({
                "metadata": {"name": name, "labels": {"app.kubernetes.io/name": app}},
                "status": {"conditions": [
                    {"type": "Progressing", "status": "False", "lastTransitionTime": "2026-11-29T09:00:00Z"},
                    {"type": "Available", "status": status, "lastTransitionTime": since},
                ]},
            })
        };
        let (long, just) = ("2026-11-29T10:00:00Z", "2026-11-29T10:09:00Z");
        let all = [
            deployment("clusterconnect-agent", "towline-agent", "False", long),
            deployment("fluxconfig-agent", "flux", "False", long),
            deployment("flux-logs-agent", "flux", "False", just),
            deployment("web", "web", "True", long),
            json!({"metadata": {"name": "new"}}),
        ];
        let beside = unavailable_beside(&all, instants::parse("2026-11-29T10:10:00Z").unwrap());
        assert_eq!(beside, [("fluxconfig-agent".to_owned(), long.to_owned())]);
        let found = judge_beside("c", "towline", 5, &beside);
        assert!(found.state == State::Failed && found.detail.contains("fluxconfig-agent since"), "{}", found.detail);
        assert!(found.remedies[1].ends_with("rollout restart deployment fluxconfig-agent"), "{:?}", found.remedies);
        assert!(judge_beside("c", "towline", 5, &[]).state == State::Passed);
    }

    #[test]
    fn g11_what_is_left_behind_is_told_with_what_to_do_and_is_no_failure() {
        let nothing = judge_left(Vec::new());
        assert!(nothing.state == State::Passed && nothing.remedies.is_empty());
        let found = judge_left(vec!["extension web: helm -n web uninstall web".to_owned(), "and 5 more".to_owned()]);
        assert!(
            found.state == State::Passed && found.detail.ends_with(": extension web, and 5 more"),
            "{}",
            found.detail
        );
        assert_eq!(found.remedies.len(), 3);
        assert!(found.remedies[1].contains("helm -n web uninstall web"), "{:?}", found.remedies);
    }

    /// Who may not read Secrets of all namespaces had an exit code of 1 for it.
    #[test]
    fn g11_what_may_not_be_looked_for_is_no_fault() {
        let refused = |code| {
            let status = kube::core::Status::failure("secrets is forbidden", "Forbidden").with_code(code).boxed();
            unlooked(&anyhow::Error::from(kubernetes::Error::from(kube::Error::Api(status))).context("helm's releases"))
        };
        let found = refused(403);
        assert!(found.state == State::Passed && found.detail.contains("secrets is forbidden"), "{}", found.detail);
        assert!(refused(500).state == State::Incomplete);
    }

    #[test]
    fn u1_what_holds_the_job_of_an_upgrade_up_is_named() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(3600);
        let pod = |deleted: Value, state: Value| {
            json!({"metadata": {"name": "p", "deletionTimestamp": deleted}, "spec": {"nodeName": "n1", "containers": []},
                "status": {"phase": "Running", "containerStatuses": [{"name": "upgrade", "image": "a:2", "imageID": "",
                    "ready": true, "restartCount": 0, "state": state}]}})
        };
        let (runs, pulls) = (json!({"running": {}}), json!({"waiting": {"reason": "ImagePullBackOff"}}));
        let lost = held_up(vec![pod(json!("1970-01-01T00:50:00Z"), runs.clone())], false, now).unwrap();
        assert!(lost.contains("node n1"), "{lost}");
        assert_eq!(held_up(vec![pod(json!("1970-01-01T00:59:59Z"), runs.clone())], false, now), None, "it goes");
        let pulls = held_up(vec![pod(Value::Null, pulls)], false, now).unwrap();
        assert!(pulls.contains("a:2 cannot be pulled"), "{pulls}");
        let works = || vec![pod(Value::Null, runs.clone())];
        assert_eq!(held_up(works(), false, now), None);
        assert!(held_up(works(), true, now).unwrap().contains("does not come to its end"));
        let longest = |deadline: Value| upgrade_minutes(&json!({"spec": {"activeDeadlineSeconds": deadline}}));
        assert_eq!((longest(Value::Null), longest(json!(12_960))), (UPGRADE_MINUTES, UPGRADE_MINUTES));
        assert_eq!(longest(json!(12 * 7200 + 3600)), 12 * 60, "a window and a timeout of an hour each");
    }

    #[test]
    fn u1_upgrade_that_waits_or_was_taken_back_is_a_finding_with_its_remedy() {
        let now = SystemTime::UNIX_EPOCH;
        let state = Upgrade::new("0.3.0", "0.2.0", None, now);
        for (phase, passes) in
            [(Phase::Succeeded, true), (Phase::Applying, true), (Phase::Waiting, false), (Phase::RolledBack, false)]
        {
            let found = judge_upgrade(
                Some(&state.at(phase, "Rights", "what to do", now)),
                Some("0.2.0"),
                None,
                UPGRADE_MINUTES,
                now,
            );
            assert_eq!((found.state == State::Passed, found.remedies.is_empty()), (passes, passes), "{}", found.detail);
        }
        assert!(judge_upgrade(None, None, None, UPGRADE_MINUTES, now).state == State::Passed);
        // Upgraded by hand since.
        for (phase, installed, passes) in [
            (Phase::RolledBack, Some("0.3.0"), true),
            (Phase::Waiting, Some("0.3.1"), true),
            (Phase::Failed, Some("0.3.1"), true),
            (Phase::Failed, Some("0.3.0"), false),
            (Phase::RolledBack, None, false),
        ] {
            let found = judge_upgrade(
                Some(&state.at(phase, "Crash", "what to do", now)),
                installed,
                None,
                UPGRADE_MINUTES,
                now,
            );
            assert_eq!(found.state == State::Passed, passes, "{phase:?} {installed:?}: {}", found.detail);
        }
    }

    #[test]
    fn u1_upgrade_that_is_held_up_is_a_finding_that_names_the_obstacle() {
        let begun = SystemTime::UNIX_EPOCH;
        let later = begun + std::time::Duration::from_secs(60 * 91);
        let state = Upgrade::new("0.3.0", "0.2.0", None, begun);
        for phase in [Phase::Preparing, Phase::Applying, Phase::Undoing] {
            let state = state.at(phase, "", "", begun);
            let judged = |obstacle, now| judge_upgrade(Some(&state), Some("0.2.0"), obstacle, UPGRADE_MINUTES, now);
            assert!(judged(None, begun).state == State::Passed);
            let refused = judged(Some("exceeded quota"), begun);
            assert!(refused.state == State::Failed && refused.detail.contains("exceeded quota"), "{}", refused.detail);
            let late = judged(None, later);
            assert!(late.state == State::Failed && !late.remedies.is_empty(), "{}", late.detail);
        }
        let waits = state.at(Phase::Waiting, "Rights", "m", begun);
        let again = Upgrade::new("0.3.0", "0.2.0", Some(&waits), later).after(Some(&waits));
        assert!(judge_upgrade(Some(&again), Some("0.2.0"), None, UPGRADE_MINUTES, later).state == State::Passed);
    }

    #[test]
    fn address_form_of_the_users_context_decides() {
        let id =
            ResourceId::parse("/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c")
                .unwrap();
        let no = |form, why: &str| (form, Err(why.to_owned()));
        let tried = [
            no(AddressForm::Name, "another certificate"),
            (AddressForm::Path, Ok(())),
            no(AddressForm::Host, "no domain"),
        ];
        let used = |form| [("prod".to_owned(), form)];
        let finding = judge_forms(&tried, &[], &id);
        assert_eq!(finding.state, State::Passed);
        assert_eq!(finding.detail, "name does not: another certificate; path works; host does not: no domain");
        assert_eq!(judge_forms(&tried, &used(AddressForm::Path), &id).state, State::Passed);
        let finding = judge_forms(&tried, &used(AddressForm::Name), &id);
        assert_eq!(finding.state, State::Failed);
        assert!(finding.detail.starts_with("context prod has name; "), "{}", finding.detail);
        assert_eq!(finding.remedies, ["write the kubeconfig again: towline kubeconfig -n c -g g --address path"]);
        let none = [no(AddressForm::Path, "refused")];
        assert_eq!(judge_forms(&none, &[], &id).state, State::Failed);
    }

    #[test]
    fn certificate_that_is_none_or_has_ended_does_not_pass() {
        let authority = Authority::create("test", Validity::days(10)).unwrap();
        let issued = authority.issue_agent("/subscriptions/s/x", Validity::days(3)).unwrap();
        let other = authority.issue_agent("/subscriptions/s/x", Validity::days(3)).unwrap();
        let data = |certificate: &str, key: &str| json!({"tls.crt": BASE64.encode(certificate), "tls.key": BASE64.encode(key)});
        let place = Place::within(SECRET, "towline", IDENTITY_SECRET);
        let (now, later) = (SystemTime::now(), SystemTime::now() + Duration::from_secs(4 * 86_400));
        let good = data(&issued.certificate_pem, issued.key_pem());
        assert_eq!(judge_certificate("c", &good, &place, now).state, State::Passed);
        assert!(judge_certificate("c", &good, &place, later).detail.contains("ended at"));
        for bad in [
            data("garbage", issued.key_pem()),
            data("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", issued.key_pem()),
            data(&issued.certificate_pem, ""),
            data(&issued.certificate_pem, other.key_pem()),
            json!({"tls.crt": "%%%"}),
        ] {
            let finding = judge_certificate("c", &bad, &place, now);
            assert_eq!(finding.state, State::Failed, "{}", finding.detail);
            assert!(finding.remedies[0].contains("delete secret"), "{:?}", finding.remedies);
        }
    }

    #[test]
    fn b1_a_deployment_without_pods_says_why_it_has_none() {
        let of = |deployment: Option<&Value>, obstacle| judge_without_pods("c", AGENT, "towline", deployment, obstacle);
        let there = json!({"spec": {"replicas": 2}});
        let said = |finding: Finding| (finding.detail, finding.remedies.join("; "));
        let (detail, remedy) = said(of(None, None));
        assert!(detail.contains("is not there") && remedy.contains("towline connect"), "{detail}: {remedy}");
        let (detail, remedy) = said(of(Some(&json!({"spec": {"replicas": 0}})), None));
        assert!(detail.contains("scaled to no pods") && remedy.contains("--replicas=1"), "{detail}: {remedy}");
        let (detail, remedy) = said(of(Some(&there), Some("no pod of x is made: exceeded quota: q")));
        assert!(
            detail.starts_with("no pod of x is made: exceeded quota") && remedy.contains("ResourceQuota"),
            "{remedy}"
        );
        let (detail, remedy) = said(of(Some(&there), None));
        assert!(detail.contains("has no pods") && remedy.contains("describe"), "{detail}: {remedy}");
    }

    #[test]
    fn b1_a_namespace_that_goes_is_a_finding_with_what_holds_it() {
        let mut there = json!({"metadata": {"name": "towline"}});
        assert!(judge_namespace(&there, "towline").is_none());
        there["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        let finding = judge_namespace(&there, "towline").unwrap();
        assert!(finding.state == State::Failed && finding.detail.contains("is being deleted"), "{}", finding.detail);
        assert!(finding.remedies[0].contains("towline connect"), "{:?}", finding.remedies);
    }

    #[test]
    fn b2_the_network_says_each_fault_first_and_once() {
        let check = |name: &str, verdict: &str, detail: &str, remedy: Value| json!({"check": name, "verdict": verdict, "detail": detail, "remedy": remedy});
        let deleted = |name: &str| check(name, "failed", "refused: the resource was deleted", json!("see the log"));
        let said = json!({"checks": [
            check("gw:443 TCP", "passed", "connected", Value::Null),
            deleted("gw:443 quic"), deleted("gw:443 h2"),
            check("gw:443 websocket", "skipped", "no TCP connection", Value::Null),
            check("gw:443 DNS", "failed", "no such name", json!("set gateway.addresses")),
        ]});
        let finding = judge_network("c", &said);
        assert_eq!(
            finding.detail,
            "gw:443 quic: refused: the resource was deleted; gw:443 DNS: no such name; 1 of 5 passed, 1 not tried, 3 failed"
        );
        let expected = [
            "gw:443 quic: see the log",
            "gw:443 DNS: set gateway.addresses (towline connect --host-alias ADDRESS=NAME)",
        ];
        assert_eq!(finding.remedies, expected);
        let warned = json!({"checks": [check("gw:443 quic", "warning", "too long", json!("allow it"))]});
        let finding = judge_network("c", &warned);
        assert_eq!(finding.detail, "warning: gw:443 quic: too long; 0 of 1 passed, 1 with a warning");
        assert!(finding.state == State::Passed && finding.remedies.is_empty());
    }

    #[test]
    fn b1_what_others_run_in_the_namespace_is_not_packed() {
        for ours in ["clusterconnect-agent-7d9-x", "controller-manager", "towline-onboarding", "guard", "guard-7d9-x"] {
            assert!(is_ours(ours), "{ours}");
        }
        for others in ["web-0", "my-towline-agent", "guardian-0", ""] {
            assert!(!is_ours(others), "{others}");
        }
    }
}
