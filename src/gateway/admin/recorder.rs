//! Request recorder: failed requests from the start, and all requests from the first reader on, each as its log line;
//! and times of targets to their first byte. Its memory is bounded, and used only if there is an admin listener. Like
//! the log, it has no content. Called at the end of failed requests, or of all requests after the first read, and by
//! readers.

use super::first_bytes::{FirstByteTimes, FirstBytes};
use super::minutes::Minutes;
use super::reason::reason;
use crate::base::order;
use crate::base::text::{push_dollars, push_number};
use crate::base::time::{Mono, Now, Unix};
use crate::wire::json::{Raw, key, write_string};
use std::collections::VecDeque;

/// Maximum number of requests kept.
pub(crate) const REQUESTS_MAX: usize = 1000;
/// Maximum bytes of the lines of all requests: before the first reader, and after it.
const BYTES: [usize; 2] = [40 << 10, 1 << 20];
/// Maximum number and bytes of lines about failures.
const ERRORS: (usize, usize) = (64, 16 << 10);
/// Maximum number and bytes of lines about refused requests.
const REFUSALS: (usize, usize) = (32, 8 << 10);
/// Maximum number of kinds of refused requests.
const KINDS: usize = 16;
/// Seconds for which a refused request counts as a repetition of another one.
const REPEATS: u64 = 60;
/// Maximum bytes of a line; a longer line is not kept.
const LINE_MAX: usize = 8 << 10;

/// Data recorded of a request besides its line.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Passed {
    pub(crate) cost_nano: Option<u64>,
    /// Number of the target, and the microseconds to its first byte.
    pub(crate) first: Option<(u64, u64)>,
}

/// A failed request: its status, and a number that requests with the same reason share.
#[derive(Copy, Clone, Debug)]
pub(crate) struct FailedRequest {
    pub(crate) status: u16,
    pub(crate) kind: u64,
}

/// Lists that keep the line of a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Keep {
    all: bool,
    failure: Option<FailureList>,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum FailureList {
    Errors,
    /// With a number for the request's kind.
    Refusals(u64),
}

#[derive(Copy, Clone, Debug)]
struct RecordedLine {
    /// Number of the request.
    number: u64,
    cost_nano: Option<u64>,
    second: u32,
    at: u32,
    length: u32,
    /// Number of requests that it represents.
    count: u32,
}

/// The newest lines within a number of bytes.
#[derive(Debug)]
struct LineRing {
    bytes: Box<[u8]>,
    most: usize,
    /// Position of the next line.
    at: usize,
    /// The oldest first.
    places: VecDeque<RecordedLine>,
    /// All lines from this second on are kept.
    since: u32,
}

impl LineRing {
    fn new((most, bytes): (usize, usize), since: u32) -> LineRing {
        LineRing { bytes: vec![0; bytes].into(), most, at: 0, places: VecDeque::new(), since }
    }

    fn keep(&mut self, line: &[u8], number: u64, cost_nano: Option<u64>, count: u32, second: u32) {
        // A line that is not kept is replaced by an empty one, so that lines can still be counted.
        let line = if line.len() > LINE_MAX { b"" } else { line };
        if line.is_empty() {
            self.since = self.since.max(second + 1);
        }
        if self.places.len() == self.most {
            self.drop_oldest(|_| true);
        }
        if self.at + line.len() > self.bytes.len() {
            let end = self.at;
            while self.drop_oldest(|first| first >= end) {}
            self.at = 0;
        }
        let replaced = self.at..self.at + line.len();
        while self.drop_oldest(|first| replaced.contains(&first)) {}
        self.bytes[replaced.clone()].copy_from_slice(line);
        let (at, length) = (self.at as u32, line.len() as u32);
        self.places.push_back(RecordedLine { number, cost_nano, second, at, length, count });
        self.at = replaced.end;
    }

    /// Drops the oldest line if it is at such a position. Others of its second may be kept, but not all of them.
    fn drop_oldest(&mut self, is_due: impl Fn(usize) -> bool) -> bool {
        let dropped = self.places.front().filter(|first| is_due(first.at as usize)).copied();
        if let Some(first) = dropped {
            self.since = self.since.max(first.second + 1);
            self.places.pop_front();
        }
        dropped.is_some()
    }

    fn text(&self, place: &RecordedLine) -> &[u8] {
        &self.bytes[place.at as usize..(place.at + place.length) as usize]
    }

    fn rows(&self) -> impl DoubleEndedIterator<Item = RecordedRow<'_>> {
        let rows = self.places.iter().filter(|place| place.length > 0);
        rows.map(|place| RecordedRow { place, line: self.text(place), count: place.count })
    }
}

/// A recorded request, or several of one kind.
#[derive(Copy, Clone, Debug)]
pub(crate) struct RecordedRow<'a> {
    place: &'a RecordedLine,
    line: &'a [u8],
    count: u32,
}

impl RecordedRow<'_> {
    pub(crate) fn number(&self) -> u64 {
        self.place.number
    }

    /// True for the request with this id.
    pub(crate) fn is(&self, id: &str) -> bool {
        let before = b"\",\"id\":\"";
        let at = self.line.windows(before.len()).position(|bytes| bytes == before);
        let rest = at.map_or(&[][..], |at| &self.line[at + before.len()..]);
        rest.strip_prefix(id.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'"'))
    }

    /// True for a request of the session with this stored name.
    pub(crate) fn is_of_session(&self, session: &str) -> bool {
        Raw::new(self.line).get("session").is_some_and(|name| name.is(session))
    }

    /// Appends the log line with the members that only the recorder adds.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let Some((brace, members)) = self.line.split_last() else { return };
        out.extend_from_slice(members);
        if let Some(nano) = self.place.cost_nano {
            out.extend_from_slice(b",\"cost_usd\":");
            push_dollars(out, nano);
        }
        if let Some(reason) = reason(Raw::new(self.line)) {
            key(out, "reason");
            write_string(out, &reason);
        }
        if self.count > 1 {
            out.extend_from_slice(b",\"count\":");
            push_number(out, self.count.into());
        }
        out.push(*brace);
    }
}

/// All requests since the first reader.
#[derive(Debug)]
struct AllRequests {
    lines: LineRing,
    firsts: FirstBytes,
}

/// A kind of refused requests, with the number of the one whose line is kept.
#[derive(Copy, Clone, Debug, Default)]
struct RefusalKindSeen {
    kind: u64,
    number: u64,
    second: u64,
    count: u32,
}

/// Requests that failed, from the start. Refused ones have a separate list, so that they do not displace others.
#[derive(Debug)]
struct Failures {
    errors: LineRing,
    refusals: LineRing,
    kinds: [RefusalKindSeen; KINDS],
}

impl Failures {
    /// Failures of a recorder that has kept them since this second.
    fn new(since: u32) -> Failures {
        Failures {
            errors: LineRing::new(ERRORS, since),
            refusals: LineRing::new(REFUSALS, since),
            kinds: [RefusalKindSeen::default(); KINDS],
        }
    }

    /// Counts a refused request as a repetition of one whose line is kept. False if there is none.
    #[inline]
    fn repeats(&mut self, kind: u64, second: u64) -> bool {
        let known = |seen: &&mut RefusalKindSeen| seen.kind == kind && seen.count > 0;
        match self.kinds.iter_mut().find(known) {
            Some(seen) if second.wrapping_sub(seen.second) < REPEATS => {
                seen.count = seen.count.saturating_add(1);
                true
            }
            _ => false,
        }
    }

    fn refused(&mut self, line: &[u8], number: u64, kind: u64, second: u64) {
        self.refusals.keep(line, number, None, 1, second as u32);
        let same = self.kinds.iter().position(|seen| seen.kind == kind);
        let oldest = || (0..KINDS).min_by_key(|at| self.kinds[*at].number);
        let at = same.or_else(oldest).unwrap_or(0);
        let seen = std::mem::replace(&mut self.kinds[at], RefusalKindSeen { kind, number, second, count: 1 });
        if let Some(place) = self.refusals.places.iter_mut().find(|place| place.number == seen.number) {
            place.count = place.count.max(seen.count);
        }
    }

    fn rows(&self) -> impl Iterator<Item = RecordedRow<'_>> {
        let counted =
            |row: RecordedRow<'_>| self.kinds.iter().find(|seen| seen.number == row.number()).map(|s| s.count);
        let refusals = self.refusals.rows();
        let refusals = refusals.map(move |row| RecordedRow { count: counted(row).unwrap_or(row.count), ..row });
        self.errors.rows().chain(refusals)
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Recorder {
    /// Sums by minute; `None` if there is no admin listener, and so no reader.
    pub(crate) minutes: Option<Box<Minutes>>,
    all: Option<Box<AllRequests>>,
    failures: Option<Box<Failures>>,
    /// Number of the next request.
    next: u64,
    since: u32,
}

impl Recorder {
    /// Recorder for a gateway whose admin listener can be `read`.
    pub(crate) fn new(read: bool, now: Now) -> Recorder {
        let minutes = read.then(|| Box::new(Minutes::new(now)));
        Recorder { minutes, all: None, failures: None, next: 1, since: now.unix.secs() as u32 }
    }

    /// Returns the end of the current minute.
    #[inline]
    pub(crate) fn due(&self) -> Mono {
        self.minutes.as_ref().map_or(Mono::NEVER, |minutes| minutes.due())
    }

    /// Records all requests from now on, if it does not already.
    pub(crate) fn start(&mut self, now: Unix) {
        let fresh = || AllRequests {
            lines: LineRing::new((REQUESTS_MAX, BYTES[0]), now.secs() as u32),
            firsts: FirstBytes::default(),
        };
        self.all.get_or_insert_with(|| Box::new(fresh()));
    }

    /// True if all requests are recorded.
    #[inline]
    pub(crate) fn records_all(&self) -> bool {
        self.all.is_some()
    }

    /// Times from which all failures, and all requests, are kept. They move when older ones are dropped. Refused
    /// requests do not count as failures: their repetitions are never kept.
    pub(crate) fn since(&self) -> [Unix; 2] {
        let errors = self.failures.as_ref().map_or(self.since, |failures| failures.errors.since);
        let all = self.all.as_ref().map_or(errors, |all| all.lines.since);
        [errors.min(all), all].map(|second| Unix(u64::from(second) * 1000))
    }

    /// Returns the lists that keep the line of a request; `None` if no list does.
    pub(crate) fn keeps(&mut self, failed: Option<FailedRequest>, now: Unix) -> Option<Keep> {
        let failure = match failed {
            Some(_) if self.minutes.is_none() => None,
            Some(FailedRequest { status, kind }) if (400..500).contains(&status) && status != 499 => {
                let failures = self.failures.get_or_insert_with(|| Box::new(Failures::new(self.since)));
                (!failures.repeats(kind, now.secs())).then_some(FailureList::Refusals(kind))
            }
            failed => failed.map(|_| FailureList::Errors),
        };
        let all = self.all.is_some();
        (all || failure.is_some()).then_some(Keep { all, failure })
    }

    /// Records a request that has ended: `line` is its log line.
    #[cold]
    pub(crate) fn push(&mut self, keep: Keep, line: &[u8], passed: &Passed, now: Unix) {
        // Without its line feed.
        let line = line.split_last().map_or(line, |(_, line)| line);
        let (number, second) = (self.next, now.secs() as u32);
        self.next += 1;
        if let Some(list) = keep.failure {
            let failures = self.failures.get_or_insert_with(|| Box::new(Failures::new(self.since)));
            match list {
                FailureList::Errors => failures.errors.keep(line, number, passed.cost_nano, 1, second),
                FailureList::Refusals(kind) => failures.refused(line, number, kind, now.secs()),
            }
        }
        let Some(all) = &mut self.all else { return };
        all.lines.keep(line, number, passed.cost_nano, 1, second);
        if let Some((target, micros)) = passed.first {
            all.firsts.push(target, micros, now);
        }
    }

    /// Prepares for readers of requests: reserves space for the maximum number of requests.
    pub(crate) fn open(&mut self, now: Unix) {
        self.start(now);
        let Some(all) = self.all.as_mut().filter(|all| all.lines.bytes.len() < BYTES[1]) else { return };
        let mut more = LineRing::new((REQUESTS_MAX, BYTES[1]), all.lines.since);
        for place in &all.lines.places {
            more.keep(all.lines.text(place), place.number, place.cost_nano, place.count, place.second);
        }
        all.lines = more;
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

    /// All rows that are kept, the newest first.
    pub(crate) fn rows(&self) -> Vec<RecordedRow<'_>> {
        let (_, all) = self.from(0);
        let mut rows: Vec<RecordedRow<'_>> = all.collect();
        let first = rows.first().map_or(self.next, RecordedRow::number);
        let failures = self.failures.iter().flat_map(|failures| failures.rows());
        rows.extend(failures.filter(|row| row.number() < first));
        order::by_key(&mut rows, |row| (u64::MAX - row.number(), 0));
        rows
    }

    /// Returns a target's times to its first byte, if it has any in the last five minutes.
    pub(crate) fn first_bytes(&mut self, target: u64, now: Unix) -> Option<FirstByteTimes> {
        self.all.as_mut()?.firsts.of(target, now)
    }
}

#[cfg(test)]
mod tests;
