//! Many things at once, and readers that do not read.

use std::{
    process::{Child, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use tests::{
    apiserver::{Apiserver, answer},
    case::{Needs, alone, full},
    cluster::cluster,
    kubectl::{Kubectl, pod},
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
            trials.push(alone(
                format!("load::a_thousand_watches_and_200_execs_at_once::{carrier}"),
                Needs::Pods,
                move || watches_and_execs(carrier),
            ));
            trials.push(alone(
                format!("load::ten_thousand_cancelled_requests::{carrier}"),
                Needs::Nothing,
                move || cancelled(carrier),
            ));
        }
        if full() || index == 1 {
            trials.push(alone(format!("load::chatty_pod_with_logs_follow::{carrier}"), Needs::Pods, move || {
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

/// An apiserver whose `/flood` never ends and whose other answers are small.
fn flooding(name: &str) -> anyhow::Result<Apiserver> {
    use std::io::Write;
    Apiserver::start(
        &scratch(name),
        false,
        Arc::new(|request, connection| {
            if request.target() == b"/flood" {
                connection.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
                let chunk =
                    [format!("{:x}\r\n", 64 * 1024).into_bytes(), vec![b'x'; 64 * 1024], b"\r\n".to_vec()].concat();
                loop {
                    connection.write_all(&chunk)?;
                }
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
    let apiserver = flooding("stalled")?;
    let stack = Stack::start(&Plan { carrier: Some(carrier), ..Plan::scripted("stalled", &apiserver) })?;
    let token = stack.token("admin")?;
    let mut stalled: Vec<Raw> = Vec::new();
    for _ in 0..4 {
        let mut raw = stack.raw()?;
        raw.send(&request(&stack, &token, "/flood"))?;
        raw.head()?;
        stalled.push(raw);
    }
    let before = stack.gateway.lock().unwrap().memory_kib() + stack.agent.lock().unwrap().memory_kib();
    let mut others: Vec<Raw> = (0..20).map(|_| stack.raw()).collect::<anyhow::Result<_>>()?;
    for round in 0..20 {
        for raw in &mut others {
            let start = Instant::now();
            raw.send(&request(&stack, &token, "/small"))?;
            ensure!(raw.answer()?.status == 200);
            ensure!(start.elapsed() < Duration::from_secs(2), "round {round}: an answer took {:?}", start.elapsed());
        }
    }
    let after = stack.gateway.lock().unwrap().memory_kib() + stack.agent.lock().unwrap().memory_kib();
    ensure!(after < before + 64 * 1024, "memory grew from {before} to {after} KiB behind stalled readers");
    Ok(())
}

fn cancelled(carrier: &'static str) -> anyhow::Result<()> {
    let apiserver = flooding("cancelled")?;
    let stack = Stack::start(&Plan { carrier: Some(carrier), ..Plan::scripted("cancelled", &apiserver) })?;
    let token = stack.token("admin")?;
    let round = |count: usize| -> anyhow::Result<()> {
        for number in 0..count {
            let mut raw = stack.raw()?;
            raw.send(&request(&stack, &token, if number % 2 == 0 { "/silent" } else { "/small" }))?;
            if number % 4 == 0 {
                raw.head()?;
            }
        }
        Ok(())
    };
    let settled = || {
        eventually("every gauge of open things is 0", Duration::from_secs(30), || {
            let metrics = stack.admin_get("/metrics")?;
            let open = metrics
                .lines()
                .filter(|line| !line.starts_with('#') && line.contains("_open") && !line.contains("tunnel"))
                .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .sum::<f64>();
            Ok(open == 0.0)
        })
        .with_context(|| stack.admin_get("/metrics").unwrap_or_default())
    };
    // The first ones warm allocators and pools.
    round(2000)?;
    settled()?;
    let before = (stack.gateway.lock().unwrap().memory_kib(), stack.agent.lock().unwrap().memory_kib());
    let threads: Vec<_> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..4).map(|_| scope.spawn(|| round(2500))).collect();
        handles.into_iter().map(|handle| handle.join().unwrap()).collect()
    });
    threads.into_iter().collect::<anyhow::Result<Vec<()>>>()?;
    settled()?;
    let after = (stack.gateway.lock().unwrap().memory_kib(), stack.agent.lock().unwrap().memory_kib());
    // An allocator keeps some pages: 10 % and 4 MiB.
    ensure!(
        after.0 <= before.0 * 11 / 10 + 4096 && after.1 <= before.1 * 11 / 10 + 4096,
        "memory grew from {before:?} to {after:?} KiB"
    );
    ensure!(stack.get_with(&token, "/small")?.status == 200);
    Ok(())
}

/// A thousand watches and 200 execs, all open at the same time on one tunnel; then each of them must carry.
fn watches_and_execs(carrier: &'static str) -> anyhow::Result<()> {
    let name = namespace("many", carrier)?;
    let stack = shared(carrier);
    let kubectl = stack.kubectl("admin")?.namespace(&name).within(Duration::from_secs(300));
    kubectl.apply(&pod("p", "sleep 100000"))?;
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/p", "--timeout=60s"])?;
    let mut watches = open_watches(stack, &name, 1000)?;
    let mut children = open_execs(&kubectl, 200)?;
    let opened = eventually("200 execs and 1000 watches are open", Duration::from_secs(480), || {
        let sessions = sessions(stack)?;
        let count = |what: &str| sessions.iter().filter(|session| session.contains(what)).count();
        Ok(count("exec") >= 200 && sessions.len() >= 1200)
    })
    .with_context(|| format!("{} sessions", sessions(stack).map_or(0, |sessions| sessions.len())));
    let tunnels = stack.tunnels()?.len();
    // Both at once again: the event goes to all watches while the execs read, answer and end.
    let outcome = std::thread::scope(|scope| {
        let seen = scope.spawn(|| all_see(&mut watches, &name));
        let answered = all_answer(&mut children);
        seen.join().unwrap().and(answered)
    });
    for child in &mut children {
        let _ = child.kill();
        let _ = child.wait();
    }
    opened?;
    outcome?;
    ensure!(tunnels == 1, "{tunnels} tunnels");
    Ok(())
}

fn open_watches(stack: &Stack, namespace: &str, count: usize) -> anyhow::Result<Vec<Raw>> {
    let token = stack.token("admin")?;
    let path = format!("/api/v1/namespaces/{namespace}/configmaps?watch=true&resourceVersion=0");
    let mut watches: Vec<Raw> = Vec::new();
    for _ in 0..count {
        let mut raw = stack.raw()?;
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

/// Each waits for a line, so that all are open at once.
fn open_execs(kubectl: &Kubectl, count: usize) -> anyhow::Result<Vec<Child>> {
    let exec = || {
        kubectl
            .command(&["exec", "-i", "p", "--", "sh", "-c", "read -r line; echo got $line"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
    };
    Ok((0..count).map(|_| exec()).collect::<Result<_, _>>()?)
}

fn all_answer(children: &mut [Child]) -> anyhow::Result<()> {
    use std::io::{Read, Write};
    for (number, child) in children.iter_mut().enumerate() {
        let _ = writeln!(child.stdin.take().context("no standard input")?, "word {number}");
    }
    let (mut good, mut bad, count) = (0, String::new(), children.len());
    for (number, child) in children.iter_mut().enumerate() {
        let (mut out, mut err) = (String::new(), String::new());
        child.stdout.take().context("no standard output")?.read_to_string(&mut out)?;
        child.stderr.take().context("no standard error")?.read_to_string(&mut err)?;
        if out == format!("got word {number}\n") && child.wait()?.success() {
            good += 1;
        } else {
            bad = format!("{number}: {out}{err}");
        }
    }
    ensure!(good == count, "{good} of {count} answered: {bad}");
    Ok(())
}

/// The gateway's open sessions.
fn sessions(stack: &Stack) -> anyhow::Result<Vec<String>> {
    let list: serde_json::Value = serde_json::from_str(&stack.admin_get("/sessions")?)?;
    let list = list.as_array().or_else(|| list["sessions"].as_array()).context("no list of sessions")?;
    Ok(list.iter().map(ToString::to_string).collect())
}

fn chatty(carrier: &'static str) -> anyhow::Result<()> {
    // Lesson 14: a pod that prints as fast as it can, with a follower that is slow, must not harm the cluster's path.
    let name = namespace("chatty", carrier)?;
    let stack = shared(carrier);
    let kubectl = stack.kubectl("admin")?.namespace(&name);
    kubectl.apply(&pod("c", "yes chatty-chatty-chatty-chatty-chatty"))?;
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/c", "--timeout=60s"])?;
    let mut followers = Vec::new();
    for _ in 0..2 {
        let mut child = kubectl.command(&["logs", "-f", "c"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
        followers.push((child.stdout.take(), child));
    }
    let seconds = if full() { 60 } else { 20 };
    let start = Instant::now();
    let mut slowest = Duration::ZERO;
    while start.elapsed() < Duration::from_secs(seconds) {
        let output = kubectl.run(&["get", "pods"])?;
        output.ok()?;
        slowest = slowest.max(output.took);
    }
    for (_, mut child) in followers {
        let _ = child.kill();
        let _ = child.wait();
    }
    kubectl.ok(&["delete", "pod", "c", "--wait=false"])?;
    ensure!(slowest < Duration::from_secs(10), "kubectl get took {slowest:?} beside a chatty pod");
    Ok(())
}
