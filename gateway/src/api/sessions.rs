//! Open sessions, for whom they belong to and for who may see or end those of others at a cluster (`towline sessions`):
//! below `/providers/Microsoft.Kubernetes/sessions`. A session that somebody may not see does not exist for them.

use std::{collections::HashMap, sync::Arc};

use auth::rbac::Scope;
use http::{Method, Response, StatusCode, header};
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use types::{
    api::{ResourceId, id::fold},
    ids::{ClusterKey, RequestId},
};

use super::{Call, empty, json};
use crate::{
    answers::Body,
    api_error::ApiError,
    identity::{Principal, PrincipalKey},
    sessions::{EndReason, Session},
};

/// Sessions that are counted for one list.
const LIST: usize = 50_000;
/// Sessions that are written before other requests have their turn.
const ROWS_A_TURN: usize = 500;
/// Sessions in one answer.
const ROWS: usize = 5_000;
/// What lets somebody see the sessions of others at a cluster.
const READ: &str = "Microsoft.Kubernetes/connectedClusters/sessions/read";
/// What lets somebody end them.
const END: &str = "Microsoft.Kubernetes/connectedClusters/sessions/delete";

/// The list, or one session by its id.
pub async fn serve(call: &Call<'_>, id: Option<&str>) -> Result<Response<Body>, ApiError> {
    call.any_version()?;
    match (id, &call.method) {
        (None, &Method::GET | &Method::HEAD) => list(call).await,
        (Some(id), &Method::GET | &Method::HEAD) => {
            let session = find(call, id)?;
            Ok(json(StatusCode::OK, &shown(call, &session)))
        }
        (Some(id), &Method::DELETE) => end(call, id),
        _ => Err(ApiError::method_not_allowed("sessions have GET and DELETE").with(header::ALLOW, "GET, HEAD, DELETE")),
    }
}

async fn list(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let cluster = call.parameter("cluster")?;
    let cluster = cluster.map(fold);
    let own = own_key(call)?;
    let (mut allowed, mut asker): (HashMap<ClusterKey, bool>, _) = (HashMap::new(), call.asker(READ));
    let mut sees = |session: &Session| {
        let at = &session.cluster;
        cluster.as_ref().is_none_or(|wanted| at.id.as_str() == wanted)
            && (session.principal.key() == own
                || *allowed.entry(at.key).or_insert_with(|| asker.may(&Scope::cluster(&at.id))))
    };
    let mut found = call.sessions.as_ref().map(|sessions| sessions.matching(LIST, &mut sees)).unwrap_or_default();
    found.sort_by_key(|session| session.started);
    let total = found.len();
    let mut rows = Vec::new();
    for turn in found[..total.min(ROWS)].chunks(ROWS_A_TURN) {
        rows.extend(turn.iter().map(|session| shown(call, session)));
        tokio::task::yield_now().await;
    }
    Ok(json(StatusCode::OK, &json!({"value": rows, "total": total})))
}

fn end(call: &Call<'_>, id: &str) -> Result<Response<Body>, ApiError> {
    let session = find(call, id)?;
    if !is_own(call, &session) && !may(call, END, &session) {
        return Err(call.forbidden(END, session.cluster.id.as_str()));
    }
    session.end(EndReason::Operator);
    tracing::info!(request.id = %session.id, cluster.id = %session.cluster.id, by = call.caller.name(), "session ended by request");
    Ok(empty(StatusCode::NO_CONTENT))
}

fn find(call: &Call<'_>, id: &str) -> Result<Arc<Session>, ApiError> {
    let unknown = || {
        let shown: String = id.chars().take(64).collect();
        ApiError::of(StatusCode::NOT_FOUND, "SessionNotFound", format!("There is no open session '{shown}'."))
    };
    let found = RequestId::from_hex(id).and_then(|id| call.sessions.as_ref()?.get(id));
    found.filter(|session| is_own(call, session) || may(call, READ, session)).ok_or_else(unknown)
}

fn is_own(call: &Call<'_>, session: &Session) -> bool {
    own_key(call).is_ok_and(|own| session.principal.key() == own)
}

fn own_key(call: &Call<'_>) -> Result<PrincipalKey, ApiError> {
    Ok(Principal::User(Arc::clone(call.identity()?)).key())
}

fn may(call: &Call<'_>, action: &str, session: &Session) -> bool {
    ResourceId::parse(session.cluster.id.as_str()).is_ok_and(|id| call.may(action, &Scope::from(&id)))
}

fn shown(call: &Call<'_>, session: &Session) -> Value {
    let ends = i64::try_from(session.deadline(call.snapshot.sessions.outlive_token)).ok();
    let ends = ends.and_then(|ends| OffsetDateTime::from_unix_timestamp(ends).ok());
    json!({
        "id": session.id.to_string(),
        "user": session.principal.name(),
        "own": is_own(call, session),
        "cluster": session.cluster.id.as_str(),
        "what": session.what(),
        "started": OffsetDateTime::from(session.started).format(&Rfc3339).unwrap_or_default(),
        // Unless a newer token of the same sign-in is shown.
        "ends": ends.and_then(|ends| ends.format(&Rfc3339).ok()),
    })
}
