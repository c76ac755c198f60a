//! What the tunnel's tasks and its streams share: the table of streams, the queue of control messages, the bounds.
//!
//! Locks here are taken when a stream opens or ends and when a control message is queued (at most once per half a
//! window), never per chunk.

mod life;
mod resets;
mod room;

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::BytesMut;
use daemon::Told;
use futures_util::task::AtomicWaker;
use tokio::{sync::Notify, time::Instant};
use types::{ids::StreamId, limits};

use crate::{
    transport::{Closed, Drain, OpenError, StreamError, lock},
    wire::{
        close::{CloseCode, StreamCode},
        control::Control,
    },
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

/// How a whole stream ended, in one integer: the way above, the code in the low 32 bits.
const WAY_RESET_BY_PEER: u64 = 1 << 32;
const WAY_RESET_HERE: u64 = 2 << 32;
const WAY_LOST: u64 = 3 << 32;

/// One stream's state that both halves and the control task see.
pub(crate) struct StreamState {
    pub(crate) id: StreamId,
    /// Up to which position this end may send.
    pub(crate) send_limit: AtomicU64,
    /// The code with which the peer stopped our direction; 0: it did not.
    stopped: AtomicU32,
    /// How the whole stream ended; 0: it did not.
    over: AtomicU64,
    pub(crate) send_waker: AtomicWaker,
    pub(crate) recv_waker: AtomicWaker,
    /// Up to which position the peer may send.
    announce: AtomicU64,
    announce_due: AtomicBool,
    /// The code with which this end stops the peer's direction; 0: it does not.
    stop_due: AtomicU32,
    /// Whether it is in the control queue.
    queued: AtomicBool,
}

impl StreamState {
    fn new(id: StreamId) -> Self {
        Self {
            id,
            send_limit: AtomicU64::new(limits::WINDOW_INITIAL),
            stopped: AtomicU32::new(0),
            over: AtomicU64::new(0),
            send_waker: AtomicWaker::new(),
            recv_waker: AtomicWaker::new(),
            announce: AtomicU64::new(limits::WINDOW_INITIAL),
            announce_due: AtomicBool::new(false),
            stop_due: AtomicU32::new(0),
            queued: AtomicBool::new(false),
        }
    }

    /// Why neither half can go on.
    pub(crate) fn over(&self) -> Option<StreamError> {
        let over = self.over.load(Ordering::Acquire);
        let number = over as u32;
        match over & !u64::from(u32::MAX) {
            0 => None,
            WAY_RESET_BY_PEER => Some(StreamError::Reset(StreamCode::from_number(number))),
            WAY_LOST => Some(StreamError::Lost(CloseCode::from_number(number))),
            _ => Some(StreamError::Over),
        }
    }

    /// The code of a reset of the whole stream by this end.
    pub(crate) fn reset_here(&self) -> Option<StreamCode> {
        let over = self.over.load(Ordering::Acquire);
        (over & !u64::from(u32::MAX) == WAY_RESET_HERE).then(|| StreamCode::from_number(over as u32))
    }

    /// Why a writer cannot go on.
    pub(crate) fn send_end(&self) -> Option<StreamError> {
        if let Some(error) = self.over() {
            return Some(error);
        }
        match self.stopped.load(Ordering::Acquire) {
            0 => None,
            number => Some(StreamError::Stopped(StreamCode::from_number(number))),
        }
    }

    /// The peer stopped our direction.
    pub(crate) fn set_stopped(&self, code: StreamCode) {
        let _ = self.stopped.compare_exchange(0, code.number(), Ordering::AcqRel, Ordering::Acquire);
        self.send_waker.wake();
    }

    pub(crate) fn set_reset_by_peer(&self, code: StreamCode) {
        self.end(WAY_RESET_BY_PEER | u64::from(code.number()));
    }

    pub(crate) fn set_reset_here(&self, code: StreamCode) {
        self.end(WAY_RESET_HERE | u64::from(code.number()));
    }

    fn end(&self, how: u64) {
        // The first way counts.
        if self.over.compare_exchange(0, how, Ordering::AcqRel, Ordering::Acquire).is_ok() {
            self.send_waker.wake();
            self.recv_waker.wake();
        }
    }

    fn set_lost(&self, code: CloseCode) {
        self.end(WAY_LOST | u64::from(code.number()));
    }
}

/// What a tunnel's tasks and streams share.
pub(crate) struct Shared {
    side: Side,
    next: AtomicU64,
    table: Mutex<Table>,
    open: AtomicUsize,
    outbox: Mutex<Outbox>,
    pub(crate) outbox_filled: Notify,
    /// Bytes that windows have grown beyond their first size.
    growth: AtomicU64,
    /// What the carrier lets the peer have in flight on the whole connection, in bytes.
    room: AtomicU64,
    /// Told when that should be more or much less.
    pub(crate) room_wanted: Notify,
    /// Senders that wait for room in the carrier.
    blocked: AtomicUsize,
    /// Bytes received on any stream.
    received: AtomicU64,
    begun: Instant,
    /// When the last of them came, in microseconds since then: the sign of life.
    heard_us: AtomicU64,
    /// When the peer's carrier last said that it is there, in the same way.
    sign_us: AtomicU64,
    /// Open streams that the gateway opened: somebody may wait for what comes on them.
    waiting: AtomicUsize,
    /// When the last of them ended, in microseconds; 0: there was none.
    used_us: AtomicU64,
    /// Nobody looks at the peer for long, until a stream of the gateway's opens;
    resting: AtomicBool,
    /// which is told here, as is that the peer has answered.
    pub(crate) stirred: Notify,
    rtt_us: AtomicU64,
    /// The carrier does, and has a bound for it.
    remembers_resets: bool,
    /// When all streams that were reset here are paid off, in microseconds since it began.
    resets_until_us: AtomicU64,
    /// The peer owes a sign of life.
    suspect: AtomicBool,
    /// Told to ask the peer at once.
    pub(crate) doubted: Notify,
    closed: Told<Closed>,
    pub(crate) drain: Told<Drain>,
    /// Told when the last stream ended.
    pub(crate) idle: Notify,
}

#[derive(Default)]
struct Table {
    live: HashMap<StreamId, Arc<StreamState>>,
    /// Stops that came before their stream's first bytes (or after its end), and their order.
    early: HashMap<StreamId, StreamCode>,
    early_order: VecDeque<StreamId>,
    /// Set once: streams added later are lost at once.
    lost: Option<CloseCode>,
}

#[derive(Default)]
struct Outbox {
    streams: VecDeque<Arc<StreamState>>,
    /// The latest unanswered ping's number; older ones need no answer.
    pong: Option<u64>,
    ping: Option<u64>,
    drain: Option<(CloseCode, Duration)>,
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
        Self {
            side,
            next: AtomicU64::new(if side == Side::Gateway { 2 } else { 1 }),
            table: Mutex::default(),
            open: AtomicUsize::new(0),
            outbox: Mutex::default(),
            outbox_filled: Notify::new(),
            growth: AtomicU64::new(0),
            room: AtomicU64::new(limits::CARRIER_WINDOW_HELLO),
            room_wanted: Notify::new(),
            blocked: AtomicUsize::new(0),
            received: AtomicU64::new(0),
            begun: Instant::now(),
            heard_us: AtomicU64::new(0),
            sign_us: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            used_us: AtomicU64::new(0),
            resting: AtomicBool::new(false),
            stirred: Notify::new(),
            rtt_us: AtomicU64::new(micros(rtt)),
            remembers_resets,
            resets_until_us: AtomicU64::new(0),
            suspect: AtomicBool::new(false),
            doubted: Notify::new(),
            closed: Told::default(),
            drain: Told::default(),
            idle: Notify::new(),
        }
    }

    /// Takes a place and an id for a stream that this end opens.
    pub(crate) fn lease(self: &Arc<Self>) -> Result<Arc<Lease>, OpenError> {
        if self.drain.is_told() {
            return Err(OpenError::Draining);
        }
        if !self.count() {
            return Err(OpenError::TooManyStreams(limits::STREAMS_PER_TUNNEL));
        }
        let id = StreamId(self.next.fetch_add(2, Ordering::Relaxed));
        let state = Arc::new(StreamState::new(id));
        let mut table = lock(&self.table);
        if let Some(code) = table.lost {
            state.set_lost(code);
        }
        table.live.insert(id, state.clone());
        drop(table);
        Ok(self.leased(state))
    }

    /// Takes a place for a stream that the peer opened as `id`.
    pub(crate) fn lease_peers(self: &Arc<Self>, id: StreamId) -> Result<Arc<Lease>, Refused> {
        if self.side.owns(id) {
            return Err(Refused::BadId);
        }
        if !self.count() {
            return Err(Refused::TooMany);
        }
        let state = Arc::new(StreamState::new(id));
        let mut table = lock(&self.table);
        if table.live.contains_key(&id) {
            drop(table);
            self.open.fetch_sub(1, Ordering::AcqRel);
            return Err(Refused::BadId);
        }
        if let Some(code) = table.lost {
            state.set_lost(code);
        }
        if let Some(code) = table.early.remove(&id) {
            state.set_stopped(code);
        }
        table.live.insert(id, state.clone());
        drop(table);
        Ok(self.leased(state))
    }

    fn leased(self: &Arc<Self>, state: Arc<StreamState>) -> Arc<Lease> {
        if Side::Gateway.owns(state.id) {
            self.begin_waiting();
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
        // An unknown stream is one that has just ended here.
        if let Some(state) = lock(&self.table).live.get(&id)
            && state.send_limit.fetch_max(position, Ordering::AcqRel) < position
        {
            state.send_waker.wake();
        }
    }

    /// The peer stops our direction of `id`.
    pub(crate) fn peer_stop(&self, id: StreamId, code: StreamCode) {
        let mut table = lock(&self.table);
        if let Some(state) = table.live.get(&id) {
            state.set_stopped(code);
        } else if !self.side.owns(id) {
            // The control stream may overtake a stream's first bytes. The oldest is forgotten over the bound: the
            // carrier tells the writer too, once the peer has dropped the stream.
            if table.early_order.len() >= limits::EARLY_STOPS
                && let Some(oldest) = table.early_order.pop_front()
            {
                table.early.remove(&oldest);
            }
            if table.early.insert(id, code).is_none() {
                table.early_order.push_back(id);
            }
        }
    }

    /// Ends the tunnel, whoever is first: all that is pending fails at once. Whether this call was first.
    pub(crate) fn end(&self, closed: Closed) -> bool {
        let code = closed.code;
        let first = self.closed.tell_first(closed);
        if first {
            let mut table = lock(&self.table);
            table.lost = Some(code);
            let streams: Vec<_> = table.live.values().cloned().collect();
            drop(table);
            for state in streams {
                state.set_lost(code);
            }
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

    pub(crate) fn rtt(&self) -> Option<Duration> {
        match self.rtt_us.load(Ordering::Relaxed) {
            0 => None,
            us => Some(Duration::from_micros(us)),
        }
    }

    pub(crate) fn set_rtt(&self, rtt: Duration) {
        self.rtt_us.store(micros(rtt), Ordering::Relaxed);
    }

    /// Grows a window by `bytes`, if the tunnel's sum allows: at most a quarter of what is left, so that the last of
    /// many readers gets something too.
    fn grow(&self, bytes: u64) -> bool {
        self.growth
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |grown| {
                let left = limits::WINDOW_GROWTH_PER_TUNNEL.saturating_sub(grown);
                (bytes <= left / 4).then_some(grown + bytes)
            })
            .is_ok()
    }

    fn enqueue(&self, fill: impl FnOnce(&mut Outbox)) {
        let mut outbox = lock(&self.outbox);
        fill(&mut outbox);
        let over = outbox.streams.len() > limits::CONTROL_QUEUE;
        drop(outbox);
        if over {
            let message = "the peer does not read its control stream".to_owned();
            self.end(Closed { code: CloseCode::Protocol, message, by_peer: false });
        }
        self.outbox_filled.notify_one();
    }

    fn enqueue_stream(&self, state: &Arc<StreamState>) {
        if !state.queued.swap(true, Ordering::AcqRel) {
            self.enqueue(|outbox| outbox.streams.push_back(state.clone()));
        }
    }

    pub(crate) fn queue_ping(&self, number: u64) {
        self.enqueue(|outbox| outbox.ping = Some(number));
    }

    pub(crate) fn queue_pong(&self, number: u64) {
        self.enqueue(|outbox| outbox.pong = Some(number));
    }

    pub(crate) fn queue_drain(&self, code: CloseCode, within: Duration) {
        self.enqueue(|outbox| outbox.drain = Some((code, within)));
    }

    /// Takes what is due, as one write of at most about `bytes`; empty if nothing is.
    pub(crate) fn take_due(&self, bytes: usize) -> BytesMut {
        let mut outbox = lock(&self.outbox);
        let mut out = BytesMut::new();
        if let Some(number) = outbox.pong.take() {
            out = Control::Pong(number).encode_into(out);
        }
        if let Some(number) = outbox.ping.take() {
            out = Control::Ping(number).encode_into(out);
        }
        if let Some((code, within)) = outbox.drain.take() {
            out = Control::Drain { code, reconnect_within_ms: millis(within) }.encode_into(out);
        }
        while out.len() < bytes {
            let Some(state) = outbox.streams.pop_front() else { break };
            state.queued.store(false, Ordering::Release);
            if state.announce_due.swap(false, Ordering::AcqRel) {
                let position = state.announce.load(Ordering::Acquire);
                out = Control::Window { stream: state.id, position }.encode_into(out);
            }
            let code = state.stop_due.swap(0, Ordering::AcqRel);
            if code != 0 {
                out = Control::Stop { stream: state.id, code: StreamCode::from_number(code) }.encode_into(out);
            }
        }
        out
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1)
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
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
        self.state.announce.store(position, Ordering::Release);
        self.state.announce_due.store(true, Ordering::Release);
        self.shared.enqueue_stream(&self.state);
    }

    /// Tells the peer's writer that no more is wanted.
    pub(crate) fn queue_stop(&self, code: StreamCode) {
        self.state.stop_due.store(code.number(), Ordering::Release);
        self.shared.enqueue_stream(&self.state);
    }

    /// Grows this stream's window, if the tunnel's sum allows.
    pub(crate) fn grow(&self, bytes: u64) -> bool {
        let grown = self.shared.grow(bytes);
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
            self.shared.end_waiting();
        }
        lock(&self.shared.table).live.remove(&self.state.id);
        self.shared.growth.fetch_sub(self.growth.load(Ordering::Acquire), Ordering::AcqRel);
        if self.shared.open.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.idle.notify_one();
        }
        self.shared.look_at_room();
    }
}

#[cfg(test)]
impl Shared {
    pub(crate) fn early_stops_for_test(&self) -> usize {
        let table = lock(&self.table);
        assert!(table.early.len() <= table.early_order.len());
        table.early_order.len()
    }

    pub(crate) fn growth_for_test(&self) -> u64 {
        self.growth.load(Ordering::Acquire)
    }
}
