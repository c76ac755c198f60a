//! A whole Towline: `towline dev` (gateway, issuer, throw-away CA) and an agent in front of an apiserver.

mod resource;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

use anyhow::Context;
use serde_json::Value;

pub use self::resource::{Resource, enrolled};
use crate::{
    apiserver::Apiserver,
    cluster::cluster,
    kubectl::Kubectl,
    network::Namespace,
    programs::{Program, binary, eventually, keep, run, scratch, scratch_root},
    raw::{Answer, Raw},
};

/// The carriers that can be pinned.
pub const CARRIERS: [&str; 3] = ["quic", "h2", "websocket"];

/// What a stack is made of.
pub struct Plan<'a> {
    /// Name of its folder.
    pub name: &'a str,
    /// The carrier to pin, or none for the agent's own choice.
    pub carrier: Option<&'a str>,
    /// The kubeconfig with which the agent reaches the apiserver.
    pub apiserver: PathBuf,
    /// Where the gateway listens.
    pub listen: &'a str,
    /// More arguments of `towline dev`.
    pub dev_args: &'a [&'a str],
    /// Lines appended to the agent's configuration file.
    pub agent_config: &'a str,
    /// The namespace in which the agent runs.
    pub namespace: Option<&'a Namespace>,
    /// Folder of the programs of another release that the gateway, and the agent, are of; none: those of this build.
    pub gateway_of: Option<&'a Path>,
    /// The same of the agent.
    pub agent_of: Option<&'a Path>,
}

impl Plan<'_> {
    /// In front of the real cluster.
    pub fn real(name: &str) -> Plan<'_> {
        Plan {
            name,
            carrier: None,
            apiserver: cluster().admin_kubeconfig().to_owned(),
            listen: "127.0.0.1:0",
            dev_args: &[],
            agent_config: "",
            namespace: None,
            gateway_of: None,
            agent_of: None,
        }
    }

    /// In front of a scripted apiserver.
    pub fn scripted<'a>(name: &'a str, apiserver: &Apiserver) -> Plan<'a> {
        Plan { apiserver: apiserver.kubeconfig.clone(), ..Plan::real_at(name) }
    }

    /// In front of an apiserver that is named beside.
    pub fn real_at(name: &str) -> Plan<'_> {
        Plan {
            name,
            carrier: None,
            apiserver: PathBuf::new(),
            listen: "127.0.0.1:0",
            dev_args: &[],
            agent_config: "",
            namespace: None,
            gateway_of: None,
            agent_of: None,
        }
    }
}

/// A running stack.
pub struct Stack {
    /// The gateway's process.
    pub gateway: Mutex<Program>,
    /// The agent's process.
    pub agent: Mutex<Program>,
    /// All files of this stack, logs included.
    pub dir: PathBuf,
    /// What `towline dev --json` printed.
    pub info: Value,
    kubeconfigs: Mutex<HashMap<String, PathBuf>>,
    agent_start: AgentStart,
    dev_args: Vec<String>,
    gateway_of: Option<PathBuf>,
}

/// How an agent is started.
struct AgentStart {
    program: PathBuf,
    log: PathBuf,
    args: Vec<String>,
    namespace: Option<String>,
}

/// The stack in front of the real cluster that tests share, one for each carrier.
pub fn shared(carrier: &str) -> &'static Stack {
    static STACKS: [OnceLock<Stack>; 3] = [const { OnceLock::new() }; 3];
    let index = CARRIERS.iter().position(|name| *name == carrier).expect("a known carrier");
    STACKS[index].get_or_init(|| {
        grant_in_cluster().unwrap_or_else(|error| panic!("roles in the cluster: {error:?}"));
        Stack::start(&Plan { carrier: Some(carrier), ..Plan::real(carrier) })
            .unwrap_or_else(|error| panic!("stack on {carrier}: {error:?}"))
    })
}

/// Gives the users of `towline dev` their roles in the real cluster: admin everything, viewer view in one namespace.
pub fn grant_in_cluster() -> anyhow::Result<()> {
    // Of two that create the same at once kubectl tells one that it is there: a failure now and then on a fresh
    // cluster.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    cluster().admin().apply(
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: view-only}\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRoleBinding\nmetadata: {name: towline-test-admin}\n\
         roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}\n\
         subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: admin}]\n---\n\
         apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: towline-test-viewer, namespace: view-only}\n\
         roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}\n\
         subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: viewer}]\n",
    )?;
    Ok(())
}

impl Stack {
    /// Starts gateway and agent, and waits until a request gets through.
    pub fn start(plan: &Plan<'_>) -> anyhow::Result<Self> {
        let stack = Self::start_without_waiting(plan)?;
        stack.await_connected(Duration::from_secs(20))?;
        Ok(stack)
    }

    /// Starts them before a scripted apiserver that answers everything alike.
    pub fn scripted(name: &str) -> anyhow::Result<(Apiserver, Self)> {
        let apiserver = Apiserver::plain(&scratch(&format!("{name}-apiserver")))?;
        let stack = Self::start(&Plan::scripted(name, &apiserver))?;
        Ok((apiserver, stack))
    }

    /// Starts gateway and agent.
    pub fn start_without_waiting(plan: &Plan<'_>) -> anyhow::Result<Self> {
        let dir = scratch(plan.name);
        let (gateway, info) = start_gateway(&dir, plan.listen, plan.dev_args, plan.gateway_of)?;
        note_secret(info["clientSecret"].as_str().unwrap_or_default())?;
        let config =
            PathBuf::from(info["clusters"][0]["agent_config"].as_str().context("no agent_config in the JSON line")?);
        let mut text = std::fs::read_to_string(&config)? + plan.agent_config;
        if !text.contains("[admin]") {
            // So that its metrics can be read before it ends.
            text += "\n[admin]\nlisten = \"127.0.0.1:0\"\n";
        }
        std::fs::write(&config, text)?;
        let mut args = vec![
            "run".to_owned(),
            "--config".into(),
            config.display().to_string(),
            "--kubeconfig".into(),
            plan.apiserver.display().to_string(),
        ];
        if let Some(carrier) = plan.carrier {
            args.extend(["--carrier".to_owned(), carrier.to_owned()]);
        }
        let agent_start = AgentStart {
            program: of_release(plan.agent_of, "towline-agent"),
            log: dir.join("agent.log"),
            args,
            namespace: plan.namespace.map(|namespace| namespace.name.clone()),
        };
        let agent = start_agent(&agent_start)?;
        stacks().push((dir.clone(), info["admin"].as_str().unwrap_or_default().to_owned()));
        Ok(Self {
            gateway: Mutex::new(gateway),
            agent: Mutex::new(agent),
            dir,
            info,
            kubeconfigs: Mutex::default(),
            agent_start,
            dev_args: plan.dev_args.iter().map(|arg| (*arg).to_owned()).collect(),
            gateway_of: plan.gateway_of.map(Path::to_owned),
        })
    }

    /// Starts another agent of the same cluster.
    pub fn another_agent(&self) -> anyhow::Result<Program> {
        start_agent(&self.agent_start)
    }

    /// Ends the gateway as `kill -9` does.
    pub fn kill_gateway(&self) {
        self.gateway.lock().unwrap().kill();
    }

    /// Starts the gateway again on the same address and state.
    pub fn restart_gateway(&self) -> anyhow::Result<()> {
        let mut gateway = self.gateway.lock().unwrap();
        keep_metrics(&self.dir, &self.text("admin"));
        gateway.kill();
        let args: Vec<&str> = self.dev_args.iter().map(String::as_str).collect();
        let (program, _) = start_gateway(&self.dir, &self.authority(), &args, self.gateway_of.as_deref())?;
        *gateway = program;
        Ok(())
    }

    /// Waits until a request of admin gets through to the apiserver.
    pub fn await_connected(&self, within: Duration) -> anyhow::Result<Duration> {
        eventually("a request gets through the tunnel", within, || {
            Ok(self.get("admin", "/version").is_ok_and(|answer| answer.status == 200))
        })
        .with_context(|| {
            format!(
                "agent's log:\n{}\ngateway's log:\n{}",
                self.agent.lock().unwrap().tail(),
                self.gateway.lock().unwrap().tail()
            )
        })
    }

    /// A text of the JSON line.
    pub fn text(&self, key: &str) -> String {
        self.info[key].as_str().unwrap_or_default().to_owned()
    }

    /// `host:port` of the gateway.
    pub fn authority(&self) -> String {
        self.text("url").trim_start_matches("https://").trim_end_matches('/').to_owned()
    }

    /// The gateway's CA file.
    pub fn ca(&self) -> PathBuf {
        self.text("ca").into()
    }

    /// The cluster's key as in its path.
    pub fn key(&self) -> String {
        self.info["clusters"][0]["key"].as_str().unwrap_or_default().to_owned()
    }

    /// The state folder of `towline dev`.
    pub fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// Runs `towline` on this stack's state: `towline <args> --state DIR`.
    pub fn towline(&self, args: &[&str]) -> anyhow::Result<crate::programs::Output> {
        let mut command = Command::new(binary("towline"));
        let output = run(command.args(args).arg("--state").arg(self.state()), Duration::from_secs(30))?;
        keep(&self.dir.join("towline.stderr"), &output.err);
        Ok(output)
    }

    /// A fresh token of a user for this cluster. It is noted, so that the sweep for secrets knows it.
    pub fn token(&self, user: &str) -> anyhow::Result<String> {
        self.token_for(user, "dev")
    }

    /// A fresh token of a user for a cluster by name or id.
    pub fn token_for(&self, user: &str, cluster: &str) -> anyhow::Result<String> {
        let token = self.towline(&["token", "--user", user, "--cluster", cluster])?.ok()?.trim().to_owned();
        note_secret(&token)?;
        Ok(token)
    }

    /// A fresh token of a user for any audience that the issuer lets them ask for.
    pub fn token_for_audience(&self, user: &str, audience: &str) -> anyhow::Result<String> {
        let token = self.towline(&["token", "--user", user, "--cluster", "dev", "--audience", audience])?.ok()?;
        let token = token.trim().to_owned();
        note_secret(&token)?;
        Ok(token)
    }

    /// A kubeconfig of a user through the tunnel.
    pub fn kubeconfig(&self, user: &str) -> anyhow::Result<PathBuf> {
        let mut known = self.kubeconfigs.lock().unwrap();
        if let Some(path) = known.get(user) {
            return Ok(path.clone());
        }
        let path = self.dir.join(format!("{user}.kubeconfig"));
        self.towline(&["kubeconfig", "--user", user, "--cluster", "dev", "--file", &path.display().to_string()])?
            .ok()?;
        known.insert(user.to_owned(), path.clone());
        Ok(path)
    }

    /// The same with the cluster addressed in another form than by its TLS server name, anew each time.
    pub fn kubeconfig_by(&self, form: &str, user: &str) -> anyhow::Result<PathBuf> {
        let path = self.dir.join(format!("{user}-by-{form}.kubeconfig"));
        let file = path.display().to_string();
        self.towline(&["kubeconfig", "--user", user, "--cluster", "dev", "--file", &file, "--address", form])?.ok()?;
        Ok(path)
    }

    /// kubectl of a user through the tunnel.
    pub fn kubectl(&self, user: &str) -> anyhow::Result<Kubectl> {
        Ok(Kubectl::new(&self.kubeconfig(user)?))
    }

    /// A raw connection to the gateway.
    pub fn raw(&self) -> anyhow::Result<Raw> {
        Raw::connect(&self.authority(), &self.ca(), &[b"http/1.1"])
    }

    /// GET as a user with a fresh connection.
    pub fn get(&self, user: &str, path: &str) -> anyhow::Result<Answer> {
        self.get_with(&self.token(user)?, path)
    }

    /// GET with a token.
    pub fn get_with(&self, token: &str, path: &str) -> anyhow::Result<Answer> {
        let mut raw = self.raw()?;
        raw.send(
            format!(
                "GET /{}{path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {token}\r\n\r\n",
                self.key(),
                self.authority()
            )
            .as_bytes(),
        )?;
        raw.answer()
    }

    /// GET at the gateway's admin listener, plain HTTP.
    pub fn admin_get(&self, path: &str) -> anyhow::Result<String> {
        admin_call(&self.text("admin"), "GET", path)
    }

    /// Any call at the gateway's admin listener.
    pub fn admin(&self, method: &str, path: &str) -> anyhow::Result<String> {
        admin_call(&self.text("admin"), method, path)
    }

    /// The agent's metrics, all of them.
    pub fn agent_metrics(&self) -> anyhow::Result<String> {
        let addresses = agent_admins(&self.dir);
        admin_call(addresses.last().context("the agent's log names no admin listener")?, "GET", "/metrics")
    }

    /// Facts of the tunnels at the gateway.
    pub fn tunnels(&self) -> anyhow::Result<Vec<Value>> {
        let answer: Value = serde_json::from_str(&self.admin_get("/tunnels")?)?;
        answer["tunnels"].as_array().cloned().context("no list of tunnels")
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        keep_metrics(&self.dir, &self.text("admin"));
        stacks().retain(|(dir, _)| *dir != self.dir);
    }
}

/// Folder and admin URL of every stack that was started and not dropped.
fn stacks() -> std::sync::MutexGuard<'static, Vec<(PathBuf, String)>> {
    static STACKS: Mutex<Vec<(PathBuf, String)>> = Mutex::new(Vec::new());
    STACKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps the metrics of the stacks that still run: those that tests share live in statics, which are never dropped.
pub fn keep_all_metrics() {
    stacks().iter().for_each(|(dir, admin)| keep_metrics(dir, admin));
}

/// Keeps what gateway and agents of a stack count, for the sweep for secrets. Those that a test has ended have none.
fn keep_metrics(dir: &Path, gateway: &str) {
    for address in agent_admins(dir).into_iter().chain([gateway.to_owned()]) {
        if let Ok(text) = admin_call(&address, "GET", "/metrics") {
            keep(&dir.join("metrics"), &text);
        }
    }
}

/// Addresses of the admin listeners of a stack's agents, in the order of their starts.
fn agent_admins(dir: &Path) -> Vec<String> {
    let log = std::fs::read_to_string(dir.join("agent.log")).unwrap_or_default();
    log.lines()
        .filter_map(|line| line.split_once("agent admin listener address="))
        .filter_map(|(_, rest)| rest.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

/// Asks an admin listener, of which the URL or the address alone is known.
pub fn admin_call(listener: &str, method: &str, path: &str) -> anyhow::Result<String> {
    use std::io::{Read, Write};
    let address = listener.trim_start_matches("http://").trim_end_matches('/');
    let mut socket = std::net::TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(socket, "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")?;
    let mut text = String::new();
    socket.read_to_string(&mut text)?;
    let (_, body) = text.split_once("\r\n\r\n").context("no answer from the admin listener")?;
    Ok(body.to_owned())
}

/// A program of another release, or of this build.
fn of_release(folder: Option<&Path>, name: &str) -> PathBuf {
    folder.map_or_else(|| binary(name), |folder| folder.join(name))
}

fn start_gateway(dir: &Path, listen: &str, more: &[&str], folder: Option<&Path>) -> anyhow::Result<(Program, Value)> {
    let state = dir.join("state");
    let mut command = Command::new(of_release(folder, "towline"));
    command
        .arg("dev")
        .arg("--state")
        .arg(&state)
        .args(["--json", "--listen", listen])
        .args(more)
        .stdout(Stdio::piped());
    let mut program = Program::start("towline dev", command, &dir.join("gateway.log"))?;
    let line = program.first_line(Duration::from_secs(30))?;
    let info: Value = serde_json::from_str(&line).context("what towline dev printed is no JSON")?;
    note_secret(info["clientSecret"].as_str().context("no clientSecret in the JSON line")?)?;
    Ok((program, info))
}

fn start_agent(AgentStart { program, log, args, namespace }: &AgentStart) -> anyhow::Result<Program> {
    let mut command = match namespace {
        None => Command::new(program),
        Some(name) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", name]).arg(program);
            command
        }
    };
    command.args(args).stdout(Stdio::null());
    Program::start("towline-agent", command, log)
}

/// Notes a secret for the sweep that reads every log at the end.
pub fn note_secret(secret: &str) -> anyhow::Result<()> {
    use std::io::Write;
    let path = scratch_root().join("secrets");
    let mut file = std::fs::File::options().create(true).append(true).open(path)?;
    writeln!(file, "{secret}")?;
    Ok(())
}
