//! GUIDs as Entra and ARM spell them: 8-4-4-4-12 hex digits. Object, client, tenant and subscription ids are such.

pub use auth::rbac::principal::is_guid;
pub use types::random::NoRandom;

/// A new random one (RFC 9562 version 4), in lower case.
///
/// # Errors
/// When the system gives no random bytes.
pub fn random() -> Result<String, NoRandom> {
    let mut bytes = types::random::bytes::<16>()?;
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(hyphenated(&types::ids::hex(&bytes)))
}

/// 32 hex digits as a GUID; anything else stays as it is.
pub(super) fn hyphenated(hex: &str) -> String {
    auth::rbac::principal::hyphenated(hex).unwrap_or_else(|| hex.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_ones_are_spelled_as_guids_and_differ() {
        let (one, other) = (random().unwrap(), random().unwrap());
        assert!(is_guid(&one) && is_guid(&one.to_uppercase()), "{one}");
        assert_ne!(one, other);
        assert_eq!((one.as_bytes()[14], one.len()), (b'4', 36));
        for odd in ["", "x", &one[1..], &one.replace('-', "0"), &format!("{{{one}}}"), &"g".repeat(36)] {
            assert!(!is_guid(odd), "{odd}");
        }
        assert_eq!(hyphenated(&one.replace('-', "")), one);
        assert_eq!(hyphenated("ann"), "ann");
    }
}
