//! SHA-256, in hex.

use std::{fmt, str::FromStr};

use aws_lc_rs::digest::{SHA256, digest};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use types::ids::{hex, lower_hex};

/// A SHA-256 digest. Its text is 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sha256([u8; 32]);

/// A text that is no digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a SHA-256 digest is 64 lower-case hex digits")]
pub struct NoDigest;

impl Sha256 {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        let mut out = [0; 32];
        out.copy_from_slice(digest(&SHA256, bytes).as_ref());
        Self(out)
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Sha256 {
    type Err = NoDigest;

    fn from_str(text: &str) -> Result<Self, NoDigest> {
        lower_hex(text.as_bytes()).map(Self).ok_or(NoDigest)
    }
}

impl Serialize for Sha256 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sha256 {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_64_lower_case_hex_digits() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Sha256::of(b"").to_string(), empty);
        assert_eq!(empty.parse(), Ok(Sha256::of(b"")));
        for bad in ["", &empty[1..], &empty.to_uppercase(), &format!("{empty}0"), &empty.replace('e', "g")] {
            assert_eq!(bad.parse::<Sha256>(), Err(NoDigest), "{bad}");
        }
    }
}
