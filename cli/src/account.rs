//! An account: at which gateway somebody is signed in, in which subscription they work, and by what they get tokens. It
//! is what `context` keeps in a file for each account; what must not be printed is in a type of its own.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use certs::Roots;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};

use crate::{
    client::{Address, OutboundArgs},
    failure::{Failure, Outcome},
};

/// A secret that is written to the account's file, and nowhere else.
#[derive(Clone, Serialize, Deserialize, PartialEq, Eq)]
#[serde(transparent)]
pub struct Hidden(pub String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[hidden]")
    }
}

/// An issuer of tokens.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IssuerAt {
    /// The issuer's URL, which its tokens have as `iss`.
    pub url: String,
    /// Where tokens are given.
    pub token_endpoint: String,
    /// PEM of the authority of its certificate, if not the gateway's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// What is asked for at each sign-in and refresh.
    pub scope: String,
}

/// How an account gets tokens.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "type")]
pub enum SignsIn {
    /// No sign-in has been made yet.
    Nobody,
    /// A person, who signed in by a page.
    User {
        /// The client id of this program at the issuer.
        client_id: String,
        /// Rotates with each use.
        refresh_token: Option<Hidden>,
        /// Another issuer than the gateway's own: its one token is for everything.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        external: Option<IssuerAt>,
    },
    /// A program, which signs in with a client secret.
    ServicePrincipal {
        /// Client id of the service principal.
        client_id: String,
        /// Client secret of the service principal.
        client_secret: Hidden,
    },
}

impl SignsIn {
    /// With a client secret.
    pub fn service_principal(client_id: String, secret: &SecretString) -> Self {
        Self::ServicePrincipal { client_id, client_secret: Hidden(secret.expose_secret().to_owned()) }
    }

    /// The kind of sign-in, as tables show it.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Nobody => "nobody",
            Self::User { .. } => "user",
            Self::ServicePrincipal { .. } => "servicePrincipal",
        }
    }
}

/// A token that is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Kept {
    /// The token as it is sent. Its `Debug` output is hidden.
    pub token: Hidden,
    /// When it was made, in seconds since 1970.
    pub obtained: u64,
}

/// An account at a gateway.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Account {
    /// Names it among others: `<user>@<host[:port]>`.
    pub name: String,
    /// URL of the gateway, as typed, without a slash at the end.
    pub gateway: String,
    /// The audience of tokens for its API.
    pub audience: String,
    /// PEM of the authority of its certificate; the system's without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca: Option<String>,
    /// Id of the gateway's tenant.
    pub tenant: String,
    /// The subscription to work in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscription: Option<String>,
    /// Display name of that subscription.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subscription_name: Option<String>,
    /// Who, for people.
    pub user: String,
    /// Who, for role assignments.
    #[serde(default)]
    pub object_id: String,
    /// How the account gets new tokens.
    pub signs_in: SignsIn,
    /// As given with `--proxy-url`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_url: Option<String>,
    /// As given with `--proxy-ca`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_ca: Option<PathBuf>,
    /// As given with `--proxy-password-file`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy_password_file: Option<PathBuf>,
    /// Tokens by audience.
    #[serde(default)]
    pub tokens: BTreeMap<String, Kept>,
}

impl Account {
    /// At a gateway, of nobody yet.
    ///
    /// # Errors
    /// When the address is none or the authority's file cannot be read.
    pub fn at(gateway: &str, ca: Option<&Path>) -> Outcome<Self> {
        let url = if gateway.contains("://") { gateway.to_owned() } else { format!("https://{gateway}") };
        let address = Address::parse(&url).map_err(Failure::usage)?;
        let read = |file: &Path| {
            let pem = std::fs::read_to_string(file);
            let pem = pem.with_context(|| format!("--ca: cannot read {}", file.display())).map_err(Failure::usage)?;
            Roots::from_pem(pem.as_bytes())
                .with_context(|| format!("--ca: cannot use {}", file.display()))
                .map_err(Failure::usage)?;
            Outcome::Ok(pem)
        };
        Ok(Self {
            name: String::new(),
            gateway: address.url(),
            audience: address.url(),
            ca: ca.map(read).transpose()?,
            tenant: String::new(),
            subscription: None,
            subscription_name: None,
            user: String::new(),
            object_id: String::new(),
            signs_in: SignsIn::Nobody,
            proxy_url: None,
            proxy_ca: None,
            proxy_password_file: None,
            tokens: BTreeMap::new(),
        })
    }

    /// The audience of another issuer's tokens for the gateway's API: the address that was typed. What the gateway says
    /// counts only where it spells the same address another way. A hostile gateway could name another service, and
    /// would be shown the token that the issuer gives for that.
    pub fn external_audience(&self) -> String {
        let same =
            |url: &str| Address::parse(url).is_ok_and(|address| address.url().eq_ignore_ascii_case(&self.gateway));
        if same(&self.audience) { self.audience.clone() } else { self.gateway.clone() }
    }

    /// The name of an account that was given none, `<user>@<host[:port]>`.
    pub fn default_name(&self) -> Outcome<String> {
        Ok(format!("{}@{}", self.user, Address::parse(&self.gateway)?.authority()))
    }

    /// Whom to trust as the gateway.
    pub fn roots(&self) -> anyhow::Result<Roots> {
        match &self.ca {
            Some(pem) => Ok(Roots::from_pem(pem.as_bytes())?),
            None => Ok(Roots::public()),
        }
    }

    /// How to get there.
    pub fn outbound(&self) -> OutboundArgs {
        OutboundArgs {
            proxy_url: self.proxy_url.clone(),
            proxy_ca: self.proxy_ca.clone(),
            proxy_password_file: self.proxy_password_file.clone(),
        }
    }

    /// Keeps how to get there; files by their whole path, because the next command may be started elsewhere.
    pub fn set_outbound(&mut self, args: &OutboundArgs) {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        self.proxy_url.clone_from(&args.proxy_url);
        self.proxy_ca = args.proxy_ca.as_ref().map(absolute);
        self.proxy_password_file = args.proxy_password_file.as_ref().map(absolute);
    }
}
