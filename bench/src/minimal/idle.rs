//! Those who dial the outer hop over QUIC and have nothing to do: an endpoint and a connection of quinn's each, as many
//! agents on as many machines would have. What the hop tells them their carrier answers, and nothing else. Started by
//! `run` in the place of agents, and told and asked the same.

use std::{sync::Arc, time::Duration};

use anyhow::bail;
use futures_util::{StreamExt, stream::FuturesUnordered};
use quinn::{Connection, Endpoint};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::quic;
use crate::{
    agents::{Ask, Plan, due},
    load::{Outcome, count},
    told::{self, Asks},
};

/// Does what standard input says, until that ends.
pub async fn run() -> anyhow::Result<()> {
    let (mut asks, plan): (_, Plan) = Asks::begin().await?;
    let tls = Arc::new(quic::tls(&plan.ca)?);
    told::tell(&Outcome::default())?;
    let mut crowd = Vec::new();
    while let Some(ask) = asks.next().await? {
        match ask {
            Ask::Up { within } => {
                let (came, outcome) = dial(&plan, &tls, Duration::from_secs_f64(within)).await;
                crowd.extend(came);
                told::tell(&outcome)?;
            }
            Ask::Now => told::tell(&now(&crowd, plan.agents))?,
            Ask::Lost | Ask::Two { .. } | Ask::Without(_) => bail!("these do not come back"),
        }
    }
    Ok(())
}

/// One that is there.
type Member = (Endpoint, Connection);

/// All of them, each when it is due. Who is not there by then has failed.
async fn dial(plan: &Plan, tls: &Arc<rustls::ClientConfig>, within: Duration) -> (Vec<Member>, Outcome) {
    let begin = Instant::now();
    let one = async |number| {
        let due = due(begin, number, plan.rate);
        sleep_until(due).await;
        (due, quic::dial(&plan.gateway, tls).await)
    };
    let mut dials: FuturesUnordered<_> = (0..plan.agents as usize).map(one).collect();
    let (mut came, mut outcome) = (Vec::new(), Outcome::default());
    while let Ok(Some((due, dialled))) = timeout_at(begin + within, dials.next()).await {
        match dialled {
            Ok(member) => {
                outcome.latency.record(due.elapsed());
                outcome.seconds = begin.elapsed().as_secs_f64();
                came.push(member);
            }
            Err(error) => count(&mut outcome.errors, format!("{error:#}")),
        }
    }
    let late = dials.len() as u64;
    if late > 0 {
        outcome.errors.insert("no connection yet".to_owned(), late);
    }
    outcome.requests = came.len() as u64;
    outcome.failed = u64::from(plan.agents) - outcome.requests;
    (came, outcome)
}

/// Who is there at this moment.
fn now(crowd: &[Member], of: u32) -> Outcome {
    let there = crowd.iter().filter(|(_, connection)| connection.close_reason().is_none()).count() as u64;
    Outcome { requests: there, failed: u64::from(of) - there, ..Outcome::default() }
}
