//! Messages on the control stream after hello. They are small, idempotent and absolute (a window is a byte position,
//! not a difference), so that a later version can repeat them on the next carrier.

use bytes::{Bytes, BytesMut};
use types::ids::StreamId;

use super::{
    close::{CloseCode, StreamCode},
    error::WireError,
    message::{Reader, Writer},
};

const PING: u8 = 32;
const PONG: u8 = 33;
const WINDOW: u8 = 34;
const STOP: u8 = 35;
const DRAIN: u8 = 36;
const CLOSE: u8 = 37;

/// One control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// Liveness through the whole path; the peer answers with [`Control::Pong`] of the same number.
    Ping(u64),
    /// The answer to a ping. Pings are numbered from 1: a pong of 0 answers none, and only says that the
    /// sender is there, as gateways did whose carrier said nothing.
    Pong(u64),
    /// The receiver of this message may send on `stream` up to byte `position`, counted from the first byte after the
    /// opener's head, or from the first byte in the acceptor's direction.
    Window {
        /// The stream whose sender may go on.
        stream: StreamId,
        /// The absolute position in bytes. Never goes back; a smaller one is ignored.
        position: u64,
    },
    /// The reader of `stream` wants no more; the writer ends quietly.
    Stop {
        /// The stream whose writer is to end.
        stream: StreamId,
        /// Why the reader wants no more.
        code: StreamCode,
    },
    /// No new streams on this tunnel, please; open ones go on. An agent dials elsewhere first.
    Drain {
        /// Why the sender of this message drains.
        code: CloseCode,
        /// The agent reconnects after a random time of at most this many milliseconds.
        reconnect_within_ms: u64,
    },
    /// The tunnel ends now.
    Close {
        /// Why the tunnel ends.
        code: CloseCode,
        /// A sentence for people.
        message: String,
    },
}

impl Control {
    /// Encodes with the length prefix.
    pub fn encode(&self) -> BytesMut {
        self.encode_into(BytesMut::new())
    }

    /// Appends to `out`, so that a batch is one write.
    pub fn encode_into(&self, out: BytesMut) -> BytesMut {
        let kind = match self {
            Self::Ping(_) => PING,
            Self::Pong(_) => PONG,
            Self::Window { .. } => WINDOW,
            Self::Stop { .. } => STOP,
            Self::Drain { .. } => DRAIN,
            Self::Close { .. } => CLOSE,
        };
        let mut writer = Writer::begin(out, kind);
        match self {
            Self::Ping(number) | Self::Pong(number) => writer.integer(*number),
            Self::Window { stream, position } => writer.integer(stream.0).integer(*position),
            Self::Stop { stream, code } => writer.integer(stream.0).integer(u64::from(code.number())),
            Self::Drain { code, reconnect_within_ms } => {
                writer.integer(u64::from(code.number())).integer(*reconnect_within_ms)
            }
            Self::Close { code, message } => writer.integer(u64::from(code.number())).line(message),
        };
        writer.finish()
    }

    /// Decodes a message given without its length prefix. A kind that this build does not know is an error: new kinds
    /// are negotiated by features.
    pub fn decode(message: Bytes) -> Result<Self, WireError> {
        let mut reader = Reader::new(message)?;
        let number = |reader: &mut Reader| -> Result<u32, WireError> {
            u32::try_from(reader.integer("code")?).map_err(|_| WireError::Field("code"))
        };
        let this = match reader.kind {
            PING => Self::Ping(reader.integer("number")?),
            PONG => Self::Pong(reader.integer("number")?),
            WINDOW => {
                Self::Window { stream: StreamId(reader.integer("stream")?), position: reader.integer("position")? }
            }
            STOP => Self::Stop {
                stream: StreamId(reader.integer("stream")?),
                code: StreamCode::from_number(number(&mut reader)?),
            },
            DRAIN => Self::Drain {
                code: CloseCode::from_number(number(&mut reader)?),
                reconnect_within_ms: reader.integer("reconnect within")?,
            },
            CLOSE => {
                Self::Close { code: CloseCode::from_number(number(&mut reader)?), message: reader.line("message")? }
            }
            other => return Err(WireError::Kind(other)),
        };
        reader.end()?;
        Ok(this)
    }
}
