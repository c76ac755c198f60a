//! Random bytes and GUIDs. Where the operating system gives none, the process ends.

/// `N` random bytes.
///
/// # Panics
/// When the operating system gives none.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}

/// A random GUID.
///
/// # Panics
/// When the operating system gives no random bytes.
pub fn guid() -> String {
    crate::guid::random().expect("the operating system gives random bytes")
}
