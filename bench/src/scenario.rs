//! The loads that are measured. `docs/bench.md` says what each means.

mod commands;
pub mod fleets;
mod links;
mod others;
mod upgrades;

use anyhow::Context;
use clap::ValueEnum;

use crate::{
    commands::Task,
    h2load,
    load::{Connections, Load, Pace, Request, watch},
    path::{Ability, Kind, towline},
    scene::{Crowd, Scene},
    shape::Shape,
};

/// A load, what it needs, and the paths that it is shown for.
pub struct Scenario {
    /// As on the command line.
    pub name: &'static str,
    /// What it is.
    pub what: &'static str,
    /// What a path is started in for it.
    pub scene: Scene,
    /// What is done.
    pub work: Work,
    /// Over which paths a run without names measures it once, where no target needs it.
    pub shown: &'static [Kind],
}

/// What is done over a path that was started, by what knows how.
#[derive(Clone, Copy)]
pub enum Work {
    /// Requests, and what goes on beside them.
    Load(fn(Size) -> (Load, Option<Load>)),
    /// Requests, alone and then beside others.
    Beside(fn(Size) -> (Load, Load)),
    /// With many agents, watches or clusters.
    Many(fleets::Many),
    /// What kubectl does, before a real apiserver.
    Command(fn(Size) -> Task),
    /// Requests of a load generator that is not ours, for a number of seconds.
    H2load(fn(Size) -> f64),
    /// A number of token checks, over no path at all.
    Tokens(fn(Size) -> u32),
}

impl Work {
    /// Why it cannot be done on this machine, if so.
    pub fn missing(self) -> Option<&'static str> {
        match self {
            Self::H2load(_) => h2load::missing(),
            _ => None,
        }
    }

    /// About how long it takes once a path is up, in seconds.
    pub fn seconds(self, size: Size, crowd: Crowd) -> f64 {
        let come = match crowd {
            Crowd::Agents(agents) => f64::from(agents) / towline::fleet::RATE * DIALLED,
            Crowd::Replicas(agents) => f64::from(agents) / towline::fleet::RATE * DIALLED + SECOND_S,
            // The first repeat alone registers them.
            Crowd::Registered(_) => 0.0,
            Crowd::Watches(watches) => f64::from(watches) / watch::OPENED_PER_SECOND,
            Crowd::Few | Crowd::Two | Crowd::Control => 0.0,
        };
        match self {
            Self::Load(of) => match of(size) {
                (load, None) => load.seconds(COUNTED_ON),
                (load, Some(_)) => load.seconds(COUNTED_ON) + BESIDE_S,
            },
            Self::Beside(of) => 2.0 * of(size).0.seconds(COUNTED_ON) + BESIDE_S,
            Self::Many(fleets::Many::Storm) => come + size.seconds + AWAY_S,
            Self::Many(fleets::Many::Failover) => come + 2.0 * size.crowd_s + FAILOVER_S,
            Self::Many(fleets::Many::Registered) => 2.0 * size.seconds,
            Self::Many(fleets::Many::Noisy) => 2.0 * size.seconds + BESIDE_S,
            Self::Many(_) => come + size.crowd_s + BESIDE_S,
            Self::Command(task) => task(size).seconds(),
            Self::H2load(seconds) => seconds(size) + START_S,
            Self::Tokens(_) => TOKENS_S,
        }
    }

    /// What it needs of a path and not every path has.
    pub fn needs(self) -> Option<Ability> {
        match self {
            Self::Many(fleets::Many::Storm | fleets::Many::Failover) => Some(Ability::Redials),
            work => work.upgrades().then_some(Ability::Upgrades),
        }
    }

    /// Whether it makes another protocol of a request's connection.
    fn upgrades(self) -> bool {
        let size = Size::new(true);
        match self {
            Self::Load(of) => matches!(of(size).0.connections, Connections::Upgraded(_)),
            Self::Command(task) => matches!(task(size), Task::Echo { .. }),
            Self::Beside(_) | Self::Many(_) | Self::H2load(_) | Self::Tokens(_) => false,
        }
    }

    /// Whether it goes over no path, and is measured once in each repeat.
    pub fn is_alone(self) -> bool {
        matches!(self, Self::Tokens(_))
    }
}

/// How long scenarios last.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Seconds of those that last.
    seconds: f64,
    /// Bytes of those that move bytes, in all.
    bytes: u64,
    /// Seconds of a stream over a link that has a pace of its own.
    stream_s: f64,
    /// Tokens of each kind.
    tokens: u32,
    /// Seconds that a crowd is looked at; a few periods of the probes of idle tunnels.
    pub crowd_s: f64,
    /// One in this many of a crowd comes.
    crowd_part: u32,
    /// How often a command is run.
    commands: u32,
    /// Lines of a session.
    lines: u32,
}

impl Size {
    /// Short ones show that all of it works; their figures decide nothing.
    pub fn new(quick: bool) -> Self {
        if quick {
            Self {
                seconds: 1.0,
                bytes: 32 * MIB,
                stream_s: 2.0,
                tokens: 20,
                crowd_s: 3.0,
                crowd_part: 20,
                commands: 3,
                lines: 20,
            }
        } else {
            Self {
                seconds: 5.0,
                bytes: 384 * MIB,
                stream_s: 6.0,
                tokens: 400,
                crowd_s: 12.0,
                crowd_part: 1,
                commands: 20,
                lines: 500,
            }
        }
    }
}

/// Bytes a second that an estimate counts on, of any path.
const COUNTED_ON: f64 = 300e6;
/// Estimates: what goes on beside begins and settles; how much longer than it means to a fleet dials, over both
/// carriers; a gateway that was killed is back, and all of its agents; the last agent has a second tunnel; all clusters
/// are asked, and all agents have two tunnels again; a program that was started; the token checks.
const BESIDE_S: f64 = 2.5;
const DIALLED: f64 = 1.15;
const AWAY_S: f64 = 11.0;
const SECOND_S: f64 = 3.0;
const FAILOVER_S: f64 = 8.0;
const START_S: f64 = 0.3;
const TOKENS_S: f64 = 3.0;

const MIB: u64 = 1 << 20;
/// Bodies that never end, as far as a scenario is concerned.
const ENDLESS_S: f64 = 3600.0;

/// Where a load is shown that no target is about.
const SHOWN: &[Kind] = &[Kind::NginxChain, Kind::TowlineH2, Kind::TowlineQuic];

/// All of them, a list for each kind.
const LISTS: &[&[Scenario]] = &[PLAIN, others::ALL, links::ALL, fleets::ALL, commands::ALL, upgrades::ALL];

/// All of them.
pub fn all() -> impl Iterator<Item = &'static Scenario> {
    LISTS.iter().copied().flatten()
}

/// Over a short way, of an upstream that is not what is measured.
const PLAIN: &[Scenario] = &[
    Scenario {
        name: "get-100",
        what: "100 small GETs a second on one HTTP/2 connection that is kept, paths in turns: latency",
        scene: Scene::TOGETHER,
        work: Work::Load(|size| (small(Connections::Http2(1), hundred(size)), None)),
        shown: &[],
    },
    Scenario {
        name: "get-100-h1",
        what: "100 small GETs a second on 8 HTTP/1.1 connections that are kept: latency",
        scene: Scene::PLAIN,
        work: Work::Load(|size| (small(Connections::Http1(8), hundred(size)), None)),
        shown: &[],
    },
    Scenario {
        name: "get-new",
        what: "20 small GETs a second, each on a new connection: latency with the handshake",
        scene: Scene::PLAIN,
        work: Work::Load(|size| (small(Connections::Fresh, Pace::Open { rate: 20.0, seconds: size.seconds }), None)),
        shown: SHOWN,
    },
    Scenario {
        name: "get-1",
        what: "small GETs one after the other: requests a second, processor time of each",
        scene: Scene::PLAIN,
        work: Work::Load(|size| {
            (small(Connections::Http2(1), Pace::Closed { concurrent: 1, seconds: size.seconds }), None)
        }),
        shown: &[],
    },
    Scenario {
        name: "get-64",
        what: "small GETs, 64 under way on one HTTP/2 connection: requests a second, processor time of each",
        scene: Scene::PLAIN,
        work: Work::Load(|size| {
            (small(Connections::Http2(1), Pace::Closed { concurrent: 64, seconds: size.seconds }), None)
        }),
        shown: &[],
    },
    Scenario {
        name: "get-64-h1",
        what: "small GETs, 64 under way on as many HTTP/1.1 connections",
        scene: Scene::PLAIN,
        work: Work::Load(|size| {
            (small(Connections::Http1(64), Pace::Closed { concurrent: 64, seconds: size.seconds }), None)
        }),
        shown: SHOWN,
    },
    Scenario {
        name: "get-256",
        what: "small GETs, 256 under way on 4 HTTP/2 connections",
        scene: Scene::PLAIN,
        work: Work::Load(|size| {
            (small(Connections::Http2(4), Pace::Closed { concurrent: 256, seconds: size.seconds }), None)
        }),
        shown: SHOWN,
    },
    Scenario {
        name: "list-5mb",
        what: "answers of 5 MB, 4 under way",
        scene: Scene::PLAIN,
        work: Work::Load(|size| (whole(Request::Download(5_000_000), 4, size.bytes / 5_000_000), None)),
        shown: SHOWN,
    },
    Scenario {
        name: "download",
        what: "one stream down: throughput, processor time per GB",
        scene: Scene::PLAIN,
        work: Work::Load(|size| (whole(Request::Download(size.bytes), 1, 1), None)),
        shown: &[],
    },
    Scenario {
        name: "upload",
        what: "one stream up: throughput, processor time per GB",
        scene: Scene::PLAIN,
        work: Work::Load(|size| (whole(Request::Upload(size.bytes), 1, 1), None)),
        shown: SHOWN,
    },
    Scenario {
        name: "download-16",
        what: "16 streams down on one HTTP/2 connection",
        scene: Scene::PLAIN,
        work: Work::Load(|size| (whole(Request::Download(size.bytes / 16), 16, 16), None)),
        shown: SHOWN,
    },
    Scenario {
        name: "upload-16",
        what: "16 streams up on one HTTP/2 connection",
        scene: Scene::PLAIN,
        work: Work::Load(|size| (whole(Request::Upload(size.bytes / 16), 16, 16), None)),
        shown: SHOWN,
    },
    Scenario {
        name: "beside-stalled",
        what: "100 small GETs a second alone, then beside 16 readers, each on a connection of its own, that never read",
        scene: Scene::PLAIN,
        work: Work::Beside(|size| {
            let pace = Pace::Count { concurrent: 16, requests: 16 };
            let stalled = Load { connections: Connections::Http2(16), request: Request::Stall(64 * MIB), pace };
            (small(Connections::Http2(1), hundred(size)), stalled)
        }),
        shown: &[],
    },
    Scenario {
        name: "beside-bulk",
        what: "get-100 beside 64 downloads without end on 4 connections",
        scene: Scene::PLAIN,
        work: Work::Load(|size| {
            let pace = Pace::Closed { concurrent: 64, seconds: ENDLESS_S };
            let bulk = Load { connections: Connections::Http2(4), request: Request::Download(8 * MIB), pace };
            (small(Connections::Http2(1), hundred(size)), Some(bulk))
        }),
        shown: &[],
    },
];

/// Small requests until a few hundred got through: connections, caches and windows are warm before anything counts.
/// Over a long or bad way fewer must do.
pub fn warm(scene: Scene) -> Load {
    let requests = if scene.shape == Shape::PLAIN { 200 } else { 40 };
    small(Connections::Http2(1), Pace::Count { concurrent: 8, requests })
}

/// One small request.
pub fn probe() -> Load {
    small(Connections::Http2(1), Pace::Count { concurrent: 1, requests: 1 })
}

/// Tells what there is.
pub fn list() {
    for scenario in all() {
        crate::print::say(&format!("scenario  {:<18} {}", scenario.name, scenario.what));
    }
    for kind in Kind::value_variants() {
        crate::print::say(&format!("path      {:<18} {}", kind.name(), kind.what()));
    }
}

/// What a scenario is, if there is one of this name.
pub fn what(name: &str) -> Option<&'static str> {
    all().find(|scenario| scenario.name == name).map(|scenario| scenario.what)
}

/// The one of a name.
///
/// # Errors
/// A name that there is not.
pub fn of(name: &str) -> anyhow::Result<&'static Scenario> {
    all().find(|scenario| scenario.name == name).with_context(|| format!("no scenario {name:?}; see `bench list`"))
}

fn hundred(size: Size) -> Pace {
    Pace::Open { rate: 100.0, seconds: size.seconds }
}

fn small(connections: Connections, pace: Pace) -> Load {
    Load { connections, request: Request::Small, pace }
}

fn whole(request: Request, concurrent: usize, requests: u64) -> Load {
    Load { connections: Connections::Http2(1), request, pace: Pace::Count { concurrent, requests } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart_and_unknown_ones_refused() {
        for scenario in all() {
            assert_eq!(all().filter(|other| other.name == scenario.name).count(), 1, "{}", scenario.name);
        }
        assert_eq!(of("upload").unwrap().name, "upload");
        assert!(of("nothing").is_err());
    }

    // Nothing else can be stopped and gone on with, and over a long way nobody is warm that soon.
    #[test]
    fn what_is_measured_in_turns_are_requests_at_a_rate_over_a_short_way() {
        for scenario in all().filter(|scenario| scenario.scene.together) {
            let Work::Load(of) = scenario.work else { panic!("{}", scenario.name) };
            let (load, beside) = of(Size::new(false));
            assert!(matches!(load.pace, Pace::Open { .. }) && beside.is_none(), "{}", scenario.name);
            assert_eq!(scenario.scene, Scene::TOGETHER, "{}", scenario.name);
        }
        assert!(of("get-100").unwrap().scene.together);
    }

    #[test]
    fn what_changes_the_protocol_is_known_for_it_and_nothing_else() {
        let upgrading: Vec<_> =
            all().filter(|scenario| scenario.work.upgrades()).map(|scenario| scenario.name).collect();
        assert_eq!(upgrading, ["exec-echo-spdy", "exec-echo-websocket", "upgrade-100", "upgrade-bulk"]);
    }
}
