//! A gateway of many clusters. Its configuration is the one that `towline dev` makes, with the clusters of a fleet in
//! it, and settings for agents that are all behind one address: how many handshakes one address may have under way.

use std::path::{Path, PathBuf};

use anyhow::Context;
use toml::Table;

use super::{Also, Begun, Bench, CLUSTER, Kind, Running, agent, has_all, program, text, token};
use crate::{
    agents::{self, Plan, cluster},
    audit::Audit,
    ledger::Ledger,
    link::Seat,
    program::{Dialogue, Program},
    scene::Crowd,
};

/// What it logs when it listens.
const SERVES: &str = "gateway serves";
/// How many agents begin in a second; one that loses its tunnel comes back by its own rules.
pub const RATE: f64 = 600.0;

/// A gateway and the agents of its clusters.
pub struct Fleet {
    /// The gateway; what kills it starts it again.
    pub gateway: Program,
    /// Who the agents are and where they dial.
    plan: Plan,
    /// The words by which this program is them.
    words: &'static [&'static str],
    /// The gateway's configuration file, and how often it was started again; nothing where that cannot be.
    again: Option<(PathBuf, u32)>,
    /// What the gateway uses while a load runs.
    ledger: Option<Ledger>,
}

/// Starts the gateway, and the agent of the cluster that users reach; those of the fleet are the scenario's to start.
pub async fn start(bench: &Bench, kind: Kind, agents: u32) -> anyhow::Result<Running> {
    // It makes certificates, users and the configuration, and serves one cluster for a moment.
    let made = Begun::new(bench, kind, Crowd::Agents(agents)).await?;
    let carrier = made.carrier;
    made.gateway.stop().await;
    let (state, ready) = (made.state, made.ready);
    keep_authority(bench, &state)?;
    write_config(&state, agents)?;
    let first = &ready["clusters"][0];
    let gateway = run(bench, &config_file(&state), 0).await?;
    let (url, ca) = (text(&ready, "url")?.to_owned(), text(&ready, "ca")?.into());
    let token = Some(token(bench, &state, CLUSTER).await?);
    let plan = plan(bench, &state, url, carrier, agents);
    let fleet = Fleet::new(gateway, plan, config_file(&state));
    let config = Path::new(text(first, "agent_config")?);
    let hops = vec![agent(bench, carrier, config, &bench.synthetic, "agent")?];
    let audit = Some(Audit::new(text(&ready, "admin")?));
    let also = Also { fleet: Some(fleet), audit, ..Also::default() };
    Ok(Running { url: text(first, "url")?.to_owned(), ca, name: None, token, hops, also, lacks: has_all })
}

/// What the agents of a fleet are told, whose gateway has this state.
pub fn plan(bench: &Bench, state: &Path, gateway: String, carrier: &str, agents: u32) -> Plan {
    let (ca, authority, dir) = (state.join("ca/ca.crt"), state.join("ca"), bench.file("fleet"));
    let carrier = carrier.to_owned();
    Plan { gateway, others: Vec::new(), ca, authority, dir, carrier, agents, first: 0, rate: RATE }
}

/// Of a run's fleets: all gateways have the authority of the first one, so that the certificates of agents serve all of
/// them.
fn authority(bench: &Bench) -> PathBuf {
    bench.file("fleet-ca")
}

/// Gives a state that does not exist yet the authority of the run's fleets, where there is one.
pub fn give_authority(bench: &Bench, state: &Path) -> anyhow::Result<()> {
    let kept = authority(bench);
    if kept.exists() { copy(&kept, &state.join("ca")) } else { Ok(()) }
}

/// Keeps the authority of the first state for those that follow.
pub fn keep_authority(bench: &Bench, state: &Path) -> anyhow::Result<()> {
    let kept = authority(bench);
    if kept.exists() { Ok(()) } else { copy(&state.join("ca"), &kept) }
}

/// A folder of files.
fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(to)?;
    for file in std::fs::read_dir(from).with_context(|| from.display().to_string())? {
        let file = file?;
        std::fs::copy(file.path(), to.join(file.file_name()))?;
    }
    Ok(())
}

/// The gateway's program with this configuration, once it listens.
async fn run(bench: &Bench, config: &Path, starts: u32) -> anyhow::Result<Program> {
    let mut command = bench.link.command(Seat::Outer, &program(bench, "towline-gateway")?);
    command.arg("--config").arg(config);
    // A log of its own, where what it says first is not what one before it said.
    let log = config.with_extension(format!("{starts}.log"));
    let mut gateway = Program::start("gateway", command, &log)?;
    gateway.says(SERVES).await?;
    Ok(gateway)
}

fn config_file(state: &Path) -> PathBuf {
    state.join("fleet.toml")
}

fn write_config(state: &Path, agents: u32) -> anyhow::Result<()> {
    let made = state.join("gateway.toml");
    let text = std::fs::read_to_string(&made).with_context(|| made.display().to_string())?;
    let config = config(text.parse().with_context(|| made.display().to_string())?, agents)?;
    Ok(std::fs::write(config_file(state), config.to_string())?)
}

/// What `towline dev` runs in its own process is the gateway's here.
pub fn config(mut config: Table, agents: u32) -> anyhow::Result<Table> {
    let clusters = config.get_mut("clusters").and_then(toml::Value::as_array_mut).context("no clusters")?;
    clusters.extend(
        (0..agents::clusters(agents))
            .map(|number| Table::from_iter([("id".to_owned(), cluster(number).into())]).into()),
    );
    let issuer = [("state_dir", "issuer".into()), ("token_lifetime", "24h".into())];
    // All of the fleet are behind one address, which is taken for one of many: an address gets an eighth of what is
    // free.
    let limits = [("handshakes_per_address", i64::from(agents.max(256)).into()), ("handshakes", 100_000.into())];
    config.insert("issuer".to_owned(), table(issuer));
    config.insert("limits".to_owned(), table(limits));
    Ok(config)
}

fn table<const N: usize>(entries: [(&str, toml::Value); N]) -> toml::Value {
    Table::from_iter(entries.map(|(key, value)| (key.to_owned(), value))).into()
}

impl Fleet {
    /// Of a gateway with this configuration file, and of agents.
    pub fn new(gateway: Program, plan: Plan, config: PathBuf) -> Self {
        let again = Some((config, 0));
        Self { again, ..Self::once(gateway, plan, &["agents"]) }
    }

    /// Of a gateway that is not started again, and of those that these words start in the place of agents.
    pub fn once(gateway: Program, plan: Plan, words: &'static [&'static str]) -> Self {
        Self { gateway, plan, words, again: None, ledger: None }
    }

    /// `https://host:port` of the gateways on the same store that are not killed.
    pub fn others(&self) -> &[String] {
        &self.plan.others
    }

    /// How many agents it is of.
    pub fn agents(&self) -> u32 {
        self.plan.agents
    }

    /// The agents' process, and the plan by which they begin to dial once it is told to them.
    pub fn dialogue(&self, bench: &Bench) -> anyhow::Result<(Dialogue, Plan)> {
        // Apart from the gateway's processor.
        let mut command = bench.link.crowd_command(Seat::Upstream, &std::env::current_exe()?);
        command.args(self.words);
        Ok((Dialogue::start("agents", command)?, self.plan.clone()))
    }

    /// What its gateway uses from now on, in all its lives.
    ///
    /// # Errors
    /// It has ended.
    pub fn ledger(&mut self) -> anyhow::Result<Ledger> {
        let ledger = Ledger::open(&self.gateway)?;
        self.ledger = Some(ledger.clone());
        Ok(ledger)
    }

    /// Kills the gateway.
    ///
    /// # Errors
    /// It has ended already.
    pub async fn kill(&mut self) -> anyhow::Result<()> {
        self.ledger.as_ref().map_or(Ok(()), Ledger::ends)?;
        self.gateway.kill().await;
        Ok(())
    }

    /// Starts the gateway again.
    pub async fn again(&mut self, bench: &Bench) -> anyhow::Result<()> {
        let (config, starts) = self.again.as_mut().context("a gateway that is not started again")?;
        *starts += 1;
        self.gateway = run(bench, config, *starts).await?;
        self.ledger.iter().for_each(|ledger| ledger.begins(&self.gateway));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clusters_of_a_fleet_come_to_those_that_there_are() {
        let before: Table = "[listen]\npublic = \"x\"\n[[clusters]]\nid = \"/dev\"\n".parse().unwrap();
        let after = config(before.clone(), 3).unwrap();
        let ids: Vec<_> = after["clusters"].as_array().unwrap().iter().map(|entry| entry["id"].as_str()).collect();
        assert_eq!(ids, [Some("/dev"), Some(&cluster(0)), Some(&cluster(1)), Some(&cluster(2))]);
        assert_eq!((&after["listen"], after["issuer"]["state_dir"].as_str()), (&before["listen"], Some("issuer")));
        assert!(config(Table::new(), 3).is_err());
    }
}
