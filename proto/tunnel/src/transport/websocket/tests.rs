//! Our end of a WebSocket beside a library's, beside itself in parts of any size, and beside peers that break the
//! rules.

use std::{
    io::{self, ErrorKind, IoSlice},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use proptest::{collection::vec, prelude::*};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role},
};

use super::{
    super::carrier::CarrierError,
    MESSAGE_BYTES, PATH, SUBPROTOCOL, accept_key, bare,
    frames::{self, Asked, Key, decode_in_parts},
    handshake,
    io::WebSocketIo,
};

#[derive(Default)]
struct Rings(AtomicUsize);

impl Wake for Rings {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn end<T: AsyncRead + AsyncWrite + Unpin>(io: T, client: bool) -> WebSocketIo<T> {
    if client { WebSocketIo::client(io, Bytes::new()) } else { WebSocketIo::server(io, Bytes::new()) }
}

async fn library(io: DuplexStream, client: bool) -> WebSocketStream<DuplexStream> {
    WebSocketStream::from_raw_socket(io, if client { Role::Client } else { Role::Server }, None).await
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// Lengths on both sides of each form of a head, and of a piece that is masked at once.
const SIZES: [usize; 10] = [1, 2, 125, 126, 127, 65_535, 65_536, 70_000, MESSAGE_BYTES, MESSAGE_BYTES + 1];

#[tokio::test]
async fn a_library_reads_what_we_write() {
    for client in [true, false] {
        for room in [64, 100_000] {
            let (here, there) = duplex(room);
            let (mut here, mut there) = (end(here, client), library(there, !client).await);
            for size in SIZES {
                let sent = pattern(size);
                let write = async {
                    here.write_all(&sent).await.unwrap();
                    here.flush().await.unwrap();
                };
                let read = async {
                    let mut got = Vec::new();
                    while got.len() < size {
                        got.extend_from_slice(&there.next().await.unwrap().unwrap().into_data());
                    }
                    got
                };
                let ((), got) = tokio::join!(write, read);
                assert!(got == sent, "{size} bytes, client: {client}");
            }
            let (done, close) = tokio::join!(here.shutdown(), there.next());
            done.unwrap();
            assert!(matches!(close, Some(Ok(Message::Close(Some(frame)))) if u16::from(frame.code) == 1000));
        }
    }
}

#[tokio::test]
async fn we_read_what_a_library_writes() {
    for client in [true, false] {
        let (here, there) = duplex(1000);
        let (mut here, mut there) = (end(here, client), library(there, !client).await);
        let write = async {
            for size in &SIZES[..9] {
                there.send(Message::Ping(Bytes::from_static(b"are you there"))).await.unwrap();
                there.send(Message::binary(pattern(*size))).await.unwrap();
            }
            there.close(None).await.unwrap();
            // The last ping's pong, or all of them, and then the answer to the close frame.
            let mut pongs = 0;
            while let Some(message) = there.next().await {
                match message.unwrap() {
                    Message::Pong(payload) => {
                        assert_eq!(payload, "are you there");
                        pongs += 1;
                    }
                    other => assert!(other.is_close(), "{other}"),
                }
            }
            assert!(pongs > 0);
        };
        let read = async {
            for size in &SIZES[..9] {
                let mut got = vec![0; *size];
                here.read_exact(&mut got).await.unwrap();
                assert!(got == pattern(*size), "{size} bytes");
            }
            assert_eq!(here.read(&mut [0; 8]).await.unwrap(), 0);
            assert_eq!(here.write(b"late").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
            here.shutdown().await.unwrap();
        };
        tokio::join!(write, read);
    }
}

/// A vectored write is one message, also of more slices than one message has, and of empty ones.
#[tokio::test]
async fn slices_travel_together() {
    for client in [true, false] {
        let (here, there) = duplex(1024);
        let (mut here, mut there) = (end(here, client), library(there, !client).await);
        let slices: Vec<_> = ["", "head", "", "body", ""].iter().map(|slice| IoSlice::new(slice.as_bytes())).collect();
        assert_eq!(here.write_vectored(&slices).await.unwrap(), 8);
        here.flush().await.unwrap();
        assert_eq!(there.next().await.unwrap().unwrap(), Message::binary("headbody"));
        let many = [IoSlice::new(b"x"); 20];
        let written = here.write_vectored(&many).await.unwrap();
        assert!((1..=20).contains(&written));
        here.flush().await.unwrap();
        assert_eq!(there.next().await.unwrap().unwrap().len(), written);
        let none = [IoSlice::new(b""); 20];
        assert_eq!(here.write_vectored(&none).await.unwrap(), 0);
        let late: Vec<_> = (0..12).map(|at| IoSlice::new(if at < 11 { b"" } else { b"late" })).collect();
        assert_eq!(here.write_vectored(&late).await.unwrap(), 4);
        here.flush().await.unwrap();
        assert_eq!(there.next().await.unwrap().unwrap(), Message::binary("late"));
    }
}

/// A peer that asks and does not read is kept one answer for, and is read on.
#[tokio::test]
async fn pings_that_nobody_wants_answered_need_no_memory() {
    let (here, mut there) = duplex(256);
    let mut here = end(here, true);
    let mut ping = Vec::new();
    frames_of(&mut ping, 0x89, &[7; 125], None);
    let flood = async {
        for _ in 0..1000 {
            there.write_all(&ping).await.unwrap();
        }
        let mut last = Vec::new();
        frames_of(&mut last, 0x82, b"on", None);
        there.write_all(&last).await.unwrap();
    };
    let mut got = [0; 2];
    let read = here.read_exact(&mut got);
    let ((), read) = tokio::join!(flood, read);
    read.unwrap();
    assert_eq!(&got, b"on");
    assert!(here.held() <= 4 * 139, "{} bytes", here.held());
}

/// A frame with any head.
fn frames_of(to: &mut Vec<u8>, first: u8, payload: &[u8], key: Option<[u8; 4]>) {
    let mut frame = Vec::new();
    frames::begin(&mut frame, payload.len(), key.map(Key));
    frame[0] = first;
    to.extend_from_slice(&frame);
    let mut payload = payload.to_vec();
    if let Some(key) = key {
        Key(key).apply(&mut payload);
    }
    to.extend_from_slice(&payload);
}

#[tokio::test]
async fn peers_that_break_the_rules_are_told_apart() {
    let frame = |first, payload: &[u8], key| {
        let mut bytes = Vec::new();
        frames_of(&mut bytes, first, payload, key);
        bytes
    };
    let key = Some([1, 2, 3, 4]);
    let join = |parts: [Vec<u8>; 2]| parts.concat();
    // `false`: a client's end reads it.
    let cases = [
        (false, frame(0x82, b"x", key), "a server's frame is masked"),
        (true, frame(0x82, b"x12345", None), "a client's frame is not masked"),
        (false, frame(0xc2, b"x", None), "a frame of an extension that was not negotiated"),
        (false, frame(0x92, b"x", None), "a frame of an extension that was not negotiated"),
        (false, frame(0x81, b"x", None), "not a binary message"),
        (false, frame(0x83, b"x", None), "a frame of an unknown kind"),
        (false, frame(0x8b, b"x", None), "a frame of an unknown kind"),
        (false, frame(0x80, b"x", None), "a fragment of no message"),
        (false, join([frame(0x02, b"x", None), frame(0x82, b"x", None)]), "a message within another one"),
        (false, frame(0x09, b"x", None), "a control frame in fragments, or of more than 125 bytes"),
        (false, frame(0x89, &[0; 126], None), "a control frame in fragments, or of more than 125 bytes"),
        (false, vec![0x82, 127, 0, 0, 0, 0, 0, 5, 0, 1], "a frame that is too long"),
        (false, vec![0x82, 127, 255, 255, 255, 255, 255, 255, 255, 255], "a frame that is too long"),
    ];
    for (masked, bytes, why) in cases {
        assert_eq!(decode_in_parts(masked, &bytes, &[1]).1.as_deref(), Some(why));
        let (here, mut there) = duplex(1024);
        there.write_all(&bytes).await.unwrap();
        let mut here = end(here, !masked);
        let error = here.read(&mut [0; 4096]).await.unwrap_err();
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::InvalidData, why));
        // It is told so, and nothing more is read or written.
        there.write_all(&bytes).await.unwrap();
        assert_eq!(here.read(&mut [0; 4096]).await.unwrap(), 0);
        assert_eq!(here.write(b"x").await.unwrap_err().kind(), ErrorKind::BrokenPipe);
        here.shutdown().await.unwrap();
        let mut told = library(there, masked).await;
        let close = told.next().await;
        assert!(matches!(close, Some(Ok(Message::Close(Some(frame)))) if u16::from(frame.code) == 1002));
    }
}

/// What ends between messages has ended; within one it was cut.
#[tokio::test]
async fn an_end_within_a_message_is_an_error() {
    for (bytes, payload, whole) in [
        (&b""[..], &b""[..], true),
        (b"\x82\x02hi", b"hi", true),
        (b"\x82", b"", false),
        (b"\x82\x03hi", b"hi", false),
        (b"\x02\x02hi", b"hi", false),
        (b"\x02\x02hi\x80\x01!", b"hi!", true),
        (b"\x82\x02hi\x88\x00 nothing of this", b"hi", true),
    ] {
        let (here, mut there) = duplex(1024);
        there.write_all(bytes).await.unwrap();
        there.shutdown().await.unwrap();
        let mut got = Vec::new();
        let read = end(here, true).read_to_end(&mut got).await;
        assert_eq!((read.map_err(|error| error.kind()).is_ok(), &got[..]), (whole, payload));
    }
}

proptest! {
    #[test]
    fn what_is_written_in_frames_is_read(
        messages in vec((vec(any::<u8>(), 0..300), any::<[u8; 4]>(), 0..4_u8), 0..8),
        masked in any::<bool>(),
        cuts in vec(any::<u8>(), 0..5),
    ) {
        let (mut bytes, mut payloads) = (Vec::new(), Vec::new());
        for (payload, key, kind) in messages {
            let key = masked.then_some(key);
            match kind {
                0 => frames_of(&mut bytes, 0x82, &payload, key),
                1 => {
                    let half = payload.len() / 2;
                    frames_of(&mut bytes, 0x02, &payload[..half], key);
                    frames_of(&mut bytes, 0x8a, b"between", key);
                    frames_of(&mut bytes, 0x00, b"", key);
                    frames_of(&mut bytes, 0x80, &payload[half..], key);
                }
                _ => {
                    frames_of(&mut bytes, if kind == 2 { 0x89 } else { 0x8a }, &payload[..payload.len().min(125)], key);
                    continue;
                }
            }
            payloads.extend_from_slice(&payload);
        }
        prop_assert_eq!(decode_in_parts(masked, &bytes, &cuts), (payloads, None));
    }

    /// In any parts the same as the standard's formula (RFC 6455 section 5.3).
    #[test]
    fn masks_as_the_standard_says(bytes in vec(any::<u8>(), 0..100), key in any::<[u8; 4]>(), cuts in vec(0..20_usize, 0..8)) {
        let expected: Vec<u8> = bytes.iter().enumerate().map(|(at, byte)| byte ^ key[at % 4]).collect();
        let (mut got, mut turned, mut rest) = (bytes.clone(), Key(key), 0);
        for cut in cuts.into_iter().chain([bytes.len()]) {
            let until = (rest + cut).min(bytes.len());
            turned.apply(&mut got[rest..until]);
            rest = until;
        }
        prop_assert_eq!(got, expected);
    }
}

#[test]
fn answers_say_what_was_asked() {
    let key = Some(Key([9, 8, 7, 6]));
    for masked in [true, false] {
        let key = key.filter(|_| masked);
        let pong = Asked::Pong(b"payload".to_vec()).answer(key);
        assert_eq!(pong[0], 0x8a);
        let close = Asked::Close.answer(key);
        assert_eq!(close, frames::close(frames::NORMAL, key));
        assert_eq!(decode_in_parts(masked, &[pong, close].concat(), &[]), (Vec::new(), None));
    }
}

/// No two messages in a row with one key, and none that is the same in two connections.
#[tokio::test]
async fn each_message_has_a_key_of_its_own() {
    let mut seen = Vec::new();
    for _ in 0..2 {
        let (here, mut there) = duplex(4096);
        let mut here = end(here, true);
        for _ in 0..40 {
            here.write_all(b"m").await.unwrap();
            here.flush().await.unwrap();
            let mut frame = [0; 7];
            there.read_exact(&mut frame).await.unwrap();
            assert_eq!(frame[..2], [0x82, 0x81]);
            assert_eq!(frame[6] ^ frame[2], b'm');
            seen.push([frame[2], frame[3], frame[4], frame[5]]);
        }
    }
    seen.sort();
    seen.dedup();
    assert!(seen.len() >= 78, "{} keys of 80", seen.len());
}

/// With two rings for each message a connection put off every turn (`cork`), for other work that never came.
#[tokio::test]
async fn what_arrives_rings_once() {
    let (here, there) = duplex(64 * 1024);
    let (mut here, mut there) = (end(here, true), end(there, false));
    let rings = Arc::new(Rings::default());
    let waker = Waker::from(rings.clone());
    let mut cx = Context::from_waker(&waker);
    for round in 1..=3 {
        assert!(Pin::new(&mut here).poll_write(&mut cx, b"ping").is_ready());
        assert!(Pin::new(&mut here).poll_flush(&mut cx).is_ready());
        let (mut bytes, mut got) = ([0; 16], 0);
        while got == 0 {
            let mut buf = ReadBuf::new(&mut bytes);
            match Pin::new(&mut here).poll_read(&mut cx, &mut buf) {
                Poll::Ready(read) => {
                    read.unwrap();
                    got = buf.filled().len();
                }
                Poll::Pending => {
                    there.write_all(b"pong").await.unwrap();
                    there.flush().await.unwrap();
                }
            }
        }
        assert_eq!(rings.0.load(Ordering::SeqCst), round);
    }
}

/// A flush that waits is called when there is room, whatever was flushed before.
#[tokio::test]
async fn a_flush_that_waits_is_called() {
    let (here, mut there) = duplex(1024);
    let mut here = end(here, true);
    let rings = Arc::new(Rings::default());
    let waker = Waker::from(rings.clone());
    let mut cx = Context::from_waker(&waker);
    assert!(Pin::new(&mut here).poll_flush(&mut cx).is_ready());
    assert!(Pin::new(&mut here).poll_write(&mut cx, &[7; 1500]).is_ready());
    assert!(Pin::new(&mut here).poll_flush(&mut cx).is_pending());
    let mut taken = [0; 1024];
    there.read_exact(&mut taken).await.unwrap();
    assert_eq!(rings.0.load(Ordering::SeqCst), 1);
    assert!(Pin::new(&mut here).poll_flush(&mut cx).is_ready());
    assert_eq!(here.held(), 0);
}

/// Speaks the agent's end with a gateway that answers `answer`, where `ACCEPT` stands for what its key wants.
async fn asked(answer: &str) -> Result<WebSocketIo<DuplexStream>, CarrierError> {
    let (near, mut far) = duplex(64 * 1024);
    let gateway = async move {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(far.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with(&format!("GET {PATH} HTTP/1.1\r\n")), "{head}");
        let field = |name: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(": "));
            lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value)
        };
        assert_eq!((field("host"), field("upgrade")), (Some("gateway.test:8443"), Some("websocket")));
        assert_eq!((field("connection"), field("sec-websocket-version")), (Some("Upgrade"), Some("13")));
        assert_eq!(field("sec-websocket-protocol"), Some(SUBPROTOCOL));
        let key = field("sec-websocket-key").unwrap();
        assert_eq!(key.len(), 24);
        far.write_all(answer.replace("ACCEPT", &accept_key(key.as_bytes())).as_bytes()).await.unwrap();
        far
    };
    let (io, _far) = tokio::join!(handshake::upgrade(near, "gateway.test:8443"), gateway);
    io
}

const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: WebSocket\r\nConnection: upgrade\r\n";

#[tokio::test]
async fn only_the_websocket_that_was_asked_for_is_opened() {
    let protocol = format!("Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\n");
    let accept = "Sec-WebSocket-Accept: ACCEPT\r\n";
    let refused = |answer: String| async move {
        match asked(&answer).await {
            Err(CarrierError::Protocol(why)) => why,
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("opened by {answer}"),
        }
    };
    for (answer, why) in [
        (format!("{SWITCH}{protocol}\r\n"), "Sec-WebSocket-Accept"),
        (
            format!("{SWITCH}{protocol}Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"),
            "Sec-WebSocket-Accept",
        ),
        (format!("{SWITCH}{protocol}{accept}{accept}\r\n"), "Sec-WebSocket-Accept"),
        (format!("{SWITCH}{accept}\r\n"), "Sec-WebSocket-Protocol"),
        (format!("{SWITCH}{accept}Sec-WebSocket-Protocol: other\r\n\r\n"), "Sec-WebSocket-Protocol"),
        (format!("{SWITCH}{accept}{protocol}Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"), "extension"),
        (
            format!(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: other\r\nConnection: upgrade\r\n{accept}{protocol}\r\n"
            ),
            "Upgrade: websocket",
        ),
        (
            format!("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n{accept}{protocol}\r\n"),
            "Connection: Upgrade",
        ),
        ("SSH-2.0-OpenSSH_9.6\r\n".to_owned(), "HTTP"),
        (format!("HTTP/1.1 101 Switching Protocols\r\nX: {}\r\n", "x".repeat(40_000)), "HTTP"),
    ] {
        let got = refused(answer).await;
        assert!(got.contains(why), "{got}");
    }
    for status in [200, 403, 503] {
        // Whatever the body is, nothing waits for it.
        let answer = format!("HTTP/1.1 {status} Whatever\r\nContent-Length: 1000000\r\n\r\nsome of it");
        assert!(matches!(asked(&answer).await, Err(CarrierError::Upgrade(got)) if got == status));
    }
}

/// The gateway speaks first, and need not wait.
#[tokio::test]
async fn what_comes_with_the_answer_is_read() {
    let answer = format!(
        "{SWITCH}Sec-WebSocket-Protocol: {SUBPROTOCOL}\r\nSec-WebSocket-Accept: ACCEPT\r\n\r\n\u{2}\u{5}early\u{0}\u{1}!"
    );
    // Of a message in fragments the head is ASCII.
    let mut io = asked(&answer).await.unwrap();
    let mut got = [0; 6];
    io.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"early!");
}

#[tokio::test]
async fn a_gateway_that_hangs_up_is_lost() {
    let (near, mut far) = duplex(1024);
    let hang_up = async move {
        let _ = far.read_u8().await;
        drop(far);
    };
    let (io, ()) = tokio::join!(handshake::upgrade(near, "gateway.test"), hang_up);
    assert!(matches!(io.err(), Some(CarrierError::Lost(_))));
    assert!(matches!(handshake::upgrade(duplex(1).0, "bad host\n").await.err(), Some(CarrierError::Protocol(_))));
}

/// RFC 6455 section 1.3.
#[test]
fn the_standards_own_example() {
    assert_eq!(accept_key(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
}

/// A socket that takes and gives some bytes at a time, and now and then none.
struct Grudging {
    io: DuplexStream,
    most: usize,
    turn: usize,
}

impl Grudging {
    fn says_no(&mut self, cx: &mut Context<'_>) -> bool {
        self.turn += 1;
        let no = self.turn.is_multiple_of(3);
        if no {
            cx.waker().wake_by_ref();
        }
        no
    }
}

impl AsyncRead for Grudging {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.says_no(cx) {
            return Poll::Pending;
        }
        let mut bytes = vec![0; self.most.min(buf.remaining())];
        let mut part = ReadBuf::new(&mut bytes);
        let read = Pin::new(&mut self.io).poll_read(cx, &mut part);
        buf.put_slice(part.filled());
        read
    }
}

impl AsyncWrite for Grudging {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.says_no(cx) {
            return Poll::Pending;
        }
        let bytes: Vec<u8> = slices.iter().flat_map(|slice| slice.iter().copied()).take(self.most).collect();
        Pin::new(&mut self.io).poll_write(cx, &bytes)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Whatever the socket takes at a time, and whatever it gives.
#[tokio::test]
async fn a_grudging_socket_loses_nothing() {
    for client in [true, false] {
        for most in [1, 3, 14, 1000, 70_000] {
            let (here, there) = duplex(100_000);
            let mut here = bare(Grudging { io: here, most, turn: 0 }, client);
            let mut there = bare(Grudging { io: there, most, turn: 1 }, !client);
            let bytes = pattern(if most < 100 { 3000 } else { 500_000 });
            let write = async {
                let mut rest = &bytes[..];
                let mut turn = 0;
                while !rest.is_empty() {
                    turn += 1;
                    let (a, b) = rest.split_at(rest.len().min(turn * 13));
                    let written = here.write_vectored(&[IoSlice::new(a), IoSlice::new(b)]).await.unwrap();
                    rest = &rest[written..];
                    if turn % 2 == 1 {
                        here.flush().await.unwrap();
                    }
                }
                here.shutdown().await.unwrap();
            };
            let mut got = Vec::new();
            let read = there.read_to_end(&mut got);
            let ((), read) = tokio::join!(write, read);
            read.unwrap();
            assert!(got == bytes, "{most} at a time, client: {client}");
        }
    }
}
