//! Connected clusters: `Microsoft.Kubernetes/connectedClusters` (docs/features.md R1-R5, R12, C1-C5).

use ::catalogue::version::Version;
use auth::rbac::{Action, Plane, Scope};
use aws_lc_rs::{
    digest,
    signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey},
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use futures_util::future::BoxFuture;
use http::StatusCode;
use serde_json::{Map, Value, json};
use types::{
    api::{ErrorDetail, ResourceId},
    ids::ClusterId,
    instants::instant,
};

use super::{
    Acting, Kind, Place, Showing, Writing,
    schema::{Property, Type},
};
use crate::{
    api_error::ApiError,
    cluster::{
        Agents,
        upgrade::{self, Noted},
        wanted::{self, Wanted},
    },
    connectivity::Status,
    control::Control,
    directory::{Decides, ReadCluster},
    identity::Caller,
    random,
    resources::filter,
    skew,
    store::{batch::PASSED_AT, resources::Stored},
    stored::{properties, properties_mut},
};

mod credential;
pub mod facts;

/// The kind of connected clusters.
pub struct ConnectedClusters;

/// The full type.
pub const NAME: &str = types::api::id::CONNECTED_CLUSTERS;
const OLD: &str = "2024-01-02";
const SWITCH: &[&str] = &["Enabled", "Disabled"];
const BENEFIT: &[&str] = &["True", "False", "NotApplicable"];

const AAD_PROFILE: &[Property] = &[
    Property::new("enableAzureRBAC", Type::Bool),
    Property::new("adminGroupObjectIDs", Type::List(&Type::Text)),
    Property::new("tenantID", Type::Text),
];
const COMPONENT: &[Property] = &[
    Property::new("type", Type::Text),
    Property::new("userSpecifiedVersion", Type::Text),
    Property::new("majorVersion", Type::Count),
    Property::read_only("currentVersion", Type::Text),
];
const AGENT_ERROR: &[Property] = &[
    Property::read_only("message", Type::Text),
    Property::read_only("severity", Type::Text),
    Property::read_only("component", Type::Text),
    Property::read_only("time", Type::Instant),
];
const AGENT_PROFILE: &[Property] = &[
    Property::new("desiredAgentVersion", Type::Text),
    Property::new("agentAutoUpgrade", Type::Words(SWITCH)).or("Enabled"),
    Property::new("systemComponents", Type::List(&Type::Object(COMPONENT))).since(OLD),
    Property::read_only("agentErrors", Type::List(&Type::Object(AGENT_ERROR))).since(OLD),
    Property::read_only("agentState", Type::Text).since(OLD),
];
const ENABLED: &[Property] = &[Property::new("enabled", Type::Bool)];
const SECURITY: &[Property] = &[Property::new("workloadIdentity", Type::Object(ENABLED))];
const OIDC_ISSUER: &[Property] = &[
    Property::new("enabled", Type::Bool),
    Property::read_only("issuerUrl", Type::Text),
    Property::new("selfHostedIssuerUrl", Type::Text),
];
const AGENTRY: &[Property] = &[
    Property::new("feature", Type::Text).identity(),
    Property::new("settings", Type::Texts),
    Property::new("protectedSettings", Type::Texts).write_only(),
];
const PROPERTIES: &[Property] = &[
    Property::new(KEY, Type::Checked(public_key)).required(),
    Property::read_only("kubernetesVersion", Type::Text),
    Property::read_only("totalNodeCount", Type::Count),
    Property::read_only("totalCoreCount", Type::Count),
    Property::read_only("agentVersion", Type::Text),
    // Written by clients that send back what they read; it must then be what is there.
    Property::new("provisioningState", Type::Text),
    Property::new("distribution", Type::Text).or("generic"),
    Property::new("distributionVersion", Type::Text),
    Property::new("infrastructure", Type::Text).or("generic"),
    Property::read_only("offering", Type::Text),
    Property::read_only("managedIdentityCertificateExpirationTime", Type::Instant),
    Property::read_only("lastConnectivityTime", Type::Instant),
    Property::read_only("connectivityStatus", Type::Text),
    Property::new("privateLinkState", Type::Words(SWITCH)).or("Disabled"),
    Property::new("privateLinkScopeResourceId", Type::Text),
    Property::new("azureHybridBenefit", Type::Words(BENEFIT)).or("NotApplicable"),
    Property::new("aadProfile", Type::Object(AAD_PROFILE)),
    Property::new("arcAgentProfile", Type::Object(AGENT_PROFILE)),
    Property::new("securityProfile", Type::Object(SECURITY)).since(OLD),
    Property::new("oidcIssuerProfile", Type::Object(OIDC_ISSUER)).since(OLD),
    Property::new("gateway", Type::Object(ENABLED)).since(OLD),
    Property::new("arcAgentryConfigurations", Type::List(&Type::Object(AGENTRY))).since(OLD),
    Property::read_only("miscellaneousProperties", Type::Texts),
];
const IDENTITY: &[Property] = &[
    Property::new("type", Type::Words(&["None", "SystemAssigned"])).required(),
    Property::read_only("principalId", Type::Text),
    Property::read_only("tenantId", Type::Text),
];
const SCHEMA: &[Property] = &[
    Property::new("location", LOCATION).required(),
    Property::new("tags", Type::Tags),
    Property::new("kind", Type::Words(&["ProvisionedCluster"])),
    Property::new("identity", Type::Object(IDENTITY)).required(),
    Property::new("properties", Type::Object(PROPERTIES)).required(),
];
/// Beyond what Azure's PATCH has, so that a switch of upgrades needs no read before it.
const PATCH_PROFILE: &[Property] =
    &[Property::new("desiredAgentVersion", Type::Text), Property::new("agentAutoUpgrade", Type::Words(SWITCH))];
const PATCH_PROPERTIES: &[Property] = &[
    Property::new("arcAgentProfile", Type::Object(PATCH_PROFILE)),
    Property::new("distribution", Type::Text),
    Property::new("distributionVersion", Type::Text),
    Property::new("azureHybridBenefit", Type::Words(BENEFIT)),
    Property::new("gateway", Type::Object(ENABLED)),
];
const PATCH: &[Property] = &[
    Property::new("location", LOCATION),
    Property::new("tags", Type::Tags),
    Property::new("properties", Type::Object(PATCH_PROPERTIES)),
];

impl Kind for ConnectedClusters {
    fn name(&self) -> &'static str {
        NAME
    }

    fn api_versions(&self) -> &'static [&'static str] {
        &[
            "2021-03-01",
            "2021-10-01",
            "2022-05-01-preview",
            "2022-10-01-preview",
            "2023-11-01-preview",
            "2024-01-01",
            "2024-02-01-preview",
            "2024-06-01-preview",
            "2024-07-01-preview",
            "2024-07-15-preview",
            "2024-12-01-preview",
            "2025-08-01-preview",
            "2025-12-01-preview",
            "2026-02-01-preview",
            "2026-03-01",
            "2026-05-01",
        ]
    }

    fn place(&self) -> Place {
        Place::ResourceGroup
    }

    fn schema(&self) -> &'static [Property] {
        SCHEMA
    }

    fn patch_schema(&self) -> Option<&'static [Property]> {
        Some(PATCH)
    }

    fn merge(&self, body: &mut Map<String, Value>, part: &Map<String, Value>) {
        for (name, value) in part {
            let (true, Some(new)) = (name == "properties", value.as_object()) else {
                body.insert(name.clone(), value.clone());
                continue;
            };
            let own = properties_mut(body);
            for (name, value) in new {
                match (name.as_str(), value) {
                    // Of the agents' profile what is named alone: the rest of it is not for a PATCH.
                    ("arcAgentProfile", Value::Object(profile)) => {
                        let kept = own.entry(name).or_insert_with(|| json!({}));
                        if !kept.is_object() {
                            *kept = json!({});
                        }
                        kept.as_object_mut().into_iter().for_each(|kept| kept.extend(profile.clone()));
                    }
                    _ => drop(own.insert(name.clone(), value.clone())),
                }
            }
        }
    }

    fn check_name(&self, name: &str) -> Result<(), ErrorDetail> {
        super::usual_name(name, 63, "-_.").and_then(|()| {
            let whole = name.starts_with(|c: char| c.is_ascii_alphanumeric());
            if whole { Ok(()) } else { super::usual_name("-", 63, "-_.") }
        })
    }

    fn matches(&self, text: &str, stored: &Stored, _caller: &Caller) -> Result<bool, ApiError> {
        filter::resource(text, stored)
    }

    fn deletes_slowly(&self) -> bool {
        true
    }

    fn parts(&self) -> &'static [&'static str] {
        &["namespaces"]
    }

    fn decides(&self) -> Option<Decides> {
        Some(Decides::Clusters(|stored| ReadCluster {
            agents: principal(stored).map_or(Agents::Nobody, |principal| Agents::Identity {
                principal: principal.to_owned(),
                resource: first_principal(stored).unwrap_or(principal).to_owned(),
                onboarding: onboarding_key(stored).map(|key| key_name(&key)),
            }),
            wanted: Wanted::of(stored),
        }))
    }

    /// What is below a cluster of the configuration file would count for nothing now, and take effect when the entry is
    /// removed. Deleting it takes nothing from the configuration.
    fn may_hold(&self, at: &ResourceId, id: &ResourceId, control: &Control) -> Result<(), ApiError> {
        if !is_configured(at, control) {
            return Ok(());
        }
        let message = format!(
            "'{id}' is below the cluster '{at}', which is defined in the gateway's configuration file ([[clusters]]): nothing at it can be created or changed through the API. Give a role at its resource group or its subscription instead, or use [[grants]] of that file."
        );
        Err(ApiError::of(StatusCode::CONFLICT, "ClusterInConfiguration", message).at("id"))
    }

    fn may_change(&self, id: &ResourceId, control: &Control) -> Result<(), ApiError> {
        if !is_configured(id, control) {
            return Ok(());
        }
        let message = format!(
            "The cluster '{id}' is defined in the gateway's configuration file ([[clusters]]), which alone decides about it: it cannot be created, changed or deleted through the API. Choose another name, or ask the gateway's operator to remove the entry."
        );
        Err(ApiError::of(StatusCode::CONFLICT, "ClusterInConfiguration", message).at("name"))
    }

    fn write<'a>(
        &'a self,
        body: &'a mut Map<String, Value>,
        writing: &'a Writing<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            same_location(body, writing)?;
            // Everything else in this program knows clusters by this id: one that it cannot express is none.
            cluster_id(writing.id)?;
            let old = writing.old.and_then(|old| old.body.as_object());
            let agents = successor(body, old, writing).await?;
            wanted::check(properties_mut(body))?;
            let state = properties_mut(body).remove("provisioningState");
            let there = old.and_then(properties).and_then(|old| old.get("provisioningState"));
            if let Some(state) = state
                && there.is_some_and(|there| *there != state)
            {
                let message = "The property 'properties.provisioningState' is written by this service; leave it out.";
                return Err(ApiError::bad_request("InvalidRequestContent", message).at("properties.provisioningState"));
            }
            // What the agent and this service wrote stays.
            for name in PROPERTIES.iter().filter(|p| p.access == super::schema::Access::ReadOnly).map(|p| p.name) {
                if let Some(value) = old.and_then(properties).and_then(|old| old.get(name)) {
                    properties_mut(body).insert(name.to_owned(), value.clone());
                }
            }
            check_desired_version(properties_mut(body), old.and_then(properties), writing).await?;
            if let Some(old) = old.and_then(properties)
                && let Some(agent) = writing.control.store.agent(writing.id.key()).await?
            {
                facts::unwrite(properties_mut(body), old, &agent.facts);
            }
            properties_mut(body).insert("provisioningState".to_owned(), json!("Succeeded"));
            let principal = match agents {
                Holder::Same(kept) => {
                    keep_agents_since(body, agents_since(writing.old));
                    kept
                }
                // The store writes at which revision.
                Holder::Others => {
                    keep_agents_since(body, agents_since(writing.old) + 1);
                    None
                }
            };
            identity(body, principal, &writing.control.settings.tenant);
            keep_first_principal(body, writing.old.and_then(first_principal));
            Ok(())
        })
    }

    /// To the holder of another key, who may be anybody that connects clusters.
    fn passes_on(&self, old: &Stored, new: &Map<String, Value>) -> bool {
        since(new) != agents_since(Some(old))
    }

    fn has_agents(&self) -> bool {
        true
    }

    fn show(&self, shown: &mut Map<String, Value>, id: &str, showing: &Showing<'_>) {
        let Some(agent) = showing.agent else { return };
        // Of one that was seen lately a tunnel says nothing more, and of most clusters of a page neither is asked.
        let live = !Status::is_lately(agent, showing.now_ms)
            && showing.control.has_tunnels()
            && id.parse::<ClusterId>().is_ok_and(|id| showing.control.is_live(&id.key()));
        let status = Status::of(agent, live, showing.now_ms);
        let seen = agent.last_seen_ms.or_else(|| live.then_some(showing.now_ms));
        let ends = agent.certificate.as_ref().map(|certificate| certificate.ends_ms);
        let properties = properties_mut(shown);
        properties.insert("connectivityStatus".to_owned(), status.as_str().into());
        for (name, at) in [
            ("lastConnectivityTime", seen.map(|at| at.min(showing.now_ms))),
            ("managedIdentityCertificateExpirationTime", ends),
        ] {
            properties.insert(name.to_owned(), at.map(instant).into());
        }
        facts::show(properties, &agent.facts, showing.version);
    }

    fn actions(&self) -> &'static [&'static str] {
        &["listClusterUserCredential"]
    }

    fn describe_action(&self, _action: &str) -> (Value, Value) {
        credential::described()
    }

    fn act<'a>(&'a self, acting: &'a Acting<'a>) -> BoxFuture<'a, Result<Value, ApiError>> {
        Box::pin(async move {
            connect_is_on(acting.resource)?;
            credential::credential(acting)
        })
    }
}

/// The version that a person wants the agents to have, where it is another one than before: agents that are not upgraded
/// by themselves get it at once, so it is refused where it cannot be had. With automatic upgrades it does not count, as
/// clients send it beside `Enabled`.
async fn check_desired_version(
    own: &mut Map<String, Value>,
    old: Option<&Map<String, Value>>,
    writing: &Writing<'_>,
) -> Result<(), ApiError> {
    // Whoever turns them off or on has seen what failed: it is tried again.
    if old.is_some_and(|old| upgrade::is_automatic(old) != upgrade::is_automatic(own)) {
        Noted::default().keep(own);
    }
    if upgrade::is_automatic(own) {
        return Ok(());
    }
    // Beside automatic upgrades it never counted: who turns them off and does not name a version wants the one that runs.
    if old.is_some_and(upgrade::is_automatic) && !upgrade::names_version(properties(writing.said)) {
        upgrade::forget_desired(own);
    }
    // What the gateway chose before counts no more, and is chosen anew when it may.
    Noted::of(own).without_target().keep(own);
    let Some(desired) = upgrade::desired(own) else { return Ok(()) };
    if old.and_then(upgrade::desired) == Some(desired) {
        return Ok(());
    }
    let refused = |why: String| {
        let message = format!("The agents cannot be given version '{desired}': {why}.");
        Err(ApiError::bad_request("InvalidAgentVersion", message).at("properties.arcAgentProfile.desiredAgentVersion"))
    };
    let Ok(version) = desired.parse::<Version>() else {
        return refused("it is not a version such as 1.2.3".to_owned());
    };
    if skew::judge(desired).refused().is_some() {
        return refused(skew::served());
    }
    let agent = writing.control.store.agent(writing.id.key()).await?;
    let running = agent.as_ref().and_then(|agent| agent.facts.get("agentVersion")).and_then(Value::as_str);
    if let Some(running) = running.filter(|running| !skew::may_change(running, desired)) {
        return refused(format!(
            "they have {running}, and a downgrade of more than {} minor version is not supported; connect the cluster again with the older version instead",
            types::agent_api::MINORS_BEHIND
        ));
    }
    let index = writing.control.catalogue();
    let kind = index.as_ref().and_then(|index| index.types.iter().find(|kind| kind.name == upgrade::TYPE));
    if let Some(kind) = kind.filter(|kind| !kind.versions.iter().any(|release| release.version.is(&version))) {
        const NAMED: usize = 10;
        let known: Vec<String> = kind.versions.iter().take(NAMED).map(|release| release.version.to_string()).collect();
        return refused(format!(
            "the gateway's catalogue has no such version of {}; it has {}",
            upgrade::TYPE,
            known.join(", ")
        ));
    }
    Ok(())
}

/// The public key that a kept cluster's agents prove possession of: DER.
pub fn onboarding_key(stored: &Stored) -> Option<Vec<u8>> {
    let text = stored.body.get("properties")?.get("agentPublicKeyCertificate")?.as_str()?;
    let der = BASE64.decode(text).ok().filter(|der| !der.is_empty())?;
    Some(certs::rsa_key(&der).unwrap_or(der))
}

/// What certificates call the onboarding key that they rest on: the beginning of its fingerprint.
pub fn key_name(key: &[u8]) -> String {
    const DIGITS: usize = 32;
    let mut name = fingerprint(key);
    name.truncate(DIGITS);
    name
}

/// SHA-256 of a key's DER in hex.
pub fn fingerprint(key: &[u8]) -> String {
    types::ids::hex(digest::digest(&digest::SHA256, key).as_ref())
}

/// The object id of a kept cluster's identity.
pub fn principal(stored: &Stored) -> Option<&str> {
    stored.body.get("identity")?.get("principalId")?.as_str()
}

/// The object id of the identity that a kept cluster had first, by which agents know the resource.
pub fn first_principal(stored: &Stored) -> Option<&str> {
    stored.body.get(FIRST_PRINCIPAL).and_then(Value::as_str).or_else(|| principal(stored))
}

/// Notes it in a body whose identity is another one by now, or that has none. What was asked of the resource before, such
/// as a deletion that waits for its agents, is still asked of it.
fn keep_first_principal(body: &mut Map<String, Value>, first: Option<&str>) {
    let present = body.get("identity").and_then(|identity| identity.get("principalId")?.as_str());
    match first.filter(|first| present != Some(*first)) {
        Some(first) => drop(body.insert(FIRST_PRINCIPAL.to_owned(), first.into())),
        None => drop(body.remove(FIRST_PRINCIPAL)),
    }
}

/// The id by which the rest of this program knows a cluster.
pub fn cluster_id(id: &ResourceId) -> Result<ClusterId, ApiError> {
    id.as_str().parse::<ClusterId>().map_err(|error| {
        let message = format!("The id '{id}' cannot be a cluster's: {error}.");
        ApiError::bad_request("InvalidResourceName", message).at("name")
    })
}

/// Where a resource is, as its maker names it, such as `eastus` or `West Europe`; this gateway is everywhere.
pub const LOCATION: Type = Type::Shaped(location, "^[A-Za-z0-9][A-Za-z0-9 ._-]{0,89}$");

fn location(text: &str) -> Result<(), String> {
    const LONGEST: usize = 90;
    let part = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b' ' | b'-' | b'_' | b'.');
    let begins = text.as_bytes().first().is_some_and(u8::is_ascii_alphanumeric);
    if begins && text.len() <= LONGEST && text.bytes().all(part) {
        Ok(())
    } else {
        Err(format!(
            "a location such as eastus: 1 to {LONGEST} letters, digits, spaces and - _ ., the first a letter or digit"
        ))
    }
}

/// A resource does not move (docs/features.md R12).
pub fn same_location(body: &mut Map<String, Value>, writing: &Writing<'_>) -> Result<(), ApiError> {
    let Some(old) = writing.old.and_then(|old| old.body.get("location")).and_then(Value::as_str) else { return Ok(()) };
    let new = body.get("location").and_then(Value::as_str).unwrap_or(old);
    let plain = |name: &str| name.replace(' ', "").to_ascii_lowercase();
    if plain(new) != plain(old) {
        let message = format!(
            "The resource '{}' already exists in location '{old}'. A resource with the same name cannot be created in location '{new}'; choose another name, or delete the existing one.",
            writing.id.name()
        );
        return Err(ApiError::of(StatusCode::CONFLICT, "InvalidResourceLocation", message).at("location"));
    }
    body.insert("location".to_owned(), old.into());
    Ok(())
}

/// Member of a body with the object id of the first identity, where the present one is another. No schema knows it, and so
/// nobody is shown it.
const FIRST_PRINCIPAL: &str = "firstPrincipalId";
/// The property that names the onboarding key.
const KEY: &str = "agentPublicKeyCertificate";

/// The onboarding key of a body, as it is written there.
fn key_text(body: &Map<String, Value>) -> &str {
    properties(body).and_then(|of| of.get(KEY)).and_then(Value::as_str).unwrap_or_default()
}

fn is_identified(body: &Map<String, Value>) -> bool {
    body.get("identity").is_some_and(|identity| identity["type"] == "SystemAssigned")
}

/// At which revision of the store a kept cluster got the agents that it has; zero where they are those that it was
/// created for, or were chosen by somebody who may delete it. What was given to its agents before was given to others.
pub fn agents_since(stored: Option<&Stored>) -> i64 {
    stored.and_then(|stored| stored.body.as_object()).map_or(0, since)
}

fn since(body: &Map<String, Value>) -> i64 {
    body.get(PASSED_AT).and_then(Value::as_i64).unwrap_or_default()
}

/// No schema knows the member, and so nobody is shown it.
fn keep_agents_since(body: &mut Map<String, Value>, revision: i64) {
    match revision {
        0 => drop(body.remove(PASSED_AT)),
        revision => drop(body.insert(PASSED_AT.to_owned(), revision.into())),
    }
}

/// Whose agents a written cluster has.
enum Holder {
    /// Those of before, or of somebody who may have all that is theirs: the identity with this object id stays. None:
    /// there is none yet.
    Same(Option<String>),
    /// Others, who get an identity of their own, and nothing that was given to those of before.
    Others,
}

/// Whose agents the written cluster has.
///
/// Another key, or no identity any more, hands the cluster to other agents. While agents are connected they would be
/// locked out:
/// refused. A caller who may delete the cluster could as well delete it and create it again: the identity
/// stays. Any other caller
/// - is refused while a certificate holds, and where the resource was made with a key that no agent has come with yet:
///   that key binds (R13), for everybody but who made the resource;
/// - connects an expired cluster (C4), or one that had no key, as a new identity: what is assigned to the old one was
///   not given to the holder of the new key.
async fn successor(
    body: &Map<String, Value>,
    old: Option<&Map<String, Value>>,
    writing: &Writing<'_>,
) -> Result<Holder, ApiError> {
    const DELETE: &str = "Microsoft.Kubernetes/connectedClusters/delete";
    let Some(old) = old else { return Ok(Holder::Same(None)) };
    let kept = old.get("identity").and_then(|identity| identity.get("principalId")).and_then(Value::as_str);
    let kept = kept.map(str::to_owned);
    let (before, now) = (key_text(old), key_text(body));
    if before == now && (is_identified(body) || !is_identified(old)) {
        return Ok(Holder::Same(kept));
    }
    let live = writing.control.is_live(&cluster_id(writing.id)?.key());
    let agent = writing.control.store.agent(writing.id.key()).await?;
    let status = agent.as_ref().map(|agent| Status::of(agent, live, writing.now_ms));
    let has_certificate = agent.is_some_and(|agent| agent.certificate.is_some());
    let certified = has_certificate && status != Some(Status::Expired);
    // Where the key is taken away the agents were, too, and may have been heard a moment ago.
    if live || (certified && status == Some(Status::Connected) && !now.is_empty()) {
        let message = "The cluster is connected with another public key. Disconnect its agent first, or delete the resource and connect the cluster again.";
        return Err(ApiError::of(StatusCode::CONFLICT, "PublicKeyMismatch", message).at(format!("properties.{KEY}")));
    }
    let (scope, caller) = (Scope::from(writing.id), writing.caller);
    let directory = writing.control.directory();
    if directory
        .decide(caller.principals(), Plane::Control, &Action::new(DELETE), &scope, writing.now_ms / 1000)
        .is_ok()
    {
        return Ok(Holder::Same(kept));
    }
    let forbidden = || ApiError::forbidden(caller.name(), caller.object_id(), DELETE, scope.as_str());
    if certified {
        return Err(forbidden());
    }
    if !before.is_empty() && !has_certificate && !is_creator(old, caller) {
        let mut error = forbidden().at(format!("properties.{KEY}"));
        error.detail.message += " The cluster was created with another public key, which no agent has enrolled with yet: enrol with that key.";
        return Err(error);
    }
    Ok(Holder::Others)
}

/// Whether a kept resource was created by this caller, who then gave its first key, too.
fn is_creator(old: &Map<String, Value>, caller: &Caller) -> bool {
    let said = |name: &str| old.get("systemData").and_then(|data| data.get(name)).and_then(Value::as_str);
    caller.identity().is_some()
        && said("createdBy") == Some(caller.name())
        && said("createdByType") == Some(caller.kind())
}

/// A system-assigned identity is made once and stays (docs/features.md R5).
fn identity(body: &mut Map<String, Value>, kept: Option<String>, tenant: &str) {
    let Some(identity) = body.get_mut("identity").and_then(Value::as_object_mut) else { return };
    if identity.get("type").and_then(Value::as_str) != Some("SystemAssigned") {
        return;
    }
    identity.insert("principalId".to_owned(), kept.unwrap_or_else(random::guid).into());
    identity.insert("tenantId".to_owned(), tenant.into());
}

/// Empty, or base64 of the DER of an RSA public key of 2048 to 8192 bits: PKCS#1 (as `az connectedk8s connect` sends
/// it), SubjectPublicKeyInfo, or an X.509 certificate of it. Another key could never prove anything.
fn public_key(text: &str) -> Result<(), String> {
    const WANTED: &str = "base64 of an RSA public key of 2048 to 8192 bits (DER: PKCS#1, SubjectPublicKeyInfo, or an X.509 certificate of such a key); or empty for a cluster without agents";
    const BITS: std::ops::RangeInclusive<usize> = 2048..=8192;
    const LONGEST: usize = 16 * 1024;
    if text.is_empty() {
        return Ok(());
    }
    let wanted = || WANTED.to_owned();
    if text.len() > LONGEST {
        return Err(wanted());
    }
    let der = BASE64.decode(text).map_err(|_| wanted())?;
    let key = certs::rsa_key(&der).ok_or_else(wanted)?;
    // What cannot be read would fail before a signature is looked at.
    let is_read = || UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &key).parse().is_ok();
    let fits = certs::rsa_bits(&key).is_some_and(|bits| BITS.contains(&bits)) && is_read();
    if fits { Ok(()) } else { Err(wanted()) }
}

/// Nobody is told how to reach a cluster that lets nobody through (docs/features.md K9).
fn connect_is_on(resource: &Stored) -> Result<(), ApiError> {
    if Wanted::of(resource).cluster_connect {
        return Ok(());
    }
    let message = "The feature 'cluster-connect' is switched off for this cluster, or its private link is enabled. Switch it on (towline enable-features --features cluster-connect) and try again.";
    Err(ApiError::of(StatusCode::CONFLICT, "ClusterConnectDisabled", message))
}

/// Whether the configuration file names a cluster. It names none whose id is not one; a write with such an id is
/// refused where it is read.
fn is_configured(id: &ResourceId, control: &Control) -> bool {
    cluster_id(id).is_ok_and(|id| control.snapshot().is_configured(&id.key()))
}
