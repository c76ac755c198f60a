//! What was learned of issuers' keys, in the Secret of the cluster's certificate, beside others who write there.

use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use agent::identity::store::Store;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use daemon::TaskGroup;
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use kube::{Api, Client, Config};
use serde_json::{Value, json};

/// An apiserver with one Secret, which refuses a patch of another version than the one that is there.
struct Apiserver {
    secret: Arc<Mutex<Value>>,
    /// Writes by others between a reader's GET and its PATCH that are still to come.
    others: Arc<AtomicU32>,
    patches: Arc<AtomicU32>,
    store: Store,
    _tasks: TaskGroup,
}

impl Apiserver {
    async fn new() -> Self {
        let secret = Arc::new(Mutex::new(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "identity", "resourceVersion": "1"},
            "data": {"tls.crt": STANDARD.encode("certificate"), "tls.key": STANDARD.encode("key")},
        })));
        let (others, patches) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let tasks = TaskGroup::new("apiserver");
        let shared = (secret.clone(), others.clone(), patches.clone());
        let connections = tasks.clone();
        tasks.spawn("listen", async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let shared = shared.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let (secret, others, patches) = shared.clone();
                    async move {
                        let (head, body) = request.into_parts();
                        assert_eq!(head.uri.path(), "/api/v1/namespaces/default/secrets/identity");
                        let body = body.collect().await.unwrap().to_bytes();
                        let mut secret = secret.lock().unwrap();
                        let (status, answer) = if head.method == Method::GET {
                            let answer = secret.clone();
                            if others.load(Ordering::SeqCst) > 0 {
                                others.fetch_sub(1, Ordering::SeqCst);
                                write(&mut secret, "issuer-keys.json", &STANDARD.encode("theirs "));
                            }
                            (200, answer)
                        } else {
                            assert_eq!(head.method, Method::PATCH);
                            patches.fetch_add(1, Ordering::SeqCst);
                            let patch: Value = serde_json::from_slice(&body).unwrap();
                            if patch["metadata"]["resourceVersion"] == secret["metadata"]["resourceVersion"] {
                                let text = patch["data"]["issuer-keys.json"].as_str().unwrap();
                                write(&mut secret, "issuer-keys.json", text);
                                (200, secret.clone())
                            } else {
                                let conflict = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                                                      "message": "as another wrote it", "reason": "Conflict", "code": 409});
                                (409, conflict)
                            }
                        };
                        let mut response = Response::new(Full::new(Bytes::from(answer.to_string())));
                        *response.status_mut() = http::StatusCode::from_u16(status).unwrap();
                        response.headers_mut().insert("content-type", "application/json".parse().unwrap());
                        Ok::<_, Infallible>(response)
                    }
                });
                connections.spawn("connection", async move {
                    let io = TokioIo::new(tcp);
                    let _ = hyper::server::conn::http1::Builder::new().serve_connection(io, service).await;
                });
            }
        });
        let client = Client::try_from(Config::new(format!("http://{address}").parse().unwrap())).unwrap();
        let store = Store::Secret { api: Box::new(Api::default_namespaced(client)), name: "identity".to_owned() };
        Self { secret, others, patches, store, _tasks: tasks }
    }

    async fn kept(&self) -> String {
        self.store.load().await.unwrap().unwrap().issuer_keys
    }
}

fn write(secret: &mut Value, key: &str, text: &str) {
    secret["data"][key] = text.into();
    let version: u32 = secret["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    secret["metadata"]["resourceVersion"] = (version + 1).to_string().into();
}

#[tokio::test]
async fn issuer_keys_in_a_secret_are_merged_with_what_others_wrote_meanwhile() {
    let apiserver = Apiserver::new().await;
    assert_eq!(apiserver.kept().await, "");
    apiserver.others.store(2, Ordering::SeqCst);
    apiserver.store.merge_issuer_keys(&|kept| Some(format!("{kept}ours"))).await.unwrap();
    assert_eq!((apiserver.kept().await.as_str(), apiserver.patches.load(Ordering::SeqCst)), ("theirs ours", 3));
    apiserver.store.merge_issuer_keys(&|kept| (!kept.contains("ours")).then(String::new)).await.unwrap();
    assert_eq!(apiserver.patches.load(Ordering::SeqCst), 3, "all of it is there");
    assert_eq!(apiserver.secret.lock().unwrap()["data"]["tls.crt"], STANDARD.encode("certificate"));
    // Who writes all the time does not hold it up for ever.
    apiserver.others.store(1000, Ordering::SeqCst);
    let failed = apiserver.store.merge_issuer_keys(&|kept| Some(format!("{kept}more"))).await.unwrap_err().to_string();
    assert!(failed.contains("Secret identity"), "{failed}");
}
