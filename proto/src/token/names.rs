//! User and group names as Kubernetes will see them: what would change its meaning on the way (a header trims spaces at
//! the ends, a control character ends a line) or mislead a reader is refused, not repaired (attack I8).

use super::error::TokenError;

/// Bytes of one user or group name, its prefix included.
const NAME_BYTES: usize = 1024;
const RESERVED: &str = "system:";

/// Whether a name belongs to Kubernetes itself. In any case, for a reader does not see the difference.
pub(super) fn is_reserved(name: &str) -> bool {
    name.get(..RESERVED.len()).is_some_and(|start| start.eq_ignore_ascii_case(RESERVED))
}

/// Control characters, and those that hide or reorder what a reader sees.
pub(super) fn has_forbidden(name: &str) -> bool {
    name.chars().any(|c| {
        c.is_control()
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
    })
}

/// Checks an id, which names nobody to a reader and gives no right by itself: `system:` means nothing in it.
pub(super) fn id(what: &'static str, id: &str) -> Result<String, TokenError> {
    if id.is_empty() || id.len() > NAME_BYTES || has_forbidden(id) || id.trim() != id {
        return Err(TokenError::BadName(what));
    }
    Ok(id.to_owned())
}

/// Puts the prefix in front and checks the whole.
pub(super) fn prefixed(what: &'static str, prefix: &str, name: &str, allowed: &[String]) -> Result<String, TokenError> {
    let whole = [prefix, name].concat();
    id(what, name).and_then(|_| id(what, &whole))?;
    if is_reserved(&whole) && !allowed.contains(&whole) {
        return Err(TokenError::Reserved(what));
    }
    Ok(whole)
}
