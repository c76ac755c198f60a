//! Fleet assignments, which `towline flux assignment` and `towline extension rollout` write: by name, and what is the same
//! in both (docs/features.md G13, E14).

use std::collections::BTreeSet;

use anyhow::{Context as _, anyhow};
use serde_json::{Map, Value, json};
use types::api::ResourceId;

use super::{CommonArgs, names};
use crate::{
    api::{Api, ResourceType, at, versions},
    commands::on_cluster::is_missing,
    context::Context,
    failure::{Failure, Outcome},
    output::{self, Column, Format},
    terminal::say,
};

/// The provider and the type.
const ASSIGNMENTS: ResourceType = ResourceType { provider: "Towline.Fleet", name: "assignments" };

/// Clusters that are asked for at once.
const CLUSTERS_A_PAGE: u32 = 500;

/// How many may fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failures {
    /// A number of clusters.
    Number(u32),
    /// A share of the clusters, in percent.
    Percent(u8),
}

impl Failures {
    /// Says it in the `rollout` of an assignment.
    pub fn put(self, rollout: &mut Value) {
        match self {
            Self::Number(number) => rollout["maxFailures"] = number.into(),
            Self::Percent(percent) => rollout["maxFailuresPercent"] = percent.into(),
        }
    }
}

/// An assignment by its name.
#[derive(Debug, clap::Args, Clone)]
pub struct Named {
    /// The assignment
    #[arg(short = 'n', long, value_name = "NAME", value_parser = names::cluster)]
    pub name: String,
    /// Its resource group; none for one of the subscription
    #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group)]
    pub resource_group: Option<String>,
}

impl Named {
    /// The options that name it, for hints.
    pub fn options(&self) -> String {
        let group = self.resource_group.as_ref().map(|group| format!("-g {group} ")).unwrap_or_default();
        format!("{group}-n {}", self.name)
    }
}

/// An assignment at its gateway.
pub struct Assignment {
    /// The client of the API.
    pub api: Api,
    /// The assignment's ARM id.
    pub id: ResourceId,
    /// Its path with the api-version.
    pub target: String,
    group: Option<String>,
    list: &'static str,
}

impl Assignment {
    /// By its name. `list`: the command that lists such, for hints.
    pub async fn open(named: &Named, list: &'static str, common: &CommonArgs) -> Outcome<Self> {
        let context = Context::open(&common.context).await?;
        let scope = scope(&context, named.resource_group.as_deref())?;
        let id =
            scope.on(ASSIGNMENTS.provider, ASSIGNMENTS.name, &named.name).context("--name").map_err(Failure::usage)?;
        let target = at(&id, versions::FLEET);
        Ok(Self { api: Api::of(&context)?, id, target, group: named.resource_group.clone(), list })
    }

    /// Reads the assignment.
    pub async fn get(&self) -> Outcome<Value> {
        self.api.get(&self.target).await.map_err(|failure| self.advised(failure))
    }

    /// A failure with where to look further.
    pub fn advised(&self, failure: Failure) -> Failure {
        if !is_missing(&failure) {
            return failure;
        }
        let group = self.group.as_ref().map(|group| format!(" -g {group}")).unwrap_or_default();
        failure.hint(format!("see which there are: {}{group}", self.list))
    }
}

/// A resource group, or the subscription.
pub fn scope(context: &Context, group: Option<&str>) -> Outcome<ResourceId> {
    match group {
        Some(group) => context.group(group),
        None => context.subscription(),
    }
}

/// An assignment with the resource group that it is of.
pub fn row(shown: &Value) -> Value {
    let group = shown["id"].as_str().and_then(|id| ResourceId::parse(id).ok());
    let mut row = shown.clone();
    row["resourceGroup"] = group.and_then(|id| id.resource_group().map(str::to_owned)).into();
    row
}

/// Assignments of a scope whose template is of this provider and type.
pub async fn list(context: &Context, scope: &ResourceId, kind: ResourceType) -> Outcome<Vec<Value>> {
    let target = at(format!("{scope}/providers/{ASSIGNMENTS}"), versions::FLEET);
    let kind = kind.to_string();
    let is_one = |row: &&Value| {
        row["properties"]["template"]["type"].as_str().is_some_and(|text| text.eq_ignore_ascii_case(&kind))
    };
    Ok(Api::of(context)?.list(&target).await?.iter().filter(is_one).map(row).collect())
}

/// The tags of `--selector`.
pub fn tags(selector: &[(String, String)]) -> Outcome<Map<String, Value>> {
    let distinct: BTreeSet<String> = selector.iter().map(|(tag, _)| tag.to_lowercase()).collect();
    if distinct.len() < selector.len() {
        return Err(Failure::usage(anyhow!("--selector names one tag twice; a cluster has one value of it")));
    }
    Ok(selector.iter().map(|(tag, value)| (tag.clone(), value.as_str().into())).collect())
}

/// Holds an assignment, or goes on with it.
pub async fn pause(open: &Assignment, paused: bool) -> Outcome<Value> {
    let body = json!({"properties": {"rollout": {"paused": paused}}});
    Ok(open.api.patch(&open.target, &body).await.map_err(|failure| open.advised(failure))?.body)
}

/// What a kind of assignment is called where it is shown.
pub struct Words {
    /// The columns of its clusters.
    pub clusters: &'static [Column],
    /// Instead of an empty table.
    pub none: &'static str,
    /// After how many clusters are as wanted, such as `have 1.3.0`.
    pub has: fn(&Value) -> String,
    /// There are also clusters that have it and do not comply.
    pub says_non_compliant: bool,
}

/// One, and its clusters that are in this state: as a table, the clusters; else all of both.
pub async fn show(
    open: &Assignment,
    mut shown: Value,
    state: Option<String>,
    common: &CommonArgs,
    words: &Words,
) -> Outcome<()> {
    let asked = state.map_or_else(|| json!({}), |state| json!({"state": state}));
    let target = format!("{}&$top={CLUSTERS_A_PAGE}", at(format!("{}/listClusters", open.id), versions::FLEET));
    let clusters = open.api.list_by(&target, &asked).await?;
    if common.output.output != Format::Table || common.output.query.is_some() {
        shown["clusters"] = clusters.into();
        return output::print(&shown, &common.output, &[]);
    }
    output::print_list(clusters, &common.output, words.clusters, words.none)?;
    say(&summary(&shown, words));
    Ok(())
}

/// All its clusters in one line.
pub fn summary(shown: &Value, words: &Words) -> String {
    let (own, counts) = (&shown["properties"], &shown["properties"]["counts"]);
    let count = |name: &str| counts[name].as_u64().unwrap_or_default();
    let reason = own["stateReason"].as_str().map(|reason| format!(" ({reason})")).unwrap_or_default();
    let not = if words.says_non_compliant { format!(", {} do not", count("nonCompliant")) } else { String::new() };
    format!(
        "{}{reason}: {} of {} clusters {}{not}, {} failed, {} pending",
        own["state"].as_str().unwrap_or("RollingOut"),
        count("compliant"),
        count("matched"),
        (words.has)(own),
        count("failed"),
        count("pending"),
    )
}

/// `TAG=VALUE`; an empty value is one.
pub fn tag(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((tag, value)) if !tag.is_empty() => Ok((tag.to_owned(), value.to_owned())),
        _ => Err("expected TAG=VALUE, such as ring=canary".to_owned()),
    }
}

/// A number, or a share.
pub fn failures(text: &str) -> Result<Failures, String> {
    let wrong = || "expected a number of clusters such as 3, or a share such as 10%".to_owned();
    match text.strip_suffix('%') {
        Some(percent) => {
            percent.parse().ok().filter(|percent| *percent <= 100).map(Failures::Percent).ok_or_else(wrong)
        }
        None => text.parse().ok().filter(|number| *number <= i32::MAX as u32).map(Failures::Number).ok_or_else(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g13_bounds_and_tags_are_read_as_typed() {
        assert_eq!((failures("3"), failures("10%")), (Ok(Failures::Number(3)), Ok(Failures::Percent(10))));
        for bad in ["", "%", "-1", "101%", "1.5", "9999999999"] {
            assert!(failures(bad).is_err(), "{bad}");
        }
        assert_eq!(tag("ring=a=b"), Ok(("ring".to_owned(), "a=b".to_owned())));
        assert!(tag("ring").is_err() && tag("=x").is_err());
    }
}
