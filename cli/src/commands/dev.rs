//! `towline dev`: a complete gateway for one machine, and edits of its state.

mod edit;
mod ports;
mod principals;
mod ready;
mod run;

use daemon::telemetry::LogLevel;

use crate::{
    args::DevArgs,
    failure::{Failure, Outcome},
};

/// Runs the gateway, or edits the state.
pub async fn run(args: DevArgs, log_level: LogLevel) -> Outcome {
    match (args.edit, args.run.state.clone()) {
        (Some(edit), _) => edit::run(edit),
        (None, Some(dir)) => run::run(&dir, args.run, log_level).await,
        (None, None) => Err(Failure::usage(anyhow::anyhow!("which folder? --state DIR"))),
    }
}
