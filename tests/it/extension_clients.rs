//! Extensions as their clients see them: the Azure SDKs, unmodified, and the guide docs/extensions.md, typed as it stands
//! there (docs/features.md E1, E2, E5).

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, ensure};
use catalogue::testing::{chart, metadata};
use libtest_mimic::Trial;
use serde_json::{Value, json};
use tests::{
    apiserver::Apiserver,
    case::{Needs, case, installs},
    cluster::cluster,
    leftovers::remove,
    programs::{Output, binary, eventually, root, run, run_with_input, scratch},
    stack::{Plan, Stack, note_secret},
};

use crate::clients::python_with_clients;

pub fn tests() -> Vec<Trial> {
    vec![
        case("extension_clients::e1_e2_the_azure_sdks_drive_them_unmodified", Needs::Nothing, sdks),
        case("extension_clients::g1_g2_g10_the_azure_sdks_drive_configurations_unmodified", Needs::Nothing, flux_sdk),
        installs("extension_clients::e1_e2_e5_e14_commands_of_the_guide_work", Needs::Pods, guide),
    ]
}

/// A folder, and commands that are typed in it.
struct Desk(PathBuf);

impl Desk {
    fn new(name: &str) -> anyhow::Result<Self> {
        let desk = Self(scratch(&format!("{name}-desk")).join("state"));
        std::fs::create_dir_all(&desk.0)?;
        Ok(desk)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A chart with one ConfigMap that says the setting `greeting`.
    fn chart(&self, version: &str) -> anyhow::Result<()> {
        let map = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: {{ .Release.Name }}-greeting}\ndata: {greeting: {{ .Values.greeting | quote }}, version: {{ .Chart.Version | quote }}}\n";
        let files: [(&str, &[u8]); 2] = [("web/templates/map.yaml", map), ("web/values.yaml", b"greeting: none\n")];
        let file = self.path(&format!("web-{version}.tgz"));
        Ok(std::fs::write(file, chart(&metadata("web", version), &files))?)
    }

    fn sh(&self, script: &str) -> anyhow::Result<Output> {
        let folder = binary("towline").parent().map(Path::to_owned).context("a folder")?;
        let mut command = Command::new("sh");
        command.args(["-euxc", script]).current_dir(&self.0).env("HOME", &self.0);
        command.env("PATH", format!("{}:/usr/bin:/bin", folder.display()));
        command.env("TOWLINE_CONFIG_DIR", self.path("config"));
        let output = run(&mut command, Duration::from_secs(300))?;
        output.ok().with_context(|| format!("{script}\n{}", output.err))?;
        Ok(output)
    }
}

fn sdks() -> anyhow::Result<()> {
    let desk = Desk::new("extension-sdk")?;
    let mut script = "towline catalogue init --catalogue c --key k\n".to_owned();
    for (version, train) in [("1.0.0", "Stable"), ("1.1.0", "Stable"), ("2.0.0", "Preview")] {
        desk.chart(version)?;
        script += &format!(
            "towline catalogue add web-{version}.tgz --catalogue c --type example.web --train {train} --release-namespace web\n"
        );
    }
    desk.sh(&(script + "towline catalogue sign --catalogue c --key k\n"))?;
    drive(&desk, "extension-sdk", "azure_extensions.py", 3)
}

/// The catalogue has a chart of the name of Flux's type; no agent installs it.
fn flux_sdk() -> anyhow::Result<()> {
    let desk = Desk::new("flux-sdk")?;
    desk.chart("1.0.0")?;
    desk.sh(
        "towline catalogue init --catalogue c --key k\n\
         towline catalogue add web-1.0.0.tgz --catalogue c --type microsoft.flux --train Stable --release-namespace flux-system\n\
         towline catalogue sign --catalogue c --key k\n",
    )?;
    drive(&desk, "flux-sdk", "azure_flux.py", 7)
}

/// Runs a program of SDKs against a gateway with the catalogue `c`; it says of `steps` steps that they held.
fn drive(desk: &Desk, name: &str, program: &str, steps: usize) -> anyhow::Result<()> {
    let apiserver = Apiserver::plain(&scratch(&format!("{name}-apiserver")))?;
    let setting = format!("api.catalogue_dir={}", desk.path("c").display());
    let stack = Stack::start(&Plan { dev_args: &["--set", &setting], ..Plan::scripted(name, &apiserver) })?;
    let mut command = Command::new(python_with_clients()?);
    command.arg(root().join("tests/it").join(program));
    for key in ["url", "ca", "tenant", "subscription", "clientId"] {
        command.arg(stack.text(key));
    }
    let secret = format!("{}\n", stack.text("clientSecret"));
    let text = run_with_input(&mut command, Some(secret.as_bytes()), Duration::from_secs(300))?.ok()?;
    ensure!(text.lines().filter(|line| line.starts_with("held: ")).count() == steps, "{text}");
    Ok(())
}

/// The agent runs as a process, with helm: what `towline connect` installs is another test's.
fn guide() -> anyhow::Result<()> {
    let text = std::fs::read_to_string(root().join("docs/extensions.md"))?;
    let blocks: Vec<String> =
        text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next()).map(typed).collect();
    let [make, look, connected, install, renew, delete, start, end] = blocks.as_slice() else {
        anyhow::bail!("{} blocks of commands in the guide", blocks.len());
    };
    let desk = Desk::new("extension-guide")?;
    desk.chart("1.2.3")?;
    desk.chart("1.3.0")?;
    note_secret("geheim-der-erweiterung")?;
    std::fs::write(desk.path("secrets.yaml"), "password: geheim-der-erweiterung\n")?;
    desk.sh(make)?;
    let admin = cluster().admin();
    // What agents of other tests trust is another catalogue.
    let forget = || admin.ok(&["delete", "secret", "extension-catalogue", "--ignore-not-found"]);
    forget()?;
    let stack = stack(&desk)?;
    admin.run(&["delete", "namespace", "web", "--ignore-not-found", "--wait=true"])?;
    admin.ok(&[
        "apply",
        "-f",
        &root().join("docker/chart/towline-agent/files/extensionconfigs.yaml").display().to_string(),
    ])?;

    ensure!(desk.sh(look)?.text().contains("1.2.3"));
    ensure!(desk.sh(connected)?.text().contains("example.web"));
    let installed = desk.sh(install)?;
    ensure!(installed.text().contains("Succeeded") && !installed.text().contains("geheim"), "{}", installed.text());
    let map = |field: &str| {
        let path = format!("jsonpath={{.data.{field}}}");
        admin.ok(&["-n", "web", "get", "configmap", "web-greeting", "-o", &path])
    };
    ensure!(map("greeting")? == "bye" && map("version")? == "1.2.3", "{} {}", map("greeting")?, map("version")?);
    desk.sh(renew)?;
    eventually("the gateway has read the new version", Duration::from_secs(20), || {
        Ok(desk.sh(look)?.text().contains("1.3.0"))
    })?;
    // By itself the cluster looks at the catalogue every few minutes, and soon for a version that it does not know.
    ensure!(desk.sh(start)?.text().contains("1.3.0"));
    eventually("the new version is there", Duration::from_secs(90), || Ok(map("version")? == "1.3.0"))?;
    eventually("the rollout is done", Duration::from_secs(60), || {
        let status = desk.sh("towline extension rollout status -g dev -n web-1-3 --query properties.state -o tsv")?;
        Ok(status.text().contains("Complete"))
    })?;
    ensure!(desk.sh(end)?.text().contains("web-1-3"));
    ensure!(map("version")? == "1.3.0", "what a rollout gave stays");
    desk.sh(delete)?;
    let left = admin.run(&["-n", "web", "get", "configmap", "web-greeting", "--ignore-not-found", "-o", "name"])?;
    ensure!(left.text().trim().is_empty(), "{}", left.text());
    pollers(&stack)?;
    admin.run(&["delete", "namespace", "web", "--ignore-not-found", "--wait=false"])?;
    drop(stack);
    // Or an uninstallation that another test looks at takes more away than its own connect has made.
    remove(&admin, &["extensionconfigs.towline.io"], &[])?;
    forget().map(drop)
}

/// The Azure SDK, unmodified, waits for what the agent does.
fn pollers(stack: &Stack) -> anyhow::Result<()> {
    let mut command = Command::new(python_with_clients()?);
    command.arg(root().join("tests/it/azure_extensions_agent.py"));
    for key in ["url", "ca", "tenant", "subscription", "clientId"] {
        command.arg(stack.text(key));
    }
    command.args(["dev", "dev"]);
    let secret = format!("{}\n", stack.text("clientSecret"));
    let ran = run_with_input(&mut command, Some(secret.as_bytes()), Duration::from_secs(300))?;
    let text = ran.ok().with_context(|| stack.agent.lock().unwrap().tail())?;
    ensure!(text.lines().filter(|line| line.starts_with("held: ")).count() == 4, "{text}");
    Ok(())
}

/// A block of the guide, for the cluster of this test; its agents are there.
fn typed(block: &str) -> String {
    let lines = block.lines().filter(|line| !line.starts_with("towline connect "));
    lines.map(|line| format!("{}\n", line.replace("-g edge", "-g dev").replace("-c shop", "-c dev"))).collect()
}

/// A gateway that serves the guide's catalogue, its owner signed in, and an agent that has helm.
fn stack(desk: &Desk) -> anyhow::Result<Stack> {
    let tool = root().join("tests/cluster/cluster");
    run(Command::new(&tool).args(["build", "helm"]), Duration::from_secs(900))?.ok()?;
    let work = desk.path("work");
    std::fs::create_dir_all(&work)?;
    let text = |key: &str, value: &Path| format!("{key}={:?}", value.display().to_string());
    let catalogue = text("api.catalogue_dir", &desk.path("catalogue"));
    let settings = [
        "roles=\"all\"".to_owned(),
        format!("extensions.catalogue_key_files=[{:?}]", desk.path("signing.key.pub").display().to_string()),
        text("extensions.helm", Path::new(cluster().get("CLUSTER_HELM"))),
        text("extensions.work_dir", &work),
    ];
    let mut dev_args = vec!["--set", catalogue.as_str()];
    for setting in &settings {
        dev_args.extend(["--agent-set", setting]);
    }
    let plan = Plan { dev_args: &dev_args, ..Plan::real("extension-guide") };
    let stack = Stack::start(&plan)?;
    let secret = desk.path("owner.key");
    std::fs::write(&secret, stack.text("clientSecret"))?;
    desk.sh(&format!(
        "towline login {} --ca {} --service-principal -u {} --secret-file {}",
        stack.text("url"),
        stack.text("ca"),
        stack.text("clientId"),
        secret.display()
    ))?;
    let body =
        json!({"location": "local", "identity": {"type": "SystemAssigned"}, "properties": {"distribution": "generic"}});
    stack.connect_as_resource(body, |path: &str, body: &Value| {
        let version = if path.contains("/providers/") { "2024-01-01" } else { "2024-03-01" };
        let file = desk.path("body.json");
        std::fs::write(&file, body.to_string())?;
        desk.sh(&format!("towline rest -m put -u '{path}?api-version={version}' -b @{}", file.display())).map(drop)
    })?;
    Ok(stack)
}
