//! Who is signed in where. `towline login` keeps an account, every other command reads it, and tokens are renewed
//! silently.
//!
//! | where | what |
//! |---|---|
//! | `accounts/<name>.json` | one account: gateway, authority, tenant, subscription, how it signs in, tokens ([`Account`]) |
//! | `current.json` | which account is used without `--account` ([`folder`]) |
//!
//! All files are for their owner alone (0600), replaced whole, and edited under a lock, because refresh tokens are good
//! once: two commands at the same time must not both use one. Automation needs no folder: `TOWLINE_GATEWAY`,
//! `TOWLINE_CLIENT_ID` and `TOWLINE_CLIENT_SECRET` are an account that lives as long as the command.

pub mod folder;
pub mod tokens;

use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use certs::Roots;
use clap::Args;
use tokio::sync::Mutex;
use types::api::ResourceId;

pub use self::folder::Folder;
use crate::{
    account::{Account, SignsIn},
    client::{Address, Client, Outbound},
    environment,
    failure::{Advised, Failure, Outcome},
    oauth,
    secret::read_secret,
    token::Token,
};

/// The provider and type of clusters.
pub const CLUSTERS: (&str, &str) = ("Microsoft.Kubernetes", "connectedClusters");

/// As which account, and in which subscription.
#[derive(Debug, Args, Clone, Default)]
pub struct ContextArgs {
    /// The account, as `towline account list` names it; the current one without this
    #[arg(long, value_name = "NAME", global = true, help_heading = "Account")]
    pub account: Option<String>,
    /// The subscription's id; TOWLINE_SUBSCRIPTION or that of the account without this
    #[arg(long, value_name = "ID", global = true, help_heading = "Account")]
    pub subscription: Option<String>,
    /// Names what this command does in the gateway's logs, a GUID; a new one without this
    #[arg(long, value_name = "GUID", global = true, help_heading = "Account")]
    pub correlation_id: Option<String>,
}

/// An account in use.
#[derive(Clone)]
pub struct Context {
    held: Arc<Mutex<Account>>,
    /// As it was read; tokens change in `held`.
    account: Account,
    /// Where it is kept; automation's is not.
    folder: Option<Folder>,
    roots: Roots,
    gateway: Address,
    outbound: Outbound,
    subscription: Option<String>,
    correlation: String,
}

impl Context {
    /// The account of `--account`, of the environment, or the current one.
    ///
    /// # Errors
    /// When no user is signed in, with what to type.
    pub async fn open(args: &ContextArgs) -> Outcome<Self> {
        let correlation = correlation(args)?;
        let automation = environment::automation();
        let (account, folder) = match (&args.account, automation.gateway.is_some()) {
            (None, true) => (Self::of_environment(automation).await?, None),
            (asked, _) => {
                let folder = Folder::open()?;
                (folder.account(asked.as_deref())?, Some(folder))
            }
        };
        let subscription = args.subscription.clone().or_else(environment::subscription);
        Self::with(account, folder, subscription, correlation)
    }

    /// An account with where it is kept.
    pub fn with(
        account: Account,
        folder: Option<Folder>,
        subscription: Option<String>,
        correlation: String,
    ) -> Outcome<Self> {
        Ok(Self {
            roots: account.roots()?,
            gateway: Address::parse(&account.gateway)?,
            outbound: Outbound::new(&account.outbound()).map_err(Failure::usage)?,
            subscription: subscription.or_else(|| account.subscription.clone()),
            held: Arc::new(Mutex::new(account.clone())),
            account,
            folder,
            correlation,
        })
    }

    /// A gateway, as nobody: for what needs no sign-in.
    pub fn of_nobody(account: Account, args: &ContextArgs) -> Outcome<Self> {
        Self::with(account, None, args.subscription.clone(), correlation(args)?)
    }

    async fn of_environment(from: environment::Automation) -> Outcome<Account> {
        let missing = |name: &str| {
            let error = anyhow!("{} is set and {name} is not", environment::GATEWAY);
            Failure::usage(error).hint("set it too, or unset the first and sign in: towline login URL")
        };
        let gateway = from.gateway.ok_or_else(|| missing(environment::GATEWAY))?;
        let client_id = from.client_id.ok_or_else(|| missing(environment::CLIENT_ID))?;
        let client_secret = match (from.client_secret, from.client_secret_file) {
            (Some(secret), _) => secret,
            (None, Some(file)) => read_secret(&file)?,
            (None, None) => return Err(missing(environment::CLIENT_SECRET)),
        };
        let mut account = Account::at(&gateway, from.ca_file.as_deref())?;
        oauth::discover_gateway(&mut account, from.tenant.as_deref()).await?;
        account.signs_in = SignsIn::service_principal(client_id.clone(), &client_secret);
        account.user = client_id;
        account.name = account.default_name()?;
        Ok(account)
    }

    /// As it was read.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Whether it outlives this command.
    pub fn is_kept(&self) -> bool {
        self.folder.is_some()
    }

    /// Address of the gateway that the account is at.
    pub fn gateway(&self) -> &Address {
        &self.gateway
    }

    /// Whom to trust as the gateway.
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// PEM of the authority of the gateway's certificate; none for the system's.
    pub fn ca(&self) -> Option<&str> {
        self.account.ca.as_deref()
    }

    /// How connections leave this machine.
    pub fn outbound(&self) -> &Outbound {
        &self.outbound
    }

    /// Names what several requests belong to (docs/features.md D6), a GUID.
    pub fn correlation(&self) -> &str {
        &self.correlation
    }

    /// Talks to the gateway.
    pub fn client(&self) -> anyhow::Result<Client> {
        Client::new(self.gateway.clone(), &self.roots, None, self.outbound.clone())
    }

    /// The subscription to work in.
    ///
    /// # Errors
    /// When none is chosen.
    pub fn subscription(&self) -> Outcome<ResourceId> {
        let id = self.subscription.as_deref().ok_or_else(|| {
            Failure::usage(anyhow!("no subscription is chosen for {}", self.account.name))
                .hint("towline account list, then towline account set --subscription ID; an account that was given no role yet sees none, and an owner gives it one (towline role assignment create)")
        })?;
        ResourceId::top(id).context("--subscription").map_err(Failure::usage)
    }

    /// The id of a resource group.
    ///
    /// # Errors
    /// When there is no subscription, or it cannot be a group's name.
    pub fn group(&self, group: &str) -> Outcome<ResourceId> {
        self.subscription()?.group(group).context("--resource-group").map_err(Failure::usage)
    }

    /// The id of a cluster.
    ///
    /// # Errors
    /// As [`Self::group`].
    pub fn cluster(&self, group: &str, name: &str) -> Outcome<ResourceId> {
        self.group(group)?.on(CLUSTERS.0, CLUSTERS.1, name).context("--name").map_err(Failure::usage)
    }

    /// A token for the gateway's own API.
    pub async fn api_token(&self) -> anyhow::Result<Token> {
        self.token(&self.account.audience).await
    }

    /// Forgets what is kept for an audience: it was refused.
    pub async fn forget_token(&self, audience: &str) {
        self.held.lock().await.tokens.remove(tokens::place(&self.account, audience));
    }

    /// A token for an audience: kept, or a new one, which is kept.
    ///
    /// # Errors
    /// When the account can get none any more; says how to sign in again.
    pub async fn token(&self, audience: &str) -> anyhow::Result<Token> {
        // One at a time in this process, and by a lock on the account's file in all.
        let mut held = self.held.lock().await;
        if let Some(token) = tokens::kept(&held, audience) {
            return Ok(token);
        }
        let place = tokens::place(&self.account, audience);
        let refused = !held.tokens.contains_key(place) && self.account.tokens.contains_key(place);
        let Some(folder) = &self.folder else {
            return tokens::obtain(&mut held, audience, &self.outbound).await.map_err(|error| self.again(error));
        };
        let lock = folder.lock(&held.name).await.map_err(Failure::into_error)?;
        // Somebody else may have been faster.
        *held = folder.account(Some(&held.name)).map_err(Failure::into_error)?;
        if refused {
            held.tokens.remove(place);
        }
        if let Some(token) = tokens::kept(&held, audience) {
            return Ok(token);
        }
        let result = tokens::obtain(&mut held, audience, &self.outbound).await;
        // A refresh token that was given in exchange is the only good one now, also where the rest failed.
        folder.write(&held, &lock).map_err(Failure::into_error)?;
        result.map_err(|error| self.again(error))
    }

    /// The next thing to type where an account gets no token any more.
    fn again(&self, error: anyhow::Error) -> anyhow::Error {
        let ended =
            error.chain().any(|cause| cause.downcast_ref::<oauth::Refused>().is_some_and(oauth::Refused::is_over));
        if !ended {
            return error;
        }
        let hint = match &self.account.signs_in {
            SignsIn::Nobody | SignsIn::User { .. } => format!("sign in again: towline login {}", self.account.gateway),
            SignsIn::ServicePrincipal { client_id, .. } => format!(
                "its secret may have been rotated: towline login {} --service-principal -u {client_id} --secret-file FILE",
                self.account.gateway
            ),
        };
        error.context(Advised::new(format!("the sign-in of {} is no longer valid", self.account.name), hint))
    }
}

/// `--correlation-id`, or a new one (docs/features.md D6: what is no GUID is replaced).
fn correlation(args: &ContextArgs) -> Outcome<String> {
    match &args.correlation_id {
        Some(id) if gateway::guid::is_guid(id) => Ok(id.to_ascii_lowercase()),
        asked => {
            let fresh = gateway::guid::random()?;
            if asked.is_some() {
                tracing::warn!("--correlation-id is not a GUID; {fresh} is used instead");
            }
            Ok(fresh)
        }
    }
}
