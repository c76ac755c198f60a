//! Role definitions: the built-in ones, and custom ones (docs/features.md Z3, Z4).

use std::sync::Arc;

use auth::rbac::{
    Action, Plane, Role, Scope,
    role::{BuiltInRole, RawPermission, built_in},
};
use futures_util::future::BoxFuture;
use http::StatusCode;
use serde_json::{Map, Value, json};
use types::api::{ErrorDetail, ResourceId, id::fold};

use super::{
    Kind, Place, Writing,
    authorization::{VERSIONS, guid_name, quota, stamps},
    schema::{Property, Type},
};
use crate::{
    api_error::ApiError,
    aside::aside,
    control::Control,
    directory::{Decides, Definition, Directory, Held},
    guid::is_guid,
    identity::Caller,
    resources::filter,
    store::resources::Stored,
    stored::{last_name, properties, properties_mut},
};

/// The kind of role definitions.
pub struct RoleDefinitions;

/// The full type.
pub const NAME: &str = "Microsoft.Authorization/roleDefinitions";

/// Patterns of a role at most, in all permissions together,
const PATTERNS: usize = 1000;
/// of these such with a `*`, each of which a decision compares,
const WILDCARDS: usize = 200;
/// `*` in one of them,
const STARS: usize = 8;
/// and bytes of all patterns: agents are told them.
const PATTERN_BYTES: usize = 64 * 1024;
/// Scopes where a role may be assigned, at most,
const ASSIGNABLE: usize = 100;
/// and custom roles that may be assigned at one scope.
const DEFINITIONS: usize = 500;
const PERMISSION: &[Property] = &[
    Property::new("actions", Type::List(&Type::Text)),
    Property::new("notActions", Type::List(&Type::Text)),
    Property::new("dataActions", Type::List(&Type::Text)),
    Property::new("notDataActions", Type::List(&Type::Text)),
];
const PROPERTIES: &[Property] = &[
    Property::new("roleName", Type::Checked(name_of_role)).required(),
    Property::new("description", Type::Text),
    // Clients send back what they read; the kind of a role is not theirs to choose.
    Property { shown_empty: false, ..Property::read_only("type", Type::Text) },
    Property::new("assignableScopes", Type::List(&Type::Checked(assignable))).required(),
    Property::new("permissions", Type::List(&Type::Object(PERMISSION))).required(),
    Property::read_only("createdOn", Type::Instant),
    Property::read_only("updatedOn", Type::Instant),
    Property::read_only("createdBy", Type::Text),
    Property::read_only("updatedBy", Type::Text),
];
const SCHEMA: &[Property] = &[Property::new("properties", Type::Object(PROPERTIES)).required()];

impl Kind for RoleDefinitions {
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
        Some(Decides::Roles(|stored| {
            let body = stored.body.as_object();
            Some(Definition {
                key: stored.key.clone(),
                name: role_name(body).into(),
                role: role(stored)?,
                assignable: assignable_scopes(body),
            })
        }))
    }

    fn built_in(&self, subscription: &str) -> Vec<Stored> {
        built_in().iter().map(|role| kept(role, subscription)).collect()
    }

    fn write<'a>(
        &'a self,
        body: &'a mut Map<String, Value>,
        writing: &'a Writing<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            let name = writing.id.name().to_ascii_lowercase();
            if built_in().iter().any(|role| role.role.id() == name) {
                return Err(built_in_stays(&name));
            }
            let role = permissions(body)
                .and_then(bounded)
                .and_then(|permissions| Role::new(&name, &permissions).map_err(|error| error.to_string()))
                .map_err(|why| ApiError::bad_request("InvalidActionOrNotAction", why).at("properties.permissions"))?;
            let asked = Asked::of(body, writing, role);
            asked.in_subscriptions(writing.control)?;
            aside(move || asked.own_everywhere()).await??;
            let properties = properties_mut(body);
            properties.insert("type".to_owned(), json!("CustomRole"));
            stamps(properties, writing);
            Ok(())
        })
    }

    fn may_delete(&self, stored: &Stored, directory: &Directory) -> Result<(), ApiError> {
        let name = last_name(&stored.key);
        if built_in().iter().any(|role| role.role.id() == name) {
            return Err(built_in_stays(name));
        }
        if directory.is_assigned(name) {
            let message = "There are existing role assignments referencing the role. Delete them first.";
            return Err(ApiError::of(StatusCode::CONFLICT, "RoleDefinitionHasAssignments", message));
        }
        Ok(())
    }

    fn matches(&self, text: &str, stored: &Stored, _caller: &Caller) -> Result<bool, ApiError> {
        let property = |name: &str| Some(stored.body.get("properties")?.get(name)?.as_str()?.to_owned());
        filter::all(text, |condition| match condition {
            filter::Condition::Call("atscopeandbelow" | "atscope", _) => Some(true),
            filter::Condition::Equal("rolename", name) => {
                Some(property("roleName").is_some_and(|is| is.eq_ignore_ascii_case(name)))
            }
            filter::Condition::Equal("type", kind) => {
                Some(property("type").is_some_and(|is| is.eq_ignore_ascii_case(kind)))
            }
            _ => None,
        })
    }
}

fn built_in_stays(name: &str) -> ApiError {
    let message = format!("The role definition '{name}' is built in: it cannot be changed or deleted.");
    ApiError::of(StatusCode::FORBIDDEN, "RoleDefinitionIsBuiltIn", message)
}

/// What is asked for: looked at on a thread of its own, because it is compared with all other definitions.
struct Asked {
    directory: Arc<Directory>,
    caller: Caller,
    /// The key of the definition.
    key: String,
    role: Role,
    name: String,
    new: Vec<Scope>,
    /// Where the definition that it replaces may be assigned; `None`: there is none.
    old: Option<Vec<Scope>>,
    /// Seconds since 1970.
    now: i64,
}

impl Asked {
    fn of(body: &Map<String, Value>, writing: &Writing<'_>, role: Role) -> Self {
        Self {
            directory: writing.control.directory(),
            caller: writing.caller.clone(),
            key: writing.id.key().to_owned(),
            role,
            name: role_name(Some(body)),
            new: assignable_scopes(Some(body)),
            old: writing.old.map(|old| assignable_scopes(old.body.as_object())),
            now: writing.now_ms / 1000,
        }
    }

    fn in_subscriptions(&self, control: &Control) -> Result<(), ApiError> {
        let refuse = |message: String| {
            Err(ApiError::bad_request("InvalidAssignableScopes", message).at("properties.assignableScopes"))
        };
        if self.new.is_empty() {
            return refuse("A role definition needs at least one assignable scope.".to_owned());
        }
        if self.new.len() > ASSIGNABLE {
            return refuse(format!("A role definition has at most {ASSIGNABLE} assignable scopes."));
        }
        let foreign = |scope: &&Scope| {
            let within =
                scope.as_str().strip_prefix("/subscriptions/").map(|rest| rest.split('/').next().unwrap_or_default());
            within.is_some_and(|subscription| !control.has_subscription(subscription))
        };
        match self.new.iter().find(foreign) {
            Some(scope) => refuse(format!("The assignable scope '{scope}' is in no subscription of this gateway.")),
            None => Ok(()),
        }
    }

    /// A role reaches as far as it may be assigned: who writes one must have the right to at all of these scopes, the
    /// old ones too. And its GUID is one in the whole tenant, so that nobody redefines a role of another scope.
    fn own_everywhere(&self) -> Result<(), ApiError> {
        const WRITE: &str = "Microsoft.Authorization/roleDefinitions/write";
        let Self { directory, caller, role, new, old, .. } = self;
        let mut asker = directory.asker(caller.principals(), Plane::Control, Action::new(WRITE), self.now);
        if let Some(scope) = new.iter().chain(old.iter().flatten()).find(|scope| !asker.may(scope)) {
            return Err(ApiError::forbidden(caller.name(), caller.object_id(), WRITE, scope.as_str()));
        }
        if directory.is_defined_elsewhere(role.id(), &self.key) {
            let message = format!("A role definition '{}' exists at another scope; choose another GUID.", role.id());
            return Err(ApiError::of(StatusCode::CONFLICT, "RoleDefinitionWithSameIdExists", message));
        }
        let built_in =
            built_in().iter().find(|known| known.name.to_lowercase() == self.name).map(|known| known.role.id());
        if let Some(other) = built_in.or_else(|| directory.same_name(&self.name, new, role.id())) {
            let message = format!("A role with this name exists, the role definition '{other}'; choose another name.");
            let refused = ApiError::of(StatusCode::CONFLICT, "RoleDefinitionWithSameNameExists", message);
            return Err(refused.at("properties.roleName"));
        }
        self.within_quota()
    }

    /// Of definitions at each scope, and of what all that are assigned at one take ([`quota`]).
    fn within_quota(&self) -> Result<(), ApiError> {
        let is_known = |scope: &&Scope| self.old.as_ref().is_some_and(|old| old.contains(scope));
        let full = |scope: &&Scope| self.directory.roles_at(scope) >= DEFINITIONS;
        if let Some(scope) = self.new.iter().filter(|scope| !is_known(scope)).find(full) {
            let message = format!(
                "{DEFINITIONS} custom roles may be assigned at '{scope}', the quota of a scope. Delete one, or take the scope out of its assignableScopes."
            );
            return Err(ApiError::of(StatusCode::CONFLICT, "RoleDefinitionLimitExceeded", message));
        }
        // Where it takes no more than before, nothing is in the way: roles can always be made smaller.
        let grown = |(scope, held): &(Scope, Held)| {
            let bytes = quota(scope).1;
            held.bytes > bytes && held.bytes > self.directory.held_at(scope, None).bytes
        };
        if let Some((scope, held)) = self.directory.held_with(&self.role).into_iter().find(grown) {
            let message = format!(
                "The role is assigned at '{scope}', where role assignments and the custom roles that they name would take {} bytes of what a cluster's agent is told; the quota of a scope is {}. Make it smaller.",
                held.bytes,
                quota(&scope).1
            );
            return Err(ApiError::of(StatusCode::CONFLICT, "RoleDefinitionLimitExceeded", message));
        }
        Ok(())
    }
}

/// What people call it, in lower case: they name it in any.
pub fn role_name(body: Option<&Map<String, Value>>) -> String {
    let name = body.and_then(properties).and_then(|properties| properties.get("roleName")?.as_str());
    name.unwrap_or_default().to_lowercase()
}

/// Where a definition says that it may be assigned.
pub fn assignable_scopes(body: Option<&Map<String, Value>>) -> Vec<Scope> {
    let list = body.and_then(properties).and_then(|properties| properties.get("assignableScopes")?.as_array());
    list.into_iter().flatten().filter_map(|scope| scope.as_str()?.parse().ok()).collect()
}

fn name_of_role(text: &str) -> Result<(), String> {
    const LONGEST: usize = 512;
    let fine = !text.trim().is_empty() && text.chars().count() <= LONGEST && !text.chars().any(char::is_control);
    if fine { Ok(()) } else { Err(format!("a name of 1 to {LONGEST} characters, none of them a control character")) }
}

fn assignable(text: &str) -> Result<(), String> {
    text.parse::<Scope>().map(drop).map_err(|error| error.to_string())
}

/// The permissions of a checked body.
fn permissions(body: &Map<String, Value>) -> Result<Vec<RawPermission>, String> {
    let list = properties(body).and_then(|properties| properties.get("permissions")).cloned().unwrap_or_default();
    serde_json::from_value(list).map_err(|error| error.to_string())
}

/// A decision looks at every pattern of a role, and agents are told all of them. Definitions that were kept before
/// these bounds stay as they are: a decision has a budget besides ([`auth::rbac::budget`]).
fn bounded(permissions: Vec<RawPermission>) -> Result<Vec<RawPermission>, String> {
    let patterns = |one: &RawPermission| {
        one.actions.len() + one.not_actions.len() + one.data_actions.len() + one.not_data_actions.len()
    };
    let count: usize = permissions.iter().map(patterns).sum();
    if count > PATTERNS {
        return Err(format!("A role has at most {PATTERNS} actions in all its permissions; these are {count}."));
    }
    let lists = |one: &RawPermission| {
        let lists = [&one.actions, &one.not_actions, &one.data_actions, &one.not_data_actions];
        lists.into_iter().flatten().cloned().collect::<Vec<_>>()
    };
    let texts: Vec<String> = permissions.iter().flat_map(lists).collect();
    let bytes: usize = texts.iter().map(String::len).sum();
    if bytes > PATTERN_BYTES {
        return Err(format!("A role has at most {PATTERN_BYTES} characters in all its actions; these are {bytes}."));
    }
    let stars = |text: &String| text.bytes().filter(|byte| *byte == b'*').count();
    let wild = texts.iter().filter(|text| stars(text) > 0).count();
    if wild > WILDCARDS {
        return Err(format!("A role has at most {WILDCARDS} actions with a *; these are {wild}."));
    }
    if let Some(pattern) = texts.iter().find(|text| stars(text) > STARS) {
        let shown: String = pattern.chars().take(80).collect();
        return Err(format!("An action has at most {STARS} times a *; '{shown}' has more."));
    }
    // No operation has an empty part: of a misspelt exception nobody would notice that it excepts nothing.
    match texts.iter().find(|pattern| pattern.split('/').any(str::is_empty)) {
        Some(pattern) => Err(format!("'{pattern}' is not an operation: a part of it between / and / is empty.")),
        None => Ok(permissions),
    }
}

/// The role of a kept custom definition.
pub fn role(stored: &Stored) -> Option<Arc<Role>> {
    let permissions = permissions(stored.body.as_object()?).ok()?;
    Role::new(last_name(&stored.key), &permissions).ok().map(Arc::new)
}

/// A built-in definition as if it were kept.
fn kept(role: &BuiltInRole, subscription: &str) -> Stored {
    let id = format!("{subscription}/providers/{NAME}/{}", role.role.id());
    let body = json!({"properties": {
        "roleName": role.name,
        "type": "BuiltInRole",
        "description": "",
        "assignableScopes": ["/"],
        "permissions": [role.permission],
    }});
    Stored {
        key: id.to_ascii_lowercase(),
        kind: NAME.to_ascii_lowercase(),
        parent: subscription.to_ascii_lowercase(),
        id,
        revision: 0,
        body,
        protected: None,
    }
}

/// The GUID in the id of a role definition, which clients write with or without a subscription in front.
pub fn guid_of(id: &str) -> Option<String> {
    let (before, guid) = id.rsplit_once('/')?;
    let suffix = format!("/providers/{NAME}").to_ascii_lowercase();
    let scope = fold(before).strip_suffix(&suffix)?.to_owned();
    let fine = is_guid(guid) && (scope.is_empty() || ResourceId::parse(&scope).is_ok());
    fine.then(|| guid.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUID: &str = "8E3AF657-a8ff-443c-a75c-2fe8c4bcb635";

    #[test]
    fn z3_ids_of_definitions_are_understood_with_and_without_a_scope() {
        for scope in ["", "/subscriptions/s", "/subscriptions/s/resourceGroups/g"] {
            let id = format!("{scope}/providers/microsoft.authorization/ROLEdefinitions/{GUID}");
            assert_eq!(guid_of(&id).as_deref(), Some(GUID.to_ascii_lowercase().as_str()), "{id}");
        }
        for bad in [
            GUID.to_owned(),
            format!("/x/{GUID}"),
            format!("x/providers/{NAME}/{GUID}"),
            format!("/providers/{NAME}/x"),
        ] {
            assert_eq!(guid_of(&bad), None, "{bad}");
        }
    }

    #[test]
    fn built_in_definitions_are_shown_like_others() {
        let all = RoleDefinitions.built_in("/subscriptions/S");
        assert!(all.len() >= 6);
        let owner = all.iter().find(|role| role.body["properties"]["roleName"] == "Owner").unwrap();
        assert_eq!(owner.body["properties"]["permissions"][0]["actions"], json!(["*"]));
        assert!(RoleDefinitions.may_delete(owner, &Directory::default()).is_err());
    }
}
