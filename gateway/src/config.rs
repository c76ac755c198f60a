//! Valid settings. A file is parsed into [`Config`] in one go, with all its faults at once; what holds a `Config` need
//! not check again. Which clusters, issuers and grants there are is [`Dynamic`]: it can be loaded again while running.

pub mod raw;

use std::{
    collections::{BTreeSet, HashSet},
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use proto::{
    ids::ClusterId,
    limits,
    token::{Issuer, RawIssuer},
};

use self::raw::{Fault, Faults, Section};

/// All that a gateway is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file it came from, read again on reload. None where a program made the configuration.
    pub file: Option<PathBuf>,
    /// Where to listen.
    pub listen: Listen,
    /// The certificate shown to users and agents.
    pub tls: TlsFiles,
    /// CA that agents' and access certificates come from.
    pub agents_ca_file: PathBuf,
    /// Where audit records go.
    pub audit: AuditTo,
    /// Bounds; a reload replaces them for what comes from then on.
    pub limits: Limits,
    /// What a reload replaces.
    pub dynamic: Dynamic,
}

/// Addresses. Port 0 picks a free one; [`crate::Gateway`] tells which.
#[derive(Debug, Clone)]
pub struct Listen {
    /// Users over TCP, and agents over TCP and, on the same port, UDP.
    pub public: SocketAddr,
    /// Another UDP address for agents over QUIC.
    pub tunnel: Option<SocketAddr>,
    /// Health, metrics, drain, sessions. Never to be reachable by users.
    pub admin: SocketAddr,
    /// Clusters are also found at `<base32 key>.<domain>`.
    pub domain: Option<String>,
}

/// The server's certificate and key, PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// Chain, own certificate first.
    pub certificate_file: PathBuf,
    /// Private key.
    pub key_file: PathBuf,
}

/// Where audit records go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditTo {
    /// Standard output.
    Stdout,
    /// Appended to a file.
    File(PathBuf),
}

/// Bounds of a gateway process. The defaults are those of [`proto::limits`].
#[derive(Debug, Clone)]
pub struct Limits {
    /// Streams open at once for one user.
    pub streams_per_user: u32,
    /// Streams open at once towards one cluster.
    pub streams_per_cluster: u32,
    /// User streams open at once on one tunnel.
    pub streams_per_tunnel: u32,
    /// User connections open at once.
    pub connections: u32,
    /// User connections open at once from one address.
    pub connections_per_address: u32,
    /// TLS and hello handshakes going on at once.
    pub handshakes: u32,
    /// The same from one address.
    pub handshakes_per_address: u32,
    /// How long a request head may take from its first byte on.
    pub header_timeout: Duration,
    /// How long an answer of the gateway's own may wait for its reader; relayed ones wait as long as both ends live.
    pub answer_timeout: Duration,
    /// How long a user's connection may be without a request.
    pub idle_timeout: Duration,
    /// How long a stream may wait to be opened.
    pub open_timeout: Duration,
    /// How long an answer may take to begin, but for what Kubernetes calls long running. Above what an apiserver itself
    /// allows (its `--request-timeout`, a minute by default), so that its own answer is the one that is seen.
    pub request_timeout: Duration,
    /// How long open requests may go on while the gateway drains.
    pub drain_grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams_per_user: limits::STREAMS_PER_USER,
            streams_per_cluster: limits::STREAMS_PER_CLUSTER,
            streams_per_tunnel: limits::STREAMS_PER_TUNNEL,
            connections: 20_000,
            connections_per_address: 10_000,
            handshakes: 8_192,
            handshakes_per_address: 256,
            header_timeout: Duration::from_secs(20),
            answer_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(180),
            open_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(120),
            drain_grace: Duration::from_secs(30),
        }
    }
}

/// What a reload replaces, and a later store will deliver.
#[derive(Debug, Clone, Default)]
pub struct Dynamic {
    /// Token issuers.
    pub issuers: Vec<RawIssuer>,
    /// Registered clusters.
    pub clusters: Vec<ClusterId>,
    /// Who may reach what.
    pub grants: Vec<Grant>,
    /// User names that are refused everywhere.
    pub disabled: HashSet<String>,
    /// How sessions live.
    pub sessions: Sessions,
}

/// A right to reach clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Where.
    pub cluster: GrantScope,
    /// User names with their issuer's prefix.
    pub users: BTreeSet<String>,
    /// Group names with their issuer's prefix.
    pub groups: BTreeSet<String>,
}

/// Where a grant holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GrantScope {
    /// Everywhere, written `"*"`.
    AllClusters,
    /// In one cluster.
    Cluster(ClusterId),
}

/// How sessions live (DESIGN.md section 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sessions {
    /// How often the right is looked at again.
    pub reauthorise_every: Duration,
    /// How long a session may outlive its token.
    pub outlive_token: Duration,
}

impl Default for Sessions {
    fn default() -> Self {
        Self { reauthorise_every: Duration::from_secs(30), outlive_token: Duration::from_secs(8 * 3600) }
    }
}

/// Why a file is no configuration: all its faults.
#[derive(Debug)]
pub struct ConfigError {
    /// The file.
    pub file: PathBuf,
    /// What is wrong with it, never empty.
    pub faults: Vec<Fault>,
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} has {} fault(s)", self.file.display(), self.faults.len())?;
        self.faults.iter().try_for_each(|fault| write!(f, "\n  {}: {fault}", self.file.display()))
    }
}

impl Config {
    /// Reads `file`. Relative paths in it are relative to its folder.
    pub fn load(file: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(file).map_err(|error| ConfigError {
            file: file.to_owned(),
            faults: vec![Fault { key: String::new(), problem: format!("cannot be read: {error}") }],
        })?;
        let mut config =
            Self::parse(&text).map_err(|faults| ConfigError { file: file.to_owned(), faults: faults.0 })?;
        config.resolve(file.parent().unwrap_or(Path::new("")));
        let mut faults = Faults::default();
        config.check_files(&mut faults);
        if !faults.0.is_empty() {
            return Err(ConfigError { file: file.to_owned(), faults: faults.0 });
        }
        config.file = Some(file.to_owned());
        Ok(config)
    }

    /// Reads the text of a file. Opens none of the files that it names.
    pub fn parse(text: &str) -> Result<Self, Faults> {
        let mut faults = Faults::default();
        let table = match text.parse::<toml::Table>() {
            Ok(table) => table,
            Err(error) => {
                faults.push("", format!("is not TOML: {}", error.to_string().trim()));
                return Err(faults);
            }
        };
        let mut root = Section::root(table);
        let listen = parse_listen(root.section("listen", &mut faults), &mut faults);
        let mut section = root.section("tls", &mut faults);
        let certificate_file =
            section.required_path("certificate_file", "the PEM file of the certificate that users see", &mut faults);
        let key_file = section.required_path("key_file", "the PEM file of its private key", &mut faults);
        section.end(&mut faults);
        let mut section = root.section("agents", &mut faults);
        let ca_file = section.required_path("ca_file", "the PEM file of the CA of agents' certificates", &mut faults);
        section.end(&mut faults);
        let mut section = root.section("audit", &mut faults);
        let audit = match section.text("file", &mut faults) {
            None => AuditTo::Stdout,
            Some(dash) if dash == "-" => AuditTo::Stdout,
            Some(path) => AuditTo::File(path.into()),
        };
        section.end(&mut faults);
        let limits = parse_limits(root.section("limits", &mut faults), &mut faults);
        let dynamic = parse_dynamic(&mut root, &mut faults);
        root.end(&mut faults);
        match (listen, certificate_file, key_file, ca_file) {
            (Some(listen), Some(certificate_file), Some(key_file), Some(agents_ca_file)) if faults.0.is_empty() => {
                Ok(Self {
                    file: None,
                    listen,
                    tls: TlsFiles { certificate_file, key_file },
                    agents_ca_file,
                    audit,
                    limits,
                    dynamic,
                })
            }
            _ => Err(faults),
        }
    }

    fn resolve(&mut self, folder: &Path) {
        let own = [&mut self.tls.certificate_file, &mut self.tls.key_file, &mut self.agents_ca_file];
        own.into_iter().for_each(|path| *path = folder.join(&*path));
        if let AuditTo::File(path) = &mut self.audit {
            *path = folder.join(&*path);
        }
        for issuer in &mut self.dynamic.issuers {
            issuer.resolve_paths(folder);
        }
    }

    fn check_files(&self, faults: &mut Faults) {
        let named = [
            ("tls.certificate_file", &self.tls.certificate_file),
            ("tls.key_file", &self.tls.key_file),
            ("agents.ca_file", &self.agents_ca_file),
        ];
        for (key, path) in named {
            if let Err(error) = std::fs::File::open(path) {
                faults.push(key, format!("{} cannot be read: {error}", path.display()));
            }
        }
        if let Err(found) = Issuer::all(self.dynamic.issuers.clone()) {
            for fault in found.0 {
                faults.push(format!("issuers.{}.{}", fault.issuer, fault.key), fault.message);
            }
        }
    }
}

fn parse_listen(mut section: Section, faults: &mut Faults) -> Option<Listen> {
    const ADDRESS: &str = "an address and port such as \"0.0.0.0:8443\" or \"[::]:8443\"";
    let address = |section: &mut Section, name: &'static str, faults: &mut Faults| {
        let key = section.key(name);
        let text = section.text(name, faults)?;
        text.parse().map_err(|_| faults.push(key, format!("is {text:?}, must be {ADDRESS}"))).ok()
    };
    let missing = |section: &Section, name: &'static str, faults: &mut Faults, before: usize| {
        if faults.0.len() == before {
            faults.push(section.key(name), format!("is missing; {ADDRESS}"));
        }
    };
    let before = faults.0.len();
    let public: Option<SocketAddr> = address(&mut section, "public", faults);
    if public.is_none() {
        missing(&section, "public", faults, before);
    }
    let before = faults.0.len();
    let admin: Option<SocketAddr> = address(&mut section, "admin", faults);
    if admin.is_none() {
        missing(&section, "admin", faults, before);
    }
    let tunnel = address(&mut section, "tunnel", faults);
    let domain = section.text("domain", faults).and_then(|domain| {
        let fine = domain.len() <= 200
            && domain.split('.').all(|label| {
                (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            });
        if !fine {
            faults.push(section.key("domain"), format!("is {domain:?}, must be a DNS name without a final dot"));
        }
        fine.then(|| domain.to_ascii_lowercase())
    });
    section.end(faults);
    Some(Listen { public: public?, tunnel, admin: admin?, domain })
}

fn parse_limits(mut section: Section, faults: &mut Faults) -> Limits {
    let default = Limits::default();
    let mut count = |name, default: u32, max: u32| -> u32 {
        let number = section.number(name, u64::from(default), 1..=u64::from(max), faults);
        u32::try_from(number).unwrap_or(default)
    };
    let limits = Limits {
        streams_per_user: count("streams_per_user", default.streams_per_user, 1_000_000),
        streams_per_cluster: count("streams_per_cluster", default.streams_per_cluster, 1_000_000),
        streams_per_tunnel: count("streams_per_tunnel", default.streams_per_tunnel, limits::STREAMS_PER_TUNNEL),
        connections: count("connections", default.connections, 1_000_000),
        connections_per_address: count("connections_per_address", default.connections_per_address, 1_000_000),
        handshakes: count("handshakes", default.handshakes, 100_000),
        handshakes_per_address: count("handshakes_per_address", default.handshakes_per_address, 100_000),
        ..default.clone()
    };
    let short = Duration::from_millis(100)..=Duration::from_secs(3600);
    let limits = Limits {
        header_timeout: section.duration("header_timeout", default.header_timeout, short.clone(), faults),
        answer_timeout: section.duration("answer_timeout", default.answer_timeout, short.clone(), faults),
        idle_timeout: section.duration("idle_timeout", default.idle_timeout, short.clone(), faults),
        open_timeout: section.duration("open_timeout", default.open_timeout, short.clone(), faults),
        request_timeout: section.duration("request_timeout", default.request_timeout, short, faults),
        drain_grace: section.duration(
            "drain_grace",
            default.drain_grace,
            Duration::ZERO..=Duration::from_secs(24 * 3600),
            faults,
        ),
        ..limits
    };
    section.end(faults);
    limits
}

fn parse_dynamic(root: &mut Section, faults: &mut Faults) -> Dynamic {
    let issuers = parse_issuers(root, faults);
    let mut clusters = Vec::new();
    for mut section in root.sections("clusters", faults) {
        if let Some(text) = section.required("id", "the ARM id of a connected cluster", faults) {
            match text.parse::<ClusterId>() {
                Ok(id) if clusters.contains(&id) => faults.push(section.key("id"), format!("{id} is there twice")),
                Ok(id) => clusters.push(id),
                Err(error) => faults.push(section.key("id"), error.to_string()),
            }
        }
        section.end(faults);
    }
    let grants = root
        .sections("grants", faults)
        .into_iter()
        .filter_map(|section| parse_grant(section, &clusters, faults))
        .collect();
    let mut disabled = HashSet::new();
    for mut section in root.sections("disabled", faults) {
        disabled.extend(section.required("user", "a user name with its issuer's prefix", faults));
        section.end(faults);
    }
    let mut section = root.section("sessions", faults);
    let default = Sessions::default();
    let sessions = Sessions {
        reauthorise_every: section.duration(
            "reauthorise_every",
            default.reauthorise_every,
            Duration::from_millis(100)..=Duration::from_secs(3600),
            faults,
        ),
        outlive_token: section.duration(
            "outlive_token",
            default.outlive_token,
            Duration::ZERO..=Duration::from_secs(7 * 24 * 3600),
            faults,
        ),
    };
    section.end(faults);
    Dynamic { issuers, clusters, grants, disabled, sessions }
}

fn parse_issuers(root: &mut Section, faults: &mut Faults) -> Vec<RawIssuer> {
    let mut issuers: Vec<RawIssuer> = Vec::new();
    for mut section in root.sections("issuers", faults) {
        match toml::Value::Table(section.rest()).try_into::<RawIssuer>() {
            Ok(issuer) if issuers.iter().any(|other| other.name == issuer.name) => {
                faults.push(section.key("name"), format!("{:?} is there twice", issuer.name));
            }
            Ok(issuer) if issuers.iter().any(|other| other.url == issuer.url) => {
                faults.push(section.key("url"), format!("{:?} is there twice", issuer.url));
            }
            Ok(issuer) => issuers.push(issuer),
            Err(error) => faults.push(section.key(""), error.message().to_owned()),
        }
    }
    issuers
}

fn parse_grant(mut section: Section, clusters: &[ClusterId], faults: &mut Faults) -> Option<Grant> {
    let cluster = match section.required("cluster", "the ARM id of a cluster in [[clusters]], or \"*\"", faults) {
        Some(star) if star == "*" => Some(GrantScope::AllClusters),
        Some(text) => match text.parse::<ClusterId>() {
            Ok(id) if clusters.contains(&id) => Some(GrantScope::Cluster(id)),
            Ok(id) => {
                faults.push(section.key("cluster"), format!("{id} is not in [[clusters]]"));
                None
            }
            Err(error) => {
                faults.push(section.key("cluster"), format!("{error}, or \"*\""));
                None
            }
        },
        None => None,
    };
    let users: BTreeSet<String> = section.texts("users", faults).into_iter().collect();
    let groups: BTreeSet<String> = section.texts("groups", faults).into_iter().collect();
    if users.is_empty() && groups.is_empty() {
        faults.push(section.key("users"), "a grant needs at least one entry in users or groups");
    }
    section.end(faults);
    Some(Grant { cluster: cluster?, users, groups })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
        [listen]
        public = "0.0.0.0:8443"
        admin = "127.0.0.1:9090"
        domain = "Clusters.example.org"
        [tls]
        certificate_file = "tls.crt"
        key_file = "tls.key"
        [agents]
        ca_file = "ca.crt"
        [[clusters]]
        id = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/A"
        [[grants]]
        cluster = "/subscriptions/s/resourceGroups/g/providers/microsoft.kubernetes/connectedClusters/a"
        users = ["dev:admin"]
        [[grants]]
        cluster = "*"
        groups = ["dev:ops"]
        [[disabled]]
        user = "dev:mallory"
        [sessions]
        outlive_token = "0"
    "#;

    #[test]
    fn a_good_file_is_read() {
        let config = Config::parse(GOOD).unwrap();
        assert_eq!(config.listen.domain.as_deref(), Some("clusters.example.org"));
        assert_eq!(config.dynamic.grants.len(), 2);
        assert_eq!(config.dynamic.sessions.outlive_token, Duration::ZERO);
        assert_eq!(config.dynamic.sessions.reauthorise_every, Duration::from_secs(30));
        assert!(config.dynamic.disabled.contains("dev:mallory"));
        assert_eq!(config.audit, AuditTo::Stdout);
    }

    #[test]
    fn all_faults_are_reported_at_once_with_key_and_what_is_allowed() {
        let bad = r#"
            surprise = 1
            [listen]
            public = "here"
            tunel = "0.0.0.0:1"
            [tls]
            certificate_file = 7
            [[clusters]]
            id = "edge"
            [[grants]]
            cluster = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/other"
            users = []
            [sessions]
            reauthorise_every = "0"
            [limits]
            streams_per_user = -1
        "#;
        let faults = Config::parse(bad).unwrap_err().0;
        let keys: Vec<&str> = faults.iter().map(|f| f.key.as_str()).collect();
        for key in [
            "surprise",
            "listen.public",
            "listen.admin",
            "listen.tunel",
            "tls.certificate_file",
            "tls.key_file",
            "agents.ca_file",
            "clusters[0].id",
            "grants[0].cluster",
            "grants[0].users",
            "sessions.reauthorise_every",
            "limits.streams_per_user",
        ] {
            assert!(keys.contains(&key), "{key} not in {keys:?}");
        }
        let unknown = faults.iter().find(|f| f.key == "listen.tunel").unwrap();
        assert!(unknown.problem.contains("known here: public, admin, tunnel, domain"), "{unknown}");
    }

    #[test]
    fn what_is_no_toml_names_the_line() {
        let faults = Config::parse("[listen\n").unwrap_err().0;
        assert!(faults[0].problem.contains("line 1"), "{}", faults[0]);
    }

    #[test]
    fn a_file_that_is_not_there_is_a_fault_with_its_name() {
        let error = Config::load(Path::new("/nonexistent/gateway.toml")).unwrap_err();
        assert!(error.to_string().contains("/nonexistent/gateway.toml"), "{error}");
    }
}
