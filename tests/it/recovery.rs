//! Clusters that are not as they should be, mended by the command over the real cluster: one whose certificate has
//! ended
//!, one that cannot be reached when it is deleted (I6), one behind a proxy of its kubeconfig (N3); and a proxy that
//! needs nobody's identity but a service account's (K3).

use std::{
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    case::{Needs, case, installs},
    cluster::cluster,
    kubectl::Kubectl,
    programs::{Output, Program, eventually, run, scratch},
    proxy::{CREDENTIALS, Manner, Proxy},
    stack::note_secret,
};

use crate::connect::{CLUSTERS, GROUP, Site, VERSION, call, group, objects, pods, same, settled, token, with_pods};

const ONE: [&str; 4] = ["-n", "c1", "-g", GROUP];
const NAMESPACE: &str = "towline";

pub fn tests() -> Vec<Trial> {
    vec![
        installs("recovery::c4_an_expired_cluster_is_connected_into_the_same_resource", Needs::Pods, expired),
        installs("recovery::i6_force_deletes_what_cannot_be_reached_and_nothing_of_others", Needs::Pods, forced),
        installs("recovery::b1_troubleshoot_asks_from_inside_the_cluster_and_leaves_no_job", Needs::Pods, troubleshoot),
        installs("recovery::k3_a_proxy_with_a_service_accounts_own_token", Needs::Pods, service_account),
        case("recovery::n3_a_kubeconfigs_proxy_url_leads_to_the_cluster", Needs::Cluster, through_its_proxy),
    ]
}

fn connect(site: &Site) -> anyhow::Result<Value> {
    let args = [&["connect"][..], &ONE, &["--replicas", "1", "-o", "json"]].concat();
    let made: Value = serde_json::from_str(&site.ok(&args).with_context(pods)?.text())?;
    ensure!(made["properties"]["connectivityStatus"] == "Connected", "{made}");
    Ok(made)
}

fn in_namespace(args: &[&str]) -> anyhow::Result<String> {
    cluster().admin().ok(&[&["-n", NAMESPACE][..], args].concat())
}

fn onboarding_key() -> anyhow::Result<String> {
    in_namespace(&["get", "secret", "towline-onboarding", "-o", "jsonpath={.data.key\\.pem}"])
}

/// What months of silence do to a cluster: it has no agents, and its last certificate has ended.
fn expire(site: &Site) -> anyhow::Result<()> {
    in_namespace(&["scale", "deployment", "--all", "--replicas=0"])?;
    eventually("the agents are gone", Duration::from_secs(120), || {
        Ok(in_namespace(&["get", "pods", "-o", "name"])?.is_empty())
    })?;
    site.stack.kill_gateway();
    let ends = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); \
        changed = db.execute('UPDATE agents SET certificate_ends_ms = 1000 WHERE certificate_ends_ms IS NOT NULL').rowcount; \
        db.commit(); print(changed)";
    let store = site.stack.state().join("towline.db");
    let changed = run(Command::new("python3").args(["-c", ends]).arg(store), Duration::from_secs(60))?.ok()?;
    ensure!(changed.trim() == "1", "{changed}");
    site.stack.restart_gateway()?;
    let listed = site.clusters()?;
    ensure!(listed[0]["properties"]["connectivityStatus"] == "Expired", "{listed:?}");
    Ok(())
}

fn expired() -> anyhow::Result<()> {
    let site = with_pods("expired")?;
    let before = settled()?;
    let first = connect(&site)?;
    let owner = token(&site.stack, &site.stack.text("clientId"), &site.stack.text("clientSecret"))?;
    let child = format!(
        "{}/{CLUSTERS}/c1/providers/Microsoft.Authorization/roleAssignments/33333333-3333-4333-8333-333333333333?api-version=2022-04-01",
        group(&site.stack)
    );
    let reader = "/providers/Microsoft.Authorization/roleDefinitions/acdd72a7-3385-48ef-bd42-f606fba81ae7";
    let principal = "44444444-4444-4444-8444-444444444444";
    let body = json!({"properties": {"roleDefinitionId": reader, "principalId": principal, "principalType": "User"}});
    ensure!(call(&site.stack, &owner, "PUT", &child, &body)?.status == 201);
    site.ok(&[&["update"][..], &ONE, &["--tags", "team=edge"]].concat())?;
    let key = onboarding_key()?;
    expire(&site)?;

    let again = connect(&site)?;
    ensure!(again["identity"]["principalId"] == first["identity"]["principalId"], "{first} {again}");
    ensure!(again["tags"]["team"] == "edge", "{again}");
    ensure!(onboarding_key()? != key, "an ended certificate needs a new key");
    let owner = token(&site.stack, &site.stack.text("clientId"), &site.stack.text("clientSecret"))?;
    let kept = call(&site.stack, &owner, "GET", &child, &Value::Null)?;
    ensure!(kept.status == 200, "its children stay: {}", String::from_utf8_lossy(&kept.body));
    let listed = site.clusters()?;
    let end = listed[0]["properties"]["managedIdentityCertificateExpirationTime"].as_str().unwrap_or_default();
    ensure!(listed.len() == 1 && end > "2026", "{listed:?}");
    site.ok(&[&["delete"][..], &ONE, &["-y"]].concat())?;
    same(&before)
}

/// A kubeconfig of the cluster with one thing changed by kubectl.
fn kubeconfig(dir: &Path, key: &str, value: &str) -> anyhow::Result<String> {
    let file = dir.join("changed.kubeconfig");
    std::fs::copy(cluster().admin_kubeconfig(), &file)?;
    let kubectl = Kubectl::new(&file);
    let name = kubectl.ok(&["config", "view", "-o", "jsonpath={.contexts[0].context.cluster}"])?;
    kubectl.ok(&["config", "set", &format!("clusters.{name}.{key}"), value])?;
    Ok(file.display().to_string())
}

fn forced() -> anyhow::Result<()> {
    let site = with_pods("forced")?;
    let before = settled()?;
    connect(&site)?;
    let delete = [&["delete"][..], &ONE, &["-y"]].concat();
    let cut = kubeconfig(&site.stack.dir, "server", "https://127.0.0.1:1")?;
    let unreached = [&delete[..], &["--kube-config", &cut]].concat();
    site.refused(&unreached, "--force deletes the resource alone")?;
    ensure!(site.clusters()?.len() == 1, "what was refused deleted nothing");

    // A resource that these agents are not of goes alone.
    let owner = token(&site.stack, &site.stack.text("clientId"), &site.stack.text("clientSecret"))?;
    let other = format!("{}/{CLUSTERS}/other?{VERSION}", group(&site.stack));
    let body = json!({"location": "eastus", "identity": {"type": "SystemAssigned"}, "properties": {"agentPublicKeyCertificate": ""}});
    ensure!(call(&site.stack, &owner, "PUT", &other, &body)?.status == 201);
    let there = in_namespace(&["get", "deployments", "-o", "jsonpath={.items[*].metadata.uid}"])?;
    let alone = site.ok(&["delete", "-n", "other", "-g", GROUP, "-y", "--force"])?;
    ensure!(alone.err.contains("agents are not removed") && alone.err.contains("resource name 'c1'"), "{alone:?}");
    ensure!(in_namespace(&["get", "deployments", "-o", "jsonpath={.items[*].metadata.uid}"])? == there);
    ensure!(site.clusters()?.len() == 1 && site.clusters()?[0]["name"] == "c1");

    let gone = site.ok(&[&unreached[..], &["--force"]].concat())?;
    for text in ["warning: agents are not removed", "running agents are left", "towline delete --force -n c1 -g edge"] {
        ensure!(gone.err.contains(text), "{text}: {gone:?}");
    }
    ensure!(site.clusters()?.is_empty());
    ensure!(in_namespace(&["get", "deployments", "-o", "jsonpath={.items[*].metadata.uid}"])? == there);

    // What others have put there stays, and what nobody finishes any more goes.
    in_namespace(&["create", "configmap", "theirs", "--from-literal=a=b"])?;
    let stuck = "{\"metadata\": {\"finalizers\": [\"towline.test/nobody\"]}}";
    eventually("the agents tell facts", Duration::from_secs(60), || {
        let patch = ["patch", "connectedclusters", "clustermetadata", "--type=merge", "-p", stuck];
        Ok(cluster().admin().run(&[&["-n", NAMESPACE][..], &patch].concat())?.code == Some(0))
    })?;
    let left = site.ok(&[&delete[..], &["--force"]].concat())?;
    ensure!(
        left.err.contains("namespace towline stays: it holds what others made, such as ConfigMap theirs"),
        "{left:?}"
    );
    let kinds = "deployments,secrets,configmaps,serviceaccounts,services,networkpolicies,roles,rolebindings";
    let all = in_namespace(&["get", kinds, "-o", "jsonpath={.items[*].metadata.name}"])?;
    let ours: Vec<&str> =
        all.split_whitespace().filter(|name| !["theirs", "kube-root-ca.crt", "default"].contains(name)).collect();
    ensure!(ours.is_empty(), "{ours:?}");
    ensure!(in_namespace(&["get", "configmap", "theirs", "-o", "jsonpath={.data.a}"])? == "b");
    cluster().admin().ok(&["delete", "namespace", NAMESPACE])?;
    same(&before)
}

/// B1: what pods see of the network is asked by a job, with the agents' own settings, and the job goes again.
fn troubleshoot() -> anyhow::Result<()> {
    let site = with_pods("troubleshot")?;
    let before = settled()?;
    connect(&site)?;
    let there = objects()?;
    let look = |file: &str| -> anyhow::Result<(Output, Value)> {
        let file = site.stack.dir.join(file).display().to_string();
        let output = site.run(&[&["troubleshoot"][..], &ONE, &["--file", &file, "-o", "json"]].concat())?;
        let found: Value = serde_json::from_str(&output.text()).with_context(|| format!("{output:?}"))?;
        let of = |one: &&Value| one["check"] == "diagnoser_check";
        let one = found.as_array().into_iter().flatten().find(of).cloned().with_context(|| found.to_string())?;
        Ok((output, one))
    };
    let gone = || -> anyhow::Result<()> {
        let now = objects()?;
        let new: Vec<_> = now.iter().filter(|line| !there.contains(line) && line.contains("diagnoser")).collect();
        ensure!(new.is_empty(), "left behind: {new:?}");
        Ok(())
    };
    let (output, good) = look("good.zip")?;
    ensure!(output.code == Some(0) && good["state"] == "Passed", "{good}: {output:?}");
    gone()?;
    // Nobody answers where the agents' settings say that the gateway is.
    let moved = "jsonpath={.data.agent\\.toml}";
    let settings = in_namespace(&["get", "configmap", "clusterconnect-agent", "-o", moved])?;
    let elsewhere = settings.replace(&site.stack.text("url"), "https://nobody.towline.invalid:1");
    ensure!(elsewhere != settings, "{settings}");
    let patch = json!({"data": {"agent.toml": elsewhere}}).to_string();
    in_namespace(&["patch", "configmap", "clusterconnect-agent", "--type=merge", "-p", &patch])?;
    let (output, bad) = look("bad.zip")?;
    ensure!(
        output.code == Some(1) && bad["state"] == "Failed" && output.err.contains("hint: diagnoser_check: "),
        "{bad}"
    );
    ensure!(bad["remedies"].to_string().contains("nobody.towline.invalid"), "{bad}");
    gone()?;
    site.ok(&[&["delete"][..], &ONE, &["-y", "--force"]].concat())?;
    same(&before)
}

/// Nobody's identity but the service account's is shown to the cluster, as with `az connectedk8s proxy --token`.
fn service_account() -> anyhow::Result<()> {
    let site = with_pods("own-token")?;
    let before = settled()?;
    connect(&site)?;
    let admin = cluster().admin();
    admin.ok(&["-n", NAMESPACE, "create", "serviceaccount", "visitor"])?;
    let secret = admin.ok(&["-n", NAMESPACE, "create", "token", "visitor"])?.trim().to_owned();
    note_secret(&secret)?;
    let file = site.stack.dir.join("proxied.kubeconfig");
    let start = |token: &str| -> anyhow::Result<Program> {
        let shown = file.display().to_string();
        let args = [&["proxy"][..], &ONE, &["--token", token, "--file", &shown]].concat();
        let mut command = site.command(&args);
        command.stdout(Stdio::piped());
        let mut program = Program::start("towline proxy", command, &site.stack.dir.join("proxy.log"))?;
        let line = program.first_line(Duration::from_secs(60))?;
        ensure!(line.starts_with("Proxy is listening on port "), "{line}: {}", program.tail());
        Ok(program)
    };
    let mut proxy = start(&secret)?;
    let kubectl = Kubectl::new(&file);
    let who = kubectl.ok(&["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"])?;
    ensure!(who == "system:serviceaccount:towline:visitor", "{who}");
    let refused = kubectl.run(&["get", "secrets", "-A"])?.refused()?;
    ensure!(refused.contains("system:serviceaccount:towline:visitor"), "{refused}");
    ensure!(!std::fs::read_to_string(&file)?.contains(&secret), "the token stays with the proxy");
    proxy.signal("INT")?;
    ensure!(proxy.wait(Duration::from_secs(40))? == Some(130), "{}", proxy.tail());
    // The cluster says no to a token that is not its own.
    let mut wrong = start(&format!("{}x", &secret[..secret.len() - 8]))?;
    let refused = Kubectl::new(&file).run(&["get", "nodes"])?.refused()?;
    ensure!(refused.contains("Unauthorized") || refused.contains("must be logged in"), "{refused}");
    wrong.signal("TERM")?;
    ensure!(wrong.wait(Duration::from_secs(40))? == Some(0), "{}", wrong.tail());
    admin.ok(&["-n", NAMESPACE, "delete", "serviceaccount", "visitor"])?;
    site.ok(&[&["delete"][..], &ONE, &["-y"]].concat())?;
    same(&before)
}

/// N3: the apiserver is behind a proxy that its kubeconfig names.
fn through_its_proxy() -> anyhow::Result<()> {
    let site = Site::start("proxied-kubeconfig", "127.0.0.1:0", cluster().admin_kubeconfig().to_owned())?;
    site.ok(&["group", "create", "-g", GROUP, "-l", "eastus"])?;
    let dir = scratch("proxied-kubeconfig-files");
    let proxy = Proxy::start(&dir, false, Manner::Good)?;
    let (user, password) = CREDENTIALS;
    let through = |url: &str| {
        let file = kubeconfig(&dir, "proxy-url", url)?;
        let mut command = site.command(&["connect", "-n", "planned", "-g", GROUP, "--dry-run", "--kube-config", &file]);
        // What is far away has a proxy of its own.
        command.env("HTTPS_PROXY", "http://127.0.0.1:1").env("NO_PROXY", "127.0.0.1");
        run(&mut command, Duration::from_secs(120))
    };
    let planned = through(&format!("http://{user}:{password}@{}", proxy.address))?;
    planned.ok()?;
    ensure!(planned.text().matches("kind: Deployment").count() == 2 && proxy.connects() >= 1, "{planned:?}");
    proxy.behave(Manner::Denies);
    let asked = proxy.connects();
    let denied = through(&format!("http://{user}:wrong-word@{}", proxy.address))?;
    ensure!(denied.code == Some(1) && denied.err.contains("hint: ") && proxy.connects() > asked, "{denied:?}");
    ensure!(!denied.err.contains("wrong-word"), "{denied:?}");
    let other = through("https://127.0.0.1:3128")?;
    ensure!(other.code == Some(2) && other.err.contains("http:// and socks5:// proxies"), "{other:?}");
    Ok(())
}
