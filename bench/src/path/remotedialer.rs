//! Rancher's remotedialer as Rancher uses it: an HTTPS reverse proxy in front of connections that are dialled at the
//! site, through a WebSocket that the site holds open. `bench/peers/remotedialer` is the program around the library.

use std::path::Path;

use super::{Bench, Kind, Running, Upstream, installed};
use crate::{link::Seat, program::Program};

const THIS: Kind = Kind::Remotedialer;

/// Starts both ends.
pub fn start(bench: &Bench, upstream: &Upstream) -> anyhow::Result<Running> {
    let program = installed("remotedialer", &[Path::new(super::PEERS).join("bin/remotedialer")])?;
    let door = bench.door(THIS);
    let mut server = bench.link.command(Seat::Outer, &program);
    server.args(["server", "--listen", &door, "--upstream", &upstream.address, "--upstream-name", upstream.name]);
    server.arg("--certificate").arg(bench.file("outer.crt")).arg("--key").arg(bench.file("outer.key"));
    server.arg("--upstream-ca").arg(&upstream.ca);
    let mut agent = bench.link.command(Seat::Inner, &program);
    agent.args(["agent", "--connect", &door]).arg("--ca").arg(bench.file("ca.crt"));
    let hops = vec![
        Program::start("remotedialer server", server, &bench.file("remotedialer-server.log"))?,
        Program::start("remotedialer agent", agent, &bench.file("remotedialer-agent.log"))?,
    ];
    Ok(bench.proxied(THIS, upstream, hops))
}
