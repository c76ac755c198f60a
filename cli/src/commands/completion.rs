//! `towline completion`.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::{Shell, generate};

use super::print;
use crate::{
    args::{Args, CompletionArgs},
    failure::Outcome,
};

/// Prints the script of a shell.
pub fn run(args: &CompletionArgs) -> Outcome {
    let shell = match args.shell.as_str() {
        "zsh" => Shell::Zsh,
        "fish" => Shell::Fish,
        _ => Shell::Bash,
    };
    let mut script = Vec::new();
    generate(shell, &mut Args::command(), "towline", &mut script);
    print(String::from_utf8_lossy(&script).trim_end())?;
    Ok(ExitCode::SUCCESS)
}
