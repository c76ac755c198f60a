//! One whole agent whose control exchanges are measured: users' requests go to an apiserver by the agent's own proxy,
//! and beside them, on the same tunnel, it says how it fares and asks what is wanted of it, by a schedule.

use std::{
    convert::Infallible,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use agent::{
    config::{CarrierChoice, Cluster, Config},
    identity::Identities,
    roles::{
        Roles,
        kube_aad_proxy::{
            self, KubeAadProxy,
            authenticate::Authenticator,
            authorize::Authorizer,
            dial::{Apiserver, access::Access},
            impersonate::Names,
        },
        serve::Server,
        sessions::Sessions,
    },
    tunnel::{Tunnels, api::AgentApi, connect::Connector, status::StatusBoard},
};
use anyhow::{Context, anyhow};
use auth::token::{Direct, Verifier};
use certs::PeerIdentity;
use daemon::{Shutdown, TaskGroup};
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};
use types::agent_api::{Desired, Heartbeat, HeartbeatAnswer, paths};

use crate::{
    load::{Outcome, Pace, meter::Meter, pace},
    told::{self, Asks},
};

/// One in this many exchanges is a heartbeat. The gateway lets a cluster have 30 of them at once and one more every
/// five seconds, and of the others 120 and five a second: six in a second for half a minute are below both.
const HEARTBEAT_EACH: u64 = 5;
/// Bytes of what is wanted of a cluster, at most.
const DESIRED_BYTES: usize = 64 * 1024;
/// How often the tunnel's latest probe is looked at.
const LOOK: Duration = Duration::from_millis(100);
/// It is asked for one in this many looks: of a tunnel that no user has a stream on only the gateway asks.
const PROBE_EACH: u32 = 10;
/// The tunnel must be up within this.
const UP: Duration = Duration::from_secs(30);

/// The first line: which agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Path of the agent's configuration file.
    pub config: PathBuf,
    /// How it reaches its apiserver.
    pub kubeconfig: PathBuf,
    /// `h2`, `websocket` or `quic`.
    pub carrier: String,
}

/// Every further line: an open loop of exchanges.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Ask {
    /// Exchanges in a second.
    pub rate: f64,
    /// Duration of the load, in seconds.
    pub seconds: f64,
}

/// Serves users, and does what standard input says, until that ends.
///
/// # Errors
/// A plan that cannot be read or carried out; no tunnel.
#[tokio::main(flavor = "current_thread")]
pub async fn main() -> anyhow::Result<()> {
    let (mut asks, plan): (_, Plan) = Asks::begin().await?;
    let tasks = TaskGroup::new("agent");
    let status = Arc::new(StatusBoard::default());
    let tunnels = Arc::new(build(&plan, &tasks, &status).await?);
    let api = AgentApi::new(tunnels.current());
    let kept = Arc::clone(&tunnels);
    tasks.spawn("tunnels", async move { kept.run(Shutdown::new()).await });
    timeout(UP, api.up())
        .await
        .map_err(|_| anyhow!("no tunnel within {UP:?}: {}", status.last_error().unwrap_or_default()))?;
    told::tell(&Outcome::default())?;
    while let Some(ask) = asks.next::<Ask>().await? {
        let mut probes = Duration::ZERO;
        let mut outcome = tokio::select! {
            outcome = exchanges(&api, ask) => outcome?,
            never = watch_probes(&tunnels, &mut probes) => match never {},
        };
        outcome.extra.insert("probe_us".to_owned(), probes.as_secs_f64() * 1e6);
        told::tell(&outcome)?;
    }
    tasks.abort();
    Ok(())
}

/// What the agent's own program makes of these settings, as far as users are concerned.
async fn build(plan: &Plan, tasks: &TaskGroup, status: &Arc<StatusBoard>) -> anyhow::Result<Tunnels> {
    let mut config = Config::load(&plan.config)?;
    config.cluster = Cluster::Kubeconfig { path: plan.kubeconfig.clone(), context: None };
    config.gateway.carrier = plan.carrier.parse::<CarrierChoice>().map_err(|wanted| anyhow!("{wanted}"))?;
    let connector = Connector::new(&config, &Identities::default())?;
    let own = connector.credentials().context("the agent has no certificate")?;
    let cluster = PeerIdentity::claimed(own.chain())?.agent()?.parse()?;
    let apiserver = Arc::new(Apiserver::new(Access::new(&config.cluster).await?, tasks.clone())?);
    let verifier = Verifier::new(config.issuers.clone(), Arc::new(Direct))?;
    let authenticator = Arc::new(Authenticator::new(verifier, cluster));
    let authorizer = Authorizer::new(Arc::clone(&authenticator), config.azure_rbac.clone());
    let names = Names::new(&config.impersonation);
    let sessions = Sessions::new(config.outlive_token, Arc::clone(authenticator.verifier()));
    let proxy = KubeAadProxy::new(Arc::clone(&authenticator), authorizer, apiserver, names, sessions);
    tasks.spawn("issuers", async move { authenticator.keep_fresh().await });
    let server = Server::new(Roles::new(vec![kube_aad_proxy::ENTRY.named(Arc::new(proxy))]), config.streams_max);
    let carrier = config.gateway.carrier;
    Ok(Tunnels::new(Arc::new(connector), carrier, server, Arc::clone(status), config.drain_grace))
}

async fn exchanges(api: &AgentApi, ask: Ask) -> anyhow::Result<Outcome> {
    let (meter, number) = (Arc::new(Meter::default()), Arc::new(AtomicU64::new(0)));
    let api = api.clone();
    let begin = tokio::time::Instant::now();
    pace::run(Pace::Open { rate: ask.rate, seconds: ask.seconds }, &meter, move |_| {
        let (api, number) = (api.clone(), number.fetch_add(1, Ordering::Relaxed));
        async move {
            if number.is_multiple_of(HEARTBEAT_EACH) {
                api.post::<HeartbeatAnswer>(paths::HEARTBEAT, &heartbeat()).await?;
            } else {
                // Who knows of nothing yet is told at once.
                api.poll::<Desired>(paths::DESIRED, DESIRED_BYTES).await?.context("nothing is wanted")?;
            }
            Ok(0)
        }
    })
    .await?;
    Ok(meter.outcome(begin.elapsed().as_secs_f64()))
}

/// Keeps the longest of the tunnel's probes.
async fn watch_probes(tunnels: &Tunnels, longest: &mut Duration) -> Infallible {
    let mut looks = 0u32;
    loop {
        if let Some(tunnel) = tunnels.current().borrow().as_ref() {
            *longest = (*longest).max(tunnel.rtt().unwrap_or_default());
            if looks.is_multiple_of(PROBE_EACH) {
                tunnel.probe();
            }
        }
        looks = looks.wrapping_add(1);
        sleep(LOOK).await;
    }
}

fn heartbeat() -> Heartbeat {
    let agent_version = env!("CARGO_PKG_VERSION").to_owned();
    Heartbeat { agent_version, total_node_count: Some(3), total_core_count: Some(12), ..Heartbeat::default() }
}
