//! By hand: `cargo test --release -p tunnel --test conformance measure -- --ignored --nocapture`. What a carrier costs
//! beside plain TLS, on loopback, both ends in one process.

use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tunnel::transport::{CarrierKind, session::SessionOptions};

use crate::carriers::{Pair, Tls, head, pair};

const BYTES: usize = 64 << 20;
const CHUNK: usize = 64 << 10;
const ROUNDS: usize = 5;
const SMALL: usize = 2000;

/// Processor time of this process so far (Linux).
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks: u64 = [11, 12].iter().filter_map(|at| fields.get(*at)?.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}

/// The median of some rounds: megabytes per second and processor seconds per gigabyte, both ends together.
async fn rounds(name: &str, mut round: impl AsyncFnMut()) {
    round().await;
    let mut rates = Vec::new();
    let processor = processor_time();
    for _ in 0..ROUNDS {
        let began = Instant::now();
        round().await;
        rates.push(BYTES as f64 / began.elapsed().as_secs_f64() / 1e6);
    }
    let processor = (processor_time() - processor).as_secs_f64() / (ROUNDS * BYTES) as f64 * 1e9;
    rates.sort_by(f64::total_cmp);
    println!("{name:>24}: {:7.0} MB/s {processor:5.2} CPU-s/GB", rates[ROUNDS / 2]);
}

async fn plain_tls() {
    let tls = Tls::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let connector = TlsConnector::from(tls.client());
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let far = listener.accept().await.unwrap().0;
    let name = rustls::pki_types::ServerName::try_from("gateway.test").unwrap();
    let acceptor = TlsAcceptor::from(tls.server(&[]));
    let (near, far) = tokio::join!(connector.connect(name, near), acceptor.accept(far));
    let (mut near, mut far) = (near.unwrap(), far.unwrap());
    let (go, mut gone) = tokio::sync::mpsc::channel::<()>(1);
    tokio::spawn(async move {
        let chunk = vec![1; CHUNK];
        while gone.recv().await.is_some() {
            for _ in 0..BYTES / CHUNK {
                near.write_all(&chunk).await.unwrap();
            }
            near.flush().await.unwrap();
        }
    });
    let mut buffer = vec![0; CHUNK];
    rounds("plain TLS", async || {
        go.send(()).await.unwrap();
        let mut left = BYTES;
        while left > 0 {
            left -= far.read(&mut buffer).await.unwrap();
        }
    })
    .await;
}

async fn bulk(pair: &Pair, streams: usize) {
    let chunk = Bytes::from(vec![1; CHUNK]);
    let mut tasks = Vec::new();
    for _ in 0..streams {
        let (near, mut far) = pair.stream().await;
        // A half that is dropped unfinished would break the stream off.
        far.send.finish().unwrap();
        let (mut send, chunk) = (near.send, chunk.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..BYTES / CHUNK / streams {
                send.send(chunk.clone()).await.unwrap();
            }
            send.finish().unwrap();
        }));
        tasks.push(tokio::spawn(async move { while far.recv.recv().await.unwrap().is_some() {} }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

async fn small(pair: &Pair) {
    let mut times = Vec::new();
    for _ in 0..SMALL {
        let began = Instant::now();
        let server = async {
            let mut far = pair.acceptor.accept().await.unwrap().stream;
            far.send.send(Bytes::from_static(&[2; 500])).await.unwrap();
            far.send.finish().unwrap();
        };
        let client = async {
            let mut near = pair.opener.open(head(&[1; 500])).await.unwrap();
            near.send.finish().unwrap();
            while near.recv.recv().await.unwrap().is_some() {}
        };
        tokio::join!(server, client);
        times.push(began.elapsed());
    }
    times.sort();
    println!("{:>24}: p50 {:?} p99 {:?}", "small exchanges", times[SMALL / 2], times[SMALL * 99 / 100]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, by hand"]
async fn measure() {
    plain_tls().await;
    for kind in [CarrierKind::Memory, CarrierKind::Quic, CarrierKind::Http2, CarrierKind::WebSocket] {
        for gateway_opens in [true, false] {
            let pair = pair(kind, gateway_opens, SessionOptions::default()).await;
            let way = if gateway_opens { "down" } else { "up" };
            rounds(&format!("{kind} {way}"), async || bulk(&pair, 1).await).await;
            rounds(&format!("{kind} {way}, 16 streams"), async || bulk(&pair, 16).await).await;
            small(&pair).await;
        }
    }
}
