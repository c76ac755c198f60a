//! Other clients than kubectl: helm, the Python client.

use std::{path::PathBuf, process::Command, sync::Mutex, time::Duration};

use anyhow::ensure;
use libtest_mimic::Trial;
use tests::{
    case::Needs,
    cluster::cluster,
    kubectl::pod,
    programs::{root, run, scratch},
    stack::shared,
};

use crate::kubectl::{namespace, spread};

pub fn tests() -> Vec<Trial> {
    spread(
        &[
            ("clients::helm_install_upgrade_uninstall", Needs::Cluster, helm),
            ("clients::python_list_watch_exec_port_forward", Needs::Pods, python),
            ("clients::kube_rs_create_list_watch", Needs::Cluster, kube_rs),
        ],
        1,
    )
}

fn helm(carrier: &'static str) -> anyhow::Result<()> {
    let name = namespace("helm", carrier)?;
    let chart = scratch("chart");
    std::fs::create_dir_all(chart.join("templates"))?;
    std::fs::write(chart.join("Chart.yaml"), "apiVersion: v2\nname: sample\nversion: 0.1.0\n")?;
    std::fs::write(chart.join("values.yaml"), "word: one\n")?;
    std::fs::write(
        chart.join("templates/map.yaml"),
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: \"{{ .Release.Name }}\"}\ndata: {word: \"{{ .Values.word }}\"}\n",
    )?;
    let kubeconfig = shared(carrier).kubeconfig("admin")?;
    let helm = |args: &[&str]| {
        let mut command = Command::new(cluster().get("CLUSTER_HELM"));
        command.env("KUBECONFIG", &kubeconfig).env("HOME", &chart).args(["--namespace", &name]).args(args);
        run(&mut command, Duration::from_secs(90))?.ok()
    };
    let path = chart.display().to_string();
    helm(&["install", "r", &path, "--wait"])?;
    helm(&["upgrade", "r", &path, "--set", "word=two", "--wait"])?;
    let kubectl = shared(carrier).kubectl("admin")?.namespace(&name);
    ensure!(kubectl.ok(&["get", "configmap", "r", "-o", "jsonpath={.data.word}"])? == "two");
    helm(&["uninstall", "r", "--wait"])?;
    kubectl.run(&["get", "configmap", "r"])?.refused()?;
    Ok(())
}

/// A Python with the clients of `requirements.txt`: `TOWLINE_PYTHON`, else an environment made below the target folder.
pub fn python_with_clients() -> anyhow::Result<PathBuf> {
    static ONE_MAKES_IT: Mutex<()> = Mutex::new(());
    let _one = ONE_MAKES_IT.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(python) = std::env::var_os("TOWLINE_PYTHON") {
        return Ok(python.into());
    }
    let dir = root().join("target/python");
    let python = dir.join("bin/python");
    if !run(
        Command::new(&python).args([
            "-c",
            "import kubernetes, msal, azure.cli.core, azure.mgmt.kubernetesconfiguration, azure.mgmt.kubernetesconfiguration.extensiontypes, azure.mgmt.kubernetesconfiguration.fluxconfigurations",
        ]),
        Duration::from_secs(60),
    )
    .is_ok_and(|output| output.code == Some(0))
    {
        run(Command::new("python3").args(["-m", "venv"]).arg(&dir), Duration::from_secs(120))?.ok()?;
        let mut install = Command::new(&python);
        install.args(["-m", "pip", "install", "--quiet", "-r"]).arg(root().join("tests/requirements.txt"));
        run(&mut install, Duration::from_secs(900))?.ok()?;
    }
    Ok(python)
}

fn python(carrier: &'static str) -> anyhow::Result<()> {
    let name = namespace("python", carrier)?;
    let stack = shared(carrier);
    let kubectl = stack.kubectl("admin")?.namespace(&name);
    kubectl.apply(&pod("p", crate::sessions::SERVER))?;
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/p", "--timeout=180s"])?;
    let listens = "until wget -q -O /dev/null http://127.0.0.1:8080/0; do sleep 0.1; done";
    kubectl.ok(&["exec", "p", "--", "sh", "-c", listens])?;
    let mut command = Command::new(python_with_clients()?);
    command.arg(root().join("tests/it/client.py")).arg(&name).env("KUBECONFIG", stack.kubeconfig("admin")?);
    let text = run(&mut command, Duration::from_secs(120))?.ok()?;
    ensure!(text.trim_end().ends_with("all seen"), "{text}");
    Ok(())
}

/// A program written with kube-rs, in this process.
fn kube_rs(carrier: &'static str) -> anyhow::Result<()> {
    use futures_util::{StreamExt, TryStreamExt};
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::{
        Api, Client, Config,
        api::{ListParams, PostParams, WatchEvent, WatchParams},
        config::{KubeConfigOptions, Kubeconfig},
    };
    let name = namespace("kube-rs", carrier)?;
    let path = shared(carrier).kubeconfig("admin")?;
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let config =
            Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &KubeConfigOptions::default()).await?;
        let maps: Api<ConfigMap> = Api::namespaced(Client::try_from(config)?, &name);
        let map: ConfigMap = serde_json::from_value(serde_json::json!({"metadata": {"name": "made-by-kube-rs"}}))?;
        maps.create(&PostParams::default(), &map).await?;
        let list = maps.list(&ListParams::default()).await?;
        ensure!(list.items.iter().any(|map| map.metadata.name.as_deref() == Some("made-by-kube-rs")));
        let version = list.metadata.resource_version.unwrap_or_default();
        let mut events = maps.watch(&WatchParams::default(), &version).await?.boxed();
        let next: ConfigMap = serde_json::from_value(serde_json::json!({"metadata": {"name": "seen-by-kube-rs"}}))?;
        maps.create(&PostParams::default(), &next).await?;
        let event = tokio::time::timeout(Duration::from_secs(10), events.try_next()).await??;
        let Some(WatchEvent::Added(seen)) = event else { anyhow::bail!("no event of the new object") };
        ensure!(seen.metadata.name.as_deref() == Some("seen-by-kube-rs"));
        Ok(())
    })
}
