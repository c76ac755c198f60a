//! The session against peers that keep to nothing: here the other end is raw streams.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;
use types::{
    ids::StreamId,
    version::{Features, Version},
};

use super::*;
use crate::{
    transport::{
        Closed, OpenError, Stream, StreamError, TunnelHandle,
        carrier::{Carrier, RawRecv, RawSend, RawStream},
        memory,
    },
    wire::{
        close::{CloseCode, StreamCode},
        control::Control,
        hello::{Challenge, Hello, Proof, Refuse},
        message::{LENGTH_BYTES, Reader, Writer, length},
        varint,
    },
};

fn head() -> Bytes {
    Writer::begin(BytesMut::new(), 16).finish().freeze()
}

/// A stream's first bytes.
fn preface(id: u64) -> BytesMut {
    let mut out = BytesMut::new();
    varint::put(&mut out, id);
    out.extend_from_slice(&head());
    out
}

type Authenticate = fn(Presented) -> std::future::Ready<Result<(), Refuse>>;

fn gateway() -> GatewaySide<Authenticate> {
    GatewaySide {
        session: [7; 16],
        replica: None,
        authenticate: |_| std::future::ready(Ok(())),
        options: SessionOptions::default(),
    }
}

fn agent() -> AgentSide {
    AgentSide {
        agent_version: "1".to_owned(),
        instance: [9; 16],
        features: Features::default(),
        held: Vec::new(),
        prove: Box::new(|_| Err("no key".to_owned())),
        options: SessionOptions::default(),
    }
}

fn hello() -> Hello {
    Hello {
        version: Version::V1,
        features: Features::OFFERED,
        agent_version: "1".to_owned(),
        instance: [9; 16],
        proof: None,
        held: Vec::new(),
    }
}

/// A gateway's tunnel whose agent is raw: the carrier and the control stream's halves.
async fn raw_agent() -> (TunnelHandle, Carrier, RawSend, RawRecv) {
    let (near, far) = memory::carriers();
    let raw = async {
        let RawStream { mut send, mut recv } = far.link.accept().await.unwrap();
        recv.recv().await.unwrap().unwrap();
        send.send_all(hello().encode().freeze()).await.unwrap();
        recv.recv().await.unwrap().unwrap();
        (send, recv)
    };
    let (accepted, (send, recv)) = tokio::join!(accept(near, gateway()), raw);
    (accepted.unwrap().0, far, send, recv)
}

/// What a raw agent's first answer makes of the hello, at the gateway.
async fn hello_answered_with(answer: Bytes) -> HelloError {
    let (near, far) = memory::carriers();
    let raw = async {
        let RawStream { mut send, mut recv } = far.link.accept().await.unwrap();
        recv.recv().await.unwrap().unwrap();
        send.send_all(answer).await.unwrap();
        // The refusal, or the end.
        tokio::select! {
            _ = recv.recv() => far.link.close(CloseCode::Shutdown, ""),
            _ = far.link.closed() => {}
        }
    };
    let (accepted, ()) = tokio::join!(accept(near, gateway()), raw);
    accepted.map(|_| ()).unwrap_err()
}

#[test]
fn a_tunnel_that_is_closed_and_dropped_at_once_locks_nobody_up() {
    // The tunnel's task read why it ended with the lock of its first look still held; the drop, which closes too, came
    // in between as a writer: both threads stood still for ever, one in a hundred times.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let locked_up = (0..2_000).any(|_| {
        let (tunnel, _far, _send, _recv) = runtime.block_on(raw_agent());
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            tunnel.close(CloseCode::Shutdown, "");
            drop(tunnel);
            let _ = done.send(());
        });
        is_done.recv_timeout(Duration::from_secs(60)).is_err()
    });
    // Waits for no thread, or a fault here would hang instead of fail.
    runtime.shutdown_background();
    assert!(!locked_up, "close and drop return");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_sends_beyond_its_credit_ends_the_tunnel() {
    let beyond = vec![0; limits::WINDOW_INITIAL as usize + 1];
    for with_the_head in [true, false] {
        let (tunnel, far, _control, _recv) = raw_agent().await;
        let RawStream { mut send, recv: _back } = far.link.open().await.unwrap();
        let mut first = preface(1);
        if with_the_head {
            first.extend_from_slice(&beyond);
        }
        send.send_all(first.freeze()).await.unwrap();
        let mut stream = tunnel.accept().await.unwrap().stream;
        if !with_the_head {
            send.send_all(beyond.clone().into()).await.unwrap();
        }
        assert_eq!(stream.recv.recv().await, Err(StreamError::Lost(CloseCode::Protocol)));
        assert_eq!(tunnel.closed().await.code, CloseCode::Protocol);
    }
}

#[tokio::test(start_paused = true)]
async fn hello_is_refused_for_each_fault() {
    let mut other = hello();
    other.version = Version(77);
    assert!(matches!(hello_answered_with(other.encode().freeze()).await, HelloError::Version));
    assert!(matches!(hello_answered_with(Bytes::from_static(b"GET / HTTP/1.1\r\n\r\n")).await, HelloError::Wire(_)));
    let garbage = Writer::begin(BytesMut::new(), 99).finish().freeze();
    assert!(matches!(hello_answered_with(garbage).await, HelloError::Wire(_)));
    // Never ends: half a length prefix.
    assert!(matches!(
        hello_answered_with(Bytes::from_static(b"\0\0")).await,
        HelloError::Timeout | HelloError::Lost(_)
    ));
}

#[tokio::test(start_paused = true)]
async fn a_hello_that_never_comes_times_out_on_both_sides() {
    let (near, far) = memory::carriers();
    assert!(matches!(accept(near, gateway()).await, Err(HelloError::Timeout)));
    drop(far);
    let (near, far) = memory::carriers();
    assert!(matches!(connect(far, agent()).await, Err(HelloError::Timeout)));
    drop(near);
}

#[tokio::test(start_paused = true)]
async fn an_unauthorised_agent_reads_why() {
    let (near, far) = memory::carriers();
    let side = GatewaySide {
        session: [7; 16],
        replica: None,
        authenticate: async |presented: Presented| {
            assert_eq!((presented.by_proof, presented.instance), (false, [9; 16]));
            Err::<(), _>(Refuse {
                code: CloseCode::Unauthorised,
                message: "revoked".to_owned(),
                retry_after_ms: Some(5000),
                replicas: None,
            })
        },
        options: SessionOptions::default(),
    };
    let (accepted, connected) = tokio::join!(accept(near, side), connect(far, agent()));
    assert!(matches!(accepted, Err(HelloError::Refused { code: CloseCode::Unauthorised, .. })));
    match connected {
        Err(HelloError::Refused { code, message, retry_after, .. }) => {
            assert_eq!((code, message.as_str()), (CloseCode::Unauthorised, "revoked"));
            assert_eq!(retry_after, Some(Duration::from_secs(5)));
        }
        other => panic!("{:?}", other.map(|_| ())),
    }
}

#[tokio::test(start_paused = true)]
async fn no_common_version_is_said_by_the_agent() {
    let (near, far) = memory::carriers();
    let raw = async {
        let RawStream { mut send, recv: _recv } = near.link.open().await.unwrap();
        let challenge = Challenge {
            oldest: Version(50),
            newest: Version(60),
            features: Features::OFFERED,
            nonce: [1; 32],
            proof_needed: false,
        };
        send.send_all(challenge.encode().freeze()).await.unwrap();
    };
    let ((), connected) = tokio::join!(raw, connect(far, agent()));
    assert!(matches!(connected, Err(HelloError::Version)));
}

/// A throw-away P-256 certificate, and how its key signs.
fn prover() -> (Vec<u8>, impl Fn(&[u8]) -> Bytes) {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(Vec::new()).unwrap().self_signed(&key).unwrap();
    let der = certificate.der().to_vec();
    let sign = move |message: &[u8]| rcgen::SigningKey::sign(&key, message).unwrap().into();
    (der, sign)
}

/// Hello where the carrier's TLS showed no certificate.
async fn hello_by_proof(prove: Prove) -> (Result<Vec<u8>, HelloError>, Result<(), HelloError>) {
    let (mut near, far) = memory::carriers();
    near.facts.certificates.clear();
    let side = GatewaySide {
        session: [7; 16],
        replica: None,
        authenticate: async |presented: Presented| {
            assert!(presented.by_proof);
            Ok::<_, Refuse>(presented.chain[0].to_vec())
        },
        options: SessionOptions::default(),
    };
    let (accepted, connected) = tokio::join!(accept(near, side), connect(far, AgentSide { prove, ..agent() }));
    (accepted.map(|(_, who)| who), connected.map(|_| ()))
}

#[tokio::test(start_paused = true)]
async fn a_signed_challenge_stands_for_a_client_certificate() {
    let (der, sign) = prover();
    let chain = vec![Bytes::from(der.clone())];
    let (accepted, connected) =
        hello_by_proof(Box::new(move |message| Ok(Proof { chain, signature: sign(message) }))).await;
    assert_eq!(accepted.unwrap(), der);
    connected.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_proof_by_another_key_or_over_other_bytes_is_refused() {
    for other_bytes in [false, true] {
        let (der, sign) = prover();
        let (_, other) = prover();
        let prove = move |message: &[u8]| {
            let signature = if other_bytes { sign(b"an earlier challenge") } else { other(message) };
            Ok(Proof { chain: vec![der.into()], signature })
        };
        let (accepted, connected) = hello_by_proof(Box::new(prove)).await;
        assert!(matches!(accepted, Err(HelloError::Refused { code: CloseCode::Unauthorised, .. })));
        assert!(matches!(connected, Err(HelloError::Refused { code: CloseCode::Unauthorised, .. })));
    }
    let (_, connected) = hello_by_proof(Box::new(|_| Err("no key".to_owned()))).await;
    assert!(matches!(connected, Err(HelloError::Proof(_))));
}

#[tokio::test(start_paused = true)]
async fn stops_for_streams_that_never_come_are_bounded() {
    let (near, far) = memory::carriers();
    let raw = async {
        let RawStream { mut send, mut recv } = far.link.accept().await.unwrap();
        recv.recv().await.unwrap().unwrap();
        send.send_all(hello().encode().freeze()).await.unwrap();
        let mut flood = BytesMut::new();
        for number in 0..3 * limits::EARLY_STOPS as u64 {
            let stop = Control::Stop { stream: StreamId(2 * number + 1), code: StreamCode::NoMore };
            flood = stop.encode_into(flood);
        }
        send.send_all(flood.freeze()).await.unwrap();
        // The latest is remembered: its stream is stopped from the start.
        let latest = 2 * (3 * limits::EARLY_STOPS as u64 - 1) + 1;
        let RawStream { send: mut opened, recv: back } = far.link.open().await.unwrap();
        opened.send_all(preface(latest).freeze()).await.unwrap();
        (send, recv, opened, back)
    };
    let (accepted, _raw) = tokio::join!(accept(near, gateway()), raw);
    let tunnel = accepted.unwrap().0;
    let mut stream = tunnel.accept().await.unwrap().stream;
    assert_eq!(stream.send.stopped().await, StreamError::Stopped(StreamCode::NoMore));
    assert!(stream.send.early_stops_for_test() <= limits::EARLY_STOPS);
}

#[tokio::test(start_paused = true)]
async fn garbage_on_the_control_stream_is_a_protocol_error() {
    for garbage in [&b"\xff\xff\xff\xff"[..], b"\0\0\0\x02\x01\x63", b"\0\0\0\x02\x09\x20"] {
        let (tunnel, _far, mut control, mut recv) = raw_agent().await;
        control.send_all(Bytes::copy_from_slice(garbage)).await.unwrap();
        assert_eq!(tunnel.closed().await.code, CloseCode::Protocol);
        // And the peer is told.
        let mut told = BytesMut::new();
        loop {
            told.extend_from_slice(&recv.recv().await.unwrap().unwrap());
            while let Ok(Some(length)) = length(&told, limits::CONTROL_BYTES) {
                let message = told.split_to(LENGTH_BYTES + length).freeze().slice(LENGTH_BYTES..);
                if let Control::Close { code, .. } = Control::decode(message).unwrap() {
                    assert_eq!(code, CloseCode::Protocol);
                    told.clear();
                    told.extend_from_slice(b"!");
                }
            }
            if told == "!" {
                break;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_number_that_is_not_the_peers_is_a_protocol_error() {
    // Even numbers are the gateway's.
    let (tunnel, far, _control, _recv) = raw_agent().await;
    let RawStream { mut send, recv: _back } = far.link.open().await.unwrap();
    send.send_all(preface(2).freeze()).await.unwrap();
    assert_eq!(tunnel.closed().await.code, CloseCode::Protocol);
    // A number in use.
    let (tunnel, far, _control, _recv) = raw_agent().await;
    let mut open = Vec::new();
    for _ in 0..2 {
        let RawStream { mut send, recv: back } = far.link.open().await.unwrap();
        send.send_all(preface(1).freeze()).await.unwrap();
        open.push((send, back));
    }
    assert_eq!(tunnel.closed().await.code, CloseCode::Protocol);
}

#[tokio::test(start_paused = true)]
async fn a_bad_or_late_head_ends_its_stream_alone() {
    let (tunnel, far, _control, _recv) = raw_agent().await;
    let reset = crate::transport::carrier::RawError::Reset(StreamCode::BadHead);
    let RawStream { send: mut bad, recv: mut bad_back } = far.link.open().await.unwrap();
    bad.send_all(Bytes::from_static(b"\x01\xff\xff\xff\xff")).await.unwrap();
    assert_eq!(bad_back.recv().await, Err(reset));
    // A silent one, whose head never comes, delays no other and ends at its deadline.
    let RawStream { send: mut silent, recv: mut silent_back } = far.link.open().await.unwrap();
    silent.send_all(Bytes::from_static(b"\x03")).await.unwrap();
    let RawStream { send: mut good, recv: _good_back } = far.link.open().await.unwrap();
    good.send_all(preface(5).freeze()).await.unwrap();
    assert_eq!(tunnel.accept().await.unwrap().stream.id, StreamId(5));
    assert_eq!(silent_back.recv().await, Err(reset));
    assert!(tunnel.closed_now().is_none());
}

/// The pause of parked streams that are reset was passed by with an answer's headers before the reset, or with a head
/// that the gateway refuses.
#[tokio::test(start_paused = true)]
async fn an_agent_that_breaks_its_streams_off_is_heard_slowly() {
    for whole in [false, true] {
        let (tunnel, far, _control, _recv) = raw_agent().await;
        let (began, broken) = (tokio::time::Instant::now(), 50 * types::limits::HEADS_AT_GATEWAY as u64);
        for number in 0..broken {
            let RawStream { mut send, recv: _back } = far.link.open().await.unwrap();
            if whole {
                send.send_all(preface(2 * number + 1).freeze()).await.unwrap();
            }
            send.reset(StreamCode::Cancelled);
        }
        let RawStream { send: mut good, recv: _good_back } = far.link.open().await.unwrap();
        let last = StreamId(2 * broken + 1);
        good.send_all(preface(last.0).freeze()).await.unwrap();
        while tunnel.accept().await.unwrap().stream.id != last {}
        assert!(began.elapsed() >= Duration::from_secs(1), "{broken} streams within {:?}", began.elapsed());
        assert!(tunnel.closed_now().is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_dead_within_the_deadline() {
    let (tunnel, _far, _control, _recv) = raw_agent().await;
    let mut stream = tunnel.open(head()).await.unwrap();
    let began = tokio::time::Instant::now();
    assert_eq!(stream.recv.recv().await, Err(StreamError::Lost(CloseCode::Dead)));
    let took = began.elapsed();
    assert!(took >= limits::PROBE_DEADLINE && took < Duration::from_secs(30), "{took:?}");
    assert!(matches!(tunnel.open(head()).await, Err(OpenError::Closed(Closed { code: CloseCode::Dead, .. }))));
}

#[tokio::test(start_paused = true)]
async fn an_idle_tunnel_lives_and_knows_its_round_trip() {
    let (gateway, agent) = memory::pair().await;
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(gateway.closed_now().is_none() && agent.closed_now().is_none());
    assert!(gateway.rtt().is_some() && agent.rtt().is_some());
}

#[tokio::test(start_paused = true)]
async fn dropping_the_last_handle_closes_the_tunnel() {
    let (gateway, agent) = memory::pair().await;
    drop(gateway);
    let closed = agent.closed().await;
    assert_eq!((closed.code, closed.by_peer), (CloseCode::Shutdown, true));
}

#[tokio::test(start_paused = true)]
async fn windows_grow_for_quick_readers_within_the_tunnels_sum() {
    let (gateway, agent) = memory::pair().await;
    let mut streams = Vec::new();
    for _ in 0..12 {
        let (near, far) = tokio::join!(gateway.open(head()), agent.accept());
        let (mut near, mut far) = (near.unwrap(), far.unwrap().stream);
        let writer = tokio::spawn(async move {
            for _ in 0..400 {
                near.send.send(Bytes::from(vec![0; 1 << 18])).await.unwrap();
            }
            near
        });
        let mut taken = 0;
        while taken < 100 << 20 {
            taken += far.recv.recv().await.unwrap().unwrap().len();
        }
        streams.push((writer.await.unwrap(), far));
    }
    let windows: Vec<u64> = streams.iter().map(|(_, far)| far.recv.window_for_test()).collect();
    assert_eq!(windows[0], limits::WINDOW_MAX, "{windows:?}");
    assert!(windows.iter().all(|window| *window > limits::WINDOW_INITIAL), "the last gets something too: {windows:?}");
    let grown: u64 = windows.iter().map(|window| window - limits::WINDOW_INITIAL).sum();
    assert!(grown <= limits::WINDOW_GROWTH_PER_TUNNEL);
    assert_eq!(streams[0].1.recv.growth_for_test(), grown);
    let (_, last) = streams.pop().unwrap();
    let freed = last.recv.window_for_test() - limits::WINDOW_INITIAL;
    drop(last);
    assert_eq!(streams[0].1.recv.growth_for_test(), grown - freed, "growth is given back");
}

#[tokio::test(start_paused = true)]
async fn a_slow_readers_window_stays_small() {
    let (gateway, agent) = memory::pair().await;
    let (near, far) = tokio::join!(gateway.open(head()), agent.accept());
    let (mut near, mut far) = (near.unwrap(), far.unwrap().stream);
    let writer = tokio::spawn(async move { while near.send.send(Bytes::from(vec![0; 65_536])).await.is_ok() {} });
    for _ in 0..100 {
        far.recv.recv().await.unwrap().unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(far.recv.window_for_test(), limits::WINDOW_INITIAL);
    drop(far);
    writer.await.unwrap();
}

/// One thing that one end does to one stream.
#[derive(Clone, Debug)]
enum Step {
    Send(usize, usize),
    Receive(usize),
    Finish(usize),
    Reset(usize),
    Stop(usize),
    Yield,
}

fn step() -> impl Strategy<Value = Step> {
    let stream = 0..6usize;
    prop_oneof![
        6 => (stream.clone(), 1..20_000usize).prop_map(|(stream, length)| Step::Send(stream, length)),
        6 => stream.clone().prop_map(Step::Receive),
        2 => stream.clone().prop_map(Step::Finish),
        1 => stream.clone().prop_map(Step::Reset),
        1 => stream.prop_map(Step::Stop),
        2 => Just(Step::Yield),
    ]
}

/// A direction as the test knows it.
#[derive(Default)]
struct Direction {
    sent: u64,
    received: u64,
    finished: bool,
    broken: bool,
}

/// The byte at `position` of stream `index`: what is lost, doubled or mingled shows.
fn byte(index: usize, position: u64) -> u8 {
    (position.wrapping_mul(31) ^ (index as u64 * 97)) as u8
}

/// Takes what is there.
async fn receive(index: usize, stream: &mut Stream, direction: &mut Direction) {
    let recv = std::future::poll_fn(|cx| match stream.recv.poll_recv(cx) {
        std::task::Poll::Pending => std::task::Poll::Ready(None),
        std::task::Poll::Ready(result) => std::task::Poll::Ready(Some(result)),
    });
    match recv.await {
        None => {}
        Some(Ok(Some(chunk))) => {
            for (offset, got) in chunk.iter().enumerate() {
                assert_eq!(*got, byte(index, direction.received + offset as u64));
            }
            direction.received += chunk.len() as u64;
            assert!(direction.received <= direction.sent);
        }
        Some(Ok(None)) => {
            // A reset after the finish may come too late to break what has arrived whole.
            assert!(direction.finished, "a clean end that nobody gave");
            assert_eq!(direction.received, direction.sent, "a clean end before the last byte");
        }
        Some(Err(error)) => assert!(direction.broken, "{error}"),
    }
}

async fn interleave(steps: Vec<Step>) {
    let (gateway, agent) = memory::pair().await;
    let mut streams = Vec::new();
    for index in 0..6 {
        let (opener, acceptor) = if index % 2 == 0 { (&gateway, &agent) } else { (&agent, &gateway) };
        let (near, far) = tokio::join!(opener.open(head()), acceptor.accept());
        streams.push((near.unwrap(), far.unwrap().stream, Direction::default()));
    }
    for step in steps {
        match step {
            Step::Send(index, length) => {
                let (near, _, direction) = &mut streams[index];
                let bytes: Vec<u8> = (0..length as u64).map(|offset| byte(index, direction.sent + offset)).collect();
                let mut chunk = Bytes::from(bytes);
                // Only what goes out without waiting, so that one task plays all parts.
                let result =
                    std::future::poll_fn(|cx| std::task::Poll::Ready(near.send.poll_send(cx, &mut chunk))).await;
                direction.sent += (length - chunk.len()) as u64;
                if let std::task::Poll::Ready(Err(_)) = result {
                    assert!(direction.finished || direction.broken);
                }
            }
            Step::Receive(index) => {
                let (_, far, direction) = &mut streams[index];
                receive(index, far, direction).await;
            }
            Step::Finish(index) => {
                let (near, _, direction) = &mut streams[index];
                direction.finished |= near.send.finish().is_ok();
            }
            Step::Reset(index) => {
                let (near, _, direction) = &mut streams[index];
                near.send.reset(StreamCode::Cancelled);
                direction.broken = true;
            }
            Step::Stop(index) => {
                let (_, far, direction) = &mut streams[index];
                far.recv.stop(StreamCode::NoMore);
                direction.broken = true;
            }
            Step::Yield => tokio::task::yield_now().await,
        }
    }
    // Whatever happened, what was finished and not broken arrives whole.
    for (index, (near, far, direction)) in streams.iter_mut().enumerate() {
        if !direction.broken {
            direction.finished |= near.send.finish().is_ok();
            while direction.received < direction.sent {
                receive(index, far, direction).await;
                tokio::task::yield_now().await;
            }
            assert_eq!(far.recv.recv().await, Ok(None));
        }
    }
    drop(streams);
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!(gateway.open_streams() + agent.open_streams(), 0);
    assert!(gateway.closed_now().is_none(), "nothing of this ends the tunnel");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_interleaving_keeps_bytes_and_endings(steps in proptest::collection::vec(step(), 1..200)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(interleave(steps));
    }
}

/// For assertions only.
trait ClosedNow {
    fn closed_now(&self) -> Option<Closed>;
}

impl ClosedNow for TunnelHandle {
    fn closed_now(&self) -> Option<Closed> {
        use futures_util::FutureExt;
        self.closed().now_or_never()
    }
}

#[test]
fn messages_of_this_test_are_messages() {
    assert_eq!(Reader::new(head().slice(4..)).unwrap().kind, 16);
}

/// What the carrier lets a peer send is made for the streams there are, so that a peer with few streams cannot make
/// this end hold as much as one with thousands.
#[tokio::test]
async fn the_carriers_window_follows_the_streams() {
    let shared = Arc::new(state::Shared::new(state::Side::Gateway, Duration::ZERO, false));
    let of = |streams: u64| limits::CARRIER_WINDOW_BASE + 2 * streams * limits::WINDOW_INITIAL;
    let step = limits::CARRIER_WINDOW_STREAMS;
    assert_eq!(shared.take_room(), Some(of(step)));
    assert_eq!(shared.take_room(), None);
    let mut leases = Vec::new();
    for open in 1..=1000 {
        leases.push(shared.lease().unwrap());
        let room = shared.take_room();
        assert_eq!(room, (open % step == 0).then(|| of(open + step)), "{open} streams");
    }
    assert!(leases[0].grow(limits::WINDOW_MAX));
    assert_eq!(shared.take_room(), Some(of(1000 / step * step + step) + limits::WINDOW_MAX));
    drop(leases);
    assert_eq!(shared.take_room(), Some(of(step)));
}

/// A chunk may hold a great many control messages. They were once read in one go, while nothing else ran on the thread.
#[tokio::test]
async fn others_run_while_control_messages_are_read() {
    const MESSAGES: u64 = 100_000;
    let (tunnel, _far, mut send, _recv) = raw_agent().await;
    let mut flood = BytesMut::new();
    for number in 0..MESSAGES {
        flood = Control::Ping(number).encode_into(flood);
    }
    flood = Control::Close { code: CloseCode::Shutdown, message: String::new() }.encode_into(flood);
    // Another task that is always ready: it and the tunnel's take turns.
    let (turns, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let (counted, ends) = (turns.clone(), over.clone());
    let other = tokio::spawn(std::future::poll_fn(move |cx| {
        counted.fetch_add(1, Ordering::Relaxed);
        cx.waker().wake_by_ref();
        if ends.load(Ordering::Relaxed) { Poll::Ready(()) } else { Poll::Pending }
    }));
    // The half is given back, for dropped it would break the stream off.
    let flooding = tokio::spawn(async move { send.send_all(flood.freeze()).await.map(|()| send) });
    assert_eq!(tunnel.closed().await.code, CloseCode::Shutdown);
    over.store(true, Ordering::Relaxed);
    other.await.unwrap();
    let turns = turns.load(Ordering::Relaxed);
    assert!(turns > MESSAGES / 256, "{turns} turns for {MESSAGES} messages");
    drop(flooding);
}
