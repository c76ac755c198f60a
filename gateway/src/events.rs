//! What happens to clusters (features row C8), told to whoever may read them: as a list, as a stream of server-sent events,
//! and by webhooks of the configuration; everywhere as CloudEvents 1.0.
//!
//! | module | what it holds |
//! |---|---|
//! | [`list`] | `GET <scope>/providers/Microsoft.Kubernetes/events` |
//! | [`stream`] | the same, with `Accept: text/event-stream` |
//! | [`webhooks`] | delivery to addresses of the configuration |
//!
//! The store numbers events ([`crate::store::events`]); who follows names the last number that is known and misses nothing
//! that is not forgotten.

pub mod list;
pub mod stream;
pub mod webhooks;

use std::{sync::Arc, time::Duration};

use proto::process::Shutdown;
use serde_json::{Value, json};
use tokio::{sync::watch, time::MissedTickBehavior};

use self::stream::Places;
use crate::{
    api::instant,
    control::Control,
    store::events::{Event, Kind},
};

/// How often it is looked for what has happened: silence has no event of its own.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// What those who tell and those who listen share.
pub struct Notices {
    newest: watch::Sender<i64>,
    ended: watch::Sender<bool>,
    /// Who listens.
    pub places: Places,
}

impl Default for Notices {
    fn default() -> Self {
        Self { newest: watch::Sender::new(0), ended: watch::Sender::new(false), places: Places::default() }
    }
}

impl Notices {
    /// The number of the newest event that this process knows of; changes wake.
    pub fn newest(&self) -> watch::Receiver<i64> {
        self.newest.subscribe()
    }

    /// True once the gateway drains.
    pub fn ended(&self) -> watch::Receiver<bool> {
        self.ended.subscribe()
    }
}

/// The word for a kind, in CloudEvents and in the configuration.
pub fn type_of(kind: Kind) -> String {
    format!("io.towline.cluster.{}", kind.as_str())
}

/// An event as everybody is told it (CloudEvents 1.0, structured JSON).
pub fn cloud_event(event: &Event, source: &str) -> Value {
    let mut data = json!({"resourceId": event.id});
    for (name, status) in [("status", &event.status), ("previousStatus", &event.before)] {
        if let Some(status) = status {
            data[name] = status.as_str().into();
        }
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

/// Tells what happens until the gateway drains; then streams of events end, so that nobody waits for them.
pub async fn tell(control: Arc<Control>, shutdown: Shutdown) {
    let mut look = tokio::time::interval(LOOK_EVERY);
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = shutdown.draining() => {
                control.notices.ended.send_replace(true);
                return;
            }
            _ = look.tick() => {}
        }
        look_once(&control).await;
    }
}

/// Tells what has happened by now.
pub async fn look_once(control: &Control) {
    if let Err(error) = control.store.tell(control.now_ms()).await {
        tracing::error!(%error, "what has happened to clusters cannot be told");
    }
    // Also what other replicas told.
    match control.store.newest_event().await {
        Ok(newest) => drop(control.notices.newest.send_if_modified(|known| std::mem::replace(known, newest) != newest)),
        Err(error) => tracing::error!(%error, "the newest event cannot be read"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
