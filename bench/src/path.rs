//! The paths that are measured: each started and stopped here, with TLS to the user and to the upstream, each hop a process
//! of its own and pinned the same way.

mod nginx;
pub mod towline;

use std::{path::PathBuf, time::Duration};

use anyhow::Context;

use crate::{
    certificates,
    link::{Link, Seat},
    program::Dialogue,
    program::Program,
    scenario::Scenario,
    scene::{Crowd, Scene, Server},
};

/// A way from the user to the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// The upstream without anything between.
    Direct,
    /// Two nginx in a row: what two hops cost when no firewall is in the way.
    NginxChain,
    /// Towline over HTTP/2.
    TowlineH2,
    /// Towline over WebSocket.
    TowlineWebsocket,
    /// Towline over QUIC.
    TowlineQuic,
}

impl Kind {
    /// As in reports and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::NginxChain => "nginx-chain",
            Self::TowlineH2 => "towline-h2",
            Self::TowlineWebsocket => "towline-websocket",
            Self::TowlineQuic => "towline-quic",
        }
    }

    /// What it is.
    pub fn what(self) -> &'static str {
        match self {
            Self::Direct => "the upstream without anything between",
            Self::NginxChain => "two nginx TLS reverse proxies in a row: the floor of two hops",
            Self::TowlineH2 => "gateway and agent, tunnel over HTTP/2",
            Self::TowlineWebsocket => "gateway and agent, tunnel over WebSocket",
            Self::TowlineQuic => "gateway and agent, tunnel over QUIC",
        }
    }
}

/// What paths are started with.
pub struct Bench {
    /// The network.
    pub link: Link,
    /// Where Towline's programs are.
    pub programs: PathBuf,
    /// `host:port` of the upstream.
    pub upstream: String,
    dir: tempfile::TempDir,
    _upstream: Program,
}

/// A path that can be asked.
pub struct Running {
    /// `https://host:port/prefix` for users.
    pub url: String,
    /// The authority of what users see.
    pub ca: PathBuf,
    /// Bearer token.
    pub token: Option<String>,
    /// The hops, whose processor time and memory count.
    pub hops: Vec<Program>,
    /// What a crowd brings along.
    pub also: Also,
    /// Why it cannot do a scenario, where it cannot.
    pub cannot: fn(&Scenario) -> Option<&'static str>,
}

/// What a path has beside its hops where its scene wants that.
#[derive(Default)]
pub struct Also {
    /// Agents and their gateway, whom scenarios start and kill themselves.
    pub fleet: Option<towline::fleet::Fleet>,
    /// The agent whose control exchanges can be measured.
    pub control: Option<Dialogue>,
    /// URL and token of the second cluster.
    pub beside: Option<(String, Option<String>)>,
}

/// Of a path that can do every scenario.
pub fn can_all(_: &Scenario) -> Option<&'static str> {
    None
}

impl Running {
    /// Why it cannot do this, if so: what a report says in place of figures.
    pub fn cannot(&self, scenario: &Scenario) -> Option<&'static str> {
        (self.cannot)(scenario)
    }

    /// How its hops fare, for an error.
    pub fn state(&mut self) -> String {
        let fleet = self.also.fleet.iter_mut().map(|fleet| &mut fleet.gateway);
        self.hops.iter_mut().chain(fleet).map(Program::state).collect::<Vec<_>>().join("\n")
    }

    /// Ends its hops.
    pub async fn stop(self) {
        for hop in self.hops.into_iter().chain(self.also.fleet.map(|fleet| fleet.gateway)) {
            hop.stop().await;
        }
        if let Some(agent) = self.also.control {
            agent.stop().await;
        }
    }
}

impl Bench {
    /// Certificates and the upstream, on a network that there is.
    ///
    /// # Errors
    /// Whatever is missing on this machine.
    pub async fn start(link: Link, programs: PathBuf) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir()?;
        let servers = [("outer", link.address(Seat::Outer)), ("inner", link.address(Seat::Inner))];
        certificates::write(dir.path(), &servers)?;
        let mut command = link.command(Seat::Upstream, &std::env::current_exe()?);
        command.args(["upstream", "--listen", &format!("{}:0", link.address(Seat::Upstream))]);
        command.arg("--certificate").arg(dir.path().join("inner.crt")).arg("--key").arg(dir.path().join("inner.key"));
        let log = dir.path().join("upstream.log");
        let (program, upstream) = Program::start_with_line("upstream", command, &log).await?;
        Ok(Self { link, programs, upstream, dir, _upstream: program })
    }

    /// Why a path cannot be started for a crowd, if so.
    pub fn cannot(&self, kind: Kind, crowd: Crowd) -> Option<String> {
        match (kind, crowd) {
            (Kind::Direct | Kind::NginxChain, Crowd::Agents(_) | Crowd::Control) => Some("it has no agents".to_owned()),
            (Kind::NginxChain, Crowd::Watches(watches)) => nginx::cannot(watches),
            _ => None,
        }
    }

    /// Starts a path in a scene; it may take a while until a request gets through.
    ///
    /// # Errors
    /// A program that is missing or does not start, with the end of its log.
    pub async fn path(&self, kind: Kind, scene: Scene) -> anyhow::Result<Running> {
        match scene.server {
            Server::Synthetic => {}
        }
        match kind {
            Kind::Direct => Ok(Running {
                url: format!("https://{}", self.upstream),
                ca: self.file("ca.crt"),
                token: None,
                hops: Vec::new(),
                also: Also { beside: Some((format!("https://{}", self.upstream), None)), ..Also::default() },
                cannot: can_all,
            }),
            Kind::NginxChain => nginx::start(self, scene.crowd),
            Kind::TowlineH2 => towline::start(self, "h2", scene.crowd).await,
            Kind::TowlineWebsocket => towline::start(self, "websocket", scene.crowd).await,
            Kind::TowlineQuic => towline::start(self, "quic", scene.crowd).await,
        }
        .with_context(|| format!("start {}", kind.name()))
    }

    /// A file of this run, removed with it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

/// A path that does not answer within this is broken.
pub const ANSWERS: Duration = Duration::from_secs(30);
