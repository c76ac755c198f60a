//! Frames of RFC 6455 section 5: payloads out of bytes as they come, and heads for what is sent. Nothing is kept of a
//! message, so that none needs memory, whatever its head says.

use std::io;

use super::MESSAGE_BYTES;

/// A head at most: two bytes, a length of eight, a key of four.
pub(super) const HEAD_BYTES: usize = 14;
/// Payload of a control frame (section 5.5).
const CONTROL_BYTES: usize = 125;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const MASKED: u8 = 0x80;

/// Opcodes that carriers meet (section 5.2).
mod opcode {
    pub const CONTINUATION: u8 = 0;
    pub const TEXT: u8 = 1;
    pub const BINARY: u8 = 2;
    pub const CLOSE: u8 = 8;
    pub const PING: u8 = 9;
    pub const PONG: u8 = 10;
}

/// With what a client's payload is masked (section 5.3), turned so that its first byte is for the next byte of the
/// payload.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Key(pub(super) [u8; 4]);

impl Key {
    /// Masks what follows what was masked before, or unmasks it.
    pub(super) fn apply(&mut self, bytes: &mut [u8]) {
        let Self(key) = *self;
        let wide = u64::from_ne_bytes([key[0], key[1], key[2], key[3], key[0], key[1], key[2], key[3]]);
        let (words, rest) = bytes.as_chunks_mut::<8>();
        for word in words {
            *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
        }
        rest.iter_mut().zip(key.iter().cycle()).for_each(|(byte, key)| *byte ^= key);
        self.0.rotate_left(rest.len() % key.len());
    }
}

/// What the peer wants an answer to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// A pong with the same payload (section 5.5.3).
    Pong(Vec<u8>),
    /// A close frame; nothing that follows is read (section 5.5.1).
    Close,
}

impl Asked {
    /// The frame that answers, masked where there is a key.
    pub(super) fn answer(self, key: Option<Key>) -> Vec<u8> {
        match self {
            Self::Pong(payload) => control(opcode::PONG, payload, key),
            Self::Close => close(NORMAL, key),
        }
    }
}

/// What a close frame says (section 7.4.1): done.
pub(super) const NORMAL: u16 = 1000;
/// The peer broke the rules.
pub(super) const PROTOCOL_ERROR: u16 = 1002;

/// A close frame.
pub(super) fn close(status: u16, key: Option<Key>) -> Vec<u8> {
    control(opcode::CLOSE, status.to_be_bytes().to_vec(), key)
}

/// At most 125 bytes of payload.
fn control(opcode: u8, mut payload: Vec<u8>, key: Option<Key>) -> Vec<u8> {
    let mut frame = Vec::with_capacity(HEAD_BYTES + payload.len());
    head(&mut frame, opcode, payload.len(), key);
    if let Some(mut key) = key {
        key.apply(&mut payload);
    }
    frame.extend_from_slice(&payload);
    frame
}

/// Appends the head of a binary message of one frame.
pub(super) fn begin(to: &mut Vec<u8>, bytes: usize, key: Option<Key>) {
    head(to, opcode::BINARY, bytes, key);
}

fn head(to: &mut Vec<u8>, opcode: u8, bytes: usize, key: Option<Key>) {
    let masked = if key.is_some() { MASKED } else { 0 };
    to.push(FIN | opcode);
    match (u8::try_from(bytes), u16::try_from(bytes)) {
        (Ok(short @ ..=125), _) => to.push(masked | short),
        (_, Ok(medium)) => {
            to.push(masked | 126);
            to.extend_from_slice(&medium.to_be_bytes());
        }
        _ => {
            to.push(masked | 127);
            to.extend_from_slice(&(bytes as u64).to_be_bytes());
        }
    }
    if let Some(Key(key)) = key {
        to.extend_from_slice(&key);
    }
}

/// What a frame carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Data,
    Control(u8),
}

/// Takes the payload out of frames.
#[derive(Debug)]
pub(super) struct Decoder {
    /// Whether the peer masks: a client does, a server never (section 5.1).
    masked: bool,
    head: [u8; HEAD_BYTES],
    /// Bytes of the head that have arrived.
    have: usize,
    kind: Kind,
    /// What is left of the frame's payload, in bytes.
    left: usize,
    key: Key,
    /// A message is in fragments, and this was not the last one.
    fragments: bool,
    /// What has come of a control frame's payload.
    control: Vec<u8>,
    /// What is still to be answered, of pings the last (section 5.5.3 allows that).
    asked: Option<Asked>,
    closed: bool,
}

impl Decoder {
    pub(super) fn new(masked: bool) -> Self {
        Self {
            masked,
            head: [0; HEAD_BYTES],
            have: 0,
            kind: Kind::Data,
            left: 0,
            key: Key::default(),
            fragments: false,
            control: Vec::new(),
            asked: None,
            closed: false,
        }
    }

    /// What is to be answered.
    pub(super) fn asked(&mut self) -> Option<Asked> {
        self.asked.take()
    }

    /// Whether no more is read: the peer has said that it sends no more, or broke the rules.
    pub(super) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Whether the connection may end here without a message being cut.
    pub(super) fn is_between_messages(&self) -> bool {
        self.have == 0 && self.left == 0 && !self.fragments
    }

    /// Takes what has come. Moves the payload of messages to the front of `bytes`, and returns its length. Nothing is
    /// read behind an error, as behind a close frame.
    pub(super) fn decode(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let taken = self.take(bytes);
        self.closed |= taken.is_err();
        taken
    }

    fn take(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let (mut at, mut kept) = (0, 0);
        while at < bytes.len() && !self.closed {
            if self.left == 0 {
                self.head[self.have] = bytes[at];
                (self.have, at) = (self.have + 1, at + 1);
                if self.have == self.head_bytes() {
                    self.begin()?;
                }
            } else {
                let part = at..at + self.left.min(bytes.len() - at);
                let length = part.len();
                if self.masked {
                    self.key.apply(&mut bytes[part.clone()]);
                }
                if self.kind == Kind::Data {
                    if kept < at {
                        bytes.copy_within(part, kept);
                    }
                    kept += length;
                } else {
                    self.control.extend_from_slice(&bytes[part]);
                }
                (self.left, at) = (self.left - length, at + length);
            }
            if self.left == 0 && self.have == 0 {
                self.end();
            }
        }
        Ok(kept)
    }

    /// How long the head is, by what has come of it.
    fn head_bytes(&self) -> usize {
        let key = if self.masked { 4 } else { 0 };
        match (self.have, self.head[1] & !MASKED) {
            (..2, _) => 2,
            (_, 126) => 4 + key,
            (_, 127) => 10 + key,
            _ => 2 + key,
        }
    }

    /// Looks at a head that is there as a whole.
    fn begin(&mut self) -> io::Result<()> {
        let [first, second, ..] = self.head;
        if first & RESERVED != 0 {
            return Err(broken("a frame of an extension that was not negotiated"));
        }
        if (second & MASKED != 0) != self.masked {
            return Err(broken(if self.masked {
                "a client's frame is not masked"
            } else {
                "a server's frame is masked"
            }));
        }
        let length = match second & !MASKED {
            126 => u64::from(u16::from_be_bytes([self.head[2], self.head[3]])),
            127 => {
                let [_, _, length @ .., _, _, _, _] = self.head;
                u64::from_be_bytes(length)
            }
            short => u64::from(short),
        };
        let fin = first & FIN != 0;
        self.kind = match first & !(FIN | RESERVED) {
            opcode::CONTINUATION if !self.fragments => return Err(broken("a fragment of no message")),
            opcode::BINARY if self.fragments => return Err(broken("a message within another one")),
            opcode::CONTINUATION | opcode::BINARY => {
                self.fragments = !fin;
                Kind::Data
            }
            opcode::TEXT => return Err(broken("not a binary message")),
            control @ (opcode::CLOSE | opcode::PING | opcode::PONG) => {
                if !fin || length > CONTROL_BYTES as u64 {
                    return Err(broken("a control frame in fragments, or of more than 125 bytes"));
                }
                Kind::Control(control)
            }
            _ => return Err(broken("a frame of an unknown kind")),
        };
        self.left = usize::try_from(length)
            .ok()
            .filter(|length| *length <= MESSAGE_BYTES)
            .ok_or_else(|| broken("a frame that is too long"))?;
        // The key ends the head.
        if self.masked
            && let Some(key) = self.head[..self.have].last_chunk()
        {
            self.key = Key(*key);
        }
        self.have = 0;
        Ok(())
    }

    /// Behind a frame.
    fn end(&mut self) {
        if let Kind::Control(opcode) = std::mem::replace(&mut self.kind, Kind::Data) {
            let payload = std::mem::take(&mut self.control);
            match opcode {
                opcode::PING => self.asked = Some(Asked::Pong(payload)),
                opcode::CLOSE => {
                    self.asked = Some(Asked::Close);
                    self.closed = true;
                }
                _ => {}
            }
        }
    }
}

/// What is read of a peer's frames, and why no more, which does not depend on the parts that they come in: at the bytes
/// of `cuts` by turns, if there are any. For the fuzz target `websocket`.
pub(crate) fn decode_in_parts(masked: bool, frames: &[u8], cuts: &[u8]) -> (Vec<u8>, Option<String>) {
    let mut decoder = Decoder::new(masked);
    let (mut payload, mut rest, mut cuts) = (Vec::new(), frames, cuts.iter().cycle());
    while !rest.is_empty() {
        let part;
        (part, rest) = rest.split_at(cuts.next().map_or(rest.len(), |cut| usize::from(*cut).clamp(1, rest.len())));
        let mut part = part.to_vec();
        match decoder.decode(&mut part) {
            Ok(kept) => payload.extend_from_slice(&part[..kept]),
            Err(error) => return (payload, Some(error.to_string())),
        }
    }
    assert!(decoder.control.len() <= CONTROL_BYTES);
    (payload, None)
}

fn broken(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
