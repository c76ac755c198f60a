//! What the role asks of the gateway and tells it.

use bytes::Bytes;
use catalogue::digest::Sha256;
use futures_util::future::BoxFuture;
use types::agent_api::{
    CATALOGUE_BYTES, CHART_BYTES, CatalogueIndex, OBJECTS_BYTES, ObjectStatuses, ObjectStatusesAnswer, Objects,
    ProtectedQuestion, ProtectedSettings, paths,
};

use crate::tunnel::api::{AgentApi, ApiError};

/// Room for one object that is larger than a page, and for what JSON adds.
const PAGE_BYTES: usize = 2 * OBJECTS_BYTES;

/// An exchange.
pub type Asked<'a, T> = BoxFuture<'a, Result<T, ApiError>>;

/// The gateway's side of extensions. The agent's is [`AgentApi`]; tests have others.
pub trait Gateway: Send + Sync + 'static {
    /// Completes when the gateway can be asked.
    fn up(&self) -> BoxFuture<'_, ()>;
    /// The next page of what is wanted; `None` where nothing newer came.
    fn objects(&self, after: Option<i64>) -> Asked<'_, Option<Objects>>;
    /// Protected settings of an object.
    fn protected<'a>(&'a self, question: &'a ProtectedQuestion) -> Asked<'a, ProtectedSettings>;
    /// Tells how far objects are.
    fn statuses<'a>(&'a self, statuses: &'a ObjectStatuses) -> Asked<'a, ObjectStatusesAnswer>;
    /// The catalogue's index; `None` where it is still the one with the digest `known`.
    fn catalogue(&self, known: Option<Sha256>) -> Asked<'_, Option<CatalogueIndex>>;
    /// A chart's archive.
    fn chart(&self, sha256: Sha256) -> Asked<'_, Bytes>;
}

impl Gateway for AgentApi {
    fn up(&self) -> BoxFuture<'_, ()> {
        Box::pin(AgentApi::up(self))
    }

    fn objects(&self, after: Option<i64>) -> Asked<'_, Option<Objects>> {
        Box::pin(async move {
            let path = match after {
                Some(position) => format!("{}?after={position}", paths::OBJECTS),
                None => paths::OBJECTS.to_owned(),
            };
            self.poll(&path, PAGE_BYTES).await
        })
    }

    fn protected<'a>(&'a self, question: &'a ProtectedQuestion) -> Asked<'a, ProtectedSettings> {
        Box::pin(self.post(paths::PROTECTED, question))
    }

    fn statuses<'a>(&'a self, statuses: &'a ObjectStatuses) -> Asked<'a, ObjectStatusesAnswer> {
        Box::pin(self.post(paths::STATUSES, statuses))
    }

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
