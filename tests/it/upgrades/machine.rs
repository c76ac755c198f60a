//! A machine that dies in the middle of an upgrade (docs/upgrades.md, `NodeLost`). The cluster has one machine that runs
//! pods. The other one is a Node object alone: this test reports for it as a kubelet does, until the machine dies. The
//! scheduler gives it the pod of the Job, and Kubernetes finds out that it is lost. What that pod would do is done by a twin
//! of it on the machine that runs pods. The twin stands still when the machine dies, and goes on when all is over.

use std::{
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, SystemTime},
};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::{
    cluster::cluster,
    kubectl::Kubectl,
    programs::{eventually, run},
    stack::grant_in_cluster,
};
use types::instants::rfc3339_seconds;

use super::{Desk, Going, Guide, WORKING, images, load_variant};
use crate::connect::{GROUP, kubectl_of, pods, same, settled};

/// The version that is installed while the machine dies.
const VERSION: &str = "0.3.930";
/// The machine that dies.
const MACHINE: &str = "machine-2";
/// How often a kubelet reports; Kubernetes waits for a report for 50 seconds.
const BEAT: Duration = Duration::from_secs(5);
/// The pod that does what the one on the lost machine would do.
const TWIN: &str = "on-the-lost-machine";
/// What a pod says that finds that another one has written.
const NOT_OURS: &str = "somebody else has written how far the upgrade is";
/// Kubernetes deletes pods of a lost machine after five minutes where they say nothing else. Nothing here depends on that.
const SOON: &str = r#"{"spec": {"template": {"spec": {"tolerations": [
    {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
]}}}}"#;

/// A Node whose reports come from a thread of this test.
struct Machine {
    admin: Kubectl,
    /// The machine that runs pods, and is not to take the pod of the Job.
    other: String,
    ends: Arc<AtomicBool>,
    reports: Option<JoinHandle<()>>,
}

impl Machine {
    /// Comes into the cluster, as the only machine that takes new pods.
    fn join() -> anyhow::Result<Self> {
        let admin = cluster().admin();
        let other = admin.ok(&["get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"])?;
        ensure!(!other.contains(' '), "a cluster of one machine has {other}");
        let ends = Arc::new(AtomicBool::new(false));
        let mut machine = Self { admin: admin.clone(), other, ends: Arc::clone(&ends), reports: None };
        let labels =
            json!({"kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": MACHINE});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": MACHINE, "labels": labels}});
        admin.apply(&node.to_string())?;
        report(&admin)?;
        machine.reports = Some(std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                // One that is missed is followed by another in time.
                let _ = report(&admin);
                std::thread::park_timeout(BEAT);
            }
        }));
        let admin = &machine.admin;
        eventually("the machine takes pods", Duration::from_secs(60), || {
            Ok(admin.ok(&["get", "node", MACHINE, "-o", "jsonpath={.spec.taints}"])?.is_empty())
        })?;
        admin.ok(&["cordon", &machine.other])?;
        Ok(machine)
    }

    /// What comes from now on goes to the other machine.
    fn takes_no_more(&self) -> anyhow::Result<()> {
        self.admin.ok(&["cordon", MACHINE])?;
        self.admin.ok(&["uncordon", &self.other]).map(drop)
    }

    /// Nothing is heard of it from now on.
    fn die(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(reports) = self.reports.take() {
            reports.thread().unpark();
            let _ = reports.join();
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.die();
        let _ = self.admin.run(&["uncordon", &self.other]);
        let _ = self.admin.run(&["delete", "node", MACHINE, "--ignore-not-found"]);
    }
}

/// The report of a kubelet that is well.
fn report(admin: &Kubectl) -> anyhow::Result<()> {
    let room = json!({"cpu": "4", "memory": "8Gi", "pods": "110", "ephemeral-storage": "10Gi"});
    let now = rfc3339_seconds(SystemTime::now());
    let ready = json!({
        "type": "Ready", "status": "True", "reason": "KubeletReady", "message": "a test says so", "lastHeartbeatTime": now,
    });
    let status = json!({"status": {"capacity": room, "allocatable": room, "conditions": [ready]}}).to_string();
    admin.ok(&["patch", "node", MACHINE, "--subresource", "status", "--type", "merge", "-p", &status]).map(drop)
}

/// The pod of the Job on the machine that dies, and its twin.
struct Pods<'a> {
    admin: &'a Kubectl,
    /// Its name.
    lost: String,
    /// The node of its twin.
    other: String,
}

impl<'a> Pods<'a> {
    /// Once the scheduler has given the machine the pod.
    fn find(admin: &'a Kubectl, machine: &Machine) -> anyhow::Result<Self> {
        let own = ["get", "pods", "-l", "app.kubernetes.io/name=towline-upgrade", "-o", "json"];
        let mut pod = Value::Null;
        eventually("the machine has the pod of the Job", Duration::from_secs(120), || {
            let listed: Value = serde_json::from_str(&admin.ok(&own)?)?;
            pod = listed["items"][0].clone();
            Ok(pod["spec"]["nodeName"] == MACHINE)
        })
        .with_context(pods)?;
        machine.takes_no_more()?;
        let lost = pod["metadata"]["name"].as_str().context("a pod has no name")?.to_owned();
        let this = Self { admin, lost, other: machine.other.clone() };
        this.report_running(&pod)?;
        this.start_twin(&pod)?;
        Ok(this)
    }

    /// As the machine's kubelet reports it.
    fn report_running(&self, pod: &Value) -> anyhow::Result<()> {
        let now = rfc3339_seconds(SystemTime::now());
        let container = &pod["spec"]["containers"][0];
        let runs = json!({
            "name": container["name"], "image": container["image"], "imageID": "", "ready": true, "started": true,
            "restartCount": 0, "state": {"running": {"startedAt": now}},
        });
        let status = json!({"status": {"phase": "Running", "startTime": now, "containerStatuses": [runs]}}).to_string();
        let patch = ["patch", "pod", &self.lost, "--subresource", "status", "--type", "merge", "-p", &status];
        self.admin.ok(&patch).map(drop)
    }

    fn start_twin(&self, pod: &Value) -> anyhow::Result<()> {
        let mut twin = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": TWIN}, "spec": pod["spec"]});
        twin["spec"]["nodeName"] = self.other.as_str().into();
        self.admin.run_with(&["create", "-f", "-"], twin.to_string().as_bytes())?.ok().map(drop)
    }

    /// Sends the twin's program a signal, past Kubernetes.
    fn signal(&self, name: &str) -> anyhow::Result<()> {
        let path = "jsonpath={.status.containerStatuses[0].containerID}";
        let id = self.admin.ok(&["get", "pod", TWIN, "-o", path])?;
        let id = id.trim().strip_prefix("containerd://").with_context(|| format!("no container: {id}"))?;
        let mut kill = Command::new("ctr");
        kill.args(["--address", cluster().get("CLUSTER_CONTAINERD"), "--namespace", "k8s.io"]);
        kill.args(["task", "kill", "--signal", name, id]);
        run(&mut kill, Duration::from_secs(30))?.ok().map(drop)
    }

    /// Whether Kubernetes has begun to delete the pod, which nobody on its machine ends.
    fn is_deleted(&self) -> anyhow::Result<bool> {
        let told = ["get", "pod", &self.lost, "-o", "jsonpath={.metadata.deletionTimestamp}", "--ignore-not-found"];
        Ok(!self.admin.ok(&told)?.is_empty())
    }

    /// What the twin's program said, once it has failed.
    fn twins_end(&self) -> anyhow::Result<String> {
        eventually("the twin has ended", Duration::from_secs(240), || {
            Ok(self.admin.ok(&["get", "pod", TWIN, "-o", "jsonpath={.status.phase}"])? == "Failed")
        })
        .with_context(pods)?;
        self.admin.ok(&["logs", TWIN, "-c", "upgrade"])
    }
}

/// The upgrade is taken back by another Job and tried again by a third one, which brings it to its end. What ran on the lost
/// machine changes nothing when it comes back.
pub fn an_upgrade_outlives_its_machine() -> anyhow::Result<()> {
    grant_in_cluster()?;
    let desk = Desk::open("upgrades-machine", &[])?;
    desk.publish(VERSION, "Stable")?;
    load_variant(VERSION, "")?;
    let before = settled()?;
    desk.type_in(Guide::line(&desk.guide.connect, "--disable-auto-upgrade=false")?, "")?;
    desk.type_in(&desk.guide.by_hand, "")?;
    let kubectl = kubectl_of(&desk.site)?;
    let admin = &desk.admin;
    admin.ok(&["patch", "deployment", "upgrader", "--type", "merge", "-p", SOON])?;
    desk.set_times(WORKING)?;
    let first = images(admin)?;
    let going = Going::start(&kubectl);

    let mut machine = Machine::join()?;
    desk.want(VERSION)?;
    let pods = Pods::find(admin, &machine)?;
    let manager =
        ["get", "deployment", "controller-manager", "-o", "jsonpath={.spec.template.spec.containers[0].image}"];
    eventually("the new version's controller-manager is there", Duration::from_secs(120), || {
        Ok(admin.ok(&manager)?.ends_with(VERSION))
    })
    .with_context(crate::connect::pods)?;
    pods.signal("SIGSTOP")?;
    desk.note("the machine dies");
    machine.die();
    let state = desk.await_state(VERSION, |state| state["reason"] == "NodeLost")?;
    let message = state["message"].as_str().unwrap_or_default();
    ensure!(message.contains(&format!("pod {} on node {MACHINE} is deleted", pods.lost)), "{state:#}");
    ensure!(pods.is_deleted()?, "the pod of a machine that died ends by nothing");
    let ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
    ensure!(machine.admin.ok(&["get", "node", MACHINE, "-o", ready])? == "Unknown");
    desk.succeeds(VERSION)?;
    let waited =
        ["get", "events", "--field-selector", "reason=AgentUpgradeWaiting", "-o", "jsonpath={.items[*].message}"];
    let waited = admin.ok(&waited)?;
    ensure!(waited.contains("was taken back") && waited.contains(&format!("node {MACHINE}")), "{waited}");
    let last = (desk.state()?, images(admin)?);
    ensure!(last.1 != first && last.0["refused"] == json!([]), "{last:?}");

    desk.note("the machine comes back");
    pods.signal("SIGCONT")?;
    let said = pods.twins_end()?;
    ensure!(said.contains(NOT_OURS), "{said}");
    ensure!((desk.state()?, images(admin)?) == last, "what ran on the lost machine changes nothing");
    going.end()?;

    let lost = pods.lost.clone();
    admin.ok(&["delete", "pod", TWIN, "--now"])?;
    admin.ok(&["delete", "pod", &lost, "--force", "--grace-period=0", "--ignore-not-found"])?;
    drop(machine);
    desk.site.ok(&["delete", "-n", "c1", "-g", GROUP, "-y"])?;
    eventually("nothing is left behind", Duration::from_secs(120), || Ok(same(&before).is_ok()))
        .and_then(|_| same(&before))
}
