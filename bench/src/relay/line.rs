//! One direction of a way: what a shape does to packets, without a clock of its own.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{latency::Latency, shape::Shape};

/// Bytes under way at most, whatever the shape says: 200 ms of 2.5 Gbit/s.
const UNDER_WAY: usize = 64 << 20;
/// How long a packet that is overtaken is held.
const HELD: Duration = Duration::from_millis(5);

/// What happened to packets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Packets that arrived at the relay.
    pub taken: u64,
    /// Were lost by the throw of the dice.
    pub lost: u64,
    /// Found the queue before the wire full.
    pub dropped: u64,
    /// The next device did not take.
    pub refused: u64,
    /// How much later than claimed those that passed were let out, in microseconds.
    pub late: Latency,
}

/// A packet and when it is due.
struct Packet {
    due: Instant,
    /// Packets that are due at once leave in the order in which they came.
    number: u64,
    bytes: Box<[u8]>,
}

/// Packets under way in one direction.
pub struct Line {
    shape: Shape,
    dice: fastrand::Rng,
    /// When the wire has sent all that waits for it.
    free: Option<Instant>,
    /// When the last packet that keeps the order is due.
    last: Option<Instant>,
    packets: BinaryHeap<Reverse<Packet>>,
    under_way: usize,
    number: u64,
    seen: Seen,
}

impl Line {
    /// An empty one.
    pub fn new(shape: Shape, seed: u64) -> Self {
        let dice = fastrand::Rng::with_seed(seed);
        Self {
            shape,
            dice,
            free: None,
            last: None,
            packets: BinaryHeap::new(),
            under_way: 0,
            number: 0,
            seen: Seen::default(),
        }
    }

    /// A packet comes in.
    pub fn enter(&mut self, now: Instant, bytes: Box<[u8]>) {
        self.seen.taken += 1;
        let start = self.free.map_or(now, |free| free.max(now));
        if self.under_way + bytes.len() > UNDER_WAY || start.duration_since(now) > self.shape.queue {
            self.seen.dropped += 1;
            return;
        }
        let sent = start + self.sending(bytes.len());
        self.free = Some(sent);
        // What is lost has taken its time on the wire.
        if self.dice.f64() < self.shape.loss {
            self.seen.lost += 1;
            return;
        }
        let mut due = sent + self.shape.delay + self.shape.jitter.mul_f64(self.dice.f64());
        if self.dice.f64() < self.shape.reorder {
            due += HELD;
        } else {
            due = self.last.map_or(due, |last| last.max(due));
            self.last = Some(due);
        }
        self.under_way += bytes.len();
        self.number += 1;
        self.packets.push(Reverse(Packet { due, number: self.number, bytes }));
    }

    /// When the next packet is due.
    pub fn next_due(&self) -> Option<Instant> {
        self.packets.peek().map(|packet| packet.0.due)
    }

    /// The next packet, if it is due.
    pub fn leave(&mut self, now: Instant) -> Option<Box<[u8]>> {
        self.next_due().filter(|due| *due <= now)?;
        let Reverse(packet) = self.packets.pop()?;
        self.under_way -= packet.bytes.len();
        self.seen.late.record(now.duration_since(packet.due));
        Some(packet.bytes)
    }

    /// The next device did not take a packet that had left.
    pub fn refused(&mut self) {
        self.seen.refused += 1;
    }

    /// What was seen since the last time.
    pub fn take(&mut self) -> Seen {
        std::mem::take(&mut self.seen)
    }

    /// How long the wire takes for `bytes`.
    fn sending(&self, bytes: usize) -> Duration {
        match self.shape.rate {
            0 => Duration::ZERO,
            rate => Duration::from_nanos(bytes as u64 * 8 * 1_000_000_000 / rate),
        }
    }
}

impl Packet {
    fn order(&self) -> (Instant, u64) {
        (self.due, self.number)
    }
}

impl PartialEq for Packet {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl Eq for Packet {}

impl PartialOrd for Packet {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Packet {
    fn cmp(&self, other: &Self) -> Ordering {
        self.order().cmp(&other.order())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// `count` numbered packets of `size` bytes, one each `every`; when each left, since the first entered, and its
    /// number.
    fn through(shape: Shape, count: u32, size: usize, every: Duration) -> (Vec<(Duration, u32)>, Seen) {
        let (mut line, start, mut left) = (Line::new(shape, 1), Instant::now(), Vec::new());
        let mut leave = |line: &mut Line, until: Option<Instant>| {
            while let Some(due) = line.next_due().filter(|due| until.is_none_or(|until| *due <= until)) {
                assert!(line.leave(due - Duration::from_nanos(1)).is_none(), "before it is due");
                let bytes = line.leave(due).unwrap();
                left.push((due - start, u32::from_be_bytes(bytes[..4].try_into().unwrap())));
            }
        };
        for number in 0..count {
            let now = start + every * number;
            leave(&mut line, Some(now));
            let mut packet = vec![0; size];
            packet[..4].copy_from_slice(&number.to_be_bytes());
            line.enter(now, packet.into());
        }
        leave(&mut line, None);
        (left, line.take())
    }

    #[test]
    fn every_packet_of_a_long_way_is_under_way_for_its_delay() {
        let (left, seen) = through(Shape { delay: 50 * MS, ..Shape::PLAIN }, 100, 100, MS);
        assert!(left.iter().zip(0..).all(|(left, number)| *left == (50 * MS + MS * number, number)), "{left:?}");
        assert_eq!((seen.taken, seen.lost + seen.dropped, seen.late.len(), seen.late.at(1.0)), (100, 0, 100, Some(0)));
    }

    #[test]
    fn the_part_that_is_claimed_is_lost_and_no_other() {
        for loss in [0.001, 0.01, 0.02] {
            let (left, seen) = through(Shape { loss, ..Shape::PLAIN }, 200_000, 4, Duration::ZERO);
            let part = seen.lost as f64 / 200_000.0;
            assert!((loss * 0.8..loss * 1.2).contains(&part), "{loss}: {part}");
            assert_eq!((left.len() as u64, seen.dropped), (200_000 - seen.lost, 0));
        }
    }

    #[test]
    fn losses_are_single_throws_and_not_bursts() {
        let (left, _) = through(Shape { loss: 0.01, ..Shape::PLAIN }, 200_000, 4, Duration::ZERO);
        let gaps: Vec<_> = left.windows(2).map(|pair| pair[1].1 - pair[0].1).filter(|gap| *gap > 1).collect();
        let long = gaps.iter().filter(|gap| **gap > 2).count() as f64 / gaps.len() as f64;
        assert!((0.003..0.03).contains(&long), "{long} of the gaps are of two packets or more");
    }

    #[test]
    fn a_wire_sends_at_its_rate_and_what_would_wait_too_long_is_dropped() {
        // 1250 bytes are a millisecond of 10 Mbit/s; twice as many come.
        let shape = Shape { rate: 10_000_000, queue: 20 * MS, ..Shape::PLAIN };
        let (left, seen) = through(shape, 2000, 1250, MS / 2);
        assert!(left.windows(2).all(|pair| pair[1].0 - pair[0].0 == MS), "evenly");
        let wait = left.iter().map(|(at, number)| *at - MS / 2 * *number).max().unwrap();
        assert!((20 * MS..=21 * MS).contains(&wait), "{wait:?}");
        assert!((950..1000).contains(&seen.dropped), "{seen:?}");
        // What comes no faster than it goes never waits.
        let (left, seen) = through(shape, 100, 1250, MS);
        assert!(left.iter().all(|(at, number)| *at == MS * (*number + 1)) && seen.dropped == 0, "{left:?}");
    }

    #[test]
    fn jitter_adds_up_to_its_bound_and_keeps_the_order() {
        let shape = Shape { delay: 20 * MS, jitter: 10 * MS, ..Shape::PLAIN };
        let (left, _) = through(shape, 10_000, 4, 20 * MS);
        let delays: Vec<_> = left.iter().map(|(at, number)| *at - 20 * MS * *number).collect();
        let mean = delays.iter().sum::<Duration>() / 10_000;
        assert!(delays.iter().all(|delay| (20 * MS..=30 * MS).contains(delay)), "{:?}", delays.iter().max());
        assert!((24 * MS..26 * MS).contains(&mean), "{mean:?}");
        let (left, _) = through(shape, 10_000, 4, MS);
        assert!(left.windows(2).all(|pair| pair[0].1 < pair[1].1 && pair[0].0 <= pair[1].0));
    }

    #[test]
    fn the_part_that_is_claimed_is_overtaken() {
        let (left, seen) = through(Shape { reorder: 0.02, ..Shape::PLAIN }, 50_000, 4, MS);
        let mut highest = 0;
        let late = left.iter().filter(|(_, number)| {
            highest = highest.max(*number);
            *number < highest
        });
        let part = late.count() as f64 / 50_000.0;
        assert!((0.017..0.023).contains(&part), "{part}");
        assert_eq!((left.len(), seen.lost), (50_000, 0));
    }

    #[test]
    fn what_is_under_way_is_bounded_and_the_room_comes_back() {
        let (mut line, now) = (Line::new(Shape { delay: 50 * MS, ..Shape::PLAIN }, 1), Instant::now());
        for _ in 0..=UNDER_WAY >> 20 {
            line.enter(now, vec![0; 1 << 20].into());
        }
        assert_eq!(line.seen.dropped, 1);
        while line.leave(now + 50 * MS).is_some() {}
        line.enter(now, vec![0; 1 << 20].into());
        assert_eq!((line.take().dropped, line.take()), (1, Seen::default()));
    }

    #[test]
    fn a_packet_that_leaves_late_is_told() {
        let (mut line, now) = (Line::new(Shape::PLAIN, 1), Instant::now());
        line.enter(now, vec![0; 4].into());
        line.leave(now + MS).unwrap();
        assert_eq!(line.take().late.at(1.0), Some(1000));
    }
}
