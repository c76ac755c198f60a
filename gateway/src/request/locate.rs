//! A cluster to the live tunnels that lead there, best first. Looks only at what is here; it waits for nothing, so that
//! no agent means 503 at once (docs/features.md K8).

use std::sync::Arc;

use super::respond::{Kind, Refusal};
use crate::{
    cluster::ClusterRef,
    fleet::registry::{LiveTunnel, Registry},
    metrics::labels::Stage,
    sessions::slots::Full,
};

/// The tunnels of a cluster: not draining ones first, then by load.
#[tracing::instrument(name = "locate", level = "debug", skip_all)]
pub fn locate(registry: &Registry, cluster: &ClusterRef) -> Result<Vec<Arc<LiveTunnel>>, Refusal> {
    let tunnels = registry.of(&cluster.key);
    if tunnels.is_empty() { Err(Refusal::new(Stage::Locate, Kind::NoAgent)) } else { Ok(tunnels) }
}

impl From<Full> for Refusal {
    fn from(Full { name, value }: Full) -> Self {
        Self::new(Stage::Locate, Kind::Limit { name, value: u64::from(value) })
    }
}
