//! The session's handle, which the rest of the programs use: open and accept streams, drain, close, and wait for
//! either. It hides the carrier.

use std::{sync::Arc, time::Duration};

use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{FutureExt, future::BoxFuture};
use tokio::time::sleep;

use super::{incoming::Queue, state::Shared, stream};
use crate::{
    transport::{Closed, Drain, Incoming, OpenError, Packets, Stream, Tunnel, TunnelInfo, carrier::Link},
    wire::{close::CloseCode, varint},
};

/// Bytes that a varint of 64 bits takes at most.
const VARINT_BYTES: usize = 10;

pub(super) struct SessionTunnel {
    info: TunnelInfo,
    shared: Arc<Shared>,
    link: Arc<Link>,
    accepted: Arc<Queue<Incoming>>,
}

impl SessionTunnel {
    pub(super) fn new(info: TunnelInfo, shared: Arc<Shared>, link: Arc<Link>, accepted: Arc<Queue<Incoming>>) -> Self {
        Self { info, shared, link, accepted }
    }

    async fn open_stream(&self, head: Bytes, last: bool) -> Result<Stream, OpenError> {
        if let Some(closed) = self.shared.ended() {
            return Err(closed.into());
        }
        let lease = self.shared.lease()?;
        if let Some(wait) = self.shared.resets.wait() {
            tokio::select! {
                biased;
                closed = self.shared.wait_ended() => return Err(closed.into()),
                // Boxed, so that this rare case does not enlarge the future of every stream.
                () = Box::pin(sleep(wait)) => {}
            }
            if self.shared.drain.is_set() {
                return Err(OpenError::Draining);
            }
        }
        let raw = tokio::select! {
            biased;
            closed = self.shared.wait_ended() => return Err(closed.into()),
            raw = self.link.open() => match raw {
                Ok(raw) => raw,
                Err(_) => return Err(self.shared.wait_ended().await.into()),
            },
        };
        // From here on dropping this future resets the stream.
        let mut stream = stream::stream(lease, raw);
        let mut first = BytesMut::with_capacity(VARINT_BYTES + head.len());
        varint::put(&mut first, stream.id.0);
        first.put(head);
        match stream.send.begin(self.link.count_first(first.freeze()), last).await {
            Ok(()) => Ok(stream),
            Err(_) => Err(self.shared.wait_ended().await.into()),
        }
    }
}

impl Tunnel for SessionTunnel {
    fn open(&self, head: Bytes) -> BoxFuture<'_, Result<Stream, OpenError>> {
        self.open_stream(head, false).boxed()
    }

    fn ask(&self, head: Bytes) -> BoxFuture<'_, Result<Stream, OpenError>> {
        self.open_stream(head, true).boxed()
    }

    fn accept(&self) -> BoxFuture<'_, Result<Incoming, Closed>> {
        async {
            tokio::select! {
                biased;
                closed = self.shared.wait_ended() => Err(closed),
                incoming = self.accepted.next() => Ok(incoming),
            }
        }
        .boxed()
    }

    fn drain(&self, code: CloseCode, reconnect_within: Duration) {
        self.shared.queue_drain(code, reconnect_within);
    }

    fn draining(&self) -> BoxFuture<'_, Drain> {
        self.shared.drain.wait().boxed()
    }

    fn close(&self, code: CloseCode, message: &str) {
        self.shared.end(Closed { code, message: message.to_owned(), by_peer: false });
    }

    fn closed(&self) -> BoxFuture<'_, Closed> {
        self.shared.wait_ended().boxed()
    }

    fn info(&self) -> &TunnelInfo {
        &self.info
    }

    fn open_streams(&self) -> usize {
        self.shared.open_streams()
    }

    fn rtt(&self) -> Option<Duration> {
        self.shared.life.rtt()
    }

    fn received(&self) -> u64 {
        self.shared.life.received()
    }

    fn suspect(&self) -> bool {
        self.shared.life.is_suspect()
    }

    fn probe(&self) {
        self.shared.life.doubted.notify_one();
    }

    fn packets(&self) -> Option<Packets> {
        self.link.packets()
    }
}

impl Drop for SessionTunnel {
    fn drop(&mut self) {
        self.close(CloseCode::Shutdown, "");
    }
}
