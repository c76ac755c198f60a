//! Which cluster, at which gateway, as whom: from the account that is signed in, from a state's folder or from options
//! of their own.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, anyhow};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use certs::{Credentials, Roots, Validity};
use daemon::settings::positive_duration;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use types::{
    api::ResourceId,
    ids::{ClusterId, ClusterKey},
};

use super::names;
use crate::{
    api::{Api, at, versions},
    client::{self, Address, Client, Outbound, OutboundArgs},
    context::{Context, ContextArgs},
    credential::{SignIn, Source},
    environment,
    failure::{Failure, Outcome},
    secret::read_secret,
    state::State,
    token::claims,
};

/// Which cluster, as whom, and how to get there: what all commands but `dev` have in common.
#[derive(Debug, clap::Args, Clone)]
pub struct AccessArgs {
    /// The cluster, and the gateway that it is at.
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Who signs in.
    #[command(flatten)]
    pub user: UserArgs,
    /// How to get there.
    #[command(flatten)]
    pub outbound: OutboundArgs,
}

/// Which cluster, and at which gateway.
#[derive(Debug, clap::Args, Clone)]
pub struct ClusterArgs {
    /// Folder of a `towline dev`: tells gateway, authority, issuer and clusters
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// The gateway, such as https://gateway.example.org
    #[arg(long, value_name = "URL", conflicts_with = "state")]
    pub server: Option<String>,
    /// The cluster: its ARM id or its key of 64 hex digits; with --state also its name
    #[arg(long, value_name = "ID|KEY|NAME")]
    pub cluster: Option<String>,
    /// PEM file of the authority of the gateway's certificate; the system's without this
    #[arg(long, value_name = "FILE", conflicts_with = "state")]
    pub ca: Option<PathBuf>,
    /// The cluster by its name, at the gateway that `towline login` signed in at
    #[arg(short = 'n', long, value_name = "NAME", value_parser = names::cluster, requires = "resource_group", conflicts_with_all = ["state", "server", "cluster"])]
    pub name: Option<String>,
    /// Its resource group
    #[arg(short = 'g', long, value_name = "GROUP", value_parser = names::group, requires = "name")]
    pub resource_group: Option<String>,
    /// As which account.
    #[command(flatten)]
    pub context: ContextArgs,
}

/// Who signs in, and where.
#[derive(Debug, clap::Args, Clone)]
pub struct UserArgs {
    /// The user
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// File with the password; - is standard input. Without this TOWLINE_PASSWORD, or the state's file
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// The issuer, such as https://gateway.example.org/.towline/issuer
    #[arg(long, value_name = "URL", conflicts_with = "state")]
    pub issuer: Option<String>,
    /// The audience, instead of the cluster's own
    #[arg(long, value_name = "TEXT")]
    pub audience: Option<String>,
    /// How long the token is to live; never longer than the issuer allows
    #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
    pub ttl: Option<Duration>,
}

/// The right to reach a cluster with one of its service-account tokens.
#[derive(Debug, clap::Args, Clone)]
pub struct CertificateArgs {
    /// PEM file of an access certificate, for service-account tokens; with --state one is made
    #[arg(long, value_name = "FILE", requires = "client_key")]
    pub client_certificate: Option<PathBuf>,
    /// PEM file of its private key
    #[arg(long, value_name = "FILE", requires = "client_certificate")]
    pub client_key: Option<PathBuf>,
}

/// A cluster at a gateway.
pub struct Target {
    /// The state that told, if one did.
    pub state: Option<State>,
    /// Address of the gateway.
    pub server: Address,
    /// The cluster's address there.
    pub key: ClusterKey,
    /// Its id, if known: a key alone does not tell.
    pub id: Option<ClusterId>,
    /// A short name for people and for entries of a kubeconfig.
    pub name: String,
    /// The authority of the gateway's certificate; none for the system's.
    pub ca_file: Option<PathBuf>,
    /// The account that told, if one did.
    pub context: Option<Context>,
    /// How to get there.
    pub outbound: Outbound,
}

impl Target {
    /// Of `--state` and `--cluster`, of `--server`, `--cluster` and `--ca`, or of the account that is signed in with
    /// `--name` and `--resource-group`, or `--cluster`.
    pub async fn new(at: &AccessArgs) -> Outcome<Self> {
        let outbound = Outbound::new(&at.outbound).map_err(Failure::usage)?;
        let args = &at.cluster;
        if args.state.is_none() && args.server.is_none() {
            return Self::of_account(at).await;
        }
        if let Some(dir) = &args.state {
            let state = State::open(dir)?;
            let cluster = state.cluster(args.cluster.as_deref())?;
            let (id, name) = (cluster.cluster_id()?, cluster.name.clone());
            return Ok(Self {
                server: Address::parse(&state.url())?,
                key: id.key(),
                id: Some(id),
                name,
                ca_file: Some(state.ca_file()),
                context: None,
                outbound,
                state: Some(state),
            });
        }
        let Some(server) = &args.server else {
            return Err(Failure::usage(anyhow!("which gateway? --state DIR of a towline dev, or --server URL")));
        };
        let server = Address::parse(server).map_err(Failure::usage)?;
        let Some(cluster) = args.cluster.as_deref() else {
            return Err(Failure::usage(anyhow!(
                "which cluster? --cluster with its ARM id or its key of 64 hex digits"
            )));
        };
        let (key, id, name) = match (ClusterKey::from_hex(cluster.as_bytes()), cluster.parse::<ClusterId>()) {
            (Some(key), _) => (key, None, cluster[..12].to_owned()),
            (None, Ok(id)) => (id.key(), Some(id.clone()), id.name().to_owned()),
            (None, Err(error)) => {
                return Err(Failure::usage(
                    anyhow!(error).context("--cluster is neither a key of 64 hex digits nor an id"),
                ));
            }
        };
        Ok(Self { state: None, server, key, id, name, ca_file: args.ca.clone(), context: None, outbound })
    }

    /// Of the account that is signed in.
    async fn of_account(at: &AccessArgs) -> Outcome<Self> {
        let args = &at.cluster;
        if at.user.user.is_some() || at.user.issuer.is_some() || args.ca.is_some() {
            let error =
                anyhow!("--user, --issuer and --ca belong to a gateway that is named: --state DIR or --server URL");
            return Err(
                Failure::usage(error).hint("an account that is signed in has them; another one: --account NAME")
            );
        }
        let context = Context::open(&args.context).await?;
        let id = match (&args.name, &args.resource_group, &args.cluster) {
            (Some(name), Some(group), _) => context.cluster(group, name)?.as_str().to_owned(),
            (_, _, Some(id)) => id.clone(),
            _ => {
                return Err(Failure::usage(anyhow!("which cluster?"))
                    .hint("-n NAME -g GROUP; towline list says which there are"));
            }
        };
        let id: ClusterId = id.parse().context("the cluster's id cannot be read").map_err(Failure::usage)?;
        let mut target = Self::of_cluster(context, id);
        if at.outbound.proxy_url.is_some() {
            target.outbound = Outbound::new(&at.outbound).map_err(Failure::usage)?;
        }
        Ok(target)
    }

    /// A cluster of the account that is signed in.
    pub fn of_context(context: &Context, id: &ResourceId) -> anyhow::Result<Self> {
        Ok(Self::of_cluster(context.clone(), id.as_str().parse().context("the cluster's id cannot be read")?))
    }

    fn of_cluster(context: Context, id: ClusterId) -> Self {
        Self {
            state: None,
            server: context.gateway().clone(),
            key: id.key(),
            name: id.name().to_owned(),
            id: Some(id),
            ca_file: None,
            outbound: context.outbound().clone(),
            context: Some(context),
        }
    }

    /// What a kubeconfig calls the cluster. Two resource groups may have one of the same name.
    pub fn entry_name(&self) -> String {
        let group = self.id.as_ref().filter(|_| self.context.is_some());
        let group = group.and_then(|id| ResourceId::parse(id.as_str()).ok());
        match group.as_ref().and_then(|id| id.resource_group()) {
            Some(group) => format!("{group}-{}", self.name),
            None => self.name.clone(),
        }
    }

    /// Asks the gateway for the right to reach the cluster, as `az connectedk8s proxy` does: so what is
    /// wrong is told here, and not by the first kubectl. Without an account there is nobody to ask as.
    pub async fn check(&self, method: &str, client_proxy: bool) -> Outcome<Option<Value>> {
        let (Some(context), Some(id)) = (&self.context, &self.id) else { return Ok(None) };
        let target = at(format!("{}/listClusterUserCredential", id.as_str()), versions::CLUSTERS);
        let body = json!({"authenticationMethod": method, "clientProxy": client_proxy});
        Ok(Some(Api::of(context)?.post(&target, &body).await?.body))
    }

    /// The certificate that the gateway gives beside a service-account token (`authenticationMethod: Token`).
    async fn access_of_account(&self) -> Outcome<Option<Credentials>> {
        let Some(answer) = self.check("Token", true).await? else { return Ok(None) };
        let text = answer["kubeconfigs"][0]["value"].as_str().context("the gateway's answer has no kubeconfig")?;
        let text = BASE64.decode(text).context("the gateway's kubeconfig cannot be read")?;
        let kubeconfig: Value = serde_yaml::from_slice(&text).context("the gateway's kubeconfig cannot be read")?;
        let user = &kubeconfig["users"][0]["user"];
        let pem = |name: &str| user[name].as_str().and_then(|data| BASE64.decode(data).ok());
        match (pem("client-certificate-data"), pem("client-key-data")) {
            (Some(certificate), Some(key)) => Ok(Some(Credentials::from_pem(&certificate, &key)?)),
            _ => Ok(None),
        }
    }

    /// PEM of the authority of the gateway's certificate; none for the system's.
    pub fn ca(&self) -> anyhow::Result<Option<String>> {
        if let Some(context) = &self.context {
            return Ok(context.ca().map(str::to_owned));
        }
        let read = |file| std::fs::read_to_string(file).with_context(|| format!("cannot read {}", Path::display(file)));
        self.ca_file.as_deref().map(read).transpose()
    }

    /// Whom to trust.
    pub fn roots(&self) -> anyhow::Result<Roots> {
        if let Some(context) = &self.context {
            return Ok(context.roots().clone());
        }
        client::roots(self.ca_file.as_deref())
    }

    /// Talks to the gateway.
    pub fn client(&self, credentials: Option<&Credentials>) -> anyhow::Result<Client> {
        Client::new(self.server.clone(), &self.roots()?, credentials, self.outbound.clone())
    }

    /// Signs in as `--user` for this cluster.
    pub fn sign_in(&self, args: &UserArgs) -> Outcome<SignIn> {
        let audience = match (&args.audience, &self.id) {
            (Some(audience), _) => audience.clone(),
            (None, Some(id)) => id.audience(),
            (None, None) => {
                return Err(Failure::usage(anyhow!(
                    "a key does not tell the audience: give --cluster with the ARM id, or --audience"
                )));
            }
        };
        let issuer = match (&args.issuer, &self.state) {
            (Some(issuer), _) => issuer.clone(),
            (None, Some(state)) => state.issuer_url(),
            (None, None) => format!("{}{}", self.server.url(), gateway::issuer::MOUNT),
        };
        sign_in(args, &issuer, &self.roots()?, self.outbound.clone(), audience, self.state.as_ref())
    }

    /// A new certificate as the right to reach this cluster with a service-account token. `person` is
    /// what audit records say.
    pub fn issue_access(&self, person: &str, ttl: Duration) -> Outcome<certs::Issued> {
        let (Some(state), Some(id)) = (&self.state, &self.id) else {
            return Err(Failure::usage(anyhow!(
                "a certificate of access comes from the gateway's authority: only --state DIR can make one here"
            )));
        };
        Ok(state.authority()?.issue_access(id.as_str(), person, Validity::for_duration(ttl))?)
    }

    /// The certificate of the options; for a service-account token of a state one is made, good for `ttl`.
    pub async fn credentials(
        &self,
        files: &CertificateArgs,
        source: &Source,
        ttl: Duration,
    ) -> Outcome<Option<Credentials>> {
        if let (Some(certificate), Some(key)) = (&files.client_certificate, &files.client_key) {
            return Ok(Some(Credentials::load(certificate, key)?));
        }
        if let (Some(_), Source::File(_) | Source::Fixed(_)) = (&self.context, source) {
            return self.access_of_account().await;
        }
        let (Some(state), Source::File(_) | Source::Fixed(_)) = (&self.state, source) else { return Ok(None) };
        let token = source.obtain().await?;
        let token = token.secret.expose_secret();
        let issuer = claims(token).and_then(|claims| Some(claims["iss"].as_str()?.to_owned()));
        if issuer.is_some_and(|issuer| issuer == state.issuer_url()) {
            return Ok(None);
        }
        Ok(Some(self.issue_access(&service_account_name(token), ttl)?.credentials().clone()))
    }

    /// Tokens of the account that is signed in.
    pub fn account_source(&self) -> Outcome<Source> {
        let (Some(context), Some(id)) = (&self.context, &self.id) else {
            return Err(Failure::usage(anyhow!("no account is signed in")));
        };
        Ok(Source::Account { context: Box::new(context.clone()), audience: id.audience() })
    }

    /// The token of `--token-file`, or a sign-in.
    pub fn source(&self, token_file: Option<&Path>, user: &UserArgs) -> Outcome<Source> {
        match token_file {
            Some(file) => Ok(Source::file(file)?),
            None if self.context.is_some() => self.account_source(),
            None => Ok(Source::SignIn(self.sign_in(user)?)),
        }
    }
}

/// Signs in at `issuer`, with the password of the file, the environment or the state.
pub fn sign_in(
    args: &UserArgs,
    issuer: &str,
    roots: &Roots,
    outbound: Outbound,
    audience: String,
    state: Option<&State>,
) -> Outcome<SignIn> {
    let Some(user) = args.user.clone() else {
        return Err(Failure::usage(anyhow!("as whom? --user NAME; a towline dev has admin, viewer and stranger")));
    };
    let kept = state.map(|state| state.password_file(&user)).filter(|file| file.exists());
    let password = match (&args.password_file, environment::password(), kept) {
        (Some(file), _, _) => read_secret(file)?,
        (None, Some(password), _) => password,
        (None, None, Some(file)) => read_secret(&file)?,
        (None, None, None) => {
            let error = anyhow!("there is no password for {user}");
            return Err(Failure::usage(error).hint(format!(
                "--password-file FILE (- for standard input) or the environment variable {}{}",
                environment::PASSWORD,
                state.map_or_else(String::new, |state| format!(
                    "; or make the user: towline dev add-user --state {} {user}",
                    state.dir().display()
                ))
            )));
        }
    };
    let address = Address::parse(issuer).map_err(Failure::usage)?;
    let client = Client::new(address, roots, None, outbound).context("the issuer's address cannot be used")?;
    Ok(SignIn { client, user, password, audience, ttl: args.ttl })
}

/// What audit records call the holder: the token's `sub`, which is not verified here and gives no rights.
pub fn service_account_name(token: &str) -> String {
    let sub = claims(token).and_then(|claims| Some(claims["sub"].as_str()?.to_owned()));
    let plain = sub.filter(|sub| sub.len() <= 64 && !sub.is_empty() && sub.bytes().all(|b| b.is_ascii_graphic()));
    plain.unwrap_or_else(|| "service-account".to_owned())
}
