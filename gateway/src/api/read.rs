//! GET of the resource API: one resource, and lists of a kind, of a scope or of everything. A resource is shown with
//! what its agents tell; a list has pages, shows what the caller may read alone, and is bounded in what it reads and in
//! the bytes of a page.

use std::sync::{Mutex, PoisonError};

use auth::rbac::{Scope, policy::Asker};
use aws_lc_rs::digest;
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use http::{HeaderValue, Response, StatusCode, header};
use percent_encoding::CONTROLS;
use serde_json::{Map, Value, json};
use types::{agent_api::LogLevel, api::ResourceId};

use super::{Call, body::party, empty, json};
use crate::{
    answers::{self, Body},
    api_error::ApiError,
    aside::here,
    object::Object,
    resources::{self, KINDS, Kind, Paging, Place, Showing, filter, holder, kind, schema},
    store::{
        StoreError,
        agents::Agent,
        logs::Part,
        resources::{Below, Beside as Weighed, PAGE_ROWS, Stored, Window},
        statuses::ReportedStatus,
    },
    stored::{last_name, properties_mut},
};

/// Rows of a page where the client names no number.
const PAGE: u32 = 100;
/// Bytes of a page about: ARM's own clients take no more than 8 MB.
const BYTES: usize = 4 * 1024 * 1024;
/// Parts of each resource that a list shows at most, and rows of resources with parts that are read at once: each may be
/// hundreds of kilobytes.
const PARTS_LISTED: u32 = 100;
const PARTED_ROWS: u32 = 20;
/// Which log lines are read for the status of one resource: no others than errors are shown there.
const ERRORS: Part = Part { after: 0, level: LogLevel::Error, newest: 100 };
/// How often one request asks the store for more, because what it found so far is not for this caller or this filter.
const LOOKS: usize = 20;
/// Bytes that a list reads at once without a turn: any number of these may be under way.
const AT_ONCE_BYTES: u64 = 32 * 1024;
/// Rows after which a list lets other requests have their turn: each may take long to decide and to show.
pub const ROWS_A_TURN: usize = 8;
/// What tokens of pages are sealed for.
const TOKEN: &str = "$skipToken";
const SUBSCRIPTION_READ: &str = "Microsoft.Resources/subscriptions/read";

/// A resource as a client sees it.
pub async fn show(call: &Call<'_>, kind: &dyn Kind, version: &str, stored: &Stored) -> Result<Value, ApiError> {
    let store = &call.control.store;
    let agent = if kind.has_agents() { store.agent(&stored.key).await? } else { None };
    let followed = kind.follows();
    // Before its parts, which are written first.
    let told = if kind.is_told_of() { store.told(&stored.key).await? } else { None };
    let parts = match followed.and_then(|followed| followed.parts) {
        Some(parted) => {
            let mut parts = store.parts_of(&stored.key, u32::MAX).await?;
            if let Some(logged) = parted.logged.filter(|logged| (logged.wanted)(&parts)) {
                (logged.add)(&mut parts, &store.lines_of(&stored.key, ERRORS).await?);
            }
            parts
        }
        None => Vec::new(),
    };
    let is_long = !answers::is_short(&stored.body) || !parts.iter().all(answers::is_short) || parts.len() > ROWS_A_TURN;
    let beside = Beside { agent, told, parts };
    Ok(here(is_long, || show_with(call, kind, version, &stored.id, stored.body.clone(), beside)).await?)
}

/// What is kept beside a resource, apart from its revisions.
#[derive(Default)]
struct Beside {
    agent: Option<Agent>,
    told: Option<ReportedStatus>,
    /// What is told of its parts.
    parts: Vec<Value>,
}

/// The same of the id and the body of one, with what is kept beside.
fn show_with(call: &Call<'_>, kind: &dyn Kind, version: &str, id: &str, body: Value, beside: Beside) -> Value {
    let object = if kind.is_followed() { Object::of(&body) } else { Object::default() };
    let mut kept = match body {
        Value::Object(kept) => kept,
        _ => Map::new(),
    };
    let system_data = kept.remove("systemData");
    let mut shown = schema::show(kind.schema(), kept, version);
    shown.insert("id".to_owned(), id.into());
    if kind.place() != Place::Top {
        shown.insert("name".to_owned(), last_name(id).into());
        shown.insert("type".to_owned(), kind.name().into());
    }
    if let Some(data) = system_data {
        shown.insert("systemData".to_owned(), data);
    }
    let (agent, told) = (beside.agent.as_ref(), beside.told.as_ref());
    let (now_ms, control) = (call.now_ms(), call.control.as_ref());
    kind.show(
        &mut shown,
        id,
        &Showing { version, now_ms, caller: &call.caller, control, agent, object: &object, told },
    );
    if let Some(parted) = kind.follows().and_then(|followed| followed.parts) {
        properties_mut(&mut shown).insert(parted.shown_as.to_owned(), beside.parts.into());
    }
    Value::Object(shown)
}

/// What is shown of a kept resource, as an entity tag (RFC 9110 section 8.8.3): its version, by which writes compare,
/// and a digest, because its status and what its agents tell change without a write.
pub fn tag(stored: &Stored, shown: &Value) -> String {
    const BYTES: usize = 8;
    let digest = digest::digest(&digest::SHA256, shown.to_string().as_bytes());
    let hex = types::ids::hex(&digest.as_ref()[..BYTES]);
    format!("\"{}.{hex}\"", stored.revision)
}

/// An answer with one resource and its tag.
pub fn with_tag(mut response: Response<Body>, stored: &Stored, shown: &Value) -> Response<Body> {
    if stored.revision > 0
        && let Ok(tag) = HeaderValue::try_from(tag(stored, shown))
    {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// Whether a header lists a tag of what was last written, or any: what has been shown since then may differ in what
/// nobody writes. Strong comparison; clients of ARM also leave the quotes out.
pub fn names(header: &HeaderValue, stored: &Stored) -> bool {
    let revision = stored.revision.to_string();
    listed(header).any(|one| one == "*" || one.split('.').next() == Some(revision.as_str()))
}

/// Whether a header lists the tag of what would be shown. Weak comparison, as reads compare.
fn is_known(header: &HeaderValue, stored: &Stored, shown: &Value) -> bool {
    let tag = tag(stored, shown);
    let plain = tag.trim_matches('"');
    header.to_str().unwrap_or_default().split(',').any(|one| {
        let one = one.trim();
        one == "*" || unquoted(one.strip_prefix("W/").unwrap_or(one)) == plain
    })
}

fn listed(header: &HeaderValue) -> impl Iterator<Item = &str> {
    header.to_str().unwrap_or_default().split(',').map(|one| unquoted(one.trim()))
}

fn unquoted(tag: &str) -> &str {
    tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).unwrap_or(tag)
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
    let stored = present(call, id).await?;
    // There may be megabytes of them.
    let has_parts = kind.follows().is_some_and(|followed| followed.parts.is_some());
    let _turn = if has_parts { Some(call.control.long_lists.take(&party(call)).await?) } else { None };
    let shown = show(call, kind, version, &stored).await?;
    Ok(here(!answers::is_short(&shown), move || answer(call, &stored, &shown)).await?)
}

/// The answer to a GET or a HEAD.
fn answer(call: &Call<'_>, stored: &Stored, shown: &Value) -> Response<Body> {
    let answer = if call.method == http::Method::HEAD {
        empty(StatusCode::NO_CONTENT)
    } else if call.headers.get(header::IF_NONE_MATCH).is_some_and(|tags| is_known(tags, stored, shown)) {
        empty(StatusCode::NOT_MODIFIED)
    } else {
        json(StatusCode::OK, shown)
    };
    with_tag(answer, stored, shown)
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

/// What `az tag list` lists.
pub const TAG_NAMES: &str = "Microsoft.Resources/subscriptions/tagNames";
/// Types of which there are none here, and that stock tools list before they go on (`az tag`, `lock`, `deployment` and
/// `policy assignment list`): an empty list. Whoever writes one is told that the type is not known.
const NEVER_ANY: &[&str] = &[
    TAG_NAMES,
    "Microsoft.Authorization/locks",
    "Microsoft.Authorization/policyAssignments",
    "Microsoft.Authorization/policyDefinitions",
    "Microsoft.Authorization/policySetDefinitions",
    "Microsoft.Authorization/denyAssignments",
    "Microsoft.Resources/deployments",
];

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
enum Sight<'a> {
    All,
    Single(Mutex<Asker<'a>>),
}

impl Sight<'_> {
    fn shows(&self, stored: &Stored) -> bool {
        match self {
            Self::All => true,
            Self::Single(asker) => {
                let mut asker = asker.lock().unwrap_or_else(PoisonError::into_inner);
                stored.key.parse().is_ok_and(|scope| asker.may(&scope))
            }
        }
    }
}

fn sight<'a>(call: &'a Call<'_>, action: &str, scope: Option<&ResourceId>) -> Result<Sight<'a>, ApiError> {
    let at = scope.map_or_else(Scope::root, Scope::from);
    if call.may(action, &at) {
        return Ok(Sight::All);
    }
    match scope {
        Some(id) if !call.may_below(action, &at) => Err(call.forbidden(action, id.as_str())),
        // Who may see no subscription sees an empty list.
        _ => Ok(Sight::Single(Mutex::new(call.asker(action)))),
    }
}

/// GET of a collection.
pub async fn list(call: &Call<'_>, scope: Option<&ResourceId>, name: &str) -> Result<Response<Body>, ApiError> {
    if let (Some(scope), Some(none)) = (scope, NEVER_ANY.iter().find(|known| known.eq_ignore_ascii_case(name))) {
        call.any_version()?;
        call.authorize(&format!("{none}/read"), scope)?;
        in_subscription(call, scope)?;
        exists(call, scope).await?;
        return Ok(json(StatusCode::OK, &json!({"value": []})));
    }
    let kind = kind(name).ok_or_else(|| unknown_kind(name))?;
    let version = call.version(kind)?;
    let action = format!("{}/read", operations_of(kind));
    let sight = sight(call, &action, scope)?;
    if let Some(scope) = scope {
        in_subscription(call, scope)?;
        exists(call, scope).await?;
    }
    let (rows, from) = (rows(call)?, place(call)?);
    let filter = call.parameter("$filter")?.filter(|filter| !filter.is_empty());
    let at_scope = filter.is_some_and(|filter| filter.to_ascii_lowercase().contains("atscope()"));
    let shown = |_: usize, stored: Stored, beside: Beside| {
        let visible = match kind.place() {
            Place::Top => sees(call, &stored.key),
            _ => sight.shows(&stored),
        };
        let reachable = scope.is_some()
            || ResourceId::parse(&stored.id).is_ok_and(|id| call.control.has_subscription(id.subscription()));
        let wanted = match filter {
            Some(filter) => kind.matches(filter, &stored, &call.caller)?,
            None => true,
        };
        Ok((visible && reachable && wanted).then(|| show_with(call, kind, version, &stored.id, stored.body, beside)))
    };
    let sources = sources(kind, scope, at_scope);
    let (page, next) = gather(call, &sources, from, rows, shown).await?;
    page.answer(call, next)
}

/// Where a list is read from, one after the other.
struct Source {
    kind: &'static dyn Kind,
    which: Which,
    /// Whether what clusters told is shown.
    shows_told: bool,
}

/// Which of a kind.
enum Which {
    /// What is built in, in the order of its keys.
    BuiltIn(Vec<Stored>),
    /// What is exactly at a key.
    At(String),
    /// What is at a key or anywhere below.
    Within(String),
}

/// Of what is found at any scope: what is built in, then what holds here because it is further up, then what is here.
/// Of all else: what is here.
fn sources(kind: &'static dyn Kind, scope: Option<&ResourceId>, only_here: bool) -> Vec<Source> {
    let source = |which| Source { kind, which, shows_told: true };
    let within = scope.map(ResourceId::key).unwrap_or_default().to_owned();
    let Some(scope) = scope.filter(|_| kind.place() == Place::Anywhere) else {
        return vec![source(Which::Within(within))];
    };
    let mut built_in = kind.built_in(&format!("/subscriptions/{}", scope.subscription()));
    built_in.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    let mut sources = vec![source(Which::BuiltIn(built_in))];
    let mut next = scope.parent();
    while let Some(at) = next {
        sources.push(source(Which::At(at.key().to_owned())));
        next = at.parent();
    }
    sources.push(source(if only_here { Which::At(within) } else { Which::Within(within) }));
    sources
}

impl Source {
    /// Whether what is told of parts is shown.
    fn has_parts(&self) -> bool {
        self.shows_told && self.kind.follows().is_some_and(|followed| followed.parts.is_some())
    }

    /// What is in the store of up to `rows` behind a key, and how much that is; none of what is built in.
    async fn window(&self, call: &Call<'_>, after: &str, rows: u32) -> Result<Option<Window>, StoreError> {
        let holder;
        let below = match &self.which {
            Which::BuiltIn(_) => return Ok(None),
            Which::At(key) => {
                holder = holder_key(key);
                Below::Parent(&holder)
            }
            Which::Within(key) => Below::Anywhere(key),
        };
        let told = if self.shows_told { Weighed::Told } else { Weighed::Nothing };
        let name = self.kind.name().to_ascii_lowercase();
        call.control.store.window(&name, below, told, after, rows).await.map(Some)
    }

    /// Up to `rows` behind a key, with what is kept beside them, and the key behind which it goes on, unless these are
    /// all.
    async fn page(&self, call: &Call<'_>, window: Option<Window>, after: &str, rows: u32) -> Result<Page, StoreError> {
        let store = &call.control.store;
        let without =
            |rows: Vec<Stored>| rows.into_iter().map(|stored| (stored, Beside::default())).collect::<Vec<_>>();
        let (mut found, next) = match (&self.which, window) {
            // One statement, however many there are (C9).
            (Which::Within(_), Some(window)) if self.kind.has_agents() => {
                let page = store.read_with_agents(window).await?;
                let rows = page.rows.into_iter();
                (rows.map(|(stored, agent)| (stored, Beside { agent, ..Beside::default() })).collect(), page.next)
            }
            (_, Some(window)) => {
                let page = store.read(window).await?;
                (without(page.rows), page.next)
            }
            (Which::BuiltIn(all), None) => {
                let some = all.iter().filter(|one| one.key.as_str() > after).take(rows as usize);
                let found = without(some.cloned().collect());
                let next = found.last().filter(|_| found.len() == rows as usize).map(|(last, _)| last.key.clone());
                (found, next)
            }
            (_, None) => (Vec::new(), None),
        };
        if let Which::At(key) = &self.which {
            found.retain(|(stored, _)| is_at(stored, key));
        }
        if self.kind.is_told_of() && self.shows_told {
            let keys: Vec<String> = found.iter().map(|(stored, _)| stored.key.clone()).collect();
            let mut told = store.told_of(&keys).await?;
            for (stored, beside) in &mut found {
                beside.told = told.remove(&stored.key);
            }
            if self.has_parts() {
                let mut parts = store.parts_of_each(&keys, PARTS_LISTED).await?;
                for (stored, beside) in &mut found {
                    beside.parts = parts.remove(&stored.key).unwrap_or_default();
                }
            }
        }
        Ok(Page { found, next })
    }
}

/// What a source has at a place.
struct Page {
    found: Vec<(Stored, Beside)>,
    next: Option<String>,
}

/// Where a list goes on: which source, and behind which key of it.
type At = (usize, String);

/// What is picked of the sources, up to `rows` and [`BYTES`], and where the next page begins: behind the last one that
/// was picked, so that a page says nothing about those that were not. `pick` is told the number of the source.
async fn gather(
    call: &Call<'_>,
    sources: &[Source],
    from: At,
    rows: u32,
    pick: impl Fn(usize, Stored, Beside) -> Result<Option<Value>, ApiError> + Send,
) -> Result<(Written, Option<At>), ApiError> {
    let (mut written, mut looks) = (Written::default(), 0);
    let (first, mut after) = from;
    let mut last = (first, after.clone());
    let mut turn = None;
    for (index, source) in sources.iter().enumerate().skip(first) {
        loop {
            if looks == LOOKS {
                return Ok((written, Some((index, after))));
            }
            looks += 1;
            let fetch = if looks == 1 { rows } else { PAGE_ROWS };
            let fetch = if source.has_parts() { fetch.min(PARTED_ROWS) } else { fetch };
            let window = source.window(call, &after, fetch).await?;
            if turn.is_none() && window.as_ref().is_some_and(|window| window.bytes > AT_ONCE_BYTES) {
                let party = party(call);
                call.control.unread.room(&party)?;
                turn = Some(call.control.long_lists.take(&party).await?);
            }
            let page = source.page(call, window, &after, fetch).await?;
            for (at, (stored, beside)) in page.found.into_iter().enumerate() {
                if at % ROWS_A_TURN == ROWS_A_TURN - 1 {
                    tokio::task::yield_now().await;
                }
                let key = stored.key.clone();
                let is_long = !answers::is_short(&stored.body) || !beside.parts.is_empty();
                let add = || match pick(index, stored, beside)? {
                    Some(shown) => written.add(&shown).map(Some),
                    None => Ok(None),
                };
                match here(is_long, add).await?? {
                    Some(true) => {}
                    Some(false) => return Ok((written, Some(last))),
                    None => continue,
                }
                last = (index, key);
                if written.rows == rows {
                    return Ok((written, Some(last)));
                }
            }
            match page.next {
                Some(next) => after = next,
                None => break,
            }
        }
        after = String::new();
    }
    Ok((written, None))
}

/// The key of what keeps those at a scope.
fn holder_key(scope: &str) -> String {
    ResourceId::parse(scope).map_or_else(|_| scope.to_owned(), |id| holder(&id).key().to_owned())
}

/// Whether it is of exactly this scope.
fn is_at(stored: &Stored, scope: &str) -> bool {
    ResourceId::parse(&stored.id).is_ok_and(|id| id.parent_key() == scope)
}

/// Of tracked resources, which have a location and tags: `GET <scope>/resources`.
pub async fn everything(call: &Call<'_>, scope: &ResourceId) -> Result<Response<Body>, ApiError> {
    call.any_version()?;
    let (sources, sights) = tracked(call, scope)?;
    in_subscription(call, scope)?;
    exists(call, scope).await?;
    let (rows, from) = (rows(call)?, place(call)?);
    let filter = call.parameter("$filter")?.filter(|filter| !filter.is_empty());
    let pick = |source: usize, stored: Stored, _: Beside| {
        let wanted = filter.map_or(Ok(true), |filter| filter::resource(filter, &stored))?;
        Ok((wanted && sights[source].shows(&stored)).then(|| {
            let kind = sources[source].kind.name();
            let mut shown = json!({"id": stored.id, "name": last_name(&stored.id), "type": kind});
            for property in ["location", "tags", "identity", "kind", "systemData"] {
                if let Some(kept) = stored.body.get(property) {
                    shown[property] = kept.clone();
                }
            }
            shown
        }))
    };
    let (page, next) = gather(call, &sources, from, rows, pick).await?;
    page.answer(call, next)
}

/// The tracked kinds of which the caller may read some at a scope or below, and what they may read of each.
fn tracked<'a>(call: &'a Call<'_>, scope: &ResourceId) -> Result<(Vec<Source>, Vec<Sight<'a>>), ApiError> {
    let mut refused = None;
    let mut found = (Vec::new(), Vec::new());
    for kind in KINDS.iter().filter(|kind| kind.is_tracked()) {
        match sight(call, &format!("{}/read", operations_of(*kind)), Some(scope)) {
            Ok(sight) => {
                let which = Which::Within(scope.key().to_owned());
                found.0.push(Source { kind: *kind, which, shows_told: false });
                found.1.push(sight);
            }
            Err(error) => drop(refused.get_or_insert(error)),
        }
    }
    match refused {
        Some(error) if found.0.is_empty() => Err(error),
        _ => Ok(found),
    }
}

/// A resource that is asked for by its id.
pub async fn present(call: &Call<'_>, id: &ResourceId) -> Result<Stored, ApiError> {
    match resources::get(call.control, id).await? {
        Some(stored) => Ok(stored),
        None => Err(absent(call, id).await?),
    }
}

/// The refusal for a resource that is not there. As in Azure Resource Manager it names the cluster or the group that should
/// hold it, where that is what is not there.
pub async fn absent(call: &Call<'_>, id: &ResourceId) -> Result<ApiError, ApiError> {
    let missing = missing_above(call, id).await?;
    Ok(ApiError::resource_not_found(missing.as_ref().unwrap_or(id)))
}

/// The topmost of those that should hold a resource, and are not there.
pub async fn missing_above(call: &Call<'_>, id: &ResourceId) -> Result<Option<ResourceId>, ApiError> {
    let (mut missing, mut next) = (None, id.parent().map(|parent| holder(&parent)));
    while let Some(at) = next {
        if resources::get(call.control, &at).await?.is_none() {
            missing = Some(at.clone());
        }
        next = at.parent();
    }
    Ok(missing)
}

/// What is listed in must be there.
async fn exists(call: &Call<'_>, scope: &ResourceId) -> Result<(), ApiError> {
    let at = holder(scope);
    match resources::get(call.control, &at).await? {
        Some(_) => Ok(()),
        None => Err(absent(call, &at).await?),
    }
}

fn rows(call: &Call<'_>) -> Result<u32, ApiError> {
    let Some(top) = call.parameter("$top")? else { return Ok(PAGE) };
    match top.parse::<u32>() {
        Ok(rows @ 1..) => Ok(rows.min(PAGE_ROWS)),
        _ => {
            let message = "The query parameter '$top' must be a whole number from 1 to 4294967295.";
            Err(ApiError::bad_request("InvalidQueryParameterValue", message).at("$top"))
        }
    }
}

/// Where the last page ended.
fn place(call: &Call<'_>) -> Result<At, ApiError> {
    let Some(token) = call.parameter("$skipToken")? else { return Ok(At::default()) };
    let place = BASE64.decode(token).ok().and_then(|sealed| call.control.unseal(TOKEN, &sealed));
    place.and_then(|place| serde_json::from_value(place).ok()).ok_or_else(|| {
        let message = "The query parameter '$skipToken' is not one of this gateway's; follow nextLink as it is.";
        ApiError::bad_request("InvalidQueryParameterValue", message).at("$skipToken")
    })
}

/// The link of the page that begins at a place.
fn link(call: &Call<'_>, next: &At) -> Result<String, ApiError> {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    for (name, value) in call.query.iter().filter(|(name, _)| !name.eq_ignore_ascii_case("$skipToken")) {
        query.append_pair(name, value);
    }
    query.append_pair("$skipToken", &BASE64.encode(call.control.seal(TOKEN, &json!(next))?));
    // The path was decoded, and a link is no text of any alphabet.
    let path = percent_encoding::utf8_percent_encode(call.path.trim_start_matches('/'), CONTROLS);
    Ok(call.url(&format!("/{path}?{}", query.finish())))
}

impl Paging for Call<'_> {
    fn rows(&self) -> Result<u32, ApiError> {
        rows(self)
    }

    fn after(&self) -> Result<String, ApiError> {
        Ok(place(self)?.1)
    }

    fn link(&self, after: &str) -> Result<String, ApiError> {
        link(self, &(0, after.to_owned()))
    }
}

/// The rows of a page as JSON: each is written once, and then known to fit.
#[derive(Default)]
struct Written {
    text: Vec<u8>,
    rows: u32,
}

impl Written {
    /// Adds a row, unless the page would have more than [`BYTES`] with it: a page has at least one.
    fn add(&mut self, shown: &Value) -> Result<bool, ApiError> {
        let before = self.text.len();
        if self.rows > 0 {
            self.text.push(b',');
        }
        serde_json::to_writer(&mut self.text, shown).map_err(ApiError::internal)?;
        let fits = self.rows == 0 || self.text.len() <= BYTES;
        if fits {
            self.rows += 1;
        } else {
            self.text.truncate(before);
        }
        Ok(fits)
    }

    /// The page. The token of the next one is sealed: the key in it may be of what this caller does not see.
    fn answer(self, call: &Call<'_>, next: Option<At>) -> Result<Response<Body>, ApiError> {
        let mut text = Vec::with_capacity(self.text.len() + 1024);
        text.extend_from_slice(b"{\"value\":[");
        text.extend_from_slice(&self.text);
        text.push(b']');
        if let Some(next) = next {
            text.extend_from_slice(b",\"nextLink\":");
            serde_json::to_writer(&mut text, &link(call, &next)?).map_err(ApiError::internal)?;
        }
        text.push(b'}');
        Ok(answers::written(text).map(Body::Full))
    }
}
