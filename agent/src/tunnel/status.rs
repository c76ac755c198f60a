//! What is known of the tunnel: carrier, since when, the last error, what the gateway refused it with. Read by the
//! admin listener and by the roles.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use serde_json::{Value, json};
use tokio::sync::watch;
use tunnel::{transport::CarrierKind, wire::close::CloseCode};
use types::instants::rfc3339;

/// The board that the supervisor writes.
#[derive(Debug)]
pub struct StatusBoard {
    state: Mutex<State>,
    refused: watch::Sender<Option<CloseCode>>,
    changed: watch::Sender<()>,
}

impl Default for StatusBoard {
    fn default() -> Self {
        Self { state: Mutex::default(), refused: watch::Sender::new(None), changed: watch::Sender::new(()) }
    }
}

#[derive(Debug, Default)]
struct State {
    /// The tunnels that are up, by seat.
    up: BTreeMap<usize, Up>,
    gateway: Option<String>,
    since: Option<SystemTime>,
    last_error: Option<(String, SystemTime)>,
    tunnels: u64,
}

/// A tunnel that is up.
#[derive(Debug)]
struct Up {
    carrier: CarrierKind,
    gateway: String,
    /// Which of several replicas of the gateway it leads to.
    replica: Option<String>,
    since: SystemTime,
}

impl StatusBoard {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The gateway refused the agent's certificate, or the cluster is deleted.
    pub fn refused(&self, code: CloseCode) {
        self.refused.send_replace(Some(code));
    }

    /// It does no more, or there is another certificate.
    pub fn accepted(&self) {
        self.refused.send_replace(None);
    }

    /// What the gateway refused the last tunnel with: each change, and each refusal anew.
    pub fn refusals(&self) -> watch::Receiver<Option<CloseCode>> {
        self.refused.subscribe()
    }

    /// Whether the gateway said that the cluster's resource was deleted.
    pub fn is_deleted(&self) -> bool {
        *self.refused.borrow() == Some(CloseCode::Deleted)
    }

    /// A tunnel of a seat is up and in use, instead of the one that the seat had.
    pub fn up(&self, seat: usize, carrier: CarrierKind, gateway: &str, replica: Option<&str>) {
        self.accepted();
        let (mut state, since) = (self.state(), SystemTime::now());
        state.gateway = Some(gateway.to_owned());
        // Since when there is a connection, whichever tunnels bore it.
        if state.up.is_empty() || (state.up.len() == 1 && state.up.contains_key(&seat)) {
            state.since = Some(since);
        }
        let (gateway, replica) = (gateway.to_owned(), replica.map(str::to_owned));
        state.up.insert(seat, Up { carrier, gateway, replica, since });
        state.tunnels += 1;
    }

    /// The tunnel of a seat is closed.
    pub fn down(&self, seat: usize, why: &str) {
        let mut state = self.state();
        state.up.remove(&seat);
        if state.up.is_empty() {
            state.since = Some(SystemTime::now());
        }
        state.last_error = Some((why.to_owned(), SystemTime::now()));
        drop(state);
        self.changed.send_replace(());
    }

    /// The last error.
    pub fn last_error(&self) -> Option<String> {
        self.state().last_error.as_ref().map(|(text, _)| text.clone())
    }

    /// Tells of errors.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// Stores the last error with the current time, and wakes the receivers of `changes`.
    pub fn failed(&self, why: &str) {
        self.state().last_error = Some((why.to_owned(), SystemTime::now()));
        self.changed.send_replace(());
    }

    /// The carrier in use, if a tunnel is up.
    pub fn carrier(&self) -> Option<CarrierKind> {
        self.state().up.values().next().map(|up| up.carrier)
    }

    /// The state as the JSON object that the admin listener serves.
    pub fn json(&self) -> Value {
        let state = self.state();
        json!({
            "connected": !state.up.is_empty(),
            "carrier": state.up.values().next().map(|up| up.carrier.as_str()),
            "gateway": state.gateway,
            "since": state.since.map(rfc3339),
            "tunnels": state.up.values().map(|up| json!({
                "carrier": up.carrier.as_str(), "gateway": up.gateway, "replica": up.replica, "since": rfc3339(up.since),
            })).collect::<Vec<_>>(),
            "tunnels_made": state.tunnels,
            "last_error": state.last_error.as_ref().map(|(text, time)| json!({ "text": text, "at": rfc3339(*time) })),
        })
    }
}
