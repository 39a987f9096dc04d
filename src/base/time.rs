//! The two clocks as plain values. Only `io::clock` reads the system's clocks.

use std::time::Duration;

/// Monotonic time in microseconds since an arbitrary start. Used for deadlines and durations.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Mono(pub u64);

impl Mono {
    /// Later than every deadline: an unarmed timer.
    pub const NEVER: Mono = Mono(u64::MAX);

    /// Returns the moment `wait` after this one, at most [`Mono::NEVER`].
    pub fn after(self, wait: Duration) -> Mono {
        // `as_micros` computes with 128 bits.
        let micros = wait.as_secs().saturating_mul(1_000_000).saturating_add(u64::from(wait.subsec_micros()));
        Mono(self.0.saturating_add(micros))
    }

    /// Like [`Mono::after`] for milliseconds, without the arithmetic of a `Duration`: for deadlines set with every
    /// event.
    #[inline]
    pub fn after_ms(self, wait: u32) -> Mono {
        Mono(self.0.saturating_add(u64::from(wait) * 1000))
    }

    /// Microseconds since `earlier`, 0 if `earlier` is in the future.
    pub fn micros_since(self, earlier: Mono) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Wall-clock time in milliseconds since 1970-01-01T00:00:00Z. Used for windows, periods and timestamps.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Unix(pub u64);

impl Unix {
    /// Whole seconds since the epoch, rounded down.
    pub fn secs(self) -> u64 {
        self.0 / 1000
    }
}

/// Both clocks, read once per event-loop iteration and passed to every method.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Now {
    /// Time for deadlines.
    pub mono: Mono,
    /// Time for windows, periods and timestamps.
    pub unix: Unix,
}

impl Now {
    /// Wall-clock time of an earlier moment.
    pub fn wall(&self, earlier: Mono) -> Unix {
        Unix(self.unix.0.saturating_sub(self.mono.micros_since(earlier) / 1000))
    }
}
