//! Streams that have ended leave nothing behind (cloudflared #539: memory that grew with each stream of a QUIC
//! connection), and one tunnel bears any number of them. It looks at the memory of the whole process, so nothing else
//! runs in this program.
//!
//! `SOAK_STREAMS=1000000 cargo test --release -p tunnel --test soak -- --nocapture` for as many over each carrier.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::print_stdout, reason = "tests")]

#[path = "conformance/carriers.rs"]
#[allow(dead_code, reason = "the conformance suite uses the rest")]
mod carriers;

use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::time::timeout;
use tunnel::{
    transport::{CarrierKind, Incoming, StreamError, TunnelHandle, session::SessionOptions},
    wire::close::StreamCode,
};

use crate::carriers::{head, pair, serve};

/// Streams over each carrier, if nothing else is asked for.
const STREAMS: usize = 60_000;
/// With as many before, what is kept once is there: pools, and most of what is remembered of resets.
const WARM: usize = 30_000;
/// Streams that are open at the same time.
const CONCURRENT: usize = 100;
/// What each stream may seem to leave behind, in bytes: less than the least entry of a table.
const EACH_BYTES: usize = 16;
/// What the allocator may take meanwhile, and what is remembered of resets, in bytes, however many streams there are:
/// with [`STREAMS`] of them no less than 51 bytes of each are noticed.
const NOISE_BYTES: usize = 2 << 20;
/// Over one carrier; a stream that stays open would be waited for without end.
const DEADLINE: Duration = Duration::from_secs(600);
/// More than fits into the first packet of a stream.
const BODY: &[u8] = &[7; 3000];

/// Resident memory of this process, in bytes (Linux).
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
}

/// Answers what is asked in full, and breaks off where the head says so.
async fn answer(incoming: Incoming) {
    let breaks = incoming.head.ends_with(b"break");
    let mut stream = incoming.stream;
    if breaks {
        return stream.send.reset(StreamCode::Upstream);
    }
    while let Ok(Some(_)) = stream.recv.recv().await {}
    if stream.send.send(Bytes::from_static(BODY)).await.is_ok() {
        let _ = stream.send.finish();
    }
}

/// One stream. Of 64, one is left by its opener at once, one in its answer, and one is broken off by the other end.
async fn one(opener: &TunnelHandle, number: usize) {
    let (leaves, leaves_in_answer, breaks) = (number % 64 == 1, number % 64 == 2, number % 64 == 3);
    let mut stream = opener.open(head(if breaks { b"break" } else { b"x" })).await.unwrap();
    if leaves {
        return;
    }
    // Refused where it is broken off already.
    let _ = stream.send.send(Bytes::from_static(BODY)).await;
    let _ = stream.send.finish();
    let mut received = 0;
    let end = loop {
        match stream.recv.recv().await {
            Ok(Some(_)) if leaves_in_answer => return,
            Ok(Some(chunk)) => received += chunk.len(),
            end => break end,
        }
    };
    let expected = if breaks { Err(StreamError::Reset(StreamCode::Upstream)) } else { Ok(None) };
    assert_eq!((received, end), (if breaks { 0 } else { BODY.len() }, expected), "stream {number}");
}

async fn streams_leave_nothing(kind: CarrierKind, streams: usize) {
    let pair = pair(kind, true, SessionOptions::default()).await;
    let _serving = serve(&pair.acceptor, answer);
    let many = async |count: usize| {
        stream::iter(0..count).for_each_concurrent(CONCURRENT, |number| one(&pair.opener, number)).await;
        pair.idle().await;
    };
    many(WARM).await;
    let before = resident();
    many(streams).await;
    let more = resident().saturating_sub(before);
    println!("{kind}: {more} bytes more after {streams} streams");
    assert!(more <= NOISE_BYTES + EACH_BYTES * streams, "{kind}: {more} bytes more after {streams} streams");
}

#[test]
fn streams_leave_nothing_behind() {
    let streams = std::env::var("SOAK_STREAMS").map_or(STREAMS, |streams| streams.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    for kind in [CarrierKind::Quic, CarrierKind::Http2, CarrierKind::WebSocket] {
        let soak = async { timeout(DEADLINE, streams_leave_nothing(kind, streams)).await };
        assert!(runtime.block_on(soak).is_ok(), "{kind}: streams stay open");
    }
}
