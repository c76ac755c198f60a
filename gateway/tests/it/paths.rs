//! docs/threats.md TH18: bytes behind the cluster's key arrive as sent, or the request is refused.

use crate::world::{DOMAIN, World, at, cluster, get};

#[tokio::test]
async fn paths_arrive_byte_for_byte() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut user = world.user().await;
    for rest in [
        "/a%2Fb",
        "//a//b",
        "/a;x=1/b;y",
        "/\u{fc}ml\u{e4}ut/%C3%BC",
        "/?",
        "/a?b?c=%2F..%2f&d=//;",
        "/api/v1/namespaces/n/pods/p/exec/",
        "/api/v1/namespaces/n/services/https:s:443/proxy/a%3Fb",
        "/a'b(c)*!$,:@~",
    ] {
        user.send(get(&at("a", rest), &token, "")).await;
        let arrived = agent.next().await;
        assert_eq!(arrived.head.target, rest.as_bytes(), "{rest}");
        arrived.answer(200, &[], "").await;
        assert_eq!(user.answer().await.status, 200);
    }
    let host = format!("{}.{DOMAIN}", cluster("a").key().base32());
    let mut user = world.user_with(&host, None, &[certs::tls::ALPN_HTTP11]).await;
    user.send(format!("GET //a/%2F?b HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n")).await;
    assert_eq!(agent.next().await.head.target, "//a/%2F?b");
}

#[tokio::test]
async fn paths_that_readers_route_differently_are_400_and_reach_nobody() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let (a, b) = (cluster("a").key().to_string(), cluster("b").key().to_string());
    for target in [
        format!("/{b}/../{a}/api"),
        format!("/{a}/../{b}/api"),
        format!("/{a}/./api"),
        format!("/{a}/%2e%2e/{b}/api"),
        format!("/{a}/%2E%2e%2f{b}/api"),
        format!("/{a}%2fapi"),
        format!("//{a}/api"),
        format!("/{}/api", a.to_uppercase()),
        format!("/{a}/a\\b"),
        format!("/{a}/a%5Cb"),
        format!("/{a}/a%00b"),
        format!("/{a}/a%0d%0ab"),
        format!("/{a}/%c0%ae%c0%ae/x"),
        format!("/{a}/x#y"),
        format!("/{a}/x%"),
        format!("https://elsewhere.test/{a}/api"),
        format!("{a}/api"),
        "*".to_owned(),
    ] {
        let mut user = world.user().await;
        user.send(get(&target, &token, "")).await;
        let answer = user.answer().await;
        assert_eq!(answer.status, 400, "{target}: {answer:?}");
        user.closed().await;
    }
    agent.nothing().await;
}

#[tokio::test]
async fn the_host_of_another_cluster_than_the_tls_name_is_misdirected() {
    let world = World::new().await;
    let token = world.token("ann", "a");
    let named = |name: &str| format!("{}.{DOMAIN}", cluster(name).key().base32());
    let mut user = world.user_with(&named("b"), None, &[certs::tls::ALPN_HTTP11]).await;
    let host = named("a");
    user.send(format!("GET /x HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n")).await;
    assert_eq!(user.answer().await.status, 421);
}

#[tokio::test]
async fn a_redirect_in_path_form_stays_below_the_clusters_key() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut user = world.user().await;
    let service = "/api/v1/namespaces/n/services/s/proxy";
    for (target, location, seen) in [
        (at("a", service), format!("{service}/"), "proxy/".to_owned()),
        (at("a", &format!("{service}/x?y")), format!("{service}/dir/?q#f"), "dir/?q#f".to_owned()),
        (at("a", "/a/b"), "/c".to_owned(), "../c".to_owned()),
        (at("a", ""), "/c".to_owned(), format!("{}/c", cluster("a").key())),
        (at("a", "/a"), "//other.example/c".to_owned(), "//other.example/c".to_owned()),
        (at("a", "/a"), "https://other.example/c".to_owned(), "https://other.example/c".to_owned()),
    ] {
        user.send(get(&target, &token, "")).await;
        agent.next().await.answer(302, &[("location", &location)], "").await;
        assert_eq!(user.answer().await.header("location"), Some(seen.as_str()), "{target} to {location}");
    }
    // With a name of its own a cluster's paths are the user's.
    let host = format!("{}.{DOMAIN}", cluster("a").key().base32());
    let mut user = world.user_with(&host, None, &[certs::tls::ALPN_HTTP11]).await;
    user.send(format!("GET /a/b HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\n\r\n")).await;
    agent.next().await.answer(302, &[("location", "/c"), ("content-type", "text/html")], "").await;
    let answer = user.answer().await;
    assert_eq!((answer.header("location"), answer.header("content-security-policy")), (Some("/c"), None));
}

/// A pod's page has the origin of the sign-in pages there. No credential is one that a browser sends by itself, and if
/// one should be, the page's scripts and forms still do nothing.
#[tokio::test]
async fn a_clusters_document_in_path_form_is_sandboxed() {
    let world = World::new().await;
    let agent = world.agent("a").await;
    let token = world.token("ann", "a");
    let mut user = world.user().await;
    for (kind, policy) in [("text/html", Some("sandbox")), ("application/json", None)] {
        user.send(get(&at("a", "/x"), &token, "")).await;
        agent.next().await.answer(200, &[("content-type", kind)], "<script></script>").await;
        assert_eq!(user.answer().await.header("content-security-policy"), policy, "{kind}");
    }
    // What a browser could be made to send by a link: an address, cookies, a password for a realm.
    for (query, header) in [
        (format!("?access_token={token}"), String::new()),
        (format!("?token={token}"), String::new()),
        (String::new(), format!("Cookie: token={token}\r\n")),
        (String::new(), format!("Authorization: Basic {token}\r\n")),
    ] {
        let target = at("a", &format!("/x{query}"));
        user.send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{header}\r\n")).await;
        assert_eq!(user.answer().await.status, 401, "{query}{header}");
    }
    agent.nothing().await;
}
