//! Writes of the resource API: PUT, PATCH, DELETE, and actions. Each goes the same way: the right at the scope, the
//! kind's schema, what the kind says of the change, one batch for the store, and an operation if the work goes on
//! afterwards. Fleet assignments write by this module too, in the name of who assigned.

use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode, header};
use serde_json::{Map, Value, json};
use tokio::sync::MutexGuard;
use types::api::{ErrorDetail, ResourceId};

use super::{Call, body, empty, json, long_json, operations, read};
use crate::{
    answers::{self, Body},
    api_error::ApiError,
    aside::{self, here, turns},
    bodies,
    control::{
        objects::{PROTECTED_FOR_MS, mark_deleting},
        quotas::{Room, too_many_operations},
        work::{converge, take_down},
    },
    directory::Decides,
    managed::Managed,
    object::Object,
    owners::{self, SignedIn},
    resources::{
        self, Acting, Brought, Kind, Place, Writing, followed, grounds::Grounds, holder, registrations, schema,
        system_data,
    },
    store::{
        StoreError,
        batch::{Batch, Expect, Refused},
        held,
        operations::{Operation, Status},
        resources::Stored,
    },
    stored::last_name,
};

/// How often a write that somebody else was in the way of is tried again.
const TRIES: usize = 8;
/// How long a change of roles and assignments waits for those before it.
const RIGHTS_WITHIN: Duration = Duration::from_secs(10);
/// The code of a refusal to take something over.
const NAME_TAKEN: &str = "NameTaken";
/// What every resource has, and clients send back as they read it.
const ENVELOPE: &[&str] = &["id", "name", "type", "systemData", "etag"];

/// The code where an assignment is not as it was read: who carries it out looks again.
pub const ASSIGNMENT_CHANGED: &str = "FleetAssignmentChanged";

/// What to do with what is there.
enum Change {
    Replace(Map<String, Value>),
    Merge(Patch),
    /// As a fleet assignment wants it.
    Manage(Map<String, Value>, Managed, Seen),
    /// Merged for a fleet assignment (its key) of this revision, which leaves the resource to its owners.
    Roll(Map<String, Value>, String, i64),
}

/// What a PATCH says.
struct Patch {
    /// What it changes.
    part: Map<String, Value>,
    /// What it names that no PATCH changes: a client that sends back what it read has it as it is.
    fixed: Map<String, Value>,
}

/// What a fleet assignment decided by.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Revision of the fleet assignment.
    pub assignment: i64,
    /// The cluster (its key), and the revision of that: with other agents it might get less.
    pub cluster: (String, i64),
}

/// A fleet assignment, as it was read.
#[derive(Debug, Clone, Copy)]
pub struct AssignmentRead<'a> {
    /// Its id.
    pub id: &'a ResourceId,
    /// Its revision.
    pub revision: i64,
}

/// The resource that a write or a deletion is about.
#[derive(Clone, Copy)]
struct Target<'a> {
    kind: &'static dyn Kind,
    /// The api-version in which it is written and shown.
    version: &'static str,
    id: &'a ResourceId,
}

impl Change {
    /// What a client, or a fleet assignment, gives.
    fn given(&self) -> &Map<String, Value> {
        match self {
            Self::Merge(patch) => &patch.part,
            Self::Replace(given) | Self::Manage(given, ..) | Self::Roll(given, ..) => given,
        }
    }

    fn mark(&self) -> Option<&Managed> {
        match self {
            Self::Manage(_, mark, _) => Some(mark),
            Self::Replace(_) | Self::Merge(_) | Self::Roll(..) => None,
        }
    }

    /// The assignment that decides this, as it was read.
    fn decided_by(&self) -> Option<(String, i64)> {
        match self {
            Self::Manage(_, mark, seen) => Some((mark.key(), seen.assignment)),
            Self::Roll(_, key, revision) => Some((key.clone(), *revision)),
            Self::Replace(_) | Self::Merge(_) => None,
        }
    }

    fn is_patch(&self) -> bool {
        matches!(self, Self::Merge(_))
    }

    /// What else must be as it was read.
    fn looked_at(&self) -> Option<(String, i64)> {
        match self {
            Self::Manage(_, _, seen) => Some(seen.cluster.clone()),
            Self::Replace(_) | Self::Merge(_) | Self::Roll(..) => None,
        }
    }
}

/// PUT of a resource.
pub async fn put<B>(call: &Call<'_>, id: &ResourceId, body: B) -> Result<Response<Body>, ApiError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let target = writable(call, id)?;
    let kind = target.kind;
    call.authorize(&format!("{}/write", read::operations_of(kind)), id)?;
    // Ids have no case: a name that no new one could have may be that of one that is there, in another case.
    if let Err(fault) = kind.check_name(id.name())
        && resources::get(call.control, id).await?.is_none()
    {
        return Err(fault.into());
    }
    let checked = sent(call, id, body, move |raw| schema::check(kind.schema(), &raw)).await?;
    change(call, target, Change::Replace(checked)).await
}

/// PATCH of a resource.
pub async fn patch<B>(call: &Call<'_>, id: &ResourceId, body: B) -> Result<Response<Body>, ApiError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let target = writable(call, id)?;
    let Some(part) = target.kind.patch_schema() else {
        return Err(
            ApiError::method_not_allowed("this type has no PATCH").with(header::ALLOW, "GET, HEAD, PUT, DELETE")
        );
    };
    call.authorize(&format!("{}/write", read::operations_of(target.kind)), id)?;
    let whole = target.kind.schema();
    let checked = sent(call, id, body, move |mut raw| {
        let fixed = schema::take_fixed(whole, part, &mut raw);
        Ok(Patch { part: schema::check_part(part, &raw)?, fixed })
    });
    change(call, target, Change::Merge(checked.await?)).await
}

/// What a fleet assignment wants to be there: written as a PUT of it is, with the same checks. Whether it may was asked
/// when somebody wrote the assignment; where that is not as it was seen any more, nothing is written
/// ([`ASSIGNMENT_CHANGED`]), nor where its cluster is not.
pub async fn manage(
    call: &Call<'_>,
    id: &ResourceId,
    body: &Map<String, Value>,
    mark: Managed,
    seen: Seen,
) -> Result<Response<Body>, ApiError> {
    let target = of_newest(call, id)?;
    let kind = target.kind;
    kind.check_name(id.name())?;
    let checked = here(!answers::is_short_object(body), || schema::check(kind.schema(), body)).await??;
    change(call, target, Change::Manage(checked, mark, seen)).await
}

/// What a fleet assignment changes of something that others made: written as a PATCH, with the fence of [`manage`]. The
/// resource stays theirs.
pub async fn roll(
    call: &Call<'_>,
    id: &ResourceId,
    part: &Map<String, Value>,
    by: AssignmentRead<'_>,
) -> Result<Response<Body>, ApiError> {
    let target = of_newest(call, id)?;
    let patch =
        target.kind.patch_schema().ok_or_else(|| ApiError::internal("a kind that is rolled out has no PATCH"))?;
    let checked = here(!answers::is_short_object(part), || schema::check_part(patch, part)).await??;
    change(call, target, Change::Roll(checked, by.id.key().to_owned(), by.revision)).await
}

/// The deletion of what a fleet assignment made, as [`manage`]; of what it did not make, nothing.
pub async fn withdraw(call: &Call<'_>, id: &ResourceId, by: AssignmentRead<'_>) -> Result<Response<Body>, ApiError> {
    let target = of_newest(call, id)?;
    take_away(call, target, Taking { by: Some(by), ..Taking::default() }).await
}

fn of_newest<'a>(call: &Call<'_>, id: &'a ResourceId) -> Result<Target<'a>, ApiError> {
    let kind = read::kind_of(id)?;
    read::in_subscription(call, id)?;
    let version = kind.api_versions().last().copied().unwrap_or_default();
    Ok(Target { kind, version, id })
}

/// What a client wrote, without what every resource has, and as `check` takes it. A long one is checked where it is read.
async fn sent<B, T: Send + 'static>(
    call: &Call<'_>,
    id: &ResourceId,
    body: B,
    check: impl FnOnce(Map<String, Value>) -> Result<T, ErrorDetail> + Send + 'static,
) -> Result<T, ApiError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let checked = body::read_as(call, body, |mut raw| {
        ENVELOPE.iter().for_each(|name| drop(raw.remove(*name)));
        check(raw)
    });
    let checked = checked.await?;
    read::in_subscription(call, id)?;
    Ok(checked?)
}

fn writable<'a>(call: &Call<'_>, id: &'a ResourceId) -> Result<Target<'a>, ApiError> {
    let kind = read::kind_of(id)?;
    let version = call.version(kind)?;
    if !kind.is_writable() {
        return Err(ApiError::method_not_allowed(
            "this resource is defined in the gateway's configuration file and cannot be changed through the API",
        )
        .with(header::ALLOW, "GET, HEAD"));
    }
    let fits = match (kind.place(), id.parent()) {
        (Place::Subscription, Some(parent)) => parent.is(types::api::id::SUBSCRIPTIONS),
        (Place::ResourceGroup, Some(parent)) => parent.is(types::api::id::RESOURCE_GROUPS),
        (Place::Cluster, Some(parent)) => parent.is(resources::connected_cluster::NAME),
        (Place::Scope, Some(parent)) => {
            parent.is(types::api::id::SUBSCRIPTIONS) || parent.is(types::api::id::RESOURCE_GROUPS)
        }
        (Place::Anywhere, Some(_)) => true,
        _ => false,
    };
    if fits {
        return Ok(Target { kind, version, id });
    }
    let message = format!("A resource of type '{}' cannot be at '{id}'.", kind.name());
    Err(ApiError::bad_request("InvalidResourceId", message))
}

async fn change(call: &Call<'_>, target: Target<'_>, change: Change) -> Result<Response<Body>, ApiError> {
    let Target { kind, id, .. } = target;
    kind.may_change(id, call.control)?;
    may_be_below(call, id)?;
    // Whether an operation is kept that ends with the answer, for clients that ask for it. A write needs none.
    let mut told = true;
    for _ in 0..TRIES {
        let turn = turn_of(call, kind).await?;
        let old = resources::get(call.control, id).await?;
        preconditions(call, old.as_ref())?;
        let old = old.as_ref();
        // One that was there when the body was still to come may be gone.
        if old.is_none() && matches!(change, Change::Replace(_)) {
            kind.check_name(id.name())?;
        }
        stays(call, id, old).await?;
        unmanaged(call, old, change.mark()).await?;
        // A resource keeps the name that it was created with.
        let kept = old.and_then(|old| ResourceId::parse(&old.id).ok()).filter(|kept| kept.key() == id.key());
        let target = Target { id: kept.as_ref().unwrap_or(id), ..target };
        let is_long = !answers::is_short_object(change.given()) || old.is_some_and(|old| !answers::is_short(&old.body));
        let Some(mut prepared) = turns(is_long, Box::pin(prepare(call, target, old, &change))).await?? else {
            let old = old.ok_or_else(|| ApiError::resource_not_found(id))?;
            return turns(is_long, Box::pin(unchanged(call, target, old))).await?;
        };
        if !told {
            prepared.tell_of_nothing_that_has_ended();
        }
        // The room is held until the write is known here.
        let Prepared { batch, mut stored, operation, room: _room } = prepared;
        call.may_still().await?;
        match call.control.write_in_turn(&batch, turn).await? {
            Ok(revision) => {
                stored.revision = revision;
                let written = Written { stored, operation, is_new: old.is_none(), patched: change.is_patch() };
                // What is long is dropped there, too. Of two short parts it may have become.
                let is_long = is_long || !answers::is_short(&written.stored.body);
                // It is kept: a client that is told to try again would write it twice.
                aside::has_begun();
                return turns(is_long, Box::pin(answer(call, target, written, change, batch))).await?;
            }
            Err(Refused::Changed { key, .. }) if change.decided_by().is_some_and(|(by, _)| by == key) => {
                return Err(assignment_changed());
            }
            Err(Refused::Changed { key, .. }) if change.looked_at().is_some_and(|(at, _)| at == key) => {
                return Err(ApiError::raced());
            }
            // Somebody else was faster: what they wrote is looked at, unless the client insists on what it read.
            Err(Refused::Changed { .. } | Refused::NotEmpty { .. } | Refused::Full { .. }) => {}
            // What takes an operation to delete is not created without one: the number of deletions has a bound so.
            Err(Refused::TooManyOperations { .. })
                if told && batch.begins.iter().any(has_ended) && (old.is_some() || !kind.deletes_slowly()) =>
            {
                told = false;
            }
            Err(Refused::TooManyOperations { place, most, room_ms }) => {
                let tried = format!("'{}' is not written", id.name());
                return Err(too_many_operations(&tried, &place, most, room_ms));
            }
            Err(Refused::NoParent { .. }) => {
                let missing = read::missing_above(call, id).await?;
                return Err(missing.as_ref().map_or_else(ApiError::raced, ApiError::resource_not_found));
            }
        }
    }
    Err(ApiError::raced())
}

/// A write before it is kept.
struct Prepared {
    batch: Batch,
    /// The resource in it.
    stored: Stored,
    /// The operation that it begins.
    operation: Option<Operation>,
    /// What it takes of the quotas of its group and subscription.
    room: Room,
}

impl Prepared {
    /// Leaves out the operations that end with the answer.
    fn tell_of_nothing_that_has_ended(&mut self) {
        self.operation.take_if(|operation| has_ended(operation));
        self.batch.begins.retain(|operation| !has_ended(operation));
        if self.batch.begins.is_empty() {
            self.batch.begins_at_most.clear();
        }
    }
}

fn has_ended(operation: &Operation) -> bool {
    operation.ended_ms.is_some()
}

/// All that is done for a write before it is kept: checks of the kind, what this service fills in, and sealing. None: it
/// changes nothing.
async fn prepare(
    call: &Call<'_>,
    target: Target<'_>,
    old: Option<&Stored>,
    change: &Change,
) -> Result<Option<Prepared>, ApiError> {
    let Target { kind, version, id } = target;
    if let (Change::Merge(patch), Some(old)) = (change, old) {
        stays_fixed(call, target, old, &patch.fixed).await?;
    }
    let mut body = match (change, old) {
        (Change::Replace(new) | Change::Manage(new, ..), Some(old)) => replaced(kind, version, old, new),
        (Change::Replace(new) | Change::Manage(new, ..), None) => new.clone(),
        (Change::Merge(Patch { part, .. }) | Change::Roll(part, ..), Some(old)) => merged(kind, old, part),
        (Change::Merge(_) | Change::Roll(..), None) => return Err(read::absent(call, id).await?),
    };
    writes_for(call, kind, id, &body, "write")?;
    is_within_bounds(&body, change)?;
    let grounds = Grounds::default();
    let writing = Writing {
        id,
        old,
        said: change.given(),
        caller: &call.caller,
        version,
        now_ms: call.now_ms(),
        control: call.control,
        issuer: call.issuer.as_deref(),
        grounds: &grounds,
    };
    if old.is_none() {
        registrations::check(kind, &writing).await?;
    }
    kind.write(&mut body, &writing).await?;
    match change.mark() {
        Some(mark) => mark.keep(&mut body),
        None => Managed::forget(&mut body),
    }
    if let (Change::Replace(_) | Change::Merge(_), Some(old)) = (change, old)
        && is_same(kind, old, &body)
        && !has_failed(call, old).await?
    {
        return Ok(None);
    }
    system_data(&mut body, &writing);
    let brought = match old {
        Some(_) => None,
        None => kind.brings(&writing).await?,
    };
    let beside = match brought {
        Some(brought) => Some(beside(call, &writing, brought).await?),
        None => None,
    };
    if let Some(old) = old {
        owner_stays(call, kind, old, Some(&body))?;
    }
    let (mut batch, stored, operation) = batch_of(call, target, old, body, beside, change)?;
    grounds.put_into(&mut batch);
    call.control.quotas.bound_operations(&mut batch);
    let room = call.control.quotas.take(&batch)?;
    Ok(Some(Prepared { batch, stored, operation, room }))
}

/// Refuses a PATCH that names something else for what no PATCH changes.
async fn stays_fixed(
    call: &Call<'_>,
    Target { kind, version, .. }: Target<'_>,
    old: &Stored,
    fixed: &Map<String, Value>,
) -> Result<(), ApiError> {
    if fixed.is_empty() {
        return Ok(());
    }
    let shown = read::show(call, kind, version, old).await?;
    let Some(at) = schema::differs(fixed, &shown) else { return Ok(()) };
    let message = format!(
        "The property '{at}' cannot be changed by PATCH; send it as it is, leave it out, or replace the resource by PUT."
    );
    Err(ApiError::of(StatusCode::CONFLICT, "PropertyChangeNotAllowed", message).at(&at))
}

/// Whether a body says of what agents follow what is wanted already, and gives no protected settings. Of other kinds a
/// write that changes nothing has nothing to disturb, and says who wrote last.
fn is_same(kind: &dyn Kind, old: &Stored, body: &Map<String, Value>) -> bool {
    let Some(before) = old.body.as_object().filter(|_| kind.is_followed()) else { return false };
    // Who writes what could not be deleted wants it again.
    if Object::of(&old.body).deleting {
        return false;
    }
    let mut after = body.clone();
    if !kind.split_protected(&mut after).sent.is_empty() {
        return false;
    }
    let mut before = before.clone();
    for body in [&mut before, &mut after] {
        body.remove("systemData");
        Object::forget(body);
    }
    before == after
}

/// Whether what is wanted of a resource has failed: who sends the same again wants it to be tried again.
async fn has_failed(call: &Call<'_>, old: &Stored) -> Result<bool, ApiError> {
    let object = Object::of(&old.body);
    let operation = operation_of(call, &object).await?;
    if operation.is_some_and(|operation| matches!(operation.status, Status::Failed | Status::Canceled)) {
        return Ok(true);
    }
    let told = call.control.store.told(&old.key).await?.filter(|told| told.generation == object.generation);
    Ok(told.is_some_and(|told| told.status["state"] == "Failed"))
}

/// The operation that the last change of a resource began, as long as it is kept.
async fn operation_of(call: &Call<'_>, object: &Object) -> Result<Option<Operation>, ApiError> {
    match &object.operation {
        Some(id) => Ok(call.control.store.operation(id).await?),
        None => Ok(None),
    }
}

/// The answer to a write that changes nothing: the resource as it is, with the operation that is still under way.
async fn unchanged(
    call: &Call<'_>,
    Target { kind, version, .. }: Target<'_>,
    old: &Stored,
) -> Result<Response<Body>, ApiError> {
    let shown = read::show(call, kind, version, old).await?;
    let response = read::with_tag(json(StatusCode::OK, &shown), old, &shown);
    let operation = operation_of(call, &Object::of(&old.body)).await?;
    let operation = operation.filter(|operation| operation.status == Status::InProgress);
    Ok(operations::announce(call, response, operation.as_ref()))
}

/// A write that was kept.
struct Written {
    stored: Stored,
    operation: Option<Operation>,
    is_new: bool,
    patched: bool,
}

/// The answer to a write. What the write was made of (`_change`, `_batch`) is freed here, within the turn of the answer,
/// because freeing many values takes long too.
async fn answer(
    call: &Call<'_>,
    Target { kind, version, .. }: Target<'_>,
    Written { stored, operation, is_new, patched }: Written,
    _change: Change,
    _batch: Batch,
) -> Result<Response<Body>, ApiError> {
    let status = match is_new {
        false if patched && kind.is_followed() => StatusCode::ACCEPTED,
        false => StatusCode::OK,
        true => StatusCode::CREATED,
    };
    let shown = read::show(call, kind, version, &stored).await?;
    let mut answer = shown.clone();
    if operation.is_some() && !patched && !kind.is_followed() {
        under_way(&mut answer, !is_new);
    }
    // The tag is of what is read from now on.
    let response = read::with_tag(json(status, &answer), &stored, &shown);
    Ok(operations::announce(call, response, operation.as_ref()))
}

/// What holds a resource may take no others.
fn may_be_below(call: &Call<'_>, id: &ResourceId) -> Result<(), ApiError> {
    let mut next = id.parent();
    while let Some(at) = next {
        if let Some(kind) = resources::kind(at.kind()) {
            kind.may_hold(&at, id, call.control)?;
        }
        next = at.parent();
    }
    Ok(())
}

/// A PUT's answer that names an operation says that it is not ended yet: who takes the state in it for
/// the last word would not look whether the operation failed.
fn under_way(answer: &mut Value, was_there: bool) {
    if let Some(properties) = answer.get_mut("properties").and_then(Value::as_object_mut) {
        let state = if was_there { "Updating" } else { "Provisioning" };
        properties.insert("provisioningState".to_owned(), state.into());
    }
}

/// What is written of a checked body: the batch, the resource in it, and the operation that it begins.
fn batch_of(
    call: &Call<'_>,
    Target { kind, id, .. }: Target<'_>,
    old: Option<&Stored>,
    mut body: Map<String, Value>,
    beside: Option<Beside>,
    change: &Change,
) -> Result<(Batch, Stored, Option<Operation>), ApiError> {
    let Sealed { protected, given } = protect(call, kind, id, old, &mut body)?;
    let (operation, protected_until) = begun(call, kind, id, old, &mut body, given);
    let mut stored = Stored { protected, ..unwritten(kind, id, body) };
    if let Some(old) = old {
        // A resource keeps the case in which it was created.
        stored.id.clone_from(&old.id);
    }
    let expect = match old {
        Some(old) if old.revision > 0 => Expect::Revision(old.revision),
        _ => Expect::Absent,
    };
    let mut puts = vec![(stored.clone(), expect)];
    let mut begins: Vec<Operation> = operation.iter().cloned().collect();
    // Of a new one that is kept up with, hidden from clients.
    let kept_up = kind.keeps_up().filter(|_| old.is_none());
    begins.extend(kept_up.map(|work| operations::new(call, id, json!({"kind": work, "by": call.caller.object_id()}))));
    // What is being deleted makes nothing more.
    let mut standing: Vec<String> = change.decided_by().map(|(key, _)| key).into_iter().collect();
    match beside {
        Some(Beside::New(stored, operation)) => {
            puts.push((*stored, Expect::Absent));
            begins.extend(operation);
        }
        Some(Beside::Kept(key)) => standing.push(key),
        None => {}
    }
    let as_read = change.decided_by().into_iter().chain(change.looked_at());
    let as_read = as_read.map(|(key, revision)| (key, Some(revision))).collect();
    let passes_on = old.filter(|old| stored.body.as_object().is_some_and(|new| kind.passes_on(old, new)));
    let renews = passes_on.map(|old| old.key.clone()).into_iter().collect();
    let batch = Batch { puts, standing, as_read, begins, protected_until, renews, ..Batch::default() };
    Ok((batch, stored, operation))
}

/// A resource of a body, before it is written.
fn unwritten(kind: &dyn Kind, id: &ResourceId, body: Map<String, Value>) -> Stored {
    Stored {
        key: id.key().to_owned(),
        kind: kind.name().to_ascii_lowercase(),
        parent: id.parent().map(|parent| holder(&parent).key().to_owned()).unwrap_or_default(),
        id: id.as_str().to_owned(),
        revision: 0,
        body: Value::Object(body),
        protected: None,
    }
}

/// What a new resource needs beside it.
enum Beside {
    /// Written together with it, and the operation that this begins.
    New(Box<Stored>, Option<Operation>),
    /// There already, by its key. It is not written, so that resources which are created at once do not collide.
    Kept(String),
}

/// Another resource that a new one needs, as the same caller would have created it, with its own operation.
async fn beside(call: &Call<'_>, writing: &Writing<'_>, brought: Brought) -> Result<Beside, ApiError> {
    let (id, raw) = match brought {
        Brought::New(id, raw) => (id, raw),
        Brought::Kept(key) => return Ok(Beside::Kept(key)),
    };
    let kind = read::kind_of(&id)?;
    let mut body = schema::check(kind.schema(), &raw)?;
    let writing = Writing { id: &id, old: None, said: &raw, ..*writing };
    kind.write(&mut body, &writing).await?;
    system_data(&mut body, &writing);
    let (begins, _) = begun(call, kind, &id, None, &mut body, Given::Nothing);
    Ok(Beside::New(Box::new(unwritten(kind, &id, body)), begins))
}

/// The operation that a write begins, noted in the body of what agents follow, and until when what is protected of that
/// is kept.
fn begun(
    call: &Call<'_>,
    kind: &dyn Kind,
    id: &ResourceId,
    old: Option<&Stored>,
    body: &mut Map<String, Value>,
    given: Given,
) -> (Option<Operation>, Vec<(String, Option<i64>)>) {
    let by = call.caller.object_id();
    if !kind.is_followed() {
        // Nothing is left to do once it is kept: the operation has ended when it is first seen.
        let operation = (kind.place() == Place::ResourceGroup).then(|| {
            let begun = operations::new(call, id, json!({"kind": "put", "by": by}));
            Operation { status: Status::Succeeded, ended_ms: Some(call.now_ms()), ..begun }
        });
        return (operation, Vec::new());
    }
    let mut operation = operations::new(call, id, Value::Null);
    let mut object = old.map(|old| Object::of(&old.body)).unwrap_or_default().next(&operation.id, call.now_ms());
    let mut until = Vec::new();
    if let Given::Some | Given::All | Given::None = given {
        object = object.protecting(!matches!(given, Given::None));
    }
    match given {
        Given::All => until.push((id.key().to_owned(), Some(call.now_ms() + PROTECTED_FOR_MS))),
        Given::None => until.push((id.key().to_owned(), None)),
        // The older ones among them are not kept any longer for that.
        Given::Some | Given::Nothing => {}
    }
    object.keep(body);
    operation.work = converge::work(by, object.generation);
    operation.due_ms = Some(call.control.due_ms(call.now_ms()));
    (Some(operation), until)
}

/// What nobody may see again of a body.
struct Sealed {
    protected: Option<Vec<u8>>,
    given: Given,
}

/// What a client gave of that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Given {
    /// Nothing: what is kept stays.
    Nothing,
    /// Some of it; the rest was kept from before.
    Some,
    /// All that is kept now.
    All,
    /// That there is none any more.
    None,
}

/// Takes out of a body what nobody may see again: sealed, with what was kept of it before.
fn protect(
    call: &Call<'_>,
    kind: &dyn Kind,
    id: &ResourceId,
    old: Option<&Stored>,
    body: &mut Map<String, Value>,
) -> Result<Sealed, ApiError> {
    let kept = match old.and_then(|old| old.protected.as_deref()) {
        Some(sealed) => match call.control.unseal(id.key(), sealed) {
            Some(Value::Object(kept)) => kept,
            _ => {
                return Err(ApiError::internal("protected settings cannot be read; is [api].store_key_file the same?"));
            }
        },
        None => Map::new(),
    };
    let before = old.and_then(|old| old.body.as_object());
    let kept = before.map_or_else(Map::new, |body| schema::with_places_of_today(kind.schema(), body, kept));
    let secrets = kind.split_protected(body);
    let (any, all) = (!secrets.sent.is_empty(), secrets.replaces(&kept));
    // The cluster has its own copy for longer than this gateway.
    let is_kept_there = kept.is_empty() && !any && old.is_some_and(|old| Object::of(&old.body).protected.is_some());
    if let Some(before) = before
        && (!all || is_kept_there)
    {
        let (before, now) = (kind.sends_secrets_to(before), kind.sends_secrets_to(body));
        if before.is_some() && before != now {
            return Err(followed::aimed_elsewhere(before.as_deref(), now.as_deref()));
        }
    }
    let had = !kept.is_empty();
    let secrets = secrets.with_kept(kept);
    let given = match (any, all) {
        // What had a place that is gone went with it.
        _ if secrets.is_empty() && (any || had) => Given::None,
        (false, _) => Given::Nothing,
        (true, true) => Given::All,
        (true, false) => Given::Some,
    };
    let protected = (!secrets.is_empty()).then(|| call.control.seal(id.key(), &Value::Object(secrets))).transpose()?;
    Ok(Sealed { protected, given })
}

/// Refuses a PATCH after which the properties are larger than one PUT may send. An agent gets a resource in one piece and
/// takes no larger one, and a client could not write back what it read.
fn is_within_bounds(body: &Map<String, Value>, change: &Change) -> Result<(), ApiError> {
    let own = body.get("properties").and_then(Value::as_object);
    let is_merged = matches!(change, Change::Merge(_) | Change::Roll(..));
    if is_merged && own.is_some_and(|own| !answers::is_within(own, bodies::BYTES)) {
        let message = format!(
            "With this change the resource's properties have more than {} bytes; take something out first.",
            bodies::BYTES
        );
        return Err(ApiError::of(StatusCode::PAYLOAD_TOO_LARGE, "RequestContentTooLarge", message).at("properties"));
    }
    Ok(())
}

/// If-Match and If-None-Match (RFC 9110 section 13.1).
fn preconditions(call: &Call<'_>, old: Option<&Stored>) -> Result<(), ApiError> {
    if let Some(tags) = call.headers.get(header::IF_MATCH)
        && !old.is_some_and(|old| read::names(tags, old))
    {
        let now = old.map_or("it does not exist", |_| "that tag is of another version");
        return Err(ApiError::precondition(format!("The resource is not as If-Match says: {now}. Read it again.")));
    }
    if let Some(tags) = call.headers.get(header::IF_NONE_MATCH)
        && old.is_some_and(|old| read::names(tags, old))
    {
        return Err(ApiError::precondition("The resource exists, which If-None-Match forbids."));
    }
    Ok(())
}

/// A PUT replaces all that its api-version shows.
fn replaced(kind: &dyn Kind, version: &str, old: &Stored, new: &Map<String, Value>) -> Map<String, Value> {
    let mut body = new.clone();
    if let Some(old) = old.body.as_object() {
        schema::keep_unseen(kind.schema(), old, &mut body, version);
    }
    body
}

fn merged(kind: &dyn Kind, old: &Stored, part: &Map<String, Value>) -> Map<String, Value> {
    let mut body = old.body.as_object().cloned().unwrap_or_default();
    kind.merge(&mut body, part);
    body
}

/// What is being deleted, or lies in what is, takes no writes: they would be acknowledged and then lost.
async fn stays(call: &Call<'_>, id: &ResourceId, old: Option<&Stored>) -> Result<(), ApiError> {
    let going = |id: &ResourceId, code| {
        let message = format!("The resource '{}' is being deleted; wait until that has ended.", id.name());
        Err(ApiError::of(StatusCode::CONFLICT, code, message))
    };
    if old.is_some_and(Stored::is_deleting) {
        return going(id, "ResourceBeingDeleted");
    }
    let mut next = id.parent();
    while let Some(at) = next {
        if call.control.store.get(at.key()).await?.as_ref().is_some_and(Stored::is_deleting) {
            let group = at.is(types::api::id::RESOURCE_GROUPS);
            return going(&at, if group { "ResourceGroupBeingDeleted" } else { "ParentResourceBeingDeleted" });
        }
        next = at.parent();
    }
    Ok(())
}

/// What a fleet assignment made is changed by that alone, while it is there; and an assignment takes over nothing that it
/// did not make.
async fn unmanaged(call: &Call<'_>, old: Option<&Stored>, mark: Option<&Managed>) -> Result<(), ApiError> {
    let Some(old) = old else { return Ok(()) };
    let conflict = |code, message: String| Err(ApiError::of(StatusCode::CONFLICT, code, message));
    match (Managed::of(&old.body), mark) {
        (None, None) => Ok(()),
        (Some(has), Some(mark)) if has.key() == mark.key() => Ok(()),
        (Some(has), None) if call.control.store.get(&has.key()).await?.is_none() => Ok(()),
        (Some(has), None) => conflict(
            "ManagedByFleetAssignment",
            format!(
                "'{}' is managed by the fleet assignment '{}', which makes it the same in all its clusters: change or delete the assignment (towline flux apply, towline flux assignment delete), or take the cluster out of it by its tags.",
                last_name(&old.id),
                has.by
            ),
        ),
        (Some(has), Some(_)) => conflict(
            NAME_TAKEN,
            format!("The name '{}' is taken in this cluster by the fleet assignment '{}'.", last_name(&old.id), has.by),
        ),
        (None, Some(_)) => conflict(
            NAME_TAKEN,
            format!(
                "The name '{}' is taken in this cluster by one that this assignment did not make, and does not take over: delete that, or give the template another name.",
                last_name(&old.id)
            ),
        ),
    }
}

/// Goes on only if the caller may write, or delete, what this resource will write for them ([`Kind::writes_for`]).
fn writes_for(
    call: &Call<'_>,
    kind: &dyn Kind,
    id: &ResourceId,
    body: &Map<String, Value>,
    verb: &str,
) -> Result<(), ApiError> {
    let Some((written, parent)) = kind.writes_for(body).zip(id.parent()) else { return Ok(()) };
    call.authorize(&format!("{}/{verb}", read::operations_of(written)), &parent)
}

/// DELETE of a resource, and of all that it holds; with `?onlyIfEmpty=true` only if that is nothing, and at once:
/// nobody else can put something into it in between (feature I3).
pub async fn delete(call: &Call<'_>, id: &ResourceId) -> Result<Response<Body>, ApiError> {
    let target = writable(call, id)?;
    call.authorize(&format!("{}/delete", read::operations_of(target.kind)), id)?;
    read::in_subscription(call, id)?;
    // What agents follow is taken down in its cluster first, which is no question of what it holds here.
    let only_empty = flag(call, "onlyIfEmpty")? && !target.kind.is_followed();
    // What is in the cluster is then taken down without anybody waiting for it (E10).
    let forced = target.kind.is_followed() && flag(call, "forceDelete")?;
    take_away(call, target, Taking { only_empty, forced, by: None }).await
}

/// How something is deleted.
#[derive(Default)]
struct Taking<'a> {
    /// Only where it holds nothing.
    only_empty: bool,
    /// Without its cluster.
    forced: bool,
    /// By the fleet assignment that made it, as it was read.
    by: Option<AssignmentRead<'a>>,
}

async fn take_away(
    call: &Call<'_>,
    Target { kind, version, id }: Target<'_>,
    Taking { only_empty, forced, by }: Taking<'_>,
) -> Result<Response<Body>, ApiError> {
    kind.may_change(id, call.control)?;
    for _ in 0..TRIES {
        let turn = turn_of(call, kind).await?;
        let Some(old) = resources::get(call.control, id).await? else {
            preconditions(call, None)?;
            return Ok(empty(StatusCode::NO_CONTENT));
        };
        preconditions(call, Some(&old))?;
        match by {
            Some(by) if Managed::of(&old.body).is_none_or(|has| has.key() != by.id.key()) => {
                return Ok(empty(StatusCode::NO_CONTENT));
            }
            Some(_) => {}
            None => unmanaged(call, Some(&old), None).await?,
        }
        if let Some(body) = old.body.as_object() {
            writes_for(call, kind, id, body, "delete")?;
        }
        kind.may_delete(&old, &call.control.directory())?;
        let mut without = Vec::new();
        for other in resources::KINDS {
            without.extend(other.keeps(&old, call.control).await?);
        }
        owner_stays(call, kind, &old, None)?;
        // What it made elsewhere is taken down first, also where it holds nothing.
        let at_once = forced || (only_empty && kind.keeps_up().is_none());
        let slowly = kind.deletes_slowly() && !at_once;
        let (mut batch, operation) = if slowly { marked(call, kind, id, &old) } else { (removed(&old), None) };
        batch.empty.extend(only_empty.then(|| old.key.clone()));
        batch.without = without;
        batch.as_read.extend(by.map(|by| (by.id.key().to_owned(), Some(by.revision))));
        // The first deletion is never refused, whatever others have begun here: a withdrawal waits for nobody. As many are
        // possible as there were creations.
        if old.is_deleting() {
            call.control.quotas.bound_operations(&mut batch);
        }
        call.may_still().await?;
        match call.control.write_in_turn(&batch, turn).await? {
            Ok(_) if operation.is_some() => {
                return Ok(operations::announce(call, empty(kind.deletion_begins_with()), operation.as_ref()));
            }
            Ok(_) => {
                let is_long = !answers::is_short(&old.body);
                let shown =
                    async { read::show(call, kind, version, &old).await.map(|shown| json(StatusCode::OK, &shown)) };
                aside::has_begun();
                return turns(is_long, Box::pin(shown)).await?;
            }
            Err(Refused::NotEmpty { .. }) => {
                let message = format!("'{}' holds something, which onlyIfEmpty=true keeps.", id.name());
                return Err(ApiError::of(StatusCode::CONFLICT, "ResourceNotEmpty", message));
            }
            Err(Refused::Changed { key, .. }) if by.is_some_and(|by| by.id.key() == key) => {
                return Err(assignment_changed());
            }
            Err(Refused::TooManyOperations { place, most, room_ms }) => {
                let tried = format!("'{}' is being deleted, and its deletion is not begun once more", id.name());
                return Err(too_many_operations(&tried, &place, most, room_ms));
            }
            Err(Refused::Changed { .. } | Refused::Full { .. } | Refused::NoParent { .. }) => {}
        }
    }
    Err(ApiError::raced())
}

fn assignment_changed() -> ApiError {
    ApiError::of(StatusCode::CONFLICT, ASSIGNMENT_CHANGED, "The fleet assignment was changed at the same time.")
}

/// What makes the last owner one, a role assignment, is neither deleted nor given an end. Asked in the [turn](turn_of) of
/// who takes one away, so that of two who take away each other's one is refused.
fn owner_stays(
    call: &Call<'_>,
    kind: &dyn Kind,
    old: &Stored,
    new: Option<&Map<String, Value>>,
) -> Result<(), ApiError> {
    // Of a resource group or what is in it nobody is the gateway's owner.
    let is_below = old.key.contains("/resourcegroups/");
    if is_below || kind.withdraws(old, new, call.now_ms()).as_deref() != Some(owners::role()) {
        return Ok(());
    }
    let known = call.issuer.as_ref().map(|issuer| issuer.known());
    let accounts = known.as_ref().map(|(users, principals)| (&**users, &**principals));
    let names = call.snapshot().names();
    let before = SignedIn { names: &names, accounts, caller: call.caller.principals(), gone: None, now: call.now() };
    owners::Change { before, after: before, assignment: Some(&old.key) }
        .check(&call.control.settings, &call.control.directory())
}

/// Nobody else writes roles or assignments, or takes an owner away, while this is held, at this gateway or at another one
/// on its store.
pub struct RightsTurn<'a> {
    _here: MutexGuard<'a, ()>,
    _everywhere: held::RightsTurn,
    _holding: aside::Holding,
}

/// The turn of what is judged by all roles and assignments, and decides for others: that there is none like it, how many
/// there are, that nobody has a role that goes, whether the caller may. Others could change that in between.
async fn turn_of<'a>(call: &Call<'a>, kind: &dyn Kind) -> Result<Option<RightsTurn<'a>>, ApiError> {
    match kind.decides() {
        Some(Decides::Roles(_) | Decides::Assignments(_)) => rights_turn(call).await.map(Some),
        Some(Decides::Clusters(_) | Decides::Identities(_)) | None => Ok(None),
    }
}

/// Waits until nobody else here does what is done by one at a time. Others' changes of rights do not wait for that.
async fn alone<'a>(call: &Call<'a>) -> Result<(MutexGuard<'a, ()>, aside::Holding), ApiError> {
    let turn = tokio::time::timeout(RIGHTS_WITHIN, call.control.alone.lock()).await;
    turn.map(|turn| (turn, aside::holding())).map_err(|_| {
        let message = "Others do the same; try again shortly.";
        ApiError::of(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).with(header::RETRY_AFTER, "1")
    })
}

/// Waits for the turn, and knows then what those before have done.
pub async fn rights_turn<'a>(call: &Call<'a>) -> Result<RightsTurn<'a>, ApiError> {
    let Ok(here) = tokio::time::timeout(RIGHTS_WITHIN, call.control.rights.lock()).await else {
        let message = "Others change roles and assignments; try again shortly.";
        return Err(
            ApiError::of(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).with(header::RETRY_AFTER, "1")
        );
    };
    let holding = aside::holding();
    let everywhere = call.control.rights_turn().await?;
    if let Some(issuer) = &call.issuer
        && issuer.catch_up().await.is_err()
    {
        return Err(StoreError::Database(sqlx::Error::PoolTimedOut).into());
    }
    Ok(RightsTurn { _here: here, _everywhere: everywhere, _holding: holding })
}

/// A parameter of the query that is `true` or `false`; false where it is not there.
fn flag(call: &Call<'_>, name: &str) -> Result<bool, ApiError> {
    match call.parameter(name)? {
        None => Ok(false),
        Some(word) if word.eq_ignore_ascii_case("false") => Ok(false),
        Some(word) if word.eq_ignore_ascii_case("true") => Ok(true),
        Some(_) => {
            let message = format!("The query parameter '{name}' must be true or false.");
            Err(ApiError::bad_request("InvalidQueryParameterValue", message).at(name))
        }
    }
}

fn removed(old: &Stored) -> Batch {
    Batch { deletes: vec![(old.key.clone(), Expect::Revision(old.revision))], ..Batch::default() }
}

/// From now on it is being deleted: nobody reaches it, nobody changes it.
fn marked(call: &Call<'_>, kind: &dyn Kind, id: &ResourceId, old: &Stored) -> (Batch, Option<Operation>) {
    let mut marked = old.clone();
    let by = call.caller.object_id();
    let mut operation = operations::new(call, id, json!({"kind": kind.taken_down_by(), "by": by}));
    if kind.is_followed() {
        let mut object = Object::of(&old.body);
        // Who deletes what is being deleted waits for the same.
        if !old.is_deleting() {
            object = Object { deleting: true, ..object.next(&operation.id, call.now_ms()) };
        }
        operation.work = take_down::work(by, object.generation);
        operation.due_ms = Some(call.control.due_ms(call.now_ms()));
        marked.body.as_object_mut().into_iter().for_each(|body| object.keep(body));
    }
    mark_deleting(&mut marked, true);
    let batch = Batch {
        puts: vec![(marked, Expect::Revision(old.revision))],
        begins: vec![operation.clone()],
        ..Batch::default()
    };
    (batch, Some(operation))
}

/// POST of an action.
pub async fn act<B>(call: &Call<'_>, id: &ResourceId, action: &str, body: B) -> Result<Response<Body>, ApiError>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let kind = read::kind_of(id)?;
    let known = kind.actions().iter().find(|known| known.eq_ignore_ascii_case(action)).copied();
    let action = known.ok_or_else(|| ApiError::not_found_at(call.path))?;
    if call.method != http::Method::POST {
        return Err(ApiError::method_not_allowed("an action has POST").with(header::ALLOW, "POST"));
    }
    let version = call.version(kind)?;
    let usual = format!("{}/{action}/action", read::operations_of(kind));
    call.authorize(kind.permission(action).unwrap_or(&usual), id)?;
    let body = body::read_or_nothing(call, body).await?;
    read::in_subscription(call, id)?;
    let _turn = if kind.acts_alone(action) { Some(alone(call).await?) } else { None };
    let resource = read::present(call, id).await?;
    call.may_still().await?;
    let acting = Acting {
        resource: &resource,
        action,
        version,
        body: &body,
        caller: &call.caller,
        control: call.control,
        now_ms: call.now_ms(),
        paging: call,
    };
    long_json(StatusCode::OK, kind.act(&acting).await?).await
}
