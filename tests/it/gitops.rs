//! GitOps end to end (docs/features.md G2-G7, X3, N1): the real gateway with a catalogue that has microsoft.flux, the agents
//! and Flux's own controllers as pods in the real cluster, and a real Git server over TLS with a password.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::TcpStream,
    path::PathBuf,
    process::Command,
    time::Duration,
};

use anyhow::{Context, ensure};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    case::{Needs, installs},
    cluster::cluster,
    git::{CREDENTIALS, GitServer, Repository, SshServer},
    kubectl::Kubectl,
    leftovers::{free, remove},
    programs::{binary, eventually, root, run, scratch},
};

use crate::{
    agents,
    chart::load_image,
    connect::{CLUSTERS, GROUP, Site, call, group, pods, token, with_pods_and},
};

const VERSION: &str = "api-version=2025-04-01";
const EXTENSION_VERSION: &str = "api-version=2025-03-01";
const SOURCE_CONTROL_VERSION: &str = "api-version=2023-05-01";
/// How often sources and kustomizations are looked at in these tests.
pub const INTERVAL: u64 = 10;
/// From nothing: Flux is installed and fetches for the first time.
pub const FIRST: Duration = Duration::from_secs(300);
/// What is due within an interval, on a machine with other work.
pub const SOON: Duration = Duration::from_secs(90);

pub fn tests() -> Vec<Trial> {
    vec![
        installs(
            "gitops::d5_g2_g5_g6_x3_from_nothing_to_compliant_through_drift_and_faults_and_without_the_gateway",
            Needs::Pods,
            from_nothing,
        ),
        installs("gitops::g3_by_ssh_a_host_whose_key_changes_is_refused", Needs::Pods, by_ssh),
        installs("gitops::g7_configuration_of_a_namespace_has_rights_there_alone", Needs::Pods, namespaced),
        installs("gitops::g7_what_the_owner_of_the_cluster_did_not_allow_is_refused_there", Needs::Pods, pinned),
        installs(
            "gitops::n1_a_source_that_only_the_gateway_reaches_is_fetched_through_it",
            Needs::Pods,
            through_gateway,
        ),
    ]
}

/// A connected cluster with extensions, and a Git server that its pods reach.
pub struct Gitops {
    pub site: Site,
    pub server: GitServer,
    pub admin: Kubectl,
    pub owner: String,
}

/// The packed chart: `TOWLINE_FLUX_CHART_FILE`, else made now.
pub fn chart() -> anyhow::Result<PathBuf> {
    if let Some(file) = std::env::var_os("TOWLINE_FLUX_CHART_FILE") {
        return Ok(file.into());
    }
    let mut pack = Command::new(root().join("docker/build"));
    Ok(run(pack.args(["chart", "microsoft.flux"]), Duration::from_secs(1800))?.ok()?.trim().into())
}

impl Gitops {
    pub fn start(name: &str, more: &[&str]) -> anyhow::Result<Self> {
        Self::start_with(name, more, &[])
    }

    /// The same, with settings of the gateway.
    fn start_with(name: &str, more: &[&str], settings: &[&str]) -> anyhow::Result<Self> {
        let admin = cluster().admin();
        clean(&admin)?;
        for image in ["extension-manager", "source-controller", "kustomize-controller"] {
            load_image(image)?;
        }
        let dir = scratch(&format!("{name}-catalogue"));
        let path = |name: &str| dir.join(name).display().to_string();
        let (catalogue, key, chart) = (path("catalogue"), path("signing.key"), chart()?.display().to_string());
        for args in [
            &["init", "--key", &key][..],
            &["add", &chart, "--type", "microsoft.flux", "--train", "Stable", "--release-namespace", "flux-system"],
            &["sign", "--key", &key, "--expires", "90d"],
        ] {
            let mut command = Command::new(binary("towline"));
            command.arg("catalogue").args(args).args(["--catalogue", &catalogue]);
            run(&mut command, Duration::from_secs(60))?.ok()?;
        }
        let catalogue = format!("api.catalogue_dir={catalogue:?}");
        let settings = settings.iter().copied().chain([catalogue.as_str()]).flat_map(|setting| ["--set", setting]);
        let site = with_pods_and(name, &settings.collect::<Vec<_>>())?;
        let connect = ["connect", "-n", "c1", "-g", GROUP, "--replicas", "1", "--skip-network-check"];
        let public = format!("{key}.pub");
        site.ok(&[&connect[..], &["--extensions", "--catalogue-key", &public], more].concat()).with_context(pods)?;
        let owner = token(&site.stack, &site.stack.text("clientId"), &site.stack.text("clientSecret"))?;
        let server = GitServer::start_at(cluster().get("CLUSTER_HOST_IP"), &scratch(&format!("{name}-git")))?;
        Ok(Self { site, server, admin, owner })
    }

    pub fn call(&self, method: &str, kind: &str, name: &str, body: &Value) -> anyhow::Result<Value> {
        let cluster = format!("{}/{CLUSTERS}/c1", group(&self.site.stack));
        let version = match kind {
            "extensions" => EXTENSION_VERSION,
            "sourceControlConfigurations" => SOURCE_CONTROL_VERSION,
            _ => VERSION,
        };
        let path = format!("{cluster}/providers/Microsoft.KubernetesConfiguration/{kind}/{name}?{version}");
        let answer = call(&self.site.stack, &self.owner, method, &path, body)?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        ensure!(answer.status < 300 || answer.status == 404, "{method} {kind}/{name}: {} {text}", answer.status);
        if answer.status == 404 || text.is_empty() {
            return Ok(Value::Null);
        }
        Ok(serde_json::from_str(&text)?)
    }

    /// E11: the service account of Flux's source-controller, which the chart made, gets tokens of the extension's identity,
    /// and no other account does.
    fn acts_at_the_gateway(&self) -> anyhow::Result<()> {
        let shown = self.call("GET", "extensions", "flux", &Value::Null)?;
        let kept = |name: &str| shown["properties"][name].clone();
        let properties = json!({"extensionType": kept("extensionType"), "scope": kept("scope")});
        let body = json!({"identity": {"type": "SystemAssigned"}, "properties": properties});
        let principal = self.call("PUT", "extensions", "flux", &body)?["identity"]["principalId"].clone();
        let role = format!("{}/{CLUSTERS}/c1", group(&self.site.stack));
        agents::extension_tokens(&self.site, &role, &principal, "flux", ("flux-system", "source-controller"))
    }

    pub fn put(&self, name: &str, properties: &Value) -> anyhow::Result<()> {
        self.call("PUT", "fluxConfigurations", name, &json!({ "properties": properties })).map(drop)
    }

    /// Waits until a configuration is as wanted; its properties.
    pub fn await_shown(
        &self,
        name: &str,
        what: &str,
        within: Duration,
        is: impl Fn(&Value) -> bool,
    ) -> anyhow::Result<Value> {
        let mut shown = Value::Null;
        eventually(&format!("{name} {what}"), within, || {
            shown = self.call("GET", "fluxConfigurations", name, &Value::Null)?["properties"].clone();
            Ok(is(&shown))
        })
        .with_context(|| format!("{shown:#}\n{}", self.state()))?;
        Ok(shown)
    }

    pub fn await_compliant(&self, name: &str, commit: &str, within: Duration) -> anyhow::Result<Value> {
        self.await_shown(name, &format!("complies with {commit}"), within, |shown| {
            shown["provisioningState"] == "Succeeded"
                && shown["complianceState"] == "Compliant"
                && shown["sourceSyncedCommitId"].as_str().is_some_and(|synced| synced.contains(commit))
        })
    }

    pub fn field(&self, namespace: &str, object: &str, path: &str) -> anyhow::Result<String> {
        let path = format!("jsonpath={path}");
        Ok(self.admin.run(&["-n", namespace, "get", object, "-o", &path])?.text())
    }

    pub fn await_field(&self, object: &str, wanted: &str, within: Duration) -> anyhow::Result<()> {
        eventually(&format!("{object} is {wanted}"), within, || {
            Ok(self.field("shop", object, "{.data.greeting}")? == wanted)
        })
        .with_context(|| self.state())
        .map(drop)
    }

    /// What is to be known where a test fails.
    pub fn state(&self) -> String {
        let said = |args: &[&str]| self.admin.run(args).map(|out| out.text() + &out.err).unwrap_or_default();
        [
            said(&["get", "gitrepositories,kustomizations", "-A"]),
            said(&["-n", "flux-system", "get", "pods,events"]),
            said(&["-n", "flux-system", "logs", "deployment/kustomize-controller", "--tail=10"]),
            said(&["-n", "towline", "get", "fluxconfigs,gitconfigs,extensionconfigs", "-o", "yaml"]),
            said(&["-n", "towline", "logs", "deployment/fluxconfig-agent", "--tail=30"]),
            said(&["-n", "towline", "logs", "deployment/flux-logs-agent", "--tail=20"]),
            said(&["-n", "towline", "logs", "deployment/extension-manager", "--tail=20"]),
            pods(),
        ]
        .join("\n")
    }

    /// Of two pods of fluxconfig-agent one works, and when that one ends the other.
    fn one_pod_works(&self) -> anyhow::Result<()> {
        let agent = ["-n", "towline", "deployment/fluxconfig-agent"];
        let holder = || self.field("towline", "lease/fluxconfig-agent", "{.spec.holderIdentity}");
        let of = |pod: &str| holder().map(|holder| holder.split('_').next() == Some(pod));
        let pods = || -> anyhow::Result<Vec<String>> {
            let ready = "jsonpath={range .items[?(@.status.containerStatuses[0].ready==true)]}{.metadata.name} {end}";
            let label = "app.kubernetes.io/name=towline-fluxconfig-agent";
            let found = self.admin.ok(&["-n", "towline", "get", "pods", "-l", label, "-o", ready])?;
            Ok(found.split_whitespace().map(str::to_owned).collect())
        };
        let first = pods()?.pop().context("no pod of fluxconfig-agent is ready")?;
        ensure!(of(&first)?, "{} and not {first}", holder()?);
        self.admin.ok(&["scale", agent[2], agent[0], agent[1], "--replicas=2"])?;
        let mut second = String::new();
        eventually("a second pod is ready", SOON, || {
            second = pods()?.into_iter().find(|pod| *pod != first).unwrap_or_default();
            Ok(!second.is_empty())
        })?;
        ensure!(of(&first)?, "{} and not {first}", holder()?);
        self.admin.ok(&["-n", "towline", "delete", "pod", &first, "--wait=false"])?;
        eventually("another pod works", SOON, || Ok(!holder()?.is_empty() && !of(&first)?))
            .with_context(|| self.state())?;
        self.admin.ok(&["scale", agent[2], agent[0], agent[1], "--replicas=1"]).map(drop)
    }

    /// G10: a configuration of the time of Flux 1, whose folder has the ConfigMap `old`, complies and goes again.
    fn source_control(&self, properties: &Value) -> anyhow::Result<()> {
        let call = |method: &str, body: &Value| self.call(method, "sourceControlConfigurations", "old", body);
        call("PUT", &json!({ "properties": properties }))?;
        let mut shown = Value::Null;
        eventually("the source control configuration complies", SOON, || {
            shown = call("GET", &Value::Null)?["properties"].clone();
            Ok(shown["complianceStatus"]["complianceState"] == "Compliant")
        })
        .with_context(|| format!("{shown:#}\n{}", self.state()))?;
        ensure!(shown["provisioningState"] == "Succeeded", "{shown:#}");
        self.await_field("configmap/old", "one", SOON)?;
        call("DELETE", &Value::Null)?;
        eventually("it is gone with what it had applied", SOON, || {
            let left = self.admin.run(&["-n", "shop", "get", "configmap", "old", "-o", "name"])?;
            Ok(call("GET", &Value::Null)?.is_null() && left.text().trim().is_empty())
        })
        .with_context(|| self.state())
        .map(drop)
    }

    pub fn delete(&self, name: &str) -> anyhow::Result<()> {
        self.call("DELETE", "fluxConfigurations", name, &Value::Null)?;
        eventually(&format!("{name} is gone"), SOON, || {
            Ok(self.call("GET", "fluxConfigurations", name, &Value::Null)?.is_null())
        })
        .with_context(|| self.state())?;
        Ok(())
    }

    /// Takes all of it out of the cluster.
    pub fn end(self) -> anyhow::Result<()> {
        self.site.ok(&["extension", "delete", "-g", GROUP, "-c", "c1", "-n", "flux", "--yes"]).with_context(pods)?;
        eventually("Flux and its agent are gone", SOON, || {
            let left = self.admin.run(&["-n", "flux-system", "get", "deployments", "-o", "name"])?.text();
            let agents = ["-n", "towline", "get", "deployment", "fluxconfig-agent", "flux-logs-agent", "-o", "name"];
            Ok(left.trim().is_empty() && self.admin.run(&agents)?.text().trim().is_empty())
        })?;
        self.site.ok(&["delete", "-n", "c1", "-g", GROUP, "-y"])?;
        clean(&self.admin)
    }

    /// Properties of one that applies these folders of a repository, each by a kustomization of its name.
    pub fn folders(&self, repository: &Repository, (scope, namespace): (&str, &str), folders: &[&str]) -> Value {
        let mut properties = self.properties(repository);
        properties["scope"] = scope.into();
        properties["namespace"] = namespace.into();
        properties["kustomizations"] = folders.iter().map(|name| ((*name).to_owned(), kustomization(name))).collect();
        properties
    }

    pub fn properties(&self, repository: &Repository) -> Value {
        json!({
            "scope": "cluster", "namespace": "gitops", "sourceKind": "GitRepository",
            "gitRepository": {
                "url": repository.url, "repositoryRef": {"branch": "main"},
                "syncIntervalInSeconds": INTERVAL, "timeoutInSeconds": 60,
                "httpsUser": CREDENTIALS.0, "httpsCACert": BASE64.encode(&self.server.ca),
            },
            "configurationProtectedSettings": {"httpsKey": BASE64.encode(CREDENTIALS.1)},
            "kustomizations": {
                "apps": kustomization("apps"), "other": kustomization("other"),
            },
        })
    }
}

/// One of a configuration that applies this folder.
pub fn kustomization(folder: &str) -> Value {
    json!({
        "path": format!("./{folder}"), "prune": true, "syncIntervalInSeconds": INTERVAL,
        "retryIntervalInSeconds": INTERVAL, "timeoutInSeconds": 60,
    })
}

/// What a test leaves, or one that failed: definitions of Flux stay where their extension is removed.
pub fn clean(admin: &Kubectl) -> anyhow::Result<()> {
    let listed = admin.ok(&["get", "crd", "-o", "name"])?;
    let names = listed.lines().filter_map(|name| name.rsplit('/').next());
    let definitions: Vec<&str> = names.filter(|name| name.contains(".toolkit.fluxcd.io")).collect();
    for definition in &definitions {
        // Nobody is there who would take the finalizers away.
        free(admin, definition)?;
    }
    remove(admin, &definitions, &["shop", "gitops", "team", "fleet", "flux-system"])
}

pub fn config_map(name: &str, greeting: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: shop}}\ndata: {{greeting: {greeting}}}\n"
    )
}

pub const SHOP: &str = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, annotations: {kustomize.toolkit.fluxcd.io/prune: disabled}}\n";

fn from_nothing() -> anyhow::Result<()> {
    let gitops = Gitops::start("gitops", &[])?;
    let repository = gitops.server.repository("shop")?;
    let first = repository.push(&[
        ("apps/namespace.yaml", Some(SHOP)),
        ("apps/web.yaml", Some(&config_map("web", "hello"))),
        ("other/db.yaml", Some(&config_map("db", "one"))),
    ])?;

    // G2: the extension comes with the first configuration.
    ensure!(gitops.call("GET", "extensions", "flux", &Value::Null)?.is_null(), "there is no Flux yet");
    let mut properties = gitops.properties(&repository);
    properties["kustomizations"]["other"]["dependsOn"] = json!(["apps"]);
    gitops.put("shop", &properties)?;
    let shown = gitops.await_compliant("shop", &first, FIRST)?;
    let extension = gitops.call("GET", "extensions", "flux", &Value::Null)?;
    ensure!(extension["properties"]["extensionType"] == "microsoft.flux", "{extension:#}");
    ensure!(!shown.to_string().contains(CREDENTIALS.1) && !shown.to_string().contains(&BASE64.encode(CREDENTIALS.1)));
    // G6: every object is there with who applied it.
    let statuses = shown["statuses"].as_array().context("no statuses")?;
    let status = |kind: &str, name: &str| statuses.iter().find(|one| one["kind"] == kind && one["name"] == name);
    for (kind, name) in [("GitRepository", "shop"), ("Kustomization", "shop-apps"), ("Kustomization", "shop-other")] {
        let one = status(kind, name).with_context(|| format!("{kind} {name}: {shown:#}"))?;
        ensure!(one["complianceState"] == "Compliant" && one["namespace"] == "gitops", "{one:#}");
    }
    let web = status("ConfigMap", "web").with_context(|| format!("{shown:#}"))?;
    ensure!(web["appliedBy"]["name"] == "shop-apps" && web["namespace"] == "shop", "{web:#}");
    gitops.await_field("configmap/web", "hello", SOON)?;

    gitops.one_pod_works()?;

    // A push is there within the interval.
    let second = repository.push(&[("apps/web.yaml", Some(&config_map("web", "again")))])?;
    gitops.await_field("configmap/web", "again", SOON)?;
    gitops.await_compliant("shop", &second, SOON)?;

    // G5: what somebody changes or deletes is repaired.
    let other = r#"{"data": {"greeting": "by hand"}}"#;
    gitops.admin.ok(&["-n", "shop", "patch", "configmap", "web", "--type", "merge", "-p", other])?;
    gitops.await_field("configmap/web", "again", SOON)?;
    gitops.admin.ok(&["-n", "shop", "delete", "configmap", "db"])?;
    gitops.await_field("configmap/db", "one", SOON)?;

    // What is no YAML is named, and the other kustomization goes on.
    let mut apart = properties.clone();
    apart["kustomizations"]["other"]["dependsOn"] = json!([]);
    gitops.put("shop", &apart)?;
    gitops.await_compliant("shop", &second, SOON)?;
    repository.push(&[
        ("apps/broken.yaml", Some("apiVersion: v1\nkind: ConfigMap\n  metadata: [\n")),
        ("other/db.yaml", Some(&config_map("db", "two"))),
    ])?;
    let shown = gitops.await_shown("shop", "does not comply", SOON, |shown| {
        shown["complianceState"] == "Non-Compliant" && shown.to_string().contains("broken.yaml")
    })?;
    ensure!(shown["errorMessage"].as_str().is_some_and(|error| error.contains("broken.yaml")), "{shown:#}");
    gitops.await_field("configmap/db", "two", SOON)?;
    // D5: what the controller logged of it, and of nothing else; the last error is beside the status.
    let logs = ["flux", "logs", "shop", "-c", "c1", "-g", GROUP, "--level", "error"];
    let mut said = String::new();
    eventually("the controller's error is told", SOON, || {
        said = gitops.site.ok(&logs)?.text();
        Ok(said.lines().any(|line| line.contains("Kustomization/gitops/shop-apps") && line.contains("broken.yaml")))
    })
    .with_context(|| format!("{said}\n{}", gitops.state()))?;
    ensure!(!said.contains("shop-other") && !said.contains(CREDENTIALS.1), "{said}");
    let narrow =
        gitops.site.ok(&[&logs[..], &["--kustomization", "apps", "--tail", "1", "-o", "json"]].concat())?.text();
    let narrow: Value = serde_json::from_str(&narrow)?;
    ensure!(narrow.as_array().is_some_and(|lines| lines.len() == 1) && narrow[0]["name"] == "shop-apps", "{narrow:#}");
    gitops.await_shown("shop", "has the last error of the controller", SOON, |shown| {
        let statuses = shown["statuses"].as_array().into_iter().flatten();
        let mut conditions = statuses.flat_map(|one| one["statusConditions"].as_array().into_iter().flatten());
        conditions.any(|one| one["type"] == "LastError" && one["message"].to_string().contains("broken.yaml"))
    })?;
    let fixed = repository.push(&[("apps/broken.yaml", None), ("apps/web.yaml", Some(&config_map("web", "fixed")))])?;
    gitops.await_compliant("shop", &fixed, SOON)?;
    gitops.await_field("configmap/web", "fixed", SOON)?;

    // X3: without the gateway Flux goes on, and what it did is told when the gateway is back.
    gitops.site.stack.kill_gateway();
    let alone = repository.push(&[("apps/web.yaml", Some(&config_map("web", "alone")))])?;
    gitops.await_field("configmap/web", "alone", SOON)?;
    gitops.site.stack.restart_gateway()?;
    gitops.await_compliant("shop", &alone, FIRST)?;
    ensure!(gitops.server.refused() == 0 || gitops.server.served() > 0);

    // With prune what was applied goes too.
    gitops.delete("shop")?;
    eventually("what was applied is gone", SOON, || {
        let left = gitops.admin.run(&["-n", "shop", "get", "configmap", "web", "db", "-o", "name"])?;
        Ok(left.text().trim().is_empty())
    })
    .with_context(|| gitops.state())?;
    gitops.end()
}

fn namespaced() -> anyhow::Result<()> {
    let gitops = Gitops::start("gitops-namespace", &[])?;
    let repository = gitops.server.repository("team")?;
    let here = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {greeting: hello}\n";
    let first =
        repository.push(&[("apps/web.yaml", Some(here)), ("other/db.yaml", Some(&here.replace("web", "db")))])?;
    let mut properties = gitops.properties(&repository);
    properties["scope"] = "namespace".into();
    properties["namespace"] = "team".into();
    gitops.put("team", &properties)?;
    gitops.await_compliant("team", &first, FIRST)?;
    ensure!(gitops.field("team", "configmap/web", "{.data.greeting}")? == "hello");
    ensure!(gitops.field("team", "rolebinding/flux-applier", "{.roleRef.name}")? == "admin");

    // Rights in the namespace alone: no role for the cluster.
    let role =
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: gitops-greedy}\nrules: []\n";
    repository.push(&[("apps/role.yaml", Some(role))])?;
    gitops.await_shown("team", "is refused a ClusterRole", SOON, |shown| {
        shown["complianceState"] == "Non-Compliant" && shown.to_string().contains("gitops-greedy")
    })?;
    ensure!(gitops.field("", "clusterrole/gitops-greedy", "{.metadata.name}")?.is_empty());
    // Nor may it write objects of Flux.
    let elsewhere = "apiVersion: kustomize.toolkit.fluxcd.io/v1\nkind: Kustomization\nmetadata: {name: greedy, namespace: team}\n\
        spec: {interval: 10s, prune: true, path: ./, serviceAccountName: flux-applier, sourceRef: {kind: GitRepository, name: other, namespace: flux-system}}\n";
    repository.push(&[("apps/role.yaml", None), ("apps/greedy.yaml", Some(elsewhere))])?;
    gitops.await_shown("team", "is refused a Kustomization", SOON, |shown| {
        shown["complianceState"] == "Non-Compliant" && shown.to_string().contains("greedy\\\" is forbidden")
    })?;
    // Who may, gets no source of another namespace.
    gitops.admin.apply(elsewhere)?;
    eventually("the reference to another namespace is refused", SOON, || {
        let said = gitops.field("team", "kustomization/greedy", "{.status.conditions[*].message}")?;
        Ok(said.contains("cross-namespace references have been blocked"))
    })
    .with_context(|| gitops.state())?;
    gitops.admin.ok(&["-n", "team", "delete", "kustomization", "greedy"])?;
    let fixed = repository.push(&[("apps/greedy.yaml", None)])?;
    gitops.await_compliant("team", &fixed, SOON)?;
    gitops.acts_at_the_gateway()?;
    gitops.delete("team")?;
    gitops.end()
}

fn by_ssh() -> anyhow::Result<()> {
    let gitops = Gitops::start("gitops-ssh", &[])?;
    let host = cluster().get("CLUSTER_HOST_IP");
    let keys = scratch("gitops-ssh-server");
    let mut server = SshServer::start_at(host, &keys, &gitops.server)?;
    let repository = gitops.server.repository("shop")?;
    let first = repository.push(&[
        ("apps/namespace.yaml", Some(SHOP)),
        ("apps/web.yaml", Some(&config_map("web", "hello"))),
        ("other/db.yaml", Some(&config_map("db", "one"))),
        ("old/old.yaml", Some(&config_map("old", "one"))),
    ])?;
    let mut properties = gitops.properties(&repository);
    properties["kustomizations"]["other"]["dependsOn"] = json!(["apps"]);
    properties["gitRepository"] = json!({
        "url": server.url("shop"), "repositoryRef": {"branch": "main"}, "syncIntervalInSeconds": INTERVAL,
        "timeoutInSeconds": 60, "sshKnownHosts": BASE64.encode(&server.known_hosts),
    });
    properties["configurationProtectedSettings"] = json!({"sshPrivateKey": BASE64.encode(&server.key)});
    gitops.put("shop", &properties)?;
    gitops.await_compliant("shop", &first, FIRST)?;
    gitops.await_field("configmap/web", "hello", SOON)?;
    gitops.source_control(&json!({
        "repositoryUrl": server.url("shop"), "operatorNamespace": "gitops", "operatorScope": "cluster",
        "operatorParams": "--git-branch=main --git-path=old --git-poll-interval=10s --sync-garbage-collection --git-readonly",
        "sshKnownHostsContents": BASE64.encode(&server.known_hosts),
        "configurationProtectedSettings": {"sshPrivateKey": BASE64.encode(&server.key)},
    }))?;

    g3_key_that_is_made_in_the_cluster_reads_once_it_is_accepted(&gitops, &server)?;
    g5_what_does_not_get_healthy_is_named_and_what_is_suspended_waits(&gitops)?;

    // TH45: somebody else answers at the address that complied. Nothing of it is taken, and nothing is removed.
    server.answer_with_other_key(true)?;
    let second = repository.push(&[("apps/web.yaml", Some(&config_map("web", "again")))])?;
    gitops.await_shown("shop", "is refused", SOON, |shown| {
        shown["complianceState"] == "Non-Compliant" && shown.to_string().contains("key mismatch")
    })?;
    ensure!(gitops.field("shop", "configmap/web", "{.data.greeting}")? == "hello", "{second} was applied");
    // The host that is known is back.
    server.answer_with_other_key(false)?;
    gitops.await_compliant("shop", &second, SOON)?;
    // Other known hosts than the host's.
    let (known, other) = (server.known_hosts.clone(), std::fs::read_to_string(keys.join("other-host.key.pub"))?);
    let host = known.split_whitespace().next().context("known_hosts begins with the host")?;
    properties["gitRepository"]["sshKnownHosts"] = BASE64.encode(format!("{host} {other}")).into();
    gitops.put("shop", &properties)?;
    gitops.await_shown("shop", "is refused", SOON, |shown| {
        shown["complianceState"] == "Non-Compliant" && shown.to_string().contains("key mismatch")
    })?;
    gitops.delete("shop")?;
    gitops.end()
}

/// G3: a configuration without a key has one made in the cluster, and shows its public half.
fn g3_key_that_is_made_in_the_cluster_reads_once_it_is_accepted(
    gitops: &Gitops,
    server: &SshServer,
) -> anyhow::Result<()> {
    let repository = gitops.server.repository("own")?;
    let commit = repository.push(&[("apps/own.yaml", Some(&config_map("own", "hello")))])?;
    let mut properties = gitops.folders(&repository, ("cluster", "gitops"), &["apps"]);
    properties["gitRepository"] = json!({
        "url": server.url("own"), "repositoryRef": {"branch": "main"}, "syncIntervalInSeconds": INTERVAL,
        "timeoutInSeconds": 60, "sshKnownHosts": BASE64.encode(&server.known_hosts),
    });
    properties["configurationProtectedSettings"] = Value::Null;
    gitops.put("own", &properties)?;
    let key = |shown: &Value| shown["repositoryPublicKey"].as_str().map(str::to_owned);
    let shown = gitops.await_shown("own", "shows the key that it has", SOON, |shown| key(shown).is_some())?;
    let made = key(&shown).unwrap_or_default();
    ensure!(made.starts_with("ssh-ed25519 ") && shown["complianceState"] != "Compliant", "{shown:#}");
    server.accept(&made)?;
    let shown = gitops.await_compliant("own", &commit, SOON)?;
    ensure!(key(&shown) == Some(made), "another key: {shown:#}");
    gitops.delete("own")
}

/// G5: with `wait` the objects that do not get healthy are named, with `force` what cannot be changed is made anew, and what is
/// suspended is not followed until it goes on.
fn g5_what_does_not_get_healthy_is_named_and_what_is_suspended_waits(gitops: &Gitops) -> anyhow::Result<()> {
    let repository = gitops.server.repository("steps")?;
    // No node has such an image, and none is pulled.
    let pods = |replicas: u8| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: never, namespace: shop}}\nspec:\n  replicas: {replicas}\n  selector: {{matchLabels: {{app: never}}}}\n  template:\n    metadata: {{labels: {{app: never}}}}\n    spec: {{containers: [{{name: a, image: \"towline.test/never:1\", imagePullPolicy: Never}}]}}\n"
        )
    };
    let fixed = |name: &str, greeting: &str| format!("{}immutable: true\n", config_map(name, greeting));
    repository.push(&[
        ("pods/never.yaml", Some(&pods(1))),
        ("kept/kept.yaml", Some(&fixed("kept", "one"))),
        ("forced/forced.yaml", Some(&fixed("forced", "one"))),
    ])?;
    let mut properties = gitops.folders(&repository, ("cluster", "gitops"), &["pods", "kept", "forced"]);
    properties["kustomizations"]["pods"]["timeoutInSeconds"] = 10.into();
    properties["kustomizations"]["forced"]["force"] = true.into();
    gitops.put("steps", &properties)?;
    let complies = |shown: &Value, kind: &str, name: &str| {
        let mut statuses = shown["statuses"].as_array().into_iter().flatten();
        let status = statuses.find(|one| one["kind"] == kind && one["name"] == name);
        status.and_then(|one| one["complianceState"].as_str().map(|state| state == "Compliant"))
    };
    gitops.await_shown("steps", "names what does not get healthy", SOON, |shown| {
        shown["complianceState"] == "Non-Compliant"
            && shown["errorMessage"].as_str().is_some_and(|error| error.contains("Deployment/shop/never"))
            && complies(shown, "Deployment", "never") == Some(false)
            && complies(shown, "ConfigMap", "kept") == Some(true)
    })?;
    let second = repository.push(&[
        ("pods/never.yaml", Some(&pods(0))),
        ("kept/kept.yaml", Some(&fixed("kept", "two"))),
        ("forced/forced.yaml", Some(&fixed("forced", "two"))),
    ])?;
    gitops.await_field("configmap/forced", "two", SOON)?;
    gitops.await_shown("steps", "says what cannot be changed", SOON, |shown| {
        complies(shown, "Deployment", "never") == Some(true)
            && complies(shown, "ConfigMap", "forced") == Some(true)
            && shown["errorMessage"].as_str().is_some_and(|error| error.contains("immutable"))
    })?;
    let patch = |properties: Value| {
        gitops.call("PATCH", "fluxConfigurations", "steps", &json!({ "properties": properties })).map(drop)
    };
    // A commit that puts right what does not get healthy is not kept waiting for the end of the attempt before it.
    patch(json!({"kustomizations": {"pods": {"timeoutInSeconds": 3600}}}))?;
    let replicas = |wanted: &str| {
        eventually("the Deployment is as in the repository", SOON, || {
            Ok(gitops.field("shop", "deployment/never", "{.spec.replicas}")? == wanted)
        })
    };
    repository.push(&[("pods/never.yaml", Some(&pods(1)))])?;
    replicas("1")?;
    repository.push(&[("pods/never.yaml", Some(&pods(0)))])?;
    replicas("0")?;
    patch(json!({"suspend": true, "kustomizations": {"kept": null}}))?;
    gitops.await_shown("steps", "is suspended", SOON, |shown| {
        shown["provisioningState"] == "Succeeded" && shown["complianceState"] == "Suspended"
    })?;
    let third = repository.push(&[("forced/forced.yaml", Some(&fixed("forced", "three")))])?;
    patch(json!({"suspend": false}))?;
    gitops.await_compliant("steps", &third, SOON)?;
    ensure!(gitops.field("shop", "configmap/forced", "{.data.greeting}")? == "three", "{second} is still there");
    gitops.delete("steps")
}

/// N1: a Git server at the loopback address of the gateway's machine, where no pod comes.
fn through_gateway() -> anyhow::Result<()> {
    let server = GitServer::start_at("127.0.0.1", &scratch("gitops-through-git"))?;
    let at = server.address.to_string();
    let gitops = Gitops::start_with("gitops-through", &[], &[&format!("egress.hosts=[{at:?}]")])?;
    let repository = server.repository("team")?;
    let config = |greeting: &str| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: web}}\ndata: {{greeting: {greeting}}}\n")
    };
    let first = repository.push(&[
        ("apps/web.yaml", Some(&config("hello"))),
        ("other/db.yaml", Some(&config("one").replace("web", "db"))),
    ])?;
    let mut properties = gitops.properties(&repository);
    properties["scope"] = "namespace".into();
    properties["namespace"] = "team".into();
    properties["gitRepository"]["httpsCACert"] = BASE64.encode(&server.ca).into();
    properties["throughGateway"] = true.into();
    gitops.put("team", &properties)?;
    gitops.await_compliant("team", &first, FIRST)?;
    ensure!(gitops.field("team", "configmap/web", "{.data.greeting}")? == "hello");
    ensure!(server.served() > 0);

    // What the operator did not list is refused when it is written, and so is what TLS does not protect.
    for (url, why) in [("https://127.0.0.1:1/team.git", "does not reach 127.0.0.1:1"), ("git@h:team", "over ssh")] {
        let mut other = properties.clone();
        other["gitRepository"] = json!({"url": url, "repositoryRef": {"branch": "main"}});
        other["configurationProtectedSettings"] = json!({});
        let refused = gitops.put("other", &other).err().map(|error| error.to_string()).unwrap_or_default();
        ensure!(refused.contains("400") && refused.contains(why), "{refused}");
    }

    // Whoever has no credentials gets nowhere, and those of a configuration lead to its own source alone.
    let pods = ["-n", "towline", "get", "pods", "-l", "app.kubernetes.io/name=towline-fluxconfig-agent", "-o"];
    let of_pod = |path: &str| gitops.admin.ok(&[&pods[..], &[&format!("jsonpath={{.items[0].{path}}}")]].concat());
    let agent = of_pod("status.podIP")?;
    let credential = |key: &str| -> anyhow::Result<String> {
        let text = gitops.field("team", "secret/team-proxy", &format!("{{.data.{key}}}"))?;
        Ok(String::from_utf8(BASE64.decode(text)?)?)
    };
    let (user, password) = (credential("username")?, credential("password")?);
    tests::stack::note_secret(&password)?;
    ensure!(credential("address")?.starts_with("http://"));
    ensure!(connect_status(agent.trim(), &at, "nobody:nothing")? == "407");
    let own = format!("{user}:{password}");
    ensure!(connect_status(agent.trim(), "127.0.0.1:1", &own)? == "403");
    ensure!(connect_status(agent.trim(), &at, &own)? == "200");

    // The list changes: the source says so, and each attempt is counted on both sides.
    let file = gitops.site.stack.state().join("gateway.toml");
    let settings = std::fs::read_to_string(&file)?;
    std::fs::write(&file, settings.replace(&at, "192.0.2.1:9"))?;
    repository.push(&[("apps/web.yaml", Some(&config("again")))])?;
    gitops.await_shown("team", "is refused by the gateway", SOON, |shown| {
        shown["complianceState"] == "Non-Compliant" && shown.to_string().contains("[egress] hosts of the gateway")
    })?;
    let metrics = gitops.site.stack.admin_get("/metrics")?;
    for counted in ["gateway_egress_total{outcome=\"host_not_allowed\"}", "gateway_egress_total{outcome=\"complete\"}"]
    {
        ensure!(metrics.contains(counted), "{metrics}");
    }
    let path = format!("/api/v1/namespaces/towline/pods/{}:9091/proxy/metrics", of_pod("metadata.name")?.trim());
    let counted = gitops.admin.ok(&["get", "--raw", &path])?;
    for result in ["opened", "unauthenticated", "other_host", "gateway_refused"] {
        ensure!(counted.contains(&format!("agent_egress_connections_total{{result=\"{result}\"}}")), "{counted}");
    }
    std::fs::write(&file, settings)?;
    let again = repository.push(&[("apps/web.yaml", Some(&config("allowed")))])?;
    gitops.await_compliant("team", &again, SOON)?;

    // Without it, nothing leads there.
    properties["throughGateway"] = false.into();
    gitops.put("team", &properties)?;
    gitops.await_shown("team", "is not reached", SOON, |shown| {
        shown["complianceState"] == "Non-Compliant" && shown.to_string().contains("connection refused")
    })?;
    ensure!(gitops.field("team", "secret/team-proxy", "{.metadata.name}")?.is_empty());
    gitops.delete("team")?;
    gitops.end()
}

/// What the proxy in the cluster answers to CONNECT: the status.
fn connect_status(proxy: &str, to: &str, credentials: &str) -> anyhow::Result<String> {
    let mut socket = TcpStream::connect((proxy, 3128))?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    let credentials = BASE64.encode(credentials);
    write!(socket, "CONNECT {to} HTTP/1.1\r\nHost: {to}\r\nProxy-Authorization: Basic {credentials}\r\n\r\n")?;
    let mut line = String::new();
    BufReader::new(socket).read_line(&mut line)?;
    Ok(line.split(' ').nth(1).unwrap_or_default().to_owned())
}

fn pinned() -> anyhow::Result<()> {
    let gitops = Gitops::start("gitops-pinned", &["--gitops-scope", "namespace", "--gitops-namespace", "team"])?;
    let repository = gitops.server.repository("team")?;
    let first = repository.push(&[
        ("apps/web.yaml", Some("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: web}\ndata: {greeting: hello}\n")),
        ("other/db.yaml", Some("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: db}\ndata: {greeting: one}\n")),
    ])?;
    let properties = gitops.properties(&repository);
    gitops.put("team", &properties)?;
    let shown = gitops.await_shown("team", "is refused", FIRST, |shown| shown["provisioningState"] == "Failed")?;
    ensure!(shown.to_string().contains("the scope cluster is not allowed in this cluster"), "{shown:#}");
    ensure!(gitops.field("", "clusterrolebinding/towline:flux-applier:gitops", "{.metadata.name}")?.is_empty());
    gitops.delete("team")?;
    let mut allowed = properties;
    allowed["scope"] = "namespace".into();
    allowed["namespace"] = "team".into();
    gitops.put("team", &allowed)?;
    gitops.await_compliant("team", &first, FIRST)?;
    // Another pin holds as soon as it is given: the pod is replaced.
    let url = format!("https://{}/other/*", gitops.server.address);
    let features = ["enable-features", "-n", "c1", "-g", GROUP, "--features", "extensions"];
    gitops.site.ok(&[&features[..], &["--gitops-repository", &url]].concat()).with_context(pods)?;
    gitops.await_shown("team", "is refused", FIRST, |shown| {
        shown.to_string().contains("is not allowed in this cluster")
    })?;
    gitops.delete("team")?;
    gitops.end()
}
