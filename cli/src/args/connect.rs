//! `towline connect`, `delete` and `troubleshoot`: what is done in a Kubernetes cluster.

use std::{net::IpAddr, path::PathBuf, time::Duration};

use clap::Args as ClapArgs;
use daemon::settings::positive_duration;

use super::{CommonArgs, NamedCluster, TagArgs, names};
use crate::manifests;

/// What `--distribution` knows.
const DISTRIBUTIONS: [&str; 18] = [
    "generic",
    "openshift",
    "rancher_rke",
    "kind",
    "k3s",
    "minikube",
    "gke",
    "eks",
    "aks",
    "aks_management",
    "aks_workload",
    "capz",
    "aks_engine",
    "tkg",
    "canonical",
    "karbon",
    "aks_edge_k3s",
    "aks_edge_k8s",
];
const INFRASTRUCTURES: [&str; 9] = [
    "generic",
    "azure",
    "aws",
    "gcp",
    "azure_stack_hci",
    "azure_stack_hub",
    "azure_stack_edge",
    "vsphere",
    "windows_server",
];

/// Which Kubernetes cluster: the context of a kubeconfig.
#[derive(Debug, ClapArgs, Clone)]
pub struct KubeArgs {
    /// The kubeconfig by which the cluster is reached; KUBECONFIG or ~/.kube/config without this
    #[arg(long, value_name = "FILE", help_heading = "Kubernetes")]
    pub kube_config: Option<PathBuf>,
    /// Its context; the current one without this
    #[arg(long, value_name = "NAME", help_heading = "Kubernetes")]
    pub kube_context: Option<String>,
}

/// How the agents get to the gateway.
#[derive(Debug, ClapArgs, Clone, Default)]
pub struct AgentProxyArgs {
    /// The proxy of the agents, http://[user@]host:port or https://...
    #[arg(long, value_name = "URL", help_heading = "Agents")]
    pub proxy_https: Option<String>,
    /// As --proxy-https, for clusters where only this is set: all that agents do is HTTPS
    #[arg(long, value_name = "URL", help_heading = "Agents")]
    pub proxy_http: Option<String>,
    /// Hosts, domains and networks that are reached without it, with commas between
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Agents")]
    pub proxy_skip_range: Vec<String>,
    /// PEM file of the authority of the proxy, or of one that ends the TLS on the way
    #[arg(long, visible_alias = "custom-ca-cert", value_name = "FILE", help_heading = "Agents")]
    pub proxy_cert: Option<PathBuf>,
    /// File with the proxy's password (- is standard input), or TOWLINE_AGENT_PROXY_PASSWORD; the user's name is part of the URL
    #[arg(long, value_name = "FILE", help_heading = "Agents")]
    pub proxy_password_file: Option<PathBuf>,
    /// Go without the proxy that was set before
    #[arg(long, help_heading = "Agents")]
    pub disable_proxy: bool,
}

/// What is installed. What is not typed is as it was, where there are agents.
#[derive(Debug, ClapArgs, Clone, Default)]
pub struct AgentArgs {
    /// How they get to the gateway.
    #[command(flatten)]
    pub proxy: AgentProxyArgs,
    /// The image, REPOSITORY[:TAG] or REPOSITORY@sha256:...
    #[arg(long, value_name = "NAME", value_parser = names::image, help_heading = "Agents")]
    pub image: Option<String>,
    /// The namespace; made if it is not there
    #[arg(long, value_name = "NAME", value_parser = names::namespace, default_value = manifests::NAMESPACE, help_heading = "Agents")]
    pub namespace: String,
    /// How many pods hold a tunnel each
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=25), help_heading = "Agents")]
    pub replicas: Option<u32>,
    /// Pin the carrier of the tunnel
    #[arg(long, value_name = "NAME", value_parser = ["auto", "quic", "h2", "websocket"], help_heading = "Agents")]
    pub carrier: Option<String>,
    /// A line of the pods' /etc/hosts, ADDRESS=NAME[,NAME]; repeat for more; "" for none
    #[arg(long = "host-alias", value_name = "ADDRESS=NAME", value_parser = host_alias_or_none, help_heading = "Agents")]
    pub host_aliases: Vec<Option<(IpAddr, Vec<String>)>>,
    /// Let the gateway's roles and assignments decide single Kubernetes calls too, beside the cluster's own RBAC
    #[arg(
        long,
        value_name = "true|false",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        help_heading = "Agents"
    )]
    pub azure_rbac: Option<bool>,
    /// The cluster's distribution, instead of what its nodes look like
    #[arg(long, value_name = "NAME", value_parser = DISTRIBUTIONS, help_heading = "Agents")]
    pub distribution: Option<String>,
    /// What it runs on, instead of what its nodes look like
    #[arg(long, value_name = "NAME", value_parser = INFRASTRUCTURES, help_heading = "Agents")]
    pub infrastructure: Option<String>,
}

/// The cluster's resource; a one-time token tells its group.
#[derive(Debug, ClapArgs, Clone)]
pub struct ConnectedCluster {
    /// The cluster
    #[arg(short = 'n', long, value_name = "NAME", value_parser = names::new_cluster)]
    pub name: String,
    /// Its resource group; an enrolment token tells it
    #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group, required_unless_present_any = ["token", "token_file"])]
    pub resource_group: Option<String>,
}

/// A one-time token in place of a sign-in (docs/features.md R14).
#[derive(Debug, ClapArgs, Clone)]
#[command(next_help_heading = "One-time token")]
pub struct EnrolmentArgs {
    /// A token of `towline enrolment-token create`, instead of a sign-in. Others on this machine can read command lines: --token-file
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["token_file", "existing", "account"])]
    pub token: Option<String>,
    /// File with it; - is standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["existing", "account"])]
    pub token_file: Option<PathBuf>,
    /// The gateway, such as https://gateway.example.org; TOWLINE_GATEWAY, or that of the account that is signed in, without this
    #[arg(long, value_name = "URL")]
    pub server: Option<String>,
    /// PEM file of the authority of the gateway's certificate; TOWLINE_CA_FILE, or the system's, without this
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

/// `towline connect`.
#[derive(Debug, ClapArgs)]
pub struct ConnectArgs {
    /// The resource that is made.
    #[command(flatten)]
    pub cluster: ConnectedCluster,
    /// What stands in for a sign-in.
    #[command(flatten)]
    pub enrolment: EnrolmentArgs,
    /// Where the resource is said to be; that of its group without this
    #[arg(short = 'l', long, value_name = "LOCATION", value_parser = names::location)]
    pub location: Option<String>,
    /// Its tags.
    #[command(flatten)]
    pub tags: TagArgs,
    /// Which Kubernetes cluster.
    #[command(flatten)]
    pub kube: KubeArgs,
    /// What is installed.
    #[command(flatten)]
    pub agent: AgentArgs,
    /// Attach this cluster to a resource that exists already
    #[arg(long)]
    pub existing: bool,
    /// PEM file (PKCS#8) of the private key whose public half the resource has, instead of a new key
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// Replace agents that belong to another gateway, or with --token to a cluster that may still be there; their resource is
    /// left without agents
    #[arg(long)]
    pub force: bool,
    /// Do not try first, by a job in the cluster, whether pods reach the gateway
    #[arg(long)]
    pub skip_network_check: bool,
    /// How long the agents may take to connect, and the check of the network until it runs
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, default_value = "20m")]
    pub onboarding_timeout: Duration,
    /// Do not wait until they have
    #[arg(long)]
    pub no_wait: bool,
    /// Print the manifests as YAML, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// As whom, and how the result is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `towline delete`.
#[derive(Debug, ClapArgs)]
pub struct DeleteArgs {
    /// The resource.
    #[command(flatten)]
    pub cluster: NamedCluster,
    /// Which Kubernetes cluster.
    #[command(flatten)]
    pub kube: KubeArgs,
    /// Delete the resource also where its agents cannot be removed, and remove what keeps them from going away
    #[arg(long)]
    pub force: bool,
    /// Do not ask
    #[arg(short = 'y', long)]
    pub yes: bool,
    /// Do not wait until everything is gone
    #[arg(long)]
    pub no_wait: bool,
    /// As whom, and how the result is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `towline troubleshoot`.
#[derive(Debug, ClapArgs)]
pub struct TroubleshootArgs {
    /// The resource.
    #[command(flatten)]
    pub cluster: NamedCluster,
    /// Which Kubernetes cluster.
    #[command(flatten)]
    pub kube: KubeArgs,
    /// Where the archive of what is found goes; towline-<name>-<time>.zip here without this
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// As whom, and how the result is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

fn host_alias_or_none(text: &str) -> Result<Option<(IpAddr, Vec<String>)>, String> {
    if text.is_empty() { Ok(None) } else { host_alias(text).map(Some) }
}

fn host_alias(text: &str) -> Result<(IpAddr, Vec<String>), String> {
    let wrong = || "expected ADDRESS=NAME[,NAME], such as 192.0.2.7=gateway.example.org".to_owned();
    let (address, names) = text.split_once('=').ok_or_else(wrong)?;
    let hosts: Vec<String> = names.split(',').map(|name| name.trim().to_owned()).collect();
    match (address.parse(), hosts.iter().all(|name| names::is_host(name))) {
        (Ok(address), true) => Ok((address, hosts)),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn i3_a_host_alias_is_an_address_and_names() {
        let (address, names) = host_alias("192.0.2.7=a.example.org,b").unwrap();
        assert_eq!(
            (address.to_string().as_str(), names),
            ("192.0.2.7", vec!["a.example.org".to_owned(), "b".to_owned()])
        );
        for wrong in ["", "a", "a=b", "192.0.2.7=", "192.0.2.7=a,", "192.0.2.7=a b"] {
            assert!(host_alias(wrong).is_err(), "{wrong}");
        }
    }
}
