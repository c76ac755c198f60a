//! What the resource API refuses, as ARM's error envelope. Agents' exchanges refuse in the same shape.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::Full;
use types::api::{ErrorBody, ErrorDetail, InvalidId, ResourceId};

use crate::{
    answers::{self, Body},
    aside::{AsideError, GaveWay},
    store::StoreError,
};

/// The code of a refusal because a quota is used up: of a resource group, a subscription, a cluster or a scope, or of one
/// kind of credential. A fleet assignment tells clusters without room by it.
pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";
/// After how many seconds a client may ask again that found the database away.
const STORE_RETRY_SECONDS: &str = "5";

/// A refused call of an API: the answer for the client, and details for the log.
#[derive(Debug)]
pub struct ApiError {
    /// HTTP's word for it.
    pub status: StatusCode,
    /// What the client is told.
    pub detail: Box<ErrorDetail>,
    /// What only the log is told.
    pub log: Option<String>,
    /// A header that belongs to the status.
    pub header: Option<(header::HeaderName, HeaderValue)>,
}

impl ApiError {
    /// Of a status, a code that programs compare and a sentence for people.
    pub fn of(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        Self { status, detail: Box::new(ErrorDetail::new(code, message)), log: None, header: None }
    }

    /// 400 with a code and a sentence.
    pub fn bad_request(code: &str, message: impl Into<String>) -> Self {
        Self::of(StatusCode::BAD_REQUEST, code, message)
    }

    /// 405; `why` completes the sentence for people.
    pub fn method_not_allowed(why: &str) -> Self {
        Self::of(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            format!("The method is not supported here: {why}."),
        )
    }

    /// 404 for a path that is none of ours.
    pub fn not_found_at(path: &str) -> Self {
        let shown: String = path.chars().take(200).collect();
        Self::of(StatusCode::NOT_FOUND, "InvalidResourceType", format!("There is nothing at '{shown}'."))
    }

    /// 404 for a resource.
    pub fn resource_not_found(id: &ResourceId) -> Self {
        let message = match id.resource_group() {
            Some(group) if id.is(types::api::id::RESOURCE_GROUPS) => {
                return Self::of(
                    StatusCode::NOT_FOUND,
                    "ResourceGroupNotFound",
                    format!("Resource group '{group}' could not be found."),
                );
            }
            Some(group) => {
                format!("The Resource '{}/{}' under resource group '{group}' was not found.", id.kind(), id.name())
            }
            None if id.is(types::api::id::SUBSCRIPTIONS) => return Self::subscription_not_found(id.name()),
            None => format!("The Resource '{}/{}' was not found.", id.kind(), id.name()),
        };
        Self::of(StatusCode::NOT_FOUND, "ResourceNotFound", message)
    }

    /// 404 for a subscription.
    pub fn subscription_not_found(id: &str) -> Self {
        let message = format!("The subscription '{id}' could not be found.");
        Self::of(StatusCode::NOT_FOUND, "SubscriptionNotFound", message)
    }

    /// 403: the same for what exists and for what does not.
    pub fn forbidden(name: &str, object_id: &str, action: &str, scope: &str) -> Self {
        let message = format!(
            "The client '{name}' with object id '{object_id}' does not have authorization to perform action '{action}' over scope '{scope}' or the scope is invalid. If access was recently granted, sign in again."
        );
        Self::of(StatusCode::FORBIDDEN, "AuthorizationFailed", message)
    }

    /// 412, code `PreconditionFailed`.
    pub fn precondition(message: impl Into<String>) -> Self {
        Self::of(StatusCode::PRECONDITION_FAILED, "PreconditionFailed", message)
    }

    /// 409 because somebody else was faster.
    pub fn raced() -> Self {
        let message = "The resource was changed by another request at the same time. Read it again and repeat.";
        Self::of(StatusCode::CONFLICT, "Conflict", message)
    }

    /// 500. The client learns no more.
    pub fn internal(log: impl std::fmt::Display) -> Self {
        let message = "The gateway could not do this; its log says why. Try again, and name the request id of this answer to who runs it.";
        Self {
            log: Some(log.to_string()),
            ..Self::of(StatusCode::INTERNAL_SERVER_ERROR, "InternalServerError", message)
        }
    }

    /// 503: the database cannot be used for now.
    pub fn store_unavailable(log: impl std::fmt::Display) -> Self {
        let message = "The gateway cannot reach its database at the moment. Try again in some seconds; after a request that changes something, read first whether it was carried out.";
        let refused = Self::of(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message);
        Self { log: Some(log.to_string()), ..refused.with(header::RETRY_AFTER, STORE_RETRY_SECONDS) }
    }

    /// Names the place in the request.
    #[must_use]
    pub fn at(mut self, target: impl Into<String>) -> Self {
        self.detail.target = Some(target.into());
        self
    }

    /// The same error with a header of the answer.
    #[must_use]
    pub fn with(mut self, name: header::HeaderName, value: &str) -> Self {
        self.header = HeaderValue::try_from(value).ok().map(|value| (name, value));
        self
    }

    /// The error as an answer in HTTP.
    pub fn answer(self) -> Response<Body> {
        self.response().map(Body::Full)
    }

    /// The same, its body known to be whole.
    pub fn response(self) -> Response<Full<Bytes>> {
        let body = serde_json::to_value(ErrorBody { error: *self.detail }).unwrap_or_default();
        let mut response = answers::document(&body);
        *response.status_mut() = self.status;
        if let Some((name, value)) = self.header {
            response.headers_mut().insert(name, value);
        }
        response
    }
}

impl From<ErrorDetail> for ApiError {
    fn from(detail: ErrorDetail) -> Self {
        Self { status: StatusCode::BAD_REQUEST, detail: Box::new(detail), log: None, header: None }
    }
}

impl From<InvalidId> for ApiError {
    fn from(error: InvalidId) -> Self {
        Self::bad_request("InvalidResourceId", format!("The address names no resource: {error}."))
    }
}

impl From<GaveWay> for ApiError {
    fn from(_: GaveWay) -> Self {
        let message = "As many long requests wait as may, nobody has more of them waiting than you or your clusters, and this one gave way; send fewer at once, and this one again.";
        Self::of(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message).with(header::RETRY_AFTER, "1")
    }
}

impl From<AsideError> for ApiError {
    fn from(error: AsideError) -> Self {
        match error {
            AsideError::GaveWay(gave_way) => gave_way.into(),
            AsideError::Failed(error) => Self::internal(error),
        }
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        if let StoreError::GaveWay(gave_way) = error {
            return gave_way.into();
        }
        if error.is_unavailable() {
            return Self::store_unavailable(daemon::chain(&error));
        }
        Self::internal(daemon::chain(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_that_gave_way_may_be_asked_for_again() {
        let of_store = ApiError::from(StoreError::from(GaveWay));
        for refused in [ApiError::from(GaveWay), ApiError::from(AsideError::from(GaveWay)), of_store] {
            assert_eq!((refused.status.as_u16(), refused.detail.code.as_str()), (429, "TooManyRequests"));
            assert_eq!(refused.header, Some((header::RETRY_AFTER, HeaderValue::from_static("1"))));
        }
    }
}
