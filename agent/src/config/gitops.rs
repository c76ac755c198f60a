//! What flux configurations may do in this cluster, whatever the gateway wants (docs/features.md G1, G7).

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use daemon::settings::{
    Faults, Section,
    reference::{Key, Table},
};

use super::{
    RoleSet,
    deployment::{Deployment, is_for},
};

/// How often everything is compared with the cluster though nothing has changed, and what an operator may set.
const RESYNC_INTERVAL: Duration = Duration::from_secs(300);
const RESYNC_INTERVAL_MIN: Duration = Duration::from_secs(10);
const RESYNC_INTERVAL_MAX: Duration = Duration::from_secs(24 * 3600);
/// Where the proxy to sources that the gateway reaches listens. The chart's Service leads there.
const PROXY_LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 3128);
/// Environment variables that Kubernetes sets in pods for the Service `egress-proxy`.
const SERVICE_HOST: &str = "EGRESS_PROXY_SERVICE_HOST";
const SERVICE_PORT: &str = "EGRESS_PROXY_SERVICE_PORT";
/// Entries of one list of pins.
const PINS_MAX: usize = 1000;

/// In the reference.
pub(super) const TABLE: Table = Table::once(
    "gitops",
    false,
    "What flux configurations may do in this cluster, whatever the gateway wants; only where fluxconfig-agent runs.",
    &[
        Key::example(
            "allowed_repositories",
            "[\"https://git.example.org/team\", \"ssh://git@git.example.org/apps/*\"]",
            "Where configurations may pull from: URLs with everything below them, or patterns in which * stands for any text without a slash, and ** for any text; without it from anywhere.",
        ),
        Key::example(
            "allowed_scopes",
            "[\"namespace\"]",
            "The scopes that configurations may have, cluster and namespace; without it both.",
        ),
        Key::example(
            "allowed_namespaces",
            "[\"team-a\"]",
            "The namespaces that configurations may be in; without it all but the cluster's and the agents' own.",
        ),
        Key::default(
            "resync_interval",
            "\"5m\"",
            "How often everything is compared with the cluster though nothing has changed.",
        ),
        Key::default(
            "proxy_listen",
            "\"0.0.0.0:3128\"",
            "Address and port of the proxy by which Flux reaches sources through the gateway; it listens once a configuration needs it.",
        ),
    ],
);

/// What flux configurations may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gitops {
    /// URLs and patterns of them; none: all.
    pub allowed_repositories: Option<Vec<String>>,
    /// `cluster` and `namespace`; none: both.
    pub allowed_scopes: Option<Vec<String>>,
    /// Namespaces; none: all.
    pub allowed_namespaces: Option<Vec<String>>,
    /// How often everything is compared with the cluster though nothing has changed.
    pub resync_interval: Duration,
    /// Where the proxy to sources that the gateway reaches listens.
    pub proxy_listen: SocketAddr,
}

impl Default for Gitops {
    fn default() -> Self {
        Self {
            allowed_repositories: None,
            allowed_scopes: None,
            allowed_namespaces: None,
            resync_interval: RESYNC_INTERVAL,
            proxy_listen: PROXY_LISTEN,
        }
    }
}

/// How others in the cluster reach the proxy, as a pod knows it that was started after the Service was made.
pub fn proxy_address() -> Option<String> {
    let host: IpAddr = std::env::var(SERVICE_HOST).ok()?.parse().ok()?;
    let port = std::env::var(SERVICE_PORT).ok()?.parse().ok()?;
    Some(format!("http://{}", SocketAddr::new(host, port)))
}

pub(super) fn read(mut section: Section, roles: RoleSet, out: &mut Faults) -> Gitops {
    let mut list = |key: &'static str, out: &mut Faults| {
        let texts = section.texts(key, out);
        if texts.as_ref().is_some_and(|texts| texts.len() > PINS_MAX) {
            out.push(section.key(key), format_args!("expected at most {PINS_MAX}"));
        }
        texts
    };
    let allowed_repositories = list("allowed_repositories", out);
    let allowed_scopes = list("allowed_scopes", out);
    let allowed_namespaces = list("allowed_namespaces", out);
    for scope in allowed_scopes.iter().flatten().filter(|scope| !["cluster", "namespace"].contains(&scope.as_str())) {
        out.push(section.key("allowed_scopes"), format_args!("{scope:?}: expected cluster or namespace"));
    }
    for url in allowed_repositories.iter().flatten().filter(|url| !url.contains("://") && !url.starts_with("**")) {
        out.push(section.key("allowed_repositories"), format_args!("{url:?}: expected a URL with its scheme"));
    }
    let range = RESYNC_INTERVAL_MIN..=RESYNC_INTERVAL_MAX;
    let resync_interval = section.duration("resync_interval", range, out).unwrap_or(RESYNC_INTERVAL);
    let address = |text: &str| text.parse::<SocketAddr>().map_err(|_| "expected an address and a port");
    let proxy_listen = section.parsed("proxy_listen", out, address).unwrap_or(PROXY_LISTEN);
    if !roles.runs(Deployment::FluxconfigAgent) {
        out.push(section.key("resync_interval"), is_for(Deployment::FluxconfigAgent, "it makes Flux's objects"));
    }
    section.end(out);
    Gitops { allowed_repositories, allowed_scopes, allowed_namespaces, resync_interval, proxy_listen }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::Gitops;
    use crate::config::Config;

    const REST: &str = "[gateway]\nurl = \"https://gw\"\ncertificate_file = \"c\"\nkey_file = \"k\"\n";

    #[test]
    fn g7_pins_are_read_where_flux_configurations_are_made() {
        let read = |roles: &str, table: &str| {
            Config::parse(&format!("roles = \"{roles}\"\n{REST}{table}"), Path::new("/etc/towline"))
        };
        assert_eq!(read("fluxconfig-agent", "").unwrap().gitops, Some(Gitops::default()));
        assert_eq!(read("all", "").unwrap().gitops, None);
        let pins = "[gitops]\nallowed_scopes = [\"namespace\"]\nallowed_namespaces = []\n";
        let gitops = read("fluxconfig-agent", pins).unwrap().gitops.unwrap();
        assert_eq!(gitops.allowed_scopes.as_deref(), Some(&["namespace".to_owned()][..]));
        assert_eq!(gitops.allowed_namespaces, Some(Vec::new()), "an empty list allows nothing");
        let bad = "[gitops]\nallowed_scopes = [\"all\"]\nallowed_repositories = [\"git.example.org\"]\nextra = 1\n";
        let faults = read("extension-manager", bad).unwrap_err().0;
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        for key in [
            "gitops.allowed_scopes: ",
            "gitops.allowed_repositories: ",
            "gitops.extra: ",
            "gitops.resync_interval: is for",
        ] {
            assert!(faults.iter().any(|fault| fault.starts_with(key)), "{key} in {faults:#?}");
        }
    }
}
