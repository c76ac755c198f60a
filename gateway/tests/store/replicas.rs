//! Several gateways on one database: leases, tunnels of others, confirmed writes, and a database that goes away.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use daemon::Shutdown;
use gateway::{
    Extras, Gateway, Handle,
    cluster::{Cluster, ClusterRef, Named},
    config::{Config, replicas::Replicas as Settings},
    control::confirming,
    fleet::registry::{Registered, Registry},
    init::{self, Plan},
    lost::{self, LostError},
    metrics::Metrics,
    replicas::{LEASE, Replicas, holders::Count, keep::Keeper},
    sessions::Sessions,
    store::{
        StoreError,
        batch::{Batch, Expect},
        protect::Protector,
        replicas::{Ear, Held, Line, Row, Start, TUNNELS_AT_ONCE, Told, Unrenewed},
    },
};
use tokio::{
    net::{UnixListener, UnixStream},
    sync::watch,
    task::{JoinHandle, JoinSet},
};
use tunnel::transport::{TunnelHandle, memory};
use types::ids::{ClusterId, ClusterKey};

use crate::place::{Place, cluster, group};

pub fn tests() -> Vec<(&'static str, crate::Test)> {
    crate::tests![
        t12_a_lease_is_of_the_last_start_of_its_name,
        t12_a_replica_goes_on_for_as_long_as_its_row_says,
        t12_settings_in_a_row_are_those_of_its_start,
        t12_tunnels_are_read_by_pages_and_then_only_what_has_changed,
        t12_what_ended_is_swept_and_what_left_is_gone_at_once,
        t12_what_one_replica_writes_the_others_hear,
        t12_a_change_of_shared_documents_is_heard,
        t7_each_replica_knows_the_tunnels_of_the_others,
        t12_an_idle_replica_sends_one_statement_for_each_renewal,
        t12_the_earlier_of_two_with_one_name_is_fenced_at_once,
        t12_a_superseded_replica_has_its_name_again_once_the_other_has_ended,
        t12_a_write_names_the_replicas_that_have_not_confirmed_it,
        t12_a_step_of_the_databases_clock_hides_no_replica_that_goes_on,
        t12_a_replica_that_ended_before_a_start_is_named_and_not_waited_for,
        t12_a_database_without_the_last_writes_is_read_anew,
        t12_tunnels_that_the_database_lost_are_written_again,
        t12_a_replica_without_its_database_is_fenced_until_it_is_back,
        t12_a_key_of_the_store_is_replaced_while_no_replica_has_it,
        t12_replicas_notice_settings_in_which_they_differ,
    ]
}

/// Slow, and nothing fails: figures for docs/measurements, with `--ignored`.
pub fn figures() -> Vec<(&'static str, crate::Test)> {
    crate::tests![leases_of_100000_tunnels]
}

/// Nothing in a test may take longer.
const LONG: Duration = Duration::from_secs(60);

/// Waits until something holds.
async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    let mut look = tokio::time::interval(Duration::from_millis(10));
    while !holds() {
        assert!(begun.elapsed() < LONG, "{what}: not within {LONG:?}");
        look.tick().await;
    }
}

/// Waits until so many clusters have a tunnel in the database.
async fn until_written(place: &Place, clusters: usize) {
    let begun = Instant::now();
    let mut look = tokio::time::interval(Duration::from_millis(50));
    while place.texts("SELECT cluster_key FROM tunnels WHERE takes_users + takes_none > 0").await.len() != clusters {
        assert!(begun.elapsed() < LONG, "{clusters} clusters with a tunnel: not within {LONG:?}");
        look.tick().await;
    }
}

fn id(name: &str) -> ClusterId {
    format!("/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/{name}")
        .parse()
        .unwrap()
}

fn key(name: &str) -> ClusterKey {
    id(name).key()
}

/// What replicas say that tests play.
const STALE_FOR: Duration = Duration::from_secs(20);

fn held(name: &str, users: u16, changed: i64) -> Held {
    Held { key: key(name), users, others: 0, changed }
}

fn start(name: &str, generation: i64) -> Start<'_> {
    Start { name, generation }
}

async fn t12_a_lease_is_of_the_last_start_of_its_name(place: Place) {
    place.open().await.close().await;
    let (mut first, mut second) = (Line::new(&place.address()).unwrap(), Line::new(&place.address()).unwrap());
    let one = first.join("a", "10.0.0.1:8444", "1", STALE_FOR).await.unwrap();
    assert!(first.write_tunnels(start("a", one), 0, &[held("x", 1, 1)]).await.unwrap());
    let renewal = first.renew(start("a", one), 7, LEASE).await.unwrap();
    assert!(renewal.renewed && renewal.rows[0].alive && renewal.rows[0].changed == 1, "{renewal:?}");

    let two = second.join("a", "10.0.0.2:8444", "2", STALE_FOR).await.unwrap();
    assert!(two > one);
    let renewal = first.renew(start("a", one), 8, LEASE).await.unwrap();
    assert!(!renewal.renewed && renewal.rows[0].generation == two, "{renewal:?}");
    assert!(!first.write_tunnels(start("a", one), 0, &[held("y", 1, 2)]).await.unwrap());
    assert_eq!(second.tunnels(start("a", two), 0).await.unwrap(), [], "what the first start had is gone");
    let row = second.renew(start("a", two), 9, LEASE).await.unwrap().rows.remove(0);
    assert_eq!((row.address.as_str(), row.version.as_str(), row.applied), ("10.0.0.2:8444", "2", 0));
    first.leave(start("a", one)).await.unwrap();
    assert!(second.renew(start("a", two), 9, LEASE).await.unwrap().renewed, "nobody gives back another's lease");
}

/// A replica judged by its own setting how long others go on.
async fn t12_a_replica_goes_on_for_as_long_as_its_row_says(place: Place) {
    let store = place.open().await;
    let mut line = Line::new(&place.address()).unwrap();
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    let a = line.join("a", "a:1", "1", minutes(10)).await.unwrap();
    let rows = line.renew(start("a", a), 0, LEASE).await.unwrap().rows;
    assert_eq!(rows[0].stale_for, Some(minutes(10)));
    let a = line.join("a", "a:1", "1", minutes(30)).await.unwrap();
    line.join("b", "b:1", "1", Duration::ZERO).await.unwrap();
    place.sql("UPDATE replicas SET renewed_ms = renewed_ms - 1200000").await;
    let serve = async |unknown| {
        let rows = store.applied_by_replicas(LEASE, unknown).await.unwrap();
        rows.into_iter().map(|row| (row.stale_for, row.serves)).collect::<Vec<_>>()
    };
    for unknown in [Duration::ZERO, minutes(60)] {
        assert_eq!(serve(unknown).await, [(Some(minutes(30)), true), (Some(Duration::ZERO), false)]);
    }
    // A program that does not know the columns starts under the name.
    place.sql("UPDATE replicas SET generation = generation + 1 WHERE name = 'a'").await;
    assert_eq!(serve(Duration::ZERO).await[0], (None, false));
    assert_eq!(serve(minutes(60)).await[0], (None, true));
    assert_eq!(line.renew(start("a", a + 1), 0, LEASE).await.unwrap().rows[0].stale_for, None);
    store.close().await;
}

async fn t12_settings_in_a_row_are_those_of_its_start(place: Place) {
    let store = place.open().await;
    let mut line = Line::new(&place.address()).unwrap();
    let a = line.join("a", "a:1", "1", STALE_FOR).await.unwrap();
    let mut told =
        async |generation| line.renew(start("a", generation), 0, LEASE).await.unwrap().rows.remove(0).settings;
    assert_eq!(told(a).await, None);
    let mut other = Line::new(&place.address()).unwrap();
    for settings in ["one", "two"] {
        other.write_settings(start("a", a), settings).await.unwrap();
        assert_eq!(told(a).await.as_deref(), Some(settings));
        assert_eq!(store.replicas_overview(LEASE).await.unwrap().rows[0].settings.as_deref(), Some(settings));
    }
    let b = other.join("a", "a:1", "1", STALE_FOR).await.unwrap();
    other.write_settings(start("a", a), "of the start before").await.unwrap();
    assert_eq!(told(b).await, None);
    other.write_settings(start("a", b), "three").await.unwrap();
    // A program that does not know the columns starts under the name.
    place.sql("UPDATE replicas SET generation = generation + 1").await;
    assert_eq!(told(b + 1).await, None);
    assert_eq!(store.replicas_overview(LEASE).await.unwrap().rows[0].settings, None);
    store.close().await;
}

async fn t12_tunnels_are_read_by_pages_and_then_only_what_has_changed(place: Place) {
    place.open().await.close().await;
    let mut line = Line::new(&place.address()).unwrap();
    let generation = line.join("a", "a:1", "1", STALE_FOR).await.unwrap();
    let own = start("a", generation);
    let many = i64::from(TUNNELS_AT_ONCE) + 5;
    let all: Vec<Held> = (1..=many).map(|n| held(&format!("c{n}"), 1, n)).collect();
    for some in all.chunks(TUNNELS_AT_ONCE as usize) {
        assert!(line.write_tunnels(own, 0, some).await.unwrap());
    }
    let first = line.tunnels(own, 0).await.unwrap();
    assert_eq!(first, all[..TUNNELS_AT_ONCE as usize]);
    assert_eq!(line.tunnels(own, first.last().unwrap().changed).await.unwrap().len(), 5);
    // One goes, one has another: both are under new numbers, and nothing else is told again.
    let news = [held("c1", 0, many + 1), held("c2", 3, many + 2)];
    assert!(line.write_tunnels(own, 0, &news).await.unwrap());
    assert_eq!(line.tunnels(own, many).await.unwrap(), news);
    line.forget_tunnels(own, many + 1).await.unwrap();
    assert_eq!(line.tunnels(own, many).await.unwrap(), news[1..]);
    assert_eq!(line.renew(own, 0, LEASE).await.unwrap().rows[0].forgotten, many + 1);
    assert_eq!(line.tunnels(start("a", generation + 1), 0).await.unwrap(), [], "of another start");
}

async fn t12_what_ended_is_swept_and_what_left_is_gone_at_once(place: Place) {
    place.open().await.close().await;
    let mut line = Line::new(&place.address()).unwrap();
    let a = line.join("a", "a:1", "1", STALE_FOR).await.unwrap();
    let b = line.join("b", "b:1", "1", STALE_FOR).await.unwrap();
    assert!(line.write_tunnels(start("b", b), 0, &[held("x", 1, 1)]).await.unwrap());
    place.sql("UPDATE replicas SET renewed_ms = renewed_ms - 60000 WHERE name = 'b'").await;
    let rows = line.renew(start("a", a), 0, LEASE).await.unwrap().rows;
    assert_eq!(rows.iter().map(|row| row.alive).collect::<Vec<_>>(), [true, false]);
    let old = |row: &Row, renewed_ms| Unrenewed { name: row.name.clone(), generation: row.generation, renewed_ms };
    line.sweep(&[old(&rows[1], rows[1].renewed_ms - 1)]).await.unwrap();
    assert_eq!(line.renew(start("a", a), 0, LEASE).await.unwrap().rows.len(), 2, "it was renewed meanwhile");
    line.sweep(&[old(&rows[1], rows[1].renewed_ms)]).await.unwrap();
    assert_eq!(line.renew(start("a", a), 0, LEASE).await.unwrap().rows.len(), 1);
    assert_eq!(place.texts("SELECT replica FROM tunnels").await, Vec::<String>::new());
    assert!(!line.renew(start("b", b), 0, LEASE).await.unwrap().renewed, "it has to begin anew");
    line.leave(start("a", a)).await.unwrap();
    assert_eq!(place.texts("SELECT name FROM replicas").await, Vec::<String>::new());
}

async fn t12_what_one_replica_writes_the_others_hear(place: Place) {
    let store = place.open().await;
    let mut ear = Ear::open(&place.address()).await.unwrap();
    let revision = store.put(&group("g"), Expect::Absent).await.unwrap().unwrap();
    assert_eq!(ear.hear().await.unwrap(), Told::Revision(revision));
    // What does not happen is not told.
    store.put(&group("g"), Expect::Absent).await.unwrap().unwrap_err();
    let mut line = Line::new(&place.address()).unwrap();
    let generation = line.join("a", "a:1", "1", STALE_FOR).await.unwrap();
    assert_eq!(ear.hear().await.unwrap(), Told::Look);
    line.tell(start("a", generation), 0, revision).await.unwrap();
    let told = Told::Replica { name: "a".to_owned(), generation, changed: 0, applied: revision };
    assert_eq!(ear.hear().await.unwrap(), told);
}

/// A replica that a test plays: all but its listeners.
struct Played {
    keeper: Arc<Keeper>,
    /// Ends what follows it once it is dropped.
    _applied: watch::Sender<i64>,
    shutdown: Shutdown,
    running: JoinHandle<()>,
    /// Tunnels that are up, with their agents' ends.
    up: Vec<(Registered, TunnelHandle)>,
}

impl Played {
    async fn start(place: &Place, name: &str) -> Self {
        let store = place.open().await;
        let settings = Settings {
            name: name.to_owned(),
            listen: "127.0.0.1:0".parse().unwrap(),
            address: Some(format!("{name}:8444")),
            stale_for: Duration::ZERO,
        };
        let metrics = Arc::new(Metrics::new());
        let applied = watch::Sender::new(store.revision().await.unwrap());
        let keeper = Arc::new(Keeper {
            replicas: Arc::new(Replicas::new(settings, None)),
            store,
            tunnels: Arc::<Registry>::default(),
            known: applied.subscribe(),
            sessions: Sessions::new(Arc::clone(&metrics)),
            metrics,
            statements: Arc::default(),
            read_anew: Arc::new(|| Box::pin(async {})),
            linked: Arc::new(|| Box::pin(async {})),
        });
        let shutdown = Shutdown::new();
        let running = tokio::spawn(Arc::clone(&keeper).run(shutdown.clone()));
        let this = Self { keeper, _applied: applied, shutdown, running, up: Vec::new() };
        until("it has a lease", || this.replicas().admits()).await;
        this
    }

    fn replicas(&self) -> &Arc<Replicas> {
        &self.keeper.replicas
    }

    async fn connect(&mut self, name: &str) {
        let cluster: ClusterRef = Cluster::new(id(name));
        let (gateway, agent) = memory::pair().await;
        self.up.push((self.keeper.tunnels.add(gateway, cluster, Named::default(), None), agent));
    }

    async fn stop(self) {
        self.shutdown.close();
        self.running.await.unwrap();
        self.keeper.leave().await;
    }
}

fn names(replicas: &[Arc<gateway::replicas::Replica>]) -> Vec<String> {
    replicas.iter().map(|replica| replica.name.clone()).collect()
}

async fn t12_a_change_of_shared_documents_is_heard(place: Place) {
    let mut ear = Ear::open(&place.address()).await.unwrap();
    let (writer, played) = (place.open().await, Played::start(&place, "a").await);
    let change = |_: Option<&[u8]>| Ok::<_, StoreError>((Some(b"sealed".to_vec()), ()));
    writer.change_document("issuer/users", change).await.unwrap();
    while ear.hear().await.unwrap() != Told::Documents {}
    played.keeper.store.documents_change().await;
    played.stop().await;
}

async fn t7_each_replica_knows_the_tunnels_of_the_others(place: Place) {
    let mut a = Played::start(&place, "a").await;
    a.connect("before").await;
    let mut b = Played::start(&place, "b").await;
    let holders = |of: &Played, name: &str| names(&of.replicas().holders(&key(name)));
    assert_eq!(names(&b.replicas().others()), ["a"]);
    until("b knows what a had before", || holders(&b, "before") == ["a"]).await;
    b.connect("x").await;
    a.connect("x").await;
    until("each knows the other's", || holders(&a, "x") == ["b"] && holders(&b, "x") == ["a"]).await;
    b.connect("x").await;
    until("two of b's", || a.replicas().tunnels_elsewhere(&key("x")) == 2).await;
    b.up.clear();
    until("none of b's", || holders(&a, "x").is_empty() && a.replicas().tunnels_elsewhere(&key("x")) == 0).await;

    // By the database's clock the lease of b has ended; it renews it, and still has what it had.
    b.connect("x").await;
    until("b's again", || holders(&a, "x") == ["b"]).await;
    place.sql("UPDATE replicas SET renewed_ms = renewed_ms - 60000 WHERE name = 'b'").await;
    until("b is alive", || holders(&a, "x") == ["b"]).await;

    // Its row is deleted: it takes another lease, and writes all that it has again.
    place.sql("DELETE FROM tunnels WHERE replica = 'b'; DELETE FROM replicas WHERE name = 'b'").await;
    let before = b.replicas().generation();
    until("b has another lease", || b.replicas().generation() > before).await;
    until("a knows what b has", || holders(&a, "x") == ["b"]).await;

    b.stop().await;
    until("b has left", || a.replicas().others().is_empty() && a.replicas().clusters_elsewhere() == 0).await;
    a.stop().await;
}

async fn t12_an_idle_replica_sends_one_statement_for_each_renewal(place: Place) {
    let mut a = Played::start(&place, "a").await;
    let b = Played::start(&place, "b").await;
    a.connect("x").await;
    until("b knows it", || b.replicas().holders(&key("x")).len() == 1).await;
    let store = place.open().await;
    let renewed = async || {
        let rows = store.replicas_overview(LEASE).await.unwrap().rows;
        rows.into_iter().find(|row| row.name == "a").unwrap().renewed_ms
    };
    // What began before has ended with the next renewal.
    let begun = renewed().await;
    while renewed().await == begun {}
    let (before, mut last, mut renewals) = (a.keeper.statements.load(Ordering::SeqCst), renewed().await, 0);
    while renewals < 3 {
        let now = renewed().await;
        renewals += u64::from(now != last);
        last = now;
    }
    let sent = a.keeper.statements.load(Ordering::SeqCst) - before;
    assert!(sent <= renewals + 1, "{sent} statements in {renewals} renewals");
    a.stop().await;
    b.stop().await;
}

async fn t12_the_earlier_of_two_with_one_name_is_fenced_at_once(place: Place) {
    let first = Played::start(&place, "a").await;
    let second = Played::start(&place, "a").await;
    until("the first is fenced", || first.replicas().is_superseded() && !first.replicas().admits()).await;
    assert!(second.replicas().admits() && second.replicas().others().is_empty());
    first.stop().await;
    assert_eq!(place.texts("SELECT name FROM replicas").await, ["a"], "the lease is the second's");
    second.stop().await;
}

async fn t12_a_superseded_replica_has_its_name_again_once_the_other_has_ended(place: Place) {
    let first = Played::start(&place, "a").await;
    let second = Played::start(&place, "a").await;
    until("the first is fenced", || first.replicas().is_superseded() && !first.replicas().admits()).await;
    let taken = second.replicas().generation();
    second.stop().await;
    until("the first admits again", || first.replicas().admits()).await;
    assert!(!first.replicas().is_superseded() && first.replicas().generation() > taken);
    first.stop().await;
}

/// Carries connections to the server's socket until they are cut.
struct Cable {
    folder: tempfile::TempDir,
    server: PathBuf,
    carrying: Option<JoinHandle<()>>,
}

impl Cable {
    const SOCKET: &str = ".s.PGSQL.5432";

    fn new(place: &Place) -> Self {
        let host = place.url.split("host=").nth(1).unwrap().split('&').next().unwrap().replace("%2F", "/");
        let folder = tempfile::tempdir().unwrap();
        let mut this = Self { folder, server: Path::new(&host).join(Self::SOCKET), carrying: None };
        this.mend();
        this
    }

    fn url(&self, place: &Place) -> String {
        let host = self.folder.path().to_str().unwrap().replace('/', "%2F");
        let (before, rest) = place.url.split_once("host=").unwrap();
        format!("{before}host={host}&{}", rest.split_once('&').unwrap().1)
    }

    fn mend(&mut self) {
        let socket = self.folder.path().join(Self::SOCKET);
        let _ = std::fs::remove_file(&socket);
        let (listener, server) = (UnixListener::bind(socket).unwrap(), self.server.clone());
        self.carrying = Some(tokio::spawn(async move {
            // Connections end with this task.
            let mut carried = JoinSet::new();
            loop {
                let (mut near, _) = listener.accept().await.unwrap();
                let mut far = UnixStream::connect(&server).await.unwrap();
                carried.spawn(async move { tokio::io::copy_bidirectional(&mut near, &mut far).await });
            }
        }));
    }

    async fn cut(&mut self) {
        let carrying = self.carrying.take().unwrap();
        carrying.abort();
        let _ = carrying.await;
    }
}

/// A whole gateway on the database, with files of its own.
struct Whole {
    gateway: Handle,
    running: JoinHandle<()>,
}

impl Whole {
    async fn start(folder: &Path, name: &str, url: &str, uptime: Option<gateway::replicas::Uptime>) -> Self {
        if !folder.join("gateway.toml").exists() {
            let listen = "127.0.0.1:0".parse().unwrap();
            let url = "https://gateway.example.org:8443".to_owned();
            let plan = Plan { directory: folder.join("made"), url, listen, admin: listen, certificate: None };
            init::init(&plan).unwrap();
            for entry in std::fs::read_dir(folder.join("made")).unwrap() {
                let entry = entry.unwrap();
                std::fs::rename(entry.path(), folder.join(entry.file_name())).unwrap();
            }
        }
        let made = std::fs::read_to_string(folder.join("gateway.toml")).unwrap();
        let made = made.replace(folder.join("made").to_str().unwrap(), folder.to_str().unwrap());
        let at = made.lines().find(|line| line.starts_with("store_file")).unwrap();
        let address = folder.join(format!("{name}.url"));
        private(&address, url);
        let text = made.replace(at, &format!("postgres_url_file = \"{name}.url\""));
        let text = format!("{text}\n[replicas]\nname = \"{name}\"\nlisten = \"127.0.0.1:0\"\nstale_for = \"20s\"\n");
        let file = folder.join(format!("{name}.toml"));
        std::fs::write(&file, text).unwrap();
        let extras = Extras { uptime, ..Extras::default() };
        let gateway = Gateway::build(Config::load(&file).unwrap(), extras).await.unwrap();
        let handle = gateway.handle();
        let this = Self { gateway: handle, running: tokio::spawn(gateway.run()) };
        until("it admits", || this.replicas().admits() && this.replicas().is_listening()).await;
        this
    }

    fn replicas(&self) -> &Arc<Replicas> {
        self.gateway.core().replicas.as_ref().unwrap()
    }

    fn control(&self) -> &Arc<gateway::control::Control> {
        self.gateway.core().control.as_ref().unwrap()
    }

    fn revision(&self) -> i64 {
        *self.control().revisions().borrow()
    }

    async fn stop(self) {
        self.gateway.drain();
        tokio::time::timeout(LONG, self.running).await.unwrap().unwrap();
    }
}

fn private(path: &Path, text: &str) {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};
    let made = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    made.unwrap().write_all(text.as_bytes()).unwrap();
}

fn puts(name: &str) -> Batch {
    Batch { puts: vec![(group(name), Expect::Any)], ..Batch::default() }
}

/// The database's clock, which a test puts forward and back, and the uptime of one gateway, which goes on by itself.
struct Clocks {
    uptime_ms: Arc<AtomicU64>,
}

impl Clocks {
    /// For connections that are made from now on: PostgreSQL looks for functions in its own schema last there.
    async fn new(place: &Place) -> Self {
        place
            .sql(
                "CREATE TABLE stepped (\"by\" interval NOT NULL); INSERT INTO stepped VALUES ('0'); \
                 CREATE FUNCTION clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE \
                 AS 'SELECT pg_catalog.clock_timestamp() + \"by\" FROM public.stepped'; \
                 DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = public, pg_catalog', \
                 current_database()); END $$",
            )
            .await;
        Self { uptime_ms: Arc::new(AtomicU64::new(1_000_000)) }
    }

    fn uptime(&self) -> gateway::replicas::Uptime {
        let now = Arc::clone(&self.uptime_ms);
        Arc::new(move || Duration::from_millis(now.load(Ordering::SeqCst)))
    }

    async fn step(&self, place: &Place, seconds: i32) {
        place.sql(&format!("UPDATE stepped SET \"by\" = \"by\" + interval '{seconds} seconds'")).await;
    }

    /// Waits until a gateway has seen the last renewal of the only other one, which is cut off from the database.
    async fn until_seen(place: &Place, gateway: &Whole) {
        let begun = Instant::now();
        let mut look = tokio::time::interval(Duration::from_millis(10));
        loop {
            let rows = place.texts("SELECT renewed_ms::text FROM replicas WHERE name = 'b'").await;
            let seen = gateway.replicas().unrenewed(|_| Duration::ZERO);
            if seen.iter().map(|row| row.renewed_ms.to_string()).eq(rows) {
                return;
            }
            assert!(begun.elapsed() < LONG, "the last renewal is not seen within {LONG:?}: {seen:?}");
            look.tick().await;
        }
    }

    async fn pass(&self, place: &Place, seconds: u16) {
        self.uptime_ms.fetch_add(u64::from(seconds) * 1000, Ordering::SeqCst);
        self.step(place, seconds.into()).await;
    }
}

/// A replica that cannot reach the database goes on with what it knows. Its row looked old after a step of the database's
/// clock, and a withdrawal was said to be confirmed.
async fn t12_a_step_of_the_databases_clock_hides_no_replica_that_goes_on(place: Place) {
    let folder = tempfile::tempdir().unwrap();
    let (mut cable, clocks) = (Cable::new(&place), Clocks::new(&place).await);
    let a = Whole::start(folder.path(), "a", &place.url, Some(clocks.uptime())).await;
    let b = Whole::start(folder.path(), "b", &cable.url(&place), None).await;
    let (_, unconfirmed) = confirming(a.control().write(&puts("g"))).await;
    assert!(unconfirmed.is_empty(), "{unconfirmed:?}");
    // What reaches every replica is confirmed right after a step, too.
    clocks.step(&place, 3600).await;
    let (_, unconfirmed) = confirming(a.control().write(&puts("h"))).await;
    assert!(unconfirmed.is_empty(), "{unconfirmed:?}");
    cable.cut().await;
    for (name, seconds) in [("i", 3600), ("j", -7200), ("k", -7200)] {
        clocks.step(&place, seconds).await;
        let (_, unconfirmed) = confirming(a.control().write(&puts(name))).await;
        assert_eq!(unconfirmed.into_iter().collect::<Vec<_>>(), ["b"], "after a step of {seconds} s");
    }
    // Its lease has ended, and it goes on for 20 s.
    Clocks::until_seen(&place, &a).await;
    clocks.pass(&place, 29).await;
    let (_, unconfirmed) = confirming(a.control().write(&puts("l"))).await;
    assert_eq!(unconfirmed.into_iter().collect::<Vec<_>>(), ["b"]);
    clocks.pass(&place, 1).await;
    let (_, unconfirmed) = confirming(a.control().write(&puts("m"))).await;
    assert!(unconfirmed.is_empty(), "{unconfirmed:?}: it is fenced by now");
    cable.mend();
    until("a sees b", || names(&a.replicas().others()) == ["b"]).await;
    b.stop().await;
    until("b has left", || a.replicas().others().is_empty()).await;
    a.stop().await;
}

/// For the 10 s of a lease after a start each write waited 2 s for the row of a replica that had ended long ago.
async fn t12_a_replica_that_ended_before_a_start_is_named_and_not_waited_for(place: Place) {
    let folder = tempfile::tempdir().unwrap();
    let clocks = Clocks::new(&place).await;
    Whole::start(folder.path(), "a", &place.url, None).await.stop().await;
    let mut line = Line::new(&place.address()).unwrap();
    line.join("dead", "dead:8444", "1", STALE_FOR).await.unwrap();
    place.sql("UPDATE replicas SET renewed_ms = renewed_ms - 3600000").await;
    let a = Whole::start(folder.path(), "a", &place.url, Some(clocks.uptime())).await;
    let revision = a.control().write(&puts("g")).await.unwrap().unwrap();
    let waited = async |deadline: tokio::time::Instant| {
        let names = a.replicas().unconfirmed(&a.control().store, revision, deadline).await;
        (names, tokio::time::Instant::now() >= deadline)
    };
    // It might be the database's clock that was put forward: it is named until it would be fenced.
    let far = || tokio::time::Instant::now() + LONG;
    assert_eq!(waited(far()).await, (vec!["dead".to_owned()], false));
    clocks.pass(&place, 31).await;
    assert_eq!(waited(far()).await, (Vec::new(), false));
    // One whose lease was seen to last is waited for, though by the database's clock it has ended.
    let generation = line.join("late", "late:8444", "1", STALE_FOR).await.unwrap();
    until("a sees it", || names(&a.replicas().others()) == ["late"]).await;
    clocks.step(&place, 3600).await;
    let soon = tokio::time::Instant::now() + Duration::from_millis(300);
    assert_eq!(waited(soon).await, (vec!["late".to_owned()], true));
    line.leave(start("late", generation)).await.unwrap();
    a.stop().await;
}

async fn t12_a_write_names_the_replicas_that_have_not_confirmed_it(place: Place) {
    let folder = tempfile::tempdir().unwrap();
    let (mut cable, clocks) = (Cable::new(&place), Clocks::new(&place).await);
    let a = Whole::start(folder.path(), "a", &place.url, Some(clocks.uptime())).await;
    let b = Whole::start(folder.path(), "b", &cable.url(&place), None).await;
    for name in ["g", "h", "i"] {
        let (written, unconfirmed) = confirming(a.control().write(&puts(name))).await;
        let revision = written.unwrap().unwrap();
        assert!(unconfirmed.is_empty(), "{unconfirmed:?}");
        assert!(b.revision() >= revision, "b has applied what is acknowledged");
    }
    // Of what b cannot read it cannot confirm anything, and its lease still lasts.
    cable.cut().await;
    let (written, unconfirmed) = confirming(a.control().write(&puts("k"))).await;
    let revision = written.unwrap().unwrap();
    assert_eq!(unconfirmed.into_iter().collect::<Vec<_>>(), ["b"]);
    assert!(b.revision() < revision);
    // Its own writes fail, and nothing is lost for who may repeat them.
    let error = b.control().write(&puts("l")).await.unwrap_err();
    assert!(error.is_unavailable(), "{error:?}");
    // By the database's clock its lease has ended: nobody waits for it, but it goes on with what it knows, and is named.
    Clocks::until_seen(&place, &a).await;
    clocks.pass(&place, 15).await;
    let (_, unconfirmed) = confirming(a.control().write(&puts("m"))).await;
    assert_eq!(unconfirmed.into_iter().collect::<Vec<_>>(), ["b"]);
    // Until it admits nothing any more.
    clocks.pass(&place, 300).await;
    let (_, unconfirmed) = confirming(a.control().write(&puts("o"))).await;
    assert!(unconfirmed.is_empty(), "{unconfirmed:?}");
    cable.mend();
    until("b has caught up", || b.revision() >= a.revision()).await;
    until("a sees b", || names(&a.replicas().others()) == ["b"]).await;
    let (_, unconfirmed) = confirming(b.control().write(&puts("n"))).await;
    assert!(unconfirmed.is_empty(), "{unconfirmed:?}");
    b.stop().await;
    until("b has left", || a.replicas().others().is_empty()).await;
    a.stop().await;
}

/// A standby that is promoted may lack what was written last, and gives its revisions to other writes.
async fn t12_a_database_without_the_last_writes_is_read_anew(place: Place) {
    let folder = tempfile::tempdir().unwrap();
    let a = Whole::start(folder.path(), "a", &place.url, None).await;
    let b = Whole::start(folder.path(), "b", &place.url, None).await;
    until("a sees b", || names(&a.replicas().others()) == ["b"]).await;
    let lost = a.control().write(&puts("g")).await.unwrap().unwrap();
    until("both know it", || a.revision() >= lost && b.revision() >= lost).await;
    let generations = (a.replicas().generation(), b.replicas().generation());
    place
        .sql(
            "BEGIN; DELETE FROM resources WHERE revision = (SELECT revision FROM revisions); \
             UPDATE revisions SET revision = revision - 1; COMMIT;",
        )
        .await;
    until("both begin anew", || a.replicas().generation() > generations.0 && b.replicas().generation() > generations.1)
        .await;
    assert!(a.revision() < lost && b.revision() < lost, "{} {}", a.revision(), b.revision());
    until("both admit", || a.replicas().admits() && b.replicas().admits()).await;
    until("they see each other", || a.replicas().others().len() == 1 && b.replicas().others().len() == 1).await;
    let (written, unconfirmed) = confirming(a.control().write(&puts("h"))).await;
    assert_eq!(written.unwrap().unwrap(), lost, "the number stands for another write");
    assert!(unconfirmed.is_empty() && b.revision() >= lost, "{unconfirmed:?}");
    a.stop().await;
    b.stop().await;
}

async fn t12_tunnels_that_the_database_lost_are_written_again(place: Place) {
    let mut a = Played::start(&place, "a").await;
    a.connect("one").await;
    a.connect("two").await;
    until_written(&place, 2).await;
    place.sql("BEGIN; DELETE FROM tunnels; UPDATE replicas SET changed = 0; COMMIT;").await;
    until_written(&place, 2).await;
    a.stop().await;
}

async fn t12_a_replica_without_its_database_is_fenced_until_it_is_back(place: Place) {
    let folder = tempfile::tempdir().unwrap();
    let mut cable = Cable::new(&place);
    let now = Arc::new(AtomicU64::new(1_000_000));
    let clock = Arc::clone(&now);
    let uptime = Arc::new(move || Duration::from_millis(clock.load(Ordering::SeqCst)));
    let a = Whole::start(folder.path(), "a", &cable.url(&place), Some(uptime)).await;
    let ready = async || {
        let admin = a.gateway.addresses().admin;
        let mut stream = tokio::net::TcpStream::connect(admin).await.unwrap();
        let request = format!("GET /readyz HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
        tokio::io::AsyncWriteExt::write_all(&mut stream, request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut answer).await.unwrap();
        answer[9..12].to_owned()
    };
    assert_eq!(ready().await, "200");
    cable.cut().await;
    // The lease has ended, and then the 20 s that it goes on with what it knows.
    now.fetch_add(u64::try_from(LEASE.as_millis()).unwrap() + 19_999, Ordering::SeqCst);
    assert!(a.gateway.core().admits() && ready().await == "200");
    now.fetch_add(1, Ordering::SeqCst);
    assert!(!a.gateway.core().admits() && ready().await == "503");
    let public = a.gateway.addresses().public;
    let begun = Instant::now();
    while tokio::net::TcpStream::connect(public).await.is_ok() {
        assert!(begun.elapsed() < LONG, "connections are refused, so that a balancer takes another replica");
        tokio::task::yield_now().await;
    }
    cable.mend();
    until("it has its lease again", || a.gateway.core().admits() && a.replicas().is_listening()).await;
    assert_eq!(ready().await, "200");
    tokio::net::TcpStream::connect(public).await.unwrap();
    a.stop().await;
}

async fn leases_of_100000_tunnels(place: Place) {
    const TUNNELS: i64 = 100_000;
    let store = place.open().await;
    let mut line = Line::new(&place.address()).unwrap();
    let own = start("b", line.join("b", "b:1", "1", STALE_FOR).await.unwrap());
    let all: Vec<Held> = (1..=TUNNELS).map(|n| held(&format!("c{n}"), 1, n)).collect();
    let begun = Instant::now();
    for some in all.chunks(TUNNELS_AT_ONCE as usize) {
        line.write_tunnels(own, 0, some).await.unwrap();
    }
    let written = begun.elapsed();
    let memory = || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    };
    let (before, begun) = (memory(), Instant::now());
    let a = Played::start(&place, "a").await;
    let read = begun.elapsed();
    assert_eq!(a.replicas().clusters_elsewhere(), all.len());
    let each = memory().saturating_sub(before) / all.len();
    // Its lease has ended meanwhile.
    line.renew(own, 0, LEASE).await.unwrap();
    until("b is alive", || names(&a.replicas().others()) == ["b"]).await;
    let begun = Instant::now();
    let found: usize = all.iter().map(|held| a.replicas().holders(&held.key).len()).sum();
    let look = begun.elapsed() / u32::try_from(TUNNELS).unwrap();
    let missing: Vec<ClusterKey> = (0..TUNNELS).map(|n| key(&format!("d{n}"))).collect();
    let begun = Instant::now();
    assert!(missing.iter().all(|key| a.replicas().holders(key).is_empty()));
    let miss = begun.elapsed() / u32::try_from(TUNNELS).unwrap();
    assert_eq!(found, all.len());
    println!(
        "{TUNNELS} leases: written in {written:?}, read at the start in {read:?}, {each} bytes each, a look takes {look:?}, one that finds nothing {miss:?}"
    );
    assert!(Count::default().is_zero() && store.revision().await.unwrap() == 0 && cluster("c").revision == 0);
    a.stop().await;
}

/// On one machine without the key it took away what all others had, while they ran.
async fn t12_a_key_of_the_store_is_replaced_while_no_replica_has_it(place: Place) {
    let folder = tempfile::tempdir().unwrap();
    let a = Whole::start(folder.path(), "a", &place.url, None).await;
    // Another machine with a copy of the folder, without the key.
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let text = std::fs::read_to_string(folder.path().join("a.toml")).unwrap();
    std::fs::write(folder.path().join("b.toml"), text.replace("\"store.key\"", "\"other/store.key\"")).unwrap();
    let config = Config::load(&folder.path().join("b.toml")).unwrap();
    let documents = || place.texts("SELECT name FROM documents ORDER BY name");
    let before = documents().await;
    assert!(before.contains(&"issuer/keys".to_owned()), "{before:?}");
    let error = lost::store_key(&config).await.unwrap_err();
    assert!(matches!(&error, LostError::Running { running, .. } if *running == ["a"]), "{error:?}");
    assert!(error.to_string().contains("from one of them") && error.to_string().contains(" a;"), "{error}");
    // A key that is another one is no less lost.
    Protector::open_or_create(&other.join("store.key")).unwrap();
    let kept = std::fs::read(other.join("store.key")).unwrap();
    assert!(matches!(lost::store_key(&config).await, Err(LostError::Running { .. })));
    assert_eq!(std::fs::read(other.join("store.key")).unwrap(), kept, "it was not put aside");
    assert_eq!(documents().await, before);

    a.stop().await;
    // A lease that has ended without being given back is nobody's.
    Line::new(&place.address()).unwrap().join("dead", "dead:8444", "1", Duration::from_secs(300)).await.unwrap();
    assert!(matches!(lost::store_key(&config).await, Err(LostError::Running { running, .. }) if running == ["dead"]));
    place.sql("UPDATE replicas SET renewed_ms = renewed_ms - 3600000").await;
    let done = lost::store_key(&config).await.unwrap();
    for what in ["signing keys", "users", "principals", "sign-ins", "replace-lost issuer-key", "recover-owner"] {
        assert!(done["next"].as_str().unwrap().contains(what), "{what}: {done}");
    }
    assert_eq!(documents().await, Vec::<String>::new());
}

/// Two replicas with other settings treated the same request differently, and nothing said so.
async fn t12_replicas_notice_settings_in_which_they_differ(place: Place) {
    let folder = tempfile::tempdir().unwrap();
    let a = Whole::start(folder.path(), "a", &place.url, None).await;
    let b = Whole::start(folder.path(), "b", &place.url, None).await;
    let differences = |of: &Whole| {
        let others = of.replicas().others();
        others.first().and_then(|other| of.replicas().differences(other))
    };
    let both = |groups: &[&str]| {
        let groups: Vec<String> = groups.iter().map(|group| (*group).to_owned()).collect();
        differences(&a).as_ref() == Some(&groups) && differences(&b) == Some(groups)
    };
    let shown = |of: &Whole, count: u32| {
        of.gateway.core().metrics.render().contains(&format!("gateway_replicas_settings_differ {count}\n"))
    };
    until("each knows that the other has the same", || both(&[]) && shown(&a, 0)).await;

    let file = folder.path().join("b.toml");
    let before = std::fs::read_to_string(&file).unwrap();
    // The one waits for the next start, the other is in force at once.
    let url = before.lines().find(|line| line.starts_with("url = ")).unwrap();
    let changed = before.replacen(url, &format!("{url}\noperation_timeout = \"1h\""), 1);
    std::fs::write(&file, format!("{changed}\n[sessions]\noutlive_token = \"1h\"\n")).unwrap();
    b.gateway.reload().await.unwrap();
    until("both notice", || both(&["sessions"]) && shown(&a, 1) && shown(&b, 1)).await;
    let store = place.open().await;
    let rows = gateway::replicas::show::overview(&store.replicas_overview(LEASE).await.unwrap());
    assert_eq!(rows["replicas"][0]["settings_differ_from"], serde_json::json!({"b": ["sessions"]}), "{rows}");
    assert_eq!(rows["replicas"][1]["settings_differ_from"], serde_json::json!({"a": ["sessions"]}), "{rows}");
    let warning = gateway::replicas::warning(&Config::load(&file).unwrap()).await.unwrap();
    assert!(warning.ends_with("differ from a: api.operation_timeout, sessions"), "{warning}");

    std::fs::write(&file, &before).unwrap();
    b.gateway.reload().await.unwrap();
    until("they are the same again", || both(&[]) && shown(&a, 0) && shown(&b, 0)).await;
    assert_eq!(gateway::replicas::warning(&Config::load(&file).unwrap()).await, None);
    store.close().await;
    b.stop().await;
    a.stop().await;
}
