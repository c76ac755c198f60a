//! Guard on real TLS sockets, and what it decides.

use std::{
    path::Path,
    pin::Pin,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context, Poll},
    time::SystemTime,
};

use auth::{
    rbac::{
        Assignment, Window,
        principal::user_key,
        role::built_in,
        snapshot::{self, Document, STATEMENT_TYPE, Signed},
    },
    token::{
        Fetch, Issuer, ObjectId, REFETCH, RawIssuer, Verifier,
        testing::{MemoryFetch, TestIssuer, TestKey, unix_seconds},
    },
};
use bytes::Bytes;
use certs::{Authority, Credentials, Roots, Validity};
use futures_util::FutureExt as _;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};

use super::{access::Decision, *};
use crate::{
    config::{DecisionCache, Impersonation, Owner},
    identity::clock::{SharedClock, SystemClock, TokioClock},
    roles::{
        guard::review::Question,
        health::{Health, State},
        kube_aad_proxy::{
            admit::{Credential, Scheme},
            authenticate::{Authenticated, Authenticator},
            authorize::Authorizer,
            impersonate::{Names, Subject},
        },
    },
};

const CLUSTER: &str = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c";
const VIEWER: &str = "Azure Arc Kubernetes Viewer";

struct Site {
    issuer: TestIssuer,
    authenticator: Arc<Authenticator>,
    authorizer: Arc<Authorizer>,
    now: SystemTime,
}

fn site() -> Site {
    let issuer = TestIssuer::new("https://issuer.test");
    let authenticator = Arc::new(Authenticator::new(issuer.verifier(), CLUSTER.parse().unwrap()));
    let authorizer = Authorizer::new(authenticator.clone(), Some("test".to_owned()));
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(unix_seconds(SystemTime::now()));
    Site { issuer, authenticator, authorizer, now }
}

impl Site {
    /// Has the cluster know that jane is a viewer of `scope`, for `life`.
    async fn tell(&self, revision: i64, enabled: bool, scope: &str, life: Duration) {
        self.tell_of(revision, enabled, (VIEWER, scope, Window::default()), life).await;
    }

    /// The same of another role, for a while.
    async fn tell_of(&self, revision: i64, enabled: bool, (role, scope, window): (&str, &str, Window), life: Duration) {
        let assignment = Assignment {
            id: "a".into(),
            principal: user_key("jane").into(),
            scope: format!("{CLUSTER}{scope}").parse().unwrap(),
            role: built_in().iter().find(|known| known.name == role).unwrap().role.clone(),
            window,
        };
        let document = Document::new(&CLUSTER.parse().unwrap(), revision, enabled, &[assignment]);
        let document = serde_json::to_string(&document).unwrap();
        let mut claims = self.issuer.claims("-", &snapshot::audience(&CLUSTER.parse().unwrap()), self.now);
        claims["sha256"] = json!(snapshot::digest_of(&document));
        claims["exp"] = json!(unix_seconds(self.now + life));
        let header = json!({"alg": "ES256", "kid": self.issuer.key().kid, "typ": STATEMENT_TYPE});
        let statement = self.issuer.mint_with(&header, &claims);
        let signed = Signed { statement, document, etag: String::new(), omitted: None };
        self.authorizer.take(&signed, self.now).await.unwrap();
    }

    fn names() -> Names {
        Names::new(&Impersonation::default())
    }

    fn access(&self) -> Access {
        self.access_that_caches(DecisionCache::default())
    }

    fn access_that_caches(&self, bounds: DecisionCache) -> Access {
        let owner = Owner { issuer: "test".to_owned(), prefix: String::new(), object_id: ObjectId::Uid };
        Access::new(self.authorizer.clone(), vec![owner], Self::names(), &["break-glass".to_owned()], bounds)
    }

    fn desk(&self) -> Desk {
        let tokens = Tokens { authenticator: self.authenticator.clone(), names: Self::names() };
        Desk::new(tokens, self.access(), Arc::new(SystemClock))
    }

    fn token(&self, groups: &[&str]) -> String {
        self.issuer.token("jane", groups, &self.authenticator.cluster().audience(), self.now)
    }
}

fn keeper(dir: &Path, clock: SharedClock) -> Keeper {
    Keeper {
        published: Published::default(),
        names: vec!["127.0.0.1".to_owned(), "guard.towline.svc".to_owned()],
        server: ("127.0.0.1".to_owned(), 8444),
        store: Store::Directory(dir.to_owned()),
        clock,
        health: Health::default().of(NAME),
        authorizer: None,
    }
}

/// A served guard; ends when dropped.
struct Served {
    address: SocketAddr,
    shutdown: Shutdown,
    _tasks: TaskGroup,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.shutdown.drain();
    }
}

async fn serve(site: &Site, dir: &Path) -> Served {
    let keeper = keeper(dir, Arc::new(SystemClock));
    keeper.look().await.unwrap();
    serve_by(site, keeper)
}

fn serve_by(site: &Site, keeper: Keeper) -> Served {
    let mut guard = Guard::new(listen("127.0.0.1:0".parse().unwrap()).unwrap(), keeper, site.desk());
    guard.lingers = Duration::from_secs(600);
    let (address, shutdown, tasks) = (guard.address().unwrap(), Shutdown::new(), TaskGroup::new("test"));
    let until = shutdown.clone();
    tasks.spawn("guard", async move { guard.run(until).await });
    Served { address, shutdown, _tasks: tasks }
}

/// The server, roots and credentials of a file that an apiserver is started with.
fn as_apiserver(dir: &Path, file: &str) -> (String, Roots, Credentials) {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let text: Value = serde_json::from_slice(&std::fs::read(dir.join(file)).unwrap()).unwrap();
    let pem = |value: &Value| STANDARD.decode(value.as_str().unwrap()).unwrap();
    let (cluster, user) = (&text["clusters"][0]["cluster"], &text["users"][0]["user"]);
    let credentials =
        Credentials::from_pem(&pem(&user["client-certificate-data"]), &pem(&user["client-key-data"])).unwrap();
    let roots = Roots::from_pem(&pem(&cluster["certificate-authority-data"])).unwrap();
    (cluster["server"].as_str().unwrap().to_owned(), roots, credentials)
}

type Answer = Result<(StatusCode, Value), Box<dyn std::error::Error + Send + Sync>>;

type Connected = (
    hyper::client::conn::http1::SendRequest<Full<Bytes>>,
    hyper::client::conn::http1::Connection<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>, Full<Bytes>>,
);

async fn connect(
    address: SocketAddr,
    tls: rustls::ClientConfig,
) -> Result<Connected, Box<dyn std::error::Error + Send + Sync>> {
    let socket = TcpStream::connect(address).await?;
    // As an apiserver has it.
    socket.set_nodelay(true)?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let io = tokio_rustls::TlsConnector::from(Arc::new(tls)).connect(name, socket).await?;
    Ok(hyper::client::conn::http1::handshake(TokioIo::new(io)).await?)
}

async fn ask(address: SocketAddr, tls: rustls::ClientConfig, path: &str, body: impl Into<Bytes>) -> Answer {
    let (mut send, connection) = connect(address, tls).await?;
    let request = Request::post(path).body(Full::new(body.into()))?;
    let mut asking = std::pin::pin!(async {
        let answer = send.send_request(request).await?;
        let status = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        Ok((status, serde_json::from_slice(&body)?))
    });
    tokio::select! {
        biased;
        answer = asking.as_mut() => answer,
        // One that ends behind its answer has the answer.
        ended = connection => match ended {
            Ok(()) => asking.await,
            Err(err) => Err(err.into()),
        },
    }
}

fn client(roots: &Roots, own: &Credentials) -> rustls::ClientConfig {
    certs::tls::client_https_with(roots, own, &[b"http/1.1"]).unwrap()
}

fn token_review(version: &str, token: &str) -> String {
    json!({"apiVersion": format!("authentication.k8s.io/{version}"), "kind": "TokenReview", "spec": {"token": token}})
        .to_string()
}

fn access_review(attributes: &Value) -> Value {
    let mut spec = json!({"user": "jane", "uid": "jane", "groups": ["ops", "system:authenticated"],
        "extra": {"towline.io/issuer": ["test"]}});
    spec.as_object_mut().unwrap().extend(attributes.as_object().unwrap().clone());
    json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec})
}

fn pods(namespace: &str) -> Value {
    json!({"resourceAttributes": {"verb": "list", "version": "v1", "resource": "pods", "namespace": namespace}})
}

fn question(attributes: &Value) -> Question {
    Question::read("v1", access_review(attributes)["spec"].clone()).unwrap()
}

fn digest(question: &Question) -> cache::Digest {
    let mut digest = [0; 32];
    digest.copy_from_slice(
        aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, format!("{question:?}").as_bytes()).as_ref(),
    );
    digest
}

#[tokio::test]
async fn z1_only_the_apiservers_certificate_gets_through_the_handshake() {
    let (site, dir) = (site(), tempfile::tempdir().unwrap());
    let served = serve(&site, dir.path()).await;
    let (server, roots, own) = as_apiserver(dir.path(), keeper::TOKENS_FILE);
    assert_eq!(server, "https://127.0.0.1:8444/tokenreviews");
    assert_eq!(as_apiserver(dir.path(), keeper::ACCESS_FILE).0, "https://127.0.0.1:8444/subjectaccessreviews");
    let body = || token_review("v1", "x");
    let answer = ask(served.address, client(&roots, &own), answer::TOKENS, body()).await.unwrap();
    assert_eq!((answer.0, &answer.1["status"]), (StatusCode::OK, &json!({"authenticated": false})));
    let without = certs::tls::client_https(&roots).unwrap();
    assert!(ask(served.address, without, answer::TOKENS, body()).await.is_err(), "without a certificate");
    let other = Authority::create("towline-guard", Validity::days(1)).unwrap();
    let other = other.issue_client(keeper::CLIENT, Validity::days(1)).unwrap();
    let other = client(&roots, other.credentials());
    assert!(ask(served.address, other, answer::TOKENS, body()).await.is_err(), "of another authority");
    let authority = Authority::load_files(&dir.path().join("ca.crt"), &dir.path().join("ca.key")).unwrap();
    for (what, issued) in [
        ("of another name", authority.issue_client("somebody", Validity::days(1)).unwrap()),
        ("of a server", authority.issue_server(&["127.0.0.1"], Validity::days(1)).unwrap()),
    ] {
        let other = client(&roots, issued.credentials());
        assert!(ask(served.address, other, answer::TOKENS, body()).await.is_err(), "{what}");
    }
}

#[tokio::test]
async fn z1_reviews_are_answered_in_their_version_and_others_are_400() {
    let (site, dir) = (site(), tempfile::tempdir().unwrap());
    site.tell(1, true, "/namespaces/dev", Duration::from_secs(3600)).await;
    let served = serve(&site, dir.path()).await;
    let (_, roots, own) = as_apiserver(dir.path(), keeper::ACCESS_FILE);
    let ask = |path: &'static str, body: String| ask(served.address, client(&roots, &own), path, body);
    for version in ["v1", "v1beta1"] {
        let (status, answer) = ask(answer::TOKENS, token_review(version, &site.token(&["ops"]))).await.unwrap();
        assert_eq!(
            (status, &answer["apiVersion"]),
            (StatusCode::OK, &json!(format!("authentication.k8s.io/{version}")))
        );
        assert_eq!(answer["status"]["user"]["username"], "jane");
        assert_eq!(answer["status"]["user"]["groups"], json!(["ops"]));
    }
    let (_, answer) = ask(answer::ACCESS, access_review(&pods("dev")).to_string()).await.unwrap();
    assert_eq!(answer["status"], json!({"allowed": true, "reason": "Access allowed by Azure RBAC"}));
    let (_, answer) = ask(answer::ACCESS, access_review(&pods("prod")).to_string()).await.unwrap();
    assert_eq!((&answer["status"]["allowed"], &answer["status"]["denied"]), (&json!(false), &json!(true)));
    let deep = format!("{{\"a\": {}", "[".repeat(100_000));
    let (status, _) =
        ask(answer::ACCESS, " ".repeat(10 << 20)).await.unwrap_or((StatusCode::PAYLOAD_TOO_LARGE, Value::Null));
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "10 MB: refused, or cut off while they are still sent");
    for (path, body) in [
        (answer::TOKENS, access_review(&pods("dev")).to_string()),
        (answer::ACCESS, token_review("v1", "x")),
        (answer::TOKENS, token_review("v2", "x")),
        (answer::ACCESS, access_review(&json!({})).to_string()),
        (answer::ACCESS, deep),
        (answer::ACCESS, "null".to_owned()),
        (answer::TOKENS, String::new()),
    ] {
        let (status, answer) = ask(path, body).await.unwrap();
        assert_eq!((status, &answer["kind"]), (StatusCode::BAD_REQUEST, &json!("Status")), "{answer}");
    }
    assert_eq!(ask("/other", String::new()).await.unwrap().0, StatusCode::NOT_FOUND);
}

/// A body of a number of frames of 16 KiB, which counts those that were read; with none left it ends, or never does.
struct Frames {
    left: usize,
    read: Arc<AtomicUsize>,
    ends: bool,
}

impl http_body::Body for Frames {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        if self.left == 0 {
            return if self.ends { Poll::Ready(None) } else { Poll::Pending };
        }
        self.left -= 1;
        self.read.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from(vec![b' '; 16 * 1024])))))
    }
}

#[tokio::test]
async fn z1_a_large_review_is_refused_and_read_no_further() {
    let desk = site().desk();
    for (path, most) in [(answer::TOKENS, answer::TOKEN_BODY_BYTES), (answer::ACCESS, answer::BODY_BYTES)] {
        let read = Arc::new(AtomicUsize::new(0));
        let large = Frames { left: 10_000, read: read.clone(), ends: true };
        let answer = desk.answer(Request::post(path).body(large).unwrap()).await;
        assert_eq!(answer.status(), StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(read.load(Ordering::Relaxed), most / (16 * 1024) + 1, "{path}");
    }
    let get = Request::get(answer::TOKENS).body(Full::<Bytes>::default()).unwrap();
    assert_eq!(desk.answer(get).await.status(), StatusCode::METHOD_NOT_ALLOWED);
    let healthy = Request::get("/readyz").body(Full::<Bytes>::default()).unwrap();
    assert_eq!(desk.answer(healthy).await.status(), StatusCode::OK);
}

/// Everybody can have an apiserver ask about tokens, as many as they like.
#[tokio::test]
async fn z1_tokens_that_hang_keep_no_review_of_rights_waiting() {
    let site = site();
    site.tell(1, true, "", Duration::from_secs(3600)).await;
    let desk = Arc::new(site.desk());
    let tasks = TaskGroup::new("test");
    let read = Arc::new(AtomicUsize::new(0));
    for _ in 0..answer::TOKENS_AT_ONCE {
        let (desk, body) = (desk.clone(), Frames { left: 1, read: read.clone(), ends: false });
        let request = Request::post(answer::TOKENS).body(body).unwrap();
        tasks.spawn("token", async move { drop(desk.answer(request).await) });
    }
    while read.load(Ordering::Relaxed) < answer::TOKENS_AT_ONCE {
        tokio::task::yield_now().await;
    }
    let ask = |path: &str, body: String| {
        desk.answer(Request::post(path).body(Full::new(Bytes::from(body))).unwrap()).now_or_never().expect("no wait")
    };
    let answer = ask(answer::ACCESS, access_review(&pods("dev")).to_string());
    let body = answer.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["status"]["allowed"], true);
    let answer = ask(answer::TOKENS, token_review("v1", "x"));
    assert_eq!(answer.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(answer.headers()["retry-after"], "1", "an apiserver asks again only if it is told to");
}

/// Anybody who reaches the apiserver can send tokens with unknown keys, which wait while the issuer does not answer.
#[tokio::test(start_paused = true)]
async fn z1_tokens_with_a_known_key_wait_for_none_that_ask_the_issuer() {
    let site = site();
    let fetch = MemoryFetch::new();
    fetch.publish(&site.issuer);
    let dynamic: Arc<dyn Fetch> = fetch.clone();
    let issuer = Issuer::try_from(RawIssuer::new("test", "https://issuer.test")).unwrap();
    let verifier = Verifier::with_fetch(vec![issuer], &dynamic);
    let authenticator = Arc::new(Authenticator::new(verifier, CLUSTER.parse().unwrap()));
    let tokens = Tokens { authenticator, names: Site::names() };
    let desk = Arc::new(Desk::new(tokens, site.access(), Arc::new(SystemClock)));
    let asked =
        |token: &str| Request::post(answer::TOKENS).body(Full::new(Bytes::from(token_review("v1", token)))).unwrap();
    assert_eq!(desk.answer(asked(&site.token(&["a"]))).await.status(), StatusCode::OK, "its keys are read");
    tokio::time::advance(REFETCH).await;
    let _holds = fetch.hold();
    let made_up = |number: usize| {
        let unknown = TestIssuer { keys: vec![site.issuer.key().named(&format!("x{number}"))], ..site.issuer.clone() };
        unknown.token("jane", &[], &CLUSTER.parse::<types::ids::ClusterId>().unwrap().audience(), site.now)
    };
    let tasks = TaskGroup::new("test");
    for number in 0..answer::TOKENS_AT_ONCE {
        let (desk, request) = (desk.clone(), asked(&made_up(number)));
        tasks.spawn("token", async move { drop(desk.answer(request).await) });
    }
    for _ in 0..2 * answer::TOKENS_AT_ONCE {
        tokio::task::yield_now().await;
    }
    let now = |token: &str| desk.answer(asked(token)).now_or_never().expect("no wait").status();
    assert_eq!(now(&made_up(answer::TOKENS_AT_ONCE)), StatusCode::TOO_MANY_REQUESTS);
    for number in 0..10 {
        assert_eq!(now(&site.token(&[&format!("g{number}")])), StatusCode::OK, "its key is known");
    }
}

/// An apiserver does not ask again where a connection ends without an answer, or is refused.
#[tokio::test]
async fn z1_a_guard_that_drains_answers_what_still_comes() {
    let (site, dir) = (site(), tempfile::tempdir().unwrap());
    let served = serve(&site, dir.path()).await;
    let (_, roots, own) = as_apiserver(dir.path(), keeper::TOKENS_FILE);
    let review = || Request::post(answer::TOKENS).body(Full::new(Bytes::from(token_review("v1", "x")))).unwrap();
    let (mut send, connection) = connect(served.address, client(&roots, &own)).await.unwrap();
    let tasks = TaskGroup::new("test");
    let connection = tasks.spawn_task("connection", connection);
    let before = send.send_request(review()).await.unwrap();
    assert_eq!((before.status(), before.headers().get("connection")), (StatusCode::OK, None));
    drop(before.into_body().collect().await.unwrap());
    served.shutdown.drain();
    let last = send.send_request(review()).await.unwrap();
    assert_eq!((last.status(), last.headers()["connection"].as_bytes()), (StatusCode::OK, b"close".as_slice()));
    drop(last.into_body().collect().await.unwrap());
    let _ = connection.await;
    let late = ask(served.address, client(&roots, &own), answer::TOKENS, token_review("v1", "x")).await.unwrap();
    assert_eq!(late.0, StatusCode::OK, "a new connection");
}

#[tokio::test]
async fn z1_a_guard_that_has_drained_ends_its_connections_and_refuses_others() {
    let (site, dir) = (site(), tempfile::tempdir().unwrap());
    let keeper = keeper(dir.path(), Arc::new(SystemClock));
    keeper.look().await.unwrap();
    let mut guard = Guard::new(listen("127.0.0.1:0".parse().unwrap()).unwrap(), keeper, site.desk());
    guard.lingers = Duration::ZERO;
    let (address, shutdown) = (guard.address().unwrap(), Shutdown::new());
    let until = shutdown.clone();
    let tasks = TaskGroup::new("test");
    let running = tasks.spawn_task("guard", async move {
        guard.run(until).await;
        guard
    });
    let (_, roots, own) = as_apiserver(dir.path(), keeper::TOKENS_FILE);
    let (mut send, connection) = connect(address, client(&roots, &own)).await.unwrap();
    let connection = tasks.spawn_task("connection", connection);
    let review = Request::post(answer::TOKENS).body(Full::new(Bytes::from(token_review("v1", "x")))).unwrap();
    assert_eq!(send.send_request(review).await.unwrap().status(), StatusCode::OK);
    shutdown.drain();
    let _guard = running.await.unwrap();
    let _ = connection.await;
    assert!(TcpStream::connect(address).await.is_err(), "nobody waits for an answer that does not come");
}

/// The user that a token stands for is the same at guard as through the tunnel.
#[tokio::test]
async fn z1_a_users_token_makes_the_user_of_the_tunnel() {
    let site = site();
    let tokens = Tokens { authenticator: site.authenticator.clone(), names: Site::names() };
    let token = site.token(&["ops", "dev"]);
    let (status, outcome) = tokens.review(token.clone().into()).await;
    let credential = Credential { scheme: Scheme::Bearer, token: token.into() };
    let Ok(Authenticated::User(identity)) = site.authenticator.authenticate(Some(credential)).await else {
        panic!("the token is good");
    };
    let subject = Subject::of(&identity, &Site::names()).unwrap();
    assert!(subject.extra().is_empty(), "through the tunnel nobody has it");
    let extra = json!({"towline.io/issuer": ["test"]});
    let user = json!({"username": subject.user(), "uid": subject.uid(), "groups": subject.groups(), "extra": extra});
    assert_eq!((status, outcome), (json!({"authenticated": true, "user": user}), "authenticated"));
}

/// kubectl sends a proof of possession as a bearer token, and the apiserver asks about the whole of it.
#[tokio::test]
async fn z1_a_proof_of_possession_in_a_review_makes_the_user_of_the_token_in_it() {
    let site = site();
    let desk = site.desk();
    let holder = TestKey::rs256("holder", 1);
    let mut claims = site.issuer.claims("jane", &site.authenticator.cluster().audience(), site.now);
    claims["cnf"] = json!({"kid": holder.thumbprint()});
    let bound = site.issuer.mint(&claims);
    let host = CLUSTER.to_ascii_lowercase();
    let review = async |token: &str| {
        let asked = Request::post(answer::TOKENS).body(Full::new(Bytes::from(token_review("v1", token)))).unwrap();
        let body = desk.answer(asked).await.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice::<Value>(&body).unwrap()["status"].clone()
    };
    let proof = review(&holder.pop(&bound, &host, unix_seconds(site.now))).await;
    assert_eq!((&proof["authenticated"], &proof["user"]["username"]), (&json!(true), &json!("jane")), "{proof}");
    let thief = TestKey::rs256("thief", 2);
    for (what, token) in [
        ("the token without its proof", bound.clone()),
        ("a proof by another key", thief.pop(&bound, &host, unix_seconds(site.now))),
        ("a proof for another cluster", holder.pop(&bound, &format!("{host}x"), unix_seconds(site.now))),
        ("an old proof", holder.pop(&bound, &host, unix_seconds(site.now) - 3600)),
    ] {
        let refused = review(&token).await;
        assert!(refused["authenticated"] == false && refused["error"].is_string(), "{what}: {refused}");
    }
}

#[tokio::test]
async fn z1_refused_tokens_say_why_and_unknown_ones_nothing() {
    let site = site();
    let tokens = Tokens { authenticator: site.authenticator.clone(), names: Site::names() };
    let foreign = TestIssuer::new("https://other.test");
    let unknown = foreign.token("jane", &[], &site.authenticator.cluster().audience(), site.now);
    for token in [unknown, "opaque".to_owned(), String::new()] {
        assert_eq!(tokens.review(token.into()).await, (json!({"authenticated": false}), "unknown_issuer"));
    }
    let elsewhere = site.issuer.token("jane", &[], "towline:cluster:/other", site.now);
    let late = site.issuer.token(
        "jane",
        &[],
        &site.authenticator.cluster().audience(),
        site.now - Duration::from_secs(86_400),
    );
    let reserved = site.issuer.token("system:admin", &[], &site.authenticator.cluster().audience(), site.now);
    for (token, why) in [(elsewhere, "audience"), (late, "expired"), (reserved, "reserved")] {
        let (status, outcome) = tokens.review(token.clone().into()).await;
        let error = status["error"].as_str().unwrap();
        assert_eq!((&status["authenticated"], outcome), (&json!(false), "refused"));
        assert!(error.contains(why) && !error.contains(token.split('.').nth(1).unwrap()), "{error}");
        assert!(status.get("user").is_none());
    }
}

#[tokio::test]
async fn z7_others_than_users_of_the_issuers_are_no_opinion() {
    let site = site();
    site.tell(1, true, "", Duration::from_secs(3600)).await;
    let access = site.access();
    let decide = |change: &Value| {
        let mut attributes = pods("dev");
        attributes.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let question = question(&attributes);
        access.decide(&question, digest(&question), site.now)
    };
    assert_eq!(decide(&json!({})), Decision::Allowed);
    for (what, change) in [
        ("a service account", json!({"user": "system:serviceaccount:dev:jane"})),
        ("in other case", json!({"user": "System:Kube-Scheduler"})),
        ("nobody", json!({"user": ""})),
        ("in the list of users to skip", json!({"user": "break-glass"})),
        ("a client certificate of the cluster's own", json!({"uid": "", "extra": {}})),
        ("one with somebody's uid in it", json!({"extra": {}})),
        ("one of another issuer", json!({"extra": {"towline.io/issuer": ["other"]}})),
        ("one of two issuers", json!({"extra": {"towline.io/issuer": ["test", "test"]}})),
    ] {
        assert_eq!(decide(&change), Decision::NoOpinion, "{what}");
    }
    assert_eq!(decide(&json!({"uid": "joe"})), Decision::Denied);
    assert_eq!(
        Decision::NoOpinion.status(),
        json!({"allowed": false, "reason": "Azure does not have opinion for this user."})
    );
}

#[tokio::test]
async fn z7_a_user_is_of_the_issuer_whose_prefix_the_name_has() {
    let site = site();
    site.tell(1, true, "", Duration::from_secs(3600)).await;
    let owner = |issuer: &str, prefix: &str, object_id| Owner {
        issuer: issuer.to_owned(),
        prefix: prefix.to_owned(),
        object_id,
    };
    let owners = vec![owner("corp", "corp:", ObjectId::Extra("oid".to_owned())), owner("test", "", ObjectId::Uid)];
    let access = Access::new(site.authorizer.clone(), owners, Site::names(), &[], DecisionCache::default());
    let corp = |oid: Value| json!({"user": "corp:jane", "extra": {"towline.io/issuer": ["corp"], "oid": oid}});
    let decide = |change: Value| {
        let mut attributes = pods("dev");
        attributes.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        let question = question(&attributes);
        access.decide(&question, digest(&question), site.now)
    };
    assert_eq!(decide(json!({})), Decision::Allowed);
    // The other issuer's jane is another one.
    assert_eq!(decide(corp(json!(["jane"]))), Decision::Denied);
    assert_eq!(decide(corp(json!([]))), Decision::NoOpinion, "the uid is not where that issuer has ids");
    assert_eq!(decide(corp(json!(["jane", "joe"]))), Decision::NoOpinion);
    assert_eq!(decide(json!({"user": "jane", "uid": "corp:jane"})), Decision::NoOpinion, "an id of the other issuer");
}

/// An apiserver asks nobody about `system:masters`, and the agents' own groups carry verbs for everything: neither must
/// be had by who goes straight to the apiserver.
#[tokio::test]
async fn z1_who_may_impersonate_asks_for_no_name_that_the_tunnel_refuses() {
    let site = site();
    let all = ("Azure Arc Kubernetes Cluster Admin", "", Window::default());
    site.tell_of(1, true, all, Duration::from_secs(3600)).await;
    let access = site.access();
    let decide = |verb: &str, group: &str, resource: &str, namespace: &str, name: &str| {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let question = question(&json!({"resourceAttributes": {
            "verb": verb, "group": group, "resource": resource, "subresource": subresource, "namespace": namespace,
            "name": name,
        }}));
        access.decide(&question, digest(&question), site.now)
    };
    const AUTHENTICATION: &str = "authentication.k8s.io";
    for (group, resource, namespace, name, allowed) in [
        ("", "users", "", "joe", true),
        ("", "users", "", "", false),
        ("", "users", "", "system:admin", false),
        ("", "users", "", "System:kube-controller-manager", false),
        ("", "users", "", "system:node:one", false),
        ("", "users", "", "system:serviceaccount:kube-system:x", false),
        ("", "users", "", "towline.io:probe", false),
        ("", "groups", "", "ops", true),
        ("", "groups", "", "system:authenticated", true),
        ("", "groups", "", "system:serviceaccounts:dev", true),
        ("", "groups", "", "system:masters", false),
        ("", "groups", "", "SYSTEM:masters", false),
        ("", "groups", "", " system:masters", false),
        ("", "groups", "", "system:nodes", false),
        ("", "groups", "", "system:serviceaccounts:kube-system", false),
        ("", "groups", "", "towline.io:rbac:escalate", false),
        ("", "groups", "", "", false),
        ("", "serviceaccounts", "dev", "x", true),
        ("", "serviceaccounts", "kube-system", "x", false),
        ("", "serviceaccounts", "dev", "", false),
        ("", "serviceaccounts", "", "x", false),
        (AUTHENTICATION, "uids", "", "1", true),
        (AUTHENTICATION, "uids", "", "", false),
        (AUTHENTICATION, "userextras/scopes", "", "view", true),
        (AUTHENTICATION, "userextras/towline.io/original-user", "", "joe", false),
        (AUTHENTICATION, "userextras/towline.io/issuer", "", "test", false),
        (AUTHENTICATION, "userextras/Towline.io/Issuer", "", "test", false),
        (AUTHENTICATION, "users", "", "joe", false),
        ("", "nodes", "", "one", false),
    ] {
        let expected = if allowed { Decision::Allowed } else { Decision::Denied };
        assert_eq!(decide("impersonate", group, resource, namespace, name), expected, "{resource} {namespace}/{name}");
    }
    for (verb, group, resource) in [
        ("impersonate:user-info", AUTHENTICATION, "groups"),
        ("impersonate:arbitrary-node", AUTHENTICATION, "nodes"),
        ("impersonate-on:user-info:list", "", "pods"),
    ] {
        assert_eq!(decide(verb, group, resource, "", "one"), Decision::Denied, "{verb}");
    }
    assert_eq!(decide("delete", "", "users", "", "system:masters"), Decision::Allowed, "no impersonation");
}

#[tokio::test]
async fn z7_discovery_is_allowed_and_other_paths_are_decided() {
    let site = site();
    site.tell(1, true, "", Duration::from_secs(3600)).await;
    let access = site.access();
    let decide = |verb: &str, path: &str| {
        let question = question(&json!({"nonResourceAttributes": {"verb": verb, "path": path}}));
        access.decide(&question, digest(&question), site.now)
    };
    for path in ["/api", "/apis/apps", "/openapi/v3", "/version"] {
        assert_eq!(decide("get", path), Decision::Allowed, "{path}");
    }
    for (verb, path) in [("get", "/metrics"), ("post", "/api"), ("get", "/api/../metrics")] {
        assert_eq!(decide(verb, path), Decision::Denied, "{verb} {path}");
    }
}

#[tokio::test]
async fn z8_decisions_are_kept_for_three_minutes_or_to_the_next_snapshot() {
    let site = site();
    site.tell(1, true, "/namespaces/dev", Duration::from_secs(3600)).await;
    let access = site.access();
    let (asked, other) = (question(&pods("dev")), question(&pods("prod")));
    let key = digest(&asked);
    assert_eq!(access.decide(&asked, key, site.now), Decision::Allowed);
    // Asked under the digest of the first one, the second one shows what is kept.
    let late = site.now + Duration::from_secs(180);
    assert_eq!(access.decide(&other, key, late - Duration::from_secs(1)), Decision::Allowed);
    assert_eq!(access.decide(&other, key, late), Decision::Denied);
    assert_eq!(
        access.decide(&asked, key, late + Duration::from_secs(1)),
        Decision::Denied,
        "what is denied is kept too"
    );
    site.tell(2, true, "", Duration::from_secs(3600)).await;
    assert_eq!(access.decide(&other, key, late), Decision::Allowed, "another snapshot, another decision");
}

#[tokio::test]
async fn z8_allowed_and_denied_decisions_are_cached_for_as_long_as_is_set() {
    let site = site();
    site.tell(1, true, "/namespaces/dev", Duration::from_secs(3600)).await;
    let (may, may_not) = (question(&pods("dev")), question(&pods("prod")));
    let later = |seconds| site.now + Duration::from_secs(seconds);
    let access = site.access_that_caches(DecisionCache {
        allowed_for: Duration::from_secs(60),
        denied_for: Duration::from_secs(5),
        ..DecisionCache::default()
    });
    // Asked under the digest of the one, the other shows what is cached.
    for (first, second, seconds) in [(&may, &may_not, 60), (&may_not, &may, 5)] {
        let key = digest(first);
        let decided = access.decide(first, key, site.now);
        assert_eq!(access.decide(second, key, later(seconds - 1)), decided, "{seconds}");
        assert_ne!(access.decide(second, key, later(seconds)), decided, "{seconds}");
    }
    let access = site.access_that_caches(DecisionCache { denied_for: Duration::ZERO, ..DecisionCache::default() });
    let key = digest(&may_not);
    assert_eq!(access.decide(&may_not, key, site.now), Decision::Denied);
    assert_eq!(access.decide(&may, key, site.now), Decision::Allowed, "what is denied is not cached");
    assert_eq!(access.decide(&may_not, key, site.now), Decision::Allowed, "what is allowed is");
}

/// However long decisions may be cached, none outlives the statement that signs the snapshot it was made by.
#[tokio::test]
async fn z8_no_decision_is_cached_beyond_the_end_of_its_snapshot() {
    let site = site();
    site.tell(1, true, "/namespaces/dev", Duration::from_secs(60)).await;
    let hour = Duration::from_secs(3600);
    let bounds = DecisionCache { allowed_for: hour, denied_for: hour, ..DecisionCache::default() };
    let access = site.access_that_caches(bounds);
    let asked = question(&pods("dev"));
    let decide = |seconds| access.decide(&asked, digest(&asked), site.now + Duration::from_secs(seconds));
    assert_eq!((decide(0), decide(59)), (Decision::Allowed, Decision::Allowed));
    assert_eq!(decide(60), Decision::Failed);
}

#[tokio::test]
async fn z8_cache_is_bounded_and_nothing_is_cached_with_no_entries() {
    let site = site();
    site.tell(1, true, "/namespaces/dev", Duration::from_secs(3600)).await;
    let (may, may_not) = (question(&pods("dev")), question(&pods("prod")));
    let numbered = |number: u32| {
        let mut digest = [0; 32];
        digest[..4].copy_from_slice(&number.to_be_bytes());
        digest
    };
    // How many of 10,000 allowed decisions are cached: they are found where the question under their digest is another.
    // What is denied is not cached, so that looking displaces nothing.
    let cached = |entries| {
        let bounds = DecisionCache { entries, denied_for: Duration::ZERO, ..DecisionCache::default() };
        let access = site.access_that_caches(bounds);
        for number in 0..10_000 {
            assert_eq!(access.decide(&may, numbered(number), site.now), Decision::Allowed);
        }
        let answered = |number: &u32| access.decide(&may_not, numbered(*number), site.now) == Decision::Allowed;
        (0..10_000).filter(answered).count()
    };
    assert_eq!((cached(0), cached(65_536)), (0, 10_000));
    let some = cached(100);
    assert!((1..=200).contains(&some), "{some}");
}

/// Of 1,000 questions of ten kinds ten are decided, and the others are answered by what was decided.
#[tokio::test]
async fn z8_a_thousand_reviews_are_decided_once_for_each_question() {
    let site = site();
    site.tell(1, true, "/namespaces/dev-1", Duration::from_secs(3600)).await;
    let desk = site.desk();
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    ::metrics::with_local_recorder(&recorder, || {
        for number in 0..1000 {
            let review = access_review(&pods(&format!("dev-{}", number % 10))).to_string();
            let request = Request::post(answer::ACCESS).body(Full::new(Bytes::from(review))).unwrap();
            let answer = tokio::task::unconstrained(desk.answer(request)).now_or_never().expect("no wait");
            let body = answer.into_body().collect().now_or_never().unwrap().unwrap().to_bytes();
            let review: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(review["status"]["allowed"], number % 10 == 1, "{number}");
        }
    });
    let told = recorder.handle().render();
    for line in [
        "guard_cache_total{result=\"hit\"} 990",
        "guard_cache_total{result=\"miss\"} 10",
        "guard_reviews_total{kind=\"access\",outcome=\"allowed\"} 100",
    ] {
        assert!(told.contains(line), "{line}: {told}");
    }
}

/// By hand: `--ignored --nocapture measures_reviews`. Eight connections of an apiserver ask over mutual TLS what was
/// decided before: a thousand questions a second together, and then each the next one as soon as it has an answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
#[ignore = "a measurement"]
#[allow(clippy::print_stdout, reason = "it is what is wanted")]
async fn z8_measures_reviews_from_the_cache() {
    let (site, dir) = (site(), tempfile::tempdir().unwrap());
    site.tell(1, true, "", Duration::from_secs(3600)).await;
    let served = serve(&site, dir.path()).await;
    let (_, roots, own) = as_apiserver(dir.path(), keeper::ACCESS_FILE);
    for every in [Some(Duration::from_millis(1)), None] {
        let (address, client) = (served.address, client(&roots, &own));
        let (mut times, took) =
            tokio::task::spawn_blocking(move || ask_from_another_thread(address, &client, every)).await.unwrap();
        times.sort_unstable();
        let rate = times.len() as f64 / took.as_secs_f64();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_micros();
        println!("{rate:.0} reviews a second; p50 {} us, p99 {} us, longest {} us", at(0.5), at(0.99), at(1.0));
    }
}

/// Asks 20,000 questions. Returns the time of each answer, and the time of all. The client has its own thread, as an
/// apiserver has its own process. It does not sleep between questions, because a late timer would count as guard's time.
fn ask_from_another_thread(
    address: SocketAddr,
    client: &rustls::ClientConfig,
    every: Option<Duration>,
) -> (Vec<Duration>, Duration) {
    const CONNECTIONS: u32 = 8;
    const EACH: u32 = 2500;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let tasks = TaskGroup::new("test");
        let mut asking = Vec::new();
        let begun = std::time::Instant::now();
        for first in 0..CONNECTIONS {
            let (mut send, connection) = connect(address, client.clone()).await.unwrap();
            tasks.spawn("connection", async move { drop(connection.await) });
            asking.push(tasks.spawn_task("asking", async move {
                let mut own = Vec::new();
                // Connections take turns, and none asks later because its answer before was late.
                let start = every.map(|every| (std::time::Instant::now() + every * (first + 1), every * CONNECTIONS));
                for number in 0..EACH {
                    let review = access_review(&pods(&format!("dev-{}", number % 100))).to_string();
                    let request = Request::post(answer::ACCESS).body(Full::new(Bytes::from(review))).unwrap();
                    let mut asked = std::time::Instant::now();
                    if let Some((start, pause)) = start {
                        let due = start + pause * number;
                        while std::time::Instant::now() < due {
                            tokio::task::yield_now().await;
                        }
                        asked = due;
                    }
                    let answer = send.send_request(request).await.unwrap();
                    let _ = answer.into_body().collect().await.unwrap();
                    own.push(asked.elapsed());
                }
                own
            }));
        }
        let mut times = Vec::new();
        for one in asking {
            times.extend(one.await.unwrap());
        }
        (times, begun.elapsed())
    })
}

#[tokio::test]
async fn z11_no_decision_is_kept_beyond_the_end_of_an_assignment() {
    let site = site();
    let at = |seconds: u64| site.now + Duration::from_secs(seconds);
    let from = i64::try_from(unix_seconds(site.now)).unwrap();
    let window = Window { starts: Some(from + 10), ends: Some(from + 60) };
    site.tell_of(1, true, (VIEWER, "", window), Duration::from_secs(3600)).await;
    let (access, asked) = (site.access(), question(&pods("dev")));
    let decide = |now: SystemTime| access.decide(&asked, digest(&asked), now);
    assert_eq!(decide(at(0)), Decision::Denied);
    assert_eq!(decide(at(9)), Decision::Denied);
    assert_eq!(decide(at(10)), Decision::Allowed);
    assert_eq!(decide(at(59)), Decision::Allowed);
    assert_eq!(decide(at(60)), Decision::Denied);
}

#[tokio::test]
async fn z8_without_a_snapshot_users_are_denied_and_others_are_not() {
    let site = site();
    let access = site.access();
    let asked = question(&pods("dev"));
    let own = question(
        &json!({"user": "kubernetes-admin", "uid": "", "nonResourceAttributes": {"verb": "get", "path": "/metrics"}}),
    );
    let both = |now: SystemTime| [&asked, &own].map(|question| access.decide(question, digest(question), now));
    assert_eq!(both(site.now), [Decision::Failed, Decision::NoOpinion], "the gateway was never there");
    let life = Duration::from_secs(7 * 86_400);
    site.tell(1, true, "/namespaces/dev", life).await;
    let week = site.now + life;
    assert_eq!(both(site.now), [Decision::Allowed, Decision::NoOpinion], "the error was not kept");
    assert_eq!(both(week - Duration::from_secs(1)), [Decision::Allowed, Decision::NoOpinion], "gone for a week");
    assert_eq!(both(week), [Decision::Failed, Decision::NoOpinion], "its statement has expired");
    let status = Decision::Failed.status();
    assert_eq!(status["reason"], "Access denied due to Azure RBAC check failure. Please retry later.");
    assert!(status["denied"] == true && status["evaluationError"].is_string());
    site.tell(2, false, "", life).await;
    assert_eq!(both(site.now), [Decision::NoOpinion; 2], "roles and assignments are switched off");
}

#[tokio::test(start_paused = true)]
async fn z10_certificates_are_kept_found_again_and_renewed() {
    let dir = tempfile::tempdir().unwrap();
    let clock: SharedClock = Arc::new(TokioClock::new(SystemTime::now()));
    let first = keeper(dir.path(), clock.clone());
    assert!(first.published.acceptor().is_none(), "nothing is served without a certificate");
    assert_eq!(first.look().await.unwrap(), Vec::<String>::new());
    let file = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    let (server, manifest) = (file("tls.crt"), file(keeper::TOKENS_FILE));
    let second = keeper(dir.path(), clock.clone());
    second.look().await.unwrap();
    assert_eq!((file("tls.crt"), file(keeper::TOKENS_FILE)), (server.clone(), manifest.clone()));
    tokio::time::advance(Duration::from_secs(46 * 86_400)).await;
    second.look().await.unwrap();
    assert_ne!(file("tls.crt"), server, "renewed");
    assert_eq!(file(keeper::TOKENS_FILE), manifest, "the apiserver's files stay");
    use std::os::unix::fs::PermissionsExt as _;
    for name in ["ca.key", "client.key", "tls.key", keeper::TOKENS_FILE, keeper::ACCESS_FILE] {
        let mode = std::fs::metadata(dir.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn z10_a_certificate_that_ends_within_30_days_is_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let clock: SharedClock = Arc::new(TokioClock::new(SystemTime::now()));
    let keeper = keeper(dir.path(), clock);
    keeper.look().await.unwrap();
    let authority = Authority::create("any", Validity::days(100)).unwrap();
    let present = |days: u32| {
        let own = authority.issue_client(keeper::CLIENT, Validity::days(days)).unwrap();
        keeper.published.presented(&own.credentials().chain()[0]);
    };
    present(31);
    assert_eq!(keeper.look().await.unwrap(), Vec::<String>::new());
    present(29);
    present(40);
    let warnings = keeper.look().await.unwrap();
    assert!(warnings.len() == 1 && warnings[0].contains("towline-guard-manifests"), "{warnings:?}");
    tokio::time::advance(Duration::from_secs(86_400)).await;
    assert_eq!(keeper.look().await.unwrap(), warnings, "an apiserver that keeps its connections shows none for a day");
    present(40);
    tokio::time::advance(Duration::from_secs(2 * 3600)).await;
    assert_eq!(keeper.look().await.unwrap(), Vec::<String>::new(), "nobody has shown it for more than a day");
}

/// What is wrong is an Event once a day for as long as it is, and what cannot be told so is told otherwise.
#[tokio::test(start_paused = true)]
async fn z10_warnings_are_events_of_the_cluster_once_a_day() {
    let made: Arc<Mutex<Vec<Value>>> = Arc::default();
    let events = made.clone();
    let refuses = Arc::new(Mutex::new(true));
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let (events, refuses) = (events.clone(), refuses.clone());
        async move {
            assert_eq!(
                (request.method().as_str(), request.uri().path()),
                ("POST", "/api/v1/namespaces/towline/events")
            );
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let mut events = events.lock().unwrap();
            let event: Value = serde_json::from_slice(&body).unwrap();
            let is_known = events.iter().any(|known| known["metadata"]["name"] == event["metadata"]["name"]);
            // The first one is refused, and each name is there once.
            let status = match *refuses.lock().unwrap() {
                true => StatusCode::FORBIDDEN,
                false if is_known => StatusCode::CONFLICT,
                false => StatusCode::CREATED,
            };
            *refuses.lock().unwrap() = false;
            let answer = match status {
                StatusCode::CREATED => {
                    events.push(event);
                    body
                }
                status => {
                    let why =
                        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status.as_u16()});
                    why.to_string().into_bytes().into()
                }
            };
            let response = http::Response::builder().status(status).header("content-type", "application/json");
            Ok::<_, std::convert::Infallible>(response.body(Full::new(answer)).unwrap())
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let clock: SharedClock =
        Arc::new(TokioClock::new(SystemTime::UNIX_EPOCH + Duration::from_secs(86_400 * 20_000 + 60)));
    let store = || Store::Cluster(kube::Client::new(service.clone(), "towline"));
    let pods = [0, 1].map(|_| Keeper { store: store(), ..keeper(dir.path(), clock.clone()) });
    let mut told = [std::collections::BTreeMap::new(), std::collections::BTreeMap::new()];
    let ends = |days: u32| format!("the certificate ends soon: in {days} days");
    let [soon, late] = [vec![ends(20)], vec!["x".repeat(5000), ends(19)]];
    let messages = || -> Vec<String> {
        made.lock().unwrap().iter().map(|event| event["message"].as_str().unwrap().chars().take(9).collect()).collect()
    };
    pods[0].tell(&soon, &mut told[0]).await;
    assert_eq!(messages(), [""; 0], "it was refused");
    for warnings in [&soon, &soon, &late, &late] {
        for (pod, told) in pods.iter().zip(&mut told) {
            pod.tell(warnings, told).await;
        }
    }
    assert_eq!(
        messages(),
        ["the certi", "xxxxxxxxx"],
        "each is told once, by one pod, though the text has other numbers"
    );
    let long = made.lock().unwrap()[1].clone();
    assert_eq!((long["message"].as_str().unwrap().len(), &long["type"]), (1024, &json!("Warning")));
    assert_eq!(long["involvedObject"]["name"], keeper::SECRET);
    tokio::time::advance(Duration::from_secs(86_401)).await;
    for (pod, told) in pods.iter().zip(&mut told) {
        pod.tell(&soon, told).await;
    }
    assert_eq!(messages()[2..], ["the certi"], "once more on the next day");
}

/// Readiness is by the role's state: the pods would all leave the Service at once, and nobody would be answered.
#[tokio::test(start_paused = true)]
async fn z10_a_look_that_fails_leaves_a_guard_that_serves_running() {
    let dir = tempfile::tempdir().unwrap();
    let clock: SharedClock = Arc::new(TokioClock::new(SystemTime::now()));
    let health = Health::default();
    let keeper = Keeper { health: health.of(NAME), ..keeper(dir.path(), clock) };
    let published = keeper.published.clone();
    let mut changes = health.changes();
    let mut next = async || {
        changes.changed().await.unwrap();
        health.all().remove(NAME).unwrap()
    };
    // Nothing can be written where a folder is.
    let blocked = dir.path().join("ca.crt");
    std::fs::create_dir(&blocked).unwrap();
    let tasks = TaskGroup::new("test");
    tasks.spawn("keeper", async move { keeper.keep().await });
    let before = next().await;
    assert!(before.state == State::Failing && published.acceptor().is_none(), "nothing to serve yet: {before:?}");
    std::fs::remove_dir(&blocked).unwrap();
    assert_eq!(next().await.state, State::Running);
    for name in [keeper::TOKENS_FILE, "ca.crt"] {
        let file = dir.path().join(name);
        let text = std::fs::read(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        std::fs::create_dir(&file).unwrap();
        let failed = next().await;
        assert_eq!((failed.state, failed.warnings.len()), (State::Running, 1), "{name}: {failed:?}");
        std::fs::remove_dir(&file).unwrap();
        std::fs::write(&file, text).unwrap();
        assert_eq!(next().await.warnings.len(), 0, "{name}");
    }
}

/// A new pod of a rollout denied users who were allowed before, and apiservers remember that for half a minute.
#[tokio::test(start_paused = true)]
async fn z8_a_guard_is_ready_once_it_knows_of_assignments_or_has_waited_for_them() {
    for is_told in [false, true] {
        let (site, dir, health) = (site(), tempfile::tempdir().unwrap(), Health::default());
        let keeper = Keeper {
            health: health.of(NAME),
            authorizer: Some(site.authorizer.clone()),
            ..keeper(dir.path(), Arc::new(TokioClock::new(site.now)))
        };
        let (tasks, begun) = (TaskGroup::new("test"), tokio::time::Instant::now());
        tasks.spawn("keeper", async move { keeper.keep().await });
        let running = || health.all().remove(NAME).is_some_and(|health| health.state == State::Running);
        tokio::time::sleep(Duration::from_secs(5)).await;
        assert!(!running());
        if is_told {
            site.tell(1, true, "", Duration::from_secs(3600)).await;
        }
        while !running() {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let waited = begun.elapsed();
        assert!(if is_told { waited < Duration::from_secs(6) } else { waited >= keeper::SNAPSHOT_WAIT }, "{waited:?}");
    }
}

/// A pod with the wrong time of day would have all others, and all apiservers, follow it.
#[tokio::test(start_paused = true)]
async fn z10_a_pod_whose_clock_is_behind_the_apiservers_writes_no_certificates() {
    let dir = tempfile::tempdir().unwrap();
    let now = SystemTime::now();
    keeper(dir.path(), Arc::new(TokioClock::new(now))).look().await.unwrap();
    let kept = ["ca.crt", "ca.key", "client.crt", "client.key", "tls.crt", "tls.key"].map(|name| {
        let text = std::fs::read(dir.path().join(name)).unwrap();
        (name.to_owned(), Value::from(types::agent_api::encode(&text)))
    });
    let apiserver = stamping(kept.into_iter().collect(), now);
    let at = |clock: SystemTime| {
        let store = Store::Cluster(apiserver.client());
        Keeper { store, ..keeper(dir.path(), Arc::new(TokioClock::new(clock))) }
    };
    let written = || apiserver.written.load(Ordering::Relaxed);
    let behind = at(now - Duration::from_secs(30 * 86_400));
    let refused = behind.look().await.unwrap_err();
    assert!(refused.contains("put the clock right") && written() == 0, "{refused}");
    assert!(behind.published.acceptor().is_none(), "it cannot serve, and is not ready");
    at(now).look().await.unwrap();
    assert!(written() > 0, "the files are handed out");
}

/// The clock of a pod was wrong by less than the authority's age: it replaced the server's certificate by one that no
/// other pod could use, and they did the same.
#[tokio::test(start_paused = true)]
async fn z10_a_pod_whose_clock_is_wrong_replaces_no_servers_certificate_under_an_old_authority() {
    let dir = tempfile::tempdir().unwrap();
    let (now, day) = (SystemTime::now(), Duration::from_secs(86_400));
    for made in [now - 365 * day, now] {
        keeper(dir.path(), Arc::new(TokioClock::new(made))).look().await.unwrap();
    }
    let kept = ["ca.crt", "ca.key", "client.crt", "client.key", "tls.crt", "tls.key"].map(|name| {
        let text = std::fs::read(dir.path().join(name)).unwrap();
        (name.to_owned(), Value::from(types::agent_api::encode(&text)))
    });
    let apiserver = stamping(kept.into_iter().collect(), now);
    for (clock, days) in [(now - 100 * day, "behind"), (now + 100 * day, "ahead"), (now + 4000 * day, "far ahead")] {
        let store = Store::Cluster(apiserver.client());
        let wrong = Keeper { store, ..keeper(dir.path(), Arc::new(TokioClock::new(clock))) };
        let refused = wrong.look().await.unwrap_err();
        assert!(refused.contains("put the clock right"), "{days}: {refused}");
        assert_eq!(apiserver.written.load(Ordering::Relaxed), 0, "{days}");
        assert!(wrong.published.acceptor().is_none(), "{days}: it cannot serve, and is not ready");
    }
}

/// An apiserver whose clock stands, with one Secret that is never changed.
#[derive(Clone)]
struct Stamping {
    secret: Arc<Value>,
    /// Writes that are no trials.
    written: Arc<AtomicUsize>,
}

fn stamping(data: serde_json::Map<String, Value>, now: SystemTime) -> Stamping {
    let fields = json!([{"manager": NAME, "operation": "Update", "time": crate::identity::spell(now)}]);
    let metadata = json!({"name": keeper::SECRET, "resourceVersion": "7", "managedFields": fields});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data});
    Stamping { secret: Arc::new(secret), written: Arc::default() }
}

impl Stamping {
    fn client(&self) -> kube::Client {
        let own = self.clone();
        let service = tower::service_fn(move |request: Request<kube::client::Body>| {
            let is_trial = request.uri().query().is_some_and(|query| query.contains("dryRun=All"));
            let is_write = request.method() != http::Method::GET && !is_trial;
            own.written.fetch_add(usize::from(is_write), Ordering::Relaxed);
            let response = http::Response::builder().status(StatusCode::OK).header("content-type", "application/json");
            let response = response.body(Full::new(bytes::Bytes::from(own.secret.to_string()))).unwrap();
            async move { Ok::<_, std::convert::Infallible>(response) }
        });
        kube::Client::new(service, "towline")
    }
}

/// An apiserver that keeps its connections shows its certificate all the same.
#[tokio::test]
async fn z10_a_connection_ends_after_its_life_so_that_the_certificate_is_shown_again() {
    for (life, ends) in [(Duration::ZERO, true), (CONNECTION_LIFE, false)] {
        let (site, dir) = (site(), tempfile::tempdir().unwrap());
        let keeper = keeper(dir.path(), Arc::new(SystemClock));
        keeper.look().await.unwrap();
        let mut guard = Guard::new(listen("127.0.0.1:0".parse().unwrap()).unwrap(), keeper, site.desk());
        (guard.lingers, guard.life) = (Duration::from_secs(600), life);
        let (address, shutdown, tasks) = (guard.address().unwrap(), Shutdown::new(), TaskGroup::new("test"));
        let until = shutdown.clone();
        tasks.spawn("guard", async move { guard.run(until).await });
        let (_, roots, own) = as_apiserver(dir.path(), keeper::TOKENS_FILE);
        let (mut send, connection) = connect(address, client(&roots, &own)).await.unwrap();
        tasks.spawn("connection", async move { drop(connection.await) });
        let review = Request::post(answer::TOKENS).body(Full::new(Bytes::from(token_review("v1", "x")))).unwrap();
        let answer = send.send_request(review).await.unwrap();
        assert_eq!(answer.headers().get(header::CONNECTION).is_some_and(|value| value == "close"), ends, "{life:?}");
        shutdown.drain();
    }
}

/// The apiserver's certificate in its files has ended.
#[tokio::test]
async fn z1_an_apiserver_with_an_expired_certificate_is_refused() {
    let (site, dir) = (site(), tempfile::tempdir().unwrap());
    let served = serve(&site, dir.path()).await;
    let (_, roots, own) = as_apiserver(dir.path(), keeper::TOKENS_FILE);
    let authority = Authority::load_files(&dir.path().join("ca.crt"), &dir.path().join("ca.key")).unwrap();
    let day = Duration::from_secs(86_400);
    let ended = Validity { not_before: site.now - 3 * day, not_after: site.now - day };
    let held = Validity { not_before: site.now - 3 * day, not_after: site.now + day };
    for (validity, is_served) in [(ended, false), (held, true)] {
        let issued = authority.issue_client(keeper::CLIENT, validity).unwrap();
        let answer =
            ask(served.address, client(&roots, issued.credentials()), answer::TOKENS, token_review("v1", "x")).await;
        assert_eq!(answer.is_ok(), is_served, "{answer:?}");
    }
    assert!(ask(served.address, client(&roots, &own), answer::TOKENS, token_review("v1", "x")).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn z10_a_pod_that_starts_while_nothing_can_be_written_serves_by_what_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let clock: SharedClock = Arc::new(TokioClock::new(SystemTime::now()));
    keeper(dir.path(), clock.clone()).look().await.unwrap();
    let kept = ["ca.crt", "ca.key", "client.crt", "client.key", "tls.crt", "tls.key"].map(|name| {
        let text = std::fs::read(dir.path().join(name)).unwrap();
        (name.to_owned(), Value::from(types::agent_api::encode(&text)))
    });
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": keeper::SECRET, "resourceVersion": "7"},
        "data": Value::Object(kept.into_iter().collect())});
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let (status, body) = match *request.method() {
            http::Method::GET => (StatusCode::OK, secret.clone()),
            _ => {
                (StatusCode::FORBIDDEN, json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403}))
            }
        };
        let response = http::Response::builder().status(status).header("content-type", "application/json");
        let response = response.body(Full::new(bytes::Bytes::from(body.to_string()))).unwrap();
        async move { Ok::<_, std::convert::Infallible>(response) }
    });
    let store = Store::Cluster(kube::Client::new(service, "towline"));
    let started = Keeper { store, ..keeper(dir.path(), clock) };
    tokio::time::advance(Duration::from_secs(46 * 86_400)).await;
    let refused = started.look().await.unwrap_err();
    assert!(refused.contains(keeper::SECRET), "it is time to renew, and nothing can be written: {refused}");
    assert!(started.published.acceptor().is_some());
}

/// After the files were lost: the next look makes another authority, which has nobody's key, and who came with the lost
/// one is not served on.
#[tokio::test]
async fn z10_connections_end_when_their_authority_is_gone() {
    let (site, dir) = (site(), tempfile::tempdir().unwrap());
    let keeper = keeper(dir.path(), Arc::new(SystemClock));
    keeper.look().await.unwrap();
    let served = serve_by(
        &site,
        Keeper { published: keeper.published.clone(), ..self::keeper(dir.path(), Arc::new(SystemClock)) },
    );
    let (_, roots, own) = as_apiserver(dir.path(), keeper::TOKENS_FILE);
    let lost = || client(&roots, &own);
    let (mut send, connection) = connect(served.address, lost()).await.unwrap();
    let tasks = TaskGroup::new("test");
    let connection = tasks.spawn_task("connection", connection);
    let review = || Request::post(answer::TOKENS).body(Full::new(Bytes::from(token_review("v1", "x")))).unwrap();
    assert_eq!(send.send_request(review()).await.unwrap().status(), StatusCode::OK);
    keeper.look().await.unwrap();
    assert_eq!(send.send_request(review()).await.unwrap().status(), StatusCode::OK, "nothing has changed");
    let file = std::fs::read(dir.path().join(keeper::TOKENS_FILE)).unwrap();
    for name in ["ca.crt", "ca.key", "client.crt", "client.key", "tls.crt", "tls.key"] {
        std::fs::remove_file(dir.path().join(name)).unwrap();
    }
    keeper.look().await.unwrap();
    assert_ne!(std::fs::read(dir.path().join(keeper::TOKENS_FILE)).unwrap(), file, "handed out at once");
    let _ = connection.await;
    assert!(send.send_request(review()).await.is_err(), "kept alive with the lost key");
    assert!(ask(served.address, lost(), answer::TOKENS, token_review("v1", "x")).await.is_err(), "the lost key");
    let (_, roots, own) = as_apiserver(dir.path(), keeper::TOKENS_FILE);
    let answer = ask(served.address, client(&roots, &own), answer::TOKENS, token_review("v1", "x")).await.unwrap();
    assert_eq!(answer.0, StatusCode::OK);
}
