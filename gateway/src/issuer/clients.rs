//! Public clients: programs that sign users in and can keep no secret of their own (RFC 8252). What they may get back
//! from a browser goes to this machine itself or to an address that was configured, and nowhere else.

use url::{Host, Url};

/// Characters of a redirect URI at most.
const URI_BYTES: usize = 2048;
/// Client id of the `towline` command.
pub const COMMAND_CLIENT: &str = "7c1f8a52-54b5-4d2c-9d0a-3f5ab1c0de01";
/// Client id of Microsoft's `az`, which cannot be told another.
const AZ_CLIENT: &str = "04b07795-8ddb-461a-bbee-02f9e1bf7b46";

/// A public client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublicClient {
    /// The OAuth 2 parameter `client_id`.
    pub id: String,
    /// As people are told it.
    pub name: String,
    /// Where codes may be sent beside loopback addresses; compared byte for byte (RFC 9700 section 2.1).
    pub redirect_uris: Vec<String>,
}

impl PublicClient {
    /// Those that every issuer knows.
    pub(super) fn built_in() -> [Self; 2] {
        [(COMMAND_CLIENT, "the towline command"), (AZ_CLIENT, "Azure CLI")].map(|(id, name)| Self {
            id: id.to_owned(),
            name: name.to_owned(),
            redirect_uris: Vec::new(),
        })
    }

    /// The address, if a code may be sent there. What is used is the parsed one, which no browser reads otherwise.
    pub(super) fn redirect(&self, uri: &str) -> Option<Url> {
        let parsed = Url::parse(uri).ok().filter(|_| uri.len() <= URI_BYTES)?;
        if parsed.fragment().is_some() || !parsed.username().is_empty() || parsed.password().is_some() {
            return None;
        }
        // RFC 8252 section 7.3: any port. `localhost` too (section 8.3 advises against it): `az` uses nothing else.
        let loopback = match parsed.host() {
            Some(Host::Ipv4(ip)) => ip.is_loopback(),
            Some(Host::Ipv6(ip)) => ip.is_loopback(),
            Some(Host::Domain(name)) => name == "localhost",
            None => false,
        };
        let configured = self.redirect_uris.iter().any(|known| known == uri);
        ((parsed.scheme() == "http" && loopback) || configured).then_some(parsed)
    }
}

/// What a page may post to so that a browser follows on to `uri`: an origin of Content Security Policy, or the scheme
/// where it has no spelling there (IPv6, a scheme of an app's own).
pub(super) fn csp_source(uri: &Url) -> String {
    match (uri.host(), uri.origin().is_tuple()) {
        (Some(Host::Ipv6(_)) | None, _) | (_, false) => format!("{}:", uri.scheme()),
        _ => uri.origin().ascii_serialization(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_goes_to_this_machine_or_where_it_was_configured_to() {
        let [client, _] = PublicClient::built_in();
        let client = PublicClient { redirect_uris: vec!["https://app.example/back".to_owned()], ..client };
        for good in ["http://127.0.0.1:5000/", "http://localhost:1", "http://[::1]:80/x", "https://app.example/back"] {
            assert!(client.redirect(good).is_some(), "{good}");
        }
        for bad in [
            "https://app.example/back/",
            "https://app.example/back?x=y",
            "https://app.example/backs",
            "https://evil.example/",
            "https://127.0.0.1:5000/",
            "http://127.0.0.1@evil.example/",
            "http://x@127.0.0.1/",
            "http://127.0.0.1.evil.example/",
            "http://localhost.evil.example/",
            "http://evil.example\\@localhost/",
            "http://127.0.0.1/#x",
            "//127.0.0.1/",
            "javascript:alert(1)",
            "data:text/html,x",
            "",
        ] {
            assert_eq!(client.redirect(bad), None, "{bad}");
        }
        let source = |uri: &str| csp_source(&Url::parse(uri).unwrap());
        assert_eq!(source("http://127.0.0.1:5000/x"), "http://127.0.0.1:5000");
        assert_eq!((source("http://[::1]:5/"), source("my.app:/x")), ("http:".to_owned(), "my.app:".to_owned()));
    }
}
