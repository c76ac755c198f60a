//! What gateway and agent each make of a token, and why not. A 401 must say no more than Kubernetes does; this is where
//! the holder of a token reads the reason (`towline whoami`). Nothing is told about a cluster that they may not reach.

use std::{sync::Arc, time::SystemTime};

use http::Response;
use serde_json::{Value, json};
use tunnel::{
    exchange::StreamBody,
    wire::{head::RequestHead, roles},
};
use types::{ids::RequestId, instants::rfc3339};

use super::{
    QUESTION_DEADLINE, Request, authenticate, head, locate, open,
    refusal::Refusal,
    relay,
    respond::{self, Body},
};
use crate::{
    answers,
    audit::Record,
    core::Core,
    identity::{Credential, Principal},
    metrics::labels::Stage,
    permit::{self, Permit},
    snapshot::Snapshot,
};

/// The longest answer of an agent, in bytes.
const ANSWER_BYTES: usize = 64 * 1024;

/// Answers 200 with a JSON object: `gateway` and `agent`, each with `accepted` and, where not, `why`.
pub async fn serve(
    core: &Arc<Core>,
    snapshot: &Snapshot,
    mut request: Box<Request>,
    record: &mut Record,
) -> Result<Response<Body>, Refusal> {
    let (gateway, permit) = gateway(snapshot, &mut request, record).await;
    let agent = match permit {
        None => json!({ "accepted": false, "why": "not asked, because the gateway refuses" }),
        Some(permit) => {
            record.stage(Stage::Relay);
            match tokio::time::timeout(QUESTION_DEADLINE, agent(core, &mut request, &permit)).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(refusal)) => json!({ "accepted": false, "why": refusal.public_text() }),
                Err(_) => json!({ "accepted": false, "why": "the agent did not answer in time" }),
            }
        }
    };
    let id: RequestId = request.id;
    Ok(answers::document(&json!({ "request_id": id.to_string(), "gateway": gateway, "agent": agent })).map(Body::Full))
}

async fn gateway(snapshot: &Snapshot, request: &mut Request, record: &mut Record) -> (Value, Option<Permit>) {
    let refused = |why: String| (json!({ "accepted": false, "allowed": false, "why": why }), None);
    let cluster = snapshot.cluster(&request.address.key);
    let credential = match Credential::take(&mut request.headers, None) {
        Ok(credential) => credential,
        Err(error) => return refused(error.to_string()),
    };
    let access = request.connection.access.as_ref();
    let principal =
        authenticate::authenticate(snapshot, &credential, access, &request.address.key, cluster, SystemTime::now())
            .await;
    let principal = match principal {
        Ok(principal) => principal,
        Err(error) => return refused(error.to_string()),
    };
    record.user(principal.name(), principal.issuer());
    request.connection.standing.prove();
    request.place = None;
    record.stage(Stage::Authorize);
    let mut told = describe(&principal);
    match permit::authorize(snapshot, &principal, cluster) {
        Ok(permit) => {
            record.decision(true, None);
            told["allowed"] = true.into();
            (told, Some(permit))
        }
        Err(denial) => {
            record.decision(false, Some(denial.0.as_str()));
            told["allowed"] = false.into();
            told["why"] = "no grant names this user or one of the groups for this cluster, the user is disabled, \
                           or there is no such cluster"
                .into();
            (told, None)
        }
    }
}

fn describe(principal: &Principal) -> Value {
    let expires = rfc3339(principal.expires());
    match principal {
        Principal::User(identity) => json!({
            "accepted": true, "kind": "user", "issuer": identity.issuer, "user": identity.username,
            "uid": identity.uid, "groups": identity.groups, "extra": identity.extra, "expires": expires,
        }),
        Principal::ServiceAccount(access) => json!({
            "accepted": true, "kind": "service_account", "access_certificate": access.name, "expires": expires,
            "note": "the token itself is judged by the cluster alone",
        }),
    }
}

async fn agent(core: &Core, request: &mut Request, permit: &Permit) -> Result<Value, Refusal> {
    let slot = core.slots.acquire(permit, &core.limits())?;
    let tunnels = locate::locate(core, permit.cluster())?;
    let head = RequestHead { method: http::Method::GET, ..head(request, roles::WHOAMI) };
    let ways = open::Ways { cluster: &permit.cluster().key, tunnels, refused_by: None };
    let mut opened = open::open(core, ways, open::encode(&head)?, true, slot).await?;
    let _head = relay::read_head(&mut opened.stream.recv, false).await?;
    let body = respond::read_small(StreamBody::new(opened.stream.recv), ANSWER_BYTES).await;
    let parsed = body.and_then(|body| serde_json::from_slice(&body).ok());
    Ok(parsed.unwrap_or_else(|| json!({ "accepted": false, "why": "the agent's answer cannot be read" })))
}
