//! The real cluster of `tests/cluster`: brought up once for the run, by whoever needs it first.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
    time::Duration,
};

use anyhow::Context;

use crate::programs::{Program, eventually, free_port, root, run};

/// The running cluster's settings, as `tests/cluster/cluster env` prints them.
pub struct Cluster {
    settings: HashMap<String, String>,
}

/// The cluster, brought up if it does not run. Panics with the reason when it cannot be had: that is a failure of every
/// test that asks, not a skip.
pub fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    CLUSTER.get_or_init(|| Cluster::up(&[]).unwrap_or_else(|error| panic!("no cluster: {error:?}")))
}

/// Whether a cluster can be brought up here: always, as far as can be told before trying.
pub fn available() -> bool {
    script().exists()
}

/// Whether pods run: only as root.
pub fn has_node() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        available() && std::env::var("CLUSTER_NODE").as_deref() != Ok("0") && cluster().get("CLUSTER_HAS_NODE") == "1"
    })
}

fn script() -> PathBuf {
    root().join("tests/cluster/cluster")
}

/// A cluster that one test has for itself: a control plane without a node, whose apiserver has flags of the test. It ends
/// when it is dropped.
pub struct OwnCluster {
    cluster: Cluster,
    environment: Vec<(&'static str, String)>,
}

impl OwnCluster {
    /// Starts it, in a folder that is made, with these flags for the apiserver.
    pub fn up(dir: &Path, flags: &[String]) -> anyhow::Result<Self> {
        // First, so that it has its ports: nobody else knows which those are.
        cluster();
        let mut free = Command::new(script());
        // A base that is set, or that a cluster of the same state has, would be that one.
        free.arg("free-base").env("CLUSTER_STATE", dir).env_remove("CLUSTER_PORT_BASE");
        let base = run(&mut free, Duration::from_secs(30))?.ok()?;
        let environment = vec![
            ("CLUSTER_STATE", dir.display().to_string()),
            ("CLUSTER_PORT_BASE", base.trim().to_owned()),
            ("CLUSTER_NODE", "0".to_owned()),
            ("CLUSTER_APISERVER_FLAGS", flags.join(" ")),
        ];
        let cluster = Cluster::up(&environment)?;
        Ok(Self { cluster, environment })
    }
}

impl std::ops::Deref for OwnCluster {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        &self.cluster
    }
}

impl Drop for OwnCluster {
    fn drop(&mut self) {
        let mut command = Command::new(script());
        command.arg("down").envs(self.environment.iter().map(|(key, value)| (key, value)));
        if let Err(error) = run(&mut command, Duration::from_secs(60)) {
            eprintln!("the cluster of a test is left: {error:?}");
        }
    }
}

/// Another apiserver of a cluster, with flags of a test: what is kept is the same behind both. It ends when it is
/// dropped.
pub struct AnotherApiserver {
    /// Its URL; the cluster's authority signed its certificate.
    pub url: String,
    _program: Program,
}

impl AnotherApiserver {
    /// Starts it, with a log in `dir`; `port` is one of before, for who comes in the place of another one.
    pub fn start(dir: &Path, port: Option<u16>, flags: &[String]) -> anyhow::Result<Self> {
        let cluster = cluster();
        let host = cluster.get("CLUSTER_HOST_IP");
        let port = port.map_or_else(|| free_port(host), Ok)?;
        let mut line = Command::new(script());
        line.args(["--state", cluster.get("CLUSTER_STATE"), "another-apiserver", &port.to_string()]).args(flags);
        let line = run(&mut line, Duration::from_secs(30))?.ok()?;
        let mut words = line.lines();
        let mut command = Command::new(words.next().context("no command line")?);
        command.args(words);
        let program = Program::start("another apiserver", command, &dir.join("another-apiserver.log"))?;
        let url = format!("https://{host}:{port}");
        let ready = ["--server", &url, "get", "--raw", "/readyz"];
        let admin = cluster.admin();
        eventually("another apiserver is ready", Duration::from_secs(90), || Ok(admin.run(&ready)?.code == Some(0)))
            .with_context(|| program.tail())?;
        Ok(Self { url, _program: program })
    }

    /// The port that it listens on.
    pub fn port(&self) -> Option<u16> {
        self.url.rsplit_once(':')?.1.parse().ok()
    }
}

impl Cluster {
    fn up(environment: &[(&'static str, String)]) -> anyhow::Result<Self> {
        let script = |word: &str| {
            let mut command = Command::new(script());
            command.arg(word).envs(environment.iter().map(|(key, value)| (key, value)));
            command
        };
        // Building the programs the first time takes minutes; the script shows its progress.
        let status = script("up").stdout(std::io::stderr()).status().context("run tests/cluster/cluster up")?;
        anyhow::ensure!(status.success(), "tests/cluster/cluster up failed");
        let text = run(&mut script("env"), Duration::from_secs(30))?.ok()?;
        let settings = text
            .lines()
            .filter_map(|line| line.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.trim_matches(['\'', '"']).to_owned()))
            .collect();
        Ok(Self { settings })
    }

    /// A setting; empty if there is none of that name.
    pub fn get(&self, key: &str) -> &str {
        self.settings.get(key).map_or("", String::as_str)
    }

    /// Path of the cluster administrator's kubeconfig.
    pub fn admin_kubeconfig(&self) -> &Path {
        Path::new(self.get("KUBECONFIG"))
    }
}
