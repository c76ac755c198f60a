//! Helm charts that are installed as extensions (docs/features.md E1, E2).

use std::{path::PathBuf, str::FromStr, time::Duration};

use catalogue::{index::CatalogueId, key::PublicKey, limits::KEYS};
use daemon::settings::{
    Faults, Section,
    reference::{Key, Table},
};

use super::{
    RoleSet,
    deployment::{Deployment, is_for},
};

/// Where the image of the extension manager has helm.
const HELM: &str = "/helm";
/// A folder in memory: values of settings lie there while helm runs.
const WORK_DIR: &str = "/tmp";
/// How long helm waits, as it does by itself, and what an operator may set.
const TIMEOUT: Duration = Duration::from_secs(300);
const TIMEOUT_MIN: Duration = Duration::from_secs(5);
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
/// How often the catalogue is looked at, and what an operator may set.
const CATALOGUE_INTERVAL: Duration = Duration::from_secs(180);
const CATALOGUE_INTERVAL_MIN: Duration = Duration::from_secs(5);
const CATALOGUE_INTERVAL_MAX: Duration = Duration::from_secs(24 * 3600);
/// Extension types that an operator may name.
const TYPES_MAX: usize = 1000;
/// Characters of a registry with its path, and of a Secret's name.
const PLACE_MAX: usize = 253;
/// Settings that an operator may lock.
const LOCKED_MAX: usize = 1000;

/// In the reference.
pub(super) const TABLE: Table = Table::once(
    "extensions",
    false,
    "Installs charts of a signed catalogue; only where extension-manager runs.",
    &[
        Key::example(
            "catalogue_keys",
            "[\"-----BEGIN PUBLIC KEY-----\\nMCowBQYDK2VwAyEAr3rYH5mgKY1wftj150/HEkAqWPfQFGkLOBRfKzmVxkM=\\n-----END PUBLIC KEY-----\\n\"]",
            "Public keys of the catalogue, PEM: no other catalogue is believed. Without a key nothing is installed.",
        ),
        Key::example("catalogue_key_files", "[\"signing.key.pub\"]", "Files with more of these keys, one in each."),
        Key::example(
            "catalogue_id",
            "\"0123456789abcdef0123456789abcdef\"",
            "The catalogue; without it the first one that a key signed.",
        ),
        Key::default("helm", "\"/helm\"", "The program helm, version 4."),
        Key::default("work_dir", "\"/tmp\"", "A folder in memory for charts and values while helm runs."),
        Key::default("timeout", "\"5m\"", "How long helm waits for a chart's objects to be ready, and for each hook."),
        Key::default("catalogue_interval", "\"3m\"", "How often the gateway is asked for a newer catalogue."),
        Key::example(
            "allowed_types",
            "[\"example.web\"]",
            "The extension types that may be installed, whatever the gateway wants; without it all of the catalogue.",
        ),
        Key::example(
            "locked_settings",
            "[\"example.web:image.registry=registry.example.com\", \"*:rbac\"]",
            "TYPE:KEY or TYPE:KEY=VALUE, * is every type: what the gateway may not set, at the key and below, and what it is.",
        ),
        Key::example(
            "chart_registry",
            "\"oci://registry.example.com/charts\"",
            "A registry that charts are pulled from, by their names below it; without it they come through the gateway.",
        ),
        Key::example(
            "registry_secret",
            "\"registry\"",
            "The Secret in the agents' namespace that signs in there: .dockerconfigjson, and ca.crt for an authority of one's own.",
        ),
        Key::example(
            "local_registry",
            "\"registry.example.com/mirror\"",
            "A registry, with or without a path, that takes the place of the registry of every image of a chart.",
        ),
    ],
);

/// How charts are installed as extensions.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extensions {
    /// Keys that are pinned.
    pub keys: Vec<PublicKey>,
    /// Files with more of them.
    pub key_files: Vec<PathBuf>,
    /// The catalogue's id, where the operator knows it.
    pub catalogue: Option<CatalogueId>,
    /// Path of the `helm` program.
    pub helm: PathBuf,
    /// For charts and values while helm runs.
    pub work_dir: PathBuf,
    /// How long helm waits for a chart's objects to be ready, and for each hook.
    pub timeout: Duration,
    /// How often the gateway is asked for a newer catalogue.
    pub catalogue_interval: Duration,
    /// The types that may be installed; none named: all.
    pub allowed_types: Option<Vec<String>>,
    /// Settings that the gateway may not give.
    pub locked_settings: Vec<LockedSetting>,
    /// Where charts are pulled from, `oci://`; none: they come through the gateway.
    pub chart_registry: Option<String>,
    /// The Secret that signs in there.
    pub registry_secret: Option<String>,
    /// What takes the place of the registry of images.
    pub local_registry: Option<String>,
}

/// A registry and a path in it, as images name them: no scheme, no user, no tag. The chart's schema has the same rule.
///
/// # Errors
/// What was expected.
pub fn registry(text: &str) -> Result<String, &'static str> {
    let form = "expected HOST[:PORT][/PATH] of a registry, such as registry.example.com/mirror";
    let is_end = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_part = |part: &str| {
        let bytes = part.as_bytes();
        [bytes.first(), bytes.last()].iter().all(|end| end.is_some_and(is_end))
            && bytes.iter().all(|byte| is_end(byte) || b"._-".contains(byte))
    };
    let is_port = |port: &str| {
        port.parse::<u16>().is_ok() && !port.starts_with('0') && port.bytes().all(|byte| byte.is_ascii_digit())
    };
    let (server, path) = text.split_once('/').map_or((text, None), |(server, path)| (server, Some(path)));
    let (host, port) = server.split_once(':').map_or((server, None), |(host, port)| (host, Some(port)));
    let is_server = is_registry(server) && is_part(host) && port.is_none_or(is_port);
    let is_path = path.is_none_or(|path| path.split('/').all(is_part));
    if text.len() <= PLACE_MAX && is_server && is_path { Ok(text.to_owned()) } else { Err(form) }
}

/// Whether the first part of an image's name is a registry, as container runtimes tell it from a name of Docker Hub.
pub fn is_registry(first: &str) -> bool {
    first.contains(['.', ':']) || first == "localhost"
}

/// A registry of charts, `oci://`.
///
/// # Errors
/// What was expected.
pub fn chart_registry(text: &str) -> Result<String, &'static str> {
    let rest = text.strip_prefix("oci://").ok_or("expected oci://HOST[:PORT][/PATH]")?;
    registry(rest).map(|_| text.to_owned())
}

/// The name of a Secret.
///
/// # Errors
/// What was expected.
pub fn secret_name(text: &str) -> Result<String, &'static str> {
    let is_in = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let is_name = !text.is_empty() && text.len() <= PLACE_MAX && text.bytes().all(is_in);
    if is_name { Ok(text.to_owned()) } else { Err("expected the name of a Secret") }
}

/// A setting that the operator of the cluster decides, and no gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockedSetting {
    /// Of this type; none: of every type.
    pub extension_type: Option<String>,
    /// The dotted key, as `helm --set` reads it.
    pub key: String,
    /// What it is set to; none: what the chart says.
    pub value: Option<String>,
}

impl FromStr for LockedSetting {
    type Err = &'static str;

    /// `TYPE:KEY`, `TYPE:KEY=VALUE`; `*` is every type.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let form = "expected TYPE:KEY or TYPE:KEY=VALUE, with * for every type";
        let (extension_type, rest) = text.split_once(':').ok_or(form)?;
        let (key, value) = rest.split_once('=').map_or((rest, None), |(key, value)| (key, Some(value)));
        if extension_type.is_empty() || key.is_empty() {
            return Err(form);
        }
        let extension_type = (extension_type != "*").then(|| extension_type.to_owned());
        Ok(Self { extension_type, key: key.to_owned(), value: value.map(str::to_owned) })
    }
}

impl Extensions {
    /// Whether the operator of the cluster lets this type be installed.
    pub fn allows(&self, extension_type: &str) -> bool {
        let is = |one: &String| one.eq_ignore_ascii_case(extension_type);
        self.allowed_types.as_ref().is_none_or(|allowed| allowed.iter().any(is))
    }

    /// What is locked of this type.
    pub fn locked(&self, extension_type: &str) -> impl Iterator<Item = &LockedSetting> {
        let is = move |one: &String| one.eq_ignore_ascii_case(extension_type);
        self.locked_settings.iter().filter(move |one| one.extension_type.as_ref().is_none_or(is))
    }
}

pub(super) fn read(mut section: Section, roles: RoleSet, out: &mut Faults) -> Extensions {
    let mut keys = Vec::new();
    for text in section.texts("catalogue_keys", out).unwrap_or_default() {
        match PublicKey::from_pem(text.as_bytes()) {
            Ok(key) => keys.push(key),
            Err(error) => out.push(section.key("catalogue_keys"), error),
        }
    }
    let files = section.texts("catalogue_key_files", out).unwrap_or_default();
    let key_files: Vec<_> = files.iter().map(|file| section.base().join(file)).collect();
    if keys.len() + key_files.len() > KEYS {
        out.push(section.key("catalogue_keys"), format_args!("a catalogue has at most {KEYS} keys"));
    }
    let catalogue = section.parsed("catalogue_id", out, str::parse);
    let helm = section.path("helm", out).unwrap_or_else(|| HELM.into());
    let work_dir = section.path("work_dir", out).unwrap_or_else(|| WORK_DIR.into());
    let timeout = section.duration("timeout", TIMEOUT_MIN..=TIMEOUT_MAX, out).unwrap_or(TIMEOUT);
    let range = CATALOGUE_INTERVAL_MIN..=CATALOGUE_INTERVAL_MAX;
    let catalogue_interval = section.duration("catalogue_interval", range, out).unwrap_or(CATALOGUE_INTERVAL);
    let allowed_types = section.texts("allowed_types", out);
    if allowed_types.as_ref().is_some_and(|types| types.len() > TYPES_MAX) {
        out.push(section.key("allowed_types"), format_args!("expected at most {TYPES_MAX}"));
    }
    let locked = section.texts("locked_settings", out).unwrap_or_default();
    if locked.len() > LOCKED_MAX {
        out.push(section.key("locked_settings"), format_args!("expected at most {LOCKED_MAX}"));
    }
    let mut locked_settings = Vec::new();
    for text in &locked {
        match text.parse() {
            Ok(one) => locked_settings.push(one),
            Err(wrong) => out.push(section.key("locked_settings"), format_args!("{text:?}: {wrong}")),
        }
    }
    let charts = section.parsed("chart_registry", out, chart_registry);
    let registry_secret = section.parsed("registry_secret", out, secret_name);
    if registry_secret.is_some() && charts.is_none() {
        out.push(section.key("registry_secret"), "signs in at chart_registry, which is not set");
    }
    let local_registry = section.parsed("local_registry", out, registry);
    if !roles.runs(Deployment::ExtensionManager) {
        out.push(section.key("helm"), is_for(Deployment::ExtensionManager, "it runs helm"));
    }
    section.end(out);
    Extensions {
        keys,
        key_files,
        catalogue,
        helm,
        work_dir,
        timeout,
        catalogue_interval,
        allowed_types,
        locked_settings,
        chart_registry: charts,
        registry_secret,
        local_registry,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{chart_registry, registry};
    use crate::config::Config;

    const REST: &str = "[gateway]\nurl = \"https://gw\"\ncertificate_file = \"c\"\nkey_file = \"k\"\n";

    #[test]
    fn extensions_are_only_where_helm_runs() {
        let read = |roles: &str, table: &str| {
            Config::parse(&format!("roles = \"{roles}\"\n{REST}[extensions]\n{table}"), Path::new("/etc/towline"))
        };
        let config = read("extension-manager", "allowed_types = [\"example.web\"]").unwrap().extensions.unwrap();
        assert_eq!((config.helm.as_path(), config.work_dir.as_path()), (Path::new("/helm"), Path::new("/tmp")));
        assert!(config.allows("Example.Web") && !config.allows("example.other"));
        assert!(read("all", "").unwrap().extensions.unwrap().allows("any.type"));
        let places =
            "chart_registry = \"oci://r.test:5000/charts\"\nregistry_secret = \"r\"\nlocal_registry = \"r.test/a/b\"";
        let config = read("extension-manager", places).unwrap().extensions.unwrap();
        assert_eq!(config.local_registry.as_deref(), Some("r.test/a/b"));
        for wrong in [
            "chart_registry = \"https://r.test/charts\"",
            "chart_registry = \"oci://user@r.test\"",
            "registry_secret = \"r\"",
            "local_registry = \"r.test/a b\"",
            "local_registry = \"r.test/a,b\"",
        ] {
            let faults = read("extension-manager", wrong).unwrap_err().0;
            assert!(faults[0].to_string().contains("expected") || wrong.contains("secret"), "{wrong}: {}", faults[0]);
        }
        let faults = read("controller-manager", "catalogue_keys = [\"x\"]\ncatalogue_id = \"y\"").unwrap_err().0;
        let faults: Vec<String> = faults.iter().map(ToString::to_string).collect();
        for key in
            ["extensions.catalogue_keys: it is not", "extensions.catalogue_id: is \"y\"", "extensions.helm: is for"]
        {
            assert!(faults.iter().any(|fault| fault.starts_with(key)), "{key} in {faults:#?}");
        }
    }

    #[test]
    fn x5_registries_are_those_that_the_chart_takes() {
        let texts = include_str!("../../../docker/chart/registries");
        let lines = texts.lines().filter(|line| !line.starts_with('#'));
        let cases: Vec<_> = lines.map(|line| line.split_once(' ').unwrap()).collect();
        assert!(cases.len() > 20, "{cases:?}");
        for (taken, text) in cases {
            assert_eq!(registry(text).is_ok(), taken == "yes", "{text}");
            assert_eq!(chart_registry(&format!("oci://{text}")).is_ok(), taken == "yes", "oci://{text}");
        }
    }
}
