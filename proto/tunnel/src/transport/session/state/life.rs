//! What is known of the peer's life, and whether somebody waits for it: what [`super::super::liveness`] looks at.
//!
//! A tunnel that nobody waits on is not looked at for seconds. That no stream opens unseen meanwhile: who looks says
//! first that it will rest ([`Life::rest`]) and reads after that how many wait; who opens counts itself first and reads
//! after that whether somebody rests. All four are in one order (`SeqCst`), so that one of the two sees the other. The
//! notice is kept until somebody waits for it ([`tokio::sync::Notify::notify_one`]); one that comes too late is a look
//! too many.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::micros;

/// What is known of the peer's life.
pub(crate) struct Life {
    begun: Instant,
    /// Bytes received on any stream.
    received: AtomicU64,
    /// When the last of them came, in microseconds since it began: the sign of life.
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
    /// The peer owes a sign of life.
    suspect: AtomicBool,
    /// Told to ask the peer at once.
    pub(crate) doubted: Notify,
}

impl Life {
    pub(super) fn new(begun: Instant, rtt: Duration) -> Self {
        Self {
            begun,
            received: AtomicU64::new(0),
            heard_us: AtomicU64::new(0),
            sign_us: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            used_us: AtomicU64::new(0),
            resting: AtomicBool::new(false),
            stirred: Notify::new(),
            rtt_us: AtomicU64::new(micros(rtt)),
            suspect: AtomicBool::new(false),
            doubted: Notify::new(),
        }
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

    /// Bytes came on any stream, just now.
    pub(crate) fn hear(&self, bytes: usize) {
        // Before the count, so that who sees that more has come does not take it for older than it is.
        self.heard_us.store(micros(self.begun.elapsed()), Ordering::Relaxed);
        self.received.fetch_add(bytes as u64, Ordering::Release);
    }

    /// Bytes that came so far.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Acquire)
    }

    /// When the last of them came.
    pub(crate) fn heard(&self) -> Instant {
        self.begun + Duration::from_micros(self.heard_us.load(Ordering::Relaxed))
    }

    /// The peer's carrier said that it is there, just now.
    pub(crate) fn hear_sign(&self) {
        self.sign_us.store(micros(self.begun.elapsed()), Ordering::Relaxed);
    }

    /// When it last did.
    pub(crate) fn sign(&self) -> Instant {
        self.begun + Duration::from_micros(self.sign_us.load(Ordering::Relaxed))
    }

    /// Whether streams are open that the gateway opened.
    pub(crate) fn is_waited_on(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// Whether such a stream ended less than `within` ago.
    pub(crate) fn was_waited_on(&self, within: Duration) -> bool {
        let used = self.used_us.load(Ordering::Relaxed);
        used > 0 && (self.begun + Duration::from_micros(used)).elapsed() < within
    }

    pub(super) fn begin_waiting(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        if self.resting.load(Ordering::SeqCst) && self.resting.swap(false, Ordering::SeqCst) {
            self.stirred.notify_one();
        }
    }

    pub(super) fn end_waiting(&self) {
        // Before the count, so that who sees that nobody waits sees since when.
        self.used_us.store(micros(self.begun.elapsed()), Ordering::Relaxed);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether the peer owes a sign of life.
    pub(crate) fn is_suspect(&self) -> bool {
        self.suspect.load(Ordering::Relaxed)
    }

    pub(crate) fn set_suspect(&self, suspect: bool) {
        self.suspect.store(suspect, Ordering::Relaxed);
    }

    /// Says that the peer will not be looked at for long. `false`: somebody waits already.
    pub(crate) fn rest(&self) -> bool {
        self.resting.store(true, Ordering::SeqCst);
        !self.is_waited_on()
    }

    /// Says that the peer is looked at again, which ends the rest.
    pub(crate) fn rise(&self) {
        self.resting.store(false, Ordering::SeqCst);
    }
}
