//! Agents of many clusters in one process. Each has a certificate and a tunnel of its own, and dials, proves itself,
//! probes, backs off and comes back by the agent's own code; only what is behind them, an apiserver, is not there.
//! Started by `run`, which tells it what to do, a line of JSON each, and gets a line for each.

mod board;
pub mod control;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use agent::{
    config::Config,
    identity::Identities,
    roles::{
        Roles,
        echo::{self, Echo},
        kube_aad_proxy,
        serve::Server,
    },
    tunnel::{Tunnels, connect::Connector, status::StatusBoard},
};
use anyhow::Context;
use board::{Board, Member};
use certs::{Authority, Validity};
use daemon::{Shutdown, TaskGroup};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};

use crate::{
    load::Outcome,
    told::{self, Asks},
};

/// Life of a certificate in days: longer than any run.
const CERTIFICATE_DAYS: u32 = 2;
/// Where clusters of a fleet are.
const SCOPE: &str = "/subscriptions/00000000-0000-0000-0000-00000000be2c/resourceGroups/fleet/providers/Microsoft.Kubernetes/connectedClusters";

/// The first line: who they are and where they dial.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// `https://host:port` of the gateway.
    pub gateway: String,
    /// Those of other gateways on the same store. Each agent has tunnels to two of all these.
    #[serde(default)]
    pub others: Vec<String>,
    /// The authority of its certificate.
    pub ca: PathBuf,
    /// Folder of the authority that agents' certificates come from.
    pub authority: PathBuf,
    /// A folder of certificates and keys that this authority gave to agents before; those that are not there are made.
    pub dir: PathBuf,
    /// `h2`, `websocket` or `quic`.
    pub carrier: String,
    /// Number of agents.
    pub agents: u32,
    /// Number of the first of them; others may be another process's.
    #[serde(default)]
    pub first: u32,
    /// How many begin to dial in a second.
    pub rate: f64,
}

/// Every further line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Ask {
    /// Tell once all have a tunnel that was made since they were started or lost; at the latest after this many
    /// seconds.
    Up {
        /// Longest wait, in seconds.
        within: f64,
    },
    /// The gateway was killed: all have lost their tunnel now, whatever they know of it.
    Lost,
    /// Tell who has a tunnel now.
    Now,
    /// Tell once all have tunnels to two gateways; at the latest after this many seconds.
    Two {
        /// The name of a gateway to which a tunnel does not count, because it was killed.
        but: Option<String>,
        /// Longest wait, in seconds.
        within: f64,
    },
    /// Tell the numbers of those without a tunnel to the gateway of this name.
    Without(String),
}

/// Clusters of a fleet, at most: a gateway's configuration is at most a megabyte. Where there are more agents, some
/// clusters have two.
const CLUSTERS: u32 = 5000;

/// Number of clusters that `agents` agents have.
pub fn clusters(agents: u32) -> u32 {
    agents.min(CLUSTERS)
}

/// The cluster of an agent, whatever the size of its fleet.
fn cluster_of(agent: u32) -> String {
    cluster(agent % CLUSTERS)
}

/// The id of a cluster of a fleet.
pub fn cluster(number: u32) -> String {
    format!("{SCOPE}/fleet-{number}")
}

/// Does what standard input says, until that ends.
///
/// # Errors
/// A plan that cannot be read or carried out.
#[tokio::main(flavor = "current_thread")]
pub async fn main() -> anyhow::Result<()> {
    let (mut asks, plan): (_, Plan) = Asks::begin().await?;
    let tasks = TaskGroup::new("agents");
    let members = make(&plan)?;
    told::tell(&Outcome::default())?;
    let board = Board::start(members, plan.rate, &tasks);
    while let Some(ask) = asks.next().await? {
        match ask {
            Ask::Up { within } => told::tell(&board.up(Duration::from_secs_f64(within)).await)?,
            Ask::Lost => {
                board.lost();
                told::tell(&Outcome::default())?;
            }
            Ask::Now => told::tell(&board.now())?,
            Ask::Two { but, within } => {
                told::tell(&board.two(but.as_deref(), Duration::from_secs_f64(within)).await)?;
            }
            Ask::Without(name) => told::tell(&board.without(&name))?,
        }
    }
    tasks.abort();
    Ok(())
}

/// All of them, with their certificates; none dials yet.
fn make(plan: &Plan) -> anyhow::Result<Vec<Member>> {
    let authority = Authority::load(&plan.authority).with_context(|| plan.authority.display().to_string())?;
    std::fs::create_dir_all(&plan.dir)?;
    (plan.first..plan.first.saturating_add(plan.agents)).map(|number| member(plan, &authority, number)).collect()
}

fn member(plan: &Plan, authority: &Authority, number: u32) -> anyhow::Result<Member> {
    let files = identity(&plan.dir, authority, number)?;
    let config = config(plan, &files, number)?;
    let connector = Connector::new(&config, &Identities::default())?;
    // No apiserver runs here: these agents answer each request with its own body.
    let roles = [&echo::ENTRY, &kube_aad_proxy::ENTRY].map(|entry| entry.named(Arc::new(Echo)));
    let server = Server::new(Roles::new(roles.into()), config.streams_max);
    let status = Arc::new(StatusBoard::default());
    let carrier = config.gateway.carrier;
    let tunnels = Tunnels::new(Arc::new(connector), carrier, server, Arc::clone(&status), config.drain_grace);
    Ok(Member::new(tunnels, status))
}

/// Files of an agent's certificate and key.
struct Identity {
    certificate: PathBuf,
    key: PathBuf,
}

/// Those of the agent of this number: of an earlier fleet, or new ones. Making them takes longer than all else that
/// comes before a fleet dials, and more so where the disk is waited for, which nobody needs who loses the folder with
/// the run.
fn identity(dir: &Path, authority: &Authority, number: u32) -> anyhow::Result<Identity> {
    let files = Identity { certificate: dir.join(format!("{number}.crt")), key: dir.join(format!("{number}.key")) };
    // It is written last: where it is, the other one is.
    if !files.certificate.exists() {
        let issued = authority.issue_agent(&cluster_of(number), Validity::days(CERTIFICATE_DAYS))?;
        std::fs::write(&files.key, issued.key_pem())?;
        std::fs::write(&files.certificate, &issued.certificate_pem)?;
    }
    Ok(files)
}

/// Where an agent dials, in order: neighbours begin at different gateways, so that the tunnels are spread evenly.
fn gateways(plan: &Plan, number: u32) -> Vec<String> {
    let mut all: Vec<_> = std::iter::once(&plan.gateway).chain(&plan.others).cloned().collect();
    let first = number as usize % all.len();
    all.rotate_left(first);
    all
}

/// An agent's settings, as its own file would say them.
fn config(plan: &Plan, identity: &Identity, number: u32) -> anyhow::Result<Config> {
    let gateway = toml::Table::from_iter([
        ("urls".to_owned(), gateways(plan, number).into()),
        ("ca_file".to_owned(), plan.ca.display().to_string().into()),
        ("certificate_file".to_owned(), identity.certificate.display().to_string().into()),
        ("key_file".to_owned(), identity.key.display().to_string().into()),
        ("carrier".to_owned(), plan.carrier.clone().into()),
    ]);
    let text = toml::Table::from_iter([("gateway".to_owned(), toml::Value::Table(gateway))]).to_string();
    Config::parse(&text, &plan.dir).map_err(|faults| anyhow::anyhow!("{}", faults.of(Path::new("an agent's settings"))))
}

/// When the one of this number is due.
pub fn due(start: Instant, number: usize, rate: f64) -> Instant {
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 agents")]
    let after = number as f64 / rate;
    start + Duration::from_secs_f64(after)
}

/// Keeps the tunnel of one up from when it is due.
async fn run(tunnels: Arc<Tunnels>, due: Instant) {
    sleep_until(due).await;
    tunnels.run(Shutdown::new()).await;
}

#[cfg(test)]
mod tests {
    use certs::{Credentials, PeerIdentity};

    use super::*;

    #[test]
    fn an_agent_has_the_same_identity_in_every_fleet_and_those_of_a_cluster_have_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::create("test", Validity::days(2)).unwrap();
        let load = |number| {
            let Identity { certificate, key } = identity(dir.path(), &authority, number).unwrap();
            Credentials::load(&certificate, &key).unwrap()
        };
        let (first, again, other) = (load(1), load(1), load(1 + CLUSTERS));
        assert_eq!(first.chain(), again.chain());
        assert_ne!(first.chain(), other.chain());
        for credentials in [first, other] {
            let peer = PeerIdentity::claimed(credentials.chain()).unwrap();
            assert_eq!(peer.agent().unwrap(), cluster(1));
        }
    }

    #[test]
    fn neighbours_of_a_fleet_begin_at_different_gateways_and_know_all() {
        let plan = Plan {
            gateway: "https://a:1".to_owned(),
            others: ["https://b:1", "https://c:1"].map(str::to_owned).into(),
            ca: PathBuf::new(),
            authority: PathBuf::new(),
            dir: PathBuf::new(),
            carrier: "h2".to_owned(),
            agents: 3,
            first: 0,
            rate: 1.0,
        };
        let firsts: Vec<_> = (0..4).map(|number| gateways(&plan, number)[..2].concat()).collect();
        let pairs = ["https://a:1https://b:1", "https://b:1https://c:1", "https://c:1https://a:1"];
        assert_eq!(firsts, [pairs[0], pairs[1], pairs[2], pairs[0]]);
        assert_eq!(gateways(&plan, 1).len(), 3);
        assert_eq!(gateways(&Plan { others: Vec::new(), ..plan }, 7), ["https://a:1"]);
    }
}
