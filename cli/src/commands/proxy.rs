//! `towline proxy`: the Arc way of working, a local address for a cluster (features rows K3 to K5).

use anyhow::anyhow;

use crate::{args::ProxyArgs, failure::Outcome};

/// Serves until Ctrl+C.
pub async fn run(_args: ProxyArgs) -> Outcome {
    Err(anyhow!("not in this build yet").into())
}
