//! Random bytes where the system giving none would be the end of the process anyway.

/// `N` random bytes.
///
/// # Panics
/// When the operating system gives none.
pub fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).expect("the operating system gives random bytes");
    bytes
}
