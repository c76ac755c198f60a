//! `towline dev` names its cluster in the gateway's configuration, which is then the one authority for that id. Here
//! the cluster becomes a resource of the API, with an agent that has enrolled as any other.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, ensure};
use base64::{Engine as _, engine::general_purpose::STANDARD as BASE64};
use rcgen::{
    CertificateParams, DistinguishedName, KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_RSA_SHA256, PublicKeyData as _,
    SigningKey as _,
};
use serde_json::{Value, json};
use types::{
    agent_api::{encode, enrolment_message},
    ids::ClusterId,
};

use super::{Stack, start_agent};
use crate::{programs::eventually, raw::Raw};

/// A cluster that was given to the API.
pub struct Resource {
    /// ARM id of the resource.
    pub id: String,
    /// What was written, with its onboarding key.
    pub body: Value,
}

impl Stack {
    /// Takes the cluster out of the configuration, with the grants for it, and connects it as a resource: `put` writes
    /// a body at an id of the API.
    pub fn connect_as_resource(
        &self,
        mut body: Value,
        put: impl Fn(&str, &Value) -> anyhow::Result<()>,
    ) -> anyhow::Result<Resource> {
        let id = self.info["clusters"][0]["id"].as_str().context("no id")?.to_owned();
        let (group, _) = id.split_once("/providers/").context("no resource group")?;
        self.release(&id)?;
        put(group, &json!({"location": "local"}))?;
        let key = KeyPair::generate_for(&PKCS_RSA_SHA256)?;
        body["properties"]["agentPublicKeyCertificate"] = BASE64.encode(key.subject_public_key_info()).into();
        put(&id, &body)?;
        self.enrol(&id.parse()?, &key)?;
        Ok(Resource { id, body })
    }

    /// Waits until the configuration is without the cluster.
    fn release(&self, id: &str) -> anyhow::Result<()> {
        let file = self.state().join("gateway.toml");
        let text = std::fs::read_to_string(&file)?;
        let kept = without(&text, id);
        ensure!(kept != text, "{} does not name {id}", file.display());
        std::fs::write(&file, kept)?;
        eventually("the gateway has let the cluster go", Duration::from_secs(15), || {
            Ok(self.get("admin", "/version")?.status != 200 && self.tunnels()?.is_empty())
        })
        .map(drop)
    }

    /// Starts the gateway again, as [`Self::restart_gateway`], where the cluster is a resource: `towline dev` writes it into
    /// its configuration again.
    pub fn restart_gateway_of_resource(&self) -> anyhow::Result<()> {
        self.restart_gateway()?;
        let id = self.info["clusters"][0]["id"].as_str().context("no id")?;
        let file = self.state().join("gateway.toml");
        std::fs::write(&file, without(&std::fs::read_to_string(&file)?, id))?;
        // Before that its agent, which has the certificate of a resource, is refused; it may wait for twice 30 s then, for
        // what a refusal says and for what it adds itself.
        eventually("the gateway has let the cluster go again, and its agent is back", Duration::from_secs(120), || {
            Ok(!self.tunnels()?.is_empty())
        })
        .map(drop)
    }

    /// Gets a certificate for the onboarding key, and starts the agent anew with it.
    fn enrol(&self, id: &ClusterId, key: &KeyPair) -> anyhow::Result<()> {
        let (certificate, own) = enrolled(|| self.raw(), &self.authority(), id, key)?;
        let config = PathBuf::from(self.info["clusters"][0]["agent_config"].as_str().context("no agent_config")?);
        let folder = config.parent().context("a folder")?;
        let mut agent = self.agent.lock().unwrap();
        agent.kill();
        std::fs::write(folder.join("tls.crt"), certificate)?;
        std::fs::write(folder.join("tls.key"), own)?;
        *agent = start_agent(&self.agent_start)?;
        drop(agent);
        eventually("the agent has a tunnel as the resource's", Duration::from_secs(20), || {
            Ok(!self.tunnels()?.is_empty())
        })
        .map(drop)
    }
}

/// A certificate for an agent, and its private key, both PEM, from the gateway at the other end of `raw`, for the
/// onboarding key of a cluster.
pub fn enrolled(
    raw: impl Fn() -> anyhow::Result<Raw>,
    authority: &str,
    id: &ClusterId,
    key: &KeyPair,
) -> anyhow::Result<(String, String)> {
    let ask = |what: &str, body: &Value| -> anyhow::Result<Value> {
        let (mut raw, body) = (raw()?, body.to_string());
        let head = format!(
            "POST /.towline/agent/{what} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        raw.send(format!("{head}{body}").as_bytes())?;
        let answer = raw.answer()?;
        ensure!(answer.status == 200, "{what}: {}", String::from_utf8_lossy(&answer.body));
        answer.json()
    };
    let told = ask("challenge", &json!({"clusterId": id.as_str()}))?;
    let challenge = told["challenge"].as_str().context("no challenge")?;
    let own = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let csr = encode(params.serialize_request(&own)?.der());
    let uid = format!("of-{:.32}", id.key().hex());
    let signature = key.sign(&enrolment_message(id, challenge, &csr, &uid))?;
    let issued = ask(
        "certificate",
        &json!({
            "clusterId": id.as_str(),
            "challenge": challenge,
            "csr": csr,
            "kubeSystemUid": uid,
            "signature": encode(&signature),
            "agentVersion": "test",
        }),
    )?;
    Ok((issued["certificate"].as_str().context("no certificate")?.to_owned(), own.serialize_pem()))
}

/// A gateway's configuration without a cluster, and without the grants for it alone.
fn without(text: &str, id: &str) -> String {
    let mut kept = String::new();
    for section in text.split_inclusive("\n\n") {
        let header = section.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
        let is_named = section.lines().any(|line| {
            let value = line.split_once('=').filter(|(key, _)| matches!(key.trim(), "id" | "cluster"));
            value.is_some_and(|(_, value)| value.trim().trim_matches('"').eq_ignore_ascii_case(id))
        });
        if !(matches!(header, "[[clusters]]" | "[[grants]]") && is_named) {
            kept += section;
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cluster_and_its_grants_are_left_out() {
        let text = "[api]\nurl = \"x\"\n\n[[clusters]]\nid = \"/a\"\n\n[[clusters]]\nid = \"/b\"\n\n[[grants]]\ncluster = \"/a\"\nusers = []\n\n[[grants]]\ncluster = \"*\"\n\n[tls]\nx = 1\n";
        let kept = "[api]\nurl = \"x\"\n\n[[clusters]]\nid = \"/b\"\n\n[[grants]]\ncluster = \"*\"\n\n[tls]\nx = 1\n";
        assert_eq!(without(text, "/A"), kept);
    }
}
