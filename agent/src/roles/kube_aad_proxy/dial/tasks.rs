//! The tasks of an HTTP/2 connection to the apiserver, as hyper spawns them.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use daemon::TaskGroup;
use hyper::rt::Executor;

/// Spawns into a group, but for the first task: that is the connection itself, the only one that touches its socket,
/// and is kept for who drives it.
#[derive(Clone)]
pub struct ConnectionTasks {
    tasks: TaskGroup,
    first: Arc<Mutex<First>>,
}

#[derive(Default)]
enum First {
    #[default]
    Awaited,
    Kept(Pin<Box<dyn Future<Output = ()> + Send>>),
    Taken,
}

impl ConnectionTasks {
    /// The tasks of one connection.
    pub fn new(tasks: TaskGroup) -> Self {
        Self { tasks, first: Arc::default() }
    }

    /// `requests` and the first task as one: what the one hands to the other leaves in the same turn.
    pub async fn beside_socket(self, requests: impl Future<Output = ()>) {
        let first = std::mem::replace(&mut *self.lock(), First::Taken);
        let socket = async move {
            if let First::Kept(socket) = first {
                socket.await;
            }
        };
        // In this order.
        futures_util::future::join(requests, socket).await;
    }

    fn lock(&self) -> MutexGuard<'_, First> {
        self.first.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F> Executor<F> for ConnectionTasks
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        let mut first = self.lock();
        if matches!(*first, First::Awaited) {
            *first = First::Kept(Box::pin(future));
        } else {
            drop(first);
            self.tasks.execute(future);
        }
    }
}
