//! A certificate chain with its private key. The key does not print.

use std::{
    fmt,
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::{
    client::verify_server_name, crypto::aws_lc_rs::sign::any_supported_type, server::ParsedCertificate,
    sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use x509_parser::extensions::GeneralName;

use crate::file::{self, LoadError, Problem};

/// A certificate chain, the own certificate first, and the private key of that certificate; known to belong together.
#[derive(Clone)]
pub struct Credentials {
    key_pair: Arc<CertifiedKey>,
    key: Arc<PrivateKeyDer<'static>>,
}

impl Credentials {
    /// Reads two PEM files. Whoever replaced them may have been stopped when one of the two was in its place and the
    /// other still beside it: that one then counts.
    ///
    /// # Errors
    /// [`LoadError`] says which file, what is wrong with it, and what to do.
    pub fn load(certificate_file: &Path, key_file: &Path) -> Result<Self, LoadError> {
        let found = Self::load_as_is(certificate_file, key_file);
        if !matches!(&found, Err(LoadError { problem: Problem::Mismatch(_) | Problem::Read(_), .. })) {
            return found;
        }
        Self::halves(certificate_file, key_file)
            .find_map(|(_, certificate, key)| Self::load_as_is(&certificate, &key).ok())
            .map_or(found, Ok)
    }

    /// What a replacement may have left: the file that has not taken its place, and the pair that it is of.
    fn halves(certificate: &Path, key: &Path) -> impl Iterator<Item = (PathBuf, PathBuf, PathBuf)> {
        let (certificate, key) = (certificate.to_owned(), key.to_owned());
        let (new_certificate, new_key) = (file::beside(&certificate), file::beside(&key));
        [(certificate.clone(), new_certificate, key.clone()), (key, certificate, new_key)].into_iter()
    }

    /// Replaces both files, the key readable for its owner only. Whenever this is stopped, [`Self::load`] finds a pair:
    /// the one of before or the new one.
    pub(crate) fn replace(certificate: &Path, pem: &str, key: &Path, key_pem: &str) -> Result<(), LoadError> {
        // What was left the last time may be the only other half there is.
        if Self::load_as_is(certificate, key).is_err()
            && let Some((late, ..)) = Self::halves(certificate, key).find(|(_, c, k)| Self::load_as_is(c, k).is_ok())
        {
            file::take_place(&late)?;
        }
        file::write_beside(key, key_pem.as_bytes(), true)?;
        file::write_beside(certificate, pem.as_bytes(), false)?;
        file::take_place(key)?;
        file::take_place(certificate)
    }

    fn load_as_is(certificate_file: &Path, key_file: &Path) -> Result<Self, LoadError> {
        let chain = file::certificates(Some(certificate_file), &file::read(certificate_file)?)?;
        let key = file::private_key(Some(key_file), &file::read(key_file)?)?;
        Self::build(chain, key, Some(certificate_file), Some(key_file))
    }

    /// Reads PEM texts.
    ///
    /// # Errors
    /// As [`Credentials::load`].
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, LoadError> {
        Self::build(file::certificates(None, certificates)?, file::private_key(None, key)?, None, None)
    }

    /// From DER.
    ///
    /// # Errors
    /// As [`Credentials::load`].
    pub fn from_der(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Self, LoadError> {
        Self::build(chain, key, None, None)
    }

    pub(crate) fn build(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        chain_path: Option<&Path>,
        key_path: Option<&Path>,
    ) -> Result<Self, LoadError> {
        if chain.is_empty() {
            return Err(file::error(chain_path, Problem::NoCertificate));
        }
        let signing = any_supported_type(&key).map_err(|_| file::error(key_path, Problem::KeyKind))?;
        let pair = CertifiedKey::new(chain, signing);
        match pair.keys_match() {
            Ok(()) => Ok(Self { key_pair: Arc::new(pair), key: Arc::new(key) }),
            Err(rustls::Error::InconsistentKeys(_)) => {
                let other = chain_path.map_or_else(|| file::INLINE.to_owned(), |p| p.display().to_string());
                Err(file::error(key_path, Problem::Mismatch(other)))
            }
            Err(_) => Err(file::error(chain_path, Problem::Certificate(1))),
        }
    }

    /// The chain, the own certificate first.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.key_pair.cert
    }

    /// When the own certificate ends.
    pub fn not_after(&self) -> std::time::SystemTime {
        crate::facts::not_after(self.chain())
    }

    /// The names that the own certificate has as a server's: DNS names and IP addresses.
    pub fn server_names(&self) -> Vec<String> {
        let Ok((_, parsed)) = x509_parser::parse_x509_certificate(&self.chain()[0]) else { return Vec::new() };
        let Ok(Some(names)) = parsed.subject_alternative_name() else { return Vec::new() };
        let name = |name: &GeneralName<'_>| match name {
            GeneralName::DNSName(name) => Some((*name).to_owned()),
            GeneralName::IPAddress(bytes) => match <[u8; 4]>::try_from(*bytes) {
                Ok(four) => Some(IpAddr::from(four).to_string()),
                Err(_) => <[u8; 16]>::try_from(*bytes).ok().map(|all| IpAddr::from(all).to_string()),
            },
            _ => None,
        };
        names.value.general_names.iter().filter_map(name).collect()
    }

    /// Whether clients accept the own certificate for a server that they address by this DNS name or IP address.
    pub fn is_for(&self, host: &str) -> bool {
        let Ok(name) = ServerName::try_from(host.trim_matches(['[', ']'])) else { return false };
        ParsedCertificate::try_from(&self.chain()[0]).is_ok_and(|own| verify_server_name(&own, &name).is_ok())
    }

    /// A copy of the private key, for libraries that want to own it.
    pub fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }

    pub(crate) fn certified_key(&self) -> Arc<CertifiedKey> {
        self.key_pair.clone()
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("certificates", &self.chain().len()).finish_non_exhaustive()
    }
}
