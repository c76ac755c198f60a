//! Connections that become another protocol, as those of exec, attach and port-forward do.

use super::{SHOWN, Scenario, Work};
use crate::{
    load::{Connections, Load, Pace, Request},
    scene::Scene,
};

/// About a line that somebody types, or what is printed of it.
const LINE: u64 = 64;

/// All of them.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "upgrade-100",
        what: "100 messages of 64 bytes a second through 8 upgraded connections and back: latency",
        scene: Scene::PLAIN,
        work: Work::Load(|size| {
            let (connections, request) = (Connections::Upgraded(8), Request::Echo(LINE));
            // Half as long as where a target looks at rare latencies.
            let pace = Pace::Open { rate: 100.0, seconds: size.seconds / 2.0 };
            (Load { connections, request, pace }, None)
        }),
        shown: SHOWN,
    },
    Scenario {
        name: "upgrade-bulk",
        what: "bytes through one upgraded connection, and back meanwhile: throughput, processor time per GB",
        scene: Scene::PLAIN,
        work: Work::Load(|size| {
            let (connections, request) = (Connections::Upgraded(1), Request::Echo(size.bytes));
            let pace = Pace::Count { concurrent: 1, requests: 1 };
            (Load { connections, request, pace }, None)
        }),
        shown: SHOWN,
    },
];
