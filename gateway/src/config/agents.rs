//! `[agents]`: whom agents' certificates come from, and what agents get.

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use certs::{Authority, LoadError, Roots};
use daemon::settings::{Faults, Section};
use url::Url;

/// The longest that an agent's certificate is good for (docs/features.md R7), and the default.
pub const LONGEST_CERTIFICATE: Duration = Duration::from_secs(90 * 86_400);
/// The shortest: an agent renews it from half of its life on.
const SHORTEST_CERTIFICATE: Duration = Duration::from_secs(60);

/// How long roles and assignments hold without news: the default, and what an operator may set (docs/features.md Z8).
pub const STATEMENT_LIFETIME: Duration = Duration::from_secs(3600);
/// See [`STATEMENT_LIFETIME`]. An agent asks for a new statement every 20 minutes.
const STATEMENT_LIFETIMES: RangeInclusive<Duration> = Duration::from_secs(1800)..=Duration::from_secs(7 * 86_400);

/// Agents' certificates and tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agents {
    /// Authorities that agents' and access certificates come from, PEM: several while one follows another.
    pub ca_file: PathBuf,
    /// The one that this gateway issues with; without it certificates come from elsewhere.
    pub authority: Option<AuthorityFiles>,
    /// How long the certificates are good for that it issues.
    pub certificate_lifetime: Duration,
    /// How long a cluster may decide by the roles and assignments that it was told last, without hearing of the
    /// gateway: an attacker that keeps news from an agent keeps a withdrawn right alive no longer than this.
    pub statement_lifetime: Duration,
    /// Audiences beside the gateway's URL that clusters get tokens for (docs/features.md R9).
    pub token_audiences: Vec<String>,
}

/// An authority's certificate and key, PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthorityFiles {
    /// Path of the certificate.
    pub certificate: PathBuf,
    /// Path of the private key.
    pub key: PathBuf,
}

impl Agents {
    /// Trust in authorities alone: this gateway issues nothing.
    pub fn trusting(ca_file: PathBuf) -> Self {
        let (authority, token_audiences) = (None, Vec::new());
        let (certificate_lifetime, statement_lifetime) = (LONGEST_CERTIFICATE, STATEMENT_LIFETIME);
        Self { ca_file, authority, certificate_lifetime, statement_lifetime, token_audiences }
    }

    /// Reads the table `[agents]`.
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
        let statement_lifetime = section.duration("statement_lifetime", STATEMENT_LIFETIMES, faults);
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
        let statement_lifetime = statement_lifetime.unwrap_or(STATEMENT_LIFETIME);
        Some(Self { ca_file: ca_file?, authority, certificate_lifetime, statement_lifetime, token_audiences })
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
