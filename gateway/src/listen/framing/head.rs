//! The head of a request, line by line as it arrives. What the server library would refuse is refused here too, so that
//! the answer is ours: with a body that says why, and a record.

use std::ops::Range;

use http::{Method, Uri, uri::PathAndQuery};
use types::limits;

use super::At;
use crate::request::{address::AddressError, refusal::Kind};

/// The longest head without a long target, in bytes.
pub const HEAD_BYTES: usize = limits::HEADER_LIST_BYTES + limits::PLAIN_TARGET_BYTES + 16 * 1024;
/// The longest request line, in bytes.
const LINE_BYTES: usize = METHOD_BYTES + 1 + limits::TARGET_BYTES + " HTTP/1.1\r\n".len();
/// Bytes of a target that are kept for the record of a refusal.
const RECORDED_BYTES: usize = 4 * 1024;
/// Bytes of a long query that are read at once.
const PIECE_BYTES: usize = 32 * 1024;
/// The longest method, in bytes.
const METHOD_BYTES: usize = 64;

/// The longest header name, in bytes, which is the HTTP library's.
const NAME_BYTES: usize = 32 * 1024;

/// What is wrong with a request head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// `\n` without `\r`, or `\r` without `\n`.
    LineEnd,
    /// A header that goes on in the next line.
    Folded,
    /// A header line without a name and a colon right behind it.
    Name,
    /// A control character in a header's value.
    Value,
    /// Both `Content-Length` and `Transfer-Encoding`, a means of request smuggling (RFC 9112 section 6.1).
    TwoLengths,
    /// Not one plain number.
    Length,
    /// Not `chunked`, once, in HTTP/1.1.
    Coding,
    /// `#` in the target.
    Fragment,
    /// A character that no target has, or that the HTTP library does not take.
    Target,
    /// A target over [`limits::TARGET_BYTES`], or a path over [`limits::PLAIN_TARGET_BYTES`].
    LongTarget,
    /// One long target too many.
    LongTargets,
    /// Not `METHOD target HTTP/1.x`.
    RequestLine,
    /// More headers than are taken.
    Count,
    /// More bytes than are taken.
    Size,
    /// The connection ended first.
    Unfinished,
    /// It did not arrive in time.
    Slow,
}

impl Fault {
    /// What the user is told.
    pub fn kind(self) -> Kind {
        Kind::BadRequest(match self {
            Self::Slow => return Kind::HeadTimeout,
            Self::LongTarget => return Kind::Address(AddressError::TooLong),
            Self::LongTargets => {
                return Kind::Limit { name: "long request targets at once", value: limits::LONG_TARGETS.into() };
            }
            Self::Count => return Kind::HeadTooLarge { name: "headers", value: limits::HEADER_COUNT },
            Self::Size => return Kind::HeadTooLarge { name: "header bytes", value: limits::HEADER_LIST_BYTES },
            Self::LineEnd => "the request cannot be read as HTTP/1.1: lines end in CR LF",
            Self::Folded => "a header goes on in the next line",
            Self::Name => "a header line is not a name, colon and value",
            Self::Value => "a header's value has a control character",
            Self::TwoLengths => "a request has Content-Length or Transfer-Encoding, not both",
            Self::Length => "Content-Length must be one whole number, once",
            Self::Coding => "the only transfer coding taken is chunked, once, in HTTP/1.1",
            Self::Fragment => "the request target has a fragment",
            Self::Target => "the request target has a character that must be percent-encoded",
            Self::RequestLine => {
                "the request cannot be read as HTTP/1.1: the request line is not `METHOD target HTTP/1.1`"
            }
            Self::Unfinished => "the connection ended within the request head",
        })
    }
}

/// A head that is refused, with what of it goes into records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Faulty {
    /// The fault that was found.
    pub fault: Fault,
    /// Its method, where the request line could be read.
    pub method: String,
    /// Its target, where the request line could be read.
    pub target: String,
}

/// A head under way.
#[derive(Default)]
pub(super) struct Head {
    bytes: Vec<u8>,
    /// Where the line under way begins.
    line: usize,
    /// Lines that are whole.
    lines: usize,
    /// Where the target is, if it is over [`limits::PLAIN_TARGET_BYTES`].
    long: Option<Range<usize>>,
    lengths: Lengths,
}

impl Head {
    /// Whether no byte of it has come yet.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Takes bytes up to the empty line at the end, which says what follows, or up to the first fault.
    pub fn take(&mut self, bytes: &[u8]) -> (usize, Option<Result<At, Fault>>) {
        for (index, byte) in bytes.iter().enumerate() {
            // Empty lines before a request are skipped (RFC 9112 section 2.2).
            if self.bytes.is_empty() && matches!(byte, b'\r' | b'\n') {
                continue;
            }
            self.bytes.push(*byte);
            let done = match byte {
                b'\n' => self.line_ended(),
                _ if self.lines == 0 && self.bytes.len() > LINE_BYTES => Some(Err(Fault::LongTarget)),
                _ if self.lines > 0 && self.bytes.len() > self.bound() => Some(Err(Fault::Size)),
                _ => None,
            };
            if done.is_some() {
                return (index + 1, done);
            }
        }
        // Garbage need not have lines at all.
        let early = if self.lines == 0 { implausible(&self.bytes) } else { None };
        (bytes.len(), early.map(Err))
    }

    /// How long it may be, of a known target.
    fn bound(&self) -> usize {
        HEAD_BYTES + self.long.as_ref().map_or(0, Range::len)
    }

    /// Whether it has a target over [`limits::PLAIN_TARGET_BYTES`], or has come to have one.
    pub fn is_long(&self) -> bool {
        self.long.is_some() || (self.lines == 0 && self.bytes.len() > METHOD_BYTES + limits::PLAIN_TARGET_BYTES)
    }

    fn line_ended(&mut self) -> Option<Result<At, Fault>> {
        let line = &self.bytes[self.line..];
        let Some(line) = line.strip_suffix(b"\r\n") else { return Some(Err(Fault::LineEnd)) };
        if line.iter().any(|b| matches!(b, b'\r' | 0)) {
            return Some(Err(Fault::LineEnd));
        }
        if line.is_empty() {
            return Some(self.lengths.follows());
        }
        let read = match self.lines {
            0 => request_line(line).map(|(version_10, long)| {
                self.lengths.version_10 = version_10;
                self.long = long;
            }),
            read if read > limits::HEADER_COUNT => Err(Fault::Count),
            _ => self.lengths.header(line),
        };
        self.lines += 1;
        self.line = self.bytes.len();
        read.err().map(Err)
    }

    /// The head as it came, and a new one begins. A long target comes apart, and the head has its path alone.
    pub fn whole(&mut self) -> (Vec<u8>, Option<Vec<u8>>) {
        let Self { mut bytes, long, .. } = std::mem::take(self);
        let long = long.map(|Range { start, end }| {
            let target = bytes[start..end].to_vec();
            bytes.drain(start + path_bytes(&target)..end);
            bytes.shrink_to_fit();
            target
        });
        (bytes, long)
    }

    /// What of it goes into records. Its lines may hold anything, so only a request line that looks like one does.
    pub fn faulty(&self, fault: Fault) -> Faulty {
        let line = self.bytes.split(|b| matches!(b, b'\r' | b'\n')).next().unwrap_or_default();
        let mut words = line.splitn(3, |b| *b == b' ');
        let (method, target) = match (words.next(), words.next()) {
            (Some(method), Some(target)) if method.iter().all(u8::is_ascii_uppercase) && target.starts_with(b"/") => {
                let target = &target[..target.len().min(RECORDED_BYTES)];
                (String::from_utf8_lossy(method).into_owned(), String::from_utf8_lossy(target).into_owned())
            }
            _ => Default::default(),
        };
        Faulty { fault, method, target }
    }
}

/// What an unfinished request line cannot become one with.
fn implausible(line: &[u8]) -> Option<Fault> {
    let space = line.iter().position(|b| *b == b' ');
    let method = &line[..space.unwrap_or(line.len())];
    if method.len() > METHOD_BYTES || !method.iter().all(is_token) {
        return Some(Fault::RequestLine);
    }
    let target = space.map(|at| &line[at + 1..])?;
    let version = " HTTP/1.1\r".len();
    let long = target.len() > limits::TARGET_BYTES + version
        || (target.len() > limits::PLAIN_TARGET_BYTES + version && path_bytes(target) > limits::PLAIN_TARGET_BYTES);
    long.then_some(Fault::LongTarget)
}

/// Bytes before the query; looks no further than a path may reach.
fn path_bytes(target: &[u8]) -> usize {
    let most = target.len().min(limits::PLAIN_TARGET_BYTES + 1);
    target[..most].iter().position(|b| *b == b'?').unwrap_or(most)
}

/// Whether it is of HTTP/1.0, and where a long target is.
fn request_line(line: &[u8]) -> Result<(bool, Option<Range<usize>>), Fault> {
    let mut words = line.split(|b| *b == b' ');
    let (method, target, version) = match (words.next(), words.next(), words.next(), words.next()) {
        (Some(method), Some(target), Some(version @ (b"HTTP/1.1" | b"HTTP/1.0")), None) => (method, target, version),
        _ => return Err(Fault::RequestLine),
    };
    if method.is_empty() || method.len() > METHOD_BYTES || !method.iter().all(is_token) || target.is_empty() {
        return Err(Fault::RequestLine);
    }
    if Method::from_bytes(method).is_err() {
        return Err(Fault::RequestLine);
    }
    if target.contains(&b'#') {
        return Err(Fault::Fragment);
    }
    if target.len() > limits::TARGET_BYTES {
        return Err(Fault::LongTarget);
    }
    let version_10 = version == b"HTTP/1.0";
    if target.len() > limits::PLAIN_TARGET_BYTES {
        long_target(target)?;
        let start = method.len() + 1;
        return Ok((version_10, Some(start..start + target.len())));
    }
    // By the library's own reader. It takes neither control characters, `<`, `>`, backtick and the like nor what is not
    // UTF-8.
    Uri::try_from(target).map_err(|_| Fault::Target)?;
    Ok((version_10, None))
}

/// The same for a target that the library's reader takes in pieces only: a path, and a query in ASCII.
fn long_target(target: &[u8]) -> Result<(), Fault> {
    let path = path_bytes(target);
    if path > limits::PLAIN_TARGET_BYTES || target.first() != Some(&b'/') {
        return Err(Fault::LongTarget);
    }
    let (path, query) = target.split_at(path);
    PathAndQuery::try_from(path).map_err(|_| Fault::Target)?;
    let mut piece = Vec::with_capacity(PIECE_BYTES + 2);
    for part in query[1..].chunks(PIECE_BYTES) {
        piece.clear();
        piece.extend_from_slice(b"/?");
        piece.extend_from_slice(part);
        if !part.is_ascii() || PathAndQuery::try_from(&*piece).is_err() {
            return Err(Fault::Target);
        }
    }
    Ok(())
}

fn is_token(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte)
}

#[derive(Default)]
struct Lengths {
    length: Option<u64>,
    chunked: bool,
    upgrade: bool,
    version_10: bool,
}

impl Lengths {
    fn header(&mut self, line: &[u8]) -> Result<(), Fault> {
        if matches!(line.first(), Some(b' ' | b'\t')) {
            return Err(Fault::Folded);
        }
        let colon = line.iter().position(|b| *b == b':').ok_or(Fault::Name)?;
        let (name, value) = (&line[..colon], &line[colon + 1..]);
        if name.is_empty() || !name.iter().all(is_token) {
            return Err(Fault::Name);
        }
        if name.len() > NAME_BYTES {
            return Err(Fault::Size);
        }
        if value.iter().any(|b| (*b < b' ' && *b != b'\t') || *b == 0x7f) {
            return Err(Fault::Value);
        }
        let value = value.trim_ascii();
        if name.eq_ignore_ascii_case(b"content-length") {
            let digits = (1..=18).contains(&value.len()) && value.iter().all(u8::is_ascii_digit);
            let number = std::str::from_utf8(value).ok().filter(|_| digits).and_then(|text| text.parse().ok());
            if number.is_none() || self.length.is_some() {
                return Err(Fault::Length);
            }
            self.length = number;
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if self.version_10 || self.chunked || !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Fault::Coding);
            }
            self.chunked = true;
        } else if name.eq_ignore_ascii_case(b"upgrade") {
            self.upgrade = true;
        }
        Ok(())
    }

    fn follows(&self) -> Result<At, Fault> {
        Ok(match (self.length, self.chunked) {
            (Some(_), true) => return Err(Fault::TwoLengths),
            (None, true) => At::ChunkLine,
            (Some(length @ 1..), false) => At::Body(length),
            _ if self.upgrade => At::Held,
            _ => At::Head,
        })
    }
}
