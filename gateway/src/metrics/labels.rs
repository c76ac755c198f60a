//! Values of labels that metrics share with spans, log lines and audit records. They use nothing of this crate.

use std::{error::Error, io};

/// A stage of a request's way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// TLS and HTTP on the user's socket.
    Accept,
    /// Host and path.
    Address,
    /// The user is authenticated.
    Authenticate,
    /// Whether they may.
    Authorize,
    /// Choice of a tunnel to the cluster.
    Locate,
    /// The stream on it.
    Open,
    /// Bytes both ways.
    Relay,
}

impl Stage {
    /// The word in spans, metrics, audit records and errors.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Accept => "accept",
            Self::Address => "address",
            Self::Authenticate => "authenticate",
            Self::Authorize => "authorize",
            Self::Locate => "locate",
            Self::Open => "open",
            Self::Relay => "relay",
        }
    }
}

/// Why a connection ended; also a metric's label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Too many connections.
    Connections,
    /// Too many handshakes.
    Handshakes,
    /// Too many requests without an identity: those of one connection that were refused, or those that wait.
    Unproven,
    /// The TLS handshake failed, or it agreed on a version that is not accepted.
    Tls,
    /// HTTP/2 that is refused by frame (RFC 9113 section 5.4.1), a flood of frames included.
    Http2,
    /// HTTP/1.1 whose body cannot be followed.
    Http1,
    /// Something took too long: the handshake, or the reading of an answer of ours.
    Timeout,
    /// No tunnel came up: the carrier's handshake failed, or the hello was refused.
    Tunnel,
}

impl Cause {
    /// The word in metrics, logs and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connections => "connections",
            Self::Handshakes => "handshakes",
            Self::Unproven => "unproven",
            Self::Tls => "tls",
            Self::Http2 => "http2",
            Self::Http1 => "http1",
            Self::Timeout => "timeout",
            Self::Tunnel => "tunnel",
        }
    }

    /// The cause in an error of a connection; `None`: the user went away.
    pub fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(error) = error.downcast_ref::<h2::Error>()
                && error.is_library()
                && !error.is_io()
            {
                return Some(Self::Http2);
            }
            if let Some(error) = error.downcast_ref::<io::Error>() {
                let tls = error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>());
                match error.kind() {
                    _ if tls => return Some(Self::Tls),
                    // A flood of frames, see `flood`.
                    io::ErrorKind::QuotaExceeded => return Some(Self::Http2),
                    io::ErrorKind::InvalidData => return Some(Self::Http1),
                    io::ErrorKind::TimedOut => return Some(Self::Timeout),
                    _ => {}
                }
            }
            next = error.source();
        }
        None
    }
}
