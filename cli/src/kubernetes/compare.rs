//! What a new version needs that an upgrade may not give: roles, bindings, definitions, and objects that are not there.
//! The upgrader changes the agents' own objects by name; what else is to be made, an administrator makes.

use serde_json::Value;

use super::Place;

/// Kinds that an upgrade changes. All others are compared.
const CHANGED: [&str; 5] = ["ConfigMap", "Service", "NetworkPolicy", "PodDisruptionBudget", "Deployment"];

/// Whether an upgrade changes objects of this kind.
pub fn is_changed(object: &Value) -> bool {
    CHANGED.iter().any(|kind| object["kind"] == *kind)
}

/// Why an upgrade may not bring this object, if so; `there` is null where there is none.
pub fn lacking(object: &Value, there: &Value) -> Option<String> {
    let place = Place::of_manifest(object).map(|place| place.to_string()).unwrap_or_default();
    if there.is_null() {
        return Some(format!("{place} is new"));
    }
    let fits = match object["kind"].as_str().unwrap_or_default() {
        kind if CHANGED.contains(&kind) => true,
        // Their names are all that is needed of them.
        "ServiceAccount" => true,
        "Role" | "ClusterRole" => list(&object["rules"]).iter().all(|rule| is_granted(rule, list(&there["rules"]))),
        "RoleBinding" | "ClusterRoleBinding" => {
            object["roleRef"]["name"] == there["roleRef"]["name"]
                && object["roleRef"]["kind"] == there["roleRef"]["kind"]
                && list(&object["subjects"])
                    .iter()
                    .all(|subject| list(&there["subjects"]).iter().any(|one| is_within(subject, one)))
        }
        _ => is_within(&object["spec"], &there["spec"]),
    };
    (!fits).then(|| format!("{place} is to allow or to hold more"))
}

/// Whether one rule that is there allows all that `rule` does.
fn is_granted(rule: &Value, there: &[Value]) -> bool {
    let part = |name: &str, one: &Value| {
        let granted = list(&one[name]);
        let has = |word: &Value| granted.contains(word) || granted.iter().any(|any| any == "*");
        list(&rule[name]).iter().all(has)
    };
    there.iter().any(|one| {
        // Without names a rule is about all of them.
        let names = list(&one["resourceNames"]);
        let names = names.is_empty()
            || !list(&rule["resourceNames"]).is_empty()
                && list(&rule["resourceNames"]).iter().all(|name| names.contains(name));
        names && ["apiGroups", "resources", "verbs", "nonResourceURLs"].iter().all(|name| part(name, one))
    })
}

/// Whether all that is said here is said there; there may be more, such as what the apiserver fills in.
fn is_within(here: &Value, there: &Value) -> bool {
    match (here, there) {
        (Value::Object(here), Value::Object(there)) => {
            here.iter().all(|(key, value)| is_within(value, there.get(key).unwrap_or(&Value::Null)))
        }
        (Value::Array(here), Value::Array(there)) => {
            here.len() == there.len() && here.iter().zip(there).all(|(here, there)| is_within(here, there))
        }
        // An empty map or list, and false, may be left out.
        (Value::Object(here), Value::Null) => here.is_empty(),
        (Value::Array(here), Value::Null) => here.is_empty(),
        (Value::Bool(false), Value::Null) => true,
        (here, there) => here == there,
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// An object as it is applied again: without what the apiserver and controllers write.
pub fn to_apply_again(object: &Value) -> Value {
    let mut kept = object.clone();
    if let Some(whole) = kept.as_object_mut() {
        whole.remove("status");
    }
    if let Some(meta) = kept["metadata"].as_object_mut() {
        for name in ["managedFields", "resourceVersion", "uid", "generation", "creationTimestamp", "selfLink"] {
            meta.remove(name);
        }
        if let Some(annotations) = meta.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.retain(|name, _| {
                name != "deployment.kubernetes.io/revision"
                    && name != "kubectl.kubernetes.io/last-applied-configuration"
            });
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::manifests::{self, Values};

    /// What is rendered lacks nothing where it is; with one rule more it does, and says where.
    #[test]
    fn u1_rights_that_a_version_needs_are_known_before_anything_is_changed() {
        let mut values = Values::default();
        values.azure_rbac.enabled = true;
        values.extensions.enabled = true;
        values.upgrades.enabled = true;
        let objects = manifests::objects(&values, "towline");
        for object in &objects {
            assert_eq!(lacking(object, object), None);
            assert!(lacking(object, &Value::Null).unwrap().ends_with("is new"));
        }
        let role = objects.iter().find(|one| one["kind"] == "Role" && one["metadata"]["name"] == "controller-manager");
        let role = role.unwrap();
        let mut more = role.clone();
        more["rules"]
            .as_array_mut()
            .unwrap()
            .push(json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["list"]}));
        assert!(lacking(&more, role).unwrap().contains("controller-manager"));
        assert_eq!(lacking(role, &more), None, "fewer rights are enough");
        let crd = objects.iter().find(|one| one["kind"] == "CustomResourceDefinition").unwrap();
        let mut newer = crd.clone();
        newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["x"] = json!({"type": "string"});
        assert!(lacking(&newer, crd).is_some());
        let mut there = crd.clone();
        there["spec"]["conversion"] = json!({"strategy": "None"});
        assert_eq!(lacking(crd, &there), None, "what the apiserver fills in is no change");
    }

    #[test]
    fn u1_rule_without_names_is_more_than_one_with_names() {
        let named = json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["a"], "verbs": ["get"]});
        let any = json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]});
        let all = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]});
        let granted = |rule: &Value, there: &Value| is_granted(rule, std::slice::from_ref(there));
        assert!(granted(&named, &any) && !granted(&any, &named) && granted(&named, &all) && !granted(&all, &any));
    }

    #[test]
    fn u1_object_is_kept_without_what_others_write() {
        let object = json!({"kind": "Deployment", "status": {"replicas": 1}, "spec": {"replicas": 2}, "metadata": {
            "name": "a", "uid": "u", "resourceVersion": "1", "generation": 3, "managedFields": [],
            "annotations": {"deployment.kubernetes.io/revision": "3", "mine": "x"},
        }});
        let kept = json!({"kind": "Deployment", "spec": {"replicas": 2},
            "metadata": {"name": "a", "annotations": {"mine": "x"}}});
        assert_eq!(to_apply_again(&object), kept);
    }
}
