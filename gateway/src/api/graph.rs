//! The few questions of Microsoft Graph that `az role assignment` asks: who is behind an object id, and the other way
//! round. Answered of the built-in issuer's users and service principals. Of anybody else nothing is known here, which
//! `az` takes for "then it is the object id itself".

use std::collections::HashSet;

use auth::rbac::Scope;
use http::{Method, Response, StatusCode, header};
use serde_json::{Map, Value, json};

use super::{Call, json};
use crate::{answers::Body, api_error::ApiError};

/// Object ids in one question at most, as in Graph.
const IDS: usize = 1000;

/// What may be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// `POST directoryObjects/getByIds`: objects by their ids.
    ByIds,
    /// `GET servicePrincipals?$filter=...`: service principals by the filter.
    ServicePrincipals,
    /// `GET users?$filter=...`: users by the filter.
    Users,
    /// `GET me`: the caller, of whatever issuer, by the id that role assignments know them by.
    Me,
}

impl Question {
    /// Of a path behind `/v1.0/`, in lower case.
    pub fn of(path: &[&str]) -> Option<Self> {
        match path {
            ["directoryobjects", "getbyids"] => Some(Self::ByIds),
            ["serviceprincipals"] => Some(Self::ServicePrincipals),
            ["users"] => Some(Self::Users),
            ["me"] => Some(Self::Me),
            _ => None,
        }
    }
}

/// Goes on only if the question may be asked: names are for those who have some right here.
pub fn authorize(call: &Call<'_>, question: Question) -> Result<(), ApiError> {
    let method = if question == Question::ByIds { Method::POST } else { Method::GET };
    if call.method != method {
        return Err(ApiError::method_not_allowed("it is another one").with(header::ALLOW, method.as_str()));
    }
    let action = "Microsoft.Authorization/roleAssignments/read";
    let may = question == Question::Me || call.may_below(action, &Scope::root());
    may.then_some(()).ok_or_else(|| call.forbidden(action, "/"))
}

/// Answers a question; `body` is that of [`Question::ByIds`].
pub fn answer(call: &Call<'_>, question: Question, body: &Map<String, Value>) -> Result<Response<Body>, ApiError> {
    authorize(call, question)?;
    if question == Question::Me {
        let identity = call.identity()?;
        let (id, name) = (&identity.principal, &identity.username);
        let body = json!({"id": id, "displayName": name, "userPrincipalName": name});
        return Ok(json(StatusCode::OK, &body));
    }
    let wanted = match question {
        Question::ByIds => ids(body)?,
        Question::ServicePrincipals | Question::Users | Question::Me => {
            quoted(call.parameter("$filter")?.unwrap_or_default())
        }
    };
    // Looked up: all that are wanted times all that are known would be millions of comparisons.
    let wanted: HashSet<String> = wanted.into_iter().map(|text| text.to_ascii_lowercase()).collect();
    let is_wanted = |names: &[&str]| names.iter().any(|name| wanted.contains(&name.to_ascii_lowercase()));
    let mut found = Vec::new();
    if let Some(issuer) = &call.issuer {
        let (users, principals) = issuer.known();
        if question != Question::Users {
            let named = principals.iter().filter(|one| is_wanted(&[&one.object_id, &one.client_id, &one.name]));
            found.extend(named.map(|one| {
                json!({"@odata.type": "#microsoft.graph.servicePrincipal", "id": one.object_id, "appId": one.client_id,
                    "displayName": one.name, "servicePrincipalNames": [one.client_id]})
            }));
        }
        if question != Question::ServicePrincipals {
            let named = users.iter().filter(|one| is_wanted(&[&one.id, &one.name]));
            found.extend(named.map(|one| {
                json!({"@odata.type": "#microsoft.graph.user", "id": one.id, "displayName": one.name,
                    "userPrincipalName": one.name})
            }));
        }
    }
    if question == Question::ByIds && found.is_empty() {
        let message = "None of these object ids is a user or service principal of this gateway's issuer.";
        return Err(ApiError::of(StatusCode::NOT_FOUND, "Request_ResourceNotFound", message));
    }
    Ok(json(StatusCode::OK, &json!({"value": found})))
}

fn ids(body: &Map<String, Value>) -> Result<Vec<String>, ApiError> {
    let list = body.get("ids").and_then(Value::as_array).filter(|ids| ids.len() <= IDS);
    let ids = list.and_then(|ids| ids.iter().map(|id| id.as_str().map(str::to_owned)).collect::<Option<Vec<_>>>());
    ids.ok_or_else(|| {
        let message = format!("The property 'ids' must be a list of at most {IDS} texts.");
        ApiError::bad_request("Request_BadRequest", message).at("ids")
    })
}

/// The values in a filter: every one of them is looked for in every name.
fn quoted(filter: &str) -> Vec<String> {
    filter.split('\'').skip(1).step_by(2).map(str::to_owned).collect()
}
