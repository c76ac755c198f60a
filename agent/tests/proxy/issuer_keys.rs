//! Keys of an issuer that are replaced and revoked, as an agent hears of them over real sockets, and what of that an
//! agent knows that is started again.

use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use agent::{
    Agent,
    config::Config,
    identity::{Identities, Identity, issuer_keys::keep_now, store::Store},
    roles::kube_aad_proxy::authenticate::Authenticator,
};
use auth::token::{
    Direct, Issuer, REFETCH, RawIssuer, Verifier,
    testing::{TestIssuer, TestKey, unix_seconds},
};
use daemon::TaskGroup;
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    sync::watch,
};
use tunnel::{transport::StreamError, wire::close::StreamCode};
use types::ids::ClusterId;

use crate::{
    apiserver::{Act, Apiserver},
    harness::{CLUSTER, Harness, ISSUER, head, response_head},
};

/// Where an issuer's key set is read.
struct Published {
    set: Arc<Mutex<Value>>,
    port: u16,
    _tasks: TaskGroup,
}

impl Published {
    async fn new(set: Value) -> Self {
        let set = Arc::new(Mutex::new(set));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (shown, tasks) = (set.clone(), TaskGroup::new("issuer"));
        tasks.spawn("listen", async move {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match socket.read_u8().await {
                        Ok(byte) => head.push(byte),
                        Err(_) => break,
                    }
                }
                let body = shown.lock().unwrap().to_string();
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                let _ = socket.write_all(answer.as_bytes()).await;
            }
        });
        Self { set, port, _tasks: tasks }
    }

    /// Another key set; verifiers may read it at once.
    async fn publish(&self, set: Value) {
        *self.set.lock().unwrap() = set;
        tokio::time::pause();
        tokio::time::advance(REFETCH).await;
        tokio::time::resume();
    }

    fn jwks_url(&self) -> String {
        format!("http://127.0.0.1:{}/keys", self.port)
    }
}

/// A key set of keys, the newest first, each vouched for by the next one.
fn set(keys: &[&TestKey], ended: &[String]) -> Value {
    let mut entries: Vec<Value> = keys.iter().map(|key| key.jwk()).collect();
    for (at, pair) in keys.windows(2).enumerate() {
        entries[at]["towline_attestation"] = json!(pair[1].attest(pair[0]));
    }
    json!({"keys": entries, "towline_ended": ended})
}

/// The roles of an agent that has pinned `pinned`, and whose identity is kept in `store`.
async fn start(
    apiserver: &Apiserver,
    published: &Published,
    pinned: &Value,
    store: &Store,
) -> (Harness, Arc<Verifier>) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pinned.json");
    std::fs::write(&file, pinned.to_string()).unwrap();
    let raw = RawIssuer {
        pinned_keys_file: Some(file),
        jwks_url: Some(published.jwks_url()),
        allow_http_loopback: true,
        ..RawIssuer::new("test", ISSUER)
    };
    let verifier = Verifier::new(Issuer::all(vec![raw]).unwrap(), Arc::new(Direct)).unwrap();
    let authenticator = Arc::new(Authenticator::new(verifier, CLUSTER.parse().unwrap()));
    let identities = Identities::default();
    identities.teach(authenticator.verifier().clone());
    let stored = store.load().await.unwrap().unwrap();
    identities.publish(Identity::new(stored, &CLUSTER.parse().unwrap()).unwrap());
    let verifier = authenticator.verifier().clone();
    let outlive = Duration::from_secs(60);
    (Harness::of(apiserver.access(), outlive, 64, TestIssuer::new(ISSUER), authenticator).await, verifier)
}

/// A folder with an identity of the cluster.
fn identity(dir: &Path) -> Store {
    let authority = certs::Authority::create("test", certs::Validity::days(9)).unwrap();
    let issued = authority.issue_agent(&CLUSTER.to_lowercase(), certs::Validity::days(1)).unwrap();
    std::fs::create_dir_all(dir).unwrap();
    issued.save(&dir.join("tls.crt"), &dir.join("tls.key")).unwrap();
    Store::Directory(dir.to_owned())
}

/// A token that `key` signed and that expires at `expires` (seconds since 1970).
fn token(key: &TestKey, expires: u64) -> String {
    let issuer = TestIssuer { url: ISSUER.to_owned(), keys: vec![key.clone()] };
    let audience = CLUSTER.parse::<ClusterId>().unwrap().audience();
    let mut claims = issuer.claims("jane", &audience, SystemTime::now());
    claims["exp"] = json!(expires);
    issuer.mint(&claims)
}

async fn status(agent: &Harness, token: &str) -> u16 {
    agent.send(&head("GET", "/api", &[("authorization", &format!("Bearer {token}"))]), b"").await.status
}

#[tokio::test]
async fn revoked_key_is_401_also_after_a_restart_with_the_kept_identity() {
    let apiserver = Apiserver::start(|_| vec![Act::Ok("fine")]).await;
    let dir = tempfile::tempdir().unwrap();
    let store = identity(dir.path());
    let [one, two, three, evil] = ["k1", "k2", "k3", "evil"].map(TestKey::es256);
    let pinned = set(&[&one], &[]);
    let published = Published::new(pinned.clone()).await;
    let (agent, verifier) = start(&apiserver, &published, &pinned, &store).await;
    let soon = unix_seconds(SystemTime::now()) + 3600;
    let of = [&one, &two, &three].map(|key| token(key, soon));
    assert_eq!(status(&agent, &of[0]).await, 200);
    keep_now(&store, &verifier).await.unwrap();
    assert!(!dir.path().join("issuer-keys.json").exists(), "nothing was learned");

    // Replaced: what it signed is good until its end, and what ends later is not.
    published.publish(set(&[&two, &one], &[two.end(&one, soon)])).await;
    assert_eq!((status(&agent, &of[1]).await, status(&agent, &of[0]).await), (200, 200));
    assert_eq!(status(&agent, &token(&one, soon + 1)).await, 401);

    // A revoked key: no token that it signed is accepted any longer.
    published.publish(set(&[&three, &two, &one], &[three.end(&two, soon), three.end(&one, 0)])).await;
    assert_eq!((status(&agent, &of[2]).await, status(&agent, &of[1]).await), (200, 200));
    assert_eq!(status(&agent, &of[0]).await, 401);
    keep_now(&store, &verifier).await.unwrap();

    // A gateway that has the revoked key shows the key set of before, with a key of its own behind it.
    let (forged, hostile) = (token(&evil, soon), set(&[&evil, &one], &[evil.end(&one, soon)]));
    published.publish(hostile.clone()).await;
    assert_eq!((status(&agent, &of[0]).await, status(&agent, &forged).await), (401, 401));
    let (again, verifier) = start(&apiserver, &published, &pinned, &store).await;
    assert_eq!(status(&again, &of[2]).await, 200, "what was kept is known before the issuer is asked");
    assert_eq!((status(&again, &of[0]).await, status(&again, &forged).await), (401, 401));
    keep_now(&store, &verifier).await.unwrap();
    assert!(verifier.is_kept(&store.load().await.unwrap().unwrap().issuer_keys));

    // What is kept makes the difference.
    let bare = tempfile::tempdir().unwrap();
    let (forgetful, _) = start(&apiserver, &published, &pinned, &identity(bare.path())).await;
    assert_eq!(status(&forgetful, &of[0]).await, 200);
}

/// A gateway that knows of the revocation ends the session too. One that is older, or taken over, does not.
#[tokio::test]
async fn revoked_key_ends_what_its_tokens_opened_at_the_agent_itself() {
    const EVENT: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n";
    let apiserver = Apiserver::start(|_| vec![Act::write(EVENT), Act::Hang]).await;
    let dir = tempfile::tempdir().unwrap();
    let [one, two] = ["k1", "k2"].map(TestKey::es256);
    let pinned = set(&[&one], &[]);
    let published = Published::new(pinned.clone()).await;
    let (agent, _) = start(&apiserver, &published, &pinned, &identity(dir.path())).await;
    let soon = unix_seconds(SystemTime::now()) + 3600;
    let watch = async |key: &TestKey| {
        let credential = format!("Bearer {}", token(key, soon));
        let mut stream = agent.open(&head("GET", "/watch", &[("authorization", &credential)])).await;
        stream.send.finish().unwrap();
        assert_eq!(response_head(&mut stream.recv).await.status, 200);
        assert_eq!(stream.recv.recv().await.unwrap().unwrap(), "abc");
        stream
    };
    let mut stolen = watch(&one).await;
    let revoked = set(&[&two, &one], &[two.end(&one, 0)]);
    published.publish(revoked.clone()).await;
    // The agent reads the revocation for this token. Both sessions are of one sign-in.
    let mut good = watch(&two).await;
    // Twice the time between two readings is as long as a session sleeps.
    published.publish(revoked).await;
    assert_eq!(stolen.recv.recv().await, Err(StreamError::Reset(StreamCode::Unauthorised)));
    assert!(good.recv.recv().now_or_never().is_none());
    apiserver.until(|seen| seen.gone == 1).await;
}

/// Who had the issuer's first key, and the gateway's place before one pod, had that pod write its own successor over
/// the true one and over the revocation that other pods had kept.
#[tokio::test]
async fn pod_that_was_shown_another_successor_writes_nothing_over_the_kept_one() {
    let apiserver = Apiserver::start(|_| vec![Act::Ok("fine")]).await;
    let dir = tempfile::tempdir().unwrap();
    let store = identity(dir.path());
    let [one, two, evil] = ["k1", "k2", "evil"].map(TestKey::es256);
    let soon = unix_seconds(SystemTime::now()) + 3600;
    let pinned = set(&[&one], &[]);
    let (truth, lie) = (set(&[&two, &one], &[two.end(&one, 0)]), set(&[&evil, &one], &[]));
    let (honest, hostile) = (Published::new(truth).await, Published::new(lie).await);
    let (good, knowing) = start(&apiserver, &honest, &pinned, &store).await;
    let (fooled, deceived) = start(&apiserver, &hostile, &pinned, &store).await;
    assert_eq!((status(&good, &token(&two, soon)).await, status(&fooled, &token(&evil, soon)).await), (200, 200));
    let kept = async || store.load().await.unwrap().unwrap().issuer_keys;
    keep_now(&store, &knowing).await.unwrap();
    let first = kept().await;
    assert!(knowing.is_kept(&first) && knowing.forked_by(&first).is_none());
    keep_now(&store, &deceived).await.unwrap();
    assert_eq!((kept().await, deceived.forked_by(&first)), (first, Some(ISSUER)));
    let (again, _) = start(&apiserver, &hostile, &pinned, &store).await;
    let of = [&two, &one, &evil].map(|key| token(key, soon));
    assert_eq!(status(&again, &of[0]).await, 200);
    assert_eq!((status(&again, &of[1]).await, status(&again, &of[2]).await), (401, 401));
}

#[tokio::test]
async fn agent_that_is_enrolled_afresh_takes_the_newest_key_alone() {
    let apiserver = Apiserver::start(|_| vec![Act::Ok("fine")]).await;
    let dir = tempfile::tempdir().unwrap();
    let store = identity(dir.path());
    let [one, two, three] = ["k1", "k2", "k3"].map(TestKey::es256);
    let soon = unix_seconds(SystemTime::now()) + 3600;
    let whole = set(&[&two, &one], &[two.end(&one, soon)]);
    let published = Published::new(whole).await;
    let (old, verifier) = start(&apiserver, &published, &set(&[&one], &[]), &store).await;
    assert_eq!(status(&old, &token(&two, soon)).await, 200);
    keep_now(&store, &verifier).await.unwrap();
    // Its identity stays when a cluster is connected again; its pinned keys are the newest one.
    let (fresh, verifier) = start(&apiserver, &published, &set(&[&two], &[]), &store).await;
    assert_eq!(status(&fresh, &token(&two, soon)).await, 200);
    assert_eq!(status(&fresh, &token(&one, soon)).await, 401);
    published.publish(set(&[&three, &two, &one], &[three.end(&two, soon), three.end(&one, soon)])).await;
    assert_eq!((status(&fresh, &token(&three, soon)).await, status(&fresh, &token(&one, soon)).await), (200, 401));
    // Both kinds of agents of one cluster, as while pods are exchanged, keep theirs and come to rest.
    keep_now(&store, &verifier).await.unwrap();
    let kept = async || store.load().await.unwrap().unwrap().issuer_keys;
    let first = kept().await;
    assert!(verifier.is_kept(&first));
    keep_now(&store, &verifier).await.unwrap();
    assert_eq!(kept().await, first);
}

/// The program itself: it keeps what it learns without being told.
#[tokio::test]
async fn agent_keeps_what_it_learns_of_keys_beside_its_identity() {
    let dir = tempfile::tempdir().unwrap();
    let store = identity(&dir.path().join("identity"));
    let [one, two] = ["k1", "k2"].map(TestKey::es256);
    let published = Published::new(set(&[&two, &one], &[two.end(&one, 0)])).await;
    std::fs::write(dir.path().join("pinned.json"), set(&[&one], &[]).to_string()).unwrap();
    let kubeconfig = "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- {name: c, cluster: {server: 'https://127.0.0.1:1'}}\n\
                      users:\n- {name: u, user: {token: t}}\ncontexts:\n- {name: c, context: {cluster: c, user: u}}\n";
    std::fs::write(dir.path().join("kubeconfig"), kubeconfig).unwrap();
    let text = format!(
        "[gateway]\nurl = \"https://127.0.0.1:1\"\n[identity]\ncluster_id = \"{CLUSTER}\"\ndirectory = \"identity\"\n\
         [cluster]\nkubeconfig = \"kubeconfig\"\n[[issuers]]\nname = \"test\"\nurl = \"{ISSUER}\"\n\
         jwks_url = \"{}\"\nallow_http_loopback = true\npinned_keys_file = \"pinned.json\"\n",
        published.jwks_url()
    );
    let agent = Agent::build(Config::parse(&text, dir.path()).unwrap(), None, None).await.unwrap();
    let (kept, mut seen) = watch::channel(String::new());
    let following = store.follow(|stored| {
        if let Ok(Some(stored)) = stored {
            kept.send_replace(stored.issuer_keys);
        }
    });
    tokio::select! {
        _ = agent.run() => panic!("the agent ended"),
        ended = following => panic!("{ended:?}"),
        seen = tokio::time::timeout(Duration::from_secs(30), seen.wait_for(|kept| !kept.is_empty())) => {
            let kept: Value = serde_json::from_str(&seen.expect("it is kept in time").unwrap()).unwrap();
            assert_eq!(kept[ISSUER]["keys"][0]["kid"], "k2");
        }
    }
}
