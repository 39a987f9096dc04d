//! Writes a messages stream: deltas to events.
//!
//! Follows the strict sequence of blocks: start, deltas of that type, stop; one open block at a time, indices without
//! gaps. A sequencer has put the deltas in order.

use crate::dialect::answer::{Destination, ResponseIdentity};
use crate::dialect::neutral::carrier;
use crate::dialect::neutral::delta::{Delta, StopReason};
use crate::dialect::usage::ObservedUsage;
use crate::wire::json::{Inside, Number, OrElse, Quoted, put};

/// The current block.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum OpenBlock {
    #[default]
    None,
    Text,
    Think,
    Tool,
}

/// The writer's state.
#[derive(Debug, Default)]
pub struct MessagesWriter {
    started: bool,
    /// Index of the next block.
    next: u64,
    open: OpenBlock,
    reason: StopReason,
    refused: bool,
    sequence: Option<Vec<u8>>,
    /// Hashes of the ids of the answer's calls.
    ids: Vec<u64>,
    /// The current reasoning has its signature.
    signed: bool,
    /// Position of the last text written.
    pub text_at: usize,
}

impl MessagesWriter {
    /// Bytes held: the stop sequence that ended the answer.
    pub fn waiting(&self) -> usize {
        self.sequence.as_ref().map_or(0, Vec::len)
    }

    /// Writes the events for one delta.
    pub fn take(&mut self, delta: Delta<'_>, to: &mut Destination<'_>) {
        match delta {
            Delta::Ping => to.out.extend_from_slice(b"event: ping\ndata: {\"type\":\"ping\"}\n\n"),
            Delta::Usage(_) => {}
            Delta::Start => self.start(to),
            Delta::Text(text) => self.text(OpenBlock::Text, text, to),
            Delta::Refuse(text) => {
                self.refused = true;
                self.text(OpenBlock::Text, text, to);
            }
            Delta::Reasoning(text) => self.text(OpenBlock::Think, text, to),
            Delta::ReasoningEnd { block } => self.thought(block, to),
            Delta::ToolOpen { slot, id, name } => self.call(slot, id, name, to),
            Delta::ToolArgs { json, .. } => self.delta("partial_json", "input_json_delta", json, to.out),
            Delta::ToolClose { .. } => self.close(to.out),
            Delta::Stop { reason, sequence, .. } => {
                self.reason = reason;
                self.sequence = sequence.map(<[u8]>::to_vec);
            }
            Delta::End => self.end(to),
        }
    }

    fn start(&mut self, to: &mut Destination<'_>) {
        if self.started {
            return;
        }
        self.started = true;
        let Destination { identity, out, .. } = to;
        put!(out, "event: message_start\ndata: ", r#"{"type":"message_start","message":{"id":"#, Inside(identity.id));
        put!(out, r#","type":"message","role":"assistant","model":"#, identity.model());
        put!(out, r#","content":[],"stop_reason":null,"stop_sequence":null"#, NO_DETAILS);
        put!(out, r#","usage":{"input_tokens":"#, Number(identity.prompt.count().max(1)));
        put!(out, r#","cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0"#);
        put!(out, r#","output_tokens_details":null"#, NO_SERVICES, "}}\n\n");
    }

    /// Begins a block of text or reasoning, unless it is the current one.
    fn begin(&mut self, kind: OpenBlock, to: &mut Destination<'_>) {
        self.start(to);
        if self.open == kind {
            return;
        }
        self.close(to.out);
        self.open_block(to.out);
        let block = match kind {
            OpenBlock::Think => r#"{"type":"thinking","thinking":"","signature":""}"#,
            _ => r#"{"type":"text","text":"","citations":[]}"#,
        };
        put!(to.out, block, "}\n\n");
        self.open = kind;
    }

    fn text(&mut self, kind: OpenBlock, text: &[u8], to: &mut Destination<'_>) {
        self.begin(kind, to);
        match kind {
            OpenBlock::Think => self.delta("thinking", "thinking_delta", text, to.out),
            _ => self.delta("text", "text_delta", text, to.out),
        }
    }

    /// Ends a piece of reasoning: stops its block, with the data that its target must get back as the signature.
    fn thought(&mut self, block: Option<&[u8]>, to: &mut Destination<'_>) {
        if self.open != OpenBlock::Think {
            if block.is_none() {
                return;
            }
            self.begin(OpenBlock::Think, to);
        }
        if let Some(block) = block {
            let mut carrier = Vec::new();
            carrier::close(block, &to.state.mark, &mut carrier);
            self.delta("signature", "signature_delta", &carrier, to.out);
            self.signed = true;
        }
        self.close(to.out);
    }

    fn call(&mut self, slot: usize, id: &[u8], name: &[u8], to: &mut Destination<'_>) {
        self.start(to);
        self.close(to.out);
        self.open_block(to.out);
        put!(to.out, r#"{"type":"tool_use","id":""#);
        to.state.fresh_id(id, slot, to.identity.id, &mut self.ids, to.out);
        put!(to.out, r#"","name":"#, Inside(to.state.restore(name)));
        put!(to.out, r#","input":{},"caller":{"type":"direct"}}}"#, "\n\n");
        self.open = OpenBlock::Tool;
    }

    fn open_block(&mut self, out: &mut Vec<u8>) {
        put!(out, "event: content_block_start\ndata: ", r#"{"type":"content_block_start","index":"#);
        put!(out, Number(self.next), r#","content_block":"#);
        self.next += 1;
    }

    fn delta(&mut self, name: &str, kind: &str, text: &[u8], out: &mut Vec<u8>) {
        put!(out, "event: content_block_delta\ndata: ", r#"{"type":"content_block_delta","index":"#);
        put!(out, Number(self.next - 1), r#","delta":{"type":""#, kind, r#"",""#, name, r#"":"#);
        self.text_at = out.len() + 1;
        put!(out, Inside(text), "}}\n\n");
    }

    /// Stops the current block.
    fn close(&mut self, out: &mut Vec<u8>) {
        match self.open {
            OpenBlock::None => return,
            OpenBlock::Think if std::mem::take(&mut self.signed) => {}
            OpenBlock::Think => self.delta("signature", "signature_delta", b"", out),
            OpenBlock::Text | OpenBlock::Tool => {}
        }
        put!(out, "event: content_block_stop\ndata: ", r#"{"type":"content_block_stop","index":"#);
        put!(out, Number(self.next - 1), "}\n\n");
        self.open = OpenBlock::None;
    }

    fn end(&mut self, to: &mut Destination<'_>) {
        self.start(to);
        self.close(to.out);
        let Destination { observed, identity, out, .. } = to;
        let word = self.reason.to_messages(!self.ids.is_empty(), self.refused);
        let sequence = self.sequence.as_deref().filter(|_| word == "stop_sequence").map(Inside);
        put!(out, "event: message_delta\ndata: ", r#"{"type":"message_delta","delta":{"stop_reason":"#, Quoted(word));
        put!(out, r#","stop_sequence":"#, OrElse(sequence, "null"), NO_DETAILS, r#"},"usage":"#);
        write_usage(observed, identity, out);
        put!(out, "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
    }
}

/// Appends a messages `usage` object: the reported counts, otherwise estimates. It is never omitted, since clients
/// crash without it.
pub fn write_usage(observed: &ObservedUsage, identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
    let reported = observed.reported;
    let input = reported.input.unwrap_or_else(|| identity.prompt.count());
    let output = reported.output.unwrap_or(observed.relayed_tokens);
    let [read, written] = [reported.cache_read, reported.cache_write].map(|count| Number(count.unwrap_or(0)));
    put!(out, r#"{"input_tokens":"#, Number(input), r#","cache_creation_input_tokens":"#, written);
    put!(out, r#","cache_read_input_tokens":"#, read, r#","output_tokens":"#, Number(output));
    put!(out, r#","output_tokens_details":"#);
    match reported.reasoning {
        Some(reasoning) => put!(out, r#"{"thinking_tokens":"#, Number(reasoning.into()), "}"),
        None => put!(out, "null"),
    }
    put!(out, NO_SERVICES);
}

/// Members that Anthropic's published schema requires of each message, and of its usage up to its end, here without a
/// value. Clients that are generated from the schema refuse a message without them. (A text has an empty list of
/// citations and not `null`, which the schema also permits, since Vercel's AI SDK refuses `null`.)
pub const NO_DETAILS: &str = r#","stop_details":null,"container":null"#;
const NO_SERVICES: &str = r#","cache_creation":null,"inference_geo":null,"server_tool_use":null,"service_tier":null}"#;
