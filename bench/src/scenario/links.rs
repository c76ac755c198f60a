//! Long and bad ways between gateway and site. Each way has a small request and one stream; those that a target names are
//! repeated, the others show what happens.

use std::time::Duration;

use super::{ENDLESS_S, MIB, Scenario, Work, hundred, small};
use crate::{
    link::Shape,
    load::{Connections, Load, Pace, Request},
    scene::Scene,
};

/// A way with this round trip.
const fn far(round_trip_ms: u64) -> Shape {
    Shape { delay: Duration::from_millis(round_trip_ms / 2), ..Shape::PLAIN }
}

/// The same, with a pace that the relay keeps while load and upstream have the same processor: a short way is not bounded by
/// windows.
const fn near(round_trip_ms: u64) -> Shape {
    Shape { rate: 200_000_000, queue: Duration::from_millis(50), ..far(round_trip_ms) }
}

/// A way of 100 ms that loses some in each direction: 100 Mbit/s, and as much in the queue before it as is under way.
const fn lossy(loss: f64) -> Shape {
    Shape { loss, rate: 100_000_000, queue: Duration::from_millis(100), ..far(100) }
}

const NARROW: Shape = Shape { rate: 50_000_000, queue: Duration::from_millis(50), ..near(20) };
const UNSTEADY: Shape = Shape { jitter: Duration::from_millis(10), reorder: 0.01, ..near(40) };
const SHORT: Shape = Shape { mtu: 1280, ..near(20) };

const fn over(shape: Shape) -> Scene {
    Scene { shape, ..Scene::PLAIN }
}

/// Half as long as where a target looks at rare latencies.
const GET: Work = Work::Load(|size| {
    let pace = Pace::Open { rate: 100.0, seconds: size.seconds / 2.0 };
    (small(Connections::Http2(1), pace), None)
});
const DOWNLOAD: Work = Work::Load(|size| (stream(Pace::Within { seconds: size.stream_s }), None));
const BESIDE_ONE: Work = Work::Load(|size| {
    let bulk = stream(Pace::Closed { concurrent: 1, seconds: ENDLESS_S });
    (small(Connections::Http2(1), hundred(size)), Some(bulk))
});

/// A body without end.
fn stream(pace: Pace) -> Load {
    Load { connections: Connections::Http2(1), request: Request::Download(MIB << 20), pace }
}

const fn often(name: &'static str, what: &'static str, shape: Shape, work: Work) -> Scenario {
    Scenario { name, what, scene: over(shape), work, once: false }
}

const fn once(name: &'static str, what: &'static str, shape: Shape, work: Work) -> Scenario {
    Scenario { once: true, ..often(name, what, shape, work) }
}

/// All of them.
pub const ALL: &[Scenario] = &[
    once("get-20ms", "get-100, round trip of 20 ms, 200 Mbit/s", near(20), GET),
    once("download-20ms", "one stream down, round trip of 20 ms, 200 Mbit/s", near(20), DOWNLOAD),
    once("get-100ms", "get-100, round trip of 100 ms", far(100), GET),
    once("download-100ms", "one stream down, round trip of 100 ms", far(100), DOWNLOAD),
    once("get-200ms", "get-100, round trip of 200 ms", far(200), GET),
    often("download-200ms", "one stream down, round trip of 200 ms", far(200), DOWNLOAD),
    once("get-lossy-0.1", "get-100, 100 ms, 100 Mbit/s, 0.1 % lost each way", lossy(0.001), GET),
    once("download-lossy-0.1", "one stream down, 100 ms, 100 Mbit/s, 0.1 % lost each way", lossy(0.001), DOWNLOAD),
    once("get-lossy", "get-100, 100 ms, 100 Mbit/s, 1 % lost each way", lossy(0.01), GET),
    often("download-lossy", "one stream down, 100 ms, 100 Mbit/s, 1 % lost each way", lossy(0.01), DOWNLOAD),
    often("beside-one-lossy", "get-100 beside one stream down, 100 ms, 100 Mbit/s, 1 % lost", lossy(0.01), BESIDE_ONE),
    once("get-lossy-2", "get-100, 100 ms, 100 Mbit/s, 2 % lost each way", lossy(0.02), GET),
    once("download-lossy-2", "one stream down, 100 ms, 100 Mbit/s, 2 % lost each way", lossy(0.02), DOWNLOAD),
    once("get-50mbit", "get-100, 20 ms, 50 Mbit/s", NARROW, GET),
    once("download-50mbit", "one stream down, 20 ms, 50 Mbit/s with 50 ms of queue", NARROW, DOWNLOAD),
    once(
        "beside-one-50mbit",
        "get-100 beside one stream down, 20 ms, 50 Mbit/s with 50 ms of queue",
        NARROW,
        BESIDE_ONE,
    ),
    once("get-unsteady", "get-100, 40 ms with up to 10 ms more each way, 200 Mbit/s, 1 % overtaken", UNSTEADY, GET),
    once(
        "download-unsteady",
        "one stream down, 40 ms with up to 10 ms more each way, 200 Mbit/s, 1 % overtaken",
        UNSTEADY,
        DOWNLOAD,
    ),
    once("get-mtu1280", "get-100, 20 ms, 200 Mbit/s, MTU of 1280", SHORT, GET),
    once("download-mtu1280", "one stream down, 20 ms, 200 Mbit/s, MTU of 1280", SHORT, DOWNLOAD),
];
