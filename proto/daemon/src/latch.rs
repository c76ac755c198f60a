//! A value that comes once or changes seldom, and whoever waits for it. What `tokio::sync::watch` does, in a tenth of
//! the room: each watch channel has 400 bytes for its waiters alone, and an idle tunnel would have nine of them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The value, once it is told.
#[derive(Debug)]
pub struct Told<T> {
    value: Mutex<Option<T>>,
    told: Notify,
}

impl<T> Default for Told<T> {
    fn default() -> Self {
        Self { value: Mutex::new(None), told: Notify::new() }
    }
}

impl<T: Clone> Told<T> {
    fn value(&self) -> MutexGuard<'_, Option<T>> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells it, in the place of what was told before.
    pub fn tell(&self, value: T) {
        *self.value() = Some(value);
        self.told.notify_waiters();
    }

    /// Tells it unless something was told before. Whether this was first.
    pub fn tell_first(&self, value: T) -> bool {
        let mut told = self.value();
        let first = told.is_none();
        told.get_or_insert(value);
        drop(told);
        self.told.notify_waiters();
        first
    }

    /// The value, once it was told.
    pub fn get(&self) -> Option<T> {
        self.value().clone()
    }

    /// Whether something was told.
    pub fn is_told(&self) -> bool {
        self.value().is_some()
    }

    /// Waits until something is told, and gives it. Cancel-safe.
    pub async fn wait(&self) -> T {
        loop {
            // Made before the look: from here on it is woken, polled or not.
            let told = self.told.notified();
            if let Some(value) = self.get() {
                return value;
            }
            told.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn all_who_wait_are_told_and_who_comes_later_too() {
        let told = Arc::new(Told::default());
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let told = Arc::clone(&told);
                tokio::spawn(async move { told.wait().await })
            })
            .collect();
        tokio::task::yield_now().await;
        assert!(!told.is_told() && told.get().is_none());
        assert!(told.tell_first(1));
        assert!(!told.tell_first(2));
        for waiting in waiting {
            assert_eq!(waiting.await.unwrap(), 1);
        }
        told.tell(3);
        assert_eq!(told.wait().await, 3);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn nobody_waits_for_what_is_told_meanwhile() {
        for _ in 0..2000 {
            let told = Arc::new(Told::default());
            let teller = Arc::clone(&told);
            let telling = tokio::spawn(async move { teller.tell(()) });
            told.wait().await;
            telling.await.unwrap();
        }
    }

    #[test]
    fn it_takes_little_room() {
        assert!(size_of::<Told<u64>>() <= 80, "{}", size_of::<Told<u64>>());
    }
}
