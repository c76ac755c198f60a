//! `towline account` and `logout`: who is signed in where.

use std::process::ExitCode;

use anyhow::anyhow;
use clap::Subcommand;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use types::instants::rfc3339_seconds;

use super::CommonArgs;
use crate::{
    account::Account,
    api::{Api, at, versions},
    context::{Context, ContextArgs, Folder},
    failure::{Failure, Outcome},
    output::{self, Column, OutputArgs},
};

/// What is shown of an account.
pub const COLUMNS: &[Column] = &[
    ("Current", "/current"),
    ("Name", "/name"),
    ("Type", "/type"),
    ("Gateway", "/gateway"),
    ("Subscription", "/subscription/id"),
    ("SubscriptionName", "/subscription/name"),
];
const SUBSCRIPTION_COLUMNS: &[Column] =
    &[("SubscriptionId", "/subscriptionId"), ("Name", "/displayName"), ("State", "/state"), ("TenantId", "/tenantId")];

/// The accounts that are signed in, and the subscription to work in
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub action: AccountAction,
    /// Which account, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `towline account <action>`.
#[derive(Debug, Subcommand)]
pub enum AccountAction {
    /// The accounts that are signed in; with --all also every subscription that the current one sees
    List {
        /// Ask the gateway for all subscriptions of the current account
        #[arg(long)]
        all: bool,
    },
    /// The current account
    Show,
    /// Use another account, or another subscription, from now on
    Set {
        /// The account
        #[arg(value_name = "NAME")]
        name: Option<String>,
    },
    /// Print a token for the gateway's resource API, for other programs
    Token,
}

/// Without its secrets.
pub fn shown(account: &Account, current: bool) -> Value {
    json!({
        "name": account.name,
        "current": current,
        "type": account.signs_in.kind(),
        "user": account.user,
        "objectId": account.object_id,
        "gateway": account.gateway,
        "tenantId": account.tenant,
        "subscription": {"id": account.subscription, "name": account.subscription_name},
    })
}

/// `towline account <action>`.
pub async fn run(args: Args) -> Outcome {
    let (context, output) = (&args.common.context, &args.common.output);
    match &args.action {
        AccountAction::List { all: true } => {
            let api = Api::of(&Context::open(context).await?)?;
            let rows = api.list(&at("/subscriptions", versions::SUBSCRIPTIONS)).await?;
            output::print_list(rows, output, SUBSCRIPTION_COLUMNS, "no subscriptions that you may see")?;
        }
        AccountAction::List { all: false } => {
            let folder = Folder::open()?;
            let current = folder.current()?;
            let rows = folder.accounts()?;
            let rows: Vec<_> = rows.iter().map(|one| shown(one, Some(&one.name) == current.as_ref())).collect();
            output::print_list(rows, output, COLUMNS, "no accounts; towline login GATEWAY makes one")?;
        }
        AccountAction::Show => {
            let context = Context::open(context).await?;
            let mut value = shown(context.account(), true);
            // What the environment or an option chose, too.
            value["subscription"]["id"] = context.subscription().map_or(Value::Null, |id| id.name().into());
            output::print(&value, output, COLUMNS)?;
        }
        AccountAction::Set { name } => set(name.as_deref(), context, output).await?,
        AccountAction::Token => {
            let context = Context::open(context).await?;
            let token = context.api_token().await?;
            let value = json!({
                "accessToken": token.secret.expose_secret(),
                "expiresOn": token.expires.map(rfc3339_seconds),
                "tenant": context.account().tenant,
                "tokenType": "Bearer",
            });
            output::print(&value, output, &[("AccessToken", "/accessToken"), ("ExpiresOn", "/expiresOn")])?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Another account, another subscription, or both.
async fn set(name: Option<&str>, args: &ContextArgs, output: &OutputArgs) -> Outcome<()> {
    let name = name.or(args.account.as_deref());
    if name.is_none() && args.subscription.is_none() {
        return Err(Failure::usage(anyhow!("what is to be set?"))
            .hint("towline account set NAME, or towline account set --subscription ID"));
    }
    let folder = Folder::open()?;
    let mut account = folder.account(name)?;
    if let Some(asked) = &args.subscription {
        let context = ContextArgs { account: Some(account.name.clone()), ..args.clone() };
        let rows =
            Api::of(&Context::open(&context).await?)?.list(&at("/subscriptions", versions::SUBSCRIPTIONS)).await?;
        let is = |value: &Value| value.as_str().is_some_and(|text| text.eq_ignore_ascii_case(asked));
        let found = rows.iter().find(|row| is(&row["subscriptionId"]) || is(&row["displayName"]));
        let found = found.ok_or_else(|| {
            Failure::from(anyhow!("{} sees no subscription {asked}", account.name))
                .hint("it has no role there: an owner gives it one (towline role assignment create); towline account list --all shows what it sees")
        })?;
        let lock = folder.lock(&account.name).await?;
        account = folder.account(Some(&account.name))?;
        account.subscription = found["subscriptionId"].as_str().map(str::to_owned);
        account.subscription_name = found["displayName"].as_str().map(str::to_owned);
        folder.write(&account, &lock)?;
    }
    folder.set_current(Some(&account.name))?;
    output::print(&shown(&account, true), output, COLUMNS)
}
