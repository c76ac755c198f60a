//! Resources of a connected cluster, such as extensions: which cluster, and waiting until its agents have done what is
//! wanted, with a line for each step.

use std::{collections::HashSet, convert::Infallible, time::Duration};

use types::api::ResourceId;

use super::names;
use crate::{
    api::{Answer, Api, ApiError, Wait},
    context::Context,
    failure::{Failure, Outcome},
    terminal::say,
};

/// Between two looks at how far it is.
const LOOK: Duration = Duration::from_secs(2);

/// The cluster of a resource.
#[derive(Debug, clap::Args, Clone)]
pub struct OnCluster {
    /// The cluster
    #[arg(short = 'c', long, alias = "cluster-name", value_name = "NAME", value_parser = names::cluster)]
    pub cluster: String,
    /// Its resource group
    #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group)]
    pub resource_group: String,
    /// Taken from scripts written for Azure's command; clusters have one type here
    #[arg(short = 't', long = "cluster-type", value_name = "TYPE", value_parser = ["connectedClusters"], ignore_case = true, hide = true)]
    _cluster_type: Option<String>,
}

impl OnCluster {
    /// ARM id of the cluster, in the subscription of `context`.
    pub fn id(&self, context: &Context) -> Outcome<ResourceId> {
        context.cluster(&self.resource_group, &self.cluster)
    }

    /// The options that name it, for hints.
    pub fn options(&self) -> String {
        format!("-g {} -c {}", self.resource_group, self.cluster)
    }
}

/// Waits until what an answer began has ended. Meanwhile `look` says which lines there are, oldest first; those that
/// are new are told, `known` ones are not. `None`: not known now.
pub async fn followed(
    api: &Api,
    answer: &Answer,
    what: &str,
    wait: Wait,
    known: Vec<String>,
    look: impl AsyncFn() -> Option<Vec<String>>,
) -> Outcome<()> {
    if wait.none {
        return Ok(());
    }
    tokio::select! {
        biased;
        ended = api.follow(answer, what, wait) => ended,
        never = tell(known, look) => match never {},
    }
}

async fn tell(known: Vec<String>, look: impl AsyncFn() -> Option<Vec<String>>) -> Infallible {
    let mut told: HashSet<String> = known.into_iter().collect();
    loop {
        tokio::time::sleep(LOOK).await;
        // What is not known now is known at the next look, or by the end of the operation.
        for new in look().await.unwrap_or_default() {
            if told.insert(new.clone()) {
                say(&format!("  {new}"));
            }
        }
    }
}

/// Whether an operation failed after it had begun.
pub fn is_of_operation(failure: &Failure) -> bool {
    ApiError::behind(failure).is_some_and(|error| error.status.is_success())
}

/// Whether a failure says that the resource is not there.
pub fn is_missing(failure: &Failure) -> bool {
    ApiError::behind(failure).is_some_and(|error| error.code == "ResourceNotFound")
}
