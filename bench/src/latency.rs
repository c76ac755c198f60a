//! Latencies as a histogram that is kept whole: repeats are merged before rare percentiles are read.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The longest that is told apart, in microseconds: two minutes.
const LONGEST_US: u64 = 120_000_000;
/// Decimal digits that are kept of each.
const DIGITS: u8 = 3;

/// Microseconds, in JSON a list of value and count.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<(u64, u64)>", into = "Vec<(u64, u64)>")]
pub struct Latency(Histogram<u64>);

impl Default for Latency {
    fn default() -> Self {
        Self(Histogram::new_with_max(LONGEST_US, DIGITS).expect("bounds that the library takes"))
    }
}

impl Latency {
    /// Fewer say nothing of one in a thousand.
    pub const RARE: u64 = 1000;

    /// Counts one; what is longer than the longest counts as that.
    pub fn record(&mut self, time: Duration) {
        self.0.saturating_record(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// Adds all of another.
    pub fn merge(&mut self, other: &Self) {
        // Both have the same bounds.
        self.0 += &other.0;
    }

    /// How many were counted.
    pub fn len(&self) -> u64 {
        self.0.len()
    }

    /// The value that the part `quantile` of them does not exceed (0.5 is the median); `None` where none was counted.
    pub fn at(&self, quantile: f64) -> Option<u64> {
        (self.len() > 0).then(|| self.0.value_at_quantile(quantile).min(self.0.max()))
    }
}

impl From<Vec<(u64, u64)>> for Latency {
    fn from(pairs: Vec<(u64, u64)>) -> Self {
        let mut this = Self::default();
        pairs.into_iter().for_each(|(value, count)| this.0.saturating_record_n(value, count));
        this
    }
}

impl From<Latency> for Vec<(u64, u64)> {
    fn from(this: Latency) -> Self {
        this.0.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = u64>) -> Latency {
        let mut latency = Latency::default();
        values.into_iter().for_each(|value| latency.record(Duration::from_micros(value)));
        latency
    }

    #[test]
    fn merged_histograms_are_that_of_all_values() {
        let mut merged = of((1..=500).map(|n| n * 2));
        merged.merge(&of((1..=500).map(|n| n * 2 - 1)));
        assert_eq!(merged, of(1..=1000));
        assert_eq!(
            (merged.len(), merged.at(0.5), merged.at(0.99), merged.at(1.0)),
            (1000, Some(500), Some(990), Some(1000))
        );
    }

    #[test]
    fn nothing_has_no_percentiles_and_too_long_is_the_longest() {
        assert_eq!(Latency::default().at(0.5), None);
        let longest = of([u64::MAX]).at(1.0).unwrap();
        assert!((LONGEST_US..LONGEST_US * 2).contains(&longest), "{longest}");
    }

    #[test]
    fn a_kept_histogram_reads_back_as_it_was() {
        let latency = of([1, 1, 70, 12_345, 9_999_999]);
        let text = serde_json::to_string(&latency).unwrap();
        let again: Latency = serde_json::from_str(&text).unwrap();
        assert_eq!((again.len(), serde_json::to_string(&again).unwrap()), (5, text));
    }
}
