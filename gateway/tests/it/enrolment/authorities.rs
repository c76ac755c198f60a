//! One authority follows another: what lives on which, and what ends with the old one (docs/features.md R8).

use gateway::{
    config::Config,
    roll_over::{self, RollOverError},
};
use rustls::pki_types::ServerName;
use tokio::{io::AsyncReadExt, net::TcpStream};
use tokio_rustls::TlsConnector;
use tunnel::transport::{CarrierKind, carrier::Facts, http2, session};

use super::*;

impl Site {
    /// Another authority of the same name, in place of the present one.
    async fn replace_authority(&self) -> Authority {
        let next = Authority::create("test", Validity::days(10)).unwrap();
        next.save(&self.world.dir.path().join("next")).unwrap();
        self.world.reconfigure(&trusting("next/ca.crt")).await.unwrap();
        next
    }

    /// A tunnel of an agent that trusts what came with its certificate.
    async fn dial(&self, given: &Given) -> Result<TunnelHandle, String> {
        let roots = Roots::from_pem(given.body["roots"].as_str().unwrap().as_bytes()).unwrap();
        let config = tls::client_tunnel(&roots, &given.own, &[tls::ALPN_TUNNEL]).unwrap();
        let tcp = TcpStream::connect(self.world.addresses.public).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, tcp).await.map_err(|e| e.to_string())?;
        let facts = Facts { kind: CarrierKind::Http2, peer: None, certificates: vec![] };
        let carrier = http2::server_side(stream, facts).await.map_err(|e| e.to_string())?;
        session::connect(carrier, world::agent_side()).await.map_err(|e| e.to_string())
    }

    /// A heartbeat, and whether the certificate is to be renewed.
    async fn beat(&self, tunnel: &TunnelHandle, name: &str) -> bool {
        let body = json!({"agentVersion": "1", "kubeSystemUid": format!("uid-of-{name}")});
        let (status, body) = ask(tunnel, Method::POST, paths::HEARTBEAT, &body).await;
        assert_eq!(status, 200, "{body}");
        body["renewCertificate"] == true
    }

    /// The operator's side of it: the files, and the store beside the running gateway.
    async fn roll_over(&self, force: Option<bool>) -> Result<Value, RollOverError> {
        let config = Config::load(&self.world.dir.path().join("gateway.toml")).unwrap();
        let store = Store::open(&config.api.as_ref().unwrap().store.url()).await.unwrap();
        let done = match force {
            None => roll_over::status(&config, Some(&store), SystemTime::now()).await,
            Some(force) => roll_over::finish(&config, Some(&store), SystemTime::now(), force).await,
        };
        store.close().await;
        self.world.gateway.reload().await.unwrap();
        done
    }

    /// Why no connection with this certificate comes up.
    async fn refused(&self, own: &Credentials) -> String {
        let config = tls::client_tunnel(&self.world.authority.roots().unwrap(), own, &[tls::ALPN_TUNNEL]).unwrap();
        let tcp = TcpStream::connect(self.world.addresses.public).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        // With TLS 1.3 a client has sent its certificate before it hears what of it.
        match TlsConnector::from(Arc::new(config)).connect(name, tcp).await {
            Err(error) => error.to_string(),
            Ok(mut stream) => tokio::time::timeout(LONG, stream.read(&mut [0])).await.unwrap().unwrap_err().to_string(),
        }
    }
}

/// The configuration that issues by the folder `next` and trusts a file.
fn trusting(file: &str) -> String {
    let text = world::config_with("authority_dir = \"next\"", &section(""));
    let told =
        text.replace("ca_file = \"ca.crt\"\n        authority", &format!("ca_file = {file:?}\n        authority"));
    assert!(told.contains(file), "{told}");
    told
}

/// While one authority follows the other, certificates of both are good, and the next one issues.
#[tokio::test]
async fn r8_authorities_roll_over_without_an_agent_being_left_out() {
    let site = Site::new().await;
    let key = Onboarding::new();
    site.cluster("edge", &key).await;
    let old = site.enrol("edge", &key).await;
    let tunnel = site.tunnel(&old).await;
    let next = Authority::create("next", Validity::days(10)).unwrap();
    next.save(&site.world.dir.path().join("next")).unwrap();
    let both = format!("{}{}", site.world.authority.certificate_pem(), next.certificate_pem());
    std::fs::write(site.world.dir.path().join("both.crt"), both).unwrap();
    site.world.reconfigure(&trusting("both.crt")).await.unwrap();
    let (own, csr) = request(|_| {});
    let (status, body) = ask(&tunnel, Method::POST, paths::RENEW, &json!({"csr": csr})).await;
    assert_eq!(status, 200, "{body}");
    let new = given(&own, body);
    assert_eq!(new.peer(&next.roots().unwrap()).identity.agent().unwrap(), id("edge").as_str());
    for given in [&old, &new] {
        site.tunnel(given).await;
    }
    // An authority that nobody would trust is not taken.
    let wrong = world::config_with("authority_dir = \"next\"", &section(""));
    let error = site.world.reconfigure(&wrong).await.unwrap_err();
    assert!(error.contains("authority_dir"), "{error}");
}

/// Whoever took its key may have certificates of any cluster: they are nothing from the moment on in which it is not
/// trusted.
#[tokio::test]
async fn r8_tunnels_of_an_authority_that_is_trusted_no_more_end() {
    let site = Site::new().await;
    let key = Onboarding::new();
    site.cluster("edge", &key).await;
    let old = site.enrol("edge", &key).await;
    let tunnel = site.tunnel(&old).await;
    let next = site.replace_authority().await;
    assert_eq!(closed(&tunnel).await, CloseCode::Unauthorised);
    // TLS refuses it before anything is said.
    let refused = site.refused(&old.own).await;
    assert!(refused.contains("fatal alert"), "{refused}");
    let new = site.enrol("edge", &key).await;
    let signed_by = |given: &Given, authority: &Authority| {
        Peer::verify(given.own.chain(), &authority.roots().unwrap(), SystemTime::now()).is_ok()
    };
    assert!(signed_by(&new, &next) && !signed_by(&new, &site.world.authority));
    let live = site.tunnel(&new).await;
    assert_eq!(ask(&live, Method::GET, paths::DESIRED, &Value::Null).await.0, 200);
    assert_eq!(site.world.gateway.core().tunnels.count_of(&id("edge").key()), 1);
}

/// As a holder who is disabled, and for the same reason: the right was the authority's word.
#[tokio::test]
async fn a6_sessions_and_connections_of_an_access_certificate_end_with_its_authority() {
    let reached = Reached::new(&[], "dev:ann", "User").await;
    let (site, own) = (&reached.site, &reached.own);
    let (mut open, _arrived) = reached.watch().await;
    // One that has asked nothing yet, and one over HTTP/2.
    let mut quiet = site.world.user_as("localhost", Some(own), &[tls::ALPN_HTTP11]).await;
    let mut h2 = site.world.user_as("localhost", Some(own), &[tls::ALPN_H2]).await;
    h2.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await;
    let mut other = site.world.user().await;
    let target = format!("/{}/version", id("edge").key());
    other.send(world::get(&target, "of-the-cluster", "")).await;
    assert_eq!(other.answer().await.status, 401);
    site.replace_authority().await;
    while open.more().await {}
    assert!(!open.buffer.ends_with(b"0\r\n\r\n"), "cut, not ended");
    quiet.closed().await;
    // GOAWAY (RFC 9113 6.8).
    h2.until(b"\0\0\x08\x07\0\0\0\0\0").await;
    // Nothing rested on a certificate here.
    other.send(world::get(&target, "of-the-cluster", "")).await;
    assert_eq!(other.answer().await.status, 401);
    let refused = site.refused(own).await;
    assert!(refused.contains("fatal alert"), "{refused}");
    site.world.quiet().await;
}

/// A file that is written again with the same authorities, or with one more, ends nothing.
#[tokio::test]
async fn a6_an_access_certificate_outlives_a_change_of_authorities_that_keeps_its_own() {
    let reached = Reached::new(&[], "dev:ann", "User").await;
    let (mut open, mut arrived) = reached.watch().await;
    let world = &reached.site.world;
    let next = Authority::create("test", Validity::days(10)).unwrap();
    next.save(&world.dir.path().join("next")).unwrap();
    let both = format!("{}{}", world.authority.certificate_pem(), next.certificate_pem());
    std::fs::write(world.dir.path().join("both.crt"), both).unwrap();
    world.reconfigure(&trusting("both.crt")).await.unwrap();
    arrived.stream.send.send(Bytes::from_static(b"more")).await.unwrap();
    open.until(b"more").await;
    reached.watch().await;
}

/// The whole way, with the operator's commands: an agent lives on the old authority, renews under the new one and goes
/// on; one that has not is what holds the end up; afterwards the old one's certificates are nothing.
#[tokio::test]
async fn r8_one_command_rolls_the_authority_over_and_counts_who_still_lives_on_the_old_one() {
    let site = Site::new().await;
    let (key, late_key) = (Onboarding::new(), Onboarding::new());
    site.cluster("edge", &key).await;
    site.cluster("late", &late_key).await;
    let (old, late) = (site.enrol("edge", &key).await, site.enrol("late", &late_key).await);
    let (tunnel, late_tunnel) = (site.dial(&old).await.unwrap(), site.dial(&late).await.unwrap());
    assert!(!site.beat(&tunnel, "edge").await && !site.beat(&late_tunnel, "late").await);
    let status = site.roll_over(None).await.unwrap();
    assert_eq!((&status["rollOver"], &status["clustersOnOther"]), (&json!("none"), &json!(0)));
    assert!(matches!(site.roll_over(Some(false)).await, Err(RollOverError::NotBegun)));

    let config = Config::load(&site.world.dir.path().join("gateway.toml")).unwrap();
    roll_over::begin(&config, SystemTime::now()).unwrap();
    site.world.gateway.reload().await.unwrap();
    assert!(matches!(roll_over::begin(&config, SystemTime::now()), Err(RollOverError::UnderWay)));
    // Agents are told, and get both authorities with the next certificate; so do users with their kubeconfig.
    assert!(site.beat(&tunnel, "edge").await);
    let (own, csr) = request(|_| {});
    let (code, body) = ask(&tunnel, Method::POST, paths::RENEW, &json!({"csr": csr})).await;
    assert_eq!(code, 200, "{body}");
    let new = given(&own, body);
    assert_eq!(new.body["roots"].as_str().unwrap().matches("BEGIN CERTIFICATE").count(), 2);
    let credential = site
        .api(
            "POST",
            &format!("{}/listClusterUserCredential", id("edge")),
            Some(json!({"authenticationMethod": "AAD", "clientProxy": false})),
        )
        .await;
    let text = BASE64.decode(credential.json()["kubeconfigs"][0]["value"].as_str().unwrap()).unwrap();
    let kubeconfig: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(
        kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"],
        BASE64.encode(new.body["roots"].as_str().unwrap())
    );
    let renewed = site.dial(&new).await.unwrap();
    assert!(!site.beat(&renewed, "edge").await, "it has what it was told to get");
    site.dial(&old).await.unwrap();

    let status = site.roll_over(None).await.unwrap();
    assert_eq!((&status["rollOver"], &status["clustersOnOther"]), (&json!("under way"), &json!(1)), "{status}");
    let refused = site.roll_over(Some(false)).await.unwrap_err().to_string();
    assert!(refused.contains("on the old authority: 1 (/") && refused.contains("connectedclusters/late"), "{refused}");
    assert!(!refused.contains("clusters/edge") && refused.contains("--force"), "{refused}");

    let done = site.roll_over(Some(true)).await.unwrap();
    assert_eq!((&done["cutOff"], &done["removed"][0]["name"]), (&json!(1), &json!("test")), "{done}");
    assert_eq!(done["certificate"]["names"][1], "localhost");
    for gone in [&tunnel, &late_tunnel] {
        assert_eq!(closed(gone).await, CloseCode::Unauthorised);
    }
    assert!(!site.beat(&renewed, "edge").await, "what lives on the new one goes on");
    site.dial(&new).await.unwrap();
    // Shown with the roots of the new one, so that it is the gateway that refuses.
    let shown = Given { own: old.own.clone(), body: new.body.clone() };
    let refused = site.dial(&shown).await.err().unwrap();
    assert!(refused.contains("fatal alert") || refused.contains("lost"), "{refused}");
    assert!(site.dial(&late).await.is_err(), "who knows the old one alone does not take the gateway for itself");
    let trusted = std::fs::read_to_string(site.world.dir.path().join("ca.crt")).unwrap();
    assert_eq!(trusted.matches("BEGIN CERTIFICATE").count(), 1);
    assert!(matches!(site.roll_over(Some(false)).await, Err(RollOverError::NotBegun)));
}
