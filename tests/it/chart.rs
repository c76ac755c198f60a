//! The agent's chart, installed with real helm into the real cluster: the agent runs as pods there.

use std::{path::PathBuf, process::Command, time::Duration};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::Value;
use tests::{
    case::{Needs, case, installs},
    cluster::cluster,
    programs::{eventually, root, run},
    stack::{Plan, Stack, grant_in_cluster},
};

const NAMESPACE: &str = "towline-chart";
const ACCOUNT: &str = "system:serviceaccount:towline-chart:towline-agent";

pub fn tests() -> Vec<Trial> {
    vec![
        case("chart::every_setting_of_the_agent_can_be_given", Needs::Nothing, settings),
        installs("chart::agents_run_as_pods", Needs::Pods, agents_run_as_pods),
    ]
}

/// Settings that are not for pods, and why.
const NOT_FOR_PODS: &[(&str, &str)] = &[
    ("identity.directory", "a Secret keeps it"),
    ("identity_tokens.directory", "a Secret keeps it"),
    ("guard.directory", "Secrets keep it"),
    ("gitops.proxy_listen", "the Service of the extension microsoft.flux leads to its default"),
    ("cluster.kubeconfig", "pods have a service account"),
    ("cluster.context", "pods have a service account"),
    ("cluster.service_account_dir", "pods have it where it always is"),
    ("extensions.catalogue_key_files", "the keys themselves are given"),
    ("extensions.helm", "it is where the image has it"),
    ("extensions.work_dir", "memory is mounted where it is looked for"),
    ("issuers.api_audiences", "agents serve no resource API"),
    ("issuers.allow_http_loopback", "nobody else is at a pod's loopback address"),
];

/// What the agent reads is written by the chart, or there is a reason; and what helm takes of an issuer is what the
/// agent reads.
fn settings() -> anyhow::Result<()> {
    let read = |file: &str| std::fs::read_to_string(root().join(file)).with_context(|| file.to_owned());
    let template = read("docker/chart/towline-agent/templates/_config.tpl")?;
    let schema: Value = serde_json::from_str(&read("docker/chart/towline-agent/values.schema.json")?)?;
    let of_issuers = &schema["properties"]["issuers"]["items"]["properties"];
    let (mut section, mut keys) = (String::new(), 0);
    for line in read("agent/reference.toml")?.lines() {
        let line = line.trim_start_matches('#');
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_matches(['[', ']']).to_owned();
        }
        let Some((key, _)) = line.split_once(" = ") else { continue };
        if section.is_empty() || !key.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') {
            continue;
        }
        keys += 1;
        let whole = format!("{section}.{key}");
        let given = match (section.as_str(), key) {
            // Files are given by their content.
            ("issuers", key) => of_issuers.get(camel(key.trim_end_matches("_file"))).is_some(),
            (section, key) => template.contains(&format!("[{section}]")) && template.contains(&format!("\n{key} = ")),
        };
        let excused = NOT_FOR_PODS.iter().any(|(name, _)| *name == whole);
        ensure!(given != excused, "{whole}: given by the chart {given}, excused {excused}");
    }
    ensure!(keys > 50, "{keys} settings in the reference");
    Ok(())
}

fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |text, word| text + &word[..1].to_uppercase() + &word[1..])
}

/// Gives the node of the real cluster one of our images, `agent` or `extension-manager`: the archive that
/// `TOWLINE_AGENT_IMAGE_FILE` names, `TOWLINE_EXTENSION_MANAGER_IMAGE_FILE`, else built now.
pub fn load_image(name: &str) -> anyhow::Result<()> {
    let variable = format!("TOWLINE_{}_IMAGE_FILE", name.replace('-', "_").to_ascii_uppercase());
    let file = match std::env::var_os(variable) {
        Some(file) => PathBuf::from(file),
        None => {
            let mut build = Command::new(root().join("docker/build"));
            run(build.args(["image", name]), Duration::from_secs(1800))?.ok()?.trim().into()
        }
    };
    let mut load = Command::new(root().join("tests/cluster/cluster"));
    run(load.arg("load-image").arg(file), Duration::from_secs(120))?.ok().map(drop)
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
    load_image("agent")?;
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
    // helm waits for the deployment; its pods go after it, and an agent has no rights any more by then.
    eventually("both pods have left", Duration::from_secs(60), || Ok(carriers(&stack)?.is_empty()))?;
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
