//! The agents' own way to the apiserver, as themselves: a pod's service account or a kubeconfig, by crate kube. Users'
//! requests never go this way.

use std::{path::Path, time::Duration};

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    config::{AuthInfo, Config},
};

use super::{
    error::BuildError,
    kubeconfig::{self, Loaded},
};
use crate::{
    chain,
    config::{self, Cluster},
};

/// How long a connection to the apiserver may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long the apiserver may send nothing, before an answer or in the middle of one. It ends a watch after 290 seconds, so
/// after a longer silence the connection is broken, although the operating system has not noticed.
const SILENCE: Duration = Duration::from_secs(310);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub enum KubernetesError {
    /// Not in a cluster.
    #[error(
        "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: the agent runs in no pod; set [cluster] kubeconfig"
    )]
    NotInCluster,
    /// A file or an address.
    #[error("{what}: {problem}")]
    Setting {
        /// The file, URL or connection that cannot be used.
        what: String,
        /// What is wrong with it.
        problem: String,
    },
}

impl From<KubernetesError> for BuildError {
    fn from(error: KubernetesError) -> Self {
        Self::Role { what: "the agents' own way to the apiserver", source: Box::new(error) }
    }
}

/// A client with the pod's namespace, or the kubeconfig's, as its default one.
pub async fn client(cluster: &Cluster) -> Result<Client, KubernetesError> {
    let config = match cluster {
        Cluster::InCluster { service_account_dir } => in_cluster(service_account_dir)?,
        Cluster::Kubeconfig { path, context } => {
            let fault = |problem: String| KubernetesError::Setting { what: path.display().to_string(), problem };
            let Loaded { mut config, proxy } = kubeconfig::load(path, context.clone()).await.map_err(fault)?;
            if !(kubeconfig::certificate(&config.auth_info).map_err(fault)?
                || kubeconfig::has_header(&config.auth_info))
            {
                return Err(fault("the user has no credential".to_owned()));
            }
            // Whatever the environment says of proxies is not for the apiserver.
            config.proxy_url = proxy.map(|proxy| proxy.for_kube()).transpose().map_err(fault)?;
            config
        }
    };
    Client::try_from(bounded(config, SILENCE))
        .map_err(|err| KubernetesError::Setting { what: "the way to the apiserver".to_owned(), problem: chain(&err) })
}

/// With bounds for every connection.
fn bounded(mut config: Config, silence: Duration) -> Config {
    config.connect_timeout = Some(CONNECT);
    config.read_timeout = Some(silence);
    // What a connection was kept for before a question does not count.
    config.reset_reader_on_write = true;
    config
}

fn in_cluster(dir: &Path) -> Result<Config, KubernetesError> {
    use rustls::pki_types::{CertificateDer, pem::PemObject as _};
    let fault = |path: &Path, problem: String| KubernetesError::Setting { what: path.display().to_string(), problem };
    let (host, port) = config::in_cluster_address().ok_or(KubernetesError::NotInCluster)?;
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    let url = format!("https://{host}:{port}");
    let url: http::Uri =
        url.parse().map_err(|err| KubernetesError::Setting { what: url.clone(), problem: format!("{err}") })?;
    let mut config = Config::new(url);
    let roots = dir.join("ca.crt");
    let roots: Vec<_> = CertificateDer::pem_file_iter(&roots)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|err| fault(&roots, err.to_string()))?;
    config.root_cert = Some(roots.iter().map(|der| der.to_vec()).collect());
    let namespace = dir.join("namespace");
    config.default_namespace =
        std::fs::read_to_string(&namespace).map_err(|err| fault(&namespace, err.to_string()))?.trim().to_owned();
    config.auth_info =
        AuthInfo { token_file: Some(dir.join("token").to_string_lossy().into_owned()), ..AuthInfo::default() };
    Ok(config)
}

/// UID of the namespace `kube-system`: what tells one cluster from another (docs/features.md R4).
pub async fn kube_system_uid(client: &Client) -> Result<String, String> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace = namespaces.get("kube-system").await.map_err(|err| problem("the namespace kube-system", &err))?;
    namespace.metadata.uid.ok_or_else(|| "the namespace kube-system has no UID".to_owned())
}

/// What the apiserver said, and what to do.
pub fn problem(what: &str, err: &kube::Error) -> String {
    match err {
        kube::Error::Api(status) if status.code == 403 => {
            format!("{what} may not be read: {}; give the agents the rights that the chart makes", status.message)
        }
        other => format!("{what} cannot be read: {}", chain(other)),
    }
}

#[cfg(test)]
mod tests {
    use tokio::{io::AsyncReadExt as _, net::TcpListener};

    use super::*;

    #[tokio::test]
    async fn apiserver_that_says_nothing_any_more_is_not_waited_for_for_ever() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let silent = tokio::spawn(async move {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            // Ends when the client gives up.
            let _ = connection.read_to_end(&mut asked).await;
            asked
        });
        let config = bounded(Config::new(url.parse().unwrap()), Duration::from_millis(50));
        let client = Client::try_from(config).unwrap();
        let told = kube_system_uid(&client).await.unwrap_err();
        assert!(told.contains("kube-system cannot be read"), "{told}");
        drop(client);
        let asked = silent.await.unwrap();
        assert!(asked.starts_with(b"GET /api/v1/namespaces/kube-system "), "{}", String::from_utf8_lossy(&asked));
    }
}
