//! rathole as its own program runs it.

use clap::Parser;
use tokio::sync::broadcast;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt().with_ansi(false).init();
    // It runs until it is killed.
    let (_end, ended) = broadcast::channel(1);
    rathole::run(rathole::Cli::parse(), ended).await
}
