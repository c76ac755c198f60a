//! Many streams, much data, nothing mingled (wstunnel #216).

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tokio::sync::Barrier;
use tunnel::transport::{Incoming, Stream};

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
    // All are open at once; each has its own bytes. These may come in pieces: a QUIC packet that is full of other
    // streams' bytes ends within a number.
    for (number, stream) in streams.iter_mut().enumerate().rev() {
        let (wanted, mut got) = (number.to_string(), Vec::new());
        while got.len() < wanted.len() {
            got.extend_from_slice(&stream.recv.recv().await.unwrap().unwrap());
        }
        assert_eq!(got, wanted.as_bytes());
        stream.send.finish().unwrap();
    }
    for stream in &mut streams {
        assert_eq!(read_all(&mut stream.recv).await.unwrap(), b"");
    }
}

pub async fn thousand_streams_of_random_chunks(pair: Arc<Pair>) {
    const STREAMS: u64 = 1000;
    let _serving = serve(&pair.acceptor, echo);
    let opener = &pair.opener;
    // None goes on before all are open.
    let all_open = &Barrier::new(STREAMS as usize);
    stream::iter(0..STREAMS)
        .for_each_concurrent(None, |seed| async move {
            let stream = opener.open(head(b"x")).await.unwrap();
            let (mut send, mut recv) = (stream.send, stream.recv);
            let mut random = Random::new(seed);
            let mut sum = Sum::default();
            let write = async {
                for number in 0..10 {
                    let length = if random.below(16) == 0 { random.below(50_000) } else { random.below(2000) };
                    let chunk = random.bytes(length);
                    sum.add(&chunk);
                    send.send(chunk).await.unwrap();
                    if number == 0 {
                        all_open.wait().await;
                    }
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
