//! The small built-in OIDC issuer, mounted at `/.towline/issuer`: one machine needs nothing else (docs/identity.md).
//!
//! Everything it knows lies in one folder and is read again when it changes, so that `towline dev add-user` and
//! `rotate-keys` reach a running issuer without a signal:
//!
//! | file | what it holds |
//! |---|---|
//! | `keys.json` | the signing key, and the public halves of earlier ones, each vouched for by the one before |
//! | `users.json` | local users: stable id, groups, hashed password, disabled or not |
//! | `principals.json` | service principals: ids, hashed secrets with their ends, disabled or not |
//! | `refresh.json` | hashed refresh tokens of users who signed in by a page |
//!
//! Where several gateways share a store, all of that is in the store instead, with what is under way of sign-ins, and
//! each gateway follows it ([`documents`], `state`).
//!
//! It is mounted a second time at `/<tenant>`, in the shapes of the Microsoft identity platform v2, for clients that
//! know no others (`az`, MSAL, the Azure SDKs). The keys, and `iss` in tokens and discovery, are the same there.
//!
//! What it mints is for one audience: a cluster ([`ClusterId::audience`]), so that a token shown for cluster A is
//! nothing at B, or the gateway's own API, which is nothing at any cluster. Agents pin its key set when they are
//! enrolled and accept a further key only when one they accept has signed it ([`keys`]); a gateway that is taken over
//! therefore cannot bring its own.

mod authorize;
pub mod clients;
mod device;
pub mod documents;
mod failures;
mod flows;
mod form;
mod grant;
mod in_force;
mod kept;
pub mod keys;
mod mint;
mod page;
pub mod principals;
mod redeem;
mod refresh;
mod respond;
mod shared;
mod state;
mod texts;
mod tickets;
pub mod users;

use std::{
    net::IpAddr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use daemon::Shutdown;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use tokio::sync::Notify;
use types::ids::ClusterId;

pub use self::{
    clients::PublicClient,
    documents::{Documents, Vault},
    in_force::InForce,
    kept::KeptError,
    keys::{Keys, KeysError},
    mint::NotSigned,
    principals::{NewSecret, Principal, Principals, PrincipalsError, Secret},
    shared::Away,
    users::{User, Users, UsersError},
};
use self::{shared::Shared, state::State};
pub use crate::files::FileError;
use crate::{files, guid, store::protect::Protector};

/// Path below a gateway's address where it is mounted.
pub const MOUNT: &str = auth::token::OWN_ISSUER_PATH;
/// What clients of the Microsoft identity platform call a tenant that they do not know yet, such as `az logout`.
const ANY_TENANT: [&str; 2] = ["organizations", "common"];
/// Default life of a token.
pub const TTL_DEFAULT: Duration = Duration::from_secs(3600);
/// The longest life of a token that can be configured.
pub const TTL_LONGEST: Duration = Duration::from_secs(24 * 3600);
/// The file with the keys, in the issuer's folder.
pub const KEYS_FILE: &str = "keys.json";
/// The file with the users, in the issuer's folder.
pub const USERS_FILE: &str = "users.json";
/// The file with the service principals, in the issuer's folder.
pub const PRINCIPALS_FILE: &str = "principals.json";

/// The file with the refresh tokens, in the issuer's folder.
const REFRESH_FILE: &str = "refresh.json";
/// How often a gateway looks for what others have changed in a shared store: as soon as a changed file is seen.
const FOLLOW_EVERY: Duration = Duration::from_secs(1);
/// The same, where the database tells at once what others change, and a lease's renewal what was not heard.
const FOLLOW_AS_REPLICA: Duration = Duration::from_secs(5);

/// What an issuer needs to know.
#[derive(Debug, Clone)]
pub struct IssuerSettings {
    /// `iss`, the address below which discovery is read, without a slash at the end:
    /// `https://gateway.example.org/.towline/issuer`.
    pub url: String,
    /// The folder of its keys, users, service principals and refresh tokens.
    pub state: PathBuf,
    /// How long a token lives, and the longest that a request may ask for.
    pub ttl: Duration,
    /// The one tenant, a GUID: `tid`, and the first segment of the paths of the Microsoft identity platform.
    pub tenant: String,
    /// The audience of the gateway's own API: its URL without a slash at the end.
    pub api_audience: String,
    /// Audiences that it mints for beside these and those of clusters.
    pub audiences: Vec<String>,
    /// Programs that sign users in, beside the `towline` command and `az`.
    pub clients: Vec<PublicClient>,
}

/// Why an issuer could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum IssuerError {
    /// The keys could not be read or made.
    #[error("cannot read or make the built-in issuer's keys")]
    Keys(#[from] KeysError),
    /// The users could not be read.
    #[error("cannot read the built-in issuer's users")]
    Users(#[from] UsersError),
    /// The service principals could not be read.
    #[error("cannot read the built-in issuer's service principals")]
    Principals(#[from] PrincipalsError),
    /// The operating system gave no random bytes.
    #[error(transparent)]
    Random(#[from] guid::NoRandom),
    /// The refresh tokens could not be read.
    #[error("cannot read the built-in issuer's refresh tokens")]
    Refresh(#[from] FileError),
    /// The keys are not there, and what was used with them is.
    #[error(
        "the built-in issuer's signing key {} is missing, and {} is there: put the file back, from its backup; if it is lost \
         for good, `towline-gateway replace-lost issuer-key` makes another, after which every cluster must be connected again",
        .keys.display(),
        .beside.display()
    )]
    Lost {
        /// The file of the keys.
        keys: PathBuf,
        /// Path of a file that is there.
        beside: PathBuf,
    },
    /// The store that has them.
    #[error(transparent)]
    Kept(#[from] KeptError),
    /// A store took over the files, and this one has nothing of them.
    #[error(
        "the built-in issuer's files were taken over by a store ({} says so), and the store has no accounts and keys of it: \
         use the database that took them over, or restore it from its backup; if it was restored from before that, delete \
         the note and start again, and the files are taken over as they are; if the keys are lost for good, \
         `towline-gateway replace-lost issuer-key` makes another one, after which every cluster must be connected again",
        .note.display()
    )]
    Moved {
        /// The file that notes which store took these files over.
        note: PathBuf,
    },
    /// A store took over the files, and the configuration has another one.
    #[error(
        "the built-in issuer's files in {} were taken over by a PostgreSQL store and are no longer those of the issuer: \
         configure that store ([api] postgres_url_file), or another state_dir",
        .folder.display()
    )]
    Elsewhere {
        /// Where the files are.
        folder: PathBuf,
    },
    /// There is a store with clusters, and no key anywhere.
    #[error(
        "the store has clusters and no signing key of the built-in issuer, and {} has none either: start the gateway that \
         has the issuer's files first, so that the store takes them over, or put them there; if there never was a built-in \
         issuer, `towline-gateway replace-lost issuer-key` makes its first key",
        .folder.display()
    )]
    NoKey {
        /// Where files would be.
        folder: PathBuf,
    },
    /// The tenant is no GUID.
    #[error("the built-in issuer's tenant must be a GUID")]
    Tenant,
}

/// A running issuer. Shared by reference; all methods take `&self`.
pub struct Issuer {
    settings: IssuerSettings,
    /// Where `settings.url` and the tenant's paths begin, without a slash at the end.
    base: String,
    /// Path of `base`, which requests may carry in front.
    prefix: String,
    documents: Documents,
    state: State,
    /// Who could act when it was asked last.
    in_force: ArcSwapOption<InForce>,
    checks: grant::PasswordChecks,
    clock: fn() -> SystemTime,
    /// Told when what is known may have changed.
    followed: Notify,
}

/// What there is, below either mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Endpoint {
    Discovery,
    Keys,
    Token,
    Authorize,
    DeviceCode,
    /// Where users type the code that a device shows.
    DevicePage,
}

/// Where its paths are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mount {
    /// Below [`MOUNT`].
    Own,
    /// Below `/<tenant>`, as at the Microsoft identity platform.
    Tenant,
}

impl Endpoint {
    /// The endpoints and their paths below each mount; those of the second are the Microsoft identity platform's.
    const ALL: [(Self, &str, &str); 6] = [
        (Self::Discovery, "/.well-known/openid-configuration", "/v2.0/.well-known/openid-configuration"),
        (Self::Keys, "/keys", "/discovery/v2.0/keys"),
        (Self::Token, "/token", "/oauth2/v2.0/token"),
        (Self::Authorize, "/authorize", "/oauth2/v2.0/authorize"),
        (Self::DeviceCode, "/devicecode", "/oauth2/v2.0/devicecode"),
        (Self::DevicePage, "/device", "/oauth2/deviceauth"),
    ];

    fn path(self, mount: Mount) -> &'static str {
        let found = Self::ALL.into_iter().find(|(endpoint, ..)| *endpoint == self);
        found.map_or("", |(_, own, tenant)| if mount == Mount::Own { own } else { tenant })
    }

    fn of(mount: Mount, path: &str) -> Option<Self> {
        Self::ALL.into_iter().map(|(endpoint, ..)| endpoint).find(|endpoint| endpoint.path(mount) == path)
    }

    fn methods(self) -> &'static str {
        match self {
            Self::Discovery | Self::Keys => "GET, HEAD",
            Self::Token | Self::DeviceCode => "POST",
            Self::Authorize | Self::DevicePage => "GET, POST",
        }
    }
}

impl Issuer {
    /// Opens the issuer in `settings.state`; makes the folder, the first key and empty files of users and principals
    /// where there are none.
    ///
    /// # Errors
    /// When a file cannot be read or made, or the tenant is no GUID.
    pub fn open(settings: IssuerSettings) -> Result<Self, IssuerError> {
        let file = |name| settings.state.join(name);
        let (keys_file, users_file, principals_file) = (file(KEYS_FILE), file(USERS_FILE), file(PRINCIPALS_FILE));
        if documents::is_moved(&settings.state) {
            return Err(IssuerError::Elsewhere { folder: settings.state });
        }
        if !keys_file.exists()
            && let Some(beside) = Self::began(&settings.state)
        {
            return Err(IssuerError::Lost { keys: keys_file, beside });
        }
        Keys::load_or_create(&keys_file)?;
        Users::edit(&users_file, |_| Ok(()))?;
        Principals::edit(&principals_file, |_| Ok(()))?;
        let state = State::Folder(Box::new(state::Folder {
            refresh: file(REFRESH_FILE),
            keys: files::Watched::open(keys_file, Keys::parse).map_err(KeysError::from)?,
            users: files::Watched::open(users_file, Users::parse).map_err(UsersError::from)?,
            principals: files::Watched::open(principals_file, Principals::parse).map_err(PrincipalsError::from)?,
            failures: failures::Failures::new(),
            devices: flows::Devices::default(),
            codes: flows::Codes::default(),
            seals: page::Seals::new()?,
        }));
        let documents = Documents::Folder(settings.state.clone());
        Self::of(settings, documents, state)
    }

    /// Opens the issuer of a store that several gateways share. At its first start the store takes over what
    /// `settings.state` has. `used`: whether there are clusters, which have pinned a key. Nobody is signed in while the
    /// store has not answered for `stale_after`.
    ///
    /// # Errors
    /// When the store cannot be used, there is no key where there must be one, or the tenant is no GUID.
    pub async fn open_shared(
        settings: IssuerSettings,
        vault: Vault,
        used: bool,
        stale_after: Duration,
    ) -> Result<Self, IssuerError> {
        vault.begin(&settings.state, used).await?;
        let state = State::Shared(Box::new(Shared::open(vault.clone(), stale_after).await?));
        Self::of(settings, Documents::Store(vault), state)
    }

    fn of(mut settings: IssuerSettings, documents: Documents, state: State) -> Result<Self, IssuerError> {
        if !guid::is_guid(&settings.tenant) {
            return Err(IssuerError::Tenant);
        }
        settings.tenant.make_ascii_lowercase();
        settings.api_audience.truncate(settings.api_audience.trim_end_matches('/').len());
        let base = settings.url.strip_suffix(MOUNT).unwrap_or(&settings.url).trim_end_matches('/').to_owned();
        Ok(Self {
            checks: grant::PasswordChecks::new(),
            prefix: path_of(&base).to_owned(),
            base,
            documents,
            state,
            in_force: ArcSwapOption::empty(),
            clock: SystemTime::now,
            followed: Notify::new(),
            settings,
        })
    }

    /// Takes what others change in a shared store, until the gateway stops. One of several replicas is told of changes.
    pub async fn follow(self: Arc<Self>, is_replica: bool, shutdown: Shutdown) {
        let follow_every = if is_replica { FOLLOW_AS_REPLICA } else { FOLLOW_EVERY };
        if matches!(self.state, State::Folder(_)) {
            return;
        }
        loop {
            tokio::select! {
                biased;
                () = shutdown.closed() => return,
                () = self.state.told() => {}
                () = tokio::time::sleep(follow_every) => {}
            }
            // What went wrong is in the log; what is known stays, for a time.
            let _ = self.state.follow().await;
            self.followed.notify_one();
        }
    }

    /// Completes when what is known may have changed since the last time. For one who follows it.
    pub async fn followed(&self) {
        self.followed.notified().await;
    }

    /// Takes what others have changed in a shared store.
    ///
    /// # Errors
    /// When the store cannot be asked; what is known stays, for a time.
    pub async fn catch_up(&self) -> Result<(), Away> {
        self.state.follow().await
    }

    /// Changes the service principals.
    ///
    /// # Errors
    /// As [`Documents::edit_principals`].
    pub async fn edit_principals<T: Send + 'static>(
        &self,
        change: impl FnOnce(&mut Principals) -> Result<T, PrincipalsError> + Send + 'static,
    ) -> Result<T, PrincipalsError> {
        let done = self.documents.edit_principals(change).await?;
        // Where that fails, it is found in a moment.
        let _ = self.state.follow().await;
        self.followed.notify_one();
        Ok(done)
    }

    /// Whether an issuer can be opened in a folder, without making anything there.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn look(state: &Path) -> Result<(), IssuerError> {
        if documents::is_moved(state) {
            return Err(IssuerError::Elsewhere { folder: state.to_owned() });
        }
        if !state.exists() {
            let folder = state.parent().unwrap_or(state);
            crate::files::writable_folder(folder).map_err(FileError::io("write into", folder))?;
            return Ok(());
        }
        crate::files::writable_folder(state).map_err(FileError::io("write into", state))?;
        Self::look_at_files(state)
    }

    /// Whether a store can take over a folder: what is in it can be read, or was taken over before.
    ///
    /// # Errors
    /// As [`Self::open_shared`].
    pub fn look_at_copy(state: &Path) -> Result<(), IssuerError> {
        if documents::is_moved(state) { Ok(()) } else { Self::look_at_files(state) }
    }

    /// Whether an issuer can be opened on the store at `url`, which is not changed.
    ///
    /// # Errors
    /// As [`Self::open_shared`], but for the clusters that the store has.
    pub async fn look_at_store(url: &str, protector: &Protector, state: &Path) -> Result<(), IssuerError> {
        let there = Documents::look(url, protector).await?;
        if !there && documents::is_moved(state) {
            return Err(IssuerError::Moved { note: documents::note(state) });
        }
        Ok(())
    }

    fn look_at_files(state: &Path) -> Result<(), IssuerError> {
        let content = |name: &str| {
            let path = state.join(name);
            if path.exists() { files::read(&path).map(|bytes| Some((path, bytes))) } else { Ok(None) }
        };
        match (content(KEYS_FILE).map_err(KeysError::from)?, Self::began(state)) {
            (Some((path, bytes)), _) => drop(Keys::parse(&path, &bytes).map_err(KeysError::from)?),
            (None, Some(beside)) => return Err(IssuerError::Lost { keys: state.join(KEYS_FILE), beside }),
            (None, None) => {}
        }
        if let Some((path, bytes)) = content(USERS_FILE).map_err(UsersError::from)? {
            Users::parse(&path, &bytes).map_err(UsersError::from)?;
        }
        if let Some((path, bytes)) = content(PRINCIPALS_FILE).map_err(PrincipalsError::from)? {
            Principals::parse(&path, &bytes).map_err(PrincipalsError::from)?;
        }
        if let Some((path, bytes)) = content(REFRESH_FILE)? {
            files::parse_json::<refresh::Refresh>(&path, &bytes)?;
        }
        Ok(())
    }

    /// What shows that an issuer has run in a folder, and so had keys: the first start makes the file of users.
    fn began(state: &Path) -> Option<PathBuf> {
        [USERS_FILE, REFRESH_FILE].into_iter().map(|name| state.join(name)).find(|path| path.exists())
    }

    /// Whether a path is an issuer's: at or below [`MOUNT`] or `/<a GUID>`, a tenant's place whether there is such a
    /// tenant or not (which is the issuer's to say). No cluster's address and no path of ARM is like that.
    pub fn serves(path: &str) -> bool {
        let below = |rest: &str| rest.is_empty() || rest.starts_with('/');
        path.strip_prefix(MOUNT).is_some_and(below) || tenant_of(path).is_some()
    }

    /// Who may act now. For whoever takes this issuer's tokens and wants that to hold at once, not when the token ends.
    pub fn in_force(&self) -> Arc<InForce> {
        let (users, principals) = self.known();
        let known = self.in_force.load_full();
        if let Some(known) = known.filter(|known| known.is_of(&users, &principals)) {
            return known;
        }
        let now = Arc::new(InForce::of(users, principals));
        self.in_force.store(Some(Arc::clone(&now)));
        now
    }

    /// As [`InForce::has`], of now.
    pub fn is_in_force(&self, subject: &str, credential: Option<&str>) -> bool {
        self.in_force().has(subject, credential)
    }

    /// Its users and service principals.
    pub fn known(&self) -> (Arc<Users>, Arc<Principals>) {
        (self.state.users(), self.state.principals())
    }

    /// The settings that the issuer was opened with.
    pub fn settings(&self) -> &IssuerSettings {
        &self.settings
    }

    /// Its keys; the same value as long as they do not change.
    pub fn keys(&self) -> Arc<Keys> {
        self.state.keys()
    }

    /// The key set as published: a JWKS document (RFC 7517 section 5).
    pub fn key_set(&self) -> serde_json::Value {
        self.state.keys().key_set()
    }

    /// What a new agent pins: the key that signs now.
    pub fn pinned_keys(&self) -> serde_json::Value {
        self.state.keys().pinned()
    }

    /// Answers one request to the issuer from a client at `peer`. Below [`MOUNT`] the mount itself may be left out.
    pub async fn handle<B>(&self, peer: IpAddr, request: Request<B>) -> Response<Full<Bytes>>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (parts, body) = request.into_parts();
        let (mut body, expecting) = (std::pin::pin!(body), parts.headers.contains_key(header::EXPECT));
        let response = self.answer(peer, Request::from_parts(parts, body.as_mut())).await;
        if !expecting {
            crate::bodies::leave(body).await;
        }
        response
    }

    async fn answer<B>(&self, peer: IpAddr, request: Request<B>) -> Response<Full<Bytes>>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = request.uri().path();
        let path = path.strip_prefix(self.prefix.as_str()).unwrap_or(path);
        let (mount, rest) = match tenant_of(path) {
            Some((tenant, rest)) if self.is_tenant(tenant) => (Mount::Tenant, rest),
            Some((tenant, _)) => return respond::refusal(&respond::Refusal::Tenant(tenant.to_owned())),
            None => (Mount::Own, path.strip_prefix(MOUNT).unwrap_or(path)),
        };
        let Some(endpoint) = Endpoint::of(mount, rest) else {
            return respond::plain(StatusCode::NOT_FOUND, "the issuer has no such path");
        };
        let (get, post) = (request.method() == Method::GET, request.method() == Method::POST);
        let query = request.uri().query().unwrap_or_default();
        match endpoint {
            Endpoint::Discovery if get || request.method() == Method::HEAD => respond::document(&self.discovery(mount)),
            Endpoint::Keys if get || request.method() == Method::HEAD => respond::document(&self.key_set()),
            Endpoint::Token if post => match self.token(peer, request).await {
                Ok(minted) => respond::token(&minted),
                Err(refusal) => respond::refusal(&refusal),
            },
            Endpoint::DeviceCode if post => match self.device_code(peer, request).await {
                Ok(begun) => respond::private(&begun),
                Err(refusal) => respond::refusal(&refusal),
            },
            Endpoint::Authorize if get => self.authorize_page(request.headers(), query),
            Endpoint::Authorize if post => self.authorize_form(peer, request).await,
            Endpoint::DevicePage if get => self.device_page(request.headers(), query),
            Endpoint::DevicePage if post => self.device_form(peer, request).await,
            _ => respond::method_not_allowed(endpoint.methods()),
        }
    }

    fn is_tenant(&self, name: &str) -> bool {
        name.eq_ignore_ascii_case(&self.settings.tenant) || ANY_TENANT.contains(&name)
    }

    /// OpenID Connect Discovery 1.0 section 3, as far as there is something behind it.
    fn discovery(&self, mount: Mount) -> serde_json::Value {
        let url = |endpoint: Endpoint| match mount {
            Mount::Own => format!("{}{}", self.settings.url, endpoint.path(mount)),
            Mount::Tenant => format!("{}/{}{}", self.base, self.settings.tenant, endpoint.path(mount)),
        };
        serde_json::json!({
            "issuer": self.settings.url,
            "jwks_uri": url(Endpoint::Keys),
            "authorization_endpoint": url(Endpoint::Authorize),
            "token_endpoint": url(Endpoint::Token),
            "device_authorization_endpoint": url(Endpoint::DeviceCode),
            "grant_types_supported": [
                "authorization_code", grant::DEVICE_GRANT, "refresh_token", "client_credentials", "password",
            ],
            "response_types_supported": ["code"],
            "response_modes_supported": ["query", "form_post"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": true,
            "scopes_supported": ["openid", "profile", "offline_access"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": [keys::ALGORITHM],
            "token_endpoint_auth_methods_supported": ["client_secret_post", "client_secret_basic", "none"],
            "claims_supported": [
                "iss", "sub", "aud", "exp", "nbf", "iat", "jti", "oid", "tid", "appid", "azp", "idtyp", "groups",
                "preferred_username", "name", "nonce", "auth_time", "sid",
            ],
        })
    }

    /// The audience that a token may be minted for, in its one spelling; `None` if this issuer does not know it.
    fn audience(&self, asked: &str) -> Option<String> {
        let api = &self.settings.api_audience;
        // `az` puts `/.default` behind an address that may end in a slash itself.
        if !api.is_empty() && asked.strip_suffix('/').unwrap_or(asked).eq_ignore_ascii_case(api) {
            return Some(api.clone());
        }
        if self.settings.audiences.iter().any(|known| known == asked) {
            return Some(asked.to_owned());
        }
        let id: ClusterId = asked.strip_prefix("towline:cluster:")?.parse().ok()?;
        Some(id.audience())
    }

    fn now(&self) -> SystemTime {
        (self.clock)()
    }
}

/// The tenant that a path begins with, and the rest.
fn tenant_of(path: &str) -> Option<(&str, &str)> {
    let path = path.strip_prefix('/')?;
    let (first, rest) = path.split_at(path.find('/').unwrap_or(path.len()));
    (guid::is_guid(first) || ANY_TENANT.contains(&first)).then_some((first, rest))
}

fn path_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find('/').map_or("", |at| &rest[at..])
}

#[cfg(test)]
#[path = "issuer/tests.rs"]
mod tests;
/// The same tests, over a store that several gateways share.
#[cfg(test)]
#[path = "issuer/tests.rs"]
#[allow(clippy::duplicate_mod)]
mod tests_on_a_store;
