//! What the agent does: for those who come through the tunnel, and on its own account. A role is one file, which
//! implements [`Role`] and has an [`Entry`], and one line in [`ALL`].
//!
//! | module | what several roles use |
//! |---|---|
//! | [`parts`] | what roles are built from |
//! | [`serve`] | hands a tunnel's streams to roles |
//! | [`controller_manager`] | runs the roles, and starts them again |
//! | [`catalogue`] | the signed catalogue, as the cluster accepts it |
//! | [`health`] | how each role fares |
//! | [`kubernetes`], [`kubeconfig`], [`socks`] | the agents' own way to the apiserver |
//! | [`lease`] | of several pods one works |
//! | [`objects`] | what the gateway wants in the cluster, kind by kind |
//! | [`resource`] | the custom resource |
//! | [`sessions`] | what users have open |

pub mod assignment_sync_agent;
pub mod catalogue;
pub mod cluster_metadata_operator;
pub mod clusterconnect_agent;
pub mod clusteridentityoperator;
pub mod config_agent;
pub mod controller_manager;
pub mod echo;
pub mod egress_proxy;
pub mod error;
pub mod extension_manager;
pub mod flux_logs_agent;
pub mod fluxconfig_agent;
pub mod guard;
pub mod health;
pub mod identity_tokens;
pub mod kube_aad_proxy;
pub mod kubeconfig;
pub mod kubernetes;
pub mod lease;
pub mod logcollector;
pub mod metrics_agent;
pub mod objects;
pub mod parts;
pub mod refresh;
pub mod resource;
pub mod resource_sync_agent;
pub mod serve;
pub mod sessions;
pub mod socks;
pub mod upgrader;
pub mod whoami;

use std::{
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use daemon::Shutdown;
use futures_util::future::BoxFuture;
use tunnel::{
    transport::{SendStream, Stream},
    wire::{
        close::StreamCode,
        head::{RequestHead, ResponseHead},
    },
};

use self::{error::BuildError, parts::Parts};
use crate::config::Deployment;

/// Every role. Which of them one process runs, `roles` in its settings says ([`Entry::runs_in`]).
pub const ALL: &[Entry] = &[
    assignment_sync_agent::ENTRY,
    cluster_metadata_operator::ENTRY,
    clusterconnect_agent::ENTRY,
    clusteridentityoperator::ENTRY,
    config_agent::ENTRY,
    echo::ENTRY,
    egress_proxy::ENTRY,
    extension_manager::ENTRY,
    flux_logs_agent::ENTRY,
    fluxconfig_agent::ENTRY,
    guard::ENTRY,
    identity_tokens::ENTRY,
    kube_aad_proxy::ENTRY,
    logcollector::ENTRY,
    metrics_agent::ENTRY,
    refresh::ENTRY,
    resource_sync_agent::ENTRY,
    upgrader::ENTRY,
    whoami::ENTRY,
];

/// What the list knows of a role before it is built.
pub struct Entry {
    /// The role's name, which is told nowhere else: its streams' role, its log field and its metric label.
    pub name: &'static str,
    /// `module_path!()`: what is logged there is logged by this role.
    pub module: &'static str,
    /// The Deployments that run it.
    pub runs_in: &'static [Deployment],
    /// Builds the role from the settings and what the process has.
    pub build: fn(&Parts) -> Built,
}

/// A role that was built. `None`: the settings do without it.
pub type Built = Result<Option<Arc<dyn Role>>, BuildError>;

impl Entry {
    /// A role of this entry under its name.
    pub fn named(&self, role: Arc<dyn Role>) -> Named {
        Named { name: role.other_name().unwrap_or(self.name), role }
    }
}

/// A role that was built, with its name.
#[derive(Clone)]
pub struct Named {
    /// The name of its [`Entry`], or [`Role::other_name`].
    pub name: &'static str,
    /// What the entry built.
    pub role: Arc<dyn Role>,
}

/// Whose streams a role serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Serves {
    /// Nobody's: it works on its own account only.
    Nobody,
    /// Users': none where cluster connect is off (docs/features.md K9).
    Users,
    /// Those of everybody at the other end of the tunnel, at any time.
    Everybody,
}

/// The roles of one process.
pub fn build(parts: &Parts) -> Result<Vec<Named>, BuildError> {
    let here = ALL.iter().filter(|entry| entry.runs_in.iter().any(|deployment| parts.config.roles.runs(*deployment)));
    here.filter_map(|entry| Some((entry.build)(parts).transpose()?.map(|role| entry.named(role)))).collect()
}

/// How long an answer that the agent makes itself may take to leave.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// A part that the agent plays. Its name is in its [`Entry`].
pub trait Role: Send + Sync + 'static {
    /// The name that it has in this process instead of its entry's, if its work differs so much between Deployments
    /// that operators need to tell the two apart.
    fn other_name(&self) -> Option<&'static str> {
        None
    }

    /// Whose streams it serves.
    fn serves(&self) -> Serves {
        Serves::Nobody
    }

    /// Serves one stream to its end. Dropping the future ends the stream. A role that serves nobody gets none.
    ///
    /// All work is the future's: this is called where a tunnel's streams are accepted. The future holds the role, so
    /// that a stream's task holds no more than the future's box.
    fn serve(self: Arc<Self>, visit: Visit) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let mut stream = visit.stream;
            stream.send.reset(StreamCode::UnknownRole);
        })
    }

    /// Whether it says itself how it fares; one that only serves runs as long as it is there.
    fn reports(&self) -> bool {
        false
    }

    /// Where it listens, if it does.
    fn address(&self) -> Option<SocketAddr> {
        None
    }

    /// What the role does on its own account, until told to stop.
    fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
        Box::pin(async move { shutdown.draining().await })
    }
}

/// A stream for a role, its head read.
pub struct Visit {
    /// Method, target and headers of the request.
    pub head: RequestHead,
    /// Request and answer.
    pub stream: Stream,
    /// When the stream was accepted.
    pub received: Instant,
}

/// The roles that serve streams.
pub struct Roles(Vec<Named>);

impl Roles {
    /// Those of `roles` that serve somebody.
    pub fn new(mut roles: Vec<Named>) -> Self {
        roles.retain(|named| named.role.serves() != Serves::Nobody);
        Self(roles)
    }

    /// The role that streams name so, by [`RequestHead::role`].
    pub fn find(&self, name: &str) -> Option<&Named> {
        self.0.iter().find(|named| named.name == name)
    }
}

/// Answers with a body that is already whole. A reader that does not take it in time is left.
pub async fn answer(mut send: SendStream, head: ResponseHead, body: Bytes) {
    let encoded = match head.encode() {
        Ok(encoded) => encoded.freeze(),
        Err(err) => {
            tracing::error!(error = %err, "an answer of ours cannot be encoded");
            return;
        }
    };
    let sent = async {
        send.send(encoded).await?;
        if !body.is_empty() {
            send.send(body).await?;
        }
        send.finish()
    };
    if let Ok(Err(err)) = tokio::time::timeout(ANSWER_DEADLINE, sent).await {
        tracing::debug!(error = %err, "nobody took an answer");
    }
}

/// Answers with JSON.
pub async fn answer_json(send: SendStream, status: http::StatusCode, body: &serde_json::Value) {
    let mut headers = http::HeaderMap::new();
    headers.insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    headers.insert(http::header::CACHE_CONTROL, http::HeaderValue::from_static("no-store"));
    answer(send, ResponseHead { status, headers, refused_by: None }, Bytes::from(body.to_string())).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_has_a_name_a_module_and_a_deployment_of_its_own_choice() {
        for entry in ALL {
            assert_eq!(ALL.iter().filter(|other| other.name == entry.name).count(), 1, "{}", entry.name);
            assert_eq!(ALL.iter().filter(|other| other.module == entry.module).count(), 1, "{}", entry.module);
            assert!(!entry.runs_in.is_empty(), "{}", entry.name);
        }
    }
}
