//! The HTTP/2 pool: as many connections as the streams need, and a GOAWAY fails nobody.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use proto::process::TaskGroup;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use crate::{
    apiserver::{access, tls},
    harness::{Harness, head, response_head},
};

/// An HTTP/2 apiserver: streams of one connection at most, requests after which a connection says GOAWAY.
struct Http2 {
    harness: Harness,
    connections: Arc<AtomicUsize>,
    _tasks: TaskGroup,
}

async fn http2(streams_max: u32, goaway_after: usize) -> Http2 {
    let (acceptor, roots) = tls(&[b"h2"]);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tasks = TaskGroup::new("http2 apiserver");
    let connections = Arc::new(AtomicUsize::new(0));
    let (spawner, counter) = (tasks.clone(), connections.clone());
    tasks.spawn("accept", async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let (acceptor, serving, counter) = (acceptor.clone(), spawner.clone(), counter.clone());
            spawner.spawn("connection", async move {
                let io = acceptor.accept(tcp).await.unwrap();
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
            });
        }
    });
    let harness = Harness::with(access(address, &roots), std::time::Duration::from_secs(3600), 4096).await;
    Http2 { harness, connections, _tasks: tasks }
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

/// A backend that takes the connection and then says nothing held up whoever else needed a connection, for ten seconds each
/// (lesson 1).
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attack_i9_three_hundred_groups_arrive_over_http2() {
    let Http2 { harness, _tasks, .. } = http2(100, usize::MAX).await;
    let groups: Vec<String> = (0..300).map(|number| format!("{number:0>100}")).collect();
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let credential = format!("Bearer {}", harness.token("jane", &groups));
    let answer = harness.send(&head("GET", "/api", &[("authorization", &credential)]), b"").await;
    assert_eq!((answer.status, answer.headers["x-groups"].to_str().unwrap()), (200, "300"));
}

/// What nobody reads of a connection's answers, a byte in a frame: beyond an allowance h2 ended the connection, and with it the
/// watches of everybody else on it.
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
