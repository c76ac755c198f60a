//! Enrolment over HTTPS, and the tunnel's trust in what came with a certificate.

use std::{
    convert::Infallible,
    path::Path,
    sync::{Arc, Mutex},
    time::SystemTime,
};

use agent::{
    config::Config,
    identity::{Identities, Identity, clock::SystemClock},
    roles::clusteridentityoperator::enrol::{Enrol as _, Enroller},
    tunnel::{api::ApiError, connect::Connector},
};
use aws_lc_rs::{
    encoding::{AsDer as _, Pkcs8V1Der},
    rsa::{KeyPair, KeySize},
    signature::{KeyPair as _, RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use daemon::TaskGroup;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use types::agent_api::{Challenge, Enrolment, decode, encode, enrolment_message};

use crate::gateway::{CLUSTER, Ca, DAY, refusal};

struct World {
    dir: tempfile::TempDir,
    port: u16,
    seen: Arc<Mutex<Vec<Enrolment>>>,
    onboarding: KeyPair,
    _tasks: TaskGroup,
}

fn pem(key: &KeyPair) -> String {
    let der: Pkcs8V1Der = key.as_der().unwrap();
    format!("-----BEGIN PRIVATE KEY-----\n{}\n-----END PRIVATE KEY-----\n", STANDARD.encode(der.as_ref()))
}

impl World {
    /// A gateway that issues for who signs with `onboarding`, in the name of `cluster`; the challenge is as said.
    async fn new(cluster: &'static str, challenge: &'static str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let ca = Arc::new(Ca::new("authority"));
        std::fs::write(dir.path().join("ca.crt"), &ca.pem).unwrap();
        let onboarding = KeyPair::generate(KeySize::Rsa2048).unwrap();
        std::fs::write(dir.path().join("key.pem"), pem(&onboarding)).unwrap();
        let public = onboarding.public_key().as_ref().to_vec();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let tls = certs::tls::server_public(certs::ServerCertificate::new(&ca.server()), None).unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let seen: Arc<Mutex<Vec<Enrolment>>> = Arc::default();
        let (noted, tasks) = (seen.clone(), TaskGroup::new("gateway"));
        let answer = move |path: &str, body: &[u8]| match path {
            "/.towline/agent/challenge" => {
                let challenge = Challenge { challenge: challenge.to_owned(), expires_in_seconds: 60 };
                (StatusCode::OK, serde_json::to_vec(&challenge).unwrap())
            }
            "/.towline/agent/certificate" => {
                let asked: Enrolment = serde_json::from_slice(body).unwrap();
                let id = asked.cluster_id.parse().unwrap();
                let message = enrolment_message(&id, &asked.challenge, &asked.csr, &asked.kube_system_uid);
                let signature = decode(&asked.signature).unwrap();
                let key = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, &public);
                noted.lock().unwrap().push(asked.clone());
                if key.verify(&message, &signature).is_err() {
                    return (StatusCode::UNAUTHORIZED, refusal("InvalidProof"));
                }
                let certificate = ca.certify(&asked.csr, cluster, SystemTime::now());
                (StatusCode::OK, serde_json::to_vec(&certificate).unwrap())
            }
            _ => (StatusCode::NOT_FOUND, Vec::new()),
        };
        let answer = Arc::new(answer);
        tasks.spawn("listen", async move {
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let Ok(io) = acceptor.accept(tcp).await else { continue };
                let answer = answer.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let answer = answer.clone();
                    async move {
                        let (head, body) = request.into_parts();
                        let (status, bytes) = answer(head.uri.path(), &body.collect().await.unwrap().to_bytes());
                        let mut response = Response::new(Full::new(Bytes::from(bytes)));
                        *response.status_mut() = status;
                        Ok::<_, Infallible>(response)
                    }
                });
                let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(io), service).await;
            }
        });
        Self { dir, port, seen, onboarding, _tasks: tasks }
    }

    fn config(&self, more: &str) -> Config {
        let text = format!(
            "roles = \"controller-manager\"\n[gateway]\nurl = \"https://gateway.test:{}\"\naddresses = [\"127.0.0.1\"]\n\
             ca_file = \"ca.crt\"\n{more}[identity]\ncluster_id = \"{CLUSTER}\"\ndirectory = \"identity\"\n\
             onboarding_key_file = \"key.pem\"\n",
            self.port
        );
        Config::parse(&text, self.path()).unwrap()
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn enroller(&self, config: &Config) -> Enroller {
        let connector = Arc::new(Connector::new(config, &Identities::default()).unwrap());
        Enroller::new(connector, CLUSTER.parse().unwrap(), self.path().join("key.pem"), Arc::new(SystemClock))
    }
}

#[tokio::test]
async fn r6_and_r7_possession_of_the_onboarding_key_gets_a_certificate_for_a_key_that_stays_here() {
    let world = World::new(CLUSTER, "Y2hhbGxlbmdl").await;
    let stored = world.enroller(&world.config("")).enrol("uid").await.unwrap();
    let asked = world.seen.lock().unwrap().remove(0);
    assert_eq!((asked.kube_system_uid.as_str(), asked.challenge.as_str()), ("uid", "Y2hhbGxlbmdl"));
    let identity = Identity::new(stored, &CLUSTER.parse().unwrap()).unwrap();
    assert_eq!(identity.stored.not_after.duration_since(identity.stored.not_before).unwrap(), 90 * DAY);
    // The other end of a TCP connection may be another agent of the cluster (gateway.via); TLS is the gateway's all the
    // same.
    let forward = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let via = format!("via = \"127.0.0.1:{}\"\n", forward.local_addr().unwrap().port());
    let config = world.config(&via);
    let enroller = world.enroller(&config);
    let copying = async {
        loop {
            let (mut near, _) = forward.accept().await.unwrap();
            let mut far = tokio::net::TcpStream::connect(("127.0.0.1", world.port)).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
        }
    };
    tokio::select! {
        enrolled = enroller.enrol("uid") => assert!(enrolled.is_ok()),
        () = copying => {}
    }
}

#[tokio::test]
async fn r6_another_key_is_refused_and_a_file_that_holds_none_is_named() {
    let world = World::new(CLUSTER, "Y2hhbGxlbmdl").await;
    let enroller = world.enroller(&world.config(""));
    let before = enroller.key_text();
    std::fs::write(world.path().join("key.pem"), pem(&KeyPair::generate(KeySize::Rsa2048).unwrap())).unwrap();
    let err = enroller.enrol("uid").await.unwrap_err();
    assert!(
        matches!(&err, ApiError::Refused(refused) if refused.status == 401 && refused.code == "InvalidProof"),
        "{err}"
    );
    use secrecy::ExposeSecret as _;
    assert_ne!(before.unwrap().expose_secret(), enroller.key_text().unwrap().expose_secret());
    std::fs::write(world.path().join("key.pem"), "no key").unwrap();
    let err = enroller.enrol("uid").await.unwrap_err().to_string();
    assert!(err.contains("key.pem") && err.contains("BEGIN PRIVATE KEY"), "{err}");
    assert_eq!(world.seen.lock().unwrap().len(), 1);
    let _ = encode(world.onboarding.public_key().as_ref());
}

#[tokio::test]
async fn a_challenge_or_a_certificate_that_is_none_is_not_taken() {
    let world = World::new(CLUSTER, "not base64!").await;
    let err = world.enroller(&world.config("")).enrol("uid").await.unwrap_err();
    assert!(matches!(err, ApiError::Unreadable(_)), "{err}");
    assert!(world.seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn r8_the_authorities_that_come_with_a_certificate_are_trusted_beside_the_configured_ones() {
    let world = World::new(CLUSTER, "Y2hhbGxlbmdl").await;
    // The gateway has moved to another authority: the configured one is of the past.
    let config = world.config("");
    let (old, next) = (Ca::new("old"), std::fs::read_to_string(world.path().join("ca.crt")).unwrap());
    let mut stored = world.enroller(&config).enrol("uid").await.unwrap();
    std::fs::write(world.path().join("ca.crt"), &old.pem).unwrap();
    let identities = Identities::default();
    let connector = Connector::new(&config, &identities).unwrap();
    let enroller = |connector| {
        Enroller::new(
            Arc::new(connector),
            CLUSTER.parse().unwrap(),
            world.path().join("key.pem"),
            Arc::new(SystemClock),
        )
    };
    let err = enroller(connector).enrol("uid").await.unwrap_err();
    assert!(matches!(&err, ApiError::Unreachable(why) if why.contains("TLS with gateway.test")), "{err}");
    stored.roots = format!("{}{next}", old.pem);
    identities.publish(Identity::new(stored, &CLUSTER.parse().unwrap()).unwrap());
    let connector = Connector::new(&config, &identities).unwrap();
    assert!(enroller(connector).enrol("uid").await.is_ok());
}
