//! Merges entries into a kubeconfig as `kubectl config set-cluster`, `set-credentials` and `set-context` do: what an
//! entry of the same name says besides, such as a context's namespace, stays, and so does what others put there,
//! unknown keys included.

mod address;
mod file;

use anyhow::bail;
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};

pub use self::{
    address::{AddressForm, form_of},
    file::merge_files,
};
use crate::{
    environment::CONFIG_DIR,
    yaml::{self, Content, Node},
};

/// What proves a user, by the keys of a kubeconfig: what is not written again is taken out, or it would be used
/// instead.
const CREDENTIALS: &[&str] = &[
    "token",
    "tokenFile",
    "username",
    "password",
    "client-certificate",
    "client-certificate-data",
    "client-key",
    "client-key-data",
    "auth-provider",
    "exec",
];

/// How a user proves who they are.
pub enum UserEntry {
    /// A bearer token that is written into the file.
    Token {
        /// The bearer token, in clear text.
        token: String,
        /// PEM of a client certificate and its key beside it.
        certificate: Option<(String, String)>,
    },
    /// A command that prints a token.
    Exec {
        /// `client.authentication.k8s.io/v1` or `v1beta1`.
        api_version: &'static str,
        /// The program that kubectl starts to get a token.
        command: String,
        /// What it is called with.
        args: Vec<String>,
        /// What it finds in its environment beside kubectl's own.
        env: Vec<(String, String)>,
    },
}

/// One cluster, one user and one context.
pub struct Entry {
    /// Name of the cluster entry.
    pub cluster: String,
    /// Name of the user entry.
    pub user: String,
    /// Name of the context.
    pub context: String,
    /// URL that kubectl dials, with the path prefix of the cluster if there is one.
    pub server: String,
    /// The name to ask for in TLS, where it is not the server's.
    pub tls_server_name: Option<String>,
    /// PEM; none for the system's authorities.
    pub ca: Option<String>,
    /// A proxy for kubectl itself, without a password.
    pub proxy_url: Option<String>,
    /// How kubectl proves who the user is.
    pub credential: UserEntry,
}

/// A list of named entries.
#[derive(Clone, Copy)]
struct List {
    list: &'static str,
    /// Where an entry has its content.
    key: &'static str,
}

/// The lists of a kubeconfig, each with the key of what its entries hold.
const CLUSTERS: List = List { list: "clusters", key: "cluster" };
const CONTEXTS: List = List { list: "contexts", key: "context" };
const USERS: List = List { list: "users", key: "user" };

/// Which parts of an entry go into a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Parts {
    cluster: bool,
    context: bool,
    user: bool,
    /// Whether the context becomes the current one.
    current: bool,
}

impl Parts {
    const ALL: Self = Self { cluster: true, context: true, user: true, current: true };
}

/// A new kubeconfig of the entry alone.
pub fn alone(entry: &Entry) -> anyhow::Result<String> {
    merge(b"", entry, Parts::ALL)
}

/// Puts the parts of an entry into the text of a kubeconfig (empty for a new one). Entries of the same names are
/// changed where they stand.
fn merge(text: &[u8], entry: &Entry, parts: Parts) -> anyhow::Result<String> {
    let (mut root, has_more) = read(text)?;
    if has_more {
        tracing::warn!(
            "the kubeconfig has several documents: kubectl reads the first one, and the others are not kept"
        );
    }
    for (key, value) in [("apiVersion", "v1"), ("kind", "Config")] {
        if root.get(key).is_none_or(Node::is_null) {
            root.set(key, value);
        }
    }
    if parts.cluster {
        set_cluster(named(&mut root, CLUSTERS, &entry.cluster)?, entry);
    }
    if parts.context {
        let context = named(&mut root, CONTEXTS, &entry.context)?;
        context.set("cluster", entry.cluster.as_str());
        context.set("user", entry.user.as_str());
    }
    if parts.user {
        set_user(named(&mut root, USERS, &entry.user)?, &entry.credential);
    }
    if parts.current {
        root.set("current-context", entry.context.as_str());
    }
    Ok(yaml::write(&root))
}

/// The first document, which is what kubectl reads, and whether there are others.
fn read(text: &[u8]) -> anyhow::Result<(Node, bool)> {
    let document = yaml::read(text)?;
    let root = document.root.filter(|root| !root.is_null()).unwrap_or_else(Node::map);
    if !matches!(root.content, Content::Map(_)) {
        bail!("it is not a kubeconfig: a mapping is expected");
    }
    if root.get("kind").is_some_and(|kind| !kind.is_null() && kind.as_str() != Some("Config")) {
        bail!("it is not a kubeconfig: its kind is not Config");
    }
    Ok((root, document.has_more))
}

fn set_cluster(cluster: &mut Node, entry: &Entry) {
    let is_moved = cluster.get("server").and_then(Node::as_str) != Some(entry.server.as_str());
    cluster.set("server", entry.server.as_str());
    match &entry.ca {
        Some(ca) => {
            cluster.set("certificate-authority-data", BASE64.encode(ca).as_str());
            cluster.remove("certificate-authority");
            cluster.remove("insecure-skip-tls-verify");
        }
        None => cluster.remove("certificate-authority-data"),
    }
    if is_moved {
        // It was the name of a server at another address.
        cluster.remove("tls-server-name");
    }
    if let Some(name) = &entry.tls_server_name {
        cluster.set("tls-server-name", name.as_str());
    }
    if let Some(url) = &entry.proxy_url {
        cluster.set("proxy-url", url.as_str());
    }
}

fn set_user(user: &mut Node, credential: &UserEntry) {
    let mut exec = user.get("exec").cloned().unwrap_or_else(Node::map);
    let kept: &[&str] = match credential {
        UserEntry::Token { certificate: None, .. } => &["token"],
        UserEntry::Token { .. } => &["token", "client-certificate-data", "client-key-data"],
        UserEntry::Exec { .. } => &["exec"],
    };
    CREDENTIALS.iter().filter(|key| !kept.contains(key)).for_each(|key| user.remove(key));
    match credential {
        UserEntry::Token { token, certificate } => {
            user.set("token", token.as_str());
            if let Some((certificate, key)) = certificate {
                user.set("client-certificate-data", BASE64.encode(certificate).as_str());
                user.set("client-key-data", BASE64.encode(key).as_str());
            }
        }
        UserEntry::Exec { api_version, command, args, env } => {
            exec.set("apiVersion", *api_version);
            exec.set("command", command.as_str());
            exec.set("args", Content::List(args.iter().map(|arg| arg.as_str().into()).collect()));
            let env = environment(exec.get("env"), env);
            exec.set("env", if env.is_empty() { Content::Plain("null".to_owned()) } else { Content::List(env) });
            exec.set("interactiveMode", "Never");
            exec.set("provideClusterInfo", Content::Plain("false".to_owned()));
            user.set("exec", exec);
        }
    }
}

/// The variables of the credential plugin: ours, and those that somebody added.
fn environment(before: Option<&Node>, ours: &[(String, String)]) -> Vec<Node> {
    let name = |variable: &Node| variable.get("name").and_then(Node::as_str).map(str::to_owned);
    let is_ours = |name: &str| name == CONFIG_DIR || ours.iter().any(|(ours, _)| ours == name);
    let mut all = match before.map(|before| &before.content) {
        Some(Content::List(variables)) => variables.clone(),
        _ => Vec::new(),
    };
    all.retain(|variable| name(variable).is_some_and(|name| !is_ours(&name)));
    all.extend(ours.iter().map(|(name, value)| {
        let mut variable = Node::map();
        variable.set("name", name.as_str());
        variable.set("value", value.as_str());
        variable
    }));
    all
}

/// What the entry of a name holds, in one of the lists; made if there is none.
fn named<'a>(root: &'a mut Node, List { list, key }: List, name: &str) -> anyhow::Result<&'a mut Node> {
    if root.get(list).is_none_or(Node::is_null) {
        root.set(list, Content::List(Vec::new()));
    }
    let Some(Content::List(entries)) = root.entry(list).map(|list| &mut list.content) else {
        bail!("it is not a kubeconfig: {list} must be a list");
    };
    let at = position(entries, name).unwrap_or(entries.len());
    if at == entries.len() {
        let mut fresh = Node::map();
        fresh.set("name", name);
        entries.push(fresh);
    }
    let entry = &mut entries[at];
    if entry.get(key).is_none_or(|content| !matches!(content.content, Content::Map(_))) {
        entry.set(key, Node::map());
    }
    entry.entry(key).ok_or_else(|| anyhow::anyhow!("it is not a kubeconfig: {key} must be a mapping"))
}

/// Whether a list has an entry of this name.
fn has(root: &Node, List { list, .. }: List, name: &str) -> bool {
    match root.get(list).map(|list| &list.content) {
        Some(Content::List(entries)) => position(entries, name).is_some(),
        _ => false,
    }
}

fn position(entries: &[Node], name: &str) -> Option<usize> {
    entries.iter().position(|entry| entry.get("name").and_then(Node::as_str) == Some(name))
}

#[cfg(test)]
mod tests;
