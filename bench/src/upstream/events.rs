//! A watch: an event of about a kilobyte each interval, without end. Each says when it was due, so that whoever reads
//! it knows how long it took from then on, also where it could not leave in time.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::atomic::{AtomicU64, Ordering},
    task::{Context, Poll, ready},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use http_body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep_until};

/// In a query: this is a watch, as Kubernetes spells it.
const WATCH: &str = "watch=true";
/// In a query: milliseconds between two events.
const INTERVAL: &str = "intervalMs=";
/// Unless the query says otherwise.
const EVERY_MS: u64 = 1000;
/// Before the microseconds since 1970 at which an event was due.
const BEFORE: &str = r#"{"type":"MODIFIED","due":"#;
/// Behind them: what makes it about as long as a small pod's event.
const BEHIND: &str = concat!(
    r#","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"watched","namespace":"default","annotations":{"filler":""#,
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    "\"}}}}\n"
);
/// Digits of a time that are looked at, at most.
const DIGITS: usize = 20;

/// What to ask for.
pub fn path(interval: Duration) -> String {
    format!("/api/v1/pods?{WATCH}&{INTERVAL}{}", interval.as_millis())
}

/// The body of such an answer.
pub struct Events {
    /// When the next is due, by both clocks.
    next: Pin<Box<Sleep>>,
    due: SystemTime,
    interval: Duration,
}

impl Events {
    /// What a query asks for, if that is a watch.
    pub fn asked(query: Option<&str>) -> Option<Self> {
        let words: Vec<_> = query?.split('&').collect();
        if !words.contains(&WATCH) {
            return None;
        }
        let interval = words.iter().find_map(|word| word.strip_prefix(INTERVAL)?.parse().ok()).unwrap_or(EVERY_MS);
        Some(Self::new(Duration::from_millis(interval.max(1)), phase()))
    }

    /// The first after this part of the interval.
    fn new(interval: Duration, phase: f64) -> Self {
        let wait = interval.mul_f64(phase);
        Self { next: Box::pin(sleep_until(Instant::now() + wait)), due: SystemTime::now() + wait, interval }
    }
}

/// Spreads watches evenly over the interval, whenever they begin: multiples of the golden ratio.
fn phase() -> f64 {
    static WATCHES: AtomicU64 = AtomicU64::new(0);
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 watches")]
    let number = WATCHES.fetch_add(1, Ordering::Relaxed) as f64;
    (number * 0.618_033_988_749_895).fract()
}

impl Body for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        ready!(self.next.as_mut().poll(cx));
        let (due, interval) = (self.due, self.interval);
        self.due = due + interval;
        let next = self.next.deadline() + interval;
        self.next.as_mut().reset(next);
        Poll::Ready(Some(Ok(Frame::data(event(due)))))
    }
}

fn event(due: SystemTime) -> Bytes {
    let micros = due.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    format!("{BEFORE}{micros}{BEHIND}").into()
}

/// Reads events out of the pieces that they come in.
#[derive(Default)]
pub struct Reader {
    /// The beginning of a line that is not over.
    line: Vec<u8>,
}

impl Reader {
    /// When the events were due whose ends are in this piece; an error for what is none.
    pub fn read(&mut self, mut piece: &[u8], mut each: impl FnMut(SystemTime)) -> anyhow::Result<()> {
        while let Some(end) = piece.iter().position(|byte| *byte == b'\n') {
            self.keep(&piece[..end]);
            each(self.due()?);
            self.line.clear();
            piece = &piece[end + 1..];
        }
        self.keep(piece);
        Ok(())
    }

    fn keep(&mut self, bytes: &[u8]) {
        let room = (BEFORE.len() + DIGITS).saturating_sub(self.line.len());
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn due(&self) -> anyhow::Result<SystemTime> {
        let text = std::str::from_utf8(&self.line).ok().and_then(|text| text.strip_prefix(BEFORE));
        let digits = text.map(|text| text.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default());
        let micros = digits.and_then(|digits| digits.parse().ok());
        let micros = micros.ok_or_else(|| anyhow::anyhow!("no event: {}", String::from_utf8_lossy(&self.line)))?;
        Ok(UNIX_EPOCH + Duration::from_micros(micros))
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn events_come_each_interval_and_say_when_they_were_due() {
        let mut events = Events::new(Duration::from_millis(100), 0.5);
        let (start, due) = (Instant::now(), events.due);
        let mut reader = Reader::default();
        for number in 0_u32..3 {
            if number == 1 {
                // Whoever is late takes it at once; the next ones stay where they were.
                tokio::time::advance(Duration::from_millis(130)).await;
            }
            let frame = events.frame().await.unwrap().unwrap().into_data().unwrap();
            let mut seen = Vec::new();
            reader.read(&frame, |due| seen.push(due)).unwrap();
            let wanted = due + Duration::from_millis(100) * number;
            assert!(wanted.duration_since(seen[0]).unwrap() < Duration::from_micros(1), "{number}");
            assert_eq!(start.elapsed().as_millis(), [50, 180, 250][number as usize], "{number}");
        }
    }

    #[test]
    fn events_are_read_from_pieces_of_any_size_and_what_is_none_is_an_error() {
        let at = |micros| UNIX_EPOCH + Duration::from_micros(micros);
        let bytes = [event(at(1_700_000_000_000_001)), event(at(1_700_000_000_000_002))].concat();
        assert!((800..1200).contains(&(bytes.len() / 2)), "{}", bytes.len() / 2);
        for size in [1, 7, 100, bytes.len()] {
            let (mut reader, mut seen) = (Reader::default(), Vec::new());
            for piece in bytes.chunks(size) {
                reader.read(piece, |due| seen.push(due)).unwrap();
            }
            assert_eq!(seen, [at(1_700_000_000_000_001), at(1_700_000_000_000_002)], "in pieces of {size}");
        }
        assert!(Reader::default().read(b"{\"type\":\"ERROR\"}\n", |_| ()).is_err());
    }

    #[test]
    fn only_a_watch_is_one_and_phases_are_spread() {
        assert!(Events::asked(None).is_none() && Events::asked(Some("limit=500")).is_none());
        let phases: Vec<_> = (0..100).map(|_| phase()).collect();
        for part in 0_u32..10 {
            let of = phases.iter().filter(|phase| (**phase * 10.0).floor() == f64::from(part)).count();
            assert!((8..=12).contains(&of), "{part}: {of}");
        }
    }

    #[tokio::test]
    async fn the_path_that_is_asked_for_is_understood() {
        let path = path(Duration::from_millis(250));
        let events = Events::asked(path.split_once('?').map(|(_, query)| query)).unwrap();
        assert_eq!(events.interval, Duration::from_millis(250));
    }
}
