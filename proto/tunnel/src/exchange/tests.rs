//! Scripted halves: a peer's every chunk and ending, one at a time.

use std::{
    convert::Infallible,
    future::poll_fn,
    io,
    pin::Pin,
    sync::{Arc, Mutex},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::HeaderMap;
use http_body::{Body, Frame};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, ReadBuf, duplex},
    sync::{Semaphore, mpsc, watch},
};

use super::{
    Counters, SendBodyError, Sent,
    body::Reading,
    half::{Receiver, Sender},
    send::pump,
    splice::both,
};
use crate::{transport::StreamError, wire::close::StreamCode};

/// What a sender did.
#[derive(Debug, PartialEq, Eq, Clone)]
enum Did {
    Chunk(Bytes),
    Finish,
    Reset(StreamCode),
}

/// A send half whose peer is the test.
struct Out {
    did: mpsc::UnboundedSender<Did>,
    credit: Arc<Semaphore>,
    end: watch::Receiver<Option<StreamError>>,
}

/// The test's end of [`Out`].
struct OutPeer {
    did: mpsc::UnboundedReceiver<Did>,
    credit: Arc<Semaphore>,
    end: watch::Sender<Option<StreamError>>,
}

fn out(credit_chunks: usize) -> (Out, OutPeer) {
    let (did_tx, did_rx) = mpsc::unbounded_channel();
    let credit = Arc::new(Semaphore::new(credit_chunks));
    let (end_tx, end_rx) = watch::channel(None);
    (Out { did: did_tx, credit: credit.clone(), end: end_rx }, OutPeer { did: did_rx, credit, end: end_tx })
}

impl OutPeer {
    async fn next(&mut self) -> Did {
        self.did.recv().await.unwrap()
    }

    fn try_next(&mut self) -> Option<Did> {
        self.did.try_recv().ok()
    }
}

impl Sender for Out {
    async fn send(&mut self, chunk: Bytes) -> Result<(), StreamError> {
        let credit = self.credit.clone();
        tokio::select! {
            biased;
            why = self.stopped() => return Err(why),
            permit = credit.acquire() => permit.unwrap().forget(),
        }
        self.did.send(Did::Chunk(chunk)).unwrap();
        Ok(())
    }

    async fn send_last(&mut self, chunk: Bytes) -> Result<(), StreamError> {
        self.send(chunk).await?;
        self.finish()
    }

    fn finish(&mut self) -> Result<(), StreamError> {
        let _ = self.did.send(Did::Finish);
        Ok(())
    }

    fn reset(&mut self, code: StreamCode) {
        let _ = self.did.send(Did::Reset(code));
    }

    async fn stopped(&mut self) -> StreamError {
        let end = self.end.wait_for(Option::is_some).await.ok().and_then(|end| end.clone());
        match end {
            Some(end) => end,
            None => std::future::pending().await,
        }
    }
}

/// A receive half that the test feeds.
struct In {
    chunks: mpsc::UnboundedReceiver<Result<Option<Bytes>, StreamError>>,
    stopped: Arc<Mutex<Option<StreamCode>>>,
}

type Feed = mpsc::UnboundedSender<Result<Option<Bytes>, StreamError>>;

fn input() -> (Feed, In, Arc<Mutex<Option<StreamCode>>>) {
    let (tx, chunks) = mpsc::unbounded_channel();
    let stopped = Arc::<Mutex<_>>::default();
    (tx, In { chunks, stopped: stopped.clone() }, stopped)
}

impl Receiver for In {
    fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, StreamError>> {
        self.chunks.poll_recv(cx).map(|next| next.unwrap_or(Err(StreamError::Over)))
    }

    fn stop(&mut self, code: StreamCode) {
        *self.stopped.lock().unwrap() = Some(code);
    }
}

/// A body that the test feeds.
struct Fed<E>(mpsc::UnboundedReceiver<Result<Frame<Bytes>, E>>);

impl<E> Body for Fed<E> {
    type Data = Bytes;
    type Error = E;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, E>>> {
        self.0.poll_recv(cx)
    }
}

fn text(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn stop() -> Option<StreamError> {
    Some(StreamError::Stopped(StreamCode::NoMore))
}

#[tokio::test]
async fn each_frame_is_sent_before_the_next_exists_and_trailers_are_dropped() {
    let (mut send, mut peer) = out(100);
    let (feed, body) = mpsc::unbounded_channel::<Result<_, Infallible>>();
    let counters = Counters::default();
    let (result, ()) = tokio::join!(pump(&mut send, None, Fed(body), &counters), async {
        for event in ["one", "two"] {
            feed.send(Ok(Frame::data(text(event)))).unwrap();
            assert_eq!(peer.next().await, Did::Chunk(text(event)));
        }
        feed.send(Ok(Frame::data(Bytes::new()))).unwrap();
        feed.send(Ok(Frame::trailers(HeaderMap::new()))).unwrap();
        drop(feed);
        assert_eq!(peer.next().await, Did::Finish);
    });
    assert_eq!(result.unwrap(), Sent::Whole);
    assert_eq!(counters.sent(), 6);
}

#[tokio::test]
async fn a_stop_ends_a_silent_body_quietly_and_a_reset_ends_it_as_an_error() {
    for (end, quiet) in [(stop(), true), (Some(StreamError::Reset(StreamCode::Cancelled)), false)] {
        let (mut send, mut peer) = out(100);
        let (_feed, body) = mpsc::unbounded_channel::<Result<_, Infallible>>();
        let counters = Counters::default();
        let (result, ()) = tokio::join!(pump(&mut send, None, Fed(body), &counters), async {
            peer.end.send(end).unwrap();
        });
        if quiet {
            assert_eq!(result.unwrap(), Sent::Stopped);
            assert_eq!(peer.try_next(), Some(Did::Finish));
        } else {
            assert!(matches!(result, Err(SendBodyError::Stream(StreamError::Reset(_)))));
        }
    }
}

#[tokio::test]
async fn a_stop_ends_a_body_that_waits_for_credit() {
    let (mut send, mut peer) = out(1);
    let (feed, body) = mpsc::unbounded_channel::<Result<_, Infallible>>();
    for _ in 0..2 {
        feed.send(Ok(Frame::data(text("x")))).unwrap();
    }
    let counters = Counters::default();
    let (result, ()) = tokio::join!(pump(&mut send, None, Fed(body), &counters), async {
        assert_eq!(peer.next().await, Did::Chunk(text("x")));
        peer.end.send(stop()).unwrap();
    });
    assert_eq!(result.unwrap(), Sent::Stopped);
    assert_eq!(counters.sent(), 1);
}

#[tokio::test]
async fn a_source_that_breaks_off_resets_and_never_finishes() {
    let (mut send, mut peer) = out(100);
    let (feed, body) = mpsc::unbounded_channel();
    feed.send(Ok(Frame::data(text("half")))).unwrap();
    feed.send(Err(io::Error::other("gone"))).unwrap();
    let result = pump(&mut send, None, Fed(body), &Counters::default()).await;
    assert!(matches!(result, Err(SendBodyError::Source(_))));
    assert_eq!(peer.try_next(), Some(Did::Chunk(text("half"))));
    assert_eq!(peer.try_next(), Some(Did::Reset(StreamCode::Upstream)));
    assert_eq!(peer.try_next(), None);
}

async fn chunks(reading: &mut Reading<In>) -> Vec<Result<Bytes, StreamError>> {
    let mut all = Vec::new();
    while let Some(next) = poll_fn(|cx| reading.poll_chunk(cx)).await {
        all.push(next);
    }
    all
}

#[tokio::test]
async fn a_reset_behind_data_is_an_error_behind_data() {
    let (feed, recv, _) = input();
    feed.send(Ok(Some(text("data")))).unwrap();
    feed.send(Err(StreamError::Reset(StreamCode::Upstream))).unwrap();
    let all = chunks(&mut Reading::new(recv)).await;
    assert_eq!(all, [Ok(text("data")), Err(StreamError::Reset(StreamCode::Upstream))]);
}

#[tokio::test]
async fn a_body_of_another_length_than_announced_is_an_error() {
    for (length, expected) in [(3, 2), (5, 2), (4, 1)] {
        let (feed, recv, _) = input();
        feed.send(Ok(Some(text("data")))).unwrap();
        feed.send(Ok(None)).unwrap();
        let mut reading = Reading::new(recv);
        reading.expect_length(Some(length));
        assert_eq!(reading.size_hint().exact(), Some(length));
        let all = chunks(&mut reading).await;
        assert_eq!(all.iter().any(Result::is_err), length != 4, "{length}: {all:?}");
        assert!(all.len() <= expected);
    }
}

#[tokio::test]
async fn an_end_that_came_with_the_head_is_known_at_once() {
    let (feed, recv, _) = input();
    let mut reading = Reading::new(recv);
    reading.peek();
    assert!(!reading.at_end());
    feed.send(Ok(None)).unwrap();
    reading.peek();
    assert!(reading.at_end());
    assert_eq!(reading.size_hint().exact(), Some(0));
    assert!(chunks(&mut reading).await.is_empty());
}

#[tokio::test]
async fn half_close_by_the_connection_keeps_the_other_direction_open() {
    let (io, mut client) = duplex(1024);
    let (send, mut peer) = out(100);
    let (feed, recv, _) = input();
    let counters = Counters::default();
    let (result, ()) = tokio::join!(both(io, send, recv, &counters), async {
        client.write_all(b"ask").await.unwrap();
        client.shutdown().await.unwrap();
        assert_eq!(peer.next().await, Did::Chunk(text("ask")));
        assert_eq!(peer.next().await, Did::Finish);
        feed.send(Ok(Some(text("answer")))).unwrap();
        let mut buffer = [0; 6];
        client.read_exact(&mut buffer).await.unwrap();
        feed.send(Ok(None)).unwrap();
        assert_eq!(client.read(&mut buffer).await.unwrap(), 0);
    });
    result.unwrap();
    assert_eq!((counters.sent(), counters.received()), (3, 6));
}

#[tokio::test]
async fn half_close_by_the_stream_keeps_the_other_direction_open() {
    let (io, mut client) = duplex(1024);
    let (send, mut peer) = out(100);
    let (feed, recv, _) = input();
    let counters = Counters::default();
    let (result, ()) = tokio::join!(both(io, send, recv, &counters), async {
        feed.send(Ok(Some(text("first")))).unwrap();
        feed.send(Ok(None)).unwrap();
        let mut all = Vec::new();
        client.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"first");
        client.write_all(b"later").await.unwrap();
        assert_eq!(peer.next().await, Did::Chunk(text("later")));
        drop(client);
        assert_eq!(peer.next().await, Did::Finish);
    });
    result.unwrap();
}

#[tokio::test]
async fn lesson_60_a_slow_reader_gets_all_output_although_the_stream_ended_long_ago() {
    let (io, mut client) = duplex(64);
    let (send, _peer) = out(100);
    let (feed, recv, _) = input();
    let whole: Vec<u8> = (0..1_000_000u32).map(|n| n as u8).collect();
    for chunk in whole.chunks(70_000) {
        feed.send(Ok(Some(Bytes::copy_from_slice(chunk)))).unwrap();
    }
    feed.send(Ok(None)).unwrap();
    let counters = Counters::default();
    let (result, all) = tokio::join!(both(io, send, recv, &counters), async {
        let mut all = Vec::new();
        let mut buffer = [0; 7];
        loop {
            tokio::task::yield_now().await;
            match client.read(&mut buffer).await.unwrap() {
                0 => break,
                n => all.extend_from_slice(&buffer[..n]),
            }
        }
        drop(client);
        all
    });
    result.unwrap();
    assert!(all == whole);
}

#[tokio::test]
async fn one_direction_goes_on_while_the_other_is_blocked() {
    let (io, mut client) = duplex(8);
    let (send, mut peer) = out(100);
    let (feed, recv, _) = input();
    let counters = Counters::default();
    let mut splicing = Box::pin(both(io, send, recv, &counters));
    // More than the connection takes: the client does not read.
    feed.send(Ok(Some(Bytes::from(vec![1; 100])))).unwrap();
    assert!((&mut splicing).now_or_never().is_none());
    for _ in 0..10 {
        client.write_all(b"12345678").now_or_never().unwrap().unwrap();
        assert!((&mut splicing).now_or_never().is_none());
        assert_eq!(peer.try_next(), Some(Did::Chunk(text("12345678"))));
    }
    // And the other way round: no credit for what the client sends, and what it reads keeps coming.
    peer.credit.forget_permits(1000);
    client.write_all(b"12345678").now_or_never().unwrap().unwrap();
    let mut all = Vec::new();
    while all.len() < 100 {
        assert!((&mut splicing).now_or_never().is_none());
        let mut some = [0; 8];
        let length = client.read(&mut some).now_or_never().unwrap().unwrap();
        all.extend_from_slice(&some[..length]);
    }
    assert_eq!((all, peer.try_next()), (vec![1; 100], None));
}

#[tokio::test(start_paused = true)]
async fn being_idle_for_a_week_ends_nothing() {
    let (io, mut client) = duplex(64);
    let (send, mut peer) = out(100);
    let (feed, recv, _) = input();
    let counters = Counters::default();
    let (result, ()) = tokio::join!(both(io, send, recv, &counters), async {
        tokio::time::advance(Duration::from_secs(7 * 24 * 3600)).await;
        client.write_all(b"still here").await.unwrap();
        assert_eq!(peer.next().await, Did::Chunk(text("still here")));
        feed.send(Ok(None)).unwrap();
        drop(client);
    });
    result.unwrap();
}

#[tokio::test(start_paused = true)]
async fn after_a_stop_input_is_thrown_away_and_output_goes_on_and_the_end_is_bounded() {
    let (io, mut client) = duplex(64);
    let (send, mut peer) = out(100);
    let (feed, recv, _) = input();
    let counters = Counters::default();
    let (result, client) = tokio::join!(both(io, send, recv, &counters), async {
        peer.end.send(stop()).unwrap();
        assert_eq!(peer.next().await, Did::Finish);
        client.write_all(&[0; 10_000]).await.unwrap();
        feed.send(Ok(Some(text("output")))).unwrap();
        feed.send(Ok(None)).unwrap();
        let mut all = Vec::new();
        client.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"output");
        // The client never closes; the splice ends all the same.
        client
    });
    result.unwrap();
    drop(client);
}

/// A connection that reads `data` and then breaks.
struct Breaks(&'static [u8]);

impl tokio::io::AsyncRead for Breaks {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.0.is_empty() {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        buffer.put_slice(self.0);
        self.0 = &[];
        Poll::Ready(Ok(()))
    }
}

impl tokio::io::AsyncWrite for Breaks {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(data.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_connection_resets_the_stream_behind_its_last_bytes() {
    let (send, mut peer) = out(100);
    let (feed, recv, _) = input();
    let counters = Counters::default();
    let (result, ()) = tokio::join!(both(Breaks(b"last words"), send, recv, &counters), async {
        assert_eq!(peer.next().await, Did::Chunk(text("last words")));
        assert_eq!(peer.try_next(), None);
        assert_eq!(peer.next().await, Did::Reset(StreamCode::Upstream));
        feed.send(Err(StreamError::Over)).unwrap();
    });
    assert!(result.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_reset_of_the_stream_ends_both_directions_without_a_clean_end() {
    let (io, mut client) = duplex(64);
    let (send, peer) = out(100);
    let (feed, recv, _) = input();
    let counters = Counters::default();
    feed.send(Ok(Some(text("arrived")))).unwrap();
    feed.send(Err(StreamError::Reset(StreamCode::Unauthorised))).unwrap();
    peer.end.send(Some(StreamError::Reset(StreamCode::Unauthorised))).unwrap();
    let error = both(io, send, recv, &counters).await.unwrap_err();
    assert_eq!(
        error.get_ref().unwrap().downcast_ref::<StreamError>(),
        Some(&StreamError::Reset(StreamCode::Unauthorised))
    );
    let mut all = Vec::new();
    client.read_to_end(&mut all).await.unwrap();
    assert_eq!(all, b"arrived");
}

#[tokio::test(start_paused = true)]
async fn a_lost_tunnel_does_not_wait_for_a_client_that_does_not_read() {
    let (io, _client) = duplex(8);
    let (send, peer) = out(100);
    let (feed, recv, _) = input();
    let counters = Counters::default();
    feed.send(Ok(Some(Bytes::from(vec![0; 1000])))).unwrap();
    peer.end.send(Some(StreamError::Lost(crate::wire::close::CloseCode::Dead))).unwrap();
    assert!(both(io, send, recv, &counters).await.is_err());
}

#[tokio::test]
async fn a_client_that_is_gone_stops_the_stream_with_a_code() {
    let (io, client) = duplex(8);
    drop(client);
    let (send, mut peer) = out(100);
    let (feed, recv, stopped) = input();
    let counters = Counters::default();
    feed.send(Ok(Some(text("nobody reads this")))).unwrap();
    assert!(both(io, send, recv, &counters).await.is_err());
    assert_eq!(*stopped.lock().unwrap(), Some(StreamCode::Upstream));
    assert_eq!(peer.next().await, Did::Finish);
}

#[tokio::test]
async fn many_ready_reads_become_few_chunks_and_all_bytes_cross() {
    let (io, mut client) = duplex(1 << 20);
    let (send, mut peer) = out(100_000);
    let (feed, recv, _) = input();
    let counters = Counters::default();
    let whole: Vec<u8> = (0..3_000_000u32).map(|n| (n * 7) as u8).collect();
    let (result, (), (all, count)) = tokio::join!(
        both(io, send, recv, &counters),
        async {
            client.write_all(&whole).await.unwrap();
            drop(client);
            feed.send(Ok(None)).unwrap();
        },
        async {
            let (mut all, mut count) = (Vec::new(), 0);
            while let Did::Chunk(chunk) = peer.next().await {
                all.extend_from_slice(&chunk);
                count += 1;
            }
            (all, count)
        }
    );
    result.unwrap();
    assert!(all == whole);
    assert!(count < 80, "{count} chunks");
}

#[tokio::test]
async fn lesson_60_output_survives_a_client_that_still_sends_when_its_socket_is_closed() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let client = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (io, _) = listener.accept().await.unwrap();
    let (send, peer) = out(100);
    let (feed, recv, _) = input();
    let whole: Vec<u8> = (0..8_000_000u32).map(|n| (n * 3) as u8).collect();
    for chunk in whole.chunks(100_000) {
        feed.send(Ok(Some(Bytes::copy_from_slice(chunk)))).unwrap();
    }
    feed.send(Ok(None)).unwrap();
    peer.end.send(stop()).unwrap();
    let (mut from, mut to) = client.into_split();
    // It goes on typing; a socket closed over unread input would be reset and its output thrown away.
    let typing = tokio::spawn(async move { while to.write_all(&[b'y'; 1000]).await.is_ok() {} });
    let mut reading = tokio::spawn(async move {
        let mut all = Vec::new();
        let mut buffer = vec![0; 20_000];
        loop {
            tokio::task::yield_now().await;
            match from.read(&mut buffer).await {
                Ok(0) => return (all, None),
                Ok(n) => all.extend_from_slice(&buffer[..n]),
                Err(error) => return (all, Some(error)),
            }
        }
    });
    let counters = Counters::default();
    let (all, error) = tokio::select! {
        _ = both(io, send, recv, &counters) => reading.await.unwrap(),
        read = &mut reading => read.unwrap(),
    };
    typing.abort();
    assert!(error.is_none() && all == whole, "{} bytes, {error:?}", all.len());
}
