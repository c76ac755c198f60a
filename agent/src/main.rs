//! `towline-agent` as a program of its own. What ships is `towline`, which is the agent where it is called by that
//! name.

use std::process::ExitCode;

fn main() -> ExitCode {
    agent::program::main()
}
