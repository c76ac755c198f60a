//! Agents that upgrade themselves, on the real cluster (docs/features.md U1): the same program passes for several
//! versions (`TOWLINE_TEST_VERSION`), one of them good and the others broken in a way of their own. Whatever becomes of
//! them, kubectl goes through the tunnel all the while.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, bail, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    case::{Needs, installs},
    cluster::cluster,
    kubectl::Kubectl,
    programs::{eventually, root, run, scratch},
    stack::grant_in_cluster,
};

use crate::{
    chart::load_image,
    connect::{CLUSTERS, GROUP, Site, VERSION, call, group, kubectl_of, pods, settled, token, with_pods_and},
};

/// How long new pods are watched here, how long they may take, and how often the upgrader looks by itself.
const TIMES: &str = "interval = \"10s\"\nwindow = \"20s\"\ntimeout = \"90s\"\n";
/// The longest that an upgrade takes here, with the way back.
const ENDS: Duration = Duration::from_secs(420);

pub fn tests() -> Vec<Trial> {
    vec![installs(
        "upgrades::u1_u5_agents_upgrade_themselves_and_come_back_from_broken_versions",
        Needs::Pods,
        upgrades,
    )]
}

/// A version for a test: its number, and what is wrong with it.
struct Broken {
    version: &'static str,
    /// `TOWLINE_TEST_FAULT`, or `image` or `start` of the image itself.
    fault: &'static str,
    state: &'static str,
    reasons: &'static [&'static str],
}

const GOOD: &str = "0.90.0";
/// The version that the gateway gives by itself, of a train that has no other, and the one that a deletion meets half-way.
const WAVE: &str = "0.92.0";
const TRAIN: &str = "Waves";
const CUT_OFF: &str = "0.92.1";
const BROKEN: [Broken; 5] = [
    Broken { version: "0.91.0", fault: "rights", state: "Waiting", reasons: &["Rights"] },
    Broken { version: "0.91.1", fault: "image", state: "RolledBack", reasons: &["ImagePull"] },
    Broken { version: "0.91.2", fault: "start", state: "RolledBack", reasons: &["DoesNotStart"] },
    Broken { version: "0.91.3", fault: "silent", state: "RolledBack", reasons: &["NotReady", "NotHeard"] },
    Broken { version: "0.91.4", fault: "crash", state: "RolledBack", reasons: &["Crash"] },
];

fn upgrades() -> anyhow::Result<()> {
    grant_in_cluster()?;
    let folder = scratch("upgrades-catalogue");
    let catalogue = folder.join("catalogue").display().to_string();
    let setting = format!("api.catalogue_dir={catalogue:?}");
    // The gateway knows of a catalogue when the cluster is connected: its keys are pinned.
    make_catalogue(&folder, &catalogue)?;
    // The train of automatic upgrades has no version at first, so that which one is wanted is for this test to say.
    let train = format!("api.upgrades.train={TRAIN:?}");
    let site = with_pods_and("upgrades", &["--set", &setting, "--set", &train])?;
    let admin = cluster().admin().namespace("towline");
    let before = settled()?;
    site.ok(&["connect", "-n", "c1", "-g", GROUP, "--skip-network-check"]).with_context(pods)?;
    set_times(&admin)?;
    for broken in &BROKEN {
        load_variant(broken.version, broken.fault)?;
    }
    load_variant(GOOD, "")?;
    let kubectl = kubectl_of(&site)?;

    let first = images(&admin)?;
    let going = Going::start(&kubectl);
    for broken in &BROKEN {
        want(&site, broken.version)?;
        let state = await_end(&admin, broken.version).with_context(|| format!("{}\n{}", broken.fault, pods()))?;
        let (phase, reason) =
            (state["phase"].as_str().unwrap_or_default(), state["reason"].as_str().unwrap_or_default());
        ensure!(phase == broken.state && broken.reasons.contains(&reason), "{}: {state:#}", broken.fault);
        ensure!(images(&admin)? == first, "{}: the agents had {first:?} and have {:?}", broken.fault, images(&admin)?);
        going.is_well().with_context(|| format!("{}: {state:#}", broken.fault))?;
        if broken.fault == "rights" {
            let message = state["message"].as_str().unwrap_or_default();
            ensure!(message.contains("--rights-only") && message.contains("clusterconnect-agent:more"), "{message}");
        }
    }

    want(&site, GOOD)?;
    let state = await_end(&admin, GOOD).with_context(pods)?;
    ensure!(state["phase"] == "Succeeded", "{state:#}\n{}", pods());
    let now = images(&admin)?;
    ensure!(now.len() == first.len() && now.iter().all(|image| image.ends_with(&format!(":{GOOD}"))), "u5: {now:?}");
    eventually("the gateway knows the new version", Duration::from_secs(60), || {
        Ok(site.clusters()?[0]["properties"]["agentVersion"] == GOOD)
    })?;
    // The wave: this cluster is the whole fleet.
    load_variant(WAVE, "")?;
    add_version(&folder, &catalogue, WAVE, TRAIN)?;
    sign(&folder, &catalogue)?;
    put_profile(&site, "Enabled", GOOD)?;
    let state = await_end(&admin, WAVE).with_context(pods)?;
    ensure!(state["phase"] == "Succeeded", "{state:#}\n{}", pods());
    eventually("the gateway knows the version of the wave", Duration::from_secs(60), || {
        Ok(site.clusters()?[0]["properties"]["agentVersion"] == WAVE)
    })?;
    going.end()?;
    let told = admin.ok(&["get", "configmap", "upgrader", "-o", "jsonpath={.data.agent\\.toml}"])?;
    ensure!(told.contains("window = \"20s\""), "what the upgrader was told stays: {told}");

    deletion_meets_an_upgrade(&site, &admin, (&folder, &catalogue))?;
    eventually("nothing is left behind", Duration::from_secs(120), || Ok(crate::connect::same(&before).is_ok()))
        .and_then(|_| crate::connect::same(&before))
}

/// `towline delete` while objects are being replaced: it ends the upgrade, and nothing of either version stays.
fn deletion_meets_an_upgrade(site: &Site, admin: &Kubectl, (folder, catalogue): (&Path, &str)) -> anyhow::Result<()> {
    load_variant(CUT_OFF, "")?;
    add_version(folder, catalogue, CUT_OFF, "Stable")?;
    sign(folder, catalogue)?;
    // The gateway looks for another catalogue every few seconds.
    eventually("the version is wanted", Duration::from_secs(30), || Ok(want(site, CUT_OFF).is_ok()))?;
    eventually("objects are being replaced", ENDS, || {
        let text = admin.ok(&["get", "configmap", "towline-upgrade", "-o", "jsonpath={.data.state}"])?;
        let state: Value = serde_json::from_str(&text).unwrap_or_default();
        Ok(state["version"] == CUT_OFF && state["phase"] == "Applying")
    })?;
    site.ok(&["delete", "-n", "c1", "-g", GROUP, "-y"]).map(drop)
}

/// A catalogue with the agents' own chart in the versions that are wanted by hand.
fn make_catalogue(folder: &Path, catalogue: &str) -> anyhow::Result<()> {
    of_catalogue(catalogue, &["init", "--key", &signing_key(folder)])?;
    for version in BROKEN.iter().map(|broken| broken.version).chain([GOOD]) {
        add_version(folder, catalogue, version, "Stable")?;
    }
    sign(folder, catalogue)
}

fn of_catalogue(catalogue: &str, args: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new(tests::programs::binary("towline"));
    command.arg("catalogue").args(args).args(["--catalogue", catalogue]);
    run(&mut command, Duration::from_secs(60))?.ok().map(drop)
}

fn signing_key(folder: &Path) -> String {
    folder.join("signing.key").display().to_string()
}

fn add_version(folder: &Path, catalogue: &str, version: &str, train: &str) -> anyhow::Result<()> {
    let chart = root().join("docker/chart/towline-agent").display().to_string();
    let into = folder.display().to_string();
    let mut pack = Command::new(cluster().get("CLUSTER_HELM"));
    pack.args(["package", &chart, "--version", version, "--app-version", version, "--destination", &into]);
    run(&mut pack, Duration::from_secs(60))?.ok()?;
    let file = folder.join(format!("towline-agent-{version}.tgz")).display().to_string();
    let add = ["add", &file, "--type", "towline.agent", "--train", train, "--release-namespace", "towline"];
    of_catalogue(catalogue, &add)
}

fn sign(folder: &Path, catalogue: &str) -> anyhow::Result<()> {
    of_catalogue(catalogue, &["sign", "--key", &signing_key(folder), "--expires", "90d"])
}

/// Gives the upgrader the times of this test, which no option of a command gives; it keeps them over an upgrade.
fn set_times(admin: &Kubectl) -> anyhow::Result<()> {
    let map = admin.ok(&["get", "configmap", "upgrader", "-o", "json"])?;
    let mut map: Value = serde_json::from_str(&map)?;
    let text = map["data"]["agent.toml"].as_str().context("no settings")?;
    let (head, rest) = text.split_once("interval = ").context("no interval")?;
    let rest = rest.split_once("catalogue_id").context("no catalogue_id")?.1;
    let text = format!("{head}{TIMES}catalogue_id{rest}");
    map["data"] = json!({"agent.toml": text, "gateway-ca.crt": map["data"]["gateway-ca.crt"]});
    let patch = json!({"data": map["data"]}).to_string();
    admin.ok(&["patch", "configmap", "upgrader", "--type", "merge", "-p", &patch])?;
    admin.ok(&["rollout", "restart", "deployment", "upgrader"])?;
    admin.ok(&["rollout", "status", "deployment", "upgrader", "--timeout", "60s"]).map(drop)
}

/// Gives the node the agents' image as another version: the same program, told by its environment what it is.
fn load_variant(version: &str, fault: &str) -> anyhow::Result<()> {
    if fault == "image" {
        return Ok(());
    }
    let file = match std::env::var_os("TOWLINE_AGENT_IMAGE_FILE") {
        Some(file) => PathBuf::from(file),
        None => {
            load_image("agent")?;
            root().join("target/image/agent.tar")
        }
    };
    let folder = scratch(&format!("upgrades-image-{version}"));
    let (archive, at) = (file.display().to_string(), folder.display().to_string());
    run(Command::new("tar").args(["--extract", "--file", &archive, "--directory", &at]), Duration::from_secs(60))?
        .ok()?;
    let read = |name: &str| -> anyhow::Result<Value> {
        Ok(serde_json::from_slice(&std::fs::read(folder.join(name)).with_context(|| name.to_owned())?)?)
    };
    let mut manifest = read("manifest.json")?;
    let name = manifest[0]["Config"].as_str().context("no configuration in the image")?.to_owned();
    let mut config = read(&name)?;
    let mut variables = vec![format!("TOWLINE_TEST_VERSION={version}")];
    match fault {
        "" => {}
        "start" => config["config"]["Entrypoint"] = json!(["/towline-agent", "no-such-word"]),
        fault => variables.push(format!("TOWLINE_TEST_FAULT={fault}")),
    }
    config["config"]["Env"] = json!(variables);
    std::fs::write(folder.join(&name), config.to_string())?;
    let sum = run(Command::new("sha256sum").arg(folder.join(&name)), Duration::from_secs(20))?.ok()?;
    let renamed = format!("{}.json", sum.split_whitespace().next().context("no digest")?);
    std::fs::rename(folder.join(&name), folder.join(&renamed))?;
    manifest[0]["Config"] = renamed.into();
    let tagged = manifest[0]["RepoTags"][0].as_str().context("the image has no name")?;
    let repository = tagged.rsplit_once(':').context("the image has no tag")?.0.to_owned();
    manifest[0]["RepoTags"] = json!([format!("{repository}:{version}")]);
    std::fs::write(folder.join("manifest.json"), manifest.to_string())?;
    let _ = std::fs::remove_file(folder.join("repositories"));
    let packed = scratch(&format!("upgrades-packed-{version}")).join("agent.tar");
    let mut pack = Command::new("tar");
    pack.args(["--create", "--file", &packed.display().to_string(), "--directory", &at, "."]);
    run(&mut pack, Duration::from_secs(60))?.ok()?;
    let mut load = Command::new(root().join("tests/cluster/cluster"));
    run(load.arg("load-image").arg(&packed), Duration::from_secs(120))?.ok()?;
    std::fs::remove_file(packed)?;
    std::fs::remove_dir_all(folder)?;
    Ok(())
}

/// Says at the gateway which version the cluster is to have.
fn want(site: &Site, version: &str) -> anyhow::Result<()> {
    put_profile(site, "Disabled", version)
}

/// Writes whether the agents upgrade themselves, and which version they are to have where they do not.
fn put_profile(site: &Site, automatic: &str, version: &str) -> anyhow::Result<()> {
    let stack = &site.stack;
    let owner = token(stack, &stack.text("clientId"), &stack.text("clientSecret"))?;
    let path = format!("{}/{CLUSTERS}/c1?{VERSION}", group(stack));
    let shown = call(stack, &owner, "GET", &path, &Value::Null)?.json()?;
    let mut body = json!({"location": shown["location"], "identity": shown["identity"], "tags": shown["tags"]});
    body["properties"] = shown["properties"].clone();
    body["properties"]["arcAgentProfile"]["agentAutoUpgrade"] = automatic.into();
    body["properties"]["arcAgentProfile"]["desiredAgentVersion"] = version.into();
    let put = call(stack, &owner, "PUT", &path, &body)?;
    ensure!(put.status < 300, "{version}: {} {}", put.status, String::from_utf8_lossy(&put.body));
    Ok(())
}

/// Waits until an upgrade to this version has come to an end, or waits.
fn await_end(admin: &Kubectl, version: &str) -> anyhow::Result<Value> {
    let mut state = Value::Null;
    eventually(&format!("the upgrade to {version} has come to an end"), ENDS, || {
        let text = admin.ok(&["get", "configmap", "towline-upgrade", "-o", "jsonpath={.data.state}"])?;
        state = serde_json::from_str(&text).unwrap_or_default();
        // Other waits pass by themselves, such as that for the tunnel.
        let waits = state["phase"] == "Waiting" && state["reason"] == "Rights";
        let ended = waits || ["Succeeded", "RolledBack", "Failed"].iter().any(|word| state["phase"] == *word);
        Ok(ended && state["version"] == version)
    })
    .with_context(|| format!("{state:#}"))?;
    Ok(state)
}

/// The images of the agents' Deployments.
fn images(admin: &Kubectl) -> anyhow::Result<Vec<String>> {
    let path = "jsonpath={.items[*].spec.template.spec.containers[*].image}";
    Ok(admin.ok(&["get", "deployments", "-o", path])?.split_whitespace().map(str::to_owned).collect())
}

/// kubectl through the tunnel, one request after the other, until it is told to end.
struct Going {
    ends: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<(usize, Vec<String>)>>,
    failed: Arc<AtomicBool>,
}

impl Going {
    fn start(kubectl: &Kubectl) -> Self {
        let (ends, failed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let (kubectl, until, wrong) = (kubectl.clone(), ends.clone(), failed.clone());
        let thread = std::thread::spawn(move || {
            let (mut count, mut failures) = (0, Vec::new());
            while !until.load(Ordering::Relaxed) {
                count += 1;
                match kubectl.run(&["get", "--raw", "/version"]) {
                    Ok(output) if output.code == Some(0) => {}
                    Ok(output) => failures.push(output.err),
                    Err(error) => failures.push(format!("{error:#}")),
                }
                wrong.store(!failures.is_empty(), Ordering::Relaxed);
            }
            (count, failures)
        });
        Self { ends, thread: Some(thread), failed }
    }

    fn is_well(&self) -> anyhow::Result<()> {
        ensure!(!self.failed.load(Ordering::Relaxed), "a request through the tunnel has failed");
        Ok(())
    }

    fn end(mut self) -> anyhow::Result<()> {
        self.ends.store(true, Ordering::Relaxed);
        let Some(thread) = self.thread.take() else { bail!("it has ended") };
        let Ok((count, failures)) = thread.join() else { bail!("the thread of kubectl has panicked") };
        ensure!(failures.is_empty() && count > 50, "{count} requests, of which failed: {failures:?}");
        println!("{count} requests went through the tunnel, and none failed");
        Ok(())
    }
}

impl Drop for Going {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
    }
}
