//! The names by which role assignments and `[api] owners` know the accounts of issuers: each issuer gives its own
//! prefix.

use std::collections::HashSet;

use auth::{rbac::principal::user_key, token::RawIssuer};

use crate::{config::Config, issuer::MOUNT};

/// The names that issuers give, by the configuration.
pub struct AccountNames {
    /// What the built-in issuer's begin with.
    own: String,
    /// What those of each other issuer begin with.
    others: Vec<String>,
    /// Names that are refused everywhere.
    disabled: HashSet<String>,
}

impl AccountNames {
    /// Of the configured issuers, among which the built-in one has this address.
    pub fn new(issuers: &[RawIssuer], own_url: Option<&str>, disabled: &HashSet<String>) -> Self {
        let prefix = |issuer: &RawIssuer| issuer.username_prefix.clone().unwrap_or_default();
        let is_own = |issuer: &&RawIssuer| Some(issuer.url.as_str()) == own_url;
        Self {
            own: issuers.iter().find(is_own).map(prefix).unwrap_or_default(),
            others: issuers.iter().filter(|issuer| !is_own(issuer)).map(prefix).collect(),
            disabled: disabled.clone(),
        }
    }

    /// The names that a configuration allows.
    pub fn of(config: &Config) -> Self {
        let url = config.issuer.as_ref().zip(config.api.as_ref()).map(|(_, api)| format!("{}{MOUNT}", api.url));
        Self::new(&config.dynamic.issuers, url.as_deref(), &config.dynamic.disabled)
    }

    /// What role assignments and `[api] owners` call an account of the built-in issuer.
    pub fn principal(&self, object_id: &str) -> String {
        format!("{}{object_id}", self.own)
    }

    /// What the policy calls an account of the built-in issuer.
    pub fn key(&self, object_id: &str) -> String {
        user_key(&self.principal(object_id))
    }

    /// Whether an account of the built-in issuer, which may go by each of these names, is refused everywhere.
    pub fn refuses(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.disabled.contains(&format!("{}{name}", self.own)))
    }

    /// Whether another issuer may give this name. What begins as names of one with a prefix is no name of one without.
    pub fn is_elsewhere(&self, id: &str) -> bool {
        let of = |prefix: &String| id.strip_prefix(prefix.as_str()).is_some_and(|rest| !rest.is_empty());
        let is_own = !self.own.is_empty() && of(&self.own);
        !is_own && !self.disabled.contains(id) && self.others.iter().any(of)
    }
}
