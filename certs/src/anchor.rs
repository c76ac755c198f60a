//! A certificate that is trusted by itself. An operator may name a server's own certificate as the authority, as
//! `openssl req -x509` makes it: self-signed, and a CA by its extension. Kubernetes' clients and curl take it then; the
//! WebPKI's rules, which rustls keeps to, never take a CA as a server.

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, Error, RootCertStore,
    client::{
        WebPkiServerVerifier,
        danger::{ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    server::ParsedCertificate,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use x509_parser::{parse_x509_certificate, time::ASN1Time};

use crate::{provider::provider, signatures::signatures_by, tls::TlsError};

/// Lets `config` trust what these certificates sign, and each of them as the certificate of a server. A server that
/// shows one of them needs its key all the same, and the name and the time must be right.
///
/// # Errors
/// When rustls refuses one of them, or there is none.
pub fn trust(config: &mut ClientConfig, anchors: &[CertificateDer<'static>]) -> Result<(), TlsError> {
    let refused = |reason: String| TlsError::from(Error::General(reason));
    let mut roots = RootCertStore::empty();
    for anchor in anchors {
        roots.add(anchor.clone()).map_err(|error| refused(error.to_string()))?;
    }
    let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|error| refused(error.to_string()))?;
    config.dangerous().set_certificate_verifier(Arc::new(Anchored { chains, anchors: anchors.to_vec() }));
    Ok(())
}

#[derive(Debug)]
struct Anchored {
    chains: Arc<WebPkiServerVerifier>,
    anchors: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Anchored {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match self.chains.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(_) if self.anchors.iter().any(|anchor| anchor == end_entity) => {
                verify_alone(end_entity, server_name, now)
            }
            verified => verified,
        }
    }

    signatures_by!(chains);
}

/// What is left to check of a certificate that is trusted by itself: time, purpose and name.
fn verify_alone(
    certificate: &CertificateDer<'_>,
    server_name: &ServerName<'_>,
    now: UnixTime,
) -> Result<ServerCertVerified, Error> {
    let (_, parsed) = parse_x509_certificate(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let at = ASN1Time::from_timestamp(seconds).map_err(|_| CertificateError::BadEncoding)?;
    if at < parsed.validity().not_before {
        return Err(CertificateError::NotValidYet.into());
    }
    if at > parsed.validity().not_after {
        return Err(CertificateError::Expired.into());
    }
    let purposes = parsed.extended_key_usage().map_err(|_| CertificateError::BadEncoding)?;
    if purposes.is_some_and(|purposes| !purposes.value.server_auth && !purposes.value.any) {
        return Err(CertificateError::InvalidPurpose.into());
    }
    verify_server_name(&ParsedCertificate::try_from(certificate)?, server_name)?;
    Ok(ServerCertVerified::assertion())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair};

    use super::*;

    fn self_signed(change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec!["api.example.org".to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn verify(
        anchors: &[&CertificateDer<'static>],
        shown: &CertificateDer<'static>,
        name: &'static str,
    ) -> Result<(), Error> {
        let mut roots = RootCertStore::empty();
        anchors.iter().for_each(|anchor| roots.add((*anchor).clone()).unwrap());
        let chains = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider()).build().unwrap();
        let anchored = Anchored { chains, anchors: anchors.iter().map(|anchor| (*anchor).clone()).collect() };
        let name = ServerName::try_from(name).unwrap();
        anchored.verify_server_cert(shown, &[], &name, &[], UnixTime::now()).map(|_| ())
    }

    #[test]
    fn anchor_is_a_server_only_by_itself_in_time_and_by_name() {
        let (ca, other) = (self_signed(|_| {}), self_signed(|_| {}));
        assert_eq!(verify(&[&ca], &ca, "api.example.org"), Ok(()));
        let leaf = self_signed(|params| params.is_ca = IsCa::NoCa);
        assert_eq!(verify(&[&leaf], &leaf, "api.example.org"), Ok(()));
        assert!(verify(&[&ca], &ca, "other.example.org").is_err());
        assert!(verify(&[&other], &ca, "api.example.org").is_err(), "another one of the same name");
        let ended = self_signed(|params| params.not_after = (SystemTime::now() - Duration::from_secs(60)).into());
        assert!(verify(&[&ended], &ended, "api.example.org").is_err());
        let client = self_signed(|params| params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]);
        assert!(verify(&[&client], &client, "api.example.org").is_err());
    }
}
