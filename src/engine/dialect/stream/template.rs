//! The last event that carried one piece of text and nothing else of interest, split around that text. Most events of a
//! stream differ from the previous one only in their text. Such an event is compared with the template byte for byte,
//! and only its text is read. That takes a tenth of the work of reading it as JSON.
//!
//! Owns the comparison. Must never pass an event that the parser would treat otherwise: prefix and suffix equal those
//! of a parsed event, and the bytes between them are the inside of a JSON string. Called by [`super::SseStream`].

use crate::dialect::answer::Frame;
use crate::wire::Span;
use crate::wire::json::{Raw, string_end, write_count};
use crate::wire::template::BytesTemplate;
use std::ops::Range;

/// Maximum bytes of an event for a template.
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
    /// The client's event up to its text, the event without the values that may differ, and the rest of the client's
    /// event.
    template: BytesTemplate<Hole, { HOLES_MAX + 1 }>,
    /// Place in the latter two at which the client's event continues after its text. Every running stream has a
    /// template, so an end that both events have is kept once.
    sent_end: u16,
    /// The event is passed on unchanged.
    is_passed: bool,
    /// Templates learned since the last match.
    misses: u8,
}

impl EventTemplate {
    /// Bytes of storage for the events.
    #[cfg(test)]
    fn storage(&self) -> usize {
        let (before, rest) = self.template.split();
        before.len() + rest.len()
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

    /// Learns an event with a text at this place in its data. `sent`: the client's event, and the position of the text
    /// in it; `None` if the client gets the event itself.
    pub(super) fn learn(&mut self, frame: &Frame<'_>, text: Span, sent: Option<(&[u8], usize)>) {
        self.forget();
        let (event, data) = (frame.raw, frame.data);
        // Empty if the data arrived in several lines: they are joined elsewhere.
        let inside = Span::of_part(event, data);
        if inside.is_empty() || self.misses >= MISSES_MAX || event.len() > EVENT_MAX {
            return;
        }
        let place = |span: Span| Span { start: inside.start + span.start, end: inside.start + span.end };
        match sent {
            Some((sent, at)) => {
                let is_same = sent.get(at..).is_some_and(|rest| rest.starts_with(text.of(data)));
                if !is_same || sent.len() > SENT_MAX {
                    return;
                }
                let text = place(text);
                let (end, after) = (text.end as usize, &sent[at + text.len()..]);
                let (shared, own) = match after.strip_prefix(&event[end..]) {
                    Some(own) => (end, own),
                    None => (event.len(), after),
                };
                self.template.learn(event, &[(text, Hole::Text)], [&sent[..at], own]);
                self.sent_end = (shared - text.len()) as u16;
            }
            None => {
                let Some((mut holes, count)) = holes(data, text) else { return };
                let holes = &mut holes[..count];
                holes.iter_mut().for_each(|(span, _)| *span = place(*span));
                self.template.learn(event, holes, [b"", b""]);
            }
        }
        self.is_passed = sent.is_none();
        self.misses += 1;
    }

    /// The text of an event at the front of `buf` that equals the template everywhere else, and the event's length.
    #[inline]
    pub(super) fn event<'a>(&mut self, buf: &'a [u8]) -> Option<(&'a [u8], usize)> {
        let (mut text, mut comparison) = (&b""[..], self.template.compare(buf)?);
        while let Some(hole) = comparison.next_hole()? {
            let value = comparison.fill(hole.len(comparison.left)?)?;
            if hole == Hole::Text {
                text = value;
            }
        }
        self.misses = 0;
        Some((text, buf.len() - comparison.left.len()))
    }

    /// Appends the client's event for such an event, with this text.
    #[inline]
    pub(super) fn write(&self, event: &[u8], text: &[u8], out: &mut Vec<u8>) {
        if self.is_passed {
            return out.extend_from_slice(event);
        }
        let (before, rest) = self.template.split();
        out.extend_from_slice(before);
        out.extend_from_slice(text);
        out.extend_from_slice(&rest[usize::from(self.sent_end)..]);
    }

    /// Appends an event that matches and is passed on, with its number raised by `inserted`. A number beyond 32 bits
    /// stays.
    #[cold]
    pub(super) fn write_shifted(&self, event: &[u8], inserted: u16, out: &mut Vec<u8>) {
        let at = self.number(event).unwrap_or_default();
        match Raw::new(&event[at.clone()]).count().and_then(|own| u32::try_from(own).ok()) {
            None => out.extend_from_slice(event),
            Some(own) => {
                out.extend_from_slice(&event[..at.start]);
                write_count(out, own.saturating_add(inserted.into()).into());
                out.extend_from_slice(&event[at.end..]);
            }
        }
    }

    /// Place of such an event's number, if it has one.
    fn number(&self, event: &[u8]) -> Option<Range<usize>> {
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
}

/// The values in which an event that is passed on may differ from the next one, in order, and their number; `None` if
/// there are too many. Besides its text, these are its own number and the padding that hides its length.
fn holes(data: &[u8], text: Span) -> Option<([(Span, Hole); HOLES_MAX], usize)> {
    let (mut holes, mut count) = ([(text, Hole::Text); HOLES_MAX], 1);
    for (name, value) in Raw::new(data).members() {
        let (inside, hole) = match (name, value.string()) {
            (b"obfuscation", Some(inside)) => (inside, Hole::Padding),
            (b"sequence_number", None) if value.count().is_some() => (value.bytes(), Hole::Count),
            _ => continue,
        };
        *holes.get_mut(count)? = (Span::of_part(data, inside), hole);
        count += 1;
    }
    holes[..count].sort_unstable_by_key(|(span, _)| span.start);
    Some((holes, count))
}

/// End of the whole number at the front of `bytes`, in JSON's form.
#[inline]
fn count_end(bytes: &[u8]) -> Option<usize> {
    let end = bytes.iter().position(|byte| !byte.is_ascii_digit())?;
    (end == 1 || (end > 0 && bytes[0] != b'0')).then_some(end)
}

#[cfg(test)]
mod tests;
