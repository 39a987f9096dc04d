//! Totals of every minute of the last hour, as differences of the counters in `/metrics`, at no extra cost per request.
//! Called at the end of each minute and by readers. After a minute without requests it sleeps until the next request,
//! and does not wake an idle gateway.

use crate::base::time::{Mono, Now, Unix};
use crate::gateway::counters::Stats;
use std::time::Duration;

/// Number of minutes kept.
const MINUTES: usize = 60;
const MINUTE_MS: u64 = 60_000;
/// Status under which a request whose client left is counted.
const CLIENT_LEFT: u16 = 499;

/// Totals of one minute, or of all time.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Minute {
    /// Minutes since 1970.
    pub(crate) minute: u64,
    pub(crate) requests: u64,
    /// Requests that were answered with a status of 400 to 499.
    pub(crate) refused: u64,
    /// Requests that were answered with a status of 500 or more.
    pub(crate) failed: u64,
    /// Requests whose client left.
    pub(crate) left: u64,
    pub(crate) tokens: u64,
    pub(crate) cost_nano: u64,
}

impl Minute {
    fn total(stats: &Stats) -> Minute {
        let mut sum = Minute { requests: stats.other, ..Minute::default() };
        for series in &stats.requests {
            sum.requests += series.count;
            match series.status {
                CLIENT_LEFT => sum.left += series.count,
                400..500 => sum.refused += series.count,
                500.. => sum.failed += series.count,
                _ => {}
            }
        }
        for model in &stats.models {
            sum.tokens = model.tokens.iter().fold(sum.tokens, |sum, tokens| sum.saturating_add(*tokens));
            sum.cost_nano = sum.cost_nano.saturating_add(model.cost_nano);
        }
        sum
    }

    fn since(&self, before: &Minute, minute: u64) -> Minute {
        Minute {
            minute,
            requests: self.requests.saturating_sub(before.requests),
            refused: self.refused.saturating_sub(before.refused),
            failed: self.failed.saturating_sub(before.failed),
            left: self.left.saturating_sub(before.left),
            tokens: self.tokens.saturating_sub(before.tokens),
            cost_nano: self.cost_nano.saturating_sub(before.cost_nano),
        }
    }

    /// Number of requests that failed, were refused, or whose client left.
    pub(crate) fn errors(&self) -> u64 {
        self.refused + self.failed + self.left
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Minutes {
    closed: [Minute; MINUTES],
    /// Totals at the beginning of the current minute.
    base: Minute,
    /// The current minute.
    open: u64,
    /// End of the current minute; `NEVER` while it sleeps.
    due: Mono,
    /// No request was counted in the last closed minute.
    quiet: bool,
}

/// Index of the sums of a minute.
fn slot_of(minute: u64) -> usize {
    usize::try_from(minute % MINUTES as u64).unwrap_or(0)
}

impl Minutes {
    /// Starts counting at `now`.
    pub(crate) fn new(now: Now) -> Minutes {
        let mut minutes = Minutes {
            closed: [Minute::default(); MINUTES],
            base: Minute::default(),
            open: now.unix.0 / MINUTE_MS,
            due: Mono::NEVER,
            quiet: false,
        };
        minutes.arm(now);
        minutes
    }

    fn arm(&mut self, now: Now) {
        self.due = now.mono.after(Duration::from_millis(MINUTE_MS - now.unix.0 % MINUTE_MS));
    }

    /// Returns the end of the current minute; `NEVER` while it sleeps.
    pub(crate) fn due(&self) -> Mono {
        self.due
    }

    /// Sleeps until [`Minutes::close`] is called for the next request, unless the last minute had requests. Must not be
    /// called while a request runs.
    pub(crate) fn fall_asleep(&mut self) {
        if self.quiet {
            self.due = Mono::NEVER;
        }
    }

    /// True if [`Minutes::close`] must be called before another request is counted.
    #[inline]
    pub(crate) fn is_asleep(&self) -> bool {
        self.due == Mono::NEVER
    }

    /// Ends the current minute if it is over. Returns the number of minutes that have passed since it began.
    #[cold]
    pub(crate) fn close(&mut self, stats: &Stats, now: Now) -> u64 {
        self.arm(now);
        let minute = now.unix.0 / MINUTE_MS;
        if minute == self.open {
            return 0;
        }
        let (total, passed) = (Minute::total(stats), minute.saturating_sub(self.open).max(1));
        self.closed[slot_of(self.open)] = total.since(&self.base, self.open);
        self.quiet = total == self.base;
        (self.base, self.open) = (total, minute);
        passed
    }

    /// Returns the minutes of the last hour that had any requests, the oldest first.
    pub(crate) fn of_hour(&self, stats: &Stats, now: Unix) -> impl Iterator<Item = Minute> {
        let last = now.0 / MINUTE_MS;
        let open = Minute::total(stats).since(&self.base, self.open);
        let hour = last.saturating_sub(MINUTES as u64 - 1)..=last;
        let of = move |minute| if minute == open.minute { open } else { self.closed[slot_of(minute)] };
        hour.map(move |minute| (minute, of(minute)))
            .filter(|(minute, sum)| sum.minute == *minute && (sum.requests > 0 || sum.tokens > 0))
            .map(|(_, sum)| sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: u64) -> Now {
        Now { mono: Mono(minute * 60_000_000 + 5), unix: Unix(minute * MINUTE_MS + 10) }
    }

    fn seen(minutes: &Minutes, stats: &Stats, now: Now) -> Vec<(u64, u64, u64)> {
        minutes.of_hour(stats, now.unix).map(|sum| (sum.minute, sum.requests, sum.errors())).collect()
    }

    #[test]
    fn minutes_are_those_of_the_last_hour() {
        let (mut stats, mut minutes) = (Stats::default(), Minutes::new(at(100)));
        for minute in 100..=161 {
            minutes.close(&stats, at(minute));
            if [100, 101, 159, 161].contains(&minute) {
                stats.request("chat", None, 200);
                stats.request("chat", None, 500);
            }
        }
        assert_eq!(seen(&minutes, &stats, at(161)), [(159, 2, 1), (161, 2, 1)], "101 was before the hour");
        assert_eq!(seen(&minutes, &stats, at(221)), []);
    }

    #[test]
    fn a_minute_ends_at_its_last_millisecond() {
        let mut minutes = Minutes::new(at(7));
        assert_eq!(minutes.due(), at(7).mono.after(Duration::from_millis(MINUTE_MS - 10)));
        assert_eq!([7, 8, 11, 10].map(|minute| minutes.close(&Stats::default(), at(minute))), [0, 1, 3, 1]);
    }

    #[test]
    fn minutes_sleep_after_one_without_requests() {
        let (mut stats, mut minutes) = (Stats::default(), Minutes::new(at(7)));
        stats.request("chat", None, 200);
        minutes.close(&stats, at(8));
        minutes.fall_asleep();
        assert!(!minutes.is_asleep(), "the last minute had a request");
        minutes.close(&stats, at(9));
        minutes.fall_asleep();
        assert!(minutes.is_asleep());
        assert_eq!(minutes.close(&stats, at(30)), 21);
        stats.request("chat", None, 200);
        assert!(!minutes.is_asleep());
        assert_eq!(seen(&minutes, &stats, at(31)), [(7, 1, 0), (30, 1, 0)]);
    }

    #[test]
    fn refusals_failures_and_departed_clients_are_distinguished() {
        let (mut stats, minutes) = (Stats::default(), Minutes::new(at(7)));
        for status in [200, 400, 429, 429, 499, 500, 504] {
            stats.request("chat", None, status);
        }
        let sum = minutes.of_hour(&stats, at(7).unix).next().unwrap();
        assert_eq!((sum.requests, sum.refused, sum.failed, sum.left, sum.errors()), (7, 3, 2, 1, 6));
    }
}
