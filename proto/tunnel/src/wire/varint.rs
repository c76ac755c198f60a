//! Integers of one to ten bytes, least significant seven bits first (LEB128), in the shortest form only.

use bytes::BufMut;

use super::error::WireError;

/// Appends the encoding of `value`.
pub fn put(out: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8((value as u8) | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

/// Reads an integer from the front of `input`: the value and how many bytes it took, or `None` if `input` ends within
/// it. A longer form than needed is an error, so that each value has one spelling.
pub fn take(input: &[u8]) -> Result<Option<(u64, usize)>, WireError> {
    let mut value = 0u64;
    for (index, &byte) in input.iter().enumerate().take(10) {
        let bits = u64::from(byte & 0x7f);
        if index == 9 && bits > 1 {
            return Err(WireError::Varint);
        }
        value |= bits << (7 * index);
        if byte & 0x80 == 0 {
            if byte == 0 && index > 0 {
                return Err(WireError::Varint);
            }
            return Ok(Some((value, index + 1)));
        }
    }
    if input.len() >= 10 { Err(WireError::Varint) } else { Ok(None) }
}
