//! What `towline dev` says once it is ready: one JSON line for a script, or what to type next for a person.

use gateway::issuer::{USERS_FILE, Users};
use secrecy::ExposeSecret;
use serde_json::{Value, json};

use super::principals;
use crate::{
    failure::Outcome,
    secret::read_secret,
    state::{Cluster, State},
};

/// One line with all that a script needs, the secret of the service principal that owns the subscription included.
/// Paths are absolute.
pub fn json(state: &State) -> Outcome<Value> {
    let clusters: Vec<Value> = state.data.clusters.iter().map(|c| cluster(state, c)).collect::<anyhow::Result<_>>()?;
    let users = Users::edit(&state.path("issuer").join(USERS_FILE), |users| Ok(users.clone()))?;
    let users: Vec<Value> = users
        .iter()
        .map(|user| {
            let password = state.password_file(&user.name);
            let password = password.exists().then_some(password);
            json!({"name": user.name, "groups": user.groups, "disabled": user.disabled, "password_file": password})
        })
        .collect();
    let principals = principals::read(state)?;
    let owner = principals.find(&state.data.owner);
    let secret = state.secret_file(principals::OWNER);
    let secret = secret.exists().then(|| read_secret(&secret)).transpose()?;
    let principals: Vec<Value> = principals
        .iter()
        .map(|known| {
            let secret = state.secret_file(&known.name);
            let secret = secret.exists().then_some(secret);
            json!({
                "name": known.name,
                "objectId": known.object_id,
                "clientId": known.client_id,
                "disabled": known.disabled,
                "secretFile": secret,
            })
        })
        .collect();
    Ok(json!({
        "url": state.url(),
        "tenant": state.data.tenant,
        "subscription": state.data.subscription,
        "clientId": owner.map(|owner| &owner.client_id),
        "clientSecret": secret.as_ref().map(|secret| secret.expose_secret()),
        "listen": state.data.listen,
        "admin": format!("http://{}", state.data.admin),
        "issuer": state.issuer_url(),
        "ca": state.ca_file(),
        "domain": state.data.domain,
        "state": state.dir(),
        "config": state.path("gateway.toml"),
        "audit": state.path("audit.jsonl"),
        "clusters": clusters,
        "users": users,
        "principals": principals,
    }))
}

fn cluster(state: &State, cluster: &Cluster) -> anyhow::Result<Value> {
    let key = cluster.cluster_id()?.key();
    let dir = state.agent_dir(cluster);
    Ok(json!({
        "name": cluster.name,
        "id": cluster.id,
        "key": key.hex(),
        "url": format!("{}/{}", state.url(), key.hex()),
        "host": state.data.domain.as_ref().map(|domain| format!("{}.{domain}", key.base32())),
        "agent_config": dir.join("agent.toml"),
        "helm_values": dir.join("values.yaml"),
    }))
}

/// What to type next.
pub fn text(state: &State) -> Outcome<String> {
    let principals = principals::read(state)?;
    let owner = principals.find(&state.data.owner).map(|owner| {
        format!(
            "To register clusters and give them extensions or repositories, sign in as the owner of the subscription\n\
             \n    towline login {url} --ca {ca} \\\n      --service-principal -u {id} --secret-file {secret}\n\n",
            url = state.url(),
            ca = state.ca_file().display(),
            id = owner.client_id,
            secret = state.secret_file(principals::OWNER).display(),
        )
    });
    let dir = state.dir().display();
    let name = state.data.clusters.first().map_or("dev", |cluster| cluster.name.as_str());
    let agent = state.path("agents").join(name);
    let agent = agent.display();
    Ok(format!(
        "The gateway is ready at {url}\n\
         \n\
         Next, in another terminal, an agent for cluster {name}: either in the cluster\n\
         \n    helm install towline-agent docker/chart/towline-agent --namespace towline --create-namespace \\\n      --values {agent}/values.yaml\n\
         \nor beside it, with a kubeconfig of your own\n\
         \n    towline-agent run --config {agent}/agent.toml --kubeconfig ~/.kube/config\n\
         \nThen kubectl, as admin (or viewer; stranger has no grant here):\n\
         \n    towline kubeconfig --state {dir} --cluster {name} --user admin -f {name}.kubeconfig\n    kubectl --kubeconfig {name}.kubeconfig auth whoami\n\
         \nWhat a user may do in the cluster is the cluster's own RBAC, for example\n\
         \n    kubectl create clusterrolebinding towline-admin --clusterrole cluster-admin --user admin\n\
         \n{owner}Ctrl+C stops the gateway; the state in {dir} is used again at the next start.",
        url = state.url(),
        owner = owner.unwrap_or_default(),
    ))
}
