//! Charts from a registry that the operator of the cluster named, by helm's own client (docs/features.md X5). The signed
//! index says which bytes a chart has, so that the registry is trusted no more than the gateway is.

use bytes::Bytes;
use catalogue::index::Release;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use super::helm::{Access, Helm, HelmError};
use crate::roles::{
    catalogue::Charts,
    objects::state::{Fault, Problem},
};

/// Keys of the Secret: the first is that of its type, kubernetes.io/dockerconfigjson.
const CONFIG: &str = ".dockerconfigjson";
const CA: &str = "ca.crt";
/// What a registry answers, in helm's words; all else says that it did not.
const ANSWERS: [&str; 6] = ["not found", "unauthorized", "denied", "forbidden", "status code 40", "basic credential"];

/// A registry of charts.
pub struct Registry<'a> {
    /// Runs `helm pull`.
    pub helm: &'a Helm,
    /// Reads the Secret.
    pub client: &'a Client,
    /// `oci://HOST/PATH`; charts are below it by their names.
    pub url: &'a str,
    /// The Secret in the agents' namespace that signs in; none: nobody signs in.
    pub secret: Option<&'a str>,
}

impl Registry<'_> {
    async fn access(&self) -> Result<Access, Problem> {
        let Some(name) = self.secret else { return Ok(Access::default()) };
        let secrets: Api<Secret> = Api::default_namespaced(self.client.clone());
        let found = secrets.get_opt(name).await.map_err(|err| {
            let message = format!("the Secret {name} of the charts' registry cannot be read: {err}");
            Problem::of(Fault::Cluster, "RegistrySecretNotRead", message)
        })?;
        let namespace = self.client.default_namespace();
        let missing = |what: &str| {
            let message = format!(
                "{what}: create the Secret {name} in the namespace {namespace} (kubectl create secret docker-registry), or leave registry_secret out"
            );
            Problem::passes("RegistrySecretMissing", message)
        };
        let mut data = found.ok_or_else(|| missing("the Secret of the charts' registry is not there"))?.data;
        let mut take = |key: &str| data.as_mut().and_then(|data| data.remove(key)).map(|bytes| bytes.0);
        let access = Access { config: take(CONFIG), ca: take(CA) };
        if access.config.is_none() && access.ca.is_none() {
            return Err(missing(&format!("the Secret of the charts' registry has neither {CONFIG} nor {CA}")));
        }
        Ok(access)
    }

    async fn pull(&self, release: &Release) -> Result<Bytes, Problem> {
        let access = self.access().await?;
        let chart = format!("{}/{}", self.url.trim_end_matches('/'), release.chart.name);
        let version = release.version.to_string();
        let pulled = self.helm.pull(&chart, &version, &access, release.chart.size).await;
        pulled.map(Bytes::from).map_err(|err| {
            let message = format!(
                "the chart {} {version} could not be pulled from {chart}: {err}\nWhat to do: push the very file of the catalogue (helm push charts/{} {}), and look at registry_secret.",
                release.chart.name, release.chart.file, self.url
            );
            let said = err.to_string().to_ascii_lowercase();
            let is_answer = matches!(err, HelmError::Failed(_)) && ANSWERS.iter().any(|word| said.contains(word));
            let fault = if is_answer { Fault::Object } else { Fault::Cluster };
            Problem::of(fault, "ChartNotFetched", message)
        })
    }
}

impl Charts for Registry<'_> {
    fn name(&self) -> &str {
        self.url
    }

    fn chart<'a>(&'a self, release: &'a Release) -> BoxFuture<'a, Result<Bytes, Problem>> {
        Box::pin(self.pull(release))
    }
}
