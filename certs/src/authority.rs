//! A certificate authority: created once, kept in a directory as `ca.crt` and `ca.key`, issues certificates of all
//! roles. ECDSA P-256 throughout, because a storm of reconnecting agents pays for signatures.

use std::{fmt, path::Path, time::SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SanType, SerialNumber, SubjectPublicKeyInfo, string::Ia5String,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, TrustAnchor};
use types::random;

use crate::{
    bundle,
    credentials::Credentials,
    facts::{self, ACCESS, AGENT, GATEWAY, Validity},
    file::{self, LoadError, Problem},
    request::AgentRequest,
    roots::Roots,
};

/// Tag and length of a SEQUENCE at most, in bytes.
const OUTER_BYTES: usize = 6;

/// Why a certificate was not issued.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A name that no certificate can hold.
    #[error("{0:?} is not a valid {1}")]
    Name(String, &'static str),
    /// The library refused.
    #[error("cannot issue the certificate")]
    Issue(#[from] rcgen::Error),
    /// No randomness, or what was issued does not read back.
    #[error("cannot make a certificate: {0}")]
    Internal(&'static str),
}

/// A certificate authority with its key.
pub struct Authority {
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// A new certificate with its key. The key does not print.
#[derive(Clone)]
pub struct Issued {
    /// The certificate as PEM.
    pub certificate_pem: String,
    key_pem: String,
    credentials: Credentials,
}

/// Whose certificate an agent's is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AgentName<'a> {
    /// The cluster's id: the certificate's URI.
    pub cluster_id: &'a str,
    /// The object id of the cluster's identity: its common name.
    pub principal: &'a str,
    /// Which onboarding key it rests on: its organisational unit. With another key of the cluster it is nothing.
    pub onboarding: &'a str,
}

/// A new certificate for a key that is somebody else's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// The certificate as PEM.
    pub certificate_pem: String,
    /// When it is valid, in whole seconds as it says itself.
    pub validity: Validity,
    /// The serial number in lower-case hex.
    pub serial: String,
}

impl Issued {
    /// The private key as PEM (PKCS#8).
    pub fn key_pem(&self) -> &str {
        &self.key_pem
    }

    /// The pair, as the TLS configurations want it.
    pub fn credentials(&self) -> &Credentials {
        &self.credentials
    }

    /// Writes both as PEM; the key is readable for its owner only. Whoever is stopped half-way has the old pair or the
    /// new one.
    ///
    /// # Errors
    /// [`LoadError`] with [`Problem::Write`].
    pub fn save(&self, certificate_file: &Path, key_file: &Path) -> Result<(), LoadError> {
        Credentials::replace(certificate_file, &self.certificate_pem, key_file, &self.key_pem)
    }
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued").field("not_after", &self.credentials.not_after()).finish_non_exhaustive()
    }
}

impl Authority {
    /// Its certificate, in its directory.
    pub const CERTIFICATE_FILE: &str = "ca.crt";
    /// Its key, in its directory.
    pub const KEY_FILE: &str = "ca.key";

    /// A new authority with this common name. It may not have authorities below it.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub fn create(name: &str, validity: Validity) -> Result<Self, AuthorityError> {
        if !facts::is_name(name) {
            return Err(AuthorityError::Name(name.to_owned(), "name of an authority"));
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = parameters(name, validity)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key)?;
        Ok(Self {
            certificate: certificate.der().clone(),
            certificate_pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        })
    }

    /// Reads `ca.crt` and `ca.key` of a directory.
    ///
    /// # Errors
    /// [`LoadError`] says which file and what to do.
    pub fn load(dir: &Path) -> Result<Self, LoadError> {
        Self::load_files(&dir.join(Self::CERTIFICATE_FILE), &dir.join(Self::KEY_FILE))
    }

    /// Reads the two files of an authority. While one follows another the first holds both: it is the one whose key it
    /// is.
    ///
    /// # Errors
    /// [`LoadError`] says which file and what to do.
    pub fn load_files(certificate_file: &Path, key_file: &Path) -> Result<Self, LoadError> {
        let text = file::read(certificate_file)?;
        let all = file::certificates(Some(certificate_file), &text)?;
        Roots::load(certificate_file)?;
        let key = file::private_key(Some(key_file), &file::read(key_file)?)?;
        let pair = |one: &CertificateDer<'static>| {
            Credentials::build(vec![one.clone()], key.clone_key(), Some(certificate_file), Some(key_file))
        };
        let own = all.iter().position(|one| pair(one).is_ok()).unwrap_or_default();
        let certificate = pair(&all[own])?.chain()[0].clone();
        let key = KeyPair::try_from(&key).map_err(|_| file::error(Some(key_file), Problem::KeyKind))?;
        let issuer = Issuer::from_ca_cert_der(&certificate, key)
            .map_err(|_| file::error(Some(certificate_file), Problem::Certificate(own + 1)))?;
        let text = String::from_utf8_lossy(&text);
        let certificate_pem = bundle::blocks(&text).nth(own).map(|block| format!("{block}\n")).unwrap_or_default();
        Ok(Self { certificate, certificate_pem, issuer })
    }

    /// Reads an authority's certificate and key from PEM.
    ///
    /// # Errors
    /// [`LoadError`] if they do not fit together or are none of an authority.
    pub fn from_pem(certificate_pem: &str, key_pem: &str) -> Result<Self, LoadError> {
        let credentials = Credentials::from_pem(certificate_pem.as_bytes(), key_pem.as_bytes())?;
        let certificate = credentials.chain()[0].clone();
        Roots::from_der(vec![certificate.clone()])?;
        let key = file::private_key(None, key_pem.as_bytes())?;
        let key = KeyPair::try_from(&key).map_err(|_| file::error(None, Problem::KeyKind))?;
        let issuer =
            Issuer::from_ca_cert_der(&certificate, key).map_err(|_| file::error(None, Problem::Certificate(1)))?;
        Ok(Self { certificate, certificate_pem: certificate_pem.to_owned(), issuer })
    }

    /// Its private key as PEM (PKCS#8), for a caller that keeps it in a Secret and not in files.
    pub fn key_pem(&self) -> String {
        self.issuer.key().serialize_pem()
    }

    /// The certificate, which others trust.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// The common name of its certificate.
    pub fn name(&self) -> Option<String> {
        facts::authority_facts(&self.certificate).0
    }

    /// Writes its key alone, readable for its owner only.
    ///
    /// # Errors
    /// [`LoadError`] with [`Problem::Write`].
    pub fn save_key(&self, path: &Path) -> Result<(), LoadError> {
        file::write(path, self.issuer.key().serialize_pem().as_bytes(), true)
    }

    /// Writes `ca.crt` and `ca.key` (readable for its owner only) into a directory, which is made if it is not there.
    ///
    /// # Errors
    /// [`LoadError`] with [`Problem::Write`].
    pub fn save(&self, dir: &Path) -> Result<(), LoadError> {
        std::fs::create_dir_all(dir).map_err(|e| file::error(Some(dir), Problem::Write(e.kind())))?;
        file::write(&dir.join(Self::KEY_FILE), self.issuer.key().serialize_pem().as_bytes(), true)?;
        file::write(&dir.join(Self::CERTIFICATE_FILE), self.certificate_pem.as_bytes(), false)
    }

    /// The authority's certificate as PEM: what others trust.
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    pub(crate) fn subject_and_key(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        let (_, parsed) = x509_parser::parse_x509_certificate(&self.certificate).ok()?;
        Some((parsed.subject().as_raw().to_vec(), parsed.public_key().raw.to_vec()))
    }

    /// When the authority's own certificate ends.
    pub fn not_after(&self) -> SystemTime {
        facts::not_after(std::slice::from_ref(&self.certificate))
    }

    /// Whether this authority signed a server's certificate, which may have ended. Its name alone says nothing: the
    /// authority that follows may be called the same.
    pub fn is_issuer_of(&self, credentials: &Credentials) -> bool {
        self.roots().is_ok_and(|roots| roots.vouch_for_server(credentials))
    }

    /// Trust in this authority alone.
    ///
    /// # Errors
    /// [`LoadError`] if the certificate is no authority's, which [`Authority::create`] and [`Authority::load`] exclude.
    pub fn roots(&self) -> Result<Roots, LoadError> {
        Roots::from_der(vec![self.certificate.clone()])
    }

    /// A server certificate for DNS names (also `*.`) and IP addresses.
    ///
    /// # Errors
    /// [`AuthorityError::Name`] for no name at all or one that is neither.
    pub fn issue_server(&self, names: &[&str], validity: Validity) -> Result<Issued, AuthorityError> {
        let first = names.first().ok_or_else(|| AuthorityError::Name(String::new(), "server name"))?;
        // A common name holds 64 characters at the most; clients read the alternative names alone.
        let mut params = parameters(first.get(..first.len().min(64)).unwrap_or("server"), validity)?;
        for name in names {
            params.subject_alt_names.push(server_name(name)?);
        }
        self.issue(params, ExtendedKeyUsagePurpose::ServerAuth)
    }

    /// The certificate of a client that is known by this common name and has no other role.
    ///
    /// # Errors
    /// [`AuthorityError::Name`] for a name that no certificate can hold.
    pub fn issue_client(&self, name: &str, validity: Validity) -> Result<Issued, AuthorityError> {
        if !facts::is_name(name) {
            return Err(AuthorityError::Name(name.to_owned(), "name of a client"));
        }
        self.issue(parameters(name, validity)?, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// The certificate of an agent of this cluster: a tunnel.
    ///
    /// # Errors
    /// [`AuthorityError::Name`] for an id that no certificate can hold.
    pub fn issue_agent(&self, cluster_id: &str, validity: Validity) -> Result<Issued, AuthorityError> {
        let params = with_uri(parameters("towline agent", validity)?, AGENT, cluster_id)?;
        self.issue(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// The certificate of the agent with this request. Nothing of the request but its key goes into it, and it does not
    /// outlive the authority.
    ///
    /// # Errors
    /// [`AuthorityError::Name`] for a name that no certificate can hold.
    pub fn sign_agent(
        &self,
        request: &AgentRequest,
        name: AgentName<'_>,
        validity: Validity,
    ) -> Result<Signed, AuthorityError> {
        for (text, what) in [(name.principal, "object id"), (name.onboarding, "fingerprint")] {
            if !facts::is_name(text) {
                return Err(AuthorityError::Name(text.to_owned(), what));
            }
        }
        let own_end = facts::not_after(std::slice::from_ref(&self.certificate));
        let validity = Validity { not_after: validity.not_after.min(own_end), ..validity };
        let mut params = with_uri(parameters(name.principal, validity)?, AGENT, name.cluster_id)?;
        params.distinguished_name.push(DnType::OrganizationalUnitName, name.onboarding);
        let params = of_role(params, ExtendedKeyUsagePurpose::ClientAuth);
        let certificate = params.signed_by(&SubjectPublicKeyInfo::from_der(&request.public_key)?, &self.issuer)?;
        let (validity, serial) =
            facts::facts(certificate.der()).ok_or(AuthorityError::Internal("what was issued does not read back"))?;
        Ok(Signed { certificate_pem: certificate.pem(), validity, serial })
    }

    /// The right of a person to reach this cluster with a service-account token; short-lived.
    ///
    /// # Errors
    /// [`AuthorityError::Name`] for an id or a name that no certificate can hold.
    pub fn issue_access(&self, cluster_id: &str, name: &str, validity: Validity) -> Result<Issued, AuthorityError> {
        self.issue(access(cluster_id, name, validity)?, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// The same, which holds as long as its holder has the right: whoever takes it reads [`crate::Peer::holder`] and
    /// asks.
    ///
    /// # Errors
    /// As [`Self::issue_access`], also for a holder that is too long.
    pub fn issue_access_for(
        &self,
        cluster_id: &str,
        name: &str,
        holder: &str,
        validity: Validity,
    ) -> Result<Issued, AuthorityError> {
        if !facts::is_text(holder, facts::HOLDER_BYTES) {
            return Err(AuthorityError::Name(holder.to_owned(), "holder of an access certificate"));
        }
        let mut params = access(cluster_id, name, validity)?;
        params.distinguished_name.push(DnType::OrganizationalUnitName, holder);
        self.issue(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    /// The certificate by which a replica of the gateway is known to the others, which it issues to itself. It does not
    /// outlive the authority.
    ///
    /// # Errors
    /// [`AuthorityError::Name`] for what is no name of a replica.
    pub fn issue_gateway(&self, replica: &str, validity: Validity) -> Result<Issued, AuthorityError> {
        if !facts::is_replica(replica) {
            return Err(AuthorityError::Name(replica.to_owned(), "name of a replica"));
        }
        let validity = Validity { not_after: validity.not_after.min(self.not_after()), ..validity };
        let params = with_uri(parameters("towline gateway", validity)?, GATEWAY, replica)?;
        self.issue(params, ExtendedKeyUsagePurpose::ClientAuth)
    }

    fn issue(&self, params: CertificateParams, purpose: ExtendedKeyUsagePurpose) -> Result<Issued, AuthorityError> {
        self.issue_as_is(&of_role(params, purpose))
    }

    /// Issues what the parameters say: tests make wrong certificates with it.
    pub(crate) fn issue_as_is(&self, params: &CertificateParams) -> Result<Issued, AuthorityError> {
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let der = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let credentials = Credentials::from_der(vec![certificate.der().clone()], der)
            .map_err(|_| AuthorityError::Internal("what was issued does not read back"))?;
        Ok(Issued { certificate_pem: certificate.pem(), key_pem: key.serialize_pem(), credentials })
    }
}

pub(crate) fn parameters(common_name: &str, validity: Validity) -> Result<CertificateParams, AuthorityError> {
    let mut serial = random::bytes::<16>().map_err(|_| AuthorityError::Internal("no randomness"))?;
    // RFC 5280 4.1.2.2: positive, and of one length.
    serial[0] = serial[0] & 0x7f | 0x40;
    let mut params = CertificateParams::default();
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.not_before = validity.not_before.into();
    params.not_after = validity.not_after.into();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common_name);
    Ok(params)
}

pub(crate) fn of_role(mut params: CertificateParams, purpose: ExtendedKeyUsagePurpose) -> CertificateParams {
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![purpose];
    params.use_authority_key_identifier_extension = true;
    params
}

fn access(cluster_id: &str, name: &str, validity: Validity) -> Result<CertificateParams, AuthorityError> {
    if !facts::is_name(name) {
        return Err(AuthorityError::Name(name.to_owned(), "name of a person"));
    }
    with_uri(parameters(name, validity)?, ACCESS, cluster_id)
}

fn with_uri(mut params: CertificateParams, role: &str, cluster_id: &str) -> Result<CertificateParams, AuthorityError> {
    let wrong = || AuthorityError::Name(cluster_id.to_owned(), "cluster id");
    if !facts::is_id(cluster_id) {
        return Err(wrong());
    }
    let uri = Ia5String::try_from(format!("{role}{}", crate::uri::encoded(cluster_id))).map_err(|_| wrong())?;
    params.subject_alt_names = vec![SanType::URI(uri)];
    Ok(params)
}

pub(crate) fn server_name(name: &str) -> Result<SanType, AuthorityError> {
    if let Ok(address) = name.parse() {
        return Ok(SanType::IpAddress(address));
    }
    let wrong = || AuthorityError::Name(name.to_owned(), "server name");
    let plain = name.strip_prefix("*.").unwrap_or(name);
    rustls_pki_types::DnsName::try_from(plain).map_err(|_| wrong())?;
    Ok(SanType::DnsName(Ia5String::try_from(name).map_err(|_| wrong())?))
}

impl Roots {
    /// Whether certificates of an authority are trusted: whether its name with its key is among these.
    pub fn holds(&self, authority: &Authority) -> bool {
        let Some((subject, key)) = authority.subject_and_key() else { return false };
        // Anchors have both without the outer SEQUENCE.
        let same = |anchor: &[u8], whole: &[u8]| whole.ends_with(anchor) && whole.len() <= anchor.len() + OUTER_BYTES;
        let holds = |root: &TrustAnchor<'_>| same(&root.subject, &subject) && same(&root.subject_public_key_info, &key);
        self.store().roots.iter().any(holds)
    }
}

#[cfg(test)]
mod tests;
