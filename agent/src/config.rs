//! Valid settings. Parsed once: [`Config`] cannot hold what does not fit, and every fault of a file is reported at
//! once.
//!
//! What may be in a file, and what it means: [`reference`] and `agent/reference.toml`.

mod deployment;
mod extensions;
mod gitops;
mod guard;
mod identity;
mod identity_tokens;
mod metadata;
mod proxy;
pub mod reference;
mod upgrades;

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use auth::token::Issuer;
use daemon::{
    settings::{self, BadFile, Faults, Section},
    telemetry::{self, LogFormat},
};
use tunnel::transport::CarrierKind;
use types::limits;

use self::{
    deployment::is_for,
    identity::{read_identity, read_via},
    proxy::read_proxy,
};
pub use self::{
    deployment::{Deployment, RoleSet},
    extensions::{Extensions, LockedSetting, chart_registry, is_registry, registry, secret_name},
    gitops::{Gitops, proxy_address},
    guard::{DecisionCache, Guard, Owner, service_address},
    identity::{IdentitySource, IdentityStore, ManagedIdentity, Via},
    identity_tokens::TokenListener,
    metadata::Metadata,
    proxy::{NoProxy, Proxy},
    upgrades::Upgrades,
};

/// The most gateway addresses that are tried in turn.
const GATEWAYS_MAX: usize = 16;
/// Replicas of the gateway that an agent keeps tunnels to where nothing else is set, if there are as many.
pub const REPLICAS: usize = 2;
/// The same at most. As many as a hello can name.
const REPLICAS_MAX: u32 = 8;
/// The longest that a session may outlive its token, and that a drain may take.
const OUTLIVE_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
const DRAIN_MAX: Duration = Duration::from_secs(24 * 3600);
/// Where Kubernetes puts a pod's service account.
const SERVICE_ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The agent's settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// What this process does.
    pub roles: RoleSet,
    /// How the gateway is reached.
    pub gateway: Gateway,
    /// Where connections for the gateway alone are taken, for agents that have no way out.
    pub forward: Option<SocketAddr>,
    /// Where others in the cluster ask for tokens of its identity.
    pub identity_tokens: Option<TokenListener>,
    /// How helm charts are installed as extensions; none: they are not.
    pub extensions: Option<Extensions>,
    /// What flux configurations may do in this cluster; none: there are none.
    pub gitops: Option<Gitops>,
    /// The webhook server for the cluster's apiserver; none: there is none.
    pub guard: Option<Guard>,
    /// How the agents are upgraded by themselves; none: they are not.
    pub upgrades: Option<Upgrades>,
    /// What is known of the cluster beforehand.
    pub metadata: Metadata,
    /// How the cluster is reached.
    pub cluster: Cluster,
    /// Who may issue users' tokens.
    pub issuers: Vec<Issuer>,
    /// The outbound proxy, if any.
    pub proxy: Option<Proxy>,
    /// Bounds on who is impersonated.
    pub impersonation: Impersonation,
    /// The issuer that vouches for roles and assignments; none: the cluster's own RBAC decides alone (Z9).
    pub azure_rbac: Option<String>,
    /// How long a session may outlive its token.
    pub outlive_token: Duration,
    /// Exchanges served at once.
    pub streams_max: usize,
    /// How long a drain waits for accepted requests.
    pub drain_grace: Duration,
    /// The admin listener's address.
    pub admin: Option<SocketAddr>,
    /// What is logged and how.
    pub log: Log,
}

/// What is logged and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Log {
    /// A level, or a filter such as `info,agent=debug`.
    pub level: String,
    /// The format of log lines.
    pub format: LogFormat,
}

/// Where the gateway is and how it is trusted.
#[derive(Debug, Clone)]
pub struct Gateway {
    /// Tried in turn; never empty.
    pub endpoints: Vec<Endpoint>,
    /// Roots of its certificate; none: those of the system.
    pub ca_file: Option<PathBuf>,
    /// Roots beside them.
    pub extra_ca_file: Option<PathBuf>,
    /// Where the agent's certificate comes from.
    pub identity: IdentitySource,
    /// Dialled in place of the gateway, over TCP.
    pub via: Option<Via>,
    /// Which carriers may be used.
    pub carrier: CarrierChoice,
    /// Whether the kernel may cut QUIC's datagrams out of larger ones (GSO). Off where a driver or a middlebox breaks
    /// it.
    pub udp_segmentation_offload: bool,
    /// Replicas of the gateway that tunnels are kept to, if there are as many.
    pub replicas: usize,
}

/// One address of the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Host name or address as written.
    pub host: String,
    /// The TCP or UDP port.
    pub port: u16,
    /// The name that its certificate must have.
    pub server_name: String,
    /// Instead of DNS.
    pub addresses: Vec<IpAddr>,
}

impl Endpoint {
    /// `host:port`, as a CONNECT request has it.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// Which carriers may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CarrierChoice {
    /// Races them and moves between them.
    #[default]
    Auto,
    /// This one and no other.
    Pinned(CarrierKind),
}

impl FromStr for CarrierChoice {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "auto" => Ok(Self::Auto),
            "quic" => Ok(Self::Pinned(CarrierKind::Quic)),
            "h2" => Ok(Self::Pinned(CarrierKind::Http2)),
            "websocket" => Ok(Self::Pinned(CarrierKind::WebSocket)),
            _ => Err("expected auto, quic, h2 or websocket"),
        }
    }
}

/// How the cluster's apiserver is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cluster {
    /// By the pod's service account in this folder (`token`, `ca.crt`); the address comes from the environment.
    InCluster {
        /// The folder with the files `token` and `ca.crt`.
        service_account_dir: PathBuf,
    },
    /// By the credential of a kubeconfig.
    Kubeconfig {
        /// Path of the kubeconfig file.
        path: PathBuf,
        /// The context; none: its current one.
        context: Option<String>,
    },
}

impl Cluster {
    /// By the service account of the pod, where Kubernetes puts it.
    pub fn of_pod() -> Self {
        Self::InCluster { service_account_dir: SERVICE_ACCOUNT_DIR.into() }
    }
}

/// Bounds on who is impersonated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Impersonation {
    /// Extra keys of an identity that are sent to the apiserver.
    pub extras: Vec<String>,
    /// Exact reserved names (`system:...`) that may be impersonated all the same.
    pub allow_reserved: Vec<String>,
}

impl Default for Impersonation {
    fn default() -> Self {
        Self { extras: vec!["oid".to_owned()], allow_reserved: Vec::new() }
    }
}

impl Config {
    /// Reads a file. Every fault is reported at once.
    pub fn load(path: &Path) -> Result<Self, BadFile> {
        let mut faults = Faults::default();
        match Self::read(settings::read(path)?, &mut faults) {
            Some(config) if faults.is_empty() => Ok(config),
            _ => Err(faults.of(path)),
        }
    }

    /// Reads the text of a file in the folder `base`.
    pub fn parse(text: &str, base: &Path) -> Result<Self, Faults> {
        let mut faults = Faults::default();
        match Self::read(Section::parse(text, base)?, &mut faults) {
            Some(config) if faults.is_empty() => Ok(config),
            _ => Err(faults),
        }
    }

    fn read(mut root: Section, out: &mut Faults) -> Option<Self> {
        let roles = root.parsed("roles", out, RoleSet::from_str).unwrap_or_default();
        let identity = root.optional_section("identity", out).map(|section| read_identity(section, roles, out));
        let gateway = read_gateway(root.section("gateway", out), identity, out);
        let mut forward = root.section("forward", out);
        let forward_listen = read_listen(&mut forward, out);
        if forward_listen.is_some() && !roles.serves_users() {
            out.push(forward.key("listen"), is_for(Deployment::ClusterconnectAgent, "they have the way out"));
        }
        forward.end(out);
        let identity_tokens = root.optional_section("identity_tokens", out);
        let identity_tokens = identity_tokens.and_then(|section| identity_tokens::read(section, roles, out));
        let extensions = root.optional_section("extensions", out);
        let extensions = extensions.map(|section| extensions::read(section, roles, out));
        let gitops = root.optional_section("gitops", out).map(|section| gitops::read(section, roles, out));
        let gitops = gitops.or_else(|| (roles == RoleSet::Of(Deployment::FluxconfigAgent)).then(Gitops::default));
        let upgrades = root.optional_section("upgrades", out).map(|section| upgrades::read(section, roles, out));
        if upgrades.is_none() && roles == RoleSet::Of(Deployment::Upgrader) {
            out.push("upgrades", "must be there with roles = \"upgrader\": which keys sign the catalogue");
        }
        let metadata = metadata::read(root.section("metadata", out), out);
        let cluster = read_cluster(root.section("cluster", out), out);
        let (_, issuers) = Issuer::read_all(&mut root, out);
        let named = root.has("proxy");
        let proxy = root.section("proxy", out);
        let proxy = if named { read_proxy(proxy, out) } else { None };
        let impersonation = read_impersonation(root.section("impersonation", out), out);
        let guard = match root.optional_section("guard", out) {
            Some(section) => guard::read(section, roles, &issuers, &impersonation, out),
            None => {
                if roles == RoleSet::Of(Deployment::Guard) {
                    out.push("guard", "must be there with roles = \"guard\": where the apiserver asks");
                }
                None
            }
        };
        let azure_rbac = root.optional_section("azure_rbac", out).and_then(|s| read_azure_rbac(s, &issuers, out));
        let mut sessions = root.section("sessions", out);
        let outlive_token = sessions.duration("outlive_token", Duration::ZERO..=OUTLIVE_MAX, out);
        sessions.end(out);
        let mut bounds = root.section("limits", out);
        let streams = bounds.number("streams", 1..=4 * limits::STREAMS_PER_TUNNEL, out);
        let drain_grace = bounds.duration("drain_grace", Duration::ZERO..=DRAIN_MAX, out);
        bounds.end(out);
        let mut admin = root.section("admin", out);
        let listen = read_listen(&mut admin, out);
        admin.end(out);
        let log = read_log(root.section("log", out), out);
        root.end(out);
        Some(Self {
            roles,
            gateway: gateway?,
            forward: forward_listen,
            identity_tokens,
            extensions,
            gitops,
            guard,
            upgrades,
            metadata,
            cluster,
            issuers,
            proxy,
            impersonation,
            azure_rbac,
            outlive_token: outlive_token.unwrap_or(Duration::from_secs(8 * 3600)),
            streams_max: usize::try_from(streams.unwrap_or(limits::STREAMS_PER_TUNNEL)).unwrap_or(usize::MAX),
            drain_grace: drain_grace.unwrap_or(Duration::from_secs(30)),
            admin: listen,
            log,
        })
    }
}

fn read_azure_rbac(mut section: Section, issuers: &[Issuer], out: &mut Faults) -> Option<String> {
    let name = section.required_parsed("issuer", "the name of an issuer whose keys are pinned", out, |name| {
        match issuers.iter().find(|issuer| issuer.name() == name) {
            Some(issuer) if issuer.has_own_keys() => Ok(name.to_owned()),
            Some(_) => {
                Err("its keys are not pinned: any server at its address could give rights; set pinned_keys_file")
            }
            None => Err("is not one of [[issuers]]"),
        }
    });
    section.end(out);
    name
}

fn read_listen(section: &mut Section, out: &mut Faults) -> Option<SocketAddr> {
    section.parsed("listen", out, |text| {
        text.parse::<SocketAddr>().map_err(|_| "expected an address and a port such as 127.0.0.1:9091")
    })
}

/// `managed`: section `identity`, if there is one, read as far as it could be.
fn read_gateway(mut section: Section, managed: Option<Option<ManagedIdentity>>, out: &mut Faults) -> Option<Gateway> {
    let key = section.key("url");
    let before = out.0.len();
    let mut urls = section.texts("urls", out).unwrap_or_default();
    urls.extend(section.text("url", out));
    let server_name = section.text("server_name", out);
    let mut addresses = Vec::new();
    for text in section.texts("addresses", out).unwrap_or_default() {
        match text.parse() {
            Ok(address) => addresses.push(address),
            Err(_) => out.push(section.key("addresses"), format_args!("{text:?}: expected an IP address")),
        }
    }
    if out.0.len() == before && (urls.is_empty() || urls.len() > GATEWAYS_MAX) {
        let allowed = format!("expected url or 1 to {GATEWAYS_MAX} urls, such as \"https://gateway.example.org\"");
        out.push(&key, allowed);
    }
    let mut endpoints = Vec::new();
    for text in &urls {
        match split_url(text, &["https"]) {
            Ok((_, host, port)) => endpoints.push(Endpoint {
                server_name: server_name.clone().unwrap_or_else(|| host.clone()),
                host,
                port,
                addresses: addresses.clone(),
            }),
            Err(err) => out.push(&key, format_args!("{text:?}: {err}")),
        }
    }
    let ca_file = section.path("ca_file", out);
    let extra_ca_file = section.path("extra_ca_file", out);
    let identity = match managed {
        Some(managed) => {
            for name in ["certificate_file", "key_file"] {
                if section.path(name, out).is_some() {
                    out.push(section.key(name), "is not for an agent with [identity]; set one or the other");
                }
            }
            managed.map(IdentitySource::Managed)
        }
        None => {
            let what = "the PEM file of the agent's certificate; or write [identity]";
            let certificate_file = section.required_path("certificate_file", what, out);
            let key_file = section.required_path("key_file", "the PEM file of its private key", out);
            certificate_file
                .zip(key_file)
                .map(|(certificate_file, key_file)| IdentitySource::Files { certificate_file, key_file })
        }
    };
    let carrier = section.parsed("carrier", out, CarrierChoice::from_str).unwrap_or_default();
    let via = section.parsed("via", out, read_via);
    if via.is_some() && carrier == CarrierChoice::Pinned(CarrierKind::Quic) {
        out.push(section.key("carrier"), "is \"quic\", which does not go through gateway.via: that is TCP");
    }
    let udp_segmentation_offload = section.flag("udp_segmentation_offload", out).unwrap_or(true);
    let replicas = section.number("replicas", 1..=REPLICAS_MAX, out);
    let replicas = replicas.and_then(|replicas| usize::try_from(replicas).ok()).unwrap_or(REPLICAS);
    section.end(out);
    let identity = identity?;
    Some(Gateway { endpoints, ca_file, extra_ca_file, identity, via, carrier, udp_segmentation_offload, replicas })
}

fn read_cluster(mut section: Section, out: &mut Faults) -> Cluster {
    let path = section.path("kubeconfig", out);
    let context = section.text("context", out);
    let dir = section.path("service_account_dir", out);
    if path.is_some() && dir.is_some() {
        out.push(section.key("kubeconfig"), "only one of kubeconfig and service_account_dir may be set");
    }
    if path.is_none() && context.is_some() {
        out.push(section.key("context"), "needs kubeconfig");
    }
    section.end(out);
    match path {
        Some(path) => Cluster::Kubeconfig { path, context },
        None => Cluster::InCluster { service_account_dir: dir.unwrap_or_else(|| SERVICE_ACCOUNT_DIR.into()) },
    }
}

fn read_log(mut section: Section, out: &mut Faults) -> Log {
    let level = section.parsed("level", out, |text| telemetry::check(text).map(|()| text.to_owned()));
    let format = section.parsed("format", out, |text| match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("expected text or json"),
    });
    section.end(out);
    Log { level: level.unwrap_or_else(|| "info".to_owned()), format: format.unwrap_or_default() }
}

fn read_impersonation(mut section: Section, out: &mut Faults) -> Impersonation {
    let mut settings = Impersonation::default();
    if let Some(extras) = section.texts("extras", out) {
        for key in &extras {
            if key.is_empty() || key.len() > 256 || key.chars().any(|c| c.is_ascii_uppercase() || c.is_control()) {
                out.push(section.key("extras"), format_args!("{key:?}: expected a lower-case key"));
            }
        }
        settings.extras = extras;
    }
    settings.allow_reserved = section.texts("allow_reserved", out).unwrap_or_default();
    section.end(out);
    settings
}

/// Scheme, host and port of an address without a path, user or query.
fn split_url(text: &str, schemes: &[&'static str]) -> Result<(&'static str, String, u16), String> {
    let expected = || format!("expected {}://host[:port] and nothing else", schemes.join(":// or "));
    let (scheme, rest) = text.split_once("://").ok_or_else(expected)?;
    let scheme = schemes.iter().find(|known| scheme.eq_ignore_ascii_case(known)).ok_or_else(expected)?;
    let authority: http::uri::Authority = rest.trim_end_matches('/').parse().map_err(|_| expected())?;
    let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
    if host.is_empty() || authority.as_str().contains('@') {
        return Err(expected());
    }
    let port = match authority.port_u16() {
        Some(port) => port,
        None if authority.as_str().len() != authority.host().len() => return Err(expected()),
        None if *scheme == "https" => 443,
        None => 80,
    };
    Ok((scheme, host, port))
}

/// Where the apiserver is for a pod, from the environment that Kubernetes gives every pod.
pub fn in_cluster_address() -> Option<(String, u16)> {
    let host = std::env::var("KUBERNETES_SERVICE_HOST").ok().filter(|host| !host.is_empty())?;
    let port = std::env::var("KUBERNETES_SERVICE_PORT").ok()?.parse().ok()?;
    Some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMALL: &str =
        "[gateway]\nurl = \"https://gw.example.org\"\ncertificate_file = \"tls.crt\"\nkey_file = \"/k\"\n";

    #[test]
    fn a_small_file_is_enough() {
        let config = Config::parse(SMALL, Path::new("/etc/towline")).unwrap();
        assert_eq!(config.gateway.endpoints[0].authority(), "gw.example.org:443");
        let files = IdentitySource::Files { certificate_file: "/etc/towline/tls.crt".into(), key_file: "/k".into() };
        assert_eq!(config.gateway.identity, files);
        assert_eq!(config.roles, RoleSet::Of(Deployment::ClusterconnectAgent));
        assert_eq!(config.cluster, Cluster::InCluster { service_account_dir: SERVICE_ACCOUNT_DIR.into() });
        assert_eq!(config.outlive_token, Duration::from_secs(28800));
    }

    #[test]
    fn all_faults_are_reported_at_once() {
        let text = r#"
            colour = "red"
            [gateway]
            url = "http://user@gw/path"
            carrier = "pigeon"
            udp_segmentation_offload = "no"
            certificate_file = 7
            sever_name = "x"
            [cluster]
            context = "c"
            [sessions]
            outlive_token = "8"
            [proxy]
            url = "socks://x"
            no_proxy = ["10.0.0.0/33"]
            [limits]
            streams = 0
            [admin]
            listen = "9091"
            [log]
            level = "a=b=c"
            [[issuers]]
            nam = "x"
        "#;
        let faults = Config::parse(text, Path::new(".")).unwrap_err().0;
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        for key in [
            "colour: is not known; known here: roles, identity, gateway, forward, identity_tokens, extensions, gitops, upgrades, metadata, cluster, issuers, proxy",
            "gateway.url: \"http",
            "gateway.carrier: is \"pigeon\": expected auto",
            "gateway.udp_segmentation_offload: is \"no\", must be true or false",
            "gateway.certificate_file: is 7",
            "gateway.key_file: is missing",
            "gateway.sever_name: is not known",
            "cluster.context: needs kubeconfig",
            "sessions.outlive_token: is \"8\"",
            "proxy.url: is \"socks://x\"",
            "proxy.no_proxy:",
            "limits.streams: is 0, must be a whole number from 1",
            "admin.listen: is \"9091\": expected an address and a port",
            "log.level: is \"a=b=c\"",
            "issuers[0].nam:",
            "issuers[0].name: is missing",
            "issuers[0].url: is missing",
        ] {
            assert!(faults.iter().any(|fault| fault.starts_with(key)), "{key} in {faults:#?}");
        }
    }

    const CLUSTER: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c";

    #[test]
    fn an_identity_of_its_own_takes_the_place_of_the_two_files() {
        let text = format!(
            "roles = \"controller-manager\"\n[gateway]\nurl = \"https://gw\"\nvia = \"agent.towline.svc:8079\"\n\
             [identity]\ncluster_id = \"{CLUSTER}\"\nsecret = \"towline-identity-certificate\"\n\
             onboarding_key_file = \"key.pem\"\n[metadata]\ndistribution = \"k3s\"\n"
        );
        let config = Config::parse(&text, Path::new("/etc/towline")).unwrap();
        let IdentitySource::Managed(managed) = config.gateway.identity else { panic!() };
        assert_eq!(managed.cluster, CLUSTER.parse().unwrap());
        assert_eq!(managed.store, IdentityStore::Secret("towline-identity-certificate".to_owned()));
        assert_eq!(managed.onboarding_key_file.as_deref(), Some(Path::new("/etc/towline/key.pem")));
        let via = config.gateway.via.unwrap();
        assert_eq!((via.host.as_str(), via.port), ("agent.towline.svc", 8079));
        assert_eq!(config.metadata.distribution.as_deref(), Some("k3s"));
        assert!(config.roles.manages() && !config.roles.serves_users());
    }

    #[test]
    fn all_faults_of_roles_and_identity_are_reported_at_once() {
        let faults_of = |text: &str| -> Vec<String> {
            let faults = Config::parse(text, Path::new(".")).unwrap_err().0;
            faults.iter().map(ToString::to_string).collect()
        };
        let text = r#"
            roles = "everything"
            [gateway]
            url = "https://gw"
            certificate_file = "tls.crt"
            carrier = "quic"
            via = "agent"
            [identity]
            cluster_id = "c"
            secret = "UPPER"
            directory = "d"
            onboarding_key_file = "key.pem"
            sekret = "x"
            [forward]
            listen = "8079"
            [metadata]
            distro = "k3s"
        "#;
        let faults = faults_of(text);
        for key in [
            "roles: is \"everything\": expected clusterconnect-agent, controller-manager, extension-manager, fluxconfig-agent, flux-logs-agent, guard, upgrader or all",
            "gateway.certificate_file: is not for an agent with [identity]",
            "gateway.via: is \"agent\": expected host:port",
            "identity.cluster_id: is \"c\"",
            "identity.secret: is \"UPPER\"",
            "identity.onboarding_key_file: is read where controller-manager runs alone",
            "identity.sekret: is not known",
            "forward.listen: is \"8079\"",
            "metadata.distro: is not known",
        ] {
            assert!(faults.iter().any(|fault| fault.starts_with(key)), "{key} in {faults:#?}");
        }
        let text = format!(
            "roles = \"controller-manager\"\n[gateway]\nurl = \"https://gw\"\nvia = \"a:1\"\ncarrier = \"quic\"\n\
             [identity]\ncluster_id = \"{CLUSTER}\"\n[forward]\nlisten = \"0.0.0.0:1\"\n"
        );
        let faults = faults_of(&text);
        for key in
            ["gateway.carrier: is \"quic\", which", "identity.secret: is missing", "forward.listen: is for roles"]
        {
            assert!(faults.iter().any(|fault| fault.starts_with(key)), "{key} in {faults:#?}");
        }
    }

    #[test]
    fn no_proxy_knows_domains_and_networks() {
        let matches = |rule: &str, host: &str| rule.parse::<NoProxy>().unwrap().matches(host);
        assert!(matches("*", "x"));
        assert!(matches(".example.org", "gw.Example.org"));
        assert!(matches("example.org", "example.org"));
        assert!(!matches("example.org", "notexample.org"));
        assert!(matches("10.0.0.0/8", "10.9.8.7"));
        assert!(!matches("10.0.0.0/8", "11.0.0.1"));
        assert!(matches("0.0.0.0/0", "11.0.0.1"));
        assert!(matches("10.1.2.3", "10.1.2.3"));
        assert!(matches("fd00::/8", "fd12::1"));
        assert!(matches("::/0", "fd12::1"));
        assert!(!matches("10.0.0.0/8", "gateway"));
    }

    /// The fault of a proxy's address was told with the password in it, in the pod's log.
    #[test]
    fn a_fault_shows_no_password() {
        for proxy in ["url = \"http://u:pa55@proxy:1\"", "url = \"u:pa55@proxy\"", "url = \"http://u:pa55@proxy:1"] {
            let faults = Config::parse(&format!("{SMALL}[proxy]\n{proxy}\n"), Path::new(".")).unwrap_err();
            assert!(!faults.is_empty() && !format!("{faults:?}").contains("pa55"), "{faults:?}");
        }
    }

    #[test]
    fn urls_have_no_path_and_no_user() {
        assert_eq!(split_url("https://[::1]:8443/", &["https"]).unwrap(), ("https", "::1".to_owned(), 8443));
        for bad in ["https://a/b", "https://u@a", "http://a", "a:1", "https://", "https://a:99999", "https://a:"] {
            assert!(split_url(bad, &["https"]).is_err(), "{bad}");
        }
    }
}
