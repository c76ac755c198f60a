//! The tasks of an HTTP/2 connection to the apiserver, as hyper spawns them.

use std::sync::{Arc, Mutex, PoisonError};

use hyper::rt::Executor;
use proto::{process::TaskGroup, transport::cork::Cork};
use tokio::io::AsyncWrite;

/// Spawns into a group. The first task is the connection itself, the only one that touches its socket: it is driven by the
/// socket's cork.
pub struct ConnectionTasks<T> {
    tasks: TaskGroup,
    cork: Arc<Mutex<Option<Cork<T>>>>,
}

impl<T> ConnectionTasks<T> {
    /// For one connection.
    pub fn new(tasks: TaskGroup, cork: Cork<T>) -> Self {
        Self { tasks, cork: Arc::new(Mutex::new(Some(cork))) }
    }
}

impl<T> Clone for ConnectionTasks<T> {
    fn clone(&self) -> Self {
        Self { tasks: self.tasks.clone(), cork: Arc::clone(&self.cork) }
    }
}

impl<F, T> Executor<F> for ConnectionTasks<T>
where
    F: Future<Output = ()> + Send + 'static,
    T: AsyncWrite + Send + Unpin + 'static,
{
    fn execute(&self, future: F) {
        let cork = self.cork.lock().unwrap_or_else(PoisonError::into_inner).take();
        match cork {
            Some(cork) => self.tasks.spawn("apiserver socket", cork.drive(future)),
            None => self.tasks.execute(future),
        }
    }
}
