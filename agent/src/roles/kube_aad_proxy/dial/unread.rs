//! What answers may hold here while nobody reads them, and who may dial.
//!
//! A stream that comes from the apiserver holds up to [`WIDE_BYTES`] if its reader takes nothing. All of these together
//! have a [`Room`] of a part of the process's memory, of which each user has a share. A stream for which there is none
//! left is narrow: it holds a tenth of that. So whoever opens many streams has narrow ones, and those of others stay
//! wide.

use std::{
    hash::{BuildHasher as _, RandomState},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use daemon::{
    memory,
    shares::{Queue, Turn},
};
use http::HeaderValue;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tunnel::exchange::{Held, Room};
use types::limits;

/// What one stream may have in flight from the apiserver before its reader took anything. The apiserver is near.
const WIDE_WINDOW: u32 = 256 * 1024;
/// The same of a narrow stream.
const NARROW_WINDOW: u32 = 32 * 1024;
/// HTTP/2 frames at the most.
const WIDE_FRAME: u32 = 256 * 1024;
/// The least that HTTP/2 allows.
const NARROW_FRAME: u32 = 16 * 1024;
/// What one stream may queue towards the apiserver.
const WIDE_SEND_BUFFER: usize = 512 * 1024;
/// The same of a narrow stream.
const NARROW_SEND_BUFFER: usize = 64 * 1024;
/// What a wide stream holds at the most: its window, and the frame that waits for credit in the tunnel.
const WIDE_BYTES: u32 = WIDE_WINDOW + WIDE_FRAME;
/// What a narrow connection of HTTP/1.1 is read by. One byte less than the buffer with which hyper begins, so that it
/// makes no larger ones: it holds three of them.
const SIP_BYTES: usize = 8 * 1024 - 1;
/// What wide streams may hold of the memory that the process may have...
const PART: u64 = 4;
/// ...within these bounds...
const LEAST_BYTES: u64 = 16 * 1024 * 1024;
const MOST_BYTES: u64 = 1024 * 1024 * 1024;
/// ...and where nobody bounds that memory.
const BYTES_WITHOUT_A_LIMIT: u64 = 512 * 1024 * 1024;
/// Dials of connections that are not shared which begin at once: handshakes take the processor from others.
const DIALS_AT_ONCE: usize = 16;
/// More than the agent serves at once: none is ever turned away.
const WAITING: usize = 5 * limits::STREAMS_PER_TUNNEL as usize;
/// How long others wait for a dial before the next of them dials too: one backend of the apiserver that does not answer
/// must not hold up what another would take. A handshake in a cluster takes a few milliseconds.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);

/// What streams from the apiserver may hold, of all users and of each.
pub(super) struct Unread {
    room: Arc<Room>,
    /// With keys of this process: nobody can choose whom they share with.
    hasher: RandomState,
}

/// A user, by a hash.
pub(super) type Party = u64;

/// How much a stream may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Width {
    Wide,
    Narrow,
}

impl Unread {
    /// As the memory of this process allows.
    pub(super) fn of_process() -> Self {
        Self::of(budget(memory::limit()))
    }

    /// Of this many bytes.
    pub(super) fn of(bytes: u64) -> Self {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        Self { room: Arc::new(Room::of(bytes)), hasher: RandomState::new() }
    }

    pub(super) fn party(&self, asks: Option<&HeaderValue>) -> Party {
        self.hasher.hash_one(asks)
    }

    /// What a wide stream of `party` holds. `None`: it has to be narrow.
    pub(super) fn hold(&self, party: Party) -> Option<Held> {
        self.room.part(&party).hold(WIDE_BYTES)
    }
}

/// What wide streams may hold where the process may have `limit` bytes.
fn budget(limit: Option<u64>) -> u64 {
    limit.map_or(BYTES_WITHOUT_A_LIMIT, |limit| (limit / PART).clamp(LEAST_BYTES, MOST_BYTES))
}

impl Width {
    pub(super) fn of(held: Option<&Held>) -> Self {
        if held.is_some() { Self::Wide } else { Self::Narrow }
    }

    pub(super) fn window(self) -> u32 {
        match self {
            Self::Wide => WIDE_WINDOW,
            Self::Narrow => NARROW_WINDOW,
        }
    }

    pub(super) fn frame(self) -> u32 {
        match self {
            Self::Wide => WIDE_FRAME,
            Self::Narrow => NARROW_FRAME,
        }
    }

    pub(super) fn send_buffer(self) -> usize {
        match self {
            Self::Wide => WIDE_SEND_BUFFER,
            Self::Narrow => NARROW_SEND_BUFFER,
        }
    }
}

/// Dials of connections that are not shared, a few at once, in turns by user.
pub(super) struct Dials(Queue<Party>);

impl Default for Dials {
    fn default() -> Self {
        Self(Queue::new(DIALS_AT_ONCE, WAITING))
    }
}

impl Dials {
    /// Runs `dial` when it is this user's turn, which it gives on after [`PATIENCE`].
    pub(super) async fn run<T>(&self, party: Party, dial: impl Future<Output = T>) -> T {
        let turn = self.0.turn_of(party).await;
        let mut dial = pin!(dial);
        if let Ok(dialled) = tokio::time::timeout(PATIENCE, &mut dial).await {
            return dialled;
        }
        drop(turn);
        dial.await
    }
}

/// Who dials a connection that others share: one at a time, in turns by user.
pub(super) struct Dialling(Queue<Party>);

impl Default for Dialling {
    fn default() -> Self {
        Self(Queue::new(1, WAITING))
    }
}

impl Dialling {
    pub(super) async fn turn(&self, party: Party) -> Option<Turn<Party>> {
        self.0.turn_of(party).await
    }
}

/// Whether a connection of HTTP/1.1 is read in sips; by whoever has it.
#[derive(Clone, Default)]
pub(super) struct Narrow(Arc<AtomicBool>);

impl Narrow {
    pub(super) fn set(&self, width: Width) {
        self.0.store(width == Width::Narrow, Ordering::Relaxed);
    }
}

/// Gives no more than [`SIP_BYTES`] at once where it is narrow.
pub(super) struct Sips<T> {
    io: T,
    narrow: Narrow,
}

impl<T> Sips<T> {
    pub(super) fn new(io: T, narrow: Narrow) -> Self {
        Self { io, narrow }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Sips<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        if buffer.remaining() <= SIP_BYTES || !self.narrow.0.load(Ordering::Relaxed) {
            return Pin::new(&mut self.io).poll_read(cx, buffer);
        }
        let mut sip = ReadBuf::new(buffer.initialize_unfilled_to(SIP_BYTES));
        ready!(Pin::new(&mut self.io).poll_read(cx, &mut sip))?;
        let bytes = sip.filled().len();
        buffer.advance(bytes);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Sips<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::io::AsyncReadExt as _;

    use super::*;

    #[test]
    fn wide_streams_hold_a_quarter_of_the_memory_and_a_user_no_more_than_a_share() {
        assert_eq!(budget(Some(512 << 20)), 128 << 20);
        assert_eq!(budget(Some(1 << 20)), LEAST_BYTES);
        assert_eq!(budget(Some(1 << 40)), MOST_BYTES);
        assert_eq!(budget(None), BYTES_WITHOUT_A_LIMIT);
        let unread = Unread::of(128 << 20);
        let name = HeaderValue::from_static;
        let jane = unread.party(Some(&name("jane")));
        let held: Vec<_> = std::iter::from_fn(|| unread.hold(jane)).collect();
        assert!(held.len() > 20 && held.len() <= (128 << 20) / 8 / WIDE_BYTES as usize, "{}", held.len());
        // Several, for two may have one share, by chance.
        let others = ["joe", "jim", "jack"].map(|other| {
            let other = unread.party(Some(&name(other)));
            std::iter::from_fn(|| unread.hold(other)).collect::<Vec<_>>()
        });
        let most = others.iter().map(Vec::len).max();
        assert!(most > Some(20), "{most:?}: who has many takes none from others");
        drop((held, others));
        assert!(unread.hold(jane).is_some(), "it comes back");
    }

    #[tokio::test]
    async fn a_narrow_connection_is_read_in_sips() {
        let bytes = vec![7; 100_000];
        for width in [Width::Wide, Width::Narrow] {
            let narrow = Narrow::default();
            narrow.set(width);
            let mut io = Sips::new(&bytes[..], narrow);
            let (mut all, mut largest) = (Vec::with_capacity(200_000), 0);
            while let count @ 1.. = io.read_buf(&mut all).await.unwrap() {
                largest = largest.max(count);
            }
            assert_eq!(all, bytes);
            assert_eq!(largest, if width == Width::Narrow { SIP_BYTES } else { bytes.len() });
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_dials_a_thousand_times_lets_others_dial_after_the_next() {
        let (dials, begun) = (Arc::new(Dials::default()), Arc::new(Mutex::new(Vec::new())));
        let dial = |party: Party| {
            let (dials, begun) = (dials.clone(), begun.clone());
            tokio::spawn(async move {
                let dial = async {
                    begun.lock().unwrap().push(party);
                    std::future::pending::<()>().await;
                };
                dials.run(party, dial).await;
            })
        };
        for _ in 0..1000 {
            dial(1);
        }
        while dials.0.waiting() < 1000 - DIALS_AT_ONCE {
            tokio::task::yield_now().await;
        }
        dial(2);
        while dials.0.waiting() < 1001 - DIALS_AT_ONCE {
            tokio::task::yield_now().await;
        }
        assert_eq!(*begun.lock().unwrap(), [1; DIALS_AT_ONCE]);
        // Those hang, and give their turns on.
        tokio::time::sleep(PATIENCE + Duration::from_millis(1)).await;
        let begun = begun.lock().unwrap();
        assert_eq!(begun.iter().filter(|party| **party == 2).count(), 1, "{begun:?}");
        assert!(begun.len() <= 2 * DIALS_AT_ONCE, "{}", begun.len());
    }
}
