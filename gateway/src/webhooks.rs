//! Events to webhooks of the configuration: a POST for each, CloudEvents 1.0 in structured JSON, signed as the Standard
//! Webhooks specification says (`webhook-id`, `webhook-timestamp`, `webhook-signature`: HMAC-SHA256). At least once, in
//! order, also over a restart: how far a webhook is stands in the store. What is refused is tried again, with backoff
//! and jitter, until the event is a day old.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use auth::token::{Connect, Direct, Socket};
use aws_lc_rs::hmac;
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use bytes::Bytes;
use daemon::{Backoff, BackoffPolicy, Shutdown, random_unit};
use http::{Request, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;
use types::instants::unix_seconds;
use url::Host;

use crate::{
    config::webhook::Webhook,
    control::Control,
    events::cloud_event,
    store::{
        StoreError,
        events::{Event, Of},
    },
};

/// How long one delivery may take, from the connection to the end of the answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// Bytes of an answer that are read.
const ANSWER_BYTES: usize = 64 * 1024;
/// How long an event is tried, in milliseconds from when it happened.
const TRIED_MS: i64 = 24 * 3600 * 1000;
/// Events that one question to the store brings.
const AT_ONCE: u32 = 50;
/// When a delivery is tried again.
const RETRIES: BackoffPolicy = BackoffPolicy {
    first: Duration::from_secs(1),
    quick_cap: Duration::from_secs(30),
    quick_for: Duration::from_secs(120),
    cap: Duration::from_secs(600),
    steady_after: Duration::from_secs(1),
};

/// Tells one webhook what happens, until the gateway drains.
pub async fn run(control: Arc<Control>, webhook: Webhook, shutdown: Shutdown) {
    let told = tell(&control, &webhook);
    tokio::select! {
        biased;
        () = shutdown.draining() => {}
        () = told => {}
    }
}

async fn tell(control: &Control, webhook: &Webhook) {
    let (name, mut newest) = (webhook.name(), control.notices.newest());
    let mut backoff = Backoff::new(RETRIES);
    let mut position = Position::Kept;
    loop {
        newest.mark_unchanged();
        match some(control, webhook, &name, &mut position).await {
            Ok(true) => backoff.reset(),
            Ok(false) => {
                backoff.reset();
                if newest.changed().await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::warn!(webhook = webhook.to(), error, "a webhook was not told; it is tried again");
                tokio::time::sleep(backoff.failed(Instant::now(), random_unit())).await;
            }
        }
    }
}

/// How far a webhook is in the sequence of events.
enum Position {
    /// As the store keeps it; it was not read yet.
    Kept,
    /// It was told all events up to the one with this number.
    After(i64),
}

impl Position {
    /// The number of the last event that the webhook was told, from the store if it was not read yet.
    async fn last_told(&mut self, control: &Control, name: &str) -> Result<i64, StoreError> {
        if let Self::After(number) = *self {
            return Ok(number);
        }
        let number = control.store.webhook(name).await?;
        self.advance(number);
        Ok(number)
    }

    /// The event with this number was told, given up, or is none for this webhook.
    fn advance(&mut self, number: i64) {
        *self = Self::After(number);
    }
}

/// Tells what there is. Whether there was something.
async fn some(control: &Control, webhook: &Webhook, name: &str, position: &mut Position) -> Result<bool, String> {
    let failed = |error: StoreError| error.to_string();
    let after = position.last_told(control, name).await.map_err(failed)?;
    let events = control.store.events(Of::All, after, AT_ONCE).await.map_err(failed)?;
    for event in &events {
        if webhook.kinds.contains(&event.kind) {
            let sent = deliver(control, webhook, event).await;
            if let Err(error) = sent {
                if control.now_ms() - event.at_ms < TRIED_MS {
                    return Err(error);
                }
                tracing::error!(
                    webhook = webhook.to(),
                    event = event.number,
                    error,
                    "given up: the event is a day old"
                );
            }
            // After each: what was taken is not sent again but where this very write is lost.
            control.store.set_webhook(name, event.number).await.map_err(failed)?;
        }
        position.advance(event.number);
    }
    if let Some(last) = events.last() {
        control.store.set_webhook(name, last.number).await.map_err(failed)?;
    }
    Ok(!events.is_empty())
}

async fn deliver(control: &Control, webhook: &Webhook, event: &Event) -> Result<(), String> {
    let body = cloud_event(event, &control.settings.url).to_string();
    let id = event.number.to_string();
    let delivery = post(webhook, &id, body, SystemTime::now());
    let status = tokio::time::timeout(DEADLINE, delivery).await;
    match status.map_err(|_| format!("no answer within {} s", DEADLINE.as_secs()))?? {
        200..300 => Ok(()),
        status @ 300..400 => Err(format!("it answered with status {status}; redirects are not followed")),
        status => Err(format!("it answered with status {status}")),
    }
}

/// The value of `webhook-signature`.
fn signature(key: &hmac::Key, id: &str, timestamp: u64, body: &str) -> String {
    let tag = hmac::sign(key, format!("{id}.{timestamp}.{body}").as_bytes());
    format!("v1,{}", BASE64.encode(tag.as_ref()))
}

async fn post(webhook: &Webhook, id: &str, body: String, now: SystemTime) -> Result<u16, String> {
    let url = &webhook.url;
    let host = match url.host().ok_or("it has no host")? {
        Host::Domain(name) => name.to_owned(),
        Host::Ipv4(ip) => ip.to_string(),
        Host::Ipv6(ip) => ip.to_string(),
    };
    let port = url.port_or_known_default().ok_or("it has no port")?;
    let timestamp = unix_seconds(now);
    let request = Request::post(&url[url::Position::BeforePath..url::Position::AfterQuery])
        .header(header::HOST, &url[url::Position::BeforeHost..url::Position::AfterPort])
        .header(header::CONTENT_TYPE, "application/cloudevents+json; charset=utf-8")
        .header(header::USER_AGENT, "towline")
        .header(header::CONNECTION, "close")
        .header("webhook-id", id)
        .header("webhook-timestamp", timestamp)
        .header("webhook-signature", signature(&webhook.key, id, timestamp, &body))
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| error.to_string())?;
    let failed = |error: io::Error| format!("cannot connect: {error}");
    let socket = Direct.connect(host.clone(), port).await.map_err(failed)?;
    if url.scheme() == "http" {
        return exchange(socket, request).await;
    }
    let name = ServerName::try_from(host).map_err(|error| error.to_string())?;
    let connector = TlsConnector::from(Arc::clone(&webhook.tls));
    exchange(connector.connect(name, socket).await.map_err(|error| format!("no TLS: {error}"))?, request).await
}

async fn exchange(socket: impl Socket + 'static, request: Request<Full<Bytes>>) -> Result<u16, String> {
    let (mut sender, connection) = hyper::client::conn::http1::Builder::new()
        .max_headers(64)
        .handshake(TokioIo::new(socket))
        .await
        .map_err(|error| error.to_string())?;
    let answer = async {
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status().as_u16();
        // Taken, so that the other side sees a clean end; what is more than that is not waited for.
        let _ = Limited::new(response.into_body(), ANSWER_BYTES).collect().await;
        Ok(status)
    };
    tokio::pin!(answer, connection);
    tokio::select! {
        biased;
        answer = &mut answer => answer,
        _ = &mut connection => answer.await,
    }
}

#[cfg(test)]
pub mod tests;
