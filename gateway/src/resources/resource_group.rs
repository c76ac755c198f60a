//! Resource groups (docs/features.md R11). Deleting one deletes what it holds.

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};
use types::api::{
    ErrorDetail,
    id::{GROUP_CHARACTERS, RESOURCE_GROUPS, is_group_name},
};

use super::{
    Acting, Kind, Place, Writing, enrolment_token,
    schema::{Property, Type},
};
use crate::{
    api_error::ApiError, identity::Caller, resources::filter, store::resources::Stored, stored::properties_mut,
};

/// The kind of resource groups.
pub struct ResourceGroups;

const PROPERTIES: &[Property] = &[Property::read_only("provisioningState", Type::Text)];
const SCHEMA: &[Property] = &[
    Property::new("location", super::connected_cluster::LOCATION).required(),
    Property::new("tags", Type::Tags),
    Property::new("managedBy", Type::Text),
    Property::new("properties", Type::Object(PROPERTIES)),
];
const PATCH: &[Property] = &[
    Property::new("location", super::connected_cluster::LOCATION),
    Property::new("tags", Type::Tags),
    Property::new("managedBy", Type::Text),
    Property::new("properties", Type::Object(PROPERTIES)),
];

impl Kind for ResourceGroups {
    fn name(&self) -> &'static str {
        RESOURCE_GROUPS
    }

    fn api_versions(&self) -> &'static [&'static str] {
        &[
            "2018-05-01",
            "2019-05-01",
            "2019-10-01",
            "2020-06-01",
            "2020-10-01",
            "2021-01-01",
            "2021-04-01",
            "2022-09-01",
            "2023-07-01",
            "2024-03-01",
            "2024-07-01",
            "2024-11-01",
            "2025-03-01",
            "2025-04-01",
        ]
    }

    fn place(&self) -> Place {
        Place::Subscription
    }

    fn schema(&self) -> &'static [Property] {
        SCHEMA
    }

    fn patch_schema(&self) -> Option<&'static [Property]> {
        Some(PATCH)
    }

    fn check_name(&self, name: &str) -> Result<(), ErrorDetail> {
        if is_group_name(name) {
            return Ok(());
        }
        let message = format!(
            "The name '{}' must have 1 to {GROUP_CHARACTERS} characters: letters and digits of any script, '-', '_', '.', '(' and ')', the last no '.'.",
            name.chars().take(GROUP_CHARACTERS).collect::<String>(),
        );
        Err(ErrorDetail::new("InvalidResourceName", message).at("name"))
    }

    fn matches(&self, text: &str, stored: &Stored, _caller: &Caller) -> Result<bool, ApiError> {
        filter::resource(text, stored)
    }

    fn deletes_slowly(&self) -> bool {
        true
    }

    fn actions(&self) -> &'static [&'static str] {
        &[enrolment_token::CREATE, enrolment_token::LIST, enrolment_token::WITHDRAW]
    }

    fn acts_alone(&self, action: &str) -> bool {
        // There are so many in a group at most.
        action == enrolment_token::CREATE
    }

    /// A token creates a cluster: it is for those to give away who may do that.
    fn permission(&self, _action: &str) -> Option<&'static str> {
        Some(enrolment_token::PERMISSION)
    }

    fn describe_action(&self, action: &str) -> (Value, Value) {
        enrolment_token::described(action)
    }

    fn act<'a>(&'a self, acting: &'a Acting<'a>) -> BoxFuture<'a, Result<Value, ApiError>> {
        Box::pin(enrolment_token::act(acting))
    }

    fn write<'a>(
        &'a self,
        body: &'a mut Map<String, Value>,
        writing: &'a Writing<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            super::connected_cluster::same_location(body, writing)?;
            properties_mut(body).insert("provisioningState".to_owned(), json!("Succeeded"));
            Ok(())
        })
    }
}
