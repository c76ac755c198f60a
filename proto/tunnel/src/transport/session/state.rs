//! What a tunnel's tasks and its streams share, by concern:
//!
//! | module | what it holds |
//! |---|---|
//! | [`life`] | what is known of the peer's life, and whether somebody waits for it |
//! | [`outbox`] | control messages that wait to be written |
//! | [`resets`] | how fast streams may be reset |
//! | [`room`] | what the carrier lets the peer have in flight |
//! | [`stream`] | one stream's state |
//! | [`table`] | the streams that are open |
//!
//! Locks here are taken when a stream opens or ends and when a control message is queued (at most once per half a
//! window), never per chunk.

mod life;
mod outbox;
mod resets;
mod room;
mod stream;
mod table;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use daemon::Latch;
use tokio::{sync::Notify, time::Instant};
use types::{ids::StreamId, limits};

pub(crate) use self::stream::StreamState;
use self::{
    life::Life,
    outbox::{Full, Outbox},
    resets::Resets,
    room::Room,
    table::Table,
};
use crate::{
    transport::{Closed, Drain, OpenError, StreamError},
    wire::close::{CloseCode, StreamCode},
};

/// Which end of the tunnel this is: it decides whose stream ids are even.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Gateway,
    Agent,
}

impl Side {
    /// Whether this end chooses ids like `id`.
    fn owns(self, id: StreamId) -> bool {
        id.0.is_multiple_of(2) == (self == Self::Gateway)
    }
}

/// What a tunnel's tasks and streams share.
pub(crate) struct Shared {
    side: Side,
    /// The next id that this end chooses.
    next: AtomicU64,
    table: Table,
    open: AtomicUsize,
    /// Told when the last stream ended.
    pub(crate) idle: Notify,
    /// Senders that wait for room in the carrier.
    blocked: AtomicUsize,
    pub(crate) outbox: Outbox,
    pub(crate) room: Room,
    pub(crate) life: Life,
    pub(crate) resets: Resets,
    closed: Latch<Closed>,
    pub(crate) drain: Latch<Drain>,
}

/// Why a stream that the peer opened is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refused {
    /// Over the limit of streams.
    TooMany,
    /// The id is this end's to choose, or is in use: the peer breaks the protocol.
    BadId,
}

impl Shared {
    pub(crate) fn new(side: Side, rtt: Duration, remembers_resets: bool) -> Self {
        let begun = Instant::now();
        Self {
            side,
            next: AtomicU64::new(if side == Side::Gateway { 2 } else { 1 }),
            table: Table::default(),
            open: AtomicUsize::new(0),
            idle: Notify::new(),
            blocked: AtomicUsize::new(0),
            outbox: Outbox::default(),
            room: Room::new(),
            life: Life::new(begun, rtt),
            resets: Resets::new(begun, remembers_resets),
            closed: Latch::default(),
            drain: Latch::default(),
        }
    }

    /// Takes a place and an id for a stream that this end opens.
    pub(crate) fn lease(self: &Arc<Self>) -> Result<Arc<Lease>, OpenError> {
        if self.drain.is_set() {
            return Err(OpenError::Draining);
        }
        if !self.count() {
            return Err(OpenError::TooManyStreams(limits::STREAMS_PER_TUNNEL));
        }
        loop {
            // The first is free: the peer cannot take an id of this end's.
            if let Some(state) = self.table.add(StreamId(self.next.fetch_add(2, Ordering::Relaxed))) {
                return Ok(self.leased(state));
            }
        }
    }

    /// Takes a place for a stream that the peer opened as `id`.
    pub(crate) fn lease_peers(self: &Arc<Self>, id: StreamId) -> Result<Arc<Lease>, Refused> {
        if self.side.owns(id) {
            return Err(Refused::BadId);
        }
        if !self.count() {
            return Err(Refused::TooMany);
        }
        match self.table.add(id) {
            Some(state) => Ok(self.leased(state)),
            None => {
                self.open.fetch_sub(1, Ordering::AcqRel);
                Err(Refused::BadId)
            }
        }
    }

    fn leased(self: &Arc<Self>, state: Arc<StreamState>) -> Arc<Lease> {
        if Side::Gateway.owns(state.id) {
            self.life.begin_waiting();
        }
        Arc::new(Lease { shared: self.clone(), state, growth: AtomicU64::new(0) })
    }

    fn count(&self) -> bool {
        let limit = limits::STREAMS_PER_TUNNEL as usize;
        let one_more = |open| (open < limit).then_some(open + 1);
        let counted = self.open.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).is_ok();
        self.look_at_room();
        counted
    }

    pub(crate) fn open_streams(&self) -> usize {
        self.open.load(Ordering::Acquire)
    }

    fn look_at_room(&self) {
        self.room.look(self.open_streams());
    }

    /// The carrier's new window, if it is to be another one.
    pub(crate) fn take_room(&self) -> Option<u64> {
        self.room.take(self.open_streams())
    }

    /// The largest chunk to hand to the carrier now, in bytes: small when many wait for it.
    pub(crate) fn chunk_bytes(&self) -> usize {
        let blocked = self.blocked.load(Ordering::Relaxed).max(1);
        (limits::ROUND_BYTES / blocked).clamp(limits::CHUNK_BYTES_MIN, limits::CHUNK_BYTES)
    }

    /// Counts a sender that begins or ends to wait for room in the carrier.
    pub(crate) fn set_blocked(&self, blocked: bool) {
        if blocked {
            self.blocked.fetch_add(1, Ordering::Relaxed);
        } else {
            self.blocked.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// The peer lets us send on `id` up to `position`.
    pub(crate) fn peer_window(&self, id: StreamId, position: u64) {
        self.table.widen(id, position);
    }

    /// The peer stops our direction of `id`.
    pub(crate) fn peer_stop(&self, id: StreamId, code: StreamCode) {
        self.table.stop(id, code, !self.side.owns(id));
    }

    /// Ends the tunnel, whoever is first: all that is pending fails at once. Whether this call was first.
    pub(crate) fn end(&self, closed: Closed) -> bool {
        let code = closed.code;
        let first = self.closed.set_first(closed);
        if first {
            self.table.lose(code);
        }
        first
    }

    /// Why the tunnel ended, once it has.
    pub(crate) fn ended(&self) -> Option<Closed> {
        self.closed.get()
    }

    /// Waits until the tunnel has ended, and says why.
    pub(crate) async fn wait_ended(&self) -> Closed {
        self.closed.wait().await
    }

    pub(crate) fn queue_ping(&self, number: u64) {
        self.queued(self.outbox.ping(number));
    }

    pub(crate) fn queue_pong(&self, number: u64) {
        self.queued(self.outbox.pong(number));
    }

    pub(crate) fn queue_drain(&self, code: CloseCode, within: Duration) {
        self.queued(self.outbox.drain(code, within));
    }

    fn queued(&self, queued: Result<(), Full>) {
        if let Err(Full) = queued {
            let message = "the peer does not read its control stream".to_owned();
            self.end(Closed { code: CloseCode::Protocol, message, by_peer: false });
        }
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1)
}

/// A stream's place in the tunnel, held by both of its halves; given back with the last.
pub(crate) struct Lease {
    pub(crate) shared: Arc<Shared>,
    pub(crate) state: Arc<StreamState>,
    growth: AtomicU64,
}

impl Lease {
    /// Lets the peer send up to `position`.
    pub(crate) fn announce(&self, position: u64) {
        self.state.announce(position);
        self.shared.queued(self.shared.outbox.stream(&self.state));
    }

    /// Tells the peer's writer that no more is wanted.
    pub(crate) fn queue_stop(&self, code: StreamCode) {
        self.state.stop(code);
        self.shared.queued(self.shared.outbox.stream(&self.state));
    }

    /// Grows this stream's window, if the tunnel's sum allows.
    pub(crate) fn grow(&self, bytes: u64) -> bool {
        let grown = self.shared.room.grow(bytes);
        if grown {
            self.growth.fetch_add(bytes, Ordering::AcqRel);
            self.shared.look_at_room();
        }
        grown
    }

    /// The peer broke the protocol: the tunnel ends.
    pub(crate) fn violation(&self, message: &str) -> StreamError {
        let closed = Closed { code: CloseCode::Protocol, message: message.to_owned(), by_peer: false };
        self.shared.end(closed);
        StreamError::Lost(CloseCode::Protocol)
    }

    /// What a lost connection is called here.
    pub(crate) fn lost(&self) -> StreamError {
        self.state
            .over()
            .filter(|error| matches!(error, StreamError::Lost(_)))
            .unwrap_or_else(|| StreamError::Lost(self.shared.ended().map_or(CloseCode::Lost, |closed| closed.code)))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if Side::Gateway.owns(self.state.id) {
            self.shared.life.end_waiting();
        }
        self.shared.table.remove(self.state.id);
        self.shared.room.shrink(self.growth.load(Ordering::Acquire));
        if self.shared.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.idle.notify_one();
        }
        self.shared.look_at_room();
    }
}

#[cfg(test)]
impl Shared {
    pub(crate) fn early_stops_for_test(&self) -> usize {
        self.table.early_stops()
    }

    pub(crate) fn growth_for_test(&self) -> u64 {
        self.room.growth()
    }
}
