//! Writes while apiservers end their HTTP/2 connections, at random (`--goaway-chance`) and because they restart one
//! after the other behind a balancer: what was not processed is sent again, and none is carried out twice.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::json;
use tests::{
    case::{Needs, loads},
    cluster::cluster,
    curl::{Version, ask, curl},
    programs::{Program, eventually, free_port, run, scratch},
    stack::{Plan, Stack, grant_in_cluster},
};

pub fn tests() -> Vec<Trial> {
    vec![loads(
        "resent::writes_survive_goaway_and_restarts_of_three_apiservers",
        Needs::Cluster,
        writes_survive_goaway_and_restarts_of_three_apiservers,
    )]
}

const NAMESPACE: &str = "resent";
/// Requests at a time.
const BATCH: usize = 100;
/// Times that as many are written and deleted while no apiserver restarts: some hundred, of which each fiftieth brings
/// a GOAWAY, the most that an apiserver can be told.
const BATCHES: usize = 4;

fn writes_survive_goaway_and_restarts_of_three_apiservers() -> anyhow::Result<()> {
    let dir = scratch("resent");
    grant_in_cluster()?;
    cluster().admin().run(&["delete", "namespace", NAMESPACE, "--ignore-not-found", "--wait=true"])?;
    cluster().admin().ok(&["create", "namespace", NAMESPACE])?;
    let mut apiservers = (0..3).map(|number| Apiserver::start(&dir, number)).collect::<Result<Vec<_>, _>>()?;
    let (_balancer, address) = balancer(&dir, &apiservers)?;
    let stack = Stack::start(&Plan {
        apiserver: kubeconfig(&dir, &address)?,
        agent_config: "\n[log]\nlevel = \"info,agent=debug\"\n",
        ..Plan::real("resent")
    })?;
    let writer = Writer { stack: &stack, token: stack.token("admin")? };
    for _ in 0..BATCHES {
        // Each of them at the first try.
        ensure!(writer.write(BATCH)? == 0, "no apiserver restarts, and yet a write was put off");
    }
    let names = objects()?;
    ensure!(names.len() == BATCHES * BATCH, "{} objects of {} writes", names.len(), BATCHES * BATCH);
    writer.delete(&names)?;
    ensure!(objects()?.is_empty(), "what was deleted is still there");

    let over = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut written = 0;
            while !over.load(Ordering::Relaxed) {
                let mut left = BATCH / 4;
                written += left;
                while left > 0 {
                    left = writer.write(left)?;
                }
            }
            anyhow::Ok(written)
        });
        let restarted = apiservers.iter_mut().try_for_each(Apiserver::restart);
        over.store(true, Ordering::Relaxed);
        let written = writing.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?;
        restarted.and(written)
    })?;
    let there = objects()?.len();
    ensure!(there == written, "{there} objects of {written} writes");
    // Else nothing was tried.
    let log = std::fs::read_to_string(stack.dir.join("agent.log"))?;
    ensure!(log.contains("the apiserver did not process a request"), "no apiserver left a request undone");
    cluster().admin().ok(&["delete", "namespace", NAMESPACE, "--wait=false"])?;
    Ok(())
}

/// Names of what was written.
fn objects() -> anyhow::Result<Vec<String>> {
    let names = cluster().admin().namespace(NAMESPACE).ok(&["get", "secrets", "-o", "name"])?;
    Ok(names.lines().filter_map(|line| line.strip_prefix("secret/")).map(str::to_owned).collect())
}

/// Who writes through the tunnel.
struct Writer<'a> {
    stack: &'a Stack,
    token: String,
}

impl Writer<'_> {
    const COLLECTION: &'static str = "/api/v1/namespaces/resent/secrets";

    /// Makes `count` objects at once. How many were put off: the answer says that nothing was done, and when to try
    /// again.
    fn write(&self, count: usize) -> anyhow::Result<usize> {
        let body = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"generateName": "w-"},
            "stringData": {"filling": "x".repeat(20_000)},
        });
        let paths = vec![Self::COLLECTION.to_owned(); count];
        let answers = curl(self.stack, Version::Http2, &self.token, &paths, Some(&body.to_string()))?;
        let mut put_off = 0;
        for answer in answers {
            match answer.status {
                201 => {}
                429 | 503 if !answer.headers("retry-after").is_empty() => put_off += 1,
                _ => anyhow::bail!("{}{}", answer.head, String::from_utf8_lossy(&answer.body)),
            }
        }
        Ok(put_off)
    }

    /// Deletes these, each once.
    fn delete(&self, names: &[String]) -> anyhow::Result<()> {
        let paths: Vec<_> = names.iter().map(|name| format!("{}/{name}", Self::COLLECTION)).collect();
        for answer in ask(self.stack, Version::Http2, &self.token, &paths, "DELETE", None)? {
            ensure!(answer.status == 200, "{}{}", answer.head, String::from_utf8_lossy(&answer.body));
        }
        Ok(())
    }
}

/// One more apiserver of the cluster, beside its own.
struct Apiserver {
    address: String,
    command: Vec<String>,
    log: PathBuf,
    program: Program,
}

impl Apiserver {
    fn start(dir: &Path, number: usize) -> anyhow::Result<Self> {
        // As the cluster's own was started.
        let state = Path::new(cluster().get("CLUSTER_STATE"));
        let pid = std::fs::read_to_string(state.join("pids/kube-apiserver"))?;
        let pid = pid.split_whitespace().next().context("no process id of the cluster's apiserver")?;
        let command = std::fs::read(format!("/proc/{pid}/cmdline"))?;
        let command = String::from_utf8(command)?;
        let host = host()?;
        let port = free_port(&host)?;
        let own = ["--secure-port=", "--goaway-chance=", "--shutdown-delay-duration=", "--endpoint-reconciler-type="];
        let mut command: Vec<String> = command
            .split('\0')
            .filter(|word| !word.is_empty() && !own.iter().any(|flag| word.starts_with(flag)))
            .map(str::to_owned)
            .collect();
        command.extend([
            format!("--secure-port={port}"),
            "--goaway-chance=0.02".to_owned(),
            // Until the balancer has seen that it is not ready.
            "--shutdown-delay-duration=3s".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
        ]);
        let log = dir.join(format!("apiserver-{number}.log"));
        let program = Self::run(&command, &log)?;
        let this = Self { address: format!("{host}:{port}"), command, log, program };
        this.await_ready()?;
        Ok(this)
    }

    fn run(words: &[String], log: &Path) -> anyhow::Result<Program> {
        let (program, flags) = words.split_first().context("no command")?;
        let mut command = Command::new(program);
        command.args(flags).stdout(Stdio::null());
        Program::start("kube-apiserver", command, log)
    }

    fn await_ready(&self) -> anyhow::Result<()> {
        let url = format!("https://{}/readyz", self.address);
        eventually("an apiserver is ready", Duration::from_secs(120), || {
            let mut asked = Command::new("curl");
            asked.args(["--silent", "--fail", "--max-time", "5", "--cacert", cluster().get("CLUSTER_CA"), &url]);
            Ok(run(&mut asked, Duration::from_secs(10))?.code == Some(0))
        })
        .map(drop)
        .with_context(|| self.program.tail())
    }

    /// As an upgrade of the control plane does it.
    fn restart(&mut self) -> anyhow::Result<()> {
        self.program.signal("TERM")?;
        self.program.wait(Duration::from_secs(90)).with_context(|| self.program.tail())?;
        self.program = Self::run(&self.command, &self.log)?;
        self.await_ready()
    }
}

/// Where apiservers of the cluster listen.
fn host() -> anyhow::Result<String> {
    let api = cluster().get("CLUSTER_API");
    let (host, _) = api.trim_start_matches("https://").rsplit_once(':').context("no port")?;
    Ok(host.to_owned())
}

/// A balancer in front of all of them, and its address. It ends no TLS, and asks whether they are ready.
fn balancer(dir: &Path, apiservers: &[Apiserver]) -> anyhow::Result<(Program, String)> {
    let host = host()?;
    let address = format!("{host}:{}", free_port(&host)?);
    let mut config = format!(
        "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 120s\n  timeout server 120s\n\
         listen apiservers\n  bind {address}\n  balance roundrobin\n  option redispatch\n  retries 3\n  option httpchk GET /readyz\n"
    );
    for (number, apiserver) in apiservers.iter().enumerate() {
        config += &format!(
            "  server s{number} {} check check-ssl verify none inter 500ms fall 1 rise 1\n",
            apiserver.address
        );
    }
    let file = dir.join("haproxy.cfg");
    std::fs::write(&file, config)?;
    let mut command = Command::new("haproxy");
    command.args(["-db", "-f", &file.display().to_string()]).stdout(Stdio::null());
    Ok((Program::start("haproxy", command, &dir.join("haproxy.log"))?, address))
}

/// The cluster administrator's, with the balancer for the apiserver.
fn kubeconfig(dir: &Path, address: &str) -> anyhow::Result<PathBuf> {
    let text = std::fs::read_to_string(cluster().admin_kubeconfig())?;
    let api = cluster().get("CLUSTER_API");
    ensure!(text.contains(api), "the administrator's kubeconfig names another apiserver than {api}");
    let file = dir.join("balanced.kubeconfig");
    std::fs::write(&file, text.replace(api, &format!("https://{address}")))?;
    Ok(file)
}
