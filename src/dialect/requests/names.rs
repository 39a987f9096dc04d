//! Names of tools as the target accepts them, alike in definitions, choice and history, for clients of every format.
//!
//! Owns the renaming; [`TranslationState`] restores the client's names in the answer. Must never give two tools one
//! name.

use super::super::naming::{Called, TranslationState, plain_name, takes_name, tool_name};
use super::talk::{Block, Choice, Talk, Text};
use crate::wire::Dialect;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Most characters of a tool's name in a format.
pub(super) fn longest(shape: Dialect) -> usize {
    if shape == Dialect::Messages { 128 } else { 64 }
}

impl<'a> Talk<'a> {
    fn names(&mut self) -> impl Iterator<Item = &mut Text<'a>> {
        let calls = self.turns.iter_mut().flat_map(|turn| &mut turn.blocks).filter_map(|block| match block {
            Block::Call(call) => Some(&mut call.name),
            _ => None,
        });
        let one = if let Choice::One(name) = &mut self.offer.choice { Some(name) } else { None };
        self.offer.tools.iter_mut().map(|tool| &mut tool.name).chain(one).chain(calls)
    }
}

/// Renames each tool whose name a target of `shape` refuses, and notes in `state` what its new name stands for. Readers
/// that know of namespaces have done so before; then nothing is left to do.
pub(super) fn fit(talk: &mut Talk<'_>, shape: Dialect, state: &mut TranslationState) {
    let most = longest(shape);
    let mut fits = true;
    for name in talk.names() {
        if name.contains(&b'\\') {
            *name = Cow::Owned(plain_name(name));
        }
        fits &= takes_name(name, most);
    }
    if fits {
        return;
    }
    let mut taken: BTreeSet<Text<'_>> = BTreeSet::new();
    taken.extend(talk.names().filter(|name| takes_name(name, most)).map(|name| name.clone()));
    let mut known: BTreeMap<Text<'_>, Text<'_>> = BTreeMap::new();
    for name in talk.names().filter(|name| !takes_name(name, most)) {
        let fitted = known.entry(name.clone()).or_insert_with(|| {
            let fitted: Text<'_> = Cow::Owned(tool_name(b"", name, most, |other| taken.contains(other)).into_owned());
            taken.insert(fitted.clone());
            state.note(fitted.to_vec(), Called { name: name.to_vec(), ..Called::default() });
            fitted
        });
        *name = fitted.clone();
    }
}
