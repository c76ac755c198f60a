//! Valid settings. Parsed once: [`Config`] cannot hold what does not fit, and every fault of a file is reported at once.
//!
//! ```toml
//! [gateway]
//! urls = ["https://gateway.example.org:8443"]   # or url = "..."; tried in turn
//! ca_file = "ca.crt"                  # roots of the gateway's certificate; absent: those of the system
//! extra_ca_file = "corporate.crt"     # roots beside them, such as an intercepting proxy's
//! certificate_file = "tls.crt"        # the agent's; the cluster's id is read from it
//! key_file = "tls.key"
//! server_name = "gateway.example.org" # when the certificate has another name than the url
//! carrier = "auto"                    # auto, quic, h2, websocket
//! addresses = ["192.0.2.7"]           # instead of DNS
//! udp_segmentation_offload = true     # false where a driver or a middlebox breaks QUIC's bundled datagrams (GSO)
//!
//! [cluster]                           # absent: in the cluster, by the pod's service account
//! kubeconfig = "kubeconfig"
//! context = "admin"
//! service_account_dir = "/var/run/secrets/kubernetes.io/serviceaccount"
//!
//! [[issuers]]                         # who may issue users' tokens, as at the gateway; checked here again
//! name = "towline"
//! url = "https://gateway.example.org:8443/.towline/issuer"
//!
//! [proxy]
//! url = "http://proxy.example.org:3128"
//! ca_file = "proxy-ca.crt"            # for https:// proxies
//! username_file = "proxy-username"
//! password_file = "proxy-password"
//! no_proxy = ["10.0.0.0/8", ".svc", "gateway.internal"]
//!
//! [impersonation]
//! extras = ["oid"]                    # extra keys sent to the apiserver; each needs RBAC (userextras/<key>)
//! allow_reserved = []                 # exact names that begin with "system:" and may be impersonated all the same
//!
//! [sessions]
//! outlive_token = "8h"                # how long a session may outlive its token; 0s is strict
//!
//! [limits]
//! streams = 8192                      # exchanges served at once
//! drain_grace = "30s"
//!
//! [log]
//! level = "info"                      # or a filter such as "info,agent=debug"
//! format = "text"                     # text, json
//!
//! [admin]
//! listen = "127.0.0.1:9091"           # health, readiness, status, metrics
//! ```

pub mod raw;

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use proto::{
    limits,
    process::telemetry::LogFormat,
    token::{Issuer, RawIssuer},
    transport::CarrierKind,
};
use secrecy::SecretString;
use serde::Deserialize as _;

pub use raw::Faults;
use raw::{Collector, Section};

/// The most gateway addresses that are tried in turn.
const GATEWAYS_MAX: usize = 16;
/// The most bytes of a configuration or a secret file.
const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// Where Kubernetes puts a pod's service account.
const SERVICE_ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The agent's settings.
#[derive(Debug, Clone)]
pub struct Config {
    /// How the gateway is reached.
    pub gateway: Gateway,
    /// How the cluster is reached.
    pub cluster: Cluster,
    /// Who may issue users' tokens.
    pub issuers: Vec<Issuer>,
    /// The outbound proxy, if any.
    pub proxy: Option<Proxy>,
    /// Bounds on who is impersonated.
    pub impersonation: Impersonation,
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
    /// How lines look.
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
    /// The agent's certificate chain.
    pub certificate_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
    /// Which carriers may be used.
    pub carrier: CarrierChoice,
    /// Whether the kernel may cut QUIC's datagrams out of larger ones (GSO). Off where a driver or a middlebox breaks it.
    pub udp_segmentation_offload: bool,
}

/// One address of the gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    /// Host name or address as written.
    pub host: String,
    /// Port.
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
        /// The folder.
        service_account_dir: PathBuf,
    },
    /// By a kubeconfig.
    Kubeconfig {
        /// The file.
        path: PathBuf,
        /// The context; none: its current one.
        context: Option<String>,
    },
}

/// An HTTP CONNECT proxy.
#[derive(Debug, Clone)]
pub struct Proxy {
    /// Whether the proxy itself is spoken to over TLS.
    pub tls: bool,
    /// Host.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Roots of the proxy's certificate.
    pub ca_file: Option<PathBuf>,
    /// Basic authentication.
    pub credentials: Option<(String, SecretString)>,
    /// Hosts that are reached without it.
    pub no_proxy: Vec<NoProxy>,
}

impl Proxy {
    /// Whether `host` is to be reached without the proxy.
    pub fn bypasses(&self, host: &str) -> bool {
        self.no_proxy.iter().any(|rule| rule.matches(host))
    }
}

/// One entry of `no_proxy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoProxy {
    /// `*`.
    All,
    /// A network in CIDR notation, or one address.
    Network(IpAddr, u8),
    /// A domain and what is below it.
    Domain(String),
}

impl FromStr for NoProxy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "*" {
            return Ok(Self::All);
        }
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        if let Ok(address) = address.parse::<IpAddr>() {
            let width = if address.is_ipv4() { 32 } else { 128 };
            let bits = match bits {
                None => width,
                Some(bits) => {
                    bits.parse().ok().filter(|bits| *bits <= width).ok_or("the network's length is out of range")?
                }
            };
            return Ok(Self::Network(address, bits));
        }
        let domain = text.trim_start_matches("*.").trim_start_matches('.');
        if domain.is_empty() || domain.contains(['/', ' ', '*']) {
            return Err("expected *, a domain, an address or a network such as 10.0.0.0/8");
        }
        Ok(Self::Domain(domain.to_ascii_lowercase()))
    }
}

impl NoProxy {
    fn matches(&self, host: &str) -> bool {
        match self {
            Self::All => true,
            Self::Network(network, bits) => match (network, host.parse::<IpAddr>()) {
                (IpAddr::V4(network), Ok(IpAddr::V4(host))) => {
                    let shift = 32 - u32::from(*bits);
                    u64::from(u32::from(*network)) >> shift == u64::from(u32::from(host)) >> shift
                }
                (IpAddr::V6(network), Ok(IpAddr::V6(host))) => {
                    let shift = 128 - u32::from(*bits);
                    u128::from(*network).checked_shr(shift) == u128::from(host).checked_shr(shift)
                }
                _ => false,
            },
            Self::Domain(domain) => {
                let host = host.to_ascii_lowercase();
                host == *domain || host.strip_suffix(domain.as_str()).is_some_and(|front| front.ends_with('.'))
            }
        }
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
    pub fn load(path: &Path) -> Result<Self, Faults> {
        let alone = |fault: String| Faults { file: path.to_owned(), faults: vec![fault] };
        let text = read_bounded(path).map_err(|err| alone(format!("cannot be read: {err}")))?;
        let base = path.parent().filter(|base| !base.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Self::parse(&text, base).map_err(|faults| Faults { file: path.to_owned(), faults })
    }

    /// Reads the text of a file in the folder `base`.
    pub fn parse(text: &str, base: &Path) -> Result<Self, Vec<String>> {
        let table: toml::Table = text.parse().map_err(|err: toml::de::Error| vec![unreadable(text, &err)])?;
        let mut out = Collector::new(base);
        let mut root = Section::root(table);
        let gateway = read_gateway(root.section("gateway", &mut out), &mut out);
        let cluster = read_cluster(root.section("cluster", &mut out), &mut out);
        let issuers = read_issuers(&mut root, base, &mut out);
        let proxy = if root.has("proxy") { read_proxy(root.section("proxy", &mut out), &mut out) } else { None };
        let impersonation = read_impersonation(root.section("impersonation", &mut out), &mut out);
        let mut sessions = root.section("sessions", &mut out);
        let outlive_token = sessions.duration("outlive_token", &mut out).unwrap_or(Duration::from_secs(8 * 3600));
        sessions.end(&mut out);
        let mut bounds = root.section("limits", &mut out);
        let streams = i64::from(limits::STREAMS_PER_TUNNEL);
        let streams = bounds.integer("streams", 1..=4 * streams, &mut out).unwrap_or(streams);
        let drain_grace = bounds.duration("drain_grace", &mut out).unwrap_or(Duration::from_secs(30));
        bounds.end(&mut out);
        let mut admin = root.section("admin", &mut out);
        let listen = admin.parsed("listen", &mut out, |text| {
            text.parse::<SocketAddr>().map_err(|_| "expected an address and a port such as 127.0.0.1:9091")
        });
        admin.end(&mut out);
        let log = read_log(root.section("log", &mut out), &mut out);
        root.end(&mut out);
        let faults = out.into_faults();
        match gateway {
            Some(gateway) if faults.is_empty() => Ok(Self {
                gateway,
                cluster,
                issuers,
                proxy,
                impersonation,
                outlive_token,
                streams_max: usize::try_from(streams).unwrap_or(usize::MAX),
                drain_grace,
                admin: listen,
                log,
            }),
            _ => Err(faults),
        }
    }
}

fn read_gateway(mut section: Section, out: &mut Collector) -> Option<Gateway> {
    let mut urls = section.texts("urls", out).unwrap_or_default();
    urls.extend(section.text("url", out));
    let server_name = section.text("server_name", out);
    let mut addresses = Vec::new();
    for text in section.texts("addresses", out).unwrap_or_default() {
        match text.parse() {
            Ok(address) => addresses.push(address),
            Err(_) => out.fault(&section.key("addresses"), format_args!("{text:?}: expected an IP address")),
        }
    }
    if urls.is_empty() || urls.len() > GATEWAYS_MAX {
        out.fault(
            &section.key("url"),
            format_args!("expected url or 1 to {GATEWAYS_MAX} urls, such as \"https://gateway.example.org\""),
        );
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
            Err(err) => out.fault(&section.key("url"), format_args!("{text:?}: {err}")),
        }
    }
    let ca_file = section.path("ca_file", out);
    let extra_ca_file = section.path("extra_ca_file", out);
    let mut required = |key: &'static str| {
        let path = section.path(key, out);
        if path.is_none() {
            out.fault(&section.key(key), "is required: a PEM file");
        }
        path
    };
    let (certificate_file, key_file) = (required("certificate_file"), required("key_file"));
    let carrier = section.parsed("carrier", out, CarrierChoice::from_str).unwrap_or_default();
    let udp_segmentation_offload = section.flag("udp_segmentation_offload", out).unwrap_or(true);
    section.end(out);
    Some(Gateway {
        endpoints,
        ca_file,
        extra_ca_file,
        certificate_file: certificate_file?,
        key_file: key_file?,
        carrier,
        udp_segmentation_offload,
    })
}

fn read_issuers(root: &mut Section, base: &Path, out: &mut Collector) -> Vec<Issuer> {
    let mut raws = root.tables("issuers", out, |table| {
        RawIssuer::deserialize(toml::Value::Table(table)).map_err(|err| err.to_string())
    });
    raws.iter_mut().for_each(|raw| raw.resolve_paths(base));
    match Issuer::all(raws) {
        Ok(issuers) => issuers,
        Err(faults) => {
            for fault in faults.0 {
                out.fault(&format!("issuers ({}).{}", fault.issuer, fault.key), fault.message);
            }
            Vec::new()
        }
    }
}

fn read_cluster(mut section: Section, out: &mut Collector) -> Cluster {
    let path = section.path("kubeconfig", out);
    let context = section.text("context", out);
    let dir = section.path("service_account_dir", out);
    if path.is_some() && dir.is_some() {
        out.fault(&section.key("kubeconfig"), "only one of kubeconfig and service_account_dir may be set");
    }
    if path.is_none() && context.is_some() {
        out.fault(&section.key("context"), "needs kubeconfig");
    }
    section.end(out);
    match path {
        Some(path) => Cluster::Kubeconfig { path, context },
        None => Cluster::InCluster { service_account_dir: dir.unwrap_or_else(|| SERVICE_ACCOUNT_DIR.into()) },
    }
}

fn read_proxy(mut section: Section, out: &mut Collector) -> Option<Proxy> {
    let url = section.parsed("url", out, |text| split_url(text, &["http", "https"]));
    if url.is_none() {
        out.fault(&section.key("url"), "is required: http://host:port or https://host:port");
    }
    let ca_file = section.path("ca_file", out);
    let username = section.path("username_file", out);
    let password = section.path("password_file", out);
    if username.is_some() != password.is_some() {
        out.fault(&section.key("username_file"), "username_file and password_file go together");
    }
    let mut read = |key: &'static str, path: Option<PathBuf>| {
        let path = path?;
        match read_bounded(&path) {
            Ok(text) => Some(text.trim_end_matches(['\r', '\n']).to_owned()),
            Err(err) => {
                out.fault(&section.key(key), format_args!("{}: {err}", path.display()));
                None
            }
        }
    };
    let username = read("username_file", username);
    let password = read("password_file", password).map(SecretString::from);
    let mut no_proxy = Vec::new();
    for text in section.texts("no_proxy", out).unwrap_or_default() {
        match text.parse() {
            Ok(rule) => no_proxy.push(rule),
            Err(err) => out.fault(&section.key("no_proxy"), format_args!("{text:?}: {err}")),
        }
    }
    section.end(out);
    let (scheme, host, port) = url?;
    Some(Proxy { tls: scheme == "https", host, port, ca_file, credentials: username.zip(password), no_proxy })
}

fn read_log(mut section: Section, out: &mut Collector) -> Log {
    let level = section.text("level", out).unwrap_or_else(|| "info".to_owned());
    let format = section.parsed("format", out, |text| match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err("expected text or json"),
    });
    section.end(out);
    Log { level, format: format.unwrap_or_default() }
}

fn read_impersonation(mut section: Section, out: &mut Collector) -> Impersonation {
    let mut settings = Impersonation::default();
    if let Some(extras) = section.texts("extras", out) {
        for key in &extras {
            if key.is_empty() || key.len() > 256 || key.chars().any(|c| c.is_ascii_uppercase() || c.is_control()) {
                out.fault(&section.key("extras"), format_args!("{key:?}: expected a lower-case key"));
            }
        }
        settings.extras = extras;
    }
    settings.allow_reserved = section.texts("allow_reserved", out).unwrap_or_default();
    section.end(out);
    settings
}

/// Why a file is no TOML, and in which line; not the line itself, which may hold what is not for a log.
fn unreadable(text: &str, err: &toml::de::Error) -> String {
    let line = err.span().and_then(|span| text.get(..span.start)).map_or(1, |before| before.matches('\n').count() + 1);
    format!("line {line}: {}", err.message())
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

fn read_bounded(path: &Path) -> std::io::Result<String> {
    use std::io::Read as _;
    let mut text = String::new();
    std::fs::File::open(path)?.take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(std::io::Error::other(format!("longer than {FILE_BYTES_MAX} bytes")));
    }
    Ok(text)
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
        assert_eq!(config.gateway.certificate_file, Path::new("/etc/towline/tls.crt"));
        assert_eq!(config.gateway.key_file, Path::new("/k"));
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
            [[issuers]]
            nam = "x"
        "#;
        let faults = Config::parse(text, Path::new(".")).unwrap_err();
        for key in [
            "colour: unknown key; allowed here: admin, cluster, gateway",
            "gateway.url:",
            "gateway.carrier:",
            "gateway.udp_segmentation_offload: expected true or false",
            "gateway.certificate_file:",
            "gateway.key_file: is required",
            "gateway.sever_name: unknown key",
            "cluster.context: needs kubeconfig",
            "sessions.outlive_token:",
            "proxy.url:",
            "proxy.no_proxy:",
            "limits.streams: expected a whole number from 1",
            "admin.listen:",
            "issuers[0]:",
        ] {
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
