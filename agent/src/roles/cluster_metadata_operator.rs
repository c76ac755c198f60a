//! What the agents find out about the cluster they are in: versions, nodes, cores, distribution and
//! infrastructure. What may not be read is not known, and said so.

mod guess;

use std::{sync::Arc, time::Duration};

use daemon::Shutdown;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, Client, api::ListParams};
use tokio::sync::watch;

pub(super) use self::guess::platform;
use self::guess::{Seen, guess, platforms};
use super::{
    Entry, Role,
    health::Reporter,
    kubernetes::{kube_system_uid, problem},
};
use crate::config::{Deployment, Metadata};

/// This role's name.
pub const NAME: &str = "cluster-metadata-operator";

/// In the list of roles.
pub const ENTRY: Entry = Entry {
    name: NAME,
    module: module_path!(),
    runs_in: &[Deployment::ControllerManager],
    build: |parts| {
        let (client, preset) = (parts.kubernetes.clone(), parts.config.metadata.clone());
        let (health, known) = (parts.health.of(NAME), parts.facts.clone());
        Ok(Some(Arc::new(ClusterMetadataOperator { client, preset, health, known })))
    },
};

/// How often the cluster is looked at, and how soon again where something could not be read.
const LOOK: Duration = Duration::from_secs(300);
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// How long one look may take.
const DEADLINE: Duration = Duration::from_secs(60);
/// Nodes of one page, and pages: more are not counted.
const PAGE: u32 = 500;
const PAGES: usize = 40;

/// What is known. Absent is not known, which is not zero.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// UID of the namespace `kube-system`.
    pub kube_system_uid: Option<String>,
    /// As `GET /version` says.
    pub kubernetes_version: Option<String>,
    /// Number of nodes in the cluster.
    pub nodes: Option<u32>,
    /// Cores of all nodes, their capacity.
    pub cores: Option<u32>,
    /// k3s, kind, eks, ...
    pub distribution: Option<String>,
    /// The distribution's own version, where it has one.
    pub distribution_version: Option<String>,
    /// aws, azure, gcp, ... or generic.
    pub infrastructure: Option<String>,
    /// Platforms of all nodes, such as `linux/amd64`; none: not all are known.
    pub platforms: Vec<String>,
    /// What could not be read, why, and what to do.
    pub problems: Vec<String>,
}

/// Tells what is known; nothing before the first look.
pub type Known = watch::Receiver<Option<Facts>>;

/// Collects facts about the cluster from the apiserver, and publishes them to the other roles.
pub struct ClusterMetadataOperator {
    client: Option<Client>,
    /// Goes before what the nodes look like.
    preset: Metadata,
    health: Reporter,
    known: watch::Sender<Option<Facts>>,
}

impl ClusterMetadataOperator {
    async fn work(&self) {
        loop {
            let looked = tokio::time::timeout(DEADLINE, self.look()).await;
            let facts = looked.unwrap_or_else(|_| Facts {
                problems: vec![format!("the apiserver did not answer within {} s", DEADLINE.as_secs())],
                ..self.preset()
            });
            for problem in &facts.problems {
                tracing::debug!(problem, "something of the cluster is not known");
            }
            self.health.warnings(facts.problems.clone());
            if facts.kubernetes_version.is_none() && self.client.is_some() {
                self.health.failing("ApiserverUnreachable", &facts.problems.join("; "));
            } else {
                self.health.running();
            }
            let wait = if facts.problems.is_empty() { LOOK } else { LOOK_AGAIN };
            self.known.send_if_modified(|known| {
                let changed = known.as_ref() != Some(&facts);
                *known = Some(facts);
                changed
            });
            tokio::time::sleep(wait).await;
        }
    }

    fn preset(&self) -> Facts {
        Facts {
            distribution: self.preset.distribution.clone(),
            infrastructure: self.preset.infrastructure.clone(),
            ..Facts::default()
        }
    }

    async fn look(&self) -> Facts {
        let mut facts = self.preset();
        let Some(client) = &self.client else {
            facts.problems.push("there is no way to the apiserver; set [cluster] kubeconfig".to_owned());
            return facts;
        };
        match client.apiserver_version().await {
            Ok(version) => facts.kubernetes_version = Some(version.git_version),
            Err(err) => facts.problems.push(problem("the apiserver's version", &err)),
        }
        match kube_system_uid(client).await {
            Ok(uid) => facts.kube_system_uid = Some(uid),
            Err(problem) => facts.problems.push(problem),
        }
        match nodes(client).await {
            Ok((nodes, are_all)) => {
                let guessed = guess(&nodes, facts.kubernetes_version.as_deref());
                facts.nodes = u32::try_from(nodes.len()).ok();
                facts.cores = guessed.cores;
                facts.platforms = if are_all { platforms(&nodes) } else { Vec::new() };
                facts.distribution.get_or_insert(guessed.distribution);
                facts.infrastructure.get_or_insert(guessed.infrastructure);
                facts.distribution_version = guessed.version;
            }
            Err(err) => facts.problems.push(problem("the cluster's nodes", &err)),
        }
        facts
    }
}

/// The distribution, by what nodes look like; `None` where they do not say.
pub(super) fn distribution(nodes: Vec<Node>, version: &str) -> Option<String> {
    let seen: Vec<_> = nodes.into_iter().map(Seen::of).collect();
    Some(guess(&seen, Some(version)).distribution).filter(|distribution| distribution != guess::GENERIC)
}

impl Role for ClusterMetadataOperator {
    fn reports(&self) -> bool {
        true
    }

    fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            shutdown.until_draining(self.work()).await;
        })
    }
}

/// The nodes, and whether these are all.
async fn nodes(client: &Client) -> Result<(Vec<Seen>, bool), kube::Error> {
    let api: Api<Node> = Api::all(client.clone());
    let mut seen = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    for _ in 0..PAGES {
        let page = api.list(&params).await?;
        seen.extend(page.items.into_iter().map(Seen::of));
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok((seen, true)),
        }
    }
    Ok((seen, false))
}
