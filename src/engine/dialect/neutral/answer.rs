//! A complete answer in the neutral form between the formats.

use crate::dialect::neutral::JsonText;
use crate::dialect::neutral::arguments::Arguments;
use crate::dialect::neutral::delta::StopReason;
use crate::dialect::neutral::naming::JSON_TOOL;
use crate::dialect::tokens::Estimator;
use crate::dialect::usage::Reported;
use crate::wire::json::{Raw, eq_unescaped};

/// Members of a complete answer, in any format.
pub(in crate::dialect) struct AnswerMembers<'a> {
    pub(in crate::dialect) body: Raw<'a>,
    /// Its content, and the reason for its end.
    pub(in crate::dialect) list: Raw<'a>,
    pub(in crate::dialect) ending: Raw<'a>,
    pub(in crate::dialect) usage: Raw<'a>,
    pub(in crate::dialect) sequence: Option<Raw<'a>>,
    pub(in crate::dialect) details: Option<Raw<'a>>,
    /// The client receives the reasoning, to send it back.
    pub(in crate::dialect) keeps: bool,
}

/// A complete answer in the neutral form.
#[derive(Default)]
pub(in crate::dialect) struct NeutralAnswer<'a> {
    pub(in crate::dialect) parts: Vec<AnswerPart<'a>>,
    pub(in crate::dialect) reason: StopReason,
    pub(in crate::dialect) sequence: Option<&'a [u8]>,
    pub(in crate::dialect) explanation: Option<&'a [u8]>,
    pub(in crate::dialect) reported: Reported,
    /// The client has the same format, so that reasoning needs no carrier.
    pub(in crate::dialect) native: bool,
}

/// A part of the answer.
pub(in crate::dialect) enum AnswerPart<'a> {
    Text(JsonText<'a>),
    Refusal(&'a [u8]),
    /// Reasoning: its text, and as JSON the part that its target must get back.
    Thought(Vec<&'a [u8]>, Option<Vec<u8>>),
    /// A call: id, name, arguments.
    Call(&'a [u8], &'a [u8], Arguments<'a>),
}

impl<'a> NeutralAnswer<'a> {
    /// Turns the call of the tool that replaces required JSON into text: its arguments are the answer. The answer has
    /// one, so further calls of that tool are left out.
    pub(in crate::dialect) fn unwrap_json(&mut self) {
        let is_it =
            |part: &AnswerPart<'_>| matches!(part, AnswerPart::Call(_, name, _) if eq_unescaped(name, JSON_TOOL));
        let Some(at) = self.parts.iter().position(is_it) else { return };
        if let AnswerPart::Call(_, _, arguments) = &self.parts[at] {
            self.parts[at] = AnswerPart::Text(arguments.text());
            self.parts.retain(|part| !is_it(part));
            if self.reason == StopReason::Tools {
                self.reason = StopReason::End;
            }
        }
    }

    /// True if a tool is called.
    pub(in crate::dialect) fn calls(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, AnswerPart::Call(..)))
    }

    /// True if a part of it is a refusal.
    pub(in crate::dialect) fn refuses(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, AnswerPart::Refusal(_)))
    }

    /// Estimated tokens of all relayed parts.
    pub(in crate::dialect) fn relayed(&self) -> u64 {
        let mut relayed = Estimator::new();
        for part in &self.parts {
            match part {
                AnswerPart::Text(text) => relayed.feed_json(text),
                AnswerPart::Refusal(text) => relayed.feed_json(text),
                AnswerPart::Thought(texts, _) => texts.iter().for_each(|text| relayed.feed_json(text)),
                AnswerPart::Call(_, name, arguments) => {
                    relayed.cut();
                    relayed.feed_json(name);
                    relayed.feed_json(&arguments.text());
                }
            }
        }
        relayed.tokens()
    }
}
