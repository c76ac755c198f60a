//! Gateway and agent as a user runs them: token check at both, impersonation and audit included.

pub mod fleet;
pub mod hop;
mod register;
pub mod replicas;

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::Value;

use super::{Also, Bench, Kind, Running, Upstream, has_all};
use crate::{
    agents::control,
    audit::Audit,
    link::Seat,
    load::Outcome,
    program::{Dialogue, Program, READY, output},
    scene::Crowd,
};

/// The cluster that every gateway has, and the one beside it where two share it.
const CLUSTER: &str = "dev";
const BESIDE: &str = "beside";
/// Streams that one tunnel has room for, with some to spare: more users need another agent.
const STREAMS_OF_AGENT: u32 = 8000;
/// Streams that users may have beside those that a crowd is made of.
const SPARE: u32 = 1000;

/// The programs of both ends, which are built before anything is measured.
pub fn has_programs(bench: &Bench) -> anyhow::Result<()> {
    ["towline", "towline-agent"].iter().try_for_each(|name| program(bench, name).map(drop))
}

/// What bears its tunnel, as the agent calls it.
fn carrier(kind: Kind) -> &'static str {
    match kind {
        Kind::TowlineWebsocket => "websocket",
        Kind::TowlineQuic => "quic",
        _ => "h2",
    }
}

/// Starts both, with one carrier.
pub async fn start(bench: &Bench, upstream: &Upstream, kind: Kind, crowd: Crowd) -> anyhow::Result<Running> {
    if kind == Kind::TowlineHop {
        return hop::start(bench, upstream).await;
    }
    if let Crowd::Agents(agents) = crowd {
        return fleet::start(bench, kind, agents).await;
    }
    if let Crowd::Replicas(agents) = crowd {
        return replicas::start(bench, kind, agents).await;
    }
    let begun = Begun::new(bench, kind, crowd).await?;
    if let Crowd::Registered(clusters) = crowd {
        register::clusters(&begun, clusters).await?;
    }
    let audit = Some(Audit::new(text(&begun.ready, "admin")?));
    let (mut hops, mut also) = (Vec::new(), Also { audit, ..Also::default() });
    match crowd {
        Crowd::Few | Crowd::Agents(_) | Crowd::Replicas(_) | Crowd::Registered(_) => {
            hops.push(begun.agent(CLUSTER, "agent", upstream)?)
        }
        Crowd::Watches(watches) => {
            for number in 0..watches.div_ceil(STREAMS_OF_AGENT) {
                hops.push(begun.agent(CLUSTER, &format!("agent-{number}"), upstream)?);
            }
        }
        Crowd::Control => also.control = Some(begun.control(upstream).await?),
        Crowd::Two => {
            hops.extend([begun.agent(CLUSTER, "agent", upstream)?, begun.agent(BESIDE, "agent-beside", upstream)?]);
            also.beside = Some((begun.url(BESIDE)?, Some(begun.token(BESIDE).await?)));
        }
    }
    let (url, token) = (begun.url(CLUSTER)?, begun.token(CLUSTER).await?);
    hops.insert(0, begun.gateway);
    let ca = text(&begun.ready, "ca")?.into();
    Ok(Running { url, ca, name: None, token: Some(token), hops, also, lacks: has_all })
}

/// A gateway that serves.
struct Begun<'a> {
    bench: &'a Bench,
    carrier: &'static str,
    state: PathBuf,
    gateway: Program,
    /// The line that it printed.
    ready: Value,
}

impl<'a> Begun<'a> {
    /// `towline dev` with room for a crowd.
    async fn new(bench: &'a Bench, kind: Kind, crowd: Crowd) -> anyhow::Result<Self> {
        let carrier = carrier(kind);
        let state = match crowd {
            // Its database is kept for the next repeat: to fill it takes longer than to measure.
            Crowd::Registered(clusters) => bench.file(&format!("{}-{clusters}", kind.name())),
            _ => {
                // Of the last repeat: databases and logs begin anew.
                let state = bench.file(kind.name());
                let _ = std::fs::remove_dir_all(&state);
                state
            }
        };
        if matches!(crowd, Crowd::Agents(_) | Crowd::Replicas(_)) {
            fleet::give_authority(bench, &state)?;
        }
        let mut command = bench.link.command(Seat::Outer, &program(bench, "towline")?);
        command.args(["dev", "--json", "--token-ttl", "24h", "--state"]).arg(&state);
        command.args(["--listen", &bench.door(kind)]);
        command.args(["--cluster", CLUSTER]);
        match crowd {
            Crowd::Few | Crowd::Control | Crowd::Agents(_) | Crowd::Replicas(_) => {}
            // One caller registers them as fast as it is answered.
            Crowd::Registered(_) => {
                command.args(["--set", "api.writes_per_minute=1000000"]);
            }
            Crowd::Two => {
                command.args(["--cluster", BESIDE]);
            }
            // One user holds them all.
            Crowd::Watches(watches) => {
                command.args(["--set", &format!("limits.streams_per_user={}", watches + SPARE)]);
                command.args(["--set", &format!("limits.streams_per_cluster={}", watches + SPARE)]);
            }
        }
        let (gateway, line) =
            Program::start_with_line("gateway", command, &bench.file(&format!("gateway-{}.log", kind.name()))).await?;
        let ready = serde_json::from_str(&line).context("the line that `towline dev` prints")?;
        Ok(Self { bench, carrier, state, gateway, ready })
    }

    fn cluster(&self, name: &str) -> anyhow::Result<&Value> {
        let clusters = self.ready["clusters"].as_array().into_iter().flatten();
        let found = clusters.into_iter().find(|cluster| cluster["name"] == name);
        found.with_context(|| format!("`towline dev` has no cluster {name}"))
    }

    fn url(&self, name: &str) -> anyhow::Result<String> {
        Ok(text(self.cluster(name)?, "url")?.to_owned())
    }

    async fn token(&self, name: &str) -> anyhow::Result<String> {
        token(self.bench, &self.state, name).await
    }

    /// The agent of a cluster.
    fn agent(&self, name: &str, called: &str, upstream: &Upstream) -> anyhow::Result<Program> {
        let config = Path::new(text(self.cluster(name)?, "agent_config")?);
        agent(self.bench, self.carrier, config, upstream, called)
    }

    /// An agent of ours in the place of the program, whose control exchanges can be measured.
    async fn control(&self, upstream: &Upstream) -> anyhow::Result<Dialogue> {
        let plan = control::Plan {
            config: text(self.cluster(CLUSTER)?, "agent_config")?.into(),
            kubeconfig: upstream.admin.clone(),
            carrier: self.carrier.to_owned(),
        };
        let mut command = self.bench.link.command(Seat::Inner, &std::env::current_exe()?);
        command.arg("agent");
        let mut agent = Dialogue::start("agent", command)?;
        agent.ask::<Outcome>(&plan, READY).await?;
        Ok(agent)
    }
}

/// The agent's program with these settings.
fn agent(bench: &Bench, carrier: &str, config: &Path, upstream: &Upstream, called: &str) -> anyhow::Result<Program> {
    let mut command = bench.link.command(Seat::Inner, &program(bench, "towline-agent")?);
    command.args(["run", "--carrier", carrier, "--config"]).arg(config);
    command.arg("--kubeconfig").arg(&upstream.admin);
    Program::start(called, command, &bench.file(&format!("{called}-{carrier}.log")))
}

/// A token of a user who may reach the cluster, of a gateway that serves.
async fn token(bench: &Bench, state: &Path, cluster: &str) -> anyhow::Result<String> {
    let mut command = bench.link.command(Seat::Outer, &program(bench, "towline")?);
    command.args(["token", "--user", "admin", "--cluster", cluster, "--state"]).arg(state);
    let token = output(command, b"").await?.trim().to_owned();
    let least = super::CREDENTIAL_BYTES;
    anyhow::ensure!(
        token.len() >= least,
        "a token of {} bytes: users of other paths have {least} to carry",
        token.len()
    );
    Ok(token)
}

fn text<'a>(value: &'a Value, name: &str) -> anyhow::Result<&'a str> {
    value[name].as_str().with_context(|| format!("{name} is missing in the line that `towline dev` prints"))
}

fn program(bench: &Bench, name: &str) -> anyhow::Result<PathBuf> {
    let path = Path::new(&bench.programs).join(name);
    anyhow::ensure!(
        path.exists(),
        "{} is missing: build it (cargo build --release --workspace --bins), or name its folder with --programs",
        path.display()
    );
    Ok(path)
}
