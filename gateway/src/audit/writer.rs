//! Writes audit records in their order. While they cannot be written (a full disk), they wait and are tried again from
//! the byte on that was not taken, so that none is torn, lost or written twice; what then comes beyond the queue is
//! counted.
//!
//! The writer is a thread of its own: a file's writes are the system's, and may take their time. It wakes by its own
//! clock while requests come, so that neither a request nor what serves it is ever woken for a record.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use daemon::Shutdown;
use tokio::sync::{mpsc, oneshot};

use super::{
    line::Known,
    waiting::{Slot, Waiting},
};

/// Bytes written at once, about.
const BATCH_BYTES: usize = 256 * 1024;
/// How long records are gathered before they are written together: a write for each record by itself, and the turn of
/// another thread, cost as much as the request does.
const GATHER: Duration = Duration::from_millis(25);
/// Records that wait from which on none are gathered for longer.
const ENOUGH: usize = 256;
/// How often writing is tried again.
const RETRY: Duration = Duration::from_secs(1);
/// What a write that is under way has to end in, once all else has.
const LAST_WRITE: Duration = Duration::from_millis(100);

/// What the writer is given.
pub(super) enum Entry {
    /// The record of a request.
    Record(Box<Known>),
    /// Any other, with its line feed.
    Line(Vec<u8>),
    /// The same, of a party that has a share of the queue.
    LineOf(Slot, Vec<u8>),
    /// Told when all before it is written.
    Flush(oneshot::Sender<()>),
}

impl Entry {
    /// Whose share of the queue it takes a place of, if anybody's.
    pub(super) fn of(&self) -> Option<Slot> {
        match self {
            Self::Record(known) => known.of,
            Self::LineOf(of, _) => Some(*of),
            Self::Line(_) | Self::Flush(_) => None,
        }
    }
}

/// Where lines go.
pub(super) type Sink = Box<dyn Write + Send>;

/// Where lines are to go from now on, until the writer has taken it.
#[derive(Clone, Default)]
pub(super) struct Next(Arc<Mutex<Option<Sink>>>);

impl Next {
    /// The last one counts.
    pub(super) fn put(&self, sink: Sink) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(sink);
    }

    fn take(&self) -> Option<Sink> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Where lines go, and those that are on their way there.
struct Lines {
    sink: Sink,
    next: Next,
    batch: Vec<u8>,
    /// What the sink has taken of a line of which it has not taken the rest.
    begun: Vec<u8>,
}

impl Lines {
    /// Keeps what was not taken.
    fn write(&mut self) -> io::Result<()> {
        if let Some(next) = self.next.take() {
            self.sink = next;
            // No line is torn in two files: the next one has all of it.
            self.begun.append(&mut self.batch);
            std::mem::swap(&mut self.begun, &mut self.batch);
        }
        let mut taken = 0;
        let result = loop {
            if taken == self.batch.len() {
                break self.sink.flush();
            }
            match self.sink.write(&self.batch[taken..]) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => taken += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => break Err(error),
            }
        };
        for bytes in self.batch[..taken].split_inclusive(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(bytes);
            if bytes.ends_with(b"\n") {
                self.begun.clear();
            }
        }
        self.batch.drain(..taken);
        result
    }
}

/// Starts the thread. What is returned ends with it, or when all is closed and a write does not end: nobody need read
/// the standard output.
pub(super) fn start(
    sink: Sink,
    next: Next,
    replica: Option<String>,
    entries: mpsc::Receiver<Entry>,
    waiting: Arc<Waiting>,
    shutdown: Shutdown,
) -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let (ends, mut ended) = oneshot::channel();
    let written = run(sink, next, replica, entries, Arc::clone(&waiting), shutdown.clone());
    // Its clock is made there: where there is no thread, it could not be dropped here.
    std::thread::Builder::new().name("audit".to_owned()).spawn(move || {
        let clock = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let _ = ends.send(clock.map(|clock| clock.block_on(written)));
    })?;
    Ok(async move {
        let ended = match shutdown.until_closed(&mut ended).await {
            None => tokio::time::timeout(LAST_WRITE, ended).await,
            Some(ended) => Ok(ended),
        };
        match ended {
            Ok(Ok(Ok(_))) => {}
            Ok(Ok(Err(error))) => tracing::error!(%error, "audit records are lost: their writer has no clock"),
            Ok(Err(_)) => tracing::error!("audit records are lost: their writer has failed"),
            // It holds what it has said, so that this counts from the start.
            Err(_) => tracing::error!(
                dropped_since_start = waiting.dropped.load(Ordering::Relaxed),
                "audit records are lost: their writing did not end"
            ),
        }
    })
}

/// Writes until closed. Returns how many records it has told the log were dropped: all of them, however it ends.
async fn run(
    sink: Sink,
    next: Next,
    replica: Option<String>,
    mut entries: mpsc::Receiver<Entry>,
    waiting: Arc<Waiting>,
    shutdown: Shutdown,
) -> u64 {
    let mut lines = Lines { sink, next, batch: Vec::new(), begun: Vec::new() };
    let mut flushes: Vec<oneshot::Sender<()>> = Vec::new();
    let (mut said, mut wrote) = (Said::default(), false);
    loop {
        if lines.batch.is_empty() {
            for done in flushes.drain(..) {
                let _ = done.send(());
            }
            // Who closes has waited for a flush, or has given up waiting.
            let gather = || shutdown.until_closed(tokio::time::sleep(GATHER));
            if std::mem::take(&mut wrote) && entries.len() < ENOUGH {
                gather().await;
            }
            let mut next = entries.try_recv().ok();
            if next.is_none() {
                // A pause: the first record after it wakes the writer.
                let Some(Some(first)) = shutdown.until_closed(entries.recv()).await else {
                    return said.dropped(waiting.dropped.load(Ordering::Relaxed));
                };
                if entries.len() < ENOUGH && !matches!(first, Entry::Flush(_)) {
                    gather().await;
                }
                next = Some(first);
            }
            while let Some(entry) = next {
                entry.of().into_iter().for_each(|of| waiting.end(of));
                match entry {
                    Entry::Record(known) => known.write_to(replica.as_deref(), &mut lines.batch),
                    Entry::Line(line) | Entry::LineOf(_, line) => lines.batch.extend_from_slice(&line),
                    Entry::Flush(done) => flushes.push(done),
                }
                next = if lines.batch.len() < BATCH_BYTES { entries.try_recv().ok() } else { None };
            }
        } else if shutdown.until_closed(tokio::time::sleep(RETRY)).await.is_none() {
            let records = lines.batch.iter().filter(|byte| **byte == b'\n').count() + entries.len();
            tracing::error!(records, "audit records are lost: they could not be written until the end");
            return said.dropped(waiting.dropped.load(Ordering::Relaxed));
        }
        let result = lines.write();
        wrote = true;
        said.after(&result, waiting.dropped.load(Ordering::Relaxed));
    }
}

/// What the log was told.
#[derive(Default)]
struct Said {
    broken: bool,
    dropped: u64,
}

impl Said {
    fn after(&mut self, result: &io::Result<()>, dropped: u64) {
        match result {
            Err(error) if !self.broken => tracing::error!(%error, "audit records cannot be written; they wait"),
            Ok(()) if self.broken => tracing::info!("audit records can be written again"),
            _ => {}
        }
        self.broken = result.is_err();
        self.dropped(dropped);
    }

    /// Of all that were dropped, says how many are new. Returns all.
    fn dropped(&mut self, dropped: u64) -> u64 {
        if dropped > self.dropped {
            tracing::warn!(records = dropped - self.dropped, "audit records were dropped: too many wait to be written");
            self.dropped = dropped;
        }
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use std::sync::MutexGuard;

    use daemon::TaskGroup;
    use futures_util::FutureExt as _;

    use super::*;

    /// A disk with room for a number of bytes.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<(Vec<u8>, usize)>>);

    impl Disk {
        fn lock(&self) -> MutexGuard<'_, (Vec<u8>, usize)> {
            self.0.lock().unwrap()
        }
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut disk = self.lock();
            let taken = bytes.len().min(disk.1);
            if taken == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            disk.1 -= taken;
            disk.0.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What did not fit was gone without a count, and the record in which the disk became full was glued to the next
    /// one.
    #[tokio::test(start_paused = true)]
    async fn a_full_disk_tears_and_loses_no_record() {
        let (disk, tasks, shutdown) = (Disk::default(), TaskGroup::new("test"), Shutdown::new());
        let (queue, entries) = mpsc::channel(100);
        let written = run(Box::new(disk.clone()), Next::default(), None, entries, Arc::default(), shutdown.clone());
        tasks.spawn("audit", written.map(drop));
        let mut expected = Vec::new();
        for room in [0, 7, 3, 100, 1, 12] {
            disk.lock().1 += room;
            for _ in 0..2 {
                let line = format!("{{\"record\":{}}}\n", expected.len()).into_bytes();
                expected.extend_from_slice(&line);
                queue.send(Entry::Line(line)).await.unwrap();
            }
            let (done, written) = oneshot::channel();
            queue.send(Entry::Flush(done)).await.unwrap();
            let _ = tokio::time::timeout(10 * RETRY, written).await;
        }
        disk.lock().1 = usize::MAX;
        let (done, written) = oneshot::channel();
        queue.send(Entry::Flush(done)).await.unwrap();
        written.await.unwrap();
        assert_eq!(String::from_utf8_lossy(&disk.lock().0), String::from_utf8_lossy(&expected));
    }

    /// Of the line in which the former file became full, the next one has all.
    #[tokio::test(start_paused = true)]
    async fn what_a_full_disk_did_not_take_whole_is_whole_in_the_next_file() {
        let (former, other, next) = (Disk::default(), Disk::default(), Next::default());
        (former.lock().1, other.lock().1) = (11, usize::MAX);
        let (tasks, shutdown) = (TaskGroup::new("test"), Shutdown::new());
        let (queue, entries) = mpsc::channel(100);
        let written = run(Box::new(former.clone()), next.clone(), None, entries, Arc::default(), shutdown.clone());
        tasks.spawn("audit", written.map(drop));
        for n in 1..=3 {
            queue.send(Entry::Line(format!("{{\"n\":{n}}}\n").into_bytes())).await.unwrap();
        }
        let (done, mut written) = oneshot::channel();
        queue.send(Entry::Flush(done)).await.unwrap();
        // Room for some more bytes of the same line, while it waits.
        assert!(tokio::time::timeout(RETRY / 2, &mut written).await.is_err());
        former.lock().1 = 2;
        assert!(tokio::time::timeout(RETRY, &mut written).await.is_err());
        assert_eq!(String::from_utf8_lossy(&former.lock().0), "{\"n\":1}\n{\"n\":");
        next.put(Box::new(other.clone()));
        written.await.unwrap();
        assert_eq!(String::from_utf8_lossy(&other.lock().0), "{\"n\":2}\n{\"n\":3}\n");
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_stays_full_does_not_hold_up_the_end() {
        let (tasks, shutdown) = (TaskGroup::new("test"), Shutdown::new());
        let (queue, entries) = mpsc::channel(100);
        let written = run(Box::<Disk>::default(), Next::default(), None, entries, Arc::default(), shutdown.clone());
        let writer = tasks.spawn_task("audit", written.map(drop));
        queue.send(Entry::Line(b"{}\n".to_vec())).await.unwrap();
        shutdown.close();
        writer.await.unwrap();
    }

    /// What was dropped behind the last write was told nowhere.
    #[tokio::test(start_paused = true)]
    async fn what_was_dropped_is_told_at_the_end_too() {
        for room in [0, usize::MAX] {
            let (disk, shutdown, waiting) = (Disk::default(), Shutdown::new(), Arc::<Waiting>::default());
            disk.lock().1 = room;
            let (queue, entries) = mpsc::channel(100);
            queue.send(Entry::Line(b"{}\n".to_vec())).await.unwrap();
            let written = run(Box::new(disk), Next::default(), None, entries, Arc::clone(&waiting), shutdown.clone());
            let mut written = std::pin::pin!(written);
            // The line is written, or waits to be tried again.
            assert!(tokio::time::timeout(RETRY / 2, written.as_mut()).await.is_err());
            waiting.dropped.store(5, Ordering::Relaxed);
            shutdown.close();
            assert_eq!(written.await, 5, "room for {room}");
        }
    }

    #[tokio::test]
    async fn a_reader_who_reads_nothing_does_not_hold_up_the_end() {
        let (tasks, shutdown) = (TaskGroup::new("test"), Shutdown::new());
        let (queue, entries) = mpsc::channel(100);
        let (_reader, pipe) = io::pipe().unwrap();
        let writer = start(Box::new(pipe), Next::default(), None, entries, Arc::default(), shutdown.clone()).unwrap();
        let writer = tasks.spawn_task("audit", writer);
        queue.send(Entry::Line(vec![b'x'; 1 << 20])).await.unwrap();
        // Taken, and so being written.
        while queue.capacity() < queue.max_capacity() {
            tokio::task::yield_now().await;
        }
        shutdown.close();
        writer.await.unwrap();
    }
}
