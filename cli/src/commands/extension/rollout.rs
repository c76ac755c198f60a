//! `towline extension rollout`: a version of an extension for many clusters, in stages (docs/features.md E14). It is a fleet
//! assignment that gives the version to the extensions that are there and makes none.

use anyhow::anyhow;
use clap::Subcommand;
use http::StatusCode;
use serde_json::{Value, json};

use super::{
    super::{
        CommonArgs, confirm,
        fleet::{
            self, Assignment, Failures, Named, Waves, Words, failures, row, say_matching, say_paused, scope, tag, tags,
            widens,
        },
        names,
    },
    EXTENSIONS,
};
use crate::{
    api::{TimedOut, WaitArgs, at, versions},
    context::Context,
    failure::{Failure, Outcome},
    output::{self, Column},
    terminal::say,
};

/// The command that lists them, for hints.
const LIST: &str = "towline extension rollout list";
const COLUMNS: &[Column] = &[
    ("Name", "/name"),
    ("ResourceGroup", "/resourceGroup"),
    ("Extension", "/properties/template/name"),
    ("Version", "/properties/template/properties/version"),
    ("State", "/properties/state"),
    ("Clusters", "/properties/counts/matched"),
    ("Done", "/properties/counts/compliant"),
    ("Failed", "/properties/counts/failed"),
    ("Pending", "/properties/counts/pending"),
];
const CLUSTERS: &[Column] =
    &[("Cluster", "/name"), ("ResourceGroup", "/resourceGroup"), ("State", "/state"), ("Message", "/message")];
/// Of a new rollout: percent of the clusters at one time, and how many may fail.
const FIRST_PERCENT: u8 = 10;
const FIRST_FAILURES: Failures = Failures::Percent(2);
/// How it is shown.
const WORDS: Words = Words {
    clusters: CLUSTERS,
    none: "no cluster has such an extension",
    has: |own| format!("have {}", own["template"]["properties"]["version"].as_str().unwrap_or_default()),
    says_non_compliant: false,
};

/// `towline extension rollout <action>`.
#[derive(Debug, Subcommand)]
pub enum RolloutAction {
    /// Give extensions of one name a version, in many clusters and some at a time; also another version of a rollout
    Start(StartArgs),
    /// The rollouts of a resource group, or of the subscription and all its resource groups
    List {
        /// The resource group
        #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group)]
        resource_group: Option<String>,
    },
    /// How far a rollout is, and each of its clusters
    Status {
        #[command(flatten)]
        rollout: Named,
        /// Only clusters in this state, such as Failed
        #[arg(long, value_name = "STATE")]
        state: Option<String>,
    },
    /// Begin in no other cluster until it is resumed
    Pause {
        #[command(flatten)]
        rollout: Named,
    },
    /// Go on, also where failures have paused it
    Resume {
        #[command(flatten)]
        rollout: Named,
    },
    /// End a rollout; extensions keep the version that they have
    End {
        #[command(flatten)]
        rollout: Named,
        /// Do not ask
        #[arg(short = 'y', long)]
        yes: bool,
        /// How long to wait.
        #[command(flatten)]
        wait: WaitArgs,
    },
}

/// `towline extension rollout start`.
#[derive(Debug, clap::Args)]
pub struct StartArgs {
    /// The rollout
    #[arg(short = 'n', long, value_name = "NAME", value_parser = names::cluster)]
    pub name: String,
    /// What the extension is called in the clusters
    #[arg(long, value_name = "NAME", value_parser = names::extension)]
    pub extension: String,
    /// The extension type; one of that name and another type is left alone
    #[arg(long = "type", alias = "extension-type", value_name = "TYPE", value_parser = names::extension_type)]
    pub kind: String,
    /// The version of the catalogue
    #[arg(long, value_name = "VERSION", value_parser = names::word)]
    pub version: String,
    /// The clusters of this resource group
    #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group, required_unless_present = "whole_subscription", conflicts_with = "whole_subscription")]
    pub resource_group: Option<String>,
    /// The clusters of all resource groups of the subscription
    #[arg(long)]
    pub whole_subscription: bool,
    /// Only these clusters: NAME, or GROUP/NAME with --whole-subscription
    #[arg(long, value_name = "CLUSTER,...", value_delimiter = ',')]
    pub clusters: Vec<String>,
    /// Only clusters with this tag; with all of them, where several are given
    #[arg(long, value_name = "TAG=VALUE", value_parser = tag)]
    pub selector: Vec<(String, String)>,
    /// So many of a hundred clusters at one time, one in any case; as before without this, and 10 at first
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u8).range(1..=100))]
    pub percent: Option<u8>,
    /// Pause when more clusters than this failed: a number, or a share such as 5%; as before without this, and 2% at first
    #[arg(long, value_name = "NUMBER|PERCENT%", value_parser = failures)]
    pub max_failures: Option<Failures>,
    /// Begin paused; what is paused stays so until it is resumed
    #[arg(long)]
    pub paused: bool,
    /// Do not ask where more clusters are reached at one time or may fail than before
    #[arg(short = 'y', long)]
    pub yes: bool,
}

/// `towline extension rollout <action>`.
pub async fn run(action: RolloutAction, common: &CommonArgs) -> Outcome<()> {
    match action {
        RolloutAction::Start(args) => start(&args, common).await,
        RolloutAction::List { resource_group } => {
            let context = Context::open(&common.context).await?;
            let scope = scope(&context, resource_group.as_deref())?;
            let mut rows = fleet::list(&context, &scope, EXTENSIONS).await?;
            rows.retain(is_rollout);
            output::print_list(rows, &common.output, COLUMNS, "no rollouts; towline extension rollout start makes one")
        }
        RolloutAction::Status { rollout, state } => status(&rollout, state, common).await,
        RolloutAction::Pause { rollout } => pause(&rollout, true, common).await,
        RolloutAction::Resume { rollout } => pause(&rollout, false, common).await,
        RolloutAction::End { rollout, yes, wait } => end(&rollout, yes, &wait, common).await,
    }
}

async fn start(args: &StartArgs, common: &CommonArgs) -> Outcome<()> {
    let context = Context::open(&common.context).await?;
    let tags = tags(&args.selector)?;
    let mut selector = json!({"tags": &tags});
    if !args.clusters.is_empty() {
        let ids = args.clusters.iter().map(|named| cluster(&context, args.resource_group.as_deref(), named));
        selector["clusters"] = ids.collect::<Outcome<Vec<String>>>()?.into();
    }
    let template = json!({
        "type": format!("{EXTENSIONS}"), "name": args.extension, "existing": true,
        "properties": {"extensionType": args.kind, "version": args.version},
    });
    let mut body = json!({"properties": {"selector": &selector, "template": template}});
    let named = Named { name: args.name.clone(), resource_group: args.resource_group.clone() };
    let open = Assignment::open(&named, LIST, common).await?;
    let there = open.api.find(&open.target).await?.map(|there| there.body);
    let waves = Waves { percent: args.percent, failures: args.max_failures, paused: args.paused };
    let rollout = waves.over(there.as_ref(), FIRST_PERCENT, Some(FIRST_FAILURES));
    if let Some(there) = &there {
        is_one(there)?;
        if let Some(question) = widens(there, &rollout) {
            confirm(&question, args.yes).await?;
        }
    }
    body["properties"]["rollout"] = rollout;
    let made = open.api.put(&open.target, &body).await?.body;
    for id in selector["clusters"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        // A name that was mistyped would be a rollout that is complete, to no cluster.
        if let Ok(None) = open.api.find(&at(id, versions::CLUSTERS)).await {
            let name = id.rsplit('/').next().unwrap_or_default();
            say(&format!("warning: there is no cluster {name}; it has no part in the rollout until there is one"));
        }
    }
    if args.clusters.is_empty() {
        say_matching(&context, args.resource_group.as_deref(), &tags).await?;
    }
    output::print(&row(&made), &common.output, COLUMNS)?;
    say_paused(&made, "towline extension rollout resume", &named);
    say(&format!("see how far it is: towline extension rollout status {}", named.options()));
    Ok(())
}

/// The id of a cluster as it is typed.
fn cluster(context: &Context, group: Option<&str>, named: &str) -> Outcome<String> {
    let (group, name) = match (group, named.split_once('/')) {
        (Some(group), None) => (group, named),
        (None, Some((group, name))) => (group, name),
        (Some(_), Some(_)) => {
            return Err(Failure::usage(anyhow!(
                "--clusters {named}: the clusters are those of --resource-group; give the name alone"
            )));
        }
        (None, None) => {
            return Err(Failure::usage(anyhow!("--clusters {named}: give GROUP/NAME with --whole-subscription")));
        }
    };
    let checked = names::group(group).and_then(|_| names::cluster(name));
    checked.map_err(|wrong| Failure::usage(anyhow!("--clusters {named}: {wrong}")))?;
    Ok(context.cluster(group, name)?.as_str().to_owned())
}

/// Whether a fleet assignment is a rollout.
fn is_rollout(shown: &Value) -> bool {
    shown["properties"]["template"]["existing"] == true
}

/// Refuses a fleet assignment that is something else: its deletion would delete what it made.
fn is_one(shown: &Value) -> Outcome<()> {
    if is_rollout(shown) {
        return Ok(());
    }
    let name = shown["name"].as_str().unwrap_or_default();
    Err(Failure::usage(anyhow!("{name} is a fleet assignment of another kind, and no rollout of extensions"))
        .hint(format!("see which there are: {LIST}")))
}

/// One, and its clusters: as a table, the clusters; else all of both.
async fn status(rollout: &Named, state: Option<String>, common: &CommonArgs) -> Outcome<()> {
    let open = Assignment::open(rollout, LIST, common).await?;
    let shown = open.get().await?;
    is_one(&shown)?;
    fleet::show(&open, shown, state, common, &WORDS).await
}

async fn pause(rollout: &Named, paused: bool, common: &CommonArgs) -> Outcome<()> {
    let open = Assignment::open(rollout, LIST, common).await?;
    is_one(&open.get().await?)?;
    output::print(&row(&fleet::pause(&open, paused).await?), &common.output, COLUMNS)
}

async fn end(rollout: &Named, yes: bool, wait: &WaitArgs, common: &CommonArgs) -> Outcome<()> {
    let open = Assignment::open(rollout, LIST, common).await?;
    let absent = format!("there was no rollout {}", rollout.name);
    let Some(there) = open.api.find(&open.target).await? else {
        say(&absent);
        return Ok(());
    };
    is_one(&there.body)?;
    confirm(&format!("End the rollout {}? Extensions keep the version that they have.", rollout.name), yes).await?;
    let answer = open.api.delete(&open.target).await?;
    if answer.status == StatusCode::NO_CONTENT {
        say(&absent);
    }
    let ended = open.api.follow(&answer, &format!("ending {}", rollout.name), wait.wait()).await;
    ended.map_err(|failure| TimedOut::advised(failure, "--timeout", LIST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e14_summary_says_how_many_clusters_have_the_version() {
        let counts = json!({"matched": 4, "compliant": 1, "failed": 1, "pending": 2});
        let template = json!({"existing": true, "properties": {"version": "1.3.0"}});
        let shown = json!({"name": "r", "properties": {
            "state": "Paused", "stateReason": "1 clusters failed.", "counts": counts, "template": template,
        }});
        assert_eq!(
            fleet::summary(&shown, &WORDS),
            "Paused (1 clusters failed.): 1 of 4 clusters have 1.3.0, 1 failed, 2 pending"
        );
        assert!(is_one(&shown).is_ok() && is_one(&json!({"name": "flux", "properties": {}})).is_err());
    }
}
