//! Plain exchanges: bytes as received, only the apiserver, nothing twice, cancelled at once.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::Notify;
use tunnel::{
    transport::{MessageError, StreamError},
    wire::close::StreamCode,
};
use types::limits;

use crate::{
    apiserver::{Act, Apiserver},
    harness::{Harness, answer, head, lines, response_head, rest},
};

/// Nothing in a test may take longer.
const LONG: Duration = Duration::from_secs(20);

async fn ok() -> Apiserver {
    Apiserver::start(|_| vec![Act::Ok("fine")]).await
}

/// The HTTP library expresses 65,534 bytes; `kubectl exec` and selectors have more.
#[tokio::test]
async fn target_of_a_mebibyte_arrives_byte_for_byte() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    let jane = harness.jane();
    let credential = [("authorization", jane.as_str())];
    for bytes in [40_000, 65_534, 65_535, 200_000, 1_000_000, limits::TARGET_BYTES] {
        let target = format!("/api/v1/pods?labelSelector=a%20in%20(b{}", "%2Cb".repeat(bytes / 4));
        let target = &target[..bytes];
        let sent = apiserver.requests().len();
        assert_eq!(harness.get(target, &[]).await.status, 200, "{bytes}");
        let post = [&credential[..], &[("content-length", "4")]].concat();
        let answer = harness.send(&head("POST", target, &post), b"body").await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "fine"), "{bytes}");
        let raw = &apiserver.requests()[sent..];
        assert!(raw[0].starts_with(&format!("GET {target} HTTP/1.1\r\n")), "{bytes}");
        assert!(
            raw[1].starts_with(&format!("POST {target} HTTP/1.1\r\n")) && raw[1].ends_with("\r\n\r\nbody"),
            "{bytes}"
        );
        assert_eq!((lines(&raw[0], "impersonate-user"), lines(&raw[0], "host").len()), (vec!["jane"], 1));
    }
    // A connection that carried a long target is not used again.
    let long = &apiserver.connections()[4..];
    assert!(long.iter().enumerate().all(|(at, one)| !long[..at].contains(one)), "{long:?}");
}

/// Nothing of what it held is held after its answer has begun.
#[tokio::test]
async fn long_targets_on_a_tunnel_are_bounded_and_their_places_given_back() {
    let apiserver =
        Apiserver::start(|head| if head.starts_with("GET") { vec![Act::Hang] } else { vec![Act::Ok("fine")] }).await;
    let harness = Harness::with(apiserver.access(), Duration::from_secs(3600), 128).await;
    let target = format!("/a?{}", "b".repeat(70_000));
    let jane = harness.jane();
    let credential = [("authorization", jane.as_str())];
    let mut held = Vec::new();
    for _ in 0..limits::LONG_TARGETS {
        let mut stream = harness.open(&head("GET", &target, &credential)).await;
        let _ = stream.send.finish();
        held.push(stream);
    }
    apiserver.until(|seen| seen.heads == limits::LONG_TARGETS as usize).await;
    // All are with the apiserver, so that their memory is free again, though none is answered.
    assert_eq!(harness.send(&head("POST", &target, &credential), b"").await.status, 200);
}

#[tokio::test]
async fn raw_paths_arrive_byte_for_byte() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    let targets = [
        "/api/v1/namespaces/a%2Fb/pods",
        "//api//v1/",
        "/apis/x;y=z?a;b",
        "/\u{fc}/%C3%BC?q=\u{fc}&x=%20",
        "/a?",
        "/a??x=?",
        "/api/v1/namespaces/n/services/https:s:443/proxy/a%2e",
        "/exec?command=sh&command=-c&command=echo%0Ahi",
    ];
    for target in targets {
        assert_eq!(harness.get(target, &[]).await.status, 200, "{target}");
        let raw = apiserver.requests().pop().unwrap();
        assert_eq!(raw.split("\r\n").next().unwrap(), format!("GET {target} HTTP/1.1"));
    }
}

#[tokio::test]
async fn attack_th25_only_the_apiserver_can_be_reached() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    let jane = harness.jane();
    let headers = [("authorization", jane.as_str()), ("host", "169.254.169.254")];
    for target in [
        "http://169.254.169.254/latest/meta-data",
        "https://127.0.0.1:10250/pods",
        "127.0.0.1:10250",
        "unix:/run/containerd.sock",
        "[::1]:443/x",
        "2130706433",
        "*",
    ] {
        assert!(harness.send_hostile(&head("GET", target, &headers)).await.is_none(), "{target}");
    }
    // What looks like an address within a path is a path, and Host is the apiserver's.
    assert_eq!(harness.send(&head("GET", "//169.254.169.254/x", &headers), b"").await.status, 200);
    let raw = apiserver.requests();
    assert_eq!(raw.len(), 1);
    assert_eq!(lines(&raw[0], "host"), [apiserver.address.to_string()]);
}

#[tokio::test]
async fn attack_th25_an_unknown_role_ends_its_stream_only() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    let mut other = head("GET", "/", &[]);
    other.role = "ssh".to_owned();
    let mut stream = harness.open(&other).await;
    let refused = stream.recv.recv_message(65536).await;
    assert!(matches!(refused, Err(MessageError::Stream(StreamError::Reset(StreamCode::UnknownRole)))), "{refused:?}");
    let _ = harness.gateway.open(Bytes::from_static(b"\0\0\0\x02\x01\x63")).await;
    assert_eq!(harness.get("/api", &[]).await.status, 200);
}

#[tokio::test]
async fn path_traps_and_forbidden_methods_reach_nobody() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    let jane = harness.jane();
    for target in ["/a/../b", "/%2e%2e/x", "/a/..%2fb", "/a\\..\\b", "/a%00b", "/a%0d%0aX:%20y", "/a#b"] {
        let answer = harness.send_hostile(&head("GET", target, &[("authorization", &jane)])).await;
        assert!(answer.is_none_or(|answer| answer.status == 400), "{target}");
    }
    for method in ["TRACE", "CONNECT"] {
        assert_eq!(harness.send(&head(method, "/", &[("authorization", &jane)]), b"").await.status, 405);
    }
    assert!(apiserver.requests().is_empty());
}

/// A proxy that gathers what comes holds back an event until the next.
#[tokio::test]
async fn t9_each_event_of_a_watch_arrives_before_the_next_is_sent() {
    let go = Arc::new(Notify::new());
    let script = go.clone();
    let apiserver = Apiserver::start(move |_| {
        let mut acts = vec![Act::write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")];
        for event in 0..3 {
            acts.extend([Act::Wait(script.clone()), Act::write(&format!("8\r\n{{\"a\":{event}}}\n\r\n"))]);
        }
        acts
    })
    .await;
    let harness = Harness::new(apiserver.access()).await;
    let mut stream = harness.open(&head("GET", "/api/v1/pods?watch=1", &[("authorization", &harness.jane())])).await;
    stream.send.finish().unwrap();
    let answered =
        tokio::time::timeout(LONG, response_head(&mut stream.recv)).await.expect("the head, before any event");
    assert_eq!(answered.status, 200);
    for event in 0..3 {
        go.notify_one();
        let arrived = tokio::time::timeout(LONG, stream.recv.recv()).await.expect("the event, before the next one");
        assert_eq!(arrived.unwrap().unwrap(), format!("{{\"a\":{event}}}\n"));
    }
}

#[tokio::test]
async fn redirects_are_answers_and_not_followed() {
    let apiserver = Apiserver::start(|_| {
        vec![Act::write("HTTP/1.1 302 Found\r\nLocation: https://evil.test/\r\nContent-Length: 0\r\n\r\n")]
    })
    .await;
    let harness = Harness::new(apiserver.access()).await;
    let answer = harness.get("/apis/aggregated", &[]).await;
    assert_eq!((answer.status, answer.headers["location"].to_str().unwrap()), (302, "https://evil.test/"));
    let (head, _stream) = harness.upgrade("/exec", "SPDY/3.1", &[]).await;
    assert_eq!(head.status, 302, "CVE-2020-8559");
    assert_eq!(apiserver.requests().len(), 2);
}

/// The address by which the agent reaches the apiserver is nothing to a user.
#[tokio::test]
async fn redirects_to_the_apiserver_itself_are_paths() {
    let apiserver = Apiserver::start(|request| {
        let host = lines(request, "host").pop().unwrap_or_default();
        let head = format!("HTTP/1.1 302 Found\r\nLocation: https://{host}/b?c\r\nContent-Length: 0\r\n\r\n");
        vec![Act::Write(head.into_bytes())]
    })
    .await;
    let harness = Harness::new(apiserver.access()).await;
    assert_eq!(harness.get("/a", &[]).await.headers["location"], "/b?c");
    let (head, _stream) = harness.upgrade("/exec", "SPDY/3.1", &[]).await;
    assert_eq!((head.status.as_u16(), &head.headers["location"]), (302, &"/b?c".parse().unwrap()));
}

#[tokio::test]
async fn bodies_have_their_declared_length_or_chunks() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    let jane = harness.jane();
    let post = |extra: &[(&str, &str)]| {
        let mut headers = vec![("authorization", jane.as_str())];
        headers.extend(extra);
        head("POST", "/api/v1/pods", &headers)
    };
    assert_eq!(harness.send(&post(&[("content-length", "4")]), b"body").await.status, 200);
    let raw = apiserver.requests().pop().unwrap();
    assert!(raw.ends_with("\r\n\r\nbody") && lines(&raw, "content-length") == ["4"], "{raw}");
    assert_eq!(harness.send(&post(&[]), b"body").await.status, 200);
    let raw = apiserver.requests().pop().unwrap();
    assert!(raw.contains("\r\n\r\n4\r\nbody\r\n0\r\n\r\n") && lines(&raw, "transfer-encoding") == ["chunked"], "{raw}");
    for bad in ["+4", "0x4", "4,4"] {
        let answer = harness.send_hostile(&post(&[("content-length", bad)])).await;
        assert!(answer.is_none_or(|answer| answer.status == 400), "{bad}");
    }
    let twice = [("content-length", "4"), ("content-length", "5")];
    assert!(harness.send_hostile(&post(&twice)).await.is_none_or(|answer| answer.status == 400));
    assert_eq!(apiserver.requests().len(), 2);
}

/// Over HTTP/1.1 the body was dropped without a word, as hyper does when nobody declared its length.
#[tokio::test]
async fn a_get_with_a_body_of_unknown_length_keeps_it() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    let jane = harness.jane();
    for method in ["GET", "DELETE", "POST"] {
        let request =
            head(method, "/api/v1/namespaces/n/services/search:9200/proxy/_search", &[("authorization", &jane)]);
        assert_eq!(harness.send(&request, b"body").await.status, 200);
        let raw = apiserver.requests().pop().unwrap();
        assert!(raw.ends_with("\r\n\r\n4\r\nbody\r\n0\r\n\r\n"), "{raw}");
        assert_eq!(lines(&raw, "transfer-encoding"), ["chunked"], "{raw}");
        assert_eq!(harness.send(&request, b"").await.status, 200);
        let raw = apiserver.requests().pop().unwrap();
        assert!(lines(&raw, "transfer-encoding").is_empty() || method == "POST", "{raw}");
    }
}

#[tokio::test]
async fn a_body_beyond_its_length_smuggles_nothing() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    let jane = harness.jane();
    let request = head("POST", "/api", &[("authorization", &jane), ("content-length", "4")]);
    let mut stream = harness.open(&request).await;
    let _ = stream.send.send(Bytes::from_static(b"bodyGET /secret HTTP/1.1\r\nHost: x\r\n\r\n")).await;
    let _ = stream.send.finish();
    let _ = stream.recv.recv_message(65536).await;
    assert_eq!(harness.get("/next", &[]).await.status, 200);
    assert!(!apiserver.requests().concat().contains("/secret"));
}

#[tokio::test]
async fn what_is_not_idempotent_is_sent_once() {
    let apiserver = Apiserver::start(|_| vec![Act::Close]).await;
    let harness = Harness::new(apiserver.access()).await;
    let jane = harness.jane();
    for method in ["POST", "PATCH", "PUT", "DELETE", "GET"] {
        let before = apiserver.requests().len();
        let answer = harness.send(&head(method, "/api", &[("authorization", &jane)]), b"").await;
        assert_eq!((answer.status, answer.refused_by.as_deref()), (502, Some("dial")));
        assert_eq!(apiserver.requests().len(), before + 1, "{method}");
    }
}

#[tokio::test]
async fn an_idle_connection_that_the_apiserver_closed_fails_no_request() {
    let mut count = 0;
    let apiserver = Apiserver::start(move |_| {
        count += 1;
        // Keep-alive as far as the answer says; gone right after.
        if count % 2 == 1 { vec![Act::Ok("fine"), Act::Close] } else { vec![Act::Ok("fine")] }
    })
    .await;
    let harness = Harness::new(apiserver.access()).await;
    for _ in 0..20 {
        assert_eq!(harness.get("/api", &[]).await.status, 200);
        tokio::task::yield_now().await;
    }
}

/// Closed while the request was on its way: what is safe is asked again (RFC 9110 section 9.2.2), over a fresh
/// connection.
#[tokio::test]
async fn a_kept_connection_that_ends_without_an_answer_fails_only_what_is_not_safe() {
    for (method, target, statuses, sent) in [
        ("GET", "/api", [200, 200], 3),
        ("GET", "/api/v1/namespaces/n/pods/p/log", [200, 200], 3),
        ("POST", "/api", [200, 502], 2),
    ] {
        let mut count = 0;
        let apiserver = Apiserver::start(move |_| {
            count += 1;
            if count == 2 { vec![Act::Close] } else { vec![Act::Ok("fine")] }
        })
        .await;
        let harness = Harness::new(apiserver.access()).await;
        let jane = harness.jane();
        for status in statuses {
            let answer = harness.send(&head(method, target, &[("authorization", &jane)]), b"").await;
            assert_eq!(answer.status, status, "{method} {target}");
        }
        assert_eq!(apiserver.requests().len(), sent, "{method} {target}");
        // The first two on one connection.
        assert_eq!(apiserver.connections()[..2], [0, 0], "{method} {target}");
    }
}

#[tokio::test]
async fn connections_are_used_again_after_a_whole_answer() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    for _ in 0..5 {
        assert_eq!(harness.get("/api", &[]).await.status, 200);
    }
    assert!(apiserver.connections().iter().max().unwrap() < &5, "{:?}", apiserver.connections());
}

/// Where the apiserver's front speaks HTTP/1.1 only, whatever the connection has carried.
#[tokio::test]
async fn a_connection_is_used_again_by_any_request() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    let jane = harness.jane();
    for method in ["GET", "POST", "GET", "DELETE", "PUT", "GET"] {
        let answer = harness.send(&head(method, "/api", &[("authorization", &jane)]), b"").await;
        assert_eq!(answer.status, 200, "{method}");
    }
    assert_eq!(apiserver.connections(), [0; 6]);
}

/// What comes behind an answer is not the answer to the next one's request.
#[tokio::test]
async fn surplus_bytes_behind_an_answer_reach_nobody() {
    let surplus = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfineHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother";
    let mut first = true;
    let apiserver =
        Apiserver::start(
            move |_| {
                if std::mem::take(&mut first) { vec![Act::write(surplus)] } else { vec![Act::Ok("second")] }
            },
        )
        .await;
    let harness = Harness::new(apiserver.access()).await;
    assert_eq!(harness.get("/api", &[]).await.body, "fine");
    assert_eq!(harness.get("/api", &[]).await.body, "second");
}

#[tokio::test]
async fn no_apiserver_is_503_at_once_with_a_status() {
    let apiserver = ok().await;
    let mut access = Some(apiserver.access());
    let address = apiserver.address;
    drop(apiserver);
    // The listener's task is gone with its group; nobody listens there any more.
    while tokio::net::TcpStream::connect(address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    let harness = Harness::new(access.take().unwrap()).await;
    let answer = harness.get("/api", &[]).await;
    assert_eq!((answer.status, answer.refused_by.as_deref()), (503, Some("dial")));
    assert!(answer.headers.contains_key("retry-after"));
    let status: Value = serde_json::from_str(&answer.body).unwrap();
    assert_eq!((&status["kind"], &status["code"]), (&"Status".into(), &503.into()));
}

/// The gateway's step of the trace goes on, never a header that went around it.
#[tokio::test]
async fn the_apiserver_is_told_the_trace() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    let jane = harness.jane();
    let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for given in [Some(parent), None] {
        let mut request = head("GET", "/api", &[("authorization", &jane), ("traceparent", "smuggled")]);
        request.traceparent = given.map(|value| Bytes::from_static(value.as_bytes()));
        assert_eq!(harness.send(&request, b"").await.status, 200);
        let seen = apiserver.requests().pop().unwrap();
        assert_eq!(lines(&seen, "traceparent"), given.into_iter().collect::<Vec<_>>(), "{seen}");
    }
}

#[tokio::test]
async fn the_deadline_for_an_answer_is_kept() {
    let apiserver = Apiserver::start(|_| vec![Act::Hang]).await;
    let harness = Harness::new(apiserver.access()).await;
    let jane = harness.jane();
    let mut request = head("GET", "/api", &[("authorization", &jane)]);
    request.deadline_ms = Some(50);
    assert_eq!(harness.send(&request, b"").await.status, 504);
    apiserver.until(|seen| seen.gone == 1).await;
}

#[tokio::test]
async fn a_user_who_goes_away_cancels_the_request_before_and_within_the_answer() {
    let apiserver = Apiserver::start(|head| {
        if head.starts_with("GET /slow") {
            vec![Act::Hang]
        } else {
            vec![Act::write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"), Act::Hang]
        }
    })
    .await;
    let harness = Harness::new(apiserver.access()).await;
    let jane = harness.jane();
    let mut waiting = harness.open(&head("GET", "/slow", &[("authorization", &jane)])).await;
    waiting.send.finish().unwrap();
    apiserver.until(|seen| seen.requests.len() == 1).await;
    drop(waiting);
    apiserver.until(|seen| seen.gone == 1).await;
    let mut watching = harness.open(&head("GET", "/watch", &[("authorization", &jane)])).await;
    watching.send.finish().unwrap();
    assert_eq!(response_head(&mut watching.recv).await.status, 200);
    assert_eq!(watching.recv.recv().await.unwrap().unwrap(), "abc");
    watching.recv.stop(StreamCode::NoMore);
    apiserver.until(|seen| seen.gone == 2).await;
    // A request body that breaks off cancels the request too.
    let mut posting = harness.open(&head("POST", "/slow", &[("authorization", &jane)])).await;
    posting.send.send(Bytes::from_static(b"part")).await.unwrap();
    // A reset may overtake the head: wait until that has arrived.
    apiserver.until(|seen| seen.heads == 3).await;
    posting.send.reset(StreamCode::Cancelled);
    apiserver.until(|seen| seen.gone == 3).await;
}

#[tokio::test]
async fn an_answer_may_come_before_the_request_body_has_ended() {
    let apiserver = Apiserver::start(|head| {
        if head.starts_with("POST") {
            vec![Act::write("HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig"), Act::Hang]
        } else {
            vec![Act::Ok("fine")]
        }
    })
    .await;
    let harness = Harness::new(apiserver.access()).await;
    let jane = harness.jane();
    // Of no length, so that the scripted apiserver does not wait for the body.
    let mut stream = harness.open(&head("POST", "/api", &[("authorization", &jane), ("content-length", "0")])).await;
    let answer = answer(&mut stream.recv).await;
    assert_eq!((answer.status, answer.body.as_str(), answer.end), (413, "big", Ok(())));
}

#[tokio::test]
async fn bad_answers_of_an_apiserver_are_502() {
    let bomb: String = (0..2000).map(|number| format!("X-{number}: v\r\n")).collect();
    for script in [
        format!("HTTP/1.1 200 OK\r\n{bomb}\r\n"),
        "garbage\r\n\r\n".to_owned(),
        "HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc".to_owned(),
    ] {
        let apiserver = Apiserver::start(move |_| vec![Act::write(&script), Act::Close]).await;
        let harness = Harness::new(apiserver.access()).await;
        assert_eq!(harness.get("/api", &[]).await.status, 502);
    }
}

/// Whoever reads the one and not the other takes the rest of the body for the next answer, or waits for more.
#[tokio::test]
async fn a_length_beside_chunks_does_not_go_on() {
    for length in [1, 5] {
        let script = format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
        );
        let apiserver = Apiserver::start(move |_| vec![Act::write(&script)]).await;
        let answer = Harness::new(apiserver.access()).await.get("/api", &[]).await;
        assert_eq!((answer.status, answer.body.as_str(), answer.end), (200, "abc", Ok(())), "{length}");
        assert!(!answer.headers.contains_key("content-length"), "{:?}", answer.headers);
    }
}

#[tokio::test]
async fn informational_answers_do_not_cross() {
    let apiserver = Apiserver::start(|_| {
        let flood = "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n".repeat(100);
        vec![Act::write(&flood), Act::write("HTTP/1.1 100 Continue\r\n\r\n"), Act::Ok("fine")]
    })
    .await;
    let harness = Harness::new(apiserver.access()).await;
    let answer = harness.get("/api", &[("expect", "100-continue")]).await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "fine"));
    assert!(lines(&apiserver.requests()[0], "expect").is_empty());
}

#[tokio::test]
async fn t8_over_the_limit_of_streams_is_429_with_a_name() {
    let apiserver = Apiserver::start(|_| vec![Act::Hang]).await;
    let harness = Harness::with(apiserver.access(), std::time::Duration::from_secs(60), 2).await;
    let jane = harness.jane();
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = harness.open(&head("GET", "/watch", &[("authorization", &jane)])).await;
        stream.send.finish().unwrap();
        held.push(stream);
    }
    apiserver.until(|seen| seen.requests.len() == 2).await;
    let answer = harness.get("/api", &[]).await;
    assert_eq!(answer.status, 429);
    assert!(answer.body.contains("limits.streams") && answer.headers.contains_key("retry-after"));
}

#[tokio::test]
async fn echo_gives_back_what_it_gets() {
    let apiserver = ok().await;
    let harness = Harness::new(apiserver.access()).await;
    let mut request = head("POST", "/", &[]);
    request.role = "echo".to_owned();
    let mut stream = harness.open(&request).await;
    assert_eq!(response_head(&mut stream.recv).await.status, 200);
    stream.send.send(Bytes::from_static(b"ping")).await.unwrap();
    assert_eq!(stream.recv.recv().await.unwrap().unwrap(), "ping");
    stream.send.finish().unwrap();
    assert_eq!(rest(&mut stream.recv).await, (String::new(), Ok(())));
}
