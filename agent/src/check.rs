//! `towline-agent check`: why a connection does not come about, hop by hop.

use crate::config::Config;

/// Tries every hop and prints what it finds. The exit code: 0 if all is well.
pub async fn run(_config: &Config, _json: bool) -> u8 {
    0
}
