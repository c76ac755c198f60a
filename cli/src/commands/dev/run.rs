//! `towline dev`: makes or opens a state (`state`), writes the files of its gateway and agents, and runs that gateway
//! until it is told to stop. What is typed becomes part of the state, so that the next start needs no options.

use std::{
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use daemon::{Shutdown, TaskGroup, raise_open_files, settings::positive_duration, signals, telemetry::LogLevel};
use gateway::{Extras, Gateway, config::Config, guid, issuer::Issuer};

use super::{edit, ports, principals, ready};
use crate::{
    commands::print,
    failure::{Failure, INTERRUPTED, Outcome},
    state::{Data, State, check_name},
};

/// The cluster of a new state.
const FIRST_CLUSTER: &str = "dev";

/// `towline dev --state DIR`.
#[derive(Debug, clap::Args)]
pub struct RunArgs {
    /// Folder of the state; made if it is not there, used again if it is
    #[arg(long, value_name = "DIR", required = true)]
    pub state: Option<PathBuf>,
    /// Where users and agents connect, TCP and UDP. Port 0 picks one that is free and keeps it for later starts.
    /// Without this: as at the last start, at first 127.0.0.1:8443 or, if that is taken, another port
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    pub listen: Option<SocketAddr>,
    /// Where health, metrics and sessions are served; 127.0.0.1 and a kept free port without this
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address)]
    pub admin_listen: Option<SocketAddr>,
    /// A further name or address of the gateway, for its certificate; the first one is part of its URL
    #[arg(long = "name", value_name = "NAME")]
    pub names: Vec<String>,
    /// Serve clusters at <key>.DOMAIN too
    #[arg(long, value_name = "DOMAIN")]
    pub domain: Option<String>,
    /// A cluster's name, or its whole ARM id; repeat for more. At the first start `dev` without this
    #[arg(long = "cluster", value_name = "NAME")]
    pub clusters: Vec<String>,
    /// How long tokens live, such as 1h or 30s
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub token_ttl: Option<Duration>,
    /// The kubeconfig by which agents outside of a cluster reach it; without this `kubeconfig` in the agent's folder
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// A setting of the gateway's configuration, such as sessions.reauthorise_every=1s; repeat for more
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = gateway_setting)]
    pub gateway_settings: Vec<(String, String)>,
    /// A setting of the agents' configuration, such as sessions.outlive_token=0s; repeat for more
    #[arg(long = "agent-set", value_name = "KEY=VALUE", value_parser = setting)]
    pub agent_settings: Vec<(String, String)>,
    /// Print one JSON line on standard output once ready, and nothing else
    #[arg(long)]
    pub json: bool,
}

/// Makes or opens the state, runs until told, drains.
pub async fn run(dir: &Path, args: RunArgs, log_level: LogLevel) -> Outcome {
    let _running = State::lock_running(dir)?;
    let (state, config) = prepare(dir, &args)?;
    edit::add_first_users(&state)?;
    principals::ensure_owner(&state)?;
    let issuer = Arc::new(Issuer::open(state.issuer_settings())?);
    let open_files = raise_open_files();
    let (tasks, shutdown) = (TaskGroup::new("process"), Shutdown::new());
    let signals = signals(&tasks, &shutdown)?;
    let mut reloads = signals.clone();
    let (level, issuer) = (Some(log_level), Some(issuer));
    let extras = Extras { shutdown: shutdown.clone(), log_level: level, issuer, open_files, ..Extras::default() };
    let gateway = Gateway::build(config, extras).await?;
    let handle = gateway.handle();
    tasks.spawn("reload", async move {
        loop {
            reloads.reload().await;
            // The result is in the log.
            let _ = handle.reload().await;
        }
    });
    // The listeners are bound: who connects from now on is served.
    print(&if args.json { ready::json(&state)?.to_string() } else { ready::text(&state)? })?;
    gateway.run().await;
    Ok(ExitCode::from(if signals.interrupted() { INTERRUPTED } else { 0 }))
}

/// The state with what was typed, and the gateway's configuration made of it.
fn prepare(dir: &Path, args: &RunArgs) -> Outcome<(State, Config)> {
    let before = State::open(dir).map(|state| state.data).unwrap_or_default();
    let made = State::edit(dir, |data| apply(data, args)).and_then(|state| {
        // Faults in it come from what was typed with --set, and in an agent's from --agent-set.
        let config = Config::load(&state.path("gateway.toml")).map_err(Failure::usage)?;
        state.check_agents().map_err(Failure::usage)?;
        Ok((state, config))
    });
    if made.is_err() && !(args.gateway_settings.is_empty() && args.agent_settings.is_empty()) {
        // A mistyped setting must not be in the way of the next start, which may not repeat it. Without a state (what
        // was typed did not even become one) there is nothing to put back, and the first failure says all there is to
        // say.
        let _ = State::edit_existing(dir, |data| {
            data.gateway_settings = before.gateway_settings;
            data.agent_settings = before.agent_settings;
            Ok(())
        });
    }
    made
}

/// What was typed becomes part of the state; what was not stays as it was.
fn apply(data: &mut Data, args: &RunArgs) -> Outcome<()> {
    for name in args.names.iter().chain(&args.domain) {
        check_name(name).map_err(Failure::usage)?;
    }
    if !args.names.is_empty() {
        data.names.clone_from(&args.names);
    }
    data.domain = args.domain.clone().or(data.domain.take());
    if let Some(ttl) = args.token_ttl {
        data.token_ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).max(1000);
    }
    if let Some(file) = &args.kubeconfig {
        let readable =
            std::fs::read_to_string(file).with_context(|| format!("--kubeconfig: cannot read {}", file.display()));
        readable.map_err(|error| Failure::usage(error).hint("a kubeconfig that reaches the cluster itself"))?;
        data.kubeconfig = Some(std::path::absolute(file).context("--kubeconfig: cannot find its folder")?);
    }
    for id in [&mut data.tenant, &mut data.subscription, &mut data.owner] {
        if id.is_empty() {
            *id = guid::random()?;
        }
    }
    for (list, given) in
        [(&mut data.gateway_settings, &args.gateway_settings), (&mut data.agent_settings, &args.agent_settings)]
    {
        for (key, value) in given {
            list.retain(|(known, _)| known != key);
            list.push((key.clone(), value.clone()));
        }
    }
    for cluster in &args.clusters {
        edit::add(data, cluster).map_err(Failure::usage)?;
    }
    if data.clusters.is_empty() {
        edit::add(data, FIRST_CLUSTER)?;
    }
    data.listen = ports::choose(args.listen, data.listen, Some(ports::PUBLIC))?;
    data.admin = ports::choose(args.admin_listen, data.admin, None)?;
    Ok(())
}

/// Reads an address to listen at. A port alone does not say who may connect.
fn address(text: &str) -> Result<SocketAddr, String> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    Err(match (port.parse::<u16>(), host) {
        (Ok(port), "" | "localhost" | "*") => format!(
            "expected ADDRESS:PORT: 127.0.0.1:{port} for this machine alone, 0.0.0.0:{port} or [::]:{port} for all its addresses"
        ),
        (Ok(port), host) if host.parse::<IpAddr>().is_ok() => format!("expected ADDRESS:PORT, such as [{host}]:{port}"),
        _ => "expected ADDRESS:PORT with an IP address of this machine and a port up to 65535, such as 127.0.0.1:8443"
            .to_owned(),
    })
}

/// A setting of the gateway as it is typed: a path is meant from the folder in which it is typed, and not from that of the
/// state, where the configuration is. `-` is standard output.
fn gateway_setting(text: &str) -> Result<(String, String), String> {
    let (key, value) = setting(text)?;
    let name = key.rsplit('.').next().unwrap_or_default();
    let is_path = name == "file" || name.ends_with("_file") || name.ends_with("_dir");
    // As TOML, else as the text that it is.
    let read = toml::from_str::<toml::Table>(&format!("v = {value}"));
    let path = match read.ok().and_then(|mut read| read.remove("v")) {
        Some(toml::Value::String(path)) => path,
        Some(_) => return Ok((key, value)),
        None => value.clone(),
    };
    if !is_path || path.is_empty() || path == "-" {
        return Ok((key, value));
    }
    let path = std::path::absolute(&path).map_err(|error| error.to_string())?;
    Ok((key, toml::Value::from(path.display().to_string()).to_string()))
}

fn setting(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !key.contains(' ') => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, such as sessions.reauthorise_every=1s".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_meant_from_where_it_is_typed() {
        let here = std::env::current_dir().unwrap();
        let absolute = |path: &str| format!("{:?}", here.join(path).display().to_string());
        let taken = |text: &str| gateway_setting(text).unwrap().1;
        for value in ["./catalogue", "\"catalogue\"", "'./catalogue'", "\"c\\u0061talogue\""] {
            assert_eq!(taken(&format!("api.catalogue_dir={value}")), absolute("catalogue"), "{value}");
        }
        assert_eq!(taken("audit.file=a/b.jsonl"), absolute("a/b.jsonl"));
        assert_eq!(taken("tls.key_file=/k.pem"), "\"/k.pem\"");
        for (text, value) in [
            ("sessions.outlive_token=0s", "0s"),
            ("api.url=x", "x"),
            ("audit.file=", ""),
            ("audit.file=-", "-"),
            ("audit.file=\"-\"", "\"-\""),
            ("limits.connections=5", "5"),
        ] {
            assert_eq!(taken(text), value, "{text}");
        }
    }

    #[test]
    fn an_address_to_listen_at_is_asked_for_in_the_words_that_were_typed() {
        assert!(address("127.0.0.1:8443").is_ok() && address("[::1]:0").is_ok());
        for port in ["8443", ":8443", "localhost:8443", "*:8443"] {
            let error = address(port).unwrap_err();
            assert!(error.contains("127.0.0.1:8443 for this machine alone, 0.0.0.0:8443"), "{port}: {error}");
        }
        assert!(address("::1:8443").unwrap_err().contains("[::1]:8443"));
        for bad in ["", "x", "host.example.org:8443", "1.2.3.4", "1.2.3.4:99999"] {
            assert!(address(bad).unwrap_err().contains("such as 127.0.0.1:8443"), "{bad}");
        }
    }
}
