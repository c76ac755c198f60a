//! Tells the gateway how far objects are and what happened (docs/features.md D4): only what it has not taken yet, and
//! again until it answers. What is gone from the cluster leaves it for good when the gateway knows.

use std::{
    sync::PoisonError,
    time::{Duration, Instant},
};

use catalogue::digest::Sha256;
use daemon::{Backoff, random_unit};
use types::agent_api::{
    BODY_BYTES, ObjectEvent, ObjectState, ObjectStatus, ObjectStatuses, PART_BYTES, PART_NAME_BYTES, Parts,
};

use super::{
    Kind,
    follow::Follow,
    gateway::Gateway,
    parts::{self, Ledger},
    state::{Acknowledged, Item},
    store::Store,
};
use crate::{chain, tunnel::api::AGAIN};

/// Bytes of one message, and events of one object in it: the rest follows in the next.
const MESSAGE_BYTES: usize = BODY_BYTES * 3 / 4;
const EVENTS_AT_ONCE: usize = 50;
/// Parts are told where a message has room for the longest one.
const PARTS_ROOM: usize = PART_BYTES + PART_NAME_BYTES + 64;
/// Objects of one message, which the gateway bounds too.
const OBJECTS_AT_ONCE: usize = 100;
/// Changes that come together are told together.
const TOGETHER: Duration = Duration::from_millis(300);
/// How often it is looked whether something is to be told, though nothing changed.
const LOOK: Duration = Duration::from_secs(60);

/// Tells the gateway.
pub struct Report<'a, G, K: Kind> {
    /// Whom to tell.
    pub gateway: &'a G,
    /// What there is to tell.
    pub store: &'a Store<K>,
    /// What was refused.
    pub follow: &'a Follow<'a, G, K>,
    /// What there is to tell of parts, where the kind has some.
    pub parts: Option<&'a Ledger>,
}

/// What is to be told of an object, and what has been told when that was taken.
fn untold<K: Kind>(item: &Item<K>, parts: Option<Parts>, most: usize) -> Option<(ObjectStatus, Acknowledged)> {
    let (status, told) = (&item.status, &item.told);
    let state = status.state?;
    let digest = digest(item);
    let is_new = |event: &&ObjectEvent| event.number > told.event || event.last >= told.last;
    let changed = digest != told.digest
        || status.record.last_event > told.event
        || status.events.iter().any(|event| event.last > told.last);
    if !changed && parts.is_none() {
        return None;
    }
    let events: Vec<_> = status.events.iter().filter(is_new).take(most).cloned().collect();
    let next = Acknowledged {
        digest,
        event: events.iter().map(|event| event.number).max().unwrap_or(0).max(told.event),
        last: events.iter().map(|event| event.last.clone()).max().unwrap_or_default().max(told.last.clone()),
    };
    let status = ObjectStatus {
        id: item.wanted.id.clone(),
        generation: status.observed_generation,
        state,
        current_version: status.current_version.clone(),
        error: status.error_info.clone(),
        statuses: status.statuses.clone(),
        events,
        details: K::details(status),
        parts,
    };
    Some((status, next))
}

fn size(status: &ObjectStatus) -> usize {
    serde_json::to_vec(status).map_or(usize::MAX, |bytes| bytes.len())
}

/// What is to be told of an object in a message that has so many bytes: the status first, with as many events as fit, and
/// as many parts as there is room for.
fn fitted<K: Kind>(
    item: &Item<K>,
    ledger: Option<&Ledger>,
    bytes: usize,
) -> Option<(ObjectStatus, Acknowledged, Option<parts::PartsMessage>)> {
    let none = || Some(Parts { after: None, position: 0, values: Default::default() });
    let (mut events, mut alone) = (EVENTS_AT_ONCE, size(&untold(item, none(), EVENTS_AT_ONCE)?.0));
    while alone > MESSAGE_BYTES && events > 1 {
        events /= 2;
        alone = size(&untold(item, none(), events)?.0);
    }
    let room = MESSAGE_BYTES.saturating_sub(bytes).saturating_sub(alone);
    let parts = ledger.filter(|_| room >= PARTS_ROOM);
    let parts = parts.and_then(|ledger| ledger.next(&item.name, item.status.observed_generation, room));
    let (status, next) = untold(item, parts.as_ref().map(|told| told.parts.clone()), events)?;
    Some((status, next, parts))
}

/// Names what is told of an object beside its events and parts.
fn digest<K: Kind>(item: &Item<K>) -> String {
    let status = &item.status;
    let told = serde_json::json!([
        item.wanted.id,
        status.observed_generation,
        status.state,
        status.current_version,
        status.error_info,
        status.statuses,
        K::details(status),
    ]);
    Sha256::of(told.to_string().as_bytes()).to_string()
}

impl<G: Gateway, K: Kind> Report<'_, G, K> {
    /// Tells for ever.
    pub async fn run(&self) {
        let mut changes = self.store.changes();
        let mut backoff = Backoff::new(AGAIN);
        loop {
            self.gateway.up().await;
            changes.mark_unchanged();
            let wait = match self.tell().await {
                Ok(true) => {
                    backoff.reset();
                    continue;
                }
                Ok(false) => {
                    backoff.reset();
                    self.parts.and_then(Ledger::wait).map_or(LOOK, |wait| wait.min(LOOK))
                }
                Err(error) => {
                    tracing::debug!(error, kind = K::TYPE, "what became of objects is not told");
                    tokio::time::sleep(backoff.failed(Instant::now(), 0.5 + random_unit() / 2.0)).await;
                    continue;
                }
            };
            let _ = tokio::time::timeout(wait, changes.changed()).await;
            tokio::time::sleep(TOGETHER).await;
        }
    }

    /// Tells as much as a message holds; whether there was something.
    async fn tell(&self) -> Result<bool, String> {
        let refused: Vec<_> = std::mem::take(&mut *self.follow.refused.lock().unwrap_or_else(PoisonError::into_inner));
        let mut message = ObjectStatuses { objects: Vec::new() };
        let (mut bytes, mut told, mut left) = (0, Vec::new(), Vec::new());
        for status in refused {
            let more = size(&status);
            if bytes + more > MESSAGE_BYTES || message.objects.len() >= OBJECTS_AT_ONCE {
                left.push(status);
            } else {
                bytes += more;
                message.objects.push(status);
            }
        }
        for item in self.store.all() {
            let Some((status, next, parts)) = fitted(&item, self.parts, bytes) else { continue };
            bytes += size(&status);
            let full = bytes > MESSAGE_BYTES && !message.objects.is_empty();
            if full || message.objects.len() >= OBJECTS_AT_ONCE {
                break;
            }
            told.push((item, next, parts));
            message.objects.push(status);
        }
        let refused_count = message.objects.len() - told.len();
        let answer = match message.objects.is_empty() {
            true => return Ok(false),
            false => self.gateway.statuses(&message).await,
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(err) => {
                left.extend(message.objects.drain(..refused_count));
                self.put_back(left);
                return Err(chain(&err));
            }
        };
        self.put_back(left);
        for (item, next, parts) in told {
            let (name, id) = (&item.name, &item.wanted.id);
            let is_among = |ids: &[String]| ids.iter().any(|one| one.eq_ignore_ascii_case(id));
            self.took_parts(name, parts, is_among(&answer.again));
            let is_gone = item.status.state == Some(ObjectState::Deleted);
            // A newer wish may have come while this was told.
            let still = self.store.get(name).is_some_and(|now| now.wanted.deleting && now.wanted == item.wanted);
            if is_gone && still && (is_among(&answer.unknown) || next.event >= item.status.record.last_event) {
                self.store.remove(&item).await?;
            } else {
                self.store.set_told(name, &next).await?;
            }
        }
        Ok(true)
    }

    fn took_parts(&self, name: &str, parts: Option<parts::PartsMessage>, again: bool) {
        let Some(ledger) = self.parts else { return };
        if again {
            ledger.again(name);
        } else if let Some(parts) = parts {
            ledger.taken(name, parts);
        }
    }

    fn put_back(&self, mut left: Vec<ObjectStatus>) {
        let mut refused = self.follow.refused.lock().unwrap_or_else(PoisonError::into_inner);
        left.retain(|one| !refused.iter().any(|newer| newer.id == one.id));
        refused.extend(left);
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::roles::{
        extension_manager::Extensions,
        objects::state::{Happened, Phase, Status, Wanted},
    };

    #[test]
    fn g6_message_has_room_for_the_status_before_the_parts() {
        let ledger = Ledger::after(SystemTime::UNIX_EPOCH);
        ledger.set("web", (0..2000).map(|n| (format!("part{n}"), "y".repeat(300).into())).collect());
        let mut item = Item {
            name: "web".to_owned(),
            uid: "u".to_owned(),
            created: String::new(),
            wanted: Wanted::default(),
            status: Status::<Extensions> { state: Some(ObjectState::Failed), ..Status::default() },
            told: Acknowledged::default(),
            bytes: 0,
        };
        // Characters of three bytes, and such that are escaped.
        for (at, character) in ["語", "\"", "\n"].iter().cycle().take(90).enumerate() {
            let message = format!("{}{at}", character.repeat(2000));
            let what = Happened { phase: Phase::Create, warning: true, reason: "R", message: &message, object: None };
            let at_time = SystemTime::UNIX_EPOCH + Duration::from_secs(at as u64);
            item.status.event(None, &what, at_time);
            item.status.line(&at.to_string(), "Failed", "Error", &"語".repeat(3000), at_time);
        }
        let mut events = 0;
        for _ in 0..20 {
            let Some((status, next, parts)) = fitted(&item, Some(&ledger), 0) else { break };
            assert!(size(&status) <= MESSAGE_BYTES + PARTS_ROOM, "{}", size(&status));
            events = next.event;
            item.told = next;
            if let Some(parts) = parts {
                ledger.taken("web", parts);
            }
        }
        assert_eq!(events, 90, "all are told after a while");
        assert!(fitted(&item, Some(&ledger), 0).is_none(), "and all parts");
    }

    #[test]
    fn d4_events_are_told_once_in_order_and_in_parts() {
        let mut extension = Item {
            name: "web".to_owned(),
            uid: "u".to_owned(),
            created: String::new(),
            wanted: Wanted::default(),
            status: Status::<Extensions> { state: Some(ObjectState::Creating), ..Status::default() },
            told: Acknowledged::default(),
            bytes: 0,
        };
        assert!(untold(&extension, None, EVENTS_AT_ONCE).is_some());
        let happened = |n: u64, extension: &mut Item<Extensions>| {
            let message = n.to_string();
            let what = Happened { phase: Phase::Create, warning: false, reason: "R", message: &message, object: None };
            extension.status.event(None, &what, SystemTime::UNIX_EPOCH + Duration::from_secs(n));
        };
        (1..=70).for_each(|n| happened(n, &mut extension));
        let (first, told) = untold(&extension, None, EVENTS_AT_ONCE).unwrap();
        assert_eq!((first.events.len(), first.events[0].number), (EVENTS_AT_ONCE, 1));
        extension.told = told;
        let (second, told) = untold(&extension, None, EVENTS_AT_ONCE).unwrap();
        assert_eq!(second.events.last().map(|event| event.number), Some(70));
        assert!(second.events.first().is_some_and(|event| event.number <= 51));
        extension.told = told;
        assert_eq!(untold(&extension, None, EVENTS_AT_ONCE), None);
        // One that happens again is told with its count.
        let what = Happened { phase: Phase::Create, warning: false, reason: "R", message: "70", object: None };
        extension.status.event(None, &what, SystemTime::UNIX_EPOCH + Duration::from_secs(99));
        let (again, told) = untold(&extension, None, EVENTS_AT_ONCE).unwrap();
        assert!(again.events.iter().any(|event| event.number == 70 && event.count == 2));
        extension.told = told;
        assert_eq!(untold(&extension, None, EVENTS_AT_ONCE), None);
        extension.status.state = Some(ObjectState::Succeeded);
        assert!(untold(&extension, None, EVENTS_AT_ONCE).is_some());
    }
}
