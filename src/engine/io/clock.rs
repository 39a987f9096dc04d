//! Owns the only real clocks of the program. Everything below `io` gets `Now` as an argument.

use crate::base::time::{Mono, Now, Unix};
use rustix::time::{ClockId, clock_gettime};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds for which wall-clock time is extrapolated with the monotonic clock: reading it would cost the same
/// again, and a jump may be noticed slightly later.
const WALL_FRESH: u64 = 100_000;
/// Milliseconds by which a followed clock may be off before it is set.
const FOLLOW_SLACK_MS: u64 = 20;

/// Reads both clocks. Monotonic time counts from the creation of the clock.
#[derive(Clone, Debug)]
pub struct Clock {
    start: u64,
    /// Time of the last reading of wall-clock time, and its value.
    wall: Now,
}

impl Clock {
    /// Creates a clock that starts at `Mono(0)` now.
    pub fn new() -> Clock {
        Clock { start: ticks(), wall: Now { mono: Mono(0), unix: unix() } }
    }

    /// Reads both clocks. Wall-clock time is a reading at most a tenth of a second old, plus the time since. On Linux
    /// neither reading enters the kernel (vDSO).
    #[inline]
    pub fn now(&mut self) -> Now {
        let mono = self.mono();
        let passed = mono.micros_since(self.wall.mono);
        if passed >= WALL_FRESH {
            self.wall = Now { mono, unix: unix() };
            return self.wall;
        }
        Now { mono, unix: Unix(self.wall.unix.0.saturating_add(passed / 1000)) }
    }

    /// Reads only the monotonic clock.
    pub fn mono(&self) -> Mono {
        since(self.start)
    }
}

/// Microseconds of the system's monotonic clock. `Instant` reads the same clock, and then subtracts with all checks of
/// a `Duration`: twice the instructions, four times a request.
#[inline]
fn ticks() -> u64 {
    let at = clock_gettime(ClockId::Monotonic);
    // Neither part is ever negative.
    at.tv_sec as u64 * 1_000_000 + at.tv_nsec as u64 / 1000
}

#[inline]
fn since(start: u64) -> Mono {
    Mono(ticks().saturating_sub(start))
}

impl Default for Clock {
    fn default() -> Self {
        Clock::new()
    }
}

/// Reads only the monotonic clock, which starts at the first call in this process.
pub fn watch() -> Mono {
    static START: OnceLock<u64> = OnceLock::new();
    since(*START.get_or_init(ticks))
}

/// Wall-clock time in milliseconds at the start of [`watch`], by the clock of a shared ledger; 0 for the host's own
/// clock.
static FOLLOWED: AtomicU64 = AtomicU64::new(0);

/// Follows another clock from now on, which returned `unix` at some moment between two readings of [`watch`].
pub fn follow(unix: Unix, asked: Mono, heard: Mono) {
    FOLLOWED.store(followed(FOLLOWED.load(Ordering::Relaxed), unix, asked, heard), Ordering::Relaxed);
}

/// Milliseconds of wall-clock time at the beginning of the monotonic clock, by a clock that returned `unix` between two
/// readings of the latter. `present` is the value so far, 0 for none. A difference that the delay of the answer may
/// explain changes nothing.
pub fn followed(present: u64, unix: Unix, asked: Mono, heard: Mono) -> u64 {
    let way = heard.micros_since(asked) / 1000;
    let begun = unix.0.saturating_sub((asked.0 / 1000).saturating_add(way / 2)).max(1);
    if begun.abs_diff(present) > way + FOLLOW_SLACK_MS { begun } else { present }
}

/// Returns wall-clock time; the epoch itself if the clock is before it. With a shared ledger it is the ledger's time,
/// so that all hosts are in the same window.
pub fn unix() -> Unix {
    let followed = FOLLOWED.load(Ordering::Relaxed);
    if followed > 0 {
        return Unix(followed.saturating_add(watch().0 / 1000));
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Unix(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_runs_backwards_and_the_year_is_plausible() {
        let mut clock = Clock::new();
        let (a, b) = (clock.now(), clock.now());
        assert!(a.mono <= b.mono);
        assert!(a.unix.secs() > 1_700_000_000);
        for _ in 0..50 {
            std::thread::sleep(std::time::Duration::from_millis(1));
            let (before, counted, after) = (unix().0, clock.now().unix.0, unix().0);
            // Each of the two clocks may have been rounded down.
            assert!(before <= counted + 2 && counted <= after + 1, "{before} {counted} {after}");
        }
    }
}
