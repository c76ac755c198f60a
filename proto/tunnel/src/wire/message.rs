//! The frame that all messages share: length, version, kind, fields, extensions.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{error::WireError, varint};

/// The wire version that this build writes and reads.
pub const WIRE_VERSION: u8 = 1;

/// Bytes of the length prefix.
pub const LENGTH_BYTES: usize = 4;

/// Bytes of a text for people.
pub const TEXT_BYTES: usize = 1024;

/// Bytes of a short word such as a role, a stage, an address or a trace context.
pub const WORD_BYTES: usize = 128;

/// Writes one message.
pub struct Writer {
    out: BytesMut,
    start: usize,
}

impl Writer {
    /// Begins a message of `kind` at the end of `out`.
    pub fn begin(mut out: BytesMut, kind: u8) -> Self {
        let start = out.len();
        out.put_u32(0);
        out.put_u8(WIRE_VERSION);
        out.put_u8(kind);
        Self { out, start }
    }

    /// A varint field.
    pub fn integer(&mut self, value: u64) -> &mut Self {
        varint::put(&mut self.out, value);
        self
    }

    /// A byte-string field.
    pub fn bytes(&mut self, value: &[u8]) -> &mut Self {
        varint::put(&mut self.out, value.len() as u64);
        self.out.put_slice(value);
        self
    }

    /// A text for people: cut at [`TEXT_BYTES`], and without control characters because it ends in the peer's log.
    pub fn line(&mut self, text: &str) -> &mut Self {
        let mut line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(TEXT_BYTES).collect();
        line.truncate(line.floor_char_boundary(TEXT_BYTES));
        self.bytes(line.as_bytes())
    }

    /// An extension. Even tags may be skipped by a reader that does not know them. Tags go up.
    pub fn extension(&mut self, tag: u64, value: &[u8]) -> &mut Self {
        self.integer(tag).bytes(value)
    }

    /// Fills in the length and gives the buffer back.
    pub fn finish(mut self) -> BytesMut {
        let length = self.out.len() - self.start - LENGTH_BYTES;
        // Writers are bounded by `limits`, far below 4 GiB.
        let length = u32::try_from(length).expect("messages are shorter than 4 GiB");
        self.out[self.start..self.start + LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
        self.out
    }
}

/// The length prefix at the front of `input`, or `None` if it is not all there: how many bytes follow the prefix.
pub fn length(input: &[u8], limit: usize) -> Result<Option<usize>, WireError> {
    let Some(prefix) = input.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let got = u32::from_be_bytes(*prefix) as usize;
    if got > limit {
        return Err(WireError::TooLong { got, limit });
    }
    Ok(Some(got))
}

/// Reads one message, given without its length prefix.
pub struct Reader {
    rest: Bytes,
    /// The message's kind.
    pub kind: u8,
}

impl Reader {
    /// Checks the version and takes the kind.
    pub fn new(mut message: Bytes) -> Result<Self, WireError> {
        if message.len() < 2 {
            return Err(WireError::Truncated("version and kind"));
        }
        let (version, kind) = (message.get_u8(), message.get_u8());
        if version != WIRE_VERSION {
            return Err(WireError::Version(version));
        }
        Ok(Self { rest: message, kind })
    }

    /// Reads fields of a value within a message: no version, no kind.
    pub fn nested(value: Bytes) -> Self {
        Self { rest: value, kind: 0 }
    }

    /// Fails unless the message is of `kind`.
    pub fn expect(message: Bytes, kind: u8) -> Result<Self, WireError> {
        let reader = Self::new(message)?;
        if reader.kind == kind { Ok(reader) } else { Err(WireError::Kind(reader.kind)) }
    }

    /// A varint field.
    pub fn integer(&mut self, name: &'static str) -> Result<u64, WireError> {
        let (value, taken) = varint::take(&self.rest)?.ok_or(WireError::Truncated(name))?;
        self.rest.advance(taken);
        Ok(value)
    }

    /// A byte-string field; no copy.
    pub fn bytes(&mut self, name: &'static str) -> Result<Bytes, WireError> {
        let length = self.integer(name)?;
        match usize::try_from(length) {
            Ok(length) if length <= self.rest.len() => Ok(self.rest.split_to(length)),
            _ => Err(WireError::Truncated(name)),
        }
    }

    /// A text for people: UTF-8 of at most [`TEXT_BYTES`], without control characters because it ends in a log.
    pub fn line(&mut self, name: &'static str) -> Result<String, WireError> {
        let bytes = self.bytes(name)?;
        match std::str::from_utf8(&bytes) {
            Ok(text) if text.len() <= TEXT_BYTES && !text.chars().any(char::is_control) => Ok(text.to_owned()),
            _ => Err(WireError::Field(name)),
        }
    }

    /// Copies what is left, so that it no longer shares the memory of what was read.
    pub fn detach(&mut self) {
        self.rest = Bytes::copy_from_slice(&self.rest);
    }

    /// How many bytes are left: a count that needs more than these is a lie, and nothing is allocated for it.
    pub fn left(&self) -> usize {
        self.rest.len()
    }

    /// Whether all fields were read: what is left, if anything, is extensions.
    pub fn at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads the extensions to the end, handing each to `known`, which says whether it knows the tag. Tags go up, so
    /// that none comes twice and two readers cannot take different ones for the valid one.
    pub fn extensions(mut self, mut known: impl FnMut(u64, Bytes) -> Result<bool, WireError>) -> Result<(), WireError> {
        let mut last = None;
        while !self.at_end() {
            let tag = self.integer("extension tag")?;
            if last >= Some(tag) {
                return Err(WireError::Order(tag));
            }
            last = Some(tag);
            let value = self.bytes("extension")?;
            if !known(tag, value)? && tag % 2 == 1 {
                return Err(WireError::Extension(tag));
            }
        }
        Ok(())
    }

    /// Reads to the end where no extension is known.
    pub fn end(self) -> Result<(), WireError> {
        self.extensions(|_, _| Ok(false))
    }
}

/// An extension that holds a big-endian `u64`.
pub fn extension_u64(value: &[u8], name: &'static str) -> Result<u64, WireError> {
    value.try_into().map(u64::from_be_bytes).map_err(|_| WireError::Field(name))
}

/// Fails unless `value` is a word: 1 to [`WORD_BYTES`] visible ASCII characters.
pub fn check_word(value: &[u8], name: &'static str) -> Result<(), WireError> {
    let plain = (1..=WORD_BYTES).contains(&value.len()) && value.iter().all(u8::is_ascii_graphic);
    if plain { Ok(()) } else { Err(WireError::Field(name)) }
}

/// `value`, if it is a word.
pub fn word(value: Bytes, name: &'static str) -> Result<Bytes, WireError> {
    check_word(&value, name).map(|()| value)
}
