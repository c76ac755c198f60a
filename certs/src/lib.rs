#![cfg_attr(test, allow(clippy::unwrap_used, clippy::disallowed_methods))]
//! The PKI: who may issue which certificate, how one is read, and how TLS is set up with it. Used by the gateway, the
//! agent, the command line and the tests; of ours it uses `types` and, to write files, `daemon`. Cluster ids are texts here.
//!
//! | module | what it holds |
//! |---|---|
//! | [`authority`] | a certificate authority: create, keep in a folder, issue server, agent and access certificates |
//! | [`bundle`] | a file of several authorities, while one follows another |
//! | [`credentials`] | a certificate chain with its private key, from PEM, with errors that say what to do |
//! | [`name_certificate`] | the certificates that a listener shows, by the server name that is asked for |
//! | [`replica`] | TLS between replicas of the gateway |
//! | [`request`] | the strict reading of what an agent asks a certificate with |
//! | [`roots`] | the authorities that somebody trusts |
//! | [`peer`] | the strict reading of a peer's certificate: an agent, a person with access to one cluster, or a replica of the gateway |
//! | [`presented`] | the certificate that a server presents, trusted or not, for a message that says who answers |
//! | [`proof`] | possession of a certificate's key shown in the hello, where a middlebox ends the TLS |
//! | [`server_certificate`] | the certificate that a listener shows, exchangeable while it runs |
//! | [`serving`] | the certificate of a listener inside of a cluster, made and renewed by who serves |
//! | [`skew`] | what an agent whose clock is wrong takes from its gateway |
//! | [`tls`] | rustls configurations of every listener and client |
//! | [`webhook`] | the certificates of a webhook server and of the apiserver that asks it |
//!
//! **Roles.** One authority (ECDSA P-256) issues for a gateway. The role of a client certificate is its one URI name:
//! `urn:towline:agent:<cluster id>` is the right to serve that cluster's tunnel, `urn:towline:access:<cluster id>` the
//! right to reach that cluster with a service-account token, `urn:towline:gateway:<replica>` what one replica of the
//! gateway shows another, as its client and as its server. Server certificates have DNS and IP names and
//! `serverAuth`. A certificate of one role is nothing in another.

pub mod anchor;
pub mod authority;
pub mod bundle;
pub mod credentials;
pub mod name_certificate;
pub mod peer;
pub mod presented;
pub mod proof;
pub mod replica;
pub mod request;
pub mod roots;
pub mod server_certificate;
pub mod serving;
pub mod skew;
pub mod tls;
pub mod webhook;

mod facts;
mod file;
mod provider;
mod signatures;
mod uri;

pub use authority::{AgentName, Authority, AuthorityError, Issued, Signed};
pub use bundle::Bundle;
pub use credentials::Credentials;
pub use facts::{HOLDER_BYTES, Validity, authority_facts, is_replica, rsa_bits, rsa_key};
pub use file::{FILE_BYTES, LoadError, Problem};
pub use name_certificate::{NameCertificate, is_below};
pub use peer::{Peer, PeerError, PeerIdentity, is_still_of};
pub use proof::{ProofError, sign_proof, verify_proof};
pub use request::{AgentRequest, RequestError};
pub use roots::Roots;
pub use server_certificate::ServerCertificate;
