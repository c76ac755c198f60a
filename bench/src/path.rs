//! The paths that are measured: each started and stopped here, with TLS to the user and to the upstream, each hop a
//! process of its own and pinned the same way.

mod haproxy;
mod minimal;
mod nginx;
mod rathole;
mod remotedialer;
mod ssh;
pub mod towline;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::Context;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::{
    apiserver::Apiserver,
    audit::Audit,
    certificates,
    ledger::Ledger,
    link::{Link, Seat},
    program::Dialogue,
    program::Program,
    scene::{Crowd, Scene, Server},
    upstream::Upstream,
};

/// A way from the user to the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// The upstream without anything between.
    Direct,
    /// Two nginx in a row: what two hops cost when no firewall is in the way.
    NginxChain,
    /// Two reverse proxies of Towline's libraries alone, HTTP/1.1 to the upstream.
    MinimalH2,
    /// The same, HTTP/2 to the upstream.
    MinimalH2All,
    /// The same libraries and a WebSocket's messages, HTTP/1.1 to the upstream.
    MinimalWebsocket,
    /// The same libraries and quinn, HTTP/1.1 to the upstream.
    MinimalQuic,
    /// Two haproxy in a row.
    HaproxyChain,
    /// A port forwarded by rathole.
    Rathole,
    /// A port forwarded by OpenSSH.
    Ssh,
    /// Rancher's remotedialer: a reverse proxy that dials through the site's WebSocket.
    Remotedialer,
    /// Towline over HTTP/2.
    TowlineH2,
    /// Towline over WebSocket.
    TowlineWebsocket,
    /// Towline over QUIC.
    TowlineQuic,
    /// Towline over HTTP/2, with one hop between two gateways.
    TowlineHop,
}

impl Kind {
    /// As in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::NginxChain => "nginx-chain",
            Self::MinimalH2 => "minimal-h2",
            Self::MinimalH2All => "minimal-h2-all",
            Self::MinimalWebsocket => "minimal-websocket",
            Self::MinimalQuic => "minimal-quic",
            Self::HaproxyChain => "haproxy-chain",
            Self::Rathole => "rathole",
            Self::Ssh => "ssh",
            Self::Remotedialer => "remotedialer",
            Self::TowlineH2 => "towline-h2",
            Self::TowlineWebsocket => "towline-websocket",
            Self::TowlineQuic => "towline-quic",
            Self::TowlineHop => "towline-hop",
        }
    }

    /// Where users reach it, at its outer hop, and the first of its ports: those of paths that are up together differ.
    fn port(self) -> u16 {
        FIRST_PORT + PORTS * self as u16
    }

    /// Whether it is one of ours.
    pub fn is_towline(self) -> bool {
        matches!(self, Self::TowlineH2 | Self::TowlineWebsocket | Self::TowlineQuic | Self::TowlineHop)
    }

    /// Whether only a few users are set up for it.
    pub fn is_peer(self) -> bool {
        use Kind::{HaproxyChain, MinimalH2, MinimalH2All, MinimalQuic, MinimalWebsocket, Rathole, Remotedialer, Ssh};
        matches!(
            self,
            MinimalH2 | MinimalH2All | MinimalWebsocket | MinimalQuic | HaproxyChain | Rathole | Ssh | Remotedialer
        )
    }

    /// What it is.
    pub fn what(self) -> &'static str {
        match self {
            Self::Direct => "the upstream without anything between",
            Self::NginxChain => "two nginx TLS reverse proxies in a row: the floor of two hops",
            Self::MinimalH2 => {
                "hyper and rustls alone, one HTTP/2 connection between two hops, HTTP/1.1 to the upstream"
            }
            Self::MinimalH2All => "the same, HTTP/2 to the upstream",
            Self::MinimalWebsocket => "minimal-h2 in messages of a WebSocket",
            Self::MinimalQuic => {
                "hyper, rustls and quinn alone, one QUIC connection between two hops, HTTP/1.1 to the upstream"
            }
            Self::HaproxyChain => "two haproxy TLS reverse proxies in a row",
            Self::Rathole => "a port forwarded by rathole over TLS, the user's TLS inside",
            Self::Ssh => "a port forwarded by OpenSSH from the site, the user's TLS inside",
            Self::Remotedialer => "Rancher's remotedialer: a reverse proxy that dials through the site's WebSocket",
            Self::TowlineH2 => "gateway and agent, tunnel over HTTP/2",
            Self::TowlineWebsocket => "gateway and agent, tunnel over WebSocket",
            Self::TowlineQuic => "gateway and agent, tunnel over QUIC",
            Self::TowlineHop => "two gateways and an agent: one hop between gateways, then a tunnel over HTTP/2",
        }
    }
}

/// What paths are started with.
pub struct Bench {
    /// The network between the hops: loopback, or namespaces joined by veth pairs.
    pub link: Link,
    /// Where Towline's programs are.
    pub programs: PathBuf,
    /// They are trained; no figure is worth anything then.
    pub train: bool,
    synthetic: Upstream,
    apiserver: OnceCell<Result<Apiserver, Missing>>,
    dir: tempfile::TempDir,
    _upstream: Program,
}

/// Something that is not on this machine: figures of it are missing then, all else is measured.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Missing(pub String);

/// A path that can be asked.
pub struct Running {
    /// `https://host:port/prefix` for users.
    pub url: String,
    /// The authority of what users see.
    pub ca: PathBuf,
    /// The name in the certificate that users see, where that is not the host of the URL.
    pub name: Option<&'static str>,
    /// Bearer token that users send; absent if the path asks for none.
    pub token: Option<String>,
    /// The hops, whose processor time and memory count; that of a fleet's gateway too.
    pub hops: Vec<Program>,
    /// What a crowd brings along.
    pub also: Also,
    /// Why it lacks an ability, where it does.
    pub lacks: fn(Ability) -> Option<&'static str>,
}

/// What a path has beside its hops where its scene wants that.
#[derive(Default)]
pub struct Also {
    /// Agents and their gateway, whom scenarios start and kill themselves.
    pub fleet: Option<towline::fleet::Fleet>,
    /// The audit records of the gateway, where that keeps any.
    pub audit: Option<Audit>,
    /// The agent whose control exchanges can be measured.
    pub control: Option<Dialogue>,
    /// URL and token of the second cluster.
    pub beside: Option<(String, Option<String>)>,
    /// What each hop uses while a load runs.
    pub ledgers: Vec<Ledger>,
    /// What gateways share, where there are several.
    pub database: Option<towline::hop::Database>,
}

/// What some scenarios need and not every path has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ability {
    /// Carries connections that become another protocol.
    Upgrades,
    /// Its agents dial again when the gateway was away.
    Redials,
}

/// Of a path that can do every scenario.
pub fn has_all(_: Ability) -> Option<&'static str> {
    None
}

impl Running {
    /// Why it lacks an ability, if so: what a report says in place of figures.
    pub fn lacks(&self, ability: Ability) -> Option<&'static str> {
        (self.lacks)(ability)
    }

    /// What each hop uses from now on, the gateway of a fleet first. The path keeps them too, for whoever knows when
    /// its crowd is there.
    ///
    /// # Errors
    /// One of them has ended.
    pub fn ledgers(&mut self) -> anyhow::Result<Vec<Ledger>> {
        let gateway = self.also.fleet.iter_mut().map(towline::fleet::Fleet::ledger);
        self.also.ledgers = gateway.chain(self.hops.iter().map(Ledger::open)).collect::<anyhow::Result<_>>()?;
        Ok(self.also.ledgers.clone())
    }

    /// That one of its hops has ended, if so.
    pub fn ended(&mut self) -> Option<String> {
        self.programs().find_map(Program::ended)
    }

    /// How its hops fare, for an error.
    pub fn state(&mut self) -> String {
        self.programs().map(Program::state).collect::<Vec<_>>().join("\n")
    }

    fn programs(&mut self) -> impl Iterator<Item = &mut Program> {
        let gateway = self.also.fleet.iter_mut().map(|fleet| &mut fleet.gateway);
        gateway.chain(&mut self.hops)
    }

    /// Ends its hops; to train them, as an operator would, so that they write what they have counted.
    pub async fn stop(self, train: bool) {
        for hop in self.hops.into_iter().chain(self.also.fleet.map(|fleet| fleet.gateway)) {
            if train {
                hop.end().await;
            } else {
                hop.stop().await;
            }
        }
        if let Some(agent) = self.also.control {
            agent.stop().await;
        }
        // Last, as gateways write into it until their end.
        drop(self.also.database);
    }
}

impl Bench {
    /// Certificates and the upstream, on a network that there is.
    ///
    /// # Errors
    /// Whatever is missing on this machine.
    pub async fn start(link: Link, programs: PathBuf, train: bool) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let (outer, inner) = (link.address(Seat::Outer), link.address(Seat::Inner));
        // Where a port is forwarded, users reach what is at the site by the address of the gateway.
        let servers = [("outer", vec![outer.clone()]), ("inner", vec![inner, outer])];
        certificates::write(dir.path(), &servers)?;
        let mut command = link.command(Seat::Upstream, &std::env::current_exe()?);
        command.args(["upstream", "--listen", &format!("{}:0", link.address(Seat::Upstream))]);
        command.arg("--certificate").arg(dir.path().join("inner.crt")).arg("--key").arg(dir.path().join("inner.key"));
        let log = dir.path().join("upstream.log");
        let (program, address) = Program::start_with_line("upstream", command, &log).await?;
        let (ca, admin) = (dir.path().join("ca.crt"), dir.path().join("upstream.kubeconfig"));
        let synthetic = Upstream { address, name: "inner", ca, token: Some(credential()), admin };
        std::fs::write(&synthetic.admin, kubeconfig(&synthetic).to_string())?;
        Ok(Self { link, programs, train, synthetic, apiserver: OnceCell::new(), dir, _upstream: program })
    }

    /// Why a path cannot be started for a crowd, if so.
    pub fn cannot(&self, kind: Kind, crowd: Crowd) -> Option<String> {
        match (kind, crowd) {
            (Kind::Direct | Kind::NginxChain, Crowd::Agents(_) | Crowd::Replicas(_) | Crowd::Control) => {
                Some("it has no agents".to_owned())
            }
            (Kind::Direct | Kind::NginxChain, Crowd::Registered(_)) => Some("it registers no clusters".to_owned()),
            (Kind::NginxChain, Crowd::Watches(watches)) => nginx::cannot(watches),
            (Kind::MinimalQuic, Crowd::Agents(_)) => None,
            (kind, crowd) if (kind.is_peer() || kind == Kind::TowlineHop) && crowd != Crowd::Few => {
                Some("only a few users are set up for it".to_owned())
            }
            _ => None,
        }
    }

    /// That there is what nobody would measure without.
    ///
    /// # Errors
    /// Programs of Towline that are missing, where a path needs them.
    pub fn has_programs(&self, paths: &[Kind]) -> anyhow::Result<()> {
        if paths.iter().any(|kind| kind.is_towline()) { towline::has_programs(self) } else { Ok(()) }
    }

    /// Starts a path in a scene; it may take a while until a request gets through.
    ///
    /// # Errors
    /// A program that is missing or does not start, with the end of its log.
    pub async fn path(&self, kind: Kind, scene: Scene) -> anyhow::Result<Running> {
        let upstream = match scene.server {
            Server::Synthetic => &self.synthetic,
            Server::Apiserver => &self.apiserver().await?.upstream,
        };
        match kind {
            Kind::Direct => Ok(Running {
                url: format!("https://{}", upstream.address),
                ca: upstream.ca.clone(),
                name: None,
                token: upstream.token.clone(),
                hops: Vec::new(),
                also: Also { beside: Some((format!("https://{}", upstream.address), None)), ..Also::default() },
                lacks: has_all,
            }),
            Kind::NginxChain => nginx::start(self, upstream, scene.crowd),
            Kind::MinimalH2 | Kind::MinimalH2All | Kind::MinimalWebsocket | Kind::MinimalQuic => {
                minimal::start(self, upstream, kind, scene.crowd)
            }
            Kind::HaproxyChain => haproxy::start(self, upstream),
            Kind::Rathole => rathole::start(self, upstream).await,
            Kind::Ssh => ssh::start(self, upstream).await,
            Kind::Remotedialer => remotedialer::start(self, upstream),
            Kind::TowlineH2 | Kind::TowlineWebsocket | Kind::TowlineQuic | Kind::TowlineHop => {
                towline::start(self, upstream, kind, scene.crowd).await
            }
        }
        .with_context(|| format!("cannot start {}", kind.name()))
    }

    /// The real apiserver, brought up when it is first asked for.
    ///
    /// # Errors
    /// There can be none here: [`Missing`].
    pub async fn apiserver(&self) -> anyhow::Result<&Apiserver> {
        let start = || async { Apiserver::start(&self.link).await.map_err(|error| Missing(format!("{error:#}"))) };
        Ok(self.apiserver.get_or_init(start).await.as_ref().map_err(Clone::clone)?)
    }

    /// The second hop of a chain of proxies, as the first one sees it at a port.
    fn inner(&self, port: u16) -> Upstream {
        Upstream {
            address: format!("{}:{port}", self.link.address(Seat::Inner)),
            name: "inner",
            ca: self.file("ca.crt"),
            token: None,
            admin: PathBuf::new(),
        }
    }

    /// Where users reach a path.
    fn door(&self, kind: Kind) -> String {
        format!("{}:{}", self.link.address(Seat::Outer), kind.port())
    }

    /// Where users reach a further server of a path, by its number from 1.
    fn door_beside(&self, kind: Kind, number: u16) -> String {
        format!("{}:{}", self.link.address(Seat::Outer), kind.port() + number)
    }

    /// Of a path that ends the TLS of its users itself.
    fn proxied(&self, kind: Kind, upstream: &Upstream, hops: Vec<Program>) -> Running {
        let (url, ca, token) = (format!("https://{}", self.door(kind)), self.file("ca.crt"), upstream.token.clone());
        Running { url, ca, name: None, token, hops, also: Also::default(), lacks: has_all }
    }

    /// Of a path that lets the TLS of its users through to the upstream.
    fn forwarded(&self, kind: Kind, upstream: &Upstream, hops: Vec<Program>) -> Running {
        Running { ca: upstream.ca.clone(), name: Some(upstream.name), ..self.proxied(kind, upstream, hops) }
    }

    /// A file of this run, removed with it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// A path that does not answer within this is broken.
pub const ANSWERS: Duration = Duration::from_secs(30);

/// Length of a user's token of `towline dev`, or a little less; that of a service account is longer.
const CREDENTIAL_BYTES: usize = 800;

/// The first port of the first path, and how many each path has.
const FIRST_PORT: u16 = 8443;
const PORTS: u16 = 4;
/// Where `bench/peers/install` puts what is built for this only.
const PEERS: &str = "target/bench/peers";

/// Where a program of others is, which may be missing on this machine.
///
/// # Errors
/// It is in none of these places; with what installs it.
fn installed(name: &str, places: &[impl AsRef<Path>]) -> anyhow::Result<PathBuf> {
    let found = places.iter().map(AsRef::as_ref).find(|path| path.exists());
    Ok(found.map(Path::to_owned).ok_or_else(|| Missing(format!("{name} is not installed: bench/peers/install")))?)
}

/// What a user shows to an upstream that knows nobody, and an agent to the same one: as much as a real apiserver wants
/// to see, of letters as it has, so that no path has less to carry than another.
fn credential() -> String {
    std::iter::repeat_with(fastrand::alphanumeric).take(CREDENTIAL_BYTES).collect()
}

/// With which an agent reaches an upstream that knows nobody.
fn kubeconfig(upstream: &Upstream) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{"name": "bench", "cluster":
            {"server": format!("https://{}", upstream.address), "certificate-authority": upstream.ca}}],
        "users": [{"name": "bench", "user": {"token": upstream.token}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
    })
}
