//! `--kustomization name=... path=...` of `towline flux create` and `update`, and `towline flux kustomization`: the
//! kustomizations of a configuration one by one.

use anyhow::anyhow;
use clap::{ArgAction, ArgMatches, Subcommand};
use serde_json::{Map, Value, json};

use super::{
    super::{CommonArgs, confirm, names},
    Configuration, NamedConfiguration, Waiting,
    typed::{names as list_of_names, span, spell},
};
use crate::{
    failure::{Failure, Outcome},
    output::{self, Column},
};

const OPTION: &str = "kustomization";
const COLUMNS: &[Column] = &[
    ("Name", "/name"),
    ("Path", "/path"),
    ("DependsOn", "/dependsOn"),
    ("Interval", "/syncInterval"),
    ("Retry", "/retryInterval"),
    ("Timeout", "/timeout"),
    ("Prune", "/prune"),
    ("Force", "/force"),
    ("Wait", "/wait"),
];

/// `--kustomization name=NAME KEY=VALUE...`, for each kustomization once. clap's derive does not keep which values were
/// typed together, so its traits are implemented by hand.
#[derive(Debug, Default)]
pub struct Kustomizations(pub Map<String, Value>);

impl clap::Args for Kustomizations {
    fn augment_args(command: clap::Command) -> clap::Command {
        let option = clap::Arg::new(OPTION)
            .short('k')
            .long(OPTION)
            .value_name("KEY=VALUE")
            .num_args(1..)
            .value_parser(pair)
            .action(ArgAction::Append)
            .help(
                "A kustomization: name=NAME, and of path, depends_on, timeout, sync_interval, retry_interval, prune, \
                force, wait, substitute.NAME, substitute_from what differs from the defaults; repeat for several",
            )
            .help_heading("Kustomizations");
        command.arg(option)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl clap::FromArgMatches for Kustomizations {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut found = Map::new();
        for typed in matches.get_occurrences::<String>(OPTION).into_iter().flatten() {
            let refused =
                |why: String| clap::Error::raw(clap::error::ErrorKind::ValueValidation, format!("--{OPTION}: {why}\n"));
            let (name, one) = read(typed.map(String::as_str)).map_err(refused)?;
            if found.insert(name.clone(), one).is_some() {
                return Err(refused(format!("there are two with the name {name}")));
            }
        }
        Ok(Self(found))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// One of the pairs by itself, so that a refusal shows the usage of the command that was typed.
fn pair(text: &str) -> Result<String, String> {
    let named = (!text.starts_with("name=")).then_some("name=x");
    read(named.into_iter().chain([text])).map(|_| text.to_owned())
}

/// Reads `name=NAME KEY=VALUE...`. Keys have the spellings that az takes.
fn read<'a>(typed: impl Iterator<Item = &'a str>) -> Result<(String, Value), String> {
    let (mut name, mut own) = (None, Map::new());
    let (mut texts, mut from) = (Map::new(), Vec::new());
    for pair in typed {
        let (key, value) = pair.split_once('=').ok_or_else(|| format!("{pair} is no KEY=VALUE"))?;
        if let Some(variable) = key.strip_prefix("substitute.") {
            let (variable, value) =
                substitute(&format!("{variable}={value}")).map_err(|why| format!("{key}: {why}"))?;
            if texts.insert(variable, value.into()).is_some() {
                return Err(format!("{key} is there twice"));
            }
            continue;
        }
        let flag = || value.to_ascii_lowercase().parse::<bool>().map_err(|_| format!("{key} is true or false"));
        let time = || span(value).map(Value::from).map_err(|why| format!("{key}: {why}"));
        let (place, value) = match key {
            "name" => {
                name = Some(names::configuration(value)?);
                continue;
            }
            "path" => ("path", value.into()),
            "depends_on" | "dependsOn" | "dependencies" | "depends" => ("dependsOn", list_of_names(value).into()),
            "timeout" => ("timeoutInSeconds", time()?),
            "interval" | "sync_interval" | "syncInterval" => ("syncIntervalInSeconds", time()?),
            "retry_interval" | "retryInterval" => ("retryIntervalInSeconds", time()?),
            "substitute_from" | "substituteFrom" => {
                from.push(substitute_from(value).map_err(|why| format!("{key}: {why}"))?);
                continue;
            }
            "prune" | "force" | "wait" => (key, flag()?.into()),
            "disable_health_check" | "disable-health-check" => ("wait", (!flag()?).into()),
            _ => {
                return Err(format!(
                    "{key} is not one of name, path, depends_on, timeout, sync_interval, retry_interval, prune, force, wait, substitute.NAME, substitute_from"
                ));
            }
        };
        if own.insert(place.to_owned(), value).is_some() {
            return Err(format!("{key} is there twice"));
        }
    }
    own.extend(post_build(texts, from).map(|post| ("postBuild".to_owned(), post)));
    Ok((name.ok_or("name=NAME is missing")?, own.into()))
}

/// `towline flux kustomization <action>`.
#[derive(Debug, Subcommand)]
pub enum KustomizationAction {
    /// Add a kustomization to a configuration
    Create {
        /// The new kustomization, and the configuration that gets it.
        #[command(flatten)]
        kustomization: NamedKustomization,
        /// What it is.
        #[command(flatten)]
        change: Change,
        /// How long to wait.
        #[command(flatten)]
        wait: Waiting,
    },
    /// Change a kustomization
    Update {
        /// The kustomization that is changed.
        #[command(flatten)]
        kustomization: NamedKustomization,
        /// What changes; options that are not given leave their setting as it is.
        #[command(flatten)]
        change: Change,
        /// How long to wait.
        #[command(flatten)]
        wait: Waiting,
    },
    /// Take a kustomization from a configuration; with prune, its objects from the cluster too
    Delete {
        /// The kustomization that is deleted.
        #[command(flatten)]
        kustomization: NamedKustomization,
        /// Do not ask
        #[arg(short = 'y', long)]
        yes: bool,
        /// How long to wait.
        #[command(flatten)]
        wait: Waiting,
    },
    /// The kustomizations of a configuration
    List {
        /// Of which one.
        #[command(flatten)]
        configuration: NamedConfiguration,
    },
    /// One kustomization
    Show {
        /// The kustomization that is shown.
        #[command(flatten)]
        kustomization: NamedKustomization,
    },
}

/// A kustomization by its name.
#[derive(Debug, clap::Args, Clone)]
pub struct NamedKustomization {
    /// The kustomization
    #[arg(short = 'k', long = "kustomization-name", value_name = "NAME", value_parser = names::configuration)]
    pub kustomization: String,
    /// The configuration that the kustomization is part of.
    #[command(flatten)]
    pub of: NamedConfiguration,
}

/// What a kustomization does.
#[derive(Debug, clap::Args, Default)]
pub struct Change {
    /// The folder of the source
    #[arg(long, value_name = "FOLDER")]
    pub path: Option<String>,
    /// Kustomizations of the same configuration that are applied before it, between commas
    #[arg(long, visible_alias = "dependencies", alias = "depends", value_name = "NAME,...")]
    pub depends_on: Option<String>,
    /// How long applying it may take, such as 10m
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub timeout: Option<u64>,
    /// How often it is applied again, such as 10m
    #[arg(long, visible_alias = "sync-interval", value_name = "SPAN", value_parser = span)]
    pub interval: Option<u64>,
    /// How soon it is tried again when it failed; as --interval without this
    #[arg(long, value_name = "SPAN", value_parser = span)]
    pub retry_interval: Option<u64>,
    /// Delete objects that the source no longer contains
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    pub prune: Option<bool>,
    /// Make objects anew that cannot be changed, such as jobs
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    pub force: Option<bool>,
    /// Do not wait until its objects are healthy
    #[arg(long, value_name = "true|false", num_args = 0..=1, default_missing_value = "true")]
    pub disable_health_check: Option<bool>,
    /// What takes the place of ${NAME} in its objects; others that were given before stay; repeat for several
    #[arg(long, value_name = "NAME=VALUE", value_parser = substitute)]
    pub substitute: Vec<(String, String)>,
    /// Take what takes the place of ${NAME} away; repeat for several
    #[arg(long, value_name = "NAME")]
    pub unset_substitute: Vec<String>,
    /// A ConfigMap or a Secret of the configuration's namespace with more of them, such as ConfigMap/site; with ? at the end
    /// it may be missing; repeat for several
    #[arg(long, value_name = "KIND/NAME", value_parser = substitute_from)]
    pub substitute_from: Vec<Value>,
}

/// `NAME=VALUE` of a substitution, whose name is one of a variable.
fn substitute(text: &str) -> Result<(String, String), String> {
    let is_name = |name: &str| {
        let mut bytes = name.bytes();
        bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
            && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
    };
    match text.split_once('=') {
        Some((name, value)) if is_name(name) => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE, NAME of letters, digits and _".to_owned()),
    }
}

/// `ConfigMap/NAME` or `Secret/NAME`, with `?` at the end if it may be missing.
fn substitute_from(text: &str) -> Result<Value, String> {
    let (place, optional) = text.strip_suffix('?').map_or((text, false), |place| (place, true));
    let kinds = ["ConfigMap", "Secret"];
    let found = place.split_once('/').filter(|(_, name)| !name.is_empty());
    let found =
        found.and_then(|(kind, name)| Some((kinds.iter().find(|known| known.eq_ignore_ascii_case(kind))?, name)));
    let (kind, name) = found.ok_or("expected ConfigMap/NAME or Secret/NAME")?;
    Ok(json!({"kind": kind, "name": name, "optional": optional}))
}

/// Substitutions as the API has them, if there are any.
fn post_build(substitute: Map<String, Value>, from: Vec<Value>) -> Option<Value> {
    let parts = [
        ("substitute", (!substitute.is_empty()).then_some(Value::Object(substitute))),
        ("substituteFrom", (!from.is_empty()).then_some(Value::Array(from))),
    ];
    let parts: Map<_, _> = parts.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
    (!parts.is_empty()).then_some(Value::Object(parts))
}

impl Change {
    fn json(&self) -> Map<String, Value> {
        let given = [
            ("path", self.path.as_deref().map(Value::from)),
            ("dependsOn", self.depends_on.as_deref().map(|text| list_of_names(text).into())),
            ("timeoutInSeconds", self.timeout.map(Value::from)),
            ("syncIntervalInSeconds", self.interval.map(Value::from)),
            ("retryIntervalInSeconds", self.retry_interval.map(Value::from)),
            ("prune", self.prune.map(Value::from)),
            ("force", self.force.map(Value::from)),
            ("wait", self.disable_health_check.map(|disabled| Value::from(!disabled))),
            ("postBuild", {
                let gone = self.unset_substitute.iter().map(|name| (name.clone(), Value::Null));
                let texts = self.substitute.iter().map(|(name, value)| (name.clone(), value.as_str().into()));
                post_build(gone.chain(texts).collect(), self.substitute_from.clone())
            }),
        ];
        given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

/// `towline flux kustomization <action>`.
pub async fn run(action: KustomizationAction, common: &CommonArgs) -> Outcome<()> {
    match action {
        KustomizationAction::List { configuration } => {
            let shown = Configuration::open(&configuration, common).await?.get().await?;
            let nothing = "no kustomizations; towline flux kustomization create makes one";
            output::print_list(rows(&shown), &common.output, COLUMNS, nothing)
        }
        KustomizationAction::Show { kustomization } => {
            let shown = Configuration::open(&kustomization.of, common).await?.get().await?;
            output::print(&find(&shown, &kustomization)?, &common.output, COLUMNS)
        }
        KustomizationAction::Create { kustomization, change, wait } => {
            let open = Configuration::open(&kustomization.of, common).await?;
            if find(&open.get().await?, &kustomization).is_ok() {
                let NamedKustomization { kustomization: name, of } = &kustomization;
                return Err(Failure::from(anyhow!("the configuration {} has a kustomization {name} already", of.name))
                    .hint(format!("change it: towline flux kustomization update -k {name} {}", of.options())));
            }
            change_one(&open, &kustomization, change.json().into(), &wait, common).await
        }
        KustomizationAction::Update { kustomization, change, wait } => {
            let change = change.json();
            if change.is_empty() {
                return Err(Failure::usage(anyhow!("nothing to change was given"))
                    .hint("such as --prune true; towline flux kustomization update --help"));
            }
            let open = Configuration::open(&kustomization.of, common).await?;
            find(&open.get().await?, &kustomization)?;
            change_one(&open, &kustomization, change.into(), &wait, common).await
        }
        KustomizationAction::Delete { kustomization, yes, wait } => {
            let open = Configuration::open(&kustomization.of, common).await?;
            let found = find(&open.get().await?, &kustomization)?;
            let objects = if found["prune"] == true { " and delete its objects in the cluster (prune)" } else { "" };
            let NamedKustomization { kustomization: name, of } = &kustomization;
            confirm(&format!("Take the kustomization {name} from {}{objects}?", of.name), yes).await?;
            let body = json!({"properties": {"kustomizations": {(name.as_str()): null}}});
            open.patch(&body, &wait, &format!("removing {name} from {}", of.name)).await.map(drop)
        }
    }
}

async fn change_one(
    open: &Configuration,
    kustomization: &NamedKustomization,
    change: Value,
    wait: &Waiting,
    common: &CommonArgs,
) -> Outcome<()> {
    let name = kustomization.kustomization.as_str();
    let body = json!({"properties": {"kustomizations": {name: change}}});
    let shown = open.patch(&body, wait, &format!("updating {}", kustomization.of.name)).await?;
    output::print(&find(&shown, kustomization)?, &common.output, COLUMNS)
}

/// The kustomizations of a configuration, by name, with spans as people write them beside the numbers.
fn rows(configuration: &Value) -> Vec<Value> {
    let all = configuration["properties"]["kustomizations"].as_object().into_iter().flatten();
    let row = |(name, one): (&String, &Value)| {
        let mut row = one.clone();
        row["name"] = name.as_str().into();
        for (shown, seconds) in [
            ("syncInterval", "syncIntervalInSeconds"),
            ("retryInterval", "retryIntervalInSeconds"),
            ("timeout", "timeoutInSeconds"),
        ] {
            if let Some(seconds) = one[seconds].as_u64() {
                row[shown] = spell(seconds).into();
            }
        }
        row
    };
    all.filter(|(_, one)| one.is_object()).map(row).collect()
}

fn find(configuration: &Value, kustomization: &NamedKustomization) -> Outcome<Value> {
    let NamedKustomization { kustomization: name, of } = kustomization;
    rows(configuration).into_iter().find(|row| row["name"] == name.as_str()).ok_or_else(|| {
        Failure::from(anyhow!("Kustomization with name '{name}' does not exist on configuration '{}'.", of.name))
            .hint(format!("see which there are: towline flux kustomization list {}", of.options()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g1_kustomization_is_read_as_az_reads_it() {
        let line = r#"name=apps path=./apps dependsOn=["infra","crds"] timeout=10m syncInterval=1h30m retry_interval=60 prune=True force=false disable_health_check=true"#;
        let (name, one) = read(line.split(' ')).unwrap();
        assert_eq!(name, "apps");
        let expected = json!({
            "path": "./apps", "dependsOn": ["infra", "crds"], "timeoutInSeconds": 600, "syncIntervalInSeconds": 5400,
            "retryIntervalInSeconds": 60, "prune": true, "force": false, "wait": false,
        });
        assert_eq!(one, expected);
        let line = "name=a substitute.site=eu-1 substitute.tier=a=b substitute_from=configmap/site substituteFrom=Secret/keys?";
        let (_, one) = read(line.split(' ')).unwrap();
        let post = json!({
            "substitute": {"site": "eu-1", "tier": "a=b"},
            "substituteFrom": [
                {"kind": "ConfigMap", "name": "site", "optional": false}, {"kind": "Secret", "name": "keys", "optional": true},
            ],
        });
        assert_eq!(one, json!({ "postBuild": post }));
        let change = Change {
            substitute: vec![("site".to_owned(), "eu-1".to_owned()), ("tier".to_owned(), "a=b".to_owned())],
            substitute_from: vec![substitute_from("ConfigMap/site").unwrap(), substitute_from("secret/keys?").unwrap()],
            ..Change::default()
        };
        assert_eq!(Value::Object(change.json()), json!({ "postBuild": post }));
        for (bad, why) in [
            ("name=a substitute.1a=b", "substitute.1a: expected NAME=VALUE"),
            ("name=a substitute.a=b substitute.a=c", "substitute.a is there twice"),
            ("name=a substitute_from=Pod/x", "expected ConfigMap/NAME"),
            ("path=./a", "name=NAME is missing"),
            ("name=a b", "b is no KEY=VALUE"),
            ("name=a color=red", "color is not one of"),
            ("name=a prune=maybe", "prune is true or false"),
            ("name=a timeout=soon", "timeout: expected a span"),
            ("name=a interval=1m sync_interval=2m", "sync_interval is there twice"),
            ("name=A", "lower case"),
        ] {
            let error = read(bad.split(' ')).unwrap_err();
            assert!(error.contains(why), "{bad}: {error}");
        }
    }

    #[test]
    fn g1_several_kustomizations_are_typed_one_after_another() {
        use clap::Parser;
        #[derive(Debug, Parser)]
        struct Line {
            #[command(flatten)]
            all: Kustomizations,
            #[arg(short)]
            group: Option<String>,
        }
        let parse = |line: &str| Line::try_parse_from(line.split(' '));
        let all = parse("x -k name=infra path=./infra -g edge -k path=./apps name=apps depends_on=infra").unwrap();
        assert_eq!(all.group.as_deref(), Some("edge"));
        let expected = json!({"infra": {"path": "./infra"}, "apps": {"path": "./apps", "dependsOn": ["infra"]}});
        assert_eq!(Value::Object(all.all.0), expected);
        let twice = parse("x -k name=a -k name=a").unwrap_err().to_string();
        assert!(twice.contains("there are two with the name a"), "{twice}");
        assert!(parse("x").unwrap().all.0.is_empty());
        // A refusal of a pair is one of the option, and shows no other command's usage.
        let refused = parse("x -k name=a color=red").unwrap_err().to_string();
        assert!(refused.contains("color is not one of") && !refused.contains("Usage"), "{refused}");
    }
}
