//! Credit: a reader that takes nothing delays nobody and holds little.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use tunnel::{
    transport::{Incoming, StreamError},
    wire::close::StreamCode,
};
use types::limits;

use crate::{
    carriers::{Pair, head, serve},
    data::{Random, Sum, read_sum},
};

pub async fn stalled_reader_holds_its_window_only(pair: Arc<Pair>) {
    let (mut near, far) = pair.stream().await;
    near.send.send(Bytes::from(vec![0; limits::WINDOW_INITIAL as usize])).await.unwrap();
    // Whatever the peer may say to that, it says before its part in this exchange.
    let (mut other, mut other_far) = pair.stream().await;
    other_far.send.send(Bytes::from_static(b"x")).await.unwrap();
    assert_eq!(other.recv.recv().await.unwrap().unwrap(), "x");
    assert!(near.send.send(Bytes::from_static(b"x")).now_or_never().is_none(), "sent beyond the window");
    drop(far);
    assert!(matches!(near.send.stopped().await, StreamError::Stopped(_) | StreamError::Reset(_)));
}

pub async fn stalled_reader_beside_twenty(pair: Arc<Pair>) {
    let (mut near, far) = pair.stream().await;
    let stalled = tokio::spawn(async move {
        loop {
            if let Err(error) = near.send.send(Bytes::from(vec![0; 65_536])).await {
                return (error, near);
            }
        }
    });
    let _serving = serve(&pair.acceptor, echo);
    let mut others = Vec::new();
    for seed in 0..20 {
        let opener = pair.opener.clone();
        others.push(tokio::spawn(async move { round_trip(&opener, seed, 400_000).await }));
    }
    for other in others {
        other.await.unwrap();
    }
    drop(far);
    let (error, _near) = stalled.await.unwrap();
    assert!(matches!(error, StreamError::Stopped(_) | StreamError::Reset(_)), "{error:?}");
}

pub async fn sixteen_stalled_readers_and_bulk(pair: Arc<Pair>) {
    let mut stalled = Vec::new();
    for _ in 0..16 {
        let (mut near, far) = pair.stream().await;
        let writer = tokio::spawn(async move {
            loop {
                if near.send.send(Bytes::from(vec![0; 65_536])).await.is_err() {
                    return;
                }
            }
        });
        stalled.push((writer, far));
    }
    let _serving = serve(&pair.acceptor, echo);
    round_trip(&pair.opener, 99, 20_000_000).await;
    for (writer, mut far) in stalled {
        far.send.reset(StreamCode::Cancelled);
        drop(far);
        writer.await.unwrap();
    }
}

pub async fn heads_larger_than_the_window(pair: Arc<Pair>) {
    // The opener's head does not count; the answer's is a message of counted bytes.
    let body = Random::new(8).bytes(limits::HEAD_BYTES - 64);
    let (opened, accepted) = tokio::join!(pair.opener.open(head(&body)), pair.acceptor.accept());
    let (mut near, far) = (opened.unwrap(), accepted.unwrap());
    assert!(far.head.ends_with(&body));
    let mut far = far.stream;
    let answer = head(&body);
    let (sent, got) = tokio::join!(
        async {
            far.send.send(answer).await?;
            far.send.send(Bytes::from_static(b"body")).await?;
            far.send.finish()
        },
        near.recv.recv_message(limits::HEAD_BYTES)
    );
    sent.unwrap();
    assert!(got.unwrap().ends_with(&body));
    assert_eq!(near.recv.recv().await.unwrap().unwrap(), "body");
    near.send.finish().unwrap();
}

async fn echo(incoming: Incoming) {
    let mut stream = incoming.stream;
    while let Ok(Some(chunk)) = stream.recv.recv().await {
        if stream.send.send(chunk).await.is_err() {
            return;
        }
    }
    let _ = stream.send.finish();
}

async fn round_trip(opener: &tunnel::transport::TunnelHandle, seed: u64, length: usize) {
    let stream = opener.open(head(b"x")).await.unwrap();
    let (mut send, mut recv) = (stream.send, stream.recv);
    let data = Random::new(seed).bytes(length);
    let sum = Sum::of(&data);
    let writer = async {
        send.send(data).await.unwrap();
        send.finish().unwrap();
    };
    let (_, got) = tokio::join!(writer, read_sum(&mut recv));
    assert_eq!(got.unwrap(), sum);
}
