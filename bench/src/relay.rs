//! The way between router and site where it is to be long or bad: a relay in user space between two TUN devices, one
//! for each end, since small kernels have no netem. It says itself how well it keeps what it claims.

mod line;

use std::{
    io::BufRead,
    process::ExitCode,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        mpsc::{SyncSender, sync_channel},
    },
    time::Instant,
};

use anyhow::{Context, bail};
use line::Line;
pub use line::Seen;
use tun_rs::{DeviceBuilder, SyncDevice};

use crate::shape::Shape;

/// Names of the devices: the router's, and the one that moves to the site.
pub const NEAR: &str = "relaynear";
/// Name of the device that moves to the site's network namespace.
pub const FAR: &str = "relayfar";
/// Longest packet of a device.
const LONGEST: usize = 64 << 10;
/// Packets that a device keeps until they are read here; losing them would be a loss that nobody claimed.
const QUEUE: u32 = 20_000;
/// Packets that are sent before the line is looked at again.
const BATCH: usize = 64;

/// Arguments of `bench relay`.
#[derive(clap::Args)]
pub struct Args {
    /// What happens to packets, as JSON.
    #[arg(long, value_parser = |text: &str| serde_json::from_str::<Shape>(text))]
    shape: Shape,
    /// The same throws of the dice for the same seed.
    #[arg(long)]
    seed: u32,
}

/// Both directions at a moment, as the relay tells them.
pub type BothWays = [Seen; 2];

/// Both as figures of a record: that the way was as claimed can be seen there.
pub fn figures(told: &BothWays) -> Vec<(String, f64)> {
    #[expect(clippy::cast_precision_loss, reason = "far fewer packets than 2^52")]
    let sum = |of: fn(&Seen) -> u64| told.iter().map(of).sum::<u64>() as f64;
    let percent = |part: f64| 100.0 * part / sum(|seen| seen.taken).max(1.0);
    let mut late = told[0].late.clone();
    late.merge(&told[1].late);
    #[expect(clippy::cast_precision_loss, reason = "at most two minutes")]
    let late_us = late.at(0.99).unwrap_or(0) as f64;
    [
        ("link_lost_percent", percent(sum(|seen| seen.lost))),
        ("link_dropped_percent", percent(sum(|seen| seen.dropped + seen.refused))),
        ("link_late_us", late_us),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Makes the devices, says so with a line, and relays until standard input ends. Each line there is answered with what
/// was seen since the one before.
///
/// # Errors
/// Devices that cannot be made or used.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (near, far) = (device(NEAR)?, device(FAR)?);
    let (ended, first) = sync_channel(1);
    let lines = [Way::start(&near, &far, args, 0, &ended)?, Way::start(&far, &near, args, 1, &ended)?];
    crate::print::say("ready");
    thread("questions", &ended, move || {
        for question in std::io::stdin().lock().lines() {
            question?;
            let told: BothWays = [lines[0].line().take(), lines[1].line().take()];
            crate::print::say(&serde_json::to_string(&told)?);
        }
        Ok(())
    })?;
    // Whatever ends first ends all, as the process does.
    first.recv().context("a thread of the relay has panicked")??;
    Ok(ExitCode::SUCCESS)
}

fn device(name: &str) -> anyhow::Result<Arc<SyncDevice>> {
    // Addresses, MTU and state are given by whoever started this, from outside of the namespace.
    let builder = DeviceBuilder::new().name(name).enable(false).with(|device| {
        device.tx_queue_len(QUEUE);
    });
    let made = builder.build_sync();
    Ok(Arc::new(made.with_context(|| format!("cannot make the TUN device {name} (needs root and /dev/net/tun)"))?))
}

/// One direction: a thread takes packets in, another lets them out when they are due.
#[derive(Clone)]
struct Way {
    shared: Arc<(Mutex<Line>, Condvar)>,
}

impl Way {
    fn start(
        from: &Arc<SyncDevice>,
        to: &Arc<SyncDevice>,
        args: &Args,
        number: u64,
        ended: &SyncSender<anyhow::Result<()>>,
    ) -> anyhow::Result<Self> {
        let line = Line::new(args.shape, u64::from(args.seed) * 2 + number);
        let this = Self { shared: Arc::new((Mutex::new(line), Condvar::new())) };
        let (way, from, to) = (this.clone(), Arc::clone(from), Arc::clone(to));
        let outward = this.clone();
        thread("in", ended, move || way.take_in(&from))?;
        thread("out", ended, move || outward.let_out(&to))?;
        Ok(this)
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_in(&self, from: &SyncDevice) -> anyhow::Result<()> {
        let mut packet = vec![0; LONGEST];
        loop {
            let length = from.recv(&mut packet).context("cannot read from a TUN device")?;
            let mut line = self.line();
            let before = line.next_due();
            line.enter(Instant::now(), packet[..length].into());
            let wake = line.next_due() != before;
            drop(line);
            if wake {
                self.shared.1.notify_one();
            }
        }
    }

    fn let_out(&self, to: &SyncDevice) -> anyhow::Result<()> {
        let mut due = Vec::with_capacity(BATCH);
        loop {
            let mut line = self.line();
            while due.is_empty() {
                let now = Instant::now();
                due.extend(std::iter::from_fn(|| line.leave(now)).take(BATCH));
                if !due.is_empty() {
                    break;
                }
                line = match line.next_due() {
                    Some(next) => {
                        let wait = next.saturating_duration_since(now);
                        self.shared.1.wait_timeout(line, wait).unwrap_or_else(PoisonError::into_inner).0
                    }
                    None => self.shared.1.wait(line).unwrap_or_else(PoisonError::into_inner),
                };
            }
            drop(line);
            for packet in due.drain(..) {
                match to.send(&packet) {
                    Ok(_) => {}
                    Err(error) if is_down(&error) => self.line().refused(),
                    Err(error) => bail!("write to a TUN device: {error}"),
                }
            }
        }
    }
}

/// A device that is down refuses a packet and lives on.
fn is_down(error: &std::io::Error) -> bool {
    const EIO: i32 = 5;
    error.raw_os_error() == Some(EIO)
}

fn thread(
    name: &str,
    ended: &SyncSender<anyhow::Result<()>>,
    work: impl FnOnce() -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<()> {
    let ended = ended.clone();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        // Nobody listens any more once the process is about to end.
        let _ = ended.send(work());
    })?;
    Ok(())
}
