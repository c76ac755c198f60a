//! The configuration files of the agents, byte for byte as the chart writes them (`templates/_config.tpl`): a digest of
//! them is part of the pods, so that a changed setting replaces these.

use std::{collections::BTreeMap, fmt::Write};

use serde::Serialize;
use serde_json::{Map, Value};

use super::{AGENT, CONFIG_FILE, IDENTITY_SECRET, TOKENS_SERVICE, Values};

/// Keys of an issuer that are files beside the configuration, or tables.
const APART: [&str; 5] = ["ca", "keys", "pinnedKeys", "extra", "requiredClaims"];

/// Names and texts of a ConfigMap.
pub type Files = BTreeMap<String, String>;

/// What the pods that hold users' tunnel are configured by.
pub fn agent_files(values: &Values) -> Files {
    let mut files = user_files(values);
    files.insert(CONFIG_FILE.to_owned(), agent(values));
    files
}

/// What guard is configured by.
pub fn guard_files(values: &Values, namespace: &str) -> Files {
    let mut files = user_files(values);
    files.insert(CONFIG_FILE.to_owned(), guard(values, namespace));
    files
}

/// The gateway's authorities, and what belongs to issuers and the proxy.
fn user_files(values: &Values) -> Files {
    let mut files = gateway_files(values);
    keep(&mut files, "proxy-ca.crt", &values.proxy.ca);
    for (index, issuer) in values.issuers.iter().enumerate() {
        for (key, file) in [("ca", "ca.crt"), ("keys", "keys.json"), ("pinnedKeys", "pinned.json")] {
            keep(&mut files, &format!("issuer-{index}-{file}"), text(issuer, key));
        }
    }
    files
}

/// What the controller-manager is configured by.
pub fn manager_files(values: &Values, namespace: &str) -> Files {
    let mut files = gateway_files(values);
    files.insert(CONFIG_FILE.to_owned(), manager(values, namespace));
    files
}

/// What the extension-manager is configured by.
pub fn extension_files(values: &Values, namespace: &str) -> Files {
    let mut files = gateway_files(values);
    files.insert(CONFIG_FILE.to_owned(), extensions(values, namespace));
    files
}

/// What the agent of fluxConfigurations is configured by. Its Deployment comes with an extension.
pub fn gitops_files(values: &Values, namespace: &str) -> Files {
    let mut files = gateway_files(values);
    files.insert(CONFIG_FILE.to_owned(), gitops(values, namespace));
    files
}

/// What the agent of Flux's log lines is configured by. Its Deployment comes with the same extension.
pub fn flux_logs_files(values: &Values, namespace: &str) -> Files {
    let mut files = gateway_files(values);
    files.insert(CONFIG_FILE.to_owned(), flux_logs(values, namespace));
    files
}

/// What the upgrader is configured by.
pub fn upgrader_files(values: &Values, namespace: &str) -> Files {
    let mut files = gateway_files(values);
    files.insert(CONFIG_FILE.to_owned(), upgrader(values, namespace));
    files
}

fn gateway_files(values: &Values) -> Files {
    let mut files = Files::new();
    keep(&mut files, "gateway-ca.crt", &values.gateway.ca);
    keep(&mut files, "extra-ca.crt", &values.extra_ca);
    files
}

fn keep(files: &mut Files, name: &str, text: &str) {
    if !text.is_empty() {
        files.insert(name.to_owned(), text.to_owned());
    }
}

fn agent(values: &Values) -> String {
    let mut out = Toml::default();
    out.key("roles", AGENT);
    gateway(&mut out, values);
    out.key("carrier", &values.gateway.carrier);
    out.key("udp_segmentation_offload", values.gateway.udp_segmentation_offload);
    out.key("replicas", values.gateway.replicas);
    if !values.gateway.addresses.is_empty() {
        out.key("addresses", &values.gateway.addresses);
    }
    identity(&mut out, values);
    out.table("forward");
    out.key("listen", format!("{}:{}", values.admin.address, values.controller_manager.port));
    users(&mut out, values);
    out.table("sessions");
    out.key("outlive_token", &values.sessions.outlive_token);
    out.table("limits");
    out.key("streams", values.limits.streams);
    out.key("drain_grace", &values.limits.drain_grace);
    log_and_admin(&mut out, values);
    out.text
}

/// Who users are and what they may: the same for all that judge them. And the proxy on the way to their issuers.
fn users(out: &mut Toml, values: &Values) {
    if !values.proxy.url.is_empty() {
        out.table("proxy");
        out.key("url", &values.proxy.url);
        out.optional("ca_file", &values.proxy.ca, "proxy-ca.crt");
        if values.proxy_secret().is_some() {
            out.key("username_file", "/etc/towline-proxy/username");
            out.key("password_file", "/etc/towline-proxy/password");
        }
        out.key("no_proxy", &values.proxy.no_proxy);
    }
    for (index, one) in values.issuers.iter().enumerate() {
        issuer(out, index, one);
    }
    out.table("impersonation");
    out.key("extras", &values.impersonation.extras);
    out.key("allow_reserved", &values.impersonation.allow_reserved);
    if values.azure_rbac.enabled {
        out.table("azure_rbac");
        out.key("issuer", &values.azure_rbac.issuer);
    }
}

fn guard(values: &Values, namespace: &str) -> String {
    let mut out = Toml::default();
    out.key("roles", super::GUARD);
    gateway_via(&mut out, values, namespace);
    identity(&mut out, values);
    users(&mut out, values);
    let guard = &values.guard;
    out.table("guard");
    out.key("listen", format!("{}:{}", values.admin.address, guard.port));
    out.key("server_names", ["svc", "svc.cluster.local"].map(|end| format!("{}.{namespace}.{end}", super::GUARD)));
    out.optional("server", &guard.server, &guard.server);
    if !guard.skip_users.is_empty() {
        out.key("skip_users", &guard.skip_users);
    }
    // An agent of 0.1 knows no such keys, and does not start with them.
    let usual = Values::default().guard;
    if guard.cache_entries != usual.cache_entries {
        out.key("cache_entries", guard.cache_entries);
    }
    for (key, value, usual) in [
        ("cache_allowed_for", &guard.cache_allowed_for, &usual.cache_allowed_for),
        ("cache_denied_for", &guard.cache_denied_for, &usual.cache_denied_for),
    ] {
        if value != usual {
            out.key(key, value);
        }
    }
    out.table("limits");
    out.key("drain_grace", &values.limits.drain_grace);
    log_and_admin(&mut out, values);
    out.text
}

fn manager(values: &Values, namespace: &str) -> String {
    let mut out = Toml::default();
    out.key("roles", super::MANAGER);
    gateway_via(&mut out, values, namespace);
    identity(&mut out, values);
    out.key("onboarding_key_file", "/etc/towline-onboarding/key.pem");
    if values.identity_tokens.enabled {
        out.table("identity_tokens");
        out.key("listen", format!("{}:{}", values.admin.address, values.identity_tokens.port));
        let names = ["svc", "svc.cluster.local"].map(|end| format!("{TOKENS_SERVICE}.{namespace}.{end}"));
        out.key("server_names", names);
    }
    let metadata = &values.metadata;
    if !(metadata.distribution.is_empty() && metadata.infrastructure.is_empty()) {
        out.table("metadata");
        out.optional("distribution", &metadata.distribution, &metadata.distribution);
        out.optional("infrastructure", &metadata.infrastructure, &metadata.infrastructure);
    }
    out.table("limits");
    out.key("drain_grace", &values.limits.drain_grace);
    log_and_admin(&mut out, values);
    out.text
}

fn extensions(values: &Values, namespace: &str) -> String {
    let mut out = Toml::default();
    out.key("roles", super::EXTENSIONS);
    gateway_via(&mut out, values, namespace);
    identity(&mut out, values);
    let extensions = &values.extensions;
    out.table("extensions");
    out.key("catalogue_keys", &extensions.catalogue_keys);
    out.key("timeout", &extensions.timeout);
    out.key("catalogue_interval", &extensions.catalogue_interval);
    out.optional("catalogue_id", &extensions.catalogue_id, &extensions.catalogue_id);
    if !extensions.allowed_types.is_empty() {
        out.key("allowed_types", &extensions.allowed_types);
    }
    if !extensions.locked_settings.is_empty() {
        out.key("locked_settings", &extensions.locked_settings);
    }
    out.optional("chart_registry", &extensions.chart_registry, &extensions.chart_registry);
    out.optional("registry_secret", &extensions.registry_secret, &extensions.registry_secret);
    out.optional("local_registry", &extensions.local_registry, &extensions.local_registry);
    out.table("limits");
    out.key("drain_grace", &values.limits.drain_grace);
    log_and_admin(&mut out, values);
    out.text
}

fn gitops(values: &Values, namespace: &str) -> String {
    let mut out = Toml::default();
    out.key("roles", super::GITOPS);
    gateway_via(&mut out, values, namespace);
    identity(&mut out, values);
    let gitops = &values.gitops;
    out.table("gitops");
    out.key("resync_interval", &gitops.resync_interval);
    for (key, allowed) in [
        ("allowed_repositories", &gitops.allowed_repositories),
        ("allowed_scopes", &gitops.allowed_scopes),
        ("allowed_namespaces", &gitops.allowed_namespaces),
    ] {
        if !allowed.is_empty() {
            out.key(key, allowed);
        }
    }
    out.table("limits");
    out.key("drain_grace", &values.limits.drain_grace);
    log_and_admin(&mut out, values);
    out.text
}

fn flux_logs(values: &Values, namespace: &str) -> String {
    let mut out = Toml::default();
    out.key("roles", super::FLUX_LOGS);
    gateway_via(&mut out, values, namespace);
    identity(&mut out, values);
    out.table("limits");
    out.key("drain_grace", &values.limits.drain_grace);
    log_and_admin(&mut out, values);
    out.text
}

fn upgrader(values: &Values, namespace: &str) -> String {
    let mut out = Toml::default();
    out.key("roles", super::UPGRADER);
    gateway_via(&mut out, values, namespace);
    identity(&mut out, values);
    let upgrades = &values.upgrades;
    out.table("upgrades");
    out.key("catalogue_keys", &upgrades.catalogue_keys);
    out.key("interval", &upgrades.interval);
    out.key("window", &upgrades.window);
    out.key("timeout", &upgrades.timeout);
    out.optional("catalogue_id", &upgrades.catalogue_id, &upgrades.catalogue_id);
    out.table("limits");
    out.key("drain_grace", &values.limits.drain_grace);
    log_and_admin(&mut out, values);
    out.text
}

/// Through the pods that hold users' tunnel.
fn gateway_via(out: &mut Toml, values: &Values, namespace: &str) {
    gateway(out, values);
    out.key("carrier", "h2");
    out.key("via", format!("{AGENT}.{namespace}.svc:{}", values.controller_manager.port));
}

fn gateway(out: &mut Toml, values: &Values) {
    let gateway = &values.gateway;
    out.table("gateway");
    match gateway.urls.as_slice() {
        [] => out.key("urls", [&gateway.url]),
        urls => out.key("urls", urls),
    }
    out.optional("ca_file", &gateway.ca, "gateway-ca.crt");
    out.optional("server_name", &gateway.server_name, &gateway.server_name);
    out.optional("extra_ca_file", &values.extra_ca, "extra-ca.crt");
}

fn identity(out: &mut Toml, values: &Values) {
    out.table("identity");
    out.key("cluster_id", &values.identity.cluster_id);
    out.key("secret", IDENTITY_SECRET);
}

fn issuer(out: &mut Toml, index: usize, issuer: &Map<String, Value>) {
    out.line("");
    out.line("[[issuers]]");
    let sorted: BTreeMap<&String, &Value> = issuer.iter().collect();
    for (key, value) in sorted.into_iter().filter(|(key, _)| !APART.contains(&key.as_str())) {
        out.key(&snake(key), value);
    }
    for key in ["extra", "requiredClaims"] {
        let Some(claims) = issuer.get(key).and_then(Value::as_object).filter(|claims| !claims.is_empty()) else {
            continue;
        };
        let claims: BTreeMap<&String, &Value> = claims.iter().collect();
        let claims: Vec<_> =
            claims.into_iter().map(|(claim, value)| format!("{} = {}", json(claim), json(value))).collect();
        out.line(&format!("{} = {{ {} }}", snake(key), claims.join(", ")));
    }
    out.optional("ca_file", text(issuer, "ca"), format!("issuer-{index}-ca.crt"));
    out.optional("keys_file", text(issuer, "keys"), format!("issuer-{index}-keys.json"));
    out.optional("pinned_keys_file", text(issuer, "pinnedKeys"), format!("issuer-{index}-pinned.json"));
}

fn log_and_admin(out: &mut Toml, values: &Values) {
    out.table("log");
    out.key("level", &values.log.level);
    out.key("format", &values.log.format);
    out.table("admin");
    out.key("listen", format!("{}:{}", values.admin.address, values.admin.port));
}

fn text<'a>(issuer: &'a Map<String, Value>, key: &str) -> &'a str {
    issuer.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// The text of a file. JSON texts, numbers and lists are TOML too.
#[derive(Default)]
struct Toml {
    text: String,
}

impl Toml {
    fn line(&mut self, line: &str) {
        let _ = writeln!(self.text, "{line}");
    }

    fn table(&mut self, name: &str) {
        self.line("");
        self.line(&format!("[{name}]"));
    }

    fn key(&mut self, key: &str, value: impl Serialize) {
        self.line(&format!("{key} = {}", json(&value)));
    }

    /// Only where `given` is not empty.
    fn optional(&mut self, key: &str, given: &str, value: impl Serialize) {
        if !given.is_empty() {
            self.key(key, value);
        }
    }
}

/// As Go writes it for helm: what could be mistaken in HTML is escaped.
fn json(value: &(impl Serialize + ?Sized)) -> String {
    let text = serde_json::to_string(value).expect("texts, numbers and lists of them have a JSON form");
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

/// `usernameClaim` as the configuration has it, `username_claim`.
fn snake(key: &str) -> String {
    let mut out = String::new();
    for c in key.chars() {
        if c.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(c.to_ascii_lowercase());
    }
    out
}
