//! Clusters by TLS server name: the name is bound to the connection, and whatever disagrees with it is misdirected.

use bytes::Bytes;
use certs::{Authority, Roots, Validity, tls};
use gateway::config::SERVER_NAME_SUFFIX;
use h2::client::SendRequest;
use http::{Request, StatusCode};
use std::{sync::Arc, time::SystemTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::world::{self, Answer, DOMAIN, LONG, User, World, at, cluster};

const AUTHORITY: &str = "authority_dir = \"authority\"";

async fn world() -> World {
    World::build(&world::config_with(AUTHORITY, ""), gateway::Extras::default()).await
}

/// A cluster's TLS server name.
fn name(cluster_name: &str) -> String {
    format!("{}.{SERVER_NAME_SUFFIX}", cluster(cluster_name).key().base32())
}

fn get(target: &str, host: &str, token: &str) -> String {
    format!("GET {target} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n")
}

async fn user(world: &World, server_name: &str) -> User {
    world.user_with(server_name, None, &[tls::ALPN_HTTP11]).await
}

/// The answer to one request on a connection of its own.
async fn ask(world: &World, server_name: &str, host: &str, target: &str, token: &str) -> Answer {
    let mut user = user(world, server_name).await;
    user.send(get(target, host, token)).await;
    user.answer().await
}

/// Whether a handshake by this name shows a certificate that these authorities vouch for.
async fn is_vouched_for(world: &World, server_name: &str, roots: &Roots) -> bool {
    let config = tls::client_https(roots).unwrap();
    let tcp = TcpStream::connect(world.addresses.public).await.unwrap();
    let name = server_name.to_owned().try_into().unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await.is_ok()
}

/// Whatever certificate the gateway's own name has, and without DNS: the name is none that it could be found by.
#[tokio::test]
async fn a_cluster_is_reached_by_its_server_name_whatever_the_gateways_certificate_is() {
    let world = world().await;
    let agent = world.agent("a").await;
    let public = Authority::create("public", Validity::days(9)).unwrap();
    let own = public.issue_server(&["localhost"], Validity::days(9)).unwrap();
    own.save(&world.dir.path().join("tls.crt"), &world.dir.path().join("tls.key")).unwrap();
    world.gateway.reload().await.unwrap();
    assert!(is_vouched_for(&world, "localhost", &public.roots().unwrap()).await);
    assert!(!is_vouched_for(&world, &name("a"), &public.roots().unwrap()).await);
    let port = world.addresses.public.port();
    for host in [format!("127.0.0.1:{port}"), "gateway.example".to_owned(), name("a"), name("a").to_uppercase() + "."] {
        let mut user = user(&world, &name("a")).await;
        user.send(get("/api/v1/pods?watch=0", &host, &world.token("ann", "a"))).await;
        let arrived = agent.next().await;
        assert_eq!(arrived.head.target, "/api/v1/pods?watch=0", "{host}");
        arrived.answer(307, &[("location", "/api"), ("content-type", "text/html")], "").await;
        let answer = user.answer().await;
        assert_eq!((answer.status, answer.header("location")), (307, Some("/api")), "{host}");
        assert_eq!(answer.header("content-security-policy"), None);
    }
}

#[tokio::test]
async fn a_path_with_another_clusters_key_is_a_path_of_the_connections_cluster() {
    let world = world().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    for target in [at("b", "/api"), at("a", "/api"), "/subscriptions/s?api-version=1".to_owned(), "/v1.0/me".to_owned()]
    {
        let mut user = user(&world, &name("a")).await;
        user.send(get(&target, "localhost", &token)).await;
        let arrived = agent.next().await;
        assert_eq!(arrived.head.target, target.as_bytes());
        arrived.answer(200, &[], "").await;
        assert_eq!(user.answer().await.status, 200);
    }
}

#[tokio::test]
async fn nothing_of_the_gateways_own_is_at_a_clusters_name() {
    let world = world().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    for target in [
        "/.towline/issuer/.well-known/openid-configuration",
        "/.towline/agent/certificate",
        "/.towline/tunnel",
        "/.towline/addresses",
    ] {
        assert_eq!(ask(&world, &name("a"), "localhost", target, "x").await.status, 401, "{target}");
        assert_eq!(ask(&world, &name("a"), "localhost", target, &token).await.status, 404, "{target}");
    }
    // The words are Kubernetes', also for paths that would be the resource API's elsewhere.
    let refused = ask(&world, &name("a"), "localhost", "/subscriptions/s", "x").await;
    assert_eq!((refused.status, &refused.json()["kind"]), (401, &"Status".into()));
    // And no agent's tunnel, which has a protocol of its own.
    let certificate = world.authority.issue_agent(cluster("a").as_str(), Validity::days(1)).unwrap();
    let mut tunnel = world.user_with(&name("b"), Some(&certificate), &[tls::ALPN_TUNNEL]).await;
    assert!(!tunnel.more().await, "nothing is said to it");
    agent.nothing().await;
}

#[tokio::test]
async fn a_host_that_disagrees_with_the_server_name_is_misdirected() {
    let world = world().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let host_form = |name: &str| format!("{}.{DOMAIN}", cluster(name).key().base32());
    let nobody = format!("nobody.{SERVER_NAME_SUFFIX}");
    for (server_name, host) in [
        (name("a"), name("b")),
        (name("a"), host_form("b")),
        (name("a"), nobody.clone()),
        (name("a"), SERVER_NAME_SUFFIX.to_owned()),
        // A server name in a mere header would be no more than a claim.
        ("localhost".to_owned(), name("a")),
        ("127.0.0.1".to_owned(), name("a")),
        (host_form("a"), name("a")),
        (host_form("a"), host_form("b")),
        // Below the suffix, but no cluster's.
        (nobody.clone(), "localhost".to_owned()),
        (nobody.clone(), nobody.clone()),
        (nobody, name("a")),
    ] {
        for target in ["/x".to_owned(), at("a", "/x"), "/.towline/addresses".to_owned()] {
            let answer = ask(&world, &server_name, &host, &target, &token).await;
            assert_eq!(answer.status, 421, "{server_name} {host} {target}");
        }
    }
    assert_eq!(ask(&world, &host_form("a"), "localhost", &at("b", "/x"), &token).await.status, 421);
    // An absolute target must be the host's too, as everywhere.
    let absolute = format!("https://{}/x", name("b"));
    assert_eq!(ask(&world, &name("a"), "localhost", &absolute, &token).await.status, 400);
    assert_eq!(ask(&world, &name("a"), &name("b"), &absolute, &token).await.status, 421);
    agent.nothing().await;
}

async fn status(sender: &mut SendRequest<Bytes>, uri: &str, token: &str) -> StatusCode {
    *sender = sender.clone().ready().await.unwrap();
    let request = Request::get(uri).header("authorization", format!("Bearer {token}")).body(()).unwrap();
    let (response, _) = sender.send_request(request, true).unwrap();
    tokio::time::timeout(LONG, response).await.unwrap().unwrap().status()
}

/// The certificate is good for every cluster's name, so that a client may use one connection for several (RFC 9113
/// §9.1.1).
#[tokio::test]
async fn a_reused_http2_connection_is_misdirected_for_another_clusters_name() {
    let world = world().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let stream = world.user_with(&name("a"), None, &[tls::ALPN_H2]).await.stream;
    let (mut sender, connection) = h2::client::handshake(stream).await.unwrap();
    world.tasks.spawn("h2", async move { drop(connection.await) });
    for authority in [name("b"), format!("{}.{DOMAIN}", cluster("b").key().base32())] {
        assert_eq!(status(&mut sender, &format!("https://{authority}/x"), &token).await, 421);
    }
    agent.nothing().await;
    for authority in [name("a"), "localhost".to_owned()] {
        let (found, ()) =
            tokio::join!(async { status(&mut sender, &format!("https://{authority}/x"), &token).await }, async {
                agent.next().await.answer(200, &[], "").await
            });
        assert_eq!(found, 200, "{authority}");
    }
}

#[tokio::test]
async fn an_unknown_clusters_name_looks_like_a_forbidden_ones() {
    let world = world().await;
    let mut seen = Vec::new();
    for cluster_name in ["b", "unheard-of"] {
        let mut user = user(&world, &name(cluster_name)).await;
        let (_, session) = user.stream.get_ref();
        let certificate = session.peer_certificates().unwrap()[0].clone();
        let mut told = vec![];
        for token in ["x".to_owned(), world.token("ann", cluster_name), world.token("ann", "a")] {
            user.send(get("/api", "localhost", &token)).await;
            let answer = user.answer().await;
            let mut body = answer.json();
            body["details"] = serde_json::Value::Null;
            told.push((answer.status, body));
        }
        seen.push((certificate, told));
    }
    assert_eq!(seen[0].1.iter().map(|(status, _)| *status).collect::<Vec<_>>(), [401, 403, 401]);
    assert_eq!(seen[0], seen[1]);
}

#[tokio::test]
async fn a_token_or_certificate_of_another_cluster_is_nothing_at_a_name() {
    let world = world().await;
    let agent = world.agent("a").await;
    assert_eq!(ask(&world, &name("a"), "localhost", "/x", &world.token("ann", "b")).await.status, 401);
    let foreign = "eyJhbGciOiJSUzI1NiIsImtpZCI6IngifQ.eyJpc3MiOiJodHRwczovL2t1YmVybmV0ZXMuZGVmYXVsdC5zdmMiLCJzdWIiOiJzeXN0ZW06c2VydmljZWFjY291bnQ6bjpzIn0.c2ln";
    let [own, other] =
        ["a", "b"].map(|name| world.authority.issue_access(cluster(name).as_str(), "ann", Validity::days(1)).unwrap());
    let mut user = world.user_with(&name("a"), Some(&other), &[tls::ALPN_HTTP11]).await;
    user.send(get("/x", "localhost", foreign)).await;
    assert_eq!(user.answer().await.status, 401);
    let mut user = world.user_with(&name("a"), Some(&own), &[tls::ALPN_HTTP11]).await;
    user.send(get("/x", "localhost", foreign)).await;
    agent.next().await.answer(200, &[], "").await;
    assert_eq!(user.answer().await.status, 200);
    agent.nothing().await;
}

/// Kubeconfigs that were written before know the old authority alone, until they are told to know both.
#[tokio::test]
async fn a_roll_over_of_the_authority_keeps_names_for_who_knows_the_old_one_until_it_is_finished() {
    let world = world().await;
    let load = || gateway::config::Config::load(&world.dir.path().join("gateway.toml")).unwrap();
    let old = Authority::load(&world.dir.path().join("authority")).unwrap().roots().unwrap();
    let now = SystemTime::now();
    gateway::roll_over::begin(&load(), now).unwrap();
    world.gateway.reload().await.unwrap();
    let both = Roots::load(&world.dir.path().join("authority/ca.crt")).unwrap();
    let new = Authority::load(&world.dir.path().join("authority")).unwrap().roots().unwrap();
    assert!(is_vouched_for(&world, &name("a"), &old).await && is_vouched_for(&world, &name("a"), &both).await);
    assert!(!is_vouched_for(&world, &name("a"), &new).await);
    let mut told = user(&world, "localhost").await;
    told.send("GET /.towline/addresses HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    let told = told.answer().await.json();
    assert_eq!(told["serverNames"]["suffix"], SERVER_NAME_SUFFIX);
    let pem = told["serverNames"]["certificateAuthority"].as_str().unwrap();
    assert_eq!(pem.matches("BEGIN CERTIFICATE").count(), 2);
    // It is not the one of the moment, but the one that was kept: after a start as well.
    let again = gateway::trust::Trust::load(&load()).unwrap();
    assert!(again.named_until().unwrap() > now + std::time::Duration::from_secs(200 * 86_400));
    gateway::roll_over::finish(&load(), None, now, false).await.unwrap();
    world.gateway.reload().await.unwrap();
    assert!(!is_vouched_for(&world, &name("a"), &old).await);
    assert!(is_vouched_for(&world, &name("a"), &new).await && is_vouched_for(&world, &name("a"), &both).await);
    let kept = [world.dir.path().join("authority/names.crt"), world.dir.path().join("authority/names.key")];
    assert!(kept.iter().all(|path| !path.exists()));
}

#[tokio::test]
async fn without_the_authoritys_key_there_are_no_names_and_the_reason_is_told() {
    for (text, why) in [
        (world::config(""), "authority_dir"),
        (
            world::config_with(AUTHORITY, "").replace("[listen]", "[listen]\nserver_name_suffix = \"off\""),
            "server_name_suffix",
        ),
    ] {
        let world = World::build(&text, gateway::Extras::default()).await;
        assert!(!is_vouched_for(&world, &name("a"), &world.authority.roots().unwrap()).await);
        let mut user = user(&world, "localhost").await;
        user.send("GET /.towline/addresses HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
        let told = user.answer().await.json();
        assert!(told["serverNames"].is_null() && told["noServerNames"].as_str().unwrap().contains(why), "{told}");
        assert_eq!(told["domain"], DOMAIN);
        user.send("POST /.towline/addresses HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n").await;
        assert_eq!(user.answer().await.status, 404);
    }
}
