//! `towline kubeconfig`: a kubeconfig that points at the gateway itself (features row K2).

use std::{path::Path, process::ExitCode, time::SystemTime};

use anyhow::{Context, anyhow};
use secrecy::ExposeSecret;

use super::{
    print,
    target::{Target, service_account_name},
};
use crate::{
    args::{KubeconfigArgs, KubeconfigFileArgs, OutboundArgs},
    credential::{self, Token, timestamp},
    environment,
    failure::{Failure, Outcome},
    kubeconfig::{Entry, UserEntry, merge, merge_file},
};

/// Writes or merges it.
pub async fn run(args: KubeconfigArgs) -> Outcome {
    let target = Target::new(&args.at)?;
    let (who, credential) = if let Some(file) = &args.service_account_token {
        service_account(&args, &target, file)?
    } else {
        let sign_in = target.sign_in(&args.at.user)?;
        let who = sign_in.user.clone();
        if args.embed_token {
            let token = credential::Source::SignIn(sign_in).obtain().await;
            let token = token?;
            if let Some(expires) = token.expires {
                tracing::info!("the token in this kubeconfig ends at {}", timestamp(expires)?);
            }
            (who, UserEntry::Token { token: token.secret.expose_secret().to_owned(), certificate: None })
        } else {
            (who, exec(&args, &target)?)
        }
    };
    let name = format!("towline-{}", target.name);
    let user = format!("{name}-{who}");
    let entry = Entry {
        context: args.file.kube_context.clone().unwrap_or_else(|| user.clone()),
        server: server(&args, &target)?,
        ca: read_ca(&target)?,
        proxy_url: kubectl_proxy(&args.at.outbound),
        cluster: name,
        user,
        credential,
    };
    write(&args.file, &entry).await?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the entry alone for `-`, else merges it and says where.
pub async fn write(args: &KubeconfigFileArgs, entry: &Entry) -> Outcome<()> {
    if args.file.as_deref() == Some(Path::new("-")) {
        return Ok(print(merge("", entry)?.trim_end())?);
    }
    let file = args.file.clone().or_else(environment::kubeconfig);
    let file =
        file.ok_or_else(|| Failure::usage(anyhow!("which kubeconfig? -f FILE; neither KUBECONFIG nor HOME is set")))?;
    let merged = merge_file(&file, entry).await?;
    if merged.was_open {
        tracing::warn!("{} could be read by others; it is yours alone now (0600)", merged.path.display());
    }
    tracing::info!("merged context {:?} as the current one into {}", entry.context, merged.path.display());
    Ok(())
}

fn server(args: &KubeconfigArgs, target: &Target) -> Outcome<String> {
    if !args.by_host {
        return Ok(target.cluster_url());
    }
    let domain = target.state.as_ref().and_then(|state| state.data.domain.clone());
    let Some(domain) = domain else {
        return Err(Failure::usage(anyhow!("--by-host needs a gateway with a domain: towline dev --domain DOMAIN")));
    };
    Ok(format!("https://{}.{domain}:{}", target.key.base32(), target.server.port))
}

/// PEM of the authority of the gateway's certificate.
fn read_ca(target: &Target) -> anyhow::Result<Option<String>> {
    let read = |file| std::fs::read_to_string(file).with_context(|| format!("cannot read {}", Path::display(file)));
    target.ca_file.as_deref().map(read).transpose()
}

/// kubectl speaks to the gateway itself and reads `HTTPS_PROXY` itself; an option of ours must be told to it.
fn kubectl_proxy(args: &OutboundArgs) -> Option<String> {
    if args.proxy_ca.is_some() || args.proxy_password_file.is_some() {
        tracing::warn!("kubectl knows no password file and no authority for a proxy: use towline proxy instead");
    }
    args.proxy_url.clone()
}

/// The command that kubectl calls for a token.
fn exec(args: &KubeconfigArgs, target: &Target) -> Outcome<UserEntry> {
    let command = std::env::current_exe().context("cannot tell where this program is")?.display().to_string();
    let mut words = vec!["token".to_owned(), "--exec-credential".into(), "--log".into(), "warn".into()];
    let mut option = |name: &str, value: Option<String>| words.extend(value.into_iter().flat_map(|v| [name.into(), v]));
    let absolute = |path: &std::path::PathBuf| {
        std::path::absolute(path).map(|path| path.display().to_string()).unwrap_or_else(|_| path.display().to_string())
    };
    match &target.state {
        Some(state) => {
            option("--state", Some(state.dir().display().to_string()));
            option("--cluster", Some(target.name.clone()));
        }
        None => {
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
    Ok(UserEntry::Exec { api_version: api_version.as_str(), command, args: words })
}

/// The cluster's own token, and the certificate beside it that lets it through the gateway (features row A6).
fn service_account(args: &KubeconfigArgs, target: &Target, file: &Path) -> Outcome<(String, UserEntry)> {
    let secret = credential::read_secret(file)?;
    let person = args.at.user.user.clone().unwrap_or_else(|| service_account_name(secret.expose_secret()));
    let issued = target.issue_access(&person, args.access_ttl)?;
    let token = Token::new(secret, SystemTime::now());
    let ends = token.expires.map_or(issued.credentials().not_after(), |end| end.min(issued.credentials().not_after()));
    tracing::info!("this kubeconfig is good until {}", timestamp(ends)?);
    let certificate = Some((issued.certificate_pem.clone(), issued.key_pem().to_owned()));
    let entry = UserEntry::Token { token: token.secret.expose_secret().to_owned(), certificate };
    let name = person.rsplit(':').next().unwrap_or("service-account").to_owned();
    Ok((name, entry))
}
