//! Why a gateway or issuer could not be talked to, with what to type next: the address, the authority, a proxy.

use std::sync::Arc;

use certs::presented::Presented;
use rustls::CertificateError;
use tokio_rustls::TlsConnector;
use tunnel::transport::dial::DialError;

use super::Client;
use crate::failure::Advised;

/// Looks at what failed, and says what to do about it.
pub async fn explain(client: &Client, error: anyhow::Error) -> anyhow::Error {
    let at = client.address().authority();
    let dial = error.chain().find_map(|cause| cause.downcast_ref::<DialError>());
    let refused = error.chain().find_map(tls_error);
    let advised = match (dial, refused) {
        (Some(DialError::Resolve { .. }), _) => Advised::new(
            format!("{at} was not reached"),
            "check the address; a proxy is given by HTTPS_PROXY or --proxy-url",
        ),
        (Some(DialError::Connect { proxy: false, .. }), _) => Advised::new(
            format!("{at} was not reached"),
            "check address and port, and whether it is running; a proxy is given by HTTPS_PROXY or --proxy-url",
        ),
        (Some(_), _) => Advised::new(
            format!("{at} was not reached"),
            "look at the proxy: HTTPS_PROXY, NO_PROXY, --proxy-url, --proxy-ca, --proxy-password-file",
        ),
        (None, Some(CertificateError::UnknownIssuer | CertificateError::BadSignature)) => {
            let shown = presented(client).await.map_or_else(String::new, |shown| {
                format!("; it shows a certificate with the SHA-256 fingerprint {shown}")
            });
            Advised::new(
                format!("{at} is not who it says, or its authority is a private one{shown}"),
                "--ca FILE with the authority of the gateway's certificate, from who runs it (a towline dev has it in STATE/ca/ca.crt); for an account that exists: towline login URL --ca FILE",
            )
        }
        (None, Some(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. })) => {
            Advised::new(
                format!("the certificate of {at} is for other names"),
                "use the address that is in the certificate, or have it issued for this one",
            )
        }
        (None, Some(CertificateError::Expired | CertificateError::ExpiredContext { .. })) => Advised::new(
            format!("the certificate of {at} has expired, or this machine's clock is wrong"),
            "compare the clock (date -u); else tell who runs the gateway",
        ),
        (None, Some(_)) => {
            Advised::new(format!("the certificate of {at} cannot be trusted"), "tell who runs the gateway")
        }
        (None, None) => match unanswered(&at, &error) {
            Some(advised) => advised,
            None => return error,
        },
    };
    error.context(advised)
}

/// A connection that came about, and then nothing: what listens there is stopped or full, or is no gateway.
fn unanswered(at: &str, error: &anyhow::Error) -> Option<Advised> {
    let is_late = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|cause| cause.kind() == std::io::ErrorKind::TimedOut)
    };
    let is_no_tls = |cause: &(dyn std::error::Error + 'static)| {
        let inner = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        matches!(
            inner.and_then(|inner| inner.downcast_ref()),
            Some(rustls::Error::InvalidMessage(_) | rustls::Error::NoApplicationProtocol)
        )
    };
    if error.chain().any(is_late) {
        return Some(Advised::new(
            format!("{at} did not answer in time"),
            "run it again; if that stays so, see whether the gateway runs and has room, and what is in between",
        ));
    }
    error.chain().any(is_no_tls).then(|| {
        Advised::new(
            format!("{at} does not speak TLS"),
            "check the port: the gateway's is the one for users and agents",
        )
    })
}

/// rustls's own error hides in that of the stream.
fn tls_error<'a>(cause: &'a (dyn std::error::Error + 'static)) -> Option<&'a CertificateError> {
    let inner = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
    let error = inner.and_then(|inner| inner.downcast_ref()).or_else(|| cause.downcast_ref::<rustls::Error>());
    match error? {
        rustls::Error::InvalidCertificate(why) => Some(why),
        _ => None,
    }
}

/// The fingerprint of what the server shows, asked for on a connection of its own that ends there.
async fn presented(client: &Client) -> Option<String> {
    let looking = Arc::new(Presented::default());
    let tls = looking.client().ok()?;
    let tcp = client.tcp().await.ok()?;
    let handshake = TlsConnector::from(Arc::new(tls)).connect(client.server_name.clone(), tcp);
    // It never succeeds; what it showed is all that is wanted.
    let _ = tokio::time::timeout(super::TLS_TIMEOUT, handshake).await;
    let seen = looking.take()?;
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &seen);
    Some(digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect::<Vec<_>>().join(":"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Failure;

    #[test]
    fn who_takes_a_connection_and_does_not_answer_is_told_with_what_to_do() {
        let late =
            super::super::late("TLS with gw:8443 did not end within 15s".to_owned()).context("GET gw:8443/x failed");
        let advised = unanswered("gw:8443", &late).unwrap();
        assert!(advised.what.contains("in time") && advised.hint.contains("runs"), "{}", advised.hint);
        let shown = Failure::from(late.context(advised));
        assert!(format!("{:#}", shown.error()).starts_with("gw:8443 did not answer in time: "));
        assert!(shown.advice().is_some());
        let plain = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        let plain = anyhow::Error::from(std::io::Error::new(std::io::ErrorKind::InvalidData, plain));
        assert!(unanswered("gw:80", &plain.context("TLS with gw:80 failed")).unwrap().hint.contains("port"));
        assert!(unanswered("gw", &anyhow::anyhow!("something else")).is_none());
    }
}
