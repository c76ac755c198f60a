//! One tunnel on one carrier: dials the gateway or the proxy in between, makes TLS or QUIC, says hello, and proves the
//! certificate where something on the way ends the TLS. Each step is bounded in time, and an error says which hop
//! failed.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use bytes::Bytes;
use certs::{Credentials, PeerIdentity, Roots};
use futures_util::future::BoxFuture;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::sync::watch;
use tunnel::{
    transport::{
        CarrierKind, TunnelHandle,
        dial::{self, DialError, DialOptions, Target},
        quic::QuicOptions,
        session::{self, AgentSide, HelloError, SessionOptions},
    },
    wire::{close::CloseCode, hello::Proof},
};
use types::{instants::rfc3339, version::Features};

use super::{
    choose::Network,
    setup::{SetupError, server_name},
    way::Way,
};
use crate::{
    chain,
    config::{Config, Endpoint, IdentitySource, Proxy, Via},
    identity::{Identities, Identity},
    metrics,
};

/// How long one carrier may take, hello included.
const CARRIER_DEADLINE: Duration = Duration::from_secs(15);
/// How long one step may take where another carrier waits for its turn.
const STEP_DEADLINE: Duration = Duration::from_secs(5);

/// Why there is no tunnel on a carrier.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{carrier}: {reason}")]
pub struct ConnectError {
    /// The carrier that was tried.
    pub carrier: CarrierKind,
    /// Which hop failed, and how.
    pub reason: String,
    /// The gateway's hint.
    pub retry_after: Option<Duration>,
    /// Whether another carrier could fare better: not where the name, the TCP connection or the proxy failed, nor where
    /// the gateway itself said no.
    pub try_another: bool,
    /// That it did.
    pub refused: Option<CloseCode>,
    /// How many replicas of the gateway are alive, if it said so as it refused.
    pub replicas: Option<u32>,
}

/// Why there is no tunnel at all.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct NoTunnel(pub Vec<ConnectError>);

impl NoTunnel {
    /// The gateway's hint.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.iter().filter_map(|err| err.retry_after).max()
    }

    /// Of a tunnel that is given up because the agent has another one to the same replica.
    pub fn elsewhere(carrier: CarrierKind) -> Self {
        let reason = "this agent has a tunnel to this replica already".to_owned();
        let refused = Some(CloseCode::Elsewhere);
        Self(vec![ConnectError { carrier, reason, retry_after: None, try_another: false, refused, replicas: None }])
    }

    /// How many replicas of the gateway are alive, if it said so.
    pub fn replicas(&self) -> Option<u32> {
        self.0.iter().find_map(|err| err.replicas)
    }

    /// What the gateway refused the tunnel with.
    pub fn refused(&self) -> Option<CloseCode> {
        self.0.iter().find_map(|err| err.refused)
    }
}

/// Makes a tunnel on a carrier. A trait, so that the race and the supervision can be tested without sockets.
pub trait Connect: Send + Sync + 'static {
    /// Dials the endpoint of that index. The replicas of the gateway in `held` refuse with [`CloseCode::Elsewhere`].
    fn connect(
        &self,
        endpoint: usize,
        carrier: CarrierKind,
        held: Vec<Bytes>,
    ) -> BoxFuture<'_, Result<TunnelHandle, ConnectError>>;

    /// How many endpoints there are; at least one.
    fn endpoints(&self) -> usize;

    /// The network towards an endpoint.
    fn network(&self, endpoint: usize) -> BoxFuture<'_, Network>;

    /// Whether the endpoint is reached through a proxy.
    fn proxied(&self, endpoint: usize) -> bool;

    /// What at this end is the likely reason when no carrier works.
    fn obstacle(&self) -> Option<String> {
        None
    }

    /// Completes when there is something to show the gateway.
    fn ready(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// Which of the certificates that the agent has had is shown.
    fn generation(&self) -> u64 {
        0
    }

    /// Completes when another certificate than that one is shown: new tunnels take the place of old ones.
    fn renewed(&self, _generation: u64) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

/// What the agent shows and whom it trusts.
pub struct Connector {
    endpoints: Vec<Endpoint>,
    /// The way out, which may change while the agent runs; with it the number of such changes.
    way: watch::Sender<(u64, Arc<Way>)>,
    via: Option<Via>,
    /// The last attempt failed by [`Via::address`], so that the name is looked up this time: a Service that was made anew
    /// has another address, and the environment of this process keeps the former one.
    by_name: AtomicBool,
    shown: Shown,
    /// The configured ones; those of the identity come to them.
    roots: Roots,
    features: Features,
    instance: [u8; 16],
    options: DialOptions,
    session: SessionOptions,
}

/// How far the changes of the way out are from the certificates' in [`Connector::generation`].
const WAY_SHIFT: u32 = 32;

/// The certificate that the agent shows.
enum Shown {
    /// Read again before each dial: certificates are renewed while the agent runs.
    Files { current: ArcSwap<Credentials>, certificate_file: PathBuf, key_file: PathBuf },
    /// Looked after by the agents.
    Managed(Identities),
}

/// A TCP connection to the gateway, what TLS on it needs, and the gateway's `host:port`.
pub type Opened = (dial::TcpIo, Arc<ClientConfig>, ServerName<'static>, String);

/// Why there is no TCP connection.
#[derive(Debug, thiserror::Error)]
pub enum OpenTcpError {
    /// The agent's own settings or certificate cannot be used, so nothing was dialled.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The network or the proxy.
    #[error(transparent)]
    Dial(#[from] DialError),
}

impl Connector {
    /// From the configuration: reads certificates and key. An identity that the agents look after is taken from
    /// `identities`.
    pub fn new(config: &Config, identities: &Identities) -> Result<Self, SetupError> {
        let gateway = &config.gateway;
        let shown = match &gateway.identity {
            IdentitySource::Files { certificate_file, key_file } => Shown::Files {
                current: ArcSwap::from_pointee(Credentials::load(certificate_file, key_file)?),
                certificate_file: certificate_file.clone(),
                key_file: key_file.clone(),
            },
            IdentitySource::Managed(_) => Shown::Managed(identities.clone()),
        };
        let load = |path: &Option<std::path::PathBuf>| path.as_deref().map(Roots::load).transpose();
        let mut roots = load(&gateway.ca_file)?.unwrap_or_else(Roots::public);
        if let Some(extra) = load(&gateway.extra_ca_file)? {
            roots = roots.and(&extra);
        }
        for endpoint in &gateway.endpoints {
            server_name(&endpoint.server_name)?;
        }
        let way = Arc::new(Way::new(config.proxy.as_ref())?);
        let instance = types::ids::RequestId::random().map_err(|_| SetupError::Random)?.0;
        Ok(Self {
            endpoints: gateway.endpoints.clone(),
            way: watch::Sender::new((0, way)),
            via: gateway.via.clone(),
            by_name: AtomicBool::new(false),
            shown,
            roots,
            features: if config.roles.serves_users() { Features::OFFERED } else { Features::NO_USERS },
            instance,
            options: DialOptions {
                handshake: STEP_DEADLINE,
                upgrade: STEP_DEADLINE,
                quic: QuicOptions { gso: gateway.udp_segmentation_offload, ..QuicOptions::default() },
                ..DialOptions::default()
            },
            session: SessionOptions::default(),
        })
    }

    /// The agent's certificate and key; none before it has got one.
    pub fn credentials(&self) -> Option<Arc<Credentials>> {
        match &self.shown {
            Shown::Files { current, .. } => Some(current.load_full()),
            Shown::Managed(identities) => identities.current().map(|identity| identity.credentials.clone()),
        }
    }

    fn identity(&self) -> Option<Arc<Identity>> {
        match &self.shown {
            Shown::Files { .. } => None,
            Shown::Managed(identities) => identities.current(),
        }
    }

    /// Reads certificate and key again. What cannot be used, or is another cluster's, changes nothing.
    fn renew(&self) {
        let Shown::Files { current, certificate_file, key_file } = &self.shown else { return };
        let old = current.load();
        let new = match Credentials::load(certificate_file, key_file) {
            Ok(new) => new,
            Err(err) => {
                tracing::warn!(error = chain(&err), "the agent's certificate cannot be read again; the old one stays");
                return;
            }
        };
        if new.chain() == old.chain() {
            return;
        }
        let cluster = |credentials: &Credentials| PeerIdentity::claimed(credentials.chain()).ok();
        if cluster(&new).is_none() || cluster(&new) != cluster(&old) {
            tracing::warn!("the agent's new certificate is of another cluster or of none; the old one stays");
            return;
        }
        tracing::info!("the agent's certificate was renewed");
        current.store(Arc::new(new));
    }

    /// The roots that the gateway's certificate is checked against: the configured ones, and those that came with the
    /// agent's certificate, so that one authority can follow another.
    pub fn roots(&self) -> Roots {
        match self.identity().and_then(|identity| identity.roots.clone()) {
            Some(adopted) => self.roots.and(&adopted),
            None => self.roots.clone(),
        }
    }

    /// Where a carrier is dialled.
    pub fn target(&self, endpoint: usize, carrier: CarrierKind) -> Result<Target, SetupError> {
        let (own, roots) = (self.credentials().ok_or(SetupError::NoIdentity)?, self.roots());
        let mut tls = match carrier {
            // A middlebox may end this one's TLS, and may be old.
            CarrierKind::WebSocket => certs::tls::client_websocket(&roots, &own)?,
            _ => certs::tls::client_tunnel(&roots, &own, &[certs::tls::ALPN_TUNNEL])?,
        };
        certs::skew::tolerate(&mut tls, &roots)?;
        self.towards(endpoint, tls)
    }

    /// Where the gateway is asked by HTTPS, for who has no certificate yet.
    pub fn target_of_nobody(&self, endpoint: usize) -> Result<Target, SetupError> {
        let roots = self.roots();
        let mut tls = certs::tls::client_https(&roots)?;
        certs::skew::tolerate(&mut tls, &roots)?;
        self.towards(endpoint, tls)
    }

    fn towards(&self, endpoint: usize, tls: ClientConfig) -> Result<Target, SetupError> {
        let endpoint = &self.endpoints[endpoint];
        let mut target = Target {
            host: endpoint.host.clone(),
            port: endpoint.port,
            server_name: server_name(&endpoint.server_name)?,
            tls: Arc::new(tls),
            proxy: self.proxy_for(endpoint),
            aliases: self.aliases(),
        };
        if let Some(via) = &self.via {
            (target.host, target.port) = (via.host.clone(), via.port);
            target.aliases.extend(self.via_address().map(|address| (via.host.clone(), address)));
        }
        Ok(target)
    }

    /// The address of what is dialled in place of the gateway, where the name is not to be looked up.
    fn via_address(&self) -> Option<IpAddr> {
        self.via.as_ref()?.address.filter(|_| !self.by_name.load(Ordering::Relaxed))
    }

    /// TLS as a client that shows no certificate.
    fn bare(&self) -> Result<ClientConfig, SetupError> {
        let roots = self.roots();
        let mut tls = certs::tls::client_https(&roots)?;
        certs::skew::tolerate(&mut tls, &roots)?;
        Ok(tls)
    }

    /// A TCP connection to the gateway by the way that tunnels take, and what TLS without a certificate needs on it.
    pub async fn open_gateway(&self, endpoint: usize) -> Result<Opened, OpenTcpError> {
        let target = self.towards(endpoint, self.bare()?)?;
        let io = dial::open_tcp(&target, &self.options).await?;
        Ok((io, target.tls, target.server_name, self.endpoints[endpoint].authority()))
    }

    /// What `gateway.addresses` says of the gateway's names.
    fn aliases(&self) -> Vec<(String, IpAddr)> {
        let of = |endpoint: &Endpoint| {
            let host = endpoint.host.clone();
            endpoint.addresses.clone().into_iter().map(move |address| (host.clone(), address))
        };
        self.endpoints.iter().flat_map(of).collect()
    }

    /// A TCP connection to another host by the same way: through the proxy unless it is exempt; where it is the
    /// gateway's, by `gateway.addresses`.
    pub async fn open_tcp(
        &self,
        host: &str,
        port: u16,
    ) -> Result<impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static, OpenTcpError> {
        let mut target = self.towards(0, self.bare()?)?;
        target.proxy = self.way().to(host);
        (target.host, target.port) = (host.to_owned(), port);
        Ok(dial::open_tcp(&target, &self.options).await?)
    }

    fn way(&self) -> Arc<Way> {
        self.way.borrow().1.clone()
    }

    /// Goes through this proxy, or through none, from now on: a new tunnel takes the place of the old one while that
    /// still serves (docs/features.md T13). Says whether that is another way than before.
    ///
    /// # Errors
    /// [`SetupError`] for a proxy that cannot be used; the way stays what it was.
    pub fn go_by(&self, proxy: Option<&Proxy>) -> Result<bool, SetupError> {
        if self.way().is_of(proxy) {
            return Ok(false);
        }
        let way = Arc::new(Way::new(proxy)?);
        self.way.send_modify(|(changes, now)| {
            *changes += 1;
            *now = way;
        });
        Ok(true)
    }

    /// Times and options of dialling.
    pub fn options(&self) -> &DialOptions {
        &self.options
    }

    fn proxy_for(&self, endpoint: &Endpoint) -> Option<dial::Proxy> {
        // What is dialled in place of the gateway is in the cluster.
        if self.via.is_some() { None } else { self.way().to(&endpoint.host) }
    }

    /// Sees whether a tunnel comes up on a carrier. The gateway sends no requests to it.
    pub async fn check(&self, endpoint: usize, carrier: CarrierKind) -> Result<TunnelHandle, ConnectError> {
        self.timed(endpoint, carrier, self.features.union(Features::CHECK), Vec::new()).await
    }

    async fn timed(
        &self,
        endpoint: usize,
        carrier: CarrierKind,
        features: Features,
        held: Vec<Bytes>,
    ) -> Result<TunnelHandle, ConnectError> {
        let result = tokio::time::timeout(CARRIER_DEADLINE, self.attempt(endpoint, carrier, features, held)).await;
        if !matches!(result, Ok(Ok(_))) {
            // By the other way the next time: where there is no DNS, the address is the one that leads there.
            self.by_name.fetch_xor(true, Ordering::Relaxed);
        }
        result.unwrap_or_else(|_| {
            let reason = format!("took longer than {} s", CARRIER_DEADLINE.as_secs());
            Err(ConnectError { carrier, reason, retry_after: None, try_another: true, refused: None, replicas: None })
        })
    }

    async fn attempt(
        &self,
        endpoint: usize,
        carrier: CarrierKind,
        features: Features,
        held: Vec<Bytes>,
    ) -> Result<TunnelHandle, ConnectError> {
        let failed = |reason: String, try_another, retry_after| ConnectError {
            carrier,
            reason,
            retry_after,
            try_another,
            refused: None,
            replicas: None,
        };
        self.renew();
        let target = self.target(endpoint, carrier).map_err(|err| failed(chain(&err), false, None))?;
        let dialled = dial::dial(&target, carrier, &self.options).await.map_err(|err| {
            let elsewhere = matches!(
                err,
                DialError::Resolve { .. }
                    | DialError::Connect { .. }
                    | DialError::ProxyTls { .. }
                    | DialError::ProxyAuthentication { .. }
                    | DialError::ProxyBroken { .. }
            );
            failed(chain(&err), carrier == CarrierKind::Quic || !elsewhere, None)
        })?;
        let own = self.credentials().ok_or_else(|| failed(chain(&SetupError::NoIdentity), false, None))?;
        let prove = Box::new(move |message: &[u8]| {
            let signature = certs::sign_proof(&own, message).map_err(|err| chain(&err))?;
            let certificates = own.chain().iter().map(|der| Bytes::copy_from_slice(der)).collect();
            Ok(Proof { chain: certificates, signature: signature.into() })
        });
        let side = AgentSide {
            agent_version: daemon::release::version().to_owned(),
            instance: self.instance,
            features,
            held,
            prove,
            options: self.session.clone(),
        };
        session::connect(dialled, side).await.map_err(|err| {
            let (retry_after, refused) = match &err {
                HelloError::Refused { retry_after, .. } => (*retry_after, true),
                HelloError::Proof(_) | HelloError::Version => (None, true),
                _ => (None, false),
            };
            let (code, replicas) = match &err {
                HelloError::Refused { code, replicas, .. } => (Some(*code), *replicas),
                _ => (None, None),
            };
            ConnectError { refused: code, replicas, ..failed(chain(&err), !refused, retry_after) }
        })
    }
}

impl Connect for Connector {
    fn connect(
        &self,
        endpoint: usize,
        carrier: CarrierKind,
        held: Vec<Bytes>,
    ) -> BoxFuture<'_, Result<TunnelHandle, ConnectError>> {
        Box::pin(async move {
            let result = self.timed(endpoint, carrier, self.features, held).await;
            let reached = result.as_ref().is_err_and(|err| err.refused == Some(CloseCode::Elsewhere));
            metrics::dialled(carrier, reached || result.is_ok());
            result
        })
    }

    fn endpoints(&self) -> usize {
        self.endpoints.len()
    }

    fn network(&self, endpoint: usize) -> BoxFuture<'_, Network> {
        Box::pin(async move {
            let endpoint = &self.endpoints[endpoint];
            let (host, known) = match &self.via {
                Some(via) => ((via.host.as_str(), via.port), self.via_address()),
                None => ((endpoint.host.as_str(), endpoint.port), endpoint.addresses.first().copied()),
            };
            let address = match known {
                Some(address) => Some(SocketAddr::new(address, host.1)),
                None => tokio::time::timeout(STEP_DEADLINE, tokio::net::lookup_host(host))
                    .await
                    .ok()
                    .and_then(Result::ok)
                    .and_then(|mut found| found.next()),
            };
            Network { gateway: endpoint.authority(), local: address.and_then(local_address) }
        })
    }

    /// QUIC goes through neither a proxy nor another agent.
    fn proxied(&self, endpoint: usize) -> bool {
        self.via.is_some() || self.proxy_for(&self.endpoints[endpoint]).is_some()
    }

    /// The gateway says no more than that a peer's certificate has expired, which reads as if it were its own. It is
    /// asked all the same: this machine's clock may be the one that is wrong.
    fn obstacle(&self) -> Option<String> {
        let end = self.credentials()?.not_after();
        (end <= SystemTime::now()).then(|| {
            let end = rfc3339(end);
            format!("this agent's own certificate expired at {end} and must be renewed")
        })
    }

    fn ready(&self) -> BoxFuture<'_, ()> {
        let Shown::Managed(identities) = &self.shown else { return Box::pin(async {}) };
        Box::pin(async {
            if identities.subscribe().wait_for(Option::is_some).await.is_err() {
                std::future::pending::<()>().await;
            }
        })
    }

    /// The certificate's, and in the upper half that of the way out: a tunnel is made anew for either.
    fn generation(&self) -> u64 {
        let changes = self.way.borrow().0;
        self.identity().map_or(0, |identity| identity.generation) + (changes << WAY_SHIFT)
    }

    fn renewed(&self, generation: u64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            let (shown, changes) = (generation & (u64::MAX >> WAY_SHIFT), generation >> WAY_SHIFT);
            let certificate = async {
                let Shown::Managed(identities) = &self.shown else { return std::future::pending().await };
                let other = |identity: &Option<Arc<Identity>>| {
                    identity.as_ref().is_some_and(|identity| identity.generation != shown)
                };
                if identities.subscribe().wait_for(other).await.is_err() {
                    std::future::pending::<()>().await;
                }
            };
            let mut way = self.way.subscribe();
            tokio::select! {
                () = certificate => {}
                // Its sender is ours.
                _ = way.wait_for(|(now, _)| *now != changes) => {}
            }
        })
    }
}

/// The address that packets to `peer` leave from. Nothing is sent.
fn local_address(peer: SocketAddr) -> Option<IpAddr> {
    let any: SocketAddr = if peer.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0; 16], 0).into() };
    let socket = std::net::UdpSocket::bind(any).ok()?;
    socket.connect(peer).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use certs::{Authority, Validity};

    use super::*;

    fn id(name: &str) -> String {
        format!("/subscriptions/s/resourcegroups/g/providers/microsoft.kubernetes/connectedclusters/{name}")
    }

    fn connector(text: &str, dir: &Path) -> Connector {
        Connector::new(&Config::parse(text, dir).unwrap(), &Identities::default()).unwrap()
    }

    #[test]
    fn a_renewed_certificate_is_used_and_another_clusters_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = (dir.path().join("tls.crt"), dir.path().join("tls.key"));
        let authority = Authority::create("test", Validity::days(2)).unwrap();
        let write = |name: &str| {
            let issued = authority.issue_agent(&id(name), Validity::days(1)).unwrap();
            issued.save(&certificate, &key).unwrap();
            issued.credentials().chain().to_vec()
        };
        let first = write("a");
        let text = "[gateway]\nurl = \"https://gw\"\ncertificate_file = \"tls.crt\"\nkey_file = \"tls.key\"";
        let connector = connector(text, dir.path());
        write("b");
        connector.renew();
        assert_eq!(connector.credentials().unwrap().chain(), first);
        std::fs::write(&certificate, "no certificate").unwrap();
        connector.renew();
        assert_eq!(connector.credentials().unwrap().chain(), first);
        let second = write("a");
        connector.renew();
        assert_eq!(connector.credentials().unwrap().chain(), second);
    }

    /// The log said "invalid peer certificate: certificate expired", which looked like the gateway's.
    #[test]
    fn an_expired_certificate_of_its_own_is_named_until_it_is_renewed() {
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = (dir.path().join("tls.crt"), dir.path().join("tls.key"));
        let authority = Authority::create("test", Validity::days(2)).unwrap();
        let write = |validity| authority.issue_agent(&id("a"), validity).unwrap().save(&certificate, &key).unwrap();
        let now = SystemTime::now();
        let hour = Duration::from_secs(3600);
        write(Validity { not_before: now - 2 * hour, not_after: now - hour });
        let text = "[gateway]\nurl = \"https://gw\"\ncertificate_file = \"tls.crt\"\nkey_file = \"tls.key\"";
        let connector = connector(text, dir.path());
        let obstacle = connector.obstacle().unwrap();
        assert!(obstacle.contains("own certificate expired at 20"), "{obstacle}");
        write(Validity::days(1));
        connector.renew();
        assert_eq!(connector.obstacle(), None);
    }

    #[tokio::test]
    async fn t13_another_proxy_is_another_way_and_one_that_cannot_be_used_changes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let issued = Authority::create("test", Validity::days(2)).unwrap();
        let issued = issued.issue_agent(&id("a"), Validity::days(1)).unwrap();
        issued.save(&dir.path().join("tls.crt"), &dir.path().join("tls.key")).unwrap();
        let gateway = "[gateway]\nurl = \"https://gw\"\ncertificate_file = \"tls.crt\"\nkey_file = \"tls.key\"\n";
        let proxy = |rest: &str| {
            let text = format!("{gateway}[proxy]\nurl = \"http://one:3128\"\n{rest}");
            Config::parse(&text, dir.path()).unwrap().proxy.unwrap()
        };
        let connector = connector(gateway, dir.path());
        let host = || connector.target(0, CarrierKind::Http2).unwrap().proxy.map(|proxy| proxy.host);
        assert_eq!((host(), connector.proxied(0)), (None, false));
        let before = connector.generation();
        let mut renewed = connector.renewed(before);
        assert!(futures_util::poll!(&mut renewed).is_pending());
        assert!(connector.go_by(Some(&proxy(""))).unwrap());
        renewed.await;
        assert_eq!((host().as_deref(), connector.proxied(0)), (Some("one"), true));
        let now = connector.generation();
        assert_ne!(now, before);
        assert!(!connector.go_by(Some(&proxy(""))).unwrap(), "the same again");
        // Another password is another way.
        std::fs::write(dir.path().join("user"), "me").unwrap();
        std::fs::write(dir.path().join("password"), "first").unwrap();
        let files = "username_file = \"user\"\npassword_file = \"password\"\n";
        assert!(connector.go_by(Some(&proxy(files))).unwrap() && !connector.go_by(Some(&proxy(files))).unwrap());
        std::fs::write(dir.path().join("password"), "second").unwrap();
        assert!(connector.go_by(Some(&proxy(files))).unwrap());
        let mut broken = proxy("");
        (broken.tls, broken.ca_file) = (true, Some(dir.path().join("missing.crt")));
        let at = connector.generation();
        assert!(connector.go_by(Some(&broken)).is_err());
        assert_eq!((host().as_deref(), connector.generation()), (Some("one"), at));
        assert!(connector.go_by(None).unwrap() && host().is_none());
        // So is another authority in the same file.
        let ca = dir.path().join("proxy-ca.crt");
        let mut secured = proxy("");
        (secured.tls, secured.ca_file) = (true, Some(ca.clone()));
        for name in ["one", "other"] {
            std::fs::write(&ca, Authority::create(name, Validity::days(2)).unwrap().certificate_pem()).unwrap();
            assert!(connector.go_by(Some(&secured)).unwrap() && !connector.go_by(Some(&secured)).unwrap(), "{name}");
        }
    }

    #[tokio::test]
    async fn an_issuer_at_the_gateways_name_is_reached_by_the_gateways_addresses() {
        let dir = tempfile::tempdir().unwrap();
        let issued = Authority::create("test", Validity::days(2)).unwrap();
        let issued = issued.issue_agent(&id("a"), Validity::days(1)).unwrap();
        issued.save(&dir.path().join("tls.crt"), &dir.path().join("tls.key")).unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let text = "[gateway]\nurl = \"https://gateway.invalid\"\naddresses = [\"127.0.0.1\"]\n\
                    certificate_file = \"tls.crt\"\nkey_file = \"tls.key\"";
        let connector = connector(text, dir.path());
        let (opened, accepted) = tokio::join!(connector.open_tcp("gateway.invalid", port), listener.accept());
        assert!(opened.is_ok() && accepted.is_ok());
    }
}
