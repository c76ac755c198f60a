//! What an issuer knows and remembers, in one of two places: a folder and the memory of one process, or a store that
//! several gateways share. This is the only file where the two are told apart.

use std::{net::IpAddr, path::PathBuf, sync::Arc};

use super::{
    failures::Failures,
    flows::{Code, Codes, Consent, Devices, NotBegun, Poll, Taken, Wish},
    keys::Keys,
    page::Seals,
    principals::Principals,
    refresh::{Refresh, RefreshError, Refreshed},
    respond::Refusal,
    shared::{Away, Shared},
    users::Users,
};
use crate::files::Watched;

impl From<Away> for Refusal {
    fn from(_: Away) -> Self {
        Self::Away
    }
}

/// What was shown and is wrong, by name.
#[derive(Debug, Clone, Copy)]
pub enum Wrong<'a> {
    /// What a person types and another one can guess: a password, a user code.
    Typed(&'a str),
    /// Random bits that nobody guesses: a client secret, a refresh token.
    Random(&'a str),
}

/// The state of one process.
pub struct Folder {
    /// The signing keys, read again when the file changes.
    pub keys: Watched<Keys>,
    /// The same of the users.
    pub users: Watched<Users>,
    /// The same of the service principals.
    pub principals: Watched<Principals>,
    /// The file of refresh tokens.
    pub refresh: PathBuf,
    /// Failures of this process.
    pub failures: Failures,
    /// Devices that sign in here.
    pub devices: Devices,
    /// Authorization codes that were issued here.
    pub codes: Codes,
    /// Of forms that were shown here.
    pub seals: Seals,
}

/// See the module.
pub enum State {
    /// State of one process, in a folder of the local file system.
    Folder(Box<Folder>),
    /// State that several replicas share, in the store.
    Shared(Box<Shared>),
}

impl State {
    /// The signing keys of now.
    pub fn keys(&self) -> Arc<Keys> {
        match self {
            Self::Folder(own) => own.keys.current(),
            Self::Shared(shared) => shared.keys(),
        }
    }

    /// The users of now.
    pub fn users(&self) -> Arc<Users> {
        match self {
            Self::Folder(own) => own.users.current(),
            Self::Shared(shared) => shared.users(),
        }
    }

    /// The service principals of now.
    pub fn principals(&self) -> Arc<Principals> {
        match self {
            Self::Folder(own) => own.principals.current(),
            Self::Shared(shared) => shared.principals(),
        }
    }

    /// The key that forms are sealed with.
    pub fn seals(&self) -> &Seals {
        match self {
            Self::Folder(own) => &own.seals,
            Self::Shared(shared) => shared.seals(),
        }
    }

    /// Takes what others have changed. Files are looked at with each use.
    pub async fn follow(&self) -> Result<(), Away> {
        match self {
            Self::Folder(_) => Ok(()),
            Self::Shared(shared) => shared.follow().await,
        }
    }

    /// Completes when others have said that they have changed something.
    pub async fn told(&self) {
        match self {
            Self::Folder(_) => std::future::pending().await,
            Self::Shared(shared) => shared.told().await,
        }
    }

    /// Before somebody is signed in: what was withdrawn at any gateway, and answered there, counts here. Refuses where
    /// the store cannot be asked, and what is known may have been withdrawn long ago.
    pub async fn be_current(&self) -> Result<(), Refusal> {
        match self {
            Self::Folder(_) => Ok(()),
            Self::Shared(shared) => Ok(shared.be_current().await?),
        }
    }

    /// A new device code and user code for a client at `peer`.
    pub async fn begin_device(&self, wish: Wish, peer: IpAddr, now: u64) -> Result<(String, String), NotBegun> {
        match self {
            Self::Folder(own) => own.devices.begin(wish, peer, now),
            Self::Shared(shared) => shared.begin_device(wish, peer, now).await,
        }
    }

    /// What the device with this user code asks for, and from where it did; while nobody has decided.
    pub async fn find_device(&self, user_code: &str, now: u64) -> Result<Option<(Wish, IpAddr)>, Away> {
        match self {
            Self::Folder(own) => Ok(own.devices.find(user_code, now)),
            Self::Shared(shared) => shared.find_device(user_code, now).await,
        }
    }

    /// The user's decision. Says whether there was something to decide.
    pub async fn decide(&self, user_code: &str, consent: Option<Consent>, now: u64) -> Result<bool, Away> {
        match self {
            Self::Folder(own) => Ok(own.devices.decide(user_code, consent, now)),
            Self::Shared(shared) => shared.decide(user_code, consent, now).await,
        }
    }

    /// What a device learns when it asks.
    pub async fn poll(&self, device_code: &str, client: &str, now: u64) -> Result<Poll, Away> {
        match self {
            Self::Folder(own) => Ok(own.devices.poll(device_code, client, now)),
            Self::Shared(shared) => shared.poll(device_code, client, now).await,
        }
    }

    /// A new authorization code.
    pub async fn issue(&self, code: Code, now: u64) -> Result<String, NotBegun> {
        match self {
            Self::Folder(own) => own.codes.issue(code, now),
            Self::Shared(shared) => shared.issue(code, now).await,
        }
    }

    /// Uses a code, whatever comes of it.
    pub async fn take(&self, text: &str, now: u64) -> Result<Taken, Away> {
        match self {
            Self::Folder(own) => Ok(own.codes.take(text, now)),
            Self::Shared(shared) => shared.take(text, now).await,
        }
    }

    /// Whether a code came again while it was being used.
    pub async fn was_replayed(&self, text: &str) -> Result<bool, Away> {
        match self {
            Self::Folder(own) => Ok(own.codes.was_replayed(text)),
            Self::Shared(shared) => shared.was_replayed(text).await,
        }
    }

    /// Begins a family of refresh tokens and returns its first token.
    pub async fn begin_family(&self, id: String, wish: Wish, consent: Consent, now: u64) -> Result<String, Refusal> {
        match self {
            Self::Folder(own) => refresh(own, move |all| all.begin(&id, wish, &consent, now)).await,
            Self::Shared(shared) => Ok(shared.begin_family(&id, wish, &consent, now).await?),
        }
    }

    /// Uses a refresh token of `client`. `None`: it is no good.
    pub async fn rotate(&self, token: String, client: String, now: u64) -> Result<Option<Refreshed>, Refusal> {
        match self {
            Self::Folder(own) => refresh(own, move |all| all.rotate(&token, &client, now)).await,
            Self::Shared(shared) => Ok(shared.rotate(&token, &client, now).await?),
        }
    }

    /// Ends a family of refresh tokens, by its id or one of its tokens.
    pub async fn end_family(&self, family: String) -> Result<(), Refusal> {
        match self {
            Self::Folder(own) => {
                let end = move |all: &mut Refresh| {
                    all.end(&family);
                    Ok(())
                };
                refresh(own, end).await
            }
            Self::Shared(shared) => Ok(shared.end_family(&family).await?),
        }
    }

    /// Whether there were too many failures to try again now.
    pub async fn too_many(&self, peer: IpAddr, wrong: Wrong<'_>, now: u64) -> Result<bool, Away> {
        match (self, wrong) {
            (Self::Folder(own), Wrong::Typed(name) | Wrong::Random(name)) => Ok(own.failures.too_many(peer, name)),
            (Self::Shared(shared), Wrong::Typed(name)) => shared.too_many(peer, name, now).await,
            (Self::Shared(shared), Wrong::Random(name)) => Ok(shared.random_failures().too_many(peer, name)),
        }
    }

    /// Counts a failure with random bits. It is counted once it has failed: who tries many at once guesses none of them.
    pub fn count(&self, peer: IpAddr, random: &str) {
        match self {
            Self::Folder(own) => own.failures.count(peer, random),
            Self::Shared(shared) => shared.random_failures().count(peer, random),
        }
    }

    /// Counts a try that may fail, unless there were too many failures: then it is false. Whoever tries at the same time,
    /// here or at another gateway, finds it counted. For what is typed alone.
    pub async fn may_try(&self, peer: IpAddr, typed: &str, now: u64) -> Result<bool, Away> {
        match self {
            Self::Folder(own) => Ok(own.failures.may_try(peer, typed)),
            Self::Shared(shared) => shared.may_try(peer, typed, now).await,
        }
    }

    /// Takes back a try that did not fail.
    pub async fn take_back(&self, peer: IpAddr, typed: &str) -> Result<(), Away> {
        match self {
            Self::Folder(own) => own.failures.take_back(peer, typed),
            Self::Shared(shared) => shared.take_back(peer, typed).await?,
        }
        Ok(())
    }

    /// Forgets those of somebody who has now signed in.
    pub async fn forgive(&self, peer: IpAddr, wrong: Wrong<'_>) -> Result<(), Away> {
        match (self, wrong) {
            (Self::Folder(own), Wrong::Typed(name) | Wrong::Random(name)) => own.failures.forgive(peer, name),
            (Self::Shared(shared), Wrong::Typed(name)) => shared.forgive(peer, name).await?,
            (Self::Shared(shared), Wrong::Random(name)) => shared.random_failures().forgive(peer, name),
        }
        Ok(())
    }
}

/// Reads and writes the file of refresh tokens, which takes its time.
async fn refresh<T: Send + 'static>(
    own: &Folder,
    change: impl FnOnce(&mut Refresh) -> Result<T, RefreshError> + Send + 'static,
) -> Result<T, Refusal> {
    let path = own.refresh.clone();
    match tokio::task::spawn_blocking(move || Refresh::edit(&path, change)).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            tracing::warn!(error = %error, "refresh tokens cannot be kept");
            Err(Refusal::Internal)
        }
        Err(_) => Err(Refusal::Internal),
    }
}
