//! Durations as people write them, in one spelling everywhere: files, options, issuers.

use std::time::Duration;

/// The longest that is taken: a thousand years are more than any clock here can hold a sum with.
const LONGEST: Duration = Duration::from_millis(31_557_600_000_000);
/// Units, the largest first, and their milliseconds.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Why a text is no duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadDuration {
    /// It is not written as one.
    #[error("expected a whole number and a unit: ms, s, m, h or d, such as 30s")]
    Form,
    /// It does not fit.
    #[error("expected at most 365250d")]
    TooLong,
    /// It is 0 where it cannot be.
    #[error("expected more than 0, such as 30s")]
    Zero,
}

/// Reads `250ms`, `30s`, `5m`, `8h` or `7d`; `0` needs no unit.
pub fn duration(text: &str) -> Result<Duration, BadDuration> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if number.is_empty() {
        return Err(BadDuration::Form);
    }
    let (_, millis) = UNITS.iter().find(|(known, _)| *known == unit).ok_or(BadDuration::Form)?;
    let number: u64 = number.parse().map_err(|_| BadDuration::TooLong)?;
    let duration = number.checked_mul(*millis).map(Duration::from_millis).ok_or(BadDuration::TooLong)?;
    if duration > LONGEST { Err(BadDuration::TooLong) } else { Ok(duration) }
}

/// The same without 0.
pub fn positive_duration(text: &str) -> Result<Duration, BadDuration> {
    match duration(text)? {
        Duration::ZERO => Err(BadDuration::Zero),
        positive => Ok(positive),
    }
}

/// Writes one as [`duration`] reads it, in the largest unit that is whole.
pub fn spell(duration: Duration) -> String {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let (unit, size) =
        UNITS.into_iter().find(|(_, size)| millis != 0 && millis.is_multiple_of(*size)).unwrap_or(("s", 1_000));
    format!("{}{unit}", millis / size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_in_one_spelling() {
        for (text, expected) in [("250ms", 250), ("30s", 30_000), ("8h", 28_800_000), ("0", 0), ("0s", 0), ("0ms", 0)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(expected)), "{text}");
        }
        assert_eq!(duration("365250d"), Ok(LONGEST));
        for bad in ["", "8", "00", "h", "s", "-1s", "1.5s", "1 s", "1S", "1w", "+1s", "٣s", "1sé"] {
            assert_eq!(duration(bad), Err(BadDuration::Form), "{bad}");
        }
        for long in ["99999999999999999999s", "18446744073709551615d", "365251d"] {
            assert_eq!(duration(long), Err(BadDuration::TooLong), "{long}");
        }
    }

    #[test]
    fn where_zero_makes_no_sense_it_is_refused_in_every_spelling() {
        for zero in ["0", "0s", "0ms", "0d"] {
            assert_eq!(positive_duration(zero), Err(BadDuration::Zero), "{zero}");
        }
        assert_eq!(positive_duration("1ms"), Ok(Duration::from_millis(1)));
    }

    #[test]
    fn what_is_spelled_is_read_as_the_same() {
        for (millis, text) in [(0, "0s"), (1, "1ms"), (90_000, "90s"), (3_600_000, "1h"), (604_800_000, "7d")] {
            assert_eq!(spell(Duration::from_millis(millis)), text);
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)));
        }
    }
}
