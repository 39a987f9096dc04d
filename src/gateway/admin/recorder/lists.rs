//! Recorded requests, and lists of those that failed: the lines of some bytes, shared by keys. If a list is full, the
//! key with the most bytes loses its oldest line, so that one key cannot displace the failures of others.

use super::super::reason::reason;
use crate::base::text::{push_dollars, push_number};
use crate::wire::json::{Raw, member_string};

/// Maximum number of kinds of requests in a list that counts repetitions.
const KINDS: usize = 12;
/// Seconds for which a request counts as a repetition of another one of its kind.
const REPEATS: u64 = 60;
/// Number of characters from which the beginning of an id is enough to find a request.
const ID_BEGINNING: usize = 12;
/// Maximum bytes of a line; a longer line is not kept.
pub(super) const LINE_MAX: usize = 8 << 10;

/// A request whose line is kept.
#[derive(Copy, Clone, Debug)]
pub(super) struct RecordedLine {
    /// Number of the request.
    pub(super) number: u64,
    /// [`NO_COST`] if its model has no price.
    pub(super) cost_nano: u64,
    pub(super) second: u32,
    pub(super) at: u32,
    pub(super) length: u16,
    /// The list of failures takes the request when the list of all requests drops it.
    pub(super) is_error: bool,
    /// Number of its key.
    pub(super) key: u32,
    /// Number of requests that it represents.
    pub(super) count: u32,
    /// Number of the refused request whose count includes this one; 0 if none does.
    pub(super) repeats: u64,
}

/// In place of a cost, which is lower.
pub(super) const NO_COST: u64 = u64::MAX;

/// True if this is enough of an id to find a request by its beginning.
pub(crate) fn is_beginning(id: &str) -> bool {
    id.len() >= ID_BEGINNING
}

/// A recorded request, or several of one kind.
#[derive(Copy, Clone, Debug)]
pub(crate) struct RecordedRow<'a> {
    pub(super) place: &'a RecordedLine,
    pub(super) line: &'a [u8],
    pub(super) count: u32,
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

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct SharedLines {
    /// The lines of `places`, one after the other; never more than its capacity.
    bytes: Vec<u8>,
    /// The oldest first; never more than its capacity.
    places: Vec<RecordedLine>,
    /// All lines from this second on are kept.
    pub(super) since: u32,
}

impl SharedLines {
    pub(super) fn new((most, bytes): (usize, usize), since: u32) -> SharedLines {
        SharedLines { bytes: Vec::with_capacity(bytes), places: Vec::with_capacity(most), since }
    }

    pub(super) fn keep(&mut self, line: &[u8], place: RecordedLine) {
        let [most, bytes] = [self.places.capacity(), self.bytes.capacity()];
        if line.is_empty() || line.len() > LINE_MAX.min(bytes / 2) {
            self.since = self.since.max(place.second + 1);
            return;
        }
        while self.places.len() == most || self.bytes.len() + line.len() > bytes {
            self.drop_one(place.key, line.len());
        }
        self.places.push(RecordedLine { at: self.bytes.len() as u32, length: line.len() as u16, ..place });
        self.bytes.extend_from_slice(line);
    }

    /// Drops the oldest line of the key with the most bytes. `key` will have `more` of them.
    fn drop_one(&mut self, key: u32, more: usize) {
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
        let dropped = self.places.remove(due.1);
        let from = dropped.at as usize;
        self.bytes.drain(from..from + usize::from(dropped.length));
        self.places[due.1..].iter_mut().for_each(|place| place.at -= u32::from(dropped.length));
        self.since = self.since.max(dropped.second + 1);
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = RecordedRow<'_>> {
        self.places.iter().map(|place| {
            let line = &self.bytes[place.at as usize..][..place.length.into()];
            RecordedRow { place, line, count: place.count }
        })
    }

    /// Bytes that the list has reserved.
    #[cfg(test)]
    pub(super) fn reserved(&self) -> usize {
        self.bytes.capacity() + self.places.capacity() * size_of::<RecordedLine>()
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
pub(super) struct CountedLines {
    pub(super) lines: SharedLines,
    kinds: [KindSeen; KINDS],
}

impl CountedLines {
    pub(super) fn new(size: (usize, usize), since: u32) -> CountedLines {
        CountedLines { lines: SharedLines::new(size, since), kinds: [KindSeen::default(); KINDS] }
    }

    /// Counts a request as a repetition of one whose line is kept, and returns the number of that one.
    #[inline]
    pub(super) fn repeats(&mut self, kind: u64, second: u64) -> Option<u64> {
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
    pub(super) fn keep(&mut self, line: &[u8], place: RecordedLine, kind: u64) {
        self.lines.keep(line, place);
        let same = self.kinds.iter().position(|seen| seen.kind == kind);
        let oldest = || (0..KINDS).min_by_key(|at| self.kinds[*at].number);
        let at = same.or_else(oldest).unwrap_or(0);
        let first = KindSeen { kind, number: place.number, second: place.second.into(), count: 1 };
        let seen = std::mem::replace(&mut self.kinds[at], first);
        if let Some(place) = self.lines.places.iter_mut().find(|place| place.number == seen.number) {
            place.count = place.count.max(seen.count);
        }
    }

    pub(super) fn rows(&self) -> impl Iterator<Item = RecordedRow<'_>> {
        let counted =
            |row: &RecordedRow<'_>| self.kinds.iter().find(|seen| seen.number == row.number()).map(|s| s.count);
        self.lines.rows().map(move |row| RecordedRow { count: counted(&row).unwrap_or(row.count), ..row })
    }
}
