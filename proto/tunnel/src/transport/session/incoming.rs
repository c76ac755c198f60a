//! Streams that the peer opened, until somebody takes them. What `tokio::sync::mpsc` does in a tenth of the room: a
//! channel has 800 bytes from the beginning, and to an idle tunnel nothing comes.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;
use types::limits;

/// No more than [`limits::STREAMS_PER_TUNNEL`].
pub(super) struct Queue<T> {
    /// In boxes: room is kept for as many as ever waited.
    waiting: Mutex<VecDeque<Box<T>>>,
    filled: Notify,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { waiting: Mutex::default(), filled: Notify::new() }
    }
}

impl<T> Queue<T> {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<Box<T>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one; `Err` gives it back where nobody takes them.
    pub(super) fn push(&self, one: T) -> Result<(), T> {
        let mut waiting = self.waiting();
        if waiting.len() >= limits::STREAMS_PER_TUNNEL as usize {
            return Err(one);
        }
        waiting.push_back(Box::new(one));
        drop(waiting);
        self.filled.notify_one();
        Ok(())
    }

    /// Takes the oldest, as soon as there is one. Cancel-safe.
    pub(super) async fn next(&self) -> T {
        loop {
            if let Some(one) = self.take() {
                return one;
            }
            self.filled.notified().await;
        }
    }

    fn take(&self) -> Option<T> {
        let mut waiting = self.waiting();
        let one = waiting.pop_front();
        if !waiting.is_empty() {
            // Several that came while nobody waited left one notice.
            self.filled.notify_one();
        }
        one.map(|one| *one)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn all_that_came_while_nobody_waited_are_taken_by_several() {
        let queue = Arc::new(Queue::default());
        for number in 0..3 {
            queue.push(number).unwrap();
        }
        let takers: Vec<_> = (0..3)
            .map(|_| {
                let queue = Arc::clone(&queue);
                tokio::spawn(async move { queue.next().await })
            })
            .collect();
        let mut taken = Vec::new();
        for taker in takers {
            taken.push(taker.await.unwrap());
        }
        taken.sort_unstable();
        assert_eq!(taken, [0, 1, 2]);
        assert!(queue.next().now_or_never().is_none());
    }

    #[tokio::test]
    async fn who_gives_up_waiting_takes_nothing_from_the_next() {
        let queue = Queue::default();
        let mut gives_up = Box::pin(queue.next());
        assert!((&mut gives_up).now_or_never().is_none());
        queue.push(7).unwrap();
        drop(gives_up);
        assert_eq!(queue.next().await, 7);
    }

    #[test]
    fn no_more_wait_than_a_tunnel_may_have() {
        let queue = Queue::default();
        for number in 0..limits::STREAMS_PER_TUNNEL {
            queue.push(number).unwrap();
        }
        assert_eq!(queue.push(u32::MAX), Err(u32::MAX));
    }
}
