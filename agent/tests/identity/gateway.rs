//! An authority that issues for requests, and a gateway that answers as the test says.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use daemon::TaskGroup;
use futures_util::future::BoxFuture;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt as _;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType,
};
use time::OffsetDateTime;
use tunnel::{
    exchange::StreamBody,
    transport::{Closed, Drain, Incoming, OpenError, Stream, Tunnel, TunnelHandle, TunnelInfo, memory},
    wire::{
        close::CloseCode,
        head::{RequestHead, ResponseHead},
    },
};
use types::agent_api::{Certificate, decode};

pub const CLUSTER: &str = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/g/providers/Microsoft.Kubernetes/connectedClusters/c";
pub const DAY: Duration = Duration::from_secs(86_400);

/// A certificate authority.
pub struct Ca {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

impl Ca {
    pub fn new(name: &str) -> Self {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        (params.not_before, params.not_after) = (OffsetDateTime::UNIX_EPOCH, OffsetDateTime::UNIX_EPOCH + 40_000 * DAY);
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// For a request of an agent of this cluster, for 90 days from then.
    pub fn certify(&self, csr: &str, cluster: &str, from: SystemTime) -> Certificate {
        let der = decode(csr).unwrap();
        let mut request = CertificateSigningRequestParams::from_der(&der.into()).unwrap();
        assert!(request.params.subject_alt_names.is_empty());
        let params = &mut request.params;
        let uri = format!("urn:towline:agent:{}", cluster.to_lowercase());
        params.subject_alt_names = vec![SanType::URI(uri.try_into().unwrap())];
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        (params.not_before, params.not_after) = (from.into(), (from + 90 * DAY).into());
        let at = types::instants::rfc3339;
        Certificate {
            certificate: request.signed_by(&self.issuer).unwrap().pem(),
            roots: self.pem.clone(),
            not_before: at(from),
            not_after: at(from + 90 * DAY),
            principal_id: "00000000-0000-0000-0000-00000000000a".to_owned(),
            tenant_id: "00000000-0000-0000-0000-00000000000b".to_owned(),
        }
    }

    /// A server's certificate and key.
    pub fn server(&self) -> certs::Credentials {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let mut params = CertificateParams::new(vec!["gateway.test".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        certs::Credentials::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes()).unwrap()
    }
}

/// What was asked, and what is answered.
pub type Answer = Box<dyn Fn(&str, &[u8]) -> (StatusCode, HeaderMap, Vec<u8>) + Send + Sync>;

/// A tunnel whose gateway answers as the test says. It is made for each exchange and gone a minute later: months go by
/// in these tests, and a tunnel looks after itself every second of them.
pub struct Scripted {
    answer: Arc<Answer>,
    asked: Arc<Mutex<Vec<(String, Bytes)>>>,
    tasks: TaskGroup,
}

impl Scripted {
    pub fn tunnel(answer: Answer, asked: Arc<Mutex<Vec<(String, Bytes)>>>) -> TunnelHandle {
        Arc::new(Self { answer: Arc::new(answer), asked, tasks: TaskGroup::new("gateway") })
    }

    async fn serve(tunnel: TunnelHandle, answer: Arc<Answer>, asked: Arc<Mutex<Vec<(String, Bytes)>>>) {
        while let Ok(incoming) = tunnel.accept().await {
            let head = RequestHead::decode(incoming.head).unwrap();
            assert_eq!(head.role, "agent-api");
            let path = String::from_utf8(head.target.to_vec()).unwrap();
            let mut stream = incoming.stream;
            let body = StreamBody::of_request(stream.recv, &head.headers).collect().await.unwrap().to_bytes();
            let (status, headers, bytes) = answer(&path, &body);
            asked.lock().unwrap().push((path, body));
            let head = ResponseHead { status, headers, refused_by: None };
            stream.send.send(head.encode().unwrap().freeze()).await.unwrap();
            stream.send.send(bytes.into()).await.unwrap();
            stream.send.finish().unwrap();
        }
    }
}

impl Tunnel for Scripted {
    fn open(&self, head: Bytes) -> BoxFuture<'_, Result<Stream, OpenError>> {
        Box::pin(async move {
            let (gateway, agent) = memory::pair().await;
            let stream = agent.open(head).await?;
            let serving = Self::serve(gateway, self.answer.clone(), self.asked.clone());
            self.tasks.spawn("tunnel", async move {
                let _ = tokio::time::timeout(Duration::from_secs(60), serving).await;
                drop(agent);
            });
            Ok(stream)
        })
    }

    fn accept(&self) -> BoxFuture<'_, Result<Incoming, Closed>> {
        Box::pin(std::future::pending())
    }

    fn drain(&self, _: CloseCode, _: Duration) {}

    fn draining(&self) -> BoxFuture<'_, Drain> {
        Box::pin(std::future::pending())
    }

    fn close(&self, _: CloseCode, _: &str) {}

    fn closed(&self) -> BoxFuture<'_, Closed> {
        Box::pin(std::future::pending())
    }

    fn info(&self) -> &TunnelInfo {
        unimplemented!("nobody asks")
    }

    fn open_streams(&self) -> usize {
        0
    }

    fn rtt(&self) -> Option<Duration> {
        None
    }
}

/// The resource API's error envelope.
pub fn refusal(code: &str) -> Vec<u8> {
    format!("{{\"error\":{{\"code\":\"{code}\",\"message\":\"as the test says\"}}}}").into_bytes()
}
