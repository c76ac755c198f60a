//! One stream: how far this end may send, and how the stream ended.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use bytes::BytesMut;
use futures_util::task::AtomicWaker;
use types::{ids::StreamId, limits};

use crate::{
    transport::StreamError,
    wire::{
        close::{CloseCode, StreamCode},
        control::Control,
    },
};

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
    pub(super) fn new(id: StreamId) -> Self {
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

    pub(super) fn set_lost(&self, code: CloseCode) {
        self.end(WAY_LOST | u64::from(code.number()));
    }

    /// The peer lets this end send up to `position`.
    pub(super) fn widen(&self, position: u64) {
        if self.send_limit.fetch_max(position, Ordering::AcqRel) < position {
            self.send_waker.wake();
        }
    }

    /// Lets the peer send up to `position`: due for the control stream.
    pub(super) fn announce(&self, position: u64) {
        self.announce.store(position, Ordering::Release);
        self.announce_due.store(true, Ordering::Release);
    }

    /// Stops the peer's direction: due for the control stream.
    pub(super) fn stop(&self, code: StreamCode) {
        self.stop_due.store(code.number(), Ordering::Release);
    }

    /// Whether it is to be queued for the control stream, where it is not yet.
    pub(super) fn queue(&self) -> bool {
        !self.queued.swap(true, Ordering::AcqRel)
    }

    /// Writes what is due; it is no longer queued.
    pub(super) fn take_due(&self, mut out: BytesMut) -> BytesMut {
        self.queued.store(false, Ordering::Release);
        if self.announce_due.swap(false, Ordering::AcqRel) {
            let position = self.announce.load(Ordering::Acquire);
            out = Control::Window { stream: self.id, position }.encode_into(out);
        }
        match self.stop_due.swap(0, Ordering::AcqRel) {
            0 => out,
            code => Control::Stop { stream: self.id, code: StreamCode::from_number(code) }.encode_into(out),
        }
    }
}
