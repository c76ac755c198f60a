//! User and group names as Kubernetes will see them: what would change its meaning on the way (a header trims spaces at
//! the ends, a control character ends a line) or mislead a reader is refused, not repaired (docs/threats.md TH8).

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

/// Whose names an issuer may give.
pub(super) struct Names<'a> {
    /// What its names begin with.
    pub(super) prefix: &'a str,
    /// Names that begin with `system:` and are allowed.
    pub(super) reserved: &'a [String],
    /// What names of others begin with, where it has no prefix.
    pub(super) others: &'a [String],
}

impl Names<'_> {
    /// Puts the prefix in front of what role assignments call somebody, which Kubernetes never sees.
    pub(super) fn principal(&self, id: &str) -> Result<String, TokenError> {
        let whole = [self.prefix, id].concat();
        if self.others.iter().any(|other| whole.starts_with(other)) {
            return Err(TokenError::OthersName("object id"));
        }
        Ok(whole)
    }

    /// Puts the prefix in front and checks the whole.
    pub(super) fn prefixed(&self, what: &'static str, name: &str) -> Result<String, TokenError> {
        let whole = [self.prefix, name].concat();
        id(what, name).and_then(|_| id(what, &whole))?;
        if is_reserved(&whole) && !self.reserved.contains(&whole) {
            return Err(TokenError::Reserved(what));
        }
        if self.others.iter().any(|other| whole.starts_with(other)) {
            return Err(TokenError::OthersName(what));
        }
        Ok(whole)
    }
}
