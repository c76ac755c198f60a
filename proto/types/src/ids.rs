//! Ids, parsed once. What holds one of these types has been checked.

use std::fmt;
use std::str::FromStr;

use crate::{
    api::id::{fold, is_group_name},
    random::{self, NoRandom},
};

/// An ARM resource id of a connected cluster, in lower case ([`fold`]):
/// `/subscriptions/<s>/resourcegroups/<g>/providers/microsoft.kubernetes/connectedclusters/<name>`.
///
/// ARM ids compare without case, so the lower-cased form is the identity. It is taken from one place
/// only, the agent's certificate (docs/threats.md TH10), and never from a message.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterId(std::sync::Arc<str>);

/// Why a text is no [`ClusterId`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not the id of a connected cluster: {0}; expected /subscriptions/<subscription>/resourceGroups/<group>/providers/Microsoft.Kubernetes/connectedClusters/<name>"
)]
pub struct InvalidClusterId(&'static str);

impl ClusterId {
    /// The id, lower-cased.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The last segment: the cluster's name, lower-cased.
    pub fn name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or_default()
    }

    /// The subscription that it is in, lower-cased.
    pub fn subscription(&self) -> &str {
        self.0.split('/').nth(2).unwrap_or_default()
    }

    /// The audience of tokens for this cluster (docs/identity.md): a token shown for cluster A is nothing at B.
    pub fn audience(&self) -> String {
        format!("towline:cluster:{}", self.0)
    }

    /// The key that addresses carry: SHA-256 of the lower-cased id (docs/identity.md).
    pub fn key(&self) -> ClusterKey {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, self.0.as_bytes());
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        ClusterKey(bytes)
    }
}

impl FromStr for ClusterId {
    type Err = InvalidClusterId;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() > 1024 {
            return Err(InvalidClusterId("longer than 1024 bytes"));
        }
        let lower = fold(text);
        let mut segments = lower.split('/');
        if segments.next() != Some("") {
            return Err(InvalidClusterId("does not begin with /"));
        }
        // Of the names a resource group's alone is not in ASCII.
        const GROUP: Option<&str> = Some("");
        const NAME: InvalidClusterId = InvalidClusterId(
            "a name is empty, too long or has other characters than a-z 0-9 - _ . ( ), or letters and digits of any script in a resource group's",
        );
        for expected in [
            Some("subscriptions"),
            None,
            Some("resourcegroups"),
            GROUP,
            Some("providers"),
            Some("microsoft.kubernetes"),
            Some("connectedclusters"),
            None,
        ] {
            let segment = segments.next().ok_or(InvalidClusterId("too few segments"))?;
            match expected {
                GROUP if is_group_name(segment) || is_name(segment) => {}
                GROUP => return Err(NAME),
                Some(word) if word != segment => return Err(InvalidClusterId("a segment is not as expected")),
                Some(_) => {}
                None if !is_name(segment) => {
                    return Err(NAME);
                }
                None => {}
            }
        }
        if segments.next().is_some() {
            return Err(InvalidClusterId("too many segments"));
        }
        Ok(Self(lower.into()))
    }
}

fn is_name(segment: &str) -> bool {
    (1..=90).contains(&segment.len())
        && segment != "."
        && segment != ".."
        && segment.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b'(' | b')'))
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// SHA-256 of a [`ClusterId`]: what a cluster's two addresses carry, as 64 hex digits in a path and as 52 base32
/// characters in a host name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterKey([u8; 32]);

/// Lower-case hex, two digits a byte. Each request has half a dozen of these, so no formatter is asked.
pub fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    push_hex(&mut text, bytes);
    text
}

/// Appends `bytes` to `text` as [`hex`] spells them.
pub fn push_hex(text: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |value: u8| char::from(DIGITS[usize::from(value & 15)]);
    for byte in bytes {
        text.push(digit(byte >> 4));
        text.push(digit(*byte));
    }
}

/// Reads `2 * N` hex digits in lower case and nothing else.
pub fn lower_hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |b: u8| match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        _ => None,
    };
    if text.len() != 2 * N {
        return None;
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(out)
}

const BASE32: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

impl ClusterKey {
    /// The digest's bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Of a digest's bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// 64 lower-case hex digits: the first path segment of `https://<gateway>/<key>`.
    pub fn hex(&self) -> String {
        hex(&self.0)
    }

    /// 52 lower-case base32 characters (RFC 4648, no padding): the first label of `https://<key>.<domain>`.
    pub fn base32(&self) -> String {
        let mut out = String::with_capacity(52);
        let (mut buffer, mut bits) = (0u32, 0u32);
        for &byte in &self.0 {
            buffer = (buffer << 8) | u32::from(byte);
            bits += 8;
            while bits >= 5 {
                bits -= 5;
                out.push(char::from(BASE32[(buffer >> bits) as usize & 31]));
            }
        }
        out.push(char::from(BASE32[(buffer << (5 - bits)) as usize & 31]));
        out
    }

    /// Reads 64 hex digits in lower case; anything else is `None`: one address, one spelling.
    pub fn from_hex(text: &[u8]) -> Option<Self> {
        lower_hex(text).map(Self)
    }

    /// Reads 52 base32 characters, in any case because host names have none.
    pub fn from_base32(text: &[u8]) -> Option<Self> {
        if text.len() != 52 {
            return None;
        }
        let mut out = Vec::with_capacity(33);
        let (mut buffer, mut bits) = (0u32, 0u32);
        for byte in text {
            let value = BASE32.iter().position(|b| *b == byte.to_ascii_lowercase())?;
            buffer = (buffer << 5) | u32::try_from(value).ok()?;
            bits += 5;
            if bits >= 8 {
                bits -= 8;
                out.push((buffer >> bits) as u8);
            }
        }
        // 52 characters are 260 bits: the last four must be zero, so that one key has one spelling.
        if buffer & 0b1111 != 0 {
            return None;
        }
        Some(Self(out.try_into().ok()?))
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hex())
    }
}

impl fmt::Display for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.hex())
    }
}

/// The identity of a stream: ours, not the carrier's number, so that a later version can carry it over to the next
/// carrier. Streams that the gateway opens have even numbers, the agent's odd ones; a number is never used again within
/// a session.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct StreamId(pub u64);

/// Identifies one user request in logs, audit records, error bodies and on the wire: 16 random bytes as 32 hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct RequestId(pub [u8; 16]);

impl RequestId {
    /// A fresh one. Fails only if the operating system gives no random bytes.
    pub fn random() -> Result<Self, NoRandom> {
        random::bytes().map(Self)
    }

    /// Reads 32 hex digits, in any case.
    pub fn from_hex(text: &str) -> Option<Self> {
        let mut out = [0; 16];
        // `from_str_radix` alone would take a plus sign.
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        for (byte, pair) in out.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(out))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "/subscriptions/00000000-0000-0000-0000-000000000001/resourceGroups/Demo/providers/Microsoft.Kubernetes/connectedClusters/Edge-1";

    #[test]
    fn cluster_ids_compare_without_case_and_have_one_key() {
        let a: ClusterId = ID.parse().unwrap();
        let b: ClusterId = ID.to_uppercase().parse().unwrap();
        assert_eq!(a, b);
        assert_eq!(a.name(), "edge-1");
        assert_eq!(a.key(), b.key());
    }

    #[test]
    fn cluster_ids_have_resource_groups_of_any_alphabet() {
        let group = |name: &str| ID.replace("Demo", name).parse::<ClusterId>();
        assert_eq!(group("Entwicklung-Ü").unwrap(), group("entwicklung-ü").unwrap());
        assert_eq!(group("開発").unwrap().as_str(), ID.replace("Demo", "開発").to_lowercase());
        assert!(group(&"ü".repeat(90)).is_ok() && group(&"ü".repeat(91)).is_err());
        assert!(group("a\u{202e}").is_err() && group("u\u{308}").is_err());
        assert!(ID.replace("Edge-1", "ü").parse::<ClusterId>().is_err(), "the cluster's own name is ASCII");
        assert!(ID.replace("00001/", "0000ü/").parse::<ClusterId>().is_err());
    }

    #[test]
    fn cluster_ids_with_traversal_or_other_shapes_are_refused() {
        for bad in [
            "",
            "/",
            "x",
            &ID.replace("Demo", ".."),
            &ID.replace("Edge-1", ""),
            &format!("{ID}/x"),
            &ID.replace("Demo", "a b"),
            &ID.replace("Demo", "%2e"),
        ] {
            assert!(bad.parse::<ClusterId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_read_back_what_they_print() {
        let key = ID.parse::<ClusterId>().unwrap().key();
        assert_eq!(ClusterKey::from_hex(key.hex().as_bytes()), Some(key));
        assert_eq!(key.base32().len(), 52);
        assert_eq!(ClusterKey::from_base32(key.base32().as_bytes()), Some(key));
        assert_eq!(ClusterKey::from_base32(key.base32().to_uppercase().as_bytes()), Some(key));
        assert_eq!(ClusterKey::from_hex(key.hex().to_uppercase().as_bytes()), None);
        let mut other = key.base32();
        other.pop();
        other.push('7');
        assert_eq!(ClusterKey::from_base32(other.as_bytes()), None);
    }

    #[test]
    fn request_ids_are_hex_digits_and_nothing_else() {
        let id = RequestId([0xaf; 16]);
        assert_eq!(RequestId::from_hex(&id.to_string()), Some(id));
        // Found by the `ids` fuzz target.
        assert_eq!(RequestId::from_hex(&"+f".repeat(16)), None);
        assert_eq!(RequestId::from_hex(&"ä".repeat(16)), None);
    }
}
