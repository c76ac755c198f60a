//! Instants as text.

use std::time::SystemTime;

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// `2026-01-02T03:04:05Z`, as Kubernetes writes times.
pub fn timestamp(at: SystemTime) -> anyhow::Result<String> {
    let at = OffsetDateTime::from(at).replace_nanosecond(0)?;
    Ok(at.format(&Rfc3339)?)
}
