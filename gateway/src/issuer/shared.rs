//! The issuer's state where several gateways share a store: documents followed in memory, and tickets and counts asked
//! of the store when somebody signs in. Nothing here is on the way of a request to a cluster.
//!
//! Failures of what people type (passwords, user codes) are counted in the store, for all gateways together: a guesser
//! has as many tries as at one. Failures with client secrets and refresh tokens, which are 256 random bits, are counted
//! by each gateway for itself: nobody guesses those, the count only keeps load away.

use std::{
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use daemon::shares::{address, network};
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::Instant;

use super::{
    IssuerError,
    documents::{KEYS, PRINCIPALS, SECRET, USERS, Vault, place},
    failures,
    flows::{
        CODE_REMEMBERED_SECONDS, CODE_SECONDS, CODES_MAX, Code, Consent, DEVICE_SECONDS, DEVICES_MAX,
        DEVICES_PER_ADDRESS, Device, Issued, NotBegun, Poll, Taken, Wish, random_code, user_code,
    },
    kept::KeptError,
    keys::{Keys, KeysError},
    page::Seals,
    principals::{Principals, PrincipalsError},
    refresh::{FAMILIES_MAX, FAMILIES_PER_USER, Family, Refreshed},
    tickets::{Names, REFRESH, derived, key_of, sealed, time},
    users::{Users, UsersError},
};
use crate::{
    files::FileError,
    store::{
        protect::Protector,
        tickets::{By, Most, Then, Ticket},
    },
};

const DEVICE: &str = "issuer/device";
const CODE: &str = "issuer/code";
/// How long a device code is remembered behind its end, so that its device is told that it has ended.
const DEVICE_REMEMBERED_SECONDS: u64 = 600;
/// How long an answer of the store is waited for.
const ASKING: Duration = Duration::from_secs(5);
/// How long a store that did not answer is not asked for each sign-in.
const ASK_AGAIN: Duration = Duration::from_secs(2);
/// Tries to find a user code that no other device has: of 34 bits, with [`DEVICES_MAX`] devices.
const USER_CODE_TRIES: u32 = 4;

/// The store cannot be asked now, or has what cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Away;

/// A document in memory.
struct Followed<T> {
    name: &'static str,
    parse: fn(&std::path::Path, &[u8]) -> Result<T, FileError>,
    current: ArcSwap<(i64, Arc<T>)>,
}

impl<T> Followed<T> {
    async fn open(
        vault: &Vault,
        name: &'static str,
        parse: fn(&std::path::Path, &[u8]) -> Result<T, FileError>,
    ) -> Result<Self, KeptError> {
        let (version, bytes) = vault.read(name).await?;
        let value = parse(&place(name), &bytes)?;
        Ok(Self { name, parse, current: ArcSwap::from_pointee((version, Arc::new(value))) })
    }

    fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.load().1)
    }

    /// Takes the document, if it is another version than the one in memory.
    async fn follow(&self, vault: &Vault, versions: &[(String, i64)]) -> Result<(), KeptError> {
        let known = self.current.load().0;
        if versions.iter().any(|(name, version)| name == self.name && *version == known) {
            return Ok(());
        }
        let (version, bytes) = vault.read(self.name).await?;
        let value = (self.parse)(&place(self.name), &bytes)?;
        self.current.store(Arc::new((version, Arc::new(value))));
        Ok(())
    }
}

#[derive(Clone, Copy)]
struct Asked {
    confirmed: Instant,
    failed: Option<Instant>,
}

/// See the module.
pub struct Shared {
    vault: Vault,
    keys: Followed<Keys>,
    users: Followed<Users>,
    principals: Followed<Principals>,
    seals: Seals,
    names: Names,
    random_failures: failures::Failures,
    /// Whoever reads the documents, one at a time.
    reading: tokio::sync::Mutex<()>,
    /// When the questions were put that the store answered last, and did not answer last.
    asked: Mutex<Asked>,
    stale_after: Duration,
}

fn opened<T: DeserializeOwned>(
    protector: &Protector,
    kind: &'static str,
    key: &str,
    bytes: &[u8],
) -> Result<T, KeptError> {
    let text = protector.unseal(&format!("{kind}/{key}"), bytes);
    let text = text.map_err(|source| KeptError::Sealed { name: kind, source })?;
    Ok(crate::files::parse_json(&place(kind), &text)?)
}

impl Shared {
    /// Reads what the store has.
    pub async fn open(vault: Vault, stale_after: Duration) -> Result<Self, IssuerError> {
        let asked = Instant::now();
        let (_, secret) = vault.read(SECRET).await?;
        Ok(Self {
            keys: Followed::open(&vault, KEYS, Keys::parse).await.map_err(KeysError::from)?,
            users: Followed::open(&vault, USERS, Users::parse).await.map_err(UsersError::from)?,
            principals: Followed::open(&vault, PRINCIPALS, Principals::parse).await.map_err(PrincipalsError::from)?,
            seals: Seals::of(derived(&secret, "forms").as_ref()),
            names: Names::of(&secret),
            random_failures: failures::Failures::new(),
            reading: tokio::sync::Mutex::default(),
            asked: Mutex::new(Asked { confirmed: asked, failed: None }),
            stale_after,
            vault,
        })
    }

    pub fn keys(&self) -> Arc<Keys> {
        self.keys.current()
    }

    pub fn users(&self) -> Arc<Users> {
        self.users.current()
    }

    pub fn principals(&self) -> Arc<Principals> {
        self.principals.current()
    }

    pub fn seals(&self) -> &Seals {
        &self.seals
    }

    pub fn random_failures(&self) -> &failures::Failures {
        &self.random_failures
    }

    fn asked(&self) -> MutexGuard<'_, Asked> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what others have changed, or, where the store cannot be asked, goes on with what it has confirmed not too
    /// long ago. One that has just not answered is not asked again by each who signs in.
    pub async fn be_current(&self) -> Result<(), Away> {
        let failing = self.asked().failed.is_some_and(|failed| failed.elapsed() < ASK_AGAIN);
        if (failing || self.follow().await.is_err()) && self.asked().confirmed.elapsed() >= self.stale_after {
            return Err(Away);
        }
        Ok(())
    }

    /// Completes when others have said that they have changed something.
    pub async fn told(&self) {
        self.vault.store.documents_change().await;
    }

    /// Takes what others have changed until now.
    pub async fn follow(&self) -> Result<(), Away> {
        let wanted = Instant::now();
        let _one = self.reading.lock().await;
        // Somebody else has asked while this one waited.
        let last = *self.asked();
        if last.confirmed >= wanted {
            return Ok(());
        }
        if last.failed.is_some_and(|failed| failed >= wanted) {
            return Err(Away);
        }
        let asked = Instant::now();
        let done = self.take_changes().await;
        match done {
            Ok(()) => *self.asked() = Asked { confirmed: asked, failed: None },
            // The instant at which it failed: a store that hangs has taken longer than a failure counts for.
            Err(Away) => self.asked().failed = Some(Instant::now()),
        }
        done
    }

    async fn take_changes(&self) -> Result<(), Away> {
        self.ask(async {
            let versions = self.vault.store.document_versions().await?;
            self.keys.follow(&self.vault, &versions).await?;
            self.users.follow(&self.vault, &versions).await?;
            self.principals.follow(&self.vault, &versions).await
        })
        .await
    }

    /// What the store says, for a bounded time.
    async fn ask<T>(&self, question: impl Future<Output = Result<T, KeptError>>) -> Result<T, Away> {
        match tokio::time::timeout(ASKING, question).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                tracing::warn!(error = %daemon::chain(&error), "the built-in issuer cannot use its store");
                Err(Away)
            }
            Err(_) => {
                tracing::warn!(after = ?ASKING, "the built-in issuer's store does not answer");
                Err(Away)
            }
        }
    }

    fn sealed<T: Serialize>(&self, kind: &'static str, key: &str, value: &T) -> Result<Vec<u8>, KeptError> {
        sealed(&self.vault.protector, kind, key, value)
    }

    fn opened<T: DeserializeOwned>(&self, kind: &'static str, key: &str, bytes: &[u8]) -> Result<T, KeptError> {
        opened(&self.vault.protector, kind, key, bytes)
    }

    /// As [`super::flows::Devices::begin`].
    pub async fn begin_device(&self, wish: Wish, peer: IpAddr, now: u64) -> Result<(String, String), NotBegun> {
        let device_code = random_code()?;
        let (key, of, peer) = (key_of(&device_code), network(peer), address(peer));
        let ends = time(now + DEVICE_SECONDS + DEVICE_REMEMBERED_SECONDS);
        let most = Most { all: DEVICES_MAX as i64, of_owner: i64::MAX, of_place: DEVICES_PER_ADDRESS as i64 };
        for _ in 0..USER_CODE_TRIES {
            let user_code = user_code()?;
            let device = Device::new(wish.clone(), user_code.clone(), peer, now);
            let begun = self.ask(async {
                let ticket = Ticket {
                    kind: DEVICE,
                    key: key.clone(),
                    alias: Some(self.names.name("user code", &user_code)),
                    owner: self.names.name("network", &of.to_string()),
                    place: self.names.name("address", &peer.to_string()),
                    rank: time(now),
                    ends,
                    sealed: self.sealed(DEVICE, &key, &device)?,
                };
                if self.vault.store.add_ticket(&ticket, most, time(now)).await? {
                    return Ok(Some(true));
                }
                // Its alias is another's, which is next to impossible, or its address has too many.
                let taken = self.vault.store.ticket(DEVICE, By::Alias(ticket.alias.as_deref().unwrap_or_default()));
                Ok(taken.await?.is_none().then_some(false))
            });
            match begun.await {
                Ok(Some(true)) => return Ok((device_code, user_code)),
                Ok(Some(false)) => return Err(NotBegun::Full),
                Ok(None) => {}
                Err(Away) => return Err(NotBegun::Away),
            }
        }
        Err(NotBegun::Full)
    }

    /// As [`super::flows::Devices::find`].
    pub async fn find_device(&self, user_code: &str, now: u64) -> Result<Option<(Wish, IpAddr)>, Away> {
        let alias = self.names.name("user code", user_code);
        self.ask(async {
            let Some((key, bytes)) = self.vault.store.ticket(DEVICE, By::Alias(&alias)).await? else { return Ok(None) };
            Ok(self.opened::<Device>(DEVICE, &key, &bytes)?.asks(now))
        })
        .await
    }

    /// As [`super::flows::Devices::decide`].
    pub async fn decide(&self, user_code: &str, consent: Option<Consent>, now: u64) -> Result<bool, Away> {
        let alias = self.names.name("user code", user_code);
        let decided = self.vault.store.change_ticket(DEVICE, By::Alias(&alias), |ticket| {
            let Some((key, bytes)) = ticket else { return Ok((Then::Stay, false)) };
            let mut device: Device = self.opened(DEVICE, key, bytes)?;
            let decided = device.decide(consent, now);
            Ok((self.kept_device(key, &device)?, decided))
        });
        self.ask(decided).await
    }

    /// As [`super::flows::Devices::poll`].
    pub async fn poll(&self, device_code: &str, client: &str, now: u64) -> Result<Poll, Away> {
        let key = key_of(device_code);
        let polled = self.vault.store.change_ticket(DEVICE, By::Key(&key), |ticket| {
            let Some((key, bytes)) = ticket else { return Ok((Then::Stay, Poll::Unknown)) };
            let mut device: Device = self.opened(DEVICE, key, bytes)?;
            let (said, stays) = device.poll(client, now);
            let then = if stays { self.kept_device(key, &device)? } else { Then::Go };
            Ok((then, said))
        });
        self.ask(polled).await
    }

    /// A device keeps its rank and end, however often it asks.
    fn kept_device(&self, key: &str, device: &Device) -> Result<Then, KeptError> {
        let (began, ends) = device.times();
        let ends = time(ends + DEVICE_REMEMBERED_SECONDS);
        Ok(Then::Change { sealed: self.sealed(DEVICE, key, device)?, rank: time(began), ends })
    }

    /// As [`super::flows::Codes::issue`].
    pub async fn issue(&self, code: Code, now: u64) -> Result<String, NotBegun> {
        let text = random_code()?;
        let key = key_of(&text);
        let owner = self.names.name("user", &code.consent.user);
        let most = Most { all: CODES_MAX as i64, of_owner: i64::MAX, of_place: i64::MAX };
        let issued = self.ask(async {
            let ticket = Ticket {
                kind: CODE,
                alias: None,
                owner,
                place: String::new(),
                rank: time(now),
                ends: time(now + CODE_SECONDS + CODE_REMEMBERED_SECONDS),
                sealed: self.sealed(CODE, &key, &Issued::new(code, now))?,
                key,
            };
            Ok(self.vault.store.add_ticket(&ticket, most, time(now)).await?)
        });
        match issued.await {
            Ok(true) => Ok(text),
            Ok(false) => Err(NotBegun::Full),
            Err(Away) => Err(NotBegun::Away),
        }
    }

    /// As [`super::flows::Codes::take`]; of several gateways one is the first.
    pub async fn take(&self, text: &str, now: u64) -> Result<Taken, Away> {
        let key = key_of(text);
        let taken = self.vault.store.change_ticket(CODE, By::Key(&key), |ticket| {
            let Some((key, bytes)) = ticket else { return Ok((Then::Stay, Taken::Unknown)) };
            let mut issued: Issued = self.opened(CODE, key, bytes)?;
            let taken = issued.take(now);
            let sealed = self.sealed(CODE, key, &issued)?;
            let (rank, ends) = (time(now), time(now + CODE_SECONDS + CODE_REMEMBERED_SECONDS));
            Ok((Then::Change { sealed, rank, ends }, taken))
        });
        self.ask(taken).await
    }

    /// As [`super::flows::Codes::was_replayed`].
    pub async fn was_replayed(&self, text: &str) -> Result<bool, Away> {
        let key = key_of(text);
        self.ask(async {
            let Some((key, bytes)) = self.vault.store.ticket(CODE, By::Key(&key)).await? else { return Ok(false) };
            Ok(self.opened::<Issued>(CODE, &key, &bytes)?.replayed)
        })
        .await
    }

    /// As [`super::refresh::Refresh::begin`].
    pub async fn begin_family(&self, id: &str, wish: Wish, consent: &Consent, now: u64) -> Result<String, Away> {
        let (family, token) = Family::begin(id, wish, consent, now).map_err(|_| Away)?;
        let most = Most { all: FAMILIES_MAX as i64, of_owner: FAMILIES_PER_USER as i64, of_place: i64::MAX };
        self.ask(async {
            let key = key_of(id);
            let ticket = Ticket {
                kind: REFRESH,
                alias: None,
                owner: self.names.name("user", &family.user),
                place: String::new(),
                rank: time(family.rotated),
                ends: time(family.ends()),
                sealed: self.sealed(REFRESH, &key, &family)?,
                key,
            };
            self.vault.store.add_ticket(&ticket, most, time(now)).await?;
            Ok(token)
        })
        .await
    }

    /// As [`super::refresh::Refresh::rotate`]; of several gateways that are shown one token at once one is the first.
    pub async fn rotate(&self, token: &str, client: &str, now: u64) -> Result<Option<Refreshed>, Away> {
        let Some((id, secret)) = token.split_once('.') else { return Ok(None) };
        let key = key_of(id);
        let rotated = self.vault.store.change_ticket(REFRESH, By::Key(&key), |ticket| {
            let Some((key, bytes)) = ticket else { return Ok((Then::Stay, None)) };
            let mut family: Family = self.opened(REFRESH, key, bytes)?;
            let Some(refreshed) = family.rotate(secret, client, now).map_err(KeptError::from)? else {
                return Ok((Then::Go, None));
            };
            let (rank, ends) = (time(family.rotated), time(family.ends()));
            Ok((Then::Change { sealed: self.sealed(REFRESH, key, &family)?, rank, ends }, Some(refreshed)))
        });
        self.ask(rotated).await
    }

    /// As [`super::refresh::Refresh::end`].
    pub async fn end_family(&self, family: &str) -> Result<(), Away> {
        let key = key_of(family.split('.').next().unwrap_or_default());
        self.ask(async { Ok(self.vault.store.end_ticket(REFRESH, &key).await?) }).await
    }

    /// As [`failures::Failures::too_many`], of all gateways together.
    pub async fn too_many(&self, peer: IpAddr, user: &str, now: u64) -> Result<bool, Away> {
        let (of_user, of_address) = self.counted(peer, user);
        self.ask(async {
            let of_user = self.vault.store.counted(&of_user, time(now)).await?;
            let of_address = self.vault.store.counted(&of_address, time(now)).await?;
            Ok(of_user >= i64::from(failures::PER_USER) || of_address >= i64::from(failures::PER_ADDRESS))
        })
        .await
    }

    /// As [`failures::Failures::may_try`], of all gateways together.
    pub async fn may_try(&self, peer: IpAddr, user: &str, now: u64) -> Result<bool, Away> {
        let (of_user, of_address) = self.counted(peer, user);
        let owner = self.names.name("network", &network(peer).to_string());
        let (now, ends) = (time(now), time(now + failures::WINDOW.as_secs()));
        let names = [(of_user, failures::PER_USER.into()), (of_address, failures::PER_ADDRESS.into())];
        let most = failures::WINDOWS as i64;
        self.ask(async { Ok(self.vault.store.count_tries(&names, &owner, now, ends, most).await?) }).await
    }

    /// As [`failures::Failures::take_back`].
    pub async fn take_back(&self, peer: IpAddr, user: &str) -> Result<(), Away> {
        let (of_user, of_address) = self.counted(peer, user);
        self.ask(async { Ok(self.vault.store.take_back(&[of_user, of_address]).await?) }).await
    }

    /// As [`failures::Failures::forgive`].
    pub async fn forgive(&self, peer: IpAddr, user: &str) -> Result<(), Away> {
        let (of_user, _) = self.counted(peer, user);
        self.ask(async { Ok(self.vault.store.uncount(&of_user).await?) }).await
    }

    fn counted(&self, peer: IpAddr, user: &str) -> (String, String) {
        let address = address(peer);
        (
            self.names.name("failures of", &format!("{address} {user}")),
            self.names.name("failures at", &address.to_string()),
        )
    }
}
