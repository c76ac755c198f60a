//! Subscriptions. The configuration gives them, clients read them: they are the top of each resource's id and a scope
//! that rights are given at. Nobody makes one by the API.

use futures_util::future::BoxFuture;
use serde_json::{Map, Value, json};
use types::api::{ErrorDetail, id::SUBSCRIPTIONS};

use super::{
    Kind, Place, Writing,
    schema::{Property, Type},
};
use crate::{
    api_error::ApiError,
    config::api::{Api, Subscription},
    store::resources::Stored,
};

/// The kind of subscriptions.
pub struct Subscriptions;

const SCHEMA: &[Property] = &[
    Property::read_only("subscriptionId", Type::Text),
    Property::read_only("tenantId", Type::Text),
    Property::read_only("displayName", Type::Text),
    Property::read_only("state", Type::Text),
    Property::read_only("authorizationSource", Type::Text),
];

impl Kind for Subscriptions {
    fn name(&self) -> &'static str {
        SUBSCRIPTIONS
    }

    fn api_versions(&self) -> &'static [&'static str] {
        &[
            "2016-06-01",
            "2018-06-01",
            "2019-06-01",
            "2019-11-01",
            "2020-01-01",
            "2021-01-01",
            "2021-04-01",
            "2022-12-01",
        ]
    }

    fn place(&self) -> Place {
        Place::Top
    }

    fn schema(&self) -> &'static [Property] {
        SCHEMA
    }

    fn is_writable(&self) -> bool {
        false
    }

    /// What is in one that is gone from the configuration stays, out of reach.
    fn configured(&self, settings: &Api) -> Vec<Stored> {
        let stored = |subscription: &Subscription| {
            let id = format!("/subscriptions/{}", subscription.id);
            let body = json!({
                "subscriptionId": subscription.id,
                "tenantId": settings.tenant,
                "displayName": subscription.name,
                "state": "Enabled",
                "authorizationSource": "RoleBased",
            });
            Stored {
                key: id.to_ascii_lowercase(),
                kind: SUBSCRIPTIONS.to_ascii_lowercase(),
                parent: String::new(),
                id,
                revision: 0,
                body,
                protected: None,
            }
        };
        settings.subscriptions.iter().map(stored).collect()
    }

    fn check_name(&self, _name: &str) -> Result<(), ErrorDetail> {
        Ok(())
    }

    fn write<'a>(&'a self, _: &'a mut Map<String, Value>, _: &'a Writing<'a>) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async { Err(ApiError::method_not_allowed("subscriptions come from the gateway's configuration")) })
    }
}
