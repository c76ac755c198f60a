//! Upgrades: byte-true both ways, and nothing but a proper 101 opens a raw path (CVE-2018-1002105).

use bytes::Bytes;
use tunnel::{
    transport::{MessageError, StreamError},
    wire::close::StreamCode,
};

use crate::{
    apiserver::{Act, Apiserver},
    harness::{Harness, head, lines, rest},
};

const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v4.channel.k8s.io\r\n\r\n";

#[tokio::test]
async fn t9_bytes_glued_to_the_101_arrive_and_half_close_is_kept() {
    let apiserver = Apiserver::start(|_| vec![Act::write(&format!("{SWITCH}glued")), Act::Echo]).await;
    let harness = Harness::new(apiserver.access()).await;
    let (head, mut stream) = harness.upgrade("/exec?command=sh", "SPDY/3.1", &[]).await;
    assert_eq!(head.status, 101);
    assert_eq!(head.headers["upgrade"], "SPDY/3.1");
    assert_eq!(head.headers["x-stream-protocol-version"], "v4.channel.k8s.io");
    stream.send.send(Bytes::from_static(b"\x80\x03\x00\x01hello")).await.unwrap();
    stream.send.finish().unwrap();
    let (body, end) = rest(&mut stream.recv).await;
    assert!(body.starts_with("glued") && body.ends_with("hello"), "{body:?}");
    assert_eq!(end, Ok(()));
    let raw = &apiserver.requests()[0];
    assert!(raw.starts_with("POST /exec?command=sh HTTP/1.1\r\n"));
    assert_eq!((lines(raw, "upgrade"), lines(raw, "connection")), (vec!["SPDY/3.1"], vec!["Upgrade"]));
    assert_eq!(lines(raw, "impersonate-user"), ["jane"]);
    assert!(lines(raw, "transfer-encoding").is_empty() && lines(raw, "content-length").is_empty(), "{raw}");
}

/// `kubectl exec` with an argument of 200 KB.
#[tokio::test]
async fn upgrade_with_a_long_target_is_byte_true() {
    let apiserver = Apiserver::start(|_| vec![Act::write(&format!("{SWITCH}glued")), Act::Echo]).await;
    let harness = Harness::new(apiserver.access()).await;
    let target = format!("/exec?command=echo&command={}", "x%0A".repeat(50_000));
    let (head, mut stream) = harness.upgrade(&target, "SPDY/3.1", &[]).await;
    assert_eq!(head.status, 101);
    stream.send.send(Bytes::from_static(b"POST / hello")).await.unwrap();
    stream.send.finish().unwrap();
    assert_eq!(rest(&mut stream.recv).await, ("gluedPOST / hello".to_owned(), Ok(())));
    assert!(apiserver.requests()[0].starts_with(&format!("POST {target} HTTP/1.1\r\n")));
}

#[tokio::test]
async fn cve_2018_1002105_a_refused_upgrade_is_an_answer_and_opens_nothing() {
    for status in ["400 Bad Request", "403 Forbidden", "200 OK", "501 Not Implemented"] {
        let refusal = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nno");
        let apiserver =
            Apiserver::start(
                move |head| {
                    if head.starts_with("POST") { vec![Act::write(&refusal)] } else { vec![Act::Ok("fine")] }
                },
            )
            .await;
        let harness = Harness::new(apiserver.access()).await;
        let (head, mut stream) = harness.upgrade("/exec", "websocket", &[("sec-websocket-key", "x")]).await;
        assert_eq!(head.status.as_str(), &status[..3]);
        assert!(head.refused_by.is_none(), "the apiserver's own answer");
        // What the client sends next is nothing that the apiserver gets to see.
        let _ = stream.send.send(Bytes::from_static(b"GET /api/v1/secrets HTTP/1.1\r\nHost: x\r\n\r\n")).await;
        let _ = stream.send.finish();
        assert_eq!(rest(&mut stream.recv).await, ("no".to_owned(), Ok(())));
        apiserver.until(|seen| seen.gone == 1).await;
        // The next request is authenticated anew, on a connection of its own.
        assert_eq!(harness.send(&crate::harness::head("GET", "/api", &[]), b"").await.status, 401);
        assert_eq!(harness.get("/api", &[]).await.status, 200);
        let raw = apiserver.requests();
        assert_eq!(raw.len(), 2);
        assert!(!raw.concat().contains("secrets"));
        assert_eq!(apiserver.connections(), [0, 1]);
    }
}

#[tokio::test]
async fn a_101_that_nobody_asked_for_is_refused() {
    let apiserver = Apiserver::start(|_| vec![Act::write(SWITCH), Act::Hang]).await;
    let harness = Harness::new(apiserver.access()).await;
    let answer = harness.get("/api", &[]).await;
    assert_eq!((answer.status, answer.refused_by.as_deref()), (502, Some("exchange")));
    apiserver.until(|seen| seen.gone == 1).await;
}

#[tokio::test]
async fn a_101_to_another_protocol_or_without_connection_upgrade_is_refused() {
    for switch in [
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n\r\n",
    ] {
        let apiserver = Apiserver::start(move |_| vec![Act::write(switch), Act::Hang]).await;
        let harness = Harness::new(apiserver.access()).await;
        let (head, _stream) = harness.upgrade("/exec", "websocket", &[]).await;
        assert_eq!(head.status, 502, "{switch}");
        apiserver.until(|seen| seen.gone == 1).await;
    }
}

#[tokio::test]
async fn h2c_is_never_tunnelled() {
    let apiserver = Apiserver::start(|_| vec![Act::Ok("fine")]).await;
    let harness = Harness::new(apiserver.access()).await;
    let jane = harness.jane();
    let upgrade = [
        ("authorization", jane.as_str()),
        ("connection", "Upgrade, HTTP2-Settings"),
        ("upgrade", "h2c"),
        ("http2-settings", "AAMAAABkAAQAAP__"),
    ];
    assert_eq!(harness.send(&head("GET", "/api", &upgrade), b"").await.status, 400);
    assert!(apiserver.requests().is_empty());
}

#[tokio::test]
async fn a_user_who_goes_away_ends_the_upgraded_connection() {
    let apiserver = Apiserver::start(|_| vec![Act::write(SWITCH), Act::Hang]).await;
    let harness = Harness::new(apiserver.access()).await;
    let (head, stream) = harness.upgrade("/exec", "SPDY/3.1", &[]).await;
    assert_eq!(head.status, 101);
    drop(stream);
    apiserver.until(|seen| seen.gone == 1).await;
}

#[tokio::test]
async fn an_apiserver_that_breaks_off_is_no_clean_end() {
    let apiserver =
        Apiserver::start(|_| vec![Act::write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart"), Act::Close]).await;
    let harness = Harness::new(apiserver.access()).await;
    let mut stream = harness.open(&head("GET", "/api", &[("authorization", &harness.jane())])).await;
    stream.send.finish().unwrap();
    // The reset may overtake what came before it.
    match stream.recv.recv_message(65536).await {
        Ok(_) => assert!(matches!(rest(&mut stream.recv).await.1, Err(StreamError::Reset(_)))),
        Err(err) => assert!(matches!(err, MessageError::Stream(StreamError::Reset(StreamCode::Upstream))), "{err:?}"),
    }
}
