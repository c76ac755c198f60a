//! The role that holds the tunnel. It serves no streams of its own: what comes through the tunnel names another role.

use std::sync::Arc;

use daemon::Shutdown;
use futures_util::future::BoxFuture;
use types::ids::ClusterId;

use super::{Entry, Role, health::Reporter};
use crate::{
    config::Deployment,
    identity::{Identities, follow::follow, store::Store},
    tunnel::{Tunnels, status::StatusBoard},
};

/// The name where users come through the tunnel.
pub const NAME: &str = Deployment::ClusterconnectAgent.name();
/// The name where the agent's own exchanges alone do.
pub const OWN: &str = "gateway-tunnel";

/// In the list of roles.
pub const ENTRY: Entry = Entry {
    name: NAME,
    module: module_path!(),
    runs_in: Deployment::ALL,
    build: |parts| {
        let roles = parts.config.roles;
        let other_name = (!roles.serves_users()).then_some(OWN);
        let health = parts.health.of(other_name.unwrap_or(NAME));
        let follow = match parts.managed()? {
            // The process that manages renews the certificate itself.
            Some((_, store)) if !roles.manages() => {
                Some(Follow { store, identities: parts.identities.clone(), cluster: parts.cluster.clone() })
            }
            _ => None,
        };
        let (tunnels, status) = (parts.tunnels.clone(), parts.status.clone());
        Ok(Some(Arc::new(ClusterconnectAgent { other_name, tunnels, status, health, follow })))
    },
};

/// Follows a certificate that another process looks after.
pub struct Follow {
    /// Where it is kept.
    pub store: Store,
    /// Where a new certificate is published for all that use it.
    pub identities: Identities,
    /// Whose it must be.
    pub cluster: ClusterId,
}

/// Keeps the tunnels to the gateway up. What comes through them is served by other roles.
pub struct ClusterconnectAgent {
    other_name: Option<&'static str>,
    tunnels: Arc<Tunnels>,
    status: Arc<StatusBoard>,
    health: Reporter,
    follow: Option<Follow>,
}

impl ClusterconnectAgent {
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
    fn other_name(&self) -> Option<&'static str> {
        self.other_name
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
