//! Test issuers: real keys, real signatures, wrong ones on request. Behind the feature `testing`, for the tests of the
//! other crates too; nothing here loosens a check.

use std::{
    collections::HashMap,
    path::Path,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::SystemTime,
};

use aws_lc_rs::{
    encoding::AsDer as _,
    rand::SystemRandom,
    rsa::KeySize,
    signature::{self, ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _, RsaEncoding, RsaKeyPair},
};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD as B64};
use bytes::Bytes;
use serde_json::{Value, json};
pub use types::instants::unix_seconds;
use url::Url;

use super::{
    Verifier,
    config::{Issuer, KeySource, RawIssuer},
    error::FetchError,
    fetch::{Boxed, Fetch},
    jwk::KeySet,
    jws::sha256,
};

/// A signing key with its id.
#[derive(Clone)]
pub struct TestKey {
    /// The key's id, which the tokens have as `kid`.
    pub kid: String,
    pair: Arc<Pair>,
}

enum Pair {
    Ec(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

impl TestKey {
    /// A new P-256 key (`ES256`).
    pub fn es256(kid: &str) -> Self {
        let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).expect("key generation needs only entropy");
        Self { kid: kid.to_owned(), pair: Arc::new(Pair::Ec(pair)) }
    }

    /// An RSA key of 2048 bits (`RS256`): one of `number`, made once per process because that is slow.
    pub fn rs256(kid: &str, number: usize) -> Self {
        static KEYS: OnceLock<Mutex<HashMap<usize, Arc<Pair>>>> = OnceLock::new();
        let mut keys = KEYS.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            let pair = RsaKeyPair::generate(KeySize::Rsa2048).expect("key generation needs only entropy");
            Arc::new(Pair::Rsa(pair))
        };
        Self { kid: kid.to_owned(), pair: keys.entry(number).or_insert_with(make).clone() }
    }

    /// The same key under another id.
    #[must_use]
    pub fn named(&self, kid: &str) -> Self {
        Self { kid: kid.to_owned(), pair: self.pair.clone() }
    }

    /// The algorithm's name.
    pub fn algorithm(&self) -> &'static str {
        match *self.pair {
            Pair::Ec(_) => "ES256",
            Pair::Rsa(_) => "RS256",
        }
    }

    /// The public half as a JWK.
    pub fn jwk(&self) -> Value {
        match &*self.pair {
            Pair::Ec(pair) => {
                let point = pair.public_key().as_ref();
                let (x, y) = (B64.encode(&point[1..33]), B64.encode(&point[33..65]));
                json!({"kty": "EC", "crv": "P-256", "x": x, "y": y, "use": "sig", "alg": "ES256", "kid": self.kid})
            }
            Pair::Rsa(pair) => {
                let n = B64.encode(pair.public_key().modulus().big_endian_without_leading_zero());
                let e = B64.encode(pair.public_key().exponent().big_endian_without_leading_zero());
                json!({"kty": "RSA", "n": n, "e": e, "use": "sig", "alg": "RS256", "kid": self.kid})
            }
        }
    }

    /// The public half as DER (SubjectPublicKeyInfo), for the test that signs HS256 with it.
    pub fn public_der(&self) -> Vec<u8> {
        match &*self.pair {
            Pair::Ec(pair) => pair.public_key().as_ref().to_vec(),
            Pair::Rsa(pair) => pair.public_key().as_der().map(|der| der.as_ref().to_vec()).unwrap_or_default(),
        }
    }

    /// RFC 7638, base64url.
    pub fn thumbprint(&self) -> String {
        let jwk = self.jwk();
        let names: &[&str] = if self.algorithm() == "ES256" { &["crv", "kty", "x", "y"] } else { &["e", "kty", "n"] };
        let members: Vec<String> = names.iter().map(|name| format!("\"{name}\":{}", jwk[*name])).collect();
        B64.encode(sha256(&[format!("{{{}}}", members.join(",")).as_bytes()]))
    }

    /// Signs with the key's own algorithm.
    pub fn sign(&self, message: &[u8]) -> Vec<u8> {
        self.sign_with(&signature::RSA_PKCS1_SHA256, message)
    }

    fn sign_with(&self, rsa: &'static dyn RsaEncoding, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &*self.pair {
            Pair::Ec(pair) => pair.sign(&random, message).expect("a fresh key signs").as_ref().to_vec(),
            Pair::Rsa(pair) => {
                let mut out = vec![0; pair.public_modulus_len()];
                pair.sign(rsa, &random, message, &mut out).expect("a fresh key signs");
                out
            }
        }
    }

    /// A compact JWS of any header and payload.
    pub fn jws(&self, header: &Value, payload: &[u8]) -> String {
        let signed = format!("{}.{}", B64.encode(header.to_string()), B64.encode(payload));
        format!("{signed}.{}", B64.encode(self.sign(signed.as_bytes())))
    }

    /// As [`TestKey::jws`] with RSA-PSS and SHA-256, which needs an RSA key.
    pub fn jws_pss(&self, header: &Value, payload: &[u8]) -> String {
        let signed = format!("{}.{}", B64.encode(header.to_string()), B64.encode(payload));
        format!("{signed}.{}", B64.encode(self.sign_with(&signature::RSA_PSS_SHA256, signed.as_bytes())))
    }

    /// What vouches for `next` in the built-in issuer's key set (`towline_attestation`).
    pub fn attest(&self, next: &Self) -> String {
        let header = json!({"alg": self.algorithm(), "kid": self.kid, "typ": "towline-key+jws"});
        self.jws(&header, next.thumbprint().as_bytes())
    }

    /// The statement that `other` ended, in the built-in issuer's key set (`towline_ended`); 0 revokes it.
    pub fn end(&self, other: &Self, until: u64) -> String {
        let header = json!({"alg": self.algorithm(), "kid": self.kid, "typ": "towline-key-ended+jws"});
        self.jws(&header, json!({"key": other.thumbprint(), "until": until}).to_string().as_bytes())
    }

    /// A proof of possession by this key (RSA) around an access token, for the ARM id `host`, made at `ts`.
    pub fn pop(&self, access_token: &str, host: &str, ts: u64) -> String {
        let header = json!({"alg": "RS256", "typ": "pop", "kid": self.thumbprint()});
        self.jws(&header, self.pop_payload(access_token, host, ts).to_string().as_bytes())
    }

    /// The payload of [`TestKey::pop`], to be changed.
    pub fn pop_payload(&self, access_token: &str, host: &str, ts: u64) -> Value {
        let jwk = self.jwk();
        let cnf = json!({"jwk": {"kty": "RSA", "n": jwk["n"], "e": jwk["e"]}});
        json!({"at": access_token, "ts": ts, "u": host, "cnf": cnf, "nonce": "n-0"})
    }
}

/// An issuer with keys; the first one signs.
#[derive(Clone)]
pub struct TestIssuer {
    /// The issuer's URL, which its tokens have as `iss`.
    pub url: String,
    /// Its keys, of which the first one signs.
    pub keys: Vec<TestKey>,
}

impl TestIssuer {
    /// With one `ES256` key of id `k1`.
    pub fn new(url: &str) -> Self {
        Self { url: url.to_owned(), keys: vec![TestKey::es256("k1")] }
    }

    /// The key that signs.
    pub fn key(&self) -> &TestKey {
        self.keys.first().expect("an issuer has a key")
    }

    /// The JWKS document.
    pub fn jwks(&self) -> Value {
        json!({"keys": self.keys.iter().map(TestKey::jwk).collect::<Vec<_>>()})
    }

    /// The discovery document.
    pub fn discovery(&self) -> Value {
        json!({"issuer": self.url, "jwks_uri": format!("{}/keys", self.url.trim_end_matches('/'))})
    }

    /// Claims of a good token: issued at `now`, for an hour, all of one sign-in of the subject.
    pub fn claims(&self, subject: &str, audience: &str, now: SystemTime) -> Value {
        let now = unix_seconds(now);
        json!({"iss": self.url, "sub": subject, "aud": audience, "iat": now, "nbf": now, "exp": now + 3600, "sid": "one"})
    }

    /// A token of these claims.
    pub fn mint(&self, claims: &Value) -> String {
        self.mint_with(&json!({"alg": self.key().algorithm(), "kid": self.key().kid, "typ": "JWT"}), claims)
    }

    /// A token with another header; signed with the first key's own algorithm whatever the header says.
    pub fn mint_with(&self, header: &Value, claims: &Value) -> String {
        self.key().jws(header, claims.to_string().as_bytes())
    }

    /// A good token.
    pub fn token(&self, subject: &str, groups: &[&str], audience: &str, now: SystemTime) -> String {
        let mut claims = self.claims(subject, audience, now);
        claims["groups"] = json!(groups);
        self.mint(&claims)
    }

    /// A configuration with `keys_file` in `dir`, for programs that read files.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn raw(&self, name: &str, dir: &Path) -> std::io::Result<RawIssuer> {
        let file = dir.join(format!("{name}-keys.json"));
        std::fs::write(&file, self.jwks().to_string())?;
        Ok(RawIssuer { keys_file: Some(file), ..RawIssuer::new(name, &self.url) })
    }

    /// Turns a configuration into an issuer with these keys and no fetching.
    pub fn fixed(&self, raw: RawIssuer) -> Issuer {
        let mut issuer = Issuer::try_from(raw).expect("the test's configuration is valid");
        issuer.keys = KeySource::Static(KeySet::read(self.jwks().to_string().as_bytes()).expect("own keys read"));
        issuer
    }

    /// A verifier of this issuer alone, under the name `test`, without fetching.
    pub fn verifier(&self) -> Verifier {
        verifier(vec![self.fixed(RawIssuer::new("test", &self.url))])
    }
}

/// A verifier whose issuers have fixed keys.
pub fn verifier(issuers: Vec<Issuer>) -> Verifier {
    let nothing: Arc<dyn Fetch> = MemoryFetch::new();
    Verifier::with_fetch(issuers, &nothing)
}

/// Documents by address, and how often they were asked for.
#[derive(Default)]
pub struct MemoryFetch {
    documents: Mutex<HashMap<String, Result<Bytes, FetchError>>>,
    /// Fetches so far, of all addresses.
    pub count: AtomicUsize,
    hold: Mutex<Option<Arc<tokio::sync::Notify>>>,
}

impl MemoryFetch {
    /// Without documents: everything is status 404.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Sets or replaces one document.
    pub fn put(&self, url: &str, document: Result<&[u8], FetchError>) {
        let document = document.map(Bytes::copy_from_slice);
        self.documents.lock().unwrap_or_else(PoisonError::into_inner).insert(url.to_owned(), document);
    }

    /// Publishes an issuer's discovery document and key set.
    pub fn publish(&self, issuer: &TestIssuer) {
        let base = issuer.url.trim_end_matches('/');
        let discovery = issuer.discovery().to_string();
        self.put(&format!("{base}/.well-known/openid-configuration"), Ok(discovery.as_bytes()));
        self.put(&format!("{base}/keys"), Ok(issuer.jwks().to_string().as_bytes()));
    }

    /// Everything fails from now on.
    pub fn down(&self) {
        let mut all = self.documents.lock().unwrap_or_else(PoisonError::into_inner);
        all.values_mut().for_each(|document| *document = Err(FetchError::Status(503)));
    }

    /// From now on answers wait until the returned event.
    pub fn hold(&self) -> Arc<tokio::sync::Notify> {
        let notify = Arc::new(tokio::sync::Notify::new());
        *self.hold.lock().unwrap_or_else(PoisonError::into_inner) = Some(notify.clone());
        notify
    }

    /// Fetches so far.
    pub fn fetches(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }
}

impl Fetch for MemoryFetch {
    fn fetch(&self, url: &Url) -> Boxed<Result<Bytes, FetchError>> {
        self.count.fetch_add(1, Ordering::SeqCst);
        let documents = self.documents.lock().unwrap_or_else(PoisonError::into_inner);
        let document = documents.get(url.as_str()).cloned().unwrap_or(Err(FetchError::Status(404)));
        let hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::pin(async move {
            if let Some(hold) = hold {
                hold.notified().await;
            }
            document
        })
    }
}
