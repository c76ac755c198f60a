//! Where the agents run and what from, for charts that bring an agent of ours: `global.towline` in their values. No
//! setting may touch it.

use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, Client, api::ListParams};
use serde_json::{Value, json};

use crate::config;

/// In a chart's values.
pub const GLOBAL: &str = "global";
/// Key below [`GLOBAL`] that holds what a chart is told about the agents.
pub const NAME: &str = "towline";

/// What a chart is told; none where the agents are no pods of this cluster.
///
/// # Errors
/// When the apiserver does not say.
pub async fn values(client: &Client, distribution: Option<&str>) -> Result<Option<Value>, kube::Error> {
    let component = config::Deployment::ClusterconnectAgent.name();
    let deployments: Api<Deployment> = Api::default_namespaced(client.clone());
    let label = ListParams::default().labels(&format!("app.kubernetes.io/component={component}")).limit(1);
    let found = deployments.list(&label).await?.items.into_iter().next();
    Ok(found.and_then(|found| of(client.default_namespace(), &found, distribution)))
}

fn of(namespace: &str, deployment: &Deployment, distribution: Option<&str>) -> Option<Value> {
    let pod = deployment.spec.as_ref()?.template.spec.as_ref()?;
    let container = pod.containers.first()?;
    let image = container.image.as_deref()?;
    let registry = image.rsplit_once('/').map_or("", |(registry, _)| registry);
    let pull_secrets: Vec<_> = pod.image_pull_secrets.iter().flatten().map(|secret| &secret.name).collect();
    let identity = pod.volumes.iter().flatten().find(|volume| volume.name == "identity");
    let identity = identity.and_then(|volume| volume.secret.as_ref()?.secret_name.as_deref());
    Some(json!({
        "namespace": namespace,
        "registry": registry,
        "agentImage": image,
        "imagePullPolicy": container.image_pull_policy,
        "imagePullSecrets": pull_secrets,
        "identitySecret": identity,
        "distribution": distribution,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_are_told_where_the_agents_run_and_what_from() {
        let deployment = json!({
            "metadata": {"name": "towline-agent"},
            "spec": {"selector": {}, "template": {"spec": {
                "containers": [{"name": "a", "image": "registry.test:5000/mirror/towline-agent:1.0", "imagePullPolicy": "Always"}],
                "imagePullSecrets": [{"name": "pull"}],
                "volumes": [{"name": "config"}, {"name": "identity", "secret": {"secretName": "identity-1"}}],
            }}},
        });
        let told = of("agents", &serde_json::from_value(deployment).unwrap(), Some("k3s")).unwrap();
        let expected = json!({
            "namespace": "agents", "registry": "registry.test:5000/mirror", "imagePullPolicy": "Always",
            "agentImage": "registry.test:5000/mirror/towline-agent:1.0", "imagePullSecrets": ["pull"],
            "identitySecret": "identity-1", "distribution": "k3s",
        });
        assert_eq!(told, expected);
    }
}
