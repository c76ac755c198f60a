//! How a cluster is addressed at its gateway: by a TLS server name of its own, by its key as the first segment of the
//! path, or by a host name. Which of them works is tried.

use std::time::Duration;

use anyhow::anyhow;
use bytes::Bytes;
use certs::{Credentials, Roots};
use gateway::request::address::ADDRESSES_PATH;
use http::{Request, StatusCode};
use http_body_util::Full;
use serde_json::Value;
use tokio::time::timeout;

use super::target::Target;
use crate::{
    client::{Address, Client},
    failure::{Failure, Outcome},
    kubeconfig::AddressForm,
};

/// How long a try may take where another form can take its place.
const TRY: Duration = Duration::from_secs(15);
/// Characters of the gateway's own words that are shown.
const SHOWN: usize = 200;

/// How a cluster is addressed at its gateway.
#[derive(Debug, clap::Args, Clone, Copy)]
pub struct AddressArgs {
    /// How the cluster is addressed at the gateway. Without this by name if that works, else by path
    #[arg(long, value_name = "FORM")]
    pub address: Option<AddressForm>,
}

/// The way to a cluster.
#[derive(Debug)]
pub struct Way {
    /// Host and port to connect to.
    address: Address,
    /// What stands before each path: `/<key>`, or nothing.
    pub prefix: String,
    /// The name to ask for in TLS, where it is not the host's.
    pub tls_server_name: Option<String>,
    /// PEM of the authority of the certificate; none for the system's.
    pub ca: Option<String>,
}

impl Way {
    /// What a kubeconfig has as `server`.
    pub fn server(&self) -> String {
        format!("{}{}", self.address.url(), self.prefix)
    }

    /// Talks to the cluster, with an access certificate where there is one.
    pub fn client(&self, target: &Target, credentials: Option<&Credentials>) -> anyhow::Result<Client> {
        let roots = match &self.ca {
            Some(pem) => Roots::from_pem(pem.as_bytes())?,
            None => Roots::public(),
        };
        let client = Client::new(self.address.clone(), &roots, credentials, target.outbound.clone())?;
        match &self.tls_server_name {
            Some(name) => client.with_server_name(name),
            None => Ok(client),
        }
    }
}

/// The form that was asked for; without one the cluster's TLS server name if that works, else the path.
pub async fn choose(target: &Target, asked: Option<AddressForm>) -> Outcome<Way> {
    match asked {
        Some(AddressForm::Path) => Ok(by_path(target)?),
        Some(AddressForm::Host) => by_host(target).await,
        Some(AddressForm::Name) => by_name(target).await.map_err(|why| {
            Failure::from(anyhow!("the cluster cannot be addressed by a TLS server name: {why}"))
                .hint("--address path works with every gateway")
        }),
        None => match by_name(target).await {
            Ok(way) => {
                tracing::debug!(name = way.tls_server_name, "the cluster is addressed by its TLS server name");
                Ok(way)
            }
            Err(why) => {
                tracing::info!("the cluster is addressed by a path and not by a TLS server name: {why}");
                Ok(by_path(target)?)
            }
        },
    }
}

fn by_path(target: &Target) -> anyhow::Result<Way> {
    let prefix = format!("/{}", target.key.hex());
    Ok(Way { address: target.server.clone(), prefix, tls_server_name: None, ca: target.ca()? })
}

/// The name is used only where a connection with it reaches the gateway: what ends TLS in between shows another
/// certificate.
async fn by_name(target: &Target) -> Result<Way, String> {
    if !target.server.path.is_empty() {
        return Err(format!("{} has a path, which a server name cannot have", target.server.url()));
    }
    let tried = timeout(TRY, async {
        let told = told(target).await?;
        let names = &told["serverNames"];
        let (Some(suffix), Some(ca)) = (names["suffix"].as_str(), names["certificateAuthority"].as_str()) else {
            return Err(told["noServerNames"].as_str().map_or("the gateway has none".to_owned(), shown));
        };
        let way = Way {
            address: target.server.clone(),
            prefix: String::new(),
            tls_server_name: Some(format!("{}.{suffix}", target.key.base32())),
            ca: Some(ca.to_owned()),
        };
        reach(target, &way).await?;
        Ok(way)
    });
    tried.await.unwrap_or_else(|_| Err(format!("no answer within {} s", TRY.as_secs())))
}

/// Every form, and why it does not work where it does not.
pub async fn try_all(target: &Target) -> Vec<(AddressForm, Result<(), String>)> {
    let by_path = async { reach(target, &by_path(target).map_err(|error| format!("{error:#}"))?).await };
    let by_host = async {
        let way = by_host(target).await.map_err(|failure| format!("{:#}", failure.into_error()))?;
        reach(target, &way).await
    };
    let (by_name, by_path, by_host) = tokio::join!(by_name(target), timeout(TRY, by_path), timeout(TRY, by_host));
    let late = |_| Err(format!("no answer within {} s", TRY.as_secs()));
    vec![
        (AddressForm::Name, by_name.map(drop)),
        (AddressForm::Path, by_path.unwrap_or_else(late)),
        (AddressForm::Host, by_host.unwrap_or_else(late)),
    ]
}

/// Whether requests that go this way come to the gateway.
async fn reach(target: &Target, way: &Way) -> Result<(), String> {
    let client = way.client(target, None).map_err(|error| format!("{error:#}"))?;
    let answer = client.request(get(&format!("{}/version", way.prefix))).await.map_err(|error| format!("{error:#}"))?;
    // Nobody has a credential here.
    match answer.status() {
        StatusCode::UNAUTHORIZED => Ok(()),
        status => Err(format!("a request is answered with {status}")),
    }
}

async fn by_host(target: &Target) -> Outcome<Way> {
    let told = told(target).await.map_err(|why| Failure::from(anyhow!(why)))?;
    let Some(domain) = told["domain"].as_str() else {
        return Err(Failure::usage(anyhow!("--address host needs a gateway with a domain for clusters"))
            .hint("[listen] domain of the gateway, or towline dev --domain DOMAIN"));
    };
    let url = format!("https://{}.{domain}:{}", target.key.base32(), target.server.port);
    let address = Address::parse(&url)?;
    Ok(Way { address, prefix: String::new(), tls_server_name: None, ca: target.ca()? })
}

/// What the gateway says of how clusters are addressed.
async fn told(target: &Target) -> Result<Value, String> {
    let client = target.client(None).map_err(|error| format!("{error:#}"))?;
    let answer = client.request(get(ADDRESSES_PATH)).await.map_err(|error| format!("{error:#}"))?;
    if answer.status() != StatusCode::OK {
        return Err(format!(
            "the gateway does not know such names ({ADDRESSES_PATH} is answered with {})",
            answer.status()
        ));
    }
    serde_json::from_slice(answer.body()).map_err(|_| format!("what {ADDRESSES_PATH} of the gateway says is not JSON"))
}

fn get(path: &str) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::default());
    // Both paths that are asked for are valid.
    *request.uri_mut() = path.parse().unwrap_or_default();
    request
}

fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(SHOWN).collect()
}
