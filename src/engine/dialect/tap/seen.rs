//! Results of one scan of a complete answer: positions of values that may have to be replaced.
//!
//! Owns these types. Must never read an answer itself. Called by `tap::reply` and its templates.

use crate::base::words;
use crate::wire::Span;
use crate::wire::json::Raw;

/// Maximum number of replaced values in one answer; an answer with more (a name repeated many times) is invalid.
pub(in crate::dialect) const EDITS_MAX: usize = 16;

words! {
    /// Kind of replacement for a value.
    #[derive(Copy, Clone, PartialEq, Eq, Debug)]
    pub(in crate::dialect) enum Edit {
        Id = "id",
        Model = "model",
        Object = "object",
        Created = "created",
        Usage = "usage",
        Prompt = "prompt_tokens",
        Completion = "completion_tokens",
        Total = "total_tokens",
        /// True if a response is stored, and the id of the previous one; Tollgate stores none.
        Store = "store",
        Previous = "previous_response_id",
    }
}

/// True for a string that is not empty.
pub(in crate::dialect) fn is_word(value: Raw<'_>) -> bool {
    value.string().is_some_and(|word| !word.is_empty())
}

/// Results of one scan of an answer.
pub(in crate::dialect) struct Seen {
    /// The first `count` positions, in order, and what is edited there. Two arrays, because zeros are quickly written.
    spans: [Span; EDITS_MAX],
    edits: [Edit; EDITS_MAX],
    pub(in crate::dialect) count: usize,
    /// Bits of the edits that have a position.
    pub(in crate::dialect) placed: u16,
    pub(in crate::dialect) body: Span,
    pub(in crate::dialect) usage: Option<Span>,
    /// `meta` of a pass-through answer, which may report usage.
    pub(in crate::dialect) meta: Option<Span>,
    pub(in crate::dialect) error: Option<Span>,
    pub(in crate::dialect) object_is_error: bool,
    /// Choices, content or output of the answer, or the list of a pass-through one.
    pub(in crate::dialect) list: Option<Span>,
    /// Reason for the end of an answer without choices: its `stop_reason` or its `status`.
    pub(in crate::dialect) ending: Option<Span>,
}

impl Seen {
    /// Returns the results of an answer that has not been read.
    pub(in crate::dialect) fn new() -> Seen {
        Seen {
            spans: [Span::default(); EDITS_MAX],
            edits: [Edit::Id; EDITS_MAX],
            count: 0,
            placed: 0,
            body: Span::default(),
            usage: None,
            meta: None,
            error: None,
            object_is_error: false,
            list: None,
            ending: None,
        }
    }

    /// Adds a position.
    pub(in crate::dialect) fn place(&mut self, value: Span, edit: Edit) {
        self.set(self.count, value, edit);
        self.placed |= 1 << edit as u16;
        self.count += 1;
    }

    /// Sets the position number `at`, if that is kept.
    pub(in crate::dialect) fn set(&mut self, at: usize, value: Span, edit: Edit) {
        if let (Some(span), Some(slot)) = (self.spans.get_mut(at), self.edits.get_mut(at)) {
            (*span, *slot) = (value, edit);
        }
    }

    /// The positions in order.
    pub(in crate::dialect) fn places(&self) -> impl ExactSizeIterator<Item = (Span, Edit)> {
        let count = self.count.min(EDITS_MAX);
        self.spans[..count].iter().copied().zip(self.edits[..count].iter().copied())
    }

    /// True if the edit has one or more positions.
    pub(in crate::dialect) fn has(&self, edit: Edit) -> bool {
        self.placed & 1 << edit as u16 != 0
    }
}
