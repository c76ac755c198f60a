//! `towline-gateway`: the process.

use std::{io::Write, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use gateway::{Extras, Gateway, config::Config};
use proto::process::{Shutdown, TaskGroup, chain, raise_open_files, signals, telemetry};

/// A gateway to Kubernetes clusters behind firewalls.
#[derive(Parser)]
#[command(name = "towline-gateway", version)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The configuration file.
    #[arg(long, global = true, default_value = "/etc/towline/gateway.toml")]
    config: PathBuf,
    /// What to log: a level or a list such as `info,proto=debug`.
    #[arg(long, default_value = "info")]
    log_level: String,
    /// Log one JSON object a line.
    #[arg(long)]
    log_json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Reads the configuration file, reports all its faults, and starts nothing.
    CheckConfig,
}

/// The exit code for a configuration with faults.
const BAD_CONFIG: u8 = 2;

fn main() -> ExitCode {
    let args = Args::parse();
    let config = match Config::load(&args.config) {
        Ok(config) => config,
        Err(error) => return fail(BAD_CONFIG, &error),
    };
    if let Some(Command::CheckConfig) = args.command {
        return match gateway::check(&config) {
            Ok(()) => say(&format!("{}: no faults", args.config.display())),
            Err(error) => fail(BAD_CONFIG, &error),
        };
    }
    let format = if args.log_json { telemetry::LogFormat::Json } else { telemetry::LogFormat::Text };
    let log_level = match telemetry::init(format, &args.log_level) {
        Ok(log_level) => log_level,
        Err(error) => return fail(BAD_CONFIG, &error),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(1, &error),
    };
    let result = runtime.block_on(run(config, log_level));
    // Whoever does not read standard output, where audit records may go, does not hold up the end.
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(1, error.as_ref()),
    }
}

async fn run(config: Config, log_level: telemetry::LogLevel) -> anyhow::Result<()> {
    let open_files = raise_open_files();
    let (tasks, shutdown) = (TaskGroup::new("process"), Shutdown::new());
    let mut signals = signals(&tasks, &shutdown)?;
    let level = Some(log_level);
    let extras = Extras { shutdown: shutdown.clone(), log_level: level, open_files, ..Extras::default() };
    let gateway = Gateway::build(config, extras).await?;
    let handle = gateway.handle();
    tasks.spawn("reload", async move {
        loop {
            signals.reload().await;
            // The result is in the log.
            let _ = handle.reload().await;
        }
    });
    gateway.run().await;
    Ok(())
}

fn say(text: &str) -> ExitCode {
    // Nobody is left to tell if standard output is closed.
    let _ = writeln!(std::io::stdout(), "{text}");
    ExitCode::SUCCESS
}

fn fail(code: u8, error: &(dyn std::error::Error + 'static)) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "towline-gateway: {}", chain(error));
    ExitCode::from(code)
}
