//! The bytes that tokens in `Authorization` consist of, for those who verify tokens and those who keep them out of
//! logs.

/// What a token consists of (`b64token` of RFC 6750 section 2.1).
const TOKEN_BYTES: [bool; 256] = {
    let mut fine = [false; 256];
    let mut byte = 0;
    while byte < fine.len() {
        let b = byte as u8;
        fine[byte] = b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~' | b'+' | b'/' | b'=');
        byte += 1;
    }
    fine
};

/// Whether tokens have this byte: no comma, no space, so that two tokens are never one.
pub fn is_token_byte(byte: u8) -> bool {
    TOKEN_BYTES[usize::from(byte)]
}

/// Whether it has such bytes alone, and one at least. Without a branch for each: it is asked about a kilobyte for every
/// request.
pub fn is_of_token_bytes(token: &[u8]) -> bool {
    !token.is_empty() && token.iter().fold(true, |fine, byte| fine & is_token_byte(*byte))
}
