//! Several gateways of one installation in one process: a request at one that has no tunnel of its cluster goes over
//! one hop to another that has one. Who is alive and who has which tunnel is told to each by the test, as the store
//! tells it otherwise.

use std::{net::SocketAddr, pin::pin, sync::Arc, time::Instant};

use bytes::Bytes;
use certs::{Authority, Credentials, Validity, replica, tls};
use daemon::TaskGroup;
use futures_util::poll;
use gateway::{
    Extras,
    config::{Config, replicas::Replicas as Settings},
    hop::{HopError, Request},
    replicas::{Replicas, Seen, holders::Count},
};
use rustls::pki_types::ServerName;
use serde_json::json;
use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsConnector;
use tunnel::{
    transport::{
        CarrierKind, StreamError, TunnelHandle,
        carrier::Facts,
        http2,
        session::{self, GatewaySide, SessionOptions},
    },
    wire::{
        close::{CloseCode, StreamCode},
        head::RequestHead,
        hello::Refuse,
        hop::Hop,
    },
};
use types::ids::RequestId;

use crate::world::{Agent, Answer, LONG, User, World, at, cluster, config_with, get};

/// The replicas `a`, `b` and so on.
struct Site {
    replicas: Vec<World>,
    renewals: i64,
    /// A replica that others reach elsewhere than it listens.
    moved: Option<(String, SocketAddr)>,
    generation: i64,
}

/// What others reach a replica through, until it is cut.
struct Cable {
    tasks: TaskGroup,
}

impl Cable {
    async fn to(target: SocketAddr) -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, tasks) = (listener.local_addr().unwrap(), TaskGroup::new("cable"));
        let each = tasks.clone();
        tasks.spawn("cable", async move {
            while let Ok((mut near, _)) = listener.accept().await {
                each.spawn("connection", async move {
                    let mut far = TcpStream::connect(target).await.unwrap();
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
            }
        });
        (Self { tasks }, address)
    }

    fn cut(&self) {
        self.tasks.abort();
    }
}

impl Site {
    async fn of(names: &[&str]) -> Self {
        let mut replicas: Vec<World> = Vec::new();
        for name in names {
            let authority = match replicas.first() {
                Some(first) => Authority::load(&first.dir.path().join("authority")).unwrap(),
                None => Authority::create("test", Validity::days(400)).unwrap(),
            };
            let keys = replicas.first().map(|first| std::fs::read(first.dir.path().join("dev-keys.json")).unwrap());
            let settings = Settings {
                name: (*name).to_owned(),
                listen: "127.0.0.1:0".parse().unwrap(),
                address: Some("127.0.0.1:1".to_owned()),
                stale_for: LONG,
            };
            let text = config_with("authority_dir = \"authority\"", "");
            let prepare = |dir: &std::path::Path| {
                if let Some(keys) = &keys {
                    std::fs::write(dir.join("dev-keys.json"), keys).unwrap();
                }
            };
            let change = |config: &mut Config| config.replicas = Some(settings);
            replicas.push(World::of(&text, Extras::default(), authority, (prepare, change)).await);
        }
        let mut site = Self { replicas, renewals: 0, moved: None, generation: 1 };
        for world in &site.replicas {
            let own = knows(world);
            own.renewed(1, own.uptime());
            own.listening().await;
        }
        site.alive(names);
        site
    }

    fn named(&self, name: &str) -> &World {
        self.replicas.iter().find(|world| knows(world).name() == name).unwrap()
    }

    /// Has others reach a replica, in another start, through a cable.
    async fn behind_cable(&mut self, name: &str) -> Cable {
        let (cable, address) = Cable::to(self.named(name).addresses.peers.unwrap()).await;
        self.moved = Some((name.to_owned(), address));
        self.generation += 1;
        let names: Vec<String> = self.replicas.iter().map(|world| knows(world).name().to_owned()).collect();
        self.alive(&names.iter().map(String::as_str).collect::<Vec<_>>());
        cable
    }

    /// Tells all who is alive.
    fn alive(&mut self, names: &[&str]) {
        self.told(names, names);
    }

    /// Tells all who is alive, and who goes on though its lease has ended.
    fn told(&mut self, names: &[&str], serving: &[&str]) {
        self.renewals += 1;
        let moved = |name: &str| self.moved.as_ref().filter(|(moved, _)| moved == name).map(|(_, address)| *address);
        let row = |world: &World| Seen {
            name: knows(world).name().to_owned(),
            generation: if moved(knows(world).name()).is_some() { self.generation } else { 1 },
            address: moved(knows(world).name()).or(world.addresses.peers).unwrap().to_string(),
            version: "test".to_owned(),
            applied: 1,
            renewed_ms: self.renewals,
            alive: names.contains(&knows(world).name()),
            serves: serving.contains(&knows(world).name()),
            stale_for: None,
            fingerprint: None,
        };
        for world in &self.replicas {
            let others = self.replicas.iter().filter(|other| !std::ptr::eq(*other, world));
            let rows: Vec<_> = others.map(row).collect();
            knows(world).learn(&rows);
        }
    }

    /// Tells a replica that another has a tunnel of a cluster.
    fn holds(&self, told: &str, holder: &str, name: &str) {
        let own = knows(self.named(told));
        let others = own.others();
        let holder = others.iter().find(|other| other.name == holder).unwrap();
        own.holds(holder, cluster(name).key(), Count { users: 1, others: 0 });
    }

    /// A user's connection to a replica.
    async fn user(&self, replica: &str) -> User {
        self.named(replica).user().await
    }

    fn token(&self, user: &str, name: &str) -> String {
        self.replicas[0].token(user, name)
    }

    fn ask(&self) -> String {
        get(&at("a", "/api/v1/pods"), &self.token("ann", "a"), "")
    }
}

fn knows(world: &World) -> Arc<Replicas> {
    Arc::clone(world.gateway.core().replicas.as_ref().unwrap())
}

/// An agent's tunnel is up once the gateway has it.
async fn agent(world: &World) -> Agent {
    let agent = world.agent("a").await;
    while world.gateway.core().tunnels.count_of(&cluster("a").key()) == 0 {
        tokio::task::yield_now().await;
    }
    agent
}

async fn answered(mut user: User) -> Answer {
    user.answer().await
}

#[tokio::test]
async fn t12_k11_a_request_at_a_replica_without_a_tunnel_goes_over_one_hop_and_has_one_record() {
    let site = Site::of(&["a", "b"]).await;
    let agent = agent(site.named("b")).await;
    site.holds("a", "b", "a");
    let mut user = site.user("a").await;
    user.send(site.ask()).await;
    let arrived = agent.next().await;
    let id = arrived.head.request_id.to_string();
    assert_eq!((&arrived.head.target[..], arrived.head.role.as_str()), (&b"/api/v1/pods"[..], "kube-aad-proxy"));
    assert!(arrived.head.deadline_ms.is_some() && arrived.head.user_address.is_some());
    arrived.answer(200, &[("content-type", "application/json")], r#"{"kind":"PodList"}"#).await;
    let answer = user.answer().await;
    assert_eq!((answer.status, answer.text().as_str()), (200, r#"{"kind":"PodList"}"#));
    assert_eq!(answer.header("x-towline-request-id"), Some(id.as_str()));

    // A body in parts, on the same connection.
    let head = format!(
        "POST {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Length: 10\r\n\r\nfirst",
        at("a", "/api/v1/namespaces/x/pods"),
        site.token("ann", "a")
    );
    user.send(head).await;
    let mut arrived = agent.next().await;
    assert_eq!(arrived.stream.recv.recv().await.unwrap().unwrap(), "first");
    user.send("after").await;
    assert_eq!(arrived.body().await, b"after");
    arrived.answer(201, &[], "made").await;
    assert_eq!(user.answer().await.status, 201);
    drop(user);

    for name in ["a", "b"] {
        site.named(name).quiet().await;
    }
    let records = site.named("a").audit().await;
    assert_eq!(records.len(), 2, "{records:?}");
    for record in &records {
        assert_eq!((&record["handed_to"], &record["decision"]), (&json!("b"), &json!("allow")), "{record}");
        assert_eq!((&record["user"], &record["outcome"]), (&json!("dev:ann"), &json!("complete")), "{record}");
    }
    assert_eq!((&records[1]["bytes_up"], &records[1]["bytes_down"]), (&json!(10), &json!(4)));
    assert!(site.named("b").audit().await.is_empty(), "one record, at the entrance");
    assert_eq!(site.named("b").gateway.core().metrics.hops.now(), 0);
}

#[tokio::test]
async fn t12_own_tunnels_go_before_hops() {
    let site = Site::of(&["a", "b"]).await;
    let (own, other) = (agent(site.named("a")).await, agent(site.named("b")).await);
    site.holds("a", "b", "a");
    for _ in 0..3 {
        let mut user = site.user("a").await;
        user.send(site.ask()).await;
        own.next().await.answer(200, &[], "").await;
        assert_eq!(user.answer().await.status, 200);
    }
    // When the last own one has gone, the next request goes over the hop.
    own.tunnel.close(CloseCode::Shutdown, "");
    while site.named("a").gateway.core().tunnels.count_of(&cluster("a").key()) > 0 {
        tokio::task::yield_now().await;
    }
    let mut user = site.user("a").await;
    user.send(site.ask()).await;
    other.next().await.answer(200, &[], "").await;
    assert_eq!(user.answer().await.status, 200);
}

/// The agent had come to the replica of the request, which waited for another one to have it until it was refused.
#[tokio::test]
async fn t12_a_request_that_waits_for_an_agent_is_woken_by_a_tunnel_of_its_own_replica() {
    let site = Site::of(&["a", "b"]).await;
    let core = site.named("a").gateway.core();
    let (key, hops) = (cluster("a").key(), core.hops.as_ref().unwrap());
    let asks = |tried: Option<u64>| Request {
        cluster: &key,
        head: request(),
        bodiless: true,
        deadline: Instant::now() + LONG,
        refused_by: Some("b"),
        here: &core.tunnels,
        tried,
    };
    let first = asks(None);
    let mut waits = pin!(hops.open(&first));
    assert!(poll!(waits.as_mut()).is_pending());
    let _agent = agent(site.named("a")).await;
    assert!(matches!(waits.await, Err(HopError::Here)));
    // One that was tried is not waited for again.
    let newest = core.tunnels.of(&key)[0].number();
    let again = asks(Some(newest));
    let mut waits = pin!(hops.open(&again));
    assert!(poll!(waits.as_mut()).is_pending());
    let _second = site.named("a").agent("a").await;
    assert!(matches!(waits.await, Err(HopError::Here)));
}

#[tokio::test]
async fn t12_an_upgraded_connection_passes_a_hop_with_its_half_closes() {
    let site = Site::of(&["a", "b"]).await;
    let agent = agent(site.named("b")).await;
    site.holds("a", "b", "a");
    let mut user = site.user("a").await;
    let upgrade = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n";
    user.send(get(&at("a", "/api/v1/namespaces/x/pods/p/exec?command=sh"), &site.token("ann", "a"), upgrade)).await;
    let mut arrived = agent.next().await;
    arrived.answer_head(101, &[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")]).await;
    assert_eq!(user.head().await.status, 101);
    user.send("ping").await;
    assert_eq!(arrived.stream.recv.recv().await.unwrap().unwrap(), "ping");
    arrived.stream.send.send(Bytes::from_static(b"pong")).await.unwrap();
    assert_eq!(user.until(b"pong").await, b"pong");
    user.stream.shutdown().await.unwrap();
    assert_eq!(arrived.stream.recv.recv().await.unwrap(), None, "a half-close");
    arrived.stream.send.send(Bytes::from_static(b"last words")).await.unwrap();
    arrived.stream.send.finish().unwrap();
    assert_eq!(user.until(b"last words").await, b"last words");
    user.closed().await;
}

#[tokio::test]
async fn t12_whoami_and_its_role_pass_a_hop() {
    let site = Site::of(&["a", "b"]).await;
    let agent = agent(site.named("b")).await;
    site.holds("a", "b", "a");
    let mut user = site.user("a").await;
    user.send(get(&at("a", "/.towline/whoami"), &site.token("ann", "a"), "")).await;
    let arrived = agent.next().await;
    assert_eq!(arrived.head.role, "whoami");
    arrived.answer(200, &[], r#"{"accepted":true}"#).await;
    let answer = user.answer().await.json();
    assert_eq!(answer["agent"], json!({"accepted": true}), "{answer}");
}

/// What a replica knows of the others is a moment old.
#[tokio::test]
async fn t12_a_replica_that_lost_the_tunnel_says_so_and_another_one_is_asked_with_the_whole_body() {
    let site = Site::of(&["a", "b", "c"]).await;
    site.holds("a", "b", "a");
    let mut user = site.user("a").await;
    user.send(site.ask()).await;
    let answer = user.answer().await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{}", answer.text());

    let agent = agent(site.named("c")).await;
    site.holds("a", "c", "a");
    for turn in 0..4 {
        let head = format!(
            "POST {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Length: 4\r\n\r\nbody",
            at("a", "/x"),
            site.token("ann", "a")
        );
        user.send(head).await;
        let mut arrived = agent.next().await;
        assert_eq!(arrived.body().await, b"body", "turn {turn}");
        arrived.answer(200, &[], "").await;
        assert_eq!(user.answer().await.status, 200);
    }
    site.named("a").quiet().await;
    let records = site.named("a").audit().await;
    assert!(records[1..].iter().all(|record| record["handed_to"] == "c"), "{records:?}");
}

#[tokio::test]
async fn t12_a_replica_that_is_gone_ends_what_it_had_with_a_clear_error_and_the_next_goes_elsewhere_at_once() {
    let mut site = Site::of(&["a", "b", "c"]).await;
    let first = agent(site.named("b")).await;
    let cable = site.behind_cable("b").await;
    site.holds("a", "b", "a");
    let (mut reads, mut writes) = (site.user("a").await, site.user("a").await);
    reads.send(site.ask()).await;
    let read = first.next().await;
    let post = format!(
        "POST {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {}\r\nContent-Length: 0\r\n\r\n",
        at("a", "/x"),
        site.token("ann", "a")
    );
    writes.send(&post).await;
    let written = first.next().await;
    let second = agent(site.named("c")).await;
    site.holds("a", "c", "a");

    // As if it was killed: nothing is said, and its sockets are closed.
    cable.cut();
    let lost = reads.answer().await;
    assert_eq!((lost.status, lost.header("retry-after")), (503, Some("1")), "{}", lost.text());
    let lost = writes.answer().await;
    assert_eq!((lost.status, lost.header("retry-after")), (502, None), "{}", lost.text());
    drop((read, written));
    for _ in 0..4 {
        let mut user = site.user("a").await;
        user.send(site.ask()).await;
        second.next().await.answer(200, &[], "").await;
        assert_eq!(answered(user).await.status, 200);
    }
    // Its lease has ended too.
    site.alive(&["a", "c"]);
    let mut user = site.user("a").await;
    user.send(&post).await;
    second.next().await.answer(200, &[], "").await;
    assert_eq!(user.answer().await.status, 200);
}

#[tokio::test]
async fn t12_a_replica_that_drains_waits_for_what_others_handed_to_it() {
    let mut site = Site::of(&["a", "b"]).await;
    let agent = agent(site.named("b")).await;
    site.holds("a", "b", "a");
    let mut user = site.user("a").await;
    user.send(site.ask()).await;
    let arrived = agent.next().await;
    site.named("b").gateway.drain();
    agent.tunnel.draining().await;
    arrived.answer(200, &[], "whole").await;
    assert_eq!(user.answer().await.text(), "whole");
    let mut b = site.replicas.remove(1);
    b.stop().await;
}

/// A link to a replica, as another one dials it.
async fn link(to: &World, own: &Credentials, wanted: &str) -> Result<TunnelHandle, String> {
    let config = replica::client(own, &to.authority.roots().unwrap(), wanted).unwrap();
    dialled(to, config).await
}

async fn dialled(to: &World, config: rustls::ClientConfig) -> Result<TunnelHandle, String> {
    let socket = TcpStream::connect(to.addresses.peers.unwrap()).await.unwrap();
    let name = ServerName::try_from("replica.test").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, socket).await.map_err(|error| error.to_string())?;
    let facts = Facts { kind: CarrierKind::Http2, peer: None, certificates: vec![Vec::new().into()] };
    let carrier = http2::client_side(stream, facts).await.map_err(|error| error.to_string())?;
    let side = GatewaySide {
        session: [7; 16],
        replica: None,
        authenticate: |_| async { Ok::<_, Refuse>(()) },
        options: SessionOptions::default(),
    };
    session::accept(carrier, side).await.map(|(handle, ())| handle).map_err(|error| error.to_string())
}

fn request() -> Bytes {
    let head = RequestHead {
        role: "kube-aad-proxy".to_owned(),
        request_id: RequestId([3; 16]),
        method: http::Method::GET,
        target: Bytes::from_static(b"/"),
        headers: http::HeaderMap::new(),
        deadline_ms: None,
        traceparent: None,
        user_address: None,
    };
    head.encode().unwrap().freeze()
}

fn hop(name: &str) -> Bytes {
    Hop::new(cluster(name).key(), request()).unwrap().encode().unwrap().freeze()
}

#[tokio::test]
async fn t12_only_replicas_come_in_at_their_listener_and_are_nothing_anywhere_else() {
    let site = Site::of(&["a", "b"]).await;
    let b = site.named("b");
    let day = || Validity::days(1);
    let agent = b.authority.issue_agent(cluster("a").as_str(), day()).unwrap();
    let access = b.authority.issue_access(cluster("a").as_str(), "ann", day()).unwrap();
    for other in [&agent, &access] {
        link(b, other.credentials(), "b").await.err().unwrap();
    }
    let foreign = Authority::create("other", day()).unwrap().issue_gateway("a", day()).unwrap();
    link(b, foreign.credentials(), "b").await.err().unwrap();
    let own = b.authority.issue_gateway("a", day()).unwrap();
    let wrong = link(b, own.credentials(), "c").await.err().unwrap();
    assert!(wrong.contains(r#"it is of "b", not of "c""#), "{wrong}");
    let same_name = b.authority.issue_gateway("b", day()).unwrap();
    link(b, same_name.credentials(), "b").await.err().unwrap();
    let none = tls::client_https(&b.authority.roots().unwrap()).unwrap();
    dialled(b, none).await.err().unwrap();
    assert!(link(b, own.credentials(), "b").await.is_ok());

    // Where agents and users come.
    let refused = b.dial(own.credentials()).await.err().unwrap().to_string();
    assert!(refused.contains("role gateway, here one of role agent is needed"), "{refused}");
    let mut user = b.user_with("localhost", Some(&own), &[tls::ALPN_HTTP11]).await;
    user.send(get(&at("a", "/api"), "a-service-account-token", "")).await;
    assert_eq!(user.answer().await.status, 401);
}

#[tokio::test]
async fn t12_what_another_replica_may_not_ask_is_refused_before_an_agent_sees_it() {
    let site = Site::of(&["a", "b"]).await;
    let b = site.named("b");
    let agent = agent(b).await;
    let own = b.authority.issue_gateway("a", Validity::days(1)).unwrap();
    let link = link(b, own.credentials(), "b").await.unwrap();
    let refused = |head: Bytes| async {
        let mut stream = link.ask(head).await.unwrap();
        stream.recv.recv().await.unwrap_err()
    };
    // No such cluster; one without a tunnel.
    assert_eq!(refused(hop("nowhere")).await, StreamError::Reset(StreamCode::NotHere));
    assert_eq!(refused(hop("b")).await, StreamError::Reset(StreamCode::NotHere));
    // A request to a cluster that names none is a question between replicas, of which this is not one.
    assert_eq!(refused(request()).await, StreamError::Reset(StreamCode::UnknownRole));
    // What is no message; a hop within a hop.
    assert_eq!(refused(Bytes::from_static(b"\0\0\0\x02\x01\x63")).await, StreamError::Reset(StreamCode::BadHead));
    let mut nested = tunnel::wire::message::Writer::begin(bytes::BytesMut::new(), tunnel::wire::hop::HOP);
    nested.bytes(cluster("a").key().as_bytes()).bytes(&hop("a"));
    assert_eq!(refused(nested.finish().freeze()).await, StreamError::Reset(StreamCode::BadHead));
    // A head over the bound, of which only the length is there.
    let long = u32::try_from(types::limits::REQUEST_HEAD_BYTES + 1).unwrap().to_be_bytes();
    assert_eq!(refused(Bytes::from([&long[..], &[1, 18]].concat())).await, StreamError::Reset(StreamCode::BadHead));

    // As many streams as there may be, and more: what is over the bound is refused, and others go on.
    let mut held = Vec::new();
    loop {
        match link.open(hop("a")).await {
            Ok(stream) => held.push(stream),
            Err(error) => break assert!(error.to_string().contains("the limit"), "{error}"),
        }
    }
    assert_eq!(held.len(), types::limits::STREAMS_PER_TUNNEL as usize);
    let first = agent.next().await;
    assert_eq!(first.head.request_id, RequestId([3; 16]));
    drop(held);
    let other = site.named("a");
    knows(other).holds(&knows(other).others()[0], cluster("a").key(), Count { users: 1, others: 0 });
    let mut user = site.user("a").await;
    user.send(site.ask()).await;
    loop {
        let arrived = agent.next().await;
        if arrived.head.request_id != RequestId([3; 16]) {
            break arrived.answer(200, &[], "served").await;
        }
    }
    assert_eq!(user.answer().await.text(), "served");
}

/// Others gave its tunnels up at the end of its lease, though it served and answered on their links.
#[tokio::test]
async fn t12_a_replica_without_the_database_takes_hops_for_as_long_as_it_goes_on() {
    let mut site = Site::of(&["a", "b"]).await;
    let agent = agent(site.named("b")).await;
    site.holds("a", "b", "a");
    let mut user = site.user("a").await;
    for said in ["with its lease", "without it"] {
        user.send(site.ask()).await;
        agent.next().await.answer(200, &[], said).await;
        assert_eq!(user.answer().await.text(), said);
        site.told(&["a"], &["a", "b"]);
    }
    site.told(&["a"], &["a"]);
    user.send(site.ask()).await;
    assert_eq!(user.answer().await.status, 503);
}

#[tokio::test]
async fn t12_a_replica_that_admits_nothing_takes_no_hop() {
    let site = Site::of(&["a", "b"]).await;
    let _agent = agent(site.named("b")).await;
    knows(site.named("b")).superseded();
    site.holds("a", "b", "a");
    let mut user = site.user("a").await;
    user.send(site.ask()).await;
    assert_eq!(user.answer().await.status, 503);
}
