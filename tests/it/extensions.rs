//! Extensions end to end (docs/features.md E1-E9, D4): the real gateway with a signed catalogue, the agent with real helm,
//! and the real cluster. The agent runs as a host process; its namespace is `default`.

mod endings;
mod others;
mod registries;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    apiserver::{Apiserver, Connection, Received, answer},
    case::{Needs, installs},
    cluster::cluster,
    kubectl::Kubectl,
    leftovers::remove,
    programs::{binary, eventually, run, scratch},
    stack::{Plan, Stack},
};

use crate::connect::{call, token};

const VERSION: &str = "api-version=2025-03-01";
/// How long helm waits in these tests.
const TIMEOUT: &str = "20s";

pub fn tests() -> Vec<Trial> {
    vec![
        installs("extensions::e1_chart_is_installed_upgraded_repaired_and_removed", Needs::Pods, life),
        installs("extensions::e9_failure_names_its_cause_and_what_to_do", Needs::Pods, failures),
        installs("extensions::e9_e12_causes_outside_of_the_chart_are_told", Needs::Pods, causes),
        installs(
            "extensions::e1_killed_agent_leaves_no_release_pending",
            Needs::Pods,
            endings::killed_while_helm_waits,
        ),
        installs("extensions::e1_charts_that_others_wrote_come_and_go", Needs::Pods, others::published),
        installs("extensions::x5_charts_and_images_come_from_a_registry", Needs::Pods, registries::own_registry),
        installs("extensions::e1_killed_at_any_moment_it_ends_as_asked", Needs::Pods, endings::killed_at_any_moment),
        installs("extensions::e4_link_cut_for_a_whole_upgrade", Needs::Pods, endings::link_cut_for_an_upgrade),
        installs(
            "extensions::e10_cluster_deleted_while_an_extension_installs",
            Needs::Pods,
            endings::cluster_deleted_while_installing,
        ),
        installs(
            "extensions::attack_th51_hostile_gateway_installs_nothing_of_its_own",
            Needs::Pods,
            endings::hostile_gateway,
        ),
        installs("extensions::e7_extension_of_a_namespace_has_rights_there_alone", Needs::Pods, namespaced),
    ]
}

/// A catalogue in the making, and a gateway and an agent that go by it.
struct Site {
    stack: Stack,
    catalogue: Catalogue,
    cluster: String,
    admin: Kubectl,
}

/// A catalogue's folder and its key.
struct Catalogue {
    dir: PathBuf,
}

impl Catalogue {
    fn new(name: &str) -> anyhow::Result<Self> {
        let this = Self { dir: scratch(name) };
        this.towline(&["init", "--key", &this.path("signing.key")])?;
        Ok(this)
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).display().to_string()
    }

    fn towline(&self, args: &[&str]) -> anyhow::Result<()> {
        let mut command = std::process::Command::new(binary("towline"));
        command.arg("catalogue").args(args).args(["--catalogue", &self.path("catalogue")]);
        run(&mut command, Duration::from_secs(60))?.ok().map(drop)
    }

    /// Packs a chart with helm and adds it; the index is to be signed.
    fn add(&self, chart: &Chart<'_>, more: &[&str]) -> anyhow::Result<()> {
        let source = self.dir.join(format!("{}-{}", chart.name, chart.version));
        std::fs::create_dir_all(source.join("templates"))?;
        std::fs::create_dir_all(source.join("crds"))?;
        let metadata = format!("apiVersion: v2\nname: {}\nversion: {}\ntype: application\n", chart.name, chart.version);
        std::fs::write(source.join("Chart.yaml"), metadata)?;
        for (path, text) in chart.files {
            std::fs::write(source.join(path), text)?;
        }
        let helm = cluster().get("CLUSTER_HELM").to_owned();
        let mut pack = std::process::Command::new(helm);
        pack.args(["package", &source.display().to_string(), "--destination", &self.dir.display().to_string()]);
        run(&mut pack, Duration::from_secs(60))?.ok()?;
        let file = self.path(&format!("{}-{}.tgz", chart.name, chart.version));
        let kind = format!("example.{}", chart.name);
        let add = ["add", &file, "--type", &kind, "--train", "Stable", "--release-namespace", chart.name];
        self.towline(&[&add[..], more].concat())
    }

    fn sign(&self) -> anyhow::Result<()> {
        self.towline(&["sign", "--key", &self.path("signing.key"), "--expires", "90d"])
    }
}

/// A chart that is made here.
struct Chart<'a> {
    name: &'a str,
    version: &'a str,
    files: &'a [(&'a str, &'a str)],
}

const CONFIG_MAP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ .Release.Name }}-settings\"}\n\
    data: {greeting: {{ .Values.greeting | quote }}, count: {{ .Values.count | quote }}, password: {{ .Values.password | quote }}, version: {{ .Chart.Version | quote }}}\n";
const VALUES: &str = "greeting: hello\ncount: 1\npassword: none\nimage: towline.test/busybox:1\n";
const SCHEMA: &str = r#"{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"count": {"type": "integer"}, "greeting": {"type": "string"}}}"#;
const POD: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: \"{{ .Release.Name }}\"}\n\
    spec:\n  selector: {matchLabels: {app: \"{{ .Release.Name }}\"}}\n  template:\n    metadata: {labels: {app: \"{{ .Release.Name }}\"}}\n\
    \x20   spec:\n      terminationGracePeriodSeconds: 0\n      containers: [{name: main, image: \"{{ .Values.image }}\", imagePullPolicy: IfNotPresent, command: [sleep, \"3600\"]}]\n";
const HOOK: &str = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: \"{{ .Release.Name }}-hook\", annotations: {helm.sh/hook: pre-install, helm.sh/hook-delete-policy: before-hook-creation}}\n\
    spec:\n  backoffLimit: 0\n  template:\n    spec:\n      restartPolicy: Never\n\
    \x20     containers: [{name: hook, image: \"towline.test/busybox:1\", imagePullPolicy: IfNotPresent, command: [sh, -c, \"echo the database is not there; exit 3\"]}]\n";
const CLUSTER_ROLE: &str = "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: \"{{ .Release.Name }}-all\"}\nrules: []\n";
const LOOKUP: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ .Release.Name }}-read\"}\n\
    data: {read: {{ lookup \"v1\" \"Secret\" \"default\" \"\" | toJson | quote }}}\n";
const CRD: &str = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: things.extensions.example.org}\n\
    spec: {group: extensions.example.org, scope: Namespaced, names: {kind: Thing, plural: things}, versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}]}\n";

impl Site {
    fn start(name: &str, catalogue: Catalogue) -> anyhow::Result<Self> {
        Self::start_within(name, catalogue, TIMEOUT, &[])
    }

    /// With another time that helm waits, and more settings of the agent.
    fn start_within(name: &str, catalogue: Catalogue, timeout: &str, more: &[String]) -> anyhow::Result<Self> {
        let admin = cluster().admin();
        // What a test that failed left behind.
        remove(&admin, &["extensionconfigs.towline.io"], &[])?;
        admin.ok(&["delete", "secret", "extension-catalogue", "--ignore-not-found"])?;
        let definition = tests::programs::root().join("docker/chart/towline-agent/files/extensionconfigs.yaml");
        admin.apply(&std::fs::read_to_string(definition)?)?;
        let folder = format!("api.catalogue_dir={:?}", catalogue.path("catalogue"));
        let text = |key: &str, value: &str| format!("{key}={value:?}");
        let settings = [
            text("roles", "all"),
            format!("extensions.catalogue_key_files=[{:?}]", catalogue.path("signing.key.pub")),
            text("extensions.helm", cluster().get("CLUSTER_HELM")),
            text("extensions.work_dir", &catalogue.dir.display().to_string()),
            text("extensions.timeout", timeout),
            text("extensions.catalogue_interval", "5s"),
        ];
        let mut dev_args = vec!["--set", folder.as_str()];
        for setting in settings.iter().chain(more) {
            dev_args.extend(["--agent-set", setting]);
        }
        let stack = Stack::start(&Plan { dev_args: &dev_args, ..Plan::real(name) })?;
        let owner = token(&stack, &stack.text("clientId"), &stack.text("clientSecret"))?;
        let body = json!({
            "location": "local", "identity": {"type": "SystemAssigned"},
            "properties": {"agentPublicKeyCertificate": "", "distribution": "k3s"},
        });
        let made = stack.connect_as_resource(body, |path, body| {
            let version = if path.contains("/providers/") { "2024-01-01" } else { "2024-03-01" };
            let answer = call(&stack, &owner, "PUT", &format!("{path}?api-version={version}"), body)?;
            ensure!(matches!(answer.status, 200 | 201), "{path}: {}", String::from_utf8_lossy(&answer.body));
            Ok(())
        })?;
        Ok(Self { stack, catalogue, cluster: made.id, admin })
    }

    fn call(&self, method: &str, name: &str, body: &Value) -> anyhow::Result<Value> {
        let owner = token(&self.stack, &self.stack.text("clientId"), &self.stack.text("clientSecret"))?;
        let path = format!("{}/providers/Microsoft.KubernetesConfiguration/extensions/{name}?{VERSION}", self.cluster);
        let answer = call(&self.stack, &owner, method, &path, body)?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        ensure!(answer.status < 300 || answer.status == 404, "{method} {name}: {} {text}", answer.status);
        if answer.status == 404 || text.is_empty() {
            return Ok(Value::Null);
        }
        Ok(serde_json::from_str(&text)?)
    }

    fn put(&self, name: &str, properties: &Value) -> anyhow::Result<()> {
        self.call("PUT", name, &json!({ "properties": properties })).map(drop)
    }

    /// Waits until an extension is in this state; its properties.
    fn await_state(&self, name: &str, state: &str) -> anyhow::Result<Value> {
        let mut shown = Value::Null;
        eventually(&format!("{name} is {state}"), Duration::from_secs(180), || {
            shown = self.call("GET", name, &Value::Null)?["properties"].clone();
            Ok(shown["provisioningState"] == state)
        })
        .with_context(|| format!("{shown:#}\n{}", self.stack.agent.lock().unwrap().tail()))?;
        Ok(shown)
    }

    fn delete(&self, name: &str) -> anyhow::Result<()> {
        self.call("DELETE", name, &Value::Null)?;
        eventually(&format!("{name} is gone"), Duration::from_secs(120), || {
            Ok(self.call("GET", name, &Value::Null)?.is_null())
        })
        .with_context(|| self.stack.agent.lock().unwrap().tail())?;
        eventually(&format!("the custom resource {name} is gone"), Duration::from_secs(20), || {
            Ok(self.admin.run(&["get", "extensionconfigs", name])?.code != Some(0))
        })?;
        Ok(())
    }

    fn field(&self, namespace: &str, object: &str, path: &str) -> anyhow::Result<String> {
        Ok(self.admin.run(&["-n", namespace, "get", object, "-o", &format!("jsonpath={path}")])?.text())
    }

    fn helm(&self, args: &[&str]) -> anyhow::Result<()> {
        let mut helm = std::process::Command::new(cluster().get("CLUSTER_HELM"));
        helm.args(args).env("KUBECONFIG", cluster().admin_kubeconfig());
        run(&mut helm, Duration::from_secs(60))?.ok().map(drop)
    }

    /// Nothing is left of extensions: no Secret, no release, no namespace of ours.
    fn nothing_left(&self) -> anyhow::Result<()> {
        eventually("nothing is left of the extensions", Duration::from_secs(60), || {
            let secrets = self.admin.ok(&["get", "secrets", "-A", "-l", "owner=helm", "-o", "name"])?;
            let made = "app.kubernetes.io/managed-by=towline-extension-manager";
            let spaces = self.admin.ok(&["get", "namespaces", "-l", made, "-o", "name"])?;
            let protected = self.admin.ok(&["get", "secrets", "-l", "towline.io/part", "-o", "name"])?;
            let left = format!("{secrets}{spaces}{protected}");
            Ok(left.trim().is_empty())
        })?;
        remove(&self.admin, &["extensionconfigs.towline.io"], &[])?;
        self.admin.ok(&["delete", "secret", "extension-catalogue", "--ignore-not-found"])?;
        Ok(())
    }
}

fn web<'a>(version: &'a str, files: &'a [(&'a str, &'a str)]) -> Chart<'a> {
    Chart { name: "web", version, files }
}

const WEB: &[(&str, &str)] = &[
    ("values.yaml", VALUES),
    ("values.schema.json", SCHEMA),
    ("templates/settings.yaml", CONFIG_MAP),
    ("templates/pod.yaml", POD),
    ("crds/things.yaml", CRD),
];

fn life() -> anyhow::Result<()> {
    let catalogue = Catalogue::new("extensions-life-catalogue")?;
    catalogue.add(&web("1.0.0", WEB), &[])?;
    catalogue.sign()?;
    let site = Site::start("extensions-life", catalogue)?;

    // E1: installed, with settings of both kinds.
    let secret = "s3cret-of-an-extension";
    tests::stack::note_secret(secret)?;
    let mut properties = json!({
        "extensionType": "example.web",
        "configurationSettings": {"greeting": "7", "count": "3"},
        "configurationProtectedSettings": {"password": secret},
    });
    site.put("web", &properties)?;
    let shown = site.await_state("web", "Succeeded")?;
    ensure!(shown["currentVersion"] == "1.0.0", "{shown}");
    let setting = |name: &str| site.field("web", "configmap/web-settings", &format!("{{.data.{name}}}"));
    ensure!((setting("greeting")?.as_str(), setting("count")?.as_str()) == ("7", "3"));
    ensure!(
        site.admin.ok(&["-n", "web", "get", "deployment", "web", "-o", "jsonpath={.status.readyReplicas}"])? == "1"
    );
    ensure!(setting("password")? == secret);
    let kept = site.field("default", "extensionconfigs/web", "{}")?;
    ensure!(kept.contains("Succeeded") && !kept.contains(secret), "{kept}");

    // Other settings, and those that are gone do not stay.
    properties["configurationSettings"] = json!({"greeting": "again"});
    site.put("web", &properties)?;
    site.await_state("web", "Succeeded")?;
    ensure!((setting("greeting")?.as_str(), setting("count")?.as_str()) == ("again", "1"));

    // E5: what the schema refuses is told before helm changes anything.
    properties["configurationSettings"] = json!({"count": "many"});
    site.put("web", &properties)?;
    let shown = site.await_state("web", "Failed")?;
    let error = shown["errorInfo"]["message"].as_str().unwrap_or_default();
    ensure!(
        shown["errorInfo"]["code"] == "InvalidSettings" && error.contains("/count") && error.contains("integer"),
        "{shown:#}"
    );
    ensure!(setting("greeting")? == "again" && shown["currentVersion"] == "1.0.0");
    properties["configurationSettings"] = json!({"greeting": "again"});
    site.put("web", &properties)?;
    site.await_state("web", "Succeeded")?;

    // What somebody changed with helm is put right.
    site.helm(&["-n", "web", "rollback", "web", "1"])?;
    eventually("the release is as it was", Duration::from_secs(90), || Ok(setting("greeting")? == "again"))?;
    site.await_state("web", "Succeeded")?;
    site.helm(&["-n", "web", "uninstall", "web", "--wait"])?;
    eventually("the release is there again", Duration::from_secs(90), || Ok(setting("greeting")? == "again"))?;
    site.await_state("web", "Succeeded")?;

    // E3: a newer minor version comes by itself, a major does not.
    site.catalogue.add(&web("1.1.0", WEB), &[])?;
    site.catalogue.add(&web("2.0.0", WEB), &[])?;
    site.catalogue.sign()?;
    eventually("the newer version is installed", Duration::from_secs(300), || Ok(setting("version")? == "1.1.0"))?;
    ensure!(site.await_state("web", "Succeeded")?["currentVersion"] == "1.1.0");

    // One that is there is enough, and a name that is somebody else's is not taken.
    site.put("second", &json!({"extensionType": "example.web"}))?;
    let shown = site.await_state("second", "Failed")?;
    ensure!(shown["errorInfo"]["code"] == "AlreadyInstalled", "{shown:#}");
    site.delete("second")?;
    site.delete("web")?;
    remove(&site.admin, &["things.extensions.example.org"], &[])?;
    site.nothing_left()
}

fn failures() -> anyhow::Result<()> {
    let catalogue = Catalogue::new("extensions-failures-catalogue")?;
    let several = ["--multiple-instances"];
    catalogue.add(&web("1.0.0", &WEB[..4]), &several)?;
    let hook = [("values.yaml", VALUES), ("templates/hook.yaml", HOOK)];
    catalogue.add(&Chart { name: "hook", version: "1.0.0", files: &hook }, &several)?;
    catalogue.sign()?;
    let site = Site::start("extensions-failures", catalogue)?;
    let of = |kind: &str, namespace: &str, settings: Value| {
        json!({
            "extensionType": format!("example.{kind}"), "configurationSettings": settings,
            "scope": {"cluster": {"releaseNamespace": namespace}},
        })
    };
    let failed = |name: &str, code: &str, parts: &[&str]| -> anyhow::Result<()> {
        let shown = site.await_state(name, "Failed")?;
        let message = shown["errorInfo"]["message"].as_str().unwrap_or_default();
        ensure!(shown["errorInfo"]["code"] == code, "{name}: {shown:#}");
        for part in parts {
            ensure!(message.contains(part), "{name}: {part} in {message}");
        }
        Ok(())
    };
    site.put("pull", &of("web", "pull", json!({"image": "registry.invalid/nothing:1"})))?;
    failed("pull", "ImagePullFailed", &["web 1.0.0", "Pod pull/pull-", "registry.invalid/nothing:1", "What to do"])?;
    site.delete("pull")?;

    site.admin.apply(
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: quota}\n---\napiVersion: v1\nkind: ResourceQuota\nmetadata: {name: small, namespace: quota}\nspec: {hard: {pods: \"0\"}}\n",
    )?;
    site.put("quota", &of("web", "quota", json!({})))?;
    failed("quota", "QuotaExceeded", &["Deployment quota/quota", "small", "ResourceQuota"])?;
    site.delete("quota")?;
    ensure!(site.field("", "namespace/quota", "{.metadata.name}")? == "quota", "a namespace that was there stays");
    site.admin.ok(&["delete", "namespace", "quota"])?;

    site.put("hook", &of("hook", "hook", json!({})))?;
    failed("hook", "HookFailed", &["the database is not there"])?;
    site.delete("hook")?;

    site.admin.ok(&["create", "namespace", "taken"])?;
    let chart = site.catalogue.path("web-1.0.0.tgz");
    site.helm(&["-n", "taken", "install", "taken", &chart])?;
    site.put("taken", &of("web", "taken", json!({})))?;
    failed("taken", "NameInUse", &["taken", "did not make"])?;
    site.delete("taken")?;
    ensure!(site.field("taken", "configmap/taken-settings", "{.data.greeting}")? == "hello", "it is not touched");
    site.helm(&["-n", "taken", "uninstall", "taken", "--wait"])?;
    site.admin.ok(&["delete", "namespace", "taken"])?;

    // A new version that fails: the one from before runs again, and the new one is not tried again.
    site.put("back", &of("web", "back", json!({})))?;
    site.await_state("back", "Succeeded")?;
    site.put("back", &of("web", "back", json!({"image": "registry.invalid/nothing:2", "greeting": "new"})))?;
    failed("back", "ImagePullFailed", &["registry.invalid/nothing:2", "is not tried again"])?;
    ensure!(site.field("back", "configmap/back-settings", "{.data.greeting}")? == "hello");
    site.put("back", &of("web", "back", json!({"greeting": "newer"})))?;
    site.await_state("back", "Succeeded")?;
    ensure!(site.field("back", "configmap/back-settings", "{.data.greeting}")? == "newer");
    // Cancel by a newer write: what can never be ready is not waited for.
    site.put("back", &of("web", "back", json!({"image": "registry.invalid/nothing:3"})))?;
    std::thread::sleep(Duration::from_secs(4));
    let begun = Instant::now();
    site.put("back", &of("web", "back", json!({"greeting": "newest"})))?;
    site.await_state("back", "Succeeded")?;
    ensure!(site.field("back", "configmap/back-settings", "{.data.greeting}")? == "newest");
    ensure!(begun.elapsed() < Duration::from_secs(60), "it took {:?}", begun.elapsed());
    site.delete("back")?;

    site.put("place", &of("web", "default", json!({})))?;
    failed("place", "NamespaceNotAllowed", &["default", "the agents' own"])?;
    site.delete("place")?;
    site.nothing_left()
}

const NOWHERE: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: \"{{ .Release.Name }}\"}\n\
    spec:\n  selector: {matchLabels: {app: x}}\n  template:\n    metadata: {labels: {app: x}}\n\
    \x20   spec: {nodeSelector: {towline.test/none: here}, containers: [{name: main, image: \"towline.test/busybox:1\"}]}\n";
const FIXED: &str = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ .Release.Name }}-fixed\"}\nimmutable: true\n\
    data: {greeting: {{ .Values.greeting | quote }}}\n";
const MANY: &str = "{{- range until 400 }}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"many-{{ . }}\", labels: {of: many}}\n{{- end }}\n";
const NEWER: &str = "apiVersion: v2\nname: newer\nversion: 1.0.0\ntype: application\nkubeVersion: \">=9.0.0\"\n";

/// An admission webhook that refuses everything.
fn refuses(request: &Received, io: &mut Connection) -> anyhow::Result<bool> {
    let review: Value = serde_json::from_slice(&request.body)?;
    let status = json!({"message": "the colour of greetings is blue"});
    let response = json!({"uid": review["request"]["uid"], "allowed": false, "status": status});
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    answer(io, "200 OK", review.to_string().as_bytes())
}

/// What the chart cannot help: each is told with its cause and what to do, and what works beside it works.
fn causes() -> anyhow::Result<()> {
    let catalogue = Catalogue::new("extensions-causes-catalogue")?;
    let several = ["--multiple-instances"];
    for (name, files) in [
        ("nowhere", &[("templates/pod.yaml", NOWHERE)][..]),
        ("fixed", &[("values.yaml", VALUES), ("templates/fixed.yaml", FIXED)]),
        ("things", &[("templates/things.yaml", CRD)]),
        ("many", &[("templates/many.yaml", MANY)]),
        ("newer", &[("Chart.yaml", NEWER)]),
    ] {
        catalogue.add(&Chart { name, version: "1.0.0", files }, &several)?;
    }
    let elsewhere = [&several[..], &["--platform", "linux/s390x"]].concat();
    catalogue
        .add(&Chart { name: "elsewhere", version: "1.0.0", files: &[("templates/things.yaml", CRD)] }, &elsewhere)?;
    catalogue.sign()?;
    let site = Site::start("extensions-causes", catalogue)?;
    let admin = &site.admin;
    let put = |name: &str, kind: &str, more: Value| {
        let mut wanted = json!({
            "extensionType": format!("example.{kind}"), "scope": {"cluster": {"releaseNamespace": name}},
        });
        if let (Some(wanted), Value::Object(more)) = (wanted.as_object_mut(), more) {
            wanted.extend(more);
        }
        site.put(name, &wanted)
    };
    let failed = |name: &str, code: &str, parts: &[&str]| -> anyhow::Result<()> {
        let shown = site.await_state(name, "Failed")?;
        let message = shown["errorInfo"]["message"].as_str().unwrap_or_default();
        ensure!(shown["errorInfo"]["code"] == code, "{name}: {shown:#}");
        for part in parts {
            ensure!(message.contains(part), "{name}: {part} in {message}");
        }
        Ok(())
    };

    // A chart of 400 objects takes no longer than others may; it goes as a whole.
    put("many", "many", json!({}))?;
    site.await_state("many", "Succeeded")?;
    let count = |namespace: &str| -> anyhow::Result<usize> {
        Ok(admin.ok(&["-n", namespace, "get", "configmaps", "-l", "of=many", "-o", "name"])?.lines().count())
    };
    ensure!(count("many")? == 400, "{}", count("many")?);
    site.delete("many")?;

    put("nowhere", "nowhere", json!({}))?;
    failed("nowhere", "Unschedulable", &["Pod nowhere/nowhere-", "nodes are available", "What to do: add nodes"])?;
    site.delete("nowhere")?;

    let webhook = Apiserver::start(&scratch("extensions-causes-webhook"), true, Arc::new(refuses))?;
    let known: Value = serde_json::from_slice(&std::fs::read(&webhook.kubeconfig)?)?;
    let known = &known["clusters"][0]["cluster"];
    let hook = |url: &str| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "towline-test-colours"},
            "webhooks": [{
                "name": "colours.towline.test", "admissionReviewVersions": ["v1"], "sideEffects": "None",
                "failurePolicy": "Fail", "timeoutSeconds": 5,
                "clientConfig": {"url": url, "caBundle": known["certificate-authority-data"]},
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "refused"}},
                "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}],
            }],
        })
        .to_string()
    };
    let url = known["server"].as_str().context("no server")?;
    admin.ok(&["create", "namespace", "refused"])?;
    let is_hooked = |text: &str| -> anyhow::Result<()> {
        eventually("the apiserver knows the webhook", Duration::from_secs(30), || {
            let tried = admin.run(&["-n", "refused", "create", "configmap", "tried", "--dry-run=server"])?;
            Ok(tried.code != Some(0) && tried.err.contains(text))
        })
        .map(drop)
    };
    admin.apply(&hook(url))?;
    is_hooked("blue")?;
    put("refused", "fixed", json!({}))?;
    failed(
        "refused",
        "AdmissionRefused",
        &["colours.towline.test", "the colour of greetings is blue", "What to do: the webhook"],
    )?;
    site.delete("refused")?;
    admin.apply(&hook("https://127.0.0.1:1/"))?;
    is_hooked("failed calling webhook")?;
    put("refused", "fixed", json!({}))?;
    failed("refused", "WebhookFailed", &["colours.towline.test", "connection refused", "What to do: the webhook"])?;
    site.delete("refused")?;
    admin.ok(&["delete", "validatingwebhookconfiguration", "towline-test-colours"])?;

    admin.apply(CRD)?;
    put("things", "things", json!({}))?;
    failed("things", "ObjectInUse", &["things.extensions.example.org", "What to do: the object that is named"])?;
    site.delete("things")?;
    ensure!(
        !site.field("", "crd/things.extensions.example.org", "{.metadata.name}")?.is_empty(),
        "it is not taken over"
    );
    remove(admin, &["things.extensions.example.org"], &["refused"])?;

    put("fixed", "fixed", json!({}))?;
    site.await_state("fixed", "Succeeded")?;
    put("fixed", "fixed", json!({"configurationSettings": {"greeting": "other"}}))?;
    failed("fixed", "ImmutableField", &["fixed-fixed", "immutable", "What to do: the new version changes"])?;
    ensure!(site.field("fixed", "configmap/fixed-fixed", "{.data.greeting}")? == "hello", "as it was");
    site.delete("fixed")?;

    // The gateway says it at once where the agents have told it of the cluster, and else the cluster does.
    let newer: &[&str] = &["1.0.0", "9.0.0", "the cluster has"];
    let elsewhere: &[&str] = &["linux/s390x", "the cluster's nodes are linux/"];
    for (name, code, says) in [("newer", "VersionNotSupported", newer), ("elsewhere", "UnsupportedPlatform", elsewhere)]
    {
        match put(name, name, json!({"version": "1.0.0"})) {
            Err(error) => {
                let refused = format!("{error:#}");
                let is_said = |text: &str| refused.contains(text);
                let is_refused = is_said("400") && is_said("VersionNotSupported");
                ensure!(is_refused && says.iter().all(|text| is_said(text)), "{refused}");
            }
            Ok(()) => {
                failed(name, code, says)?;
                site.delete(name)?;
            }
        }
    }

    admin.ok(&["create", "namespace", "ending"])?;
    admin.apply(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: keeps, namespace: ending, finalizers: [towline.test/keeps]}\n",
    )?;
    admin.ok(&["delete", "namespace", "ending", "--wait=false"])?;
    put("ending", "fixed", json!({}))?;
    // It passes by itself, so that it is waited for.
    eventually("what keeps the namespace is told", Duration::from_secs(60), || {
        let told = site.call("GET", "ending", &Value::Null)?["properties"]["statuses"].to_string();
        Ok(told.contains("NamespaceTerminating") && told.contains("what keeps it"))
    })?;
    admin.ok(&[
        "-n",
        "ending",
        "patch",
        "configmap",
        "keeps",
        "--type=merge",
        "-p",
        "{\"metadata\":{\"finalizers\":null}}",
    ])?;
    site.await_state("ending", "Succeeded")?;
    site.delete("ending")?;
    site.nothing_left()
}

fn namespaced() -> anyhow::Result<()> {
    let catalogue = Catalogue::new("extensions-namespaced-catalogue")?;
    let scopes = ["--scope", "namespace", "--scope", "cluster", "--multiple-instances"];
    catalogue.add(&web("1.0.0", &WEB[..4]), &scopes)?;
    let greedy = [("values.yaml", VALUES), ("templates/role.yaml", CLUSTER_ROLE)];
    catalogue.add(&Chart { name: "greedy", version: "1.0.0", files: &greedy }, &scopes)?;
    catalogue.add(&Chart { name: "curious", version: "1.0.0", files: &[("templates/read.yaml", LOOKUP)] }, &scopes)?;
    catalogue.sign()?;
    let site = Site::start("extensions-namespaced", catalogue)?;
    let of = |kind: &str| json!({"extensionType": format!("example.{kind}"), "scope": {"namespace": {"targetNamespace": "team"}}});
    site.put("web", &of("web"))?;
    site.await_state("web", "Succeeded")?;
    ensure!(site.field("team", "rolebinding/extension-web", "{.roleRef.name}")? == "admin");
    site.put("greedy", &of("greedy"))?;
    let shown = site.await_state("greedy", "Failed")?;
    let message = shown["errorInfo"]["message"].as_str().unwrap_or_default();
    ensure!(shown["errorInfo"]["code"] == "Forbidden" && message.contains("clusterroles"), "{shown:#}");
    ensure!(site.field("", "clusterrole/greedy-all", "{.metadata.name}")?.is_empty());
    site.delete("greedy")?;
    // What a template looks up is looked up with the same rights.
    site.put("curious", &of("curious"))?;
    let shown = site.await_state("curious", "Failed")?;
    let message = shown["errorInfo"]["message"].as_str().unwrap_or_default();
    ensure!(shown["errorInfo"]["code"] == "Forbidden" && message.contains("secrets"), "{shown:#}");
    ensure!(site.field("team", "configmap/curious-read", "{.metadata.name}")?.is_empty());
    // The namespace was made for the first one, and goes with the last.
    site.delete("web")?;
    ensure!(site.admin.run(&["-n", "team", "get", "serviceaccount", "extension-web"])?.code != Some(0));
    ensure!(site.field("", "namespace/team", "{.status.phase}")? == "Active", "another one uses it");
    site.delete("curious")?;
    site.nothing_left()
}
