//! What is asked of the gateway about the catalogue.

use bytes::Bytes;
use catalogue::digest::Sha256;
use types::agent_api::{CATALOGUE_BYTES, CHART_BYTES, CatalogueIndex, paths};

pub use crate::roles::objects::gateway::{Asked, Gateway};
use crate::tunnel::api::AgentApi;

/// The gateway's side of the catalogue.
pub trait Library: Gateway {
    /// The catalogue's index; `None` where it is still the one with the digest `known`.
    fn catalogue(&self, known: Option<Sha256>) -> Asked<'_, Option<CatalogueIndex>>;
    /// A chart's archive.
    fn chart(&self, sha256: Sha256) -> Asked<'_, Bytes>;
}

impl Library for AgentApi {
    fn catalogue(&self, known: Option<Sha256>) -> Asked<'_, Option<CatalogueIndex>> {
        Box::pin(async move {
            let path = match known {
                Some(known) => format!("{}?known={known}", paths::CATALOGUE),
                None => paths::CATALOGUE.to_owned(),
            };
            self.poll(&path, CATALOGUE_BYTES).await
        })
    }

    fn chart(&self, sha256: Sha256) -> Asked<'_, Bytes> {
        Box::pin(async move { self.bytes(&format!("{}?sha256={sha256}", paths::CHART), CHART_BYTES).await })
    }
}
