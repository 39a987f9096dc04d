//! Finds reasoning without a signature in a messages request, to be left out on its way upstream.
//!
//! Reasoning of a chat upstream reaches messages clients as a `thinking` block with an empty signature. A client sends
//! it back with the conversation; an upstream that signs its reasoning refuses it. It also refuses a block with another
//! target's mark ([`carrier`]).

use super::leave::Leave;
use crate::dialect::carrier;
use crate::wire::Span;
use crate::wire::json::eq_unescaped;

/// Next member of a block.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum NextMember {
    Type,
    Signature,
    #[default]
    Other,
}

/// Collects the bytes to leave out while the blocks of one message after the other go by.
#[derive(Debug, Default)]
pub(super) struct Unsigned {
    next: NextMember,
    thinking: bool,
    signed: bool,
    leave: Leave,
}

impl Unsigned {
    /// A list of blocks begins.
    pub(super) fn open_list(&mut self) {
        *self = Unsigned::default();
    }

    /// A block begins at `start`.
    pub(super) fn open(&mut self, start: u32) {
        (self.thinking, self.signed) = (false, false);
        self.leave.open(start);
    }

    /// A member of the block begins.
    pub(super) fn key(&mut self, raw: &[u8]) {
        self.next = if eq_unescaped(raw, "type") {
            NextMember::Type
        } else if eq_unescaped(raw, "signature") {
            NextMember::Signature
        } else {
            NextMember::Other
        };
    }

    /// The member's value is a string; true if it is the block's type.
    pub(super) fn string(&mut self, raw: &[u8]) -> bool {
        match self.next {
            NextMember::Type => self.thinking = eq_unescaped(raw, "thinking"),
            NextMember::Signature => self.signed = !raw.is_empty() && !carrier::is_ours(raw),
            NextMember::Other => {}
        }
        self.next == NextMember::Type
    }

    /// The block ends before `end`.
    pub(super) fn close(&mut self, end: u32, cuts: &mut Vec<Span>) {
        self.leave.close(end, self.thinking && !self.signed, cuts);
    }

    /// The list of blocks ends.
    pub(super) fn close_list(&mut self, cuts: &mut Vec<Span>) {
        self.leave.close_list(cuts);
    }
}
