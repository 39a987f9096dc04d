//! Recorded requests, and the ring that keeps their lines within a number of bytes. A list of failures is shared by
//! keys: if it is full, the key with the most bytes loses its oldest line, so that one key cannot displace the failures
//! of others.

use super::reason::reason;
use crate::base::text::{push_dollars, push_number};
use crate::wire::json::{Raw, member_string};
use std::collections::VecDeque;

/// Maximum number of kinds of requests in a list that counts repetitions.
const KINDS: usize = 12;
/// Seconds for which a request counts as a repetition of another one of its kind.
const REPEATS: u64 = 60;
/// Number of characters from which the beginning of an id is enough to find a request.
const ID_BEGINNING: usize = 12;
/// Maximum number and bytes of lines about failures (5xx, and failed attempts).
pub(crate) const ERRORS: (usize, usize) = (36, 12 << 10);
/// Maximum bytes of a line; a longer line is not kept.
pub(crate) const LINE_MAX: usize = 8 << 10;

/// A request whose line is kept.
#[derive(Copy, Clone, Debug)]
pub(crate) struct RecordedLine {
    /// Number of the request.
    pub(crate) number: u64,
    /// [`NO_COST`] if its model has no price.
    pub(crate) cost_nano: u64,
    pub(crate) second: u32,
    pub(crate) at: u32,
    pub(crate) length: u16,
    /// The list of failures takes the request when the list of all requests drops it.
    pub(crate) is_error: bool,
    /// Number of its key.
    pub(crate) key: u32,
    /// Number of requests that it represents.
    pub(crate) count: u32,
    /// Number of the refused request whose count includes this one; 0 if none does.
    pub(crate) repeats: u64,
}

/// In place of a cost, which is lower.
pub(crate) const NO_COST: u64 = u64::MAX;

/// True if this is enough of an id to find a request by its beginning.
pub(crate) fn is_beginning(id: &str) -> bool {
    id.len() >= ID_BEGINNING
}

/// A recorded request, or several of one kind.
#[derive(Copy, Clone, Debug)]
pub(crate) struct RecordedRow<'a> {
    pub(crate) place: &'a RecordedLine,
    pub(crate) line: &'a [u8],
    pub(crate) count: u32,
}

impl RecordedRow<'_> {
    pub(crate) fn number(&self) -> u64 {
        self.place.number
    }

    /// True for the request with this id, or with an id that begins so.
    pub(crate) fn is(&self, id: &str) -> bool {
        let before = b"\",\"id\":\"";
        let at = self.line.windows(before.len()).position(|bytes| bytes == before);
        let rest = at.map_or(&[][..], |at| &self.line[at + before.len()..]);
        rest.strip_prefix(id.as_bytes()).is_some_and(|rest| is_beginning(id) || rest.first() == Some(&b'"'))
    }

    /// True for a request of the session with this stored name.
    pub(crate) fn is_of_session(&self, session: &str) -> bool {
        Raw::new(self.line).get("session").is_some_and(|name| name.is(session))
    }

    /// Appends the log line with the members that only the recorder adds.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let Some((brace, members)) = self.line.split_last() else { return };
        out.extend_from_slice(members);
        if self.place.cost_nano != NO_COST {
            out.extend_from_slice(b",\"cost_usd\":");
            push_dollars(out, self.place.cost_nano);
        }
        if let Some(reason) = reason(Raw::new(self.line)) {
            member_string(out, "reason", &reason);
        }
        if self.count > 1 {
            out.extend_from_slice(b",\"count\":");
            push_number(out, self.count.into());
        }
        out.push(*brace);
    }
}

/// The newest lines within a number of bytes.
#[derive(Debug)]
pub(crate) struct LineRing {
    bytes: Box<[u8]>,
    most: usize,
    /// Position of the next line.
    at: usize,
    /// The oldest first.
    pub(crate) places: VecDeque<RecordedLine>,
    /// All lines from this second on are kept.
    pub(crate) since: u32,
}

impl LineRing {
    pub(crate) fn new((most, bytes): (usize, usize), since: u32) -> LineRing {
        // A list of failures never grows.
        let places = VecDeque::with_capacity(most.min(ERRORS.0));
        LineRing { bytes: vec![0; bytes].into(), most, at: 0, places, since }
    }

    /// Keeps a line, if necessary instead of the oldest ones. `moves`: gets the lines that are dropped.
    pub(crate) fn keep(&mut self, line: &[u8], place: RecordedLine, mut moves: impl FnMut(&[u8], RecordedLine)) {
        // A line that is not kept is replaced by an empty one, so that lines can still be counted.
        let line = if line.len() > LINE_MAX { b"" } else { line };
        if line.is_empty() {
            self.since = self.since.max(place.second + 1);
        }
        if self.places.len() == self.most {
            self.drop_oldest(|_| true, &mut moves);
        }
        if self.at + line.len() > self.bytes.len() {
            let end = self.at;
            while self.drop_oldest(|first| first >= end, &mut moves) {}
            self.at = 0;
        }
        let replaced = self.at..self.at + line.len();
        while self.drop_oldest(|first| replaced.contains(&first), &mut moves) {}
        self.push(line, place);
    }

    /// Keeps a line, if necessary instead of the oldest ones of the key with the most bytes. The lines of such a ring
    /// are one after the other, from its start.
    pub(crate) fn keep_fairly(&mut self, line: &[u8], place: RecordedLine) {
        if line.is_empty() || line.len() > LINE_MAX.min(self.bytes.len() / 2) {
            self.since = self.since.max(place.second + 1);
            return;
        }
        while self.places.len() == self.most || self.at + line.len() > self.bytes.len() {
            self.drop_of_largest(place.key, line.len());
        }
        self.push(line, place);
    }

    fn push(&mut self, line: &[u8], place: RecordedLine) {
        self.bytes[self.at..self.at + line.len()].copy_from_slice(line);
        self.places.push_back(RecordedLine { at: self.at as u32, length: line.len() as u16, ..place });
        self.at += line.len();
    }

    /// Drops the oldest line if it is at such a position. Others of its second may be kept, but not all of them.
    fn drop_oldest(&mut self, is_due: impl Fn(usize) -> bool, moves: &mut impl FnMut(&[u8], RecordedLine)) -> bool {
        let dropped = self.places.front().filter(|first| is_due(first.at as usize)).copied();
        if let Some(first) = dropped {
            self.since = self.since.max(first.second + 1);
            moves(self.text(&first), first);
            self.places.pop_front();
        }
        dropped.is_some()
    }

    /// Drops the oldest line of the key with the most bytes, and closes the gap. `key` will have `more` bytes.
    fn drop_of_largest(&mut self, key: u32, more: usize) {
        let bytes_of = |key_of: u32| {
            let own = self.places.iter().filter(|place| place.key == key_of).map(|place| usize::from(place.length));
            own.sum::<usize>() + if key_of == key { more } else { 0 }
        };
        let mut due = (0, 0);
        for (at, place) in self.places.iter().enumerate() {
            let bytes = bytes_of(place.key);
            if bytes > due.0 {
                due = (bytes, at);
            }
        }
        let Some(dropped) = self.places.remove(due.1) else { return };
        let (from, length) = (dropped.at as usize, usize::from(dropped.length));
        self.bytes.copy_within(from + length..self.at, from);
        self.at -= length;
        self.places.range_mut(due.1..).for_each(|place| place.at -= u32::from(dropped.length));
        self.since = self.since.max(dropped.second + 1);
    }

    /// Gives the ring this many bytes, if it has fewer.
    pub(crate) fn grow(&mut self, bytes: usize) {
        if self.bytes.len() < bytes {
            let mut more = LineRing::new((self.most, bytes), self.since);
            self.places.iter().for_each(|place| more.keep(self.text(place), *place, |_, _| {}));
            *self = more;
        }
    }

    fn text(&self, place: &RecordedLine) -> &[u8] {
        &self.bytes[place.at as usize..][..place.length.into()]
    }

    pub(crate) fn rows(&self) -> impl DoubleEndedIterator<Item = RecordedRow<'_>> {
        let rows = self.places.iter().filter(|place| place.length > 0);
        rows.map(|place| RecordedRow { place, line: self.text(place), count: place.count })
    }

    /// Bytes that the ring has reserved.
    #[cfg(test)]
    pub(crate) fn reserved(&self) -> usize {
        self.bytes.len() + self.places.capacity() * size_of::<RecordedLine>()
    }
}

/// A kind of requests, with the number of the one whose line is kept.
#[derive(Copy, Clone, Debug, Default)]
struct KindSeen {
    kind: u64,
    number: u64,
    second: u64,
    count: u32,
}

/// A list in which a request is only counted if it repeats the last one of its kind.
#[derive(Debug)]
pub(crate) struct CountedLines {
    pub(crate) lines: LineRing,
    kinds: [KindSeen; KINDS],
}

impl CountedLines {
    pub(crate) fn new(size: (usize, usize), since: u32) -> CountedLines {
        CountedLines { lines: LineRing::new(size, since), kinds: [KindSeen::default(); KINDS] }
    }

    /// Counts a request as a repetition of one whose line is kept, and returns the number of that one.
    #[inline]
    pub(crate) fn repeats(&mut self, kind: u64, second: u64) -> Option<u64> {
        let known = |seen: &&mut KindSeen| seen.kind == kind && seen.count > 0;
        match self.kinds.iter_mut().find(known) {
            Some(seen) if second.wrapping_sub(seen.second) < REPEATS => {
                seen.count = seen.count.saturating_add(1);
                Some(seen.number)
            }
            _ => None,
        }
    }

    /// Keeps the first request of its kind.
    pub(crate) fn keep(&mut self, line: &[u8], place: RecordedLine, kind: u64) {
        self.lines.keep_fairly(line, place);
        let same = self.kinds.iter().position(|seen| seen.kind == kind);
        let oldest = || (0..KINDS).min_by_key(|at| self.kinds[*at].number);
        let at = same.or_else(oldest).unwrap_or(0);
        let first = KindSeen { kind, number: place.number, second: place.second.into(), count: 1 };
        let seen = std::mem::replace(&mut self.kinds[at], first);
        if let Some(place) = self.lines.places.iter_mut().find(|place| place.number == seen.number) {
            place.count = place.count.max(seen.count);
        }
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = RecordedRow<'_>> {
        let counted =
            |row: &RecordedRow<'_>| self.kinds.iter().find(|seen| seen.number == row.number()).map(|s| s.count);
        self.lines.rows().map(move |row| RecordedRow { count: counted(&row).unwrap_or(row.count), ..row })
    }
}
