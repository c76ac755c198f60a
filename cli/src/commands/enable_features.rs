//! `towline enable-features`.

use super::{
    connect::CatalogueArgs,
    features::{FeaturesArgs, turn},
};
use crate::failure::Outcome;

/// Turn features of a cluster on
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The features to turn on, and their cluster.
    #[command(flatten)]
    features: FeaturesArgs,
    /// With extensions: which catalogue.
    #[command(flatten)]
    catalogue: CatalogueArgs,
}

/// Turns them on.
pub async fn run(args: Args) -> Outcome {
    turn(args.features, &args.catalogue, true).await
}
