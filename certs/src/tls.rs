//! rustls configurations of every listener and client. One rule for all where client certificates are asked: no session
//! is resumed, for a resumed session does not show its certificate again, and there is no 0-RTT, which could be
//! replayed.

use std::sync::Arc;

use rustls::{
    ClientConfig, DistinguishedName, Error, ServerConfig, SupportedProtocolVersion,
    client::{Resumption, WebPkiServerVerifier},
    pki_types::{CertificateDer, UnixTime},
    server::{
        NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    version::{TLS12, TLS13},
};

use crate::{
    credentials::Credentials, facts::authority_facts, provider::provider, roots::Roots,
    server_certificate::ServerCertificate, signatures::signatures_by,
};

/// ALPN of the tunnel carriers QUIC and HTTP/2.
pub const ALPN_TUNNEL: &[u8] = b"towline/1";
/// ALPN of what replicas of the gateway speak with each other: the tunnel's protocol, in
/// which the one that dials opens the streams.
pub const ALPN_REPLICA: &[u8] = b"towline-hop/1";
/// ALPN of HTTP/2.
pub const ALPN_H2: &[u8] = b"h2";
/// ALPN of HTTP/1.1, also below the WebSocket carrier.
pub const ALPN_HTTP11: &[u8] = b"http/1.1";

const ALL: &[&SupportedProtocolVersion] = &[&TLS13, &TLS12];
pub(crate) const ONLY_13: &[&SupportedProtocolVersion] = &[&TLS13];

/// What is needed for a TLS configuration and does not hold.
#[derive(Debug, thiserror::Error)]
#[error("cannot set up TLS")]
pub struct TlsError(#[from] rustls::Error);

pub(crate) fn client_verifier(roots: &Roots, optional: bool) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let builder = WebPkiClientVerifier::builder_with_provider(roots.store(), provider());
    let builder = if optional { builder.allow_unauthenticated() } else { builder };
    let verifier = builder.build().map_err(|e| TlsError(Error::General(e.to_string())))?;
    Ok(Arc::new(Bounded(verifier)))
}

/// Certificates of a client's chain at most: its own and three authorities' below one that is trusted. Of four that
/// seem to have issued each other there are 16 signatures to try, of eight as many as webpki's budget has, 100 (11 ms).
pub(crate) const CHAIN: usize = 4;

/// Refuses a longer chain before a path is looked for in it: whoever connects sends one, and may send 64 KiB of
/// certificates that all seem to have issued each other.
#[derive(Debug)]
struct Bounded(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Bounded {
    fn offer_client_auth(&self) -> bool {
        self.0.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.0.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if intermediates.len() >= CHAIN {
            return Err(Error::General(format!("the client's chain has more than {CHAIN} certificates")));
        }
        self.0.verify_client_cert(own, intermediates, now)
    }

    signatures_by!(0);
}

/// Refuses a client that has another common name than this one, though its certificate holds.
#[derive(Debug)]
struct Named {
    verifier: Arc<dyn ClientCertVerifier>,
    name: String,
}

impl ClientCertVerifier for Named {
    fn offer_client_auth(&self) -> bool {
        self.verifier.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.verifier.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        own: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verifier.verify_client_cert(own, intermediates, now)?;
        match authority_facts(own).0 {
            Some(name) if name == self.name => Ok(verified),
            _ => Err(Error::General("the client's certificate is of another name".to_owned())),
        }
    }

    signatures_by!(verifier);
}

pub(crate) fn server(
    versions: &[&'static SupportedProtocolVersion],
    verifier: Arc<dyn ClientCertVerifier>,
    certificate: Arc<dyn ResolvesServerCert>,
    alpn: &[&[u8]],
) -> Result<ServerConfig, TlsError> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(certificate);
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    config.alpn_protocols = alpn.iter().map(|p| p.to_vec()).collect();
    Ok(config)
}

/// The public listener on TCP: users, and the carriers HTTP/2 and WebSocket. TLS 1.2 or newer; a client certificate is
/// asked and may be left out (without `client_roots` none is asked). One that does not verify ends the handshake.
///
/// # Errors
/// When rustls refuses the roots.
pub fn server_public(
    certificate: Arc<dyn ResolvesServerCert>,
    client_roots: Option<&Roots>,
) -> Result<ServerConfig, TlsError> {
    let verifier = match client_roots {
        Some(roots) => client_verifier(roots, true)?,
        None => WebPkiClientVerifier::no_client_auth(),
    };
    server(ALL, verifier, certificate, &[ALPN_TUNNEL, ALPN_H2, ALPN_HTTP11])
}

/// A listener inside of a cluster: TLS 1.3, HTTP/1.1, no client certificate. The certificate is looked up at each
/// handshake.
///
/// # Errors
/// When rustls refuses the settings.
pub fn server_inside(certificate: Arc<dyn ResolvesServerCert>) -> Result<ServerConfig, TlsError> {
    server(ONLY_13, WebPkiClientVerifier::no_client_auth(), certificate, &[ALPN_HTTP11])
}

/// A listener inside of a cluster for one client: as [`server_inside`], and the client has to show a certificate of
/// `roots` with the common name `client`. Any other client, and one without a certificate, fails in the handshake.
///
/// # Errors
/// When rustls refuses the roots.
pub fn server_inside_for(
    certificate: Arc<dyn ResolvesServerCert>,
    roots: &Roots,
    client: &str,
) -> Result<ServerConfig, TlsError> {
    let verifier = Named { verifier: client_verifier(roots, false)?, name: client.to_owned() };
    server(ONLY_13, Arc::new(verifier), certificate, &[ALPN_HTTP11])
}

/// The tunnel listener on QUIC: TLS 1.3, ALPN `towline/1`, a client certificate is required.
///
/// # Errors
/// When rustls refuses the roots.
pub fn server_tunnel(certificate: Arc<ServerCertificate>, client_roots: &Roots) -> Result<ServerConfig, TlsError> {
    server(ONLY_13, client_verifier(client_roots, false)?, certificate, &[ALPN_TUNNEL])
}

fn client(
    versions: &[&'static SupportedProtocolVersion],
    roots: &Roots,
    credentials: Option<&Credentials>,
    alpn: &[&[u8]],
) -> Result<ClientConfig, TlsError> {
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.store(), provider())
        .build()
        .map_err(|e| TlsError(rustls::Error::General(e.to_string())))?;
    let builder = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)?
        .with_webpki_verifier(verifier);
    let mut config = match credentials {
        Some(own) => {
            let mut config = builder.with_client_auth_cert(own.chain().to_vec(), own.key())?;
            config.resumption = Resumption::disabled();
            config
        }
        None => builder.with_no_client_auth(),
    };
    config.enable_early_data = false;
    config.alpn_protocols = alpn.iter().map(|p| p.to_vec()).collect();
    Ok(config)
}

/// The agent's side of the carriers QUIC and HTTP/2: TLS 1.3 with the agent's certificate.
///
/// # Errors
/// When rustls refuses the credentials.
pub fn client_tunnel(roots: &Roots, own: &Credentials, alpn: &[&[u8]]) -> Result<ClientConfig, TlsError> {
    client(ONLY_13, roots, Some(own), alpn)
}

/// The agent's side of the WebSocket carrier: TLS 1.2 or newer, because the other end may be a middlebox; ALPN
/// `http/1.1`. The agent's certificate is shown to who asks for one, and proved in the hello where nobody did.
///
/// # Errors
/// When rustls refuses the credentials.
pub fn client_websocket(roots: &Roots, own: &Credentials) -> Result<ClientConfig, TlsError> {
    client(ALL, roots, Some(own), &[ALPN_HTTP11])
}

/// A client of plain HTTPS (discovery of issuers, a proxy over TLS): TLS 1.2 or newer, ALPN `http/1.1`, no certificate.
///
/// # Errors
/// When rustls refuses the roots.
pub fn client_https(roots: &Roots) -> Result<ClientConfig, TlsError> {
    client(ALL, roots, None, &[ALPN_HTTP11])
}

/// As [`client_https`], with a client certificate (kubectl with an access certificate, in tests).
///
/// # Errors
/// When rustls refuses the credentials.
pub fn client_https_with(roots: &Roots, own: &Credentials, alpn: &[&[u8]]) -> Result<ClientConfig, TlsError> {
    client(ALL, roots, Some(own), alpn)
}

#[cfg(test)]
mod tests;
