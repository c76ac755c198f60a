//! Names and secrets of users and service principals: what they may be, and how a secret is made.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use types::random;

/// Bytes of a password at most.
pub const PASSWORD_BYTES: usize = 1024;
/// Bytes of a user's or group's name at most.
pub const NAME_BYTES: usize = 253;

/// Whether a text may be the name of a user, a group or a service principal. GUIDs are looked at apart: they are the
/// names of service principals in a cluster (docs/features.md A3), which nobody else may have.
pub(super) fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= NAME_BYTES && !text.chars().any(|c| c.is_control() || c == ':')
}

/// `N` random bytes as a text that people type behind an option of a command, which takes one that begins with `-` for
/// another option.
pub(super) fn typed<const N: usize>() -> Result<String, random::NoRandom> {
    loop {
        let text = BASE64.encode(random::bytes::<N>()?);
        if !text.starts_with('-') {
            return Ok(text);
        }
    }
}
