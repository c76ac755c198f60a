//! Ctrl+C and SIGTERM of a command that has to take back what it began: the first one asks for an end between two
//! steps, the second one ends it at once.

use daemon::TaskGroup;
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
};

use crate::failure::Outcome;

/// How often it was asked.
#[derive(Clone)]
pub struct Interrupt {
    count: watch::Receiver<u32>,
    _tasks: TaskGroup,
}

impl Interrupt {
    /// Listens from now on.
    pub fn listen() -> Outcome<Self> {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let (heard, count) = watch::channel(0);
        let tasks = TaskGroup::new("signals");
        tasks.spawn("interrupt", async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                heard.send_modify(|count| *count += 1);
            }
        });
        Ok(Self { count, _tasks: tasks })
    }

    /// Completes once asked; at once if that was before. Cancel-safe.
    pub async fn heard(&mut self) {
        self.times(1).await;
    }

    /// What `work` comes to; none where it was asked for an end first, and the work is dropped. Whoever has something
    /// to put right does that afterwards.
    pub async fn unless_heard<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.heard() => None,
            done = work => Some(done),
        }
    }

    /// Completes at the second time.
    pub async fn insisted(&mut self) {
        self.times(2).await;
    }

    /// Whether it was asked.
    pub fn is_heard(&self) -> bool {
        *self.count.borrow() > 0
    }

    async fn times(&mut self, wanted: u32) {
        if self.count.wait_for(|count| *count >= wanted).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
