//! The three endings, in each direction, and what ends without one.

use std::sync::Arc;

use bytes::Bytes;
use tunnel::{
    transport::{CarrierKind, StreamError},
    wire::close::{CloseCode, StreamCode},
};

use crate::{
    carriers::{Pair, head},
    data::{Random, Sum, count, read_all, read_sum},
};

pub async fn finish(pair: Arc<Pair>) {
    let (mut near, mut far) = pair.stream().await;
    near.send.send(Bytes::from_static(b"question")).await.unwrap();
    near.send.finish().unwrap();
    assert_eq!(read_all(&mut far.recv).await.unwrap(), b"question");
    assert_eq!(far.recv.recv().await.unwrap(), None, "the end stays the end");
    far.send.send(Bytes::from_static(b"ans")).await.unwrap();
    far.send.send(Bytes::new()).await.unwrap();
    far.send.send(Bytes::from_static(b"wer")).await.unwrap();
    far.send.finish().unwrap();
    assert_eq!(read_all(&mut near.recv).await.unwrap(), b"answer");
    assert_eq!(near.send.send(Bytes::from_static(b"x")).await, Err(StreamError::Over));
    assert_eq!(near.send.finish(), Err(StreamError::Over));
}

pub async fn empty_directions(pair: Arc<Pair>) {
    let (mut near, mut far) = pair.stream().await;
    near.send.finish().unwrap();
    far.send.finish().unwrap();
    assert_eq!(far.recv.recv().await.unwrap(), None);
    assert_eq!(near.recv.recv().await.unwrap(), None);
}

pub async fn reset_reaches_both_directions(pair: Arc<Pair>) {
    // By the opener, while the other end reads and writes.
    let (mut near, mut far) = pair.stream().await;
    far.send.send(Bytes::from_static(b"partial")).await.unwrap();
    near.recv.recv().await.unwrap().unwrap();
    near.send.reset(StreamCode::Upstream);
    let reset = StreamError::Reset(StreamCode::Upstream);
    assert_eq!(far.recv.recv().await, Err(reset.clone()));
    assert_eq!(far.send.stopped().await, reset);
    assert_eq!(far.send.send(Bytes::from_static(b"x")).await, Err(reset));
    assert_eq!(near.recv.recv().await, Err(StreamError::Over));
    drop((near, far));
    // By the acceptor, before it has sent anything.
    let (mut near, mut far) = pair.stream().await;
    far.send.reset(StreamCode::UnknownRole);
    assert_eq!(near.recv.recv().await, Err(StreamError::Reset(StreamCode::UnknownRole)));
    drop((near, far));
    // Seen by a writer alone whose own reader nobody asks.
    let (mut near, mut far) = pair.stream().await;
    near.send.reset(StreamCode::Cancelled);
    let end = far.send.stopped().await;
    assert!(
        matches!(end, StreamError::Reset(StreamCode::Cancelled) | StreamError::Stopped(StreamCode::Cancelled)),
        "{end:?}"
    );
}

pub async fn stop_ends_one_direction_with_its_code(pair: Arc<Pair>) {
    let (mut near, mut far) = pair.stream().await;
    far.recv.stop(StreamCode::Limit);
    assert_eq!(near.send.stopped().await, StreamError::Stopped(StreamCode::Limit));
    assert_eq!(near.send.send(Bytes::from_static(b"x")).await, Err(StreamError::Stopped(StreamCode::Limit)));
    // The other direction goes on, far beyond one window.
    let data = Random::new(1).bytes(1_000_000);
    let sum = Sum::of(&data);
    let send = async {
        far.send.send(data).await.unwrap();
        far.send.finish().unwrap();
    };
    let (_, got) = tokio::join!(send, read_sum(&mut near.recv));
    assert_eq!(got.unwrap(), sum);
    drop((near, far));
    // And the other way about.
    let (mut near, mut far) = pair.stream().await;
    near.recv.stop(StreamCode::Deadline);
    assert_eq!(far.send.stopped().await, StreamError::Stopped(StreamCode::Deadline));
    near.send.send(Bytes::from_static(b"still here")).await.unwrap();
    near.send.finish().unwrap();
    assert_eq!(read_all(&mut far.recv).await.unwrap(), b"still here");
}

pub async fn half_close(pair: Arc<Pair>) {
    let (mut near, mut far) = pair.stream().await;
    near.send.send(Bytes::from_static(b"stdin")).await.unwrap();
    near.send.finish().unwrap();
    assert_eq!(read_all(&mut far.recv).await.unwrap(), b"stdin");
    // One direction is over on both sides; the other carries many windows.
    let data = Random::new(2).bytes(3_000_000);
    let sum = Sum::of(&data);
    let send = async {
        for start in (0..data.len()).step_by(70_001) {
            far.send.send(data.slice(start..data.len().min(start + 70_001))).await.unwrap();
        }
        far.send.finish().unwrap();
    };
    let (_, got) = tokio::join!(send, read_sum(&mut near.recv));
    assert_eq!(got.unwrap(), sum);
}

pub async fn early_answer_is_read_whole(pair: Arc<Pair>) {
    let (near, mut far) = pair.stream().await;
    let (mut send, mut recv) = (near.send, near.recv);
    let upload = tokio::spawn(async move {
        let chunk = Bytes::from(vec![1; 50_000]);
        loop {
            if let Err(error) = send.send(chunk.clone()).await {
                return error;
            }
        }
    });
    far.recv.recv().await.unwrap().unwrap();
    let answer = Random::new(3).bytes(500_000);
    let sum = Sum::of(&answer);
    let serve = async {
        far.send.send(answer).await.unwrap();
        far.send.finish().unwrap();
        // The answer is given; now nothing more is wanted.
        drop((far.recv, far.send));
    };
    let (_, got) = tokio::join!(serve, read_sum(&mut recv));
    assert_eq!(got.unwrap(), sum);
    assert_eq!(upload.await.unwrap(), StreamError::Stopped(StreamCode::NoMore));
}

/// As a client h2 resets a stream with CANCEL once both halves are dropped, and forgets what is queued: the request
/// must neither be cut nor, worse, be cut and look whole.
pub async fn finished_request_outlives_its_opener(pair: Arc<Pair>) {
    for length in [1, 1000, 100_000] {
        let (mut near, mut far) = pair.stream().await;
        let data = Random::new(6).bytes(length);
        let sum = Sum::of(&data);
        near.send.send(data).await.unwrap();
        near.send.finish().unwrap();
        drop(near);
        assert_eq!(read_sum(&mut far.recv).await.unwrap(), sum);
        assert!(matches!(far.send.stopped().await, StreamError::Stopped(StreamCode::NoMore)));
    }
}

pub async fn dropped_send_half_is_a_reset(pair: Arc<Pair>) {
    let (mut near, mut far) = pair.stream().await;
    near.send.send(Bytes::from_static(b"not all")).await.unwrap();
    assert_eq!(far.recv.recv().await.unwrap().unwrap(), "not all");
    drop(near.send);
    assert_eq!(far.recv.recv().await, Err(StreamError::Reset(StreamCode::Dropped)));
    drop((near.recv, far));
    let (mut near, far) = pair.stream().await;
    drop(far.send);
    assert_eq!(near.recv.recv().await, Err(StreamError::Reset(StreamCode::Dropped)));
    drop(far.recv);
}

pub async fn dropped_receive_half_is_a_stop(pair: Arc<Pair>) {
    let (mut near, mut far) = pair.stream().await;
    near.send.send(Bytes::from_static(b"unread")).await.unwrap();
    drop(far.recv);
    assert_eq!(near.send.stopped().await, StreamError::Stopped(StreamCode::NoMore));
    far.send.send(Bytes::from_static(b"fine")).await.unwrap();
    far.send.finish().unwrap();
    assert_eq!(read_all(&mut near.recv).await.unwrap(), b"fine");
}

pub async fn stop_wakes_a_writer_that_waits_for_its_source(pair: Arc<Pair>) {
    let (mut near, mut far) = pair.stream().await;
    let waiting = tokio::spawn(async move { far.send.stopped().await });
    // The opener gives up after its request is sent whole: what a cancelled watch is.
    near.send.finish().unwrap();
    drop(near);
    let end = waiting.await.unwrap();
    assert_eq!(end, StreamError::Stopped(StreamCode::NoMore));
}

pub async fn truncated_at_the_last_byte(pair: Arc<Pair>) {
    let data = Random::new(4).bytes(100_000);
    let (mut near, mut far) = pair.stream().await;
    near.send.send(data.slice(..data.len() - 1)).await.unwrap();
    let mut got = 0;
    while got < data.len() - 1 {
        got += far.recv.recv().await.unwrap().unwrap().len();
    }
    near.send.reset(StreamCode::Upstream);
    let (more, end) = count(&mut far.recv).await;
    assert_eq!((more, end), (0, Some(StreamError::Reset(StreamCode::Upstream))), "never a clean end");
}

pub async fn torn_connection_fails_all_at_once(pair: Arc<Pair>) {
    let (mut near, mut far) = pair.stream().await;
    let (mut stalled_near, stalled_far) = pair.stream().await;
    // One writer waits for credit, one reader for bytes, one opener's peer for a stream.
    let writer = tokio::spawn(async move {
        loop {
            if let Err(error) = stalled_near.send.send(Bytes::from(vec![0; 65_536])).await {
                return error;
            }
        }
    });
    near.send.send(Bytes::from_static(b"some")).await.unwrap();
    assert_eq!(far.recv.recv().await.unwrap().unwrap(), "some");
    let reader = tokio::spawn(async move { far.recv.recv().await.map(|_| ()).unwrap_err() });
    let acceptor = pair.acceptor.clone();
    let accept = tokio::spawn(async move { acceptor.accept().await.map(|_| ()).unwrap_err() });
    match (&pair.cable, pair.kind) {
        (Some(cable), _) => cable.cut(),
        // These have no socket to tear here; closing hard is the nearest.
        (None, CarrierKind::Memory | CarrierKind::Quic) => pair.opener.close(CloseCode::Internal, "torn"),
        (None, _) => unreachable!(),
    }
    assert!(matches!(writer.await.unwrap(), StreamError::Lost(_)));
    assert!(matches!(reader.await.unwrap(), StreamError::Lost(_)));
    let closed = accept.await.unwrap();
    assert!(matches!(closed.code, CloseCode::Lost | CloseCode::Internal), "{closed}");
    assert!(matches!(near.send.send(Bytes::from_static(b"x")).await, Err(StreamError::Lost(_))));
    assert!(matches!(near.recv.recv().await, Err(StreamError::Lost(_))));
    assert!(pair.opener.open(head(b"x")).await.is_err());
    pair.opener.closed().await;
    drop(stalled_far);
}
