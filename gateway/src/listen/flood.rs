//! Counts the frames of a user's HTTP/2 connection below the HTTP library, which takes PING, SETTINGS, PRIORITY,
//! WINDOW_UPDATE and RST_STREAM without any bound: cheap to send, and each costs us a turn.
//!
//! Such frames are paid from a budget that time refills slowly, and what is useful generously: a request, and each
//! frame of an answer, pay for what clients say about them. Who is out of budget is told so (`ENHANCE_YOUR_CALM`) and
//! cut.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

/// Frames that a connection may send for nothing, at once.
const BUDGET: u32 = 10_000;
/// The budget grows by one in this time.
const REFILL: Duration = Duration::from_millis(20);
/// A request pays for its priority, its cancellation and the windows of its body's end.
const REQUEST_EARNS: u32 = 4;
/// A frame of an answer pays for the windows that its reader gives back, on the stream and the connection...
const ANSWER_EARNS: u32 = 4;
/// ...and so does each of these many bytes of it: Go gives them back by 4 KiB, each as two frames.
const BYTES_EARN: u32 = 1024;
/// SETTINGS may change the windows of all streams: each is dear.
const SETTINGS_COST: u32 = 10;

/// Requests that a client may take back before they are answered, at once: all that it may have open (CVE-2023-44487).
/// The library bounds those alone that nobody has begun to serve.
pub const CANCELLED: u32 = 4096;
/// And at least so many, whatever others at the same address did: a client may take back what was answered long ago, as
/// many watches at once.
const CANCELLED_LEAST: u32 = 1024;
/// One more may be taken back in this time; each answer pays for one too.
const CANCELLED_REFILL: Duration = Duration::from_millis(20);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const PREFACE_BYTES: u32 = 24;
const HEADER_BYTES: usize = 9;
/// A GOAWAY with last stream 0 and code 0xb (RFC 9113 section 6.8); the last stream is written into it.
const GOAWAY: [u8; 17] = [0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xb];
const GOAWAY_STREAM: std::ops::Range<usize> = 9..13;

/// A frame's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Frame {
    kind: u8,
    flags: u8,
    length: u32,
    stream: u32,
}

/// Finds the frames in a stream of bytes, however it is cut.
#[derive(Debug)]
struct Scanner {
    header: [u8; HEADER_BYTES],
    have: usize,
    /// Bytes to pass over.
    skip: u32,
}

impl Scanner {
    fn new(skip: u32) -> Self {
        Self { header: [0; HEADER_BYTES], have: 0, skip }
    }

    fn between_frames(&self) -> bool {
        self.have == 0 && self.skip == 0
    }

    /// The next frame whose header ends in `bytes`, which are taken from the front.
    fn next(&mut self, bytes: &mut &[u8]) -> Option<Frame> {
        loop {
            let skip = bytes.len().min(self.skip as usize);
            *bytes = &bytes[skip..];
            self.skip -= skip as u32;
            let part = bytes.len().min(HEADER_BYTES - self.have);
            if part == 0 {
                return None;
            }
            self.header[self.have..self.have + part].copy_from_slice(&bytes[..part]);
            *bytes = &bytes[part..];
            self.have += part;
            if self.have == HEADER_BYTES {
                let [a, b, c, kind, flags, stream @ ..] = self.header;
                self.have = 0;
                self.skip = u32::from_be_bytes([0, a, b, c]);
                return Some(Frame { kind, flags, length: self.skip, stream: u32::from_be_bytes(stream) & !(1 << 31) });
            }
        }
    }
}

/// What a connection may still send for nothing.
#[derive(Debug)]
struct Budget {
    left: u32,
    most: u32,
    refilled: Instant,
    refill: Duration,
}

impl Budget {
    fn of(most: u32, refill: Duration) -> Self {
        Self { left: most, most, refilled: Instant::now(), refill }
    }

    fn earn(&mut self, frames: u32) {
        self.left = (self.left + frames).min(self.most);
    }

    /// Whether there was enough.
    fn pay(&mut self, frames: u32) -> bool {
        if self.left < frames {
            let now = Instant::now();
            let grown = now.duration_since(self.refilled).as_millis() / self.refill.as_millis();
            self.refilled = now;
            self.earn(u32::try_from(grown).unwrap_or(self.most).min(self.most));
        }
        match self.left.checked_sub(frames) {
            Some(left) => {
                self.left = left;
                true
            }
            None => false,
        }
    }

    /// Whether the connection may go on after a frame of the client's.
    fn received(&mut self, frame: Frame) -> bool {
        match frame.kind {
            HEADERS => {
                self.earn(REQUEST_EARNS);
                true
            }
            // The library bounds small ones, and the frames of a head.
            DATA if frame.length > 0 || frame.flags & END_STREAM != 0 => true,
            CONTINUATION => true,
            SETTINGS => self.pay(SETTINGS_COST),
            _ => self.pay(1),
        }
    }
}

/// A user's HTTP/2 connection, its frames counted.
pub struct Frames<T> {
    io: T,
    inbound: Scanner,
    outbound: Scanner,
    budget: Budget,
    cancelled: Budget,
    last_stream: u32,
    flooded: bool,
}

impl<T> Frames<T> {
    /// Of a connection on which nothing was read yet, and that may take back `cancelled` requests that were not
    /// answered: [`CANCELLED`], or fewer.
    pub fn new(io: T, cancelled: u32) -> Self {
        Self {
            io,
            inbound: Scanner::new(PREFACE_BYTES),
            outbound: Scanner::new(0),
            budget: Budget::of(BUDGET, REFILL),
            cancelled: Budget::of(cancelled, CANCELLED_REFILL),
            last_stream: 0,
            flooded: false,
        }
    }

    /// Whether the budget lasted.
    fn scan_inbound(&mut self, mut bytes: &[u8]) -> bool {
        while let Some(frame) = self.inbound.next(&mut bytes) {
            if frame.kind == HEADERS {
                self.last_stream = self.last_stream.max(frame.stream);
            }
            if !self.budget.received(frame) || (frame.kind == RST_STREAM && !self.cancelled.pay(1)) {
                return false;
            }
        }
        true
    }

    fn scan_outbound(&mut self, mut bytes: &[u8]) {
        while let Some(frame) = self.outbound.next(&mut bytes) {
            match frame.kind {
                HEADERS => self.cancelled.earn(1),
                DATA => self.budget.earn(ANSWER_EARNS + frame.length / BYTES_EARN),
                // Ours, and not the answer to one: the client owes it.
                PING if frame.flags & ACK == 0 => self.budget.earn(1),
                _ => {}
            }
        }
    }
}

impl<T: AsyncWrite + Unpin> Frames<T> {
    /// Best effort, at once: the client may read nothing, and within a frame nothing can be said.
    fn say_goodbye(&mut self, cx: &mut Context<'_>) {
        if self.outbound.between_frames() {
            let mut goaway = GOAWAY;
            goaway[GOAWAY_STREAM].copy_from_slice(&self.last_stream.to_be_bytes());
            let _ = Pin::new(&mut self.io).poll_write(cx, &goaway);
            let _ = Pin::new(&mut self.io).poll_flush(cx);
        }
    }
}

/// How many requests a client may take back, where its address would have this part of [`CANCELLED`].
pub fn bound(part: u32) -> u32 {
    part.max(CANCELLED_LEAST)
}

/// Of a kind that nothing else on the way gives: the HTTP library keeps an error's kind and text, and nothing more.
fn flooded() -> io::Error {
    io::Error::new(
        io::ErrorKind::QuotaExceeded,
        "the client floods the connection with HTTP/2 frames that ask for nothing",
    )
}

impl<T: AsyncRead + AsyncWrite + Unpin> AsyncRead for Frames<T> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.flooded {
            return Poll::Ready(Err(flooded()));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        if self.scan_inbound(&buffer.filled()[before..]) {
            return Poll::Ready(Ok(()));
        }
        buffer.set_filled(before);
        self.flooded = true;
        self.say_goodbye(cx);
        Poll::Ready(Err(flooded()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Frames<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.flooded {
            return Poll::Ready(Err(flooded()));
        }
        let written = ready!(Pin::new(&mut self.io).poll_write(cx, bytes))?;
        self.scan_outbound(&bytes[..written]);
        Poll::Ready(Ok(written))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.flooded {
            return Poll::Ready(Err(flooded()));
        }
        let written = ready!(Pin::new(&mut self.io).poll_write_vectored(cx, parts))?;
        let mut left = written;
        for part in parts {
            let taken = left.min(part.len());
            self.scan_outbound(&part[..taken]);
            left -= taken;
        }
        Poll::Ready(Ok(written))
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    const WINDOW_UPDATE: u8 = 8;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    /// After how many of `one` the connection is over, at most `most`; `each` is what is answered to each.
    async fn flood(one: &[u8], answer: &[u8], most: u32) -> Option<u32> {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut frames = Frames::new(near, CANCELLED);
        far.write_all(PREFACE).await.unwrap();
        let mut preface = [0; 24];
        frames.read_exact(&mut preface).await.unwrap();
        let (mut seen, mut sink) = (vec![0; one.len()], vec![0; answer.len()]);
        for sent in 1..=most {
            far.write_all(one).await.unwrap();
            if frames.read_exact(&mut seen).await.is_err() {
                assert!(frames.write_all(answer).await.is_err() || answer.is_empty());
                let mut said = [0; GOAWAY.len()];
                far.read_exact(&mut said).await.unwrap();
                assert_eq!((said[3], said[16]), (7, 0xb), "{said:?}");
                return Some(sent);
            }
            assert_eq!(seen, one);
            frames.write_all(answer).await.unwrap();
            far.read_exact(&mut sink).await.unwrap();
        }
        None
    }

    #[tokio::test(start_paused = true)]
    async fn frames_that_ask_for_nothing_are_bounded() {
        for (kind, payload, cost) in
            [(6, vec![0; 8], 1), (SETTINGS, vec![0, 4, 0, 0, 0, 1], SETTINGS_COST), (2, vec![0; 5], 1)]
        {
            assert_eq!(flood(&frame(kind, 0, 0, &payload), &[], 100_000).await, Some(BUDGET / cost + 1), "{kind}");
        }
        for (kind, payload) in [(WINDOW_UPDATE, vec![0, 0, 0, 1]), (DATA, vec![]), (77, vec![])] {
            assert_eq!(flood(&frame(kind, 0, 1, &payload), &[], 100_000).await, Some(BUDGET + 1), "{kind}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_useful_work_brings_with_it_is_not() {
        // A reader that gives back both windows for each frame of an answer.
        let windows = [frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]), frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])].concat();
        assert_eq!(flood(&windows, &frame(DATA, 0, 1, b"event"), 50_000).await, None);
        // The same of Go, by 4 KiB, for a long answer.
        assert_eq!(flood(&windows.repeat(16), &frame(DATA, 0, 1, &[0; 65536]), 2_000).await, None);
        // Requests that are cancelled, with a priority each.
        let cancelled =
            [frame(HEADERS, 4, 1, b"head"), frame(2, 0, 1, &[0; 5]), frame(3, 0, 1, &[0, 0, 0, 8])].concat();
        assert_eq!(flood(&cancelled, &frame(HEADERS, 4, 1, b"head"), 50_000).await, None);
        assert_eq!(flood(&frame(DATA, 0, 1, b"x"), &[], 50_000).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_are_taken_back_before_their_answers_are_bounded() {
        let taken_back = [frame(HEADERS, 4, 1, b"head"), frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])].concat();
        assert_eq!(flood(&taken_back, &[], 100_000).await, Some(CANCELLED + 1));
        // Time gives some back.
        let mut cancelled = Budget { left: 0, ..Budget::of(CANCELLED, CANCELLED_REFILL) };
        for _ in 0..10_000 {
            tokio::time::advance(CANCELLED_REFILL).await;
            assert!(cancelled.pay(1));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_says_something_now_and_then_lives() {
        let mut budget = Budget { left: 0, ..Budget::of(BUDGET, REFILL) };
        for _ in 0..100_000 {
            tokio::time::advance(REFILL).await;
            assert!(budget.pay(1));
        }
        assert!(!budget.pay(1));
    }

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let bytes = [PREFACE, &frame(6, 0, 0, &[9; 8]), &frame(DATA, 1, 3, &[6; 300]), &frame(4, 1, 0, &[])].concat();
        for step in 1..bytes.len() {
            let (mut scanner, mut found) = (Scanner::new(PREFACE_BYTES), Vec::new());
            for mut part in bytes.chunks(step) {
                while let Some(frame) = scanner.next(&mut part) {
                    found.push((frame.kind, frame.flags, frame.length, frame.stream));
                }
            }
            assert_eq!(found, [(6, 0, 8, 0), (0, 1, 300, 3), (4, 1, 0, 0)], "{step}");
            assert!(scanner.between_frames());
        }
    }
}
