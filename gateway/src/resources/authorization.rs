//! What role assignments and role definitions have in common.

use auth::rbac::{Scope, snapshot::DOCUMENT_BYTES};
use serde_json::{Map, Value, json};
use types::{api::ErrorDetail, ids::ClusterId};

use super::Writing;
use crate::guid::is_guid;

/// The api-versions of both kinds.
pub const VERSIONS: &[&str] = &[
    "2015-07-01",
    "2018-01-01-preview",
    "2018-07-01",
    "2020-04-01-preview",
    "2020-08-01-preview",
    "2020-10-01-preview",
    "2022-04-01",
    "2022-05-01-preview",
];

/// A name that must be a GUID.
pub fn guid_name(name: &str) -> Result<(), ErrorDetail> {
    if is_guid(name) {
        return Ok(());
    }
    let shown: String = name.chars().take(90).collect();
    let message = format!("The name '{shown}' must be a GUID, such as 34e09817-6cbe-4d01-b1a2-e0eac5743d41.");
    Err(ErrorDetail::new("InvalidResourceName", message).at("name"))
}

/// Who wrote it first and last, and when: authorization resources say so in their properties.
pub fn stamps(properties: &mut Map<String, Value>, writing: &Writing<'_>) {
    let old = writing.old.and_then(|old| old.body.get("properties")?.as_object());
    let kept = |name: &str| old.and_then(|old| old.get(name)).cloned();
    let now = json!(types::instants::instant(writing.now_ms));
    let by = json!(writing.caller.object_id());
    properties.insert("createdOn".to_owned(), kept("createdOn").unwrap_or_else(|| now.clone()));
    properties.insert("createdBy".to_owned(), kept("createdBy").unwrap_or_else(|| by.clone()));
    properties.insert("updatedOn".to_owned(), now);
    properties.insert("updatedBy".to_owned(), by);
}

/// Assignments at one scope at most; at a namespace of a cluster, which is a part of one,
pub const ASSIGNMENTS: usize = 2000;
const ASSIGNMENTS_OF_NAMESPACE: usize = 500;
/// and what they may take of the document that each cluster there is told ([`auth::rbac::snapshot`]), in bytes. What is
/// at some scopes leaves room for all others.
pub const TOLD_BYTES: usize = DOCUMENT_BYTES / 8;
const TOLD_BYTES_OF_NAMESPACE: usize = DOCUMENT_BYTES / 16;

/// Both bounds of a scope.
pub fn quota(scope: &Scope) -> (usize, usize) {
    match scope.as_str().rsplit_once("/namespaces/") {
        Some((cluster, _)) if cluster.parse::<ClusterId>().is_ok() => {
            (ASSIGNMENTS_OF_NAMESPACE, TOLD_BYTES_OF_NAMESPACE)
        }
        _ => (ASSIGNMENTS, TOLD_BYTES),
    }
}
