//! Histograms: number of values in each bucket. Counting costs no allocation and, for small values, a few comparisons.

use crate::policy::counters::Histogram;

/// The buckets of a histogram.
pub(super) struct Scale {
    /// Upper bounds; the last bucket has none.
    pub(super) bounds: &'static [u64],
    /// Number of counted units per displayed unit.
    pub(super) unit: f64,
}

/// Microseconds, displayed in seconds: times of the event loop and of the phases of a request, from 100 µs to ten
/// minutes.
pub(super) const PHASES: Scale = Scale {
    bounds: &[
        100,
        250,
        1_000,
        2_500,
        5_000,
        10_000,
        25_000,
        100_000,
        250_000,
        1_000_000,
        2_500_000,
        10_000_000,
        30_000_000,
        100_000_000,
        600_000_000,
    ],
    unit: 1e6,
};

/// Microseconds, displayed in seconds: times of models, from 50 ms to ten minutes.
pub(super) const ANSWERS: Scale = Scale {
    bounds: &[
        50_000,
        100_000,
        250_000,
        500_000,
        1_000_000,
        2_500_000,
        5_000_000,
        10_000_000,
        30_000_000,
        60_000_000,
        120_000_000,
        300_000_000,
        600_000_000,
    ],
    unit: 1e6,
};

/// Thousandths of a token per second, displayed in tokens per second.
pub(super) const RATES: Scale = Scale {
    bounds: &[
        1_000, 2_500, 5_000, 10_000, 20_000, 30_000, 50_000, 75_000, 100_000, 150_000, 200_000, 300_000, 500_000,
        1_000_000,
    ],
    unit: 1e3,
};

impl Histogram {
    /// Counts one value.
    #[inline]
    pub(super) fn observe(&mut self, scale: &Scale, value: u64) {
        let index = scale.bounds.iter().position(|bound| value <= *bound).unwrap_or(scale.bounds.len());
        if self.buckets.is_empty() {
            self.buckets.resize(scale.bounds.len() + 1, 0);
        }
        if let Some(count) = self.buckets.get_mut(index) {
            *count += 1;
        }
        self.sum = self.sum.saturating_add(value);
    }

    /// Adds the counts of another histogram on the same scale.
    pub(super) fn add(&mut self, other: &Histogram) {
        self.buckets.resize(self.buckets.len().max(other.buckets.len()), 0);
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(sum, more)| *sum += more);
        self.sum = self.sum.saturating_add(other.sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_counted_in_their_buckets_and_sums_are_added() {
        let (mut one, mut other) = (Histogram::default(), Histogram::default());
        one.observe(&ANSWERS, 50_000);
        one.observe(&ANSWERS, 50_001);
        other.observe(&ANSWERS, 601_000_000);
        one.add(&other);
        other.add(&Histogram::default());
        assert_eq!(
            (one.buckets[0], one.buckets[1], one.buckets[ANSWERS.bounds.len()], one.sum),
            (1, 1, 1, 601_100_001)
        );
        assert_eq!(serde_json::from_str::<Histogram>(&serde_json::to_string(&one).unwrap()).unwrap(), one);
    }
}
