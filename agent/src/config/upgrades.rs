//! Upgrades of the agents themselves (docs/features.md U1).

use std::time::Duration;

use catalogue::{index::CatalogueId, key::PublicKey, limits::KEYS};
use daemon::settings::{
    Faults, Section,
    reference::{Key, Table},
};

use super::{
    RoleSet,
    deployment::{Deployment, is_for},
};

/// How often it is looked though nothing was told, and what an operator may set.
const INTERVAL: Duration = Duration::from_secs(3600);
const INTERVAL_MIN: Duration = Duration::from_secs(5);
const INTERVAL_MAX: Duration = Duration::from_secs(24 * 3600);
/// How long new pods are watched once they are ready, and what an operator may set.
const WINDOW: Duration = Duration::from_secs(180);
const WINDOW_MIN: Duration = Duration::from_secs(5);
const WINDOW_MAX: Duration = Duration::from_secs(3600);
/// How long new pods may take to be ready and heard by the gateway, and what an operator may set.
const TIMEOUT: Duration = Duration::from_secs(600);
const TIMEOUT_MIN: Duration = Duration::from_secs(20);
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);

/// In the reference.
pub(super) const TABLE: Table = Table::once(
    "upgrades",
    false,
    "Upgrades the agents to versions of a signed catalogue; only where upgrader runs.",
    &[
        Key::example(
            "catalogue_keys",
            "[\"-----BEGIN PUBLIC KEY-----\\nMCowBQYDK2VwAyEAr3rYH5mgKY1wftj150/HEkAqWPfQFGkLOBRfKzmVxkM=\\n-----END PUBLIC KEY-----\\n\"]",
            "Public keys of the catalogue, PEM: no other catalogue is believed. Without a key nothing is upgraded.",
        ),
        Key::example(
            "catalogue_id",
            "\"0123456789abcdef0123456789abcdef\"",
            "The catalogue; without it the first one that a key signed.",
        ),
        Key::default("interval", "\"1h\"", "How often it is looked for a version though the gateway told of none."),
        Key::default(
            "window",
            "\"3m\"",
            "How long new pods must run without a restart before an upgrade has succeeded.",
        ),
        Key::default(
            "timeout",
            "\"10m\"",
            "How long new pods may take to be ready and heard by the gateway before the old version comes back.",
        ),
    ],
);

/// How the agents are upgraded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upgrades {
    /// Keys that are pinned.
    pub keys: Vec<PublicKey>,
    /// The catalogue's id, where the operator knows it.
    pub catalogue: Option<CatalogueId>,
    /// How often it is looked though nothing was told.
    pub interval: Duration,
    /// How long new pods are watched once they are ready.
    pub window: Duration,
    /// How long new pods may take to be ready and heard by the gateway.
    pub timeout: Duration,
}

pub(super) fn read(mut section: Section, roles: RoleSet, out: &mut Faults) -> Upgrades {
    let mut keys = Vec::new();
    for text in section.texts("catalogue_keys", out).unwrap_or_default() {
        match PublicKey::from_pem(text.as_bytes()) {
            Ok(key) => keys.push(key),
            Err(error) => out.push(section.key("catalogue_keys"), error),
        }
    }
    if keys.len() > KEYS {
        out.push(section.key("catalogue_keys"), format_args!("a catalogue has at most {KEYS} keys"));
    }
    let catalogue = section.parsed("catalogue_id", out, str::parse);
    let interval = section.duration("interval", INTERVAL_MIN..=INTERVAL_MAX, out).unwrap_or(INTERVAL);
    let window = section.duration("window", WINDOW_MIN..=WINDOW_MAX, out).unwrap_or(WINDOW);
    let timeout = section.duration("timeout", TIMEOUT_MIN..=TIMEOUT_MAX, out).unwrap_or(TIMEOUT);
    if !roles.runs(Deployment::Upgrader) {
        out.push(section.key("interval"), is_for(Deployment::Upgrader, "it upgrades the others"));
    }
    section.end(out);
    Upgrades { keys, catalogue, interval, window, timeout }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;

    #[test]
    fn upgrades_are_only_where_the_upgrader_runs() {
        let read = |roles: &str, table: &str| {
            let rest = "[gateway]\nurl = \"https://gw\"\ncertificate_file = \"c\"\nkey_file = \"k\"\n";
            Config::parse(&format!("roles = \"{roles}\"\n{rest}{table}"), Path::new("/etc/towline"))
        };
        let upgrades = read("upgrader", "[upgrades]\nwindow = \"10s\"").unwrap().upgrades.unwrap();
        assert_eq!(
            (upgrades.window, upgrades.timeout, upgrades.interval),
            (Duration::from_secs(10), TIMEOUT, INTERVAL)
        );
        for (roles, table, fault) in [
            ("upgrader", "", "upgrades: must be there"),
            ("controller-manager", "[upgrades]", "upgrades.interval: is for"),
            ("upgrader", "[upgrades]\ncatalogue_keys = [\"x\"]", "upgrades.catalogue_keys: it is not"),
            ("upgrader", "[upgrades]\nwindow = \"1s\"", "upgrades.window"),
        ] {
            let faults: Vec<String> = read(roles, table).unwrap_err().0.iter().map(ToString::to_string).collect();
            assert!(faults.iter().any(|one| one.starts_with(fault)), "{fault} in {faults:?}");
        }
    }
}
