//! Clocks that are wrong. A cluster's clock may be a day off, and its agent must reach the gateway all the same to
//! renew its certificate: a server's certificate that has just been issued, or has just ended, is taken by the agent
//! for a day longer than it says. Names, authorities and signatures are checked as ever.

use std::{sync::Arc, time::Duration};

use rustls::{
    CertificateError, ClientConfig, Error,
    client::{
        WebPkiServerVerifier,
        danger::{ServerCertVerified, ServerCertVerifier},
    },
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::{provider::provider, roots::Roots, signatures::signatures_by, tls::TlsError};

/// By how much an agent's clock may be off.
pub const SKEW: Duration = Duration::from_secs(25 * 3600);

/// Lets the server's certificate begin [`SKEW`] later and end [`SKEW`] sooner than this machine's clock says. `roots`
/// are those that `config` was made with.
///
/// # Errors
/// When rustls refuses the roots.
pub fn tolerate(config: &mut ClientConfig, roots: &Roots) -> Result<(), TlsError> {
    let strict = WebPkiServerVerifier::builder_with_provider(roots.store(), provider())
        .build()
        .map_err(|e| TlsError::from(Error::General(e.to_string())))?;
    config.dangerous().set_certificate_verifier(Arc::new(Tolerant { strict }));
    Ok(())
}

#[derive(Debug)]
struct Tolerant {
    strict: Arc<WebPkiServerVerifier>,
}

impl ServerCertVerifier for Tolerant {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let at = |now| self.strict.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        let refused = match at(now) {
            Err(refused) => refused,
            verified => return verified,
        };
        let seconds = match &refused {
            Error::InvalidCertificate(CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }) => {
                now.as_secs().saturating_add(SKEW.as_secs())
            }
            Error::InvalidCertificate(CertificateError::Expired | CertificateError::ExpiredContext { .. }) => {
                now.as_secs().saturating_sub(SKEW.as_secs())
            }
            _ => return Err(refused),
        };
        // What is wrong by the clock itself is what is told.
        at(UnixTime::since_unix_epoch(Duration::from_secs(seconds))).map_err(|_| refused)
    }

    signatures_by!(strict);
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::{Authority, Validity};

    #[test]
    fn r8_a_clock_that_is_a_day_off_still_reaches_the_gateway_and_two_days_do_not() {
        let authority = Authority::create("test", Validity::days(400)).unwrap();
        let roots = authority.roots().unwrap();
        let strict = WebPkiServerVerifier::builder_with_provider(roots.store(), provider()).build().unwrap();
        let tolerant = Tolerant { strict };
        let hour = Duration::from_secs(3600);
        let now = SystemTime::now();
        let verify = |begins: SystemTime, ends: SystemTime, name: &'static str| {
            let validity = Validity { not_before: begins, not_after: ends };
            let issued = authority.issue_server(&["gw.example.org"], validity).unwrap();
            let chain = issued.credentials().chain();
            tolerant.verify_server_cert(&chain[0], &[], &ServerName::try_from(name).unwrap(), &[], UnixTime::now())
        };
        // The authority of the test begins now, so clocks that are behind are tried by the leaf alone, ahead of ours.
        assert!(verify(now + 24 * hour, now + 90 * hour, "gw.example.org").is_ok());
        assert!(verify(now + 48 * hour, now + 90 * hour, "gw.example.org").is_err());
        assert!(verify(now - 48 * hour, now + hour, "gw.example.org").is_ok());
        assert!(verify(now + hour, now + 90 * hour, "other.example.org").is_err());
        let expired = verify(now - 90 * hour, now - 48 * hour, "gw.example.org").unwrap_err();
        assert!(expired.to_string().contains("expired"), "{expired}");
    }
}
