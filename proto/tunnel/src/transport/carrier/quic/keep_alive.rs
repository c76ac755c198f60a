//! Signs of life to agents whose tunnel nobody uses, all from one task, which looks a moment later whether their
//! carriers have acknowledged them. The tunnels' own tasks sleep meanwhile: ten thousand of them, each woken for its
//! own sign and again for its acknowledgement, cost as much as all that the carrier does.
//!
//! A sign is a datagram (RFC 9221) that nobody answers: acknowledged it is as any packet, and one that is lost has
//! quinn ask.

use std::{
    collections::VecDeque,
    mem,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use daemon::TaskGroup;
use quinn::Connection;
use tokio::{
    sync::Notify,
    task::yield_now,
    time::{Instant, sleep_until},
};
use types::limits;

/// Signs are sent on the beat, to all whose time has come: a processor that is awake for one sends another for less.
/// Those of ten thousand tunnels cost an eighth more on a beat of 32 ms, and no less on longer ones: then what belongs
/// to the tunnels is no longer in the processor's caches when they acknowledge.
const BEAT: Duration = Duration::from_millis(64);
/// Signs that are sent in a row, which take a fraction of a millisecond, before other tasks have their turn.
const IN_A_ROW: usize = 16;
/// A carrier acknowledges within two round trips and this: `max_ack_delay` of RFC 9000 is 25 ms, and the machine may be
/// busy. By then all that belongs to the tunnel is still in the processor's caches.
const ACKNOWLEDGED: Duration = Duration::from_millis(60);
/// However long its round trips are.
const ACKNOWLEDGED_MAX: Duration = limits::SUSPECT_AFTER;
/// On one beat no more signs are sent than these, or than the double of its share: those whose time came in a pause of
/// the process would be told at once for ever.
const ON_A_BEAT: usize = 64;
const SIGN: Bytes = Bytes::from_static(b".");

/// The task of one endpoint. Dropping it ends that.
pub(crate) struct KeepAlive {
    peers: Arc<Peers>,
    _task: TaskGroup,
}

/// By when each is due.
type Due = VecDeque<(Instant, Weak<Peer>)>;

/// All that may have to be told.
#[derive(Default)]
struct Peers {
    due: Mutex<Due>,
    /// Told when one has come that is before all others.
    first: Notify,
}

/// One of them: told while its session rests.
pub(crate) struct Peer {
    connection: Connection,
    every: Duration,
    resting: AtomicBool,
    /// Told when it did not acknowledge a sign; it does not count as resting then.
    silent: Notify,
    sign: Mutex<Sign>,
}

/// The last sign that was sent.
struct Sign {
    sent: Instant,
    /// What had come from the peer before.
    heard: u64,
    /// When the last one that was acknowledged had been sent.
    acknowledged: Instant,
    /// It should have been acknowledged, and was not when that was looked at.
    late: bool,
}

impl KeepAlive {
    /// Within a tokio runtime.
    pub(super) fn start() -> Self {
        let (peers, task) = (Arc::<Peers>::default(), TaskGroup::new("keep-alive"));
        task.spawn("signs", tell(peers.clone()));
        Self { peers, _task: task }
    }

    /// One more, while what is returned lives; told at about each `every` while its session rests. `None`: its carrier
    /// takes no signs.
    pub(super) fn add(&self, connection: &Connection, every: Duration) -> Option<Arc<Peer>> {
        connection.max_datagram_size().filter(|max| *max >= SIGN.len())?;
        let now = Instant::now();
        let sign = Sign { sent: now, heard: heard(connection), acknowledged: now, late: false };
        let peer = Arc::new(Peer {
            connection: connection.clone(),
            every,
            resting: AtomicBool::new(false),
            silent: Notify::new(),
            sign: Mutex::new(sign),
        });
        if put(&mut self.peers.due(), now + every, Arc::downgrade(&peer)) == 0 {
            self.peers.first.notify_one();
        }
        Some(peer)
    }
}

impl Peer {
    /// Has the peer told while what is returned lives.
    pub(crate) fn rest(&self) -> Rest<'_> {
        self.resting.store(true, Ordering::Release);
        Rest(self)
    }

    fn rests(&self) -> bool {
        self.resting.load(Ordering::Acquire)
    }

    /// Since when, or later, it is that the peer was last heard.
    pub(crate) fn heard_since(&self) -> Instant {
        let heard = heard(&self.connection);
        self.sign().heard_since(heard)
    }

    fn sign(&self) -> MutexGuard<'_, Sign> {
        self.sign.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is a peer to tell.
    fn tell(&self, now: Instant) -> bool {
        let heard = heard(&self.connection);
        let mut sign = self.sign();
        let acknowledged = sign.heard_since(heard);
        *sign = Sign { sent: now, heard, acknowledged, late: false };
        drop(sign);
        self.connection.send_datagram(SIGN).is_ok()
    }

    /// Looks whether a sign was acknowledged, or whatever came since. When to look again, where there is still time for
    /// that.
    fn look(&self, now: Instant) -> Option<Instant> {
        let came = heard(&self.connection);
        let mut sign = self.sign();
        if came != sign.heard || !self.rests() {
            return None;
        }
        let within = (2 * self.connection.rtt() + ACKNOWLEDGED).min(ACKNOWLEDGED_MAX).min(self.every / 2);
        // After a pause of the process what came meanwhile has not been read at the first look.
        if now < sign.sent + within || !mem::replace(&mut sign.late, true) {
            return Some((sign.sent + within).max(now + BEAT));
        }
        if self.resting.swap(false, Ordering::AcqRel) {
            self.silent.notify_one();
        }
        None
    }
}

impl Sign {
    /// The same, of a peer of which `heard` frames have come.
    fn heard_since(&self, heard: u64) -> Instant {
        if heard == self.heard { self.acknowledged } else { self.sent }
    }
}

/// Why a session may rest.
pub(crate) struct Rest<'a>(&'a Peer);

impl Rest<'_> {
    /// Completes when the peer has not acknowledged a sign in its time.
    pub(crate) async fn broken(&self) {
        while self.0.rests() {
            // What is left of the rest before is no news.
            self.0.silent.notified().await;
        }
    }
}

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        self.0.resting.store(false, Ordering::Release);
    }
}

/// Sends signs of life to all peers, and looks whether they are acknowledged. Never returns.
async fn tell(peers: Arc<Peers>) {
    let mut unsure = Due::new();
    loop {
        let beat = Instant::now();
        while look(&mut unsure, beat, IN_A_ROW) {
            yield_now().await;
        }
        let mut left = peers.on_a_beat();
        while left > 0 && peers.tell(&mut unsure, Instant::now(), left.min(IN_A_ROW)) {
            left = left.saturating_sub(IN_A_ROW);
            yield_now().await;
        }
        let next = unsure.front().map(|(due, _)| *due).into_iter().chain(peers.next()).min();
        let wait = async {
            match next {
                Some(next) => sleep_until(next.max(beat + BEAT)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = wait => {}
            () = peers.first.notified() => {}
        }
    }
}

/// In its place, which is the last where all wait for as long. Which it is.
fn put(queue: &mut Due, due: Instant, peer: Weak<Peer>) -> usize {
    let last = queue.back().is_none_or(|(other, _)| *other <= due);
    let place = if last { queue.len() } else { queue.partition_point(|(other, _)| *other <= due) };
    queue.insert(place, (due, peer));
    place
}

impl Peers {
    fn due(&self) -> MutexGuard<'_, Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When the next is due.
    fn next(&self) -> Option<Instant> {
        self.due().front().map(|(due, _)| *due)
    }

    /// How many are told at most on one beat.
    fn on_a_beat(&self) -> usize {
        let share = self.due().len() as u128 * BEAT.as_millis() / limits::PROBE_PERIOD.as_millis();
        ON_A_BEAT.max(2 * share as usize)
    }

    /// Tells `most` of those whose time has come. Whether there may be more.
    fn tell(&self, unsure: &mut Due, now: Instant, most: usize) -> bool {
        for _ in 0..most {
            let Some((_, peer)) = self.due().pop_front_if(|(due, _)| *due <= now) else { return false };
            // Who is gone is told no more.
            let Some(here) = peer.upgrade() else { continue };
            // One whose connection has ended has a session that knows.
            if here.rests() && here.tell(now) {
                put(unsure, now + ACKNOWLEDGED, peer.clone());
            }
            put(&mut self.due(), now + here.every, peer);
        }
        true
    }
}

/// Looks at `most` of those of whom it is time to know. Whether there may be more.
fn look(unsure: &mut Due, now: Instant, most: usize) -> bool {
    for _ in 0..most {
        let Some((_, peer)) = unsure.pop_front_if(|(due, _)| *due <= now) else { return false };
        if let Some(again) = peer.upgrade().and_then(|here| here.look(now)) {
            put(unsure, again, peer);
        }
    }
    true
}

/// Frames that came: of authenticated packets only.
pub(super) fn heard(connection: &Connection) -> u64 {
    let frames = connection.stats().frame_rx;
    frames.acks + frames.ping + frames.stream + frames.datagram + frames.path_challenge + frames.path_response
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, UdpSocket};

    use futures_util::FutureExt;
    use quinn::{ClientConfig, Endpoint, TransportConfig, VarInt, crypto::rustls::QuicClientConfig};
    use tokio::time::timeout;

    use super::*;
    use crate::{
        transport::{
            carrier::Carrier,
            http2::ALPN,
            memory,
            paths::{Datagrams, Way, tls},
            quic::{bare_connect, bare_listener, carriers_over},
            session::SessionOptions,
        },
        wire::{close::CloseCode, control::Control, message::LENGTH_BYTES},
    };

    const EVERY: Duration = Duration::from_secs(7);
    const RTT: Duration = Duration::from_millis(20);

    /// The gateway's and the agent's carrier over a path in virtual time, and what cuts that.
    async fn carriers(rtt: Duration) -> (Carrier, Carrier, Arc<AtomicBool>) {
        let (a, b, cut) = (Way::default(), Way::default(), Arc::<AtomicBool>::default());
        let [own, peer]: [SocketAddr; 2] = [([192, 0, 2, 1], 443).into(), ([192, 0, 2, 2], 5000).into()];
        let is_cut = cut.clone();
        let due = move |_| (!is_cut.load(Ordering::Relaxed)).then(|| Instant::now() + rtt / 2);
        let near = Arc::new(Datagrams { own, peer, there: a.clone(), here: b.clone(), due: due.clone() });
        let far = Arc::new(Datagrams { own: peer, peer: own, there: b, here: a, due });
        let (server, client) = tls("gateway.test");
        let (mut gateway, agent) = carriers_over(near, &server, far, &client, own).await;
        // Who the agent is does not matter here.
        gateway.facts.certificates = vec![Vec::new().into()];
        (gateway, agent, cut)
    }

    #[tokio::test(start_paused = true)]
    async fn the_peer_is_told_in_each_period_while_a_session_rests_and_never_else() {
        for rtt in [RTT, Duration::from_millis(700)] {
            let (near, far, _cut) = carriers(rtt).await;
            let peer = near.link.keep_alive(EVERY).unwrap();
            let signs = async |periods| {
                let mut count = 0;
                let end = Instant::now() + periods * EVERY;
                while let Ok(sign) = tokio::time::timeout_at(end, far.link.sign()).await {
                    sign.unwrap();
                    count += 1;
                }
                count
            };
            assert_eq!(signs(2).await, 0);
            let rest = peer.rest();
            tokio::select! {
                biased;
                () = rest.broken() => panic!("all were acknowledged"),
                count = signs(10) => assert!((9..=10).contains(&count), "{count}"),
            }
            drop(rest);
            assert_eq!(signs(2).await, 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_sign_that_is_not_acknowledged_ends_the_rest_as_soon_as_it_should_have_been() {
        let (near, _far, cut) = carriers(RTT).await;
        let peer = near.link.keep_alive(EVERY).unwrap();
        let (begin, rest) = (Instant::now(), peer.rest());
        // Just before the third.
        assert!(timeout(3 * EVERY - BEAT, rest.broken()).await.is_err());
        let heard_since = peer.heard_since() - begin;
        assert!(heard_since >= 2 * EVERY && heard_since <= 2 * EVERY + 3 * BEAT, "{heard_since:?}");
        cut.store(true, Ordering::Relaxed);
        rest.broken().await;
        let noticed = begin.elapsed();
        let told = noticed - (2 * RTT + ACKNOWLEDGED);
        assert!(told > 3 * EVERY && told < 3 * EVERY + 8 * BEAT, "{noticed:?}");
        drop(rest);
        // That is no news to the next.
        assert!(peer.rest().broken().now_or_never().is_none());
    }

    /// Each period had the sessions of both ends at work; and what they leave to the carrier has to be noticed as well.
    #[tokio::test(start_paused = true)]
    async fn the_sessions_of_an_idle_tunnel_ask_once_a_minute_until_its_path_is_cut() {
        let (gateway, agent, cut) = carriers(RTT).await;
        let (gateway, agent) = memory::joined(gateway, agent, SessionOptions::default()).await;
        let ends = [&gateway, &agent];
        let before = ends.map(|end| end.received());
        assert!(timeout(Duration::from_secs(600), gateway.closed()).await.is_err());
        // The gateway asks and is answered; the agent asked when the tunnel came to be.
        let question = (Control::Ping(1).encode().len() - LENGTH_BYTES) as u64;
        let heard = ends.map(|end| end.received());
        for (heard, before) in heard.into_iter().zip(before) {
            let questions = (heard - before) / question;
            assert!((10..=14).contains(&questions), "{questions}");
        }
        cut.store(true, Ordering::Relaxed);
        let cut = Instant::now();
        for end in ends {
            assert_eq!(end.closed().await.code, CloseCode::Dead);
        }
        assert!(cut.elapsed() <= limits::PROBE_DEADLINE, "{:?}", cut.elapsed());
    }

    /// Each sign has been acknowledged too late. A path by satellite, with a queue.
    #[tokio::test(start_paused = true)]
    async fn an_idle_tunnel_of_long_round_trips_lives_and_is_not_suspect() {
        let (gateway, agent, _cut) = carriers(Duration::from_millis(2500)).await;
        let (gateway, agent) = memory::joined(gateway, agent, SessionOptions::default()).await;
        for _ in 0..600 {
            assert!(timeout(Duration::from_secs(1), gateway.closed()).await.is_err());
            assert!(!gateway.suspect() && !agent.suspect());
        }
    }

    /// More than are told in a row.
    #[tokio::test(start_paused = true)]
    async fn all_peers_of_an_endpoint_are_told() {
        let (near, _far, _cut) = carriers(RTT).await;
        let peers: Vec<_> = (0..10 * IN_A_ROW).map(|_| near.link.keep_alive(EVERY).unwrap()).collect();
        let begin = Instant::now();
        let rests: Vec<_> = peers.iter().map(|peer| peer.rest()).collect();
        for rest in &rests {
            assert!(timeout(EVERY, rest.broken()).await.is_err());
        }
        for peer in &peers {
            assert!(peer.sign().sent > begin + 9 * IN_A_ROW as u32 * EVERY, "{:?}", peer.sign().sent - begin);
        }
    }

    /// One of before, say.
    #[tokio::test]
    async fn who_takes_no_datagrams_is_left_to_its_session() {
        let (server, mut client) = tls("gateway.test");
        client.alpn_protocols = vec![ALPN.to_vec()];
        let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(client).unwrap()));
        let mut transport = TransportConfig::default();
        transport.datagram_receive_buffer_size(None);
        config.transport_config(Arc::new(transport));
        let listener = bare_listener(UdpSocket::bind("127.0.0.1:0").unwrap(), &server).unwrap();
        let endpoint = Endpoint::client(([127, 0, 0, 1], 0).into()).unwrap();
        let accepted = async { listener.accept().await.unwrap().await.unwrap() };
        let dialled = endpoint.connect_with(config, listener.local_addr().unwrap(), "gateway.test").unwrap();
        let (accepted, _dialled) = tokio::join!(accepted, dialled);
        assert!(by_hand().add(&accepted, EVERY).is_none());
    }

    /// The gateway's end, and the agent's with its endpoint.
    async fn pair() -> (Connection, (Endpoint, Connection)) {
        let (server, client) = tls("gateway.test");
        let listener = bare_listener(UdpSocket::bind("127.0.0.1:0").unwrap(), &server).unwrap();
        let accepted = async { listener.accept().await.unwrap().await.unwrap() };
        let dialled = bare_connect(listener.local_addr().unwrap(), "gateway.test", &client);
        let (accepted, dialled) = tokio::join!(accepted, dialled);
        (accepted, dialled.unwrap())
    }

    /// A keep-alive whose task is the test.
    fn by_hand() -> KeepAlive {
        KeepAlive { peers: Arc::default(), _task: TaskGroup::new("test") }
    }

    #[tokio::test]
    async fn who_has_gone_is_forgotten() {
        let (near, (_endpoint, far)) = pair().await;
        let keep_alive = by_hand();
        let (peer, other) = (keep_alive.add(&near, EVERY).unwrap(), keep_alive.add(&near, EVERY).unwrap());
        let (at, mut unsure) = (Instant::now() + EVERY, Due::new());
        drop(other);
        far.close(VarInt::from_u32(0), b"");
        near.closed().await;
        // The connection has ended; its session has not noticed yet.
        let _rest = peer.rest();
        keep_alive.peers.tell(&mut unsure, at, 2);
        assert_eq!((unsure.len(), keep_alive.peers.due().len()), (0, 1));
    }

    /// As after a pause of the process.
    #[tokio::test]
    async fn those_whose_time_has_come_at_once_are_told_one_after_the_other() {
        let (near, _far) = pair().await;
        let keep_alive = by_hand();
        let all: Vec<_> = (0..5000).map(|_| keep_alive.add(&near, EVERY).unwrap()).collect();
        let rests: Vec<_> = all.iter().map(|peer| peer.rest()).collect();
        let (mut at, mut told, mut beats) = (Instant::now() + 10 * EVERY, 0, 0);
        while told < all.len() {
            let (mut unsure, most) = (Due::new(), keep_alive.peers.on_a_beat());
            keep_alive.peers.tell(&mut unsure, at, most);
            assert_eq!(unsure.len(), most.min(all.len() - told));
            (at, told, beats) = (at + BEAT, told + unsure.len(), beats + 1);
        }
        let took = beats * BEAT;
        assert!(took > EVERY / 3 && took < EVERY, "{took:?}");
        drop(rests);
    }
}
