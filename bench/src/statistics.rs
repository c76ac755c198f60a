//! Medians with their spread, and when two of them differ at all.

/// Median and spread of one figure over repeats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Middle {
    /// The median; the mean of the two middle values if their count is even.
    pub median: f64,
    /// The smallest value.
    pub least: f64,
    /// The largest value.
    pub most: f64,
    /// Of how many.
    pub count: usize,
}

impl Middle {
    /// Fewer repeats have no spread that says anything.
    const SPREAD: usize = 3;

    /// Of repeats, in any order; `None` of none.
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let (half, count) = (values.len() / 2, values.len());
        let (least, most) = (*values.first()?, *values.last()?);
        let median = if count % 2 == 0 { f64::midpoint(values[half - 1], values[half]) } else { values[half] };
        Some(Self { median, least, most, count })
    }

    /// Its ratio to another; `None` where that is nothing.
    pub fn ratio(&self, floor: &Self) -> Option<f64> {
        (floor.median > 0.0).then(|| self.median / floor.median)
    }

    /// Whether its spread is one: two repeats may be close by chance, and one always is.
    pub fn is_spread(&self) -> bool {
        self.count >= Self::SPREAD
    }

    /// Whether the spreads of the two meet, so that a difference of the medians says nothing.
    pub fn meets(&self, other: &Self) -> bool {
        self.least <= other.most && other.least <= self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn middle(values: &[f64]) -> Middle {
        Middle::of(values.to_vec()).unwrap()
    }

    #[test]
    fn the_median_is_in_the_middle_and_between_two_of_an_even_number() {
        assert_eq!(middle(&[3.0, 1.0, 2.0]), Middle { median: 2.0, least: 1.0, most: 3.0, count: 3 });
        assert_eq!(middle(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(Middle::of(vec![]), None);
    }

    #[test]
    fn spreads_that_touch_meet_and_a_ratio_to_nothing_is_none() {
        let (low, high, apart) = (middle(&[1.0, 2.0]), middle(&[2.0, 3.0]), middle(&[4.0]));
        assert!(low.meets(&high) && high.meets(&low) && !high.meets(&apart) && !apart.meets(&low));
        assert_eq!(apart.ratio(&middle(&[2.0])), Some(2.0));
        assert_eq!(apart.ratio(&middle(&[0.0])), None);
        assert!(!low.is_spread() && middle(&[1.0, 1.0, 1.0]).is_spread());
    }
}
