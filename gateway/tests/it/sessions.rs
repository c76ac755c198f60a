//! How long a session lives: docs/identity.md.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use auth::token::testing::{TestIssuer, TestKey};
use bytes::Bytes;
use daemon::Task;
use gateway::sessions::EndReason;
use serde_json::json;
use tokio::sync::Notify;
use tunnel::transport::StreamError;

use crate::world::{Agent, Arrived, LONG, User, World, at, cluster, config, get};

const SHORT: &str = "[sessions]\nreauthorise_every = \"100ms\"\noutlive_token = \"0\"";

/// A watch that has begun.
async fn watch(world: &World, agent: &Agent, token: &str) -> (User, Arrived) {
    let mut user = world.user().await;
    user.send(get(&at("a", "/api/v1/pods?watch=1"), token, "")).await;
    let mut arrived = agent.next().await;
    arrived.answer_head(200, &[]).await;
    arrived.stream.send.send(Bytes::from_static(b"event")).await.unwrap();
    user.head().await;
    user.until(b"event").await;
    (user, arrived)
}

/// That the user's connection breaks off, without a clean end of the body.
async fn broken_off(mut user: User) {
    while user.more().await {}
    assert!(!user.buffer.ends_with(b"0\r\n\r\n"));
}

/// Sends until the way to the user is full, and on until told to stop; the end that the sender saw.
async fn flood(arrived: Arrived, full: Arc<Notify>) -> StreamError {
    let mut send = arrived.stream.send;
    loop {
        let mut sending = pin!(send.send(Bytes::from(vec![b'x'; 64 * 1024])));
        let sent = tokio::select! {
            biased;
            sent = &mut sending => sent,
            // Too short a time only makes the case an easier one.
            () = tokio::time::sleep(Duration::from_millis(500)) => {
                full.notify_one();
                sending.await
            }
        };
        if let Err(error) = sent {
            return error;
        }
    }
}

/// Withdraws ann's right to cluster a and waits until the flood was told to stop and nothing is left open.
async fn withdraw(world: &World, flood: Task<StreamError>) {
    world.reconfigure(&config("").replace("dev:ann", "dev:bob")).await.unwrap();
    let told = tokio::time::timeout(LONG, flood).await.expect("the agent is told").unwrap();
    assert!(matches!(told, StreamError::Stopped(_) | StreamError::Reset(_)), "{told}");
    world.quiet().await;
    let record = &world.audit().await[0];
    assert_eq!((&record["outcome"], &record["user"]), (&"ended".into(), &"dev:ann".into()), "{record}");
}

#[tokio::test]
async fn a_reader_that_stopped_reading_is_cut_when_its_right_is_withdrawn() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let (user, arrived) = watch(&world, &agent, &world.token("ann", "a")).await;
    let full = Arc::new(Notify::new());
    let flood = world.tasks.spawn_task("flood", flood(arrived, Arc::clone(&full)));
    full.notified().await;
    withdraw(&world, flood).await;
    broken_off(user).await;
}

#[tokio::test]
async fn over_http2_only_the_stream_that_stopped_reading_is_cut() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let stream = world.user_with("localhost", None, &[certs::tls::ALPN_H2]).await.stream;
    let (sender, connection) = h2::client::handshake(stream).await.unwrap();
    world.tasks.spawn("h2", async move { drop(connection.await) });
    let request = |token: String| {
        http::Request::get(format!("https://localhost{}", at("a", "/api/v1/pods?watch=1")))
            .header("authorization", format!("Bearer {token}"))
            .body(())
            .unwrap()
    };
    let mut sender = sender.ready().await.unwrap();
    let (stalled, _) = sender.send_request(request(world.token("ann", "a")), true).unwrap();
    let mut arrived = agent.next().await;
    arrived.answer_head(200, &[]).await;
    let full = Arc::new(Notify::new());
    let flood = world.tasks.spawn_task("flood", flood(arrived, Arc::clone(&full)));
    let mut stalled = stalled.await.unwrap().into_body();
    full.notified().await;
    withdraw(&world, flood).await;
    let error = loop {
        match stalled.data().await.expect("no clean end") {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(error.is_reset(), "{error}");
    // The connection goes on.
    let mut sender = sender.ready().await.unwrap();
    let (answer, _) = sender.send_request(request(world.token("bob", "a")), true).unwrap();
    agent.next().await.answer(200, &[], "{}").await;
    assert_eq!(answer.await.unwrap().status(), 200);
}

/// A watch that has begun with a token of this sign-in that soon expires.
async fn brief_watch(world: &World, agent: &Agent, sign_in: Option<&str>) -> (User, Arrived) {
    // Longer where the token's time was over before it was looked at: this machine may stand still for seconds.
    for seconds in [2, 8, 32, 128] {
        let mut user = world.user().await;
        user.send(get(&at("a", "/api/v1/pods?watch=1"), &token_of(world, seconds, sign_in), "")).await;
        let mut arrived = tokio::select! {
            arrived = agent.next() => arrived,
            refused = user.head() => {
                assert_eq!(refused.status, 401);
                continue;
            }
        };
        arrived.answer_head(200, &[]).await;
        arrived.stream.send.send(Bytes::from_static(b"event")).await.unwrap();
        user.head().await;
        user.until(b"event").await;
        return (user, arrived);
    }
    panic!("no token was accepted");
}

/// A token of a sign-in, or of one that the issuer does not name.
fn token_of(world: &World, seconds: u64, sign_in: Option<&str>) -> String {
    let now = SystemTime::now();
    let mut claims = world.issuer.claims("ann", &cluster("a").audience(), now);
    match sign_in {
        Some(sign_in) => claims["sid"] = sign_in.into(),
        None => drop(claims.as_object_mut().unwrap().remove("sid")),
    }
    let exp = now.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() + seconds;
    claims["exp"] = json!(exp);
    world.issuer.mint(&claims)
}

#[tokio::test]
async fn a_withdrawn_right_and_a_disabled_user_end_sessions_at_once() {
    for disabled in [false, true] {
        // With the default of 30 s: a change of the snapshot does not wait for it.
        let world = World::new().await;
        let agent = world.agent("a").await;
        let (user, mut arrived) = watch(&world, &agent, &world.token("ann", "a")).await;
        let text = if disabled {
            config("[[disabled]]\nuser = \"dev:ann\"")
        } else {
            config("").replace("dev:ann", "dev:bob")
        };
        world.reconfigure(&text).await.unwrap();
        broken_off(user).await;
        arrived.stream.send.stopped().await;
        world.quiet().await;
        assert_eq!(world.audit().await[0]["outcome"], "ended");
    }
}

#[tokio::test]
async fn an_expired_token_ends_a_session_unless_a_newer_one_was_shown() {
    let world = World::with(SHORT).await;
    let agent = world.agent("a").await;
    let (user, _arrived) = brief_watch(&world, &agent, Some("one")).await;
    broken_off(user).await;
    // A newer token in any request of the same principal extends.
    let (mut user, mut arrived) = brief_watch(&world, &agent, Some("one")).await;
    let mut other = world.user().await;
    other.send(get(&at("a", "/.towline/refresh"), &token_of(&world, 3600, Some("one")), "")).await;
    let refresh = agent.next().await;
    assert_eq!(refresh.head.role, "refresh");
    refresh.answer(200, &[], "{}").await;
    assert_eq!(other.answer().await.status, 200);
    let until = SystemTime::now() + Duration::from_secs(3);
    while SystemTime::now() < until {
        arrived.stream.send.send(Bytes::from_static(b"tick")).await.unwrap();
        user.until(b"tick").await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A thief's session went on for as long as the owner of the stolen token worked.
#[tokio::test]
async fn a_newer_token_of_another_sign_in_extends_nothing() {
    let world = World::with(SHORT).await;
    let agent = world.agent("a").await;
    for (own, newer) in [(Some("one"), Some("other")), (Some("one"), None), (None, Some("one")), (None, None)] {
        let (user, _arrived) = brief_watch(&world, &agent, own).await;
        let mut other = world.user().await;
        other.send(get(&at("a", "/.towline/refresh"), &token_of(&world, 3600, newer), "")).await;
        agent.next().await.answer(200, &[], "{}").await;
        assert_eq!(other.answer().await.status, 200);
        broken_off(user).await;
    }
}

#[tokio::test]
async fn a_session_may_outlive_its_token() {
    let world = World::with("[sessions]\nreauthorise_every = \"100ms\"\noutlive_token = \"1h\"").await;
    let agent = world.agent("a").await;
    let (mut user, mut arrived) = brief_watch(&world, &agent, Some("one")).await;
    let until = SystemTime::now() + Duration::from_secs(3);
    while SystemTime::now() < until {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    arrived.stream.send.send(Bytes::from_static(b"tick")).await.unwrap();
    user.until(b"tick").await;
}

/// They lasted to the end of their token and for as long as it may be outlived.
#[tokio::test]
async fn a_revoked_key_ends_the_sessions_that_it_opened_and_no_others() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let first = world.issuer.clone();
    let second = TestIssuer { keys: vec![TestKey::es256("k2")], ..first.clone() };
    let (old, new) = (first.key(), second.key());
    let mut newest = new.jwk();
    newest["towline_attestation"] = json!(old.attest(new));
    let publish = async |keys: serde_json::Value| {
        std::fs::write(world.dir.path().join("dev-keys.json"), keys.to_string()).unwrap();
        world.reconfigure(&config("")).await.unwrap();
    };
    // Replaced, and good for the tokens that it has signed.
    let later = types::instants::unix_seconds(SystemTime::now()) + 7200;
    publish(json!({"keys": [newest, old.jwk()], "towline_ended": [new.end(old, later)]})).await;
    let by = |issuer: &TestIssuer| issuer.token("ann", &[], &cluster("a").audience(), SystemTime::now());
    let (thief, _arrived) = watch(&world, &agent, &by(&first)).await;
    // Both tokens name the same sign-in (`sid`): a thief who has the key can put any name into a token.
    let (mut owner, mut arrived) = watch(&world, &agent, &by(&second)).await;
    publish(json!({"keys": [newest], "towline_former": [old.jwk()], "towline_ended": [new.end(old, 0)]})).await;
    broken_off(thief).await;
    arrived.stream.send.send(Bytes::from_static(b"tick")).await.unwrap();
    owner.until(b"tick").await;
    let mut refused = world.user().await;
    refused.send(get(&at("a", "/api/v1/pods"), &by(&first), "")).await;
    assert_eq!(refused.answer().await.status, 401);
}

#[tokio::test]
async fn an_operator_lists_and_ends_sessions() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let (user, _arrived) = watch(&world, &agent, &world.token("ann", "a")).await;
    let list: serde_json::Value = serde_json::from_str(&world.admin("GET", "/sessions", "").await.1).unwrap();
    let session = &list["sessions"][0];
    assert_eq!((&session["user"], &session["what"]), (&"dev:ann".into(), &"GET /api/v1/pods".into()), "{list}");
    let id = session["id"].as_str().unwrap();
    assert_eq!(world.admin("DELETE", &format!("/sessions/{id}"), "").await.0, 204);
    broken_off(user).await;
    world.quiet().await;
    assert_eq!(world.admin("DELETE", &format!("/sessions/{id}"), "").await.0, 404);
    assert_eq!(world.admin("DELETE", "/sessions/x", "").await.0, 400);
}

/// client-go sends again whatever is answered 503 with Retry-After, of any method: a Job would be created twice.
#[tokio::test]
async fn t12_request_at_the_cluster_when_its_replica_is_fenced_or_stops_is_repeated_only_if_it_changes_nothing() {
    for reason in [EndReason::Fenced, EndReason::Shutdown] {
        let world = World::new().await;
        let agent = world.agent("a").await;
        let token = world.token("ann", "a");
        let (mut reads, mut writes, mut runs) = (world.user().await, world.user().await, world.user().await);
        reads.send(get(&at("a", "/api/v1/pods"), &token, "")).await;
        let read = agent.next().await;
        let post = format!(
            "POST {} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: 4\r\n\r\nbody",
            at("a", "/apis/batch/v1/namespaces/x/jobs")
        );
        writes.send(post).await;
        let mut written = agent.next().await;
        assert_eq!(written.body().await, b"body");
        let upgrade = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n";
        runs.send(get(&at("a", "/api/v1/namespaces/x/pods/p/exec?command=sh"), &token, upgrade)).await;
        let run = agent.next().await;

        world.gateway.core().sessions.end_all(reason);
        let answer = reads.answer().await;
        assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{}", answer.text());
        for (what, user) in [("a body", &mut writes), ("a command", &mut runs)] {
            let answer = user.answer().await;
            assert_eq!((answer.status, answer.header("retry-after")), (502, None), "{what}: {}", answer.text());
            assert!(answer.text().contains("may have been carried out"), "{what}: {}", answer.text());
        }
        drop((read, written, run));
    }
}
