//! The loads that are measured. `bench/README.md` says what each means.

use anyhow::Context;
use clap::ValueEnum;

use crate::{
    load::{Connections, Load, Pace, Request},
    path::Kind,
};

/// One load.
pub struct Scenario {
    /// As on the command line.
    pub name: &'static str,
    /// What it is.
    pub what: &'static str,
    load: fn(Size) -> (Load, Option<Load>),
}

/// How long scenarios last.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Seconds of those that last.
    seconds: f64,
    /// Bytes of those that move bytes, in all.
    bytes: u64,
}

impl Size {
    /// Short ones show that all of it works; their figures decide nothing.
    pub fn new(quick: bool) -> Self {
        if quick { Self { seconds: 1.0, bytes: 32 * MIB } } else { Self { seconds: 6.0, bytes: 768 * MIB } }
    }
}

impl Scenario {
    /// What is sent, and what goes on beside it.
    pub fn load(&self, size: Size) -> (Load, Option<Load>) {
        (self.load)(size)
    }
}

const MIB: u64 = 1 << 20;
/// Bodies that never end, as far as a scenario is concerned.
const ENDLESS_S: f64 = 3600.0;

/// All of them.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "get-100",
        what: "100 small GETs a second on one HTTP/2 connection that is kept: latency",
        load: |size| (small(Connections::Http2(1), hundred(size)), None),
    },
    Scenario {
        name: "get-100-h1",
        what: "100 small GETs a second on 8 HTTP/1.1 connections that are kept: latency",
        load: |size| (small(Connections::Http1(8), hundred(size)), None),
    },
    Scenario {
        name: "get-new",
        what: "20 small GETs a second, each on a new connection: latency with the handshake",
        load: |size| (small(Connections::Fresh, Pace::Open { rate: 20.0, seconds: size.seconds }), None),
    },
    Scenario {
        name: "get-1",
        what: "small GETs one after the other: requests a second, processor time of each",
        load: |size| (small(Connections::Http2(1), Pace::Closed { concurrent: 1, seconds: size.seconds }), None),
    },
    Scenario {
        name: "get-64",
        what: "small GETs, 64 under way on one HTTP/2 connection: requests a second, processor time of each",
        load: |size| (small(Connections::Http2(1), Pace::Closed { concurrent: 64, seconds: size.seconds }), None),
    },
    Scenario {
        name: "get-64-h1",
        what: "small GETs, 64 under way on as many HTTP/1.1 connections",
        load: |size| (small(Connections::Http1(64), Pace::Closed { concurrent: 64, seconds: size.seconds }), None),
    },
    Scenario {
        name: "get-256",
        what: "small GETs, 256 under way on 4 HTTP/2 connections",
        load: |size| (small(Connections::Http2(4), Pace::Closed { concurrent: 256, seconds: size.seconds }), None),
    },
    Scenario {
        name: "list-5mb",
        what: "answers of 5 MB, 4 under way",
        load: |size| (whole(Request::Download(5_000_000), 4, size.bytes / 5_000_000), None),
    },
    Scenario {
        name: "download",
        what: "one stream down: throughput, processor time per GB",
        load: |size| (whole(Request::Download(size.bytes), 1, 1), None),
    },
    Scenario {
        name: "upload",
        what: "one stream up: throughput, processor time per GB",
        load: |size| (whole(Request::Upload(size.bytes), 1, 1), None),
    },
    Scenario {
        name: "download-16",
        what: "16 streams down on one HTTP/2 connection",
        load: |size| (whole(Request::Download(size.bytes / 16), 16, 16), None),
    },
    Scenario {
        name: "upload-16",
        what: "16 streams up on one HTTP/2 connection",
        load: |size| (whole(Request::Upload(size.bytes / 16), 16, 16), None),
    },
    Scenario {
        name: "beside-stalled",
        what: "get-100 beside 16 readers, each on a connection of its own, that never read",
        load: |size| {
            let pace = Pace::Count { concurrent: 16, requests: 16 };
            let stalled = Load { connections: Connections::Http2(16), request: Request::Stall(64 * MIB), pace };
            (small(Connections::Http2(1), hundred(size)), Some(stalled))
        },
    },
    Scenario {
        name: "beside-bulk",
        what: "get-100 beside 64 downloads without end on 4 connections",
        load: |size| {
            let pace = Pace::Closed { concurrent: 64, seconds: ENDLESS_S };
            let bulk = Load { connections: Connections::Http2(4), request: Request::Download(8 * MIB), pace };
            (small(Connections::Http2(1), hundred(size)), Some(bulk))
        },
    },
];

/// Small requests until a few hundred got through: connections, caches and windows are warm before anything counts.
pub fn warm() -> Load {
    small(Connections::Http2(1), Pace::Count { concurrent: 8, requests: 200 })
}

/// One small request.
pub fn probe() -> Load {
    small(Connections::Http2(1), Pace::Count { concurrent: 1, requests: 1 })
}

/// Tells what there is.
pub fn list() {
    for scenario in ALL {
        crate::say(&format!("scenario  {:<18} {}", scenario.name, scenario.what));
    }
    for kind in Kind::value_variants() {
        crate::say(&format!("path      {:<18} {}", kind.name(), kind.what()));
    }
}

/// Those of these names; all without names.
///
/// # Errors
/// A name that there is not.
pub fn chosen(names: &[String]) -> anyhow::Result<Vec<&'static Scenario>> {
    if names.is_empty() {
        return Ok(ALL.iter().collect());
    }
    let known = |name: &String| ALL.iter().find(|scenario| scenario.name == name);
    names.iter().map(|name| known(name).with_context(|| format!("no scenario {name:?}; see `bench list`"))).collect()
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
        for scenario in ALL {
            assert_eq!(ALL.iter().filter(|other| other.name == scenario.name).count(), 1, "{}", scenario.name);
        }
        assert_eq!(chosen(&[]).unwrap().len(), ALL.len());
        assert_eq!(chosen(&["upload".to_owned()]).unwrap()[0].name, "upload");
        assert!(chosen(&["nothing".to_owned()]).is_err());
    }
}
