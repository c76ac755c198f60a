//! A carrier in memory, for tests: no sockets. Like HTTP/2 it has no stop of its own, so stop travels as a control
//! message.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use types::limits;

use super::{Carrier, Facts, RawError, RawRecv, RawSend, RawStream};
use crate::{
    transport::{CarrierKind, Closed},
    wire::close::{CloseCode, StreamCode},
};

/// Bytes that one direction of a stream holds before its writer waits.
const PIPE_BYTES: usize = limits::CHUNK_BYTES;

/// The two ends of a carrier in memory: the gateway's, the agent's.
pub fn carriers() -> (Carrier, Carrier) {
    let room = limits::STREAMS_PER_TUNNEL as usize + 1;
    let (to_agent, from_gateway) = mpsc::channel(room);
    let (to_gateway, from_agent) = mpsc::channel(room);
    let closed = watch::Sender::new(None);
    let end = |opened, accepted, gateway| Carrier {
        facts: Facts {
            kind: CarrierKind::Memory,
            peer: None,
            // Memory is as good as mutual TLS; an empty certificate stands for that.
            certificates: vec![Vec::new().into()],
        },
        link: super::Link::Memory(Link {
            opened,
            accepted: tokio::sync::Mutex::new(accepted),
            closed: closed.clone(),
            gateway,
        }),
    };
    (end(to_agent, from_agent, true), end(to_gateway, from_gateway, false))
}

pub(crate) struct Link {
    opened: mpsc::Sender<RawStream>,
    accepted: tokio::sync::Mutex<mpsc::Receiver<RawStream>>,
    /// Who closed it: true for the gateway.
    closed: watch::Sender<Option<(bool, Closed)>>,
    gateway: bool,
}

impl Link {
    pub(crate) async fn open(&self) -> Result<RawStream, RawError> {
        let there = Arc::new(Stream::default());
        let mine = RawStream { send: half_send(&there, 0), recv: half_recv(&there, 1) };
        let theirs = RawStream { send: half_send(&there, 1), recv: half_recv(&there, 0) };
        tokio::select! {
            sent = self.opened.send(theirs) => sent.map(|()| mine).map_err(|_| RawError::Lost),
            _ = self.closed() => Err(RawError::Lost),
        }
    }

    pub(crate) async fn accept(&self) -> Result<RawStream, RawError> {
        let mut accepted = self.accepted.lock().await;
        tokio::select! {
            raw = accepted.recv() => raw.ok_or(RawError::Lost),
            _ = self.closed() => Err(RawError::Lost),
        }
    }

    pub(crate) async fn closed(&self) -> Closed {
        let mut watch = self.closed.subscribe();
        let Ok(state) = watch.wait_for(Option::is_some).await else { unreachable!("the sender lives in self") };
        let Some((gateway, closed)) = state.clone() else { unreachable!("waited for it") };
        Closed { by_peer: gateway != self.gateway, ..closed }
    }

    pub(crate) fn close(&self, code: CloseCode, message: &str) {
        self.closed.send_if_modified(|state| {
            let first = state.is_none();
            if first {
                *state = Some((self.gateway, Closed { code, message: message.to_owned(), by_peer: false }));
            }
            first
        });
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close(CloseCode::Lost, "");
    }
}

/// Both directions; index 0 is the opener's.
#[derive(Default)]
struct Stream {
    directions: [Mutex<Direction>; 2],
    /// Halves that each end has dropped.
    dropped: [AtomicU8; 2],
}

#[derive(Default)]
struct Direction {
    queue: VecDeque<Bytes>,
    bytes: usize,
    finished: bool,
    reset: Option<StreamCode>,
    reader_gone: bool,
    /// The reading end has dropped both of its halves.
    abandoned: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Stream {
    fn direction(&self, index: usize) -> MutexGuard<'_, Direction> {
        // A panic in a test poisons only that test's stream.
        self.directions[index].lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl Stream {
    /// As HTTP/2 does, tells the writer at the other end once both halves of this end are gone.
    fn dropped(&self, end: usize) {
        if self.dropped[end].fetch_add(1, Ordering::AcqRel) == 1 {
            let mut direction = self.direction(1 - end);
            direction.abandoned = true;
            wake(&mut direction.writer);
        }
    }
}

impl Drop for PipeSend {
    fn drop(&mut self) {
        self.stream.dropped(self.index);
    }
}

impl Drop for PipeRecv {
    fn drop(&mut self) {
        self.stream.dropped(1 - self.index);
    }
}

fn half_send(stream: &Arc<Stream>, index: usize) -> RawSend {
    RawSend::Memory(PipeSend { stream: stream.clone(), index })
}

fn half_recv(stream: &Arc<Stream>, index: usize) -> RawRecv {
    RawRecv::Memory(PipeRecv { stream: stream.clone(), index })
}

pub(crate) struct PipeSend {
    stream: Arc<Stream>,
    index: usize,
}

impl PipeSend {
    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        chunk: &mut Bytes,
        max: usize,
    ) -> Poll<Result<usize, RawError>> {
        let mut direction = self.stream.direction(self.index);
        if let Some(code) = direction.reset {
            return Poll::Ready(Err(RawError::Reset(code)));
        }
        if direction.reader_gone {
            let taken = chunk.len().min(max);
            let _ = chunk.split_to(taken);
            return Poll::Ready(Ok(taken));
        }
        let room = PIPE_BYTES.saturating_sub(direction.bytes).min(max).min(chunk.len());
        if room == 0 && !chunk.is_empty() {
            direction.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        direction.queue.push_back(chunk.split_to(room));
        direction.bytes += room;
        wake(&mut direction.reader);
        Poll::Ready(Ok(room))
    }

    pub(crate) fn finish(&mut self) {
        let mut direction = self.stream.direction(self.index);
        direction.finished = true;
        wake(&mut direction.reader);
    }

    pub(crate) fn reset(&mut self, code: StreamCode) {
        for index in [0, 1] {
            let mut direction = self.stream.direction(index);
            if !direction.finished || !direction.queue.is_empty() {
                direction.reset.get_or_insert(code);
            }
            direction.queue.clear();
            direction.bytes = 0;
            wake(&mut direction.reader);
            wake(&mut direction.writer);
        }
    }

    pub(crate) fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<RawError> {
        let mut direction = self.stream.direction(self.index);
        match direction.reset {
            Some(code) => Poll::Ready(RawError::Reset(code)),
            None if direction.abandoned => Poll::Ready(RawError::Stopped(StreamCode::NoMore)),
            None => {
                direction.writer = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

pub(crate) struct PipeRecv {
    stream: Arc<Stream>,
    index: usize,
}

impl PipeRecv {
    pub(crate) fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RawError>> {
        let mut direction = self.stream.direction(self.index);
        if let Some(chunk) = direction.queue.pop_front() {
            direction.bytes -= chunk.len();
            wake(&mut direction.writer);
            return Poll::Ready(Ok(Some(chunk)));
        }
        if let Some(code) = direction.reset {
            return Poll::Ready(Err(RawError::Reset(code)));
        }
        if direction.finished {
            return Poll::Ready(Ok(None));
        }
        direction.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    pub(crate) fn stop(&mut self, _code: StreamCode, _broken: bool) -> bool {
        let mut direction = self.stream.direction(self.index);
        direction.reader_gone = true;
        direction.queue.clear();
        direction.bytes = 0;
        wake(&mut direction.writer);
        false
    }
}

fn wake(waker: &mut Option<Waker>) {
    if let Some(waker) = waker.take() {
        waker.wake();
    }
}
