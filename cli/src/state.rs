//! The folder of `towline dev`: everything that one machine's gateway is made of, kept for the next start.
//!
//! | file | what it holds |
//! |---|---|
//! | `state.json` | addresses, clusters, grants, disabled users, settings: what the other files are written from |
//! | `gateway.toml` | the gateway's configuration; a running one reads it again when it changes |
//! | `ca/ca.crt`, `ca/ca.key` | the throw-away authority of servers, agents and access certificates |
//! | `tls/tls.crt`, `tls/tls.key` | the gateway's certificate |
//! | `issuer/keys.json`, `users.json`, `principals.json` | the built-in issuer's |
//! | `users/<name>.password` | passwords that were made here |
//! | `principals/<name>.secret` | secrets of service principals that were made here |
//! | `agents/<cluster>/...` | what an agent needs: `agent.toml` and its files, `values.yaml` for helm |
//! | `tokens/...` | tokens that kubectl's credential plugin keeps between calls |
//! | `audit.jsonl` | the gateway's audit records |
//! | `running.lock` | locked while a gateway runs on this state |

mod artifacts;
pub use artifacts::check_name;
mod settings;

use std::{
    fs::File,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, bail};
use gateway::{
    files::{self, EditLock},
    issuer,
};
use serde::{Deserialize, Serialize};
use types::ids::ClusterId;

use crate::failure::{Failure, Outcome};

const STATE_FILE: &str = "state.json";
const LOCK_FILE: &str = "running.lock";
/// The version of `state.json` that is written and read.
const VERSION: u32 = 1;
/// Clusters that one state has at most.
const CLUSTERS_MAX: usize = 1000;
/// Subscription of clusters that were added before a state had one of its own.
const NO_SUBSCRIPTION: &str = "00000000-0000-0000-0000-000000000000";
/// Behind the subscription: the resource group and type of clusters that are given by name alone.
const GROUP: &str = "resourceGroups/dev/providers/Microsoft.Kubernetes/connectedClusters";

/// A cluster of this state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cluster {
    /// Its short name, also its folder's.
    pub name: String,
    /// ARM id as given.
    pub id: String,
}

/// Who may reach a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Grant {
    /// ARM id, or `*`.
    pub cluster: String,
    /// Names of users who may reach it.
    #[serde(default)]
    pub users: Vec<String>,
    /// Names of groups whose members may reach it.
    #[serde(default)]
    pub groups: Vec<String>,
}

/// The content of `state.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    version: u32,
    /// The issuer's tenant, a GUID; empty until the first start.
    #[serde(default)]
    pub tenant: String,
    /// The subscription of clusters that are given by name, a GUID; empty until the first start.
    #[serde(default)]
    pub subscription: String,
    /// Object id of the service principal that owns the subscription, a GUID; empty until the first start.
    #[serde(default)]
    pub owner: String,
    /// Where users and agents connect.
    pub listen: SocketAddr,
    /// The admin listener.
    pub admin: SocketAddr,
    /// Names of the gateway beside `localhost` and the loopback addresses; the first is part of its URL.
    pub names: Vec<String>,
    /// Clusters are found at `<key>.<domain>` too.
    pub domain: Option<String>,
    /// Life of a token in milliseconds.
    pub token_ttl_ms: u64,
    /// For agents outside of a cluster.
    pub kubeconfig: Option<PathBuf>,
    /// `--set`, in the order given.
    pub gateway_settings: Vec<(String, String)>,
    /// `--agent-set`, in the order given.
    pub agent_settings: Vec<(String, String)>,
    /// The clusters that this gateway serves.
    pub clusters: Vec<Cluster>,
    /// The rights to reach them.
    pub grants: Vec<Grant>,
    /// Users whose sessions end at once.
    pub disabled: Vec<String>,
}

impl Default for Data {
    fn default() -> Self {
        Self {
            version: VERSION,
            tenant: String::new(),
            subscription: String::new(),
            owner: String::new(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            admin: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            names: Vec::new(),
            domain: None,
            token_ttl_ms: u64::try_from(issuer::TTL_DEFAULT.as_millis()).unwrap_or(3_600_000),
            kubeconfig: None,
            gateway_settings: Vec::new(),
            agent_settings: Vec::new(),
            clusters: Vec::new(),
            grants: Vec::new(),
            disabled: Vec::new(),
        }
    }
}

/// A state as read.
pub struct State {
    dir: PathBuf,
    /// What it says.
    pub data: Data,
}

impl State {
    /// Reads the state of a `towline dev` that has been started before.
    pub fn open(dir: &Path) -> Outcome<Self> {
        let folder = dir.canonicalize();
        let missing = || {
            let error = anyhow::anyhow!("there is no state of a towline dev in {}", dir.display());
            Failure::usage(error).hint(format!("start it once: towline dev --state {}", dir.display()))
        };
        let dir = match folder {
            Ok(folder) => folder,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(missing()),
            Err(error) => {
                let error = anyhow::Error::new(error).context(format!("cannot open the state in {}", dir.display()));
                return Err(Failure::usage(error));
            }
        };
        Ok(Self { data: read(&dir).map_err(Failure::usage)?.ok_or_else(missing)?, dir })
    }

    /// Changes the state under a lock and writes `state.json`; makes the folder and a new state where there is none.
    pub fn edit(dir: &Path, change: impl FnOnce(&mut Data) -> Outcome<()>) -> Outcome<Self> {
        let dir = make_folder(dir)?;
        let file = dir.join(STATE_FILE);
        let _lock = EditLock::take(&file)?;
        let before = read(&dir).map_err(Failure::usage)?;
        let mut data = before.clone().unwrap_or_default();
        change(&mut data)?;
        let state = Self { dir, data };
        // Settings that contradict the rest are found before anything is kept.
        state.check_settings().map_err(Failure::usage)?;
        if before.as_ref() != Some(&state.data) {
            files::write_private(&file, &serde_json::to_vec_pretty(&state.data)?)?;
        }
        // Under the same lock: two edits at once must not write each other's configuration.
        state.write_artifacts()?;
        Ok(state)
    }

    /// As [`State::edit`], but only where there is a state already.
    pub fn edit_existing(dir: &Path, change: impl FnOnce(&mut Data) -> Outcome<()>) -> Outcome<Self> {
        Self::open(dir)?;
        Self::edit(dir, change)
    }

    /// Keeps a second gateway from running on the same state, until the guard is dropped or the process ends.
    pub fn lock_running(dir: &Path) -> Outcome<File> {
        let path = make_folder(dir)?.join(LOCK_FILE);
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.with_context(|| format!("cannot open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(_) => Err(Failure::from(anyhow::anyhow!("another towline dev runs on the state in {}", dir.display()))
                .hint("stop it first, or use another folder; add-cluster and its kin work while it runs")),
        }
    }

    /// Its folder, absolute.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// A file in it.
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.dir.join(relative)
    }

    /// The gateway's URL without a slash at the end.
    pub fn url(&self) -> String {
        let host = match (self.data.names.first(), self.data.listen.ip()) {
            (Some(name), _) if name.contains(':') => format!("[{name}]"),
            (Some(name), _) => name.clone(),
            (None, IpAddr::V4(ip)) if !ip.is_unspecified() => ip.to_string(),
            (None, IpAddr::V6(ip)) if !ip.is_unspecified() => format!("[{ip}]"),
            (None, IpAddr::V4(_)) => "127.0.0.1".to_owned(),
            (None, IpAddr::V6(_)) => "[::1]".to_owned(),
        };
        match self.data.listen.port() {
            443 => format!("https://{host}"),
            port => format!("https://{host}:{port}"),
        }
    }

    /// Where the gateway is reached on this machine.
    fn own_address(&self) -> SocketAddr {
        let ip = match self.data.listen.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        SocketAddr::new(ip, self.data.listen.port())
    }

    /// The built-in issuer's URL.
    pub fn issuer_url(&self) -> String {
        self.url() + issuer::MOUNT
    }

    /// PEM file of the authority.
    pub fn ca_file(&self) -> PathBuf {
        self.path("ca/ca.crt")
    }

    /// How the built-in issuer is opened.
    pub fn issuer_settings(&self) -> issuer::IssuerSettings {
        issuer::IssuerSettings {
            url: self.issuer_url(),
            state: self.path("issuer"),
            ttl: Duration::from_millis(self.data.token_ttl_ms),
            tenant: self.data.tenant.clone(),
            api_audience: self.url(),
            audiences: Vec::new(),
            clients: Vec::new(),
        }
    }

    /// Where a user's password is kept if it was made here.
    pub fn password_file(&self, user: &str) -> PathBuf {
        self.path("users").join(format!("{}.password", file_name(user)))
    }

    /// Where a service principal's secret is kept if it was made here.
    pub fn secret_file(&self, principal: &str) -> PathBuf {
        self.path("principals").join(format!("{}.secret", file_name(principal)))
    }

    /// The cluster of this name or id; without either the only one there is.
    pub fn cluster(&self, name: Option<&str>) -> Outcome<&Cluster> {
        let known = || self.data.clusters.iter().map(|cluster| cluster.name.as_str()).collect::<Vec<_>>().join(", ");
        match (name, self.data.clusters.as_slice()) {
            (None, [only]) => Ok(only),
            (None, _) => Err(Failure::usage(anyhow::anyhow!("which cluster? --cluster one of: {}", known()))),
            (Some(name), clusters) => clusters.iter().find(|cluster| cluster.is(name)).ok_or_else(|| {
                Failure::usage(anyhow::anyhow!("this state has no cluster {name:?}; it has: {}", known()))
                    .hint(format!("towline dev add-cluster --state {} {name}", self.dir.display()))
            }),
        }
    }
}

impl Cluster {
    /// From a whole ARM id, or from a name in `subscription`.
    fn new(text: &str, subscription: &str) -> anyhow::Result<Self> {
        let subscription = if subscription.is_empty() { NO_SUBSCRIPTION } else { subscription };
        let id = match text.starts_with('/') {
            true => text.to_owned(),
            false => format!("/subscriptions/{subscription}/{GROUP}/{text}"),
        };
        let parsed: ClusterId =
            id.parse().with_context(|| format!("{text:?} is neither a cluster's name nor its id"))?;
        Ok(Self { name: parsed.name().to_owned(), id })
    }

    /// Its id, parsed.
    pub fn cluster_id(&self) -> anyhow::Result<ClusterId> {
        Ok(self.id.parse()?)
    }

    fn is(&self, text: &str) -> bool {
        self.name.eq_ignore_ascii_case(text) || self.id.eq_ignore_ascii_case(text)
    }
}

impl Data {
    /// Adds a cluster; one that is there already stays as it is. Says whether it is new.
    pub fn add_cluster(&mut self, text: &str) -> anyhow::Result<bool> {
        let cluster = Cluster::new(text, &self.subscription)?;
        // A name alone means the cluster of that name, whichever subscription it was added to.
        let named = |known: &Cluster| !text.starts_with('/') && known.name == cluster.name;
        if self.clusters.iter().any(|known| known.id.eq_ignore_ascii_case(&cluster.id) || named(known)) {
            return Ok(false);
        }
        if self.clusters.iter().any(|known| known.name == cluster.name) {
            bail!("there is another cluster called {} here: short names must differ", cluster.name);
        }
        if self.clusters.len() >= CLUSTERS_MAX {
            bail!("one state has at most {CLUSTERS_MAX} clusters");
        }
        self.clusters.push(cluster);
        Ok(true)
    }

    /// The id of a cluster by name or id, or `*`.
    pub fn scope(&self, text: &str) -> anyhow::Result<String> {
        if text == "*" {
            return Ok(text.to_owned());
        }
        let cluster = self.clusters.iter().find(|cluster| cluster.is(text));
        Ok(cluster.with_context(|| format!("this state has no cluster {text:?}"))?.id.clone())
    }

    /// Grants a cluster (by id or `*`).
    pub fn grant(&mut self, scope: &str, user: Option<&str>, group: Option<&str>) {
        let at = match self.grants.iter().position(|grant| grant.cluster == scope) {
            Some(at) => at,
            None => {
                self.grants.push(Grant { cluster: scope.to_owned(), users: Vec::new(), groups: Vec::new() });
                self.grants.len() - 1
            }
        };
        let grant = &mut self.grants[at];
        for (list, name) in [(&mut grant.users, user), (&mut grant.groups, group)] {
            if let Some(name) = name.filter(|name| !list.iter().any(|known| known == name)) {
                list.push(name.to_owned());
            }
        }
    }

    /// Takes back all grants of a user.
    pub fn revoke_all(&mut self, user: &str) {
        self.grants.iter_mut().for_each(|grant| grant.users.retain(|known| known != user));
        self.grants.retain(|grant| !grant.users.is_empty() || !grant.groups.is_empty());
    }

    /// Takes a grant back. Says whether there was one.
    pub fn revoke(&mut self, scope: &str, user: Option<&str>, group: Option<&str>) -> bool {
        let mut found = false;
        for grant in self.grants.iter_mut().filter(|grant| grant.cluster == scope) {
            for (list, name) in [(&mut grant.users, user), (&mut grant.groups, group)] {
                let before = list.len();
                list.retain(|known| Some(known.as_str()) != name);
                found |= list.len() < before;
            }
        }
        self.grants.retain(|grant| !grant.users.is_empty() || !grant.groups.is_empty());
        found
    }
}

/// Makes the folder, which must be one that this user may write to.
fn make_folder(dir: &Path) -> Outcome<PathBuf> {
    let made = match dir.metadata() {
        Ok(facts) if !facts.is_dir() => Err(anyhow::anyhow!("{} is a file", dir.display())),
        _ => files::create_private_dir(dir).map_err(anyhow::Error::new),
    };
    let folder = made.and_then(|()| dir.canonicalize().with_context(|| format!("cannot open {}", dir.display())));
    folder.map_err(|error| Failure::usage(error).hint("--state DIR: a folder that you may write to, or make"))
}

/// Only to tell versions apart: another one may have other fields.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

fn read(dir: &Path) -> anyhow::Result<Option<Data>> {
    let path = dir.join(STATE_FILE);
    if !path.exists() {
        return Ok(None);
    }
    let content = files::read(&path)?;
    let foreign = || format!("{} is not the state of a towline dev", path.display());
    let Versioned { version } = serde_json::from_slice(&content).with_context(foreign)?;
    if version != VERSION {
        bail!(
            "{} is of another towline: it has version {version}, this program reads version {VERSION}; use that one, or \
             another folder",
            path.display()
        );
    }
    let data = serde_json::from_slice(&content).with_context(foreign)?;
    Ok(Some(data))
}

/// A name as part of a file's name: what is not plain is escaped, so that no name leaves its folder.
fn file_name(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'@');
    name.bytes().map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02x}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_are_named_or_given_by_id() {
        let mut data = Data::default();
        assert!(data.add_cluster("Edge").unwrap());
        assert!(!data.add_cluster("edge").unwrap());
        data.subscription = "10000000-0000-4000-8000-000000000000".to_owned();
        assert!(!data.add_cluster("Edge").unwrap(), "added before there was a subscription");
        assert!(data.add_cluster("Late").unwrap() && data.clusters[1].id.contains(&data.subscription));
        let other = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/edge";
        assert!(data.add_cluster(other).is_err(), "short names must differ");
        assert!(data.add_cluster("a/b").is_err());
        assert!(data.add_cluster("..").is_err());
        assert_eq!(data.scope("EDGE").unwrap(), data.clusters[0].id);
        assert!(data.scope("x").is_err());
    }

    #[test]
    fn a_state_of_another_version_is_told_from_a_broken_one_and_from_none() {
        let dir = tempfile::tempdir().unwrap();
        let error = |dir: &Path| format!("{:?}", State::open(dir).err().unwrap());
        let none = error(dir.path());
        assert!(
            none.contains("there is no state") && none.contains("start it once") && none.contains("code: 2"),
            "{none}"
        );
        for (content, expected) in
            [(r#"{"version":2,"colour":"red"}"#, "it has version 2"), ("{", "is not the state of a towline dev")]
        {
            std::fs::write(dir.path().join(STATE_FILE), content).unwrap();
            let error = error(dir.path());
            assert!(error.contains(expected) && error.contains("code: 2") && !error.contains("start it"), "{error}");
        }
    }

    #[test]
    fn a_file_in_the_folders_place_is_a_fault_of_what_was_typed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = format!("{:?}", State::lock_running(file.path()).err().unwrap());
        assert!(error.contains("is a file") && error.contains("code: 2") && error.contains("--state DIR"), "{error}");
    }

    #[test]
    fn grants_come_and_go() {
        let mut data = Data::default();
        data.grant("*", Some("ann"), None);
        data.grant("*", Some("ann"), Some("ops"));
        assert_eq!(data.grants, [Grant { cluster: "*".into(), users: vec!["ann".into()], groups: vec!["ops".into()] }]);
        assert!(data.revoke("*", Some("ann"), None));
        assert!(!data.revoke("*", Some("ann"), None));
        assert!(data.revoke("*", None, Some("ops")));
        assert!(data.grants.is_empty());
    }

    #[test]
    fn no_users_name_leaves_the_folder() {
        assert_eq!(file_name("../x"), "%2e%2e%2fx");
        assert_eq!(file_name("ann@x"), "ann@x");
    }
}
