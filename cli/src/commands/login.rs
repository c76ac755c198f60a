//! `towline login`: signs a person or a service principal in at a gateway, and keeps the account in the folder of
//! accounts (`context`), where all other commands find it. What it needs to know beside the address it asks the
//! gateway. How a sign-in goes is in `oauth`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, anyhow};
use clap::Parser;
use gateway::issuer::clients::COMMAND_CLIENT;
use http::StatusCode;
use secrecy::SecretString;
use serde_json::Value;

use super::{
    Cli, Command,
    account::{COLUMNS, shown},
};
use crate::{
    account::{Account, IssuerAt, SignsIn},
    api::{Api, ApiError, at, versions},
    client::{Address, Client, Outbound, OutboundArgs},
    context::{Context, Folder, tokens},
    environment,
    failure::{Failure, Outcome},
    oauth::{self, Grant, TokenEndpoint},
    output::{self, OutputArgs},
    secret::read_secret,
    terminal::say,
};

/// Sign in at a gateway
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Automation needs no login: with TOWLINE_GATEWAY, TOWLINE_CLIENT_ID and TOWLINE_CLIENT_SECRET (or \
    TOWLINE_CLIENT_SECRET_FILE), and if needed TOWLINE_CA_FILE, TOWLINE_TENANT and TOWLINE_SUBSCRIPTION, every command \
    signs in as that service principal and keeps nothing.\n\nAccounts are kept in TOWLINE_CONFIG_DIR, else \
    $XDG_CONFIG_HOME/towline or ~/.config/towline, for you alone (0600)."
)]
pub struct Args {
    /// The gateway, such as https://gateway.example.org; that of the current account without this
    #[arg(value_name = "URL")]
    pub gateway: Option<String>,
    /// PEM file of the authority of the gateway's certificate; the system's without this
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
    /// The tenant that is expected there
    #[arg(long, value_name = "ID")]
    pub tenant: Option<String>,
    /// Sign in as a service principal
    #[arg(long, requires = "username", conflicts_with_all = ["device_code", "browser", "issuer"])]
    pub service_principal: bool,
    /// The service principal's client id
    #[arg(short = 'u', long, value_name = "ID", requires = "service_principal")]
    pub username: Option<String>,
    /// Its secret. Everybody on this machine can read command lines: --secret-file, or TOWLINE_CLIENT_SECRET, is better
    #[arg(short = 'p', long, value_name = "SECRET", requires = "service_principal", hide_short_help = true)]
    pub password: Option<String>,
    /// File with its secret; - is standard input
    #[arg(long, value_name = "FILE", requires = "service_principal", conflicts_with = "password")]
    pub secret_file: Option<PathBuf>,
    /// Show a code to enter in a browser on any machine; this is what happens without an option
    #[arg(long)]
    pub device_code: bool,
    /// Open a browser on this machine
    #[arg(long, conflicts_with = "device_code")]
    pub browser: bool,
    /// Another issuer than the gateway's own, whose users the gateway takes
    #[arg(long, value_name = "URL", requires = "client_id")]
    pub issuer: Option<String>,
    /// The id of this program at that issuer
    #[arg(long, value_name = "ID", requires = "issuer")]
    pub client_id: Option<String>,
    /// What is asked of that issuer
    #[arg(long, value_name = "SCOPES", requires = "issuer", default_value = "openid profile email offline_access")]
    pub scope: String,
    /// What its page is to ask once more, such as consent: some issuers let nobody stay signed in without it
    #[arg(long, value_name = "WORD", requires_all = ["issuer", "browser"])]
    pub prompt: Option<String>,
    /// PEM file of the authority of that issuer's certificate; the gateway's without this
    #[arg(long, value_name = "FILE", requires = "issuer")]
    pub issuer_ca: Option<PathBuf>,
    /// How the account is called; <user>@<gateway> without this
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
    /// The subscription to work in; the first one without this
    #[arg(long, value_name = "ID")]
    pub subscription: Option<String>,
    /// How to get there.
    #[command(flatten)]
    pub outbound: OutboundArgs,
    /// How the account is printed.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Signs in, asks which subscriptions there are, and keeps the account as the current one.
pub async fn run(args: Args) -> Outcome {
    sign_in(args, None).await
}

/// With the authority of an external issuer that is known already.
async fn sign_in(args: Args, issuer_ca: Option<String>) -> Outcome {
    let folder = Folder::open()?;
    let mut account = begin(&args, &folder)?;
    oauth::discover_gateway(&mut account, args.tenant.as_deref()).await?;
    let outbound = Outbound::new(&account.outbound()).map_err(Failure::usage)?;
    let called = account.audience.clone();
    if args.issuer.is_some() {
        account.audience = account.external_audience();
    }
    let audience = account.audience.clone();
    let answer = match (args.service_principal, &args.issuer) {
        (true, _) => service_principal(&args, &mut account, &outbound).await?,
        (false, Some(issuer)) => external(&args, issuer, issuer_ca, &mut account, &outbound).await?,
        (false, None) => user(&args, &mut account, &outbound).await?,
    };
    let token = tokens::keep(&mut account, &audience, answer);
    let (name, object_id) = oauth::holder(&token);
    account.user = match &account.signs_in {
        SignsIn::ServicePrincipal { client_id, .. } => client_id.clone(),
        _ => name.context("the issuer's token does not say who it is for")?,
    };
    account.object_id = object_id;
    account.name = match &args.name {
        Some(name) => name.clone(),
        None => account.default_name()?,
    };
    let context = Context::with(account.clone(), None, None, gateway::guid::random()?)?;
    if args.issuer.is_some() {
        // With the prefix that this gateway gives that issuer's people: so role assignments name them.
        let me = Api::of(&context)?.get("/v1.0/me").await.map_err(|failure| not_taken(failure, &account, &called))?;
        account.object_id = me["id"].as_str().unwrap_or(&account.object_id).to_owned();
    }
    choose_subscription(&context, &mut account, args.subscription.as_deref()).await?;
    // Only now, and at once: what was interrupted before has left nothing.
    let lock = folder.lock(&account.name).await?;
    folder.write(&account, &lock)?;
    folder.set_current(Some(&account.name))?;
    output::print(&shown(&account, true), &args.output, COLUMNS)?;
    Ok(ExitCode::SUCCESS)
}

/// Signs the person of an account in again, for a program that needs a token now; what is the current account stays
/// that.
///
/// # Errors
/// When it is no person's, or they do not sign in.
pub async fn again(context: &Context) -> Outcome<()> {
    let account = context.account();
    let mut issuer_ca = None;
    let mut words = vec!["towline", "login", account.gateway.as_str(), "--name", account.name.as_str(), "-o", "none"];
    match &account.signs_in {
        SignsIn::User { client_id, external: Some(issuer), .. } => {
            issuer_ca.clone_from(&issuer.ca);
            words.extend([
                "--issuer",
                issuer.url.as_str(),
                "--client-id",
                client_id.as_str(),
                "--scope",
                issuer.scope.as_str(),
            ]);
        }
        SignsIn::User { external: None, .. } => {}
        _ => {
            return Err(Failure::from(anyhow!("the sign-in of {} is no longer valid", account.name))
                .hint("towline login --help"));
        }
    }
    let args = Cli::try_parse_from(words).context("cannot sign in again")?;
    let Command::Login(mut args) = args.command else { return Err(anyhow!("no login").into()) };
    args.subscription.clone_from(&account.subscription);
    args.outbound = account.outbound();
    let (folder, user) = (Folder::open()?, account.user.clone());
    let current = folder.current()?;
    say(&format!("The sign-in of {user} at {} has ended.", account.gateway));
    sign_in(args, issuer_ca).await?;
    folder.set_current(current.as_deref())
}

/// The gateway that was typed, or again the one of the current account.
fn begin(args: &Args, folder: &Folder) -> Outcome<Account> {
    let known = |gateway: Option<&str>| {
        let accounts = folder.accounts().unwrap_or_default();
        let current = folder.current().ok().flatten();
        match gateway {
            Some(url) => accounts.into_iter().find(|account| account.gateway.eq_ignore_ascii_case(url)),
            None => accounts.into_iter().find(|account| Some(&account.name) == current.as_ref()),
        }
    };
    let automation = environment::automation();
    let gateway = args.gateway.clone().or(automation.gateway);
    let ca = args.ca.clone().or(automation.ca_file);
    let mut account = match gateway {
        Some(url) => Account::at(&url, ca.as_deref())?,
        None => {
            let known = known(None).ok_or_else(|| {
                Failure::usage(anyhow!("which gateway?")).hint("towline login https://GATEWAY [--ca FILE]")
            })?;
            Account::at(&known.gateway, ca.as_deref())?
        }
    };
    if account.ca.is_none() {
        // Who signs in again need not repeat what is known of the same gateway.
        account.ca = known(Some(&account.gateway)).and_then(|known| known.ca);
    }
    account.set_outbound(&args.outbound);
    Ok(account)
}

async fn service_principal(args: &Args, account: &mut Account, outbound: &Outbound) -> Outcome<oauth::Answer> {
    let client_id = args.username.clone().context("--username").map_err(Failure::usage)?;
    let automation = environment::automation();
    let secret: SecretString = match (&args.secret_file, &args.password, automation.client_secret) {
        (Some(file), ..) => read_secret(file).map_err(Failure::usage)?,
        (None, Some(password), _) => password.clone().into(),
        (None, None, Some(secret)) => secret,
        (None, None, None) => match automation.client_secret_file {
            Some(file) => read_secret(&file).map_err(Failure::usage)?,
            None => {
                return Err(Failure::usage(anyhow!("there is no secret for {client_id}")).hint(format!(
                    "--secret-file FILE (- for standard input), or the environment variable {}",
                    environment::CLIENT_SECRET
                )));
            }
        },
    };
    account.signs_in = SignsIn::service_principal(client_id.clone(), &secret);
    let SignsIn::ServicePrincipal { client_secret, .. } = &account.signs_in else {
        return Err(anyhow!("no service principal").into());
    };
    let grant = Grant::ClientCredentials { client_id: &client_id, secret: &client_secret.0 };
    let answer = TokenEndpoint::of(account, outbound)?.redeem(&grant, &account.audience).await;
    answer.map_err(|error| {
        let wrong = error.downcast_ref::<oauth::Refused>().is_some_and(oauth::Refused::is_over);
        let failure = Failure::from(error);
        if wrong {
            failure.hint("check client id (not the object id) and secret; a new one: towline sp rotate NAME")
        } else {
            failure
        }
    })
}

async fn user(args: &Args, account: &mut Account, outbound: &Outbound) -> Outcome<oauth::Answer> {
    let scope = format!("openid profile offline_access {}/.default", account.audience);
    let address = Address::parse(&format!("{}{}", account.gateway, gateway::issuer::MOUNT))?;
    let client = Client::new(address, &account.roots()?, None, outbound.clone())?;
    let endpoints = oauth::discover_issuer(&client, true).await?;
    account.signs_in = SignsIn::User { client_id: COMMAND_CLIENT.to_owned(), refresh_token: None, external: None };
    let tokens = TokenEndpoint::of(account, outbound)?;
    let asked = oauth::Asked { client_id: COMMAND_CLIENT, scope: &scope, audience: &account.audience };
    page(args, &client, &endpoints, &tokens, asked).await
}

async fn external(
    args: &Args,
    issuer: &str,
    known_ca: Option<String>,
    account: &mut Account,
    outbound: &Outbound,
) -> Outcome<oauth::Answer> {
    let client_id = args.client_id.clone().context("--client-id").map_err(Failure::usage)?;
    let ca = args.issuer_ca.as_deref().map(|file| oauth::read_ca("--issuer-ca", file)).transpose();
    let ca = ca.map_err(Failure::usage)?.or(known_ca);
    let roots = match &ca {
        Some(pem) => certs::Roots::from_pem(pem.as_bytes())?,
        // It may be beside the gateway, or a public one.
        None => account.roots()?.and(&certs::Roots::public()),
    };
    let client = Client::new(Address::parse(issuer).map_err(Failure::usage)?, &roots, None, outbound.clone())?;
    let endpoints = oauth::discover_issuer(&client, false).await?;
    let issuer = IssuerAt {
        url: endpoints.issuer.clone(),
        token_endpoint: endpoints.token.clone(),
        ca,
        scope: args.scope.clone(),
    };
    account.signs_in = SignsIn::User { client_id: client_id.clone(), refresh_token: None, external: Some(issuer) };
    let tokens = TokenEndpoint::of(account, outbound)?;
    let asked = oauth::Asked { client_id: &client_id, scope: &args.scope, audience: &account.audience };
    let answer = page(args, &client, &endpoints, &tokens, asked).await?;
    if answer.refresh_token.is_none() {
        // OpenID Connect Core section 11: it may be given only to who has consented in that very sign-in.
        let hint = if args.browser { "--prompt consent may help" } else { "its settings for this client decide" };
        tracing::warn!(
            "{} gave no refresh token: this sign-in is good until its token ends, not longer; {hint}",
            endpoints.issuer
        );
    }
    Ok(answer)
}

/// A token that the issuer gave and the gateway does not take. `called`: what the gateway calls itself.
fn not_taken(failure: Failure, account: &Account, called: &str) -> Failure {
    if ApiError::behind(&failure).is_some_and(|error| error.status != StatusCode::UNAUTHORIZED) {
        return failure;
    }
    if account.audience != called {
        return failure.hint(format!(
            "the gateway at {} says that its address is {called}: another issuer's tokens for that are shown only to who answers there; if that is the gateway you mean: towline login {called}",
            account.gateway
        ));
    }
    failure.hint(
        "the gateway must know this issuer and take its tokens at the API: [[issuers]], api_audiences = [\"CLIENT ID\"] in \
         its settings, or an access token for the gateway's URL (--scope)",
    )
}

async fn page(
    args: &Args,
    client: &Client,
    endpoints: &oauth::Endpoints,
    tokens: &TokenEndpoint,
    asked: oauth::Asked<'_>,
) -> Outcome<oauth::Answer> {
    match (&endpoints.device, args.browser) {
        (Some(device), false) => {
            let page = endpoints.device_page.as_deref();
            oauth::device::sign_in(client, device, page, tokens, asked).await
        }
        (None, false) if args.device_code => {
            Err(Failure::from(anyhow!("{} does not support device codes", endpoints.issuer)).hint("--browser"))
        }
        _ => oauth::browser::sign_in(endpoints, tokens, asked, args.prompt.as_deref()).await,
    }
}

/// The subscription that was asked for, else the first one that is seen; none where the account has no right yet.
async fn choose_subscription(context: &Context, account: &mut Account, asked: Option<&str>) -> Outcome<()> {
    let asked = asked.map(str::to_owned).or_else(environment::subscription);
    let seen = Api::of(context)?.list(&at("/subscriptions", versions::SUBSCRIPTIONS)).await?;
    let id = |row: &Value| row["subscriptionId"].as_str().map(str::to_owned);
    let found = match &asked {
        Some(asked) => seen.iter().find(|row| {
            [&row["subscriptionId"], &row["displayName"]]
                .iter()
                .any(|name| name.as_str().is_some_and(|n| n.eq_ignore_ascii_case(asked)))
        }),
        None => seen.first(),
    };
    if found.is_none() && asked.is_some() {
        let known: Vec<String> = seen.iter().filter_map(id).collect();
        return Err(Failure::from(anyhow!("{} sees no subscription {}", account.user, asked.unwrap_or_default()))
            .hint(format!("it sees {}", if known.is_empty() { "none".to_owned() } else { known.join(", ") })));
    }
    if found.is_none() {
        tracing::warn!(
            "signed in; {} (object id {}) has no right at any subscription yet: an owner gives one, such as with towline role assignment create --role Contributor --scope /subscriptions/ID --assignee {}{}",
            account.user,
            account.object_id,
            account.object_id,
            // The gateway cannot tell what another issuer's ids are of.
            if matches!(account.signs_in, SignsIn::User { external: Some(_), .. }) {
                " --assignee-type User"
            } else {
                ""
            }
        );
    }
    account.subscription = found.and_then(id);
    account.subscription_name = found.and_then(|row| row["displayName"].as_str().map(str::to_owned));
    Ok(())
}
