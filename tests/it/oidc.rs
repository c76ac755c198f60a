//! An issuer that is somebody else's program: a real OpenID provider, which gateway and agent read by discovery, and whose ID
//! tokens with groups open the real cluster (features rows A1, A2; DESIGN.md section 2).

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};
use certs::{Authority, Validity};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    case::{Needs, case},
    cluster::cluster,
    kubectl::Kubectl,
    programs::{Program, eventually, root, run, scratch},
    stack::{Plan, Stack, note_secret},
};

pub fn tests() -> Vec<Trial> {
    vec![case("oidc::a1_people_of_a_real_provider_work_by_their_groups", Needs::Cluster, people)]
}

/// Where the provider's package is; installed when nobody has.
fn modules() -> anyhow::Result<PathBuf> {
    if let Some(modules) = std::env::var_os("TOWLINE_NODE_MODULES") {
        return Ok(modules.into());
    }
    let dir = root().join("target/node");
    let mut install = Command::new("npm");
    install.args([
        "install",
        "--silent",
        "--no-audit",
        "--no-fund",
        "--no-package-lock",
        "--install-links",
        "--prefix",
    ]);
    run(install.arg(&dir).arg(root().join("tests")), Duration::from_secs(300))?.ok()?;
    Ok(dir.join("node_modules"))
}

struct Provider {
    _program: Program,
    _folder: tempfile::TempDir,
    issuer: String,
    ca: PathBuf,
    tokens: Value,
}

impl Provider {
    fn start(users: &[&str]) -> anyhow::Result<Self> {
        // Away from what is swept for secrets: it has keys, and the package's own tests of keys are in it.
        let folder = tempfile::tempdir()?;
        let dir = folder.path();
        let authority = Authority::create("provider", Validity::days(1))?;
        let (certificate, key, ca) = (dir.join("tls.crt"), dir.join("tls.key"), dir.join("ca.crt"));
        authority.issue_server(&["127.0.0.1"], Validity::days(1))?.save(&certificate, &key)?;
        std::fs::write(&ca, authority.certificate_pem())?;
        // A module is found beside the script that asks for it.
        let script = dir.join("oidc_provider.mjs");
        std::fs::copy(root().join("tests/it/oidc_provider.mjs"), &script)?;
        let beside = dir.join("node_modules");
        std::os::unix::fs::symlink(modules()?, &beside)?;
        let mut command = Command::new("node");
        // It says nothing of where it is to be found behind a proxy, and none is wanted.
        command
            .arg("--preserve-symlinks")
            .arg(&script)
            .arg(&certificate)
            .arg(&key)
            .args(users)
            .env_remove("NODE_OPTIONS");
        command.env("NODE_EXTRA_CA_CERTS", &ca).stdout(Stdio::piped());
        let mut program = Program::start("provider", command, &scratch("oidc-provider").join("log"))?;
        let line: Value = serde_json::from_str(&program.first_line(Duration::from_secs(60))?)?;
        let issuer = line["issuer"].as_str().context("no issuer")?.to_owned();
        for token in line["tokens"].as_object().into_iter().flat_map(|tokens| tokens.values()) {
            note_secret(token.as_str().context("no token")?)?;
        }
        Ok(Self { _program: program, _folder: folder, issuer, ca, tokens: line["tokens"].clone() })
    }

    /// As in either configuration file.
    fn table(&self, audience: &str) -> String {
        format!(
            "\n[[issuers]]\nname = \"staff\"\nurl = \"{}\"\nca_file = \"{}\"\naudiences = [\"{audience}\"]\n\
             username_claim = \"preferred_username\"\nusername_prefix = \"staff:\"\ngroups_claim = \"groups\"\ngroups_prefix = \"staff:\"\n",
            self.issuer,
            self.ca.display()
        )
    }

    fn token(&self, user: &str) -> &str {
        self.tokens[user].as_str().unwrap_or_default()
    }
}

fn kubectl(stack: &Stack, dir: &Path, user: &str, token: &str) -> anyhow::Result<Kubectl> {
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {
            "server": format!("{}/{}", stack.text("url"), stack.key()), "certificate-authority": stack.ca(),
        }}],
        "users": [{"name": "u", "user": {"token": token}}],
    });
    let path = dir.join(format!("{user}.kubeconfig"));
    std::fs::write(&path, config.to_string())?;
    Ok(Kubectl::new(&path))
}

fn people() -> anyhow::Result<()> {
    let provider = Provider::start(&["ann", "bob"])?;
    let agents = provider.table("towline-cli");
    let stack = Stack::start(&Plan { agent_config: &agents, ..Plan::real("oidc") })?;
    stack.towline(&["dev", "grant", "--cluster", "dev", "--group", "staff:devs"])?.ok()?;
    let gateway = stack.state().join("gateway.toml");
    std::fs::write(&gateway, std::fs::read_to_string(&gateway)? + &provider.table("towline-cli"))?;
    cluster().admin().apply(
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: towline-test-oidc}\n\
         roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}\n\
         subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: 'staff:devs'}]\n",
    )?;
    let dir = scratch("oidc-users");
    let ann = kubectl(&stack, &dir, "ann", provider.token("ann"))?;
    eventually("the gateway has taken the issuer", Duration::from_secs(15), || {
        Ok(ann.run(&["version"])?.code == Some(0))
    })?;
    ann.ok(&["get", "pods", "-A"])?;
    let who: Value = serde_json::from_str(&ann.ok(&["auth", "whoami", "-o", "json"])?)?;
    let info = &who["status"]["userInfo"];
    ensure!(info["username"] == "staff:ann", "{who}");
    let groups = info["groups"].as_array().context("no groups")?;
    ensure!(["staff:devs", "staff:everybody"].iter().all(|group| groups.contains(&json!(group))), "{who}");
    let error = ann.run(&["get", "secrets", "-A"])?.refused()?;
    ensure!(error.contains("User \"staff:ann\" cannot list"), "{error}");
    // In no group that may come through; and a group of the same name is another issuer's without the prefix.
    let bob = kubectl(&stack, &dir, "bob", provider.token("bob"))?;
    ensure!(bob.run(&["get", "pods"])?.refused()?.to_lowercase().contains("forbidden"));
    // What somebody changed in a token that the provider signed.
    let (signed, signature) = provider.token("ann").rsplit_once('.').context("no token")?;
    let other: String = signature.chars().rev().collect();
    let forged = kubectl(&stack, &dir, "forged", &format!("{signed}.{other}"))?;
    let error = forged.run(&["get", "pods"])?.refused()?;
    ensure!(error.contains("Unauthorized") || error.contains("must be logged in"), "{error}");
    Ok(())
}
