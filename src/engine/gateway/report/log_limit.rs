//! Limits log lines of requests that cost nothing, since anyone could fill a disk with them. At most
//! [`FREE_LINES_PER_SECOND`] of each caller are written within any second. Further lines are counted, and reported in
//! one line per second and caller.

use crate::base::time::Mono;
use crate::policy::keys::KeyIx;
use std::collections::VecDeque;
use std::time::Duration;

/// Log lines per second for the requests of one key that cost nothing, and for all requests without a valid key.
/// Further requests are counted in one line.
const FREE_LINES_PER_SECOND: usize = 100;
/// Callers whose lines of one second are counted apart.
const LOGGED_CALLERS_MAX: usize = 512;

const SECOND: Duration = Duration::from_secs(1);

/// Caller whose lines are counted together.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum LogCaller {
    /// All requests without a valid key.
    Stranger,
    /// All requests to the admin listener without a valid token.
    AdminStranger,
    /// The requests of a key.
    Key(KeyIx),
}

/// Lines of a caller within the last second.
#[derive(Debug)]
struct CallerLines {
    caller: LogCaller,
    /// Times of written lines, oldest first; at most [`FREE_LINES_PER_SECOND`].
    written: VecDeque<Mono>,
    /// Lines that were not written and are not reported yet.
    suppressed: u64,
}

impl CallerLines {
    fn new(caller: LogCaller) -> CallerLines {
        CallerLines { caller, written: VecDeque::new(), suppressed: 0 }
    }

    fn is_idle(&self, now: Mono) -> bool {
        self.suppressed == 0 && self.written.back().is_none_or(|newest| newest.after(SECOND) <= now)
    }
}

/// Lines of all callers within the last second.
#[derive(Debug)]
pub(crate) struct LogLimit {
    /// In the order of callers, strangers first; at most [`LOGGED_CALLERS_MAX`].
    callers: Vec<CallerLines>,
    /// Time from which idle callers are forgotten again, if there are too many.
    forgets: Option<Mono>,
    /// Time of the next report; `None` if no line was suppressed.
    due: Option<Mono>,
}

impl Default for LogLimit {
    fn default() -> LogLimit {
        LogLimit { callers: vec![CallerLines::new(LogCaller::Stranger)], forgets: None, due: None }
    }
}

impl LogLimit {
    /// True if one more line may be written; counts it.
    pub(crate) fn takes(&mut self, caller: LogCaller, now: Mono) -> bool {
        let at = self.find(caller, now);
        let lines = &mut self.callers[at];
        if lines.written.len() == FREE_LINES_PER_SECOND {
            match lines.written.front() {
                Some(oldest) if oldest.after(SECOND) <= now => drop(lines.written.pop_front()),
                _ => {
                    lines.suppressed += 1;
                    self.due.get_or_insert(now.after(SECOND));
                    return false;
                }
            }
        }
        lines.written.push_back(now);
        true
    }

    /// Index of a caller. If there are too many, the others share the lines of strangers.
    fn find(&mut self, caller: LogCaller, now: Mono) -> usize {
        let find = |callers: &[CallerLines]| callers.binary_search_by_key(&caller, |one| one.caller);
        if let Ok(at) = find(&self.callers) {
            return at;
        }
        if self.callers.len() >= LOGGED_CALLERS_MAX && self.forgets.is_none_or(|due| due <= now) {
            self.forgets = Some(now.after(SECOND));
            self.callers.retain(|one| !one.is_idle(now) || one.caller == LogCaller::Stranger);
        }
        match find(&self.callers) {
            Err(at) if self.callers.len() < LOGGED_CALLERS_MAX => {
                self.callers.insert(at, CallerLines::new(caller));
                at
            }
            _ => 0,
        }
    }

    /// Takes the numbers of lines that were not written since the last call.
    pub(crate) fn take_suppressed(&mut self) -> Vec<(LogCaller, u64)> {
        self.due = None;
        let suppressed = self.callers.iter_mut().filter(|one| one.suppressed > 0);
        suppressed.map(|one| (one.caller, std::mem::take(&mut one.suppressed))).collect()
    }

    /// Time at which suppressed lines are reported; `NEVER` if there are none.
    #[inline]
    pub(crate) fn due(&self) -> Mono {
        self.due.unwrap_or(Mono::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requests every millisecond, with pauses before and across the boundaries of seconds.
    #[test]
    fn lines_per_second_are_bounded_in_any_second() {
        let mut log = LogLimit::default();
        let at = |millis: u64| Mono(millis * 1000);
        let asked = (5_900..7_000).chain(7_950..9_300).chain(20_000..20_050);
        let written: Vec<u64> = asked.filter(|millis| log.takes(LogCaller::Stranger, at(*millis))).collect();
        for end in 0..written.len() {
            let within = written[..=end].iter().filter(|millis| **millis + 1000 > written[end]).count();
            assert!(within <= FREE_LINES_PER_SECOND, "{within} within the second to {} ms", written[end]);
        }
        let in_second = |second: u64| written.iter().filter(|millis| **millis / 1000 == second).count();
        assert_eq!([5, 6, 7, 8, 20].map(in_second), [100, 100, 50, 100, 50], "no line less than are allowed");
    }

    #[test]
    fn suppressed_lines_are_reported_within_a_second_for_each_caller() {
        let mut log = LogLimit::default();
        let key = LogCaller::Key(KeyIx(7));
        let mut taken = |caller| (0..1000).filter(|part| log.takes(caller, Mono(5_000_000 + part * 100))).count();
        assert_eq!([taken(key), taken(LogCaller::Stranger), taken(key)], [100, 100, 0]);
        assert_eq!(log.due(), Mono(6_010_000));
        assert_eq!(log.take_suppressed(), [(LogCaller::Stranger, 900), (key, 1900)]);
        assert_eq!((log.due(), log.take_suppressed()), (Mono::NEVER, Vec::new()));
    }

    #[test]
    fn callers_are_forgotten_a_second_after_their_last_line() {
        let mut log = LogLimit::default();
        let (key, start) = (|n: usize| LogCaller::Key(KeyIx(n as u32)), Mono(5_000_000));
        let all = |log: &mut LogLimit, now| (0..700).filter(|n| log.takes(key(*n), now)).count();
        assert!(log.takes(LogCaller::Stranger, start));
        assert_eq!(all(&mut log, start), LOGGED_CALLERS_MAX - 1 + 99, "the others share the lines of strangers");
        assert_eq!(log.take_suppressed(), [(LogCaller::Stranger, (700 - (LOGGED_CALLERS_MAX - 1) - 99) as u64)]);
        assert_eq!(log.callers.len(), LOGGED_CALLERS_MAX);
        let later = start.after(SECOND);
        assert!((1000..1100).all(|n| log.takes(key(n), later)), "idle callers leave room for others");
        assert_eq!(log.callers.len(), 101);
    }
}
