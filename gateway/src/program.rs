//! The program `towline-gateway`: arguments, what operators do by it, run until told, exit code.

mod issuer_command;
mod user_command;

use std::{io::Write, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use tracing::Instrument as _;

use daemon::{Shutdown, TaskGroup, chain, raise_open_files, signals, stdout, telemetry};

use crate::{
    Extras, Gateway, checks,
    config::{self, Config, api::StoreAt},
    init, issuer_state, lost, owners, renew,
    replicas::{LEASE, show},
    roll_over,
    store::{Store, moving},
};

/// A gateway to Kubernetes clusters behind firewalls.
#[derive(Parser)]
#[command(name = "towline-gateway", version)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    /// The configuration file.
    #[arg(long, global = true, default_value = "/etc/towline/gateway.toml")]
    config: PathBuf,
    /// The name of this gateway among its replicas, in place of that in [replicas] of the configuration.
    #[arg(long, global = true, value_name = "NAME")]
    replica_name: Option<String>,
    /// The host and port that other replicas dial, in place of that in [replicas] of the configuration.
    #[arg(long, global = true, value_name = "HOST:PORT")]
    replica_address: Option<String>,
    /// What to log: a level or a list such as `info,tunnel=debug`. What agents log is left to a filter that names it,
    /// such as `info,agent_logs=debug`. Programs built for release say no more at trace than at debug.
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
    /// Prints every setting with its type, bounds, default and meaning, as a file to copy from.
    ConfigReference,
    /// Makes the folder of a new gateway: configuration, authority, issuer, and a service principal that owns it.
    /// Prints what to sign in with, once, as JSON.
    Init(Init),
    /// Gives the gateway another certificate of its own authority, with the names of the one it has (where `init` made
    /// it).
    RenewCertificate,
    /// Has another certificate authority follow the one of clusters' certificates: `begin`, `status`, `finish`. Prints
    /// JSON.
    RollOver {
        #[command(subcommand)]
        step: RollOverStep,
    },
    /// Gives the owner another secret, good for a year, and prints it once, as JSON. Also when none is good any more.
    RenewOwnerSecret,
    /// Makes another owner, where none can sign in any more: a service principal with the role Owner at every
    /// subscription. Prints what to sign in with, once, as JSON. The gateway may run or not.
    RecoverOwner,
    /// Makes another key in place of one that is lost for good, with all that it protected. Refuses while the key is
    /// there, or while others that share the database run with it. Stop all gateways first.
    ReplaceLost {
        /// The key that is lost.
        #[arg(value_enum)]
        key: LostKey,
    },
    /// Copies the store of a gateway into a file while it runs (SQLite; with PostgreSQL use its own tools).
    Backup {
        /// The file; it must not exist yet.
        #[arg(long)]
        to: PathBuf,
    },
    /// Copies all that is in the SQLite store into an empty PostgreSQL database, in one transaction, and counts what has
    /// arrived. The gateway must be stopped, and the configuration is not changed. Prints JSON.
    MoveStore {
        /// The file with postgres://<user>:<password>@<host>/<database>, for `[api] postgres_url_file`.
        #[arg(long)]
        to: PathBuf,
    },
    /// Shows the gateways that share the store: names, versions, addresses, tunnels, how far each follows, the age of
    /// its lease, and in which settings they differ that all are to share. Prints JSON.
    Replicas,
    /// The local users of the built-in issuer: add, list, disable, enable, remove. Prints JSON.
    User {
        #[command(subcommand)]
        action: user_command::UserAction,
    },
    /// The signing keys of the built-in issuer: keys, rotate-key, revoke-key. Prints JSON.
    Issuer {
        #[command(subcommand)]
        action: issuer_command::IssuerAction,
    },
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum LostKey {
    /// `[api] store_key_file`; the protected settings of clusters are taken away, and must be set anew.
    StoreKey,
    /// The key that the built-in issuer signs with; every cluster must be connected again.
    IssuerKey,
}

#[derive(Subcommand)]
enum RollOverStep {
    /// Makes the new authority. Both are trusted from now on, the new one issues, and agents that are connected renew.
    Begin,
    /// Says how far it is, and which clusters still live on the old one.
    Status,
    /// Trusts the old one no more, once nothing lives on it, and has the gateway's own certificate issued by the new
    /// one.
    Finish {
        /// Also while clusters live on the old one: they are cut off and must be connected again (`towline connect`).
        #[arg(long)]
        force: bool,
    },
}

#[derive(clap::Args)]
struct Init {
    /// How users and agents address the gateway, https://host[:port].
    #[arg(long)]
    url: String,
    /// The folder that is made, for configuration, keys and data.
    #[arg(long, default_value = "/var/lib/towline")]
    directory: PathBuf,
    /// Where it listens.
    #[arg(long, default_value = "0.0.0.0:8443")]
    listen: std::net::SocketAddr,
    /// Where operators reach it.
    #[arg(long, default_value = "127.0.0.1:9090")]
    admin: std::net::SocketAddr,
    /// The gateway's certificate chain, PEM, of an authority that users' machines know; without it one is made.
    #[arg(long, requires = "key")]
    certificate: Option<PathBuf>,
    /// Its private key, PEM.
    #[arg(long, requires = "certificate")]
    key: Option<PathBuf>,
}

/// How often it is looked at what ends soon.
const RENEWALS_LOOK: std::time::Duration = std::time::Duration::from_secs(86_400);

/// The exit code for a configuration with faults.
const BAD_CONFIG: u8 = 2;

/// The process, from its arguments to its exit code.
pub fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(Command::Init(init)) = args.command {
        return make(init);
    }
    if let Some(Command::ConfigReference) = args.command {
        return say(config::reference::text().trim_end_matches('\n'));
    }
    let mut config = match Config::load(&args.config) {
        Ok(config) => config,
        Err(error) => return fail(BAD_CONFIG, &error),
    };
    if let Err(why) = as_replica(&mut config, args.replica_name.as_deref(), args.replica_address.as_deref()) {
        return fail(BAD_CONFIG, anyhow::Error::msg(why).as_ref());
    }
    if let Some(Command::Backup { to }) = &args.command {
        return backup(&config, to);
    }
    let now = std::time::SystemTime::now();
    match args.command {
        Some(Command::MoveStore { to }) => return printed(move_store(&config, &to)),
        Some(Command::User { action }) => return printed(alone(user_command::run(&config, action))),
        Some(Command::Issuer { action }) => return printed(alone(issuer_command::run(&config, &action))),
        Some(Command::RenewCertificate) => {
            let allowed = user_command::as_its_owner(&config.tls.key_file);
            return printed(allowed.and_then(|()| Ok(renew::certificate(&config, now)?)));
        }
        Some(Command::RollOver { step }) => return printed(roll_over(&config, &step)),
        Some(Command::RenewOwnerSecret) => {
            let allowed = config.issuer.as_ref().map_or(Ok(()), |own| user_command::may_change(&config, own));
            return printed(allowed.and_then(|()| alone(async { Ok(renew::owner_secret(&config, now).await?) })));
        }
        Some(Command::RecoverOwner) => {
            let allowed = config.issuer.as_ref().map_or(Ok(()), |own| user_command::may_change(&config, own));
            return printed(allowed.and_then(|()| alone(async { Ok(owners::recover(&config, now).await?) })));
        }
        Some(Command::Replicas) => return printed(replicas(&config)),
        Some(Command::ReplaceLost { key }) => return printed(replace_lost(&config, key)),
        Some(_) => return checked(&config, &args.config),
        None => {}
    }
    let format = if args.log_json { telemetry::LogFormat::Json } else { telemetry::LogFormat::Text };
    let log_level = match telemetry::init(format, &args.log_level) {
        Ok(log_level) => log_level,
        Err(error) => return fail(BAD_CONFIG, &error),
    };
    let runtime = match daemon::runtime() {
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

/// Takes the flags that say which replica this is.
fn as_replica(config: &mut Config, name: Option<&str>, address: Option<&str>) -> Result<(), String> {
    match &mut config.replicas {
        Some(replicas) => replicas.set(name, address),
        None if name.is_none() && address.is_none() => Ok(()),
        None => Err("--replica-name and --replica-address need [replicas] in the configuration".to_owned()),
    }
}

async fn run(config: Config, log_level: telemetry::LogLevel) -> anyhow::Result<()> {
    let open_files = raise_open_files();
    let (tasks, shutdown) = (TaskGroup::new("process"), Shutdown::new());
    let mut signals = signals(&tasks, &shutdown)?;
    let level = Some(log_level);
    let extras = Extras { shutdown: shutdown.clone(), log_level: level, open_files, ..Extras::default() };
    let config_of_replica = config.replicas.clone();
    let built = tokio::select! {
        biased;
        () = shutdown.draining() => None,
        built = Gateway::build(config.clone(), extras) => Some(built?),
    };
    let Some(gateway) = built else {
        tracing::info!("stopped before it served");
        return Ok(());
    };
    tasks.spawn("renewals", async move {
        let mut daily = tokio::time::interval(RENEWALS_LOOK);
        loop {
            daily.tick().await;
            let told = renew::warnings(&config, std::time::SystemTime::now()).await;
            told.iter().for_each(|warning| tracing::warn!("{warning}"));
        }
    });
    let handle = gateway.handle();
    tasks.spawn("reload", async move {
        loop {
            signals.reload().await;
            // The result is in the log.
            let _ = handle.reload().await;
        }
    });
    let running = match &config_of_replica {
        Some(replicas) => gateway.run().instrument(tracing::info_span!("gateway", replica = replicas.name)),
        None => gateway.run().instrument(tracing::Span::none()),
    };
    running.await;
    Ok(())
}

fn make(args: Init) -> ExitCode {
    let Init { url, directory, listen, admin, certificate, key } = args;
    let plan = init::Plan { directory, url, listen, admin, certificate: certificate.zip(key) };
    match init::init(&plan) {
        Ok(made) => said(&format!("{made:#}"), ONCE),
        Err(error @ (init::InitError::Url(_) | init::InitError::Exists(_) | init::InitError::Given(_))) => {
            fail(BAD_CONFIG, &error)
        }
        Err(error) => fail(1, &error),
    }
}

fn backup(config: &Config, to: &std::path::Path) -> ExitCode {
    let Some(api) = &config.api else {
        return fail(BAD_CONFIG, anyhow::anyhow!("there is nothing to copy: the configuration has no [api]").as_ref());
    };
    let copied = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(anyhow::Error::from)
        .and_then(|runtime| {
            runtime.block_on(async {
                let store = Store::open_to_read(&api.store.url()).await?;
                let store = store.ok_or_else(|| anyhow::anyhow!("there is no store yet: start the gateway once"))?;
                let copied = store.backup(to).await;
                store.close().await;
                Ok(copied?)
            })
        });
    match copied {
        Ok(()) => say(&format!(
            "{}: the store as it is now; store.key and the folder of the issuer are not in it",
            to.display()
        )),
        Err(error) => fail(1, error.as_ref()),
    }
}

fn move_store(config: &Config, to: &std::path::Path) -> anyhow::Result<serde_json::Value> {
    let from = match config.api.as_ref().map(|api| &api.store) {
        Some(StoreAt::Sqlite(file)) => file,
        Some(StoreAt::Postgres { .. }) => {
            anyhow::bail!("[api] has postgres_url_file: the store is in PostgreSQL already")
        }
        None => anyhow::bail!("there is nothing to move: the configuration has no [api]"),
    };
    user_command::as_its_owner(from)?;
    checks::private(to).map_err(anyhow::Error::msg)?;
    let url = config::api::postgres_url(to).map_err(|fault| anyhow::anyhow!("{} {fault}", to.display()))?;
    let rows = alone(async { Ok(moving::to_postgres(from, &url).await?) })?;
    Ok(serde_json::json!({"moved": rows.values().sum::<i64>(), "rows": rows}))
}

fn replicas(config: &Config) -> anyhow::Result<serde_json::Value> {
    let api = config.api.as_ref().filter(|_| config.replicas.is_some());
    let api =
        api.ok_or_else(|| anyhow::anyhow!("this gateway is the only one: the configuration has no [replicas]"))?;
    alone(async {
        let store = Store::open_to_read(&api.store.url()).await?;
        let store = store.ok_or_else(|| anyhow::anyhow!("there is no store yet: start the gateway once"))?;
        let overview = store.replicas_overview(LEASE).await;
        store.close().await;
        Ok(show::overview(&overview?))
    })
}

fn replace_lost(config: &Config, key: LostKey) -> anyhow::Result<serde_json::Value> {
    let folder = match key {
        LostKey::StoreKey => config.api.as_ref().and_then(|api| api.store_key_file.parent()),
        LostKey::IssuerKey if issuer_state::shared(config).is_some() => None,
        LostKey::IssuerKey => config.issuer.as_ref().map(|own| own.state_dir.as_path()),
    };
    folder.map_or(Ok(()), user_command::as_its_owner)?;
    match key {
        LostKey::StoreKey => alone(async { Ok(lost::store_key(config).await?) }),
        LostKey::IssuerKey => alone(async { Ok(lost::issuer_key(config).await?) }),
    }
}

/// Runs what a command does, on this thread.
fn alone<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}

fn roll_over(config: &Config, step: &RollOverStep) -> anyhow::Result<serde_json::Value> {
    let now = std::time::SystemTime::now();
    if let Some(files) = config.agents.authority.as_ref().filter(|_| !matches!(step, RollOverStep::Status)) {
        user_command::as_its_owner(&files.key)?;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let store = match &config.api {
            Some(api) if !matches!(step, RollOverStep::Begin) => Store::open_to_read(&api.store.url()).await?,
            _ => None,
        };
        let done = match step {
            RollOverStep::Begin => roll_over::begin(config, now),
            RollOverStep::Status => roll_over::status(config, store.as_ref(), now).await,
            RollOverStep::Finish { force } => roll_over::finish(config, store.as_ref(), now, *force).await,
        };
        if let Some(store) = store {
            store.close().await;
        }
        Ok(done?)
    })
}

fn printed(done: anyhow::Result<serde_json::Value>) -> ExitCode {
    match done {
        Ok(said) => say(&format!("{said:#}")),
        Err(error) => fail(1, error.as_ref()),
    }
}

fn checked(config: &Config, file: &std::path::Path) -> ExitCode {
    let mut config = config.clone();
    if let Some(replicas) = config.replicas.as_mut().filter(|replicas| replicas.address.is_none()) {
        // Several gateways may share one file: what is each one's own comes with its start.
        replicas.address = Some(replicas.listen.to_string());
        let note = "[replicas] has no address, and listen has no specific one: a start needs --replica-address, the host and port that the other replicas dial";
        let _ = writeln!(std::io::stderr(), "towline-gateway: note: {note}");
    }
    let config = &config;
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(1, &error),
    };
    if let Err(error) = runtime.block_on(checks::all(config)) {
        return fail(BAD_CONFIG, &error);
    }
    let warnings = runtime.block_on(async {
        let mut all = renew::warnings(config, std::time::SystemTime::now()).await;
        all.extend(crate::replicas::warning(config).await);
        all
    });
    for warning in warnings {
        let _ = writeln!(std::io::stderr(), "towline-gateway: warning: {warning}");
    }
    say(&format!("{}: no faults", file.display()))
}

/// What to do where the secret of a new owner was printed for nobody.
const ONCE: Option<&str> =
    Some("the gateway is made, and nobody has its owner's secret: towline-gateway renew-owner-secret prints another");

fn say(text: &str) -> ExitCode {
    said(text, None)
}

/// Prints a result. `lost`: what else to say where it could not be printed.
fn said(text: &str, lost: Option<&str>) -> ExitCode {
    let Err(error) = stdout::print(text) else { return ExitCode::SUCCESS };
    let (code, reason) = stdout::failed(&error);
    if let Some(lost) = lost {
        let _ = writeln!(std::io::stderr(), "towline-gateway: {lost}");
    }
    reason.map_or_else(|| ExitCode::from(code), |reason| fail(code, reason))
}

fn fail(code: u8, error: &(dyn std::error::Error + 'static)) -> ExitCode {
    let _ = writeln!(std::io::stderr(), "towline-gateway: {}", chain(error));
    ExitCode::from(code)
}
