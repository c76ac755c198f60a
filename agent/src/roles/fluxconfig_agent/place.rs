//! Writes what a configuration needs into the cluster, by server-side apply, and removes it. What somebody else made under
//! the same name is never taken over, nor what was made for another configuration.

use std::{collections::BTreeMap, time::SystemTime};

use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, Preconditions},
    core::{GroupVersionKind, ObjectMeta},
};
use serde_json::{Value, json};
use types::agent_api::encode;

use super::{
    NAME, handover,
    pins::FLUX,
    render::{APPLIER, MANAGED, MANAGER, called, label_of, labels_of, owner_of},
    spec::Scope,
    views::FluxKind,
};
use crate::roles::objects::{
    state::{Fault, Problem},
    store::failed,
};

/// On what all configurations of a namespace share.
const PART: &str = "towline.io/part";
/// The suffixes of a configuration's Secrets.
const SECRETS: [&str; 4] = ["auth", "tls", "verify", "proxy"];

/// With this finalizer Flux holds a deleted object until it has removed what it made for it.
const FINALIZER: &str = "finalizers.fluxcd.io";
/// Service accounts of Flux's controllers.
const CONTROLLERS: [&str; 3] = ["kustomize-controller", "source-controller", "helm-controller"];

/// Whose a Secret is that somebody names.
pub enum SecretOwner {
    /// No configuration's.
    Nobody,
    /// It is made for this configuration, or will be.
    Configuration(String),
    /// It is not there, and is that of a configuration as soon as there is one of that name.
    Later,
}

/// An object's place.
struct At<'a> {
    resource: ApiResource,
    namespace: Option<&'a str>,
    name: &'a str,
}

/// Whose an object is.
#[derive(Clone, Copy)]
enum Whose<'a> {
    /// Made for this configuration.
    Of(&'a str),
    /// Made for all configurations of a namespace.
    Shared,
}

impl Whose<'_> {
    fn labels(self) -> Value {
        match self {
            Self::Of(configuration) => labels_of(configuration),
            Self::Shared => json!({ MANAGED: MANAGER, PART: APPLIER }),
        }
    }

    /// Why an object is another's.
    fn judge(self, meta: &ObjectMeta) -> Result<(), String> {
        let label = |key: &str| meta.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str);
        let ours = label(MANAGED) == Some(MANAGER);
        match (self, owner_of(meta.labels.as_ref()).as_deref()) {
            (Self::Of(configuration), Some(owner)) if ours && owner == configuration => Ok(()),
            (Self::Shared, None) if ours && label(PART) == Some(APPLIER) => Ok(()),
            (_, Some(owner)) if ours => Err(format!("it belongs to the {}; rename one of the two", called(owner))),
            _ => Err("there is one already that this configuration did not make; remove it, or choose another name"
                .to_owned()),
        }
    }
}

fn resource(version: &str, kind: &str, plural: &str) -> ApiResource {
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

const RBAC: &str = "rbac.authorization.k8s.io/v1";

/// The binding of a namespace's applier where a configuration has the rights of the cluster.
fn cluster_binding(namespace: &str) -> String {
    format!("towline:{APPLIER}:{namespace}")
}

/// Writes into a cluster.
pub struct Place<'a> {
    /// To the apiserver.
    pub client: &'a Client,
}

impl Place<'_> {
    fn api(&self, resource: &ApiResource, namespace: Option<&str>) -> Api<DynamicObject> {
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, resource),
            None => Api::all_with(self.client.clone(), resource),
        }
    }

    async fn apply(&self, at: &At<'_>, whose: Whose<'_>, object: &Value) -> Result<DynamicObject, Problem> {
        let (api, name) = (self.api(&at.resource, at.namespace), at.name);
        let space = at.namespace.map(|namespace| format!(" in {namespace}")).unwrap_or_default();
        let what = format!("the {} {name}{space} cannot be made", at.resource.kind);
        let absent = |err: &kube::Error| {
            let is_flux = at.resource.group.ends_with(".fluxcd.io");
            matches!(err, kube::Error::Api(status) if status.code == 404 && is_flux).then(|| {
                let (kind, version) = (&at.resource.kind, &at.resource.api_version);
                let message = format!(
                    "{what}: Flux is not installed, or is one that has no {kind} of {version}; install the extension type microsoft.flux, or upgrade the Flux that is there"
                );
                Problem::of(Fault::Cluster, "FluxMissing", message)
            })
        };
        if let Some(found) = api.get_metadata_opt(name).await.map_err(|err| failed(&what, &err))? {
            whose.judge(&found.metadata).map_err(|why| Problem::passes("NameInUse", format!("{what}: {why}")))?;
            if found.metadata.deletion_timestamp.is_some() {
                let message = format!("{what}: the one from before is still being deleted; see what keeps it");
                return Err(Problem::of(Fault::Cluster, "Terminating", message));
            }
        }
        let applied = api.patch(name, &PatchParams::apply(NAME).force(), &Patch::Apply(object)).await;
        applied.map_err(|err| absent(&err).unwrap_or_else(|| failed(&what, &err)))
    }

    /// Removes an object if it is ours; whether it is gone.
    async fn remove(&self, at: &At<'_>, whose: Whose<'_>) -> Result<bool, Problem> {
        let (api, name) = (self.api(&at.resource, at.namespace), at.name);
        let what = format!("the {} {name} cannot be removed", at.resource.kind);
        let found = api.get_metadata_opt(name).await.map_err(|err| failed(&what, &err))?;
        let Some(found) = found.filter(|found| whose.judge(&found.metadata).is_ok()) else { return Ok(true) };
        if found.metadata.deletion_timestamp.is_some() {
            return Ok(false);
        }
        let exact = Preconditions { uid: found.metadata.uid, resource_version: None };
        let params = DeleteParams { preconditions: Some(exact), ..DeleteParams::default() };
        match api.delete(name, &params).await {
            Ok(_) => Ok(false),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(true),
            Err(err) => Err(failed(&what, &err)),
        }
    }

    /// Makes the namespace where it is not there.
    ///
    /// # Errors
    /// When it cannot be used.
    pub async fn namespace(&self, name: &str) -> Result<(), Problem> {
        let api = self.api(&resource("v1", "Namespace", "namespaces"), None);
        let what = format!("the namespace {name} cannot be made");
        match api.get_metadata_opt(name).await.map_err(|err| failed(&what, &err))? {
            Some(found) if found.metadata.deletion_timestamp.is_some() => {
                let message = format!(
                    "the namespace {name} is being terminated; wait for its end, and see what keeps it (kubectl describe namespace {name})"
                );
                Err(Problem::of(Fault::Cluster, "NamespaceTerminating", message))
            }
            Some(_) => Ok(()),
            None => {
                let metadata = json!({ "name": name, "labels": { MANAGED: MANAGER } });
                let made = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": metadata });
                let params = PatchParams::apply(NAME).force();
                api.patch(name, &params, &Patch::Apply(&made)).await.map(|_| ()).map_err(|err| failed(&what, &err))
            }
        }
    }

    /// Whether controllers of Flux run in a namespace, whoever installed them: whether their service accounts are there,
    /// which an administrator of the namespace can use.
    ///
    /// # Errors
    /// When that cannot be known.
    pub async fn has_controllers(&self, namespace: &str) -> Result<bool, Problem> {
        let api = self.api(&service_account(namespace).resource, Some(namespace));
        for name in CONTROLLERS {
            let what = format!("it cannot be known whether Flux's {name} runs in the namespace {namespace}");
            if api.get_metadata_opt(name).await.map_err(|err| failed(&what, &err))?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Makes the service account that applies, with the rights of the scope and no others of ours.
    ///
    /// # Errors
    /// When it cannot be made.
    pub async fn applier(&self, namespace: &str, scope: Scope) -> Result<(), Problem> {
        let (whose, own, wide) = (Whose::Shared, Some(namespace), cluster_binding(namespace));
        let metadata = |name: &str, namespace: Option<&str>| {
            let mut metadata = json!({ "name": name, "labels": whose.labels() });
            if let Some(namespace) = namespace {
                metadata["namespace"] = namespace.into();
            }
            metadata
        };
        let (kind, plural, name, space, role) = match scope {
            Scope::Cluster => ("ClusterRoleBinding", "clusterrolebindings", wide.as_str(), None, "cluster-admin"),
            Scope::Namespace => ("RoleBinding", "rolebindings", APPLIER, own, "admin"),
        };
        // The rights of the other scope go first: a configuration of one namespace never has those of the cluster.
        match scope {
            Scope::Cluster => self.remove(&role_binding(namespace), whose).await?,
            Scope::Namespace => self.remove(&cluster_role_binding(&wide), whose).await?,
        };
        let made = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata(APPLIER, own),
            "automountServiceAccountToken": false,
        });
        self.apply(&service_account(namespace), whose, &made).await?;
        let made = json!({
            "apiVersion": RBAC, "kind": kind, "metadata": metadata(name, space),
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
            "subjects": [{ "kind": "ServiceAccount", "name": APPLIER, "namespace": namespace }],
        });
        let at = At { resource: resource(RBAC, kind, plural), namespace: space, name };
        self.apply(&at, whose, &made).await.map(|_| ())
    }

    /// Whether the service account that applies has the rights of the other scope.
    ///
    /// # Errors
    /// When that cannot be known.
    pub async fn has_other_scope(&self, namespace: &str, scope: Scope) -> Result<bool, Problem> {
        let wide = cluster_binding(namespace);
        let at = match scope {
            Scope::Cluster => role_binding(namespace),
            Scope::Namespace => cluster_role_binding(&wide),
        };
        let what = format!("the rights of {APPLIER} in {namespace} cannot be read");
        let found = self.api(&at.resource, at.namespace).get_metadata_opt(at.name).await;
        let found = found.map_err(|err| failed(&what, &err))?;
        Ok(found.is_some_and(|found| Whose::Shared.judge(&found.metadata).is_ok()))
    }

    /// Removes the service account that applies, and its rights.
    ///
    /// # Errors
    /// What stays.
    pub async fn remove_applier(&self, namespace: &str) -> Result<(), Problem> {
        let wide = cluster_binding(namespace);
        for at in [cluster_role_binding(&wide), role_binding(namespace), service_account(namespace)] {
            self.remove(&at, Whose::Shared).await?;
        }
        Ok(())
    }

    /// Makes the Secrets that a configuration needs, and removes those that it does not need any more.
    ///
    /// # Errors
    /// When one cannot be made.
    pub async fn secrets(
        &self,
        configuration: &str,
        namespace: &str,
        wanted: &BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    ) -> Result<(), Problem> {
        let whose = Whose::Of(configuration);
        for (name, files) in wanted {
            let data: BTreeMap<_, _> = files.iter().map(|(name, bytes)| (name, encode(bytes))).collect();
            let made = json!({
                "apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": data,
                "metadata": { "name": name, "namespace": namespace, "labels": whose.labels() },
            });
            self.apply(&secret(namespace, name), whose, &made).await?;
        }
        for name in SECRETS.map(|suffix| format!("{configuration}-{suffix}")) {
            if !wanted.contains_key(&name) {
                self.remove(&secret(namespace, &name), whose).await?;
            }
        }
        Ok(())
    }

    /// Whose a Secret is. One that is not there yet is that of the configuration, of these, whose Secrets have such names.
    ///
    /// # Errors
    /// When that cannot be known.
    pub async fn secret_owner(
        &self,
        namespace: &str,
        name: &str,
        mut configurations: impl Iterator<Item = String>,
    ) -> Result<SecretOwner, Problem> {
        let api = self.api(&secret(namespace, name).resource, Some(namespace));
        let what = format!("it cannot be known whose the Secret {name} in {namespace} is");
        let of = |owner: Option<String>| owner.map_or(SecretOwner::Nobody, SecretOwner::Configuration);
        Ok(match api.get_metadata_opt(name).await.map_err(|err| failed(&what, &err))? {
            Some(found) => {
                let labels = found.metadata.labels.as_ref();
                let ours = labels.and_then(|labels| labels.get(MANAGED)).is_some_and(|value| value == MANAGER);
                of(owner_of(labels).filter(|_| ours))
            }
            None => match configurations.find(|one| SECRETS.iter().any(|suffix| format!("{one}-{suffix}") == name)) {
                None if SECRETS.iter().any(|suffix| name.ends_with(&format!("-{suffix}"))) => SecretOwner::Later,
                owner => of(owner),
            },
        })
    }

    /// Sources of other configurations that name one of these Secrets, of those that are not there yet.
    ///
    /// # Errors
    /// When that cannot be known.
    pub async fn sources_with(
        &self,
        configuration: &str,
        namespace: &str,
        secrets: impl Iterator<Item = &String>,
    ) -> Result<Vec<(FluxKind, DynamicObject)>, Problem> {
        let mut new = Vec::new();
        for name in secrets {
            let at = secret(namespace, name);
            let what = format!("it cannot be known whether the Secret {name} is there");
            let found = self.api(&at.resource, at.namespace).get_metadata_opt(name).await;
            if found.map_err(|err| failed(&what, &err))?.is_none() {
                new.push(name.as_str());
            }
        }
        let mut sources = Vec::new();
        for kind in FluxKind::SOURCES.into_iter().filter(|_| !new.is_empty()) {
            let params = ListParams::default().labels(&format!("{MANAGED}={MANAGER}"));
            match self.api(&kind.resource(), Some(namespace)).list(&params).await {
                Ok(list) => sources.extend(list.items.into_iter().map(|object| (kind, object))),
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(err) => return Err(failed(&format!("{} cannot be listed", kind.names().3), &err)),
            }
        }
        sources.retain(|(_, object)| {
            let named = object.data["spec"]["secretRef"]["name"].as_str();
            let owner = owner_of(object.metadata.labels.as_ref());
            owner.as_deref() != Some(configuration) && named.is_some_and(|name| new.contains(&name))
        });
        Ok(sources)
    }

    /// When a controller of Flux last said in its leader election that it runs, where it is in the namespace that the
    /// extension installs it in; nothing where it never did.
    ///
    /// # Errors
    /// When that cannot be known.
    pub async fn last_seen(&self, controller: &str) -> Result<Option<SystemTime>, Problem> {
        let api = Api::<Lease>::namespaced(self.client.clone(), FLUX);
        let what = format!("it cannot be known whether {controller} runs");
        let found = api.get_opt(&format!("{controller}-leader-election")).await.map_err(|err| failed(&what, &err))?;
        let spec = found.and_then(|lease| lease.spec);
        let held = spec.filter(|spec| spec.holder_identity.as_ref().is_some_and(|holder| !holder.is_empty()));
        Ok(held.and_then(|spec| spec.renew_time).map(|at| SystemTime::from(at.0)))
    }

    /// When a controller of Flux last wrote in its leader election that it runs, or that it ends; nothing where it never did.
    ///
    /// # Errors
    /// When that cannot be known.
    pub async fn last_renewed(&self, controller: &str) -> Result<Option<SystemTime>, Problem> {
        let api = Api::<Lease>::namespaced(self.client.clone(), FLUX);
        let what = format!("it cannot be known whether {controller} runs");
        let found = api.get_opt(&format!("{controller}-leader-election")).await.map_err(|err| failed(&what, &err))?;
        let renewed = found.and_then(|lease| lease.spec).and_then(|spec| spec.renew_time);
        Ok(renewed.map(|at| SystemTime::from(at.0)))
    }

    /// Makes one of Flux's objects.
    ///
    /// # Errors
    /// When it cannot be made.
    pub async fn flux(&self, kind: FluxKind, configuration: &str, object: &Value) -> Result<DynamicObject, Problem> {
        let text = |key: &str| object["metadata"][key].as_str().unwrap_or_default();
        let at = At { resource: kind.resource(), namespace: Some(text("namespace")), name: text("name") };
        self.apply(&at, Whose::Of(configuration), object).await
    }

    /// Flux's objects of a configuration, of these kinds, as the apiserver has them now. A kind that is not there has
    /// none.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub async fn list(
        &self,
        configuration: &str,
        kinds: &[FluxKind],
    ) -> Result<Vec<(FluxKind, DynamicObject)>, Problem> {
        let mut found = Vec::new();
        for kind in kinds {
            let (key, value) = label_of(configuration);
            let params = ListParams::default().labels(&format!("{MANAGED}={MANAGER},{key}={value}"));
            match self.api(&kind.resource(), None).list(&params).await {
                Ok(list) => found.extend(list.items.into_iter().map(|object| (*kind, object))),
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(err) => return Err(failed(&format!("{} cannot be listed", kind.names().3), &err)),
            }
        }
        Ok(found)
    }

    /// Suspends an object of Flux.
    ///
    /// # Errors
    /// When it cannot be changed.
    pub async fn suspend(&self, kind: FluxKind, object: &DynamicObject) -> Result<(), Problem> {
        self.change(kind, object, &json!({ "spec": { "suspend": true } })).await
    }

    /// Whether Flux holds an object that is being deleted.
    pub fn is_held(object: &DynamicObject) -> bool {
        object.metadata.finalizers.as_deref().unwrap_or_default().iter().any(|one| one == FINALIZER)
    }

    /// Takes Flux's finalizer off an object of Flux that is being deleted, where nobody is there who does; whether it was
    /// there. Those of others stay.
    ///
    /// # Errors
    /// When it cannot be changed.
    pub async fn let_go(&self, kind: FluxKind, object: &DynamicObject) -> Result<bool, Problem> {
        let all = object.metadata.finalizers.as_deref().unwrap_or_default();
        let others: Vec<_> = all.iter().filter(|one| *one != FINALIZER).collect();
        if others.len() == all.len() {
            return Ok(false);
        }
        let others = if others.is_empty() { Value::Null } else { json!(others) };
        let metadata = json!({ "finalizers": others, "resourceVersion": object.metadata.resource_version });
        self.change(kind, object, &json!({ "metadata": metadata })).await.map(|()| true)
    }

    async fn change(&self, kind: FluxKind, object: &DynamicObject, patch: &Value) -> Result<(), Problem> {
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let api = self.api(&kind.resource(), object.metadata.namespace.as_deref());
        let params = PatchParams { field_manager: Some(NAME.to_owned()), ..PatchParams::default() };
        match api.patch(name, &params, &Patch::Merge(patch)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(err) => Err(failed(&format!("the {} {name} cannot be changed", kind.names().2), &err)),
        }
    }

    /// Deletes an object of Flux, and has Flux keep what it had applied for it.
    ///
    /// # Errors
    /// When it cannot be deleted.
    pub async fn let_stay(&self, kind: FluxKind, configuration: &str, object: &DynamicObject) -> Result<(), Problem> {
        if kind == FluxKind::Kustomization {
            self.change(kind, object, &json!({ "spec": { "prune": false } })).await?;
        }
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let at = At { resource: kind.resource(), namespace: object.metadata.namespace.as_deref(), name };
        self.remove(&at, Whose::Of(configuration)).await.map(|_| ())
    }

    /// Deletes an object of Flux, which Flux's finalizer may keep for a time. `was_held`: it was suspended since it was read.
    ///
    /// # Errors
    /// When it cannot be deleted.
    pub async fn retire(
        &self,
        kind: FluxKind,
        configuration: &str,
        object: &DynamicObject,
        was_held: bool,
    ) -> Result<(), Problem> {
        let first = handover::before_deletion(object, configuration, was_held);
        if let Some(first) = first.filter(|_| kind == FluxKind::Kustomization) {
            self.flux(kind, configuration, &first).await?;
        }
        let name = object.metadata.name.as_deref().unwrap_or_default();
        let at = At { resource: kind.resource(), namespace: object.metadata.namespace.as_deref(), name };
        self.remove(&at, Whose::Of(configuration)).await.map(|_| ())
    }
}

fn service_account(namespace: &str) -> At<'_> {
    At { resource: resource("v1", "ServiceAccount", "serviceaccounts"), namespace: Some(namespace), name: APPLIER }
}

fn role_binding(namespace: &str) -> At<'_> {
    At { resource: resource(RBAC, "RoleBinding", "rolebindings"), namespace: Some(namespace), name: APPLIER }
}

fn cluster_role_binding(name: &str) -> At<'_> {
    At { resource: resource(RBAC, "ClusterRoleBinding", "clusterrolebindings"), namespace: None, name }
}

fn secret<'a>(namespace: &'a str, name: &'a str) -> At<'a> {
    At { resource: resource("v1", "Secret", "secrets"), namespace: Some(namespace), name }
}
