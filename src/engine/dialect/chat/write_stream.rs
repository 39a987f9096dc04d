//! Writes a chat stream: deltas to chunks.

use crate::dialect::answer::{Destination, ResponseIdentity};
use crate::dialect::chat::signature;
use crate::dialect::neutral::delta::{Delta, StopReason};
use crate::dialect::neutral::naming::made_id;
use crate::dialect::responses::response::free_input;
use crate::dialect::usage::ObservedUsage;
use crate::wire::json::{Inside, Number, OrElse, Quoted, Raw, key, put, write_inside};

/// The writer's state.
#[derive(Debug, Default)]
pub struct ChatWriter {
    show_usage: bool,
    started: bool,
    stopped: bool,
    created: u64,
    /// For each call: false if none of its arguments have been written.
    calls: Vec<bool>,
    /// Open calls of tools that take free text: its place in their arguments is known at their end.
    free: Vec<(usize, Vec<u8>)>,
    /// Block with the signature of the next call.
    signature: Vec<u8>,
    /// Position of the last text written.
    pub text_at: usize,
}

impl ChatWriter {
    /// `show_usage`: the client asked for the usage chunk.
    pub fn new(show_usage: bool) -> ChatWriter {
        ChatWriter { show_usage, ..ChatWriter::default() }
    }

    /// Bytes of arguments that wait for their end.
    #[inline]
    pub fn waiting(&self) -> usize {
        let held: usize = self.free.iter().map(|(_, held)| held.len()).sum();
        held + self.signature.len()
    }

    /// Writes the chunks for one delta.
    pub fn take(&mut self, delta: Delta<'_>, to: &mut Destination<'_>) {
        match delta {
            Delta::Ping => to.out.extend_from_slice(b":\n\n"),
            Delta::Usage(_) => {}
            Delta::Start => self.start(to),
            Delta::Text(text) => self.text("content", text, to),
            Delta::Refuse(text) => self.text("refusal", text, to),
            Delta::Reasoning(text) => self.text("reasoning_content", text, to),
            Delta::ReasoningEnd { block } => {
                self.signature.clear();
                self.signature.extend_from_slice(block.unwrap_or_default());
            }
            Delta::ToolOpen { slot, id, name } => {
                if to.state.is_free(name) {
                    self.free.push((slot, Vec::new()));
                }
                self.open(slot, id, to.state.restore(name), to);
            }
            Delta::ToolArgs { slot, json } => match self.free.iter_mut().find(|(own, _)| *own == slot) {
                Some((_, held)) => held.extend_from_slice(json),
                None => self.arguments(slot, json, to),
            },
            Delta::ToolClose { slot } if self.calls.get(slot) == Some(&false) => {
                self.arguments(slot, b"{}", to);
            }
            Delta::ToolClose { slot } => self.close_free(Some(slot), to),
            Delta::Stop { reason, explanation, .. } => {
                self.close_free(None, to);
                // No client could read an empty text as arguments.
                while let Some(slot) = self.calls.iter().position(|written| !written) {
                    self.arguments(slot, b"{}", to);
                }
                if let Some(text) = explanation.filter(|text| !text.is_empty()) {
                    self.text("refusal", text, to);
                }
                self.stop(reason, to);
            }
            Delta::End => self.end(to),
        }
    }

    fn start(&mut self, to: &mut Destination<'_>) {
        if !self.started {
            self.started = true;
            self.created = to.identity.created;
            self.chunk(None, to, |out| put!(out, r#""role":"assistant","content":"","refusal":null"#));
        }
    }

    fn text(&mut self, name: &str, text: &[u8], to: &mut Destination<'_>) {
        self.start(to);
        let mut at = 0;
        self.chunk(None, to, |out| {
            key(out, name);
            at = out.len() + 1;
            write_inside(out, text);
        });
        self.text_at = at;
    }

    fn open(&mut self, slot: usize, id: &[u8], name: &[u8], to: &mut Destination<'_>) {
        self.start(to);
        // A slot that is skipped is none of the client's calls.
        self.calls.resize(self.calls.len().max(slot + 1), true);
        let is_free = self.free.last().is_some_and(|(own, _)| *own == slot);
        // A text is written at its end.
        self.calls[slot] = is_free;
        let block = std::mem::take(&mut self.signature);
        let signature = if block.is_empty() { None } else { signature::of_next(Raw::new(&block), id) };
        let (kind, member) = if is_free { ("custom", "input") } else { ("function", "arguments") };
        self.chunk(None, to, |out| {
            put!(out, r#""tool_calls":[{"index":"#, Number(slot as u64), r#","id":""#);
            if id.is_empty() {
                made_id(to.identity.id, slot, out);
            } else {
                put!(out, id);
            }
            put!(out, r#"","type":""#, kind, r#"",""#, kind);
            put!(out, r#"":{"name":"#, Inside(name), r#",""#, member, r#"":""}"#);
            signature::write(signature, out);
            put!(out, "}]");
        });
    }

    fn arguments(&mut self, slot: usize, json: &[u8], to: &mut Destination<'_>) {
        if let Some(written) = self.calls.get_mut(slot) {
            *written = true;
        }
        self.piece(slot, "function", "arguments", json, to);
    }

    /// Writes a piece of the arguments or of the text of a call.
    fn piece(&mut self, slot: usize, kind: &str, member: &str, inside: &[u8], to: &mut Destination<'_>) {
        let mut at = 0;
        self.chunk(None, to, |out| {
            put!(out, r#""tool_calls":[{"index":"#, Number(slot as u64), r#",""#, kind, r#"":{""#, member, r#"":"#);
            at = out.len() + 1;
            put!(out, Inside(inside), "}}]");
        });
        self.text_at = at;
    }

    /// Writes the texts of open calls of tools that take free text: of all, or of this one.
    fn close_free(&mut self, only: Option<usize>, to: &mut Destination<'_>) {
        for (slot, held) in std::mem::take(&mut self.free) {
            match only.is_none_or(|only| only == slot) {
                true => self.piece(slot, "custom", "input", &free_input(&held), to),
                false => self.free.push((slot, held)),
            }
        }
    }

    fn stop(&mut self, reason: StopReason, to: &mut Destination<'_>) {
        self.start(to);
        if !self.stopped {
            self.stopped = true;
            self.chunk(Some(reason.to_chat(!self.calls.is_empty())), to, |_| {});
        }
    }

    fn end(&mut self, to: &mut Destination<'_>) {
        self.stop(StopReason::Unknown, to);
        if self.show_usage {
            write_usage_chunk(CHUNK, to.observed, &ResponseIdentity { created: self.created, ..*to.identity }, to.out);
        }
        to.out.extend_from_slice(b"data: [DONE]\n\n");
    }

    fn chunk(&self, finish: Option<&str>, to: &mut Destination<'_>, delta: impl FnOnce(&mut Vec<u8>)) {
        write_head(CHUNK, self.created, to.identity, to.out);
        put!(to.out, r#""choices":[{"index":0,"delta":{"#);
        delta(to.out);
        let tail = if self.show_usage { "}],\"usage\":null}\n\n" } else { "}]}\n\n" };
        put!(to.out, r#"},"logprobs":null,"finish_reason":"#, OrElse(finish.map(Quoted), "null"), tail);
    }
}

/// Value of `object` in a chunk of a chat stream.
pub const CHUNK: &str = "chat.completion.chunk";

/// Appends the beginning of a chunk, up to its choices.
fn write_head(object: &str, created: u64, identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
    put!(out, r#"data: {"id":"#, Inside(identity.id), r#","object":""#, object, r#"","created":"#, Number(created));
    put!(out, r#","model":"#, identity.model(), ",");
}

/// Appends the chunk with a stream's usage.
pub fn write_usage_chunk(object: &str, observed: &ObservedUsage, identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
    write_head(object, identity.created, identity, out);
    put!(out, r#""choices":[],"usage":"#);
    write_usage(observed, identity, out);
    put!(out, "}\n\n");
}

/// Appends a chat `usage` object: the reported counts, otherwise estimates.
pub fn write_usage(observed: &ObservedUsage, identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
    let reported = observed.reported;
    let prompt = reported.prompt().unwrap_or_else(|| identity.prompt.count());
    let completion = reported.output.unwrap_or(observed.relayed_tokens);
    let total = prompt.saturating_add(completion);
    let [read, written] = [reported.cache_read, reported.cache_write].map(|count| Number(count.unwrap_or(0)));
    put!(out, r#"{"prompt_tokens":"#, Number(prompt), r#","completion_tokens":"#, Number(completion));
    put!(out, r#","total_tokens":"#, Number(total), r#","prompt_tokens_details":{"cached_tokens":"#, read);
    put!(out, r#","cache_write_tokens":"#, written, "}");
    if let Some(reasoning) = reported.reasoning {
        put!(out, r#","completion_tokens_details":{"reasoning_tokens":"#, Number(reasoning.into()), "}");
    }
    put!(out, "}");
}
