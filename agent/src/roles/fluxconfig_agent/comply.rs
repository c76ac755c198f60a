//! What Flux's conditions and inventories say of a configuration: whether it complies, at which commit, and the same of
//! each of its objects. Pure but for what is remembered from one look to the next.
//!
//! Flux says "in progress" each time it looks again at what it has applied. What it said before of the same revision holds
//! meanwhile, for a minute at most, so that nothing is told where nothing has changed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use types::agent_api::{PART_BYTES, PARTS_OF_AN_OBJECT, compliance};

use super::{
    render::called,
    views::{Condition, FluxKind, View},
};
use crate::roles::objects::{hidden::Hidden, state::bounded};

/// How long what Flux said before holds while it looks again. What failed is tried again for as long as its timeout: while
/// Flux waits for objects that did not get healthy before, it is not unknown how they are.
const HOLD: Duration = Duration::from_secs(60);
/// How much longer than its timeout an attempt may take before it counts as one that does not end.
const OVERDUE: Duration = Duration::from_secs(60);
/// Characters of a condition's message; fewer where a part would be too long.
const MESSAGE_CHARS: usize = 1000;
const MESSAGE_CHARS_MIN: usize = 150;
/// Conditions of an object that are told.
const CONDITIONS_MAX: usize = 6;
/// Objects that a message of Flux names, of which is read.
const NAMED_MAX: usize = 100;
/// Other configurations that apply the same object, of which a message names as many.
const OTHERS_NAMED: usize = 3;

/// Whether something is as it is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compliance {
    /// It is as it is wanted.
    Compliant,
    /// It is not as it is wanted.
    NonCompliant,
    /// It is not known yet.
    Pending,
    /// Flux does not look, because the configuration suspends it.
    Suspended,
}

impl Compliance {
    /// As in properties.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Compliant => compliance::COMPLIANT,
            Self::NonCompliant => compliance::NON_COMPLIANT,
            Self::Pending => compliance::PENDING,
            Self::Suspended => compliance::SUSPENDED,
        }
    }
}

/// What an object says of itself.
fn said(view: &View) -> Compliance {
    let status = |name: &str| view.condition(name).map(|one| one.status.as_str());
    let ready = view.condition("Ready");
    match ready.map(|ready| (ready.status.as_str(), ready.reason.as_str())) {
        _ if view.suspended => Compliance::Suspended,
        _ if view.deleting => Compliance::Pending,
        _ if status("Stalled") == Some("True") && view.observed >= view.generation => Compliance::NonCompliant,
        // A status without a generation is from before the first look; -1 says that no look has ended yet.
        _ if view.observed < view.generation && status("Ready") != Some("False") => Compliance::Pending,
        // It waits for another one, which says itself what is wrong; or it waited for what it had applied, and something new
        // ended that.
        Some(("False", "DependencyNotReady" | "HealthCheckCanceled")) => Compliance::Pending,
        Some(("True", _)) => Compliance::Compliant,
        Some(("False", _)) => Compliance::NonCompliant,
        _ => Compliance::Pending,
    }
}

/// An object and what holds of it.
#[derive(Clone)]
pub struct Judged {
    /// As it was when that was said.
    pub view: Arc<View>,
    /// Whether the object is as it is wanted.
    pub compliance: Compliance,
    /// Why that is so, where the object does not say it: its controller does not come to an end with it.
    pub overdue: Option<String>,
}

/// What was said before, by UID.
#[derive(Default)]
pub struct Memory(HashMap<String, Remembered>);

struct Remembered {
    judged: Judged,
    /// How it was the last time, whatever was told of it.
    last: Arc<View>,
    /// Since when it is being looked at again.
    again: Option<Instant>,
    /// Since when nothing is known of it.
    pending: Option<Instant>,
    /// What an attempt may take that had begun before something else was wanted of the same revision: it may go on first.
    begun: Option<Duration>,
}

impl Memory {
    /// What holds of an object now; `revision` is that of its source.
    pub fn judge(&mut self, view: &Arc<View>, revision: Option<&str>, now: Instant) -> Judged {
        let mut fresh = Judged { view: view.clone(), compliance: said(view), overdue: None };
        if view.kind == FluxKind::Kustomization {
            fresh.compliance = match fresh.compliance {
                // What was applied is not what was pulled.
                Compliance::Compliant if revision.is_some() && view.applied.as_deref() != revision => {
                    Compliance::Pending
                }
                // What failed is not what was pulled.
                Compliance::NonCompliant if revision.is_some() && has_failed_at_another(view, revision) => {
                    Compliance::Pending
                }
                // There is nothing to apply, and the source says why.
                Compliance::NonCompliant
                    if revision.is_none()
                        && view.condition("Ready").is_some_and(|ready| ready.reason == "ArtifactFailed") =>
                {
                    Compliance::Pending
                }
                other => other,
            };
        }
        let pending = (fresh.compliance == Compliance::Pending).then_some(now);
        let Some(known) = self.0.get_mut(&view.uid) else {
            let (judged, last) = (fresh.clone(), view.clone());
            self.0.insert(view.uid.clone(), Remembered { judged, last, again: None, pending, begun: None });
            return fresh;
        };
        // Whatever Flux writes meanwhile, it is the same attempt as long as the same is wanted, and the same is applied.
        let last = &known.last;
        let goes_on = last.generation == view.generation && last.attempted == view.attempted;
        if pending.is_none() || last.attempted != view.attempted {
            known.begun = None;
        } else if !goes_on {
            known.begun = known.pending.and_then(|_| last.timeout.max(known.begun));
        }
        known.pending = pending.map(|now| known.pending.filter(|_| goes_on).unwrap_or(now));
        fresh.overdue =
            known.pending.and_then(|since| overdue(view, now.saturating_duration_since(since), known.begun));
        if fresh.overdue.is_some() {
            fresh.compliance = Compliance::NonCompliant;
        }
        let before = &known.judged;
        let same = before.view.generation == view.generation
            && before.view.attempted == view.attempted
            && before.view.revision == view.revision
            && (view.kind != FluxKind::Kustomization || revision.is_none() || view.attempted.as_deref() == revision);
        let looks_again = fresh.compliance == Compliance::Pending && before.compliance != Compliance::Pending && same;
        let hold = match before.compliance {
            Compliance::NonCompliant => view.timeout.map_or(HOLD, |timeout| timeout + OVERDUE),
            _ => HOLD,
        };
        known.last = view.clone();
        if looks_again && !view.deleting && now < *known.again.get_or_insert(now) + hold {
            return known.judged.clone();
        }
        known.again = None;
        fresh.view = keep_times(&before.view, fresh.view);
        known.judged = fresh.clone();
        fresh
    }

    /// Whether something is being looked at again: it must be judged again soon.
    pub fn holds(&self) -> bool {
        // What is not judged any more does not count for ever.
        self.0.values().any(|one| one.again.is_some_and(|at| at.elapsed() < HOLD * 2))
    }

    /// Forgets all but these.
    pub fn keep(&mut self, is_there: impl Fn(&str) -> bool) {
        self.0.retain(|uid, _| is_there(uid));
    }
}

/// Whether it tried another revision than this one, and failed with it. What fails before that, such as a folder that is not
/// there, is said of the newest one though no attempt is noted.
fn has_failed_at_another(view: &View, revision: Option<&str>) -> bool {
    const IN_AN_ATTEMPT: [&str; 4] = ["BuildFailed", "ReconciliationFailed", "PruneFailed", "HealthCheckFailed"];
    let ready = view.condition("Ready");
    let tried = ready.is_some_and(|ready| IN_AN_ATTEMPT.contains(&ready.reason.as_str()));
    tried && view.attempted.is_some() && view.attempted.as_deref() != revision
}

/// What failed before says nothing while the source has not looked at what is wanted of it now.
pub fn anew(source: Option<&Judged>, mut kustomization: Judged) -> Judged {
    let is_new =
        |source: &Judged| source.compliance == Compliance::Pending && source.view.observed < source.view.generation;
    if kustomization.compliance == Compliance::NonCompliant && source.is_some_and(is_new) {
        kustomization.compliance = Compliance::Pending;
        kustomization.overdue = None;
    }
    kustomization
}

/// The message for an object whose controller has reported no result for `waited`, if that is too long. `begun` is the
/// timeout of an earlier attempt, which the controller may have to end first.
fn overdue(view: &View, waited: Duration, begun: Option<Duration>) -> Option<String> {
    let ready = view.condition("Ready").filter(|ready| ready.status == "False");
    // The controller has said what it waits for: another object, which says itself what is wrong.
    let waits = ready.is_some_and(|ready| ["DependencyNotReady", "ArtifactFailed"].contains(&ready.reason.as_str()));
    let longest = view.timeout.map(|timeout| begun.map_or(timeout, |begun| timeout.max(begun)));
    let timeout = longest.filter(|timeout| !view.deleting && !waits && waited > *timeout + OVERDUE)?;
    let (controller, why, what) = match view.kind {
        FluxKind::Kustomization => (
            "kustomize-controller",
            "it ends each time for lack of memory, or this one waits for its turn behind others",
            "Raise the setting kustomize-controller.resources.limits.memory of the extension flux, or kustomize-controller.concurrent",
        ),
        _ => (
            "source-controller",
            "it ends each time for lack of memory, as with a repository that has very large files",
            "Take large files out of the repository, or raise the setting source-controller.resources.limits.memory of the extension flux",
        ),
    };
    Some(format!(
        "{controller} has not come to an end with it within {} seconds, which is more than its timeout of {} seconds. Either {controller} does not run, or {why}; `kubectl -n flux-system get pods` shows whether it runs. {what}",
        (timeout + OVERDUE).as_secs(),
        timeout.as_secs()
    ))
}

/// A condition that says the same as before says it since then.
fn keep_times(before: &View, view: Arc<View>) -> Arc<View> {
    let says_same = |one: &Condition, other: &Condition| {
        (&one.name, &one.status, &one.reason, &one.message)
            == (&other.name, &other.status, &other.reason, &other.message)
    };
    let old =
        |one: &Condition| before.conditions.iter().find(|other| says_same(one, other)).map(|other| other.time.clone());
    let times: Vec<_> = view.conditions.iter().map(old).collect();
    let is_other = |(one, time): (&Condition, &Option<String>)| time.as_ref().is_some_and(|time| *time != one.time);
    if !view.conditions.iter().zip(&times).any(is_other) {
        return view;
    }
    let mut view = (*view).clone();
    for (one, time) in view.conditions.iter_mut().zip(times) {
        if let Some(time) = time {
            one.time = time;
        }
    }
    Arc::new(view)
}

/// How many objects a configuration has, and how they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// All of them.
    pub total: usize,
    /// Objects that are compliant.
    pub compliant: usize,
    /// Objects that are not compliant.
    pub non_compliant: usize,
    /// Objects of which it is not known yet.
    pub pending: usize,
}

/// What is told of a configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Of all of it.
    pub compliance: Compliance,
    /// What is wrong first.
    pub error: Option<String>,
    /// The revision that was pulled.
    pub commit: Option<String>,
    /// When it came.
    pub updated: Option<String>,
    /// Of its objects.
    pub counts: Counts,
    /// The first that do not comply, as `Kind namespace/name`.
    pub failing: Vec<String>,
    /// What is told of each part, by name.
    pub parts: BTreeMap<String, Value>,
}

/// What a report is made from.
pub struct Material<'a> {
    /// How the source of the configuration fares, if it is there.
    pub source: Option<&'a Judged>,
    /// How each of its kustomizations fares that is there.
    pub kustomizations: &'a [Judged],
    /// How many kustomizations are wanted.
    pub wanted: usize,
    /// A chart that was applied, by namespace and name.
    pub chart: &'a dyn Fn(&str, &str) -> Option<Judged>,
    /// Values of protected settings, which no text may show.
    pub hidden: &'a Hidden,
    /// Ids of objects that are applied more than once, and by what else.
    pub shared: &'a [(String, String)],
}

/// Ids of an inventory: `<namespace>_<name>_<group>_<kind>`, in which a colon of a name is two underscores.
fn parse(id: &str) -> Option<(&str, String, &str, &str)> {
    let (rest, kind) = id.rsplit_once('_')?;
    let (rest, group) = rest.rsplit_once('_')?;
    let (namespace, name) = rest.split_once('_')?;
    Some((namespace, name.replace("__", ":"), group, kind))
}

fn name_of(view: &View) -> String {
    let (group, _, kind, _) = view.kind.names();
    format!("{}_{}_{group}_{kind}", view.namespace, view.name)
}

fn conditions(view: &View, hidden: &Hidden, chars: usize) -> Value {
    let one = |one: &Condition| {
        json!({
            "type": one.name, "status": one.status, "reason": bounded(&one.reason, 100),
            "message": bounded(&hidden.hide(&one.message), chars), "lastTransitionTime": one.time,
        })
    };
    Value::Array(view.conditions.iter().take(CONDITIONS_MAX).map(one).collect())
}

/// What is told of one of Flux's objects.
fn part(judged: &Judged, applied_by: Option<(&str, &str)>, hidden: &Hidden) -> Value {
    let view = &judged.view;
    let made = |chars| {
        let mut value = json!({
            "name": view.name, "namespace": view.namespace, "kind": view.kind.names().2,
                "complianceState": judged.compliance.as_str(), "statusConditions": conditions(view, hidden, chars),
        });
        if let Some((namespace, name)) = applied_by {
            value["appliedBy"] = json!({ "namespace": namespace, "name": name });
        }
        if let Some(helm) = &view.helm {
            value["helmReleaseProperties"] = helm.clone();
        }
        value
    };
    let value = made(MESSAGE_CHARS);
    if value.to_string().len() <= PART_BYTES { value } else { made(MESSAGE_CHARS_MIN) }
}

/// Objects that a message of Flux names, `Kind/namespace/name` or `Kind/name`.
fn named(message: &str) -> Vec<(&str, &str, &str)> {
    let ends = |c: char| c.is_whitespace() || matches!(c, ',' | ';' | '\'' | '"' | '[' | ']' | '(' | ')');
    let words = message.split(ends).filter(|word| word.chars().next().is_some_and(|c| c.is_ascii_uppercase()));
    let one = |word: &'_ str| -> Option<(usize, usize)> {
        let first = word.find('/')?;
        let second = word[first + 1..].find('/').map_or(first, |at| first + 1 + at);
        Some((first, second))
    };
    let split = words.filter_map(|word| {
        let word = word.trim_end_matches([':', '.']);
        let (first, second) = one(word)?;
        let namespace = if first == second { "" } else { &word[first + 1..second] };
        Some((&word[..first], namespace, &word[second + 1..]))
    });
    split.take(NAMED_MAX).collect()
}

/// What holds of the objects that a kustomization applied, but for those that its message names: where they were all
/// applied and some do not get healthy, the others comply.
fn of_objects(judged: &Judged) -> (Compliance, Vec<(&str, &str, &str)>) {
    let ready = judged.view.condition("Ready").filter(|_| judged.compliance == Compliance::NonCompliant);
    match ready {
        Some(ready) if ready.reason == "HealthCheckFailed" => {
            let named = named(&ready.message);
            let rest = if named.is_empty() { Compliance::NonCompliant } else { Compliance::Compliant };
            (rest, named)
        }
        _ => (judged.compliance, Vec::new()),
    }
}

/// Whether Flux may not write the namespace of a kustomization, which it had found by another name in the repository: with the
/// rights of a cluster it may.
fn is_renamed_namespace(view: &View, message: &str) -> bool {
    let refused = format!("Namespace/{} dry-run failed", view.namespace);
    view.kind == FluxKind::Kustomization && message.contains(&refused) && message.contains("forbidden")
}

fn error_of(judged: &Judged, hidden: &Hidden) -> Option<String> {
    let failing = judged.compliance == Compliance::NonCompliant;
    let (kind, name) = (judged.view.kind.names().2, &judged.view.name);
    if let Some(why) = &judged.overdue {
        return Some(format!("{kind} {name}: {why}"));
    }
    let condition = judged.view.condition("Ready").filter(|_| failing)?;
    let mut text = bounded(&format!("{kind} {name}: {}", hidden.hide(&condition.message)), 2 * MESSAGE_CHARS);
    // A source's own words do not tell which space or memory that is.
    let is_source = FluxKind::SOURCES.contains(&judged.view.kind);
    if is_source && condition.message.contains("no space left on device") {
        text += "; the repository is larger than source-controller may work with: make it smaller, or raise the setting source-controller.workSize of the extension flux";
    } else if is_source && condition.message.contains("is too large: source-controller takes files of") {
        text +=
            "; make it smaller, or raise the setting source-controller.resources.limits.memory of the extension flux";
    } else if is_renamed_namespace(&judged.view, &condition.message) {
        text += "; in scope namespace every object is put into the configuration's own namespace, so that an object of kind Namespace becomes that one, whatever its name: leave such objects out, or use scope cluster";
    }
    Some(text)
}

impl Material<'_> {
    /// What the gateway is told of the configuration, and what the custom resource shows.
    pub fn report(&self, suspended: bool, failing_max: usize) -> Report {
        let mut report = Report {
            compliance: Compliance::Pending,
            error: None,
            commit: None,
            updated: None,
            counts: Counts::default(),
            failing: Vec::new(),
            parts: BTreeMap::new(),
        };
        let mut worst = Vec::new();
        if let Some(source) = self.source {
            report.commit = source.view.revision.clone();
            report.updated = source.view.updated.clone();
            report.error = error_of(source, self.hidden);
            worst.push(source.compliance);
            report.parts.insert(name_of(&source.view), part(source, None, self.hidden));
        }
        for one in self.kustomizations {
            worst.push(one.compliance);
            report.error = report.error.take().or_else(|| error_of(one, self.hidden));
            report.parts.insert(name_of(&one.view), part(one, None, self.hidden));
        }
        for one in self.kustomizations {
            self.objects(one, &mut report, &mut worst, failing_max);
        }
        let here = self.kustomizations.len() >= self.wanted && self.source.is_some();
        report.compliance = match () {
            () if suspended => Compliance::Suspended,
            () if worst.contains(&Compliance::NonCompliant) => Compliance::NonCompliant,
            () if !here || worst.contains(&Compliance::Pending) => Compliance::Pending,
            () if worst.contains(&Compliance::Suspended) => Compliance::Suspended,
            () => Compliance::Compliant,
        };
        if let Some((id, other)) = self.shared.first() {
            let (count, text) = (self.shared.len(), parse(id).map(|(ns, name, _, kind)| format!("{kind} {ns}/{name}")));
            let text = text.unwrap_or_else(|| id.clone());
            let shared = match count {
                1 => format!(
                    "{text} is also applied by {other}, and each undoes what the other does; leave it in one place"
                ),
                _ => format!(
                    "{count} objects are applied more than once, and each undoes what the other does, such as {text}, which is also applied by {other}; leave each in one place"
                ),
            };
            report.error = report.error.take().or(Some(shared));
        }
        report
    }

    fn objects(&self, judged: &Judged, report: &mut Report, worst: &mut Vec<Compliance>, failing_max: usize) {
        let view = &judged.view;
        let applied_by = (view.namespace.as_str(), view.name.as_str());
        let (rest, named) = of_objects(judged);
        for id in view.inventory.iter() {
            let Some((namespace, name, group, kind)) = parse(id) else { continue };
            let chart = (group == FluxKind::HelmRelease.names().0 && kind == "HelmRelease")
                .then(|| (self.chart)(namespace, &name))
                .flatten();
            let is_named =
                |(k, ns, n): &(&str, &str, &str)| *k == kind && *n == name && (*ns == namespace || ns.is_empty());
            let compliance = match &chart {
                Some(chart) => chart.compliance,
                None if named.iter().any(is_named) => Compliance::NonCompliant,
                None => rest,
            };
            report.counts.total += 1;
            match compliance {
                Compliance::Compliant => report.counts.compliant += 1,
                Compliance::NonCompliant => report.counts.non_compliant += 1,
                Compliance::Pending => report.counts.pending += 1,
                Compliance::Suspended => {}
            }
            if compliance == Compliance::NonCompliant && report.failing.len() < failing_max {
                report.failing.push(bounded(&format!("{kind} {namespace}/{name}"), 300));
            }
            if report.parts.len() >= PARTS_OF_AN_OBJECT {
                continue;
            }
            let value = match chart {
                Some(chart) => {
                    worst.push(chart.compliance);
                    report.error = report.error.take().or_else(|| error_of(&chart, self.hidden));
                    part(&chart, Some(applied_by), self.hidden)
                }
                None => {
                    let mut value = json!({
                        "name": name, "namespace": namespace, "kind": kind, "complianceState": compliance.as_str(),
                        "appliedBy": { "namespace": view.namespace, "name": view.name },
                    });
                    if let Some((_, other)) = self.shared.iter().find(|(one, _)| one == id) {
                        value["statusConditions"] = json!([{
                            "type": "Shared", "status": "True", "reason": "AppliedTwice",
                            "message": format!("it is also applied by {other}"),
                        }]);
                    }
                    value
                }
            };
            report.parts.insert(id.clone(), value);
        }
    }
}

/// Objects that are applied more than once, by configuration: id, and by what else it is applied as a text, `max` of each.
/// What is on its way out applies nothing.
pub fn shared(kustomizations: &[Arc<View>], max: usize) -> HashMap<String, Vec<(String, String)>> {
    /// A configuration and a kustomization.
    type By<'a> = (&'a str, &'a str);
    let mut all = HashMap::<&str, (By<'_>, BTreeSet<By<'_>>)>::new();
    for view in kustomizations.iter().filter(|view| !view.deleting && view.replaced_by.is_none()) {
        let Some(owner) = view.owner.as_deref() else { continue };
        let by = (owner, view.name.as_str());
        for id in view.inventory.iter() {
            let (first, more) = all.entry(id).or_insert((by, BTreeSet::new()));
            if *first != by {
                more.insert(by);
            }
        }
    }
    let several: BTreeMap<_, _> = all.into_iter().filter(|(_, (_, more))| !more.is_empty()).collect();
    let mut found = HashMap::<String, Vec<(String, String)>>::new();
    for (id, (first, mut by)) in several {
        by.insert(first);
        let owners: BTreeSet<&str> = by.iter().map(|(owner, _)| *owner).collect();
        for one in &owners {
            let list = found.entry((*one).to_owned()).or_default();
            if list.len() >= max {
                continue;
            }
            let own: Vec<_> = by.iter().filter(|(owner, _)| owner == one).map(|(_, name)| *name).collect();
            let other = match owners.len() {
                1 => format!(
                    "another kustomization of the same configuration ({})",
                    listed(own.into_iter().map(str::to_owned))
                ),
                _ => listed(owners.iter().filter(|other| *other != one).map(|other| format!("the {}", called(other)))),
            };
            list.push((id.to_owned(), other));
        }
    }
    found
}

/// The first of several in a text.
fn listed(all: impl Iterator<Item = String>) -> String {
    let mut texts: Vec<_> = all.take(OTHERS_NAMED + 1).collect();
    if texts.len() > OTHERS_NAMED {
        texts.truncate(OTHERS_NAMED);
        texts.push("others".to_owned());
    }
    let last = texts.pop().unwrap_or_default();
    if texts.is_empty() { last } else { format!("{} and {last}", texts.join(", ")) }
}

#[cfg(test)]
mod tests {
    use kube::api::DynamicObject;

    use super::{super::render::OWNER, *};

    fn view(kind: FluxKind, name: &str, value: Value) -> Arc<View> {
        let mut object = DynamicObject::new(name, &kind.resource()).within("team");
        object.metadata.uid = Some(format!("uid-{name}"));
        object.metadata.generation = Some(1);
        object.metadata.labels = Some([(OWNER.to_owned(), "web".to_owned())].into());
        object.data = value;
        Arc::new(View::of(kind, &object).unwrap())
    }

    fn ready(status: &str, reason: &str, message: &str, time: &str) -> Value {
        json!([{"type": "Ready", "status": status, "reason": reason, "message": message, "lastTransitionTime": time}])
    }

    fn kustomization(status: &str, reason: &str, message: &str, ids: &[&str]) -> Arc<View> {
        let entries: Vec<_> = ids.iter().map(|id| json!({"id": id, "v": "v1"})).collect();
        view(
            FluxKind::Kustomization,
            "web-apps",
            json!({"spec": {}, "status": {
            "observedGeneration": 1, "conditions": ready(status, reason, message, "t1"),
            "lastAppliedRevision": "main@sha1:a", "lastAttemptedRevision": "main@sha1:a",
            "inventory": {"entries": entries}}}),
        )
    }

    fn source(status: &str, message: &str) -> Arc<View> {
        view(
            FluxKind::GitRepository,
            "web",
            json!({"spec": {}, "status": {
            "observedGeneration": 1, "conditions": ready(status, "R", message, "t1"),
            "artifact": {"revision": "main@sha1:a", "lastUpdateTime": "2026-11-27T10:00:00Z"}}}),
        )
    }

    fn report(source: &Judged, kustomizations: &[Judged], hidden: &Hidden) -> Report {
        let material =
            Material { source: Some(source), kustomizations, wanted: 1, chart: &|_, _| None, hidden, shared: &[] };
        material.report(false, 10)
    }

    const MAIN: Option<&str> = Some("main@sha1:a");

    #[test]
    fn g6_conditions_say_whether_an_object_complies() {
        let of = |generation: i64, data: Value| {
            let mut view = (*view(FluxKind::GitRepository, "web", data)).clone();
            view.generation = generation;
            said(&view)
        };
        let status = |observed: i64, conditions: Value| json!({"spec": {}, "status": {"observedGeneration": observed, "conditions": conditions}});
        assert_eq!(of(1, json!({"spec": {}})), Compliance::Pending);
        assert_eq!(of(1, status(1, ready("True", "R", "", ""))), Compliance::Compliant);
        assert_eq!(of(2, status(1, ready("True", "R", "", ""))), Compliance::Pending, "of an older generation");
        assert_eq!(of(1, status(-1, ready("False", "GitOperationFailed", "", ""))), Compliance::NonCompliant);
        assert_eq!(of(1, status(1, ready("Unknown", "Progressing", "", ""))), Compliance::Pending);
        assert_eq!(of(1, status(1, ready("False", "DependencyNotReady", "", ""))), Compliance::Pending);
        let stalled = json!([{"type": "Stalled", "status": "True"}, {"type": "Ready", "status": "Unknown"}]);
        assert_eq!(of(1, status(1, stalled)), Compliance::NonCompliant);
        let suspended = json!({"spec": {"suspend": true}, "status": {"observedGeneration": 1, "conditions": ready("False", "R", "", "")}});
        assert_eq!(of(1, suspended), Compliance::Suspended);
    }

    #[test]
    fn g6_nothing_changes_while_flux_looks_again() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        let good = kustomization("True", "ReconciliationSucceeded", "Applied", &[]);
        assert_eq!(memory.judge(&good, MAIN, now).compliance, Compliance::Compliant);
        let again = kustomization("Unknown", "Progressing", "in progress", &[]);
        let held = memory.judge(&again, MAIN, now);
        assert_eq!((held.compliance, &held.view), (Compliance::Compliant, &good));
        assert!(memory.holds());
        // Ready again, since another second: told as before.
        let mut later = (*good).clone();
        later.conditions[0].time = "t2".to_owned();
        let ready = memory.judge(&Arc::new(later), MAIN, now);
        assert_eq!((ready.compliance, &ready.view), (Compliance::Compliant, &good));
        assert!(!memory.holds());
        // After `HOLD` it is pending.
        memory.judge(&again, MAIN, now);
        assert_eq!(memory.judge(&again, MAIN, now + HOLD).compliance, Compliance::Pending);
        // A new commit is pending at once, also before the kustomization has seen it.
        memory.judge(&good, MAIN, now);
        assert_eq!(memory.judge(&good, Some("main@sha1:b"), now).compliance, Compliance::Pending);
    }

    #[test]
    fn g6_source_that_never_ends_does_not_comply_and_says_why() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        let progress = |message: &str| {
            let status = json!({"observedGeneration": -1, "conditions": ready("Unknown", "Progressing", message, "t")});
            view(FluxKind::GitRepository, "web", json!({"spec": {"timeout": "30s"}, "status": status}))
        };
        let bound = Duration::from_secs(30) + OVERDUE;
        assert_eq!(memory.judge(&progress("begins"), None, now).compliance, Compliance::Pending);
        // What is written meanwhile is no end.
        assert_eq!(memory.judge(&progress("begins again"), None, now + bound).compliance, Compliance::Pending);
        let late = now + bound + Duration::from_secs(1);
        let stuck = memory.judge(&progress("begins"), None, late);
        assert_eq!(stuck.compliance, Compliance::NonCompliant);
        let told = report(&stuck, &[], &Hidden::default());
        assert_eq!(told.compliance, Compliance::NonCompliant);
        assert!(told.error.unwrap().contains("more than its timeout of 30 seconds"));
        // The time begins anew with another generation, and does not count for a source that has come to an end.
        let mut other = (*progress("begins")).clone();
        other.generation = 2;
        assert_eq!(memory.judge(&Arc::new(other), None, late).compliance, Compliance::Pending);
        assert_eq!(memory.judge(&source("True", ""), None, late + bound * 2).compliance, Compliance::Compliant);
    }

    fn timed(seconds: u64, status: &str, reason: &str) -> Arc<View> {
        let mut view = (*kustomization(status, reason, "it is so", &[])).clone();
        view.timeout = Some(Duration::from_secs(seconds));
        Arc::new(view)
    }

    #[test]
    fn g6_what_failed_is_said_while_it_is_tried_again_for_as_long_as_that_may_take() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        let failed = timed(600, "False", "HealthCheckFailed");
        assert_eq!(memory.judge(&failed, MAIN, now).compliance, Compliance::NonCompliant);
        let again = timed(600, "Unknown", "Progressing");
        for seconds in [1, 60, 300, 600] {
            let held = memory.judge(&again, MAIN, now + Duration::from_secs(seconds));
            assert_eq!((held.compliance, &held.view), (Compliance::NonCompliant, &failed), "{seconds}");
        }
        // It got healthy, and that is said at once.
        let good = timed(600, "True", "ReconciliationSucceeded");
        assert_eq!(memory.judge(&good, MAIN, now + Duration::from_secs(601)).compliance, Compliance::Compliant);
        // A new commit is judged anew.
        memory.judge(&failed, MAIN, now);
        assert_eq!(memory.judge(&again, Some("main@sha1:b"), now).compliance, Compliance::Pending);
    }

    /// Who shortens the timeout of what is stuck was told that the controller does not run.
    #[test]
    fn g6_shorter_timeout_counts_once_the_attempt_of_before_may_have_ended() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        let mut judged_after = |seconds: u64, timeout: u64, generation: i64| {
            let mut view = (*timed(timeout, "Unknown", "Progressing")).clone();
            view.generation = generation;
            memory.judge(&Arc::new(view), MAIN, now + Duration::from_secs(seconds))
        };
        assert_eq!(judged_after(0, 600, 1).compliance, Compliance::Pending);
        for seconds in [30, 200, 600] {
            assert_eq!(judged_after(seconds, 60, 2).compliance, Compliance::Pending, "{seconds}");
        }
        let stuck = judged_after(30 + 600 + OVERDUE.as_secs() + 1, 60, 2);
        assert_eq!(stuck.compliance, Compliance::NonCompliant);
        assert!(stuck.overdue.unwrap().contains("600 seconds"));
    }

    #[test]
    fn g6_what_failed_before_says_nothing_of_what_is_wanted_now() {
        let now = Instant::now();
        let of = |reason: &str, revision: &str| {
            Memory::default().judge(&timed(60, "False", reason), Some(revision), now).compliance
        };
        assert_eq!(of("BuildFailed", "main@sha1:a"), Compliance::NonCompliant);
        assert_eq!(of("BuildFailed", "main@sha1:b"), Compliance::Pending, "the new one was not tried yet");
        for revision in ["main@sha1:a", "main@sha1:b"] {
            assert_eq!(of("HealthCheckCanceled", revision), Compliance::Pending, "something new ended it");
        }
        assert_eq!(of("ArtifactFailed", "main@sha1:b"), Compliance::NonCompliant, "the folder is not there");
        // Another branch is wanted, and the source has not looked.
        let failed = Memory::default().judge(&timed(60, "False", "BuildFailed"), MAIN, now);
        let told = |generation: i64, status: &str| {
            let mut view = (*source(status, "")).clone();
            view.generation = generation;
            let pulled = Memory::default().judge(&Arc::new(view), None, now);
            let one = anew(Some(&pulled), failed.clone());
            report(&pulled, &[one], &Hidden::default()).compliance
        };
        assert_eq!(told(1, "True"), Compliance::NonCompliant);
        assert_eq!(told(2, "True"), Compliance::Pending);
        assert_eq!(told(2, "False"), Compliance::NonCompliant, "the source does not comply itself");
        assert_eq!(anew(None, failed).compliance, Compliance::NonCompliant);
    }

    #[test]
    fn g6_kustomization_that_never_ends_does_not_comply_unless_it_waits_for_another_one() {
        let now = Instant::now();
        let bound = Duration::from_secs(30) + OVERDUE;
        let late = now + bound + Duration::from_secs(1);
        let after = |status: &str, reason: &str| {
            let mut memory = Memory::default();
            let view = timed(30, status, reason);
            assert_eq!(memory.judge(&view, MAIN, now).compliance, Compliance::Pending, "{reason}");
            assert_eq!(memory.judge(&view, MAIN, now + bound).compliance, Compliance::Pending, "{reason}");
            memory.judge(&view, MAIN, late)
        };
        assert_eq!(after("False", "DependencyNotReady").compliance, Compliance::Pending);
        let stuck = after("Unknown", "Progressing");
        let told = report(&Memory::default().judge(&source("True", ""), None, now), &[stuck], &Hidden::default());
        assert_eq!(told.compliance, Compliance::NonCompliant);
        let error = told.error.unwrap();
        assert!(
            error.contains("Either kustomize-controller does not run") && error.contains("of 30 seconds"),
            "{error}"
        );
        // Each new commit begins a new attempt, with its own time.
        let mut memory = Memory::default();
        memory.judge(&timed(30, "Unknown", "Progressing"), MAIN, now);
        let mut next = (*timed(30, "Unknown", "Progressing")).clone();
        next.attempted = Some("main@sha1:b".to_owned());
        let next = Arc::new(next);
        assert_eq!(memory.judge(&next, Some("main@sha1:b"), late).compliance, Compliance::Pending);
        assert_eq!(memory.judge(&next, Some("main@sha1:b"), late + bound).compliance, Compliance::Pending);
    }

    #[test]
    fn g6_source_without_room_says_which_setting_gives_it() {
        let large = "unable to clone: a file of 65 MiB is too large: source-controller takes files of at most 64 MiB";
        for (message, setting) in [
            ("failed to checkout: write /tmp/x: no space left on device", "source-controller.workSize"),
            (large, "source-controller.resources.limits.memory"),
        ] {
            let failed = Memory::default().judge(&source("False", message), None, Instant::now());
            let error = report(&failed, &[], &Hidden::default()).error.unwrap();
            assert!(error.contains(message) && error.contains(setting), "{error}");
        }
    }

    #[test]
    fn g6_objects_are_told_with_who_applied_them() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        let ids = ["team_one_apps_Deployment", "_system__x_rbac.authorization.k8s.io_ClusterRole", "bad"];
        let good = memory.judge(&kustomization("True", "R", "", &ids), MAIN, now);
        let pulled = memory.judge(&source("True", ""), None, now);
        let told = report(&pulled, std::slice::from_ref(&good), &Hidden::default());
        assert_eq!((told.compliance, told.commit.as_deref(), &told.error), (Compliance::Compliant, MAIN, &None));
        assert_eq!(told.counts, Counts { total: 2, compliant: 2, ..Counts::default() });
        assert_eq!(told.parts.len(), 4);
        assert_eq!(
            told.parts["team_one_apps_Deployment"],
            json!({"name": "one", "namespace": "team", "kind": "Deployment",
            "complianceState": "Compliant", "appliedBy": {"namespace": "team", "name": "web-apps"}})
        );
        assert_eq!(told.parts["_system__x_rbac.authorization.k8s.io_ClusterRole"]["name"], "system:x");
        assert_eq!(
            told.parts["team_web_source.toolkit.fluxcd.io_GitRepository"]["statusConditions"][0]["type"],
            "Ready"
        );
    }

    #[test]
    fn g6_health_check_names_the_objects_that_do_not_comply() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        let ids = ["team_one_apps_Deployment", "team_two_apps_Deployment"];
        let message = "health check failed after 30s: timeout waiting for: [Deployment/team/two status: 'InProgress']";
        let bad = memory.judge(&kustomization("False", "HealthCheckFailed", message, &ids), MAIN, now);
        let pulled = memory.judge(&source("True", ""), None, now);
        let told = report(&pulled, &[bad], &Hidden::default());
        assert_eq!(told.compliance, Compliance::NonCompliant);
        assert_eq!(told.counts, Counts { total: 2, compliant: 1, non_compliant: 1, pending: 0 });
        assert_eq!(told.failing, ["Deployment team/two"]);
        assert!(told.error.unwrap().starts_with("Kustomization web-apps: health check failed"));
    }

    #[test]
    fn g6_failing_condition_is_told_without_secrets() {
        let (mut memory, now) = (Memory::default(), Instant::now());
        let hidden = Hidden::of(&[("httpsKey".to_owned(), "hunter22".to_owned())].into());
        let failing = memory.judge(&source("False", "authentication failed for u:hunter22"), None, now);
        let told = report(&failing, &[], &hidden);
        assert_eq!(told.error.as_deref(), Some("GitRepository web: authentication failed for u:[protected]"));
        assert!(!told.parts.values().any(|part| part.to_string().contains("hunter22")));
        assert_eq!(told.compliance, Compliance::NonCompliant);
        let long = memory.judge(&source("False", &"\"ä\n".repeat(5000)), None, now);
        let told = report(&long, &[], &hidden);
        assert!(told.parts.values().all(|part| part.to_string().len() <= PART_BYTES));
    }

    #[test]
    fn g6_charts_are_told_with_their_own_conditions() {
        let chart = view(
            FluxKind::HelmRelease,
            "shop",
            json!({"spec": {}, "status": {"observedGeneration": 1,
            "conditions": ready("False", "InstallFailed", "no such chart", "t"), "helmChart": "team/team-shop",
            "failures": 3, "installFailures": 1, "history": [{"version": 4}]}}),
        );
        let (mut memory, now) = (Memory::default(), Instant::now());
        let chart = memory.judge(&chart, None, now);
        let good =
            memory.judge(&kustomization("True", "R", "", &["team_shop_helm.toolkit.fluxcd.io_HelmRelease"]), MAIN, now);
        let pulled = memory.judge(&source("True", ""), None, now);
        let told = Material {
            source: Some(&pulled),
            kustomizations: &[good],
            wanted: 1,
            chart: &|_, _| Some(chart.clone()),
            hidden: &Hidden::default(),
            shared: &[],
        }
        .report(false, 10);
        assert_eq!(told.compliance, Compliance::NonCompliant);
        let part = &told.parts["team_shop_helm.toolkit.fluxcd.io_HelmRelease"];
        assert_eq!(
            part["helmReleaseProperties"],
            json!({"lastRevisionApplied": 4, "failureCount": 3,
            "installFailureCount": 1, "helmChartRef": {"namespace": "team", "name": "team-shop"}})
        );
        assert_eq!(
            (&part["complianceState"], &part["appliedBy"]["name"]),
            (&json!("Non-Compliant"), &json!("web-apps"))
        );
    }

    #[test]
    fn g6_object_of_two_configurations_is_told_to_both() {
        let ids = ["team_one_apps_Deployment", "team_two_apps_Deployment"];
        let first = kustomization("True", "R", "", &ids);
        let mut second = (*kustomization("True", "R", "", &ids[1..])).clone();
        second.owner = Some("shop".to_owned());
        let found = shared(&[first.clone(), Arc::new(second)], 5);
        assert_eq!(found["web"], [("team_two_apps_Deployment".to_owned(), "the configuration shop".to_owned())]);
        assert_eq!(found["shop"], [("team_two_apps_Deployment".to_owned(), "the configuration web".to_owned())]);
        let (mut memory, now) = (Memory::default(), Instant::now());
        let (good, pulled) = (memory.judge(&first, MAIN, now), memory.judge(&source("True", ""), None, now));
        let told = Material {
            source: Some(&pulled),
            kustomizations: &[good],
            wanted: 1,
            chart: &|_, _| None,
            hidden: &Hidden::default(),
            shared: &found["web"],
        }
        .report(false, 10);
        let said = told.error.unwrap();
        assert!(said.starts_with("Deployment team/two is also applied by the configuration shop, and each"), "{said}");
        assert_eq!(told.parts["team_two_apps_Deployment"]["statusConditions"][0]["type"], "Shared");
    }

    #[test]
    fn g6_object_of_several_configurations_is_told_with_all_others() {
        let ids = ["team_one_apps_Deployment", "team_two_apps_Deployment"];
        let of = |owner: &str| {
            let mut one = (*kustomization("True", "R", "", &ids)).clone();
            (one.owner, one.name) = (Some(owner.to_owned()), format!("{owner}-apps"));
            Arc::new(one)
        };
        let found = shared(&["a", "b", "c"].map(of), 5);
        for (owner, others) in [("a", ["b", "c"]), ("b", ["a", "c"]), ("c", ["a", "b"])] {
            let said = others.map(|one| format!("the configuration {one}")).join(" and ");
            assert_eq!(found[owner], ids.map(|id| (id.to_owned(), said.clone())), "{owner}");
        }
        // Two kustomizations of one configuration, of which one is on its way out at last.
        let [first, second] = ["a", "a"].map(of);
        let mut second = (*second).clone();
        second.name = "a-infra".to_owned();
        let found = shared(&[first.clone(), Arc::new(second.clone())], 5);
        assert_eq!(found["a"][0].1, "another kustomization of the same configuration (a-apps and a-infra)");
        second.replaced_by = Some("a-apps".to_owned());
        assert!(shared(&[first, Arc::new(second)], 5).is_empty());
        let many = shared(&["a", "b", "c", "d", "e", "f"].map(of), 1);
        assert_eq!(many["a"].len(), 1);
        assert!(many["a"][0].1.ends_with("the configuration d and others"), "{}", many["a"][0].1);
    }

    #[test]
    fn g7_namespace_that_kustomize_renamed_is_explained() {
        let refused = "Namespace/team dry-run failed (Forbidden): namespaces \"team\" is forbidden: User \"system:serviceaccount:team:flux-applier\" cannot patch";
        let mut memory = Memory::default();
        let mut said = |message: &str| {
            let judged =
                memory.judge(&kustomization("False", "ReconciliationFailed", message, &[]), None, Instant::now());
            error_of(&judged, &Hidden::default()).unwrap()
        };
        assert!(said(refused).contains("in scope namespace"));
        assert!(!said(&refused.replace("team", "other")).contains("in scope namespace"));
    }
}
