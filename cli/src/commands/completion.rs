//! `towline completion`.

use std::{
    future::{Ready, ready},
    process::ExitCode,
};

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::{Cli, print};
use crate::failure::Outcome;

/// Print what makes a shell complete these commands
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which shell
    #[arg(value_parser = ["bash", "zsh", "fish"])]
    pub shell: String,
}

/// Prints the script of a shell.
pub fn run(args: Args) -> Ready<Outcome> {
    ready(print_script(&args.shell))
}

fn print_script(shell: &str) -> Outcome {
    let shell = match shell {
        "zsh" => Shell::Zsh,
        "fish" => Shell::Fish,
        _ => Shell::Bash,
    };
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "towline", &mut script);
    print(String::from_utf8_lossy(&script).trim_end())?;
    Ok(ExitCode::SUCCESS)
}
