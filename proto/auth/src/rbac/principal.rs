//! What assignments call somebody: the same at the gateway, which keeps the assignments, and in the cluster, which
//! decides by a snapshot of them.

use super::call::RESERVED_PREFIX;
use crate::token::Identity;

/// Characters of a GUID.
const GUID: usize = 36;

/// Somebody and their groups, as assignments name them.
pub fn principals(identity: &Identity) -> Vec<String> {
    let groups = identity.groups.iter().map(|group| group_key(group));
    std::iter::once(user_key(&identity.principal)).chain(groups).collect()
}

/// The same of a user as a SubjectAccessReview has them: `object_id` with the prefix of their issuer, and their groups.
/// Groups that Kubernetes or the agent gives are in no assignment.
pub fn principals_of<'a>(object_id: &str, groups: impl Iterator<Item = &'a str>) -> Vec<String> {
    let given = |group: &&str| !["system:", RESERVED_PREFIX].iter().any(|prefix| group.starts_with(prefix));
    std::iter::once(user_key(object_id)).chain(groups.filter(given).map(group_key)).collect()
}

/// How a user or service principal is named.
pub fn user_key(id: &str) -> String {
    format!("user {}", folded(id))
}

/// The same of a group. Apart, so that nobody whose id happens to be a group's name has what the group has.
pub fn group_key(id: &str) -> String {
    format!("group {}", folded(id))
}

/// A GUID, also behind an issuer's prefix, is the same in any case. Every other id is compared as it is: `Ann` and
/// `ann` are two people to an OIDC issuer (OpenID Connect Core section 2, `sub`).
fn folded(id: &str) -> String {
    match id.len().checked_sub(GUID).and_then(|at| id.split_at_checked(at)) {
        Some((prefix, guid)) if is_guid(guid) => format!("{prefix}{}", guid.to_ascii_lowercase()),
        _ => hyphenated(id).unwrap_or_else(|| id.to_owned()),
    }
}

/// An id that ends with a GUID without its hyphens, in lower case and alone or behind a prefix that ends with a sign:
/// the same with them. So the gateway's own issuer once named its users, and assignments may still name them.
pub fn hyphenated(id: &str) -> Option<String> {
    let (prefix, hex) = id.len().checked_sub(GUID - 4).and_then(|at| id.split_at_checked(at))?;
    let is_hex = hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    let is_apart = !prefix.ends_with(|last: char| last.is_alphanumeric() || last == '-');
    (is_hex && is_apart).then(|| {
        let [a, b, c, d, e] = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
        format!("{prefix}{a}-{b}-{c}-{d}-{e}")
    })
}

/// Whether a text is a GUID as ARM writes it: 8-4-4-4-12 hex digits, in any case.
pub fn is_guid(text: &str) -> bool {
    text.len() == GUID
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_guids_are_compared_without_case() {
        let guid = "0AA2F2C6-3F7B-4F6E-9F5C-0123456789AB";
        assert_eq!(user_key(guid), user_key(&guid.to_lowercase()));
        assert_eq!(user_key(&format!("x:{guid}")), user_key(&format!("x:{}", guid.to_lowercase())));
        assert_ne!(user_key("Ann"), user_key("ann"));
        assert_ne!(user_key("ops"), group_key("ops"));
        let bare = "0aa2f2c63f7b4f6e9f5c0123456789ab";
        assert_eq!(user_key(guid), user_key(bare), "as assignments from before have it");
        assert_eq!(user_key(&format!("x:{guid}")), user_key(&format!("x:{bare}")));
        for other in
            [bare.to_uppercase(), format!("f{bare}"), format!("-{bare}"), format!("é{bare}"), bare[1..].to_owned()]
        {
            assert_eq!(user_key(&other), format!("user {other}"));
        }
        // A cut within a character is none.
        assert_eq!(user_key(&"é".repeat(30)), format!("user {}", "é".repeat(30)));
    }
}
