//! Results of one scan of an event within one format; writes the event with Tollgate's identity in it.
//!
//! Owns the positions of values to replace. Must never scan an event itself. Used by [`super::Tap`].

use super::super::super::answer::ResponseIdentity;
use super::super::seen::is_word;
use crate::wire::Span;
use crate::wire::json::{Raw, put, write_count, write_inside};

/// Maximum number of replaced values in one event; an event with more (a name repeated many times) is invalid.
pub(super) const SPLICES_MAX: usize = 8;

/// Members with the upstream's identity, which Tollgate replaces.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Own {
    Id,
    Model,
    /// Type of the object, in a chunk.
    Object(&'static str),
    /// Time of the answer in seconds since the epoch, in a chunk.
    Created(u32),
    /// Choices, in a chunk that has none.
    Choices,
    /// True if a response is stored; Tollgate stores none.
    Store,
    /// The previous response, which would be a stored one.
    Previous,
    /// Completion tokens, if reasoning was counted separately.
    Completion(u64),
    /// Usage that the client did not ask for.
    Usage,
}

impl Own {
    fn key(self) -> &'static str {
        match self {
            Own::Id => "\"id\":",
            Own::Model => "\"model\":",
            Own::Object(_) => "\"object\":",
            Own::Created(_) => "\"created\":",
            Own::Choices => "\"choices\":",
            Own::Store => "\"store\":",
            Own::Previous => "\"previous_response_id\":",
            Own::Completion(_) => "\"completion_tokens\":",
            Own::Usage => "\"usage\":",
        }
    }

    fn write(self, me: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
        match self {
            Own::Id => write_inside(out, me.id),
            Own::Model => put!(out, me.model()),
            Own::Object(name) => write_inside(out, name.as_bytes()),
            Own::Created(seconds) => write_count(out, seconds.into()),
            Own::Choices => out.extend_from_slice(b"[]"),
            Own::Store => out.extend_from_slice(b"false"),
            Own::Previous | Own::Usage => out.extend_from_slice(b"null"),
            Own::Completion(tokens) => write_count(out, tokens),
        }
    }
}

/// Members that a message and a response must have.
pub(super) const NAMES: &[Own] = &[Own::Id, Own::Model];

/// Results of one scan of an event's data.
#[derive(Default)]
pub(super) struct EventScan {
    pub(super) splices: [Option<(Span, Own)>; SPLICES_MAX],
    pub(super) count: usize,
    pub(super) object: Span,
    pub(super) kind: Option<Span>,
    pub(super) usage: Option<Span>,
    /// The last usage inside a choice, and the last count of completion tokens in the usage itself.
    pub(super) choice_usage: Option<Span>,
    pub(super) completion: Option<Span>,
    /// The event has a `cost` of the provider, which no client gets.
    pub(super) own_cost: bool,
    pub(super) error: Option<Span>,
    /// A delta may have output of the model in members that are not the format's.
    pub(super) has_others: bool,
    /// A delta has more than its role and text.
    pub(super) has_more: bool,
    pub(super) choices: Option<Span>,
    pub(super) created: Option<Span>,
    pub(super) number: Option<Span>,
    /// First the number of values that may be finish reasons or errors of choices; then the number of finish reasons
    /// among them. In an answer with several texts they arrive one by one.
    pub(super) finishes: u32,
    /// Number of texts that count as relayed; then the last of them, without its quotes.
    pub(super) texts: u32,
    pub(super) text: Span,
    /// Position in the output at which that text begins; see [`EventScan::write`].
    pub(super) text_at: usize,
}

impl EventScan {
    pub(super) fn splice(&mut self, value: Span, own: Own) {
        if let Some(slot) = self.splices.get_mut(self.count) {
            *slot = Some((value, own));
        }
        self.count += 1;
    }

    /// Replaces the usage by null.
    pub(super) fn hide_usage(&mut self) {
        self.completion = None;
        for span in [self.usage, self.choice_usage].into_iter().flatten() {
            self.splice(span, Own::Usage);
        }
        self.sort();
    }

    fn sort(&mut self) {
        let count = self.count.min(SPLICES_MAX);
        self.splices[..count].sort_by_key(|splice| splice.map(|(span, _)| span.start));
    }

    /// Replaces a count that lacks the reasoning by the count that the provider bills, an `object` that is not a
    /// string, a `created` that differs from that of earlier chunks, and `choices` that are null.
    pub(super) fn correct(&mut self, output: Option<u64>, object: &'static str, created: u32, data: &[u8]) {
        let count = self.count;
        if let (Some(output), Some(span)) = (output, self.completion) {
            let is_inside = self.usage.is_some_and(|usage| usage.start < span.start && span.end < usage.end);
            if is_inside && Raw::new(span.of(data)).count() != Some(output) {
                self.splice(span, Own::Completion(output));
            }
        }
        if let Some(span) = self.kind.filter(|span| !is_word(Raw::new(span.of(data)))) {
            self.splice(span, Own::Object(object));
        }
        let is_other = |span: &Span| Raw::new(span.of(data)).count() != Some(created.into());
        if let Some(span) = self.created.filter(is_other) {
            self.splice(span, Own::Created(created));
        }
        if let Some(span) = self.choices.filter(|span| Raw::new(span.of(data)).is_null()) {
            self.splice(span, Own::Choices);
        }
        if self.count > count {
            self.sort();
        }
    }

    /// True if the event lacks the member `own`.
    fn lacks(&self, own: Own) -> bool {
        match own {
            Own::Object(_) => self.kind.is_none(),
            Own::Created(_) => self.created.is_none(),
            Own::Choices => self.choices.is_none(),
            _ => {
                let inside = self.object.start;
                !self.splices.iter().flatten().any(|(span, there)| *there == own && span.start > inside)
            }
        }
    }

    #[inline]
    pub(super) fn value<'a>(&self, span: Option<Span>, data: &'a [u8]) -> Option<Raw<'a>> {
        span.map(|span| Raw::new(span.of(data)))
    }

    /// True if one text is the event's only relevant value: a later event that differs only in its text is treated the
    /// same.
    pub(super) fn is_text_alone(&self) -> bool {
        let has_usage = self.own_cost || self.usage.or(self.choice_usage).is_some();
        self.texts == 1 && !has_usage && self.finishes == 0 && !self.text.is_empty()
    }

    /// Appends `data` with `members` replaced, or added if missing. Of a repeated object the last one counts for
    /// readers; earlier ones are replaced, too.
    pub(super) fn write(&mut self, data: &[u8], members: &[Own], me: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
        let inside = self.object.start as usize + 1;
        let splices = self.splices;
        let is_former = |span: &Span| (span.start as usize) < inside;
        let mut from = 0;
        for (span, own) in splices.iter().flatten().filter(|(span, _)| is_former(span)) {
            from = self.replace(from, *span, *own, me, data, out);
        }
        from = self.copy(from, inside, data, out);
        let mut comma = false;
        for own in members {
            if self.lacks(*own) {
                out.extend_from_slice(if comma { b"," } else { b"" });
                out.extend_from_slice(own.key().as_bytes());
                own.write(me, out);
                comma = true;
            }
        }
        if comma && Raw::new(self.object.of(data)).members().next().is_some() {
            out.push(b',');
        }
        for (span, own) in splices.iter().flatten().filter(|(span, _)| !is_former(span)) {
            from = self.replace(from, *span, *own, me, data, out);
        }
        self.copy(from, data.len(), data, out);
    }

    #[inline]
    fn replace(
        &mut self,
        from: usize,
        span: Span,
        own: Own,
        me: &ResponseIdentity<'_>,
        data: &[u8],
        out: &mut Vec<u8>,
    ) -> usize {
        self.copy(from, span.start as usize, data, out);
        own.write(me, out);
        span.end as usize
    }

    /// Copies a part of `data` and notes the new position of its text.
    #[inline]
    fn copy(&mut self, from: usize, to: usize, data: &[u8], out: &mut Vec<u8>) -> usize {
        let text = self.text.start as usize;
        if (from..to).contains(&text) {
            self.text_at = out.len() + text - from;
        }
        out.extend_from_slice(&data[from..to]);
        to
    }
}
