//! 1 Gbit/s at a round trip of 100 ms, on every carrier and both ways: 12.5 MB must be allowed in flight. Paths are
//! made of memory and time is virtual, so that only windows decide and no processor does.

use std::{
    cell::Cell,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, Bytes, BytesMut};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf},
    time::Instant,
};
use types::limits;

use super::{
    CarrierKind, TunnelHandle,
    carrier::Facts,
    http2, memory,
    paths::{self, Datagrams, Way},
    quic,
    session::SessionOptions,
    websocket,
};
use crate::wire::message::Writer;

const ONE_WAY: Duration = Duration::from_millis(50);
const IN_FLIGHT_BYTES: u64 = 12_500_000;
const BITS_PER_SECOND: f64 = 1e9;
const TOTAL: u64 = 128 << 20;
/// Measured from here on: windows have grown.
const WARM: u64 = 96 << 20;

/// One end of a path of bytes.
struct Bytewise {
    there: Way,
    here: Way,
}

fn path() -> (Bytewise, Bytewise) {
    let (a, b) = (Way::default(), Way::default());
    (Bytewise { there: a.clone(), here: b.clone() }, Bytewise { there: b, here: a })
}

impl AsyncRead for Bytewise {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut way = self.here.lock().unwrap();
        let bytes = ready!(way.poll(cx));
        let taken = bytes.len().min(buffer.remaining());
        buffer.put_slice(&bytes[..taken]);
        bytes.advance(taken);
        if bytes.is_empty() {
            way.pop();
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Bytewise {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.there.lock().unwrap().push(Instant::now() + ONE_WAY, bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Sends bulk one way and then the other.
async fn fills((gateway, agent): (TunnelHandle, TunnelHandle)) {
    let head = Writer::begin(BytesMut::new(), 16).finish().freeze();
    for (from, to, name) in [(&gateway, &agent, "down"), (&agent, &gateway, "up")] {
        let (near, far) = tokio::join!(from.open(head.clone()), to.accept());
        let (mut near, mut far) = (near.unwrap(), far.unwrap().stream);
        let (sent, received, most, warm) = (Cell::new(0), Cell::new(0), Cell::new(0), Cell::new(None));
        let chunk = Bytes::from(vec![0; limits::CHUNK_BYTES]);
        let send = async {
            while sent.get() < TOTAL {
                near.send.send(chunk.clone()).await.unwrap();
                sent.set(sent.get() + chunk.len() as u64);
                most.set(most.get().max(sent.get() - received.get()));
            }
            near.send.finish().unwrap();
        };
        let receive = async {
            while let Some(chunk) = far.recv.recv().await.unwrap() {
                received.set(received.get() + chunk.len() as u64);
                if received.get() >= WARM && warm.get().is_none() {
                    warm.set(Some((Instant::now(), received.get())));
                }
            }
        };
        tokio::join!(send, receive);
        let most = most.get();
        assert!(most >= IN_FLIGHT_BYTES, "{name}: {most} bytes in flight at the most");
        assert!(most <= limits::WINDOW_MAX + limits::CHUNK_BYTES as u64, "{name}: {most} bytes in flight");
        let (since, from) = warm.get().unwrap();
        let rate = ((TOTAL - from) * 8) as f64 / since.elapsed().as_secs_f64();
        assert!(rate >= BITS_PER_SECOND, "{name}: {:.0} Mbit/s", rate / 1e6);
    }
}

fn facts(kind: CarrierKind) -> Facts {
    Facts { kind, peer: None, certificates: vec![Vec::new().into()] }
}

#[tokio::test(start_paused = true)]
async fn one_gbit_per_second_at_100_ms_over_h2() {
    let (near, far) = path();
    let kind = CarrierKind::Http2;
    let (gateway, agent) = tokio::join!(http2::client_side(near, facts(kind)), http2::server_side(far, facts(kind)));
    fills(memory::joined(gateway.unwrap(), agent.unwrap(), SessionOptions::default()).await).await;
}

#[tokio::test(start_paused = true)]
async fn one_gbit_per_second_at_100_ms_over_websocket() {
    let (mut near, far) = path();
    let kind = CarrierKind::WebSocket;
    let gateway = async {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(near.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        let fields = head.lines().filter_map(|line| line.split_once(": "));
        let mut key = fields.filter(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-key")).map(|(_, key)| key);
        let key = key.next().unwrap();
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: {}\r\nSec-WebSocket-Protocol: {}\r\n\r\n",
            websocket::accept_key(key.as_bytes()),
            websocket::SUBPROTOCOL
        );
        near.write_all(answer.as_bytes()).await.unwrap();
        websocket::accept(near, Bytes::new(), facts(kind)).await
    };
    let (gateway, agent) = tokio::join!(gateway, websocket::connect(far, "gateway.test", facts(kind)));
    fills(memory::joined(gateway.unwrap(), agent.unwrap(), SessionOptions::default()).await).await;
}

#[tokio::test(start_paused = true)]
async fn one_gbit_per_second_at_100_ms_over_quic() {
    let (a, b) = (Way::default(), Way::default());
    let [own, peer]: [SocketAddr; 2] = [([192, 0, 2, 1], 443).into(), ([192, 0, 2, 2], 5000).into()];
    let due = |_| Some(Instant::now() + ONE_WAY);
    let near = Arc::new(Datagrams { own, peer, there: a.clone(), here: b.clone(), due });
    let far = Arc::new(Datagrams { own: peer, peer: own, there: b, here: a, due });
    let (server, client) = paths::tls("gateway.test");
    let (mut gateway, agent) = quic::carriers_over(near, &server, far, &client, own).await;
    // Who the agent is does not matter here.
    gateway.facts.certificates = facts(CarrierKind::Quic).certificates;
    fills(memory::joined(gateway, agent, SessionOptions::default()).await).await;
}
