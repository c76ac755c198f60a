//! Users of a path: processes that send a load, alone or beside another one.

use std::path::PathBuf;

use crate::{
    latency::Latency,
    link::Seat,
    load::{Load, Outcome, Plan, Until},
    path::{Bench, Running},
    program::{Dialogue, output},
};

/// Who sends a load, and where.
pub struct User {
    /// Base of the requests' URLs, `https://host:port/prefix`.
    pub url: String,
    /// The authority to trust.
    pub ca: PathBuf,
    /// Bearer token for each request; absent if the path asks for none.
    pub token: Option<String>,
}

impl User {
    /// Those of a path.
    pub fn of(path: &Running) -> Self {
        Self { url: path.url.clone(), ca: path.ca.clone(), token: path.token.clone() }
    }

    /// The process that sends it, and the line that it is told.
    pub fn start(&self, bench: &Bench, load: Load, until: Until) -> anyhow::Result<(std::process::Command, String)> {
        let plan = Plan { url: self.url.clone(), ca: self.ca.clone(), token: self.token.clone(), load, until };
        let mut command = bench.link.command(Seat::Load, &std::env::current_exe()?);
        command.arg("load");
        Ok((command, serde_json::to_string(&plan)? + "\n"))
    }

    /// Those who send while something lasts, from now on; any further line ends it, which is answered with a
    /// [`crate::load::meanwhile::Seen`].
    pub async fn meanwhile(&self, bench: &Bench, load: Load, least: u64) -> anyhow::Result<Dialogue> {
        let (command, plan) = self.start(bench, load, Until::Over { least })?;
        let mut users = Dialogue::start("users", command)?;
        users.tell(&plan).await?;
        Ok(users)
    }
}

/// A load that goes on while another one is measured.
pub struct Around {
    /// Who sends it.
    pub user: User,
    /// What is sent.
    pub load: Load,
}

/// A load in a process of its own; what goes on beside it in another, which is under way before.
pub async fn load_of(bench: &Bench, user: &User, load: Load, around: Option<Around>) -> anyhow::Result<Outcome> {
    let (command, plan) = user.start(bench, load, Until::Done)?;
    let measured = async { Ok(serde_json::from_str(&output(command, plan.as_bytes()).await?)?) };
    match around {
        Some(Around { user, load }) => beside(bench, &user, load, measured).await,
        None => measured.await,
    }
}

/// A load alone, and then beside another one: the second one is the outcome, which says what the first one saw.
pub async fn alone_and_beside(bench: &Bench, user: &User, load: Load, around: Around) -> anyhow::Result<Outcome> {
    let alone = load_of(bench, user, load, None).await?;
    let mut outcome = load_of(bench, user, load, Some(around)).await?;
    // What failed alone has failed.
    outcome.failed += alone.failed;
    outcome.errors.extend(alone.errors.into_iter().map(|(text, count)| (format!("alone: {text}"), count)));
    #[expect(clippy::cast_precision_loss, reason = "far less than 2^52 microseconds")]
    let p99 = |latency: &Latency| latency.at(0.99).map(|us| us as f64);
    let (alone, beside) = (p99(&alone.latency), p99(&outcome.latency));
    outcome.extra.extend(alone.map(|us| ("alone_p99_us".to_owned(), us)));
    let ratio = beside.zip(alone).filter(|(_, alone)| *alone > 0.0).map(|(beside, alone)| beside / alone);
    outcome.extra.extend(ratio.map(|ratio| ("beside_p99_ratio".to_owned(), ratio)));
    Ok(outcome)
}

/// What is measured while a load is under way, and what became of that.
pub async fn beside(
    bench: &Bench,
    user: &User,
    load: Load,
    measured: impl Future<Output = anyhow::Result<Outcome>>,
) -> anyhow::Result<Outcome> {
    let (command, plan) = user.start(bench, load, Until::Told)?;
    let mut process = Dialogue::start("the load beside", command)?;
    process.tell(&plan).await?;
    process.line().await?;
    let outcome = measured.await?;
    Ok(outcome.beside(serde_json::from_str(&process.last_line().await?)?))
}
