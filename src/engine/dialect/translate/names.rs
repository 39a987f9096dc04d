//! Names of tools as the target accepts them, the same in definitions, choice and history, for clients of every format.
//!
//! Owns the renaming; [`TranslationState`] restores the client's names in the answer. Must never give two tools the
//! same name.

use crate::dialect::neutral::JsonText;
use crate::dialect::neutral::conversation::{Block, Conversation, Schema, Tool, ToolChoice};
use crate::dialect::neutral::naming::{TranslationState, respelt, takes_name, tool_name};
use crate::dialect::request::Invalid;
use crate::dialect::request::refuse;
use crate::wire::json::{Raw, compact};
use std::borrow::Cow;
use std::collections::BTreeMap;

impl Tool<'_> {
    /// The schema without its formatting; empty for free text.
    fn compacted(&self) -> Vec<u8> {
        let mut schema = Vec::new();
        if let Schema::Given(given) = self.schema {
            compact(given.bytes(), &mut schema);
        }
        schema
    }
}

impl<'a> Conversation<'a> {
    /// Calls `each` with every name of a tool: on offer, in the choice, and in earlier calls.
    fn each_name(&mut self, mut each: impl FnMut(&mut JsonText<'a>)) {
        self.tools.list.iter_mut().for_each(|tool| each(&mut tool.name));
        if let ToolChoice::One(name) = &mut self.tools.choice {
            each(name);
        }
        for turn in &mut self.turns {
            for block in &mut turn.blocks {
                if let Block::Call(call) = block {
                    each(&mut call.name);
                }
            }
        }
    }
}

/// Keeps one of several equal definitions of a tool: the messages format accepts only one. Different definitions with
/// one name are refused as ambiguous.
pub(crate) fn distinct(tools: &mut Vec<Tool<'_>>) -> Result<(), Invalid> {
    let (mut known, mut doubled, mut schemas) = (BTreeMap::<&[u8], usize>::new(), Vec::new(), Vec::new());
    for (at, tool) in tools.iter().enumerate() {
        let first = *known.entry(&*tool.name).or_insert(at);
        if first == at {
            continue;
        }
        // Compacted once: it may be long, and its name may be repeated often.
        schemas.resize(tools.len(), Vec::new());
        if schemas[first].is_empty() {
            schemas[first] = tools[first].compacted();
        }
        let is_like = tools[first].description == tool.description && tools[first].strict == tool.strict;
        if !is_like || schemas[first] != tool.compacted() {
            return refuse("tools", &format!("one definition of `{}`", Raw::text_of(&tool.name)));
        }
        doubled.push(at);
    }
    if !doubled.is_empty() {
        let mut number = 0..;
        tools.retain(|_| number.next().is_none_or(|at| doubled.binary_search(&at).is_err()));
    }
    Ok(())
}

/// Renames each tool with a name longer than `most` characters, or that a target refuses, and notes the original in
/// `state`. Readers that support namespaces have renamed their tools already.
pub(crate) fn fit(conversation: &mut Conversation<'_>, most: usize, state: &mut TranslationState) {
    let mut fits = true;
    conversation.each_name(|name| {
        *name = respelt(std::mem::take(name));
        fits &= takes_name(name, most);
    });
    if fits {
        return;
    }
    // The target's name of each tool, by the client's name and by itself.
    let mut known = BTreeMap::<JsonText<'_>, JsonText<'_>>::new();
    conversation.each_name(|name| {
        if takes_name(name, most) {
            known.insert(name.clone(), name.clone());
        }
    });
    conversation.each_name(|name| {
        if !known.contains_key(name) {
            let fitted = tool_name(b"", name, most, |other| known.contains_key(other)).into_owned();
            state.note(fitted.clone(), state.called(name));
            known.insert(Cow::Owned(fitted.clone()), Cow::Owned(fitted.clone()));
            known.insert(name.clone(), Cow::Owned(fitted));
        }
        if let Some(fitted) = known.get(name) {
            *name = fitted.clone();
        }
    });
}
