//! What one process does, where the agent's certificate comes from, and what is dialled in place of the gateway.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

use daemon::settings::{Faults, Section};
use types::ids::ClusterId;

/// The longest name of a Secret (a DNS subdomain), and of a distribution or an infrastructure.
const SECRET_NAME_MAX: usize = 253;
const METADATA_MAX: usize = 64;
/// The most names that the token listener has.
const SERVER_NAMES_MAX: usize = 16;

/// What one process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RoleSet {
    /// Holds users' tunnel and serves what comes through it.
    #[default]
    ClusterconnectAgent,
    /// Gets and renews the certificate, tells of the cluster, pulls what is wanted of it.
    ControllerManager,
    /// Both, over one tunnel.
    All,
}

impl RoleSet {
    /// Whether users' streams are served.
    pub fn serves_users(self) -> bool {
        self != Self::ControllerManager
    }

    /// Whether the certificate and the control plane are looked after.
    pub fn manages(self) -> bool {
        self != Self::ClusterconnectAgent
    }

    /// As in a file.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClusterconnectAgent => "clusterconnect-agent",
            Self::ControllerManager => "controller-manager",
            Self::All => "all",
        }
    }
}

impl FromStr for RoleSet {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::ClusterconnectAgent, Self::ControllerManager, Self::All];
        all.into_iter()
            .find(|set| set.as_str() == text)
            .ok_or("expected clusterconnect-agent, controller-manager or all")
    }
}

/// Where the agent's certificate comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentitySource {
    /// Two PEM files that somebody else looks after.
    Files {
        /// The agent's certificate chain.
        certificate_file: PathBuf,
        /// Its private key.
        key_file: PathBuf,
    },
    /// The agents get and renew it themselves.
    Managed(ManagedIdentity),
}

/// A certificate that the agents look after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagedIdentity {
    /// The cluster.
    pub cluster: ClusterId,
    /// Where it is kept.
    pub store: IdentityStore,
    /// The key that proves for whom the first one is asked (PKCS#8 PEM, RSA).
    pub onboarding_key_file: Option<PathBuf>,
}

/// Where a certificate of our own is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentityStore {
    /// A Secret in the pod's namespace.
    Secret(String),
    /// A folder.
    Directory(PathBuf),
}

/// What is dialled in place of the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Via {
    /// Host.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Its address where the environment tells one: a pod knows the Services of its namespace without DNS.
    pub address: Option<IpAddr>,
}

/// Where others in the cluster ask for tokens of its identity (docs/features.md R9).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenListener {
    /// Where.
    pub listen: SocketAddr,
    /// Names of the certificate that it makes itself.
    pub server_names: Vec<String>,
    /// Where that is kept; none: in a Secret.
    pub directory: Option<PathBuf>,
}

/// What is known of the cluster beforehand; goes before what the nodes look like.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Metadata {
    /// The Kubernetes distribution.
    pub distribution: Option<String>,
    /// What it runs on.
    pub infrastructure: Option<String>,
}

pub(super) fn read_identity(mut section: Section, roles: RoleSet, out: &mut Faults) -> Option<ManagedIdentity> {
    let what = "the cluster's id: /subscriptions/.../providers/Microsoft.Kubernetes/connectedClusters/...";
    let cluster = section.required_parsed("cluster_id", what, out, |text| text.parse::<ClusterId>());
    let secret = section.parsed("secret", out, |text| {
        let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        let plain = text.len() <= SECRET_NAME_MAX && text.chars().all(fits);
        if plain { Ok(text.to_owned()) } else { Err("expected the name of a Secret") }
    });
    let directory = section.path("directory", out);
    let store = match (secret, directory) {
        (Some(_), Some(_)) => {
            out.push(section.key("secret"), "only one of secret and directory may be set");
            None
        }
        (Some(name), None) => Some(IdentityStore::Secret(name)),
        (None, Some(directory)) => Some(IdentityStore::Directory(directory)),
        (None, None) => {
            if !section.has("secret") {
                out.push(section.key("secret"), "is missing; set secret in a cluster, directory outside of one");
            }
            None
        }
    };
    let onboarding_key_file = section.path("onboarding_key_file", out);
    if onboarding_key_file.is_some() && !roles.manages() {
        let problem = "is read where controller-manager runs alone; leave it out, and do not mount the key here";
        out.push(section.key("onboarding_key_file"), problem);
    }
    section.end(out);
    Some(ManagedIdentity { cluster: cluster?, store: store?, onboarding_key_file })
}

pub(super) fn read_token_listener(mut section: Section, roles: RoleSet, out: &mut Faults) -> Option<TokenListener> {
    let listen = section.required_parsed("listen", "an address and a port such as 0.0.0.0:8443", out, |text| {
        text.parse::<SocketAddr>().map_err(|_| "expected an address and a port such as 0.0.0.0:8443")
    });
    let server_names = section.texts("server_names", out).unwrap_or_default();
    if server_names.is_empty() || server_names.len() > SERVER_NAMES_MAX {
        let expected = format!("expected 1 to {SERVER_NAMES_MAX} names, such as cluster-identity.towline.svc");
        out.push(section.key("server_names"), expected);
    }
    for name in &server_names {
        if rustls::pki_types::ServerName::try_from(name.as_str()).is_err() {
            out.push(section.key("server_names"), format_args!("{name:?}: expected a host name or an address"));
        }
    }
    let directory = section.path("directory", out);
    if !roles.manages() {
        out.push(section.key("listen"), "is for roles controller-manager and all: they have the cluster's identity");
    }
    section.end(out);
    Some(TokenListener { listen: listen?, server_names, directory })
}

pub(super) fn read_via(text: &str) -> Result<Via, &'static str> {
    const EXPECTED: &str = "expected host:port, such as clusterconnect-agent.towline.svc:8079";
    let authority: http::uri::Authority = text.parse().map_err(|_| EXPECTED)?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = authority.port_u16().ok_or(EXPECTED)?;
    if host.is_empty() || text.contains(['@', '/']) {
        return Err(EXPECTED);
    }
    let address = host.strip_suffix(".svc").and_then(service_address);
    Ok(Via { host, port, address })
}

/// The address of the Service `name.namespace`, where the environment of the pod has it and it is of the pod's namespace
/// (Kubernetes gives no others).
fn service_address(service: &str) -> Option<IpAddr> {
    let (name, _) = service.split_once('.')?;
    let name = name.to_ascii_uppercase().replace('-', "_");
    std::env::var(format!("{name}_SERVICE_HOST")).ok()?.parse().ok()
}

pub(super) fn read_metadata(mut section: Section, out: &mut Faults) -> Metadata {
    let mut word = |name: &'static str| {
        section.parsed(name, out, |text| {
            let plain = text.len() <= METADATA_MAX && !text.chars().any(char::is_control);
            if plain { Ok(text.to_owned()) } else { Err("expected a short word such as k3s") }
        })
    };
    let metadata = Metadata { distribution: word("distribution"), infrastructure: word("infrastructure") };
    section.end(out);
    metadata
}
