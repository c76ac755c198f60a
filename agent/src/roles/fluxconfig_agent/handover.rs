//! From kustomizations that leave a configuration to those that take their place, as when one is renamed. Flux deletes what a
//! kustomization had applied together with it, but for what another one has applied since. One that leaves is therefore
//! suspended and stays until those that came or changed in the same write have applied what they have. Where nothing came or
//! changed, it goes at once.
//!
//! What it waits for is an annotation on it, so that another process of this role goes on where this one ends.

use std::collections::BTreeSet;

use kube::{ResourceExt as _, api::DynamicObject};
use serde_json::{Value, json};

use super::{
    render::{KUSTOMIZE, REPLACED_BY, Rendered, labels_of},
    views::{FluxKind, Generations, View, Views},
};

/// The code of the line in a configuration's status.
pub const LINE: &str = "HandingOver";

/// Members of the specs of sources and kustomizations that say how and when something is pulled or applied, not what.
const HOW: [&str; 12] = [
    "interval",
    "retryInterval",
    "timeout",
    "suspend",
    "prune",
    "force",
    "wait",
    "dependsOn",
    "secretRef",
    "certSecretRef",
    "proxySecretRef",
    "verify",
];
/// Names in a message.
const NAMED: usize = 3;

/// Whether a spec says the same of what is pulled or applied as the one that is there.
fn has_same_content(there: &Value, wanted: &Value) -> bool {
    let all = wanted.as_object().into_iter().flatten();
    let is_gone = |key: &str| wanted[key].is_null() && !there[key].is_null();
    all.into_iter().filter(|(key, _)| !HOW.contains(&key.as_str())).all(|(key, value)| there[key] == *value)
        && !["path", "targetNamespace", "postBuild", "ref"].into_iter().any(is_gone)
}

fn name_of(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Names of the kustomizations that are wanted and have yet to apply something that they did not before: they are not there,
/// or have another content, or all get it from another source.
fn coming<'a>(there: &[(FluxKind, DynamicObject)], wanted: &'a Rendered) -> BTreeSet<&'a str> {
    let find = |one: &Value| {
        let is_it = |(kind, object): &&(FluxKind, DynamicObject)| {
            one["kind"] == kind.names().2
                && object.name_any() == name_of(one)
                && object.metadata.namespace.as_ref() == Some(&wanted.namespace)
        };
        there.iter().find(is_it).map(|(_, object)| &object.data["spec"])
    };
    let is_same = |one: &Value| find(one).is_some_and(|spec| has_same_content(spec, &one["spec"]));
    let same_source = is_same(&wanted.source);
    wanted.kustomizations.values().filter(|one| !same_source || !is_same(one)).map(name_of).collect()
}

/// Names that an annotation has.
fn named(object: &DynamicObject) -> impl Iterator<Item = &str> {
    let text = object.metadata.annotations.as_ref().and_then(|all| all.get(REPLACED_BY));
    text.map(String::as_str).unwrap_or_default().split(',').filter(|name| !name.is_empty())
}

/// A kustomization that is not wanted any more, and stays for now.
#[derive(Debug)]
pub struct Leaving<'a> {
    /// As it is there.
    pub object: &'a DynamicObject,
    /// Names of those that it waits for, in the order of names.
    pub waits_for: BTreeSet<String>,
}

impl Leaving<'_> {
    /// Whether it is as it must be while it waits.
    pub fn is_held(&self) -> bool {
        self.object.data["spec"]["suspend"] == true && named(self.object).eq(&self.waits_for)
    }

    /// How it is while it waits. Suspended, as it would otherwise apply once more what others have taken over, and it would
    /// be deleted with this one after all.
    pub fn held(&self, owner: &str) -> Value {
        let mut held = changed(self.object, owner, &[("suspend", true.into())]);
        let names: Vec<_> = self.waits_for.iter().map(String::as_str).collect();
        held["metadata"]["annotations"] = json!({ REPLACED_BY: names.join(",") });
        held
    }
}

/// Of what there is, those that leave and have something to wait for: to be asked before what is wanted is made. What one
/// without prune applied stays in any case.
pub fn leaving<'a>(there: &'a [(FluxKind, DynamicObject)], wanted: &Rendered) -> Vec<Leaving<'a>> {
    let coming = coming(there, wanted);
    let all: BTreeSet<_> = wanted.kustomizations.values().map(name_of).collect();
    let is_wanted = |object: &DynamicObject| {
        all.contains(object.name_any().as_str()) && object.metadata.namespace.as_ref() == Some(&wanted.namespace)
    };
    let leaves = |(kind, object): &&(FluxKind, DynamicObject)| {
        *kind == FluxKind::Kustomization
            && object.metadata.deletion_timestamp.is_none()
            && object.data["spec"]["prune"] == true
            && !is_wanted(object)
    };
    let leaving = there.iter().filter(leaves).map(|(_, object)| {
        let before = named(object).filter(|name| all.contains(name));
        Leaving { object, waits_for: before.chain(coming.iter().copied()).map(str::to_owned).collect() }
    });
    leaving.filter(|one| !one.waits_for.is_empty()).collect()
}

/// How a kustomization is made just before its deletion, where it is suspended or was since it was read (`was_held`): Flux
/// deletes nothing of what a suspended one had applied, so that it is resumed. It waits for itself, so that Flux applies
/// nothing between the two.
pub fn before_deletion(object: &DynamicObject, owner: &str, was_held: bool) -> Option<Value> {
    let spec = &object.data["spec"];
    if spec["prune"] != true || !(was_held || spec["suspend"] == true) {
        return None;
    }
    let waits = json!([{ "name": object.name_any() }]);
    Some(changed(object, owner, &[("suspend", false.into()), ("dependsOn", waits)]))
}

/// A kustomization with other values of some members of its spec, as it is applied.
fn changed(object: &DynamicObject, owner: &str, members: &[(&str, Value)]) -> Value {
    let mut spec = object.data["spec"].clone();
    for (key, value) in members {
        spec[*key] = value.clone();
    }
    json!({
        "apiVersion": KUSTOMIZE, "kind": "Kustomization", "spec": spec,
        "metadata": {
            "name": object.name_any(), "namespace": object.metadata.namespace, "labels": labels_of(owner),
        },
    })
}

/// Whether Flux has applied these at the revision that the source has now: what they have in common with a kustomization
/// that leaves is theirs then, and is not deleted with it. Whether it became healthy is another matter.
pub fn is_done(views: &Views, namespace: &str, wanted: &Generations, waits_for: &BTreeSet<String>) -> bool {
    let is_meant =
        |(kind, name): &&(FluxKind, String)| *kind != FluxKind::Kustomization || waits_for.contains(name.as_str());
    let views = wanted.keys().filter(is_meant).map(|(kind, name)| views.get(*kind, namespace, name));
    let Some(views) = views.collect::<Option<Vec<_>>>() else { return false };
    let revision = views.iter().find_map(|view| view.revision.as_deref());
    revision.is_some() && views.iter().all(|view| has_done(view, revision))
}

/// Whether a source has pulled what is wanted, or a kustomization has applied this revision.
fn has_done(view: &View, revision: Option<&str>) -> bool {
    let Some(ready) = view.condition("Ready") else { return false };
    let is_ready = ready.status == "True" && view.observed == view.generation;
    match view.kind {
        // Flux looks at health after it has applied everything, and counts a generation as observed once it is healthy.
        FluxKind::Kustomization if ready.reason == "HealthCheckFailed" => {
            ready.generation == view.generation && view.attempted.as_deref() == revision
        }
        FluxKind::Kustomization => is_ready && view.applied.as_deref() == revision,
        _ => is_ready,
    }
}

/// What is said of the kustomizations that leave and stay for now: names, and those that they wait for.
pub fn told(leaving: &[(&str, &str)]) -> Option<String> {
    let list = |names: BTreeSet<&str>| {
        let more = names.len().saturating_sub(NAMED);
        let mut text = names.into_iter().take(NAMED).collect::<Vec<_>>().join(", ");
        if more > 0 {
            text += &format!(" and {more} more");
        }
        text
    };
    let left: BTreeSet<_> = leaving.iter().map(|(name, _)| *name).collect();
    let waited: BTreeSet<_> =
        leaving.iter().flat_map(|(_, names)| names.split(',')).filter(|name| !name.is_empty()).collect();
    (!left.is_empty()).then(|| {
        format!(
            "{} left the configuration, and stays suspended until Flux has applied {}: what both have is not deleted then. Where that is not to be waited for, write the configuration without {} first",
            list(left),
            list(waited.clone()),
            if waited.len() == 1 { "it" } else { "them" },
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g11_another_content_is_waited_for_and_another_way_of_applying_is_not() {
        let there = json!({"path": "./a", "interval": "600s", "prune": true, "targetNamespace": "team", "x": 1});
        for (wanted, same) in [
            (json!({"path": "./a", "interval": "5s", "prune": false, "targetNamespace": "team"}), true),
            (json!({"path": "./a", "targetNamespace": "team", "dependsOn": [{"name": "b"}]}), true),
            (json!({"path": "./b", "targetNamespace": "team"}), false),
            (json!({"path": "./a"}), false),
            (json!({"path": "./a", "targetNamespace": "team", "postBuild": {"substitute": {"a": "b"}}}), false),
        ] {
            assert_eq!(has_same_content(&there, &wanted), same, "{wanted}");
        }
        assert!(!has_same_content(&json!({"url": "u", "ref": {"branch": "a"}}), &json!({"url": "u"})));
    }

    #[test]
    fn g11_what_is_waited_for_is_said_with_few_names() {
        assert_eq!(told(&[]), None);
        let said = told(&[("web-apps", "web-a,web-b"), ("web-old", "web-b,web-c,web-d,web-e")]).unwrap();
        assert!(said.starts_with("web-apps, web-old left"), "{said}");
        assert!(said.contains("web-a, web-b, web-c and 2 more"), "{said}");
    }
}
