//! Writes a complete message.

use super::write_request::write_called;
use super::write_stream::{NO_DETAILS, write_usage};
use crate::dialect::answer::{Broken, Destination};
use crate::dialect::neutral::arguments::Arguments;
use crate::dialect::neutral::carrier;
use crate::dialect::translate::answer::whole::{AnswerPart, WholeAnswer};
use crate::wire::json::{Inside, OrElse, Quoted, item, put};

/// Writes the answer.
pub fn write(answer: &WholeAnswer<'_>, to: Destination<'_>) -> Result<(), Broken> {
    let Destination { state, observed, identity, out } = to;
    put!(out, r#"{"id":"#, Inside(identity.id), r#","type":"message","role":"assistant","model":"#, identity.model());
    put!(out, r#","content":["#);
    let mut ids = Vec::new();
    for part in &answer.parts {
        match part {
            AnswerPart::Text(text) => write_text(text, out),
            AnswerPart::Refusal(text) => write_text(text, out),
            AnswerPart::Reasoning { block: Some(block), .. } if answer.native => {
                item(out);
                put!(out, &block[..]);
            }
            AnswerPart::Reasoning { text, block: None, .. } if text.is_empty() => {}
            // For another target's reasoning, the data that it must get back becomes the signature.
            AnswerPart::Reasoning { text, block, .. } => {
                item(out);
                put!(out, r#"{"type":"thinking","thinking":"#, Inside(text), r#","signature":""#);
                if let Some(block) = block {
                    carrier::close(block, &state.mark, out);
                }
                put!(out, r#""}"#);
            }
            AnswerPart::Call { id, name, json } => {
                item(out);
                put!(out, r#"{"type":"tool_use","caller":{"type":"direct"},"id":""#);
                state.fresh_id(id, ids.len(), identity.id, &mut ids, out);
                write_called(state.restore(name), Arguments::Json(json), out);
            }
        }
    }
    let word = answer.reason.to_messages(answer.calls() > 0, answer.refuses());
    let sequence = answer.sequence.as_deref().filter(|_| word == "stop_sequence").map(Inside);
    put!(out, r#"],"stop_reason":"#, Quoted(word), r#","stop_sequence":"#, OrElse(sequence, "null"), NO_DETAILS);
    put!(out, r#","usage":"#);
    write_usage(observed, identity, out);
    put!(out, "}");
    Ok(())
}

/// Writes a block of text, unless it is empty.
fn write_text(text: &[u8], out: &mut Vec<u8>) {
    if !text.is_empty() {
        item(out);
        put!(out, r#"{"type":"text","text":"#, Inside(text), r#","citations":[]}"#);
    }
}
