//! What one look at a whole answer finds: the places of values that may have to be replaced.
//!
//! Owns the words. Must never look at an answer itself. Called by `tap::reply` and `tap::mould`.

use crate::wire::Span;

/// Values that one answer may need replaced; more of them (a name repeated again and again) is no sane answer.
pub(super) const EDITS_MAX: usize = 16;

/// What to write in the place of a value.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Edit {
    Id,
    Model,
    Object,
    Created,
    Usage,
    Prompt,
    Completion,
    Total,
    /// True if a response is stored, and the one before it: never, none (contract section 13).
    Store,
    Previous,
}

impl Edit {
    /// The member's name.
    pub(super) fn key(self) -> &'static str {
        match self {
            Edit::Id => "id",
            Edit::Model => "model",
            Edit::Object => "object",
            Edit::Created => "created",
            Edit::Usage => "usage",
            Edit::Prompt => "prompt_tokens",
            Edit::Completion => "completion_tokens",
            Edit::Total => "total_tokens",
            Edit::Store => "store",
            Edit::Previous => "previous_response_id",
        }
    }
}

/// What one look at an answer found.
pub(super) struct Seen {
    /// The first `count` of them, in order.
    pub(super) places: [(Span, Edit); EDITS_MAX],
    pub(super) count: usize,
    /// One bit for each edit that has a place.
    pub(super) placed: u16,
    pub(super) body: Span,
    pub(super) usage: Option<Span>,
    /// Of a relayed answer: what else may say what was used.
    pub(super) meta: Option<Span>,
    pub(super) error: Option<Span>,
    pub(super) object_is_error: bool,
    /// Its choices, its content, its output, or what a relayed answer lists.
    pub(super) list: Option<Span>,
    /// Reason for the end of an answer without choices: its `stop_reason` or its `status`.
    pub(super) ending: Option<Span>,
}

impl Seen {
    /// Nothing yet.
    pub(super) fn new() -> Seen {
        Seen {
            places: [(Span::default(), Edit::Id); EDITS_MAX],
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

    /// One place more.
    pub(super) fn place(&mut self, value: Span, edit: Edit) {
        if let Some(slot) = self.places.get_mut(self.count) {
            *slot = (value, edit);
        }
        self.placed |= 1 << edit as u16;
        self.count += 1;
    }

    /// The places in order.
    pub(super) fn places(&self) -> &[(Span, Edit)] {
        &self.places[..self.count.min(EDITS_MAX)]
    }

    /// True if there is a place for it, or several.
    pub(super) fn has(&self, edit: Edit) -> bool {
        self.placed & 1 << edit as u16 != 0
    }
}
