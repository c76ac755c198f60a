//! Typed calls of the resource API: paging, long-running operations, repeats where they are safe, and ARM's error
//! envelope as an error that says what, where, and what to type next.

mod error;
mod following;
mod operation;

use std::{
    fmt,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use secrecy::ExposeSecret;
use serde_json::Value;

pub use self::{
    error::ApiError,
    following::Following,
    operation::{TimedOut, Wait, WaitArgs},
};
use crate::{
    client::{Client, Live, retry_after},
    context::Context,
    failure::Outcome,
    terminal::say,
};

/// Api-versions, by type.
pub mod versions {
    /// Api-version of subscriptions.
    pub const SUBSCRIPTIONS: &str = "2022-12-01";
    /// Resource groups, and `resources` of a scope.
    pub const RESOURCES: &str = "2022-09-01";
    /// Api-version of connected clusters.
    pub const CLUSTERS: &str = "2026-05-01";
    /// Extensions of clusters.
    pub const EXTENSIONS: &str = "2025-03-01";
    /// What a catalogue of extensions offers.
    pub const EXTENSION_TYPES: &str = "2024-11-01-preview";
    /// Flux configurations of clusters.
    pub const FLUX: &str = "2025-04-01";
    /// Api-version of fleet assignments.
    pub const FLEET: &str = "2026-11-01";
    /// Source control configurations of clusters.
    pub const SOURCE_CONTROL: &str = "2023-05-01";
    /// Role definitions and assignments.
    pub const AUTHORIZATION: &str = "2022-04-01";
}

/// The type of resources of a provider; displayed as `provider/name`, as it stands in ids.
#[derive(Debug, Clone, Copy)]
pub struct ResourceType {
    /// The namespace of the resource provider.
    pub provider: &'static str,
    /// The type in it.
    pub name: &'static str,
}

impl fmt::Display for ResourceType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.provider, self.name)
    }
}

/// Names what several requests belong to.
const CORRELATION_ID: HeaderName = HeaderName::from_static("x-ms-correlation-request-id");
/// How often a request is sent again that the gateway had no time for, and how long all that may take.
const TRIES: u32 = 6;
const PATIENCE: Duration = Duration::from_secs(120);
/// Pause before the next try where the answer has no `Retry-After`.
const PAUSE: Duration = Duration::from_secs(1);
/// Pages of one list at most: ten million rows.
const PAGES: usize = 10_000;

/// The resource API of a gateway, as somebody.
#[derive(Clone)]
pub struct Api {
    client: Client,
    context: Context,
}

/// What was answered.
#[derive(Debug)]
pub struct Answer {
    /// The status, always a success.
    pub status: StatusCode,
    pub headers: HeaderMap,
    /// The document; null for none.
    pub body: Value,
}

impl Answer {
    /// A header's text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// A request to the resource API.
pub struct Call<'a> {
    pub method: Method,
    /// Path and query, or an absolute URL of this gateway.
    pub target: &'a str,
    /// The document that is sent as JSON, if any.
    pub body: Option<&'a Value>,
    /// Headers beside those that every request has.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Whether it is sent without a token.
    pub is_nobodys: bool,
}

impl<'a> Call<'a> {
    /// Of a method and a target.
    pub fn new(method: Method, target: &'a str) -> Self {
        Self { method, target, body: None, headers: Vec::new(), is_nobodys: false }
    }

    /// With a JSON body.
    #[must_use]
    pub fn json(mut self, body: &'a Value) -> Self {
        self.body = Some(body);
        self
    }

    /// Without a token: the body says what gives the right.
    #[must_use]
    pub fn without_token(mut self) -> Self {
        self.is_nobodys = true;
        self
    }

    /// Only if the resource is still of this ETag.
    #[must_use]
    pub fn if_match(mut self, tag: Option<&str>) -> Self {
        self.headers.extend(tag.and_then(|tag| Some((header::IF_MATCH, HeaderValue::from_str(tag).ok()?))));
        self
    }
}

/// The target of a request, `<id>?api-version=<version>`.
pub fn at(id: impl std::fmt::Display, version: &str) -> String {
    format!("{id}?api-version={version}")
}

/// One value of a query, encoded.
pub fn encoded(value: &str) -> String {
    url::form_urlencoded::byte_serialize(value.as_bytes()).collect()
}

impl Api {
    /// As the account of a context, at its gateway.
    pub fn of(context: &Context) -> Outcome<Self> {
        Ok(Self { client: context.client()?, context: context.clone() })
    }

    /// GET of a document.
    pub async fn get(&self, target: &str) -> Outcome<Value> {
        Ok(self.send(&Call::new(Method::GET, target)).await?.body)
    }

    /// GET of what may not be there.
    pub async fn find(&self, target: &str) -> Outcome<Option<Answer>> {
        match self.send(&Call::new(Method::GET, target)).await {
            Ok(answer) => Ok(Some(answer)),
            Err(failure) if ApiError::behind(&failure).is_some_and(|error| error.status == StatusCode::NOT_FOUND) => {
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    /// PUT of a document.
    pub async fn put(&self, target: &str, body: &Value) -> Outcome<Answer> {
        self.send(&Call::new(Method::PUT, target).json(body)).await
    }

    /// PATCH of a document.
    pub async fn patch(&self, target: &str, body: &Value) -> Outcome<Answer> {
        self.send(&Call::new(Method::PATCH, target).json(body)).await
    }

    /// POST of a document.
    pub async fn post(&self, target: &str, body: &Value) -> Outcome<Answer> {
        self.send(&Call::new(Method::POST, target).json(body)).await
    }

    /// DELETE of a resource.
    pub async fn delete(&self, target: &str) -> Outcome<Answer> {
        self.send(&Call::new(Method::DELETE, target)).await
    }

    /// All rows of a list, over all its pages.
    pub async fn list(&self, target: &str) -> Outcome<Vec<Value>> {
        self.pages(target, None).await
    }

    /// All rows that an action lists, over all its pages, each of which is asked for with the same document.
    pub async fn list_by(&self, target: &str, body: &Value) -> Outcome<Vec<Value>> {
        self.pages(target, Some(body)).await
    }

    async fn pages(&self, target: &str, body: Option<&Value>) -> Outcome<Vec<Value>> {
        let (mut rows, mut next) = (Vec::new(), Some(target.to_owned()));
        for _ in 0..PAGES {
            let Some(at) = next.take() else { return Ok(rows) };
            let mut page = match body {
                Some(body) => self.post(&at, body).await?.body,
                None => self.get(&at).await?,
            };
            if let Some(Value::Array(more)) = page.get_mut("value").map(Value::take) {
                rows.extend(more);
            }
            next = page["nextLink"].as_str().filter(|link| !link.is_empty()).map(str::to_owned);
        }
        Err(anyhow!("the list has more than {PAGES} pages").into())
    }

    /// Sends one request, and again where that is safe: the gateway said that it did not begin with it (429), or
    /// repeating it changes nothing (503). A token that is refused is renewed once.
    ///
    /// # Errors
    /// [`ApiError`] for a refusal, else why there was no answer.
    pub async fn send(&self, call: &Call<'_>) -> Outcome<Answer> {
        let (end, mut tries, mut renewed) = (Instant::now() + PATIENCE, 0, false);
        loop {
            tries += 1;
            let answer = self.once(call).await?;
            let status = answer.status();
            if status.is_success() {
                if let Some(names) =
                    answer.headers().get(types::api::UNCONFIRMED_BY).and_then(|names| names.to_str().ok())
                {
                    say(&format!(
                        "warning: the change is made, but not every gateway has confirmed it yet: {names}. What it takes away may still be allowed there for a moment"
                    ));
                }
                return Ok(read(answer).context("cannot read the gateway's answer")?);
            }
            if status == StatusCode::UNAUTHORIZED && !renewed && !call.is_nobodys {
                renewed = true;
                self.context.forget_token(&self.context.account().audience).await;
                continue;
            }
            let repeats = match status {
                StatusCode::TOO_MANY_REQUESTS => true,
                StatusCode::SERVICE_UNAVAILABLE => call.method != Method::POST,
                _ => false,
            };
            let pause = retry_after(answer.headers()).unwrap_or(PAUSE);
            if !repeats || tries >= TRIES || Instant::now() + pause > end {
                return Err(ApiError::read(call, self.context.account(), &answer).into());
            }
            tracing::debug!(%status, ?pause, "the gateway asks to try again");
            tokio::time::sleep(pause).await;
        }
    }

    /// Server-sent events behind the one of id `last`, or from now on.
    pub async fn events(&self, target: &str, last: Option<&str>) -> Outcome<Live> {
        let mut call = Call::new(Method::GET, target);
        call.headers.extend(
            last.and_then(|id| Some((HeaderName::from_static("last-event-id"), HeaderValue::from_str(id).ok()?))),
        );
        let request = self.request(&call, "text/event-stream").await?;
        let (head, mut live) = self.client.open(request).await?;
        if head.status.is_success() {
            return Ok(live);
        }
        let body = live.next().await.unwrap_or_default();
        Err(ApiError::read(&call, self.context.account(), &Response::from_parts(head, body)).into())
    }

    async fn once(&self, call: &Call<'_>) -> anyhow::Result<Response<Bytes>> {
        self.client.ask(self.request(call, "application/json").await?).await
    }

    async fn request(&self, call: &Call<'_>, accept: &str) -> anyhow::Result<Request<Full<Bytes>>> {
        // Names may have letters of any alphabet; all else of a target is encoded where it is put together.
        let target =
            percent_encoding::utf8_percent_encode(&self.own(call.target)?, percent_encoding::CONTROLS).to_string();
        let mut request = Request::builder().method(call.method.clone()).uri(target);
        if !call.is_nobodys {
            let token = self.context.api_token().await?;
            let mut bearer = HeaderValue::try_from(format!("Bearer {}", token.secret.expose_secret()))
                .map_err(|_| anyhow!("the token has characters that no token has"))?;
            bearer.set_sensitive(true);
            request = request.header(header::AUTHORIZATION, bearer);
        }
        request = request.header(header::ACCEPT, accept).header(CORRELATION_ID, self.context.correlation());
        for (name, value) in &call.headers {
            request = request.header(name, value);
        }
        let body = match call.body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                body.to_string()
            }
            None => String::new(),
        };
        Ok(request.body(Full::new(Bytes::from(body)))?)
    }

    /// The path and query of a target. An address in an answer must be this gateway's: a token goes nowhere else.
    fn own(&self, target: &str) -> anyhow::Result<String> {
        if target.starts_with('/') {
            return Ok(format!("{}{target}", self.client.address().path));
        }
        let account = self.context.account();
        let rest = [&account.gateway, &account.audience]
            .into_iter()
            .find_map(|base| target.strip_prefix(base.trim_end_matches('/')).filter(|rest| rest.starts_with('/')));
        match rest {
            Some(rest) => Ok(format!("{}{rest}", self.client.address().path)),
            None => bail!("{target} is not an address of the gateway {}", account.gateway),
        }
    }
}

fn read(answer: Response<Bytes>) -> anyhow::Result<Answer> {
    let (head, body) = answer.into_parts();
    let body = if body.is_empty() {
        Value::Null
    } else {
        serde_json::from_slice(&body)
            .context("the answer is not JSON; check that the address is that of a Towline gateway")?
    };
    Ok(Answer { status: head.status, headers: head.headers, body })
}
