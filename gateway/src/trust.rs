//! The gateway's certificates, and the authorities that agents' and access certificates are checked against. Files are
//! read again while running; what rests on an authority is told when others are trusted.

use std::{io, sync::Arc, time::SystemTime};

use arc_swap::ArcSwap;
use bytes::Bytes;
use certs::{Authority, Credentials, LoadError, Roots, ServerCertificate, tls};
use rustls::server::ResolvesServerCert;
use tokio::sync::watch;
use tunnel::transport::quic::Listener;

use crate::{
    config::{
        Config,
        agents::{Agents, AuthorityFiles},
    },
    named::{self, Named, NamedError, Names},
};

/// The server's certificate and the CA that clients are checked against, replaceable while running.
pub struct Trust {
    certificate: Arc<ServerCertificate>,
    /// As they were at the start; `[listen]` is not read again.
    names: Names,
    current: ArcSwap<Current>,
    /// Counts other authorities of clients.
    authorities: watch::Sender<u64>,
}

struct Current {
    roots: Roots,
    /// The file that they are of.
    authorities: Vec<u8>,
    authority: Option<Arc<Authority>>,
    /// What it is called in what is kept.
    authority_id: Option<String>,
    agents: Agents,
    gateway_ca: String,
    named: Option<Arc<Named>>,
    addresses: Bytes,
    public: Arc<rustls::ServerConfig>,
    tunnel: Arc<rustls::ServerConfig>,
}

/// Why certificates could not be taken into use.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// A certificate or key file cannot be read or used.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// rustls refuses the certificates or keys.
    #[error(transparent)]
    Tls(#[from] tls::TlsError),
    /// The certificate of clusters' server names.
    #[error(transparent)]
    Named(#[from] NamedError),
    /// The QUIC listener refuses, or a file went away between two looks.
    #[error("the certificate is not taken: {0}")]
    Quic(#[from] io::Error),
}

impl Trust {
    /// Reads the files that a configuration names.
    pub fn load(config: &Config) -> Result<Self, TrustError> {
        let credentials = Credentials::load(&config.tls.certificate_file, &config.tls.key_file)?;
        let certificate = ServerCertificate::new(&credentials);
        let listen = &config.listen;
        let names = Names { domain: listen.domain.clone(), suffix: listen.server_name_suffix.clone() };
        let current = ArcSwap::from_pointee(Current::load(config, &names, &certificate)?);
        Ok(Self { certificate, names, current, authorities: watch::Sender::new(0) })
    }

    /// Reads them again. On an error all stays as it was.
    pub fn reload(&self, config: &Config, quic: Option<&Listener>) -> Result<(), TrustError> {
        let credentials = Credentials::load(&config.tls.certificate_file, &config.tls.key_file)?;
        let mut next = Current::load(config, &self.names, &self.certificate)?;
        let same = next.authorities == self.current.load().authorities;
        if same {
            // What was judged by them need not be judged again.
            next.roots = self.roots();
        }
        if let Some(quic) = quic {
            quic.set_tls(Arc::clone(&next.tunnel))?;
        }
        self.certificate.replace(&credentials);
        self.current.store(Arc::new(next));
        if !same {
            self.authorities.send_modify(|count| *count += 1);
        }
        Ok(())
    }

    /// Changes when other authorities are trusted than before: what rests on a certificate must be looked at again.
    pub fn authorities(&self) -> watch::Receiver<u64> {
        self.authorities.subscribe()
    }

    /// The authorities of agents' and access certificates.
    pub fn roots(&self) -> Roots {
        self.current.load().roots.clone()
    }

    /// What agents' certificates are issued with, if they are issued here.
    pub fn authority(&self) -> Option<Arc<Authority>> {
        self.current.load().authority.clone()
    }

    /// What that is called in what is kept of clusters.
    pub fn authority_id(&self) -> Option<String> {
        self.current.load().authority_id.clone()
    }

    /// The table `[agents]` of the configuration in force.
    pub fn agents(&self) -> Agents {
        self.current.load().agents.clone()
    }

    /// The authorities of the gateway's own certificate, PEM; empty: public ones.
    pub fn gateway_ca(&self) -> String {
        self.current.load().gateway_ca.clone()
    }

    /// How clusters are addressed, as JSON.
    pub fn addresses(&self) -> Bytes {
        self.current.load().addresses.clone()
    }

    /// When the certificate of clusters' server names ends; none without one.
    pub fn named_until(&self) -> Option<SystemTime> {
        self.current.load().named.as_ref().map(|named| named.until())
    }

    /// The names that clusters have beside their keys.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Has another certificate of clusters' server names follow one that is in the second half of its life.
    pub fn renew_named(&self, now: SystemTime) {
        let current = self.current.load();
        if let (Some(named), Some(authority)) = (&current.named, &current.authority)
            && let Err(error) = named.renew(authority, now)
        {
            tracing::error!(%error, "the certificate of clusters' server names is not renewed");
        }
    }

    /// The TLS settings of the public TCP port, and the names of clusters that it has a certificate for.
    pub fn public(&self) -> (Arc<rustls::ServerConfig>, Option<Arc<Named>>) {
        let current = self.current.load();
        (Arc::clone(&current.public), current.named.clone())
    }

    /// The TLS settings of the QUIC listener.
    pub fn tunnel(&self) -> Arc<rustls::ServerConfig> {
        Arc::clone(&self.current.load().tunnel)
    }
}

impl Current {
    fn load(config: &Config, names: &Names, certificate: &Arc<ServerCertificate>) -> Result<Self, TrustError> {
        // The bytes first: a file that is replaced in between differs from them at the next look.
        let authorities = std::fs::read(&config.agents.ca_file)?;
        let roots = Roots::load(&config.agents.ca_file)?;
        let authority = config.agents.authority.as_ref().map(AuthorityFiles::load).transpose()?;
        let own = authority.as_ref().map(Authority::roots).transpose()?;
        let named = match (&config.agents.authority, &authority, &names.suffix) {
            (Some(files), Some(authority), Some(suffix)) => {
                Some(Arc::new(Named::load(suffix, files, authority, Arc::clone(certificate), SystemTime::now())?))
            }
            _ => None,
        };
        let shown: Arc<dyn ResolvesServerCert> = match &named {
            Some(named) => named.certificate() as _,
            None => Arc::clone(certificate) as _,
        };
        Ok(Self {
            addresses: named::addresses(names, named.as_deref()),
            named,
            authority_id: own.and_then(|own| own.ids().pop()),
            authority: authority.map(Arc::new),
            agents: config.agents.clone(),
            gateway_ca: config.api.as_ref().and_then(|api| api.ca.clone()).unwrap_or_default(),
            public: Arc::new(tls::server_public(shown, Some(&roots))?),
            tunnel: Arc::new(tls::server_tunnel(Arc::clone(certificate), &roots)?),
            roots,
            authorities,
        })
    }
}
