//! Long and bad ways between gateway and site. Each way has a small request and one stream; those that no
//! target is about are measured where they are named.

use std::time::Duration;

use super::{ENDLESS_S, MIB, Scenario, Work, hundred, small};
use crate::{
    load::{Connections, Load, Pace, Request},
    path::Kind,
    scene::Scene,
    shape::Shape,
};

/// A way with this round trip.
const fn far(round_trip_ms: u64) -> Shape {
    Shape { delay: Duration::from_millis(round_trip_ms / 2), ..Shape::PLAIN }
}

/// The same, with a pace that the relay keeps while load and upstream have the same processor: a short way is not
/// bounded by windows.
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
const UPLOAD: Work = Work::Load(|size| {
    let pace = Pace::Within { seconds: size.stream_s };
    (Load { connections: Connections::Http2(1), request: Request::Pour(0), pace }, None)
});
const BESIDE_ONE: Work = Work::Load(|size| {
    let bulk = stream(Pace::Closed { concurrent: 1, seconds: ENDLESS_S });
    (small(Connections::Http2(1), hundred(size)), Some(bulk))
});

/// A body without end.
fn stream(pace: Pace) -> Load {
    Load { connections: Connections::Http2(1), request: Request::Download(MIB << 20), pace }
}

const fn scenario(name: &'static str, what: &'static str, shape: Shape, work: Work) -> Scenario {
    Scenario { name, what, scene: over(shape), work, shown: &[] }
}

/// One that no target is about, and that is shown all the same.
const fn shown(name: &'static str, what: &'static str, shape: Shape, work: Work) -> Scenario {
    Scenario { shown: &[Kind::Direct, Kind::TowlineH2, Kind::TowlineQuic], ..scenario(name, what, shape, work) }
}

/// All of them.
pub const ALL: &[Scenario] = &[
    scenario("get-20ms", "get-100, round trip of 20 ms, 200 Mbit/s", near(20), GET),
    scenario("download-20ms", "one stream down, round trip of 20 ms, 200 Mbit/s", near(20), DOWNLOAD),
    scenario("upload-20ms", "one stream up, round trip of 20 ms, 200 Mbit/s", near(20), UPLOAD),
    scenario("get-100ms", "get-100, round trip of 100 ms", far(100), GET),
    scenario("download-100ms", "one stream down, round trip of 100 ms", far(100), DOWNLOAD),
    scenario("upload-100ms", "one stream up, round trip of 100 ms", far(100), UPLOAD),
    scenario("get-200ms", "get-100, round trip of 200 ms", far(200), GET),
    scenario("download-200ms", "one stream down, round trip of 200 ms", far(200), DOWNLOAD),
    shown("upload-200ms", "one stream up, round trip of 200 ms", far(200), UPLOAD),
    scenario("get-lossy-0.1", "get-100, 100 ms, 100 Mbit/s, 0.1 % lost each way", lossy(0.001), GET),
    scenario("download-lossy-0.1", "one stream down, 100 ms, 100 Mbit/s, 0.1 % lost each way", lossy(0.001), DOWNLOAD),
    scenario("upload-lossy-0.1", "one stream up, 100 ms, 100 Mbit/s, 0.1 % lost each way", lossy(0.001), UPLOAD),
    scenario("get-lossy", "get-100, 100 ms, 100 Mbit/s, 1 % lost each way", lossy(0.01), GET),
    scenario("download-lossy", "one stream down, 100 ms, 100 Mbit/s, 1 % lost each way", lossy(0.01), DOWNLOAD),
    shown("upload-lossy", "one stream up, 100 ms, 100 Mbit/s, 1 % lost each way", lossy(0.01), UPLOAD),
    scenario(
        "beside-one-lossy",
        "get-100 beside one stream down, 100 ms, 100 Mbit/s, 1 % lost",
        lossy(0.01),
        BESIDE_ONE,
    ),
    scenario("get-lossy-2", "get-100, 100 ms, 100 Mbit/s, 2 % lost each way", lossy(0.02), GET),
    scenario("download-lossy-2", "one stream down, 100 ms, 100 Mbit/s, 2 % lost each way", lossy(0.02), DOWNLOAD),
    scenario("upload-lossy-2", "one stream up, 100 ms, 100 Mbit/s, 2 % lost each way", lossy(0.02), UPLOAD),
    scenario("get-50mbit", "get-100, 20 ms, 50 Mbit/s", NARROW, GET),
    scenario("download-50mbit", "one stream down, 20 ms, 50 Mbit/s with 50 ms of queue", NARROW, DOWNLOAD),
    scenario("upload-50mbit", "one stream up, 20 ms, 50 Mbit/s with 50 ms of queue", NARROW, UPLOAD),
    scenario(
        "beside-one-50mbit",
        "get-100 beside one stream down, 20 ms, 50 Mbit/s with 50 ms of queue",
        NARROW,
        BESIDE_ONE,
    ),
    scenario("get-unsteady", "get-100, 40 ms with up to 10 ms more each way, 200 Mbit/s, 1 % overtaken", UNSTEADY, GET),
    scenario(
        "download-unsteady",
        "one stream down, 40 ms with up to 10 ms more each way, 200 Mbit/s, 1 % overtaken",
        UNSTEADY,
        DOWNLOAD,
    ),
    scenario(
        "upload-unsteady",
        "one stream up, 40 ms with up to 10 ms more each way, 200 Mbit/s, 1 % overtaken",
        UNSTEADY,
        UPLOAD,
    ),
    scenario("get-mtu1280", "get-100, 20 ms, 200 Mbit/s, MTU of 1280", SHORT, GET),
    scenario("download-mtu1280", "one stream down, 20 ms, 200 Mbit/s, MTU of 1280", SHORT, DOWNLOAD),
    scenario("upload-mtu1280", "one stream up, 20 ms, 200 Mbit/s, MTU of 1280", SHORT, UPLOAD),
];
