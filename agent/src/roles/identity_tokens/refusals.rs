//! Tokens that the apiserver has refused: shown again soon, they are refused here, and who shows one after the other
//! waits. So no pod makes the apiserver review what is good for nothing as fast as it can ask. Pods may share an
//! address: a token that was good lately is reviewed whatever others of its address show.

use std::{
    collections::VecDeque,
    net::IpAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use aws_lc_rs::digest;
use tokio::time::Instant;

/// How long a refusal is remembered: a token that is good from now on is not kept out for longer.
pub const REMEMBERED: Duration = Duration::from_secs(10);
/// Refusals that are remembered at most; the oldest is forgotten first.
const REMEMBERED_MAX: usize = 1024;
/// Tokens of one address that are reviewed in vain within that time.
const OF_ONE_PEER: usize = 8;
/// How long it is remembered that a token was good, and how many such at most; the oldest is forgotten first. Each is
/// reviewed all the same.
const GOOD: Duration = Duration::from_secs(3600);
const GOOD_MAX: usize = 1024;

type Digest = [u8; digest::SHA256_OUTPUT_LEN];

/// What is known of a token before it is reviewed.
#[derive(Debug, PartialEq, Eq)]
pub enum Known {
    /// The same question was refused a moment ago.
    Refused,
    /// Others of the same address were, too many of them.
    TooMany,
}

/// Refusals, the oldest first, and what was good.
pub struct Refusals {
    remembered: Duration,
    refused: Mutex<VecDeque<(Instant, IpAddr, Digest)>>,
    good: Mutex<VecDeque<(Instant, Digest)>>,
}

impl Default for Refusals {
    fn default() -> Self {
        Self::remembered_for(REMEMBERED)
    }
}

impl Refusals {
    /// An empty table, which remembers each refusal for `remembered`.
    pub fn remembered_for(remembered: Duration) -> Self {
        Self { remembered, refused: Mutex::default(), good: Mutex::default() }
    }

    /// What is known of a token that this address shows; nothing of one that has to be reviewed.
    pub fn known(&self, token: &str, peer: IpAddr) -> Option<Known> {
        let (token, peer) = (digest_of(token), peer.to_canonical());
        let mut all = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        while all.front().is_some_and(|(at, ..)| at.elapsed() >= self.remembered) {
            all.pop_front();
        }
        if all.iter().any(|(_, _, refused)| *refused == token) {
            return Some(Known::Refused);
        }
        let too_many = all.iter().filter(|(_, other, _)| *other == peer).count() >= OF_ONE_PEER;
        drop(all);
        (too_many && !self.was_good(&token)).then_some(Known::TooMany)
    }

    fn was_good(&self, token: &Digest) -> bool {
        let good = self.good.lock().unwrap_or_else(PoisonError::into_inner);
        good.iter().any(|(at, known)| known == token && at.elapsed() < GOOD)
    }

    /// The apiserver knows whose it is.
    pub fn accepted(&self, token: &str) {
        let token = digest_of(token);
        let mut good = self.good.lock().unwrap_or_else(PoisonError::into_inner);
        good.retain(|(at, known)| *known != token && at.elapsed() < GOOD);
        if good.len() >= GOOD_MAX {
            good.pop_front();
        }
        good.push_back((Instant::now(), token));
    }

    /// The apiserver refused it.
    pub fn note(&self, token: &str, peer: IpAddr) {
        let token = digest_of(token);
        self.good.lock().unwrap_or_else(PoisonError::into_inner).retain(|(_, known)| *known != token);
        let mut all = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= REMEMBERED_MAX {
            all.pop_front();
        }
        all.push_back((Instant::now(), peer.to_canonical(), token));
    }
}

fn digest_of(token: &str) -> Digest {
    let mut own = Digest::default();
    own.copy_from_slice(digest::digest(&digest::SHA256, token.as_bytes()).as_ref());
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn r9_a_refusal_is_remembered_for_a_while_and_bounded() {
        let refusals = Refusals::default();
        let at = |last: u8| IpAddr::from([192, 0, 2, last]);
        refusals.note("bad", at(1));
        assert_eq!(refusals.known("bad", at(2)), Some(Known::Refused), "whoever shows it");
        assert_eq!(refusals.known("other", at(1)), None);
        for number in 1..OF_ONE_PEER {
            refusals.note(&number.to_string(), at(1));
        }
        assert_eq!(refusals.known("other", at(1)), Some(Known::TooMany));
        assert_eq!(refusals.known("other", at(2)), None, "one pod's refusals are not another's");
        tokio::time::advance(REMEMBERED).await;
        assert_eq!((refusals.known("bad", at(1)), refusals.known("other", at(1))), (None, None));
        for number in 0..2 * REMEMBERED_MAX {
            refusals.note(&number.to_string(), at(3));
        }
        assert_eq!(refusals.refused.lock().unwrap().len(), REMEMBERED_MAX);
    }
    #[tokio::test(start_paused = true)]
    async fn r9_what_was_good_lately_is_reviewed_whatever_else_comes_from_its_address() {
        let refusals = Refusals::default();
        let peer = IpAddr::from([192, 0, 2, 1]);
        let flood = || (0..OF_ONE_PEER).for_each(|number| refusals.note(&number.to_string(), peer));
        refusals.accepted("good");
        flood();
        assert_eq!((refusals.known("good", peer), refusals.known("other", peer)), (None, Some(Known::TooMany)));
        refusals.note("good", peer);
        assert_eq!(refusals.known("good", peer), Some(Known::Refused));
        tokio::time::advance(REMEMBERED).await;
        flood();
        assert_eq!(refusals.known("good", peer), Some(Known::TooMany), "it is not good any more");
        refusals.accepted("good");
        tokio::time::advance(GOOD).await;
        flood();
        assert_eq!(refusals.known("good", peer), Some(Known::TooMany), "that was long ago");
        for number in 0..2 * GOOD_MAX {
            refusals.accepted(&number.to_string());
        }
        assert_eq!(refusals.good.lock().unwrap().len(), GOOD_MAX);
    }
}
