//! `GET <scope>/providers/Microsoft.Kubernetes/events?api-version=2026-05-01`: events at a subscription, a resource
//! group or a cluster, oldest first, of clusters that the caller may read.
//!
//! `after=<id>` begins behind an event; if some behind it are forgotten, or it is not known, the first one of the
//! answer tells so (type [`crate::events::GAP`]).
//! `$top` bounds a page; `nextLink` leads to the next one while there are more.

pub mod stream;

use auth::rbac::Scope;
use http::{Response, StatusCode, header};
use serde_json::json;
use types::api::{
    ResourceId,
    id::{RESOURCE_GROUPS, SUBSCRIPTIONS},
};

use crate::{
    answers::Body,
    api::{Call, json, read},
    api_error::ApiError,
    events::{self, cloud_event},
    store::events::{Event, Of},
};

/// The collection's full type.
pub const NAME: &str = "Microsoft.Kubernetes/events";
/// What one must be allowed at a cluster to be told of it.
pub const READ: &str = "Microsoft.Kubernetes/connectedClusters/read";
/// Events that a page has where the client names no number,
const PAGE: usize = 100;
/// and at most.
const PAGE_MOST: usize = 1000;
/// Events that one question to the store brings.
pub const AT_ONCE: u32 = 500;
/// How often one request asks the store for more, because what it found is not for this caller.
const LOOKS: usize = 40;

/// Answers a page of events of clusters in the scope, or a stream where `Accept` asks for one.
pub async fn serve(call: &Call<'_>, scope: &ResourceId) -> Result<Response<Body>, ApiError> {
    call.any_version()?;
    let at = Scope::from(scope);
    if !call.may(READ, &at) && !call.may_below(READ, &at) {
        return Err(call.forbidden(READ, scope.as_str()));
    }
    read::in_subscription(call, scope)?;
    let accepts = call.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    if accepts.split(',').any(|kind| kind.split(';').next().unwrap_or_default().trim() == stream::CONTENT_TYPE) {
        return stream::serve(call, scope).await;
    }
    let rows = match call.parameter("$top")?.map(str::parse::<usize>) {
        None => PAGE,
        Some(Ok(rows @ 1..)) => rows.min(PAGE_MOST),
        Some(_) => return Err(not_a_number("$top")),
    };
    let (mut value, of) = (Vec::new(), of(scope));
    let gap = |number, why: &str| events::gap(scope, number, why, call.now_ms(), &call.control.settings.url);
    let mut after = match after(call, "after")? {
        Some(known) => {
            let store = &call.control.store;
            let (from, missed) = events::resume(known, store.newest_event().await?, store.forgotten(of).await?);
            value.extend(missed.map(|why| gap(from, &why)));
            from
        }
        None => 0,
    };
    if value.len() == rows {
        return Ok(page(call, value, Some(after)));
    }
    let mut asker = call.asker(READ);
    for _ in 0..LOOKS {
        let events = call.control.store.events(of, after, AT_ONCE).await?;
        let all = events.len() < AT_ONCE as usize;
        for (at, event) in events.into_iter().enumerate() {
            if at % read::ROWS_A_TURN == read::ROWS_A_TURN - 1 {
                tokio::task::yield_now().await;
            }
            after = event.number;
            if concerns(&event, scope) && event.key.parse().is_ok_and(|at| asker.may(&at)) {
                value.push(cloud_event(&event, &call.control.settings.url));
            }
            if value.len() == rows {
                return Ok(page(call, value, Some(after)));
            }
        }
        if all {
            return Ok(page(call, value, None));
        }
    }
    Ok(page(call, value, Some(after)))
}

/// Whose events are asked for at a scope.
pub fn of(scope: &ResourceId) -> Of<'_> {
    if scope.is(RESOURCE_GROUPS) {
        Of::Group(scope.key())
    } else if scope.is(SUBSCRIPTIONS) {
        Of::Subscription(scope.key())
    } else {
        Of::Cluster(scope.key())
    }
}

fn page(call: &Call<'_>, value: Vec<serde_json::Value>, next: Option<i64>) -> Response<Body> {
    let mut page = json!({"value": value});
    if let Some(next) = next {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        for (name, value) in call.query.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("after")) {
            query.append_pair(name, value);
        }
        query.append_pair("after", &next.to_string());
        page["nextLink"] = call.url(&format!("/{}?{}", call.path.trim_start_matches('/'), query.finish())).into();
    }
    json(StatusCode::OK, &page)
}

/// Whether an event is of what a scope holds.
pub fn concerns(event: &Event, scope: &ResourceId) -> bool {
    event.key.strip_prefix(scope.key()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The event behind which the client wants to begin.
pub fn after(call: &Call<'_>, name: &str) -> Result<Option<i64>, ApiError> {
    let Some(text) = call.parameter(name)? else { return Ok(None) };
    text.parse().ok().filter(|number| *number >= 0).map(Some).ok_or_else(|| not_a_number(name))
}

fn not_a_number(name: &str) -> ApiError {
    let message = format!("The query parameter '{name}' must be a whole number.");
    ApiError::bad_request("InvalidQueryParameterValue", message).at(name)
}
