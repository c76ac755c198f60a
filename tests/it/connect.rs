//! From nothing to kubectl with `towline` and `kubectl` alone, and back: connect, delete, what they refuse, and what
//! they leave behind (docs/features.md I3, I4, I6, R3, R13, S1, S3, B1).

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    apiserver::{Apiserver, Received, answer},
    case::{Needs, case, installs},
    cluster::cluster,
    kubectl::Kubectl,
    programs::{Output, Program, binary, eventually, keep, run, scratch},
    proxy::{CREDENTIALS, Manner, Proxy},
    raw::{Answer, Raw},
    stack::{Plan, Stack, note_secret},
};

use crate::chart::load_image;

pub const GROUP: &str = "edge";
const ONBOARDING: &str = "34e09817-6cbe-4d01-b1a2-e0eac5743d41";
const CLUSTER_USER: &str = "00493d72-78f6-4148-b6c5-d3ce8e4799dd";
pub const CLUSTERS: &str = "providers/Microsoft.Kubernetes/connectedClusters";
pub const VERSION: &str = "api-version=2024-01-01";
/// Clusters that are connected at once.
const AT_ONCE: usize = 100;

pub fn tests() -> Vec<Trial> {
    vec![
        installs("connect::i3_from_nothing_to_kubectl_and_back", Needs::Pods, there_and_back),
        installs("connect::i4_a_failed_or_interrupted_connect_leaves_nothing", Needs::Pods, leaves_nothing),
        installs("connect::two_connects_at_once_take_nothing_from_each_other", Needs::Pods, two_at_once),
        installs("connect::e2_extensions_are_turned_on_and_off_and_keep_their_keys", Needs::Pods, extensions),
        case("connect::i4_a_definition_that_its_apiserver_forgot_goes", Needs::Nothing, forgotten),
        case("connect::i3_what_others_made_meanwhile_is_not_taken_back", Needs::Nothing, takes_back_its_own),
        case("connect::i5_nothing_is_downloaded_and_no_other_program_needed", Needs::Nothing, downloads_nothing),
        case("connect::s3_a_hundred_connects_at_once_by_an_onboarding_principal", Needs::Nothing, a_hundred),
    ]
}

/// A gateway that pods reach, with `towline` signed in at it as the owner.
pub struct Site {
    pub stack: Stack,
    pub home: PathBuf,
}

impl Site {
    pub fn start(name: &str, listen: &str, kubeconfig: PathBuf) -> anyhow::Result<Self> {
        Self::of(&Plan { listen, apiserver: kubeconfig, ..Plan::real_at(name) })
    }

    fn of(plan: &Plan<'_>) -> anyhow::Result<Self> {
        let (stack, name) = (Stack::start_without_waiting(plan)?, plan.name);
        // The clusters of this test are connected by command.
        stack.agent.lock().unwrap().kill();
        // A folder of this name is left out when everything that was written is read for secrets.
        let site = Self { home: scratch(&format!("{name}-home")).join("state"), stack };
        std::fs::create_dir_all(&site.home)?;
        let (url, ca, id) = (site.stack.text("url"), site.stack.text("ca"), site.stack.text("clientId"));
        let secret = site.home.join("owner.key");
        std::fs::write(&secret, site.stack.text("clientSecret"))?;
        let secret = secret.display().to_string();
        site.ok(&["login", &url, "--ca", &ca, "--service-principal", "-u", &id, "--secret-file", &secret])?;
        Ok(site)
    }

    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(binary("towline"));
        command.args(args).env("TOWLINE_CONFIG_DIR", self.home.join("config")).env("HOME", &self.home);
        command.env("KUBECONFIG", cluster().admin_kubeconfig()).stdin(Stdio::null());
        command
    }

    pub fn run(&self, args: &[&str]) -> anyhow::Result<Output> {
        let output = run(&mut self.command(args), Duration::from_secs(300))?;
        keep(&self.stack.dir.join("towline.stderr"), &output.err);
        Ok(output)
    }

    pub fn ok(&self, args: &[&str]) -> anyhow::Result<Output> {
        let output = self.run(args)?;
        output.ok().with_context(|| format!("towline {}", args.join(" ")))?;
        Ok(output)
    }

    /// Must end with exit code 1 and say `text`.
    pub fn refused(&self, args: &[&str], text: &str) -> anyhow::Result<()> {
        let output = self.run(args)?;
        let said = output.err.contains(text) && output.err.contains("hint: ");
        ensure!(output.code.is_some_and(|code| code == 1 || code == 2) && said, "towline {args:?}: {output:?}");
        Ok(())
    }

    pub fn clusters(&self) -> anyhow::Result<Vec<Value>> {
        Ok(serde_json::from_str(&self.ok(&["list", "-g", GROUP, "-o", "json"])?.text())?)
    }
}

/// Every object of the cluster with its identity, but for what comes and goes by itself.
pub fn objects() -> anyhow::Result<Vec<String>> {
    let admin = cluster().admin();
    let kinds = admin.ok(&["api-resources", "--verbs=list", "-o", "name"])?;
    let kinds: Vec<&str> = kinds.lines().filter(|kind| !kind.starts_with("events")).collect();
    let columns =
        "custom-columns=K:.kind,NS:.metadata.namespace,N:.metadata.name,U:.metadata.uid,D:.metadata.deletionTimestamp";
    let listed = admin.ok(&["get", &kinds.join(","), "-A", "-o", columns, "--no-headers", "--ignore-not-found"])?;
    let mut all: Vec<String> =
        listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    // A node's own, which it makes when it has been there for a while, and those of apiservers: another one on the same
    // machine has the same name.
    let of_machines = ["Lease kube-node-lease ", "Lease kube-system apiserver-"];
    all.retain(|line| !of_machines.iter().any(|own| line.starts_with(own)));
    all.sort_unstable();
    Ok(all)
}

/// The objects once nothing is on its way out any more: what other tests removed goes by and by.
pub fn settled() -> anyhow::Result<Vec<String>> {
    let mut last = Vec::new();
    eventually("nothing of other tests is on its way out", Duration::from_secs(180), || {
        let (listed, before) = (objects()?, std::mem::take(&mut last));
        last = listed;
        Ok(last == before && !last.iter().any(|line| line.ends_with('Z')))
    })?;
    Ok(last)
}

pub fn same(before: &[String]) -> anyhow::Result<()> {
    let after = objects()?;
    let new: Vec<_> = after.iter().filter(|line| !before.contains(line)).collect();
    let lost: Vec<_> = before.iter().filter(|line| !after.contains(line)).collect();
    ensure!(new.is_empty() && lost.is_empty(), "left behind: {new:?}; missing: {lost:?}");
    Ok(())
}

/// A gateway where pods reach this machine, and the agent's image on the node.
pub fn with_pods(name: &str) -> anyhow::Result<Site> {
    with_pods_and(name, &[])
}

/// The same, with more arguments of `towline dev`.
pub fn with_pods_and(name: &str, dev_args: &[&str]) -> anyhow::Result<Site> {
    load_image("agent")?;
    let listen = format!("{}:0", cluster().get("CLUSTER_HOST_IP"));
    let site = Site::of(&Plan { listen: &listen, dev_args, ..Plan::real(name) })?;
    site.ok(&["group", "create", "-g", GROUP, "-l", "eastus"])?;
    Ok(site)
}

fn there_and_back() -> anyhow::Result<()> {
    tests::stack::grant_in_cluster()?;
    let site = with_pods("connect")?;
    let admin = cluster().admin();
    let before = settled()?;

    let planned = site.ok(&["connect", "-n", "c1", "-g", GROUP, "--dry-run"])?.text();
    ensure!(planned.matches("kind: Deployment").count() == 2 && !planned.contains("PRIVATE KEY"), "{planned}");
    same(&before).context("a dry run changes nothing")?;

    let connect = ["connect", "-n", "c1", "-g", GROUP, "--tags", "a=b", "-o", "json"];
    let made = site.ok(&connect).with_context(pods)?;
    ensure!(made.err.lines().filter(|line| line.starts_with("Step: 20")).count() >= 10, "{}", made.err);
    let made: Value = serde_json::from_str(&made.text())?;
    ensure!(made["properties"]["connectivityStatus"] == "Connected" && made["tags"]["a"] == "b", "{made}");
    // Facts come with the first heartbeat.
    eventually("the cluster's facts are known", Duration::from_secs(30), || {
        let listed = site.clusters()?;
        Ok(listed.len() == 1 && listed[0]["properties"]["totalNodeCount"] == 1)
    })?;
    eventually("kubectl shows the same facts", Duration::from_secs(60), || {
        // The gateway may be told a moment before the object is made.
        let facts = admin.run(&["-n", "towline", "get", "connectedclusters", "clustermetadata", "-o", "json"])?;
        Ok(facts.code == Some(0) && serde_json::from_str::<Value>(&facts.text())?["status"]["totalNodeCount"] == 1)
    })?;

    kubectl_works(&site)?;
    refusals(&site)?;
    // The same again is an update (R3): nothing is made anew.
    let uids = || admin.ok(&["-n", "towline", "get", "deployments,secrets", "-o", "jsonpath={.items[*].metadata.uid}"]);
    let (uid, principal) = (uids()?, made["identity"]["principalId"].clone());
    let again: Value = serde_json::from_str(&site.ok(&connect)?.text())?;
    ensure!(again["identity"]["principalId"] == principal && uids()? == uid, "{again}");

    let bundle = site.stack.dir.join("bundle.zip").display().to_string();
    let told = site.run(&["troubleshoot", "-n", "c1", "-g", GROUP, "--file", &bundle])?;
    ensure!(told.code == Some(0) && std::fs::metadata(&bundle)?.len() > 1000, "b1: {told:?}");

    site.ok(&["delete", "-n", "c1", "-g", GROUP, "-y"])?;
    ensure!(site.clusters()?.is_empty());
    same(&before)?;
    behind_a_proxy(&site)?;
    same(&before).context("behind a proxy")
}

/// N3, N1: with a proxy that wants a password and an authority of its own, everything goes through it, the certificate
/// too.
fn behind_a_proxy(site: &Site) -> anyhow::Result<()> {
    let proxy = Proxy::start_at(cluster().get("CLUSTER_HOST_IP"), &site.stack.dir, true, Manner::Good)?;
    let (user, password) = CREDENTIALS;
    let url = format!("https://{user}:{password}@{}", proxy.address);
    let ca = proxy.ca.as_ref().context("no authority")?.display().to_string();
    let through = ["--proxy-https", &url, "--proxy-cert", &ca, "--replicas", "1", "-o", "json"];
    let made = site.ok(&[&["connect", "-n", "c1", "-g", GROUP][..], &through].concat()).with_context(pods)?;
    let made: Value = serde_json::from_str(&made.text())?;
    ensure!(made["properties"]["connectivityStatus"] == "Connected" && proxy.connects() >= 2, "{made}");
    site.ok(&["delete", "-n", "c1", "-g", GROUP, "-y"]).map(drop)
}

/// kubectl as the user admin, whom the owner gives the right to reach this cluster; in it admin is its administrator.
pub fn kubectl_of(site: &Site) -> anyhow::Result<Kubectl> {
    let listed = site.clusters()?;
    let id = listed[0]["id"].as_str().context("no id")?;
    let owner = token(&site.stack, &site.stack.text("clientId"), &site.stack.text("clientSecret"))?;
    let users = call(&site.stack, &owner, "GET", "/v1.0/users?$filter=userPrincipalName%20eq%20'admin'", &Value::Null)?;
    let given = json!({"properties": {
        "roleDefinitionId": format!("/providers/Microsoft.Authorization/roleDefinitions/{CLUSTER_USER}"),
        "principalId": users.json()?["value"][0]["id"], "principalType": "User",
    }});
    let path = format!(
        "{id}/providers/Microsoft.Authorization/roleAssignments/33333333-3333-4333-8333-333333333333?api-version=2022-04-01"
    );
    let made = call(&site.stack, &owner, "PUT", &path, &given)?;
    ensure!(made.status == 201, "{}", String::from_utf8_lossy(&made.body));
    let file = site.stack.dir.join("c1.kubeconfig");
    let shown = file.display().to_string();
    let (url, ca) = (site.stack.text("url"), site.stack.text("ca"));
    let password = site.stack.state().join("users/admin.password").display().to_string();
    let whom = ["--server", &url, "--ca", &ca, "--user", "admin", "--password-file", &password];
    site.ok(&[&["kubeconfig", "--cluster", id, "--file", &shown][..], &whom].concat())?;
    let kubectl = Kubectl::new(&file);
    eventually(
        "kubectl gets through",
        Duration::from_secs(30),
        || Ok(kubectl.run(&["get", "nodes"])?.code == Some(0)),
    )?;
    Ok(kubectl)
}

fn kubectl_works(site: &Site) -> anyhow::Result<()> {
    let kubectl = kubectl_of(site)?;
    let shown = site.stack.dir.join("c1.kubeconfig").display().to_string();
    let pods = kubectl.ok(&["get", "pods", "-n", "towline", "-o", "name"])?;
    ensure!(pods.lines().count() == 3, "{pods}");
    // A signing key that agents learn of is kept beside their certificate, by a right of the agent's Role.
    site.stack.towline(&["dev", "rotate-keys"])?.ok()?;
    eventually("the agents keep the new signing key", Duration::from_secs(60), || {
        kubectl.run(&["get", "nodes"])?;
        let kept = ["get", "secret", "towline-identity-certificate", "-o", "jsonpath={.data.issuer-keys\\.json}"];
        Ok(!cluster().admin().namespace("towline").ok(&kept)?.is_empty())
    })?;
    // What leads through the gateway is not what agents are installed or removed by.
    let through = ["--kube-config", &shown];
    site.refused(&[&["connect", "-n", "c2", "-g", GROUP][..], &through].concat(), "Cluster Connect kubeconfig")?;
    site.refused(&[&["delete", "-n", "c1", "-g", GROUP, "-y"][..], &through].concat(), "Cluster Connect kubeconfig")
}

/// One cluster is one resource, and a kubeconfig of another one deletes nothing (I6).
fn refusals(site: &Site) -> anyhow::Result<()> {
    let taken = "already onboarded to the resource group 'edge' with resource name 'c1'";
    site.refused(&["connect", "-n", "c2", "-g", GROUP], taken)?;
    let other = format!("{}/{CLUSTERS}/other?{VERSION}", group(&site.stack));
    let owner = token(&site.stack, &site.stack.text("clientId"), &site.stack.text("clientSecret"))?;
    let body = json!({"location": "eastus", "identity": {"type": "SystemAssigned"}, "properties": {"agentPublicKeyCertificate": ""}});
    ensure!(call(&site.stack, &owner, "PUT", &other, &body)?.status == 201);
    let elsewhere = "does not correspond to the connected cluster resource specified. Agents installed on this cluster correspond to the resource group name 'edge' and resource name 'c1'";
    site.refused(&["delete", "-n", "other", "-g", GROUP, "-y"], elsewhere)?;
    ensure!(call(&site.stack, &owner, "DELETE", &other, &Value::Null)?.status < 300);
    // the question cannot be asked.
    site.refused(&["delete", "-n", "c1", "-g", GROUP], "the question cannot be asked")?;
    eventually("the other one is gone", Duration::from_secs(30), || Ok(site.clusters()?.len() == 1)).map(drop)
}

fn leaves_nothing() -> anyhow::Result<()> {
    let site = with_pods("connect-failed")?;
    let before = settled()?;
    unreached(&site, &before)?;
    let none = ["connect", "-n", "c1", "-g", GROUP, "--image", "towline.test/none:1", "--replicas", "1"];
    let connect = [&none[..], &["--skip-network-check"]].concat();

    let late = site.run(&[&connect[..], &["--onboarding-timeout", "8s"]].concat())?;
    ensure!(late.code == Some(1), "{late:?}");
    for text in ["have not connected within 8 s", " clusterconnect-agent-", "towline.test/none:1", "hint: "] {
        ensure!(late.err.contains(text), "{text}: {}", late.err);
    }
    ensure!(site.clusters()?.is_empty());
    same(&before).context("after a timeout")?;

    let log = site.stack.dir.join("interrupted.stderr");
    let mut begun = Program::start("towline connect", site.command(&connect), &log)?;
    eventually("it waits", Duration::from_secs(60), || Ok(std::fs::read_to_string(&log)?.contains("Waiting for")))?;
    begun.signal("INT")?;
    let code = begun.wait(Duration::from_secs(200))?;
    ensure!(code == Some(130), "{code:?}: {}", begun.tail());
    ensure!(site.clusters()?.is_empty());
    same(&before).with_context(|| format!("after an interrupt: {}", begun.tail()))?;

    // A cluster whose apiserver is not there, a version of long ago, no rights: said before anything is made.
    let gone = Apiserver::start(&scratch("connect-forbidden"), false, Arc::new(forbidding))?;
    let kubeconfig = gone.kubeconfig.display().to_string();
    site.refused(&["connect", "-n", "c1", "-g", GROUP, "--kube-config", &kubeconfig], "you may not: ")?;
    ensure!(site.clusters()?.is_empty());
    site.refused(&["connect", "-n", "c1", "-g", GROUP, "--kube-context", "none"], "context none")
}

/// One has the turn; what the other takes back is its own.
fn two_at_once() -> anyhow::Result<()> {
    let site = with_pods("connect-twice")?;
    let before = settled()?;
    let connect = ["connect", "-n", "c1", "-g", GROUP, "--replicas", "1", "--skip-network-check"];
    let start = |name: &str| {
        let log = site.stack.dir.join(format!("{name}.stderr"));
        Program::start("towline connect", site.command(&connect), &log)
    };
    let mut both = [start("one")?, start("two")?];
    let mut codes = Vec::new();
    for one in &mut both {
        codes.push(one.wait(Duration::from_secs(280))?);
    }
    let tails = || both.iter().map(Program::tail).collect::<Vec<_>>().join("\n---\n");
    let ended = codes.contains(&Some(0)) && codes.iter().all(|code| matches!(code, Some(0 | 1)));
    ensure!(ended, "{codes:?}: {}", tails());
    let listed = site.clusters()?;
    let is_connected = listed.len() == 1 && listed[0]["properties"]["connectivityStatus"] == "Connected";
    ensure!(is_connected, "{listed:?}: {}", tails());
    let admin = cluster().admin().namespace("towline");
    admin.ok(&["rollout", "status", "deployment", "--timeout=1s"]).with_context(tails)?;
    let leases = || admin.ok(&["get", "leases", "-o", "name"]);
    ensure!(!leases()?.contains("towline-run"), "a run that ended has given its turn up: {}", tails());
    site.ok(&["delete", "-n", "c1", "-g", GROUP, "-y"])?;
    same(&before).with_context(tails)?;

    // A run that waits holds its turn: what wants to delete is told so before it has deleted anything.
    let log = site.stack.dir.join("waiting.stderr");
    let none = [&connect[..], &["--image", "towline.test/none:1"]].concat();
    let mut waiting = Program::start("towline connect", site.command(&none), &log)?;
    eventually("it waits", Duration::from_secs(60), || Ok(std::fs::read_to_string(&log)?.contains("Waiting for")))?;
    site.refused(&["delete", "-n", "c1", "-g", GROUP, "-y"], "another run is at work")?;
    ensure!(site.clusters()?.len() == 1 && leases()?.contains("towline-run"), "{}", waiting.tail());
    waiting.signal("INT")?;
    ensure!(waiting.wait(Duration::from_secs(200))? == Some(130), "{}", waiting.tail());
    ensure!(site.clusters()?.is_empty());
    same(&before).with_context(|| waiting.tail())
}

/// The third Deployment is there only where it was asked for. Its pod is ready without a catalogue: the gateway here
/// serves none.
fn extensions() -> anyhow::Result<()> {
    load_image("extension-manager")?;
    let site = with_pods("connect-extensions")?;
    let admin = cluster().admin().namespace("towline");
    let before = settled()?;
    let folder = site.stack.dir.join("catalogue").display().to_string();
    let key = site.home.join("catalogue.key").display().to_string();
    site.ok(&["catalogue", "init", "--catalogue", &folder, "--key", &key])?;
    let public = format!("{key}.pub");

    let connect = ["connect", "-n", "c1", "-g", GROUP, "--replicas", "1", "--skip-network-check"];
    let extensions = ["--extensions", "--catalogue-key", &public, "--allowed-extension-types", "example.web"];
    site.refused(&[&connect[..], &["--extensions"]].concat(), "the keys that sign the catalogue of extensions")?;
    site.refused(&[&connect[..], &["--extensions", "--catalogue-key", &key]].concat(), "--catalogue-key")?;
    site.refused(&[&connect[..], &["--catalogue-key", &public]].concat(), "extensions are off")?;
    same(&before).context("what is refused changes nothing")?;
    let none = ["--extension-image", "towline.test/none:1", "--onboarding-timeout", "10s"];
    let late = site.run(&[&connect[..], &extensions, &none].concat())?;
    ensure!(late.code == Some(1) && late.err.contains("pods of extension-manager are ready"), "{late:?}");
    same(&before).context("what a failed run made is taken back")?;

    let made = site.ok(&[&connect[..], &extensions].concat()).with_context(pods)?;
    ensure!(made.err.contains("is trusted by key ") && made.err.contains("administrator"), "{}", made.err);
    let ready = || admin.ok(&["get", "deployment", "extension-manager", "-o", "jsonpath={.status.readyReplicas}"]);
    ensure!(ready()? == "1", "{}", pods());
    let restarts = "jsonpath={.items[*].status.containerStatuses[*].restartCount}";
    let restarts =
        admin.ok(&["get", "pods", "-l", "app.kubernetes.io/name=towline-extension-manager", "-o", restarts])?;
    ensure!(restarts == "0", "{restarts} restarts: {}", pods());
    for (account, may) in [("extension-manager", "yes"), ("controller-manager", "no"), ("clusterconnect-agent", "no")] {
        let whom = format!("system:serviceaccount:towline:{account}");
        let said = admin.run(&["auth", "can-i", "create", "clusterroles", "--as", &whom])?.text();
        ensure!(said.trim() == may, "{account}: {said}");
    }
    let pinned = || admin.ok(&["get", "configmap", "extension-manager", "-o", "jsonpath={.data.agent\\.toml}"]);
    let first = pinned()?;
    ensure!(first.contains("BEGIN PUBLIC KEY") && first.contains("allowed_types = [\"example.web\"]"), "{first}");
    let uid = || admin.ok(&["get", "deployment", "extension-manager", "-o", "jsonpath={.metadata.uid}"]);
    let made = uid()?;
    site.ok(&connect).with_context(pods)?;
    ensure!(pinned()? == first && uid()? == made, "a run that does not name extensions keeps them: {}", pinned()?);

    // A release of a former connection, as helm keeps it.
    let former = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1",
        "metadata": {"name": "sh.helm.release.v1.former.v1", "namespace": "towline", "labels": {
            "owner": "helm", "name": "former", "version": "1", "status": "deployed", "towline.io/extension": "former",
        }},
    });
    let file = site.home.join("former.json");
    std::fs::write(&file, former.to_string())?;
    admin.ok(&["create", "-f", &file.display().to_string()])?;
    let told = site.ok(&connect).with_context(pods)?;
    ensure!(told.err.contains("extension former: helm -n towline uninstall former"), "g11: {}", told.err);
    let bundle = site.stack.dir.join("former.zip").display().to_string();
    let told = site.run(&["troubleshoot", "-n", "c1", "-g", GROUP, "--file", &bundle])?;
    let hint = "hint: left_behind_check: extension former: helm -n towline uninstall former";
    ensure!(told.err.contains(hint), "g11: {told:?}");
    admin.ok(&["delete", "-f", &file.display().to_string()])?;
    ensure!(!site.ok(&connect).with_context(pods)?.err.contains("former connection"), "g11: nothing is left");

    let features = ["-n", "c1", "-g", GROUP, "--features", "extensions"];
    site.ok(&[&["disable-features", "-y"][..], &features].concat()).with_context(pods)?;
    eventually("nothing of extensions is left", Duration::from_secs(90), || {
        let kinds = "deployments,configmaps,serviceaccounts,clusterrolebindings,customresourcedefinitions,pods";
        let listed = admin.ok(&["get", kinds, "-o", "name"])?;
        Ok(!listed.contains("extension-manager") && !listed.contains("extensionconfigs"))
    })?;
    let again = [&["enable-features"][..], &features, &["--catalogue-key", &public]].concat();
    site.ok(&again).with_context(pods)?;
    ensure!(ready()? == "1" && !pinned()?.contains("allowed_types"), "{}", pods());

    site.ok(&["delete", "-n", "c1", "-g", GROUP, "-y"])?;
    same(&before)
}

/// What a kube-apiserver that is slow does with a definition that is deleted as soon as it is made: it forgets it for
/// minutes, and looks at it once it is changed. It has no answer in between, either.
fn forgotten() -> anyhow::Result<()> {
    #[derive(Clone, Copy, PartialEq)]
    enum Definition {
        Missing,
        Served,
        NoAnswer,
        Deleted,
        Forgotten,
    }
    let definition = Arc::new(Mutex::new(Definition::Missing));
    let state = Arc::clone(&definition);
    let script = move |request: &Received, io: &mut tests::apiserver::Connection| {
        let target = String::from_utf8_lossy(request.target()).into_owned();
        if !target.contains("/customresourcedefinitions/") {
            return willing(request, io);
        }
        let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
        let mut state = state.lock().unwrap();
        let was = *state;
        let method = request.text();
        *state = match was {
            Definition::Missing if method.starts_with("PATCH") => Definition::Served,
            Definition::Served if method.starts_with("DELETE") => Definition::NoAnswer,
            Definition::NoAnswer if method.starts_with("DELETE") => Definition::Deleted,
            Definition::Deleted if method.starts_with("GET") => Definition::Forgotten,
            Definition::Forgotten if method.starts_with("PATCH") && body["spec"].is_null() => Definition::Missing,
            same => same,
        };
        let status = |code: u16, message: &str| json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "code": code});
        let (line, said) = match was {
            _ if method.starts_with("PATCH") => ("200 OK", body),
            Definition::Missing => ("404 Not Found", status(404, "not found")),
            Definition::Served if method.starts_with("GET") => return willing(request, io),
            Definition::Served => ("503 Service Unavailable", status(503, "no leader")),
            Definition::Deleted if method.starts_with("GET") => ("503 Service Unavailable", status(503, "no leader")),
            Definition::NoAnswer | Definition::Deleted | Definition::Forgotten => (
                "200 OK",
                json!({
                    "kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1",
                    "metadata": {
                        "name": "connectedclusters.towline.io", "deletionTimestamp": "2026-01-01T00:00:00Z",
                        "finalizers": ["customresourcecleanup.apiextensions.k8s.io"],
                    },
                    "status": {"conditions": [{
                        "type": "Terminating", "status": "True", "reason": "InstanceDeletionFailed",
                        "message": "could not list instances: storage is (re)initializing",
                    }]},
                }),
            ),
        };
        answer(io, line, said.to_string().as_bytes())
    };
    let apiserver = Apiserver::start(&scratch("connect-forgotten"), true, Arc::new(script))?;
    let site = Site::start("connect-forgotten", "127.0.0.1:0", apiserver.kubeconfig.clone())?;
    site.ok(&["group", "create", "-g", GROUP, "-l", "eastus"])?;
    let kubeconfig = apiserver.kubeconfig.display().to_string();
    let connect = ["connect", "-n", "c1", "-g", GROUP, "--kube-config", &kubeconfig];
    let late = site.run(&[&connect[..], &["--skip-network-check", "--onboarding-timeout", "1s"]].concat())?;
    let told = late.err.contains("have not connected within") && !late.err.contains("not all that was made");
    ensure!(late.code == Some(1) && told, "{late:?}");
    ensure!(*definition.lock().unwrap() == Definition::Missing && site.clusters()?.is_empty(), "{late:?}");
    Ok(())
}

/// Who connects made the group only if the gateway says so, and deletes it only while it is empty.
fn takes_back_its_own() -> anyhow::Result<()> {
    type Hook = Box<dyn Fn() -> anyhow::Result<()> + Send>;
    // What others do before anything is made, and before the first object is refused.
    let hooks: Arc<[Mutex<Option<Hook>>; 2]> = Arc::default();
    let between = Arc::clone(&hooks);
    let script = move |request: &Received, io: &mut tests::apiserver::Connection| {
        let refuses = request.text().starts_with("PATCH");
        let at = if refuses { 1 } else { usize::from(!request.target().ends_with(b"/version")) * 2 };
        let hook = between.get(at).and_then(|hook| hook.lock().unwrap().take());
        hook.map_or(Ok(()), |hook| hook())?;
        if !refuses {
            return willing(request, io);
        }
        let said = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "no room", "code": 507});
        answer(io, "507 Insufficient Storage", said.to_string().as_bytes())
    };
    let apiserver = Apiserver::start(&scratch("connect-back"), true, Arc::new(script))?;
    let site = Arc::new(Site::start("connect-back", "127.0.0.1:0", apiserver.kubeconfig.clone())?);
    let kubeconfig = apiserver.kubeconfig.display().to_string();
    let apart = ["--kube-config", &kubeconfig, "--skip-network-check"];
    let connect = [&["connect", "-n", "c1", "-g", GROUP, "-l", "eastus"][..], &apart].concat();
    let owner = token(&site.stack, &site.stack.text("clientId"), &site.stack.text("clientSecret"))?;
    let group_at = format!("{}?api-version=2024-03-01", group(&site.stack));
    let fails = || {
        let output = site.run(&connect)?;
        ensure!(output.code == Some(1) && output.err.contains("no room"), "{output:?}");
        Ok(())
    };
    let there = |path: &str| call(&site.stack, &owner, "GET", path, &Value::Null);

    fails()?;
    ensure!(there(&group_at)?.status == 404, "a group of its own goes");

    let other = format!("{}/{CLUSTERS}/other?{VERSION}", group(&site.stack));
    let puts = |path: &str, body: Value, wanted: u16| -> Hook {
        let (site, owner, path) = (Arc::clone(&site), owner.clone(), path.to_owned());
        Box::new(move || {
            let made = call(&site.stack, &owner, "PUT", &path, &body)?;
            ensure!(made.status == wanted, "{}", String::from_utf8_lossy(&made.body));
            Ok(())
        })
    };
    let body = json!({"location": "eastus", "identity": {"type": "SystemAssigned"}, "properties": {"agentPublicKeyCertificate": ""}});
    *hooks[1].lock().unwrap() = Some(puts(&other, body, 201));
    fails()?;
    let left = site.clusters()?;
    ensure!(left.len() == 1 && left[0]["name"] == "other", "what somebody put into it stays: {left:?}");
    site.ok(&["group", "delete", "-g", GROUP, "-y"])?;

    *hooks[0].lock().unwrap() = Some(puts(&group_at, json!({"location": "westus", "tags": {"a": "b"}}), 201));
    fails()?;
    let left = there(&group_at)?;
    ensure!(left.status == 200 && left.json()?["tags"]["a"] == "b", "somebody else's group stays as it is");
    ensure!(site.clusters()?.is_empty());
    Ok(())
}

/// Without any other program to be found, and with a home that nothing is written to.
fn downloads_nothing() -> anyhow::Result<()> {
    let apiserver = Apiserver::start(&scratch("connect-alone"), true, Arc::new(willing))?;
    let site = Site::start("connect-alone", "127.0.0.1:0", apiserver.kubeconfig.clone())?;
    let home = scratch("connect-alone-empty");
    std::fs::create_dir_all(&home)?;
    let alone = |args: &[&str]| -> anyhow::Result<()> {
        let mut command = Command::new(binary("towline"));
        command.args(args).env_clear().env("PATH", "").env("HOME", &home).stdin(Stdio::null()).current_dir(&home);
        command.env("KUBECONFIG", &apiserver.kubeconfig);
        command.env("TOWLINE_GATEWAY", site.stack.text("url")).env("TOWLINE_CA_FILE", site.stack.text("ca"));
        command.env("TOWLINE_CLIENT_ID", site.stack.text("clientId"));
        command.env("TOWLINE_CLIENT_SECRET", site.stack.text("clientSecret"));
        command.env("TOWLINE_SUBSCRIPTION", site.stack.text("subscription"));
        run(&mut command, Duration::from_secs(120))?.ok().map(drop)
    };
    alone(&["connect", "-n", "c1", "-g", GROUP, "-l", "eastus", "--no-wait", "--skip-network-check", "-o", "none"])?;
    alone(&["list", "-g", GROUP])?;
    alone(&["delete", "-n", "c1", "-g", GROUP, "-y"])?;
    let written: Vec<_> = std::fs::read_dir(&home)?.collect();
    ensure!(written.is_empty(), "{written:?}");
    Ok(())
}

/// I3: before anything is made at the gateway, a job tells whether pods reach it.
fn unreached(site: &Site, before: &[String]) -> anyhow::Result<()> {
    let connect = ["connect", "-n", "c1", "-g", GROUP, "--replicas", "1"];
    let closed = format!("http://{}:1", cluster().get("CLUSTER_HOST_IP"));
    let cut = site.run(&[&connect[..], &["--proxy-https", &closed]].concat())?;
    ensure!(cut.code == Some(1) && !cut.err.contains("Making the resource"), "{cut:?}");
    for text in ["do not reach the gateway", " TCP through proxy ", "hint: ", "--skip-network-check"] {
        ensure!(cut.err.contains(text), "{text}: {}", cut.err);
    }
    same(before).context("after a check that failed")?;

    let none = [&connect[..], &["--image", "towline.test/none:1"]].concat();
    let late = site.run(&[&none[..], &["--onboarding-timeout", "8s"]].concat())?;
    ensure!(late.code == Some(1), "{late:?}");
    for text in
        ["the network cannot be checked", "pod towline-diagnoser-", "has not begun to run within 8 s", "last event: "]
    {
        ensure!(late.err.contains(text), "{text}: {}", late.err);
    }
    same(before).context("after a check that did not end")?;

    let log = site.stack.dir.join("checking.stderr");
    let mut begun = Program::start("towline connect", site.command(&none), &log)?;
    eventually("the job is there", Duration::from_secs(60), || {
        let job = cluster().admin().run(&["-n", "towline", "get", "job", "towline-diagnoser"])?;
        Ok(job.code == Some(0))
    })?;
    begun.signal("INT")?;
    let code = begun.wait(Duration::from_secs(200))?;
    ensure!(code == Some(130), "{code:?}: {}", begun.tail());
    same(before).context("after an interrupt of the check")
}

pub fn pods() -> String {
    let admin = cluster().admin().namespace("towline");
    let said = |args: &[&str]| admin.run(args).map(|out| out.text() + &out.err).unwrap_or_default();
    said(&["get", "pods", "-o", "wide"]) + &said(&["get", "events"])
}

/// A principal that may connect clusters connects a hundred at once, by the command itself, each to an apiserver of its
/// own name; what else it tries is refused by name of action and scope.
fn a_hundred() -> anyhow::Result<()> {
    let apiserver = Apiserver::start(&scratch("connect-many"), true, Arc::new(willing))?;
    let site = Site::start("connect-many", "127.0.0.1:0", apiserver.kubeconfig.clone())?;
    site.ok(&["group", "create", "-g", GROUP, "-l", "eastus"])?;
    let (id, secret) = onboarder(&site)?;
    let key = site.home.join("onboarding.key");
    let bits = "rsa_keygen_bits:2048";
    let shown = key.display().to_string();
    run(
        Command::new("openssl").args(["genpkey", "-algorithm", "RSA", "-pkeyopt", bits, "-out", &shown]),
        Duration::from_secs(60),
    )?
    .ok()?;
    let connect = |name: &str| -> anyhow::Result<Output> {
        let mut command = Command::new(binary("towline"));
        command.args([
            "connect",
            "-n",
            name,
            "-g",
            GROUP,
            "--no-wait",
            "-o",
            "none",
            "--key-file",
            &shown,
            "--skip-network-check",
        ]);
        command.env("KUBECONFIG", &apiserver.kubeconfig).env("HOME", &site.home).stdin(Stdio::null());
        command.env("TOWLINE_GATEWAY", site.stack.text("url")).env("TOWLINE_CA_FILE", site.stack.text("ca"));
        command.env("TOWLINE_CLIENT_ID", &id).env("TOWLINE_CLIENT_SECRET", &secret);
        command.env("TOWLINE_SUBSCRIPTION", site.stack.text("subscription"));
        run(&mut command, Duration::from_secs(300))
    };
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let running: Vec<_> = (0..AT_ONCE)
            .map(|number| {
                let connect = &connect;
                scope.spawn(move || connect(&format!("c{number}"))?.ok())
            })
            .collect();
        for one in running {
            one.join().map_err(|_| anyhow::anyhow!("it panicked"))??;
        }
        Ok(())
    })?;
    ensure!(site.clusters()?.len() == AT_ONCE, "{} of {AT_ONCE}", site.clusters()?.len());
    // A name that is taken is somebody else's cluster.
    let taken = connect("c1")?;
    ensure!(taken.code == Some(1) && taken.err.contains("corresponds to a different Kubernetes cluster"), "{taken:?}");
    forbidden(&site, &id, &secret)
}

/// S1: each of these is refused by name of action and scope.
fn forbidden(site: &Site, id: &str, secret: &str) -> anyhow::Result<()> {
    let token = token(&site.stack, id, secret)?;
    let cluster = format!("{}/{CLUSTERS}/c1", group(&site.stack));
    let kind = "Microsoft.Kubernetes/connectedClusters";
    let assignment = "Microsoft.Authorization/roleAssignments";
    let credential = json!({"authenticationMethod": "AAD", "clientProxy": false});
    let role = json!({"properties": {
        "roleDefinitionId": format!("/providers/Microsoft.Authorization/roleDefinitions/{ONBOARDING}"),
        "principalId": "11111111-2222-4333-8444-555555555555", "principalType": "ServicePrincipal",
    }});
    let given = format!("{cluster}/providers/{assignment}/33333333-3333-4333-8333-333333333333");
    for (method, path, body, action) in [
        ("DELETE", cluster.clone(), Value::Null, format!("{kind}/delete")),
        (
            "POST",
            format!("{cluster}/listClusterUserCredential"),
            credential,
            format!("{kind}/listClusterUserCredential/action"),
        ),
        ("PUT", given, role, format!("{assignment}/write")),
        (
            "DELETE",
            group(&site.stack),
            Value::Null,
            "Microsoft.Resources/subscriptions/resourceGroups/delete".to_owned(),
        ),
    ] {
        let version = if path.contains(assignment) { "api-version=2022-04-01" } else { VERSION };
        let version = if path.ends_with(GROUP) { "api-version=2024-03-01" } else { version };
        let refused = call(&site.stack, &token, method, &format!("{path}?{version}"), &body)?;
        let error = refused.json()?["error"].clone();
        let message = error["message"].as_str().unwrap_or_default().to_lowercase();
        let named = message.contains(&action.to_lowercase()) && message.contains(&group(&site.stack).to_lowercase());
        ensure!(refused.status == 403 && error["code"] == "AuthorizationFailed" && named, "{method} {path}: {error}");
    }
    ensure!(site.clusters()?.len() == AT_ONCE, "a refused call changes nothing");
    Ok(())
}

/// A service principal with the onboarding role at the group and nothing else: client id and secret.
fn onboarder(site: &Site) -> anyhow::Result<(String, String)> {
    site.stack.towline(&["dev", "add-principal", "onboarder"])?.ok()?;
    let known: Value = serde_json::from_slice(&std::fs::read(site.stack.state().join("issuer/principals.json"))?)?;
    let known = known["principals"].as_array().context("no principals")?.clone();
    let one = known.into_iter().find(|one| one["name"] == "onboarder").context("no onboarder")?;
    let secret = std::fs::read_to_string(site.stack.state().join("principals/onboarder.secret"))?.trim().to_owned();
    note_secret(&secret)?;
    let owner = token(&site.stack, &site.stack.text("clientId"), &site.stack.text("clientSecret"))?;
    let path = format!(
        "{}/providers/Microsoft.Authorization/roleAssignments/44444444-4444-4444-8444-444444444444?api-version=2022-04-01",
        group(&site.stack)
    );
    let given = json!({"properties": {
        "roleDefinitionId": format!("/providers/Microsoft.Authorization/roleDefinitions/{ONBOARDING}"),
        "principalId": one["object_id"], "principalType": "ServicePrincipal",
    }});
    let made = call(&site.stack, &owner, "PUT", &path, &given)?;
    ensure!(made.status == 201, "{}", String::from_utf8_lossy(&made.body));
    Ok((one["client_id"].as_str().context("no client id")?.to_owned(), secret))
}

pub fn group(stack: &Stack) -> String {
    format!("/subscriptions/{}/resourceGroups/{GROUP}", stack.text("subscription"))
}

/// A token for the resource API.
pub fn token(stack: &Stack, id: &str, secret: &str) -> anyhow::Result<String> {
    let scope = format!("{}/.default", stack.text("url")).replace(':', "%3A").replace('/', "%2F");
    let form = format!("grant_type=client_credentials&client_id={id}&client_secret={secret}&scope={scope}");
    let path = format!("/{}/oauth2/v2.0/token", stack.text("tenant"));
    let answer = exchange(stack, "POST", &path, "Content-Type: application/x-www-form-urlencoded", &form)?;
    let token = answer.json()?["access_token"].as_str().with_context(|| answer.head.clone())?.to_owned();
    note_secret(&token)?;
    Ok(token)
}

pub fn call(stack: &Stack, token: &str, method: &str, path: &str, body: &Value) -> anyhow::Result<Answer> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let headers = format!("Authorization: Bearer {token}\r\nContent-Type: application/json");
    exchange(stack, method, path, &headers, &body)
}

fn exchange(stack: &Stack, method: &str, path: &str, headers: &str, body: &str) -> anyhow::Result<Answer> {
    let mut raw: Raw = stack.raw()?;
    let (host, length) = (stack.authority(), body.len());
    raw.send(
        format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n{headers}\r\nContent-Length: {length}\r\n\r\n{body}")
            .as_bytes(),
    )?;
    raw.answer()
}

/// An apiserver that allows everything, has nothing and takes everything.
pub fn willing(request: &Received, io: &mut tests::apiserver::Connection) -> anyhow::Result<bool> {
    scripted(request, io, true)
}

/// One that allows nothing.
fn forbidding(request: &Received, io: &mut tests::apiserver::Connection) -> anyhow::Result<bool> {
    scripted(request, io, false)
}

fn scripted(request: &Received, io: &mut tests::apiserver::Connection, allows: bool) -> anyhow::Result<bool> {
    let target = String::from_utf8_lossy(request.target()).into_owned();
    let path = target.split('?').next().unwrap_or_default();
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let reply = |io: &mut _, status: &str, value: &Value| answer(io, status, value.to_string().as_bytes());
    let (method, last) = (request.text(), path.rsplit('/').next().unwrap_or_default());
    if method.starts_with("PATCH") {
        return reply(io, "200 OK", &body);
    }
    match last {
        "namespaces" if method.starts_with("POST") => reply(io, "201 Created", &body),
        "version" => reply(
            io,
            "200 OK",
            &json!({
                "major": "1", "minor": "36", "gitVersion": "v1.36.2", "gitCommit": "", "gitTreeState": "",
                "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
            }),
        ),
        "selfsubjectaccessreviews" => {
            let mut review = body;
            review["status"] = json!({"allowed": allows});
            reply(io, "201 Created", &review)
        }
        "nodes" => reply(
            io,
            "200 OK",
            &json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": [
                {"metadata": {"name": "n", "labels": {"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}}},
            ]}),
        ),
        "configmaps" => reply(io, "200 OK", &json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": []})),
        "connectedclusters.towline.io" => reply(
            io,
            "200 OK",
            &json!({
                "kind": "CustomResourceDefinition", "apiVersion": "apiextensions.k8s.io/v1", "metadata": {"name": last},
                "status": {"conditions": [{"type": "Established", "status": "True"}]},
            }),
        ),
        _ => reply(
            io,
            "404 Not Found",
            &json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "not found",
                "reason": "NotFound", "code": 404,
            }),
        ),
    }
}
