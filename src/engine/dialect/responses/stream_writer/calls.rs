//! Calls of tools in a responses stream.

use crate::dialect::answer::{Destination, ResponseIdentity, StreamFault};
use crate::dialect::messages::stream_writer::is_blank;
use crate::dialect::neutral::delta::TOOL_HELD_MAX;
use crate::dialect::neutral::naming::{ToolKind, made_id};
use crate::dialect::responses::response::free_input;
use crate::dialect::responses::stream_writer::{CallItem, CallStage, OpenItem, ResponsesWriter};
use crate::wire::json::{self, Raw, ValueKind, member_inside, put};

impl ResponsesWriter {
    /// Begins a call; it waits while another one is open.
    pub(super) fn call(
        &mut self,
        slot: usize,
        id: &[u8],
        name: &[u8],
        to: &mut Destination<'_>,
    ) -> Result<(), StreamFault> {
        self.start(to);
        if self.calls.len() <= slot {
            self.calls.resize_with(slot + 1, CallItem::default);
        }
        let mut known = id.to_vec();
        if id.is_empty() {
            made_id(to.me.id, slot, &mut known);
        }
        let called = to.state.called(name);
        self.waiting += known.len() + called.name.len();
        self.calls[slot] = CallItem { id: known, called, stage: CallStage::Waiting, ..CallItem::default() };
        if let OpenItem::Call(open) = self.open
            && !self.calls[open].complete
        {
            return if self.waiting > TOOL_HELD_MAX { Err(StreamFault::TooLarge) } else { Ok(()) };
        }
        self.close(to, false)?;
        self.open_call(slot, to);
        Ok(())
    }

    pub(super) fn open_call(&mut self, slot: usize, to: &mut Destination<'_>) {
        self.open = OpenItem::Call(slot);
        self.calls[slot].stage = CallStage::Open;
        if self.calls[slot].called.kind != ToolKind::Function {
            return;
        }
        let held = std::mem::take(&mut self.calls[slot].held);
        self.waiting -= held.len();
        let mut item = Vec::with_capacity(192);
        self.write_call(slot, "in_progress", b"", to.me, &mut item);
        self.added(&item, to.out);
        if !held.is_empty() {
            self.tell_arguments(&held, to);
        }
    }

    fn tell_arguments(&mut self, piece: &[u8], to: &mut Destination<'_>) {
        self.about("response.function_call_arguments.delta", "fc_", to, |out| {
            member_inside(out, "delta", piece);
        });
        self.text.extend_from_slice(piece);
    }

    pub(super) fn arguments(&mut self, slot: usize, piece: &[u8], to: &mut Destination<'_>) -> Result<(), StreamFault> {
        match self.calls.get_mut(slot) {
            Some(call) if call.stage == CallStage::Open && call.called.kind == ToolKind::Function => {
                self.tell_arguments(piece, to);
            }
            Some(call) if call.stage != CallStage::Closed => {
                call.held.extend_from_slice(piece);
                self.waiting += piece.len();
                if self.waiting > TOOL_HELD_MAX {
                    return Err(StreamFault::TooLarge);
                }
            }
            _ if is_blank(piece) => {}
            // More of a call that is done: it cannot be reopened.
            _ => return Err(StreamFault::Malformed),
        }
        Ok(())
    }

    /// Appends a call's item with the inside of its arguments, or of its input.
    fn write_call(&self, slot: usize, status: &str, inside: &[u8], me: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
        let CallItem { id, called, .. } = &self.calls[slot];
        let (start, kind) = match called.kind {
            ToolKind::Function => ("fc_", "function_call"),
            ToolKind::Custom => ("ctc_", "custom_tool_call"),
            ToolKind::Search => ("tsc_", "tool_search_call"),
        };
        self.write_item(start, kind, status, me, out);
        member_inside(out, "call_id", id);
        if called.kind == ToolKind::Search {
            let arguments = if inside.is_empty() { b"{}" } else { inside };
            put!(out, r#","execution":"client","arguments":"#, arguments, "}");
            return;
        }
        member_inside(out, "name", &called.name);
        member_inside(out, if called.kind == ToolKind::Custom { "input" } else { "arguments" }, inside);
        if let Some(namespace) = &called.namespace {
            member_inside(out, "namespace", namespace);
        }
        out.push(b'}');
    }

    /// Ends the current call. `cut`: the answer ended inside it.
    pub(super) fn close_call(&mut self, slot: usize, cut: bool, to: &mut Destination<'_>) {
        let call = &mut self.calls[slot];
        call.stage = CallStage::Closed;
        self.waiting -= call.id.len() + call.called.name.len() + call.held.len();
        let (kind, held) = (call.called.kind, std::mem::take(&mut call.held));
        self.open = OpenItem::None;
        let mut written = Vec::with_capacity(self.text.len() + held.len() + 192);
        if kind == ToolKind::Function {
            if self.text.is_empty() && !cut {
                self.tell_arguments(b"{}", to);
            }
            let text = std::mem::take(&mut self.text);
            if !cut {
                let name = self.calls[slot].called.name.clone();
                self.about("response.function_call_arguments.done", "fc_", to, |out| {
                    member_inside(out, "name", &name);
                    member_inside(out, "arguments", &text);
                });
            }
            self.write_call(slot, if cut { "incomplete" } else { "completed" }, &text, to.me, &mut written);
            return self.item_done(&written, to.out);
        }
        if cut {
            return;
        }
        let mut item = Vec::with_capacity(192);
        self.write_call(slot, "in_progress", b"", to.me, &mut item);
        self.added(&item, to.out);
        let inside = match kind {
            ToolKind::Custom => free_input(&held),
            _ => object_of(&held),
        };
        if kind == ToolKind::Custom {
            for (name, member) in [("delta", "delta"), ("done", "input")] {
                self.about(&format!("response.custom_tool_call_input.{name}"), "ctc_", to, |out| {
                    member_inside(out, member, &inside);
                });
            }
        }
        self.write_call(slot, "completed", &inside, to.me, &mut written);
        self.item_done(&written, to.out);
    }
}

/// The object in the inside of a string; an empty one if it is no object.
fn object_of(inside: &[u8]) -> Vec<u8> {
    let text = Raw::text_of(inside);
    let is_object = json::check(text.as_bytes()).is_ok() && Raw::new(text.as_bytes()).kind() == ValueKind::Object;
    let mut object = Vec::new();
    if is_object {
        json::compact(text.as_bytes(), &mut object);
    }
    object
}
