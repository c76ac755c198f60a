//! Many streams, much data, nothing mingled (wstunnel #216).

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use proto::transport::{Incoming, Stream};

use crate::{
    carriers::{Pair, head, serve},
    data::{Random, Sum, read_all, read_sum},
};

async fn echo(incoming: Incoming) {
    let mut stream = incoming.stream;
    while let Some(chunk) = stream.recv.recv().await.unwrap() {
        stream.send.send(chunk).await.unwrap();
    }
    stream.send.finish().unwrap();
}

pub async fn five_thousand_streams(pair: Arc<Pair>) {
    const STREAMS: usize = 5000;
    let _serving = serve(&pair.acceptor, echo);
    let mut streams: Vec<Stream> = Vec::new();
    for number in 0..STREAMS {
        let mut stream = pair.opener.open(head(b"x")).await.unwrap();
        stream.send.send(Bytes::from(number.to_string())).await.unwrap();
        streams.push(stream);
    }
    assert_eq!(pair.opener.open_streams(), STREAMS);
    // All are open at once; each has its own bytes.
    for (number, stream) in streams.iter_mut().enumerate().rev() {
        assert_eq!(stream.recv.recv().await.unwrap().unwrap(), number.to_string());
        stream.send.finish().unwrap();
    }
    for stream in &mut streams {
        assert_eq!(read_all(&mut stream.recv).await.unwrap(), b"");
    }
}

pub async fn two_hundred_streams_of_random_chunks(pair: Arc<Pair>) {
    let _serving = serve(&pair.acceptor, echo);
    let opener = &pair.opener;
    stream::iter(0..200)
        .for_each_concurrent(None, |seed| async move {
            let stream = opener.open(head(b"x")).await.unwrap();
            let (mut send, mut recv) = (stream.send, stream.recv);
            let mut random = Random::new(seed);
            let mut sum = Sum::default();
            let write = async {
                for _ in 0..20 {
                    let length = if random.below(8) == 0 { random.below(100_000) } else { random.below(4000) };
                    let chunk = random.bytes(length);
                    sum.add(&chunk);
                    send.send(chunk).await.unwrap();
                }
                send.finish().unwrap();
            };
            let (_, got) = tokio::join!(write, read_sum(&mut recv));
            assert_eq!(got.unwrap(), sum, "stream {seed}");
        })
        .await;
}

pub async fn bulk_both_ways(pair: Arc<Pair>) {
    let _serving = serve(&pair.acceptor, echo);
    let stream = pair.opener.open(head(b"x")).await.unwrap();
    let (mut send, mut recv) = (stream.send, stream.recv);
    let data = Random::new(5).bytes(16 * 1024 * 1024);
    let sum = Sum::of(&data);
    let write = async {
        for start in (0..data.len()).step_by(1 << 18) {
            send.send(data.slice(start..start + (1 << 18))).await.unwrap();
        }
        send.finish().unwrap();
    };
    let (_, got) = tokio::join!(write, read_sum(&mut recv));
    assert_eq!(got.unwrap(), sum);
}
