//! A request's path and query. The HTTP libraries take no more than [`limits::PLAIN_TARGET_BYTES`] of both; an
//! apiserver takes a mebibyte, for `kubectl exec` with a long argument or `kubectl get` with a long selector.

use std::{fmt, str};

use bytes::Bytes;
use http::uri::PathAndQuery;
use types::limits;

/// A target that was admitted.
#[derive(Clone)]
pub enum Target {
    /// As the HTTP libraries take it.
    Plain(PathAndQuery),
    /// A longer one, which is written past them. It holds its place among the long ones of the tunnel.
    Long(Box<LongTarget>),
}

/// A target over [`limits::PLAIN_TARGET_BYTES`], in ASCII.
#[derive(Clone)]
pub struct LongTarget {
    bytes: Bytes,
    path: usize,
}

impl Target {
    /// Of bytes without spaces, control characters and `#`, beginning with `/`. None if the HTTP library does not take
    /// it, or what of a longer one is not in ASCII, or has a longer path.
    pub fn new(bytes: Bytes) -> Option<Self> {
        if bytes.len() <= limits::PLAIN_TARGET_BYTES {
            let kept = bytes.clone();
            let parsed = PathAndQuery::from_maybe_shared(bytes).ok()?;
            // Whatever a parser makes of it, what is sent is what was received.
            return (parsed.as_str().as_bytes() == kept).then_some(Self::Plain(parsed));
        }
        let path = bytes.iter().position(|b| *b == b'?').filter(|path| *path <= limits::PLAIN_TARGET_BYTES)?;
        let fine = bytes.iter().all(u8::is_ascii_graphic) && PathAndQuery::try_from(&bytes[..path]).is_ok();
        fine.then(|| Self::Long(Box::new(LongTarget { bytes, path })))
    }

    /// Path without the query, as received.
    pub fn path(&self) -> &str {
        match self {
            Self::Plain(target) => target.path(),
            Self::Long(long) => str::from_utf8(&long.bytes[..long.path]).unwrap_or_default(),
        }
    }

    /// Query without the `?`; `None` if the target has no query.
    pub fn query(&self) -> Option<&str> {
        match self {
            Self::Plain(target) => target.query(),
            Self::Long(long) => str::from_utf8(&long.bytes[long.path + 1..]).ok(),
        }
    }

    /// How many bytes it has.
    pub fn length(&self) -> usize {
        match self {
            Self::Plain(target) => target.as_str().len(),
            Self::Long(long) => long.bytes.len(),
        }
    }

    /// The same below a path, such as that of a kubeconfig's server. None if it becomes longer than a target may be.
    pub fn below(&self, prefix: &str) -> Option<Self> {
        if prefix.is_empty() {
            return Some(self.clone());
        }
        let whole = match self {
            Self::Plain(target) => [prefix.as_bytes(), target.as_str().as_bytes()].concat(),
            Self::Long(long) => [prefix.as_bytes(), &long.bytes].concat(),
        };
        if whole.len() > limits::TARGET_BYTES { None } else { Self::new(whole.into()) }
    }
}

impl LongTarget {
    /// The bytes of the whole target.
    pub fn into_bytes(self) -> Bytes {
        self.bytes
    }
}

/// A query may hold a credential.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_target_has_a_short_path_and_ascii() {
        let target = |text: String| Target::new(text.into());
        let long = "q".repeat(limits::PLAIN_TARGET_BYTES);
        let found = target(format!("/a%20b?c={long}")).unwrap();
        assert!(matches!(found, Target::Long(_)));
        assert_eq!((found.path(), found.query().map(str::len)), ("/a%20b", Some(long.len() + 2)));
        assert_eq!(format!("{found:?}"), "/a%20b");
        assert!(target(format!("/{long}")).is_none());
        assert!(target(format!("/{long}?a")).is_none());
        assert!(target(format!("/a?{long}\u{e9}")).is_none());
        assert!(target(format!("/a?{long} b")).is_none());
    }

    #[test]
    fn prefix_makes_a_long_target_of_a_plain_one() {
        let target = |bytes: usize| Target::new(format!("/{}", "?".repeat(bytes - 1)).into()).unwrap();
        assert!(matches!(target(10).below("/p"), Some(Target::Plain(target)) if target == "/p/?????????"));
        let below = target(limits::PLAIN_TARGET_BYTES).below("/p").unwrap();
        assert_eq!((below.path(), below.query().map(str::len)), ("/p/", Some(limits::PLAIN_TARGET_BYTES - 2)));
        assert!(target(limits::TARGET_BYTES).below("/p").is_none());
    }
}
