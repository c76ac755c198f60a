//! What configurations left in the cluster that the gateway does not know any more: the cluster was connected again, or moved
//! to another gateway, or the gateway's database was restored. That something is absent there does not say that somebody
//! deleted it. Flux goes on with all of it. A configuration of the same name takes over those of Flux's objects that have the
//! names of its own; the others stay, and go without what they had applied when that configuration is deleted.

use kube::{ResourceExt as _, api::DynamicObject};

use super::{render::Rendered, views::FluxKind};

/// What is made of configurations.
pub const KINDS: [FluxKind; 4] =
    [FluxKind::Kustomization, FluxKind::GitRepository, FluxKind::Bucket, FluxKind::OciRepository];
/// The reason of the event.
pub const LINE: &str = "LeftBehind";
/// Names in a message.
const SHOWN: usize = 5;
/// Names that are kept.
const KEPT: usize = 1000;

/// An object of Flux, as it is kept in the record.
pub fn name(kind: FluxKind, namespace: &str, name: &str) -> String {
    format!("{}/{namespace}/{name}", kind.names().2)
}

/// The same of one that the apiserver has.
pub fn name_of(kind: FluxKind, object: &DynamicObject) -> String {
    name(kind, object.metadata.namespace.as_deref().unwrap_or_default(), &object.name_any())
}

/// Whether a configuration names it.
pub fn is_wanted(name: &str, wanted: &Rendered) -> bool {
    let mut all = std::iter::once(&wanted.source).chain(wanted.kustomizations.values());
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    all.any(|one| format!("{}/{}/{}", text(&one["kind"]), wanted.namespace, text(&one["metadata"]["name"])) == name)
}

/// Those that are there and not among what is wanted.
pub fn besides(there: &[(FluxKind, DynamicObject)], wanted: &Rendered) -> Vec<String> {
    let there = there.iter().filter(|(_, object)| object.metadata.deletion_timestamp.is_none());
    let names = there.map(|(kind, object)| name_of(*kind, object));
    names.filter(|name| !is_wanted(name, wanted)).take(KEPT).collect()
}

/// What a configuration names from now on is its own.
pub fn keep(names: &mut Vec<String>, wanted: &Rendered) {
    names.retain(|name| !is_wanted(name, wanted));
}

/// What is said of them; nothing where there are none.
pub fn told(names: &[String]) -> Option<String> {
    let first: Vec<_> = names.iter().take(SHOWN).map(String::as_str).collect();
    let more = if names.len() > first.len() { ", ..." } else { "" };
    (!names.is_empty()).then(|| {
        format!(
            "{} objects of Flux that a former configuration of this name made are none of this one ({}{more}): they stay, and Flux goes on with them; delete them with kubectl, or add their kustomizations to this configuration",
            names.len(),
            first.join(", ")
        )
    })
}
