//! The certificates of a webhook server and of its one client, an apiserver, under an authority of their own that the
//! server makes, keeps and follows by the next one. It reads no clock.
//!
//! An apiserver reads the file that names authority and client certificate once, when it starts, and somebody has to
//! carry that file to its machine. So both live ten years, and the next pair is made in the last year, beside the old
//! one: the server takes either client, and shows a certificate of the authority that was there first, which a client
//! with the old file and one with the new file trust. The server's own certificate lives 90 days and is replaced in
//! the middle of them; no client notices.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use rustls::{
    pki_types::CertificateDer,
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use crate::{
    authority::{Authority, AuthorityError},
    credentials::Credentials,
    facts::{self, Validity},
    file::LoadError,
    roots::Roots,
    serving::{Now, blocks},
};

/// How long an authority and its client's certificate live.
pub const AUTHORITY_LIFE: Duration = Duration::from_secs(3650 * 86_400);
/// What is left of an authority's life when the next one is made.
pub const AUTHORITY_AHEAD: Duration = Duration::from_secs(365 * 86_400);
/// How long the server's certificate lives, and how old it is when the next one is made.
pub const SERVER_LIFE: Duration = Duration::from_secs(90 * 86_400);
/// Age of the server's certificate at which the next one is made.
pub const SERVER_RENEW_AT: Duration = Duration::from_secs(45 * 86_400);
/// How long before its end an authority is forgotten: the server's certificate, which ends with it, must already be
/// followed by one of the next authority.
const AUTHORITY_MARGIN: Duration = Duration::from_secs(86_400);
/// By how much a certificate begins before it is made, for clocks that are behind.
const BACKDATED: Duration = Duration::from_secs(3600);
/// Authorities kept at once: one, the next, and one that begins ahead of the clock. It was made while a clock was wrong,
/// or this one is behind: nobody can tell, and what apiservers trust must not be lost. Until it begins it signs nothing.
const AUTHORITIES_MAX: usize = 3;

/// The certificates, the oldest authority first. Keys do not print.
#[derive(Clone, Default)]
pub struct Webhook {
    authorities: Vec<Arc<Generation>>,
    server: Option<Pair>,
}

/// Certificates and keys as texts of PEM, to keep.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// The authorities' certificates and keys.
    pub authorities: (String, String),
    /// Their clients' certificates and keys, in the same order.
    pub clients: (String, String),
    /// The server's certificate and key.
    pub server: (String, String),
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").finish_non_exhaustive()
    }
}

struct Generation {
    authority: Authority,
    /// Of the authority's own certificate.
    validity: Validity,
    client: Pair,
}

#[derive(Clone)]
struct Pair {
    certificate_pem: String,
    key_pem: String,
    credentials: Credentials,
    validity: Validity,
}

impl Pair {
    fn read(certificate_pem: &str, key_pem: &str) -> Option<Self> {
        let credentials = Credentials::from_pem(certificate_pem.as_bytes(), key_pem.as_bytes()).ok()?;
        let (validity, _) = facts::facts(credentials.chain().first()?)?;
        Some(Self { certificate_pem: certificate_pem.to_owned(), key_pem: key_pem.to_owned(), credentials, validity })
    }

    fn holds(&self, now: SystemTime) -> bool {
        self.validity.not_before <= now && now < self.validity.not_after
    }
}

impl Generation {
    fn make(client: &str, now: SystemTime) -> Result<Self, AuthorityError> {
        let validity = Validity { not_before: now - BACKDATED, not_after: now + AUTHORITY_LIFE };
        let authority = Authority::create("towline-guard", validity)?;
        let issued = authority.issue_client(client, validity)?;
        let client = Pair::read(&issued.certificate_pem, issued.key_pem());
        let client = client.ok_or(AuthorityError::Internal("what was made does not read back"))?;
        Ok(Self { authority, validity, client })
    }

    fn of(authority: Authority, client: Pair) -> Option<Self> {
        let (validity, _) = facts::facts(authority.certificate())?;
        Some(Self { authority, validity, client })
    }

    fn has_begun(&self, now: SystemTime) -> bool {
        self.validity.not_before <= now
    }

    fn is_of_use(&self, now: SystemTime) -> bool {
        now + AUTHORITY_MARGIN < self.validity.not_after
    }
}

impl Webhook {
    /// What [`Self::kept`] gave. What does not fit together is left out: another one is made in its place.
    pub fn read(kept: &Kept) -> Self {
        let [certificates, keys, clients, client_keys] =
            [&kept.authorities.0, &kept.authorities.1, &kept.clients.0, &kept.clients.1].map(|text| blocks(text));
        let authorities = certificates.into_iter().zip(keys).zip(clients).zip(client_keys);
        let authorities = authorities.filter_map(|(((authority, key), client), client_key)| {
            Generation::of(Authority::from_pem(authority, key).ok()?, Pair::read(client, client_key)?)
        });
        Self {
            authorities: authorities.take(AUTHORITIES_MAX).map(Arc::new).collect(),
            server: Pair::read(&kept.server.0, &kept.server.1),
        }
    }

    /// All authorities, certificates and keys in PEM, as [`Self::read`] takes them.
    pub fn kept(&self) -> Kept {
        let mut kept = Kept::default();
        for generation in &self.authorities {
            kept.authorities.0.push_str(generation.authority.certificate_pem());
            kept.authorities.1.push_str(&generation.authority.key_pem());
            kept.clients.0.push_str(&generation.client.certificate_pem);
            kept.clients.1.push_str(&generation.client.key_pem);
        }
        if let Some(server) = &self.server {
            kept.server = (server.certificate_pem.clone(), server.key_pem.clone());
        }
        kept
    }

    /// Makes what is missing, has ended, or is to be followed; forgets authorities that have ended, and no others.
    /// `client` is the client's name, `names` the server's. Whether anything has changed.
    ///
    /// # Errors
    /// [`AuthorityError::Name`] for no name at all or one that no certificate can hold; [`AuthorityError::Internal`] where
    /// no authority has begun and there are as many as are kept.
    pub fn renew(&mut self, client: &str, names: &[&str], now: SystemTime) -> Result<bool, AuthorityError> {
        let before = self.authorities.len();
        self.authorities.retain(|generation| generation.is_of_use(now));
        let mut changed = self.authorities.len() != before;
        let fresh = |generation: &Arc<Generation>| {
            generation.client.holds(now)
                && generation.has_begun(now)
                && now + AUTHORITY_AHEAD < generation.validity.not_after
        };
        // Where there is no room for the next one, those that begin ahead of the clock are in its place, and the server's
        // certificate is renewed by the one that holds.
        if !self.authorities.iter().any(fresh) && self.authorities.len() < AUTHORITIES_MAX {
            self.authorities.push(Arc::new(Generation::make(client, now)?));
            changed = true;
        }
        let begun = self.authorities.iter().find(|generation| generation.has_begun(now));
        let first = begun
            .ok_or(AuthorityError::Internal("there are three authorities, and none is of use at this time of day"))?;
        let mut wanted: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let is_good = |server: &Pair| {
            let mut found = server.credentials.server_names();
            found.sort_unstable();
            server.holds(now)
                && now < server.validity.not_before + BACKDATED + SERVER_RENEW_AT
                && found == wanted
                && first.authority.is_issuer_of(&server.credentials)
        };
        if !self.server.as_ref().is_some_and(is_good) {
            let not_after = (now + SERVER_LIFE).min(first.validity.not_after);
            let validity = Validity { not_before: now - BACKDATED, not_after };
            let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
            let issued = first.authority.issue_server(&wanted, validity)?;
            self.server = Pair::read(&issued.certificate_pem, issued.key_pem());
            changed = true;
        }
        Ok(changed)
    }

    /// The authorities, which the server trusts for clients.
    ///
    /// # Errors
    /// Where there is none.
    pub fn roots(&self) -> Result<Roots, LoadError> {
        Roots::from_der(self.authorities())
    }

    /// Their certificates, the oldest first.
    pub fn authorities(&self) -> Vec<CertificateDer<'static>> {
        self.authorities.iter().map(|generation| generation.authority.certificate().clone()).collect()
    }

    /// For a client's settings: what it trusts, and its own newest certificate and key, as PEM.
    pub fn client(&self) -> Option<(String, &str, &str)> {
        let newest = self.authorities.last()?;
        let authorities = self.authorities.iter().map(|generation| generation.authority.certificate_pem()).collect();
        Some((authorities, &newest.client.certificate_pem, &newest.client.key_pem))
    }

    /// When the newest client's certificate and the server's end.
    pub fn ends(&self) -> Option<(SystemTime, SystemTime)> {
        Some((self.authorities.last()?.client.validity.not_after, self.server.as_ref()?.validity.not_after))
    }

    /// Whether the server's certificate is in its time.
    pub fn holds(&self, now: SystemTime) -> bool {
        self.server.as_ref().is_some_and(|server| server.holds(now))
    }

    /// The latest beginning of an authority, where that is still to come.
    pub fn begins(&self, now: SystemTime) -> Option<SystemTime> {
        let ahead = self.authorities.iter().filter(|generation| !generation.has_begun(now));
        ahead.map(|generation| generation.validity.not_before).max()
    }

    /// Whether an authority or the server's certificate begins after this time.
    pub fn begins_after(&self, now: SystemTime) -> bool {
        self.begins(now).is_some() || self.server.as_ref().is_some_and(|server| server.validity.not_before > now)
    }

    /// What the server shows, by the clock of each handshake: nothing outside of its time.
    pub fn shown(&self, now: Now) -> Arc<dyn ResolvesServerCert> {
        Arc::new(Shown { server: self.server.clone(), now })
    }
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook").field("authorities", &self.authorities.len()).finish_non_exhaustive()
    }
}

struct Shown {
    server: Option<Pair>,
    now: Now,
}

impl fmt::Debug for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shown").finish_non_exhaustive()
    }
}

impl ResolvesServerCert for Shown {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.server
            .as_ref()
            .filter(|server| server.holds((self.now)()))
            .map(|server| server.credentials.certified_key())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: &[&str] = &["guard.towline.svc", "192.0.2.7"];
    const CLIENT: &str = "kube-apiserver";
    const DAY: Duration = Duration::from_secs(86_400);

    fn begin() -> SystemTime {
        SystemTime::UNIX_EPOCH + 20_000 * DAY
    }

    fn made() -> Webhook {
        let mut made = Webhook::default();
        assert!(made.renew(CLIENT, NAMES, begin()).unwrap());
        made
    }

    #[test]
    fn z10_servers_certificate_is_replaced_in_the_middle_of_its_life_under_one_authority() {
        let mut webhook = made();
        let (authority, client, _) = webhook.client().map(|(a, c, k)| (a, c.to_owned(), k.to_owned())).unwrap();
        assert!(!webhook.renew(CLIENT, NAMES, begin() + 44 * DAY).unwrap());
        let before = webhook.kept().server;
        assert!(webhook.renew(CLIENT, NAMES, begin() + 45 * DAY).unwrap());
        assert_ne!(webhook.kept().server, before);
        let now = webhook.client().unwrap();
        assert_eq!((&now.0, now.1), (&authority, client.as_str()), "an apiserver has nothing to read anew");
        assert!(webhook.renew(CLIENT, &["192.0.2.8"], begin() + 46 * DAY).unwrap(), "another name");
    }

    /// An apiserver with the old file and one with the new file are both served in the last year.
    #[test]
    fn z10_next_authority_is_made_a_year_ahead_beside_the_old_one() {
        let mut webhook = made();
        let old = webhook.client().unwrap().1.to_owned();
        let (early, late) = (begin() + 3284 * DAY, begin() + 3286 * DAY);
        webhook.renew(CLIENT, NAMES, early).unwrap();
        assert_eq!(webhook.client().unwrap().1, old);
        assert!(webhook.renew(CLIENT, NAMES, late).unwrap());
        let (trusted, new, _) = webhook.client().unwrap();
        assert_eq!(trusted.matches("BEGIN CERTIFICATE").count(), 2);
        assert_ne!(new, old);
        let server = webhook.server.as_ref().unwrap();
        assert!(webhook.authorities[0].authority.is_issuer_of(&server.credentials), "who has the old file trusts it");
        assert!(!webhook.renew(CLIENT, NAMES, late + DAY).unwrap(), "one next is enough");
        assert!(webhook.renew(CLIENT, NAMES, begin() + 3651 * DAY).unwrap());
        assert_eq!(webhook.authorities.len(), 1, "what has ended is forgotten");
        let server = webhook.server.as_ref().unwrap();
        assert!(webhook.authorities[0].authority.is_issuer_of(&server.credentials));
    }

    #[test]
    fn z10_an_authority_that_begins_ahead_of_the_clock_signs_nothing() {
        for ahead in [Duration::from_secs(2 * 3600), 365 * DAY] {
            let mut webhook = Webhook::default();
            webhook.renew(CLIENT, NAMES, begin() + ahead).unwrap();
            let mut webhook = Webhook::read(&webhook.kept());
            assert!(webhook.renew(CLIENT, NAMES, begin()).unwrap(), "the clock was put right");
            let server = webhook.server.as_ref().unwrap();
            let issuer = webhook.authorities.iter().find(|known| known.authority.is_issuer_of(&server.credentials));
            assert!(issuer.unwrap().has_begun(begin()) && server.holds(begin()), "{ahead:?}");
            assert!(webhook.authorities.last().unwrap().client.holds(begin()));
            let made = webhook.authorities.len();
            webhook.renew(CLIENT, NAMES, begin() + DAY / 2).unwrap();
            assert_eq!(webhook.authorities.len(), made, "one is enough");
        }
    }

    /// A pod whose clock stood before the authority was made threw it away, and all apiservers had dead files.
    #[test]
    fn z10_a_clock_that_is_behind_throws_no_authority_away() {
        for behind in [Duration::from_secs(2 * 3600), 365 * DAY] {
            let mut webhook = made();
            let authority = webhook.authorities();
            webhook.renew(CLIENT, NAMES, begin() - behind).unwrap();
            let mut webhook = Webhook::read(&webhook.kept());
            assert!(webhook.authorities().starts_with(&authority), "{behind:?}");
            assert!(webhook.begins(begin() - behind).is_some() && webhook.begins(begin()).is_none());
            assert!(!webhook.begins_after(begin()));
            webhook.renew(CLIENT, NAMES, begin()).unwrap();
            let server = webhook.server.as_ref().unwrap();
            assert!(
                webhook.authorities[0].authority.is_issuer_of(&server.credentials),
                "who has the old file trusts it"
            );
            assert!(webhook.authorities().starts_with(&authority));
        }
    }

    /// A pod's clock was behind by less than the authority's age: it took the server's certificate for one of no use.
    #[test]
    fn z10_a_servers_certificate_that_begins_ahead_of_the_clock_is_seen_under_an_old_authority() {
        let mut webhook = made();
        let now = begin() + 365 * DAY;
        webhook.renew(CLIENT, NAMES, now).unwrap();
        let behind = now - 100 * DAY;
        assert_eq!(
            (webhook.begins(behind), webhook.begins_after(behind), webhook.begins_after(now)),
            (None, true, false)
        );
    }

    /// In the last year there are two, and a clock that is behind sees the next one begin ahead.
    #[test]
    fn z10_a_clock_that_is_behind_throws_the_next_authority_not_away() {
        let mut webhook = made();
        let late = begin() + 3286 * DAY;
        webhook.renew(CLIENT, NAMES, late).unwrap();
        let both = webhook.authorities();
        assert_eq!(both.len(), 2);
        webhook.renew(CLIENT, NAMES, late - DAY / 2).unwrap();
        assert!(webhook.authorities().starts_with(&both));
        // No more than three are kept, and none is thrown away for another one.
        let all = webhook.authorities();
        assert!(all.len() == 3 && webhook.renew(CLIENT, NAMES, begin() - 365 * DAY).is_err());
        assert_eq!(webhook.authorities(), all);
    }

    /// Two authorities that begin ahead of the clock left no room for the next one, and the server's certificate ended.
    #[test]
    fn z10_servers_certificate_is_renewed_while_there_is_no_room_for_the_next_authority() {
        let mut webhook = made();
        let (late, ahead) = (begin() + 3286 * DAY, begin() + 20_000 * DAY);
        for number in 0..2 {
            webhook.authorities.push(Arc::new(Generation::make(CLIENT, ahead + number * DAY).unwrap()));
        }
        let kept = webhook.authorities();
        assert!(webhook.renew(CLIENT, NAMES, late).unwrap());
        assert_eq!(webhook.authorities(), kept, "apiservers trust them");
        let server = webhook.server.as_ref().unwrap();
        assert!(server.holds(late + 44 * DAY) && webhook.authorities[0].authority.is_issuer_of(&server.credentials));
    }

    /// Looks are a minute apart, and a certificate that ends between two of them must not be the only one.
    #[test]
    fn z10_an_authority_is_followed_before_its_servers_certificate_ends() {
        let mut webhook = made();
        let mut now = begin();
        while now < begin() + 3660 * DAY {
            webhook.renew(CLIENT, NAMES, now).unwrap();
            assert!(webhook.server.as_ref().unwrap().holds(now + DAY / 2), "{:?}", now.duration_since(begin()));
            now += DAY / 2;
        }
    }

    #[test]
    fn z10_what_is_kept_reads_back_and_what_does_not_fit_is_made_anew() {
        let webhook = made();
        let kept = webhook.kept();
        assert_eq!(Webhook::read(&kept).kept(), kept);
        assert!(!Webhook::read(&kept).renew(CLIENT, NAMES, begin() + DAY).unwrap());
        let other = made().kept();
        let mixed = Kept { authorities: (kept.authorities.0.clone(), other.authorities.1), ..kept.clone() };
        let mut read = Webhook::read(&mixed);
        assert!(read.renew(CLIENT, NAMES, begin()).unwrap() && read.kept() != kept);
        assert!(!format!("{webhook:?} {kept:?}").contains("PRIVATE"));
        assert!(Webhook::default().renew(CLIENT, &[], begin()).is_err());
    }

    #[test]
    fn a7_no_certificate_is_shown_outside_of_its_time() {
        let webhook = made();
        let server = webhook.server.clone().unwrap();
        assert!(server.holds(begin()) && !server.holds(begin() + 90 * DAY) && !server.holds(begin() - DAY));
    }
}
