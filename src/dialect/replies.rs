//! Translates a complete answer of one format into an answer of another: a reader and a writer per format around common
//! types.
//!
//! Owns the mapping of the parts. Must never change a byte of text or a number. Called by the gateway for a route whose
//! upstream has another format.

mod read;
mod streamed;
mod write;

pub(super) use streamed::{Collected, response as read_streamed};

use super::answer::{Broken, ResponseIdentity, StreamFault};
use super::convert::hands_back;
use super::errors::{ErrorText, is_error, read_error};
use super::naming::TranslationState;
use super::neutral::answer::NeutralAnswer;
use super::usage::ObservedUsage;
use crate::dialect::neutral::delta::{is_empty, lists_nothing};
use crate::wire::Shape;
use crate::wire::json::{self, Raw, ValueKind};

/// Writes an upstream's complete answer of format `from` for a client of format `to`. `state` comes from the
/// translation of the request. [`Broken`] as for [`super::whole`].
pub fn reply(
    (from, to): (Shape, Shape),
    body: &[u8],
    state: &TranslationState,
    me: &ResponseIdentity<'_>,
    out: &mut Vec<u8>,
) -> Result<ObservedUsage, Broken> {
    let list = match from {
        Shape::Chat => "choices",
        Shape::Messages => "content",
        Shape::Responses => "output",
    };
    let names = ["error", list, "usage", "stop_reason", "stop_sequence", "stop_details"];
    let collected;
    let mut answer = match json::check_and_pick(body, names) {
        Ok(picked) => read((from, to), body, picked)?,
        Err(_) => {
            // A client of the same format gets the reasoning unchanged.
            let (events, read) = Collected::read(from, body, from == to || hands_back(from, to));
            read?;
            collected = events;
            collected.answer()
        }
    };
    if state.json_tool {
        answer.unwrap_json();
    }
    // The estimate is made only on demand: nearly every answer reports its usage.
    let reported = answer.reported.believed();
    let relayed_tokens = if reported.output.is_some() { 0 } else { answer.relayed() };
    let observed = ObservedUsage { reported, relayed_tokens };
    match to {
        Shape::Chat => write::chat(&answer, state, &observed, me, out),
        Shape::Messages => write::messages(&answer, from == to, state, &observed, me, out),
        Shape::Responses => write::responses(&answer, state, &observed, me, out).map_err(|fault| match fault {
            StreamFault::Error(text) => Broken::Error(text),
            _ => Broken::NotJson,
        })?,
    }
    Ok(observed)
}

/// Reads a complete answer. `picked`: its members `error`, the one with its content, `usage`, `stop_reason`,
/// `stop_sequence` and `stop_details`.
fn read<'a>(
    (from, to): (Shape, Shape),
    body: &'a [u8],
    picked: [Option<Raw<'a>>; 6],
) -> Result<NeutralAnswer<'a>, Broken> {
    let [error, list, usage, reason, sequence, details] = picked;
    if let Some(error) = error.filter(|error| is_error(*error)) {
        return Err(Broken::Error(ErrorText::from_value(error)));
    }
    let Some(list) = list.filter(|list| list.kind() == ValueKind::Array) else {
        return Err(read_error(body).map_or(Broken::NotJson, Broken::Error));
    };
    let usage = usage.unwrap_or(Raw::NULL);
    let answer = match from {
        Shape::Chat => read::chat(list, usage, hands_back(from, to))?.ok_or(Broken::NotJson)?,
        Shape::Messages => read::messages(list, usage, [reason, sequence, details])?,
        Shape::Responses => read::responses(Raw::new(body), list, usage)?,
    };
    if from != Shape::Chat && lists_nothing(list) {
        let ending = if from == Shape::Responses { Raw::new(body).get("status") } else { reason };
        if is_empty(from, list, ending.unwrap_or(Raw::NULL), || usage) {
            return Err(Broken::NotJson);
        }
    }
    Ok(answer)
}
