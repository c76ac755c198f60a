//! The head of a request that one replica of the gateway hands to another, which has a tunnel of the request's cluster.

use bytes::{Bytes, BytesMut};
use types::{ids::ClusterKey, limits};

use super::{
    error::WireError,
    head,
    message::{self, LENGTH_BYTES, Reader, WIRE_VERSION, Writer},
};

/// Kind number of a [`Hop`].
pub const HOP: u8 = 18;

/// What the message holds beside the request: length, version, kind, the key and both lengths.
const FIXED_BYTES: usize = 64;

/// Which cluster a request is for, and the request's own head as it goes onto the cluster's tunnel, byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The cluster that the request is for.
    pub cluster: ClusterKey,
    request: Bytes,
}

impl Hop {
    /// For an encoded [`head::RequestHead`], its length prefix included.
    ///
    /// # Errors
    /// [`WireError`] for what is none: a hop leads to an agent and not to another hop.
    pub fn new(cluster: ClusterKey, request: Bytes) -> Result<Self, WireError> {
        let length = message::length(&request, limits::REQUEST_HEAD_BYTES)?;
        if length != Some(request.len().saturating_sub(LENGTH_BYTES)) {
            return Err(WireError::Field("request"));
        }
        match request[LENGTH_BYTES..] {
            [WIRE_VERSION, head::REQUEST, ..] => Ok(Self { cluster, request }),
            [WIRE_VERSION, kind, ..] => Err(WireError::Kind(kind)),
            _ => Err(WireError::Field("request")),
        }
    }

    /// The request's head, encoded, with its length prefix. It shares the memory of the message that it came in.
    pub fn into_request(self) -> Bytes {
        self.request
    }

    /// Encodes with the length prefix.
    ///
    /// # Errors
    /// [`WireError::TooLong`] where the request and what names its cluster are together over
    /// [`limits::REQUEST_HEAD_BYTES`].
    pub fn encode(&self) -> Result<BytesMut, WireError> {
        let mut writer = Writer::begin(BytesMut::with_capacity(self.request.len() + FIXED_BYTES), HOP);
        writer.bytes(self.cluster.as_bytes()).bytes(&self.request);
        let message = writer.finish();
        let (got, limit) = (message.len() - LENGTH_BYTES, limits::REQUEST_HEAD_BYTES);
        if got > limit { Err(WireError::TooLong { got, limit }) } else { Ok(message) }
    }

    /// Decodes a message given without its length prefix.
    ///
    /// # Errors
    /// [`WireError`]; the request within is looked at no further than [`Self::new`] does.
    pub fn decode(message: Bytes) -> Result<Self, WireError> {
        let mut reader = Reader::expect(message, HOP)?;
        let cluster = reader.bytes("cluster")?;
        let cluster: [u8; 32] = cluster.as_ref().try_into().map_err(|_| WireError::Field("cluster"))?;
        let request = reader.bytes("request")?;
        reader.end()?;
        Self::new(ClusterKey::from_bytes(cluster), request)
    }
}

/// The kind of a message given without its length prefix, if there is one.
pub fn kind(message: &[u8]) -> Option<u8> {
    message.get(1).copied()
}
