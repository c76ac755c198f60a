//! The agents' manifests, as `towline connect` applies them: the same objects as the chart's
//! (`docker/chart/towline-agent`, with `identity.clusterId`), without helm. `tests/it/connect.rs` compares the two for
//! several sets of values.
//!
//! | module | what it holds |
//! |---|---|
//! | [`values`] | the chart's values, typed; defaults are the chart's own file |
//! | [`config`] | the configuration files of the agents |
//! | [`objects`] | the objects, in the order in which they are applied |
//! | [`rights`] | service accounts, roles and bindings |

mod config;
mod objects;
mod parts;
mod rights;
mod values;

use agent::{
    config::Deployment,
    roles::{assignment_sync_agent::kept, guard::keeper, identity_tokens::certificate},
};

pub use self::{
    objects::{namespace, objects, relabel},
    rights::CLUSTER_ADMIN,
    values::{ExtensionImage, Gitops, HostAlias, Image, Proxy, Values},
};

/// The release: part of the objects' labels.
pub const RELEASE: &str = "towline";
/// Where it goes unless something else is typed.
pub const NAMESPACE: &str = "towline";
/// Says which version installed an object.
pub const VERSION_LABEL: &str = "app.kubernetes.io/version";
/// Who made the objects, as their label `app.kubernetes.io/managed-by` says.
pub const MANAGED_BY: &str = "towline";
/// The Deployment that holds users' tunnel, and what belongs to it.
pub const AGENT: &str = Deployment::ClusterconnectAgent.name();
/// The Deployment that gets the certificate and tells facts, and what belongs to it.
pub const MANAGER: &str = Deployment::ControllerManager.name();
/// The Deployment that installs extensions, where they are on, and what belongs to it.
pub const EXTENSIONS: &str = Deployment::ExtensionManager.name();
/// The Deployment of the extension microsoft.flux beside the agents, and the ConfigMap of its settings, which is there
/// wherever extensions are on.
pub const GITOPS: &str = Deployment::FluxconfigAgent.name();
/// The Deployment that the apiserver asks about tokens and rights, where guard is on, its Service, and what belongs to it.
pub const GUARD: &str = Deployment::Guard.name();
/// The Deployment that upgrades the agents, where they upgrade themselves, and what belongs to it.
pub const UPGRADER: &str = Deployment::Upgrader.name();
/// The Secret of guard's certificates.
pub const GUARD_SECRET: &str = keeper::SECRET;
/// The Secret that guard keeps the last snapshot of roles and assignments in.
pub const GUARD_SNAPSHOT: &str = kept::SECRET;
/// The Secret of the files that an apiserver is started with, and its namespace.
pub const GUARD_MANIFESTS: &str = keeper::MANIFESTS;
/// The namespace of [`GUARD_MANIFESTS`].
pub const GUARD_MANIFESTS_NAMESPACE: &str = keeper::MANIFESTS_NAMESPACE;
/// The other Deployment of that extension beside the agents, and the ConfigMap of its settings.
pub const FLUX_LOGS: &str = Deployment::FluxLogsAgent.name();
/// The Secret of the onboarding key, in `key.pem`.
pub const ONBOARDING_SECRET: &str = "towline-onboarding";
/// The Secret of the certificate, which the controller-manager makes.
pub const IDENTITY_SECRET: &str = "towline-identity-certificate";
/// The Service where others in the cluster ask for tokens of its identity.
pub const TOKENS_SERVICE: &str = "cluster-identity";
/// The Secret of its certificate, and the ConfigMap of what that is trusted by; the controller-manager fills in both.
pub const SERVING_SECRET: &str = certificate::SECRET;
/// The ConfigMap with what that certificate is trusted by.
pub const SERVING_CA: &str = certificate::PUBLISHED;
/// The Secret of the proxy's user name and password.
pub const PROXY_SECRET: &str = "clusterconnect-agent-proxy";
/// The job that checks the network, and the ConfigMap of its settings.
pub const DIAGNOSER: &str = "towline-diagnoser";
/// The Secret of its proxy's user name and password.
pub const DIAGNOSER_PROXY_SECRET: &str = "towline-diagnoser-proxy";
/// The file with the configuration in either ConfigMap.
pub const CONFIG_FILE: &str = "agent.toml";

/// The version of the agents that this program installs: its own. A test compares it with the chart's.
pub fn version() -> &'static str {
    daemon::release::version()
}

#[cfg(test)]
mod tests;
