//! Writes a responses stream: deltas to events; or a complete answer as the object that ends such a stream.
//!
//! Items are written one at a time: added, filled, done. A sequencer has put the deltas in order. The last event
//! repeats all items, so they are kept as written. A call with free text is sent only when complete, or not at all.

mod calls;

use crate::dialect::answer::{Destination, ResponseIdentity};
use crate::dialect::errors::ErrorWords;
use crate::dialect::neutral::carrier;
use crate::dialect::neutral::delta::{Delta, StopReason};
use crate::dialect::neutral::naming::Called;
use crate::dialect::responses::response::{AnswerState, is_json, write_failed, write_response};
use crate::dialect::usage::{ObservedUsage, Reported};
use crate::wire::json::{Inside, Number, Raw, item, put};

/// The current item.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum OpenItem {
    #[default]
    None,
    Message,
    Think,
    Call,
}

/// The current part of a message.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum OpenPart {
    #[default]
    None,
    Text,
    Refusal,
}

impl OpenPart {
    fn kind(self) -> &'static str {
        if self == OpenPart::Refusal { "refusal" } else { "output_text" }
    }

    /// The member with its text.
    fn member(self) -> &'static str {
        if self == OpenPart::Refusal { "refusal" } else { "text" }
    }
}

/// A tool call.
#[derive(Debug, Default)]
struct CallItem {
    id: Vec<u8>,
    called: Called,
    /// The upstream has reported the arguments complete.
    complete: bool,
}

/// The writer's state.
#[derive(Debug, Default)]
pub struct ResponsesWriter {
    /// Write no events, only the final object.
    quiet: bool,
    started: bool,
    created: u64,
    /// Number of the next event.
    pub sequence: u64,
    /// Index of the current item, or of the next one.
    index: u64,
    open: OpenItem,
    part: OpenPart,
    /// Text of the current part, reasoning or arguments.
    text: Vec<u8>,
    /// Finished parts of the current message, and their number.
    parts: Vec<u8>,
    content_index: u64,
    /// The current call, or the last one.
    call: CallItem,
    /// Finished items.
    done: Vec<u8>,
    reason: StopReason,
    /// Explanation of a refusal that ended the answer.
    explanation: Vec<u8>,
}

impl ResponsesWriter {
    /// Returns a writer without events: only the final object is written.
    pub fn quiet() -> ResponsesWriter {
        ResponsesWriter { quiet: true, ..ResponsesWriter::default() }
    }

    /// Returns a writer that continues after `events` events of an answer.
    pub fn after(events: u64, created: u64) -> ResponsesWriter {
        ResponsesWriter { started: events > 0, sequence: events, created, ..ResponsesWriter::default() }
    }

    /// Bytes held: the answer so far.
    pub fn waiting(&self) -> usize {
        self.done.len() + self.text.len() + self.parts.len() + self.explanation.len()
    }

    /// Writes the events for one delta.
    pub fn take(&mut self, delta: Delta<'_>, to: &mut Destination<'_>) {
        match delta {
            Delta::Ping if self.started => self.event("keepalive", to.out, |_| {}),
            Delta::Ping | Delta::Usage(_) => {}
            Delta::Start => self.start(to),
            Delta::Text(text) => self.say(OpenPart::Text, text, to),
            Delta::Refuse(text) => self.say(OpenPart::Refusal, text, to),
            Delta::Reasoning(text) => self.think(text, to),
            Delta::ReasoningEnd { block } => self.thought(block, to),
            Delta::ToolOpen { slot, id, name } => self.call(slot, id, name, to),
            Delta::ToolArgs { json, .. } => self.arguments(json, to),
            // Its item ends with the beginning of the next one. The status of the last depends on the finish reason.
            Delta::ToolClose { .. } => self.call.complete = true,
            Delta::Stop { reason, explanation, .. } => {
                self.reason = reason;
                self.explanation = explanation.unwrap_or_default().to_vec();
            }
            Delta::End => self.end(to),
        }
    }

    fn end(&mut self, to: &mut Destination<'_>) {
        self.start(to);
        let explanation = std::mem::take(&mut self.explanation);
        if !explanation.is_empty() {
            self.say(OpenPart::Refusal, &explanation, to);
        }
        self.close(to, true);
        let ending = self.ending(Some(to.observed));
        let response = |done: &[u8], out: &mut Vec<u8>| write_response(&ending, done, to.state, to.identity, out);
        match self.reason.to_responses() {
            _ if self.quiet => response(&self.done, to.out),
            Some(_) => self.response("response.incomplete", response, to.out),
            None => self.response("response.completed", response, to.out),
        }
    }

    /// Writes both events by which clients recognise a failure, with the content that was complete before it.
    pub fn fail(&mut self, words: &ErrorWords<'_>, to: &mut Destination<'_>) {
        self.event("error", to.out, |out| words.write_event(out));
        let known = (to.observed.reported != Reported::default()).then_some(to.observed);
        let ending = AnswerState { error: Some(words), ..self.ending(known) };
        let response = |done: &[u8], out: &mut Vec<u8>| write_response(&ending, done, to.state, to.identity, out);
        self.response("response.failed", response, to.out);
    }

    /// Writes the failure from the failed response that the upstream has sent.
    pub fn fail_as(
        &mut self,
        words: &ErrorWords<'_>,
        response: Raw<'_>,
        identity: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) {
        self.event("error", out, |out| words.write_event(out));
        self.response("response.failed", |_, out| write_failed(response, words, identity, out), out);
    }

    /// Writes a heartbeat while the upstream is silent.
    pub fn heartbeat(&mut self, to: &mut Destination<'_>) {
        match self.started {
            true => self.event("keepalive", to.out, |_| {}),
            false => self.start(to),
        }
    }

    fn ending<'a>(&self, usage: Option<&'a ObservedUsage>) -> AnswerState<'a> {
        AnswerState { open: false, created: self.created, reason: self.reason, usage, error: None }
    }

    fn event(&mut self, name: &str, out: &mut Vec<u8>, members: impl FnOnce(&mut Vec<u8>)) {
        if self.quiet {
            return;
        }
        put!(out, "event: ", name, "\ndata: ", r#"{"type":""#, name, r#"","sequence_number":"#, Number(self.sequence));
        self.sequence += 1;
        members(out);
        put!(out, "}\n\n");
    }

    /// Writes an event that contains the response.
    fn response(&mut self, name: &str, write: impl FnOnce(&[u8], &mut Vec<u8>), out: &mut Vec<u8>) {
        let done = std::mem::take(&mut self.done);
        self.event(name, out, |out| {
            put!(out, r#","response":"#);
            write(&done, out);
        });
        self.done = done;
    }

    fn start(&mut self, to: &mut Destination<'_>) {
        if std::mem::replace(&mut self.started, true) {
            return;
        }
        self.created = to.identity.created;
        let ending = AnswerState { open: true, ..self.ending(None) };
        for name in ["response.created", "response.in_progress"] {
            self.response(name, |done, out| write_response(&ending, done, to.state, to.identity, out), to.out);
        }
    }

    /// Writes the id of the current item.
    fn write_id(&self, start: &str, identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
        put!(out, "\"", start, identity.id.strip_prefix(b"req_").unwrap_or(identity.id), "_", Number(self.index), "\"");
    }

    /// Begins an event about the current item, whose ids begin with `start`.
    fn about(&mut self, name: &str, start: &str, to: &mut Destination<'_>, members: impl FnOnce(&mut Vec<u8>)) {
        if self.quiet {
            return;
        }
        let mut head = Vec::with_capacity(96);
        self.write_id(start, to.identity, &mut head);
        let index = self.index;
        self.event(name, to.out, |out| {
            put!(out, r#","item_id":"#, &head[..], r#","output_index":"#, Number(index));
            members(out);
        });
    }

    /// Appends the beginning of the current item: id, type and, if the type has one, status.
    fn write_item(&self, start: &str, kind: &str, status: &str, identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
        item(out);
        put!(out, r#"{"id":"#);
        self.write_id(start, identity, out);
        put!(out, r#","type":""#, kind, "\"");
        if kind != "reasoning" {
            put!(out, r#","status":""#, status, "\"");
        }
    }

    /// Writes the event that adds the current item, with the content `item`.
    fn added(&mut self, item: &[u8], out: &mut Vec<u8>) {
        let index = self.index;
        self.event("response.output_item.added", out, |out| {
            put!(out, r#","output_index":"#, Number(index), r#","item":"#, item);
        });
    }

    /// Ends the current item with the content `written`.
    fn item_done(&mut self, written: &[u8], out: &mut Vec<u8>) {
        let index = self.index;
        self.event("response.output_item.done", out, |out| {
            put!(out, r#","output_index":"#, Number(index), r#","item":"#, written);
        });
        if !self.done.is_empty() {
            self.done.push(b',');
        }
        self.done.extend_from_slice(written);
        self.index += 1;
        self.open = OpenItem::None;
        self.text.clear();
    }

    fn say(&mut self, part: OpenPart, text: &[u8], to: &mut Destination<'_>) {
        self.start(to);
        if self.open != OpenItem::Message {
            self.close(to, false);
            let mut item = Vec::with_capacity(128);
            self.write_item("msg_", "message", "in_progress", to.identity, &mut item);
            put!(&mut item, r#","role":"assistant","content":[]}"#);
            self.added(&item, to.out);
            (self.open, self.part, self.content_index) = (OpenItem::Message, OpenPart::None, 0);
        }
        if self.part != part {
            self.close_part(to);
            self.part = part;
            let index = self.content_index;
            self.about("response.content_part.added", "msg_", to, |out| {
                put!(out, r#","content_index":"#, Number(index), r#","part":"#);
                write_part(part, b"", out);
            });
        }
        let (index, name) = (self.content_index, part_event(part, true));
        self.about(name, "msg_", to, |out| {
            put!(out, r#","content_index":"#, Number(index), r#","delta":"#, Inside(text), logprobs(part));
        });
        self.text.extend_from_slice(text);
    }

    fn close_part(&mut self, to: &mut Destination<'_>) {
        if self.part == OpenPart::None {
            return;
        }
        let (part, index) = (self.part, self.content_index);
        let text = std::mem::take(&mut self.text);
        self.about(part_event(part, false), "msg_", to, |out| {
            put!(out, r#","content_index":"#, Number(index), r#",""#, part.member(), r#"":"#);
            put!(out, Inside(&text), logprobs(part));
        });
        self.about("response.content_part.done", "msg_", to, |out| {
            put!(out, r#","content_index":"#, Number(index), r#","part":"#);
            write_part(part, &text, out);
        });
        item(&mut self.parts);
        write_part(part, &text, &mut self.parts);
        self.content_index += 1;
        self.part = OpenPart::None;
        self.text = text;
        self.text.clear();
    }

    fn think(&mut self, text: &[u8], to: &mut Destination<'_>) {
        let summary = to.state.echo.as_ref().is_some_and(|echo| echo.summary);
        self.open_reasoning(to);
        if !summary {
            return;
        }
        if self.text.is_empty() {
            self.about("response.reasoning_summary_part.added", "rs_", to, |out| {
                put!(out, r#","summary_index":0,"part":{"type":"summary_text","text":""}"#);
            });
        }
        self.about("response.reasoning_summary_text.delta", "rs_", to, |out| {
            put!(out, r#","summary_index":0,"delta":"#, Inside(text));
        });
        self.text.extend_from_slice(text);
    }

    fn open_reasoning(&mut self, to: &mut Destination<'_>) {
        self.start(to);
        if self.open == OpenItem::Think {
            return;
        }
        self.close(to, false);
        let mut item = Vec::with_capacity(128);
        self.write_item("rs_", "reasoning", "", to.identity, &mut item);
        put!(&mut item, r#","summary":[]}"#);
        self.added(&item, to.out);
        self.open = OpenItem::Think;
    }

    /// Ends a piece of reasoning, with the data that its target must get back.
    fn thought(&mut self, block: Option<&[u8]>, to: &mut Destination<'_>) {
        if block.is_some() {
            self.open_reasoning(to);
        }
        if self.open == OpenItem::Think {
            self.close_reasoning(block, to);
        }
    }

    fn close_reasoning(&mut self, block: Option<&[u8]>, to: &mut Destination<'_>) {
        let text = std::mem::take(&mut self.text);
        let mut written = Vec::with_capacity(text.len() + 128);
        self.write_item("rs_", "reasoning", "", to.identity, &mut written);
        put!(&mut written, r#","summary":["#);
        if !text.is_empty() {
            self.about("response.reasoning_summary_text.done", "rs_", to, |out| {
                put!(out, r#","summary_index":0,"text":"#, Inside(&text));
            });
            write_summary(&text, &mut written);
            self.about("response.reasoning_summary_part.done", "rs_", to, |out| {
                put!(out, r#","summary_index":0,"part":"#);
                write_summary(&text, out);
            });
        }
        put!(&mut written, "]");
        if let Some(block) = block {
            put!(&mut written, r#","encrypted_content":""#);
            carrier::close(block, &to.state.mark, &mut written);
            put!(&mut written, "\"");
        }
        put!(&mut written, "}");
        self.item_done(&written, to.out);
    }

    /// Ends the current item. `last`: the answer ends too, so an incomplete answer ends inside this item.
    fn close(&mut self, to: &mut Destination<'_>, last: bool) {
        let cut = last && self.reason.to_responses().is_some();
        match self.open {
            OpenItem::None => {}
            OpenItem::Think => self.close_reasoning(None, to),
            OpenItem::Message => {
                self.close_part(to);
                let parts = std::mem::take(&mut self.parts);
                let mut written = Vec::with_capacity(parts.len() + 128);
                let status = if cut { "incomplete" } else { "completed" };
                self.write_item("msg_", "message", status, to.identity, &mut written);
                put!(&mut written, r#","role":"assistant","content":["#, &parts[..], "]}");
                self.item_done(&written, to.out);
            }
            OpenItem::Call => {
                let whole = self.call.complete && is_json(&self.text);
                self.close_call(cut && !whole, to);
            }
        }
    }
}

fn logprobs(part: OpenPart) -> &'static str {
    if part == OpenPart::Text { r#","logprobs":[]"# } else { "" }
}

fn part_event(part: OpenPart, delta: bool) -> &'static str {
    match (part, delta) {
        (OpenPart::Refusal, true) => "response.refusal.delta",
        (OpenPart::Refusal, false) => "response.refusal.done",
        (_, true) => "response.output_text.delta",
        (_, false) => "response.output_text.done",
    }
}

fn write_part(part: OpenPart, text: &[u8], out: &mut Vec<u8>) {
    let annotations = if part == OpenPart::Text { r#","annotations":[]"# } else { "" };
    put!(out, r#"{"type":""#, part.kind(), r#"",""#, part.member(), r#"":"#, Inside(text), annotations, "}");
}

fn write_summary(text: &[u8], out: &mut Vec<u8>) {
    put!(out, r#"{"type":"summary_text","text":"#, Inside(text), "}");
}
