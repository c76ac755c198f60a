//! Whether a tunnel still makes progress. Judged by what gets through, not by whether a socket is open, and slow to
//! judge: a carrier is left only after it has been bad for a while.

use std::time::{Duration, Instant};

use tunnel::transport::{CarrierKind, TunnelHandle, loss::Loss};

/// A round trip this much longer than the best one seen, and longer than [`SLOW_FLOOR`], is a bad sign.
const SLOW_FACTOR: u32 = 20;
/// Round trips below this are never a bad sign.
const SLOW_FLOOR: Duration = Duration::from_secs(3);
/// How long it must have been bad.
const BAD_FOR: Duration = Duration::from_secs(20);

/// Silence after which, with a probe unanswered for some seconds, the path is probably gone: another one is dialled
/// before this one is given up. Of a tunnel that nobody uses nothing comes for [`types::limits::IDLE_PERIOD`], and over
/// QUIC for a minute.
const SILENT_FOR: Duration = Duration::from_secs(12);

/// What is to be done with a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Keep the tunnel.
    Stay,
    /// Nothing is heard: dial another tunnel, and leave this one then.
    Silent,
    /// Leave the carrier, not only the tunnel.
    Leave(&'static str),
}

/// The health of one tunnel.
#[derive(Debug)]
pub struct Health {
    received: u64,
    heard: Instant,
    best: Option<Duration>,
    bad_since: Option<Instant>,
    loss: Loss,
    since: Instant,
}

impl Health {
    /// Of a tunnel that came up at `now`.
    pub fn new(now: Instant) -> Self {
        Self { received: 0, heard: now, best: None, bad_since: None, loss: Loss::new(now), since: now }
    }

    /// Looks at the tunnel.
    pub fn look(&mut self, tunnel: &TunnelHandle, now: Instant) -> Verdict {
        let silent = self.is_silent(tunnel.received(), now);
        // On QUIC nothing is queued for long: an answer that is owed is a bad sign sooner.
        if tunnel.suspect() && (silent || tunnel.info().carrier == CarrierKind::Quic) {
            Verdict::Silent
        } else if tunnel.packets().is_some_and(|packets| self.loss.look(packets, now)) {
            Verdict::Leave("a great part of the packets is lost")
        } else {
            self.judge(tunnel.rtt(), now)
        }
    }

    fn is_silent(&mut self, received: u64, now: Instant) -> bool {
        if received != self.received {
            (self.received, self.heard) = (received, now);
        }
        self.received != 0 && now.duration_since(self.heard) >= SILENT_FOR
    }

    fn judge(&mut self, rtt: Option<Duration>, now: Instant) -> Verdict {
        let Some(rtt) = rtt else { return Verdict::Stay };
        let best = self.best.map_or(rtt, |best| best.min(rtt));
        self.best = Some(best);
        let slow = rtt > SLOW_FLOOR && rtt > best * SLOW_FACTOR && now > self.since;
        if !slow {
            self.bad_since = None;
            return Verdict::Stay;
        }
        let since = *self.bad_since.get_or_insert(now);
        if now.duration_since(since) >= BAD_FOR {
            Verdict::Leave("round trips take many times as long as at first")
        } else {
            Verdict::Stay
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_is_noticed_after_twelve_seconds() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut health = Health::new(start);
        assert!(!health.is_silent(0, at(60)), "not known is not silent");
        assert!(!health.is_silent(1, at(60)));
        assert!(!health.is_silent(1, at(68)));
        assert!(!health.is_silent(2, at(69)));
        assert!(!health.is_silent(2, at(80)));
        assert!(health.is_silent(2, at(81)));
    }

    #[test]
    fn only_what_stays_bad_is_left() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let (good, bad) = (Some(Duration::from_millis(40)), Some(Duration::from_secs(5)));
        let mut health = Health::new(start);
        assert_eq!(health.judge(None, at(1)), Verdict::Stay);
        assert_eq!(health.judge(good, at(1)), Verdict::Stay);
        assert_eq!(health.judge(bad, at(2)), Verdict::Stay);
        assert_eq!(health.judge(good, at(15)), Verdict::Stay);
        assert_eq!(health.judge(bad, at(16)), Verdict::Stay);
        assert_eq!(health.judge(bad, at(35)), Verdict::Stay);
        assert!(matches!(health.judge(bad, at(36)), Verdict::Leave(_)));
        // A satellite link is slow from the start, and stays in use.
        let mut slow = Health::new(start);
        for second in 0..100 {
            assert_eq!(slow.judge(bad, at(second)), Verdict::Stay);
        }
    }
}
