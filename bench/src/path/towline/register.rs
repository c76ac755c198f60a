//! Clusters in a gateway's store, registered by its API as an operator's tools would. Nobody connects them.

use anyhow::Context;

use super::{Begun, text};
use crate::{
    link::Seat,
    load::register::{Done, Plan},
    program::output,
};

/// Registers them, unless an earlier repeat has.
pub async fn clusters(begun: &Begun<'_>, count: u32) -> anyhow::Result<()> {
    let done = begun.state.join("registered");
    if done.exists() {
        return Ok(());
    }
    let said = |name: &str| text(&begun.ready, name).map(str::to_owned);
    let plan = Plan {
        url: said("url")?,
        ca: said("ca")?.into(),
        tenant: said("tenant")?,
        subscription: said("subscription")?,
        client: said("clientId")?,
        secret: said("clientSecret")?,
        count,
    };
    let mut command = begun.bench.link.command(Seat::Load, &std::env::current_exe()?);
    command.arg("register");
    let told = output(command, serde_json::to_string(&plan)?.as_bytes()).await.context("register clusters")?;
    let Done { registered } = serde_json::from_str(&told)?;
    anyhow::ensure!(registered == count, "{registered} of {count} clusters are registered");
    Ok(std::fs::write(done, "")?)
}
