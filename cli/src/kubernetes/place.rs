//! Which object of a cluster is meant: its kind with group, version and plural, its namespace and its name. Manifests,
//! requests and messages name objects by it.

use std::fmt;

use kube::core::{ApiResource, GroupVersionKind};
use serde_json::Value;

/// A kind that we work with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Group; empty for the core.
    pub group: &'static str,
    version: &'static str,
    /// As in `kind:`.
    pub name: &'static str,
    /// As in paths.
    pub plural: &'static str,
    /// Whether its objects are in namespaces.
    pub namespaced: bool,
}

/// The group of roles and bindings.
pub const RBAC: &str = "rbac.authorization.k8s.io";

const fn kind(
    group: &'static str,
    version: &'static str,
    name: &'static str,
    plural: &'static str,
    namespaced: bool,
) -> Kind {
    Kind { group, version, name, plural, namespaced }
}

pub const NAMESPACE: Kind = kind("", "v1", "Namespace", "namespaces", false);
pub const SECRET: Kind = kind("", "v1", "Secret", "secrets", true);
pub const CONFIG_MAP: Kind = kind("", "v1", "ConfigMap", "configmaps", true);
pub const SERVICE: Kind = kind("", "v1", "Service", "services", true);
pub const POD: Kind = kind("", "v1", "Pod", "pods", true);
pub const EVENT: Kind = kind("", "v1", "Event", "events", true);
pub const DEPLOYMENT: Kind = kind("apps", "v1", "Deployment", "deployments", true);
pub const REPLICA_SET: Kind = kind("apps", "v1", "ReplicaSet", "replicasets", true);
pub const JOB: Kind = kind("batch", "v1", "Job", "jobs", true);
/// The Lease of `coordination.k8s.io/v1`, by which one run at a time works in a namespace.
pub const LEASE: Kind = kind("coordination.k8s.io", "v1", "Lease", "leases", true);
/// Definitions of kinds.
pub const DEFINITION: Kind =
    kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", false);
/// What the controller-manager tells.
pub const CONNECTED_CLUSTER: Kind = kind("towline.io", "v1alpha1", "ConnectedCluster", "connectedclusters", true);

/// What is wanted of extensions, and what the extension-manager tells of them.
pub const EXTENSION_CONFIG: Kind = kind("towline.io", "v1alpha1", "ExtensionConfig", "extensionconfigs", true);
/// What is wanted of flux configurations, and what the fluxconfig-agent tells of them.
pub const FLUX_CONFIG: Kind = kind("towline.io", "v1alpha1", "FluxConfig", "fluxconfigs", true);
/// The same of source control configurations.
pub const GIT_CONFIG: Kind = kind("towline.io", "v1alpha1", "GitConfig", "gitconfigs", true);
/// Kinds of ours: their objects go with their definition.
pub const OURS: [Kind; 4] = [CONNECTED_CLUSTER, EXTENSION_CONFIG, FLUX_CONFIG, GIT_CONFIG];

/// What somebody may do everywhere.
pub const CLUSTER_ROLE: Kind = kind(RBAC, "v1", "ClusterRole", "clusterroles", false);
/// Who has a role everywhere.
pub const CLUSTER_ROLE_BINDING: Kind = kind(RBAC, "v1", "ClusterRoleBinding", "clusterrolebindings", false);

/// Every kind that the manifests have, and [`KEPT`].
pub const KINDS: &[Kind] = &[
    NAMESPACE,
    DEFINITION,
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    kind(RBAC, "v1", "Role", "roles", true),
    kind(RBAC, "v1", "RoleBinding", "rolebindings", true),
    kind("", "v1", "ServiceAccount", "serviceaccounts", true),
    SECRET,
    CONFIG_MAP,
    SERVICE,
    DEPLOYMENT,
    kind("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", true),
    kind("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", true),
];

/// What somebody may have put into a namespace of ours, which keeps it.
pub const KEPT: &[Kind] = &[
    SECRET,
    CONFIG_MAP,
    POD,
    SERVICE,
    kind("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", true),
    DEPLOYMENT,
    kind("apps", "v1", "StatefulSet", "statefulsets", true),
    kind("apps", "v1", "DaemonSet", "daemonsets", true),
    JOB,
    kind("batch", "v1", "CronJob", "cronjobs", true),
];

impl Kind {
    /// As the library takes it.
    pub fn resource(&self) -> ApiResource {
        let kind = GroupVersionKind::gvk(self.group, self.version, self.name);
        ApiResource::from_gvk_with_plural(&kind, self.plural)
    }
}

/// An object, or all objects of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// What it is.
    pub kind: Kind,
    /// Where, for what is in namespaces; none for all of them.
    pub namespace: Option<String>,
    /// Its name; empty where only the kind matters.
    pub name: String,
}

impl Place {
    /// In a namespace.
    pub fn within(kind: Kind, namespace: &str, name: &str) -> Self {
        Self { kind, namespace: Some(namespace.to_owned()), name: name.to_owned() }
    }

    /// Outside of namespaces, or in all of them.
    pub fn of(kind: Kind, name: &str) -> Self {
        Self { kind, namespace: None, name: name.to_owned() }
    }

    /// Of one of our manifests.
    pub fn of_manifest(manifest: &Value) -> Option<Self> {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let kind = KINDS.iter().chain(KEPT).find(|kind| manifest["kind"] == kind.name)?;
        let meta = &manifest["metadata"];
        Some(Self { kind: *kind, namespace: text(&meta["namespace"]), name: text(&meta["name"])? })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind.name, self.name)?;
        match &self.namespace {
            Some(namespace) => write!(f, " in {namespace}"),
            None => Ok(()),
        }
    }
}
