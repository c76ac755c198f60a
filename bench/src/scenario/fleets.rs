//! Many agents, many watches, a noisy cluster, and control exchanges beside bulk. Each is over a path of its own,
//! started with room for whom it is about.

use super::{ENDLESS_S, MIB, SHOWN, Scenario, Size, Work, hundred, small};
use crate::{
    agents::control,
    load::{Connections, Load, Pace, Request},
    scene::{Crowd, Scene},
};

/// Exchanges of an agent in a second, beside bulk: within what a gateway lets one have.
const EXCHANGES: f64 = 6.0;

/// A kind of work that is more than requests.
#[derive(Clone, Copy)]
pub enum Many {
    /// Agents that have nothing to do.
    Idle,
    /// The gateway is killed, and all come back.
    Storm,
    /// One of three gateways is killed for good.
    Failover,
    /// Requests to one of many clusters that a gateway has in its store.
    Registered,
    /// One user's watches.
    Watches,
    /// One cluster beside a noisy one.
    Noisy,
    /// What an agent says to its gateway beside bulk.
    Control,
}

const fn with(crowd: Crowd) -> Scene {
    Scene { crowd, ..Scene::PLAIN }
}

const fn scenario(name: &'static str, what: &'static str, crowd: Crowd, many: Many) -> Scenario {
    Scenario { name, what, scene: with(crowd), work: Work::Many(many), shown: &[] }
}

/// One that no target is about, and that is shown all the same.
const fn shown(name: &'static str, what: &'static str, crowd: Crowd, many: Many) -> Scenario {
    Scenario { shown: SHOWN, ..scenario(name, what, crowd, many) }
}

/// All of them.
pub const ALL: &[Scenario] = &[
    scenario(
        "watch-1000",
        "1,000 watches on 100 connections, an event a second each: delivery from when it was due, memory of each",
        Crowd::Watches(1000),
        Many::Watches,
    ),
    scenario("watch-10000", "the same with 10,000 watches", Crowd::Watches(10_000), Many::Watches),
    scenario(
        "idle-1000",
        "1,000 agents with nothing to do: the gateway's memory for each, its processor time",
        Crowd::Agents(1000),
        Many::Idle,
    ),
    scenario("idle-10000", "the same with 10,000 agents", Crowd::Agents(10_000), Many::Idle),
    scenario(
        "storm-5000",
        "a gateway of 5,000 agents is killed and started again: how long each is away, what users of another cluster see",
        Crowd::Agents(5000),
        Many::Storm,
    ),
    scenario(
        "failover-5000",
        "one of three gateways of 5,000 agents is killed: how soon the others reach all clusters, what users see",
        Crowd::Replicas(5000),
        Many::Failover,
    ),
    scenario(
        "registered-10",
        "small GETs to one cluster, 10 others in the gateway's store, not connected: 100 a second, then 64 under way",
        Crowd::Registered(10),
        Many::Registered,
    ),
    scenario(
        "registered-10000",
        "the same with 10,000 others: the cost of a request shall be the same",
        Crowd::Registered(10_000),
        Many::Registered,
    ),
    shown(
        "noisy",
        "get-100 of one cluster, beside 256 small GETs at any time of another one of the same gateway",
        Crowd::Two,
        Many::Noisy,
    ),
    shown(
        "control-under-bulk",
        "6 exchanges a second of an agent with its gateway (heartbeats, questions), beside 64 downloads on the same tunnel",
        Crowd::Control,
        Many::Control,
    ),
];

/// Users of a cluster that others shall not disturb.
pub fn quiet(size: Size) -> Load {
    small(Connections::Http2(1), hundred(size))
}

/// Users of a cluster who have 64 requests under way at any time.
pub fn busy(size: Size) -> Load {
    small(Connections::Http2(1), Pace::Closed { concurrent: 64, seconds: size.seconds })
}

/// Users of a cluster who ask as fast as they are answered.
pub fn noise() -> Load {
    small(Connections::Http2(4), Pace::Closed { concurrent: 256, seconds: ENDLESS_S })
}

/// Users who read without end.
pub fn bulk() -> Load {
    let pace = Pace::Closed { concurrent: 64, seconds: ENDLESS_S };
    Load { connections: Connections::Http2(4), request: Request::Download(8 * MIB), pace }
}

/// What an agent says meanwhile.
pub fn exchanges(size: Size) -> control::Ask {
    control::Ask { rate: EXCHANGES, seconds: size.crowd_s }
}

/// Whom there is room for in a short run, which only shows that it works.
pub fn fewer(crowd: Crowd, size: Size) -> Crowd {
    match crowd {
        Crowd::Watches(count) => Crowd::Watches(count / size.crowd_part),
        Crowd::Agents(count) => Crowd::Agents(count / size.crowd_part),
        Crowd::Replicas(count) => Crowd::Replicas(count / size.crowd_part),
        // The least of them is few already.
        Crowd::Registered(count) => Crowd::Registered((count / size.crowd_part).max(count.min(10))),
        other => other,
    }
}
