//! Why a request is refused, or its answer breaks off, and what the user is told: the only file that picks a status
//! code.

use std::borrow::Cow;

use http::StatusCode;

use super::address::AddressError;
use crate::{metrics::labels::Stage, sessions::EndReason};

/// A refusal: whatever keeps a request from being relayed, or its answer from being used.
#[derive(Debug)]
pub struct Refusal {
    /// The stage that refused.
    pub stage: Stage,
    /// What the user is told.
    pub kind: Kind,
    /// What the log and the audit record are told beyond that. No credential.
    pub detail: Option<String>,
}

/// What the user is told.
#[derive(Debug)]
pub enum Kind {
    /// The address cannot be read.
    Address(AddressError),
    /// Something else in the request is malformed: why.
    BadRequest(&'static str),
    /// A method that is not for gateways.
    Method,
    /// Nothing is here.
    NotFound,
    /// The request names another host or cluster than the TLS server name of its connection.
    Misdirected,
    /// No credential, or not one that holds. Says no more than Kubernetes does.
    Unauthorized,
    /// The issuer's keys could not be read, so that nobody can tell whether the token holds.
    IssuerUnavailable,
    /// The policy says no, or there is no such cluster: the user cannot tell.
    Forbidden {
        /// The user's own name.
        user: String,
    },
    /// An `Impersonate-*` header that is not understood.
    Impersonation(&'static str),
    /// No agent of the cluster has a tunnel to this gateway.
    NoAgent,
    /// The cluster lets no users through.
    ConnectOff,
    /// A bound was reached: its name and value.
    Limit {
        /// The limit's name.
        name: &'static str,
        /// The limit's value now.
        value: u64,
    },
    /// The request head is too large.
    HeadTooLarge {
        /// The limit's name.
        name: &'static str,
        /// The limit's value: bytes or headers, as its name says.
        value: usize,
    },
    /// The request head did not arrive in time.
    HeadTimeout,
    /// The agent did not take the request in time.
    OpenTimeout,
    /// No answer began in time.
    AnswerTimeout,
    /// The tunnel or the agent broke off before an answer; the request may or may not have been carried out.
    BrokenOff,
    /// The tunnel is gone, and the request changes nothing, so that it may be repeated.
    TunnelLost,
    /// The agent refused the request before any part of it looked at it: it was not carried out.
    NotTaken {
        /// Whether the same may be taken later, or by another agent.
        passing: bool,
    },
    /// The agent's answer makes no sense.
    BadAnswer(&'static str),
    /// The session was ended before an answer.
    Ended(EndReason),
    /// The gateway drains.
    Draining,
    /// This replica of the gateway has started a moment ago, and has not read yet who may do what.
    Starting,
    /// This replica of the gateway cannot renew its lease in the store, and admits nothing until it can.
    Fenced,
    /// Another process has started with this replica's name, and this one admits nothing.
    Superseded,
}

impl Refusal {
    /// With nothing for the log alone.
    pub fn new(stage: Stage, kind: Kind) -> Self {
        Self { stage, kind, detail: None }
    }

    /// With a detail for log and audit.
    #[must_use]
    pub fn because(mut self, detail: impl std::fmt::Display) -> Self {
        self.detail = Some(detail.to_string());
        self
    }

    /// A word for the audit record.
    pub fn summary(&self) -> String {
        match &self.detail {
            Some(detail) => detail.clone(),
            None => self.public_text(),
        }
    }

    /// What the user is told.
    pub fn public_text(&self) -> String {
        self.answer().message.into_owned()
    }

    /// The answer: the only place that picks a status code.
    pub(super) fn answer(&self) -> Answer {
        match &self.kind {
            Kind::Address(error @ AddressError::TooLong) => {
                Answer::new(StatusCode::URI_TOO_LONG, "RequestURITooLong", error.to_string()).closing()
            }
            Kind::Address(error) => Answer::new(StatusCode::BAD_REQUEST, "BadRequest", error.to_string()).closing(),
            Kind::BadRequest(why) => Answer::new(StatusCode::BAD_REQUEST, "BadRequest", *why).closing(),
            Kind::Method => Answer::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "MethodNotAllowed",
                "the gateway does not take the methods CONNECT and TRACE",
            )
            .closing(),
            Kind::NotFound => Answer::new(
                StatusCode::NOT_FOUND,
                "NotFound",
                "nothing is at this address; a cluster is at https://<gateway>/<key>, with the key as 64 hex digits \
                 (kubectl proxy keeps that path only with --append-server-path), or has a TLS server name, which not every \
                 client sends (towline kubeconfig --address path does without)",
            ),
            Kind::Misdirected => Answer::new(
                StatusCode::MISDIRECTED_REQUEST,
                "BadRequest",
                AddressError::Misdirected.to_string(),
            ),
            Kind::Unauthorized => Answer::new(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized"),
            Kind::IssuerUnavailable => Answer::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                "the gateway cannot read the keys of the token's issuer, so that it cannot tell whether the token holds; \
                 try again, and see whether the issuer runs",
            ).after_a_second(),
            Kind::Forbidden { user } => Answer::new(
                StatusCode::FORBIDDEN,
                "Forbidden",
                format!(
                    "user {user:?} may not reach this cluster, or there is no such cluster at this gateway; \
                     ask who runs the gateway for a grant, and check the address"
                ),
            ),
            Kind::Impersonation(why) => Answer::new(StatusCode::FORBIDDEN, "Forbidden", *why),
            Kind::NoAgent => Answer::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                "cannot connect to the cluster because no agent is connected to this gateway for it; \
                 see whether the agent runs in the cluster and what its log says",
            ).after_a_second(),
            Kind::ConnectOff => Answer::new(
                StatusCode::FORBIDDEN,
                "Forbidden",
                "the feature cluster-connect is switched off for this cluster, so that it cannot be reached from here; \
                 a principal that may write the cluster can switch it on (towline enable-features --features cluster-connect)",
            ),
            Kind::Limit { name, value } => Answer::new(
                StatusCode::TOO_MANY_REQUESTS,
                "TooManyRequests",
                format!("limit {name} of {value} is reached; close other requests, or try again later"),
            ).after_a_second(),
            Kind::HeadTooLarge { name, value } => Answer::new(
                StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
                "RequestEntityTooLarge",
                format!("the request head is over limit {name} of {value}"),
            )
            .closing(),
            Kind::HeadTimeout => {
                Answer::new(StatusCode::REQUEST_TIMEOUT, "Timeout", "the request head took too long to arrive").closing()
            }
            Kind::OpenTimeout => Answer::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                "the cluster's agent did not take the request in time; nothing was sent, try again",
            ).after_a_second(),
            Kind::AnswerTimeout => Answer::new(
                StatusCode::GATEWAY_TIMEOUT,
                "Timeout",
                "the cluster did not answer in time; the request may have been carried out",
            ),
            Kind::BrokenOff => Answer::new(
                StatusCode::BAD_GATEWAY,
                "InternalError",
                "the connection to the cluster broke off before an answer; the request may have been carried out",
            ),
            Kind::TunnelLost => Answer::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                "the connection to the cluster broke off before an answer; the request changes nothing, try again",
            ).after_a_second(),
            Kind::NotTaken { passing: true } => Answer::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                "the cluster's agent accepted no further request at this moment; nothing was done, try again",
            ).after_a_second(),
            Kind::NotTaken { passing: false } => Answer::new(
                StatusCode::BAD_GATEWAY,
                "InternalError",
                "the cluster's agent cannot serve such a request, and nothing was done; see whether its version is older \
                 than the gateway's",
            ),
            Kind::BadAnswer(why) => Answer::new(StatusCode::BAD_GATEWAY, "InternalError", *why),
            Kind::Starting => Answer::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                "this gateway is starting, and does not know yet who may reach this cluster; try again",
            ).after_a_second(),
            Kind::Fenced => {
                Answer::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", EndReason::Fenced.text())
                    .after_a_second()
            }
            Kind::Superseded => {
                Answer::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", EndReason::Superseded.text())
                    .after_a_second()
            }
            Kind::Ended(reason) => Answer::new(StatusCode::FORBIDDEN, "Forbidden", reason.text()),
            Kind::Draining => Answer::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "ServiceUnavailable",
                "this gateway is shutting down; try again",
            ).after_a_second(),
        }
    }
}

/// What a refusal is answered with.
pub(super) struct Answer {
    /// HTTP status code of the answer.
    pub status: StatusCode,
    /// As a Kubernetes `Status` has it.
    pub reason: &'static str,
    /// The sentence that the user reads.
    pub message: Cow<'static, str>,
    /// After how many seconds the same may be asked again, where that helps.
    pub retry_after: Option<u32>,
    /// Whether the user's HTTP/1.1 connection must not be used again: where the request ends is in doubt.
    pub close: bool,
}

impl Answer {
    fn new(status: StatusCode, reason: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, reason, message: message.into(), retry_after: None, close: false }
    }

    fn after_a_second(self) -> Self {
        Self { retry_after: Some(1), ..self }
    }

    fn closing(self) -> Self {
        Self { close: true, ..self }
    }
}

/// Why a body breaks off. The user sees a broken connection or a reset stream, never a clean end.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// Behind the gateway.
    #[error("the answer broke off")]
    BrokenOff(#[source] tunnel::transport::StreamError),
    /// The gateway ended the session.
    #[error("the session was ended: {}", .0.text())]
    Ended(EndReason),
}
