//! Removes members of a response that repeat parameters from the configuration: an operator's settings must not be
//! visible to clients.
//!
//! Owns their removal. Must never touch an answer of a model without such parameters. Called for the output of
//! `relay::event` and `relay::answer`.

use crate::dialect::capabilities::Param;
use crate::dialect::request::Leave;
use crate::dialect::translate::cut;
use crate::wire::Span;
use crate::wire::json::{Raw, eq_unescaped};

/// Removes the members in `hides` from the response at `from` of `out`, or from the response inside the event there
/// (`carried`).
pub fn hide(hides: &[Param], carried: bool, from: usize, out: &mut Vec<u8>) {
    if hides.is_empty() {
        return;
    }
    let document = Raw::new(&out[from..]);
    let mut cuts = Vec::new();
    let mut leave = |response: Raw<'_>| {
        let mut leave = Leave::default();
        for (name, value) in response.members() {
            // Including its quote.
            let start = Span::of_part(out, name).start - 1;
            let member = Span { start, end: Span::of_part(out, value.bytes()).end };
            leave.item(member, hides.iter().any(|param| eq_unescaped(name, &param.name)), &mut cuts);
        }
        leave.close_list(&mut cuts);
    };
    match carried {
        false => leave(document),
        true => document.members().filter(|(name, _)| eq_unescaped(name, "response")).for_each(|(_, own)| leave(own)),
    }
    cut(out, &cuts);
}
