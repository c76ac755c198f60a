//! HTTP/2 over a cable that can be slow or swallow everything, in virtual time.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf},
    sync::watch,
    time::{Instant, sleep},
};
use types::limits;

use super::*;
use crate::{
    transport::{
        CarrierKind, SendStream, StreamError, TunnelHandle,
        carrier::{Carrier, Facts, RawStream},
        memory,
        session::{self, GatewaySide, SessionOptions},
    },
    wire::{
        close::{CloseCode, StreamCode},
        hello::Refuse,
        message::Writer,
    },
};

const TURN: Duration = Duration::from_millis(10);

fn head() -> Bytes {
    Writer::begin(BytesMut::new(), 16).finish().freeze()
}

/// Carries `rate` bytes per [`TURN`]; 0 is a black hole that still takes them.
async fn carry(mut from: ReadHalf<DuplexStream>, mut to: WriteHalf<DuplexStream>, rate: watch::Receiver<usize>) {
    loop {
        let rate = *rate.borrow();
        let mut buffer = vec![0; if rate == 0 { 65_536 } else { rate }];
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) if rate == 0 => {}
            Ok(got) => {
                if to.write_all(&buffer[..got]).await.is_err() {
                    return;
                }
            }
        }
        sleep(TURN).await;
    }
}

/// A tunnel over a cable, and the knob of its rate.
async fn tunnel(rate: usize) -> (TunnelHandle, TunnelHandle, watch::Sender<usize>) {
    let (gateway_io, gateway_plug) = tokio::io::duplex(64 * 1024);
    let (agent_io, agent_plug) = tokio::io::duplex(64 * 1024);
    let (knob, rate) = watch::channel(rate);
    let (gateway_read, gateway_write) = tokio::io::split(gateway_plug);
    let (agent_read, agent_write) = tokio::io::split(agent_plug);
    tokio::spawn(carry(gateway_read, agent_write, rate.clone()));
    tokio::spawn(carry(agent_read, gateway_write, rate));
    let (gateway, agent) = joined(gateway_io, agent_io).await;
    (gateway, agent, knob)
}

async fn joined(gateway_io: DuplexStream, agent_io: DuplexStream) -> (TunnelHandle, TunnelHandle) {
    let facts = || Facts { kind: CarrierKind::Http2, peer: None, certificates: vec![Vec::new().into()] };
    let (gateway, agent) = tokio::join!(client_side(gateway_io, facts()), server_side(agent_io, facts()));
    memory::joined(gateway.unwrap(), agent.unwrap(), SessionOptions::default()).await
}

/// The gateway's carrier, and an agent that keeps to nothing but HTTP/2.
async fn hostile(settings: &h2::server::Builder) -> (Carrier, h2::server::Connection<DuplexStream, Bytes>) {
    let (gateway_io, agent_io) = tokio::io::duplex(64 * 1024);
    let facts = Facts { kind: CarrierKind::Http2, peer: None, certificates: Vec::new() };
    let (carrier, hostile) = tokio::join!(client_side(gateway_io, facts), settings.handshake(agent_io));
    (carrier.unwrap(), hostile.unwrap())
}

/// What the gateway's carrier lets anybody send who has not shown who they are. On its parked streams that was 1.1 GB
/// on each connection.
#[tokio::test(start_paused = true)]
async fn a_peer_that_has_not_said_hello_cannot_fill_memory() {
    let (gateway_io, agent_io) = tokio::io::duplex(64 * 1024);
    let facts = Facts { kind: CarrierKind::Http2, peer: None, certificates: vec![Vec::new().into()] };
    let side = GatewaySide {
        session: [1; 16],
        replica: None,
        authenticate: |_| async { Ok::<_, Refuse>(()) },
        options: SessionOptions::default(),
    };
    tokio::spawn(async move { session::accept(client_side(gateway_io, facts).await.unwrap(), side).await.map(drop) });
    let mut hostile = h2::server::handshake(agent_io).await.unwrap();
    let (_, mut respond) = hostile.accept().await.unwrap().unwrap();
    let mut body = respond.send_response(http::Response::new(()), false).unwrap();
    body.reserve_capacity(64 << 20);
    // Whatever more streams and windows the gateway would give, it gives within this.
    let another = tokio::time::timeout(Duration::from_secs(5), hostile.accept()).await;
    assert!(another.is_err(), "a stream beside the control stream");
    let allowed = body.capacity();
    assert!(allowed as u64 <= limits::CARRIER_WINDOW_HELLO, "{allowed} bytes");
}

/// An agent that resets each stream that it is given gets no new ones at once. It kept both ends busy for as long as it
/// liked, at the speed of the network.
#[tokio::test(start_paused = true)]
async fn an_agent_that_resets_what_is_parked_gets_no_more_at_once() {
    let (carrier, mut hostile) = hostile(&h2::server::Builder::new()).await;
    let accepting = tokio::spawn(async move { while carrier.link.accept().await.is_ok() {} });
    // A stock each 20 ms, of streams that are at most so many.
    let most = 60 * limits::PARKED_STREAMS_MAX;
    let mut reset = 0;
    let _ = tokio::time::timeout(Duration::from_secs(1), async {
        while let (true, Some(Ok((_, mut respond)))) = (reset <= most, hostile.accept().await) {
            respond.send_reset(h2::Reason::CANCEL);
            reset += 1;
        }
    })
    .await;
    assert!((limits::PARKED_STREAMS..=most).contains(&reset), "{reset}");
    accepting.abort();
}

/// A stream has no room before the connection has opened it: waiting for that room put a turn of the connection, and a
/// packet, before each request.
#[tokio::test(start_paused = true)]
async fn a_request_is_on_its_way_with_the_opening_of_its_stream() {
    let (gateway, agent, _knob) = tunnel(100_000).await;
    let asked = gateway.ask(head()).now_or_never().expect("nothing to wait for").unwrap();
    let mut seen = agent.accept().await.unwrap().stream;
    assert_eq!(seen.recv.recv().await.unwrap(), None);
    seen.send.send_last(Bytes::from_static(b"answer")).await.unwrap();
    let mut answer = asked.recv;
    assert_eq!(answer.recv().await.unwrap().unwrap(), "answer");
    assert_eq!(answer.recv().await.unwrap(), None);
}

/// A peer that gives no stream any room, and ends each at once: h2 keeps what was queued for it until the connection
/// ends, though the stream is over and counts nowhere.
#[tokio::test(start_paused = true)]
async fn an_agent_that_gives_no_room_makes_the_gateway_keep_a_bounded_number_of_heads() {
    let mut settings = h2::server::Builder::new();
    settings.initial_window_size(0).max_concurrent_streams(1_000_000);
    let (carrier, mut hostile) = hostile(&settings).await;
    tokio::spawn(async move {
        // Dropped, they would be reset.
        let mut kept = Vec::new();
        while let Some(Ok((request, mut respond))) = hostile.accept().await {
            let _ = respond.send_response(http::Response::new(()), true);
            kept.push(request);
        }
    });
    let crate::transport::carrier::Link::Http2(link) = &carrier.link else { unreachable!("it is HTTP/2") };
    // The agent's settings are here, once it has answered.
    let RawStream { mut send, mut recv } = link.open().await.unwrap();
    send.queue_first(link.count_first(head()).unwrap(), true).unwrap();
    assert_eq!(recv.recv().await.unwrap(), None);
    let head = Bytes::from(vec![0; 40_000]);
    let most = (limits::HEADS_QUEUED_BYTES - link.queued_for_test()) / head.len();
    let mut queued = 0;
    for _ in 0..1000 {
        let RawStream { mut send, mut recv } = link.open().await.unwrap();
        if let Ok(first) = link.count_first(head.clone()) {
            queued += 1;
            send.queue_first(first, true).unwrap();
            assert_eq!(recv.recv().await.unwrap(), None);
        }
        assert!(link.queued_for_test() <= limits::HEADS_QUEUED_BYTES);
    }
    assert_eq!(queued, most);
}

/// Stopped halves are read out to their ends. Those of an agent that never ends them were kept for 30 s each, however
/// many.
#[tokio::test(start_paused = true)]
async fn an_agent_that_never_ends_what_is_stopped_makes_the_gateway_keep_a_bounded_number() {
    const MORE: usize = 100;
    let (carrier, mut hostile) = hostile(h2::server::Builder::new().max_concurrent_streams(1_000_000)).await;
    let (opened, resets) = (STREAMS as usize + MORE, watch::Sender::new(0));
    let seen = resets.clone();
    let agent = tokio::spawn(async move {
        let mut kept = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some(Ok((request, mut respond))) = hostile.accept() => {
                    let mut body = respond.send_response(http::Response::new(()), false).unwrap();
                    body.send_data(Bytes::from_static(b"x"), false).unwrap();
                    kept.push(async move {
                        let reset = std::future::poll_fn(|cx| body.poll_reset(cx)).await;
                        (request, reset)
                    });
                }
                Some((_, reset)) = kept.next() => {
                    assert_eq!(reset.unwrap(), h2::Reason::CANCEL);
                    seen.send_modify(|resets| *resets += 1);
                }
            }
        }
    });
    for _ in 0..opened {
        let RawStream { send, mut recv } = carrier.link.open().await.unwrap();
        assert_eq!(recv.recv().await.unwrap().unwrap(), "x");
        drop(send);
        recv.stop(StreamCode::NoMore, false);
    }
    // What drives the connection is a task of the group too.
    resets.subscribe().wait_for(|resets| *resets >= MORE - 1).await.unwrap();
    assert!(*resets.borrow() <= MORE + 1, "{} of {opened}", *resets.borrow());
    agent.abort();
}

#[tokio::test(start_paused = true)]
async fn a_path_that_swallows_everything_is_dead_at_both_ends_within_30_s() {
    let (gateway, agent, knob) = tunnel(100_000).await;
    let mut stream = gateway.open(head()).await.unwrap();
    let _far = agent.accept().await.unwrap();
    knob.send(0).unwrap();
    let began = Instant::now();
    let bulk = tokio::spawn(async move {
        loop {
            if let Err(error) = stream.send.send(Bytes::from(vec![0; 65_536])).await {
                return error;
            }
        }
    });
    let (gateway, agent) = tokio::join!(gateway.closed(), agent.closed());
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    assert_eq!((gateway.code, agent.code), (CloseCode::Dead, CloseCode::Dead));
    assert_eq!(bulk.await.unwrap(), StreamError::Lost(CloseCode::Dead));
}

#[tokio::test(start_paused = true)]
async fn many_bulk_streams_on_a_slow_path_do_not_delay_a_small_exchange_for_long() {
    // 1 MB/s, and a hundred streams that each have more than it carries in a second.
    let (gateway, agent, _knob) = tunnel(10_000).await;
    let mut bulk = Vec::new();
    for _ in 0..100 {
        let mut near = gateway.open(head()).await.unwrap();
        let mut far = agent.accept().await.unwrap().stream;
        bulk.push(tokio::spawn(async move { while far.send.send(Bytes::from(vec![0; 1 << 18])).await.is_ok() {} }));
        bulk.push(tokio::spawn(async move { while let Ok(Some(_)) = near.recv.recv().await {} }));
    }
    sleep(Duration::from_secs(60)).await;
    let began = Instant::now();
    let mut near = gateway.open(head()).await.unwrap();
    let mut far = agent.accept().await.unwrap().stream;
    far.send.send(Bytes::from_static(b"small")).await.unwrap();
    assert_eq!(near.recv.recv().await.unwrap().unwrap(), "small");
    let took = began.elapsed();
    // A round of all streams at their smallest chunk, twice, and what is on its way.
    let bound = Duration::from_secs((2 * 100 * limits::CHUNK_BYTES_MIN / 1_000_000) as u64 + 2);
    assert!(took < bound, "{took:?}");
    assert!(gateway.rtt().unwrap() < bound, "{:?}", gateway.rtt());
    for task in bulk {
        task.abort();
    }
}

/// Sends all that a stream may carry unread, `bytes` in a frame; then nothing more of it is taken.
async fn fill_with_frames_of(bytes: usize, send: &mut SendStream) {
    let mut count = 0u64;
    while count < limits::WINDOW_INITIAL {
        let frame = Bytes::from(vec![count as u8; bytes.min((limits::WINDOW_INITIAL - count) as usize)]);
        count += frame.len() as u64;
        send.send(frame).await.unwrap();
    }
    assert!(send.send(Bytes::from_static(b"more")).now_or_never().is_none(), "beyond the credit");
}

/// A line of a log in each frame, and nobody who reads: h2 took the agent for an attacker and ended the connection, and
/// with it whatever the cluster's other users had open.
#[tokio::test]
async fn small_frames_that_nobody_reads_do_not_end_the_tunnel() {
    for at_agent in [false, true] {
        let (gateway_io, agent_io) = tokio::io::duplex(64 * 1024);
        let (gateway, agent) = joined(gateway_io, agent_io).await;
        let mut unread = Vec::new();
        // More frames than h2 would keep, were they left to it.
        for bytes in [1, 1, 1, 1, 1, 40] {
            let near = gateway.open(head()).await.unwrap();
            let far = agent.accept().await.unwrap().stream;
            let (mut from, to) = if at_agent { (near, far) } else { (far, near) };
            fill_with_frames_of(bytes, &mut from.send).await;
            unread.push((bytes, from, to));
        }
        let mut near = gateway.open(head()).await.unwrap();
        let mut far = agent.accept().await.unwrap().stream;
        far.send.send(Bytes::from_static(b"small")).await.unwrap();
        assert_eq!(near.recv.recv().await.unwrap().unwrap(), "small");
        // What they did not read is still there for them, in its order, and its end behind it.
        for (bytes, mut from, mut to) in unread {
            let (mut position, mut chunks) = (0, 0);
            while position < limits::WINDOW_INITIAL {
                let chunk = to.recv.recv().await.unwrap().unwrap();
                for byte in &chunk {
                    assert_eq!(*byte, (position / bytes as u64 * bytes as u64) as u8);
                    position += 1;
                }
                chunks += 1;
            }
            // The last are as they came: less was read than makes a look due.
            let as_they_came = limits::WINDOW_INITIAL / bytes as u64;
            assert!(chunks <= as_they_came.min(600 * 1024 / 10), "{chunks} chunks of {as_they_came}");
            from.send.send_last(Bytes::from_static(b"end")).await.unwrap();
            assert_eq!(to.recv.recv().await.unwrap().unwrap(), "end");
            assert_eq!(to.recv.recv().await.unwrap(), None);
        }
    }
}

/// What is kept of a stream counts as unread: else an agent that keeps to no credit could send for ever to a user who
/// does not read.
#[tokio::test(start_paused = true)]
async fn what_is_kept_gives_no_room_for_more() {
    const ROOM: usize = 8 << 20;
    let (carrier, mut hostile) = hostile(&h2::server::Builder::new()).await;
    carrier.link.allow(ROOM as u64);
    let RawStream { send: _send, mut recv } = carrier.link.open().await.unwrap();
    let (_, mut respond) = hostile.accept().await.unwrap().unwrap();
    tokio::spawn(async move { while hostile.accept().await.is_some() {} });
    let mut body = respond.send_response(http::Response::new(()), false).unwrap();
    let mut sent = 0;
    let flood = async {
        while sent <= 2 * ROOM {
            body.reserve_capacity(1 << 14);
            let room = std::future::poll_fn(|cx| body.poll_capacity(cx)).await.unwrap().unwrap();
            body.send_data(Bytes::from(vec![0; room]), false).unwrap();
            sent += room;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(5), flood).await.is_err(), "{sent} bytes");
    assert!((ROOM - (1 << 16)..=ROOM).contains(&sent), "{sent} bytes");
    // Its reader makes room.
    let mut read = 0;
    while read < sent {
        read += recv.recv().await.unwrap().unwrap().len();
    }
    body.reserve_capacity(1 << 14);
    assert!(std::future::poll_fn(|cx| body.poll_capacity(cx)).await.unwrap().unwrap() > 0);
}
