//! Upgraded bytes both ways: exec, attach, port-forward, cp.
//!
//! Half-close is kept: an EOF of one side becomes a finish of the other. Output is never truncated: a side is
//! closed after all of its bytes are flushed, and its socket is not dropped while it holds unread input, because the
//! kernel would then throw away what it has not sent yet.

use std::{
    future::{Future, poll_fn},
    io,
    pin::pin,
    task::Poll,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::Notify,
    time::{sleep, timeout},
};
use types::limits::CHUNK_BYTES;

use super::{
    Counters,
    half::{Receiver, Sender},
    send::quiet_end,
};
use crate::{
    transport::{RecvStream, SendStream, StreamError},
    wire::close::StreamCode,
};

/// The read buffer of a connection that carries little, in bytes.
const READ_FIRST_BYTES: usize = 16 * 1024;
/// What ready reads are gathered up to before they are sent as one chunk, in bytes.
const READ_GATHER_BYTES: usize = 64 * 1024;
/// How long a broken connection's last bytes may take to reach the reader before the reset that tells of the break,
/// which discards what is still on its way.
const RESET_AFTER: Duration = Duration::from_secs(5);
/// How long a side may go on talking after both directions are over, before its socket is closed under it.
const LINGER: Duration = Duration::from_secs(30);

/// Bytes that an upgraded connection carried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spliced {
    /// From `io` to the stream.
    pub sent: u64,
    /// From the stream to `io`.
    pub received: u64,
}

/// Carries upgraded bytes both ways until both directions have ended, keeping half-close: an EOF of one side becomes
/// finish (or a shutdown of the write half) of the other, and all bytes are flushed before a side is closed. The
/// directions do not wait for each other, and being idle ends nothing. Dropping the future breaks both sides off.
///
/// The error is what broke first; a [`StreamError`] is its source when it was the stream. A reader that stopped is
/// none.
pub async fn splice<T>(io: T, send: SendStream, recv: RecvStream) -> (Spliced, Result<(), io::Error>)
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let counters = Counters::default();
    let result = splice_counted(io, send, recv, &counters).await;
    (Spliced { sent: counters.sent(), received: counters.received() }, result)
}

/// As [`splice`]; the bytes are added to `counters` as they are carried.
pub async fn splice_counted<T>(io: T, send: SendStream, recv: RecvStream, counters: &Counters) -> Result<(), io::Error>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    both(io, send, recv, counters).await
}

/// How one direction ended, when the other may go on.
enum End {
    /// Its source ended and all was passed on.
    Whole,
    /// Its reader wants no more.
    Stopped,
    /// `io` is broken.
    Io(io::Error),
    /// The stream is broken: the other direction is over too.
    Stream(StreamError),
}

/// [`splice`] over any halves.
pub(super) async fn both<T, S, R>(io: T, mut send: S, mut recv: R, counters: &Counters) -> Result<(), io::Error>
where
    T: AsyncRead + AsyncWrite + Unpin,
    S: Sender,
    R: Receiver,
{
    let (mut reader, mut writer) = tokio::io::split(io);
    let down_over = Notify::new();
    let mut up = pin!(async {
        match upload(&mut reader, &mut send, counters).await {
            // What comes after a stop is read all the same: to learn that the side is gone, and to close it clean.
            End::Stopped => tokio::select! {
                end = discard(&mut reader) => end,
                () = async { down_over.notified().await; sleep(LINGER).await } => End::Stopped,
            },
            end => end,
        }
    });
    let mut down = pin!(async {
        let end = download(&mut recv, &mut writer, counters).await;
        down_over.notify_one();
        end
    });
    let (mut up_end, mut down_end) = (None, None);
    while up_end.is_none() || down_end.is_none() {
        tokio::select! {
            biased;
            end = &mut down, if down_end.is_none() => {
                if let End::Stream(why) = end {
                    return Err(io::Error::other(why));
                }
                down_end = Some(end);
            }
            end = &mut up, if up_end.is_none() => {
                if let End::Stream(why) = end {
                    // What has arrived before the break is still good.
                    if down_end.is_none() {
                        let _ = timeout(RESET_AFTER, down).await;
                    }
                    return Err(io::Error::other(why));
                }
                up_end = Some(end);
            }
        }
    }
    match (up_end, down_end) {
        (Some(End::Io(error)), _) | (_, Some(End::Io(error))) => Err(error),
        _ => Ok(()),
    }
}

/// From `io` to the stream.
async fn upload<T, S>(reader: &mut T, send: &mut S, counters: &Counters) -> End
where
    T: AsyncRead + Unpin,
    S: Sender,
{
    let mut gather = Gather::new();
    loop {
        let read = tokio::select! {
            biased;
            read = gather.read(reader) => read,
            why = send.stopped() => return stopped(send, why),
        };
        match read {
            Ok(Some(chunk)) => {
                let length = chunk.len();
                if let Err(why) = send.send(chunk).await {
                    return stopped(send, why);
                }
                counters.add_sent(length);
            }
            Ok(None) => {
                return match send.finish() {
                    Ok(()) => End::Whole,
                    Err(why) => stopped(send, why),
                };
            }
            Err(error) => {
                let _ = timeout(RESET_AFTER, send.stopped()).await;
                send.reset(StreamCode::Upstream);
                return End::Io(error);
            }
        }
    }
}

fn stopped<S: Sender>(send: &mut S, why: StreamError) -> End {
    match why {
        StreamError::Stopped(_) => {
            quiet_end(send);
            End::Stopped
        }
        why => End::Stream(why),
    }
}

/// Reads on and throws away, until the side ends.
async fn discard<T: AsyncRead + Unpin>(reader: &mut T) -> End {
    let mut buffer = BytesMut::with_capacity(READ_FIRST_BYTES);
    loop {
        buffer.clear();
        match reader.read_buf(&mut buffer).await {
            Ok(0) => return End::Stopped,
            Ok(_) => {}
            Err(error) => return End::Io(error),
        }
    }
}

/// From the stream to `io`.
async fn download<T, R>(recv: &mut R, writer: &mut T, counters: &Counters) -> End
where
    T: AsyncWrite + Unpin,
    R: Receiver,
{
    match pass_on(recv, writer, counters).await {
        Ok(end) => end,
        Err(error) => {
            recv.stop(StreamCode::Upstream);
            End::Io(error)
        }
    }
}

async fn pass_on<T, R>(recv: &mut R, writer: &mut T, counters: &Counters) -> Result<End, io::Error>
where
    T: AsyncWrite + Unpin,
    R: Receiver,
{
    let mut unflushed = false;
    loop {
        // A flush costs a TLS record or a packet: not while more is there to write.
        let next = poll_fn(|cx| match recv.poll_recv(cx) {
            Poll::Pending if unflushed => Poll::Ready(None),
            next => next.map(Some),
        });
        match next.await {
            None => {
                writer.flush().await?;
                unflushed = false;
            }
            Some(Ok(Some(chunk))) => {
                writer.write_all(&chunk).await?;
                counters.add_received(chunk.len());
                unflushed = true;
            }
            Some(Ok(None)) => {
                writer.flush().await?;
                writer.shutdown().await?;
                return Ok(End::Whole);
            }
            Some(Err(why)) => return Ok(End::Stream(why)),
        }
    }
}

/// Reads what is ready up to [`READ_GATHER_BYTES`] into one chunk, in a buffer that grows with its use and is used
/// again once its chunks were sent.
struct Gather {
    buffer: BytesMut,
    size: usize,
    /// The end or the error behind the last chunk.
    behind: Option<io::Result<()>>,
}

impl Gather {
    fn new() -> Self {
        Self { buffer: BytesMut::new(), size: READ_FIRST_BYTES, behind: None }
    }

    /// The next chunk; `None` at the end. Cancel-safe.
    async fn read<T: AsyncRead + Unpin>(&mut self, reader: &mut T) -> io::Result<Option<Bytes>> {
        if let Some(behind) = self.behind.take() {
            return behind.map(|()| None);
        }
        if self.buffer.capacity() < self.size / 2 {
            self.buffer.reserve(self.size);
        }
        poll_fn(|cx| {
            loop {
                let full = self.buffer.len() == self.buffer.capacity();
                if full || self.buffer.len() >= READ_GATHER_BYTES {
                    return Poll::Ready(());
                }
                let read = pin!(reader.read_buf(&mut self.buffer)).poll(cx);
                match read {
                    Poll::Ready(Ok(0)) => self.behind = Some(Ok(())),
                    Poll::Ready(Ok(_)) => continue,
                    Poll::Ready(Err(error)) => self.behind = Some(Err(error)),
                    Poll::Pending if self.buffer.is_empty() => return Poll::Pending,
                    Poll::Pending => {}
                }
                return Poll::Ready(());
            }
        })
        .await;
        if self.buffer.is_empty() {
            return self.behind.take().unwrap_or(Ok(())).map(|()| None);
        }
        if self.buffer.len() == self.buffer.capacity() {
            self.size = (self.size * 2).min(CHUNK_BYTES);
        }
        Ok(Some(self.buffer.split().freeze()))
    }
}
