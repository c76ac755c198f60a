//! Opens a stream on one of the tunnels. The next tunnel is tried only where no byte of the request was sent, which
//! `OpenError` promises in every case; once a stream is open there is another try only where the agent refuses it
//! ([`relay`](super::relay)).

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use tracing::Instrument as _;
use tunnel::{
    transport::{OpenError, Stream},
    wire::head::RequestHead,
};

use super::respond::{Kind, Refusal};
use crate::{
    core::Core,
    fleet::registry::LiveTunnel,
    identity::PrincipalKey,
    metrics::{OpenGuard, labels::Stage},
    sessions::slots::Slot,
};

/// An open stream, with its place in the counts.
pub struct Opened {
    /// The stream; its head is on the way.
    pub stream: Stream,
    /// What bears it.
    pub tunnel: Arc<LiveTunnel>,
    /// Its place in the counts, given back on drop.
    pub place: Place,
}

/// A stream's place in the counts.
pub struct Place {
    slot: Slot,
    _open: OpenGuard,
}

impl Place {
    /// Whose it is.
    pub fn user(&self) -> Option<&PrincipalKey> {
        self.slot.user()
    }

    /// For another stream instead of this one.
    pub fn into_slot(self) -> Slot {
        self.slot
    }
}

/// A request's head as it goes onto a stream.
pub fn encode(head: &RequestHead) -> Result<Bytes, Refusal> {
    let encoded = head.encode().map_err(|error| {
        let kind = Kind::HeadTooLarge { name: "head bytes", value: types::limits::HEAD_BYTES };
        Refusal::new(Stage::Open, kind).because(error)
    })?;
    Ok(encoded.freeze())
}

/// Opens a stream for the encoded `head`, on the first tunnel that takes it; its send half is finished if nothing
/// follows the head.
pub fn open(
    core: &Core,
    tunnels: Vec<Arc<LiveTunnel>>,
    (head, bodiless): (Bytes, bool),
    slot: Slot,
) -> impl Future<Output = Result<Opened, Refusal>> {
    let limits = core.limits();
    let (limit, deadline) = (limits.streams_per_tunnel, Instant::now() + limits.open_timeout);
    let (mut tunnels, mut last) = (tunnels.into_iter(), None);
    // No async fn, so that the future stays small (docs/decisions/0013-small-futures.md).
    let opening = async move {
        for tunnel in tunnels.by_ref() {
            if tunnel.handle.open_streams() >= limit as usize {
                last = Some(OpenError::TooManyStreams(limit));
                continue;
            }
            let head = head.clone();
            let opening = if bodiless { tunnel.handle.ask(head) } else { tunnel.handle.open(head) };
            match tokio::time::timeout_at(deadline.into(), opening).await {
                Ok(Ok(stream)) => {
                    tunnel.use_now();
                    let place = Place { slot, _open: core.metrics.streams.enter() };
                    return Ok(Opened { stream, tunnel, place });
                }
                Ok(Err(error)) => {
                    tracing::debug!(tunnel = %tunnel, %error, "stream not opened; trying another tunnel");
                    if matches!(error, OpenError::Draining) {
                        tunnel.set_draining();
                    }
                    last = Some(error);
                }
                Err(_) => return Err(Refusal::new(Stage::Open, Kind::OpenTimeout)),
            }
        }
        Err(match last {
            Some(OpenError::TooManyStreams(limit)) => {
                Refusal::new(Stage::Open, Kind::Limit { name: "streams per tunnel", value: u64::from(limit) })
            }
            Some(error) => Refusal::new(Stage::Open, Kind::NoAgent).because(error),
            None => Refusal::new(Stage::Open, Kind::NoAgent),
        })
    };
    opening.instrument(tracing::debug_span!("open"))
}
