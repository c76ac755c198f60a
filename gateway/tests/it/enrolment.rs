//! Identity of a cluster: proof of possession, certificates, renewal, deletion (docs/features.md R4, R6-R9, R13, C4).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use aws_lc_rs::{
    rand::SystemRandom,
    rsa::{KeyPair as RsaKeyPair, KeySize},
    signature::{KeyPair as _, RSA_PKCS1_SHA256},
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use certs::{Authority, Credentials, Peer, Roots, Validity, tls};
use gateway::{
    Extras,
    issuer::{Issuer, IssuerSettings, Users},
    store::{Store, batch::Expect},
};
use http::{HeaderMap, Method};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256};
use serde_json::{Value, json};
use tunnel::{
    transport::{TunnelHandle, session::HelloError},
    wire::{
        close::CloseCode,
        head::{RequestHead, ResponseHead},
    },
};
use types::{
    agent_api::{ROLE, codes, encode, enrolled_message, enrolment_message, paths},
    ids::{ClusterId, RequestId},
};

use crate::world::{self, Agent, Answer, Arrived, LONG, World};

mod authorities;
mod configured;
mod connectivity;
mod egress;

pub const URL: &str = "https://gateway.test";
pub const SUBSCRIPTION: &str = "11111111-1111-4111-8111-111111111111";
pub const TENANT: &str = "22222222-2222-4222-8222-222222222222";
const DAY: u64 = 86_400;

fn id(name: &str) -> ClusterId {
    let group = format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/Fleet");
    format!("{group}/providers/Microsoft.Kubernetes/connectedClusters/{name}").parse().unwrap()
}

/// A gateway with a resource API and an authority, at a time that the test sets.
struct Site {
    world: World,
    ahead: Arc<AtomicU64>,
}

/// A cluster's onboarding key.
struct Onboarding {
    pair: RsaKeyPair,
    /// As `towline connect` sends it.
    public: String,
}

impl Onboarding {
    fn new() -> Self {
        let pair = RsaKeyPair::generate(KeySize::Rsa2048).unwrap();
        let public = BASE64.encode(pair.public_key().as_ref());
        Self { pair, public }
    }

    fn sign(&self, message: &[u8]) -> String {
        let mut signature = vec![0; self.pair.public_modulus_len()];
        self.pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).unwrap();
        encode(&signature)
    }
}

/// A certificate as it was issued, with its key.
struct Given {
    own: Credentials,
    body: Value,
}

impl Given {
    fn peer(&self, roots: &Roots) -> Peer {
        Peer::verify(self.own.chain(), roots, SystemTime::now()).unwrap()
    }
}

/// A key and the request for its certificate.
fn request(change: impl FnOnce(&mut CertificateParams)) -> (KeyPair, String) {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    change(&mut params);
    let csr = encode(params.serialize_request(&key).unwrap().der());
    (key, csr)
}

fn given(key: &KeyPair, body: Value) -> Given {
    let pem = body["certificate"].as_str().unwrap();
    Given { own: Credentials::from_pem(pem.as_bytes(), key.serialize_pem().as_bytes()).unwrap(), body }
}

/// `[api]` of a gateway whose owner is `dev:owner`, and `more` of the settings.
pub fn section(more: &str) -> String {
    format!(
        r#"
        [api]
        url = "{URL}"
        tenant = "{TENANT}"
        store_file = "towline.db"
        store_key_file = "store.key"
        ca_file = "ca.crt"
        owners = ["dev:owner"]
        [[api.subscriptions]]
        id = "{SUBSCRIPTION}"
        {more}
        "#
    )
}

fn code(answer: &Answer) -> String {
    answer.json()["error"]["code"].as_str().unwrap_or_default().to_owned()
}

fn message(answer: &Answer) -> String {
    answer.json()["error"]["message"].as_str().unwrap_or_default().to_owned()
}

impl Site {
    async fn new() -> Self {
        Self::with("").await
    }

    async fn with(agents: &str) -> Self {
        Self::of(agents, "").await
    }

    /// With `more` behind `[api]`.
    async fn of(agents: &str, more: &str) -> Self {
        let ahead = Arc::new(AtomicU64::new(0));
        let seconds = Arc::clone(&ahead);
        let clock = move || SystemTime::now() + Duration::from_secs(seconds.load(Ordering::SeqCst));
        let extras = Extras { clock: Some(Arc::new(clock)), ..Extras::default() };
        let agents = format!("authority_dir = \"authority\"\n{agents}");
        let world = World::build(&world::config_with(&agents, &section(more)), extras).await;
        let site = Self { world, ahead };
        site.put(&format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/Fleet"), json!({"location": "here"})).await;
        site
    }

    /// From now on there is a built-in issuer.
    fn open_issuer(&self) {
        let issuer = Issuer::open(IssuerSettings {
            url: "https://gateway.test/.towline/issuer".to_owned(),
            state: self.world.dir.path().join("issuer"),
            ttl: Duration::from_secs(600),
            tenant: TENANT.to_owned(),
            api_audience: URL.to_owned(),
            audiences: Vec::new(),
            clients: Vec::new(),
        });
        self.world.gateway.set_issuer(Arc::new(issuer.unwrap()));
    }

    async fn api(&self, method: &str, id: &str, body: Option<Value>) -> Answer {
        let token = self.world.issuer.token("owner", &[], URL, SystemTime::now());
        let version = if id.contains("/providers/") { "2024-01-01" } else { "2024-03-01" };
        self.http(method, &format!("{id}?api-version={version}"), Some(&token), body, None).await
    }

    async fn put(&self, id: &str, body: Value) -> Value {
        let answer = self.api("PUT", id, Some(body)).await;
        assert!(matches!(answer.status, 200 | 201), "{}", answer.text());
        answer.json()
    }

    /// Creates a cluster, or gives it another key; its principal.
    async fn cluster(&self, name: &str, key: &Onboarding) -> String {
        let body = json!({
            "location": "here",
            "identity": {"type": "SystemAssigned"},
            "properties": {"agentPublicKeyCertificate": key.public},
        });
        self.put(id(name).as_str(), body).await["identity"]["principalId"].as_str().unwrap().to_owned()
    }

    /// Deletes a cluster, and waits until the operation has ended.
    async fn delete(&self, name: &str) {
        assert_eq!(self.api("DELETE", id(name).as_str(), None).await.status, 202);
        let gone = async {
            while self.api("GET", id(name).as_str(), None).await.status != 404 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(LONG, gone).await.unwrap();
    }

    async fn http(
        &self,
        method: &str,
        target: &str,
        token: Option<&str>,
        body: Option<Value>,
        own: Option<&Credentials>,
    ) -> Answer {
        let mut user = self.world.user_as("localhost", own, &[tls::ALPN_HTTP11]).await;
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let token = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        user.send(format!(
            "{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n{token}Content-Length: {}\r\n\r\n{body}",
            body.len()
        ))
        .await;
        user.answer().await
    }

    async fn agents(&self, what: &str, body: Value) -> Answer {
        self.http("POST", &format!("/.towline/agent/{what}"), None, Some(body), None).await
    }

    async fn challenge(&self, name: &str) -> String {
        let answer = self.agents("challenge", json!({"clusterId": id(name).as_str()})).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["challenge"].as_str().unwrap().to_owned()
    }

    fn enrolment(name: &str, key: &Onboarding, challenge: &str, csr: &str, uid: &str) -> Value {
        json!({
            "clusterId": id(name).as_str(),
            "challenge": challenge,
            "csr": csr,
            "kubeSystemUid": uid,
            "signature": key.sign(&enrolment_message(&id(name), challenge, csr, uid)),
            "agentVersion": "test",
        })
    }

    async fn try_enrol(&self, name: &str, key: &Onboarding, uid: &str) -> Result<Given, Answer> {
        let (own, csr) = request(|_| {});
        let challenge = self.challenge(name).await;
        let answer = self.agents("certificate", Self::enrolment(name, key, &challenge, &csr, uid)).await;
        if answer.status == 200 { Ok(given(&own, answer.json())) } else { Err(answer) }
    }

    async fn enrol(&self, name: &str, key: &Onboarding) -> Given {
        self.try_enrol(name, key, &format!("uid-of-{name}")).await.unwrap_or_else(|answer| panic!("{}", answer.text()))
    }

    async fn tunnel(&self, given: &Given) -> TunnelHandle {
        self.world.dial(&given.own).await.unwrap()
    }

    fn enrolled(&self, outcome: &str) -> String {
        let text = self.world.gateway.core().metrics.render();
        let name = format!("gateway_enrolments_total{{outcome=\"{outcome}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)).unwrap_or("0").to_owned()
    }
}

/// One exchange of an agent on its tunnel: status and body.
async fn ask(tunnel: &TunnelHandle, method: Method, target: &str, body: &Value) -> (u16, Value) {
    let head = RequestHead {
        role: ROLE.to_owned(),
        request_id: RequestId([3; 16]),
        method,
        target: Bytes::copy_from_slice(target.as_bytes()),
        headers: HeaderMap::new(),
        deadline_ms: None,
        traceparent: None,
        user_address: None,
    };
    let mut stream = tunnel.open(head.encode().unwrap().freeze()).await.unwrap();
    if !body.is_null() {
        stream.send.send(Bytes::from(body.to_string())).await.unwrap();
    }
    stream.send.finish().unwrap();
    let message = stream.recv.recv_message(types::limits::HEAD_BYTES).await.unwrap();
    let head = ResponseHead::decode(message).unwrap();
    let mut text = Vec::new();
    while let Some(chunk) = stream.recv.recv().await.unwrap() {
        text.extend_from_slice(&chunk);
    }
    (head.status.as_u16(), serde_json::from_slice(&text).unwrap_or_default())
}

async fn closed(tunnel: &TunnelHandle) -> CloseCode {
    // What docs/features.md R10 promises, with room for a starved machine; nothing is waited for but the end itself.
    tokio::time::timeout(LONG, tunnel.closed()).await.expect("the tunnel is cut").code
}

#[tokio::test]
async fn r7_possession_of_the_onboarding_key_gives_a_certificate_that_opens_a_tunnel() {
    let site = Site::new().await;
    let key = Onboarding::new();
    let principal = site.cluster("edge", &key).await;
    let given = site.enrol("edge", &key).await;
    let peer = given.peer(&site.world.authority.roots().unwrap());
    assert_eq!(peer.identity.agent().unwrap(), id("edge").as_str());
    assert_eq!(peer.principal.as_deref(), Some(principal.as_str()));
    assert_eq!((&given.body["principalId"], &given.body["tenantId"]), (&json!(principal), &json!(TENANT)));
    assert_eq!(given.body["roots"].as_str().unwrap(), site.world.authority.certificate_pem());
    site.tunnel(&given).await;
    let shown = site.api("GET", id("edge").as_str(), None).await.json();
    assert_eq!(shown["properties"]["managedIdentityCertificateExpirationTime"], given.body["notAfter"]);
    assert_eq!(site.enrolled("issued"), "1");
}

#[tokio::test]
async fn r6_the_key_may_be_given_in_an_x509_certificate() {
    let site = Site::new().await;
    let key = KeyPair::generate_for(&PKCS_RSA_SHA256).unwrap();
    let public = BASE64.encode(CertificateParams::default().self_signed(&key).unwrap().der());
    let key = Onboarding { pair: RsaKeyPair::from_pkcs8(&key.serialize_der()).unwrap(), public };
    site.cluster("edge", &key).await;
    site.enrol("edge", &key).await;
}

/// RSAPublicKey (RFC 8017 appendix A.1.1) of a given size.
fn rsa_of(bytes: u8) -> Vec<u8> {
    let modulus = [vec![0x00, 0x81], vec![0x33; usize::from(bytes) - 1]].concat();
    let integer = [&[0x02, 0x81, bytes + 1][..], &modulus].concat();
    let exponent = [0x02, 0x03, 0x01, 0x00, 0x01];
    let length = u8::try_from(integer.len() + exponent.len()).unwrap();
    [&[0x30, 0x81, length][..], &integer, &exponent].concat()
}

/// A cluster with such a key could never be connected, and nobody would have said why.
#[tokio::test]
async fn r6_a_key_that_could_never_prove_anything_is_refused_and_named() {
    let site = Site::new().await;
    let other = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let certificate = CertificateParams::default().self_signed(&other).unwrap().der().to_vec();
    let rsa = KeyPair::generate_for(&PKCS_RSA_SHA256).unwrap();
    let spki = rcgen::PublicKeyData::subject_public_key_info(&rsa);
    let mut longer = spki.clone();
    longer.push(0);
    let body = |der: &[u8]| {
        json!({
            "location": "here",
            "identity": {"type": "SystemAssigned"},
            "properties": {"agentPublicKeyCertificate": BASE64.encode(der)},
        })
    };
    for bad in [certificate, rcgen::PublicKeyData::subject_public_key_info(&other), rsa_of(100), longer] {
        let refused = site.api("PUT", id("edge").as_str(), Some(body(&bad))).await;
        assert_eq!(refused.status, 400, "{}", refused.text());
        assert_eq!(refused.json()["error"]["target"], "properties.agentPublicKeyCertificate", "{}", refused.text());
    }
    let key = Onboarding { pair: RsaKeyPair::from_pkcs8(&rsa.serialize_der()).unwrap(), public: BASE64.encode(&spki) };
    site.cluster("edge", &key).await;
    site.enrol("edge", &key).await;
}

#[tokio::test]
async fn r6_a_wrong_key_or_challenge_and_a_replay_change_nothing_are_counted_and_look_alike() {
    let site = Site::new().await;
    let (key, other) = (Onboarding::new(), Onboarding::new());
    site.cluster("edge", &key).await;
    site.cluster("other", &other).await;
    let (_, csr) = request(|_| {});
    let before = site.api("GET", id("edge").as_str(), None).await.json();
    let made_up = encode(&[7; 80]);
    let of_other = site.challenge("other").await;
    let fresh = site.challenge("edge").await;
    let mut changed = Site::enrolment("edge", &key, &fresh, &csr, "uid");
    changed["kubeSystemUid"] = json!("another");
    let absent = site.challenge("absent").await;
    let mut texts = Vec::new();
    for bad in [
        Site::enrolment("edge", &other, &fresh, &csr, "uid"),
        Site::enrolment("edge", &key, &made_up, &csr, "uid"),
        Site::enrolment("edge", &key, &of_other, &csr, "uid"),
        Site::enrolment("edge", &key, "", &csr, "uid"),
        Site::enrolment("absent", &key, &absent, &csr, "uid"),
        changed,
    ] {
        let answer = site.agents("certificate", bad).await;
        assert_eq!((answer.status, code(&answer).as_str()), (401, codes::INVALID_PROOF), "{}", answer.text());
        texts.push(answer.text());
    }
    texts.dedup();
    assert_eq!(texts.len(), 1, "nobody can tell what was wrong, or whether there is such a cluster: {texts:?}");
    assert_eq!(site.enrolled("not_proved"), "6");
    assert_eq!(site.api("GET", id("edge").as_str(), None).await.json(), before);
    // It was not used up by those who could not use it.
    let good = Site::enrolment("edge", &key, &fresh, &csr, "uid");
    assert_eq!(site.agents("certificate", good.clone()).await.status, 200);
    let after = site.api("GET", id("edge").as_str(), None).await.json();
    let replayed = site.agents("certificate", good).await;
    assert_eq!((replayed.status, code(&replayed).as_str()), (401, codes::INVALID_PROOF));
    assert_eq!(site.enrolled("not_proved"), "7");
    assert_eq!(site.api("GET", id("edge").as_str(), None).await.json(), after);
    // Nor does one live for long.
    let old = site.challenge("edge").await;
    site.ahead.store(121, Ordering::SeqCst);
    let late = site.agents("certificate", Site::enrolment("edge", &key, &old, &csr, "uid")).await;
    assert_eq!(late.status, 401);
}

#[tokio::test]
async fn r6_bad_input_is_told_apart_from_a_bad_proof() {
    let site = Site::new().await;
    for (what, body) in [
        ("challenge", json!({})),
        ("challenge", json!({"clusterId": "edge"})),
        ("challenge", json!({"clusterId": "/subscriptions/s/resourceGroups/g"})),
        ("certificate", json!({"clusterId": id("edge").as_str()})),
        ("certificate", json!([])),
    ] {
        let answer = site.agents(what, body).await;
        assert_eq!(answer.status, 400, "{}", answer.text());
    }
    for (member, bad) in [("csr", "%%%"), ("signature", "%%%"), ("kubeSystemUid", ""), ("kubeSystemUid", "a b")] {
        let mut body = Site::enrolment("edge", &Onboarding::new(), "c", "AAAA", "uid");
        body[member] = json!(bad);
        let answer = site.agents("certificate", body).await;
        assert_eq!((answer.status, answer.json()["error"]["target"].as_str()), (400, Some(member)));
    }
    let large = json!({"clusterId": "x".repeat(types::agent_api::BODY_BYTES)});
    assert_eq!(site.agents("challenge", large).await.status, 413);
    assert_eq!(site.agents("surprise", json!({})).await.status, 404);
    assert_eq!(site.http("GET", "/.towline/agent/challenge", None, None, None).await.status, 405);
}

/// docs/threats.md TH30: a request that names somebody else, whatever else is in order.
#[tokio::test]
async fn r7_a_request_for_another_subject_is_foreign() {
    let site = Site::new().await;
    let key = Onboarding::new();
    site.cluster("edge", &key).await;
    for name in ["other", "system:masters", TENANT] {
        let (_, csr) = request(|params| params.distinguished_name.push(DnType::CommonName, name));
        let challenge = site.challenge("edge").await;
        let answer = site.agents("certificate", Site::enrolment("edge", &key, &challenge, &csr, "uid")).await;
        assert_eq!((answer.status, code(&answer).as_str()), (403, codes::FOREIGN_REQUEST), "{}", answer.text());
    }
}

#[tokio::test]
async fn r8_a_certificate_is_renewed_over_its_own_tunnel_and_the_old_one_stays_good() {
    let site = Site::new().await;
    let key = Onboarding::new();
    let principal = site.cluster("edge", &key).await;
    let first = site.enrol("edge", &key).await;
    let tunnel = site.tunnel(&first).await;
    site.ahead.store(45 * DAY, Ordering::SeqCst);
    let (own, csr) = request(|_| {});
    let (status, body) = ask(&tunnel, Method::POST, paths::RENEW, &json!({"csr": csr})).await;
    assert_eq!((status, &body["principalId"]), (200, &json!(principal)), "{body}");
    assert!(body["notAfter"].as_str() > first.body["notAfter"].as_str());
    let shown = site.api("GET", id("edge").as_str(), None).await.json();
    assert_eq!(shown["properties"]["managedIdentityCertificateExpirationTime"], body["notAfter"]);
    assert!(body["certificate"].as_str().unwrap().contains("BEGIN") && !own.serialize_pem().is_empty());
    site.tunnel(&first).await;
    let (_, csr) = request(|params| params.distinguished_name.push(DnType::CommonName, "other"));
    let (status, body) = ask(&tunnel, Method::POST, paths::RENEW, &json!({"csr": csr})).await;
    assert_eq!((status, &body["error"]["code"]), (403, &json!(codes::FOREIGN_REQUEST)));
    let (status, _) = ask(&tunnel, Method::POST, "/v1/surprise", &json!({})).await;
    assert_eq!(status, 404);
}

/// A cluster goes by an identity of its own: what becomes of who connected it is nothing to it.
#[tokio::test]
async fn s2_a_cluster_goes_on_when_who_connected_it_may_nothing_more() {
    let site = Site::new().await;
    let key = Onboarding::new();
    site.cluster("edge", &key).await;
    let given = site.enrol("edge", &key).await;
    let tunnel = site.tunnel(&given).await;
    let disabled = world::config_with("authority_dir = \"authority\"", &section("[[disabled]]\nuser = \"dev:owner\""));
    site.world.reconfigure(&disabled).await.unwrap();
    let refused = site.api("GET", id("edge").as_str(), None).await;
    assert_eq!(refused.status, 401, "{}", refused.text());
    let (_, csr) = request(|_| {});
    let (status, body) = ask(&tunnel, Method::POST, paths::RENEW, &json!({"csr": csr})).await;
    assert_eq!(status, 200, "{body}");
    site.tunnel(&given).await;
    site.enrol("edge", &key).await;
}

/// docs/threats.md TH31: the certificate still holds, the resource does not; also when it was made again under the same
/// name and key.
#[tokio::test]
async fn r8_deletion_cuts_the_tunnel_and_ends_what_its_certificate_was_good_for() {
    let site = Site::new().await;
    let key = Onboarding::new();
    site.cluster("edge", &key).await;
    let given = site.enrol("edge", &key).await;
    let tunnel = site.tunnel(&given).await;
    site.delete("edge").await;
    assert_eq!(closed(&tunnel).await, CloseCode::Deleted);
    for again in [false, true] {
        if again {
            site.cluster("edge", &key).await;
        }
        let refused = site.world.dial(&given.own).await.err().unwrap();
        let HelloError::Refused { code: CloseCode::Deleted, message, .. } = refused else { panic!("{refused}") };
        assert!(message.starts_with(codes::RESOURCE_DELETED), "{message}");
        let (_, csr) = request(|_| {});
        let challenge = site.challenge("edge").await;
        let body = Site::enrolment("edge", &key, &challenge, &csr, "uid-of-edge");
        let shown = site.http("POST", "/.towline/agent/certificate", None, Some(body), Some(&given.own)).await;
        assert_eq!((shown.status, code(&shown)), (410, codes::RESOURCE_DELETED.to_owned()));
    }
    // Who has the key of what is there now gets a certificate of that.
    let next = site.enrol("edge", &key).await;
    assert_ne!(next.body["principalId"], given.body["principalId"]);
    site.tunnel(&next).await;
}

/// Between two looks at the directory the cluster was never gone.
#[tokio::test]
async fn r8_a_cluster_deleted_and_made_again_does_not_keep_the_old_tunnel() {
    let site = Site::new().await;
    let key = Onboarding::new();
    site.cluster("edge", &key).await;
    let given = site.enrol("edge", &key).await;
    let tunnel = site.tunnel(&given).await;
    site.delete("edge").await;
    site.cluster("edge", &key).await;
    assert_eq!(closed(&tunnel).await, CloseCode::Deleted);
}

/// Writes another key, as another replica of the gateway would: this one has the tunnel and is not asked.
async fn rekeyed_elsewhere(site: &Site, name: &str, public: &str) {
    let store = Store::open_file(&site.world.dir.path().join("towline.db")).await.unwrap();
    let mut kept = store.get(&id(name).as_str().to_ascii_lowercase()).await.unwrap().unwrap();
    kept.body["properties"]["agentPublicKeyCertificate"] = json!(public);
    let revision = kept.revision;
    store.put(&kept, Expect::Revision(revision)).await.unwrap().unwrap();
}

/// Whoever holds the old key's certificate may be whom the new key was made against.
#[tokio::test]
async fn r7_another_onboarding_key_ends_what_certificates_of_the_old_one_were_good_for() {
    let site = Site::new().await;
    let (key, new) = (Onboarding::new(), Onboarding::new());
    let principal = site.cluster("edge", &key).await;
    let old = site.enrol("edge", &key).await;
    for public in ["", &new.public] {
        rekeyed_elsewhere(&site, "edge", &key.public).await;
        // Decisions follow another replica's write within half a second.
        let dialled = async {
            loop {
                if let Ok(tunnel) = site.world.dial(&old.own).await {
                    break tunnel;
                }
            }
        };
        let tunnel = tokio::time::timeout(LONG, dialled).await.expect("the key that was put back holds");
        rekeyed_elsewhere(&site, "edge", public).await;
        assert_eq!(closed(&tunnel).await, CloseCode::Unauthorised);
        let refused = site.world.dial(&old.own).await.err().unwrap();
        let HelloError::Refused { code: CloseCode::Unauthorised, message, .. } = refused else { panic!("{refused}") };
        assert!(message.contains("onboarding key"), "{message}");
    }
    // It is the same cluster, and who has its key is its agent; the old certificate is not even so.
    let next = site.enrol("edge", &new).await;
    assert_eq!(next.body["principalId"], json!(principal));
    site.tunnel(&next).await;
    assert!(site.world.dial(&old.own).await.is_err(), "the old one stays what it is");
}

/// A cluster that is not connected may be given another key; its old agents, when they come back, are not its any more.
#[tokio::test]
async fn r3_agents_of_the_key_that_was_replaced_do_not_come_back() {
    let site = Site::new().await;
    let (key, new) = (Onboarding::new(), Onboarding::new());
    site.cluster("edge", &key).await;
    let old = site.enrol("edge", &key).await;
    site.cluster("edge", &new).await;
    let refused = site.world.dial(&old.own).await.err().unwrap();
    assert!(matches!(refused, HelloError::Refused { code: CloseCode::Unauthorised, .. }), "{refused}");
    site.tunnel(&site.enrol("edge", &new).await).await;
}

/// docs/threats.md TH30: certificates of this authority, for this cluster, that say another identity or none.
#[tokio::test]
async fn r7_a_certificate_of_another_identity_opens_no_tunnel() {
    let site = Site::new().await;
    let (key, other) = (Onboarding::new(), Onboarding::new());
    site.cluster("edge", &key).await;
    site.cluster("other", &other).await;
    let by_hand = site.world.authority.issue_agent(id("edge").as_str(), Validity::days(1)).unwrap();
    let refused = site.world.dial(by_hand.credentials()).await.err().unwrap();
    assert!(matches!(refused, HelloError::Refused { code: CloseCode::Unauthorised, .. }), "{refused}");
    let theirs = site.enrol("other", &other).await;
    let tunnel = site.tunnel(&theirs).await;
    let (_, csr) = request(|params| params.distinguished_name.push(DnType::CommonName, "edge"));
    let (status, _) = ask(&tunnel, Method::POST, paths::RENEW, &json!({"csr": csr})).await;
    assert_eq!(status, 403, "over a tunnel there is nothing but its own identity");
}

/// What a gateway does not find it cannot call deleted: its database may be empty, or restored from before the cluster.
#[tokio::test]
async fn r8_a_cluster_that_is_not_known_is_not_said_to_be_deleted() {
    let site = Site::new().await;
    let (key, csr) = request(|_| {});
    let der = types::agent_api::decode(&csr).unwrap();
    let never = id("never");
    let asked = certs::AgentRequest::read(&der, never.as_str(), &[]).unwrap();
    let name = certs::AgentName { cluster_id: never.as_str(), principal: TENANT, onboarding: "0123" };
    let signed = site.world.authority.sign_agent(&asked, name, Validity::days(1)).unwrap();
    let own = Credentials::from_pem(signed.certificate_pem.as_bytes(), key.serialize_pem().as_bytes()).unwrap();
    let refused = site.world.dial(&own).await.err().unwrap();
    let HelloError::Refused { code: CloseCode::Unauthorised, message, .. } = refused else { panic!("{refused}") };
    assert!(message.contains("is not registered"), "{message}");
    let (_, csr) = request(|_| {});
    let challenge = site.challenge("never").await;
    let body = Site::enrolment("never", &Onboarding::new(), &challenge, &csr, "uid");
    let answer = site.http("POST", "/.towline/agent/certificate", None, Some(body), Some(&own)).await;
    assert_eq!(answer.status, 401, "{}", answer.text());
}

/// Behind one address of a company there may be a fleet, and somebody who is out for its harm.
#[tokio::test]
async fn r6_a_flood_from_an_address_shuts_no_cluster_behind_it_out() {
    let site = Site::new().await;
    let key = Onboarding::new();
    let names: Vec<String> = (0..100).map(|n| format!("edge-{n}")).collect();
    for name in &names {
        site.cluster(name, &key).await;
    }
    // What proves nothing, until that is refused for its number.
    let mut flood = site.world.user().await;
    let bad = Site::enrolment("nobody", &key, "none", "none", "uid").to_string();
    let bad = format!(
        "POST /.towline/agent/certificate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{bad}",
        bad.len()
    );
    let mut refused = 0;
    for sent in 0..4000 {
        // One connection is ended after some refusals: that is no bound for who has many.
        if sent % 100 == 99 {
            flood = site.world.user().await;
        }
        flood.send(&bad).await;
        let answer = flood.answer().await;
        assert!(matches!(answer.status, 401 | 429), "{}", answer.text());
        refused += u32::from(answer.status == 429);
        if refused == 20 {
            break;
        }
    }
    assert_eq!(refused, 20, "the flood is bounded");
    let all = names.iter().map(|name| site.enrol(name, &key));
    assert_eq!(futures_util::future::join_all(all).await.len(), 100);
    // One cluster that proves what it is all the time is bounded, by itself.
    let mut answers = Vec::new();
    for _ in 0..40 {
        match site.try_enrol("edge-0", &key, "uid-of-edge-0").await {
            Ok(_) => {}
            Err(answer) => answers.push(answer.status),
        }
    }
    assert!(answers.len() >= 5 && answers.iter().all(|status| *status == 429), "{answers:?}");
    site.enrol("edge-1", &key).await;
}

/// One cluster's agents, which may be anybody's by now, do not keep the gateway from the others.
#[tokio::test]
async fn c6_what_one_clusters_agents_ask_too_often_is_refused_until_later_and_others_are_served() {
    let site = Site::new().await;
    let mut tunnels = Vec::new();
    for name in ["edge", "other"] {
        let key = Onboarding::new();
        site.cluster(name, &key).await;
        let given = site.enrol(name, &key).await;
        tunnels.push((site.tunnel(&given).await, site.tunnel(&given).await));
    }
    let beat = async |tunnel: &TunnelHandle, n: usize| {
        let body = json!({"agentVersion": format!("1.{n}"), "kubeSystemUid": Value::Null});
        ask(tunnel, Method::POST, paths::HEARTBEAT, &body).await
    };
    let mut refused = None;
    for n in 0..200 {
        // Over whichever tunnel.
        let tunnel = if n % 2 == 0 { &tunnels[0].0 } else { &tunnels[0].1 };
        match beat(tunnel, n).await {
            (200, _) => {}
            other => {
                refused = Some(other);
                break;
            }
        }
    }
    let (status, body) = refused.expect("it is bounded");
    assert_eq!((status, &body["error"]["code"]), (429, &json!("TooManyRequests")), "{body}");
    assert_eq!(beat(&tunnels[1].0, 0).await.0, 200);
    let (status, _) = ask(&tunnels[0].0, Method::POST, paths::TOKEN, &json!({"audience": URL})).await;
    assert_eq!(status, 503, "other questions are counted apart: there is no issuer here");
}

#[tokio::test]
async fn r4_one_kubernetes_cluster_is_one_resource() {
    let site = Site::new().await;
    let (one, two) = (Onboarding::new(), Onboarding::new());
    site.cluster("one", &one).await;
    site.cluster("two", &two).await;
    assert!(site.try_enrol("one", &one, "uid-1").await.is_ok());
    let refused = site.try_enrol("two", &two, "uid-1").await.err().unwrap();
    assert_eq!((refused.status, code(&refused).as_str()), (409, codes::ALREADY_CONNECTED));
    let text = message(&refused).to_lowercase();
    assert!(text.contains(id("one").as_str()) && text.contains(id("two").as_str()), "{text}");
    // The key was copied to another Kubernetes cluster.
    let copied = site.try_enrol("one", &one, "uid-2").await.err().unwrap();
    assert_eq!((copied.status, code(&copied).as_str()), (409, codes::ALREADY_CONNECTED));
    assert!(message(&copied).contains("corresponds to a different Kubernetes cluster"));
    // A new key says that it is meant; and what is deleted is in nobody's way.
    let new = Onboarding::new();
    site.cluster("one", &new).await;
    assert!(site.try_enrol("one", &new, "uid-2").await.is_ok());
    assert!(site.try_enrol("two", &two, "uid-1").await.is_ok());
    site.delete("two").await;
    site.cluster("three", &two).await;
    assert!(site.try_enrol("three", &two, "uid-1").await.is_ok());
}

impl Site {
    /// Lets somebody connect clusters in the group, and no more.
    async fn let_onboard(&self, user: &str) {
        let at = format!("{}/providers/Microsoft.Authorization/roleAssignments/{ASSIGNED}", Self::group());
        let body = json!({"properties": {
            "roleDefinitionId": format!("/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions/34e09817-6cbe-4d01-b1a2-e0eac5743d41"),
            "principalId": format!("dev:{user}"),
            "principalType": "User",
        }});
        let token = self.world.issuer.token("owner", &[], URL, SystemTime::now());
        let made = self.http("PUT", &format!("{at}?api-version=2022-04-01"), Some(&token), Some(body), None).await;
        assert_eq!(made.status, 201, "{}", made.text());
    }

    /// Creates a cluster as somebody.
    async fn cluster_of(&self, user: &str, name: &str, key: &Onboarding) {
        let body = json!({
            "location": "here",
            "identity": {"type": "SystemAssigned"},
            "properties": {"agentPublicKeyCertificate": key.public},
        });
        let token = self.world.issuer.token(user, &[], URL, SystemTime::now());
        let target = format!("{}?api-version=2024-01-01", id(name));
        let made = self.http("PUT", &target, Some(&token), Some(body), None).await;
        assert_eq!(made.status, 201, "{}", made.text());
    }
}

/// Nobody proves the UID of their namespace kube-system: who says another cluster's first must neither keep that one
/// out nor be named to it.
#[tokio::test]
async fn squatted_uid_neither_blocks_nor_names_the_squatter() {
    let site = Site::new().await;
    site.let_onboard("mallory").await;
    let (squatter, rightful, of_token) = (Onboarding::new(), Onboarding::new(), Onboarding::new());
    site.cluster_of("mallory", "squatter", &squatter).await;
    site.try_enrol("squatter", &squatter, "the-uid").await.unwrap_or_else(|answer| panic!("{}", answer.text()));
    site.cluster("rightful", &rightful).await;
    let given = site.try_enrol("rightful", &rightful, "the-uid").await;
    let tunnel = site.tunnel(&given.unwrap_or_else(|answer| panic!("{}", answer.text()))).await;
    let told = json!({"agentVersion": "1", "kubeSystemUid": "the-uid"});
    let (status, body) = ask(&tunnel, Method::POST, paths::HEARTBEAT, &told).await;
    assert_eq!(status, 200, "{body}");
    // Holders of enrolment tokens are nobody in particular, so that none of them is in another's way.
    for name in ["one", "two"] {
        let token = site.token(json!({})).await;
        assert_eq!(site.join(&token, name, &of_token).await.status, 200);
        site.try_enrol(name, &of_token, "the-uid").await.unwrap_or_else(|answer| panic!("{}", answer.text()));
    }
    // Of one's own, one is told (R4).
    let second = Onboarding::new();
    site.cluster_of("mallory", "second", &second).await;
    let refused = site.try_enrol("second", &second, "the-uid").await.err().unwrap();
    assert_eq!((refused.status, code(&refused).as_str()), (409, codes::ALREADY_CONNECTED));
    assert!(message(&refused).to_lowercase().contains(id("squatter").as_str()), "{}", message(&refused));
}

#[tokio::test]
async fn c4_an_expired_cluster_is_connected_again_by_a_new_key_and_keeps_what_it_has() {
    let site = Site::new().await;
    let key = Onboarding::new();
    let principal = site.cluster("edge", &key).await;
    site.enrol("edge", &key).await;
    let assignment = format!(
        "{}/providers/Microsoft.Authorization/roleAssignments/33333333-3333-4333-8333-333333333333",
        id("edge")
    );
    let body = json!({"properties": {
        "roleDefinitionId": format!("/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions/acdd72a7-3385-48ef-bd42-f606fba81ae7"),
        "principalId": "44444444-4444-4444-8444-444444444444",
    }});
    let put = format!("{assignment}?api-version=2022-04-01");
    let token = site.world.issuer.token("owner", &[], URL, SystemTime::now());
    let made = site.http("PUT", &put, Some(&token), Some(body), None).await;
    assert_eq!(made.status, 201, "{}", made.text());
    // A day before the end another certificate for the same key is fine.
    site.ahead.store(89 * DAY, Ordering::SeqCst);
    site.enrol("edge", &key).await;
    site.ahead.store((89 + 91) * DAY, Ordering::SeqCst);
    let refused = site.try_enrol("edge", &key, "uid-of-edge").await.err().unwrap();
    assert_eq!((refused.status, code(&refused).as_str()), (401, codes::CERTIFICATE_EXPIRED));
    assert!(message(&refused).contains("towline connect"), "{}", message(&refused));
    let shown = site.api("GET", id("edge").as_str(), None).await.json();
    assert_eq!(shown["properties"]["connectivityStatus"], "Expired");
    let new = Onboarding::new();
    assert_eq!(site.cluster("edge", &new).await, principal, "the same resource");
    assert_eq!(site.enrol("edge", &new).await.body["principalId"], json!(principal));
    let token = site.world.issuer.token("owner", &[], URL, SystemTime::now());
    assert_eq!(site.http("GET", &put, Some(&token), None, None).await.status, 200, "its assignments stay");
}

/// Agents take down only what the resource of their cluster wants down. With the new identity that another key gave, the
/// resource looked like another one: its agents left what was to be deleted there, and said that it was gone.
#[tokio::test]
async fn e10_a_deletion_that_waits_is_of_the_same_resource_after_another_key() {
    const EXTENSIONS: &str = "Microsoft.KubernetesConfiguration/extensions";
    let site = Site::new().await;
    site.let_onboard("mallory").await;
    let (key, new) = (Onboarding::new(), Onboarding::new());
    let principal = site.cluster("edge", &key).await;
    let told = async |given: &Given| {
        let tunnel = site.tunnel(given).await;
        let beat = json!({"agentVersion": "1", "kubeSystemUid": "uid-of-edge"});
        let (status, body) = ask(&tunnel, Method::POST, paths::HEARTBEAT, &beat).await;
        assert_eq!(status, 200, "{body}");
        let (status, page) = ask(&tunnel, Method::GET, paths::OBJECTS, &Value::Null).await;
        assert_eq!(status, 200, "{page}");
        page
    };
    let extension = format!("{}/providers/{EXTENSIONS}/web?api-version=2023-05-01", id("edge"));
    let owner = async |method: &str, body: Option<Value>| {
        let token = site.world.issuer.token("owner", &[], URL, SystemTime::now());
        site.http(method, &extension, Some(&token), body, None).await
    };
    let made = owner("PUT", Some(json!({"properties": {"extensionType": "example.web"}}))).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let page = told(&site.enrol("edge", &key).await).await;
    assert_eq!((&page["identity"], page["objects"].as_array().unwrap().len()), (&json!(principal), 1), "{page}");

    // It waits for the cluster, whose certificate ends. Who connects clusters connects it again.
    assert_eq!(owner("DELETE", None).await.status, 202);
    site.ahead.store(91 * DAY, Ordering::SeqCst);
    let body = json!({
        "location": "here",
        "identity": {"type": "SystemAssigned"},
        "properties": {"agentPublicKeyCertificate": new.public},
    });
    let token = site.world.issuer.token("mallory", &[], URL, SystemTime::now());
    let target = format!("{}?api-version=2024-01-01", id("edge"));
    let given = async {
        loop {
            let given = site.http("PUT", &target, Some(&token), Some(body.clone()), None).await;
            // Until the gateway has noticed that the tunnel is gone.
            if given.status != 409 {
                return given;
            }
        }
    };
    let given = tokio::time::timeout(LONG, given).await.unwrap();
    assert_eq!(given.status, 200, "{}", given.text());
    assert_ne!(given.json()["identity"]["principalId"], principal.as_str());
    assert!(!given.text().contains(&principal), "{}", given.text());
    // Whoever dials looks at the real clock.
    site.ahead.store(0, Ordering::SeqCst);
    let page = told(&site.enrol("edge", &new).await).await;
    assert_eq!((&page["identity"], &page["objects"][0]["deleting"]), (&json!(principal), &json!(true)), "{page}");

    // Made again it is another one.
    site.delete("edge").await;
    let principal = site.cluster("edge", &new).await;
    let page = told(&site.enrol("edge", &new).await).await;
    assert_eq!((&page["identity"], &page["objects"]), (&json!(principal), &json!([])), "{page}");
}

#[tokio::test]
async fn r13_an_agent_comes_to_a_resource_that_was_there_before_and_a_wrong_key_gets_a_hint() {
    let site = Site::new().await;
    let key = Onboarding::new();
    site.cluster("edge", &key).await;
    let shown = site.api("GET", id("edge").as_str(), None).await.json();
    assert_eq!(shown["properties"]["connectivityStatus"], "Connecting");
    let refused = site.try_enrol("edge", &Onboarding::new(), "uid").await.err().unwrap();
    assert_eq!(refused.status, 401);
    assert!(message(&refused).contains("towline connect"), "{}", message(&refused));
    let given = site.enrol("edge", &key).await;
    site.tunnel(&given).await;
    let settings = site.http("GET", "/.towline/agent/settings", None, None, None).await.json();
    assert_eq!(settings["urls"], json!([URL]));
    assert_eq!(settings["tenantId"], TENANT);
    assert_eq!(settings["issuers"][0]["name"], "dev");
    assert!(settings["issuers"][0]["keys"].as_str().unwrap().contains("\"keys\""));
}

#[tokio::test]
async fn r9_a_cluster_gets_tokens_of_its_identity_for_allowed_audiences_alone() {
    let site = Site::with("token_audiences = [\"api://vault\"]").await;
    let key = Onboarding::new();
    let principal = site.cluster("edge", &key).await;
    let tunnel = site.tunnel(&site.enrol("edge", &key).await).await;
    let wanted = |audience: &str| json!({"audience": audience});
    let (status, body) = ask(&tunnel, Method::POST, paths::TOKEN, &wanted(URL)).await;
    assert_eq!((status, &body["error"]["code"]), (503, &json!("ServiceUnavailable")), "the issuer is not there yet");
    site.open_issuer();
    for audience in [URL, &format!("{URL}/"), "api://vault"] {
        let (status, body) = ask(&tunnel, Method::POST, paths::TOKEN, &wanted(audience)).await;
        assert_eq!(status, 200, "{body}");
        let claims = body["token"].as_str().unwrap().split('.').nth(1).unwrap().to_owned();
        let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims).unwrap();
        let claims: Value = serde_json::from_slice(&claims).unwrap();
        assert_eq!((&claims["oid"], &claims["exp"]), (&json!(principal), &body["expiresOn"]));
        assert_eq!(claims["aud"], audience.trim_end_matches('/'));
        assert_eq!(claims["xms_mirid"], id("edge").as_str());
    }
    for audience in ["", "https://elsewhere.test", &id("edge").audience(), &id("other").audience()] {
        let (status, body) = ask(&tunnel, Method::POST, paths::TOKEN, &wanted(audience)).await;
        assert_eq!((status, &body["error"]["code"]), (400, &json!("InvalidAudience")), "{audience}");
    }
}

#[tokio::test]
async fn e11_a_cluster_gets_tokens_of_its_own_extensions_identities() {
    let site = Site::new().await;
    let (key, other) = (Onboarding::new(), Onboarding::new());
    let cluster = site.cluster("edge", &key).await;
    site.cluster("other", &other).await;
    let tunnel = site.tunnel(&site.enrol("edge", &key).await).await;
    let others = site.tunnel(&site.try_enrol("other", &other, "another-uid").await.ok().unwrap()).await;
    site.open_issuer();
    let extension =
        |name: &str| format!("{}/providers/Microsoft.KubernetesConfiguration/extensions/{name}", id("edge"));
    let write = async |name: &str, body: Value| {
        let token = site.world.issuer.token("owner", &[], URL, SystemTime::now());
        let target = format!("{}?api-version=2023-05-01", extension(name));
        let made = site.http("PUT", &target, Some(&token), Some(body), None).await;
        assert!(matches!(made.status, 200 | 201), "{}", made.text());
        made.json()["identity"]["principalId"].clone()
    };
    let shop = json!({"identity": {"type": "SystemAssigned"}, "properties": {"extensionType": "example.shop"}});
    let principal = write("shop", shop).await;
    write("bare", json!({"properties": {"extensionType": "example.shop"}})).await;
    let wanted = |extension: &str| json!({"audience": URL, "extension": extension});
    let (status, body) = ask(&tunnel, Method::POST, paths::TOKEN, &wanted("shop")).await;
    assert_eq!(status, 200, "{body}");
    let claims = body["token"].as_str().unwrap().split('.').nth(1).unwrap().to_owned();
    let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.decode(claims).unwrap();
    let claims: Value = serde_json::from_slice(&claims).unwrap();
    assert_eq!((&claims["oid"], &claims["sub"], &claims["aud"]), (&principal, &principal, &json!(URL)));
    assert_ne!(principal, cluster.as_str());
    let resource = claims["xms_mirid"].as_str().unwrap();
    assert!(resource.eq_ignore_ascii_case(&extension("shop")), "{resource}");
    for (tunnel, name, status, code) in [
        (&tunnel, "bare", 409, "IdentityMissing"),
        (&tunnel, "nothing", 404, "ExtensionNotFound"),
        (&tunnel, "../edge", 404, "ExtensionNotFound"),
        (&tunnel, "", 404, "ExtensionNotFound"),
        (&others, "shop", 404, "ExtensionNotFound"),
    ] {
        let (found, body) = ask(tunnel, Method::POST, paths::TOKEN, &wanted(name)).await;
        assert_eq!((found, &body["error"]["code"]), (status, &json!(code)), "{name}");
    }
}

impl Site {
    fn group() -> String {
        format!("/subscriptions/{SUBSCRIPTION}/resourceGroups/Fleet")
    }

    /// A one-time token.
    async fn token(&self, asked: Value) -> String {
        let made = self.api("POST", &format!("{}/createEnrolmentToken", Self::group()), Some(asked)).await;
        assert_eq!(made.status, 200, "{}", made.text());
        made.json()["token"].as_str().unwrap().to_owned()
    }

    async fn join(&self, token: &str, name: &str, key: &Onboarding) -> Answer {
        self.agents("enrol", json!({"token": token, "name": name, "publicKey": key.public, "location": "here"})).await
    }
}

#[tokio::test]
async fn r14_a_one_time_token_creates_one_cluster_in_place_of_a_role() {
    let site = Site::new().await;
    let key = Onboarding::new();
    let token = site.token(json!({})).await;
    let joined = site.join(&token, "edge", &key).await;
    assert_eq!(joined.status, 200, "{}", joined.text());
    let shown = site.api("GET", id("edge").as_str(), None).await.json();
    assert_eq!(shown["identity"]["principalId"], joined.json()["principalId"]);
    assert_eq!(shown["systemData"]["createdBy"], "enrolment token of dev:owner");
    let given = site.enrol("edge", &key).await;
    site.tunnel(&given).await;
    let again = site.join(&token, "other", &key).await;
    assert_eq!((again.status, code(&again).as_str()), (401, codes::INVALID_PROOF));
    assert_eq!(site.api("GET", id("other").as_str(), None).await.status, 404);
    // At rest it is a hash.
    let secret = token.rsplit('.').next().unwrap();
    for entry in std::fs::read_dir(site.world.dir.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap_or_default();
        assert!(!bytes.windows(secret.len()).any(|window| window == secret.as_bytes()));
    }
}

/// They choose what fleet assignments give it, secrets too.
#[tokio::test]
async fn r14_g13_tags_of_a_token_are_those_of_its_cluster_whatever_the_enrolment_says() {
    let site = Site::new().await;
    let key = Onboarding::new();
    let token = site.token(json!({"tags": {"ring": "late"}})).await;
    let foreign = json!({"ring": "canary", "more": "x"});
    let asked = json!({"token": token, "name": "edge", "publicKey": key.public, "location": "here", "tags": foreign});
    let joined = site.agents("enrol", asked).await;
    assert_eq!(joined.status, 200, "{}", joined.text());
    assert_eq!(site.api("GET", id("edge").as_str(), None).await.json()["tags"], json!({"ring": "late"}));
    // One without leaves them to who enrols.
    let token = site.token(json!({})).await;
    let asked = json!({"token": token, "name": "other", "publicKey": key.public, "location": "here", "tags": foreign});
    assert_eq!(site.agents("enrol", asked).await.status, 200);
    assert_eq!(site.api("GET", id("other").as_str(), None).await.json()["tags"], foreign);
    let bad = json!({"tags": {"ring": 1}});
    let refused = site.api("POST", &format!("{}/createEnrolmentToken", Site::group()), Some(bad)).await;
    assert_eq!(refused.status, 400, "{}", refused.text());
}

/// The answer to whoever used a token may be lost, or what came behind it: the key tells that the cluster is theirs.
#[tokio::test]
async fn r14_who_has_a_clusters_key_is_told_that_it_is_enrolled_and_nobody_else() {
    let site = Site::new().await;
    let key = Onboarding::new();
    let asked = async |name: &str, key: &Onboarding, challenge: &str| {
        let signature = key.sign(&enrolled_message(&id(name), challenge));
        let question = json!({"clusterId": id(name).as_str(), "challenge": challenge, "signature": signature});
        site.agents("enrolled", question).await
    };
    let refused = asked("edge", &key, &site.challenge("edge").await).await;
    assert_eq!((refused.status, code(&refused).as_str()), (401, codes::INVALID_PROOF), "it is not there yet");
    let joined = site.join(&site.token(json!({})).await, "edge", &key).await;
    let challenge = site.challenge("edge").await;
    assert_eq!(asked("edge", &key, &challenge).await.json(), joined.json());
    assert_eq!(asked("edge", &key, &challenge).await.status, 401, "a challenge is good once");
    assert_eq!(asked("edge", &Onboarding::new(), &site.challenge("edge").await).await.status, 401);
    // What is signed for a certificate says nothing here.
    let challenge = site.challenge("edge").await;
    let signature = key.sign(&enrolment_message(&id("edge"), &challenge, "", ""));
    let question = json!({"clusterId": id("edge").as_str(), "challenge": challenge, "signature": signature});
    assert_eq!(site.agents("enrolled", question).await.status, 401);
    site.delete("edge").await;
    assert_eq!(asked("edge", &key, &site.challenge("edge").await).await.status, 401, "it was deleted");
}

/// As a PUT is refused; the token is still good.
#[tokio::test]
async fn r11_a_token_creates_nothing_where_the_provider_is_not_registered() {
    let site = Site::new().await;
    let key = Onboarding::new();
    let token = site.token(json!({})).await;
    let provider = format!("/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Kubernetes");
    assert_eq!(site.api("POST", &format!("{provider}/unregister"), None).await.status, 200);
    let refused = site.join(&token, "edge", &key).await;
    assert_eq!((refused.status, code(&refused).as_str()), (409, "MissingSubscriptionRegistration"));
    assert_eq!(site.api("POST", &format!("{provider}/register"), None).await.status, 200);
    assert_eq!(site.join(&token, "edge", &key).await.status, 200);
}

#[tokio::test]
async fn r14_of_two_users_at_once_one_wins() {
    let site = Site::new().await;
    let token = site.token(json!({})).await;
    let (one, two) = (Onboarding::new(), Onboarding::new());
    let (a, b) = tokio::join!(site.join(&token, "a", &one), site.join(&token, "b", &two));
    let mut statuses = [a.status, b.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 401], "{} {}", a.text(), b.text());
}

#[tokio::test]
async fn r14_a_token_ends_and_is_bound_to_its_group_and_name() {
    let site = Site::new().await;
    let key = Onboarding::new();
    let short = site.token(json!({"expiresInSeconds": 60})).await;
    let named = site.token(json!({"name": "edge", "expiresInSeconds": 7 * DAY})).await;
    site.ahead.store(61, Ordering::SeqCst);
    let ended = site.join(&short, "late", &key).await;
    assert_eq!((ended.status, code(&ended).as_str()), (401, codes::INVALID_PROOF));
    assert_eq!(site.join(&named, "another", &key).await.status, 403);
    site.cluster("edge", &key).await;
    let there = site.join(&named, "Edge", &key).await;
    assert_eq!((there.status, code(&there).as_str()), (409, "ResourceExists"), "what is there is not taken over");
    site.delete("edge").await;
    for public in ["AAAA", ""] {
        let body = json!({"token": named, "name": "edge", "publicKey": public, "location": "here"});
        let refused = site.agents("enrol", body).await;
        assert_eq!(refused.status, 400, "{}", refused.text());
    }
    assert_eq!(site.join(&named, "edge", &key).await.status, 200, "what was refused did not use it up");
    // A token goes with its group.
    let last = site.token(json!({})).await;
    assert_eq!(site.api("DELETE", &Site::group(), None).await.status, 202);
    assert_eq!(site.join(&last, "more", &key).await.status, 401);
    for bad in ["", "x", &last[..last.len() - 1], &format!("{last}0")] {
        assert_eq!(site.join(bad, "more", &key).await.status, 401);
    }
}

#[tokio::test]
async fn r14_who_may_not_write_clusters_makes_no_tokens() {
    let site = Site::new().await;
    let token = site.world.issuer.token("nobody", &[], URL, SystemTime::now());
    let target = format!("{}/createEnrolmentToken?api-version=2024-03-01", Site::group());
    let refused = site.http("POST", &target, Some(&token), Some(json!({})), None).await;
    assert_eq!((refused.status, code(&refused).as_str()), (403, "AuthorizationFailed"));
    assert!(message(&refused).contains("Microsoft.Kubernetes/connectedClusters/write"), "{}", message(&refused));
    for bad in [json!({"expiresInSeconds": 1}), json!({"expiresInSeconds": 8 * DAY}), json!({"name": "a/b"})] {
        let refused = site.api("POST", &format!("{}/createEnrolmentToken", Site::group()), Some(bad)).await;
        assert_eq!(refused.status, 400, "{}", refused.text());
    }
}

#[tokio::test]
async fn r14_tokens_are_listed_without_their_secrets_and_withdrawn() {
    let site = Site::new().await;
    let at = |action: &str| format!("{}/{action}", Site::group());
    let list = async || site.api("POST", &at("listEnrolmentTokens"), Some(json!({}))).await.json()["value"].clone();
    assert_eq!(list().await, json!([]));
    let (first, named) = (site.token(json!({})).await, site.token(json!({"name": "edge"})).await);
    let listed = list().await;
    let secret = |token: &str| token.rsplit('.').next().unwrap().to_owned();
    assert!([&first, &named].iter().all(|token| !listed.to_string().contains(&secret(token))), "{listed}");
    assert_eq!((&listed[0]["name"], &listed[1]["name"]), (&Value::Null, &json!("edge")));
    assert_eq!((&listed[0]["createdBy"], listed.as_array().unwrap().len()), (&json!("dev:owner"), 2));
    assert!(listed[0]["createdOn"].as_str() < listed[0]["expiresOn"].as_str(), "{listed}");
    let id_of = |token: &str| token.split('.').nth(2).unwrap().to_owned();
    assert_eq!((&listed[0]["id"], &listed[1]["id"]), (&json!(id_of(&first)), &json!(id_of(&named))));
    let gone = site.api("POST", &at("withdrawEnrolmentToken"), Some(json!({"id": id_of(&first)}))).await;
    assert_eq!(gone.status, 200, "{}", gone.text());
    assert_eq!(list().await.as_array().unwrap().len(), 1);
    assert_eq!(site.join(&first, "more", &Onboarding::new()).await.status, 401);
    for bad in [id_of(&first).as_str(), "../x", ""] {
        let refused = site.api("POST", &at("withdrawEnrolmentToken"), Some(json!({"id": bad}))).await;
        assert_eq!((refused.status, code(&refused).as_str()), (404, "EnrolmentTokenNotFound"), "{bad}");
    }
    assert_eq!(site.api("POST", &at("withdrawEnrolmentToken"), Some(json!({}))).await.status, 400);
    let token = site.world.issuer.token("nobody", &[], URL, SystemTime::now());
    for action in ["listEnrolmentTokens", "withdrawEnrolmentToken"] {
        let target = format!("{}?api-version=2024-03-01", at(action));
        let refused = site.http("POST", &target, Some(&token), Some(json!({})), None).await;
        assert_eq!(refused.status, 403, "{}", refused.text());
    }
}

/// A token is its maker's right, lent.
#[tokio::test]
async fn r14_a_token_ends_with_the_right_of_who_made_it() {
    let site = Site::new().await;
    let key = Onboarding::new();
    let role = "34e09817-6cbe-4d01-b1a2-e0eac5743d41";
    let assignment = format!(
        "{}/providers/Microsoft.Authorization/roleAssignments/{ASSIGNED}?api-version=2022-04-01",
        Site::group()
    );
    let owner = site.world.issuer.token("owner", &[], URL, SystemTime::now());
    let body = json!({"properties": {
        "roleDefinitionId": format!("/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions/{role}"),
        "principalId": "dev:ops",
        "principalType": "Group",
    }});
    let made = site.http("PUT", &assignment, Some(&owner), Some(body.clone()), None).await;
    assert_eq!(made.status, 201, "{}", made.text());
    let ann = site.world.issuer.token("ann", &["others", "ops"], URL, SystemTime::now());
    let target = format!("{}/createEnrolmentToken?api-version=2024-03-01", Site::group());
    let make = async || {
        let made = site.http("POST", &target, Some(&ann), Some(json!({})), None).await;
        assert_eq!(made.status, 200, "{}", made.text());
        made.json()["token"].as_str().unwrap().to_owned()
    };
    let (first, second) = (make().await, make().await);
    assert_eq!(site.join(&first, "edge", &key).await.status, 200);
    assert_eq!(site.http("DELETE", &assignment, Some(&owner), None, None).await.status, 200);
    let refused = site.join(&second, "other", &key).await;
    assert_eq!((refused.status, code(&refused).as_str()), (401, codes::INVALID_PROOF));
    assert_eq!(site.http("PUT", &assignment, Some(&owner), Some(body), None).await.status, 201);
    let disabled = world::config_with("authority_dir = \"authority\"", &section("[[disabled]]\nuser = \"dev:ann\""));
    site.world.reconfigure(&disabled).await.unwrap();
    assert_eq!(site.join(&second, "other", &key).await.status, 401, "who made it is disabled");
}

/// Whoever holds a token for any name could else ask for one name after the other.
#[tokio::test]
async fn r14_a_token_for_any_name_does_not_tell_which_there_are() {
    let site = Site::new().await;
    let key = Onboarding::new();
    site.cluster("edge", &key).await;
    let token = site.token(json!({})).await;
    let taken = site.join(&token, "EDGE", &key).await;
    let none = site.join("x", "edge", &key).await;
    assert_eq!((taken.status, taken.text()), (401, none.text()), "as a token that is none");
    assert_eq!(site.join(&token, "free", &key).await.status, 401, "and it cannot be asked again");
}

#[tokio::test]
async fn r14_token_makes_no_cluster_that_its_group_has_no_room_for() {
    let site = Site::of("", "[api.quotas]\ngroup_mib = 1").await;
    let key = Onboarding::new();
    // 150 KiB.
    let tags: serde_json::Map<String, Value> =
        (0..50).map(|n| (format!("{n:0>2}{}", "\u{1d11e}".repeat(510)), json!("\u{1d11e}".repeat(256)))).collect();
    for n in 0..6 {
        let body = json!({
            "location": "here", "tags": tags, "identity": {"type": "SystemAssigned"},
            "properties": {"agentPublicKeyCertificate": ""},
        });
        site.put(id(&format!("c{n}")).as_str(), body).await;
    }
    let token = site.token(json!({})).await;
    let asked = json!({"token": token, "name": "edge", "publicKey": key.public, "location": "here", "tags": tags});
    let refused = site.agents("enrol", asked).await;
    assert_eq!((refused.status, code(&refused).as_str()), (409, "QuotaExceeded"), "{}", refused.text());
    assert!(message(&refused).contains("'fleet' holds resources of"), "{}", refused.text());
    assert_eq!(site.api("GET", id("edge").as_str(), None).await.status, 404);
    assert_eq!(site.join(&token, "edge", &key).await.status, 200, "the token was not used, and a small one has room");
}

/// The certificate is the right to reach the cluster; who one is there, its own service-account token says.
#[tokio::test]
async fn a6_the_token_method_gives_an_access_certificate_and_leaves_the_token_to_the_user() {
    let site = Site::new().await;
    let key = Onboarding::new();
    site.cluster("edge", &key).await;
    let body = json!({"authenticationMethod": "Token", "clientProxy": false});
    let made = site.api("POST", &format!("{}/listClusterUserCredential", id("edge")), Some(body)).await;
    assert_eq!(made.status, 200, "{}", made.text());
    let text = BASE64.decode(made.json()["kubeconfigs"][0]["value"].as_str().unwrap()).unwrap();
    let kubeconfig: Value = serde_json::from_slice(&text).unwrap();
    let user = kubeconfig["users"][0]["user"].as_object().unwrap();
    assert_eq!(user.keys().collect::<Vec<_>>(), ["client-certificate-data", "client-key-data"]);
    let pem = |name: &str| BASE64.decode(user[name].as_str().unwrap()).unwrap();
    let own = Credentials::from_pem(&pem("client-certificate-data"), &pem("client-key-data")).unwrap();
    assert!(own.not_after() <= SystemTime::now() + Duration::from_secs(3601));
    let peer = Peer::verify(own.chain(), &site.world.authority.roots().unwrap(), SystemTime::now()).unwrap();
    assert_eq!(peer.identity.access().unwrap(), (id("edge").as_str(), "dev:owner"));
    // It opens no tunnel.
    assert!(matches!(site.world.dial(&own).await, Err(HelloError::Refused { code: CloseCode::Unauthorised, .. })));
}

/// Role assignments of the test.
const ASSIGNED: &str = "33333333-3333-4333-8333-333333333333";

/// A cluster with an agent, and somebody's access certificate for it.
struct Reached {
    site: Site,
    key: Onboarding,
    agent: Agent,
    own: Credentials,
}

impl Reached {
    /// `groups`: ann's; the role is given to `principal`.
    async fn new(groups: &[&str], principal: &str, kind: &str) -> Self {
        let site = Site::new().await;
        let key = Onboarding::new();
        site.cluster("edge", &key).await;
        let agent = Agent { tunnel: site.tunnel(&site.enrol("edge", &key).await).await };
        site.assign(principal, kind).await;
        let own = site.access("ann", groups).await;
        Self { site, key, agent, own }
    }

    /// A watch with a token that only the cluster can judge, that has begun.
    async fn watch(&self) -> (world::User, Arrived) {
        let mut user = self.send().await;
        let mut arrived = self.agent.next().await;
        assert_eq!(arrived.header("authorization"), Some("Bearer of-the-cluster"));
        arrived.answer_head(200, &[]).await;
        arrived.stream.send.send(Bytes::from_static(b"event")).await.unwrap();
        assert_eq!(user.head().await.status, 200);
        user.until(b"event").await;
        (user, arrived)
    }

    async fn send(&self) -> world::User {
        let mut user = self.site.world.user_as("localhost", Some(&self.own), &[tls::ALPN_HTTP11]).await;
        user.send(world::get(&format!("/{}/api/v1/pods?watch=1", id("edge").key()), "of-the-cluster", "")).await;
        user
    }

    /// That the session ends and that no other begins.
    async fn is_refused(&self, (mut user, _arrived): (world::User, Arrived)) {
        while user.more().await {}
        assert!(!user.buffer.ends_with(b"0\r\n\r\n"), "cut, not ended");
        let answer = self.send().await.answer().await;
        assert_eq!(answer.status, 403, "{}", answer.text());
    }
}

impl Site {
    /// Gives somebody a role that lets them reach the cluster.
    async fn assign(&self, principal: &str, kind: &str) {
        let body = json!({"properties": {
            "roleDefinitionId": format!("/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Authorization/roleDefinitions/00493d72-78f6-4148-b6c5-d3ce8e4799dd"),
            "principalId": principal,
            "principalType": kind,
        }});
        let token = self.world.issuer.token("owner", &[], URL, SystemTime::now());
        let made = self.http("PUT", &Self::assignment(), Some(&token), Some(body), None).await;
        assert_eq!(made.status, 201, "{}", made.text());
    }

    async fn unassign(&self) {
        let token = self.world.issuer.token("owner", &[], URL, SystemTime::now());
        let gone = self.http("DELETE", &Self::assignment(), Some(&token), None, None).await;
        assert_eq!(gone.status, 200, "{}", gone.text());
    }

    fn assignment() -> String {
        format!("{}/providers/Microsoft.Authorization/roleAssignments/{ASSIGNED}?api-version=2022-04-01", id("edge"))
    }

    /// An access certificate by the API.
    async fn access(&self, user: &str, groups: &[&str]) -> Credentials {
        self.access_with(&self.world.issuer.token(user, groups, URL, SystemTime::now())).await
    }

    async fn access_with(&self, token: &str) -> Credentials {
        let target = format!("{}/listClusterUserCredential?api-version=2024-01-01", id("edge"));
        let body = json!({"authenticationMethod": "Token", "clientProxy": false});
        let made = self.http("POST", &target, Some(token), Some(body), None).await;
        assert_eq!(made.status, 200, "{}", made.text());
        let text = BASE64.decode(made.json()["kubeconfigs"][0]["value"].as_str().unwrap()).unwrap();
        let kubeconfig: Value = serde_json::from_slice(&text).unwrap();
        let pem = |name: &str| BASE64.decode(kubeconfig["users"][0]["user"][name].as_str().unwrap()).unwrap();
        Credentials::from_pem(&pem("client-certificate-data"), &pem("client-key-data")).unwrap()
    }
}

#[tokio::test]
async fn a6_an_access_certificate_ends_with_the_role_that_gave_it() {
    let reached = Reached::new(&[], "dev:ann", "User").await;
    let open = reached.watch().await;
    reached.site.unassign().await;
    reached.is_refused(open).await;
    // Given back, it is good again: it was never more than the role.
    reached.site.assign("dev:ann", "User").await;
    reached.watch().await;
}

#[tokio::test]
async fn a6_an_access_certificate_by_a_group_s_role_ends_with_that() {
    let reached = Reached::new(&["others", "ops"], "dev:ops", "Group").await;
    let open = reached.watch().await;
    reached.site.unassign().await;
    reached.is_refused(open).await;
}

/// The certificate went on for its hour when the password was replaced that it was asked for with.
#[tokio::test]
async fn a6_an_access_certificate_ends_with_the_password_that_was_signed_in_with() {
    let site = Site::new().await;
    let key = Onboarding::new();
    site.cluster("edge", &key).await;
    let agent = Agent { tunnel: site.tunnel(&site.enrol("edge", &key).await).await };
    site.open_issuer();
    let issuer = site.world.gateway.core().issuer.load_full().unwrap();
    let folder = site.world.dir.path().to_owned();
    let password = |password: &str| {
        let made =
            Users::edit(&folder.join("issuer/users.json"), |users| Ok(users.put("ann", &[], password)?.id.clone()));
        made.unwrap()
    };
    let ann = password("the-first-one");
    std::fs::write(folder.join("own-keys.json"), issuer.key_set().to_string()).unwrap();
    let own = "[[issuers]]\nname = \"own\"\nurl = \"https://gateway.test/.towline/issuer\"\n\
               keys_file = \"own-keys.json\"\nusername_prefix = \"own:\"\n";
    let text = world::config_with("authority_dir = \"authority\"", &section(own));
    site.world.reconfigure(&text).await.unwrap();
    site.assign(&format!("own:{ann}"), "User").await;
    let signed_in = async |site: &Site, password: &str| {
        let form = format!("grant_type=password&username=ann&password={password}&audience={URL}");
        let request = http::Request::post("/.towline/issuer/token")
            .header("content-type", "application/x-www-form-urlencoded")
            .body(http_body_util::Full::new(Bytes::from(form)))
            .unwrap();
        let answer = issuer.handle([127, 0, 0, 1].into(), request).await.into_body();
        let answer = http_body_util::BodyExt::collect(answer).await.unwrap().to_bytes();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        site.access_with(answer["access_token"].as_str().unwrap_or_else(|| panic!("{answer}"))).await
    };
    let first = signed_in(&site, "the-first-one").await;
    // As a gateway of before issued it, which did not note that.
    let roots = site.world.authority.roots().unwrap();
    let peer = Peer::verify(first.chain(), &roots, SystemTime::now()).unwrap();
    let mut holder = gateway::identity::Holder::of(&peer.holder.unwrap()).unwrap();
    assert!(holder.credential.take().is_some());
    let text = holder.to_text().unwrap();
    let of_before = site.world.authority.issue_access_for(id("edge").as_str(), "own:ann", &text, Validity::days(1));
    let of_before = of_before.unwrap().credentials().clone();

    let mut reached = Reached { site, key, agent, own: first };
    let open = reached.watch().await;
    password("another-one");
    reached.is_refused(open).await;
    reached.own = of_before;
    reached.watch().await;
    reached.own = signed_in(&reached.site, "another-one").await;
    reached.watch().await;
}

/// A token of somebody in a thousand groups is as large as a head may be; a certificate names those that give the
/// right.
#[tokio::test]
async fn a6_somebody_in_very_many_groups_gets_a_certificate_or_is_told_why_not() {
    let reached = Reached::new(&["ops"], "dev:ops", "Group").await;
    let site = &reached.site;
    let mut groups: Vec<String> = (0..700).map(|n| format!("group-{n:04}")).collect();
    groups.push("ops".to_owned());
    let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
    let holder = |own: &Credentials| {
        let peer = Peer::verify(own.chain(), &site.world.authority.roots().unwrap(), SystemTime::now()).unwrap();
        gateway::identity::Holder::of(&peer.holder.unwrap()).unwrap()
    };
    assert_eq!(holder(&site.access("ann", &groups).await).groups, ["dev:ops"], "the last of all, and no other");
    // With a right of their own, a group that gives nothing takes no place.
    assert_eq!(holder(&site.access("owner", &groups).await).groups, ["dev:ops"]);
    // What no certificate holds is said to be that.
    let long = "x".repeat(9000);
    site.unassign().await;
    let name = format!("dev:{}", &long[..500]);
    site.assign(&name, "Group").await;
    assert_eq!(holder(&site.access("ann", &[&long[..500]]).await).groups, [name]);
    let token = site.world.issuer.token(&long, &[&long[..500]], URL, SystemTime::now());
    let target = format!("{}/listClusterUserCredential?api-version=2024-01-01", id("edge"));
    let body = json!({"authenticationMethod": "Token", "clientProxy": false});
    let refused = site.http("POST", &target, Some(&token), Some(body), None).await;
    assert!((400..500).contains(&refused.status), "{}", refused.text());
}

/// The same name, another cluster: who could reach the one was never let into the other.
#[tokio::test]
async fn a6_an_access_certificate_is_nothing_to_the_cluster_of_the_same_name_that_follows() {
    let reached = Reached::new(&[], "dev:ann", "User").await;
    let open = reached.watch().await;
    reached.site.delete("edge").await;
    reached.is_refused(open).await;
    reached.site.cluster("edge", &reached.key).await;
    reached.site.assign("dev:ann", "User").await;
    let answer = reached.send().await.answer().await;
    assert_eq!(answer.status, 403, "{}", answer.text());
}

/// One that was made with the authority's key says nobody's right: it is none to clusters that the API has.
#[tokio::test]
async fn a6_an_access_certificate_of_nobody_is_nothing_to_a_cluster_of_the_api() {
    let site = Site::new().await;
    site.cluster("edge", &Onboarding::new()).await;
    let by_hand = site.world.authority.issue_access(id("edge").as_str(), "ann", Validity::days(1)).unwrap();
    let target = format!("/{}/version", id("edge").key());
    let answer = site.http("GET", &target, Some("of-the-cluster"), None, Some(by_hand.credentials())).await;
    assert_eq!(answer.status, 403, "{}", answer.text());
}
