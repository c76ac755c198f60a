//! `towline logout`: forgets accounts.

use std::process::ExitCode;

use anyhow::anyhow;

use crate::{
    context::Folder,
    failure::{Failure, Outcome},
    terminal::say,
};

/// Forget an account
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The account; the current one without this
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// All accounts
    #[arg(long, conflicts_with = "name")]
    pub all: bool,
}

pub async fn run(args: Args) -> Outcome {
    let folder = Folder::open()?;
    let current = folder.current()?;
    let names = match (&args.name, args.all) {
        (_, true) => folder.accounts()?.into_iter().map(|account| account.name).collect(),
        (Some(name), _) => vec![folder.account(Some(name))?.name],
        (None, false) => match &current {
            Some(name) => vec![name.clone()],
            None => return Err(Failure::from(anyhow!("no user is signed in")).hint("towline account list")),
        },
    };
    for name in &names {
        let lock = folder.lock(name).await?;
        folder.remove(name, &lock)?;
        say(&format!("{name} is signed out here"));
    }
    if current.is_some_and(|current| names.contains(&current)) {
        let left = folder.accounts()?;
        folder.set_current(left.first().map(|account| account.name.as_str()))?;
        if let Some(next) = left.first() {
            say(&format!("the current account is {} now", next.name));
        }
    }
    Ok(ExitCode::SUCCESS)
}
