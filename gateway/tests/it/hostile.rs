//! An agent, or the cluster behind it, that answers what it likes: judged by the bytes that its user gets.

use std::time::Duration;

use bytes::Bytes;
use certs::Validity;
use futures_util::{FutureExt, future::join_all};
use gateway::tunnels::handshake::TUNNELS_PER_CLUSTER;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use proto::wire::head::ResponseHead;

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
