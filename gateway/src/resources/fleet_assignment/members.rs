//! The clusters of a fleet assignment, and how far each is. Nothing of it is kept: it follows from the clusters' tags, from
//! what the assignment made in them, and from what they tell of that, so that whoever goes on after a crash sees the same.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};
use types::{
    agent_api::{ObjectState, codes, compliance},
    api::ResourceId,
};

use super::Assignment;
use crate::{
    control::Control,
    managed::{FINISHED, Managed},
    object::Object,
    resources::connected_cluster,
    store::{
        StoreError,
        resources::{PAGE_ROWS, Stored},
        statuses::Told,
    },
    stored::last_name,
};

/// When it is tried again in a cluster where it was refused, milliseconds.
const AGAIN_MS: i64 = 5 * 60 * 1000;
/// How long a cluster that never comes to an end keeps others waiting, milliseconds.
const PLACE_MS: i64 = 48 * 60 * 60 * 1000;
/// What a cluster tells that was away for longer than the secrets of its configuration are kept.
const SECRETS_GONE: &str = codes::PROTECTED_SETTINGS_GONE;
/// The code of a cluster whose agents are others than those that the secrets were given for.
const OTHER_AGENTS: &str = "ClusterHasOtherAgents";
/// Clusters that refused it at most: with more, something is wrong with the assignment.
pub const REFUSED: usize = 200;

/// How far a cluster is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nothing was begun in it, or not with this template.
    Waiting,
    /// It was written, and the cluster has not said yet what came of it.
    Applying,
    /// The cluster is as the template wants it.
    Compliant,
    /// It does not.
    NonCompliant,
    /// The template suspends it.
    Suspended,
    /// It cannot be there.
    Failed,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Waiting, Self::Applying, Self::Compliant, Self::NonCompliant, Self::Suspended, Self::Failed];

    /// The word that clients are shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Waiting => "Waiting",
            Self::Applying => "Applying",
            Self::Compliant => compliance::COMPLIANT,
            Self::NonCompliant => compliance::NON_COMPLIANT,
            Self::Suspended => compliance::SUSPENDED,
            Self::Failed => "Failed",
        }
    }

    /// The state of a word, in any case.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.as_str().eq_ignore_ascii_case(word))
    }
}

/// A cluster that an assignment is for.
pub struct Member {
    /// The cluster's id in lower case.
    pub key: String,
    /// As it was created.
    pub id: String,
    /// The revision of its resource.
    pub revision: i64,
    /// How far it is.
    pub state: State,
    /// Whether it may be written now: nothing is in the way that only time takes away.
    pub is_ready: bool,
    /// Whether the template of today was written there.
    pub is_made: bool,
    /// Why, where it failed or does not comply: a code, and a sentence.
    pub why: Option<(String, String)>,
    commit: Option<String>,
    /// Whether it came to an end with the template of today, once.
    is_finished: bool,
    tags: Option<Value>,
    /// Whether there is something in it that the assignment is to change.
    is_there: bool,
    /// Whether the secrets of the template are not for it: they were given before it got the agents that it has.
    is_another: bool,
}

impl Member {
    /// As clients see it.
    pub fn shown(&self) -> Value {
        let group = ResourceId::parse(&self.id).ok().and_then(|id| id.resource_group().map(str::to_owned));
        let (code, message) = self.why.clone().unzip();
        json!({
            "id": self.id, "name": last_name(&self.id), "resourceGroup": group, "state": self.state.as_str(),
            "commit": self.commit, "code": code, "message": message,
        })
    }
}

/// The clusters of an assignment, and what it made in others.
#[derive(Default)]
pub struct Fleet {
    /// Those that it is for.
    pub members: Vec<Member>,
    /// Ids of what it made in clusters that it is not for any more.
    pub leaving: Vec<String>,
    /// How many of these are being deleted.
    pub going: usize,
}

impl Fleet {
    /// How many are in one of these states.
    pub fn count(&self, states: &[State]) -> usize {
        self.members.iter().filter(|member| states.contains(&member.state)).count()
    }

    /// Whether something that it made is still in a cluster that it is not for any more.
    pub fn is_left(&self) -> bool {
        self.going > 0 || !self.leaving.is_empty()
    }

    /// How many were begun and have not come to an end yet: so many have a place.
    pub fn unfinished(&self) -> usize {
        self.members.iter().filter(|member| member.state == State::Applying && !member.is_finished).count()
    }
}

/// Clusters that refused the template of today lately, and why, as the last look noted it.
pub type Refusals = HashMap<String, Refusal>;

/// Why a cluster refused it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// A code, and a sentence.
    pub why: (String, String),
    /// When, milliseconds since 1970.
    pub at_ms: i64,
}

/// Those of them that still hold: not after some minutes, for another template, or when somebody has resumed it.
pub fn refused(told: Option<&Told>, assignment: &Assignment, now_ms: i64) -> Refusals {
    let Some(status) = told.map(|told| &told.status) else { return Refusals::new() };
    if status["template"] != assignment.template || status["resumed"] != assignment.resumed {
        return Refusals::new();
    }
    let is_paused = status["state"] == "Paused";
    let one = |(key, one): (&String, &Value)| {
        let text = |name: &str| one[name].as_str().unwrap_or_default().to_owned();
        // Nothing is tried again while it is paused.
        let at_ms = one["at"].as_i64().filter(|at| is_paused || (0..AGAIN_MS).contains(&(now_ms - at)))?;
        Some((key.clone(), Refusal { why: (text("code"), text("message")), at_ms }))
    };
    status["refused"].as_object().into_iter().flatten().filter_map(one).collect()
}

/// Looks at the clusters of an assignment.
///
/// # Errors
/// The store cannot be read.
pub async fn look(control: &Control, assignment: &Assignment, refused: &Refusals) -> Result<Fleet, StoreError> {
    let (scope, now_ms) = (assignment.id.parent_key(), control.now_ms());
    let (mut fleet, mut going) = (Fleet::default(), HashSet::new());
    each(control, connected_cluster::NAME, scope, |cluster| {
        if cluster.is_deleting() {
            going.insert(cluster.key);
        } else if assignment.selects(&cluster.key, cluster.body.get("tags")) {
            fleet.members.push(Member {
                state: State::Waiting,
                is_ready: true,
                is_made: false,
                why: None,
                commit: None,
                is_finished: false,
                is_there: false,
                is_another: assignment.has_secrets
                    && connected_cluster::agents_since(Some(&cluster)) > assignment.secrets_given,
                revision: cluster.revision,
                tags: cluster.body.get("tags").cloned(),
                key: cluster.key,
                id: cluster.id,
            });
        }
    })
    .await?;
    let places: HashMap<String, usize> =
        fleet.members.iter().enumerate().map(|(place, member)| (member.key.clone(), place)).collect();
    // What is there of the template of today, by its key: the cluster's place, and its generation.
    let mut made = HashMap::new();
    // Which other assignment has it in which cluster.
    let mut others: HashMap<String, Vec<usize>> = HashMap::new();
    each(control, assignment.kind.name(), scope, |child| {
        if last_name(&child.key) != assignment.name.to_ascii_lowercase() {
            return;
        }
        let managed = Managed::of(&child.body);
        let is_own = managed.as_ref().is_some_and(|managed| managed.key() == assignment.id.key());
        let Some(place) = places.get(&child.parent).copied() else {
            if !is_own || going.contains(&child.parent) {
                return;
            }
            if child.is_deleting() {
                fleet.going += 1;
            } else {
                fleet.leaving.push(child.id);
            }
            return;
        };
        let member = &mut fleet.members[place];
        let own = &child.body["properties"];
        if assignment.existing && managed.is_none() {
            member.is_there = assignment.is_about(own) && !child.is_deleting();
            if member.is_there && assignment.has_version(own) {
                (member.state, member.is_made) = (State::Applying, true);
                made.insert(child.key, (child.parent, Object::of(&child.body).generation));
            }
            return;
        }
        member.is_there = true;
        if child.is_deleting() {
            // It is made again once that has ended.
            member.is_ready = false;
        } else if !is_own {
            (member.state, member.is_ready) = (State::Failed, false);
            let whose = match managed {
                Some(managed) => {
                    others.entry(managed.key()).or_default().push(place);
                    format!("the fleet assignment '{}' has it", managed.by)
                }
                None => "it exists already and was not made by this assignment; it is not taken over".to_owned(),
            };
            let message = format!("The name '{}' is taken in this cluster: {whose}.", assignment.name);
            member.why = Some(("NameTaken".to_owned(), message));
        } else if managed.is_some_and(|managed| managed.template == assignment.template) {
            (member.state, member.is_made) = (State::Applying, true);
            made.insert(child.key, (child.parent, Object::of(&child.body).generation));
        }
    })
    .await?;
    for (key, places) in &others {
        let Some(other) = control.store.get(key).await? else { continue };
        let selects = Assignment::of(&other).filter(|_| !other.is_deleting());
        for (n, place) in places.iter().enumerate() {
            give_way(n).await;
            let member = &mut fleet.members[*place];
            // It is about to take it away, and then the name is free.
            if selects.as_ref().is_none_or(|other| !other.selects(&member.key, member.tags.as_ref())) {
                (member.state, member.why) = (State::Waiting, None);
            }
        }
    }
    let keys: Vec<String> = made.keys().cloned().collect();
    let told = control.store.told_of(&keys).await?;
    for (n, (key, (cluster, generation))) in made.iter().enumerate() {
        give_way(n).await;
        let told = told.get(key).filter(|told| told.generation >= *generation);
        if let (Some(place), Some(told)) = (places.get(cluster), told) {
            let member = &mut fleet.members[*place];
            judge(member, told, assignment.kind.follows().is_some_and(|kind| kind.details.is_some()));
            let is_gone = member.why.as_ref().is_some_and(|(code, _)| code == SECRETS_GONE);
            let late = now_ms - generation >= AGAIN_MS;
            // The assignment still has them; not at once again, whatever a cluster tells.
            if member.state == State::Failed && is_gone && assignment.has_secrets && (late || member.is_another) {
                (member.state, member.why) = (State::Waiting, None);
            }
        }
        let member = places.get(cluster).map(|place| &mut fleet.members[*place]);
        let late = |member: &&mut Member| member.state == State::Applying && !member.is_finished;
        if let Some(member) = member.filter(late).filter(|_| now_ms - generation >= PLACE_MS) {
            let message =
                "It has neither complied nor failed within 48 hours; the rollout continues without it.".to_owned();
            (member.state, member.why) = (State::Failed, Some(("TimedOut".to_owned(), message)));
        }
    }
    for (n, member) in fleet.members.iter_mut().enumerate() {
        give_way(n).await;
        // Nobody looks at them any more, and to forget those of all at once takes long.
        member.tags = None;
        if member.state != State::Waiting {
            continue;
        }
        if let Some(refusal) = refused.get(&member.key) {
            (member.state, member.why) = (State::Failed, Some(refusal.why.clone()));
        }
        if member.is_another {
            let message = "The cluster has been connected with another key since the protected settings of this assignment were given, and does not get them: give all of them again (write the assignment with them) if it may have them.";
            (member.state, member.is_ready) = (State::Failed, false);
            member.why = Some((OTHER_AGENTS.to_owned(), message.to_owned()));
        }
    }
    // Clusters without such an extension have no part in it.
    fleet.members.retain(|member| member.is_there || !assignment.existing);
    Ok(fleet)
}

/// Ids of what an assignment made and is not being deleted.
///
/// # Errors
/// The store cannot be read.
pub async fn made_by(control: &Control, assignment: &Assignment) -> Result<Vec<String>, StoreError> {
    let (mut ids, mut going) = (Vec::new(), HashSet::new());
    let scope = assignment.id.parent_key();
    each(control, connected_cluster::NAME, scope, |cluster| {
        if cluster.is_deleting() {
            going.insert(cluster.key);
        }
    })
    .await?;
    each(control, assignment.kind.name(), scope, |child| {
        let is_own = Managed::of(&child.body).is_some_and(|managed| managed.key() == assignment.id.key());
        if is_own && !child.is_deleting() && !going.contains(&child.parent) {
            ids.push(child.id);
        }
    })
    .await?;
    Ok(ids)
}

/// What a cluster's own words make of it. `complies`: it also tells whether what was applied complies.
fn judge(member: &mut Member, told: &Told, complies: bool) {
    let (error, details) = (&told.status["error"], &told.status["details"]);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    member.commit = details["sourceSyncedCommitId"].as_str().map(str::to_owned);
    member.is_finished = told.status[FINISHED] == true;
    match serde_json::from_value(told.status["state"].clone()) {
        Ok(ObjectState::Failed) => {
            member.state = State::Failed;
            member.why = Some((text(&error["code"]), text(&error["message"])));
        }
        Ok(ObjectState::Succeeded) if !complies => member.state = State::Compliant,
        Ok(ObjectState::Succeeded) => match details["complianceState"].as_str() {
            Some(compliance::COMPLIANT) => member.state = State::Compliant,
            Some(compliance::SUSPENDED) => member.state = State::Suspended,
            Some(compliance::NON_COMPLIANT) => {
                member.state = State::NonCompliant;
                member.why = Some(("NonCompliant".to_owned(), text(&details["errorMessage"])));
            }
            _ => {}
        },
        _ => {}
    }
}

/// Lets other requests have their turn, of many pieces of work behind every few.
async fn give_way(piece: usize) {
    const A_TURN: usize = 4;
    if piece % A_TURN == A_TURN - 1 {
        tokio::task::yield_now().await;
    }
}

/// Goes through all of a kind in a scope, a page at a time.
async fn each(control: &Control, kind: &str, scope: &str, mut see: impl FnMut(Stored)) -> Result<(), StoreError> {
    let (kind, mut after) = (kind.to_ascii_lowercase(), String::new());
    loop {
        let page = control.store.page(&kind, scope, &after, PAGE_ROWS).await?;
        let last = page.last().filter(|_| page.len() == PAGE_ROWS as usize).map(|last| last.key.clone());
        for (n, row) in page.into_iter().enumerate() {
            see(row);
            give_way(n).await;
        }
        match last {
            Some(last) => after = last,
            None => return Ok(()),
        }
    }
}
