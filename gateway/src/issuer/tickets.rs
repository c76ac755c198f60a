//! The issuer's state as the store keeps it that several gateways share: keys, names and sealed content of tickets.

use aws_lc_rs::hmac;
use serde::Serialize;
use types::ids::hex;

use super::{kept::KeptError, principals::hash, refresh::Family};
use crate::store::{protect::Protector, tickets::Ticket};

/// The kind of tickets that families of refresh tokens are.
pub(super) const REFRESH: &str = "issuer/refresh";

/// Names of tickets' owners and places, of which the database shows nothing: hashes with a key.
pub(super) struct Names(hmac::Key);

impl Names {
    pub(super) fn of(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, derived(secret, "names").as_ref()))
    }

    pub(super) fn name(&self, what: &str, of: &str) -> String {
        hex(hmac::sign(&self.0, format!("{what}:{of}").as_bytes()).as_ref())
    }
}

/// A key for one purpose.
pub(super) fn derived(secret: &[u8], purpose: &str) -> hmac::Tag {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), purpose.as_bytes())
}

/// The key of the ticket of a code or an id.
pub(super) fn key_of(code: &str) -> String {
    hex(&hash(&[], code))
}

/// Seconds as the database has them.
pub(super) fn time(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

/// With what it is sealed for: a ticket that is moved to another row does not open.
pub(super) fn sealed<T: Serialize>(
    protector: &Protector,
    kind: &'static str,
    key: &str,
    value: &T,
) -> Result<Vec<u8>, KeptError> {
    // Texts and numbers alone: there is nothing in it that JSON could not hold.
    let text = serde_json::to_vec(value).unwrap_or_default();
    protector.seal(&format!("{kind}/{key}"), &text).map_err(|source| KeptError::Sealed { name: kind, source })
}

/// A family of refresh tokens as it is kept.
pub(super) fn family_ticket(protector: &Protector, secret: &[u8], family: &Family) -> Result<Ticket, KeptError> {
    let key = key_of(&family.id);
    Ok(Ticket {
        kind: REFRESH,
        alias: None,
        owner: Names::of(secret).name("user", &family.user),
        place: String::new(),
        rank: time(family.rotated),
        ends: time(family.ends()),
        sealed: sealed(protector, REFRESH, &key, family)?,
        key,
    })
}
