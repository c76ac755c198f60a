//! `towline proxy` and `towline token` against a small HTTPS gateway of our own (docs/features.md K3 to K5).
#![allow(clippy::unwrap_used, clippy::disallowed_methods)]

mod support;

use std::path::{Path, PathBuf};

use http::Version;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use support::{Ending, Local, Running, SmallGateway, fails, ok, towline};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const BOTH: &[&[u8]] = &[b"h2", b"http/1.1"];
const OLD: &[&[u8]] = &[b"http/1.1"];

struct Proxy {
    running: Running,
    file: PathBuf,
    local: Local,
}

/// Waits until it listens; commands run on threads, because the small gateway lives in this runtime.
async fn start(gateway: &SmallGateway, file: &Path, context: usize, more: &[&str]) -> Proxy {
    let mut args = vec!["proxy".to_owned(), "--file".into(), support::text(file)];
    args.extend(gateway.options());
    args.extend(more.iter().map(|arg| (*arg).to_owned()));
    let file = file.to_owned();
    tokio::task::spawn_blocking(move || {
        let mut running = Running::start(towline(&args.iter().map(String::as_str).collect::<Vec<_>>()));
        assert!(running.line().starts_with("Proxy is listening on port "));
        let local = Local::read(&file, context);
        Proxy { running, file, local }
    })
    .await
    .unwrap()
}

fn get(local: &Local, path: &str, token: &str, more: &str) -> String {
    format!(
        "GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n{more}\r\n",
        path = format_args!("{}{path}", local.path)
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_and_requests_take_their_way() {
    let gateway = SmallGateway::start(BOTH).await;
    let file = gateway.dir.path().join("kubeconfig");
    let proxy = start(&gateway, &file, 0, &[]).await;
    let (local, mode) = (&proxy.local, std::fs::metadata(&proxy.file).unwrap());
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o600);
    assert_eq!(local.path, format!("/{}", gateway.key()));
    let odd = "/api//v1/%2Fx;y=z/?q=%20&a=b?c";
    let answer = local
        .raw(&get(local, odd, &local.token, "Impersonate-User: bob\r\nConnection: close, x-hop\r\nX-Hop: 1\r\n"))
        .await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("299 - \"kept\""), "{answer}");
    let received = gateway.received.lock().unwrap().pop().unwrap();
    assert_eq!(received.target, format!("{}{odd}", local.path), "the path arrives byte for byte");
    assert_eq!(received.version, Version::HTTP_2);
    assert_eq!(received.headers["impersonate-user"], "bob");
    assert!(!received.headers.contains_key("x-hop"));
    let token = received.headers["authorization"].to_str().unwrap().to_owned();
    assert!(token.starts_with("Bearer eyJ") && !token.contains(&local.token), "the user's own token was put on");
}

fn post(local: &Local, body: &str) -> String {
    let length = body.len();
    let head = format!("Connection: close\r\nContent-Length: {length}\r\n");
    get(local, "/api/v1/namespaces/n/configmaps", &local.token, &head).replacen("GET ", "POST ", 1) + body
}

/// A gateway that drains ends its connections with GOAWAY: what it did not process was not carried out.
#[tokio::test(flavor = "multi_thread")]
async fn write_that_the_gateway_did_not_process_is_sent_again() {
    let gateway = SmallGateway::start(BOTH).await;
    let proxy = start(&gateway, &gateway.dir.path().join("kubeconfig"), 0, &[]).await;
    gateway.endings.lock().unwrap().extend([Ending::GoAway, Ending::GoAway]);
    let answer = proxy.local.raw(&post(&proxy.local, "what is written")).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(gateway.endings.lock().unwrap().is_empty());
    let received = gateway.received.lock().unwrap();
    let writes: Vec<_> = received.iter().filter(|request| request.method == "POST").map(|post| &post.body).collect();
    assert_eq!(writes, ["what is written"]);
}

/// Clients repeat what has a `Retry-After`, writes too.
#[tokio::test(flavor = "multi_thread")]
async fn write_that_may_have_been_carried_out_is_502_and_sent_once() {
    let gateway = SmallGateway::start(BOTH).await;
    let proxy = start(&gateway, &gateway.dir.path().join("kubeconfig"), 0, &[]).await;
    gateway.endings.lock().unwrap().extend([Ending::Broken]);
    let answer = proxy.local.raw(&post(&proxy.local, "what is written")).await;
    assert!(answer.starts_with("HTTP/1.1 502") && !answer.to_lowercase().contains("retry-after"), "{answer}");
    assert!(answer.contains("may have been carried out"), "{answer}");
    assert!(gateway.received.lock().unwrap().iter().all(|request| request.method != "POST"));
}

#[tokio::test(flavor = "multi_thread")]
async fn write_too_long_to_be_kept_was_not_done() {
    let gateway = SmallGateway::start(BOTH).await;
    let proxy = start(&gateway, &gateway.dir.path().join("kubeconfig"), 0, &[]).await;
    gateway.endings.lock().unwrap().extend([Ending::GoAway]);
    let body = "x".repeat(tunnel::exchange::KEPT_PER_BODY + 1);
    let answer = proxy.local.raw(&post(&proxy.local, &body)).await;
    assert!(answer.starts_with("HTTP/1.1 503") && answer.contains("nothing was done"), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn other_users_of_the_machine_get_nothing() {
    let gateway = SmallGateway::start(BOTH).await;
    let proxy = start(&gateway, &gateway.dir.path().join("kubeconfig"), 0, &[]).await;
    let local = &proxy.local;
    let close = "Connection: close\r\n";
    for token in ["", "x", &format!("{}x", local.token)] {
        let answer = local.raw(&get(local, "/api", token, close)).await;
        assert!(answer.starts_with("HTTP/1.1 401") && answer.contains("\"kind\":\"Status\""), "{answer}");
    }
    let twice = format!("{close}Authorization: Bearer {}\r\n", local.token);
    assert!(local.raw(&get(local, "/api", "x", &twice)).await.starts_with("HTTP/1.1 401"));
    for path in ["/", "/api", &format!("{}x/api", local.path), "/.towline/issuer/keys"] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n{close}\r\n", local.token);
        assert!(local.raw(&request).await.starts_with("HTTP/1.1 404"), "{path}");
    }
    assert!(gateway.received.lock().unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn upgrades_are_transparent_and_keep_half_close() {
    let gateway = SmallGateway::start(BOTH).await;
    let proxy = start(&gateway, &gateway.dir.path().join("kubeconfig"), 0, &[]).await;
    let local = &proxy.local;
    let upgrade = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n";
    let mut stream = local.connect(b"http/1.1").await;
    stream.write_all(get(local, "/exec", &local.token, upgrade).as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    assert!(head.starts_with("http/1.1 101") && head.contains("upgrade: spdy/3.1"), "{head}");
    let bytes: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    stream.write_all(&bytes).await.unwrap();
    stream.shutdown().await.unwrap();
    let mut back = Vec::new();
    stream.read_to_end(&mut back).await.unwrap();
    back.reverse();
    assert!(back == bytes, "all bytes came back after our half was closed");
    // A refused upgrade arrives as it is, and the connection goes on with HTTP.
    let mut stream = local.connect(b"http/1.1").await;
    stream.write_all(get(local, "/refused", &local.token, upgrade).as_bytes()).await.unwrap();
    stream.write_all(get(local, "/next", "x", "Connection: close\r\n").as_bytes()).await.unwrap();
    let mut answers = Vec::new();
    let _ = stream.read_to_end(&mut answers).await;
    let answers = String::from_utf8_lossy(&answers);
    assert!(answers.starts_with("HTTP/1.1 403") && answers.contains("HTTP/1.1 401"), "{answers}");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_share_one_connection_over_http2_and_reuse_them_over_http1() {
    for alpn in [BOTH, OLD] {
        let gateway = SmallGateway::start(alpn).await;
        let proxy = start(&gateway, &gateway.dir.path().join("kubeconfig"), 0, &[]).await;
        let local = &proxy.local;
        let stream = local.connect(b"h2").await;
        let builder = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        tokio::task::spawn(connection);
        let requests = (0..100).map(|n| {
            let mut sender = sender.clone();
            let body = bytes::Bytes::from(vec![n; 70_000]);
            let request = http::Request::post(format!("https://127.0.0.1{}/{n}", local.path))
                .header("authorization", format!("Bearer {}", local.token))
                .body(Full::new(body.clone()))
                .unwrap();
            async move {
                let answer = sender.send_request(request).await.unwrap();
                assert_eq!(answer.status(), 200);
                assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), body);
            }
        });
        futures_util::future::join_all(requests).await;
        assert_eq!(gateway.received.lock().unwrap().len(), 100);
    }
}

/// One HTTP/2 request with fields of literal texts, in HEADERS and CONTINUATION frames of 16 KiB.
fn head_in_small_frames(stream: u32, fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            let mut rest = text.len();
            if rest < 127 {
                block.push(rest as u8);
            } else {
                block.push(127);
                rest -= 127;
                while rest >= 128 {
                    block.push(128 | (rest % 128) as u8);
                    rest /= 128;
                }
                block.push(rest as u8);
            }
            block.extend_from_slice(text.as_bytes());
        }
    }
    let pieces: Vec<&[u8]> = block.chunks(16 * 1024).collect();
    let mut frames = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let (kind, end_stream) = if index == 0 { (1, 1) } else { (9, 0) };
        frames.extend_from_slice(&(piece.len() as u32).to_be_bytes()[1..]);
        frames.extend_from_slice(&[kind, end_stream | if index + 1 == pieces.len() { 4 } else { 0 }]);
        frames.extend_from_slice(&stream.to_be_bytes());
        frames.extend_from_slice(piece);
    }
    frames
}

/// Heads over 112 KiB in frames of 16 KiB, which the gateway takes, ended the connection to `towline proxy`.
#[tokio::test(flavor = "multi_thread")]
async fn long_heads_in_small_frames_go_on_to_the_gateway() {
    let gateway = SmallGateway::start(BOTH).await;
    let proxy = start(&gateway, &gateway.dir.path().join("kubeconfig"), 0, &[]).await;
    let local = &proxy.local;
    let (path, token) = (format!("{}/api", local.path), format!("Bearer {}", local.token));
    let filler = "x".repeat(types::limits::HEADER_LIST_BYTES - 4096);
    let fields = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "127.0.0.1"),
        (":path", &path),
        ("authorization", &token),
        ("x-filler", &filler),
    ];
    let mut stream = local.connect(b"h2").await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    stream.write_all(&[preface.as_slice(), &head_in_small_frames(1, &fields)].concat()).await.unwrap();
    let mut head = [0; 9];
    // HEADERS of the answer; settings, windows and pings come before it.
    while (head[3], head[8]) != (1, 1) {
        stream.read_exact(&mut head).await.expect("the connection goes on");
        assert_ne!(head[3], 7, "GOAWAY");
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload).await.unwrap();
    }
    let received = gateway.received.lock().unwrap().pop().unwrap();
    assert_eq!(received.headers["x-filler"].len(), filler.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn any_number_runs_side_by_side_and_a_taken_port_is_named() {
    let gateway = SmallGateway::start(BOTH).await;
    let file = gateway.dir.path().join("kubeconfig");
    let first = start(&gateway, &file, 0, &[]).await;
    let mut second = start(&gateway, &file, 1, &["--kube-context", "mine"]).await;
    assert_ne!(first.local.port, second.local.port);
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(
        text.contains("current-context: mine") && text.contains(&format!("towline-proxy-edge-{}", first.local.port))
    );
    for proxy in [&first, &second] {
        let request = get(&proxy.local, "/api", &proxy.local.token, "Connection: close\r\n");
        assert!(proxy.local.raw(&request).await.starts_with("HTTP/1.1 200"));
    }
    let mut args = vec!["proxy".to_owned(), "--port".into(), first.local.port.to_string(), "-f".into(), "-".into()];
    args.extend(gateway.options());
    let port = first.local.port;
    let error = tokio::task::spawn_blocking(move || fails(1, &args.iter().map(String::as_str).collect::<Vec<_>>()));
    let error = error.await.unwrap();
    assert!(error.contains(&format!("port {port} is already in use")) && error.contains("--port"), "{error}");
    second.running.signal("INT");
    let code = tokio::task::spawn_blocking(move || second.running.code()).await.unwrap();
    assert_eq!(code, Some(130));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text, "Ctrl+C takes nothing out of the kubeconfig");
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_come_from_the_issuer_and_refusals_are_told() {
    let gateway = SmallGateway::start(BOTH).await;
    let options = gateway.options();
    let (ca, password, issuer) =
        (gateway.file("ca.crt"), gateway.file("password"), format!("{}/.towline/issuer", gateway.url()));
    let wrong = gateway.file("wrong");
    std::fs::write(&wrong, "geheim").unwrap();
    tokio::task::spawn_blocking(move || {
        let mut args = vec!["token".to_owned()];
        args.extend(options);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let token = ok(&args);
        assert_eq!(token.trim().split('.').count(), 3);
        let json: serde_json::Value = serde_json::from_str(&ok(&[args.as_slice(), &["--json"]].concat())).unwrap();
        assert!(json["expires"].as_str().unwrap().ends_with('Z'));
        assert!(ok(&[args.as_slice(), &["--query", "expires", "-o", "tsv"]].concat()).trim().ends_with('Z'));
        let both = fails(2, &[args.as_slice(), &["--exec-credential", "-o", "json"]].concat());
        assert!(both.contains("--exec-credential"), "{both}");
        let exec = ok(&[args.as_slice(), &["--exec-credential"]].concat());
        assert!(exec.contains("client.authentication.k8s.io/v1beta1"), "{exec}");
        let by_issuer = ["token", "--issuer", &issuer, "--ca", &ca, "--user", "ann", "--password-file", &password];
        ok(&[&by_issuer[..], &["--audience", &format!("towline:cluster:{}", support::CLUSTER.to_lowercase())]]
            .concat());
        ok(&[&by_issuer[..], &["--cluster", support::CLUSTER]].concat());
        let mut bad = args.clone();
        *bad.last_mut().unwrap() = &wrong;
        let error = fails(1, &bad);
        assert!(error.contains("invalid_grant") && error.contains("ann") && !error.contains("geheim"), "{error}");
        let error = fails(2, &args[..args.len() - 2]);
        assert!(error.contains("TOWLINE_PASSWORD"), "{error}");
        let error = fails(
            1,
            &[
                "token",
                "--issuer",
                "https://127.0.0.1:9",
                "--user",
                "ann",
                "--audience",
                "x",
                "--password-file",
                &password,
            ],
        );
        assert!(error.contains("127.0.0.1:9"), "{error}");
    })
    .await
    .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corporate_proxy_on_the_users_side_is_passed() {
    let gateway = SmallGateway::start(BOTH).await;
    let (asked, mut seen) = tokio::sync::mpsc::channel(64);
    let plain = support::connect_proxy(None, "ann:geheim", asked.clone()).await;
    let (tls, pem) = support::tls_of_its_own();
    let tls = support::connect_proxy(Some(tls), "ann:geheim", asked).await;
    let (password, ca) = (gateway.file("proxy-password"), gateway.file("proxy-ca"));
    std::fs::write(&password, "geheim\n").unwrap();
    std::fs::write(&ca, pem).unwrap();
    let way = format!("http://ann@127.0.0.1:{plain}");
    let through = ["--proxy-url", &way, "--proxy-password-file", &password];
    let proxy = start(&gateway, &gateway.dir.path().join("kubeconfig"), 0, &through).await;
    let request = get(&proxy.local, "/api", &proxy.local.token, "Connection: close\r\n");
    assert!(proxy.local.raw(&request).await.starts_with("HTTP/1.1 200"));
    let mut token = vec!["token".to_owned()];
    token.extend(gateway.options());
    tokio::task::spawn_blocking(move || {
        let token: Vec<&str> = token.iter().map(String::as_str).collect();
        let way = format!("https://ann@127.0.0.1:{tls}");
        ok(&[&token[..], &["--proxy-url", &way, "--proxy-ca", &ca, "--proxy-password-file", &password]].concat());
        let error = fails(1, &[&token[..], &["--proxy-url", &format!("http://ann@127.0.0.1:{plain}")]].concat());
        assert!(error.contains("407"), "{error}");
        let error = fails(2, &[&token[..], &["--proxy-url", "http://ann:geheim@127.0.0.1:1"]].concat());
        assert!(error.contains("--proxy-password-file") && !error.contains("geheim"), "{error}");
        // As in other programs the environment's proxy is not asked for this machine.
        let straight = towline(&token).env("HTTPS_PROXY", "http://127.0.0.1:1").output().unwrap();
        assert!(straight.status.success());
    })
    .await
    .unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()));
    let here = gateway.address.to_string();
    let seen: Vec<_> = std::iter::from_fn(|| seen.try_recv().ok()).collect();
    let each = "sign-in, the gateway's addresses, request and the second sign-in";
    assert_eq!(seen, [&here, &here, &here, &here].map(String::clone), "{each}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_is_renewed_before_it_ends_and_shown_to_the_gateway() {
    let gateway = SmallGateway::start(BOTH).await;
    let proxy = start(&gateway, &gateway.dir.path().join("kubeconfig"), 0, &["--ttl", "2s"]).await;
    let request = get(&proxy.local, "/api", &proxy.local.token, "Connection: close\r\n");
    assert!(proxy.local.raw(&request).await.starts_with("HTTP/1.1 200"));
    let first = gateway.received.lock().unwrap().pop().unwrap().headers["authorization"].clone();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let shown = loop {
        assert!(std::time::Instant::now() < deadline, "no newer token was shown");
        if let Some(received) = gateway.received.lock().unwrap().pop() {
            break received;
        }
        tokio::task::yield_now().await;
    };
    assert_eq!(shown.method, "POST");
    assert_eq!(shown.target, format!("{}/.towline/refresh", proxy.local.path));
    assert_ne!(shown.headers["authorization"], first);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_ends_with_its_terminal() {
    let gateway = SmallGateway::start(BOTH).await;
    let mut proxy = start(&gateway, &gateway.dir.path().join("kubeconfig"), 0, &[]).await;
    proxy.running.signal("HUP");
    let code = tokio::task::spawn_blocking(move || proxy.running.code()).await.unwrap();
    assert_eq!(code, Some(0));
}
