//! The task of a tunnel: control messages in and out, streams that the peer opens, probes, the end.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use daemon::{TaskGroup, random_unit};
use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep, timeout, timeout_at},
};
use types::{ids::StreamId, limits};

use super::{
    SessionOptions,
    incoming::Queue,
    liveness::{LATELY, Liveness, Seen, Step, together},
    messages::Messages,
    state::{Refused, Shared, Side},
    stream,
};
use crate::{
    transport::{
        Closed, Drain, Incoming,
        carrier::{Link, RawError, RawRecv, RawSend, RawStream},
        quic::Peer,
    },
    wire::{
        close::{CloseCode, StreamCode},
        control::Control,
        error::WireError,
        message::{self, LENGTH_BYTES},
        varint,
    },
};

/// Bytes of control messages written at once.
const CONTROL_BATCH_BYTES: usize = 16 * 1024;
/// Interval of the signs that the gateway's carrier sends instead of its session, as a part of the probe period: before
/// the agent asks.
const SOONER: f32 = 0.9;
/// How long a stream that an agent opened keeps its place among [`limits::HEADS_AT_GATEWAY`] after its head: 800 a
/// second.
const KEEPS_PLACE: Duration = Duration::from_millis(20);

/// The control stream after hello.
pub(super) struct ControlStream {
    pub(super) send: RawSend,
    pub(super) messages: Messages,
}

/// A ping that was sent and not answered.
#[derive(Default)]
struct Pending(Mutex<Option<(u64, Instant)>>);

impl Pending {
    /// An unanswered one keeps its time, so that a slow path is not measured as a quick one.
    fn sent(&self, number: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((number, Instant::now()));
    }

    /// How long the answer took, if it is one: a later pong answers earlier pings too.
    fn answered(&self, number: u64) -> Option<Duration> {
        let answered = |(sent, _): &mut (u64, Instant)| *sent <= number;
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take_if(answered).map(|(_, at)| at.elapsed())
    }
}

/// Starts the tunnel's task. What it gives are the streams that the peer opens.
pub(super) fn spawn(
    side: Side,
    shared: Arc<Shared>,
    link: Arc<Link>,
    control: ControlStream,
    options: SessionOptions,
) -> Arc<Queue<Incoming>> {
    let queue = Arc::<Queue<Incoming>>::default();
    let accepted = Arc::clone(&queue);
    let tasks = TaskGroup::new("tunnel");
    let group = tasks.clone();
    let mut session = Session { side, shared, link, control, options, queue, pending: Pending::default() };
    tasks.spawn("session", async move {
        let _ended = EndOnPanic(Arc::clone(&session.shared));
        session.run().await;
        // Only this task owns the group: it has to outlive the tunnel's handle to say why the tunnel ends.
        drop(group);
    });
    accepted
}

/// A tunnel whose task is gone is over, also when that is a fault of ours.
struct EndOnPanic(Arc<Shared>);

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        self.0.end(Closed { code: CloseCode::Internal, message: String::new(), by_peer: false });
    }
}

/// What the tunnel's task works with.
struct Session {
    side: Side,
    shared: Arc<Shared>,
    link: Arc<Link>,
    control: ControlStream,
    options: SessionOptions,
    queue: Arc<Queue<Incoming>>,
    pending: Pending,
}

impl Session {
    /// Borrows what it works with, so that the future stays small (decision 13).
    async fn run(&mut self) {
        let Self { side, shared, link, control: ControlStream { send, messages }, options, queue, pending } = self;
        let closed = tokio::select! {
            biased;
            closed = shared.wait_ended() => Some(closed),
            closed = read_control(shared, messages, pending) => closed,
            () = write_control(shared, send) => None,
            () = keep_room(shared, link) => None,
            () = accept_streams(*side, shared, link, queue) => None,
            closed = probe(*side, shared, link, pending, options) => Some(closed),
            () = hear_signs(*side, shared, link) => None,
            closed = drained(*side, shared) => Some(closed),
            closed = link.closed() => Some(closed),
        };
        // A loop that ended because the carrier failed leaves it to the carrier to say why.
        let closed = match closed {
            Some(closed) => closed,
            None => timeout(limits::CLOSE_LINGER, link.closed()).await.unwrap_or_else(|_| lost()),
        };
        shared.end(closed);
        let closed = shared.ended().unwrap_or_else(lost);
        if !closed.by_peer && !link.close_is_told() && !matches!(closed.code, CloseCode::Dead | CloseCode::Lost) {
            // Let the peer read why before the connection goes; it closes on its side.
            let told = Control::Close { code: closed.code, message: closed.message.clone() }.encode().freeze();
            let _ = timeout(limits::CLOSE_LINGER, async {
                if send.send_all(told).await.is_ok() {
                    link.closed().await;
                }
            })
            .await;
        }
        link.close(closed.code, &closed.message);
    }
}

fn lost() -> Closed {
    Closed { code: CloseCode::Lost, message: String::new(), by_peer: false }
}

fn protocol(message: impl Into<String>) -> Closed {
    Closed { code: CloseCode::Protocol, message: message.into(), by_peer: false }
}

/// Control messages in, until the tunnel's end; `None`: the carrier failed.
async fn read_control(shared: &Shared, messages: &mut Messages, pending: &Pending) -> Option<Closed> {
    loop {
        let message = match messages.read().await {
            Ok(Ok(message)) => message,
            Ok(Err(error)) => return Some(protocol(format!("control message: {error}"))),
            Err(RawError::Lost) => return None,
            Err(_) => return Some(protocol("the control stream was broken off")),
        };
        shared.life.hear(message.len());
        // A chunk may hold a million of them: others get their turn in between.
        tokio::task::coop::consume_budget().await;
        match Control::decode(message) {
            Ok(Control::Ping(number)) => shared.queue_pong(number),
            Ok(Control::Pong(number)) => {
                if let Some(took) = pending.answered(number) {
                    shared.life.set_rtt(took);
                    shared.life.stirred.notify_one();
                }
            }
            Ok(Control::Window { stream, position }) => shared.peer_window(stream, position),
            Ok(Control::Stop { stream, code }) => shared.peer_stop(stream, code),
            Ok(Control::Drain { code, reconnect_within_ms }) => {
                let reconnect_within = Duration::from_millis(reconnect_within_ms);
                shared.drain.set(Drain { code, reconnect_within });
            }
            Ok(Control::Close { code, message }) => return Some(Closed { code, message, by_peer: true }),
            Err(error) => return Some(protocol(format!("control message: {error}"))),
        }
    }
}

/// Control messages out, as batches; ends when the carrier fails.
async fn write_control(shared: &Shared, send: &mut RawSend) {
    loop {
        let due = shared.outbox.take(CONTROL_BATCH_BYTES);
        if due.is_empty() {
            shared.outbox.filled().await;
        } else if send.send_all(due.freeze()).await.is_err() {
            return;
        }
    }
}

/// Keeps the carrier's window as large as the windows of all streams together, and its room for streams ahead of those
/// that are open. Never ends.
async fn keep_room(shared: &Shared, link: &Link) {
    loop {
        if let Some(bytes) = shared.take_room() {
            link.allow(bytes);
            link.allow_streams(shared.open_streams());
        }
        shared.room.wanted.notified().await;
    }
}

/// Streams that the peer opens; their heads are read side by side, so that a silent one delays no other. Ends when the
/// carrier fails.
async fn accept_streams(side: Side, shared: &Arc<Shared>, link: &Link, queue: &Queue<Incoming>) {
    let at_once = match side {
        Side::Gateway => limits::HEADS_AT_GATEWAY,
        Side::Agent => limits::HEADS_AT_AGENT,
    };
    let long = Arc::new(Semaphore::new(limits::LONG_TARGETS as usize));
    let mut heads = FuturesUnordered::new();
    loop {
        tokio::select! {
            raw = link.accept(), if heads.len() < at_once => match raw {
                // Boxed: an empty list reserves space for one.
                Ok(raw) => {
                    let mut head = admit_in_place(side, shared, raw, &long, queue).boxed();
                    // As a rule it has come with its stream.
                    if (&mut head).now_or_never().is_none() {
                        heads.push(head);
                    }
                }
                Err(_) => return,
            },
            Some(()) = heads.next() => {}
        }
    }
}

/// Hands a stream on once its head is here. At the gateway each keeps its place for a while, however it ends: an agent
/// that opens streams and breaks them off, or has them refused, would keep both ends busy at the speed of the network
/// (CVE-2023-44487, CVE-2025-8671).
async fn admit_in_place(
    side: Side,
    shared: &Arc<Shared>,
    raw: RawStream,
    long: &Arc<Semaphore>,
    queue: &Queue<Incoming>,
) {
    // Users' requests come to the agent only.
    let long = (side == Side::Agent).then_some(long);
    if let Some(incoming) = admit(shared, raw, long).await
        && let Err(mut refused) = queue.push(incoming)
    {
        // Full means that nobody accepts.
        refused.stream.send.reset(StreamCode::Limit);
    }
    if side == Side::Gateway {
        sleep(KEEPS_PLACE).await;
    }
}

/// Reads a new stream's preface and head, within its deadline.
async fn admit(
    shared: &Arc<Shared>,
    RawStream { mut send, mut recv }: RawStream,
    long: Option<&Arc<Semaphore>>,
) -> Option<Incoming> {
    let read = read_head(&mut recv, long).await;
    let mut refuse = |code| {
        send.reset(code);
        recv.stop(code, true);
        None
    };
    let (id, head, rest) = match read {
        Ok(head) => head,
        // The opener broke it off before its head was whole: there is nobody to tell, but the carrier wants an end.
        Err(HeadError::Raw) => return refuse(StreamCode::Cancelled),
        Err(HeadError::Slow | HeadError::Wire(_)) => return refuse(StreamCode::BadHead),
        Err(HeadError::TooMany) => return refuse(StreamCode::Limit),
    };
    match shared.lease_peers(id) {
        Ok(lease) => {
            shared.life.hear(head.len());
            let mut stream = stream::stream(lease, RawStream { send, recv });
            stream.recv.begin_with(rest);
            Some(Incoming { head, stream })
        }
        Err(Refused::TooMany) => refuse(StreamCode::Limit),
        Err(Refused::BadId) => {
            shared.end(protocol("a stream's number is in use or not the peer's to choose"));
            refuse(StreamCode::BadHead)
        }
    }
}

enum HeadError {
    Raw,
    /// Not whole in time.
    Slow,
    /// There are [`limits::LONG_TARGETS`] long ones.
    TooMany,
    Wire(#[expect(dead_code, reason = "for debugging")] WireError),
}

impl From<WireError> for HeadError {
    fn from(error: WireError) -> Self {
        Self::Wire(error)
    }
}

/// A head over [`limits::HEAD_BYTES`], which holds its place for as long as any of its bytes is held.
struct LongHead {
    bytes: Bytes,
    _place: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for LongHead {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The stream's id, its head without the prefix, and what came behind. Without places for `long` heads there are none.
async fn read_head(recv: &mut RawRecv, long: Option<&Arc<Semaphore>>) -> Result<(StreamId, Bytes, Bytes), HeadError> {
    let begun = Instant::now();
    let mut deadline = begun + limits::HEAD_DEADLINE;
    let limit = if long.is_some() { limits::REQUEST_HEAD_BYTES } else { limits::HEAD_BYTES };
    let mut place = None;
    let mut buffer = BytesMut::new();
    let mut chunk = Bytes::new();
    loop {
        let here: &[u8] = if buffer.is_empty() { &chunk } else { &buffer };
        if let Some((id, taken)) = varint::take(here)?
            && let Some(length) = message::length(&here[taken..], limit)?
        {
            if length > limits::HEAD_BYTES && place.is_none() {
                // Nobody waits for a place: what is on its way to who waits would fill the carrier's window.
                place = long.and_then(|long| Arc::clone(long).try_acquire_owned().ok());
                if place.is_none() {
                    return Err(HeadError::TooMany);
                }
                deadline = begun + limits::LONG_HEAD_DEADLINE;
            }
            if here.len() - taken - LENGTH_BYTES >= length {
                let mut all = if buffer.is_empty() { chunk } else { buffer.freeze() };
                all.advance(taken + LENGTH_BYTES);
                let bytes = all.split_to(length);
                return Ok(match place {
                    None => (StreamId(id), bytes, all),
                    Some(place) => {
                        let rest = Bytes::copy_from_slice(&all);
                        (StreamId(id), Bytes::from_owner(LongHead { bytes, _place: place }), rest)
                    }
                });
            }
        }
        if buffer.is_empty() {
            buffer.extend_from_slice(&chunk);
        }
        match timeout_at(deadline, recv.recv()).await {
            Ok(Ok(Some(next))) if buffer.is_empty() => chunk = next,
            Ok(Ok(Some(next))) => buffer.extend_from_slice(&next),
            Ok(Ok(None) | Err(_)) => return Err(HeadError::Raw),
            Err(_) => return Err(HeadError::Slow),
        }
    }
}

/// At the agent: what the gateway's carrier says while nobody uses the tunnel. Never ends.
async fn hear_signs(side: Side, shared: &Shared, link: &Link) {
    while side == Side::Agent && link.sign().await.is_ok() {
        shared.life.hear_sign();
        tokio::task::coop::consume_budget().await;
    }
    // Nothing comes here, and it is for the others to find out that the carrier has failed.
    std::future::pending().await
}

/// Sends pings and looks for signs of life; ends when there were none for too long.
async fn probe(side: Side, shared: &Shared, link: &Link, pending: &Pending, options: &SessionOptions) -> Closed {
    let mut liveness = Liveness::new(side, options, Instant::now()).apart(random_unit());
    let keep_alive = if side == Side::Gateway { link.keep_alive(options.probe_period.mul_f32(SOONER)) } else { None };
    let mut number = 0u64;
    loop {
        // First whether somebody waits: who sees that nobody does sees since when.
        let waiting = shared.life.is_waited_on();
        let seen = Seen {
            received: shared.life.received(),
            heard: shared.life.heard(),
            sign: keep_alive.as_ref().map_or_else(|| shared.life.sign(), |peer| peer.heard_since()),
            kept: keep_alive.is_some(),
            carrier: link.heard(),
            // The carrier's is of now; the session's may be of the last question, hours ago and answered late.
            rtt: link.rtt().or(shared.life.rtt()),
            answered_in: shared.life.rtt(),
            waiting,
            lately: shared.life.was_waited_on(LATELY),
        };
        match liveness.look(seen, Instant::now()) {
            Step::Wait => {}
            Step::Dead => return Closed { code: CloseCode::Dead, message: String::new(), by_peer: false },
            Step::Ask => {
                number += 1;
                pending.sent(number);
                shared.queue_ping(number);
            }
        }
        shared.life.set_suspect(liveness.suspect());
        if liveness.is_idle() && !shared.life.rest() {
            shared.life.rise();
            continue;
        }
        let next = liveness.next();
        let next = if side == Side::Gateway && liveness.is_idle() { together(next) } else { next };
        let rest = keep_alive.as_deref().filter(|_| liveness.rests()).map(Peer::rest);
        let broken = async {
            match &rest {
                Some(rest) => rest.broken().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = sleep(next) => {}
            () = shared.life.stirred.notified() => {}
            () = shared.life.doubted.notified() => liveness.doubt(),
            () = broken => liveness.break_rest(),
        }
        drop(rest);
        shared.life.rise();
    }
}

/// At the gateway: closes a tunnel whose agent drains once its last stream has ended. The gateway does it because it
/// has then read all that the agent sent; the agent cannot know what is still on its way.
async fn drained(side: Side, shared: &Shared) -> Closed {
    if side != Side::Gateway {
        std::future::pending::<()>().await;
    }
    shared.drain.wait().await;
    loop {
        while shared.open_streams() > 0 {
            shared.idle.notified().await;
        }
        // What came before waits for a place perhaps.
        sleep(2 * KEEPS_PLACE).await;
        if shared.open_streams() == 0 {
            break;
        }
    }
    Closed { code: CloseCode::Drained, message: String::new(), by_peer: false }
}
