//! Which providers a subscription uses. A gateway has no providers to choose from, so that each is registered
//! until somebody unregisters it: what is then created in the subscription is refused in the way that makes ARM's SDKs
//! register the provider and try again. Of a creation and an unregistration at once, one is refused: each depends within
//! its transaction on what the other writes.

use http::StatusCode;
use serde_json::json;
use types::api::ResourceId;

use crate::{
    api_error::ApiError,
    control::Control,
    resources::{KINDS, Kind, Place, Writing},
    store::{
        StoreError,
        batch::{Batch, Expect},
        resources::Stored,
    },
};

/// What is kept: that a provider is not registered.
const KIND: &str = "microsoft.resources/unregistered";

/// The namespace of a kind.
pub fn namespace_of(kind: &dyn Kind) -> &'static str {
    kind.name().split('/').next().unwrap_or_default()
}

fn kinds_of(namespace: &str) -> impl Iterator<Item = &'static dyn Kind> {
    let tracked = KINDS.iter().copied().filter(|kind| matches!(kind.place(), Place::ResourceGroup | Place::Cluster));
    tracked.filter(move |kind| namespace_of(*kind).eq_ignore_ascii_case(namespace))
}

/// Whether a provider is one that is registered and unregistered: of resources in resource groups. All others always
/// work.
pub fn is_required(namespace: &str) -> bool {
    kinds_of(namespace).next().is_some()
}

fn key(subscription: &ResourceId, namespace: &str) -> String {
    format!("{}/providers/{}", subscription.key(), namespace.to_ascii_lowercase())
}

/// Whether a provider is registered in a subscription.
///
/// # Errors
/// When the store cannot be read.
pub async fn is_registered(control: &Control, subscription: &ResourceId, namespace: &str) -> Result<bool, StoreError> {
    Ok(!is_required(namespace) || control.store.get(&key(subscription, namespace)).await?.is_none())
}

/// Goes on only if a new resource of a kind may be created in the subscription of what is written. The write becomes
/// conditional on that.
///
/// # Errors
/// [`refused`], or the store cannot be read.
pub async fn check(kind: &dyn Kind, writing: &Writing<'_>) -> Result<(), ApiError> {
    let Some(key) = key_of(kind, writing.id)? else { return Ok(()) };
    if writing.taken(vec![key]).await?.is_empty() { Ok(()) } else { Err(refused(kind)) }
}

/// The key of what is kept when the provider of a kind is not registered in the subscription of `id`; none for one that
/// always works.
pub fn key_of(kind: &dyn Kind, id: &ResourceId) -> Result<Option<String>, ApiError> {
    let namespace = namespace_of(kind);
    if !is_required(namespace) {
        return Ok(None);
    }
    Ok(Some(key(&ResourceId::top(id.subscription())?, namespace)))
}

/// The refusal of a resource whose provider is not registered.
pub fn refused(kind: &dyn Kind) -> ApiError {
    let namespace = namespace_of(kind);
    // SDKs read the namespace out of the quotes.
    let message = format!(
        "The subscription is not registered to use namespace '{namespace}'. Register it (az provider register --namespace {namespace}) and try again."
    );
    ApiError::of(StatusCode::CONFLICT, "MissingSubscriptionRegistration", message).at(namespace)
}

/// Registers or unregisters a provider; doing either again changes nothing.
///
/// # Errors
/// 409 where the subscription holds resources of a provider that is to be unregistered; the store cannot be read or
/// written.
pub async fn set(
    control: &Control,
    subscription: &ResourceId,
    namespace: &str,
    registered: bool,
) -> Result<(), ApiError> {
    if is_registered(control, subscription, namespace).await? == registered || !is_required(namespace) {
        return Ok(());
    }
    let key = key(subscription, namespace);
    let mut batch = Batch::default();
    if registered {
        batch.deletes.push((key, Expect::Any));
    } else {
        let stored = Stored {
            id: format!("{}/providers/{namespace}", subscription.as_str()),
            key,
            kind: KIND.to_owned(),
            parent: subscription.key().to_owned(),
            revision: 0,
            body: json!({}),
            protected: None,
        };
        batch.puts.push((stored, Expect::Any));
        let without = kinds_of(namespace).map(|kind| (kind.name().to_ascii_lowercase(), subscription.key().to_owned()));
        batch.without.extend(without);
        holds_none(control, subscription, namespace).await?;
    }
    if control.write(&batch).await?.is_err() {
        // Somebody has created one in between.
        holds_none(control, subscription, namespace).await?;
        return Err(ApiError::raced());
    }
    Ok(())
}

/// Goes on only if a subscription has no resources of a provider.
async fn holds_none(control: &Control, subscription: &ResourceId, namespace: &str) -> Result<(), ApiError> {
    for kind in kinds_of(namespace) {
        let held = control.store.count(&kind.name().to_ascii_lowercase(), subscription.key()).await?;
        if held > 0 {
            let message = format!("The subscription holds {held} resources of '{}'; delete them first.", kind.name());
            return Err(ApiError::of(StatusCode::CONFLICT, "ResourcesExist", message).at(namespace));
        }
    }
    Ok(())
}
