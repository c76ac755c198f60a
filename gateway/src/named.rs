//! Clusters by TLS server name: `<base32 key>.<suffix>`, a name that needs no DNS. The gateway shows a certificate for
//! `*.<suffix>` then, which it issues with the built-in authority whatever certificate its own name has; users'
//! kubeconfigs carry that authority.
//!
//! The certificate is made anew at each start and lives in memory. While one authority follows another the old one's
//! stays in use, for users who do not know the new one yet: `roll-over begin` keeps it in the authority's folder, and
//! `roll-over finish` takes it out.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use certs::{
    Authority, AuthorityError, Bundle, Credentials, Issued, LoadError, NameCertificate, Roots, ServerCertificate,
    Validity,
};
use serde_json::json;

use crate::config::agents::AuthorityFiles;

/// How long a certificate lives; another one follows it in the second half.
const LIFE: Duration = Duration::from_secs(90 * 86_400);
const CERTIFICATE_FILE: &str = "names.crt";
const KEY_FILE: &str = "names.key";

/// Why there is no certificate for clusters' server names.
#[derive(Debug, thiserror::Error)]
pub enum NamedError {
    /// The authority cannot issue the certificate.
    #[error("cannot issue the certificate of clusters' server names")]
    Authority(#[from] AuthorityError),
    /// The authority's file.
    #[error("cannot read or write the certificate of clusters' server names")]
    Load(#[from] LoadError),
}

/// The certificate of clusters' server names, and whom users check it against.
pub struct Named {
    suffix: String,
    certificate: Arc<NameCertificate>,
    authorities: String,
}

impl Named {
    /// The one that is kept during a roll-over, else a new one.
    ///
    /// # Errors
    /// [`NamedError`].
    pub fn load(
        suffix: &str,
        files: &AuthorityFiles,
        authority: &Authority,
        other: Arc<ServerCertificate>,
        now: SystemTime,
    ) -> Result<Self, NamedError> {
        let shown = match kept(suffix, files, authority, now)? {
            Some(kept) => kept,
            None => issue(suffix, authority, LIFE, now)?.credentials().clone(),
        };
        let authorities = Bundle::read(&files.certificate)?.certificates_pem();
        Ok(Self { suffix: suffix.to_owned(), certificate: NameCertificate::new(suffix, &shown, other), authorities })
    }

    /// What clusters' server names end with.
    pub fn suffix(&self) -> &str {
        &self.suffix
    }

    /// What the listener shows.
    pub fn certificate(&self) -> Arc<NameCertificate> {
        Arc::clone(&self.certificate)
    }

    /// When the certificate that is shown ends.
    pub fn until(&self) -> SystemTime {
        self.certificate.not_after()
    }

    /// Issues another certificate if this one is in the second half of its life.
    ///
    /// # Errors
    /// [`AuthorityError`].
    pub fn renew(&self, authority: &Authority, now: SystemTime) -> Result<(), AuthorityError> {
        let end = self.until();
        // One that ends with its authority cannot be followed by a longer one.
        if now + LIFE / 2 < end || end >= authority.not_after() {
            return Ok(());
        }
        self.certificate.replace(issue(&self.suffix, authority, LIFE, now)?.credentials());
        Ok(())
    }
}

/// What names clusters have beside their keys in paths.
#[derive(Debug, Clone, Default)]
pub struct Names {
    /// The wildcard name under which clusters have host names.
    pub domain: Option<String>,
    /// The suffix of clusters' TLS server names.
    pub suffix: Option<String>,
}

/// How clusters are addressed at this gateway, as JSON that anybody may read.
pub fn addresses(names: &Names, named: Option<&Named>) -> Bytes {
    let why = match (named, &names.suffix) {
        (Some(_), _) => None,
        (None, None) => Some("[listen] server_name_suffix of the gateway is off"),
        (None, Some(_)) => Some("the gateway issues no certificates: it has no [agents] authority_dir"),
    };
    json!({
        "domain": names.domain,
        "serverNames": named.map(|named| json!({
            "suffix": named.suffix,
            "certificateAuthority": named.authorities,
        })),
        "noServerNames": why,
    })
    .to_string()
    .into()
}

/// Where the certificate and key of an authority that another one follows are kept.
pub fn kept_files(files: &AuthorityFiles) -> (PathBuf, PathBuf) {
    (files.certificate.with_file_name(CERTIFICATE_FILE), files.key.with_file_name(KEY_FILE))
}

/// Issues with an authority that another one is about to follow, for as long as `life`, and keeps it.
///
/// # Errors
/// [`NamedError`].
pub fn keep(
    suffix: &str,
    files: &AuthorityFiles,
    authority: &Authority,
    life: Duration,
    now: SystemTime,
) -> Result<(), NamedError> {
    let (certificate, key) = kept_files(files);
    issue(suffix, authority, life, now)?.save(&certificate, &key)?;
    Ok(())
}

/// Forgets what was kept.
///
/// # Errors
/// With the file that cannot be removed.
pub fn forget(files: &AuthorityFiles) -> Result<(), (PathBuf, std::io::Error)> {
    let (certificate, key) = kept_files(files);
    for path in [certificate, key] {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err((path, error)),
            _ => {}
        }
    }
    Ok(())
}

/// What was kept for this suffix, as long as it holds and its authority is trusted beside the one that issues now.
fn kept(
    suffix: &str,
    files: &AuthorityFiles,
    authority: &Authority,
    now: SystemTime,
) -> Result<Option<Credentials>, LoadError> {
    let (certificate, key) = kept_files(files);
    let Ok(kept) = Credentials::load(&certificate, &key) else { return Ok(None) };
    let trusted = Roots::load(&files.certificate)?.vouch_for_server(&kept) && !authority.is_issuer_of(&kept);
    Ok(Some(kept).filter(|kept| trusted && kept.server_names() == [wildcard(suffix)] && now < kept.not_after()))
}

fn issue(suffix: &str, authority: &Authority, life: Duration, now: SystemTime) -> Result<Issued, AuthorityError> {
    let mut validity = Validity::at(now, life, life);
    validity.not_after = validity.not_after.min(authority.not_after());
    authority.issue_server(&[&wildcard(suffix)], validity)
}

fn wildcard(suffix: &str) -> String {
    format!("*.{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUFFIX: &str = "clusters.test";
    const DAY: Duration = Duration::from_secs(86_400);

    fn site(dir: &std::path::Path) -> (AuthorityFiles, Authority, Arc<ServerCertificate>) {
        let authority = Authority::create("test", Validity::days(400)).unwrap();
        authority.save(dir).unwrap();
        let own = authority.issue_server(&["localhost"], Validity::days(9)).unwrap();
        let files =
            AuthorityFiles { certificate: dir.join(Authority::CERTIFICATE_FILE), key: dir.join(Authority::KEY_FILE) };
        (files, authority, ServerCertificate::new(own.credentials()))
    }

    #[test]
    fn the_certificate_of_names_is_followed_by_another_from_half_of_its_life_on() {
        let dir = tempfile::tempdir().unwrap();
        let (files, authority, own) = site(dir.path());
        let now = SystemTime::now();
        let named = Named::load(SUFFIX, &files, &authority, own, now).unwrap();
        let first = named.until();
        assert!(first <= now + LIFE);
        named.renew(&authority, now + 44 * DAY).unwrap();
        assert_eq!(named.until(), first);
        named.renew(&authority, now + 46 * DAY).unwrap();
        assert!(named.until() > first + 40 * DAY);
        // Never longer than its authority, and not again and again at the authority's end.
        named.renew(&authority, now + 350 * DAY).unwrap();
        let last = named.until();
        assert!(last <= authority.not_after());
        named.renew(&authority, now + 399 * DAY).unwrap();
        assert_eq!(named.until(), last);
    }

    #[test]
    fn a_kept_certificate_counts_for_its_suffix_its_authority_and_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let (files, old, _) = site(dir.path());
        let now = SystemTime::now();
        keep(SUFFIX, &files, &old, 100 * DAY, now).unwrap();
        assert!(kept(SUFFIX, &files, &old, now).unwrap().is_none(), "its authority still issues");
        let next = Authority::create("next", Validity::days(400)).unwrap();
        assert!(kept(SUFFIX, &files, &next, now).unwrap().is_some());
        assert!(kept("other.test", &files, &next, now).unwrap().is_none());
        assert!(kept(SUFFIX, &files, &next, now + 101 * DAY).unwrap().is_none());
        std::fs::write(&files.certificate, next.certificate_pem()).unwrap();
        assert!(kept(SUFFIX, &files, &next, now).unwrap().is_none(), "its authority is not trusted any more");
        forget(&files).unwrap();
        forget(&files).unwrap();
        assert!(!kept_files(&files).0.exists() && !kept_files(&files).1.exists());
    }

    #[test]
    fn what_users_are_told_is_certificates_and_nothing_else_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let (files, authority, own) = site(dir.path());
        let key = std::fs::read_to_string(&files.key).unwrap();
        std::fs::write(&files.certificate, format!("# ours\n{key}{}", authority.certificate_pem())).unwrap();
        let named = Named::load(SUFFIX, &files, &authority, own, SystemTime::now()).unwrap();
        let told = addresses(&Names { domain: None, suffix: Some(SUFFIX.to_owned()) }, Some(&named));
        let told = String::from_utf8(told.to_vec()).unwrap();
        assert!(told.contains("BEGIN CERTIFICATE") && !told.contains("PRIVATE") && !told.contains("ours"), "{told}");
    }
}
