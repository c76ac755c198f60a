//! What controllers log, from bytes of a pod's log to what waits for the gateway.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use proptest::prelude::*;
use serde_json::{Value, json};
use types::agent_api::{LOG_MESSAGE_BYTES, LogLevel, LogLine, LogPosition, LogPositions};

use super::{
    FluxLogsAgent, NAME,
    line::{LINE_BYTES, Said, Splitter, timed},
    owners::Owners,
    pods::News,
    ring::{BATCH_LINES, BURST, ONE_MORE_NANOS, RING_BYTES, RING_LINES, Ring},
    tail::Cursor,
    told,
};
use crate::{
    identity::clock::{SharedClock, TokioClock},
    roles::health::Health,
    tunnel::api::AgentApi,
};

const SHOP: &str = "/c/shop";

fn config(name: &str, namespace: &str, kustomizations: &[&str]) -> Value {
    let all: serde_json::Map<_, _> = kustomizations.iter().map(|name| ((*name).to_owned(), json!({}))).collect();
    json!({
        "apiVersion": "towline.io/v1alpha1", "kind": "FluxConfig", "metadata": {"name": name, "namespace": "towline"},
        "spec": {"id": format!("/c/{name}"), "properties": {"namespace": namespace, "kustomizations": all}},
    })
}

fn owners(all: &[Value]) -> Owners {
    let owners = Owners::default();
    owners.take(News::Whole(all.iter().map(|one| serde_json::from_value(one.clone()).unwrap()).collect()));
    owners
}

fn logged(level: &str, kind: &str, name: &str, message: &str, error: &str) -> String {
    json!({
        "level": level, "ts": "2026-11-27T10:00:00.000Z", "msg": message, "controller": kind.to_lowercase(),
        "controllerGroup": "x.toolkit.fluxcd.io", "controllerKind": kind, kind: {"name": name, "namespace": "gitops"},
        "namespace": "gitops", "name": name, "reconcileID": "r", "error": error,
    })
    .to_string()
}

#[test]
fn d5_line_says_of_which_object_it_is_and_what_went_wrong() {
    let text = logged("error", "Kustomization", "shop-apps", "Reconciliation failed after 1s", "broken.yaml: bad");
    let said = Said::read(text.as_bytes()).unwrap();
    assert_eq!((said.level, said.kind.as_str(), said.name.as_str()), (LogLevel::Error, "Kustomization", "shop-apps"));
    assert_eq!(
        (said.namespace.as_str(), said.message.as_str()),
        ("gitops", "Reconciliation failed after 1s: broken.yaml: bad")
    );
    let plain = br#"{"level":"info","msg":"stored","controllerKind":"GitRepository","namespace":"n","name":"shop"}"#;
    assert_eq!(Said::read(plain).map(|said| (said.level, said.message)), Some((LogLevel::Info, "stored".to_owned())));
    // As kustomize-controller writes where a new commit may end its health checks.
    let short = br#"{"level":"error","msg":"m","controller":"kustomization","namespace":"n","name":"a"}"#;
    assert_eq!(Said::read(short).map(|said| (said.kind, said.name)), Some(("Kustomization".into(), "a".into())));
    assert_eq!(Said::read(br#"{"level":"info","msg":"m","controller":"other","namespace":"n","name":"a"}"#), None);
    let long = format!(r#"{{"level":"info","controllerKind":"K","namespace":"n","name":"{}"}}"#, "x".repeat(300));
    for other in ["", "{", "panic: x", "[]", r#"{"level":"info","msg":"starting manager"}"#, r#"{"level":1}"#, &long] {
        assert_eq!(Said::read(other.as_bytes()), None, "{other}");
    }
    let (nanos, rest) = timed(b"2026-11-27T10:00:00.123456789+01:00 {}").unwrap();
    assert_eq!((nanos % 1_000_000_000, rest), (123_456_789, &b"{}"[..]));
    assert_eq!(timed(b"unable to retrieve container logs"), None);
}

#[test]
fn d5_line_of_an_object_is_that_configurations_alone_that_made_it() {
    let owners = owners(&[
        config("shop", "gitops", &["apps", "apps-db"]),
        config("shop-apps", "gitops", &["db"]),
        config("team", "team", &["apps"]),
    ]);
    for (kind, namespace, name, owner) in [
        ("GitRepository", "gitops", "shop", Some("/c/shop")),
        ("OCIRepository", "gitops", "shop-apps", Some("/c/shop-apps")),
        ("Kustomization", "gitops", "shop-apps", Some("/c/shop")),
        ("Kustomization", "team", "team-apps", Some("/c/team")),
        ("Kustomization", "gitops", "team-apps", None),
        ("Kustomization", "gitops", "shop", None),
        ("Kustomization", "gitops", "shop-other", None),
        ("HelmRelease", "gitops", "shop", None),
        // Either may have made it.
        ("Kustomization", "gitops", "shop-apps-db", None),
    ] {
        assert_eq!(owners.of(kind, namespace, name).as_deref(), owner, "{kind} {namespace}/{name}");
    }
    owners.take(News::Gone(serde_json::from_value(config("shop-apps", "gitops", &[])).unwrap()));
    assert_eq!(owners.of("Kustomization", "gitops", "shop-apps-db").as_deref(), Some("/c/shop"));
}

fn line(id: &str, nanos: i64, message: &str) -> LogLine {
    LogLine {
        id: id.to_owned(),
        source: "pod".to_owned(),
        position: LogPosition { nanos, nth: 1 },
        level: LogLevel::Info,
        controller: "kustomize-controller".to_owned(),
        kind: "Kustomization".to_owned(),
        namespace: "gitops".to_owned(),
        name: "shop-apps".to_owned(),
        message: message.to_owned(),
        left_out: 0,
    }
}

#[test]
fn d5_lines_of_one_configuration_beyond_the_pace_are_counted_and_others_go_on() {
    let ring = Ring::default();
    let sent = |id: &str, nanos: i64| {
        let admitted = ring.admits(id, nanos);
        if admitted {
            ring.push(line(id, nanos, ""));
        }
        admitted
    };
    let first = (0..BURST + 7).filter(|_| sent(SHOP, 1_000)).count();
    assert_eq!(i64::try_from(first).unwrap(), BURST);
    assert!(sent("/c/other", 1_000));
    // A clock that is set back lets nobody in, and keeps nobody out for longer.
    assert!(!sent(SHOP, 0));
    assert!(sent(SHOP, 1_000 + ONE_MORE_NANOS));
    let lines: Vec<LogLine> =
        std::iter::from_fn(|| Some(ring.batch()).filter(|batch| !batch.is_empty())).flatten().collect();
    assert_eq!((lines.len(), lines.iter().map(|line| line.left_out).sum::<u64>()), (first + 2, 8));
    assert_eq!(lines.last().map(|line| line.left_out), Some(8));
}

#[test]
fn d5_message_leaves_the_cluster_without_secrets_and_within_its_bound() {
    let secret = "failed to fetch https://me:geheim@git.example.org/x.git: Authorization: Basic bWU6Z2VoZWltMTIz\n-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\npassword=geheim end";
    let text = told(secret);
    for part in ["geheim", "bWU6", "MIIE"] {
        assert!(!text.contains(part), "{text}");
    }
    assert!(text.contains("git.example.org/x.git") && text.ends_with("end"), "{text}");
    // What the bound would cut in two is left out.
    let cut = format!("{} https://me:geheim@{}", "ä".repeat(LOG_MESSAGE_BYTES - 20), "x".repeat(LOG_MESSAGE_BYTES));
    assert!(told(&cut).len() <= LOG_MESSAGE_BYTES && !told(&cut).contains("geheim"));
    assert!(told(&"x".repeat(100_000)).is_empty());
}

#[test]
fn d5_ring_holds_the_newest_lines_while_nothing_can_be_sent() {
    let ring = Ring::default();
    let text = "x".repeat(1000);
    let count = i64::try_from(2 * RING_LINES).unwrap();
    (0..count).for_each(|n| ring.push(line(SHOP, n, &text)));
    let (mut lines, mut bytes) = (Vec::new(), 0);
    loop {
        let batch = ring.batch();
        if batch.is_empty() {
            break;
        }
        assert!(batch.len() <= BATCH_LINES && serde_json::to_vec(&batch).unwrap().len() < 200 * 1024);
        bytes += serde_json::to_vec(&batch).unwrap().len();
        lines.extend(batch);
    }
    assert!(bytes <= RING_BYTES + lines.len() + 1000, "{bytes}");
    assert_eq!(lines.last().map(|line| line.position.nanos), Some(count - 1));
    // What gave way to the last line is told with the next one.
    ring.push(line(SHOP, count, ""));
    lines.extend(ring.batch());
    let known = u64::try_from(lines.len()).unwrap() + lines.iter().map(|line| line.left_out).sum::<u64>();
    assert_eq!(known, u64::try_from(count).unwrap() + 1, "each line is there or counted");
}

proptest! {
    /// However the bytes come, the lines are the same.
    #[test]
    fn d5_lines_do_not_depend_on_how_their_bytes_come(
        bytes in proptest::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..400), sizes in proptest::collection::vec(1usize..40, 1..40),
    ) {
        let mut splitter = Splitter::default();
        let (mut lines, mut rest, mut sizes) = (Vec::new(), &bytes[..], sizes.iter().cycle());
        while !rest.is_empty() {
            let size = (*sizes.next().unwrap()).min(rest.len());
            splitter.push(&rest[..size], |line| lines.push(line.to_vec()));
            rest = &rest[size..];
        }
        let mut wanted: Vec<Vec<u8>> = bytes.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
        wanted.pop();
        prop_assert_eq!(lines, wanted);
    }

    /// Whatever the lines are and wherever streams break off, each is read once, and positions rise.
    #[test]
    fn d5_each_line_is_read_once_over_streams_that_break_off(
        steps in proptest::collection::vec(prop_oneof![3 => Just(0i64), 2 => 1i64..1000, 1 => Just(1_000_000_000), 1 => 1i64..3_000_000_000], 1..60),
        breaks in proptest::collection::vec(1usize..20, 1..20),
    ) {
        let mut now = 1_700_000_000_000_000_000;
        let logged: Vec<(i64, usize)> = steps.iter().enumerate().map(|(n, step)| { now += step; (now, n) }).collect();
        let (mut cursor, mut read, mut positions) = (Cursor::default(), Vec::new(), Vec::new());
        let mut breaks = breaks.iter().cycle();
        // A stream begins at a second and breaks off behind some lines that are new.
        while read.len() < logged.len() {
            let since = cursor.since();
            cursor.opened();
            let most = read.len() + breaks.next().unwrap();
            for (nanos, n) in logged.iter().filter(|(nanos, _)| since.is_none_or(|since| nanos.div_euclid(1_000_000_000) >= since)) {
                if read.len() == most {
                    break;
                }
                if let Some(position) = cursor.next(*nanos, i64::MAX) {
                    read.push(*n);
                    positions.push(position);
                }
            }
            // Another process goes on where the gateway says.
            cursor = Cursor::new(positions.last().copied());
        }
        prop_assert_eq!(read, (0..logged.len()).collect::<Vec<_>>());
        prop_assert!(positions.is_sorted_by(|a, b| a < b));
    }
}

#[test]
fn d5_instant_ahead_of_time_keeps_no_later_line_out() {
    const SECOND: i64 = 1_000_000_000;
    let (ring, mut cursor) = (Ring::default(), Cursor::default());
    let now = 1_700_000_000 * SECOND;
    let latest = |seconds: i64| now + (seconds + 5) * SECOND;
    // The node's clock was an hour ahead for one line, and is right since.
    let wrong = now + 3600 * SECOND;
    assert_eq!(cursor.next(wrong, latest(0)), Some(LogPosition { nanos: latest(0), nth: 1 }));
    assert!(ring.admits(SHOP, latest(0)));
    for second in 0..1000 {
        let position = cursor.next(now + second * SECOND, latest(second)).unwrap();
        assert!(ring.admits(SHOP, position.nanos), "{second}");
    }
    assert_eq!(cursor.since(), Some(1_700_000_999));
    // A stream that is opened again brings it once more, before and after the last line.
    cursor.opened();
    assert_eq!(cursor.next(wrong, latest(1000)), None);
    assert_eq!(cursor.next(now + 999 * SECOND, latest(1000)), None);
    assert!(cursor.next(now + 1000 * SECOND, latest(1000)).is_some());
}

#[tokio::test(start_paused = true)]
async fn d5_lines_wait_for_others_and_errors_only_a_little() {
    let ring = Ring::default();
    let waited = async |ring: &Ring| {
        let begun = tokio::time::Instant::now();
        ring.some().await;
        begun.elapsed().as_secs()
    };
    ring.push(line(SHOP, 1, ""));
    assert_eq!(waited(&ring).await, 15);
    ring.push(LogLine { level: LogLevel::Error, ..line(SHOP, 2, "") });
    assert_eq!(waited(&ring).await, 5);
    ring.batch();
    ring.push(line(SHOP, 3, ""));
    let error = async {
        tokio::time::sleep(Duration::from_secs(7)).await;
        ring.push(LogLine { level: LogLevel::Error, ..line(SHOP, 4, "") });
    };
    assert_eq!(tokio::join!(waited(&ring), error).0, 7);
    (0..BATCH_LINES).for_each(|_| ring.push(line(SHOP, 5, "")));
    assert_eq!(waited(&ring).await, 0);
}

#[test]
fn d5_long_line_takes_no_more_memory_than_one_may() {
    let mut splitter = Splitter::default();
    let mut lines = Vec::new();
    for _ in 0..10 {
        splitter.push(&vec![b'x'; LINE_BYTES], |_| unreachable!());
    }
    splitter.push(b"\nshort\n", |line| lines.push(line.len()));
    assert_eq!(lines, [LINE_BYTES, 5]);
}

/// An apiserver with one pod of a controller, and what its log is at each question; later ones find it broken.
#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Script>>);

#[derive(Default)]
struct Script {
    restarts: i32,
    /// What is answered to the next questions for the log, and those that were asked.
    logs: Vec<String>,
    asked: Vec<String>,
}

impl Scripted {
    fn answer(&self, path: &str, query: &str) -> (u16, String) {
        let mut script = self.0.lock().unwrap();
        let list = |items: Vec<Value>| {
            (
                200,
                json!({"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": "1"}, "items": items})
                    .to_string(),
            )
        };
        // Watches end at once, so that everything is listed anew.
        if query.contains("watch=true") {
            return (200, String::new());
        }
        if path.ends_with("/fluxconfigs") {
            return list(vec![config("shop", "gitops", &["apps"])]);
        }
        if path.ends_with("/log") {
            script.asked.push(query.to_owned());
            if script.logs.is_empty() {
                return (400, json!({"kind": "Status", "code": 400, "message": "waiting", "status": "Failure", "reason": "BadRequest"}).to_string());
            }
            return (200, script.logs.remove(0));
        }
        let labels = json!({"app": "kustomize-controller"});
        list(vec![json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "kc-1", "namespace": "flux-system", "uid": "pod-1", "labels": labels},
            "spec": {"containers": [{"name": "manager"}]},
            "status": {"containerStatuses": [{
                "name": "manager", "image": "i", "imageID": "i", "ready": true, "restartCount": script.restarts,
                "state": {"running": {}},
            }]},
        })])
    }

    fn client(&self) -> kube::Client {
        let this = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let (status, body) = this.answer(request.uri().path(), request.uri().query().unwrap_or_default());
            std::future::ready(Ok::<_, Infallible>(
                Response::builder().status(status).body(Full::new(Bytes::from(body))).unwrap(),
            ))
        });
        kube::Client::new(service, "towline")
    }
}

#[tokio::test(start_paused = true)]
async fn d5_pod_is_read_on_where_it_was_also_over_a_restart_of_its_container() {
    let apiserver = Scripted::default();
    let line = |nanos: u32, name: &str, message: &str| {
        format!("2026-11-27T10:00:00.{nanos:09}Z {}\n", logged("info", "Kustomization", name, message, ""))
    };
    let (a, b, c, d) =
        (line(1, "shop-apps", "a"), line(2, "foreign-apps", "b"), line(2, "shop-apps", "c"), line(3, "shop-apps", "d"));
    let e = line(4, "shop-apps", "e");
    {
        let mut script = apiserver.0.lock().unwrap();
        script.logs = vec![
            // The first stream breaks off within a line; the next begins with the second.
            format!("{a}{}", &b[..20]),
            [a.clone(), b.clone(), c.clone()].concat(),
        ];
    }
    let started = SystemTime::UNIX_EPOCH + Duration::from_secs(1_795_773_600);
    let clock: SharedClock = Arc::new(TokioClock::new(started));
    let (_tunnel, current) = tokio::sync::watch::channel(None);
    let health = Health::default();
    let agent = FluxLogsAgent::new(apiserver.client(), AgentApi::new(current), health.of(NAME), clock.clone());
    agent.taken.set(LogPositions::default()).unwrap();
    let mut got = Vec::new();
    let mut until = async |agent: &FluxLogsAgent, count: usize| {
        let waited = async {
            while got.len() < count {
                got.extend(agent.ring.batch().into_iter().map(|line| line.message));
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            () = agent.work() => unreachable!(),
            () = waited => {}
        }
        got.clone()
    };
    assert_eq!(until(&agent, 2).await, ["a", "c"]);
    {
        let mut script = apiserver.0.lock().unwrap();
        script.asked.clear();
        script.restarts = 1;
        // The log of the container that ended, and that of the new one.
        script.logs = vec![[a, b, c, d].concat(), e];
    }
    // Another process: the gateway says what it has.
    let (_tunnel, current) = tokio::sync::watch::channel(None);
    let agent = FluxLogsAgent::new(apiserver.client(), AgentApi::new(current), health.of(NAME), clock);
    let last = timed(b"2026-11-27T10:00:00.000000002Z x").unwrap().0;
    let taken = LogPositions { sources: [("pod-1".to_owned(), LogPosition { nanos: last, nth: 2 })].into() };
    agent.taken.set(taken).unwrap();
    assert_eq!(until(&agent, 4).await, ["a", "c", "d", "e"]);
    let asked = apiserver.0.lock().unwrap().asked.clone();
    assert!(asked[0].contains("previous=true") && asked[0].contains("sinceTime=2026-11-27T10%3A00%3A00Z"), "{asked:?}");
    assert!(asked[1].contains("follow=true") && asked[1].contains("timestamps=true"), "{asked:?}");
}
