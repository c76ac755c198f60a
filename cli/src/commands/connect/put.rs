//! Makes the cluster's resource, or takes it over, with the cluster's public key.

use http::{HeaderValue, Method, StatusCode, header};
use serde_json::{Value, json};

use super::{Args, precheck::Prepared};
use crate::{
    api::{ApiError, Call, Wait, at, versions},
    failure::{Failure, Outcome},
};

/// Makes the resource, or gives the one that is there what was typed. It names the public key.
pub async fn put(prepared: &Prepared, args: &Args, public_key: &str) -> Outcome<Value> {
    let body = body(prepared, args, public_key);
    let target = at(&prepared.id, versions::CLUSTERS);
    let mut call = Call::new(Method::PUT, &target).json(&body);
    if prepared.before.resource.is_none() {
        // Of two who connect clusters under one name at the same time, one is told.
        call.headers.push((header::IF_NONE_MATCH, HeaderValue::from_static("*")));
    }
    let answer = prepared.api.send(&call).await.map_err(|failure| explain(failure, prepared))?;
    prepared.api.followed(answer, &target, "making the resource", Wait::default()).await
}

/// Properties that a user sets by other ways than by connecting.
const KEPT: &[&str] = &[
    "distributionVersion",
    "privateLinkState",
    "privateLinkScopeResourceId",
    "azureHybridBenefit",
    "aadProfile",
    "arcAgentProfile",
    "securityProfile",
    "oidcIssuerProfile",
    "gateway",
    "arcAgentryConfigurations",
];

fn body(prepared: &Prepared, args: &Args, public_key: &str) -> Value {
    let mut properties = json!({"agentPublicKeyCertificate": public_key});
    // A PUT replaces: what was set for the resource and is not typed here stays as it is.
    for name in KEPT {
        if let Some(kept) = prepared.before.resource.as_ref().map(|resource| &resource["properties"][*name])
            && !kept.is_null()
        {
            properties[*name] = kept.clone();
        }
    }
    if let Some(enabled) = args.agent.azure_rbac {
        properties["aadProfile"]["enableAzureRBAC"] = enabled.into();
    }
    if let Some(disable) = args.agent.disable_auto_upgrade {
        properties["arcAgentProfile"]["agentAutoUpgrade"] = if disable { "Disabled" } else { "Enabled" }.into();
    }
    for (name, typed) in [("distribution", &args.agent.distribution), ("infrastructure", &args.agent.infrastructure)] {
        let kept = prepared.before.property(name);
        if let Some(value) = typed.as_deref().or(Some(kept).filter(|kept| !kept.is_empty())) {
            properties[name] = value.into();
        }
    }
    let mut body = json!({
        "location": prepared.location,
        "identity": {"type": "SystemAssigned"},
        "properties": properties,
    });
    if let Some(tags) = args.tags.json().or_else(|| prepared.before.copy("tags").cloned()) {
        body["tags"] = tags;
    }
    body
}

fn explain(failure: Failure, prepared: &Prepared) -> Failure {
    let name = prepared.id.name();
    match ApiError::behind(&failure).map(|error| (error.status, error.code.clone())) {
        Some((StatusCode::PRECONDITION_FAILED, _)) => failure.hint(format!(
            "another caller has just created {name}: choose another name, or --existing if it is this cluster's"
        )),
        Some((StatusCode::CONFLICT, code)) if code == "PublicKeyMismatch" => failure.hint(
            "agents with another key are connected: --key-file FILE with that key, or towline delete first".to_owned(),
        ),
        _ => failure,
    }
}
