//! The files that follow from the state: certificates, the gateway's configuration, and what each agent needs.

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context, bail};
use certs::{Authority, Credentials, Issued, Validity};
use daemon::atomic;
use gateway::{files, issuer::Keys};
use serde_json::json;
use toml::{Table, Value};

use super::{Cluster, State, file_name, settings};
use crate::yaml;

/// Life of the throw-away authority.
const AUTHORITY_DAYS: u32 = 3650;
/// Life of the gateway's certificate; clients refuse longer ones.
const SERVER_DAYS: u32 = 397;
/// Life of an agent's certificate (docs/agent.md).
const AGENT_DAYS: u32 = 90;
/// The issuer's name at gateway and agents.
pub const ISSUER_NAME: &str = "towline";
/// Users are known to clusters by the name that they sign in with.
const USERNAME_CLAIM: &str = "preferred_username";
/// Which names the certificate at hand was made for.
const NAMES_FILE: &str = "tls/names";

impl State {
    /// Writes everything that is missing, has run out or says something else than the state.
    pub(super) fn write_artifacts(&self) -> anyhow::Result<()> {
        let authority = self.authority()?;
        self.write_server_certificate(&authority)?;
        let keys = Keys::load_or_create(&self.path("issuer").join(gateway::issuer::KEYS_FILE))?;
        for cluster in &self.data.clusters {
            self.write_agent(&authority, &keys, cluster)
                .with_context(|| format!("cannot write the files of cluster {}'s agent", cluster.name))?;
        }
        write_if_changed(&self.path("gateway.toml"), &self.gateway_config()?)
    }

    /// Whether `--set` and `--agent-set` can be part of the files they are for.
    pub(super) fn check_settings(&self) -> anyhow::Result<()> {
        self.gateway_config()?;
        self.agent_config()?;
        Ok(())
    }

    /// Whether agents would take what `--agent-set` says; their files are written already.
    pub fn check_agents(&self) -> anyhow::Result<()> {
        let Some(cluster) = self.data.clusters.first() else { return Ok(()) };
        let dir = self.agent_dir(cluster);
        let parsed = agent::config::Config::parse(&self.agent_config()?, &dir);
        Ok(parsed.map(|_| ()).map_err(|faults| faults.of(&dir.join("agent.toml")))?)
    }

    /// The throw-away authority; made if there is none.
    pub fn authority(&self) -> anyhow::Result<Authority> {
        let dir = self.path("ca");
        if dir.exists() {
            return Ok(Authority::load(&dir)?);
        }
        let fresh = self.path("ca.new");
        let _ = std::fs::remove_dir_all(&fresh);
        files::create_private_dir(&fresh)?;
        let authority = Authority::create("towline dev", Validity::days(AUTHORITY_DAYS))?;
        authority.save(&fresh)?;
        // All of it or nothing: a start that is broken off leaves no half of an authority.
        atomic::rename(&fresh, &dir)?;
        Ok(authority)
    }

    fn server_names(&self) -> Vec<String> {
        let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
        let ip = self.data.listen.ip();
        names.extend((!ip.is_unspecified()).then(|| ip.to_string()));
        names.extend(self.data.names.iter().cloned());
        names.extend(self.data.domain.iter().map(|domain| format!("*.{domain}")));
        names.sort_unstable();
        names.dedup();
        names
    }

    fn write_server_certificate(&self, authority: &Authority) -> anyhow::Result<()> {
        let names = self.server_names();
        let listed = names.join("\n");
        let (certificate, key) = (self.path("tls/tls.crt"), self.path("tls/tls.key"));
        let same = std::fs::read_to_string(self.path(NAMES_FILE)).is_ok_and(|made_for| made_for == listed);
        if same && !runs_out(&certificate, &key, SERVER_DAYS) {
            return Ok(());
        }
        files::create_private_dir(&self.path("tls"))?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        save(&authority.issue_server(&names, Validity::days(SERVER_DAYS))?, &certificate, &key)?;
        Ok(files::write_public(&self.path(NAMES_FILE), listed.as_bytes())?)
    }

    /// Folder of a cluster's agent.
    pub fn agent_dir(&self, cluster: &Cluster) -> PathBuf {
        self.path("agents").join(file_name(&cluster.name))
    }

    fn write_agent(&self, authority: &Authority, keys: &Keys, cluster: &Cluster) -> anyhow::Result<()> {
        let dir = self.agent_dir(cluster);
        files::create_private_dir(&dir)?;
        let (certificate, key) = (dir.join("tls.crt"), dir.join("tls.key"));
        if runs_out(&certificate, &key, AGENT_DAYS) {
            let id = cluster.cluster_id()?;
            save(&authority.issue_agent(id.as_str(), Validity::days(AGENT_DAYS))?, &certificate, &key)?;
        }
        write_if_changed(&dir.join("ca.crt"), authority.certificate_pem())?;
        // Pinned when the agent is enrolled and never replaced behind its back: later keys must prove themselves.
        let pinned = dir.join("issuer-keys.json");
        if !pinned.exists() {
            files::write_public(&pinned, serde_json::to_string_pretty(&keys.pinned())?.as_bytes())?;
        }
        self.write_once_per_content(&dir, "agent.toml", &self.agent_config()?)?;
        self.write_once_per_content(&dir, "values.yaml", &self.helm_values(&dir)?)
    }

    /// A file that its reader may edit: written again only when what we would write has changed.
    fn write_once_per_content(&self, dir: &Path, name: &str, content: &str) -> anyhow::Result<()> {
        let (path, made) = (dir.join(name), dir.join(format!(".{name}.made")));
        if path.exists() && std::fs::read_to_string(&made).is_ok_and(|made| made == content) {
            return Ok(());
        }
        files::write_private(&path, content.as_bytes())?;
        Ok(files::write_private(&made, content.as_bytes())?)
    }

    /// The gateway's configuration as TOML.
    fn gateway_config(&self) -> anyhow::Result<String> {
        let text = |text: &str| Value::String(text.to_owned());
        let names = |names: &[String]| Value::Array(names.iter().map(|name| text(name)).collect());
        let mut config = Table::new();
        let mut put = |key: &str, value: &str| settings::set(&mut config, key, &text(value).to_string());
        put("listen.public", &self.data.listen.to_string())?;
        put("listen.admin", &self.data.admin.to_string())?;
        if let Some(domain) = &self.data.domain {
            put("listen.domain", domain)?;
        }
        put("tls.certificate_file", "tls/tls.crt")?;
        put("tls.key_file", "tls/tls.key")?;
        put("agents.ca_file", "ca/ca.crt")?;
        put("agents.authority_dir", "ca")?;
        put("audit.file", "audit.jsonl")?;
        put("api.url", &self.url())?;
        put("api.tenant", &self.data.tenant)?;
        put("api.store_file", "towline.db")?;
        put("api.store_key_file", "store.key")?;
        put("api.ca_file", "ca/ca.crt")?;
        // After `remove-principal owner` there is none until the next start; an empty id is nobody's.
        let owner = Some(self.data.owner.clone()).filter(|owner| !owner.is_empty());
        settings::set(&mut config, "api.owners", &names(owner.as_slice()).to_string())?;
        // The gateway reads its own issuer's keys at the address it listens at: its names may not lead there from here.
        let keys = format!("https://{}{}/keys", self.own_address(), gateway::issuer::MOUNT);
        let issuer = self.issuer_table("ca/ca.crt", [("jwks_url", keys)]);
        config.insert("issuers".to_owned(), Value::Array(vec![issuer]));
        let clusters = self.data.clusters.iter().map(|cluster| table([("id", text(&cluster.id))]));
        config.insert("clusters".to_owned(), Value::Array(clusters.collect()));
        let grants = self.data.grants.iter().map(|grant| {
            table([("cluster", text(&grant.cluster)), ("users", names(&grant.users)), ("groups", names(&grant.groups))])
        });
        config.insert("grants".to_owned(), Value::Array(grants.collect()));
        let disabled = self.data.disabled.iter().map(|user| table([("user", text(user))]));
        config.insert("disabled".to_owned(), Value::Array(disabled.collect()));
        if let Some(Value::Table(api)) = config.get_mut("api") {
            let subscription = table([("id", text(&self.data.subscription)), ("name", text("towline dev"))]);
            api.insert("subscriptions".to_owned(), Value::Array(vec![subscription]));
        }
        for (key, value) in &self.data.gateway_settings {
            settings::set(&mut config, key, value)?;
        }
        Ok(toml::to_string(&config)?)
    }

    fn issuer_table<const N: usize>(&self, ca_file: &str, more: [(&str, String); N]) -> Value {
        let fields = [
            ("name", ISSUER_NAME.to_owned()),
            ("url", self.issuer_url()),
            ("ca_file", ca_file.to_owned()),
            ("username_claim", USERNAME_CLAIM.to_owned()),
        ];
        table(fields.into_iter().chain(more).map(|(key, value)| (key, Value::String(value))))
    }

    /// An agent's configuration as TOML; paths are relative to its folder.
    fn agent_config(&self) -> anyhow::Result<String> {
        let mut config = Table::new();
        let text = |text: &str| Value::String(text.to_owned()).to_string();
        for (key, value) in [
            ("gateway.url", self.url().as_str()),
            ("gateway.ca_file", "ca.crt"),
            ("gateway.certificate_file", "tls.crt"),
            ("gateway.key_file", "tls.key"),
        ] {
            settings::set(&mut config, key, &text(value))?;
        }
        if let Some(kubeconfig) = &self.data.kubeconfig {
            settings::set(&mut config, "cluster.kubeconfig", &text(&kubeconfig.display().to_string()))?;
        }
        let issuer = self.issuer_table("ca.crt", [("pinned_keys_file", "issuer-keys.json".to_owned())]);
        config.insert("issuers".to_owned(), Value::Array(vec![issuer]));
        for (key, value) in &self.data.agent_settings {
            settings::set(&mut config, key, value)?;
        }
        Ok(toml::to_string(&config)?)
    }

    /// Values for the agent's chart: the same as `agent.toml`, with the files' contents.
    fn helm_values(&self, dir: &Path) -> anyhow::Result<String> {
        let file = |name: &str| {
            let path = dir.join(name);
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
        };
        let mut values = json!({
            "gateway": { "url": self.url(), "ca": file("ca.crt")? },
            "identity": { "certificate": file("tls.crt")?, "key": file("tls.key")? },
            "issuers": [{
                "name": ISSUER_NAME,
                "url": self.issuer_url(),
                "ca": file("ca.crt")?,
                "usernameClaim": USERNAME_CLAIM,
                "pinnedKeys": file("issuer-keys.json")?,
            }],
        });
        let mut settings = Table::new();
        for (key, value) in &self.data.agent_settings {
            settings::set(&mut settings, key, value)?;
        }
        for (section, keys) in settings {
            let Value::Table(keys) = keys else { continue };
            for (key, value) in keys {
                // In a pod these are the chart's business.
                if key.ends_with("_file") || ["cluster", "admin"].contains(&section.as_str()) {
                    tracing::warn!("{section}.{key} is for agent.toml alone: values.yaml for helm does not have it");
                } else {
                    values[&section][camel(&key)] = serde_json::to_value(value)?;
                }
            }
        }
        Ok(yaml::to_string(&values))
    }
}

fn table<'a>(entries: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    Value::Table(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// `outlive_token` as the chart spells it, `outliveToken`.
fn camel(key: &str) -> String {
    let mut words = key.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |mut text, word| {
        let mut rest = word.chars();
        text.extend(rest.next().map(|initial| initial.to_ascii_uppercase()));
        text + rest.as_str()
    })
}

/// Whether less than half of its life is left, or it is not there.
fn runs_out(certificate: &Path, key: &Path, days: u32) -> bool {
    let half = Duration::from_secs(u64::from(days) * 86_400 / 2);
    Credentials::load(certificate, key).map_or(true, |pair| pair.not_after() < SystemTime::now() + half)
}

fn save(issued: &Issued, certificate: &Path, key: &Path) -> anyhow::Result<()> {
    files::write_private(key, issued.key_pem().as_bytes())?;
    Ok(files::write_public(certificate, issued.certificate_pem.as_bytes())?)
}

fn write_if_changed(path: &Path, content: &str) -> anyhow::Result<()> {
    if std::fs::read_to_string(path).is_ok_and(|before| before == content) {
        return Ok(());
    }
    Ok(files::write_private(path, content.as_bytes())?)
}

/// Checks a name for the certificate: a DNS name or an IP address.
pub fn check_name(name: &str) -> anyhow::Result<()> {
    let labels = name.strip_prefix("*.").unwrap_or(name);
    let dns = labels.len() <= 253
        && labels.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        });
    if name.parse::<IpAddr>().is_err() && !dns {
        bail!("{name:?} is neither a DNS name nor an IP address");
    }
    Ok(())
}
