//! The connections to the apiserver: as many of HTTP/2 as the streams need, a few of HTTP/1.1 for brief answers, and
//! one that ends fails no safe request.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use daemon::TaskGroup;
use futures_util::StreamExt as _;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::server::TlsStream;
use tunnel::{transport::StreamError, wire::close::StreamCode};

use crate::{
    apiserver::{access, listen, read_head, tls},
    harness::{Harness, head, response_head, rest},
};

/// Of an answer that does not fit into what a connection reads at once.
const LARGE_BYTES: usize = 3_000_000;

/// An HTTP/2 apiserver: streams of one connection at most, requests after which a connection says GOAWAY.
struct Http2 {
    harness: Harness,
    connections: Arc<AtomicUsize>,
    _tasks: TaskGroup,
}

async fn http2(streams_max: u32, goaway_after: usize) -> Http2 {
    let connections = Arc::new(AtomicUsize::new(0));
    let (counter, serving) = (connections.clone(), TaskGroup::new("watches"));
    // HTTP/1.1 is refused.
    let (address, roots, tasks) = listen(&[b"h2"], move |io, _| {
        let (serving, counter) = (serving.clone(), counter.clone());
        async move {
            counter.fetch_add(1, Ordering::SeqCst);
            let mut builder = h2::server::Builder::new();
            builder.max_concurrent_streams(streams_max).max_header_list_size(1 << 20);
            let mut connection = builder.handshake::<_, Bytes>(io).await.unwrap();
            let mut served = 0;
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                served += 1;
                if served == goaway_after {
                    connection.graceful_shutdown();
                }
                let groups = request.headers().get_all("impersonate-group").iter().count();
                let watch = request.uri().path() == "/watch";
                let answer = http::Response::builder().header("x-groups", groups).body(()).unwrap();
                let mut send = respond.send_response(answer, false).unwrap();
                send.send_data(Bytes::from_static(b"event"), !watch).unwrap();
                if watch {
                    serving.spawn("watch", async move {
                        // Until the reader goes away.
                        let _ = std::future::poll_fn(|cx| send.poll_reset(cx)).await;
                    });
                }
            }
        }
    })
    .await;
    let harness = Harness::with(access(address, &roots), std::time::Duration::from_secs(3600), 4096).await;
    Http2 { harness, connections, _tasks: tasks }
}

/// An apiserver of both versions, as the real one is, and what came over which of them.
struct Both {
    harness: Harness,
    seen: Arc<Mutex<Vec<(http::Version, String)>>>,
    _tasks: TaskGroup,
}

impl Both {
    /// What it answers over HTTP/1.1 depends on the target; see [`over_http1`].
    async fn start() -> Self {
        let seen = Arc::<Mutex<Vec<_>>>::default();
        let records = seen.clone();
        let (address, roots, tasks) = listen(&[b"h2", b"http/1.1"], move |io, _| {
            let records = records.clone();
            async move {
                if io.get_ref().1.alpn_protocol() == Some(b"h2") {
                    over_http2(io, &records).await;
                } else {
                    over_http1(io, &records).await;
                }
            }
        })
        .await;
        Self { harness: Harness::new(access(address, &roots)).await, seen, _tasks: tasks }
    }

    fn over(&self, version: http::Version) -> Vec<String> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|(came, _)| *came == version).map(|(_, request)| request.clone()).collect()
    }

    /// How many of these have come over HTTP/1.1.
    fn http1(&self, target: &str) -> usize {
        let wanted = format!("GET {target}");
        self.over(http::Version::HTTP_11).iter().filter(|request| **request == wanted).count()
    }

    /// Asks until `count` of these have come over HTTP/1.1: that is dialled while others are answered.
    async fn get_until_over_http1(&self, target: &str, count: usize) {
        let asked = async {
            while self.http1(target) < count {
                let answer = self.harness.get(target, &[]).await;
                assert_eq!((answer.status, answer.body.as_str(), answer.end), (200, "fine", Ok(())));
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), asked).await.expect("HTTP/1.1 is used in time");
    }
}

async fn over_http2(io: TlsStream<TcpStream>, seen: &Mutex<Vec<(http::Version, String)>>) {
    let mut connection = h2::server::handshake(io).await.unwrap();
    while let Some(Ok((request, mut respond))) = connection.accept().await {
        let target = request.uri().path_and_query().unwrap();
        seen.lock().unwrap().push((http::Version::HTTP_2, format!("{} {target}", request.method())));
        let mut send = respond.send_response(http::Response::new(()), false).unwrap();
        send.send_data(Bytes::from_static(b"fine"), true).unwrap();
    }
}

async fn over_http1(mut io: TlsStream<TcpStream>, seen: &Mutex<Vec<(http::Version, String)>>) {
    let mut buffer = Vec::new();
    while let Some(head) = read_head(&mut io, &mut buffer).await {
        let head = String::from_utf8(head).unwrap();
        let request = head.split(" HTTP/").next().unwrap().to_owned();
        seen.lock().unwrap().push((http::Version::HTTP_11, request.clone()));
        let (answer, last) = match request.strip_prefix("GET ").unwrap_or_default() {
            "/close" => (String::new(), true),
            "/long" => {
                let many = "Warning: 299 - more\r\n".repeat(200);
                (format!("200 OK\r\nContent-Length: 4\r\n{many}\r\nfine"), false)
            }
            "/large" => {
                let large = "large".repeat(LARGE_BYTES / 5);
                (format!("200 OK\r\nContent-Length: {LARGE_BYTES}\r\n\r\n{large}"), false)
            }
            "/chunked" => {
                ("200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nfi\r\n2\r\nne\r\n0\r\n\r\n".to_owned(), false)
            }
            "/until-closed" => ("200 OK\r\n\r\nfine".to_owned(), true),
            "/last" => ("200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\nfine".to_owned(), true),
            "/empty" => ("204 No Content\r\n\r\n".to_owned(), false),
            "/same" => ("304 Not Modified\r\nContent-Length: 4\r\n\r\n".to_owned(), false),
            "/early" => ("103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine".to_owned(), false),
            "/switch" => ("101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nfine".to_owned(), false),
            "/short" => ("200 OK\r\nContent-Length: 9\r\n\r\nfine".to_owned(), true),
            "/more" => (
                "200 OK\r\nContent-Length: 4\r\n\r\nfineHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil".to_owned(),
                false,
            ),
            "/hints" => {
                let hints = "HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n".repeat(1000);
                // Until the agent gives it up.
                while io.write_all(hints.as_bytes()).await.is_ok() {}
                return;
            }
            _ => ("200 OK\r\nContent-Length: 4\r\n\r\nfine".to_owned(), false),
        };
        if !answer.is_empty() {
            io.write_all(format!("HTTP/1.1 {answer}").as_bytes()).await.unwrap();
            io.flush().await.unwrap();
        }
        if last {
            let _ = io.shutdown().await;
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn brief_answers_come_over_http1_and_nothing_else_does() {
    let both = Both::start().await;
    both.get_until_over_http1("/api?limit=1", 20).await;
    let jane = both.harness.jane();
    let others = [
        ("GET", "/api/v1/pods?watch=1"),
        ("GET", "/api/v1/watch/pods"),
        ("POST", "/api"),
        ("DELETE", "/api"),
        ("OPTIONS", "/api"),
    ];
    for (method, target) in others {
        let answer = both.harness.send(&head(method, target, &[("authorization", &jane)]), b"").await;
        assert_eq!(answer.status, 200, "{method} {target}");
        assert!(both.over(http::Version::HTTP_2).contains(&format!("{method} {target}")), "{method} {target}");
    }
    // A GET with a body may be answered before that has come.
    let answer = both.harness.send(&head("GET", "/body", &[("authorization", &jane)]), b"body").await;
    assert_eq!(answer.status, 200);
    assert!(both.over(http::Version::HTTP_2).contains(&"GET /body".to_owned()));
}

/// RFC 9110 section 9.2.2: a server may close a kept connection at any time, and what is safe is asked again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kept_connection_that_ends_without_an_answer_fails_no_get() {
    let both = Both::start().await;
    both.get_until_over_http1("/close", 1).await;
    // Once again, and nothing more often.
    let seen = both.seen.lock().unwrap().clone();
    for (at, _) in seen.iter().enumerate().filter(|(_, (version, _))| *version == http::Version::HTTP_11) {
        assert_eq!(seen[at + 1..], [(http::Version::HTTP_2, "GET /close".to_owned())], "{seen:?}");
    }
}

/// Whoever reads it drives its connection, which brings it in many parts, and is used again behind it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_answer_over_http1_comes_whole() {
    let both = Both::start().await;
    for _ in 0..2 {
        both.get_until_over_http1("/api", 2).await;
        let answer = both.harness.get("/large", &[]).await;
        assert_eq!((answer.status, answer.body.len(), answer.end), (200, LARGE_BYTES, Ok(())));
    }
    assert_eq!(both.http1("/large"), 2);
}

/// Whatever an answer looks like, the next request has its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_every_kind_over_http1_are_handed_on_and_the_next_is_right() {
    let both = Both::start().await;
    for (target, status, body) in [
        ("/chunked", 200, "fine"),
        ("/until-closed", 200, "fine"),
        ("/last", 200, "fine"),
        ("/empty", 204, ""),
        ("/same", 304, ""),
        ("/early", 200, "fine"),
        ("/more", 200, "fine"),
    ] {
        both.get_until_over_http1("/api", both.http1("/api") + 2).await;
        let before = both.http1(target);
        let answer = both.harness.get(target, &[]).await;
        assert_eq!((answer.status, answer.body.as_str(), answer.end), (status, body, Ok(())), "{target}");
        assert_eq!(both.http1(target), before + 1, "{target}");
    }
    both.get_until_over_http1("/api", both.http1("/api") + 2).await;
    // Never a whole answer, whether its head was read before the end or not.
    let jane = both.harness.jane();
    let mut cut = both.harness.open(&head("GET", "/short", &[("authorization", &jane)])).await;
    cut.send.finish().unwrap();
    assert_eq!(rest(&mut cut.recv).await.1, Err(StreamError::Reset(StreamCode::Upstream)));
    both.get_until_over_http1("/api", both.http1("/api") + 2).await;
    let switched = both.harness.get("/switch", &[]).await;
    assert_eq!(switched.status, 502);
    both.get_until_over_http1("/api", both.http1("/api") + 2).await;
}

/// An apiserver that sends without a pause used up the turns of whoever waits, whose deadline was never seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attack_th23_hints_without_end_end_with_the_deadline() {
    let both = Both::start().await;
    both.get_until_over_http1("/api", 2).await;
    let jane = both.harness.jane();
    let mut request = head("GET", "/hints", &[("authorization", &jane)]);
    request.deadline_ms = Some(300);
    let answered = both.harness.send(&request, b"");
    let answer = tokio::time::timeout(std::time::Duration::from_secs(60), answered).await.expect("an answer");
    assert_eq!(answer.status, 504);
    assert_eq!(both.http1("/hints"), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_many_headers_is_asked_for_over_http2() {
    let both = Both::start().await;
    both.get_until_over_http1("/api", 2).await;
    both.get_until_over_http1("/long", 1).await;
    assert!(both.over(http::Version::HTTP_2).contains(&"GET /long".to_owned()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_watches_share_as_many_connections_as_they_need() {
    let Http2 { harness, connections, _tasks } = http2(100, usize::MAX).await;
    let jane = harness.jane();
    let mut watches = Vec::new();
    for _ in 0..1000 {
        let mut stream = harness.open(&head("GET", "/watch", &[("authorization", &jane)])).await;
        stream.send.finish().unwrap();
        watches.push(stream);
    }
    for watch in &mut watches {
        assert_eq!(response_head(&mut watch.recv).await.status, 200);
        assert_eq!(watch.recv.recv().await.unwrap().unwrap(), "event");
    }
    let opened = connections.load(Ordering::SeqCst);
    assert!((10..=40).contains(&opened), "{opened} connections");
    assert_eq!(harness.upstream.open().1, 1000);
    assert_eq!(harness.get("/api", &[]).await.status, 200);
    drop(watches);
    // Every gauge goes back to nothing.
    tokio::time::timeout(std::time::Duration::from_secs(20), async {
        while harness.upstream.open().1 > 0 || harness.server.running() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await
    .expect("all watches end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fewer_streams_than_usual_are_respected() {
    let Http2 { harness, connections, _tasks } = http2(5, usize::MAX).await;
    let jane = harness.jane();
    assert_eq!(harness.get("/api", &[]).await.status, 200, "the apiserver's settings are known after this");
    let mut watches = Vec::new();
    for _ in 0..20 {
        let mut stream = harness.open(&head("GET", "/watch", &[("authorization", &jane)])).await;
        stream.send.finish().unwrap();
        assert_eq!(response_head(&mut stream.recv).await.status, 200);
        watches.push(stream);
    }
    assert!(connections.load(Ordering::SeqCst) >= 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn goaway_fails_no_request() {
    let Http2 { harness, connections, _tasks } = http2(100, 7).await;
    for number in 0..100 {
        let answer = harness.get("/api", &[]).await;
        assert_eq!((answer.status, answer.body.as_str(), answer.end), (200, "event", Ok(())), "request {number}");
    }
    assert!(connections.load(Ordering::SeqCst) > 5);
}

/// A backend that takes the connection and then says nothing held up whoever else needed a connection, for ten seconds
/// each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dial_that_hangs_holds_up_no_other_request() {
    let (acceptor, roots) = tls(&[b"http/1.1"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tasks = TaskGroup::new("apiserver of two backends");
    let (taken, hangs) = tokio::sync::oneshot::channel();
    tasks.spawn("accept", async move {
        let (_silent, _) = listener.accept().await.unwrap();
        taken.send(()).unwrap();
        let (tcp, _) = listener.accept().await.unwrap();
        let mut io = acceptor.accept(tcp).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            assert!(io.read_buf(&mut head).await.unwrap() > 0, "the head, whole");
        }
        io.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfine").await.unwrap();
        io.flush().await.unwrap();
        std::future::pending().await
    });
    let harness = Harness::new(access(address, &roots)).await;
    let jane = harness.jane();
    let mut first = harness.open(&head("GET", "/first", &[("authorization", &jane)])).await;
    first.send.finish().unwrap();
    hangs.await.unwrap();
    tokio::select! {
        biased;
        head = response_head(&mut first.recv) => panic!("the second waited for the end of the first: {}", head.status),
        second = harness.get("/second", &[]) => assert_eq!((second.status, second.body.as_str()), (200, "fine")),
    }
}

/// Of requests that were cancelled within a second h2 remembered 50, and after a thousand frames of others that were on
/// their way still it ended the connection, and with it the watches of everybody else on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_are_cancelled_end_no_connection() {
    const CANCELLED: usize = 3000;
    let happens = Arc::new(tokio::sync::Notify::new());
    let (event, serving) = (happens.clone(), TaskGroup::new("answers"));
    // HTTP/1.1 is refused.
    let (address, roots, _tasks) = listen(&[b"h2"], move |io, _| {
        let (serving, event) = (serving.clone(), event.clone());
        async move {
            let mut builder = h2::server::Builder::new();
            builder.max_pending_accept_reset_streams(CANCELLED);
            let mut connection = builder.handshake::<_, Bytes>(io).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let Ok(mut send) = respond.send_response(http::Response::new(()), false) else { continue };
                let (watch, event) = (request.uri().path() == "/watch", event.clone());
                serving.spawn("answer", async move {
                    let mut first = true;
                    loop {
                        if watch && !std::mem::take(&mut first) {
                            event.notified().await;
                        }
                        send.reserve_capacity(1000);
                        let Some(Ok(_)) = std::future::poll_fn(|cx| send.poll_capacity(cx)).await else { return };
                        if send.send_data(Bytes::from_static(&[b'x'; 1000]), false).is_err() {
                            return;
                        }
                    }
                });
            }
        }
    })
    .await;
    let harness = Harness::with(access(address, &roots), std::time::Duration::from_secs(3600), 4096).await;
    let jane = harness.jane();
    let open = async |target: &str| {
        let mut stream = harness.open(&head("GET", target, &[("authorization", &jane)])).await;
        stream.send.finish().unwrap();
        assert_eq!(response_head(&mut stream.recv).await.status, 200);
        assert!(stream.recv.recv().await.unwrap().is_some());
        stream
    };
    let mut watch = open("/watch").await;
    let cancelled = (0..CANCELLED).map(|_| async { drop(open("/endless").await) });
    futures_util::stream::iter(cancelled).for_each_concurrent(20, |cancelled| cancelled).await;
    happens.notify_one();
    assert!(watch.recv.recv().await.unwrap().is_some(), "the next event");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attack_th9_three_hundred_groups_arrive_over_http2() {
    let Http2 { harness, _tasks, .. } = http2(100, usize::MAX).await;
    let groups: Vec<String> = (0..300).map(|number| format!("{number:0>100}")).collect();
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let credential = format!("Bearer {}", harness.token("jane", &groups));
    let answer = harness.send(&head("GET", "/api", &[("authorization", &credential)]), b"").await;
    assert_eq!((answer.status, answer.headers["x-groups"].to_str().unwrap()), (200, "300"));
}

/// What nobody reads of a connection's answers, a byte in a frame: beyond an allowance h2 ended the connection, and
/// with it the watches of everybody else on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drops_that_nobody_reads_end_no_connection() {
    // Behind the tunnel's credit and what the agent has of the stream at once.
    const DROPS: usize = 450_000;
    let (acceptor, roots) = tls(&[b"h2", b"http/1.1"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tasks = TaskGroup::new("apiserver");
    let (spawner, connections) = (tasks.clone(), Arc::<[AtomicUsize; 2]>::default());
    let counters = connections.clone();
    tasks.spawn("accept", async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let (acceptor, serving, counters) = (acceptor.clone(), spawner.clone(), counters.clone());
            spawner.spawn("connection", async move {
                let mut io = acceptor.accept(tcp).await.unwrap();
                let http2 = io.get_ref().1.alpn_protocol() == Some(b"h2");
                counters[usize::from(http2)].fetch_add(1, Ordering::SeqCst);
                if http2 {
                    let mut connection = h2::server::handshake(io).await.unwrap();
                    while let Some(Ok((request, mut respond))) = connection.accept().await {
                        assert!(
                            request.method() == "POST" || !request.uri().path().contains("/p/"),
                            "{} over HTTP/2",
                            request.uri()
                        );
                        let mut send = respond.send_response(http::Response::new(()), false).unwrap();
                        serving.spawn("drops", async move {
                            for _ in 0..DROPS {
                                send.reserve_capacity(1);
                                let Some(Ok(_)) = std::future::poll_fn(|cx| send.poll_capacity(cx)).await else {
                                    return;
                                };
                                send.send_data(Bytes::from_static(b"x"), false).unwrap();
                            }
                            send.send_data(Bytes::new(), true).unwrap();
                        });
                    }
                    return;
                }
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    assert!(io.read_buf(&mut head).await.unwrap() > 0, "the head, whole");
                }
                io.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await.unwrap();
                io.write_all(&b"1\r\nx\r\n".repeat(DROPS)).await.unwrap();
                io.write_all(b"0\r\n\r\n").await.unwrap();
                io.flush().await.unwrap();
            });
        }
    });
    let harness = Harness::new(access(address, &roots)).await;
    let jane = harness.jane();
    let mut unread = Vec::new();
    for (method, target) in [
        ("GET", "/api/v1/pods?watch=1"),
        ("GET", "/api/v1/namespaces/n/pods/p/log?follow=true"),
        ("GET", "/api/v1/namespaces/n/pods/p/%6c%6Fg"),
        ("POST", "/api/v1/namespaces/n/services/s/proxy/events"),
    ] {
        let mut stream = harness.open(&head(method, target, &[("authorization", &jane)])).await;
        stream.send.finish().unwrap();
        assert_eq!(response_head(&mut stream.recv).await.status, 200);
        unread.push(stream);
    }
    // Another one, which has the connection of the first whatever its namespace is called, and reads.
    let target = "/api/v1/namespaces/proxy/pods?watch=1";
    let mut beside = harness.open(&head("GET", target, &[("authorization", &jane)])).await;
    beside.send.finish().unwrap();
    assert_eq!(response_head(&mut beside.recv).await.status, 200);
    unread.insert(0, beside);
    for mut stream in unread {
        let mut read = 0;
        while let Some(chunk) = stream.recv.recv().await.unwrap() {
            read += chunk.len();
        }
        assert_eq!(read, DROPS);
    }
    // The logs; the watches together, and what is written to a service.
    assert_eq!([0, 1].map(|which: usize| connections[which].load(Ordering::SeqCst)), [2, 2]);
}

/// An HTTP/2 apiserver that notes how much each answer's window lets it send at first, and then sends `bytes` of it as
/// the agent takes them.
async fn generous(bytes: usize, unread: u64) -> (Harness, Arc<Mutex<Vec<(String, usize)>>>, TaskGroup) {
    let windows = Arc::<Mutex<Vec<(String, usize)>>>::default();
    let (noted, sending) = (windows.clone(), TaskGroup::new("answers"));
    let (address, roots, tasks) = listen(&[b"h2"], move |io, _| {
        let (noted, sending) = (noted.clone(), sending.clone());
        async move {
            let mut connection = h2::server::handshake(io).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let user = request.headers()["impersonate-user"].to_str().unwrap().to_owned();
                let mut send = respond.send_response(http::Response::new(()), false).unwrap();
                let noted = noted.clone();
                sending.spawn("answer", async move {
                    let mut left = bytes;
                    send.reserve_capacity(left);
                    let mut first = Some(user);
                    while left > 0
                        && let Some(Ok(_)) = std::future::poll_fn(|cx| send.poll_capacity(cx)).await
                    {
                        let room = send.capacity();
                        if let Some(user) = first.take() {
                            noted.lock().unwrap().push((user, room));
                        }
                        let chunk = Bytes::from(vec![b'x'; room.min(left)]);
                        left -= chunk.len();
                        if send.send_data(chunk, left == 0).is_err() {
                            // Its reader has gone.
                            return;
                        }
                        send.reserve_capacity(left);
                    }
                });
            }
        }
    })
    .await;
    (Harness::with_bytes_unread(access(address, &roots), unread).await, windows, tasks)
}

/// Whatever many streams nobody reads: what they may hold beyond a little for each is a share of what all may hold.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t8_streams_that_nobody_reads_hold_a_share_of_what_all_may_hold() {
    const UNREAD: u64 = 64 << 20;
    const NARROW: usize = 32 * 1024;
    const STREAMS: usize = 300;
    let bytes = 1_000_000;
    let (harness, windows, _tasks) = generous(bytes, UNREAD).await;
    let target = "/api/v1/pods?watch=1";
    let jane = harness.jane();
    let mut unread = Vec::new();
    for _ in 0..STREAMS {
        let mut stream = harness.open(&head("GET", target, &[("authorization", &jane)])).await;
        let _ = stream.send.finish();
        assert_eq!(response_head(&mut stream.recv).await.status, 200);
        unread.push(stream);
    }
    // The head of an answer leaves before its window is noted.
    while windows.lock().unwrap().len() < STREAMS {
        tokio::task::yield_now().await;
    }
    let beyond: usize = windows.lock().unwrap().iter().map(|(_, window)| window - NARROW).sum();
    let wide = windows.lock().unwrap().iter().filter(|(_, window)| *window > NARROW).count();
    assert!(wide > 10 && beyond as u64 <= UNREAD / 8, "{wide} wide ones, {beyond} bytes");

    // Others have wide ones beside them, and read. Several, for two may have one share, by chance.
    for user in ["joe", "jim", "jack"] {
        let other = format!("Bearer {}", harness.token(user, &[]));
        let answer = harness.send(&head("GET", target, &[("authorization", &other)]), b"").await;
        assert_eq!((answer.status, answer.body.len(), answer.end), (200, bytes, Ok(())));
    }
    let others: Vec<_> = windows.lock().unwrap().split_off(STREAMS);
    assert!(others.iter().any(|(user, window)| user != "jane" && *window == 256 * 1024), "{others:?}");

    // A narrow one is whole too, and the room comes back with the streams.
    let mut last = unread.pop().unwrap();
    let (body, end) = rest(&mut last.recv).await;
    assert_eq!((body.len(), end), (bytes, Ok(())));
    drop(unread);
    while harness.upstream.open().1 > 0 {
        tokio::task::yield_now().await;
    }
    let answer = harness.send(&head("GET", target, &[("authorization", &jane)]), b"").await;
    assert_eq!((answer.status, answer.body.len(), answer.end), (200, bytes, Ok(())));
    assert_eq!(windows.lock().unwrap().last().unwrap().1, 256 * 1024);
}
