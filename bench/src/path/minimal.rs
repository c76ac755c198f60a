//! Two reverse proxies of this program in a row, which do nothing but what any must: what Towline's libraries cost without
//! Towline.

use std::path::PathBuf;

use super::{Also, Bench, PORT, Running, Upstream, towline::fleet};
use crate::{
    agents::Plan,
    link::Seat,
    program::Program,
    scenario::{Scenario, Work, fleets::Many},
    scene::Crowd,
};

/// Where the site dials in.
const TUNNEL: u16 = 8446;
/// The words by which this program is those who idle.
const IDLE: &[&str] = &["minimal", "idle"];

/// What is between both, and between the second one and the upstream.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// HTTP/2, then HTTP/1.1.
    Http2,
    /// HTTP/2 on both.
    AllHttp2,
    /// HTTP/2 in messages of a WebSocket, then HTTP/1.1.
    Websocket,
    /// QUIC, then HTTP/1.1.
    Quic,
}

/// Starts both.
pub fn start(bench: &Bench, upstream: &Upstream, way: Way, crowd: Crowd) -> anyhow::Result<Running> {
    let (this, address) = (std::env::current_exe()?, bench.link.address(Seat::Outer));
    let over = match way {
        Way::Http2 | Way::AllHttp2 => "http2",
        Way::Websocket => "websocket",
        Way::Quic => "quic",
    };
    let (tunnel, over) = (format!("{address}:{TUNNEL}"), ["--over", over]);
    let mut outer = bench.link.command(Seat::Outer, &this);
    outer.args(["minimal", "outer", "--listen", &format!("{address}:{PORT}"), "--tunnel", &tunnel]).args(over);
    outer.arg("--certificate").arg(bench.file("outer.crt")).arg("--key").arg(bench.file("outer.key"));
    let mut inner = bench.link.command(Seat::Inner, &this);
    inner.args(["minimal", "inner", "--connect", &tunnel, "--upstream", &upstream.address]).args(over);
    inner.args(["--upstream-name", upstream.name]).args((way == Way::AllHttp2).then_some("--h2"));
    inner.arg("--ca").arg(bench.file("ca.crt")).arg("--upstream-ca").arg(&upstream.ca);
    let mut hops = vec![
        Program::start("minimal outer", outer, &bench.file("minimal-outer.log"))?,
        Program::start("minimal inner", inner, &bench.file("minimal-inner.log"))?,
    ];
    let mut also = Also::default();
    if let Crowd::Agents(agents) = crowd {
        // They show no certificates.
        let (authority, dir) = (PathBuf::new(), PathBuf::new());
        let (ca, carrier) = (bench.file("ca.crt"), "quic".to_owned());
        let plan = Plan { gateway: tunnel, ca, authority, dir, carrier, agents, rate: fleet::RATE };
        also.fleet = Some(fleet::Fleet::once(hops.remove(0), plan, IDLE));
    }
    Ok(Running { cannot, also, ..bench.proxied(upstream, hops) })
}

fn cannot(scenario: &Scenario) -> Option<&'static str> {
    if matches!(scenario.work, Work::Many(Many::Storm)) {
        return Some("those who dial it do not come back");
    }
    scenario.work.upgrades().then_some("it knows requests only, no upgrades")
}
