//! Everything that can be known before anything is made, in the order of `az connectedk8s connect`. Changes nothing.

use anyhow::{Context as _, anyhow};
use http::StatusCode;
use secrecy::SecretString;
use serde_json::Value;
use types::api::{ResourceId, id::is_same};

use super::{
    Args, extensions,
    key::OnboardingKey,
    proxy::Typed,
    resource::{self, Before},
    token::{self, OneTime},
    values,
};
use crate::{
    api::{Api, ApiError, at, versions},
    commands::steps::Steps,
    context::{CLUSTERS, Context},
    failure::{Failure, Hint, Outcome},
    kubernetes::{
        Closed, KubeArgs, Kubernetes, NodeState, Place,
        apply::why_there,
        installed::{Installed, group_and_name},
        place::NAMESPACE,
        rights,
    },
    manifests::Values,
};

/// Nodes that an error names at most.
const NODES_SHOWN: usize = 5;
/// As the chart's `kubeVersion`.
const MINOR_MIN: u32 = 25;

/// What is known once all checks passed.
pub struct Prepared {
    /// The gateway; as nobody with a one-time token.
    pub api: Api,
    /// What stands in for a sign-in.
    pub token: Option<OneTime>,
    /// The Kubernetes cluster that is to be connected.
    pub cluster: Kubernetes,
    /// The resource that is wanted.
    pub id: ResourceId,
    /// What there is of it.
    pub before: Before,
    /// Where it is said to be.
    pub location: String,
    /// Whether the resource group has to be made.
    pub makes_group: bool,
    /// Agents of this gateway that are there.
    pub installed: Option<Installed>,
    /// Agents of another one, or of a cluster that a token does not let see, which these replace.
    pub replaced: Option<Installed>,
    /// Where the agents go.
    pub namespace: String,
    /// Whether the namespace has to be made.
    pub makes_namespace: bool,
    /// The key that is there already, or was typed.
    pub key: Option<OnboardingKey>,
    /// With a one-time token: what the gateway knows of the cluster by the key that is there, where an earlier run used
    /// the token up and did not come to its end.
    pub enrolled: Option<Value>,
    /// Whether it is the one that agents there have, whose certificate goes on.
    pub is_key_of_cluster: bool,
    /// The manifests' values; without the private key where one is made.
    pub values: Values,
}

/// All checks, one after the other; the first that fails ends it.
pub async fn run(
    args: &Args,
    context: Context,
    token: Option<OneTime>,
    proxy: Typed,
    extensions: &extensions::Typed,
    steps: &mut Steps,
) -> Outcome<Prepared> {
    let group = args.cluster.resource_group.as_deref();
    let group = token.as_ref().map(|token| token.group().name()).or(group).unwrap_or_default();
    let id = context.cluster(group, &args.cluster.name)?;
    let typed_key = typed_key(args)?;
    let client = context.client()?;
    let settings = steps.run("Asking the gateway what agents need", values::settings(&client)).await?;
    let api = Api::of(&context)?;
    let (makes_group, location) = match &token {
        // It reads nothing; a cluster without a location is where its group is.
        Some(_) => (false, args.location.clone().unwrap_or_default()),
        None => {
            steps.run("Checking the sign-in and the provider", registered(&api, &context)).await?;
            steps.run("Checking resource group and location", group_and_location(&api, &id, args)).await?
        }
    };
    let cluster = steps.run("Reaching the cluster", reach(&args.kube)).await?;
    let said = steps.run("Checking the cluster's nodes", nodes(&cluster)).await?;
    said.iter().for_each(|line| steps.note(line));
    steps.run("Checking the right to look around", may_look(&cluster, &args.agent.namespace)).await?;
    let installed = steps.run("Looking for agents that are there", installed(&cluster)).await?;
    let namespace = installed.as_ref().map_or_else(|| args.agent.namespace.clone(), |there| there.namespace.clone());
    let place = Place::of(NAMESPACE, &namespace);
    let there = cluster.get(&place).await.with_context(|| format!("cannot read {place}"))?;
    let makes_namespace = there.is_none();
    there.as_ref().map_or(Ok(()), stays)?;
    let rights = may_install(&cluster, &namespace, makes_namespace, !args.skip_network_check);
    steps.run("Checking rights in the cluster", rights).await?;
    let before = match &token {
        Some(_) => Before { resource: None },
        None => steps.run("Looking for the resource", resource::find(&api, &id)).await?,
    };
    typed_key.as_ref().map_or(Ok(()), |key| is_of(key, &before, args))?;
    let found = Found { cluster: &cluster, before: &before, urls: &settings.urls };
    let (installed, replaced) = found.belongs(installed, args.force).await?;
    let is_forced = fits(&api, token.is_some(), &id, args, &found, installed.as_ref()).await?;
    let (installed, replaced) = if is_forced { (None, installed) } else { (installed, replaced) };
    let mut kept = match &installed {
        Some(there) => Some(cluster.kept(&there.namespace).await?),
        None => None,
    };
    // What is only shown holds no password but one that was typed.
    if let Some(kept) = kept.as_mut().filter(|_| args.dry_run) {
        kept.proxy.password = SecretString::default();
    }
    let (mut values, said) = values::values(id.as_str(), &args.agent, kept, proxy, extensions, &settings)?;
    values::fit(&mut values, cluster.minor);
    may_extend(&cluster, &values).await?;
    said.iter().for_each(|line| steps.note(line));
    let mut prepared = Prepared {
        api,
        token,
        cluster,
        id,
        before,
        location,
        makes_group,
        installed,
        replaced,
        namespace,
        makes_namespace,
        key: None,
        enrolled: None,
        is_key_of_cluster: false,
        values,
    };
    prepared.find_key(typed_key, args.dry_run, steps).await?;
    Ok(prepared)
}

impl Prepared {
    /// The key that was typed or is there; with a one-time token, whether the gateway has the cluster by it already.
    async fn find_key(&mut self, typed: Option<OnboardingKey>, is_dry: bool, steps: &mut Steps) -> Outcome<()> {
        let is_typed = typed.is_some();
        // What is only shown holds no key but one that was typed.
        self.key = if is_dry { typed } else { key_at_hand(self, typed).await? };
        self.is_key_of_cluster = self.key.is_some() && !is_typed;
        let Some(key) = &self.key else { return Ok(()) };
        self.values.identity.onboarding_key = key.private.clone();
        if self.token.is_some() && !is_dry {
            let asking = token::enrolled(&self.api, &self.id, key);
            self.enrolled = steps.run("Asking whether the cluster is enrolled already", asking).await?;
            if self.enrolled.is_none() && !is_typed {
                steps.note("a key of a previous connection is there, for which the gateway has no cluster: the cluster is enrolled again");
            }
            self.is_key_of_cluster &= self.enrolled.is_some();
        }
        Ok(())
    }
}

fn typed_key(args: &Args) -> Outcome<Option<OnboardingKey>> {
    let Some(file) = &args.key_file else { return Ok(None) };
    let text = std::fs::read_to_string(file).with_context(|| format!("--key-file: cannot read {}", file.display()));
    let text = text.map_err(Failure::usage)?;
    let key = OnboardingKey::parse(text.into())
        .with_context(|| format!("--key-file: {} is not an onboarding key", file.display()));
    Ok(Some(key.map_err(Failure::usage)?))
}

/// Of a resource that is there, a key that was typed is the private half of its public one: agents with another would
/// be refused with 401 (docs/features.md R13).
fn is_of(key: &OnboardingKey, before: &Before, args: &Args) -> Outcome<()> {
    let known = before.property("agentPublicKeyCertificate");
    if known.is_empty() || key.is_half_of(known) {
        return Ok(());
    }
    let file = args.key_file.as_deref().map_or_else(String::new, |file| file.display().to_string());
    let error = anyhow!(
        "--key-file {file}: its public half is not the resource's; agents with this key would be refused (401 InvalidProof)"
    );
    Err(Failure::from(error).hint(
        "give the key with which the resource was made; or leave out --key-file: a new key takes its place, unless agents with the old one are connected",
    ))
}

async fn registered(api: &Api, context: &Context) -> Outcome<()> {
    let subscription = context.subscription()?;
    let target = at(format!("{subscription}/providers/{}", CLUSTERS.0), versions::RESOURCES);
    let provider = match api.get(&target).await {
        Ok(provider) => provider,
        // Who may connect clusters in one group need not see the subscription; making the resource will tell.
        Err(failure) if is_refused(&failure) => return Ok(()),
        Err(failure) => return Err(failure),
    };
    if provider["registrationState"] != "Registered" {
        let error = anyhow!("{} provider is not registered", CLUSTERS.0);
        let hint = format!("Please register it using 'az provider register -n {}'", CLUSTERS.0);
        return Err(Failure::from(error).hint(hint));
    }
    Ok(())
}

fn is_refused(failure: &Failure) -> bool {
    ApiError::behind(failure).is_some_and(|error| error.status == StatusCode::FORBIDDEN)
}

/// Whether the group has to be made, and the location.
async fn group_and_location(api: &Api, id: &ResourceId, args: &Args) -> Outcome<(bool, String)> {
    let group = resource::group_of(id)?;
    let found = match api.find(&at(&group, versions::RESOURCES)).await {
        Ok(found) => found.map(|answer| answer.body),
        // Who may write a cluster in a group need not be able to read the group itself: then it is taken to be there.
        Err(failure) if is_refused(&failure) => Some(Value::Null),
        Err(failure) => return Err(failure),
    };
    let known = found.as_ref().and_then(|group| group["location"].as_str());
    match (args.location.as_deref().or(known), &found) {
        (Some(location), _) => Ok((found.is_none(), location.to_owned())),
        (None, None) => {
            let error = anyhow!("there is no resource group {}", group.name());
            Err(Failure::from(error).hint("-l LOCATION makes it; or make it yourself: towline group create"))
        }
        (None, Some(_)) => {
            Err(Failure::usage(anyhow!("the location of resource group {} cannot be read", group.name()))
                .hint("say where the cluster's resource is to be: -l LOCATION"))
        }
    }
}

/// The cluster of a kubeconfig that reaches it itself, of a version that agents run in.
pub async fn reach(kube: &KubeArgs) -> Outcome<Kubernetes> {
    let mut cluster = Kubernetes::open(kube.kube_config.as_deref(), kube.kube_context.as_deref())
        .await
        .map_err(|error| Failure::usage(error).hint("--kube-config FILE and --kube-context NAME choose the cluster"))?;
    if cluster.leads_through_a_gateway().await {
        let error =
            anyhow!("connecting is not supported when using the Cluster Connect kubeconfig ({})", cluster.server);
        return Err(Failure::usage(error).hint("use a kubeconfig that reaches the cluster itself: --kube-config FILE"));
    }
    let version = cluster
        .version()
        .await
        .with_context(|| format!("cannot reach the apiserver {} of context {}", cluster.server, cluster.context));
    let version = version.hint(|| "kubectl version must work with the same kubeconfig and context".to_owned())?;
    if version.minor < MINOR_MIN {
        return Err(anyhow!("the cluster's version is {}; agents need 1.{MINOR_MIN} or later", version.text).into());
    }
    cluster.minor = version.minor;
    Ok(cluster)
}

/// At least one node has to run Linux, and to be for such pods. Who may not list nodes is believed, and so is who has
/// an autoscaler.
async fn nodes(cluster: &Kubernetes) -> Outcome<Option<String>> {
    let nodes = match cluster.nodes().await {
        Ok(nodes) => nodes,
        Err(error) if error.is_forbidden() => {
            return Ok(Some("the nodes cannot be listed: whether one runs Linux is not known".to_owned()));
        }
        Err(error) => return Err(anyhow!(error).context("cannot list the nodes").into()),
    };
    match judge(&nodes) {
        Ok(closed) => Ok(closed.map(|closed| format!("{closed}: the agents wait for a node"))),
        Err(failure) if cluster.adds_nodes().await => {
            Ok(Some(format!("{:#}: the agents wait for a node of the autoscaler", failure.into_error())))
        }
        Err(failure) => Err(failure),
    }
}

/// Says of nodes that take no pods now that they do not; refuses those that never will.
fn judge(nodes: &[NodeState]) -> Outcome<Option<String>> {
    let runs = |node: &&NodeState| node.system == "linux" || node.system.is_empty();
    if !nodes.iter().any(|node| runs(&node)) {
        let error = match nodes.len() {
            0 => anyhow!("the cluster has no nodes; agents need one that runs Linux"),
            1 => anyhow!("the only node has not the label kubernetes.io/os=linux; agents run on Linux"),
            count => anyhow!("none of {count} nodes has the label kubernetes.io/os=linux; agents run on Linux"),
        };
        return Err(Failure::from(error).hint("add a Linux node"));
    }
    if nodes.iter().all(|node| node.system.is_empty()) {
        tracing::warn!("nodes have no label kubernetes.io/os: agents run on Linux only");
    }
    let open = nodes.iter().filter(runs).any(|node| node.closed.is_none());
    if open {
        return Ok(None);
    }
    let closed: Vec<(&str, &Closed)> =
        nodes.iter().filter(runs).filter_map(|node| Some((node.name.as_str(), node.closed.as_ref()?))).collect();
    let by_role = closed.iter().all(|(_, closed)| closed.by_role);
    let more = closed.len().saturating_sub(NODES_SHOWN);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    let shown: Vec<String> =
        closed.iter().take(NODES_SHOWN).map(|(name, closed)| format!("{name} {}", closed.why)).collect();
    let text = format!("no Linux node takes the agents' pods: {}{more}", shown.join(", "));
    if !by_role {
        return Ok(Some(text));
    }
    Err(Failure::from(anyhow!(text)).hint(
        "add a node for pods, or take the taint away: kubectl taint node NODE KEY-; or install by helm with tolerations",
    ))
}

/// The agents that are there, if this program installed them.
pub async fn installed(cluster: &Kubernetes) -> Outcome<Option<Installed>> {
    let installed = cluster.installed().await?;
    match installed {
        Some(there) if !there.is_ours() => {
            let error = anyhow!(
                "{} agents of {} are installed in namespace {}",
                there.managed_by,
                there.cluster_id,
                there.namespace
            );
            Err(Failure::from(error).hint(format!(
                "change them with helm, or remove them first: helm --namespace {} uninstall RELEASE",
                there.namespace
            )))
        }
        installed => Ok(installed),
    }
}

/// Whether the user may do all that takes, and run a job to check the network where that is asked for.
pub async fn may_install(cluster: &Kubernetes, namespace: &str, makes_namespace: bool, runs_job: bool) -> Outcome<()> {
    let mut needed = rights::to_install(namespace, makes_namespace);
    if runs_job {
        needed.extend(rights::to_run_a_job(namespace));
    }
    refuse(cluster, &cluster.missing_rights(needed).await?)
}

/// Whether the user may give the right that extensions take.
pub async fn may_extend(cluster: &Kubernetes, values: &Values) -> Outcome<()> {
    if !values.extensions.enabled {
        return Ok(());
    }
    refuse(cluster, &cluster.missing_rights(rights::to_make_an_administrator()).await?)
}

fn refuse(cluster: &Kubernetes, missing: &[rights::Right]) -> Outcome<()> {
    if missing.is_empty() {
        return Ok(());
    }
    let error = anyhow!("in the cluster of context {} you may not: {}", cluster.context, rights::listed(missing));
    Err(Failure::from(error).hint("use a kubeconfig of a cluster administrator (ClusterRole cluster-admin)"))
}

/// Before anything is looked for: who may not look is told of all that is missing at once.
async fn may_look(cluster: &Kubernetes, namespace: &str) -> Outcome<()> {
    if cluster.missing_rights(rights::to_look()).await?.is_empty() {
        return Ok(());
    }
    let mut needed = rights::to_look();
    needed.extend(rights::to_install(namespace, true));
    refuse(cluster, &cluster.missing_rights(needed).await?)
}

/// A namespace that is on its way out takes nothing in.
pub fn stays(namespace: &Value) -> Outcome<()> {
    if namespace["metadata"]["deletionTimestamp"].is_null() {
        return Ok(());
    }
    let name = namespace["metadata"]["name"].as_str().unwrap_or_default();
    let error = anyhow!("namespace {name} is being deleted{}", why_there(namespace));
    Err(Failure::from(error)
        .hint(format!("run the command again when it is gone: kubectl wait --for=delete namespace/{name}; or choose another: --namespace NAME")))
}

/// What tells whose the agents are.
struct Found<'a> {
    cluster: &'a Kubernetes,
    before: &'a Before,
    urls: &'a [String],
}

impl Found<'_> {
    /// Agents of this gateway, and those of another one that are to be replaced. A gateway that goes by another address
    /// now is known by the key that its resource has.
    async fn belongs(
        &self,
        installed: Option<Installed>,
        force: bool,
    ) -> Outcome<(Option<Installed>, Option<Installed>)> {
        let Some(there) = installed else { return Ok((None, None)) };
        if there.is_at(self.urls) || self.has_their_key(&there.namespace).await? {
            return Ok((Some(there), None));
        }
        if force {
            return Ok((None, Some(there)));
        }
        let (group, name) = group_and_name(&there.cluster_id);
        let error = anyhow!(
            "agents of another gateway ({}) are in namespace {}, as {name} of resource group {group} there",
            there.urls.join(", "),
            there.namespace
        );
        Err(Failure::from(error).hint(format!(
            "remove them with an account of that gateway: towline delete -n {name} -g {group} --account NAME; or --force replaces them, and leaves their resource without agents"
        )))
    }

    async fn has_their_key(&self, namespace: &str) -> Outcome<bool> {
        let known = self.before.property("agentPublicKeyCertificate");
        if known.is_empty() {
            return Ok(false);
        }
        Ok(key_there(self.cluster, namespace).await?.is_some_and(|key| key.is_half_of(known)))
    }
}

/// Step 11 of `az connectedk8s connect`: whose agents these are, and whose resource that is. Tells whether they are
/// replaced by `--force`, of a cluster of which a token does not tell whether it is there.
async fn fits(
    api: &Api,
    by_token: bool,
    id: &ResourceId,
    args: &Args,
    Found { cluster, before, .. }: &Found<'_>,
    installed: Option<&Installed>,
) -> Outcome<bool> {
    let other = installed.filter(|there| !is_same(&there.cluster_id, id.as_str()));
    if let Some(there) = other {
        let known: Option<ResourceId> = ResourceId::parse(&there.cluster_id).ok();
        // A resource that may not be read is somebody's all the same, and so is one that the gateway does not say to be
        // deleted.
        let exists = match &known {
            Some(known) if by_token => match key_there(cluster, &there.namespace).await? {
                Some(key) => !token::is_deleted(api, known, &key).await,
                None => true,
            },
            Some(known) => resource::find(api, known).await.map_or(true, |found| found.resource.is_some()),
            None => true,
        };
        let (group, name) = group_and_name(&there.cluster_id);
        if exists && by_token && args.force {
            tracing::warn!(
                "agents of {name}, of which it is not known whether it is deleted, are there: they are replaced"
            );
            return Ok(true);
        }
        if exists {
            let error = anyhow!(
                "The kubernetes cluster you are trying to onboard is already onboarded to the resource group '{group}' with resource name '{name}'"
            );
            let hint = format!("towline delete -n {name} -g {group}");
            return Err(Failure::from(error).hint(if by_token {
                format!("{hint}; or, if that resource is no longer in use, --force replaces its agents")
            } else {
                hint
            }));
        }
        tracing::warn!("agents of {name}, which is deleted, are there: they are replaced");
    }
    let same = installed.is_some() && other.is_none();
    if before.resource.is_some() && !same && !args.existing {
        let error =
            anyhow!("The connected cluster resource {} corresponds to a different Kubernetes cluster", id.name());
        let hint = format!(
            "choose another name; if it is this cluster's: --existing; if it is no longer in use: towline delete -n {} -g {}",
            id.name(),
            id.resource_group().unwrap_or_default()
        );
        return Err(Failure::from(error).hint(hint));
    }
    if before.resource.is_none() && args.existing {
        let error = anyhow!("there is no connected cluster {}", id.name());
        return Err(Failure::from(error).hint("leave out --existing to make it; or see which there are: towline list"));
    }
    Ok(false)
}

/// The key of agents that are there and go on, or the one that was typed; none where a new one is made.
async fn key_at_hand(prepared: &Prepared, typed: Option<OnboardingKey>) -> Outcome<Option<OnboardingKey>> {
    // The key of agents that are replaced is another cluster's.
    if typed.is_some() || prepared.replaced.is_some() {
        return Ok(typed);
    }
    // With a token the key is there before the cluster is, and all else comes after.
    let is_known = prepared.token.is_some() || prepared.before.resource.is_some() && prepared.installed.is_some();
    if !is_known || prepared.before.is_expired() {
        return Ok(None);
    }
    Ok(key_there(&prepared.cluster, &prepared.namespace).await?)
}

/// The onboarding key in a namespace, if it is one.
async fn key_there(cluster: &Kubernetes, namespace: &str) -> anyhow::Result<Option<OnboardingKey>> {
    Ok(cluster.onboarding_key(namespace).await?.and_then(|key| OnboardingKey::parse(key).ok()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, system: &str, closed: Option<(&str, bool)>) -> NodeState {
        let closed = closed.map(|(why, by_role)| Closed { why: why.to_owned(), by_role });
        NodeState { name: name.to_owned(), system: system.to_owned(), closed }
    }

    #[test]
    fn nodes_that_take_no_pods_are_named_before_anything_is_made() {
        let role =
            || node("a", "linux", Some(("has the taint node-role.kubernetes.io/control-plane=:NoSchedule", true)));
        let tainted = || node("t", "linux", Some(("has the taint role=db:NoSchedule", false)));
        let cordoned = || node("b", "linux", Some(("is cordoned", false)));
        let windows = || node("w", "windows", None);
        let refused = format!("{:#}", judge(&[role(), role(), windows()]).unwrap_err().into_error());
        assert!(refused.contains("a has the taint node-role.kubernetes.io/control-plane"), "{refused}");
        // Somebody uncordons it, or the taint goes: the pods wait.
        let warned = judge(&[tainted(), cordoned(), role(), windows()]).unwrap().unwrap();
        assert!(warned.contains("t has the taint role=db:NoSchedule, b is cordoned"), "{warned}");
        let is_open = |nodes: &[NodeState]| judge(nodes).unwrap().is_none();
        assert!(is_open(&[role(), tainted(), node("c", "linux", None)]) && is_open(&[node("c", "", None)]));
        assert!(judge(&[windows()]).is_err() && judge(&[]).is_err());
        let many: Vec<_> = (0..9).map(|_| cordoned()).collect();
        assert!(judge(&many).unwrap().unwrap().contains(", and 4 more"));
    }

    /// Later runs would install into it, and lose all of it when what keeps it is gone.
    #[test]
    fn namespace_that_is_being_deleted_is_refused_with_what_keeps_it() {
        let going = json!({"metadata": {"name": "towline", "deletionTimestamp": "2026-01-01T00:00:00Z"}, "status": {"conditions": [
            {"type": "NamespaceContentRemaining", "status": "True", "message": "Some resources are remaining: pods. has 1 resource instances"},
        ]}});
        let refused = stays(&going).unwrap_err();
        let refused = format!("{:#}", refused.into_error());
        assert!(refused.contains("namespace towline is being deleted") && refused.contains("pods. has 1"), "{refused}");
        assert!(stays(&json!({"metadata": {"name": "towline"}})).is_ok());
    }
}
