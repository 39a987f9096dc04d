//! Reads a chat stream, chunks to deltas, and complete answers in the same way.
//!
//! Servers differ in how they number and repeat tool calls; this file hides the differences.

use crate::dialect::answer::{Frame, StreamFault};
use crate::dialect::chat::reasoning::{details_of, joined, thought_block};
use crate::dialect::chat::signature;
use crate::dialect::errors::{ErrorText, is_error, read_error};
use crate::dialect::neutral::arguments::Arguments;
use crate::dialect::neutral::delta::{Delta, StopReason, TOOL_CALLS_MAX, TOOL_HELD_MAX, Take, choice_word};
use crate::dialect::neutral::is_blank;
use crate::dialect::neutral::naming::hash;
use crate::dialect::neutral::pieces::ArgumentsSoFar;
use crate::dialect::usage::Reported;
use crate::wire::json::{self, Raw, ValueKind, eq_unescaped, item};

/// Bytes of storage for arguments given as objects that outlive their event.
const SCRATCH_KEPT: usize = 4096;
/// Lists of texts within each other that are read: servers nest one.
const LISTS_MAX: usize = 4;
/// Arguments with which some servers begin every call. Later arguments replace them.
const PLACEHOLDER: &[u8] = b"{}";

/// A tool call as the upstream numbers it.
#[derive(Debug, Default)]
struct IndexedCall {
    index: Option<u64>,
    /// Hash of its id, once known.
    id: Option<u64>,
    id_text: Vec<u8>,
    /// Its name so far; empty if unknown.
    name: Vec<u8>,
    opened: bool,
    closed: bool,
    /// Arguments that have been passed on.
    arguments: ArgumentsSoFar,
    /// Arguments that arrived before the name or after their own end, or [`PLACEHOLDER`].
    waiting: Vec<u8>,
    /// The block with its signature, before it is opened.
    signature: Vec<u8>,
    /// Its signature has been passed on.
    is_signed: bool,
}

impl IndexedCall {
    /// True if its arguments are complete, but its end was not passed on.
    fn has_ended(&self) -> bool {
        self.arguments.is_complete() && !self.closed
    }
}

/// The reader's state.
#[derive(Debug, Default)]
pub struct ChatReader {
    stopped: bool,
    /// The answer is complete: each entry of a list of calls is a call.
    is_whole: bool,
    calls: Vec<IndexedCall>,
    /// Calls that earlier chunks have begun.
    before: usize,
    waiting: usize,
    scratch: Vec<u8>,
    /// The reasoning so far, for clients that send it back; `None` for others.
    kept: Option<Vec<u8>>,
    /// `reasoning_details` so far, separated by commas: the provider requires them unchanged.
    details: Vec<u8>,
}

impl ChatReader {
    /// `keeps`: the client receives each piece of reasoning, to send it back.
    pub fn new(keeps: bool) -> ChatReader {
        ChatReader { kept: keeps.then(Vec::new), ..ChatReader::default() }
    }

    /// Bytes of names, of ids and arguments that wait, and of reasoning that waits for its end.
    pub fn waiting(&self) -> usize {
        self.waiting + self.details.len() + self.kept.as_ref().map_or(0, Vec::len)
    }

    /// Reads an event with data; true if it counts as a sign of progress.
    pub fn event(&mut self, frame: &Frame<'_>, sink: &mut dyn Take) -> Result<bool, StreamFault> {
        if frame.data.trim_ascii() == b"[DONE]" {
            if !self.stopped {
                return Err(StreamFault::Incomplete);
            }
            self.finish(sink)?;
            return Ok(true);
        }
        if frame.name == b"ping" {
            sink.take(Delta::Ping)?;
            return Ok(false);
        }
        let chunk = Raw::new(frame.data);
        if json::check(frame.data).is_err() || chunk.kind() != ValueKind::Object {
            return Err(StreamFault::of_other(frame.data));
        }
        let (mut usage, mut choices) = (None, Raw::NULL);
        for (key, value) in chunk.members() {
            if eq_unescaped(key, "choices") {
                choices = value;
            } else if eq_unescaped(key, "usage") {
                usage = Some(value);
            } else if eq_unescaped(key, "error") && is_error(value) {
                return Err(StreamFault::Error(ErrorText::from_value(value)));
            } else if eq_unescaped(key, "object") && value.is("error") {
                return Err(StreamFault::Error(read_error(frame.data).unwrap_or_default()));
            }
        }
        if frame.name == b"error" {
            return Err(StreamFault::Error(read_error(frame.data).unwrap_or_default()));
        }
        let mut choices = choices.items();
        let choice = choices.find(|choice| !is_other(choice.get("index")));
        let beside = choices.find(|other| calls_in(*other).is_some());
        let read = choice.map_or(Ok(()), |choice| self.choice(choice, beside, sink));
        // The usage includes the text of this chunk. Some servers put the usage into the choice.
        let is_object = |usage: &Raw<'_>| usage.kind() == ValueKind::Object;
        let inside = || choice.and_then(|choice| choice.get("usage")).filter(is_object);
        if let Some(usage) = usage.filter(is_object).or_else(inside) {
            sink.take(Delta::Usage(Reported::from_chat(usage)))?;
        }
        read.map(|()| true)
    }

    /// Reads a complete answer.
    pub fn whole(&mut self, body: Raw<'_>, sink: &mut dyn Take) -> Result<(), StreamFault> {
        self.is_whole = true;
        let [choices, usage] = body.pick(["choices", "usage"]);
        let choices = choices.unwrap_or(Raw::NULL);
        let mut left = choices.items();
        let choice = left.find(|choice| !is_other(choice.get("index")));
        let beside = left.find(|other| calls_in(*other).is_some());
        let choice = choice.or_else(|| choices.items().next()).ok_or(StreamFault::Malformed)?;
        self.choice(choice, beside, sink)?;
        if choice.get("message").is_none_or(|message| message.kind() != ValueKind::Object) {
            return Err(StreamFault::Malformed);
        }
        self.settle(sink)?;
        self.thought(true, sink)?;
        let usage = usage.filter(|usage| !usage.is_null());
        sink.take(Delta::Usage(usage.map_or_else(|| Reported::of_choices(choices), Reported::from_chat)))?;
        self.finish(sink)
    }

    /// Handles the end of the stream. A call that never got a name makes the answer incomplete.
    pub fn finish(&mut self, sink: &mut dyn Take) -> Result<(), StreamFault> {
        self.settle(sink)?;
        if self.calls.iter().any(|call| !call.opened) {
            return Err(StreamFault::Malformed);
        }
        sink.take(Delta::End)
    }

    /// `beside`: another choice of the chunk, with calls. Some servers put the text into one and the calls into the
    /// next.
    fn choice(&mut self, choice: Raw<'_>, beside: Option<Raw<'_>>, sink: &mut dyn Take) -> Result<(), StreamFault> {
        let (mut refusal, mut thought, mut said) = (None, None, false);
        let [mut content, mut calls, mut details, mut older] = [Raw::NULL; 4];
        let names = ["delta", "finish_reason", "stop_reason", "error", "message"];
        let [delta, word, sequence, error, message] = choice.pick(names);
        let word = choice_word(word.or_else(|| beside?.get("finish_reason")), error)?;
        // Some servers write a chunk like a complete answer.
        let delta = delta.filter(|delta| message.is_none() || delta.members().next().is_some());
        for (key, value) in delta.or(message).unwrap_or(Raw::NULL).members() {
            let given = || Some(value).filter(|value| thinks(*value, true));
            if eq_unescaped(key, "content") {
                content = value;
            } else if eq_unescaped(key, "refusal") {
                refusal = value.string().filter(|text| !text.is_empty());
            } else if eq_unescaped(key, "reasoning_content") {
                thought = given().or(thought);
            } else if eq_unescaped(key, "reasoning") {
                thought = thought.or_else(given);
            } else if eq_unescaped(key, "reasoning_details") {
                details = value;
            } else if eq_unescaped(key, "tool_calls") {
                calls = value;
            } else if eq_unescaped(key, "function_call") {
                older = value;
            }
        }
        if let Some(thought) = thought {
            each_text(thought, true, &mut |_, text| self.think(text, sink))?;
        }
        if details.kind() == ValueKind::Array {
            self.keep_details(details, thought.is_none() && !thinks(content, false), sink)?;
        }
        each_text(content, false, &mut |nested, text| match nested {
            // The reasoning was already read under its other name.
            true if thought.is_some() => Ok(()),
            true => self.think(text, sink),
            false => {
                said = true;
                self.thought(false, sink)?;
                self.close(text, sink)?;
                sink.take(Delta::Text(text))
            }
        })?;
        if let Some(text) = refusal.filter(|_| !said) {
            self.thought(false, sink)?;
            self.close(text, sink)?;
            sink.take(Delta::Refuse(text))?;
        }
        if let Some(others) = beside.filter(|_| calls.items().next().is_none() && self.calls.is_empty()) {
            calls = calls_in(others).unwrap_or(calls);
        }
        self.entries(calls, older, sink)?;
        if let Some(word) = word.filter(|_| !self.stopped) {
            self.stopped = true;
            self.settle(sink)?;
            self.thought(true, sink)?;
            let sequence = sequence_of(choice, sequence);
            let reason = StopReason::from_chat(word, sequence.is_some());
            sink.take(Delta::Stop { reason, sequence, explanation: None })?;
        }
        Ok(())
    }

    /// Collects a piece of `reasoning_details`. `shows`: no other member has its text.
    fn keep_details(&mut self, details: Raw<'_>, shows: bool, sink: &mut dyn Take) -> Result<(), StreamFault> {
        for (detail, text) in details_of(details) {
            item(&mut self.details);
            self.details.extend_from_slice(detail.bytes());
            if let Some(text) = text.filter(|_| shows) {
                self.think(text, sink)?;
            }
        }
        Ok(())
    }

    fn think(&mut self, text: &[u8], sink: &mut dyn Take) -> Result<(), StreamFault> {
        if let Some(kept) = &mut self.kept {
            kept.extend_from_slice(text);
        }
        self.close(text, sink)?;
        sink.take(Delta::Reasoning(text))
    }

    /// Ends the calls with complete arguments, because text follows them. A line feed between two calls does not count.
    fn close(&mut self, text: &[u8], sink: &mut dyn Take) -> Result<(), StreamFault> {
        if self.calls.iter().any(IndexedCall::has_ended) && !is_blank(text) {
            self.close_ended(sink)?;
        }
        Ok(())
    }

    fn close_ended(&mut self, sink: &mut dyn Take) -> Result<(), StreamFault> {
        for (slot, call) in self.calls.iter_mut().enumerate().filter(|(_, call)| call.has_ended()) {
            call.closed = true;
            sink.take(Delta::ToolClose { slot })?;
        }
        Ok(())
    }

    /// Passes on the waiting arguments of each call, unless they repeat the arguments so far.
    fn settle(&mut self, sink: &mut dyn Take) -> Result<(), StreamFault> {
        for slot in 0..self.calls.len() {
            self.open(slot, sink)?;
            let call = &mut self.calls[slot];
            if call.opened && !call.waiting.is_empty() {
                let more = std::mem::take(&mut call.waiting);
                self.waiting -= more.len();
                if ArgumentsSoFar::of(&more) != call.arguments {
                    sink.take(Delta::ToolArgs { slot, json: &more })?;
                }
            }
        }
        Ok(())
    }

    /// Begins a call whose name is known.
    fn open(&mut self, slot: usize, sink: &mut dyn Take) -> Result<(), StreamFault> {
        let call = &mut self.calls[slot];
        if call.opened || call.name.is_empty() {
            return Ok(());
        }
        call.opened = true;
        if !call.signature.is_empty() {
            let block = std::mem::take(&mut call.signature);
            call.is_signed = true;
            self.waiting -= block.len();
            self.signed(&block, sink)?;
        }
        let call = &mut self.calls[slot];
        sink.take(Delta::ToolOpen { slot, id: &call.id_text, name: &call.name })?;
        let early = std::mem::take(&mut call.waiting);
        self.waiting -= early.len();
        call.arguments.feed(&early);
        if early.is_empty() { Ok(()) } else { sink.take(Delta::ToolArgs { slot, json: &early }) }
    }

    /// Notes arguments that match a template; false if their event must be read instead.
    pub fn continues_call(&mut self, slot: usize, json: &[u8]) -> bool {
        let arguments = &mut self.calls[slot].arguments;
        let continues_call = !arguments.is_complete();
        if continues_call {
            arguments.feed(json);
        }
        continues_call
    }

    /// Ends the reasoning so far as a complete piece, if the client needs one. `ends`: the answer ends. Before that, no
    /// block may come between the pieces of a call.
    fn thought(&mut self, ends: bool, sink: &mut dyn Take) -> Result<(), StreamFault> {
        let text = self.kept.as_mut().map(std::mem::take).unwrap_or_default();
        let all = ends || self.calls.is_empty() || !text.is_empty();
        let mut details = if all { std::mem::take(&mut self.details) } else { Vec::new() };
        if !self.is_whole {
            details = joined(&details);
        }
        match thought_block(&text, &details) {
            Some(block) => sink.take(Delta::ReasoningEnd { block: Some(&block) }),
            None => Ok(()),
        }
    }

    /// Reads the calls of a chunk; `older`: its `function_call`.
    fn entries(&mut self, calls: Raw<'_>, older: Raw<'_>, sink: &mut dyn Take) -> Result<(), StreamFault> {
        let mut any = false;
        self.before = self.calls.len();
        for entry in calls.items() {
            let [index, id, function, extra] = entry.pick(["index", "id", "function", "extra_content"]);
            let function = function.unwrap_or(Raw::NULL);
            if !says_nothing(id, function, extra) {
                any = true;
                self.entry([index, id, extra], function, sink)?;
            }
        }
        if !any && !says_nothing(None, older, None) {
            self.entry([None; 3], older, sink)?;
        }
        Ok(())
    }

    fn entry(
        &mut self,
        [index, id, extra]: [Option<Raw<'_>>; 3],
        function: Raw<'_>,
        sink: &mut dyn Take,
    ) -> Result<(), StreamFault> {
        let given = |value: Option<Raw<'_>>| value.is_some_and(|value| value.string().is_some_and(|s| !s.is_empty()));
        let id = id.filter(|id| given(Some(*id))).and_then(Raw::string);
        let name = function.get("name").filter(|name| given(Some(*name))).and_then(Raw::string);
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let json = match function.get("arguments") {
            Some(object) if object.kind() == ValueKind::Object => {
                Arguments::Value(object).write_text(&mut scratch);
                scratch.as_slice()
            }
            other => other.and_then(Raw::string).unwrap_or_default(),
        };
        self.thought(false, sink)?;
        let known = self.calls.len();
        let slot = self.slot(index.and_then(Raw::count), id, name, is_blank(json))?;
        if slot == known {
            // The names of earlier calls are complete.
            (0..slot).try_for_each(|before| self.open(before, sink))?;
        }
        let call = &mut self.calls[slot];
        if let Some(id) = id.filter(|_| call.id.is_none()) {
            call.id = Some(hash(id));
            self.waiting += id.len();
            call.id_text.extend_from_slice(id);
        }
        if let Some(name) = name {
            self.name(slot, name)?;
        }
        if let Some(extra) = extra {
            self.sign(slot, extra, sink)?;
        }
        self.arguments(slot, json, sink)?;
        // One large event must not occupy memory until its stream ends.
        scratch.shrink_to(SCRATCH_KEPT);
        self.scratch = scratch;
        if self.waiting > TOOL_HELD_MAX { Err(StreamFault::TooLarge) } else { Ok(()) }
    }

    /// Keeps the signature of a call until the call begins. A late one follows the call.
    #[cold]
    fn sign(&mut self, slot: usize, extra: Raw<'_>, sink: &mut dyn Take) -> Result<(), StreamFault> {
        let call = &mut self.calls[slot];
        // A server may repeat it in every chunk.
        let block = signature::block_of(extra, &call.id_text).filter(|_| !call.is_signed);
        let Some(block) = block else { return Ok(()) };
        if call.opened {
            call.is_signed = true;
            return self.signed(&block, sink);
        }
        self.waiting = self.waiting + block.len() - call.signature.len();
        call.signature = block;
        Ok(())
    }

    /// Passes on a signature. It gets a separate block, otherwise earlier reasoning would be sent back as its text.
    fn signed(&mut self, block: &[u8], sink: &mut dyn Take) -> Result<(), StreamFault> {
        self.close_ended(sink)?;
        sink.take(Delta::ReasoningEnd { block: None })?;
        sink.take(Delta::ReasoningEnd { block: Some(block) })
    }

    /// Reads the name of a call. Some servers send it in pieces, others repeat it in every chunk.
    fn name(&mut self, slot: usize, name: &[u8]) -> Result<(), StreamFault> {
        let call = &mut self.calls[slot];
        if call.opened {
            // The client already has the first part as the name, and may have such a tool.
            let is_other = call.name != name && !call.arguments.is_complete();
            return if is_other { Err(StreamFault::Malformed) } else { Ok(()) };
        }
        let repeats = if name.starts_with(&call.name) { call.name.len() } else { 0 };
        call.name.extend_from_slice(&name[repeats..]);
        self.waiting += name.len() - repeats;
        Ok(())
    }

    /// Reads a piece of a call's arguments. The first piece opens the call: before it, more of the name may follow.
    fn arguments(&mut self, slot: usize, json: &[u8], sink: &mut dyn Take) -> Result<(), StreamFault> {
        let call = &mut self.calls[slot];
        let (is_first, is_over) = (call.arguments.is_empty(), call.arguments.is_complete());
        if json.is_empty() || ((is_first || is_over) && is_blank(json)) {
            return Ok(());
        }
        let is_placeholder = is_first && call.waiting.is_empty() && json == PLACEHOLDER;
        if call.name.is_empty() || is_over || is_placeholder {
            self.waiting += json.len();
            call.waiting.extend_from_slice(json);
            return Ok(());
        }
        if is_first && call.waiting == PLACEHOLDER {
            self.waiting -= PLACEHOLDER.len();
            call.waiting.clear();
        }
        self.open(slot, sink)?;
        self.calls[slot].arguments.feed(json);
        sink.take(Delta::ToolArgs { slot, json })
    }

    /// Finds the call that a fragment belongs to: by its index; if an index recurs with another id and a name, it is a
    /// new call. Without an index: by its id. Without either: the last call, unless another name, or a second name in
    /// the same chunk, begins a new one. A name after complete arguments begins a new one, too, unless the id is the
    /// call's or the name is repeated without arguments (`bare`).
    fn slot(
        &mut self,
        index: Option<u64>,
        id: Option<&[u8]>,
        name: Option<&[u8]>,
        bare: bool,
    ) -> Result<usize, StreamFault> {
        let (id, named) = (id.map(hash), name.is_some());
        let found = match index {
            Some(_) => self.calls.iter().rposition(|call| call.index == index),
            None if id.is_some() => self.calls.iter().rposition(|call| call.id == id),
            None => self.calls.len().checked_sub(1),
        };
        let reused = |slot: &usize| {
            let call = &self.calls[*slot];
            let is_other = name.is_some_and(|name| call.name != name);
            let is_next = call.arguments.is_complete() && (is_other || !bare) && (id.is_none() || call.id != id);
            named
                && (is_next
                    || match (index, id) {
                        (None, None) => !call.name.is_empty() && (is_other || *slot >= self.before),
                        _ => id.is_some() && call.id.is_some() && call.id != id,
                    })
        };
        if let Some(slot) = found.filter(|slot| !self.is_whole && !reused(slot)) {
            return Ok(slot);
        }
        if self.calls.len() >= TOOL_CALLS_MAX {
            return Err(StreamFault::TooLarge);
        }
        self.calls.push(IndexedCall { index, ..IndexedCall::default() });
        Ok(self.calls.len() - 1)
    }
}

/// True if a value has a text that is reasoning. `all`: whatever it has is reasoning.
fn thinks(value: Raw<'_>, all: bool) -> bool {
    each_text(value, all, &mut |thinks, _| if thinks { Err(()) } else { Ok(()) }).is_err()
}

/// True for a call without id, name, arguments and signature, which some servers write beside a text.
fn says_nothing(id: Option<Raw<'_>>, function: Raw<'_>, extra: Option<Raw<'_>>) -> bool {
    let is_empty = |value: Raw<'_>| value.string().is_none_or(<[u8]>::is_empty) && value.members().next().is_none();
    function.pick(["name", "arguments"]).into_iter().chain([id, extra]).flatten().all(is_empty)
}

/// Calls `take` with the inside of each text in a message's content or reasoning: a string, or a list of parts, in
/// which thinking may be nested. `thinking`: all of it is reasoning. `take` gets true for reasoning.
fn each_text<'a, E>(
    content: Raw<'a>,
    thinking: bool,
    take: &mut impl FnMut(bool, &'a [u8]) -> Result<(), E>,
) -> Result<(), E> {
    each_text_within(LISTS_MAX, content, thinking, take)
}

/// `lists`: lists that may be within each other, since each is walked with all that it contains.
fn each_text_within<'a, E>(
    lists: usize,
    content: Raw<'a>,
    thinking: bool,
    take: &mut impl FnMut(bool, &'a [u8]) -> Result<(), E>,
) -> Result<(), E> {
    if let Some(text) = content.string() {
        return if text.is_empty() { Ok(()) } else { take(thinking, text) };
    }
    let Some(lists) = lists.checked_sub(1) else { return Ok(()) };
    let mut parts = content.items();
    while let Some((part, [kind, thought, text])) = parts.pick(["type", "thinking", "text"]) {
        if part.string().is_some() {
            each_text_within(lists, part, thinking, take)?;
            continue;
        }
        let kind = kind.and_then(Raw::string).unwrap_or(b"text");
        let is_thought = thought.is_some() || matches!(kind, b"thinking" | b"reasoning");
        if !thinking && !is_thought && !matches!(kind, b"text" | b"output_text") {
            // Of an unknown type: no answer, whatever its members are.
            continue;
        }
        each_text_within(lists, thought.or(text).unwrap_or(Raw::NULL), thinking || is_thought, take)?;
    }
    Ok(())
}

/// The stop sequence that ended a choice: `own` is its `stop_reason`, as vLLM writes it; SGLang has another name.
fn sequence_of<'a>(choice: Raw<'a>, own: Option<Raw<'a>>) -> Option<&'a [u8]> {
    own.and_then(Raw::string).or_else(|| choice.get("matched_stop")?.string())
}

/// True for the index of any choice but the first: only one was requested.
fn is_other(index: Option<Raw<'_>>) -> bool {
    index.and_then(Raw::count).is_some_and(|index| index > 0)
}

/// The calls of a choice, if it has any.
fn calls_in(choice: Raw<'_>) -> Option<Raw<'_>> {
    let [delta, message] = choice.pick(["delta", "message"]);
    delta.or(message)?.get("tool_calls").filter(|calls| calls.items().next().is_some())
}
