//! Request recorder: failed requests from the start, and all requests from the first reader on, each as its log line;
//! and times of targets to their first byte. Its memory is bounded, and used only if there is an admin listener. Like
//! the log, it has no content. Called at the end of failed requests, or of all requests after the first read, and by
//! readers.

use crate::base::time::{Mono, Now, Unix};
use crate::gateway::counters::RecorderSums;
use crate::wire::json::Raw;
use first_bytes::{FirstByte, FirstByteTimes, FirstBytes};
use lists::{CountedLines, ERRORS, LineRing, NO_COST, RecordedLine};
use minutes::Minutes;
use reasons::Reasons;
use refused::{RefusedCaller, RefusedCallers};
use std::cmp::Reverse;

pub(crate) mod first_bytes;
mod lists;
pub(crate) mod minutes;
mod reason;
mod reasons;
mod refused;

pub(crate) use lists::{RecordedRow, is_beginning};

/// Maximum number of requests kept.
pub(crate) const REQUESTS_MAX: usize = 1000;
/// Maximum bytes of the lines of all requests: before the first reader, and after it.
const BYTES: [usize; 2] = [40 << 10, 1 << 20];
/// Maximum number and bytes of lines about requests whose clients left.
const LEFT: (usize, usize) = (16, 4 << 10);
/// Maximum number and bytes of lines about refused requests.
const REFUSALS: (usize, usize) = (24, 8 << 10);
/// A gateway without a failed request for so long has recovered.
const RECOVERED_MS: u64 = 30_000;
/// Status of a request whose client left.
const CLIENT_LEFT: u16 = 499;

/// Data recorded of a request besides its line.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Passed {
    pub(crate) cost_nano: Option<u64>,
    pub(crate) first: Option<FirstByte>,
    /// Numbers of the key and the model, if they are known.
    pub(crate) callers: [Option<u64>; 2],
    pub(crate) status: u16,
}

/// A failed request: its status, the number of its key, a number that requests with the same reason share, and one that
/// those of one session share.
#[derive(Copy, Clone, Debug)]
pub(crate) struct FailedRequest {
    pub(crate) status: u16,
    pub(crate) key: u32,
    pub(crate) reason: u64,
    pub(crate) kind: u64,
}

/// Lists that keep the line of a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Keep {
    all: bool,
    failure: Option<FailureList>,
    key: u32,
    repeats: u64,
    /// Number of the reason, unless the table of reasons has counted the request.
    reason: Option<u64>,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum FailureList {
    Errors,
    /// With a number for the request's kind.
    Left(u64),
    Refusals(u64),
}

/// All requests since the first reader.
#[derive(Debug)]
struct AllRequests {
    lines: LineRing,
    firsts: FirstBytes,
    refused: RefusedCallers,
}

/// Requests that failed, from the start. Those whose clients left and refused ones have separate lists, so that they do
/// not displace others.
#[derive(Debug)]
struct Failures {
    errors: LineRing,
    left: CountedLines,
    refusals: CountedLines,
}

impl Failures {
    /// Failures of a recorder that has kept them since this second.
    fn new(since: u32) -> Failures {
        Failures {
            errors: LineRing::new(ERRORS, since),
            left: CountedLines::new(LEFT, since),
            refusals: CountedLines::new(REFUSALS, since),
        }
    }

    fn rows(&self) -> impl Iterator<Item = RecordedRow<'_>> {
        self.errors.rows().chain(self.left.rows()).chain(self.refusals.rows())
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// Sums by minute; `None` if there is no admin listener, and so no reader.
    pub(crate) minutes: Option<Box<Minutes>>,
    all: Option<Box<AllRequests>>,
    failures: Option<Box<Failures>>,
    reasons: Reasons,
    /// Number of the next request.
    next: u64,
    since: u32,
    /// First and last of the present failed requests.
    errors: Option<[Unix; 2]>,
}

impl Recorder {
    /// Recorder for a gateway whose admin listener can be `read`.
    pub(crate) fn new(read: bool, now: Now) -> Recorder {
        let minutes = read.then(|| Box::new(Minutes::new(now)));
        Recorder {
            minutes,
            all: None,
            failures: None,
            reasons: Reasons::default(),
            next: 1,
            since: now.unix.secs() as u32,
            errors: None,
        }
    }

    /// Returns the end of the current minute.
    #[inline]
    pub(crate) fn due(&self) -> Mono {
        self.minutes.as_ref().map_or(Mono::NEVER, |minutes| minutes.due())
    }

    /// True if the current minute must be closed before another request is counted.
    #[inline]
    pub(crate) fn is_asleep(&self) -> bool {
        self.minutes.as_ref().is_some_and(|minutes| minutes.is_asleep())
    }

    /// Records all requests from now on, if it does not already.
    pub(crate) fn start(&mut self, now: Unix) {
        let fresh = || AllRequests {
            lines: LineRing::new((REQUESTS_MAX, BYTES[0]), now.secs() as u32),
            firsts: FirstBytes::default(),
            refused: RefusedCallers::default(),
        };
        self.all.get_or_insert_with(|| Box::new(fresh()));
    }

    /// Returns what a successor continues with.
    pub(crate) fn recorded(&self) -> RecorderSums {
        let first_bytes = self.all.as_ref().map(|all| all.firsts.0.clone());
        RecorderSums { reasons: self.reasons.rows.clone(), first_bytes }
    }

    /// Continues where a predecessor has ended.
    pub(crate) fn inherit(&mut self, before: RecorderSums, now: Unix) {
        if self.minutes.is_none() {
            return;
        }
        self.reasons = Reasons::inherited(before.reasons);
        if let Some(first_bytes) = before.first_bytes {
            self.start(now);
            self.all.iter_mut().for_each(|all| all.firsts.0.clone_from(&first_bytes));
        }
    }

    /// True if all requests are recorded.
    #[inline]
    pub(crate) fn records_all(&self) -> bool {
        self.all.is_some()
    }

    /// Times from which all failures, and all requests, are kept. They move when older ones are dropped. Refused
    /// requests and those whose clients left do not count as failures: their repetitions are never kept.
    pub(crate) fn since(&self) -> [Unix; 2] {
        let errors = self.failures.as_ref().map_or(self.since, |failures| failures.errors.since);
        let all = self.all.as_ref().map_or(errors, |all| all.lines.since);
        [errors.min(all), all].map(|second| Unix(u64::from(second) * 1000))
    }

    /// Returns the lists that keep the line of a request; `None` if no list does.
    pub(crate) fn keeps(&mut self, failed: Option<FailedRequest>, now: Unix) -> Option<Keep> {
        let (mut repeats, mut failure, mut uncounted) = (None, None, None);
        if let Some(FailedRequest { status, reason, kind, .. }) = failed.filter(|_| self.minutes.is_some()) {
            let failures = self.failures.get_or_insert_with(|| Box::new(Failures::new(self.since)));
            let (counted, list) = match status {
                CLIENT_LEFT => (Some(&mut failures.left), FailureList::Left(kind)),
                400..500 => (Some(&mut failures.refusals), FailureList::Refusals(kind)),
                _ => (None, FailureList::Errors),
            };
            let is_counted = (400..500).contains(&status) && self.reasons.count(reason, now);
            uncounted = (!is_counted).then_some(reason);
            repeats = counted.and_then(|counted| counted.repeats(kind, now.secs()));
            failure = repeats.is_none().then_some(list);
        }
        let (all, key) = (self.all.is_some(), failed.map_or(0, |failed| failed.key));
        let repeats = repeats.unwrap_or(0);
        (all || failure.is_some()).then_some(Keep { all, failure, key, repeats, reason: uncounted })
    }

    /// Records a request that has ended: `line` is its log line.
    #[cold]
    pub(crate) fn push(&mut self, keep: Keep, line: &[u8], passed: &Passed, now: Unix) {
        // Without its line feed.
        let line = line.split_last().map_or(line, |(_, line)| line);
        if let Some(reason) = keep.reason {
            self.reasons.add(reason, Raw::new(line), now);
        }
        let (is_error, second) = (keep.failure == Some(FailureList::Errors), now.secs() as u32);
        let place = RecordedLine {
            number: self.next,
            cost_nano: passed.cost_nano.unwrap_or(NO_COST),
            second,
            at: 0,
            length: 0,
            is_error,
            key: keep.key,
            count: 1,
            repeats: keep.repeats,
        };
        self.next += 1;
        if passed.status >= 500 {
            let goes_on = |errors: &[Unix; 2]| now.0 < errors[1].0 + RECOVERED_MS;
            self.errors = Some([self.errors.filter(goes_on).map_or(now, |errors| errors[0]), now]);
        }
        let failures = &mut self.failures;
        match (keep.failure, failures.as_mut()) {
            (Some(FailureList::Left(kind)), Some(failures)) => failures.left.keep(line, place, kind),
            (Some(FailureList::Refusals(kind)), Some(failures)) => failures.refusals.keep(line, place, kind),
            // The list of all requests keeps it until then.
            (Some(FailureList::Errors), Some(failures)) if !keep.all => failures.errors.keep_fairly(line, place),
            _ => {}
        }
        let Some(all) = &mut self.all else { return };
        all.lines.keep(line, place, |line, place| {
            if let Some(failures) = failures.as_mut().filter(|_| place.is_error) {
                failures.errors.keep_fairly(line, place);
            }
        });
        if let Some(first) = passed.first {
            all.firsts.push(first, now);
        }
        all.refused.push(passed.callers, passed.status, line, now);
    }

    /// Prepares for readers of requests: reserves space for the maximum number of requests.
    pub(crate) fn open(&mut self, now: Unix) {
        self.start(now);
        if let Some(all) = &mut self.all {
            all.lines.grow(BYTES[1]);
        }
    }

    /// Number that the next request will get.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Kept requests from this number on, oldest first; and the number of requests missing before them.
    pub(crate) fn from(&self, number: u64) -> (u64, impl Iterator<Item = RecordedRow<'_>>) {
        let lines = self.all.as_ref().map(|all| &all.lines);
        let first = lines.and_then(|lines| lines.places.front()).map_or(self.next, |place| place.number);
        let rows = lines.into_iter().flat_map(|lines| lines.rows());
        (first.saturating_sub(number), rows.skip_while(move |row| row.number() < number))
    }

    /// All rows that are kept, the newest first. The count of a refused request does not include those that have rows.
    pub(crate) fn rows(&self) -> Vec<RecordedRow<'_>> {
        let (_, all) = self.from(0);
        let mut rows: Vec<RecordedRow<'_>> = all.collect();
        let first = rows.first().map_or(self.next, RecordedRow::number);
        let failures = self.failures.iter().flat_map(|failures| failures.rows());
        let without_rows = |row: RecordedRow<'_>| {
            let own = rows.iter().filter(|other| other.place.repeats == row.number()).count();
            row.count.saturating_sub(own as u32).max(1)
        };
        let failures = failures.filter(|row| row.number() < first);
        let failures: Vec<_> = failures.map(|row| RecordedRow { count: without_rows(row), ..row }).collect();
        rows.extend(failures);
        rows.sort_unstable_by_key(|row| Reverse(row.number()));
        rows
    }

    /// Returns the keys and models most of whose requests are refused.
    pub(crate) fn refused(&self, now: Unix) -> Vec<RefusedCaller<'_>> {
        let mut list = self.all.as_ref().map_or(Vec::new(), |all| all.refused.list(now));
        // Only the table of reasons has refusals from before the first reader.
        for one in &mut list {
            let first = self.reasons.first_refusal(one.what, one.id, now);
            one.since = first.map_or(one.since, |first| first.min(one.since));
        }
        list
    }

    /// Appends the rows of the table of reasons.
    pub(crate) fn write_reasons(&self, out: &mut Vec<u8>) {
        self.reasons.write(out);
    }

    /// Names of the keys whose requests have failed at a target since this time.
    pub(crate) fn callers_at(&self, target: &str, since: Unix) -> Vec<String> {
        self.reasons.callers_at(target, since)
    }

    /// Time since which requests have been failing, if one has failed in the last [`RECOVERED_MS`]. A failed attempt
    /// whose request was answered does not count.
    pub(crate) fn failing_since(&self, now: Unix) -> Option<Unix> {
        self.errors.filter(|errors| now.0 < errors[1].0 + RECOVERED_MS).map(|errors| errors[0])
    }

    /// Median time to the first byte by minute of the last hour, the current one first.
    pub(crate) fn medians(&mut self, target: u64, now: Unix) -> Vec<Option<u32>> {
        self.all.as_mut().map_or(Vec::new(), |all| all.firsts.medians(target, now))
    }

    /// Returns the times to the first byte of a target, or of all, if there are any in the last five minutes.
    pub(crate) fn first_bytes(&mut self, target: Option<u64>, now: Unix) -> Option<FirstByteTimes> {
        self.all.as_mut()?.firsts.of(target, now)
    }
}

#[cfg(test)]
mod tests;
