//! `[proxy]`: the HTTP proxy by which the agent reaches the gateway, with its credentials and the roots of its
//! certificate, and which hosts are reached without it.

use std::{net::IpAddr, path::PathBuf, str::FromStr};

use daemon::settings::{Faults, Section, read_bounded};
use secrecy::{ExposeSecret as _, SecretString};

use super::split_url;

/// An HTTP CONNECT proxy.
#[derive(Debug, Clone)]
pub struct Proxy {
    /// Whether the proxy itself is spoken to over TLS.
    pub tls: bool,
    /// Host name or IP address of the proxy.
    pub host: String,
    /// TCP port of the proxy.
    pub port: u16,
    /// Roots of the proxy's certificate.
    pub ca_file: Option<PathBuf>,
    /// User name and password for Basic authentication, if the proxy asks for any.
    pub credentials: Option<(String, SecretString)>,
    /// Hosts that are reached without it.
    pub no_proxy: Vec<NoProxy>,
}

impl PartialEq for Proxy {
    fn eq(&self, other: &Self) -> bool {
        fn plain(proxy: &Proxy) -> Option<(&str, &str)> {
            proxy.credentials.as_ref().map(|(user, password)| (user.as_str(), password.expose_secret()))
        }
        (self.tls, &self.host, self.port, &self.ca_file) == (other.tls, &other.host, other.port, &other.ca_file)
            && (&self.no_proxy, plain(self)) == (&other.no_proxy, plain(other))
    }
}

impl Proxy {
    /// Whether `host` is to be reached without the proxy.
    pub fn bypasses(&self, host: &str) -> bool {
        self.no_proxy.iter().any(|rule| rule.matches(host))
    }
}

/// One entry of `no_proxy`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NoProxy {
    /// `*`: every host is reached without the proxy.
    All,
    /// A network in CIDR notation, or one address.
    Network(IpAddr, u8),
    /// A domain and what is below it.
    Domain(String),
}

impl FromStr for NoProxy {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "*" {
            return Ok(Self::All);
        }
        let (address, bits) = text.split_once('/').map_or((text, None), |(a, b)| (a, Some(b)));
        if let Ok(address) = address.parse::<IpAddr>() {
            let width = if address.is_ipv4() { 32 } else { 128 };
            let bits = match bits {
                None => width,
                Some(bits) => {
                    bits.parse().ok().filter(|bits| *bits <= width).ok_or("the network's length is out of range")?
                }
            };
            return Ok(Self::Network(address, bits));
        }
        let domain = text.trim_start_matches("*.").trim_start_matches('.');
        if domain.is_empty() || domain.contains(['/', ' ', '*']) {
            return Err("expected *, a domain, an address or a network such as 10.0.0.0/8");
        }
        Ok(Self::Domain(domain.to_ascii_lowercase()))
    }
}

impl NoProxy {
    pub(super) fn matches(&self, host: &str) -> bool {
        match self {
            Self::All => true,
            Self::Network(network, bits) => match (network, host.parse::<IpAddr>()) {
                (IpAddr::V4(network), Ok(IpAddr::V4(host))) => {
                    let shift = 32 - u32::from(*bits);
                    u64::from(u32::from(*network)) >> shift == u64::from(u32::from(host)) >> shift
                }
                (IpAddr::V6(network), Ok(IpAddr::V6(host))) => {
                    let shift = 128 - u32::from(*bits);
                    u128::from(*network).checked_shr(shift) == u128::from(host).checked_shr(shift)
                }
                _ => false,
            },
            Self::Domain(domain) => {
                let host = host.to_ascii_lowercase();
                host == *domain || host.strip_suffix(domain.as_str()).is_some_and(|front| front.ends_with('.'))
            }
        }
    }
}

pub(super) fn read_proxy(mut section: Section, out: &mut Faults) -> Option<Proxy> {
    let what = "http://host:port or https://host:port";
    let url = section.required_parsed("url", what, out, |text| split_url(text, &["http", "https"]));
    let ca_file = section.path("ca_file", out);
    let username = section.path("username_file", out);
    let password = section.path("password_file", out);
    if username.is_some() != password.is_some() {
        out.push(section.key("username_file"), "username_file and password_file go together");
    }
    let mut read = |key: &'static str, path: Option<PathBuf>| {
        let path = path?;
        match read_bounded(&path) {
            Ok(text) => Some(text.trim_end_matches(['\r', '\n']).to_owned()),
            Err(err) => {
                out.push(section.key(key), format_args!("{}: {err}", path.display()));
                None
            }
        }
    };
    let username = read("username_file", username);
    let password = read("password_file", password).map(SecretString::from);
    let mut no_proxy = Vec::new();
    for text in section.texts("no_proxy", out).unwrap_or_default() {
        match text.parse() {
            Ok(rule) => no_proxy.push(rule),
            Err(err) => out.push(section.key("no_proxy"), format_args!("{text:?}: {err}")),
        }
    }
    section.end(out);
    let (scheme, host, port) = url?;
    Some(Proxy { tls: scheme == "https", host, port, ca_file, credentials: username.zip(password), no_proxy })
}
