//! kubectl as users run it: the cluster's version and an old one, with either upgrade protocol.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use crate::{
    cluster::{Cluster, cluster},
    programs::{Output, keep, run, run_with_input, scratch_root},
};

/// How kubectl asks for an upgraded connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// SPDY, as `Upgrade: SPDY/3.1` asks for it.
    Spdy,
    /// WebSocket, as `Upgrade: websocket` asks for it.
    WebSocket,
}

impl Protocol {
    /// Every protocol, for tests that run once with each.
    pub const ALL: [Self; 2] = [Self::Spdy, Self::WebSocket];
}

/// A kubectl with a kubeconfig.
#[derive(Clone)]
pub struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    /// Where it keeps its caches.
    home: PathBuf,
    protocol: Protocol,
    within: Duration,
    namespace: Option<String>,
}

impl Cluster {
    /// kubectl as cluster administrator, not through the tunnel.
    pub fn admin(&self) -> Kubectl {
        // The cluster's own folder is to hold nothing of ours: it would not be taken for a cluster's any more.
        Kubectl::new(self.admin_kubeconfig()).home(scratch_root().join("home"))
    }
}

impl Kubectl {
    /// The cluster's version.
    pub fn new(kubeconfig: &Path) -> Self {
        Self {
            program: cluster().get("CLUSTER_KUBECTL").into(),
            kubeconfig: kubeconfig.to_owned(),
            home: kubeconfig.parent().unwrap().to_owned(),
            protocol: Protocol::WebSocket,
            within: Duration::from_secs(60),
            namespace: None,
        }
    }

    /// Debian's old one, 1.20, which knows SPDY only.
    #[must_use]
    pub fn old(mut self) -> Self {
        self.program = cluster().get("CLUSTER_KUBECTL_OLD").into();
        self.protocol = Protocol::Spdy;
        self
    }

    /// Whether it is the old one.
    pub fn is_old(&self) -> bool {
        self.program.as_os_str() == cluster().get("CLUSTER_KUBECTL_OLD")
    }

    /// With its caches in another folder than the kubeconfig's.
    #[must_use]
    pub fn home(mut self, home: PathBuf) -> Self {
        self.home = home;
        self
    }

    /// With this upgrade protocol.
    #[must_use]
    pub fn protocol(mut self, protocol: Protocol) -> Self {
        self.protocol = protocol;
        self
    }

    /// In this namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    /// With a bound on how long a command may take.
    #[must_use]
    pub fn within(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }

    /// The command, for what needs it as a process.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        let websocket = (self.protocol == Protocol::WebSocket).to_string();
        command
            // A fifth of the processor time of a short command is the collection of garbage that its end would free.
            .envs([("GOGC", "off"), ("GOMEMLIMIT", "512MiB")])
            .env("KUBECONFIG", &self.kubeconfig)
            .env("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", &websocket)
            .env("KUBECTL_PORT_FORWARD_WEBSOCKETS", &websocket)
            .env("HOME", &self.home);
        if let Some(namespace) = &self.namespace {
            command.args(["--namespace", namespace]);
        }
        command.args(args);
        command
    }

    /// Runs to the end.
    pub fn run(&self, args: &[&str]) -> anyhow::Result<Output> {
        self.kept(run(&mut self.command(args), self.within)?)
    }

    /// Runs to the end with bytes for standard input.
    pub fn run_with(&self, args: &[&str], input: &[u8]) -> anyhow::Result<Output> {
        self.kept(run_with_input(&mut self.command(args), Some(input), self.within)?)
    }

    /// What it said on standard error is kept for the sweep for secrets.
    fn kept(&self, output: Output) -> anyhow::Result<Output> {
        keep(&self.home.join("kubectl.stderr"), &output.err);
        Ok(output)
    }

    /// Runs; an exit code other than 0 is an error. Returns standard output.
    pub fn ok(&self, args: &[&str]) -> anyhow::Result<String> {
        use anyhow::Context;
        self.run(args)?.ok().with_context(|| format!("kubectl {}", args.join(" ")))
    }

    /// Applies a manifest.
    pub fn apply(&self, manifest: &str) -> anyhow::Result<String> {
        self.run_with(&["apply", "-f", "-"], manifest.as_bytes())?.ok()
    }
}

/// A pod of the test image that runs `script` in a shell.
pub fn pod(name: &str, script: &str) -> String {
    let image = cluster().get("CLUSTER_IMAGE");
    let script = serde_json::to_string(script).unwrap();
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, labels: {{app: {name}}}}}\nspec:\n  terminationGracePeriodSeconds: 0\n  containers:\n  - name: main\n    image: {image}\n    imagePullPolicy: Never\n    stdin: true\n    command: [sh, -c, {script}]\n"
    )
}
