//! Role assignments: who has which role where (docs/features.md Z2, Z6, Z11). Two properties are ours:
//! `startDateTime` and `endDateTime` bound an assignment in time.
//!
//! The name of an assignment is a GUID, as in ARM. A `principalId` is one at the built-in issuer and at Entra ID; other
//! issuers name people as they like (`sub`), and groups by words, so that any text is taken (docs/features.md Z2).

use std::sync::Arc;

use auth::rbac::{
    Role, Scope, Window,
    principal::{group_key, user_key},
};
use futures_util::future::BoxFuture;
use http::StatusCode;
use serde_json::{Map, Value, json};
use time::OffsetDateTime;
use types::{
    api::{ErrorDetail, ResourceId},
    ids::ClusterId,
    instants,
};

use super::{
    Kind, Place, Writing,
    authorization::{VERSIONS, guid_name, quota, stamps},
    role_definition,
    schema::{Property, Type},
};
use crate::{
    api_error::ApiError,
    aside::aside,
    directory::{Assigned, Decides, Directory},
    guid::is_guid,
    identity::Caller,
    resources::filter,
    store::resources::Stored,
    stored::{last_name, properties, properties_mut},
};

/// The kind of role assignments.
pub struct RoleAssignments;

/// The full type.
pub const NAME: &str = "Microsoft.Authorization/roleAssignments";
const TYPES: &[&str] = &["User", "Group", "ServicePrincipal", "ForeignGroup", "Device"];
const PROPERTIES: &[Property] = &[
    Property::new("roleDefinitionId", Type::Checked(definition)).required(),
    Property::new("principalId", Type::Checked(principal)).required(),
    // Where nobody says and the issuer does not know, it is whoever has that GUID: a user or a group.
    Property::new("principalType", Type::Words(TYPES)),
    Property::new("description", Type::Text),
    Property::new("startDateTime", Type::Checked(instant)),
    Property::new("endDateTime", Type::Checked(instant)),
    // Not evaluated, and therefore not taken: a condition that is ignored would give more than was meant.
    Property::new("condition", Type::Checked(no_condition)),
    Property::new("conditionVersion", Type::Text),
    Property::new("delegatedManagedIdentityResourceId", Type::Text),
    Property::read_only("scope", Type::Text),
    Property::read_only("createdOn", Type::Instant),
    Property::read_only("updatedOn", Type::Instant),
    Property::read_only("createdBy", Type::Text),
    Property::read_only("updatedBy", Type::Text),
];
const SCHEMA: &[Property] = &[Property::new("properties", Type::Object(PROPERTIES)).required()];

impl Kind for RoleAssignments {
    fn name(&self) -> &'static str {
        NAME
    }

    fn api_versions(&self) -> &'static [&'static str] {
        VERSIONS
    }

    fn place(&self) -> Place {
        Place::Anywhere
    }

    fn schema(&self) -> &'static [Property] {
        SCHEMA
    }

    fn check_name(&self, name: &str) -> Result<(), ErrorDetail> {
        guid_name(name)
    }

    fn decides(&self) -> Option<Decides> {
        Some(Decides::Assignments(|stored| {
            let body = stored.body.as_object()?;
            let properties = properties(body)?;
            Some(Assigned {
                principals: principal_keys(properties).iter().map(|key| key.as_str().into()).collect(),
                scope: scope_of(&ResourceId::parse(&stored.id).ok()?).ok()?,
                role: definition_of(properties)?,
                window: window(body),
            })
        }))
    }

    fn withdraws(&self, old: &Stored, new: Option<&Map<String, Value>>, now_ms: i64) -> Option<String> {
        let lasts = |body: &Map<String, Value>| window(body).contains_always(now_ms / 1000);
        let whose = |body| properties(body).map(principal_keys).unwrap_or_default();
        let old = old.body.as_object().filter(|body| lasts(body))?;
        let stays = new.is_some_and(|new| lasts(new) && whose(old) == whose(new));
        properties(old).filter(|_| !stays).and_then(definition_of)
    }

    fn write<'a>(
        &'a self,
        body: &'a mut Map<String, Value>,
        writing: &'a Writing<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            let scope = scope_of(writing.id)?;
            possible(&scope)?;
            let text =
                |name: &str| properties(body).and_then(|p| p.get(name)).and_then(Value::as_str).unwrap_or_default();
            let (role, principal) = (text("roleDefinitionId").to_owned(), text("principalId").to_owned());
            let guid = role_definition::guid_of(&role).unwrap_or_default();
            let directory = writing.control.directory();
            assignable(&directory, &guid, &role, &scope)?;
            in_time(&window(body), writing.now_ms)?;
            let old = writing.old.and_then(|old| old.body.as_object()).and_then(properties);
            let same = |name: &str, new: &str| {
                old.is_none_or(|old| {
                    old.get(name).and_then(Value::as_str).is_some_and(|is| user_key(is) == user_key(new))
                })
            };
            if !same("principalId", &principal) || old.is_some_and(|old| definition_of(old) != Some(guid.clone())) {
                let message = "A role assignment's role and principal cannot be changed: delete it and create another.";
                return Err(ApiError::bad_request("RoleAssignmentUpdateNotPermitted", message));
            }
            if let Some(other) = directory.same_assignment(&principal, &scope, &guid)
                && other != writing.id.key()
            {
                let id = last_name(&other);
                let message =
                    format!("The role assignment already exists. The ID of the existing role assignment is {id}.");
                return Err(ApiError::of(StatusCode::CONFLICT, "RoleAssignmentExists", message));
            }
            let is_new = old.is_none();
            let kind = old.and_then(|old| old.get("principalType")?.as_str().map(str::to_owned));
            let kind = kind.or_else(|| writing.kind_of(&principal).map(str::to_owned));
            let properties = properties_mut(body);
            if old.is_none() && kind.is_none() && !properties.contains_key("principalType") && !is_guid(&principal) {
                return Err(nobody(&principal));
            }
            if let Some(kind) = kind {
                properties.entry("principalType").or_insert_with(|| kind.into());
            }
            properties.insert("scope".to_owned(), json!(scope_text(writing.id)));
            stamps(properties, writing);
            let (principals, window) = (principal_keys(properties), window(body));
            if is_new && let Some(role) = directory.role_at(&guid, &scope) {
                within_quota(directory, principals, scope, role, window).await?;
            }
            Ok(())
        })
    }

    fn matches(&self, text: &str, stored: &Stored, caller: &Caller) -> Result<bool, ApiError> {
        let property = |name: &str| stored.body.get("properties")?.get(name)?.as_str();
        let principal = property("principalId").unwrap_or_default();
        filter::all(text, |condition| match condition {
            // The list is cut to the scope by who reads it.
            filter::Condition::Call("atscope", "") => Some(true),
            filter::Condition::Call("assignedto", id) => {
                let groups = user_key(id) == user_key(caller.object_id())
                    && may_be_group(property("principalType"))
                    && caller.is_in_group(principal);
                Some(user_key(principal) == user_key(id) || groups)
            }
            filter::Condition::Equal("principalid", id) => Some(user_key(principal) == user_key(id)),
            _ => None,
        })
    }
}

/// Whoever assigns roles at a scope shares the document of a cluster, and the work of its decisions, with all others.
async fn within_quota(
    directory: Arc<Directory>,
    principals: Vec<String>,
    scope: Scope,
    role: Arc<Role>,
    window: Window,
) -> Result<(), ApiError> {
    let (assignments, bytes) = quota(&scope);
    let at = scope.clone();
    let counted = aside(move || {
        let held = directory.held_at(&at, None);
        (held, directory.bytes_of_another(&principals, &at, &role, window))
    });
    let (held, more) = counted.await?;
    if held.assignments >= assignments {
        let message = format!(
            "The scope '{scope}' has {} role assignments; the quota of a scope is {assignments}. Delete some there, or assign roles to groups.",
            held.assignments
        );
        return Err(ApiError::of(StatusCode::CONFLICT, "RoleAssignmentLimitExceeded", message));
    }
    // What says nothing about calls to clusters takes nothing.
    if more > 0 && held.bytes + more > bytes {
        let message = format!(
            "The role assignments at '{scope}' and the custom roles that they name would take {} bytes of what a cluster's agent is told; the quota of a scope is {bytes}. Assign smaller roles there, or assign roles to groups.",
            held.bytes + more
        );
        return Err(ApiError::of(StatusCode::CONFLICT, "RoleAssignmentLimitExceeded", message));
    }
    Ok(())
}

/// A GUID is one principal's, whoever knows it. A name may be a user's at one issuer and a group's at another.
fn nobody(principal: &str) -> ApiError {
    let shown: String = principal.chars().take(90).collect();
    let message = format!(
        "Principal '{shown}' is not known here, and no GUID: it may be a user's name or a group's. Check the id, or say which it is with principalType ({}).",
        TYPES.join(", ")
    );
    ApiError::bad_request("PrincipalNotFound", message).at("properties.principalType")
}

fn assignable(directory: &Directory, guid: &str, role: &str, scope: &Scope) -> Result<(), ApiError> {
    if directory.role_at(guid, scope).is_some() {
        return Ok(());
    }
    let refused = if directory.has_role(guid) {
        let message =
            format!("The role definition '{role}' cannot be assigned at '{scope}'; see its assignableScopes.");
        ApiError::bad_request("RoleAssignmentScopeNotAssignableToRoleDefinition", message)
    } else {
        let message = format!("The role definition '{role}' does not exist.");
        ApiError::of(StatusCode::NOT_FOUND, "RoleDefinitionDoesNotExist", message)
    };
    Err(refused.at("properties.roleDefinitionId"))
}

fn definition(text: &str) -> Result<(), String> {
    let wanted = || {
        format!("the id of a role definition, such as /subscriptions/<id>/providers/{}/<guid>", role_definition::NAME)
    };
    role_definition::guid_of(text).map(drop).ok_or_else(wanted)
}

fn principal(text: &str) -> Result<(), String> {
    const LONGEST: usize = 512;
    let fine = (1..=LONGEST).contains(&text.len()) && !text.chars().any(char::is_control);
    if fine {
        Ok(())
    } else {
        Err(format!("the object id of a user, group or service principal, 1 to {LONGEST} characters"))
    }
}

fn instant(text: &str) -> Result<(), String> {
    parse(text).map(drop).ok_or_else(|| "an instant such as 2030-01-31T12:00:00Z".to_owned())
}

fn no_condition(text: &str) -> Result<(), String> {
    if text.is_empty() { Ok(()) } else { Err("left out: conditions are not evaluated by this gateway".to_owned()) }
}

fn parse(text: &str) -> Option<i64> {
    instants::parse(text).ok().map(OffsetDateTime::unix_timestamp)
}

/// When an assignment holds.
fn window(body: &Map<String, Value>) -> Window {
    let at = |name: &str| properties(body)?.get(name)?.as_str().and_then(parse);
    Window { starts: at("startDateTime"), ends: at("endDateTime") }
}

fn in_time(window: &Window, now_ms: i64) -> Result<(), ApiError> {
    let at = "properties.endDateTime";
    if window.ends.is_some_and(|ends| ends <= now_ms / 1000) {
        return Err(ApiError::bad_request("InvalidExpiration", "The end of the assignment is in the past.").at(at));
    }
    if window.starts.zip(window.ends).is_some_and(|(starts, ends)| starts >= ends) {
        return Err(ApiError::bad_request("InvalidExpiration", "The assignment ends before it starts.").at(at));
    }
    Ok(())
}

/// The id of what an assignment or definition is at, as written.
pub fn scope_text(id: &ResourceId) -> &str {
    id.parent_text()
}

fn may_be_group(kind: Option<&str>) -> bool {
    matches!(kind, None | Some("Group" | "ForeignGroup"))
}

/// What the policy calls whom an assignment is for: two names where nobody knows whether it is a user or a group.
pub fn principal_keys(properties: &Map<String, Value>) -> Vec<String> {
    let text = |name: &str| properties.get(name).and_then(Value::as_str);
    let Some(id) = text("principalId") else { return Vec::new() };
    let kind = text("principalType");
    let user = (!matches!(kind, Some("Group" | "ForeignGroup"))).then(|| user_key(id));
    let group = may_be_group(kind).then(|| group_key(id));
    user.into_iter().chain(group).collect()
}

/// The scope of an assignment.
fn scope_of(id: &ResourceId) -> Result<Scope, ApiError> {
    scope_text(id).parse().map_err(|error| ApiError::bad_request("InvalidScope", format!("{error}.")))
}

/// Nobody is ever asked about a namespace that cannot be: a role there would be for nothing, and look as if it were
/// not.
fn possible(scope: &Scope) -> Result<(), ApiError> {
    let Some((cluster, namespace)) = scope.as_str().rsplit_once("/namespaces/") else { return Ok(()) };
    if cluster.parse::<ClusterId>().is_ok_and(|cluster| Scope::namespace(&cluster, namespace) != *scope) {
        let message = format!("'{namespace}' can be no namespace: 1 to 63 letters, digits and '-'.");
        return Err(ApiError::bad_request("InvalidScope", message));
    }
    Ok(())
}

/// The GUID of the definition in an assignment's properties.
fn definition_of(properties: &Map<String, Value>) -> Option<String> {
    role_definition::guid_of(properties.get("roleDefinitionId")?.as_str()?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_text_is_an_instant_or_none(text in "\\PC{0,40}|[0-9+-]{0,12}T[0-9:.]{0,16}(Z|[+-][0-9:]{0,6})") {
            prop_assert_eq!(instant(&text).is_ok(), parse(&text).is_some());
        }

        #[test]
        fn what_is_written_as_an_instant_is_read_as_that(seconds in -62_135_596_800_i64..253_402_300_799) {
            let text = instants::instant(seconds * 1000);
            prop_assert_eq!(parse(&text), Some(seconds), "{}", text);
        }
    }
}
