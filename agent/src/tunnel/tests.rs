//! The race and the supervision with carriers that do as the test says; time is virtual.

use std::{collections::HashMap, sync::Mutex};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::sync::{mpsc, watch};
use tunnel::transport::memory;

mod replicas;

use super::{connect::ConnectError, *};
use crate::roles::{
    Roles,
    echo::{self, Echo},
    serve::Server,
};

/// What dialling a carrier does.
#[derive(Clone)]
enum Does {
    Works,
    Hangs,
    Fails(bool, Option<Duration>),
}

struct Fake {
    /// Which certificate is shown; none yet: 0.
    generation: watch::Sender<u64>,
    /// Whether refusals are those of a deleted cluster.
    deleted: std::sync::atomic::AtomicBool,
    /// Whether they are those of a cluster that the gateway does not know.
    unknown: std::sync::atomic::AtomicBool,
    does: Mutex<HashMap<CarrierKind, Does>>,
    /// Each attempt, and the gateway's end of each tunnel that came up.
    dialled: mpsc::Sender<(CarrierKind, tokio::time::Instant, Option<TunnelHandle>)>,
    proxied: bool,
}

type Dialled = mpsc::Receiver<(CarrierKind, tokio::time::Instant, Option<TunnelHandle>)>;

fn fake(does: &[(CarrierKind, Does)]) -> (Arc<Fake>, Dialled) {
    let (dialled, receiver) = mpsc::channel(1000);
    let does = Mutex::new(does.iter().cloned().collect());
    let (generation, deleted) = (watch::Sender::new(1), Default::default());
    (Arc::new(Fake { generation, deleted, unknown: Default::default(), does, dialled, proxied: false }), receiver)
}

impl Fake {
    fn set(&self, carrier: CarrierKind, does: Does) {
        self.does.lock().unwrap().insert(carrier, does);
    }
}

impl Connect for Fake {
    fn connect(
        &self,
        _: usize,
        carrier: CarrierKind,
        _: Vec<Bytes>,
    ) -> BoxFuture<'_, Result<TunnelHandle, ConnectError>> {
        Box::pin(async move {
            let does = self.does.lock().unwrap().get(&carrier).cloned().unwrap_or(Does::Fails(true, None));
            let now = tokio::time::Instant::now();
            match does {
                Does::Works => {
                    let (gateway, agent) = memory::pair_as(carrier, Default::default()).await;
                    let _ = self.dialled.send((carrier, now, Some(gateway))).await;
                    Ok(agent)
                }
                Does::Hangs => {
                    let _ = self.dialled.send((carrier, now, None)).await;
                    std::future::pending().await
                }
                Does::Fails(try_another, retry_after) => {
                    let _ = self.dialled.send((carrier, now, None)).await;
                    Err(ConnectError {
                        carrier,
                        reason: "as the test says".to_owned(),
                        retry_after,
                        try_another,
                        refused: match self.unknown.load(Ordering::SeqCst) {
                            true => Some(CloseCode::Unauthorised),
                            false => self.deleted.load(Ordering::SeqCst).then_some(CloseCode::Deleted),
                        },
                        replicas: None,
                    })
                }
            }
        })
    }

    fn endpoints(&self) -> usize {
        1
    }

    fn network(&self, _: usize) -> BoxFuture<'_, Network> {
        Box::pin(async { Network { gateway: "gw:443".to_owned(), local: None } })
    }

    fn proxied(&self, _: usize) -> bool {
        self.proxied
    }

    fn ready(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.renewed(0))
    }

    fn generation(&self) -> u64 {
        *self.generation.borrow()
    }

    fn renewed(&self, generation: u64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.generation.subscribe().wait_for(|now| *now != generation).await.unwrap();
        })
    }
}

fn tunnels(fake: &Arc<Fake>, choice: CarrierChoice) -> Arc<Tunnels> {
    let roles = vec![echo::ENTRY.named(Arc::new(Echo))];
    let server = Server::new(Roles::new(roles), 100);
    Arc::new(Tunnels::new(fake.clone(), choice, server, Arc::default(), Duration::from_secs(30)))
}

async fn race_of(does: &[(CarrierKind, Does)]) -> (Result<Live, NoTunnel>, Vec<(CarrierKind, Duration)>) {
    let (fake, mut dialled) = fake(does);
    let start = tokio::time::Instant::now();
    let result = tunnels(&fake, CarrierChoice::Auto).dial(0).await;
    let mut order = Vec::new();
    while let Ok((carrier, at, _)) = dialled.try_recv() {
        order.push((carrier, at - start));
    }
    (result, order)
}

use CarrierKind::{Http2, Quic, WebSocket};

#[tokio::test(start_paused = true)]
async fn quic_wins_and_tcp_is_not_even_tried() {
    let (result, order) = race_of(&[(Quic, Does::Works), (Http2, Does::Works)]).await;
    assert!(result.is_ok());
    assert_eq!(order, [(Quic, Duration::ZERO)]);
}

#[tokio::test(start_paused = true)]
async fn tcp_joins_after_the_head_start_when_udp_is_dropped() {
    let (result, order) = race_of(&[(Quic, Does::Hangs), (Http2, Does::Works)]).await;
    assert!(result.is_ok());
    assert_eq!(order.len(), 2);
    assert!(order[1].0 == Http2 && order[1].1 < Duration::from_millis(300), "{order:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stripped_alpn_leads_to_websocket() {
    let (result, order) =
        race_of(&[(Quic, Does::Hangs), (Http2, Does::Fails(true, None)), (WebSocket, Does::Works)]).await;
    assert!(result.is_ok());
    assert_eq!(order.iter().map(|(carrier, _)| *carrier).collect::<Vec<_>>(), [Quic, Http2, WebSocket]);
}

#[tokio::test(start_paused = true)]
async fn a_gateways_refusal_is_final_and_its_hint_is_kept() {
    let hint = Some(Duration::from_secs(7));
    let (result, order) = race_of(&[(Quic, Does::Fails(false, hint)), (Http2, Does::Works)]).await;
    assert_eq!(result.err().unwrap().retry_after(), hint);
    assert_eq!(order.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn all_errors_are_told() {
    let (result, _) = race_of(&[]).await;
    let text = result.err().unwrap().to_string();
    assert_eq!(text, "quic: as the test says; h2: as the test says; websocket: as the test says");
}

#[tokio::test(start_paused = true)]
async fn a_gateway_that_is_away_is_tried_every_second_or_sooner() {
    let (fake, mut dialled) = fake(&[]);
    let tunnels = tunnels(&fake, CarrierChoice::Pinned(Http2));
    let group = TaskGroup::new("test");
    let shutdown = Shutdown::new();
    let (running, until) = (tunnels.clone(), shutdown.clone());
    group.spawn("run", async move { running.run(until).await });
    let mut last = dialled.recv().await.unwrap().1;
    for _ in 0..30 {
        let (_, at, _) = dialled.recv().await.unwrap();
        assert!(at - last <= Duration::from_millis(1001), "{:?}", at - last);
        last = at;
    }
    fake.set(Http2, Does::Works);
    while dialled.recv().await.unwrap().2.is_none() {}
    shutdown.drain();
    group.join().await.unwrap();
}

/// Whoever starts an agent and then tells the gateway of its cluster waited for half a minute.
#[tokio::test(start_paused = true)]
async fn an_agent_that_the_gateway_does_not_know_yet_asks_soon_and_then_as_late_as_it_says() {
    let hint = Duration::from_secs(30);
    let (fake, mut dialled) = fake(&[(Http2, Does::Fails(false, Some(hint)))]);
    fake.unknown.store(true, Ordering::SeqCst);
    let tunnels = tunnels(&fake, CarrierChoice::Pinned(Http2));
    let group = TaskGroup::new("test");
    let shutdown = Shutdown::new();
    let (running, until) = (tunnels.clone(), shutdown.clone());
    group.spawn("run", async move { running.run(until).await });
    let mut last = dialled.recv().await.unwrap().1;
    let mut waits = Vec::new();
    for _ in 0..SOON_TIMES + 2 {
        let (_, at, _) = dialled.recv().await.unwrap();
        waits.push(at - last);
        last = at;
    }
    let (soon, late) = waits.split_at(SOON_TIMES as usize);
    assert!(soon.iter().all(|wait| *wait >= SOON.start && *wait <= SOON.end + Duration::from_millis(1)), "{waits:?}");
    assert!(late.iter().all(|wait| *wait >= hint), "{waits:?}");
    // Another refusal ends the row and is never hurried; then a new row begins.
    fake.unknown.store(false, Ordering::SeqCst);
    for _ in 0..2 {
        last = dialled.recv().await.unwrap().1;
    }
    let at = dialled.recv().await.unwrap().1;
    assert!(at - last >= hint, "{:?}", at - last);
    fake.unknown.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        last = dialled.recv().await.unwrap().1;
    }
    let at = dialled.recv().await.unwrap().1;
    assert!(at - last <= SOON.end + Duration::from_millis(1), "{:?}", at - last);
    fake.unknown.store(false, Ordering::SeqCst);
    for _ in 0..2 {
        last = dialled.recv().await.unwrap().1;
    }
    let at = dialled.recv().await.unwrap().1;
    assert!(at - last >= hint, "a hint is kept right after a row that has just begun: {:?}", at - last);
    shutdown.drain();
    group.join().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn when_the_gateway_drains_another_tunnel_is_up_first_and_streams_go_on() {
    let (fake, mut dialled) = fake(&[(Quic, Does::Works)]);
    let tunnels = tunnels(&fake, CarrierChoice::Auto);
    let group = TaskGroup::new("test");
    let shutdown = Shutdown::new();
    let (running, until) = (tunnels.clone(), shutdown.clone());
    group.spawn("run", async move { running.run(until).await });
    let old = dialled.recv().await.unwrap().2.unwrap();
    let mut stream = old.open(echo_head()).await.unwrap();
    stream.recv.recv_message(65536).await.unwrap();
    old.drain(CloseCode::Shutdown, Duration::from_secs(2));
    let new = dialled.recv().await.unwrap().2.unwrap();
    // The old one still serves what it has, until that ends.
    stream.send.send(Bytes::from_static(b"still")).await.unwrap();
    assert_eq!(stream.recv.recv().await.unwrap().unwrap(), "still");
    stream.send.finish().unwrap();
    assert!(stream.recv.recv().await.unwrap().is_none());
    drop(stream);
    old.closed().await;
    let mut stream = new.open(echo_head()).await.unwrap();
    stream.recv.recv_message(65536).await.unwrap();
    drop(stream);
    shutdown.drain();
    group.join().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn quic_is_back_within_a_minute_and_no_stream_is_disturbed() {
    let (fake, mut dialled) = fake(&[(Quic, Does::Fails(true, None)), (Http2, Does::Works)]);
    let tunnels = tunnels(&fake, CarrierChoice::Auto);
    let group = TaskGroup::new("test");
    let shutdown = Shutdown::new();
    let (running, until) = (tunnels.clone(), shutdown.clone());
    group.spawn("run", async move { running.run(until).await });
    let tcp = loop {
        if let (Http2, _, Some(gateway)) = dialled.recv().await.unwrap() {
            break gateway;
        }
    };
    let mut stream = tcp.open(echo_head()).await.unwrap();
    stream.recv.recv_message(65536).await.unwrap();
    // For five minutes QUIC fails.
    let begun = tokio::time::Instant::now();
    while tokio::time::Instant::now() - begun < Duration::from_secs(300) {
        assert_eq!(dialled.recv().await.unwrap().0, Quic);
    }
    let restored = tokio::time::Instant::now();
    fake.set(Quic, Does::Works);
    let (carrier, at, _quic) = dialled.recv().await.unwrap();
    assert!(carrier == Quic && at - restored <= Duration::from_secs(60), "{:?}", at - restored);
    stream.send.send(Bytes::from_static(b"still")).await.unwrap();
    assert_eq!(stream.recv.recv().await.unwrap().unwrap(), "still");
    drop(stream);
    shutdown.drain();
    group.join().await.unwrap();
}

/// What the gateway sends is lost: it says so by a drain, for the agent cannot see it.
#[tokio::test(start_paused = true)]
async fn a_lossy_quic_is_left_for_tcp_and_comes_back_later_each_time() {
    let (fake, mut dialled) = fake(&[(Quic, Does::Works), (Http2, Does::Works)]);
    let tunnels = tunnels(&fake, CarrierChoice::Auto);
    let group = TaskGroup::new("test");
    let shutdown = Shutdown::new();
    let (running, until) = (tunnels.clone(), shutdown.clone());
    group.spawn("run", async move { running.run(until).await });
    let (carrier, _, mut quic) = dialled.recv().await.unwrap();
    assert_eq!(carrier, Quic);
    let mut away = Vec::new();
    for _ in 0..3 {
        let lossy = quic.take().unwrap();
        let mut stream = lossy.open(echo_head()).await.unwrap();
        stream.recv.recv_message(65536).await.unwrap();
        lossy.drain(CloseCode::Carrier, Duration::ZERO);
        let (carrier, left, _tcp) = dialled.recv().await.unwrap();
        assert_eq!(carrier, Http2, "QUIC takes no part in the race");
        // What is open goes on.
        stream.send.send(Bytes::from_static(b"still")).await.unwrap();
        assert_eq!(stream.recv.recv().await.unwrap().unwrap(), "still");
        let (carrier, back, tunnel) = dialled.recv().await.unwrap();
        assert_eq!(carrier, Quic);
        away.push((back - left).as_secs());
        quic = tunnel;
    }
    assert!(away[0] >= 100 && away[1] >= 2 * away[0] - 5 && away[2] >= 2 * away[1] - 5, "{away:?}");
    shutdown.drain();
    group.join().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn r8_a_new_certificate_is_shown_on_a_new_tunnel_and_open_streams_go_on() {
    let (fake, mut dialled) = fake(&[(Quic, Does::Works)]);
    fake.generation.send_replace(0);
    let tunnels = tunnels(&fake, CarrierChoice::Auto);
    let group = TaskGroup::new("test");
    let shutdown = Shutdown::new();
    let (running, until) = (tunnels.clone(), shutdown.clone());
    group.spawn("run", async move { running.run(until).await });
    // Nothing is dialled before there is a certificate.
    tokio::time::sleep(Duration::from_secs(3600)).await;
    assert!(dialled.try_recv().is_err());
    fake.generation.send_replace(1);
    let old = dialled.recv().await.unwrap().2.unwrap();
    let mut stream = old.open(echo_head()).await.unwrap();
    stream.recv.recv_message(65536).await.unwrap();
    fake.generation.send_replace(2);
    let new = dialled.recv().await.unwrap().2.unwrap();
    old.draining().await;
    stream.send.send(Bytes::from_static(b"still")).await.unwrap();
    assert_eq!(stream.recv.recv().await.unwrap().unwrap(), "still");
    drop(stream);
    let mut stream = new.open(echo_head()).await.unwrap();
    stream.recv.recv_message(65536).await.unwrap();
    assert!(tunnels.current().borrow().is_some());
    drop(stream);
    shutdown.drain();
    group.join().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn r10_an_agent_of_a_deleted_cluster_asks_once_an_hour_until_it_has_another_certificate() {
    let (fake, mut dialled) = fake(&[(Http2, Does::Fails(false, None))]);
    fake.deleted.store(true, Ordering::SeqCst);
    let tunnels = tunnels(&fake, CarrierChoice::Pinned(Http2));
    let group = TaskGroup::new("test");
    let shutdown = Shutdown::new();
    let (running, until) = (tunnels.clone(), shutdown.clone());
    group.spawn("run", async move { running.run(until).await });
    dialled.recv().await.unwrap();
    let mut attempts = 0;
    tokio::time::sleep(Duration::from_secs(86_400)).await;
    while dialled.try_recv().is_ok() {
        attempts += 1;
    }
    assert!((16..=24).contains(&attempts) && tunnels.status.is_deleted(), "{attempts}");
    fake.set(Http2, Does::Works);
    fake.generation.send_replace(2);
    let tunnel = dialled.recv().await.unwrap().2.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(!tunnels.status.is_deleted());
    // A store that was restored from a backup knows nothing of it for a while, and then does again: nobody has to do
    // anything.
    fake.set(Http2, Does::Fails(false, None));
    tunnel.close(CloseCode::Deleted, "as the test says");
    while !tunnels.status.is_deleted() {
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    fake.set(Http2, Does::Works);
    tokio::time::sleep(Duration::from_secs(5400)).await;
    assert!(!tunnels.status.is_deleted() && tunnels.status.carrier().is_some());
    shutdown.drain();
    group.join().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pinned_carrier_is_not_left() {
    let (fake, mut dialled) = fake(&[(Quic, Does::Works)]);
    let tunnels = tunnels(&fake, CarrierChoice::Pinned(Quic));
    let group = TaskGroup::new("test");
    let shutdown = Shutdown::new();
    let (running, until) = (tunnels.clone(), shutdown.clone());
    group.spawn("run", async move { running.run(until).await });
    let quic = dialled.recv().await.unwrap().2.unwrap();
    quic.drain(CloseCode::Carrier, Duration::ZERO);
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(dialled.try_recv().is_err());
    shutdown.drain();
    group.join().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_ends_finishes_what_it_accepted() {
    let (fake, mut dialled) = fake(&[(Quic, Does::Works)]);
    let tunnels = tunnels(&fake, CarrierChoice::Auto);
    let group = TaskGroup::new("test");
    let shutdown = Shutdown::new();
    let (running, until) = (tunnels.clone(), shutdown.clone());
    group.spawn("run", async move { running.run(until).await });
    let gateway = dialled.recv().await.unwrap().2.unwrap();
    let mut stream = gateway.open(echo_head()).await.unwrap();
    stream.recv.recv_message(65536).await.unwrap();
    shutdown.drain();
    gateway.draining().await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    stream.send.send(Bytes::from_static(b"last")).await.unwrap();
    stream.send.finish().unwrap();
    assert_eq!(stream.recv.recv().await.unwrap().unwrap(), "last");
    assert!(stream.recv.recv().await.unwrap().is_none());
    let finished = tokio::time::Instant::now();
    drop(stream);
    group.join().await.unwrap();
    assert!(tokio::time::Instant::now() - finished < Duration::from_secs(5), "no longer than needed");
}

fn echo_head() -> Bytes {
    let head = tunnel::wire::head::RequestHead {
        role: "echo".to_owned(),
        request_id: types::ids::RequestId([1; 16]),
        method: http::Method::POST,
        target: Bytes::from_static(b"/"),
        headers: http::HeaderMap::new(),
        deadline_ms: None,
        traceparent: None,
        user_address: None,
    };
    head.encode().unwrap().freeze()
}
