//! Random bytes and GUIDs. Where the operating system gives none, the process ends.

/// `N` random bytes.
///
/// # Panics
/// When the operating system gives none.
pub fn bytes<const N: usize>() -> [u8; N] {
    types::random::bytes().expect("the operating system gives random bytes")
}

/// A random GUID.
///
/// # Panics
/// When the operating system gives no random bytes.
pub fn guid() -> String {
    crate::guid::random().expect("the operating system gives random bytes")
}
