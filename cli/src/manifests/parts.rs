//! The Deployments of the agents, and what the objects of each have in common.

use serde_json::{Value, json};

use super::{
    AGENT, EXTENSIONS, FLUX_LOGS, GITOPS, GUARD, MANAGED_BY, MANAGER, RELEASE, UPGRADER, VERSION_LABEL, values::Account,
};

/// Which of the Deployments something belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The Deployment [`AGENT`].
    Agent,
    /// The Deployment [`MANAGER`].
    Manager,
    /// The Deployment [`EXTENSIONS`].
    Extensions,
    /// The Deployment [`GITOPS`].
    Gitops,
    /// The Deployment [`GUARD`].
    Guard,
    /// The Deployment [`FLUX_LOGS`].
    FluxLogs,
    /// The Deployment [`UPGRADER`].
    Upgrader,
}

impl Part {
    /// The Deployment's name, and the container's.
    pub fn name(self) -> &'static str {
        match self {
            Self::Agent => AGENT,
            Self::Manager => MANAGER,
            Self::Extensions => EXTENSIONS,
            Self::Gitops => GITOPS,
            Self::Guard => GUARD,
            Self::FluxLogs => FLUX_LOGS,
            Self::Upgrader => UPGRADER,
        }
    }

    /// The label `app.kubernetes.io/name` of its pods.
    pub fn app(self) -> &'static str {
        match self {
            Self::Agent => "towline-agent",
            Self::Manager => "towline-controller-manager",
            Self::Extensions => "towline-extension-manager",
            Self::Gitops => "towline-fluxconfig-agent",
            Self::Guard => "towline-guard",
            Self::FluxLogs => "towline-flux-logs-agent",
            Self::Upgrader => "towline-upgrader",
        }
    }

    /// The labels by which its pods are found.
    pub fn selector(self) -> Value {
        json!({"app.kubernetes.io/name": self.app(), "app.kubernetes.io/instance": RELEASE})
    }

    /// The labels of its objects.
    pub fn labels(self) -> Value {
        let mut labels = self.selector();
        labels["app.kubernetes.io/component"] = self.name().into();
        labels["app.kubernetes.io/managed-by"] = MANAGED_BY.into();
        labels[VERSION_LABEL] = super::version().into();
        labels
    }
}

/// The beginning of an object.
pub fn object(version: &str, kind: &str, name: &str, namespace: Option<&str>, part: Part) -> Value {
    let mut made = json!({
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, "labels": part.labels()},
    });
    if let Some(namespace) = namespace {
        made["metadata"]["namespace"] = namespace.into();
    }
    made
}

/// The name of a part's service account.
pub fn account_name(part: Part, account: &Account) -> &str {
    match (account.name.as_str(), account.create, part) {
        ("", true, Part::Agent) => AGENT,
        ("", true, Part::Manager) => MANAGER,
        ("", true, Part::Guard) => GUARD,
        // Never "default": it becomes an administrator.
        ("", _, Part::Extensions) => EXTENSIONS,
        // Nor for this one, which changes what the others run.
        ("", _, Part::Upgrader) => UPGRADER,
        ("", false, _) => "default",
        (name, ..) => name,
    }
}
