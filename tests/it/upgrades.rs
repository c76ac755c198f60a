//! Agents that upgrade themselves, on the real cluster, by the commands of docs/upgrades.md as they stand there
//! (docs/features.md U1-U5): the same program passes for several versions (`TOWLINE_TEST_VERSION`), some of them broken in
//! a way of their own. Whatever becomes of them, kubectl goes through the tunnel all the while.

mod machine;

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, bail, ensure};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    case::{Needs, full, installs},
    cluster::cluster,
    images::Image,
    kubectl::{Kubectl, pod},
    programs::{Output, Program, binary, eventually, pause_after, root, run, scratch},
    stack::grant_in_cluster,
};

use crate::{
    chart::load_image,
    connect::{GROUP, Site, kubectl_of, pods, settled, with_pods_and},
};

/// How often the upgrader looks by itself, how long new pods are watched, and how long they may take. Where a version
/// never comes up, nothing depends on how long it is waited for.
const QUICK: &str = "interval = \"10s\"\nwindow = \"5s\"\ntimeout = \"20s\"\n";
/// Long enough to see a version crash that ran for a while.
const PATIENT: &str = "interval = \"10s\"\nwindow = \"20s\"\ntimeout = \"90s\"\n";
/// For versions that work, on a busy machine.
const WORKING: &str = "interval = \"10s\"\nwindow = \"5s\"\ntimeout = \"180s\"\n";
/// The longest that an upgrade takes here, with the way back.
const ENDS: Duration = Duration::from_secs(420);

pub fn tests() -> Vec<Trial> {
    let mut tests = vec![installs(
        "upgrades::u1_u2_u3_u5_agents_upgrade_themselves_by_the_commands_of_the_guide_and_come_back_from_broken_versions",
        Needs::Pods,
        upgrades,
    )];
    if full() {
        // It waits for minutes until Kubernetes gives a machine up.
        let name = "upgrades::u1_an_upgrade_outlives_the_machine_that_its_job_ran_on";
        tests.push(installs(name, Needs::Pods, machine::an_upgrade_outlives_its_machine));
    }
    tests
}

/// A version for a test: its number, and what is wrong with it.
struct Broken {
    version: &'static str,
    /// `TOWLINE_TEST_FAULT`, or `image` or `start` of the image itself, or [`QUOTA`] of the cluster.
    fault: &'static str,
    reasons: &'static [&'static str],
    times: &'static str,
}

/// The namespace has no room for the pod of the Job.
const QUOTA: &str = "quota";

/// What [`broken`] gives of them: `make test` takes those that were made to start, and fail at once or later.
const BROKEN: [Broken; 5] = [
    Broken { version: "0.3.910", fault: QUOTA, reasons: &["NoPod"], times: QUICK },
    Broken { version: "0.3.911", fault: "image", reasons: &["ImagePull"], times: QUICK },
    Broken { version: "0.3.912", fault: "start", reasons: &["DoesNotStart"], times: QUICK },
    Broken { version: "0.3.913", fault: "silent", reasons: &["NotReady", "NotHeard"], times: QUICK },
    Broken { version: CRASHES, fault: "crash", reasons: &["Crash"], times: PATIENT },
];

/// The broken versions of this run, in their order. The long run takes all of them: each costs a minute.
fn broken() -> impl Iterator<Item = &'static Broken> {
    BROKEN.iter().filter(|broken| full() || ["start", "crash"].contains(&broken.fault))
}

/// The one that is repaired and tried again.
const CRASHES: &str = "0.3.914";
/// The version that the gateway gives by itself, of a train that has no other; it needs more rights.
const WAVE: &str = "0.3.920";
const TRAIN: &str = "Waves";
/// The namespace of what is open meanwhile.
const OPEN: &str = "view-only";
/// The version that a deletion meets half-way.
const CUT_OFF: &str = "0.3.921";

/// The blocks of commands of the guide, in their order.
struct Guide {
    by_hand: String,
    publish: String,
    waves: String,
    version: String,
    connect: String,
    state: String,
    again: String,
    rights: String,
}

impl Guide {
    fn read() -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(root().join("docs/upgrades.md"))?;
        let blocks = text.split("```sh\n").skip(1).filter_map(|rest| Some(rest.split("```").next()?.to_owned()));
        let blocks: Vec<String> = blocks.collect();
        let [by_hand, publish, waves, version, connect, state, again, rights] = blocks
            .try_into()
            .map_err(|found: Vec<String>| anyhow::anyhow!("{} blocks of commands in the guide", found.len()))?;
        Ok(Self { by_hand, publish, waves, version, connect, state, again, rights })
    }

    /// The line of a block that has these words.
    fn line<'a>(block: &'a str, words: &str) -> anyhow::Result<&'a str> {
        block.lines().find(|line| line.contains(words)).with_context(|| format!("no {words} in {block}"))
    }
}

/// Where the commands are typed.
struct Desk {
    site: Site,
    guide: Guide,
    folder: PathBuf,
    /// The administrator of the cluster, in the namespace of the agents.
    admin: Kubectl,
    begun: Instant,
}

impl Desk {
    /// At a gateway that has a signed catalogue when the cluster is connected: its keys are pinned then.
    fn open(name: &str, dev_args: &[&str]) -> anyhow::Result<Self> {
        let begun = Instant::now();
        // A folder of this name is left out when everything that was written is read for secrets.
        let folder = scratch(&format!("{name}-desk")).join("state");
        std::fs::create_dir_all(&folder)?;
        for word in ["init", "sign"] {
            let mut command = Command::new(binary("towline"));
            command.args(["catalogue", word, "--key", "signing.key", "--catalogue", "catalogue"]).current_dir(&folder);
            run(&mut command, Duration::from_secs(60))?.ok()?;
        }
        let setting = format!("api.catalogue_dir={:?}", folder.join("catalogue").display().to_string());
        let site = with_pods_and(name, &[&["--set", &setting], dev_args].concat())?;
        let admin = cluster().admin().namespace("towline");
        Ok(Self { site, guide: Guide::read()?, folder, admin, begun })
    }

    /// Types commands of the guide, for this cluster; `version` in the place of the guide's.
    fn type_in(&self, commands: &str, version: &str) -> anyhow::Result<Output> {
        self.type_as(commands, version, &[])
    }

    fn type_as(&self, commands: &str, version: &str, environment: &[(&str, &str)]) -> anyhow::Result<Output> {
        let stack = &self.site.stack;
        let script = commands
            .replace("0.2.1", version)
            .replace("-g GROUP", &format!("-g {GROUP}"))
            .replace("GROUP/", &format!("{GROUP}/"))
            .replace("-n NAME", "-n c1")
            .replace("/NAME?", "/c1?")
            .replace("--catalogue DIR", "--catalogue catalogue")
            .replace("--key KEY", "--key signing.key")
            .replace("towline connect", "towline connect --skip-network-check")
            .replace("http://127.0.0.1:9090", stack.text("admin").trim_end_matches('/'));
        let folder = |program: &Path| program.parent().map(|dir| dir.display().to_string()).unwrap_or_default();
        let path = format!("{}:{}", folder(&binary("towline")), folder(Path::new(cluster().get("CLUSTER_KUBECTL"))));
        let mut command = Command::new("sh");
        command.args(["-eux", "-c", &script]).current_dir(&self.folder);
        for (name, value) in self.site.command(&[]).get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        command.env("PATH", format!("{path}:/usr/bin:/bin")).envs(environment.iter().copied());
        let output = run(&mut command, Duration::from_secs(400))?;
        output.ok().with_context(|| format!("{script}\n{}\n{}", output.err, pods()))?;
        self.note(&script);
        Ok(output)
    }

    /// What the time went into.
    fn note(&self, what: &str) {
        println!("{:4} s: {}", self.begun.elapsed().as_secs(), what.lines().next().unwrap_or_default());
    }

    /// Makes a version of the agents' chart, and signs it into the catalogue.
    fn publish(&self, version: &str, train: &str) -> anyhow::Result<()> {
        let chart = root().join("docker/chart/towline-agent").display().to_string();
        let into = self.folder.display().to_string();
        let mut pack = Command::new(cluster().get("CLUSTER_HELM"));
        pack.args(["package", &chart, "--version", version, "--app-version", version, "--destination", &into]);
        run(&mut pack, Duration::from_secs(60))?.ok()?;
        self.type_in(&self.guide.publish.replace("Stable", train), version).map(drop)
    }

    /// Gives the upgrader the times of this test, which no option of a command gives; it keeps them over an upgrade.
    fn set_times(&self, times: &str) -> anyhow::Result<()> {
        let admin = &self.admin;
        let map = admin.ok(&["get", "configmap", "upgrader", "-o", "json"])?;
        let map: Value = serde_json::from_str(&map)?;
        let text = map["data"]["agent.toml"].as_str().context("no settings")?;
        let (head, rest) = text.split_once("interval = ").context("no interval")?;
        let rest = rest.split_once("catalogue_id").context("no catalogue_id")?.1;
        let text = format!("{head}{times}catalogue_id{rest}");
        let patch = json!({"data": {"agent.toml": text}}).to_string();
        admin.ok(&["patch", "configmap", "upgrader", "--type", "merge", "-p", &patch])?;
        admin.ok(&["rollout", "restart", "deployment", "upgrader"])?;
        admin.ok(&["rollout", "status", "deployment", "upgrader", "--timeout", "60s"])?;
        self.note(times.split_once('\n').map_or(times, |(_, rest)| rest));
        Ok(())
    }

    /// Has the gateway want a version. It refuses one until it has looked for another catalogue, every few seconds.
    fn want(&self, version: &str) -> anyhow::Result<()> {
        eventually(&format!("{version} is wanted"), Duration::from_secs(60), || {
            Ok(self.type_in(&self.guide.version, version).is_ok())
        })
        .map(drop)
    }

    /// How far the upgrade is, by the guide's command.
    fn state(&self) -> anyhow::Result<Value> {
        let words: Vec<&str> = self.guide.state.split_whitespace().skip(1).collect();
        Ok(serde_json::from_str(&self.admin.ok(&words)?).unwrap_or_default())
    }

    /// Waits until an upgrade to this version has come to an end, or waits.
    fn await_end(&self, version: &str) -> anyhow::Result<Value> {
        self.await_state(version, |state| {
            // Other waits pass by themselves, such as that for the tunnel.
            let waits = state["phase"] == "Waiting" && state["reason"] == "Rights";
            waits || ["Succeeded", "RolledBack", "Failed"].iter().any(|word| state["phase"] == *word)
        })
    }

    fn await_state(&self, version: &str, is: impl Fn(&Value) -> bool) -> anyhow::Result<Value> {
        let mut state = Value::Null;
        eventually(&format!("the upgrade to {version} has come on"), ENDS, || {
            state = self.state()?;
            Ok(state["version"] == version && is(&state))
        })
        .with_context(|| format!("{state:#}\n{}", pods()))?;
        self.note(&format!("{version} {} {}", state["phase"], state["reason"]));
        Ok(state)
    }

    fn succeeds(&self, version: &str) -> anyhow::Result<()> {
        let state = self.await_state(version, |state| state["phase"] == "Succeeded")?;
        let now = images(&self.admin)?;
        ensure!(now.iter().all(|image| image.ends_with(&format!(":{version}"))), "u5: {now:?}: {state:#}");
        eventually("the gateway knows the new version", Duration::from_secs(60), || {
            Ok(self.site.clusters()?[0]["properties"]["agentVersion"] == version)
        })
        .map(drop)
    }
}

fn upgrades() -> anyhow::Result<()> {
    grant_in_cluster()?;
    // The train of automatic upgrades has no version at first, so that which one is wanted is for this test to say.
    let train = format!("api.upgrades.train={TRAIN:?}");
    let desk = Desk::open("upgrades", &["--set", &train])?;
    let guide = &desk.guide;
    for broken in broken() {
        desk.publish(broken.version, "Stable")?;
        load_variant(broken.version, broken.fault)?;
    }
    load_variant(WAVE, "rights")?;
    if full() {
        load_variant(CUT_OFF, "")?;
    }
    desk.note("images");
    let before = settled()?;
    cluster().admin().namespace(OPEN).apply(&pod("open", "sleep 3600"))?;
    desk.type_in(Guide::line(&guide.connect, "--disable-auto-upgrade ")?, "")?;
    let upgrader = ["get", "deployment", "upgrader", "--ignore-not-found", "-o", "name"];
    ensure!(desk.admin.ok(&upgrader)?.is_empty(), "u2: nothing of the upgrader is there");
    desk.type_in(Guide::line(&guide.connect, "--disable-auto-upgrade=false")?, "")?;
    desk.type_in(&guide.by_hand, "")?;
    let kubectl = kubectl_of(&desk.site)?;
    eventually("the switch is shown in the cluster", Duration::from_secs(60), || {
        let path = "jsonpath={.data.AZURE_ARC_AUTOUPDATE}";
        Ok(desk.admin.ok(&["get", "configmap", "towline-upgrade", "-o", path])? == "false")
    })?;

    let first = images(&desk.admin)?;
    let going = Going::start(&kubectl);
    let mut times = "";
    for broken in broken() {
        if broken.times != times {
            times = broken.times;
            desk.set_times(times)?;
        }
        if broken.fault == QUOTA {
            desk.admin.ok(&["create", "quota", QUOTA, "--hard=pods=0"])?;
        }
        desk.want(broken.version)?;
        let state = desk.await_end(broken.version).with_context(|| broken.fault)?;
        if broken.fault == QUOTA {
            ensure!(state["message"].as_str().is_some_and(|message| message.contains("exceeded quota")), "{state:#}");
            desk.admin.ok(&["delete", "quota", QUOTA])?;
        }
        let reason = state["reason"].as_str().unwrap_or_default();
        ensure!(state["phase"] == "RolledBack" && broken.reasons.contains(&reason), "{}: {state:#}", broken.fault);
        let now = images(&desk.admin)?;
        ensure!(now == first, "{}: the agents had {first:?} and have {now:?}", broken.fault);
        going.is_well().with_context(|| format!("{}: {state:#}", broken.fault))?;
    }

    desk.set_times(WORKING)?;
    // Somebody has repaired it, and has the cluster forget what came of it.
    load_variant(CRASHES, "")?;
    desk.type_in(&guide.again, "")?;
    let open = Open::begin(&kubectl, &desk.folder)?;
    desk.succeeds(CRASHES)?;
    open.ends_and_goes_on(&kubectl)?;
    wave(&desk)?;
    going.end()?;
    let told = desk.admin.ok(&["get", "configmap", "upgrader", "-o", "jsonpath={.data.agent\\.toml}"])?;
    ensure!(told.contains("timeout = \"180s\""), "what the upgrader was told stays: {told}");

    if full() {
        begin_what_a_deletion_meets(&desk)?;
    }
    desk.site.ok(&["delete", "-n", "c1", "-g", GROUP, "-y"])?;
    eventually("nothing is left behind", Duration::from_secs(120), || Ok(crate::connect::same(&before).is_ok()))
        .and_then(|_| crate::connect::same(&before))
}

/// The whole fleet is this cluster. The version that the gateway gives it needs rights, which an administrator gives.
fn wave(desk: &Desk) -> anyhow::Result<()> {
    let guide = &desk.guide;
    let at_admin = |words: &str| Ok::<_, anyhow::Error>(desk.type_in(Guide::line(&guide.waves, words)?, "")?.text());
    at_admin("/upgrades/pause")?;
    desk.publish(WAVE, TRAIN)?;
    desk.type_in(&guide.by_hand.replace("false", "true"), "")?;
    eventually("the gateway holds the version back", Duration::from_secs(90), || {
        let told: Value = serde_json::from_str(&at_admin("9090/upgrades")?)?;
        Ok(told["versions"][WAVE]["pending"] == 1 && told.to_string().contains("Somebody paused it."))
    })?;
    ensure!(desk.state()?["version"] == CRASHES, "nothing begins while it is paused: {}", desk.state()?);
    at_admin("/upgrades/resume")?;
    let state = desk.await_end(WAVE)?;
    let message = state["message"].as_str().unwrap_or_default();
    ensure!(state["phase"] == "Waiting" && message.contains("clusterconnect-agent:more"), "{state:#}");
    ensure!(message.contains("towline upgrade --rights-only"), "{message}");
    let of_that_version = [("TOWLINE_TEST_VERSION", WAVE), ("TOWLINE_TEST_FAULT", "rights")];
    desk.type_as(&guide.rights, WAVE, &of_that_version)?;
    desk.succeeds(WAVE)
}

/// An upgrade that replaces objects while `towline delete` comes: that ends it, and nothing of either version stays.
fn begin_what_a_deletion_meets(desk: &Desk) -> anyhow::Result<()> {
    desk.publish(CUT_OFF, "Stable")?;
    desk.type_in(&desk.guide.by_hand, "")?;
    desk.want(CUT_OFF)?;
    desk.await_state(CUT_OFF, |state| state["phase"] == "Applying").map(drop)
}

/// Gives the node the agents' image as another version: the same program, told by its environment what it is.
fn load_variant(version: &str, fault: &str) -> anyhow::Result<()> {
    if fault == "image" || fault == QUOTA {
        return Ok(());
    }
    let mut image = Image::unpack(&agent_archive()?)?;
    let mut variables = vec![format!("TOWLINE_TEST_VERSION={version}")];
    match fault {
        "" => {}
        "start" => image.config["config"]["Entrypoint"] = json!(["/towline-agent", "no-such-word"]),
        fault => variables.push(format!("TOWLINE_TEST_FAULT={fault}")),
    }
    image.config["config"]["Env"] = json!(variables);
    image.load_as(version)
}

/// The archive of the agents' image, built where it is missing.
fn agent_archive() -> anyhow::Result<PathBuf> {
    if let Some(file) = std::env::var_os("TOWLINE_AGENT_IMAGE_FILE") {
        return Ok(PathBuf::from(file));
    }
    load_image("agent")?;
    Ok(root().join("target/image/agent.tar"))
}

/// The images of the agents' Deployments.
fn images(admin: &Kubectl) -> anyhow::Result<Vec<String>> {
    let path = "jsonpath={.items[*].spec.template.spec.containers[*].image}";
    Ok(admin.ok(&["get", "deployments", "-o", path])?.split_whitespace().map(str::to_owned).collect())
}

/// What somebody has open while the pods that hold the tunnel are replaced: a watch, and a session in a container.
struct Open {
    watch: Program,
    session: Program,
    watched: PathBuf,
}

impl Open {
    fn begin(kubectl: &Kubectl, folder: &Path) -> anyhow::Result<Self> {
        let there = kubectl.clone().namespace(OPEN);
        cluster().admin().ok(&["wait", "-n", OPEN, "pod/open", "--for=condition=Ready", "--timeout=60s"])?;
        let (watched, said) = (folder.join("watched"), folder.join("said"));
        let begin = |name: &str, args: &[&str], out: &Path| {
            let mut command = there.command(args);
            command.stdout(std::fs::File::create(out)?);
            Program::start(name, command, &folder.join(format!("{name}.log")))
        };
        let watch = begin("watch", &["get", "configmaps", "--watch", "-o", "name"], &watched)?;
        let session = begin("session", &["exec", "open", "--", "sh", "-c", "echo open; exec sleep 3600"], &said)?;
        let open = Self { watch, session, watched };
        eventually("a watch and a session are open", Duration::from_secs(60), || {
            Ok(std::fs::read_to_string(&said)?.contains("open") && !std::fs::read_to_string(&open.watched)?.is_empty())
        })
        .with_context(|| open.session.tail())?;
        Ok(open)
    }

    /// What docs/upgrades.md says of them: the watch ends as after an apiserver's restart, the session with a failure, and
    /// both can be opened again at once.
    fn ends_and_goes_on(mut self, kubectl: &Kubectl) -> anyhow::Result<()> {
        let there = kubectl.clone().namespace(OPEN);
        let watch = self.watch.wait(Duration::from_secs(120))?;
        ensure!(
            watch == Some(0),
            "a watch that ends with the old pods is no failure: {watch:?}: {}",
            self.watch.tail()
        );
        let session = self.session.wait(Duration::from_secs(120))?;
        ensure!(session != Some(0), "a session that was cut is no success: {}", self.session.tail());
        ensure!(there.ok(&["exec", "open", "--", "echo", "again"])?.trim() == "again");
        cluster().admin().ok(&["delete", "pod", "-n", OPEN, "open", "--now"]).map(drop)
    }
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
                let asked = Instant::now();
                match kubectl.run(&["get", "--raw", "/version"]) {
                    Ok(output) if output.code == Some(0) => {}
                    Ok(output) => failures.push(output.err),
                    Err(error) => failures.push(format!("{error:#}")),
                }
                wrong.store(!failures.is_empty(), Ordering::Relaxed);
                pause_after(asked);
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
