//! A cluster is created by a one-time token in place of a role. What is created is what the resource API
//! would create; the token is used up in the same batch.

use http::StatusCode;
use serde_json::Value;
use types::{
    agent_api::{EnrolledQuestion, TokenEnrolled, TokenEnrolment, codes, enrolled_message},
    api::ResourceId,
};

use super::{
    Call, Reply,
    certificate::{binary, deleted, not_proved, proved},
    challenge::cluster_id,
};
use crate::{
    api_error::ApiError,
    identity::Caller,
    resources::{
        Kind, Writing,
        connected_cluster::{ConnectedClusters, NAME, onboarding_key},
        enrolment_token::{self, Held},
        grounds::Grounds,
        registrations, schema, system_data,
    },
    store::{
        batch::{Batch, Expect, Refused},
        resources::Stored,
    },
};

/// Answers with the new cluster.
pub async fn serve(call: &Call) -> Result<Reply, ApiError> {
    let message: TokenEnrolment = call.message().await?;
    let control = &call.control;
    let held = enrolment_token::held(control, &message.token).await?.ok_or_else(not_held)?;
    let (snapshot, issuer) = (call.core.snapshots.load(), call.core.issuer.load());
    if !held.is_lent(&snapshot, issuer.as_deref(), control.now_ms()) {
        return Err(not_held());
    }
    let group = control.store.get(held.group.key()).await?.filter(|group| !group.is_deleting()).ok_or_else(not_held)?;
    if held.name.as_ref().is_some_and(|name| !name.eq_ignore_ascii_case(&message.name)) {
        let only = held.name.unwrap_or_default();
        let message = format!("The enrolment token is for a cluster named '{only}'.");
        return Err(ApiError::of(StatusCode::FORBIDDEN, codes::FOREIGN_REQUEST, message).at("name"));
    }
    if message.public_key.is_empty() {
        let message = "publicKey must be the public half of the cluster's onboarding key.";
        return Err(ApiError::bad_request("InvalidRequestContent", message).at("publicKey"));
    }
    ConnectedClusters.check_name(&message.name)?;
    let id = ResourceId::parse(&format!("{}/providers/{NAME}/{}", group.id, message.name))?;
    // Who holds a token need not know where the group is.
    let location = match message.location.as_str() {
        "" => group.body["location"].as_str().unwrap_or_default(),
        location => location,
    };
    let tags = held.tags.as_ref().unwrap_or(&message.tags);
    let sent = enrolment_token::body(location, &message.public_key, tags);
    let grounds = Grounds::default();
    let stored = created(call, &id, &held, schema::check(ConnectedClusters.schema(), &sent)?, &grounds).await?;
    let principal = stored.body["identity"]["principalId"].as_str().unwrap_or_default().to_owned();
    let mut batch = Batch {
        puts: vec![(stored, Expect::Absent)],
        deletes: vec![(held.kept.key.clone(), Expect::Revision(held.kept.revision))],
        ..Batch::default()
    };
    grounds.put_into(&mut batch);
    // Before the name is looked up: a refusal is about the group.
    let _room = control.quotas.take(&batch)?;
    // An id of the configuration is as taken as one of the store.
    if ConnectedClusters.may_change(&id, control).is_err() || control.store.get(id.key()).await?.is_some() {
        return Err(taken(call, &id, &held).await?);
    }
    match control.write(&batch).await? {
        Ok(_) => {}
        Err(Refused::Changed { key, .. }) if key == id.key() => return Err(taken(call, &id, &held).await?),
        Err(Refused::Changed { key, .. }) if registrations::key_of(&ConnectedClusters, &id)?.as_ref() == Some(&key) => {
            return Err(registrations::refused(&ConnectedClusters));
        }
        // It begins no operation.
        Err(
            Refused::Changed { .. }
            | Refused::NotEmpty { .. }
            | Refused::Full { .. }
            | Refused::TooManyOperations { .. }
            | Refused::NoParent { .. },
        ) => {
            return Err(not_held());
        }
    }
    tracing::info!(cluster.id = %id, created_by = held.created_by, "cluster created by an enrolment token");
    told(call, &id, principal)
}

/// Tells who proves possession of a cluster's onboarding key what was told when the cluster was created: the answer may
/// have been lost, and the token is used up.
pub async fn enrolled(call: &Call) -> Result<Reply, ApiError> {
    let message: EnrolledQuestion = call.message().await?;
    let (id, signature) = (cluster_id(&message.cluster_id)?, binary("signature", &message.signature)?);
    let found = call.control.store.get(id.as_str()).await?;
    let found = found.filter(|_| call.control.decides_about(&id));
    let key = found.as_ref().and_then(onboarding_key);
    let signed = enrolled_message(&id, &message.challenge);
    proved(&call.control, &id, &message.challenge, key.as_ref(), &signed, &signature).await?;
    let stored = found.ok_or_else(not_proved)?;
    if stored.is_deleting() {
        return Err(deleted(&id));
    }
    let principal = stored.body["identity"]["principalId"].as_str().unwrap_or_default().to_owned();
    told(call, &ResourceId::parse(&stored.id)?, principal)
}

fn told(call: &Call, id: &ResourceId, principal_id: String) -> Result<Reply, ApiError> {
    let (cluster_id, tenant_id) = (id.as_str().to_owned(), call.control.settings.tenant.clone());
    Reply::json(&TokenEnrolled { cluster_id, principal_id, tenant_id })
}

/// The resource, with all that is filled in when one is created.
async fn created(
    call: &Call,
    id: &ResourceId,
    held: &Held,
    mut body: serde_json::Map<String, Value>,
    grounds: &Grounds,
) -> Result<Stored, ApiError> {
    let caller = Caller::by_token_of(&held.created_by);
    let control = &call.control;
    let version = ConnectedClusters.api_versions().last().copied().unwrap_or_default();
    let said = body.clone();
    let now_ms = control.now_ms();
    let writing =
        Writing { id, old: None, said: &said, caller: &caller, version, now_ms, control, issuer: None, grounds };
    registrations::check(&ConnectedClusters, &writing).await?;
    ConnectedClusters.write(&mut body, &writing).await?;
    system_data(&mut body, &writing);
    Ok(Stored {
        key: id.key().to_owned(),
        kind: NAME.to_ascii_lowercase(),
        parent: held.group.key().to_owned(),
        id: id.as_str().to_owned(),
        revision: 0,
        body: Value::Object(body),
        protected: None,
    })
}

/// 401, the same for every reason.
fn not_held() -> ApiError {
    let message = "The enrolment token is not valid: it was used or withdrawn, has expired, is not an enrolment token, lends a right that its maker no longer has, or was used for a name that it does not allow. Ask for a new one (`towline connect` with a sign-in needs none).";
    ApiError::of(StatusCode::UNAUTHORIZED, codes::INVALID_PROOF, message).at("token")
}

/// Whose token is for this one name knows it; whose is for any must not learn which names there are: it is used up, as
/// it would be by a name that is free, and says what a used one says.
async fn taken(call: &Call, id: &ResourceId, held: &Held) -> Result<ApiError, ApiError> {
    if held.name.is_some() {
        return Ok(exists(id));
    }
    let deletes = vec![(held.kept.key.clone(), Expect::Revision(held.kept.revision))];
    // Somebody else used it: the answer is the same.
    let _ = call.control.write(&Batch { deletes, ..Batch::default() }).await?;
    tracing::info!(cluster.id = %id, created_by = held.created_by, "an enrolment token was used up by a name that is taken");
    Ok(not_held())
}

fn exists(id: &ResourceId) -> ApiError {
    let message = format!(
        "The resource '{}' exists already, and an enrolment token creates new ones only; choose another name. The token was not used.",
        id.name()
    );
    ApiError::of(StatusCode::CONFLICT, "ResourceExists", message).at("name")
}
