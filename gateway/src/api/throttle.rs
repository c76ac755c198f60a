//! How often one principal may ask in one subscription (feature N5), as ARM bounds it: 429 with `Retry-After`, and in
//! every answer how many more there are at once. What is of no subscription is counted in the tenant.

use auth::token::Identity;
use http::{HeaderName, Method, StatusCode, header};
use tokio::time::Instant;

use super::route::Route;
use crate::{
    api_error::ApiError,
    control::{Control, throttle::Class},
    rate::Rate,
};

/// How many more requests the caller may send at once, as a header of the answer.
pub struct Remaining {
    /// The header's name, which says what is counted.
    pub header: HeaderName,
    /// Its value.
    pub requests: u32,
}

/// A request that was counted.
pub struct Counted {
    /// What is left after it; also told in the answer that refuses it.
    pub remaining: Remaining,
    /// Whether it goes on; the error says that there were too many.
    pub allowed: Result<(), ApiError>,
}

/// Counts a request.
pub fn count(control: &Control, route: &Route, method: &Method, identity: &Identity) -> Counted {
    let subscription = route.subscription().filter(|id| control.has_subscription(id));
    let (class, name) = match (method, subscription.is_some()) {
        (&Method::GET | &Method::HEAD, true) => (Class::Reads, "x-ms-ratelimit-remaining-subscription-reads"),
        (&Method::GET | &Method::HEAD, false) => (Class::Reads, "x-ms-ratelimit-remaining-tenant-reads"),
        (&Method::DELETE, true) => (Class::Deletes, "x-ms-ratelimit-remaining-subscription-deletes"),
        (&Method::DELETE, false) => (Class::Deletes, "x-ms-ratelimit-remaining-tenant-deletes"),
        (_, true) => (Class::Writes, "x-ms-ratelimit-remaining-subscription-writes"),
        (_, false) => (Class::Writes, "x-ms-ratelimit-remaining-tenant-writes"),
    };
    let header = HeaderName::from_static(name);
    let settings = &control.settings;
    let per_minute = if class == Class::Reads { settings.reads_per_minute } else { settings.writes_per_minute };
    let rate = Rate::new(per_minute, f64::from(per_minute) / 60.0);
    let place = subscription.unwrap_or_default().to_ascii_lowercase();
    let who = format!("{}\0{}", identity.issuer, identity.subject);
    let key = (format!("{place}\0{who}"), class);
    let (requests, allowed) = match control.throttle.take(&who, &key, rate, Instant::now()) {
        Ok(left) => (left, Ok(())),
        Err(seconds) => (0, Err(too_many(subscription, class, &identity.username, per_minute, seconds))),
    };
    Counted { remaining: Remaining { header, requests }, allowed }
}

fn too_many(subscription: Option<&str>, class: Class, who: &str, per_minute: u32, seconds: u64) -> ApiError {
    let (code, place) = match subscription {
        Some(id) => ("SubscriptionRequestsThrottled", format!("subscription '{id}'")),
        None => ("TenantRequestsThrottled", "the tenant".to_owned()),
    };
    let what = match class {
        Class::Reads => "read",
        Class::Writes => "write",
        Class::Deletes => "delete",
    };
    let message = format!(
        "Number of '{what}' requests of '{who}' for {place} exceeded the limit of {per_minute} in a minute. Please try again after '{seconds}' seconds."
    );
    ApiError::of(StatusCode::TOO_MANY_REQUESTS, code, message).with(header::RETRY_AFTER, &seconds.to_string())
}
