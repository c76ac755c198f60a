//! `towline-gateway issuer`: the signing keys of the built-in issuer. A running gateway signs with a new key at once;
//! agents read the key set when they see a token of a key that they do not know, and every five minutes.

use anyhow::Context;
use clap::Subcommand;
use serde_json::Value;

use super::user_command::may_change;
use crate::{config::Config, issuer_state};

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
pub async fn run(config: &Config, action: &IssuerAction) -> anyhow::Result<Value> {
    let issuer = config.issuer.as_ref().context(
        "this gateway has no issuer of its own ([issuer] in the configuration): change the keys at the issuer that it trusts",
    )?;
    may_change(config, issuer)?;
    let documents = issuer_state::documents(config, issuer).await?;
    let keys = match action {
        IssuerAction::Keys => documents.keys().await,
        IssuerAction::RotateKey => documents.rotate_key().await,
        IssuerAction::RevokeKey { kid } => documents.revoke_key(kid).await,
    };
    documents.close().await;
    Ok(keys?.told())
}
