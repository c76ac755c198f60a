//! The chart's values, typed. What is not set is as in the chart's own `values.yaml`, which is part of this program.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

const DEFAULTS: &str = include_str!("../../../docker/chart/towline-agent/values.yaml");

/// All of them. `values.schema.json` describes each.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Values {
    pub gateway: Gateway,
    pub identity: Identity,
    pub controller_manager: Manager,
    pub extensions: Extensions,
    pub gitops: Gitops,
    pub guard: Guard,
    pub upgrades: Upgrades,
    pub network_policy: NetworkPolicy,
    pub identity_tokens: IdentityTokens,
    pub metadata: Metadata,
    /// In the chart's own form.
    pub issuers: Vec<Map<String, Value>>,
    pub impersonation: Impersonation,
    pub azure_rbac: AzureRbac,
    pub proxy: Proxy,
    pub extra_ca: String,
    pub host_aliases: Vec<HostAlias>,
    pub sessions: Sessions,
    pub limits: Limits,
    pub log: Log,
    pub admin: Admin,
    pub image: Image,
    pub replicas: u32,
    pub pod_disruption_budget: Budget,
    pub topology_spread: Spread,
    pub resources: Value,
    pub service_account: Account,
    pub rbac: Rbac,
    pub pod_annotations: BTreeMap<String, String>,
    pub pod_labels: BTreeMap<String, String>,
    pub pod_security_context: Map<String, Value>,
    pub node_selector: BTreeMap<String, String>,
    pub tolerations: Vec<Value>,
    pub affinity: Map<String, Value>,
    pub priority_class_name: String,
}

macro_rules! section {
    ($(#[$meta:meta])* $name:ident { $($(#[$of:meta])* $field:ident: $type:ty),* $(,)? }) => {
        $(#[$meta])*
        #[derive(Deserialize, Serialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        pub struct $name { $($(#[$of])* pub $field: $type),* }
    };
}

section! {
    /// Where the gateway is and how it is trusted.
    Gateway {
        url: String, urls: Vec<String>, ca: String, server_name: String, addresses: Vec<String>, carrier: String,
        udp_segmentation_offload: bool, replicas: u32,
    }
}
section! {
    /// The second Deployment.
    Manager { enabled: Value, port: u16, resources: Value, service_account: Account }
}
section! {
    /// The third Deployment: installs helm charts of a signed catalogue.
    Extensions {
        enabled: bool, catalogue_keys: Vec<String>, catalogue_id: String, allowed_types: Vec<String>,
        locked_settings: Vec<String>, chart_registry: String, registry_secret: String, local_registry: String,
        timeout: String, catalogue_interval: String, image: ExtensionImage, work_size: String, resources: Value, service_account: Account,
    }
}
section! {
    /// The image of extension-manager.
    ExtensionImage { repository: String, tag: String, digest: String }
}
section! {
    /// What fluxConfigurations may do in the cluster; empty lists allow everything.
    Gitops {
        allowed_repositories: Vec<String>, allowed_scopes: Vec<String>, allowed_namespaces: Vec<String>,
        resync_interval: String,
    }
}
section! {
    /// The apiserver's own webhook for tokens and rights.
    Guard {
        enabled: bool, port: u16, server: String, #[serde(rename = "clusterIP")] cluster_ip: String, skip_users: Vec<String>,
        cache_entries: u32, cache_allowed_for: String, cache_denied_for: String, replicas: u32, resources: Value,
        service_account: Account,
    }
}
section! {
    /// Upgrades of the agents by themselves.
    Upgrades {
        enabled: bool, catalogue_keys: Vec<String>, catalogue_id: String, interval: String, window: String, timeout: String,
        resources: Value, service_account: Account,
    }
}
section! {
    /// Who may connect to the pods that hold users' tunnel.
    NetworkPolicy { enabled: bool }
}
section! {
    /// Tokens of the cluster's identity for what else runs in the cluster.
    IdentityTokens { enabled: bool, port: u16 }
}
section! {
    /// What is said of the cluster instead of what the agents find.
    Metadata { distribution: String, infrastructure: String }
}
section! {
    /// Bounds on who is impersonated.
    Impersonation { extras: Vec<String>, allow_reserved: Vec<String> }
}
section! {
    /// Whether calls are also decided by the gateway's roles and assignments.
    AzureRbac { enabled: bool, issuer: String }
}
section! {
    /// How long sessions live.
    Sessions { outlive_token: String }
}
section! {
    /// Bounds of one pod.
    Limits { streams: u32, drain_grace: String }
}
section! {
    /// What is logged.
    Log { level: String, format: String }
}
section! {
    /// The admin listener.
    Admin { address: String, port: u16 }
}
section! {
    /// The image of the agents.
    Image { repository: String, tag: String, digest: String, pull_policy: String, pull_secrets: Vec<String> }
}
section! {
    /// How many pods stay when nodes are drained.
    Budget { enabled: bool, min_available: Value }
}
section! {
    /// Where pods spread.
    Spread { enabled: bool, topology_key: String, when_unsatisfiable: String }
}
section! {
    /// A service account.
    Account { create: bool, name: String, annotations: BTreeMap<String, String> }
}
section! {
    /// Whether rights are given.
    Rbac { create: bool }
}
section! {
    /// A line of the pods' `/etc/hosts`.
    HostAlias { ip: String, hostnames: Vec<String> }
}

/// Who the agents are. Does not print.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Identity {
    /// The resource's ARM id.
    pub cluster_id: String,
    /// PEM of the private key whose public half the resource has.
    #[serde(serialize_with = "exposed")]
    pub onboarding_key: SecretString,
    /// A Secret with it instead.
    pub existing_onboarding_secret: String,
    certificate: String,
    #[serde(serialize_with = "exposed")]
    key: SecretString,
    existing_secret: String,
}

/// An outbound proxy. Does not print.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Proxy {
    /// `http://host:port` or `https://host:port`; empty: none.
    pub url: String,
    /// PEM of the proxy's own authority.
    pub ca: String,
    /// The user name for Basic authentication.
    pub username: String,
    /// The password for Basic authentication.
    #[serde(serialize_with = "exposed")]
    pub password: SecretString,
    /// A Secret with both instead.
    pub existing_secret: String,
    /// What is reached without it.
    pub no_proxy: Vec<String>,
}

impl Default for Values {
    fn default() -> Self {
        serde_yaml::from_str(DEFAULTS).expect("the chart's values.yaml has every value, of its type: a test reads it")
    }
}

impl Values {
    /// The image's whole name.
    pub fn image_name(&self) -> String {
        let Image { repository, tag, digest, .. } = &self.image;
        whole_name(repository, tag, digest)
    }

    /// The whole name of the extension-manager's image.
    pub fn extension_image_name(&self) -> String {
        let ExtensionImage { repository, tag, digest } = &self.extensions.image;
        whole_name(repository, tag, digest)
    }

    /// The Secret of the onboarding key.
    pub fn onboarding_secret(&self) -> &str {
        let existing = self.identity.existing_onboarding_secret.as_str();
        if existing.is_empty() { super::ONBOARDING_SECRET } else { existing }
    }

    /// The Secret of the proxy's user name and password, if it wants them.
    pub fn proxy_secret(&self) -> Option<String> {
        let Proxy { existing_secret, username, .. } = &self.proxy;
        match (existing_secret.as_str(), username.as_str()) {
            ("", "") => None,
            ("", _) => Some(format!("{}-proxy", super::AGENT)),
            (existing, _) => Some(existing.to_owned()),
        }
    }
}

fn whole_name(repository: &str, tag: &str, digest: &str) -> String {
    match (digest, tag) {
        ("", "") => format!("{repository}:{}", super::version()),
        ("", tag) => format!("{repository}:{tag}"),
        (digest, _) => format!("{repository}@{digest}"),
    }
}

/// For the text that helm reads, and for that alone.
fn exposed<S: Serializer>(secret: &SecretString, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(secret.expose_secret())
}
