//! Agents of many clusters in one process of the bench harness, each with a certificate and tunnels of its own.

use std::{
    io::{BufRead, BufReader, Write},
    ops::Range,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::Context;
use serde_json::{Value, json};

use crate::{
    programs::{binary, scratch},
    replicas::Replicas,
};

/// Where the harness has its clusters.
const SCOPE: &str = "/subscriptions/00000000-0000-0000-0000-00000000be2c/resourceGroups/fleet/providers/Microsoft.Kubernetes/connectedClusters";
/// How many begin to dial in a second.
const RATE: f64 = 50.0;
/// Seconds within which all must be up.
const UP_S: f64 = 120.0;

/// Settings of gateways for `clusters` clusters, all of them behind one address.
pub fn settings(clusters: u32) -> String {
    let list: String = (0..clusters).map(|number| format!("[[clusters]]\nid = \"{SCOPE}/fleet-{number}\"\n")).collect();
    format!("[limits]\nhandshakes_per_address = {}\n{list}", clusters.max(256))
}

/// The process; it ends when dropped.
pub struct Fleet {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Fleet {
    /// Starts those of these numbers and waits until all have a tunnel.
    pub fn start(replicas: &Replicas, numbers: Range<u32>, carrier: &str) -> anyhow::Result<Self> {
        let mut command = Command::new(binary("bench"));
        command.arg("agents").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().context("start bench agents")?;
        let asks = child.stdin.take().context("standard input is piped")?;
        let answers = BufReader::new(child.stdout.take().context("standard output is piped")?);
        let mut this = Self { child, asks, answers };
        let authority = replicas.authority();
        let plan = json!({
            "gateway": format!("https://{}", replicas.front.address), "ca": replicas.ca(), "authority": authority,
            "dir": scratch("soak-fleet"), "carrier": carrier, "agents": numbers.end - numbers.start,
            "first": numbers.start, "rate": RATE,
        });
        this.ask(&plan)?;
        let up = this.ask(&json!({"Up": {"within": UP_S}}))?;
        anyhow::ensure!(up["failed"] == 0, "agents without a tunnel: {}", up["errors"]);
        Ok(this)
    }

    /// How many have no tunnel now.
    pub fn without_tunnel(mut self) -> anyhow::Result<u64> {
        self.ask(&json!("Now"))?["failed"].as_u64().context("a number of agents")
    }

    fn ask(&mut self, what: &Value) -> anyhow::Result<Value> {
        writeln!(self.asks, "{what}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        serde_json::from_str(&line).with_context(|| format!("bench agents answered {line:?}"))
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
