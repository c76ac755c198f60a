//! Adverse networks, in network namespaces: the agent is inside, the gateway outside (docs/features.md T1-T6).

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use tests::{
    apiserver::{Apiserver, answer},
    case::{Needs, alone, waits},
    network::Namespace,
    programs::{eventually, scratch},
    raw::Raw,
    stack::{Plan, Stack},
};

use crate::restarts::{requests_lost_with_their_tunnel, silent_apiserver};

pub fn tests() -> Vec<Trial> {
    vec![
        waits("networks::inbound_all_dropped", Needs::Namespaces, inbound_dropped),
        waits("networks::n1_an_agent_needs_one_host_and_one_port", Needs::Namespaces, one_host_and_port),
        alone("networks::udp_dropped_from_the_start", Needs::Namespaces, udp_dropped_from_start),
        waits("networks::udp_dropped_under_open_requests", Needs::Namespaces, udp_dropped_under_requests),
        waits("networks::lossy_quic_is_left_for_tcp", Needs::Namespaces, lossy_quic_is_left),
        waits("networks::udp_dropped_in_the_middle_then_restored", Needs::Namespaces, udp_dropped_then_restored),
        waits("networks::black_hole_is_known_within_30_s::quic", Needs::Namespaces, || black_hole("quic")),
        waits("networks::black_hole_is_known_within_30_s::h2", Needs::Namespaces, || black_hole("h2")),
        waits("networks::black_hole_is_known_within_30_s::websocket", Needs::Namespaces, || black_hole("websocket")),
        waits("networks::nat_gives_another_port_under_quic", Needs::Namespaces, || nat_rebinding(Nat::Port, true)),
        waits("networks::nat_gives_another_address_under_quic", Needs::Namespaces, || {
            nat_rebinding(Nat::Address, true)
        }),
        waits("networks::nat_gives_another_port_without_gso", Needs::Namespaces, || nat_rebinding(Nat::Port, false)),
        waits("networks::nat_gives_another_address_without_gso", Needs::Namespaces, || {
            nat_rebinding(Nat::Address, false)
        }),
    ]
}

/// A stack whose agent is in the namespace. The scripted apiserver is inside too, because that is where a cluster is.
fn stack(name: &'static str, namespace: &Namespace, carrier: Option<&'static str>) -> anyhow::Result<(Stack, Forward)> {
    stack_with(name, namespace, carrier, &[])
}

fn stack_with(
    name: &'static str,
    namespace: &Namespace,
    carrier: Option<&'static str>,
    dev_args: &[&str],
) -> anyhow::Result<(Stack, Forward)> {
    stack_before(ticking(name)?, name, namespace, carrier, dev_args)
}

fn stack_before(
    apiserver: Apiserver,
    name: &'static str,
    namespace: &Namespace,
    carrier: Option<&'static str>,
    dev_args: &[&str],
) -> anyhow::Result<(Stack, Forward)> {
    let listen = format!("{}:0", namespace.outside);
    let forward = Forward::start(namespace, apiserver)?;
    let plan = Plan {
        carrier,
        listen: Box::leak(listen.into_boxed_str()),
        apiserver: forward.apiserver.kubeconfig.clone(),
        namespace: Some(namespace),
        dev_args,
        ..Plan::scripted(name, &forward.apiserver)
    };
    Ok((Stack::start_without_waiting(&plan)?, forward))
}

/// An apiserver with a watch that says something ten times a second, `/ticks`, and a request that it never answers.
fn ticking(name: &str) -> anyhow::Result<Apiserver> {
    use std::io::{Read, Write};
    Apiserver::start(
        &scratch(name),
        false,
        std::sync::Arc::new(|request, connection| {
            if request.target() == b"/ticks" {
                connection.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")?;
                for number in 0.. {
                    let tick = format!("tick {number};");
                    connection.write_all(format!("{:x}\r\n{tick}\r\n", tick.len()).as_bytes())?;
                    connection.flush()?;
                    // The apiserver's own pace, not a wait of the test.
                    std::thread::park_timeout(Duration::from_millis(100));
                }
            }
            if request.target() == b"/never" {
                let _ = connection.read(&mut [0]);
                return Ok(false);
            }
            answer(connection, "200 OK", b"{}")
        }),
    )
}

/// A request that is open while the network changes.
struct Open {
    raw: Raw,
    next: usize,
    text: String,
}

impl Open {
    fn new(stack: &Stack, token: &str, path: &str) -> anyhow::Result<Self> {
        let mut raw = stack.raw()?;
        raw.read_timeout(Duration::from_secs(40))?;
        raw.send(
            format!(
                "GET /{}{path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\r\n",
                stack.key(),
                stack.authority()
            )
            .as_bytes(),
        )?;
        if path == "/ticks" {
            let head = raw.head()?;
            ensure!(head.contains(" 200 ") && head.to_lowercase().contains("transfer-encoding: chunked"), "{head}");
        }
        Ok(Self { raw, next: 0, text: String::new() })
    }

    /// Reads `count` more ticks, each of which must follow the one before.
    fn ticks(&mut self, count: usize) -> anyhow::Result<()> {
        for _ in 0..count {
            let tick = format!("tick {};", self.next);
            loop {
                if let Some(at) = self.text.find(&tick) {
                    self.text.drain(..at + tick.len());
                    break;
                }
                let chunk = self.raw.chunk()?.with_context(|| format!("a clean end before {tick}"))?;
                self.text += &String::from_utf8_lossy(&chunk);
                ensure!(!self.text.starts_with(&format!("tick {};", self.next + 1)), "{tick} is missing");
            }
            self.next += 1;
        }
        Ok(())
    }
}

/// As many ticks as there can have been in this time; what comes behind them was said later.
fn ticks_in(time: Duration) -> usize {
    usize::try_from(time.as_millis() / 100).unwrap_or(usize::MAX)
}

/// What becomes of requests that are open when a path is lost: one that has an answer goes on or breaks off, never with
/// a clean end; one without an answer gets one, or an error that says why. Neither hangs.
fn not_left_hanging(mut watch: Open, mut waiting: Open) -> anyhow::Result<()> {
    let start = Instant::now();
    while let Ok(chunk) = watch.raw.chunk() {
        ensure!(chunk.is_some(), "the watch that was lost ended cleanly");
        if start.elapsed() > Duration::from_secs(35) {
            break;
        }
    }
    let answer = waiting.raw.answer().context("the open request is left without an answer")?;
    ensure!(matches!(answer.status, 502..=504), "{}", answer.head);
    let body = answer.json()?;
    ensure!(body["kind"] == "Status" && !body["message"].as_str().unwrap_or_default().is_empty(), "{body}");
    ensure!(start.elapsed() < Duration::from_secs(35), "known after {:?}", start.elapsed());
    Ok(())
}

/// Lets the agent in the namespace reach the scripted apiserver of the host at the same loopback address.
struct Forward {
    apiserver: Apiserver,
    _relay: tests::programs::Program,
    _folder: std::path::PathBuf,
}

impl Forward {
    fn start(namespace: &Namespace, apiserver: Apiserver) -> anyhow::Result<Self> {
        let folder = scratch("forward");
        let socket = folder.join("s");
        let path = socket.clone();
        let listener = std::os::unix::net::UnixListener::bind(&socket)?;
        let target = apiserver.address;
        std::thread::spawn(move || {
            for inner in listener.incoming().flatten() {
                let Ok(outer) = std::net::TcpStream::connect(target) else { continue };
                let (mut a, mut b) = (inner.try_clone().unwrap(), outer.try_clone().unwrap());
                let (mut c, mut d) = (outer, inner);
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut a, &mut b);
                    let _ = b.shutdown(std::net::Shutdown::Write);
                });
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut c, &mut d);
                    let _ = d.shutdown(std::net::Shutdown::Write);
                });
            }
        });
        // A unix socket crosses namespaces; a small relay inside listens at the apiserver's own address.
        let mut command = namespace.command(std::path::Path::new("python3"));
        command
            .arg(tests::programs::root().join("tests/it/relay.py"))
            .arg(target.port().to_string())
            .arg(path)
            .stdout(std::process::Stdio::piped());
        let mut relay = tests::programs::Program::start("relay", command, &folder.join("relay.log"))?;
        relay.first_line(Duration::from_secs(60))?;
        Ok(Self { apiserver, _relay: relay, _folder: folder })
    }
}

fn carrier_of(stack: &Stack) -> anyhow::Result<String> {
    Ok(stack
        .tunnels()?
        .iter()
        .filter(|tunnel| tunnel["draining"] != true)
        .filter_map(|tunnel| tunnel["carrier"].as_str())
        .collect::<Vec<_>>()
        .join(","))
}

fn inbound_dropped() -> anyhow::Result<()> {
    let namespace = Namespace::new()?;
    namespace.firewall(&["input iif lo accept", "input ct state established,related accept", "input drop"])?;
    let (stack, _forward) = stack("inbound", &namespace, None)?;
    stack.await_connected(Duration::from_secs(10))?;
    // T1: no listening socket that the outside could reach.
    let sockets = tests::network::sh(&format!("ip netns exec {} ss -Hltnup", namespace.name))?;
    let open: Vec<_> = sockets
        .lines()
        .filter(|line| {
            line.contains("towline-agent")
                && line.contains("LISTEN")
                && !line.contains("127.0.0.1:")
                && !line.contains("[::1]:")
        })
        .collect();
    ensure!(open.is_empty(), "{open:?}");
    Ok(())
}

/// Nothing may begin a connection but to the gateway's one address and port; also no DNS.
fn one_host_and_port() -> anyhow::Result<()> {
    let namespace = Namespace::new()?;
    let (stack, _forward) = stack("one-port", &namespace, None)?;
    stack.agent.lock().unwrap().kill();
    let authority = stack.authority();
    let (host, port) = authority.rsplit_once(':').context("no port")?;
    let gateway = format!("output ip daddr {host} meta l4proto {{ tcp, udp }} th dport {port} accept");
    namespace.firewall(&[
        "output oif lo accept",
        "output ct state established,related accept",
        &gateway,
        "output drop",
    ])?;
    let _agent = stack.another_agent()?;
    stack.await_connected(Duration::from_secs(30))?;
    let got = stack.get("admin", "/version")?;
    ensure!(got.status == 200, "{}", got.head);
    Ok(())
}

fn udp_dropped_from_start() -> anyhow::Result<()> {
    let namespace = Namespace::new()?;
    namespace.firewall(&["output meta l4proto udp drop"])?;
    let start = Instant::now();
    let (stack, _forward) = stack("no-udp", &namespace, None)?;
    let connected = stack.await_connected(Duration::from_secs(10))?;
    ensure!(
        connected < Duration::from_secs(3),
        "connected over TCP after {connected:?} ({:?} from the start)",
        start.elapsed()
    );
    ensure!(carrier_of(&stack)? != "quic");
    Ok(())
}

/// Requests that wait for their answer when UDP is dropped hung for 20 s, the read timeout of the user here.
fn udp_dropped_under_requests() -> anyhow::Result<()> {
    let namespace = Namespace::new()?;
    let (stack, forward) = stack_before(silent_apiserver("udp-requests")?, "udp-requests", &namespace, None, &[])?;
    stack.await_connected(Duration::from_secs(10))?;
    eventually("on QUIC", Duration::from_secs(10), || Ok(carrier_of(&stack)?.contains("quic")))?;
    requests_lost_with_their_tunnel(&stack, &forward.apiserver, || {
        namespace.firewall(&["output meta l4proto udp drop", "input meta l4proto udp drop"])
    })
    .with_context(|| stack.agent.lock().unwrap().tail())?;
    let token = stack.token("admin")?;
    eventually("new requests work over TCP", Duration::from_secs(15), || {
        Ok(stack.get_with(&token, "/api").is_ok_and(|answer| answer.status == 200))
    })?;
    Ok(())
}

/// A third of all packets is lost, both ways, on a tunnel that does little.
fn lossy_quic_is_left() -> anyhow::Result<()> {
    let namespace = Namespace::new()?;
    let (stack, _forward) = stack("lossy", &namespace, None)?;
    stack.await_connected(Duration::from_secs(10))?;
    eventually("on QUIC", Duration::from_secs(10), || Ok(carrier_of(&stack)?.contains("quic")))?;
    let token = stack.token("admin")?;
    let lose = "meta l4proto udp numgen random mod 100 < 33 drop";
    namespace.firewall(&[&format!("output {lose}"), &format!("input {lose}")])?;
    let took = eventually("on TCP", Duration::from_secs(240), || {
        let _ = stack.get_with(&token, "/api");
        let carrier = carrier_of(&stack)?;
        Ok(!carrier.is_empty() && !carrier.contains("quic"))
    })
    .with_context(|| stack.agent.lock().unwrap().tail())?;
    eprintln!("   left after {took:?}");
    // And stays there, though QUIC comes up now and then when it is tried.
    let log = std::fs::read_to_string(&stack.agent.lock().unwrap().log)?;
    ensure!(log.contains("moving to another tunnel") || log.contains("tunnel closed"), "{log}");
    ensure!(stack.get_with(&token, "/api")?.status == 200);
    Ok(())
}

fn udp_dropped_then_restored() -> anyhow::Result<()> {
    let namespace = Namespace::new()?;
    let (stack, _forward) = stack("udp-comes-and-goes", &namespace, None)?;
    stack.await_connected(Duration::from_secs(10))?;
    eventually("on QUIC", Duration::from_secs(10), || Ok(carrier_of(&stack)?.contains("quic")))?;
    let token = stack.token("admin")?;
    let (mut watch, waiting) = (Open::new(&stack, &token, "/ticks")?, Open::new(&stack, &token, "/never")?);
    watch.ticks(3)?;
    namespace.firewall(&["output meta l4proto udp drop", "input meta l4proto udp drop"])?;
    eventually("new requests work over TCP", Duration::from_secs(15), || {
        let mut raw = stack.raw()?;
        raw.read_timeout(Duration::from_secs(2))?;
        raw.send(
            format!(
                "GET /{}/api HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\r\n",
                stack.key(),
                stack.authority()
            )
            .as_bytes(),
        )?;
        Ok(raw.answer().is_ok_and(|answer| answer.status == 200))
    })
    .with_context(|| stack.agent.lock().unwrap().tail())?;
    not_left_hanging(watch, waiting)?;
    // What is open when QUIC is back goes on, and so does what is asked meanwhile.
    let mut watch = Open::new(&stack, &token, "/ticks")?;
    watch.ticks(3)?;
    namespace.firewall(&[])?;
    let start = Instant::now();
    let mut failed = 0;
    eventually("back on QUIC", Duration::from_secs(60), || {
        failed += usize::from(!stack.get_with(&token, "/api").is_ok_and(|answer| answer.status == 200));
        Ok(carrier_of(&stack)? == "quic")
    })
    .with_context(|| stack.agent.lock().unwrap().tail())?;
    ensure!(failed == 0, "{failed} requests were disturbed on the way back, after {:?}", start.elapsed());
    watch.ticks(ticks_in(start.elapsed()) + 20).context("the watch that was open on the way back")?;
    Ok(())
}

fn black_hole(carrier: &'static str) -> anyhow::Result<()> {
    let namespace = Namespace::new()?;
    let (stack, _forward) = stack("black-hole", &namespace, Some(carrier))?;
    stack.await_connected(Duration::from_secs(10))?;
    let token = stack.token("admin")?;
    let (mut watch, waiting) = (Open::new(&stack, &token, "/ticks")?, Open::new(&stack, &token, "/never")?);
    watch.ticks(3)?;
    namespace.firewall(&["output oif != lo drop", "input iif != lo drop"])?;
    let start = Instant::now();
    eventually("the gateway knows", Duration::from_secs(30), || Ok(carrier_of(&stack)?.is_empty()))?;
    let at_once = Instant::now();
    let answer = stack.get_with(&token, "/api")?;
    ensure!(answer.status == 503 && at_once.elapsed() < Duration::from_secs(2), "{}", answer.head);
    not_left_hanging(watch, waiting)?;
    eventually(
        "the agent knows",
        Duration::from_secs(30).saturating_sub(start.elapsed()) + Duration::from_secs(1),
        || {
            let log = std::fs::read_to_string(&stack.agent.lock().unwrap().log)?;
            Ok(log.contains("no sign of life") || log.contains("timed out") || log.contains("connection lost"))
        },
    )
    .with_context(|| stack.agent.lock().unwrap().tail())?;
    namespace.firewall(&[])?;
    stack.await_connected(Duration::from_secs(15)).context("comes back by itself")?;
    Ok(())
}

/// What a NAT changes when it forgot and makes a new binding.
#[derive(Clone, Copy)]
enum Nat {
    Port,
    Address,
}

fn nat_rebinding(nat: Nat, gso: bool) -> anyhow::Result<()> {
    let namespace = Namespace::new()?;
    let second = namespace.second_address()?;
    let offload = if gso { "gateway.udp_segmentation_offload=true" } else { "gateway.udp_segmentation_offload=false" };
    let (stack, _forward) = stack_with("nat", &namespace, Some("quic"), &["--agent-set", offload])?;
    stack.await_connected(Duration::from_secs(10))?;
    let before = stack.tunnels()?;
    let token = stack.token("admin")?;
    let mut watch = Open::new(&stack, &token, "/ticks")?;
    watch.ticks(3)?;
    // From now on the agent's packets leave with another source. Without connection tracking: it would keep what it
    // knows.
    let peer = before.first().and_then(|tunnel| tunnel["peer"].as_str()).context("the tunnel has no peer")?;
    let port = peer.rsplit_once(':').context("a peer without a port")?.1;
    let (there, back) = match nat {
        Nat::Port => (format!("udp sport {port} counter udp sport set 40001"), format!("udp dport set {port}")),
        Nat::Address => (format!("udp sport {port} counter ip saddr set {second}"), {
            format!("ip daddr set {}", namespace.inside)
        }),
    };
    let changed = match nat {
        Nat::Port => "udp dport 40001".to_owned(),
        Nat::Address => format!("ip daddr {second}"),
    };
    let script = format!(
        "table ip towline_nat {{\n chain there {{\n  type filter hook postrouting priority 300;\n  {there}\n }}\n \
         chain back {{\n  type filter hook prerouting priority -300;\n  {changed} {back}\n }}\n}}\n"
    );
    tests::programs::run_with_input(
        std::process::Command::new("ip").args(["netns", "exec", &namespace.name, "nft", "-f", "-"]),
        Some(script.as_bytes()),
        Duration::from_secs(10),
    )?
    .ok()?;
    let start = Instant::now();
    for _ in 0..50 {
        ensure!(stack.get_with(&token, "/api")?.status == 200);
    }
    ensure!(start.elapsed() < Duration::from_secs(15), "requests took {:?} over the change", start.elapsed());
    watch.ticks(ticks_in(start.elapsed()) + 20).context("the watch that was open over the change")?;
    let rules = tests::network::sh(&format!("ip netns exec {} nft list table ip towline_nat", namespace.name))?;
    ensure!(!rules.contains("counter packets 0 "), "the NAT changed nothing: {rules}");
    let id =
        |tunnels: &[serde_json::Value]| tunnels.first().map(|tunnel| tunnel["id"].clone()).filter(|id| !id.is_null());
    ensure!(id(&before).is_some() && id(&before) == id(&stack.tunnels()?), "the tunnel was made anew");
    Ok(())
}
