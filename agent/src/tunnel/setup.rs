//! What of the settings cannot be used on the way to the gateway.

use rustls::pki_types::ServerName;

/// Settings that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// Nothing to show yet.
    #[error("this cluster has no certificate yet")]
    NoIdentity,
    /// A certificate or key file.
    #[error(transparent)]
    Load(#[from] certs::LoadError),
    /// The TLS settings cannot be built from the certificates and roots.
    #[error(transparent)]
    Tls(#[from] certs::tls::TlsError),
    /// A name that no certificate can have.
    #[error("{0:?} is not a name of a server")]
    Name(String),
    /// The operating system gave no random bytes.
    #[error("the operating system gives no random numbers")]
    Random,
}

/// The name that the certificate of a server must have.
pub(super) fn server_name(name: &str) -> Result<ServerName<'static>, SetupError> {
    ServerName::try_from(name.to_owned()).map_err(|_| SetupError::Name(name.to_owned()))
}
