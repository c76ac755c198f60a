//! Congestion control: CUBIC, which takes a loss for congestion only where a queue stands or much is lost.
//!
//! CUBIC takes each loss for a queue that is full. On a link that loses one packet in a hundred by itself, at a round
//! trip of 100 ms, that leaves it some ten packets under way, whatever the link could carry. Here a loss is asked first
//! whether anything waited on the way: what a round trip takes longer than it did when nothing was in the way
//! ([`Standing`]). Where nothing waits, more or less under way changes nothing about the losses, and they are only
//! repaired; the window grows on as CUBIC's does until a queue begins to stand, and the next loss is answered as CUBIC
//! answers it.
//!
//! Beside other flows that is CUBIC, for a bottleneck with a queue has one that stands when it is full. Where packets
//! are dropped without a queue (a policer, buffers of less than [`ALLOWED`] of the way), too much sent shows in the
//! part that is lost, and above [`LOST_MOST`] each loss counts. In between such a flow takes more than CUBIC would; BBR
//! does that as well.
//!
//! Not quinn's own BBR: it knows BBR's rates, but quinn 0.11 paces by the window alone, 2.5 times the rate that BBR
//! means, so that a queue of a whole round trip stands, and its bandwidth is that between two acknowledgements, not
//! over a flight.

use std::{
    any::Any,
    sync::Arc,
    time::{Duration, Instant},
};

use quinn::congestion::{Controller, ControllerFactory, ControllerMetrics, Cubic, CubicConfig};
use quinn_proto::RttEstimator;

/// A queue stands if round trips take longer than the shortest one by this part of it (one in `ALLOWED`),
const ALLOWED: u32 = 16;
/// and by more than this, which is what timers and a slow turn on the processor make of it,
const ALLOWED_LEAST: Duration = Duration::from_millis(1);
/// and, however long the way is, if they take longer by this.
const ALLOWED_MOST: Duration = Duration::from_millis(8);
/// Where more than this part of the packets is lost, each loss is one of congestion, queue or not.
const LOST_MOST: f64 = 0.05;
/// Packets over which the part that is lost is averaged, older ones counting less and less.
const LOST_OF: f64 = 512.0;

/// Makes a congestion controller for each connection.
#[derive(Debug, Default)]
pub(super) struct Config {
    cubic: Arc<CubicConfig>,
}

impl ControllerFactory for Config {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Tolerant {
            cubic: Cubic::new(self.cubic.clone(), now, current_mtu),
            standing: Standing::default(),
            lost: Lost::default(),
            mtu: current_mtu,
        })
    }
}

/// The controller of one connection.
#[derive(Clone, Debug)]
struct Tolerant {
    cubic: Cubic,
    standing: Standing,
    lost: Lost,
    mtu: u16,
}

impl Controller for Tolerant {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.cubic.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.standing.acknowledged(now, now.saturating_duration_since(sent), rtt.get());
        self.lost.acknowledged();
        self.cubic.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest_packet_num_acked: Option<u64>) {
        self.cubic.on_end_acks(now, in_flight, app_limited, largest_packet_num_acked);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent_congestion: bool, lost_bytes: u64) {
        self.lost.lost(lost_bytes.div_ceil(u64::from(self.mtu).max(1)));
        // Nothing lost is a mark of the network's (ECN), which is plain.
        let told = is_persistent_congestion || lost_bytes == 0;
        if told || self.lost.is_much() || self.standing.is_queue() {
            self.cubic.on_congestion_event(now, sent, is_persistent_congestion, lost_bytes);
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu;
        self.cubic.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        self.cubic.window()
    }

    fn metrics(&self) -> ControllerMetrics {
        self.cubic.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.cubic.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// What waits on the way: how much longer than the shortest round trip ever the shortest one of the last half to whole
/// round trip was. One packet that nothing held up is enough to show that no queue stands, so that neither jitter nor a
/// burst that goes by counts.
#[derive(Clone, Debug, Default)]
struct Standing {
    least: Option<Duration>,
    smoothed: Duration,
    /// When the present half of a round trip began, and the shortest in it.
    half: Option<(Instant, Duration)>,
    /// The shortest in the half before.
    before: Option<Duration>,
}

impl Standing {
    fn acknowledged(&mut self, now: Instant, took: Duration, smoothed: Duration) {
        self.least = Some(self.least.map_or(took, |least| least.min(took)));
        self.smoothed = smoothed;
        match &mut self.half {
            Some((begun, least)) if now.saturating_duration_since(*begun) < smoothed / 2 => *least = took.min(*least),
            half => self.before = half.replace((now, took)).map(|(_, least)| least),
        }
    }

    fn is_queue(&self) -> bool {
        let (Some(least), Some((_, present))) = (self.least, self.half) else { return true };
        let present = self.before.map_or(present, |before| before.min(present));
        // Where little is sent, what the peer's acknowledgements wait is in every one of them; quinn takes that off
        // here.
        let present = present.min(self.smoothed);
        present > least + (least / ALLOWED).clamp(ALLOWED_LEAST, ALLOWED_MOST)
    }
}

/// Which part of the packets is lost.
#[derive(Clone, Debug, Default)]
struct Lost {
    part: f64,
}

impl Lost {
    fn acknowledged(&mut self) {
        self.part *= 1.0 - 1.0 / LOST_OF;
    }

    fn lost(&mut self, packets: u64) {
        let packets = i32::try_from(packets).unwrap_or(i32::MAX);
        self.part = 1.0 - (1.0 - self.part) * (1.0 - 1.0 / LOST_OF).powi(packets);
    }

    fn is_much(&self) -> bool {
        self.part > LOST_MOST
    }
}

#[cfg(test)]
mod tests;
