//! Connections of a cluster to hosts that its gateway reaches, for sources of flux configurations (docs/features.md N1).

use std::net::SocketAddr;

use gateway::store::{batch::Batch, resources::Stored};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tunnel::transport::Stream;
use types::agent_api::EGRESS_ROLE;

use super::*;

const CONFIGURATIONS: &str = "Microsoft.KubernetesConfiguration/fluxConfigurations";

fn config(hosts: &[String]) -> String {
    world::config_with("authority_dir = \"authority\"", &section(&format!("[egress]\nhosts = {hosts:?}")))
}

/// A port at which nobody listens.
async fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap()
}

impl Site {
    /// A gateway that reaches these hosts for clusters.
    async fn reaching(hosts: &[String]) -> Self {
        let world = World::build(&config(hosts), Extras::default()).await;
        let site = Self { world, ahead: Arc::default() };
        site.put(&format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/Fleet"), json!({"location": "here"})).await;
        site
    }

    async fn tunnel_of(&self, name: &str) -> TunnelHandle {
        let key = Onboarding::new();
        self.cluster(name, &key).await;
        let given = self.enrol(name, &key).await;
        self.tunnel(&given).await
    }

    /// Writes a configuration of a cluster, as if the API had.
    async fn configured(&self, cluster: &str, name: &str, url: &str, through: bool) {
        let full = format!("{}/providers/{CONFIGURATIONS}/{name}", id(cluster));
        let stored = Stored {
            key: full.to_ascii_lowercase(),
            kind: CONFIGURATIONS.to_ascii_lowercase(),
            parent: id(cluster).as_str().to_ascii_lowercase(),
            id: full,
            revision: 0,
            body: json!({"properties": {
                "sourceKind": "GitRepository", "gitRepository": {"url": url}, "throughGateway": through,
            }}),
            protected: None,
        };
        self.keep(Batch { puts: vec![(stored, Expect::Any)], ..Batch::default() }).await;
    }

    async fn removed(&self, cluster: &str, name: &str) {
        let key = format!("{}/providers/{CONFIGURATIONS}/{name}", id(cluster)).to_ascii_lowercase();
        self.keep(Batch { deletes: vec![(key, Expect::Any)], ..Batch::default() }).await;
    }

    async fn keep(&self, batch: Batch) {
        let core = self.world.gateway.core();
        core.control.as_ref().unwrap().write(&batch).await.unwrap().unwrap();
    }

    /// How many connections came to this.
    fn ended(&self, outcome: &str) -> usize {
        let text = self.world.gateway.core().metrics.render();
        let name = format!("gateway_egress_total{{outcome=\"{outcome}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)).map_or(0, |count| count.parse().unwrap())
    }

    async fn counted(&self, outcome: &str, count: usize) {
        let counted = async {
            while self.ended(outcome) != count {
                tokio::task::yield_now().await;
            }
        };
        let told = || panic!("{outcome}: {}", self.world.gateway.core().metrics.render());
        tokio::time::timeout(LONG, counted).await.unwrap_or_else(|_| told());
    }
}

/// Opens a stream to another host: the status, and the stream or why not.
async fn reach(tunnel: &TunnelHandle, configuration: &str, to: &str) -> (u16, Stream, Value) {
    let head = RequestHead {
        role: EGRESS_ROLE.to_owned(),
        request_id: RequestId([4; 16]),
        method: Method::CONNECT,
        target: Bytes::from(format!("/v1/egress?configuration={configuration}&to={to}")),
        headers: HeaderMap::new(),
        deadline_ms: None,
        traceparent: None,
        user_address: None,
    };
    let mut stream = tunnel.open(head.encode().unwrap().freeze()).await.unwrap();
    let answer = stream.recv.recv_message(types::limits::HEAD_BYTES);
    let message = tokio::time::timeout(LONG, answer).await.unwrap().unwrap();
    let head = ResponseHead::decode(message).unwrap();
    let mut text = Vec::new();
    if head.status != 200 {
        while let Some(chunk) = stream.recv.recv().await.unwrap() {
            text.extend_from_slice(&chunk);
        }
    }
    (head.status.as_u16(), stream, serde_json::from_slice(&text).unwrap_or_default())
}

/// A connection that is open at both ends.
async fn open(tunnel: &TunnelHandle, listener: &TcpListener) -> (Stream, TcpStream) {
    let to = listener.local_addr().unwrap().to_string();
    let ((status, stream, why), accepted) = tokio::join!(reach(tunnel, "shop", &to), listener.accept());
    assert_eq!(status, 200, "{why}");
    (stream, accepted.unwrap().0)
}

/// That both ends of a connection are cut, not ended.
async fn cut(mut stream: Stream, mut server: TcpStream) {
    assert!(tokio::time::timeout(LONG, stream.recv.recv()).await.unwrap().is_err());
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(LONG, server.read_to_end(&mut rest)).await.unwrap();
}

#[tokio::test]
async fn n1_a_cluster_reaches_the_source_of_its_configuration_and_it_is_recorded() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let site = Site::reaching(&[at.to_string()]).await;
    let tunnel = site.tunnel_of("edge").await;
    site.configured("edge", "shop", &format!("https://{at}/shop.git"), true).await;
    let (mut stream, mut server) = open(&tunnel, &listener).await;
    stream.send.send(Bytes::from_static(b"client hello")).await.unwrap();
    let mut text = [0; 12];
    server.read_exact(&mut text).await.unwrap();
    assert_eq!(&text, b"client hello");
    server.write_all(b"server hello!").await.unwrap();
    let mut back = Vec::new();
    while back.len() < 13 {
        back.extend_from_slice(&stream.recv.recv().await.unwrap().unwrap());
    }
    assert_eq!(back, b"server hello!");
    // Half-close is kept.
    stream.send.finish().unwrap();
    assert_eq!(server.read(&mut text).await.unwrap(), 0);
    server.write_all(b"bye").await.unwrap();
    drop(server);
    assert_eq!(stream.recv.recv().await.unwrap().unwrap(), Bytes::from_static(b"bye"));
    assert_eq!(stream.recv.recv().await.unwrap(), None);
    site.counted("complete", 1).await;
    let records = site.world.audit().await;
    let record = records.iter().find(|record| record["event"] == "egress").unwrap();
    assert_eq!((&record["cluster"], &record["name"]), (&json!(id("edge").as_str()), &json!("shop")));
    assert_eq!((&record["path"], &record["address"]), (&json!(at.to_string()), &json!(at.to_string())));
    assert_eq!((&record["bytes_up"], &record["bytes_down"]), (&json!(12), &json!(16)));
    assert_eq!(record["outcome"], "complete");
    let text = site.world.gateway.core().metrics.render();
    assert!(text.contains("gateway_egress_open 0") && text.contains("gateway_egress_bytes_down_total 16"), "{text}");
}

#[tokio::test]
async fn attack_th50_nothing_else_is_reached_and_each_attempt_is_counted() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (at, named, closed) = (listener.local_addr().unwrap(), free().await, free().await);
    let localhost = format!("localhost:{}", named.port());
    let site = Site::reaching(&[at.to_string(), localhost.clone(), closed.to_string()]).await;
    let (edge, other) = (site.tunnel_of("edge").await, site.tunnel_of("other").await);
    let url = |to: &str| format!("https://{to}/shop.git");
    site.configured("edge", "shop", &url(&at.to_string()), true).await;
    site.configured("edge", "direct", &url(&at.to_string()), false).await;
    site.configured("edge", "clear", &format!("http://{at}/shop.git"), true).await;
    site.configured("edge", "unlisted", &url("git.example.org"), true).await;
    site.configured("edge", "local", &url(&localhost), true).await;
    site.configured("edge", "closed", &url(&closed.to_string()), true).await;
    let (at, closed) = (at.to_string(), closed.to_string());
    for (tunnel, configuration, to, status, outcome) in [
        (&edge, "unlisted", "git.example.org:443", 403, "host_not_allowed"),
        (&edge, "shop", "169.254.169.254:80", 403, "host_not_allowed"),
        (&edge, "direct", at.as_str(), 403, "not_configured"),
        (&edge, "clear", at.as_str(), 403, "not_configured"),
        (&edge, "absent", at.as_str(), 403, "not_configured"),
        (&edge, "shop", closed.as_str(), 403, "not_configured"),
        (&other, "shop", at.as_str(), 403, "not_configured"),
        // The name is allowed, and the address that it leads to is not.
        (&edge, "local", localhost.as_str(), 403, "address_not_allowed"),
        (&edge, "closed", closed.as_str(), 502, "unreachable"),
        (&edge, "shop", "git.example.org", 400, "unreadable"),
        (&edge, "..%2Fother", at.as_str(), 400, "unreadable"),
    ] {
        let before = site.ended(outcome);
        let (found, _, why) = reach(tunnel, configuration, to).await;
        assert_eq!(found, status, "{configuration} {to}: {why}");
        assert!(why["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{why}");
        assert_eq!(site.ended(outcome), before + 1, "{configuration} {to}");
    }
    let records = site.world.audit().await;
    let refused = records.iter().filter(|record| record["event"] == "egress" && record["outcome"] == "refused");
    assert_eq!(refused.count(), 11);
}

#[tokio::test]
async fn n1_connections_end_with_the_right_to_them() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let hosts = [at.to_string()];
    let site = Site::reaching(&hosts).await;
    let (edge, url) = (site.tunnel_of("edge").await, format!("https://{at}/shop.git"));
    site.configured("edge", "shop", &url, true).await;
    // The operator takes the host out of the list.
    let (stream, server) = open(&edge, &listener).await;
    site.world.reconfigure(&config(&[])).await.unwrap();
    cut(stream, server).await;
    site.counted("revoked", 1).await;
    site.world.reconfigure(&config(&hosts)).await.unwrap();
    // The operator takes the address out of the list, and leaves the name that leads there.
    let named = format!("localhost:{}", at.port());
    site.world.reconfigure(&config(&[named.clone(), at.to_string()])).await.unwrap();
    site.configured("edge", "named", &format!("https://{named}/shop.git"), true).await;
    let ((status, stream, why), accepted) = tokio::join!(reach(&edge, "named", &named), listener.accept());
    assert_eq!(status, 200, "{why}");
    site.world.reconfigure(&config(&[named])).await.unwrap();
    cut(stream, accepted.unwrap().0).await;
    site.counted("revoked", 2).await;
    site.world.reconfigure(&config(&hosts)).await.unwrap();
    // The configuration goes elsewhere, or goes.
    let (stream, server) = open(&edge, &listener).await;
    site.configured("edge", "shop", &url, false).await;
    cut(stream, server).await;
    site.counted("revoked", 3).await;
    site.configured("edge", "shop", &url, true).await;
    let (stream, server) = open(&edge, &listener).await;
    site.removed("edge", "shop").await;
    cut(stream, server).await;
    site.counted("revoked", 4).await;
    // The cluster goes, and its tunnel with it.
    site.configured("edge", "shop", &url, true).await;
    let (stream, server) = open(&edge, &listener).await;
    site.delete("edge").await;
    cut(stream, server).await;
    let open = || site.world.gateway.core().metrics.egress.now();
    let none = async {
        while open() != 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(LONG, none).await.unwrap();
}

#[tokio::test]
async fn n1_connections_of_one_configuration_are_bounded() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let site = Site::reaching(&[at.to_string()]).await;
    let edge = site.tunnel_of("edge").await;
    for name in ["shop", "second"] {
        site.configured("edge", name, &format!("https://{at}/shop.git"), true).await;
    }
    let mut all = Vec::new();
    for _ in 0..8 {
        all.push(open(&edge, &listener).await);
    }
    let (status, _, why) = reach(&edge, "shop", &at.to_string()).await;
    assert_eq!(status, 429, "{why}");
    assert!(why["error"]["message"].as_str().unwrap().starts_with("8 connections of this configuration"), "{why}");
    // Another configuration of the cluster still has its own.
    let to = at.to_string();
    let second = tokio::join!(reach(&edge, "second", &to), listener.accept());
    assert_eq!(second.0.0, 200);
    // A place is free again once a connection has ended.
    drop(all.pop());
    site.counted("broken_off", 1).await;
    drop((open(&edge, &listener).await, second));
}
