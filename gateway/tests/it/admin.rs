//! The admin listener.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::world::{World, config};

#[tokio::test]
async fn health_readiness_and_metrics_need_no_tunnel() {
    let world = World::new().await;
    assert_eq!(world.admin("GET", "/healthz", "").await.0, 200);
    assert_eq!(world.admin("GET", "/readyz", "").await.0, 200);
    let _agent = world.agent("a").await;
    let (status, text) = world.admin("GET", "/metrics", "").await;
    assert_eq!(status, 200);
    assert!(text.contains("gateway_tunnels_open{carrier=\"h2\"} 1"), "{text}");
    let tunnels: serde_json::Value = serde_json::from_str(&world.admin("GET", "/tunnels", "").await.1).unwrap();
    assert_eq!(tunnels["tunnels"][0]["carrier"], "h2");
}

#[tokio::test]
async fn a_bad_reload_keeps_the_old_configuration_and_says_so() {
    let world = World::new().await;
    let error = world.reconfigure("[listen]\npublic = 1\n").await.unwrap_err();
    assert!(error.contains("gateway.toml") && error.contains("listen.public"), "{error}");
    let (status, text) = world.admin("POST", "/reload", "").await;
    assert_eq!(status, 422);
    assert!(text.contains("the old configuration stays"), "{text}");
    assert!(world.admin("GET", "/metrics", "").await.1.contains("gateway_reloads_failed_total 2"));
    assert_eq!(world.gateway.core().snapshots.load().cluster_count(), 2);
    world.reconfigure(&config("")).await.unwrap();
}

#[tokio::test]
async fn a_reload_reads_an_issuers_changed_keys_file_and_keeps_the_verifier_otherwise() {
    let mut world = World::new().await;
    let audience = crate::world::cluster("a").audience();
    let verifier = |world: &World| std::sync::Arc::clone(&world.gateway.core().snapshots.load().verifier);
    let now = std::time::SystemTime::now();
    let first = verifier(&world);
    world.gateway.reload().await.unwrap();
    assert!(std::sync::Arc::ptr_eq(&first, &verifier(&world)));
    world.issuer.keys.insert(0, auth::token::testing::TestKey::es256("k2"));
    let token = world.token("ann", "a");
    assert!(first.verify(&token, &audience, now).await.is_err());
    world.issuer.raw("dev", world.dir.path()).unwrap();
    world.gateway.reload().await.unwrap();
    assert_eq!(verifier(&world).verify(&token, &audience, now).await.unwrap().username, "dev:ann");
}

#[tokio::test]
async fn browsers_are_turned_away() {
    let world = World::new().await;
    let mut tcp = TcpStream::connect(world.addresses.admin).await.unwrap();
    tcp.write_all(
        b"POST /drain HTTP/1.1\r\nhost: a\r\norigin: http://evil\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
    )
    .await
    .unwrap();
    let mut answer = String::new();
    tcp.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert_eq!(world.admin("GET", "/readyz", "").await.0, 200);
}

/// A page of a name that an attacker's DNS points at this machine could read the list of sessions.
#[tokio::test]
async fn a_loopback_listener_is_not_served_under_other_names() {
    let world = World::new().await;
    for (host, status) in
        [("127.0.0.1:1", 200), ("localhost:1", 200), ("[::1]", 200), ("evil.test:1", 403), ("127.0.0.1.evil.test", 403)]
    {
        let mut tcp = TcpStream::connect(world.addresses.admin).await.unwrap();
        let request = format!("GET /sessions HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        tcp.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tcp.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{host}: {answer}");
    }
}
