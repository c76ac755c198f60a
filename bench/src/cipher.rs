//! The one cipher of every leg of every path: what differs between paths is then not what they encrypt with. It is the
//! first choice of rustls, and so Towline's own on every leg, and what OpenSSL and OpenSSH can be told to use. Load and
//! upstream offer nothing else; each peer's configuration names it too, for the leg between its hops.

use rustls::crypto::{CryptoProvider, aws_lc_rs};

/// As OpenSSL calls it (nginx, haproxy, rathole).
pub const OPENSSL: &str = "TLS_AES_256_GCM_SHA384";
/// As OpenSSH calls it.
pub const OPENSSH: &str = "aes256-gcm@openssh.com";

/// Of load and upstream: TLS 1.3 with this cipher and no other.
pub fn provider() -> CryptoProvider {
    CryptoProvider {
        cipher_suites: vec![aws_lc_rs::cipher_suite::TLS13_AES_256_GCM_SHA384],
        ..aws_lc_rs::default_provider()
    }
}

/// Of a leg over QUIC that is none of Towline's: the same, and behind it the one that a connection's first packets have
/// before anything is agreed on (RFC 9001 section 5.2).
pub fn quic() -> CryptoProvider {
    let first = aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
    let mut provider = provider();
    provider.cipher_suites.push(first);
    provider
}

#[cfg(test)]
mod tests {
    use super::*;

    // Towline cannot be told which cipher to use, so that its first choice has to be this one.
    #[test]
    fn it_is_the_first_choice_of_rustls() {
        let first = aws_lc_rs::default_provider().cipher_suites[0];
        assert_eq!(first.suite(), provider().cipher_suites[0].suite());
        assert_eq!(format!("{:?}", first.suite()).replace("TLS13", "TLS"), OPENSSL);
        assert_eq!(provider().cipher_suites.len(), 1);
    }
}
