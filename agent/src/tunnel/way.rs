//! The way out of the cluster: through an HTTP CONNECT proxy, or straight.

use std::{path::Path, sync::Arc};

use certs::Roots;
use rustls::{ClientConfig, pki_types::ServerName};
use tunnel::transport::dial;

use super::setup::{SetupError, server_name};
use crate::config::Proxy;

/// Through a proxy, or not.
pub(super) struct Way {
    proxy: Option<Proxy>,
    /// What the file of the proxy's authorities held.
    ca: Option<Vec<u8>>,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl Way {
    pub(super) fn new(proxy: Option<&Proxy>) -> Result<Self, SetupError> {
        let ca = authorities(proxy);
        let tls = match proxy {
            Some(proxy) if proxy.tls => {
                let own = proxy.ca_file.as_deref().map(|path: &Path| Roots::load(path)).transpose()?;
                let tls = certs::tls::client_https(&own.unwrap_or_else(Roots::public))?;
                Some((Arc::new(tls), server_name(&proxy.host)?))
            }
            _ => None,
        };
        Ok(Self { proxy: proxy.cloned(), ca, tls })
    }

    /// Whether it is the way of these settings, down to what the file of the proxy's authorities holds now.
    pub(super) fn is_of(&self, proxy: Option<&Proxy>) -> bool {
        self.proxy.as_ref() == proxy && self.ca == authorities(proxy)
    }

    /// As a host is dialled: none where it is reached without.
    pub(super) fn to(&self, host: &str) -> Option<dial::Proxy> {
        let proxy = self.proxy.as_ref().filter(|proxy| !proxy.bypasses(host))?;
        Some(dial::Proxy {
            host: proxy.host.clone(),
            port: proxy.port,
            tls: self.tls.clone(),
            credentials: proxy.credentials.clone(),
        })
    }
}

/// The file of a proxy's authorities; none where there is none, or it cannot be read, which is said when it is used.
fn authorities(proxy: Option<&Proxy>) -> Option<Vec<u8>> {
    let file = proxy.filter(|proxy| proxy.tls)?.ca_file.as_deref()?;
    std::fs::read(file).ok()
}
