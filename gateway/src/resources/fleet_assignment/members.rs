//! The clusters of a fleet assignment, and how far each is. Nothing of it is kept: it follows from the clusters' tags, from
//! what the assignment made in them, and from what they tell of that, so that whoever goes on after a crash sees the same.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};
use types::{
    agent_api::{ObjectState, codes, compliance},
    api::{ResourceId, id::fold},
};

use super::Assignment;
use crate::{
    api_error::QUOTA_EXCEEDED,
    control::Control,
    managed::{FINISHED, Managed},
    object::Object,
    resources::connected_cluster,
    store::{StoreError, resources::Stored, statuses::ReportedStatus, with_child::Child},
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

/// Clusters that one statement reads, each with what is in it, which may be bodies of 256 KiB. One page of a list also
/// reads no more than this, even if few of them match: 500 clusters took 41 to 50 ms on two slow cores.
const CLUSTERS_AT_ONCE: u32 = 250;

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
    /// Whether there is something in it that the assignment is to change.
    is_there: bool,
    /// Whether the secrets of the template are not for it: they were given before it got the agents that it has.
    is_another: bool,
}

impl Member {
    /// Whether it was refused for lack of room: a quota of its group, of its subscription or of itself is used up.
    pub fn has_no_room(&self) -> bool {
        self.why.as_ref().is_some_and(|(code, _)| code == QUOTA_EXCEEDED)
    }

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
pub fn refused(told: Option<&ReportedStatus>, assignment: &Assignment, now_ms: i64) -> Refusals {
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

/// Looks at all clusters of an assignment, a page of them at a time.
///
/// # Errors
/// The store cannot be read.
pub async fn look(control: &Control, assignment: &Assignment, refused: &Refusals) -> Result<Fleet, StoreError> {
    let (mut fleet, mut looking) = (Fleet::default(), Looking::new(control, assignment, refused));
    let mut after = String::new();
    while let Some(last) = looking.page(&mut fleet, &after, CLUSTERS_AT_ONCE).await? {
        after = last;
    }
    Ok(fleet)
}

/// Which clusters of an assignment a list is asked for.
pub struct ListQuery {
    /// Clusters behind this key, in the order of their keys.
    pub after: String,
    /// At most this many.
    pub rows: u32,
    /// Those in this state; all if none is named.
    pub wanted: Option<State>,
}

/// A page of an assignment's clusters.
pub struct MemberList {
    /// The clusters.
    pub members: Vec<Member>,
    /// The key behind which others may be; none after the last page.
    pub next: Option<String>,
}

/// A page of an assignment's clusters. It looks at [`CLUSTERS_AT_ONCE`] clusters at most, so that it may find none
/// though there are more.
///
/// # Errors
/// The store cannot be read.
pub async fn list(
    control: &Control,
    assignment: &Assignment,
    refused: &Refusals,
    ListQuery { after, rows, wanted }: ListQuery,
) -> Result<MemberList, StoreError> {
    let (mut found, mut looking) = (Vec::new(), Looking::new(control, assignment, refused));
    // What is asked for first; then more at once, for few are.
    let (mut after, mut left, mut some) = (after, CLUSTERS_AT_ONCE, rows.min(CLUSTERS_AT_ONCE));
    while left > 0 {
        let mut fleet = Fleet::default();
        let next = looking.page(&mut fleet, &after, some).await?;
        found.extend(fleet.members.into_iter().filter(|member| wanted.is_none_or(|wanted| member.state == wanted)));
        let is_full = found.len() == rows as usize && next.is_some();
        if is_full || found.len() > rows as usize {
            found.truncate(rows as usize);
            let last = found.last().map(|last| last.key.clone());
            return Ok(MemberList { members: found, next: last });
        }
        match next {
            Some(next) => after = next,
            None => return Ok(MemberList { members: found, next: None }),
        }
        left -= some;
        some = left;
    }
    Ok(MemberList { members: found, next: Some(after) })
}

/// A look at clusters of an assignment.
struct Looking<'a> {
    control: &'a Control,
    assignment: &'a Assignment,
    refused: &'a Refusals,
    now_ms: i64,
    /// The kind of clusters, and what the key of what is made in one has behind the cluster's: an assignment never
    /// changes the type and the name of its template.
    kind: String,
    child: String,
    /// Other assignments that have the name in some cluster, by their keys; none: there is no such assignment any more,
    /// or it is being deleted. There are [`super::AT_A_SCOPE`] of a scope at most.
    others: HashMap<String, Option<Assignment>>,
}

impl<'a> Looking<'a> {
    fn new(control: &'a Control, assignment: &'a Assignment, refused: &'a Refusals) -> Self {
        Self {
            kind: connected_cluster::NAME.to_ascii_lowercase(),
            child: fold(&format!("/providers/{}/{}", assignment.kind.name(), assignment.name)),
            others: HashMap::new(),
            now_ms: control.now_ms(),
            control,
            assignment,
            refused,
        }
    }

    /// Adds what up to `rows` clusters of the scope behind a key are to the assignment: one statement, and one more where
    /// other assignments have the name in some. The last key, unless these were all.
    async fn page(&mut self, fleet: &mut Fleet, after: &str, rows: u32) -> Result<Option<String>, StoreError> {
        let scope = self.assignment.id.parent_key();
        let page = self.control.store.page_with_child(&self.kind, &self.child, scope, after, rows).await?;
        let last = page.next.clone();
        self.know_others(&page).await?;
        for (n, (cluster, child)) in page.into_iter().enumerate() {
            give_way(n).await;
            if cluster.is_deleting() {
                continue;
            }
            if self.assignment.selects(&cluster.key, cluster.body.get("tags")) {
                // Clusters without an extension that is there have no part in a rollout.
                let member = self.member(cluster, child);
                fleet.members.extend(Some(member).filter(|member| member.is_there || !self.assignment.existing));
            } else if let Some(Child { stored: child, .. }) = child
                && is_own(&child, self.assignment)
            {
                if child.is_deleting() {
                    fleet.going += 1;
                } else {
                    fleet.leaving.push(child.id);
                }
            }
        }
        Ok(last)
    }

    /// Reads the other assignments that have the name in clusters of a page.
    async fn know_others(&mut self, page: &[(Stored, Option<Child>)]) -> Result<(), StoreError> {
        let managed = page.iter().filter_map(|(_, child)| Some(Managed::of(&child.as_ref()?.stored.body)?.key()));
        let own = self.assignment.id.key();
        let new: HashSet<String> = managed.filter(|key| key != own && !self.others.contains_key(key)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let new: Vec<String> = new.into_iter().collect();
        let found = self.control.store.get_each(&new).await?;
        self.others.extend(new.into_iter().map(|key| (key, None)));
        for other in found.into_iter().filter(|other| !other.is_deleting()) {
            self.others.insert(other.key.clone(), Assignment::of(&other));
        }
        Ok(())
    }

    /// A cluster that the assignment is for, with what has the template's name in it.
    fn member(&self, cluster: Stored, child: Option<Child>) -> Member {
        let assignment = self.assignment;
        let mut member = Member {
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
            key: cluster.key,
            id: cluster.id,
        };
        if let Some(child) = child {
            self.see(&mut member, &child, cluster.body.get("tags"));
        }
        if member.state == State::Waiting {
            if let Some(refusal) = self.refused.get(&member.key) {
                (member.state, member.why) = (State::Failed, Some(refusal.why.clone()));
            }
            if member.is_another {
                let message = "The cluster has been connected with another key since the protected settings of this assignment were given, and does not get them: give all of them again (write the assignment with them) if it may have them.";
                (member.state, member.is_ready) = (State::Failed, false);
                member.why = Some((OTHER_AGENTS.to_owned(), message.to_owned()));
            }
        }
        member
    }

    /// What has the template's name in a cluster with these tags.
    fn see(&self, member: &mut Member, child: &Child, tags: Option<&Value>) {
        let (assignment, stored) = (self.assignment, &child.stored);
        let managed = Managed::of(&stored.body);
        let own = &stored.body["properties"];
        if assignment.existing && managed.is_none() {
            member.is_there = assignment.is_about(own) && !stored.is_deleting();
            if member.is_there && assignment.has_version(own) {
                self.made(member, child);
            }
            return;
        }
        member.is_there = true;
        if stored.is_deleting() {
            // It is made again once that has ended.
            member.is_ready = false;
        } else if !is_own(stored, assignment) {
            member.is_ready = false;
            let whose = match managed {
                Some(managed) => {
                    let other = self.others.get(&managed.key()).and_then(Option::as_ref);
                    // It is about to take it away, and then the name is free.
                    if other.is_none_or(|other| !other.selects(&member.key, tags)) {
                        return;
                    }
                    format!("the fleet assignment '{}' has it", managed.by)
                }
                None => "it exists already and was not made by this assignment; it is not taken over".to_owned(),
            };
            let message = format!("The name '{}' is taken in this cluster: {whose}.", assignment.name);
            (member.state, member.why) = (State::Failed, Some(("NameTaken".to_owned(), message)));
        } else if managed.is_some_and(|managed| managed.template == assignment.template) {
            self.made(member, child);
        }
    }

    /// What is there is of the template of today: the cluster says how far it is.
    fn made(&self, member: &mut Member, child: &Child) {
        (member.state, member.is_made) = (State::Applying, true);
        let generation = Object::of(&child.stored.body).generation;
        if let Some(told) = child.told.as_ref().filter(|told| told.generation >= generation) {
            judge(member, told, self.assignment.kind.follows().is_some_and(|kind| kind.details.is_some()));
            let is_gone = member.why.as_ref().is_some_and(|(code, _)| code == SECRETS_GONE);
            let late = self.now_ms - generation >= AGAIN_MS;
            // The assignment still has them; not at once again, whatever a cluster tells.
            if member.state == State::Failed && is_gone && self.assignment.has_secrets && (late || member.is_another) {
                (member.state, member.why) = (State::Waiting, None);
            }
        }
        if member.state == State::Applying && !member.is_finished && self.now_ms - generation >= PLACE_MS {
            let message =
                "It has neither complied nor failed within 48 hours; the rollout continues without it.".to_owned();
            (member.state, member.why) = (State::Failed, Some(("TimedOut".to_owned(), message)));
        }
    }
}

/// Whether an assignment made it.
fn is_own(child: &Stored, assignment: &Assignment) -> bool {
    Managed::of(&child.body).is_some_and(|managed| managed.key() == assignment.id.key())
}

/// Ids of what an assignment made and is not being deleted.
///
/// # Errors
/// The store cannot be read.
pub async fn made_by(control: &Control, assignment: &Assignment) -> Result<Vec<String>, StoreError> {
    let (refused, scope, mut ids, mut after) = (Refusals::new(), assignment.id.parent_key(), Vec::new(), String::new());
    let Looking { kind, child, .. } = Looking::new(control, assignment, &refused);
    loop {
        let page = control.store.page_with_child(&kind, &child, scope, &after, CLUSTERS_AT_ONCE).await?;
        let last = page.next.clone();
        for (n, (cluster, child)) in page.into_iter().enumerate() {
            give_way(n).await;
            let child = child.filter(|child| is_own(&child.stored, assignment) && !child.stored.is_deleting());
            ids.extend(child.filter(|_| !cluster.is_deleting()).map(|child| child.stored.id));
        }
        match last {
            Some(last) => after = last,
            None => return Ok(ids),
        }
    }
}

/// What a cluster's own words make of it. `complies`: it also tells whether what was applied complies.
fn judge(member: &mut Member, told: &ReportedStatus, complies: bool) {
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
