//! Service principals of a state. What cluster and gateway know one by is its object id (docs/features.md A3).

use std::{
    path::Path,
    time::{Duration, SystemTime},
};

use gateway::{
    files,
    issuer::{NewSecret, PRINCIPALS_FILE, Principals, PrincipalsError, principals::SECRET_LIFE},
};
use secrecy::ExposeSecret;

use crate::{
    failure::{Failure, Outcome},
    secret::read_secret,
    state::State,
};

/// The service principal that owns the subscription.
pub const OWNER: &str = "owner";
/// Least remaining life of its secret at a start; with less it gets a new one.
const LEFT_AT_LEAST: Duration = Duration::from_secs(30 * 86_400);

/// All of a state.
pub fn read(state: &State) -> Outcome<Principals> {
    change(state, |principals| Ok(principals.clone()))
}

fn change<T>(state: &State, change: impl FnOnce(&mut Principals) -> Result<T, PrincipalsError>) -> Outcome<T> {
    Principals::edit(&state.path("issuer").join(PRINCIPALS_FILE), change).map_err(|error| match error {
        PrincipalsError::Name(_) | PrincipalsError::Taken(_) | PrincipalsError::Life => Failure::usage(error),
        PrincipalsError::Unknown(ref name) => {
            let hint = format!("towline dev add-principal --state {} {name}", state.dir().display());
            Failure::usage(error).hint(hint)
        }
        other => other.into(),
    })
}

/// Makes the owner, or gives it a new secret where the one that is kept is missing, no longer its, or about to end.
pub fn ensure_owner(state: &State) -> Outcome<()> {
    let file = state.secret_file(OWNER);
    let kept = file.exists().then(|| read_secret(&file)).transpose()?;
    let now = SystemTime::now();
    let new = change(state, |principals| {
        let Some(owner) = principals.find(&state.data.owner).cloned() else {
            return Ok(Some(principals.create_as(OWNER, state.data.owner.clone(), SECRET_LIFE, now)?.1));
        };
        let good = |secret: &secrecy::SecretString| {
            principals.check(&owner.client_id, secret.expose_secret(), now + LEFT_AT_LEAST).is_ok()
        };
        // Who disabled it meant it.
        if owner.disabled || kept.as_ref().is_some_and(good) {
            return Ok(None);
        }
        replace_secret(principals, &owner.object_id, false, SECRET_LIFE).map(Some)
    })?;
    new.map_or(Ok(()), |new| keep(state, OWNER, &new))
}

fn replace_secret(
    principals: &mut Principals,
    key: &str,
    append: bool,
    life: Duration,
) -> Result<NewSecret, PrincipalsError> {
    let found = principals.find(key).ok_or_else(|| PrincipalsError::Unknown(key.to_owned()))?;
    let before: Vec<String> = found.secrets.iter().map(|secret| secret.id.clone()).collect();
    if !append {
        before.iter().try_for_each(|id| principals.remove_secret(key, id))?;
    }
    principals.add_secret(key, life, SystemTime::now())
}

fn keep(state: &State, name: &str, new: &NewSecret) -> Outcome<()> {
    files::create_private_dir(&state.path("principals"))?;
    Ok(files::write_private(&state.secret_file(name), new.secret.expose_secret().as_bytes())?)
}

/// `towline dev add-principal`.
pub fn add(dir: &Path, name: &str, grants: &[String], life: Duration) -> Outcome<String> {
    let state = State::open(dir)?;
    let scopes = grants.iter().map(|grant| state.data.scope(grant)).collect::<anyhow::Result<Vec<_>>>();
    let scopes = scopes.map_err(Failure::usage)?;
    let (made, new) = change(&state, |principals| principals.create(name, life, SystemTime::now()))?;
    keep(&state, name, &new)?;
    State::edit_existing(dir, |data| {
        scopes.iter().for_each(|scope| data.grant(scope, Some(&made.object_id), None));
        Ok(())
    })?;
    Ok(format!(
        "service principal {name}: object id {}, client id {}; the secret is in {}",
        made.object_id,
        made.client_id,
        state.secret_file(name).display()
    ))
}

/// `towline dev remove-principal`.
pub fn remove(dir: &Path, name: &str) -> Outcome<String> {
    let state = State::open(dir)?;
    let gone = change(&state, |principals| principals.delete(name))?;
    let kept = state.secret_file(&gone.name);
    if kept.exists() {
        std::fs::remove_file(&kept)?;
    }
    // It is in no group: without grants of its own nothing is left to it, and its object id is never given away again.
    State::edit_existing(dir, |data| {
        data.revoke_all(&gone.object_id);
        if data.owner == gone.object_id {
            // The next start makes another one, with ids of its own.
            data.owner.clear();
        }
        Ok(())
    })?;
    Ok(format!("service principal {} is removed: no new tokens, and open sessions end", gone.name))
}

/// `towline dev rotate-principal`.
pub fn rotate(dir: &Path, name: &str, append: bool, life: Duration) -> Outcome<String> {
    let state = State::open(dir)?;
    let (name, new) = change(&state, |principals| {
        let new = replace_secret(principals, name, append, life)?;
        let name = principals.find(name).map_or_else(String::new, |principal| principal.name.clone());
        Ok((name, new))
    })?;
    keep(&state, &name, &new)?;
    let others = if append { "the previous ones still work" } else { "the previous ones no longer work" };
    Ok(format!("service principal {name} has a new secret in {}; {others}", state.secret_file(&name).display()))
}
