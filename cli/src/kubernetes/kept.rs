//! What agents that are there were told by options: an update keeps it, unless other options say otherwise.

use anyhow::{Context, bail};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use types::agent_api::InstallSettings;

use super::{
    Kubernetes, Place,
    place::{CONFIG_MAP, DEPLOYMENT, SECRET, SERVICE},
};
use crate::manifests::{
    AGENT, CONFIG_FILE, EXTENSIONS, GITOPS, GUARD, HostAlias, MANAGER, PROXY_SECRET, Proxy, UPGRADER, VERSION_LABEL,
    Values,
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
    /// The digest behind the tag that is its version: an upgrade from a chart with digests has written it.
    pub digest: Option<String>,
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
    /// What the upgrader was told, where the agents upgrade themselves.
    pub upgrades: Option<KeptUpgrades>,
}

/// What an upgrader was told; empty texts are what the chart says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptUpgrades {
    /// PEM: the catalogue's keys that are pinned.
    pub keys: Vec<String>,
    /// The catalogue that is pinned; empty: none.
    pub catalogue: String,
    /// How often it looks.
    pub interval: String,
    /// How long it watches new pods.
    pub window: String,
    /// How long it waits for them.
    pub timeout: String,
}

/// What agents that are there belong to: cluster, gateway and issuers, as their own configuration has it. With it the
/// agents' objects can be made again where nobody may ask the gateway.
#[derive(Debug, Clone)]
pub struct Belongs {
    /// The resource's ARM id.
    pub cluster_id: String,
    /// What the gateway said of itself.
    pub settings: InstallSettings,
}

/// The objects that tell what agents were told, and the minor version of the Kubernetes that has them: what the version
/// that runs reads for one that is to follow it. They are whole objects, because the later version may look for more in
/// them than the earlier one knows.
#[derive(Debug, Serialize, Deserialize)]
pub struct Gathered {
    /// The number after `1.` of the apiserver's version.
    pub kubernetes_minor: u32,
    /// As the apiserver gave them; no Secret is among them.
    pub objects: Vec<Value>,
}

impl Gathered {
    /// What the agents were told, and what they belong to.
    ///
    /// # Errors
    /// When the objects are not those of agents.
    pub fn kept(&self) -> anyhow::Result<(Kept, Belongs)> {
        let told = KeptObjects::of(&self.objects);
        if told.agent.is_null() || told.deployment.is_null() {
            bail!("the ConfigMap or the Deployment {AGENT} is not among what was read of the agents that are there");
        }
        Ok((told.kept()?, told.belongs()?))
    }

    /// This object, as it was gathered.
    pub fn find(&self, object: &Value) -> Option<&Value> {
        let is = |one: &&Value| one["kind"] == object["kind"] && one["metadata"]["name"] == object["metadata"]["name"];
        self.objects.iter().find(is)
    }

    /// Which objects are not as they were gathered: somebody has told the agents something else since.
    pub fn changed(&self, now: &Self) -> Vec<String> {
        let named = |object: &Value| Place::of_manifest(object).map(|place| place.to_string()).unwrap_or_default();
        let other = self.objects.iter().filter(|was| now.find(was).is_none_or(|now| is_another(was, now)));
        let new = now.objects.iter().filter(|now| self.find(now).is_none());
        other.chain(new).map(named).collect()
    }
}

/// Whether an object is another one, or has other content, than it was: by what the apiserver counts. What is only told of
/// a Deployment's pods is no other content.
pub fn is_another(was: &Value, now: &Value) -> bool {
    let counted = if was["kind"] == DEPLOYMENT.name { "generation" } else { "resourceVersion" };
    let of = |object: &Value| [object["metadata"]["uid"].clone(), object["metadata"][counted].clone()];
    of(was) != of(now)
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
    /// The most decisions in its cache; `None`: what the chart says.
    pub cache_entries: Option<u32>,
    /// How long allowed decisions are cached; empty: what the chart says.
    pub cache_allowed_for: String,
    /// How long denied decisions are cached; empty: what the chart says.
    pub cache_denied_for: String,
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
    /// Where charts are pulled from; empty: they come through the gateway.
    pub chart_registry: String,
    /// The Secret that signs in there; empty: none.
    pub registry_secret: String,
    /// What takes the place of the registry of images; empty: nothing.
    pub local_registry: String,
    /// The image; one of this program's own version has no tag.
    pub image: Option<String>,
    /// The digest behind the tag that is its version.
    pub digest: Option<String>,
    /// What fluxConfigurations may do.
    pub gitops: KeptGitops,
}

/// What the agent of fluxConfigurations was told; empty lists allow everything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KeptGitops {
    /// URLs of sources.
    pub repositories: Vec<String>,
    /// Scopes that a configuration may have: `cluster`, `namespace`.
    pub scopes: Vec<String>,
    /// Namespaces of configurations.
    pub namespaces: Vec<String>,
}

/// The objects that tell; null where there is none.
struct KeptObjects {
    agent: Value,
    manager: Value,
    deployment: Value,
    proxy: Value,
    extensions: Value,
    extension_manager: Value,
    gitops: Value,
    guard: Value,
    guard_service: Value,
    upgrader: Value,
}

impl Kubernetes {
    /// What the agents in a namespace were told.
    pub async fn kept(&self, namespace: &str) -> anyhow::Result<Kept> {
        self.told(namespace, true).await?.kept()
    }

    /// The objects that tell it, by a service account that reads no Secret: the proxy's stays where it is.
    pub async fn gathered(&self, namespace: &str) -> anyhow::Result<Gathered> {
        Ok(Gathered { kubernetes_minor: self.minor, objects: self.told(namespace, false).await?.objects() })
    }

    async fn told(&self, namespace: &str, with_secrets: bool) -> anyhow::Result<KeptObjects> {
        let read = async |kind, name: &str| {
            let place = Place::within(kind, namespace, name);
            let found = self.get(&place).await.with_context(|| format!("cannot read {place}"))?;
            anyhow::Ok(found.unwrap_or_default())
        };
        Ok(KeptObjects {
            agent: read(CONFIG_MAP, AGENT).await?,
            manager: read(CONFIG_MAP, MANAGER).await?,
            deployment: read(DEPLOYMENT, AGENT).await?,
            proxy: if with_secrets { read(SECRET, PROXY_SECRET).await? } else { Value::Null },
            extensions: read(CONFIG_MAP, EXTENSIONS).await?,
            extension_manager: read(DEPLOYMENT, EXTENSIONS).await?,
            gitops: read(CONFIG_MAP, GITOPS).await?,
            guard: read(CONFIG_MAP, GUARD).await?,
            guard_service: read(SERVICE, GUARD).await?,
            upgrader: read(CONFIG_MAP, UPGRADER).await?,
        })
    }
}

impl KeptObjects {
    /// Those that tell, among others.
    fn of(objects: &[Value]) -> Self {
        let find = |kind: &str, name: &str| {
            let is = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
            objects.iter().find(is).cloned().unwrap_or_default()
        };
        Self {
            agent: find("ConfigMap", AGENT),
            manager: find("ConfigMap", MANAGER),
            deployment: find("Deployment", AGENT),
            proxy: find("Secret", PROXY_SECRET),
            extensions: find("ConfigMap", EXTENSIONS),
            extension_manager: find("Deployment", EXTENSIONS),
            gitops: find("ConfigMap", GITOPS),
            guard: find("ConfigMap", GUARD),
            guard_service: find("Service", GUARD),
            upgrader: find("ConfigMap", UPGRADER),
        }
    }

    /// Those that are there.
    fn objects(self) -> Vec<Value> {
        let all = [
            self.agent,
            self.manager,
            self.deployment,
            self.proxy,
            self.extensions,
            self.extension_manager,
            self.gitops,
            self.guard,
            self.guard_service,
            self.upgrader,
        ];
        all.into_iter().filter(|object| !object.is_null()).collect()
    }

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
            if self.proxy.is_null() && !word(Some(table), "username_file").is_empty() {
                proxy.existing_secret = PROXY_SECRET.to_owned();
            }
        }
        let (metadata, pod) = (manager.get("metadata"), &self.deployment["spec"]["template"]["spec"]);
        Ok(Kept {
            proxy,
            extra_ca: file("extra-ca.crt"),
            carrier: word(agent.get("gateway"), "carrier"),
            host_aliases: serde_json::from_value(pod["hostAliases"].clone()).unwrap_or_default(),
            azure_rbac: agent.contains_key("azure_rbac"),
            image: image(&self.deployment),
            digest: digest(&self.deployment),
            version: self.version().map(str::to_owned),
            replicas: self.deployment["spec"]["replicas"].as_u64().and_then(|count| u32::try_from(count).ok()),
            distribution: word(metadata, "distribution"),
            infrastructure: word(metadata, "infrastructure"),
            guard: self.guard()?,
            extensions: self.extensions()?,
            upgrades: self.upgrades()?,
        })
    }

    fn upgrades(&self) -> anyhow::Result<Option<KeptUpgrades>> {
        let config = config(&self.upgrader)?;
        let Some(table) = config.get("upgrades") else { return Ok(None) };
        let text = |key: &str| word(Some(table), key);
        Ok(Some(KeptUpgrades {
            keys: words(table, "catalogue_keys"),
            catalogue: text("catalogue_id"),
            interval: text("interval"),
            window: text("window"),
            timeout: text("timeout"),
        }))
    }

    fn belongs(&self) -> anyhow::Result<Belongs> {
        let config = config(&self.agent)?;
        let issuers = config.get("issuers").and_then(toml::Value::as_array).into_iter().flatten();
        let issuers = issuers.map(|issuer| self.issuer(issuer)).collect::<anyhow::Result<_>>()?;
        let gateway = config.get("gateway");
        Ok(Belongs {
            cluster_id: word(config.get("identity"), "cluster_id"),
            settings: InstallSettings {
                urls: gateway.map(|gateway| words(gateway, "urls")).unwrap_or_default(),
                roots: text(&self.agent["data"]["gateway-ca.crt"]),
                issuers,
                version: String::new(),
                tenant_id: String::new(),
                catalogue: None,
            },
        })
    }

    /// An issuer in the chart's form, its files as texts.
    fn issuer(&self, issuer: &toml::Value) -> anyhow::Result<Value> {
        let table =
            issuer.as_table().context("an issuer in the configuration of the agents that are there is not a table")?;
        let mut made = Map::new();
        for (key, value) in table {
            let (name, is_file) = match key.as_str() {
                "ca_file" => ("ca".to_owned(), true),
                "keys_file" => ("keys".to_owned(), true),
                "pinned_keys_file" => ("pinnedKeys".to_owned(), true),
                key => (camel(key), false),
            };
            let value = match value.as_str().filter(|_| is_file) {
                Some(file) => self.agent["data"][file].clone(),
                None => serde_json::to_value(value)?,
            };
            made.insert(name, value);
        }
        Ok(made.into())
    }

    fn guard(&self) -> anyhow::Result<Option<KeptGuard>> {
        let config = config(&self.guard)?;
        let Some(table) = config.get("guard") else { return Ok(None) };
        Ok(Some(KeptGuard {
            server: word(Some(table), "server"),
            cluster_ip: text(&self.guard_service["spec"]["clusterIP"]),
            skip_users: words(table, "skip_users"),
            cache_entries: table.get("cache_entries").and_then(|count| count.as_integer()?.try_into().ok()),
            cache_allowed_for: word(Some(table), "cache_allowed_for"),
            cache_denied_for: word(Some(table), "cache_denied_for"),
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
            chart_registry: word(Some(table), "chart_registry"),
            registry_secret: word(Some(table), "registry_secret"),
            local_registry: word(Some(table), "local_registry"),
            image: image(&self.extension_manager),
            digest: digest(&self.extension_manager),
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

/// The image without what the installed version itself added: a tag that is that version, with the digest behind it. Any
/// other tag or digest was typed by somebody and stays.
fn image(deployment: &Value) -> Option<String> {
    let image = deployment["spec"]["template"]["spec"]["containers"][0]["image"].as_str()?;
    let tag = format!(":{}", version(deployment)?);
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    Some(match name.strip_suffix(&tag) {
        Some(repository) => repository.to_owned(),
        None if digest.is_some() => image.to_owned(),
        None => name.to_owned(),
    })
}

/// The digest behind a tag that is the installed version, with its `@`.
fn digest(deployment: &Value) -> Option<String> {
    let image = deployment["spec"]["template"]["spec"]["containers"][0]["image"].as_str()?;
    let (name, digest) = image.split_once('@')?;
    name.ends_with(&format!(":{}", version(deployment)?)).then(|| format!("@{digest}"))
}

/// `username_claim` as the chart has it, `usernameClaim`.
fn camel(key: &str) -> String {
    let mut words = key.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |mut made, word| {
        let mut chars = word.chars();
        made.extend(chars.next().map(|first| first.to_ascii_uppercase()));
        made.push_str(chars.as_str());
        made
    })
}

fn config(map: &Value) -> anyhow::Result<toml::Table> {
    let text = map["data"][CONFIG_FILE].as_str().unwrap_or_default();
    text.parse().context("cannot read the configuration of the agents that are there")
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
    fn told(values: &Values) -> KeptObjects {
        KeptObjects::of(&manifests::objects(values, "towline"))
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
        (guard.cache_entries, guard.cache_allowed_for, guard.cache_denied_for) =
            (1000, "1h".to_owned(), "10s".to_owned());
        let expected = KeptGuard {
            server: "https://guard.example.org:8444".to_owned(),
            cluster_ip: "10.96.0.20".to_owned(),
            skip_users: vec!["break-glass".to_owned()],
            cache_entries: Some(1000),
            cache_allowed_for: "1h".to_owned(),
            cache_denied_for: "10s".to_owned(),
        };
        assert_eq!(told(&values).kept().unwrap().guard, Some(expected));
    }

    /// An upgrade in the cluster asks nobody: it makes the objects of what is there, byte for byte.
    #[test]
    fn u1_objects_are_made_again_of_what_is_there() {
        let mut values = Values::default();
        let issuers = serde_json::json!([
            {"name": "towline", "url": "https://a.example.org", "usernameClaim": "preferred_username", "ca": "PEM1",
             "pinnedKeys": "{\"keys\": []}", "audiences": ["a"], "extra": {"oid": "oid"}},
            {"name": "b", "url": "https://b", "keys": "{}", "requiredClaims": {"tenant": ["a", "b"]},
             "usernamePrefix": "b:", "groupsPrefix": "b:"},
        ]);
        values.issuers = serde_json::from_value(issuers).unwrap();
        values.gateway.urls = vec!["https://gw.example.org".to_owned()];
        values.gateway.ca = "PEM2".to_owned();
        values.identity.cluster_id = "/c".to_owned();
        values.proxy.url = "https://proxy.example.org:3128".to_owned();
        values.proxy.username = "me".to_owned();
        values.proxy.password = SecretString::from("geheim");
        (values.upgrades.enabled, values.upgrades.catalogue_keys) = (true, vec!["PEM3".to_owned()]);
        values.upgrades.window = "1m".to_owned();
        (values.guard.enabled, values.guard.cache_entries) = (true, 0);
        values.guard.cache_denied_for = "10s".to_owned();
        let mut there = told(&values);
        there.proxy = Value::Null;
        // As the version that is there hands it to the one that follows.
        let gathered = Gathered { kubernetes_minor: 36, objects: there.objects() };
        let text = serde_json::to_string(&gathered).unwrap();
        assert!(!text.contains("Secret\",") && !text.contains("Z2VoZWlt") && !text.contains("geheim"), "no password");
        let read: Gathered = serde_json::from_str(&text).unwrap();
        let (kept, belongs) = read.kept().unwrap();
        let again = crate::commands::values_again(&belongs.cluster_id, kept, &belongs.settings).unwrap();
        let of = |values: &Values| {
            let mut objects = manifests::objects(values, "towline");
            objects.retain(|object| object["kind"] != "Secret");
            for object in &mut objects {
                // Where the password is not read, there is no digest of it.
                object["spec"]["template"]["metadata"]["annotations"]["towline.io/secrets"].take();
            }
            objects
        };
        for (before, after) in of(&values).iter().zip(of(&again)) {
            assert_eq!(before, &after);
        }
        assert_eq!(of(&values).len(), of(&again).len());
    }

    #[test]
    fn u1_what_is_not_of_agents_is_refused() {
        let nothing = Gathered { kubernetes_minor: 36, objects: Vec::new() };
        assert!(nothing.kept().is_err_and(|error| error.to_string().contains(AGENT)));
    }

    #[test]
    fn u1_digest_of_an_upgrade_is_not_one_that_was_typed() {
        let of = |name: &str| {
            let pod = serde_json::json!({"containers": [{"image": name}]});
            let labels = serde_json::json!({VERSION_LABEL: "0.2.0"});
            image(&serde_json::json!({"metadata": {"labels": labels}, "spec": {"template": {"spec": pod}}})).unwrap()
        };
        assert_eq!(of("r:5000/agent:0.2.0@sha256:a"), "r:5000/agent");
        assert_eq!(of("r:5000/agent:0.2.0"), "r:5000/agent");
        assert_eq!(
            (of("r/agent@sha256:a"), of("r/agent:mine")),
            ("r/agent@sha256:a".to_owned(), "r/agent:mine".to_owned())
        );
    }

    #[test]
    fn pinned_catalogue_is_read_back_from_the_objects() {
        let mut values = Values::default();
        values.extensions.enabled = true;
        values.extensions.catalogue_keys = vec!["-----BEGIN PUBLIC KEY-----\nMA+/\n".to_owned()];
        values.extensions.catalogue_id = "0123456789abcdef".repeat(2);
        values.extensions.allowed_types = vec!["example.web".to_owned()];
        values.extensions.locked_settings = vec!["*:image.registry=registry.example.com".to_owned()];
        values.extensions.chart_registry = "oci://registry.example.com/charts".to_owned();
        values.extensions.registry_secret = "registry".to_owned();
        values.extensions.local_registry = "registry.example.com/mirror".to_owned();
        values.extensions.image.repository = "mirror.example.org:5000/extensions".to_owned();
        values.gitops.allowed_scopes = vec!["namespace".to_owned()];
        values.gitops.allowed_repositories = vec!["https://git.example.org/*".to_owned()];
        let expected = KeptExtensions {
            keys: values.extensions.catalogue_keys.clone(),
            catalogue: values.extensions.catalogue_id.clone(),
            allowed_types: values.extensions.allowed_types.clone(),
            locked_settings: values.extensions.locked_settings.clone(),
            chart_registry: values.extensions.chart_registry.clone(),
            registry_secret: values.extensions.registry_secret.clone(),
            local_registry: values.extensions.local_registry.clone(),
            digest: None,
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
