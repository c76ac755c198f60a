//! Streams of quinn as halves of a carrier's stream: a read takes several packets at once, and a peer that has many
//! streams may open more of them. Here QUIC's error codes become stops and resets of the session.

use std::{
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use quinn::{Connection, ConnectionError, ReadError, StoppedError, VarInt, WriteError};
use types::limits;

use super::keep_alive::{KeepAlive, Peer, heard};
use crate::{
    transport::{
        Closed, Packets,
        carrier::{RawError, RawRecv, RawSend, RawStream},
    },
    wire::{
        close::{CloseCode, StreamCode},
        message::TEXT_BYTES,
    },
};

/// Marks a `STOP_SENDING` whose sender broke the whole stream off, so that the writer sees a reset and not a stop.
const BROKEN: u64 = 1 << 32;
/// Chunks that are read as one. quinn has one for each packet, and each on its own would go on as a frame of HTTP/2 and
/// a write to a socket: those cost several times what copying them together does.
const GATHERED: usize = 64;
/// The control stream's priority; all others have 0.
const CONTROL_PRIORITY: i32 = 1;

pub(crate) struct Link {
    /// How many streams the peer may have open.
    streams: AtomicU32,
    connection: Connection,
    /// Tells the peers of a listener that are idle.
    keep_alive: Option<Arc<KeepAlive>>,
    /// A dialled connection owns its endpoint.
    _endpoint: quinn::Endpoint,
}

impl Link {
    /// `streams` is how many the peer may have open at first.
    pub(super) fn new(
        connection: Connection,
        endpoint: quinn::Endpoint,
        streams: u32,
        keep_alive: Option<Arc<KeepAlive>>,
    ) -> Self {
        Self { connection, keep_alive, _endpoint: endpoint, streams: AtomicU32::new(streams) }
    }

    /// Lets the peer have more than twice as many streams open as there are now; never fewer than before.
    pub(crate) fn allow_streams(&self, open: usize) {
        let wanted = streams_for(open);
        if self.streams.fetch_max(wanted, Ordering::Relaxed) < wanted {
            self.connection.set_max_concurrent_bi_streams(VarInt::from_u32(wanted));
        }
    }

    pub(crate) async fn open(&self) -> Result<RawStream, RawError> {
        self.connection.open_bi().await.map(raw).map_err(|_| RawError::Lost)
    }

    pub(crate) async fn accept(&self) -> Result<RawStream, RawError> {
        self.connection.accept_bi().await.map(raw).map_err(|_| RawError::Lost)
    }

    pub(crate) async fn closed(&self) -> Closed {
        closed(self.connection.closed().await)
    }

    pub(crate) fn allow(&self, bytes: u64) {
        self.connection.set_receive_window(VarInt::from_u64(bytes).unwrap_or(VarInt::MAX));
    }

    pub(crate) fn rtt(&self) -> Duration {
        self.connection.rtt()
    }

    pub(crate) fn packets(&self) -> Packets {
        let path = self.connection.stats().path;
        Packets { sent: path.sent_packets, lost: path.lost_packets }
    }

    pub(crate) fn heard(&self) -> u64 {
        heard(&self.connection)
    }

    /// Has the peer told at intervals of `every` that this end is there, while its session rests. `None`: this endpoint
    /// has no task for it.
    pub(crate) fn keep_alive(&self, every: Duration) -> Option<Arc<Peer>> {
        self.keep_alive.as_ref()?.add(&self.connection, every)
    }

    /// Completes when the peer has said that it is there. Cancel-safe.
    pub(crate) async fn sign(&self) -> Result<(), RawError> {
        self.connection.read_datagram().await.map(drop).map_err(|_| RawError::Lost)
    }

    pub(crate) fn close(&self, code: CloseCode, message: &str) {
        self.connection.close(VarInt::from_u32(code.number()), message.as_bytes());
    }
}

/// Streams that a gateway may have open: those that the session counts, the control stream, and those that have ended
/// at one end only.
const STREAMS_OF_GATEWAY: u32 = limits::STREAMS_PER_TUNNEL + 256;

/// How many streams a peer may have open that has `open`. In doubling steps: quinn keeps a raise to itself that is not
/// more than an eighth of the new number, and a peer that waits for it would wait for ever.
fn streams_for(open: usize) -> u32 {
    let doubled = u32::try_from(2 * open + 1).ok().and_then(u32::checked_next_power_of_two);
    // The last step goes to the end: from the power of two below, that would be too small a one.
    doubled.filter(|&doubled| doubled < STREAMS_OF_GATEWAY / 2).unwrap_or(STREAMS_OF_GATEWAY)
}

impl Drop for Link {
    fn drop(&mut self) {
        self.close(CloseCode::Lost, "");
    }
}

fn closed(error: ConnectionError) -> Closed {
    match error {
        ConnectionError::ApplicationClosed(close) => Closed {
            code: CloseCode::from_number(u32::try_from(close.error_code.into_inner()).unwrap_or(0)),
            message: line(&String::from_utf8_lossy(&close.reason)),
            by_peer: true,
        },
        ConnectionError::TimedOut => Closed { code: CloseCode::Dead, message: String::new(), by_peer: false },
        other => Closed { code: CloseCode::Lost, message: line(&other.to_string()), by_peer: false },
    }
}

/// A peer's text for people: it ends in a log, and must not make up lines of it.
pub(super) fn line(text: &str) -> String {
    text.chars().take(TEXT_BYTES).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn raw((send, recv): (quinn::SendStream, quinn::RecvStream)) -> RawStream {
    let send = RawSend::Quic(QuicSend { half: send, stopped: None, over: false });
    RawStream { send, recv: RawRecv::Quic(QuicRecv { half: recv }) }
}

fn varint(code: StreamCode) -> VarInt {
    VarInt::from_u32(code.number())
}

/// What the peer's `STOP_SENDING` means.
fn stopped(code: VarInt) -> RawError {
    let number = code.into_inner();
    // Only the low 32 bits are the code. quinn stops with 0 when a half is dropped, which is "no more".
    let code = match number as u32 {
        0 => StreamCode::NoMore,
        number => StreamCode::from_number(number),
    };
    if number & BROKEN != 0 { RawError::Reset(code) } else { RawError::Stopped(code) }
}

type Stopped = Pin<Box<dyn Future<Output = Result<Option<VarInt>, StoppedError>> + Send + Sync>>;

pub(crate) struct QuicSend {
    half: quinn::SendStream,
    /// Made when a writer first waits for something else than the carrier.
    stopped: Option<Stopped>,
    over: bool,
}

impl QuicSend {
    pub(crate) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        chunk: &mut Bytes,
        max: usize,
    ) -> Poll<Result<usize, RawError>> {
        let mut part = [chunk.slice(..chunk.len().min(max))];
        match pin!(self.half.write_chunks(&mut part)).poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(written)) => {
                chunk.advance(written.bytes);
                Poll::Ready(Ok(written.bytes))
            }
            Poll::Ready(Err(WriteError::Stopped(code))) => Poll::Ready(Err(stopped(code))),
            Poll::Ready(Err(_)) => Poll::Ready(Err(RawError::Lost)),
        }
    }

    pub(crate) fn finish(&mut self) {
        self.over = true;
        // An error means that the peer stopped it: the answer to that is a reset that nobody reads.
        if self.half.finish().is_err() {
            let _ = self.half.reset(varint(StreamCode::NoMore));
        }
    }

    pub(crate) fn reset(&mut self, code: StreamCode) {
        self.over = true;
        let _ = self.half.reset(varint(code));
    }

    pub(crate) fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<RawError> {
        let half = &self.half;
        let future = self.stopped.get_or_insert_with(|| Box::pin(half.stopped()));
        match future.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(result) => {
                let error = match result {
                    Ok(Some(code)) => stopped(code),
                    // All bytes were given and acknowledged: nothing more will happen here.
                    Ok(None) => {
                        self.stopped = Some(Box::pin(std::future::pending()));
                        return Poll::Pending;
                    }
                    Err(_) => RawError::Lost,
                };
                self.stopped = None;
                Poll::Ready(error)
            }
        }
    }

    pub(crate) fn prioritise(&mut self) {
        let _ = self.half.set_priority(CONTROL_PRIORITY);
    }
}

impl Drop for QuicSend {
    fn drop(&mut self) {
        if !self.over {
            // quinn would finish, which the reader would take for a clean end.
            let _ = self.half.reset(varint(StreamCode::Dropped));
        }
    }
}

/// As one piece: the only one as it is, several copied together.
fn gather(chunks: &mut [Bytes]) -> Bytes {
    match chunks {
        [] => Bytes::new(),
        [only] => std::mem::take(only),
        several => {
            let mut all = BytesMut::with_capacity(several.iter().map(Bytes::len).sum());
            several.iter().for_each(|chunk| all.extend_from_slice(chunk));
            all.freeze()
        }
    }
}

pub(crate) struct QuicRecv {
    half: quinn::RecvStream,
}

impl QuicRecv {
    pub(crate) fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, RawError>> {
        let mut chunks = [const { Bytes::new() }; GATHERED];
        let read = pin!(self.half.read_chunks(&mut chunks)).poll(cx);
        read.map(|read| match read {
            Ok(count) => Ok(count.map(|count| gather(&mut chunks[..count]))),
            Err(ReadError::Reset(code)) => {
                Err(RawError::Reset(StreamCode::from_number(u32::try_from(code.into_inner()).unwrap_or(u32::MAX))))
            }
            Err(_) => Err(RawError::Lost),
        })
    }

    pub(crate) fn stop(&mut self, code: StreamCode, broken: bool) -> bool {
        let number = u64::from(code.number()) | if broken { BROKEN } else { 0 };
        // 33 bits always fit into 62.
        let _ = self.half.stop(VarInt::from_u64(number).unwrap_or_default());
        true
    }
}

#[cfg(test)]
mod tests {
    use types::limits;

    use super::*;

    /// A peer that opens all it may has to be told of more, up to the last stream: 7410 of 8192 open and the raise to
    /// the rest kept by quinn was a tunnel that waited for ever.
    #[test]
    fn each_step_of_a_peers_streams_is_one_that_quinn_tells() {
        let mut allowed = 0;
        for open in 0..=limits::STREAMS_PER_TUNNEL {
            let wanted = streams_for(open as usize);
            assert!(wanted >= (2 * open).min(STREAMS_OF_GATEWAY), "{wanted} for {open}");
            assert!(wanted == allowed || wanted - allowed > wanted / 8, "from {allowed} to {wanted}");
            allowed = wanted;
        }
        assert_eq!(allowed, STREAMS_OF_GATEWAY);
        assert_eq!(streams_for(usize::MAX / 2), STREAMS_OF_GATEWAY);
    }

    /// The reason of a close is the peer's, and is written to logs as it is.
    #[test]
    fn a_peers_text_makes_up_no_line_of_a_log() {
        let close = quinn::ApplicationClose {
            error_code: VarInt::from_u32(CloseCode::Shutdown.number()),
            reason: Bytes::from(format!("bye\r\n2026-01-01 ERROR made up \u{1b}[31m{}", "x".repeat(5000))),
        };
        let closed = closed(ConnectionError::ApplicationClosed(close));
        assert!(closed.by_peer && !closed.message.chars().any(char::is_control), "{closed}");
        assert_eq!(closed.message.len(), TEXT_BYTES);
    }
}
