//! Two reverse proxies of this program in a row, which do nothing but what any must: what Towline's libraries cost
//! without Towline.

use std::path::PathBuf;

use super::{Ability, Also, Bench, Kind, Running, Upstream, towline::fleet};
use crate::{agents::Plan, link::Seat, program::Program, scene::Crowd};

/// The words by which this program is those who idle.
const IDLE: &[&str] = &["minimal", "idle"];

/// Starts the outer and the inner hop.
pub fn start(bench: &Bench, upstream: &Upstream, kind: Kind, crowd: Crowd) -> anyhow::Result<Running> {
    let (this, address) = (std::env::current_exe()?, bench.link.address(Seat::Outer));
    let over = match kind {
        Kind::MinimalWebsocket => "websocket",
        Kind::MinimalQuic => "quic",
        _ => "http2",
    };
    // Where the site dials in.
    let (tunnel, over) = (format!("{address}:{}", kind.port() + 1), ["--over", over]);
    let mut outer = bench.link.command(Seat::Outer, &this);
    outer.args(["minimal", "outer", "--listen", &bench.door(kind), "--tunnel", &tunnel]).args(over);
    outer.arg("--certificate").arg(bench.file("outer.crt")).arg("--key").arg(bench.file("outer.key"));
    let mut inner = bench.link.command(Seat::Inner, &this);
    inner.args(["minimal", "inner", "--connect", &tunnel, "--upstream", &upstream.address]).args(over);
    inner.args(["--upstream-name", upstream.name]).args((kind == Kind::MinimalH2All).then_some("--h2"));
    inner.arg("--ca").arg(bench.file("ca.crt")).arg("--upstream-ca").arg(&upstream.ca);
    let mut hops = vec![
        Program::start("minimal outer", outer, &bench.file(&format!("{}-outer.log", kind.name())))?,
        Program::start("minimal inner", inner, &bench.file(&format!("{}-inner.log", kind.name())))?,
    ];
    let mut also = Also::default();
    if let Crowd::Agents(agents) = crowd {
        // They show no certificates.
        let (authority, dir) = (PathBuf::new(), PathBuf::new());
        let (ca, carrier) = (bench.file("ca.crt"), "quic".to_owned());
        let others = Vec::new();
        let plan = Plan { gateway: tunnel, others, ca, authority, dir, carrier, agents, first: 0, rate: fleet::RATE };
        also.fleet = Some(fleet::Fleet::once(hops.remove(0), plan, IDLE));
    }
    Ok(Running { lacks, also, ..bench.proxied(kind, upstream, hops) })
}

fn lacks(ability: Ability) -> Option<&'static str> {
    Some(match ability {
        Ability::Upgrades => "it knows requests only, no upgrades",
        Ability::Redials => "those who dial it do not come back",
    })
}
