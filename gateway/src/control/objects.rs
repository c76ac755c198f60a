//! What is wanted in clusters beside their agents, such as extensions: as agents follow it, each the objects of its own
//! cluster, and what they tell of it (`types::agent_api`; docs/features.md E1, E6, E9, D4). A change wakes the agents of
//! its own cluster and no others; what is told wakes nobody but the operations that wait for it.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use http::StatusCode;
use serde_json::{Value, json};
use tokio::sync::watch;
use types::{
    agent_api::{
        OBJECTS_AT_ONCE, OBJECTS_BYTES, Object as Wanted, ObjectEvent, ObjectState, ObjectStatus, ObjectStatuses,
        ObjectStatusesAnswer, Objects, ProtectedQuestion, ProtectedSettings, StatusLine,
    },
    api::ResourceId,
};

use super::Control;
use crate::{
    api_error::ApiError,
    object::Object,
    store::{
        StoreError,
        batch::{Batch, Expect, Refused},
        changes::Change,
        resources::Stored,
        statuses::Told,
    },
    stored::{properties, properties_mut},
};

/// How long protected settings are kept, milliseconds: 48 hours (E6) without what passes until it is looked for.
pub const PROTECTED_FOR_MS: i64 = (48 * 60 - 20) * 60 * 1000;
/// How long a cluster may take to do what is wanted, milliseconds (X4).
pub const DUE_MS: i64 = 48 * 3600 * 1000;
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
/// Protected settings that are taken away at once.
const AT_ONCE: u32 = 100;

/// Who waits for changes of which cluster.
#[derive(Default)]
pub struct Followers(Mutex<HashMap<String, watch::Sender<()>>>);

impl Followers {
    /// Changes when something that is wanted in a cluster does.
    pub fn follow(&self, cluster: &str) -> watch::Receiver<()> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(cluster) {
            return known.subscribe();
        }
        // Before there are more, those that nobody waits for any longer go.
        all.retain(|_, known| known.receiver_count() > 0);
        all.entry(cluster.to_owned()).or_default().subscribe()
    }

    fn tell(&self, cluster: &str) {
        if let Some(known) = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(cluster) {
            known.send_replace(());
        }
    }

    fn tell_all(&self) {
        for known in self.0.lock().unwrap_or_else(PoisonError::into_inner).values() {
            known.send_replace(());
        }
    }
}

impl Control {
    /// Wakes those who wait for a change of these; `None`: of anything.
    pub(super) fn tell_followers(&self, changes: Option<&[Change]>) {
        let Some(changes) = changes else { return self.followers.tell_all() };
        for change in changes {
            let kind = match change {
                Change::Put(stored) => &stored.kind,
                Change::Deleted { kind, .. } => kind,
            };
            if self.is_followed(kind)
                && let Ok(id) = ResourceId::parse(change.key())
            {
                self.followers.tell(id.parent_key());
            }
        }
    }

    /// Whether agents follow resources of a kind.
    fn is_followed(&self, kind: &str) -> bool {
        self.kinds.followed.iter().any(|known| known.eq_ignore_ascii_case(kind))
    }

    /// What has changed of what is wanted in a cluster (its key), behind a position; a page.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub async fn objects(&self, cluster: &str, after: Option<i64>) -> Result<Objects, StoreError> {
        let mut all = Objects { position: 0, whole: false, more: false, objects: Vec::new() };
        let (mut changes, mut upto) = (Vec::new(), None::<i64>);
        for kind in &self.kinds.followed {
            let of = (kind.to_ascii_lowercase(), cluster);
            let page = self.store.changes_at((&of.0, of.1), after, OBJECTS_AT_ONCE).await?;
            all.whole |= page.whole;
            all.more |= page.more;
            // Of several kinds only what is complete of all of them.
            upto = Some(upto.map_or(page.position, |upto| upto.min(page.position)));
            changes.extend(page.changes);
        }
        all.position = upto.unwrap_or_else(|| after.unwrap_or_default());
        changes.retain(|change| change.revision() <= all.position);
        changes.sort_by_key(Change::revision);
        let (mut bytes, mut last) = (0, None);
        for change in changes {
            let (object, revision) = (wanted(&change), change.revision());
            bytes += object.spec.as_ref().map_or(0, |spec| spec.to_string().len()) + object.id.len();
            if bytes > OBJECTS_BYTES / 2 && last.is_some_and(|last| last < revision) {
                all.position = last.unwrap_or_default();
                all.more = true;
                break;
            }
            last = Some(revision);
            all.objects.push(object);
        }
        Ok(all)
    }

    /// The object of an id, if it is one of this cluster.
    async fn object_of(&self, cluster: &str, id: &str) -> Result<Option<Stored>, StoreError> {
        let Ok(id) = ResourceId::parse(id) else { return Ok(None) };
        if id.parent_key() != cluster || !self.is_followed(id.kind()) {
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
            if !self.tell_one(cluster, status).await? {
                answer.unknown.push(id);
            }
        }
        Ok(answer)
    }

    async fn tell_one(&self, cluster: &str, status: ObjectStatus) -> Result<bool, ApiError> {
        let Some(stored) = self.object_of(cluster, &status.id).await? else { return Ok(false) };
        let now_ms = self.now_ms();
        let (generation, wanted) = (status.generation, Object::of(&stored.body));
        // Of what is not wanted yet nothing can be told.
        if generation > wanted.generation {
            return Ok(true);
        }
        let (state, is_end) = (status.state, status.state.is_end());
        let (status, events) = bounded(status);
        let new = Told { generation, told_ms: now_ms, status };
        if !self.store.keep_told(&stored.key, &new, |old| with_events(old, events)).await? {
            return Ok(false);
        }
        // It was to be deleted, and that had failed: now it is gone.
        let late = state == ObjectState::Deleted && !stored.is_deleting() && wanted.deleting;
        if late && generation == wanted.generation {
            let deletes = vec![(stored.key.clone(), Expect::Revision(stored.revision))];
            let _ = self.write(&Batch { deletes, ..Batch::default() }).await?;
        }
        // Also what was told before: the process that kept it may have been killed before it woke anybody.
        if is_end && self.store.wake_operations_of(&stored.key, now_ms).await? > 0 {
            self.operations.notify_one();
        }
        Ok(true)
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
        let unknown = || ApiError::of(StatusCode::NOT_FOUND, "ResourceNotFound", "There is no such object.");
        let stored = self.object_of(cluster, &question.id).await?.ok_or_else(unknown)?;
        if Object::of(&stored.body).protected.as_ref() != Some(&question.protected) {
            let message = "The object has other protected settings by now; ask for those.";
            return Err(ApiError::of(StatusCode::CONFLICT, "ProtectedSettingsChanged", message));
        }
        let Some(sealed) = &stored.protected else {
            let message = "The gateway keeps protected settings for 48 hours, which have passed; they must be given again (towline extension update --protected).";
            return Err(ApiError::of(StatusCode::GONE, "ProtectedSettingsGone", message));
        };
        let unsealed = self.unseal(&stored.key, sealed);
        let places = unsealed.as_ref().and_then(Value::as_object).ok_or_else(|| {
            ApiError::internal("protected settings cannot be read; is [api].store_key_file the same?")
        })?;
        let text = |(name, value): (&String, &Value)| Some((name.clone(), value.as_str()?.to_owned()));
        let settings = places.values().filter_map(Value::as_object).flatten().filter_map(text).collect();
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
                Ok(_) | Err(Refused::Changed { .. } | Refused::NotEmpty { .. } | Refused::NoParent { .. }) => {}
            }
        }
        Ok(())
    }
}

fn wanted(change: &Change) -> Wanted {
    let gone = |key: &str, kind: &str| Wanted {
        id: key.to_owned(),
        kind: kind.to_owned(),
        generation: 0,
        spec: None,
        deleting: false,
        protected: None,
        operation: None,
        principal_id: None,
    };
    let stored = match change {
        Change::Put(stored) => stored,
        Change::Deleted { key, kind, .. } => return gone(key, kind),
    };
    let Object { generation, operation, protected, deleting } = Object::of(&stored.body);
    let mut spec = stored.body.as_object().and_then(properties).cloned().unwrap_or_default();
    spec.remove("provisioningState");
    let principal_id = stored.body.get("identity").and_then(|identity| identity.get("principalId")?.as_str());
    Wanted {
        generation,
        operation,
        protected,
        spec: Some(Value::Object(spec)),
        deleting,
        principal_id: principal_id.map(str::to_owned),
        ..gone(&stored.id, &stored.kind)
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
        let followers = Followers::default();
        let (mut a, b) = (followers.follow("a"), followers.follow("b"));
        followers.tell("a");
        assert!(a.has_changed().unwrap() && !b.has_changed().unwrap());
        a.mark_unchanged();
        followers.tell_all();
        assert!(a.has_changed().unwrap() && b.has_changed().unwrap());
        drop((a, b));
        let _c = followers.follow("c");
        assert_eq!(followers.0.lock().unwrap().len(), 1);
    }
}
