//! Histograms: number of values in each bucket. Counting costs no allocation and, for small values, a few comparisons.

use crate::policy::counters::Histogram;
use std::io::Write;

/// The buckets of a histogram.
pub(super) struct Scale {
    /// Upper bounds; the last bucket has none.
    bounds: &'static [u64],
    /// Number of counted units per displayed unit.
    unit: f64,
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

    /// Appends it in Prometheus' text format. `label`: `name="value"`, or nothing.
    pub(super) fn write(&self, scale: &Scale, name: &str, label: &str, out: &mut Vec<u8>) {
        let mut total = 0;
        let comma = if label.is_empty() { "" } else { "," };
        for (index, bound) in scale.bounds.iter().enumerate() {
            total += self.buckets.get(index).copied().unwrap_or(0);
            let _ = writeln!(out, "{name}_bucket{{{label}{comma}le=\"{}\"}} {total}", *bound as f64 / scale.unit);
        }
        total += self.buckets.get(scale.bounds.len()).copied().unwrap_or(0);
        let _ = writeln!(out, "{name}_bucket{{{label}{comma}le=\"+Inf\"}} {total}");
        let braces = if label.is_empty() { String::new() } else { format!("{{{label}}}") };
        let _ = writeln!(out, "{name}_sum{braces} {}", self.sum as f64 / scale.unit);
        let _ = writeln!(out, "{name}_count{braces} {total}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_fall_into_their_buckets_and_sums_are_those_of_both() {
        let (mut one, mut other) = (Histogram::default(), Histogram::default());
        one.observe(&ANSWERS, 50_000);
        one.observe(&ANSWERS, 50_001);
        other.observe(&ANSWERS, 601_000_000);
        one.add(&other);
        other.add(&Histogram::default());
        let mut out = Vec::new();
        one.write(&ANSWERS, "t", "model=\"m\"", &mut out);
        let text = String::from_utf8(out).unwrap();
        for line in [
            "t_bucket{model=\"m\",le=\"0.05\"} 1\n",
            "t_bucket{model=\"m\",le=\"0.1\"} 2\n",
            "t_bucket{model=\"m\",le=\"600\"} 2\n",
            "t_bucket{model=\"m\",le=\"+Inf\"} 3\n",
            "t_sum{model=\"m\"} 601.100001\n",
            "t_count{model=\"m\"} 3\n",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert_eq!(serde_json::from_str::<Histogram>(&serde_json::to_string(&one).unwrap()).unwrap(), one);
    }
}
