//! Hello, stream identity, credit, stop, probes, drain: the same code over every carrier.
//!
//! After hello four loops run in one task per tunnel, until the first of them ends: control messages in, control
//! messages out, streams that the peer opens, probes. All that they share with the streams is [`state`].

mod driver;
mod hello;
mod incoming;
mod liveness;
mod messages;
pub(crate) mod state;
pub(crate) mod stream;
mod tunnel;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub use hello::{accept, connect};
use rustls::pki_types::CertificateDer;
use types::limits;

use crate::wire::{
    close::CloseCode,
    error::WireError,
    hello::{Proof, Replica},
};

/// Times of a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// Period of probes.
    pub probe_period: Duration,
    /// The same of a tunnel over TCP that nobody uses.
    pub idle_period: Duration,
    /// Silence after which the tunnel is dead, if a probe is unanswered for [`Self::answer_within`].
    pub probe_deadline: Duration,
    /// Least time that the peer has to answer a probe.
    pub answer_within: Duration,
    /// Silence after which the peer is probed at once.
    pub suspect_after: Duration,
    /// Period of the questions then.
    pub urgent_period: Duration,
    /// Unanswered urgent probes in a row after which a tunnel over QUIC is dead.
    pub urgent_probes: u32,
    /// The whole hello.
    pub hello_deadline: Duration,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            probe_period: limits::PROBE_PERIOD,
            idle_period: limits::IDLE_PERIOD,
            probe_deadline: limits::PROBE_DEADLINE,
            answer_within: limits::ANSWER_WITHIN,
            suspect_after: limits::SUSPECT_AFTER,
            urgent_period: limits::URGENT_PERIOD,
            urgent_probes: limits::URGENT_PROBES,
            hello_deadline: limits::HELLO_DEADLINE,
        }
    }
}

/// Makes a [`Proof`] from the bytes that it must sign ([`crate::wire::hello::proof_message`]); the error is for people.
pub type Prove = Box<dyn FnOnce(&[u8]) -> Result<Proof, String> + Send>;

/// What the agent brings to the hello.
pub struct AgentSide {
    /// The agent program's version, for people.
    pub agent_version: String,
    /// Identifies this agent process.
    pub instance: [u8; 16],
    /// What it offers beside [`types::version::Features::OFFERED`].
    pub features: types::version::Features,
    /// Names of the gateway's replicas that it has tunnels to already.
    pub held: Vec<bytes::Bytes>,
    /// Called where the gateway saw no client certificate (a middlebox ended the TLS).
    pub prove: Prove,
    /// Intervals and deadlines of the session.
    pub options: SessionOptions,
}

/// Certificates whose private key the agent has proved to hold. Whether they are trusted, in date and of the right role
/// is for the gateway to judge.
#[derive(Clone, Debug)]
pub struct Presented {
    /// The agent's own first.
    pub chain: Vec<CertificateDer<'static>>,
    /// Proved by the signed challenge rather than in the carrier's TLS.
    pub by_proof: bool,
    /// Identifies the agent process.
    pub instance: [u8; 16],
    /// The agent program's version as it said.
    pub agent_version: String,
    /// Names of the gateway's replicas that the agent has tunnels to already.
    pub held: Vec<bytes::Bytes>,
}

/// What the gateway brings to the hello.
pub struct GatewaySide<F> {
    /// The gateway's name of this tunnel, random.
    pub session: [u8; 16],
    /// Which of several replicas it is.
    pub replica: Option<Replica>,
    /// `async FnOnce(Presented) -> Result<T, Refuse>`: who it is, or why not.
    pub authenticate: F,
    /// Intervals and deadlines of the session.
    pub options: SessionOptions,
}

/// Why no tunnel came to be.
#[derive(Clone, Debug, thiserror::Error)]
pub enum HelloError {
    /// The hello took longer than its deadline.
    #[error("hello took too long")]
    Timeout,
    /// The gateway refused (at the agent), or this gateway did (at the gateway).
    #[error("refused: {code}{}{message}", if .message.is_empty() { "" } else { ": " })]
    Refused {
        /// Why the gateway refused.
        code: CloseCode,
        /// A sentence for people.
        message: String,
        /// When to try again.
        retry_after: Option<Duration>,
        /// How many replicas of the gateway are alive, if it said so.
        replicas: Option<u32>,
    },
    /// No version in common.
    #[error("no version of the tunnel protocol in common")]
    Version,
    /// A message that cannot be read: the peer speaks something else.
    #[error("unreadable hello: {0}")]
    Wire(#[from] WireError),
    /// This agent cannot prove its identity.
    #[error("cannot sign the challenge: {0}")]
    Proof(String),
    /// The connection broke.
    #[error("connection lost during hello: {0}")]
    Lost(String),
}
