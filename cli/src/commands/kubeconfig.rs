//! `towline kubeconfig`: a kubeconfig that points at the gateway itself (docs/features.md K2).

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, anyhow};
use daemon::settings::positive_duration;
use gateway::files;
use secrecy::ExposeSecret;
use types::instants::rfc3339_seconds;

use super::{
    address::{self, AddressArgs},
    print,
    target::{AccessArgs, Target, service_account_name},
};
use crate::{
    client::OutboundArgs,
    credential, environment,
    failure::{Failure, Outcome},
    kubeconfig::{self, Entry, UserEntry, merge_files},
    secret::read_secret,
    token::Token,
};

/// Write or merge a kubeconfig for a cluster
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Which cluster, as whom, and how to get there.
    #[command(flatten)]
    pub at: AccessArgs,
    /// Where the kubeconfig goes.
    #[command(flatten)]
    pub file: KubeconfigFileArgs,
    /// Put a token into the kubeconfig instead of the command that gets one
    #[arg(long, conflicts_with = "service_account_token")]
    pub embed_token: bool,
    /// Use the cluster's own service-account token in this file (- is standard input), with a short-lived certificate
    /// as the right to reach the cluster
    #[arg(long, value_name = "FILE")]
    pub service_account_token: Option<PathBuf>,
    /// Point at the cluster's own apiserver, where its agents answer it as its webhook (docs/guard.md): https://HOST:PORT.
    /// The gateway is needed for tokens alone
    #[arg(long, value_name = "URL", value_parser = apiserver, conflicts_with_all = ["service_account_token", "address"])]
    pub direct: Option<String>,
    /// With --direct: PEM file of the authorities of the apiserver's certificate; without this those of the system
    #[arg(long, value_name = "FILE", requires = "direct")]
    pub certificate_authority: Option<PathBuf>,
    /// How long that certificate is good for
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, default_value = "12h")]
    pub access_ttl: Duration,
    /// Version of the exec plugin's interface; v1beta1 is known to every kubectl since 1.11
    #[arg(long, value_name = "VERSION", value_parser = ["v1", "v1beta1"], default_value = "v1beta1")]
    pub exec_api_version: String,
    /// How the cluster is addressed.
    #[command(flatten)]
    pub address: AddressArgs,
}

/// Which file a kubeconfig goes to.
#[derive(Debug, clap::Args, Clone)]
pub struct KubeconfigFileArgs {
    /// The kubeconfig to merge into; - prints it. Without this the first of KUBECONFIG, or ~/.kube/config
    #[arg(short = 'f', long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Name of the context
    #[arg(long, value_name = "NAME")]
    pub kube_context: Option<String>,
}

/// Writes or merges it.
pub async fn run(args: Args) -> Outcome {
    let target = Target::new(&args.at).await?;
    let (who, credential) = if let Some(file) = &args.service_account_token {
        service_account(&args, &target, file)?
    } else {
        target.check("AAD", false).await?;
        let source = target.source(None, &args.at.user)?;
        let who = source.who();
        if args.embed_token {
            let token = source.obtain().await?;
            if let Some(expires) = token.expires {
                tracing::info!("the token in this kubeconfig ends at {}", rfc3339_seconds(expires));
            }
            (who, UserEntry::Token { token: token.secret.expose_secret().to_owned(), certificate: None })
        } else {
            (who, exec(&args, &target)?)
        }
    };
    let (way, name) = match &args.direct {
        Some(server) => {
            let ca = args.certificate_authority.as_deref().map(authorities).transpose()?;
            (Way { server: server.clone(), tls_server_name: None, ca }, format!("direct-{}", target.entry_name()))
        }
        None => {
            let way = address::choose(&target, args.address.address).await?;
            let name = format!("towline-{}", target.entry_name());
            (Way { server: way.server(), tls_server_name: way.tls_server_name, ca: way.ca }, name)
        }
    };
    let user = format!("{name}-{who}");
    let entry = Entry {
        context: args.file.kube_context.clone().unwrap_or_else(|| user.clone()),
        server: way.server,
        tls_server_name: way.tls_server_name,
        ca: way.ca,
        // A proxy is on the way to the gateway, which the apiserver is not.
        proxy_url: if args.direct.is_some() { None } else { kubectl_proxy(&args.at.outbound) },
        cluster: name,
        user,
        credential,
    };
    write(&args.file, &entry).await?;
    Ok(ExitCode::SUCCESS)
}

/// How kubectl gets there.
struct Way {
    server: String,
    tls_server_name: Option<String>,
    ca: Option<String>,
}

fn apiserver(text: &str) -> Result<String, String> {
    let expected = "expected https://HOST[:PORT]";
    let url = http::Uri::try_from(text).map_err(|_| expected)?;
    let plain = url.path() == "/" && url.query().is_none() && url.scheme_str() == Some("https");
    let authority = url.authority().filter(|authority| plain && !authority.as_str().contains('@')).ok_or(expected)?;
    Ok(format!("https://{authority}"))
}

/// PEM of the authorities that kubectl trusts.
fn authorities(file: &Path) -> Outcome<String> {
    let pem = files::read(file)?;
    certs::Roots::from_pem(&pem).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(String::from_utf8(pem).with_context(|| format!("cannot read {}", file.display()))?)
}

/// Prints the entry alone for `-`, else merges it, says where, and returns the file.
pub async fn write(args: &KubeconfigFileArgs, entry: &Entry) -> Outcome<PathBuf> {
    if args.file.as_deref() == Some(Path::new("-")) {
        print(kubeconfig::alone(entry)?.trim_end())?;
        return Ok(PathBuf::from("-"));
    }
    let files = args.file.clone().map_or_else(environment::kubeconfigs, |file| vec![file]);
    if files.is_empty() {
        return Err(Failure::usage(anyhow!("which kubeconfig? -f FILE; neither KUBECONFIG nor HOME is set")));
    }
    let merged = merge_files(&files, entry).await?;
    for file in &merged.were_open {
        tracing::warn!("{} could be read by others; it is yours alone now (0600)", file.display());
    }
    tracing::info!("merged context {:?} as the current one into {}", entry.context, merged.path.display());
    Ok(merged.path)
}

/// kubectl speaks to the gateway itself and reads `HTTPS_PROXY` itself; an option of ours must be told to it.
fn kubectl_proxy(args: &OutboundArgs) -> Option<String> {
    if args.proxy_ca.is_some() || args.proxy_password_file.is_some() {
        tracing::warn!(
            "kubectl supports neither a password file nor a certificate authority for a proxy: use towline proxy instead"
        );
    }
    args.proxy_url.clone()
}

/// The command that kubectl calls for a token.
fn exec(args: &Args, target: &Target) -> Outcome<UserEntry> {
    let command = environment::program()?.display().to_string();
    let mut words = vec!["token".to_owned(), "--exec-credential".into(), "--log".into(), "warn".into()];
    let mut option = |name: &str, value: Option<String>| words.extend(value.into_iter().flat_map(|v| [name.into(), v]));
    let absolute = |path: &std::path::PathBuf| {
        std::path::absolute(path).map(|path| path.display().to_string()).unwrap_or_else(|_| path.display().to_string())
    };
    match (&target.context, &target.state) {
        (Some(context), _) => {
            // Automation's account is in the environment that kubectl hands on, and nowhere else.
            option("--account", context.is_kept().then(|| context.account().name.clone()));
            option("--cluster", target.id.as_ref().map(ToString::to_string));
        }
        (None, Some(state)) => {
            option("--state", Some(state.dir().display().to_string()));
            option("--cluster", Some(target.name.clone()));
        }
        (None, None) => {
            option("--server", Some(target.server.url()));
            option("--cluster", target.id.as_ref().map(ToString::to_string).or_else(|| Some(target.key.hex())));
            option("--ca", target.ca_file.as_ref().map(absolute));
        }
    }
    option("--user", args.at.user.user.clone());
    option("--issuer", args.at.user.issuer.clone());
    option("--audience", args.at.user.audience.clone());
    option("--ttl", args.at.user.ttl.map(|ttl| format!("{}ms", ttl.as_millis())));
    option("--proxy-url", args.at.outbound.proxy_url.clone());
    option("--proxy-ca", args.at.outbound.proxy_ca.as_ref().map(absolute));
    option("--proxy-password-file", args.at.outbound.proxy_password_file.as_ref().map(absolute));
    match &args.at.user.password_file {
        Some(file) if file == Path::new("-") => {
            return Err(Failure::usage(anyhow!(
                "kubectl cannot give the password on standard input: --password-file FILE"
            )));
        }
        file => option("--password-file", file.as_ref().map(absolute)),
    }
    let api_version = match args.exec_api_version.as_str() {
        "v1" => credential::ExecVersion::V1,
        _ => credential::ExecVersion::V1Beta1,
    };
    // Where accounts are kept is not left to the shell that kubectl is started from.
    let kept = target.context.as_ref().filter(|context| context.is_kept()).and_then(|_| environment::own_config_dir());
    let env = kept.into_iter().map(|dir| (environment::CONFIG_DIR.to_owned(), dir.display().to_string())).collect();
    Ok(UserEntry::Exec { api_version: api_version.as_str(), command, args: words, env })
}

/// The cluster's own token, and the certificate beside it that lets it through the gateway (docs/features.md A6).
fn service_account(args: &Args, target: &Target, file: &Path) -> Outcome<(String, UserEntry)> {
    let secret = read_secret(file)?;
    let person = args.at.user.user.clone().unwrap_or_else(|| service_account_name(secret.expose_secret()));
    let issued = target.issue_access(&person, args.access_ttl)?;
    let token = Token::new(secret, SystemTime::now());
    let ends = token.expires.map_or(issued.credentials().not_after(), |end| end.min(issued.credentials().not_after()));
    tracing::info!("this kubeconfig is good until {}", rfc3339_seconds(ends));
    let certificate = Some((issued.certificate_pem.clone(), issued.key_pem().to_owned()));
    let entry = UserEntry::Token { token: token.secret.expose_secret().to_owned(), certificate };
    let name = person.rsplit(':').next().unwrap_or("service-account").to_owned();
    Ok((name, entry))
}
