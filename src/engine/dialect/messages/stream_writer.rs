//! Writes a messages stream: deltas to events.
//!
//! Follows the strict sequence of blocks: start, deltas of that type, stop; one open block at a time, indices without
//! gaps. A stopped block cannot be reopened, and a client may run a tool as soon as its block stops. So while one call
//! is open, pieces of other calls wait, within [`TOOL_HELD_MAX`].

use crate::dialect::answer::{Destination, ResponseIdentity, StreamFault};
use crate::dialect::neutral::carrier;
use crate::dialect::neutral::delta::{Delta, StopReason, TOOL_HELD_MAX};
use crate::dialect::usage::ObservedUsage;
use crate::wire::json::{Inside, Number, OrElse, Quoted, Run, put, runs};

/// The current block.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum OpenBlock {
    #[default]
    None,
    Text,
    Think,
    Tool(usize),
}

/// State of a tool call in the stream.
#[derive(Debug)]
enum CallProgress {
    /// Another call is open. Holds id and name ready to be written, and the arguments so far.
    Waiting {
        id: Vec<u8>,
        name: Vec<u8>,
        json: Vec<u8>,
    },
    Open,
    Closed,
}

/// The writer's state.
#[derive(Debug, Default)]
pub struct MessagesWriter {
    started: bool,
    /// Index of the next block.
    next: u64,
    open: OpenBlock,
    calls: Vec<CallProgress>,
    waiting: usize,
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
    /// Bytes held: waiting calls with their arguments, and the stop sequence that ended the answer.
    pub fn waiting(&self) -> usize {
        self.waiting + self.sequence.as_ref().map_or(0, Vec::len)
    }

    /// Writes the events for one delta.
    pub fn take(&mut self, delta: Delta<'_>, to: &mut Destination<'_>) -> Result<(), StreamFault> {
        match delta {
            Delta::Ping => to.out.extend_from_slice(b"event: ping\ndata: {\"type\":\"ping\"}\n\n"),
            Delta::Usage(_) => {}
            Delta::Start => self.start(to),
            // Servers put a line feed between calls; it must not close the open one.
            Delta::Text(text) if matches!(self.open, OpenBlock::Tool(_)) && is_blank(text) => {}
            Delta::Text(text) => self.text(OpenBlock::Text, text, to),
            Delta::Refuse(text) => {
                self.refused = true;
                self.text(OpenBlock::Text, text, to);
            }
            Delta::Think(text) => self.text(OpenBlock::Think, text, to),
            Delta::Thought { block } => self.thought(block, to),
            Delta::ToolOpen { slot, id, name } => {
                let mut safe = Vec::with_capacity(id.len());
                to.state.fresh_id(id, slot, to.me.id, &mut self.ids, &mut safe);
                self.call(slot, safe, to.state.restore(name), to);
                if self.waiting > TOOL_HELD_MAX {
                    return Err(StreamFault::TooLarge);
                }
            }
            Delta::ToolArgs { slot, json } => return self.arguments(slot, json, to.out),
            Delta::ToolClose { slot } if self.open == OpenBlock::Tool(slot) => self.close(to.out),
            Delta::ToolClose { .. } => {}
            Delta::Stop { reason, sequence, .. } => {
                self.reason = reason;
                self.sequence = sequence.map(<[u8]>::to_vec);
            }
            Delta::End => self.end(to),
        }
        Ok(())
    }

    fn start(&mut self, to: &mut Destination<'_>) {
        if self.started {
            return;
        }
        self.started = true;
        let Destination { me, out, .. } = to;
        put!(out, "event: message_start\ndata: ", r#"{"type":"message_start","message":{"id":"#, Inside(me.id));
        put!(out, r#","type":"message","role":"assistant","model":"#, me.model());
        put!(out, r#","content":[],"stop_reason":null,"stop_sequence":null"#, NO_DETAILS);
        put!(out, r#","usage":{"input_tokens":"#, Number(me.prompt.count().max(1)));
        put!(out, r#","cache_creation_input_tokens":0,"cache_read_input_tokens":0,"output_tokens":0"#);
        put!(out, r#","output_tokens_details":null"#, NO_SERVICES, "}}\n\n");
    }

    /// Begins a block of text or reasoning, unless it is the current one.
    fn begin(&mut self, kind: OpenBlock, to: &mut Destination<'_>) {
        self.start(to);
        if self.open == kind {
            return;
        }
        self.flush(to.out);
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

    /// Begins a call; it waits while another one is open.
    fn call(&mut self, slot: usize, id: Vec<u8>, name: &[u8], to: &mut Destination<'_>) {
        self.start(to);
        while self.calls.len() <= slot {
            self.calls.push(CallProgress::Closed);
        }
        if matches!(self.open, OpenBlock::Tool(_)) {
            self.waiting += id.len() + name.len();
            self.calls[slot] = CallProgress::Waiting { id, name: name.to_vec(), json: Vec::new() };
            return;
        }
        self.close(to.out);
        self.open_tool(slot, &id, name, to.out);
    }

    fn open_tool(&mut self, slot: usize, id: &[u8], name: &[u8], out: &mut Vec<u8>) {
        self.open_block(out);
        put!(out, r#"{"type":"tool_use","id":"#, Inside(id), r#","name":"#, Inside(name));
        put!(out, r#","input":{},"caller":{"type":"direct"}}}"#, "\n\n");
        self.calls[slot] = CallProgress::Open;
        self.open = OpenBlock::Tool(slot);
    }

    fn arguments(&mut self, slot: usize, piece: &[u8], out: &mut Vec<u8>) -> Result<(), StreamFault> {
        match self.calls.get_mut(slot) {
            Some(CallProgress::Open) => self.delta("partial_json", "input_json_delta", piece, out),
            Some(CallProgress::Waiting { json, .. }) => {
                self.waiting += piece.len();
                if self.waiting > TOOL_HELD_MAX {
                    return Err(StreamFault::TooLarge);
                }
                json.extend_from_slice(piece);
            }
            _ if is_blank(piece) => {}
            // More of a call whose block is stopped: it cannot be reopened.
            _ => return Err(StreamFault::Malformed),
        }
        Ok(())
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
            OpenBlock::Tool(slot) => self.calls[slot] = CallProgress::Closed,
            OpenBlock::Text => {}
        }
        put!(out, "event: content_block_stop\ndata: ", r#"{"type":"content_block_stop","index":"#);
        put!(out, Number(self.next - 1), "}\n\n");
        self.open = OpenBlock::None;
    }

    /// Stops the current block and writes every waiting call completely, in order.
    fn flush(&mut self, out: &mut Vec<u8>) {
        self.close(out);
        if self.waiting == 0 {
            return;
        }
        for slot in 0..self.calls.len() {
            if !matches!(self.calls[slot], CallProgress::Waiting { .. }) {
                continue;
            }
            if let CallProgress::Waiting { id, name, json } =
                std::mem::replace(&mut self.calls[slot], CallProgress::Closed)
            {
                self.open_tool(slot, &id, &name, out);
                if !json.is_empty() {
                    self.delta("partial_json", "input_json_delta", &json, out);
                }
                self.close(out);
            }
        }
        self.waiting = 0;
    }

    fn end(&mut self, to: &mut Destination<'_>) {
        self.start(to);
        self.flush(to.out);
        let Destination { observed, me, out, .. } = to;
        let word = self.reason.to_messages(!self.calls.is_empty(), self.refused);
        let sequence = self.sequence.as_deref().filter(|_| word == "stop_sequence").map(Inside);
        put!(out, "event: message_delta\ndata: ", r#"{"type":"message_delta","delta":{"stop_reason":"#, Quoted(word));
        put!(out, r#","stop_sequence":"#, OrElse(sequence, "null"), NO_DETAILS, r#"},"usage":"#);
        write_usage(observed, me, out);
        put!(out, "}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n");
    }
}

pub fn is_blank(raw: &[u8]) -> bool {
    runs(raw).all(|run| match run {
        Run::Plain(bytes) => bytes.iter().all(u8::is_ascii_whitespace),
        Run::Char(c) => c.is_whitespace(),
    })
}

/// Appends a messages `usage` object: the reported counts, otherwise estimates. It is never omitted, since clients
/// crash without it.
pub fn write_usage(observed: &ObservedUsage, me: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
    let reported = observed.reported;
    let input = reported.input.unwrap_or_else(|| me.prompt.count());
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
