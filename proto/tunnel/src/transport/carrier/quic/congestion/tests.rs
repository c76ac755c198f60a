//! Connections of quinn over ways of memory, in virtual time: a wire with a rate, a queue and losses, which several may
//! share.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use quinn::{
    ClientConfig, Connection, Endpoint, EndpointConfig, ServerConfig, TokioRuntime, TransportConfig, VarInt,
    congestion::{ControllerFactory, CubicConfig},
    crypto::rustls::{QuicClientConfig, QuicServerConfig},
};
use tokio::time::{Instant, sleep};

use super::{super::endpoint::LOST_AFTER_ROUND_TRIPS, *};
use crate::transport::paths::{self, Datagrams, Way};

const MS: Duration = Duration::from_millis(1);
const HELD: Duration = Duration::from_millis(5);

/// The same throws in each run (splitmix64).
struct Dice(u64);

impl Dice {
    fn throw(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// What packets of one direction go through; those of several connections one after the other.
struct Wire {
    delay: Duration,
    /// Bytes in a second.
    rate: u64,
    /// What would wait longer is dropped.
    queue: Duration,
    loss: f64,
    /// The part that others overtake, for it is held for [`HELD`].
    held: f64,
    dice: Dice,
    free: Instant,
}

impl Wire {
    fn new(delay: Duration, mbit: u64, queue: Duration, loss: f64) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            delay,
            rate: mbit * 125_000,
            queue,
            loss,
            held: 0.0,
            dice: Dice(7),
            free: Instant::now(),
        }))
    }

    /// When a packet comes out.
    fn pass(&mut self, bytes: usize) -> Option<Instant> {
        let now = Instant::now();
        let start = self.free.max(now);
        if start - now > self.queue {
            return None;
        }
        self.free = start + Duration::from_nanos(bytes as u64 * 1_000_000_000 / self.rate);
        let held = if self.dice.throw() < self.held { HELD } else { Duration::ZERO };
        (self.dice.throw() >= self.loss).then_some(self.free + self.delay + held)
    }
}

/// A connection that sends without end over `out`; what of it has arrived.
struct Flow {
    arrived: Arc<AtomicU64>,
    connection: Connection,
    _ends: [Endpoint; 2],
}

impl Flow {
    async fn start(
        out: &Arc<Mutex<Wire>>,
        back: &Arc<Mutex<Wire>>,
        congestion: Arc<dyn ControllerFactory + Send + Sync>,
    ) -> Self {
        let (server, client) = paths::tls("peer.test");
        let mut transport = TransportConfig::default();
        transport
            .stream_receive_window(VarInt::from_u32(64 << 20))
            .receive_window(VarInt::from_u32(64 << 20))
            .send_window(64 << 20)
            .packet_threshold(u32::MAX)
            .time_threshold(LOST_AFTER_ROUND_TRIPS)
            .congestion_controller_factory(congestion);
        let transport = Arc::new(transport);
        let mut server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(server).unwrap()));
        server.transport_config(transport.clone());
        let mut client = ClientConfig::new(Arc::new(QuicClientConfig::try_from(client).unwrap()));
        client.transport_config(transport);

        let [near, far]: [SocketAddr; 2] = [([192, 0, 2, 1], 443).into(), ([192, 0, 2, 2], 5000).into()];
        let [to_near, to_far] = [Way::default(), Way::default()];
        let socket = |own, peer, out: &Arc<Mutex<Wire>>, there: &Way, here: &Way| {
            let out = Arc::clone(out);
            let due = move |bytes| out.lock().unwrap().pass(bytes);
            Datagrams { own, peer, there: Arc::clone(there), here: Arc::clone(here), due }
        };
        let end = |socket, server| {
            let runtime = Arc::new(TokioRuntime);
            Endpoint::new_with_abstract_socket(EndpointConfig::default(), server, Arc::new(socket), runtime).unwrap()
        };
        let sender = end(socket(far, near, out, &to_near, &to_far), None);
        let reader = end(socket(near, far, back, &to_far, &to_near), Some(server));
        let dialled = sender.connect_with(client, near, "peer.test").unwrap();
        let accepted = async { reader.accept().await.unwrap().await.unwrap() };
        let (connection, accepted) = tokio::join!(dialled, accepted);
        let connection = connection.unwrap();

        let arrived = Arc::new(AtomicU64::new(0));
        let mut sending = connection.open_uni().await.unwrap();
        tokio::spawn(async move { while sending.write(&[0; 16 << 10]).await.is_ok() {} });
        let count = arrived.clone();
        tokio::spawn(async move {
            let mut reading = accepted.accept_uni().await.unwrap();
            while let Ok(Some(chunk)) = reading.read_chunk(1 << 20, true).await {
                count.fetch_add(chunk.bytes.len() as u64, Ordering::Relaxed);
            }
        });
        Self { arrived, connection, _ends: [sender, reader] }
    }

    fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }
}

/// Mbit/s of each over a time, and the mean round trip of the first.
async fn over<const N: usize>(flows: [&Flow; N], time: Duration) -> ([f64; N], Duration) {
    let before = flows.map(Flow::arrived);
    let (begin, mut trips, mut looks) = (Instant::now(), Duration::ZERO, 0);
    while begin.elapsed() < time {
        sleep(10 * MS).await;
        trips += flows[0].connection.rtt();
        looks += 1;
    }
    let mut rates = [0.0; N];
    for (rate, (flow, before)) in rates.iter_mut().zip(flows.iter().zip(before)) {
        *rate = (flow.arrived() - before) as f64 * 8.0 / 1e6 / begin.elapsed().as_secs_f64();
    }
    (rates, trips / looks)
}

fn tolerant() -> Arc<dyn ControllerFactory + Send + Sync> {
    Arc::new(Config::default())
}

fn cubic() -> Arc<dyn ControllerFactory + Send + Sync> {
    Arc::new(CubicConfig::default())
}

/// The way back, which has room for acknowledgements.
fn back(delay: Duration, loss: f64) -> Arc<Mutex<Wire>> {
    Wire::new(delay, 1000, 100 * MS, loss)
}

/// One packet in a hundred lost at a round trip of 100 ms left CUBIC 2 of 100 Mbit/s, and a queue of 100 ms may not be
/// the price of more.
#[tokio::test(start_paused = true)]
async fn a_link_that_loses_is_filled_without_a_queue() {
    for loss in [0.01, 0.02] {
        let wire = Wire::new(50 * MS, 100, 100 * MS, loss);
        let flow = Flow::start(&wire, &back(50 * MS, loss), tolerant()).await;
        sleep(Duration::from_secs(2)).await;
        let ([rate], trip) = over([&flow], Duration::from_secs(4)).await;
        assert!(rate > 60.0, "{loss}: {rate} Mbit/s");
        assert!(trip < 120 * MS, "{loss}: {trip:?}");
    }
}

/// With three packets as the bound each of these was taken for lost: over such a way the bench had 4 of 200 Mbit/s.
#[tokio::test(start_paused = true)]
async fn what_is_overtaken_is_not_lost() {
    let wire = Wire::new(20 * MS, 200, 50 * MS, 0.0);
    wire.lock().unwrap().held = 0.01;
    let flow = Flow::start(&wire, &back(20 * MS, 0.0), tolerant()).await;
    sleep(Duration::from_secs(1)).await;
    let ([rate], _) = over([&flow], Duration::from_secs(2)).await;
    assert!(rate > 150.0, "{rate} Mbit/s");
    assert!(flow.connection.stats().path.lost_packets < 4000, "{:?}", flow.connection.stats().path);
}

/// Beside a flow of CUBIC at the same bottleneck, be its queue long or short.
#[tokio::test(start_paused = true)]
async fn a_flow_of_cubic_beside_it_gets_its_share() {
    for queue in [50, 5] {
        let wire = Wire::new(10 * MS, 50, queue * MS, 0.0);
        let back = back(10 * MS, 0.0);
        let theirs = Flow::start(&wire, &back, cubic()).await;
        sleep(Duration::from_secs(1)).await;
        let ours = Flow::start(&wire, &back, tolerant()).await;
        sleep(Duration::from_secs(6)).await;
        let ([ours, theirs], _) = over([&ours, &theirs], Duration::from_secs(14)).await;
        assert!(theirs > 50.0 / 4.0, "{queue}: ours {ours}, theirs {theirs}");
        assert!(ours > 50.0 / 4.0, "{queue}: ours {ours}, theirs {theirs}");
    }
}

/// Nothing lost but by its own queue.
#[tokio::test(start_paused = true)]
async fn a_link_without_loss_is_used_as_by_cubic() {
    for (delay, queue) in [(10 * MS, 50 * MS), (100 * MS, 100 * MS)] {
        let mut rates = Vec::new();
        for congestion in [tolerant(), cubic()] {
            let wire = Wire::new(delay, 50, queue, 0.0);
            let flow = Flow::start(&wire, &back(delay, 0.0), congestion).await;
            let (first, _) = over([&flow], Duration::from_secs(3)).await;
            let (then, _) = over([&flow], Duration::from_secs(5)).await;
            rates.push((first[0], then[0]));
        }
        assert!(rates[0].0 > 0.9 * rates[1].0 && rates[0].1 > 0.9 * rates[1].1, "{rates:?}");
    }
}

fn standing(trips: impl IntoIterator<Item = (u32, Duration)>) -> Standing {
    let (mut standing, start) = (Standing::default(), std::time::Instant::now());
    for (at, took) in trips {
        standing.acknowledged(start + at * MS, took, took);
    }
    standing
}

#[test]
fn what_every_packet_waits_for_is_a_queue_and_jitter_is_none() {
    assert!(Standing::default().is_queue(), "nothing is known");
    assert!(!standing((0..300).map(|at| (at, 100 * MS))).is_queue());
    // Up to 40 ms more, but one in twenty goes through.
    assert!(!standing((0..300).map(|at| (at, (100 + at * 7 % 20 * 2) * MS))).is_queue());
    assert!(standing((0..300).map(|at| (at, if at < 150 { 100 } else { 107 } * MS))).is_queue());
    assert!(!standing((0..300).map(|at| (at, if at < 150 { 100 } else { 105 } * MS))).is_queue(), "timers do that");
    // It drained half a round trip ago or less.
    assert!(!standing((0..300).map(|at| (at, if at < 290 { 120 } else { 100 } * MS))).is_queue());
}

#[test]
fn only_much_loss_counts_by_itself() {
    let after = |every: u64| {
        let mut lost = Lost::default();
        (0..10_000u64).for_each(|number| if number % every == 0 { lost.lost(1) } else { lost.acknowledged() });
        lost.is_much()
    };
    assert!(!after(100) && !after(50) && after(10));
    let mut burst = Lost::default();
    burst.lost(20);
    assert!(!burst.is_much());
    burst.lost(20);
    assert!(burst.is_much());
    burst.lost(u64::MAX);
    (0..3000).for_each(|_| burst.acknowledged());
    assert!(!burst.is_much(), "it is forgotten");
}
