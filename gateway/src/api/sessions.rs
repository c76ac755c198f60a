//! Open sessions, for whom they belong to and for who may see or end those of others at a cluster (`towline sessions`):
//! below `/providers/Microsoft.Kubernetes/sessions`. A session that somebody may not see does not exist for them.
//! Each of several replicas has sessions of its own. A replica that is asked answers for all of them.

use std::{collections::HashMap, sync::Arc};

use auth::rbac::Scope;
use bytes::Bytes;
use http::{Method, Response, StatusCode, header};
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};
use types::{
    api::{ResourceId, id::fold},
    ids::{ClusterId, ClusterKey, RequestId},
};

use super::{Call, empty, json};
use crate::{
    answers::Body,
    api_error::ApiError,
    hop::ask::{DEADLINE, SESSIONS, Said},
    identity::{Principal, PrincipalKey},
    sessions::{
        EndReason, Session,
        told::{MOST_COUNTED, Row, Told},
    },
};

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
            let found = find(call, id).await?;
            Ok(json(StatusCode::OK, &shown(call, &found.row, found.at.name())))
        }
        (Some(id), &Method::DELETE) => end(call, id).await,
        _ => Err(ApiError::method_not_allowed("sessions have GET and DELETE").with(header::ALLOW, "GET, HEAD, DELETE")),
    }
}

async fn list(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let cluster = call.parameter("cluster")?;
    let cluster = cluster.map(fold);
    let others = elsewhere(call, cluster.as_deref()).await?;
    let own = own_key(call)?;
    let (mut allowed, mut asker): (HashMap<ClusterKey, bool>, _) = (HashMap::new(), call.asker(READ));
    let mut may = |at: &ClusterId| *allowed.entry(at.key()).or_insert_with(|| asker.may(&Scope::cluster(at)));
    let sees = |session: &Session| {
        let at = &session.cluster;
        cluster.as_ref().is_none_or(|wanted| at.id.as_str() == wanted)
            && (session.principal.key() == own || may(&at.id))
    };
    let found = call.sessions.as_ref().map(|sessions| sessions.matching(MOST_COUNTED, sees)).unwrap_or_default();
    let mut total = found.len();
    let mut rows: Vec<(u64, Value)> = Vec::new();
    for turn in oldest(found, |session| session.started).chunks(ROWS_A_TURN) {
        for session in turn {
            let row = session.row();
            rows.push((row.started_ms, shown(call, &row, call.replica())));
        }
        tokio::task::yield_now().await;
    }
    let mut incomplete = Vec::new();
    for (replica, told) in others {
        let (there, missing) = match told {
            Some(Told { rows, left_out: 0 }) => (rows, None),
            Some(Told { rows, left_out }) => (rows, Some(format!("it has {left_out} more than it tells at once"))),
            None => (Vec::new(), Some(format!("it did not answer within {} seconds", DEADLINE.as_secs()))),
        };
        if let Some(reason) = missing {
            incomplete.push(json!({"replica": replica, "reason": reason}));
        }
        let mut sees = |row: &Row| match row.cluster.parse::<ClusterId>() {
            Ok(at) => cluster.as_ref().is_none_or(|wanted| at.as_str() == wanted) && (is_own(call, row) || may(&at)),
            Err(_) => false,
        };
        let there: Vec<Row> = there.into_iter().filter(&mut sees).collect();
        total += there.len();
        for turn in oldest(there, |row| row.started_ms).chunks(ROWS_A_TURN) {
            rows.extend(turn.iter().map(|row| (row.started_ms, shown(call, row, Some(&replica)))));
            tokio::task::yield_now().await;
        }
    }
    let value: Vec<Value> = oldest(rows, |(started, _)| *started).into_iter().map(|(_, row)| row).collect();
    let mut answer = json!({"value": value, "total": total});
    if !incomplete.is_empty() {
        answer["incomplete"] = incomplete.into();
    }
    Ok(json(StatusCode::OK, &answer))
}

/// In the order of their beginnings, so many as one answer has.
fn oldest<T, K: Ord>(mut all: Vec<T>, began: impl Fn(&T) -> K) -> Vec<T> {
    all.sort_by_key(began);
    all.truncate(ROWS);
    all
}

/// What each other replica says of sessions there; `None`: it does not answer.
async fn elsewhere(call: &Call<'_>, cluster: Option<&str>) -> Result<Vec<(String, Option<Told>)>, ApiError> {
    let identity = call.identity()?;
    let query = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(cluster.map(|cluster| ("cluster", cluster)))
        .extend_pairs([("issuer", &identity.issuer), ("subject", &identity.subject)])
        .finish();
    let said = ask_all(call, &Method::GET, &format!("{SESSIONS}?{query}")).await;
    Ok(said.into_iter().map(|Said { replica, answer }| (replica, told(answer))).collect())
}

fn told(answer: Option<(StatusCode, Bytes)>) -> Option<Told> {
    let (status, body) = answer?;
    if status == StatusCode::OK { serde_json::from_slice(&body).ok() } else { None }
}

/// What all other replicas say; nothing where there are none.
async fn ask_all(call: &Call<'_>, method: &Method, target: &str) -> Vec<Said> {
    match &call.hops {
        Some(hops) => hops.ask_all(method, target).await,
        None => Vec::new(),
    }
}

async fn end(call: &Call<'_>, id: &str) -> Result<Response<Body>, ApiError> {
    let Found { row, at } = find(call, id).await?;
    if !is_own(call, &row) && !may(call, END, &row) {
        return Err(call.forbidden(END, &row.cluster));
    }
    match at {
        At::Here(session, _) => session.end(EndReason::Operator),
        At::Replica(replica) => {
            let hops = call.hops.as_ref().ok_or_else(|| unknown(id))?;
            let said = hops.ask(&replica, &Method::DELETE, &format!("{SESSIONS}/{}", row.id)).await;
            match said.answer {
                // Or it has ended by itself.
                Some((StatusCode::NO_CONTENT | StatusCode::NOT_FOUND, _)) => {}
                _ => return Err(unreached(&[replica])),
            }
        }
    }
    tracing::info!(request.id = row.id, cluster.id = row.cluster, by = call.caller.name(), "session ended by request");
    Ok(empty(StatusCode::NO_CONTENT))
}

/// A session that the caller may see.
struct Found {
    row: Row,
    at: At,
}

/// Where it is open.
enum At {
    /// At this gateway, with its name.
    Here(Arc<Session>, Option<String>),
    Replica(String),
}

impl At {
    fn name(&self) -> Option<&str> {
        match self {
            Self::Here(_, name) => name.as_deref(),
            Self::Replica(name) => Some(name),
        }
    }
}

async fn find(call: &Call<'_>, id: &str) -> Result<Found, ApiError> {
    let sees = |row: &Row| is_own(call, row) || may(call, READ, row);
    let asked = RequestId::from_hex(id).ok_or_else(|| unknown(id))?;
    if let Some(session) = call.sessions.as_ref().and_then(|sessions| sessions.get(asked)) {
        let row = session.row();
        let at = At::Here(session, call.replica().map(str::to_owned));
        return if sees(&row) { Ok(Found { row, at }) } else { Err(unknown(id)) };
    }
    let mut silent = Vec::new();
    for Said { replica, answer } in ask_all(call, &Method::GET, &format!("{SESSIONS}/{asked}")).await {
        match answer {
            Some((StatusCode::OK, body)) => {
                let row = serde_json::from_slice(&body).ok().filter(&sees).ok_or_else(|| unknown(id))?;
                return Ok(Found { row, at: At::Replica(replica) });
            }
            Some((StatusCode::NOT_FOUND, _)) => {}
            _ => silent.push(replica),
        }
    }
    Err(if silent.is_empty() { unknown(id) } else { unreached(&silent) })
}

fn unknown(id: &str) -> ApiError {
    let shown: String = id.chars().take(64).collect();
    ApiError::of(StatusCode::NOT_FOUND, "SessionNotFound", format!("There is no open session '{shown}'."))
}

/// Other replicas did not answer, so that nobody can tell.
fn unreached(replicas: &[String]) -> ApiError {
    let message = format!(
        "Replicas of the gateway did not answer within {} seconds ({}), and the session may be open there; try again.",
        DEADLINE.as_secs(),
        replicas.join(", ")
    );
    ApiError::of(StatusCode::SERVICE_UNAVAILABLE, "ReplicaUnreached", message).with(header::RETRY_AFTER, "2")
}

fn is_own(call: &Call<'_>, row: &Row) -> bool {
    let is = |issuer: &str, subject: &str| row.issuer.as_deref() == Some(issuer) && row.subject == subject;
    call.identity().is_ok_and(|own| is(&own.issuer, &own.subject))
}

fn own_key(call: &Call<'_>) -> Result<PrincipalKey, ApiError> {
    Ok(Principal::User(Arc::clone(call.identity()?)).key())
}

fn may(call: &Call<'_>, action: &str, row: &Row) -> bool {
    ResourceId::parse(&row.cluster).is_ok_and(|id| call.may(action, &Scope::from(&id)))
}

fn shown(call: &Call<'_>, row: &Row, replica: Option<&str>) -> Value {
    let instant = |at: Option<OffsetDateTime>| at.and_then(|at| at.format(&Rfc3339).ok());
    let ends = row.until.saturating_add(call.snapshot.sessions.outlive_token.as_secs());
    let ends = i64::try_from(ends).ok().and_then(|ends| OffsetDateTime::from_unix_timestamp(ends).ok());
    let started = OffsetDateTime::from_unix_timestamp_nanos(i128::from(row.started_ms) * 1_000_000).ok();
    let mut shown = json!({
        "id": row.id,
        "user": row.user,
        "own": is_own(call, row),
        "cluster": row.cluster,
        "what": row.what,
        "started": instant(started).unwrap_or_default(),
        // Unless a newer token of the same sign-in is shown.
        "ends": instant(ends),
    });
    if let Some(replica) = replica {
        shown["replica"] = replica.into();
    }
    shown
}
