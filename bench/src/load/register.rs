//! Registers clusters in a gateway's store by its API. Started by `run`; reads its plan from standard input.

use std::path::PathBuf;

use anyhow::Context;
use aws_lc_rs::{
    rsa::KeySize,
    signature::{KeyPair as _, RsaKeyPair},
};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use futures_util::{StreamExt, TryStreamExt, stream};
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    Connections,
    client::{Client, Target},
};

/// Writes under way at once. The store commits together what waits together.
const AT_ONCE: usize = 64;
const GROUP: &str = "registered";
const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

/// What to register, and where.
#[derive(Debug, Serialize, Deserialize)]
pub struct Plan {
    /// `https://host:port` of the gateway.
    pub url: String,
    /// The authority of its certificate.
    pub ca: PathBuf,
    /// The tenant that signs in.
    pub tenant: String,
    /// The subscription that the clusters are in.
    pub subscription: String,
    /// The client id of who owns it.
    pub client: String,
    /// Its secret.
    pub secret: String,
    /// Number of clusters.
    pub count: u32,
}

/// What was done.
#[derive(Debug, Serialize, Deserialize)]
pub struct Done {
    /// Clusters that the API took.
    pub registered: u32,
}

/// Registers them, and writes [`Done`] to standard output.
///
/// # Errors
/// A plan that cannot be read, a write that is refused.
#[tokio::main(flavor = "current_thread")]
pub async fn main() -> anyhow::Result<()> {
    let plan: Plan = serde_json::from_reader(std::io::stdin())?;
    let client = client(&plan, Some(&token(&plan).await?))?;
    let group = format!("/subscriptions/{}/resourceGroups/{GROUP}", plan.subscription);
    let place = json!({"location": "local"});
    client.call(Method::PUT, &format!("{group}?api-version=2021-04-01"), JSON, place.to_string()).await?;
    // Nobody proves to have it, so one key does for all.
    let key = RsaKeyPair::generate(KeySize::Rsa2048).context("an RSA key")?;
    let body = cluster(key.public_key().as_ref()).to_string();
    let writes = stream::iter(0..plan.count).map(|number| {
        let path = format!(
            "{group}/providers/Microsoft.Kubernetes/connectedClusters/registered-{number}?api-version=2024-01-01"
        );
        let (client, body) = (&client, body.clone());
        async move { client.call(Method::PUT, &path, JSON, body).await }
    });
    let registered = writes.buffer_unordered(AT_ONCE).try_fold(0, |count, _| async move { Ok(count + 1) }).await?;
    crate::print::say(&serde_json::to_string(&Done { registered })?);
    Ok(())
}

/// A cluster's resource, whose agents would have this key.
fn cluster(key: &[u8]) -> Value {
    json!({
        "location": "local", "identity": {"type": "SystemAssigned"}, "tags": {"stage": "production"},
        "properties": {"agentPublicKeyCertificate": BASE64.encode(key)},
    })
}

fn client(plan: &Plan, token: Option<&str>) -> anyhow::Result<Client> {
    let target = Target::new(&plan.url, &plan.ca, token)?;
    Ok(Client::new(target.into(), Connections::Http2(1)))
}

/// A token of the owner for the gateway's API.
async fn token(plan: &Plan) -> anyhow::Result<String> {
    let Plan { url, tenant, client: id, secret, .. } = plan;
    let scope = format!("{url}/.default").replace(':', "%3A").replace('/', "%2F");
    let form = format!("grant_type=client_credentials&client_id={id}&client_secret={secret}&scope={scope}");
    let client = client(plan, None)?;
    let answer = client.call(Method::POST, &format!("/{tenant}/oauth2/v2.0/token"), FORM, form).await?;
    let answer: Value = serde_json::from_slice(&answer)?;
    Ok(answer["access_token"].as_str().context("no access_token")?.to_owned())
}
