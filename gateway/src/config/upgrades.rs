//! `[api.upgrades]`: automatic upgrades of clusters' agents (docs/features.md U1).

use daemon::settings::{Faults, Section};
use types::window::{Schedule, Window, WindowError, zone};

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
    /// When upgrades may begin; none: at any time.
    pub window: Option<Window>,
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
            window: None,
        }
    }
}

impl Upgrades {
    /// Reads the table `[api.upgrades]`.
    pub fn read(mut section: Section, faults: &mut Faults) -> Self {
        let default = Self::default();
        let automatic = section.flag("automatic", faults).unwrap_or(default.automatic);
        let train = section.text("train", faults).unwrap_or(default.train);
        let at_once = section.number("at_once_percent", 1..=100, faults).unwrap_or(default.at_once_percent);
        let failures = section.number("max_failures_percent", 0..=100, faults);
        let hours = section.parsed("window", faults, hours);
        let days = section.texts("days", faults).unwrap_or_default();
        for name in days.iter().filter(|name| !DAYS.iter().any(|day| name.eq_ignore_ascii_case(day))) {
            faults.push(section.key("days"), format_args!("has {name:?}; known are {}", DAYS.join(", ")));
        }
        let zone_name = section.text("time_zone", faults);
        let window = match window(hours, &days, zone_name.as_deref()) {
            Ok(window) => window,
            // Days that are none were told of already.
            Err(WindowError::Zone) => {
                faults.push(section.key("time_zone"), WindowError::Zone);
                None
            }
            Err(_) => None,
        };
        section.end(faults);
        Self {
            automatic,
            train,
            at_once_percent: at_once,
            max_failures_percent: failures.unwrap_or(default.max_failures_percent),
            window,
        }
    }

    /// How many of `clusters` clusters may be upgraded at one time: one at least, or nothing would ever happen.
    pub fn at_once(&self, clusters: usize) -> usize {
        share(clusters, self.at_once_percent).max(1)
    }

    /// How many of `clusters` clusters may fail.
    pub fn failures(&self, clusters: usize) -> usize {
        share(clusters, self.max_failures_percent)
    }
}

fn share(of: usize, percent: u32) -> usize {
    let of = u64::try_from(of).unwrap_or(u64::MAX);
    usize::try_from(of.saturating_mul(u64::from(percent)) / 100).unwrap_or(usize::MAX)
}

/// The window of these hours on these days; none where neither is said: it is always open then.
fn window(hours: Option<(u16, u16)>, days: &[String], name: Option<&str>) -> Result<Option<Window>, WindowError> {
    let zone = zone(name.unwrap_or("UTC"))?;
    if hours.is_none() && days.is_empty() {
        return Ok(None);
    }
    let (from, to) = hours.unwrap_or_default();
    // An end that is not later than the beginning is on the next day.
    let minutes = (to + MINUTES_A_DAY - from - 1) % MINUTES_A_DAY + 1;
    let days = if days.is_empty() { "*".to_owned() } else { days.join(",") };
    let schedule: Schedule = format!("{} {} * * {days}", from % 60, from / 60).parse()?;
    Ok(Some(Window::new(schedule, minutes.into(), zone)))
}

/// Parses `HH:MM-HH:MM` into two numbers of minutes since midnight.
fn hours(text: &str) -> Result<(u16, u16), &'static str> {
    const WANTED: &str = "must be HH:MM-HH:MM, such as 22:00-04:00";
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
        let of = |text: Option<&str>, days: &[&str], zone: Option<&str>| {
            let days: Vec<String> = days.iter().map(|day| (*day).to_owned()).collect();
            window(text.map(|text| hours(text).unwrap()), &days, zone).unwrap()
        };
        let night = of(Some("22:00-04:00"), &["Fri"], None).unwrap();
        for (hours, open) in [(-10, false), (0, false), (13, false), (14, true), (19, true), (20, false), (38, false)] {
            assert_eq!(night.is_open(FRIDAY + hours * HOUR), open, "{hours} hours after");
        }
        let morning = of(Some("08:00-09:30"), &[], None).unwrap();
        assert!(morning.is_open(FRIDAY) && morning.is_open(FRIDAY + HOUR) && !morning.is_open(FRIDAY + 2 * HOUR));
        let weekend = of(None, &["sat", "sun"], None).unwrap();
        assert!(!weekend.is_open(FRIDAY) && weekend.is_open(FRIDAY + 24 * HOUR));
        // Nine in the morning in Berlin.
        let there = of(Some("09:00-09:30"), &[], Some("Europe/Berlin")).unwrap();
        assert!(there.is_open(FRIDAY) && !there.is_open(FRIDAY + HOUR));
        assert_eq!(of(None, &[], Some("Europe/Berlin")), None);
        assert!(window(None, &[], Some("Nowhere")).is_err());
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
