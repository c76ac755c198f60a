//! What happens to clusters, as it is told to whoever may read them: as a list ([`crate::api::events`]), as a stream of
//! server-sent events, and by webhooks of the configuration ([`crate::webhooks`]); everywhere as CloudEvents 1.0.
//!
//! The store numbers events ([`crate::store::events`]); who follows names the last number that is known and misses
//! nothing that is not forgotten; of what is, an event of the type [`GAP`] tells, in lists and streams.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use daemon::shares::share;
use http::{StatusCode, header};
use serde_json::{Value, json};
use tokio::sync::watch;
use types::{api::ResourceId, instants::instant};

use crate::{
    api_error::ApiError,
    store::events::{Event, type_of},
};

/// Streams of events at once,
const STREAMS: u32 = 512;
/// and of one caller.
const OF_ONE_CALLER: u32 = 16;

/// What those who tell and those who listen share.
pub struct Notices {
    newest: watch::Sender<i64>,
    ended: watch::Sender<bool>,
    /// Open event streams, counted by caller.
    pub listeners: Listeners,
}

impl Default for Notices {
    fn default() -> Self {
        Self { newest: watch::Sender::new(0), ended: watch::Sender::new(false), listeners: Listeners::default() }
    }
}

impl Notices {
    /// The number of the newest event that this process knows of; changes wake.
    pub fn newest(&self) -> watch::Receiver<i64> {
        self.newest.subscribe()
    }

    /// Wakes those who wait for newer events, if this number is newer than what is known.
    pub fn tell_newest(&self, newest: i64) {
        self.newest.send_if_modified(|known| std::mem::replace(known, newest) != newest);
    }

    /// Ends streams: the gateway drains.
    pub fn end(&self) {
        self.ended.send_replace(true);
    }

    /// True once the gateway drains.
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }
}

/// An event as everybody is told it (CloudEvents 1.0, structured JSON).
pub fn cloud_event(event: &Event, source: &str) -> Value {
    let mut data = json!({"resourceId": event.id});
    for (name, status) in [("status", &event.status), ("previousStatus", &event.before)] {
        if let Some(status) = status {
            data[name] = status.as_str().into();
        }
    }
    for (name, value) in event.detail.iter().filter_map(Value::as_object).flatten() {
        data[name] = value.clone();
    }
    json!({
        "specversion": "1.0",
        "id": event.number.to_string(),
        "source": source,
        "type": type_of(event.kind),
        "subject": event.id,
        "time": instant(event.at_ms),
        "datacontenttype": "application/json",
        "data": data,
    })
}

/// The type of what tells that events are missing: they were forgotten, or the store is an older one than the client
/// knew.
pub const GAP: &str = "io.towline.events.gap";

/// Where somebody goes on who has been told all up to `after`, while the newest is `newest` and those up to `forgotten`
/// may have been forgotten; and what they miss, if that is not right behind it.
pub fn resume(after: i64, newest: i64, forgotten: i64) -> (i64, Option<String>) {
    if after > newest {
        let why = format!(
            "Event {after} is not known here, the newest is {newest}: the store is an older one than before. It goes on with what happens next."
        );
        return (newest, Some(why));
    }
    if after < forgotten {
        return (forgotten, Some(forgot(after, forgotten)));
    }
    (after, None)
}

/// Why the events behind `after` up to `last` are not told.
pub fn forgot(after: i64, last: i64) -> String {
    format!("The events {} to {last} are no longer kept. Read the clusters anew; it goes on behind them.", after + 1)
}

/// A gap as an event at a scope: its id is the number that it goes on behind.
pub fn gap(scope: &ResourceId, number: i64, why: &str, now_ms: i64, source: &str) -> Value {
    json!({
        "specversion": "1.0",
        "id": number.to_string(),
        "source": source,
        "type": GAP,
        "subject": scope.as_str(),
        "time": instant(now_ms),
        "datacontenttype": "application/json",
        "data": {"resourceId": scope.as_str(), "reason": why},
    })
}

/// Who listens: how many streams each caller has.
#[derive(Default)]
pub struct Listeners(Arc<Mutex<HashMap<String, u32>>>);

/// One stream's place, given back on drop.
pub struct Listening {
    places: Arc<Mutex<HashMap<String, u32>>>,
    caller: String,
}

impl Listeners {
    /// A place for one more stream of a caller.
    ///
    /// # Errors
    /// 429: as many are open, of all or of this caller.
    pub fn enter(&self, caller: &str) -> Result<Listening, ApiError> {
        let full = |whose: &str, bound: u32| {
            let message = format!("{bound} streams of events{whose} are open, the limit; end one or try again.");
            ApiError::of(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).with(header::RETRY_AFTER, "10")
        };
        let mut taken = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all: u32 = taken.values().sum();
        if all >= STREAMS {
            return Err(full("", STREAMS));
        }
        // The last ones are for those who have none.
        let allowed = OF_ONE_CALLER.min(share(STREAMS, all, 1));
        let own = taken.get(caller).copied().unwrap_or_default();
        if own >= allowed {
            return Err(full(" of yours", allowed));
        }
        taken.insert(caller.to_owned(), own + 1);
        Ok(Listening { places: Arc::clone(&self.0), caller: caller.to_owned() })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut taken = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = taken.get_mut(&self.caller) {
            *own -= 1;
            if *own == 0 {
                taken.remove(&self.caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::events::Kind;

    #[test]
    fn c8_who_is_too_far_behind_or_knows_more_than_there_is_is_told() {
        for (after, newest, forgotten, from) in [(0, 0, 0, 0), (0, 7, 0, 0), (7, 7, 0, 7), (5, 105, 5, 5), (7, 7, 7, 7)]
        {
            assert_eq!(resume(after, newest, forgotten), (from, None));
        }
        let (from, why) = resume(4, 105, 5);
        assert_eq!(from, 5);
        assert!(why.unwrap().contains("The events 5 to 5 are no longer kept"));
        let (from, why) = resume(9, 7, 0);
        assert_eq!(from, 7);
        assert!(why.unwrap().contains("Event 9 is not known here, the newest is 7"));
    }

    #[test]
    fn c8_an_event_is_a_cloud_event() {
        let event = Event {
            number: 7,
            key: "/c".to_owned(),
            id: "/C".to_owned(),
            kind: Kind::Connectivity,
            at_ms: 1_800_000_000_000,
            status: Some("Offline".to_owned()),
            before: Some("Connected".to_owned()),
            detail: None,
        };
        let expected = json!({
            "specversion": "1.0", "id": "7", "source": "https://gw", "type": "io.towline.cluster.connectivity",
            "subject": "/C", "time": "2027-01-15T08:00:00Z", "datacontenttype": "application/json",
            "data": {"resourceId": "/C", "status": "Offline", "previousStatus": "Connected"},
        });
        assert_eq!(cloud_event(&event, "https://gw"), expected);
        let gone = Event { kind: Kind::Deleted, status: None, ..event };
        assert_eq!(
            cloud_event(&gone, "https://gw")["data"],
            json!({"resourceId": "/C", "previousStatus": "Connected"})
        );
    }
}
