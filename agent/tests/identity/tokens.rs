//! Tokens of the cluster's identity for what else runs in the cluster (R9), and the certificate of their listener (A7).

use std::{
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use agent::{
    identity::{Identities, Identity, Stored, clock::Clock, request::KeyRequest},
    roles::{
        Role,
        health::Health,
        identity_tokens::{
            IdentityTokens,
            ask::{Caller, Reviews},
            certificate::{Keeper, Store},
            desk::Desk,
            refusals::Refusals,
        },
    },
    tunnel::{api::AgentApi, status::StatusBoard},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use bytes::Bytes;
use certs::serving::ShownNow;
use daemon::{Shutdown, TaskGroup};
use futures_util::future::BoxFuture;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tunnel::{transport::TunnelHandle, wire::close::CloseCode};
use types::agent_api::{Token, TokenRequest, paths};

use crate::gateway::{Answer, CLUSTER, Ca, DAY, Scripted, refusal};

const NAME: &str = "cluster-identity.towline.svc";
const GOOD: &str = "token-of-backup";
const AUDIENCE: &str = "https://gateway.test";

/// A token whose review does not end before the test says so.
const SLOW: &str = "token-of-a-slow-review";

/// Knows one service account, which may have tokens of two audiences.
#[derive(Clone)]
struct Known {
    answers: Arc<AtomicBool>,
    /// Reviews that were asked for.
    asked: watch::Sender<usize>,
    /// Whether slow ones end.
    released: watch::Sender<bool>,
    /// The object id of the identity that the extension `shop` has, as the cluster knows it.
    identity: Arc<Mutex<String>>,
    /// That of which the gateway gives tokens.
    at_gateway: Arc<Mutex<String>>,
}

impl Reviews for Known {
    fn who<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Option<Caller>, String>> {
        Box::pin(async move {
            self.asked.send_modify(|asked| *asked += 1);
            if !self.answers.load(Ordering::SeqCst) {
                return Err("the apiserver does not answer".to_owned());
            }
            if token == SLOW {
                let _ = self.released.subscribe().wait_for(|released| *released).await;
            }
            let user = "system:serviceaccount:apps:backup".to_owned();
            Ok((token == GOOD).then(|| Caller { user, ..Caller::default() }))
        })
    }

    fn may<'a>(&'a self, caller: &'a Caller, audience: &'a str) -> BoxFuture<'a, Result<bool, String>> {
        assert_eq!(caller.user, "system:serviceaccount:apps:backup");
        Box::pin(async move { Ok(audience == AUDIENCE || audience == "unknown") })
    }

    fn of_extension<'a>(
        &'a self,
        caller: &'a Caller,
        extension: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, String>> {
        assert_eq!(caller.user, "system:serviceaccount:apps:backup");
        Box::pin(async move { Ok((extension == "shop").then(|| self.identity.lock().unwrap().clone())) })
    }
}

/// A clock that a test sets.
#[derive(Debug)]
struct Set(Mutex<SystemTime>);

impl Clock for Set {
    fn now(&self) -> SystemTime {
        *self.0.lock().unwrap()
    }
}

/// The same for the client's TLS.
#[derive(Debug)]
struct ClientTime(Arc<Set>);

impl rustls::time_provider::TimeProvider for ClientTime {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(self.0.now().duration_since(SystemTime::UNIX_EPOCH).unwrap()))
    }
}

/// What is published, as clients read it.
fn published(dir: &Path) -> String {
    std::fs::read_to_string(dir.join("ca.crt")).unwrap()
}

/// A client that trusts what was published, at that time.
fn client(published: &str, clock: &Arc<Set>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(published.as_bytes()) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_details(provider, Arc::new(ClientTime(clock.clone())));
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    builder.with_root_certificates(roots).with_no_client_auth()
}

struct World {
    clock: Arc<Set>,
    role: Arc<IdentityTokens>,
    current: watch::Sender<Option<TunnelHandle>>,
    up: TunnelHandle,
    identities: Identities,
    status: Arc<StatusBoard>,
    health: Health,
    asked: Arc<AtomicUsize>,
    answers: Arc<AtomicBool>,
    known: Known,
    shutdown: Shutdown,
    tasks: TaskGroup,
    dir: tempfile::TempDir,
}

impl World {
    async fn new() -> Self {
        let clock = Arc::new(Set(Mutex::new(SystemTime::UNIX_EPOCH + 20_000 * DAY)));
        let asked: Arc<AtomicUsize> = Arc::default();
        let count = asked.clone();
        let identity = Arc::new(Mutex::new("identity of shop".to_owned()));
        let at_gateway = Arc::new(Mutex::new("identity of shop".to_owned()));
        let own = Arc::clone(&at_gateway);
        let answer: Answer = Box::new(move |path, body| {
            assert_eq!(path, paths::TOKEN);
            let TokenRequest { audience, extension } = serde_json::from_slice(body).unwrap();
            if audience == "unknown" {
                return (StatusCode::BAD_REQUEST, HeaderMap::new(), refusal("InvalidAudience"));
            }
            if audience != AUDIENCE {
                let headers = HeaderMap::from_iter([(header::RETRY_AFTER, HeaderValue::from_static("7"))]);
                return (StatusCode::TOO_MANY_REQUESTS, headers, refusal("TooManyRequests"));
            }
            let number = count.fetch_add(1, Ordering::SeqCst);
            let claims = URL_SAFE_NO_PAD.encode(
                json!({"iat": 1000, "exp": 4600, "of": extension, "oid": own.lock().unwrap().clone()}).to_string(),
            );
            let token = Token { token: format!("h.{claims}.{number}"), expires_on: 4600 };
            (StatusCode::OK, HeaderMap::new(), serde_json::to_vec(&token).unwrap())
        });
        let up = Scripted::tunnel(answer, Arc::default());
        let current = watch::Sender::new(None);
        let (health, status, identities) = (Health::default(), Arc::<StatusBoard>::default(), Identities::default());
        let answers = Arc::new(AtomicBool::new(true));
        let dir = tempfile::tempdir().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let time = clock.clone();
        let shown = ShownNow::new(Arc::new(move || time.now()));
        let keeper = Keeper {
            shown: shown.clone(),
            names: vec![NAME.to_owned()],
            store: Store::Directory(dir.path().join("serving")),
            clock: clock.clone(),
            health: health.of("identity-tokens"),
            current: Mutex::default(),
        };
        let api = AgentApi::new(current.subscribe());
        let known = Known {
            answers: answers.clone(),
            asked: watch::Sender::new(0),
            released: watch::Sender::new(false),
            identity,
            at_gateway,
        };
        let mut desk = Desk::new(Box::new(known.clone()), api, identities.clone(), status.clone(), health.clone());
        // However slow this machine is.
        desk.refusals = Refusals::remembered_for(Duration::from_secs(3600));
        let role = Arc::new(IdentityTokens::new(listener, shown, keeper, desk).unwrap());
        let (tasks, shutdown) = (TaskGroup::new("test"), Shutdown::new());
        let (runs, until) = (role.clone(), shutdown.clone());
        let mut changes = health.changes();
        tasks.spawn("role", async move { runs.run(until).await });
        while health.all().is_empty() {
            changes.changed().await.unwrap();
        }
        Self { clock, role, current, up, identities, status, health, asked, answers, known, shutdown, tasks, dir }
    }

    /// As a cluster that has a certificate and a tunnel.
    async fn ready() -> Self {
        let world = Self::new().await;
        world.enrol(&Ca::new("authority"));
        world.current.send_replace(Some(world.up.clone()));
        world
    }

    fn enrol(&self, ca: &Ca) {
        let (request, now) = (KeyRequest::new().unwrap(), SystemTime::now());
        let stored = Stored::new(ca.certify(&request.csr, CLUSTER, now), request.key, now).unwrap();
        assert!(self.identities.publish(Identity::new(stored, &CLUSTER.parse().unwrap()).unwrap()));
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> Result<(StatusCode, HeaderMap, Value), String> {
        self.send_from(1, request).await
    }

    /// As a pod of this number: all of 127.0.0.0/8 is this machine.
    async fn send_from(
        &self,
        pod: u8,
        request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, HeaderMap, Value), String> {
        let tls = client(&published(&self.dir.path().join("serving")), &self.clock);
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(std::net::SocketAddr::from(([127, 0, 0, pod], 0))).unwrap();
        let tcp = socket.connect(self.role.address().unwrap()).await.unwrap();
        let name = ServerName::try_from(NAME).unwrap();
        let io = TlsConnector::from(Arc::new(tls)).connect(name, tcp).await.map_err(|err| err.to_string())?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await.unwrap();
        self.tasks.spawn("client", async move {
            let _ = connection.await;
        });
        let answer = sender.send_request(request).await.map_err(|err| err.to_string())?;
        let (head, body) = answer.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        Ok((head.status, head.headers, serde_json::from_slice(&body).unwrap()))
    }

    async fn ask(&self, token: &str, audience: &str) -> (StatusCode, HeaderMap, Value) {
        let body = json!({ "audience": audience }).to_string();
        self.send(request("POST", "/v1/token", Some(token), &body)).await.unwrap()
    }

    async fn end(self) {
        self.shutdown.drain();
        drop(self.current);
        self.tasks.abort();
    }
}

fn request(method: &str, path: &str, token: Option<&str>, body: &str) -> Request<Full<Bytes>> {
    let mut request = Request::builder().method(method).uri(path).header(header::HOST, NAME);
    if let Some(token) = token {
        request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
    }
    request.body(Full::new(Bytes::from(body.to_owned()))).unwrap()
}

#[tokio::test]
async fn r9_who_may_gets_a_token_that_is_asked_for_once_until_another_identity_comes() {
    let world = World::ready().await;
    let (status, headers, first) = world.ask(GOOD, AUDIENCE).await;
    assert_eq!((status, &headers[header::CACHE_CONTROL]), (StatusCode::OK, &HeaderValue::from_static("no-store")));
    let wanted = json!({
        "access_token": first["access_token"], "token_type": "Bearer", "expires_in": first["expires_in"],
        "expires_on": 4600, "audience": AUDIENCE,
    });
    assert_eq!(first, wanted);
    assert!((3590..=3600).contains(&first["expires_in"].as_u64().unwrap()), "{first}");
    let (_, _, again) = world.ask(GOOD, AUDIENCE).await;
    assert_eq!((again["access_token"] == first["access_token"], world.asked.load(Ordering::SeqCst)), (true, 1));
    // The cluster was made again: the old identity's token is not given any more.
    world.enrol(&Ca::new("authority"));
    let (_, _, new) = world.ask(GOOD, AUDIENCE).await;
    assert_ne!(new["access_token"], first["access_token"]);
    world.end().await;
}

#[tokio::test]
async fn r9_who_may_not_or_asks_wrongly_is_told_what_to_do() {
    let world = World::ready().await;
    let refused = async |request, status: u16, code: &str, says: &str| {
        let (found, headers, body) = world.send(request).await.unwrap();
        let message = body["error"]["message"].as_str().unwrap();
        assert_eq!((found.as_u16(), body["error"]["code"].as_str()), (status, Some(code)), "{body}");
        assert!(message.contains(says), "{message}");
        headers
    };
    let audience = |text: &str| json!({ "audience": text }).to_string();
    let good = audience(AUDIENCE);
    let post = |token, body: &str| request("POST", "/v1/token", token, body);
    let headers = refused(post(None, &good), 401, "Unauthenticated", "towline.io/identity").await;
    assert_eq!(headers[header::WWW_AUTHENTICATE], "Bearer");
    refused(post(Some("of nobody"), &good), 401, "Unauthenticated", "towline.io/identity").await;
    let long = "x".repeat(20_000);
    refused(post(Some(&long), &good), 401, "Unauthenticated", "towline.io/identity").await;
    let says = "system:serviceaccount:apps:backup may not have tokens of the cluster's identity for other: allow it to create identitytokens.towline.io";
    refused(post(Some(GOOD), &audience("other")), 403, "Forbidden", says).await;
    refused(post(Some(GOOD), &audience("unknown")), 400, "InvalidAudience", "").await;
    refused(post(Some(GOOD), &audience("")), 400, "InvalidAudience", "empty").await;
    refused(post(Some(GOOD), &audience(&"x".repeat(2000))), 400, "InvalidAudience", "longer").await;
    refused(post(Some(GOOD), "{"), 400, "InvalidRequest", "audience").await;
    refused(post(Some(GOOD), &"x".repeat(10_000)), 400, "InvalidRequest", "cannot be read").await;
    refused(request("GET", "/v1/token", Some(GOOD), ""), 405, "MethodNotAllowed", "POST").await;
    refused(request("POST", "/metadata/identity", Some(GOOD), &good), 404, "NotFound", "/v1/token").await;
    assert_eq!(world.asked.load(Ordering::SeqCst), 0, "nothing of it reached the gateway");
    world.end().await;
}

/// The cluster's identity is not needed for that, and its tokens are others.
#[tokio::test]
async fn e11_service_accounts_of_an_extension_get_tokens_of_its_identity_alone() {
    let world = World::ready().await;
    let ask = async |extension: &str| {
        let body = json!({ "audience": AUDIENCE, "extension": extension }).to_string();
        world.send(request("POST", "/v1/token", Some(GOOD), &body)).await.unwrap()
    };
    let of = |token: &Value| {
        let claims = token["access_token"].as_str().unwrap().split('.').nth(1).unwrap().to_owned();
        serde_json::from_slice::<Value>(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap()["of"].clone()
    };
    let (status, _, shop) = ask("shop").await;
    assert_eq!((status, of(&shop)), (StatusCode::OK, json!("shop")));
    assert_eq!(ask("shop").await.2["access_token"], shop["access_token"], "it is asked for once");
    let (_, _, cluster) = world.ask(GOOD, AUDIENCE).await;
    assert_eq!(of(&cluster), Value::Null);
    // It was deleted and made again: its old identity's token is not given any more.
    "another".clone_into(&mut world.known.identity.lock().unwrap());
    "another".clone_into(&mut world.known.at_gateway.lock().unwrap());
    assert_ne!(ask("shop").await.2["access_token"], shop["access_token"]);
    String::new().clone_into(&mut world.known.identity.lock().unwrap());
    let (status, _, body) = ask("shop").await;
    assert_eq!((status, &body["error"]["code"]), (StatusCode::CONFLICT, &json!("IdentityMissing")), "{body}");
    let (status, _, body) = ask("other").await;
    assert_eq!((status, &body["error"]["code"]), (StatusCode::FORBIDDEN, &json!("Forbidden")), "{body}");
    for bad in ["", "..", "a/b", "Shop"] {
        let (status, _, body) = ask(bad).await;
        assert_eq!((status, &body["error"]["code"]), (StatusCode::BAD_REQUEST, &json!("InvalidRequest")), "{body}");
    }
    world.end().await;
}

/// A gateway that does not know of extensions takes the member that names one for none, and answers as for the cluster.
#[tokio::test]
async fn e11_a_token_of_another_identity_is_given_to_no_extension() {
    let world = World::ready().await;
    "identity of shop".clone_into(&mut world.known.identity.lock().unwrap());
    "identity of the cluster".clone_into(&mut world.known.at_gateway.lock().unwrap());
    let body = json!({ "audience": AUDIENCE, "extension": "shop" }).to_string();
    for _ in 0..2 {
        let (status, _, body) = world.send(request("POST", "/v1/token", Some(GOOD), &body)).await.unwrap();
        assert_eq!((status, &body["error"]["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("NotReady")), "{body}");
        assert!(!body.to_string().contains("access_token"), "{body}");
    }
    assert_eq!(world.asked.load(Ordering::SeqCst), 2, "nothing of it is remembered");
    world.end().await;
}

/// One pod could take all places by asking slowly, or at once as often as it likes.
#[tokio::test]
async fn r9_one_pod_takes_only_its_own_places() {
    const OF_ONE_PEER: usize = 4;
    let world = Arc::new(World::ready().await);
    let body = json!({ "audience": AUDIENCE }).to_string();
    let post = |token| request("POST", "/v1/token", Some(token), &body);
    let mut reviewed = world.known.asked.subscribe();
    let tasks = TaskGroup::new("pods");
    for number in 0..OF_ONE_PEER {
        let (slow, request) = (world.clone(), post(SLOW));
        tasks.spawn("slow", async move {
            let _ = slow.send_from(1, request).await;
        });
        reviewed.wait_for(|asked| *asked > number).await.unwrap();
    }
    let (status, headers, body) = world.send_from(1, post(GOOD)).await.unwrap();
    assert_eq!((status, headers[header::RETRY_AFTER].as_bytes()), (StatusCode::TOO_MANY_REQUESTS, &b"1"[..]), "{body}");
    assert_eq!(world.send_from(2, post(GOOD)).await.unwrap().0, StatusCode::OK, "another pod has places of its own");
    world.known.released.send_replace(true);
    tasks.abort();
}

/// Each would cost the apiserver a review.
#[tokio::test]
async fn r9_a_token_that_was_refused_is_not_reviewed_again_at_once() {
    let world = World::ready().await;
    let reviews = || *world.known.asked.borrow();
    for _ in 0..5 {
        assert_eq!(world.ask("of nobody", AUDIENCE).await.0, StatusCode::UNAUTHORIZED);
    }
    assert_eq!(reviews(), 1);
    // One after the other, until that is too many of one pod.
    let mut refused = None;
    for number in 0..20 {
        let answer = world.ask(&format!("of nobody {number}"), AUDIENCE).await;
        if answer.0 != StatusCode::UNAUTHORIZED {
            refused = Some(answer);
            break;
        }
    }
    let (status, headers, _) = refused.expect("it is bounded");
    assert_eq!(
        (status, &headers[header::RETRY_AFTER]),
        (StatusCode::TOO_MANY_REQUESTS, &HeaderValue::from_static("10"))
    );
    assert!(reviews() <= 8, "{}", reviews());
    let body = json!({ "audience": AUDIENCE }).to_string();
    let other = world.send_from(2, request("POST", "/v1/token", Some(GOOD), &body)).await.unwrap();
    assert_eq!(other.0, StatusCode::OK, "another pod asks as before");
    world.end().await;
}

#[tokio::test]
async fn r9_what_is_not_ready_says_why_and_to_ask_again_after_ten_seconds() {
    let world = World::new().await;
    let not_ready = async |says: &str| {
        let (status, headers, body) = world.ask(GOOD, AUDIENCE).await;
        let message = body["error"]["message"].as_str().unwrap();
        assert_eq!((status, body["error"]["code"].as_str()), (StatusCode::SERVICE_UNAVAILABLE, Some("NotReady")));
        assert_eq!(headers[header::RETRY_AFTER], "10");
        assert!(message.contains(says), "{message}");
    };
    not_ready("the cluster has no certificate yet").await;
    world.health.of("clusteridentityoperator").failing("InvalidProof", "the onboarding key is not the resource's");
    not_ready("the onboarding key is not the resource's").await;
    world.enrol(&Ca::new("authority"));
    world.status.failed("as the test says");
    not_ready("no tunnel to the gateway is up: as the test says").await;
    world.current.send_replace(Some(world.up.clone()));
    assert_eq!(world.ask(GOOD, AUDIENCE).await.0, StatusCode::OK);
    world.answers.store(false, Ordering::SeqCst);
    not_ready("the apiserver does not answer").await;
    world.answers.store(true, Ordering::SeqCst);
    world.status.refused(CloseCode::Deleted);
    not_ready("the resource of this cluster was deleted").await;
    world.end().await;
}

/// The whole life of several certificates, with the clock set: who trusts what is published always gets through, also
/// with what was published a day before.
#[tokio::test]
async fn a7_the_certificate_is_renewed_by_itself_and_none_is_served_outside_of_its_time() {
    let world = World::ready().await;
    let begin = world.clock.now();
    let look = async || {
        // A process that starts anew finds what is kept.
        let keeper = Keeper {
            shown: ShownNow::new(Arc::new(SystemTime::now)),
            names: vec![NAME.to_owned()],
            store: Store::Directory(world.dir.path().join("serving")),
            clock: world.clock.clone(),
            health: world.health.of("identity-tokens"),
            current: Mutex::default(),
        };
        keeper.look().await.unwrap();
    };
    let first = std::fs::read_to_string(world.dir.path().join("serving/ca.crt")).unwrap();
    assert_eq!(world.ask(GOOD, AUDIENCE).await.0, StatusCode::OK);
    look().await;
    assert_eq!(
        std::fs::read_to_string(world.dir.path().join("serving/ca.crt")).unwrap(),
        first,
        "good for half its life"
    );
    // What this process knows is the first one alone, and its time is over: it shows nothing rather than that.
    *world.clock.0.lock().unwrap() = begin + 91 * DAY;
    let body = json!({ "audience": AUDIENCE }).to_string();
    let refused = world.send(request("POST", "/v1/token", Some(GOOD), &body)).await.unwrap_err();
    assert!(!refused.contains("expired") && !refused.contains("Expired"), "it was not even shown: {refused}");
    look().await;
    let next = std::fs::read_to_string(world.dir.path().join("serving/ca.crt")).unwrap();
    assert!(next != first && next.matches("BEGIN CERTIFICATE").count() == 1);
    world.end().await;
}

#[tokio::test]
async fn a7_each_day_of_a_year_a_client_gets_through_with_what_was_published_the_day_before() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Arc::new(Set(Mutex::new(SystemTime::UNIX_EPOCH + 20_000 * DAY)));
    let time = clock.clone();
    let shown = ShownNow::new(Arc::new(move || time.now()));
    let keeper = Keeper {
        shown: shown.clone(),
        names: vec![NAME.to_owned()],
        store: Store::Directory(dir.path().to_owned()),
        clock: clock.clone(),
        health: Health::default().of("identity-tokens"),
        current: Mutex::default(),
    };
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(certs::tls::server_inside(Arc::new(shown)).unwrap()));
    keeper.look().await.unwrap();
    for day in 0..366 {
        let published = published(dir.path());
        *clock.0.lock().unwrap() += DAY;
        keeper.look().await.unwrap();
        let tls = client(&published, &clock);
        let (client, server) = tokio::io::duplex(16 * 1024);
        let name = ServerName::try_from(NAME).unwrap();
        let (seen, _) = tokio::join!(TlsConnector::from(Arc::new(tls)).connect(name, client), acceptor.accept(server));
        assert!(seen.is_ok(), "day {day}: {:?}", seen.err());
    }
}
