//! A complete answer, collected from the deltas of a reader.
//!
//! Owns the joining of the deltas to parts. Must never be written before the reader is done: an answer may still fail.

use crate::dialect::answer::StreamFault;
use crate::dialect::neutral::JsonText;
use crate::dialect::neutral::delta::{Delta, StopReason, Take};
use crate::dialect::neutral::json_tool::JsonTool;
use crate::dialect::tokens::Estimator;
use crate::dialect::usage::Reported;
use std::borrow::Cow;

/// A part of an answer.
pub(crate) enum AnswerPart<'a> {
    Text(JsonText<'a>),
    Refusal(Vec<u8>),
    /// Reasoning, and as JSON the part that its target must get back.
    Reasoning {
        text: Vec<u8>,
        block: Option<Vec<u8>>,
        is_done: bool,
    },
    Call {
        id: Vec<u8>,
        name: Vec<u8>,
        json: Vec<u8>,
    },
}

/// A complete answer.
#[derive(Default)]
pub(crate) struct WholeAnswer<'a> {
    pub(crate) parts: Vec<AnswerPart<'a>>,
    /// The part of each call.
    calls: Vec<usize>,
    json_tool: JsonTool,
    stopped: bool,
    pub(crate) reason: StopReason,
    pub(crate) sequence: Option<Vec<u8>>,
    pub(crate) explanation: Option<Vec<u8>>,
    /// Usage that it reports.
    pub(crate) reported: Reported,
    /// Text or a call follows the last report.
    goes_on: bool,
    /// Address and length of the last text that was read.
    pub(super) last_text: (usize, usize),
    /// The client has the same format, so that reasoning needs no carrier.
    pub(crate) native: bool,
}

impl Take for WholeAnswer<'_> {
    fn take(&mut self, delta: Delta<'_>) -> Result<(), StreamFault> {
        let delta = self.json_tool.unwrap(delta);
        self.goes_on |= delta.text().is_some() || matches!(delta, Delta::ToolOpen { .. });
        match delta {
            Delta::Text(text) => self.text(text),
            Delta::Refuse(text) => match self.parts.last_mut() {
                Some(AnswerPart::Refusal(before)) => before.extend_from_slice(text),
                _ => self.parts.push(AnswerPart::Refusal(text.to_vec())),
            },
            Delta::Reasoning(text) => self.think(text, None),
            Delta::ReasoningEnd { block: Some(block) } => self.think(b"", Some(block.to_vec())),
            Delta::ReasoningEnd { block: None } => {
                if let Some(AnswerPart::Reasoning { is_done, .. }) = self.parts.last_mut() {
                    *is_done = true;
                }
            }
            Delta::ToolOpen { slot, id, name } => {
                self.calls.resize(self.calls.len().max(slot + 1), usize::MAX);
                self.calls[slot] = self.parts.len();
                let (id, name) = (id.to_vec(), name.to_vec());
                self.parts.push(AnswerPart::Call { id, name, json: Vec::new() });
            }
            Delta::ToolArgs { slot, json: more } => {
                let part = self.calls.get(slot).and_then(|at| self.parts.get_mut(*at));
                if let Some(AnswerPart::Call { json, .. }) = part {
                    json.extend_from_slice(more);
                }
            }
            Delta::Stop { reason, sequence, explanation } => {
                (self.stopped, self.reason) = (true, reason);
                self.sequence = sequence.map(<[u8]>::to_vec);
                self.explanation = explanation.map(<[u8]>::to_vec);
            }
            Delta::Usage(reported) => {
                self.reported.merge(reported);
                self.goes_on = false;
            }
            Delta::Start | Delta::ToolClose { .. } | Delta::Ping | Delta::End => {}
        }
        Ok(())
    }
}

impl<'a> WholeAnswer<'a> {
    /// Returns an answer without content. `json_tool`: the request has the tool that replaces required JSON.
    pub(super) fn new(json_tool: bool) -> WholeAnswer<'a> {
        WholeAnswer { json_tool: JsonTool::new(json_tool), ..WholeAnswer::default() }
    }

    /// The answer that has only this text.
    pub(super) fn of_text(text: &'a [u8], reason: StopReason, reported: Reported) -> WholeAnswer<'a> {
        let parts = vec![AnswerPart::Text(Cow::Borrowed(text))];
        WholeAnswer { parts, reason, reported, ..WholeAnswer::default() }
    }

    /// True if the answer has ended. An end without usage after its last part makes reported completion tokens that are
    /// fewer than the relayed ones useless, as in a stream, see `ObservedUsage::of_stream`.
    pub(super) fn ends(&mut self) -> bool {
        if self.stopped && self.goes_on && self.reported.output < Some(self.relayed()) {
            self.reported.output = None;
        }
        self.stopped
    }

    fn text(&mut self, text: &[u8]) {
        self.last_text = (text.as_ptr() as usize, text.len());
        match self.parts.last_mut() {
            Some(AnswerPart::Text(before)) => before.to_mut().extend_from_slice(text),
            _ => self.parts.push(AnswerPart::Text(Cow::Owned(text.to_vec()))),
        }
    }

    /// Continues the current piece of reasoning, or begins one; a block ends it.
    fn think(&mut self, more: &[u8], block: Option<Vec<u8>>) {
        let ends = block.is_some();
        match self.parts.last_mut() {
            Some(AnswerPart::Reasoning { text, block: own, is_done: is_done @ false }) => {
                text.extend_from_slice(more);
                (*own, *is_done) = (block, ends);
            }
            _ => self.parts.push(AnswerPart::Reasoning { text: more.to_vec(), block, is_done: ends }),
        }
    }

    /// Number of calls.
    pub(crate) fn calls(&self) -> usize {
        self.parts.iter().filter(|part| matches!(part, AnswerPart::Call { .. })).count()
    }

    /// True if a part of it is a refusal.
    pub(crate) fn refuses(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, AnswerPart::Refusal(_)))
    }

    /// Estimated tokens of all relayed parts.
    pub(super) fn relayed(&self) -> u64 {
        let mut relayed = Estimator::new();
        for part in &self.parts {
            match part {
                AnswerPart::Text(text) => relayed.feed_json(text),
                AnswerPart::Refusal(text) => relayed.feed_json(text),
                AnswerPart::Reasoning { text, .. } => relayed.feed_json(text),
                AnswerPart::Call { name, json, .. } => {
                    relayed.cut();
                    relayed.feed_json(name);
                    relayed.feed_json(json);
                }
            }
        }
        relayed.tokens()
    }
}
