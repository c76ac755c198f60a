//! Two gateways that share a PostgreSQL database. The agent has its tunnel at one, users reach the other one: each of
//! their requests goes over one hop between gateways.

use std::{
    net::TcpListener,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, ensure};
use tempfile::TempDir;
use toml::{Table, Value};

use super::{Also, Begun, Bench, CLUSTER, Kind, Running, Upstream, agent, has_all, program, text, token};
use crate::{
    audit::Audit,
    link::Seat,
    path::Missing,
    program::{Program, output},
    scene::Crowd,
};

const THIS: Kind = Kind::TowlineHop;
/// Where Debian has PostgreSQL, one folder a version.
const INSTALLED: &str = "/usr/lib/postgresql";
/// What PostgreSQL and a gateway log when they can be reached.
const ACCEPTS: &str = "ready to accept connections";
const SERVES: &str = "gateway serves";

/// A database of this path alone; it ends when dropped.
pub struct Database {
    _server: Program,
    _folder: TempDir,
}

/// Starts all of it.
pub async fn start(bench: &Bench, upstream: &Upstream) -> anyhow::Result<Running> {
    // It makes certificates, users and the configuration.
    let made = Begun::new(bench, THIS, Crowd::Few).await?;
    let url = made.url(CLUSTER)?;
    let agent_config = PathBuf::from(text(made.cluster(CLUSTER)?, "agent_config")?);
    made.gateway.stop().await;
    let (state, ready) = (made.state, made.ready);
    let database = Database::start(bench, &state).await?;

    // Where the agent dials, and where users come in.
    let (inside, entrance) = (bench.door(THIS), bench.door_beside(THIS, 1));
    let (holder, _) = gateway(bench, &state, "holder", &inside).await?;
    let (first, admin) = gateway(bench, &state, "entrance", &entrance).await?;
    let agent = agent(bench, "h2", &one_tunnel(&agent_config, &inside)?, upstream, "agent-hop")?;
    let token = Some(token(bench, &state, CLUSTER).await?);
    ensure!(url.contains(&inside), "{url} is not at {inside}");
    let also = Also { audit: Some(Audit::new(&admin)), database: Some(database), ..Also::default() };
    let (ca, url) = (text(&ready, "ca")?.into(), url.replace(&inside, &entrance));
    Ok(Running { url, ca, name: None, token, hops: vec![first, holder, agent], also, lacks: has_all })
}

/// A gateway of this name and where operators reach it.
pub(super) async fn gateway(
    bench: &Bench,
    state: &Path,
    name: &str,
    public: &str,
) -> anyhow::Result<(Program, String)> {
    let made = state.join("gateway.toml");
    let made = std::fs::read_to_string(&made).with_context(|| made.display().to_string())?;
    let admin = free()?;
    let config = config(made.parse()?, name, [public, &admin, &free()?])?;
    let file = config_file(state, name);
    std::fs::write(&file, config.to_string())?;
    let mut command = bench.link.command(Seat::Outer, &program(bench, "towline-gateway")?);
    command.arg("--config").arg(file);
    let mut gateway = Program::start(name, command, &state.join(format!("{name}.log")))?;
    gateway.says(SERVES).await?;
    Ok((gateway, format!("http://{admin}")))
}

/// The configuration of the gateway of this name.
pub(super) fn config_file(state: &Path, name: &str) -> PathBuf {
    state.join(format!("{name}.toml"))
}

/// What `towline dev` runs in its own process on a file is one of several gateways here.
fn config(mut config: Table, name: &str, [public, admin, peers]: [&str; 3]) -> anyhow::Result<Table> {
    let api = config.get_mut("api").and_then(Value::as_table_mut).context("no section api")?;
    api.remove("store_file");
    api.insert("postgres_url_file".to_owned(), "postgres.url".into());
    let mut section = |name: &str, entries: &[(&str, &str)]| {
        let entries = entries.iter().map(|(key, value)| ((*key).to_owned(), Value::from(*value)));
        config.insert(name.to_owned(), Table::from_iter(entries).into());
    };
    section("listen", &[("public", public), ("admin", admin)]);
    section("audit", &[("file", &format!("audit-{name}.jsonl"))]);
    section("issuer", &[("state_dir", "issuer"), ("token_lifetime", "24h")]);
    section("replicas", &[("name", name), ("listen", peers)]);
    Ok(config)
}

/// An agent's settings for a tunnel to the gateway at this address alone, also where there are several.
pub(super) fn one_tunnel(config: &Path, door: &str) -> anyhow::Result<PathBuf> {
    let text = std::fs::read_to_string(config).with_context(|| config.display().to_string())?;
    let mut settings: Table = text.parse()?;
    let gateway = settings.get_mut("gateway").and_then(Value::as_table_mut).context("no section gateway")?;
    gateway.insert("url".to_owned(), format!("https://{door}").into());
    gateway.insert("replicas".to_owned(), 1.into());
    let file = config.with_file_name("one-tunnel.toml");
    std::fs::write(&file, settings.to_string())?;
    Ok(file)
}

/// An address that was free a moment ago, for programs that share a machine. The kernel gives outgoing connections
/// ports from 32768 on, so one of that range could be taken before its program listens. This one is below that range,
/// and below the ports that `towline dev` picks from.
fn free() -> anyhow::Result<String> {
    const FIRST: u32 = 11_000;
    const COUNT: u32 = 7_000;
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    // Each port is given once in a process, and other processes begin elsewhere.
    let begin = std::process::id().wrapping_mul(2_741);
    let mut ports = (0..COUNT).map(|_| begin.wrapping_add(NUMBER.fetch_add(1, Ordering::Relaxed)) % COUNT + FIRST);
    let free = ports.find_map(|port| {
        let address = format!("127.0.0.1:{port}");
        TcpListener::bind(&address).ok().map(|_| address)
    });
    free.context("no free port at 127.0.0.1")
}

impl Database {
    /// Starts one, and writes how gateways of this state reach it.
    pub(super) async fn start(bench: &Bench, state: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let (data, password) = (folder.path().join("data"), folder.path().join("password"));
        let secret: String = std::iter::repeat_with(fastrand::alphanumeric).take(32).collect();
        std::fs::write(&password, &secret)?;
        if rustix::process::geteuid().is_root() {
            // The server refuses to run as root.
            let mut given = Command::new("chown");
            given.args(["-R", "postgres"]).arg(folder.path());
            output(given, b"").await?;
        }
        let mut made = postgres(bench, "initdb")?;
        made.args(["--username=postgres", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]);
        made.arg("--pwfile").arg(&password).arg("-D").arg(&data);
        output(made, b"").await?;
        let address = free()?;
        let (host, port) = address.rsplit_once(':').context("a port")?;
        let mut command = postgres(bench, "postgres")?;
        command.arg("-D").arg(&data).args(["-p", port, "-c", &format!("listen_addresses={host}")]);
        command.args(["-c", "fsync=off", "-k"]).arg(folder.path());
        let mut server = Program::start("postgres", command, &bench.file("postgres.log"))?;
        server.says(ACCEPTS).await?;
        let file = state.join("postgres.url");
        std::fs::write(&file, format!("postgres://postgres:{secret}@{address}/postgres"))?;
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self { _server: server, _folder: folder })
    }
}

/// A program of the newest PostgreSQL, beside the gateways, as the user who may run it.
fn postgres(bench: &Bench, name: &str) -> anyhow::Result<Command> {
    let versions = std::fs::read_dir(INSTALLED).into_iter().flatten().flatten();
    let found = versions.map(|entry| entry.path().join("bin").join(name)).filter(|path| path.exists()).max();
    let path = found.ok_or_else(|| Missing("PostgreSQL is not installed: apt-get install postgresql".to_owned()))?;
    if !rustix::process::geteuid().is_root() {
        return Ok(bench.link.command(Seat::Outer, &path));
    }
    let mut command = bench.link.command(Seat::Outer, Path::new("setpriv"));
    // Another user's process is not ended with its parent unless it says so again.
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig=KILL"]).arg(path);
    command.current_dir("/");
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_two_share_a_database_and_nothing_that_is_one_process_s() {
        let made: Table = "[api]\nstore_file = \"towline.db\"\n[listen]\npublic = \"x\"\n".parse().unwrap();
        let one = config(made.clone(), "a", ["p:1", "a:1", "r:1"]).unwrap();
        assert_eq!(one["api"].to_string().trim(), r#"{ postgres_url_file = "postgres.url" }"#);
        assert_eq!((one["listen"]["public"].as_str(), one["replicas"]["listen"].as_str()), (Some("p:1"), Some("r:1")));
        let other = config(made, "b", ["p:2", "a:2", "r:2"]).unwrap();
        for section in ["listen", "audit", "replicas"] {
            assert_ne!(one[section], other[section], "{section}");
        }
        assert!(config(Table::new(), "a", ["p", "a", "r"]).is_err());
    }

    // An outgoing connection may take a port of the ephemeral range before the program listens at it.
    #[test]
    fn free_ports_differ_and_are_below_those_of_outgoing_connections() {
        let ports: Vec<_> = (0..3).map(|_| free().unwrap().parse::<std::net::SocketAddr>().unwrap().port()).collect();
        assert!(ports.iter().all(|port| (11_000..18_000).contains(port)), "{ports:?}");
        assert!(ports[0] != ports[1] && ports[1] != ports[2] && ports[0] != ports[2], "{ports:?}");
    }
}
