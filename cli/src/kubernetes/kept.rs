//! What agents that are there were told by options: an update keeps it, unless other options say otherwise.

use anyhow::Context;
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use secrecy::SecretString;
use serde_json::Value;

use super::{
    Kubernetes, Place,
    place::{CONFIG_MAP, DEPLOYMENT, SECRET, SERVICE},
};
use crate::manifests::{
    AGENT, CONFIG_FILE, EXTENSIONS, GITOPS, GUARD, HostAlias, MANAGER, PROXY_SECRET, Proxy, VERSION_LABEL, Values,
};

/// Read of their own configuration. Does not print.
pub struct Kept {
    /// How they get to the gateway.
    pub proxy: Proxy,
    /// PEM of a further authority on the way.
    pub extra_ca: String,
    /// The carrier that is pinned; empty: none.
    pub carrier: String,
    /// Lines of the pods' `/etc/hosts`.
    pub host_aliases: Vec<HostAlias>,
    /// Whether the gateway's roles decide single calls.
    pub azure_rbac: bool,
    /// The image; one of this program's own version has no tag.
    pub image: Option<String>,
    /// Which version installed them: the tag of an image without one.
    pub version: Option<String>,
    /// How many pods hold a tunnel.
    pub replicas: Option<u32>,
    /// What was said of the cluster.
    pub distribution: String,
    /// What was said of what it runs on.
    pub infrastructure: String,
    /// What guard was told, where it is on.
    pub guard: Option<KeptGuard>,
    /// What the extension-manager was told, where extensions are on.
    pub extensions: Option<KeptExtensions>,
}

/// What guard was told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptGuard {
    /// What the apiserver dials; empty: its Service.
    pub server: String,
    /// The address of that Service, which is in the apiserver's files.
    pub cluster_ip: String,
    /// Users that only the cluster's own RBAC decides about.
    pub skip_users: Vec<String>,
}

/// What an extension-manager was told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptExtensions {
    /// PEM: the catalogue's keys that are pinned.
    pub keys: Vec<String>,
    /// The catalogue that is pinned; empty: none.
    pub catalogue: String,
    /// Types that may be installed; empty: all.
    pub allowed_types: Vec<String>,
    /// Settings that no gateway gives.
    pub locked_settings: Vec<String>,
    /// The image; one of this program's own version has no tag.
    pub image: Option<String>,
    /// What fluxConfigurations may do.
    pub gitops: KeptGitops,
}

/// What the agent of fluxConfigurations was told; empty lists allow everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptGitops {
    /// URLs of sources.
    pub repositories: Vec<String>,
    /// `cluster`, `namespace`.
    pub scopes: Vec<String>,
    /// Namespaces of configurations.
    pub namespaces: Vec<String>,
}

/// The objects that tell; null where there is none.
struct Told {
    agent: Value,
    manager: Value,
    deployment: Value,
    proxy: Value,
    extensions: Value,
    extension_manager: Value,
    gitops: Value,
    guard: Value,
    guard_service: Value,
}

impl Kubernetes {
    /// What the agents in a namespace were told.
    pub async fn kept(&self, namespace: &str) -> anyhow::Result<Kept> {
        let read = async |kind, name: &str| {
            let place = Place::within(kind, namespace, name);
            let found = self.get(&place).await.with_context(|| format!("read {place}"))?;
            anyhow::Ok(found.unwrap_or_default())
        };
        let told = Told {
            agent: read(CONFIG_MAP, AGENT).await?,
            manager: read(CONFIG_MAP, MANAGER).await?,
            deployment: read(DEPLOYMENT, AGENT).await?,
            proxy: read(SECRET, PROXY_SECRET).await?,
            extensions: read(CONFIG_MAP, EXTENSIONS).await?,
            extension_manager: read(DEPLOYMENT, EXTENSIONS).await?,
            gitops: read(CONFIG_MAP, GITOPS).await?,
            guard: read(CONFIG_MAP, GUARD).await?,
            guard_service: read(SERVICE, GUARD).await?,
        };
        told.kept()
    }
}

impl Told {
    fn kept(&self) -> anyhow::Result<Kept> {
        let agent = config(&self.agent)?;
        let manager = config(&self.manager)?;
        let file = |name: &str| text(&self.agent["data"][name]);
        let mut proxy = Values::default().proxy;
        if let Some(table) = agent.get("proxy") {
            proxy.url = word(Some(table), "url");
            proxy.ca = file("proxy-ca.crt");
            proxy.no_proxy = words(table, "no_proxy");
            proxy.username = secret(&self.proxy, "username");
            proxy.password = SecretString::from(secret(&self.proxy, "password"));
        }
        let (metadata, pod) = (manager.get("metadata"), &self.deployment["spec"]["template"]["spec"]);
        Ok(Kept {
            proxy,
            extra_ca: file("extra-ca.crt"),
            carrier: word(agent.get("gateway"), "carrier"),
            host_aliases: serde_json::from_value(pod["hostAliases"].clone()).unwrap_or_default(),
            azure_rbac: agent.contains_key("azure_rbac"),
            image: image(&self.deployment),
            version: self.version().map(str::to_owned),
            replicas: self.deployment["spec"]["replicas"].as_u64().and_then(|count| u32::try_from(count).ok()),
            distribution: word(metadata, "distribution"),
            infrastructure: word(metadata, "infrastructure"),
            guard: self.guard()?,
            extensions: self.extensions()?,
        })
    }

    fn guard(&self) -> anyhow::Result<Option<KeptGuard>> {
        let config = config(&self.guard)?;
        let Some(table) = config.get("guard") else { return Ok(None) };
        Ok(Some(KeptGuard {
            server: word(Some(table), "server"),
            cluster_ip: text(&self.guard_service["spec"]["clusterIP"]),
            skip_users: words(table, "skip_users"),
        }))
    }

    fn extensions(&self) -> anyhow::Result<Option<KeptExtensions>> {
        let config = config(&self.extensions)?;
        let Some(table) = config.get("extensions") else { return Ok(None) };
        Ok(Some(KeptExtensions {
            keys: words(table, "catalogue_keys"),
            catalogue: word(Some(table), "catalogue_id"),
            allowed_types: words(table, "allowed_types"),
            locked_settings: words(table, "locked_settings"),
            image: image(&self.extension_manager),
            gitops: self.gitops()?,
        }))
    }

    fn gitops(&self) -> anyhow::Result<KeptGitops> {
        let config = config(&self.gitops)?;
        let list = |key: &str| config.get("gitops").map(|table| words(table, key)).unwrap_or_default();
        Ok(KeptGitops {
            repositories: list("allowed_repositories"),
            scopes: list("allowed_scopes"),
            namespaces: list("allowed_namespaces"),
        })
    }

    fn version(&self) -> Option<&str> {
        version(&self.deployment)
    }
}

fn version(deployment: &Value) -> Option<&str> {
    deployment["metadata"]["labels"][VERSION_LABEL].as_str()
}

/// A tag that is the version of before is not one that was typed.
fn image(deployment: &Value) -> Option<String> {
    let image = deployment["spec"]["template"]["spec"]["containers"][0]["image"].as_str()?;
    let version = version(deployment)?;
    Some(image.strip_suffix(&format!(":{version}")).unwrap_or(image).to_owned())
}

fn config(map: &Value) -> anyhow::Result<toml::Table> {
    let text = map["data"][CONFIG_FILE].as_str().unwrap_or_default();
    text.parse().context("the configuration of the agents that are there")
}

fn word(table: Option<&toml::Value>, key: &str) -> String {
    table.and_then(|table| table.get(key)?.as_str()).unwrap_or_default().to_owned()
}

fn words(table: &toml::Value, key: &str) -> Vec<String> {
    let list = table.get(key).and_then(toml::Value::as_array);
    list.into_iter().flatten().filter_map(|word| Some(word.as_str()?.to_owned())).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn secret(object: &Value, key: &str) -> String {
    let bytes = object["data"][key].as_str().and_then(|text| BASE64.decode(text).ok()).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;
    use crate::manifests;

    /// As they are read from a cluster: what was made of `values`.
    fn told(values: &Values) -> Told {
        let objects = manifests::objects(values, "towline");
        let find = |kind: &str, name: &str| {
            let is = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
            objects.iter().find(is).cloned().unwrap_or_default()
        };
        Told {
            agent: find("ConfigMap", AGENT),
            manager: find("ConfigMap", MANAGER),
            deployment: find("Deployment", AGENT),
            proxy: find("Secret", PROXY_SECRET),
            extensions: find("ConfigMap", EXTENSIONS),
            extension_manager: find("Deployment", EXTENSIONS),
            gitops: find("ConfigMap", GITOPS),
            guard: find("ConfigMap", GUARD),
            guard_service: find("Service", GUARD),
        }
    }

    /// A new password of a proxy is no upgrade: the pods keep the program that they run.
    #[test]
    fn t13_an_update_keeps_the_version_that_installed_the_agents() {
        let mut values = Values::default();
        values.image.repository = "mirror.example.org:5000/agent".to_owned();
        values.image.tag = "0.0.9".to_owned();
        let mut there = told(&values);
        there.deployment["metadata"]["labels"][VERSION_LABEL] = "0.0.9".into();
        let kept = there.kept().unwrap();
        assert_eq!(
            (kept.image.as_deref(), kept.version.as_deref()),
            (Some("mirror.example.org:5000/agent"), Some("0.0.9"))
        );
        let (mut objects, other) = (manifests::objects(&values, "towline"), "0.0.9");
        manifests::relabel(&mut objects, other);
        let labelled = objects.iter().filter(|object| object["metadata"]["labels"][VERSION_LABEL] == other).count();
        assert!(
            labelled > 5 && !objects.iter().any(|o| o["metadata"]["labels"][VERSION_LABEL] == manifests::version())
        );
    }

    #[test]
    fn t13_what_agents_were_told_is_read_back_from_their_objects() {
        let mut values = Values::default();
        values.proxy.url = "https://proxy.example.org:3128".to_owned();
        values.proxy.username = "me".to_owned();
        values.proxy.password = SecretString::from("geheim");
        values.proxy.no_proxy = vec!["10.0.0.0/8".to_owned(), ".svc".to_owned()];
        (values.proxy.ca, values.extra_ca) = ("PEM1".to_owned(), "PEM2".to_owned());
        values.gateway.carrier = "h2".to_owned();
        values.host_aliases = vec![HostAlias { ip: "192.0.2.7".to_owned(), hostnames: vec!["gw".to_owned()] }];
        (values.azure_rbac.enabled, values.azure_rbac.issuer) = (true, "towline".to_owned());
        values.image.repository = "mirror.example.org:5000/agent".to_owned();
        values.replicas = 4;
        values.metadata.distribution = "k3s".to_owned();
        let kept = told(&values).kept().unwrap();
        assert_eq!((kept.proxy.url.as_str(), kept.proxy.username.as_str()), ("https://proxy.example.org:3128", "me"));
        assert_eq!(
            (kept.proxy.password.expose_secret(), kept.proxy.no_proxy),
            ("geheim", values.proxy.no_proxy.clone())
        );
        assert_eq!((kept.proxy.ca.as_str(), kept.extra_ca.as_str(), kept.carrier.as_str()), ("PEM1", "PEM2", "h2"));
        assert_eq!((kept.host_aliases[0].ip.as_str(), kept.azure_rbac, kept.replicas), ("192.0.2.7", true, Some(4)));
        assert_eq!(kept.image.as_deref(), Some("mirror.example.org:5000/agent"), "the version's tag was not typed");
        assert_eq!(kept.version.as_deref(), Some(manifests::version()));
        assert_eq!((kept.distribution.as_str(), kept.infrastructure.as_str()), ("k3s", ""));
        values.image.tag = "canary".to_owned();
        let kept = told(&values).kept().unwrap();
        assert_eq!(kept.image.as_deref(), Some("mirror.example.org:5000/agent:canary"));
        let kept = told(&Values::default()).kept().unwrap();
        assert!(kept.proxy.url.is_empty() && kept.extra_ca.is_empty() && !kept.azure_rbac);
        assert_eq!((kept.extensions, kept.guard), (None, None));
    }

    #[test]
    fn z1_what_guard_was_told_is_read_back() {
        let mut values = Values::default();
        let guard = &mut values.guard;
        (guard.enabled, guard.cluster_ip, guard.skip_users) =
            (true, "10.96.0.20".to_owned(), vec!["break-glass".to_owned()]);
        guard.server = "https://guard.example.org:8444".to_owned();
        let expected = KeptGuard {
            server: "https://guard.example.org:8444".to_owned(),
            cluster_ip: "10.96.0.20".to_owned(),
            skip_users: vec!["break-glass".to_owned()],
        };
        assert_eq!(told(&values).kept().unwrap().guard, Some(expected));
    }

    #[test]
    fn pinned_catalogue_is_read_back_from_the_objects() {
        let mut values = Values::default();
        values.extensions.enabled = true;
        values.extensions.catalogue_keys = vec!["-----BEGIN PUBLIC KEY-----\nMA+/\n".to_owned()];
        values.extensions.catalogue_id = "0123456789abcdef".repeat(2);
        values.extensions.allowed_types = vec!["example.web".to_owned()];
        values.extensions.locked_settings = vec!["*:image.registry=registry.example.com".to_owned()];
        values.extensions.image.repository = "mirror.example.org:5000/extensions".to_owned();
        values.gitops.allowed_scopes = vec!["namespace".to_owned()];
        values.gitops.allowed_repositories = vec!["https://git.example.org/*".to_owned()];
        let expected = KeptExtensions {
            keys: values.extensions.catalogue_keys.clone(),
            catalogue: values.extensions.catalogue_id.clone(),
            allowed_types: values.extensions.allowed_types.clone(),
            locked_settings: values.extensions.locked_settings.clone(),
            image: Some("mirror.example.org:5000/extensions".to_owned()),
            gitops: KeptGitops {
                repositories: values.gitops.allowed_repositories.clone(),
                scopes: values.gitops.allowed_scopes.clone(),
                namespaces: Vec::new(),
            },
        };
        assert_eq!(told(&values).kept().unwrap().extensions, Some(expected));
    }
}
