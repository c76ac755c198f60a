//! Valid settings. A file is parsed into [`Config`] in one go, with all its faults at once; what holds a `Config` need
//! not check again. Which clusters, issuers and grants there are is [`Dynamic`]: it can be loaded again while running.

pub mod agents;
pub mod api;
pub mod common;
pub mod egress;
pub mod issuer;
pub mod quotas;
pub mod reference;
pub mod replicas;
pub mod upgrades;
pub mod webhook;

use std::{
    collections::{BTreeSet, HashSet},
    net::SocketAddr,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use auth::{
    rbac::principal::hyphenated,
    token::{Issuer, RawIssuer},
};
use certs::{Credentials, is_below};
use daemon::settings::{self, BadFile, Faults, Section};
use types::{ids::ClusterId, limits};

use crate::files::{self, Stamp};

use self::{agents::Agents, api::Api, egress::Egress, issuer::BuiltInIssuer, replicas::Replicas};

/// All that a gateway is told.
#[derive(Debug, Clone)]
pub struct Config {
    /// The file it came from, read again on reload. None where a program made the configuration.
    pub file: Option<PathBuf>,
    /// How that file looked before it was read.
    pub looked: Option<Stamp>,
    /// Addresses that are listened on.
    pub listen: Listen,
    /// The certificate shown to users and agents.
    pub tls: TlsFiles,
    /// Agents' certificates and tokens.
    pub agents: Agents,
    /// Where audit records go.
    pub audit: AuditTo,
    /// Bounds; a reload replaces them for what comes from then on.
    pub limits: Limits,
    /// The resource API, if there is one.
    pub api: Option<Api>,
    /// The built-in issuer, if this gateway runs it.
    pub issuer: Option<BuiltInIssuer>,
    /// How this gateway is one of several, if it is.
    pub replicas: Option<Replicas>,
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
    /// Clusters are found at the TLS server name `<base32 key>.<suffix>` too; none: they are not.
    pub server_name_suffix: Option<String>,
    /// Whether a balancer in front ends TLS: what users see is its certificate, and the own one need not be for
    /// `[api] url`.
    pub tls_ends_before: bool,
}

/// Where [`Listen::server_name_suffix`] is not given: `internal` is for names that are nobody's on the internet, and no
/// DNS server needs to know them.
pub const SERVER_NAME_SUFFIX: &str = "clusters.towline.internal";

/// The server's certificate and key, PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// Chain, own certificate first.
    pub certificate_file: PathBuf,
    /// Private key of the first certificate in the chain.
    pub key_file: PathBuf,
}

/// Where audit records go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditTo {
    /// Standard output of the gateway.
    Stdout,
    /// Appended to a file.
    File(PathBuf),
}

impl std::fmt::Display for AuditTo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stdout => f.write_str("standard output"),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

/// Bounds of a gateway process. The defaults are those of [`types::limits`].
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
    /// User connections open at once from one address (IPv6: one /64). The default is a tenth of all: a company behind
    /// one address has room for about a thousand people with a kubectl and an editor each, and a few hostile addresses
    /// cannot keep the others out. An address also gets no more than an eighth of what is free. A gateway that sees all
    /// of its users at one address (a balancer that does not keep addresses) needs more.
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
            connections_per_address: 2_000,
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
    /// Issuers whose tokens are accepted.
    pub issuers: Vec<RawIssuer>,
    /// Clusters that the configuration registers, by ARM id.
    pub clusters: Vec<ClusterId>,
    /// Who may reach what.
    pub grants: Vec<Grant>,
    /// User names that are refused everywhere.
    pub disabled: HashSet<String>,
    /// Bounds of users' sessions.
    pub sessions: Sessions,
    /// Hosts that clusters reach through this gateway.
    pub egress: Egress,
}

/// A right to reach clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// The cluster that may be reached, or all.
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

/// How sessions live (docs/identity.md).
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

impl Config {
    /// Reads `file`. Relative paths in it are relative to its folder. The files that it names must be of use, too.
    pub fn load(file: &Path) -> Result<Self, BadFile> {
        let (mut faults, looked) = (Faults::default(), Stamp::of(file).ok());
        match Self::read(settings::read(file)?, &mut faults) {
            Some(config) if faults.is_empty() => Ok(Self { file: Some(file.to_owned()), looked, ..config }),
            _ => Err(faults.of(file)),
        }
    }

    fn read(mut root: Section, faults: &mut Faults) -> Option<Self> {
        let listen = parse_listen(root.section("listen", faults), faults);
        let tls = parse_tls(root.section("tls", faults), faults);
        own_name_below_suffix(listen.as_ref(), tls.as_ref(), faults);
        let agents = Agents::read(root.section("agents", faults), faults);
        let audit = parse_audit(root.section("audit", faults), faults);
        let limits = parse_limits(root.section("limits", faults), faults);
        let dynamic = parse_dynamic(&mut root, faults);
        let api = root.optional_section("api", faults).map(|section| Api::read(section, faults));
        let issuer = root
            .optional_section("issuer", faults)
            .and_then(|section| BuiltInIssuer::read(section, api.is_some(), faults));
        let replicas = root.optional_section("replicas", faults);
        let replicas = replicas.and_then(|section| Replicas::read(section, api.as_ref().map(Option::as_ref), faults));
        root.end(faults);
        Some(Self {
            file: None,
            looked: None,
            listen: listen?,
            tls: tls?,
            agents: agents?,
            audit,
            limits,
            api: api.map_or(Some(None), |api| api.map(Some))?,
            issuer,
            replicas,
            dynamic,
        })
    }
}

fn parse_tls(mut section: Section, faults: &mut Faults) -> Option<TlsFiles> {
    let what = "the PEM file of the certificate that users see";
    let certificate_file = section.required_path("certificate_file", what, faults);
    let key_file = section.required_path("key_file", "the PEM file of its private key", faults);
    let mut readable = true;
    for (name, file) in [("certificate_file", &certificate_file), ("key_file", &key_file)] {
        let Some(file) = file else { continue };
        if let Err(error) = std::fs::File::open(file) {
            faults.push(section.key(name), format_args!("{} cannot be read: {error}", file.display()));
            readable = false;
        }
    }
    section.end(faults);
    let files = TlsFiles { certificate_file: certificate_file?, key_file: key_file? };
    if readable && let Err(error) = Credentials::load(&files.certificate_file, &files.key_file) {
        faults.push("tls", error);
    }
    Some(files)
}

/// A name of the gateway's own below the suffix would be taken for a cluster's.
fn own_name_below_suffix(listen: Option<&Listen>, tls: Option<&TlsFiles>, faults: &mut Faults) {
    let (Some(suffix), Some(tls)) = (listen.and_then(|listen| listen.server_name_suffix.as_deref()), tls) else {
        return;
    };
    let Ok(own) = Credentials::load(&tls.certificate_file, &tls.key_file) else { return };
    if let Some(name) = own.server_names().into_iter().find(|name| is_below(name, suffix)) {
        faults.push(
            "listen.server_name_suffix",
            format_args!(
                "the certificate of [tls] has the name {name}, which is below {suffix}: choose another suffix"
            ),
        );
    }
}

fn parse_audit(mut section: Section, faults: &mut Faults) -> AuditTo {
    let audit = match section.text("file", faults) {
        None => AuditTo::Stdout,
        Some(dash) if dash == "-" => AuditTo::Stdout,
        Some(path) => AuditTo::File(section.base().join(path)),
    };
    if let AuditTo::File(path) = &audit {
        // Where it is not there yet, it is made when the gateway starts.
        let tried = files::writable(path);
        if let Err(error) = tried {
            faults.push(section.key("file"), format_args!("{} cannot be written: {error}", path.display()));
        }
    }
    section.end(faults);
    audit
}

fn parse_listen(mut section: Section, faults: &mut Faults) -> Option<Listen> {
    const ADDRESS: &str = "an address and port such as \"0.0.0.0:8443\" or \"[::]:8443\"";
    let address = |text: &str| text.parse::<SocketAddr>().map_err(|_| format!("must be {ADDRESS}"));
    let public = section.required_parsed("public", ADDRESS, faults, address);
    let admin = section.required_parsed("admin", ADDRESS, faults, address);
    let tunnel = section.parsed("tunnel", faults, address);
    let name = |name: &str| {
        let fine = name.len() <= 200
            && name.split('.').all(|label| {
                (1..=63).contains(&label.len()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            });
        if fine { Ok(name.to_ascii_lowercase()) } else { Err("must be a DNS name without a final dot") }
    };
    let domain = section.parsed("domain", faults, name);
    let suffix = section.parsed("server_name_suffix", faults, |suffix| match suffix {
        "off" => Ok(None),
        suffix => name(suffix).map(Some).map_err(|_| "must be a DNS name without a final dot, or off"),
    });
    let tls_ends_before = section.flag("tls_ends_before", faults).unwrap_or(false);
    let server_name_suffix = suffix.unwrap_or_else(|| Some(SERVER_NAME_SUFFIX.to_owned()));
    if let (Some(domain), Some(suffix)) = (&domain, &server_name_suffix)
        && (domain == suffix || is_below(domain, suffix) || is_below(suffix, domain))
    {
        faults.push(
            section.key("server_name_suffix"),
            format_args!("{suffix} and domain {domain} must not be below each other: their certificates differ"),
        );
    }
    section.end(faults);
    Some(Listen { public: public?, tunnel, admin: admin?, domain, server_name_suffix, tls_ends_before })
}

fn parse_limits(mut section: Section, faults: &mut Faults) -> Limits {
    let default = Limits::default();
    let mut count = |name, default: u32, max: u32| -> u32 { section.number(name, 1..=max, faults).unwrap_or(default) };
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
    let mut time = |name, default: Duration, allowed: &RangeInclusive<Duration>| -> Duration {
        section.duration(name, allowed.clone(), faults).unwrap_or(default)
    };
    let limits = Limits {
        header_timeout: time("header_timeout", default.header_timeout, &short),
        answer_timeout: time("answer_timeout", default.answer_timeout, &short),
        idle_timeout: time("idle_timeout", default.idle_timeout, &short),
        open_timeout: time("open_timeout", default.open_timeout, &short),
        request_timeout: time("request_timeout", default.request_timeout, &short),
        drain_grace: time("drain_grace", default.drain_grace, &(Duration::ZERO..=Duration::from_secs(24 * 3600))),
        ..limits
    };
    section.end(faults);
    limits
}

fn parse_dynamic(root: &mut Section, faults: &mut Faults) -> Dynamic {
    let (issuers, _) = Issuer::read_all(root, faults);
    // Ten thousand are looked for once each here, and at each reload.
    let (mut clusters, mut known) = (Vec::new(), HashSet::new());
    for mut section in root.sections("clusters", faults) {
        if let Some(id) =
            section.required_parsed("id", "the ARM id of a connected cluster", faults, |text| text.parse::<ClusterId>())
        {
            if known.insert(id.clone()) {
                clusters.push(id);
            } else {
                faults.push(section.key("id"), format_args!("{id} is there twice"));
            }
        }
        section.end(faults);
    }
    let grants = root
        .sections("grants", faults)
        .into_iter()
        .filter_map(|section| parse_grant(section, &known, faults))
        .collect();
    let mut disabled = HashSet::new();
    for mut section in root.sections("disabled", faults) {
        let user: Option<String> = section.required("user", "a user name with its issuer's prefix", faults);
        // An object id that was written down when it had no hyphens still refuses whom it refused.
        disabled.extend(user.as_deref().and_then(hyphenated));
        disabled.extend(user);
        section.end(faults);
    }
    let sessions = parse_sessions(root.section("sessions", faults), faults);
    let egress = Egress::read(root.section("egress", faults), faults);
    Dynamic { issuers, clusters, grants, disabled, sessions, egress }
}

fn parse_sessions(mut section: Section, faults: &mut Faults) -> Sessions {
    let default = Sessions::default();
    let every = Duration::from_millis(100)..=Duration::from_secs(3600);
    let outlive = Duration::ZERO..=Duration::from_secs(7 * 24 * 3600);
    let sessions = Sessions {
        reauthorise_every: section.duration("reauthorise_every", every, faults).unwrap_or(default.reauthorise_every),
        outlive_token: section.duration("outlive_token", outlive, faults).unwrap_or(default.outlive_token),
    };
    section.end(faults);
    sessions
}

fn parse_grant(mut section: Section, clusters: &HashSet<ClusterId>, faults: &mut Faults) -> Option<Grant> {
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
    let users: BTreeSet<String> = section.texts("users", faults).unwrap_or_default().into_iter().collect();
    let groups: BTreeSet<String> = section.texts("groups", faults).unwrap_or_default().into_iter().collect();
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

    /// A folder with the files that [`GOOD`] names and `text` as the configuration.
    fn folder(text: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let authority = certs::Authority::create("test", certs::Validity::days(1)).unwrap();
        let server = authority.issue_server(&["localhost"], certs::Validity::days(1)).unwrap();
        let file = dir.path().join("gateway.toml");
        for (name, content) in [
            ("ca.crt", authority.certificate_pem()),
            ("tls.crt", &server.certificate_pem),
            ("tls.key", server.key_pem()),
            ("gateway.toml", text),
        ] {
            std::fs::write(dir.path().join(name), content).unwrap();
        }
        (dir, file)
    }

    fn faults_of(text: &str) -> Vec<settings::Fault> {
        let (_dir, file) = folder(text);
        Config::load(&file).unwrap_err().faults
    }

    #[test]
    fn a_disabled_object_id_refuses_in_either_spelling() {
        let text = GOOD.replace("dev:mallory", "dev:0aa2f2c63f7b4f6e9f5c0123456789ab");
        let (_dir, file) = folder(&text);
        let disabled = Config::load(&file).unwrap().dynamic.disabled;
        for spelled in ["dev:0aa2f2c63f7b4f6e9f5c0123456789ab", "dev:0aa2f2c6-3f7b-4f6e-9f5c-0123456789ab"] {
            assert!(disabled.contains(spelled), "{disabled:?}");
        }
    }

    #[test]
    fn a_good_file_is_read() {
        let (dir, file) = folder(GOOD);
        let config = Config::load(&file).unwrap();
        assert_eq!(config.tls.key_file, dir.path().join("tls.key"));
        assert_eq!(config.listen.domain.as_deref(), Some("clusters.example.org"));
        assert_eq!(config.dynamic.grants.len(), 2);
        assert_eq!(config.dynamic.sessions.outlive_token, Duration::ZERO);
        assert_eq!(config.dynamic.sessions.reauthorise_every, Duration::from_secs(30));
        assert!(config.dynamic.disabled.contains("dev:mallory"));
        assert_eq!(config.audit, AuditTo::Stdout);
    }

    #[test]
    fn all_faults_are_reported_at_once_with_key_and_what_is_allowed() {
        let faults = faults_of(
            r#"
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
            [audit]
            file = "no/such/folder/audit.jsonl"
            [[issuers]]
            colour = "red"
            name = "x"
        "#,
        );
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
            "audit.file",
            "issuers[0].colour",
            "issuers[0].url",
        ] {
            assert!(keys.contains(&key), "{key} not in {keys:?}");
        }
        let unknown = faults.iter().find(|f| f.key == "listen.tunel").unwrap();
        assert!(unknown.problem.contains("known here: public, admin, tunnel, domain, server_name_suffix"), "{unknown}");
    }

    #[test]
    fn what_is_no_toml_names_the_line() {
        let faults = faults_of("[listen\n");
        assert!(faults[0].problem.contains("line 1"), "{}", faults[0]);
    }

    #[test]
    fn files_that_are_of_no_use_are_told_together_with_all_else() {
        let bad = GOOD.replace("\"tls.key\"", "\"ca.crt\"").replace("\"0\"", "0");
        let keys: Vec<String> = faults_of(&bad).into_iter().map(|fault| fault.key).collect();
        assert_eq!(keys, ["tls", "sessions.outlive_token"]);
        let bad = GOOD.replace("ca_file = \"ca.crt\"", "ca_file = \"tls.crt\"").replace("8443", "port");
        let keys: Vec<String> = faults_of(&bad).into_iter().map(|fault| fault.key).collect();
        assert_eq!(keys, ["listen.public", "agents.ca_file"]);
    }
}
