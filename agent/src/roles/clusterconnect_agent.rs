//! The role that holds the tunnel. It serves no streams of its own: what comes through the tunnel names another role.

use std::sync::Arc;

use daemon::Shutdown;
use futures_util::future::BoxFuture;
use types::ids::ClusterId;

use super::{Role, health::Reporter};
use crate::{
    identity::{Identities, follow::follow, store::Store},
    tunnel::{Tunnels, status::StatusBoard},
};

/// The name where users come through the tunnel.
pub const NAME: &str = "clusterconnect-agent";
/// The name where the agent's own exchanges alone do.
pub const OWN: &str = "gateway-tunnel";

/// Follows a certificate that another process looks after.
pub struct Follow {
    /// Where it is kept.
    pub store: Store,
    /// Who uses it.
    pub identities: Identities,
    /// Whose it must be.
    pub cluster: ClusterId,
}

/// The role.
pub struct ClusterconnectAgent {
    name: &'static str,
    tunnels: Tunnels,
    status: Arc<StatusBoard>,
    health: Reporter,
    follow: Option<Follow>,
}

impl ClusterconnectAgent {
    /// Keeps these tunnels up.
    pub fn new(
        name: &'static str,
        tunnels: Tunnels,
        status: Arc<StatusBoard>,
        health: Reporter,
        follow: Option<Follow>,
    ) -> Self {
        Self { name, tunnels, status, health, follow }
    }

    /// Says how the tunnel fares.
    async fn tell(&self) {
        let mut current = self.tunnels.current();
        let mut changes = self.status.changes();
        loop {
            let (up, error) = (current.borrow_and_update().is_some(), self.status.last_error());
            changes.mark_unchanged();
            match (up, error) {
                (true, _) => self.health.running(),
                (false, Some(error)) if self.status.is_deleted() => self.health.failing("ResourceDeleted", &error),
                (false, Some(error)) => self.health.failing("NoTunnel", &error),
                (false, None) => self.health.starting(),
            }
            let changed = tokio::select! {
                changed = current.changed() => changed.is_ok(),
                changed = changes.changed() => changed.is_ok(),
            };
            if !changed {
                std::future::pending::<()>().await;
            }
        }
    }

    async fn follow(&self) {
        match &self.follow {
            Some(Follow { store, identities, cluster }) => follow(store, identities, cluster).await,
            None => std::future::pending().await,
        }
    }
}

impl Role for ClusterconnectAgent {
    fn name(&self) -> &'static str {
        self.name
    }

    fn reports(&self) -> bool {
        true
    }

    fn run(&self, shutdown: Shutdown) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            tokio::select! {
                biased;
                () = self.tunnels.run(shutdown) => {}
                () = self.tell() => {}
                () = self.follow() => {}
            }
        })
    }
}
