//! What waits to be sent, within bounds: lines of a configuration in a second, and lines and bytes of all. What goes
//! beyond is counted, and the next line of the same configuration says how many were left out.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};
use types::agent_api::{LOG_LINES_AT_ONCE, LogLevel, LogLine};

/// Lines that wait at most.
pub const RING_LINES: usize = 5000;
/// Bytes of them, as JSON.
pub const RING_BYTES: usize = 1024 * 1024;
/// Lines of one message, and their bytes.
pub const BATCH_LINES: usize = LOG_LINES_AT_ONCE;
const BATCH_BYTES: usize = 128 * 1024;
/// Lines of a configuration that may come at once.
pub const BURST: i64 = 100;
/// Behind them there is room for one more after each of these: 20 a second.
pub const ONE_MORE_NANOS: i64 = 50_000_000;
/// Configurations whose lines are counted; the gateway wants 200 at most.
const COUNTED_MAX: usize = 1000;
/// How long a line waits for others: each message is a write at the gateway, which has a whole fleet.
const TOGETHER: Duration = Duration::from_secs(15);
/// How long an error does, for somebody may be waiting for it.
const SOON: Duration = Duration::from_secs(5);

/// How many lines of one configuration were logged lately, by the instants of the lines: what was logged while nothing
/// could be read is bounded as if it had been read at once.
#[derive(Debug, Default, Clone, Copy)]
struct Pace {
    /// When there is room for all of [`BURST`] again.
    free_at: i64,
    /// The newest instant. Clocks of two nodes differ, and may be set back.
    now: i64,
    left_out: u64,
}

#[derive(Default)]
struct Waiting {
    /// With the bytes of each.
    lines: VecDeque<(LogLine, usize)>,
    bytes: usize,
    paces: BTreeMap<String, Pace>,
}

impl Waiting {
    /// The count of a configuration. Where there are too many, what was counted is forgotten.
    fn pace(&mut self, id: &str) -> &mut Pace {
        if self.paces.len() >= COUNTED_MAX && !self.paces.contains_key(id) {
            self.paces.clear();
        }
        self.paces.entry(id.to_owned()).or_default()
    }

    fn leave_out(&mut self, line: &LogLine) {
        let pace = self.pace(&line.id);
        pace.left_out = pace.left_out.saturating_add(line.left_out).saturating_add(1);
    }
}

/// Lines that wait.
#[derive(Default)]
pub struct Ring {
    waiting: Mutex<Waiting>,
    more: Notify,
}

impl Ring {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a line of a configuration that was logged at this instant is one of those that may be sent; if not, it is
    /// counted.
    pub fn admits(&self, id: &str, nanos: i64) -> bool {
        let mut waiting = self.waiting();
        let pace = waiting.pace(id);
        pace.now = pace.now.max(nanos);
        let begins = pace.free_at.max(pace.now);
        let admitted = begins.saturating_sub(pace.now) <= (BURST - 1) * ONE_MORE_NANOS;
        if admitted {
            pace.free_at = begins.saturating_add(ONE_MORE_NANOS);
        } else {
            pace.left_out = pace.left_out.saturating_add(1);
        }
        admitted
    }

    /// Puts a line behind the others; the oldest give way.
    pub fn push(&self, mut line: LogLine) {
        let mut waiting = self.waiting();
        line.left_out = std::mem::take(&mut waiting.pace(&line.id).left_out);
        let bytes = size(&line);
        waiting.bytes += bytes;
        waiting.lines.push_back((line, bytes));
        while waiting.bytes > RING_BYTES || waiting.lines.len() > RING_LINES {
            let Some((oldest, bytes)) = waiting.lines.pop_front() else { break };
            waiting.bytes -= bytes;
            waiting.leave_out(&oldest);
        }
        drop(waiting);
        self.more.notify_one();
    }

    /// How long the lines wait for others; `None`: there are none.
    fn patience(&self) -> Option<Duration> {
        let waiting = self.waiting();
        let is_error = |(line, _): &(LogLine, usize)| line.level == LogLevel::Error;
        match waiting.lines.len() {
            0 => None,
            BATCH_LINES.. => Some(Duration::ZERO),
            _ if waiting.lines.iter().any(is_error) => Some(SOON),
            _ => Some(TOGETHER),
        }
    }

    /// Waits until there are lines, and a little longer for others.
    pub async fn some(&self) {
        let mut begun = None;
        loop {
            let more = self.more.notified();
            match self.patience() {
                None => more.await,
                Some(patience) => {
                    let end = *begun.get_or_insert_with(Instant::now) + patience;
                    if tokio::time::timeout_at(end, more).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Takes the oldest lines, as many as one message holds.
    pub fn batch(&self) -> Vec<LogLine> {
        let mut waiting = self.waiting();
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while let Some((_, next)) = waiting.lines.front()
            && taken.len() < BATCH_LINES
            && (taken.is_empty() || bytes + next <= BATCH_BYTES)
        {
            bytes += next;
            taken.extend(waiting.lines.pop_front().map(|(line, _)| line));
        }
        waiting.bytes -= bytes;
        taken
    }

    /// Puts lines back that did not arrive, before the others; the oldest are left out where there is no room.
    pub fn put_back(&self, lines: Vec<LogLine>) {
        let mut waiting = self.waiting();
        for line in lines.into_iter().rev() {
            let bytes = size(&line);
            if waiting.bytes + bytes > RING_BYTES || waiting.lines.len() >= RING_LINES {
                waiting.leave_out(&line);
                continue;
            }
            waiting.bytes += bytes;
            waiting.lines.push_front((line, bytes));
        }
    }
}

fn size(line: &LogLine) -> usize {
    serde_json::to_vec(line).map_or(0, |bytes| bytes.len())
}
