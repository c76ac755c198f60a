//! Secrets that are read from a file or from standard input, and not from the command line, which others can read.

use std::{io::Read, path::Path};

use anyhow::{Context, bail};
use secrecy::SecretString;

/// Bytes of a file with a secret.
const SECRET_BYTES: u64 = 256 * 1024;

/// Reads a secret from a file or, for `-`, from standard input; the line's end is not part of it.
pub fn read_secret(file: &Path) -> anyhow::Result<SecretString> {
    let mut text = String::new();
    let read = if file == Path::new("-") {
        std::io::stdin().lock().take(SECRET_BYTES + 1).read_to_string(&mut text)
    } else {
        std::fs::File::open(file).and_then(|file| file.take(SECRET_BYTES + 1).read_to_string(&mut text))
    };
    read.with_context(|| format!("cannot read the secret in {}", file.display()))?;
    if text.len() as u64 > SECRET_BYTES {
        bail!("{} is longer than {SECRET_BYTES} bytes: that is not a token or password", file.display());
    }
    let trimmed = text.trim_end_matches(['\r', '\n']);
    if trimmed.is_empty() {
        bail!("{} is empty", file.display());
    }
    Ok(trimmed.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_lose_their_line_end_and_errors_do_not_quote_them() {
        use secrecy::ExposeSecret;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x");
        std::fs::write(&file, "geheim\r\n").unwrap();
        assert_eq!(read_secret(&file).unwrap().expose_secret(), "geheim");
        std::fs::write(&file, "\n").unwrap();
        assert!(read_secret(&file).is_err());
        std::fs::write(&file, "geheim".repeat(100_000)).unwrap();
        assert!(!format!("{:#}", read_secret(&file).err().unwrap()).contains("geheimgeheim"));
    }
}
