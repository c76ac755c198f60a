//! Messages of the control stream.

use bytes::{Buf, Bytes, BytesMut};
use types::limits;

use crate::{
    transport::carrier::{RawError, RawRecv},
    wire::message::{self, LENGTH_BYTES},
};

/// Length-prefixed messages from the control stream.
pub(super) struct Messages {
    recv: RawRecv,
    buffer: BytesMut,
}

impl Messages {
    pub(super) fn new(recv: RawRecv) -> Self {
        Self { recv, buffer: BytesMut::new() }
    }

    /// The next message without its prefix. The outer error is the carrier's, the inner one the peer's fault; an end of
    /// the stream is a lost carrier. Cancel-safe.
    pub(super) async fn read(&mut self) -> Result<Result<Bytes, crate::wire::error::WireError>, RawError> {
        loop {
            match message::length(&self.buffer, limits::CONTROL_BYTES) {
                Err(error) => return Ok(Err(error)),
                Ok(Some(length)) if self.buffer.len() - LENGTH_BYTES >= length => {
                    self.buffer.advance(LENGTH_BYTES);
                    return Ok(Ok(self.buffer.split_to(length).freeze()));
                }
                Ok(_) => {}
            }
            match self.recv.recv().await? {
                Some(chunk) => self.buffer.extend_from_slice(&chunk),
                None => return Err(RawError::Lost),
            }
        }
    }
}
