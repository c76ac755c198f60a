//! The cluster's resource: what there is of it, and how it is made or taken over (docs/features.md R1, R3, R13).

use http::{HeaderValue, Method, StatusCode, header};
use serde_json::{Value, json};
use types::api::ResourceId;

use crate::{
    api::{Api, ApiError, Call, Wait, at, versions},
    failure::{Failure, Outcome},
};

/// What there was of a resource.
pub struct Before {
    /// The resource; none if there was none.
    pub resource: Option<Value>,
}

impl Before {
    /// A text of its properties; empty for none.
    pub fn property(&self, name: &str) -> &str {
        self.resource.as_ref().and_then(|one| one["properties"][name].as_str()).unwrap_or_default()
    }

    /// Whether its certificate has ended: it takes a new key (docs/features.md C4).
    pub fn is_expired(&self) -> bool {
        self.property("connectivityStatus") == "Expired"
    }

    /// What it has at the top; none for null.
    pub fn copy(&self, name: &str) -> Option<&Value> {
        self.resource.as_ref()?.get(name).filter(|value| !value.is_null())
    }
}

/// Reads a cluster's resource.
pub async fn find(api: &Api, id: &ResourceId) -> Outcome<Before> {
    let found = api.find(&at(id, versions::CLUSTERS)).await?;
    Ok(Before { resource: found.map(|answer| answer.body) })
}

/// The group of a resource.
pub fn group_of(id: &ResourceId) -> Outcome<ResourceId> {
    Ok(ResourceId::top(id.subscription())?.group(id.resource_group().unwrap_or_default())?)
}

/// Makes the resource group; false if somebody else has made it in between, whose tags and all it keeps.
pub async fn put_group(api: &Api, group: &ResourceId, location: &str) -> Outcome<bool> {
    let (target, body) = (at(group, versions::RESOURCES), json!({"location": location}));
    let mut call = Call::new(Method::PUT, &target).json(&body);
    call.headers.push((header::IF_NONE_MATCH, HeaderValue::from_static("*")));
    match api.send(&call).await {
        Ok(answer) => Ok(answer.status == StatusCode::CREATED),
        Err(failure) if is(&failure, StatusCode::PRECONDITION_FAILED) => Ok(false),
        Err(failure) if ApiError::behind(&failure).is_none() => {
            let name = group.name();
            Err(failure
                .hint(format!("whether resource group {name} was made is not known: towline group show -g {name}")))
        }
        Err(failure) => Err(failure),
    }
}

/// Deletes a resource group that this run made, unless somebody has put something into it since.
pub async fn take_back_group(api: &Api, group: &ResourceId) -> Outcome<()> {
    let target = format!("{}&onlyIfEmpty=true", at(group, versions::RESOURCES));
    match api.delete(&target).await {
        Ok(answer) => api.follow(&answer, "deleting the resource group", Wait::default()).await,
        Err(failure) if is(&failure, StatusCode::CONFLICT) => Ok(()),
        Err(failure) => Err(failure),
    }
}

fn is(failure: &Failure, status: StatusCode) -> bool {
    ApiError::behind(failure).is_some_and(|error| error.status == status)
}

/// Deletes the resource if it has still this run's key.
pub async fn take_back(api: &Api, id: &ResourceId, public_key: &str) -> Outcome<()> {
    let there = find(api, id).await?;
    if there.resource.is_none() || there.property("agentPublicKeyCertificate") != public_key {
        return Ok(());
    }
    let answer = api.delete(&at(id, versions::CLUSTERS)).await?;
    api.follow(&answer, "deleting the resource", Wait::default()).await
}
