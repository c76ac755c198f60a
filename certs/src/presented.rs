//! Looks at the certificate that a server presents, for a message that says who answers. Trusts none.

use std::sync::{Arc, Mutex, PoisonError};

use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use crate::{provider::provider, tls::TlsError};

/// The certificate that a server presented. Every handshake with its [`Self::client`] fails, so that nothing can be
/// sent over such a connection.
#[derive(Debug, Default)]
pub struct Presented(Mutex<Option<CertificateDer<'static>>>);

impl Presented {
    /// Settings of a client whose handshake ends when the server has presented its certificate, which is kept here.
    ///
    /// # Errors
    /// When rustls refuses the cryptography.
    pub fn client(self: &Arc<Self>) -> Result<ClientConfig, TlsError> {
        let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
        Ok(builder.dangerous().with_custom_certificate_verifier(self.clone()).with_no_client_auth())
    }

    /// The certificate, once a handshake came so far.
    pub fn take(&self) -> Option<CertificateDer<'static>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl ServerCertVerifier for Presented {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(end_entity.clone().into_owned());
        Err(CertificateError::UnknownIssuer.into())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(CertificateError::BadSignature.into())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(CertificateError::BadSignature.into())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
