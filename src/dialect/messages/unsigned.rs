//! Finds reasoning without a signature in a messages request, which is not sent upstream.
//!
//! Reasoning of a chat upstream reaches messages clients as a `thinking` block with an empty signature. A client sends
//! it back with the conversation, and an upstream that signs its reasoning refuses it. Such an upstream also refuses a
//! block with another target's mark ([`carrier`]).

use crate::dialect::carrier;
use crate::dialect::request::leave::Leave;
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

/// Collects the bytes to omit while the blocks of the messages are read in order.
#[derive(Debug, Default)]
pub(in crate::dialect) struct Unsigned {
    next: NextMember,
    thinking: bool,
    signed: bool,
    leave: Leave,
}

impl Unsigned {
    /// Begins a list of blocks.
    pub(in crate::dialect) fn open_list(&mut self) {
        *self = Unsigned::default();
    }

    /// Begins a block at `start`.
    pub(in crate::dialect) fn open(&mut self, start: u32) {
        (self.thinking, self.signed) = (false, false);
        self.leave.open(start);
    }

    /// Begins a member of the block.
    pub(in crate::dialect) fn key(&mut self, raw: &[u8]) {
        self.next = if eq_unescaped(raw, "type") {
            NextMember::Type
        } else if eq_unescaped(raw, "signature") {
            NextMember::Signature
        } else {
            NextMember::Other
        };
    }

    /// Handles a string value of the member; true if it is the block's type.
    pub(in crate::dialect) fn string(&mut self, raw: &[u8]) -> bool {
        match self.next {
            NextMember::Type => self.thinking = eq_unescaped(raw, "thinking"),
            NextMember::Signature => self.signed = !raw.is_empty() && !carrier::is_ours(raw),
            NextMember::Other => {}
        }
        self.next == NextMember::Type
    }

    /// Ends the block before `end`.
    pub(in crate::dialect) fn close(&mut self, end: u32, cuts: &mut Vec<Span>) {
        self.leave.close(end, self.thinking && !self.signed, cuts);
    }

    /// Ends the list of blocks.
    pub(in crate::dialect) fn close_list(&mut self, cuts: &mut Vec<Span>) {
        self.leave.close_list(cuts);
    }
}
