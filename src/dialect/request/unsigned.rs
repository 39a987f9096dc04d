//! Finds reasoning without a signature in a messages request, to be left out on its way upstream.
//!
//! Reasoning that a chat upstream gave is told to messages clients as a `thinking` block with an empty signature. A
//! client sends it back with the conversation; an upstream that signs its reasoning refuses it (`wire-formats` 3.10).

use crate::wire::Span;
use crate::wire::json::eq_unescaped;

/// Which member of a block comes next.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum Next {
    Type,
    Signature,
    #[default]
    Other,
}

/// Collects the bytes to leave out while the blocks of one message after the other go by.
#[derive(Debug, Default)]
pub(super) struct Unsigned {
    next: Next,
    thinking: bool,
    signed: bool,
    /// Where the block under way begins.
    start: u32,
    /// Where the last block ended, and the last one that stays.
    end: u32,
    kept: Option<u32>,
    /// Where a block to leave out began, no block before it having stayed.
    pending: Option<u32>,
}

impl Unsigned {
    /// A list of blocks begins.
    pub(super) fn open_list(&mut self) {
        *self = Unsigned::default();
    }

    /// A block begins at `start`.
    pub(super) fn open(&mut self, start: u32) {
        (self.start, self.thinking, self.signed) = (start, false, false);
    }

    /// A member of the block begins.
    pub(super) fn key(&mut self, raw: &[u8]) {
        self.next = if eq_unescaped(raw, "type") {
            Next::Type
        } else if eq_unescaped(raw, "signature") {
            Next::Signature
        } else {
            Next::Other
        };
    }

    /// The member's value is a string; true if it is the block's type.
    pub(super) fn string(&mut self, raw: &[u8]) -> bool {
        match self.next {
            Next::Type => self.thinking = eq_unescaped(raw, "thinking"),
            Next::Signature => self.signed = !raw.is_empty(),
            Next::Other => {}
        }
        self.next == Next::Type
    }

    /// The block ends before `end`. A comma goes with it: the one before it, or where nothing before it stays the one
    /// after it.
    pub(super) fn close(&mut self, end: u32, cuts: &mut Vec<Span>) {
        self.end = end;
        if !self.thinking || self.signed {
            if let Some(start) = self.pending.take() {
                cuts.push(Span { start, end: self.start });
            }
            self.kept = Some(end);
            return;
        }
        match (self.kept, cuts.last_mut()) {
            (Some(kept), Some(last)) if last.start == kept => last.end = end,
            (Some(kept), _) => cuts.push(Span { start: kept, end }),
            (None, _) => self.pending = self.pending.or(Some(self.start)),
        }
    }

    /// The list of blocks ends.
    pub(super) fn close_list(&mut self, cuts: &mut Vec<Span>) {
        if let Some(start) = self.pending.take() {
            cuts.push(Span { start, end: self.end });
        }
    }
}
