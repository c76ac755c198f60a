//! A cluster to the live tunnels that lead there, best first. Looks only at what is known here; it waits for nothing, so
//! that no agent means 503 at once (docs/features.md K8).

use std::sync::Arc;

use super::refusal::{Kind, Refusal};
use crate::{
    cluster::ClusterRef, core::Core, fleet::registry::LiveTunnel, metrics::labels::Stage, sessions::slots::Full,
};

/// The tunnels of a cluster at this gateway: not draining ones first, then by load. There may be none where another
/// replica has some ([`open`](super::open)).
#[tracing::instrument(name = "locate", level = "debug", skip_all)]
pub fn locate(core: &Core, cluster: &ClusterRef) -> Result<Vec<Arc<LiveTunnel>>, Refusal> {
    let tunnels = core.tunnels.of(&cluster.key);
    let elsewhere = || core.hops.as_ref().is_some_and(|hops| hops.leads_to(&cluster.key));
    if tunnels.is_empty() && !elsewhere() { Err(Refusal::new(Stage::Locate, Kind::NoAgent)) } else { Ok(tunnels) }
}

impl From<Full> for Refusal {
    fn from(Full { name, value }: Full) -> Self {
        Self::new(Stage::Locate, Kind::Limit { name, value: u64::from(value) })
    }
}
