//! What is known of the peer's life, and whether somebody waits for it: what [`super::super::liveness`] looks at.
//!
//! A tunnel that nobody waits on is not looked at for seconds. That no stream opens unseen meanwhile: who looks says first
//! that it will rest ([`Shared::rest`]) and reads after that how many wait; who opens counts itself first and reads after
//! that whether somebody rests. All four are in one order (`SeqCst`), so that one of the two sees the other. The notice is
//! kept until somebody waits for it ([`tokio::sync::Notify::notify_one`]); one that comes too late is a look too many.

use std::{sync::atomic::Ordering, time::Duration};

use tokio::time::Instant;

use super::{Shared, micros};

impl Shared {
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

    /// Looks again.
    pub(crate) fn rise(&self) {
        self.resting.store(false, Ordering::SeqCst);
    }
}
