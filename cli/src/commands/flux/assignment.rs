//! `towline flux apply` and `towline flux assignment`: one configuration for many clusters, by their tags (docs/features.md
//! G13).

use std::path::PathBuf;

use anyhow::{Context as _, anyhow};
use clap::Subcommand;
use http::StatusCode;
use serde_json::{Map, Value, json};

use super::{
    super::{
        CommonArgs, confirm,
        fleet::{
            self, Assignment, Failures, Named, Waves, Words, failures, row, say_matching, say_paused, scope, tag, tags,
            widens,
        },
        names, rest,
    },
    CONFIGURATIONS,
};
use crate::{
    api::{TimedOut, WaitArgs},
    context::Context,
    failure::{Failure, Outcome},
    output::{self, Column},
    terminal::say,
    yaml,
};

/// The command that lists them, for hints.
const LIST: &str = "towline flux assignment list";
const COLUMNS: &[Column] = &[
    ("Name", "/name"),
    ("ResourceGroup", "/resourceGroup"),
    ("Configuration", "/properties/template/name"),
    ("State", "/properties/state"),
    ("Clusters", "/properties/counts/matched"),
    ("Compliant", "/properties/counts/compliant"),
    ("NonCompliant", "/properties/counts/nonCompliant"),
    ("Failed", "/properties/counts/failed"),
    ("Pending", "/properties/counts/pending"),
];
const CLUSTERS: &[Column] = &[
    ("Cluster", "/name"),
    ("ResourceGroup", "/resourceGroup"),
    ("State", "/state"),
    ("Commit", "/commit"),
    ("Message", "/message"),
];
/// Percent of the clusters that a new assignment reaches at one time.
const ALL_AT_ONCE: u8 = 100;
/// How it is shown.
const WORDS: Words =
    Words { clusters: CLUSTERS, none: "no cluster matches", has: |_| "comply".to_owned(), says_non_compliant: true };

/// `towline flux apply`.
#[derive(Debug, clap::Args)]
pub struct ApplyArgs {
    /// The assignment
    #[arg(short = 'n', long, value_name = "NAME", value_parser = names::cluster)]
    pub name: String,
    /// A configuration, or its properties, as YAML or JSON; - is standard input
    #[arg(short = 'f', long, value_name = "FILE")]
    pub file: PathBuf,
    /// What the configuration is called in the clusters; as in the file, or as the assignment, without this
    #[arg(long, value_name = "NAME", value_parser = names::configuration)]
    pub configuration: Option<String>,
    /// A tag that a cluster must have; all of them, where several are given
    #[arg(long, value_name = "TAG=VALUE", value_parser = tag, required_unless_present = "all_clusters", conflicts_with = "all_clusters")]
    pub selector: Vec<(String, String)>,
    /// Every cluster, whatever its tags
    #[arg(long)]
    pub all_clusters: bool,
    /// The clusters of this resource group
    #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group, required_unless_present = "whole_subscription", conflicts_with = "whole_subscription")]
    pub resource_group: Option<String>,
    /// The clusters of all resource groups of the subscription
    #[arg(long)]
    pub whole_subscription: bool,
    /// So many of a hundred clusters at one time; as before without this, and all of them at first
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub percent: Option<u8>,
    /// Pause when more clusters than this failed or do not comply: a number, or a share such as 10%; as before without this
    #[arg(long, value_name = "NUMBER|PERCENT%", value_parser = failures)]
    pub max_failures: Option<Failures>,
    /// Begin paused; what is paused stays so until it is resumed
    #[arg(long)]
    pub paused: bool,
    /// Do not ask where clusters may lose the configuration, because others are selected than before, or where more clusters
    /// are reached at one time or may fail than before
    #[arg(short = 'y', long)]
    pub yes: bool,
}

/// `towline flux assignment <action>`.
#[derive(Debug, Subcommand)]
pub enum AssignmentAction {
    /// The assignments of a resource group, or of the subscription and all its resource groups
    List {
        /// The resource group
        #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group)]
        resource_group: Option<String>,
    },
    /// The clusters of an assignment, and whether each complies
    Show {
        #[command(flatten)]
        assignment: Named,
        /// Only clusters in this state, such as Failed
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
    },
    /// Begin nothing new in any cluster, and take nothing away, until it is resumed
    Pause {
        #[command(flatten)]
        assignment: Named,
    },
    /// Go on, also where failures have paused it
    Resume {
        #[command(flatten)]
        assignment: Named,
    },
    /// Delete an assignment, and its configuration in every cluster; what kustomizations with prune made is deleted there
    Delete {
        #[command(flatten)]
        assignment: Named,
        /// Do not ask
        #[arg(short = 'y', long)]
        yes: bool,
        /// How long to wait.
        #[command(flatten)]
        wait: WaitArgs,
    },
}

/// `towline flux apply`.
pub async fn apply(args: &ApplyArgs, common: &CommonArgs) -> Outcome<()> {
    let (name, properties) = configuration(&args.file).map_err(Failure::usage)?;
    let named = Named { name: args.name.clone(), resource_group: args.resource_group.clone() };
    let called = args.configuration.clone().or(name).unwrap_or_else(|| args.name.clone());
    let tags = tags(&args.selector)?;
    let template = json!({"type": CONFIGURATIONS.to_string(), "name": called, "properties": properties});
    let mut body = json!({"properties": {"selector": {"tags": tags}, "template": template}});
    let open = Assignment::open(&named, LIST, common).await?;
    let there = open.api.find(&open.target).await?.map(|there| there.body);
    let waves = Waves { percent: args.percent, failures: args.max_failures, paused: args.paused };
    body["properties"]["rollout"] = waves.over(there.as_ref(), ALL_AT_ONCE, None);
    if let Some(there) = &there {
        let questions = [selects_others(there, &body), widens(there, &body["properties"]["rollout"])];
        for question in questions.into_iter().flatten() {
            confirm(&question, args.yes).await?;
        }
    }
    let made = open.api.put(&open.target, &body).await?.body;
    say_matching(&Context::open(&common.context).await?, args.resource_group.as_deref(), &tags).await?;
    output::print(&row(&made), &common.output, COLUMNS)?;
    say_paused(&made, "towline flux assignment resume", &named);
    say(&format!("see how far its clusters are: towline flux assignment show {}", named.options()));
    Ok(())
}

/// The question before another selector takes the place of that of an assignment.
fn selects_others(there: &Value, new: &Value) -> Option<String> {
    let tags = |one: &Value| {
        let tags = one["properties"]["selector"]["tags"].as_object().into_iter().flatten();
        tags.map(|(tag, value)| (tag.to_lowercase(), value.clone())).collect::<Vec<_>>()
    };
    let sorted = |mut tags: Vec<(String, Value)>| {
        tags.sort_by(|one, other| one.0.cmp(&other.0));
        tags
    };
    let (before, now) = (sorted(tags(there)), sorted(tags(new)));
    let text = |tags: &[(String, Value)]| match tags {
        [] => "all clusters".to_owned(),
        _ => {
            let tags = tags.iter().map(|(tag, value)| format!("{tag}={}", value.as_str().unwrap_or_default()));
            tags.collect::<Vec<_>>().join(", ")
        }
    };
    (before != now).then(|| {
        format!(
            "The assignment is for {} and would be for {}. Take its configuration out of the clusters that are no longer selected (there are {} now), with what its kustomizations with prune made there?",
            text(&before),
            text(&now),
            there["properties"]["counts"]["matched"].as_u64().unwrap_or_default(),
        )
    })
}

/// `towline flux assignment <action>`.
pub async fn run(action: AssignmentAction, common: &CommonArgs) -> Outcome<()> {
    match action {
        AssignmentAction::List { resource_group } => {
            let context = Context::open(&common.context).await?;
            let scope = scope(&context, resource_group.as_deref())?;
            let rows = fleet::list(&context, &scope, CONFIGURATIONS).await?;
            output::print_list(rows, &common.output, COLUMNS, "no assignments; towline flux apply makes one")
        }
        AssignmentAction::Show { assignment, state } => show(&assignment, state, common).await,
        AssignmentAction::Pause { assignment } => pause(&assignment, true, common).await,
        AssignmentAction::Resume { assignment } => pause(&assignment, false, common).await,
        AssignmentAction::Delete { assignment, yes, wait } => delete(&assignment, yes, &wait, common).await,
    }
}

/// One, and its clusters: as a table, the clusters; else all of both.
async fn show(assignment: &Named, state: Option<String>, common: &CommonArgs) -> Outcome<()> {
    let open = Assignment::open(assignment, LIST, common).await?;
    let shown = open.get().await?;
    fleet::show(&open, shown, state, common, &WORDS).await
}

async fn pause(assignment: &Named, paused: bool, common: &CommonArgs) -> Outcome<()> {
    let open = Assignment::open(assignment, LIST, common).await?;
    let changed = fleet::pause(&open, paused).await?;
    output::print(&row(&changed), &common.output, COLUMNS)
}

async fn delete(assignment: &Named, yes: bool, wait: &WaitArgs, common: &CommonArgs) -> Outcome<()> {
    let open = Assignment::open(assignment, LIST, common).await?;
    let absent = format!("there was no assignment {}", assignment.name);
    let Some(there) = open.api.find(&open.target).await? else {
        say(&absent);
        return Ok(());
    };
    let own = &there.body["properties"];
    let question = format!(
        "Delete the assignment {} and the configuration {} in {} clusters, with what its kustomizations with prune made there?",
        assignment.name,
        own["template"]["name"].as_str().unwrap_or_default(),
        own["counts"]["matched"].as_u64().unwrap_or_default(),
    );
    confirm(&question, yes).await?;
    let answer = open.api.delete(&open.target).await?;
    if answer.status == StatusCode::NO_CONTENT {
        say(&absent);
    }
    let ended = open.api.follow(&answer, &format!("deleting {}", assignment.name), wait.wait()).await;
    ended.map_err(|failure| TimedOut::advised(failure, "--timeout", LIST))
}

/// A configuration of a file: its name, if it has one, and its properties.
fn configuration(file: &std::path::Path) -> anyhow::Result<(Option<String>, Map<String, Value>)> {
    let shown = file.display();
    let text = rest::read(&file.to_string_lossy()).with_context(|| format!("cannot read {shown}"))?;
    parsed(&text).with_context(|| format!("{shown}"))
}

fn parsed(text: &str) -> anyhow::Result<(Option<String>, Map<String, Value>)> {
    let document = yaml::read(text.as_bytes())?;
    if document.has_more {
        return Err(anyhow!("it has more than one YAML document; an assignment has one configuration"));
    }
    let root = document.root.ok_or_else(|| anyhow!("it is empty"))?;
    let Value::Object(mut whole) = yaml::json(&root)? else {
        return Err(anyhow!("it is not a map; expected a configuration, or its properties"));
    };
    let name = whole.get("name").and_then(Value::as_str).map(str::to_owned);
    match whole.remove("properties") {
        Some(Value::Object(properties)) => Ok((name, properties)),
        Some(_) => Err(anyhow!("its properties are not a map")),
        None if whole.contains_key("apiVersion") => Err(anyhow!(
            "it is an object of Kubernetes; expected the properties of a flux configuration, such as gitRepository and kustomizations"
        )),
        None => Ok((None, whole)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g13_file_is_a_configuration_or_its_properties_in_yaml_1_2_or_json() {
        let yaml =
            "sourceKind: GitRepository\nsuspend: no\ngitRepository:\n  url: https://x/y.git\n  timeoutInSeconds: 90\n";
        let (name, own) = parsed(yaml).unwrap();
        // `no` is a text in YAML 1.2, and the gateway says that it must be true or false.
        assert_eq!(
            (name, &own["suspend"], &own["gitRepository"]["timeoutInSeconds"]),
            (None, &json!("no"), &json!(90))
        );
        let whole = r#"{"name": "shop", "properties": {"suspend": true}}"#;
        assert_eq!(
            parsed(whole).unwrap(),
            (Some("shop".to_owned()), Map::from_iter([("suspend".to_owned(), json!(true))]))
        );
        for bad in ["", "- a", "a: 1\n---\nb: 2", "apiVersion: v1\nkind: Secret", "properties: 3", "a: [", "{a: 1}: 2"]
        {
            assert!(parsed(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn g13_another_selector_is_asked_about_and_the_same_is_not() {
        let of = |tags: Value| json!({"properties": {"selector": {"tags": tags}, "counts": {"matched": 7}}});
        let there = of(json!({"Ring": "canary", "env": "prod"}));
        assert_eq!(selects_others(&there, &of(json!({"env": "prod", "ring": "canary"}))), None);
        for (other, said) in [(json!({"ring": "canray"}), "ring=canray"), (json!({}), "all clusters")] {
            let question = selects_others(&there, &of(other)).unwrap();
            assert!(question.contains(said) && question.contains("there are 7 now"), "{question}");
        }
    }

    #[test]
    fn g13_summary_says_why_it_is_paused() {
        let counts = json!({"matched": 4, "compliant": 1, "nonCompliant": 1, "failed": 1, "pending": 1});
        let shown = json!({"properties": {"state": "Paused", "stateReason": "Somebody paused it.", "counts": counts}});
        assert_eq!(
            fleet::summary(&shown, &WORDS),
            "Paused (Somebody paused it.): 1 of 4 clusters comply, 1 do not, 1 failed, 1 pending"
        );
    }
}
