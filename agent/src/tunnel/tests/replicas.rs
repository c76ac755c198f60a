//! Several replicas of a gateway behind one address, played; time is virtual.

use std::collections::BTreeSet;

use tunnel::wire::hello::Replica;

use super::*;

/// Replicas behind one address, which leads to each as the test's own random numbers say.
struct Site {
    alive: Mutex<Vec<&'static str>>,
    /// What replicas say that the number of them is, where it is not how many are alive.
    says: Mutex<Option<u32>>,
    random: Mutex<u64>,
    /// The gateways' ends.
    tunnels: Mutex<Vec<(&'static str, TunnelHandle)>>,
    dials: AtomicUsize,
}

impl Site {
    fn of(alive: &[&'static str], seed: u64) -> Arc<Self> {
        Arc::new(Self {
            alive: Mutex::new(alive.to_vec()),
            says: Mutex::default(),
            random: Mutex::new(seed),
            tunnels: Mutex::default(),
            dials: AtomicUsize::new(0),
        })
    }

    fn below(&self, bound: usize) -> usize {
        let mut state = self.random.lock().unwrap();
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 33) as usize % bound
    }

    /// Replicas with a tunnel that is open and not asked to drain, one entry for each tunnel.
    fn up(&self) -> Vec<&'static str> {
        let tunnels = self.tunnels.lock().unwrap();
        let open = |tunnel: &TunnelHandle| {
            tunnel.closed().now_or_never().is_none() && tunnel.draining().now_or_never().is_none()
        };
        tunnels.iter().filter(|(_, tunnel)| open(tunnel)).map(|(name, _)| *name).collect()
    }

    /// Waits until `wanted` tunnels are up, each to another replica; how long that took.
    async fn until(&self, wanted: usize) -> Duration {
        self.until_without(wanted, "").await
    }

    /// The same, none of them to `left`.
    async fn until_without(&self, wanted: usize, left: &str) -> Duration {
        let begun = tokio::time::Instant::now();
        loop {
            let up = self.up();
            if up.len() == wanted && distinct(&up) == wanted && !up.contains(&left) {
                return begun.elapsed();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Ends a replica at once.
    fn kill(&self, name: &str) {
        self.alive.lock().unwrap().retain(|alive| *alive != name);
        for (of, tunnel) in self.tunnels.lock().unwrap().iter() {
            if *of == name {
                tunnel.close(CloseCode::Lost, "as the test says");
            }
        }
    }

    fn dials(&self) -> usize {
        self.dials.load(Ordering::SeqCst)
    }
}

impl Connect for Site {
    fn connect(
        &self,
        _: usize,
        carrier: CarrierKind,
        held: Vec<Bytes>,
    ) -> BoxFuture<'_, Result<TunnelHandle, ConnectError>> {
        Box::pin(async move {
            self.dials.fetch_add(1, Ordering::SeqCst);
            let refused = |refused, replicas| {
                let reason = "as the test says".to_owned();
                Err(ConnectError { carrier, reason, retry_after: None, try_another: false, refused, replicas })
            };
            let alive = self.alive.lock().unwrap().clone();
            let of = self.says.lock().unwrap().unwrap_or(alive.len() as u32);
            if alive.is_empty() {
                return refused(None, None);
            }
            let name = alive[self.below(alive.len())];
            if held.iter().any(|held| held == name.as_bytes()) {
                return refused(Some(CloseCode::Elsewhere), Some(of));
            }
            let replica = Replica { name: Bytes::from_static(name.as_bytes()), of };
            let (gateway, agent) = memory::pair_at(carrier, replica).await;
            self.tunnels.lock().unwrap().push((name, gateway));
            Ok(agent)
        })
    }

    fn endpoints(&self) -> usize {
        1
    }

    fn network(&self, _: usize) -> BoxFuture<'_, Network> {
        Box::pin(async { Network { gateway: "gateway".to_owned(), local: None } })
    }

    fn proxied(&self, _: usize) -> bool {
        false
    }
}

/// An agent of that site, until it is told to drain.
struct Played {
    tunnels: Arc<Tunnels>,
    group: TaskGroup,
    shutdown: Shutdown,
}

impl Played {
    fn start(site: &Arc<Site>, most: usize) -> Self {
        let roles = vec![echo::ENTRY.named(Arc::new(Echo))];
        let server = Server::new(Roles::new(roles), 100);
        let (choice, grace) = (CarrierChoice::Pinned(Http2), Duration::from_secs(30));
        let tunnels = Tunnels::new(site.clone(), choice, server, Arc::default(), grace).to_replicas(most);
        let (tunnels, group, shutdown) = (Arc::new(tunnels), TaskGroup::new("test"), Shutdown::new());
        let (running, until) = (tunnels.clone(), shutdown.clone());
        group.spawn("run", async move { running.run(until).await });
        Self { tunnels, group, shutdown }
    }

    fn is_up(&self) -> bool {
        self.tunnels.current().borrow().is_some()
    }

    async fn end(self) {
        self.shutdown.drain();
        self.group.join().await.unwrap();
        assert!(!self.is_up());
    }
}

fn distinct(names: &[&'static str]) -> usize {
    names.iter().collect::<BTreeSet<_>>().len()
}

#[tokio::test(start_paused = true)]
async fn t7_tunnels_to_two_replicas_behind_one_address() {
    for seed in 1..50 {
        let site = Site::of(&["a", "b", "c"], seed * 7919);
        let agent = Played::start(&site, 2);
        let took = site.until(2).await;
        assert!(distinct(&site.up()) == 2 && site.dials() <= 20, "{:?} after {} dials", site.up(), site.dials());
        assert!(took < Duration::from_secs(120), "{took:?}");
        let json = agent.tunnels.status.json();
        let shown: BTreeSet<_> =
            json["tunnels"].as_array().unwrap().iter().map(|tunnel| tunnel["replica"].as_str().unwrap()).collect();
        assert_eq!(shown, site.up().into_iter().collect(), "{json}");
        // Nothing more is dialled.
        let dials = site.dials();
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(site.dials(), dials);
        agent.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn t7_a_lost_replica_leaves_a_tunnel_and_gets_a_successor() {
    for seed in 1..50 {
        let site = Site::of(&["a", "b", "c"], seed * 104_729);
        let agent = Played::start(&site, 2);
        site.until(2).await;
        let lost = site.up()[seed as usize % 2];
        site.kill(lost);
        let dials = site.dials();
        // The other tunnel serves meanwhile, and the agent's own exchanges go over it.
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(site.up().len() == 1 && agent.is_up());
        tokio::time::sleep(Duration::from_millis(1200)).await;
        assert!(site.dials() > dials, "it is dialled within a second");
        site.until(2).await;
        assert!(distinct(&site.up()) == 2 && !site.up().contains(&lost), "{:?}", site.up());
        assert!(site.dials() - dials <= 20, "{}", site.dials() - dials);
        agent.end().await;
    }
}

#[tokio::test(start_paused = true)]
async fn t7_replicas_that_fall_to_one_leave_one_tunnel() {
    let site = Site::of(&["a", "b"], 42);
    let agent = Played::start(&site, 2);
    site.until(2).await;
    // The lease of the one that ended lasts some more seconds.
    *site.says.lock().unwrap() = Some(2);
    site.kill("a");
    tokio::time::sleep(Duration::from_secs(10)).await;
    *site.says.lock().unwrap() = None;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let dials = site.dials();
    tokio::time::sleep(Duration::from_secs(7200)).await;
    assert_eq!((site.up(), site.dials()), (vec!["b"], dials), "no more dials once it was told");
    // That one goes too, and another one comes.
    site.kill("b");
    site.alive.lock().unwrap().extend(["c", "d"]);
    site.until(2).await;
    assert!(agent.is_up());
    agent.end().await;
}

#[tokio::test(start_paused = true)]
async fn t7_an_address_that_always_leads_to_one_replica_is_seldom_dialled() {
    let site = Site::of(&["a"], 1);
    *site.says.lock().unwrap() = Some(3);
    let agent = Played::start(&site, 2);
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let first = site.dials();
    tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
    let later = site.dials() - first;
    assert!(first < 100 && later < 24 * 60, "{first} in the first hour, {later} in the next day");
    assert_eq!(site.up(), ["a"]);
    // As soon as the address leads elsewhere, at the latest minutes later.
    site.alive.lock().unwrap().push("b");
    let took = site.until(2).await;
    assert!(took < Duration::from_secs(3600), "{took:?}");
    agent.end().await;
}

#[tokio::test(start_paused = true)]
async fn t7_a_single_gateway_is_dialled_once() {
    let (fake, mut dialled) = fake(&[(Http2, Does::Works)]);
    let tunnels = tunnels(&fake, CarrierChoice::Pinned(Http2));
    let group = TaskGroup::new("test");
    let shutdown = Shutdown::new();
    let (running, until) = (tunnels.clone(), shutdown.clone());
    group.spawn("run", async move { running.run(until).await });
    let _gateway = dialled.recv().await.unwrap();
    tokio::time::sleep(Duration::from_secs(24 * 3600)).await;
    assert!(dialled.try_recv().is_err());
    shutdown.drain();
    group.join().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn t12_a_replica_that_drains_is_left_for_another_first() {
    let site = Site::of(&["a", "b", "c"], 3);
    let agent = Played::start(&site, 2);
    site.until(2).await;
    let leaves = site.up()[0];
    let mut current = agent.tunnels.current();
    site.alive.lock().unwrap().retain(|name| *name != leaves);
    let (_, draining) = site.tunnels.lock().unwrap().iter().find(|(name, _)| *name == leaves).cloned().unwrap();
    draining.drain(CloseCode::Shutdown, Duration::from_secs(1));
    site.until_without(2, leaves).await;
    draining.closed().await;
    assert!(current.borrow_and_update().is_some());
    agent.end().await;
}

#[tokio::test(start_paused = true)]
async fn t7_a_second_replica_is_found_once_a_gateway_asks_to_dial_anew() {
    let site = Site::of(&["a"], 5);
    let agent = Played::start(&site, 2);
    site.until(1).await;
    site.alive.lock().unwrap().push("b");
    let (_, tunnel) = site.tunnels.lock().unwrap()[0].clone();
    tunnel.drain(CloseCode::Elsewhere, Duration::from_secs(1));
    site.until(2).await;
    assert_eq!(distinct(&site.up()), 2);
    agent.end().await;
}
