//! Task groups: the only place that calls `tokio::spawn`. Every task has a name, an owner that learns of its panic, and
//! an end that the owner can wait for.

use std::{
    any::Any,
    fmt,
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use futures_util::FutureExt;
use slab::Slab;
use tokio::{
    sync::Notify,
    task::{AbortHandle, JoinHandle},
};
use tracing::Instrument;

use super::Latch;

/// A set of tasks with one owner. Clones share the set, so that a task of the group can spawn into it. When the last
/// clone is dropped, or at [`TaskGroup::abort`], the tasks that still run are aborted; a clone inside a task counts, so
/// an owner whose tasks hold clones calls [`TaskGroup::abort`].
#[derive(Clone)]
pub struct TaskGroup {
    inner: Arc<Inner>,
}

struct Inner {
    name: &'static str,
    tasks: Arc<Tasks>,
}

/// Futures of more bytes are moved into a box at once: a task's future is moved several times until it runs, and once
/// more when it has ended.
const BOXED_BYTES: usize = 512;

struct Tasks {
    state: Mutex<State>,
    /// Told when no task runs any more.
    idle: Notify,
    panicked: Latch<Panicked>,
}

#[derive(Default)]
struct State {
    running: usize,
    closed: bool,
    entries: Slab<Entry>,
}

/// A task may end before `spawn` has its abort handle; then it leaves a mark instead of a stale entry.
enum Entry {
    Starting,
    Running(AbortHandle),
    EndedEarly,
}

/// A task of a group panicked: a fault of ours, never a peer's doing. The owner decides whether it can go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("task {group}/{task} panicked: {message}")]
pub struct Panicked {
    /// The group's name.
    pub group: &'static str,
    /// The task's name.
    pub task: &'static str,
    /// The panic's message, if it was text.
    pub message: String,
}

/// Why a [`Task`] has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TaskEnded {
    /// It was aborted, or its group was.
    #[error("task was aborted")]
    Aborted,
    /// It panicked; the group's owner has been told as well.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}

impl TaskGroup {
    /// An empty group. The name is a log field.
    pub fn new(name: &'static str) -> Self {
        let tasks = Tasks { state: Mutex::default(), idle: Notify::new(), panicked: Latch::default() };
        Self { inner: Arc::new(Inner { name, tasks: Arc::new(tasks) }) }
    }

    /// Runs `future` as a task of the group until it ends or the group is aborted. In an aborted group it does not
    /// start.
    pub fn spawn<F>(&self, task: &'static str, future: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        drop(self.start(task, future));
    }

    /// As [`Self::spawn`] with a handle to await the result; dropping the handle aborts the task.
    pub fn spawn_task<F>(&self, task: &'static str, future: F) -> Task<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send,
    {
        Task { handle: self.start(task, future) }
    }

    fn start<F>(&self, task: &'static str, future: F) -> JoinHandle<Result<F::Output, Panicked>>
    where
        F: Future + Send + 'static,
        F::Output: Send,
    {
        if size_of::<F>() > BOXED_BYTES { self.launch(task, Box::pin(future)) } else { self.launch(task, future) }
    }

    fn launch<F>(&self, task: &'static str, future: F) -> JoinHandle<Result<F::Output, Panicked>>
    where
        F: Future + Send + 'static,
        F::Output: Send,
    {
        let tasks = self.inner.tasks.clone();
        let id = tasks.begin();
        // Made here and moved in, so that it runs also when the task is dropped before its first poll.
        let ended = Ended { tasks: tasks.clone(), id };
        let group = self.inner.name;
        let mut span = tracing::debug_span!("task", group, task);
        if span.is_disabled() {
            // What the task logs still belongs to the connection or request that spawned it.
            span = tracing::Span::current();
        }
        let future = watched(future, ended, group, task);
        #[expect(clippy::disallowed_methods, reason = "the one place")]
        let handle = tokio::spawn(future.instrument(span));
        let mut state = tasks.state();
        match &mut state.entries[id] {
            Entry::EndedEarly => drop(state.entries.remove(id)),
            entry => *entry = Entry::Running(handle.abort_handle()),
        }
        if state.closed {
            handle.abort();
        }
        drop(state);
        handle
    }

    /// How many tasks run.
    pub fn running(&self) -> usize {
        self.inner.tasks.state().running
    }

    /// Waits until no task runs. Starts nothing and aborts nothing; the error is the first panic.
    pub async fn join(&self) -> Result<(), Panicked> {
        loop {
            // Made before the look: from here on it is woken, polled or not.
            let idle = self.inner.tasks.idle.notified();
            if self.running() == 0 {
                break;
            }
            idle.await;
        }
        self.inner.tasks.panicked.get().map_or(Ok(()), Err)
    }

    /// Completes when a task of the group panics, or at once if one has. An owner selects on it.
    pub async fn panicked(&self) -> Panicked {
        self.inner.tasks.panicked.wait().await
    }

    /// Aborts what runs and keeps what comes later from starting. [`Self::join`] waits for their end.
    pub fn abort(&self) {
        self.inner.tasks.abort();
    }
}

impl fmt::Debug for TaskGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TaskGroup({}, {} running)", self.inner.name, self.running())
    }
}

/// hyper spawns the streams of an HTTP/2 connection through this.
impl<F> hyper::rt::Executor<F> for TaskGroup
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, future: F) {
        drop(self.start("http2", future));
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.tasks.abort();
    }
}

impl Tasks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a task that is about to start; its [`Ended`] gives it back.
    fn begin(&self) -> usize {
        let mut state = self.state();
        state.running += 1;
        state.entries.insert(Entry::Starting)
    }

    fn abort(&self) {
        let handles: Vec<_> = {
            let mut state = self.state();
            state.closed = true;
            state
                .entries
                .iter()
                .filter_map(|(_, entry)| if let Entry::Running(h) = entry { Some(h.clone()) } else { None })
                .collect()
        };
        handles.iter().for_each(AbortHandle::abort);
    }
}

/// A task's future, which tells the group of its end. Not an async block, which would hold the future twice: as what it
/// captures and as what it awaits (decision 13).
fn watched<F: Future>(
    future: F,
    ended: Ended,
    group: &'static str,
    task: &'static str,
) -> impl Future<Output = Result<F::Output, Panicked>> {
    AssertUnwindSafe(future).catch_unwind().map(move |result| {
        let result = result.map_err(|panic| {
            let panicked = Panicked { group, task, message: panic_text(&*panic) };
            tracing::error!(group, task, message = panicked.message, "task panicked");
            ended.tasks.panicked.set_first(panicked.clone());
            panicked
        });
        drop(ended);
        result
    })
}

/// Lives in a task's future, so that the group learns of every kind of end.
struct Ended {
    tasks: Arc<Tasks>,
    id: usize,
}

impl Drop for Ended {
    fn drop(&mut self) {
        let mut state = self.tasks.state();
        match &mut state.entries[self.id] {
            entry @ Entry::Starting => *entry = Entry::EndedEarly,
            _ => drop(state.entries.remove(self.id)),
        }
        state.running -= 1;
        let idle = state.running == 0;
        drop(state);
        if idle {
            self.tasks.idle.notify_waiters();
        }
    }
}

/// A running task; dropping it aborts the task. Await it for the result.
#[must_use = "dropping it aborts the task"]
pub struct Task<T> {
    handle: JoinHandle<Result<T, Panicked>>,
}

impl<T> Task<T> {
    /// Asks the task to end at its next await.
    pub fn abort(&self) {
        self.handle.abort();
    }

    /// Whether it has ended.
    pub fn is_finished(&self) -> bool {
        self.handle.is_finished()
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, TaskEnded>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.handle).poll(cx).map(|joined| match joined {
            Ok(result) => result.map_err(TaskEnded::Panicked),
            Err(_) => Err(TaskEnded::Aborted),
        })
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.handle.abort();
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("no message").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    #[tokio::test]
    async fn join_waits_for_tasks_that_tasks_spawn() {
        let group = TaskGroup::new("test");
        let (tx, rx) = oneshot::channel::<()>();
        let inner = group.clone();
        group.spawn("outer", async move {
            inner.spawn("inner", async move { rx.await.unwrap() });
        });
        assert!(group.join().now_or_never().is_none());
        tx.send(()).unwrap();
        group.join().await.unwrap();
        assert_eq!(group.running(), 0);
        assert!(group.inner.tasks.state().entries.is_empty());
    }

    #[tokio::test]
    async fn a_panic_is_reported_to_the_owner_and_to_the_handle() {
        let group = TaskGroup::new("test");
        let task = group.spawn_task("broken", async {
            if true {
                panic!("why {}", 1)
            }
        });
        let panicked = group.panicked().await;
        assert_eq!(panicked.to_string(), "task test/broken panicked: why 1");
        assert_eq!(task.await, Err(TaskEnded::Panicked(panicked.clone())));
        assert_eq!(group.join().await, Err(panicked));
    }

    #[tokio::test]
    async fn dropping_a_handle_aborts_its_task() {
        let group = TaskGroup::new("test");
        drop(group.spawn_task("endless", std::future::pending::<()>()));
        group.join().await.unwrap();
    }

    #[tokio::test]
    async fn dropping_the_last_group_aborts_all_and_runs_destructors() {
        let (tx, rx) = oneshot::channel::<()>();
        let group = TaskGroup::new("test");
        group.spawn("holder", async move {
            let _tx = tx;
            std::future::pending::<()>().await
        });
        drop(group.clone());
        assert_eq!(group.running(), 1);
        drop(group);
        assert!(rx.await.is_err());
    }

    #[tokio::test]
    async fn an_aborted_group_starts_nothing() {
        let group = TaskGroup::new("test");
        group.abort();
        let task = group.spawn_task("late", std::future::pending::<()>());
        assert_eq!(task.await, Err(TaskEnded::Aborted));
        group.join().await.unwrap();
    }

    /// Each task had room for its future twice.
    #[tokio::test]
    async fn a_task_has_room_for_its_future_once() {
        let room = [1u8; 100_000];
        let future = async move {
            std::future::pending::<()>().await;
            std::hint::black_box(&room);
        };
        let size = size_of_val(&future);
        let tasks = TaskGroup::new("test").inner.tasks.clone();
        let id = tasks.begin();
        let watched = watched(future, Ended { tasks, id }, "test", "big");
        assert!(size_of_val(&watched) < size + 1000, "{} for {size}", size_of_val(&watched));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn tasks_that_end_before_spawn_returns_leave_nothing_behind() {
        let group = TaskGroup::new("test");
        for _ in 0..2000 {
            group.spawn("short", async {});
        }
        group.join().await.unwrap();
        // An entry is settled by the later of `spawn` and the task's end, both of which are over.
        assert!(group.inner.tasks.state().entries.is_empty());
    }
}
