//! Who owns the gateway, and that somebody always does: with the last owner would go the only one who can give rights,
//! and nothing in the API leads back. What would take the last one away is refused, whichever way it goes (a role
//! assignment, its time, a service principal, a user). Where it happened all the same, [`recover`] on the machine makes
//! another owner.
//!
//! An owner of a subscription is in `[api] owners`, or has the role Owner at the subscription (or at `/`) without an
//! end. Who cannot sign in is none: an account of the built-in issuer that is gone, disabled (there or by
//! `[[disabled]]`), or without a secret that is good; and a name that no configured issuer gives.

use std::time::{Duration, SystemTime};

use auth::rbac::{Scope, principal::user_key, role::built_in};
use http::StatusCode;
use secrecy::ExposeSecret as _;
use serde_json::{Value, json};
use types::instants::{instant, milliseconds};

use crate::{
    account_names::AccountNames,
    api_error::ApiError,
    config::{Config, api::Api},
    directory::Directory,
    guid,
    issuer::{Documents, KeptError, Principal, Principals, PrincipalsError, User, Users, principals::SECRET_LIFE},
    issuer_state,
    resources::{deciding, role_assignment, role_definition},
    store::{
        Store, StoreError,
        batch::{Batch, Expect, Refused},
        held::RightsTurn,
        resources::{PAGE_ROWS, Stored},
    },
};

/// The role, and the name of an owner that `recover` makes.
const OWNER: &str = "Owner";

/// The GUID of the role, in lower case.
pub fn role() -> &'static str {
    built_in().iter().find(|role| role.name == OWNER).map_or("", |role| role.role.id())
}

/// Who can sign in, as far as this gateway can tell.
#[derive(Clone, Copy)]
pub struct SignedIn<'a> {
    /// The names that issuers give.
    pub names: &'a AccountNames,
    /// The accounts of the built-in issuer; without it everybody is another issuer's to know.
    pub accounts: Option<(&'a Users, &'a Principals)>,
    /// What the policy calls who asks: they have just signed in.
    pub caller: &'a [String],
    /// The object id of an account that goes away.
    pub gone: Option<&'a str>,
    /// The instant for which validity and expiry are judged.
    pub now: SystemTime,
}

impl SignedIn<'_> {
    /// Whether somebody can whom the policy calls this.
    fn can(&self, key: &str) -> bool {
        let names = self.names;
        if self.gone.is_some_and(|gone| names.key(gone) == key) {
            return false;
        }
        let Some((users, principals)) = self.accounts else { return true };
        if self.caller.iter().any(|own| own == key) {
            return true;
        }
        // Of a group nobody here knows whether there is somebody in it.
        let Some(id) = key.strip_prefix(&user_key("")) else { return false };
        let is_user =
            |user: &User| !user.disabled && names.key(&user.id) == key && !names.refuses(&[&user.name, &user.id]);
        let is_principal = |one: &Principal| {
            names.key(&one.object_id) == key && one.can_sign_in(self.now) && !names.refuses(&[&one.object_id])
        };
        names.is_elsewhere(id) || users.iter().any(is_user) || principals.iter().any(is_principal)
    }
}

/// A change, by what is left behind it.
pub struct Change<'a> {
    /// Who can sign in before it.
    pub before: SignedIn<'a>,
    /// And behind it.
    pub after: SignedIn<'a>,
    /// The key of a role assignment that it takes away or bounds.
    pub assignment: Option<&'a str>,
}

impl Change<'_> {
    /// Refuses it if a subscription would lose its last owner.
    ///
    /// # Errors
    /// 409, with what to do.
    pub fn check(&self, settings: &Api, directory: &Directory) -> Result<(), ApiError> {
        let Some(name) = self.locks_out(settings, directory) else { return Ok(()) };
        let message = format!(
            "That would take the last owner of the subscription '{name}' away, and nobody could assign roles afterwards. Give \
             the role Owner at the subscription to somebody else first, without an end. (An account that is disabled or has \
             no secret that is good does not count, nor a name that no configured issuer gives.)"
        );
        Err(ApiError::of(StatusCode::CONFLICT, "CannotRemoveLastOwner", message))
    }

    /// The name of a subscription that would lose its last owner.
    pub fn locks_out(&self, settings: &Api, directory: &Directory) -> Option<String> {
        let seconds = milliseconds(self.before.now) / 1000;
        let configured: Vec<String> = settings.owners.iter().map(|id| user_key(id)).collect();
        let lost = settings.subscriptions.iter().find(|subscription| {
            let Ok(scope) = format!("/subscriptions/{}", subscription.id).parse::<Scope>() else { return false };
            let assigned = directory.owners_at(&scope, role(), seconds);
            let owned = |of: &SignedIn<'_>, without: Option<&str>| {
                configured.iter().any(|key| of.can(key))
                    || assigned.iter().any(|(key, principal)| Some(*key) != without && of.can(principal))
            };
            owned(&self.before, None) && !owned(&self.after, self.assignment)
        });
        lost.map(|subscription| subscription.name.clone())
    }
}

/// Why no owner was made, or an account stays.
#[derive(Debug, thiserror::Error)]
pub enum OwnersError {
    /// There is no built-in issuer.
    #[error(
        "the configuration has no [api] or no [issuer]: owners sign in elsewhere; add one's id to [api] owners and restart"
    )]
    NoIssuer,
    /// It would be the last one.
    #[error(
        "{name} is the last owner of the subscription {subscription:?}: give the role Owner there to somebody else first \
         (`towline role assignment create`), or make another owner with `towline-gateway recover-owner`"
    )]
    Last {
        /// Name of the account that was to go.
        name: String,
        /// Display name of the subscription.
        subscription: String,
    },
    /// The gateway has never run.
    #[error("the store has no subscription yet: start the gateway once")]
    NotStarted,
    /// The service principals of the built-in issuer cannot be read or changed.
    #[error("cannot read or change the service principals")]
    Principals(#[from] PrincipalsError),
    /// The accounts of the built-in issuer cannot be read.
    #[error("cannot read the accounts of the built-in issuer")]
    Kept(#[from] KeptError),
    /// The store cannot be read or changed.
    #[error("cannot read or change the store")]
    Store(#[from] StoreError),
    /// The operating system gave no random bytes.
    #[error(transparent)]
    Random(#[from] guid::NoRandom),
}

/// Makes a service principal that owns every subscription of the configuration; what to sign in with, once. A gateway
/// that runs knows it within a second.
///
/// # Errors
/// [`OwnersError`]; nothing is left behind.
pub async fn recover(config: &Config, now: SystemTime) -> Result<Value, OwnersError> {
    let (Some(api), Some(issuer)) = (&config.api, &config.issuer) else { return Err(OwnersError::NoIssuer) };
    let store = Store::open_used(&api.store.url()).await?.ok_or(OwnersError::NotStarted)?;
    let documents = match issuer_state::documents(config, issuer).await {
        Ok(documents) => documents,
        Err(error) => {
            store.close().await;
            return Err(error.into());
        }
    };
    let made = made(api, &AccountNames::of(config), &store, &documents, now).await;
    documents.close().await;
    store.close().await;
    made
}

async fn made(
    api: &Api,
    names: &AccountNames,
    store: &Store,
    documents: &Documents,
    now: SystemTime,
) -> Result<Value, OwnersError> {
    let added = documents.edit_principals(move |all| {
        let taken = |name: &String| all.iter().any(|one| one.name == *name);
        let names = std::iter::once("owner".to_owned()).chain((2_u32..).map(|n| format!("owner-{n}")));
        let name = names.into_iter().find(|name| !taken(name)).unwrap_or_default();
        all.create(&name, SECRET_LIFE, now)
    });
    let (owner, secret) = added.await?;
    let mut batch = Batch::default();
    for subscription in &api.subscriptions {
        let principal = names.principal(&owner.object_id);
        batch.puts.push((assignment(&subscription.id, &principal, now)?, Expect::Absent));
    }
    let kept = match store.apply(&batch).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(
            Refused::NoParent { .. }
            | Refused::Changed { .. }
            | Refused::NotEmpty { .. }
            | Refused::Full { .. }
            | Refused::TooManyOperations { .. },
        )) => Err(OwnersError::NotStarted),
        Err(error) => Err(error.into()),
    };
    if let Err(error) = kept {
        documents.edit_principals(move |all| all.delete(&owner.object_id)).await?;
        return Err(error);
    }
    Ok(json!({
        "url": api.url,
        "name": owner.name,
        "objectId": owner.object_id,
        "clientId": owner.client_id,
        "clientSecret": secret.secret.expose_secret(),
        "secretExpiresInDays": SECRET_LIFE.as_secs() / Duration::from_secs(86_400).as_secs(),
    }))
}

/// The role Owner at a subscription, as it is kept.
pub(crate) fn assignment(subscription: &str, principal: &str, now: SystemTime) -> Result<Stored, guid::NoRandom> {
    let at = format!("/subscriptions/{subscription}");
    let id = format!("{at}/providers/{}/{}", role_assignment::NAME, guid::random()?);
    let (instant, by) = (instant(milliseconds(now)), "towline-gateway recover-owner");
    Ok(Stored {
        key: id.to_ascii_lowercase(),
        kind: role_assignment::NAME.to_ascii_lowercase(),
        parent: at.to_ascii_lowercase(),
        id,
        revision: 0,
        body: json!({
            "properties": {
                "roleDefinitionId": format!("{at}/providers/{}/{}", role_definition::NAME, role()),
                "principalId": principal,
                "principalType": "ServicePrincipal",
                "scope": at,
                "createdOn": instant, "createdBy": by, "updatedOn": instant, "updatedBy": by,
            },
            "systemData": {
                "createdBy": by, "createdByType": "Application", "createdAt": instant,
                "lastModifiedBy": by, "lastModifiedByType": "Application", "lastModifiedAt": instant,
            },
        }),
        protected: None,
    })
}

/// Nobody else takes an owner away while a user goes.
#[must_use]
pub struct Going {
    _turn: Option<(RightsTurn, Store)>,
}

/// Refuses to disable or remove the local user of this name, if they are the last owner. What is returned is held until
/// they are gone.
///
/// # Errors
/// [`OwnersError::Last`]; or what is kept cannot be read.
pub async fn user_may_go(config: &Config, name: &str, now: SystemTime) -> Result<Going, OwnersError> {
    let (Some(api), Some(issuer)) = (&config.api, &config.issuer) else { return Ok(Going { _turn: None }) };
    let going = match Store::open_used(&api.store.url()).await? {
        Some(store) => Going { _turn: Some((store.rights_turn().await?, store)) },
        None => Going { _turn: None },
    };
    let documents = issuer_state::documents(config, issuer).await?;
    let (users, principals) = (documents.users().await, documents.principals().await);
    documents.close().await;
    let (users, principals) = (users?, principals?);
    // A user that there is not is another's to say.
    let Some(gone) = users.find(name).map(|user| user.id.as_str()) else { return Ok(going) };
    let directory = read(api).await?;
    let names = AccountNames::of(config);
    let before = SignedIn { names: &names, accounts: Some((&users, &principals)), caller: &[], gone: None, now };
    let after = SignedIn { gone: Some(gone), ..before };
    match (Change { before, after, assignment: None }).locks_out(api, &directory) {
        Some(subscription) => Err(OwnersError::Last { name: name.to_owned(), subscription }),
        None => Ok(going),
    }
}

/// The role assignments that are kept; none where there is no store yet.
async fn read(api: &Api) -> Result<Directory, OwnersError> {
    let mut directory = Directory::new(deciding(), &api.owners);
    let Some(store) = Store::open_to_read(&api.store.url()).await? else { return Ok(directory) };
    let kind = role_assignment::NAME.to_ascii_lowercase();
    let mut after = String::new();
    loop {
        let page = store.page(&kind, "", &after, PAGE_ROWS).await?;
        directory.load(&page, 0);
        match page.next {
            Some(next) => after = next,
            None => break,
        }
    }
    store.close().await;
    Ok(directory)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use auth::token::RawIssuer;

    use super::*;
    use crate::{
        Extras, Gateway,
        init::made,
        issuer::{PRINCIPALS_FILE, USERS_FILE},
    };

    #[tokio::test]
    async fn recover_owner_makes_one_who_can_sign_in_and_owns_every_subscription() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::load(&made(&dir.path().join("g"))).unwrap();
        let now = SystemTime::now();
        assert!(matches!(recover(&config, now).await, Err(OwnersError::NotStarted)));
        let file = config.issuer.as_ref().unwrap().state_dir.join(PRINCIPALS_FILE);
        assert_eq!(Principals::read(&file).unwrap().iter().count(), 1, "nothing is left behind");
        // Its first start makes what is in the store.
        drop(Gateway::build(config.clone(), Extras::default()).await.unwrap());
        let first = Principals::read(&file).unwrap().iter().next().unwrap().object_id.clone();
        Principals::edit(&file, |all| all.delete(&first)).unwrap();
        let told = recover(&config, now).await.unwrap();
        let all = Principals::read(&file).unwrap();
        let (id, secret) = (told["clientId"].as_str().unwrap(), told["clientSecret"].as_str().unwrap());
        assert_eq!(all.check(id, secret, now).unwrap().object_id, told["objectId"]);
        let (api, users) = (config.api.as_ref().unwrap(), Users::default());
        let directory = read(api).await.unwrap();
        let scope = format!("/subscriptions/{}", api.subscriptions[0].id).parse().unwrap();
        let owners = directory.owners_at(&scope, role(), milliseconds(now) / 1000);
        assert_eq!(
            owners.iter().map(|(_, who)| *who).collect::<Vec<_>>(),
            [user_key(told["objectId"].as_str().unwrap())]
        );
        let names = AccountNames::of(&config);
        let before = SignedIn { names: &names, accounts: Some((&users, &all)), caller: &[], gone: None, now };
        let after = SignedIn { gone: told["objectId"].as_str(), ..before };
        assert!(Change { before, after, assignment: None }.locks_out(api, &directory).is_some());
        // A year later its secret is over: it cannot be the last one any more, for it is none.
        let late = SignedIn { now: now + 2 * SECRET_LIFE, ..before };
        assert!(Change { before: late, after: late, assignment: None }.locks_out(api, &directory).is_none());
        assert_eq!(recover(&config, now).await.unwrap()["name"], "owner-2");
    }

    #[tokio::test]
    async fn the_last_owner_among_local_users_is_not_disabled() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::load(&made(&dir.path().join("g"))).unwrap();
        let state = config.issuer.as_ref().unwrap().state_dir.clone();
        let id =
            Users::edit(&state.join(USERS_FILE), |users| Ok(users.put("ann", &[], "a password")?.id.clone())).unwrap();
        let now = SystemTime::now();
        drop(user_may_go(&config, "ann", now).await.unwrap());
        config.api.as_mut().unwrap().owners = vec![id];
        assert!(matches!(user_may_go(&config, "ann", now).await, Err(OwnersError::Last { .. })));
        drop(user_may_go(&config, "nobody", now).await.unwrap());
    }

    /// A token of the built-in issuer then says `dev:<object id>`, and so do assignments.
    #[tokio::test]
    async fn recover_owner_names_the_principal_with_the_issuers_prefix() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::load(&made(&dir.path().join("g"))).unwrap();
        config.dynamic.issuers[0].username_prefix = Some("dev:".to_owned());
        let now = SystemTime::now();
        drop(Gateway::build(config.clone(), Extras::default()).await.unwrap());
        let told = recover(&config, now).await.unwrap();
        let api = config.api.as_ref().unwrap();
        let directory = read(api).await.unwrap();
        let scope = format!("/subscriptions/{}", api.subscriptions[0].id).parse().unwrap();
        let owners = directory.owners_at(&scope, role(), milliseconds(now) / 1000);
        let named = format!("dev:{}", told["objectId"].as_str().unwrap());
        assert_eq!(owners.iter().map(|(_, who)| *who).collect::<Vec<_>>(), [user_key(&named)]);
        let all = Principals::read(&config.issuer.as_ref().unwrap().state_dir.join(PRINCIPALS_FILE)).unwrap();
        let (users, names) = (Users::default(), AccountNames::of(&config));
        let before = SignedIn { names: &names, accounts: Some((&users, &all)), caller: &[], gone: None, now };
        assert!(before.can(owners[0].1), "it can sign in");
        let after = SignedIn { gone: told["objectId"].as_str(), ..before };
        assert!(!after.can(owners[0].1), "and is gone with its account");
        assert!(!before.can(&user_key(told["objectId"].as_str().unwrap())), "nobody has the id without the prefix");
    }

    #[test]
    fn name_that_no_issuer_gives_or_the_configuration_refuses_is_no_owner() {
        const OWN: &str = "https://gateway.example.org/.towline/issuer";
        let issuer = |url: &str, prefix: &str| RawIssuer {
            username_prefix: Some(prefix.to_owned()),
            ..RawIssuer::new(&url[8..], url)
        };
        let disabled: HashSet<String> = ["ann", "corp:mallory"].map(str::to_owned).into();
        let mut users = Users::default();
        let ids = ["ann", "bob"].map(|name| users.put(name, &[], "a password").unwrap().id.clone());
        let principals = Principals::default();
        let can = |issuers: &[RawIssuer], id: &str| {
            let names = AccountNames::new(issuers, Some(OWN), &disabled);
            let accounts = Some((&users, &principals));
            let signed_in = SignedIn { names: &names, accounts, caller: &[], gone: None, now: SystemTime::UNIX_EPOCH };
            signed_in.can(&user_key(id))
        };
        let alone = [issuer(OWN, "")];
        assert!(can(&alone, &ids[1]) && !can(&alone, &ids[0]), "ann is in [[disabled]]");
        assert!(!can(&alone, "carol"), "there is no issuer that could give it");
        let two = [issuer(OWN, ""), issuer("https://corp.example", "corp:")];
        assert!(can(&two, "corp:carol") && !can(&two, "corp:mallory") && !can(&two, "carol") && !can(&two, "corp:"));
        let guid = "99999999-9999-4999-8999-999999999999";
        assert!(can(&two, &format!("corp:{guid}")) && !can(&two, guid));
        let prefixed = [issuer(OWN, "dev:"), issuer("https://entra.example", "")];
        assert!(can(&prefixed, guid) && can(&prefixed, &format!("dev:{}", ids[1])));
        assert!(!can(&prefixed, &format!("dev:{guid}")), "an account that is gone");
    }
}
