//! Writes a complete response: the object that ends a stream.

use super::write_stream::ResponsesWriter;
use crate::dialect::answer::{Broken, Destination};
use crate::dialect::neutral::delta::{Delta, StopReason};
use crate::dialect::translate::answer::whole::{AnswerPart, WholeAnswer};

/// Writes the answer.
pub fn write(answer: &WholeAnswer<'_>, mut to: Destination<'_>) -> Result<(), Broken> {
    let mut writer = ResponsesWriter::quiet();
    let mut slot = 0;
    for part in &answer.parts {
        match part {
            AnswerPart::Text(text) if text.is_empty() => {}
            AnswerPart::Text(text) => writer.take(Delta::Text(text), &mut to),
            AnswerPart::Refusal(text) => writer.take(Delta::Refuse(text), &mut to),
            AnswerPart::Reasoning { text, block, .. } => {
                if !text.is_empty() {
                    writer.take(Delta::Reasoning(text), &mut to);
                }
                writer.take(Delta::ReasoningEnd { block: block.as_deref() }, &mut to);
            }
            AnswerPart::Call { id, name, json } => {
                writer.take(Delta::ToolOpen { slot, id, name }, &mut to);
                writer.take(Delta::ToolArgs { slot, json }, &mut to);
                writer.take(Delta::ToolClose { slot }, &mut to);
                slot += 1;
            }
        }
    }
    let reason = match answer.reason {
        StopReason::Unknown if slot > 0 => StopReason::Tools,
        reason => reason,
    };
    let (sequence, explanation) = (answer.sequence.as_deref(), answer.explanation.as_deref());
    writer.take(Delta::Stop { reason, sequence, explanation }, &mut to);
    writer.take(Delta::End, &mut to);
    Ok(())
}
