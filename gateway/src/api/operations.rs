//! Long-running operations as clients follow them: the headers that announce one, its status and its result, at the
//! addresses and with the status codes that ARM's clients expect. The work itself is in `control`.

use http::{HeaderName, HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use types::{api::ResourceId, instants::instant};

use super::{Call, empty, json, read};
use crate::{
    answers::Body,
    api_error::ApiError,
    random,
    store::operations::{Operation, Status},
};

const ASYNC_OPERATION: HeaderName = HeaderName::from_static("azure-asyncoperation");
/// Seconds until a client asks again. SDKs take 0 for absent, and then wait for half a minute.
const RETRY_AFTER: HeaderValue = HeaderValue::from_static("1");
/// The api-version in the addresses that are handed out.
const VERSION: &str = "2024-01-01";

/// A new one, under way.
pub fn new(call: &Call<'_>, id: &ResourceId, work: Value) -> Operation {
    Operation {
        id: random::guid(),
        resource: id.key().to_owned(),
        status: Status::InProgress,
        begun_ms: call.now_ms(),
        ended_ms: None,
        work,
        due_ms: None,
        error: None,
    }
}

/// Says in an answer where the operation is to be followed.
pub fn announce(call: &Call<'_>, mut response: Response<Body>, operation: Option<&Operation>) -> Response<Body> {
    let Some(operation) = operation else { return response };
    let subscription = operation.resource.split('/').nth(2).unwrap_or_default();
    let at = |what: &str| {
        let path = format!(
            "/subscriptions/{subscription}/providers/Microsoft.Kubernetes/locations/global/{what}/{}?api-version={VERSION}",
            operation.id
        );
        HeaderValue::try_from(call.url(&path)).ok()
    };
    let status = at("operationStatuses");
    let result = at("operationResults").filter(|_| response.status() == StatusCode::ACCEPTED);
    let headers = response.headers_mut();
    headers.insert(header::RETRY_AFTER, RETRY_AFTER);
    headers.extend(status.map(|status| (ASYNC_OPERATION, status)));
    headers.extend(result.map(|result| (header::LOCATION, result)));
    response
}

/// `operationStatuses`: always 200, and the body says how far it is.
pub async fn status(call: &Call<'_>, subscription: &str, id: &str) -> Result<Response<Body>, ApiError> {
    Ok(told(call, &find(call, subscription, id).await?))
}

/// The same below a resource: only of an operation on that one.
pub async fn status_of(call: &Call<'_>, resource: &ResourceId, id: &str) -> Result<Response<Body>, ApiError> {
    let operation = find(call, resource.subscription(), id).await?;
    if !ResourceId::parse(&operation.resource).is_ok_and(|about| about.key() == resource.key()) {
        return Err(not_found(id));
    }
    Ok(told(call, &operation))
}

fn told(call: &Call<'_>, operation: &Operation) -> Response<Body> {
    let mut value = json!({
        "id": call.path,
        "name": operation.id,
        "status": operation.status.as_str(),
        "startTime": instant(operation.begun_ms),
    });
    if let Some(ended) = operation.ended_ms {
        value["endTime"] = instant(ended).into();
        value["percentComplete"] = json!(100.0);
    }
    if let Some(error) = &operation.error {
        value["error"] = error.clone();
    }
    let mut response = json(StatusCode::OK, &value);
    if operation.status == Status::InProgress {
        response.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER);
    }
    response
}

/// `operationResults`: 202 while it is under way, then what the call would have answered at once.
pub async fn result(call: &Call<'_>, subscription: &str, id: &str) -> Result<Response<Body>, ApiError> {
    let operation = find(call, subscription, id).await?;
    match (operation.status, operation.error) {
        (Status::InProgress, _) => {
            let mut response = empty(StatusCode::ACCEPTED);
            let headers = response.headers_mut();
            headers.insert(header::RETRY_AFTER, RETRY_AFTER);
            let path = format!("/{}?api-version={VERSION}", call.path.trim_start_matches('/'));
            headers.extend(HeaderValue::try_from(call.url(&path)).ok().map(|at| (header::LOCATION, at)));
            Ok(response)
        }
        (Status::Succeeded, _) => Ok(empty(StatusCode::OK)),
        (Status::Failed | Status::Canceled, error) => {
            let text =
                |name: &str| error.as_ref().and_then(|error| error.get(name)?.as_str()).unwrap_or_default().to_owned();
            Err(ApiError::of(StatusCode::CONFLICT, &text("code"), text("message")))
        }
    }
}

fn not_found(id: &str) -> ApiError {
    let shown: String = id.chars().take(64).collect();
    ApiError::of(StatusCode::NOT_FOUND, "OperationNotFound", format!("The operation '{shown}' was not found."))
}

/// Only who began it, or may read what it is about, sees an operation; to all others it does not exist.
async fn find(call: &Call<'_>, subscription: &str, id: &str) -> Result<Operation, ApiError> {
    call.any_version()?;
    let unknown = || not_found(id);
    if !crate::guid::is_guid(id) {
        return Err(unknown());
    }
    let operation = call.control.store.operation(&id.to_ascii_lowercase()).await?.ok_or_else(unknown)?;
    let about = ResourceId::parse(&operation.resource)?;
    let own = operation.work.get("by").and_then(Value::as_str) == Some(call.caller.object_id());
    let reads = read::kind_of(&about)
        .is_ok_and(|kind| call.authorize(&format!("{}/read", read::operations_of(kind)), &about).is_ok());
    let here = about.subscription().eq_ignore_ascii_case(subscription);
    if here && (own || reads) { Ok(operation) } else { Err(unknown()) }
}
