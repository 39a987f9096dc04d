//! Reads a responses stream, events to deltas, and complete answers in the same way.
//!
//! Final events repeat the content of earlier deltas; only the part that the deltas lacked is passed on.

use crate::dialect::answer::{Frame, StreamFault};
use crate::dialect::errors::{ErrorText, is_error, read_error};
use crate::dialect::neutral::arguments::Arguments;
use crate::dialect::neutral::delta::{Delta, StopReason, TOOL_CALLS_MAX, TOOL_HELD_MAX, Take, TextKind, lists_nothing};
use crate::dialect::neutral::pieces::{ArgumentsSoFar, TextSoFar};
use crate::dialect::usage::Reported;
use crate::wire::json::{self, Raw, ValueKind, member_inside};
use std::borrow::Cow;

/// Maximum number of open items and parts. The format has one of each.
const OPEN_MAX: usize = 64;

/// Output of an item so far.
#[derive(Debug, Default)]
struct OutputItem {
    index: u64,
    /// Number of the call, if it is one.
    slot: Option<usize>,
    /// Id of that call.
    id: Vec<u8>,
    /// A bit for each part of its content of which something has been passed on; see [`bit`].
    given: u64,
    /// The current part of the summary or of the content, and its text so far.
    part: u64,
    text: TextSoFar,
    arguments: ArgumentsSoFar,
    /// Arguments that arrived before the event that opens the call, or in it. The pieces may repeat the latter.
    early: Vec<u8>,
}

/// Continuation of an item, as the inside of a string; true if it begins a later part of the item.
type More<'a> = (Cow<'a, [u8]>, bool);

/// A text of a complete item: index of its part, kind, inside of the string.
type PartText<'a> = (u64, TextKind, &'a [u8]);

/// The reader's state.
#[derive(Debug, Default)]
pub struct ResponsesReader {
    items: Vec<OutputItem>,
    calls: usize,
    /// Bytes of `early` of all items.
    pub waiting: usize,
    /// The index after the last item that an event has reported.
    next: u64,
    /// The client receives each piece of reasoning, to send it back.
    keeps: bool,
    /// An event of an item has arrived.
    answered: bool,
}

impl ResponsesReader {
    /// `keeps`: the client receives each piece of reasoning, to send it back.
    pub fn new(keeps: bool) -> ResponsesReader {
        ResponsesReader { keeps, ..ResponsesReader::default() }
    }

    /// Reads an event with data; true if it counts as a sign of progress.
    pub fn event(&mut self, frame: &Frame<'_>, sink: &mut dyn Take) -> Result<bool, StreamFault> {
        if frame.data.trim_ascii() == b"[DONE]" {
            return Ok(false);
        }
        let event = Raw::new(frame.data);
        if json::check(frame.data).is_err() || event.kind() != ValueKind::Object {
            return Err(StreamFault::of_other(frame.data));
        }
        let kind = kind_of(event.get("type"), frame.name);
        let kind = &*kind;
        if matches!(kind, b"keepalive" | b"ping") {
            sink.take(Delta::Ping)?;
            return Ok(false);
        }
        let response = event.get("response").unwrap_or(Raw::NULL);
        if let Some(text) = failed(kind, event, response) {
            usage(response, sink)?;
            return Err(StreamFault::Error(text));
        }
        self.answered |= is_of_item(kind, response);
        match kind {
            b"response.output_item.added" => self.added(event, sink)?,
            b"response.output_item.done" => {
                self.item_done(index_of(event), event.get("item").unwrap_or(Raw::NULL), false, sink)?;
            }
            b"response.output_text.delta" | b"response.output_text.done" => {
                if let Some((text, _)) = self.more(event, "text")? {
                    sink.take(Delta::Text(&text))?;
                }
            }
            b"response.refusal.delta" | b"response.refusal.done" => {
                if let Some((text, _)) = self.more(event, "refusal")? {
                    sink.take(Delta::Refuse(&text))?;
                }
            }
            b"response.reasoning_summary_text.delta"
            | b"response.reasoning_summary_text.done"
            | b"response.reasoning_text.delta"
            | b"response.reasoning_text.done" => self.think(event, sink)?,
            b"response.function_call_arguments.delta" | b"response.function_call_arguments.done" => {
                self.arguments(event, sink)?;
            }
            b"response.completed" if !self.answered && is_unanswered(kind, response) => {
                return Err(StreamFault::Malformed);
            }
            b"response.completed" => self.end(response, false, sink)?,
            b"response.incomplete" => self.end(response, true, sink)?,
            _ => {}
        }
        Ok(true)
    }

    /// Reads a complete answer.
    pub fn whole(&mut self, body: Raw<'_>, sink: &mut dyn Take) -> Result<(), StreamFault> {
        match unfinished(body.get("status").unwrap_or(Raw::NULL)) {
            Some(text) => Err(StreamFault::Error(text)),
            None => self.end(body, false, sink),
        }
    }

    fn item(&mut self, index: u64) -> Result<&mut OutputItem, StreamFault> {
        self.next = self.next.max(index.saturating_add(1));
        let at = match self.items.iter().rposition(|item| item.index == index) {
            Some(at) => at,
            None if self.items.len() >= OPEN_MAX => return Err(StreamFault::TooLarge),
            None => {
                self.items.push(OutputItem { index, ..OutputItem::default() });
                self.items.len() - 1
            }
        };
        Ok(&mut self.items[at])
    }

    /// The text of an event that no earlier event contained. An event that ends a part repeats it in its member
    /// `whole`.
    fn more<'a>(&mut self, event: Raw<'a>, whole: &str) -> Result<Option<More<'a>>, StreamFault> {
        let names = ["output_index", "summary_index", "content_index", "delta", whole];
        let [index, summary, content, delta, whole] = event.pick(names);
        let index = index.and_then(Raw::count).unwrap_or(0);
        // The item has ended and was passed on completely.
        let over = index < self.next && self.items.iter().all(|item| item.index != index);
        let text = delta.or(whole.filter(|_| !over)).and_then(Raw::string).unwrap_or_default();
        if text.is_empty() {
            return Ok(None);
        }
        let part = summary.or(content).and_then(Raw::count).unwrap_or(0);
        let item = self.item(index)?;
        if item.part != part {
            if delta.is_none() && item.given & bit(part) != 0 {
                // An earlier part: the client has it.
                return Ok(None);
            }
            (item.part, item.text) = (part, TextSoFar::default());
        }
        // Text that differs cannot replace what the client already has.
        let text = if delta.is_some() { Cow::Borrowed(text) } else { item.text.rest_of(text).unwrap_or_default() };
        if text.is_empty() {
            return Ok(None);
        }
        let begins = item.given != 0 && item.text.is_empty();
        item.given |= bit(part);
        item.text.feed(&text);
        Ok(Some((text, begins)))
    }

    fn think(&mut self, event: Raw<'_>, sink: &mut dyn Take) -> Result<(), StreamFault> {
        let Some((text, begins)) = self.more(event, "text")? else { return Ok(()) };
        if begins {
            sink.take(Delta::Reasoning(b"\\n\\n"))?;
        }
        sink.take(Delta::Reasoning(&text))
    }

    fn added(&mut self, event: Raw<'_>, sink: &mut dyn Take) -> Result<(), StreamFault> {
        let item = event.get("item").unwrap_or(Raw::NULL);
        if !item.get("type").is_some_and(|kind| kind.is("function_call")) {
            return Ok(());
        }
        self.open_call(index_of(event), item, sink)
    }

    fn open_call(&mut self, index: u64, item: Raw<'_>, sink: &mut dyn Take) -> Result<(), StreamFault> {
        if self.calls >= TOOL_CALLS_MAX {
            return Err(StreamFault::TooLarge);
        }
        let slot = self.calls;
        // A call without a name makes the answer incomplete, as in every format.
        let name = item.get("name").and_then(Raw::string).filter(|name| !name.is_empty());
        let Some(name) = name else { return Err(StreamFault::Malformed) };
        let known = self.item(index)?;
        (known.slot, known.id) = (Some(slot), call_id(item).to_vec());
        let before = std::mem::take(&mut known.early);
        self.calls += 1;
        self.waiting -= before.len();
        sink.take(Delta::ToolOpen { slot, id: call_id(item), name })?;
        let with_it = Arguments::of(item.get("arguments")).text();
        if before.is_empty() && !with_it.is_empty() {
            return self.keep(index, &with_it);
        }
        self.pass(index, &before, sink)
    }

    /// Holds arguments until the next event of their call.
    fn keep(&mut self, index: u64, json: &[u8]) -> Result<(), StreamFault> {
        self.item(index)?.early.extend_from_slice(json);
        self.waiting += json.len();
        if self.waiting > TOOL_HELD_MAX { Err(StreamFault::TooLarge) } else { Ok(()) }
    }

    /// Passes on more arguments of a call.
    fn pass(&mut self, index: u64, json: &[u8], sink: &mut dyn Take) -> Result<(), StreamFault> {
        let item = self.item(index)?;
        let Some(slot) = item.slot.filter(|_| !json.is_empty()) else { return Ok(()) };
        item.given = 1;
        item.arguments.feed(json);
        sink.take(Delta::ToolArgs { slot, json })
    }

    /// Reads a piece of arguments, or all of them.
    fn arguments(&mut self, event: Raw<'_>, sink: &mut dyn Take) -> Result<(), StreamFault> {
        let index = index_of(event);
        let [delta, whole] = event.pick(["delta", "arguments"]).map(|text| text.and_then(Raw::string));
        let item = self.item(index)?;
        let Some(delta) = delta else {
            // Arguments of a call that was never opened are repeated in its final event.
            return if item.slot.is_some() { self.complete(index, whole.unwrap_or_default(), sink) } else { Ok(()) };
        };
        if item.slot.is_none() {
            return self.keep(index, delta);
        }
        if !item.early.is_empty() {
            let early = std::mem::take(&mut item.early);
            self.waiting -= early.len();
            let repeats =
                ArgumentsSoFar::of(&early).is_complete() || early.starts_with(delta) || delta.starts_with(&early);
            self.pass(index, if repeats { b"" } else { &early }, sink)?;
        }
        self.pass(index, delta, sink)
    }

    /// Passes on the part of the complete arguments `whole` that the pieces lacked. It is an error if the pieces are
    /// incomplete and not a prefix of `whole`: the client would run the tool with wrong arguments.
    fn complete(&mut self, index: u64, whole: &[u8], sink: &mut dyn Take) -> Result<(), StreamFault> {
        let item = self.item(index)?;
        let early = std::mem::take(&mut item.early);
        let rest = item.arguments.rest_of(if whole.is_empty() { &early } else { whole });
        self.waiting -= early.len();
        self.pass(index, &rest.ok_or(StreamFault::Malformed)?, sink)
    }

    /// Ends an item: passes on the content that no earlier event had. `last`: the response ends too. Before that, a
    /// call without arguments remains open, since the response may still contain them.
    fn item_done(&mut self, index: u64, item: Raw<'_>, last: bool, sink: &mut dyn Take) -> Result<(), StreamFault> {
        let is = |kind| item.get("type").is_some_and(|own: Raw<'_>| own.is(kind));
        if is("function_call") {
            let given = self.item(index)?.given != 0;
            if self.item(index)?.slot.is_none() {
                self.open_call(index, item, sink)?;
            }
            // An object may be formatted differently from the pieces that arrived.
            let whole = item.get("arguments").filter(|whole| !given || whole.string().is_some());
            self.complete(index, &Arguments::of(whole).text(), sink)?;
            let known = self.item(index)?;
            if known.given == 0 && !last {
                return Ok(());
            }
            sink.take(Delta::ToolClose { slot: known.slot.unwrap_or(0) })?;
        } else if is("message") {
            self.rest(index, &mut texts_of(item), sink)?;
        } else if is("reasoning") {
            self.rest(index, &mut thoughts(item), sink)?;
            thought(item, self.keeps, sink)?;
        }
        if let Some(at) = self.items.iter().position(|item| item.index == index) {
            self.waiting -= self.items.remove(at).early.len();
        }
        Ok(())
    }

    /// Passes on the texts of an item that no earlier event contained; nothing if they differ from the text that the
    /// client has.
    fn rest(
        &mut self,
        index: u64,
        texts: &mut dyn Iterator<Item = PartText<'_>>,
        sink: &mut dyn Take,
    ) -> Result<(), StreamFault> {
        let item = self.item(index)?;
        let (given, current, before) = (item.given, item.part, item.text);
        let mut begun = given != 0;
        for (part, kind, text) in texts {
            if given & bit(part) == 0 {
                if begun && kind == TextKind::Think {
                    sink.take(Delta::Reasoning(b"\\n\\n"))?;
                }
                sink.take(kind.delta(text))?;
                begun = true;
            } else if part == current {
                let Some(rest) = before.rest_of(text) else { break };
                if !rest.is_empty() {
                    sink.take(kind.delta(&rest))?;
                }
            }
        }
        Ok(())
    }

    /// Ends the response. Items that no event has reported, or not completely, are taken from it.
    fn end(&mut self, response: Raw<'_>, incomplete: bool, sink: &mut dyn Take) -> Result<(), StreamFault> {
        for (index, item) in (0..).zip(response.get("output").unwrap_or(Raw::NULL).items()) {
            let is_it = |open: &OutputItem| open.index == index && (open.slot.is_none() || open.id == call_id(item));
            if index >= self.next || self.items.iter().any(is_it) {
                self.item_done(index, item, true, sink)?;
            }
        }
        for (index, slot) in self.items.iter().map(|open| (open.index, open.slot)).collect::<Vec<_>>() {
            if let Some(slot) = slot {
                self.complete(index, b"", sink)?;
                sink.take(Delta::ToolClose { slot })?;
            }
        }
        self.items.clear();
        usage(response, sink)?;
        let reason = reason(response, incomplete, self.calls > 0);
        sink.take(Delta::Stop { reason, sequence: None, explanation: None })?;
        sink.take(Delta::End)
    }
}

/// Type of an event, by its own member or by its name; an escape counts as the character that it represents.
pub fn kind_of<'a>(own: Option<Raw<'a>>, name: &'a [u8]) -> Cow<'a, [u8]> {
    match own.and_then(Raw::string) {
        Some(raw) if raw.contains(&b'\\') => {
            let text = Raw::text_of(raw);
            // A value with line ends would not fit on the `event:` line.
            if text.contains(char::is_control) {
                Cow::Borrowed(raw)
            } else {
                Cow::Owned(text.into_owned().into_bytes())
            }
        }
        Some(raw) => Cow::Borrowed(raw),
        None => Cow::Borrowed(name),
    }
}

/// Index of the item that an event is about.
fn index_of(event: Raw<'_>) -> u64 {
    event.get("output_index").and_then(Raw::count).unwrap_or(0)
}

/// Error for the final status of a response, unless it is `completed` or `incomplete`.
pub fn unfinished(status: Raw<'_>) -> Option<ErrorText> {
    let ends = status.is_null() || status.is("completed") || status.is("incomplete");
    (!ends).then(|| ErrorText::unfinished(status))
}

/// Error in an event, if any. `response`: the response in it.
pub fn failed(kind: &[u8], event: Raw<'_>, response: Raw<'_>) -> Option<ErrorText> {
    let unfinished = || unfinished(response.get("status").unwrap_or(Raw::NULL));
    match kind {
        b"response.completed" | b"response.incomplete" => {
            let error = response.get("error").filter(|error| is_error(*error));
            error.map(ErrorText::from_value).or_else(unfinished)
        }
        b"error" | b"response.failed" | b"response.cancelled" | b"" => {
            let text = failure(event).or_else(|| read_error(event.bytes())).or_else(unfinished);
            Some(text.unwrap_or_default())
        }
        _ => None,
    }
}

/// True for an event that shows an item of the response, or a part of one. All other events of the format contain the
/// whole `response`.
pub fn is_of_item(kind: &[u8], response: Raw<'_>) -> bool {
    kind.starts_with(b"response.") && response.kind() != ValueKind::Object
}

/// True if a complete response has no content. An empty turn that its provider has billed is an answer.
pub fn is_empty<'a>(output: Raw<'_>, status: Raw<'_>, usage: impl FnOnce() -> Raw<'a>) -> bool {
    lists_nothing(output) && !status.is("incomplete") && Reported::from_responses(usage()).output.is_none()
}

/// True if the event `kind` ends a response whose own members contain no answer.
pub fn is_unanswered(kind: &[u8], response: Raw<'_>) -> bool {
    let [output, status, usage] = response.pick(["output", "status", "usage"]);
    let [status, usage] = [status, usage].map(|own| own.unwrap_or(Raw::NULL));
    let list = output.filter(|output| output.kind() == ValueKind::Array);
    kind == b"response.completed" && list.is_none_or(|list| is_empty(list, status, || usage))
}

/// Passes on the usage of a response.
fn usage(response: Raw<'_>, sink: &mut dyn Take) -> Result<(), StreamFault> {
    match response.get("usage").filter(|usage| usage.kind() == ValueKind::Object) {
        Some(usage) => sink.take(Delta::Usage(Reported::from_responses(usage))),
        None => Ok(()),
    }
}

/// The reason why a response ended. `incomplete`: by the name of its final event.
fn reason(response: Raw<'_>, incomplete: bool, calls: bool) -> StopReason {
    let [status, details] = response.pick(["status", "incomplete_details"]);
    if incomplete || status.is_some_and(|status| status.is("incomplete")) {
        return StopReason::from_responses(details.and_then(|details| details.get("reason")));
    }
    if calls { StopReason::Tools } else { StopReason::End }
}

/// Error of a response or an event.
fn failure(event: Raw<'_>) -> Option<ErrorText> {
    let inner = event.get("response").unwrap_or(event).get("error").or_else(|| event.get("error"));
    let error = inner.filter(|error| error.kind() == ValueKind::Object || error.string().is_some());
    Some(ErrorText::from_value(error.or_else(|| event.get("message").map(|_| event))?))
}

/// The id that a call and its output share.
fn call_id(item: Raw<'_>) -> &[u8] {
    item.get("call_id").and_then(Raw::string).unwrap_or_default()
}

/// True for a part of a message that is text or a refusal. Parts of any other type are ignored, whatever their members
/// are.
pub fn is_answer(part: &Raw<'_>) -> bool {
    let kind = part.get("type").and_then(Raw::word);
    kind.is_none_or(|kind| matches!(&*kind, b"output_text" | b"text" | b"refusal"))
}

/// The bit of a part; parts from the 64th on have one together.
fn bit(part: u64) -> u64 {
    1 << part.min(63)
}

/// The texts of the parts in a list that `is_part` accepts, unless they are empty.
fn texts<'a>(
    list: Option<Raw<'a>>,
    kind: TextKind,
    is_part: fn(&Raw<'a>) -> bool,
) -> impl Iterator<Item = PartText<'a>> + Clone {
    let parts = (0..).zip(list.unwrap_or(Raw::NULL).items()).filter(move |(_, part)| is_part(part));
    parts.filter_map(move |(at, part)| {
        let [text, refusal] = part.pick(["text", "refusal"]).map(|text| text?.string().filter(|text| !text.is_empty()));
        Some((at, if text.is_some() { kind } else { TextKind::Refuse }, text.or(refusal)?))
    })
}

/// The texts of a message.
fn texts_of<'a>(item: Raw<'a>) -> impl Iterator<Item = PartText<'a>> {
    texts(item.get("content"), TextKind::Text, is_answer)
}

/// The texts of a complete piece of reasoning.
fn thoughts<'a>(item: Raw<'a>) -> impl Iterator<Item = PartText<'a>> {
    let [summary, content] = item.pick(["summary", "content"]).map(|list| texts(list, TextKind::Think, |_| true));
    let any = summary.clone().next().is_some();
    summary.chain(content.filter(move |_| !any))
}

/// Passes on a complete piece of reasoning, with the part that the target must get back.
fn thought(item: Raw<'_>, keeps: bool, sink: &mut dyn Take) -> Result<(), StreamFault> {
    let mut block = Vec::new();
    if !keeps || !write_kept(item, &mut block) {
        return sink.take(Delta::ReasoningEnd { block: None });
    }
    sink.take(Delta::ReasoningEnd { block: Some(&block) })
}

/// Appends the part of a piece of reasoning that its target must get back; false if there is none.
fn write_kept(item: Raw<'_>, out: &mut Vec<u8>) -> bool {
    let text = |name| item.get(name).and_then(Raw::string).filter(|text| !text.is_empty());
    let Some(encrypted) = text("encrypted_content") else { return false };
    out.push(b'{');
    if let Some(id) = text("id") {
        member_inside(out, "id", id);
    }
    member_inside(out, "encrypted_content", encrypted);
    out.push(b'}');
    true
}
