//! A PEM file of several authorities, which grows and shrinks while one follows another. What else is in it stays.

use std::path::{Path, PathBuf};

use rustls_pki_types::{CertificateDer, pem::PemObject as _};

use crate::file::{self, LoadError};

const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
const END: &str = "-----END CERTIFICATE-----";

/// The file as it was read, and as it is to be.
#[derive(Debug, Clone)]
pub struct Bundle {
    path: PathBuf,
    text: String,
}

impl Bundle {
    /// Reads a file that holds one certificate at least.
    ///
    /// # Errors
    /// [`LoadError`] if it cannot be read or holds something else.
    pub fn read(path: &Path) -> Result<Self, LoadError> {
        let bytes = file::read(path)?;
        file::certificates(Some(path), &bytes)?;
        Ok(Self { path: path.to_owned(), text: String::from_utf8_lossy(&bytes).into_owned() })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The certificates in it, in order.
    pub fn certificates(&self) -> Vec<CertificateDer<'static>> {
        blocks(&self.text).filter_map(|block| CertificateDer::from_pem_slice(block.as_bytes()).ok()).collect()
    }

    /// The certificates in it as PEM, and nothing else of the file.
    pub fn certificates_pem(&self) -> String {
        blocks(&self.text).map(|block| format!("{block}\n")).collect()
    }

    /// Whether a certificate is in it.
    pub fn holds(&self, certificate: &CertificateDer<'_>) -> bool {
        self.certificates().iter().any(|other| other == certificate)
    }

    /// Puts a certificate before the others, if it is not among them.
    pub fn add(&mut self, pem: &str) {
        if CertificateDer::from_pem_slice(pem.as_bytes()).is_ok_and(|new| !self.holds(&new)) {
            self.text = format!("{}\n{}", pem.trim_end(), self.text);
        }
    }

    /// Takes a certificate out, wherever it is.
    pub fn remove(&mut self, certificate: &CertificateDer<'_>) {
        let is = |block: &&str| CertificateDer::from_pem_slice(block.as_bytes()).is_ok_and(|one| one == *certificate);
        let out: Vec<String> = blocks(&self.text).filter(is).map(str::to_owned).collect();
        for block in out {
            self.text = self.text.replace(&format!("{block}\n"), "").replace(&block, "");
        }
    }

    /// Writes it, as a whole.
    ///
    /// # Errors
    /// [`LoadError`] with [`crate::Problem::Write`].
    pub fn write(&self) -> Result<(), LoadError> {
        file::write(&self.path, self.text.as_bytes(), false)
    }
}

/// The blocks of certificates in a text.
pub(crate) fn blocks(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices(BEGIN).filter_map(|(at, _)| {
        let end = text[at..].find(END)?;
        Some(&text[at..at + end + END.len()])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Authority, Roots, Validity};

    #[test]
    fn r8_authorities_come_and_go_and_what_else_is_in_the_file_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ca.crt");
        let [one, two] = ["one", "two"].map(|name| Authority::create(name, Validity::days(9)).unwrap());
        std::fs::write(&path, format!("# ours\n{}", one.certificate_pem())).unwrap();
        let mut bundle = Bundle::read(&path).unwrap();
        for _ in 0..2 {
            bundle.add(two.certificate_pem());
        }
        assert_eq!(bundle.certificates(), [two.certificate().clone(), one.certificate().clone()]);
        bundle.write().unwrap();
        let both = Roots::load(&path).unwrap();
        assert!(both.holds(&one) && both.holds(&two));
        let mut bundle = Bundle::read(&path).unwrap();
        bundle.remove(one.certificate());
        bundle.write().unwrap();
        assert_eq!(bundle.certificates_pem(), format!("{}\n", two.certificate_pem().trim_end()));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains("# ours") && Bundle::read(&path).unwrap().certificates().len() == 1, "{text}");
        std::fs::write(&path, "nothing").unwrap();
        assert!(Bundle::read(&path).unwrap_err().to_string().contains("no certificate"));
    }
}
