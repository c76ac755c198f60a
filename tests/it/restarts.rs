//! Gateway and agent killed, restarted and replaced under load (docs/features.md T5).

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use tests::{
    apiserver::{Apiserver, answer},
    case::{Needs, alone, full, loads},
    programs::{Program, eventually, scratch},
    raw::Answer,
    stack::{CARRIERS, Plan, Stack},
};

pub fn tests() -> Vec<Trial> {
    let mut trials = vec![
        loads("restarts::agent_killed_under_open_requests_on_quic", Needs::Nothing, agent_killed),
        loads("restarts::drained_with_sigterm_under_load", Needs::Nothing, drained),
    ];
    for (place, carrier) in CARRIERS.into_iter().enumerate() {
        if full() || place == 0 {
            let name = format!("restarts::t5_gateway_killed_20_times_under_load::{carrier}");
            trials.push(alone(name, Needs::Nothing, move || gateway_killed(carrier)));
        }
        if full() || place == 1 {
            let name = format!("restarts::agents_replaced_one_after_the_other::{carrier}");
            trials.push(loads(name, Needs::Nothing, move || agents_replaced(carrier)));
        }
    }
    trials
}

/// How long an answer may take before its request counts as hanging.
const HANGS: Duration = Duration::from_secs(10);

/// What became of the requests of a load.
#[derive(Default)]
struct Counts {
    good: AtomicUsize,
    failed: AtomicUsize,
    hung: AtomicUsize,
}

impl Counts {
    fn of(count: &AtomicUsize) -> usize {
        count.load(Ordering::Relaxed)
    }

    /// Waits until `count` more were answered.
    fn more(&self, count: usize) -> anyhow::Result<()> {
        let before = Self::of(&self.good);
        eventually("the load goes on", Duration::from_secs(20), || Ok(Self::of(&self.good) >= before + count))?;
        Ok(())
    }
}

/// Sends POSTs with a number each, one after the other, until told.
fn load(stack: &Stack, token: &str, stop: &AtomicBool, first: usize, counts: &Counts) {
    let mut number = first;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let start = Instant::now();
        let call = || -> anyhow::Result<u16> {
            let mut raw = stack.raw()?;
            raw.read_timeout(HANGS)?;
            raw.send(format!("POST /{}/api/once-{number}- HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nContent-Length: 2\r\n\r\n{{}}", stack.key(), stack.authority()).as_bytes())?;
            Ok(raw.answer()?.status)
        };
        let count = if matches!(call(), Ok(200)) { &counts.good } else { &counts.failed };
        count.fetch_add(1, Ordering::Relaxed);
        if start.elapsed() >= HANGS {
            counts.hung.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// An apiserver that takes its time for each request, so that some are always open.
fn thinking_apiserver(name: &str) -> anyhow::Result<Apiserver> {
    Apiserver::start(
        &scratch(name),
        false,
        Arc::new(|request, connection| {
            if request.target().starts_with(b"/api/once-") {
                // The apiserver's own pace, not a wait of the test.
                std::thread::park_timeout(Duration::from_millis(50));
            }
            answer(connection, "200 OK", b"{}")
        }),
    )
}

/// No number arrived more than once: what is not idempotent is never sent twice.
fn never_twice(apiserver: &Apiserver) -> anyhow::Result<()> {
    let mut counts = HashMap::new();
    for request in apiserver.received() {
        if request.text().contains("/api/once-") {
            *counts.entry(request.target().to_vec()).or_insert(0) += 1;
        }
    }
    ensure!(!counts.is_empty(), "no load arrived");
    let twice: Vec<_> =
        counts.iter().filter(|(_, count)| **count > 1).map(|(target, _)| String::from_utf8_lossy(target)).collect();
    ensure!(twice.is_empty(), "arrived more than once: {twice:?}");
    Ok(())
}

fn gateway_killed(carrier: &'static str) -> anyhow::Result<()> {
    let apiserver = thinking_apiserver("killed")?;
    let stack = Stack::start(&Plan { carrier: Some(carrier), ..Plan::scripted("killed", &apiserver) })?;
    let token = stack.token("admin")?;
    let (stop, counts) = (AtomicBool::new(false), Counts::default());
    let mut back = Vec::new();
    std::thread::scope(|scope| {
        for n in 0..4 {
            let (stack, token, stop, counts) = (&stack, &token, &stop, &counts);
            scope.spawn(move || load(stack, token, stop, n * 1_000_000, counts));
        }
        let outcome = (0..20).try_for_each(|round| {
            counts.more(8)?;
            stack.gateway.lock().unwrap().signal("KILL")?;
            stack.restart_gateway()?;
            let took = eventually("the agent is back", Duration::from_secs(30), || {
                Ok(stack.get_with(&token, "/api").is_ok_and(|answer| answer.status == 200))
            })
            .with_context(|| format!("round {round}: {}", stack.agent.lock().unwrap().tail()))?;
            back.push(took);
            Ok::<_, anyhow::Error>(())
        });
        stop.store(true, Ordering::Relaxed);
        outcome
    })?;
    never_twice(&apiserver)?;
    let (good, failed, hung) = (Counts::of(&counts.good), Counts::of(&counts.failed), Counts::of(&counts.hung));
    eprintln!("   {good} answered, {failed} failed, {hung} hung; the agent was back after {back:?}");
    ensure!(hung == 0, "{hung} requests hung");
    ensure!(failed >= 20, "only {failed} requests were open when the gateway was killed");
    let slowest = back.iter().max().copied().unwrap_or_default();
    ensure!(slowest < Duration::from_secs(2), "the agent was back after {back:?}");
    Ok(())
}

/// An apiserver that never answers `/silent`.
pub fn silent_apiserver(name: &str) -> anyhow::Result<Apiserver> {
    Apiserver::start(
        &scratch(name),
        false,
        Arc::new(|request, connection| {
            if request.target().starts_with(b"/silent") {
                // Until the agent goes away.
                let _ = std::io::copy(connection, &mut std::io::sink());
                return Ok(false);
            }
            answer(connection, "200 OK", b"{}")
        }),
    )
}

/// Two requests wait for their answers when `lose` takes the tunnel away without a word: both are answered, and only
/// what changes nothing in such a way that kubectl repeats it.
pub fn requests_lost_with_their_tunnel(
    stack: &Stack,
    apiserver: &Apiserver,
    lose: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let token = stack.token("admin")?;
    let call = |method: &str| -> anyhow::Result<Answer> {
        let (key, host) = (stack.key(), stack.authority());
        let mut raw = stack.raw()?;
        raw.send(
            format!("{method} /{key}/silent HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nContent-Length: 0\r\n\r\n")
                .as_bytes(),
        )?;
        raw.answer()
    };
    std::thread::scope(|scope| {
        let calls = ["GET", "POST"].map(|method| {
            let call = &call;
            scope.spawn(move || call(method))
        });
        eventually("both have arrived", Duration::from_secs(10), || {
            Ok(apiserver.received().iter().filter(|request| request.target() == b"/silent").count() == 2)
        })?;
        lose()?;
        let [get, post] = calls.map(|call| call.join().unwrap().context("hangs"));
        let (get, post) = (get?, post?);
        ensure!(get.status == 503 && get.header("retry-after").is_some(), "{}", get.head);
        ensure!(post.status == 502 && post.header("retry-after").is_none(), "{}", post.head);
        Ok(())
    })
}

/// Without a close the gateway learned of it after 20 s, the read timeout of the user here.
fn agent_killed() -> anyhow::Result<()> {
    let apiserver = silent_apiserver("agent-killed")?;
    let stack = Stack::start(&Plan { carrier: Some("quic"), ..Plan::scripted("agent-killed", &apiserver) })?;
    requests_lost_with_their_tunnel(&stack, &apiserver, || stack.agent.lock().unwrap().signal("KILL"))?;
    let token = stack.token("admin")?;
    ensure!(stack.get_with(&token, "/api")?.status == 503);
    *stack.agent.lock().unwrap() = stack.another_agent()?;
    eventually("the next agent serves", Duration::from_secs(10), || Ok(stack.get_with(&token, "/api")?.status == 200))?;
    Ok(())
}

fn slow_apiserver(name: &str) -> anyhow::Result<Apiserver> {
    Apiserver::start(
        &scratch(name),
        false,
        Arc::new(|request, connection| {
            if request.target().starts_with(b"/slow") {
                // The apiserver's own pace, not a wait of the test.
                std::thread::park_timeout(Duration::from_secs(2));
            }
            answer(connection, "200 OK", b"{}")
        }),
    )
}

fn drained() -> anyhow::Result<()> {
    for who in ["gateway", "agent"] {
        let apiserver = slow_apiserver("drained")?;
        let stack = Stack::start(&Plan::scripted("drained", &apiserver))?;
        let token = stack.token("admin")?;
        let good = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let calls: Vec<_> =
                (0..20).map(|_| scope.spawn(|| stack.get_with(&token, "/slow").map(|answer| answer.status))).collect();
            eventually("all have arrived", Duration::from_secs(10), || {
                Ok(apiserver.received().iter().filter(|request| request.target() == b"/slow").count() == 20)
            })?;
            let program = if who == "gateway" { &stack.gateway } else { &stack.agent };
            program.lock().unwrap().signal("TERM")?;
            for call in calls {
                let status =
                    call.join().unwrap().with_context(|| format!("a request failed while the {who} drained"))?;
                ensure!(status == 200, "{status} while the {who} drained");
                good.fetch_add(1, Ordering::Relaxed);
            }
            let code = program.lock().unwrap().wait(Duration::from_secs(15))?;
            ensure!(code == Some(0), "{who} ended with {code:?}");
            Ok(())
        })?;
        ensure!(good.load(Ordering::Relaxed) == 20);
    }
    Ok(())
}

fn agents_replaced(carrier: &'static str) -> anyhow::Result<()> {
    let apiserver = thinking_apiserver("replaced")?;
    let stack = Stack::start(&Plan { carrier: Some(carrier), ..Plan::scripted("replaced", &apiserver) })?;
    let token = stack.token("admin")?;
    let (stop, counts) = (AtomicBool::new(false), Counts::default());
    let two = |what: &str| eventually(what, Duration::from_secs(15), || Ok(stack.tunnels()?.len() >= 2));
    let end = |agent: &mut Program| -> anyhow::Result<()> {
        agent.signal("TERM")?;
        ensure!(agent.wait(Duration::from_secs(20))? == Some(0), "an agent ended badly: {}", agent.tail());
        Ok(())
    };
    std::thread::scope(|scope| {
        for n in 0..3 {
            let (stack, token, stop, counts) = (&stack, &token, &stop, &counts);
            scope.spawn(move || load(stack, token, stop, n * 1_000_000, counts));
        }
        let outcome = (|| {
            let mut second = stack.another_agent()?;
            two("two agents are connected")?;
            counts.more(30)?;
            end(&mut stack.agent.lock().unwrap())?;
            counts.more(30)?;
            let third = stack.another_agent()?;
            two("two agents are connected again")?;
            counts.more(30)?;
            end(&mut second)?;
            counts.more(30)?;
            *stack.agent.lock().unwrap() = third;
            Ok::<_, anyhow::Error>(())
        })();
        stop.store(true, Ordering::Relaxed);
        outcome
    })?;
    let (good, failed) = (Counts::of(&counts.good), Counts::of(&counts.failed));
    eprintln!("   {good} answered, {failed} failed");
    ensure!(failed == 0, "{failed} requests failed while agents were replaced");
    never_twice(&apiserver)
}
