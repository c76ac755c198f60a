//! The issuer's service principals: what automation signs in as (docs/features.md S1-S3, A3).
//!
//! A secret is 256 random bits, made here and shown once. That is why one round of SHA-256 with a salt of its own is
//! enough to keep it: there is nothing to guess, and a hundred sign-ins at once cost next to nothing.

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use aws_lc_rs::{
    constant_time::verify_slices_are_equal,
    digest::{Context, SHA256},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use types::{instants::unix_seconds, random};

use super::{
    kept::KeptError,
    texts::{NAME_BYTES, is_name, typed},
};
use crate::{
    files::{self, FileError},
    guid,
};

/// Service principals that the issuer keeps at most.
pub const PRINCIPALS_MAX: usize = 10_000;
/// Secrets of one at most.
pub const SECRETS_MAX: usize = 4;
/// How long a secret is good for unless somebody says otherwise.
pub const SECRET_LIFE: Duration = Duration::from_secs(365 * 86_400);
/// The longest life of a secret.
pub const SECRET_LIFE_MAX: Duration = Duration::from_secs(3650 * 86_400);
/// Bytes of a secret before they become text.
const SECRET_BYTES: usize = 32;

/// Why service principals could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum PrincipalsError {
    /// The file of service principals cannot be read, parsed or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The store that has them.
    #[error(transparent)]
    Kept(#[from] KeptError),
    /// The name cannot be one.
    #[error(
        "{0:?} is not a name of a service principal: 1 to {NAME_BYTES} characters, no control character, no ':', no GUID"
    )]
    Name(String),
    /// The name is in use.
    #[error("there is a service principal {0:?} already")]
    Taken(String),
    /// There is no service principal of this name or id.
    #[error("the issuer has no service principal {0:?}")]
    Unknown(String),
    /// The service principal has no secret of this id.
    #[error("the service principal has no secret with the id {0:?}")]
    UnknownSecret(String),
    /// There are as many service principals as the issuer keeps.
    #[error("the issuer keeps {PRINCIPALS_MAX} service principals at most")]
    TooMany,
    /// Too many secrets.
    #[error("a service principal has {SECRETS_MAX} secrets at most; remove one first")]
    TooManySecrets,
    /// No time in which it would be good.
    #[error("a secret is good for 1 second to 3650 days")]
    Life,
    /// The operating system gave no random bytes.
    #[error(transparent)]
    Random(#[from] guid::NoRandom),
}

/// Why a service principal may not sign in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// Unknown, disabled, or another secret than its: all alike.
    Wrong,
    /// The secret is right and its time is over; told to who has it.
    Expired,
}

/// A secret as kept; the secret itself is not.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Secret {
    /// Its id, a GUID; no secret.
    pub id: String,
    /// When it was made, in seconds since 1970.
    pub created: u64,
    /// Until when it is good, in seconds since 1970.
    pub expires: u64,
    salt: String,
    hash: String,
}

/// A service principal as kept.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Principal {
    /// `oid` and `sub`, and its user name in a cluster (docs/features.md A3): a GUID, never given to another.
    pub object_id: String,
    /// What it signs in with; `appid`: a GUID.
    pub client_id: String,
    /// For people. No other principal has it.
    pub name: String,
    /// Gets no tokens.
    #[serde(default)]
    pub disabled: bool,
    /// Its secrets, oldest first.
    pub secrets: Vec<Secret>,
}

/// A secret that was just made: the one time that it is seen.
pub struct NewSecret {
    /// Id by which the secret is listed and removed. It is not confidential.
    pub id: String,
    /// The secret in clear text. The issuer keeps a hash only.
    pub secret: SecretString,
    /// Until when it is good, in seconds since 1970.
    pub expires: u64,
}

/// All service principals of an issuer.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Principals {
    principals: Vec<Principal>,
}

impl Principals {
    /// Changes the principals of `path` under a lock; makes the file where there is none. A running issuer sees the
    /// change with its next request.
    ///
    /// # Errors
    /// What `change` says, or that the file cannot be read or written; then nothing has changed.
    pub fn edit<T>(
        path: &Path,
        change: impl FnOnce(&mut Self) -> Result<T, PrincipalsError>,
    ) -> Result<T, PrincipalsError> {
        files::edit(path, Self::parse, change)
    }

    /// Reads a file without changing it; one that is not there has none.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        if path.exists() { Self::parse(path, &files::read(path)?) } else { Ok(Self::default()) }
    }

    pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Self, FileError> {
        files::parse_json(path, bytes)
    }

    /// The principal with this object id, client id or name. Ids in any case.
    pub fn find(&self, key: &str) -> Option<&Principal> {
        self.principals.iter().find(|principal| principal.is(key))
    }

    /// All of them, in the order in which they were made.
    pub fn iter(&self) -> impl Iterator<Item = &Principal> {
        self.principals.iter()
    }

    /// Makes a principal with one secret, which is good for `life`.
    ///
    /// # Errors
    /// See [`PrincipalsError`].
    pub fn create(
        &mut self,
        name: &str,
        life: Duration,
        now: SystemTime,
    ) -> Result<(Principal, NewSecret), PrincipalsError> {
        self.create_as(name, guid::random()?, life, now)
    }

    /// The same with an object id that was chosen before.
    ///
    /// # Errors
    /// See [`PrincipalsError`].
    pub fn create_as(
        &mut self,
        name: &str,
        object_id: String,
        life: Duration,
        now: SystemTime,
    ) -> Result<(Principal, NewSecret), PrincipalsError> {
        if !is_name(name) || guid::is_guid(name) || !guid::is_guid(&object_id) {
            return Err(PrincipalsError::Name(name.to_owned()));
        }
        if self.find(name).or_else(|| self.find(&object_id)).is_some() {
            return Err(PrincipalsError::Taken(name.to_owned()));
        }
        if self.principals.len() >= PRINCIPALS_MAX {
            return Err(PrincipalsError::TooMany);
        }
        let (secret, new) = Secret::make(life, now)?;
        let principal = Principal {
            object_id,
            client_id: guid::random()?,
            name: name.to_owned(),
            disabled: false,
            secrets: vec![secret],
        };
        self.principals.push(principal.clone());
        Ok((principal, new))
    }

    /// Adds a secret; the others stay good. Secrets whose time is over make room.
    ///
    /// # Errors
    /// See [`PrincipalsError`].
    pub fn add_secret(&mut self, key: &str, life: Duration, now: SystemTime) -> Result<NewSecret, PrincipalsError> {
        let principal = self.find_mut(key)?;
        principal.secrets.retain(|secret| secret.expires > unix_seconds(now));
        if principal.secrets.len() >= SECRETS_MAX {
            return Err(PrincipalsError::TooManySecrets);
        }
        let (secret, new) = Secret::make(life, now)?;
        principal.secrets.push(secret);
        Ok(new)
    }

    /// Takes a secret away, by its id: it is no good from now on.
    ///
    /// # Errors
    /// When there is no such principal or secret.
    pub fn remove_secret(&mut self, key: &str, id: &str) -> Result<(), PrincipalsError> {
        let principal = self.find_mut(key)?;
        let before = principal.secrets.len();
        principal.secrets.retain(|secret| secret.id != id);
        if principal.secrets.len() == before {
            return Err(PrincipalsError::UnknownSecret(id.to_owned()));
        }
        Ok(())
    }

    /// Deletes a principal. Its ids are never given to another.
    ///
    /// # Errors
    /// When there is none.
    pub fn delete(&mut self, key: &str) -> Result<Principal, PrincipalsError> {
        let at = self.principals.iter().position(|principal| principal.is(key));
        Ok(self.principals.remove(at.ok_or_else(|| PrincipalsError::Unknown(key.to_owned()))?))
    }

    /// Disables or enables a principal.
    ///
    /// # Errors
    /// When there is none.
    pub fn set_disabled(&mut self, key: &str, disabled: bool) -> Result<(), PrincipalsError> {
        self.find_mut(key)?.disabled = disabled;
        Ok(())
    }

    /// The principal of this client id, if `secret` is one of its and good now. An unknown client takes as long as a
    /// known one with one secret.
    ///
    /// # Errors
    /// Why it may not sign in.
    pub fn check(&self, client_id: &str, secret: &str, now: SystemTime) -> Result<&Principal, Denied> {
        let Some(principal) = self.principals.iter().find(|p| p.client_id.eq_ignore_ascii_case(client_id)) else {
            let _ = Secret::of("", secret, [0; 16], 0, 0).fits(secret);
            return Err(Denied::Wrong);
        };
        // All are looked at, so that the time does not tell which.
        let fitting: Vec<&Secret> = principal.secrets.iter().filter(|kept| kept.fits(secret)).collect();
        match fitting.iter().map(|kept| kept.expires).max() {
            Some(expires) if !principal.disabled && expires > unix_seconds(now) => Ok(principal),
            Some(_) if !principal.disabled => Err(Denied::Expired),
            _ => Err(Denied::Wrong),
        }
    }

    fn find_mut(&mut self, key: &str) -> Result<&mut Principal, PrincipalsError> {
        let found = self.principals.iter_mut().find(|principal| principal.is(key));
        found.ok_or_else(|| PrincipalsError::Unknown(key.to_owned()))
    }
}

impl Principal {
    /// Whether it may, and has a secret that is good.
    pub fn can_sign_in(&self, now: SystemTime) -> bool {
        !self.disabled && self.secrets.iter().any(|secret| secret.expires > unix_seconds(now))
    }

    /// The id of the secret that this is.
    pub fn secret_of(&self, secret: &str) -> Option<&str> {
        self.secrets.iter().find(|kept| kept.fits(secret)).map(|kept| kept.id.as_str())
    }

    fn is(&self, key: &str) -> bool {
        self.name == key || self.object_id.eq_ignore_ascii_case(key) || self.client_id.eq_ignore_ascii_case(key)
    }
}

impl Secret {
    fn make(life: Duration, now: SystemTime) -> Result<(Self, NewSecret), PrincipalsError> {
        if life < Duration::from_secs(1) || life > SECRET_LIFE_MAX {
            return Err(PrincipalsError::Life);
        }
        let text = typed::<SECRET_BYTES>()?;
        let (created, expires) = (unix_seconds(now), unix_seconds(now + life));
        let kept = Self::of(&guid::random()?, &text, random::bytes()?, created, expires);
        let new = NewSecret { id: kept.id.clone(), secret: text.into(), expires };
        Ok((kept, new))
    }

    fn of(id: &str, secret: &str, salt: [u8; 16], created: u64, expires: u64) -> Self {
        let hash = BASE64.encode(hash(&salt, secret));
        Self { id: id.to_owned(), created, expires, salt: BASE64.encode(salt), hash }
    }

    fn fits(&self, secret: &str) -> bool {
        let (Ok(salt), Ok(kept)) = (BASE64.decode(&self.salt), BASE64.decode(&self.hash)) else { return false };
        verify_slices_are_equal(&hash(&salt, secret), &kept).is_ok()
    }
}

/// SHA-256 of salt and secret. The salt has a fixed length, so that no two pairs read the same.
pub(super) fn hash(salt: &[u8], secret: &str) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    context.update(salt);
    context.update(secret.as_bytes());
    let mut out = [0; 32];
    out.copy_from_slice(context.finish().as_ref());
    out
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);
    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    #[test]
    fn no_secret_looks_like_an_option_of_a_command() {
        // One of 64 did.
        assert!((0..2000).all(|_| !typed::<SECRET_BYTES>().unwrap().starts_with('-')));
    }

    #[test]
    fn a_secret_is_seen_once_and_kept_as_a_hash() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("principals.json");
        let (made, secret) = Principals::edit(&path, |all| all.create("owner", DAY, NOW)).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains(secret.secret.expose_secret()) && text.contains(&made.client_id));
        let read = Principals::parse(&path, text.as_bytes()).unwrap();
        assert_eq!(
            read.check(&made.client_id.to_uppercase(), secret.secret.expose_secret(), NOW).unwrap().name,
            "owner"
        );
        assert_eq!(read.check(&made.object_id, secret.secret.expose_secret(), NOW).err(), Some(Denied::Wrong));
        assert_eq!(read.check(&made.client_id, "x", NOW).err(), Some(Denied::Wrong));
    }

    #[test]
    fn secrets_are_rotated_without_a_gap_and_end_with_their_time() {
        let mut all = Principals::default();
        let (made, first) = all.create("ci", DAY, NOW).unwrap();
        let second = all.add_secret("ci", 2 * DAY, NOW).unwrap();
        let try_it = |all: &Principals, secret: &NewSecret, at| {
            all.check(&made.client_id, secret.secret.expose_secret(), at).map(|_| ())
        };
        assert_eq!((try_it(&all, &first, NOW), try_it(&all, &second, NOW)), (Ok(()), Ok(())));
        let moment = Duration::from_secs(1);
        assert_eq!(try_it(&all, &first, NOW + DAY - moment), Ok(()));
        assert_eq!(try_it(&all, &first, NOW + DAY), Err(Denied::Expired));
        all.remove_secret(&made.object_id, &second.id).unwrap();
        assert_eq!(try_it(&all, &second, NOW), Err(Denied::Wrong));
        assert!(all.remove_secret("ci", &second.id).is_err());
        all.set_disabled("ci", true).unwrap();
        assert_eq!(try_it(&all, &first, NOW + DAY), Err(Denied::Wrong), "who is disabled learns nothing of the secret");
        all.set_disabled("ci", false).unwrap();
        for _ in 1..SECRETS_MAX {
            all.add_secret("ci", 3 * DAY, NOW).unwrap();
        }
        assert!(matches!(all.add_secret("ci", DAY, NOW), Err(PrincipalsError::TooManySecrets)));
        all.add_secret("ci", DAY, NOW + DAY).unwrap();
        all.delete(&made.client_id).unwrap();
        assert_eq!(try_it(&all, &first, NOW), Err(Denied::Wrong));
    }

    #[test]
    fn a_name_is_no_id_and_nobody_elses() {
        let mut all = Principals::default();
        let (made, _) = all.create("ci", DAY, NOW).unwrap();
        assert!(matches!(all.create("ci", DAY, NOW), Err(PrincipalsError::Taken(_))));
        for bad in ["", "a\nb", "a:b", &made.client_id, &made.object_id.to_uppercase()] {
            assert!(matches!(all.create(bad, DAY, NOW), Err(PrincipalsError::Name(_))), "{bad:?}");
        }
        for bad in [Duration::ZERO, SECRET_LIFE_MAX + DAY] {
            assert!(matches!(all.create("x", bad, NOW), Err(PrincipalsError::Life)));
        }
    }
}
