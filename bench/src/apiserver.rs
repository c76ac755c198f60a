//! A real kube-apiserver as upstream: the cluster of `tests/cluster`, one of this run alone, with a pod to run commands
//! in.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::{
    link::{Link, Seat},
    program::output,
    upstream::Upstream,
};

const SCRIPT: &str = "tests/cluster/cluster";
/// Where it listens.
const BASE: &str = "CLUSTER_PORT_BASE";
/// Who commands are sent as, by a token of the cluster's own; and the pod that they run in.
pub const NAME: &str = "bench";
/// Whom the user of `towline dev` is to the cluster.
const USER: &str = "admin";

/// The cluster, ended when dropped.
pub struct Apiserver {
    /// Where the site reaches it.
    pub upstream: Upstream,
    /// kubectl of the same version.
    pub kubectl: PathBuf,
    _cluster: Cluster,
}

impl Apiserver {
    /// Brings it up, at the processor of upstreams, where all of the network reaches it. The first time its programs
    /// are built, which takes minutes.
    ///
    /// # Errors
    /// Whatever is missing on this machine.
    pub async fn start(link: &Link) -> anyhow::Result<Self> {
        let (cluster, settings) = Cluster::up(link).await?;
        let setting = |name: &str| settings.get(name).cloned().with_context(|| format!("{SCRIPT} env has no {name}"));
        ensure!(
            setting("CLUSTER_HAS_NODE")? == "1",
            "the cluster has no node here: it needs root (`{SCRIPT} up` says why)"
        );
        link.join_host()?;
        let address = setting("CLUSTER_API")?;
        let kubectl =
            Kubectl { program: setting("CLUSTER_KUBECTL")?.into(), kubeconfig: setting("KUBECONFIG")?.into() };
        kubectl.run(&["apply", "-f", "-"], &objects(&setting("CLUSTER_IMAGE")?).to_string()).await?;
        kubectl.run(&["wait", "--for=condition=Ready", "--timeout=60s", &format!("pod/{NAME}")], "").await?;
        let token = kubectl.run(&["create", "token", NAME, "--duration=24h"], "").await?.trim().to_owned();
        let upstream = Upstream {
            address: address.trim_start_matches("https://").to_owned(),
            name: "kubernetes",
            ca: setting("CLUSTER_CA")?.into(),
            token: Some(token),
            admin: kubectl.kubeconfig,
        };
        Ok(Self { upstream, kubectl: kubectl.program, _cluster: cluster })
    }
}

struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
}

impl Kubectl {
    async fn run(&self, args: &[&str], input: &str) -> anyhow::Result<String> {
        let mut command = Command::new(&self.program);
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(["--namespace", "default"]).args(args);
        output(command, input.as_bytes()).await
    }
}

/// A pod that does nothing, and the rights of both users.
fn objects(image: &str) -> Value {
    let rbac = "rbac.authorization.k8s.io";
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": NAME, "namespace": "default"}},
        {"apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": NAME},
         "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "cluster-admin"},
         "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": "default"},
                      {"apiGroup": rbac, "kind": "User", "name": USER}]},
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": NAME, "namespace": "default"}, "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": NAME, "image": image, "imagePullPolicy": "Never", "command": ["sleep", "86400"]}]}},
    ]})
}

/// The processes of the cluster.
struct Cluster {
    state: PathBuf,
}

impl Cluster {
    /// Brings it up; its settings.
    async fn up(link: &Link) -> anyhow::Result<(Self, BTreeMap<String, String>)> {
        let this = Self { state: Path::new(crate::record::KEPT).join("cluster") };
        std::fs::create_dir_all(crate::record::KEPT)?;
        let mut up = this.command(link.command_of_host(Seat::Upstream, Path::new(SCRIPT)), "up");
        up.stdin(Stdio::null()).stdout(Stdio::null());
        // Who starts several at once says where each may be.
        if std::env::var_os(BASE).is_none() {
            up.env(BASE, output(this.command(Command::new(SCRIPT), "free-base"), b"").await?.trim());
        }
        let status = tokio::process::Command::from(up).status().await.context(SCRIPT)?;
        ensure!(status.success(), "`{SCRIPT} up` has failed: {status}");
        let env = output(this.command(Command::new(SCRIPT), "env"), b"").await?;
        Ok((this, settings(&env)))
    }

    fn command(&self, mut command: Command, word: &str) -> Command {
        command.arg("--state").arg(&self.state).arg(word);
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let mut down = self.command(Command::new(SCRIPT), "down");
        if !down.stdin(Stdio::null()).status().is_ok_and(|status| status.success()) {
            crate::print::progress(&format!(
                "a cluster may be left behind: `{SCRIPT} --state {} down`",
                self.state.display()
            ));
        }
    }
}

/// Parses lines of the form `KEY=value`.
fn settings(text: &str) -> BTreeMap<String, String> {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(key, value)| (key.to_owned(), value.trim_matches(['\'', '"']).to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_with_and_without_quotes() {
        let seen = settings("A=1\nB='x y'\nnothing\nC=a=b\n");
        assert_eq!(
            seen.iter().map(|(key, value)| format!("{key}:{value}")).collect::<Vec<_>>(),
            ["A:1", "B:x y", "C:a=b"]
        );
    }
}
