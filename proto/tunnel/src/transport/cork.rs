//! Writes of one turn of a connection's task, sent together.
//!
//! h2 gives each DATA frame of some size to its socket on its own, and flushes behind it; below it each of these
//! becomes a TLS record and a system call, which cost more than all else that is done for a small request. A [`Corked`]
//! socket keeps small writes until its connection has had its turn. And that turn comes when other tasks that could run
//! have run: all that they have for the connection, and all that has arrived, is then one turn's work.
//!
//! Nothing waits for more to come: where nothing else can run, the turn is at once. And where nothing more came of it,
//! turns are not put off again for a while: on a connection with little to do that would only be a detour.

use std::{
    io::{self, IoSlice},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, Wake, Waker, ready},
};

use futures_util::{
    future::{MaybeDone, maybe_done},
    task::AtomicWaker,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tracing::Span;

/// What is kept at most, in bytes: as much as fits into one TLS record (RFC 8446 section 5.1).
const ROOM: usize = 16 * 1024;
/// Room that is made at least, in bytes: what an idle connection says fits.
const LEAST_ROOM: usize = 256;
/// Size in bytes from which on a write goes through at once: copying it would cost more than it saves.
const DIRECT: usize = 4 * 1024;
/// Maximum consecutive deferred turns that gathered no further message.
const USELESS: u32 = 8;
/// Turns that follow without deferral once [`USELESS`] is reached.
const PROMPT_TURNS: u32 = 64;
/// Messages that wait for a turn, see [`Turns`]: with 12 to 32 of them a gateway whose 64 requests went round in one
/// lump answered 40 % more, as those who ask and those who answer no longer waited for each other; with 8, half of
/// that.
const MOST_HANDED: u32 = 24;

/// Puts a cork on a socket. It holds nothing back before [`Cork::drive`].
pub fn cork<T>(io: T) -> (Corked<T>, Cork<T>) {
    let held = Held { io, bytes: Vec::new(), sent: 0, room: 0, holds: false, touched: false, failed: None };
    let held = Arc::new(Mutex::new(held));
    (Corked(Arc::clone(&held)), Cork { held, bell: Arc::default() })
}

/// A socket whose small writes are kept until its connection has had its turn.
pub struct Corked<T>(Arc<Mutex<Held<T>>>);

/// What sends the writes that a [`Corked`] socket kept.
pub struct Cork<T> {
    held: Arc<Mutex<Held<T>>>,
    bell: Arc<Bell>,
}

struct Held<T> {
    io: T,
    /// Written and not taken by `io`, from `sent` on.
    bytes: Vec<u8>,
    sent: usize,
    /// Bytes that were kept last; room is made for as many.
    room: usize,
    holds: bool,
    /// Written to since all was sent.
    touched: bool,
    /// Why sending failed, for whoever writes or reads next.
    failed: Option<io::Error>,
}

/// Both handles are used in a connection's turns alone: never contended, and a panic leaves nothing half done that
/// matters.
fn lock<T>(held: &Mutex<Held<T>>) -> MutexGuard<'_, Held<T>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: AsyncWrite + Unpin> Held<T> {
    /// Gives all that was kept to `io`.
    fn poll_give(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.bytes.len() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.bytes[self.sent..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += written;
        }
        if self.sent > 0 {
            // An idle connection keeps no room.
            (self.room, self.sent) = (self.sent, 0);
            self.bytes = Vec::new();
        }
        Poll::Ready(Ok(()))
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_give(cx))?;
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        self.touched = false;
        Poll::Ready(Ok(()))
    }

    fn poll_write_all_or_keep(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if let Some(error) = self.failed.take() {
            return Poll::Ready(Err(error));
        }
        self.touched = true;
        let total: usize = slices.iter().map(|slice| slice.len()).sum();
        let direct = !self.holds || total >= DIRECT;
        if direct || self.bytes.len() + total > ROOM {
            // In the order of writing.
            ready!(self.poll_give(cx))?;
        }
        if direct {
            return Pin::new(&mut self.io).poll_write_vectored(cx, slices);
        }
        if self.bytes.capacity() == 0 {
            self.bytes.reserve_exact(self.room.clamp(LEAST_ROOM.max(total), ROOM));
        }
        slices.iter().for_each(|slice| self.bytes.extend_from_slice(slice));
        Poll::Ready(Ok(total))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Corked<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut held = lock(&self.0);
        match held.failed.take() {
            Some(error) => Poll::Ready(Err(error)),
            None => Pin::new(&mut held.io).poll_read(cx, buf),
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Corked<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        lock(&self.0).poll_write_all_or_keep(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        lock(&self.0).poll_write_all_or_keep(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        lock(&self.0).io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut held = lock(&self.0);
        if let Some(error) = held.failed.take() {
            return Poll::Ready(Err(error));
        }
        held.touched = true;
        if held.holds { Poll::Ready(Ok(())) } else { held.poll_send(cx) }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut held = lock(&self.0);
        ready!(held.poll_give(cx))?;
        Pin::new(&mut held.io).poll_shutdown(cx)
    }
}

impl<T> Cork<T> {
    /// Runs what reads and writes the [`Corked`] socket, as the whole of a task or the only thing that it waits for: a
    /// turn once all that is ready to run has run, or earlier in the task of who hands on too much, and then what it
    /// wrote leaves.
    pub fn drive<F>(self, connection: F) -> Driven<F, T>
    where
        F: Future + Send + 'static,
        F::Output: Send,
        T: AsyncWrite + Send + Unpin + 'static,
    {
        let Self { held, bell } = self;
        lock(&held).holds = true;
        bell.rings.store(1, Ordering::Release);
        let driver = Mutex::new(maybe_done(Box::pin(connection)));
        let waker = Waker::from(Arc::clone(&bell));
        let seat = Arc::new(Seat { driver, held, bell, waker, span: OnceLock::new() });
        let weak = Arc::downgrade(&seat);
        // A cork is driven once.
        let _ = seat.bell.early.set(weak);
        Driven { seat, due: true, prompt: 0, useless: 0 }
    }

    /// For those who hand messages to the connection.
    pub fn turns(&self) -> Turns {
        Turns(Arc::clone(&self.bell))
    }
}

/// Counts the messages that are handed to a connection. That has a turn before all that is ready to run has run once
/// there are [`MOST_HANDED`]: its peer begins with them while others are still worked at.
///
/// Waking its task would not do: that was woken by the first message, and stands behind all that was ready by then.
#[derive(Clone)]
pub struct Turns(Arc<Bell>);

impl Turns {
    /// One more message will be handed on. If there are enough the connection has its turn before, in the task that
    /// calls.
    pub fn hand(&self) {
        if self.0.handed.load(Ordering::Relaxed) >= MOST_HANDED
            && let Some(seat) = self.0.early.get().and_then(Weak::upgrade)
        {
            seat.take_early();
        }
        self.0.handed.fetch_add(1, Ordering::Relaxed);
    }
}

/// The future that [`Cork::drive`] returns.
pub struct Driven<F: Future, T> {
    seat: Arc<Seat<F, T>>,
    /// The next poll is the turn, which was put off.
    due: bool,
    /// Turns that still come without deferral.
    prompt: u32,
    /// How many in a row were put off for nothing.
    useless: u32,
}

/// Where a connection has its turns: in its own task, and early in that of others.
struct Seat<F: Future, T> {
    /// What it ended with is for its own task.
    driver: Mutex<Driver<F>>,
    held: Arc<Mutex<Held<T>>>,
    bell: Arc<Bell>,
    /// Rings the bell.
    waker: Waker,
    /// Of its own task: early turns are in that too, or the tasks that they start would be part of another's.
    span: OnceLock<Span>,
}

type Driver<F> = MaybeDone<Pin<Box<F>>>;

/// Rings for a connection's own task, which panics in turn, where a turn panics in the task of another.
struct Alarm<'a>(&'a Waker);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.wake_by_ref();
        }
    }
}

/// A turn that others bring about.
trait Early: Send + Sync {
    fn take_early(&self);
}

impl<F, T> Early for Seat<F, T>
where
    F: Future + Send,
    F::Output: Send,
    T: AsyncWrite + Send + Unpin,
{
    fn take_early(&self) {
        // Whoever has it does all that can be done now; and it may be the turn itself that hands something on.
        if let Ok(mut driver) = self.driver.try_lock() {
            let _alarm = Alarm(&self.waker);
            let _span = self.span.get().map(Span::enter);
            self.bell.answer();
            self.turn(&mut driver);
            if matches!(*driver, MaybeDone::Done(_)) {
                self.waker.wake_by_ref();
            }
        }
    }
}

/// What the connection's wakers ring. Only the first ring since its last turn wakes the task: that then lets others go
/// first, and is not to be called back by each of them.
#[derive(Default)]
struct Bell {
    /// Since the last turn began.
    rings: AtomicU32,
    /// Messages since then, see [`Turns`].
    handed: AtomicU32,
    task: AtomicWaker,
    early: OnceLock<Weak<dyn Early>>,
}

impl Bell {
    /// A turn begins: how much came together.
    fn answer(&self) -> u32 {
        // Before the connection looks at anything: what rings from here on is another turn. Whatever rang before it did
        // so after its cause, which is seen now.
        let rings = self.rings.swap(0, Ordering::AcqRel);
        rings.max(self.handed.swap(0, Ordering::Relaxed))
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.rings.fetch_add(1, Ordering::AcqRel) == 0 {
            self.task.wake();
        }
    }
}

impl<F: Future, T: AsyncWrite + Unpin> Seat<F, T> {
    fn turn(&self, driver: &mut Driver<F>) {
        if !matches!(driver, MaybeDone::Future(_)) {
            return;
        }
        let mut cx = Context::from_waker(&self.waker);
        // The end is kept.
        let _ = Pin::new(&mut *driver).poll(&mut cx);
        let mut held = lock(&self.held);
        if held.touched
            && let Poll::Ready(Err(error)) = held.poll_send(&mut cx)
        {
            // The connection learns of it by its next read.
            (held.bytes, held.sent, held.touched) = (Vec::new(), 0, false);
            held.failed = Some(error);
            self.waker.wake_by_ref();
        }
    }
}

impl<F: Future, T: AsyncWrite + Unpin> Future for Driven<F, T> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self { seat, due, prompt, useless } = &mut *self;
        seat.bell.task.register(cx.waker());
        seat.span.get_or_init(Span::current);
        if seat.bell.rings.load(Ordering::Acquire) == 0 {
            // What it was to do was done early.
            if std::mem::take(due) {
                *useless = 0;
            }
            return Poll::Pending;
        }
        if *prompt > 0 {
            *prompt -= 1;
        } else if !std::mem::replace(due, true) {
            // Woken again when the others have run.
            if pin!(tokio::task::yield_now()).poll(cx).is_pending() {
                return Poll::Pending;
            }
        }
        let together = seat.bell.answer();
        if std::mem::take(due) {
            *useless = if together > 1 { 0 } else { *useless + 1 };
            if *useless == USELESS {
                (*useless, *prompt) = (0, PROMPT_TURNS);
            }
        }
        let mut driver = seat.driver.lock().expect("no turn of the connection panicked");
        seat.turn(&mut driver);
        Pin::new(&mut *driver).take_output().map_or(Poll::Pending, Poll::Ready)
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, future::poll_fn};

    use futures_util::FutureExt;
    use proptest::prelude::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A socket that takes what its script says of each write.
    #[derive(Default)]
    struct Scripted {
        writes: Vec<Vec<u8>>,
        flushes: usize,
        /// Bytes that the next writes take at most, and whether one waits before; no limit behind them.
        takes: VecDeque<(bool, usize)>,
        broken: bool,
    }

    impl AsyncRead for Scripted {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Scripted {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            if self.broken {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let taken = match self.takes.front_mut() {
                Some((waits @ true, _)) => {
                    *waits = false;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Some((false, most)) => bytes.len().min(*most),
                None => bytes.len(),
            };
            self.takes.pop_front();
            self.writes.push(bytes[..taken].to_vec());
            Poll::Ready(Ok(taken))
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.flushes += 1;
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Writes and flushes each piece, as h2 does.
    async fn write_each(io: &mut Corked<Scripted>, pieces: &[&[u8]]) -> io::Result<()> {
        for piece in pieces {
            io.write_all(piece).await?;
            io.flush().await?;
        }
        Ok(())
    }

    #[tokio::test]
    async fn small_writes_of_one_turn_leave_together() {
        let (mut io, cork) = cork(Scripted::default());
        let (held, seen) = (Arc::clone(&io.0), Arc::clone(&io.0));
        let connection = async move {
            write_each(&mut io, &[b"one ", b"two ", b"three"]).await.unwrap();
            assert!(lock(&seen).io.writes.is_empty());
            tokio::task::yield_now().await;
            assert_eq!(lock(&seen).io.writes, [b"one two three"]);
            write_each(&mut io, &[b"four"]).await.unwrap();
        };
        cork.drive(connection).await;
        // What was written in the last turn is not lost.
        let held = lock(&held);
        assert_eq!(held.io.writes, [b"one two three".as_slice(), b"four"]);
        assert_eq!((held.bytes.capacity(), held.io.flushes), (0, 2));
    }

    #[tokio::test]
    async fn nothing_is_kept_before_the_connection_is_driven() {
        let (mut io, _cork) = cork(Scripted::default());
        write_each(&mut io, &[b"hello"]).await.unwrap();
        assert_eq!(lock(&io.0).io.writes, [b"hello"]);
    }

    #[tokio::test]
    async fn large_writes_go_through_at_once_behind_what_was_kept() {
        let (mut io, cork) = cork(Scripted::default());
        let held = Arc::clone(&io.0);
        let large = vec![7; DIRECT];
        cork.drive(async move {
            write_each(&mut io, &[b"small", &large]).await.unwrap();
            assert_eq!(lock(&held).io.writes, [b"small".to_vec(), large.clone()]);
        })
        .await;
    }

    /// Room for a whole record at every turn was what the buffers of other connections came to lie in.
    #[tokio::test]
    async fn room_is_made_for_as_much_as_the_last_turn_kept() {
        let (mut io, cork) = cork(Scripted::default());
        let held = Arc::clone(&io.0);
        cork.drive(async move {
            for (bytes, room) in [(10, LEAST_ROOM), (3000, 3000), (10, 3000), (10, LEAST_ROOM)] {
                io.write_all(&vec![1_u8; bytes]).await.unwrap();
                assert_eq!(lock(&held).bytes.capacity(), room, "{bytes}");
                io.flush().await.unwrap();
                tokio::task::yield_now().await;
                assert_eq!(lock(&held).bytes.capacity(), 0);
            }
        })
        .await;
    }

    #[tokio::test]
    async fn no_more_than_one_record_is_kept() {
        let (mut io, cork) = cork(Scripted::default());
        let (held, seen) = (Arc::clone(&io.0), Arc::clone(&io.0));
        cork.drive(async move {
            for _ in 0..100 {
                io.write_all(&[1; 1000]).await.unwrap();
                assert!(lock(&seen).bytes.len() <= ROOM);
            }
            io.flush().await.unwrap();
        })
        .await;
        assert!(lock(&held).io.writes.iter().all(|write| write.len() <= ROOM));
        assert_eq!(lock(&held).io.writes.concat().len(), 100_000);
    }

    /// Without it a connection that only writes would wait for ever on a socket that is gone.
    #[tokio::test]
    async fn a_connection_learns_that_its_writes_were_not_sent() {
        let (mut io, cork) = cork(Scripted { broken: true, ..Scripted::default() });
        let connection = async move {
            write_each(&mut io, &[b"lost"]).await.unwrap();
            io.read(&mut [0; 1]).await.unwrap_err().kind()
        };
        assert_eq!(cork.drive(connection).await, io::ErrorKind::BrokenPipe);
    }

    #[tokio::test]
    async fn a_shutdown_sends_what_was_kept() {
        let (mut io, cork) = cork(Scripted { takes: VecDeque::from([(true, 2), (true, 2)]), ..Scripted::default() });
        let held = Arc::clone(&io.0);
        cork.drive(async move {
            io.write_all(b"goodbye").await.unwrap();
            io.shutdown().await.unwrap();
            assert_eq!(lock(&held).io.writes.concat(), b"goodbye");
        })
        .await;
    }

    /// All that other tasks have for a connection is one turn's work, however often they wake it.
    #[tokio::test]
    async fn a_turn_comes_once_the_others_have_run() {
        let (io, cork) = cork(Scripted::default());
        let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
        let turns = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&turns);
        let mut connection = tokio::spawn(cork.drive(async move {
            let _io = io;
            let (mut batch, mut open) = (0, true);
            while open {
                batch += 1;
                open = receive.recv().await.is_some();
                if open && receive.is_empty() {
                    seen.lock().unwrap().push(std::mem::take(&mut batch));
                }
            }
        }));
        assert!(poll_fn(|cx| Poll::Ready(connection.poll_unpin(cx))).await.is_pending());
        tokio::task::yield_now().await;
        drop(chain(send, 10));
        connection.await.unwrap();
        assert_eq!(*turns.lock().unwrap(), [10]);
    }

    #[tokio::test]
    async fn a_connection_with_little_to_do_is_not_put_off() {
        let (io, cork) = cork(Scripted::default());
        let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
        let connection = async move {
            let _io = io;
            while receive.recv().await.is_some() {}
        };
        let mut connection = pin!(cork.drive(connection));
        let mut polls = Vec::new();
        assert!(connection.as_mut().now_or_never().is_none());
        for _ in 0..USELESS + PROMPT_TURNS {
            send.send(()).unwrap();
            let mut polled = 0;
            while connection.seat.bell.rings.load(Ordering::Acquire) > 0 {
                assert!(connection.as_mut().now_or_never().is_none());
                polled += 1;
            }
            polls.push(polled);
        }
        // The first turn was none that somebody could have joined.
        let expected = [vec![2; USELESS as usize - 1], vec![1; PROMPT_TURNS as usize], vec![2]].concat();
        assert_eq!(polls, expected);
    }

    /// And its own task has only the end to tell then.
    #[tokio::test]
    async fn who_hands_on_too_much_takes_the_turn() {
        let (mut io, cork) = cork(Scripted::default());
        let (held, turns) = (Arc::clone(&io.0), cork.turns());
        let (send, mut receive) = tokio::sync::mpsc::unbounded_channel::<u32>();
        let connection = cork.drive(async move {
            while let Some(number) = receive.recv().await {
                io.write_all(&[u8::try_from(number).unwrap()]).await.unwrap();
            }
            "done"
        });
        let seat = Arc::clone(&connection.seat);
        let connection = tokio::spawn(connection);
        tokio::task::yield_now().await;
        for number in 1..=2 * MOST_HANDED {
            turns.hand();
            send.send(number).unwrap();
        }
        // No other task has run: one early turn, before the message that was one too many.
        let all: Vec<u8> = (1..).take(2 * MOST_HANDED as usize).collect();
        assert_eq!(lock(&held).io.writes, [&all[..MOST_HANDED as usize]]);
        drop(send);
        seat.take_early();
        assert_eq!(lock(&held).io.writes.concat(), all);
        assert_eq!(connection.await.unwrap(), "done");
    }

    #[tokio::test]
    async fn what_is_handed_on_in_a_turn_brings_about_none() {
        let (io, cork) = cork(Scripted::default());
        let turns = cork.turns();
        let connection = cork.drive(async move {
            let _io = io;
            (0..=2 * MOST_HANDED).for_each(|_| turns.hand());
        });
        connection.await;
    }

    /// Who hands on meanwhile may have hold of it still.
    #[tokio::test]
    async fn a_connection_that_is_over_has_no_turn() {
        let (_io, cork) = cork(Scripted::default());
        let connection = cork.drive(async { "done" });
        let seat = Arc::clone(&connection.seat);
        assert_eq!(connection.await, "done");
        seat.take_early();
    }

    #[tokio::test]
    async fn a_panic_in_an_early_turn_ends_the_connection() {
        let (_io, cork) = cork(Scripted::default());
        let (send, receive) = tokio::sync::oneshot::channel::<()>();
        let connection = cork.drive(async move {
            receive.await.unwrap();
            panic!("in a turn");
        });
        let seat = Arc::clone(&connection.seat);
        let connection = tokio::spawn(connection);
        tokio::task::yield_now().await;
        send.send(()).unwrap();
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| seat.take_early())).is_err());
        assert!(connection.await.unwrap_err().is_panic());
        seat.take_early();
    }

    #[tokio::test]
    async fn a_connection_that_is_gone_has_no_turn() {
        let (io, cork) = cork(Scripted::default());
        let turns = cork.turns();
        (0..=MOST_HANDED).for_each(|_| turns.hand());
        drop(cork.drive(std::future::pending::<()>()));
        (0..=MOST_HANDED).for_each(|_| turns.hand());
        drop(io);
    }

    /// Tasks that each send one and then start the next: they are behind whatever the sending wakes.
    fn chain(send: tokio::sync::mpsc::UnboundedSender<u32>, left: u32) -> tokio::task::JoinHandle<()> {
        tokio::spawn(async move {
            send.send(left).unwrap();
            if left > 1 {
                drop(chain(send, left - 1));
            }
        })
    }

    proptest! {
        #[test]
        fn bytes_arrive_whole_and_in_order(
            pieces in proptest::collection::vec(0_usize..9000, 1..40),
            takes in proptest::collection::vec((any::<bool>(), 1_usize..5000), 0..200),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let (mut io, cork) = cork(Scripted { takes: takes.into(), ..Scripted::default() });
            let held = Arc::clone(&io.0);
            let mut all = Vec::new();
            let pieces: Vec<Vec<u8>> = pieces.iter().enumerate().map(|(at, len)| vec![at as u8; *len]).collect();
            pieces.iter().for_each(|piece| all.extend_from_slice(piece));
            runtime.block_on(cork.drive(async move {
                for (at, piece) in pieces.iter().enumerate() {
                    io.write_all(piece).await.unwrap();
                    if at % 3 == 0 {
                        io.flush().await.unwrap();
                        tokio::task::yield_now().await;
                    }
                }
                io.shutdown().await.unwrap();
            }));
            prop_assert_eq!(lock(&held).io.writes.concat(), all);
        }
    }
}
