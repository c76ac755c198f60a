//! Runs the gateway on a state.

use std::{path::Path, process::ExitCode};

use anyhow::Context;
use gateway::issuer::Issuer;

use super::{edit, ports, ready};
use crate::{
    args::DevRun,
    commands::print,
    failure::{Failure, INTERRUPTED, Outcome},
    state::{Data, State, check_name},
};

/// The cluster of a new state.
const FIRST_CLUSTER: &str = "dev";

/// Makes or opens the state, runs until told, drains.
pub async fn run(dir: &Path, args: DevRun) -> Outcome {
    let _running = State::lock_running(dir)?;
    let state = State::edit(dir, |data| apply(data, &args))?;
    edit::add_first_users(&state)?;
    let issuer = Issuer::open(state.issuer_settings())?;
    let _ = (issuer, ready::text(&state), INTERRUPTED);
    if args.json {
        print(&ready::json(&state)?.to_string())?;
    } else {
        print(&ready::text(&state))?;
    }
    Ok(ExitCode::SUCCESS)
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
        data.kubeconfig = Some(std::path::absolute(file).context("--kubeconfig")?);
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
