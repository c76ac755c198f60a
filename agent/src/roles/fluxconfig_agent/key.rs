//! Keys of SSH. One that is made here never leaves the cluster: its public half is what a repository's owner gets.

use aws_lc_rs::{
    encoding::AsBigEndian as _,
    signature::{Ed25519KeyPair, KeyPair as _},
};
use ssh_key::{
    LineEnding, PrivateKey,
    private::{Ed25519Keypair, Ed25519PrivateKey, KeypairData},
    public::Ed25519PublicKey,
};

/// An SSH key pair. Its `Debug` output shows the public half only.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyPair {
    /// As OpenSSH keeps it.
    pub private: String,
    /// A line of `authorized_keys`.
    pub public: String,
}

impl std::fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyPair").field("public", &self.public).finish_non_exhaustive()
    }
}

impl KeyPair {
    /// A new one (Ed25519), with a comment that says whose it is.
    ///
    /// # Errors
    /// When there is no randomness.
    pub fn generate(comment: &str) -> Result<Self, String> {
        let made = Ed25519KeyPair::generate().map_err(|err| format!("no key can be made: {err}"))?;
        let seed =
            made.seed().and_then(|seed| seed.as_be_bytes()).map_err(|err| format!("no key can be made: {err}"))?;
        let wrong = |err: &dyn std::fmt::Display| format!("no key can be made: {err}");
        let seed: [u8; Ed25519PrivateKey::BYTE_SIZE] = seed.as_ref().try_into().map_err(|err| wrong(&err))?;
        let public = made.public_key().as_ref().try_into().map_err(|err| wrong(&err))?;
        let pair = Ed25519Keypair { public: Ed25519PublicKey(public), private: Ed25519PrivateKey::from_bytes(&seed) };
        let key = PrivateKey::new(KeypairData::Ed25519(pair), comment).map_err(|err| wrong(&err))?;
        Ok(Self {
            private: key.to_openssh(LineEnding::LF).map_err(|err| wrong(&err))?.to_string(),
            public: key.public_key().to_openssh().map_err(|err| wrong(&err))?,
        })
    }

    /// One that was kept.
    pub fn read(private: &[u8]) -> Option<Self> {
        let public = Self::public_of(private)?;
        Some(Self { private: String::from_utf8(private.to_vec()).ok()?, public })
    }

    /// The public half of a private key; none for formats other than OpenSSH's.
    pub fn public_of(private: &[u8]) -> Option<String> {
        let key = PrivateKey::from_openssh(private).ok()?;
        key.public_key().to_openssh().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g3_generated_key_is_read_back_and_hides_its_private_half() {
        let pair = KeyPair::generate("towline/web").unwrap();
        assert!(pair.private.starts_with("-----BEGIN OPENSSH PRIVATE KEY-----\n"), "{:?}", pair.public);
        assert!(pair.public.starts_with("ssh-ed25519 AAAA") && pair.public.ends_with(" towline/web"));
        assert_eq!(KeyPair::read(pair.private.as_bytes()), Some(pair.clone()));
        assert!(!format!("{pair:?}").contains("PRIVATE"));
        assert_ne!(KeyPair::generate("x").unwrap().public, pair.public);
        assert_eq!(KeyPair::public_of(b"-----BEGIN RSA PRIVATE KEY-----\n"), None);
    }
}
