//! A second, strict reader of HTTP/1.1 framing beside the server library's own.
//!
//! The library is lenient where a gateway must not be: it prefers `Transfer-Encoding` where `Content-Length` is there too,
//! cuts off a fragment, takes bare line feeds. [`Framing`] sits under it, lets the bytes through and notes for each request
//! head what is wrong with it; the request is then refused before anything looks at it, and no byte behind such a head is
//! read (attacks 4.3). It also holds back what follows an upgrade request until the answer is known, so that bytes glued
//! to it are delivered to whom they belong.

mod write;

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use proto::limits;
use tokio::{
    io::{AsyncRead, ReadBuf},
    time::Sleep,
};

/// The longest head, in bytes.
pub const HEAD_BYTES: usize = limits::HEADER_LIST_BYTES + limits::TARGET_BYTES + 16 * 1024;
/// The longest line of a chunk's size, with its extensions, in bytes.
const CHUNK_LINE_BYTES: usize = 256;
/// All trailers of a request, which are dropped, in bytes.
const TRAILER_BYTES: usize = 8 * 1024;
/// What may be held back behind an upgrade request, in bytes; more stays in the socket.
const HELD_BYTES: usize = 64 * 1024;

/// What is wrong with a request head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `\n` without `\r`, or `\r` without `\n`.
    LineEnd,
    /// A header that goes on in the next line.
    Folded,
    /// A header line without a name and a colon right behind it.
    Name,
    /// Both lengths.
    TwoLengths,
    /// Not one plain number.
    Length,
    /// Not `chunked`, once.
    Coding,
    /// `#` in the target.
    Fragment,
    /// Not `METHOD target HTTP/1.x`.
    RequestLine,
    /// More headers than are taken.
    Count,
}

impl Fault {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Self::LineEnd => "lines end in CR LF",
            Self::Folded => "a header goes on in the next line",
            Self::Name => "a header line is no name, colon and value",
            Self::TwoLengths => "a request has Content-Length or Transfer-Encoding, not both",
            Self::Length => "Content-Length must be one whole number, once",
            Self::Coding => "the only transfer coding taken is chunked, once",
            Self::Fragment => "the request target has a fragment",
            Self::Count => "the request has too many headers",
            Self::RequestLine => "the request line is not `METHOD target HTTP/1.1`",
        }
    }
}

/// What was noted, shared with the service that answers the requests in turn.
#[derive(Clone, Default)]
pub struct Notes(Arc<Mutex<Noted>>);

#[derive(Default)]
struct Noted {
    faults: VecDeque<Option<Fault>>,
    served: u64,
    /// The latest request answered, and whether it changed protocols.
    answered: Option<(u64, bool)>,
    waker: Option<Waker>,
}

impl Notes {
    fn lock(&self) -> MutexGuard<'_, Noted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The service begins with the next request: its number, and what is wrong with its head.
    pub fn next(&self) -> (u64, Option<Fault>) {
        let mut noted = self.lock();
        let number = noted.served;
        noted.served += 1;
        (number, noted.faults.pop_front().flatten())
    }

    /// The request of this number is answered.
    pub fn answered(&self, number: u64, switched: bool) {
        let mut noted = self.lock();
        noted.answered = Some((number, switched));
        if let Some(waker) = noted.waker.take() {
            waker.wake();
        }
    }

    fn decision(&self, number: u64, cx: &Context<'_>) -> Option<bool> {
        let mut noted = self.lock();
        match noted.answered {
            Some((answered, switched)) if answered >= number => Some(switched && answered == number),
            _ => {
                noted.waker = Some(cx.waker().clone());
                None
            }
        }
    }
}

/// Where in the byte stream the reader is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum At {
    /// In a head.
    Head,
    /// In a body, so many bytes before its end.
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

/// The reader, between the socket and the server library.
pub struct Framing<T> {
    io: T,
    notes: Notes,
    at: At,
    line: Vec<u8>,
    heads: u64,
    /// Read from the socket and not given on yet.
    held: Vec<u8>,
    eof: bool,
    head_timeout: Duration,
    head_deadline: Option<Pin<Box<Sleep>>>,
    linger: Option<(usize, Pin<Box<Sleep>>)>,
    /// Written instead of an answer of the library's own.
    instead: Option<Bytes>,
}

impl<T> Framing<T> {
    /// Reads from `io`; a head may take `head_timeout` from its first byte on.
    pub fn new(io: T, notes: Notes, head_timeout: Duration) -> Self {
        Self {
            io,
            notes,
            at: At::Head,
            line: Vec::new(),
            heads: 0,
            held: Vec::new(),
            eof: false,
            head_timeout,
            head_deadline: None,
            linger: None,
            instead: None,
        }
    }

    /// Follows `bytes` and says how many of them may be given on now. Broken framing is an error behind what came
    /// before it.
    fn follow(&mut self, bytes: &[u8]) -> usize {
        let mut done = 0;
        while done < bytes.len() {
            match self.step(&bytes[done..]) {
                Ok(0) => break,
                Ok(taken) => done += taken,
                Err(why) => {
                    self.at = At::Broken(why);
                    break;
                }
            }
        }
        done
    }

    fn step(&mut self, rest: &[u8]) -> Result<usize, &'static str> {
        Ok(match self.at {
            At::Head => self.head(rest),
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
            At::Held | At::Cut | At::Broken(_) => 0,
        })
    }

    /// Collects a head up to its empty line.
    fn head(&mut self, bytes: &[u8]) -> usize {
        for (index, byte) in bytes.iter().enumerate() {
            // Empty lines before a request are skipped (RFC 9112 section 2.2).
            if self.line.is_empty() && matches!(byte, b'\r' | b'\n') {
                continue;
            }
            self.line.push(*byte);
            let ends = *byte == b'\n' && (self.line.ends_with(b"\n\n") || self.line.ends_with(b"\n\r\n"));
            if ends {
                let line = std::mem::take(&mut self.line);
                self.head_ended(&line);
                return index + 1;
            }
            if self.line.len() > HEAD_BYTES {
                // The library answers 431; nothing behind it is read.
                self.at = At::Cut;
                return index + 1;
            }
        }
        bytes.len()
    }

    fn head_ended(&mut self, head: &[u8]) {
        let number = self.heads;
        self.heads += 1;
        self.head_deadline = None;
        let (fault, at) = match read_head(head) {
            Ok(at) => (None, at),
            Err(fault) => (Some(fault), At::Cut),
        };
        tracing::trace!(number, ?fault, ?at, "head read");
        self.notes.lock().faults.push_back(fault);
        self.at = at;
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

    /// Gives on what was held, following it. Returns whether anything was.
    fn release(&mut self, buffer: &mut ReadBuf<'_>) -> bool {
        if self.held.is_empty() {
            return false;
        }
        let room = self.held.len().min(buffer.remaining());
        let held = std::mem::take(&mut self.held);
        let given = self.follow(&held[..room]);
        buffer.put_slice(&held[..given]);
        self.held = held[given..].to_vec();
        given > 0
    }

    fn poll_head_deadline(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if self.at != At::Head || self.line.is_empty() {
            self.head_deadline = None;
            return Poll::Pending;
        }
        let timeout = self.head_timeout;
        let deadline = self.head_deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
        deadline.as_mut().poll(cx).map(|()| io::Error::new(io::ErrorKind::TimedOut, "request head took too long"))
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
        loop {
            if this.at == At::Held {
                match this.notes.decision(this.heads - 1, cx) {
                    Some(switched) => this.at = if switched { At::Opaque } else { At::Head },
                    None => return this.poll_held(cx),
                }
            }
            match this.at {
                At::Cut => return Poll::Pending,
                At::Broken(why) => return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, why))),
                _ => {}
            }
            if this.release(buffer) {
                return Poll::Ready(Ok(()));
            }
            if !this.held.is_empty() {
                continue;
            }
            if this.eof {
                return Poll::Ready(Ok(()));
            }
            if let Poll::Ready(error) = this.poll_head_deadline(cx) {
                return Poll::Ready(Err(error));
            }
            let before = buffer.filled().len();
            ready!(Pin::new(&mut this.io).poll_read(cx, buffer))?;
            let fresh = &buffer.filled()[before..];
            if fresh.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let given = this.follow(fresh);
            this.held.extend_from_slice(&fresh[given..]);
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

/// Checks a whole head, its empty line included, and says what follows it.
fn read_head(head: &[u8]) -> Result<At, Fault> {
    let lines = head.strip_suffix(b"\r\n").ok_or(Fault::LineEnd)?;
    let mut lengths = Lengths::default();
    for (index, line) in lines.split_inclusive(|b| *b == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r\n").ok_or(Fault::LineEnd)?;
        if line.iter().any(|b| matches!(b, b'\r' | 0)) {
            return Err(Fault::LineEnd);
        }
        if index > limits::HEADER_COUNT {
            return Err(Fault::Count);
        }
        if index == 0 { request_line(line)? } else { lengths.header(line)? }
    }
    lengths.follows()
}

fn request_line(line: &[u8]) -> Result<(), Fault> {
    let mut words = line.split(|b| *b == b' ');
    match (words.next(), words.next(), words.next(), words.next()) {
        (Some(method), Some(target), Some(b"HTTP/1.1" | b"HTTP/1.0"), None)
            if !method.is_empty() && !target.is_empty() =>
        {
            if target.contains(&b'#') {
                Err(Fault::Fragment)
            } else {
                Ok(())
            }
        }
        _ => Err(Fault::RequestLine),
    }
}

#[derive(Default)]
struct Lengths {
    length: Option<u64>,
    chunked: bool,
    upgrade: bool,
}

impl Lengths {
    fn header(&mut self, line: &[u8]) -> Result<(), Fault> {
        if matches!(line.first(), Some(b' ' | b'\t')) {
            return Err(Fault::Folded);
        }
        let colon = line.iter().position(|b| *b == b':').ok_or(Fault::Name)?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        let token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
        if name.is_empty() || !name.iter().all(token) {
            return Err(Fault::Name);
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            let digits = (1..=18).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
            let number = std::str::from_utf8(value).ok().filter(|_| digits).and_then(|text| text.parse().ok());
            if number.is_none() || self.length.is_some() {
                return Err(Fault::Length);
            }
            self.length = number;
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Fault::Coding);
            }
            self.chunked = true;
        } else if name.eq_ignore_ascii_case(b"upgrade") {
            self.upgrade = true;
        }
        Ok(())
    }

    fn follows(self) -> Result<At, Fault> {
        Ok(match (self.length, self.chunked) {
            (Some(_), true) => return Err(Fault::TwoLengths),
            (None, true) => At::ChunkLine,
            (Some(length @ 1..), false) => At::Body(length),
            _ if self.upgrade => At::Held,
            _ => At::Head,
        })
    }
}

#[cfg(test)]
mod tests;
