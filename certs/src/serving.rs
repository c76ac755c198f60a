//! The certificate of a listener that nobody issues for: made by who serves, trusted because it is itself
//! published, followed by the next one long before it ends, and never shown outside of its time. It reads no clock.
//!
//! A new one is made in the middle of the old one's life. It is published at once, and shown a day later, when whoever
//! reads what is published has had the time to.

use std::{
    collections::BTreeSet,
    fmt,
    net::IpAddr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use rcgen::{ExtendedKeyUsagePurpose, KeyPair, PKCS_ECDSA_P256_SHA256};
use rustls::{
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _};
use x509_parser::extensions::GeneralName;

use crate::{
    authority::{AuthorityError, of_role, parameters, server_name},
    credentials::Credentials,
    facts::{self, Validity},
};

/// How long one lives.
pub const LIFE: Duration = Duration::from_secs(90 * 86_400);
/// How old one is when the next one is made.
pub const RENEW_AT: Duration = Duration::from_secs(45 * 86_400);
/// How old one is before it is shown in place of another.
pub const SETTLED_AT: Duration = Duration::from_secs(86_400);
/// By how much one begins before it is made, for clients whose clocks are behind.
const BACKDATED: Duration = Duration::from_secs(3600);
/// Certificates kept at once.
const KEPT_MAX: usize = 4;

/// The certificates of one listener, the oldest first. Keys do not print.
#[derive(Clone, Default)]
pub struct Serving(Vec<Own>);

#[derive(Clone)]
struct Own {
    certificate_pem: String,
    key_pem: String,
    credentials: Credentials,
    validity: Validity,
}

impl Own {
    fn make(names: &[&str], now: SystemTime) -> Result<Self, AuthorityError> {
        let first = names.first().ok_or_else(|| AuthorityError::Name(String::new(), "server name"))?;
        let validity = Validity { not_before: now - BACKDATED, not_after: now + LIFE };
        let mut params = parameters(first.get(..first.len().min(64)).unwrap_or("server"), validity)?;
        for name in names {
            params.subject_alt_names.push(server_name(name)?);
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = of_role(params, ExtendedKeyUsagePurpose::ServerAuth).self_signed(&key)?;
        Self::read(&certificate.pem(), &key.serialize_pem())
            .ok_or(AuthorityError::Internal("what was made does not read back"))
    }

    fn read(certificate_pem: &str, key_pem: &str) -> Option<Self> {
        let certificate = CertificateDer::from_pem_slice(certificate_pem.as_bytes()).ok()?;
        let key = PrivatePkcs8KeyDer::from_pem_slice(key_pem.as_bytes()).ok()?;
        let (validity, _) = facts::facts(&certificate)?;
        let credentials = Credentials::from_der(vec![certificate], PrivateKeyDer::from(key)).ok()?;
        Some(Self { certificate_pem: certificate_pem.to_owned(), key_pem: key_pem.to_owned(), credentials, validity })
    }

    fn holds(&self, now: SystemTime) -> bool {
        self.validity.not_before <= now && now < self.validity.not_after
    }

    fn made(&self) -> SystemTime {
        self.validity.not_before + BACKDATED
    }

    fn is_for(&self, names: &[&str]) -> bool {
        let Some(Ok((_, parsed))) =
            self.credentials.chain().first().map(|der| x509_parser::parse_x509_certificate(der))
        else {
            return false;
        };
        let Ok(Some(alternative)) = parsed.subject_alternative_name() else { return false };
        let found: BTreeSet<String> = alternative
            .value
            .general_names
            .iter()
            .filter_map(|name| match name {
                GeneralName::DNSName(name) => Some((*name).to_owned()),
                GeneralName::IPAddress(bytes) => address(bytes),
                _ => None,
            })
            .collect();
        found == names.iter().map(|name| (*name).to_owned()).collect()
    }
}

impl Serving {
    /// What [`Self::certificates_pem`] and [`Self::keys_pem`] gave: the same number of each, in the same order. What
    /// does not fit together is left out: another one is made in its place.
    pub fn read(certificates: &str, keys: &str) -> Self {
        let pairs = blocks(certificates).into_iter().zip(blocks(keys));
        Self(pairs.filter_map(|(certificate, key)| Own::read(certificate, key)).take(KEPT_MAX).collect())
    }

    /// Whether another one is to be made for these names: none holds, or the newest is in the second half of its life.
    pub fn is_due(&self, names: &[&str], now: SystemTime) -> bool {
        !self.0.iter().any(|own| own.holds(now) && own.is_for(names) && now < own.made() + RENEW_AT)
    }

    /// Makes another one, and forgets those that have ended.
    ///
    /// # Errors
    /// [`AuthorityError::Name`] for no name at all or one that is neither a DNS name nor an address.
    pub fn renew(&mut self, names: &[&str], now: SystemTime) -> Result<(), AuthorityError> {
        let next = Own::make(names, now)?;
        self.0.retain(|own| now < own.validity.not_after && own.is_for(names));
        self.0.push(next);
        if self.0.len() > KEPT_MAX {
            self.0.remove(0);
        }
        Ok(())
    }

    /// The one to show: the newest that clients have had the time to hear of; else the newest. None outside of its
    /// time.
    pub fn shown(&self, now: SystemTime) -> Option<&Credentials> {
        let holding = || self.0.iter().rev().filter(|own| own.holds(now));
        let settled = holding().find(|own| own.made() + SETTLED_AT <= now);
        settled.or_else(|| holding().next()).map(|own| &own.credentials)
    }

    /// All certificates as PEM: to keep, and for clients to trust.
    pub fn certificates_pem(&self) -> String {
        self.0.iter().map(|own| own.certificate_pem.as_str()).collect()
    }

    /// All keys as PEM, to keep.
    pub fn keys_pem(&self) -> String {
        self.0.iter().map(|own| own.key_pem.as_str()).collect()
    }
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|own| own.validity)).finish()
    }
}

fn address(bytes: &[u8]) -> Option<String> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok().map(|address| address.to_string())
}

/// The blocks of a PEM text.
pub(crate) fn blocks(pem: &str) -> Vec<&str> {
    const BEGIN: &str = "-----BEGIN ";
    let starts: Vec<usize> = pem.match_indices(BEGIN).map(|(at, _)| at).take(KEPT_MAX + 1).collect();
    let ends = starts.iter().skip(1).copied().chain([pem.len()]);
    starts.iter().zip(ends).map(|(start, end)| &pem[*start..end]).collect()
}

/// Tells the time of day.
pub type Now = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// What a listener shows at each handshake, by the clock of then. Clones share it.
#[derive(Clone)]
pub struct ShownNow {
    serving: Arc<arc_swap::ArcSwap<Serving>>,
    now: Now,
}

impl ShownNow {
    /// Nothing yet, which refuses every handshake.
    pub fn new(now: Now) -> Self {
        Self { serving: Arc::default(), now }
    }

    /// Shows of these from now on.
    pub fn replace(&self, serving: Serving) {
        self.serving.store(Arc::new(serving));
    }
}

impl fmt::Debug for ShownNow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serving.load().fmt(f)
    }
}

impl ResolvesServerCert for ShownNow {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.serving.load().shown((self.now)()).map(Credentials::certified_key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &[&str] = &["tokens.towline.svc", "192.0.2.7"];
    const DAY: Duration = Duration::from_secs(86_400);

    fn begin() -> SystemTime {
        SystemTime::UNIX_EPOCH + 20_000 * DAY
    }

    fn made() -> Serving {
        let mut serving = Serving::default();
        assert!(serving.is_due(NAMES, begin()) && serving.shown(begin()).is_none());
        serving.renew(NAMES, begin()).unwrap();
        serving
    }

    #[test]
    fn a7_the_next_one_is_made_in_the_middle_published_at_once_and_shown_a_day_later() {
        let mut serving = made();
        let day = |days: u32| begin() + days * DAY;
        let first = serving.shown(begin()).unwrap().chain().to_vec();
        assert!(!serving.is_due(NAMES, day(44)) && serving.is_due(NAMES, day(45)));
        serving.renew(NAMES, day(45)).unwrap();
        assert!(!serving.is_due(NAMES, day(45)));
        assert_eq!(serving.certificates_pem().matches("BEGIN CERTIFICATE").count(), 2);
        assert_eq!(serving.shown(day(45)).unwrap().chain(), first, "nobody has heard of the new one");
        let second = serving.shown(day(46)).unwrap().chain().to_vec();
        assert_ne!(second, first);
        // After the first one's end the second is shown, whatever happens, and after its own end nothing is.
        assert_eq!(serving.shown(day(100)).unwrap().chain(), second);
        assert!(serving.shown(day(135)).is_none() && serving.is_due(NAMES, day(135)));
        serving.renew(NAMES, day(135)).unwrap();
        assert_eq!(
            serving.certificates_pem().matches("BEGIN CERTIFICATE").count(),
            1,
            "those that ended are forgotten"
        );
        assert!(serving.shown(day(135)).is_some(), "there is no other to wait beside");
    }

    #[test]
    fn a7_one_of_the_future_or_of_other_names_is_followed_at_once_and_never_shown() {
        let serving = made();
        // The clock was ahead when it was made.
        let before = begin() - 2 * DAY;
        assert!(serving.shown(before).is_none() && serving.is_due(NAMES, before));
        assert!(serving.is_due(&["tokens.other.svc"], begin()));
        let mut renamed = serving.clone();
        renamed.renew(&["tokens.other.svc"], begin()).unwrap();
        assert_eq!(renamed.certificates_pem().matches("BEGIN CERTIFICATE").count(), 1);
        assert!(renamed.renew(&[], begin()).is_err() && renamed.renew(&["a b"], begin()).is_err());
    }

    #[test]
    fn a7_what_is_kept_reads_back_and_what_does_not_fit_is_left_out() {
        let mut serving = made();
        serving.renew(NAMES, begin() + 45 * DAY).unwrap();
        let (certificates, keys) = (serving.certificates_pem(), serving.keys_pem());
        let read = Serving::read(&certificates, &keys);
        assert_eq!((read.certificates_pem(), read.keys_pem()), (certificates.clone(), keys.clone()));
        assert!(!format!("{read:?}").contains("PRIVATE"));
        let other = made();
        assert!(Serving::read(&certificates, &other.keys_pem()).shown(begin()).is_none(), "a key of another");
        assert!(Serving::read("", "").is_due(NAMES, begin()) && Serving::read("x", &keys).is_due(NAMES, begin()));
        assert!(Serving::read(&certificates.repeat(100), &keys.repeat(100)).0.len() <= KEPT_MAX);
    }
}
