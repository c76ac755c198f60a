//! The role that holds the tunnel. It serves no streams of its own: what comes through the tunnel names another role.

use futures_util::future::BoxFuture;
use proto::{process::Shutdown, wire::close::StreamCode};

use super::{Role, Visit};
use crate::tunnel::Tunnels;

/// The role.
pub struct ClusterconnectAgent {
    tunnels: Tunnels,
}

impl ClusterconnectAgent {
    /// Keeps these tunnels up.
    pub fn new(tunnels: Tunnels) -> Self {
        Self { tunnels }
    }
}

impl Role for ClusterconnectAgent {
    fn name(&self) -> &'static str {
        "clusterconnect-agent"
    }

    fn serve(&self, visit: Visit) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let mut stream = visit.stream;
            stream.send.reset(StreamCode::UnknownRole);
        })
    }

    fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
        Box::pin(self.tunnels.run(shutdown))
    }
}
