//! Two reverse proxies of this program in a row, which do nothing but what any must: what Towline's libraries cost without
//! Towline.

use super::{Bench, PORT, Running, Upstream};
use crate::{link::Seat, program::Program, scenario::Scenario};

/// Where the site dials in.
const TUNNEL: u16 = 8446;

/// Starts both.
pub fn start(bench: &Bench, upstream: &Upstream, h2: bool) -> anyhow::Result<Running> {
    let (this, address) = (std::env::current_exe()?, bench.link.address(Seat::Outer));
    let tunnel = format!("{address}:{TUNNEL}");
    let mut outer = bench.link.command(Seat::Outer, &this);
    outer.args(["minimal", "outer", "--listen", &format!("{address}:{PORT}"), "--tunnel", &tunnel]);
    outer.arg("--certificate").arg(bench.file("outer.crt")).arg("--key").arg(bench.file("outer.key"));
    let mut inner = bench.link.command(Seat::Inner, &this);
    inner.args(["minimal", "inner", "--connect", &tunnel, "--upstream", &upstream.address]);
    inner.args(["--upstream-name", upstream.name]).args(h2.then_some("--h2"));
    inner.arg("--ca").arg(bench.file("ca.crt")).arg("--upstream-ca").arg(&upstream.ca);
    let hops = vec![
        Program::start("minimal outer", outer, &bench.file("minimal-outer.log"))?,
        Program::start("minimal inner", inner, &bench.file("minimal-inner.log"))?,
    ];
    Ok(Running { cannot, ..bench.proxied(upstream, hops) })
}

fn cannot(scenario: &Scenario) -> Option<&'static str> {
    scenario.work.upgrades().then_some("it knows requests only, no upgrades")
}
