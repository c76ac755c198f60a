//! Many things at once, and readers that do not read.

use std::{
    collections::HashMap,
    io::Read as _,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use tests::{
    apiserver::{Apiserver, answer},
    case::{Needs, alone, full, loads},
    cluster::cluster,
    kubectl::pod,
    programs::{eventually, scratch},
    raw::Raw,
    stack::{CARRIERS, Plan, Stack, shared},
};

use crate::kubectl::namespace;

pub fn tests() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (index, carrier) in CARRIERS.into_iter().enumerate() {
        trials.push(alone(
            format!("load::one_reader_that_never_reads_beside_20::{carrier}"),
            Needs::Nothing,
            move || stalled_reader(carrier),
        ));
        if full() || index == 0 {
            trials.push(loads(
                format!("load::a_thousand_watches_and_200_execs_at_once::{carrier}"),
                Needs::Pods,
                move || watches_and_execs(carrier),
            ));
            trials.push(loads(
                format!("load::ten_thousand_cancelled_requests::{carrier}"),
                Needs::Nothing,
                move || cancelled(carrier),
            ));
        }
        if full() || index == 1 {
            trials.push(loads(format!("load::chatty_pod_with_logs_follow::{carrier}"), Needs::Pods, move || {
                chatty(carrier)
            }));
        }
    }
    trials
}

fn request(stack: &Stack, token: &str, path: &str) -> Vec<u8> {
    format!(
        "GET /{}{path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\r\n",
        stack.key(),
        stack.authority()
    )
    .into_bytes()
}

/// What `/large` of [`flooding`] answers.
fn large() -> Vec<u8> {
    (0..200_000u32).flat_map(u32::to_be_bytes).collect()
}

/// An apiserver whose `/flood` never ends and counts the bytes that it could send; its other answers are small, but for
/// `/large`.
fn flooding(name: &str, sent: &Arc<AtomicUsize>) -> anyhow::Result<Apiserver> {
    use std::io::Write;
    let (sent, large) = (sent.clone(), large());
    Apiserver::start(
        &scratch(name),
        false,
        Arc::new(move |request, connection| {
            if request.target() == b"/flood" {
                connection.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
                let chunk =
                    [format!("{:x}\r\n", 64 * 1024).into_bytes(), vec![b'x'; 64 * 1024], b"\r\n".to_vec()].concat();
                loop {
                    connection.write_all(&chunk)?;
                    sent.fetch_add(chunk.len(), Ordering::Relaxed);
                }
            }
            if request.target() == b"/large" {
                return answer(connection, "200 OK", &large);
            }
            if request.target() == b"/silent" {
                connection.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
                connection.flush()?;
                // Until the peer goes away, which is what the test waits for.
                let _ = std::io::Read::read(connection, &mut [0]);
                return Ok(false);
            }
            answer(connection, "200 OK", b"{}")
        }),
    )
}

fn stalled_reader(carrier: &'static str) -> anyhow::Result<()> {
    let sent = Arc::new(AtomicUsize::new(0));
    let apiserver = flooding("stalled", &sent)?;
    let stack = Stack::start(&Plan { carrier: Some(carrier), ..Plan::scripted("stalled", &apiserver) })?;
    let token = stack.token("admin")?;
    let mut stalled: Vec<Raw> = Vec::new();
    for _ in 0..4 {
        let mut raw = stack.raw()?;
        raw.send(&request(&stack, &token, "/flood"))?;
        raw.head()?;
        stalled.push(raw);
    }
    // Nothing of the floods moves any more: every buffer on their way is full.
    let (mut last, mut since) = (0, Instant::now());
    eventually("the floods stand still", Duration::from_secs(60), || {
        let now = sent.load(Ordering::Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        }
        Ok(now > 0 && since.elapsed() > Duration::from_secs(1))
    })?;
    let before = stack.gateway.lock().unwrap().memory_kib() + stack.agent.lock().unwrap().memory_kib();
    let large = large();
    // Each of the others, all at once, small and large answers.
    let outcomes: Vec<_> = std::thread::scope(|scope| {
        let (stack, token, large) = (&stack, &token, &large);
        let others: Vec<_> = (0..20).map(|_| scope.spawn(move || reads_on(stack, token, large))).collect();
        others.into_iter().map(|other| other.join().unwrap()).collect()
    });
    outcomes.into_iter().collect::<anyhow::Result<Vec<()>>>()?;
    let more = sent.load(Ordering::Relaxed) - last;
    ensure!(more < 64 * 1024 * 1024, "the floods went on meanwhile, {more} bytes");
    let after = stack.gateway.lock().unwrap().memory_kib() + stack.agent.lock().unwrap().memory_kib();
    ensure!(after < before + 64 * 1024, "memory grew from {before} to {after} KiB behind stalled readers");
    // They were slow, not lost: what they did not read is still there for them.
    for raw in &mut stalled {
        raw.exactly(8 * 1024 * 1024)?;
    }
    Ok(())
}

fn reads_on(stack: &Stack, token: &str, large: &[u8]) -> anyhow::Result<()> {
    let mut raw = stack.raw()?;
    for round in 0..20 {
        // One that waits for the stalled ones waits longer than a read may.
        raw.send(&request(stack, token, "/small"))?;
        ensure!(raw.answer().with_context(|| format!("round {round}"))?.status == 200);
        if round % 5 == 0 {
            raw.send(&request(stack, token, "/large"))?;
            ensure!(raw.answer()?.body == large, "round {round}: the large answer is changed");
        }
    }
    Ok(())
}

/// The sum of all gauges of open things but tunnels and connections of the look itself, at the gateway and at the
/// agent.
fn open_things(stack: &Stack) -> anyhow::Result<HashMap<String, f64>> {
    let metrics = stack.admin_get("/metrics")? + &stack.agent_metrics()?;
    Ok(metrics
        .lines()
        .filter(|line| !line.starts_with('#') && line.contains("_open") && !line.contains("_tunnels_open"))
        .filter_map(|line| line.rsplit_once(' '))
        .filter_map(|(name, value)| Some((name.to_owned(), value.parse().ok()?)))
        .collect())
}

fn cancelled(carrier: &'static str) -> anyhow::Result<()> {
    let apiserver = flooding("cancelled", &Arc::default())?;
    let stack = Stack::start(&Plan { carrier: Some(carrier), ..Plan::scripted("cancelled", &apiserver) })?;
    let token = stack.token("admin")?;
    // Before the answer, within it, behind it; while the apiserver sends as fast as it can.
    let round = |count: usize| -> anyhow::Result<()> {
        for number in 0..count {
            let mut raw = stack.raw()?;
            raw.send(&request(&stack, &token, ["/silent", "/small", "/silent", "/small", "/flood"][number % 5]))?;
            if number % 4 == 0 {
                raw.head()?;
            }
        }
        Ok(())
    };
    let rounds = |count: usize| -> anyhow::Result<()> {
        std::thread::scope(|scope| {
            let handles: Vec<_> = (0..4).map(|_| scope.spawn(|| round(count))).collect();
            handles.into_iter().try_for_each(|handle| handle.join().unwrap())
        })
    };
    let settled = || {
        eventually("every gauge of open things is 0", Duration::from_secs(60), || {
            Ok(open_things(&stack)?.values().all(|value| *value == 0.0))
        })
        .with_context(|| format!("{:?}", open_things(&stack)))
    };
    // The gauges are those that move.
    let mut held: Vec<Raw> = Vec::new();
    for _ in 0..5 {
        let mut raw = stack.raw()?;
        raw.send(&request(&stack, &token, "/silent"))?;
        raw.head()?;
        held.push(raw);
    }
    let open = open_things(&stack)?;
    for name in ["gateway_connections_open", "gateway_requests_open", "gateway_streams_open", "agent_streams_open"] {
        ensure!(open.get(name).is_some_and(|value| *value >= 5.0), "{name} in {open:?}");
    }
    drop(held);
    // The first ones warm allocators and pools, which stand still after some 10,000 (measured over 40,000).
    rounds(2500)?;
    settled()?;
    let before = (stack.gateway.lock().unwrap().memory_kib(), stack.agent.lock().unwrap().memory_kib());
    rounds(2500)?;
    settled()?;
    let after = (stack.gateway.lock().unwrap().memory_kib(), stack.agent.lock().unwrap().memory_kib());
    eprintln!("   memory before {before:?}, after {after:?} KiB");
    ensure!(
        after.0 <= before.0 * 11 / 10 && after.1 <= before.1 * 11 / 10,
        "memory grew from {before:?} to {after:?} KiB"
    );
    ensure!(stack.get_with(&token, "/small")?.status == 200);
    Ok(())
}

/// Two hundred processes are started in one pod; on a small machine that takes a while.
const PATIENCE: Duration = Duration::from_secs(600);

/// A thousand watches and 200 execs, all open at the same time on one tunnel; then each of them must carry.
fn watches_and_execs(carrier: &'static str) -> anyhow::Result<()> {
    let name = namespace("many", carrier)?;
    let stack = shared(carrier);
    let kubectl = stack.kubectl("admin")?.namespace(&name);
    kubectl.apply(&pod("p", "sleep 100000"))?;
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/p", "--timeout=180s"])?;
    let mut watches = open_watches(stack, &name, 1000)?;
    let mut execs = open_execs(stack, &name, 200)?;
    let sessions = sessions(stack)?;
    let count = |what: &str| sessions.iter().filter(|session| session.contains(what)).count();
    ensure!(count("/exec") >= 200 && sessions.len() >= 1200, "{} sessions, {} execs", sessions.len(), count("/exec"));
    ensure!(stack.tunnels()?.len() == 1, "more than one tunnel");
    // Both at once again: the event goes to all watches while the execs read, answer and end.
    std::thread::scope(|scope| {
        let seen = scope.spawn(|| all_see(&mut watches, &name));
        let answered = all_answer(&mut execs);
        seen.join().unwrap().and(answered)
    })
}

fn open_watches(stack: &Stack, namespace: &str, count: usize) -> anyhow::Result<Vec<Raw>> {
    let token = stack.token("admin")?;
    let path = format!("/api/v1/namespaces/{namespace}/configmaps?watch=true&resourceVersion=0");
    let mut watches: Vec<Raw> = Vec::new();
    for _ in 0..count {
        let mut raw = stack.raw()?;
        raw.read_timeout(PATIENCE)?;
        raw.send(&request(stack, &token, &path))?;
        watches.push(raw);
    }
    for raw in &mut watches {
        ensure!(raw.head()?.contains(" 200 "));
    }
    Ok(watches)
}

fn all_see(watches: &mut [Raw], namespace: &str) -> anyhow::Result<()> {
    cluster().admin().namespace(namespace).ok(&["create", "configmap", "news"])?;
    let (seen, count) = (AtomicUsize::new(0), watches.len());
    std::thread::scope(|scope| {
        for part in watches.chunks_mut(250) {
            scope.spawn(|| {
                for raw in part {
                    let mut text = String::new();
                    while !text.contains("\"news\"") {
                        match raw.some() {
                            Ok(bytes) if !bytes.is_empty() => text += &String::from_utf8_lossy(&bytes),
                            _ => return,
                        }
                    }
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    let seen = seen.into_inner();
    ensure!(seen == count, "{seen} of {count} watches saw the event");
    Ok(())
}

/// Each waits for a line, so that all are open at once. Over plain websockets (`v4.channel.k8s.io`): 200 processes of
/// kubectl take more of a small machine than all that is tested; kubectl's own sessions are tested elsewhere.
fn open_execs(stack: &Stack, namespace: &str, count: usize) -> anyhow::Result<Vec<Raw>> {
    let token = stack.token("admin")?;
    let command = "command=sh&command=-c&command=echo+ready%3B+read+-r+line%3B+echo+got+%24line";
    let path = format!("/api/v1/namespaces/{namespace}/pods/p/exec?stdin=true&stdout=true&{command}");
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: v4.channel.k8s.io\r\n\r\n";
    let mut execs: Vec<Raw> = Vec::new();
    for _ in 0..count {
        let mut raw = stack.raw()?;
        raw.read_timeout(PATIENCE)?;
        let mut head = request(stack, &token, &path);
        head.truncate(head.len() - 2);
        raw.send(&[&head, upgrade.as_bytes()].concat())?;
        execs.push(raw);
    }
    for raw in &mut execs {
        let head = raw.head()?;
        ensure!(head.contains(" 101 "), "{head}");
    }
    // The runtime starts one after the other; only now do all run at once.
    for raw in &mut execs {
        while server_frame(raw)? != b"\x01ready\n" {}
    }
    Ok(execs)
}

fn all_answer(execs: &mut [Raw]) -> anyhow::Result<()> {
    for (number, raw) in execs.iter_mut().enumerate() {
        raw.send(&client_frame(format!("\0word {number}\n").as_bytes()))?;
    }
    for (number, raw) in execs.iter_mut().enumerate() {
        let (mut out, mut status) = (Vec::new(), Vec::new());
        while status.is_empty() {
            let frame = server_frame(raw).with_context(|| format!("exec {number}, after {out:?}"))?;
            match frame.split_first() {
                Some((1, bytes)) => out.extend_from_slice(bytes),
                Some((3, bytes)) => status.extend_from_slice(bytes),
                _ => {}
            }
        }
        let (out, status) = (String::from_utf8_lossy(&out), String::from_utf8_lossy(&status));
        ensure!(out == format!("got word {number}\n") && status.contains("Success"), "{number}: {out} {status}");
    }
    Ok(())
}

/// A binary message of a client (RFC 6455 section 5.2), masked with zeros.
fn client_frame(message: &[u8]) -> Vec<u8> {
    let length = u8::try_from(message.len()).ok().filter(|length| *length < 126).expect("a short message");
    [&[0x82, 0x80 | length, 0, 0, 0, 0], message].concat()
}

/// The next message of a server, which sends short ones.
fn server_frame(raw: &mut Raw) -> anyhow::Result<Vec<u8>> {
    let head = raw.exactly(2)?;
    ensure!(head[0] == 0x82, "a frame that begins with {:#x}", head[0]);
    let length = match head[1] {
        126 => raw.exactly(2)?.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)),
        length => usize::from(length),
    };
    raw.exactly(length)
}

/// The gateway's open sessions.
fn sessions(stack: &Stack) -> anyhow::Result<Vec<String>> {
    let list: serde_json::Value = serde_json::from_str(&stack.admin_get("/sessions")?)?;
    let list = list.as_array().or_else(|| list["sessions"].as_array()).context("no list of sessions")?;
    Ok(list.iter().map(ToString::to_string).collect())
}

/// `kubectl logs -f` of a pod that never stops.
struct Follower {
    child: Child,
    reader: Option<JoinHandle<()>>,
}

impl Follower {
    /// One that counts what it reads in `read`; without it one that does not read.
    fn start(mut logs: Command, read: Option<&Arc<AtomicUsize>>) -> anyhow::Result<Self> {
        let mut child = logs.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut reader = None;
        if let Some(read) = read {
            let (read, mut out) = (Arc::clone(read), child.stdout.take().context("no standard output")?);
            reader = Some(std::thread::spawn(move || {
                let mut buffer = vec![0; 64 * 1024];
                while let Ok(count @ 1..) = out.read(&mut buffer) {
                    read.fetch_add(count, Ordering::Relaxed);
                }
            }));
        }
        Ok(Self { child, reader })
    }

    fn reads(&self) -> bool {
        self.reader.is_some()
    }

    /// Whether it has come to an end that the kubelet made, which may lose a log when it takes a new file for it; that
    /// is an answer that is whole. One that was cut off is an error of kubectl's, and of ours.
    fn is_over(&mut self) -> anyhow::Result<bool> {
        let Some(code) = self.child.try_wait()? else { return Ok(false) };
        let mut said = String::new();
        self.child.stderr.take().context("no standard error")?.read_to_string(&mut said)?;
        ensure!(code.success(), "{code}: {said}");
        Ok(true)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// Lesson 14: a pod that prints as fast as it can, with followers that read and some that do not, must not harm the
/// cluster's path.
fn chatty(carrier: &'static str) -> anyhow::Result<()> {
    let name = namespace("chatty", carrier)?;
    let stack = shared(carrier);
    let kubectl = stack.kubectl("admin")?.namespace(&name);
    kubectl.apply(&pod("c", "yes chatty-chatty-chatty-chatty-chatty"))?;
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/c", "--timeout=180s"])?;
    let read = Arc::new(AtomicUsize::new(0));
    let follow = |reads: bool| Follower::start(kubectl.command(&["logs", "-f", "c"]), reads.then_some(&read));
    let mut followers = [follow(true)?, follow(false)?];
    let start = Instant::now();
    let (mut slowest, mut rounds, mut ended) = (Duration::ZERO, 0, 0);
    let outcome = (|| {
        while start.elapsed() < Duration::from_secs(if full() { 60 } else { 20 }) {
            let output = kubectl.run(&["get", "pods"])?;
            output.ok()?;
            slowest = slowest.max(output.took);
            ensure!(kubectl.ok(&["exec", "c", "--", "echo", "usable"])? == "usable\n");
            rounds += 1;
            for follower in &mut followers {
                let (reads, over) = (follower.reads(), follower.is_over());
                if over.with_context(|| format!("a follower, reads: {reads}, after {:?}", start.elapsed()))? {
                    ended += 1;
                    *follower = follow(reads)?;
                }
            }
        }
        // One for each.
        ensure!(ended <= 2, "followers have ended {ended} times");
        Ok(())
    })();
    drop(followers);
    kubectl.ok(&["delete", "pod", "c", "--wait=false"])?;
    let read = read.load(Ordering::Relaxed);
    eprintln!(
        "   {rounds} rounds, the slowest get took {slowest:?}; {} MB were followed, {ended} times to an end",
        read / 1_000_000
    );
    outcome?;
    ensure!(slowest < Duration::from_secs(10), "kubectl get took {slowest:?} beside a chatty pod");
    // How much a machine writes, and its kubelet hands on line by line, differs more than tenfold.
    ensure!(read > 1_000_000, "only {read} bytes were followed");
    Ok(())
}
