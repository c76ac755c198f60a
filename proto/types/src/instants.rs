//! Instants as numbers and as text. Nothing here reads a clock: the time of day comes in as an argument. All programs
//! read and write RFC 3339 by these functions, so that what one of them writes is read by the others.

use std::time::{Duration, SystemTime};

use time::{OffsetDateTime, format_description::well_known::Rfc3339};

fn since_1970(at: SystemTime) -> Duration {
    at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// Whole seconds since 1970; 0 for an earlier instant.
pub fn unix_seconds(at: SystemTime) -> u64 {
    since_1970(at).as_secs()
}

/// Whole seconds since 1970 as a signed number, which tokens and role assignments are compared by; 0 for an earlier
/// instant.
pub fn timestamp(at: SystemTime) -> i64 {
    i64::try_from(unix_seconds(at)).unwrap_or(i64::MAX)
}

/// Whole milliseconds since 1970, as the gateway's store has instants; 0 for an earlier instant.
pub fn milliseconds(at: SystemTime) -> i64 {
    i64::try_from(since_1970(at).as_millis()).unwrap_or(i64::MAX)
}

/// RFC 3339 in UTC, with as many digits of a second as the instant needs; empty outside of the years 0 to 9999.
pub fn rfc3339(at: SystemTime) -> String {
    date(at).and_then(|at| at.format(&Rfc3339).ok()).unwrap_or_default()
}

/// RFC 3339 in UTC without fractions of a second, as Kubernetes writes times; empty outside of the years 0 to 9999.
pub fn rfc3339_seconds(at: SystemTime) -> String {
    date(at).and_then(|at| at.replace_nanosecond(0).ok()?.format(&Rfc3339).ok()).unwrap_or_default()
}

/// RFC 3339 in UTC of milliseconds since 1970; the beginning of 1970 outside of the years 0 to 9999.
pub fn instant(ms: i64) -> String {
    let at =
        OffsetDateTime::from_unix_timestamp_nanos(i128::from(ms) * 1_000_000).unwrap_or(OffsetDateTime::UNIX_EPOCH);
    at.format(&Rfc3339).unwrap_or_default()
}

/// A text is not an instant as RFC 3339 writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("expected an instant as RFC 3339 writes it, such as 2030-01-31T12:00:00Z")]
pub struct NotAnInstant;

/// Reads RFC 3339, of the years 0 to 9999, with any offset from UTC and up to nine digits of a second that count.
///
/// # Errors
/// [`NotAnInstant`].
pub fn parse(text: &str) -> Result<OffsetDateTime, NotAnInstant> {
    OffsetDateTime::parse(text, &Rfc3339).map_err(|_| NotAnInstant)
}

/// `None` outside of the calendar, where the library's own conversion panics.
fn date(at: SystemTime) -> Option<OffsetDateTime> {
    match at.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => OffsetDateTime::UNIX_EPOCH.checked_add(since.try_into().ok()?),
        Err(before) => OffsetDateTime::UNIX_EPOCH.checked_sub(before.duration().try_into().ok()?),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn offset_and_digits_of_a_second_are_read() {
        for text in ["2027-01-15T08:00:00.25Z", "2027-01-15T09:30:00.250+01:30", "2027-01-15t08:00:00.2500000000z"] {
            let at = parse(text).unwrap();
            assert_eq!(at.unix_timestamp_nanos(), 1_800_000_000_250_000_000, "{text}");
        }
    }

    #[test]
    fn text_that_is_not_rfc_3339_is_refused() {
        let texts = [
            "",
            "2027-01-15",
            "2027-01-15T08:00:00",
            "2027-01-15T08:00Z",
            "2027-01-15T08:00:00+0100",
            "2027-02-29T08:00:00Z",
            "2027-01-15T24:00:00Z",
            "2027-01-15T08:00:00.Z",
            "+002027-01-15T08:00:00Z",
            " 2027-01-15T08:00:00Z",
            "2027-01-15T08:00:00Z ",
            "1800000000",
        ];
        for text in texts {
            assert_eq!(parse(text), Err(NotAnInstant), "{text}");
        }
    }

    /// Seconds since 1970 of the years 0 to 9999.
    const CALENDAR: std::ops::Range<i64> = -62_167_219_200..253_402_300_800;

    proptest! {
        #[test]
        fn written_instant_is_read_as_the_same(seconds in CALENDAR, nanos in 0_u32..1_000_000_000) {
            let at = OffsetDateTime::from_unix_timestamp(seconds).unwrap().replace_nanosecond(nanos).unwrap();
            prop_assert_eq!(parse(&rfc3339(at.into())), Ok(at));
            prop_assert_eq!(parse(&rfc3339_seconds(at.into())).map(OffsetDateTime::unix_timestamp), Ok(seconds));
            let ms = seconds * 1000 + i64::from(nanos / 1_000_000);
            prop_assert_eq!(parse(&instant(ms)).map(|at| at.unix_timestamp_nanos()), Ok(i128::from(ms) * 1_000_000));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "\\PC{0,40}|[0-9+-]{0,12}T[0-9:.]{0,16}(Z|[+-][0-9:]{0,6})") {
            if let Ok(at) = parse(&text) {
                prop_assert_eq!(parse(&rfc3339(at.into())).map(|again| again.unix_timestamp_nanos()), Ok(at.unix_timestamp_nanos()));
            }
        }
    }

    #[test]
    fn instants_are_numbers_and_rfc_3339() {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(1_800_000_000_250);
        assert_eq!(
            (unix_seconds(at), timestamp(at), milliseconds(at)),
            (1_800_000_000, 1_800_000_000, 1_800_000_000_250)
        );
        assert_eq!(rfc3339(at), "2027-01-15T08:00:00.25Z");
        assert_eq!(rfc3339_seconds(at), "2027-01-15T08:00:00Z");
        assert_eq!(instant(1_800_000_000_250), rfc3339(at));
    }

    #[test]
    fn instants_beyond_the_calendar_do_not_panic() {
        let before = SystemTime::UNIX_EPOCH - Duration::from_millis(250);
        assert_eq!((unix_seconds(before), milliseconds(before)), (0, 0));
        assert_eq!(rfc3339(before), "1969-12-31T23:59:59.75Z");
        assert_eq!(rfc3339_seconds(before), "1969-12-31T23:59:59Z");
        let late = SystemTime::UNIX_EPOCH + Duration::from_secs(1 << 40);
        assert_eq!((rfc3339(late), rfc3339_seconds(late)), (String::new(), String::new()));
        assert_eq!(
            (instant(i64::MAX), instant(i64::MIN)),
            ("1970-01-01T00:00:00Z".into(), "1970-01-01T00:00:00Z".into())
        );
    }
}
