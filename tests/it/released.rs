//! The previous release beside this one (docs/features.md U4): its agent at this gateway, and this agent at its gateway, on
//! every carrier. `make test-full` builds the previous release from its commit and names the folder of its programs.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use tests::{
    case::{Needs, case, full},
    stack::{CARRIERS, Plan, Stack, grant_in_cluster},
};

/// The folder of the previous release's programs.
const PROGRAMS: &str = "TOWLINE_PREVIOUS_PROGRAMS";
/// A machine that is busy with something else takes its time.
const SLOW: Duration = Duration::from_secs(180);

pub fn tests() -> Vec<Trial> {
    if !full() {
        return Vec::new();
    }
    let of_carrier = |carrier: &'static str| {
        [
            case(
                format!("released::u4_the_previous_agent_is_served_by_this_gateway::{carrier}"),
                Needs::Cluster,
                move || beside(carrier, false),
            ),
            case(
                format!("released::u4_this_agent_is_served_by_the_previous_gateway::{carrier}"),
                Needs::Cluster,
                move || beside(carrier, true),
            ),
        ]
    };
    CARRIERS.into_iter().flat_map(of_carrier).collect()
}

fn beside(carrier: &'static str, older_gateway: bool) -> anyhow::Result<()> {
    let folder = std::env::var_os(PROGRAMS).map(PathBuf::from);
    let folder = folder.with_context(|| format!("{PROGRAMS} names no folder: run `make test-full`"))?;
    grant_in_cluster()?;
    let name = format!("released-{}-{carrier}", if older_gateway { "gateway" } else { "agent" });
    let (gateway_of, agent_of) =
        if older_gateway { (Some(folder.as_path()), None) } else { (None, Some(folder.as_path())) };
    let stack = Stack::start(&Plan { carrier: Some(carrier), gateway_of, agent_of, ..Plan::real(&name) })?;
    let kubectl = stack.kubectl("admin")?.within(SLOW);
    let namespace = name.as_str();
    kubectl.ok(&["create", "namespace", namespace])?;
    let kubectl = kubectl.namespace(namespace);
    kubectl.ok(&["create", "configmap", "settings", "--from-literal=colour=green"])?;
    let colour = kubectl.ok(&["get", "configmap", "settings", "-o", "jsonpath={.data.colour}"])?;
    ensure!(colour.trim() == "green", "{colour}");
    kubectl.ok(&["label", "configmap", "settings", "seen=true"])?;
    kubectl.ok(&["wait", "--for=jsonpath={.metadata.labels.seen}=true", "configmap/settings", "--timeout=60s"])?;
    kubectl.ok(&["auth", "can-i", "delete", "configmaps"])?;
    kubectl.ok(&["delete", "namespace", namespace, "--wait=false"])?;
    if !older_gateway {
        let metrics = stack.admin_get("/metrics")?;
        let told = format!("gateway_hellos_total{{state=\"{}\"}}", "Outdated");
        ensure!(metrics.contains(&told), "an older agent is counted as one:\n{metrics}");
    }
    Ok(())
}
