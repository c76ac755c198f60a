//! A request for a token and its answer. Every refusal says what to do, in the resource API's envelope.

use std::{
    collections::HashMap,
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::time::{Instant, timeout};
use types::agent_api::{Token, TokenRequest, codes, paths};

use super::{
    ask::{AUDIENCE, Caller, GROUP, RESOURCE, Reviews, VERB, is_name},
    refusals::{Known, REMEMBERED, Refusals},
};
use crate::{
    identity::Identities,
    peers::{Peers, Places},
    roles::{clusteridentityoperator, health::Health},
    tunnel::{
        api::{AgentApi, ApiError, Refused},
        status::StatusBoard,
    },
};

/// Where tokens are asked for.
pub const PATH: &str = "/v1/token";
/// Bytes of a request's body, of an audience, and of a service-account token.
const BODY_BYTES: usize = 8 * 1024;
const AUDIENCE_BYTES: usize = 1024;
const TOKEN_BYTES: usize = 16 * 1024;
/// Requests that are judged at once: the apiserver is asked twice for each. At most `OF_ONE_PEER` of them are of one
/// address, which is one pod before the caller is known, and `OF_ONE_ACCOUNT` of one service account.
const AT_ONCE: usize = 16;
const OF_ONE_PEER: usize = 4;
const OF_ONE_ACCOUNT: usize = 8;
/// How long a body may take to arrive: until it is there nobody is asked, and no place taken.
const BODY: Duration = Duration::from_secs(5);
/// How long one request may take.
const DEADLINE: Duration = Duration::from_secs(20);
/// Audiences whose token is remembered.
const REMEMBERED_MAX: usize = 64;
/// When to ask again what is not ready, in seconds (docs/features.md R9), and what is only busy.
const NOT_READY: u64 = 10;
const BUSY: u64 = 1;

/// Where tokens are asked for and given.
pub struct Desk {
    /// Who asks and may.
    pub reviews: Box<dyn Reviews>,
    /// Asks the gateway for tokens.
    pub api: AgentApi,
    /// The cluster's identity, which the tokens are of.
    pub identities: Identities,
    /// What the gateway says of the cluster.
    pub status: Arc<StatusBoard>,
    /// Why there is no identity.
    pub health: Health,
    given: Mutex<HashMap<Asked, Given>>,
    peers: Peers,
    accounts: Places<String>,
    /// Refusals that are remembered for a time.
    pub refusals: Refusals,
}

/// What is asked for: an audience; and as an extension its name with the object id of its identity, for another one of
/// that name has another identity.
type Asked = (String, Option<(String, String)>);

/// A token that was given not long ago.
#[derive(Clone)]
struct Given {
    token: Token,
    /// Which of the cluster's certificates was in use: with another identity it is another's.
    generation: u64,
    at: Instant,
    life: Duration,
}

/// Why there is no token.
#[derive(Debug)]
struct Refusal {
    status: StatusCode,
    code: String,
    message: String,
    retry_after: Option<u64>,
}

impl Refusal {
    fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self { status, code: code.to_owned(), message: message.into(), retry_after: None }
    }

    fn not_ready(reason: &str) -> Self {
        let message = format!("No token can be given yet: {reason}. Ask again in {NOT_READY} s.");
        Self { retry_after: Some(NOT_READY), ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "NotReady", message) }
    }

    fn busy() -> Self {
        let message = format!(
            "Too many requests for tokens are under way: at most {AT_ONCE}, {OF_ONE_PEER} of one pod, {OF_ONE_ACCOUNT} of one service account. Try again."
        );
        Self { retry_after: Some(BUSY), ..Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message) }
    }
}

impl Desk {
    /// Nothing was given yet.
    pub fn new(
        reviews: Box<dyn Reviews>,
        api: AgentApi,
        identities: Identities,
        status: Arc<StatusBoard>,
        health: Health,
    ) -> Self {
        Self {
            reviews,
            api,
            identities,
            status,
            health,
            given: Mutex::default(),
            peers: Peers::new(AT_ONCE, OF_ONE_PEER),
            accounts: Places::new(AT_ONCE, OF_ONE_ACCOUNT),
            refusals: Refusals::default(),
        }
    }

    /// Answers one request of an address.
    pub async fn answer(&self, request: Request<Incoming>, peer: IpAddr) -> Response<Full<Bytes>> {
        let judged = timeout(DEADLINE, self.judge(request, peer)).await;
        match judged.unwrap_or_else(|_| Err(Refusal::not_ready("the apiserver or the gateway took too long"))) {
            Ok(body) => respond(StatusCode::OK, &body, None),
            Err(Refusal { status, code, message, retry_after }) => {
                tracing::debug!(status = status.as_u16(), code, message, "no token is given");
                respond(status, &json!({ "error": { "code": code, "message": message } }), retry_after)
            }
        }
    }

    async fn judge(&self, request: Request<Incoming>, peer: IpAddr) -> Result<Value, Refusal> {
        let (head, body) = request.into_parts();
        if head.uri.path() != PATH {
            let message = format!("There is nothing at {}; tokens are at POST {PATH}.", head.uri.path());
            return Err(Refusal::new(StatusCode::NOT_FOUND, "NotFound", message));
        }
        if head.method != Method::POST {
            let message = format!(
                "{PATH} is asked by POST with {{\"audience\": \"...\", \"extension\": \"...\"}}, the latter as an extension alone."
            );
            return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message));
        }
        let token = shown(head.headers.get(header::AUTHORIZATION)).ok_or_else(unknown)?;
        let TokenRequest { audience, extension } = asked(body).await?;
        let _place = self.peers.take(peer).ok_or_else(Refusal::busy)?;
        let caller = self.caller(token, peer).await?;
        let _own = self.accounts.take(caller.user.clone()).ok_or_else(Refusal::busy)?;
        let own = self.may(&caller, &audience, extension.as_deref()).await?;
        let given = self.token(&(audience.clone(), extension.clone().zip(own))).await?;
        tracing::info!(
            caller = caller.user,
            audience,
            extension,
            "a token of the cluster's or an extension's identity is given"
        );
        let left = given.life.saturating_sub(given.at.elapsed());
        Ok(json!({
            "access_token": given.token.token, "token_type": "Bearer", "expires_in": left.as_secs(),
            "expires_on": given.token.expires_on, "audience": audience,
        }))
    }

    /// Refuses who may not have what they ask for. As an extension: the object id of its identity.
    async fn may(&self, caller: &Caller, audience: &str, extension: Option<&str>) -> Result<Option<String>, Refusal> {
        let user = &caller.user;
        let (own, why_not) = match extension {
            None => {
                let may = self.reviews.may(caller, audience).await;
                let why_not = format!(
                    "{user} may not have tokens of the cluster's identity for {audience}: allow it to {VERB} {RESOURCE}.{GROUP} of that name in the agents' namespace."
                );
                (may.map(|may| may.then_some(None)), why_not)
            }
            Some(extension) => {
                let own = self.reviews.of_extension(caller, extension).await;
                let why_not = format!(
                    "{user} is not a service account that the chart of the extension '{extension}' made in the extension's namespace; no other account gets tokens of its identity."
                );
                if own.as_ref().is_ok_and(|own| own.as_deref() == Some("")) {
                    let message = format!("The extension '{extension}' has no identity yet; write it with one.");
                    return Err(Refusal::new(StatusCode::CONFLICT, codes::IDENTITY_MISSING, message));
                }
                (own.map(|own| own.map(Some)), why_not)
            }
        };
        own.map_err(|why| Refusal::not_ready(&why))?
            .ok_or_else(|| Refusal::new(StatusCode::FORBIDDEN, "Forbidden", why_not))
    }

    async fn caller(&self, token: &str, peer: IpAddr) -> Result<Caller, Refusal> {
        match self.refusals.known(token, peer) {
            Some(Known::Refused) => return Err(unknown()),
            Some(Known::TooMany) => {
                let message = "Too many tokens of this pod were refused a moment ago. Ask again with one that is good.";
                let refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message);
                return Err(Refusal { retry_after: Some(REMEMBERED.as_secs()), ..refusal });
            }
            None => {}
        }
        let caller = self.reviews.who(token).await.map_err(|why| Refusal::not_ready(&why))?;
        match &caller {
            Some(_) => self.refusals.accepted(token),
            None => self.refusals.note(token, peer),
        }
        caller.ok_or_else(unknown)
    }

    fn given(&self) -> MutexGuard<'_, HashMap<Asked, Given>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that is in the first half of its life, or a new one.
    async fn token(&self, asked: &Asked) -> Result<Given, Refusal> {
        let generation = self.ready()?;
        let known = self.given().get(asked).cloned();
        if let Some(given) = known.filter(|given| given.generation == generation && given.at.elapsed() < given.life / 2)
        {
            return Ok(given);
        }
        let request =
            TokenRequest { audience: asked.0.clone(), extension: asked.1.as_ref().map(|(name, _)| name.clone()) };
        let token: Token = self.api.post(paths::TOKEN, &request).await.map_err(|err| refused(&err))?;
        // A gateway of an older version does not know of extensions, and answers with a token of the cluster. One that
        // knows an extension of that name that was made again answers with a token of the new one's identity, which the
        // accounts of the old one's chart are not to have.
        if asked.1.as_ref().is_some_and(|(_, own)| object_id(&token).as_ref() != Some(own)) {
            return Err(Refusal::not_ready(
                "the gateway gave a token of another identity: it is older than tokens of extensions, or the extension was made again",
            ));
        }
        let given = Given { life: life(&token), token, generation, at: Instant::now() };
        let mut all = self.given();
        all.retain(|_, given| given.at.elapsed() < given.life / 2);
        if all.len() < REMEMBERED_MAX {
            all.insert(asked.clone(), given.clone());
        }
        Ok(given)
    }

    /// Which certificate is in use, where the gateway can be asked as the cluster.
    fn ready(&self) -> Result<u64, Refusal> {
        if self.status.is_deleted() {
            return Err(Refusal::not_ready("the resource of this cluster was deleted"));
        }
        let identity = self.identities.current();
        if identity.is_some() && self.api.is_up() {
            return Ok(identity.map_or(0, |identity| identity.generation));
        }
        let operator = self.health.all().remove(clusteridentityoperator::NAME);
        let told = operator.map(|health| health.message).filter(|message| !message.is_empty());
        let reason = match (identity, told, self.status.last_error()) {
            (None, Some(told), _) => told,
            (None, None, _) => "the cluster has no certificate yet".to_owned(),
            (Some(_), _, Some(error)) => format!("no tunnel to the gateway is up: {error}"),
            (Some(_), _, None) => "no tunnel to the gateway is up".to_owned(),
        };
        Err(Refusal::not_ready(&reason))
    }
}

/// What may be a token.
fn shown(header: Option<&HeaderValue>) -> Option<&str> {
    let (scheme, token) = header?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= TOKEN_BYTES).then_some(token)
}

fn unknown() -> Refusal {
    let message = format!("Show a service-account token of audience {AUDIENCE}: Authorization: Bearer ...");
    Refusal::new(StatusCode::UNAUTHORIZED, "Unauthenticated", message)
}

/// What is asked for.
async fn asked(body: Incoming) -> Result<TokenRequest, Refusal> {
    let bad = |why: String| Refusal::new(StatusCode::BAD_REQUEST, "InvalidRequest", why);
    let late = |_| {
        let message = format!("The body was not there within {} s.", BODY.as_secs());
        Refusal::new(StatusCode::REQUEST_TIMEOUT, "RequestTimeout", message)
    };
    let body = timeout(BODY, Limited::new(body, BODY_BYTES).collect()).await.map_err(late)?;
    let body = body.map_err(|err| bad(format!("The body cannot be read: {err}.")))?.to_bytes();
    let request: TokenRequest = serde_json::from_slice(&body)
        .map_err(|err| bad(format!("The body is not {{\"audience\": \"...\"}}: {err}.")))?;
    let (audience, extension) = (&request.audience, request.extension.as_deref());
    if audience.is_empty() || audience.len() > AUDIENCE_BYTES || audience.chars().any(char::is_control) {
        let why = format!("The audience is empty, longer than {AUDIENCE_BYTES} bytes, or no text.");
        return Err(Refusal::new(StatusCode::BAD_REQUEST, "InvalidAudience", why));
    }
    if extension.is_some_and(|name| !is_name(name)) {
        return Err(bad("The extension's name has lower-case letters, digits and '-'.".to_owned()));
    }
    Ok(request)
}

/// What the gateway refused is passed on as it was said; what it cannot do now is asked again.
fn refused(err: &ApiError) -> Refusal {
    match err.refused() {
        Some(Refused { status: status @ 400..=428, code, message, .. }) => {
            let status = StatusCode::from_u16(*status).unwrap_or(StatusCode::BAD_REQUEST);
            // Who asks is known here; it is the cluster that the gateway does not know.
            let status = if status == StatusCode::UNAUTHORIZED { StatusCode::FORBIDDEN } else { status };
            Refusal::new(status, code, message.clone())
        }
        Some(Refused { retry_after, message, .. }) => {
            let wait = retry_after.map_or(NOT_READY, |wait| wait.as_secs().max(1));
            Refusal { retry_after: Some(wait), ..Refusal::not_ready(message) }
        }
        None => Refusal::not_ready(&err.to_string()),
    }
}

/// How long a token is good for, as it says itself: this machine's clock may be off. Nothing if it does not say.
fn life(token: &Token) -> Duration {
    let begins = claims(token).and_then(|claims| claims["iat"].as_u64());
    Duration::from_secs(begins.map_or(0, |begins| token.expires_on.saturating_sub(begins)))
}

/// Whose token it is.
fn object_id(token: &Token) -> Option<String> {
    Some(claims(token)?["oid"].as_str()?.to_owned())
}

/// What a token says. It comes from the gateway, which signed it: nothing is verified here.
fn claims(token: &Token) -> Option<Value> {
    let payload = token.token.split('.').nth(1)?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
}

fn respond(status: StatusCode, body: &Value, retry_after: Option<u64>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Some(seconds) = retry_after {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    match status {
        StatusCode::UNAUTHORIZED => {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        StatusCode::METHOD_NOT_ALLOWED => {
            headers.insert(header::ALLOW, HeaderValue::from_static("POST"));
        }
        _ => {}
    }
    response
}
