//! Fleet assignments, which `towline flux assignment` and `towline extension rollout` write: by name, and what is the same
//! in both (docs/features.md G13, E14).

use std::collections::BTreeSet;

use anyhow::{Context as _, anyhow};
use serde_json::{Map, Value, json};
use types::api::ResourceId;

use super::{CommonArgs, names};
use crate::{
    api::{Api, ResourceType, at, encoded, versions},
    commands::on_cluster::is_missing,
    context::{CLUSTERS, Context},
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

/// How an assignment is carried out, as options say it. What they leave out stays as it is.
#[derive(Debug, Clone, Copy)]
pub struct Waves {
    /// So many of a hundred clusters at one time.
    pub percent: Option<u8>,
    /// How many may fail before it pauses.
    pub failures: Option<Failures>,
    /// It begins paused.
    pub paused: bool,
}

impl Waves {
    /// The `rollout` of an assignment: of the one that is there, or of a new one, which has `percent` and `failures` where
    /// the options say nothing.
    pub fn over(self, there: Option<&Value>, percent: u8, failures: Option<Failures>) -> Value {
        let mut rollout = json!({"maxConcurrentPercent": percent, "paused": false});
        match there.map(|there| &there["properties"]["rollout"]).filter(|before| before.is_object()) {
            Some(before) => rollout = before.clone(),
            None => failures.into_iter().for_each(|most| most.put(&mut rollout)),
        }
        if let Some(percent) = self.percent {
            rollout["maxConcurrentPercent"] = percent.into();
        }
        if let (Some(most), Some(own)) = (self.failures, rollout.as_object_mut()) {
            own.remove("maxFailures");
            own.remove("maxFailuresPercent");
            most.put(&mut rollout);
        }
        if self.paused {
            rollout["paused"] = true.into();
        }
        rollout
    }
}

/// The question before an assignment that is there may reach more clusters at one time, or go on with more failures.
pub fn widens(there: &Value, rollout: &Value) -> Option<String> {
    let before = &there["properties"]["rollout"];
    let at_once = |rollout: &Value| rollout["maxConcurrentPercent"].as_u64().unwrap_or(100);
    let is_wider = |name: &str| {
        let most = |rollout: &Value| rollout[name].as_u64();
        most(before).is_some_and(|old| most(rollout).is_none_or(|new| new > old))
    };
    let wider = at_once(rollout) > at_once(before) || is_wider("maxFailures") || is_wider("maxFailuresPercent");
    let text = |rollout: &Value| {
        let number = rollout["maxFailures"].as_u64().map(|most| format!("more than {most}"));
        let percent = rollout["maxFailuresPercent"].as_u64().map(|most| format!("more than {most}%"));
        let all: Vec<_> = number.into_iter().chain(percent).collect();
        let pause = match all.as_slice() {
            [] => "without a pause on failures".to_owned(),
            all => format!("with a pause when {} failed", all.join(" or ")),
        };
        format!("{}% of the clusters at one time, {pause}", at_once(rollout))
    };
    wider.then(|| format!("It goes to {}. Go on with {}?", text(before), text(rollout)))
}

/// Says that an assignment begins nothing, where somebody has paused it. `resume`: the command that goes on.
pub fn say_paused(shown: &Value, resume: &str, named: &Named) {
    if shown["properties"]["rollout"]["paused"] == true {
        say(&format!("it is paused, and goes on with: {resume} {}", named.options()));
    }
}

/// Says how many clusters have these tags now: of a tag that is mistyped there is none, and such an assignment is complete at
/// once.
pub async fn say_matching(context: &Context, group: Option<&str>, tags: &Map<String, Value>) -> Outcome<()> {
    let clusters = scope(context, group)?;
    let mut target = at(format!("{clusters}/providers/{}/{}", CLUSTERS.0, CLUSTERS.1), versions::CLUSTERS);
    let quoted = |text: &str| text.replace('\'', "''");
    if let Some((tag, value)) = tags.iter().next() {
        let value = quoted(value.as_str().unwrap_or_default());
        let filter = format!("tagName eq '{}' and tagValue eq '{value}'", quoted(tag));
        target = format!("{target}&$filter={}", encoded(&filter));
    }
    // Who may not list clusters learns the number from the assignment.
    let Ok(page) = Api::of(context)?.get(&format!("{target}&$top={CLUSTERS_A_PAGE}")).await else { return Ok(()) };
    if let Some(said) = matching(&page, tags) {
        say(&said);
    }
    Ok(())
}

/// What is said of a page of clusters; nothing where others come that may match.
fn matching(page: &Value, tags: &Map<String, Value>) -> Option<String> {
    let has = |cluster: &&Value| {
        tags.iter().all(|(tag, value)| {
            let own = cluster["tags"].as_object().into_iter().flatten();
            own.into_iter().any(|(name, is)| name.eq_ignore_ascii_case(tag) && is == value)
        })
    };
    let count = page["value"].as_array().into_iter().flatten().filter(has).count();
    let all: Vec<_> = tags.iter().map(|(tag, value)| format!("{tag}={}", value.as_str().unwrap_or_default())).collect();
    let what = if all.is_empty() { String::new() } else { format!(" with {}", all.join(" and ")) };
    let has_more = page["nextLink"].as_str().is_some_and(|link| !link.is_empty());
    match count {
        0 if has_more => None,
        0 => Some(format!(
            "warning: there is no cluster{what} now; those that come or get such tags later have part in it"
        )),
        1 if !has_more => Some(format!("there is 1 cluster{what} now")),
        _ => Some(format!("there are {count}{} clusters{what} now", if has_more { " or more" } else { "" })),
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

/// `TAG=VALUE`; an empty value is one. Several tags in one text, as kubectl takes them, would be one that no cluster has.
pub fn tag(text: &str) -> Result<(String, String), String> {
    let begins_another = |part: &str| {
        let name = part.split_once('=').map(|(name, _)| name.trim());
        name.is_some_and(|name| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || "-_./".contains(c)))
    };
    if text.split(',').skip(1).any(begins_another) {
        let all: Vec<_> = text.split(',').map(|part| format!("--selector {}", part.trim())).collect();
        return Err(format!("it has one tag; a cluster must have all that are given, so write {}", all.join(" ")));
    }
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

    #[test]
    fn g13_several_tags_in_one_selector_are_refused_with_how_to_write_them() {
        let refused = tag("ring=canary, env=prod").unwrap_err();
        assert!(refused.contains("--selector ring=canary --selector env=prod"), "{refused}");
        assert!(tag("ring=canary,").is_ok() && tag("note=a, b").is_ok() && tag("q=a,=b").is_ok());
    }

    #[test]
    fn g13_bounds_that_are_not_named_stay_and_wider_ones_are_asked_about() {
        let of = |percent, failures| Waves { percent, failures, paused: false };
        let first = of(None, None).over(None, 10, Some(Failures::Percent(2)));
        assert_eq!(first, json!({"maxConcurrentPercent": 10, "maxFailuresPercent": 2, "paused": false}));
        let there =
            json!({"properties": {"rollout": {"maxConcurrentPercent": 5, "maxFailuresPercent": 1, "paused": true}}});
        let kept = of(None, None).over(Some(&there), 100, None);
        assert_eq!(kept, there["properties"]["rollout"]);
        assert_eq!(widens(&there, &kept), None);
        let narrow = of(Some(4), Some(Failures::Percent(0))).over(Some(&there), 100, None);
        assert_eq!(narrow, json!({"maxConcurrentPercent": 4, "maxFailuresPercent": 0, "paused": true}));
        assert_eq!(widens(&there, &narrow), None);
        for wide in [of(Some(6), None), of(None, Some(Failures::Percent(2))), of(None, Some(Failures::Number(1)))] {
            let question = widens(&there, &wide.over(Some(&there), 100, None)).unwrap();
            assert!(
                question.contains("5% of the clusters at one time, with a pause when more than 1% failed"),
                "{question}"
            );
        }
    }

    #[test]
    fn g13_clusters_that_match_are_counted_and_none_is_a_warning() {
        let page = |rows: Value, next: &str| json!({"value": rows, "nextLink": next});
        let tags = tags(&[("ring".to_owned(), "a".to_owned()), ("env".to_owned(), "b".to_owned())]).unwrap();
        let rows = json!([{"tags": {"Ring": "a", "env": "b"}}, {"tags": {"ring": "a"}}, {"name": "x"}]);
        let said = |rows: &Value, next: &str| matching(&page(rows.clone(), next), &tags);
        assert_eq!(said(&rows, "").unwrap(), "there is 1 cluster with env=b and ring=a now");
        assert_eq!(said(&rows, "/next").unwrap(), "there are 1 or more clusters with env=b and ring=a now");
        assert!(said(&json!([]), "").unwrap().starts_with("warning: there is no cluster with env=b and ring=a now"));
        assert_eq!(said(&json!([]), "/next"), None);
        assert_eq!(matching(&page(rows, ""), &Map::new()).unwrap(), "there are 3 clusters now");
    }
}
