//! `towline proxy` in front of real pods, and `towline token` as kubectl's credential plugin. What
//! a proxy does with tokens and hostile neighbours is tested in `cli/tests`.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};
use libtest_mimic::Trial;
use tests::{
    case::{Needs, case, full},
    cluster::cluster,
    kubectl::{Kubectl, Protocol, pod},
    programs::{Program, binary, scratch},
    stack::{CARRIERS, Stack, shared},
};

use crate::{kubectl::namespace, sessions};

pub fn tests() -> Vec<Trial> {
    let mut trials = Vec::new();
    for (turn, protocol) in Protocol::ALL.into_iter().enumerate() {
        for (place, carrier) in CARRIERS.into_iter().enumerate() {
            if full() || turn == place {
                let name = format!("local_proxy::exec_attach_logs_cp_port_forward::{protocol:?}::{carrier}");
                trials.push(case(name, Needs::Pods, move || all_sessions(carrier, protocol)));
            }
        }
    }
    trials.push(case("local_proxy::several_side_by_side", Needs::Cluster, side_by_side));
    trials.push(case("local_proxy::a_service_account_behind_it", Needs::Cluster, service_account));
    trials.push(case("local_proxy::towline_token_is_a_plugin_for_old_and_new_kubectl", Needs::Cluster, plugin));
    trials
}

/// A running `towline proxy` and the kubeconfig that it wrote.
struct Proxy {
    program: Program,
    port: u16,
    kubeconfig: PathBuf,
}

impl Proxy {
    fn start(stack: &Stack, kubeconfig: &Path, more: &[&str]) -> anyhow::Result<Self> {
        let mut command = Command::new(binary("towline"));
        command
            .args(["proxy", "--cluster", "dev", "--state"])
            .arg(stack.state())
            .arg("--file")
            .arg(kubeconfig)
            .args(more)
            .stdout(Stdio::piped());
        let log = scratch("local-proxy").join("proxy.log");
        let mut program = Program::start("towline proxy", command, &log)?;
        let line = program.first_line(Duration::from_secs(20))?;
        let port = line.strip_prefix("Proxy is listening on port ").with_context(|| line.clone())?.trim().parse()?;
        Ok(Self { program, port, kubeconfig: kubeconfig.to_owned() })
    }

    fn kubectl(&self) -> Kubectl {
        Kubectl::new(&self.kubeconfig)
    }

    fn end(mut self, signal: &str) -> anyhow::Result<Option<i32>> {
        self.program.signal(signal)?;
        self.program.wait(Duration::from_secs(40))
    }
}

fn all_sessions(carrier: &'static str, protocol: Protocol) -> anyhow::Result<()> {
    let stack = shared(carrier);
    let name = namespace(&format!("local-proxy-{protocol:?}").to_lowercase(), carrier)?;
    let proxy = Proxy::start(stack, &scratch("proxied").join("a.kubeconfig"), &["--user", "admin"])?;
    let kubectl = proxy.kubectl().protocol(protocol).namespace(&name).within(Duration::from_secs(180));
    ensure!(kubectl.ok(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"])?.contains("127.0.0.1"));
    kubectl.apply(&pod("p", sessions::SERVER))?;
    kubectl.ok(&["wait", "--for=condition=Ready", "pod/p", "--timeout=180s"])?;
    sessions::exec_exit_codes_and_stdin(&kubectl).context("exec")?;
    sessions::exec_with_a_terminal(&kubectl).context("exec with a terminal")?;
    sessions::exec_output_is_whole(&kubectl, sessions::long_outputs(), sessions::LINES).context("whole output")?;
    sessions::attach(&kubectl).context("attach")?;
    sessions::logs_follow(&kubectl).context("logs")?;
    sessions::copy_there_and_back(&kubectl, 40_000_000).context("cp")?;
    sessions::port_forward(&kubectl).context("port-forward")?;
    kubectl.ok(&["delete", "pod", "p", "--wait=false"])?;
    ensure!(proxy.end("TERM")? == Some(0));
    Ok(())
}

/// Three at once: two users of one cluster, and another gateway; two of them in one kubeconfig. One that ends takes
/// none of the others with it.
fn side_by_side() -> anyhow::Result<()> {
    let (file, other) = (scratch("proxies").join("both.kubeconfig"), scratch("proxies").join("other.kubeconfig"));
    let admin = Proxy::start(shared("quic"), &file, &["--user", "admin", "--kube-context", "one"])?;
    let viewer = Proxy::start(shared("quic"), &file, &["--user", "viewer", "--kube-context", "two"])?;
    let elsewhere = Proxy::start(shared("h2"), &other, &["--user", "admin"])?;
    let mut ports = vec![admin.port, viewer.port, elsewhere.port];
    ports.dedup();
    ensure!(ports.len() == 3, "{ports:?}");
    let who = |kubectl: &Kubectl, context: &[&str]| {
        let mut args = vec!["auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"];
        args.extend(context);
        kubectl.ok(&args)
    };
    ensure!(who(&admin.kubectl(), &["--context", "one"])? == "admin");
    ensure!(who(&admin.kubectl(), &["--context", "two"])? == "viewer");
    ensure!(who(&elsewhere.kubectl(), &[])? == "admin");
    let kubectl = admin.kubectl();
    // Ctrl+C, as the Arc one ends.
    ensure!(admin.end("INT")? == Some(130));
    kubectl.run(&["--context", "one", "get", "namespaces"])?.refused()?;
    ensure!(who(&kubectl, &["--context", "two"])? == "viewer");
    ensure!(who(&elsewhere.kubectl(), &[])? == "admin");
    // A port that is taken is an error at once, with what to do.
    let port = viewer.port.to_string();
    let taken =
        shared("quic").towline(&["proxy", "--cluster", "dev", "--user", "admin", "--file", "-", "--port", &port])?;
    let error = taken.refused()?;
    ensure!(error.contains(&port) && error.contains("--port"), "{error}");
    Ok(())
}

fn service_account() -> anyhow::Result<()> {
    let stack = shared("h2");
    let admin = cluster().admin();
    admin.run(&["create", "serviceaccount", "behind-a-proxy"])?;
    let token = admin.ok(&["create", "token", "behind-a-proxy"])?.trim().to_owned();
    tests::stack::note_secret(&token)?;
    let dir = scratch("proxied-account");
    let file = dir.join("token.key");
    std::fs::write(&file, &token)?;
    let proxy = Proxy::start(stack, &dir.join("a.kubeconfig"), &["--token-file", &file.display().to_string()])?;
    let who = proxy.kubectl().ok(&["auth", "whoami", "-o", "json"])?;
    ensure!(who.contains("system:serviceaccount:default:behind-a-proxy"), "{who}");
    let error = proxy.kubectl().run(&["get", "secrets", "-A"])?.refused()?;
    ensure!(error.contains("system:serviceaccount:default:behind-a-proxy"), "{error}");
    Ok(())
}

/// kubectl 1.20 knows the plugin's first stable form as beta only; the new one knows both.
fn plugin() -> anyhow::Result<()> {
    let stack = shared("websocket");
    let dir = scratch("plugin");
    let kubeconfig = |version: &str| -> anyhow::Result<Kubectl> {
        let path = dir.join(format!("{version}.kubeconfig"));
        let mut args = vec!["kubeconfig", "--user", "admin", "--cluster", "dev"];
        let file = path.display().to_string();
        args.extend(["--file", &file]);
        if version != "default" {
            args.extend(["--exec-api-version", version]);
        }
        stack.towline(&args)?.ok()?;
        let text = std::fs::read_to_string(&path)?;
        ensure!(text.contains("--exec-credential") && !text.contains("eyJ"), "no plugin, or a token in the file");
        Ok(Kubectl::new(&path))
    };
    for version in ["default", "v1beta1", "v1"] {
        let kubectl = kubeconfig(version)?;
        ensure!(kubectl.ok(&["get", "namespaces"])?.contains("kube-system"), "{version}, new");
        if version != "v1" {
            ensure!(kubectl.old().ok(&["get", "namespaces"])?.contains("kube-system"), "{version}, old");
        }
    }
    Ok(())
}
