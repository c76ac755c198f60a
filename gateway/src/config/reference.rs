//! What the gateway's settings file may hold, for its reference: `gateway/reference.toml`, which
//! `towline-gateway config-reference` prints. The tests compare it with what is read, and its defaults with those that
//! hold.

use auth::token::ISSUER_KEYS;
use daemon::settings::reference::{self, Key, Table};

use super::Config;

/// The text of `gateway/reference.toml`: every setting with its meaning and default.
pub fn text() -> String {
    let title = "The gateway's settings, all of them. Paths are relative to the file's folder. A duration has a unit: 250ms, 30s, 15m, 8h, 90d. \
        Made by `towline-gateway config-reference`; `towline-gateway check-config` names every fault of a file; SIGHUP reads it again \
        (issuers, clusters, grants, sessions, egress, limits and certificates are replaced at once, the rest at the next start).";
    reference::reference(title, TABLES, |section, faults| drop(Config::read(section, faults)))
}

/// Tables and keys.
pub const TABLES: &[Table] = &[
    Table::once("listen", true, "Where the gateway listens.", LISTEN),
    Table::once(
        "tls",
        true,
        "The certificate that users and agents see. Both files are read again when they change.",
        TLS,
    ),
    Table::once("agents", true, "Agents' certificates and tokens.", AGENTS),
    Table::once("audit", false, "Where audit records go: one JSON object a line.", AUDIT),
    Table::once("limits", false, "Bounds of the process.", LIMITS),
    Table::once("sessions", false, "How sessions live.", SESSIONS),
    Table::once(
        "egress",
        false,
        "Hosts that clusters reach through this gateway: sources of flux configurations with `throughGateway`.",
        EGRESS,
    ),
    Table::once(
        "api",
        false,
        "The resource API: clusters, roles and operations. Without it clusters and grants come from this file alone.",
        API,
    ),
    Table::many("api.subscriptions", "What resources are in.", SUBSCRIPTIONS),
    Table::once(
        "api.upgrades",
        false,
        "Automatic upgrades of clusters' agents, to versions of the catalogue's type towline.agent (docs/upgrades.md).",
        UPGRADES,
    ),
    Table::once(
        "api.quotas",
        false,
        "How much of the store one resource group, and one subscription with its groups, may take. A write that would take more is refused (409 QuotaExceeded); what is there can be read, made smaller and deleted.",
        QUOTAS,
    ),
    Table::many("api.webhooks", "Who is told what happens to clusters, by signed CloudEvents. At most 16.", WEBHOOKS),
    Table::once("issuer", false, "The built-in issuer; without it everybody signs in elsewhere. Needs [api].", ISSUER),
    Table::once(
        "replicas",
        false,
        "How this gateway is one of several that share one PostgreSQL store and one address (docs/replicas.md). Without it it is the only one.",
        REPLICAS,
    ),
    Table::many(
        "issuers",
        "Who may issue users' tokens, the built-in one too. Agents need the same tables.",
        ISSUER_KEYS,
    ),
    Table::many(
        "clusters",
        "Clusters in addition to those of [api]. The API neither creates nor changes a cluster of this list.",
        CLUSTERS,
    ),
    Table::many(
        "grants",
        "Rights to reach clusters, in addition to roles of [api], which lead to no cluster of [[clusters]].",
        GRANTS,
    ),
    Table::many("disabled", "Who is refused everywhere, whatever their token says.", DISABLED),
];

const LISTEN: &[Key] = &[
    Key::required(
        "public",
        "\"0.0.0.0:8443\"",
        "Address and port for users over TCP, and for agents over TCP and, on the same port, UDP.",
    ),
    Key::required(
        "admin",
        "\"127.0.0.1:9090\"",
        "Address and port of health, metrics, drain and sessions; never to be reachable by users.",
    ),
    Key::example(
        "tunnel",
        "\"0.0.0.0:8444\"",
        "Another UDP address for agents over QUIC; without it that of `public`.",
    ),
    Key::example(
        "domain",
        "\"clusters.example.org\"",
        "Clusters are also found at <key>.<domain>, which DNS and the certificate must have.",
    ),
    Key::default(
        "server_name_suffix",
        "\"clusters.towline.internal\"",
        "Clusters are also found by the TLS server name <key>.<suffix>, which no DNS server needs to know; the certificate is issued with `authority_dir` of [agents]. `off`: they are not.",
    ),
    Key::default(
        "tls_ends_before",
        "false",
        "Whether a balancer in front ends TLS and makes a connection of its own to this gateway: then the certificate of [tls] need not be for the name in `url` of [api].",
    ),
];

const TLS: &[Key] = &[
    Key::required("certificate_file", "\"tls/tls.crt\"", "Certificate chain, PEM, own certificate first."),
    Key::required("key_file", "\"tls/tls.key\"", "Its private key, PEM."),
];

const AGENTS: &[Key] = &[
    Key::required(
        "ca_file",
        "\"ca/ca.crt\"",
        "Authorities that agents' and access certificates come from, PEM: several while one follows another.",
    ),
    Key::example(
        "authority_dir",
        "\"ca\"",
        "Folder (ca.crt, ca.key) of the authority that this gateway issues with; without it certificates come from elsewhere.",
    ),
    Key::default(
        "certificate_lifetime",
        "\"90d\"",
        "How long the certificates are good for that it issues; agents renew from half of that on.",
    ),
    Key::default(
        "statement_lifetime",
        "\"1h\"",
        "How long a cluster decides by the roles and assignments that it received last while it hears nothing from the gateway; a withdrawn right may be valid there for that time.",
    ),
    Key::default("token_audiences", "[]", "Audiences that clusters get tokens for, in addition to the gateway's URL."),
];

const AUDIT: &[Key] = &[Key::default("file", "\"-\"", "A file that is appended to; - is standard output.")];

const LIMITS: &[Key] = &[
    Key::default("streams_per_user", "1536", "Exchanges at once of one user."),
    Key::default("streams_per_cluster", "16384", "Exchanges at once with one cluster."),
    Key::default("streams_per_tunnel", "8192", "Users' exchanges at once on one tunnel."),
    Key::default("connections", "20000", "Users' connections at once."),
    Key::default(
        "connections_per_address",
        "2000",
        "The same from one address (IPv6: one /64). A gateway behind a balancer that hides addresses needs more.",
    ),
    Key::default("handshakes", "8192", "TLS and hello handshakes at once."),
    Key::default("handshakes_per_address", "256", "The same from one address."),
    Key::default("header_timeout", "\"20s\"", "How long a request's head may take from its first byte on."),
    Key::default("answer_timeout", "\"30s\"", "How long an answer of the gateway's own may wait for its reader."),
    Key::default("idle_timeout", "\"180s\"", "How long a user's connection may be without a request."),
    Key::default("open_timeout", "\"10s\"", "How long a stream to an agent may wait to be opened."),
    Key::default(
        "request_timeout",
        "\"120s\"",
        "How long an answer may take to begin, but for what Kubernetes calls long running. To be above the apiserver's own --request-timeout.",
    ),
    Key::default("drain_grace", "\"30s\"", "How long open requests may go on while the gateway drains."),
];

const SESSIONS: &[Key] = &[
    Key::default(
        "reauthorise_every",
        "\"30s\"",
        "How often an open session is authorised again, in addition to each change of rights.",
    ),
    Key::default("outlive_token", "\"8h\"", "How long a session may outlive its token; 0s is strict."),
];

const EGRESS: &[Key] = &[Key::default(
    "hosts",
    "[]",
    "Each as host:port, such as git.example.org:443, *.example.org:443 or 192.0.2.7:3000. Addresses of this machine and of its link, and metadata services, are dialled only where the list has the address itself.",
)];

const API: &[Key] = &[
    Key::required(
        "url",
        "\"https://gateway.example.org:8443\"",
        "How clients address the gateway, https://<host>[:<port>]; also the audience of tokens for the API.",
    ),
    Key::required("tenant", "\"00000000-0000-4000-8000-000000000001\"", "The tenant's GUID."),
    Key::example(
        "store_file",
        "\"towline.db\"",
        "The SQLite file that resources are kept in; this or postgres_url_file must be there.",
    ),
    Key::example(
        "postgres_url_file",
        "\"postgres.url\"",
        "A file, mode 0600, with postgres://<user>:<password>@<host>/<database>, instead of store_file. It is read again when it changes, for a rotated password.",
    ),
    Key::required(
        "store_key_file",
        "\"store.key\"",
        "The key that protected settings are encrypted with, made at the first start; keep it apart from backups of the store.",
    ),
    Key::default("owners", "[]", "Object ids of principals that own all subscriptions."),
    Key::example(
        "ca_file",
        "\"ca/ca.crt\"",
        "What clients check [tls] against, PEM; it goes into kubeconfigs and agents. Without it what their machines trust.",
    ),
    Key::example(
        "catalogue_dir",
        "\"catalogue\"",
        "Folder of the signed catalogue that clusters install extensions from; without it there are no extensions.",
    ),
    Key::default(
        "reads_per_minute",
        "12000",
        "Reads of one principal in one subscription in a minute, and as many at once.",
    ),
    Key::default("writes_per_minute", "6000", "The same of writes, and again of deletions."),
    Key::default(
        "operation_timeout",
        "\"48h\"",
        "How long a cluster may take to do what is wanted of its agents, such as to install an extension, before the operation has failed. The cluster continues when it is back.",
    ),
];

const UPGRADES: &[Key] = &[
    Key::default("automatic", "true", "Whether any cluster gets another version by itself."),
    Key::default("train", "\"Stable\"", "The release train of the catalogue that versions are taken from."),
    Key::default(
        "at_once_percent",
        "10",
        "Of a hundred clusters, of all and of each subscription, how many are upgraded at once; one in any case.",
    ),
    Key::default(
        "max_failures_percent",
        "2",
        "Of a hundred clusters, how many may fail before the upgrade to a version is paused. With 0, one failure pauses it.",
    ),
    Key::example(
        "window",
        "\"22:00-04:00\"",
        "When upgrades begin, HH:MM-HH:MM; over midnight it belongs to the day on which it opens. Without it at any time.",
    ),
    Key::example("days", "[\"sat\", \"sun\"]", "On which days; without it on all."),
    Key::default("time_zone", "\"UTC\"", "The time zone of hours and days, such as Europe/Berlin."),
];

const QUOTAS: &[Key] = &[
    Key::default("group_resources", "50000", "Resources of one resource group: clusters, and what is below them."),
    Key::default("group_mib", "256", "Mebibytes of these, as they are kept."),
    Key::default(
        "group_operations",
        "100000",
        "Long-running operations that begin within 24 hours for resources of one resource group. Each is kept for a day after its end.",
    ),
    Key::default("subscription_resources", "200000", "Resources of one subscription, its resource groups included."),
    Key::default("subscription_mib", "1024", "Mebibytes of these."),
    Key::default("subscription_operations", "400000", "Operations that begin within 24 hours for these."),
];

const SUBSCRIPTIONS: &[Key] = &[
    Key::required("id", "\"00000000-0000-4000-8000-000000000002\"", "Its GUID."),
    Key::example("name", "\"default\"", "Its display name; without it its id."),
];

const WEBHOOKS: &[Key] = &[
    Key::required("url", "\"https://hooks.example.org/towline\"", "Where events are sent by POST."),
    Key::required(
        "secret_file",
        "\"webhook.secret\"",
        "A file with whsec_ and the base64 of 24 to 64 bytes: what events are signed with (Standard Webhooks).",
    ),
    Key::example(
        "types",
        "[\"io.towline.cluster.connectivity\"]",
        "Which events: io.towline.cluster.created, .connectivity, .deleted, .agentversion, .agentupgrade; without it all.",
    ),
    Key::example(
        "ca_file",
        "\"hooks-ca.crt\"",
        "The authorities of the receiver's certificate, PEM; without it what the machine trusts.",
    ),
];

const ISSUER: &[Key] = &[
    Key::required("state_dir", "\"issuer\"", "Its folder: keys, users, service principals."),
    Key::default("token_lifetime", "\"1h\"", "How long its tokens live, and the longest that may be asked for."),
];

const REPLICAS: &[Key] = &[
    Key::example(
        "name",
        "\"gateway-0\"",
        "Name of this replica, different from the others': 1 to 63 characters of a-z, 0-9, - and .; without it the host name. --replica-name overrides it.",
    ),
    Key::default("listen", "\"0.0.0.0:8444\"", "Address and port where other replicas connect to this one."),
    Key::example(
        "address",
        "\"10.0.0.7:8444\"",
        "Host and port that other replicas dial; without it `listen`, which then needs a specific address. --replica-address overrides it.",
    ),
    Key::default(
        "stale_for",
        "\"5m\"",
        "How long a replica that cannot renew its lease in the store goes on with what it knows once the lease has ended. 0s is strict.",
    ),
];

const CLUSTERS: &[Key] = &[Key::required(
    "id",
    "\"/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c\"",
    "The cluster's id.",
)];

const GRANTS: &[Key] = &[
    Key::required("cluster", "\"*\"", "The id of one of [[clusters]], or * for all."),
    Key::example("users", "[\"staff:ann\"]", "User names with their issuer's prefix; these or groups must be there."),
    Key::example("groups", "[\"staff:ops\"]", "Group names with their issuer's prefix."),
];

const DISABLED: &[Key] = &[Key::required("user", "\"staff:mallory\"", "A user name with its issuer's prefix.")];

#[cfg(test)]
mod tests {
    use std::path::Path;

    use daemon::settings::{Faults, Section, reference::Value};

    use super::*;

    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/reference.toml");

    #[test]
    fn the_kept_reference_is_what_is_printed() {
        let kept = std::fs::read_to_string(FILE).unwrap();
        assert!(kept == text(), "write it: towline-gateway config-reference >gateway/reference.toml");
    }

    #[test]
    fn every_key_that_is_read_is_described_and_no_other() {
        let faults = reference::faults(TABLES, &[], |section, faults| drop(Config::read(section, faults)));
        assert!(faults.is_empty(), "mend gateway/src/config/reference.rs: {faults:#?}");
    }

    #[test]
    fn defaults_of_the_reference_are_those_that_hold() {
        let read = |chosen: fn(Value) -> bool| {
            // One of two that stand in for each other.
            let text = reference::sample(TABLES, chosen).replace("[api]\n", "[api]\nstore_file = \"towline.db\"\n");
            let config =
                Config::read(Section::parse(&text, Path::new("/nonexistent")).unwrap(), &mut Faults::default());
            let mut config = config.unwrap();
            // As written they differ, as checked they do not: those of issuers are compared below.
            config.dynamic.issuers.clear();
            format!("{config:#?}")
        };
        let without = read(|value| value == Value::Required);
        assert_eq!(read(|value| value != Value::Example), without);
    }

    #[test]
    fn the_reference_is_a_file_without_faults_but_for_files_that_are_missing() {
        let mut faults = Faults::default();
        let section = Section::parse(&text(), Path::new("/nonexistent")).unwrap();
        Config::read(section, &mut faults);
        let other: Vec<_> = faults.0.iter().filter(|fault| !fault.problem.contains("cannot be read")).collect();
        assert!(other.iter().all(|fault| fault.problem.contains("No such file")), "{other:#?}");
    }
}
