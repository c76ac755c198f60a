//! The program `towline-agent`: arguments, telemetry, configuration, build, run until told, drain, exit code.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Parser, Subcommand, ValueEnum};
use daemon::{
    raise_open_files, signals, stdout,
    telemetry::{self, LogFormat},
};

use crate::{
    Agent, chain, check,
    config::{self, CarrierChoice, Cluster, Config},
    metrics,
    reload::Reload,
    roles::{extension_manager::images, logcollector::LogBuffer},
};

/// Wrong arguments or a wrong configuration.
const EXIT_CONFIG: u8 = 2;

/// The agent that connects a Kubernetes cluster to its Towline gateway.
#[derive(Parser)]
#[command(name = "towline-agent", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Keeps the cluster connected until told to stop; SIGTERM drains.
    Run(Common),
    /// Tries every hop to the gateway and to the apiserver and says what is wrong.
    Check {
        #[command(flatten)]
        common: Common,
        /// One JSON object instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Prints every setting with its type, bounds, default and meaning, as a file to copy from.
    ConfigReference,
    /// What helm runs to have images come from the cluster's own registry.
    #[command(name = images::COMMAND, hide = true)]
    RewriteImages(images::Called),
}

#[derive(clap::Args)]
struct Common {
    /// The configuration file.
    #[arg(long, default_value = "/etc/towline/agent.toml")]
    config: PathBuf,
    /// Uses this carrier and no other: auto, quic, h2 or websocket. Goes before the file.
    #[arg(long)]
    carrier: Option<CarrierChoice>,
    /// Reaches the cluster by this kubeconfig. Goes before the file.
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// The kubeconfig's context; its current one without this.
    #[arg(long, requires = "kubeconfig")]
    context: Option<String>,
    /// How log lines look. Goes before the file.
    #[arg(long, value_enum)]
    log_format: Option<Format>,
    /// What is logged: a level, or a filter such as info,agent=debug. Goes before the file.
    #[arg(long)]
    log_level: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// The process, from its arguments to its exit code.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (common, checking) = match &arguments.command {
        Command::Run(common) => (common, None),
        Command::Check { common, json } => (common, Some(*json)),
        Command::ConfigReference => return say(&config::reference::text()),
        Command::RewriteImages(called) => {
            return match images::run(called) {
                Ok(()) => ExitCode::SUCCESS,
                Err(err) => failed(1, &err.into()),
            };
        }
    };
    let config = match Config::load(&common.config) {
        Ok(config) => with_arguments(config, common),
        Err(faults) => return failed(EXIT_CONFIG, &faults.into()),
    };
    // A check prints its own findings; its log is for those who ask for it.
    let level = if checking.is_some() && common.log_level.is_none() { "off" } else { &config.log.level };
    let logs = LogBuffer::default();
    let copied = logs.clone();
    let copy = checking.is_none().then_some(move || copied.clone());
    if let Err(err) = telemetry::init_with_copy(config.log.format, level, copy) {
        return failed(EXIT_CONFIG, &err.into());
    }
    let runtime = match daemon::runtime() {
        Ok(runtime) => runtime,
        Err(err) => return failed(1, &err.into()),
    };
    match checking {
        Some(json) => ExitCode::from(runtime.block_on(check::run(&config, json))),
        None => match runtime.block_on(run(config, &common.config, logs)) {
            Ok(()) => ExitCode::SUCCESS,
            Err((code, err)) => failed(code, &err),
        },
    }
}

fn with_arguments(mut config: Config, common: &Common) -> Config {
    if let Some(carrier) = common.carrier {
        config.gateway.carrier = carrier;
    }
    if let Some(path) = &common.kubeconfig {
        config.cluster = Cluster::Kubeconfig { path: path.clone(), context: common.context.clone() };
    }
    if let Some(format) = common.log_format {
        config.log.format = match format {
            Format::Text => LogFormat::Text,
            Format::Json => LogFormat::Json,
        };
    }
    if let Some(level) = &common.log_level {
        config.log.level.clone_from(level);
    }
    config
}

async fn run(config: Config, file: &Path, logs: LogBuffer) -> Result<(), (u8, anyhow::Error)> {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().install_recorder();
    let recorder = recorder.map_err(|err| (1, err.into()))?;
    metrics::describe();
    raise_open_files();
    let config = broken(config);
    let agent = Agent::build(config, Some(recorder), Some(logs)).await.map_err(|err| (EXIT_CONFIG, err.into()))?;
    let mut signals = signals(agent.tasks(), agent.shutdown()).map_err(|err| (1, err.into()))?;
    agent.tasks().spawn("hangups", async move {
        loop {
            signals.reload().await;
            tracing::warn!(
                "the outbound proxy's settings, certificates, keys and tokens on disk are read again by themselves; all other settings take effect at the next start"
            );
        }
    });
    agent.tasks().spawn("settings", Reload::new(file.to_owned(), agent.connector()).run());
    tracing::info!(
        version = daemon::release::version(),
        cluster.id = agent.facts().cluster,
        admin = agent.admin_address().map(|address| address.to_string()),
        "towline-agent starts"
    );
    agent.run().await.map_err(|err| (1, err.into()))?;
    tracing::info!("towline-agent ends");
    Ok(())
}

/// How long a version for tests runs that crashes.
const CRASHES_AFTER: std::time::Duration = std::time::Duration::from_secs(15);

/// For tests of upgrades: a version that never reaches its gateway, and one that crashes when it has
/// ([`daemon::release`]). What ships has no such faults.
fn broken(mut config: Config) -> Config {
    if daemon::release::has_fault("silent") {
        config.gateway.via = None;
        for endpoint in &mut config.gateway.endpoints {
            // Of TEST-NET-1: nobody answers there.
            endpoint.addresses = vec![std::net::Ipv4Addr::new(192, 0, 2, 1).into()];
        }
    }
    if daemon::release::has_fault("crash") {
        std::thread::spawn(|| {
            std::thread::sleep(CRASHES_AFTER);
            std::process::exit(3);
        });
    }
    config
}

fn say(text: &str) -> ExitCode {
    let Err(error) = stdout::print(text) else { return ExitCode::SUCCESS };
    let (code, reason) = stdout::failed(&error);
    reason.map_or_else(|| ExitCode::from(code), |reason| failed(code, &anyhow::anyhow!("{reason}")))
}

#[expect(clippy::print_stderr, reason = "the log may not be set up")]
fn failed(code: u8, err: &anyhow::Error) -> ExitCode {
    eprintln!("towline-agent: {}", chain(err.as_ref()));
    ExitCode::from(code)
}
