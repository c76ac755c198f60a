//! `towline dev`: a complete gateway for one machine, and edits of its state.

mod edit;
mod ports;
mod principals;
mod ready;
mod run;

use daemon::telemetry::LogLevel;

use self::{edit::Edit, run::RunArgs};
use crate::failure::{Failure, Outcome};

/// Run a complete gateway for one machine, with an issuer and users of its own
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    /// Edit the state of a running or stopped `towline dev`.
    #[command(subcommand)]
    pub edit: Option<Edit>,
    /// Options of the gateway itself.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Runs the gateway, or edits the state.
pub async fn run(args: Args, log_level: LogLevel) -> Outcome {
    match (args.edit, args.run.state.clone()) {
        (Some(edit), _) => edit::run(edit),
        (None, Some(dir)) => run::run(&dir, args.run, log_level).await,
        (None, None) => Err(Failure::usage(anyhow::anyhow!("which folder? --state DIR"))),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use daemon::settings::positive_duration;

    use super::*;
    use crate::commands::Cli;

    #[test]
    fn an_edit_needs_no_option_of_the_gateway_and_a_gateway_needs_its_state() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        assert!(parse("towline dev --state x --json --cluster a --cluster b").is_ok());
        assert!(parse("towline dev add-cluster --state x a").is_ok());
        assert!(parse("towline dev rotate-keys --state x").is_ok());
        assert!(parse("towline dev add-principal --state x ci --grant a --ttl 30m").is_ok());
        assert!(parse("towline dev rotate-principal --state x ci --append").is_ok());
        assert_eq!(positive_duration(edit::SECRET_TTL), Ok(gateway::issuer::principals::SECRET_LIFE));
        assert!(parse("towline dev grant --state x --cluster a --user b").is_ok());
        assert!(parse("towline dev grant --state x --cluster a").is_err());
        assert!(parse("towline dev").is_err());
    }
}
