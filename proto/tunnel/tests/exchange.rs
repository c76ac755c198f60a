//! Whole exchanges between two ends, over every carrier. Sockets and TLS are real.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests")]

#[path = "conformance/carriers.rs"]
#[allow(dead_code, reason = "the conformance suite uses the rest")]
mod carriers;

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use daemon::TaskGroup;
use futures_util::FutureExt;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header::CONTENT_LENGTH};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Empty, Full};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    sync::{mpsc, oneshot},
};
use tunnel::{
    exchange::{Counters, Sent, StreamBody, respond, respond_head, send_body, splice},
    transport::{CarrierKind, MessageError, RecvStream, Stream, StreamError, TunnelHandle, session::SessionOptions},
    wire::{
        close::StreamCode,
        head::{RequestHead, ResponseHead},
    },
};
use types::{ids::RequestId, limits};

/// The tasks of a test; a panic in one fails the test.
struct Tasks(TaskGroup);

impl Tasks {
    fn new() -> Self {
        Self(TaskGroup::new("test"))
    }
}

impl std::ops::Deref for Tasks {
    type Target = TaskGroup;

    fn deref(&self) -> &TaskGroup {
        &self.0
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        self.0.abort();
        if !std::thread::panicking() {
            assert_eq!(self.0.panicked().now_or_never(), None);
        }
    }
}

fn head(method: Method) -> RequestHead {
    RequestHead {
        role: "echo".to_owned(),
        request_id: RequestId([1; 16]),
        method,
        target: Bytes::from_static(b"/api?watch=true"),
        headers: HeaderMap::new(),
        deadline_ms: None,
        traceparent: None,
        user_address: None,
    }
}

fn answer(status: StatusCode) -> ResponseHead {
    ResponseHead { status, headers: HeaderMap::new(), refused_by: None }
}

/// The opener's end, as plain as can be.
async fn open(tunnel: &TunnelHandle, head: &RequestHead) -> Stream {
    tunnel.open(head.encode().unwrap().freeze()).await.unwrap()
}

async fn read_head(recv: &mut RecvStream) -> ResponseHead {
    ResponseHead::decode(recv.recv_message(limits::HEAD_BYTES).await.unwrap()).unwrap()
}

/// Sends `body` in a task of its own and reads the answer.
async fn exchange<B>(
    tasks: &TaskGroup,
    tunnel: &TunnelHandle,
    head: &RequestHead,
    body: B,
) -> Result<(ResponseHead, StreamBody), MessageError>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Send,
{
    let Stream { mut send, mut recv, .. } = open(tunnel, head).await;
    tasks.spawn("request body", async move {
        // How it ends is seen in the answer.
        let _ = send_body(&mut send, body).await;
    });
    let answer = ResponseHead::decode(recv.recv_message(limits::HEAD_BYTES).await?).unwrap();
    let body = StreamBody::of_response(recv, &head.method, answer.status, &answer.headers);
    Ok((answer, body))
}

/// A pair of ends whose agent serves each stream with `serve`.
async fn served<F, S>(tasks: &TaskGroup, carrier: CarrierKind, serve: S) -> TunnelHandle
where
    F: Future<Output = ()> + Send + 'static,
    S: Fn(RequestHead, Stream) -> F + Send + 'static,
{
    let pair = carriers::pair(carrier, true, SessionOptions::default()).await;
    let (gateway, agent) = (pair.gateway().clone(), pair.agent().clone());
    let group = tasks.clone();
    tasks.spawn("agent", async move {
        let _connection = pair;
        while let Ok(incoming) = agent.accept().await {
            let head = RequestHead::decode(incoming.head).unwrap();
            group.spawn("role", serve(head, incoming.stream));
        }
    });
    gateway
}

/// Bytes that tell their place.
fn pattern(length: usize) -> Bytes {
    (0..length).map(|n| (n as u64).wrapping_mul(2_654_435_761) as u8).collect::<Vec<_>>().into()
}

/// A body that the test feeds.
struct Fed(mpsc::Receiver<Result<Bytes, io::Error>>);

impl Body for Fed {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0.poll_recv(cx).map(|next| next.map(|chunk| chunk.map(Frame::data)))
    }
}

fn fed() -> (mpsc::Sender<Result<Bytes, io::Error>>, Fed) {
    let (feed, body) = mpsc::channel(1);
    (feed, Fed(body))
}

async fn large_bodies_cross_both_ways_unchanged(carrier: CarrierKind) {
    let tasks = Tasks::new();
    let tunnel = served(&tasks, carrier, |head, stream| async move {
        let Stream { mut send, recv, .. } = stream;
        let body = StreamBody::of_request(recv, &head.headers);
        assert_eq!(respond(&mut send, &answer(StatusCode::OK), body, &Counters::default()).await.unwrap(), Sent::Whole);
    })
    .await;
    for length in [0, 1, 1_000_000, 5_000_000] {
        let whole = pattern(length);
        let mut head = head(Method::POST);
        head.headers.insert(CONTENT_LENGTH, length.into());
        let (head, body) = exchange(&tasks, &tunnel, &head, Full::new(whole.clone())).await.unwrap();
        assert_eq!(head.status, StatusCode::OK);
        assert!(body.collect().await.unwrap().to_bytes() == whole, "{length}");
    }
}

async fn an_answer_comes_while_the_request_body_goes_on_and_the_body_ends_quietly(carrier: CarrierKind) {
    let tasks = Tasks::new();
    let tunnel = served(&tasks, carrier, |head, stream| async move {
        let Stream { mut send, recv, .. } = stream;
        let _unread = StreamBody::of_request(recv, &head.headers);
        let refusal = Full::new(Bytes::from_static(b"too large"));
        respond(&mut send, &answer(StatusCode::PAYLOAD_TOO_LARGE), refusal, &Counters::default()).await.unwrap();
    })
    .await;
    let (feed, body) = fed();
    feed.send(Ok(pattern(1000))).await.unwrap();
    let (head, body) = exchange(&tasks, &tunnel, &head(Method::POST), body).await.unwrap();
    assert_eq!(head.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(body.collect().await.unwrap().to_bytes(), "too large");
    // Its sender gave the source up without being asked for more.
    feed.closed().await;
}

async fn a_caller_that_goes_away_ends_a_silent_watch(carrier: CarrierKind) {
    let tasks = Tasks::new();
    let (told, mut ended) = mpsc::channel(1);
    let tunnel = served(&tasks, carrier, move |_, stream| {
        let told = told.clone();
        async move {
            let Stream { mut send, .. } = stream;
            let (feed, events) = fed();
            feed.send(Ok(Bytes::from_static(b"event"))).await.unwrap();
            let result = respond(&mut send, &answer(StatusCode::OK), events, &Counters::default()).await;
            told.send(result.unwrap()).await.unwrap();
            drop(feed);
        }
    })
    .await;
    let (_, mut body) = exchange(&tasks, &tunnel, &head(Method::GET), Empty::new()).await.unwrap();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "event");
    drop(body);
    assert_eq!(ended.recv().await, Some(Sent::Stopped));
}

async fn an_answer_that_breaks_off_is_an_error_and_never_a_clean_end(carrier: CarrierKind) {
    let tasks = Tasks::new();
    let tunnel = served(&tasks, carrier, |_, stream| async move {
        let Stream { mut send, .. } = stream;
        let (feed, body) = fed();
        let (head, counters) = (answer(StatusCode::OK), Counters::default());
        let (result, ()) = tokio::join!(respond(&mut send, &head, body, &counters), async {
            feed.send(Ok(Bytes::from_static(b"half"))).await.unwrap();
            feed.send(Err(io::ErrorKind::ConnectionReset.into())).await.unwrap();
        });
        assert!(result.is_err());
    })
    .await;
    // The break may overtake the head; it is an error at either place.
    if let Ok((_, body)) = exchange(&tasks, &tunnel, &head(Method::GET), Empty::new()).await {
        assert_eq!(body.collect().await.unwrap_err(), StreamError::Reset(StreamCode::Upstream));
    }
}

async fn a_body_shorter_than_its_content_length_is_an_error(carrier: CarrierKind) {
    let tasks = Tasks::new();
    let tunnel = served(&tasks, carrier, |_, stream| async move {
        let Stream { mut send, .. } = stream;
        let mut head = answer(StatusCode::OK);
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from_static("100"));
        respond(&mut send, &head, Full::new(Bytes::from_static(b"short")), &Counters::default()).await.unwrap();
    })
    .await;
    let (_, body) = exchange(&tasks, &tunnel, &head(Method::GET), Empty::new()).await.unwrap();
    assert_eq!(body.size_hint().exact(), Some(100));
    assert!(body.collect().await.is_err());
    // The same head on the answer to HEAD announces no body.
    let (_, body) = exchange(&tasks, &tunnel, &head(Method::HEAD), Empty::new()).await.unwrap();
    assert!(body.is_end_stream());
}

async fn watch_events_arrive_before_the_next_is_produced(carrier: CarrierKind) {
    let tasks = Tasks::new();
    let (feeds, mut feed) = mpsc::channel(1);
    let tunnel = served(&tasks, carrier, move |_, stream| {
        let feeds = feeds.clone();
        async move {
            let Stream { mut send, .. } = stream;
            let (feed, events) = fed();
            feeds.send(feed).await.unwrap();
            respond(&mut send, &answer(StatusCode::OK), events, &Counters::default()).await.unwrap();
        }
    })
    .await;
    // The head of the answer comes although there is no event yet.
    let (_, mut body) = exchange(&tasks, &tunnel, &head(Method::GET), Empty::new()).await.unwrap();
    let feed = feed.recv().await.unwrap();
    for n in 0..100u8 {
        feed.send(Ok(vec![n].into())).await.unwrap();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), vec![n]);
    }
    drop(feed);
    assert!(body.frame().await.is_none());
}

async fn a_request_body_goes_on_while_nobody_reads_the_answer(carrier: CarrierKind) {
    let tasks = Tasks::new();
    let (told, received) = oneshot::channel();
    let told = Arc::new(std::sync::Mutex::new(Some(told)));
    let tunnel = served(&tasks, carrier, move |head, stream| {
        let told = told.clone();
        async move {
            let Stream { mut send, recv, .. } = stream;
            respond_head(&mut send, &answer(StatusCode::OK)).await.unwrap();
            let whole = StreamBody::of_request(recv, &head.headers).collect().await.unwrap().to_bytes();
            told.lock().unwrap().take().unwrap().send(whole).unwrap();
            send_body(&mut send, Full::new(Bytes::from_static(b"done"))).await.1.unwrap();
        }
    })
    .await;
    let (_, body) = exchange(&tasks, &tunnel, &head(Method::PUT), Full::new(pattern(3_000_000))).await.unwrap();
    assert!(received.await.unwrap() == pattern(3_000_000));
    assert_eq!(body.collect().await.unwrap().to_bytes(), "done");
}

/// An upgraded exchange: the user's connection, the server's connection.
async fn upgraded(tasks: &TaskGroup, carrier: CarrierKind) -> (tokio::io::DuplexStream, tokio::io::DuplexStream) {
    let (server, agent_side) = duplex(10_000);
    let agent_side = std::sync::Mutex::new(Some(agent_side));
    let group = tasks.clone();
    let tunnel = served(tasks, carrier, move |_, stream| {
        let io = agent_side.lock().unwrap().take().unwrap();
        let group = group.clone();
        async move {
            let Stream { mut send, recv, .. } = stream;
            respond_head(&mut send, &answer(StatusCode::SWITCHING_PROTOCOLS)).await.unwrap();
            group.spawn("agent splice", async move { splice(io, send, recv).await.1.unwrap() });
        }
    })
    .await;
    let Stream { send, mut recv, .. } = open(&tunnel, &head(Method::POST)).await;
    assert_eq!(read_head(&mut recv).await.status, StatusCode::SWITCHING_PROTOCOLS);
    let (user, gateway_side) = duplex(10_000);
    tasks.spawn("gateway splice", async move {
        let (_, result) = splice(gateway_side, send, recv).await;
        drop(tunnel);
        result.unwrap();
    });
    (user, server)
}

async fn an_upgraded_connection_keeps_half_close_in_both_orders_and_truncates_nothing(carrier: CarrierKind) {
    for user_first in [true, false] {
        let tasks = Tasks::new();
        let (user, server) = upgraded(&tasks, carrier).await;
        let (mut first, mut second) = if user_first { (user, server) } else { (server, user) };
        let (there, back) = (pattern(2_000_000), pattern(3_000_000));
        let (_, all) = tokio::join!(
            async {
                first.write_all(&there).await.unwrap();
                first.shutdown().await.unwrap();
            },
            async {
                let mut all = Vec::new();
                second.read_to_end(&mut all).await.unwrap();
                all
            }
        );
        assert!(all == there);
        let (_, all) = tokio::join!(
            async {
                second.write_all(&back).await.unwrap();
                second.shutdown().await.unwrap();
            },
            async {
                let mut all = Vec::new();
                first.read_to_end(&mut all).await.unwrap();
                all
            }
        );
        assert!(all == back);
    }
}

async fn an_upgrade_that_is_refused_is_a_plain_answer(carrier: CarrierKind) {
    let tasks = Tasks::new();
    let tunnel = served(&tasks, carrier, |head, stream| async move {
        let Stream { mut send, recv, .. } = stream;
        assert!(StreamBody::of_request(recv, &head.headers).collect().await.unwrap().to_bytes().is_empty());
        let body = Full::new(Bytes::from_static(b"no"));
        respond(&mut send, &answer(StatusCode::FORBIDDEN), body, &Counters::default()).await.unwrap();
    })
    .await;
    let Stream { mut send, mut recv, .. } = open(&tunnel, &head(Method::POST)).await;
    // Only a finish lets the peer know that there is no body.
    send.finish().unwrap();
    let head = read_head(&mut recv).await;
    assert_eq!(head.status, StatusCode::FORBIDDEN);
    let body = StreamBody::of_response(recv, &Method::POST, StatusCode::FORBIDDEN, &head.headers);
    assert_eq!(body.collect().await.unwrap().to_bytes(), "no");
}

/// Each exchange on each carrier.
macro_rules! on_each_carrier {
    ($($case:ident),* $(,)?) => {
        mod memory_carrier {
            $(#[tokio::test] async fn $case() { super::$case(tunnel::transport::CarrierKind::Memory).await; })*
        }
        mod quic_carrier {
            $(#[tokio::test] async fn $case() { super::$case(tunnel::transport::CarrierKind::Quic).await; })*
        }
        mod http2_carrier {
            $(#[tokio::test] async fn $case() { super::$case(tunnel::transport::CarrierKind::Http2).await; })*
        }
        mod websocket_carrier {
            $(#[tokio::test] async fn $case() { super::$case(tunnel::transport::CarrierKind::WebSocket).await; })*
        }
    };
}

on_each_carrier!(
    large_bodies_cross_both_ways_unchanged,
    an_answer_comes_while_the_request_body_goes_on_and_the_body_ends_quietly,
    a_caller_that_goes_away_ends_a_silent_watch,
    an_answer_that_breaks_off_is_an_error_and_never_a_clean_end,
    a_body_shorter_than_its_content_length_is_an_error,
    watch_events_arrive_before_the_next_is_produced,
    a_request_body_goes_on_while_nobody_reads_the_answer,
    an_upgraded_connection_keeps_half_close_in_both_orders_and_truncates_nothing,
    an_upgrade_that_is_refused_is_a_plain_answer,
);
