//! Opens a stream on one of the tunnels: the cluster's own here, and where none takes it one of another replica's, over
//! a hop ([`crate::hop`]). The next one is tried only where no byte of the request was sent, which `OpenError` promises
//! in every case; once a stream is open there is another try only where the agent, or the other replica, refuses it
//! ([`relay`](super::relay)).

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use tracing::Instrument as _;
use tunnel::{
    transport::{CarrierKind, OpenError, Stream, TunnelHandle},
    wire::head::RequestHead,
};
use types::ids::ClusterKey;

use super::refusal::{Kind, Refusal};
use crate::{
    audit::Record,
    core::Core,
    fleet::registry::LiveTunnel,
    hop::{self, HopError, Hops, links::Link},
    identity::PrincipalKey,
    metrics::{OpenGuard, labels::Stage},
    sessions::slots::Slot,
};

/// What bears a stream.
pub enum Via {
    /// A tunnel of this gateway.
    Own(Arc<LiveTunnel>),
    /// A link to another replica, which has the tunnel.
    Hop(Arc<Link>),
}

impl Via {
    /// The tunnel, or the link.
    pub fn handle(&self) -> &TunnelHandle {
        match self {
            Self::Own(tunnel) => &tunnel.handle,
            Self::Hop(link) => &link.handle,
        }
    }

    /// The carrier that leaves this gateway.
    pub fn carrier(&self) -> CarrierKind {
        self.handle().info().carrier
    }

    /// Puts it into the record.
    pub fn note(&self, record: &mut Record) {
        record.carrier(self.carrier());
        if let Self::Hop(link) = self {
            record.handed_to(&link.replica);
        }
    }

    /// The other replica, if the stream goes there.
    pub fn replica(&self) -> Option<&str> {
        match self {
            Self::Own(_) => None,
            Self::Hop(link) => Some(&link.replica),
        }
    }
}

/// An open stream, with its place in the counts.
pub struct Opened {
    /// The stream; its head is on the way.
    pub stream: Stream,
    /// What bears it.
    pub via: Via,
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

/// Where a stream may go.
pub struct Ways<'a> {
    /// The cluster that the stream is to reach.
    pub cluster: &'a ClusterKey,
    /// Its tunnels here, best first.
    pub tunnels: Vec<Arc<LiveTunnel>>,
    /// What the request was refused by already.
    pub refused_by: Option<&'a Via>,
}

/// Opens a stream for the encoded `head`, on the first tunnel that takes it; its send half is finished if nothing
/// follows the head.
pub fn open<'a>(
    core: &'a Core,
    Ways { cluster, tunnels, refused_by }: Ways<'a>,
    head: Bytes,
    bodiless: bool,
    slot: Slot,
) -> impl Future<Output = Result<Opened, Refusal>> + use<'a> {
    let limits = core.limits();
    let (limit, deadline) = (limits.streams_per_tunnel, Instant::now() + limits.open_timeout);
    let own = refused_by.and_then(|refused_by| if let Via::Own(tunnel) = refused_by { Some(tunnel) } else { None });
    let tried = tunnels.iter().chain(own).map(|tunnel| tunnel.number()).max();
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
                    return Ok(Opened { stream, via: Via::Own(tunnel), place });
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
        if let Some(hops) = &core.hops {
            let refused_by = refused_by.and_then(Via::replica);
            let here = &*core.tunnels;
            let request = hop::Request { cluster, head, bodiless, deadline, refused_by, here, tried };
            // Boxed: most requests have a tunnel here.
            match Box::pin(elsewhere(hops, request)).await {
                Ok((stream, via)) => {
                    let place = Place { slot, _open: core.metrics.streams.enter() };
                    return Ok(Opened { stream, via, place });
                }
                // What this gateway's own tunnels say is told.
                Err(HopError::Nobody) => {}
                Err(error) if last.is_none() => return Err(Refusal::from(error)),
                Err(error) => tracing::debug!(%error, "no stream over a hop either"),
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

/// Opens a stream over a hop; or on a tunnel of this gateway that came while the way to another replica was waited for.
async fn elsewhere(hops: &Hops, mut request: hop::Request<'_>) -> Result<(Stream, Via), HopError> {
    loop {
        match hops.open(&request).await {
            Ok((stream, link)) => return Ok((stream, Via::Hop(link))),
            Err(HopError::Here) => {}
            Err(error) => return Err(error),
        }
        for tunnel in request.here.newer(request.cluster, request.tried) {
            request.tried = request.tried.max(Some(tunnel.number()));
            let head = request.head.clone();
            let opening = if request.bodiless { tunnel.handle.ask(head) } else { tunnel.handle.open(head) };
            match tokio::time::timeout_at(request.deadline.into(), opening).await {
                Ok(Ok(stream)) => {
                    tunnel.use_now();
                    return Ok((stream, Via::Own(tunnel)));
                }
                Ok(Err(error)) => tracing::debug!(tunnel = %tunnel, %error, "stream not opened on a tunnel that came"),
                Err(_) => return Err(HopError::Timeout),
            }
        }
    }
}

impl From<HopError> for Refusal {
    fn from(error: HopError) -> Self {
        let kind = match &error {
            HopError::Nobody | HopError::Here | HopError::Unreached { .. } => Kind::NoAgent,
            HopError::Open(OpenError::TooManyStreams(limit)) => {
                Kind::Limit { name: "streams between replicas", value: u64::from(*limit) }
            }
            HopError::Open(_) => Kind::NoAgent,
            HopError::Timeout => Kind::OpenTimeout,
            HopError::Head(_) => Kind::HeadTooLarge { name: "head bytes", value: types::limits::HEAD_BYTES },
        };
        Self::new(Stage::Open, kind).because(daemon::chain(&error))
    }
}
