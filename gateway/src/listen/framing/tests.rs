use tokio::io::{AsyncReadExt, AsyncWriteExt};

use types::limits;

use super::*;

const TIMEOUTS: Timeouts = Timeouts { head: Duration::from_secs(5), answer: Duration::from_secs(5) };

const SHORT: Timeouts = Timeouts { head: Duration::from_millis(20), answer: Duration::from_millis(20) };

fn head(lines: &str) -> Result<At, Fault> {
    let (taken, end) = Head::default().take(lines.as_bytes());
    let end = end.expect("a whole head or a fault");
    assert!(end.is_err() || taken == lines.len());
    end
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
        ("POST / HTTP/1.1\r\nTransfer-Encoding: \x0bchunked\r\n\r\n", Fault::Value),
        ("POST / HTTP/1.1\r\nContent-Length: \x0c5\r\n\r\n", Fault::Value),
        ("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", Fault::Coding),
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
        ("GET / HTTP/2.0\r\n\r\n", Fault::RequestLine),
        ("G(T / HTTP/1.1\r\n\r\n", Fault::RequestLine),
        ("GET /<b> HTTP/1.1\r\n\r\n", Fault::Target),
        ("\x16\x03\x01", Fault::RequestLine),
    ] {
        assert_eq!(head(lines), Err(fault), "{lines:?}");
    }
}

fn long_targets() -> LongTargets {
    crate::admission::limit::Admissions::default().long_targets([127, 0, 0, 1].into())
}

fn fault(note: &Note) -> Option<Fault> {
    match note {
        Note::Faulty(faulty) => Some(faulty.fault),
        Note::Fine | Note::Long(_) => None,
    }
}

/// Feeds `input` in pieces of `size` and gives back what came through and the faults, in order.
async fn through(input: &[u8], size: usize) -> (Vec<u8>, io::Result<()>, Vec<Option<Fault>>) {
    let (mut client, server) = tokio::io::duplex(64 * 1024);
    let notes = Notes::default();
    let mut framing = Framing::new(server, notes.clone(), TIMEOUTS, long_targets());
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
    let faults = notes.lock().heads.iter().map(fault).collect();
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
        assert!(out.ends_with(STAND_IN), "{size}");
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

/// The library takes `X: y\n` for an unfinished trailer: behind it the two readers told different requests apart, and
/// the fault of one request was noted for another.
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
        let mut framing = Framing::new(server, Notes::default(), TIMEOUTS, long_targets());
        client.write_all(input.as_bytes()).await.unwrap();
        let mut buffer = [0; 1024];
        while futures_util::FutureExt::now_or_never(framing.read(&mut buffer)).is_some() {}
        client.write_all(b"more of it").await.unwrap();
        let mut closing = Box::pin(framing.shutdown());
        assert_eq!(futures_util::FutureExt::now_or_never(&mut closing).is_none(), reads_on, "{input}");
        drop(client);
        if reads_on {
            closing.await.unwrap();
        }
    }
}

#[tokio::test]
async fn what_follows_an_upgrade_request_waits_for_the_answer() {
    for switched in [true, false] {
        let (mut client, server) = tokio::io::duplex(1024);
        let notes = Notes::default();
        let mut framing = Framing::new(server, notes.clone(), TIMEOUTS, long_targets());
        let request = b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n\r\n";
        let glued = b"GET /2#x HTTP/1.1\r\n\r\n";
        client.write_all(&[request.as_slice(), glued].concat()).await.unwrap();
        let mut buffer = [0; 1024];
        assert_eq!(framing.read(&mut buffer).await.unwrap(), request.len());
        let (turn, faulty) = notes.next();
        assert_eq!(faulty, Note::Fine);
        let mut reading = tokio_test_read(&mut framing);
        assert!(futures_util::FutureExt::now_or_never(&mut reading).is_none());
        turn.answered(switched, false);
        assert_eq!(reading.await, if switched { glued.as_slice() } else { STAND_IN });
        let (_, faulty) = notes.next();
        assert_eq!(fault(&faulty), if switched { None } else { Some(Fault::Fragment) });
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
    let notes = Notes::default();
    let mut framing = Framing::new(server, notes.clone(), SHORT, long_targets());
    let mut buffer = [0; STAND_IN.len()];
    assert!(futures_util::FutureExt::now_or_never(framing.read(&mut buffer)).is_none());
    assert!(framing.head_deadline.is_none());
    client.write_all(b"GET").await.unwrap();
    framing.read_exact(&mut buffer).await.unwrap();
    assert_eq!(buffer, STAND_IN);
    assert_eq!(fault(&notes.next().1), Some(Fault::Slow));
}

/// Anybody could hold a connection by not reading the 401 that they were sent. A watch that nobody reads stays.
#[tokio::test]
async fn an_answer_of_our_own_must_be_read_and_a_relayed_one_may_wait() {
    for own in [true, false] {
        let (_client, server) = tokio::io::duplex(16);
        let notes = Notes::default();
        let mut framing = Framing::new(server, notes.clone(), SHORT, long_targets());
        let (turn, _) = notes.next();
        turn.answered(false, own);
        if own {
            assert_eq!(framing.write_all(&[0; 100]).await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        } else {
            assert!(futures_util::FutureExt::now_or_never(framing.write_all(&[0; 100])).is_none());
            assert!(framing.answer_deadline.is_none());
        }
    }
}

/// What is refused, and where in records it can be found.
#[test]
fn a_faulty_head_is_told_by_its_request_line_alone() {
    for (bytes, method, target) in [
        ("GET /a?b HTTP/1.1\r\nA\r\n", "GET", "/a?b"),
        ("DELETE /a#b HTTP/1.1\r\n", "DELETE", "/a#b"),
        ("Authorization: Bearer secret\r\n", "", ""),
        ("get /a HTTP/3\r\n", "", ""),
        ("\0", "", ""),
    ] {
        let mut head = Head::default();
        let (_, end) = head.take(bytes.as_bytes());
        let faulty = head.faulty(end.unwrap().unwrap_err());
        assert_eq!((faulty.method.as_str(), faulty.target.as_str()), (method, target), "{bytes:?}");
    }
}

async fn library_answers(input: &[u8]) -> String {
    use http_body_util::Full;
    let (mut client, server) = tokio::io::duplex(64 * 1024);
    let notes = Notes::default();
    let io = hyper_util::rt::TokioIo::new(Framing::new(server, notes.clone(), TIMEOUTS, long_targets()));
    let service = hyper::service::service_fn(move |_request| {
        let (turn, faulty) = notes.next();
        turn.answered(false, true);
        let answer = http::Response::builder()
            .status(if matches!(faulty, Note::Faulty(_)) { 400 } else { 404 })
            .header("connection", "close")
            .body(Full::new(Bytes::from_static(b"ours")))
            .unwrap();
        async move { Ok::<_, std::convert::Infallible>(answer) }
    });
    let mut builder = hyper::server::conn::http1::Builder::new();
    builder.max_headers(types::limits::HEADER_COUNT).max_buf_size(2 * HEAD_BYTES);
    let user = async move {
        client.write_all(input).await.unwrap();
        if Head::default().take(input).1.is_none() {
            client.shutdown().await.unwrap();
        }
        let mut answer = Vec::new();
        while !answer.ends_with(b"ours") && client.read_buf(&mut answer).await.unwrap() > 0 {}
        drop(client);
        String::from_utf8(answer).unwrap()
    };
    let (_, answer) = tokio::join!(builder.serve_connection(io, service), user);
    answer
}

/// The library's own refusals have no body and no record, so it must never have a reason for one.
#[tokio::test]
async fn the_library_takes_every_head_that_is_let_through() {
    let seeds = [
        "GET /a?b=%20 HTTP/1.1\r\nHost: a\r\nX-Y: z\r\n\r\n",
        "POST https://a.test/b HTTP/1.0\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx",
        "PUT * HTTP/1.1\r\nTransfer-Encoding: chunked\r\nExpect: x\r\n\r\n0\r\n\r\n",
        "CONNECT a.test:443 HTTP/1.1\r\nHost: a\r\n\r\n",
    ];
    const INTERESTING: &[u8] = b"abzAZ019aeixy-_.~%20/ :;?#<>`\"|{}[]@*,\\\r\n\t\0\x0b\x7f\x80\xc3\xff";
    let (mut taken, mut refused, mut random) = (0, 0, 1u64);
    for round in 0..4000 {
        let mut input = seeds[round % seeds.len()].as_bytes().to_vec();
        for _ in 0..=round % 3 {
            // A multiplicative generator (Knuth's MMIX) is random enough, and the same in every run.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let at = (random >> 33) as usize % input.len();
            input[at] = INTERESTING[(random >> 20) as usize % INTERESTING.len()];
        }
        let answer = library_answers(&input).await;
        let shown = input.escape_ascii();
        assert!(answer.ends_with("ours"), "{shown}: {answer}");
        taken += usize::from(answer.starts_with("HTTP/1.1 404"));
        refused += usize::from(answer.starts_with("HTTP/1.1 400"));
    }
    assert!(taken > 100 && refused > 100, "{taken} {refused}");
    for (head, code) in [
        (format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(1024)), "404"),
        (format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(1025)), "400"),
        (format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(types::limits::PLAIN_TARGET_BYTES - 1)), "404"),
        (format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(types::limits::PLAIN_TARGET_BYTES)), "400"),
        (format!("GET / HTTP/1.1\r\na: {}\r\n\r\n", "b".repeat(170_000)), "404"),
        (format!("GET / HTTP/1.1\r\na: {}\r\n\r\n", "b".repeat(HEAD_BYTES)), "400"),
        (format!("GET / HTTP/1.1\r\n{}: b\r\n\r\n", "a".repeat(70_000)), "400"),
    ] {
        let answer = library_answers(head.as_bytes()).await;
        assert!(answer.contains(code) && answer.ends_with("ours"), "{answer}");
    }
}

/// Who ended their side right behind a request (`printf | nc -N`) got no answer. Whoever leaves a watch that way is
/// noticed.
#[tokio::test]
async fn the_end_of_the_users_side_waits_for_the_answers_but_not_for_long_running_ones() {
    let request = b"GET / HTTP/1.1\r\n\r\n";
    for long in [false, true] {
        let (mut client, server) = tokio::io::duplex(1024);
        let notes = Notes::default();
        let mut framing = Framing::new(server, notes.clone(), TIMEOUTS, long_targets());
        client.write_all(&request.repeat(2)).await.unwrap();
        client.shutdown().await.unwrap();
        let mut buffer = [0; 1024];
        for _ in 0..2 {
            assert_eq!(framing.read(&mut buffer).await.unwrap(), request.len());
        }
        let (first, _) = notes.next();
        let mut reading = tokio_test_read(&mut framing);
        assert!(futures_util::FutureExt::now_or_never(&mut reading).is_none());
        first.answered(false, false);
        assert!(futures_util::FutureExt::now_or_never(&mut reading).is_none(), "its body is under way");
        drop(first.body(()));
        assert!(futures_util::FutureExt::now_or_never(&mut reading).is_none(), "the second has not begun");
        let (second, _) = notes.next();
        if long {
            second.long_running();
            assert!(reading.await.is_empty());
        } else {
            drop(second);
            assert!(reading.await.is_empty());
        }
    }
}

/// The library takes no target of more than 65,534 bytes: it sees the path, and the whole target goes beside it.
#[tokio::test]
async fn long_target_goes_beside_its_head_whatever_the_pieces() {
    let longest = format!("/a/b?c={}", "d%2C".repeat(limits::TARGET_BYTES / 4));
    let longest = &longest[..limits::TARGET_BYTES];
    for (target, pieces) in
        [(&longest[..limits::PLAIN_TARGET_BYTES + 1], 1000), (&longest[..200_000], 60_000), (longest, 16_384)]
    {
        let (mut client, server) = tokio::io::duplex(64 * 1024);
        let notes = Notes::default();
        let mut framing = Framing::new(server, notes.clone(), TIMEOUTS, long_targets());
        let input = format!("GET {target} HTTP/1.1\r\nhost: x\r\n\r\nGET /2 HTTP/1.1\r\n\r\n");
        let expected = "GET /a/b HTTP/1.1\r\nhost: x\r\n\r\nGET /2 HTTP/1.1\r\n\r\n";
        let mut out = Vec::new();
        let writing = async {
            for piece in input.as_bytes().chunks(pieces) {
                client.write_all(piece).await.unwrap();
            }
        };
        let reading = async {
            let mut buffer = vec![0; 8192];
            while out.len() < expected.len() {
                let length = framing.read(&mut buffer).await.unwrap();
                out.extend_from_slice(&buffer[..length]);
            }
        };
        tokio::join!(writing, reading);
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        assert!(notes.next().1 == Note::Long(Bytes::copy_from_slice(target.as_bytes())));
        assert_eq!(notes.next().1, Note::Fine);
    }
}

#[test]
fn long_target_needs_a_short_path_and_characters_of_a_target() {
    let query = "q".repeat(100_000);
    for (target, expected) in [
        (format!("/a?{query}"), None),
        (format!("/{query}"), Some(Fault::LongTarget)),
        (format!("/{query}?a"), Some(Fault::LongTarget)),
        (format!("https://host/a?{query}"), Some(Fault::LongTarget)),
        (format!("/a?{}", "q".repeat(limits::TARGET_BYTES)), Some(Fault::LongTarget)),
        (format!("/a?{query}#b"), Some(Fault::Fragment)),
        (format!("/a?{query}<b>"), Some(Fault::Target)),
        (format!("/a?{query}\x01"), Some(Fault::Target)),
        (format!("/<a>?{query}"), Some(Fault::Target)),
        (format!("/a?{query}é"), Some(Fault::Target)),
    ] {
        let mut head = Head::default();
        let (_, end) = head.take(format!("GET {target} HTTP/1.1\r\n\r\n").as_bytes());
        assert_eq!(
            end.unwrap().err(),
            expected,
            "{} bytes, {}",
            target.len(),
            &target[target.len() - 5..].escape_default()
        );
    }
    // Refused as soon as it is known.
    for begun in [format!("GET /{query}"), format!("GET /a?{}", "q".repeat(limits::TARGET_BYTES + 20)), "G".repeat(65)]
    {
        assert!(Head::default().take(begun.as_bytes()).1.is_some(), "{}", begun.len());
    }
}

/// Nobody has shown a credential while a head comes.
#[tokio::test]
async fn long_targets_at_once_are_bounded_and_given_back() {
    let places = long_targets();
    let taken: Vec<_> = (0..limits::LONG_TARGETS).map_while(|_| places.take()).collect();
    let long = format!("GET /a?{}", "q".repeat(100_000));
    for (rest, expected) in [(taken, Some(Fault::LongTargets)), (Vec::new(), None)] {
        let (mut client, server) = tokio::io::duplex(256 * 1024);
        let notes = Notes::default();
        let mut framing = Framing::new(server, notes.clone(), TIMEOUTS, places.clone());
        client.write_all(long.as_bytes()).await.unwrap();
        client.write_all(b" HTTP/1.1\r\n\r\n").await.unwrap();
        let mut buffer = vec![0; 1024];
        assert!(framing.read(&mut buffer).await.unwrap() > 0);
        let note = notes.next().1;
        assert_eq!(fault(&note), expected);
        drop((rest, note, framing));
    }
    assert!(places.take().is_some());
}
