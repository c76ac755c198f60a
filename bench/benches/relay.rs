//! What a chunk of a body costs on a stream, carrier and TLS left out: given at one end, taken at the other as a body,
//! credit returned; and what a whole small exchange costs in that way.

#![allow(missing_docs, reason = "criterion's macros make undocumented items")]

use bytes::Bytes;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use daemon::TaskGroup;
use http::{HeaderMap, Method, StatusCode};
use http_body_util::{BodyExt as _, Full};
use tokio::runtime::{Builder, Runtime};
use tunnel::{
    exchange::{Counters, StreamBody, respond},
    transport::{Stream, TunnelHandle, memory},
    wire::head::{RequestHead, ResponseHead},
};
use types::ids::RequestId;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_time().build().expect("a runtime")
}

fn request() -> Bytes {
    let head = RequestHead {
        role: "kube-aad-proxy".to_owned(),
        request_id: RequestId([7; 16]),
        method: Method::GET,
        target: Bytes::from_static(b"/api/v1/namespaces/default/pods/one"),
        headers: HeaderMap::new(),
        deadline_ms: Some(60_000),
        traceparent: None,
        user_address: None,
    };
    head.encode().expect("within limits").freeze()
}

fn chunks(c: &mut Criterion) {
    let runtime = runtime();
    let (gateway, agent) = runtime.block_on(memory::pair());
    let mut group = c.benchmark_group("relay/chunk");
    for bytes in [1 << 10, 16 << 10, 64 << 10] {
        let (here, there) = runtime.block_on(async {
            let here = gateway.open(request()).await.expect("a stream");
            (here, agent.accept().await.expect("the same stream").stream)
        });
        let (Stream { mut send, .. }, mut body) = (there, StreamBody::new(here.recv));
        let chunk = Bytes::from(vec![7; bytes]);
        group.throughput(Throughput::Bytes(bytes as u64));
        group.bench_function(format!("{} KiB", bytes >> 10), |b| {
            b.iter(|| {
                runtime.block_on(async {
                    let sent = send.send(chunk.clone());
                    let taken = async {
                        let mut left = bytes;
                        while left > 0 {
                            let frame = body.frame().await.expect("no end").expect("no fault");
                            left -= frame.data_ref().map_or(0, Bytes::len);
                        }
                    };
                    let (sent, ()) = tokio::join!(sent, taken);
                    sent.expect("a reader");
                });
            });
        });
        // Both ends of the stream go together.
        drop((send, body, here.send));
    }
    group.finish();
}

async fn serve(agent: TunnelHandle) {
    let head = ResponseHead { status: StatusCode::OK, headers: HeaderMap::new(), refused_by: None };
    while let Ok(mut incoming) = agent.accept().await {
        let body = Full::new(Bytes::from_static(b"{\"kind\":\"Pod\"}"));
        // The other end is this file's.
        let _ = respond(&mut incoming.stream.send, &head, body, &Counters::default()).await;
    }
}

fn exchanges(c: &mut Criterion) {
    let (runtime, tasks) = (runtime(), TaskGroup::new("agent"));
    let gateway = runtime.block_on(async {
        let (gateway, agent) = memory::pair().await;
        tasks.spawn("serve", serve(agent));
        gateway
    });
    let request = request();
    c.bench_function("relay/exchange of a small answer", |b| {
        b.iter(|| {
            runtime.block_on(async {
                let mut stream = gateway.open(request.clone()).await.expect("a stream");
                stream.send.finish().expect("an open stream");
                let head = stream.recv.recv_message(1 << 16).await.expect("an answer");
                let head = ResponseHead::decode(head).expect("a head");
                let body = StreamBody::of_response(stream.recv, &Method::GET, head.status, &head.headers);
                body.collect().await.expect("a body").to_bytes()
            })
        });
    });
    tasks.abort();
}

criterion_group!(benches, chunks, exchanges);
criterion_main!(benches);
