//! Extensions in the cluster ([`objects::store`](crate::roles::objects::store)), and the Secret of what is trusted.

use futures_util::future::BoxFuture;
use serde_json::Value;

use super::Extensions;
use crate::roles::{
    catalogue::Trusts,
    objects::store::{CONTENT, content, wrong},
};

/// Where extensions are kept.
pub type Store = crate::roles::objects::store::Store<Extensions>;

/// The Secret of what is trusted.
const TRUST: &str = "extension-catalogue";

impl Trusts for Store {
    fn object(&self) -> &'static str {
        "Secret extension-catalogue"
    }

    fn pins(&self) -> &'static str {
        "extensions.catalogueKeys"
    }

    fn trust(&self) -> BoxFuture<'_, Result<Option<Vec<u8>>, String>> {
        Box::pin(async move {
            let secret = self.secrets().get_opt(TRUST).await;
            let secret = secret.map_err(|err| wrong(&format!("the Secret {TRUST} cannot be read"), &err))?;
            let data = secret.and_then(|secret| secret.data);
            Ok(data.and_then(|mut data| data.remove(CONTENT)).map(|content| content.0))
        })
    }

    fn keep_trust<'a>(&'a self, trust: &'a Value) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move { self.keep(content(TRUST, trust)?, "the Secret extension-catalogue").await })
    }
}
