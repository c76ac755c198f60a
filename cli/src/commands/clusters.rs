//! Connected clusters: how one is named, what is shown of it, and a change that PATCH cannot say.

use http::Method;
use serde_json::Value;

use super::names;
use crate::{
    api::{Api, ApiError, Call, Wait, at, versions},
    failure::Outcome,
    output::Column,
};

/// A cluster by its name.
#[derive(Debug, clap::Args, Clone)]
pub struct NamedCluster {
    /// The cluster
    #[arg(short = 'n', long, value_name = "NAME", value_parser = names::cluster)]
    pub name: String,
    /// Its resource group
    #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group)]
    pub resource_group: String,
}

/// What is shown of one.
pub const DETAILS: &[Column] = &[
    ("Name", "/name"),
    ("ResourceGroup", "/resourceGroup"),
    ("Id", "/id"),
    ("Location", "/location"),
    ("Tags", "/tags"),
    ("Status", "/properties/connectivityStatus"),
    ("LastSeen", "/properties/lastConnectivityTime"),
    ("CertificateEnds", "/properties/managedIdentityCertificateExpirationTime"),
    ("Kubernetes", "/properties/kubernetesVersion"),
    ("Distribution", "/properties/distribution"),
    ("DistributionVersion", "/properties/distributionVersion"),
    ("Infrastructure", "/properties/infrastructure"),
    ("Nodes", "/properties/totalNodeCount"),
    ("Cores", "/properties/totalCoreCount"),
    ("Agent", "/properties/agentVersion"),
    ("AgentIs", "/properties/miscellaneousProperties/agentVersionState"),
    ("AgentUpgradesTo", "/properties/miscellaneousProperties/targetAgentVersion"),
    ("AgentUpgrade", "/properties/miscellaneousProperties/upgradeState"),
    ("AgentVersionLeft", "/properties/miscellaneousProperties/failedAgentVersion"),
    ("AgentState", "/properties/arcAgentProfile/agentState"),
    ("AgentErrors", "/properties/arcAgentProfile/agentErrors"),
    ("AutoUpgrade", "/properties/arcAgentProfile/agentAutoUpgrade"),
    ("AzureRbac", "/properties/aadProfile/enableAzureRBAC"),
    ("PrincipalId", "/identity/principalId"),
    ("State", "/properties/provisioningState"),
];

/// As the API shows it, with the resource group beside, as `az` has it.
pub fn with_group(mut row: Value) -> Value {
    let id = row["id"].as_str().and_then(|id| types::api::ResourceId::parse(id).ok());
    if let (Some(group), Some(row)) = (id.as_ref().and_then(|id| id.resource_group()), row.as_object_mut()) {
        row.insert("resourceGroup".to_owned(), group.into());
    }
    row
}

/// Changes a cluster by what is read, changed and written back, if nobody else changed it in between: what PATCH cannot
/// say. Repeats when somebody did.
pub async fn rewrite(api: &Api, id: &types::api::ResourceId, change: impl Fn(&mut Value)) -> Outcome<Value> {
    const TRIES: u32 = 5;
    let target = at(id, versions::CLUSTERS);
    let mut tries = 0;
    loop {
        tries += 1;
        let found = api.send(&Call::new(Method::GET, &target)).await?;
        let mut body = found.body.clone();
        change(&mut body);
        let put = Call::new(Method::PUT, &target).json(&body).if_match(found.header("etag"));
        match api.send(&put).await {
            Ok(answer) => {
                return api.followed(answer, &target, &format!("updating {}", id.name()), Wait::default()).await;
            }
            Err(failure)
                if tries < TRIES
                    && ApiError::behind(&failure).is_some_and(|error| error.code == "PreconditionFailed") => {}
            Err(failure) => return Err(failure),
        }
    }
}
