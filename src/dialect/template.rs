//! The last event that carried one piece of text and nothing else of interest, split around that text. Most events of a
//! stream differ from the previous one only in their text. Such an event is compared with the template byte for byte,
//! and only its text is read. That takes a tenth of the work of reading it as JSON.
//!
//! Owns the comparison. Must never pass an event that the parser would treat otherwise: prefix and suffix equal those
//! of a parsed event, and the bytes between them are the inside of a JSON string. Called by `tap::event` and `convert`.

use crate::wire::Span;
use crate::wire::json::{is_string_inside, string_end};
use lanes::skip::to_either;
use std::ops::Range;

/// Name of the events with a message's text.
pub(super) const DELTA: &[u8] = b"content_block_delta";
/// Bytes before the data of such an event, and before that of a chunk, as most servers write them.
pub(super) const DELTA_BEGIN: &[u8; 33] = b"event: content_block_delta\ndata: ";
pub(super) const CHUNK_BEGIN: &[u8; 6] = b"data: ";

/// Maximum bytes of an event's data for a template.
const EVENT_MAX: usize = 2048;
/// Maximum bytes of its output. If an identity makes the output larger than that, no template is learned.
const SENT_MAX: usize = 2 * EVENT_MAX;
/// Maximum number of values in which events may differ.
const HOLES_MAX: usize = 3;
/// Maximum number of templates in a row that no event matched. After that no more are learned: the events differ in
/// more than a text.
const MISSES_MAX: u8 = 8;

/// Kind of value that may differ from one event to the next.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Hole {
    /// The text.
    Text,
    /// A whole number that Tollgate does not read, such as the event's own.
    Count,
    /// A string that Tollgate does not read, such as padding that hides an event's length.
    Padding,
}

impl Hole {
    const ALL: [Hole; 3] = [Hole::Text, Hole::Count, Hole::Padding];
}

/// Form of a stored event.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum EventForm {
    /// The data has line ends outside the text, so it spans several lines and is compared after they are joined.
    #[default]
    Lines,
    /// A single line in which only the text differs.
    Line,
    /// A single line with several holes. A table of them precedes the bytes: the kind of each, and the number of bytes
    /// before it.
    Holes,
    /// Not a template: the bytes are the response that reported the failure of the stream.
    Failed,
}

/// Bytes of one entry of that table.
const ENTRY: usize = 3;

/// See the top of this file.
#[derive(Debug, Default)]
pub(super) struct EventTemplate {
    /// Prefix and suffix of the event's data, then prefix and suffix of what the client was sent for it.
    bytes: Vec<u8>,
    prefix: u16,
    suffix: u16,
    sent_prefix: u16,
    form: EventForm,
    /// Templates learned since the last match.
    misses: u8,
}

impl EventTemplate {
    /// Forgets the template.
    pub(super) fn forget(&mut self) {
        self.bytes.clear();
    }

    /// Resets it for another stream and keeps the storage.
    pub(super) fn reset(&mut self) {
        drop(self.take_failed());
        self.bytes.clear();
        self.misses = 0;
    }

    /// Stores the response that reported the failure of the stream, until it is sent to the client.
    pub(super) fn hold_failed(&mut self, response: &[u8]) {
        (self.bytes, self.form) = (response.to_vec(), EventForm::Failed);
    }

    /// Takes the stored response.
    pub(super) fn take_failed(&mut self) -> Option<Vec<u8>> {
        let held = self.form == EventForm::Failed && !self.bytes.is_empty();
        held.then(|| std::mem::take(&mut self.bytes))
    }

    /// Learns an event: `text` is its text within `data`, which the client got at offset `at` of `sent`. For an event
    /// passed on unchanged, `sent` is only the text: nothing is rendered.
    pub(super) fn learn(&mut self, data: &[u8], text: Span, sent: &[u8], at: usize) {
        self.bytes.clear();
        let (start, end) = (text.start as usize, text.end as usize);
        let worth = self.misses < MISSES_MAX && data.len() <= EVENT_MAX && sent.len() <= SENT_MAX;
        if !worth || sent.get(at..at + text.len()) != data.get(start..end) {
            return;
        }
        self.misses += 1;
        // Exactly the needed bytes: every running stream holds one.
        self.bytes.reserve_exact(data.len() + sent.len() - 2 * text.len());
        for part in [&data[..start], &data[end..], &sent[..at], &sent[at + text.len()..]] {
            self.bytes.extend_from_slice(part);
        }
        (self.prefix, self.suffix, self.sent_prefix) = (start as u16, (data.len() - end) as u16, at as u16);
        self.form = if has_line_end(data) { EventForm::Lines } else { EventForm::Line };
    }

    /// Learns an event that is passed on unchanged: `event` is all of it except the empty line, `data` is its end, and
    /// `holes` are in order.
    pub(super) fn learn_passed(&mut self, event: &[u8], data: &[u8], holes: &[(Span, Hole)]) {
        self.bytes.clear();
        if self.misses == MISSES_MAX || event.len() > EVENT_MAX || holes.len() > HOLES_MAX || has_line_end(data) {
            return;
        }
        self.misses += 1;
        let hollow: usize = holes.iter().map(|(span, _)| span.len()).sum();
        self.bytes.reserve_exact(ENTRY * HOLES_MAX + event.len() - hollow);
        self.bytes.resize(ENTRY * HOLES_MAX, u8::MAX);
        let mut from = 0;
        for (at, (span, hole)) in holes.iter().enumerate() {
            let [low, high] = ((span.start as usize - from) as u16).to_le_bytes();
            self.bytes[ENTRY * at..][..ENTRY].copy_from_slice(&[*hole as u8, low, high]);
            self.bytes.extend_from_slice(&event[from..span.start as usize]);
            from = span.end as usize;
        }
        self.bytes.extend_from_slice(&event[from..]);
        self.form = EventForm::Holes;
    }

    /// The text of an event that equals the template everywhere else.
    pub(super) fn text<'a>(&mut self, data: &'a [u8]) -> Option<&'a [u8]> {
        if self.bytes.is_empty() {
            return None;
        }
        let (prefix, rest) = self.bytes.split_at(usize::from(self.prefix));
        let text = data.strip_prefix(prefix)?.strip_suffix(&rest[..usize::from(self.suffix)])?;
        if !is_string_inside(text) {
            return None;
        }
        self.misses = 0;
        Some(text)
    }

    /// The text of such an event whose data is complete at the front of `buf`, followed by an empty line; and the
    /// length of both.
    #[inline]
    pub(super) fn event<'a>(&mut self, buf: &'a [u8]) -> Option<(&'a [u8], usize)> {
        if self.bytes.is_empty() || self.form != EventForm::Line {
            return None;
        }
        let (prefix, rest) = self.bytes.split_at(usize::from(self.prefix));
        let data = buf.strip_prefix(prefix)?;
        let end = string_end(data, 0)?;
        let behind = data[end..].strip_prefix(&rest[..usize::from(self.suffix)])?.strip_prefix(b"\n\n")?;
        self.misses = 0;
        Some((&data[..end], buf.len() - behind.len()))
    }

    /// The text and length of an event that matches one passed on unchanged.
    #[inline]
    pub(super) fn passed<'a>(&mut self, buf: &'a [u8]) -> Option<(&'a [u8], usize)> {
        if self.bytes.is_empty() || self.form != EventForm::Holes {
            return None;
        }
        let (table, mut same) = self.bytes.split_at(ENTRY * HOLES_MAX);
        let (mut left, mut text) = (buf, &b""[..]);
        for entry in table.chunks_exact(ENTRY) {
            let Some(hole) = Hole::ALL.get(usize::from(entry[0])) else { break };
            let (before, rest) = same.split_at(usize::from(u16::from_le_bytes([entry[1], entry[2]])));
            left = left.strip_prefix(before)?;
            let end = if *hole == Hole::Count { count_end(left)? } else { string_end(left, 0)? };
            if *hole == Hole::Text {
                text = &left[..end];
            }
            (same, left) = (rest, &left[end..]);
        }
        let behind = left.strip_prefix(same)?.strip_prefix(b"\n\n")?;
        self.misses = 0;
        Some((text, buf.len() - behind.len()))
    }

    /// Position of such an event's number, if it has one.
    #[cold]
    pub(super) fn number(&self, event: &[u8]) -> Option<Range<usize>> {
        let mut at = 0;
        for entry in self.bytes.get(..ENTRY * HOLES_MAX)?.chunks_exact(ENTRY) {
            let hole = Hole::ALL.get(usize::from(entry[0]))?;
            at += usize::from(u16::from_le_bytes([entry[1], entry[2]]));
            let left = event.get(at..)?;
            if *hole == Hole::Count {
                return Some(at..at + count_end(left)?);
            }
            at += string_end(left, 0)?;
        }
        None
    }

    /// Appends the client's event with this text.
    pub(super) fn render(&self, text: &[u8], out: &mut Vec<u8>) {
        let sent = &self.bytes[usize::from(self.prefix) + usize::from(self.suffix)..];
        let (before, after) = sent.split_at(usize::from(self.sent_prefix));
        out.extend_from_slice(before);
        out.extend_from_slice(text);
        out.extend_from_slice(after);
    }
}

/// Bytes of `buf` after `begin`. `strip_prefix` would compile to a call for any length.
#[inline]
pub(super) fn behind<'a, const N: usize>(begin: &[u8; N], buf: &'a [u8]) -> Option<&'a [u8]> {
    buf.split_first_chunk().and_then(|(first, rest)| (first == begin).then_some(rest))
}

pub(super) fn has_line_end(data: &[u8]) -> bool {
    to_either(data, 0, b'\n', b'\r') < data.len()
}

/// End of the whole number at the front of `bytes`, in JSON's form.
#[inline]
fn count_end(bytes: &[u8]) -> Option<usize> {
    let end = bytes.iter().position(|byte| !byte.is_ascii_digit())?;
    (end == 1 || (end > 0 && bytes[0] != b'0')).then_some(end)
}
