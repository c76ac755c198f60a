//! Keeps tunnels to the gateway up: one, or one to each of several replicas of it. Each has a [seat](seats), where
//! others may overlap with it while they drain (make before break): when the gateway drains, when QUIC works again, when
//! a carrier's goodput collapses.

pub mod api;
pub mod choose;
pub mod connect;
pub mod forward;
pub mod health;
mod race;
mod seats;
pub mod setup;
pub mod status;
mod way;

use std::{
    future::Future,
    ops::Range,
    sync::{
        Arc, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use daemon::{Backoff, BackoffPolicy, Shutdown, Task, TaskGroup, random_unit};
use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, stream::FuturesUnordered};
use tunnel::{
    transport::{CarrierKind, Closed, TunnelHandle},
    wire::close::CloseCode,
};

use self::{
    api::CurrentTunnel,
    choose::{Chooser, Network},
    connect::{Connect, NoTunnel},
    health::{Health, Verdict},
    race::{Attempt, SharedChooser, race},
    seats::Seats,
    status::StatusBoard,
};
use crate::{
    config::{CarrierChoice, REPLICAS},
    metrics,
};

/// How often a tunnel's health is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Tunnels that drain at once; beyond it the oldest is closed.
const RETIRED_MAX: usize = 8;
/// The gateway closes a tunnel that drains once its last stream has ended, for it alone knows what is on its way. One
/// that does not within this time after the last stream is closed here.
const LINGER: Duration = Duration::from_secs(30);
/// The same for an agent that ends.
const SETTLE: Duration = Duration::from_secs(2);
/// Least and most time after which a gateway that said that the cluster was deleted is asked again: a store that was
/// restored from a backup may know it after all. Agents spread over it.
const DELETED_AGAIN: Range<Duration> = Duration::from_secs(3600)..Duration::from_secs(5400);
/// A gateway that does not let this cluster in may learn of it a moment later: it is asked again within `SOON`, up to
/// `SOON_TIMES` times in a row, and then as late as it says.
const SOON_TIMES: u32 = 4;
const SOON: Range<Duration> = Duration::from_millis(500)..Duration::from_secs(3);
/// The longest hint of a gateway that is respected.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(120);

/// An agent with another tunnel dials within this time for one that it lost: nothing waits for it, and the gateway that
/// ended had many agents.
const CALM: Range<Duration> = Duration::ZERO..Duration::from_secs(1);
/// How long to wait before another try to reach a replica that the agent has no tunnel to.
const SPARE: BackoffPolicy = BackoffPolicy {
    first: Duration::from_secs(1),
    quick_cap: Duration::from_secs(10),
    quick_for: Duration::from_secs(60),
    cap: Duration::from_secs(300),
    steady_after: Duration::from_secs(10),
};

/// How long to wait before a gateway that said that the cluster was deleted is asked again (docs/features.md R10).
pub fn deleted_again(unit: f64) -> Duration {
    between(&DELETED_AGAIN, unit)
}

fn between(range: &Range<Duration>, unit: f64) -> Duration {
    range.start + (range.end - range.start).mul_f64(unit.clamp(0.0, 1.0))
}

/// Serves the streams that the gateway opens on a tunnel. Implemented above this module, which does not know the roles.
pub trait Serve: Send + Sync + 'static {
    /// Serves a tunnel until it is closed.
    fn serve<'a>(&'a self, tunnel: &'a TunnelHandle) -> BoxFuture<'a, Closed>;

    /// Streams being served, on all tunnels.
    fn running(&self) -> usize;

    /// Ends all streams.
    fn abort(&self);
}

/// Keeps tunnels up.
pub struct Tunnels {
    connect: Arc<dyn Connect>,
    chooser: SharedChooser,
    server: Arc<dyn Serve>,
    status: Arc<StatusBoard>,
    tasks: TaskGroup,
    endpoint: AtomicUsize,
    drain_grace: Duration,
    seats: Seats,
}

/// A tunnel in use.
struct Live {
    tunnel: TunnelHandle,
    carrier: CarrierKind,
    network: Network,
    endpoint: usize,
    since: Instant,
    /// The certificate that was shown for it.
    generation: u64,
    /// Serves its streams; dropped only once the tunnel is closed.
    serving: Task<Closed>,
}

enum Next {
    Closed(Closed),
    Replaced(Box<Live>, CloseCode),
    Draining,
}

impl Tunnels {
    /// Dials by `connect`, serves by `server`.
    pub fn new(
        connect: Arc<dyn Connect>,
        choice: CarrierChoice,
        server: impl Serve,
        status: Arc<StatusBoard>,
        drain_grace: Duration,
    ) -> Self {
        Self {
            connect,
            chooser: SharedChooser::new(Chooser::new(choice)),
            server: Arc::new(server),
            status,
            tasks: TaskGroup::new("tunnels"),
            endpoint: AtomicUsize::new(0),
            drain_grace,
            seats: Seats::new(REPLICAS),
        }
    }

    /// Keeps tunnels to at most `most` replicas of the gateway.
    #[must_use]
    pub fn to_replicas(mut self, most: usize) -> Self {
        self.seats = Seats::new(most);
        self
    }

    /// The tunnel of the agent's own exchanges, if one is up.
    pub fn current(&self) -> CurrentTunnel {
        self.seats.current()
    }

    /// Keeps tunnels up until told to drain; then finishes what was accepted and closes.
    pub async fn run(&self, shutdown: Shutdown) {
        let mut seats = FuturesUnordered::new();
        loop {
            // A seat that was begun once waits for its turn when it is not wanted.
            let wanted = self.seats.wanted();
            for seat in seats.len()..wanted {
                seats.push(Box::pin(self.keep(seat, shutdown.clone())));
            }
            tokio::select! {
                biased;
                // They end when the agent drains.
                _ = seats.next() => break,
                () = self.seats.other_than(wanted) => {}
            }
        }
        while seats.next().await.is_some() {}
        self.tasks.abort();
        if let Err(err) = self.tasks.join().await {
            tracing::error!(error = %err, "a tunnel's task failed");
        }
    }

    /// Keeps the tunnel of one seat up until told to drain; then finishes it.
    async fn keep(&self, seat: usize, shutdown: Shutdown) {
        let mut backoff = Backoff::new(BackoffPolicy::default());
        let mut current = None;
        loop {
            let live = match current.take() {
                Some(live) => live,
                None => match shutdown.until_draining(self.establish(seat, &mut backoff)).await {
                    Some(live) => live,
                    None => break,
                },
            };
            let retired = shutdown.clone();
            match self.watch(seat, &live, &shutdown).await {
                Next::Closed(closed) => {
                    self.seats.leave(seat);
                    tracing::warn!(carrier = %live.carrier, reason = %closed, "tunnel closed");
                    self.status.down(seat, &closed.to_string());
                    if matches!(closed.code, CloseCode::Deleted | CloseCode::Unauthorised) {
                        self.status.refused(closed.code);
                    }
                    if closed.code == CloseCode::Dead {
                        self.with_chooser(|chooser| chooser.died(&live.network, live.carrier, Instant::now()));
                    }
                    backoff.lived(live.since.elapsed());
                    // Full jitter also for the first attempt: a gateway that ends had many agents.
                    let mut delay = backoff.failed(Instant::now(), random_unit());
                    if self.seats.others_up(seat) {
                        delay = delay.max(between(&CALM, random_unit()));
                    }
                    if retired.until_draining(tokio::time::sleep(delay)).await.is_none() {
                        break;
                    }
                }
                Next::Replaced(next, code) => {
                    tracing::info!(from = %live.carrier, to = %next.carrier, reason = %code, "moving to another tunnel");
                    self.retire(live, code);
                    current = Some(*next);
                }
                Next::Draining => {
                    self.seats.leave(seat);
                    self.finish(live, &shutdown).await;
                    break;
                }
            }
        }
    }

    /// Dials until the seat has a tunnel.
    async fn establish(&self, seat: usize, backoff: &mut Backoff) -> Live {
        let mut strange = 0;
        let mut spare = Backoff::new(SPARE);
        loop {
            self.seats.turn(seat).await;
            if self.connect.ready().now_or_never().is_none() {
                tracing::info!("waiting for the cluster's certificate");
                self.status.failed("this cluster has no certificate yet: waiting for it");
                self.connect.ready().await;
            }
            let generation = self.connect.generation();
            match self.dial(seat).await {
                Ok(live) => return live,
                Err(err) if err.refused() == Some(CloseCode::Elsewhere) => {
                    let delay = spare.failed(tokio::time::Instant::now().into_std(), random_unit());
                    tracing::debug!(
                        error = %err, retry_in_ms = delay.as_millis(),
                        "the address led to a replica of the gateway that this agent has a tunnel to"
                    );
                    self.endpoint.fetch_add(1, Ordering::Relaxed);
                    self.pause(seat, delay).await;
                }
                Err(err) => {
                    let hint = err.retry_after().map(|hint| hint.min(RETRY_AFTER_MAX));
                    let jitter = backoff.failed(Instant::now(), random_unit());
                    // How often in a row: another refusal, such as that of a gateway that has too much to do, is never
                    // hurried.
                    strange = if err.refused() == Some(CloseCode::Unauthorised) { strange + 1 } else { 0 };
                    let delay = match hint {
                        Some(_) if (1..=SOON_TIMES).contains(&strange) => between(&SOON, random_unit()),
                        hint => hint.unwrap_or_default() + jitter,
                    };
                    let error = match self.connect.obstacle() {
                        Some(obstacle) => format!("{obstacle} ({err})"),
                        None => err.to_string(),
                    };
                    tracing::warn!(error, retry_in_ms = delay.as_millis(), "no tunnel");
                    self.status.failed(&error);
                    if let Some(code @ (CloseCode::Deleted | CloseCode::Unauthorised)) = err.refused() {
                        self.status.refused(code);
                    }
                    if err.refused() == Some(CloseCode::Deleted) {
                        let wait = deleted_again(random_unit());
                        tracing::error!(
                            again_in_s = wait.as_secs(),
                            "the cluster's resource was deleted: this agent waits to be connected again, and asks seldom"
                        );
                        if tokio::time::timeout(wait, self.connect.renewed(generation)).await.is_ok() {
                            self.status.accepted();
                        }
                        continue;
                    }
                    // Another gateway next time.
                    self.endpoint.fetch_add(1, Ordering::Relaxed);
                    // What was refused may be welcome with another certificate.
                    let _ = tokio::time::timeout(delay, self.connect.renewed(generation)).await;
                }
            }
        }
    }

    /// Waits before another replica is sought, but not once the seat's tunnel is the only one wanted or none is up.
    async fn pause(&self, seat: usize, delay: Duration) {
        let others = self.seats.others_up(seat);
        let over = tokio::time::sleep(delay);
        tokio::pin!(over);
        loop {
            tokio::select! {
                biased;
                () = &mut over => return,
                () = self.seats.changed() => {}
            }
            if self.seats.others_up(seat) != others || !self.seats.may_dial(seat) {
                return;
            }
        }
    }

    /// Races the carriers to the current endpoint; the first tunnel that is up wins.
    async fn dial(&self, seat: usize) -> Result<Live, NoTunnel> {
        let generation = self.connect.generation();
        let endpoint = self.endpoint.load(Ordering::Relaxed) % self.connect.endpoints();
        let network = self.connect.network(endpoint).await;
        let proxied = self.connect.proxied(endpoint);
        let plan = self.with_chooser(|chooser| chooser.plan(&network, proxied, Instant::now()));
        let held = self.seats.held_by_others(seat);
        let attempt = Attempt { endpoint, network: &network, held };
        let tunnel = race(&self.connect, &self.chooser, &self.tasks, attempt, plan).await;
        let tunnel = tunnel.inspect_err(|err| {
            if let Some(replicas) = err.replicas() {
                self.seats.told(replicas);
            }
        })?;
        self.seat(seat, tunnel, network, endpoint, generation)
    }

    /// Gives a tunnel to a seat. One to a replica that another seat has reached in the meantime is given up.
    fn seat(
        &self,
        seat: usize,
        tunnel: TunnelHandle,
        network: Network,
        endpoint: usize,
        generation: u64,
    ) -> Result<Live, NoTunnel> {
        let carrier = tunnel.info().carrier;
        let taken = self.seats.take(seat, &tunnel);
        let replica = tunnel.info().replica.as_deref().map(|replica| text(&replica.name));
        let live = self.live(tunnel, network, endpoint, generation);
        if taken {
            tracing::info!(
                carrier = %carrier, gateway = live.network.gateway, replica,
                peer = live.tunnel.info().peer.map(|peer| peer.to_string()),
                version = live.tunnel.info().version.0, "tunnel up"
            );
            self.status.up(seat, carrier, &live.network.gateway, replica.as_deref());
            return Ok(live);
        }
        // The gateway may have opened streams on it, which end as they should.
        self.retire(live, CloseCode::Elsewhere);
        Err(NoTunnel::elsewhere(carrier))
    }

    fn live(&self, tunnel: TunnelHandle, network: Network, endpoint: usize, generation: u64) -> Live {
        let carrier = tunnel.info().carrier;
        let (server, serves) = (self.server.clone(), tunnel.clone());
        let serving = self.tasks.spawn_task("tunnel", async move {
            let _open = metrics::tunnel_opened(carrier);
            server.serve(&serves).await
        });
        Live { tunnel, carrier, network, endpoint, since: Instant::now(), generation, serving }
    }

    /// Watches a tunnel until it must be left.
    async fn watch(&self, seat: usize, live: &Live, shutdown: &Shutdown) -> Next {
        let mut health = Health::new(Instant::now());
        let mut asked = false;
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut probe_at = self.probe_after(live).map(|wait| tokio::time::Instant::now() + wait);
        loop {
            tokio::select! {
                biased;
                () = shutdown.draining() => return Next::Draining,
                closed = live.tunnel.closed() => return Next::Closed(closed),
                drain = live.tunnel.draining(), if !asked => {
                    if drain.code == CloseCode::Carrier {
                        // What the gateway sends is lost, which only the gateway sees.
                        if !self.with_chooser(|chooser| chooser.has_choice()) {
                            asked = true;
                            continue;
                        }
                        self.with_chooser(|chooser| chooser.collapsed(&live.network, live.carrier, Instant::now()));
                    }
                    let wait = drain.reconnect_within.min(RETRY_AFTER_MAX).mul_f64(random_unit());
                    tracing::info!(reason = %drain.code, wait_ms = wait.as_millis(), "the gateway drains: dialling anew");
                    return self.replace(seat, live, shutdown, wait, drain.code).await;
                }
                () = self.connect.renewed(live.generation) => {
                    tracing::info!("the cluster has a new certificate: dialling anew with it");
                    return self.replace(seat, live, shutdown, Duration::ZERO, CloseCode::Replaced).await;
                }
                () = sleep_until(probe_at), if probe_at.is_some() => {
                    let generation = self.connect.generation();
                    let held = self.seats.held_by_others(seat);
                    let dialling = self.connect.connect(live.endpoint, CarrierKind::Quic, held);
                    match self.until_lost(live, shutdown, dialling).await {
                        Err(next) => return next,
                        Ok(Ok(tunnel)) => {
                            self.with_chooser(|chooser| chooser.worked(&live.network, CarrierKind::Quic, Instant::now()));
                            if let Ok(next) = self.seat(seat, tunnel, live.network.clone(), live.endpoint, generation) {
                                return Next::Replaced(Box::new(next), CloseCode::Carrier);
                            }
                        }
                        Ok(Err(err)) => tracing::debug!(error = %err, "QUIC does not work here yet"),
                    }
                    probe_at = self.probe_after(live).map(|wait| tokio::time::Instant::now() + wait);
                }
                _ = look.tick() => {
                    let now = Instant::now();
                    let why = match health.look(&live.tunnel, now) {
                        Verdict::Stay => continue,
                        Verdict::Silent => {
                            self.with_chooser(|chooser| chooser.died(&live.network, live.carrier, now));
                            "nothing is heard from the gateway"
                        }
                        // A pinned carrier is better than none.
                        Verdict::Leave(_) if !self.with_chooser(|chooser| chooser.has_choice()) => continue,
                        Verdict::Leave(why) => {
                            self.with_chooser(|chooser| chooser.collapsed(&live.network, live.carrier, now));
                            why
                        }
                    };
                    tracing::warn!(carrier = %live.carrier, why, "the tunnel makes no progress: dialling another");
                    self.status.failed(why);
                    return self.replace(seat, live, shutdown, Duration::ZERO, CloseCode::Carrier).await;
                }
            }
        }
    }

    /// Dials anew while the old tunnel still serves.
    async fn replace(&self, seat: usize, live: &Live, shutdown: &Shutdown, wait: Duration, code: CloseCode) -> Next {
        let anew = async {
            tokio::time::sleep(wait).await;
            let mut backoff = Backoff::new(BackoffPolicy::default());
            self.establish(seat, &mut backoff).await
        };
        self.seats.leaving(seat);
        match self.until_lost(live, shutdown, anew).await {
            Ok(next) => Next::Replaced(Box::new(next), code),
            Err(next) => next,
        }
    }

    /// Runs `future` unless the tunnel is lost or the agent drains in the meantime.
    async fn until_lost<F: Future>(&self, live: &Live, shutdown: &Shutdown, future: F) -> Result<F::Output, Next> {
        tokio::select! {
            biased;
            () = shutdown.draining() => Err(Next::Draining),
            closed = live.tunnel.closed() => Err(Next::Closed(closed)),
            output = future => Ok(output),
        }
    }

    fn probe_after(&self, live: &Live) -> Option<Duration> {
        let proxied = self.connect.proxied(live.endpoint);
        self.with_chooser(|chooser| chooser.next_probe(&live.network, live.carrier, proxied, Instant::now()))
    }

    fn with_chooser<T>(&self, change: impl FnOnce(&mut Chooser) -> T) -> T {
        change(&mut self.chooser.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes no new streams on a tunnel and closes it once the open ones are over.
    fn retire(&self, live: Live, code: CloseCode) {
        live.tunnel.drain(code, Duration::ZERO);
        if self.tasks.running() > 2 * RETIRED_MAX {
            tracing::warn!("too many tunnels drain at once: closing one with its streams");
            live.tunnel.close(CloseCode::Drained, "too many tunnels drain at once");
        }
        self.tasks.spawn("retired tunnel", async move {
            let Live { tunnel, serving, .. } = live;
            let mut idle_since = None;
            loop {
                let now = Instant::now();
                idle_since = if tunnel.open_streams() == 0 { idle_since.or(Some(now)) } else { None };
                if idle_since.is_some_and(|since| now.duration_since(since) >= LINGER) {
                    tunnel.close(CloseCode::Drained, "");
                    break;
                }
                tokio::select! {
                    _ = tunnel.closed() => break,
                    () = tokio::time::sleep(LOOK) => {}
                }
            }
            if let Err(err) = serving.await {
                tracing::debug!(error = %err, "a retired tunnel's task ended early");
            }
        });
    }

    /// The agent ends: lets accepted exchanges finish within the grace time.
    async fn finish(&self, live: Live, shutdown: &Shutdown) {
        live.tunnel.drain(CloseCode::Shutdown, Duration::ZERO);
        let begun = Instant::now();
        let (mut told, mut idle_since) = (None, None);
        while begun.elapsed() < self.drain_grace {
            let open = self.server.running();
            if told != Some(open) {
                tracing::info!(open, "draining");
                told = Some(open);
            }
            idle_since = if open == 0 { idle_since.or(Some(Instant::now())) } else { None };
            if idle_since.is_some_and(|since: Instant| since.elapsed() >= SETTLE) {
                break;
            }
            tokio::select! {
                biased;
                () = shutdown.closed() => break,
                // A lost tunnel leaves nothing to wait for; other tunnels may still drain.
                _ = live.tunnel.closed(), if self.tasks.running() <= 1 => break,
                () = tokio::time::sleep(Duration::from_millis(100)) => {}
            }
        }
        self.server.abort();
        live.tunnel.close(CloseCode::Shutdown, "the agent ends");
        // The close must still leave.
        let _ = tokio::time::timeout(SETTLE, live.serving).await;
    }
}

/// A name of a replica, for people: it has visible ASCII characters alone.
fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

async fn sleep_until(when: Option<tokio::time::Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
