//! Where a release goes: its namespace, and for extensions of one namespace the service account that helm acts as. What
//! is made here has a mark, by which it is known again and removed.

use k8s_openapi::api::{
    core::v1::{Namespace, Node, ServiceAccount},
    rbac::v1::RoleBinding,
};
use kube::{
    Api, Client,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions},
    core::ObjectMeta,
    discovery::{Discovery, Scope, verbs},
};
use serde_json::{Value, json};

use super::{
    NAME, agents,
    helm::Acting,
    plan::Facts,
    releases::OWNER,
    state::{Fault, Problem},
};
use crate::roles::{cluster_metadata_operator, objects::store::failed};

/// On what is made here.
const MANAGED: &str = "app.kubernetes.io/managed-by";
const MANAGER: &str = "towline-extension-manager";
/// What an extension of one namespace may do there; it holds no cluster-wide right and no quota.
const RIGHTS: &str = "admin";
/// What Kubernetes makes in every namespace.
const OF_EVERY_NAMESPACE: [(&str, &str); 2] = [("configmaps", "kube-root-ca.crt"), ("serviceaccounts", "default")];
/// Kinds that say nothing of whether somebody uses a namespace.
const NO_USE: [&str; 2] = ["events", "leases"];

/// Makes the namespace where it is not there.
///
/// # Errors
/// When it cannot be used.
pub async fn namespace(client: &Client, name: &str, extension: &str) -> Result<(), Problem> {
    let api: Api<Namespace> = Api::all(client.clone());
    let what = format!("the namespace {name} cannot be made");
    if let Some(found) = api.get_opt(name).await.map_err(|err| failed(&what, &err))? {
        let ends = found.metadata.deletion_timestamp.is_some();
        return if ends {
            let message = format!(
                "the namespace {name} is being terminated; wait for its end, and see what keeps it (kubectl describe namespace {name})"
            );
            Err(Problem::of(Fault::Cluster, "NamespaceTerminating", message))
        } else {
            Ok(())
        };
    }
    let made = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": name, "labels": { MANAGED: MANAGER, OWNER: extension } },
    });
    api.patch(name, &PatchParams::apply(NAME).force(), &Patch::Apply(&made))
        .await
        .map_err(|err| failed(&what, &err))?;
    Ok(())
}

fn account(extension: &str) -> String {
    format!("extension-{extension}")
}

/// Makes the service account that helm acts as, with rights in its namespace alone.
///
/// # Errors
/// When it cannot be made.
pub async fn acting(client: &Client, namespace: &str, extension: &str) -> Result<Acting, Problem> {
    let name = account(extension);
    let metadata = json!({
        "name": name, "namespace": namespace, "labels": { MANAGED: MANAGER, OWNER: extension },
    });
    let made = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": false,
    });
    apply::<ServiceAccount>(client, namespace, &name, extension, &made).await?;
    let made = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": metadata,
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": RIGHTS },
        "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": namespace }],
    });
    apply::<RoleBinding>(client, namespace, &name, extension, &made).await?;
    Ok(Acting::ServiceAccount { namespace: namespace.to_owned(), name })
}

/// Whether it was made here for this extension.
fn is_ours(meta: &ObjectMeta, extension: &str) -> bool {
    let label = |key: &str| meta.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str);
    label(MANAGED) == Some(MANAGER) && label(OWNER) == Some(extension)
}

/// Makes an object, in this namespace and of this name.
async fn apply<K>(client: &Client, namespace: &str, name: &str, extension: &str, made: &Value) -> Result<(), Problem>
where
    K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let what = format!("the {} {name} in {namespace} cannot be made", K::kind(&()));
    let found = api.get_metadata_opt(name).await.map_err(|err| failed(&what, &err))?;
    if found.is_some_and(|found| !is_ours(&found.metadata, extension)) {
        let message = format!("{what}: there is one that this extension did not make; remove it");
        return Err(Problem::passes("NameInUse", message));
    }
    let applied = api.patch(name, &PatchParams::apply(NAME).force(), &Patch::Apply(made)).await;
    applied.map(|_| ()).map_err(|err| failed(&what, &err))
}

/// Whether a namespace goes with an extension: it was made for it, or for one that is gone and left it to this one.
fn goes_with(meta: &ObjectMeta, extension: &str, is_gone: impl Fn(&str) -> bool) -> bool {
    let label = |key: &str| meta.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str);
    let owner = label(OWNER).filter(|_| label(MANAGED) == Some(MANAGER));
    owner.is_some_and(|owner| owner == extension || is_gone(owner)) && meta.deletion_timestamp.is_none()
}

/// Removes what was made for an extension. The namespace goes only if it was made for an extension, that extension is gone
/// too, and the namespace is empty.
///
/// # Errors
/// What stays, and why.
pub async fn clean(
    client: &Client,
    namespace: &str,
    extension: &str,
    is_gone: impl Fn(&str) -> bool,
) -> Result<(), Problem> {
    let spaces: Api<Namespace> = Api::all(client.clone());
    let what = |what: &str| format!("{what} in the namespace {namespace} cannot be removed");
    let found = spaces.get_opt(namespace).await.map_err(|err| failed(&what("what was made"), &err))?;
    let Some(found) = found else { return Ok(()) };
    let name = account(extension);
    let bindings: Api<RoleBinding> = Api::namespaced(client.clone(), namespace);
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    for removed in [remove(&bindings, &name, extension).await, remove(&accounts, &name, extension).await] {
        removed.map_err(|err| failed(&what("the service account"), &err))?;
    }
    if !goes_with(&found.metadata, extension, is_gone) || !is_empty(client, namespace).await {
        return Ok(());
    }
    let exact = Preconditions { uid: found.metadata.uid, resource_version: found.metadata.resource_version };
    let params = DeleteParams { preconditions: Some(exact), ..DeleteParams::default() };
    match spaces.delete(namespace, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        other => other.map(|_| ()).map_err(|err| failed(&what("the namespace"), &err)),
    }
}

/// Removes an object that was made here.
async fn remove<K>(api: &Api<K>, name: &str, extension: &str) -> Result<(), kube::Error>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let Some(found) = api.get_metadata_opt(name).await?.filter(|found| is_ours(&found.metadata, extension)) else {
        return Ok(());
    };
    let exact = Preconditions { uid: found.metadata.uid, resource_version: None };
    let params = DeleteParams { preconditions: Some(exact), ..DeleteParams::default() };
    match api.delete(name, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(|_| ()),
    }
}

/// Whether nothing is in a namespace but what Kubernetes makes in each. What cannot be listed counts as something.
async fn is_empty(client: &Client, namespace: &str) -> bool {
    let Ok(all) = Discovery::new(client.clone()).exclude(&["events.k8s.io", "metrics.k8s.io"]).run().await else {
        return false;
    };
    let resources: Vec<_> = all.groups().flat_map(kube::discovery::ApiGroup::recommended_resources).collect();
    for (resource, capabilities) in resources {
        let listed = capabilities.scope == Scope::Namespaced && capabilities.supports_operation(verbs::LIST);
        if !listed || NO_USE.contains(&resource.plural.as_str()) {
            continue;
        }
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &resource);
        let Ok(found) = api.list_metadata(&ListParams::default().limit(50)).await else { return false };
        if found.items.iter().any(|object| counts(&resource.plural, &object.metadata)) {
            return false;
        }
    }
    true
}

/// Whether an object shows that somebody uses a namespace: not what is on its way out, what goes with its owner, and what
/// a chart's hooks left, which helm never removes.
fn counts(plural: &str, meta: &ObjectMeta) -> bool {
    let is_of_every = meta.name.as_deref().is_some_and(|name| OF_EVERY_NAMESPACE.contains(&(plural, name)));
    let is_hook = meta.annotations.as_ref().is_some_and(|notes| notes.contains_key("helm.sh/hook"));
    let is_owned = meta.owner_references.as_ref().is_some_and(|owners| !owners.is_empty());
    !(is_of_every || is_hook || is_owned || meta.deletion_timestamp.is_some())
}

/// What the cluster is.
///
/// # Errors
/// When the apiserver does not answer.
pub async fn facts(client: &Client, preset: Option<String>) -> Result<Facts, Problem> {
    let unknown = |err: kube::Error| failed("what the cluster is cannot be found out", &err);
    let version = client.apiserver_version().await.map_err(unknown)?;
    let nodes: Api<Node> = Api::all(client.clone());
    let nodes = nodes.list(&ListParams::default().limit(500)).await.map_err(unknown)?;
    let mut platforms: Vec<_> = nodes.items.iter().filter_map(cluster_metadata_operator::platform).collect();
    platforms.sort_unstable();
    platforms.dedup();
    let distribution = preset.or_else(|| cluster_metadata_operator::distribution(nodes.items, &version.git_version));
    let agents = agents::values(client, distribution.as_deref()).await.map_err(unknown)?;
    Ok(Facts { kubernetes: Some(version.git_version), distribution, platforms, agents })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e10_namespace_goes_with_the_last_extension_that_used_it() {
        let of = |labels: Value| serde_json::from_value::<ObjectMeta>(json!({ "labels": labels })).unwrap();
        let made = of(json!({ MANAGED: MANAGER, OWNER: "first" }));
        assert!(goes_with(&made, "first", |_| false));
        assert!(goes_with(&made, "second", |owner| owner == "first"));
        assert!(!goes_with(&made, "second", |_| false), "it goes with the first one");
        for others in [json!({}), json!({ OWNER: "first" }), json!({ MANAGED: MANAGER })] {
            assert!(!goes_with(&of(others), "first", |_| true));
        }
        let mut ends = json!({ "deletionTimestamp": "2026-11-27T10:00:00Z" });
        ends["labels"] = json!({ MANAGED: MANAGER, OWNER: "first" });
        let ends: ObjectMeta = serde_json::from_value(ends).unwrap();
        assert!(!goes_with(&ends, "first", |_| false));
    }
}
