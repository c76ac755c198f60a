//! Operations that somebody cuts off, and a gateway that somebody took over (docs/features.md E1, E4; docs/threats.md TH51):
//! what was asked for is there in the end, or nothing is.

use std::{
    fs,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use tests::case::full;

use super::*;

/// A pod that is ready when somebody sets its condition.
const GATED: &str = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: \"{{ .Release.Name }}\"}\n\
    spec:\n  selector: {matchLabels: {app: \"{{ .Release.Name }}\"}}\n  template:\n\
    \x20   metadata: {labels: {app: \"{{ .Release.Name }}\", chart-version: \"{{ .Chart.Version }}\"}}\n\
    \x20   spec:\n      terminationGracePeriodSeconds: 0\n      readinessGates: [{conditionType: towline.test/ready}]\n\
    \x20     containers: [{name: main, image: \"{{ .Values.image }}\", imagePullPolicy: IfNotPresent, command: [sleep, \"3600\"]}]\n";
const WITH_GATE: &[(&str, &str)] =
    &[("values.yaml", VALUES), ("templates/settings.yaml", CONFIG_MAP), ("templates/pod.yaml", GATED)];

impl Site {
    /// The stages of all releases of the cluster.
    fn stages(&self) -> anyhow::Result<String> {
        let path = "jsonpath={.items[*].metadata.labels.status}";
        self.admin.ok(&["get", "secrets", "-A", "-l", "owner=helm", "-o", path])
    }

    /// Lets the pods of a version of the chart be ready; whether there was one.
    fn open_gate(&self, version: &str) -> anyhow::Result<bool> {
        let label = format!("chart-version={version}");
        let pods = self.admin.ok(&["-n", "web", "get", "pods", "-l", &label, "-o", "name"])?;
        for pod in pods.split_whitespace() {
            let condition = r#"{"status":{"conditions":[{"type":"towline.test/ready","status":"True"}]}}"#;
            let patch = ["-n", "web", "patch", pod, "--subresource=status", "--type=strategic", "-p", condition];
            let told = self.admin.run(&patch)?;
            // One of a release that was taken down ends by itself.
            ensure!(told.code == Some(0) || told.err.contains("NotFound"), "{}", told.err);
        }
        Ok(!pods.trim().is_empty())
    }

    /// Waits until helm works at a release whose pods are not ready, and those are there.
    fn await_gated(&self, version: &str) -> anyhow::Result<()> {
        let label = format!("chart-version={version}");
        eventually(&format!("helm waits for the pods of {version}"), Duration::from_secs(120), || {
            let pods = self.admin.ok(&["-n", "web", "get", "pods", "-l", &label, "-o", "name"])?;
            Ok(self.stages()?.contains("pending") && !pods.trim().is_empty())
        })
        .map(drop)
        .with_context(|| self.stack.agent.lock().unwrap().tail())
    }

    fn restart_agent(&self) -> anyhow::Result<()> {
        self.stack.agent.lock().unwrap().kill();
        let again = self.stack.another_agent()?;
        *self.stack.agent.lock().unwrap() = again;
        Ok(())
    }

    /// Ends the helm that the agent runs, if it does, as `kill -9` does.
    fn kill_helm(&self) -> anyhow::Result<bool> {
        let parent = self.stack.agent.lock().unwrap().pid().to_string();
        for entry in fs::read_dir("/proc")?.filter_map(Result::ok) {
            let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
            // Its name is in brackets, and may have spaces; state and parent follow.
            let Some((_, rest)) = stat.rsplit_once(')') else { continue };
            if rest.split_whitespace().nth(1) == Some(&parent) {
                let pid = entry.file_name().to_string_lossy().into_owned();
                let mut kill = std::process::Command::new("kill");
                run(kill.args(["-9", &pid]), Duration::from_secs(10))?;
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// The agent is killed while helm waits for pods, of an installation and of an upgrade. Pods are ready only when this test
/// says so: what helm does by itself may be over before anybody looks.
pub(super) fn killed_while_helm_waits() -> anyhow::Result<()> {
    let catalogue = Catalogue::new("extensions-killed-catalogue")?;
    catalogue.add(&web("1.0.0", WITH_GATE), &[])?;
    catalogue.sign()?;
    let site = Site::start_within("extensions-killed", catalogue, "120s", &[])?;
    let put =
        |settings: Value| site.put("web", &json!({"extensionType": "example.web", "configurationSettings": settings}));
    put(json!({"greeting": "one"}))?;
    site.await_gated("1.0.0")?;
    site.restart_agent()?;
    eventually("the installation that was cut off is done", Duration::from_secs(180), || {
        site.open_gate("1.0.0")?;
        Ok(site.call("GET", "web", &Value::Null)?["properties"]["provisioningState"] == "Succeeded")
    })
    .with_context(|| site.stack.agent.lock().unwrap().tail())?;
    ensure!(site.stages()? == "deployed", "{}", site.stages()?);
    // The pod of before serves on while the new one cannot start.
    put(json!({"greeting": "two", "image": "registry.invalid/x:1"}))?;
    eventually("helm waits for an image that is not there", Duration::from_secs(120), || {
        Ok(site.stages()?.contains("pending"))
    })
    .with_context(|| site.stack.agent.lock().unwrap().tail())?;
    site.restart_agent()?;
    put(json!({"greeting": "three"}))?;
    site.await_state("web", "Succeeded")?;
    ensure!(site.field("web", "configmap/web-settings", "{.data.greeting}")? == "three");
    let mut pending = std::process::Command::new(cluster().get("CLUSTER_HELM"));
    pending.args(["list", "-A", "--pending", "-q"]).env("KUBECONFIG", cluster().admin_kubeconfig());
    let pending = run(&mut pending, Duration::from_secs(60))?.ok()?;
    ensure!(pending.trim().is_empty(), "{pending}");
    site.delete("web")?;
    site.nothing_left()
}

/// Numbers that look random, the same from one seed (xorshift).
struct Dice(u64);

impl Dice {
    fn of(&mut self, sides: u64) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % sides).unwrap_or_default()
    }
}

/// Agent, helm and gateway are killed at some moment of each operation. `TOWLINE_SEED` repeats a run.
pub(super) fn killed_at_any_moment() -> anyhow::Result<()> {
    let seed = match std::env::var("TOWLINE_SEED") {
        Ok(seed) => seed.parse()?,
        Err(_) => u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() & 0xffff_ffff)? | 1,
    };
    killed_by(seed).with_context(|| format!("TOWLINE_SEED={seed}"))
}

fn killed_by(seed: u64) -> anyhow::Result<()> {
    let mut dice = Dice(seed);
    let catalogue = Catalogue::new("extensions-any-moment-catalogue")?;
    catalogue.add(&web("1.0.0", &WEB[..4]), &[])?;
    catalogue.sign()?;
    let site = Site::start("extensions-any-moment", catalogue)?;
    let mut is_there = false;
    let operations = if full() { 50 } else { 4 };
    for number in 0..operations {
        let deletes = is_there && dice.of(4) == 0;
        let greeting = format!("n{number}");
        if deletes {
            site.call("DELETE", "web", &Value::Null)?;
        } else {
            let settings = json!({"greeting": greeting});
            let protected = json!({"password": format!("p{number}")});
            site.put(
                "web",
                &json!({"extensionType": "example.web", "configurationSettings": settings, "configurationProtectedSettings": protected}),
            )?;
        }
        let (whom, moment) = (dice.of(3), dice.of(3));
        let what = format!(
            "operation {number} ({}), {} killed {}",
            if deletes { "delete" } else { "put" },
            ["agent", "helm", "gateway"][whom],
            ["at once", "while helm works", "at the end"][moment]
        );
        let is_done = || -> anyhow::Result<bool> {
            let shown = site.call("GET", "web", &Value::Null)?;
            Ok(if deletes { shown.is_null() } else { shown["properties"]["provisioningState"] == "Succeeded" })
        };
        let is_moment = || match moment {
            0 => Ok(true),
            1 => {
                let stages = site.stages()?;
                Ok(stages.contains("pending") || stages.contains("uninstalling") || is_done()?)
            }
            _ => is_done(),
        };
        eventually("its moment has come", Duration::from_secs(180), is_moment).with_context(|| what.clone())?;
        match whom {
            0 => site.restart_agent()?,
            1 => drop(site.kill_helm()?),
            _ => {
                site.stack.kill_gateway();
                site.stack.restart_gateway_of_resource()?;
            }
        }
        // Nobody asks again: who was killed says nothing of what is wanted.
        let mut last = Value::Null;
        eventually("what was asked for is there", Duration::from_secs(240), || {
            last = site.call("GET", "web", &Value::Null)?;
            ensure!(last["properties"]["provisioningState"] != "Failed", "{what}: {last:#}");
            is_done()
        })
        .with_context(|| format!("{what}: {last:#}\n{}", site.stack.agent.lock().unwrap().tail()))?;
        is_there = !deletes;
        let stages = site.stages()?;
        ensure!(!stages.contains("pending"), "{what}: {stages}");
        if is_there {
            let shown = site.field("web", "configmap/web-settings", "{.data.greeting} {.data.password}")?;
            ensure!(shown == format!("{greeting} p{number}"), "{what}: {shown}");
        } else {
            ensure!(stages.trim().is_empty(), "{what}: {stages}");
        }
    }
    if is_there {
        site.delete("web")?;
    }
    site.nothing_left()
}

/// The link is cut before an upgrade is done and comes back after it.
pub(super) fn link_cut_for_an_upgrade() -> anyhow::Result<()> {
    let catalogue = Catalogue::new("extensions-cut-catalogue")?;
    catalogue.add(&web("1.0.0", WITH_GATE), &[])?;
    catalogue.sign()?;
    let site = Site::start_within("extensions-cut", catalogue, "120s", &[])?;
    site.put("web", &json!({"extensionType": "example.web"}))?;
    eventually("the first version may be ready", Duration::from_secs(120), || site.open_gate("1.0.0"))?;
    site.await_state("web", "Succeeded")?;
    site.catalogue.add(&web("1.1.0", WITH_GATE), &[])?;
    site.catalogue.sign()?;
    site.await_gated("1.1.0")?;
    site.stack.kill_gateway();
    // The agent is told that its gateway is gone, and helm goes on.
    site.open_gate("1.1.0")?;
    eventually("the upgrade is done without a gateway", Duration::from_secs(120), || {
        site.open_gate("1.1.0")?;
        Ok(site.field("default", "extensionconfigs/web", "{.status.state} {.status.currentVersion}")?
            == "Succeeded 1.1.0")
    })
    .with_context(|| site.stack.agent.lock().unwrap().tail())?;
    ensure!(!site.stages()?.contains("pending"), "{}", site.stages()?);
    site.stack.restart_gateway_of_resource()?;
    eventually("the gateway knows of it", Duration::from_secs(120), || {
        let shown = site.call("GET", "web", &Value::Null)?;
        Ok(shown["properties"]["currentVersion"] == "1.1.0" && shown["properties"]["provisioningState"] == "Succeeded")
    })?;
    site.delete("web")?;
    site.nothing_left()
}

/// A cluster is deleted while something is installed in it.
pub(super) fn cluster_deleted_while_installing() -> anyhow::Result<()> {
    let catalogue = Catalogue::new("extensions-orphan-catalogue")?;
    catalogue.add(&web("1.0.0", WITH_GATE), &[])?;
    catalogue.sign()?;
    let site = Site::start_within("extensions-orphan", catalogue, "120s", &[])?;
    site.put("web", &json!({"extensionType": "example.web"}))?;
    site.await_gated("1.0.0")?;
    let owner = token(&site.stack, &site.stack.text("clientId"), &site.stack.text("clientSecret"))?;
    let path = format!("{}?api-version=2024-01-01", site.cluster);
    let gone = call(&site.stack, &owner, "DELETE", &path, &Value::Null)?;
    ensure!(gone.status < 300, "{}: {}", gone.status, String::from_utf8_lossy(&gone.body));
    eventually("the cluster and its extension are gone from the gateway", Duration::from_secs(60), || {
        let cluster = call(&site.stack, &owner, "GET", &path, &Value::Null)?.status;
        Ok(cluster == 404 && site.call("GET", "web", &Value::Null)?.is_null())
    })?;
    // What had begun in the cluster comes to its end: it is not left half done.
    eventually("helm has ended", Duration::from_secs(120), || {
        site.open_gate("1.0.0")?;
        Ok(site.stages()? == "deployed")
    })
    .with_context(|| site.stack.agent.lock().unwrap().tail())?;
    ensure!(site.field("default", "extensionconfigs/web", "{.status.state}")? == "Succeeded");
    site.stack.agent.lock().unwrap().kill();
    site.helm(&["-n", "web", "uninstall", "web", "--wait"])?;
    site.admin.ok(&["delete", "namespace", "web"])?;
    site.nothing_left()
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), &target)?;
        }
    }
    Ok(())
}

impl Site {
    /// The gateway serves another folder from now on, as one that somebody took over would.
    fn serves(&self, folder: &Path) -> anyhow::Result<()> {
        let served = self.catalogue.dir.join("catalogue");
        fs::remove_dir_all(&served)?;
        copy(folder, &served)?;
        self.stack.kill_gateway();
        self.stack.restart_gateway_of_resource()
    }

    /// The gateway gives this cluster an extension of another one, as its store says by now that it is this one's.
    fn hands_out_an_object_of_another_cluster(&self, properties: &Value) -> anyhow::Result<()> {
        let owner = token(&self.stack, &self.stack.text("clientId"), &self.stack.text("clientSecret"))?;
        let (group, _) = self.cluster.rsplit_once('/').context("an id of a cluster")?;
        let other = format!("{group}/other");
        let body = json!({
            "location": "local", "identity": {"type": "SystemAssigned"},
            "properties": {"agentPublicKeyCertificate": "", "distribution": "k3s"},
        });
        let extension = format!("{other}/providers/Microsoft.KubernetesConfiguration/extensions/foreign");
        for (path, version, body) in
            [(&other, "api-version=2024-01-01", body), (&extension, VERSION, json!({ "properties": properties }))]
        {
            let made = call(&self.stack, &owner, "PUT", &format!("{path}?{version}"), &body)?;
            ensure!(made.status < 300, "{path}: {} {}", made.status, String::from_utf8_lossy(&made.body));
        }
        self.stack.kill_gateway();
        let (own, other) = (self.cluster.to_ascii_lowercase(), other.to_ascii_lowercase());
        let script = "import sqlite3, sys\n\
            store = sqlite3.connect(sys.argv[1])\n\
            changed = store.execute('UPDATE resources SET parent_key = ? WHERE parent_key = ?', sys.argv[2:4])\n\
            assert changed.rowcount == 1, changed.rowcount\n\
            store.commit()\n";
        let mut change = std::process::Command::new("python3");
        change.args(["-c", script]).arg(self.stack.state().join("towline.db")).args([&own, &other]);
        run(&mut change, Duration::from_secs(60))?.ok()?;
        self.stack.restart_gateway_of_resource()?;
        // It asks for all that is wanted.
        self.restart_agent()?;
        eventually("the agent does not take it", Duration::from_secs(60), || {
            let said = self.stack.agent.lock().unwrap().tail();
            Ok(said.contains("is of another cluster, and is not taken"))
        })
        .map(drop)
    }

    /// Asks for an extension, and waits until the cluster says why it is not there.
    fn refused(&self, name: &str, properties: &Value, code: &str) -> anyhow::Result<()> {
        self.put(name, properties)?;
        let shown = self.await_state(name, "Failed")?;
        ensure!(shown["errorInfo"]["code"] == code, "{name}: {shown:#}");
        ensure!(self.stages()? == "deployed", "{name}: {}", self.stages()?);
        self.delete(name)
    }
}

/// A gateway that somebody took over offers what no key of the cluster signed, and gives what the cluster's operator does
/// not allow.
pub(super) fn hostile_gateway() -> anyhow::Result<()> {
    let several = ["--multiple-instances"];
    let other = Catalogue::new("extensions-hostile-other")?;
    other.add(&Chart { name: "root", version: "1.0.0", files: &[("templates/role.yaml", CLUSTER_ROLE)] }, &several)?;
    other.add(&web("1.0.0", &WEB[..3]), &several)?;
    other.sign()?;
    let catalogue = Catalogue::new("extensions-hostile-catalogue")?;
    catalogue.add(&web("1.0.0", &WEB[..3]), &several)?;
    catalogue.add(&Chart { name: "db", version: "1.0.0", files: &WEB[..3] }, &several)?;
    catalogue.sign()?;
    let own = catalogue.dir.join("catalogue");
    let older = catalogue.dir.join("older");
    copy(&own, &older)?;
    catalogue
        .add(&Chart { name: "root", version: "1.0.0", files: &[("templates/role.yaml", CLUSTER_ROLE)] }, &several)?;
    catalogue.sign()?;
    // The same index with a type that nobody signed for.
    let unsigned = catalogue.dir.join("unsigned");
    copy(&own, &unsigned)?;
    let index = unsigned.join("index.json");
    fs::write(&index, fs::read_to_string(&index)?.replace("example.root", "example.evil"))?;
    let newest = catalogue.dir.join("newest");
    copy(&own, &newest)?;
    let settings = [
        "extensions.allowed_types=[\"example.web\", \"example.evil\"]".to_owned(),
        "extensions.locked_settings=[\"example.web:greeting=pinned\", \"*:password\"]".to_owned(),
    ];
    let site = Site::start_within("extensions-hostile", catalogue, TIMEOUT, &settings)?;
    let of = |kind: &str, namespace: &str, settings: Value| {
        json!({
            "extensionType": format!("example.{kind}"), "configurationSettings": settings,
            "scope": {"cluster": {"releaseNamespace": namespace}},
        })
    };
    site.put("web", &of("web", "web", json!({"count": "2"})))?;
    site.await_state("web", "Succeeded")?;
    ensure!(site.field("web", "configmap/web-settings", "{.data.greeting} {.data.count}")? == "pinned 2");

    // What the operator of the cluster pinned: types, values, and what is below them; protected settings as well.
    site.refused("second", &of("db", "other", json!({})), "TypeNotAllowed")?;
    site.refused("second", &of("web", "other", json!({"greeting": "mine"})), "SettingLocked")?;
    let mut protected = of("web", "other", json!({}));
    protected["configurationProtectedSettings"] = json!({"password": "x"});
    site.refused("second", &protected, "SettingLocked")?;

    // An index that nobody signed, one of another catalogue, and one from before: the cluster goes on by its own.
    for (folder, what) in [(&unsigned, "unsigned"), (&other.dir.join("catalogue"), "another's"), (&older, "older")] {
        site.serves(folder)?;
        // An agent that has just begun knows the keys, the catalogue and its last revision, and has no index yet.
        site.restart_agent()?;
        site.put("second", &of("web", "other", json!({})))?;
        let mut shown = Value::Null;
        eventually(&format!("an index ({what}) is refused"), Duration::from_secs(60), || {
            shown = site.call("GET", "second", &Value::Null)?["properties"]["statuses"].clone();
            Ok(shown.to_string().contains("the gateway's catalogue is refused"))
        })
        .with_context(|| format!("{shown:#}\n{}", site.stack.agent.lock().unwrap().tail()))?;
        ensure!(site.stages()? == "deployed", "{what}: {}", site.stages()?);
        site.delete("second")?;
        ensure!(site.field("", "clusterrole/root-all", "{.metadata.name}")?.is_empty(), "{what}");
    }
    site.serves(&newest)?;
    site.hands_out_an_object_of_another_cluster(&of("web", "foreign", json!({})))?;
    site.put("web", &of("web", "web", json!({"count": "3"})))?;
    site.await_state("web", "Succeeded")?;
    ensure!(site.field("default", "extensionconfigs/foreign", "{.metadata.name}")?.is_empty());
    ensure!(site.field("", "namespace/foreign", "{.metadata.name}")?.is_empty());
    site.delete("web")?;
    site.nothing_left()
}
