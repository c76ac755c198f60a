//! The phases of a process or of a part of it: ready, draining, closed. One way only.

use tokio_util::sync::CancellationToken;

/// Where a [`Shutdown`] stands. Only ever grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Accepts new work.
    Ready,
    /// Takes no new work, finishes what is in flight.
    Draining,
    /// Ends at once, whatever is in flight.
    Closed,
}

/// Phases `Ready -> Draining -> Closed`, shared by clones; a [`Shutdown::child`] follows its parent and can go ahead
/// alone.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    draining: CancellationToken,
    closed: CancellationToken,
}

impl Shutdown {
    /// Ready, with no parent.
    pub fn new() -> Self {
        Self::default()
    }

    /// One that is at least as far as `self` and whose own [`Self::drain`] and [`Self::close`] do not touch `self`: for
    /// a listener, a tunnel, a role.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { draining: self.draining.child_token(), closed: self.closed.child_token() }
    }

    /// Begins to drain. Again: nothing.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// Ends now; implies [`Self::drain`].
    pub fn close(&self) {
        self.draining.cancel();
        self.closed.cancel();
    }

    /// The phase that the process is in.
    pub fn phase(&self) -> Phase {
        if self.closed.is_cancelled() {
            Phase::Closed
        } else if self.draining.is_cancelled() {
            Phase::Draining
        } else {
            Phase::Ready
        }
    }

    /// Completes when draining begins, at once if it has. Cancel-safe.
    pub async fn draining(&self) {
        self.draining.cancelled().await;
    }

    /// Completes when closed, at once if it is. Cancel-safe.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Runs `future` until it ends or draining begins, which is `None`.
    pub async fn until_draining<F: Future>(&self, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            () = self.draining() => None,
            output = future => Some(output),
        }
    }

    /// Runs `future` until it ends or all is closed, which is `None`.
    pub async fn until_closed<F: Future>(&self, future: F) -> Option<F::Output> {
        tokio::select! {
            biased;
            () = self.closed() => None,
            output = future => Some(output),
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn phases_go_one_way_and_reach_clones_and_children() {
        let parent = Shutdown::new();
        let (clone, child) = (parent.clone(), parent.child());
        assert_eq!(child.phase(), Phase::Ready);
        assert!(clone.draining().now_or_never().is_none());
        parent.drain();
        clone.draining().await;
        child.draining().await;
        assert_eq!((clone.phase(), child.phase()), (Phase::Draining, Phase::Draining));
        parent.close();
        child.closed().await;
        parent.drain();
        assert_eq!(parent.phase(), Phase::Closed);
        assert_eq!(parent.child().phase(), Phase::Closed);
    }

    #[tokio::test]
    async fn a_child_goes_ahead_alone() {
        let parent = Shutdown::new();
        let child = parent.child();
        child.close();
        assert_eq!((parent.phase(), child.phase()), (Phase::Ready, Phase::Closed));
    }

    #[tokio::test]
    async fn until_ends_with_the_phase() {
        let shutdown = Shutdown::new();
        assert_eq!(shutdown.until_draining(async { 1 }).await, Some(1));
        shutdown.drain();
        assert_eq!(shutdown.until_draining(std::future::pending::<()>()).await, None);
        assert_eq!(shutdown.until_closed(async { 2 }).await, Some(2));
    }
}
