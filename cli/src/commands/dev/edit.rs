//! Edits of a state. A running gateway reads what changed and acts on it at once.

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::anyhow;
use clap::{ArgGroup, Subcommand};
use daemon::settings::positive_duration;
use gateway::{
    files,
    issuer::{KEYS_FILE, Keys, Principals, USERS_FILE, Users, UsersError, users},
};
use secrecy::{ExposeSecret, SecretString};

use super::principals;
use crate::{
    failure::{Failure, Hint, Outcome},
    secret::read_secret,
    state::{Data, State},
};

/// Users that every new state has, with their groups. The last one has no grant.
const FIRST_USERS: [(&str, &str); 3] = [("admin", "admins"), ("viewer", "viewers"), ("stranger", "strangers")];
/// Those of them that may reach each cluster.
const GRANTED: [&str; 2] = ["admin", "viewer"];

/// As long as `gateway::issuer::principals::SECRET_LIFE`.
pub(super) const SECRET_TTL: &str = "8760h";

/// `towline dev <edit> --state DIR`.
#[derive(Debug, Subcommand)]
pub enum Edit {
    /// Add a cluster, write its agent's files and grant it to admin and viewer
    AddCluster {
        /// Of which state.
        #[command(flatten)]
        at: StateArgs,
        /// Name or whole ARM id
        name: String,
    },
    /// Add a user with a generated password, or give an existing one new groups and a new password
    AddUser {
        /// Of which state.
        #[command(flatten)]
        at: StateArgs,
        /// Name
        name: String,
        /// A group; repeat for more
        #[arg(long = "group", value_name = "GROUP")]
        groups: Vec<String>,
        /// A cluster that the user may reach, or * for all; repeat for more
        #[arg(long = "grant", value_name = "CLUSTER")]
        grants: Vec<String>,
        /// Read the password from this file instead of making one; - is standard input
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
    },
    /// Disable a user: no tokens, and open sessions end
    DisableUser {
        /// Of which state.
        #[command(flatten)]
        at: StateArgs,
        /// Name
        name: String,
    },
    /// Enable a user again
    EnableUser {
        /// Of which state.
        #[command(flatten)]
        at: StateArgs,
        /// Name
        name: String,
    },
    /// Add a service principal; its secret is kept in the state's folder
    AddPrincipal {
        /// Of which state.
        #[command(flatten)]
        at: StateArgs,
        /// Name
        name: String,
        /// A cluster that it may reach, or * for all; repeat for more
        #[arg(long = "grant", value_name = "CLUSTER")]
        grants: Vec<String>,
        /// How long the secret is good for
        #[arg(long, value_name = "DURATION", value_parser = positive_duration, default_value = SECRET_TTL)]
        ttl: Duration,
    },
    /// Remove a service principal: no tokens, and open sessions end
    RemovePrincipal {
        /// Of which state.
        #[command(flatten)]
        at: StateArgs,
        /// Name, object id or client id
        name: String,
    },
    /// Give a service principal a new secret, instead of those that it has
    RotatePrincipal {
        /// Of which state.
        #[command(flatten)]
        at: StateArgs,
        /// Name, object id or client id
        name: String,
        /// Leave the present ones good as well; a further rotation without this ends them
        #[arg(long)]
        append: bool,
        /// How long the secret is good for
        #[arg(long, value_name = "DURATION", value_parser = positive_duration, default_value = SECRET_TTL)]
        ttl: Duration,
    },
    /// Let a user or a group reach a cluster
    Grant(GrantArgs),
    /// Take that right back: open sessions end
    Revoke(GrantArgs),
    /// Sign tokens with a new key from now on, which the present one vouches for
    RotateKeys {
        /// Of which state.
        #[command(flatten)]
        at: StateArgs,
    },
}

/// Which state is edited.
#[derive(Debug, clap::Args)]
pub struct StateArgs {
    /// Folder of the state
    #[arg(long, value_name = "DIR")]
    pub state: PathBuf,
}

/// Who may reach what.
#[derive(Debug, clap::Args)]
#[command(group = ArgGroup::new("who").required(true).args(["user", "group"]))]
pub struct GrantArgs {
    /// Of which state.
    #[command(flatten)]
    pub at: StateArgs,
    /// Name or ARM id of the cluster, or * for all
    #[arg(long)]
    pub cluster: String,
    /// A user, or a service principal by its object id
    #[arg(long)]
    pub user: Option<String>,
    /// A group
    #[arg(long)]
    pub group: Option<String>,
}

/// Runs one edit.
pub fn run(edit: Edit) -> Outcome {
    let done = match edit {
        Edit::AddCluster { at, name } => add_cluster(&at.state, &name)?,
        Edit::AddUser { at, name, groups, grants, password_file } => {
            add_user(&at.state, &name, &groups, &grants, password_file.as_deref())?
        }
        Edit::DisableUser { at, name } => set_disabled(&at.state, &name, true)?,
        Edit::EnableUser { at, name } => set_disabled(&at.state, &name, false)?,
        Edit::AddPrincipal { at, name, grants, ttl } => principals::add(&at.state, &name, &grants, ttl)?,
        Edit::RemovePrincipal { at, name } => principals::remove(&at.state, &name)?,
        Edit::RotatePrincipal { at, name, append, ttl } => principals::rotate(&at.state, &name, append, ttl)?,
        Edit::Grant(grant) => change_grant(&grant, true)?,
        Edit::Revoke(grant) => change_grant(&grant, false)?,
        Edit::RotateKeys { at } => {
            let state = State::open(&at.state)?;
            let keys = Keys::rotate(&state.path("issuer").join(KEYS_FILE))?;
            format!("tokens are signed with key {} from now on", keys.newest())
        }
    };
    tracing::info!("{done}");
    Ok(ExitCode::SUCCESS)
}

/// Adds a cluster to a state in the making, and lets admin, viewer and the owner of the subscription reach it.
pub fn add(data: &mut Data, name: &str) -> anyhow::Result<bool> {
    let fresh = data.add_cluster(name)?;
    if fresh {
        let scope = data.scope(name)?;
        GRANTED.iter().for_each(|user| data.grant(&scope, Some(user), None));
        if !data.owner.is_empty() {
            let owner = data.owner.clone();
            data.grant(&scope, Some(&owner), None);
        }
    }
    Ok(fresh)
}

fn add_cluster(dir: &Path, name: &str) -> Outcome<String> {
    let mut fresh = false;
    let state = State::edit_existing(dir, |data| {
        fresh = add(data, name).map_err(Failure::usage)?;
        Ok(())
    })?;
    let folder = state.agent_dir(state.cluster(Some(name))?);
    Ok(match fresh {
        true => format!("added cluster {name}; what its agent needs is in {}", folder.display()),
        false => format!("cluster {name} is there already; what its agent needs is in {}", folder.display()),
    })
}

/// Makes the users of a new state; those that exist stay as they are.
pub fn add_first_users(state: &State) -> Outcome<()> {
    let file = state.path("issuer").join(USERS_FILE);
    let known = Users::edit(&file, |users| Ok(users.clone()))?;
    for (name, group) in FIRST_USERS {
        if known.find(name).is_none() || !state.password_file(name).exists() {
            put_user(state, name, &[group.to_owned()], None)?;
        }
    }
    Ok(())
}

/// Without a given password one is made and kept in the state's folder.
fn put_user(state: &State, name: &str, groups: &[String], given: Option<&SecretString>) -> Outcome<()> {
    let made = match given {
        Some(_) => None,
        None => Some(SecretString::from(users::generate_password()?)),
    };
    let password = given.or(made.as_ref()).map_or("", |password| password.expose_secret());
    let file = state.path("issuer").join(USERS_FILE);
    Users::edit(&file, |users| users.put(name, groups, password).map(|_| ())).map_err(usage)?;
    let kept = state.password_file(name);
    match made {
        Some(password) => {
            files::create_private_dir(&state.path("users"))?;
            files::write_private(&kept, password.expose_secret().as_bytes())?;
        }
        // A kept password that is no longer the user's would only mislead.
        None if kept.exists() => std::fs::remove_file(&kept)?,
        None => {}
    }
    Ok(())
}

fn usage(error: UsersError) -> Failure {
    match error {
        UsersError::Name(_) | UsersError::Password => Failure::usage(error),
        other => other.into(),
    }
}

fn add_user(
    dir: &Path,
    name: &str,
    groups: &[String],
    grants: &[String],
    password_file: Option<&Path>,
) -> Outcome<String> {
    let state = State::open(dir)?;
    let scopes = grants.iter().map(|grant| state.data.scope(grant)).collect::<anyhow::Result<Vec<_>>>();
    let scopes = scopes.map_err(Failure::usage)?;
    let password = password_file.map(read_secret).transpose()?;
    put_user(&state, name, groups, password.as_ref())?;
    State::edit_existing(dir, |data| {
        data.disabled.retain(|user| user != name);
        scopes.iter().for_each(|scope| data.grant(scope, Some(name), None));
        Ok(())
    })?;
    let kept = state.password_file(name);
    Ok(match kept.exists() {
        true => format!("user {name}; the password is in {}", kept.display()),
        false => format!("user {name} with the given password"),
    })
}

fn set_disabled(dir: &Path, name: &str, disabled: bool) -> Outcome<String> {
    let state = State::open(dir)?;
    let file = state.path("issuer").join(USERS_FILE);
    Users::edit(&file, |users| users.set_disabled(name, disabled))
        .hint(|| format!("towline dev add-user --state {} {name}", dir.display()))?;
    State::edit_existing(dir, |data| {
        data.disabled.retain(|user| user != name);
        data.disabled.extend(disabled.then(|| name.to_owned()));
        Ok(())
    })?;
    Ok(match disabled {
        true => format!("user {name} is disabled: no new tokens, and open sessions end"),
        false => format!("user {name} is enabled"),
    })
}

fn change_grant(args: &GrantArgs, add: bool) -> Outcome<String> {
    let (user, group) = (args.user.as_deref(), args.group.as_deref());
    let who = user.map_or_else(|| format!("group {}", group.unwrap_or_default()), |user| format!("user {user}"));
    let mut found = true;
    let state = State::edit_existing(&args.at.state, |data| {
        let scope = data.scope(&args.cluster).map_err(Failure::usage)?;
        if add {
            data.grant(&scope, user, group);
        } else {
            found = data.revoke(&scope, user, group);
        }
        Ok(())
    })?;
    if let (true, Some(user)) = (add, user) {
        let users = Users::edit(&state.path("issuer").join(USERS_FILE), |users| Ok(users.find(user).is_some()))?;
        let is_principal = |principals: &Principals| principals.iter().any(|known| known.object_id == user);
        if !users && !principals::read(&state).is_ok_and(|principals| is_principal(&principals)) {
            tracing::warn!("no user and no service principal has the object id {user} yet: towline dev add-user");
        }
    }
    if !found {
        return Err(anyhow!("{who} has no grant for cluster {} that could be taken back", args.cluster).into());
    }
    Ok(match add {
        true => format!("{who} may reach cluster {}", args.cluster),
        false => format!("{who} may no longer reach cluster {} by a grant of their own", args.cluster),
    })
}
