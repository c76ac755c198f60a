//! `towline-gateway issuer`: the signing keys of the built-in issuer. A running gateway signs with a new key at once;
//! agents read the key set when they see a token of a key that they do not know, and every five minutes.

use anyhow::Context;
use clap::Subcommand;
use serde_json::Value;

use super::user_command::as_its_owner;
use crate::{
    config::Config,
    issuer::{KEYS_FILE, Keys},
};

/// What to do.
#[derive(Subcommand)]
pub enum IssuerAction {
    /// Lists the keys, the newest first, and until when each verifies tokens.
    Keys,
    /// Signs with a new key from now on. The key that it replaces verifies tokens until the last one that it signed can
    /// have expired: for a day.
    RotateKey,
    /// Revokes a key that somebody else may have: no token that it signed is valid any more. The issuer signs with a
    /// new key from now on. A revocation cannot be taken back.
    RevokeKey {
        /// The key's id, as `keys` shows it.
        #[arg(allow_hyphen_values = true)]
        kid: String,
    },
}

/// Does it; the keys, as JSON.
///
/// # Errors
/// A gateway without an issuer of its own, an unknown key, a file that cannot be read or written.
pub fn run(config: &Config, action: &IssuerAction) -> anyhow::Result<Value> {
    let issuer = config.issuer.as_ref().context(
        "this gateway has no issuer of its own ([issuer] in the configuration): change the keys at the issuer that it trusts",
    )?;
    as_its_owner(&issuer.state_dir)?;
    let file = issuer.state_dir.join(KEYS_FILE);
    let keys = match action {
        IssuerAction::Keys => Keys::load(&file)?,
        IssuerAction::RotateKey => Keys::rotate(&file)?,
        IssuerAction::RevokeKey { kid } => Keys::revoke(&file, kid)?,
    };
    Ok(keys.told())
}
