//! The wire codec: what each request and each window update costs on top of moving its bytes.

#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use std::hint::black_box;

use bytes::BytesMut;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use tunnel::wire::{
    control::Control,
    head::{RequestHead, ResponseHead},
    message::LENGTH_BYTES,
    varint,
};
use types::ids::StreamId;

mod kubectl;

use kubectl::{head, sent};

/// A user with 300 groups: a token of 40 KB and a line for each group.
fn groups_300() -> RequestHead {
    let mut headers = sent(40_000);
    for n in 0..300 {
        let group = HeaderValue::try_from(format!("group-{n:0>94}")).expect("visible ASCII");
        headers.append(HeaderName::from_static("impersonate-group"), group);
    }
    head(headers)
}

fn heads(c: &mut Criterion) {
    for (name, head) in [("small", head(sent(800))), ("300 groups", groups_300())] {
        let bytes = head.encode().expect("within limits").freeze().slice(LENGTH_BYTES..);
        let mut group = c.benchmark_group(format!("head/{name}"));
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function("encode", |b| b.iter(|| black_box(&head).encode()));
        group.bench_function("decode", |b| b.iter(|| RequestHead::decode(black_box(&bytes).clone())));
        group.finish();
    }
}

/// What an apiserver answers with.
fn answer() -> ResponseHead {
    let mut headers = HeaderMap::new();
    for (name, text) in [
        ("audit-id", "0a1b2c3d-0000-4000-8000-000000000000"),
        ("cache-control", "no-cache, private"),
        ("content-type", "application/json"),
        ("date", "Tue, 24 Nov 2026 22:00:00 GMT"),
        ("x-kubernetes-pf-flowschema-uid", "0a1b2c3d-0000-4000-8000-000000000001"),
        ("x-kubernetes-pf-prioritylevel-uid", "0a1b2c3d-0000-4000-8000-000000000002"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(text));
    }
    ResponseHead { status: StatusCode::OK, headers, refused_by: None }
}

fn answers(c: &mut Criterion) {
    let head = answer();
    let bytes = head.encode().expect("within limits").freeze().slice(LENGTH_BYTES..);
    let mut group = c.benchmark_group("head/answer");
    group.throughput(Throughput::Bytes(bytes.len() as u64));
    group.bench_function("encode", |b| b.iter(|| black_box(&head).encode()));
    group.bench_function("decode", |b| b.iter(|| ResponseHead::decode(black_box(&bytes).clone())));
    group.finish();
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

criterion_group!(benches, heads, answers, control, integers);
criterion_main!(benches);
