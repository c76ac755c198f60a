//! `[issuer]`: the built-in issuer. Without it everybody signs in somewhere else.

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use daemon::settings::{Faults, Section};

use super::api::Api;
use crate::issuer::{IssuerSettings, MOUNT, TTL_DEFAULT, TTL_LONGEST};

/// How long a token may live.
const LIFETIME: RangeInclusive<Duration> = Duration::from_secs(60)..=TTL_LONGEST;

/// Where the built-in issuer keeps what it knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BuiltInIssuer {
    /// Its folder: keys, users, service principals.
    pub state_dir: PathBuf,
    /// How long its tokens live.
    pub token_lifetime: Duration,
}

impl BuiltInIssuer {
    /// Reads `[issuer]`. It signs for a tenant at an address, which `[api]` names.
    pub fn read(mut section: Section, api: bool, faults: &mut Faults) -> Option<Self> {
        let state_dir = section.required_path("state_dir", "the folder of keys, users and service principals", faults);
        let token_lifetime = section.duration("token_lifetime", LIFETIME, faults).unwrap_or(TTL_DEFAULT);
        if !api {
            faults.push(section.key("state_dir"), "an issuer needs [api] too, for its address and tenant");
        }
        section.end(faults);
        Some(Self { state_dir: state_dir?, token_lifetime })
    }

    /// How it is opened.
    pub fn settings(&self, api: &Api) -> IssuerSettings {
        IssuerSettings {
            url: format!("{}{MOUNT}", api.url),
            state: self.state_dir.clone(),
            ttl: self.token_lifetime,
            tenant: api.tenant.clone(),
            api_audience: api.url.clone(),
            audiences: Vec::new(),
            clients: Vec::new(),
        }
    }
}
