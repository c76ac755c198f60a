//! `[api.upgrades]`: automatic upgrades of clusters' agents (docs/features.md U1).

use daemon::settings::{Faults, Section};
use time::{OffsetDateTime, Weekday};

/// Days of the week as they are written, Monday first.
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
const MINUTES_A_DAY: u16 = 24 * 60;

/// Settings of automatic upgrades.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upgrades {
    /// Whether any cluster gets another version by itself.
    pub automatic: bool,
    /// The release train of the catalogue.
    pub train: String,
    /// Clusters of a hundred that are upgraded at once; one in any case.
    pub at_once_percent: u32,
    /// Clusters of a hundred that may fail before the upgrade to a version is paused.
    pub max_failures_percent: u32,
    /// When upgrades may begin.
    pub window: Window,
}

/// The release train, where the configuration does not say.
pub const TRAIN: &str = "Stable";
/// Clusters of a hundred at once, the same.
pub const AT_ONCE_PERCENT: u32 = 10;
/// Clusters of a hundred that may fail, the same.
pub const MAX_FAILURES_PERCENT: u32 = 2;

impl Default for Upgrades {
    fn default() -> Self {
        Self {
            automatic: true,
            train: TRAIN.to_owned(),
            at_once_percent: AT_ONCE_PERCENT,
            max_failures_percent: MAX_FAILURES_PERCENT,
            window: Window::default(),
        }
    }
}

impl Upgrades {
    /// Reads `[api.upgrades]`.
    pub fn read(mut section: Section, faults: &mut Faults) -> Self {
        let default = Self::default();
        let automatic = section.flag("automatic", faults).unwrap_or(default.automatic);
        let train = section.text("train", faults).unwrap_or(default.train);
        let at_once = section.number("at_once_percent", 1..=100, faults).unwrap_or(default.at_once_percent);
        let failures = section.number("max_failures_percent", 0..=100, faults);
        let hours = section.parsed("window", faults, hours);
        let names = section.texts("days", faults).unwrap_or_default();
        let mut days = [names.is_empty(); 7];
        for name in &names {
            match DAYS.iter().position(|day| name.eq_ignore_ascii_case(day)) {
                Some(day) => days[day] = true,
                None => faults.push(section.key("days"), format_args!("has {name:?}; known are {}", DAYS.join(", "))),
            }
        }
        section.end(faults);
        Self {
            automatic,
            train,
            at_once_percent: at_once,
            max_failures_percent: failures.unwrap_or(default.max_failures_percent),
            window: Window { hours, days },
        }
    }

    /// How many of so many clusters may be upgraded at one time: one at least, or nothing would ever happen.
    pub fn at_once(&self, clusters: usize) -> usize {
        share(clusters, self.at_once_percent).max(1)
    }

    /// How many of so many clusters may fail.
    pub fn failures(&self, clusters: usize) -> usize {
        share(clusters, self.max_failures_percent)
    }
}

fn share(of: usize, percent: u32) -> usize {
    let of = u64::try_from(of).unwrap_or(u64::MAX);
    usize::try_from(of.saturating_mul(u64::from(percent)) / 100).unwrap_or(usize::MAX)
}

/// A maintenance window: hours of a day, on some days of the week, in UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Minutes since midnight: from the first on, before the second, which is on the next day if it is not later. `None`:
    /// all day.
    hours: Option<(u16, u16)>,
    /// On which days it opens, Monday first.
    days: [bool; 7],
}

impl Default for Window {
    fn default() -> Self {
        Self { hours: None, days: [true; 7] }
    }
}

impl Window {
    /// Whether it is open at an instant in milliseconds since 1970.
    pub fn is_open(&self, now_ms: i64) -> bool {
        let Ok(now) = OffsetDateTime::from_unix_timestamp(now_ms.div_euclid(1000)) else { return false };
        let (minute, today) = (u16::from(now.hour()) * 60 + u16::from(now.minute()), now.weekday());
        let opens_on = |day: Weekday| self.days[usize::from(day.number_days_from_monday())];
        match self.hours {
            None => opens_on(today),
            Some((from, to)) if from < to => opens_on(today) && (from..to).contains(&minute),
            Some((from, _)) if minute >= from => opens_on(today),
            // It opened yesterday.
            Some((_, to)) => minute < to && opens_on(today.previous()),
        }
    }
}

/// `HH:MM-HH:MM`.
fn hours(text: &str) -> Result<(u16, u16), &'static str> {
    const WANTED: &str = "must be HH:MM-HH:MM in UTC, such as 22:00-04:00";
    let minute = |text: &str| {
        let (hour, minute) = text.split_once(':')?;
        let number = |text: &str| (text.len() == 2).then(|| text.parse::<u16>().ok()).flatten();
        let at = number(hour)?.checked_mul(60)?.checked_add(number(minute).filter(|minute| *minute < 60)?)?;
        (at < MINUTES_A_DAY).then_some(at)
    };
    let (from, to) = text.split_once('-').ok_or(WANTED)?;
    minute(from).zip(minute(to)).ok_or(WANTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Friday, 2027-01-15, 08:00 UTC.
    const FRIDAY: i64 = 1_800_000_000_000;
    const HOUR: i64 = 3_600_000;

    #[test]
    fn u1_a_window_over_midnight_is_of_the_day_on_which_it_opens() {
        let night = Window {
            hours: Some(hours("22:00-04:00").unwrap()),
            days: [false, false, false, false, true, false, false],
        };
        for (hours, open) in [(-10, false), (0, false), (13, false), (14, true), (19, true), (20, false), (38, false)] {
            assert_eq!(night.is_open(FRIDAY + hours * HOUR), open, "{hours} hours after");
        }
        let morning = Window { hours: Some(hours("08:00-09:30").unwrap()), ..Window::default() };
        assert!(morning.is_open(FRIDAY) && morning.is_open(FRIDAY + HOUR) && !morning.is_open(FRIDAY + 2 * HOUR));
        let weekend = Window { hours: None, days: [false, false, false, false, false, true, true] };
        assert!(!weekend.is_open(FRIDAY) && weekend.is_open(FRIDAY + 24 * HOUR));
        assert!(Window::default().is_open(0));
        for bad in ["", "22:00", "22-04", "24:00-01:00", "22:60-23:00", "1:00-02:00", "22:00-04:00 UTC"] {
            assert!(hours(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn u1_shares_are_of_the_fleet_and_one_cluster_may_always_go() {
        let own = Upgrades { at_once_percent: 10, max_failures_percent: 2, ..Upgrades::default() };
        assert_eq!((own.at_once(500), own.failures(500)), (50, 10));
        assert_eq!((own.at_once(3), own.failures(3)), (1, 0));
    }
}
