//! `towline-gateway` as a program of its own. What ships is `towline`, which is the gateway where it is called by that
//! name.

use std::process::ExitCode;

fn main() -> ExitCode {
    gateway::program::main()
}
