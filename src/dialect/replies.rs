//! A whole answer of one shape written as an answer of another (`wire-formats` 3.10, `responses` 5.3): a reader and a
//! writer per shape around one vocabulary.
//!
//! Owns the mapping of the parts. Must never change a byte of text or a number. Called by the gateway for a route whose
//! upstream speaks another shape.

mod read;
mod write;

use super::answer::{Broken, ResponseIdentity, StreamFault};
use super::delta::StopReason;
use super::errors::{ErrorText, is_error, read_error};
use super::naming::{JSON_TOOL, TranslationState};
use super::requests::write_arguments;
use super::tokens::Estimator;
use super::usage::{ObservedUsage, Reported};
use crate::wire::Dialect;
use crate::wire::json::{self, Kind, Raw, eq_unescaped};
use std::borrow::Cow;

/// The inside of a JSON string.
type Text<'a> = Cow<'a, [u8]>;

/// A whole answer in no shape.
#[derive(Default)]
struct Answer<'a> {
    parts: Vec<Part<'a>>,
    reason: StopReason,
    sequence: Option<&'a [u8]>,
    explanation: Option<&'a [u8]>,
    reported: Reported,
}

/// One part of it.
enum Part<'a> {
    Text(Text<'a>),
    Refusal(&'a [u8]),
    /// Reasoning: its words, and as JSON what its target wants to see again of it.
    Thought(Vec<&'a [u8]>, Option<Vec<u8>>),
    /// A call: id, name, arguments.
    Call(&'a [u8], &'a [u8], Arguments<'a>),
}

/// What a tool is called with.
#[derive(Copy, Clone)]
enum Arguments<'a> {
    Value(Raw<'a>),
    Json(&'a [u8]),
}

/// Writes an upstream's whole answer of shape `from` for a client of shape `to`. `state` is what the request's
/// translation left. [`Broken`] as for [`super::whole`].
pub fn reply(
    (from, to): (Dialect, Dialect),
    body: &[u8],
    state: &TranslationState,
    me: &ResponseIdentity<'_>,
    out: &mut Vec<u8>,
) -> Result<ObservedUsage, Broken> {
    json::check(body).map_err(|_| Broken::NotJson)?;
    let given = Raw::new(body);
    if let Some(error) = given.get("error").filter(|error| is_error(*error)) {
        return Err(Broken::Error(ErrorText::from_value(error)));
    }
    let list = match from {
        Dialect::Chat => "choices",
        Dialect::Messages => "content",
        Dialect::Responses => "output",
    };
    if given.get(list).map(Raw::kind) != Some(Kind::Array) {
        return Err(read_error(body).map_or(Broken::NotJson, Broken::Error));
    }
    let mut answer = match from {
        Dialect::Chat => read::chat(given, to == Dialect::Responses).ok_or(Broken::NotJson)?,
        Dialect::Messages => read::messages(given),
        Dialect::Responses => read::responses(given),
    };
    if state.json_tool {
        answer.unwrap_json();
    }
    let observed = ObservedUsage { reported: answer.reported, relayed_tokens: answer.relayed() };
    match to {
        Dialect::Chat => write::chat(&answer, state, &observed, me, out),
        Dialect::Messages => write::messages(&answer, state, &observed, me, out),
        Dialect::Responses => write::responses(&answer, state, &observed, me, out).map_err(|fault| match fault {
            StreamFault::Error(text) => Broken::Error(text),
            _ => Broken::NotJson,
        })?,
    }
    Ok(observed)
}

impl<'a> Answer<'a> {
    /// Where JSON was demanded by a tool, that tool's arguments are the text, and calling it is no call.
    fn unwrap_json(&mut self) {
        let is_it = |part: &Part<'_>| matches!(part, Part::Call(_, name, _) if eq_unescaped(name, JSON_TOOL));
        let Some(at) = self.parts.iter().position(is_it) else { return };
        if let Part::Call(_, _, arguments) = &self.parts[at] {
            let text = match *arguments {
                Arguments::Json(text) => Cow::Borrowed(text),
                Arguments::Value(value) => {
                    let mut text = Vec::new();
                    write_arguments(value, &mut text);
                    Cow::Owned(text)
                }
            };
            self.parts[at] = Part::Text(text);
            if self.reason == StopReason::Tools {
                self.reason = StopReason::End;
            }
        }
    }

    fn calls(&self) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Call(..)))
    }

    /// Estimated tokens of all that is relayed.
    fn relayed(&self) -> u64 {
        let mut relayed = Estimator::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => relayed.feed_json(text),
                Part::Refusal(text) => relayed.feed_json(text),
                Part::Thought(texts, _) => texts.iter().for_each(|text| relayed.feed_json(text)),
                Part::Call(_, name, arguments) => {
                    relayed.cut();
                    relayed.feed_json(name);
                    match arguments {
                        Arguments::Json(text) => relayed.feed_json(text),
                        Arguments::Value(value) => {
                            let mut text = Vec::new();
                            write_arguments(*value, &mut text);
                            relayed.feed_json(&text);
                        }
                    }
                }
            }
        }
        relayed.tokens()
    }
}
