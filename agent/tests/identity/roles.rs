//! What the roles tell the gateway and pull from it.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use agent::{
    config::RoleSet,
    identity::{Identities, clock::SystemClock},
    roles::{
        Role, Roles, Serves, Visit,
        cluster_metadata_operator::Facts,
        config_agent::{self, ConfigAgent},
        health::Health,
        kube_aad_proxy,
        logcollector::{self, LogBuffer, LogCollector},
        resource_sync_agent::{self, ResourceSyncAgent},
        serve::Server,
    },
    tunnel::api::AgentApi,
};
use bytes::Bytes;
use daemon::{Shutdown, TaskGroup};
use futures_util::future::BoxFuture;
use http::{HeaderMap, Method, StatusCode};
use tokio::sync::watch;
use tunnel::{
    transport::{TunnelHandle, memory},
    wire::head::{RequestHead, ResponseHead},
};
use types::{
    agent_api::{Desired, Heartbeat, HeartbeatAnswer, paths},
    ids::RequestId,
    limits,
};

use crate::gateway::{Answer, CLUSTER, Scripted};

type Asked = Arc<Mutex<Vec<(String, Bytes)>>>;

/// A gateway that wants `revision`'s parity: odd is that users may come through.
fn gateway(revision: Arc<AtomicI64>) -> (TunnelHandle, Asked) {
    let asked: Asked = Arc::default();
    let answer: Answer = Box::new(move |path, _| {
        let revision = revision.load(Ordering::SeqCst);
        let body = if path.starts_with(paths::DESIRED) {
            let cluster_connect = revision % 2 == 1;
            serde_json::to_vec(&Desired {
                revision,
                cluster_connect,
                azure_rbac: false,
                agent_version: None,
                auto_upgrade: None,
            })
        } else {
            let received = "2030-01-01T00:00:00Z".to_owned();
            serde_json::to_vec(&HeartbeatAnswer {
                received,
                next_in_seconds: 3600,
                desired_revision: revision,
                renew_certificate: false,
            })
        };
        (StatusCode::OK, HeaderMap::new(), body.unwrap())
    });
    (Scripted::tunnel(answer, asked.clone()), asked)
}

fn heartbeats(asked: &Asked) -> Vec<Heartbeat> {
    let asked = asked.lock().unwrap();
    asked
        .iter()
        .filter(|(path, _)| path == paths::HEARTBEAT)
        .map(|(_, body)| serde_json::from_slice(body).unwrap())
        .collect()
}

/// What tells the gateway of the cluster. Its senders must stay: a closed one reads as a change.
fn teller(
    tunnel: &watch::Sender<Option<TunnelHandle>>,
    known: &watch::Sender<Option<Facts>>,
    health: &Health,
    (desired, last): (&watch::Sender<Option<Desired>>, &watch::Sender<Option<String>>),
) -> ResourceSyncAgent {
    ResourceSyncAgent {
        cluster: CLUSTER.parse().unwrap(),
        api: AgentApi::new(tunnel.subscribe()),
        client: None,
        known: known.subscribe(),
        health: health.clone(),
        reporter: health.of(resource_sync_agent::NAME),
        identities: Identities::default(),
        desired: desired.subscribe(),
        clock: Arc::new(SystemClock),
        last: last.clone(),
        upgrade: watch::Sender::new(None),
        warnings: Default::default(),
    }
}

#[tokio::test(start_paused = true)]
async fn c6_heartbeats_are_sent_at_the_start_on_change_and_every_five_minutes_whatever_the_gateway_says() {
    let (tunnel, asked) = gateway(Arc::default());
    let current = watch::Sender::new(Some(tunnel));
    let known = watch::Sender::new(Some(Facts { nodes: Some(1), cores: Some(4), ..Facts::default() }));
    let (health, desired, last) = (Health::default(), watch::Sender::new(None), watch::Sender::new(None));
    let role = teller(&current, &known, &health, (&desired, &last));
    let (tasks, shutdown) = (TaskGroup::new("test"), Shutdown::new());
    let until = shutdown.clone();
    tasks.spawn("role", async move { role.run(until).await });
    last.subscribe().wait_for(Option::is_some).await.unwrap();
    assert_eq!(heartbeats(&asked)[0].total_core_count, Some(4));
    tokio::time::sleep(Duration::from_secs(3600)).await;
    let quiet = heartbeats(&asked).len();
    assert!((12..=17).contains(&quiet), "{quiet}");
    known.send_replace(Some(Facts { nodes: Some(2), problems: vec!["x".to_owned()], ..Facts::default() }));
    tokio::time::sleep(Duration::from_secs(10)).await;
    let newest = heartbeats(&asked).pop().unwrap();
    assert_eq!((newest.total_node_count, newest.total_core_count), (Some(2), None));
    // D7: what fails is told, with who.
    health.of("metrics-agent").failing("Unreachable", "as the test says");
    tokio::time::sleep(Duration::from_secs(10)).await;
    let newest = heartbeats(&asked).pop().unwrap();
    assert_eq!(newest.roles["metrics-agent"], "Failing");
    assert_eq!((newest.errors[0].component.as_str(), newest.errors[0].severity.as_str()), ("metrics-agent", "Error"));
    shutdown.drain();
    tasks.join().await.unwrap();
}

/// Arc takes up to ten minutes for what takes seconds here.
#[tokio::test(start_paused = true)]
async fn m4_facts_are_told_within_seconds_of_the_first_tunnel() {
    let (tunnel, asked) = gateway(Arc::default());
    let current = watch::Sender::new(None);
    let known = watch::Sender::new(None);
    let (health, desired, last) = (Health::default(), watch::Sender::new(None), watch::Sender::new(None));
    let role = teller(&current, &known, &health, (&desired, &last));
    let (tasks, shutdown) = (TaskGroup::new("test"), Shutdown::new());
    let until = shutdown.clone();
    tasks.spawn("role", async move { role.run(until).await });
    // The certificate takes its time; the facts come a moment after the tunnel.
    tokio::time::sleep(Duration::from_secs(600)).await;
    current.send_replace(Some(tunnel));
    tokio::time::sleep(Duration::from_secs(1)).await;
    known.send_replace(Some(Facts { nodes: Some(3), cores: Some(12), ..Facts::default() }));
    let told = tokio::time::Instant::now();
    while heartbeats(&asked).last().and_then(|beat| beat.total_core_count) != Some(12) {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(told.elapsed() < Duration::from_secs(10), "{:?}", heartbeats(&asked));
    }
    shutdown.drain();
    tasks.join().await.unwrap();
}

/// Serves until it is dropped, for users.
struct Lasting;

impl Role for Lasting {
    fn serves(&self) -> Serves {
        Serves::Users
    }

    fn serve(self: Arc<Self>, visit: Visit) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let mut send = visit.stream.send;
            let head = ResponseHead { status: StatusCode::OK, headers: HeaderMap::new(), refused_by: None };
            send.send(head.encode().unwrap().freeze()).await.unwrap();
            send.stopped().await;
        })
    }
}

fn head(role: &str) -> Bytes {
    let head = RequestHead {
        role: role.to_owned(),
        request_id: RequestId([1; 16]),
        method: Method::GET,
        target: Bytes::from_static(b"/api"),
        headers: HeaderMap::new(),
        deadline_ms: None,
        traceparent: None,
        user_address: None,
    };
    head.encode().unwrap().freeze()
}

#[tokio::test]
async fn k9_where_cluster_connect_is_off_the_agent_refuses_users_and_ends_what_is_open() {
    let revision = Arc::new(AtomicI64::new(1));
    let (tunnel, _) = gateway(revision.clone());
    let server = Server::new(Roles::new(vec![kube_aad_proxy::ENTRY.named(Arc::new(Lasting))]), 10);
    let (user, agent) = memory::pair().await;
    let tasks = TaskGroup::new("test");
    let serving = server.clone();
    tasks.spawn("serve", async move {
        serving.serve(&agent).await;
    });
    let mut open = user.open(head(kube_aad_proxy::NAME)).await.unwrap();
    let status = |message: Bytes| ResponseHead::decode(message).unwrap().status;
    assert_eq!(status(open.recv.recv_message(limits::HEAD_BYTES).await.unwrap()), 200);
    revision.store(2, Ordering::SeqCst);
    let current = watch::Sender::new(Some(tunnel));
    let (api, wanted) = (AgentApi::new(current.subscribe()), server.wanted().clone());
    let role = ConfigAgent::new(api, wanted, Health::default().of(config_agent::NAME));
    tasks.spawn("role", async move { role.run(Shutdown::new()).await });
    assert!(open.recv.recv().await.is_err(), "an open session is broken off, not ended cleanly");
    let mut refused = user.open(head(kube_aad_proxy::NAME)).await.unwrap();
    assert_eq!(status(refused.recv.recv_message(limits::HEAD_BYTES).await.unwrap()), 403);
    let mut body = Vec::new();
    while let Some(chunk) = refused.recv.recv().await.unwrap() {
        body.extend_from_slice(&chunk);
    }
    let body = String::from_utf8(body).unwrap();
    assert!(body.contains("\"kind\":\"Status\"") && body.contains("cluster connect is disabled"), "{body}");
    tasks.abort();
}

#[tokio::test]
async fn d2_a_gateway_that_does_not_read_logs_delays_no_heartbeat() {
    use std::io::Write as _;
    let (gateway, agent) = memory::pair().await;
    let current = watch::Sender::new(Some(agent));
    let api = AgentApi::new(current.subscribe());
    let mut buffer = LogBuffer::default();
    for n in 0..2000 {
        let line = format!("{{\"target\":\"agent\",\"level\":\"INFO\",\"message\":\"{n} {}\"}}\n", "x".repeat(900));
        buffer.write_all(line.as_bytes()).unwrap();
    }
    let cluster = CLUSTER.parse().unwrap();
    let role = LogCollector::new(api.clone(), buffer, cluster, RoleSet::All, Health::default().of(logcollector::NAME));
    let tasks = TaskGroup::new("test");
    tasks.spawn("role", async move { role.run(Shutdown::new()).await });
    // The stream of logs is there, and nobody reads it.
    let mut logs = gateway.accept().await.unwrap();
    assert_eq!(RequestHead::decode(logs.head.clone()).unwrap().target, paths::LOGS);
    let answering = async {
        let mut heartbeat = gateway.accept().await.unwrap();
        assert_eq!(RequestHead::decode(heartbeat.head).unwrap().target, paths::HEARTBEAT);
        while heartbeat.stream.recv.recv().await.unwrap().is_some() {}
        let answer = HeartbeatAnswer {
            received: "r".to_owned(),
            next_in_seconds: 60,
            desired_revision: 0,
            renew_certificate: false,
        };
        let head = ResponseHead { status: StatusCode::OK, headers: HeaderMap::new(), refused_by: None };
        heartbeat.stream.send.send(head.encode().unwrap().freeze()).await.unwrap();
        heartbeat.stream.send.send(serde_json::to_vec(&answer).unwrap().into()).await.unwrap();
        heartbeat.stream.send.finish().unwrap();
    };
    let told = Heartbeat::default();
    let (answer, ()) = tokio::join!(api.post::<HeartbeatAnswer>(paths::HEARTBEAT, &told), answering);
    assert_eq!(answer.unwrap().received, "r");
    // Then they are read: each line is whole, and says whose it is.
    let mut body = Vec::new();
    while let Some(chunk) = logs.stream.recv.recv().await.unwrap() {
        body.extend_from_slice(&chunk);
    }
    let text = String::from_utf8(body).unwrap();
    assert!(text.len() > 100 * 1024 && text.ends_with('\n'));
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["ArmId"], CLUSTER.to_lowercase());
        assert_eq!((&line["AgentName"], &line["Role"]), (&"all".into(), &"all".into()));
    }
    tasks.abort();
}
