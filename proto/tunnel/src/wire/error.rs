//! What a peer can get wrong in a message.

/// A message that cannot be read. The peer's fault; it ends the stream or the tunnel, never the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The message ends within a field.
    #[error("message ends within {0}")]
    Truncated(&'static str),
    /// Bytes are left after the last field.
    #[error("message has bytes after its end")]
    Trailing,
    /// The length is over the bound for this kind of message.
    #[error("message of {got} bytes is over the limit of {limit}")]
    TooLong {
        /// The announced length in bytes.
        got: usize,
        /// The bound in bytes, from [`types::limits`].
        limit: usize,
    },
    /// Another wire version than this build reads.
    #[error("wire version {0} is not known")]
    Version(u8),
    /// Another kind than was expected here.
    #[error("message kind {0} is not expected here")]
    Kind(u8),
    /// A field holds what it may not.
    #[error("field {0} is invalid")]
    Field(&'static str),
    /// A varint is longer than needed or than 64 bits.
    #[error("integer is not in its shortest form")]
    Varint,
    /// More of something than its bound.
    #[error("{what}: {got} is over the limit of {limit}")]
    OverLimit {
        /// What is counted, with its unit.
        what: &'static str,
        /// How many there are.
        got: usize,
        /// The bound, from [`types::limits`].
        limit: usize,
    },
    /// An extension that comes twice, or behind one with a larger tag.
    #[error("extension {0} is out of order")]
    Order(u64),
    /// An extension that must be understood and is not.
    #[error("extension {0} must be understood and is not")]
    Extension(u64),
}
