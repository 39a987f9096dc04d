//! The tool that replaces required JSON, for a model without an output format.
//!
//! Owns the way back: the arguments of its call are the text of the answer. Must never show the call to a client.

use crate::dialect::neutral::delta::{Delta, StopReason};
use crate::dialect::neutral::naming::JSON_TOOL;
use crate::wire::json::eq_unescaped;

/// The call of that tool in one answer.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct JsonTool {
    /// The request has the tool.
    is_offered: bool,
    /// The call whose arguments are the answer's text.
    pub(crate) slot: Option<usize>,
    /// A bit for each further call of the tool, which is left out: an answer has one text.
    left_out: u128,
}

impl JsonTool {
    /// `is_offered`: the request has the tool.
    pub(crate) fn new(is_offered: bool) -> JsonTool {
        JsonTool { is_offered, ..JsonTool::default() }
    }

    /// Turns the call of the tool into text.
    pub(crate) fn unwrap<'a>(&mut self, delta: Delta<'a>) -> Delta<'a> {
        if !self.is_offered {
            return delta;
        }
        match delta {
            Delta::ToolOpen { slot, name, .. } if eq_unescaped(name, JSON_TOOL) => {
                if *self.slot.get_or_insert(slot) != slot {
                    self.left_out |= 1 << slot;
                }
                Delta::Start
            }
            Delta::ToolArgs { slot, .. } | Delta::ToolClose { slot } if self.left_out >> slot & 1 == 1 => Delta::Start,
            Delta::ToolArgs { slot, json } if self.slot == Some(slot) => Delta::Text(json),
            Delta::ToolClose { slot } if self.slot == Some(slot) => Delta::Start,
            Delta::Stop { reason: StopReason::Tools, sequence, explanation } if self.slot.is_some() => {
                Delta::Stop { reason: StopReason::End, sequence, explanation }
            }
            other => other,
        }
    }
}
