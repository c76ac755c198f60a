//! What GitOps costs: the time from a push to `Compliant`, the memory of the agent, and the bytes on the tunnel while nothing
//! changes. Printed in the long run, for docs/measurements; nothing is asserted about them but that they are bounded.

use std::{
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use tests::{
    case::{Needs, full, installs},
    git::Repository,
    programs::{eventually, run},
};

use crate::gitops::{FIRST, Gitops, SOON};

/// Configurations, and objects of each.
const CONFIGURATIONS: usize = 10;
const OBJECTS: usize = 500;
/// Seconds between two looks of Flux at each source and each kustomization of these; the API's default is ten times as much.
const LOOK: u64 = 60;
/// How long bytes are counted.
const QUIET: Duration = Duration::from_secs(240);
/// All of them from nothing, on a machine with other work.
const ALL: Duration = Duration::from_secs(1800);

pub fn tests() -> Vec<Trial> {
    if !full() {
        return Vec::new();
    }
    vec![installs("gitops_figures::g5_g6_time_memory_and_bytes_are_printed", Needs::Pods, figures)]
}

fn maps(number: usize, greeting: usize) -> String {
    let one = |object: usize| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c{number}-m{object}, namespace: gitops}}\ndata: {{greeting: \"{greeting}\"}}\n"
        )
    };
    (0..OBJECTS).map(one).collect::<Vec<_>>().join("---\n")
}

fn push(repository: &Repository, number: usize, greeting: usize) -> anyhow::Result<String> {
    repository.push(&[("apps/maps.yaml", Some(&maps(number, greeting)))])
}

/// Kilobytes that the process of a Deployment holds: pods of the node are processes of this machine, beside those of other
/// clusters.
fn resident_kib(gitops: &Gitops, deployment: &str) -> anyhow::Result<u64> {
    let pods = gitops.admin.ok(&["get", "pods", "-A", "-o", "jsonpath={.items[*].metadata.name}"])?;
    let pod =
        pods.split(' ').find(|name| name.starts_with(deployment)).with_context(|| format!("{deployment}: {pods}"))?;
    let host = format!("HOSTNAME={pod}");
    for entry in std::fs::read_dir("/proc")?.flatten() {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.split(|byte| *byte == 0).any(|one| one == host.as_bytes()) {
            let status = std::fs::read_to_string(entry.path().join("status"))?;
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
            return Ok(line.trim().split(' ').next().unwrap_or_default().parse()?);
        }
    }
    anyhow::bail!("no process of {pod}")
}

/// Counts the bytes of packets to and from a port of this machine, with their headers, until it is dropped.
struct Counter;

const TABLE: &str = "towline_gitops_figures";

impl Counter {
    fn start(port: &str) -> anyhow::Result<Self> {
        let chain = |hook: &str, side: &str| {
            format!(
                "chain {hook} {{\n type filter hook {hook} priority 0\n udp {side} {port} counter\n tcp {side} {port} counter\n}}"
            )
        };
        let table = format!("table inet {TABLE} {{\n{}\n{}\n}}\n", chain("input", "dport"), chain("output", "sport"));
        run(Command::new("nft").arg(&table), Duration::from_secs(10))?.ok()?;
        Ok(Self)
    }

    fn bytes(&self) -> anyhow::Result<u64> {
        let text = run(Command::new("nft").args(["list", "table", "inet", TABLE]), Duration::from_secs(10))?.ok()?;
        let mut words = text.split_whitespace();
        let mut sum = 0;
        while let Some(word) = words.next() {
            if word == "bytes" {
                sum += words.next().context("a number follows")?.parse::<u64>()?;
            }
        }
        Ok(sum)
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        let _ = Command::new("nft").args(["delete", "table", "inet", TABLE]).status();
    }
}

fn figures() -> anyhow::Result<()> {
    let gitops = Gitops::start("gitops-figures", &[])?;
    let small = gitops.server.repository("small")?;
    let one = |greeting: usize| {
        small.push(&[(
            "apps/one.yaml",
            Some(&format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: small, namespace: gitops}}\ndata: {{greeting: \"{greeting}\"}}\n")),
        )])
    };
    let first = one(0)?;
    gitops.put("small", &gitops.folders(&small, ("cluster", "gitops"), &["apps"]))?;
    gitops.await_compliant("small", &first, FIRST)?;
    let mut times = Vec::new();
    for greeting in 1..=9 {
        let begin = Instant::now();
        let commit = one(greeting)?;
        gitops.await_compliant("small", &commit, SOON)?;
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    eprintln!("   push to Compliant, 9 times: {:.1?} to {:.1?}, median {:.1?}", times[0], times[8], times[4]);
    eprintln!(
        "   fluxconfig-agent with one configuration of one object: {} KiB",
        resident_kib(&gitops, "fluxconfig-agent")?
    );

    let repositories: Vec<_> = (0..CONFIGURATIONS)
        .map(|number| gitops.server.repository(&format!("many{number}")))
        .collect::<Result<_, _>>()?;
    let mut commits = Vec::new();
    for (number, repository) in repositories.iter().enumerate() {
        commits.push(push(repository, number, 0)?);
        let mut properties = gitops.folders(repository, ("cluster", "gitops"), &["apps"]);
        properties["gitRepository"]["syncIntervalInSeconds"] = LOOK.into();
        properties["kustomizations"]["apps"]["syncIntervalInSeconds"] = LOOK.into();
        properties["kustomizations"]["apps"]["timeoutInSeconds"] = 600.into();
        gitops.put(&format!("many{number}"), &properties)?;
    }
    for (number, commit) in commits.iter().enumerate() {
        let shown = gitops.await_compliant(&format!("many{number}"), commit, ALL)?;
        let statuses = shown["statuses"].as_array().map_or(0, Vec::len);
        ensure!(statuses >= OBJECTS, "{statuses} statuses");
    }
    let agents = || -> anyhow::Result<[u64; 3]> {
        Ok([
            resident_kib(&gitops, "fluxconfig-agent")?,
            resident_kib(&gitops, "source-controller")?,
            resident_kib(&gitops, "kustomize-controller")?,
        ])
    };
    let [agent, source, kustomize] = agents()?;
    eprintln!(
        "   {CONFIGURATIONS} configurations of {OBJECTS} objects: fluxconfig-agent {agent} KiB, source-controller {source} KiB, kustomize-controller {kustomize} KiB"
    );
    ensure!(agent < 128 * 1024, "fluxconfig-agent holds {agent} KiB");

    let url = gitops.site.stack.text("url");
    let port = url.rsplit(':').next().context("a port")?.trim_end_matches('/').to_owned();
    let counter = Counter::start(&port)?;
    let begin = Instant::now();
    let before = counter.bytes()?;
    // Flux looks at all of it every minute, and nothing changes.
    eventually("bytes are counted for a while", QUIET + SOON, || Ok(begin.elapsed() >= QUIET))?;
    let bytes = counter.bytes()? - before;
    let hour = bytes as f64 * 3600.0 / begin.elapsed().as_secs_f64();
    eprintln!(
        "   while nothing changes: {bytes} bytes to and from the gateway in {:.0?}, {:.0} KiB an hour",
        begin.elapsed(),
        hour / 1024.0
    );
    eprintln!("   fluxconfig-agent after that: {} KiB", resident_kib(&gitops, "fluxconfig-agent")?);
    for number in 0..CONFIGURATIONS {
        gitops.call("DELETE", "fluxConfigurations", &format!("many{number}"), &serde_json::Value::Null)?;
    }
    for number in 0..CONFIGURATIONS {
        gitops.delete(&format!("many{number}"))?;
    }
    gitops.delete("small")?;
    gitops.end()
}
