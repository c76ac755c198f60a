//! `[agents]`: whom agents' certificates come from, and what agents get.

use std::{path::PathBuf, time::Duration};

use certs::{Authority, LoadError, Roots};
use daemon::settings::{Faults, Section};
use url::Url;

/// The longest that an agent's certificate is good for (docs/features.md R7), and the default.
pub const LONGEST_CERTIFICATE: Duration = Duration::from_secs(90 * 86_400);
/// The shortest: an agent renews it from half of its life on.
const SHORTEST_CERTIFICATE: Duration = Duration::from_secs(60);

/// Agents' certificates and tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agents {
    /// Authorities that agents' and access certificates come from, PEM: several while one follows another.
    pub ca_file: PathBuf,
    /// The one that this gateway issues with; without it certificates come from elsewhere.
    pub authority: Option<AuthorityFiles>,
    /// How long the certificates are good for that it issues.
    pub certificate_lifetime: Duration,
    /// Audiences beside the gateway's URL that clusters get tokens for (docs/features.md R9).
    pub token_audiences: Vec<String>,
}

/// An authority's certificate and key, PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorityFiles {
    /// Its certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl Agents {
    /// Trust in authorities alone: this gateway issues nothing.
    pub fn trusting(ca_file: PathBuf) -> Self {
        let (authority, token_audiences) = (None, Vec::new());
        Self { ca_file, authority, certificate_lifetime: LONGEST_CERTIFICATE, token_audiences }
    }

    /// Reads `[agents]`.
    pub fn read(mut section: Section, faults: &mut Faults) -> Option<Self> {
        let ca_file = section.required_path("ca_file", "the PEM file of the CA of agents' certificates", faults);
        let roots = ca_file.as_deref().map(Roots::load);
        if let Some(Err(error)) = &roots {
            faults.push(section.key("ca_file"), error);
        }
        let authority = section.path("authority_dir", faults).map(|dir| AuthorityFiles {
            certificate: dir.join(Authority::CERTIFICATE_FILE),
            key: dir.join(Authority::KEY_FILE),
        });
        if let Some(files) = &authority {
            let known = roots.and_then(Result::ok);
            match (files.load(), known) {
                (Ok(authority), Some(known)) if !known.holds(&authority) => faults.push(
                    section.key("authority_dir"),
                    "is not one of the authorities in ca_file: agents with its certificates would be refused; add its ca.crt there",
                ),
                (Err(error), _) => faults.push(section.key("authority_dir"), error),
                _ => {}
            }
        }
        let lifetime = SHORTEST_CERTIFICATE..=LONGEST_CERTIFICATE;
        let certificate_lifetime = section.duration("certificate_lifetime", lifetime, faults);
        let token_audiences = section.texts("token_audiences", faults).unwrap_or_default();
        let scheme = |text: &String| Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "https" | "api" | "urn"));
        if let Some(bad) = token_audiences.iter().find(|audience| !scheme(audience)) {
            faults.push(
                section.key("token_audiences"),
                format_args!("{bad:?} must be an address such as https://vault.example.org or api://vault"),
            );
        }
        section.end(faults);
        let certificate_lifetime = certificate_lifetime.unwrap_or(LONGEST_CERTIFICATE);
        Some(Self { ca_file: ca_file?, authority, certificate_lifetime, token_audiences })
    }
}

impl AuthorityFiles {
    /// Reads them.
    ///
    /// # Errors
    /// [`LoadError`] says which file and what to do.
    pub fn load(&self) -> Result<Authority, LoadError> {
        Authority::load_files(&self.certificate, &self.key)
    }
}
