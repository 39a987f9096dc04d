//! Keys and models most of whose requests were refused in the last five minutes, for what needs attention. Requests are
//! counted from the first reader on, with all requests; the memory is bounded.

use crate::base::time::Unix;
use crate::wire::json::Raw;
use std::cmp::Reverse;

/// Maximum number of keys and models with counts. A further one has none, unless another had no request in the last
/// minutes.
const CALLERS_MAX: usize = 256;
/// Maximum number of callers that are reported: those with the most refusals.
const LISTED_MAX: usize = 20;
/// Number of minutes that count, the current one included.
const MINUTES: usize = 5;
const MINUTE_MS: u64 = 60_000;
/// Number of different statuses that are counted for a caller.
const STATUSES_MAX: usize = 4;
/// Number of refused requests from which a caller is reported, if they are at least half of its requests.
const REFUSED_MIN: u32 = 10;
/// Members of a log line with the id and the name of a key, and of a model.
const MEMBERS: [[&str; 2]; 2] = [["key", "name"], ["model", "model"]];

/// Requests of one minute.
#[derive(Copy, Clone, Debug, Default)]
struct MinuteCounts {
    minute: u64,
    requests: u32,
    refused: u32,
}

/// A key or a model.
#[derive(Debug)]
struct CallerCounts {
    is_key: bool,
    id: String,
    name: String,
    minutes: [MinuteCounts; MINUTES],
    /// First refusal after minutes without any.
    since: Unix,
    /// Statuses of the refusals since then, the first ones of different kinds, with their numbers.
    statuses: [(u16, u32); STATUSES_MAX],
}

/// A key or a model that is refused.
#[derive(Copy, Clone, Debug)]
pub(crate) struct RefusedCaller<'a> {
    pub(crate) what: &'static str,
    pub(crate) id: &'a str,
    pub(crate) name: &'a str,
    pub(crate) requests: u32,
    pub(crate) refused: u32,
    /// The first refusal.
    pub(crate) since: Unix,
    /// The most frequent status of the refusals.
    pub(crate) status: u16,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct RefusedCallers {
    /// Numbers of the callers, in the order of `counts`.
    numbers: Vec<u64>,
    counts: Vec<CallerCounts>,
    /// Minute of the last search for idle callers: one search costs as much as some requests.
    swept: u64,
}

impl RefusedCallers {
    /// Counts a request for its key and its model. `line`: its log line.
    pub(crate) fn push(&mut self, callers: [Option<u64>; 2], status: u16, line: &[u8], now: Unix) {
        for (at, number) in callers.iter().enumerate() {
            if let Some(number) = *number
                && let Some(counts) = self.of(number, at, line, now)
            {
                counts.count((400..499).contains(&status).then_some(status), now);
            }
        }
    }

    fn of(&mut self, number: u64, at: usize, line: &[u8], now: Unix) -> Option<&mut CallerCounts> {
        if let Some(known) = self.numbers.iter().position(|known| *known == number) {
            return self.counts.get_mut(known);
        }
        if self.counts.len() >= CALLERS_MAX && self.swept != now.0 / MINUTE_MS {
            self.swept = now.0 / MINUTE_MS;
            let mut stays = self.counts.iter().map(|one| one.sums(now)[0] > 0);
            self.numbers.retain(|_| stays.next().unwrap_or(false));
            self.counts.retain(|one| one.sums(now)[0] > 0);
        }
        if self.counts.len() >= CALLERS_MAX {
            return None;
        }
        let member =
            |name| Raw::new(line).get(name).and_then(Raw::text).map_or(String::new(), |text| text.into_owned());
        let [id, name] = MEMBERS[at].map(member);
        self.numbers.push(number);
        self.counts.push(CallerCounts {
            is_key: at == 0,
            id,
            name,
            minutes: [MinuteCounts::default(); MINUTES],
            since: now,
            statuses: [(0, 0); STATUSES_MAX],
        });
        self.counts.last_mut()
    }

    /// Returns the refused callers, those with the most refusals first.
    pub(crate) fn list(&self, now: Unix) -> Vec<RefusedCaller<'_>> {
        let refused = self.counts.iter().filter_map(|one| {
            let [requests, refused] = one.sums(now);
            let what = if one.is_key { "key" } else { "model" };
            let status = one.statuses.iter().max_by_key(|(_, count)| *count).map_or(0, |(status, _)| *status);
            let (id, name, since) = (&*one.id, &*one.name, one.since);
            let is_refused = refused >= REFUSED_MIN && refused >= requests.div_ceil(2);
            is_refused.then_some(RefusedCaller { what, id, name, requests, refused, since, status })
        });
        let mut list: Vec<RefusedCaller<'_>> = refused.collect();
        list.sort_unstable_by_key(|one| Reverse(one.refused));
        list.truncate(LISTED_MAX);
        list
    }
}

impl CallerCounts {
    fn count(&mut self, refused: Option<u16>, now: Unix) {
        let minute = now.0 / MINUTE_MS;
        if let Some(status) = refused {
            if self.sums(now)[1] == 0 {
                (self.since, self.statuses) = (now, [(0, 0); STATUSES_MAX]);
            }
            if let Some((known, count)) = self.statuses.iter_mut().find(|(known, _)| *known == status || *known == 0) {
                (*known, *count) = (status, count.saturating_add(1));
            }
        }
        let counts = &mut self.minutes[usize::try_from(minute).unwrap_or(0) % MINUTES];
        if counts.minute != minute {
            *counts = MinuteCounts { minute, ..MinuteCounts::default() };
        }
        counts.requests = counts.requests.saturating_add(1);
        counts.refused = counts.refused.saturating_add(refused.is_some().into());
    }

    /// Requests and refusals of the last minutes.
    fn sums(&self, now: Unix) -> [u32; 2] {
        let recent = self.minutes.iter().filter(|one| one.minute + MINUTES as u64 > now.0 / MINUTE_MS);
        recent.fold([0; 2], |[requests, refused], one| {
            [requests.saturating_add(one.requests), refused.saturating_add(one.refused)]
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &[u8] = br#"{"key":"AAAAAAAAAAAA","name":"ci-bot","model":"small"}"#;

    fn push(callers: &mut RefusedCallers, numbers: [Option<u64>; 2], statuses: &[u16], minute: u64) {
        for status in statuses {
            callers.push(numbers, *status, LINE, Unix(minute * MINUTE_MS));
        }
    }

    #[test]
    fn caller_with_mostly_refused_requests_is_listed() {
        let (mut callers, now) = (RefusedCallers::default(), Unix(1004 * MINUTE_MS));
        push(&mut callers, [Some(1), Some(2)], &[400; 9], 1000);
        assert!(callers.list(now).is_empty(), "too few");
        push(&mut callers, [Some(1), Some(2)], &[429], 1001);
        push(&mut callers, [Some(3), Some(2)], &[200; 11], 1001);
        let list = callers.list(now);
        assert_eq!(list.len(), 1, "the model serves another key: {list:?}");
        let one = list[0];
        assert_eq!((one.what, one.id, one.name), ("key", "AAAAAAAAAAAA", "ci-bot"));
        assert_eq!((one.requests, one.refused, one.status, one.since.0), (10, 10, 400, 1000 * MINUTE_MS));
        assert!(callers.list(Unix(1005 * MINUTE_MS)).is_empty(), "only one is of the last five minutes");
        push(&mut callers, [Some(3), Some(2)], &[500, 499, 302], 1001);
        assert_eq!(callers.list(now).len(), 1, "failures of targets and clients that left are no refusals");
        push(&mut callers, [None, Some(2)], &[404; 5], 1002);
        assert_eq!(callers.list(now)[0].name, "small", "15 of 29, the most first");
    }

    #[test]
    fn number_of_callers_is_bounded() {
        let mut callers = RefusedCallers::default();
        (0..1000).for_each(|number| push(&mut callers, [Some(number), None], &[400; 10], 1000));
        assert_eq!((callers.numbers.len(), callers.counts.len()), (CALLERS_MAX, CALLERS_MAX));
        assert_eq!(callers.list(Unix(1000 * MINUTE_MS)).len(), LISTED_MAX);
        push(&mut callers, [Some(999), None], &[400; 10], 1005);
        assert_eq!((callers.numbers.len(), callers.list(Unix(1005 * MINUTE_MS)).len()), (1, 1), "idle ones give way");
    }
}
