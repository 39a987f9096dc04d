//! The answer of a provider that streams although a complete one was requested: for the responses format the response
//! in the last event, otherwise all events joined.

use super::super::answer::{Broken, StreamFault};
use super::super::convert::read_events;
use super::super::usage::Reported;
use crate::dialect::neutral::answer::{AnswerPart, NeutralAnswer};
use crate::dialect::neutral::arguments::Arguments;
use crate::dialect::neutral::delta::{Delta, StopReason, Take};
use crate::wire::Shape;
use crate::wire::json::{self, Raw, ValueKind, item, key, member_inside};
use crate::wire::sse::Splitter;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Events that end a stream with a response.
const ENDS: [&str; 4] = ["response.completed", "response.incomplete", "response.failed", "response.cancelled"];

/// Events that end the arguments of a call, each with its member that has all of them.
const REPEATS: [(&str, &str); 2] =
    [("response.function_call_arguments.done", "arguments"), ("response.custom_tool_call_input.done", "input")];

/// Arguments of such events, by [`late_key`].
type Late = BTreeMap<Vec<u8>, Vec<u8>>;

/// The member `name` of the item with an id.
fn late_key(name: &str, id: &[u8]) -> Vec<u8> {
    [name.as_bytes(), b" ", id].concat()
}

/// The response in the last event of the stream `body`, with any items that only separate events contained. `None` if
/// no event ends with a response.
pub(in crate::dialect) fn response(body: &[u8]) -> Option<Vec<u8>> {
    let (mut splitter, mut rest) = (Splitter::new(), body);
    let (mut items, mut late) = (b"[".to_vec(), Late::new());
    while !rest.is_empty() {
        let event = splitter.next(rest).or_else(|| splitter.last(rest))?;
        let data = splitter.data(&event, rest);
        if json::check(data).is_ok() {
            let data = Raw::new(data);
            let is = |kind: &str| data.get("type").is_some_and(|own| own.is(kind));
            if is("response.output_item.done") {
                let done = data.get("item").unwrap_or(Raw::EMPTY);
                item(&mut items);
                items.extend_from_slice(done.bytes());
            } else if let Some((_, name)) = REPEATS.into_iter().find(|(kind, _)| is(kind)) {
                let text = |name| data.get(name).and_then(Raw::string).unwrap_or_default();
                if !text(name).is_empty() {
                    late.entry(late_key(name, text("item_id"))).or_insert_with(|| text(name).to_vec());
                }
            } else if ENDS.into_iter().any(is) {
                let response = data.get("response").filter(|response| response.kind() == ValueKind::Object);
                items.push(b']');
                return response.map(|response| with(response, &items, &late, is("response.incomplete")));
            } else if is("error") {
                return Some(data.bytes().to_vec());
            }
        }
        splitter.done(&event);
        rest = rest.get(event.len..)?;
    }
    None
}

/// Adds to `response`: the items, if it has none of its own; arguments that its items lack; and the status
/// `incomplete`, if only the event says so. Of two members with one name the last one counts.
fn with(response: Raw<'_>, items: &[u8], late: &Late, incomplete: bool) -> Vec<u8> {
    let mut out = response.bytes().to_vec();
    let own = response.get("output").filter(|output| output.items().next().is_some());
    let output = own.unwrap_or(Raw::new(items));
    let is_whole = own.is_some() && output.items().all(|call| arguments_of(call, late).is_none());
    if !is_whole && out.pop() == Some(b'}') {
        key(&mut out, "output");
        out.push(b'[');
        for call in output.items() {
            item(&mut out);
            out.extend_from_slice(call.bytes());
            if let Some((name, text)) = arguments_of(call, late).filter(|_| out.pop() == Some(b'}')) {
                member_inside(&mut out, name, text);
                out.push(b'}');
            }
        }
        out.extend_from_slice(b"]}");
    }
    let says_so = !incomplete || response.get("status").is_some_and(|status| !status.is("completed"));
    if !says_so && out.pop() == Some(b'}') {
        out.extend_from_slice(b",\"status\":\"incomplete\"}");
    }
    out
}

/// The arguments from an event, if the call lacks them.
fn arguments_of<'l>(call: Raw<'_>, late: &'l Late) -> Option<(&'static str, &'l [u8])> {
    let id = call.get("id").and_then(Raw::string)?;
    let lacks = |name| call.get(name).and_then(Raw::string).is_some_and(<[u8]>::is_empty);
    let names = REPEATS.into_iter().map(|(_, name)| name).filter(|name| lacks(name));
    names.into_iter().find_map(|name| Some((name, &**late.get(&late_key(name, id))?)))
}

/// Part of an answer, collected from its events.
enum CollectedPart {
    Text(Vec<u8>),
    Refusal(Vec<u8>),
    /// Reasoning and the block that the provider requires back; `None` until the reasoning ends.
    Thought(Vec<u8>, Option<Option<Vec<u8>>>),
    Call {
        id: Vec<u8>,
        name: Vec<u8>,
        json: Vec<u8>,
    },
}

/// A complete answer, collected from the events of a stream.
#[derive(Default)]
pub(in crate::dialect) struct Collected {
    pieces: Vec<CollectedPart>,
    /// The piece of each call.
    calls: Vec<usize>,
    stopped: bool,
    reason: StopReason,
    sequence: Option<Vec<u8>>,
    explanation: Option<Vec<u8>>,
    /// Usage that the events report.
    pub(in crate::dialect) reported: Reported,
    /// Text or a call follows the last report.
    goes_on: bool,
}

impl Take for Collected {
    fn take(&mut self, delta: Delta<'_>) -> Result<(), StreamFault> {
        self.goes_on |= delta.text().is_some() || matches!(delta, Delta::ToolOpen { .. });
        match (delta, self.pieces.last_mut()) {
            (Delta::Text(text), Some(CollectedPart::Text(said)))
            | (Delta::Refuse(text), Some(CollectedPart::Refusal(said))) => {
                said.extend_from_slice(text);
            }
            (Delta::Text(text), _) => self.pieces.push(CollectedPart::Text(text.to_vec())),
            (Delta::Refuse(text), _) => self.pieces.push(CollectedPart::Refusal(text.to_vec())),
            (Delta::Think(text), Some(CollectedPart::Thought(said, None))) => said.extend_from_slice(text),
            (Delta::Think(text), _) => self.pieces.push(CollectedPart::Thought(text.to_vec(), None)),
            (Delta::Thought { block }, Some(CollectedPart::Thought(_, kept @ None))) => {
                *kept = Some(block.map(<[u8]>::to_vec));
            }
            (Delta::Thought { block: Some(block) }, _) => {
                self.pieces.push(CollectedPart::Thought(Vec::new(), Some(Some(block.to_vec()))));
            }
            (Delta::ToolOpen { slot, id, name }, _) => {
                self.calls.resize(self.calls.len().max(slot + 1), usize::MAX);
                self.calls[slot] = self.pieces.len();
                let (id, name) = (id.to_vec(), name.to_vec());
                self.pieces.push(CollectedPart::Call { id, name, json: Vec::new() });
            }
            (Delta::ToolArgs { slot, json: more }, _) => {
                let piece = self.calls.get(slot).and_then(|at| self.pieces.get_mut(*at));
                if let Some(CollectedPart::Call { json, .. }) = piece {
                    json.extend_from_slice(more);
                }
            }
            (Delta::Stop { reason, sequence, explanation }, _) => {
                (self.stopped, self.reason) = (true, reason);
                self.sequence = sequence.map(<[u8]>::to_vec);
                self.explanation = explanation.map(<[u8]>::to_vec);
            }
            (Delta::Usage(reported), _) => {
                self.reported.merge(reported);
                self.goes_on = false;
            }
            (Delta::Thought { block: None } | Delta::Start | Delta::ToolClose { .. } | Delta::Ping | Delta::End, _) => {
            }
        }
        Ok(())
    }
}

impl Collected {
    /// Reads the events of `body`, up to a fault.
    pub(in crate::dialect) fn read(from: Shape, body: &[u8], keeps: bool) -> (Collected, Result<(), Broken>) {
        let mut collected = Collected::default();
        let read = match read_events(from, body, keeps, &mut collected) {
            Err(StreamFault::Error(text)) => Err(Broken::Error(text)),
            Ok(()) if collected.stopped => Ok(()),
            _ => Err(Broken::NotJson),
        };
        (collected, read)
    }

    /// Returns the collected answer.
    pub(super) fn answer(&self) -> NeutralAnswer<'_> {
        fn part(piece: &CollectedPart) -> AnswerPart<'_> {
            match piece {
                CollectedPart::Text(text) => AnswerPart::Text(Cow::Borrowed(text)),
                CollectedPart::Refusal(text) => AnswerPart::Refusal(text),
                CollectedPart::Thought(text, kept) => AnswerPart::Thought(vec![text], kept.clone().flatten()),
                CollectedPart::Call { id, name, json, .. } => AnswerPart::Call(id, name, Arguments::Json(json)),
            }
        }
        let mut answer = NeutralAnswer {
            parts: self.pieces.iter().map(part).collect(),
            reason: self.reason,
            sequence: self.sequence.as_deref(),
            explanation: self.explanation.as_deref(),
            reported: self.reported,
            native: false,
        };
        if self.goes_on && answer.reported.output < Some(answer.relayed()) {
            // As in a stream, see `ObservedUsage::of_stream`.
            answer.reported.output = None;
        }
        answer
    }
}
