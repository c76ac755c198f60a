//! Connections to hosts that this gateway reaches and a cluster does not (docs/gitops.md; docs/features.md N1): for the
//! source of a flux configuration with `throughGateway`, and nothing else. TLS on them is end to end between Flux and the
//! source, so nothing is seen here.
//!
//! An agent names one of its own cluster's configurations and a destination. It is dialled where all of these hold, and
//! for as long as they do:
//!
//! 1. `[egress]` of the configuration has the destination ([`Egress::allows`]);
//! 2. the configuration is there, has `throughGateway`, and its source is at the destination;
//! 3. the address that the name leads to is no special one ([`Egress::allows_address`]) and none of this machine: it is
//!    looked up once, and what was judged is dialled.
//!
//! [`Egress::allows`]: crate::config::egress::Egress::allows
//! [`Egress::allows_address`]: crate::config::egress::Egress::allows_address

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::{Arc, LazyLock},
    time::{Duration, SystemTime},
};

use daemon::{TaskGroup, chain, tcp};
use http::{Method, StatusCode};
use tokio::{
    net::TcpStream,
    sync::oneshot,
    time::{Instant, sleep, timeout},
};
use tunnel::{
    exchange::{Counters, respond, respond_head, splice_counted},
    transport::Stream,
    wire::head::{RequestHead, ResponseHead},
};
use types::{agent_api::EGRESS_PATH, api::ResourceId};

use super::{busy, certificate, named, query};
use crate::{
    api_error::ApiError,
    audit::{Outcome, Passed},
    config::egress::{Destination, Egress},
    control::Control,
    core::Core,
    fleet::{registry::LiveTunnel, ways_out::WayOut},
    metrics::OpenGuard,
    places::{Held, Shares},
    rate::Rate,
    resources::flux_configuration,
};

/// Names that are being looked up at once. The system's resolver cannot be interrupted: a look-up has its place until it
/// ends, which may be long after its connection was given up. Each holds a thread of those that files are read by too.
const LOOK_UPS: u32 = 256;
static LOOKING: LazyLock<Shares> = LazyLock::new(|| Shares::new(LOOK_UPS));
/// How often one cluster may ask. A fetch takes a few connections, and begins no more often than each second.
const RATE: Rate = Rate::new(60, 2.0);
/// How often it may ask for one of its configurations.
const RATE_OF_CONFIGURATION: Rate = Rate::new(30, 0.5);
/// How long the look-up of a name, and a connection to one of its addresses, may take each.
const STEP: Duration = Duration::from_secs(10);
/// How long an answer may wait for its reader.
const ANSWER_DEADLINE: Duration = Duration::from_secs(30);
/// A connection on which nothing moves either way ends after this: a server may count objects for minutes before it sends
/// the first of them.
const IDLE: Duration = Duration::from_secs(300);
/// How often that is looked at.
const LOOKS: u32 = 10;
/// The longest life of a connection. Flux gives a fetch up that takes as long.
const LONGEST: Duration = Duration::from_secs(3600);
/// A connection ends when its right could not be looked at for this long.
const UNREADABLE: Duration = Duration::from_secs(300);
/// How often the right of a connection is looked at though nobody told of a change.
const JUDGE_EVERY: Duration = Duration::from_secs(30);

/// Why a connection is refused: the word of the metric, and the answer.
type Refusal = (&'static str, Box<ApiError>);

/// What an agent asks for.
struct Asked {
    configuration: String,
    to: Destination,
}

/// A connection, from the question to its end; dropping it writes the audit record.
struct Connection<'a> {
    core: &'a Core,
    cluster: &'a str,
    head: &'a RequestHead,
    asked: Option<&'a Asked>,
    time: SystemTime,
    started: Instant,
    address: Option<SocketAddr>,
    counters: Counters,
    /// The word of the metric, how it ended, and why if somebody refused or ended it.
    ended: (&'static str, Outcome, Option<String>),
    open: Option<OpenGuard>,
}

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        let metrics = &self.core.metrics;
        let (up, down) = (self.counters.received(), self.counters.sent());
        metrics.egress_bytes_up.increment(up);
        metrics.egress_bytes_down.increment(down);
        metrics.egress(self.ended.0);
        let to = self.asked.map(|asked| asked.to.to_string()).unwrap_or_default();
        self.core.audit.egress(
            metrics,
            &Passed {
                time: self.time,
                id: self.head.request_id,
                cluster: self.cluster,
                configuration: self.asked.map_or("", |asked| asked.configuration.as_str()),
                to: &to,
                address: self.address,
                outcome: self.ended.1,
                reason: self.ended.2.as_deref(),
                up,
                down,
                took: self.started.elapsed(),
            },
        );
        drop(self.open.take());
    }
}

/// Serves one stream: dials, and carries bytes until one side ends, nothing moves any more, or the right to it is gone.
pub async fn serve(core: &Arc<Core>, control: &Control, tunnel: &LiveTunnel, head: RequestHead, stream: Stream) {
    let Stream { mut send, recv, .. } = stream;
    let asked = Asked::of(&head);
    let of_configuration = asked.as_ref().map_or(Ok(()), |asked| {
        core.agents.by_configuration(tunnel.cluster.key, &asked.configuration, RATE_OF_CONFIGURATION)
    });
    // What is refused because it comes too often is not recorded: the records would be as many.
    if let Err(error) = of_configuration.and_then(|()| core.agents.by_cluster(tunnel.cluster.key, EGRESS_PATH, RATE)) {
        core.metrics.egress("limit");
        return refuse(&mut send, &head, error).await;
    }
    let mut connection = Connection {
        core,
        cluster: tunnel.cluster.id.as_str(),
        head: &head,
        asked: asked.as_ref().ok(),
        time: SystemTime::now(),
        started: Instant::now(),
        address: None,
        counters: Counters::default(),
        ended: ("cancelled", Outcome::Cancelled, None),
        open: None,
    };
    let right = Right { core, control, tunnel };
    let mut changes = right.changes();
    let opened = async {
        let asked = asked.as_ref().map_err(|message| {
            let error = ApiError::bad_request("InvalidRequest", (*message).to_owned());
            ("unreadable", Box::new(error))
        })?;
        let place = core.agents.ways_out.take(&tunnel.cluster.id, tunnel.cluster.key, &asked.configuration);
        let place = Arc::new(place.map_err(|limit| ("limit", Box::new(busy(&limit))))?);
        right.judge(asked, None).await?;
        Ok((asked, dial(core, &asked.to, &place).await?, place))
    };
    let opened = tokio::select! {
        biased;
        _ = send.stopped() => return,
        opened = opened => opened,
    };
    let (asked, socket, _place) = match opened {
        Ok(opened) => opened,
        Err((word, error)) => {
            let id = tunnel.id();
            tracing::info!(
                tunnel = id,
                code = error.detail.code,
                why = error.detail.message,
                "no way out for a cluster"
            );
            connection.ended = (word, Outcome::Refused, Some(error.detail.message.clone()));
            drop(connection);
            return refuse(&mut send, &head, *error).await;
        }
    };
    connection.address = socket.peer_addr().ok();
    connection.open = Some(core.metrics.egress.enter());
    let answer = ResponseHead { status: StatusCode::OK, headers: http::HeaderMap::new(), refused_by: None };
    if !matches!(timeout(ANSWER_DEADLINE, respond_head(&mut send, &answer)).await, Ok(Ok(()))) {
        return;
    }
    let ended = tokio::select! {
        biased;
        why = right.lost(asked, connection.address, &mut changes) => ("revoked", Outcome::Ended, Some(why)),
        () = core.shutdown.closed() => ("ended", Outcome::Ended, Some("the gateway stops".to_owned())),
        () = sleep(LONGEST) => ("too_long", Outcome::Ended, Some(format!("it lasted {} s", LONGEST.as_secs()))),
        () = idle(&connection.counters, IDLE) => ("idle", Outcome::Ended, Some("nothing moved any more".to_owned())),
        end = splice_counted(socket, send, recv, &connection.counters) => match end {
            Ok(()) => ("complete", Outcome::Complete, None),
            Err(error) => ("broken_off", Outcome::BrokenOff, Some(chain(&error))),
        },
    };
    connection.ended = ended;
}

impl Asked {
    /// Reads the head of a stream.
    fn of(head: &RequestHead) -> Result<Self, &'static str> {
        let target = String::from_utf8_lossy(&head.target);
        let (path, asked) = target.split_once('?').unwrap_or((&target, ""));
        if path != EGRESS_PATH || head.method != Method::CONNECT {
            return Err("A stream to another host is CONNECT /v1/egress.");
        }
        let mut asked = query(Some(asked));
        let mut take = |name: &str| {
            let at = asked.iter().position(|(key, _)| key == name)?;
            Some(asked.swap_remove(at).1)
        };
        let to = take("to").unwrap_or_default();
        let to = to.parse().map_err(|_| "The query parameter 'to' must be host:port.")?;
        let configuration = take("configuration").unwrap_or_default();
        if flux_configuration::rules::label(&configuration).is_err() {
            return Err("The query parameter 'configuration' must be the name of a flux configuration.");
        }
        Ok(Self { configuration, to })
    }
}

/// What tells that the right to a connection may have changed.
struct Changes {
    /// The configuration file, or what is known of clusters.
    snapshots: tokio::sync::watch::Receiver<u64>,
    /// What is wanted in the cluster.
    wanted: tokio::sync::watch::Receiver<()>,
}

/// Judges what the agent of a tunnel asks for.
struct Right<'a> {
    core: &'a Core,
    control: &'a Control,
    tunnel: &'a LiveTunnel,
}

impl Right<'_> {
    fn cluster_key(&self) -> Option<String> {
        ResourceId::parse(self.tunnel.cluster.id.as_str()).ok().map(|id| id.key().to_owned())
    }

    fn changes(&self) -> Changes {
        let wanted = self.control.followers.follow(&self.cluster_key().unwrap_or_default());
        Changes { snapshots: self.core.snapshots.watch(), wanted }
    }

    async fn judge(&self, asked: &Asked, dialled: Option<SocketAddr>) -> Result<(), Refusal> {
        self.by_settings(asked, dialled)?;
        self.by_configuration(asked).await
    }

    /// Whether the cluster is still served, and the list of hosts has the destination and allows the address.
    fn by_settings(&self, asked: &Asked, dialled: Option<SocketAddr>) -> Result<(), Refusal> {
        let snapshot = self.core.snapshots.load();
        let served = snapshot.serves(&self.tunnel.cluster.id, &self.tunnel.names);
        served.map_err(|gone| ("not_served", Box::new(certificate::refused(&gone))))?;
        if snapshot.egress.allows(&asked.to) {
            let allowed = dialled.is_none_or(|address| may_dial(&snapshot.egress, &address));
            return if allowed { Ok(()) } else { Err(not_dialled(&asked.to)) };
        }
        let message = format!("[egress] hosts of the gateway's configuration does not have {}.", asked.to);
        Err(("host_not_allowed", forbidden(message)))
    }

    /// Whether a configuration of this cluster wants to go there.
    async fn by_configuration(&self, asked: &Asked) -> Result<(), Refusal> {
        let Asked { configuration, to } = asked;
        let refused = |why: &str| {
            let message = format!("The flux configuration {configuration} of this cluster {why}.");
            ("not_configured", forbidden(message))
        };
        // Nothing is kept of a cluster of the configuration file.
        let known = self.control.snapshot().stored(&self.tunnel.cluster.key).is_some();
        let cluster = self.cluster_key().filter(|_| known).ok_or_else(|| refused("is not there"))?;
        let key = format!("{cluster}/providers/{}/{configuration}", flux_configuration::NAME).to_ascii_lowercase();
        let stored = self.control.store.get(&key).await.map_err(|error| ("failed", Box::new(error.into())))?;
        let stored = stored.filter(|stored| !stored.is_deleting()).ok_or_else(|| refused("is not there"))?;
        match flux_configuration::goes_through_gateway(&stored.body) {
            None => Err(refused("does not go through the gateway")),
            Some(own) if own != *to => Err(refused(&format!("has its source at {own}, not at {to}"))),
            Some(_) => Ok(()),
        }
    }

    /// Returns once the right is gone, with the reason.
    async fn lost(&self, asked: &Asked, dialled: Option<SocketAddr>, changes: &mut Changes) -> String {
        let mut seen = Seen::at(Instant::now());
        loop {
            let judged = tokio::select! {
                Ok(()) = changes.snapshots.changed() => self.by_settings(asked, dialled).map(|()| false),
                Ok(()) = changes.wanted.changed() => self.judge(asked, dialled).await.map(|()| true),
                () = sleep(JUDGE_EVERY) => self.judge(asked, dialled).await.map(|()| true),
            };
            match judged {
                Ok(true) => seen = Seen::at(Instant::now()),
                Ok(false) => {}
                // A store that cannot be read says nothing about the right, until it was not read for too long.
                Err(("failed", _)) if !seen.is_too_old(Instant::now()) => {}
                Err(("failed", _)) => return format!("the store could not be read for {} s", UNREADABLE.as_secs()),
                Err((_, error)) => return error.detail.message.clone(),
            }
        }
    }
}

/// When the store last said that the right is there.
struct Seen(Instant);

impl Seen {
    fn at(now: Instant) -> Self {
        Self(now)
    }

    fn is_too_old(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.0) >= UNREADABLE
    }
}

fn forbidden(message: String) -> Box<ApiError> {
    Box::new(ApiError::of(StatusCode::FORBIDDEN, "EgressNotAllowed", message))
}

fn bad_gateway(message: String) -> Box<ApiError> {
    Box::new(ApiError::of(StatusCode::BAD_GATEWAY, "EgressFailed", message))
}

/// Whether an address may be dialled: no special one and none of this machine, where the gateway itself listens and what
/// else is not meant for clusters, unless the list has the address itself.
fn may_dial(egress: &Egress, address: &SocketAddr) -> bool {
    egress.lists_address(address) || (egress.allows_address(address) && !is_own(address.ip().to_canonical()))
}

/// Whether an address is one of this machine: then a socket can be bound to it.
fn is_own(ip: IpAddr) -> bool {
    let binds = |ip: IpAddr| UdpSocket::bind((ip, 0)).is_ok();
    // Addresses for documentation (RFC 5737, RFC 3849) belong to no machine. One that binds them too binds everything
    // (net.ipv4.ip_nonlocal_bind); there the source address that the system chooses for the way to it tells.
    let (nobody, any) = match ip {
        IpAddr::V4(_) => (IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        IpAddr::V6(_) => {
            (IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), IpAddr::V6(Ipv6Addr::UNSPECIFIED))
        }
    };
    let from = || {
        let socket = UdpSocket::bind((any, 0)).ok()?;
        // Nothing is sent: this only chooses the way.
        socket.connect((ip, 9)).ok()?;
        socket.local_addr().ok().map(|address| address.ip())
    };
    binds(ip) && (!binds(nobody) || from() == Some(ip))
}

fn not_dialled(to: &Destination) -> Refusal {
    let message = format!(
        "{to} leads to an address of the gateway's machine, of its link or of a metadata service; only an address that [egress] hosts of the gateway's configuration names itself is dialled there."
    );
    ("address_not_allowed", forbidden(message))
}

/// Looks a destination up and connects to one of its addresses that may be dialled.
async fn dial(core: &Core, to: &Destination, place: &Arc<WayOut>) -> Result<TcpStream, Refusal> {
    let unreachable =
        |error: tcp::ConnectError| ("unreachable", bad_gateway(format!("The gateway cannot reach {to}: {error}.")));
    let (host, port) = (to.host.clone(), to.port);
    let own = LOOKING.take(place.subscription());
    let looked_up = looking(&core.tasks, own, Arc::clone(place), async move { tcp::look_up(&host, port).await });
    let mut addresses = looked_up.await?.map_err(unreachable)?;
    let egress = Arc::clone(&core.snapshots.load().egress);
    addresses.retain(|address| may_dial(&egress, address));
    if addresses.is_empty() {
        return Err(not_dialled(to));
    }
    let socket = tcp::connect(&to.host, &addresses, STEP).await.map_err(unreachable)?;
    let _ = socket.set_nodelay(true);
    Ok(socket)
}

/// Waits [`STEP`] for a look-up, which keeps its places until it really ends: `own`, if it got one, and `place`.
async fn looking<T: Send + 'static>(
    tasks: &TaskGroup,
    own: Option<Held>,
    place: impl Send + 'static,
    look_up: impl Future<Output = T> + Send + 'static,
) -> Result<T, Refusal> {
    let own = own.ok_or_else(|| {
        let what = format!("As many look-ups of names as this subscription's share of {LOOK_UPS}");
        ("limit", Box::new(busy(&what)))
    })?;
    let (tell, told) = oneshot::channel();
    tasks.spawn("look-up", async move {
        let _ = tell.send(look_up.await);
        drop((own, place));
    });
    match timeout(STEP, told).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(_)) | Err(_) => {
            let message = format!("The gateway's resolver did not answer within {} s.", STEP.as_secs());
            Err(("unreachable", bad_gateway(message)))
        }
    }
}

/// Answers with an error.
async fn refuse(send: &mut tunnel::transport::SendStream, head: &RequestHead, error: ApiError) {
    if let Some(why) = &error.log {
        tracing::error!(error = why, "a way out for a cluster cannot be judged");
    }
    let (parts, body) = named(error.response(), head.request_id).into_parts();
    let answer = ResponseHead { status: parts.status, headers: parts.headers, refused_by: None };
    let _ = timeout(ANSWER_DEADLINE, respond(send, &answer, body, &Counters::default())).await;
}

/// Returns when nothing has moved for `limit`, or up to a tenth of it later.
async fn idle(counters: &Counters, limit: Duration) {
    let (mut seen, mut quiet) = (None, 0);
    while quiet < LOOKS {
        let now = Some((counters.sent(), counters.received()));
        quiet = if now == seen { quiet + 1 } else { 0 };
        seen = now;
        sleep(limit / LOOKS).await;
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use types::ids::RequestId;

    use super::*;

    fn read(method: Method, target: &str) -> Result<Asked, &'static str> {
        Asked::of(&RequestHead {
            role: types::agent_api::EGRESS_ROLE.to_owned(),
            request_id: RequestId([1; 16]),
            method,
            target: Bytes::copy_from_slice(target.as_bytes()),
            headers: http::HeaderMap::new(),
            deadline_ms: None,
            traceparent: None,
            user_address: None,
        })
    }

    #[test]
    fn n1_a_stream_names_a_configuration_and_a_destination() {
        let asked = read(Method::CONNECT, "/v1/egress?configuration=shop&to=Git.example.org:443").unwrap();
        assert_eq!((asked.configuration.as_str(), asked.to.to_string().as_str()), ("shop", "git.example.org:443"));
        for (method, target) in [
            (Method::GET, "/v1/egress?configuration=shop&to=git.example.org:443"),
            (Method::CONNECT, "/v1/objects?configuration=shop&to=git.example.org:443"),
            (Method::CONNECT, "/v1/egress?to=git.example.org:443"),
            (Method::CONNECT, "/v1/egress?configuration=shop"),
            (Method::CONNECT, "/v1/egress?configuration=shop&to=git.example.org"),
            (Method::CONNECT, "/v1/egress?configuration=..%2Fother&to=git.example.org:443"),
        ] {
            assert!(read(method, target).is_err(), "{target}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn n1_a_connection_on_which_nothing_moves_ends() {
        let counters = Counters::default();
        let begun = Instant::now();
        idle(&counters, IDLE).await;
        assert!((IDLE..=IDLE + IDLE / LOOKS).contains(&begun.elapsed()), "{:?}", begun.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn n1_a_look_up_that_hangs_keeps_its_place_until_it_ends() {
        let (tasks, places, owner) = (TaskGroup::new("test"), Shares::new(1), Arc::new(()));
        let (end, ended) = oneshot::channel::<()>();
        let hangs = looking(&tasks, places.take("s"), Arc::clone(&owner), async move { ended.await.is_ok() });
        assert_eq!(hangs.await.unwrap_err().0, "unreachable");
        assert_eq!(Arc::strong_count(&owner), 2, "the place of its connection is not free yet");
        let refused = looking(&tasks, places.take("s"), Arc::clone(&owner), async {}).await.unwrap_err();
        assert_eq!((refused.0, refused.1.detail.code.as_str()), ("limit", "TooManyRequests"));
        end.send(()).unwrap();
        while places.taken() > 0 {
            tokio::task::yield_now().await;
        }
        looking(&tasks, places.take("s"), Arc::clone(&owner), async {}).await.unwrap();
    }

    #[test]
    fn n1_a_right_that_cannot_be_looked_at_is_gone_after_a_time() {
        let seen = Seen::at(Instant::now());
        assert!(
            !seen.is_too_old(seen.0 + UNREADABLE - Duration::from_millis(1)) && seen.is_too_old(seen.0 + UNREADABLE)
        );
    }

    #[test]
    fn attack_th50_addresses_of_this_machine_are_its_own() {
        assert!(is_own([127, 0, 0, 1].into()));
        // Of nobody (RFC 5737).
        assert!(!is_own([198, 51, 100, 1].into()));
    }
}
