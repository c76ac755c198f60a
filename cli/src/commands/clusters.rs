//! `towline list`, `show` and `update`: connected clusters.

use std::process::ExitCode;

use anyhow::anyhow;
use http::Method;
use serde_json::{Value, json};

use super::connect;
use crate::{
    api::{Api, ApiError, Call, Wait, at, versions},
    args::{ListArgs, ShowArgs, UpdateArgs},
    context::{CLUSTERS, Context},
    failure::{Failure, Outcome},
    output::{self, Column},
};

/// What is shown of each cluster of a list.
const COLUMNS: &[Column] = &[
    ("Name", "/name"),
    ("ResourceGroup", "/resourceGroup"),
    ("Location", "/location"),
    ("Status", "/properties/connectivityStatus"),
    ("LastSeen", "/properties/lastConnectivityTime"),
    ("Kubernetes", "/properties/kubernetesVersion"),
    ("Nodes", "/properties/totalNodeCount"),
    ("Distribution", "/properties/distribution"),
    ("Agent", "/properties/agentVersion"),
    ("Tags", "/tags"),
];
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

/// `towline list`.
pub async fn list(args: ListArgs) -> Outcome {
    let context = Context::open(&args.common.context).await?;
    let scope = match &args.resource_group {
        Some(group) => context.group(group)?,
        None => context.subscription()?,
    };
    let target = at(format!("{scope}/providers/{}/{}", CLUSTERS.0, CLUSTERS.1), versions::CLUSTERS);
    let rows: Vec<Value> = Api::of(&context)?.list(&target).await?.into_iter().map(with_group).collect();
    output::print_list(rows, &args.common.output, COLUMNS, "no connected clusters; towline connect makes one")?;
    Ok(ExitCode::SUCCESS)
}

/// `towline show`.
pub async fn show(args: ShowArgs) -> Outcome {
    let context = Context::open(&args.common.context).await?;
    let id = context.cluster(&args.cluster.resource_group, &args.cluster.name)?;
    let found = Api::of(&context)?.get(&at(id, versions::CLUSTERS)).await?;
    output::print(&with_group(found), &args.common.output, DETAILS)?;
    Ok(ExitCode::SUCCESS)
}

/// Changes a cluster by what is read, changed and written back, if nobody else changed it in between: what PATCH cannot say.
/// Repeats when somebody did.
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

/// `towline update`.
pub async fn update(args: UpdateArgs) -> Outcome {
    let mut body = json!({});
    if let Some(tags) = args.tags.json() {
        body["tags"] = tags;
    }
    for (name, value) in [("distribution", &args.distribution), ("distributionVersion", &args.distribution_version)] {
        if let Some(value) = value {
            body["properties"][name] = value.as_str().into();
        }
    }
    let agents = connect::Update::read(&args)?;
    if body == json!({}) && args.auto_upgrade.is_none() && agents.is_none() {
        return Err(Failure::usage(anyhow!("nothing to change was given"))
            .hint("such as --tags team=web; towline update --help"));
    }
    let context = Context::open(&args.common.context).await?;
    let (api, id) = (Api::of(&context)?, context.cluster(&args.cluster.resource_group, &args.cluster.name)?);
    let target = at(&id, versions::CLUSTERS);
    if let Some(agents) = agents {
        connect::update_agents(agents, &context, &id).await?;
    }
    let mut shown = Value::Null;
    if let Some(on) = args.auto_upgrade {
        let word = if on { "Enabled" } else { "Disabled" };
        shown =
            rewrite(&api, &id, |cluster| cluster["properties"]["arcAgentProfile"]["agentAutoUpgrade"] = word.into())
                .await?;
    }
    if body != json!({}) {
        let answer = api.patch(&target, &body).await?;
        shown = api.followed(answer, &target, &format!("updating {}", args.cluster.name), Wait::default()).await?;
    }
    if shown.is_null() {
        shown = api.get(&target).await?;
    }
    output::print(&with_group(shown), &args.common.output, DETAILS)?;
    Ok(ExitCode::SUCCESS)
}
