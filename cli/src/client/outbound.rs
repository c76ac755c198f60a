//! The HTTP proxy on the user's side: from options or from the environment, the same rules as curl and kubectl have.

use std::{net::IpAddr, path::PathBuf, sync::Arc};

use anyhow::{Context, bail};
use certs::Roots;
use clap::Args;
use percent_encoding::percent_decode_str;
use rustls::pki_types::ServerName;
use secrecy::SecretString;
use tunnel::transport::dial::Proxy;

use super::split_host_port;
use crate::{environment, secret::read_secret};

/// A proxy on the way to the gateway.
#[derive(Debug, Args, Clone, Default)]
pub struct OutboundArgs {
    /// HTTP proxy on the way to the gateway, http:// or https://; HTTPS_PROXY and NO_PROXY without this
    #[arg(long, value_name = "URL")]
    pub proxy_url: Option<String>,
    /// PEM file of the authority of the proxy's own certificate
    #[arg(long, value_name = "FILE")]
    pub proxy_ca: Option<PathBuf>,
    /// File with the password for the proxy; the user's name is part of the URL
    #[arg(long, value_name = "FILE")]
    pub proxy_password_file: Option<PathBuf>,
}

/// How connections leave this machine.
#[derive(Clone, Default)]
pub struct Outbound {
    proxy: Option<Arc<Proxy>>,
    /// Hosts that are reached straight; empty where `--proxy-url` was given.
    exceptions: Vec<Exception>,
    /// As in other programs, the environment's proxy is not asked for this machine.
    straight_to_loopback: bool,
}

/// One entry of `NO_PROXY`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Exception {
    All,
    Network(IpAddr, u8),
    /// A domain and all below it, perhaps with a port.
    Domain(String, Option<u16>),
}

impl Outbound {
    /// From `--proxy-url` and its kin, else from `HTTPS_PROXY` and `NO_PROXY`.
    pub fn new(args: &OutboundArgs) -> anyhow::Result<Self> {
        match (&args.proxy_url, environment::https_proxy()) {
            (Some(url), _) => {
                if userinfo(url).is_some_and(|(_, password)| password.is_some()) {
                    bail!(
                        "a password on the command line is seen by everybody on this machine: use --proxy-password-file, or HTTPS_PROXY"
                    );
                }
                let proxy = proxy(url, args).context("--proxy-url")?;
                Ok(Self { proxy: Some(Arc::new(proxy)), exceptions: Vec::new(), straight_to_loopback: false })
            }
            (None, Some(url)) => {
                let proxy = proxy(&url, args).context("HTTPS_PROXY")?;
                let exceptions = environment::no_proxy().unwrap_or_default();
                let exceptions = exceptions.split([',', ' ']).filter_map(exception).collect();
                Ok(Self { proxy: Some(Arc::new(proxy)), exceptions, straight_to_loopback: true })
            }
            (None, None) => Ok(Self::default()),
        }
    }

    /// The proxy to ask for a connection to `host`, if any.
    pub fn proxy_for(&self, host: &str, port: u16) -> Option<Proxy> {
        let address = host.parse::<IpAddr>().ok();
        let loopback = host == "localhost" || address.is_some_and(|address| address.is_loopback());
        let straight = self.straight_to_loopback && loopback
            || self.exceptions.iter().any(|exception| exception.matches(host, address, port));
        if straight { None } else { self.proxy.as_deref().cloned() }
    }
}

/// User name and password of a URL, as written.
fn userinfo(url: &str) -> Option<(&str, Option<&str>)> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split('/').next().unwrap_or_default();
    let (userinfo, _) = authority.rsplit_once('@')?;
    Some(userinfo.split_once(':').map_or((userinfo, None), |(user, password)| (user, Some(password))))
}

/// Errors never quote the URL: it may hold a password.
fn proxy(url: &str, args: &OutboundArgs) -> anyhow::Result<Proxy> {
    let (tls, rest) = match url.split_once("://") {
        Some(("http", rest)) => (false, rest),
        Some(("https", rest)) => (true, rest),
        None => (false, url),
        Some(_) => bail!("the proxy's URL must begin with http:// or https://"),
    };
    let authority = rest.split('/').next().unwrap_or_default();
    let authority = authority.rsplit_once('@').map_or(authority, |(_, authority)| authority);
    let (host, port) = split_host_port(authority, if tls { 443 } else { 80 })?;
    let mut password = userinfo(url).and_then(|(_, password)| password).map(|text| SecretString::from(unescape(text)));
    if let Some(file) = &args.proxy_password_file {
        password = Some(read_secret(file)?);
    }
    let credentials = match (userinfo(url), password) {
        (Some((user, _)), password) => Some((unescape(user), password.unwrap_or_default())),
        (None, Some(_)) => bail!("the proxy's user name must be part of its URL, such as http://user@proxy:3128"),
        (None, None) => None,
    };
    let tls = match (tls, &args.proxy_ca) {
        (false, None) => None,
        (false, Some(_)) => {
            bail!("--proxy-ca is for a proxy that is spoken to over TLS: its URL must begin with https://")
        }
        (true, ca) => {
            let roots = match ca {
                Some(file) => Roots::load(file)?,
                None => Roots::public(),
            };
            let name = ServerName::try_from(host.clone()).context("the proxy's host name is not valid")?;
            Some((Arc::new(certs::tls::client_https(&roots)?), name))
        }
    };
    Ok(Proxy { host, port, tls, credentials })
}

/// Undoes percent-encoding (RFC 3986 section 2.1).
fn unescape(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn exception(text: &str) -> Option<Exception> {
    let text = text.trim();
    if text.is_empty() {
        return None;
    }
    if text == "*" {
        return Some(Exception::All);
    }
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    if let Ok(address) = address.trim_matches(['[', ']']).parse::<IpAddr>() {
        let width = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(width), |bits| bits.parse().ok().filter(|bits| *bits <= width))?;
        return Some(Exception::Network(address, bits));
    }
    let (domain, port) = match text.rsplit_once(':') {
        Some((domain, port)) => (domain, Some(port.parse().ok()?)),
        None => (text, None),
    };
    let domain = domain.trim_start_matches("*.").trim_start_matches('.').to_ascii_lowercase();
    (!domain.is_empty()).then_some(Exception::Domain(domain, port))
}

impl Exception {
    fn matches(&self, host: &str, address: Option<IpAddr>, port: u16) -> bool {
        match (self, address) {
            (Self::All, _) => true,
            (Self::Network(IpAddr::V4(network), bits), Some(IpAddr::V4(host))) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(*bits)).unwrap_or(0);
                u32::from(*network) & mask == u32::from(host) & mask
            }
            (Self::Network(IpAddr::V6(network), bits), Some(IpAddr::V6(host))) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(*bits)).unwrap_or(0);
                u128::from(*network) & mask == u128::from(host) & mask
            }
            (Self::Network(..), _) => false,
            (Self::Domain(domain, only), _) => {
                let host = host.to_ascii_lowercase();
                let below = host.strip_suffix(domain.as_str()).is_some_and(|front| front.ends_with('.'));
                only.is_none_or(|only| only == port) && (host == *domain || below)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    #[test]
    fn exceptions_are_those_of_other_programs() {
        let straight = |list: &str, host: &str, port: u16| {
            let outbound = Outbound {
                proxy: Some(Arc::new(proxy("http://proxy:3128", &OutboundArgs::default()).unwrap())),
                exceptions: list.split(',').filter_map(exception).collect(),
                straight_to_loopback: true,
            };
            outbound.proxy_for(host, port).is_none()
        };
        assert!(straight("", "localhost", 443) && straight("", "127.0.0.2", 443) && straight("", "::1", 443));
        assert!(!straight("", "gw.example", 443));
        assert!(straight("*", "gw.example", 443));
        assert!(straight("example", "gw.example", 443) && straight(".example", "gw.Example", 443));
        assert!(!straight("example", "notexample", 443) && !straight("w.example", "gw.example", 443));
        assert!(straight("gw.example:8443", "gw.example", 8443) && !straight("gw.example:8443", "gw.example", 443));
        assert!(straight("10.0.0.0/8", "10.1.2.3", 443) && !straight("10.0.0.0/8", "11.1.2.3", 443));
        assert!(straight("0.0.0.0/0", "11.1.2.3", 443) && straight("fd00::/8, x", "fd12::1", 443));
        assert!(!straight("10.0.0.0/99,:x", "10.1.2.3", 443));
    }

    #[test]
    fn a_proxy_has_a_user_and_a_password_and_neither_is_in_an_error() {
        let args = OutboundArgs::default();
        let found = proxy("http://us%40er:p%2Fw@proxy.example:3128/", &args).unwrap();
        let (user, password) = found.credentials.unwrap();
        assert_eq!((found.host.as_str(), found.port, user.as_str()), ("proxy.example", 3128, "us@er"));
        assert_eq!(password.expose_secret(), "p/w");
        for bad in ["socks5://u:geheim@proxy", "http://u:geheim@:1", "http://u:geheim@proxy:x"] {
            let error = format!("{:#}", proxy(bad, &args).unwrap_err());
            assert!(!error.contains("geheim"), "{error}");
        }
        let typed = OutboundArgs { proxy_url: Some("http://u:geheim@proxy".to_owned()), ..OutboundArgs::default() };
        let error = Outbound::new(&typed).err().unwrap().to_string();
        assert!(error.contains("--proxy-password-file") && !error.contains("geheim"), "{error}");
    }
}
