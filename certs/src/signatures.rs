//! What every verifier of ours hands on to the one inside it: the signatures of a handshake.

/// The three methods of rustls's verifiers that are about signatures, answered by the verifier in the named field: what
/// a verifier of ours decides is whose certificate it is, and nothing else.
macro_rules! signatures_by {
    ($field:tt) => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &rustls::pki_types::CertificateDer<'_>,
            signed: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            self.$field.verify_tls12_signature(message, certificate, signed)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &rustls::pki_types::CertificateDer<'_>,
            signed: &rustls::DigitallySignedStruct,
        ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
            self.$field.verify_tls13_signature(message, certificate, signed)
        }

        fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
            self.$field.supported_verify_schemes()
        }
    };
}

pub(crate) use signatures_by;
