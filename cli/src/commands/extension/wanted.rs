//! Options of `create` and `update` as the properties of the API. Names are checked where they are typed.

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde_json::{Map, Value, json};
use types::window::{self, Schedule};

use super::{super::names, settings};
use crate::failure::{Failure, Outcome};

/// Where an extension is installed in its cluster.
#[derive(Debug, clap::Args, Default)]
pub struct Placement {
    /// For the whole cluster, or in one namespace with rights in it alone; what the type says without this
    #[arg(long, value_name = "cluster|namespace", value_parser = ["cluster", "namespace"])]
    pub scope: Option<String>,
    /// The namespace of an extension for the whole cluster; made if it is not there
    #[arg(long, value_name = "NAMESPACE", value_parser = names::namespace, conflicts_with = "target_namespace")]
    pub release_namespace: Option<String>,
    /// The namespace of an extension in one namespace; made if it is not there
    #[arg(long, value_name = "NAMESPACE", value_parser = names::namespace)]
    pub target_namespace: Option<String>,
}

impl Placement {
    /// As the API has it; none if nothing was given.
    pub fn json(&self) -> Outcome<Option<Value>> {
        let wrong = |text: &str| Err(Failure::usage(anyhow!("{text}")));
        match (self.scope.as_deref(), &self.release_namespace, &self.target_namespace) {
            (Some("namespace"), Some(_), _) => {
                wrong("--release-namespace belongs to --scope cluster; use --target-namespace")
            }
            (Some("namespace"), _, None) => wrong("--scope namespace needs --target-namespace"),
            (Some("cluster"), _, Some(_)) => {
                wrong("--target-namespace belongs to --scope namespace; use --release-namespace")
            }
            (_, _, Some(target)) => Ok(Some(json!({"namespace": {"targetNamespace": target}}))),
            (_, Some(release), _) => Ok(Some(json!({"cluster": {"releaseNamespace": release}}))),
            (Some(_), _, _) => Ok(Some(json!({"cluster": {}}))),
            (None, _, _) => Ok(None),
        }
    }
}

/// The plan of an extension from a marketplace, which is kept and shown (E13).
#[derive(Debug, clap::Args, Default)]
pub struct Plan {
    /// The plan of an extension that was bought, which is kept and shown: its name
    #[arg(long, value_name = "NAME", requires_all = ["plan_publisher", "plan_product"])]
    pub plan_name: Option<String>,
    /// Who sells it
    #[arg(long, value_name = "NAME", requires = "plan_name")]
    pub plan_publisher: Option<String>,
    /// What is sold
    #[arg(long, value_name = "NAME", requires = "plan_name")]
    pub plan_product: Option<String>,
}

impl Plan {
    /// As the API has it; none if nothing was given.
    pub fn json(&self) -> Option<Value> {
        let name = self.plan_name.as_deref()?;
        Some(json!({"name": name, "publisher": self.plan_publisher, "product": self.plan_product}))
    }
}

/// Versions and settings of an extension.
#[derive(Debug, clap::Args, Default)]
pub struct Change {
    /// Stay at this version; without it the newest of the train, upgraded by itself as --auto-upgrade says
    #[arg(long, value_name = "VERSION", value_parser = names::word)]
    pub version: Option<String>,
    /// The release train, such as Preview; Stable without this
    #[arg(long, alias = "release-train", value_name = "TRAIN", value_parser = names::word)]
    pub train: Option<String>,
    /// How far it is upgraded by itself; compatible, which is never to another major version, without this
    #[arg(long, aliases = ["auto-upgrade-mode", "auto-upgrade-minor-version"], value_name = "none|patch|compatible",
        value_parser = mode(), num_args = 0..=1, default_missing_value = "compatible", ignore_case = true)]
    pub auto_upgrade: Option<String>,
    /// When automatic upgrades begin: five fields as of cron, such as "0 22 * * mon-fri"; at any time without it
    #[arg(long, value_name = "CRON|none", value_parser = schedule)]
    pub upgrade_window: Option<String>,
    /// For how many hours the window is open
    #[arg(long, value_name = "HOURS", value_parser = clap::value_parser!(u8).range(1..=24), default_value = "4", requires = "upgrade_window")]
    pub window_hours: u8,
    /// The time zone of the window, such as Europe/Berlin
    #[arg(long, value_name = "ZONE", value_parser = time_zone, default_value = "UTC", requires = "upgrade_window")]
    pub time_zone: String,
    /// A setting; repeat for several
    #[arg(long, aliases = ["configuration-settings", "config-settings", "config"], value_name = "KEY=VALUE",
        value_parser = settings::pair, num_args = 1..)]
    pub set: Vec<(String, String)>,
    /// A setting whose value is the content of a file; repeat for several
    #[arg(long, value_name = "KEY=FILE", value_parser = settings::pair)]
    pub set_file: Vec<(String, String)>,
    /// Settings in a file: a map of YAML or JSON; - is standard input
    #[arg(long, aliases = ["configuration-settings-file", "config-settings-file", "config-file"], value_name = "FILE")]
    pub settings_file: Option<PathBuf>,
    /// A protected setting; others on this machine can read it while the command runs: better --protected-file
    #[arg(long, aliases = ["configuration-protected-settings", "config-protected-settings", "config-protected"],
        value_name = "KEY=VALUE", value_parser = settings::pair, num_args = 1..)]
    pub protected: Vec<(String, String)>,
    /// Protected settings in a file: a map of YAML or JSON; - is standard input
    #[arg(long, value_name = "FILE", aliases = ["configuration-protected-settings-file",
        "config-protected-settings-file", "config-protected-file"])]
    pub protected_file: Option<PathBuf>,
    /// What is done about a release that somebody changed or removed in the cluster
    #[arg(long, value_name = "repair|report", value_parser = ["repair", "report"])]
    pub reconcile: Option<String>,
}

impl Change {
    /// `{"properties": {...}}`: what was given, and settings to take away as `null`. Files are read.
    pub fn body(&self, unset: &[String]) -> Outcome<Value> {
        let upgrades = self.auto_upgrade.as_deref().filter(|mode| *mode != "none");
        if let (Some(_), Some(mode)) = (&self.version, upgrades) {
            let error = anyhow!("--version keeps the extension at that version, and --auto-upgrade {mode} does not");
            return Err(Failure::usage(error).hint("give one of the two"));
        }
        if [&self.settings_file, &self.protected_file].iter().all(|file| file.as_deref() == Some("-".as_ref())) {
            return Err(Failure::usage(anyhow!(
                "standard input can be read once: --settings-file - or --protected-file -"
            )));
        }
        let mut properties = Map::new();
        for (name, value) in [
            ("version", &self.version),
            ("releaseTrain", &self.train),
            ("autoUpgradeMode", &self.auto_upgrade),
            ("reconcile", &self.reconcile),
        ] {
            properties.extend(value.as_deref().map(|value| (name.to_owned(), value.into())));
        }
        match self.upgrade_window.as_deref() {
            Some(NO_WINDOW) => drop(properties.insert(WINDOW.to_owned(), Value::Null)),
            Some(schedule) => {
                let (hours, zone) = (self.window_hours, &self.time_zone);
                let window = json!({"schedule": schedule, "durationHours": hours, "timeZone": zone});
                properties.insert(WINDOW.to_owned(), window);
            }
            None => {}
        }
        let mut all = of_file(self.settings_file.as_ref(), "--settings-file")?;
        let files = self.set_file.iter().map(settings::content).collect::<anyhow::Result<Vec<_>>>();
        let files = files.context("--set-file").map_err(Failure::usage)?;
        for (name, value) in self.set.iter().cloned().chain(files) {
            all.insert(name, value.into());
        }
        for name in unset {
            if all.insert(name.clone(), Value::Null).is_some() {
                return Err(Failure::usage(anyhow!("{name} is to be set and to be taken away")));
            }
        }
        if !all.is_empty() {
            properties.insert("configurationSettings".to_owned(), all.into());
        }
        if self.replaces_protected() {
            let mut all = of_file(self.protected_file.as_ref(), "--protected-file")?;
            all.extend(self.protected.iter().map(|(name, value)| (name.clone(), value.as_str().into())));
            properties.insert("configurationProtectedSettings".to_owned(), all.into());
        }
        Ok(json!({"properties": properties}))
    }

    /// Whether protected settings were given.
    pub fn replaces_protected(&self) -> bool {
        self.protected_file.is_some() || !self.protected.is_empty()
    }
}

/// The property, and the word that takes it away.
const WINDOW: &str = "autoUpgradeWindow";
const NO_WINDOW: &str = "none";

/// The modes, and what az calls two of them.
fn mode() -> impl TypedValueParser<Value = String> {
    let words = [
        PossibleValue::new("none").alias("false"),
        PossibleValue::new("patch"),
        PossibleValue::new("compatible").alias("true"),
    ];
    PossibleValuesParser::new(words).map(|word| match word.to_ascii_lowercase().as_str() {
        "false" => "none".to_owned(),
        "true" => "compatible".to_owned(),
        word => word.to_owned(),
    })
}

fn schedule(text: &str) -> Result<String, String> {
    if text != NO_WINDOW {
        text.parse::<Schedule>().map_err(|error| error.to_string())?;
    }
    Ok(text.to_owned())
}

fn time_zone(text: &str) -> Result<String, String> {
    window::zone(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

fn of_file(file: Option<&PathBuf>, option: &'static str) -> Outcome<Map<String, Value>> {
    let read = file.map(|file| settings::file(file)).transpose();
    Ok(read.context(option).map_err(Failure::usage)?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn e1_options_become_properties_and_what_is_not_given_stays_out() {
        assert_eq!(Change::default().body(&[]).unwrap(), json!({"properties": {}}));
        let dir = tempfile::tempdir().unwrap();
        let (settings, protected) = (dir.path().join("s"), dir.path().join("p"));
        std::fs::write(&settings, "a: {b: 1}\nx: from the file\n").unwrap();
        std::fs::write(&protected, r#"{"password": "geheim"}"#).unwrap();
        let change = Change {
            train: Some("Preview".to_owned()),
            auto_upgrade: Some("patch".to_owned()),
            set: vec![pair("x", "typed")],
            set_file: vec![pair("page", settings.to_str().unwrap())],
            settings_file: Some(settings),
            protected: vec![pair("token", "t")],
            protected_file: Some(protected),
            ..Change::default()
        };
        let body = change.body(&["old".to_owned()]).unwrap();
        let expected = json!({"properties": {
            "releaseTrain": "Preview",
            "autoUpgradeMode": "patch",
            "configurationSettings": {"a.b": "1", "x": "typed", "page": "a: {b: 1}\nx: from the file\n", "old": null},
            "configurationProtectedSettings": {"password": "geheim", "token": "t"},
        }});
        assert_eq!(body, expected);
    }

    #[test]
    fn e3_options_that_contradict_each_other_are_refused() {
        let pinned = Change { version: Some("1.0.0".to_owned()), ..Change::default() };
        assert_eq!(pinned.body(&[]).unwrap(), json!({"properties": {"version": "1.0.0"}}));
        let both = Change { auto_upgrade: Some("compatible".to_owned()), ..pinned };
        assert!(both.body(&[]).is_err());
        let nightly = Change {
            upgrade_window: Some("0 22 * * fri".to_owned()),
            window_hours: 4,
            time_zone: "Europe/Berlin".to_owned(),
            ..Change::default()
        };
        let window = json!({"schedule": "0 22 * * fri", "durationHours": 4, "timeZone": "Europe/Berlin"});
        assert_eq!(nightly.body(&[]).unwrap(), json!({"properties": {"autoUpgradeWindow": window}}));
        let any_time = Change { upgrade_window: Some("none".to_owned()), ..nightly };
        assert_eq!(any_time.body(&[]).unwrap(), json!({"properties": {"autoUpgradeWindow": null}}));
        assert!(schedule("0 22 * *").is_err() && time_zone("Nowhere").is_err());
        let set = Change { set: vec![pair("a", "1")], ..Change::default() };
        assert!(set.body(&["a".to_owned()]).is_err());
    }

    #[test]
    fn e1_options_of_scripts_for_az_are_understood() {
        #[derive(Debug, clap::Parser)]
        struct Typed {
            #[command(flatten)]
            change: Change,
            #[command(flatten)]
            plan: Plan,
        }
        let typed = |line: &str| {
            let typed = <Typed as clap::Parser>::try_parse_from(std::iter::once("x").chain(line.split(' ')));
            typed.map(|typed| (typed.change.body(&[]).unwrap()["properties"].clone(), typed.plan.json()))
        };
        let properties = |line: &str| typed(line).unwrap().0;
        let two = json!({"a": "1", "b.c": "2"});
        for name in ["--set", "--config", "--config-settings", "--configuration-settings"] {
            let line = format!("{name} a=1 b.c=2 --version 1.0.0");
            assert_eq!(properties(&line), json!({"configurationSettings": two, "version": "1.0.0"}), "{line}");
            let line = format!("{name} a=1 {name} b.c=2");
            assert_eq!(properties(&line)["configurationSettings"], two, "{line}");
        }
        for name in ["--config-protected", "--config-protected-settings", "--configuration-protected-settings"] {
            assert_eq!(properties(&format!("{name} a=1 b.c=2"))["configurationProtectedSettings"], two, "{name}");
        }
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("s");
        std::fs::write(&file, r#"{"a": "1", "b": {"c": "2"}}"#).unwrap();
        let file = file.display();
        for name in ["config-file", "config-settings-file", "configuration-settings-file"] {
            assert_eq!(properties(&format!("--{name} {file}"))["configurationSettings"], two, "{name}");
        }
        for name in ["config-protected-file", "config-protected-settings-file", "configuration-protected-settings-file"]
        {
            assert_eq!(properties(&format!("--{name} {file}"))["configurationProtectedSettings"], two, "{name}");
        }
        for (line, mode) in [
            ("--auto-upgrade-minor-version false", "none"),
            ("--auto-upgrade-minor-version true", "compatible"),
            ("--auto-upgrade False", "none"),
            ("--auto-upgrade", "compatible"),
            ("--auto-upgrade-mode patch", "patch"),
        ] {
            assert_eq!(properties(line), json!({"autoUpgradeMode": mode}), "{line}");
        }
        let pinned = properties("--version 1.0.0 --auto-upgrade-minor-version false --release-train Stable");
        assert_eq!(pinned, json!({"version": "1.0.0", "autoUpgradeMode": "none", "releaseTrain": "Stable"}));
        let plan = json!({"name": "basic", "publisher": "example", "product": "web"});
        let line = "--plan-name basic --plan-publisher example --plan-product web";
        assert_eq!(typed(line).unwrap().1, Some(plan));
        for bad in ["--plan-name basic", "--plan-product web", "--auto-upgrade sometimes", "--config a"] {
            assert!(typed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn e7_placement_is_one_scope() {
        let place = |scope: Option<&str>, release: Option<&str>, target: Option<&str>| {
            let text = |text: Option<&str>| text.map(str::to_owned);
            Placement { scope: text(scope), release_namespace: text(release), target_namespace: text(target) }
                .json()
                .ok()
        };
        assert_eq!(place(None, None, None), Some(None));
        assert_eq!(place(None, Some("web"), None), Some(Some(json!({"cluster": {"releaseNamespace": "web"}}))));
        assert_eq!(place(None, None, Some("shop")), Some(Some(json!({"namespace": {"targetNamespace": "shop"}}))));
        assert_eq!(place(Some("cluster"), None, None), Some(Some(json!({"cluster": {}}))));
        assert_eq!(place(Some("namespace"), None, None), None);
        assert_eq!(place(Some("namespace"), Some("web"), None), None);
        assert_eq!(place(Some("cluster"), None, Some("shop")), None);
    }
}
