//! Random bytes of the operating system. Everything secret or unique that the programs draw comes from here.

/// The operating system gave no random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the system gave no random bytes")]
pub struct NoRandom;

/// `N` random bytes, fit for keys and secrets.
///
/// # Errors
/// [`NoRandom`] when the operating system gives none.
pub fn bytes<const N: usize>() -> Result<[u8; N], NoRandom> {
    let mut bytes = [0; N];
    aws_lc_rs::rand::fill(&mut bytes).map_err(|_| NoRandom)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_differ_from_draw_to_draw() {
        assert_ne!(bytes::<16>().unwrap(), bytes::<16>().unwrap());
        assert_eq!(bytes::<0>(), Ok([]));
    }
}
