//! `towline disable-features`.

use super::{
    connect::CatalogueArgs,
    features::{FeaturesArgs, turn},
};
use crate::failure::Outcome;

/// Turn features of a cluster off
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The features to turn off, and their cluster.
    #[command(flatten)]
    features: FeaturesArgs,
}

/// Turns them off.
pub async fn run(args: Args) -> Outcome {
    turn(args.features, &CatalogueArgs::default(), false).await
}
