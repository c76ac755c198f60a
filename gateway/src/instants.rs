//! Instants as the store, tokens and documents have them.

use std::time::{Duration, SystemTime};

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Milliseconds since 1970, as the store has instants.
pub fn milliseconds(at: SystemTime) -> i64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// `SystemTime` as whole seconds since 1970.
pub fn unix_seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

/// An instant as documents have it: RFC 3339 in UTC.
pub fn instant(ms: i64) -> String {
    let at =
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    at.format(&Rfc3339).unwrap_or_default()
}
