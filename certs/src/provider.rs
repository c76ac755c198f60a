//! The cryptography of every TLS configuration.

use std::sync::{Arc, OnceLock};

use rustls::crypto::{CryptoProvider, aws_lc_rs};

pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    PROVIDER.get_or_init(|| Arc::new(aws_lc_rs::default_provider())).clone()
}
