//! Protected settings at rest: AES-256-GCM under a key that is not in the database, so that a copy of the database, a
//! backup of it or a reader of its tables learns none of them (docs/identity.md).
//!
//! The key file has one key per line, 32 random bytes in base64, the newest first. To rotate: write a new line at the
//! top ([`Protector::rotate`] does), start again, seal again what [`Protector::is_current`] says is not; then the old
//! line may go. Without its key nothing can be opened: the file belongs in a backup of its own.
//!
//! ```text
//! sealed = version (1) | key id (8) | nonce (12) | ciphertext | tag (16)
//! ```
//! Associated data are the version, the key id and the key of the resource: a value that is moved to another row, or
//! whose head was changed, does not open.

use std::{
    fmt, fs, io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey},
    digest, hmac,
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use daemon::atomic::{self, AtomicError};
use types::random;

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Keys of a file at most.
pub const KEYS: usize = 16;
/// Bytes of a key file at most, with its comments.
const FILE_BYTES: u64 = 64 * 1024;
/// The layout above. Another one gets another number.
const VERSION: u8 = 1;
/// Bytes of a key id.
const ID_BYTES: usize = 8;
/// What comes before the nonce.
const HEAD_BYTES: usize = 1 + ID_BYTES;

/// Why a key file is of no use, or a sealed value does not open. Never holds anything of a key or a value.
#[derive(Debug, thiserror::Error)]
pub enum ProtectError {
    /// The key file cannot be read or written.
    #[error("the key file {path}: {source}")]
    File {
        /// Path of the key file.
        path: PathBuf,
        /// What the operating system reported.
        source: io::Error,
    },
    /// Others may read or change it.
    #[error("the key file {path} has mode {mode:o}: others may use it; chmod 600 it, or make a new key if they have")]
    Mode {
        /// Path of the key file.
        path: PathBuf,
        /// Its permission bits, as `chmod` takes them.
        mode: u32,
    },
    /// It is not there, and what it protects is.
    #[error(
        "the key file {path} is missing, and the store was used with one: put the file back, from its backup or from another \
         gateway of this store; if it is lost for good, `towline-gateway replace-lost store-key` makes another and takes \
         away what the old one protected"
    )]
    Lost {
        /// Path of the key file.
        path: PathBuf,
    },
    /// It is another store's.
    #[error(
        "the key file {path} is not the one of this store: the key {wanted} is not in it, which {used}; put that file back, \
         from its backup or from another gateway of this store; if it is lost for good, `towline-gateway replace-lost \
         store-key` makes another and takes away what the old one protected"
    )]
    Exchanged {
        /// Path of the key file.
        path: PathBuf,
        /// The id of a key.
        wanted: String,
        /// What is known of that key.
        used: &'static str,
    },
    /// It is no key file.
    #[error("the key file {path}, line {line}: {reason}")]
    Content {
        /// Path of the key file.
        path: PathBuf,
        /// From 1; 0 for the whole file.
        line: usize,
        /// What is wrong with the line, and never the line itself.
        reason: &'static str,
    },
    /// It was sealed under a key that is not there.
    #[error("sealed under the key {0}, which is not in the key file; put the line of that key back")]
    UnknownKey(String),
    /// It was changed, cut, or belongs to another resource.
    #[error("a protected value does not open: it was changed, or it belongs to another resource")]
    Damaged,
    /// There is no randomness, or the cipher does not work.
    #[error("the cryptographic library failed")]
    Library,
}

impl From<AtomicError> for ProtectError {
    fn from(AtomicError { path, source, .. }: AtomicError) -> Self {
        Self::File { path, source }
    }
}

/// Seals and opens protected settings.
pub struct Protector {
    /// The newest first; never empty.
    keys: Vec<Key>,
}

struct Key {
    id: [u8; ID_BYTES],
    key: RandomizedNonceKey,
    /// Derived from the same bytes, for [`Protector::keyed_hash`].
    hashes: hmac::Key,
}

impl Protector {
    /// Reads a key file; makes one with a new key where there is none.
    ///
    /// # Errors
    /// When the file cannot be read or made, others than its owner (and readers of its group) may use it, or a line is
    /// no key.
    pub fn open_or_create(path: &Path) -> Result<Self, ProtectError> {
        match Self::read(path) {
            Err(ProtectError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                // Whoever makes it first has made it for all.
                match atomic::create(path, new_line()?.as_bytes(), atomic::PRIVATE) {
                    Err(error) if error.source.kind() != io::ErrorKind::AlreadyExists => Err(error.into()),
                    _ => Self::read(path),
                }
            }
            read => read,
        }
    }

    /// Reads a key file that must be there, because something was sealed with it.
    ///
    /// # Errors
    /// As [`Self::open_or_create`]; [`ProtectError::Lost`] where there is none.
    pub fn open(path: &Path) -> Result<Self, ProtectError> {
        match Self::read(path) {
            Err(ProtectError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                Err(ProtectError::Lost { path: path.to_owned() })
            }
            read => read,
        }
    }

    /// The id of the key that seals, in hex. Says nothing of the key.
    pub fn newest(&self) -> String {
        self.keys.first().map(|key| types::ids::hex(&key.id)).unwrap_or_default()
    }

    /// The HMAC-SHA256 of a value, by a key derived from the [`Self::newest`] one. Gateways with the same key compare
    /// values by it. Without the key nobody can find a value by trying. Equal values under different names have
    /// different hashes.
    pub fn keyed_hash(&self, name: &str, value: &[u8]) -> Vec<u8> {
        let text = [name.as_bytes(), &[0], value].concat();
        let hash = |newest: &Key| hmac::sign(&newest.hashes, &text).as_ref().to_vec();
        self.keys.first().map(hash).unwrap_or_default()
    }

    /// Whether the key with this id, in hex, is in the file.
    pub fn has(&self, id: &str) -> bool {
        self.keys.iter().any(|key| types::ids::hex(&key.id) == id)
    }

    /// Puts a new key before those of a key file and reads it again. What is sealed from then on needs the new one.
    ///
    /// # Errors
    /// As [`Self::open_or_create`]; the file is then as it was.
    pub fn rotate(path: &Path) -> Result<Self, ProtectError> {
        let old = content(path)?;
        if parse(path, &old)?.len() >= KEYS {
            return Err(fault(path, 0, "it has as many keys as it may; take out old ones"));
        }
        atomic::replace(path, format!("{}{old}", new_line()?).as_bytes(), atomic::PRIVATE)?;
        Self::read(path)
    }

    fn read(path: &Path) -> Result<Self, ProtectError> {
        let keys = parse(path, &content(path)?)?;
        Ok(Self { keys })
    }

    /// Seals a value for the resource of this key.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn seal(&self, key: &str, value: &[u8]) -> Result<Vec<u8>, ProtectError> {
        let newest = self.keys.first().ok_or(ProtectError::Library)?;
        let mut head = [VERSION; HEAD_BYTES];
        head[1..].copy_from_slice(&newest.id);
        let mut text = value.to_vec();
        let nonce = newest
            .key
            .seal_in_place_append_tag(Aad::from(associated(&head, key)), &mut text)
            .map_err(|_| ProtectError::Library)?;
        Ok([head.as_slice(), nonce.as_ref(), &text].concat())
    }

    /// Opens what was sealed for the resource of this key.
    ///
    /// # Errors
    /// When it was not sealed for that resource, was changed since, or the key that it needs is not there.
    pub fn unseal(&self, key: &str, sealed: &[u8]) -> Result<Vec<u8>, ProtectError> {
        let (head, rest) = sealed.split_at_checked(HEAD_BYTES).ok_or(ProtectError::Damaged)?;
        let (nonce, text) = rest.split_at_checked(NONCE_LEN).ok_or(ProtectError::Damaged)?;
        if head[0] != VERSION {
            return Err(ProtectError::Damaged);
        }
        let with = self.keys.iter().find(|key| key.id == head[1..]);
        let with = with.ok_or_else(|| ProtectError::UnknownKey(types::ids::hex(&head[1..])))?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| ProtectError::Damaged)?;
        let mut text = text.to_vec();
        let opened = with
            .key
            .open_in_place(nonce, Aad::from(associated(head, key)), &mut text)
            .map_err(|_| ProtectError::Damaged)?
            .len();
        text.truncate(opened);
        Ok(text)
    }

    /// Whether it is sealed under the newest key. What is not should be opened and sealed again.
    pub fn is_current(&self, sealed: &[u8]) -> bool {
        self.keys.first().is_some_and(|newest| sealed.get(1..HEAD_BYTES) == Some(newest.id.as_slice()))
    }
}

impl fmt::Debug for Protector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.keys.iter().map(|key| types::ids::hex(&key.id))).finish()
    }
}

impl Key {
    fn new(bytes: &[u8]) -> Option<Self> {
        let mut named = b"towline protected settings: key id".to_vec();
        named.extend_from_slice(bytes);
        let id = digest::digest(&digest::SHA256, &named).as_ref().first_chunk().copied()?;
        // A key of its own: what one use of the bytes shows says nothing about the other.
        let derive = hmac::Key::new(hmac::HMAC_SHA256, bytes);
        let hashes = hmac::sign(&derive, b"towline: key of hashes by which values are compared");
        let hashes = hmac::Key::new(hmac::HMAC_SHA256, hashes.as_ref());
        Some(Self { id, key: RandomizedNonceKey::new(&AES_256_GCM, bytes).ok()?, hashes })
    }
}

fn associated(head: &[u8], key: &str) -> Vec<u8> {
    [head, key.as_bytes()].concat()
}

fn new_line() -> Result<String, ProtectError> {
    let bytes = random::bytes::<KEY_BYTES>().map_err(|_| ProtectError::Library)?;
    Ok(format!("{}\n", BASE64.encode(bytes)))
}

fn parse(path: &Path, content: &str) -> Result<Vec<Key>, ProtectError> {
    let mut keys: Vec<Key> = Vec::new();
    for (line, number) in content.lines().zip(1..) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let bytes = BASE64.decode(line).ok().filter(|bytes| bytes.len() == KEY_BYTES);
        let key = bytes.and_then(|bytes| Key::new(&bytes));
        let key = key.ok_or_else(|| fault(path, number, "expected 32 bytes in base64, as openssl rand -base64 32"))?;
        if keys.iter().any(|other| other.id == key.id) {
            return Err(fault(path, number, "the key is there twice"));
        }
        if keys.len() >= KEYS {
            return Err(fault(path, number, "more keys than it may have (16)"));
        }
        keys.push(key);
    }
    if keys.is_empty() { Err(fault(path, 0, "it has no key")) } else { Ok(keys) }
}

fn content(path: &Path) -> Result<String, ProtectError> {
    use io::Read as _;
    let opened = fs::File::open(path).map_err(file(path))?;
    let mode = opened.metadata().map_err(file(path))?.permissions().mode() & 0o777;
    // A mounted secret may be readable by the group of the process.
    if mode & 0o037 != 0 {
        return Err(ProtectError::Mode { path: path.to_owned(), mode });
    }
    let mut content = String::new();
    opened.take(FILE_BYTES).read_to_string(&mut content).map_err(file(path))?;
    Ok(content)
}

fn file(path: &Path) -> impl Fn(io::Error) -> ProtectError {
    let path = path.to_owned();
    move |source| ProtectError::File { path: path.clone(), source }
}

fn fault(path: &Path, line: usize, reason: &'static str) -> ProtectError {
    ProtectError::Content { path: path.to_owned(), line, reason }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECRET: &[u8] = b"{\"token\":\"hunter2\"}";

    fn made() -> (tempfile::TempDir, PathBuf, Protector) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("protect.key");
        let protector = Protector::open_or_create(&path).unwrap();
        (dir, path, protector)
    }

    #[test]
    fn a_key_is_made_once_and_only_its_owner_reads_it() {
        let (dir, path, protector) = made();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let sealed = protector.seal("/a", SECRET).unwrap();
        let again = Protector::open_or_create(&path).unwrap();
        assert_eq!(again.unseal("/a", &sealed).unwrap(), SECRET);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn many_who_start_at_once_have_one_key() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("protect.key");
        let all = std::sync::Barrier::new(4);
        let sealed: Vec<Vec<u8>> = std::thread::scope(|scope| {
            let one = || {
                all.wait();
                Protector::open_or_create(&path).unwrap().seal("/a", SECRET).unwrap()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(one)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let protector = Protector::open_or_create(&path).unwrap();
        for sealed in sealed {
            assert_eq!(protector.unseal("/a", &sealed).unwrap(), SECRET);
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn nothing_of_it_can_be_seen_and_no_two_are_alike() {
        let (_dir, path, protector) = made();
        let (one, two) = (protector.seal("/a", SECRET).unwrap(), protector.seal("/a", SECRET).unwrap());
        assert_ne!(one, two);
        assert!(!one.windows(7).any(|window| window == b"hunter2"));
        let key = fs::read_to_string(path).unwrap();
        assert!(!format!("{protector:?}").contains(key.trim()));
    }

    #[test]
    fn a_value_does_not_open_in_another_row_or_changed_or_cut() {
        let (_dir, _, protector) = made();
        let sealed = protector.seal("/a", SECRET).unwrap();
        assert!(matches!(protector.unseal("/b", &sealed), Err(ProtectError::Damaged)));
        for at in 0..sealed.len() {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert!(protector.unseal("/a", &changed).is_err(), "byte {at}");
            assert!(protector.unseal("/a", &sealed[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn keyed_hash_depends_on_key_name_and_value() {
        let (_dir, path, protector) = made();
        let hash = protector.keyed_hash("a", b"value");
        assert_eq!(Protector::open(&path).unwrap().keyed_hash("a", b"value"), hash);
        let (_other, _, other) = made();
        let others = [
            other.keyed_hash("a", b"value"),
            protector.keyed_hash("b", b"value"),
            protector.keyed_hash("a", b"values"),
        ];
        assert!(!others.contains(&hash) && hash.len() == 32);
        assert_ne!(Protector::rotate(&path).unwrap().keyed_hash("a", b"value"), hash, "the newest key hashes");
    }

    #[test]
    fn after_a_rotation_old_values_open_and_new_ones_have_the_new_key() {
        let (_dir, path, protector) = made();
        let old = protector.seal("/a", SECRET).unwrap();
        let rotated = Protector::rotate(&path).unwrap();
        assert_eq!(rotated.unseal("/a", &old).unwrap(), SECRET);
        let new = rotated.seal("/a", SECRET).unwrap();
        assert_eq!((rotated.is_current(&old), rotated.is_current(&new)), (false, true));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // The old program has not the new key and says which; neither does one whose old line was taken out.
        assert!(matches!(protector.unseal("/a", &new), Err(ProtectError::UnknownKey(_))));
        let content = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("# the old one is gone\n\n{}\n", content.lines().next().unwrap())).unwrap();
        let without = Protector::open_or_create(&path).unwrap();
        assert!(without.unseal("/a", &old).unwrap_err().to_string().contains("put the line of that key back"));
        assert_eq!(without.unseal("/a", &new).unwrap(), SECRET);
    }

    #[test]
    fn a_file_that_is_none_is_refused_and_left_alone() {
        let (_dir, path, _) = made();
        let good = fs::read_to_string(&path).unwrap();
        let many: String = (0..=KEYS).map(|_| new_line().unwrap()).collect();
        for bad in ["", "# no key\n", "c2hvcnQ=\n", "not base64!\n", &format!("{good}{good}"), &many] {
            fs::write(&path, bad).unwrap();
            let error = Protector::open_or_create(&path).unwrap_err().to_string();
            assert!(error.contains("protect.key"), "{error}");
            assert!(!error.contains(good.trim()), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), bad);
        }
        fs::write(&path, good).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(Protector::open_or_create(&path).unwrap_err().to_string().contains("644"));
    }

    proptest! {
        #[test]
        fn any_value_opens_as_it_was(value in prop::collection::vec(any::<u8>(), 0..200), key in "[a-z/]{0,40}") {
            let keys = parse(Path::new("k"), &new_line().unwrap()).unwrap();
            let protector = Protector { keys };
            let sealed = protector.seal(&key, &value).unwrap();
            prop_assert_eq!(protector.unseal(&key, &sealed).unwrap(), value);
        }

        #[test]
        fn what_was_never_sealed_does_not_open(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let keys = parse(Path::new("k"), &new_line().unwrap()).unwrap();
            let protector = Protector { keys };
            prop_assert!(protector.unseal("/a", &bytes).is_err());
        }
    }
}
