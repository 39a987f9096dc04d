//! Finds reasoning without a signature in a messages request, which is not sent upstream.
//!
//! Reasoning of a chat upstream reaches messages clients as a `thinking` block with an empty signature. A client sends
//! it back with the conversation, and an upstream that signs its reasoning refuses it. Such an upstream also refuses a
//! block with another target's mark ([`carrier`]), and a message without blocks.

use crate::dialect::neutral::carrier;
use crate::dialect::request::leave::Leave;
use crate::dialect::request::{Fields, Name};
use crate::wire::Span;
use crate::wire::json::{Raw, eq_unescaped, has_escape};
use std::borrow::Cow;

/// Next member of a block.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum NextMember {
    Type,
    Signature,
    Data,
    #[default]
    Other,
}

/// Collects the bytes to omit while the blocks of the messages are read in order.
#[derive(Debug, Default)]
pub struct Unsigned {
    next: NextMember,
    thinking: bool,
    signed: bool,
    /// Its `data` is a carrier.
    ours: bool,
    leave: Leave,
}

impl Unsigned {
    /// Begins a block at `start`.
    pub fn open(&mut self, start: u32) {
        (self.thinking, self.signed, self.ours) = (false, false, false);
        self.leave.open(start);
    }

    /// Begins a member of the block.
    pub fn key(&mut self, raw: &[u8]) {
        self.next = match raw {
            b"type" => NextMember::Type,
            b"signature" => NextMember::Signature,
            b"data" => NextMember::Data,
            _ if !has_escape(raw) => NextMember::Other,
            _ if eq_unescaped(raw, "type") => NextMember::Type,
            _ if eq_unescaped(raw, "signature") => NextMember::Signature,
            _ if eq_unescaped(raw, "data") => NextMember::Data,
            _ => NextMember::Other,
        };
    }

    /// Handles a string value of the member; true if it is the block's type.
    pub fn string(&mut self, raw: &[u8]) -> bool {
        match self.next {
            NextMember::Type => self.thinking = eq_unescaped(raw, "thinking"),
            NextMember::Signature => self.signed = !raw.is_empty() && !carrier::is_ours(raw),
            NextMember::Data => self.ours = carrier::is_ours(raw),
            NextMember::Other => {}
        }
        self.next == NextMember::Type
    }

    /// Ends the block before `end`.
    pub fn close(&mut self, end: u32, cuts: &mut Vec<Span>) {
        self.leave.close(end, (self.thinking && !self.signed) || self.ours, cuts);
    }

    /// Ends the list of blocks.
    pub fn close_list(&mut self, cuts: &mut Vec<Span>) {
        self.leave.close_list(cuts);
    }
}

/// The cuts of a request, with a whole message in the place of all its blocks.
pub fn cuts<'a>(body: &[u8], fields: &'a Fields) -> Cow<'a, [Span]> {
    let span = |value: Raw<'_>| Span::of_part(body, value.bytes());
    let list = fields.members.iter().find(|member| member.name == Name::Messages);
    let (mut leave, mut whole) = (Leave::default(), Vec::new());
    for message in list.map_or(Raw::NULL, |list| Raw::new(list.value.of(body))).items() {
        let mut blocks = message.get("content").unwrap_or(Raw::NULL).items().map(span);
        let is_empty = blocks.next().is_some_and(|first| {
            let cut = fields.cuts.binary_search_by_key(&first.start, |cut| cut.start).map(|at| fields.cuts[at].end);
            cut == Ok(blocks.last().unwrap_or(first).end)
        });
        leave.item(span(message), is_empty, &mut whole);
    }
    leave.close_list(&mut whole);
    if whole.is_empty() {
        return Cow::Borrowed(&fields.cuts);
    }
    let is_inside = |cut: &Span| {
        let before = whole.partition_point(|whole| whole.end <= cut.start);
        whole.get(before).is_some_and(|whole| whole.start <= cut.start)
    };
    let mut cuts: Vec<Span> = fields.cuts.iter().filter(|cut| !is_inside(cut)).copied().collect();
    cuts.extend_from_slice(&whole);
    cuts.sort_unstable_by_key(|cut| cut.start);
    Cow::Owned(cuts)
}
