//! What an agent refused before any part of it looked at it: it goes to another agent, whatever its method, or the user
//! is told that nothing was done.

use tunnel::wire::close::StreamCode;

use crate::world::{Agent, Arrived, World, at, get};

fn post(token: &str) -> String {
    let target = at("a", "/api/v1/namespaces/n/configmaps");
    format!(
        "POST {target} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
}

/// Whichever of two agents gets the request, and the other one.
async fn taken<'a>(one: &'a Agent, other: &'a Agent) -> (Arrived, &'a Agent) {
    tokio::select! {
        arrived = one.next() => (arrived, other),
        arrived = other.next() => (arrived, one),
    }
}

#[tokio::test]
async fn write_that_an_agent_refuses_goes_to_another_whole() {
    let world = World::new().await;
    let (one, other) = (world.agent("a").await, world.agent("a").await);
    let token = world.token("ann", "a");
    for code in [StreamCode::Limit, StreamCode::Draining] {
        let mut user = world.user().await;
        user.send(post(&token) + "4\r\nhalf\r\n").await;
        let (mut arrived, another) = taken(&one, &other).await;
        assert_eq!(arrived.stream.recv.recv().await.unwrap().unwrap(), "half");
        arrived.stream.send.reset(code);
        let mut arrived = another.next().await;
        user.send("4\r\nrest\r\n0\r\n\r\n").await;
        assert_eq!(arrived.body().await, b"halfrest");
        arrived.answer(201, &[], "made").await;
        let answer = user.answer().await;
        assert_eq!((answer.status, answer.text().as_str()), (201, "made"));
        // The connection is good for the next request.
        user.send(get(&at("a", "/x"), &token, "")).await;
        taken(&one, &other).await.0.answer(200, &[], "x").await;
        assert_eq!(user.answer().await.text(), "x");
    }
    world.quiet().await;
}

#[tokio::test]
async fn write_that_every_agent_refuses_was_not_done() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    for (code, status, again) in [
        (StreamCode::Limit, 503, Some("1")),
        (StreamCode::Draining, 503, Some("1")),
        (StreamCode::UnknownRole, 502, None),
        (StreamCode::BadHead, 502, None),
    ] {
        let mut user = world.user().await;
        user.send(post(&token) + "0\r\n\r\n").await;
        agent.next().await.stream.send.reset(code);
        let answer = user.answer().await;
        assert_eq!((answer.status, answer.header("retry-after")), (status, again), "{code}");
        assert!(answer.text().contains("nothing was done"), "{code}: {}", answer.text());
    }
    world.quiet().await;
}

/// A role had it: a second one could be a second write.
#[tokio::test]
async fn write_that_an_agent_broke_off_goes_to_no_other() {
    let world = World::new().await;
    let (one, other) = (world.agent("a").await, world.agent("a").await);
    let token = world.token("ann", "a");
    for code in [StreamCode::Dropped, StreamCode::Upstream, StreamCode::Internal] {
        let mut user = world.user().await;
        user.send(post(&token) + "0\r\n\r\n").await;
        let (mut arrived, another) = taken(&one, &other).await;
        arrived.stream.send.reset(code);
        let answer = user.answer().await;
        assert_eq!((answer.status, answer.header("retry-after")), (502, None), "{code}");
        assert!(answer.text().contains("may have been carried out"), "{code}: {}", answer.text());
        another.nothing().await;
    }
}
