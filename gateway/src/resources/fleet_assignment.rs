//! Fleet assignments: one resource for many clusters, by their tags: `Towline.Fleet/assignments` (docs/features.md G13).
//! An assignment lies at the subscription or the resource group whose clusters it is for, so that it reaches no further
//! than the roles of who wrote it. The gateway makes the resource of its template in each of these clusters
//! ([`crate::rollout`]), also in those that come later, and takes it away where the tags do not match any more.
//!
//! A template with `existing` makes nothing: it gives a version to the extensions of its name that are there already, whoever
//! made them, and leaves them there (`towline extension rollout`; docs/features.md E14).

pub mod members;

use std::collections::{HashMap, HashSet};

use futures_util::future::BoxFuture;
use http::StatusCode;
use serde_json::{Map, Value, json};
use types::api::{
    ErrorDetail, ResourceId,
    id::{RESOURCE_GROUPS, SUBSCRIPTIONS, fold},
};

use self::members::{ListQuery, MemberList, State};
use super::{
    Acting, Kind, Place, Showing, Writing, connected_cluster, extension, flux_configuration, followed,
    grounds::Grounds,
    schema::{self, Property, Type},
};
use crate::{
    api_error::{ApiError, QUOTA_EXCEEDED},
    control::Control,
    identity::Caller,
    resources::filter,
    store::resources::Stored,
    stored::{properties, properties_mut},
};

/// The kind of fleet assignments.
pub struct FleetAssignments;

/// The full type.
pub const NAME: &str = "Towline.Fleet/assignments";
/// The work that keeps up with an assignment, and the one that ends it.
pub const ROLLOUT: &str = "fleet-rollout";
/// The same of its deletion.
pub const WITHDRAWAL: &str = "fleet-withdrawal";
/// What a template may be of.
pub const TEMPLATES: &[&str] = &[flux_configuration::NAME, extension::NAME];
/// Assignments at one scope at most.
const AT_A_SCOPE: u32 = 100;
/// The member of the body that nobody is shown.
const MEMBER: &str = "fleet";
/// The action that lists clusters.
const LIST: &str = "listClusters";

const SELECTOR: &[Property] =
    &[Property::new("tags", Type::Tags).required(), Property::new("clusters", Type::List(&Type::Checked(cluster_id)))];
const TEMPLATE: &[Property] = &[
    Property::new("type", Type::Words(TEMPLATES)).required(),
    Property::new("name", Type::Text).required(),
    Property::new("properties", Type::Json).required(),
    Property::new("existing", Type::Bool),
];
const WAVES: &[Property] = &[
    Property::new("maxConcurrentPercent", Type::Number(1, 100)).or_number(100),
    Property::new("maxFailures", Type::Count),
    Property::new("maxFailuresPercent", Type::Number(0, 100)),
    Property::new("paused", Type::Bool).or_bool(false),
];
const COUNTS: &[Property] = &[
    Property::read_only("matched", Type::Count),
    Property::read_only("applied", Type::Count),
    Property::read_only("compliant", Type::Count),
    Property::read_only("nonCompliant", Type::Count),
    Property::read_only("suspended", Type::Count),
    Property::read_only("failed", Type::Count),
    Property::read_only("pending", Type::Count),
];
const FAILURE: &[Property] = &[
    Property::read_only("id", Type::Text),
    Property::read_only("state", Type::Text),
    Property::read_only("code", Type::Text),
    Property::read_only("message", Type::Text),
];
const PROPERTIES: &[Property] = &[
    Property::new("selector", Type::Object(SELECTOR)).required(),
    Property::new("template", Type::Object(TEMPLATE)).required(),
    Property::new("rollout", Type::Object(WAVES)).merged(),
    Property::read_only("counts", Type::Object(COUNTS)),
    Property::read_only("state", Type::Words(&["RollingOut", "Complete", "Paused"])),
    Property::read_only("stateReason", Type::Text),
    Property::read_only("failures", Type::List(&Type::Object(FAILURE))),
    Property::read_only("provisioningState", Type::Text),
];
const SCHEMA: &[Property] = &[Property::new("properties", Type::Object(PROPERTIES)).required().merged()];

/// What is kept of an assignment that nobody is shown.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Kept {
    /// The generation of the template: what was made of an older one is made anew.
    template: i64,
    /// Rises whenever somebody says that it is not paused.
    resumed: i64,
    /// A revision of the store, that there was before all its protected settings were given the last time: clusters that
    /// have got other agents since do not get them. No instant, for replicas' clocks differ.
    given: i64,
}

impl Kept {
    fn of(body: &Map<String, Value>) -> Option<Self> {
        let number = |name: &str| body.get(MEMBER)?.get(name)?.as_i64();
        let given = number("givenAt").unwrap_or_default();
        Some(Self { template: number("template")?, resumed: number("resumed")?, given })
    }

    fn keep(self, body: &mut Map<String, Value>) {
        body.insert(
            MEMBER.to_owned(),
            json!({"template": self.template, "resumed": self.resumed, "givenAt": self.given}),
        );
    }
}

/// An assignment as the gateway carries it out.
pub struct Assignment {
    /// ARM id of the assignment.
    pub id: ResourceId,
    /// The tags that a cluster must have, all of them.
    tags: Vec<(String, String)>,
    /// The keys of the clusters that it is for; none: of any.
    clusters: Option<HashSet<String>>,
    /// The kind of its template.
    pub kind: &'static dyn Kind,
    /// The name of what it makes.
    pub name: String,
    /// The generation of its template.
    pub template: i64,
    /// Rises when somebody resumes it.
    pub resumed: i64,
    /// Whether somebody holds it.
    pub paused: bool,
    /// Whether secrets of the template are kept.
    pub has_secrets: bool,
    /// A revision of the store that there was before all of these were given the last time.
    secrets_given: i64,
    /// Whether it gives a version to extensions that are there, and makes none.
    pub existing: bool,
    extension_type: String,
    version: String,
    percent: u64,
    failures: Option<u64>,
    failures_percent: Option<u64>,
}

impl Assignment {
    /// Of what is kept; none, if it cannot be read.
    pub fn of(stored: &Stored) -> Option<Self> {
        let body = stored.body.as_object()?;
        let own = properties(body)?;
        let template = own.get("template")?;
        let kept = Kept::of(body)?;
        let tags = own.get("selector")?.get("tags")?.as_object()?;
        let rollout = own.get("rollout").cloned().unwrap_or_default();
        let named = own.get("selector")?.get("clusters").and_then(Value::as_array);
        let inner = |name: &str| template["properties"][name].as_str().unwrap_or_default().to_owned();
        Some(Self {
            clusters: named.map(|ids| ids.iter().filter_map(Value::as_str).map(fold).collect()),
            existing: template.get("existing") == Some(&Value::Bool(true)),
            extension_type: inner("extensionType"),
            version: inner("version"),
            id: ResourceId::parse(&stored.id).ok()?,
            tags: tags
                .iter()
                .map(|(name, value)| Some((name.to_lowercase(), value.as_str()?.to_owned())))
                .collect::<Option<_>>()?,
            kind: super::kind(template.get("type")?.as_str()?)?,
            name: template.get("name")?.as_str()?.to_owned(),
            template: kept.template,
            resumed: kept.resumed,
            paused: rollout["paused"] == true,
            has_secrets: stored.protected.is_some(),
            secrets_given: kept.given,
            percent: rollout["maxConcurrentPercent"].as_u64().unwrap_or(100),
            failures: rollout["maxFailures"].as_u64(),
            failures_percent: rollout["maxFailuresPercent"].as_u64(),
        })
    }

    /// Whether it is for a cluster of this key with these tags. Names of tags are compared without case, as in Azure
    /// Resource Manager; each is folded once, for both sides choose how many there are.
    pub fn selects(&self, cluster: &str, tags: Option<&Value>) -> bool {
        if self.clusters.as_ref().is_some_and(|clusters| !clusters.contains(cluster)) {
            return false;
        }
        let mut known: HashMap<String, Vec<&str>> = HashMap::new();
        for (name, value) in tags.and_then(Value::as_object).into_iter().flatten() {
            known.entry(name.to_lowercase()).or_default().extend(value.as_str());
        }
        self.tags.iter().all(|(name, value)| known.get(name).is_some_and(|known| known.contains(&value.as_str())))
    }

    /// How many of so many clusters may be unfinished at one time: one at least, or nothing would ever happen.
    pub fn at_once(&self, matched: usize) -> usize {
        let matched = u64::try_from(matched).unwrap_or(u64::MAX);
        usize::try_from(matched.saturating_mul(self.percent) / 100).unwrap_or(usize::MAX).max(1)
    }

    /// How many of so many clusters may fail before it is paused; none: any number.
    pub fn failures(&self, matched: usize) -> Option<usize> {
        let matched = u64::try_from(matched).unwrap_or(u64::MAX);
        let percent = self.failures_percent.map(|percent| matched.saturating_mul(percent) / 100);
        let least = self.failures.into_iter().chain(percent).min()?;
        Some(usize::try_from(least).unwrap_or(usize::MAX))
    }

    /// Whether an extension that somebody made is of the type whose version this gives.
    fn is_about(&self, properties: &Value) -> bool {
        properties["extensionType"].as_str().is_some_and(|kind| kind.eq_ignore_ascii_case(&self.extension_type))
    }

    /// Whether an extension has the version that this gives.
    fn has_version(&self, properties: &Value) -> bool {
        properties["version"] == self.version.as_str()
    }

    /// What it changes of extensions that are there.
    pub fn part(&self) -> Option<Map<String, Value>> {
        let part = json!({"properties": {"version": self.version}});
        part.as_object().cloned()
    }

    /// The body of what it makes in each cluster. `protected`: what is sealed of it, opened.
    pub fn body(&self, stored: &Stored, protected: Option<&Map<String, Value>>) -> Option<Map<String, Value>> {
        let template = stored.body.get("properties")?.get("template")?.as_object()?;
        let mut body = Map::from_iter([("properties".to_owned(), template.get("properties")?.clone())]);
        if let Some(protected) = protected {
            schema::restore_protected(&mut body, &of_template(protected));
        }
        Some(body)
    }
}

/// The id of a connected cluster.
fn cluster_id(text: &str) -> Result<(), String> {
    let is_one = ResourceId::parse(text).is_ok_and(|id| id.is(connected_cluster::NAME));
    is_one.then_some(()).ok_or_else(|| format!("the id of a resource of the type {}", connected_cluster::NAME))
}

/// A template for what is there already names a type and a version of extensions, and no more.
fn existing(template: &Map<String, Value>, kind: &str) -> Result<(), ApiError> {
    if template.get("existing") != Some(&Value::Bool(true)) {
        return Ok(());
    }
    let wrong =
        |message: &str, at: &str| Err(ApiError::bad_request("InvalidRequestContent", message.to_owned()).at(at));
    if !kind.eq_ignore_ascii_case(extension::NAME) {
        return wrong("Only a template of extensions can be for those that are there.", "properties.template.existing");
    }
    let own = template["properties"].as_object();
    if own.is_none_or(|own| !own.get("version").is_some_and(Value::is_string)) {
        let message = "A template for extensions that are there gives them a version, and none is given.";
        return wrong(message, "properties.template.properties.version");
    }
    // What the kind itself fills in is there when somebody sends back what they read.
    const FILLED_IN: &[&str] =
        &["extensionType", "version", "autoUpgradeMode", "autoUpgradeMinorVersion", "scope", "reconcile"];
    match own.into_iter().flatten().find(|(name, _)| !FILLED_IN.contains(&name.as_str())) {
        Some((name, _)) => {
            let message =
                "A template for extensions that are there gives them a version; the rest is what their owners say.";
            wrong(message, &format!("properties.template.properties.{name}"))
        }
        None => Ok(()),
    }
}

/// What is sealed of a template by places of the assignment, by those of the template.
fn of_template(kept: &Map<String, Value>) -> Map<String, Value> {
    let place = |(place, value): (&String, &Value)| {
        Some((place.strip_prefix("properties.template.")?.to_owned(), value.clone()))
    };
    kept.iter().filter_map(place).collect()
}

impl Kind for FleetAssignments {
    fn name(&self) -> &'static str {
        NAME
    }

    fn api_versions(&self) -> &'static [&'static str] {
        &["2026-11-01"]
    }

    fn place(&self) -> Place {
        Place::Scope
    }

    fn schema(&self) -> &'static [Property] {
        SCHEMA
    }

    fn patch_schema(&self) -> Option<&'static [Property]> {
        Some(SCHEMA)
    }

    fn deletes_slowly(&self) -> bool {
        true
    }

    /// Of a cluster all assignments that are for its group or subscription.
    fn woken_by(&self, id: &ResourceId, deleted: bool) -> Vec<String> {
        let all_at = |scope: &str| fold(&format!("{scope}/providers/{}", NAME.split('/').next().unwrap_or_default()));
        let subscription = format!("/subscriptions/{}", id.subscription());
        let is_made = TEMPLATES.iter().any(|kind| id.is(kind));
        match id.resource_group() {
            _ if id.is(NAME) => vec![id.key().to_owned()],
            Some(group) if id.is(connected_cluster::NAME) || (deleted && is_made) => {
                vec![all_at(&subscription), all_at(&format!("{subscription}/resourceGroups/{group}"))]
            }
            Some(_) if deleted && id.is(RESOURCE_GROUPS) => vec![all_at(&subscription)],
            _ => Vec::new(),
        }
    }

    /// No assignment has anything to do with what has changed of a cluster that has the tags of before.
    fn is_unmoved_by(&self, old: &Stored, new: &Stored) -> bool {
        new.kind.eq_ignore_ascii_case(connected_cluster::NAME)
            && old.is_deleting() == new.is_deleting()
            && old.body.get("tags") == new.body.get("tags")
    }

    fn keeps_up(&self) -> Option<&'static str> {
        Some(ROLLOUT)
    }

    fn taken_down_by(&self) -> &'static str {
        WITHDRAWAL
    }

    /// Else the right to write assignments would be the right to install anything in every cluster.
    fn writes_for(&self, body: &Map<String, Value>) -> Option<&'static dyn Kind> {
        super::kind(properties(body)?.get("template")?.get("type")?.as_str()?)
    }

    fn split_protected(&self, body: &mut Map<String, Value>) -> schema::Protected {
        let kind = self.writes_for(body);
        let template = properties_mut(body).get_mut("template").and_then(Value::as_object_mut);
        match kind.zip(template) {
            Some((kind, template)) => schema::split_protected_at(kind.schema(), template, "properties.template"),
            None => schema::Protected::default(),
        }
    }

    fn check_name(&self, name: &str) -> Result<(), ErrorDetail> {
        super::usual_name(name, 63, "-_.")
    }

    fn matches(&self, text: &str, stored: &Stored, _: &Caller) -> Result<bool, ApiError> {
        filter::resource(text, stored)
    }

    fn merge(&self, body: &mut Map<String, Value>, part: &Map<String, Value>) {
        let rollout = properties(part).and_then(|own| own.get("rollout"));
        if rollout.is_some_and(|rollout| rollout["paused"] == false)
            && let Some(kept) = Kept::of(body)
        {
            Kept { resumed: kept.resumed + 1, ..kept }.keep(body);
        }
        schema::merge(SCHEMA, body, part);
    }

    fn write<'a>(
        &'a self,
        body: &'a mut Map<String, Value>,
        writing: &'a Writing<'a>,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            let old = writing.old.and_then(|old| old.body.as_object());
            let mut faults = Vec::new();
            properties_mut(body).entry("rollout").or_insert_with(|| json!({}));
            schema::fill_in(SCHEMA, body, "", &mut faults);
            if let Some(fault) = ErrorDetail::all(faults) {
                return Err(fault.into());
            }
            room(writing).await?;
            let before = old.and_then(Kept::of);
            // A PUT that does not pause it resumes it.
            let mut kept = Kept::of(body)
                .or_else(|| before.map(|before| Kept { resumed: before.resumed + 1, ..before }))
                .unwrap_or_default();
            let new = template(properties_mut(body), writing).await?;
            if new.is_changed {
                kept.template = writing.now_ms.max(kept.template + 1);
            }
            if new.gives_all {
                kept.given = writing.control.store.revision().await?;
            }
            kept.keep(body);
            properties_mut(body).insert("provisioningState".to_owned(), "Succeeded".into());
            Ok(())
        })
    }

    fn show(&self, shown: &mut Map<String, Value>, id: &str, showing: &Showing<'_>) {
        let kind = self.writes_for(shown);
        let properties = properties_mut(shown);
        let paused = properties.get("rollout").is_some_and(|rollout| rollout["paused"] == true);
        properties.insert("state".to_owned(), if paused { "Paused" } else { "RollingOut" }.into());
        properties.insert("failures".to_owned(), json!([]));
        let Some(told) = showing.told else { return };
        for (name, at) in [("counts", "counts"), ("failures", "failures"), ("stateReason", "reason")] {
            properties.insert(name.to_owned(), told.status[at].clone());
        }
        // They say what is said of the resources in the clusters.
        let (caller, control) = (showing.caller, showing.control);
        let id = ResourceId::parse(id).ok();
        if kind.zip(id).is_none_or(|(kind, id)| may_read(kind, &id, caller, control, showing.now_ms).is_err()) {
            properties.insert("failures".to_owned(), json!([]));
        }
        if !paused {
            properties.insert("state".to_owned(), told.status["state"].clone());
        }
    }

    fn actions(&self) -> &'static [&'static str] {
        &[LIST]
    }

    fn is_paged(&self, action: &str) -> bool {
        action == LIST
    }

    fn permission(&self, _: &str) -> Option<&'static str> {
        Some("Towline.Fleet/assignments/read")
    }

    fn describe_action(&self, _: &str) -> (Value, Value) {
        let text = json!({"type": "string"});
        let cluster = json!({"type": "object", "properties": {
            "id": text, "name": text, "resourceGroup": text, "state": {"type": "string", "enum": State::ALL.map(State::as_str)},
            "provisioningState": text, "commit": text, "code": text, "message": text,
        }});
        let asked = json!({"type": "object", "properties": {"state": text}});
        (
            asked,
            json!({"type": "object", "properties": {"value": {"type": "array", "items": cluster}, "nextLink": {"type": "string", "format": "uri"}}}),
        )
    }

    /// A page of its clusters, and whether each complies; with a `state` those alone.
    fn act<'a>(&'a self, acting: &'a Acting<'a>) -> BoxFuture<'a, Result<Value, ApiError>> {
        Box::pin(async move {
            let wanted = match acting.body.get("state") {
                None | Some(Value::Null) => None,
                Some(Value::String(word)) => Some(State::parse(word).ok_or_else(|| no_state(word))?),
                Some(other) => return Err(no_state(&other.to_string())),
            };
            let assignment =
                Assignment::of(acting.resource).ok_or_else(|| ApiError::internal("an assignment cannot be read"))?;
            may_read(assignment.kind, &assignment.id, acting.caller, acting.control, acting.now_ms)?;
            let told = acting.control.store.told(&acting.resource.key).await?;
            let refused = members::refused(told.as_ref(), &assignment, acting.now_ms);
            let query = ListQuery { after: acting.paging.after()?, rows: acting.paging.rows()?, wanted };
            let MemberList { members, next } = members::list(acting.control, &assignment, &refused, query).await?;
            let mut answer = json!({"value": members.iter().map(members::Member::shown).collect::<Vec<_>>()});
            if let Some(next) = next {
                answer["nextLink"] = acting.paging.link(&next)?.into();
            }
            Ok(answer)
        })
    }
}

fn no_state(word: &str) -> ApiError {
    let shown: String = word.chars().take(64).collect();
    let message =
        format!("'{shown}' is not a state of a cluster; known are {}.", State::ALL.map(State::as_str).join(", "));
    ApiError::bad_request("InvalidRequestContent", message).at("state")
}

/// What is said of clusters is what is said of the resources in them.
fn may_read(
    kind: &dyn Kind,
    assignment: &ResourceId,
    caller: &Caller,
    control: &Control,
    now_ms: i64,
) -> Result<(), ApiError> {
    use auth::rbac::{Action, Plane, Scope};
    let action = format!("{}/read", kind.name());
    let scope = assignment.parent().map_or_else(Scope::root, |parent| Scope::from(&parent));
    let decided =
        control.directory().decide(caller.principals(), Plane::Control, &Action::new(&action), &scope, now_ms / 1000);
    decided.map(drop).map_err(|_| ApiError::forbidden(caller.name(), caller.object_id(), &action, scope.as_str()))
}

/// Refuses a new one where there are as many as there may be.
async fn room(writing: &Writing<'_>) -> Result<(), ApiError> {
    if writing.old.is_some() || writing.has_room(NAME, u64::from(AT_A_SCOPE)).await? {
        return Ok(());
    }
    let scope = writing.id.parent_key();
    let message = format!("There are {AT_A_SCOPE} fleet assignments at '{scope}', the limit; delete one first.");
    Err(ApiError::of(StatusCode::CONFLICT, QUOTA_EXCEEDED, message))
}

/// What a template is beside the one of before.
#[derive(Default)]
struct New {
    /// It is another one, or brings protected settings that are not kept.
    is_changed: bool,
    /// It brings all protected settings that it has, also where the same are kept.
    gives_all: bool,
}

/// Looks at a template as its kind looks at a resource in a cluster, with what is kept of its protected settings where it
/// brings none.
async fn template(own: &mut Map<String, Value>, writing: &Writing<'_>) -> Result<New, ApiError> {
    let Some(Value::Object(template)) = own.get_mut("template") else { return Ok(New::default()) };
    let text = |name: &str| template.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (name, kind_name) = (text("name"), text("type"));
    existing(template, &kind_name)?;
    let kind = super::kind(&kind_name).ok_or_else(|| ApiError::internal("a type of templates is not a kind"))?;
    let old = writing.old.and_then(|old| old.body.get("properties")?.get("template")).filter(|old| old.is_object());
    if old.is_none() {
        kind.check_name(&name).map_err(|detail| in_template(detail.into(), Some("name")))?;
    }
    if let Some(old) = old {
        for (at, new) in [("type", &kind_name), ("name", &name)] {
            // As a resource does, what it makes keeps the name that it was created with, which is the same in any case.
            if old[at].as_str().is_some_and(|old| old.eq_ignore_ascii_case(new)) {
                template.insert(at.to_owned(), old[at].clone());
            } else {
                let message = format!(
                    "The property 'properties.template.{at}' is {} and cannot be changed. Write another assignment, and delete this one.",
                    old[at]
                );
                let refused = ApiError::bad_request("PropertyChangeNotAllowed", message);
                return Err(refused.at(format!("properties.template.{at}")));
            }
        }
        if (old["existing"] == true) != (template.get("existing") == Some(&Value::Bool(true))) {
            let message = "The property 'properties.template.existing' cannot be changed. Write another assignment, and delete this one.";
            let refused = ApiError::bad_request("PropertyChangeNotAllowed", message.to_owned());
            return Err(refused.at("properties.template.existing"));
        }
        if old["properties"] == template["properties"] {
            return Ok(New::default());
        }
    }
    let raw = Map::from_iter([("properties".to_owned(), template["properties"].clone())]);
    let mut body = schema::check(kind.schema(), &raw).map_err(|detail| in_template(detail.into(), None))?;
    let sealed = writing.old.and_then(|stored| stored.protected.as_deref());
    let kept = match sealed.and_then(|sealed| writing.control.unseal(writing.id.key(), sealed)) {
        Some(Value::Object(kept)) => of_template(&kept),
        _ => Map::new(),
    };
    let before = old
        .zip(writing.old)
        .map(|(old, stored)| Stored { body: json!({"properties": old["properties"]}), ..stored.clone() });
    let id = somewhere(writing.id, kind, &name)?;
    let version = kind.api_versions().last().copied().unwrap_or_default();
    // Nothing is in a cluster that cannot be there.
    let grounds = &Grounds::default();
    let inner = Writing { id: &id, old: before.as_ref(), said: &raw, version, grounds, ..*writing };
    kind.write(&mut body, &inner).await.map_err(|error| in_template(error, None))?;
    // After that, as with a resource in a cluster: the kind says which of those that are kept are to go.
    let mut shown = body.clone();
    let given = kind.split_protected(&mut shown);
    if let Some(before) = before.as_ref().and_then(|before| before.body.as_object())
        && !given.replaces(&kept)
    {
        let (before, now) = (kind.sends_secrets_to(before), kind.sends_secrets_to(&body));
        if before.is_some() && before != now {
            let refused = followed::aimed_elsewhere(before.as_deref(), now.as_deref());
            return Err(in_template(refused, None));
        }
    }
    let gives_all = !given.sent.is_empty() && given.replaces(&kept);
    // Who gives the same again changes nothing.
    let is_new = |(place, value): (&String, &Value)| match value {
        Value::Null => kept.contains_key(place),
        value => kept.get(place) != Some(value),
    };
    let brings = given.sent.iter().any(is_new);
    let is_changed = brings || old.is_none_or(|old| Some(&old["properties"]) != shown.get("properties"));
    if let Some(properties) = body.remove("properties") {
        template.insert("properties".to_owned(), properties);
    }
    Ok(New { is_changed, gives_all })
}

/// The id of what a template makes, in a cluster that cannot be there: none has such a name.
fn somewhere(assignment: &ResourceId, kind: &dyn Kind, name: &str) -> Result<ResourceId, ApiError> {
    let mut scope = assignment.parent_text().to_owned();
    if assignment.parent().is_some_and(|parent| parent.is(SUBSCRIPTIONS)) {
        scope += "/resourceGroups/any";
    }
    Ok(ResourceId::parse(&format!("{scope}/providers/{}/_/providers/{}/{name}", connected_cluster::NAME, kind.name()))?)
}

/// A refusal of something in a template, with its place in the assignment.
fn in_template(mut error: ApiError, at: Option<&str>) -> ApiError {
    let place = |place: &mut Option<String>| {
        let inner = at.map(str::to_owned).or_else(|| place.take()).unwrap_or_else(|| "properties".to_owned());
        *place = Some(format!("properties.template.{inner}"));
    };
    place(&mut error.detail.target);
    error.detail.details.iter_mut().for_each(|detail| place(&mut detail.target));
    error
}

/// What is sealed of an assignment, opened.
///
/// # Errors
/// It cannot be opened.
pub fn protected(stored: &Stored, control: &Control) -> Result<Option<Map<String, Value>>, String> {
    let Some(sealed) = stored.protected.as_deref() else { return Ok(None) };
    match control.unseal(&stored.key, sealed) {
        Some(Value::Object(kept)) => Ok(Some(kept)),
        _ => Err("protected settings cannot be read; is [api].store_key_file the same?".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_tags(tags: &Value) -> Assignment {
        let id = format!("/subscriptions/s/resourceGroups/g/providers/{NAME}/all");
        let stored = Stored {
            key: fold(&id),
            kind: fold(NAME),
            parent: String::new(),
            id,
            revision: 1,
            body: json!({MEMBER: {"template": 1, "resumed": 0}, "properties": {
                "selector": {"tags": tags},
                "template": {"type": extension::NAME, "name": "web", "properties": {}},
            }}),
            protected: None,
        };
        Assignment::of(&stored).unwrap()
    }

    #[test]
    fn g13_names_of_tags_are_the_same_in_any_case_and_their_values_are_not() {
        let assignment = of_tags(&json!({"Ring": "one", "STRASSE": "a"}));
        let selects = |tags: Value| assignment.selects("c", Some(&tags));
        assert!(selects(json!({"rING": "one", "strasse": "a", "more": "b"})));
        assert!(selects(json!({"ring": "two", "RING": "one", "strasse": "a"})), "any of those that are alike");
        for other in [json!({"ring": "One", "strasse": "a"}), json!({"ring": "one"}), json!({"ring": 1}), json!({})] {
            assert!(!selects(other.clone()), "{other}");
        }
        assert!(!assignment.selects("c", None));
        assert!(of_tags(&json!({})).selects("c", None));
    }
}
