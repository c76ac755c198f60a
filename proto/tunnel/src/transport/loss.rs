//! Whether a carrier loses so many packets that another one should bear the tunnel. Pure: counts and the clock come in.
//!
//! Each end can only tell what it sent itself. The agent leaves the carrier; the gateway asks it to, by a drain with
//! [`crate::wire::close::CloseCode::Carrier`].

use std::time::{Duration, Instant};

use super::Packets;

/// Loss is looked at in stretches at least this long,
const STRETCH: Duration = Duration::from_secs(10);
/// and of at least this many packets: on an idle tunnel, which sends one or two in a second, stretches are longer.
const PACKETS: u64 = 50;
/// A stretch with more lost packets than this, in percent, is a bad one: a policer or a broken middlebox, where no
/// congestion control makes progress. What is only acknowledged and not sent again is not counted as lost, so that this
/// is less than what the path loses.
const PERCENT: u64 = 20;
/// Consecutive bad stretches after which the carrier is left.
const STRETCHES: u32 = 2;

/// The judge of one tunnel's loss.
#[derive(Debug)]
pub struct Loss {
    begun: Instant,
    before: Packets,
    bad: u32,
}

impl Loss {
    /// Of a tunnel that came up at `now`.
    pub fn new(now: Instant) -> Self {
        Self { begun: now, before: Packets::default(), bad: 0 }
    }

    /// Looks at what was sent and lost until `now`: whether the carrier should be left.
    pub fn look(&mut self, packets: Packets, now: Instant) -> bool {
        let sent = packets.sent.saturating_sub(self.before.sent);
        let lost = packets.lost.saturating_sub(self.before.lost);
        if now.duration_since(self.begun) >= STRETCH && sent >= PACKETS {
            (self.begun, self.before) = (now, packets);
            self.bad = if lost * 100 >= sent * PERCENT { self.bad + 1 } else { 0 };
        }
        self.bad >= STRETCHES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds until a carrier is left that sends and loses these numbers of packets in each ten seconds.
    fn run(per_look: impl IntoIterator<Item = (u64, u64)>) -> Option<u64> {
        let start = Instant::now();
        let (mut loss, mut packets) = (Loss::new(start), Packets::default());
        per_look.into_iter().zip(1..).find_map(|((sent, lost), number)| {
            packets.sent += sent;
            packets.lost += lost;
            loss.look(packets, start + Duration::from_secs(10 * number)).then_some(10 * number)
        })
    }

    #[test]
    fn a_policed_carrier_is_left_and_a_slightly_lossy_one_is_not() {
        assert_eq!(run([(1000, 400), (1000, 400)]), Some(20));
        assert_eq!(run([(1000, 400), (1000, 100), (1000, 400), (1000, 0)]), None, "not twice in a row");
        assert_eq!(run([(1000, 100); 50]), None, "10 % is what QUIC copes with");
    }

    /// Stretches of 15 s with fewer than 60 packets were not looked at: an idle tunnel was never left, whatever it
    /// lost.
    #[test]
    fn a_nearly_idle_lossy_carrier_is_left_too() {
        assert_eq!(run([(18, 5); 100]), Some(60));
        assert_eq!(run([(11, 0); 100]), None);
        assert_eq!(run([(11, 1); 100]), None);
        assert_eq!(run([(1000, 10), (1000, 400), (20, 10), (20, 10), (20, 10)]), Some(50), "what is idle counts on");
    }
}
