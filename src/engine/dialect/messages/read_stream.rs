//! Reads a messages stream, events to deltas, and complete answers in the same way.

use crate::dialect::answer::{Frame, StreamFault};
use crate::dialect::errors::{ErrorText, is_error, read_error};
use crate::dialect::neutral::arguments::Arguments;
use crate::dialect::neutral::delta::{Delta, StopReason, TOOL_CALLS_MAX, Take, finish_word};
use crate::dialect::usage::Reported;
use crate::wire::json::{self, Raw, ValueKind, member_inside, write_inside};
use std::borrow::Cow;

/// Maximum number of open blocks. The format allows one; some slack costs nothing.
const OPEN_BLOCKS_MAX: usize = 64;

/// Types of the deltas with content. Those of any other type are ignored, whatever their members are.
const CONTENT_DELTAS: [&[u8]; 4] = [b"text_delta", b"thinking_delta", b"signature_delta", b"input_json_delta"];

/// Kind of a block, as far as the reader distinguishes kinds.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum BlockKind {
    Text,
    Think,
    /// Reasoning without text.
    Redacted,
    Tool(usize),
    /// Server tools and unknown blocks: not passed on.
    Ignored,
}

/// The reader's state.
#[derive(Debug, Default)]
pub struct MessagesReader {
    open: Vec<(u64, BlockKind)>,
    tools: usize,
    started: bool,
    stopped: bool,
    /// Arguments that arrived with the start of a call. If pieces follow, they repeat these arguments.
    early: Option<(usize, Vec<u8>)>,
    /// The current block's reasoning and signature, for clients that send them back; `None` for others.
    kept: Option<(Vec<u8>, Vec<u8>)>,
}

impl MessagesReader {
    /// `keeps`: the client receives each piece of reasoning, to send it back.
    pub fn new(keeps: bool) -> MessagesReader {
        MessagesReader { kept: keeps.then(Default::default), ..MessagesReader::default() }
    }

    /// Bytes of reasoning and arguments that wait for the end of their block.
    pub fn waiting(&self) -> usize {
        let kept = self.kept.as_ref().map_or(0, |(text, signature)| text.len() + signature.len());
        kept + self.early.as_ref().map_or(0, |(_, json)| json.len())
    }

    /// Reads an event with data; true if it counts as a sign of progress.
    pub fn event(&mut self, frame: &Frame<'_>, sink: &mut dyn Take) -> Result<bool, StreamFault> {
        if frame.data.trim_ascii() == b"[DONE]" {
            return Ok(false);
        }
        let names = ["type", "index", "delta", "content_block", "message", "usage", "error", "stop_details"];
        let picked = json::check_and_pick(frame.data, names).map_err(|_| StreamFault::Malformed)?;
        if Raw::new(frame.data).kind() != ValueKind::Object {
            return Err(StreamFault::of_other(frame.data));
        }
        let [kind, index, delta, block, message, usage, error, details] = picked;
        let kind = kind.and_then(Raw::word).unwrap_or(Cow::Borrowed(frame.name));
        let index = index.and_then(Raw::count).unwrap_or(0);
        let (delta, block) = (delta.unwrap_or(Raw::NULL), block.unwrap_or(Raw::NULL));
        match &*kind {
            b"message_start" => {
                let usage = message.and_then(|message| message.get("usage")).unwrap_or(Raw::NULL);
                self.started = true;
                sink.take(Delta::Usage(Reported::from_start(usage)))?;
            }
            b"content_block_start" => self.start(index, block, sink)?,
            b"content_block_delta" => self.delta(index, delta, sink)?,
            b"content_block_stop" => self.stop(index, sink)?,
            b"message_delta" => self.message_delta(usage, delta, details, sink)?,
            b"message_stop" if !self.started || !self.stopped => return Err(StreamFault::Incomplete),
            b"message_stop" => sink.take(Delta::End)?,
            b"ping" => {
                sink.take(Delta::Ping)?;
                return Ok(false);
            }
            b"error" => return Err(StreamFault::Error(read_error(frame.data).unwrap_or_default())),
            _ => {
                // An error without its event line, as a chat server writes it.
                if let Some(error) = error.filter(|error| kind.is_empty() && is_error(*error)) {
                    return Err(StreamFault::Error(ErrorText::from_value(error)));
                }
            }
        }
        Ok(true)
    }

    /// Reads a complete answer.
    pub fn whole(&mut self, body: Raw<'_>, sink: &mut dyn Take) -> Result<(), StreamFault> {
        let [content, usage] = body.pick(["content", "usage"]);
        for (index, block) in (0..).zip(content.unwrap_or(Raw::NULL).items()) {
            self.start(index, block, sink)?;
            self.stop(index, sink)?;
        }
        self.message_delta(usage, body, None, sink)?;
        sink.take(Delta::End)
    }

    fn start(&mut self, index: u64, block: Raw<'_>, sink: &mut dyn Take) -> Result<(), StreamFault> {
        let text = |name: &str| block.get(name).and_then(Raw::string).filter(|text| !text.is_empty());
        let kind = match &*block.get("type").and_then(Raw::word).unwrap_or_default() {
            b"text" => BlockKind::Text,
            b"thinking" => BlockKind::Think,
            b"redacted_thinking" => BlockKind::Redacted,
            b"tool_use" => BlockKind::Tool(self.tools),
            _ => BlockKind::Ignored,
        };
        self.flush(sink)?;
        if self.open.len() >= OPEN_BLOCKS_MAX || self.tools >= TOOL_CALLS_MAX {
            return Err(StreamFault::TooLarge);
        }
        self.open.push((index, kind));
        match kind {
            BlockKind::Text | BlockKind::Think => self.content(kind, block, sink),
            BlockKind::Redacted if self.kept.is_some() => {
                let mut kept = b"{\"type\":\"redacted_thinking\",\"data\":".to_vec();
                write_inside(&mut kept, text("data").unwrap_or_default());
                kept.push(b'}');
                sink.take(Delta::ReasoningEnd { block: Some(&kept) })
            }
            BlockKind::Tool(slot) => {
                self.tools += 1;
                // A call without a name makes the answer incomplete, as in a chat stream.
                let Some(name) = text("name") else { return Err(StreamFault::Malformed) };
                let id = text("id").unwrap_or_default();
                sink.take(Delta::ToolOpen { slot, id, name })?;
                let holds = |input: &Raw<'_>| input.members().next().is_some() || text("input").is_some();
                if let Some(input) = block.get("input").filter(holds) {
                    self.early = Some((slot, Arguments::of(Some(input)).text().into_owned()));
                }
                Ok(())
            }
            BlockKind::Redacted | BlockKind::Ignored => Ok(()),
        }
    }

    /// Passes on early arguments that no piece has repeated.
    fn flush(&mut self, sink: &mut dyn Take) -> Result<(), StreamFault> {
        match self.early.take() {
            Some((slot, json)) => sink.take(Delta::ToolArgs { slot, json: &json }),
            None => Ok(()),
        }
    }

    fn keep(&mut self, text: Option<&[u8]>, signature: Option<&[u8]>) {
        if let Some(kept) = &mut self.kept {
            kept.0.extend_from_slice(text.unwrap_or_default());
            kept.1.extend_from_slice(signature.unwrap_or_default());
        }
    }

    /// Ends a block of reasoning. Without a signature it is useless to a server that signs.
    fn thought(&mut self, sink: &mut dyn Take) -> Result<(), StreamFault> {
        let Some(kept) = &mut self.kept else { return Ok(()) };
        let (text, signature) = std::mem::take(kept);
        if signature.is_empty() {
            return sink.take(Delta::ReasoningEnd { block: None });
        }
        let mut block = Vec::with_capacity(text.len() + signature.len() + 64);
        write_thinking(&text, &signature, &mut block);
        sink.take(Delta::ReasoningEnd { block: Some(&block) })
    }

    fn delta(&mut self, index: u64, delta: Raw<'_>, sink: &mut dyn Take) -> Result<(), StreamFault> {
        let Some(&(_, block)) = self.open.iter().rev().find(|(open, _)| *open == index) else {
            // Dropping a delta of a block that was never opened would lose content.
            return Err(StreamFault::Malformed);
        };
        let is_known = delta.get("type").and_then(Raw::word).is_none_or(|kind| CONTENT_DELTAS.contains(&&*kind));
        if is_known { self.content(block, delta, sink) } else { Ok(()) }
    }

    /// Reads the content in a delta, or in the start of a block.
    fn content(&mut self, block: BlockKind, delta: Raw<'_>, sink: &mut dyn Take) -> Result<(), StreamFault> {
        let text = |name: &str| delta.get(name).and_then(Raw::string).filter(|text| !text.is_empty());
        match block {
            BlockKind::Text => text("text").map_or(Ok(()), |text| sink.take(Delta::Text(text))),
            BlockKind::Think => {
                self.keep(text("thinking"), text("signature"));
                text("thinking").map_or(Ok(()), |text| sink.take(Delta::Reasoning(text)))
            }
            BlockKind::Tool(slot) => text("partial_json").map_or(Ok(()), |json| {
                self.early = None;
                sink.take(Delta::ToolArgs { slot, json })
            }),
            BlockKind::Redacted | BlockKind::Ignored => Ok(()),
        }
    }

    fn stop(&mut self, index: u64, sink: &mut dyn Take) -> Result<(), StreamFault> {
        let Some(at) = self.open.iter().rposition(|(open, _)| *open == index) else { return Ok(()) };
        match self.open.remove(at).1 {
            BlockKind::Tool(slot) => {
                self.flush(sink)?;
                sink.take(Delta::ToolClose { slot })
            }
            BlockKind::Think => self.thought(sink),
            _ => Ok(()),
        }
    }

    fn message_delta(
        &mut self,
        usage: Option<Raw<'_>>,
        delta: Raw<'_>,
        details: Option<Raw<'_>>,
        sink: &mut dyn Take,
    ) -> Result<(), StreamFault> {
        if let Some(usage) = usage {
            sink.take(Delta::Usage(Reported::from_messages(usage)))?;
        }
        let [word, sequence, own_details] = delta.pick(["stop_reason", "stop_sequence", "stop_details"]);
        let Some(word) = finish_word(word)?.filter(|_| !self.stopped) else {
            return Ok(());
        };
        self.stopped = true;
        self.flush(sink)?;
        let reason = StopReason::from_messages(word);
        let sequence = sequence.and_then(Raw::string);
        let explanation = own_details.or(details).and_then(|details| details.get("explanation")).and_then(Raw::string);
        sink.take(Delta::Stop { reason, sequence, explanation })
    }
}

/// Appends a block of reasoning in the form that a messages upstream requires.
fn write_thinking(text: &[u8], signature: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(b"{\"type\":\"thinking\"");
    member_inside(out, "thinking", text);
    member_inside(out, "signature", signature);
    out.push(b'}');
}
