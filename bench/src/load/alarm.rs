//! A timer of the kernel's own resolution. Tokio's goes off at the first full millisecond after it is due, and all
//! requests of a schedule of whole milliseconds fall into the same place between two: a constant of up to a millisecond
//! in each latency, another one in every run.

use std::{io, os::fd::OwnedFd};

use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::Instant,
};

/// One, set to one time after the other.
pub struct Alarm(AsyncFd<OwnedFd>);

impl Alarm {
    /// One that is not set. Inside a runtime of tokio's.
    ///
    /// # Errors
    /// The system has none left.
    pub fn new() -> io::Result<Self> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        #[expect(
            deprecated,
            reason = "what takes its place is unsafe; of an OwnedFd, the same file for life, this is sound"
        )]
        let timer = AsyncFd::with_interest(timer, Interest::READABLE)?;
        Ok(Self(timer))
    }

    /// Completes when this time has come, at once if it is over. One call at a time; cancel-safe.
    ///
    /// # Errors
    /// A fault of the system, or a time that it cannot tell.
    pub async fn at(&self, due: Instant) -> io::Result<()> {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            // Nothing to wait for, and zero would turn it off.
            return Ok(());
        }
        let it_value = Timespec::try_from(left).map_err(io::Error::other)?;
        let once = Itimerspec { it_interval: Timespec::default(), it_value };
        timerfd_settime(&self.0, TimerfdTimerFlags::empty(), &once)?;
        // How often it went off since it was last read.
        let mut times = [0; size_of::<u64>()];
        self.0.async_io(Interest::READABLE, |timer| Ok(rustix::io::read(timer, &mut times)?)).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn it_goes_off_when_it_is_due_each_time_and_at_once_when_that_is_over() {
        let (alarm, start) = (Alarm::new().unwrap(), Instant::now());
        for micros in [300, 900, 900, 2_100, 0] {
            let due = start + Duration::from_micros(micros);
            alarm.at(due).await.unwrap();
            assert!(Instant::now() >= due, "{micros}");
        }
    }

    #[tokio::test]
    async fn a_time_that_nobody_waited_out_does_not_end_the_next() {
        let (alarm, start) = (Alarm::new().unwrap(), Instant::now());
        tokio::select! {
            biased;
            outcome = alarm.at(start + Duration::from_micros(100)) => outcome.unwrap(),
            () = std::future::ready(()) => {}
        }
        // It has gone off by now, unread.
        Alarm::new().unwrap().at(start + Duration::from_millis(1)).await.unwrap();
        let due = Instant::now() + Duration::from_millis(2);
        alarm.at(due).await.unwrap();
        assert!(Instant::now() >= due);
    }
}
