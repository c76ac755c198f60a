//! A second, strict reader of HTTP/1.1 framing beside the server library's own.
//!
//! The library is lenient where a gateway must not be: it prefers `Transfer-Encoding` where `Content-Length` is there
//! too, cuts off a fragment, takes bare line feeds. And what it refuses it answers itself, without a body and a record.
//! [`Framing`] sits under it. Heads are given on whole; in the place of a faulty one goes a head of ours, with a note
//! of what is wrong, so that the service refuses it as it refuses all else, and no byte behind a faulty head is read
//! (docs/threats.md). Bodies pass as they come. What follows an upgrade request is held back until the answer is known,
//! so that bytes glued to it are delivered to whom they belong. A user who ends their side behind a request still gets
//! its answer, but for what Kubernetes calls long running: there it is how they go away.

mod head;
mod notes;
mod write;

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf as _, Bytes};
use tokio::{
    io::{AsyncRead, ReadBuf},
    time::Sleep,
};

use self::head::Head;
pub use self::{
    head::{Fault, Faulty, HEAD_BYTES},
    notes::{InTurn, Note, Notes, Turn},
};
use crate::{admission::limit::LongTargets, places::Admission};

/// What the library reads in the place of a faulty head.
const STAND_IN: &[u8] = b"GET / HTTP/1.1\r\nhost: faulty\r\nconnection: close\r\n\r\n";
/// The longest line of a chunk's size, with its extensions, in bytes.
const CHUNK_LINE_BYTES: usize = 256;
/// All trailers of a request, which are dropped, in bytes.
const TRAILER_BYTES: usize = 8 * 1024;
/// What may be held back behind an upgrade request, in bytes; more stays in the socket.
const HELD_BYTES: usize = 64 * 1024;

/// How long the end of the user's side is kept from the library at the most. Who is gone altogether is noticed by the
/// next bytes that are written, and an answer that has begun may have none for long.
const HALF_CLOSED: Duration = Duration::from_secs(600);

/// Where in the byte stream the reader is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// In a head.
    Head,
    /// In a body, this many bytes before its end.
    Body(u64),
    /// In the line of a chunk's size.
    ChunkLine,
    /// In a chunk and the CR LF behind it.
    Chunk(u64),
    /// In the trailers.
    Trailers,
    /// Behind an upgrade request that is not answered yet.
    Held,
    /// In another protocol.
    Opaque,
    /// Behind a faulty head: nothing more is read.
    Cut,
    /// In a body whose framing is broken, and why: the connection ends.
    Broken(&'static str),
}

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// A head, from its first byte on.
    pub head: Duration,
    /// The way out of an answer of our own. What is relayed may stand still as long as both ends like.
    pub answer: Duration,
}

/// The reader, between the socket and the server library.
pub struct Framing<T> {
    io: T,
    notes: Notes,
    at: At,
    head: Head,
    /// A line of a body's framing under way.
    line: Vec<u8>,
    heads: u64,
    /// A head, to be given on before all else.
    ready: Bytes,
    /// Read from the socket and not followed yet.
    held: Vec<u8>,
    eof: bool,
    half_closed: Option<Pin<Box<Sleep>>>,
    timeouts: Timeouts,
    head_deadline: Option<Pin<Box<Sleep>>>,
    answer_deadline: Option<Pin<Box<Sleep>>>,
    linger: Option<(usize, Pin<Box<Sleep>>)>,
    long_targets: LongTargets,
    /// Of the head under way, if its target is long.
    place: Option<Admission>,
}

/// A long target, which holds its place for as long as any of its bytes is held.
struct LongTarget {
    bytes: Vec<u8>,
    _place: Admission,
}

impl AsRef<[u8]> for LongTarget {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl<T> Framing<T> {
    /// Reads from `io`.
    pub fn new(io: T, notes: Notes, timeouts: Timeouts, long_targets: LongTargets) -> Self {
        Self {
            io,
            long_targets,
            place: None,
            notes,
            at: At::Head,
            head: Head::default(),
            line: Vec::new(),
            heads: 0,
            ready: Bytes::new(),
            held: Vec::new(),
            eof: false,
            half_closed: None,
            timeouts,
            head_deadline: None,
            answer_deadline: None,
            linger: None,
        }
    }

    /// The socket under a connection that is another protocol's from here on, and what was read of that.
    pub fn into_parts(self) -> (T, Bytes) {
        let early = if self.held.is_empty() { self.ready } else { [&*self.ready, &self.held].concat().into() };
        (self.io, early)
    }

    /// Follows `bytes` up to the end of the next head: how many of them may be given on as they are, and how many were
    /// taken; between the two is the head. Broken framing is an error behind what came before it.
    fn follow(&mut self, bytes: &[u8]) -> (usize, usize) {
        let mut done = 0;
        while done < bytes.len() && self.at != At::Head {
            match self.step(&bytes[done..]) {
                Ok(0) => break,
                Ok(taken) => done += taken,
                Err(why) => {
                    self.at = At::Broken(why);
                    break;
                }
            }
        }
        if self.at != At::Head {
            return (done, done);
        }
        let (taken, end) = self.head.take(&bytes[done..]);
        if self.head.is_long() && self.place.is_none() && !matches!(end, Some(Err(_))) {
            self.place = self.long_targets.take();
            if self.place.is_none() {
                self.refuse(Fault::LongTargets);
                return (done, done + taken);
            }
        }
        match end {
            Some(Ok(at)) => self.head_ended(at),
            Some(Err(fault)) => self.refuse(fault),
            None => {}
        }
        (done, done + taken)
    }

    fn step(&mut self, rest: &[u8]) -> Result<usize, &'static str> {
        Ok(match self.at {
            At::Body(left) => {
                let taken = clamp(left, rest.len());
                let left = left - taken as u64;
                self.at = if left == 0 { At::Head } else { At::Body(left) };
                taken
            }
            At::ChunkLine => self.chunk_line(rest)?,
            At::Chunk(left) => {
                let taken = clamp(left, rest.len());
                let left = left - taken as u64;
                self.at = if left == 0 { At::ChunkLine } else { At::Chunk(left) };
                taken
            }
            At::Trailers => self.trailers(rest)?,
            At::Opaque => rest.len(),
            At::Head | At::Held | At::Cut | At::Broken(_) => 0,
        })
    }

    fn head_ended(&mut self, follows: At) {
        self.heads += 1;
        self.head_deadline = None;
        let (head, long) = self.head.whole();
        self.ready = head.into();
        let note = match (long, self.place.take()) {
            (Some(bytes), Some(place)) => Note::Long(Bytes::from_owner(LongTarget { bytes, _place: place })),
            _ => Note::Fine,
        };
        self.notes.lock().heads.push_back(note);
        self.at = follows;
    }

    /// The head is refused; nothing behind it is read.
    fn refuse(&mut self, fault: Fault) {
        let faulty = self.head.faulty(fault);
        tracing::debug!(?fault, "head refused");
        self.heads += 1;
        self.head_deadline = None;
        self.head = Head::default();
        self.place = None;
        self.ready = Bytes::from_static(STAND_IN);
        self.notes.lock().heads.push_back(Note::Faulty(faulty));
        self.at = At::Cut;
    }

    fn chunk_line(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        let taken = self.take_line(bytes, CHUNK_LINE_BYTES)?;
        if !self.line.ends_with(b"\n") {
            return Ok(taken);
        }
        let line = std::mem::take(&mut self.line);
        let line = line.strip_suffix(b"\r\n").ok_or("a chunk's line does not end in CR LF")?;
        let digits = line.iter().take_while(|b| b.is_ascii_hexdigit()).count();
        let extension = &line[digits..];
        let fine = (1..=15).contains(&digits)
            && (extension.is_empty() || extension[0] == b';')
            && !extension.iter().any(|b| *b < b' ' || *b == 0x7f);
        let size = std::str::from_utf8(&line[..digits]).ok().and_then(|text| u64::from_str_radix(text, 16).ok());
        match (fine, size) {
            (true, Some(0)) => self.at = At::Trailers,
            (true, Some(size)) => self.at = At::Chunk(size + 2),
            _ => return Err("a chunk's size cannot be read"),
        }
        Ok(taken)
    }

    fn trailers(&mut self, bytes: &[u8]) -> Result<usize, &'static str> {
        let taken = self.take_line(bytes, TRAILER_BYTES)?;
        if self.line.ends_with(b"\n") && !self.line.ends_with(b"\r\n") {
            return Err("a trailer does not end in CR LF");
        }
        let ends = self.line == b"\r\n" || self.line.ends_with(b"\n\r\n");
        if ends {
            self.line.clear();
            self.at = At::Head;
        }
        Ok(taken)
    }

    /// Moves bytes to `line` up to and with the next line feed.
    fn take_line(&mut self, bytes: &[u8], limit: usize) -> Result<usize, &'static str> {
        let taken = bytes.iter().position(|b| *b == b'\n').map_or(bytes.len(), |at| at + 1);
        if self.line.len() + taken > limit {
            return Err("a line of the body's framing is too long");
        }
        self.line.extend_from_slice(&bytes[..taken]);
        Ok(taken)
    }

    /// Gives on what is ready or was held, following it. Returns whether anything was given.
    fn release(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        if !self.ready.is_empty() {
            let room = self.ready.len().min(buffer.remaining());
            buffer.put_slice(&self.ready[..room]);
            self.ready.advance(room);
            return true;
        }
        if self.held.is_empty() || matches!(self.at, At::Held | At::Cut | At::Broken(_)) {
            return false;
        }
        let room = self.held.len().min(buffer.remaining());
        let held = std::mem::take(&mut self.held);
        let (given, taken) = self.follow(&held[..room]);
        buffer.put_slice(&held[..given]);
        self.held = held[taken..].to_vec();
        given > 0
    }

    /// Ready when the library may know that the user's side has ended.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.at != At::Head || !self.notes.still_answering(self.heads, cx) {
            return Poll::Ready(());
        }
        self.half_closed.get_or_insert_with(|| Box::pin(tokio::time::sleep(HALF_CLOSED))).as_mut().poll(cx)
    }

    fn poll_head_deadline(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.at != At::Head || self.head.is_empty() {
            self.head_deadline = None;
            return Poll::Pending;
        }
        let timeout = self.timeouts.head;
        let deadline = self.head_deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        deadline.as_mut().poll(cx)
    }
}

impl<T: AsyncRead + Unpin> Framing<T> {
    /// Behind an upgrade request: reads ahead, so that the user's going away is noticed, and gives nothing on.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.eof && self.held.len() < HELD_BYTES {
            let mut room = [0; 4096];
            let mut buffer = ReadBuf::new(&mut room);
            ready!(Pin::new(&mut self.io).poll_read(cx, &mut buffer))?;
            self.eof = buffer.filled().is_empty();
            self.held.extend_from_slice(buffer.filled());
        }
        // End of file alone is given on; behind bytes it waits for its turn.
        if self.eof && self.held.is_empty() { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Framing<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            if this.release(buffer) {
                return Poll::Ready(Ok(()));
            }
            match this.at {
                At::Held => match this.notes.decision(this.heads - 1, cx) {
                    Some(switched) => {
                        this.at = if switched { At::Opaque } else { At::Head };
                        continue;
                    }
                    None => return this.poll_held(cx),
                },
                At::Cut if this.ready.is_empty() => return Poll::Pending,
                At::Broken(why) => return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why))),
                _ => {}
            }
            if !this.ready.is_empty() || !this.held.is_empty() {
                continue;
            }
            if this.eof {
                if this.at == At::Head && !this.head.is_empty() {
                    this.refuse(Fault::Unfinished);
                    continue;
                }
                return this.poll_end(cx).map(Ok);
            }
            if this.poll_head_deadline(cx).is_ready() {
                this.refuse(Fault::Slow);
                continue;
            }
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.io).poll_read(cx, buffer))?;
            let fresh = &buffer.filled()[before..];
            this.eof = fresh.is_empty();
            let (given, taken) = this.follow(fresh);
            this.held.extend_from_slice(&fresh[taken..]);
            buffer.set_filled(before + given);
            if given > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

fn clamp(left: u64, available: usize) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(available)
}

#[cfg(test)]
mod tests;
