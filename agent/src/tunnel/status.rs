//! What people may know of the tunnel: carrier, since when, the last error. Read by the admin listener.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use proto::transport::CarrierKind;
use serde_json::{Value, json};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// The board that the supervisor writes.
#[derive(Debug, Default)]
pub struct StatusBoard(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    carrier: Option<CarrierKind>,
    gateway: Option<String>,
    since: Option<SystemTime>,
    last_error: Option<(String, SystemTime)>,
    tunnels: u64,
}

impl StatusBoard {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tunnel is up and in use.
    pub fn up(&self, carrier: CarrierKind, gateway: &str) {
        let mut state = self.state();
        state.carrier = Some(carrier);
        state.gateway = Some(gateway.to_owned());
        state.since = Some(SystemTime::now());
        state.tunnels += 1;
    }

    /// The tunnel in use is closed.
    pub fn down(&self, why: &str) {
        let mut state = self.state();
        state.carrier = None;
        state.since = Some(SystemTime::now());
        state.last_error = Some((why.to_owned(), SystemTime::now()));
    }

    /// Something failed.
    pub fn failed(&self, why: &str) {
        self.state().last_error = Some((why.to_owned(), SystemTime::now()));
    }

    /// The carrier in use, if a tunnel is up.
    pub fn carrier(&self) -> Option<CarrierKind> {
        self.state().carrier
    }

    /// As JSON.
    pub fn json(&self) -> Value {
        let at = |time: SystemTime| OffsetDateTime::from(time).format(&Rfc3339).ok();
        let state = self.state();
        json!({
            "connected": state.carrier.is_some(),
            "carrier": state.carrier.map(CarrierKind::as_str),
            "gateway": state.gateway,
            "since": state.since.and_then(at),
            "tunnels_made": state.tunnels,
            "last_error": state.last_error.as_ref().map(|(text, time)| json!({ "text": text, "at": at(*time) })),
        })
    }
}
