//! `[api]`: the resource API. Without it there is none, and clusters and grants come from the configuration alone.

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use daemon::settings::{Faults, Section};
use serde_json::{Value, json};
use types::ids::ClusterId;
use url::Url;

use crate::{
    config::{
        quotas::Quotas,
        upgrades::Upgrades,
        webhook::{Webhook, address, secret},
    },
    store::{
        events::{Kind, type_of},
        sqlite_url,
    },
};

/// Settings of the resource API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Api {
    /// How clients address the gateway, without a slash at the end; also the audience of tokens for the API.
    pub url: String,
    /// The tenant's GUID.
    pub tenant: String,
    /// Where resources are kept.
    pub store: StoreAt,
    /// The key that protected settings are encrypted with, outside the store.
    pub store_key_file: PathBuf,
    /// What resources are in.
    pub subscriptions: Vec<Subscription>,
    /// Object ids of principals that own all subscriptions: who else may do what is theirs to say.
    pub owners: Vec<String>,
    /// The CA that clients check the gateway's certificate against, PEM; it goes into kubeconfigs.
    pub ca: Option<String>,
    /// The file that it is of.
    pub ca_file: Option<PathBuf>,
    /// Files of secrets that it was read from, each with its setting: nobody else may read them.
    pub secret_files: SecretFiles,
    /// Who is told what happens to clusters (docs/features.md C8).
    pub webhooks: Vec<Webhook>,
    /// The folder of the catalogue that clusters install extensions from.
    pub catalogue_dir: Option<PathBuf>,
    /// Automatic upgrades of clusters' agents.
    pub upgrades: Upgrades,
    /// How much resource groups and subscriptions may hold.
    pub quotas: Quotas,
    /// Reads that one principal may make in one subscription in a minute, and as many at once (feature N5).
    pub reads_per_minute: u32,
    /// The same of writes, and again of deletions.
    pub writes_per_minute: u32,
    /// How long a cluster may take to do what is wanted of its agents, before the operation has failed (feature X4).
    pub operation_timeout: Duration,
}

/// Reads of one principal in one subscription in a minute, where the configuration does not say.
pub const READS_PER_MINUTE: u32 = 12_000;
/// The same of writes: a hundred scripts that connect clusters at once stay far below.
pub const WRITES_PER_MINUTE: u32 = 6000;

/// How long a cluster may take, where the configuration does not say.
pub const OPERATION_TIMEOUT: Duration = Duration::from_secs(48 * 3600);
/// Shorter ones fail what is well on its way; longer ones wait for clusters that nobody expects back.
const OPERATION_TIMEOUTS: RangeInclusive<Duration> = Duration::from_secs(1800)..=Duration::from_secs(30 * 86_400);

/// Where resources are kept.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreAt {
    /// SQLite: the path of its database file.
    Sqlite(PathBuf),
    /// A server.
    Postgres {
        /// Its address, which may hold a password. Does not print.
        url: String,
        /// The file that it is of, which a reload reads again.
        file: PathBuf,
    },
}

impl std::fmt::Debug for StoreAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Sqlite(file) => f.debug_tuple("Sqlite").field(file).finish(),
            Self::Postgres { .. } => f.write_str("Postgres(..)"),
        }
    }
}

impl StoreAt {
    /// As the store wants it.
    pub fn url(&self) -> String {
        match self {
            Self::Sqlite(file) => sqlite_url(file),
            Self::Postgres { url, .. } => url.clone(),
        }
    }

    /// The file that the address is of, where it has one of its own.
    pub fn url_file(&self) -> Option<&PathBuf> {
        match self {
            Self::Sqlite(_) => None,
            Self::Postgres { file, .. } => Some(file),
        }
    }

    /// The setting that says so.
    pub fn setting(&self) -> &'static str {
        match self {
            Self::Sqlite(_) => "api.store_file",
            Self::Postgres { .. } => "api.postgres_url_file",
        }
    }
}

/// A subscription that the configuration defines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subscription {
    /// The subscription's id, a GUID.
    pub id: String,
    /// The display name.
    pub name: String,
}

impl Api {
    /// Reads the table `[api]`.
    pub fn read(mut section: Section, faults: &mut Faults) -> Option<Self> {
        let url = section.required_parsed("url", "the https:// address of the gateway", faults, |text| {
            let fine = Url::parse(text).ok().filter(|url| {
                url.scheme() == "https"
                    && url.has_host()
                    && url.path() == "/"
                    && url.query().is_none()
                    && url.username().is_empty()
            });
            fine.map(|_| text.trim_end_matches('/').to_owned()).ok_or("must be https://<host>[:<port>]")
        });
        let guid = |text: &str| {
            let fine = crate::guid::is_guid(text);
            if fine { Ok(text.to_ascii_lowercase()) } else { Err("must be a GUID") }
        };
        let tenant = section.required_parsed("tenant", "the GUID of the tenant", faults, guid);
        let mut secret_files = Vec::new();
        let store = read_store(&mut section, &mut secret_files, faults);
        let store_key_file = section.required_path(
            "store_key_file",
            "the file of the key that protected settings are encrypted with",
            faults,
        );
        let owners = section.texts("owners", faults).unwrap_or_default();
        let ca_file = section.path("ca_file", faults);
        let ca = ca_file.as_ref().and_then(|file| match std::fs::read_to_string(file) {
            Ok(pem) => Some(pem),
            Err(error) => {
                faults.push(section.key("ca_file"), format_args!("{} cannot be read: {error}", file.display()));
                None
            }
        });
        let mut subscriptions: Vec<Subscription> = Vec::new();
        for mut entry in section.sections("subscriptions", faults) {
            let id = entry.required_parsed("id", "the GUID of the subscription", faults, guid);
            let name = entry.text("name", faults);
            if let Some(id) = id {
                if subscriptions.iter().any(|other| other.id == id) {
                    faults.push(entry.key("id"), format_args!("{id} is there twice"));
                }
                subscriptions.push(Subscription { name: name.unwrap_or_else(|| id.clone()), id });
            }
            entry.end(faults);
        }
        let webhooks = webhooks(&mut section, &mut secret_files, faults);
        let catalogue_dir = section.path("catalogue_dir", faults);
        let upgrades = Upgrades::read(section.section("upgrades", faults), faults);
        let quotas = Quotas::read(section.section("quotas", faults), faults);
        let reads_per_minute = section.number("reads_per_minute", 1..=u32::MAX, faults);
        let writes_per_minute = section.number("writes_per_minute", 1..=u32::MAX, faults);
        let operation_timeout = section.duration("operation_timeout", OPERATION_TIMEOUTS, faults);
        section.end(faults);
        Some(Self {
            url: url?,
            tenant: tenant?,
            store: store?,
            store_key_file: store_key_file?,
            subscriptions,
            owners,
            ca,
            ca_file,
            secret_files,
            webhooks,
            catalogue_dir,
            upgrades,
            quotas,
            reads_per_minute: reads_per_minute.unwrap_or(READS_PER_MINUTE),
            writes_per_minute: writes_per_minute.unwrap_or(WRITES_PER_MINUTE),
            operation_timeout: operation_timeout.unwrap_or(OPERATION_TIMEOUT),
        })
    }

    /// A kubeconfig for a cluster, which signs its user in by `towline`.
    ///
    /// `ca`: what the gateway's certificate is checked against, PEM; empty: public authorities.
    pub fn kubeconfig(&self, id: &ClusterId, ca: &str) -> Value {
        use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
        let key = id.key().hex();
        let name = crate::stored::last_name(id.as_str());
        let mut cluster = json!({"server": format!("{}/{key}", self.url)});
        if !ca.is_empty() {
            cluster["certificate-authority-data"] = BASE64.encode(ca).into();
        }
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": format!("{name}-user"), "user": {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": format!("{name}-user")}}],
            "current-context": name,
        })
    }
}

/// Webhooks at most.
const WEBHOOKS: usize = 16;

/// Reads the tables `[[api.webhooks]]`.
fn webhooks(section: &mut Section, secrets: &mut SecretFiles, faults: &mut Faults) -> Vec<Webhook> {
    let mut webhooks = Vec::new();
    let entries = section.sections("webhooks", faults);
    if entries.len() > WEBHOOKS {
        faults.push(section.key("webhooks"), format_args!("has {} entries, at most {WEBHOOKS} fit", entries.len()));
    }
    for mut entry in entries {
        let url = entry.required_parsed("url", "the address that events are sent to", faults, address);
        let file = entry.required_path("secret_file", "the file of the secret that events are signed with", faults);
        let ca = entry.path("ca_file", faults);
        let names = entry.texts("types", faults);
        let known = |name: &String| Kind::ALL.into_iter().find(|kind| type_of(*kind) == *name);
        let all: Vec<String> = Kind::ALL.into_iter().map(type_of).collect();
        let names = names.unwrap_or_else(|| all.clone());
        for unknown in names.iter().filter(|name| known(name).is_none()) {
            faults.push(entry.key("types"), format_args!("has {unknown:?}; known are {}", all.join(", ")));
        }
        let key = file.and_then(|file| {
            secrets.push(("api.webhooks.secret_file", file.clone()));
            let read = std::fs::read_to_string(&file).map_err(|error| format!("cannot be read: {error}"));
            let read = read.and_then(|text| secret(&text));
            read.map_err(|why| faults.push(entry.key("secret_file"), format_args!("{} {why}", file.display()))).ok()
        });
        if let (Some(url), Some(key)) = (url, key) {
            match Webhook::new(url, &key, names.iter().filter_map(known).collect(), ca.as_deref()) {
                Ok(webhook) => webhooks.push(webhook),
                Err(why) => faults.push(entry.key("ca_file"), why),
            }
        }
        entry.end(faults);
    }
    webhooks
}

/// Settings, each with the file of a secret.
type SecretFiles = Vec<(&'static str, PathBuf)>;

fn read_store(section: &mut Section, secrets: &mut SecretFiles, faults: &mut Faults) -> Option<StoreAt> {
    let sqlite = section.path("store_file", faults).map(StoreAt::Sqlite);
    // An address holds a password: it is in a file of its own.
    let postgres = section.path("postgres_url_file", faults);
    let postgres = postgres.and_then(|file| {
        secrets.push(("api.postgres_url_file", file.clone()));
        postgres_url(&file)
            .map_err(|fault| faults.push(section.key("postgres_url_file"), format_args!("{} {fault}", file.display())))
            .ok()
            .map(|url| StoreAt::Postgres { url, file })
    });
    match (sqlite, postgres) {
        (Some(_), Some(_)) => {
            faults.push(section.key("store_file"), "is there beside postgres_url_file; one of the two");
            None
        }
        (None, None) => {
            faults.push(
                section.key("store_file"),
                "is missing: the SQLite file that resources are kept in (or postgres_url_file)",
            );
            None
        }
        (sqlite, postgres) => sqlite.or(postgres),
    }
}

/// The address of a PostgreSQL database, with its password, from the file that it is in.
///
/// # Errors
/// What is wrong with the file, for people; nothing of its content.
pub fn postgres_url(file: &std::path::Path) -> Result<String, String> {
    let text = std::fs::read_to_string(file).map_err(|error| format!("cannot be read: {error}"))?;
    let url = text.trim();
    if url.starts_with("postgres://") || url.starts_with("postgresql://") {
        return Ok(url.to_owned());
    }
    Err("does not hold postgres://<user>:<password>@<host>/<database>".to_owned())
}
