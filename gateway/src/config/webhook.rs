//! A webhook as the configuration has it: address, secret, types of events. [`crate::webhooks`] delivers.

use std::{fmt, path::Path, sync::Arc};

use aws_lc_rs::{digest, hmac};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use certs::{Roots, tls};
use rustls::ClientConfig;
use url::{Host, Url};

use crate::store::events::Kind;

/// Bytes of a secret, at least and at most (Standard Webhooks, "Signature scheme").
const SECRET_BYTES: std::ops::RangeInclusive<usize> = 24..=64;

/// A webhook of the configuration. Neither its secret nor its address, which may hold one, prints.
#[derive(Clone)]
pub struct Webhook {
    /// Where deliveries are sent: `https://`, or `http://` to a loopback address.
    pub url: Url,
    /// What deliveries are signed with.
    pub key: hmac::Key,
    /// Types of the events that it is told of.
    pub kinds: Vec<Kind>,
    /// Trust in the certificate of its address.
    pub tls: Arc<ClientConfig>,
}

impl fmt::Debug for Webhook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Webhook").field("to", &self.to()).finish_non_exhaustive()
    }
}

impl PartialEq for Webhook {
    fn eq(&self, other: &Self) -> bool {
        self.url == other.url && self.kinds == other.kinds
    }
}

impl Eq for Webhook {}

impl Webhook {
    /// Of an address, a secret and the types that it is told; `ca`, PEM, in place of the public authorities.
    pub fn new(url: Url, secret: &[u8], kinds: Vec<Kind>, ca: Option<&Path>) -> Result<Self, String> {
        let roots = match ca {
            Some(file) => Roots::load(file).map_err(|error| error.to_string())?,
            None => Roots::public(),
        };
        let tls = Arc::new(tls::client_https(&roots).map_err(|error| error.to_string())?);
        Ok(Self { url, key: hmac::Key::new(hmac::HMAC_SHA256, secret), kinds, tls })
    }

    /// Where it is, for people.
    pub fn to(&self) -> &str {
        &self.url[..url::Position::BeforePath]
    }

    /// Its name in the store.
    pub fn name(&self) -> String {
        let digest = digest::digest(&digest::SHA256, self.url.as_str().as_bytes());
        types::ids::hex(digest.as_ref())
    }
}

/// An address that may be told: `https://`, or `http://` to this machine itself.
pub fn address(text: &str) -> Result<Url, &'static str> {
    const WANTED: &str = "must be https://<host>/..., or http:// to a loopback address such as 127.0.0.1, without a user, a password or a fragment";
    let url = Url::parse(text).map_err(|_| WANTED)?;
    let loopback = match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        _ => false,
    };
    let plain = url.username().is_empty() && url.password().is_none() && url.fragment().is_none();
    let fine = url.has_host() && plain && (url.scheme() == "https" || (url.scheme() == "http" && loopback));
    if fine { Ok(url) } else { Err(WANTED) }
}

/// A secret as it is written: `whsec_` and base64.
pub fn secret(text: &str) -> Result<Vec<u8>, String> {
    let wanted = || {
        let (least, most) = (SECRET_BYTES.start(), SECRET_BYTES.end());
        format!("must hold whsec_ and the base64 of {least} to {most} random bytes (openssl rand -base64 32)")
    };
    let text = text.trim();
    let bytes = BASE64.decode(text.strip_prefix("whsec_").unwrap_or(text)).map_err(|_| wanted())?;
    if SECRET_BYTES.contains(&bytes.len()) { Ok(bytes) } else { Err(wanted()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    #[test]
    fn c8_addresses_that_could_lead_elsewhere_are_refused() {
        for fine in ["https://hooks.test/a?b=c", "http://127.0.0.1:8080/", "http://[::1]/x", "https://10.0.0.1/"] {
            assert!(address(fine).is_ok(), "{fine}");
        }
        for bad in [
            "http://hooks.test/",
            "http://localhost/",
            "http://169.254.169.254/latest",
            "http://2852039166/",
            "https://user:pass@hooks.test/",
            "https://hooks.test/#a",
            "file:///etc/passwd",
            "gopher://x/",
            "https://",
            "",
            "not a url",
        ] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn c8_a_secret_is_of_enough_bytes_and_prints_nowhere() {
        assert_eq!(secret(SECRET).unwrap().len(), 24);
        assert!(secret(&format!("{SECRET}\n")).is_ok());
        for bad in ["", "whsec_", "whsec_c2hvcnQ=", "hunter2 hunter2 hunter2 hunter2"] {
            let error = secret(bad).unwrap_err();
            assert!(error.contains("openssl") && !error.contains("hunter2"), "{error}");
        }
        let url = address("https://hooks.test/services/T0KEN").unwrap();
        let webhook = Webhook::new(url, &secret(SECRET).unwrap(), Kind::ALL.to_vec(), None).unwrap();
        let printed = format!("{webhook:?}");
        assert!(printed.contains("hooks.test") && !printed.contains("T0KEN"), "{printed}");
    }
}
