//! Writes a complete chat answer.

use super::signature::Signatures;
use super::write_request::{write_call, write_details};
use super::write_stream::write_usage;
use crate::dialect::answer::{Broken, Destination, ResponseIdentity};
use crate::dialect::neutral::arguments::Arguments;
use crate::dialect::neutral::naming::{TranslationState, made_id};
use crate::dialect::responses::response::free_input;
use crate::dialect::translate::answer::whole::{AnswerPart, WholeAnswer};
use crate::wire::json::{Inside, Number, Quoted, Raw, item, put};

/// Writes the answer.
pub fn write(answer: &WholeAnswer<'_>, to: Destination<'_>) -> Result<(), Broken> {
    let Destination { state, observed, identity, out } = to;
    let [mut text, mut refusal, mut reasoning] = [const { Vec::new() }; 3];
    for part in &answer.parts {
        match part {
            AnswerPart::Text(more) => text.push(&**more),
            AnswerPart::Refusal(more) => refusal.push(&**more),
            AnswerPart::Reasoning { text: more, .. } if !more.is_empty() => reasoning.push(&**more),
            AnswerPart::Reasoning { .. } | AnswerPart::Call { .. } => {}
        }
    }
    refusal.extend(answer.explanation.as_deref().filter(|text| !text.is_empty()));
    let calls = answer.calls() > 0;
    put!(out, r#"{"id":"#, Inside(identity.id), r#","object":"chat.completion","created":"#, Number(identity.created));
    put!(out, r#","model":"#, identity.model(), r#","choices":[{"index":0,"message":{"role":"assistant","content":"#);
    write_text(&text, !calls, out);
    put!(out, r#","refusal":"#);
    write_text(&refusal, false, out);
    if !reasoning.is_empty() {
        put!(out, r#","reasoning_content":"#);
        write_text(&reasoning, true, out);
    }
    write_details(blocks(answer), out);
    if calls {
        put!(out, r#","tool_calls":["#);
        write_calls(answer, state, identity, out);
        put!(out, "]");
    }
    let reason = answer.reason.to_chat(calls);
    put!(out, r#"},"logprobs":null,"finish_reason":"#, Quoted(reason), r#"}],"usage":"#);
    write_usage(observed, identity, out);
    put!(out, "}");
    Ok(())
}

/// Appends several texts as one string, or `null` if there are none and `is_string` is false.
fn write_text(texts: &[&[u8]], is_string: bool, out: &mut Vec<u8>) {
    if texts.is_empty() && !is_string {
        return put!(out, "null");
    }
    put!(out, "\"");
    texts.iter().for_each(|text| put!(out, *text));
    put!(out, "\"");
}

/// The blocks of reasoning that the provider requires back.
fn blocks<'t>(answer: &'t WholeAnswer<'_>) -> impl Iterator<Item = Raw<'t>> {
    answer.parts.iter().filter_map(|part| match part {
        AnswerPart::Reasoning { block: Some(block), .. } => Some(Raw::new(block)),
        _ => None,
    })
}

fn write_calls(answer: &WholeAnswer<'_>, state: &TranslationState, identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
    let mut signatures = Signatures::of(blocks(answer));
    let mut at = 0;
    for part in &answer.parts {
        match part {
            AnswerPart::Reasoning { block: Some(block), .. } => signatures.before(Raw::new(block)),
            AnswerPart::Call { id, name, json } => {
                let signature = signatures.take(id);
                let id = |out: &mut Vec<u8>| match id.is_empty() {
                    true => made_id(identity.id, at, out),
                    false => put!(out, &id[..]),
                };
                match state.is_free(name) {
                    true => write_free_call(id, state.restore(name), &free_input(json), out),
                    false => write_call(id, state.restore(name), Arguments::Json(json), signature, out),
                }
                at += 1;
            }
            _ => {}
        }
    }
}

/// Writes a call of a tool that takes free text.
#[cold]
fn write_free_call(id: impl FnOnce(&mut Vec<u8>), name: &[u8], input: &[u8], out: &mut Vec<u8>) {
    item(out);
    put!(out, r#"{"id":""#);
    id(out);
    put!(out, r#"","type":"custom","custom":{"name":"#, Inside(name), r#","input":"#, Inside(input), "}}");
}
