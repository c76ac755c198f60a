//! Many things at once, and readers that do not read.

use std::{
    process::Stdio,
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
            trials.push(alone(format!("load::a_thousand_watches_at_once::{carrier}"), Needs::Cluster, move || {
                watches(carrier)
            }));
            trials.push(alone(
                format!("load::ten_thousand_cancelled_requests::{carrier}"),
                Needs::Nothing,
                move || cancelled(carrier),
            ));
        }
        if full() || index == 1 {
            trials.push(alone(format!("load::200_execs_at_once::{carrier}"), Needs::Pods, move || execs(carrier)));
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

fn watches(carrier: &'static str) -> anyhow::Result<()> {
    let name = namespace("watches", carrier)?;
    let stack = shared(carrier);
    let token = stack.token("admin")?;
    let path = format!("/api/v1/namespaces/{name}/configmaps?watch=true&resourceVersion=0");
    let mut watches: Vec<Raw> = Vec::new();
    for _ in 0..1000 {
        let mut raw = stack.raw()?;
        raw.send(&request(stack, &token, &path))?;
        watches.push(raw);
    }
    for raw in &mut watches {
        ensure!(raw.head()?.contains(" 200 "));
    }
    cluster().admin().namespace(&name).ok(&["create", "configmap", "news"])?;
    let seen = AtomicUsize::new(0);
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
    ensure!(seen.load(Ordering::Relaxed) == 1000, "{} of 1000 watches saw the event", seen.load(Ordering::Relaxed));
    Ok(())
}

fn execs(carrier: &'static str) -> anyhow::Result<()> {
    let name = namespace("execs", carrier)?;
    let kubectl = shared(carrier).kubectl("admin")?.namespace(&name).within(Duration::from_secs(300));
    kubectl.apply(&pod("p", "sleep 100000"))?;
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/p", "--timeout=60s"])?;
    // All are open at once: each waits for a line that is sent when the last has begun.
    let mut children = Vec::new();
    for _ in 0..200 {
        children.push(
            kubectl
                .command(&["exec", "-i", "p", "--", "sh", "-c", "read -r line; echo got $line"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()?,
        );
    }
    let sessions = |stack: &Stack| -> anyhow::Result<usize> {
        let list: serde_json::Value = serde_json::from_str(&stack.admin_get("/sessions")?)?;
        let list = list.as_array().or_else(|| list["sessions"].as_array()).context("no list of sessions")?.clone();
        Ok(list.iter().filter(|session| session.to_string().contains("exec")).count())
    };
    let opened = eventually("200 execs are open", Duration::from_secs(240), || Ok(sessions(shared(carrier))? >= 200));
    for child in &mut children {
        use std::io::Write;
        let _ = child.stdin.take().unwrap().write_all(b"word\n");
    }
    let mut good = 0;
    let mut bad = String::new();
    for child in children {
        let output = child.wait_with_output()?;
        if output.stdout == b"got word\n" {
            good += 1;
        } else {
            bad = String::from_utf8_lossy(&output.stderr).into_owned();
        }
    }
    opened?;
    ensure!(good == 200, "{good} of 200 answered: {bad}");
    Ok(())
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
