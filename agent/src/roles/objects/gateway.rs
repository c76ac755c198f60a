//! What roles ask the gateway about objects, and tell it.

use futures_util::future::BoxFuture;
use types::agent_api::{
    OBJECTS_BYTES, ObjectStatuses, ObjectStatusesAnswer, Objects, ProtectedQuestion, ProtectedSettings, paths,
};

use crate::tunnel::api::{AgentApi, ApiError};

/// Room for one object that is larger than a page, and for what JSON adds.
const PAGE_BYTES: usize = 2 * OBJECTS_BYTES;

/// The future of one exchange with the gateway.
pub type Asked<'a, T> = BoxFuture<'a, Result<T, ApiError>>;

/// The gateway's side of objects. The agent's is [`AgentApi`]; tests have others.
pub trait Gateway: Send + Sync + 'static {
    /// Completes when the gateway can be asked.
    fn up(&self) -> BoxFuture<'_, ()>;
    /// The next page of what is wanted of a kind, named by its full type; `None` where nothing newer came.
    fn objects<'a>(&'a self, kind: &'a str, after: Option<i64>) -> Asked<'a, Option<Objects>>;
    /// Protected settings of an object.
    fn protected<'a>(&'a self, question: &'a ProtectedQuestion) -> Asked<'a, ProtectedSettings>;
    /// Tells how far objects are.
    fn statuses<'a>(&'a self, statuses: &'a ObjectStatuses) -> Asked<'a, ObjectStatusesAnswer>;
}

impl Gateway for AgentApi {
    fn up(&self) -> BoxFuture<'_, ()> {
        Box::pin(AgentApi::up(self))
    }

    fn objects<'a>(&'a self, kind: &'a str, after: Option<i64>) -> Asked<'a, Option<Objects>> {
        Box::pin(async move {
            let path = match after {
                Some(position) => format!("{}?kind={kind}&after={position}", paths::OBJECTS),
                None => format!("{}?kind={kind}", paths::OBJECTS),
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
}
