//! What the agent's settings file may hold, for its reference: `agent/reference.toml`, which
//! `towline-agent config-reference` prints. The tests compare it with what is read, and its defaults with those that
//! hold.

use auth::token::ISSUER_KEYS;
use daemon::settings::reference::{self, Key, Table};

use super::{Config, extensions, gitops, guard, identity_tokens, metadata, upgrades};

/// The text of `agent/reference.toml`: every setting with its meaning and default.
pub fn text() -> String {
    let title = "The agent's settings, all of them; the chart writes this file from its values. Paths are relative to the file's folder. \
        A duration has a unit: 250ms, 30s, 15m, 8h, 90d. Made by `towline-agent config-reference`; `towline-agent check` names every \
        fault of a file and tries every hop.";
    reference::reference(title, TABLES, |section, faults| drop(Config::read(section, faults)))
}

/// Tables and keys.
pub const TABLES: &[Table] = &[
    Table::once("", true, "The process.", ROOT),
    Table::once("gateway", true, "How the gateway is reached.", GATEWAY),
    Table::once(
        "identity",
        false,
        "A certificate that the agents get and renew themselves, instead of gateway.certificate_file and key_file.",
        IDENTITY,
    ),
    Table::once(
        "forward",
        false,
        "What copies connections to the gateway and nowhere else, for agents without a way out (gateway.via).",
        FORWARD,
    ),
    identity_tokens::TABLE,
    extensions::TABLE,
    gitops::TABLE,
    guard::TABLE,
    upgrades::TABLE,
    metadata::TABLE,
    Table::once("cluster", false, "How the apiserver is reached; without it by the pod's service account.", CLUSTER),
    Table::many("issuers", "Who may issue users' tokens, as at the gateway; checked here again.", ISSUER_KEYS),
    Table::once("proxy", false, "An HTTP CONNECT proxy on the way to the gateway.", PROXY),
    Table::once("impersonation", false, "Bounds on who is impersonated.", IMPERSONATION),
    Table::once(
        "azure_rbac",
        false,
        "Decides calls also by the gateway's roles and assignments; without it the cluster's own RBAC decides alone.",
        AZURE_RBAC,
    ),
    Table::once("sessions", false, "How sessions live.", SESSIONS),
    Table::once("limits", false, "Bounds of the process.", LIMITS),
    Table::once("log", false, "What is logged, on standard error.", LOG),
    Table::once("admin", false, "Health, readiness, status and metrics.", ADMIN),
];

const ROOT: &[Key] = &[Key::default(
    "roles",
    "\"clusterconnect-agent\"",
    "What this process does: clusterconnect-agent, controller-manager, extension-manager, fluxconfig-agent, flux-logs-agent, guard, upgrader or all.",
)];

const GATEWAY: &[Key] = &[
    Key::example(
        "urls",
        "[\"https://gateway.example.org:8443\"]",
        "Addresses of the gateway, tried in turn, at most 16; this or url must be there.",
    ),
    Key::example("url", "\"https://gateway.example.org:8443\"", "One address."),
    Key::example(
        "ca_file",
        "\"ca.crt\"",
        "Authorities of the gateway's certificate, PEM; without it those of the system.",
    ),
    Key::example("extra_ca_file", "\"corporate.crt\"", "Further authorities, such as an intercepting proxy's."),
    Key::required(
        "certificate_file",
        "\"tls.crt\"",
        "The agent's certificate, PEM; the cluster's id is read from it. Not with [identity].",
    ),
    Key::required("key_file", "\"tls.key\"", "Its private key, PEM. Not with [identity]."),
    Key::example(
        "server_name",
        "\"gateway.example.org\"",
        "The name that the gateway's certificate has, where that is not the host of the address.",
    ),
    Key::example("addresses", "[\"192.0.2.7\"]", "IP addresses of the gateway, instead of DNS."),
    Key::default(
        "carrier",
        "\"auto\"",
        "What carries the tunnel: auto races QUIC and TCP and moves between them; or one of quic, h2, websocket.",
    ),
    Key::default(
        "udp_segmentation_offload",
        "true",
        "False where a driver or a middlebox breaks QUIC's bundled datagrams (GSO).",
    ),
    Key::default(
        "replicas",
        "2",
        "Replicas of the gateway that an agent that serves users keeps a tunnel to; of fewer, to each.",
    ),
    Key::example(
        "via",
        "\"clusterconnect-agent.towline.svc:8079\"",
        "host:port that is dialled instead of the gateway, over TCP; TLS is the gateway's end to end.",
    ),
];

const IDENTITY: &[Key] = &[
    Key::required(
        "cluster_id",
        "\"/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c\"",
        "The cluster's id.",
    ),
    Key::example(
        "secret",
        "\"towline-identity-certificate\"",
        "The Secret of the pod's namespace that it is kept in; this or directory must be there.",
    ),
    Key::example(
        "directory",
        "\"/var/lib/towline/identity\"",
        "The folder that it is kept in outside of a cluster: tls.crt, tls.key, ca.crt.",
    ),
    Key::example(
        "onboarding_key_file",
        "\"onboarding.pem\"",
        "What it is asked for with, PKCS#8 PEM; only where controller-manager runs.",
    ),
];

const FORWARD: &[Key] =
    &[Key::example("listen", "\"0.0.0.0:8079\"", "Address and port; without it nothing is copied.")];

const CLUSTER: &[Key] = &[
    Key::example("kubeconfig", "\"kubeconfig\"", "A kubeconfig, for an agent outside of the cluster."),
    Key::example("context", "\"admin\"", "Its context; without it its current one."),
    Key::default(
        "service_account_dir",
        "\"/var/run/secrets/kubernetes.io/serviceaccount\"",
        "The folder of the pod's service account. Not with kubeconfig.",
    ),
];

const PROXY: &[Key] = &[
    Key::required("url", "\"http://proxy.example.org:3128\"", "http://host:port or https://host:port."),
    Key::example("ca_file", "\"proxy-ca.crt\"", "The authorities of an https:// proxy, PEM."),
    Key::example("username_file", "\"proxy-username\"", "A file with the user name; together with password_file."),
    Key::example("password_file", "\"proxy-password\"", "A file with the password."),
    Key::default(
        "no_proxy",
        "[]",
        "What is reached without the proxy: domains, addresses, networks such as 10.0.0.0/8, or *.",
    ),
];

const IMPERSONATION: &[Key] = &[
    Key::default(
        "extras",
        "[\"oid\"]",
        "Extra keys of an identity that are sent to the apiserver; each needs RBAC (userextras/<key>).",
    ),
    Key::default("allow_reserved", "[]", "Exact names that begin with system: and may be impersonated all the same."),
];

const AZURE_RBAC: &[Key] =
    &[Key::required("issuer", "\"staff\"", "Which of [[issuers]] vouches for them; its keys must be pinned.")];

const SESSIONS: &[Key] =
    &[Key::default("outlive_token", "\"8h\"", "How long a session may outlive its token; 0s is strict.")];

const LIMITS: &[Key] = &[
    Key::default(
        "streams",
        "8192",
        "Exchanges at once; fewer where the memory of the container has less than 128 KiB for each.",
    ),
    Key::default("drain_grace", "\"30s\"", "How long open requests may go on while the agent drains."),
];

const LOG: &[Key] = &[
    Key::default("level", "\"info\"", "A level, or a filter such as info,agent=debug."),
    Key::default("format", "\"text\"", "text or json."),
];

const ADMIN: &[Key] =
    &[Key::example("listen", "\"127.0.0.1:9091\"", "Address and port; without it there is no such listener.")];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use daemon::settings::{Faults, Section, reference::Value};

    use super::*;
    use crate::config::{Deployment, RoleSet};

    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/reference.toml");
    /// Another key, or another table, stands in for them.
    const EITHER: &[&str] =
        &["gateway.certificate_file", "gateway.key_file", "guard.server_names", "identity_tokens.server_names"];

    #[test]
    fn the_kept_reference_is_what_is_printed() {
        let kept = std::fs::read_to_string(FILE).unwrap();
        assert!(kept == text(), "write it: towline-agent config-reference >agent/reference.toml");
    }

    #[test]
    fn every_key_that_is_read_is_described_and_no_other() {
        let faults = reference::faults(TABLES, EITHER, |section, faults| drop(Config::read(section, faults)));
        assert!(faults.is_empty(), "mend agent/src/config/reference.rs: {faults:#?}");
    }

    #[test]
    fn the_reference_names_each_set_of_roles() {
        let names = Deployment::ALL.iter().map(|deployment| deployment.name()).chain([RoleSet::All.as_str()]);
        // A long description has several lines.
        let text = text().replace("\n# ", " ");
        let line = text.lines().find(|line| line.contains("What this process does")).unwrap();
        assert!(names.clone().all(|name| line.contains(name)), "{line}");
        assert!(names.clone().all(|name| name.parse::<RoleSet>().is_ok_and(|set| set.as_str() == name)));
    }

    #[test]
    fn defaults_of_the_reference_are_those_that_hold() {
        let read = |chosen: fn(Value) -> bool| {
            // A certificate is from files or from [identity].
            let tables: Vec<_> = TABLES.iter().copied().filter(|table| table.name != "identity").collect();
            let text = reference::sample(&tables, chosen);
            let config =
                Config::read(Section::parse(&text, Path::new("/nonexistent")).unwrap(), &mut Faults::default());
            format!("{:#?}", config.unwrap())
        };
        assert_eq!(read(|value| value != Value::Example), read(|value| value == Value::Required));
    }

    #[test]
    fn an_issuers_defaults_in_the_reference_are_those_that_hold() {
        let tables: Vec<_> = TABLES.iter().copied().filter(|table| table.name == "issuers").collect();
        let read = |chosen: fn(Value) -> bool| {
            let text = reference::sample(&tables, chosen);
            let mut root = Section::parse(&text, Path::new("/nonexistent")).unwrap();
            let mut faults = Faults::default();
            let (_, issuers) = auth::token::Issuer::read_all(&mut root, &mut faults);
            assert!(faults.is_empty(), "{faults:?}");
            format!("{issuers:#?}")
        };
        assert_eq!(read(|value| value != Value::Example), read(|value| value == Value::Required));
    }
}
