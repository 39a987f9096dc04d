//! The tools that a responses request offers, and the choice among them: every kind that the client runs becomes a
//! function in other formats, under one name.
//!
//! Owns the names. Must never lose a client's name of a tool: the translation of the answer needs it.

use crate::base::limits::TOOLS_MAX;
use crate::dialect::chat::custom_tools::free_text;
use crate::dialect::chat::read_request::keep;
use crate::dialect::neutral::JsonText;
use crate::dialect::neutral::conversation::{Schema, Tool, ToolChoice, Tools};
use crate::dialect::neutral::naming::{Called, ToolKind, TranslationState, tool_name};
use crate::dialect::request::refuse;
use crate::dialect::request::{Invalid, Name};
use crate::dialect::translate::bounds::{too_many, tool_name_fits};
use crate::dialect::translate::source::{MARKS, SourceRequest};
use crate::wire::json::Raw;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The namespace whose members are called without one.
const DEFAULT_NAMESPACE: &[u8] = b"functions";
/// Name, in other formats, of the client's own search for tools.
const TOOL_SEARCH: &[u8] = b"tool_search";

/// Expected values of the tool choice.
const NOT_OFFERED: &str = "auto, none, required, allowed_tools, or a tool on tools, for this model";

/// The upstream's names of the tools.
#[derive(Default)]
pub struct ToolNames<'a> {
    /// The upstream's name of each tool, by [`place`], and by itself; empty by itself while it is only reserved.
    known: BTreeMap<JsonText<'a>, JsonText<'a>>,
    most: usize,
}

/// Namespace and name of a tool as one text. Neither contains an unescaped quotation mark, and no other name does.
fn place<'a>(namespace: &[u8], name: &[u8]) -> JsonText<'a> {
    Cow::Owned([namespace, b"\"", name].concat())
}

impl<'a> ToolNames<'a> {
    /// The upstream's name for one of the client's tools.
    pub fn upstream(&self, namespace: Option<&'a [u8]>, name: Option<&'a [u8]>) -> JsonText<'a> {
        let (namespace, name) = (inner(namespace), name.unwrap_or_default());
        let known = self.known.get(&place(namespace, name)).cloned();
        known.unwrap_or_else(|| tool_name(namespace, name, self.most, |_| false))
    }

    /// Reserves a name for another tool; `None` if the client has offered the same tool before.
    fn take(&mut self, namespace: &'a [u8], name: &'a [u8]) -> Option<JsonText<'a>> {
        let place = place(namespace, name);
        if self.known.contains_key(&place) {
            return None;
        }
        // A name without a namespace has been reserved for its tool.
        let is_own = |candidate: &[u8]| namespace.is_empty() && candidate == name;
        let is_taken = |name: &[u8]| self.known.get(name).is_some_and(|by| !by.is_empty() || !is_own(name));
        let upstream = tool_name(namespace, name, self.most, is_taken);
        self.known.insert(upstream.clone(), upstream.clone());
        self.known.insert(place, upstream.clone());
        Some(upstream)
    }
}

/// The namespace, with the default one as the empty name.
fn inner(namespace: Option<&[u8]>) -> &[u8] {
    namespace.filter(|namespace| *namespace != DEFAULT_NAMESPACE).unwrap_or_default()
}

/// The tools read so far.
struct ToolReader<'s, 'a> {
    source: &'s SourceRequest<'a>,
    state: &'s mut TranslationState,
    names: ToolNames<'a>,
    tools: Vec<Tool<'a>>,
    /// True if a tool runs at the provider or needs no definition there: other formats have no such tools.
    hosted: bool,
}

/// Reads the tools on offer, including those that the conversation adds.
pub fn read<'a>(
    source: &SourceRequest<'a>,
    input: Raw<'a>,
    state: &mut TranslationState,
) -> Result<(ToolNames<'a>, Tools<'a>), Invalid> {
    let names = ToolNames { most: source.targets.tool_name_max, ..ToolNames::default() };
    let mut reader = ToolReader { source, state, names, tools: Vec::new(), hosted: false };
    let adds = |item: &Raw<'_>| {
        item.get("type").is_some_and(|kind| kind.is("additional_tools") || kind.is("tool_search_output"))
    };
    let added = input.items().enumerate().filter(|(_, item)| adds(item));
    let added = added.filter_map(|(at, item)| Some((Some(at), item.get("tools")?)));
    let offered = source.get(Name::Tools, "tools").map(|tools| (None, tools));
    // Names without a namespace have priority over those with one, which can be renamed.
    let lists = || offered.into_iter().chain(added.clone());
    let mut count = 0;
    for tool in lists().flat_map(|(_, tools)| tools.items()) {
        count += 1;
        if count > TOOLS_MAX {
            return too_many("tools", TOOLS_MAX, "");
        }
        reader.reserve(tool);
    }
    for (item, tools) in lists() {
        for (at, tool) in tools.items().enumerate() {
            reader.tool(tool, ToolPosition { item, at, member: None })?;
        }
    }
    let ToolReader { names, mut tools, hosted, .. } = reader;
    let choice = source.get(Name::ToolChoice, "tool_choice");
    let none = choice.is_some_and(|choice| choice.is("none"));
    if hosted && tools.is_empty() && !none {
        return refuse("tools", "at least one function or custom tool for this model, which has no tools of its own");
    }
    if tools.is_empty() {
        return Ok((names, Tools { hosted, ..Tools::default() }));
    }
    let choice = choose(choice, &names, &mut tools)?;
    let parallel = source.get(Name::ParallelToolCalls, "parallel_tool_calls").and_then(Raw::bool);
    Ok((names, Tools { list: tools, choice, parallel, hosted }))
}

/// Position of a tool in the request.
#[derive(Copy, Clone)]
struct ToolPosition {
    /// Index of the item of the conversation, if it is in one.
    item: Option<usize>,
    at: usize,
    /// Index in the namespace, if it is in one.
    member: Option<usize>,
}

impl ToolPosition {
    fn path(self) -> String {
        let item = self.item.map_or(String::new(), |item| format!("input[{item}]."));
        let member = self.member.map_or(String::new(), |member| format!(".tools[{member}]"));
        format!("{item}tools[{}]{member}.name", self.at)
    }
}

impl<'a> ToolReader<'_, 'a> {
    /// Reserves a name without a namespace, so that it stays unchanged.
    fn reserve(&mut self, tool: Raw<'a>) {
        let [kind, name] = tool.pick(["type", "name"]);
        if kind.is_some_and(|kind| kind.is("function") || kind.is("custom")) {
            let name = name.and_then(Raw::string).unwrap_or_default();
            self.names.known.insert(Cow::Borrowed(name), Cow::Borrowed(b""));
        }
    }

    fn tool(&mut self, tool: Raw<'a>, place: ToolPosition) -> Result<(), Invalid> {
        let text = |name| tool.get(name).and_then(Raw::string);
        match &*tool.get("type").and_then(Raw::word).unwrap_or_default() {
            b"function" | b"custom" => self.named(tool, b"", place),
            b"namespace" => {
                let namespace = inner(text("name"));
                tool_name_fits(namespace, || place.path())?;
                for (at, member) in tool.get("tools").unwrap_or(Raw::NULL).items().enumerate() {
                    match member.get("type").and_then(Raw::word).as_deref() {
                        None | Some(b"function" | b"custom") => {
                            self.named(member, namespace, ToolPosition { member: Some(at), ..place })?;
                        }
                        Some(_) => self.hosted = true,
                    }
                }
                Ok(())
            }
            b"tool_search" if tool.get("execution").is_none_or(|word| !word.is("server")) => {
                if let Some(name) = self.names.take(b"", TOOL_SEARCH) {
                    let called = Called { name: TOOL_SEARCH.to_vec(), kind: ToolKind::Search, ..Called::default() };
                    self.state.note(name.to_vec(), called);
                    let schema = Schema::Given(tool.get("parameters").unwrap_or(Raw::NULL));
                    let description = text("description").map(Cow::Borrowed);
                    self.tools.push(Tool { name, description, schema, strict: false, mark: None });
                }
                Ok(())
            }
            _ => {
                self.hosted = true;
                Ok(())
            }
        }
    }

    /// Adds a named tool: a function, or one that takes free text.
    fn named(&mut self, tool: Raw<'a>, namespace: &'a [u8], place: ToolPosition) -> Result<(), Invalid> {
        let [name, kind, description, parameters, strict, control, breakpoint] =
            tool.pick(["name", "type", "description", "parameters", "strict", MARKS[0], MARKS[1]]);
        let Some(own) = name.and_then(Raw::string).filter(|name| !name.is_empty()) else {
            return refuse(place.path(), "a string");
        };
        tool_name_fits(own, || place.path())?;
        if self.tools.len() >= TOOLS_MAX {
            return too_many("tools", TOOLS_MAX, "");
        }
        let Some(name) = self.names.take(namespace, own) else { return Ok(()) };
        let free = kind.is_some_and(|kind| kind.is("custom"));
        let kind = if free { ToolKind::Custom } else { ToolKind::Function };
        if free || *name != *own {
            let namespace = (!namespace.is_empty()).then(|| namespace.to_vec());
            self.state.note(name.to_vec(), Called { name: own.to_vec(), namespace, kind });
        }
        let given = description.and_then(Raw::string);
        self.tools.push(Tool {
            name,
            description: if free { Some(free_text(tool, given)) } else { given.map(Cow::Borrowed) },
            schema: if free { Schema::Free } else { Schema::Given(parameters.unwrap_or(Raw::NULL)) },
            strict: strict.and_then(Raw::bool) == Some(true),
            mark: self.source.mark([control, breakpoint]),
        });
        Ok(())
    }
}

fn choose<'a>(
    choice: Option<Raw<'a>>,
    names: &ToolNames<'a>,
    tools: &mut Vec<Tool<'a>>,
) -> Result<ToolChoice<'a>, Invalid> {
    let Some(choice) = choice else { return Ok(ToolChoice::Absent) };
    let kind = choice.get("type").unwrap_or(choice);
    let named = |tool: Raw<'a>| {
        let text = |name| tool.get(name).and_then(Raw::string);
        match tool.get("type").is_some_and(|kind| kind.is("tool_search")) {
            true => Cow::Borrowed(TOOL_SEARCH),
            false => names.upstream(text("namespace"), text("name")),
        }
    };
    Ok(match &*kind.word().unwrap_or_default() {
        b"auto" => ToolChoice::Auto,
        b"none" => ToolChoice::None,
        b"required" => ToolChoice::Any,
        b"function" | b"custom" | b"tool_search" => {
            // Computed once: it may be long, and there may be many tools.
            let one = named(choice);
            if !tools.iter().any(|tool| tool.name == one) {
                return refuse("tool_choice", NOT_OFFERED);
            }
            ToolChoice::One(one)
        }
        b"allowed_tools" => {
            keep(tools, choice.get("tools").unwrap_or(Raw::NULL).items().map(named))?;
            if tools.is_empty() {
                return refuse("tool_choice", NOT_OFFERED);
            }
            if choice.get("mode").is_some_and(|mode| mode.is("required")) { ToolChoice::Any } else { ToolChoice::Auto }
        }
        _ => return refuse("tool_choice", NOT_OFFERED),
    })
}
