//! The issuer's local users. Passwords are kept as PBKDF2-HMAC-SHA-256 (NIST SP 800-132) and compared in constant time.

use std::{num::NonZeroU32, path::Path};

use aws_lc_rs::pbkdf2::{self, PBKDF2_HMAC_SHA256};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use serde::{Deserialize, Serialize};
use types::random;

use super::{
    Issuer, KEYS_FILE,
    kept::KeptError,
    keys::{Keys, KeysError},
    texts::{NAME_BYTES, PASSWORD_BYTES, is_name, typed},
};
use crate::{
    files::{self, FileError},
    guid,
};

/// Rounds for new passwords; what a password was hashed with is kept beside it.
const ROUNDS: NonZeroU32 = match NonZeroU32::new(600_000) {
    Some(rounds) => rounds,
    None => NonZeroU32::MIN,
};
/// Users that the issuer keeps at most.
pub const USERS_MAX: usize = 10_000;
/// Why users could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// The users' file cannot be read, parsed or written.
    #[error(transparent)]
    File(#[from] FileError),
    /// The store that has them.
    #[error(transparent)]
    Kept(#[from] KeptError),
    /// The keys that are made before the first user.
    #[error(transparent)]
    Keys(#[from] KeysError),
    /// The name cannot be one.
    #[error(
        "{0:?} is not a name of a user or group: 1 to {NAME_BYTES} characters, none of them a control character or ':'; a user's is not a GUID"
    )]
    Name(String),
    /// There is no user of this name.
    #[error("the issuer has no user {0:?}")]
    Unknown(String),
    /// There are [`USERS_MAX`] users already.
    #[error("the issuer keeps {USERS_MAX} users at most")]
    TooMany,
    /// The password cannot be one.
    #[error("a password has 1 to {PASSWORD_BYTES} bytes")]
    Password,
    /// The operating system gave no random bytes.
    #[error(transparent)]
    Random(#[from] guid::NoRandom),
}

/// A hashed password.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Hashed {
    rounds: NonZeroU32,
    salt: String,
    hash: String,
}

/// A user as kept.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// What they sign in with; `preferred_username`.
    pub name: String,
    /// `sub` and `oid`: a GUID, which stays when the user is renamed and is never given to another. It has one
    /// spelling, with hyphens, wherever it is shown or compared: roles are assigned to it.
    #[serde(deserialize_with = "spelled_as_guid")]
    pub id: String,
    /// Names of the user's groups, which tokens have as `groups`.
    pub groups: Vec<String>,
    /// Gets no tokens.
    #[serde(default)]
    pub disabled: bool,
    /// Grows with each new password and each time that the user is disabled: sign-ins from before end.
    #[serde(default)]
    generation: u64,
    password: Hashed,
}

/// All users of an issuer.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Users {
    users: Vec<User>,
}

impl Users {
    /// Changes the users of `path` under a lock; makes the file where there is none. A running issuer sees the change
    /// with its next request.
    ///
    /// Where nothing of an issuer is there yet, its keys are made before its users: a file of users without keys then
    /// always means that the keys were lost.
    pub fn edit<T>(path: &Path, change: impl FnOnce(&mut Self) -> Result<T, UsersError>) -> Result<T, UsersError> {
        if let Some(state) = path.parent().filter(|state| Issuer::began(state).is_none()) {
            Keys::load_or_create(&state.join(KEYS_FILE))?;
        }
        files::edit(path, Self::parse, change)
    }

    /// Reads a file without changing it; one that is not there has none.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(path: &Path) -> Result<Self, FileError> {
        if path.exists() { Self::parse(path, &files::read(path)?) } else { Ok(Self::default()) }
    }

    pub(super) fn parse(path: &Path, bytes: &[u8]) -> Result<Self, FileError> {
        files::parse_json(path, bytes)
    }

    /// The user of that name.
    pub fn find(&self, name: &str) -> Option<&User> {
        self.users.iter().find(|user| user.name == name)
    }

    /// All of them, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = &User> {
        self.users.iter()
    }

    /// Adds a user, or gives an existing one new groups and a new password; their id stays and they are enabled.
    pub fn put(&mut self, name: &str, groups: &[String], password: &str) -> Result<&User, UsersError> {
        for name in std::iter::once(name).chain(groups.iter().map(String::as_str)) {
            if !is_name(name) {
                return Err(UsersError::Name(name.to_owned()));
            }
        }
        if guid::is_guid(name) {
            return Err(UsersError::Name(name.to_owned()));
        }
        let password = Hashed::of(password)?;
        let at = match self.users.iter().position(|user| user.name == name) {
            Some(at) => {
                let user = &mut self.users[at];
                (user.groups, user.password, user.disabled) = (groups.to_vec(), password, false);
                user.generation += 1;
                at
            }
            None if self.users.len() >= USERS_MAX => return Err(UsersError::TooMany),
            None => {
                let id = guid::random()?;
                let (name, groups) = (name.to_owned(), groups.to_vec());
                self.users.push(User { name, id, groups, disabled: false, generation: 0, password });
                self.users.len() - 1
            }
        };
        Ok(&self.users[at])
    }

    /// Removes a user, and returns them as they were.
    pub fn remove(&mut self, name: &str) -> Result<User, UsersError> {
        let at = self.users.iter().position(|user| user.name == name);
        at.map(|at| self.users.remove(at)).ok_or_else(|| UsersError::Unknown(name.to_owned()))
    }

    /// Disables or enables a user.
    pub fn set_disabled(&mut self, name: &str, disabled: bool) -> Result<(), UsersError> {
        let user = self.users.iter_mut().find(|user| user.name == name);
        let user = user.ok_or_else(|| UsersError::Unknown(name.to_owned()))?;
        user.generation += u64::from(disabled && !user.disabled);
        user.disabled = disabled;
        Ok(())
    }
}

impl User {
    /// Of the user's sign-ins: what was allowed in an earlier one is worth nothing any more.
    pub(super) fn generation(&self) -> u64 {
        self.generation
    }

    /// What tokens call the password that the user signed in with.
    pub(super) fn credential(&self) -> String {
        self.generation.to_string()
    }
}

/// Files of before had the id without hyphens.
pub(super) fn spelled_as_guid<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(guid::hyphenated(&String::deserialize(from)?))
}

impl Hashed {
    fn of(password: &str) -> Result<Self, UsersError> {
        if password.is_empty() || password.len() > PASSWORD_BYTES {
            return Err(UsersError::Password);
        }
        let salt = random::bytes::<16>()?;
        let mut hash = [0; 32];
        pbkdf2::derive(PBKDF2_HMAC_SHA256, ROUNDS, &salt, password.as_bytes(), &mut hash);
        Ok(Self { rounds: ROUNDS, salt: BASE64.encode(salt), hash: BASE64.encode(hash) })
    }

    fn fits(&self, password: &str) -> bool {
        let (Ok(salt), Ok(hash)) = (BASE64.decode(&self.salt), BASE64.decode(&self.hash)) else { return false };
        pbkdf2::verify(PBKDF2_HMAC_SHA256, self.rounds, &salt, password.as_bytes(), &hash).is_ok()
    }
}

/// Whether `password` is that of `user`, who may be none: an unknown and a disabled user take as long as a wrong
/// password, so that the time tells nobody who exists. Takes a good part of a second of one core.
pub fn check(user: Option<&User>, password: &str) -> bool {
    let Some(user) = user else {
        let nobody = Hashed { rounds: ROUNDS, salt: BASE64.encode([0; 16]), hash: BASE64.encode([0; 32]) };
        let _ = nobody.fits(password);
        return false;
    };
    user.password.fits(password) && !user.disabled
}

/// A new password of 160 random bits.
pub fn generate_password() -> Result<String, UsersError> {
    Ok(typed::<20>()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_hashed_and_checked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("users.json");
        let password = generate_password().unwrap();
        let id = Users::edit(&path, |users| Ok(users.put("ann", &["ops".to_owned()], &password)?.id.clone())).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(!text.contains(&password));
        let users = Users::parse(&path, text.as_bytes()).unwrap();
        assert!(check(users.find("ann"), &password));
        assert!(!check(users.find("ann"), "wrong"));
        assert!(!check(users.find("bob"), &password));
        let again = Users::edit(&path, |users| {
            users.set_disabled("ann", true)?;
            assert!(!check(users.find("ann"), &password));
            Ok(users.put("ann", &[], "another")?.id.clone())
        });
        assert_eq!(again.unwrap(), id, "the id stays");
    }

    #[test]
    fn id_of_a_file_from_before_is_spelled_with_hyphens_too() {
        let mut users = Users::default();
        let id = users.put("ann", &[], "a password").unwrap().id.clone();
        assert!(guid::is_guid(&id), "{id}");
        let text = serde_json::to_string(&users).unwrap().replace(&id, &id.replace('-', ""));
        assert!(!text.contains(&id));
        assert_eq!(Users::parse(Path::new("users.json"), text.as_bytes()).unwrap().find("ann").unwrap().id, id);
    }

    #[test]
    fn names_that_could_be_taken_for_others_are_refused() {
        for bad in ["", "a\nb", "system:admin", &"x".repeat(300), "0A000000-0000-4000-8000-00000000000b"] {
            assert!(matches!(Users::default().put(bad, &[], "p"), Err(UsersError::Name(_))), "{bad:?}");
        }
        assert!(matches!(Users::default().put("a", &["system:masters".to_owned()], "p"), Err(UsersError::Name(_))));
        assert!(matches!(Users::default().put("a", &[], ""), Err(UsersError::Password)));
    }
}
