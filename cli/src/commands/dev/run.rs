//! Runs the gateway on a state.

use std::{path::Path, process::ExitCode, sync::Arc};

use anyhow::Context;
use daemon::{Shutdown, TaskGroup, raise_open_files, signals, telemetry::LogLevel};
use gateway::{Extras, Gateway, config::Config, guid, issuer::Issuer};

use super::{edit, ports, principals, ready};
use crate::{
    args::DevRun,
    commands::print,
    failure::{Failure, INTERRUPTED, Outcome},
    state::{Data, State, check_name},
};

/// The cluster of a new state.
const FIRST_CLUSTER: &str = "dev";

/// Makes or opens the state, runs until told, drains.
pub async fn run(dir: &Path, args: DevRun, log_level: LogLevel) -> Outcome {
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
    print(&if args.json { ready::json(&state)?.to_string() } else { ready::text(&state) })?;
    gateway.run().await;
    Ok(ExitCode::from(if signals.interrupted() { INTERRUPTED } else { 0 }))
}

/// The state with what was typed, and the gateway's configuration made of it.
fn prepare(dir: &Path, args: &DevRun) -> Outcome<(State, Config)> {
    let before = State::open(dir).map(|state| state.data).unwrap_or_default();
    let made = State::edit(dir, |data| apply(data, args)).and_then(|state| {
        // Faults in it come from what was typed with --set, and in an agent's from --agent-set.
        let config = Config::load(&state.path("gateway.toml")).map_err(Failure::usage)?;
        state.check_agents().map_err(Failure::usage)?;
        Ok((state, config))
    });
    if made.is_err() && !(args.gateway_settings.is_empty() && args.agent_settings.is_empty()) {
        // A mistyped setting must not be in the way of the next start, which may not repeat it. Without a state (what was
        // typed did not even become one) there is nothing to put back, and the first failure says all there is to say.
        let _ = State::edit_existing(dir, |data| {
            data.gateway_settings = before.gateway_settings;
            data.agent_settings = before.agent_settings;
            Ok(())
        });
    }
    made
}

/// What was typed becomes part of the state; what was not stays as it was.
fn apply(data: &mut Data, args: &DevRun) -> Outcome<()> {
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
        let readable = std::fs::read_to_string(file).with_context(|| format!("--kubeconfig {}", file.display()));
        readable.map_err(|error| Failure::usage(error).hint("a kubeconfig that reaches the cluster itself"))?;
        data.kubeconfig = Some(std::path::absolute(file).context("--kubeconfig")?);
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
