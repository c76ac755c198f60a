//! `towline-gateway user`: the local users of the built-in issuer, by whoever runs the gateway. A running one sees a
//! change within a second: of whom is removed or disabled sessions end too.

use std::{
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, ensure};
use clap::Subcommand;
use serde_json::{Value, json};

use crate::{
    config::{Config, issuer::BuiltInIssuer},
    issuer::{Documents, User, Users, users::generate_password},
    issuer_state, owners,
};

/// A line that is longer is no password.
const PASSWORD_FILE_BYTES: u64 = 4096;

/// What is to be done.
#[derive(Subcommand)]
pub enum UserAction {
    /// Adds a user, or gives one that exists another password and other groups. A password that is made is printed,
    /// once.
    Add {
        /// What they sign in with.
        name: String,
        /// A group that they are in; may be repeated.
        #[arg(long = "group")]
        groups: Vec<String>,
        /// The file with the password, `-` for standard input; without it one is made.
        #[arg(long)]
        password_file: Option<PathBuf>,
    },
    /// Lists the users of the built-in issuer.
    List,
    /// Gives no tokens to a user any more, and ends what they have open.
    Disable {
        /// Name of the user.
        name: String,
    },
    /// Gives tokens to a user again.
    Enable {
        /// Name of the user.
        name: String,
    },
    /// Removes a user. One of the same name that is added later is somebody else, with none of the rights of this one.
    Remove {
        /// Name of the user.
        name: String,
    },
}

/// Does it; the answer, as JSON.
///
/// # Errors
/// A gateway without an issuer of its own, an unknown user, a file that cannot be read or written.
pub async fn run(config: &Config, action: UserAction) -> anyhow::Result<Value> {
    let issuer = config.issuer.as_ref().context(
        "this gateway has no issuer of its own ([issuer] in the configuration): users are made at the issuer that it trusts",
    )?;
    may_change(config, issuer)?;
    let going = match &action {
        UserAction::Disable { name } | UserAction::Remove { name } => {
            Some(owners::user_may_go(config, name, std::time::SystemTime::now()).await?)
        }
        _ => None,
    };
    let documents = issuer_state::documents(config, issuer).await?;
    let done = changed(&documents, action).await;
    documents.close().await;
    drop(going);
    done
}

/// Files are replaced by those of whoever runs a command, and the gateway could not read another's; in a store nothing is
/// anybody's.
///
/// # Errors
/// When the files are another user's.
pub fn may_change(config: &Config, issuer: &BuiltInIssuer) -> anyhow::Result<()> {
    if issuer_state::shared(config).is_some() { Ok(()) } else { as_its_owner(&issuer.state_dir) }
}

async fn changed(documents: &Documents, action: UserAction) -> anyhow::Result<Value> {
    let set_disabled = async |name: String, disabled: bool| {
        let set = move |users: &mut Users| {
            users.set_disabled(&name, disabled)?;
            Ok(users.find(&name).map(shown).unwrap_or_default())
        };
        documents.edit_users(set).await
    };
    match action {
        UserAction::Add { name, groups, password_file } => {
            let given = password_file.as_deref().map(password).transpose()?;
            let made = if given.is_none() { Some(generate_password()?) } else { None };
            let password = given.or(made.clone()).unwrap_or_default();
            let put = move |users: &mut Users| users.put(&name, &groups, &password).map(shown);
            let mut answer = documents.edit_users(put).await?;
            if let Some(made) = made {
                answer["password"] = made.into();
            }
            Ok(answer)
        }
        UserAction::List => Ok(documents.users().await?.iter().map(shown).collect::<Vec<_>>().into()),
        UserAction::Disable { name } => Ok(set_disabled(name, true).await?),
        UserAction::Enable { name } => Ok(set_disabled(name, false).await?),
        UserAction::Remove { name } => Ok(shown(&documents.edit_users(move |users| users.remove(&name)).await?)),
    }
}

fn shown(user: &User) -> Value {
    json!({"name": user.name, "objectId": user.id, "groups": user.groups, "disabled": user.disabled})
}

/// The file is replaced by one of whoever runs this, and the gateway could not read another's.
pub fn as_its_owner(folder: &Path) -> anyhow::Result<()> {
    let metadata = std::fs::metadata(folder).with_context(|| folder.display().to_string())?;
    let me = std::fs::metadata("/proc/self")?.uid();
    ensure!(
        metadata.uid() == me,
        "{0} belongs to the user with id {1}, and this runs as {me}: run it as that user (sudo -u #{1})",
        folder.display(),
        metadata.uid()
    );
    Ok(())
}

/// The first line of a file, or of standard input.
fn password(file: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    if file == Path::new("-") {
        std::io::stdin().take(PASSWORD_FILE_BYTES).read_to_string(&mut text)?;
    } else {
        let opened = std::fs::File::open(file).with_context(|| file.display().to_string())?;
        opened.take(PASSWORD_FILE_BYTES).read_to_string(&mut text)?;
    }
    let line = text.lines().next().unwrap_or_default();
    ensure!(!line.is_empty(), "{}: there is no password on the first line", file.display());
    Ok(line.to_owned())
}
