//! What the way between gateway and site does to packets, in each direction alike.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Delay, loss and the rest. What is zero is not there.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Shape {
    /// How long each packet is under way; a round trip takes it twice.
    pub delay: Duration,
    /// Longest time that is added to the delay of a packet, evenly spread; the order stays.
    pub jitter: Duration,
    /// The part of packets that are lost, each by its own throw.
    pub loss: f64,
    /// Bits in a second; zero is as many as the machine can do.
    pub rate: u64,
    /// The longest that a packet waits for the wire; what would wait longer is dropped.
    pub queue: Duration,
    /// The part of packets that are held so that those behind them overtake.
    pub reorder: f64,
    /// Bytes of the longest packet.
    pub mtu: u16,
}

impl Shape {
    /// The wire alone.
    pub const PLAIN: Self = Self {
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        loss: 0.0,
        rate: 0,
        queue: Duration::ZERO,
        reorder: 0.0,
        mtu: 1500,
    };
}

impl Default for Shape {
    fn default() -> Self {
        Self::PLAIN
    }
}
