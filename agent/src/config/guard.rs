//! The webhook server that the cluster's apiserver asks about tokens and rights (docs/features.md Z1).

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use auth::token::{Issuer, ObjectId};
use daemon::settings::{
    Faults, Section,
    reference::{Key, Table},
};

use super::{
    Impersonation, RoleSet,
    deployment::{Deployment, is_for},
    split_url,
};

/// The most names that the server's certificate has.
const SERVER_NAMES_MAX: usize = 16;
/// The most users that are left to the cluster's own RBAC by name.
const SKIP_USERS_MAX: usize = 1000;
/// Decisions in the cache, and the most that an operator may set: 0.1 to 0.2 KB each, of a pod's 256 MiB.
const CACHE_ENTRIES: u32 = 65_536;
const CACHE_ENTRIES_MAX: u32 = 262_144;
/// How long a decision stays in the cache, and the longest that an operator may set.
const CACHE_LIFETIME: Duration = Duration::from_secs(180);
const CACHE_LIFETIME_MAX: Duration = Duration::from_secs(3600);

/// In the reference.
pub(super) const TABLE: Table = Table::once(
    "guard",
    false,
    "Answers the cluster's apiserver about tokens and rights, as its authentication and authorization webhook; only where guard runs.",
    &[
        Key::required("listen", "\"0.0.0.0:8444\"", "Address and port."),
        Key::required("server_names", "[\"guard.towline.svc\"]", "Names of the certificate that it makes itself."),
        Key::example(
            "server",
            "\"https://10.96.0.20:443\"",
            "What the apiserver dials; without it the address of the Service guard.",
        ),
        Key::example(
            "directory",
            "\"/var/lib/towline/guard\"",
            "The folder of the certificates and of the apiserver's two files; without it Secrets.",
        ),
        Key::default(
            "skip_users",
            "[]",
            "User names, as the apiserver has them, that only the cluster's own RBAC decides about.",
        ),
        Key::default(
            "cache_entries",
            "65536",
            "The most decisions about rights that the cache has, which the apiserver is answered by when it asks the same again; 0 turns the cache off.",
        ),
        Key::default(
            "cache_allowed_for",
            "\"3m\"",
            "How long an allowed decision is cached: never beyond the next snapshot of roles and assignments, or the end of the one that decided; 0s: not at all.",
        ),
        Key::default("cache_denied_for", "\"3m\"", "The same for a denied decision."),
    ],
);

/// The webhook server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guard {
    /// The address that guard listens on.
    pub listen: SocketAddr,
    /// Names of the certificate that it makes itself.
    pub server_names: Vec<String>,
    /// Host and port that the apiserver dials; none: those of the Service.
    pub server: Option<(String, u16)>,
    /// Where certificates and the apiserver's files are kept; none: in Secrets.
    pub directory: Option<PathBuf>,
    /// Users that only the cluster's own RBAC decides about.
    pub skip_users: Vec<String>,
    /// The bounds of the cache of decisions.
    pub cache: DecisionCache,
    /// Whose users these are, and where the apiserver has their ids.
    pub issuers: Vec<Owner>,
}

/// The bounds of the cache of decisions about rights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecisionCache {
    /// The most decisions; 0: there is no cache.
    pub entries: u32,
    /// How long an allowed decision is cached.
    pub allowed_for: Duration,
    /// How long a denied decision is cached.
    pub denied_for: Duration,
}

impl Default for DecisionCache {
    fn default() -> Self {
        Self { entries: CACHE_ENTRIES, allowed_for: CACHE_LIFETIME, denied_for: CACHE_LIFETIME }
    }
}

/// An issuer, as its users' names tell it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The issuer's name.
    pub issuer: String,
    /// What its user names begin with.
    pub prefix: String,
    /// Where Kubernetes has what assignments call a user.
    pub object_id: ObjectId,
}

/// Environment variables that Kubernetes sets in pods for the Service `guard`.
const SERVICE_HOST: &str = "GUARD_SERVICE_HOST";
const SERVICE_PORT: &str = "GUARD_SERVICE_PORT";

/// The address of the Service `guard`, as a pod knows it that was started after the Service was made.
pub fn service_address() -> Option<(String, u16)> {
    let host = std::env::var(SERVICE_HOST).ok().filter(|host| !host.is_empty())?;
    Some((host, std::env::var(SERVICE_PORT).ok()?.parse().ok()?))
}

pub(super) fn read(
    mut section: Section,
    roles: RoleSet,
    issuers: &[Issuer],
    impersonation: &Impersonation,
    out: &mut Faults,
) -> Option<Guard> {
    let listen = section.required_parsed("listen", "an address and a port such as 0.0.0.0:8444", out, |text| {
        text.parse::<SocketAddr>().map_err(|_| "expected an address and a port such as 0.0.0.0:8444")
    });
    let server_names = section.texts("server_names", out).unwrap_or_default();
    if server_names.is_empty() || server_names.len() > SERVER_NAMES_MAX {
        let expected = format!("expected 1 to {SERVER_NAMES_MAX} names, such as guard.towline.svc");
        out.push(section.key("server_names"), expected);
    }
    for name in &server_names {
        if rustls::pki_types::ServerName::try_from(name.as_str()).is_err() {
            out.push(section.key("server_names"), format_args!("{name:?}: expected a host name or an address"));
        }
    }
    let server = section.parsed("server", out, |text| split_url(text, &["https"]).map(|(_, host, port)| (host, port)));
    let directory = section.path("directory", out);
    let skip_users = section.texts("skip_users", out).unwrap_or_default();
    if skip_users.len() > SKIP_USERS_MAX {
        out.push(section.key("skip_users"), format_args!("expected at most {SKIP_USERS_MAX}"));
    }
    let mut cache = DecisionCache::default();
    cache.entries = section.number("cache_entries", 0..=CACHE_ENTRIES_MAX, out).unwrap_or(cache.entries);
    let lifetimes = Duration::ZERO..=CACHE_LIFETIME_MAX;
    cache.allowed_for = section.duration("cache_allowed_for", lifetimes.clone(), out).unwrap_or(cache.allowed_for);
    cache.denied_for = section.duration("cache_denied_for", lifetimes, out).unwrap_or(cache.denied_for);
    if !roles.runs(Deployment::Guard) {
        out.push(section.key("listen"), is_for(Deployment::Guard, "it answers the apiserver"));
    }
    let key = section.key("listen");
    section.end(out);
    let issuers = owners(issuers, impersonation, &key, out);
    Some(Guard { listen: listen?, server_names, server, directory, skip_users, cache, issuers })
}

/// A SubjectAccessReview names a user and no issuer: which one it is, the prefix of the name tells, and what assignments
/// call the user has to be in what Kubernetes knows of them.
fn owners(issuers: &[Issuer], impersonation: &Impersonation, key: &str, out: &mut Faults) -> Vec<Owner> {
    let mut owners: Vec<Owner> = Vec::new();
    for (at, issuer) in issuers.iter().enumerate() {
        let prefix = issuer.username_prefix().to_owned();
        if let Some(other) = issuers[..at].iter().find(|other| other.username_prefix() == prefix) {
            let (one, other) = (issuer.name(), other.name());
            out.push(
                key,
                format_args!(
                    "issuers {other:?} and {one:?} have the same username_prefix {prefix:?}, and an apiserver's question about a user's rights does not say which of the two the user is of; give them different prefixes"
                ),
            );
        }
        let object_id = issuer.object_id().filter(|id| match id {
            ObjectId::Uid => true,
            ObjectId::Extra(key) => impersonation.extras.contains(key),
        });
        match object_id {
            Some(object_id) => owners.push(Owner { issuer: issuer.name().to_owned(), prefix, object_id }),
            None => out.push(
                key,
                format_args!(
                    "the apiserver does not learn what role assignments call the users of issuer {:?}; leave out its uid_claim, or name the claim in its extra and in impersonation.extras",
                    issuer.name()
                ),
            ),
        }
    }
    // The longest first: a name that begins with it is of no other.
    owners.sort_by_key(|owner| std::cmp::Reverse(owner.prefix.len()));
    owners
}

#[cfg(test)]
mod tests {
    use std::{path::Path, time::Duration};

    use auth::token::ObjectId;

    use super::{DecisionCache, Owner};
    use crate::config::Config;

    const REST: &str = "roles = \"guard\"\n[gateway]\nurl = \"https://gw\"\ncertificate_file = \"c\"\nkey_file = \"k\"\n\
        [guard]\nlisten = \"127.0.0.1:0\"\nserver_names = [\"guard.towline.svc\"]\n";

    fn read(issuers: &str) -> Result<Vec<Owner>, Vec<String>> {
        let config = Config::parse(&format!("{REST}{issuers}"), Path::new("/etc/towline"));
        config
            .map(|config| config.guard.unwrap().issuers)
            .map_err(|faults| faults.0.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn z1_issuers_without_distinct_prefixes_are_refused() {
        let issuer =
            |name: &str, more: &str| format!("[[issuers]]\nname = \"{name}\"\nurl = \"https://{name}\"\n{more}");
        let owners = read(
            &(issuer("a", "username_prefix = \"a:\"\ngroups_prefix = \"a:\"\n")
                + &issuer("bb", "username_prefix = \"bb:\"\ngroups_prefix = \"bb:\"\nkind = \"entra\"\n")),
        )
        .unwrap();
        let owner =
            |issuer: &str, object_id| Owner { issuer: issuer.to_owned(), prefix: format!("{issuer}:"), object_id };
        assert_eq!(owners, [owner("bb", ObjectId::Extra("oid".to_owned())), owner("a", ObjectId::Uid)]);
        let same = "username_prefix = \"x:\"\ngroups_prefix = \"x:\"\n";
        let faults = read(&(issuer("a", same) + &issuer("b", same))).unwrap_err();
        assert!(faults.iter().any(|fault| fault.contains("same username_prefix")), "{faults:?}");
        let faults = read(&issuer("a", "uid_claim = \"employee\"\n")).unwrap_err();
        assert!(faults.iter().any(|fault| fault.contains("does not learn")), "{faults:?}");
        assert!(read(&issuer("a", "uid_claim = \"employee\"\nextra = { oid = \"sub\" }\n")).is_ok());
    }

    #[test]
    fn z8_bounds_of_the_cache_are_settings_and_bad_ones_are_named() {
        let issuer = "[[issuers]]\nname = \"a\"\nurl = \"https://a\"\n";
        let read = |lines: &str| Config::parse(&format!("{REST}{lines}{issuer}"), Path::new("/etc/towline"));
        let cache = |lines: &str| read(lines).unwrap().guard.unwrap().cache;
        let (three, hour) = (Duration::from_secs(180), Duration::from_secs(3600));
        assert_eq!(cache(""), DecisionCache { entries: 65_536, allowed_for: three, denied_for: three });
        let set = "cache_entries = 262144\ncache_allowed_for = \"1h\"\ncache_denied_for = \"0s\"\n";
        assert_eq!(cache(set), DecisionCache { entries: 262_144, allowed_for: hour, denied_for: Duration::ZERO });
        assert_eq!(cache("cache_entries = 0\n").entries, 0);
        for (key, values) in [
            ("cache_entries", &["262145", "-1", "\"many\""][..]),
            ("cache_allowed_for", &["\"61m\"", "180", "\"-1s\""]),
            ("cache_denied_for", &["\"61m\"", "\"3\"", "true"]),
        ] {
            for value in values {
                let faults = read(&format!("{key} = {value}\n")).unwrap_err().0;
                let named = format!("guard.{key}: ");
                assert!(faults.iter().any(|fault| fault.to_string().starts_with(&named)), "{value}: {faults:?}");
            }
        }
    }

    #[test]
    fn z1_guard_is_for_its_own_roles_and_these_need_it() {
        let faults = |text: &str| Config::parse(text, Path::new("/etc")).unwrap_err().0;
        let told = faults(&REST.replace("\"guard\"\n", "\"controller-manager\"\n"));
        assert!(told.iter().any(|fault| fault.to_string().starts_with("guard.listen: is for")), "{told:?}");
        let told = faults(REST.split("[guard]").next().unwrap());
        assert!(told.iter().any(|fault| fault.to_string().starts_with("guard")), "{told:?}");
    }
}
