//! Refresh tokens: rotating, each family bound to one client and one user's sign-in (RFC 9700 section 4.14). Kept as
//! hashes in a file or in the store, so that a restart signs nobody out.
//!
//! A token is `<family>.<secret>`. The newest secret of a family is good; the one before it stays good for a moment,
//! without a further one, for a client that runs twice or lost the answer. Any other secret of a family is one that was
//! stolen or copied: the whole family ends.

use std::path::Path;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use serde::{Deserialize, Serialize};

use super::{
    flows::{Consent, Wish, random_code},
    principals::hash,
    users::spelled_as_guid,
};
use crate::{
    files::{self, FileError},
    guid::NoRandom,
};

/// Families at most; over that the ones that rested longest end.
pub const FAMILIES_MAX: usize = 10_000;
/// The same of one user.
pub const FAMILIES_PER_USER: usize = 64;
/// Rest after which a family ends, in seconds.
const IDLE_SECONDS: u64 = 14 * 86_400;
/// Seconds after which the user has to sign in again.
const LIFE_SECONDS: u64 = 90 * 86_400;
/// How long the secret before stays good, in seconds.
const OVERLAP_SECONDS: u64 = 60;

/// Why refresh tokens could not be used.
#[derive(Debug, thiserror::Error)]
pub enum RefreshError {
    /// The file of refresh tokens cannot be read, parsed or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The operating system gave no random bytes.
    #[error(transparent)]
    Random(#[from] NoRandom),
}

/// The refresh tokens of one sign-in.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// Its name, with which each of its tokens begins.
    pub id: String,
    wish: Wish,
    /// The stable id of the user.
    #[serde(deserialize_with = "spelled_as_guid")]
    pub user: String,
    generation: u64,
    signed_in: u64,
    /// When its newest token was made, in seconds since 1970.
    pub rotated: u64,
    hash: String,
    /// Of the secret before.
    before: Option<String>,
}

impl Family {
    /// A family with its first token.
    pub fn begin(id: &str, wish: Wish, consent: &Consent, now: u64) -> Result<(Self, String), NoRandom> {
        let secret = random_code()?;
        let family = Self {
            id: id.to_owned(),
            wish,
            user: consent.user.clone(),
            generation: consent.generation,
            signed_in: consent.at,
            rotated: now,
            hash: hashed(&secret),
            before: None,
        };
        Ok((family, format!("{id}.{secret}")))
    }

    /// When it ends unless it is used before, in seconds since 1970.
    pub fn ends(&self) -> u64 {
        (self.rotated + IDLE_SECONDS).min(self.signed_in + LIFE_SECONDS)
    }

    /// Uses a secret of `client`. `None`: it is no good, and the family ends.
    pub fn rotate(&mut self, secret: &str, client: &str, now: u64) -> Result<Option<Refreshed>, NoRandom> {
        let shown = hashed(secret);
        let same = |kept: &str| verify_slices_are_equal(kept.as_bytes(), shown.as_bytes()).is_ok();
        let newest = same(&self.hash);
        let overlaps = self.before.as_deref().is_some_and(same) && now < self.rotated + OVERLAP_SECONDS;
        if now >= self.ends() || self.wish.client != client || !(newest || overlaps) {
            return Ok(None);
        }
        let mut next = None;
        if newest {
            let secret = random_code()?;
            self.before = Some(std::mem::replace(&mut self.hash, hashed(&secret)));
            self.rotated = now;
            next = Some(format!("{}.{secret}", self.id));
        }
        let consent = Consent { user: self.user.clone(), generation: self.generation, at: self.signed_in };
        Ok(Some(Refreshed { wish: self.wish.clone(), consent, next }))
    }
}

/// What comes of a refresh token.
pub struct Refreshed {
    /// What the family is worth.
    pub wish: Wish,
    /// The user that signed in.
    pub consent: Consent,
    /// The next token; none for the one before the newest.
    pub next: Option<String>,
}

/// All families of refresh tokens, as the file holds them.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refresh {
    pub(super) families: Vec<Family>,
}

impl Refresh {
    /// Reads a file without changing it; one that is not there has none.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        if path.exists() { files::parse_json(path, &files::read(path)?) } else { Ok(Self::default()) }
    }

    /// Changes the families of `path` under a lock.
    pub fn edit<T>(path: &Path, change: impl FnOnce(&mut Self) -> Result<T, RefreshError>) -> Result<T, RefreshError> {
        files::edit(path, files::parse_json, change)
    }

    /// Begins a family and returns its first token.
    pub fn begin(&mut self, family: &str, wish: Wish, consent: &Consent, now: u64) -> Result<String, RefreshError> {
        self.families.retain(|family| now < family.ends());
        self.make_room(|family| family.user == consent.user, FAMILIES_PER_USER);
        self.make_room(|_| true, FAMILIES_MAX);
        let (family, token) = Family::begin(family, wish, consent, now)?;
        self.families.push(family);
        Ok(token)
    }

    fn make_room(&mut self, among: impl Fn(&Family) -> bool, limit: usize) {
        while self.families.iter().filter(|family| among(family)).count() >= limit {
            let oldest = self.families.iter().enumerate().filter(|(_, family)| among(family));
            let Some((at, _)) = oldest.min_by_key(|(_, family)| family.rotated) else { return };
            self.families.remove(at);
        }
    }

    /// Uses a token of `client`. `None`: it is no good.
    pub fn rotate(&mut self, token: &str, client: &str, now: u64) -> Result<Option<Refreshed>, RefreshError> {
        let Some((id, secret)) = token.split_once('.') else { return Ok(None) };
        let Some(at) = self.families.iter().position(|family| family.id == id) else { return Ok(None) };
        let refreshed = self.families[at].rotate(secret, client, now)?;
        if refreshed.is_none() {
            self.families.remove(at);
        }
        Ok(refreshed)
    }

    /// Ends a family, by its id or one of its tokens.
    pub fn end(&mut self, family: &str) {
        let id = family.split('.').next().unwrap_or_default();
        self.families.retain(|known| known.id != id);
    }
}

fn hashed(secret: &str) -> String {
    BASE64.encode(hash(&[], secret))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wish() -> Wish {
        Wish { client: "c".to_owned(), audience: "a".to_owned(), openid: true, offline: true }
    }

    fn consent(user: &str) -> Consent {
        Consent { user: user.to_owned(), generation: 0, at: 0 }
    }

    fn rotate(all: &mut Refresh, token: &str, now: u64) -> Option<Option<String>> {
        all.rotate(token, "c", now).unwrap().map(|refreshed| refreshed.next)
    }

    #[test]
    fn a_token_is_replaced_when_it_is_used_and_the_one_before_ends_the_family() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("refresh.json");
        let first = Refresh::edit(&path, |all| all.begin("f", wish(), &consent("u"), 0)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains(first.split('.').nth(1).unwrap()), "kept as a hash");
        let mut all: Refresh = files::parse_json(&path, text.as_bytes()).unwrap();
        let second = rotate(&mut all, &first, 1).flatten().unwrap();
        assert_eq!(rotate(&mut all, &first, OVERLAP_SECONDS), Some(None), "an answer that was lost");
        let third = rotate(&mut all, &second, OVERLAP_SECONDS).flatten().unwrap();
        assert_eq!(rotate(&mut all, &first, OVERLAP_SECONDS), None, "used twice before: stolen");
        assert_eq!(rotate(&mut all, &third, OVERLAP_SECONDS), None, "the family ended");
    }

    #[test]
    fn a_token_is_its_clients_and_ends_by_rest_and_by_age() {
        let mut all = Refresh::default();
        let mut token = all.begin("f", wish(), &consent("u"), 0).unwrap();
        assert!(all.rotate(&token, "other", 0).unwrap().is_none());
        assert_eq!(rotate(&mut all, &token, 0), None, "whoever showed it has it, and is not the client");
        token = all.begin("g", wish(), &consent("u"), 0).unwrap();
        assert_eq!(rotate(&mut all, &token, IDLE_SECONDS), None);
        token = all.begin("h", wish(), &consent("u"), 0).unwrap();
        let mut now = 0;
        while now + IDLE_SECONDS - 1 < LIFE_SECONDS {
            now += IDLE_SECONDS - 1;
            token = rotate(&mut all, &token, now).flatten().unwrap();
        }
        assert_eq!(rotate(&mut all, &token, LIFE_SECONDS), None);
        for broken in ["", ".", "h", "h.", "x.y"] {
            assert_eq!(rotate(&mut all, broken, 0), None);
        }
    }

    #[test]
    fn families_are_bounded_and_the_oldest_of_a_user_go_first() {
        let mut all = Refresh::default();
        let other = all.begin("o", wish(), &consent("other"), 0).unwrap();
        let tokens: Vec<String> = (0..=FAMILIES_PER_USER as u64)
            .map(|n| all.begin(&n.to_string(), wish(), &consent("u"), n).unwrap())
            .collect();
        assert_eq!(all.families.len(), FAMILIES_PER_USER + 1);
        assert_eq!(rotate(&mut all, &tokens[0], 100), None);
        assert!(rotate(&mut all, &tokens[1], 100).is_some() && rotate(&mut all, &other, 100).is_some());
        all.end("1");
        all.end(&tokens[2]);
        assert!(rotate(&mut all, &tokens[2], 101).is_none());
    }
}
