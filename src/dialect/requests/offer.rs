//! The tools a chat request offers and the choice among them, as the messages shape has them (`wire-formats` 3.6, 3.7).
//!
//! Owns the definitions, the choice and the synthesis of definitions that only history needs. Must never look at a
//! message. Called by `to_messages`.

use super::super::naming::JSON_TOOL;
use super::super::request::{Invalid, Name};
use super::ask::{Ask, refuse};
use super::schema::write_input_schema;
use crate::wire::json::{Raw, item, key, write_inside, write_string};
use std::collections::BTreeSet;

/// The tools on offer and the choice among them.
pub(super) struct Tools<'a> {
    functions: Vec<Raw<'a>>,
    /// Names to define without a schema: history uses them, the client does not offer them.
    synthetic: Vec<&'a [u8]>,
    choice: Choice<'a>,
    one_at_a_time: bool,
}

#[derive(Copy, Clone, PartialEq, Eq)]
enum Choice<'a> {
    Absent,
    Auto,
    None,
    Any,
    One(&'a [u8]),
}

impl<'a> Tools<'a> {
    pub(super) fn read(ask: &Ask<'a>, called: &[&'a [u8]]) -> Result<Tools<'a>, Invalid> {
        let mut functions = Vec::new();
        for (at, tool) in ask.get(Name::Tools, "tools").unwrap_or(Raw::NULL).items().enumerate() {
            let kind = tool.get("type").unwrap_or(Raw::NULL);
            if !kind.is_null() && !kind.is("function") {
                return refuse(format_args!("tools[{at}].type"), "function for this model");
            }
            match tool.get("function").filter(|function| function.get("name").and_then(Raw::string).is_some()) {
                Some(function) => functions.push(function),
                None => return refuse(format_args!("tools[{at}].function.name"), "a string"),
            }
        }
        let one_at_a_time = ask.get(Name::ParallelToolCalls, "parallel_tool_calls").and_then(Raw::bool) == Some(false);
        let mut tools = Tools { functions, synthetic: Vec::new(), choice: Choice::Absent, one_at_a_time };
        if !tools.functions.is_empty() {
            tools.choose(ask)?;
        }
        if tools.functions.is_empty() && !called.is_empty() {
            // Tool blocks in the history want definitions, though none of them may be called.
            tools.synthetic = called.to_vec();
            tools.choice = Choice::None;
        }
        Ok(tools)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.functions.is_empty() && self.synthetic.is_empty()
    }

    fn choose(&mut self, ask: &Ask<'a>) -> Result<(), Invalid> {
        let Some(choice) = ask.get(Name::ToolChoice, "tool_choice") else { return Ok(()) };
        let kind = choice.get("type").unwrap_or(choice);
        self.choice = if kind.is("auto") {
            Choice::Auto
        } else if kind.is("none") {
            Choice::None
        } else if kind.is("required") {
            Choice::Any
        } else if kind.is("function")
            && let Some(name) = choice.get("function").and_then(|f| f.get("name")).and_then(Raw::string)
        {
            Choice::One(name)
        } else if kind.is("allowed_tools") {
            self.allow(choice.get("allowed_tools").unwrap_or(choice));
            let required = choice.get("allowed_tools").unwrap_or(choice).get("mode").is_some_and(|m| m.is("required"));
            if required { Choice::Any } else { Choice::Auto }
        } else {
            return refuse("tool_choice", "auto, none, required, allowed_tools or a function for this model");
        };
        Ok(())
    }

    /// Keeps the tools that the list names.
    fn allow(&mut self, allowed: Raw<'a>) {
        let list = allowed.get("tools").unwrap_or(Raw::NULL);
        let name = |tool: Raw<'a>| tool.get("function").unwrap_or(tool).get("name").and_then(Raw::string);
        let names: BTreeSet<_> = list.items().filter_map(name).collect();
        self.functions.retain(|function| name(*function).is_some_and(|name| names.contains(name)));
    }

    pub(super) fn write(&self, ask: &Ask<'_>, json: Option<Raw<'_>>, out: &mut Vec<u8>) {
        if let Some(schema) = json {
            key(out, "tools");
            out.extend_from_slice(b"[{\"name\":");
            write_string(out, JSON_TOOL);
            key(out, "description");
            write_string(out, "Give the answer by calling this tool.");
            key(out, "input_schema");
            write_input_schema(schema, out);
            out.extend_from_slice(b"}]");
            key(out, "tool_choice");
            out.extend_from_slice(b"{\"type\":\"tool\",\"name\":");
            write_string(out, JSON_TOOL);
            out.push(b'}');
            return;
        }
        if self.is_empty() {
            return;
        }
        key(out, "tools");
        out.push(b'[');
        for function in &self.functions {
            write_tool(*function, ask.target.capabilities.strict_tools, out);
        }
        for name in &self.synthetic {
            item(out);
            out.extend_from_slice(b"{\"name\":");
            write_inside(out, name);
            key(out, "input_schema");
            write_input_schema(Raw::NULL, out);
            out.push(b'}');
        }
        out.push(b']');
        self.write_choice(out);
    }

    fn write_choice(&self, out: &mut Vec<u8>) {
        let kind = match self.choice {
            Choice::Absent if !self.one_at_a_time => return,
            Choice::Absent | Choice::Auto => "auto",
            Choice::None => "none",
            Choice::Any => "any",
            Choice::One(_) => "tool",
        };
        key(out, "tool_choice");
        out.push(b'{');
        key(out, "type");
        write_string(out, kind);
        if let Choice::One(name) = self.choice {
            key(out, "name");
            write_inside(out, name);
        }
        if self.one_at_a_time && self.choice != Choice::None {
            key(out, "disable_parallel_tool_use");
            out.extend_from_slice(b"true");
        }
        out.push(b'}');
    }
}

fn write_tool(function: Raw<'_>, strict: bool, out: &mut Vec<u8>) {
    item(out);
    out.extend_from_slice(b"{\"name\":");
    write_inside(out, function.get("name").and_then(Raw::string).unwrap_or_default());
    if let Some(description) = function.get("description").and_then(Raw::string) {
        key(out, "description");
        write_inside(out, description);
    }
    key(out, "input_schema");
    write_input_schema(function.get("parameters").unwrap_or(Raw::NULL), out);
    if strict && function.get("strict").and_then(Raw::bool) == Some(true) {
        key(out, "strict");
        out.extend_from_slice(b"true");
    }
    out.push(b'}');
}
