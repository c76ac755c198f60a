//! The exchange before there is a certificate, over HTTPS with the gateway: a fresh challenge, a signature over it by
//! the onboarding key (proof of possession, docs/features.md R6), and the certificate for a key that was made here
//! (R7).

use std::{path::PathBuf, sync::Arc, time::Duration};

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{RSA_PKCS1_SHA256, RsaKeyPair},
};
use bytes::Bytes;
use daemon::{TaskGroup, settings::read_bounded};
use futures_util::future::BoxFuture;
use http::{Method, Request, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::{PrivatePkcs8KeyDer, pem::PemObject as _};
use secrecy::{ExposeSecret as _, SecretString};
use serde::{Serialize, de::DeserializeOwned};
use tokio_rustls::TlsConnector;
use types::{
    agent_api::{
        BODY_BYTES, Certificate, Challenge, ChallengeRequest, ENROLMENT_PREFIX, Enrolment, decode, encode,
        enrolment_message, enrolment_paths,
    },
    ids::ClusterId,
};

use crate::{
    chain,
    identity::{Stored, clock::SharedClock, request::KeyRequest},
    tunnel::{
        api::{ApiError, Refused},
        connect::{Connect as _, Connector},
    },
};

/// How long one exchange may take, from the first packet to the last.
const DEADLINE: Duration = Duration::from_secs(30);
/// Bytes of a challenge.
const CHALLENGE_BYTES: usize = 4096;

/// Asks for certificates with an onboarding key. A trait, so that what follows from the answers can be tested without
/// sockets.
pub trait Enrol: Send + Sync + 'static {
    /// Asks for a certificate for a new key. The cluster is known by the UID of its namespace `kube-system`.
    fn enrol<'a>(&'a self, kube_system_uid: &'a str) -> BoxFuture<'a, Result<Stored, ApiError>>;

    /// The onboarding key as it is in the file now: to see whether it has been replaced.
    fn key_text(&self) -> Option<SecretString>;
}

/// Asks the gateway.
pub struct Enroller {
    connector: Arc<Connector>,
    cluster: ClusterId,
    key_file: PathBuf,
    clock: SharedClock,
    tasks: TaskGroup,
}

impl Enroller {
    /// For this cluster, with the key in that file, which is read for each attempt.
    pub fn new(connector: Arc<Connector>, cluster: ClusterId, key_file: PathBuf, clock: SharedClock) -> Self {
        Self { connector, cluster, key_file, clock, tasks: TaskGroup::new("enrolment") }
    }

    async fn ask(&self, kube_system_uid: &str) -> Result<Stored, ApiError> {
        let key = self.key()?;
        let request = KeyRequest::new().map_err(|err| ApiError::Local(chain(&err)))?;
        let cluster_id = self.cluster.as_str().to_owned();
        let challenge: Challenge =
            self.post(enrolment_paths::CHALLENGE, &ChallengeRequest { cluster_id: cluster_id.clone() }).await?;
        if challenge.challenge.len() > CHALLENGE_BYTES || decode(&challenge.challenge).is_none() {
            return Err(ApiError::Unreadable("the challenge is not base64 of a fitting size".to_owned()));
        }
        let message = enrolment_message(&self.cluster, &challenge.challenge, &request.csr, kube_system_uid);
        let mut signature = vec![0; key.public_modulus_len()];
        key.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), &message, &mut signature)
            .map_err(|_| ApiError::Local("the onboarding key does not sign".to_owned()))?;
        let enrolment = Enrolment {
            cluster_id,
            challenge: challenge.challenge,
            csr: request.csr,
            kube_system_uid: kube_system_uid.to_owned(),
            signature: encode(&signature),
            agent_version: daemon::release::version().to_owned(),
        };
        let certificate: Certificate = self.post(enrolment_paths::CERTIFICATE, &enrolment).await?;
        Stored::new(certificate, request.key, self.clock.now()).map_err(|err| ApiError::Unreadable(chain(&err)))
    }

    fn key(&self) -> Result<RsaKeyPair, ApiError> {
        let local = |problem: &dyn std::fmt::Display| {
            ApiError::Local(format!("the onboarding key {}: {problem}", self.key_file.display()))
        };
        let text = read_bounded(&self.key_file).map(SecretString::from).map_err(|err| local(&err))?;
        let der = PrivatePkcs8KeyDer::from_pem_slice(text.expose_secret().as_bytes())
            .map_err(|_| local(&"holds no block BEGIN PRIVATE KEY (PKCS#8)"))?;
        RsaKeyPair::from_pkcs8(der.secret_pkcs8_der()).map_err(|_| local(&"is not an RSA key of 2048 to 8192 bits"))
    }

    /// Tries the gateway's addresses in turn; what one of them answers counts.
    async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ApiError> {
        let body = Bytes::from(serde_json::to_vec(body).map_err(|err| ApiError::Local(err.to_string()))?);
        let mut last = ApiError::Unreachable("no gateway is configured".to_owned());
        for endpoint in 0..self.connector.endpoints() {
            let exchange = tokio::time::timeout(DEADLINE, self.exchange(endpoint, path, body.clone()));
            match exchange.await {
                Ok(Ok(answer)) => {
                    return serde_json::from_slice(&answer)
                        .map_err(|err| ApiError::Unreadable(format!("the gateway's answer: {err}")));
                }
                Ok(Err(err @ ApiError::Refused(_))) => return Err(err),
                Ok(Err(err)) => last = err,
                Err(_) => last = ApiError::Unreachable(format!("took longer than {} s", DEADLINE.as_secs())),
            }
        }
        Err(last)
    }

    async fn exchange(&self, endpoint: usize, path: &str, body: Bytes) -> Result<Bytes, ApiError> {
        let unreachable = |err: &(dyn std::error::Error + 'static)| ApiError::Unreachable(chain(err));
        let (tcp, tls, name, authority) =
            self.connector.open_gateway(endpoint).await.map_err(|err| unreachable(&err))?;
        let io = TlsConnector::from(tls).connect(name, tcp).await.map_err(|err| {
            let hint = "check gateway.ca_file and this machine's clock";
            ApiError::Unreachable(format!("TLS with {authority} failed: {err}; {hint}"))
        })?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(io)).await.map_err(|err| unreachable(&err))?;
        let driving = self.tasks.spawn_task("connection", async move {
            let _ = connection.await;
        });
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("{ENROLMENT_PREFIX}{path}"))
            .header(header::HOST, authority)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|err| ApiError::Local(err.to_string()))?;
        let answer = sender.send_request(request).await.map_err(|err| unreachable(&err))?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, BODY_BYTES).collect().await;
        let body = body.map_err(|err| ApiError::Unreadable(format!("the gateway's answer: {err}")))?.to_bytes();
        drop(driving);
        if head.status.is_success() { Ok(body) } else { Err(Refused::new(head.status, &head.headers, &body).into()) }
    }
}

impl Enrol for Enroller {
    fn enrol<'a>(&'a self, kube_system_uid: &'a str) -> BoxFuture<'a, Result<Stored, ApiError>> {
        Box::pin(self.ask(kube_system_uid))
    }

    fn key_text(&self) -> Option<SecretString> {
        read_bounded(&self.key_file).ok().map(SecretString::from)
    }
}
