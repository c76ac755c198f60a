//! One HTTP exchange on one stream: bodies to chunks and back without a copy, hop-by-hop headers, upgraded bytes both
//! ways, and the Kubernetes `Status` that both ends answer errors with.
//!
//! The opener's end sends its head with the stream, its body by [`send_body`], and reads the head of the answer and its
//! [`StreamBody::of_response`], or goes on with [`splice`] after a 101. The acceptor's end reads its
//! [`StreamBody::of_request`] and answers with [`respond`], or sends the head of a 101 by [`respond_head`] and goes on
//! with [`splice`].

mod body;
mod half;
mod resend;
mod send;
mod splice;
mod status;

use std::sync::atomic::{AtomicU64, Ordering};

pub use crate::headers::{content_length, is_hop_by_hop, remove_where, strip_hop_by_hop, upgrade_of};
pub use body::StreamBody;
pub use resend::{Held, KEPT_IN_ALL, KEPT_PER_BODY, Part, Resendable, Room, Sending, SendingError, was_not_processed};
pub use send::{SendBodyError, Sent, respond, respond_encoded, respond_head, send_body};
pub use splice::{Spliced, splice, splice_counted};
pub use status::Status;

/// Body or upgraded bytes of one exchange as they grow, for audit, metrics and idle detection. Read at any time.
#[derive(Debug, Default)]
pub struct Counters {
    sent: AtomicU64,
    received: AtomicU64,
}

impl Counters {
    /// Bytes given to the stream.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Bytes taken from the stream.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    fn add_sent(&self, bytes: usize) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn add_received(&self, bytes: usize) {
        self.received.fetch_add(bytes as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
