//! Writes a chat stream: deltas to chunks.

use crate::dialect::answer::{ResponseIdentity, StreamFault};
use crate::dialect::chat::signature;
use crate::dialect::naming::{TranslationState, made_id};
use crate::dialect::neutral::delta::{Delta, StopReason, TOOL_HELD_MAX};
use crate::dialect::responses::response::free_input;
use crate::dialect::usage::ObservedUsage;
use crate::wire::json::{Raw, key, write_count, write_inside, write_string};

/// The writer's state.
#[derive(Debug, Default)]
pub(in crate::dialect) struct ChatWriter {
    show_usage: bool,
    started: bool,
    stopped: bool,
    created: u64,
    /// For each call: true if some of its arguments have been written.
    calls: Vec<bool>,
    /// Open calls of tools that take free text: its place in their arguments is known at their end.
    free: Vec<(usize, Vec<u8>)>,
    /// Block with the signature of the next call.
    signature: Vec<u8>,
    /// Position of the last text written.
    text_at: usize,
}

impl ChatWriter {
    /// `show_usage`: the client asked for the usage chunk.
    pub(in crate::dialect) fn new(show_usage: bool) -> ChatWriter {
        ChatWriter { show_usage, ..ChatWriter::default() }
    }

    /// Position in the output of the last text written.
    pub(in crate::dialect) fn text_at(&self) -> usize {
        self.text_at
    }

    /// Bytes of arguments that wait for their end.
    #[inline]
    pub(in crate::dialect) fn waiting(&self) -> usize {
        let held: usize = self.free.iter().map(|(_, held)| held.len()).sum();
        held + self.signature.len()
    }

    /// Writes the chunks for one delta.
    pub(in crate::dialect) fn take(
        &mut self,
        delta: Delta<'_>,
        observed: &ObservedUsage,
        state: &TranslationState,
        me: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) -> Result<(), StreamFault> {
        match delta {
            Delta::Ping => out.extend_from_slice(b":\n\n"),
            Delta::Usage(_) => {}
            Delta::Start => self.start(me, out),
            Delta::Text(text) => self.text("content", text, me, out),
            Delta::Refuse(text) => self.text("refusal", text, me, out),
            Delta::Think(text) => self.text("reasoning_content", text, me, out),
            Delta::Thought { block } => {
                self.signature.clear();
                self.signature.extend_from_slice(block.unwrap_or_default());
            }
            Delta::ToolOpen { slot, id, name } => {
                if state.is_free(name) {
                    self.free.push((slot, Vec::new()));
                }
                self.open(slot, id, state.restore(name), me, out);
            }
            Delta::ToolArgs { slot, json } => match self.free.iter_mut().find(|(own, _)| *own == slot) {
                Some((_, held)) if held.len() + json.len() > TOOL_HELD_MAX => return Err(StreamFault::TooLarge),
                Some((_, held)) => held.extend_from_slice(json),
                None => self.arguments(slot, json, me, out),
            },
            Delta::ToolClose { slot } if self.calls.get(slot) == Some(&false) => {
                self.arguments(slot, b"{}", me, out);
            }
            Delta::ToolClose { slot } => self.close_free(Some(slot), me, out),
            Delta::Stop { reason, explanation, .. } => {
                self.close_free(None, me, out);
                if let Some(text) = explanation.filter(|text| !text.is_empty()) {
                    self.text("refusal", text, me, out);
                }
                self.stop(reason, me, out);
            }
            Delta::End => self.end(observed, me, out),
        }
        Ok(())
    }

    fn start(&mut self, me: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
        if !self.started {
            self.started = true;
            self.created = me.created;
            self.chunk(me, None, out, |out| {
                out.extend_from_slice(b"\"role\":\"assistant\",\"content\":\"\",\"refusal\":null");
            });
        }
    }

    fn text(&mut self, name: &str, text: &[u8], me: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
        self.start(me, out);
        let mut at = 0;
        self.chunk(me, None, out, |out| {
            key(out, name);
            at = out.len() + 1;
            write_inside(out, text);
        });
        self.text_at = at;
    }

    fn open(&mut self, slot: usize, id: &[u8], name: &[u8], me: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
        self.start(me, out);
        self.calls.resize(self.calls.len().max(slot + 1), false);
        let is_free = self.free.last().is_some_and(|(own, _)| *own == slot);
        // A text is written at its end.
        self.calls[slot] = is_free;
        let block = std::mem::take(&mut self.signature);
        let signature = if block.is_empty() { None } else { signature::of_next(Raw::new(&block), id) };
        let (kind, member) = if is_free { ("custom", "input") } else { ("function", "arguments") };
        self.chunk(me, None, out, |out| {
            out.extend_from_slice(b"\"tool_calls\":[{\"index\":");
            write_count(out, slot as u64);
            out.extend_from_slice(b",\"id\":\"");
            if id.is_empty() {
                made_id(me.id, slot, out);
            } else {
                out.extend_from_slice(id);
            }
            out.extend_from_slice(b"\",\"type\":");
            write_string(out, kind);
            key(out, kind);
            out.extend_from_slice(b"{\"name\":");
            write_inside(out, name);
            key(out, member);
            out.extend_from_slice(b"\"\"}");
            signature::write(signature, out);
            out.extend_from_slice(b"}]");
        });
    }

    fn arguments(&mut self, slot: usize, json: &[u8], me: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
        if let Some(written) = self.calls.get_mut(slot) {
            *written = true;
        }
        self.piece(slot, "function", "arguments", json, me, out);
    }

    /// Writes a piece of the arguments or of the text of a call.
    fn piece(
        &mut self,
        slot: usize,
        kind: &str,
        member: &str,
        inside: &[u8],
        me: &ResponseIdentity<'_>,
        out: &mut Vec<u8>,
    ) {
        let mut at = 0;
        self.chunk(me, None, out, |out| {
            out.extend_from_slice(b"\"tool_calls\":[{\"index\":");
            write_count(out, slot as u64);
            key(out, kind);
            out.push(b'{');
            key(out, member);
            at = out.len() + 1;
            write_inside(out, inside);
            out.extend_from_slice(b"}}]");
        });
        self.text_at = at;
    }

    /// Writes the texts of open calls of tools that take free text: of all, or of this one.
    fn close_free(&mut self, only: Option<usize>, me: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
        for (slot, held) in std::mem::take(&mut self.free) {
            match only.is_none_or(|only| only == slot) {
                true => self.piece(slot, "custom", "input", &free_input(&held), me, out),
                false => self.free.push((slot, held)),
            }
        }
    }

    fn stop(&mut self, reason: StopReason, me: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
        self.start(me, out);
        if !self.stopped {
            self.stopped = true;
            self.chunk(me, Some(reason.to_chat(!self.calls.is_empty())), out, |_| {});
        }
    }

    fn end(&mut self, observed: &ObservedUsage, me: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
        self.stop(StopReason::Unknown, me, out);
        if self.show_usage {
            write_usage_chunk(CHUNK, observed, &ResponseIdentity { created: self.created, ..*me }, out);
        }
        out.extend_from_slice(b"data: [DONE]\n\n");
    }

    fn chunk(
        &self,
        me: &ResponseIdentity<'_>,
        finish: Option<&str>,
        out: &mut Vec<u8>,
        delta: impl FnOnce(&mut Vec<u8>),
    ) {
        write_head(CHUNK, self.created, me, out);
        out.extend_from_slice(b"\"choices\":[{\"index\":0,\"delta\":{");
        delta(out);
        out.extend_from_slice(b"},\"logprobs\":null,\"finish_reason\":");
        match finish {
            Some(word) => write_string(out, word),
            None => out.extend_from_slice(b"null"),
        }
        let tail: &[u8] = if self.show_usage { b"}],\"usage\":null}\n\n" } else { b"}]}\n\n" };
        out.extend_from_slice(tail);
    }
}

/// Value of `object` in a chunk of a chat stream.
pub(in crate::dialect) const CHUNK: &str = "chat.completion.chunk";

/// Appends the beginning of a chunk, up to its choices.
fn write_head(object: &str, created: u64, me: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
    out.extend_from_slice(b"data: {\"id\":");
    write_inside(out, me.id);
    out.extend_from_slice(b",\"object\":\"");
    out.extend_from_slice(object.as_bytes());
    out.extend_from_slice(b"\",\"created\":");
    write_count(out, created);
    key(out, "model");
    me.write_model(out);
    out.push(b',');
}

/// Appends the chunk with a stream's usage.
pub(in crate::dialect) fn write_usage_chunk(
    object: &str,
    observed: &ObservedUsage,
    me: &ResponseIdentity<'_>,
    out: &mut Vec<u8>,
) {
    write_head(object, me.created, me, out);
    out.extend_from_slice(b"\"choices\":[]");
    key(out, "usage");
    write_usage(observed, me, out);
    out.extend_from_slice(b"}\n\n");
}

/// Appends a chat `usage` object: the reported counts, otherwise estimates.
pub(in crate::dialect) fn write_usage(observed: &ObservedUsage, me: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
    let reported = observed.reported;
    let prompt = reported.prompt().unwrap_or_else(|| me.prompt.count());
    let completion = reported.output.unwrap_or(observed.relayed_tokens);
    out.extend_from_slice(b"{\"prompt_tokens\":");
    write_count(out, prompt);
    out.extend_from_slice(b",\"completion_tokens\":");
    write_count(out, completion);
    out.extend_from_slice(b",\"total_tokens\":");
    write_count(out, prompt.saturating_add(completion));
    out.extend_from_slice(b",\"prompt_tokens_details\":{\"cached_tokens\":");
    write_count(out, reported.cache_read.unwrap_or(0));
    out.extend_from_slice(b",\"cache_write_tokens\":");
    write_count(out, reported.cache_write.unwrap_or(0));
    out.push(b'}');
    if let Some(reasoning) = reported.reasoning {
        out.extend_from_slice(b",\"completion_tokens_details\":{\"reasoning_tokens\":");
        write_count(out, reasoning.into());
        out.push(b'}');
    }
    out.push(b'}');
}
