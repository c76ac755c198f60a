//! Reads a kubeconfig as kubectl does. Crate kube leaves a client certificate out that it cannot read, and goes on
//! without any credential: everything would be done as `system:anonymous`, and nothing would say why. Here each
//! credential that is named is read, or is the error.

use std::path::Path;

use auth::kubernetes::percent_decode;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::Uri;
use kube::{
    Config,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject as _};
use secrecy::{ExposeSecret as _, SecretString};
use tunnel::transport::dial::Proxy;

use super::socks::Socks5;

/// A kubeconfig's context.
pub struct Loaded {
    /// As crate kube reads it, without a proxy: the environment's is not for the apiserver.
    pub config: Config,
    /// The cluster's `proxy-url`.
    pub proxy: Option<ProxyUrl>,
}

/// A proxy to the apiserver. Does not print, for it may hold a password.
#[derive(Clone)]
pub struct ProxyUrl {
    /// As crate kube takes it.
    pub uri: Uri,
    kind: Kind,
    host: String,
    port: u16,
    credentials: Option<(String, SecretString)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Http,
    Https,
    Socks5,
}

/// How the apiserver is reached through a proxy.
#[derive(Debug, Clone)]
pub enum Via {
    /// By `CONNECT` through an HTTP or HTTPS proxy.
    Http(Proxy),
    /// Through a SOCKS5 proxy (RFC 1928).
    Socks5(Socks5),
}

/// Reads the context, or the current one, of a file.
///
/// # Errors
/// One line that says what cannot be used, and why.
pub async fn load(path: &Path, context: Option<String>) -> Result<Loaded, String> {
    let mut file = Kubeconfig::read_from(path).map_err(|err| crate::chain(&err))?;
    unwrap_data(&mut file);
    let proxy = proxy_url(&file, context.as_deref())?;
    let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
    let mut config = Config::from_custom_kubeconfig(file, &options).await.map_err(|err| crate::chain(&err))?;
    config.proxy_url = None;
    certificate(&config.auth_info)?;
    let user = &config.auth_info;
    if user.impersonate.is_some() || user.impersonate_groups.as_ref().is_some_and(|groups| !groups.is_empty()) {
        return Err("the user has `as` or `as-groups`: the agent would be somebody else, and impersonates users itself; name a \
                    user without them"
            .to_owned());
    }
    Ok(Loaded { config, proxy })
}

/// Takes white space out of base64 and empty fields out of the file: kubectl reads over both.
pub fn unwrap_data(file: &mut Kubeconfig) {
    let plain = |data: &mut Option<String>| {
        if let Some(text) = data {
            text.retain(|c| !c.is_ascii_whitespace());
        }
        data.take_if(|text| text.is_empty());
    };
    let secret = |data: &mut Option<SecretString>| {
        if let Some(text) = data.take() {
            let text: String = text.expose_secret().split_ascii_whitespace().collect();
            *data = (!text.is_empty()).then(|| SecretString::from(text));
        }
    };
    let named = |field: &mut Option<String>| drop(field.take_if(|text| text.is_empty()));
    for cluster in file.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
        plain(&mut cluster.certificate_authority_data);
        named(&mut cluster.certificate_authority);
        named(&mut cluster.tls_server_name);
    }
    for user in file.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        plain(&mut user.client_certificate_data);
        secret(&mut user.client_key_data);
        for field in [&mut user.client_certificate, &mut user.client_key, &mut user.token_file] {
            named(field);
        }
        user.token.take_if(|token| token.expose_secret().is_empty());
    }
}

/// Whether the user has a client certificate.
///
/// # Errors
/// When there is one, or a part of one, that cannot be used.
pub fn certificate(user: &AuthInfo) -> Result<bool, String> {
    let key_data = user.client_key_data.as_ref().map(|key| key.expose_secret());
    let certificate = bytes("client-certificate", user.client_certificate_data.as_deref(), &user.client_certificate)?;
    let key = bytes("client-key", key_data, &user.client_key)?;
    let (certificate, key) = match (certificate, key) {
        (None, None) => return Ok(false),
        (Some(certificate), Some(key)) => (certificate, key),
        (Some(_), None) => return Err("the user has a client certificate and no client-key for it".to_owned()),
        (None, Some(_)) => return Err("the user has a client-key and no client certificate".to_owned()),
    };
    let mut certificates = CertificateDer::pem_slice_iter(&certificate);
    match certificates.next() {
        Some(Ok(_)) => {}
        Some(Err(err)) => return Err(format!("the user's client certificate is not PEM: {err}")),
        None => return Err("the user's client certificate is not PEM: no BEGIN CERTIFICATE in it".to_owned()),
    }
    if certificates.any(|certificate| certificate.is_err()) {
        return Err("the user's client certificate is not PEM behind its first certificate".to_owned());
    }
    PrivateKeyDer::from_pem_slice(&key).map_err(|_| "the user's client-key is not a private key in PEM".to_owned())?;
    Ok(true)
}

/// Whether the user has any credential that goes into a header.
pub fn has_header(user: &AuthInfo) -> bool {
    user.token.is_some()
        || user.token_file.is_some()
        || user.exec.is_some()
        || user.auth_provider.is_some()
        || (user.username.is_some() && user.password.is_some())
}

fn bytes(what: &str, data: Option<&str>, file: &Option<String>) -> Result<Option<Vec<u8>>, String> {
    match (data, file) {
        (Some(data), _) => {
            let decoded = STANDARD.decode(data);
            decoded.map(Some).map_err(|err| format!("the user's {what}-data is not base64: {err}"))
        }
        (None, Some(file)) => {
            std::fs::read(file).map(Some).map_err(|err| format!("the user's {what} {file} cannot be read: {err}"))
        }
        (None, None) => Ok(None),
    }
}

/// The `proxy-url` of the cluster of a context.
fn proxy_url(file: &Kubeconfig, context: Option<&str>) -> Result<Option<ProxyUrl>, String> {
    let context = context.or(file.current_context.as_deref()).unwrap_or_default();
    let context = file.contexts.iter().find(|named| named.name == context).and_then(|named| named.context.as_ref());
    let Some(cluster) = context.map(|context| &context.cluster) else { return Ok(None) };
    let cluster = file.clusters.iter().find(|named| named.name == *cluster).and_then(|named| named.cluster.as_ref());
    let url = cluster.and_then(|cluster| cluster.proxy_url.as_deref()).filter(|url| !url.is_empty());
    url.map(ProxyUrl::parse).transpose()
}

impl ProxyUrl {
    /// Errors do not quote it.
    fn parse(url: &str) -> Result<Self, String> {
        let wrong = || "the cluster's proxy-url is not a URL such as http://proxy.example.org:3128".to_owned();
        let uri: Uri = url.parse().map_err(|_| wrong())?;
        let (kind, port) = match uri.scheme_str() {
            Some("http") => (Kind::Http, 80),
            Some("https") => (Kind::Https, 443),
            Some("socks5" | "socks5h") => (Kind::Socks5, 1080),
            Some(scheme) => {
                return Err(format!(
                    "the cluster's proxy-url begins with {scheme}://; http://, https:// and socks5:// are taken"
                ));
            }
            None => return Err(wrong()),
        };
        let authority = uri.authority().ok_or_else(wrong)?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        if host.is_empty() {
            return Err(wrong());
        }
        let text = |part: &str| String::from_utf8(percent_decode(part.as_bytes()).into_owned()).map_err(|_| wrong());
        let credentials = match authority.as_str().rsplit_once('@') {
            Some((user, _)) => {
                let (user, password) = user.split_once(':').unwrap_or((user, ""));
                Some((text(user)?, SecretString::from(text(password)?)))
            }
            None => None,
        };
        let port = authority.port_u16().unwrap_or(port);
        Ok(Self { kind, host, port, credentials, uri })
    }

    /// The same for crate kube.
    ///
    /// # Errors
    /// For a proxy that is spoken to over TLS, which it cannot.
    pub fn for_kube(&self) -> Result<Uri, String> {
        match self.kind {
            Kind::Http | Kind::Socks5 => Ok(self.uri.clone()),
            Kind::Https => Err("the cluster's proxy-url begins with https://; only users' requests go through such a \
                 proxy, and what the agent asks itself through http:// and socks5:// alone"
                .to_owned()),
        }
    }

    /// How connections go.
    ///
    /// # Errors
    /// When a proxy that is spoken to over TLS cannot be trusted: no authorities, or no name.
    pub fn via(&self) -> Result<Via, String> {
        let Self { kind, host, port, credentials, .. } = self.clone();
        let tls = match kind {
            Kind::Socks5 => {
                let socks = Socks5 { host, port, credentials };
                return Ok(Via::Socks5(socks));
            }
            Kind::Http => None,
            Kind::Https => {
                let config = certs::tls::client_https(&certs::Roots::public()).map_err(|err| crate::chain(&err))?;
                let name = ServerName::try_from(host.clone())
                    .map_err(|_| "the cluster's proxy-url names no host that a certificate could have".to_owned())?;
                Some((std::sync::Arc::new(config), name))
            }
        };
        Ok(Via::Http(Proxy { host, port, tls, credentials }))
    }
}
