//! Gateway and agent as a user runs them: token check at both, impersonation and audit included.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

use super::{Bench, Running, can_all};
use crate::{
    link::Seat,
    program::{Program, output},
};

/// Starts both, with one carrier.
pub async fn start(bench: &Bench, carrier: &str) -> anyhow::Result<Running> {
    // Of the last repeat: databases and logs begin anew.
    let state = bench.file(&format!("towline-{carrier}"));
    let _ = std::fs::remove_dir_all(&state);
    let log = |name: &str| bench.file(&format!("{name}-{carrier}.log"));
    let mut command = bench.link.command(Seat::Outer, &program(bench, "towline")?);
    command.args(["dev", "--json", "--token-ttl", "24h", "--state"]).arg(&state);
    command.args(["--listen", &format!("{}:8443", bench.link.address(Seat::Outer))]);
    let (gateway, line) = Program::start_with_line("gateway", command, &log("gateway")).await?;
    let ready: Value = serde_json::from_str(&line).context("the line that `towline dev` prints")?;
    let cluster = &ready["clusters"][0];

    let kubeconfig = bench.file("upstream.kubeconfig");
    std::fs::write(&kubeconfig, kubeconfig_of(bench).to_string())?;
    let mut command = bench.link.command(Seat::Inner, &program(bench, "towline-agent")?);
    command.args(["run", "--carrier", carrier, "--config", text(cluster, "agent_config")?]);
    command.arg("--kubeconfig").arg(&kubeconfig);
    let agent = Program::start("agent", command, &log("agent"))?;

    let mut command = bench.link.command(Seat::Outer, &program(bench, "towline")?);
    command.args(["token", "--user", "admin", "--cluster", "dev", "--state"]).arg(&state);
    let token = output(command, b"").await?.trim().to_owned();
    Ok(Running {
        url: text(cluster, "url")?.to_owned(),
        ca: text(&ready, "ca")?.into(),
        token: Some(token),
        hops: vec![gateway, agent],
        cannot: can_all,
    })
}

fn text<'a>(value: &'a Value, name: &str) -> anyhow::Result<&'a str> {
    value[name].as_str().with_context(|| format!("{name} is missing in the line that `towline dev` prints"))
}

fn kubeconfig_of(bench: &Bench) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "bench",
        "clusters": [{"name": "bench", "cluster":
            {"server": format!("https://{}", bench.upstream), "certificate-authority": bench.file("ca.crt")}}],
        "users": [{"name": "bench", "user": {"token": "of-nobody"}}],
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
    })
}

fn program(bench: &Bench, name: &str) -> anyhow::Result<PathBuf> {
    let path = Path::new(&bench.programs).join(name);
    anyhow::ensure!(
        path.exists(),
        "{} is missing: build it (cargo build --release --workspace --bins), or name its folder with --programs",
        path.display()
    );
    Ok(path)
}
