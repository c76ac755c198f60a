//! Settings that all replicas of a gateway are to share, and fingerprints of them: replicas compare these to notice
//! that one of them works differently (docs/replicas.md).
//!
//! Every key of the reference is in a group of [`COMMON`] or in [`OWN`]; a test fails while a new key is in neither. A
//! setting is common if it decides how a request, a cluster or a resource is treated: that must not depend on the
//! replica that a balancer picks. A replica's own are its name, addresses and paths, where its audit records go, and
//! the bounds of its process. Of the path of an optional file or folder only its presence is common.
//!
//! A fingerprint has one keyed hash for each group (HMAC-SHA256, with a key derived from the store key), so that a
//! reader of the database cannot try values. The only secrets in it are those of webhooks. The database's password and
//! private keys are in no hash.

use std::collections::BTreeMap;

use auth::token::{ISSUER_KEYS, RawIssuer};
use aws_lc_rs::hmac;
use daemon::settings;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use types::ids::hex;
use url::{Host, Url};

use super::{Config, Grant, GrantScope, api::Api};
use crate::store::protect::Protector;

/// Bytes of a hash in a fingerprint. Without the key nobody can look for a collision, so that 64 bits are enough.
const HASH_BYTES: usize = 8;
/// What stands for all groups where two replicas have different keys: their hashes cannot be compared then.
const STORE_KEY: &str = "api.store_key_file";

/// Settings that are compared together.
pub struct Group {
    /// The name that operators are shown: the key or the table.
    pub name: &'static str,
    /// Its keys, as the reference has them; `[]` stands for each of several tables.
    pub keys: &'static [&'static str],
    /// The value in one spelling: with defaults, and sorted where the order decides nothing.
    value: fn(&Config) -> String,
}

const fn group(name: &'static str, keys: &'static [&'static str], value: fn(&Config) -> String) -> Group {
    Group { name, keys, value }
}

/// All settings that replicas share.
pub const COMMON: &[Group] = &[
    group("listen.domain", &["listen.domain"], |config| format!("{:?}", config.listen.domain)),
    group("listen.server_name_suffix", &["listen.server_name_suffix"], |config| {
        format!("{:?}", config.listen.server_name_suffix)
    }),
    group("agents.authority_dir", &["agents.authority_dir"], |config| config.agents.authority.is_some().to_string()),
    group("agents.certificate_lifetime", &["agents.certificate_lifetime"], |config| {
        format!("{:?}", config.agents.certificate_lifetime)
    }),
    group("agents.statement_lifetime", &["agents.statement_lifetime"], |config| {
        format!("{:?}", config.agents.statement_lifetime)
    }),
    group("agents.token_audiences", &["agents.token_audiences"], |config| {
        sorted(config.agents.token_audiences.iter().cloned())
    }),
    group("sessions", &["sessions.reauthorise_every", "sessions.outlive_token"], |config| {
        format!("{:?}", config.dynamic.sessions)
    }),
    group("egress", &["egress.hosts"], |config| sorted(config.dynamic.egress.entries())),
    group("api.url", &["api.url"], |config| api(config, |api| api.url.clone())),
    group("api.tenant", &["api.tenant"], |config| api(config, |api| api.tenant.clone())),
    group("api.owners", &["api.owners"], |config| api(config, |api| sorted(api.owners.iter().cloned()))),
    // Its content, which the configuration holds.
    group("api.ca_file", &["api.ca_file"], |config| api(config, |api| format!("{:?}", api.ca))),
    group("api.catalogue_dir", &["api.catalogue_dir"], |config| {
        api(config, |api| api.catalogue_dir.is_some().to_string())
    }),
    group("api.reads_per_minute", &["api.reads_per_minute"], |config| {
        api(config, |api| api.reads_per_minute.to_string())
    }),
    group("api.writes_per_minute", &["api.writes_per_minute"], |config| {
        api(config, |api| api.writes_per_minute.to_string())
    }),
    group("api.operation_timeout", &["api.operation_timeout"], |config| {
        api(config, |api| format!("{:?}", api.operation_timeout))
    }),
    group("api.subscriptions", &["api.subscriptions[].id", "api.subscriptions[].name"], |config| {
        api(config, |api| sorted(api.subscriptions.iter().map(|one| format!("{one:?}"))))
    }),
    group(
        "api.upgrades",
        &[
            "api.upgrades.automatic",
            "api.upgrades.train",
            "api.upgrades.at_once_percent",
            "api.upgrades.max_failures_percent",
            "api.upgrades.window",
            "api.upgrades.days",
            "api.upgrades.time_zone",
        ],
        |config| api(config, |api| format!("{:?}", api.upgrades)),
    ),
    group(
        "api.quotas",
        &[
            "api.quotas.group_resources",
            "api.quotas.group_mib",
            "api.quotas.group_operations",
            "api.quotas.subscription_resources",
            "api.quotas.subscription_mib",
            "api.quotas.subscription_operations",
        ],
        |config| api(config, |api| format!("{:?}", api.quotas)),
    ),
    group(
        "api.webhooks",
        // Of `secret_file` the secret.
        &["api.webhooks[].url", "api.webhooks[].secret_file", "api.webhooks[].types"],
        |config| api(config, webhooks),
    ),
    group("issuer", &["issuer.token_lifetime"], |config| {
        format!("{:?}", config.issuer.as_ref().map(|issuer| issuer.token_lifetime))
    }),
    group("replicas.stale_for", &["replicas.stale_for"], |config| {
        format!("{:?}", config.replicas.as_ref().map(|replicas| replicas.stale_for))
    }),
    group(
        "issuers",
        &[
            "issuers[].name",
            "issuers[].url",
            "issuers[].kind",
            "issuers[].audiences",
            "issuers[].api_audiences",
            "issuers[].authorized_parties",
            "issuers[].algorithms",
            "issuers[].ca_file",
            "issuers[].keys_file",
            "issuers[].pinned_keys_file",
            "issuers[].jwks_url",
            "issuers[].allow_http_loopback",
            "issuers[].keys_max_age",
            "issuers[].username_claim",
            "issuers[].username_prefix",
            "issuers[].groups_claim",
            "issuers[].groups_prefix",
            "issuers[].uid_claim",
            "issuers[].extra",
            "issuers[].required_claims",
            "issuers[].clock_skew",
            "issuers[].pop",
            "issuers[].pop_validity",
            "issuers[].tokens",
            "issuers[].allow_reserved",
        ],
        |config| sorted(config.dynamic.issuers.iter().map(issuer)),
    ),
    group("clusters", &["clusters[].id"], |config| sorted(config.dynamic.clusters.iter().map(|id| id.key().hex()))),
    group("grants", &["grants[].cluster", "grants[].users", "grants[].groups"], |config| {
        sorted(config.dynamic.grants.iter().map(grant))
    }),
    group("disabled", &["disabled[].user"], |config| sorted(config.dynamic.disabled.iter().cloned())),
];

/// Settings that are each replica's own.
pub const OWN: &[&str] = &[
    "listen.public",
    "listen.admin",
    "listen.tunnel",
    // What is in front of this replica. It decides nothing but a check of the certificate.
    "listen.tls_ends_before",
    "tls.certificate_file",
    "tls.key_file",
    "agents.ca_file",
    "audit.file",
    "limits.streams_per_user",
    "limits.streams_per_cluster",
    "limits.streams_per_tunnel",
    "limits.connections",
    "limits.connections_per_address",
    "limits.handshakes",
    "limits.handshakes_per_address",
    "limits.header_timeout",
    "limits.answer_timeout",
    "limits.idle_timeout",
    "limits.open_timeout",
    "limits.request_timeout",
    "limits.drain_grace",
    "api.store_file",
    "api.postgres_url_file",
    // The store refuses a replica without its key.
    STORE_KEY,
    "api.webhooks[].ca_file",
    "issuer.state_dir",
    "replicas.name",
    "replicas.listen",
    "replicas.address",
];

fn sorted(entries: impl Iterator<Item = String>) -> String {
    let mut entries: Vec<String> = entries.collect();
    entries.sort_unstable();
    format!("{entries:?}")
}

/// A value of `[api]`; empty without one.
fn api(config: &Config, value: impl Fn(&Api) -> String) -> String {
    config.api.as_ref().map(value).unwrap_or_default()
}

fn webhooks(api: &Api) -> String {
    let webhooks = api.webhooks.iter().map(|webhook| {
        // The secret itself is not kept. What it signs is another text for each secret.
        let secret = hex(hmac::sign(&webhook.key, b"towline: a webhook's secret").as_ref());
        let kinds = sorted(webhook.kinds.iter().map(|kind| format!("{kind:?}")));
        format!("{} {kinds} {secret}", webhook.url)
    });
    sorted(webhooks)
}

fn grant(grant: &Grant) -> String {
    let cluster = match &grant.cluster {
        GrantScope::AllClusters => "*".to_owned(),
        GrantScope::Cluster(id) => id.key().hex(),
    };
    format!("{cluster} {:?} {:?}", grant.users, grant.groups)
}

/// A table of `[[issuers]]` as JSON, with defaults and without paths.
fn issuer(raw: &RawIssuer) -> String {
    let mut keys: BTreeMap<String, Value> =
        serde_json::to_value(raw).and_then(serde_json::from_value).unwrap_or_default();
    for key in ISSUER_KEYS {
        // The literals of defaults are JSON too.
        if let Some(default) = key.default_literal().and_then(|literal| serde_json::from_str(literal).ok()) {
            keys.entry(key.name().to_owned()).or_insert(default);
        }
    }
    for (key, value) in &mut keys {
        match (key.as_str(), &mut *value) {
            ("ca_file" | "keys_file" | "pinned_keys_file", path) => *path = true.into(),
            ("jwks_url", Value::String(text)) => without_address(text),
            ("keys_max_age" | "clock_skew" | "pop_validity", Value::String(text)) => {
                if let Ok(duration) = settings::duration(text) {
                    *text = settings::spell(duration);
                }
            }
            (_, Value::Array(entries)) => entries.sort_by_key(ToString::to_string),
            _ => {}
        }
    }
    serde_json::to_string(&keys).unwrap_or_default()
}

/// Takes an IP address and its port out of the address of a key set: a replica may ask itself for the keys of the
/// built-in issuer, at an address of its own.
fn without_address(text: &mut String) {
    if let Ok(url) = Url::parse(text)
        && matches!(url.host(), Some(Host::Ipv4(_) | Host::Ipv6(_)))
    {
        *text = url[url::Position::BeforePath..].to_owned();
    }
}

/// Hashes of the common settings of a replica, as its row in the store has them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The version of the program.
    version: String,
    /// The id of the key that the hashes are made with. Says nothing of the key.
    key: String,
    /// Hashes in hex, by the names of groups.
    hashes: BTreeMap<String, String>,
}

impl Fingerprint {
    /// Of a configuration, with hashes by the newest store key.
    pub fn of(config: &Config, protector: &Protector) -> Self {
        let hash = |group: &Group| {
            let hash = protector.keyed_hash(group.name, (group.value)(config).as_bytes());
            (group.name.to_owned(), hex(&hash[..HASH_BYTES.min(hash.len())]))
        };
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            key: protector.newest(),
            hashes: COMMON.iter().map(hash).collect(),
        }
    }

    /// As it is kept in the store.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// Reads what [`Self::text`] wrote; `None` of anything else, such as what a newer program may write.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// The groups in which another replica differs; `None`, which says nothing, if its program has another version: that
    /// may know other settings, or spell the same ones differently. If it has another store key, only that is named: hashes
    /// by two keys cannot be compared.
    pub fn differences(&self, other: &Self) -> Option<Vec<String>> {
        if self.version != other.version {
            return None;
        }
        if self.key != other.key {
            return Some(vec![STORE_KEY.to_owned()]);
        }
        let differs = |(name, hash): &(&String, &String)| other.hashes.get(*name) != Some(*hash);
        Some(self.hashes.iter().filter(differs).map(|(name, _)| name.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use certs::{Authority, Validity};
    use daemon::settings::{Faults, Section, reference};

    use super::*;
    use crate::config::reference::TABLES;

    /// The keys of a file of the reference's kind, each with the number of its line.
    fn keys(text: &str) -> Vec<(String, usize)> {
        let (mut table, mut keys) = (String::new(), Vec::new());
        for (number, line) in text.lines().enumerate() {
            if let Some((name, _)) = line.split_once(" = ") {
                keys.push((format!("{table}.{name}"), number));
            } else if let Some(name) = line.strip_prefix("[[").and_then(|line| line.strip_suffix("]]")) {
                table = format!("{name}[]");
            } else {
                table = line.trim_matches(['[', ']']).to_owned();
            }
        }
        keys
    }

    /// A new setting is put into a group of `COMMON`, or into `OWN`.
    #[test]
    fn t12_every_setting_is_shared_by_replicas_or_each_ones_own() {
        let classed: Vec<&str> = COMMON.iter().flat_map(|group| group.keys).chain(OWN).copied().collect();
        let known = keys(&reference::sample(TABLES, |_| true));
        for (key, _) in &known {
            let count = classed.iter().filter(|classed| *classed == key).count();
            assert_eq!(count, 1, "{key} is {count} times in COMMON and OWN");
        }
        for key in classed {
            assert!(known.iter().any(|(known, _)| known == key), "{key} is no setting");
        }
    }

    /// A file with every setting, and what it names.
    fn folder() -> (tempfile::TempDir, String) {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create("test", Validity::days(1)).unwrap();
        fs::create_dir(dir.path().join("ca")).unwrap();
        for (name, content) in [
            ("ca/ca.crt", authority.certificate_pem()),
            ("hooks-ca.crt", authority.certificate_pem()),
            ("other-ca.crt", Authority::create("other", Validity::days(1)).unwrap().certificate_pem()),
            ("postgres.url", "postgres://u:p@localhost/d"),
            ("other.url", "postgres://u:q@localhost/d"),
            ("webhook.secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
            ("other.secret", "whsec_AfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
        ] {
            fs::write(dir.path().join(name), content).unwrap();
        }
        let text = reference::sample(TABLES, |_| true).replace("store_file = \"towline.db\"\n", "");
        (dir, text)
    }

    /// What may be read of a file that names others that are missing.
    fn read(text: &str, base: &Path) -> Config {
        Config::read(Section::parse(text, base).unwrap(), &mut Faults::default()).unwrap()
    }

    fn values(text: &str, base: &Path) -> Vec<(&'static str, String)> {
        let config = read(text, base);
        COMMON.iter().map(|group| (group.name, (group.value)(&config))).collect()
    }

    /// Another value of a setting, as TOML.
    fn other(key: &str, literal: &str) -> String {
        let is_duration = settings::duration(literal.trim_matches('"')).is_ok();
        let other = match key {
            "listen.public" | "listen.admin" | "listen.tunnel" | "replicas.listen" | "replicas.address" => {
                "\"127.0.0.1:1\""
            }
            "api.url" | "api.webhooks[].url" | "issuers[].url" | "issuers[].jwks_url" => {
                "\"https://other.example.org\""
            }
            "api.tenant" | "api.subscriptions[].id" => "\"00000000-0000-4000-8000-00000000000f\"",
            "api.ca_file" | "api.webhooks[].ca_file" => "\"other-ca.crt\"",
            "api.postgres_url_file" => "\"other.url\"",
            "api.webhooks[].secret_file" => "\"other.secret\"",
            "api.webhooks[].types" => "[\"io.towline.cluster.deleted\"]",
            "api.upgrades.window" => "\"21:00-04:00\"",
            "api.upgrades.days" => "[\"sun\"]",
            "api.upgrades.time_zone" => "\"Europe/Berlin\"",
            "clusters[].id" => {
                "\"/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/d\""
            }
            "grants[].cluster" => {
                "\"/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c\""
            }
            "egress.hosts" => "[\"git.example.org:443\"]",
            "agents.token_audiences" => "[\"api://vault\"]",
            "issuers[].kind" => "\"entra\"",
            "issuers[].pop" => "\"off\"",
            "issuers[].tokens" => "\"id\"",
            _ if literal == "true" => "false",
            _ if literal == "false" => "true",
            _ if literal.starts_with('[') => "[\"other\"]",
            _ if literal.starts_with('{') => "{ other = \"other\" }",
            _ if is_duration => "\"45m\"",
            _ if literal.starts_with('"') => "\"other\"",
            _ => return (literal.parse::<u32>().unwrap() - 1).to_string(),
        };
        other.to_owned()
    }

    #[test]
    fn t12_a_change_of_a_shared_setting_shows_in_its_group_alone() {
        // Of these only the presence is shared.
        const PRESENCE: [&str; 5] = [
            "agents.authority_dir",
            "api.catalogue_dir",
            "issuers[].ca_file",
            "issuers[].keys_file",
            "issuers[].pinned_keys_file",
        ];
        let (dir, text) = folder();
        let before = values(&text, dir.path());
        let lines: Vec<&str> = text.lines().collect();
        let changed = |at: usize, line: &str| {
            let mut lines = lines.clone();
            lines[at] = line;
            let after = values(&lines.join("\n"), dir.path());
            before
                .iter()
                .zip(after)
                .filter(|(before, after)| *before != after)
                .map(|(one, _)| one.0)
                .collect::<Vec<_>>()
        };
        for (key, at) in keys(&text) {
            let (name, literal) = lines[at].split_once(" = ").unwrap();
            let line = format!("{name} = {}", other(&key, literal));
            let group = COMMON.iter().find(|group| group.keys.contains(&key.as_str())).map(|group| group.name);
            let presence = PRESENCE.contains(&key.as_str());
            let expected: Vec<&str> = group.filter(|_| !presence).into_iter().collect();
            assert_eq!(changed(at, &line), expected, "{key}");
            if presence {
                assert_eq!(changed(at, ""), group.into_iter().collect::<Vec<_>>(), "{key}");
            }
        }
    }

    #[test]
    fn t12_shared_settings_are_alike_however_they_are_written() {
        let (dir, text) = folder();
        let one = |more: &str| values(&text.replace("[[disabled]]", &format!("{more}\n[[disabled]]")), dir.path());
        let issuer = |more: &str| format!("[[issuers]]\nname = \"own\"\nurl = \"https://own.example.org\"\n{more}");
        let (a, b) = ("[[grants]]\ncluster = \"*\"\nusers = [\"a\"]", "[[grants]]\ncluster = \"*\"\nusers = [\"b\"]");
        assert_eq!(one(&format!("{a}\n{b}")), one(&format!("{b}\n{a}")), "order");
        let written = "clock_skew = \"30000ms\"\nalgorithms = [\"ES256\", \"RS256\"]\npop = \"allowed\"";
        assert_eq!(one(&issuer("")), one(&issuer(written)), "defaults");
        let keys = |at: &str| one(&issuer(&format!("jwks_url = \"https://{at}/.towline/issuer/keys\"")));
        assert_eq!(keys("127.0.0.1:8443"), keys("[2001:db8::1]:9443"), "a replica's own address");
        assert_ne!(keys("a.example.org"), keys("b.example.org"));
    }

    fn protector(dir: &Path, name: &str) -> Protector {
        Protector::open_or_create(&dir.join(name)).unwrap()
    }

    #[test]
    fn t12_fingerprints_are_compared_by_one_key_and_version_and_hold_no_setting() {
        let (dir, text) = folder();
        let (config, key) = (read(&text, dir.path()), protector(dir.path(), "store.key"));
        let own = Fingerprint::of(&config, &key);
        assert_eq!(Fingerprint::parse(&own.text()), Some(own.clone()));
        assert_eq!(Fingerprint::parse("{\"hashes\": 2}"), None);
        assert!(own.text().len() < 2000, "it is read with every renewal of a lease: {}", own.text());
        assert!(!own.text().contains("example.org") && !own.text().contains("mallory"), "{}", own.text());

        let mut changed = config.clone();
        changed.dynamic.disabled.clear();
        changed.api.as_mut().unwrap().operation_timeout *= 2;
        let mut other = Fingerprint::of(&changed, &key);
        let named = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
        assert_eq!(own.differences(&own), named(&[]));
        assert_eq!(own.differences(&other), named(&["api.operation_timeout", "disabled"]));
        other.version = "0.0.1".to_owned();
        assert_eq!(own.differences(&other), None, "another version may know other settings");
        let other = Fingerprint::of(&config, &protector(dir.path(), "other.key"));
        assert_eq!(own.differences(&other), named(&[STORE_KEY]));
        assert!(own.hashes.iter().all(|(name, hash)| other.hashes[name] != *hash), "every hash depends on the key");
    }
}
