//! The tunnel as a whole: drain, close, limits.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tunnel::{
    transport::{OpenError, StreamError},
    wire::close::{CloseCode, StreamCode},
};
use types::limits;

use crate::{
    carriers::{Pair, head},
    data::read_all,
};

pub async fn drain_is_seen_and_the_gateway_closes(pair: Arc<Pair>) {
    let (mut near, mut far) = pair.stream().await;
    let (gateway, agent) = (pair.gateway(), pair.agent());
    agent.drain(CloseCode::Shutdown, Duration::from_secs(3));
    let drain = gateway.draining().await;
    assert_eq!((drain.code, drain.reconnect_within), (CloseCode::Shutdown, Duration::from_secs(3)));
    assert!(matches!(gateway.open(head(b"x")).await, Err(OpenError::Draining)));
    // What is open goes on to its end; then the gateway, which has read all, closes.
    near.send.send(Bytes::from_static(b"late")).await.unwrap();
    near.send.finish().unwrap();
    assert_eq!(read_all(&mut far.recv).await.unwrap(), b"late");
    far.send.send(Bytes::from_static(b"later")).await.unwrap();
    far.send.finish().unwrap();
    assert_eq!(read_all(&mut near.recv).await.unwrap(), b"later");
    assert!(gateway.open_streams() > 0);
    drop((near, far));
    let closed = agent.closed().await;
    assert_eq!((closed.code, closed.by_peer), (CloseCode::Drained, true));
    assert_eq!(gateway.closed().await.code, CloseCode::Drained);
}

pub async fn close_code_reaches_the_peer(pair: Arc<Pair>) {
    let (mut near, far) = pair.stream().await;
    pair.acceptor.close(CloseCode::Unauthorised, "revoked");
    let closed = pair.opener.closed().await;
    assert_eq!((closed.code, closed.message.as_str(), closed.by_peer), (CloseCode::Unauthorised, "revoked", true));
    assert_eq!(near.recv.recv().await, Err(StreamError::Lost(CloseCode::Unauthorised)));
    assert!(matches!(pair.opener.open(head(b"x")).await, Err(OpenError::Closed(_))));
    drop(far);
}

pub async fn silent_stream_delays_no_other(pair: Arc<Pair>) {
    // Opened, and nothing but its head is ever sent; others pass it by.
    let (silent, silent_far) = pair.stream().await;
    for _ in 0..20 {
        let (mut near, mut far) = pair.stream().await;
        far.send.send(Bytes::from_static(b"x")).await.unwrap();
        assert_eq!(near.recv.recv().await.unwrap().unwrap(), "x");
    }
    drop((silent, silent_far));
}

pub async fn too_many_streams(pair: Arc<Pair>) {
    let mut open = Vec::new();
    for _ in 0..limits::STREAMS_PER_TUNNEL {
        open.push(pair.opener.open(head(b"x")).await.unwrap());
    }
    assert!(matches!(pair.opener.open(head(b"x")).await, Err(OpenError::TooManyStreams(limits::STREAMS_PER_TUNNEL))));
    // One gone is one place free.
    let mut one = open.pop().unwrap();
    one.send.reset(StreamCode::Cancelled);
    drop(one);
    let again = pair.opener.open(head(b"x")).await.unwrap();
    drop((open, again));
    while pair.acceptor.open_streams() > 0 {
        drop(pair.acceptor.accept().await.unwrap());
    }
}
