//! Connections to the apiserver: HTTP/2 for plain requests, as many connections as the streams need (an apiserver
//! allows about 100 streams on one; 1,000 watches must fit), HTTP/1.1 where ALPN says so, a few of HTTP/1.1 for brief
//! answers, connections apart for answers that may come in drops, and one HTTP/1.1 connection for each upgrade, never
//! used again after anything but 101 (CVE-2018-1002105).
//!
//! A request is sent again, whatever its method, where it is proved that the apiserver did not process it: none of it
//! has left (hyper hands it back), or the apiserver said so with GOAWAY or REFUSED_STREAM ([`was_not_processed`]). Its
//! body is kept for that until the answer begins; a body beyond the bounds of [`tunnel::exchange::Resendable`] is not
//! sent again, and the caller is told that nothing was done (503 with `Retry-After`). Any other broken connection
//! proves nothing: then only a safe request without a body is sent twice, when the apiserver closed a kept HTTP/1.1
//! connection just as the request was on its way, as it may whenever that is idle (RFC 9110 section 9.2.2), or had more
//! headers to say than a connection for brief answers has room for.
//! Redirects are answers like any other (CVE-2020-8559, CVE-2022-3172).

pub mod access;
pub mod answer;
pub mod body;
mod connect;
mod long;
mod pool;
mod redirect;
mod tasks;
mod unread;

use std::{future::poll_fn, pin::pin, sync::Arc, time::Duration};

use daemon::TaskGroup;
use http::{
    HeaderMap, HeaderValue, Request, Response, Uri, Version, header,
    uri::{self, PathAndQuery},
};
use hyper::body::Incoming;
use tokio::{sync::oneshot, time::Instant};
use tunnel::exchange::{Held, Room, was_not_processed};
use types::limits;

use self::{
    access::{Access, AccessError},
    answer::AnswerBody,
    body::{Outgoing, RequestBody},
    connect::{Connector, FailureLog},
    pool::{Http1, LIFE_MAX, Lease, List, Pace, Pool, Sender},
    unread::{Dials, PATIENCE, Party, Unread, Width},
};
use super::{impersonate::UpstreamHead, target::Target};

/// How many connections one request may try.
const ATTEMPTS: u32 = 6;
/// Pause before the third attempt; doubles with each further one. A second attempt goes at once, for as a rule a GOAWAY
/// leaves other connections, or one that is dialled anew.
const PAUSE: Duration = Duration::from_millis(20);

/// Why the apiserver gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The agent's own credential cannot be had.
    #[error("cannot get the agent's own credential for the apiserver")]
    Credential(#[source] AccessError),
    /// No connection: the name, TCP or TLS. Nothing was sent.
    #[error("cannot connect to the apiserver at {address}: {step}")]
    Connect {
        /// The address that was dialled, `host:port`.
        address: String,
        /// Which step failed, and how.
        step: String,
    },
    /// The request cannot be written.
    #[error("the request cannot be written")]
    Request(#[source] http::Error),
    /// The path of the kubeconfig's server and the request's target are longer together than a target may be.
    #[error("the request's target is too long with the path of the kubeconfig's server")]
    TooLong,
    /// The apiserver did not process the request, and more of its body was sent than is kept to be sent again.
    #[error("the apiserver did not process the request, whose body cannot be sent again")]
    NotProcessed(#[source] Option<hyper::Error>),
    /// The connection broke after the request, or a part of it, was sent.
    #[error("the apiserver broke off before it answered")]
    Broken(#[source] hyper::Error),
    /// The apiserver did not process the request on any connection that was tried.
    #[error("the apiserver refused the request unprocessed on all {ATTEMPTS} connections; try again")]
    Attempts(#[source] Option<hyper::Error>),
}

/// The cluster's apiserver.
pub struct Apiserver {
    connector: Arc<Connector>,
    pool: Arc<Pool>,
    /// Connections without the agent's client certificate, for tokens that are passed through.
    bare: Arc<Pool>,
    room: Arc<Room>,
    unread: Unread,
    dials: Dials,
}

impl Apiserver {
    /// Nothing is dialled yet. Connections run as tasks of `tasks`.
    pub fn new(access: Access, tasks: TaskGroup) -> Result<Self, DialError> {
        Self::with_unread(access, tasks, Unread::of_process())
    }

    /// The same, where answers that come may hold `bytes` while nobody reads them, and a little for each beyond that.
    pub fn with_bytes_unread(access: Access, tasks: TaskGroup, bytes: u64) -> Result<Self, DialError> {
        Self::with_unread(access, tasks, Unread::of(bytes))
    }

    fn with_unread(access: Access, tasks: TaskGroup, unread: Unread) -> Result<Self, DialError> {
        let authority: uri::Authority =
            access.authority().parse().map_err(|err: uri::InvalidUri| DialError::Request(err.into()))?;
        let host = HeaderValue::from_str(authority.as_str()).map_err(|err| DialError::Request(err.into()))?;
        let connector = Arc::new(Connector { access, authority, host, tasks, told: FailureLog::default() });
        Ok(Self {
            connector,
            pool: Arc::default(),
            bare: Arc::default(),
            room: Arc::default(),
            unread,
            dials: Dials::default(),
        })
    }

    /// How it is reached.
    pub fn access(&self) -> &Access {
        &self.connector.access
    }

    /// Takes its address, which only the cluster can reach, out of a redirect to itself.
    pub fn shorten_location(&self, headers: &mut HeaderMap) {
        redirect::shorten(headers, &self.connector.authority, self.access().prefix());
    }

    /// HTTP/2 connections open now, and streams on them.
    pub fn open(&self) -> (usize, usize) {
        let (own, bare) = (self.pool.open(), self.bare.open());
        (own.0 + bare.0, own.1 + bare.1)
    }

    /// Room for what is kept of request bodies.
    pub fn room(&self) -> &Arc<Room> {
        &self.room
    }

    /// Sends a plain request; completes with the head of the answer. Dropping the future or the answer's body cancels
    /// the request at the apiserver.
    #[expect(clippy::manual_async_fn, reason = "an async fn has room for what it is given twice")]
    pub fn send(
        &self,
        head: &mut UpstreamHead,
        outgoing: &Outgoing,
    ) -> impl Future<Output = Result<Response<AnswerBody>, DialError>> {
        async move {
            self.authorize(head).await?;
            if self.is_long(head) {
                // Boxed, so that this rare case does not enlarge the future of every request.
                return Box::pin(self.send_long(head, outgoing)).await;
            }
            let repeatable = head.method().is_safe() && outgoing.is_empty();
            let pace = Pace::of(head, repeatable);
            let (mut kept_too, mut last) = (true, None);
            for attempt in 0..ATTEMPTS {
                if attempt > 1 {
                    // Boxed, so that this rare case does not enlarge the future of every request.
                    Box::pin(tokio::time::sleep(PAUSE * 2u32.pow(attempt - 2))).await;
                }
                let Some(body) = outgoing.send() else { return Err(DialError::NotProcessed(last)) };
                let (sender, held) = self.acquire(head, pace, kept_too).await?;
                let (err, again) = match sender {
                    Sender::Http2(mut send, claim) => {
                        let request = self.request(head, Version::HTTP_2, body)?;
                        claim.turns().hand();
                        let answer = send.try_send_request(request);
                        // A request that is handed over while the connection ends may lie in their channel until the
                        // last sender is gone, and is handed back then: nobody may keep one while they wait.
                        drop(send);
                        match answer.await {
                            Ok(answer) => {
                                outgoing.release();
                                return Ok(answer.map(|body| AnswerBody::new(body, Some(Lease::Stream(claim)), held)));
                            }
                            Err(err) => (err, false),
                        }
                    }
                    Sender::Http1(mut connection) => {
                        let request = self.request(head, Version::HTTP_11, body)?;
                        let sent = Instant::now();
                        let mut answer = pin!(connection.send.try_send_request(request));
                        // The connection first, so that the request leaves before whoever waits turns to anything else.
                        let answered = poll_fn(|cx| {
                            connection.drive(cx);
                            answer.as_mut().poll(cx)
                        });
                        match answered.await {
                            Ok(answer) => {
                                outgoing.release();
                                let pool = self.pool(head.needs_own_credential()).clone();
                                let lease = Lease::Connection(connection, pool);
                                return Ok(answer.map(|body| AnswerBody::new(body, Some(lease), held)));
                            }
                            Err(err) => {
                                kept_too &= !connection.kept;
                                let again = repeatable && connection.asks_again(err.error(), sent);
                                (err, again)
                            }
                        }
                    }
                };
                let unprocessed = err.message().is_some() || was_not_processed(err.error());
                let err = err.into_error();
                if !(unprocessed || again) {
                    return Err(DialError::Broken(err));
                }
                tracing::debug!(error = %crate::chain(&err), attempt, "the apiserver did not process a request");
                last = Some(err);
            }
            Err(DialError::Attempts(last))
        }
    }

    /// Sends an upgrade request on a connection of its own. The connection lives in the answer: after 101 it is the
    /// upgraded one, after anything else it ends with the answer's body.
    pub async fn upgrade(&self, head: &mut UpstreamHead) -> Result<Response<Incoming>, DialError> {
        self.authorize(head).await?;
        let party = self.unread.party(head.asks());
        let tls = self.dials.run(party, self.connector.tls(true, head.needs_own_credential())).await?;
        let mut send = match self.target(head)? {
            Target::Plain(_) => self.connector.http1(tls).await?.0,
            Target::Long(target) => self.connector.http1_long(tls, head.method(), *target).await?,
        };
        let request = self.request(head, Version::HTTP_11, RequestBody::empty())?;
        head.forget_target();
        send.try_send_request(request).await.map_err(|err| match err.message() {
            Some(_) => DialError::Attempts(Some(err.into_error())),
            None => DialError::Broken(err.into_error()),
        })
    }

    /// Sends a plain request with a long target, on a connection that is not used again.
    async fn send_long(&self, head: &mut UpstreamHead, outgoing: &Outgoing) -> Result<Response<AnswerBody>, DialError> {
        let Target::Long(target) = self.target(head)? else { return Err(DialError::TooLong) };
        let party = self.unread.party(head.asks());
        let tls = self.dials.run(party, self.connector.tls(true, head.needs_own_credential())).await?;
        let mut send = self.connector.http1_long(tls, head.method(), *target).await?;
        let Some(body) = outgoing.send() else { return Err(DialError::NotProcessed(None)) };
        let request = self.request(head, Version::HTTP_11, body)?;
        head.forget_target();
        let answer = send.try_send_request(request).await.map_err(|err| match err.message() {
            Some(_) => DialError::Attempts(Some(err.into_error())),
            None => DialError::Broken(err.into_error()),
        })?;
        outgoing.release();
        Ok(answer.map(AnswerBody::alone))
    }

    /// Whether the target is longer than the HTTP library takes, as the apiserver's address has it.
    fn is_long(&self, head: &UpstreamHead) -> bool {
        head.target().length() + self.access().prefix().len() > limits::PLAIN_TARGET_BYTES
    }

    /// As the apiserver's address has it.
    fn target(&self, head: &UpstreamHead) -> Result<Target, DialError> {
        head.target().below(self.access().prefix()).ok_or(DialError::TooLong)
    }

    /// Writes the agent's own credential, where it goes with the request.
    async fn authorize(&self, head: &mut UpstreamHead) -> Result<(), DialError> {
        if head.needs_own_credential()
            && let Some(own) = self.connector.access.authorization().await.map_err(DialError::Credential)?
        {
            head.authorize(own);
        }
        Ok(())
    }

    fn request(
        &self,
        head: &UpstreamHead,
        version: Version,
        body: RequestBody,
    ) -> Result<Request<RequestBody>, DialError> {
        let mut uri = uri::Parts::default();
        uri.path_and_query = Some(match self.target(head)? {
            Target::Plain(target) => target,
            Target::Long(_) => PathAndQuery::from_static(long::STAND_IN),
        });
        if version == Version::HTTP_2 {
            uri.scheme = Some(uri::Scheme::HTTPS);
            uri.authority = Some(self.connector.authority.clone());
        }
        let uri = Uri::from_parts(uri).map_err(|err| DialError::Request(err.into()))?;
        let mut request = Request::new(body);
        *request.method_mut() = head.method().clone();
        *request.uri_mut() = uri;
        *request.version_mut() = version;
        *request.headers_mut() = head.headers().clone();
        if version != Version::HTTP_2 {
            request.headers_mut().insert(header::HOST, self.connector.host.clone());
            // hyper drops the body of a GET or HEAD whose length nobody declared, without a word.
            if !http_body::Body::is_end_stream(request.body())
                && !request.headers().contains_key(header::CONTENT_LENGTH)
            {
                request.headers_mut().insert(header::TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
        }
        Ok(request)
    }

    fn pool(&self, own: bool) -> &Arc<Pool> {
        if own { &self.pool } else { &self.bare }
    }

    /// A connection with room, one of HTTP/1.1 that was kept only if `kept_too`, with what the answer may hold; dials
    /// one at a time, so that a burst shares what it opens, unless that takes long.
    async fn acquire(
        &self,
        head: &UpstreamHead,
        pace: Pace,
        kept_too: bool,
    ) -> Result<(Sender, Option<Held>), DialError> {
        let (own, party) = (head.needs_own_credential(), self.unread.party(head.asks()));
        let held = self.unread.hold(party);
        let width = Width::of(held.as_ref());
        let sender = match (self.pool(own).take(pace, kept_too, width), pace) {
            (Some(sender), _) => sender,
            // Boxed: few requests dial, and TLS and HTTP/2 handshakes are large.
            (None, Pace::Flows | Pace::Brief) => Box::pin(self.dial(own, kept_too, party, width)).await?,
            (None, Pace::Drips) => {
                let send = Box::pin(self.dials.run(party, self.connector.http1_for_drops(own))).await?;
                Sender::Http1(Http1::fresh(send, None, List::Drops))
            }
            (None, Pace::DripsBothWays) => Box::pin(self.dials.run(party, self.dial_alone(own, width))).await?,
        };
        if let Sender::Http1(connection) = &sender {
            connection.set_width(width);
        }
        if pace == Pace::Brief && matches!(sender, Sender::Http2(..)) {
            self.keep_for_brief(own);
        }
        Ok((sender, held))
    }

    /// Dials a connection for brief answers, if there is a place for it; no request waits for that.
    fn keep_for_brief(&self, own: bool) {
        let pool = self.pool(own);
        let Some(place) = pool.place_for_brief() else { return };
        let (connector, pool) = (self.connector.clone(), pool.clone());
        self.connector.tasks.spawn("dial for brief answers", async move {
            let (held, ended) = oneshot::channel::<()>();
            match connector.http1_for_brief(own, (place, held)).await {
                Ok((send, driver)) => {
                    pool.give_back(Http1::fresh(send, Some(driver), List::Brief));
                    // Nobody looks at one that is idle, also if the apiserver closes it, until another request comes.
                    if tokio::time::timeout(LIFE_MAX, ended).await.is_err() {
                        pool.retire();
                    }
                }
                Err(err) => {
                    tracing::debug!(error = %crate::chain(&err), "no HTTP/1.1 connection to the apiserver");
                }
            }
        });
    }

    /// A connection that no other request gets.
    async fn dial_alone(&self, own: bool, width: Width) -> Result<Sender, DialError> {
        let tls = self.connector.tls(false, own).await?;
        if tls.get_ref().1.alpn_protocol() != Some(b"h2") {
            return Ok(Sender::Http1(Http1::fresh(self.connector.http1(tls).await?, None, List::Any)));
        }
        let (send, _, turns) = self.connector.http2(tls, width, || ()).await?;
        Ok(Sender::alone(send, turns))
    }

    async fn dial(&self, own: bool, kept_too: bool, party: Party, width: Width) -> Result<Sender, DialError> {
        let pool = self.pool(own);
        let mut dialling = pool.dialling.turn(party).await;
        if let Some(sender) = pool.take(Pace::Flows, kept_too, width) {
            return Ok(sender);
        }
        let mut connecting = pin!(self.connector.tls(false, own));
        let tls = match tokio::time::timeout(PATIENCE, &mut connecting).await {
            Ok(tls) => tls?,
            Err(_) => {
                dialling = None;
                connecting.await?
            }
        };
        if tls.get_ref().1.alpn_protocol() == Some(b"h2") {
            let senders = Arc::downgrade(pool);
            let ended = move || {
                if let Some(pool) = senders.upgrade() {
                    pool.retire();
                }
            };
            let (send, allowed, turns) = self.connector.http2(tls, width, ended).await?;
            return Ok(pool.add(send, allowed, turns, width));
        }
        // HTTP/1.1 carries one request at a time: others need not wait for this one's handshake.
        drop(dialling);
        Ok(Sender::Http1(Http1::fresh(self.connector.http1(tls).await?, None, List::Any)))
    }
}
