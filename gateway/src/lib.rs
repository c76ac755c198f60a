#![cfg_attr(test, allow(clippy::unwrap_used, clippy::disallowed_methods))]
//! The gateway: users come in over HTTPS, agents over tunnels that they dialled, and a request goes from one to the
//! other once it is known who asks and that they may.
//!
//! Arrows point one way: a module uses those of lower floors, and of its own floor where that makes no circle.
//! `tests/graph` reads this table, and fails at a circle or an arrow upwards.
//!
//! | module | what it holds |
//! |---|---|
//! | **the process** | |
//! | [`program`] | the process `towline-gateway`: its commands |
//! | [`checks`] | what must hold for a start |
//! | [`reload`] | another configuration while running |
//! | [`admin`] | health, metrics, drain, sessions, on an address of its own |
//! | [`init`], [`lost`], [`renew`], [`roll_over`] | what an operator does: a new gateway's folder, another key, certificates, another authority |
//! | **who comes in** | |
//! | [`listen`] | TLS and HTTP on users' sockets, and whom a request goes to |
//! | **what works by itself** | |
//! | [`rollout`] | one resource for many clusters, wave by wave, written by the API in the name of who assigned it |
//! | [`upgrades`] | another version of the agents for many clusters, wave by wave |
//! | **who answers** | |
//! | [`request`] | the stages of a request to a cluster, in order |
//! | [`api`] | the resource API: one request's way through it |
//! | [`tunnels`] | listeners for agents, the hello, sessions of tunnels |
//! | [`peers`] | what other replicas of this gateway ask: requests to clusters whose tunnel is here |
//! | [`agents`] | what agents ask beside: certificates, heartbeats, desired state |
//! | **what they share, live** | |
//! | [`core`] | the parts of a running gateway |
//! | [`issuer_state`] | where the built-in issuer of a configuration keeps what it knows |
//! | [`owners`] | that somebody always owns the gateway; another owner |
//! | [`resources`] | kinds of resources, a plug-in each |
//! | [`connectivity`] | whether clusters' agents are there |
//! | [`webhooks`] | tells addresses of the configuration what happens |
//! | [`control`] | keeps store and directory in step; long-running operations |
//! | [`sessions`] | how long a request lives; re-authorised while it does |
//! | [`fleet`] | live tunnels, and what agents ask and tell |
//! | [`replicas`] | the other gateways that share the store, and whose tunnels they have |
//! | [`hop`] | links to other replicas, by which requests reach the tunnels that these have |
//! | [`events`] | what happens to clusters, as it is told |
//! | [`admission`] | bounds and turns of connections and handshakes |
//! | [`audit`] | one record for each request |
//! | [`trust`], [`named`] | the gateway's certificates, and the authorities that it trusts |
//! | **what is known and decided** | |
//! | [`permit`] | the right of a principal to reach a cluster |
//! | [`snapshot`] | clusters, issuers and grants of the moment; the seam to what delivers them |
//! | [`directory`] | what decisions need of kept resources, in memory |
//! | [`policy`] | who may reach what by the configuration: a pure decision |
//! | [`accounts`], [`account_names`] | accounts of the built-in issuer that may act now, and names of accounts |
//! | [`cluster`] | what is known of a cluster, and what its agents' certificates must say |
//! | **where it is kept, what was set** | |
//! | [`catalogue`] | the signed catalogue of charts that clusters fetch |
//! | [`config`] | valid settings, and what a file may say |
//! | [`issuer`] | the small built-in OIDC issuer |
//! | [`store`] | where resources are kept |
//! | [`identity`] | who asks: credential, principal, caller |
//! | [`api_error`] | refusals, as ARM's envelope |
//! | [`stored`], [`object`], [`managed`] | what is the same in kept resources of all kinds, of those that agents follow, and of those that a fleet assignment made |
//! | **words that everybody uses** | |
//! | [`answers`], [`bodies`] | answers that the gateway writes itself; bodies of requests, taken in to their end |
//! | [`places`], [`rate`] | places that no few addresses take all of; how often somebody may ask |
//! | [`metrics`] | every metric, named and described once |
//! | [`skew`] | which versions of agents are served |
//! | [`files`] | state files: private, replaced whole, watched |
//! | [`aside`] | long work on threads of its own |
//! | [`guid`], [`random`], [`shards`] | GUIDs, random bytes, a map of which a changed copy costs little |

pub mod account_names;
pub mod accounts;
pub mod admin;
pub mod admission;
pub mod agents;
pub mod answers;
pub mod api;
pub mod api_error;
pub mod aside;
pub mod audit;
pub mod bodies;
pub mod catalogue;
pub mod checks;
pub mod cluster;
pub mod config;
pub mod connectivity;
pub mod control;
pub mod core;
pub mod directory;
pub mod events;
pub mod files;
pub mod fleet;
pub mod guid;
pub mod hop;
pub mod identity;
pub mod init;
pub mod issuer;
pub mod issuer_state;
pub mod listen;
pub mod lost;
pub mod managed;
pub mod metrics;
pub mod named;
pub mod object;
pub mod owners;
pub mod peers;
pub mod permit;
pub mod places;
pub mod policy;
pub mod program;
pub mod random;
pub mod rate;
pub mod reload;
pub mod renew;
pub mod replicas;
pub mod request;
pub mod resources;
pub mod roll_over;
pub mod rollout;
pub mod sessions;
pub mod shards;
pub mod skew;
pub mod snapshot;
pub mod store;
pub mod stored;
pub mod trust;
pub mod tunnels;
pub mod upgrades;
pub mod webhooks;

use std::{
    collections::HashSet,
    io,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
    time::{Duration, SystemTime},
};

use daemon::{Shutdown, TaskGroup, telemetry::LogLevel};
use futures_util::future::BoxFuture;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tunnel::transport::quic::{Listener, QuicOptions, ResetSecret};
use types::{ids::ClusterKey, version::Features};

use self::{
    accounts::Accounts,
    config::{AuditTo, Config, Dynamic},
    control::{Clock, Control, Parts, alone::alone, work::WORKS},
    core::Core,
    issuer::Issuer,
    metrics::Metrics,
    reload::{ReloadError, Reloader},
    replicas::{Replicas, keep::Keeper},
    rollout::Rollouts,
    sessions::{EndReason, Sessions},
    snapshot::{Snapshot, Snapshots},
    store::{Store, look::Found, protect::Protector},
};
use crate::{
    admission::{limit::Admissions, pace::Pace, refused::Refusals, unproven::Unproven},
    audit::AuditLog,
    fleet::registry::{LiveTunnel, Registry},
    hop::Hops,
    trust::{Trust, TrustError},
};

/// How long a replica that drains waits for its agents to move to others.
const MOVE_WITHIN: Duration = Duration::from_secs(10);
/// How often a drain looks at what remains, and says so.
const DRAIN_LOOK: Duration = Duration::from_millis(50);
/// What is left after the grace gets this long to end by itself once it was told to.
const END_GRACE: Duration = Duration::from_secs(2);
/// Tries to find a port that is free for TCP and UDP.
const PORT_TRIES: usize = 20;

/// Why a gateway could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// What does not hold that must.
    #[error(transparent)]
    Checks(#[from] daemon::settings::BadFile),
    /// Certificates or CA.
    #[error(transparent)]
    Trust(#[from] TrustError),
    /// An issuer of users' tokens cannot be used.
    #[error(transparent)]
    Issuers(#[from] checks::IssuersError),
    /// The built-in issuer.
    #[error(transparent)]
    Issuer(#[from] issuer::IssuerError),
    /// The store of the resource API.
    #[error("cannot use the store of the resource API")]
    Store(#[from] store::StoreError),
    /// The key of protected settings.
    #[error("the key that protected settings are encrypted with ([api].store_key_file)")]
    Protect(#[from] store::protect::ProtectError),
    /// An address that cannot be listened on.
    #[error("cannot listen on {address} ({what})")]
    Listen {
        /// The listener's name.
        what: &'static str,
        /// The address that was to be listened on.
        address: SocketAddr,
        /// What the operating system reported.
        #[source]
        source: io::Error,
    },
    /// The audit file.
    #[error("{to}, where audit records go, cannot be opened")]
    Audit {
        /// Where the records were to go.
        to: AuditTo,
        /// What the operating system reported.
        #[source]
        source: io::Error,
    },
}

/// What a program hands in beside the configuration.
#[derive(Default)]
pub struct Extras {
    /// The phases; the gateway drains when this does.
    pub shutdown: Shutdown,
    /// Lets the admin listener change the log level.
    pub log_level: Option<LogLevel>,
    /// Tells the time to the resource API; none: the system's.
    pub clock: Option<Clock>,
    /// Tells for how long the machine has run, to the lease of a replica; none: the system's.
    pub uptime: Option<replicas::Uptime>,
    /// The built-in issuer. One that needs to know the port first is set later, with [`Handle::set_issuer`].
    pub issuer: Option<Arc<Issuer>>,
    /// How many files the process may open, from [`daemon::raise_open_files`]; `None`: as many as it likes.
    pub open_files: Option<u64>,
}

/// Addresses that are listened on; ports are known.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// Users, and agents over TCP.
    pub public: SocketAddr,
    /// Agents over QUIC.
    pub tunnel: SocketAddr,
    /// The admin listener.
    pub admin: SocketAddr,
    /// Other replicas, if this gateway is one of several.
    pub peers: Option<SocketAddr>,
}

/// A gateway whose listeners are bound. Nothing is served before [`Gateway::run`].
pub struct Gateway {
    core: Arc<Core>,
    reloader: Arc<Reloader>,
    public: TcpListener,
    quic: Arc<Listener>,
    admin: TcpListener,
    peers: Option<TcpListener>,
    addresses: Addresses,
    log_level: Option<LogLevel>,
    audit_tasks: TaskGroup,
    audit_shutdown: Shutdown,
}

/// A cloneable hold on a running gateway.
#[derive(Clone)]
pub struct Handle {
    core: Arc<Core>,
    reloader: Arc<Reloader>,
    addresses: Addresses,
}

impl Handle {
    /// The addresses that are listened on.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Reads the configuration file again. On an error the old one stays.
    pub async fn reload(&self) -> Result<(), ReloadError> {
        self.reloader.reload().await
    }

    /// Takes other clusters, issuers and grants.
    pub async fn replace(&self, dynamic: Dynamic) -> Result<(), ReloadError> {
        self.reloader.replace(dynamic).await
    }

    /// Serves the built-in issuer below `/.towline/issuer` from now on.
    pub fn set_issuer(&self, issuer: Arc<Issuer>) {
        self.core.snapshots.set_accounts(Arc::new(Accounts::of(Arc::clone(&issuer))));
        self.core.issuer.store(Some(issuer));
    }

    /// Begins to drain; [`Gateway::run`] ends when that is done.
    pub fn drain(&self) {
        self.core.shutdown.drain();
    }

    /// What the gateway's parts share, for tests.
    pub fn core(&self) -> &Arc<Core> {
        &self.core
    }
}

impl Gateway {
    /// Binds the listeners and reads certificates. Within a tokio runtime.
    ///
    /// # Errors
    /// [`BuildError::Checks`] for all that `check-config` finds, before anything is made; the others for what happened
    /// in between.
    pub async fn build(config: Config, extras: Extras) -> Result<Self, BuildError> {
        let looks = reload::first_looks(&config);
        checks::all(&config).await?;
        let trust = Arc::new(Trust::load(&config)?);
        let kept = open_store(&config).await?;
        let issuer = match extras.issuer {
            None => issuer_state::open(&config, kept.as_ref().map(|(store, _)| store)).await?,
            given => given,
        };
        let verifier = checks::verifier(&config.dynamic.issuers)?;
        let (audit_tasks, audit_shutdown) = (TaskGroup::new("audit"), Shutdown::new());
        let to = config.audit.clone();
        let replica = config.replicas.as_ref().map(|replicas| replicas.name.clone());
        let audit = AuditLog::open(&to, replica, &audit_tasks, &audit_shutdown).await;
        let audit = audit.map_err(|source| BuildError::Audit { to, source })?;
        let (public, udp) = bind_public(&config).await?;
        let admin_address = config.listen.admin;
        let admin = TcpListener::bind(admin_address).await.map_err(not_bound("admin", admin_address))?;
        let peers = match &config.replicas {
            Some(replicas) => {
                let listener = TcpListener::bind(replicas.listen).await;
                Some(listener.map_err(not_bound("replicas", replicas.listen))?)
            }
            None => None,
        };
        let addresses = Addresses {
            public: public.local_addr().map_err(not_bound("public", config.listen.public))?,
            tunnel: udp.local_addr().map_err(not_bound("tunnel", config.listen.public))?,
            admin: admin.local_addr().map_err(not_bound("admin", admin_address))?,
            peers: peers.as_ref().and_then(|listener| listener.local_addr().ok()),
        };
        let quic = Listener::bind(udp, trust.tunnel(), quic_options(&config, not_bound("tunnel", addresses.tunnel))?)
            .map_err(not_bound("tunnel", addresses.tunnel))?;
        let quic = Arc::new(quic);
        let metrics = Arc::new(Metrics::new());
        let admissions = Admissions::within(extras.open_files);
        let connections = admissions.connections(&config.limits);
        if connections < config.limits.connections {
            let (open_files, wanted) = (extras.open_files, config.limits.connections);
            tracing::warn!(
                open_files,
                connections,
                wanted,
                "the system allows too few open files for limits.connections"
            );
        }
        let first = Snapshot::new(&config.dynamic, verifier).trusting(trust.roots());
        let snapshots = Arc::new(Snapshots::new(first));
        if let Some(issuer) = &issuer {
            snapshots.set_accounts(Arc::new(Accounts::of(Arc::clone(issuer))));
        }
        let tunnels = Arc::default();
        let control = control(&config, kept, extras.clock, &snapshots, &tunnels).await?;
        if let Some(control) = &control {
            control.set_trust(Arc::clone(&trust));
            snapshots.load().warn_of_shadowed();
        }
        let replicas = config.replicas.clone().map(|settings| Arc::new(Replicas::new(settings, extras.uptime)));
        if let Some(replicas) = &replicas {
            metrics.replica_named(replicas.name());
        }
        if let Some(control) = &control {
            control.set_replicas(Arc::clone(&metrics), replicas.clone());
        }
        if let (Some(replicas), Some(control)) = (&replicas, &control) {
            replicas.set_fingerprint(control.fingerprint(&config));
        }
        let hops = replicas
            .as_ref()
            .map(|replicas| Arc::new(Hops::new(Arc::clone(replicas), Arc::clone(&trust), Arc::clone(&metrics))));
        let core = Arc::new(Core {
            told: Default::default(),
            agents: Default::default(),
            agent_streams: agents::tunnel::Exchanges::streams,
            snapshots,
            sessions: Sessions::new(Arc::clone(&metrics)),
            tunnels,
            control,
            slots: Arc::default(),
            bodies: Arc::default(),
            admissions,
            pace: Pace::new(tokio::runtime::Handle::current().metrics().num_workers()),
            unproven: Unproven::new(tokio::runtime::Handle::current().metrics().num_workers()),
            refusals: Refusals::new(Arc::clone(&audit), Arc::clone(&metrics)),
            audit,
            metrics,
            limits: arc_swap::ArcSwap::from_pointee(config.limits.clone()),
            names: trust.names().clone(),
            issuer: issuer.into(),
            tasks: TaskGroup::new("gateway"),
            shutdown: extras.shutdown.child(),
            trust,
            replicas,
            hops,
        });
        let reloader = Arc::new(Reloader::new(Arc::clone(&core), Arc::clone(&quic), config, looks));
        let log_level = extras.log_level;
        Ok(Self { core, reloader, public, quic, admin, peers, addresses, log_level, audit_tasks, audit_shutdown })
    }

    /// The addresses that are bound.
    pub fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// A hold on the gateway for while it runs.
    pub fn handle(&self) -> Handle {
        Handle { core: Arc::clone(&self.core), reloader: Arc::clone(&self.reloader), addresses: self.addresses }
    }

    /// Serves until told to drain, then drains and returns.
    pub async fn run(self) {
        let Self { core, reloader, public, quic, admin, peers, addresses, log_level, audit_tasks, audit_shutdown } =
            self;
        let tasks = core.tasks.clone();
        tasks.spawn("listen", listen::accept(Arc::clone(&core), public));
        tasks.spawn("quic", tunnels::accept::quic(Arc::clone(&core), Arc::clone(&quic)));
        if let (Some(hops), Some(listener)) = (&core.hops, peers) {
            tasks.spawn("peers", peers::accept::listen(Arc::clone(&core), Arc::clone(hops), listener));
            tasks.spawn("links", Arc::clone(hops).run(core.shutdown.clone()));
        }
        let sweeper = Arc::clone(&core.sessions).run(Arc::clone(&core.snapshots), core.shutdown.clone());
        tasks.spawn("sessions", sweeper);
        if let Some(issuer) = core.issuer.load_full() {
            tasks.spawn("issuer", issuer.follow(core.replicas.is_some(), core.shutdown.clone()));
        }
        tasks.spawn("accounts", snapshot::follow_accounts(Arc::clone(&core.snapshots), core.shutdown.clone()));
        tasks.spawn("reload", Arc::clone(&reloader).watch());
        if let Some(replicas) = &core.replicas {
            let spreading = tunnels::spread::Spread::default().run(
                Arc::clone(replicas),
                Arc::clone(&core.tunnels),
                core.shutdown.clone(),
            );
            tasks.spawn("spread", spreading);
        }
        if let Some(control) = &core.control {
            tasks.spawn("follow", Arc::clone(control).follow(core.shutdown.clone()));
            let seen = connectivity::keep(Arc::clone(control), Arc::clone(&core.tunnels), core.shutdown.clone());
            tasks.spawn("connectivity", seen);
            tasks.spawn("events", Arc::clone(control).tell(core.shutdown.clone()));
            for webhook in control.settings.webhooks.clone() {
                let (control, shutdown) = (Arc::clone(control), core.shutdown.clone());
                tasks.spawn("webhook", async move {
                    let name = format!("webhook/{}", webhook.name());
                    let told = || webhooks::run(Arc::clone(&control), webhook.clone(), shutdown.clone());
                    alone(&control.store, &name, &shutdown, told).await;
                });
            }
            tasks.spawn("operations", Arc::clone(control).work(WORKS, core.shutdown.clone()));
            let (planned, metrics, shutdown) = (Arc::clone(control), Arc::clone(&core.metrics), core.shutdown.clone());
            tasks.spawn("upgrades", async move {
                let upgrading = || upgrades::run(Arc::clone(&planned), Arc::clone(&metrics), shutdown.clone());
                alone(&planned.store, "upgrades", &shutdown, upgrading).await;
            });
            let rollouts = Rollouts::new(Arc::clone(&core.audit), Arc::clone(&core.metrics));
            tasks.spawn("rollouts", rollouts.run(Arc::clone(control), core.shutdown.clone()));
        }
        let keeper = keeper(&core);
        if let Some(keeper) = &keeper {
            tasks.spawn("replicas", Arc::clone(keeper).run(core.shutdown.clone()));
        }
        tasks.spawn("keys", reload::keep_keys_fresh(Arc::clone(&core)));
        let router = admin::router(Arc::clone(&core), reloader, log_level, addresses.admin);
        tasks.spawn("admin", daemon::admin::serve(admin, TowerToHyperService::new(router)));
        tracing::info!(
            public = %addresses.public,
            tunnel = %addresses.tunnel,
            admin = %addresses.admin,
            clusters = core.snapshots.load().cluster_count(),
            "gateway serves"
        );
        core.shutdown.draining().await;
        drain(&core).await;
        core.shutdown.close();
        quiet(END_GRACE, || core.metrics.tunnels_open()).await;
        if let Some(keeper) = &keeper {
            keeper.leave().await;
        }
        quic.close().await;
        tasks.abort();
        // A panic was logged where it happened.
        let _ = tasks.join().await;
        if let Some(control) = &core.control {
            control.store.close().await;
        }
        core.audit.finish(core.refusals.take_untold()).await;
        audit_shutdown.close();
        let _ = audit_tasks.join().await;
        tracing::info!("gateway stopped");
    }
}

/// Opens the store, if there is a resource API, and reads its key.
async fn open_store(config: &Config) -> Result<Option<(Store, Protector)>, BuildError> {
    let Some(settings) = &config.api else { return Ok(None) };
    let url = settings.store.url();
    // The key before what it protects: with a store there was a key, and another is never made beside it.
    let protector = match Store::found(&url).await? {
        Found::Nothing => Protector::open_or_create(&settings.store_key_file)?,
        Found::Store => Protector::open(&settings.store_key_file)?,
    };
    let store = Store::open(&url).await?;
    let exchanged = match Store::exchanged(&url, &protector, &settings.store_key_file).await? {
        None => store.keep_key(&protector, &settings.store_key_file).await?,
        exchanged => exchanged,
    };
    match exchanged {
        Some(exchanged) => Err(exchanged.into()),
        None => Ok(Some((store, protector))),
    }
}

/// What is in memory of the store, if there is a resource API.
async fn control(
    config: &Config,
    kept: Option<(Store, Protector)>,
    clock: Option<Clock>,
    snapshots: &Arc<Snapshots>,
    tunnels: &Arc<Registry>,
) -> Result<Option<Arc<Control>>, BuildError> {
    let (Some(settings), Some((store, protector))) = (config.api.clone(), kept) else { return Ok(None) };
    let clock = clock.unwrap_or_else(|| Arc::new(SystemTime::now));
    let (snapshots, tunnels, kinds) = (Arc::clone(snapshots), Arc::clone(tunnels), resources::for_control());
    Ok(Some(Control::open(Parts { settings, store, protector, clock, snapshots, tunnels, kinds }).await?))
}

/// What completes when there are links to other replicas.
fn linked(hops: Option<Arc<Hops>>) -> Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync> {
    Arc::new(move || {
        let hops = hops.clone();
        Box::pin(async move {
            if let Some(hops) = hops {
                hops.linked().await;
            }
        })
    })
}

/// Keeps the lease of a replica.
fn keeper(core: &Core) -> Option<Arc<Keeper>> {
    let (control, replicas) = core.control.as_ref().zip(core.replicas.as_ref())?;
    Some(Arc::new(Keeper {
        replicas: Arc::clone(replicas),
        store: control.store.clone(),
        tunnels: Arc::clone(&core.tunnels),
        known: control.revisions(),
        metrics: Arc::clone(&core.metrics),
        sessions: Arc::clone(&core.sessions),
        statements: Arc::default(),
        read_anew: read_anew(Arc::clone(control)),
        linked: linked(core.hops.clone()),
    }))
}

fn read_anew(control: Arc<Control>) -> Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync> {
    Arc::new(move || {
        let control = Arc::clone(&control);
        Box::pin(async move { control.read_anew().await })
    })
}

/// Waits until the agents that have tunnels here take no more streams on them, and have a tunnel to another replica, or
/// for [`MOVE_WITHIN`]. Until then others hand on to this one what users ask of their clusters.
async fn moved(core: &Core) {
    let Some(hops) = &core.hops else { return };
    let users = |tunnel: &LiveTunnel| !tunnel.handle.info().features.contains(Features::NO_USERS);
    let here: HashSet<ClusterKey> =
        core.tunnels.all().iter().filter(|tunnel| users(tunnel)).map(|tunnel| tunnel.cluster.key).collect();
    let stays = |key: &&ClusterKey| {
        let own = core.tunnels.of(key);
        own.iter().any(|tunnel| !tunnel.is_draining()) || hops.replicas.holders(key).is_empty()
    };
    let left = || match hops.replicas.others().is_empty() {
        true => 0,
        false => i64::try_from(here.iter().filter(stays).count()).unwrap_or(i64::MAX),
    };
    quiet(core.limits().drain_grace.min(MOVE_WITHIN), left).await;
    if left() > 0 {
        tracing::warn!(clusters = left(), "agents have not moved to other replicas in time");
    }
    hops.leave();
}

/// Readiness is off and listeners are closed by the phase; agents and users were told. What is left is to wait.
async fn drain(core: &Core) {
    let begun = tokio::time::Instant::now();
    let moving = tokio::select! {
        biased;
        () = core.shutdown.closed() => false,
        () = moved(core) => true,
    };
    if !moving {
        tracing::warn!("stopped before all agents have moved");
    }
    // What other replicas have handed to this one is waited for, too.
    let left = || core.metrics.requests.now() + core.metrics.hops.now();
    tracing::info!(requests = left(), tunnels = core.metrics.tunnels_open(), "draining");
    let grace = core.limits().drain_grace;
    let wait = quiet(grace.saturating_sub(begun.elapsed()), left);
    tokio::select! {
        biased;
        () = core.shutdown.closed() => tracing::warn!(requests = left(), "stopped while draining"),
        () = wait => {}
    }
    if left() > 0 {
        tracing::warn!(requests = left(), "the grace is over; ending what is left");
        core.sessions.end_all(EndReason::Shutdown);
        quiet(END_GRACE, left).await;
    }
    tracing::info!(requests = left(), connections = core.metrics.connections.now(), "drained");
}

/// Waits until `left` is 0, at most for `longest`.
async fn quiet(longest: Duration, left: impl Fn() -> i64) {
    let deadline = tokio::time::Instant::now() + longest;
    let mut said = left();
    while left() > 0 && tokio::time::Instant::now() < deadline {
        tokio::time::sleep(DRAIN_LOOK).await;
        if left() != said {
            said = left();
            tracing::debug!(left = said, "waiting");
        }
    }
}

/// With a reset secret that outlives a restart: agents then learn at once that this process does not know them.
/// Of several replicas with one TLS key each has a secret of its own: a balancer may send one a packet of another's
/// connection, which it must not reset.
fn quic_options(config: &Config, failed: impl FnOnce(io::Error) -> BuildError) -> Result<QuicOptions, BuildError> {
    let key = std::fs::read(&config.tls.key_file).map_err(failed)?;
    let secret = ResetSecret::derive(&key);
    let secret = match &config.replicas {
        Some(replicas) => secret.of_replica(&replicas.name),
        None => secret,
    };
    Ok(QuicOptions { reset_secret: Some(secret), ..QuicOptions::default() })
}

fn not_bound(what: &'static str, address: SocketAddr) -> impl FnOnce(io::Error) -> BuildError {
    move |source| BuildError::Listen { what, address, source }
}

/// TCP and UDP, on one port unless `tunnel` names another.
async fn bind_public(config: &Config) -> Result<(TcpListener, UdpSocket), BuildError> {
    let address = config.listen.public;
    let mut tries = 0;
    loop {
        let tcp = TcpListener::bind(address).await.map_err(not_bound("public", address))?;
        let port = tcp.local_addr().map_err(not_bound("public", address))?.port();
        let udp_address = config.listen.tunnel.unwrap_or(SocketAddr::new(address.ip(), port));
        match UdpSocket::bind(udp_address) {
            Ok(udp) => return Ok((tcp, udp)),
            // The system chose a port that is taken for UDP; the next one may not be.
            Err(_) if address.port() == 0 && config.listen.tunnel.is_none() && tries < PORT_TRIES => tries += 1,
            Err(error) => return Err(not_bound("tunnel", udp_address)(error)),
        }
    }
}
