//! Private keys of SSH as Flux reads them: whether a text is one, and one that needs no passphrase, because there is no place
//! to give it one. Only the frame is read: what is in the key is for the program that uses it.

use crate::agent_api::decode;

/// What Flux reads, by the label of the PEM.
const LABELS: [&str; 5] =
    ["OPENSSH PRIVATE KEY", "RSA PRIVATE KEY", "EC PRIVATE KEY", "DSA PRIVATE KEY", "PRIVATE KEY"];
/// Where it is encrypted, whatever is in it.
const SEALED: &str = "ENCRYPTED PRIVATE KEY";
/// What a key in OpenSSH's own format begins with; the name of its cipher follows.
const MAGIC: &[u8] = b"openssh-key-v1\0";

const NONE: &str = "it is no private key: give the whole text of the file, from -----BEGIN to -----END, such as that of id_ed25519 (not that of id_ed25519.pub)";
const ENCRYPTED: &str = "it has a passphrase, which could not be given in the cluster: make a key of its own without one (ssh-keygen -t ed25519 -N ''), or leave the key out, and the cluster makes one";

/// Whether a text is a private key that can be used as it is.
///
/// # Errors
/// What is wrong with it, without anything of the text.
pub fn check(text: &str) -> Result<(), &'static str> {
    let mut lines = text.lines().map(str::trim).skip_while(|line| !line.starts_with("-----BEGIN "));
    let begin = lines.next().and_then(|line| line.strip_prefix("-----BEGIN ")?.strip_suffix("-----"));
    let label = begin.filter(|label| *label == SEALED || LABELS.contains(label)).ok_or(NONE)?;
    let end = format!("-----END {label}-----");
    let (mut body, mut has_ended) = (String::new(), false);
    for line in lines {
        if line == end {
            has_ended = true;
            break;
        }
        // Headers of PEM (RFC 1421) tell that the rest is encrypted.
        if line.starts_with("Proc-Type:") && line.contains("ENCRYPTED") {
            return Err(ENCRYPTED);
        }
        if !line.contains(':') {
            body.push_str(line);
        }
    }
    let bytes = decode(&body).filter(|bytes| has_ended && !bytes.is_empty()).ok_or(NONE)?;
    if label == SEALED {
        return Err(ENCRYPTED);
    }
    if label != LABELS[0] {
        return Ok(());
    }
    let cipher = || {
        let (length, rest) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<4>()?;
        rest.get(..usize::try_from(u32::from_be_bytes(*length)).ok()?)
    };
    match cipher() {
        Some(b"none") => Ok(()),
        Some(_) => Err(ENCRYPTED),
        None => Err(NONE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent_api::encode;

    fn pem(label: &str, headers: &str, body: &[u8]) -> String {
        format!("-----BEGIN {label}-----\n{headers}{}\n-----END {label}-----\n", encode(body))
    }

    fn openssh(cipher: &str) -> String {
        let length = u32::try_from(cipher.len()).unwrap().to_be_bytes();
        pem("OPENSSH PRIVATE KEY", "", &[MAGIC, &length, cipher.as_bytes(), b"rest"].concat())
    }

    #[test]
    fn g3_private_keys_that_flux_can_use_are_told_from_all_else() {
        let keys = [openssh("none"), pem("RSA PRIVATE KEY", "", b"x"), pem("PRIVATE KEY", "", b"x")];
        for good in keys {
            assert_eq!(check(&good), Ok(()), "{good}");
            assert_eq!(check(&format!("# mine\r\n{}\r\n", good.replace('\n', "\r\n"))), Ok(()), "{good}");
        }
        let headers = "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n";
        let sealed = [openssh("aes256-ctr"), pem("RSA PRIVATE KEY", headers, b"x"), pem(SEALED, "", b"x")];
        for bad in sealed {
            assert_eq!(check(&bad), Err(ENCRYPTED), "{bad}");
        }
        let cut = openssh("none").replace("-----END", "");
        let other = pem("OPENSSH PRIVATE KEY", "", b"something");
        for bad in ["", "hello", "ssh-ed25519 AAAA me", &cut, &other, &pem("CERTIFICATE", "", b"x"), "-----BEGIN "] {
            assert_eq!(check(bad), Err(NONE), "{bad}");
        }
    }
}
