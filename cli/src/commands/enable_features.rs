//! `towline enable-features`.

use super::features::{FeaturesArgs, turn};
use crate::failure::Outcome;

/// Turn features of a cluster on
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which ones.
    #[command(flatten)]
    features: FeaturesArgs,
}

/// Turns them on.
pub async fn run(args: Args) -> Outcome {
    turn(args.features, true).await
}
