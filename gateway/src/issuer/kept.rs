//! Why what a store keeps of the issuer cannot be used.

use crate::{
    files::FileError,
    guid::NoRandom,
    store::{StoreError, protect::ProtectError},
};

/// Why what a store keeps of an issuer cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeptError {
    /// The store cannot be asked or written.
    #[error("cannot read or write the store of the built-in issuer's accounts and keys: {0}")]
    Store(#[from] StoreError),
    /// The key of the store.
    #[error("cannot use the key of the store ([api] store_key_file): {0}")]
    Key(#[from] ProtectError),
    /// It is sealed with another key, or was changed.
    #[error("what the store keeps of the built-in issuer ({name}) cannot be opened: {source}")]
    Sealed {
        /// Name of the document.
        name: &'static str,
        /// What the library reported.
        source: ProtectError,
    },
    /// The gateway has not run on this store yet.
    #[error("the store has no accounts of the built-in issuer yet: start the gateway once")]
    NotStarted,
    /// One of several documents is gone.
    #[error(
        "the store has no {0} any more, and other documents of the built-in issuer are there: restore the store from its \
         backup; if the signing key is lost for good, `towline-gateway replace-lost issuer-key` makes another, after \
         which every cluster must be connected again"
    )]
    Lost(&'static str),
    /// It cannot be read as what it should be.
    #[error(transparent)]
    Content(#[from] FileError),
    /// The operating system gave no random bytes.
    #[error(transparent)]
    Random(#[from] NoRandom),
}
