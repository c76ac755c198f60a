//! The streams of a session that are open, by their ids, with the messages about streams whose first bytes have not
//! come yet. The session's state asks it whenever the peer says something of a stream; it is bounded.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::{Arc, Mutex},
};

use types::{ids::StreamId, limits};

use super::stream::StreamState;
use crate::{
    transport::lock,
    wire::close::{CloseCode, StreamCode},
};

/// The table. Its lock is taken when a stream opens or ends and when the peer says something of one.
#[derive(Default)]
pub(super) struct Table(Mutex<Streams>);

#[derive(Default)]
struct Streams {
    live: HashMap<StreamId, Arc<StreamState>>,
    /// Stops that came before their stream's first bytes (or after its end), and their order.
    early: HashMap<StreamId, StreamCode>,
    early_order: VecDeque<StreamId>,
    /// Set once: streams added later are lost at once.
    lost: Option<CloseCode>,
}

impl Table {
    /// Adds a stream. `None`: its id is in use.
    pub(super) fn add(&self, id: StreamId) -> Option<Arc<StreamState>> {
        let state = Arc::new(StreamState::new(id));
        let mut streams = lock(&self.0);
        let Streams { live, early, lost, .. } = &mut *streams;
        let Entry::Vacant(place) = live.entry(id) else { return None };
        if let Some(code) = *lost {
            state.set_lost(code);
        }
        if let Some(code) = early.remove(&id) {
            state.set_stopped(code);
        }
        place.insert(state.clone());
        Some(state)
    }

    pub(super) fn remove(&self, id: StreamId) {
        lock(&self.0).live.remove(&id);
    }

    /// The peer lets this end send on `id` up to `position`. An unknown stream is one that has just ended here.
    pub(super) fn widen(&self, id: StreamId, position: u64) {
        if let Some(state) = lock(&self.0).live.get(&id) {
            state.widen(position);
        }
    }

    /// The peer stops this end's direction of `id`. Where that is not known and `may_come`, it is remembered: the
    /// control stream may overtake a stream's first bytes. The oldest is forgotten over the bound: the carrier tells
    /// the writer too, once the peer has dropped the stream.
    pub(super) fn stop(&self, id: StreamId, code: StreamCode, may_come: bool) {
        let mut streams = lock(&self.0);
        if let Some(state) = streams.live.get(&id) {
            state.set_stopped(code);
        } else if may_come {
            if streams.early_order.len() >= limits::EARLY_STOPS
                && let Some(oldest) = streams.early_order.pop_front()
            {
                streams.early.remove(&oldest);
            }
            if streams.early.insert(id, code).is_none() {
                streams.early_order.push_back(id);
            }
        }
    }

    /// All streams are lost, and those added later.
    pub(super) fn lose(&self, code: CloseCode) {
        let mut streams = lock(&self.0);
        streams.lost = Some(code);
        let live: Vec<_> = streams.live.values().cloned().collect();
        drop(streams);
        for state in live {
            state.set_lost(code);
        }
    }

    #[cfg(test)]
    pub(super) fn early_stops(&self) -> usize {
        let streams = lock(&self.0);
        assert!(streams.early.len() <= streams.early_order.len());
        streams.early_order.len()
    }
}
