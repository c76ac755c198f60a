//! Open sessions, for whom they belong to and for who may see or end those of others at a cluster (`towline sessions`):
//! below `/providers/Microsoft.Kubernetes/sessions`. A session that somebody may not see does not exist for them.
//! Each of several replicas has sessions of its own. A replica that is asked answers for all of them.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use auth::{
    rbac::{Action, Plane, Scope},
    token::Identity,
};
use bytes::Bytes;
use http::{Method, Response, StatusCode, header};
use serde_json::{Value, json};
use types::{
    api::{ResourceId, id::fold},
    ids::{ClusterId, ClusterKey, RequestId},
    instants::{instant, rfc3339},
};

use super::{Call, empty, json, json_aside};
use crate::{
    answers::Body,
    api_error::ApiError,
    hop::ask::{SESSIONS, Said, Silent},
    identity::Principal,
    sessions::{
        EndReason, Session, Sessions,
        told::{MOST_COUNTED, Row, SessionRows, Wanted},
    },
    snapshot::Snapshot,
};

/// Sessions in one answer.
const ROWS: usize = 5_000;
/// Another replica answered, with a status that says nothing of the session.
const NO_OUTCOME: Silent = Silent::Failed("its answer does not say");
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
            Ok(json(StatusCode::OK, &found.viewer.shown(&found.row, found.at.name())))
        }
        (Some(id), &Method::DELETE) => end(call, id).await,
        _ => Err(ApiError::method_not_allowed("sessions have GET and DELETE").with(header::ALLOW, "GET, HEAD, DELETE")),
    }
}

/// Others wait for their lists meanwhile ([`Turns`](crate::control::turns)), and what all say is read, judged and written
/// on a thread of its own.
async fn list(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let cluster = call.parameter("cluster")?;
    let cluster = cluster.map(fold);
    let user = call.parameter("user")?.map(str::to_owned);
    let _turn = call.control.lists.take(call.caller.object_id()).await?;
    let others = elsewhere(call, cluster.as_deref(), user.as_deref()).await?;
    let here = Here { sessions: call.sessions.clone(), replica: call.replica().map(str::to_owned) };
    let viewer = Viewer::of(call)?;
    json_aside(move || {
        let wanted = Wanted { cluster: cluster.as_deref(), user: user.as_deref() };
        Ok(viewer.list(&wanted, here, others))
    })
    .await
}

/// This gateway.
struct Here {
    sessions: Option<Arc<Sessions>>,
    /// Its name among several replicas.
    replica: Option<String>,
}

/// The caller, and the roles and assignments that decide which sessions they see. These are taken after the other
/// replicas have answered, because a right may be withdrawn while they are waited for.
struct Viewer {
    identity: Arc<Identity>,
    principals: Vec<String>,
    snapshot: Arc<Snapshot>,
    /// In seconds since 1970.
    now: i64,
}

impl Viewer {
    fn of(call: &Call<'_>) -> Result<Self, ApiError> {
        Ok(Self {
            identity: Arc::clone(call.identity()?),
            principals: call.caller.principals().to_vec(),
            snapshot: call.control.snapshot(),
            now: call.control.now_ms() / 1000,
        })
    }

    fn may(&self, action: &str, row: &Row) -> bool {
        let may = |scope: &Scope| {
            let directory = &self.snapshot.directory;
            directory.decide(&self.principals, Plane::Control, &Action::new(action), scope, self.now).is_ok()
        };
        ResourceId::parse(&row.cluster).is_ok_and(|id| may(&Scope::from(&id)))
    }

    fn is_own(&self, row: &Row) -> bool {
        row.issuer.as_ref() == Some(&self.identity.issuer) && row.subject == self.identity.subject
    }

    /// The sessions that may be seen, of those that are wanted: those `here`, and what other replicas told.
    fn list(&self, wanted: &Wanted<'_>, here: Here, others: Vec<Said>) -> Value {
        let own = Principal::User(Arc::clone(&self.identity)).key();
        let mut asker = self.snapshot.directory.asker(&self.principals, Plane::Control, Action::new(READ), self.now);
        let mut allowed: HashMap<ClusterKey, bool> = HashMap::new();
        let mut may = |at: &ClusterId| *allowed.entry(at.key()).or_insert_with(|| asker.may(&Scope::cluster(at)));
        let sees = |session: &Session| {
            let at = &session.cluster;
            wanted.has(session) && (session.principal.key() == own || may(&at.id))
        };
        let found = here.sessions.map(|sessions| sessions.matching(MOST_COUNTED, sees)).unwrap_or_default();
        let mut total = found.len();
        let mut rows: Vec<(u64, Value)> = Vec::new();
        for session in oldest(found, |session| session.started) {
            let row = session.row();
            rows.push((row.started_ms, self.shown(&row, here.replica.as_deref())));
        }
        let mut incomplete = Vec::new();
        for Said { replica, answer } in others {
            let (there, missing) = match told(answer) {
                Ok(SessionRows { rows, left_out: 0 }) => (rows, None),
                Ok(SessionRows { rows, left_out }) => {
                    (rows, Some(format!("it has {left_out} more than it tells at once")))
                }
                Err(why) => (Vec::new(), Some(why.to_string())),
            };
            if let Some(reason) = missing {
                incomplete.push(json!({"replica": replica, "reason": reason}));
            }
            let mut sees = |row: &Row| match row.cluster.parse::<ClusterId>() {
                // A replica of the previous version tells those of all users.
                Ok(at) => wanted.takes(at.as_str(), &row.user) && (self.is_own(row) || may(&at)),
                Err(_) => false,
            };
            let there: Vec<Row> = there.into_iter().filter(&mut sees).collect();
            total += there.len();
            let there = oldest(there, |row| row.started_ms);
            rows.extend(there.iter().map(|row| (row.started_ms, self.shown(row, Some(&replica)))));
            rows = oldest(rows, |(started, _)| *started);
        }
        let value: Vec<Value> = oldest(rows, |(started, _)| *started).into_iter().map(|(_, row)| row).collect();
        let mut answer = json!({"value": value, "total": total});
        if !incomplete.is_empty() {
            answer["incomplete"] = incomplete.into();
        }
        answer
    }

    fn shown(&self, row: &Row, replica: Option<&str>) -> Value {
        let ends = row.until.saturating_add(self.snapshot.sessions.outlive_token.as_secs());
        let ends = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(ends)).map(rfc3339);
        // A token may say an instant beyond the calendar.
        let ends = ends.filter(|ends| !ends.is_empty());
        let mut shown = json!({
            "id": row.id,
            "user": row.user,
            "own": self.is_own(row),
            "cluster": row.cluster,
            "what": row.what,
            "started": instant(i64::try_from(row.started_ms).unwrap_or_default()),
            // Unless a newer token of the same sign-in is shown.
            "ends": ends,
        });
        if let Some(replica) = replica {
            shown["replica"] = replica.into();
        }
        shown
    }
}

/// In the order of their beginnings, so many as one answer has.
fn oldest<T, K: Ord>(mut all: Vec<T>, began: impl Fn(&T) -> K) -> Vec<T> {
    all.sort_by_key(began);
    all.truncate(ROWS);
    all
}

/// What each other replica says of sessions there.
async fn elsewhere(call: &Call<'_>, cluster: Option<&str>, user: Option<&str>) -> Result<Vec<Said>, ApiError> {
    let identity = call.identity()?;
    let query = url::form_urlencoded::Serializer::new(String::new())
        .extend_pairs(cluster.map(|cluster| ("cluster", cluster)))
        .extend_pairs(user.map(|user| ("user", user)))
        .extend_pairs([("issuer", &identity.issuer), ("subject", &identity.subject)])
        .finish();
    Ok(ask_all(call, &Method::GET, &format!("{SESSIONS}?{query}")).await)
}

/// Reads it.
fn told(answer: Result<(StatusCode, Bytes), Silent>) -> Result<SessionRows, Silent> {
    let read = |body: &Bytes| serde_json::from_slice(body).ok();
    match answer? {
        (StatusCode::OK, body) => read(&body).ok_or(Silent::Failed("its list cannot be read")),
        _ => Err(Silent::Failed("it does not say what is open there")),
    }
}

/// What all other replicas say; nothing where there are none.
async fn ask_all(call: &Call<'_>, method: &Method, target: &str) -> Vec<Said> {
    match &call.hops {
        Some(hops) => hops.ask_all(method, target).await,
        None => Vec::new(),
    }
}

async fn end(call: &Call<'_>, id: &str) -> Result<Response<Body>, ApiError> {
    let Found { row, at, viewer } = find(call, id).await?;
    if !viewer.is_own(&row) && !viewer.may(END, &row) {
        return Err(call.forbidden(END, &row.cluster));
    }
    match at {
        At::Here(session, _) => session.end(EndReason::Operator),
        At::Replica(replica) => {
            let hops = call.hops.as_ref().ok_or_else(|| unknown(id))?;
            let said = hops.ask(&replica, &Method::DELETE, &format!("{SESSIONS}/{}", row.id)).await;
            match said.answer {
                // Or it has ended by itself.
                Ok((StatusCode::NO_CONTENT | StatusCode::NOT_FOUND, _)) => {}
                Ok(_) => return Err(unreached(&[(replica, NO_OUTCOME)])),
                Err(why) => return Err(unreached(&[(replica, why)])),
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
    viewer: Viewer,
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
    let seen = |row: Row, at: At| {
        let viewer = Viewer::of(call)?;
        let sees = viewer.is_own(&row) || viewer.may(READ, &row);
        if sees { Ok(Found { row, at, viewer }) } else { Err(unknown(id)) }
    };
    let asked = RequestId::from_hex(id).ok_or_else(|| unknown(id))?;
    if let Some(session) = call.sessions.as_ref().and_then(|sessions| sessions.get(asked)) {
        let row = session.row();
        return seen(row, At::Here(session, call.replica().map(str::to_owned)));
    }
    let mut silent = Vec::new();
    for Said { replica, answer } in ask_all(call, &Method::GET, &format!("{SESSIONS}/{asked}")).await {
        match answer {
            Ok((StatusCode::OK, body)) => {
                let row = serde_json::from_slice(&body).map_err(|_| unknown(id))?;
                return seen(row, At::Replica(replica));
            }
            Ok((StatusCode::NOT_FOUND, _)) => {}
            Ok(_) => silent.push((replica, NO_OUTCOME)),
            Err(why) => silent.push((replica, why)),
        }
    }
    Err(if silent.is_empty() { unknown(id) } else { unreached(&silent) })
}

fn unknown(id: &str) -> ApiError {
    let shown: String = id.chars().take(64).collect();
    ApiError::of(StatusCode::NOT_FOUND, "SessionNotFound", format!("There is no open session '{shown}'."))
}

/// Other replicas did not answer, so that nobody can tell.
fn unreached(replicas: &[(String, Silent)]) -> ApiError {
    let each: Vec<String> = replicas.iter().map(|(replica, why)| format!("{replica}: {why}")).collect();
    let message = format!(
        "Replicas of the gateway did not answer ({}), and the session may be open there; try again.",
        each.join(", ")
    );
    ApiError::of(StatusCode::SERVICE_UNAVAILABLE, "ReplicaUnreached", message).with(header::RETRY_AFTER, "2")
}
