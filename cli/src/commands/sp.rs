//! `towline sp`: service principals of the gateway's own issuer. Only who owns the gateway may.

use std::{io::Write, os::unix::fs::OpenOptionsExt, path::Path, process::ExitCode, time::Duration};

use anyhow::Context as _;
use clap::Subcommand;
use daemon::settings::positive_duration;
use serde_json::{Value, json};

use super::{
    CommonArgs, confirm,
    role::{ScopeArgs, assign},
};
use crate::{
    api::{Api, at, encoded, versions},
    context::Context,
    failure::{Failure, Hint, Outcome},
    output::{self, Column},
    terminal::say,
};

const PRINCIPALS: &str = "/providers/Microsoft.Authorization/servicePrincipals";
const COLUMNS: &[Column] = &[
    ("Name", "/displayName"),
    ("ClientId", "/clientId"),
    ("ObjectId", "/objectId"),
    ("Disabled", "/disabled"),
    ("SecretEnds", "/secrets/0/expires"),
];
const MADE: &[Column] = &[
    ("Name", "/displayName"),
    ("ClientId", "/clientId"),
    ("ObjectId", "/objectId"),
    ("ClientSecret", "/clientSecret"),
    ("Gateway", "/gateway"),
    ("Tenant", "/tenantId"),
];

/// Service principals: what automation signs in as
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub action: SpAction,
    /// As whom, and how it is printed.
    #[command(flatten)]
    pub common: CommonArgs,
}

/// `towline sp <action>`.
#[derive(Debug, Subcommand)]
pub enum SpAction {
    /// Make a service principal; its secret is shown this once
    Create {
        /// How it is called
        #[arg(value_name = "NAME")]
        name: String,
        /// Give it this role, by name or id
        #[arg(long, value_name = "ROLE")]
        role: Option<String>,
        /// Where the role is given.
        #[command(flatten)]
        scope: ScopeArgs,
        /// How long the secret is good for, such as 720h; a year without this
        #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
        ttl: Option<Duration>,
        /// Write the secret to this new file (0600) instead of showing it
        #[arg(long, value_name = "FILE")]
        secret_file: Option<std::path::PathBuf>,
    },
    /// The service principals of the gateway
    List,
    /// One service principal
    Show {
        /// Name, object id or client id
        #[arg(value_name = "NAME|ID")]
        name: String,
    },
    /// Give a service principal a new secret, instead of those that it has
    Rotate {
        /// Name, object id or client id
        #[arg(value_name = "NAME|ID")]
        name: String,
        /// Leave the present secrets good as well; a further rotation without this ends them
        #[arg(long)]
        append: bool,
        /// How long the secret is good for, such as 720h; a year without this
        #[arg(long, value_name = "DURATION", value_parser = positive_duration)]
        ttl: Option<Duration>,
        /// Write the secret to this new file (0600) instead of showing it
        #[arg(long, value_name = "FILE")]
        secret_file: Option<std::path::PathBuf>,
    },
    /// Delete a service principal: no tokens any more, and its sessions end
    Delete {
        /// Name, object id or client id
        #[arg(value_name = "NAME|ID")]
        name: String,
        /// Do not ask
        #[arg(short = 'y', long)]
        yes: bool,
    },
}

/// `towline sp <action>`.
pub async fn run(args: Args) -> Outcome {
    let context = Context::open(&args.common.context).await?;
    let (api, output) = (Api::of(&context)?, &args.common.output);
    let of = |key: &str| format!("{PRINCIPALS}/{}", encoded(key).replace('+', "%20"));
    match args.action {
        SpAction::Create { name, role, scope, ttl, secret_file } => {
            let file = secret_file.as_deref().map(reserve).transpose()?;
            let made = api.post(&at(PRINCIPALS, versions::AUTHORIZATION), &wish(Some(&name), ttl)).await;
            let mut made = settle(made, secret_file.as_deref())?.body;
            if let Some(role) = role {
                let id = made["objectId"]
                    .as_str()
                    .context("the gateway made a service principal without an object id")?
                    .to_owned();
                let given = assign(&context, &id, &role, &scope).await;
                if let Err(error) = given {
                    // Half of what was asked for is nothing.
                    api.delete(&at(of(&id), versions::AUTHORIZATION)).await?;
                    settle(Err::<(), _>(error), secret_file.as_deref())?;
                }
            }
            keep(&mut made, "clientSecret", file)?;
            output::print(&with_place(made, &context), output, MADE)?;
        }
        SpAction::List => {
            output::print_list(
                api.list(&at(PRINCIPALS, versions::AUTHORIZATION)).await?,
                output,
                COLUMNS,
                "no service principals; towline sp create makes one",
            )?;
        }
        SpAction::Show { name } => {
            output::print(&api.get(&at(of(&name), versions::AUTHORIZATION)).await?, output, COLUMNS)?;
        }
        SpAction::Rotate { name, append, ttl, secret_file } => {
            let file = secret_file.as_deref().map(reserve).transpose()?;
            let mut body = wish(None, ttl);
            body["keepExisting"] = append.into();
            let made = api.post(&at(format!("{}/rotate", of(&name)), versions::AUTHORIZATION), &body).await;
            let mut made = settle(made, secret_file.as_deref())?.body;
            keep(&mut made, "clientSecret", file)?;
            output::print(&with_place(made, &context), output, MADE)?;
        }
        SpAction::Delete { name, yes } => {
            confirm(&format!("Delete the service principal {name}, and end what it has open?"), yes).await?;
            delete(&api, &of(&name), &name).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn delete(api: &Api, target: &str, name: &str) -> Outcome<()> {
    let answer = api.delete(&at(target, versions::AUTHORIZATION)).await?;
    say(&match answer.status {
        http::StatusCode::NO_CONTENT => format!("there was no service principal {name}"),
        _ => format!("deleted service principal {name}"),
    });
    Ok(())
}

fn wish(name: Option<&str>, ttl: Option<Duration>) -> Value {
    let mut body = json!({});
    if let Some(name) = name {
        body["displayName"] = name.into();
    }
    if let Some(ttl) = ttl {
        body["secretLifetimeSeconds"] = ttl.as_secs().max(1).into();
    }
    body
}

/// The file is made before the secret is: one that has nowhere to go would be lost.
pub(super) fn reserve(path: &Path) -> Outcome<std::fs::File> {
    let file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = file.with_context(|| format!("--secret-file: cannot make {}", path.display())).map_err(Failure::usage);
    file.hint(|| "no file is written over: name one that is not there, in a folder that is".to_owned())
}

/// After a failure there is no empty file.
pub(super) fn settle<T>(result: Outcome<T>, file: Option<&Path>) -> Outcome<T> {
    if let (Err(_), Some(file)) = (&result, file) {
        // The failure is what matters.
        let _ = std::fs::remove_file(file);
    }
    result
}

/// Moves the secret of this name into its file.
pub(super) fn keep(made: &mut Value, name: &str, file: Option<std::fs::File>) -> Outcome<()> {
    let Some(mut file) = file else {
        say("The secret is shown this once; the gateway keeps only its hash.");
        return Ok(());
    };
    let secret = made[name].take();
    writeln!(file, "{}", secret.as_str().unwrap_or_default()).context("--secret-file: cannot write the secret")?;
    if let Some(made) = made.as_object_mut() {
        made.remove(name);
    }
    Ok(())
}

/// With what else a script needs to sign in.
fn with_place(mut made: Value, context: &Context) -> Value {
    made["gateway"] = context.account().gateway.as_str().into();
    made["tenantId"] = context.account().tenant.as_str().into();
    made
}
