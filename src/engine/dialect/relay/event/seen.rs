//! Results of one scan of an event within one format; writes the event with Tollgate's identity in it.
//!
//! Owns the choice of values to replace. Must never scan an event itself. Used by [`super::Tap`].

use super::super::own::{Own, OwnValues, OwnWriter, Places, is_word};
use crate::wire::Span;
use crate::wire::json::Raw;

/// Results of one scan of an event's data.
#[derive(Default)]
pub(super) struct EventScan {
    pub(super) places: Places,
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
}

impl EventScan {
    /// Replaces the usage by null if the client gets none (`hides`), a count that lacks the reasoning by the count that
    /// the provider bills, an `object` that is not a string, a `created` that differs from that of earlier chunks, and
    /// `choices` that are null.
    pub(super) fn correct(&mut self, hides: bool, output: Option<u64>, created: u32, data: &[u8]) {
        if hides {
            self.completion = None;
            let usages = [self.usage, self.choice_usage].into_iter().flatten();
            usages.for_each(|span| self.places.add(span, Own::Usage));
        }
        if let (Some(output), Some(span)) = (output, self.completion) {
            let is_inside = self.usage.is_some_and(|usage| usage.start < span.start && span.end < usage.end);
            if is_inside && Raw::new(span.of(data)).count() != Some(output) {
                self.places.add(span, Own::Completion);
            }
        }
        if let Some(span) = self.kind.filter(|span| !is_word(Raw::new(span.of(data)))) {
            self.places.add(span, Own::Object);
        }
        let is_other = |span: &Span| Raw::new(span.of(data)).count() != Some(created.into());
        if let Some(span) = self.created.filter(is_other) {
            self.places.add(span, Own::Created);
        }
        if let Some(span) = self.choices.filter(|span| Raw::new(span.of(data)).is_null()) {
            self.places.add(span, Own::Choices);
        }
    }

    /// True if the event lacks the member `own`.
    fn lacks(&self, own: Own) -> bool {
        match own {
            Own::Object => self.kind.is_none(),
            Own::Created => self.created.is_none(),
            Own::Choices => self.choices.is_none(),
            _ => !self.places.iter().any(|(span, there)| there == own && span.start > self.object.start),
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
    /// readers; earlier ones are replaced, too. Returns the position of the event's text in the output.
    pub(super) fn write(&self, data: &[u8], members: &[Own], values: OwnValues<'_>, out: &mut Vec<u8>) -> usize {
        let mut writer = OwnWriter::new(data, self.text.start as usize, values, out);
        let is_former = |(span, _): &(Span, Own)| span.start <= self.object.start;
        self.places.iter().filter(is_former).for_each(|(span, own)| writer.replace(span, own));
        writer.add(self.object, members.iter().copied().filter(|own| self.lacks(*own)));
        self.places.iter().filter(|place| !is_former(place)).for_each(|(span, own)| writer.replace(span, own));
        writer.end()
    }
}
