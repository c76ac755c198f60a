//! What is wanted in clusters beside their agents, such as extensions: as agents follow it, each the objects of its own
//! cluster, and what they tell of it (`types::agent_api`; docs/features.md E1, E6, E9, D4). A change wakes the agents of
//! its own cluster and no others; what is told wakes nobody but the operations that wait for it.

use std::{
    collections::HashMap,
    str::FromStr as _,
    sync::{Mutex, PoisonError},
    time::SystemTime,
};

use http::StatusCode;
use serde_json::{Map, Value, json};
use tokio::sync::watch;
use types::{
    agent_api::{
        DETAILS_BYTES, OBJECTS_AT_ONCE, OBJECTS_BYTES, Object as Wanted, ObjectEvent, ObjectState, ObjectStatus,
        ObjectStatuses, ObjectStatusesAnswer, Objects, PART_BYTES, PART_NAME_BYTES, PARTS_OF_AN_OBJECT, Parts,
        ProtectedQuestion, ProtectedSettings, StatusLine, codes,
    },
    api::ResourceId,
    ids::ClusterId,
};

use super::Control;
use crate::{
    api_error::ApiError,
    aside::aside,
    managed::{self, FINISHED, Managed},
    object::Object,
    store::{
        StoreError,
        batch::{Batch, Expect, Refused},
        changes::Change,
        parts::{Kept, Part, PartsTold, Room},
        resources::Stored,
        statuses::ReportedStatus,
    },
    stored::properties_mut,
};

/// How long protected settings are kept, milliseconds: 48 hours (E6) without what passes until it is looked for.
pub const PROTECTED_FOR_MS: i64 = (48 * 60 - 20) * 60 * 1000;
/// Objects of one kind in a cluster at most.
pub const OF_A_CLUSTER: u64 = 200;
/// Objects of which one message tells at most.
const TOLD_AT_ONCE: usize = 100;
/// Lines of `statuses`, and events, that are kept of an object: the newest.
const LINES: usize = 32;
const EVENTS: usize = 200;
/// Bytes of the lines of an object, and of its events, as JSON.
const LINES_BYTES: usize = 32 * 1024;
const EVENTS_BYTES: usize = 64 * 1024;
/// Characters of a text that is for people, and of a word; longer ones are cut.
const TEXT: usize = 4096;
const WORD: usize = 128;
/// Parts of one object, and of all objects of a cluster, of which what is told is kept. ARM's own clients take answers of
/// up to 8 MB.
const ROOM_OF_AN_OBJECT: Room = Room { parts: PARTS_OF_AN_OBJECT as i64, bytes: 6 * 1024 * 1024 };
const ROOM_OF_A_CLUSTER: Room = Room { parts: 2 * PARTS_OF_AN_OBJECT as i64, bytes: 16 * 1024 * 1024 };
/// Protected settings that are taken away at once.
const AT_ONCE: u32 = 100;

/// A kind of resource that the agents of its cluster follow.
#[derive(Debug, Clone, Copy)]
pub struct Followed {
    /// Its full type.
    pub name: &'static str,
    /// The role of agents that follows it, in messages.
    pub agent: &'static str,
    /// The code of a failure that the cluster did not explain.
    pub code: &'static str,
    /// The command that shows one.
    pub show: &'static str,
    /// The command by which protected settings are given again.
    pub renew: &'static str,
    /// Why the role may not be there though other agents are, and what to do; none where nothing follows from that.
    pub missing: Option<&'static str>,
    /// What is kept of [`ObjectStatus::details`], if agents tell such, with texts of so many characters at most.
    pub details: Option<KeptOf<Map<String, Value>>>,
    /// Its parts, if agents tell of such.
    pub parts: Option<Parted>,
}

/// A kind of resource whose parts agents tell of.
#[derive(Debug, Clone, Copy)]
pub struct Parted {
    /// The property that shows what is told of them.
    pub shown_as: &'static str,
    /// What is kept of what is told of one, with texts of so many characters at most, and its rank: those with the lowest
    /// are shown first.
    pub kept: KeptOf<(i64, Map<String, Value>)>,
    /// What is added of the log lines of its cluster's controllers, if agents tell such.
    pub logged: Option<Logged>,
}

/// How log lines are shown with what is told of parts.
#[derive(Debug, Clone, Copy)]
pub struct Logged {
    /// Whether lines are shown with these.
    pub wanted: fn(&[Value]) -> bool,
    /// Adds them; the oldest line is the first, each with its number.
    pub add: fn(&mut [Value], &[(i64, Value)]),
}

/// What is kept of an object that was told, with texts of so many characters at most.
pub type KeptOf<T> = fn(&Map<String, Value>, usize) -> T;

/// How long an agent may leave a question out before nobody is thought to follow: it asks at least every minute.
pub const QUIET_MS: i64 = 3 * 60_000;
/// When an operation has failed that nobody in a connected cluster follows, milliseconds after it began and since the
/// cluster is connected. It is looked this often.
pub const NOBODY_MS: i64 = 10 * 60_000;
/// How long it is remembered when a cluster asked.
const ASKED_FOR_MS: i64 = 3_600_000;
/// Questions that are remembered before those of long ago are forgotten.
const ASKED: usize = 1024;

/// Who waits for changes of which cluster, and when each cluster asked last what is wanted of a kind.
pub struct Followers {
    news: Mutex<HashMap<String, watch::Sender<()>>>,
    asked: Mutex<Asked>,
    /// Nobody can have asked before this gateway was there.
    since_ms: i64,
}

#[derive(Default)]
struct Asked {
    at_ms: HashMap<(String, &'static str), i64>,
    /// As many as were left when the last ones were forgotten.
    kept: usize,
}

impl Followers {
    /// From this instant on, milliseconds since 1970.
    pub fn since(since_ms: i64) -> Self {
        Self { news: Mutex::default(), asked: Mutex::default(), since_ms }
    }

    /// A cluster asks what is wanted of a kind.
    fn note(&self, cluster: &str, kind: &'static str, now_ms: i64) {
        let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.at_ms.insert((cluster.to_owned(), kind), now_ms);
        if asked.at_ms.len() > ASKED.max(2 * asked.kept) {
            asked.at_ms.retain(|_, at| now_ms - *at < ASKED_FOR_MS);
            asked.kept = asked.at_ms.len();
        }
    }

    /// When a cluster asked last what is wanted of a kind, as far as this gateway can know.
    fn asked(&self, cluster: &str, kind: &'static str) -> i64 {
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let last = asked.at_ms.get(&(cluster.to_owned(), kind)).copied();
        last.unwrap_or(self.since_ms).max(self.since_ms)
    }

    /// Changes when something that is wanted in a cluster does.
    pub fn follow(&self, cluster: &str) -> watch::Receiver<()> {
        let mut all = self.news.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(cluster) {
            return known.subscribe();
        }
        // Before there are more, those that nobody waits for any longer go.
        all.retain(|_, known| known.receiver_count() > 0);
        all.entry(cluster.to_owned()).or_default().subscribe()
    }

    fn tell(&self, cluster: &str) {
        if let Some(known) = self.news.lock().unwrap_or_else(PoisonError::into_inner).get(cluster) {
            known.send_replace(());
        }
    }

    fn tell_all(&self) {
        for known in self.news.lock().unwrap_or_else(PoisonError::into_inner).values() {
            known.send_replace(());
        }
    }
}

impl Control {
    /// When a cluster that is asked now has taken too long to do it (X4), milliseconds since 1970.
    pub fn due_ms(&self, now_ms: i64) -> i64 {
        now_ms.saturating_add(i64::try_from(self.settings.operation_timeout.as_millis()).unwrap_or(i64::MAX))
    }

    /// Why nobody does what is wanted of a kind in a cluster (its key), as far as is known here: its agents are
    /// connected, and the one that follows the kind has not asked for a while. And since when, milliseconds since 1970:
    /// while a cluster is away none of its agents can ask.
    pub fn nobody_follows(&self, cluster: &str, kind: &Followed, now_ms: i64) -> Option<(i64, String)> {
        let (missing, key) = (kind.missing?, ClusterId::from_str(cluster).ok()?.key());
        // Where another replica has a tunnel of the cluster its agents may ask there, which is not known here.
        let here = |_: &SystemTime| self.is_live(&key) && !self.is_live_elsewhere(&key);
        let connected = self.tunnels.since(&key).filter(here)?;
        let connected = connected.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
        let since_ms = self.followers.asked(cluster, kind.name).max(i64::try_from(connected).unwrap_or(i64::MAX));
        if now_ms - since_ms < QUIET_MS {
            return None;
        }
        let message = format!(
            "The cluster's agents are connected, and none of them is its {}: {}. It continues as soon as one is there.",
            kind.agent, missing
        );
        Some((since_ms, message))
    }

    /// Wakes those who wait for a change of these; `None`: of anything.
    pub(super) fn tell_followers(&self, changes: Option<&[Change]>) {
        let Some(changes) = changes else { return self.followers.tell_all() };
        for change in changes {
            let kind = match change {
                Change::Put(stored) => &stored.kind,
                Change::Deleted { kind, .. } => kind,
            };
            if self.followed(kind).is_some()
                && let Ok(id) = ResourceId::parse(change.key())
            {
                self.followers.tell(id.parent_key());
            }
        }
    }

    /// The kind of this full type, if agents follow its resources.
    pub fn followed(&self, kind: &str) -> Option<&Followed> {
        self.kinds.followed.iter().find(|known| known.name.eq_ignore_ascii_case(kind))
    }

    /// The kind of the resource of this key.
    pub(super) fn followed_at(&self, key: &str) -> Option<&Followed> {
        self.followed(ResourceId::parse(key).ok()?.kind())
    }

    /// What has changed of what is wanted in a cluster (its key), behind a position; a page. `kind`: the full type of
    /// those that are asked for; none: of all kinds.
    ///
    /// # Errors
    /// No agents follow that kind; or the store cannot be read.
    pub async fn objects(&self, cluster: &str, kind: Option<&str>, after: Option<i64>) -> Result<Objects, ApiError> {
        let kinds: Vec<&Followed> = match kind {
            None => self.kinds.followed.iter().collect(),
            Some(kind) => vec![self.followed(kind).ok_or_else(|| {
                let known: Vec<_> = self.kinds.followed.iter().map(|kind| kind.name).collect();
                let message = format!("The query parameter 'kind' must be one of {}.", known.join(", "));
                ApiError::bad_request("InvalidQueryParameterValue", message).at("kind")
            })?],
        };
        let now_ms = self.now_ms();
        kinds.iter().for_each(|kind| self.followers.note(cluster, kind.name, now_ms));
        let mut all = Objects { position: 0, identity: None, whole: false, more: false, objects: Vec::new() };
        let (mut changes, mut upto) = (Vec::new(), None::<i64>);
        for kind in kinds {
            let of = (kind.name.to_ascii_lowercase(), cluster);
            let page = self.store.changes_at(&of.0, of.1, after, OBJECTS_AT_ONCE).await?;
            all.whole |= page.whole;
            all.more |= page.more;
            // Of several kinds only what is complete of all of them.
            upto = Some(upto.map_or(page.position, |upto| upto.min(page.position)));
            changes.extend(page.changes);
        }
        all.position = upto.unwrap_or_else(|| after.unwrap_or_default());
        changes.retain(|change| change.revision() <= all.position);
        changes.sort_by_key(Change::revision);
        if changes.is_empty() {
            return Ok(all);
        }
        // Each has up to 256 KiB, which are copied and measured.
        Ok(aside(move || put_together(all, changes)).await?)
    }

    /// The object of an id, if it is one of this cluster.
    async fn object_of(&self, cluster: &str, id: &str) -> Result<Option<Stored>, StoreError> {
        let Ok(id) = ResourceId::parse(id) else { return Ok(None) };
        if id.parent_key() != cluster || self.followed(id.kind()).is_none() {
            return Ok(None);
        }
        self.store.get(id.key()).await
    }

    /// Keeps what the agents of a cluster tell of its objects.
    ///
    /// # Errors
    /// More than one message tells; or the store cannot be written.
    pub async fn objects_told(&self, cluster: &str, told: ObjectStatuses) -> Result<ObjectStatusesAnswer, ApiError> {
        if told.objects.len() > TOLD_AT_ONCE {
            let message = format!("More than {TOLD_AT_ONCE} objects in one message, the limit.");
            return Err(ApiError::bad_request("InvalidRequestContent", message));
        }
        let mut answer = ObjectStatusesAnswer::default();
        for status in told.objects {
            let id = status.id.clone();
            match self.tell_one(cluster, status).await? {
                Kept::Taken => {}
                Kept::Again => answer.again.push(id),
                Kept::Unknown => answer.unknown.push(id),
            }
        }
        Ok(answer)
    }

    async fn tell_one(&self, cluster: &str, mut status: ObjectStatus) -> Result<Kept, ApiError> {
        let Some(stored) = self.object_of(cluster, &status.id).await? else { return Ok(Kept::Unknown) };
        let Some(kind) = self.followed(&stored.kind) else { return Ok(Kept::Unknown) };
        let now_ms = self.now_ms();
        let (generation, wanted) = (status.generation, Object::of(&stored.body));
        // Of what is not wanted yet nothing can be told.
        if generation > wanted.generation {
            return Ok(if status.parts.is_some() { Kept::Again } else { Kept::Taken });
        }
        let (state, is_end) = (status.state, status.state.is_end());
        let parts = status.parts.take();
        let details = match (kind.details, &status.details) {
            (None, _) => None,
            (Some(kept), Some(Value::Object(told))) => Some(details(told, kept)),
            // What was told last still holds.
            _ => self.store.told(&stored.key).await?.and_then(|old| old.status.get("details").cloned()),
        };
        let (mut status, events) = bounded(status);
        if let Some(details) = details {
            status["details"] = details;
        }
        // Who manages it counts how many are so far, and what complies.
        let managed = match Managed::of(&stored.body) {
            Some(managed) => {
                let old = self.store.told(&stored.key).await?;
                if managed::has_finished(&status, generation, old.as_ref()) {
                    status[FINISHED] = true.into();
                }
                let is_same = old.is_some_and(|old| {
                    old.generation == generation
                        && old.status["state"] == status["state"]
                        && old.status["details"]["complianceState"] == status["details"]["complianceState"]
                });
                (!is_same).then(|| managed.key())
            }
            None => None,
        };
        // Parts before what is said of the whole, which is read before them: nobody reads that all comply beside a part
        // of before that does not.
        let kept = match (parts, kind.parts) {
            (Some(parts), Some(parted)) => self.keep_parts(cluster, &stored.key, &parts, parted).await?,
            _ => Kept::Taken,
        };
        let new = ReportedStatus { generation, told_ms: now_ms, status };
        if !self.store.keep_told(&stored.key, &new, |old| with_events(old, events.clone())).await? {
            return Ok(Kept::Unknown);
        }
        // It was to be deleted, and that had failed: now it is gone.
        let late = state == ObjectState::Deleted && !stored.is_deleting() && wanted.deleting;
        if late && generation == wanted.generation {
            let deletes = vec![(stored.key.clone(), Expect::Revision(stored.revision))];
            let _ = self.write(&Batch { deletes, ..Batch::default() }).await?;
        }
        // Also what was told before: the process that kept it may have been killed before it woke anybody.
        let mut woken = is_end && self.store.wake_operations_of(&stored.key, now_ms).await? > 0;
        if let Some(managed) = managed {
            woken |= self.store.wake_operations_of(&managed, now_ms).await? > 0;
        }
        if woken {
            self.operations.send_replace(());
        }
        Ok(kept)
    }

    async fn keep_parts(&self, cluster: &str, key: &str, told: &Parts, parted: Parted) -> Result<Kept, ApiError> {
        if told.values.len() > PARTS_OF_AN_OBJECT {
            let message = format!("More than {PARTS_OF_AN_OBJECT} parts in one message, the limit.");
            return Err(ApiError::bad_request("InvalidRequestContent", message));
        }
        let named = told.values.iter().filter(|(name, _)| (1..=PART_NAME_BYTES).contains(&name.len()));
        let parts: Vec<Part> = named.map(|(name, told)| part(name, told.as_ref(), parted)).collect();
        let told = PartsTold { key, cluster, after: told.after, position: told.position, parts: &parts };
        Ok(self.store.keep_parts(told, ROOM_OF_AN_OBJECT, ROOM_OF_A_CLUSTER).await?)
    }

    /// The protected settings of an object of a cluster, for the agents of this cluster alone.
    ///
    /// # Errors
    /// It has others by now, or they are not kept any more.
    pub async fn protected_of(
        &self,
        cluster: &str,
        question: &ProtectedQuestion,
    ) -> Result<ProtectedSettings, ApiError> {
        let stored = self.object_of(cluster, &question.id).await?.ok_or_else(unknown_object)?;
        if Object::of(&stored.body).protected.as_ref() != Some(&question.protected) {
            let message = "The object has other protected settings by now; ask for those.";
            return Err(ApiError::of(StatusCode::CONFLICT, "ProtectedSettingsChanged", message));
        }
        let Some(sealed) = &stored.protected else {
            let renew = self.followed(&stored.kind).map_or("", |kind| kind.renew);
            let message = format!(
                "The gateway keeps protected settings for 48 hours, which have passed; they must be given again ({renew})."
            );
            return Err(ApiError::of(StatusCode::GONE, codes::PROTECTED_SETTINGS_GONE, message));
        };
        let unsealed = self.unseal(&stored.key, sealed);
        let places = unsealed.as_ref().and_then(Value::as_object).ok_or_else(|| {
            ApiError::internal("protected settings cannot be read; is [api].store_key_file the same?")
        })?;
        let settings = places.iter().flat_map(|(place, value)| settings_at(place, value)).collect();
        Ok(ProtectedSettings { settings })
    }

    /// Takes away protected settings that have been kept as long as they may be. The object then says that they must be
    /// given again.
    pub async fn forget_protected(&self) -> Result<(), StoreError> {
        loop {
            let keys = self.store.protected_too_long(self.now_ms(), AT_ONCE).await?;
            let more = keys.len() == AT_ONCE as usize;
            let before = keys.first().cloned();
            self.forget_protected_of(keys).await?;
            // One that somebody writes over and over is looked at again the next time.
            if !more || self.store.protected_too_long(self.now_ms(), 1).await?.first() == before.as_ref() {
                return Ok(());
            }
        }
    }

    async fn forget_protected_of(&self, keys: Vec<String>) -> Result<(), StoreError> {
        for key in keys {
            let mut batch = Batch { protected_until: vec![(key.clone(), None)], ..Batch::default() };
            if let Some(mut stored) = self.store.get(&key).await?.filter(|stored| stored.protected.is_some()) {
                stored.protected = None;
                let revision = stored.revision;
                batch.puts.push((stored, Expect::Revision(revision)));
            }
            match self.write(&batch).await? {
                // Written by somebody else meanwhile: looked at again the next time.
                Ok(_)
                | Err(
                    Refused::Changed { .. }
                    | Refused::NotEmpty { .. }
                    | Refused::Full { .. }
                    | Refused::TooManyOperations { .. }
                    | Refused::NoParent { .. },
                ) => {}
            }
        }
        Ok(())
    }
}

/// The refusal to an agent that asks for an object which its cluster does not have.
pub fn unknown_object() -> ApiError {
    ApiError::of(StatusCode::NOT_FOUND, "ResourceNotFound", "There is no such object.")
}

/// The settings that are kept at a place: those of a map by their names, and a text by its place among the properties,
/// such as `azureBlob.accountKey`.
fn settings_at(place: &str, value: &Value) -> Vec<(String, String)> {
    let text = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
    match value {
        Value::Object(settings) => settings.iter().filter_map(text).collect(),
        Value::String(text) => vec![(place.strip_prefix("properties.").unwrap_or(place).to_owned(), text.clone())],
        _ => Vec::new(),
    }
}

/// Puts changes, in their order, into an answer of as many as fit.
fn put_together(mut all: Objects, changes: Vec<Change>) -> Objects {
    let (mut bytes, mut last) = (0, None);
    for change in changes {
        let revision = change.revision();
        let object = wanted(change);
        bytes += object.spec.as_ref().map_or(0, |spec| spec.to_string().len()) + object.id.len();
        if bytes > OBJECTS_BYTES / 2 && last.is_some_and(|last| last < revision) {
            all.position = last.unwrap_or_default();
            all.more = true;
            break;
        }
        last = Some(revision);
        all.objects.push(object);
    }
    all
}

fn wanted(change: Change) -> Wanted {
    let gone = |id: String, kind: String, generation: i64| Wanted {
        id,
        kind,
        generation,
        spec: None,
        deleting: false,
        protected: None,
        operation: None,
        principal_id: None,
    };
    let mut stored = match change {
        Change::Put(stored) => stored,
        Change::Deleted { key, kind, revision } => return gone(key, kind, revision),
    };
    let Object { generation, operation, protected, deleting } = Object::of(&stored.body);
    let principal_id = stored.body.get("identity").and_then(|identity| identity.get("principalId")?.as_str());
    let principal_id = principal_id.map(str::to_owned);
    let spec = stored.body.as_object_mut().map(|body| std::mem::take(properties_mut(body)));
    let mut spec = spec.unwrap_or_default();
    spec.remove("provisioningState");
    Wanted {
        operation,
        protected,
        spec: Some(Value::Object(spec)),
        deleting,
        principal_id,
        ..gone(stored.id, stored.kind, generation)
    }
}

fn cut(text: &mut String, characters: usize) {
    if let Some((at, _)) = text.char_indices().nth(characters) {
        text.truncate(at);
    }
    // A column of PostgreSQL takes any other character.
    if text.contains('\0') {
        *text = text.replace('\0', "");
    }
}

/// What is kept of what was told, and its events.
fn bounded(mut told: ObjectStatus) -> (Value, Vec<ObjectEvent>) {
    if let Some(version) = &mut told.current_version {
        cut(version, WORD);
    }
    if let Some(error) = &mut told.error {
        cut(&mut error.code, WORD);
        cut(&mut error.message, TEXT);
    }
    told.statuses.truncate(LINES);
    for StatusLine { code, display_status, level, message, time } in &mut told.statuses {
        [code, level, time].into_iter().for_each(|word| cut(word, WORD));
        [display_status, message].into_iter().for_each(|text| cut(text, TEXT));
    }
    let bytes = |lines: &Vec<StatusLine>| serde_json::to_vec(lines).map_or(0, |text| text.len());
    while bytes(&told.statuses) > LINES_BYTES && told.statuses.pop().is_some() {}
    let mut events = told.events;
    let more = events.len().saturating_sub(EVENTS);
    events.drain(..more);
    for event in &mut events {
        for word in [&mut event.phase, &mut event.level, &mut event.reason, &mut event.first, &mut event.last] {
            cut(word, WORD);
        }
        cut(&mut event.message, TEXT);
        for word in [&mut event.operation, &mut event.object].into_iter().flatten() {
            cut(word, 4 * WORD);
        }
    }
    let status = json!({
        "state": told.state,
        "currentVersion": told.current_version,
        "error": told.error,
        "statuses": told.statuses,
    });
    (status, events)
}

/// What is kept of the details of an object: texts are cut until all of them fit.
fn details(told: &Map<String, Value>, kept: KeptOf<Map<String, Value>>) -> Value {
    let kept = [TEXT, TEXT / 8].map(|characters| Value::Object(kept(told, characters)));
    kept.into_iter().find(|kept| kept.to_string().len() <= DETAILS_BYTES).unwrap_or_else(|| json!({}))
}

/// What is kept of what is told of a part; one that is too large for that is as if it were not there.
fn part(name: &str, told: Option<&Value>, parted: Parted) -> Part {
    let told = told.and_then(Value::as_object);
    for characters in [TEXT, TEXT / 8, TEXT / 64] {
        let Some((rank, kept)) = told.map(|told| (parted.kept)(told, characters)) else { break };
        let kept = Value::Object(kept);
        if kept.to_string().len() <= PART_BYTES {
            return Part { name: name.to_owned(), rank, told: Some(kept) };
        }
    }
    Part { name: name.to_owned(), rank: 0, told: None }
}

/// The events of an object with those that are new: one that was told before, by its number and when it first happened,
/// is as it was told last. Who has lost count begins again at one, with another beginning.
fn with_events(mut kept: Vec<Value>, new: Vec<ObjectEvent>) -> Vec<Value> {
    for event in new {
        let is = |old: &Value| old["number"] == event.number && old["first"] == event.first;
        let place = kept.iter().position(is);
        let Ok(event) = serde_json::to_value(&event) else { continue };
        match place {
            Some(place) => kept[place] = event,
            None => kept.push(event),
        }
    }
    let mut bytes = 0;
    let fits = |event: &&Value| {
        bytes += event.to_string().len();
        bytes <= EVENTS_BYTES
    };
    let fit = kept.iter().rev().take(EVENTS).take_while(fits).count();
    kept.drain(..kept.len() - fit);
    kept
}

/// Says in a body that its deletion has begun, or that it is not being deleted.
pub fn mark_deleting(stored: &mut Stored, deleting: bool) {
    let Some(body) = stored.body.as_object_mut() else { return };
    let properties = properties_mut(body);
    match deleting {
        true => drop(properties.insert("provisioningState".to_owned(), "Deleting".into())),
        false => drop(properties.remove("provisioningState")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(number: u64, first: &str, count: u32) -> ObjectEvent {
        ObjectEvent {
            number,
            operation: None,
            phase: "Create".to_owned(),
            level: "Normal".to_owned(),
            reason: "Installed".to_owned(),
            message: "m".to_owned(),
            object: None,
            first: first.to_owned(),
            last: first.to_owned(),
            count,
        }
    }

    #[test]
    fn d4_an_event_that_is_told_again_is_there_once_and_the_oldest_go() {
        let kept = with_events(Vec::new(), vec![event(1, "t1", 1), event(2, "t2", 1)]);
        let kept = with_events(kept, vec![event(2, "t2", 5), event(3, "t3", 1)]);
        let numbers: Vec<_> = kept.iter().map(|one| (one["number"].as_u64(), one["count"].as_u64())).collect();
        assert_eq!(numbers, [(Some(1), Some(1)), (Some(2), Some(5)), (Some(3), Some(1))]);
        // An agent that was installed anew counts from one.
        let kept = with_events(kept, vec![event(1, "t9", 1)]);
        assert_eq!(kept.len(), 4);
        let kept = with_events(kept, (10..310).map(|number| event(number, "t", 1)).collect());
        assert_eq!((kept.len(), kept[0]["number"].as_u64()), (EVENTS, Some(110)));
    }

    #[test]
    fn e9_what_a_cluster_tells_is_bounded() {
        let long = "ä\0".repeat(10_000);
        let line = StatusLine {
            code: long.clone(),
            display_status: long.clone(),
            level: long.clone(),
            message: long.clone(),
            time: long.clone(),
        };
        let told = ObjectStatus {
            id: String::new(),
            generation: 1,
            state: ObjectState::Failed,
            current_version: Some(long.clone()),
            error: None,
            statuses: vec![line; 1000],
            events: vec![event(1, &long, 1); 1000],
            details: None,
            parts: None,
        };
        let (status, events) = bounded(told);
        assert!(status["statuses"].as_array().is_some_and(|lines| (1..=LINES).contains(&lines.len())));
        assert!(!status.to_string().contains("\\u0000"));
        assert!(events.len() <= EVENTS && events[0].first.chars().count() <= WORD);
        assert!(status["statuses"].to_string().len() <= LINES_BYTES);
        assert!(Value::Array(with_events(Vec::new(), events)).to_string().len() <= EVENTS_BYTES + EVENTS + 2);
    }

    #[test]
    fn who_waits_for_a_cluster_is_woken_by_that_one_alone_and_forgotten_afterwards() {
        let followers = Followers::since(0);
        let (mut a, b) = (followers.follow("a"), followers.follow("b"));
        followers.tell("a");
        assert!(a.has_changed().unwrap() && !b.has_changed().unwrap());
        a.mark_unchanged();
        followers.tell_all();
        assert!(a.has_changed().unwrap() && b.has_changed().unwrap());
        drop((a, b));
        let _c = followers.follow("c");
        assert_eq!(followers.news.lock().unwrap().len(), 1);
    }
}
