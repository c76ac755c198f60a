//! Giving up at any point leaves nothing open.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use tunnel::transport::{Incoming, StreamError, TunnelHandle};

use crate::carriers::{Pair, head, serve};

/// Polls `future` until it is ready or was pending `polls` times, then drops it. Whether it was ready.
async fn give_up_after<F: Future>(polls: usize, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut pending = 0;
    std::future::poll_fn(move |cx: &mut Context<'_>| match future.as_mut().poll(cx) {
        Poll::Ready(output) => Poll::Ready(Some(output)),
        Poll::Pending if pending == polls => Poll::Ready(None),
        Poll::Pending => {
            pending += 1;
            Poll::Pending
        }
    })
    .await
}

async fn exchange(tunnel: TunnelHandle) {
    let Ok(mut stream) = tunnel.open(head(b"x")).await else { return };
    // Less than a window: the echo must not wait for a reader that comes only later.
    for _ in 0..4 {
        if stream.send.send(Bytes::from(vec![7; 30_000])).await.is_err() {
            return;
        }
    }
    let _ = stream.send.finish();
    while let Ok(Some(_)) = stream.recv.recv().await {}
}

async fn echo(incoming: Incoming) {
    let mut stream = incoming.stream;
    loop {
        match stream.recv.recv().await {
            Ok(Some(chunk)) => {
                if stream.send.send(chunk).await.is_err() {
                    return;
                }
            }
            Ok(None) => break,
            Err(_) => return,
        }
    }
    let _ = stream.send.finish();
}

pub async fn at_every_poll(pair: Arc<Pair>) {
    let _serving = serve(&pair.acceptor, echo);
    for polls in 0..60 {
        give_up_after(polls, exchange(pair.opener.clone())).await;
    }
    pair.idle().await;
    // The tunnel is as good as new.
    exchange(pair.opener.clone()).await;
}

pub async fn ten_thousand_requests(pair: Arc<Pair>) {
    // Each is answered by silence until its opener goes away, as a watch is.
    let _serving = serve(&pair.acceptor, async |incoming: Incoming| {
        let mut stream = incoming.stream;
        let end = stream.send.stopped().await;
        assert!(!matches!(end, StreamError::Lost(_)), "{end:?}");
    });
    let opener = &pair.opener;
    stream::iter(0..10_000)
        .for_each_concurrent(500, |number| async move {
            let mut stream = opener.open(head(b"x")).await.unwrap();
            match number % 3 {
                0 => {}
                1 => stream.send.finish().unwrap(),
                _ => {
                    stream.send.finish().unwrap();
                    tokio::task::yield_now().await;
                }
            }
        })
        .await;
    pair.idle().await;
}
