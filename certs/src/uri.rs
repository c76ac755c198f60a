//! A cluster's id in the URI name of a certificate, which has ASCII only: the bytes of other characters are
//! percent-encoded (RFC 3986 section 2.1), and no others, so that an id has one spelling.

use std::{borrow::Cow, fmt::Write as _};

/// As it stands in a URI.
pub(crate) fn encoded(id: &str) -> Cow<'_, str> {
    if id.is_ascii() {
        return Cow::Borrowed(id);
    }
    let mut text = String::with_capacity(3 * id.len());
    for byte in id.bytes() {
        if byte.is_ascii() {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    Cow::Owned(text)
}

/// The id in a URI; none in any other spelling.
pub(crate) fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok().filter(|id| encoded(id) == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_one_spelling_in_a_uri() {
        for (id, uri) in [("/a/b-(c)", "/a/b-(c)"), ("/entwicklung-ü", "/entwicklung-%C3%BC"), ("開", "%E9%96%8B")] {
            assert_eq!((encoded(id).as_ref(), decoded(uri).as_deref()), (uri, Some(id)));
        }
        for other in ["%c3%bc", "%61", "%C3", "%C3%B", "%", "%+1", "a%", "%25", "ü"] {
            assert_eq!(decoded(other), None, "{other}");
        }
    }
}
