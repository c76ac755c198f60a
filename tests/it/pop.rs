//! Proof-of-possession tokens through kubectl on the real cluster (docs/features.md A5). The issuer is of
//! the test's own making: Microsoft's claims, one audience for all clusters as there, access tokens bound to a key that
//! the user holds. The proof is written as Azure's credential plugin writes it, and kubectl shows it as a bearer token.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context, ensure};
use auth::token::testing::{TestIssuer, TestKey, unix_seconds};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    case::{Needs, case},
    cluster::cluster,
    kubectl::Kubectl,
    programs::eventually,
    stack::{CARRIERS, Plan, Stack, note_secret},
};

/// The server application of Azure's clusters: the audience of every access token, whatever the cluster.
const SERVER_APP: &str = "6256c85f-0aad-4d50-b960-e6e9b21efe35";
const ISSUER: &str = "https://issuer.towline.test/tenant/v2.0";
/// The agent takes proofs of 15 minutes; the gateway of this test older ones, so that what the agent refuses is seen.
const GATEWAY_VALIDITY: Duration = Duration::from_secs(3600);

pub fn tests() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (place, carrier) in CARRIERS.into_iter().enumerate() {
        if tests::case::full() || place == 0 {
            trials.push(case(format!("pop::kubectl_shows_proofs::{carrier}"), Needs::Cluster, move || proofs(carrier)));
        }
    }
    trials
}

struct Site {
    stack: Stack,
    issuer: TestIssuer,
    holder: TestKey,
    arm_id: String,
}

impl Site {
    fn new(carrier: &'static str) -> anyhow::Result<Self> {
        let issuer = TestIssuer::new(ISSUER);
        let keys = tests::programs::scratch("pop-keys").join("keys.json");
        std::fs::write(&keys, issuer.jwks().to_string())?;
        let agents = issuer_table(&keys, Duration::from_secs(900));
        let plan = Plan { carrier: Some(carrier), agent_config: &agents, ..Plan::real("pop") };
        let stack = Stack::start(&plan)?;
        stack.towline(&["dev", "grant", "--cluster", "dev", "--user", "pop:ann@example.org"])?.ok()?;
        let gateway = stack.state().join("gateway.toml");
        let text = std::fs::read_to_string(&gateway)? + &issuer_table(&keys, GATEWAY_VALIDITY);
        std::fs::write(&gateway, text)?;
        let arm_id = stack.info["clusters"][0]["id"].as_str().context("no id")?.to_owned();
        Ok(Self { stack, issuer, holder: TestKey::rs256("holder", 1), arm_id })
    }

    /// An access token of a user, bound to a key as Microsoft's issuer binds it (`xms_ksl`: a key in software).
    fn access_token(&self, user: &str, key: &TestKey) -> anyhow::Result<String> {
        let mut claims = self.issuer.claims(&format!("{user}-subject"), SERVER_APP, SystemTime::now());
        claims["oid"] = json!(format!("00000000-0000-0000-0000-{:012}", user.len()));
        claims["upn"] = json!(format!("{user}@example.org"));
        claims["scp"] = json!("user.read");
        claims["cnf"] = json!({"kid": key.thumbprint(), "xms_ksl": "sw"});
        let token = self.issuer.mint(&claims);
        note_secret(&token)?;
        Ok(token)
    }

    fn payload(&self, user: &str) -> anyhow::Result<Value> {
        let jwk = self.holder.jwk();
        let (e, n, kid) = (&jwk["e"], &jwk["n"], self.holder.thumbprint());
        Ok(json!({
            "at": self.access_token(user, &self.holder)?,
            "ts": unix_seconds(SystemTime::now()),
            "u": self.arm_id,
            "cnf": {"jwk": {"e": e, "kty": "RSA", "n": n, "alg": "RS256", "kid": kid}},
            "nonce": "00000000-0000-4000-8000-000000000000",
        }))
    }

    /// Signs a payload with a key, under the holder's name.
    fn proof(&self, payload: &Value, signer: &TestKey) -> anyhow::Result<String> {
        let header = json!({"typ": "pop", "alg": "RS256", "kid": self.holder.thumbprint()});
        let token = signer.jws(&header, payload.to_string().as_bytes());
        note_secret(&token)?;
        Ok(token)
    }

    /// A kubeconfig whose credential plugin prints the token in `token.key` beside it and counts its calls.
    fn plugin(&self) -> anyhow::Result<Plugin> {
        let dir = tests::programs::scratch("pop-plugin");
        let script = dir.join("plugin");
        std::fs::write(
            &script,
            format!(
                "#!/bin/sh\ncd {} || exit\necho called >>calls\nprintf '{{\"apiVersion\":\"client.authentication.k8s.io/v1beta1\",\"kind\":\"ExecCredential\",\"status\":{{\"token\":\"%s\"}}}}' \"$(cat token.key)\"\n",
                dir.display()
            ),
        )?;
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {
                "server": format!("{}/{}", self.stack.text("url").trim_end_matches('/'), self.stack.key()),
                "certificate-authority": self.stack.ca(),
            }}],
            "users": [{"name": "u", "user": {"exec": {
                "apiVersion": "client.authentication.k8s.io/v1beta1", "command": script,
                "interactiveMode": "Never",
            }}}],
        });
        let path = dir.join("pop.kubeconfig");
        std::fs::write(&path, config.to_string())?;
        Ok(Plugin { kubectl: Kubectl::new(&path).within(Duration::from_secs(90)), dir })
    }
}

struct Plugin {
    dir: PathBuf,
    kubectl: Kubectl,
}

impl Plugin {
    fn shows(&self, token: &str) -> anyhow::Result<&Kubectl> {
        std::fs::write(self.dir.join("token.key"), token)?;
        Ok(&self.kubectl)
    }

    fn calls(&self) -> usize {
        std::fs::read_to_string(self.dir.join("calls")).unwrap_or_default().lines().count()
    }
}

fn issuer_table(keys: &Path, validity: Duration) -> String {
    format!(
        "\n[[issuers]]\nname = \"tenant\"\nkind = \"entra\"\nurl = \"{ISSUER}\"\nkeys_file = \"{}\"\naudiences = [\"{SERVER_APP}\"]\n\
         username_prefix = \"pop:\"\ngroups_prefix = \"pop:\"\npop = \"required\"\npop_validity = \"{}s\"\n",
        keys.display(),
        validity.as_secs()
    )
}

fn proofs(carrier: &'static str) -> anyhow::Result<()> {
    let site = Site::new(carrier)?;
    cluster().admin().apply(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: towline-test-pop}\n\
         roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}\n\
         subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: 'pop:ann@example.org'}]\n",
    )?;
    let plugin = site.plugin()?;
    let payload = site.payload("ann")?;
    let good = site.proof(&payload, &site.holder)?;
    let kubectl = plugin.shows(&good)?;
    eventually("the gateway has taken the issuer", Duration::from_secs(15), || {
        Ok(kubectl.run(&["version"])?.code == Some(0))
    })?;

    // One proof, many requests, two parties that check it, two kubectls: a nonce that was seen is no fault.
    for _ in 0..2 {
        ensure!(!kubectl.ok(&["get", "pods", "-A", "-o", "name", "--ignore-not-found"])?.contains("error"));
        let who = kubectl.ok(&["auth", "whoami", "-o", "json"])?;
        ensure!(who.contains("pop:ann@example.org"), "{who}");
    }
    ensure!(kubectl.clone().old().ok(&["get", "namespaces"])?.contains("default"));
    let error = kubectl.run(&["get", "secrets", "-n", "kube-system"])?.refused()?;
    ensure!(error.contains("User \"pop:ann@example.org\" cannot list"), "{error}");
    ensure!(plugin.calls() >= 6, "the plugin was asked {} times", plugin.calls());

    refused(&site, &plugin, &payload)?;
    looks_alike(&site)?;
    // After all that the good one still holds.
    plugin.shows(&good)?.ok(&["get", "pods", "-A"])?;
    Ok(())
}

/// What is not a good proof is a 401 for kubectl, and the same for whoever shows it under the scheme `PoP`.
fn refused(site: &Site, plugin: &Plugin, good: &Value) -> anyhow::Result<()> {
    let now = unix_seconds(SystemTime::now());
    let changed = |change: &dyn Fn(&mut Value)| {
        let mut payload = good.clone();
        change(&mut payload);
        site.proof(&payload, &site.holder)
    };
    let stranger = TestKey::rs256("stranger", 2);
    let bound_to_another = site.access_token("ann", &stranger)?;
    let cases = [
        ("for another cluster", changed(&|p| p["u"] = json!(format!("{}2", site.arm_id)))?),
        ("for no cluster", changed(&|p| drop(p.as_object_mut().map(|p| p.remove("u"))))?),
        ("too old for the gateway", changed(&|p| p["ts"] = json!(now - GATEWAY_VALIDITY.as_secs() - 5))?),
        ("too old for the agent alone", changed(&|p| p["ts"] = json!(now - 960))?),
        ("from the future", changed(&|p| p["ts"] = json!(now + 600))?),
        ("signed by another key", site.proof(good, &stranger)?),
        ("around a token bound to another key", changed(&|p| p["at"] = json!(bound_to_another))?),
        ("the access token alone", good["at"].as_str().unwrap_or_default().to_owned()),
    ];
    for (what, token) in &cases {
        let error = plugin.shows(token)?.run(&["get", "pods", "-A"])?.refused()?;
        ensure!(error.contains("Unauthorized") || error.contains("must be logged in"), "{what}: {error}");
        for scheme in ["Bearer", "PoP"] {
            let status = get(site, scheme, token, &site.stack.key())?.status;
            ensure!(status == 401, "{what}: {status} as {scheme}");
        }
    }
    let good = site.proof(good, &site.holder)?;
    for scheme in ["Bearer", "PoP"] {
        let status = get(site, scheme, &good, &site.stack.key())?.status;
        ensure!(status == 200, "the good one: {status} as {scheme}");
    }
    Ok(())
}

/// The holder of the key writes `u` at will: a cluster that is there and forbidden must look like one that is not.
fn looks_alike(site: &Site) -> anyhow::Result<()> {
    let guessed = format!("{}-guessed", site.arm_id);
    let guessed_key = guessed.parse::<types::ids::ClusterId>()?.key().hex();
    let ask = |arm_id: &str, key: &str| -> anyhow::Result<(u16, String)> {
        let mut payload = site.payload("nobody")?;
        payload["u"] = json!(arm_id);
        let answer = get(site, "Bearer", &site.proof(&payload, &site.holder)?, key)?;
        let mut body = answer.json()?;
        // The request's own id and the key that the user wrote are all that may differ.
        body["details"]["uid"] = Value::Null;
        let text = body.to_string().replace(key, "KEY");
        let id =
            text.split(|c: char| !c.is_ascii_hexdigit()).find(|part| part.len() == 32).unwrap_or("none").to_owned();
        Ok((answer.status, text.replace(&id, "ID")))
    };
    let (known, unknown) = (ask(&site.arm_id, &site.stack.key())?, ask(&guessed, &guessed_key)?);
    ensure!(known.0 == 403, "{known:?}");
    ensure!(known == unknown, "{known:?}\n{unknown:?}");
    Ok(())
}

fn get(site: &Site, scheme: &str, token: &str, key: &str) -> anyhow::Result<tests::raw::Answer> {
    let mut raw = site.stack.raw()?;
    let authority = site.stack.authority();
    raw.send(
        format!("GET /{key}/api/v1/pods HTTP/1.1\r\nHost: {authority}\r\nAuthorization: {scheme} {token}\r\n\r\n")
            .as_bytes(),
    )?;
    raw.answer()
}
