//! The agent behind an HTTP CONNECT proxy (docs/features.md N3): basic authentication, a private CA, and bad manners.

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
        case("proxies::t13_another_proxy_takes_effect_by_itself", Needs::Nothing, another_proxy),
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

/// The file changes, as a mounted one does, and the agent moves to the new way without being started again. A file that
/// cannot be used changes nothing.
fn another_proxy() -> anyhow::Result<()> {
    let (_apiserver, first, stack) = start("proxy-another", Some("h2"), false, Manner::Good)?;
    stack.await_connected(Duration::from_secs(40))?;
    let dir = scratch("proxy-another-second");
    let second = Proxy::start(&dir, true, Manner::Good)?;
    let file = stack.info["clusters"][0]["agent_config"].as_str().context("no agent_config")?;
    let text = std::fs::read_to_string(file)?;
    let at = text.find("[proxy]").context("no proxy in the file")?;
    let (own, rest) = text.split_at(at);
    let rest = rest[1..].find("\n[").map_or("", |end| &rest[end + 1..]);

    std::fs::write(file, format!("{own}{rest}\n[proxy]\nurl = \"socks://x\"\n"))?;
    let says = |what: &str| -> anyhow::Result<bool> {
        Ok(std::fs::read_to_string(&stack.agent.lock().unwrap().log)?.contains(what))
    };
    eventually("what cannot be used is said", Duration::from_secs(60), || says("those from before stay"))?;
    ensure!(stack.get("admin", "/api")?.status == 200);

    std::fs::write(file, format!("{own}{rest}\n{}", second.agent_config(&dir)?))?;
    eventually("the tunnel goes through the other proxy", Duration::from_secs(60), || Ok(second.connects() > 0))
        .with_context(|| stack.agent.lock().unwrap().tail())?;
    eventually("requests get through it", Duration::from_secs(60), || {
        Ok(stack.get("admin", "/api").is_ok_and(|answer| answer.status == 200))
    })?;
    let before = first.connects();
    std::fs::write(file, format!("{own}{rest}"))?;
    eventually("without a proxy", Duration::from_secs(60), || {
        let moved = std::fs::read_to_string(&stack.agent.lock().unwrap().log)?;
        Ok(moved.matches("the outbound proxy's settings changed").count() == 2)
    })?;
    stack.await_connected(Duration::from_secs(60))?;
    ensure!(first.connects() == before, "nothing goes back to the first one");
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
