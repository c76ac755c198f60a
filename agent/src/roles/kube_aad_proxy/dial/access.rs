//! Where the apiserver is, how it is trusted, and the agent's own credential for it: a pod's service account, or what a
//! kubeconfig says (client certificates, tokens, exec plugins) through crate kube.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use http::{HeaderValue, header};
use kube::client::ConfigExt as _;
use rustls::{
    ClientConfig, RootCertStore, SignatureScheme,
    client::{ResolvesClientCert, Resumption},
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    sign::CertifiedKey,
};
use secrecy::{ExposeSecret as _, SecretString};
use tower::{Layer as _, ServiceExt as _, util::BoxCloneSyncService};

use crate::{
    config::{self, Cluster},
    roles::kubeconfig::{self, Loaded, Via},
};

/// Time after which a token file is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The most bytes of a token file.
const TOKEN_BYTES: u64 = 64 * 1024;

/// Why the cluster cannot be reached as configured.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// Not in a cluster.
    #[error(
        "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: the agent runs in no pod; name a kubeconfig"
    )]
    NotInCluster,
    /// A file cannot be used.
    #[error("{path}: {problem}")]
    File {
        /// Path of the file, as configured or as Kubernetes mounts it.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A kubeconfig cannot be used.
    #[error("kubeconfig {path}: {problem}")]
    Kubeconfig {
        /// Path of the kubeconfig.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The kubeconfig's credential plugin failed.
    #[error("credential of the kubeconfig: {0}")]
    Plugin(String),
}

/// How the apiserver is reached.
pub struct Access {
    host: String,
    port: u16,
    server_name: ServerName<'static>,
    tls: Arc<ClientConfig>,
    tls_http1: Arc<ClientConfig>,
    /// The same two without the agent's client certificate, for tokens that are passed through.
    bare: [Arc<ClientConfig>; 2],
    own: Own,
    /// What stands before every path: that of the kubeconfig's server, without a final slash.
    prefix: String,
    via: Option<Via>,
}

/// Shows no certificate, whatever the kubeconfig has.
#[derive(Debug)]
struct NoCertificate;

impl ResolvesClientCert for NoCertificate {
    fn resolve(&self, _roots: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

enum Own {
    /// A client certificate, in the TLS settings.
    Certificate,
    Token(TokenFile),
    Fixed(HeaderValue),
    /// Written in the kubeconfig itself, as kube makes a header of it: the same for ever.
    Inline(Option<HeaderValue>),
    /// To be asked each time: it may be renewed.
    Plugin(Plugin),
}

type Plugin = BoxCloneSyncService<http::Request<kube::client::Body>, http::Response<()>, tower::BoxError>;

struct TokenFile {
    path: PathBuf,
    state: Mutex<TokenState>,
}

struct TokenState {
    value: HeaderValue,
    modified: Option<SystemTime>,
    looked: Instant,
}

impl Access {
    /// As configured. Reads files and may run a kubeconfig's plugin.
    pub async fn new(cluster: &Cluster) -> Result<Self, AccessError> {
        match cluster {
            Cluster::InCluster { service_account_dir } => Self::in_cluster(service_account_dir),
            Cluster::Kubeconfig { path, context } => Self::kubeconfig(path, context.clone()).await,
        }
    }

    fn in_cluster(dir: &Path) -> Result<Self, AccessError> {
        let (host, port) = config::in_cluster_address().ok_or(AccessError::NotInCluster)?;
        let ca = dir.join("ca.crt");
        let fault = |problem: String| AccessError::File { path: ca.clone(), problem };
        let roots: Vec<_> = CertificateDer::pem_file_iter(&ca)
            .and_then(Iterator::collect::<Result<_, _>>)
            .map_err(|err| fault(err.to_string()))?;
        if roots.is_empty() {
            return Err(fault("has no certificate".to_owned()));
        }
        let mut tls = ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth();
        certs::anchor::trust(&mut tls, &roots).map_err(|err| fault(crate::chain(&err)))?;
        let server_name = server_name(&host).map_err(fault)?;
        Ok(Self::with(host, port, server_name, tls, Own::Token(TokenFile::open(dir.join("token"))?)))
    }

    async fn kubeconfig(path: &Path, context: Option<String>) -> Result<Self, AccessError> {
        let fault = |problem: String| AccessError::Kubeconfig { path: path.to_owned(), problem };
        let Loaded { config, proxy } = kubeconfig::load(path, context).await.map_err(fault)?;
        let host = config.cluster_url.host().ok_or_else(|| fault("the cluster's server has no host".to_owned()))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        if config.cluster_url.scheme_str() != Some("https") || config.cluster_url.query().is_some() {
            return Err(fault("the cluster's server must be https://host[:port][/path]".to_owned()));
        }
        let prefix = config.cluster_url.path().trim_end_matches('/').to_owned();
        let via = proxy.map(|proxy| proxy.via()).transpose().map_err(fault)?;
        let port = config.cluster_url.port_u16().unwrap_or(443);
        let name = config.tls_server_name.clone().unwrap_or_else(|| host.clone());
        let server_name = server_name(&name).map_err(fault)?;
        // Reading an exec plugin's certificate or its first token runs it, and it may take its time.
        let info = config.auth_info.clone();
        let roots = config.root_cert.clone().filter(|_| !config.accept_invalid_certs);
        if config.accept_invalid_certs {
            tracing::warn!(
                kubeconfig = %path.display(),
                "insecure-skip-tls-verify: any server at the apiserver's address gets the agent's credential"
            );
        }
        let (tls, own) = tokio::task::spawn_blocking(move || (config.rustls_client_config(), Own::of(&config)))
            .await
            .map_err(|err| fault(err.to_string()))?;
        let mut tls = tls.map_err(|err| fault(crate::chain(&err)))?;
        if let Some(roots) = roots {
            let roots: Vec<_> = roots.into_iter().map(CertificateDer::from).collect();
            certs::anchor::trust(&mut tls, &roots).map_err(|err| fault(crate::chain(&err)))?;
        }
        let own = own?;
        if matches!(own, Own::Certificate) && !tls.client_auth_cert_resolver.has_certs() {
            return Err(fault(
                "the user has no credential: no client certificate, token, tokenFile, exec or password; the \
                 apiserver would take the agent for system:anonymous"
                    .to_owned(),
            ));
        }
        let own = own.asked_once(&info).await?;
        Ok(Self { prefix, via, ..Self::with(host, port, server_name, tls, own) })
    }

    /// Reached as said, for tests and other callers with settings of their own; `token` is the agent's own credential.
    pub fn fixed(
        host: &str,
        port: u16,
        server_name: ServerName<'static>,
        tls: ClientConfig,
        token: &SecretString,
    ) -> Result<Self, AccessError> {
        let value = bearer(token.expose_secret())
            .ok_or_else(|| AccessError::Plugin("the token is not a header value".to_owned()))?;
        Ok(Self::with(host.to_owned(), port, server_name, tls, Own::Fixed(value)))
    }

    fn with(host: String, port: u16, server_name: ServerName<'static>, mut tls: ClientConfig, own: Own) -> Self {
        tls.enable_early_data = false;
        let mut tls_http1 = tls.clone();
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        tls_http1.alpn_protocols = vec![b"http/1.1".to_vec()];
        // A resumed session would bring the certificate of the first one along: the apiserver asks it before any token.
        let bare = [&tls, &tls_http1].map(|tls| {
            let mut tls = tls.clone();
            tls.client_auth_cert_resolver = Arc::new(NoCertificate);
            tls.resumption = Resumption::disabled();
            Arc::new(tls)
        });
        let (tls, tls_http1) = (Arc::new(tls), Arc::new(tls_http1));
        Self { host, port, server_name, tls, tls_http1, bare, own, prefix: String::new(), via: None }
    }

    /// Host name or address.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// TCP port of the apiserver.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The proxy in between.
    pub fn via(&self) -> Option<&Via> {
        self.via.as_ref()
    }

    /// What stands before every path: that of the kubeconfig's server, without a final slash.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// `host:port`, as `Host` has it.
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The name that its certificate must have.
    pub fn server_name(&self) -> ServerName<'static> {
        self.server_name.clone()
    }

    /// TLS settings; where it has to be `http1`, nothing else is offered. `own` is whether the agent speaks for itself:
    /// an apiserver believes a client certificate before a token, so a token that is passed through must not travel
    /// beside the agent's certificate.
    pub fn tls(&self, http1: bool, own: bool) -> Arc<ClientConfig> {
        match (http1, own) {
            (false, true) => self.tls.clone(),
            (true, true) => self.tls_http1.clone(),
            (http1, false) => self.bare[usize::from(http1)].clone(),
        }
    }

    /// What kind of credential the agent shows, for `check`.
    pub fn own_kind(&self) -> &'static str {
        match &self.own {
            Own::Certificate => "client certificate",
            Own::Token(_) => "token file",
            Own::Fixed(_) => "token",
            Own::Inline(_) | Own::Plugin(_) => "credential of the kubeconfig",
        }
    }

    /// The agent's own `Authorization`; none where a client certificate speaks for it.
    pub async fn authorization(&self) -> Result<Option<HeaderValue>, AccessError> {
        match &self.own {
            Own::Certificate => Ok(None),
            Own::Token(file) => file.current().map(Some),
            Own::Fixed(value) => Ok(Some(value.clone())),
            Own::Inline(value) => Ok(value.clone()),
            // Boxed, so that this rare case does not enlarge the future of every request.
            Own::Plugin(service) => Box::pin(ask(service)).await,
        }
    }
}

impl Own {
    fn of(config: &kube::Config) -> Result<Self, AccessError> {
        if let Some(path) = &config.auth_info.token_file {
            return Ok(Self::Token(TokenFile::open(path.into())?));
        }
        let layer = config.auth_layer().map_err(|err| AccessError::Plugin(err.to_string()))?;
        let Some(layer) = layer else { return Ok(Self::Certificate) };
        // The layer adds the header, refreshed when needed; what it wraps gives the headers back.
        let echo = tower::service_fn(|request: http::Request<kube::client::Body>| async move {
            let mut echoed = http::Response::new(());
            *echoed.headers_mut() = request.into_parts().0.headers;
            Ok::<_, tower::BoxError>(echoed)
        });
        Ok(Self::Plugin(BoxCloneSyncService::new(layer.layer(echo))))
    }

    /// With what is asked for here and now, if `info` has it from nothing but its own text.
    async fn asked_once(self, info: &kube::config::AuthInfo) -> Result<Self, AccessError> {
        match self {
            Self::Plugin(service) if is_inline(info) => Ok(Self::Inline(ask(&service).await?)),
            own => Ok(own),
        }
    }
}

/// Whether kube takes the credential from the kubeconfig's own words: a password or a token, which go before files and
/// plugins, and behind which no provider stands that would go before them.
fn is_inline(info: &kube::config::AuthInfo) -> bool {
    info.auth_provider.is_none() && (info.token.is_some() || (info.username.is_some() && info.password.is_some()))
}

async fn ask(plugin: &Plugin) -> Result<Option<HeaderValue>, AccessError> {
    let request = http::Request::new(kube::client::Body::empty());
    let echoed = plugin.clone().oneshot(request).await.map_err(|err| AccessError::Plugin(err.to_string()))?;
    Ok(echoed.headers().get(header::AUTHORIZATION).cloned())
}

impl TokenFile {
    fn open(path: PathBuf) -> Result<Self, AccessError> {
        let (value, modified) = read_token(&path)?;
        Ok(Self { path, state: Mutex::new(TokenState { value, modified, looked: Instant::now() }) })
    }

    /// The token, read again when the file has changed. While it cannot be read the last one is used.
    fn current(&self) -> Result<HeaderValue, AccessError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked.elapsed() >= LOOK_AGAIN {
            state.looked = Instant::now();
            let modified = std::fs::metadata(&self.path).and_then(|facts| facts.modified()).ok();
            if modified.is_some() && modified != state.modified {
                match read_token(&self.path) {
                    Ok((value, modified)) => {
                        tracing::info!(path = %self.path.display(), "the service account's token was renewed");
                        (state.value, state.modified) = (value, modified);
                    }
                    Err(err) => tracing::warn!(error = %err, "the service account's new token cannot be read"),
                }
            }
        }
        Ok(state.value.clone())
    }
}

fn read_token(path: &Path) -> Result<(HeaderValue, Option<SystemTime>), AccessError> {
    use std::io::Read as _;
    let fault = |problem: String| AccessError::File { path: path.to_owned(), problem };
    let file = std::fs::File::open(path).map_err(|err| fault(err.to_string()))?;
    let modified = file.metadata().and_then(|facts| facts.modified()).ok();
    let mut text = String::new();
    file.take(TOKEN_BYTES).read_to_string(&mut text).map_err(|err| fault(err.to_string()))?;
    let token = SecretString::from(text);
    let value = bearer(token.expose_secret().trim()).ok_or_else(|| fault("holds no token".to_owned()))?;
    Ok((value, modified))
}

fn bearer(token: &str) -> Option<HeaderValue> {
    if token.is_empty() {
        return None;
    }
    let mut value = HeaderValue::try_from(format!("Bearer {token}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn server_name(host: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(host.to_owned()).map_err(|err| format!("{host}: {err}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_file_is_read_again_when_it_has_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        std::fs::write(&path, "one\n").unwrap();
        let file = TokenFile::open(path.clone()).unwrap();
        assert_eq!(file.current().unwrap(), "Bearer one");
        std::fs::write(&path, "two").unwrap();
        let mut state = file.state.lock().unwrap();
        state.modified = None;
        state.looked = Instant::now().checked_sub(LOOK_AGAIN).unwrap();
        drop(state);
        assert_eq!(file.current().unwrap(), "Bearer two");
        assert!(file.current().unwrap().is_sensitive());
    }

    /// kube is asked once for what can never change, and each time for what it renews.
    #[tokio::test]
    async fn what_a_kubeconfig_says_itself_is_asked_for_once() {
        let own = async |info: &kube::config::AuthInfo| {
            let mut config = kube::Config::new("https://127.0.0.1".parse().unwrap());
            config.auth_info = info.clone();
            Own::of(&config).unwrap().asked_once(info).await.unwrap()
        };
        let token = kube::config::AuthInfo { token: Some("one".to_owned().into()), ..Default::default() };
        let Own::Inline(Some(value)) = own(&token).await else { panic!("a token is renewed by nobody") };
        assert_eq!((value.as_bytes(), value.is_sensitive()), (&b"Bearer one"[..], true));
        let (name, word) = (Some("jane".to_owned()), Some("secret".to_owned().into()));
        let password = kube::config::AuthInfo { username: name.clone(), password: word, ..Default::default() };
        let Own::Inline(Some(value)) = own(&password).await else { panic!("a password is renewed by nobody") };
        assert_eq!(value, "Basic amFuZTpzZWNyZXQ=");
        assert!(value.is_sensitive());
        let status = r#"{"token":"two","expirationTimestamp":"2999-01-01T00:00:00Z"}"#;
        let said =
            format!(r#"{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{status}}}"#);
        let plugin = serde_json::json!({ "exec": {
            "apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": [said], "interactiveMode": "Never",
        } });
        let plugin: kube::config::AuthInfo = serde_json::from_value(plugin).unwrap();
        assert!(matches!(own(&plugin).await, Own::Plugin(_)));
        // A user without a password, or a provider, which goes before a token.
        assert!(!is_inline(&kube::config::AuthInfo { username: name, ..Default::default() }));
        let provider: kube::config::AuthInfo = serde_json::from_value(
            serde_json::json!({ "token": "one", "auth-provider": { "name": "oidc", "config": {} } }),
        )
        .unwrap();
        assert!(!is_inline(&provider));
    }

    /// Found on a real cluster: beside the agent's client certificate a passed-through token was never looked at, and
    /// its bearer was the agent.
    #[tokio::test]
    async fn a_passed_through_token_does_not_travel_beside_the_agents_certificate() {
        let authority = certs::Authority::create("test", certs::Validity::days(1)).unwrap();
        let roots = authority.roots().unwrap();
        let server = authority.issue_server(&["127.0.0.1"], certs::Validity::days(1)).unwrap();
        let own = authority.issue_agent("/x", certs::Validity::days(1)).unwrap();
        let shown = certs::ServerCertificate::new(server.credentials());
        let mut tls = certs::tls::server_public(shown, Some(&roots)).unwrap();
        // As an apiserver does, and unlike our own listeners: sessions may be resumed, with the certificate they had.
        tls.send_tls13_tickets = 2;
        tls.session_storage = rustls::server::ServerSessionMemoryCache::new(32);
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(tls));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut client = certs::tls::client_https_with(&roots, own.credentials(), &[]).unwrap();
        client.resumption = Resumption::in_memory_sessions(32);
        let name = server_name("127.0.0.1").unwrap();
        let access = Access::with("127.0.0.1".into(), port, name, client, Own::Certificate);
        for (upgrade, own) in [(false, true), (false, false), (true, true), (true, false), (false, false)] {
            let connector = tokio_rustls::TlsConnector::from(access.tls(upgrade, own));
            let dial = async {
                let tcp = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let mut tls = connector.connect(access.server_name(), tcp).await.unwrap();
                // Reads the session tickets that come with the first byte.
                tokio::io::AsyncReadExt::read_u8(&mut tls).await.unwrap();
            };
            let accept = async {
                let (tcp, _) = listener.accept().await.unwrap();
                let mut tls = acceptor.accept(tcp).await.unwrap();
                tokio::io::AsyncWriteExt::write_all(&mut tls, b"x").await.unwrap();
                tls.get_ref().1.peer_certificates().is_some()
            };
            let ((), shown) = tokio::join!(dial, accept);
            assert_eq!(shown, own, "upgrade {upgrade}");
        }
    }
}
