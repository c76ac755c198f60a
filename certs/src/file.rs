//! Reading and writing of PEM files. An error names the file, what is wrong with it, and what to do; it never holds
//! anything of the contents, for a key may be among them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use daemon::atomic::{self, AtomicError, PRIVATE, PUBLIC};
use rustls_pki_types::{
    CertificateDer, PrivateKeyDer,
    pem::{self, PemObject},
};

/// The largest PEM file that is read, in bytes: all of Mozilla's roots are about 220 KB.
pub const FILE_BYTES: u64 = 1024 * 1024;

/// A certificate or key that could not be read: where it was, what is wrong, what to do.
#[derive(Debug, thiserror::Error)]
#[error("{source_name}: {problem}")]
pub struct LoadError {
    /// The file, or `(inline)` for PEM text that came from elsewhere.
    pub source_name: String,
    /// What is wrong and what to do.
    pub problem: Problem,
}

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The file cannot be read.
    #[error("cannot be read ({0}); check that it exists and that this user may read it")]
    Read(io::ErrorKind),
    /// The file cannot be written.
    #[error("cannot be written ({0}); check the directory and its permissions")]
    Write(io::ErrorKind),
    /// Larger than [`FILE_BYTES`].
    #[error("is larger than {FILE_BYTES} bytes; this is not a PEM file of certificates")]
    TooLarge,
    /// The PEM is broken.
    #[error("is not well-formed PEM ({0}); each block needs its BEGIN line, base64 lines and its END line")]
    Pem(&'static str),
    /// No certificate in the file.
    #[error("holds no certificate; expected at least one block BEGIN CERTIFICATE")]
    NoCertificate,
    /// No private key in the file.
    #[error(
        "holds no private key; expected one block BEGIN PRIVATE KEY, BEGIN EC PRIVATE KEY or BEGIN RSA PRIVATE KEY without a passphrase"
    )]
    NoKey,
    /// Several private keys in the file.
    #[error("holds several private keys; expected exactly one")]
    SeveralKeys,
    /// A block that is no X.509 certificate.
    #[error("certificate {0} in it is not a valid X.509 certificate; export it again as PEM")]
    Certificate(usize),
    /// A root that is no authority.
    #[error(
        "certificate {0} in it is not a certificate authority (basicConstraints CA:TRUE); expected the authority's certificate, not a server's or client's"
    )]
    NotAnAuthority(usize),
    /// The key's kind is not supported.
    #[error("the private key is of a kind that is not supported; use ECDSA P-256 or RSA of at least 2048 bits")]
    KeyKind,
    /// The key belongs to another certificate.
    #[error("the private key does not belong to the first certificate of {0}; give the two files of the same pair")]
    Mismatch(String),
}

pub(crate) const INLINE: &str = "(inline)";

pub(crate) fn error(path: Option<&Path>, problem: Problem) -> LoadError {
    let source_name = path.map_or_else(|| INLINE.to_owned(), |p| p.display().to_string());
    LoadError { source_name, problem }
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, LoadError> {
    let failed = |e: io::Error| error(Some(path), Problem::Read(e.kind()));
    if fs::metadata(path).map_err(failed)?.len() > FILE_BYTES {
        return Err(error(Some(path), Problem::TooLarge));
    }
    fs::read(path).map_err(failed)
}

/// What a file of a pair is called until it takes the place of the present one.
pub(crate) fn beside(path: &Path) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    beside.into()
}

/// Replaces a file at once; a secret is readable for its owner only.
pub(crate) fn write(path: &Path, contents: &[u8], secret: bool) -> Result<(), LoadError> {
    atomic::replace(path, contents, mode(secret)).map_err(|e| not_written(path, &e))
}

/// Writes one file of a pair under the name [`beside`] its own, in place of what an interrupted replacement left there.
/// The file is on the disk when this returns.
pub(crate) fn write_beside(path: &Path, contents: &[u8], secret: bool) -> Result<(), LoadError> {
    let beside = beside(path);
    let _ = fs::remove_file(&beside);
    atomic::write_new(&beside, contents, mode(secret)).map_err(|e| not_written(path, &e))
}

/// Puts in place what [`write_beside`] wrote: wholly, or not at all.
pub(crate) fn take_place(path: &Path) -> Result<(), LoadError> {
    atomic::rename(&beside(path), path).map_err(|e| not_written(path, &e))
}

fn mode(secret: bool) -> u32 {
    if secret { PRIVATE } else { PUBLIC }
}

fn not_written(path: &Path, e: &AtomicError) -> LoadError {
    error(Some(path), Problem::Write(e.source.kind()))
}

fn pem_problem(e: &pem::Error) -> Problem {
    Problem::Pem(match e {
        pem::Error::MissingSectionEnd { .. } => "a block has no END line",
        pem::Error::IllegalSectionStart { .. } => "a BEGIN line is malformed",
        pem::Error::Base64Decode(_) => "a block is not base64",
        pem::Error::SectionTooLarge => "a block is too large",
        _ => "unreadable",
    })
}

pub(crate) fn certificates(path: Option<&Path>, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, LoadError> {
    let all =
        CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(|e| error(path, pem_problem(&e)))?;
    if all.is_empty() {
        return Err(error(path, Problem::NoCertificate));
    }
    for (at, one) in all.iter().enumerate() {
        if !matches!(x509_parser::parse_x509_certificate(one), Ok((rest, _)) if rest.is_empty()) {
            return Err(error(path, Problem::Certificate(at + 1)));
        }
    }
    Ok(all)
}

pub(crate) fn private_key(path: Option<&Path>, pem: &[u8]) -> Result<PrivateKeyDer<'static>, LoadError> {
    let mut all = PrivateKeyDer::pem_slice_iter(pem);
    let first = match all.next() {
        Some(Ok(key)) => key,
        Some(Err(e)) => return Err(error(path, pem_problem(&e))),
        None => return Err(error(path, Problem::NoKey)),
    };
    match all.next() {
        None => Ok(first),
        Some(_) => Err(error(path, Problem::SeveralKeys)),
    }
}
