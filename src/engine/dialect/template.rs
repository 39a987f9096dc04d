//! The last event that carried one piece of text and nothing else of interest, split around that text. Most events of a
//! stream differ from the previous one only in their text. Such an event is compared with the template byte for byte,
//! and only its text is read. That takes a tenth of the work of reading it as JSON.
//!
//! Owns the comparison. Must never pass an event that the parser would treat otherwise: prefix and suffix equal those
//! of a parsed event, and the bytes between them are the inside of a JSON string. Called by `tap::event` and `convert`.

use crate::wire::Span;
use crate::wire::json::string_end;
use crate::wire::template::BytesTemplate;
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
    /// Length of the value of this kind at the front of `bytes`.
    #[inline(always)]
    fn len(self, bytes: &[u8]) -> Option<usize> {
        match self {
            Hole::Count => count_end(bytes),
            Hole::Text | Hole::Padding => string_end(bytes, 0),
        }
    }
}

/// See the top of this file.
#[derive(Debug, Default)]
pub(super) struct EventTemplate {
    /// Bytes that only the client's event begins with, the event without the text, and bytes that only the client's
    /// event ends with. Every running stream has a template, so bytes that both events have around the text are kept
    /// once.
    template: BytesTemplate<Hole, { HOLES_MAX + 1 }>,
    /// Places in the latter two that belong to the client's event: the end of the bytes before the text, and all from
    /// the last place on.
    shared: [u16; 2],
    sent_end: u16,
    /// The event is one line. Otherwise its data spans several lines and is compared after they are joined.
    is_line: bool,
    /// Templates learned since the last match.
    misses: u8,
}

impl EventTemplate {
    /// Bytes of storage for the events.
    #[cfg(test)]
    pub(super) fn storage(&self) -> usize {
        let (own, bytes) = self.template.split();
        own.len() + bytes.len()
    }

    /// Forgets the template.
    pub(super) fn forget(&mut self) {
        self.template.forget();
    }

    /// Resets it for another stream and keeps the storage.
    pub(super) fn reset(&mut self) {
        self.template.forget();
        self.misses = 0;
    }

    /// Learns an event: `text` is its text within `data`, which the client got at offset `at` of `sent`. For an event
    /// passed on unchanged, `sent` is only the text: nothing is rendered.
    pub(super) fn learn(&mut self, data: &[u8], text: Span, sent: &[u8], at: usize) {
        self.forget();
        let is_same = sent.get(at..at + text.len()) == Some(text.of(data));
        if is_same && sent.len() <= SENT_MAX && self.is_worth(data) {
            let (before, after) = (&data[..text.start as usize], &data[text.end as usize..]);
            let (sent_before, sent_after) = (&sent[..at], &sent[at + text.len()..]);
            let common = before.iter().rev().zip(sent_before.iter().rev()).take_while(|(one, other)| one == other);
            let begin = common.count();
            let (own, rest) = match sent_after.strip_prefix(after) {
                Some(rest) => (before.len(), rest),
                None => (before.len() + after.len(), sent_after),
            };
            self.template.learn(data, &[(text, Hole::Text)], [&sent_before[..at - begin], rest]);
            self.shared = [(before.len() - begin) as u16, before.len() as u16];
            (self.sent_end, self.is_line) = (own as u16, !has_line_end(data));
        }
    }

    /// Learns an event that is passed on unchanged: `event` is all of it except the empty line, `data` is its end, and
    /// `holes` are in order.
    pub(super) fn learn_passed(&mut self, event: &[u8], data: &[u8], holes: &[(Span, Hole)]) {
        self.forget();
        if holes.len() <= HOLES_MAX && !has_line_end(data) && self.is_worth(event) {
            self.template.learn(event, holes, [b"", b""]);
            self.is_line = true;
        }
    }

    /// True if an event should be learned.
    fn is_worth(&mut self, event: &[u8]) -> bool {
        let is_worth = self.misses < MISSES_MAX && event.len() <= EVENT_MAX;
        self.misses += u8::from(is_worth);
        is_worth
    }

    /// The text of an event that equals the template everywhere else.
    pub(super) fn text<'a>(&mut self, data: &'a [u8]) -> Option<&'a [u8]> {
        let (text, behind) = self.only_text(data)?;
        if !behind.is_empty() {
            return None;
        }
        self.misses = 0;
        Some(text)
    }

    /// The text of such an event whose data is complete at the front of `buf`, followed by an empty line; and the
    /// length of both.
    #[inline]
    pub(super) fn event<'a>(&mut self, buf: &'a [u8]) -> Option<(&'a [u8], usize)> {
        if !self.is_line {
            return None;
        }
        let (text, behind) = self.only_text(buf)?;
        let behind = behind.strip_prefix(b"\n\n")?;
        self.misses = 0;
        Some((text, buf.len() - behind.len()))
    }

    /// The text of an event at the front of `buf` that differs in nothing else, and the bytes after the event.
    #[inline(always)]
    fn only_text<'a>(&self, buf: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let mut comparison = self.template.compare(buf)?;
        let is_text = comparison.next_hole()? == Some(Hole::Text);
        let text = comparison.fill(string_end(comparison.left, 0)?)?;
        (is_text && comparison.next_hole()?.is_none()).then_some((text, comparison.left))
    }

    /// The text and length of an event that matches one passed on unchanged.
    #[inline]
    pub(super) fn passed<'a>(&mut self, buf: &'a [u8]) -> Option<(&'a [u8], usize)> {
        let (mut text, mut comparison) = (&b""[..], self.template.compare(buf)?);
        while let Some(hole) = comparison.next_hole()? {
            let value = comparison.fill(hole.len(comparison.left)?)?;
            if hole == Hole::Text {
                text = value;
            }
        }
        let behind = comparison.left.strip_prefix(b"\n\n")?;
        self.misses = 0;
        Some((text, buf.len() - behind.len()))
    }

    /// Position of such an event's number, if it has one.
    #[cold]
    pub(super) fn number(&self, event: &[u8]) -> Option<Range<usize>> {
        let mut comparison = self.template.compare(event)?;
        while let Some(hole) = comparison.next_hole()? {
            let (at, len) = (event.len() - comparison.left.len(), hole.len(comparison.left)?);
            if hole == Hole::Count {
                return Some(at..at + len);
            }
            comparison.fill(len)?;
        }
        None
    }

    /// Appends the client's event with this text.
    pub(super) fn render(&self, text: &[u8], out: &mut Vec<u8>) {
        let (own, bytes) = self.template.split();
        let [begin, end] = self.shared.map(usize::from);
        out.extend_from_slice(own);
        out.extend_from_slice(&bytes[begin..end]);
        out.extend_from_slice(text);
        out.extend_from_slice(&bytes[usize::from(self.sent_end)..]);
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
