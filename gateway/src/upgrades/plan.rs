//! Which cluster gets which version now: a pure decision from what is kept and told of all clusters, so that every
//! replica of the gateway, and one that goes on after a crash, decides the same.

use std::collections::{BTreeMap, BTreeSet};

use ::catalogue::{
    choice::{self, Cluster, UpgradeMode},
    index::ExtensionType,
    version::{KubernetesVersion, Version},
};
use serde_json::{Value, json};
use types::{agent_api::Upgrade, instants::instant};

use crate::{
    cluster::{
        upgrade::{Noted, State},
        wave_order,
    },
    config::upgrades::Upgrades,
};

/// The first version whose agents upgrade themselves.
const UPGRADES_SINCE: (u64, u64) = (0, 2);
/// How long agents that are connected may tell nothing of a version that they are to have before others get their place,
/// in milliseconds. Agents look at once and tell within five minutes.
const SILENT_MS: i64 = 30 * 60 * 1000;
/// How long agents that are connected may take from the first word of an upgrade on, in milliseconds.
const UNENDED_MS: i64 = 24 * 60 * 60 * 1000;
/// Clusters that are named as failed at most.
const NAMED: usize = 100;
/// Versions that are told of at most.
const VERSIONS: usize = 20;
/// Failures of a version that are known as seen at most: one that fails in more clusters stays paused.
const SEEN: usize = 10_000;

/// What the catalogue has of agents.
#[derive(Debug, Clone, Copy)]
pub enum Offer<'a> {
    /// No catalogue can be used now: what was noted of it stays.
    Unknown,
    /// The catalogue has no agents.
    Nothing,
    /// Versions of the agents.
    Of(&'a ExtensionType),
}

/// A cluster, as it is kept and as its agents told of it.
#[derive(Debug, Clone)]
pub struct Member {
    /// Its id in lower case.
    pub key: String,
    /// As it was created.
    pub id: String,
    /// Whether its agents are upgraded by themselves.
    pub is_automatic: bool,
    /// Whether it was seen lately.
    pub is_connected: bool,
    /// The version that its agents have, if that is one.
    pub running: Option<Version>,
    /// Its version of Kubernetes.
    pub kubernetes: Option<KubernetesVersion>,
    /// The distribution of Kubernetes, such as `k3s`; none: not known.
    pub distribution: Option<String>,
    /// What the gateway noted.
    pub noted: Noted,
    /// Since when the agents are to have the version of the note, in milliseconds since 1970.
    pub since_ms: Option<i64>,
    /// Since when they are at work on it, in milliseconds since 1970.
    pub begun_ms: Option<i64>,
    /// What its agents told last of an upgrade.
    pub told: Option<Upgrade>,
}

/// How far a cluster is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Its agents are not upgraded by themselves: somebody said so.
    Off,
    /// Its agents cannot upgrade themselves: their version is older than that, or nobody knows it.
    ByHand,
    /// Its agents have the newest version for it.
    Current,
    /// A newer version is there, and it is not its turn yet.
    Pending,
    /// Its agents are to have another version, and have not told what came of it.
    Running,
    /// Its agents wait for somebody, such as for rights; nobody else waits for them.
    Waiting,
    /// It is not connected, and nothing has begun there; nobody waits for it.
    Away,
    /// Its agents tell nothing of the version: upgrades are off in the cluster, or its agents are those of another
    /// installer. Nobody waits for it.
    Silent,
    /// The version was rolled back there, failed, has not ended, or the cluster was lost during the upgrade.
    Failed,
}

impl Phase {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Off,
        Self::ByHand,
        Self::Current,
        Self::Pending,
        Self::Running,
        Self::Waiting,
        Self::Away,
        Self::Silent,
        Self::Failed,
    ];

    /// The word in the status and in labels of metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::ByHand => "by-hand",
            Self::Current => "current",
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Waiting => "waiting",
            Self::Away => "away",
            Self::Silent => "silent",
            Self::Failed => "failed",
        }
    }
}

/// What operators have said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Said {
    /// Whether somebody paused all of it.
    pub paused: bool,
    /// Failures that whoever resumed it has seen, each by [`failure`], by version. One that comes later counts, also where
    /// another one is mended meanwhile or the same cluster fails again.
    pub seen: BTreeMap<String, BTreeSet<String>>,
}

impl Said {
    /// Of what is kept.
    pub fn of(kept: Option<&Value>) -> Self {
        let Some(kept) = kept else { return Self::default() };
        let of_version = |(version, seen): (&String, &Value)| {
            let seen = seen.as_array()?.iter().take(SEEN).filter_map(|one| Some(one.as_str()?.to_owned()));
            Some((version.clone(), seen.collect()))
        };
        Self {
            paused: kept["paused"] == true,
            seen: kept["seen"].as_object().into_iter().flatten().filter_map(of_version).collect(),
        }
    }

    fn has_seen(&self, version: &str, failure: &str) -> bool {
        self.seen.get(version).is_some_and(|seen| seen.contains(failure))
    }

    /// As it is kept.
    pub fn kept(&self) -> Value {
        json!({"paused": self.paused, "seen": self.seen})
    }
}

/// Tells a failure from all others of its version: by the cluster, and by when its agents last told another state.
fn failure(member: &Member) -> String {
    let told = member.told.as_ref().map_or("", |told| &told.time);
    types::ids::hex(&wave_order(&format!("{}\0{told}", member.key)))
}

/// What is to be noted of a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The cluster's key.
    pub key: String,
    /// What is noted from now on.
    pub noted: Noted,
}

/// A version that clusters get.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct OfVersion {
    pending: usize,
    running: usize,
    failed: usize,
    /// Each failure, by [`failure`].
    failures: BTreeSet<String>,
    /// Failures that nobody has seen yet, by subscription.
    unseen_of: BTreeMap<String, usize>,
    /// No cluster gets it.
    is_held: bool,
    /// No cluster of these subscriptions gets it.
    held: BTreeSet<String>,
}

impl OfVersion {
    /// Pauses a version where too many have failed. What agents tell is the word of one tenant: the failures of one
    /// subscription hold the version back there, and count for all others up to a bound.
    fn hold(&mut self, settings: &Upgrades, fleets: &BTreeMap<&str, usize>) {
        let allowed = settings.failures(fleets.values().sum());
        let (most, mut counted) = ((allowed / 2).max(1), 0);
        for (subscription, unseen) in &self.unseen_of {
            let own = fleets.get(subscription.as_str()).copied().unwrap_or_default();
            if *unseen > settings.failures(own) {
                self.held.insert(subscription.clone());
            }
            counted += (*unseen).min(most);
        }
        // In a fleet so small that no whole cluster may fail, one of one tenant holds nobody else back, unless the
        // operator has said that none may fail.
        let bound = if settings.max_failures_percent == 0 { 0 } else { allowed.max(1) };
        self.is_held = if fleets.len() > 1 { counted > bound } else { !self.held.is_empty() };
    }
}

/// Places in the waves: of the whole fleet, and of each subscription, one in any case. What agents tell is the word of one
/// tenant: whose agents are at work for ever keeps others from no place but the tenant's own.
struct Places<'a> {
    free: usize,
    of: BTreeMap<&'a str, usize>,
}

impl<'a> Places<'a> {
    fn of(settings: &Upgrades, fleet: usize, fleets: BTreeMap<&'a str, usize>) -> Self {
        let of = fleets.into_iter().map(|(subscription, count)| (subscription, settings.at_once(count)));
        Self { free: settings.at_once(fleet), of: of.collect() }
    }

    /// One that is at work, also where its subscription has more than its own.
    fn hold(&mut self, subscription: &str) {
        self.take(subscription);
    }

    fn take(&mut self, subscription: &str) -> bool {
        let Some(own) = self.of.get_mut(subscription).filter(|own| **own > 0) else { return false };
        if self.free == 0 {
            return false;
        }
        *own -= 1;
        self.free -= 1;
        true
    }
}

/// The subscription of a cluster, by its key.
fn subscription(key: &str) -> &str {
    key.split('/').nth(2).unwrap_or_default()
}

/// What is to be done, and how far everything is.
#[derive(Debug, Default)]
pub struct Plan {
    /// What is to be noted.
    pub changes: Vec<Change>,
    phases: BTreeMap<Phase, usize>,
    versions: BTreeMap<String, OfVersion>,
    failures: Vec<Value>,
    /// Clusters that failed before, and whose agents do not tell of it any more.
    left: Vec<Change>,
    silent: Vec<String>,
    /// Why no cluster gets another version at all.
    closed: Option<String>,
    /// Clusters whose agents upgrade themselves.
    fleet: usize,
}

/// A cluster while it is judged.
struct Judged<'a> {
    member: &'a Member,
    phase: Phase,
    /// The version that it should come to.
    version: Option<String>,
    /// Why it failed: a word, and a sentence.
    why: Option<(String, String)>,
    /// Whether the gateway's note alone says so, and the agents do not.
    is_noted: bool,
}

/// Decides for all clusters.
pub fn plan(members: &[Member], offer: Offer<'_>, settings: &Upgrades, said: &Said, now_ms: i64) -> Plan {
    let mut judged: Vec<Judged<'_>> = members.iter().map(|member| judge(member, offer, settings, now_ms)).collect();
    let mut plan = Plan { fleet: members.iter().filter(|member| member.is_automatic).count(), ..Plan::default() };
    for one in &judged {
        *plan.phases.entry(one.phase).or_default() += 1;
        // A version that agents cannot come to by themselves is not rolled out to them.
        let Some(version) = one.version.as_ref().filter(|_| one.phase != Phase::ByHand) else { continue };
        let of = plan.versions.entry(version.clone()).or_default();
        match one.phase {
            Phase::Pending => of.pending += 1,
            Phase::Running | Phase::Waiting | Phase::Away => of.running += 1,
            Phase::Failed => {
                of.failed += 1;
                let failure = failure(one.member);
                if !said.has_seen(version, &failure) {
                    *of.unseen_of.entry(subscription(&one.member.key).to_owned()).or_default() += 1;
                }
                of.failures.insert(failure);
            }
            Phase::Off | Phase::ByHand | Phase::Current | Phase::Silent => {}
        }
    }
    let mut fleets: BTreeMap<&str, usize> = BTreeMap::new();
    for member in members.iter().filter(|member| member.is_automatic) {
        *fleets.entry(subscription(&member.key)).or_default() += 1;
    }
    for of in plan.versions.values_mut() {
        of.hold(settings, &fleets);
    }
    plan.closed = if !settings.automatic {
        Some("Automatic upgrades are switched off ([api.upgrades] automatic).".to_owned())
    } else if said.paused {
        Some("Somebody paused it.".to_owned())
    } else if settings.window.as_ref().is_some_and(|window| !window.is_open(now_ms)) {
        Some("The maintenance window is closed.".to_owned())
    } else {
        None
    };
    let mut places = Places::of(settings, plan.fleet, fleets);
    for one in judged.iter().filter(|one| one.phase == Phase::Running) {
        places.hold(subscription(&one.member.key));
    }
    // Another order for each version, so that it is not always the same clusters that go first.
    judged.sort_by_cached_key(|one| {
        wave_order(&format!("{}\0{}", one.version.as_deref().unwrap_or_default(), one.member.key))
    });
    for one in &judged {
        let (member, noted) = (one.member, &one.member.noted);
        let held = plan.closed.is_some()
            || one
                .version
                .as_ref()
                .and_then(|version| plan.versions.get(version))
                .is_some_and(|of| of.is_held || of.held.contains(subscription(&member.key)));
        let wanted = match one.phase {
            Phase::Pending if !held && member.is_connected && places.take(subscription(&member.key)) => {
                Noted { target: one.version.clone(), since: Some(instant(now_ms)), ..Noted::default() }
            }
            // What has not begun does not begin while it is held.
            Phase::Running | Phase::Away | Phase::Silent if held && !has_begun(member) => noted.without_target(),
            // Nor what waits in its cluster for something that may come at any time, such as rights.
            Phase::Waiting if held => noted.without_target(),
            // From here on they have a day. Before, they may have waited for rights or been away for as long as they like.
            Phase::Running if has_begun(member) && noted.begun.is_none() => {
                Noted { begun: Some(instant(now_ms)), ..noted.clone() }
            }
            // A version that is not offered any more, or that they are past, is not to come one day with rights that are
            // given late: it was taken out of the train, or they would go back.
            Phase::Current if !matches!(offer, Offer::Unknown) && !has_target(member) => noted.without_target(),
            Phase::Running | Phase::Waiting | Phase::Away | Phase::Silent | Phase::Current => noted.clone(),
            Phase::Pending | Phase::ByHand | Phase::Off => noted.without_target(),
            Phase::Failed => Noted {
                left: one.version.clone(),
                why: one.why.as_ref().map(|(reason, message)| format!("{reason}: {message}")),
                ..noted.without_target()
            },
        };
        if wanted != *noted {
            plan.changes.push(Change { key: member.key.clone(), noted: wanted });
        }
        if one.phase == Phase::Failed && one.is_noted {
            plan.left.push(Change { key: member.key.clone(), noted: Noted::default() });
        }
        if one.phase == Phase::Silent && plan.silent.len() < NAMED {
            plan.silent.push(member.id.clone());
        }
        if one.phase == Phase::Failed && plan.failures.len() < NAMED {
            let (reason, message) = one.why.clone().unwrap_or_default();
            plan.failures.push(json!({"id": member.id, "version": one.version, "reason": reason, "message": message}));
        }
    }
    plan
}

/// Whether the agents have told anything of the version that they are to have.
fn has_begun(member: &Member) -> bool {
    member.told.as_ref().is_some_and(|told| Some(&told.version) == member.noted.target.as_ref())
}

/// Whether they have the version of the note.
fn has_target(member: &Member) -> bool {
    let target = member.noted.target.as_ref().and_then(|target| target.parse::<Version>().ok());
    target.zip(member.running.as_ref()).is_some_and(|(target, running)| target.is(running))
}

fn judge<'a>(member: &'a Member, offer: Offer<'_>, settings: &Upgrades, now_ms: i64) -> Judged<'a> {
    let of = |phase, version: Option<String>| Judged { member, phase, version, why: None, is_noted: false };
    if !member.is_automatic {
        return of(Phase::Off, None);
    }
    let told = member.told.as_ref().map(|told| (told, State::of(told)));
    // What has begun comes to its end, also where a newer version is there by now.
    if let (Some(target), Some((told, State::Running))) = (&member.noted.target, told)
        && told.version == *target
    {
        let is_late = member.begun_ms.is_some_and(|begun| now_ms - begun > UNENDED_MS);
        let lost = |reason: &str, message: String| {
            let why = Some((reason.to_owned(), message));
            Judged { member, phase: Phase::Failed, version: Some(target.clone()), why, is_noted: false }
        };
        return match (member.is_connected, is_late) {
            (true, false) => of(Phase::Running, Some(target.clone())),
            (true, true) => {
                lost("NotEnded", format!("The upgrade to {target} has not ended within a day; see the log of its Job."))
            }
            // Others must not follow there. If it comes back, what its agents tell then decides.
            (false, _) => lost(
                "Lost",
                format!("The cluster was last heard of during the upgrade to {target}; look at its agents."),
            ),
        };
    }
    let Some(running) = &member.running else { return of(Phase::ByHand, None) };
    let cluster =
        Cluster { kubernetes: member.kubernetes, distribution: member.distribution.as_deref(), platforms: &[] };
    // A train that is not there offers nothing.
    let newest = |mode| match offer {
        Offer::Of(kind) => {
            let newest = choice::upgrade(kind, &settings.train, &cluster, running, mode).ok().flatten();
            newest.map(|release| release.version.number().to_string())
        }
        Offer::Nothing | Offer::Unknown => None,
    };
    let Some(of_all) = newest(UpgradeMode::Compatible) else { return of(Phase::Current, None) };
    if (running.number().major, running.number().minor) < UPGRADES_SINCE {
        return of(Phase::ByHand, Some(of_all));
    }
    // The version that runs carries the upgrade out, and no minor version is tested with the one after the next.
    let Some(newest) = newest(UpgradeMode::NextMinor) else { return of(Phase::ByHand, Some(of_all)) };
    let failed =
        |why| Judged { member, phase: Phase::Failed, version: Some(newest.clone()), why: Some(why), is_noted: false };
    match told {
        Some((told, state)) if told.version == newest && state.is_failure() => {
            let reason = if told.reason.is_empty() { state.as_str() } else { &told.reason };
            return failed((reason.to_owned(), told.message.clone()));
        }
        _ if member.noted.left.as_ref() == Some(&newest) => {
            let why = member.noted.why.clone().unwrap_or_default();
            let (reason, message) = why.split_once(": ").unwrap_or(("Failed", &why));
            return Judged { is_noted: true, ..failed((reason.to_owned(), message.to_owned())) };
        }
        _ => {}
    }
    if member.noted.target.as_ref() != Some(&newest) {
        return of(Phase::Pending, Some(newest));
    }
    if told.is_some_and(|(told, state)| told.version == newest && state == State::Waiting) {
        return of(Phase::Waiting, Some(newest));
    }
    if !member.is_connected {
        return of(Phase::Away, Some(newest));
    }
    let is_silent = !has_begun(member) && member.since_ms.is_none_or(|since| now_ms - since > SILENT_MS);
    if is_silent {
        return of(Phase::Silent, Some(newest));
    }
    // Also one whose agents say that they were upgraded, and have another version: it is not to hold its place for ever.
    if member.begun_ms.is_some_and(|begun| now_ms - begun > UNENDED_MS) {
        return failed(("NotEnded".to_owned(), format!("The agents do not have version {newest} a day later.")));
    }
    of(Phase::Running, Some(newest))
}

impl Plan {
    /// How many clusters are so far.
    pub fn count(&self, phase: Phase) -> usize {
        self.phases.get(&phase).copied().unwrap_or_default()
    }

    /// What somebody says who resumes it now: all failures so far are known.
    pub fn resumed(&self) -> Said {
        let failed = self.versions.iter().filter(|(_, of)| of.failed > 0);
        let seen = |of: &OfVersion| of.failures.iter().take(SEEN).cloned().collect();
        Said { paused: false, seen: failed.map(|(version, of)| (version.clone(), seen(of))).collect() }
    }

    /// Clusters that get the version again which they were left alone with, once somebody resumes it: their agents do not
    /// tell of its failure any more.
    pub fn tried_again(&self) -> &[Change] {
        &self.left
    }

    /// How far everything is, for operators.
    pub fn status(&self, settings: &Upgrades, said: &Said) -> Value {
        let allowed = settings.failures(self.fleet);
        let counts: BTreeMap<&str, usize> = Phase::ALL.map(|phase| (phase.as_str(), self.count(phase))).into();
        let version = |(version, of): (&String, &OfVersion)| {
            let known = of.failed.saturating_sub(of.unseen_of.values().sum());
            let reason = (of.is_held || !of.held.is_empty()).then(|| {
                let seen = if known > 0 { format!(", {known} of them known before") } else { String::new() };
                let whose = if of.is_held { "" } else { " The subscriptions of pausedSubscriptions wait." };
                format!("{} clusters failed{seen}; {allowed} may.{whose} See failures, and resume it then.", of.failed)
            });
            let held: Vec<&String> = of.held.iter().take(NAMED).collect();
            let shown = json!({
                "pending": of.pending, "running": of.running, "failed": of.failed,
                "state": if of.is_held { "Paused" } else if of.pending + of.running > 0 { "RollingOut" } else { "Complete" },
                "reason": reason, "pausedSubscriptions": held,
            });
            (version.clone(), shown)
        };
        let versions: serde_json::Map<String, Value> = self.versions.iter().take(VERSIONS).map(version).collect();
        json!({
            "automatic": settings.automatic, "train": settings.train, "paused": said.paused, "closed": self.closed,
            "atOnce": settings.at_once(self.fleet), "mayFail": allowed,
            "clusters": counts, "versions": versions, "failures": self.failures, "silent": self.silent,
        })
    }
}

#[cfg(test)]
mod tests {
    use ::catalogue::testing;

    use super::*;

    const NOW: i64 = 1_800_000_000_000;
    const HOUR: i64 = 3_600_000;

    fn agents(versions: &[&str]) -> ExtensionType {
        let releases: Vec<(&str, &[&str])> = versions.iter().map(|version| (*version, &["Stable"][..])).collect();
        testing::index(&releases).types.remove(0)
    }

    fn of_version(key: &str, running: &str) -> Member {
        Member {
            key: key.to_owned(),
            id: key.to_uppercase(),
            is_automatic: true,
            is_connected: true,
            running: running.parse().ok(),
            kubernetes: None,
            distribution: None,
            noted: Noted::default(),
            since_ms: None,
            begun_ms: None,
            told: None,
        }
    }

    fn fleet(count: usize) -> Vec<Member> {
        (0..count).map(|number| of_version(&format!("/c{number}"), "0.2.0")).collect()
    }

    fn told(version: &str, state: &str) -> Option<Upgrade> {
        let text = str::to_owned;
        Some(Upgrade {
            version: text(version),
            state: text(state),
            reason: text("Why"),
            message: text("m"),
            time: text("t"),
        })
    }

    fn noted(target: &str) -> Noted {
        let time = || Some("t".to_owned());
        Noted { target: Some(target.to_owned()), since: time(), begun: time(), ..Noted::default() }
    }

    fn decide(members: &[Member], settings: &Upgrades, said: &Said) -> Plan {
        plan(members, Offer::Of(&agents(&["0.2.0", "0.3.0"])), settings, said, NOW)
    }

    fn decided(members: &[Member]) -> Plan {
        decide(members, &Upgrades::default(), &Said::default())
    }

    #[test]
    fn u1_a_tenth_at_once_in_an_order_that_each_version_has_for_itself() {
        let members = fleet(100);
        let first = decided(&members);
        let chosen: Vec<&str> = first.changes.iter().map(|change| change.key.as_str()).collect();
        assert_eq!(chosen.len(), 10);
        assert!(first.changes.iter().all(|change| change.noted.target.as_deref() == Some("0.3.0")));
        let again = decided(&members);
        assert_eq!(first.changes, again.changes, "whoever looks decides the same");
        let other = plan(&members, Offer::Of(&agents(&["0.3.1"])), &Upgrades::default(), &Said::default(), NOW);
        assert_ne!(chosen, other.changes.iter().map(|change| change.key.as_str()).collect::<Vec<_>>());
        // Those that are under way have their places.
        let mut members = members;
        for member in members.iter_mut().filter(|member| chosen.contains(&member.key.as_str())).take(7) {
            (member.noted, member.since_ms) = (noted("0.3.0"), Some(NOW));
        }
        assert_eq!(decided(&members).changes.len(), 3);
    }

    #[test]
    fn u1_who_waits_is_away_or_is_silent_keeps_nobody_waiting() {
        let one = |change: fn(&mut Member)| {
            let mut members = fleet(2);
            (members[0].noted, members[0].since_ms) = (noted("0.3.0"), Some(NOW));
            change(&mut members[0]);
            let plan = decided(&members);
            (judge(&members[0], Offer::Of(&agents(&["0.3.0"])), &Upgrades::default(), NOW).phase, plan.changes.len())
        };
        assert_eq!(one(|_| {}), (Phase::Running, 0));
        assert_eq!(one(|member| member.told = told("0.3.0", "Running")), (Phase::Running, 0));
        assert_eq!(one(|member| member.told = told("0.3.0", "Waiting")), (Phase::Waiting, 1));
        assert_eq!(one(|member| member.is_connected = false), (Phase::Away, 1));
        assert_eq!(one(|member| member.since_ms = Some(NOW - HOUR)), (Phase::Silent, 1));
        // One failed, and none of two may: the other one is held.
        let lost = |member: &mut Member| (member.told, member.is_connected) = (told("0.3.0", "Running"), false);
        assert_eq!(one(lost), (Phase::Failed, 1));
        assert_eq!(one(|member| member.told = told("0.3.0", "RolledBack")), (Phase::Failed, 1));
        assert_eq!(one(|member| member.running = "0.3.0".parse().ok()), (Phase::Current, 1));
        assert_eq!(one(|member| member.running = "0.1.9".parse().ok()), (Phase::ByHand, 2), "it cannot by itself");
        assert_eq!(one(|member| member.running = None), (Phase::ByHand, 2));
        assert_eq!(one(|member| member.is_automatic = false), (Phase::Off, 2));
        let late = |member: &mut Member| {
            (member.told, member.begun_ms) = (told("0.3.0", "Running"), Some(NOW - 25 * HOUR));
        };
        assert_eq!(one(late), (Phase::Failed, 1));
        // They say that they have it, and have another one.
        let other = |member: &mut Member| {
            (member.told, member.begun_ms) = (told("0.3.0", "Succeeded"), Some(NOW - 25 * HOUR));
        };
        assert_eq!(one(other), (Phase::Failed, 1));
    }

    #[test]
    fn u1_a_day_counts_from_when_the_agents_begin_and_not_from_when_they_were_told() {
        let mut members = fleet(1);
        (members[0].noted, members[0].since_ms) = (noted("0.3.0"), Some(NOW - 30 * 24 * HOUR));
        members[0].noted.begun = None;
        for state in ["Waiting", "Running"] {
            members[0].told = told("0.3.0", state);
            let plan = decided(&members);
            assert_eq!(plan.count(Phase::Failed), 0, "they waited for rights for a month: {state}");
            let begun: Vec<_> = plan.changes.iter().map(|change| change.noted.begun.is_some()).collect();
            assert_eq!(begun, if state == "Running" { vec![true] } else { vec![] }, "{state}");
        }
        (members[0].noted.begun, members[0].begun_ms) = (Some("t".to_owned()), Some(NOW - HOUR));
        assert_eq!(decided(&members).changes, []);
    }

    #[test]
    fn u1_a_version_that_is_not_offered_any_more_is_not_wanted_any_more() {
        let mut members = fleet(3);
        for member in &mut members {
            member.noted = noted("0.3.0");
        }
        // One waits for rights, one is past it, and one has it.
        members[0].told = told("0.3.0", "Waiting");
        members[1].running = "0.3.1".parse().ok();
        members[2].running = "0.3.0".parse().ok();
        let taken_out = agents(&["0.2.0"]);
        let cleared = |offer: Offer<'_>| -> Vec<String> {
            let plan = plan(&members, offer, &Upgrades::default(), &Said::default(), NOW);
            assert!(plan.changes.iter().all(|change| change.noted.target.is_none()));
            let mut keys: Vec<String> = plan.changes.into_iter().map(|change| change.key).collect();
            keys.sort_unstable();
            keys
        };
        assert_eq!(cleared(Offer::Of(&taken_out)), ["/c0", "/c1"]);
        assert_eq!(cleared(Offer::Nothing), ["/c0", "/c1"]);
        assert_eq!(cleared(Offer::Unknown), [""; 0], "nothing is known of the catalogue: nothing is decided");
        // What has begun comes to its end.
        members[0].told = told("0.3.0", "Running");
        let plan = plan(&members, Offer::Of(&taken_out), &Upgrades::default(), &Said::default(), NOW);
        assert_eq!(plan.changes.iter().map(|change| change.key.as_str()).collect::<Vec<_>>(), ["/c1"]);
    }

    #[test]
    fn u1_what_has_not_begun_is_taken_back_while_it_is_held() {
        let mut members = fleet(4);
        for member in &mut members[..3] {
            (member.noted, member.since_ms) = (noted("0.3.0"), Some(NOW));
        }
        members[1].told = told("0.3.0", "Running");
        // Rights that come in the middle of a pause begin nothing.
        members[2].told = told("0.3.0", "Waiting");
        let off = Upgrades { automatic: false, ..Upgrades::default() };
        for plan in [
            decide(&members, &off, &Said::default()),
            decide(&members, &Upgrades::default(), &Said { paused: true, ..Said::default() }),
        ] {
            let expected = ["/c0", "/c2"].map(|key| Change { key: key.to_owned(), noted: Noted::default() });
            let mut changes = plan.changes.clone();
            changes.sort_by(|a, b| a.key.cmp(&b.key));
            assert_eq!(changes, expected, "one has begun, and one has nothing");
            assert!(plan.closed.is_some());
        }
    }

    #[test]
    fn u1_failures_of_one_subscription_hold_the_version_back_there() {
        let of = |subscription: &str, number: usize| {
            of_version(&format!("/subscriptions/{subscription}/c{number}"), "0.2.0")
        };
        let mut members: Vec<Member> =
            (0..10).flat_map(|number| ["a", "b", "c"].map(|name| of(name, number))).collect();
        let fails = |members: &mut [Member], name: &str, count: usize| {
            let own = members.iter_mut().filter(|member| subscription(&member.key) == name);
            own.take(count).for_each(|member| member.told = told("0.3.0", "RolledBack"));
        };
        let begun = |plan: &Plan| -> BTreeSet<String> {
            let begun = plan.changes.iter().filter(|change| change.noted.target.is_some());
            begun.map(|change| subscription(&change.key).to_owned()).collect()
        };
        fails(&mut members, "a", 10);
        let all = Upgrades { at_once_percent: 100, ..Upgrades::default() };
        let plan = decide(&members, &all, &Said::default());
        assert_eq!(begun(&plan), BTreeSet::from(["b".to_owned(), "c".to_owned()]), "all of one tenant count as one");
        let of_version = &plan.status(&all, &Said::default())["versions"]["0.3.0"];
        assert_eq!((&of_version["state"], &of_version["pausedSubscriptions"]), (&json!("RollingOut"), &json!(["a"])));
        // A second subscription says the same: nobody gets it.
        fails(&mut members, "b", 1);
        let plan = decide(&members, &all, &Said::default());
        assert_eq!(begun(&plan), BTreeSet::new());
        assert_eq!(plan.status(&all, &Said::default())["versions"]["0.3.0"]["state"], "Paused");
        let said = plan.resumed();
        assert_eq!(Said::of(Some(&said.kept())), said);
        let plan = decide(&members, &all, &said);
        assert_eq!(begun(&plan), BTreeSet::from(["b".to_owned(), "c".to_owned()]), "a has no other cluster");
    }

    #[test]
    fn u1_where_no_cluster_may_fail_one_failure_of_any_subscription_pauses_the_version() {
        let mut members: Vec<Member> =
            ["a", "b", "c"].map(|name| of_version(&format!("/subscriptions/{name}/c"), "0.2.0")).into();
        members[0].told = told("0.3.0", "RolledBack");
        for (percent, begun) in [(0, 0), (2, 1)] {
            let settings = Upgrades { max_failures_percent: percent, ..Upgrades::default() };
            let plan = decide(&members, &settings, &Said::default());
            let noted = plan.changes.iter().filter(|change| change.noted.target.is_some()).count();
            assert_eq!(noted, begun, "{percent} %");
        }
    }

    /// Agents of one tenant that say that they are at work kept all others waiting for a day.
    #[test]
    fn u1_clusters_of_one_subscription_hold_no_more_places_than_its_own() {
        let mut members: Vec<Member> = (0..50)
            .flat_map(|number| ["a", "b"].map(|name| of_version(&format!("/subscriptions/{name}/c{number}"), "0.2.0")))
            .collect();
        let begun = |members: &[Member]| {
            let plan = decided(members);
            let of = |name: &str| {
                let begun = plan.changes.iter().filter(|change| change.noted.since.is_some());
                begun.filter(|change| subscription(&change.key) == name).count()
            };
            (of("a"), of("b"))
        };
        assert_eq!(begun(&members), (5, 5));
        for member in members.iter_mut().filter(|member| subscription(&member.key) == "a") {
            (member.noted, member.since_ms, member.told) = (noted("0.3.0"), Some(NOW), told("0.3.0", "Running"));
            member.begun_ms = Some(NOW);
        }
        assert_eq!(begun(&members).1, 5, "fifty of a are at work");
    }

    /// The version that runs carries the upgrade out: it is tested with the next minor version and no other.
    #[test]
    fn u1_no_minor_version_is_left_out() {
        let wanted = |running: &str, offered: &[&str]| {
            let members = [of_version("/c0", running)];
            let plan = plan(&members, Offer::Of(&agents(offered)), &Upgrades::default(), &Said::default(), NOW);
            let target = plan.changes.first().and_then(|change| change.noted.target.clone());
            (target, plan.count(Phase::ByHand))
        };
        let all = ["0.2.1", "0.3.0", "0.3.4", "0.4.0"];
        assert_eq!(wanted("0.2.0", &all), (Some("0.3.4".to_owned()), 0));
        assert_eq!(wanted("0.3.4", &all), (Some("0.4.0".to_owned()), 0));
        assert_eq!(wanted("0.2.0", &["0.4.0"]), (None, 1), "it is shown, and upgraded by hand");
        let members = [of_version("/c0", "0.2.0")];
        let plan = plan(&members, Offer::Of(&agents(&["0.4.0"])), &Upgrades::default(), &Said::default(), NOW);
        let status = plan.status(&Upgrades::default(), &Said::default());
        assert_eq!(
            (&status["versions"], &status["clusters"]["by-hand"]),
            (&json!({}), &json!(1)),
            "nothing is complete"
        );
    }

    #[test]
    fn u1_a_version_that_was_left_alone_is_tried_again_once_it_is_resumed() {
        let mut members = fleet(2);
        members[0].noted =
            Noted { left: Some("0.3.0".to_owned()), why: Some("Crash: m".to_owned()), ..Noted::default() };
        let plan = decided(&members);
        let expected = [Change { key: "/c0".to_owned(), noted: Noted::default() }];
        assert_eq!(plan.tried_again(), expected);
        members[0].told = told("0.3.0", "RolledBack");
        assert_eq!(decided(&members).tried_again(), [], "its agents say that they do not take it");
    }

    #[test]
    fn u1_more_failures_than_may_be_hold_that_version_until_somebody_has_seen_them() {
        let mut members = fleet(100);
        for member in &mut members[..3] {
            member.told = told("0.3.0", "Failed");
        }
        let plan = decided(&members);
        assert_eq!((plan.count(Phase::Failed), plan.changes.len()), (3, 3), "they are noted as left alone, no more");
        let status = plan.status(&Upgrades::default(), &Said::default());
        assert_eq!(status["versions"]["0.3.0"]["state"], "Paused", "{status}");
        let said = plan.resumed();
        assert_eq!(Said::of(Some(&said.kept())), said);
        let plan = decide(&members, &Upgrades::default(), &said);
        assert_eq!(plan.changes.iter().filter(|change| change.noted.target.is_some()).count(), 10);
        // One is mended and another one fails; and one of the three fails again.
        let mut later = members.clone();
        (later[0].told, later[3].told) = (told("0.3.0", "Running"), told("0.3.0", "Failed"));
        let plan = decide(&later, &Upgrades::default(), &said);
        let status = plan.status(&Upgrades::default(), &said);
        let reason = status["versions"]["0.3.0"]["reason"].clone();
        assert_eq!((&reason, plan.count(Phase::Failed)), (&Value::Null, 3), "one is new, and two may fail");
        for again in [1, 2] {
            let told = later[again].told.as_mut().unwrap();
            told.time = "2027-01-16T00:00:00Z".to_owned();
        }
        let plan = decide(&later, &Upgrades::default(), &said);
        let status = plan.status(&Upgrades::default(), &said);
        assert_eq!(status["versions"]["0.3.0"]["state"], "Paused", "three failures that nobody has seen: {status}");
        // A newer version begins anew.
        let newer = super::plan(&members, Offer::Of(&agents(&["0.3.1"])), &Upgrades::default(), &Said::default(), NOW);
        assert_eq!((newer.count(Phase::Failed), newer.changes.len()), (0, 10));
    }
}
