//! Where the agent's certificate comes from, and what is dialled in place of the gateway.

use std::{net::IpAddr, path::PathBuf};

use daemon::settings::{Faults, Section};
use types::ids::ClusterId;

use super::RoleSet;

/// The longest name of a Secret (a DNS subdomain).
const SECRET_NAME_MAX: usize = 253;

/// Where the agent's certificate comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdentitySource {
    /// Two PEM files that somebody else looks after.
    Files {
        /// The agent's certificate chain.
        certificate_file: PathBuf,
        /// Path of the private key.
        key_file: PathBuf,
    },
    /// The agents get and renew it themselves.
    Managed(ManagedIdentity),
}

/// A certificate that the agents look after.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManagedIdentity {
    /// ARM id of the cluster that the certificate is for.
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
    /// A folder of the local file system.
    Directory(PathBuf),
}

/// What is dialled in place of the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Via {
    /// Host name or IP address, an IPv6 address without brackets.
    pub host: String,
    /// TCP port; there is no default.
    pub port: u16,
    /// Its address where the environment tells one: a pod knows the Services of its namespace without DNS.
    pub address: Option<IpAddr>,
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

/// The address of the Service `name.namespace`, where the environment of the pod has it and it is of the pod's
/// namespace (Kubernetes gives no others).
fn service_address(service: &str) -> Option<IpAddr> {
    let (name, _) = service.split_once('.')?;
    let name = name.to_ascii_uppercase().replace('-', "_");
    std::env::var(format!("{name}_SERVICE_HOST")).ok()?.parse().ok()
}
