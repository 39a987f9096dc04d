//! Owns the only real clocks of the program. Everything below `io` gets `Now` as an argument.

use crate::base::time::{Mono, Now, Unix};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Reads both clocks. Monotonic time counts from the moment the clock was made.
#[derive(Clone, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// A clock that starts at `Mono(0)` now.
    pub fn new() -> Clock {
        Clock { start: Instant::now() }
    }

    /// Both clocks. On Linux neither reading enters the kernel (vDSO).
    pub fn now(&self) -> Now {
        Now { mono: self.mono(), unix: unix() }
    }

    /// The monotonic clock alone.
    pub fn mono(&self) -> Mono {
        Mono(u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX))
    }
}

impl Default for Clock {
    fn default() -> Self {
        Clock::new()
    }
}

/// Wall-clock time; the epoch itself on a machine whose clock stands before it.
pub fn unix() -> Unix {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Unix(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_does_not_run_backwards_and_the_year_is_plausible() {
        let clock = Clock::new();
        let (a, b) = (clock.now(), clock.now());
        assert!(a.mono <= b.mono);
        assert!(a.unix.secs() > 1_700_000_000);
    }
}
