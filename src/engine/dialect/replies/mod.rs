//! Translates a complete answer of one format into an answer of another: a reader and a writer per format around common
//! types.
//!
//! Owns the mapping of the parts. Must never change a byte of text or a number. Called by the gateway for a route whose
//! upstream has another format.

pub(super) mod read;
mod streamed;
mod templates;
pub(super) mod write;

pub(super) use streamed::{Collected, response as read_streamed};
pub use templates::AnswerTemplates;

use super::answer::{Broken, Destination, ResponseIdentity};
use super::convert::hands_back;
use super::errors::{ErrorText, is_error, read_error};
use super::format::with_format;
use super::neutral::answer::{AnswerMembers, AnswerPart, NeutralAnswer};
use super::neutral::naming::TranslationState;
use super::usage::ObservedUsage;
use crate::dialect::neutral::delta::{TOOL_CALLS_MAX, lists_nothing};
use crate::wire::Shape;
use crate::wire::json::{self, Raw, ValueKind, linear};

/// Writes an upstream's complete answer of format `from` for a client of format `to`. `state` comes from the
/// translation of the request. [`Broken`] as for [`super::whole`].
pub fn reply(
    way: (Shape, Shape),
    body: &[u8],
    state: &TranslationState,
    me: &ResponseIdentity<'_>,
    out: &mut Vec<u8>,
) -> Result<ObservedUsage, Broken> {
    translate(way, body, Destination { state, observed: &ObservedUsage::default(), me, out }, None)
}

impl AnswerTemplates {
    /// Like [`reply`], but compares the answer with templates of earlier ones before parsing it.
    pub fn reply(
        &mut self,
        way: (Shape, Shape),
        body: &[u8],
        state: &TranslationState,
        me: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<ObservedUsage, Broken> {
        translate(way, body, Destination { state, observed: &ObservedUsage::default(), me, out }, Some(self))
    }
}

/// Writes an answer to `out`, whose usage is not observed yet.
fn translate(
    (from, to): (Shape, Shape),
    body: &[u8],
    out: Destination<'_>,
    mut templates: Option<&mut AnswerTemplates>,
) -> Result<ObservedUsage, Broken> {
    let _linear = linear(body.len());
    let (list, ending) = with_format!(from, format => (format::LIST.0, format::ENDING.0));
    let names = ["error", list, "usage", ending, "stop_sequence", "stop_details"];
    let collected;
    let known = templates.as_mut().and_then(|templates| templates.read(from, body));
    let mut answer = match known {
        Some(answer) => answer,
        None => match json::check_and_pick(body, names) {
            Ok(picked) => {
                let answer = read((from, to), body, picked)?;
                templates.into_iter().for_each(|templates| templates.learn_read(from, body, &answer));
                answer
            }
            Err(_) => {
                // A client of the same format gets the reasoning unchanged.
                let (events, read) = Collected::read(from, body, from == to || hands_back(from, to));
                read?;
                collected = events;
                collected.answer()
            }
        },
    };
    // As in a stream: each call is compared with the others.
    if answer.parts.iter().filter(|part| matches!(part, AnswerPart::Call(..))).count() > TOOL_CALLS_MAX {
        return Err(Broken::NotJson);
    }
    answer.native = from == to;
    if out.state.json_tool {
        answer.unwrap_json();
    }
    // The estimate is made only on demand: nearly every answer reports its usage.
    let reported = answer.reported.believed();
    let relayed_tokens = if reported.output.is_some() { 0 } else { answer.relayed() };
    let observed = ObservedUsage { reported, relayed_tokens, units: 0 };
    with_format!(to, format => format::write_answer(&answer, Destination { observed: &observed, ..out }))?;
    Ok(observed)
}

/// Reads a complete answer. `picked`: its members `error`, the one with its content, `usage`, the one with the reason
/// for its end, `stop_sequence` and `stop_details`.
fn read<'a>(
    (from, to): (Shape, Shape),
    body: &'a [u8],
    picked: [Option<Raw<'a>>; 6],
) -> Result<NeutralAnswer<'a>, Broken> {
    let [error, list, usage, ending, sequence, details] = picked;
    if let Some(error) = error.filter(|error| is_error(*error)) {
        return Err(Broken::Error(ErrorText::from_value(error)));
    }
    let Some(list) = list.filter(|list| list.kind() == ValueKind::Array) else {
        return Err(read_error(body).map_or(Broken::NotJson, Broken::Error));
    };
    let [usage, ending] = [usage, ending].map(|value| value.unwrap_or(Raw::NULL));
    let (body, keeps) = (Raw::new(body), hands_back(from, to));
    let members = AnswerMembers { body, list, ending, usage, sequence, details, keeps };
    with_format!(from, format => {
        let answer = format::read_answer(&members)?;
        let is_empty = lists_nothing(list) && format::is_empty(list, ending, || usage);
        // No client could run a call without a name.
        let is_nameless = |part: &AnswerPart<'_>| matches!(part, AnswerPart::Call(_, [], _));
        if is_empty || answer.parts.iter().any(is_nameless) { Err(Broken::NotJson) } else { Ok(answer) }
    })
}
