//! What is the same for everybody: where everything is, providers, locations.

use std::sync::LazyLock;

use aws_lc_rs::digest;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use types::api::ResourceId;

use super::{Call, extension_types, json, open_api, read, route::Route};
use crate::{
    answers::{self, Body},
    api_error::ApiError,
    config::api::Api,
    control::Control,
    resources::{KINDS, Kind, registrations},
};

/// Where resources are said to be; any other name is taken as well.
const LOCATIONS: &[&str] = &["global", "local", "eastus", "westeurope"];

/// Types that are answered and whose resources are no kept ones, with their api-versions.
const OTHERS: &[(&str, &[&str])] = &[(extension_types::NAME, extension_types::API_VERSIONS)];

/// What needs no sign-in.
pub fn open(control: &Control, route: &Route, headers: &HeaderMap) -> Option<Response<Body>> {
    match route {
        Route::Metadata => Some(json(StatusCode::OK, &metadata(&control.settings))),
        Route::OpenApi => Some(document(headers)),
        _ => None,
    }
}

/// The OpenAPI document, which is made once; 304 to who has it. Making it takes milliseconds, and anybody may ask.
fn document(headers: &HeaderMap) -> Response<Body> {
    static DOCUMENT: LazyLock<(Bytes, String)> = LazyLock::new(|| {
        let text = Bytes::from(open_api::document().to_string());
        let sum = digest::digest(&digest::SHA256, &text);
        (text, format!("\"{}\"", types::ids::hex(&sum.as_ref()[..16])))
    });
    let (text, tag) = &*DOCUMENT;
    let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let mut known = known.flat_map(|value| value.split(',')).map(|one| one.trim().trim_start_matches("W/"));
    let mut response = if known.any(|one| one == "*" || one == tag) {
        let mut response = super::empty(StatusCode::NOT_MODIFIED);
        response.headers_mut().remove(header::CACHE_CONTROL);
        response
    } else {
        answers::written(text.clone()).map(Body::Full)
    };
    // Asked for again each time, and not sent again.
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::try_from(tag.as_str()) {
        response.headers_mut().insert(header::ETAG, tag);
    }
    response
}

/// What `az cloud register` reads.
fn metadata(settings: &Api) -> Value {
    let url = &settings.url;
    let host = url.trim_start_matches("https://");
    json!({
        "name": "towline",
        "resourceManager": url,
        "portal": url,
        "graph": url,
        "graphAudience": url,
        "gallery": url,
        "batch": url,
        "sqlManagement": url,
        "media": url,
        "activeDirectoryDataLake": url,
        "microsoftGraphResourceId": url,
        "authentication": {
            "loginEndpoint": url,
            "audiences": [url],
            "tenant": settings.tenant,
            "identityProvider": "AAD",
        },
        "suffixes": {"keyVaultDns": host, "storage": host, "acrLoginServer": host},
    })
}

/// What is read by who is signed in.
pub async fn serve(call: &Call<'_>, route: &Route) -> Result<Response<Body>, ApiError> {
    call.any_version()?;
    let value = match route {
        Route::Tenants => {
            let tenant = &call.control.settings.tenant;
            json!({"value": [{"id": format!("/tenants/{tenant}"), "tenantId": tenant, "displayName": "Towline"}]})
        }
        Route::Locations(subscription) => {
            subscription_read(call, subscription)?;
            let location = |name: &&str| json!({"id": format!("/subscriptions/{subscription}/locations/{name}"), "name": name, "displayName": name});
            json!({"value": LOCATIONS.iter().map(location).collect::<Vec<_>>()})
        }
        Route::Providers { subscription, namespace } => {
            if let Some(subscription) = subscription {
                subscription_read(call, subscription)?;
            }
            let scope = subscription.as_ref().map(|id| ResourceId::top(id)).transpose()?;
            match namespace {
                Some(namespace) => provider(call, scope.as_ref(), namespace).await?,
                None => {
                    let mut value = Vec::new();
                    for namespace in namespaces() {
                        value.push(provider(call, scope.as_ref(), namespace).await?);
                    }
                    json!({"value": value})
                }
            }
        }
        Route::Operations(namespace) => {
            json!({"value": actions(known(namespace)?)})
        }
        _ => return Err(ApiError::not_found_at(call.path)),
    };
    Ok(json(StatusCode::OK, &value))
}

/// Registers a provider in a subscription, or unregisters it.
pub async fn register(
    call: &Call<'_>,
    subscription: &str,
    namespace: &str,
    registered: bool,
) -> Result<Response<Body>, ApiError> {
    call.any_version()?;
    let id = ResourceId::top(subscription)?;
    let word = if registered { "register" } else { "unregister" };
    // What is known here is no secret, and a caller's own text is compared with no pattern of a role.
    let known = known(namespace)?;
    call.authorize(&format!("{known}/{word}/action"), &id)?;
    read::in_subscription(call, &id)?;
    registrations::set(call.control, &id, known, registered).await?;
    Ok(json(StatusCode::OK, &provider(call, Some(&id), known).await?))
}

fn subscription_read(call: &Call<'_>, subscription: &str) -> Result<(), ApiError> {
    let id = ResourceId::top(subscription)?;
    read::subscription(call, &id)?;
    read::in_subscription(call, &id)
}

fn unknown(namespace: &str) -> ApiError {
    let shown: String = namespace.chars().take(90).collect();
    let message =
        format!("The resource provider '{shown}' is not known to this gateway; known are {}.", namespaces().join(", "));
    ApiError::of(StatusCode::NOT_FOUND, "InvalidResourceNamespace", message)
}

fn namespaces() -> Vec<&'static str> {
    let mut names = Vec::new();
    for name in KINDS.iter().filter_map(|kind| kind.name().split('/').next()) {
        // Wherever in the table a kind stands, its namespace is there once.
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn kinds_of(namespace: &str) -> impl Iterator<Item = (&'static str, &'static dyn Kind)> {
    KINDS.iter().filter_map(move |kind| {
        let (space, name) = kind.name().split_once('/')?;
        space.eq_ignore_ascii_case(namespace).then_some((name, *kind))
    })
}

/// A namespace as it is written.
fn known(namespace: &str) -> Result<&'static str, ApiError> {
    let found = namespaces().into_iter().find(|known| known.eq_ignore_ascii_case(namespace));
    found.ok_or_else(|| unknown(namespace))
}

async fn provider(call: &Call<'_>, subscription: Option<&ResourceId>, namespace: &str) -> Result<Value, ApiError> {
    let known = known(namespace)?;
    let registered = match subscription {
        Some(subscription) => registrations::is_registered(call.control, subscription, known).await?,
        None => true,
    };
    let scope = subscription.map(ResourceId::as_str).unwrap_or_default();
    let policy = if registrations::is_required(known) { "RegistrationRequired" } else { "RegistrationFree" };
    let described = |(name, versions): (&str, &[&str])| {
        let versions: Vec<_> = versions.iter().rev().collect();
        json!({"resourceType": name, "locations": LOCATIONS, "apiVersions": versions})
    };
    let kinds = kinds_of(known).map(|(name, kind)| (name, kind.api_versions()));
    let others = OTHERS.iter().filter_map(|(full, versions)| {
        let (space, name) = full.split_once('/')?;
        (space == known).then_some((name, *versions))
    });
    Ok(json!({
        "id": format!("{scope}/providers/{known}"),
        "namespace": known,
        "registrationState": if registered { "Registered" } else { "Unregistered" },
        "registrationPolicy": policy,
        "resourceTypes": kinds.chain(others).map(described).collect::<Vec<_>>(),
    }))
}

fn actions(namespace: &str) -> Vec<Value> {
    let mut found = Vec::new();
    if let Some((of, name)) = extension_types::NAME.split_once('/').filter(|(of, _)| of.eq_ignore_ascii_case(namespace))
    {
        found.push(json!({"name": format!("{}/read", extension_types::NAME), "isDataAction": false, "display": {
            "provider": of, "resource": name, "operation": "read", "description": format!("read {name}"),
        }}));
    }
    for (name, kind) in kinds_of(namespace) {
        let base = read::operations_of(kind);
        let verbs: &[&str] = if kind.is_writable() { &["read", "write", "delete"] } else { &["read"] };
        let mut names: Vec<String> = verbs.iter().map(|verb| format!("{base}/{verb}")).collect();
        let own = kind.actions().iter().filter(|action| kind.permission(action).is_none());
        names.extend(own.map(|action| format!("{base}/{action}/action")));
        found.extend(names.into_iter().map(|action| {
            let words = action.rsplit('/').next().unwrap_or_default().to_owned();
            json!({"name": action, "isDataAction": false, "display": {"provider": namespace, "resource": name, "operation": words, "description": format!("{words} {name}")}})
        }));
    }
    found
}
