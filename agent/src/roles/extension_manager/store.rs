//! Extensions in the cluster ([`objects::store`](crate::roles::objects::store)), and the Secret of what is trusted.

use serde_json::Value;

use super::Extensions;
use crate::roles::objects::store::{CONTENT, content, wrong};

/// Where extensions are kept.
pub type Store = crate::roles::objects::store::Store<Extensions>;

/// The Secret of what is trusted.
const TRUST: &str = "extension-catalogue";

impl Store {
    /// What is trusted, as it was kept.
    pub async fn trust(&self) -> Result<Option<Vec<u8>>, String> {
        let secret = self.secrets().get_opt(TRUST).await;
        let secret = secret.map_err(|err| wrong(&format!("the Secret {TRUST} cannot be read"), &err))?;
        Ok(secret.and_then(|secret| secret.data).and_then(|mut data| data.remove(CONTENT)).map(|content| content.0))
    }

    /// Keeps what is trusted.
    pub async fn keep_trust(&self, trust: &Value) -> Result<(), String> {
        self.keep(content(TRUST, trust)?, "the Secret extension-catalogue").await
    }
}
