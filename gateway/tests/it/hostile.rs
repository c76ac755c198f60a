//! An agent, or the cluster behind it, that answers what it likes: judged by the bytes that its user gets.

use std::time::Duration;

use bytes::Bytes;
use certs::Validity;
use futures_util::{FutureExt, future::join_all};
use gateway::tunnels::handshake::TUNNELS_PER_CLUSTER;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use tunnel::wire::head::ResponseHead;

use crate::world::{LONG, World, at, cluster, get};

/// Such lengths would let a cluster make up the next answer of a connection, had its user's reader another opinion.
#[tokio::test]
async fn a_length_that_readers_could_differ_about_is_a_bad_gateway() {
    let world = World::new().await;
    let token = world.token("ann", "a");
    let agent = world.agent("a").await;
    let mut user = world.user().await;
    for lengths in [["5", "10"].as_slice(), &["10", "5"], &["5", "5"], &["5, 5"], &["+5"], &["0x5"], &["-5"], &[""]] {
        user.send(get(&at("a", "/x"), &token, "")).await;
        let mut arrived = agent.next().await;
        let mut headers = HeaderMap::new();
        for length in lengths {
            headers.append(header::CONTENT_LENGTH, HeaderValue::from_static(length));
        }
        let head = ResponseHead { status: StatusCode::OK, headers, refused_by: None };
        let answer = [head.encode().unwrap().freeze(), Bytes::from_static(b"0123456789")].concat();
        arrived.stream.send.send(answer.into()).await.unwrap();
        let answer = user.answer().await;
        assert_eq!(answer.status, 502, "{lengths:?}: {answer:?}");
        assert!(user.buffer.is_empty(), "{lengths:?}: {:?}", String::from_utf8_lossy(&user.buffer));
        // The connection is still the gateway's, and what comes next is judged anew.
        user.send(get(&at("a", "/x"), "nobody's", "")).await;
        assert_eq!(user.answer().await.status, 401, "{lengths:?}");
    }
}

/// Hellos at the same time were all told that there is room.
#[tokio::test]
async fn many_tunnels_at_once_are_no_more_than_the_limit() {
    let world = World::new().await;
    let own = world.authority.issue_agent(cluster("a").as_str(), Validity::days(1)).unwrap();
    let dials = (0..TUNNELS_PER_CLUSTER + 16).map(|_| world.dial(own.credentials()));
    let tunnels: Vec<_> = join_all(dials).await.into_iter().flatten().collect();
    let open = || world.gateway.core().tunnels.count_of(&cluster("a").key());
    let all_told = async {
        // Who is over the limit hears so; the others stay.
        while tunnels.iter().filter(|tunnel| tunnel.closed().now_or_never().is_none()).count() > TUNNELS_PER_CLUSTER
            || open() > TUNNELS_PER_CLUSTER
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, all_told).await.unwrap();
}

/// The first message of a client that offers one version and these cipher suites, as before TLS 1.3.
fn client_hello(version: u16, suites: &[u16]) -> Vec<u8> {
    let mut hello = version.to_be_bytes().to_vec();
    hello.extend([7; 32]);
    hello.push(0);
    hello.extend(u16::try_from(suites.len() * 2).unwrap().to_be_bytes());
    hello.extend(suites.iter().flat_map(|suite| suite.to_be_bytes()));
    hello.extend([1, 0]);
    // Groups and signature algorithms, which rules apart from the version do not lack.
    let extensions: [&[u8]; 2] = [&[0, 10, 0, 4, 0, 2, 0, 23], &[0, 13, 0, 6, 0, 4, 4, 3, 8, 4]];
    hello.extend(u16::try_from(extensions.concat().len()).unwrap().to_be_bytes());
    hello.extend(extensions.concat());
    let length = u32::try_from(hello.len()).unwrap().to_be_bytes();
    let message = [&[1], &length[1..], &hello].concat();
    let length = u16::try_from(message.len()).unwrap().to_be_bytes();
    [&[22, 3, 1], &length[..], &message].concat()
}

/// Versions of TLS and cipher suites that are broken. There is no renegotiation in the library at all.
#[tokio::test]
async fn attack_th28_old_versions_of_tls_and_weak_suites_are_refused() {
    let world = World::new().await;
    // Suites that TLS 1.2 clients of today offer, to tell that it is the version or the suites that are refused.
    let good = [0xc02b, 0xc02c, 0xc02f, 0xc030];
    let weak = [0x000a, 0x002f, 0x0035, 0x0005, 0xc013, 0xc014, 0x009c, 0x0000];
    for (version, suites, alert) in
        [(0x0300, &good[..], 70), (0x0301, &good, 70), (0x0302, &good, 70), (0x0303, &weak, 40)]
    {
        let mut tcp = TcpStream::connect(world.addresses.public).await.unwrap();
        tcp.write_all(&client_hello(version, suites)).await.unwrap();
        let mut answer = Vec::new();
        tokio::time::timeout(LONG, tcp.read_to_end(&mut answer)).await.expect("it is closed").unwrap();
        assert_eq!((answer[0], &answer[5..]), (21, &[2, alert][..]), "version {version:04x}: a fatal alert");
    }
    let mut tcp = TcpStream::connect(world.addresses.public).await.unwrap();
    tcp.write_all(&client_hello(0x0303, &good)).await.unwrap();
    let mut first = [0; 6];
    tcp.read_exact(&mut first).await.unwrap();
    assert_eq!((first[0], first[5]), (22, 2), "what is refused above is not the message itself");
}

/// What operators and debuggers see is not on the public listener, with or without a token (CVE-2026-110619 of frp).
#[tokio::test]
async fn attack_th27_nothing_of_the_admin_listener_is_public() {
    let world = World::new().await;
    let token = world.token("ann", "a");
    for path in [
        "/metrics",
        "/healthz",
        "/readyz",
        "/sessions",
        "/drain",
        "/log",
        "/debug/pprof/",
        "/debug/vars",
        "/admin",
        "/",
    ] {
        for token in [token.as_str(), "x"] {
            let mut user = world.user().await;
            user.send(get(path, token, "")).await;
            let answer = user.answer().await;
            assert!(matches!(answer.status, 401 | 404), "{path}: {answer:?}");
            assert!(!answer.text().contains("gateway_"), "{path}: {}", answer.text());
        }
    }
    assert_eq!(world.admin("GET", "/metrics", "").await.0, 200, "there it is");
}
