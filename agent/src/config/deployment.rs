//! What one process does: the roles of one of the agent's Deployments, or those of all.

use std::str::FromStr;

use types::agent_api::deployments;

/// A Deployment of the agent. Each has a service account of its own, with the rights that its roles need.
///
/// A new one is a variant, its name and its place in [`Self::ALL`]; each role names the Deployments that run it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deployment {
    /// Holds users' tunnel and serves what comes through it.
    ClusterconnectAgent,
    /// Gets and renews the certificate, tells of the cluster, pulls what is wanted of it.
    ControllerManager,
    /// Installs helm charts as extensions; there only where extensions are on.
    ExtensionManager,
    /// Makes flux configurations Flux's objects; there only where the extension microsoft.flux is installed.
    FluxconfigAgent,
    /// Answers the apiserver's own questions about tokens and rights; there only where guard is on.
    Guard,
    /// Sends what Flux's controllers log to the gateway; there only where the extension microsoft.flux is installed.
    FluxLogsAgent,
    /// Upgrades the agents to versions of the signed catalogue; there only where upgrades are on.
    Upgrader,
}

impl Deployment {
    /// Every Deployment that the chart can install.
    pub const ALL: &'static [Self] = &[
        Self::ClusterconnectAgent,
        Self::ControllerManager,
        Self::ExtensionManager,
        Self::FluxconfigAgent,
        Self::FluxLogsAgent,
        Self::Guard,
        Self::Upgrader,
    ];

    /// As in the settings, in the chart, and as a label of what is sent to the gateway.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ClusterconnectAgent => deployments::CLUSTERCONNECT_AGENT,
            Self::ControllerManager => deployments::CONTROLLER_MANAGER,
            Self::ExtensionManager => deployments::EXTENSION_MANAGER,
            Self::FluxconfigAgent => deployments::FLUXCONFIG_AGENT,
            Self::Guard => deployments::GUARD,
            Self::FluxLogsAgent => deployments::FLUX_LOGS_AGENT,
            Self::Upgrader => deployments::UPGRADER,
        }
    }
}

/// Which roles one process runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleSet {
    /// Those of one Deployment.
    Of(Deployment),
    /// Those of every Deployment, over one tunnel.
    All,
}

impl Default for RoleSet {
    fn default() -> Self {
        Self::Of(Deployment::ClusterconnectAgent)
    }
}

impl RoleSet {
    /// Whether it has the roles of `deployment`.
    pub fn runs(self, deployment: Deployment) -> bool {
        match self {
            Self::Of(one) => one == deployment,
            Self::All => true,
        }
    }

    /// Whether users' streams are served.
    pub fn serves_users(self) -> bool {
        self.runs(Deployment::ClusterconnectAgent)
    }

    /// Whether the certificate and the control plane are looked after.
    pub fn manages(self) -> bool {
        self.runs(Deployment::ControllerManager)
    }

    /// As in a file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Of(deployment) => deployment.name(),
            Self::All => "all",
        }
    }
}

impl FromStr for RoleSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == Self::All.as_str() {
            return Ok(Self::All);
        }
        let named = Deployment::ALL.iter().find(|deployment| deployment.name() == text);
        named.map(|deployment| Self::Of(*deployment)).ok_or_else(|| {
            let names: Vec<_> = Deployment::ALL.iter().map(|deployment| deployment.name()).collect();
            format!("expected {} or {}", names.join(", "), Self::All.as_str())
        })
    }
}

/// The fault of a setting that is for processes with the roles of `deployment` alone.
pub(super) fn is_for(deployment: Deployment, why: &str) -> String {
    format!("is for roles {} and {}: {why}", deployment.name(), RoleSet::All.as_str())
}
