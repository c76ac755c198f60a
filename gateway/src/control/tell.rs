//! Looks for what has happened to clusters, and tells who listens ([`crate::events`]).

use std::{sync::Arc, time::Duration};

use daemon::Shutdown;
use tokio::time::MissedTickBehavior;

use super::Control;

/// How often it is looked for what has happened: silence has no event of its own.
const LOOK_EVERY: Duration = Duration::from_secs(2);

impl Control {
    /// Tells what happens until the gateway drains; then streams of events end, so that nobody waits for them.
    pub async fn tell(self: Arc<Self>, shutdown: Shutdown) {
        let mut look = tokio::time::interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = shutdown.draining() => {
                    self.notices.end();
                    return;
                }
                _ = look.tick() => {}
            }
            self.tell_once().await;
        }
    }

    /// Tells what has happened by now.
    pub async fn tell_once(&self) {
        if let Err(error) = self.store.tell(self.now_ms()).await {
            tracing::error!(%error, "what has happened to clusters cannot be told");
        }
        // Also what other replicas told.
        match self.store.newest_event().await {
            Ok(newest) => self.notices.tell_newest(newest),
            Err(error) => tracing::error!(%error, "the newest event cannot be read"),
        }
    }
}
