//! The few most recent examples of something, for comparison with the next one. The last match is tried first, because
//! it often repeats. A new example replaces the oldest. If nothing matches for a long time, only a fraction of the new
//! examples is kept.

/// Consecutive misses after which only one in this number of examples is kept.
const MISSES_MAX: u32 = 64;

/// A ring of examples.
#[derive(Debug)]
pub struct Ring<T> {
    kept: Vec<T>,
    /// Index of the example that was used last.
    last: usize,
    oldest: usize,
    misses: u32,
}

impl<T> Default for Ring<T> {
    fn default() -> Ring<T> {
        Ring { kept: Vec::new(), last: 0, oldest: 0, misses: 0 }
    }
}

impl<T> Ring<T> {
    /// Returns the result of `fit` for the first example for which it is `Some`.
    #[inline]
    pub fn find<R>(&mut self, mut fit: impl FnMut(&T) -> Option<R>) -> Option<R> {
        let count = self.kept.len();
        for at in (self.last..count).chain(0..self.last.min(count)) {
            if let Some(found) = fit(&self.kept[at]) {
                (self.last, self.misses) = (at, 0);
                return Some(found);
            }
        }
        self.misses = self.misses.saturating_add(1);
        None
    }

    /// True if one more example should be kept.
    pub fn takes(&self) -> bool {
        self.misses <= MISSES_MAX || self.misses.is_multiple_of(MISSES_MAX)
    }

    /// Slot for a new example: a new slot while there are fewer than `max`, otherwise the oldest, whose storage can be
    /// reused.
    pub fn place(&mut self, max: usize, new: impl FnOnce() -> T) -> &mut T {
        if self.kept.len() < max {
            self.last = self.kept.len();
            self.kept.push(new());
        } else {
            self.last = self.oldest;
            self.oldest = (self.oldest + 1) % max;
        }
        &mut self.kept[self.last]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(ring: &mut Ring<u32>, wanted: u32) -> bool {
        ring.find(|kept| (*kept == wanted).then_some(())).is_some()
    }

    #[test]
    fn new_example_replaces_the_oldest() {
        let mut ring = Ring::default();
        for number in 0..5 {
            *ring.place(3, || 0) = number;
        }
        assert_eq!((0..5).map(|number| fits(&mut ring, number)).collect::<Vec<_>>(), [false, false, true, true, true]);
    }

    #[test]
    fn without_matches_only_one_in_many_is_kept() {
        let mut ring = Ring::default();
        *ring.place(3, || 0) = 1;
        let kept = (0..10 * MISSES_MAX).filter(|_| !fits(&mut ring, 2) && ring.takes()).count() as u32;
        assert_eq!(kept, MISSES_MAX + 9);
        assert!(fits(&mut ring, 1) && ring.takes());
    }
}
