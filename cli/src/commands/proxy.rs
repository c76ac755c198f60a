//! `towline proxy`: the Arc way of working, a local address for a cluster (docs/features.md K3 to K5).

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use daemon::{Shutdown, TaskGroup, signals};
use http::{Method, Request, header};
use http_body_util::Full;
use secrecy::{ExposeSecret, SecretString};
use tokio::time::timeout;

use super::{
    address::{self, AddressArgs, Way},
    kubeconfig::{self, KubeconfigFileArgs},
    print,
    target::{AccessArgs, CertificateArgs, Target},
};
use crate::{
    client::Client,
    credential::Source,
    environment,
    failure::{INTERRUPTED, Outcome},
    kubeconfig::{Entry, UserEntry},
    local_proxy::{Forward, Keeper, Listener, Upstream, bind},
};

/// Life of the access certificate that a proxy makes for itself; it never leaves the process's memory.
const ACCESS_TTL: Duration = Duration::from_secs(7 * 86_400);
/// How long open requests may go on after SIGTERM, and after Ctrl+C.
const DRAIN_GRACE: Duration = Duration::from_secs(30);
const INTERRUPT_GRACE: Duration = Duration::from_secs(1);

/// Serve a cluster at https://127.0.0.1:<port>, with a token that refreshes itself
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which cluster, as whom, and how to get there.
    #[command(flatten)]
    pub at: AccessArgs,
    /// Where the kubeconfig goes.
    #[command(flatten)]
    pub file: KubeconfigFileArgs,
    /// The local port. Without this 47011 or the next one that is free
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// Use this token of a service account of the cluster. Others on this machine can read command lines: --token-file
    #[arg(long, value_name = "TOKEN", conflicts_with_all = ["token_file", "user", "password_file", "issuer"])]
    pub token: Option<String>,
    /// Use the token in this file, which is read again when it changes, instead of signing in
    #[arg(long, value_name = "FILE", conflicts_with_all = ["user", "password_file", "issuer"])]
    pub token_file: Option<PathBuf>,
    /// The right to come with a service-account token.
    #[command(flatten)]
    pub certificate: CertificateArgs,
    /// How the cluster is addressed.
    #[command(flatten)]
    pub address: AddressArgs,
}

/// Serves until Ctrl+C.
pub async fn run(args: Args) -> Outcome {
    let target = Target::new(&args.at).await?;
    let source = match &args.token {
        Some(token) => Source::Fixed(token.clone().into()),
        None => target.source(args.token_file.as_deref(), &args.at.user)?,
    };
    // Before anything is asked of others: a port that is taken is known at once.
    let listener = Listener::new(bind(args.port).await?)?;
    let who = source.who();
    if matches!(source, Source::Account { .. }) {
        target.check("AAD", true).await?;
    }
    let credentials = target.credentials(&args.certificate, &source, ACCESS_TTL).await?;
    let keeper = Keeper::start(source).await?;
    let way = address::choose(&target, args.address.address).await?;
    let client = way.client(&target, credentials.as_ref())?;
    let (tasks, shutdown) = (TaskGroup::new("proxy"), Shutdown::new());
    let stays = environment::hangup_is_ignored();
    let mut signals = signals(&tasks, &shutdown)?;
    let local_token = SecretString::from(gateway::issuer::users::generate_password()?);
    let entry = entry(&args, &target, &way, &who, &listener, &local_token)?;
    let file = kubeconfig::write(&args.file, &entry).await?;
    say(&entry, &file, listener.port()?)?;
    let forward = Arc::new(Forward {
        local_token,
        prefix: way.prefix.clone(),
        keeper: keeper.clone(),
        upstream: Upstream::new(&client, tasks.clone()),
        tasks: tasks.clone(),
    });
    tasks.spawn("token", keeper.clone().run(shutdown.clone()));
    let (mut renewals, path) = (keeper.renewals(), format!("{}/.towline/refresh", way.prefix));
    tasks.spawn("announce", async move {
        while renewals.changed().await.is_ok() {
            announce(&client, &keeper, &path).await;
        }
    });
    let serving = tasks.spawn_task("listen", listener.run(forward, tasks.clone(), shutdown.clone()));
    tokio::select! {
        biased;
        () = shutdown.draining() => {}
        // Its terminal was closed; one started by nohup stays.
        () = signals.reload(), if !stays => {}
        _ = serving => return Err(anyhow::anyhow!("the local listener ended").into()),
    }
    let grace = if signals.interrupted() { INTERRUPT_GRACE } else { DRAIN_GRACE };
    shutdown.drain();
    drain(&tasks, &shutdown, grace).await;
    Ok(ExitCode::from(if signals.interrupted() { INTERRUPTED } else { 0 }))
}

/// Waits until what is open has ended, for `grace` at most.
async fn drain(tasks: &TaskGroup, shutdown: &Shutdown, grace: Duration) {
    // The tasks that hear signals and announce tokens run until all is closed.
    const HOUSEKEEPING: usize = 2;
    let quiet = async {
        while tasks.running() > HOUSEKEEPING {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let ended = shutdown.until_closed(timeout(grace, quiet)).await;
    if !matches!(ended, Some(Ok(()))) {
        tracing::info!("ending what is still open");
    }
    shutdown.close();
    tasks.abort();
}

/// Shows the gateway a newer token, so that open sessions outlive the old one (docs/identity.md).
async fn announce(client: &Client, keeper: &Keeper, path: &str) {
    let Ok(authorization) = keeper.authorization() else { return };
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(header::AUTHORIZATION, authorization)
        .body(Full::default());
    let Ok(request) = request else { return };
    match client.request(request).await {
        Ok(answer) if answer.status().is_success() => tracing::debug!("open sessions go on with the newer token"),
        Ok(answer) => tracing::warn!(status = %answer.status(), "the gateway did not take the newer token"),
        Err(error) => tracing::warn!("the newer token could not be shown to the gateway: {error:#}"),
    }
}

fn entry(
    args: &Args,
    target: &Target,
    way: &Way,
    who: &str,
    listener: &Listener,
    local_token: &SecretString,
) -> anyhow::Result<Entry> {
    let port = listener.port()?;
    // The port is part of the names: proxies side by side do not take each other's entries.
    let name = format!("towline-proxy-{}-{port}", target.entry_name());
    Ok(Entry {
        context: args.file.kube_context.clone().unwrap_or_else(|| format!("{name}-{who}")),
        user: format!("{name}-{who}"),
        server: format!("https://127.0.0.1:{port}{}", way.prefix),
        tls_server_name: None,
        ca: Some(listener.ca().to_owned()),
        proxy_url: None,
        credential: UserEntry::Token { token: local_token.expose_secret().to_owned(), certificate: None },
        cluster: name,
    })
}

/// What Arc's users know to look for; on standard error where standard output is the kubeconfig.
fn say(entry: &Entry, file: &Path, port: u16) -> Outcome<()> {
    if file == Path::new("-") {
        tracing::info!("Proxy is listening on port {port}. Press Ctrl+C to close proxy.");
        return Ok(());
    }
    print(&format!(
        "Proxy is listening on port {port}\n\
         Merged \"{context}\" as current context in {file}\n\
         Start sending kubectl requests on '{context}' context using kubeconfig at {file}\n\
         Press Ctrl+C to close proxy.",
        context = entry.context,
        file = file.display(),
    ))
}
