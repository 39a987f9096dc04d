//! Removes members of a response that repeat parameters from the configuration: an operator's settings must not be
//! visible to clients.
//!
//! Owns their removal. Must never touch an answer of a model without such parameters. Called for the output of
//! `tap::event` and `tap::reply`.

use crate::dialect::capabilities::Param;
use crate::dialect::request::Leave;
use crate::dialect::requests::cut;
use crate::wire::json::{Raw, eq_unescaped};

/// Removes the members in `hides` from the response at `from` of `out`, or from the response inside the event there
/// (`carried`).
pub(in crate::dialect) fn hide(hides: &[Param], carried: bool, from: usize, out: &mut Vec<u8>) {
    if hides.is_empty() {
        return;
    }
    let document = Raw::new(&out[from..]);
    let base = out.as_ptr() as usize;
    let mut cuts = Vec::new();
    let mut leave = |response: Raw<'_>| {
        let mut leave = Leave::default();
        for (name, value) in response.members() {
            let value = value.bytes();
            // Including its quote.
            leave.open((name.as_ptr() as usize - base - 1) as u32);
            let end = value.as_ptr() as usize + value.len() - base;
            leave.close(end as u32, hides.iter().any(|param| eq_unescaped(name, &param.name)), &mut cuts);
        }
        leave.close_list(&mut cuts);
    };
    match carried {
        false => leave(document),
        true => document.members().filter(|(name, _)| eq_unescaped(name, "response")).for_each(|(_, own)| leave(own)),
    }
    let cuts: Vec<(usize, usize)> = cuts.iter().map(|cut| (cut.start as usize, cut.end as usize)).collect();
    cut(out, &cuts);
}
