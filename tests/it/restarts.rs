//! Gateway and agent killed, restarted and replaced under load (features row T5, lessons 12-15, 36, 37).

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use tests::{
    apiserver::{Apiserver, answer},
    case::{Needs, alone},
    programs::{eventually, scratch},
    stack::{Plan, Stack},
};

pub fn tests() -> Vec<Trial> {
    vec![
        alone("restarts::gateway_killed_20_times_under_load", Needs::Nothing, gateway_killed),
        alone("restarts::drained_with_sigterm_under_load", Needs::Nothing, drained),
        alone("restarts::agents_replaced_one_after_the_other", Needs::Nothing, agents_replaced),
    ]
}

/// Sends POSTs with a number each, one after the other, until told; returns how many were answered 200.
fn load(stack: &Stack, token: &str, stop: &AtomicBool, first: usize) -> (usize, usize) {
    let (mut good, mut failed, mut number) = (0, 0, first);
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let call = || -> anyhow::Result<u16> {
            let mut raw = stack.raw()?;
            raw.read_timeout(Duration::from_secs(10))?;
            raw.send(format!("POST /{}/api/once-{number}- HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\nContent-Length: 2\r\n\r\n{{}}", stack.key(), stack.authority()).as_bytes())?;
            Ok(raw.answer()?.status)
        };
        if matches!(call(), Ok(200)) { good += 1 } else { failed += 1 }
    }
    (good, failed)
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

fn gateway_killed() -> anyhow::Result<()> {
    let apiserver = Apiserver::plain(&scratch("killed"))?;
    let stack = Stack::start(&Plan::scripted("killed", &apiserver))?;
    let token = stack.token("admin")?;
    let stop = AtomicBool::new(false);
    let mut back = Vec::new();
    let result = std::thread::scope(|scope| {
        let loads: Vec<_> = (0..4)
            .map(|n| {
                scope.spawn({
                    let (stack, token, stop) = (&stack, &token, &stop);
                    move || load(stack, token, stop, n * 1_000_000)
                })
            })
            .collect();
        let outcome = (0..20).try_for_each(|round| {
            stack.gateway.lock().unwrap().signal("KILL")?;
            stack.restart_gateway()?;
            let took = eventually("the agent is back", Duration::from_secs(10), || {
                Ok(stack.get_with(&token, "/api").is_ok_and(|answer| answer.status == 200))
            })
            .with_context(|| format!("round {round}: {}", stack.agent.lock().unwrap().tail()))?;
            back.push(took);
            Ok::<_, anyhow::Error>(())
        });
        stop.store(true, Ordering::Relaxed);
        for load in loads {
            let (good, _) = load.join().unwrap();
            eprintln!("   {good} answered");
        }
        outcome
    });
    result?;
    never_twice(&apiserver)?;
    let slowest = back.iter().max().copied().unwrap_or_default();
    ensure!(slowest < Duration::from_secs(2), "the agent was back after {back:?}");
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

fn agents_replaced() -> anyhow::Result<()> {
    let apiserver = Apiserver::plain(&scratch("replaced"))?;
    let stack = Stack::start(&Plan::scripted("replaced", &apiserver))?;
    let token = stack.token("admin")?;
    let stop = AtomicBool::new(false);
    let tunnels = || -> anyhow::Result<usize> { Ok(stack.tunnels()?.len()) };
    std::thread::scope(|scope| {
        let loads: Vec<_> = (0..3)
            .map(|n| {
                scope.spawn({
                    let (stack, token, stop) = (&stack, &token, &stop);
                    move || load(stack, token, stop, n * 1_000_000)
                })
            })
            .collect();
        let outcome = (|| {
            let second = stack.another_agent()?;
            eventually("two agents are connected", Duration::from_secs(15), || Ok(tunnels()? >= 2))?;
            stack.agent.lock().unwrap().signal("TERM")?;
            stack.agent.lock().unwrap().wait(Duration::from_secs(20))?;
            let third = stack.another_agent()?;
            eventually("two agents are connected again", Duration::from_secs(15), || Ok(tunnels()? >= 2))?;
            second.signal("TERM")?;
            let mut second = second;
            second.wait(Duration::from_secs(20))?;
            *stack.agent.lock().unwrap() = third;
            Ok::<_, anyhow::Error>(())
        })();
        stop.store(true, Ordering::Relaxed);
        let mut failures = 0;
        for load in loads {
            let (good, failed) = load.join().unwrap();
            eprintln!("   {good} answered, {failed} failed");
            failures += failed;
        }
        outcome?;
        ensure!(failures == 0, "{failures} requests failed while agents were replaced");
        Ok(())
    })?;
    never_twice(&apiserver)
}
