//! The wire codec: what each request and each window update costs on top of moving its bytes.

#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::hint::black_box;

use bytes::{Bytes, BytesMut};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use proto::{
    ids::{RequestId, StreamId},
    wire::{control::Control, head::RequestHead, message::LENGTH_BYTES, varint},
};

fn value(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("visible ASCII")
}

/// What kubectl sends.
fn small() -> RequestHead {
    let mut headers = HeaderMap::new();
    for (name, text) in [
        ("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"),
        ("accept-encoding", "gzip"),
        ("user-agent", "kubectl/v1.34.0 (linux/amd64) kubernetes/0000000"),
        ("kubectl-command", "kubectl get"),
        ("kubectl-session", "7e4c1b9c-0000-4000-8000-000000000000"),
    ] {
        headers.insert(HeaderName::from_static(name), value(text));
    }
    headers.insert(http::header::AUTHORIZATION, value(&format!("Bearer {}", "t".repeat(800))));
    RequestHead {
        role: "kube-aad-proxy".to_owned(),
        request_id: RequestId([7; 16]),
        method: Method::GET,
        target: Bytes::from_static(b"/api/v1/namespaces/default/pods?limit=500"),
        headers,
        deadline_ms: Some(60_000),
        traceparent: None,
        user_address: Some(Bytes::from_static(b"192.0.2.1:40000")),
    }
}

/// A user with 300 groups: a token of 40 KB and a line for each group.
fn groups_300() -> RequestHead {
    let mut head = small();
    head.headers.insert(http::header::AUTHORIZATION, value(&format!("Bearer {}", "t".repeat(40_000))));
    for n in 0..300 {
        head.headers.append(HeaderName::from_static("impersonate-group"), value(&format!("group-{n:0>94}")));
    }
    head
}

fn heads(c: &mut Criterion) {
    for (name, head) in [("small", small()), ("300 groups", groups_300())] {
        let bytes = head.encode().expect("within limits").freeze().slice(LENGTH_BYTES..);
        let mut group = c.benchmark_group(format!("head/{name}"));
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function("encode", |b| b.iter(|| black_box(&head).encode()));
        group.bench_function("decode", |b| b.iter(|| RequestHead::decode(black_box(&bytes).clone())));
        group.finish();
    }
}

fn control(c: &mut Criterion) {
    let window = Control::Window { stream: StreamId(4711), position: 1 << 33 };
    let bytes = window.encode().freeze().slice(LENGTH_BYTES..);
    let mut group = c.benchmark_group("control/window");
    let mut out = BytesMut::new();
    group.bench_function("encode", |b| {
        b.iter(|| {
            out.clear();
            out = black_box(&window).encode_into(std::mem::take(&mut out));
        });
    });
    group.bench_function("decode", |b| b.iter(|| Control::decode(black_box(&bytes).clone())));
    group.finish();
}

fn integers(c: &mut Criterion) {
    let mut group = c.benchmark_group("varint");
    for number in [1u64, 1 << 20, u64::MAX] {
        let mut out = Vec::with_capacity(10);
        varint::put(&mut out, number);
        group.bench_function(format!("put {} bytes", out.len()), |b| {
            let mut buffer = Vec::with_capacity(10);
            b.iter(|| {
                buffer.clear();
                varint::put(&mut buffer, black_box(number));
            });
        });
        group.bench_function(format!("take {} bytes", out.len()), |b| b.iter(|| varint::take(black_box(&out))));
    }
    group.finish();
}

criterion_group!(benches, heads, control, integers);
criterion_main!(benches);
