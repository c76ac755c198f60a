//! The agent's chart, installed with real helm into the real cluster: the agent runs as pods there (features row T7).

use std::{path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use tests::{
    case::{Needs, alone},
    cluster::cluster,
    programs::{eventually, root, run},
    stack::{Plan, Stack, grant_in_cluster},
};

const NAMESPACE: &str = "towline-chart";
const ACCOUNT: &str = "system:serviceaccount:towline-chart:towline-agent";

pub fn tests() -> Vec<Trial> {
    vec![alone("chart::agents_run_as_pods", Needs::Pods, agents_run_as_pods)]
}

/// The agent's image as a docker archive: `TOWLINE_AGENT_IMAGE_FILE`, else built now.
pub fn image_file() -> anyhow::Result<PathBuf> {
    if let Some(file) = std::env::var_os("TOWLINE_AGENT_IMAGE_FILE") {
        return Ok(file.into());
    }
    let text =
        run(Command::new(root().join("docker/build")).args(["image", "agent"]), Duration::from_secs(1800))?.ok()?;
    Ok(text.trim().into())
}

fn helm(args: &[&str]) -> anyhow::Result<String> {
    let tool = root().join("tests/cluster/cluster");
    run(Command::new(&tool).args(["build", "helm"]), Duration::from_secs(900))?.ok()?;
    let mut command = Command::new(cluster().get("CLUSTER_HELM"));
    command.args(["--kubeconfig", cluster().get("KUBECONFIG"), "--namespace", NAMESPACE]).args(args);
    run(&mut command, Duration::from_secs(150))?.ok().with_context(|| format!("helm {}", args.join(" ")))
}

/// Carriers of the tunnels that the gateway holds.
fn carriers(stack: &Stack) -> anyhow::Result<Vec<String>> {
    Ok(stack.tunnels()?.iter().filter_map(|tunnel| tunnel["carrier"].as_str().map(str::to_owned)).collect())
}

fn agents_run_as_pods() -> anyhow::Result<()> {
    let admin = cluster().admin();
    grant_in_cluster()?;
    run(
        Command::new(root().join("tests/cluster/cluster")).arg("load-image").arg(image_file()?),
        Duration::from_secs(120),
    )?
    .ok()?;
    // The gateway listens where pods reach this machine. The agent beside it was only needed to start the stack.
    let listen = format!("{}:0", cluster().get("CLUSTER_HOST_IP"));
    let stack = Stack::start_without_waiting(&Plan { listen: &listen, ..Plan::real("chart") })?;
    stack.agent.lock().unwrap().kill();
    let values = stack.info["clusters"][0]["helm_values"].as_str().context("no helm_values in the JSON line")?;

    admin.apply(&format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {NAMESPACE}, labels: {{pod-security.kubernetes.io/enforce: restricted}}}}\n"
    ))?;
    let chart = root().join("docker/chart/towline-agent").display().to_string();
    let install = |carrier: &str| {
        let carrier = format!("gateway.carrier={carrier}");
        helm(&[
            "upgrade",
            "--install",
            "towline-agent",
            &chart,
            "--values",
            values,
            "--set",
            "image.pullPolicy=Never,replicas=2,limits.drainGrace=5s",
            "--set",
            &carrier,
            "--wait",
            "--timeout",
            "120s",
        ])
    };
    install("auto").with_context(|| pods(&admin))?;
    stack.await_connected(Duration::from_secs(20))?;
    eventually("both pods hold a tunnel", Duration::from_secs(20), || Ok(carriers(&stack)?.len() == 2))?;

    for carrier in tests::stack::CARRIERS {
        install(carrier).with_context(|| pods(&admin))?;
        eventually("all tunnels are of the new carrier", Duration::from_secs(60), || {
            let carriers = carriers(&stack)?;
            Ok(carriers.len() == 2 && carriers.iter().all(|name| name == carrier))
        })?;
        let kubectl = stack.kubectl("admin")?;
        ensure!(kubectl.ok(&["get", "nodes", "-o", "name"])?.contains("node/"));
    }

    // Least rights: what the service account may do beside what every account may.
    // `group/resource`, asked as a review: `kubectl auth can-i` does not know resources that nobody serves.
    let can = |verb: &str, what: &str| -> anyhow::Result<bool> {
        let (group, resource) = what.split_once('/').context("group/resource")?;
        let review = format!(
            "apiVersion: authorization.k8s.io/v1\nkind: SubjectAccessReview\nspec:\n  user: {ACCOUNT}\n  \
             resourceAttributes: {{verb: {verb}, group: {group:?}, resource: {resource}}}\n"
        );
        let answer = admin.run_with(&["create", "-f", "-", "-o", "jsonpath={.status.allowed}"], review.as_bytes())?;
        Ok(answer.ok()?.trim() == "true")
    };
    for (verb, what) in [
        ("impersonate", "/users"),
        ("impersonate", "/groups"),
        ("impersonate", "/serviceaccounts"),
        ("impersonate", "authentication.k8s.io/uids"),
        ("create", "authorization.k8s.io/subjectaccessreviews"),
    ] {
        ensure!(can(verb, what)?, "the agent may not {verb} {what}");
    }
    for (verb, what) in [
        ("impersonate", "authentication.k8s.io/userextras"),
        ("create", "authentication.k8s.io/tokenreviews"),
        ("get", "/secrets"),
        ("list", "/pods"),
        ("get", "/configmaps"),
        ("escalate", "rbac.authorization.k8s.io/clusterroles"),
    ] {
        ensure!(!can(verb, what)?, "the agent may {verb} {what}");
    }

    helm(&["uninstall", "towline-agent", "--wait"])?;
    ensure!(
        admin.ok(&["get", "clusterroles,clusterrolebindings", "-o", "name"])?.lines().all(|l| !l.contains(NAMESPACE))
    );
    admin.ok(&["delete", "namespace", NAMESPACE, "--wait=false"])?;
    let answer = stack.get("admin", "/version")?;
    ensure!(answer.status == 503, "without an agent: {}", answer.status);
    Ok(())
}

/// What the pods say, for a failure's text.
fn pods(admin: &tests::kubectl::Kubectl) -> String {
    let said = |args: &[&str]| {
        admin.clone().namespace(NAMESPACE).run(args).map(|out| out.text() + &out.err).unwrap_or_default()
    };
    let selector = "app.kubernetes.io/name=towline-agent";
    said(&["get", "pods", "-o", "wide"])
        + &said(&["get", "events"])
        + &said(&["logs", "--selector", selector, "--tail", "20"])
}
