//! When the tokens of a sign-in end that were shown, and which of the issuer's keys signed them. Agents and gateways decide
//! by it for how long the sessions of a sign-in go on: what a revoked key signed extends nothing.

use std::{mem, sync::Arc};

/// The end of a token, and the issuer's key that signed it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenEnd {
    /// In seconds since 1970.
    pub until: u64,
    /// Thumbprint of the key; `None`: it is unknown, or no issuer signed it.
    pub key: Option<Arc<str>>,
}

/// The ends of tokens of one sign-in: the latest of each key, at most [`OTHER_KEYS`] and one.
#[derive(Debug)]
pub struct Ends {
    latest: TokenEnd,
    /// Of other keys, the earliest end first. Hardly ever any: an issuer replaces its key rarely.
    others: Vec<TokenEnd>,
}

/// Keys whose tokens are remembered for a sign-in beside the latest one's.
const OTHER_KEYS: usize = 3;

impl Ends {
    /// Of one token.
    pub fn new(end: TokenEnd) -> Self {
        Self { latest: end, others: Vec::new() }
    }

    /// The latest of them.
    pub fn latest(&self) -> &TokenEnd {
        &self.latest
    }

    /// Another token was shown.
    pub fn add(&mut self, mut end: TokenEnd) {
        let Self { latest, others } = self;
        if latest.key == end.key {
            latest.until = latest.until.max(end.until);
            return;
        }
        if let Some(at) = others.iter().position(|known| known.key == end.key) {
            end.until = end.until.max(others.remove(at).until);
        }
        if latest.until < end.until {
            mem::swap(latest, &mut end);
        }
        others.push(end);
        others.sort_by_key(|end| end.until);
        if others.len() > OTHER_KEYS {
            others.remove(0);
        }
    }

    /// Forgets what revoked keys signed. False: there is nothing else, and what was shown counts no longer.
    pub fn keep(&mut self, is_good: impl Fn(&str) -> bool) -> bool {
        let is_good = |end: &TokenEnd| end.key.as_deref().is_none_or(&is_good);
        self.others.retain(&is_good);
        if is_good(&self.latest) {
            return true;
        }
        // The last of the others ends latest.
        let Some(next) = self.others.pop() else { return false };
        self.latest = next;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(key: &str, until: u64) -> TokenEnd {
        TokenEnd { until, key: Some(key.into()) }
    }

    #[test]
    fn what_a_revoked_key_signed_extends_nothing_and_what_another_signed_stays() {
        let mut ends = Ends::new(end("old", 10));
        ends.add(end("new", 30));
        ends.add(end("old", 20));
        ends.add(end("stolen", 99));
        assert_eq!(ends.latest(), &end("stolen", 99));
        assert!(ends.keep(|key| key != "stolen"));
        assert_eq!(ends.latest(), &end("new", 30));
        assert!(ends.keep(|key| key == "old"));
        assert_eq!(ends.latest(), &end("old", 20), "the latest of the key, in whatever order they were shown");
        assert!(!ends.keep(|_| false), "nothing is left");
        ends.add(end("new", 5));
        assert!(ends.keep(|key| key == "new"));
        assert_eq!(ends.latest().until, 5, "a good token that ends earlier does not keep what the revoked one gave");
        let mut certificate = Ends::new(TokenEnd { until: 1, key: None });
        assert!(certificate.keep(|_| false));
    }

    #[test]
    fn ends_of_many_keys_are_bounded_and_the_latest_ones_stay() {
        let mut ends = Ends::new(end("0", 100));
        for key in 1..50 {
            ends.add(end(&key.to_string(), 100 + key));
            ends.add(end("low", 1));
        }
        let others: Vec<u64> = ends.others.iter().map(|end| end.until).collect();
        assert_eq!((ends.latest.until, others), (149, vec![146, 147, 148]));
    }
}
