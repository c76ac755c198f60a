//! Why an agent cannot be built, in whichever part of it.

use std::net::SocketAddr;

/// Why an agent cannot be built. The chain of causes names the file or setting.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The way to the gateway.
    #[error("cannot set up the route to the gateway")]
    Gateway(#[from] crate::tunnel::setup::SetupError),
    /// The certificate is not an agent's.
    #[error("the certificate is not one of an agent")]
    Certificate(#[source] certs::PeerError),
    /// The certificate does not name a cluster.
    #[error("the agent's certificate does not name a cluster")]
    ClusterId(#[source] types::ids::InvalidClusterId),
    /// Where the cluster's certificate is kept.
    #[error("cannot open the store of the cluster's certificate")]
    Store(#[from] crate::identity::store::StoreError),
    /// TLS for reading the issuers' keys.
    #[error("cannot set up TLS for the token issuers")]
    Issuers(#[from] certs::tls::TlsError),
    /// No apiserver is configured that could say which service account asks for a token.
    #[error(
        "identity_tokens: there is no way to the apiserver, which has to say who asks; set [cluster] kubeconfig, or leave it out"
    )]
    NoReviews,
    /// A role lacks something that it needs.
    #[error("{what}")]
    Role {
        /// What the role is for, as the settings name it.
        what: &'static str,
        /// Why the role cannot have it.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A listener cannot be bound.
    #[error("cannot listen on {address} for {what}")]
    Listener {
        /// Which of the listeners.
        what: &'static str,
        /// The address that was to be bound.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}
