//! The agent behind an HTTP CONNECT proxy (features row N3): basic authentication, a private CA, and bad manners.

use std::time::Duration;

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use tests::{
    apiserver::Apiserver,
    case::{Needs, case},
    programs::{eventually, scratch},
    proxy::{Manner, Proxy},
    stack::{Plan, Stack},
};

pub fn tests() -> Vec<Trial> {
    vec![
        case("proxies::h2_through_a_plain_proxy", Needs::Nothing, || good("h2", false)),
        case("proxies::websocket_through_a_tls_proxy_with_its_own_ca", Needs::Nothing, || good("websocket", true)),
        case("proxies::denied_then_allowed", Needs::Nothing, || bad(Manner::Denies, &["407"])),
        case("proxies::hangs_then_answers", Needs::Nothing, || bad(Manner::Hangs, &["proxy"])),
        case("proxies::resets_then_answers", Needs::Nothing, || bad(Manner::Resets, &["proxy"])),
        case("proxies::closes_when_silent", Needs::Nothing, closes_when_silent),
    ]
}

fn start(
    name: &'static str,
    carrier: Option<&'static str>,
    tls: bool,
    manner: Manner,
) -> anyhow::Result<(Apiserver, Proxy, Stack)> {
    let dir = scratch(name);
    let apiserver = Apiserver::plain(&dir)?;
    let proxy = Proxy::start(&dir, tls, manner)?;
    let config = proxy.agent_config(&dir)?;
    tests::stack::note_secret(tests::proxy::CREDENTIALS.1)?;
    let stack =
        Stack::start_without_waiting(&Plan { carrier, agent_config: &config, ..Plan::scripted(name, &apiserver) })?;
    Ok((apiserver, proxy, stack))
}

fn good(carrier: &'static str, tls: bool) -> anyhow::Result<()> {
    let (_apiserver, proxy, stack) = start("proxy-good", Some(carrier), tls, Manner::Good)?;
    stack.await_connected(Duration::from_secs(10))?;
    ensure!(proxy.connects() >= 1, "the agent went around its proxy");
    ensure!(stack.tunnels()?.iter().any(|tunnel| tunnel["carrier"] == carrier), "{:?}", stack.tunnels()?);
    Ok(())
}

fn bad(manner: Manner, words: &[&str]) -> anyhow::Result<()> {
    let (_apiserver, proxy, stack) = start("proxy-bad", Some("h2"), false, manner)?;
    eventually("the agent's log names the hop", Duration::from_secs(30), || {
        let log = std::fs::read_to_string(&stack.agent.lock().unwrap().log)?.to_lowercase();
        Ok(words.iter().all(|word| log.contains(word)))
    })
    .with_context(|| stack.agent.lock().unwrap().tail())?;
    ensure!(proxy.connects() < 200, "the agent asks the proxy without a pause: {}", proxy.connects());
    proxy.behave(Manner::Good);
    stack.await_connected(Duration::from_secs(40))?;
    Ok(())
}

fn closes_when_silent() -> anyhow::Result<()> {
    // Probes keep the proxy from seeing a minute of silence: the tunnel that is up stays up.
    let (_apiserver, proxy, stack) =
        start("proxy-silent", Some("websocket"), false, Manner::ClosesWhenSilent(Duration::from_secs(16)))?;
    stack.await_connected(Duration::from_secs(10))?;
    let before = proxy.connects();
    let until = std::time::Instant::now() + Duration::from_secs(20);
    eventually("more than the proxy's patience has passed", Duration::from_secs(30), || {
        Ok(std::time::Instant::now() > until)
    })?;
    ensure!(stack.get("admin", "/api")?.status == 200);
    ensure!(proxy.connects() == before, "the tunnel was made anew");
    Ok(())
}
