//! The extension that configurations of GitOps need (docs/features.md G2): Flux itself, and the agent that follows them. It
//! is created with the first configuration of a cluster, and stays while there is one.

use http::StatusCode;
use serde_json::{Value, json};
use types::api::ResourceId;

use super::{Brought, Writing, extension};
use crate::{
    api_error::ApiError,
    control::{Control, objects::OF_A_CLUSTER},
    store::{StoreError, resources::Stored},
    stored::{last_name, properties},
};

/// Its type, and what it is called where a configuration brings it.
const TYPE: &str = "microsoft.flux";
const CALLED: &str = "flux";
/// Configurations that a refusal names at most.
const NAMED: usize = 10;

/// A kind of resource that needs Flux.
#[derive(Debug, Clone, Copy)]
pub struct Needing {
    /// Its full type.
    pub kind: &'static str,
    /// Several of them, in the middle of a sentence and at its beginning.
    pub plural: (&'static str, &'static str),
}

/// Whether an extension is Flux.
fn is_flux(stored: &Stored) -> bool {
    let kind = stored.body.as_object().and_then(properties).and_then(|own| own.get("extensionType")?.as_str());
    stored.kind.eq_ignore_ascii_case(extension::NAME) && kind.is_some_and(|kind| kind.eq_ignore_ascii_case(TYPE))
}

/// All of a kind at a cluster.
async fn children(control: &Control, kind: &str, cluster: &str) -> Result<Vec<Stored>, StoreError> {
    // As many as a cluster may have, and those that earlier versions let others create at the same time.
    let most = u32::try_from(OF_A_CLUSTER * 2).unwrap_or(u32::MAX);
    control.store.all_children(&kind.to_ascii_lowercase(), cluster, most).await
}

fn conflict(code: &str, message: impl Into<String>) -> ApiError {
    ApiError::of(StatusCode::CONFLICT, code, message)
}

/// The extension that a new configuration comes with, or that stays because of it.
pub async fn brought(writing: &Writing<'_>, needing: Needing) -> Result<Option<Brought>, ApiError> {
    let cluster = writing.id.parent_key();
    // Where there is no cluster, the write says so.
    if writing.control.store.get(cluster).await?.is_none() {
        return Ok(None);
    }
    let extensions = children(writing.control, extension::NAME, cluster).await?;
    if let Some(flux) = extensions.iter().find(|stored| is_flux(stored)) {
        if flux.is_deleting() {
            let name = last_name(&flux.id);
            let message = format!("The extension '{name}' of type {TYPE} is being deleted; wait until that has ended.");
            return Err(conflict("ExtensionBeingDeleted", message));
        }
        return Ok(Some(Brought::Kept(flux.key.clone())));
    }
    let plural = needing.plural.1;
    let known = writing.control.catalogue().is_some_and(|index| index.extension_type(TYPE).is_some());
    if !known {
        let message = format!(
            "{plural} need the extension type {TYPE} in the cluster, and this gateway's catalogue of extensions has none: ask the gateway's operator to add it ([api] catalogue_dir)."
        );
        return Err(conflict("FluxExtensionNotAvailable", message));
    }
    if extensions.iter().any(|stored| last_name(&stored.key) == CALLED) {
        let message = format!(
            "{plural} need an extension of type {TYPE}, and the name '{CALLED}' is that of another one: create it under another name first (towline extension create --extension-type {TYPE})."
        );
        return Err(conflict("FluxExtensionNameTaken", message));
    }
    let id = ResourceId::parse(&format!("{}/providers/{}/{CALLED}", writing.id.parent_text(), extension::NAME))?;
    let body = json!({"properties": {"extensionType": TYPE, "scope": {"cluster": {}}}});
    let Value::Object(body) = body else { return Ok(None) };
    Ok(Some(Brought::New(id, body)))
}

/// Whether configurations need what is to be deleted; if not, none may come meanwhile.
pub async fn kept_by(
    deleted: &Stored,
    control: &Control,
    needing: Needing,
) -> Result<Option<(String, String)>, ApiError> {
    if !is_flux(deleted) {
        return Ok(None);
    }
    // A second one of the type, which the cluster does not install beside the first, serves nobody.
    let created = |stored: &Stored| stored.body["systemData"]["createdAt"].as_str().unwrap_or_default().to_owned();
    let is_first = |other: &Stored| is_flux(other) && (created(other), &other.key) < (created(deleted), &deleted.key);
    if children(control, extension::NAME, &deleted.parent).await?.iter().any(is_first) {
        return Ok(None);
    }
    let users = children(control, needing.kind, &deleted.parent).await?;
    if users.is_empty() {
        return Ok(Some((needing.kind.to_ascii_lowercase(), deleted.parent.clone())));
    }
    let mut names: Vec<&str> = users.iter().take(NAMED).map(|user| last_name(&user.id)).collect();
    let more = format!("{} more", users.len() - names.len());
    if users.len() > names.len() {
        names.push(&more);
    }
    let message = format!(
        "The extension '{}' applies the {} of this cluster; delete these first: {}.",
        last_name(&deleted.id),
        needing.plural.0,
        names.join(", ")
    );
    Err(conflict("ExtensionInUse", message))
}
