//! Rules for large types: number of methods, number of files whose methods call each other in a cycle, and how often
//! the exchange reads a state that its caller has already read.

use crate::dependencies::{groups, implementer};
use crate::lexer::{find_word, is_word, matching_brace};
use crate::paths::Tree;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of methods of a type, and of files with methods of one type that call each other in a cycle.
const METHODS_MAX: usize = 60;
const CYCLE_MAX: usize = 3;
/// Maximum number of fields of the gateway's shared data, and of each of its groups.
pub const FIELDS_MAX: usize = 12;
/// Maximum number of functions that take the state of an exchange: those of `dispatch.rs`, and its end.
pub const STATE_TAKERS_MAX: usize = 4;

/// Methods of a type, by the files that define them, and what each file calls.
#[derive(Default)]
pub struct Methods {
    defined: BTreeMap<String, usize>,
    called: BTreeMap<usize, BTreeSet<String>>,
}

impl Methods {
    /// Returns the number of files with methods.
    pub fn files(&self) -> usize {
        self.called.len()
    }
}

/// Returns the methods of all types that have some, by layer and type.
pub fn methods(files: &[(String, String)]) -> BTreeMap<(String, String), Methods> {
    let tree = Tree::new(files);
    let mut all: BTreeMap<(String, String), Methods> = BTreeMap::new();
    for (at, module) in tree.modules.iter().enumerate() {
        let layer = module.name.first().cloned().unwrap_or_default();
        for (name, body) in impls(&module.code) {
            let methods = all.entry((layer.clone(), name.to_owned())).or_default();
            methods.defined.extend(functions(body).map(|function| (function.to_owned(), at)));
            let called = ["self.", "Self::", &format!("{name}::")].map(|owner| calls(body, owner));
            methods.called.entry(at).or_default().extend(called.into_iter().flatten());
        }
    }
    all
}

/// Returns the names and bodies of all blocks with methods.
fn impls(code: &str) -> Vec<(&str, &str)> {
    let blocks = find_word(code, "impl").filter_map(|at| {
        let open = at + code[at..].find(['{', ';', ')'])?;
        let is_block = code.as_bytes()[open] == b'{' && code[..at].trim_end().ends_with(['}', ';', ']']);
        is_block.then(|| (implementer(&code[at + 4..open]), &code[open..matching_brace(code.as_bytes(), open)]))
    });
    blocks.collect()
}

/// Returns the functions that a block defines, without those inside other functions.
fn functions(body: &str) -> impl Iterator<Item = &str> {
    body.split("\n    ").filter_map(|line| {
        let at = find_word(line, "fn").next().filter(|_| !line.starts_with(' '))?;
        line[at + 3..].split(|c: char| !c.is_ascii() || !is_word(c as u8)).next()
    })
}

/// Returns the names that a block calls of `owner`, which ends with the dot or the colons before the name.
fn calls(body: &str, owner: &str) -> BTreeSet<String> {
    let dense: String =
        body.split("\n").map(|line| if line.trim_start().starts_with('.') { line.trim() } else { line }).collect();
    let places: Vec<usize> = dense.match_indices(owner).map(|(at, _)| at).collect();
    let starts = places.into_iter().filter(|at| *at == 0 || !is_word(dense.as_bytes()[at - 1]));
    let names = starts.filter_map(|at| {
        let rest = &dense[at + owner.len()..];
        let end = rest.bytes().position(|byte| !is_word(byte))?;
        let is_call = rest[end..].starts_with('(') || owner != "self.";
        is_call.then(|| rest[..end].to_owned())
    });
    names.collect()
}

/// Returns the number of files in the largest cycle.
fn cycle(methods: &Methods) -> usize {
    let files: Vec<usize> = methods.called.keys().copied().collect();
    let place = |file: usize| files.binary_search(&file).ok();
    let edges: Vec<BTreeSet<usize>> = methods
        .called
        .iter()
        .map(|(file, names)| {
            let homes = names.iter().filter_map(|name| methods.defined.get(name)).filter(|home| *home != file);
            homes.filter_map(|home| place(*home)).collect()
        })
        .collect();
    groups(&edges).iter().map(Vec::len).max().unwrap_or(1)
}

/// Returns the types that exceed their limit.
pub fn violations(files: &[(String, String)]) -> Vec<String> {
    let mut found = Vec::new();
    for ((_, name), all) in methods(files) {
        let (methods, files) = (all.defined.len(), cycle(&all));
        if methods > METHODS_MAX {
            found.push(format!("{name} has {methods} methods, at most {METHODS_MAX} are allowed"));
        }
        if files > CYCLE_MAX {
            found.push(format!("{files} files with methods of {name} call each other, at most {CYCLE_MAX} may"));
        }
    }
    found
}

/// Returns the code of the product's files below a folder.
pub fn code_below(files: &[(String, String)], folder: &str) -> String {
    let tree = Tree::new(files);
    tree.modules.iter().filter(|module| module.path.starts_with(folder)).map(|module| module.code.as_str()).collect()
}

/// Returns the number of fields of a type.
pub fn fields(code: &str, name: &str) -> usize {
    let head = format!("struct {name} {{");
    let Some(at) = code.find(&head) else { return 0 };
    let open = at + head.len() - 1;
    let body = &code[open..matching_brace(code.as_bytes(), open)];
    body.lines().filter(|line| line.starts_with("    ") && line.contains(": ")).count()
}

/// Returns the number of reads of an exchange's state, without assignments.
pub fn state_reads(code: &str) -> usize {
    let reads = find_word(code, "self.state").filter(|at| !code[at + "self.state".len()..].starts_with(" ="));
    reads.count() + code.matches("let Exchange {").count()
}

/// Returns the number of early returns for an impossible state.
pub fn impossible_states(code: &str) -> usize {
    let words: Vec<&str> = code.split_whitespace().collect();
    let text = words.join(" ");
    ["else { return Effect::Nothing", "else { return Ok(Effect::Nothing"]
        .map(|exit| text.matches(exit).count())
        .iter()
        .sum()
}
