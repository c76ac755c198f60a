use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;

fn head(lines: &str) -> Result<At, Fault> {
    read_head(lines.as_bytes())
}

#[test]
fn heads_say_what_follows_them() {
    assert_eq!(head("GET / HTTP/1.1\r\nHost: a\r\n\r\n"), Ok(At::Head));
    assert_eq!(head("GET / HTTP/1.1\r\n\r\n"), Ok(At::Head));
    assert_eq!(head("POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n"), Ok(At::Head));
    assert_eq!(head("POST / HTTP/1.1\r\ncontent-length:5\r\n\r\n"), Ok(At::Body(5)));
    assert_eq!(head("POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n"), Ok(At::ChunkLine));
    assert_eq!(head("GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n"), Ok(At::Held));
}

#[test]
fn smuggling_heads_are_faults() {
    for (lines, fault) in [
        ("POST / HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", Fault::TwoLengths),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", Fault::TwoLengths),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: xchunked\r\n\r\n", Fault::Coding),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked, identity\r\n\r\n", Fault::Coding),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: \x0bchunked\r\n\r\n", Fault::Coding),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", Fault::Coding),
        ("POST / HTTP/1.1\r\nContent-Length: +5\r\n\r\n", Fault::Length),
        ("POST / HTTP/1.1\r\nContent-Length: 0x5\r\n\r\n", Fault::Length),
        ("POST / HTTP/1.1\r\nContent-Length: 5, 5\r\n\r\n", Fault::Length),
        ("POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", Fault::Length),
        ("POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n", Fault::Length),
        ("GET / HTTP/1.1\r\nA: b\r\n c\r\n\r\n", Fault::Folded),
        ("GET / HTTP/1.1\r\nImpersonate-User : a\r\n\r\n", Fault::Name),
        ("GET / HTTP/1.1\r\nImpersonate-User\t: a\r\n\r\n", Fault::Name),
        ("GET / HTTP/1.1\r\n\x0bImpersonate-User: a\r\n\r\n", Fault::Name),
        ("GET / HTTP/1.1\r\nno colon\r\n\r\n", Fault::Name),
        ("GET / HTTP/1.1\nHost: a\r\n\r\n", Fault::LineEnd),
        ("GET / HTTP/1.1\r\nHost: a\n\n", Fault::LineEnd),
        ("GET / HTTP/1.1\r\nA: b\rc\r\n\r\n", Fault::LineEnd),
        ("GET / HTTP/1.1\r\nA: b\0c\r\n\r\n", Fault::LineEnd),
        ("GET /a#b HTTP/1.1\r\n\r\n", Fault::Fragment),
        ("GET /a b HTTP/1.1\r\n\r\n", Fault::RequestLine),
        ("GET /\r\n\r\n", Fault::RequestLine),
        ("GET  / HTTP/1.1\r\n\r\n", Fault::RequestLine),
    ] {
        assert_eq!(head(lines), Err(fault), "{lines:?}");
    }
}

/// Feeds `input` in pieces of `size` and gives back what came through and the faults, in order.
async fn through(input: &[u8], size: usize) -> (Vec<u8>, io::Result<()>, Vec<Option<Fault>>) {
    let (mut client, server) = tokio::io::duplex(64 * 1024);
    let notes = Notes::default();
    let mut framing = Framing::new(server, notes.clone(), Duration::from_secs(5));
    let (mut out, mut result) = (Vec::new(), Ok(()));
    for piece in input.chunks(size) {
        client.write_all(piece).await.unwrap();
        let mut buffer = [0; 1024];
        loop {
            match futures_util::FutureExt::now_or_never(framing.read(&mut buffer)) {
                Some(Ok(length)) => out.extend_from_slice(&buffer[..length]),
                Some(Err(error)) => {
                    result = Err(error);
                    break;
                }
                None => break,
            }
        }
    }
    let faults = notes.lock().faults.iter().copied().collect();
    (out, result, faults)
}

#[tokio::test]
async fn requests_in_one_flight_are_told_apart_at_any_split() {
    let input = b"\r\nPOST /1 HTTP/1.1\r\nContent-Length: 5\r\n\r\nab\r\n\rPOST /2 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n\
        3;x=y\r\nabc\r\n0\r\nTrailer: x\r\n\r\nGET /3#f HTTP/1.1\r\n\r\nGET /4 HTTP/1.1\r\n\r\n";
    for size in [1, 2, 3, 7, 1000] {
        let (out, result, faults) = through(input, size).await;
        assert!(result.is_ok());
        assert_eq!(faults, [None, None, Some(Fault::Fragment)], "{size}");
        // Nothing behind the faulty head comes through.
        assert!(out.ends_with(b"GET /3#f HTTP/1.1\r\n\r\n"), "{size}");
    }
}

#[tokio::test]
async fn broken_chunks_break_the_connection() {
    for chunk in ["+3\r\nabc\r\n", "3 \r\nabc", "0x3\r\nabc", "3\nabc", "3;a\x01\r\n", "fffffffffffffffff\r\n", "\r\n"]
    {
        let input = format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}");
        assert!(through(input.as_bytes(), 1000).await.1.is_err(), "{chunk:?}");
    }
    let long = format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;{}\r\n", "x".repeat(1000));
    assert!(through(long.as_bytes(), 100).await.1.is_err());
}

/// The library takes `X: y\n` for an unfinished trailer: behind it the two readers told different requests apart, and the
/// fault of one request was noted for another.
#[tokio::test]
async fn a_bare_line_feed_in_the_trailers_breaks_the_connection() {
    for trailers in ["X: y\n\r\n", "\n", "X: y\r\n\n", "X: y\n\n"] {
        let input =
            format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n{trailers}GET / HTTP/1.1\r\n\r\n");
        for size in [1, 1000] {
            let (_, result, faults) = through(input.as_bytes(), size).await;
            assert!(result.is_err(), "{trailers:?}");
            assert_eq!(faults, [None], "{trailers:?}");
        }
    }
}

/// An answer that came before the body was read was lost: closing a socket over unread bytes resets it.
#[tokio::test]
async fn a_connection_that_ends_within_a_body_or_a_head_reads_on_for_a_while() {
    for (input, reads_on) in [
        ("POST / HTTP/1.1\r\nContent-Length: 100\r\n\r\nabc", true),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", true),
        ("GARBAGE", true),
        ("GET / HTTP/1.1\r\n\r\n", false),
    ] {
        let (mut client, server) = tokio::io::duplex(1024);
        let mut framing = Framing::new(server, Notes::default(), Duration::from_secs(5));
        client.write_all(input.as_bytes()).await.unwrap();
        let mut buffer = [0; 1024];
        assert_eq!(framing.read(&mut buffer).await.unwrap(), input.len());
        client.write_all(b"more of it").await.unwrap();
        let mut closing = Box::pin(framing.shutdown());
        assert_eq!(futures_util::FutureExt::now_or_never(&mut closing).is_none(), reads_on, "{input}");
        drop(client);
        if reads_on {
            closing.await.unwrap();
        }
    }
}

/// A body that looked like the library's own answer was replaced, and the answers behind it moved out of step.
#[tokio::test]
async fn a_body_that_looks_like_an_answer_of_ours_stays_as_it_is() {
    let canned = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    for (request, replaced) in [("GET / HTTP/1.1\r\n\r\n", false), ("GET / HTTP/1.1\n\n", true)] {
        let (mut client, server) = tokio::io::duplex(4096);
        let mut framing = Framing::new(server, Notes::default(), Duration::from_secs(5));
        client.write_all(request.as_bytes()).await.unwrap();
        let mut buffer = [0; 1024];
        assert_eq!(framing.read(&mut buffer).await.unwrap(), request.len());
        assert_eq!(framing.write(canned).await.unwrap(), canned.len());
        let length = client.read(&mut buffer).await.unwrap();
        assert_eq!(buffer[..length] != canned[..], replaced);
    }
}

#[tokio::test]
async fn what_follows_an_upgrade_request_waits_for_the_answer() {
    for switched in [true, false] {
        let (mut client, server) = tokio::io::duplex(1024);
        let notes = Notes::default();
        let mut framing = Framing::new(server, notes.clone(), Duration::from_secs(5));
        let request = b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n";
        let glued = b"GET /2#x HTTP/1.1\r\n\r\n";
        client.write_all(&[request.as_slice(), glued].concat()).await.unwrap();
        let mut buffer = [0; 1024];
        assert_eq!(framing.read(&mut buffer).await.unwrap(), request.len());
        assert_eq!(notes.next(), (0, None));
        let mut reading = tokio_test_read(&mut framing);
        assert!(futures_util::FutureExt::now_or_never(&mut reading).is_none());
        notes.answered(0, switched);
        assert_eq!(reading.await, glued);
        assert_eq!(notes.next(), (1, if switched { None } else { Some(Fault::Fragment) }));
    }
}

fn tokio_test_read<T: AsyncRead + Unpin + Send>(
    framing: &mut Framing<T>,
) -> futures_util::future::BoxFuture<'_, Vec<u8>> {
    Box::pin(async {
        let mut buffer = vec![0; 1024];
        let length = framing.read(&mut buffer).await.unwrap();
        buffer.truncate(length);
        buffer
    })
}

#[tokio::test]
async fn a_slow_head_times_out_and_an_idle_connection_does_not() {
    let (mut client, server) = tokio::io::duplex(1024);
    let mut framing = Framing::new(server, Notes::default(), Duration::from_millis(20));
    let mut buffer = [0; 10];
    assert!(futures_util::FutureExt::now_or_never(framing.read(&mut buffer)).is_none());
    assert!(framing.head_deadline.is_none());
    client.write_all(b"GET").await.unwrap();
    assert_eq!(framing.read(&mut buffer).await.unwrap(), 3);
    assert_eq!(framing.read(&mut buffer).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
}
