//! A request body that can be sent again until its answer begins.
//!
//! A peer may say that it never processed a request (RFC 9113 sections 6.8 and 8.7), and a connection may end before it
//! carried one. Such a request is sent again, whatever its method, and so its body must still be there. Chunks that
//! were sent are kept by reference, not copied. Keeping stops when the answer begins, or at a bound: [`KEPT_PER_BODY`]
//! for one body and the [`Room`] that all bodies of a process share, of which each party has a [`Part`]. Beyond a bound
//! the body flows on and cannot be sent again.

use std::{
    collections::VecDeque,
    error::Error,
    hash::{BuildHasher as _, Hash, RandomState},
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker, ready},
};

use bytes::Bytes;
use daemon::shares::share;
use http_body::{Body, Frame, SizeHint};

/// Bytes that are kept of one body: what an apiserver takes as a resource at most (`MaxRequestBodyBytes`, 3 MiB).
pub const KEPT_PER_BODY: usize = 3 * 1024 * 1024;
/// Bytes that are kept of all bodies of a process together.
pub const KEPT_IN_ALL: usize = 64 * 1024 * 1024;
/// Below this many bytes a kept chunk is a copy.
const SMALL_CHUNK: usize = 4096;
/// What a kept chunk counts beyond its bytes: a chunk may be a small part of the buffer that it holds.
const CHUNK_COST: usize = 256;
/// Counters of what parties hold.
const COUNTERS: usize = 1024;

/// Whether `error`, or what caused it, is the peer's word that it did not process the request: the stream's id is above
/// the last one of a GOAWAY frame, or the stream was reset with REFUSED_STREAM. A reset with another code and a broken
/// connection prove nothing.
///
/// h2 gives a GOAWAY of the peer as the error of a stream in two cases: the stream's id is above the last one, or the
/// GOAWAY came first and the stream was never opened. Streams that the peer may have processed go on, or end with an IO
/// error.
pub fn was_not_processed(error: &(dyn Error + 'static)) -> bool {
    let mut source = Some(error);
    while let Some(error) = source {
        if let Some(error) = error.downcast_ref::<h2::Error>() {
            return error.is_remote() && (error.is_go_away() || error.reason() == Some(h2::Reason::REFUSED_STREAM));
        }
        source = error.source();
    }
    false
}

/// Room for what is kept of all bodies, in bytes. Nobody takes more of it than a [`share`] of what is free.
pub struct Room {
    all: u32,
    left: AtomicUsize,
    /// What each party holds. Two that fall on one counter have one share.
    held: Box<[AtomicUsize]>,
    /// With keys of this process: nobody can choose whom they share a counter with.
    hasher: RandomState,
}

impl Default for Room {
    fn default() -> Self {
        Self::of(KEPT_IN_ALL)
    }
}

impl Room {
    /// Of this many bytes.
    pub fn of(bytes: usize) -> Self {
        Self {
            all: u32::try_from(bytes).unwrap_or(u32::MAX),
            left: AtomicUsize::new(bytes),
            held: (0..COUNTERS).map(|_| AtomicUsize::new(0)).collect(),
            hasher: RandomState::new(),
        }
    }

    /// What somebody may have of it.
    pub fn part(self: &Arc<Self>, party: &(impl Hash + ?Sized)) -> Part {
        let at = self.hasher.hash_one(party) as usize % COUNTERS;
        Part { room: Arc::clone(self), at }
    }

    fn give_back(&self, at: usize, bytes: usize) {
        self.held[at].fetch_sub(bytes, Ordering::Relaxed);
        self.left.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that are left.
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }
}

/// What one party may have of a [`Room`].
pub struct Part {
    room: Arc<Room>,
    at: usize,
}

/// Bytes of a [`Room`] that somebody holds until it is dropped.
pub struct Held {
    room: Arc<Room>,
    // Small, for each request carries one.
    at: u32,
    bytes: u32,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.give_back(self.at as usize, self.bytes as usize);
    }
}

impl Part {
    /// Holds `bytes` of it. `None`: the party has its share, or there is no room.
    pub fn hold(self, bytes: u32) -> Option<Held> {
        let at = u32::try_from(self.at).ok()?;
        self.take(bytes as usize).then(|| Held { room: self.room, at, bytes })
    }

    fn take(&self, bytes: usize) -> bool {
        let Room { all, left, held, .. } = &*self.room;
        let update = |of: &AtomicUsize, change: &dyn Fn(usize) -> Option<usize>| {
            of.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change)
        };
        let Ok(free) = update(left, &|left| left.checked_sub(bytes)) else { return false };
        let taken = all.saturating_sub(u32::try_from(free).unwrap_or(u32::MAX));
        let most = share(*all, taken, 0) as usize;
        // A newcomer always gets something.
        let more = |held: usize| (held == 0 || held + bytes <= most).then_some(held + bytes);
        let got = update(&held[self.at], &more).is_ok();
        if !got {
            left.fetch_add(bytes, Ordering::Relaxed);
        }
        got
    }

    fn give_back(&self, bytes: usize) {
        self.room.give_back(self.at, bytes);
    }
}

/// A body with what was already sent of it. Held by whoever runs the exchange: when it is dropped, a body that still
/// flows ends with [`SendingError::Over`].
pub struct Resendable<B>(Arc<Mutex<State<B>>>);

/// A [`Resendable`] body on its way. Only the latest one reads; an earlier one ends with [`SendingError::Over`].
pub struct Sending<B> {
    state: Arc<Mutex<State<B>>>,
    turn: u32,
}

/// Why a body on its way breaks off.
#[derive(Debug, thiserror::Error)]
pub enum SendingError<E> {
    /// The exchange is over, or the body is being sent again.
    #[error("the exchange is over")]
    Over,
    /// The body itself broke off.
    #[error(transparent)]
    Body(#[from] E),
}

struct State<B> {
    /// None once the exchange is over.
    body: Option<B>,
    /// The body has given all that it had.
    ended: bool,
    /// Which [`Sending`] reads, and whether it is still there.
    turn: u32,
    reading: bool,
    /// Whether all that was sent is kept.
    keeping: bool,
    /// While all is kept: what was sent, then what is to be sent again. Otherwise: only what is still to be sent.
    kept: VecDeque<Bytes>,
    /// How much of `kept` this turn has sent.
    sent: usize,
    /// The body goes on without its [`Resendable`].
    alone: bool,
    /// What `kept` counts, in bytes of `room`.
    charged: usize,
    room: Part,
    waker: Option<Waker>,
}

impl<B> State<B> {
    /// Keeps `chunk`, which was just sent, or nothing from now on.
    fn keep(&mut self, chunk: &Bytes) {
        if !self.keeping {
            return;
        }
        let cost = chunk.len() + CHUNK_COST;
        if self.charged + cost > KEPT_PER_BODY || !self.room.take(cost) {
            return self.forget();
        }
        self.charged += cost;
        // A small one would keep the whole buffer that it came in, which is not counted.
        let is_small = chunk.len() < SMALL_CHUNK;
        self.kept.push_back(if is_small { Bytes::copy_from_slice(chunk) } else { chunk.clone() });
        self.sent += 1;
    }

    /// Keeps nothing from now on.
    fn forget(&mut self) {
        self.keeping = false;
        self.kept.drain(..std::mem::take(&mut self.sent));
        if self.kept.is_empty() {
            self.kept = VecDeque::new();
        }
        self.room.give_back(std::mem::take(&mut self.charged));
    }

    /// The next chunk that an earlier turn has sent already.
    fn next_kept(&mut self) -> Option<Bytes> {
        if !self.keeping {
            return self.kept.pop_front();
        }
        let chunk = self.kept.get(self.sent)?.clone();
        self.sent += 1;
        Some(chunk)
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl<B> Drop for State<B> {
    fn drop(&mut self) {
        self.room.give_back(self.charged);
    }
}

fn lock<B>(state: &Mutex<State<B>>) -> MutexGuard<'_, State<B>> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<B> Resendable<B> {
    /// `body` behind the chunk that was taken from it already, if one was.
    pub fn new(first: Option<Bytes>, body: B, room: Part) -> Self {
        let mut state = State {
            body: Some(body),
            ended: false,
            turn: 0,
            reading: false,
            keeping: true,
            kept: VecDeque::new(),
            sent: 0,
            alone: false,
            charged: 0,
            room,
            waker: None,
        };
        if let Some(first) = first {
            state.keep(&first);
            if !state.keeping {
                state.kept.push_back(first);
            }
        }
        Self(Arc::new(Mutex::new(state)))
    }

    /// The body from its beginning; what was given before ends. `None`: more was sent than is kept, or the answer has
    /// begun.
    pub fn send(&self) -> Option<Sending<B>> {
        let mut state = lock(&self.0);
        if !state.keeping && state.turn > 0 {
            return None;
        }
        state.turn += 1;
        state.reading = true;
        state.sent = 0;
        state.wake();
        Some(Sending { state: Arc::clone(&self.0), turn: state.turn })
    }

    /// The answer has begun: the body will not be sent again. One that nobody reads any more is dropped.
    pub fn release(&self) {
        let mut state = lock(&self.0);
        state.forget();
        let body = if state.reading { None } else { state.body.take() };
        drop(state);
        drop(body);
    }
}

impl<B> Resendable<B> {
    /// As [`Self::release`], and whoever sends the body decides how long it goes on.
    pub fn let_go(self) {
        self.release();
        lock(&self.0).alone = true;
    }
}

impl<B> Drop for Resendable<B> {
    fn drop(&mut self) {
        let mut state = lock(&self.0);
        state.forget();
        if state.alone {
            return;
        }
        let body = state.body.take();
        state.wake();
        drop(state);
        drop(body);
    }
}

impl<B> Drop for Sending<B> {
    fn drop(&mut self) {
        let mut state = lock(&self.state);
        if state.turn != self.turn {
            return;
        }
        state.reading = false;
        // Its sender learns at once that no more is wanted.
        let body = if state.keeping { None } else { state.body.take() };
        drop(state);
        drop(body);
    }
}

impl<B> Body for Sending<B>
where
    B: Body<Data = Bytes> + Unpin,
{
    type Data = Bytes;
    type Error = SendingError<B::Error>;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let mut guard = lock(&self.state);
        let state = &mut *guard;
        if state.turn != self.turn || state.body.is_none() {
            return Poll::Ready(Some(Err(SendingError::Over)));
        }
        if state.sent < state.kept.len()
            && let Some(chunk) = state.next_kept()
        {
            return Poll::Ready(Some(Ok(Frame::data(chunk))));
        }
        if state.ended {
            return Poll::Ready(None);
        }
        let Some(body) = &mut state.body else { return Poll::Ready(Some(Err(SendingError::Over))) };
        let polled = Pin::new(body).poll_frame(cx);
        if polled.is_pending() && !state.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            state.waker = Some(cx.waker().clone());
        }
        Poll::Ready(match ready!(polled) {
            Some(Ok(frame)) => {
                match frame.data_ref() {
                    Some(chunk) => state.keep(chunk),
                    // Trailers come last; a body with some is not sent again.
                    None => state.forget(),
                }
                Some(Ok(frame))
            }
            Some(Err(error)) => {
                state.forget();
                Some(Err(error.into()))
            }
            None => {
                state.ended = true;
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        let state = lock(&self.state);
        state.turn == self.turn
            && state.sent == state.kept.len()
            && (state.ended || state.body.as_ref().is_some_and(Body::is_end_stream))
    }

    fn size_hint(&self) -> SizeHint {
        let state = lock(&self.state);
        let again = state.kept.iter().skip(state.sent).map(|chunk| chunk.len() as u64).sum::<u64>();
        let body = match &state.body {
            _ if state.ended => SizeHint::with_exact(0),
            Some(body) => body.size_hint(),
            None => SizeHint::default(),
        };
        let mut hint = SizeHint::new();
        hint.set_lower(again.saturating_add(body.lower()));
        if let Some(upper) = body.upper() {
            hint.set_upper(again.saturating_add(upper));
        }
        hint
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, io};

    use futures_util::FutureExt as _;
    use tokio::sync::mpsc;

    use super::*;

    /// A body that the test feeds.
    struct Fed(mpsc::UnboundedReceiver<Result<Bytes, io::Error>>);

    impl Body for Fed {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
            self.0.poll_recv(cx).map(|next| next.map(|chunk| chunk.map(Frame::data)))
        }
    }

    type Feed = mpsc::UnboundedSender<Result<Bytes, io::Error>>;

    fn fed(room: &Arc<Room>) -> (Feed, Resendable<Fed>) {
        let (feed, body) = mpsc::unbounded_channel();
        (feed, Resendable::new(None, Fed(body), room.part("jane")))
    }

    async fn next(sending: &mut Sending<Fed>) -> Option<Result<Bytes, SendingError<io::Error>>> {
        let frame = poll_fn(|cx| Pin::new(&mut *sending).poll_frame(cx)).await?;
        Some(frame.map(|frame| frame.into_data().unwrap_or_default()))
    }

    async fn rest(sending: &mut Sending<Fed>) -> Vec<Bytes> {
        let mut all = Vec::new();
        while let Some(chunk) = next(sending).await {
            all.push(chunk.unwrap());
        }
        all
    }

    fn text(text: &'static str) -> Bytes {
        Bytes::from_static(text.as_bytes())
    }

    #[tokio::test]
    async fn body_sent_again_begins_anew_and_goes_on() {
        let room = Arc::<Room>::default();
        let (feed, body) = fed(&room);
        let mut first = body.send().unwrap();
        for chunk in ["one", "two"] {
            feed.send(Ok(text(chunk))).unwrap();
            assert_eq!(next(&mut first).await.unwrap().unwrap(), text(chunk));
        }
        let mut second = body.send().unwrap();
        assert_eq!(second.size_hint().lower(), 6);
        assert!(matches!(next(&mut first).await, Some(Err(SendingError::Over))));
        drop(first);
        assert_eq!(next(&mut second).await.unwrap().unwrap(), text("one"));
        // Broken off again within what was kept.
        let mut third = body.send().unwrap();
        feed.send(Ok(text("three"))).unwrap();
        drop((feed, second));
        assert_eq!(rest(&mut third).await, [text("one"), text("two"), text("three")]);
        assert!(third.is_end_stream());
        let mut fourth = body.send().unwrap();
        assert_eq!(fourth.size_hint().exact(), Some(11));
        assert_eq!(rest(&mut fourth).await.concat(), b"onetwothree");
    }

    #[tokio::test]
    async fn body_whose_answer_began_is_not_kept_and_goes_on() {
        let room = Arc::<Room>::default();
        let (feed, body) = fed(&room);
        let mut first = body.send().unwrap();
        feed.send(Ok(text("one"))).unwrap();
        feed.send(Ok(text("two"))).unwrap();
        assert!(next(&mut first).await.is_some() && next(&mut first).await.is_some());
        assert!(room.left() < KEPT_IN_ALL);
        let mut second = body.send().unwrap();
        assert!(next(&mut second).await.is_some());
        body.release();
        assert_eq!(room.left(), KEPT_IN_ALL);
        drop(feed);
        assert_eq!(rest(&mut second).await, [text("two")]);
        assert!(body.send().is_none());
    }

    #[tokio::test]
    async fn body_beyond_a_bound_flows_and_is_not_sent_again() {
        // Its own bound.
        let room = Arc::<Room>::default();
        let (feed, body) = fed(&room);
        let mut sending = body.send().unwrap();
        let large = Bytes::from(vec![0; KEPT_PER_BODY / 2]);
        for _ in 0..2 {
            feed.send(Ok(large.clone())).unwrap();
            assert_eq!(next(&mut sending).await.unwrap().unwrap(), large);
        }
        assert_eq!(room.left(), KEPT_IN_ALL);
        assert!(body.send().is_none());
        feed.send(Ok(text("more"))).unwrap();
        assert_eq!(next(&mut sending).await.unwrap().unwrap(), text("more"));
        // That of all bodies.
        let room = Arc::new(Room::of(1000));
        let (feed, body) = fed(&room);
        let (other_feed, other) = fed(&room);
        let (mut sending, mut other_sending) = (body.send().unwrap(), other.send().unwrap());
        for feed in [&feed, &other_feed] {
            feed.send(Ok(Bytes::from(vec![0; 500]))).unwrap();
        }
        assert!(next(&mut sending).await.is_some() && next(&mut other_sending).await.is_some());
        assert!(other.send().is_none());
        assert!(body.send().is_some());
        drop((body, sending));
        assert_eq!(room.left(), 1000);
    }

    /// Whoever sends much keeps no other's body from being kept.
    #[test]
    fn room_taken_by_one_user_leaves_some_to_others() {
        let room = Arc::<Room>::default();
        let chunk = 64 * 1024;
        let fill = |party: &Part| (0..).take_while(|_| party.take(chunk)).count();
        let greedy = room.part("greedy");
        let first = fill(&greedy);
        assert!((100..=128).contains(&first), "{first} chunks: an eighth of all at most");
        let mut fewest = usize::MAX;
        for name in 0..400 {
            let other = room.part(&name);
            // Of those who share a counter only the first is new.
            if room.held[other.at].load(Ordering::Relaxed) == 0 && room.left() >= chunk {
                fewest = fewest.min(fill(&other));
            }
        }
        assert!(fewest >= 1, "a newcomer got nothing");
        assert!(!greedy.take(chunk), "who holds some got more of the last places");
        greedy.give_back(first * chunk);
        assert!(greedy.take(chunk));
    }

    #[tokio::test]
    async fn tiny_chunks_count_more_than_their_bytes() {
        let room = Arc::<Room>::default();
        let (feed, body) = fed(&room);
        let mut sending = body.send().unwrap();
        let mut count = 0;
        while body.0.lock().unwrap().keeping {
            feed.send(Ok(text("x"))).unwrap();
            assert!(next(&mut sending).await.is_some());
            count += 1;
        }
        assert!(count <= KEPT_PER_BODY / CHUNK_COST, "{count}");
    }

    #[tokio::test]
    async fn body_ends_with_its_exchange() {
        let room = Arc::<Room>::default();
        let (feed, body) = fed(&room);
        let mut sending = body.send().unwrap();
        assert!(next(&mut sending).now_or_never().is_none());
        drop(body);
        assert!(matches!(next(&mut sending).await, Some(Err(SendingError::Over))));
        assert!(feed.is_closed());
    }

    /// Its sender is told at once that no more is wanted, and not when the answer has ended.
    #[tokio::test]
    async fn body_that_nobody_reads_is_dropped_with_the_answer() {
        let room = Arc::<Room>::default();
        let (feed, body) = fed(&room);
        drop(body.send().unwrap());
        assert!(!feed.is_closed());
        body.release();
        assert!(feed.is_closed());
        let (feed, body) = fed(&room);
        let sending = body.send().unwrap();
        body.release();
        assert!(!feed.is_closed());
        drop(sending);
        assert!(feed.is_closed());
    }

    #[tokio::test]
    async fn body_that_broke_off_is_not_sent_again() {
        let room = Arc::<Room>::default();
        let (feed, body) = fed(&room);
        let mut sending = body.send().unwrap();
        feed.send(Err(io::Error::other("gone"))).unwrap();
        assert!(matches!(next(&mut sending).await, Some(Err(SendingError::Body(_)))));
        assert!(body.send().is_none());
    }

    #[test]
    fn only_the_peers_word_is_proof() {
        let reset: h2::Error = h2::Reason::REFUSED_STREAM.into();
        // Not received from the peer.
        assert!(!was_not_processed(&reset));
        assert!(!was_not_processed(&io::Error::from(io::ErrorKind::BrokenPipe)));
    }
}
