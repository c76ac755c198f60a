//! Control messages that wait to be written: the latest of each kind, and the streams that have something to say.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::BytesMut;
use tokio::sync::Notify;
use types::limits;

use super::stream::StreamState;
use crate::{
    transport::lock,
    wire::{close::CloseCode, control::Control},
};

/// The queue. Its lock is taken when a message is queued (at most once per half a window) and when a batch is written.
#[derive(Default)]
pub(crate) struct Outbox {
    due: Mutex<Due>,
    filled: Notify,
}

#[derive(Default)]
struct Due {
    streams: VecDeque<Arc<StreamState>>,
    /// The latest unanswered ping's number; older ones need no answer.
    pong: Option<u64>,
    ping: Option<u64>,
    drain: Option<(CloseCode, Duration)>,
}

/// More streams wait than [`limits::CONTROL_QUEUE`]: the peer does not read its control stream.
pub(super) struct Full;

impl Outbox {
    fn fill(&self, fill: impl FnOnce(&mut Due)) -> Result<(), Full> {
        let mut due = lock(&self.due);
        fill(&mut due);
        let full = due.streams.len() > limits::CONTROL_QUEUE;
        drop(due);
        self.filled.notify_one();
        if full { Err(Full) } else { Ok(()) }
    }

    pub(super) fn stream(&self, state: &Arc<StreamState>) -> Result<(), Full> {
        if state.queue() { self.fill(|due| due.streams.push_back(state.clone())) } else { Ok(()) }
    }

    pub(super) fn ping(&self, number: u64) -> Result<(), Full> {
        self.fill(|due| due.ping = Some(number))
    }

    pub(super) fn pong(&self, number: u64) -> Result<(), Full> {
        self.fill(|due| due.pong = Some(number))
    }

    pub(super) fn drain(&self, code: CloseCode, within: Duration) -> Result<(), Full> {
        self.fill(|due| due.drain = Some((code, within)))
    }

    /// Waits until something may be due.
    pub(crate) async fn filled(&self) {
        self.filled.notified().await;
    }

    /// Takes what is due, as one write of at most about `bytes`; empty if nothing is.
    pub(crate) fn take(&self, bytes: usize) -> BytesMut {
        let mut due = lock(&self.due);
        let mut out = BytesMut::new();
        if let Some(number) = due.pong.take() {
            out = Control::Pong(number).encode_into(out);
        }
        if let Some(number) = due.ping.take() {
            out = Control::Ping(number).encode_into(out);
        }
        if let Some((code, within)) = due.drain.take() {
            out = Control::Drain { code, reconnect_within_ms: millis(within) }.encode_into(out);
        }
        while out.len() < bytes {
            let Some(state) = due.streams.pop_front() else { break };
            out = state.take_due(out);
        }
        out
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
