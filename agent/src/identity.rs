//! The identity of a cluster on the agent's side: a certificate for a key that was made here and
//! never leaves the cluster, what it is trusted with, and where it is kept.
//!
//! | module | what it holds |
//! |---|---|
//! | [`clock`] | the time of day, given from outside |
//! | [`follow`] | takes what another process keeps |
//! | [`issuer_keys`] | keeps what was learned of issuers' keys |
//! | [`request`] | a new key and the request for its certificate |
//! | [`store`] | a Secret or a folder |

pub mod clock;
pub mod follow;
pub mod issuer_keys;
pub mod request;
pub mod store;

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use auth::token::Verifier;
use certs::{Credentials, PeerIdentity, Roots};
use secrecy::{ExposeSecret as _, SecretString};
use tokio::sync::watch;
/// RFC 3339 in whole seconds, as the cluster's objects and the admin listener show an instant.
pub use types::instants::rfc3339_seconds as spell;
use types::{agent_api::Certificate, ids::ClusterId};

/// From which part of a certificate's life on it is renewed, and over which further part agents spread it: with 90
/// days, within day 46.
const RENEW_FROM: f64 = 0.5;
const RENEW_OVER: f64 = 1.0 / 90.0;
/// How old a certificate is at least when it is renewed because the gateway wants another.
const SETTLED: Duration = Duration::from_secs(60);
/// Bytes of all that is kept of an identity: more is none of ours.
const STORED_BYTES: usize = 512 * 1024;
/// Name of the role that gets and renews the certificate.
pub const OPERATOR: &str = "clusteridentityoperator";

/// Why something is no identity of this cluster.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Certificate, key or roots.
    #[error("{0}")]
    Load(&'static str, #[source] certs::LoadError),
    /// The certificate is not an agent's.
    #[error("the certificate is not one of an agent")]
    Peer(#[source] certs::PeerError),
    /// It is of another cluster.
    #[error("the certificate is of {found}, and this agent is of {wanted}")]
    OtherCluster {
        /// The cluster that the certificate names.
        found: String,
        /// The cluster that this agent is configured for.
        wanted: String,
    },
    /// The text is not an RFC 3339 time.
    #[error("{0:?} is not a time (RFC 3339)")]
    Time(String),
    /// It ends before it begins.
    #[error("the certificate ends before it begins")]
    Backwards,
    /// More than is kept.
    #[error("certificate and roots have more than {STORED_BYTES} bytes")]
    TooLarge,
}

/// What is kept of an identity. The key does not print.
#[derive(Clone)]
pub struct Stored {
    /// PEM, the own certificate first.
    pub certificate: String,
    /// The private key, PKCS#8 in PEM.
    pub key: SecretString,
    /// PEM of the authorities that came with it; may be empty.
    pub roots: String,
    /// When it begins, by the gateway's clock.
    pub not_before: SystemTime,
    /// When it ends, by the gateway's clock.
    pub not_after: SystemTime,
    /// When it came, by the agent's clock, which may be off.
    pub received: SystemTime,
    /// Object id of the cluster's identity; empty if it is not known.
    pub principal_id: String,
    /// The tenant; empty if it is not known.
    pub tenant_id: String,
    /// What was learned of issuers' keys ([`Verifier::learned`]); empty if nothing was. Signed by those keys, and kept
    /// by [`issuer_keys`] alone.
    pub issuer_keys: String,
}

impl std::fmt::Debug for Stored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stored")
            .field("not_after", &spell(self.not_after))
            .field("principal_id", &self.principal_id)
            .finish_non_exhaustive()
    }
}

impl Stored {
    /// What the gateway sent for a key of ours.
    pub fn new(sent: Certificate, key: SecretString, received: SystemTime) -> Result<Self, IdentityError> {
        Ok(Self {
            not_before: parse(&sent.not_before)?,
            not_after: parse(&sent.not_after)?,
            certificate: sent.certificate,
            key,
            roots: sent.roots,
            received,
            principal_id: sent.principal_id,
            tenant_id: sent.tenant_id,
            issuer_keys: String::new(),
        })
    }
}

/// An identity that is known to be of this cluster, its key to be that of its certificate.
#[derive(Debug, Clone)]
pub struct Identity {
    /// Certificate and key.
    pub credentials: Arc<Credentials>,
    /// Trusted beside the configured ones.
    pub roots: Option<Roots>,
    /// As it is kept.
    pub stored: Stored,
    /// Which one it is of those that were in use; counts from 1, 0 while it is not.
    pub generation: u64,
}

impl Identity {
    /// Checks what was stored or sent.
    pub fn new(stored: Stored, cluster: &ClusterId) -> Result<Self, IdentityError> {
        if stored.certificate.len() + stored.roots.len() + stored.key.expose_secret().len() > STORED_BYTES {
            return Err(IdentityError::TooLarge);
        }
        let key = stored.key.expose_secret().as_bytes();
        let credentials = Credentials::from_pem(stored.certificate.as_bytes(), key)
            .map_err(|err| IdentityError::Load("certificate and key", err))?;
        let claimed = PeerIdentity::claimed(credentials.chain()).map_err(IdentityError::Peer)?;
        let found = claimed.agent().map_err(IdentityError::Peer)?;
        if found.parse::<ClusterId>().ok().as_ref() != Some(cluster) {
            let (found, wanted) = (found.to_owned(), cluster.as_str().to_owned());
            return Err(IdentityError::OtherCluster { found, wanted });
        }
        if stored.not_after <= stored.not_before {
            return Err(IdentityError::Backwards);
        }
        let roots = match stored.roots.trim() {
            "" => None,
            pem => Some(Roots::from_pem(pem.as_bytes()).map_err(|err| IdentityError::Load("its authorities", err))?),
        };
        Ok(Self { credentials: Arc::new(credentials), roots, stored, generation: 0 })
    }

    /// How long the certificate is good for, in all.
    fn lifetime(&self) -> Duration {
        self.stored.not_after.duration_since(self.stored.not_before).unwrap_or_default()
    }

    /// When the life of the certificate began on the agent's clock: when it came. Where that clock has been set back
    /// since, what the gateway said.
    fn began(&self, now: SystemTime) -> SystemTime {
        if self.stored.received <= now { self.stored.received } else { self.stored.not_before }
    }

    /// When to ask for the next one, on the agent's clock: from half of its life on, `unit` (0.0 to 1.0) spreads
    /// agents.
    pub fn renew_at(&self, now: SystemTime, unit: f64) -> SystemTime {
        self.began(now) + self.lifetime().mul_f64(RENEW_FROM + RENEW_OVER * unit.clamp(0.0, 1.0))
    }

    /// When to ask for the next one where the gateway wants that, on the agent's clock. Not at once: what it said may
    /// have been of a tunnel of the certificate before, which is about to end.
    pub fn renew_soon_at(&self, now: SystemTime) -> SystemTime {
        self.began(now) + SETTLED
    }

    /// Whether it has ended, as far as the agent's clock tells. The gateway decides.
    pub fn has_ended(&self, now: SystemTime) -> bool {
        now >= self.began(now) + self.lifetime()
    }
}

/// The identity in use, shared by all who show it. Nothing before there is one.
#[derive(Debug, Clone)]
pub struct Identities {
    current: watch::Sender<Option<Arc<Identity>>>,
    /// Which one the gateway wants renewed before its time; 0 for none.
    unwanted: watch::Sender<u64>,
    /// Judges users' tokens, where this process serves users.
    verifier: Arc<OnceLock<Arc<Verifier>>>,
}

impl Default for Identities {
    fn default() -> Self {
        Self { current: watch::Sender::new(None), unwanted: watch::Sender::new(0), verifier: Arc::default() }
    }
}

impl Identities {
    /// The one in use.
    pub fn current(&self) -> Option<Arc<Identity>> {
        self.current.borrow().clone()
    }

    /// Tells this verifier what is kept of issuers' keys, from the first identity on. One verifier alone can be told.
    pub fn teach(&self, verifier: Arc<Verifier>) {
        let _ = self.verifier.set(verifier);
    }

    /// Everybody uses this one from now on. Says whether it is another one than before. What is kept of issuers' keys
    /// counts first: without an identity there is no tunnel, so no token is judged by keys that are known to be
    /// revoked.
    pub fn publish(&self, mut identity: Identity) -> bool {
        if let Some(verifier) = self.verifier.get()
            && !identity.stored.issuer_keys.is_empty()
            && let Err(error) = verifier.learn(&identity.stored.issuer_keys)
        {
            tracing::warn!(%error, "what is kept of the issuers' keys is not readable: revocations may be missing");
        }
        self.current.send_if_modified(|current| {
            let same = current.as_ref().is_some_and(|old| {
                old.credentials.chain() == identity.credentials.chain() && old.stored.roots == identity.stored.roots
            });
            if !same {
                identity.generation = current.as_ref().map_or(0, |old| old.generation) + 1;
                *current = Some(Arc::new(identity));
            }
            !same
        })
    }

    /// The gateway wants the one in use renewed now.
    pub fn ask_renewal(&self) {
        let generation = self.current().map_or(0, |identity| identity.generation);
        self.unwanted.send_if_modified(|unwanted| std::mem::replace(unwanted, generation) != generation);
    }

    /// Tells which one the gateway wants renewed.
    pub fn unwanted(&self) -> watch::Receiver<u64> {
        self.unwanted.subscribe()
    }

    /// Tells of changes.
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<Identity>>> {
        self.current.subscribe()
    }
}

/// Reads an RFC 3339 time.
pub fn parse(text: &str) -> Result<SystemTime, IdentityError> {
    types::instants::parse(text).map(Into::into).map_err(|_| IdentityError::Time(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use certs::{Authority, Validity};

    use super::*;

    const CLUSTER: &str = "/subscriptions/s/resourcegroups/g/providers/microsoft.kubernetes/connectedclusters/c";
    const DAY: Duration = Duration::from_secs(86_400);

    fn identity(received: SystemTime) -> Identity {
        let authority = Authority::create("test", Validity::days(400)).unwrap();
        let not_before = SystemTime::UNIX_EPOCH + 20_000 * DAY;
        let validity = Validity { not_before, not_after: not_before + 90 * DAY };
        let issued = authority.issue_agent(CLUSTER, validity).unwrap();
        let stored = Stored {
            certificate: issued.certificate_pem.clone(),
            key: issued.key_pem().to_owned().into(),
            roots: authority.certificate_pem().to_owned(),
            not_before,
            not_after: not_before + 90 * DAY,
            received,
            principal_id: "p".to_owned(),
            tenant_id: "t".to_owned(),
            issuer_keys: String::new(),
        };
        Identity::new(stored, &CLUSTER.parse().unwrap()).unwrap()
    }

    #[test]
    fn r8_a_certificate_of_90_days_is_renewed_within_day_46() {
        let begin = SystemTime::UNIX_EPOCH + 20_000 * DAY;
        let identity = identity(begin);
        for unit in [0.0, 0.5, 1.0] {
            let renew = identity.renew_at(begin, unit).duration_since(begin).unwrap();
            assert!(renew >= 45 * DAY && renew <= 46 * DAY, "{renew:?}");
        }
        let ended = [89, 90, 91].map(|day| identity.has_ended(begin + day * DAY));
        assert_eq!(ended, [false, true, true]);
    }

    #[test]
    fn r8_a_clock_that_is_a_day_off_changes_nothing_of_how_long_a_certificate_is_used() {
        let begin = SystemTime::UNIX_EPOCH + 20_000 * DAY;
        for received in [begin - DAY, begin + DAY] {
            let identity = identity(received);
            assert!(!identity.has_ended(received));
            assert_eq!(identity.renew_at(received, 0.0), received + 45 * DAY);
        }
        // A clock a year ahead when the certificate came, and set right since.
        let identity = identity(begin + 365 * DAY);
        assert_eq!(identity.renew_at(begin + DAY, 0.0), begin + 45 * DAY);
        assert!(identity.has_ended(begin + 90 * DAY));
    }

    #[test]
    fn r7_a_certificate_of_another_cluster_or_key_is_none_of_ours() {
        let own = identity(SystemTime::UNIX_EPOCH);
        let other = format!("{CLUSTER}2").parse().unwrap();
        let err = Identity::new(own.stored.clone(), &other).unwrap_err();
        assert!(matches!(err, IdentityError::OtherCluster { .. }), "{err}");
        let mixed = Stored { key: identity(SystemTime::UNIX_EPOCH).stored.key, ..own.stored.clone() };
        assert!(matches!(Identity::new(mixed, &CLUSTER.parse().unwrap()), Err(IdentityError::Load(..))));
        assert!(!format!("{:?}", own.stored).contains("PRIVATE"));
    }

    #[test]
    fn the_same_identity_again_is_no_change() {
        let identities = Identities::default();
        let first = identity(SystemTime::UNIX_EPOCH);
        assert!(identities.publish(first.clone()));
        assert!(!identities.publish(first));
        assert!(identities.publish(identity(SystemTime::UNIX_EPOCH)));
    }
}
