//! One upload without end, cut after its time: how much of it got through is told by who received it.

use std::{sync::Arc, time::Duration};

use anyhow::{Context, ensure};
use http_body_util::BodyExt;
use tokio::time::{Instant, sleep, timeout};

use super::{
    Connections, Request,
    client::{Client, Target},
    meter::Meter,
};
use crate::upstream::tally::{self, Arrived};

/// Who received it says so within this, over whatever way.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends for a time; the seconds in which what is counted arrived.
pub async fn run(target: &Arc<Target>, seconds: f64, meter: &Meter) -> f64 {
    let due = Instant::now();
    let (outcome, seconds) = match pour(target, Duration::from_secs_f64(seconds), meter).await {
        Ok(Arrived { bytes: 0, .. }) => (Err(anyhow::anyhow!("nothing arrived")), seconds),
        Ok(Arrived { bytes, seconds }) => (Ok(bytes), seconds),
        Err(error) => (Err(error), seconds),
    };
    meter.record(due, outcome);
    seconds
}

async fn pour(target: &Arc<Target>, time: Duration, meter: &Meter) -> anyhow::Result<Arrived> {
    // On a connection of its own, the question does not wait behind what is sent.
    let client = || Client::new(Arc::clone(target), Connections::Http2(1));
    let (sender, asker, number) = (client(), client(), fastrand::u64(..));
    let asked = async {
        asker.connect().await;
        sleep(time).await;
        timeout(PATIENCE, ask(&asker, number)).await.context("who received it does not tell how much")?
    };
    tokio::select! {
        ended = sender.send(Request::Pour(number), meter) => anyhow::bail!("the upload ended: {:?}", ended.err()),
        arrived = asked => arrived,
    }
}

async fn ask(client: &Client, number: u64) -> anyhow::Result<Arrived> {
    let answer = client.get(&tally::path(number)).await?;
    ensure!(answer.status().is_success(), "status {}", answer.status().as_u16());
    Ok(serde_json::from_slice(&answer.into_body().collect().await?.to_bytes())?)
}
