use std::{
    convert::Infallible,
    sync::{Mutex, MutexGuard},
    time::SystemTime,
};

use auth::{
    kubernetes::RequestInfo,
    rbac::{
        Assignment, Window,
        principal::user_key,
        role::built_in,
        snapshot::{self, Document, STATEMENT_TYPE},
    },
    token::testing::{TestIssuer, unix_seconds},
};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use serde_json::Value;

use super::*;
use crate::{
    identity::clock::Clock,
    roles::kube_aad_proxy::{authenticate::Authenticator, authorize::Reviewed},
};

const CLUSTER: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c";
const HOUR: Duration = Duration::from_secs(3600);

/// A time of day that tests set.
#[derive(Debug)]
struct SetClock(Mutex<SystemTime>);

impl Clock for SetClock {
    fn now(&self) -> SystemTime {
        *self.0.lock().unwrap()
    }
}

/// A gateway that states, and pods that keep what it stated.
struct Gateway {
    issuer: TestIssuer,
    clock: Arc<SetClock>,
}

fn gateway() -> Gateway {
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(unix_seconds(SystemTime::now()));
    Gateway { issuer: TestIssuer::new("https://issuer.test"), clock: Arc::new(SetClock(Mutex::new(now))) }
}

fn viewers(count: usize, scope: &str) -> Vec<Assignment> {
    let role = &built_in().iter().find(|role| role.name == "Azure Arc Kubernetes Viewer").unwrap().role;
    let one = |at: usize| Assignment {
        id: "a".into(),
        // Of many, names that no compression makes smaller.
        principal: match at {
            0 => user_key("jane").into(),
            _ => user_key(&snapshot::digest_of(&format!("{at}").repeat(3)).repeat(3)).into(),
        },
        scope: format!("{CLUSTER}{scope}").parse().unwrap(),
        role: role.clone(),
        window: Window::default(),
    };
    (0..count).map(one).collect()
}

impl Gateway {
    fn later(&self, by: Duration) {
        *self.clock.0.lock().unwrap() += by;
    }

    fn state(&self, revision: i64, assignments: &[Assignment], change: impl FnOnce(&mut Value)) -> Signed {
        let document = Document::new(&CLUSTER.parse().unwrap(), revision, true, assignments);
        let document = serde_json::to_string(&document).unwrap();
        let mut claims = self.issuer.claims("-", &snapshot::audience(&CLUSTER.parse().unwrap()), self.clock.now());
        claims["sha256"] = json!(snapshot::digest_of(&document));
        change(&mut claims);
        let header = json!({"alg": "ES256", "kid": self.issuer.key().kid, "typ": STATEMENT_TYPE});
        Signed { statement: self.issuer.mint_with(&header, &claims), document, etag: String::new(), omitted: None }
    }

    fn says(&self, revision: i64, scope: &str) -> Signed {
        self.state(revision, &viewers(1, scope), |_| {})
    }

    fn pod(&self, store: Store) -> Pod {
        let authenticator = Arc::new(Authenticator::new(self.issuer.verifier(), CLUSTER.parse().unwrap()));
        Pod {
            authorizer: Authorizer::new(authenticator, Some("test".to_owned())),
            kept: Kept::new(store, self.clock.clone()),
            clock: self.clock.clone(),
        }
    }
}

struct Pod {
    authorizer: Arc<Authorizer>,
    kept: Kept,
    clock: Arc<SetClock>,
}

impl Pod {
    /// The gateway told this, and it is kept.
    async fn hears(&self, signed: &Signed) -> Result<Option<String>, String> {
        let judged = self.authorizer.take(signed, self.clock.now()).await.unwrap();
        self.kept.offer(signed.clone(), judged).await;
        let latest = self.kept.wanted.borrow().clone().unwrap();
        self.kept.save(&self.authorizer, &latest).await
    }

    async fn starts(self) -> Self {
        let _ = self.kept.resume_once(&self.authorizer).await;
        self
    }

    /// Whether jane sees pods of a namespace; nothing where guard knows nothing.
    fn sees(&self, namespace: &str) -> Option<bool> {
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let info = RequestInfo::parse(&Method::GET, &path, None);
        match self.authorizer.review(&[user_key("jane")], &info, &path, self.clock.now()) {
            Reviewed::Decided { allowed, .. } => Some(allowed),
            Reviewed::Off | Reviewed::Unknown => None,
        }
    }
}

#[tokio::test]
async fn z8_a_pod_that_starts_without_the_gateway_goes_on_by_the_kept_snapshot_until_it_ends() {
    let (gateway, dir) = (gateway(), tempfile::tempdir().unwrap());
    let store = || Store::Directory(dir.path().join("guard"));
    assert_eq!(gateway.pod(store()).starts().await.sees("dev"), None, "nothing has been kept");
    let heard = gateway.pod(store());
    let week = |claims: &mut Value| claims["exp"] = json!(claims["iat"].as_u64().unwrap() + 7 * 24 * 3600);
    assert_eq!(heard.hears(&gateway.state(1, &viewers(1, "/namespaces/dev"), week)).await, Ok(None));
    gateway.later(6 * 24 * HOUR);
    let next = gateway.pod(store()).starts().await;
    assert_eq!((next.sees("dev"), next.sees("other")), (Some(true), Some(false)));
    gateway.later(24 * HOUR + Duration::from_secs(1));
    assert_eq!(next.sees("dev"), None, "the statement has ended");
    gateway.later(HOUR);
    assert_eq!(gateway.pod(store()).starts().await.sees("dev"), None, "nor does a later pod take it");
}

/// Who may write the Secret has no key of the issuer.
#[tokio::test]
async fn z8_what_is_kept_is_verified_as_what_the_gateway_says() {
    let (gateway, dir) = (gateway(), tempfile::tempdir().unwrap());
    let file = dir.path().join(FILE);
    let good = gateway.says(5, "/namespaces/dev");
    let wide = gateway.says(9, "").document;
    let stranger = Gateway { issuer: TestIssuer::new("https://issuer.test"), clock: gateway.clock.clone() };
    let elsewhere = |claims: &mut Value| claims["aud"] = json!(format!("towline:policy:{CLUSTER}x").to_lowercase());
    let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
    let zeros = vec![b' '; 1 << 20];
    (0..12).for_each(|_| bomb.write_all(&zeros).unwrap());
    for (what, packed) in [
        ("no gzip", b"{}".to_vec()),
        ("a bomb", bomb.finish().unwrap()),
        ("swapped", pack(&Signed { document: wide, ..good.clone() }).unwrap()),
        ("of another key", pack(&stranger.says(9, "")).unwrap()),
        ("of another cluster", pack(&gateway.state(9, &viewers(1, ""), elsewhere)).unwrap()),
    ] {
        std::fs::write(&file, packed).unwrap();
        let pod = gateway.pod(Store::Directory(dir.path().to_owned())).starts().await;
        assert_eq!(pod.sees("dev"), None, "{what}");
        assert_eq!(pod.hears(&good).await, Ok(None), "{what}");
        let next = gateway.pod(Store::Directory(dir.path().to_owned())).starts().await;
        assert_eq!((next.sees("dev"), next.sees("other")), (Some(true), Some(false)), "{what} was replaced");
    }
}

#[tokio::test]
async fn z8_a_withdrawn_right_does_not_come_back_by_what_was_kept() {
    let (gateway, dir) = (gateway(), tempfile::tempdir().unwrap());
    let store = || Store::Directory(dir.path().to_owned());
    let [old, withdrawn] = [gateway.says(1, "/namespaces/dev"), gateway.state(2, &[], |_| {})];
    let (fast, slow) = (gateway.pod(store()), gateway.pod(store()));
    fast.hears(&old).await.unwrap();
    fast.hears(&withdrawn).await.unwrap();
    // A pod that is behind leaves what is newer.
    slow.hears(&old).await.unwrap();
    assert_eq!(gateway.pod(store()).starts().await.sees("dev"), Some(false));
    // One that has heard the gateway before it has read takes nothing older.
    std::fs::write(dir.path().join(FILE), pack(&old).unwrap()).unwrap();
    let pod = fast.starts().await;
    assert_eq!(pod.sees("dev"), Some(false));
}

/// Without an older snapshot that would stay in its place.
#[tokio::test]
async fn z8_a_snapshot_that_is_too_large_to_keep_takes_the_older_one_away() {
    let (gateway, dir) = (gateway(), tempfile::tempdir().unwrap());
    let store = || Store::Directory(dir.path().to_owned());
    let pod = gateway.pod(store());
    pod.hears(&gateway.says(1, "/namespaces/dev")).await.unwrap();
    let judged = pod.authorizer.take(&gateway.says(2, ""), pod.clock.now()).await.unwrap();
    let too_large = Arc::new(Wanted { judged, packed: None });
    for _ in 0..2 {
        let warning = pod.kept.save(&pod.authorizer, &too_large).await.unwrap();
        assert!(warning.is_some_and(|text| text.contains("not kept")));
    }
    assert_eq!(gateway.pod(store()).starts().await.sees("dev"), None);
}

/// Names of users are hashes or GUIDs, which no compression makes smaller.
#[test]
fn z8_a_large_snapshot_fits_into_a_secret() {
    let gateway = gateway();
    let large = gateway.state(2, &viewers(12_000, ""), |_| {});
    assert!(large.document.len() <= DOCUMENT_BYTES, "{}", large.document.len());
    let packed = pack(&large).unwrap();
    assert!(packed.len() <= KEPT_BYTES, "{} of {}", packed.len(), large.document.len());
    assert_eq!(unpack(&packed).unwrap().document, large.document);
}

/// One Secret of an apiserver, which refuses writes of an older version, and how often it was written.
#[derive(Clone, Default)]
struct OneSecret(Arc<Mutex<(Value, u64)>>);

impl OneSecret {
    fn now(&self) -> MutexGuard<'_, (Value, u64)> {
        self.0.lock().unwrap()
    }

    fn client(&self) -> Client {
        let own = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let own = own.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                assert_eq!(head.uri.path(), format!("/api/v1/namespaces/towline/secrets/{SECRET}"));
                let mut now = own.now();
                let mut status = StatusCode::OK;
                if head.method == Method::PATCH {
                    let patch: Value = serde_json::from_slice(&body).unwrap();
                    if patch["metadata"]["resourceVersion"] == now.1.to_string().as_str() {
                        *now = (patch["data"].clone(), now.1 + 1);
                    } else {
                        status = StatusCode::CONFLICT;
                    }
                }
                let data = now.0.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
                let data: serde_json::Map<String, Value> =
                    data.map(|(key, value)| (key.clone(), value.clone())).collect();
                let answer = match status {
                    StatusCode::OK => json!({"apiVersion": "v1", "kind": "Secret", "data": data,
                        "metadata": {"name": SECRET, "resourceVersion": now.1.to_string()}}),
                    _ => json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 409}),
                };
                let response = Response::builder().status(status).header("content-type", "application/json");
                Ok::<_, Infallible>(response.body(Full::new(Bytes::from(answer.to_string()))).unwrap())
            }
        });
        Client::new(service, "towline")
    }
}

#[tokio::test]
async fn z8_pods_keep_one_snapshot_in_a_secret_and_write_it_only_when_it_changes() {
    let (gateway, secret) = (gateway(), OneSecret::default());
    let pod = || gateway.pod(Store::Cluster(secret.client()));
    let [one, two] = [pod(), pod()];
    one.hears(&gateway.says(1, "/namespaces/dev")).await.unwrap();
    gateway.later(Duration::from_secs(60));
    two.hears(&gateway.says(1, "/namespaces/dev")).await.unwrap();
    assert_eq!(secret.now().1, 1, "the other pod's says the same");
    gateway.later(NEWER);
    two.hears(&gateway.says(1, "/namespaces/dev")).await.unwrap();
    assert_eq!(secret.now().1, 2, "its statement is newer");
    one.hears(&gateway.says(2, "/namespaces/other")).await.unwrap();
    assert_eq!(secret.now().1, 3, "it says something else");
    let next = pod().starts().await;
    assert_eq!((next.sees("dev"), next.sees("other")), (Some(false), Some(true)));
    // Somebody writes between the look and the write.
    let (_, version) = one.kept.store.load().await.unwrap();
    two.hears(&gateway.says(3, "/namespaces/third")).await.unwrap();
    let late = one.kept.store.save(Some(b"older"), version).await;
    assert!(late.is_err_and(|problem| problem.contains("another pod")));
    assert_eq!(pod().starts().await.sees("third"), Some(true));
    one.kept.store.save(None, Some("4".to_owned())).await.unwrap();
    assert_eq!(pod().starts().await.sees("third"), None, "it was taken away");
}

/// What is told within a pause of the last write is kept as the process ends.
#[tokio::test]
async fn z8_the_last_word_is_kept_when_guard_ends() {
    let (gateway, dir) = (gateway(), tempfile::tempdir().unwrap());
    let store = || Store::Directory(dir.path().to_owned());
    let pod = gateway.pod(store());
    pod.kept.last(&pod.authorizer).await;
    let signed = gateway.says(1, "/namespaces/dev");
    let judged = pod.authorizer.take(&signed, pod.clock.now()).await.unwrap();
    pod.kept.offer(signed, judged).await;
    pod.kept.last(&pod.authorizer).await;
    assert_eq!(gateway.pod(store()).starts().await.sees("dev"), Some(true));
    // Somebody takes it away before the pods are restarted, as after the gateway's database was restored.
    std::fs::remove_file(dir.path().join(FILE)).unwrap();
    pod.kept.last(&pod.authorizer).await;
    assert_eq!(gateway.pod(store()).starts().await.sees("dev"), None);
}
