//! Calls of tools in a responses stream.

use crate::dialect::answer::{Destination, ResponseIdentity};
use crate::dialect::neutral::naming::{ToolKind, made_id};
use crate::dialect::responses::response::free_input;
use crate::dialect::responses::write_stream::{CallItem, OpenItem, ResponsesWriter};
use crate::wire::json::{self, Raw, ValueKind, member_inside, put};

impl ResponsesWriter {
    pub(super) fn call(&mut self, slot: usize, id: &[u8], name: &[u8], to: &mut Destination<'_>) {
        self.start(to);
        self.close(to, false);
        let mut known = id.to_vec();
        if id.is_empty() {
            made_id(to.identity.id, slot, &mut known);
        }
        self.call = CallItem { id: known, called: to.state.called(name), complete: false };
        self.open = OpenItem::Call;
        if self.call.called.kind == ToolKind::Function {
            self.add_call(to);
        }
    }

    fn add_call(&mut self, to: &mut Destination<'_>) {
        let mut item = Vec::with_capacity(192);
        self.write_call("in_progress", b"", to.identity, &mut item);
        self.added(&item, to.out);
    }

    /// Writes more arguments. Free text is written at its end: its place in the arguments is known then.
    pub(super) fn arguments(&mut self, piece: &[u8], to: &mut Destination<'_>) {
        if self.call.called.kind == ToolKind::Function {
            self.about("response.function_call_arguments.delta", "fc_", to, |out| {
                member_inside(out, "delta", piece);
            });
        }
        self.text.extend_from_slice(piece);
    }

    /// Appends a call's item with the inside of its arguments, or of its input.
    fn write_call(&self, status: &str, inside: &[u8], identity: &ResponseIdentity<'_>, out: &mut Vec<u8>) {
        let CallItem { id, called, .. } = &self.call;
        let (start, kind) = match called.kind {
            ToolKind::Function => ("fc_", "function_call"),
            ToolKind::Custom => ("ctc_", "custom_tool_call"),
            ToolKind::Search => ("tsc_", "tool_search_call"),
        };
        self.write_item(start, kind, status, identity, out);
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
    pub(super) fn close_call(&mut self, cut: bool, to: &mut Destination<'_>) {
        let kind = self.call.called.kind;
        if kind == ToolKind::Function && self.text.is_empty() && !cut {
            self.arguments(b"{}", to);
        }
        let text = std::mem::take(&mut self.text);
        let mut written = Vec::with_capacity(text.len() + 192);
        if kind == ToolKind::Function {
            if !cut {
                let name = self.call.called.name.clone();
                self.about("response.function_call_arguments.done", "fc_", to, |out| {
                    member_inside(out, "name", &name);
                    member_inside(out, "arguments", &text);
                });
            }
            self.write_call(if cut { "incomplete" } else { "completed" }, &text, to.identity, &mut written);
            return self.item_done(&written, to.out);
        }
        if cut {
            self.open = OpenItem::None;
            return;
        }
        self.add_call(to);
        let inside = match kind {
            ToolKind::Custom => free_input(&text),
            _ => object_of(&text),
        };
        if kind == ToolKind::Custom {
            for (name, member) in [("delta", "delta"), ("done", "input")] {
                self.about(&format!("response.custom_tool_call_input.{name}"), "ctc_", to, |out| {
                    member_inside(out, member, &inside);
                });
            }
        }
        self.write_call("completed", &inside, to.identity, &mut written);
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
