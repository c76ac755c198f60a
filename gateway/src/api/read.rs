//! One resource, and lists of them.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use http::{HeaderValue, Response, StatusCode, header};
use proto::{api::ResourceId, rbac::Scope};
use serde_json::{Map, Value, json};

use super::{Call, empty, error::ApiError, json};
use crate::{
    request::respond::Body,
    resources::{
        KINDS, Kind, Place, Showing,
        connected_cluster::{self, ConnectedClusters},
        kind, last_name, schema,
    },
    store::{
        StoreError,
        agents::Agent,
        resources::{PAGE_ROWS, Stored},
    },
};

/// Rows of a page where the client names no number.
const PAGE: u32 = 100;
/// How often one request asks the store for more, because what it found so far is not for this caller or this filter.
const LOOKS: usize = 20;
/// What tokens of pages are sealed for.
const TOKEN: &str = "$skipToken";
const SUBSCRIPTION_READ: &str = "Microsoft.Resources/subscriptions/read";

/// A resource as a client sees it.
pub async fn show(call: &Call<'_>, kind: &dyn Kind, version: &str, stored: &Stored) -> Result<Value, ApiError> {
    let agent = if kind.has_agents() { call.control.store.agent(&stored.key).await? } else { None };
    Ok(show_with(call, kind, version, stored, agent.as_ref()))
}

/// The same, with what is kept of its agents.
fn show_with(call: &Call<'_>, kind: &dyn Kind, version: &str, stored: &Stored, agent: Option<&Agent>) -> Value {
    let none = Map::new();
    let kept = stored.body.as_object().unwrap_or(&none);
    let mut shown = Map::new();
    shown.insert("id".to_owned(), stored.id.as_str().into());
    let name = last_name(&stored.id);
    if kind.place() != Place::Top {
        shown.insert("name".to_owned(), name.into());
        shown.insert("type".to_owned(), kind.name().into());
    }
    shown.extend(schema::show(kind.schema(), kept, version));
    if let Some(data) = kept.get("systemData") {
        shown.insert("systemData".to_owned(), data.clone());
    }
    kind.show(&mut shown, stored, &Showing { version, now_ms: call.now_ms, control: call.control, agent });
    Value::Object(shown)
}

/// The version of a kept resource, as an entity tag (RFC 9110 section 8.8.3).
pub fn tag(stored: &Stored) -> String {
    format!("\"{}\"", stored.revision)
}

/// An answer with one resource and its tag.
pub fn with_tag(mut response: Response<Body>, stored: &Stored) -> Response<Body> {
    if stored.revision > 0
        && let Ok(tag) = HeaderValue::try_from(tag(stored))
    {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// Whether a header lists this tag, or any. Strong comparison; clients of ARM also leave the quotes out.
pub fn names(header: &HeaderValue, stored: &Stored) -> bool {
    let text = header.to_str().unwrap_or_default();
    let plain = stored.revision.to_string();
    text.split(',').map(str::trim).any(|one| one == "*" || one == tag(stored) || one == plain)
}

/// GET or HEAD of one resource.
pub async fn resource(call: &Call<'_>, id: &ResourceId) -> Result<Response<Body>, ApiError> {
    let kind = kind_of(id)?;
    let version = call.version(kind)?;
    match kind.place() {
        Place::Top => subscription(call, id)?,
        _ => call.authorize(&format!("{}/read", operations_of(kind)), id)?,
    }
    in_subscription(call, id)?;
    let stored = call.control.get(id).await?.ok_or_else(|| ApiError::resource_not_found(id))?;
    if call.method == http::Method::HEAD {
        return Ok(with_tag(empty(StatusCode::NO_CONTENT), &stored));
    }
    if call.headers.get(header::IF_NONE_MATCH).is_some_and(|tags| names(tags, &stored)) {
        return Ok(with_tag(empty(StatusCode::NOT_MODIFIED), &stored));
    }
    Ok(with_tag(json(StatusCode::OK, &show(call, kind, version, &stored).await?), &stored))
}

/// The plug-in of an id.
pub fn kind_of(id: &ResourceId) -> Result<&'static dyn Kind, ApiError> {
    kind(id.kind()).ok_or_else(|| unknown_kind(id.kind()))
}

fn unknown_kind(name: &str) -> ApiError {
    let known: Vec<_> = KINDS.iter().map(|kind| kind.name()).collect();
    let message = format!("The resource type '{name}' is not known to this gateway; known are {}.", known.join(", "));
    ApiError::of(StatusCode::NOT_FOUND, "InvalidResourceType", message)
}

/// What a kind is called in actions. Those of resource groups are named below subscriptions.
pub fn operations_of(kind: &dyn Kind) -> &'static str {
    match kind.place() {
        Place::Subscription => "Microsoft.Resources/subscriptions/resourceGroups",
        _ => kind.name(),
    }
}

/// A subscription that is not (or no more) in the configuration is out of reach.
pub fn in_subscription(call: &Call<'_>, id: &ResourceId) -> Result<(), ApiError> {
    if call.control.has_subscription(id.subscription()) {
        return Ok(());
    }
    Err(ApiError::subscription_not_found(id.subscription()))
}

/// Goes on only if the caller may read a subscription. Who may at a place in it also may: `az` finds nothing to work in
/// otherwise, and a role at one resource group would be of no use to it.
pub fn subscription(call: &Call<'_>, id: &ResourceId) -> Result<(), ApiError> {
    if sees(call, id.key()) { Ok(()) } else { Err(call.forbidden(SUBSCRIPTION_READ, id.as_str())) }
}

fn sees(call: &Call<'_>, key: &str) -> bool {
    let Ok(scope) = key.parse::<Scope>() else { return false };
    call.may(SUBSCRIPTION_READ, &scope) || call.may_below(SUBSCRIPTION_READ, &scope)
}

/// What a list shows: everything at the scope, or only what the caller may read one by one.
#[derive(Clone, Copy)]
enum Sight {
    All,
    Single,
}

impl Sight {
    fn shows(self, call: &Call<'_>, action: &str, stored: &Stored) -> bool {
        matches!(self, Self::All) || stored.key.parse().is_ok_and(|scope| call.may(action, &scope))
    }
}

fn sight(call: &Call<'_>, action: &str, scope: Option<&ResourceId>) -> Result<Sight, ApiError> {
    let at = scope.map_or_else(Scope::root, Scope::from);
    if call.may(action, &at) {
        return Ok(Sight::All);
    }
    match scope {
        Some(id) if !call.may_below(action, &at) => Err(call.forbidden(action, id.as_str())),
        // Who may see no subscription sees an empty list.
        _ => Ok(Sight::Single),
    }
}

/// GET of a collection.
pub async fn list(call: &Call<'_>, scope: Option<&ResourceId>, name: &str) -> Result<Response<Body>, ApiError> {
    let kind = kind(name).ok_or_else(|| unknown_kind(name))?;
    let version = call.version(kind)?;
    let action = format!("{}/read", operations_of(kind));
    let sight = sight(call, &action, scope)?;
    if let Some(scope) = scope {
        in_subscription(call, scope)?;
        exists(call, scope).await?;
    }
    let rows = rows(call)?;
    let after = after(call)?;
    let at_scope = call.parameter("$filter")?.is_some_and(|filter| filter.to_ascii_lowercase().contains("atscope()"));
    let filter = call.parameter("$filter")?.filter(|filter| !filter.is_empty());
    let shown = |stored: &Stored, agent: Option<&Agent>| {
        let visible = match kind.place() {
            Place::Top => sees(call, &stored.key),
            _ => sight.shows(call, &action, stored),
        };
        let reachable = scope.is_some()
            || ResourceId::parse(&stored.id).is_ok_and(|id| call.control.has_subscription(id.subscription()));
        let wanted = match filter {
            Some(filter) => kind.matches(filter, stored, &call.caller)?,
            None => true,
        };
        Ok((visible && reachable && wanted).then(|| show_with(call, kind, version, stored, agent)))
    };
    let mut value = Vec::new();
    if after.is_empty() {
        for stored in above(call, kind, scope).await? {
            value.extend(shown(&stored, None)?);
        }
    }
    let within = scope.map(ResourceId::key).unwrap_or_default();
    // Only those at the scope itself, not below it.
    let exactly = at_scope && kind.place() == Place::Anywhere;
    let pick = |stored: &Stored, agent: Option<&Agent>| {
        if exactly && !is_at(stored, within) { Ok(None) } else { shown(stored, agent) }
    };
    let last = gather(call, (kind, within), after, rows, &mut value, pick).await?;
    Ok(json(StatusCode::OK, &paged(call, value, last)?))
}

/// Adds what is picked of a kind below a key, up to `rows`. Says behind which key the next page begins: that of the last one
/// that was picked, so that a page says nothing about those that were not.
async fn gather(
    call: &Call<'_>,
    (kind, within): (&dyn Kind, &str),
    mut after: String,
    rows: u32,
    value: &mut Vec<Value>,
    pick: impl Fn(&Stored, Option<&Agent>) -> Result<Option<Value>, ApiError> + Send,
) -> Result<Option<String>, ApiError> {
    let full = value.len() + rows as usize;
    let mut fetch = rows;
    for _ in 0..LOOKS {
        let page = page(call, kind, within, &after, fetch).await?;
        for (stored, agent) in &page {
            value.extend(pick(stored, agent.as_ref())?);
            if value.len() == full {
                return Ok(Some(stored.key.clone()));
            }
        }
        match page.last() {
            Some((last, _)) if page.len() == fetch as usize => after.clone_from(&last.key),
            _ => return Ok(None),
        }
        fetch = PAGE_ROWS;
    }
    Ok(Some(after))
}

/// Some of a kind, with what is kept of their agents: one statement, however many there are (C9).
async fn page(
    call: &Call<'_>,
    kind: &dyn Kind,
    within: &str,
    after: &str,
    rows: u32,
) -> Result<Vec<(Stored, Option<Agent>)>, StoreError> {
    let name = kind.name().to_ascii_lowercase();
    if kind.has_agents() {
        return call.control.store.page_with_agents(&name, within, after, rows).await;
    }
    let page = call.control.store.page(&name, within, after, rows).await?;
    Ok(page.into_iter().map(|stored| (stored, None)).collect())
}

/// Built-in resources, and of what is found at any scope, that which holds here because it is further up.
async fn above(call: &Call<'_>, kind: &dyn Kind, scope: Option<&ResourceId>) -> Result<Vec<Stored>, ApiError> {
    let Some(scope) = scope.filter(|_| kind.place() == Place::Anywhere) else { return Ok(Vec::new()) };
    let mut found = kind.built_in(&format!("/subscriptions/{}", scope.subscription()));
    let mut next = scope.parent();
    while let Some(at) = next {
        let here = call.control.store.children(&kind.name().to_ascii_lowercase(), at.key(), "", PAGE_ROWS).await?;
        found.extend(here.into_iter().filter(|stored| is_at(stored, at.key())));
        next = at.parent();
    }
    Ok(found)
}

/// Whether it is of exactly this scope.
fn is_at(stored: &Stored, scope: &str) -> bool {
    ResourceId::parse(&stored.id).is_ok_and(|id| id.parent_key() == scope)
}

/// Of tracked resources, which have a location and tags: `GET <scope>/resources`.
pub async fn everything(call: &Call<'_>, scope: &ResourceId) -> Result<Response<Body>, ApiError> {
    call.any_version()?;
    let action = format!("{}/read", connected_cluster::NAME);
    let sight = sight(call, &action, Some(scope))?;
    in_subscription(call, scope)?;
    exists(call, scope).await?;
    let (rows, after) = (rows(call)?, after(call)?);
    let filter = call.parameter("$filter")?.filter(|filter| !filter.is_empty());
    let pick = |stored: &Stored, _: Option<&Agent>| {
        let name = last_name(&stored.id);
        let wanted = filter.map_or(Ok(true), |filter| {
            super::filter::all(filter, |condition| match condition {
                super::filter::Condition::Equal("resourceType", kind) => Some(kind.eq_ignore_ascii_case(&stored.kind)),
                super::filter::Condition::Equal("name", wanted) => Some(wanted.eq_ignore_ascii_case(name)),
                super::filter::Condition::Equal("resourceGroup", wanted) => {
                    let id = ResourceId::parse(&stored.id).ok();
                    let group = id.as_ref().and_then(ResourceId::resource_group);
                    Some(group.is_some_and(|group| group.eq_ignore_ascii_case(wanted)))
                }
                _ => None,
            })
        })?;
        Ok((wanted && sight.shows(call, &action, stored)).then(|| {
            let mut shown = json!({"id": stored.id, "name": name, "type": connected_cluster::NAME});
            for property in ["location", "tags", "identity", "kind", "systemData"] {
                if let Some(kept) = stored.body.get(property) {
                    shown[property] = kept.clone();
                }
            }
            shown
        }))
    };
    let mut value = Vec::new();
    let last = gather(call, (&ConnectedClusters, scope.key()), after, rows, &mut value, pick).await?;
    Ok(json(StatusCode::OK, &paged(call, value, last)?))
}

/// What is listed in must be there.
async fn exists(call: &Call<'_>, scope: &ResourceId) -> Result<(), ApiError> {
    let at = holder(scope);
    match call.control.get(&at).await? {
        Some(_) => Ok(()),
        None => Err(ApiError::resource_not_found(&at)),
    }
}

/// The nearest kept resource: a namespace of a cluster is a scope, but it is kept by its cluster.
pub fn holder(id: &ResourceId) -> ResourceId {
    let namespace = format!("{}/namespaces", connected_cluster::NAME);
    match id.parent() {
        Some(cluster) if id.is(&namespace) => cluster,
        _ => id.clone(),
    }
}

fn rows(call: &Call<'_>) -> Result<u32, ApiError> {
    let Some(top) = call.parameter("$top")? else { return Ok(PAGE) };
    match top.parse::<u32>() {
        Ok(rows @ 1..) => Ok(rows.min(PAGE_ROWS)),
        _ => {
            let message = "The query parameter '$top' must be a whole number above 0.";
            Err(ApiError::bad_request("InvalidQueryParameterValue", message).at("$top"))
        }
    }
}

/// Where the last page ended.
fn after(call: &Call<'_>) -> Result<String, ApiError> {
    let Some(token) = call.parameter("$skipToken")? else { return Ok(String::new()) };
    let key = BASE64.decode(token).ok().and_then(|sealed| call.control.unseal(TOKEN, &sealed));
    key.and_then(|key| key.as_str().map(str::to_owned)).ok_or_else(|| {
        let message = "The query parameter '$skipToken' is none of this gateway's; follow nextLink as it is.";
        ApiError::bad_request("InvalidQueryParameterValue", message).at("$skipToken")
    })
}

/// A page. Its token is sealed: the key in it may be of what this caller does not see.
fn paged(call: &Call<'_>, value: Vec<Value>, last: Option<String>) -> Result<Value, ApiError> {
    let mut page = json!({"value": value});
    if let Some(last) = last {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        for (name, value) in call.query.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("$skipToken")) {
            query.append_pair(name, value);
        }
        query.append_pair("$skipToken", &BASE64.encode(call.control.seal(TOKEN, &json!(last))?));
        page["nextLink"] = call.url(&format!("/{}?{}", call.path.trim_start_matches('/'), query.finish())).into();
    }
    Ok(page)
}
