//! Golden bytes, round trips, truncation, tampered lengths, limits, and the fuzz targets over what is kept and mutated.

use std::{collections::BTreeSet, fs, path::PathBuf};

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use proptest::prelude::*;
use types::{
    ids::{ClusterKey, RequestId, StreamId},
    limits,
    version::{Features, Version},
};

use super::{
    close::{CloseCode, StreamCode},
    control::Control,
    error::WireError,
    head::{RequestHead, ResponseHead},
    hello::{Answer, Challenge, Hello, Proof, Refuse, Replica, Welcome},
    hop::Hop,
    message::{self, LENGTH_BYTES, TEXT_BYTES, Writer},
    varint,
};
use crate::fuzz;

/// A message of any kind.
#[derive(Debug, Clone, PartialEq)]
enum Any {
    Challenge(Challenge),
    Hello(Hello),
    Answer(Answer),
    Request(RequestHead),
    Response(ResponseHead),
    Control(Control),
    Hop(Hop),
}

impl Any {
    fn encode(&self) -> BytesMut {
        match self {
            Self::Challenge(message) => message.encode(),
            Self::Hello(message) => message.encode(),
            Self::Answer(Answer::Welcome(message)) => message.encode(),
            Self::Answer(Answer::Refuse(message)) => message.encode(),
            Self::Request(message) => message.encode().unwrap(),
            Self::Response(message) => message.encode().unwrap(),
            Self::Control(message) => message.encode(),
            Self::Hop(message) => message.encode().unwrap(),
        }
    }

    /// Decodes as the kind that `self` is.
    fn decode(&self, message: Bytes) -> Result<Self, WireError> {
        Ok(match self {
            Self::Challenge(_) => Self::Challenge(Challenge::decode(message)?),
            Self::Hello(_) => Self::Hello(Hello::decode(message)?),
            Self::Answer(_) => Self::Answer(Answer::decode(message)?),
            Self::Request(_) => Self::Request(RequestHead::decode(message)?),
            Self::Response(_) => Self::Response(ResponseHead::decode(message)?),
            Self::Control(_) => Self::Control(Control::decode(message)?),
            Self::Hop(_) => Self::Hop(Hop::decode(message)?),
        })
    }
}

fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers
}

fn request() -> RequestHead {
    RequestHead {
        role: "kube-aad-proxy".to_owned(),
        request_id: RequestId(*b"0123456789abcdef"),
        method: Method::GET,
        target: Bytes::from_static(b"/api/v1/namespaces/a%2Fb/pods?watch=true&x=//"),
        headers: headers(&[("accept", "application/json"), ("x-group", "one"), ("x-group", "two"), ("x-empty", "")]),
        deadline_ms: None,
        traceparent: None,
        user_address: None,
    }
}

fn hop(head: &RequestHead) -> Hop {
    Hop::new(ClusterKey::from_bytes([0x5a; 32]), head.encode().unwrap().freeze()).unwrap()
}

fn response() -> ResponseHead {
    ResponseHead { status: StatusCode::OK, headers: headers(&[("content-type", "application/json")]), refused_by: None }
}

fn hello() -> Hello {
    Hello {
        version: Version::V1,
        features: Features(0),
        agent_version: "0.1.0".to_owned(),
        instance: [0x11; 16],
        proof: None,
        held: Vec::new(),
    }
}

fn welcome() -> Welcome {
    Welcome { features: Features(1), session: [0x22; 16], probe_period_ms: 8000, replica: None }
}

/// One of each kind and shape, by the name of its file in `testdata`.
fn golden() -> Vec<(&'static str, Any)> {
    let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    vec![
        (
            "challenge",
            Any::Challenge(Challenge {
                oldest: Version(1),
                newest: Version(3),
                features: Features(5),
                nonce: [0xaa; 32],
                proof_needed: true,
            }),
        ),
        ("hello", Any::Hello(hello())),
        (
            "hello-proof",
            Any::Hello(Hello {
                proof: Some(Proof {
                    chain: vec![Bytes::from_static(b"leaf"), Bytes::from_static(b"issuer")],
                    signature: Bytes::from_static(b"signature"),
                }),
                ..hello()
            }),
        ),
        ("welcome", Any::Answer(Answer::Welcome(welcome()))),
        (
            "welcome-replica",
            Any::Answer(Answer::Welcome(Welcome {
                replica: Some(Replica { name: Bytes::from_static(b"towline-gateway-1"), of: 3 }),
                ..welcome()
            })),
        ),
        (
            "hello-held",
            Any::Hello(Hello { held: vec![Bytes::from_static(b"a"), Bytes::from_static(b"b-2")], ..hello() }),
        ),
        (
            "refuse",
            Any::Answer(Answer::Refuse(Refuse {
                code: CloseCode::Unauthorised,
                message: "certificate expired".to_owned(),
                retry_after_ms: None,
                replicas: None,
            })),
        ),
        (
            "refuse-elsewhere",
            Any::Answer(Answer::Refuse(Refuse {
                code: CloseCode::Elsewhere,
                message: "has one".to_owned(),
                retry_after_ms: None,
                replicas: Some(2),
            })),
        ),
        (
            "refuse-retry",
            Any::Answer(Answer::Refuse(Refuse {
                code: CloseCode::Overloaded,
                message: String::new(),
                retry_after_ms: Some(30_000),
                replicas: None,
            })),
        ),
        ("request", Any::Request(request())),
        (
            "request-extensions",
            Any::Request(RequestHead {
                deadline_ms: Some(60_000),
                traceparent: Some(Bytes::from_static(traceparent.as_bytes())),
                user_address: Some(Bytes::from_static(b"192.0.2.1:4711")),
                ..request()
            }),
        ),
        (
            "request-upgrade",
            Any::Request(RequestHead {
                method: Method::POST,
                headers: headers(&[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")]),
                ..request()
            }),
        ),
        ("response", Any::Response(response())),
        (
            "response-switching",
            Any::Response(ResponseHead {
                status: StatusCode::SWITCHING_PROTOCOLS,
                headers: headers(&[("connection", "Upgrade"), ("upgrade", "websocket")]),
                refused_by: None,
            }),
        ),
        (
            "response-refused",
            Any::Response(ResponseHead {
                status: StatusCode::FORBIDDEN,
                refused_by: Some(Bytes::from_static(b"admit")),
                ..response()
            }),
        ),
        ("ping", Any::Control(Control::Ping(300))),
        ("pong", Any::Control(Control::Pong(u64::MAX))),
        ("window", Any::Control(Control::Window { stream: StreamId(4), position: 131_072 })),
        ("stop", Any::Control(Control::Stop { stream: StreamId(7), code: StreamCode::NoMore })),
        ("drain", Any::Control(Control::Drain { code: CloseCode::Shutdown, reconnect_within_ms: 5000 })),
        ("hop", Any::Hop(hop(&request()))),
        ("close", Any::Control(Control::Close { code: CloseCode::Replaced, message: "newer tunnel".to_owned() })),
    ]
}

fn testdata() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("testdata")
}

fn path_of(name: &str) -> PathBuf {
    testdata().join(format!("v1-{name}.hex"))
}

fn hex(bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    digits.chunks(32).map(|line| line.join(" ") + "\n").collect()
}

#[test]
fn golden_bytes_never_change() {
    for (name, message) in golden() {
        let kept = fs::read_to_string(path_of(name)).unwrap_or_default();
        assert_eq!(hex(&message.encode()), kept, "{name}: a deployed peer would not read this");
        let decoded = message.decode(message.encode().freeze().slice(LENGTH_BYTES..));
        assert_eq!(decoded.as_ref(), Ok(&message), "{name}");
    }
    let known: BTreeSet<_> = golden().iter().map(|(name, _)| path_of(name)).collect();
    let kept: BTreeSet<_> = fs::read_dir(testdata()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(known, kept, "each file is tried");
}

/// After adding a kind: `cargo test -p tunnel write_golden_bytes_of_new_kinds -- --ignored`.
#[test]
#[ignore = "writes into the project"]
fn write_golden_bytes_of_new_kinds() {
    for (name, message) in golden() {
        if !path_of(name).exists() {
            fs::write(path_of(name), hex(&message.encode())).unwrap();
        }
    }
}

#[test]
fn a_message_cut_at_any_byte_is_no_message() {
    for (name, message) in golden() {
        let whole = message.encode().freeze();
        let limit = limits::HEAD_BYTES;
        assert_eq!(message::length(&whole, limit), Ok(Some(whole.len() - LENGTH_BYTES)));
        for length in 0..LENGTH_BYTES {
            assert_eq!(message::length(&whole[..length], limit), Ok(None));
        }
        let body = whole.slice(LENGTH_BYTES..);
        for length in 0..body.len() {
            match message.decode(body.slice(..length)) {
                Err(_) => {}
                // Cut between fields and extensions, or between two of these, it is a message of its own.
                Ok(shorter) => {
                    let again = shorter.encode().freeze().slice(LENGTH_BYTES..);
                    assert_eq!(again, body.slice(..length), "{name} at {length}");
                }
            }
        }
    }
}

#[test]
fn no_tampered_byte_makes_a_decoder_panic_or_two_spellings() {
    for (_, message) in golden() {
        let body = message.encode().freeze().slice(LENGTH_BYTES..);
        for index in 0..body.len() {
            for value in 0..=255u8 {
                let mut bytes = body.to_vec();
                bytes[index] = value;
                fuzz::decode(&bytes);
            }
        }
    }
}

#[test]
fn hostile_lengths_are_refused_before_anything_is_allocated() {
    // A length prefix over the limit.
    assert_eq!(
        message::length(&u32::MAX.to_be_bytes(), limits::CONTROL_BYTES),
        Err(WireError::TooLong { got: u32::MAX as usize, limit: limits::CONTROL_BYTES })
    );
    // A byte string of 2^64-1 bytes at every place of every message that holds one.
    let mut huge = Vec::new();
    varint::put(&mut huge, u64::MAX);
    for (_, message) in golden() {
        let body = message.encode().freeze().slice(LENGTH_BYTES..);
        for index in 2..body.len() {
            let bytes = [&body[..index], &huge, &body[index + 1..]].concat();
            let _ = message.decode(bytes.clone().into());
            fuzz::decode(&bytes);
        }
    }
    // As many headers as are allowed, in a message that has room for none.
    let mut writer = Writer::begin(BytesMut::new(), super::head::RESPONSE);
    writer.integer(200).integer(limits::HEADER_COUNT as u64);
    let bytes = writer.finish().freeze().slice(LENGTH_BYTES..);
    assert_eq!(ResponseHead::decode(bytes), Err(WireError::Truncated("headers")));
}

/// A message's bytes without prefix, with `tags` as further extensions.
fn extended(message: &Any, tags: &[u64]) -> Bytes {
    let mut bytes = message.encode();
    for tag in tags {
        varint::put(&mut bytes, *tag);
        varint::put(&mut bytes, 3);
        bytes.extend_from_slice(b"new");
    }
    bytes.freeze().slice(LENGTH_BYTES..)
}

#[test]
fn unknown_extensions_are_skipped_if_even_and_fail_the_message_if_odd_twice_or_out_of_order() {
    for (name, message) in golden() {
        assert_eq!(message.decode(extended(&message, &[100, 102])).as_ref(), Ok(&message), "{name}");
        assert_eq!(message.decode(extended(&message, &[100, 101])), Err(WireError::Extension(101)), "{name}");
        assert_eq!(message.decode(extended(&message, &[100, 100])), Err(WireError::Order(100)), "{name}");
        assert_eq!(message.decode(extended(&message, &[102, 100])), Err(WireError::Order(100)), "{name}");
    }
}

#[test]
fn a_known_extension_that_comes_twice_is_refused() {
    let mut bytes =
        Any::Response(ResponseHead { refused_by: Some(Bytes::from_static(b"admit")), ..response() }).encode();
    varint::put(&mut bytes, 8);
    varint::put(&mut bytes, 4);
    bytes.extend_from_slice(b"dial");
    assert_eq!(ResponseHead::decode(bytes.freeze().slice(LENGTH_BYTES..)), Err(WireError::Order(8)));
}

#[test]
fn another_version_or_kind_is_named() {
    let ping = Control::Ping(1).encode().freeze().slice(LENGTH_BYTES..);
    let mut other = ping.to_vec();
    other[0] = 2;
    assert_eq!(Control::decode(other.into()), Err(WireError::Version(2)));
    assert_eq!(RequestHead::decode(ping), Err(WireError::Kind(32)));
    assert_eq!(Control::decode(request().encode().unwrap().freeze().slice(LENGTH_BYTES..)), Err(WireError::Kind(16)));
}

#[test]
fn a_user_with_300_groups_fits_and_what_does_not_fit_names_its_limit() {
    let mut head = request();
    let token = "t".repeat(40_000);
    head.headers.insert("authorization", format!("Bearer {token}").parse().unwrap());
    for n in 0..300 {
        head.headers.append("impersonate-group", format!("{n:0>100}").parse().unwrap());
    }
    let bytes = head.encode().unwrap().freeze();
    let decoded = RequestHead::decode(bytes.slice(LENGTH_BYTES..)).unwrap();
    assert_eq!(decoded, head);
    assert!(!format!("{decoded:?}").contains("ttt"));
    assert!(decoded.headers["authorization"].is_sensitive());

    let mut many = request();
    for _ in 0..=limits::HEADER_COUNT {
        many.headers.append("x", HeaderValue::from_static("y"));
    }
    let error = many.encode().unwrap_err();
    assert_eq!(error.to_string(), format!("number of headers: {} is over the limit of 1024", many.headers.len()));

    let mut large = request();
    large.headers.insert("x", "y".repeat(limits::HEAD_BYTES).parse().unwrap());
    assert!(matches!(large.encode(), Err(WireError::TooLong { limit: limits::HEAD_BYTES, .. })));

    let mut long = request();
    long.target = Bytes::from([b"/".as_slice(), &vec![b'a'; limits::TARGET_BYTES]].concat());
    assert!(matches!(long.encode(), Err(WireError::OverLimit { limit: limits::TARGET_BYTES, .. })));
}

/// Headers outlive the target that they came with.
#[test]
fn head_with_a_long_target_is_read_and_its_headers_stand_alone() {
    let mut long = request();
    long.target = Bytes::from([b"/?".as_slice(), &vec![b'a'; limits::TARGET_BYTES - 2]].concat());
    let message = long.encode().unwrap().freeze().slice(LENGTH_BYTES..);
    assert!(message.len() <= limits::REQUEST_HEAD_BYTES);
    let memory = message.as_ptr_range();
    let read = RequestHead::decode(message.clone()).unwrap();
    assert!(read == long);
    assert!(memory.contains(&read.target.as_ptr()), "the target is not copied");
    assert!(read.headers.values().all(|value| !memory.contains(&value.as_bytes().as_ptr())));
}

/// A replica hands on what came, so that a request is encoded once.
#[test]
fn t12_a_hop_carries_a_request_unchanged_and_nothing_else() {
    let head = request().encode().unwrap().freeze();
    let message = hop(&request()).encode().unwrap().freeze().slice(LENGTH_BYTES..);
    let memory = message.as_ptr_range();
    let read = Hop::decode(message.clone()).unwrap();
    assert_eq!(read.cluster, ClusterKey::from_bytes([0x5a; 32]));
    let passed = read.into_request();
    assert_eq!(passed, head);
    assert!(memory.contains(&passed.as_ptr()), "not copied");

    let key = ClusterKey::from_bytes([1; 32]);
    let again = hop(&request()).encode().unwrap().freeze();
    assert_eq!(Hop::new(key, again), Err(WireError::Kind(super::hop::HOP)), "a hop of a hop");
    let answer = response().encode().unwrap().freeze();
    assert_eq!(Hop::new(key, answer), Err(WireError::Kind(super::head::RESPONSE)));
    for bad in [head.slice(..head.len() - 1), [&head[..], b"x"].concat().into(), Bytes::new(), head.slice(..4)] {
        assert_eq!(Hop::new(key, bad), Err(WireError::Field("request")));
    }
    let mut writer = Writer::begin(BytesMut::new(), super::hop::HOP);
    writer.bytes(&[1; 31]).bytes(&head);
    let short = writer.finish().freeze().slice(LENGTH_BYTES..);
    assert_eq!(Hop::decode(short), Err(WireError::Field("cluster")));
}

#[test]
fn a_hop_is_bounded_as_a_requests_head_is() {
    let mut longest = request();
    longest.target = Bytes::from([b"/".as_slice(), &vec![b'a'; limits::TARGET_BYTES - 1]].concat());
    let filler = "y".repeat(limits::HEAD_BYTES - 1024);
    longest.headers.insert("x", filler.parse().unwrap());
    let over = |longest: &RequestHead| {
        let head = longest.encode().unwrap().freeze();
        (limits::REQUEST_HEAD_BYTES + LENGTH_BYTES).saturating_sub(head.len())
    };
    let room = over(&longest);
    let filler = "y".repeat(limits::HEAD_BYTES - 1024 + room - 8);
    longest.headers.insert("x", filler.parse().unwrap());
    assert!(over(&longest) < 64, "a head at the bound");
    assert!(matches!(hop(&longest).encode(), Err(WireError::TooLong { limit: limits::REQUEST_HEAD_BYTES, .. })));
}

/// A request head as a hostile peer may write it.
fn raw_request(method: &[u8], target: &[u8], headers: &[(&[u8], &[u8])]) -> Result<RequestHead, WireError> {
    let mut writer = Writer::begin(BytesMut::new(), super::head::REQUEST);
    writer.bytes(b"echo").bytes(&[0; 16]).bytes(method).bytes(target).integer(headers.len() as u64);
    for (name, value) in headers {
        writer.bytes(name).bytes(value);
    }
    RequestHead::decode(writer.finish().freeze().slice(LENGTH_BYTES..))
}

#[test]
fn heads_that_would_be_read_otherwise_behind_us_are_refused() {
    assert!(raw_request(b"GET", b"/", &[(b"a", b"b")]).is_ok());
    for target in [&b""[..], b"*", b"a", b"http://other/", b"/a b", b"/a\r\nX: y", b"/\0", b"/a#b", b"/\x7f"] {
        assert_eq!(raw_request(b"GET", target, &[]), Err(WireError::Field("target")), "{target:?}");
    }
    for method in [&b""[..], b"G ET", b"GET\r\n", b"G:"] {
        assert_eq!(raw_request(method, b"/", &[]), Err(WireError::Field("method")), "{method:?}");
    }
    for name in [&b""[..], b"Accept", b":path", b"a b", b"a:", b"a\r\n", b"\x80"] {
        assert_eq!(raw_request(b"GET", b"/", &[(name, b"")]), Err(WireError::Field("header name")), "{name:?}");
    }
    for value in [&b"a\r\nb"[..], b"a\nb", b"\0", b"\x7f", b"a\rb"] {
        assert_eq!(raw_request(b"GET", b"/", &[(b"a", value)]), Err(WireError::Field("header value")), "{value:?}");
    }
    for name in [&b"transfer-encoding"[..], b"te", b"trailer", b"keep-alive", b"proxy-authorization"] {
        assert_eq!(raw_request(b"GET", b"/", &[(name, b"x")]), Err(WireError::Field("hop-by-hop header")), "{name:?}");
    }
    let mut head = request();
    head.headers.insert("transfer-encoding", HeaderValue::from_static("chunked"));
    assert_eq!(head.encode(), Err(WireError::Field("hop-by-hop header")));
    for status in [0, 99, 100, 103, 1000, 65536] {
        let mut writer = Writer::begin(BytesMut::new(), super::head::RESPONSE);
        writer.integer(status).integer(0);
        let bytes = writer.finish().freeze().slice(LENGTH_BYTES..);
        assert_eq!(ResponseHead::decode(bytes), Err(WireError::Field("status")), "{status}");
    }
}

#[test]
fn a_peers_text_cannot_forge_a_log_line() {
    let message = format!("a\n{}\u{1b}[31m", "ä".repeat(TEXT_BYTES));
    let Control::Close { message: read, .. } =
        Control::decode(Control::Close { code: CloseCode::Internal, message }.encode().freeze().slice(LENGTH_BYTES..))
            .unwrap()
    else {
        panic!("another kind")
    };
    assert!(read.starts_with("a ä") && read.len() <= TEXT_BYTES);
    let mut writer = Writer::begin(BytesMut::new(), 37);
    writer.integer(0x200).bytes(b"a\nb");
    let bytes = writer.finish().freeze().slice(LENGTH_BYTES..);
    assert_eq!(Control::decode(bytes), Err(WireError::Field("message")));
}

#[test]
fn codes_keep_their_numbers() {
    for code in StreamCode::ALL {
        assert_eq!(StreamCode::from_number(code.number()), *code);
        assert!((0x100..0x200).contains(&code.number()));
    }
    for code in CloseCode::ALL {
        assert_eq!(CloseCode::from_number(code.number()), *code);
        assert!((0x200..0x300).contains(&code.number()));
    }
    assert_eq!(StreamCode::from_number(1), StreamCode::Unknown(1));
}

#[test]
fn integers_have_one_spelling() {
    for bad in [&[0x80, 0x00][..], &[0xff, 0x80, 0x00], &[0xff; 10], &[0x80; 11]] {
        assert_eq!(varint::take(bad), Err(WireError::Varint), "{bad:?}");
    }
    for part in [&[][..], &[0x80], &[0xff; 9]] {
        assert_eq!(varint::take(part), Ok(None), "{part:?}");
    }
    let mut bytes = Vec::new();
    varint::put(&mut bytes, u64::MAX);
    assert_eq!(varint::take(&bytes), Ok(Some((u64::MAX, 10))));
}

fn word() -> impl Strategy<Value = Bytes> {
    "[!-~]{1,60}".prop_map(Bytes::from)
}

fn header_map() -> impl Strategy<Value = HeaderMap> {
    prop::collection::vec(("x-[a-z0-9-]{1,20}", "[ -~\u{80}-\u{ff}]{0,60}"), 0..40).prop_map(|lines| {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::try_from(name).unwrap(), HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        headers
    })
}

prop_compose! {
    fn any_request()(
        role in "[a-z-]{1,20}", id: [u8; 16], method in "[A-Z]{1,12}", target in "/[!-\"$-~]{0,200}", headers in header_map(),
        deadline_ms: Option<u64>, traceparent in prop::option::of(word()), user_address in prop::option::of(word()),
    ) -> RequestHead {
        RequestHead {
            role, request_id: RequestId(id), method: method.parse().unwrap(), target: target.into(), headers, deadline_ms,
            traceparent, user_address,
        }
    }
}

fn any_control() -> impl Strategy<Value = Control> {
    prop_oneof![
        any::<u64>().prop_map(Control::Ping),
        any::<u64>().prop_map(Control::Pong),
        any::<(u64, u64)>().prop_map(|(id, position)| Control::Window { stream: StreamId(id), position }),
        any::<(u64, u32)>()
            .prop_map(|(id, code)| Control::Stop { stream: StreamId(id), code: StreamCode::from_number(code) }),
        any::<(u32, u64)>().prop_map(|(code, reconnect_within_ms)| Control::Drain {
            code: CloseCode::from_number(code),
            reconnect_within_ms
        }),
        (any::<u32>(), "[^\\p{Cc}]{0,200}")
            .prop_map(|(code, message)| Control::Close { code: CloseCode::from_number(code), message }),
    ]
}

fn round_trip(message: &Any) -> Result<(), TestCaseError> {
    let bytes = message.encode().freeze();
    prop_assert_eq!(message::length(&bytes, limits::HEAD_BYTES), Ok(Some(bytes.len() - LENGTH_BYTES)));
    let decoded = message.decode(bytes.slice(LENGTH_BYTES..));
    prop_assert_eq!(decoded.as_ref(), Ok(message));
    Ok(())
}

proptest! {
    #[test]
    fn integers_round_trip(value: u64, behind: [u8; 3]) {
        let mut bytes = Vec::new();
        varint::put(&mut bytes, value);
        let length = bytes.len();
        bytes.extend_from_slice(&behind);
        prop_assert_eq!(varint::take(&bytes), Ok(Some((value, length))));
    }

    #[test]
    fn requests_round_trip(head in any_request()) {
        round_trip(&Any::Request(head))?;
    }

    #[test]
    fn responses_round_trip(status in 200u16..1000, headers in header_map(), refused_by in prop::option::of(word())) {
        let status = StatusCode::from_u16(status).unwrap();
        round_trip(&Any::Response(ResponseHead { status, headers, refused_by }))?;
    }

    #[test]
    fn hops_round_trip(key: [u8; 32], head in any_request()) {
        let head = head.encode().unwrap().freeze();
        let hop = Hop::new(ClusterKey::from_bytes(key), head.clone()).unwrap();
        round_trip(&Any::Hop(hop.clone()))?;
        prop_assert_eq!(hop.into_request(), head);
    }

    #[test]
    fn control_round_trips_alone_and_in_a_batch(all in prop::collection::vec(any_control(), 1..20)) {
        let mut batch = BytesMut::new();
        for control in &all {
            round_trip(&Any::Control(control.clone()))?;
            batch = control.encode_into(batch);
        }
        let mut rest = batch.freeze();
        for control in &all {
            let length = message::length(&rest, limits::CONTROL_BYTES).unwrap().unwrap();
            let message = rest.split_to(LENGTH_BYTES + length).slice(LENGTH_BYTES..);
            let decoded = Control::decode(message);
            prop_assert_eq!(decoded.as_ref(), Ok(control));
        }
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn hellos_round_trip(
        version: u16, features: u64, agent_version in "[ -~]{0,40}", instance: [u8; 16],
        chain in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8), signature: Vec<u8>,
        held in prop::collection::vec("[!-~]{1,128}", 0..8),
    ) {
        let proof = (!chain.is_empty())
            .then(|| Proof { chain: chain.into_iter().map(Bytes::from).collect(), signature: signature.into() });
        let (version, features) = (Version(version), Features(features));
        let held = held.into_iter().map(Bytes::from).collect();
        round_trip(&Any::Hello(Hello { version, features, agent_version, instance, proof, held }))?;
    }
}

#[test]
fn fuzz_targets_hold_over_the_kept_corpus() {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for (name, target) in fuzz::TARGETS {
        let folder = corpus.join(name);
        let files: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert!(!files.is_empty(), "{name} has a corpus");
        for file in files {
            target(&fs::read(file).unwrap());
        }
    }
}

/// xorshift64*: the same run every time.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % bound.max(1)
    }
}

const MUTATIONS: usize = 20_000;

#[test]
fn fuzz_targets_hold_over_mutated_seeds() {
    let corpus = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    for (name, target) in fuzz::TARGETS {
        let mut seeds: Vec<Vec<u8>> =
            fs::read_dir(corpus.join(name)).unwrap().map(|entry| fs::read(entry.unwrap().path()).unwrap()).collect();
        seeds.sort();
        let mut random = Random(0x5eed);
        for _ in 0..MUTATIONS {
            let mut bytes = seeds[random.below(seeds.len())].clone();
            for _ in 0..=random.below(4) {
                let at = random.below(bytes.len() + 1);
                match random.below(5) {
                    0 => bytes.insert(at, random.below(256) as u8),
                    1 => bytes.truncate(at),
                    2 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
                    3 if at < bytes.len() => bytes[at] = random.below(256) as u8,
                    _ => {
                        let other = &seeds[random.below(seeds.len())];
                        let from = random.below(other.len());
                        let piece = other[from..].iter().copied().take(random.below(20)).collect::<Vec<_>>();
                        bytes.splice(at..at, piece);
                    }
                }
            }
            target(&bytes);
        }
    }
}
