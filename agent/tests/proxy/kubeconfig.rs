//! The agent with a kubeconfig: what kubectl takes, taken by the whole way to a scripted apiserver.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use agent::{
    config::Cluster,
    roles::kube_aad_proxy::dial::access::{Access, AccessError},
};
use daemon::TaskGroup;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional},
    net::{TcpListener, TcpStream},
};

use crate::{
    apiserver::{Act, Apiserver},
    harness::{Harness, lines},
};

async fn access(cluster: Value, user: Value) -> Result<Access, AccessError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config");
    let file = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{ "name": "c", "context": { "cluster": "c", "user": "u" } }],
        "clusters": [{ "name": "c", "cluster": cluster }],
        "users": [{ "name": "u", "user": user }],
    });
    std::fs::write(&path, file.to_string()).unwrap();
    Access::new(&Cluster::Kubeconfig { path, context: None }).await
}

/// A proxy that takes either kind; what it was asked for.
async fn proxy(tasks: &TaskGroup) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (seen, spawner) = (asked.clone(), tasks.clone());
    tasks.spawn("proxy", async move {
        loop {
            let (mut near, _) = listener.accept().await.unwrap();
            let seen = seen.clone();
            spawner.spawn("proxied", async move {
                let mut first = [0];
                near.read_exact(&mut first).await.unwrap();
                let target = if first == [5] { socks(&mut near).await } else { connect(&mut near).await };
                let mut far = TcpStream::connect(&target).await.unwrap();
                seen.lock().unwrap().push(target);
                let _ = copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    (address, asked)
}

async fn socks(near: &mut TcpStream) -> String {
    let mut hello = [0; 2];
    near.read_exact(&mut hello).await.unwrap();
    near.write_all(&[5, 0]).await.unwrap();
    let mut asked = [0; 10];
    near.read_exact(&mut asked).await.unwrap();
    let [5, 1, 0, 1, a, b, c, d, high, low] = asked else { panic!("{asked:?}") };
    near.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await.unwrap();
    format!("{a}.{b}.{c}.{d}:{}", u16::from_be_bytes([high, low]))
}

async fn connect(near: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(near.read_u8().await.unwrap());
    }
    near.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    let head = String::from_utf8(head).unwrap();
    head.strip_prefix("ONNECT ").unwrap().split(' ').next().unwrap().to_owned()
}

#[tokio::test]
async fn apiserver_is_reached_through_the_kubeconfigs_proxy_and_path() {
    let tasks = TaskGroup::new("proxy");
    let (proxy, asked) = proxy(&tasks).await;
    for (scheme, times) in [("", 0), ("http", 1), ("socks5", 2)] {
        let apiserver = Apiserver::start(|_| vec![Act::Ok("fine")]).await;
        let mut cluster = json!({
            "server": format!("https://{}/k8s/clusters/c/", apiserver.address), "insecure-skip-tls-verify": true,
        });
        if !scheme.is_empty() {
            cluster["proxy-url"] = json!(format!("{scheme}://{proxy}"));
        }
        let harness = Harness::new(access(cluster, json!({ "token": "secret" })).await.unwrap()).await;
        assert_eq!(harness.get("/api?x=1", &[]).await.status, 200, "{scheme}");
        let raw = &apiserver.requests()[0];
        assert!(raw.starts_with("GET /k8s/clusters/c/api?x=1 HTTP/1.1\r\n"), "{raw}");
        assert_eq!(lines(raw, "authorization"), ["Bearer secret"]);
        let asked = asked.lock().unwrap();
        assert!(
            asked.len() >= times && asked.iter().skip(times.max(1) - 1).all(|to| *to == apiserver.address.to_string())
        );
    }
    tasks.abort();
}

#[tokio::test]
async fn user_whose_credential_cannot_be_used_is_refused_with_the_reason() {
    let cluster = json!({ "server": "https://127.0.0.1:1" });
    for (user, why) in [
        (json!({}), "the user has no credential"),
        (json!({ "token": "" }), "the user has no credential"),
        (json!({ "username": "jane" }), "the user has no credential"),
        (
            json!({ "client-certificate": "/nowhere/a.pem", "client-key": "/nowhere/b.pem" }),
            "/nowhere/a.pem cannot be read",
        ),
        (
            json!({ "client-certificate-data": "YQ" , "client-key-data": "YQ==" }),
            "client-certificate-data is not base64",
        ),
        (json!({ "client-certificate-data": "YQ==" , "client-key-data": "YQ==" }), "no BEGIN CERTIFICATE"),
        (json!({ "client-certificate-data": "YQ==" }), "no client-key"),
        (json!({ "client-key-data": "YQ==", "token": "t" }), "no client certificate"),
        (json!({ "token": "t", "as": "bob" }), "would be somebody else"),
    ] {
        let error = access(cluster.clone(), user.clone()).await.err().map(|error| error.to_string());
        assert!(error.as_ref().is_some_and(|error| error.contains(why)), "{user}: {error:?}");
    }
    for (url, why) in [("socks4://u:geheim@p", "socks4://"), ("p:x:y", "not a URL"), ("http://", "not a URL")] {
        let cluster = json!({ "server": "https://127.0.0.1:1", "proxy-url": url });
        let error = access(cluster, json!({ "token": "t" })).await.err().unwrap().to_string();
        assert!(error.contains(why) && !error.contains("geheim"), "{error}");
    }
}

/// `base64` without `-w0` breaks lines, and YAML keeps them.
#[tokio::test]
async fn client_certificate_in_broken_lines_is_shown() {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["agent".to_owned()]).unwrap().self_signed(&key).unwrap();
    let wrapped = |text: &str| {
        let encoded = STANDARD.encode(text);
        encoded.as_bytes().chunks(76).map(|line| std::str::from_utf8(line).unwrap()).collect::<Vec<_>>().join("\n")
            + "\n"
    };
    let user = json!({
        "client-certificate-data": wrapped(&certificate.pem()), "client-key-data": wrapped(&key.serialize_pem()),
    });
    let cluster = json!({
        "server": "https://127.0.0.1:1", "certificate-authority-data": wrapped(&certificate.pem()),
    });
    let access = access(cluster, user).await.unwrap();
    assert_eq!(access.own_kind(), "client certificate");
    assert!(access.tls(false, true).client_auth_cert_resolver.has_certs());
}
