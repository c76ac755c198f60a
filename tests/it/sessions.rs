//! exec, attach, logs, port-forward and cp, with both upgrade protocols (docs/features.md K7, T9).

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::{Child, Stdio},
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use libtest_mimic::Trial;
use tests::{
    case::{Needs, case, full, loads},
    kubectl::{Kubectl, Protocol, pod},
    programs::eventually,
    stack::{CARRIERS, shared},
};

use crate::kubectl::namespace;

type Test = fn(&Kubectl, Protocol, &'static str) -> anyhow::Result<()>;

/// A pod that serves twenty files of numbers, each beginning with another one, and sends back what is posted to it.
pub const SERVER: &str = "echo begun; mkdir -p /www/cgi-bin; \
    printf '%s\\n' '#!/bin/sh' 'printf \"Content-Type: text/plain\\r\\n\\r\\n\"' 'exec cat' >/www/cgi-bin/echo; \
    chmod +x /www/cgi-bin/echo; \
    for n in $(seq 0 19); do seq $n 20000 >/www/$n; done; \
    exec httpd -f -p 8080 -h /www";

pub fn tests() -> Vec<Trial> {
    let tests: [(&str, Test); 7] = [
        ("exec_exit_codes_and_stdin", |kubectl, _, _| {
            exec_exit_codes_and_stdin(kubectl)?;
            // Beyond what HTTP libraries take in a request's target, and below what Linux takes as one argument.
            exec_with_an_argument(kubectl, 120_000)
        }),
        ("exec_with_a_terminal_and_resize", |kubectl, _, _| exec_with_a_terminal(kubectl)),
        ("attach", |kubectl, _, _| attach(kubectl)),
        ("port_forward", |kubectl, _, _| port_forward(kubectl)),
        ("copy_200_mb", |kubectl, _, _| copy_there_and_back(kubectl, 200_000_000)),
        ("exec_output_is_whole", |kubectl, protocol, carrier| {
            // What is cut is cut at the end: a hundred ends on one carrier, with less before them than the long run
            // has.
            if (carrier, protocol) == ("quic", Protocol::WebSocket) {
                exec_output_is_whole(kubectl, 100, if full() { LINES } else { LINES / 100 })?;
            }
            exec_output_is_whole(kubectl, long_outputs(), LINES)
        }),
        ("logs_follow", |kubectl, _, _| logs_follow(kubectl)),
    ];
    let mut trials = Vec::new();
    for (index, (name, test)) in tests.into_iter().enumerate() {
        for (turn, protocol) in Protocol::ALL.into_iter().enumerate() {
            for (place, carrier) in CARRIERS.into_iter().enumerate() {
                // Each with both protocols, on two of the three carriers; all in the long run. Whole output on each
                // carrier.
                if full() || name == "exec_output_is_whole" || (index + turn) % CARRIERS.len() == place {
                    let run = move || {
                        with_pod(
                            carrier,
                            &format!("{name}-{protocol:?}").to_lowercase().replace('_', "-"),
                            protocol,
                            test,
                        )
                    };
                    let title = format!("sessions::{name}::{protocol:?}::{carrier}");
                    trials.push(if name.starts_with("copy") {
                        loads(title, Needs::Pods, run)
                    } else {
                        case(title, Needs::Pods, run)
                    });
                }
            }
        }
    }
    for carrier in CARRIERS {
        if full() || carrier == "h2" {
            let name = format!("sessions::old_kubectl_exec_attach_logs_cp_port_forward::{carrier}");
            trials.push(case(name, Needs::Pods, move || old_kubectl(carrier)));
        }
        trials.push(case(format!("sessions::idle_exec_and_watch_live_on::{carrier}"), Needs::Pods, move || {
            idle(carrier)
        }));
    }
    trials
}

fn with_pod(carrier: &'static str, test: &str, protocol: Protocol, run: Test) -> anyhow::Result<()> {
    let kubectl = shared(carrier)
        .kubectl("admin")?
        .protocol(protocol)
        .namespace(&namespace(test, carrier)?)
        .within(Duration::from_secs(180));
    kubectl.apply(&pod("p", SERVER))?;
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/p", "--timeout=180s"])?;
    run(&kubectl, protocol, carrier)?;
    kubectl.ok(&["delete", "pod", "p", "--wait=false"])?;
    Ok(())
}

pub fn exec_exit_codes_and_stdin(kubectl: &Kubectl) -> anyhow::Result<()> {
    ensure!(kubectl.ok(&["exec", "p", "--", "echo", "hello"])? == "hello\n");
    let output = kubectl.run(&["exec", "p", "--", "sh", "-c", "echo out; echo err >&2; exit 42"])?;
    ensure!(output.code == Some(42) && output.text() == "out\n" && output.err.contains("err"), "{output:?}");
    let input: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let output = kubectl.run_with(&["exec", "-i", "p", "--", "sh", "-c", "head -c 3000000"], &input)?;
    ensure!(output.out == input, "stdin came back changed: {} bytes", output.out.len());
    exec_with_an_argument(kubectl, 40_000)
}

/// Arguments are in the request's target.
fn exec_with_an_argument(kubectl: &Kubectl, length: usize) -> anyhow::Result<()> {
    let counted = kubectl.ok(&["exec", "p", "--", "sh", "-c", "echo ${#0}", &"a".repeat(length)])?;
    ensure!(counted == format!("{length}\n"), "{counted}");
    Ok(())
}

pub fn exec_with_a_terminal(kubectl: &Kubectl) -> anyhow::Result<()> {
    // `script` gives kubectl a terminal whose size the far shell must see, before and after it changes.
    let inner = kubectl.command(&["exec", "-it", "p", "--", "sh"]);
    let words: Vec<_> = std::iter::once(inner.get_program())
        .chain(inner.get_args())
        .map(|word| format!("'{}'", word.to_string_lossy()))
        .collect();
    let mut command = std::process::Command::new("python3");
    command.arg(tests::programs::root().join("tests/it/terminal.py")).arg(words.join(" "));
    for (key, value) in inner.get_envs() {
        command.env(key, value.unwrap_or_default());
    }
    let text = tests::programs::run(&mut command, Duration::from_secs(150))?.ok()?;
    ensure!(text.contains("33 101") && text.contains("44 132"), "{text}");
    Ok(())
}

pub fn attach(kubectl: &Kubectl) -> anyhow::Result<()> {
    kubectl.apply(&pod("q", "while read -r line; do echo got $line; done; echo end of input"))?;
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/q", "--timeout=180s"])?;
    let mut child = kubectl
        .command(&["attach", "-i", "q"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let mut input = child.stdin.take().unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut seen = String::new();
    for word in ["one", "two"] {
        writeln!(input, "{word}")?;
        while !seen.contains(&format!("got {word}")) {
            let mut buffer = [0; 1024];
            let count = output.read(&mut buffer)?;
            ensure!(count > 0, "attach ended: {seen}");
            seen += &String::from_utf8_lossy(&buffer[..count]);
        }
    }
    drop(input);
    let _ = child.kill();
    let _ = child.wait();
    kubectl.ok(&["delete", "pod", "q", "--wait=false"])?;
    Ok(())
}

/// A `kubectl port-forward` with its local port.
fn forward(kubectl: &Kubectl) -> anyhow::Result<(Child, u16)> {
    use std::io::{BufRead, BufReader};
    let mut child =
        kubectl.command(&["port-forward", "pod/p", ":8080"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    lines.read_line(&mut line)?;
    std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
    let port = line.split(':').nth(1).and_then(|text| text.split_whitespace().next()).context(line.clone())?.parse()?;
    Ok((child, port))
}

/// One request over a connection of its own: head and body of the answer.
fn over_port(port: u16, request: &[u8]) -> anyhow::Result<(String, Vec<u8>)> {
    let mut socket = TcpStream::connect(("127.0.0.1", port))?;
    socket.set_read_timeout(Some(Duration::from_secs(120)))?;
    socket.write_all(request)?;
    let mut answer = Vec::new();
    socket.read_to_end(&mut answer)?;
    let head = answer.windows(4).position(|window| window == b"\r\n\r\n").context("no head")? + 4;
    let body = answer.split_off(head);
    Ok((String::from_utf8_lossy(&answer).into_owned(), body))
}

/// Fetches one of the server's files and compares every byte.
fn fetch_numbers(port: u16, first: usize) -> anyhow::Result<()> {
    let (head, body) = over_port(port, format!("GET /{first} HTTP/1.0\r\n\r\n").as_bytes())?;
    let expected: String = (first..=20_000).map(|number| format!("{number}\n")).collect();
    ensure!(head.contains(" 200 "), "{head}");
    ensure!(body == expected.as_bytes(), "file {first}: {} of {} bytes, or changed", body.len(), expected.len());
    Ok(())
}

/// Sends so many bytes and compares what comes back.
fn echo_numbers(port: u16, first: usize) -> anyhow::Result<()> {
    let sent: String = (first..first + 40_000).map(|number| format!("{number}\n")).collect();
    let head = format!("POST /cgi-bin/echo HTTP/1.0\r\nContent-Length: {}\r\n\r\n", sent.len());
    let (head, body) = over_port(port, &[head.as_bytes(), sent.as_bytes()].concat())?;
    ensure!(head.contains(" 200 "), "{head}");
    ensure!(body == sent.as_bytes(), "echo: {} of {} bytes, or changed", body.len(), sent.len());
    Ok(())
}

/// A hundred connections in turn, then twenty at once, each for another file; then bytes in the other direction.
pub fn port_forward(kubectl: &Kubectl) -> anyhow::Result<()> {
    let listens = "until wget -q -O /dev/null http://127.0.0.1:8080/0; do sleep 0.1; done";
    kubectl.ok(&["exec", "p", "--", "sh", "-c", listens])?;
    let (mut child, port) = forward(kubectl)?;
    let result = (|| {
        // containerd ends each about a second late.
        for number in 0..10 {
            fetch_numbers(port, number % 20).with_context(|| format!("connection {number}"))?;
        }
        for round in 0..9 {
            at_once(10, |number| fetch_numbers(port, (10 * round + number) % 20))
                .with_context(|| format!("ten, round {round}"))?;
        }
        at_once(20, |number| fetch_numbers(port, number)).context("twenty at once")?;
        at_once(5, |number| echo_numbers(port, number)).context("five that send")?;
        ensure!(child.try_wait()?.is_none(), "port-forward has ended");
        Ok(())
    })();
    let _ = child.kill();
    let _ = child.wait();
    result
}

fn at_once(count: usize, run: impl Fn(usize) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|number| {
                scope.spawn({
                    let run = &run;
                    move || run(number)
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })
}

/// Copies `count` random bytes into the pod and back.
pub fn copy_there_and_back(kubectl: &Kubectl, count: usize) -> anyhow::Result<()> {
    let dir = tests::programs::scratch("copy");
    let (there, back) = (dir.join("there"), dir.join("back"));
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let bytes: Vec<u8> = (0..count / 8)
        .flat_map(|_| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed.to_le_bytes()
        })
        .collect();
    std::fs::write(&there, &bytes)?;
    let path = |path: &std::path::Path| path.display().to_string();
    kubectl.ok(&["cp", &path(&there), "p:/tmp/there"])?;
    // An apiserver that has written everything closes its connection, and where one of kubectl's pings, one each 5 s, came
    // just before and is not read yet, the kernel throws away what it has not sent: directly too. kubectl then goes on
    // from there; the old one cannot, and sends no pings.
    let retries: &[&str] = if kubectl.is_old() { &[] } else { &["--retries=2"] };
    kubectl.ok(&[&["cp", "p:/tmp/there", &path(&back)], retries].concat())?;
    ensure!(std::fs::read(&back)? == bytes, "{count} bytes came back changed");
    std::fs::remove_dir_all(&dir)?;
    Ok(())
}

/// Some 15 MB of output.
pub const LINES: usize = 2_000_000;

/// How often that is printed on a way. Each line is a frame of its own on the way from the node: of eight ways once each is
/// a third of a minute of a processor, and five times was half of all that the suite's tests took.
pub fn long_outputs() -> usize {
    if full() { 5 } else { 1 }
}

/// Output is cut at its end where the last of it is taken for lost.
pub fn exec_output_is_whole(kubectl: &Kubectl, times: usize, lines: usize) -> anyhow::Result<()> {
    let expected: String = (1..=lines).map(|n| format!("{n}\n")).collect();
    for round in 0..times {
        let output = kubectl.run(&["exec", "p", "--", "seq", "1", &lines.to_string()])?;
        ensure!(output.code == Some(0), "round {round}: {}", output.err);
        ensure!(
            output.out == expected.as_bytes(),
            "round {round}: {} of {} bytes, or changed",
            output.out.len(),
            expected.len()
        );
    }
    Ok(())
}

pub fn logs_follow(kubectl: &Kubectl) -> anyhow::Result<()> {
    ensure!(kubectl.ok(&["logs", "p"])?.contains("begun"));
    // The pod runs its container once. Were it restarted, kubelet would remove the first container after the second had
    // ended, and write an error into the log of the first if somebody still followed it.
    let pod = pod("l", "seq 1 50000; sleep 2; echo the last line") + "  restartPolicy: Never\n";
    kubectl.apply(&pod)?;
    eventually("the pod has ended or runs", Duration::from_secs(180), || {
        Ok(kubectl.ok(&["get", "pod", "l", "-o", "jsonpath={.status.phase}"])? != "Pending")
    })?;
    let text = kubectl.ok(&["logs", "-f", "l"])?;
    let expected: String = (1..=50_000).map(|number| format!("{number}\n")).chain(["the last line\n".into()]).collect();
    if text != expected {
        let at = text.lines().zip(expected.lines()).position(|(is, should)| is != should);
        let (lines, at) = (text.lines().count(), at.unwrap_or_else(|| text.lines().count().min(50_001)));
        let around: Vec<&str> = text.lines().skip(at.saturating_sub(2)).take(6).collect();
        bail!("{lines} lines, and from line {} on others: {around:#?}", at + 1);
    }
    kubectl.ok(&["delete", "pod", "l", "--wait=false"])?;
    Ok(())
}

/// The same, line by line, with Debian's kubectl 1.20.
fn old_kubectl(carrier: &'static str) -> anyhow::Result<()> {
    with_pod(carrier, "old-sessions", Protocol::Spdy, |kubectl, _, _| {
        let old = kubectl.clone().old();
        exec_exit_codes_and_stdin(&old).context("exec")?;
        exec_with_a_terminal(&old).context("exec with a terminal")?;
        exec_output_is_whole(&old, long_outputs(), LINES).context("whole output")?;
        attach(&old).context("attach")?;
        logs_follow(&old).context("logs")?;
        copy_there_and_back(&old, 20_000_000).context("cp")?;
        port_forward(&old).context("port-forward")
    })
}

/// Longer than every probe's deadline and every timer of the carriers; ten minutes in the long run.
fn idle(carrier: &'static str) -> anyhow::Result<()> {
    use std::io::BufRead;
    let name = namespace("idle", carrier)?;
    let stack = shared(carrier);
    let kubectl = stack.kubectl("admin")?.namespace(&name);
    kubectl.apply(&pod("p", "sleep 100000"))?;
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/p", "--timeout=180s"])?;
    let begin = "echo begun; read -r line; echo got $line";
    let mut exec = kubectl
        .command(&["exec", "-i", "p", "--", "sh", "-c", begin])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = std::io::BufReader::new(exec.stdout.take().unwrap()).lines();
    ensure!(lines.next().context("exec ended")?? == "begun");
    let mut watch = stack.raw()?;
    let path = format!("/{}/api/v1/namespaces/{name}/secrets?watch=true", stack.key());
    watch.send(
        format!(
            "GET {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\r\n",
            stack.authority(),
            stack.token("admin")?
        )
        .as_bytes(),
    )?;
    ensure!(watch.head()?.contains(" 200 "));
    let until = std::time::Instant::now() + Duration::from_secs(if full() { 600 } else { 45 });
    eventually("the time of silence has passed", Duration::from_secs(700), || {
        ensure!(exec.try_wait()?.is_none(), "the idle exec ended");
        Ok(std::time::Instant::now() > until)
    })?;
    writeln!(exec.stdin.take().unwrap(), "word")?;
    ensure!(lines.next().context("exec ended")?? == "got word");
    exec.wait()?;
    kubectl.ok(&["create", "secret", "generic", "news"])?;
    let mut seen = String::new();
    while !seen.contains("\"news\"") {
        let bytes = watch.some()?;
        ensure!(!bytes.is_empty(), "the idle watch ended");
        seen += &String::from_utf8_lossy(&bytes);
    }
    kubectl.ok(&["delete", "pod", "p", "--wait=false"])?;
    Ok(())
}
