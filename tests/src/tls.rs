//! Servers with an authority of their own, which nobody trusts who was not told of it.

use std::sync::Arc;

use rustls::{ServerConfig, pki_types::PrivateKeyDer};

/// A server at this address: its authority (PEM), and its side of TLS.
pub fn server(ip: &str, authority: &str) -> anyhow::Result<(String, Arc<ServerConfig>)> {
    server_at(&[ip], authority)
}

/// The same for a server at several addresses.
pub fn server_at(ips: &[&str], authority: &str) -> anyhow::Result<(String, Arc<ServerConfig>)> {
    let mut parameters = rcgen::CertificateParams::new(Vec::<String>::new())?;
    parameters.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    parameters.distinguished_name.push(rcgen::DnType::CommonName, authority);
    let authority = rcgen::CertifiedIssuer::self_signed(parameters, rcgen::KeyPair::generate()?)?;
    let key_pair = rcgen::KeyPair::generate()?;
    let mut names = vec!["localhost".to_owned()];
    names.extend(ips.iter().map(|ip| (*ip).to_owned()));
    let certificate = rcgen::CertificateParams::new(names)?.signed_by(&key_pair, &authority)?;
    let key = PrivateKeyDer::try_from(key_pair.serialize_der()).map_err(anyhow::Error::msg)?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)?;
    Ok((authority.pem(), Arc::new(config)))
}
