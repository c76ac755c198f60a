//! Kinds of resources. A kind is a plug-in: one file that says what its JSON may hold and what happens when one is
//! written, shown or deleted, and one line in [`KINDS`]. Paths, api-versions, access, ETags, paging, long-running
//! operations and errors are the same for all and live in [`crate::api`].

mod authorization;
pub mod connected_cluster;
pub mod enrolment_token;
pub mod extension;
pub mod filter;
pub mod fleet_assignment;
pub mod flux_configuration;
pub mod flux_extension;
pub mod followed;
pub mod grounds;
pub mod registrations;
pub mod resource_group;
pub mod role_assignment;
pub mod role_definition;
pub mod schema;
pub mod source_control_configuration;
pub mod subscription;

use futures_util::future::BoxFuture;
use http::StatusCode;
use serde_json::{Map, Value, json};
use types::{
    api::{ErrorDetail, ResourceId, id::fold},
    instants::instant,
};

use self::{grounds::Grounds, schema::Property};
use crate::{
    api_error::ApiError,
    config::api::Api,
    control::{Control, Kinds, objects::Followed},
    directory::{Decides, Deciding, Directory},
    identity::Caller,
    issuer::Issuer,
    object::Object,
    store::{agents::Agent, resources::Stored, statuses::ReportedStatus},
    stored::properties_mut,
};

/// All kinds. What is listed with others is listed in this order.
pub static KINDS: &[&dyn Kind] = &[
    &subscription::Subscriptions,
    &resource_group::ResourceGroups,
    &connected_cluster::ConnectedClusters,
    &extension::Extensions,
    &flux_configuration::FluxConfigurations,
    &source_control_configuration::SourceControlConfigurations,
    &fleet_assignment::FleetAssignments,
    &role_definition::RoleDefinitions,
    &role_assignment::RoleAssignments,
];

/// The kind of that full type, in any case.
pub fn kind(name: &str) -> Option<&'static dyn Kind> {
    KINDS.iter().find(|kind| kind.name().eq_ignore_ascii_case(name)).copied()
}

/// The kinds that decisions look at, for the [`Directory`].
pub fn deciding() -> Deciding {
    KINDS.iter().filter_map(|kind| Some((kind.name(), kind.decides()?))).collect()
}

/// What the control plane is told of the kinds.
pub fn for_control() -> Kinds {
    Kinds {
        deciding: deciding(),
        configured: |settings| KINDS.iter().flat_map(|kind| kind.configured(settings)).collect(),
        followed: KINDS.iter().filter_map(|kind| kind.follows()).collect(),
        woken_by,
        wakes_nobody: |old, new| KINDS.iter().all(|kind| kind.is_unmoved_by(old, new)),
    }
}

/// About what operations are looked at again once the resource of a key was written, or deleted.
fn woken_by(key: &str, deleted: bool) -> Vec<String> {
    let Ok(id) = ResourceId::parse(key) else { return Vec::new() };
    KINDS.iter().flat_map(|kind| kind.woken_by(&id, deleted)).collect()
}

/// The kept resource of an id, or what is built in.
///
/// # Errors
/// When the store cannot be read.
pub async fn get(control: &Control, id: &ResourceId) -> Result<Option<Stored>, ApiError> {
    if let Some(kept) = control.store.get(id.key()).await? {
        return Ok(Some(kept));
    }
    let Some(kind) = kind(id.kind()) else { return Ok(None) };
    let subscription = format!("/subscriptions/{}", id.subscription());
    Ok(kind.built_in(&subscription).into_iter().find(|stored| stored.key.ends_with(&format!("/{}", fold(id.name())))))
}

/// The id of an operation's status below a resource that agents follow, taken apart: the resource and the operation.
pub fn operation_of(id: &ResourceId) -> Option<(ResourceId, &str)> {
    let parent = id.parent().filter(|parent| id.is(&format!("{}/operations", parent.kind())))?;
    kind(parent.kind()).filter(|kind| kind.is_followed())?;
    Some((parent, id.name()))
}

/// The nearest resource that is kept: a part of one ([`Kind::parts`]) is a scope, but it is kept by its resource.
pub fn holder(id: &ResourceId) -> ResourceId {
    let is_part = |kind: &&dyn Kind| kind.parts().iter().any(|part| id.is(&format!("{}/{part}", kind.name())));
    match id.parent() {
        Some(parent) if KINDS.iter().any(is_part) => parent,
        _ => id.clone(),
    }
}

/// Where resources of a kind live.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At the top.
    Top,
    /// In a subscription.
    Subscription,
    /// In a resource group.
    ResourceGroup,
    /// On a connected cluster.
    Cluster,
    /// At a subscription or a resource group, about what is in it.
    Scope,
    /// On any resource, and in namespaces of clusters.
    Anywhere,
}

/// What a write is about.
pub struct Writing<'a> {
    /// The id of what is written.
    pub id: &'a ResourceId,
    /// What is there now.
    pub old: Option<&'a Stored>,
    /// What the client sent: of a PATCH, what it changes.
    pub said: &'a Map<String, Value>,
    /// The user or service principal that writes.
    pub caller: &'a Caller,
    /// As this api-version has it.
    pub version: &'a str,
    /// Now, in milliseconds since 1970.
    pub now_ms: i64,
    /// The settings and the store.
    pub control: &'a Control,
    /// The built-in issuer, which knows its users and service principals.
    pub issuer: Option<&'a Issuer>,
    /// What the write is decided by beside what is there now.
    pub grounds: &'a Grounds,
}

/// Another resource that a new one needs, written in the same batch.
pub enum Brought {
    /// A new one of this id, with this body as a client would send it.
    New(ResourceId, Map<String, Value>),
    /// One that is there, by its key, and must not go meanwhile.
    Kept(String),
}

impl Writing<'_> {
    /// What role assignments call the kind of an object id, if the built-in issuer or a cluster has it.
    pub fn kind_of(&self, id: &str) -> Option<&'static str> {
        let (users, principals) = self.issuer.map(Issuer::known).unzip();
        let is = |known: &str| known.eq_ignore_ascii_case(id);
        if principals.is_some_and(|all| all.iter().any(|one| is(&one.object_id))) {
            return Some("ServicePrincipal");
        }
        if users.is_some_and(|all| all.iter().any(|one| is(&one.id))) {
            return Some("User");
        }
        self.control.snapshot().is_identity(&id.to_ascii_lowercase()).then_some("ServicePrincipal")
    }
}

/// What showing a resource may look at beside what is kept.
pub struct Showing<'a> {
    /// Properties of this api-version.
    pub version: &'a str,
    /// Now, in milliseconds since 1970.
    pub now_ms: i64,
    /// The user or service principal that reads.
    pub caller: &'a Caller,
    /// The store and the live state.
    pub control: &'a Control,
    /// What is kept of its agents; `None` for kinds without agents.
    pub agent: Option<&'a Agent>,
    /// What is kept of it as something that agents follow.
    pub object: &'a Object,
    /// What its cluster told of it, if it is of a kind that is followed there.
    pub told: Option<&'a ReportedStatus>,
}

/// A request for an action of a resource (`POST <id>/<action>`).
pub struct Acting<'a> {
    /// The resource whose action is called.
    pub resource: &'a Stored,
    /// The action's name, as [`Kind::actions`] has it.
    pub action: &'a str,
    /// Properties of this api-version.
    pub version: &'a str,
    /// The body of the request.
    pub body: &'a Map<String, Value>,
    /// The user or service principal that calls it.
    pub caller: &'a Caller,
    /// The store and the live state.
    pub control: &'a Control,
    /// Now, in milliseconds since 1970.
    pub now_ms: i64,
    /// Which page of an answer is asked for.
    pub paging: &'a dyn Paging,
}

/// Which page of an answer a request asks for, and where the next one is.
pub trait Paging: Send + Sync {
    /// Rows of the page at most: `$top`.
    ///
    /// # Errors
    /// It is not a number of rows.
    fn rows(&self) -> Result<u32, ApiError>;

    /// The key behind which the page begins: `$skipToken`; empty for the first one.
    ///
    /// # Errors
    /// It is not a token of this gateway.
    fn after(&self) -> Result<String, ApiError>;

    /// The link of the page that begins behind a key. It takes the same method and body.
    ///
    /// # Errors
    /// The token cannot be sealed.
    fn link(&self, after: &str) -> Result<String, ApiError>;
}

/// One kind of resource.
pub trait Kind: Send + Sync {
    /// The full type: `Microsoft.Kubernetes/connectedClusters`.
    fn name(&self) -> &'static str;

    /// Versions that are answered, oldest first.
    fn api_versions(&self) -> &'static [&'static str];

    /// The kind of scope that its resources are in.
    fn place(&self) -> Place;

    /// What its JSON may hold beside `id`, `name`, `type`, `systemData` and `etag`.
    fn schema(&self) -> &'static [Property];

    /// Whether clients may create, change and delete resources of this kind.
    fn is_writable(&self) -> bool {
        true
    }

    /// Checks a name. The error says what is allowed.
    fn check_name(&self, name: &str) -> Result<(), ErrorDetail>;

    /// Whether a deletion is a long-running operation.
    fn deletes_slowly(&self) -> bool {
        false
    }

    /// The status of the answer to a deletion that goes on as an operation. Clients of some kinds take no other.
    fn deletion_begins_with(&self) -> StatusCode {
        StatusCode::ACCEPTED
    }

    /// Whether the store keeps a row of agents beside each.
    fn has_agents(&self) -> bool {
        false
    }

    /// Whether the agents of its cluster follow it: what is written is done there, and an operation ends when the agents
    /// have told so (docs/features.md E1). `None`: agents do not follow this kind.
    fn follows(&self) -> Option<Followed> {
        None
    }

    /// Whether agents follow this kind.
    fn is_followed(&self) -> bool {
        self.follows().is_some()
    }

    /// Whether something is told of it that is shown with it: by agents, or by the work that keeps up with it.
    fn is_told_of(&self) -> bool {
        self.is_followed() || self.keeps_up().is_some()
    }

    /// The kind of work that goes on for as long as it is there: begun with it, and no operation that a client sees.
    fn keeps_up(&self) -> Option<&'static str> {
        None
    }

    /// The kind of work that a long-running deletion is.
    fn taken_down_by(&self) -> &'static str {
        "delete"
    }

    /// The work of which resources of this kind looks again once any resource was written, or deleted: their keys, or
    /// keys that they are below.
    fn woken_by(&self, _changed: &ResourceId, _deleted: bool) -> Vec<String> {
        Vec::new()
    }

    /// Whether nothing that the work of this kind looks at has changed between two versions of any resource.
    fn is_unmoved_by(&self, _old: &Stored, _new: &Stored) -> bool {
        true
    }

    /// The kind of resources that it writes in the name of who wrote it, below what holds it: who writes or deletes it
    /// needs the right to write or delete those there, too.
    fn writes_for(&self, _body: &Map<String, Value>) -> Option<&'static dyn Kind> {
        None
    }

    /// The origin (scheme, host and port) to which a cluster sends the protected settings of this body; `None` where it
    /// sends them nowhere.
    fn sends_secrets_to(&self, _body: &Map<String, Value>) -> Option<String> {
        None
    }

    /// Takes out of a checked body what nobody may see again.
    fn split_protected(&self, body: &mut Map<String, Value>) -> schema::Protected {
        schema::split_protected(self.schema(), body)
    }

    /// Whether it is listed among all resources of a scope (`GET <scope>/resources`): it has a location and tags.
    fn is_tracked(&self) -> bool {
        matches!(self.place(), Place::ResourceGroup | Place::Cluster)
    }

    /// Scopes below a resource that are no resources, by the last part of their types: of a cluster, its `namespaces`.
    fn parts(&self) -> &'static [&'static str] {
        &[]
    }

    /// What decisions take from the resources of this kind; none: they look at none of them.
    fn decides(&self) -> Option<Decides> {
        None
    }

    /// Resources that come from the configuration, and are kept as it has them.
    fn configured(&self, _settings: &Api) -> Vec<Stored> {
        Vec::new()
    }

    /// Resources that are there without anybody having created them, in a subscription.
    fn built_in(&self, _subscription: &str) -> Vec<Stored> {
        Vec::new()
    }

    /// Looks at a checked body (PUT, or what a PATCH leads to), and fills in what this service writes.
    fn write<'a>(
        &'a self,
        body: &'a mut Map<String, Value>,
        writing: &'a Writing<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>>;

    /// Whether a change (`new`: the body behind it) hands the resource to somebody who must not get what was given to
    /// those who had it before: identities below it become others, and protected settings there must be given again.
    fn passes_on(&self, _old: &Stored, _new: &Map<String, Value>) -> bool {
        false
    }

    /// What a new resource needs beside it.
    fn brings<'a>(&'a self, _writing: &'a Writing<'a>) -> BoxFuture<'a, Result<Option<Brought>, ApiError>> {
        Box::pin(async { Ok(None) })
    }

    /// Refuses the deletion of a resource that resources of this kind depend on. Or returns a kind and a parent: the
    /// deletion fails if a resource of that kind has come to that parent by then.
    fn keeps<'a>(
        &'a self,
        _deleted: &'a Stored,
        _control: &'a Control,
    ) -> BoxFuture<'a, Result<Option<(String, String)>, ApiError>> {
        Box::pin(async { Ok(None) })
    }

    /// Puts a checked PATCH into a kept body: tags are replaced as a whole, properties one by one.
    fn merge(&self, body: &mut Map<String, Value>, part: &Map<String, Value>) {
        for (name, value) in part {
            match (name.as_str(), value) {
                ("properties", Value::Object(new)) => properties_mut(body).extend(new.clone()),
                _ => drop(body.insert(name.clone(), value.clone())),
            }
        }
    }

    /// What a PATCH may hold; none: there is no PATCH.
    fn patch_schema(&self) -> Option<&'static [Property]> {
        None
    }

    /// Whether the store may have, change or delete a resource of this id; not where another source decides about it
    /// alone.
    fn may_change(&self, _id: &ResourceId, _control: &Control) -> Result<(), ApiError> {
        Ok(())
    }

    /// Whether what is below the resource `at`, such as a role assignment, may be created or changed.
    fn may_hold(&self, _at: &ResourceId, _id: &ResourceId, _control: &Control) -> Result<(), ApiError> {
        Ok(())
    }

    /// The GUID of the role of a permanent assignment that this change revokes. `new`: the body after the change; `None`
    /// for a deletion.
    fn withdraws(&self, _old: &Stored, _new: Option<&Map<String, Value>>, _now_ms: i64) -> Option<String> {
        None
    }

    /// Whether it may be deleted.
    fn may_delete(&self, _stored: &Stored, _directory: &Directory) -> Result<(), ApiError> {
        Ok(())
    }

    /// Adds what is computed when it is read, of the resource of this id.
    fn show(&self, _shown: &mut Map<String, Value>, _id: &str, _showing: &Showing<'_>) {}

    /// Whether a resource belongs to the answer of a list, by the request's `$filter`. Refuses one that is not
    /// understood.
    fn matches(&self, filter: &str, _stored: &Stored, _caller: &Caller) -> Result<bool, ApiError> {
        Err(ApiError::of(
            StatusCode::BAD_REQUEST,
            "InvalidFilter",
            format!("$filter={filter:?} is not supported here."),
        ))
    }

    /// Actions: their names as ARM writes them; they are found in any case.
    fn actions(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether an action is judged by what others have done, and so done by one at a time.
    fn acts_alone(&self, _action: &str) -> bool {
        false
    }

    /// What an action needs a role for, where that is not the action itself.
    fn permission(&self, _action: &str) -> Option<&'static str> {
        None
    }

    /// Whether the answer of an action comes in pages ([`Acting::paging`]).
    fn is_paged(&self, _action: &str) -> bool {
        false
    }

    /// What an action takes and answers, as schemas of OpenAPI 3.1.
    fn describe_action(&self, _action: &str) -> (Value, Value) {
        (json!({"type": "object"}), json!({"type": "object"}))
    }

    /// Does an action.
    fn act<'a>(&'a self, acting: &'a Acting<'a>) -> BoxFuture<'a, Result<Value, ApiError>> {
        Box::pin(async move { Err(ApiError::not_found_at(acting.action)) })
    }
}

/// ARM's usual names: letters, digits and a few signs, beginning with a letter or digit.
pub fn usual_name(name: &str, longest: usize, signs: &str) -> Result<(), ErrorDetail> {
    let known = |c: char| c.is_ascii_alphanumeric() || signs.contains(c);
    let fine = name.len() <= longest
        && name.chars().all(known)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && !name.ends_with('.');
    if fine {
        return Ok(());
    }
    let message = format!(
        "The name '{}' must have 1 to {longest} characters: letters, digits and {}, the first a letter or digit, the last no '.'.",
        name.chars().take(longest.min(90)).collect::<String>(),
        signs.chars().map(|c| format!("'{c}'")).collect::<Vec<_>>().join(" "),
    );
    Err(ErrorDetail::new("InvalidResourceName", message).at("name"))
}

/// Who created and changed it last, and when.
pub fn system_data(body: &mut Map<String, Value>, writing: &Writing<'_>) {
    let old = writing.old.and_then(|old| old.body.get("systemData"));
    let now = json!(instant(writing.now_ms));
    let by = json!(writing.caller.name());
    let kept = |name: &str, new: &Value| old.and_then(|old| old.get(name)).unwrap_or(new).clone();
    let data = json!({
        "createdBy": kept("createdBy", &by),
        "createdByType": kept("createdByType", &json!(writing.caller.kind())),
        "createdAt": kept("createdAt", &now),
        "lastModifiedBy": by,
        "lastModifiedByType": writing.caller.kind(),
        "lastModifiedAt": now,
    });
    body.insert("systemData".to_owned(), data);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_there_once_and_has_versions_in_order() {
        for kind in KINDS {
            assert_eq!(KINDS.iter().filter(|other| other.name().eq_ignore_ascii_case(kind.name())).count(), 1);
            let versions = kind.api_versions();
            assert!(!versions.is_empty() && versions.is_sorted(), "{}", kind.name());
        }
    }
}
