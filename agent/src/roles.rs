//! What the agent does for those who come through the tunnel: trait [`Role`] and the table of them. A new role is one file
//! and one line of the table.

pub mod cluster_metadata_operator;
pub mod clusterconnect_agent;
pub mod clusteridentityoperator;
pub mod config_agent;
pub mod controller_manager;
pub mod echo;
pub mod guard;
pub mod health;
pub mod identity_tokens;
pub mod kube_aad_proxy;
pub mod kubeconfig;
pub mod kubernetes;
pub mod logcollector;
pub mod metrics_agent;
pub mod refresh;
pub mod resource;
pub mod resource_sync_agent;
pub mod serve;
pub mod sessions;
pub mod whoami;

use std::{
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

/// How long an answer that the agent makes itself may take to leave.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);

/// A part that the agent plays. Its name is the stream's role, its log field and its metric label.
pub trait Role: Send + Sync + 'static {
    /// As in [`RequestHead::role`].
    fn name(&self) -> &'static str;

    /// Serves one stream to its end. Dropping the future ends the stream. A role that serves none refuses it.
    ///
    /// All work is the future's: this is called where a tunnel's streams are accepted. The future holds the role, so that a
    /// stream's task holds no more than the future's box.
    fn serve(self: Arc<Self>, visit: Visit) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let mut stream = visit.stream;
            stream.send.reset(StreamCode::UnknownRole);
        })
    }

    /// Whether what it serves is users': nobody's where cluster connect is off (docs/features.md K9).
    fn is_for_users(&self) -> bool {
        false
    }

    /// Whether it says itself how it fares; one that only serves runs as long as it is there.
    fn reports(&self) -> bool {
        false
    }

    /// What the role does on its own account, until told to stop.
    fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
        Box::pin(async move { shutdown.draining().await })
    }
}

/// A stream for a role, its head read.
pub struct Visit {
    /// The head.
    pub head: RequestHead,
    /// Request and answer.
    pub stream: Stream,
    /// When it came.
    pub received: Instant,
}

/// The table of roles.
#[derive(Clone)]
pub struct Roles(Arc<[Arc<dyn Role>]>);

impl Roles {
    /// These roles.
    pub fn new(roles: Vec<Arc<dyn Role>>) -> Self {
        Self(roles.into())
    }

    /// The role of that name.
    pub fn find(&self, name: &str) -> Option<&Arc<dyn Role>> {
        self.0.iter().find(|role| role.name() == name)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Role>> {
        self.0.iter()
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
