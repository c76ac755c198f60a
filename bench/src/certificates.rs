//! Throw-away certificates of a run: one authority, and a certificate for each server, with all addresses that it is
//! reached by.

use std::path::Path;

use anyhow::Context;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, KeyUsagePurpose, SanType};
use rustls::{
    RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};

/// Writes `ca.crt`, and `<name>.crt` and `<name>.key` for each name and its addresses.
///
/// # Errors
/// An address that is none, a folder that cannot be written.
pub fn write(dir: &Path, servers: &[(&str, Vec<String>)]) -> anyhow::Result<()> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "bench");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    std::fs::write(dir.join("ca.crt"), authority.pem())?;
    for (name, addresses) in servers {
        let (key, mut params) = (KeyPair::generate()?, CertificateParams::default());
        params.distinguished_name.push(DnType::CommonName, *name);
        params.subject_alt_names = vec![SanType::DnsName((*name).try_into()?)];
        for address in addresses {
            params.subject_alt_names.push(SanType::IpAddress(address.parse()?));
        }
        let certificate = params.signed_by(&key, &authority)?;
        std::fs::write(dir.join(format!("{name}.crt")), certificate.pem())?;
        std::fs::write(dir.join(format!("{name}.key")), key.serialize_pem())?;
    }
    Ok(())
}

/// Those that a file of authorities makes trusted.
///
/// # Errors
/// A file that cannot be read.
pub fn roots(ca: &Path) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca).with_context(|| ca.display().to_string())? {
        roots.add(certificate?)?;
    }
    Ok(roots)
}
