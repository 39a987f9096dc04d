//! Translates a complete answer of one format into an answer of another: the reader of its format's streams reads it,
//! its deltas are collected, and a writer per format writes it.
//!
//! Owns the order of these steps. Must never change a byte of text or a number. Called by the gateway for a route whose
//! upstream has another format.

pub mod hole;
pub mod streamed;
mod templates;
pub mod whole;

pub use templates::AnswerTemplates;

use crate::dialect::answer::{Broken, Destination, ResponseIdentity};
use crate::dialect::dispatch::{StreamReader, with_format};
use crate::dialect::errors::{ErrorText, is_error, read_error};
use crate::dialect::neutral::delta::{TOOL_CALLS_MAX, lists_nothing};
use crate::dialect::neutral::naming::TranslationState;
use crate::dialect::translate::stream::{hands_back, read_events};
use crate::dialect::usage::ObservedUsage;
use crate::wire::Shape;
use crate::wire::json::{self, Raw, ValueKind, linear};
use whole::WholeAnswer;

/// Writes an upstream's complete answer of format `from` for a client of format `to`. `state` comes from the
/// translation of the request. [`Broken`] as for [`crate::dialect::whole`].
pub fn reply(
    way: (Shape, Shape),
    body: &[u8],
    state: &TranslationState,
    identity: &ResponseIdentity<'_>,
    out: &mut Vec<u8>,
) -> Result<ObservedUsage, Broken> {
    translate(way, body, Destination { state, observed: &ObservedUsage::default(), identity, out }, None)
}

impl AnswerTemplates {
    /// Like [`reply`], but compares the answer with templates of earlier ones before parsing it.
    pub fn reply(
        &mut self,
        way: (Shape, Shape),
        body: &[u8],
        state: &TranslationState,
        identity: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<ObservedUsage, Broken> {
        translate(way, body, Destination { state, observed: &ObservedUsage::default(), identity, out }, Some(self))
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
    let known = templates.as_mut().and_then(|templates| templates.read(from, body));
    let is_known = known.is_some();
    let mut answer = known.unwrap_or_else(|| WholeAnswer::new(out.state.json_tool));
    if !is_known {
        let (list, ending) = with_format!(from, F => (F::LIST.0, F::ENDING.0));
        match json::check_and_pick(body, ["error", list, "usage", ending]) {
            Ok(picked) => {
                read((from, to), body, picked, &mut answer)?;
                templates.into_iter().for_each(|templates| templates.learn_read(from, body, &answer));
            }
            // A client of the same format gets the reasoning unchanged.
            Err(_) => read_stream(from, body, from == to || hands_back(from, to), &mut answer)?,
        }
    }
    // As in a stream: each call is compared with the others.
    if answer.calls() > TOOL_CALLS_MAX {
        return Err(Broken::NotJson);
    }
    answer.native = from == to;
    // The estimate is made only on demand: nearly every answer reports its usage.
    let reported = answer.reported.believed();
    let relayed_tokens = if reported.output.is_some() { 0 } else { answer.relayed() };
    let observed = ObservedUsage { reported, relayed_tokens, units: 0 };
    with_format!(to, F => F::write_answer(&answer, Destination { observed: &observed, ..out }))?;
    Ok(observed)
}

/// Reads the events of `body` as one answer, up to a fault.
pub(crate) fn read_stream(from: Shape, body: &[u8], keeps: bool, answer: &mut WholeAnswer<'_>) -> Result<(), Broken> {
    read_events(from, body, keeps, answer)?;
    if answer.ends() { Ok(()) } else { Err(Broken::NotJson) }
}

/// Reads a complete answer. `picked`: its members `error`, the one with its content, `usage` and the one with the
/// reason for its end.
fn read(
    (from, to): (Shape, Shape),
    body: &[u8],
    picked: [Option<Raw<'_>>; 4],
    answer: &mut WholeAnswer<'_>,
) -> Result<(), Broken> {
    let [error, list, usage, ending] = picked;
    if let Some(error) = error.filter(|error| is_error(*error)) {
        return Err(Broken::Error(ErrorText::from_value(error)));
    }
    let Some(list) = list.filter(|list| list.kind() == ValueKind::Array) else {
        return Err(read_error(body).map_or(Broken::NotJson, Broken::Error));
    };
    StreamReader::new(from, hands_back(from, to)).whole(Raw::new(body), answer)?;
    let [usage, ending] = [usage, ending].map(|value| value.unwrap_or(Raw::NULL));
    let is_empty = lists_nothing(list) && with_format!(from, F => F::is_empty(list, ending, || usage));
    if is_empty { Err(Broken::NotJson) } else { Ok(()) }
}
