//! Resolves Rust paths to files: the module tree, and the definitions, imports and re-exports of each file. Supports
//! only as much of the language as the project uses; a name without a visible definition (such as a macro's) counts as
//! defined in the file where it is looked up.

use crate::lexer::{code_only, find_word, is_word, matching_brace, test_items, without};
use std::collections::{BTreeMap, BTreeSet};

/// A name that a `use` imports.
pub struct Import {
    /// Byte offset of the statement.
    pub at: usize,
    /// `pub use`, `pub(crate) use` and so on.
    pub passed_on: bool,
    /// Path as written: `super`, `a`, `B`.
    pub path: Vec<String>,
    /// Name in this file; `*` for everything, `_` for nothing.
    pub name: String,
}

/// A file of the product, without its tests.
pub struct Module {
    pub path: String,
    /// `src/engine/gateway/client/mod.rs` is `gateway`, `client`.
    pub name: Vec<String>,
    pub imports: Vec<Import>,
    /// The code without comments, literals, tests and imports; offsets are those of the file.
    pub code: String,
    defined: BTreeSet<String>,
}

/// Target of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// An item that this file defines.
    Item(usize),
    /// A file as a module.
    Module(usize),
}

/// All files of the product, and the resolution of names to them.
pub struct Tree {
    pub modules: Vec<Module>,
    by_name: BTreeMap<Vec<String>, usize>,
}

impl Place {
    /// Returns the file.
    pub fn file(self) -> usize {
        match self {
            Place::Item(at) | Place::Module(at) => at,
        }
    }
}

/// Maximum length of a chain of re-exports; a longer one is a cycle.
const HOPS_MAX: usize = 16;

impl Tree {
    /// `files` are paths and texts; only those below `src` are used.
    pub fn new(files: &[(String, String)]) -> Tree {
        let mut tests = BTreeSet::new();
        let mut modules = Vec::new();
        for (path, text) in files.iter().filter(|(path, _)| path.starts_with("src/")) {
            let code = code_only(text);
            let items = test_items(&code);
            let name = name_of(path);
            for item in &items {
                if let Some(child) = child_declared(&code[item.clone()]) {
                    tests.insert([name.clone(), vec![child]].concat());
                }
            }
            modules.push(module(path, name, &without(&code, &items)));
        }
        let is_test = |name: &[String]| (1..=name.len()).any(|length| tests.contains(&name[..length]));
        modules.retain(|module| !is_test(&module.name));
        let by_name = modules.iter().enumerate().map(|(at, module)| (module.name.clone(), at)).collect();
        Tree { modules, by_name }
    }

    /// Returns the target of the path in the file `from`; `None` outside of the crate.
    pub fn resolve(&self, from: usize, path: &[String]) -> Option<Place> {
        self.follow(from, path, HOPS_MAX)
    }

    /// Returns the path from the crate's root, if its first part is a keyword for that or a name in the file.
    pub fn absolute(&self, from: usize, path: &[String]) -> Option<Vec<String>> {
        let here = &self.modules[from].name;
        let ups = path.iter().take_while(|part| *part == "super").count();
        match path.first()?.as_str() {
            "crate" | "control" | "engine" | "tollgate" => Some(path[1..].to_vec()),
            "self" => Some([here, &path[1..]].concat()),
            "super" => Some([&here[..here.len().checked_sub(ups)?], &path[ups..]].concat()),
            first => {
                let child = [here.clone(), vec![first.to_owned()]].concat();
                let own = self.modules[from].defined.contains(first) || self.by_name.contains_key(&child);
                own.then(|| [here.as_slice(), path].concat())
            }
        }
    }

    fn follow(&self, from: usize, path: &[String], hops: usize) -> Option<Place> {
        let hops = hops.checked_sub(1)?;
        let Some(absolute) = self.absolute(from, path) else {
            // The name may be imported.
            let import = self.modules[from].imports.iter().find(|import| import.name == path[0])?;
            if import.path == path[..1] {
                return None;
            }
            return self.follow(from, &[&import.path, &path[1..]].concat(), hops);
        };
        // Takes the longest prefix that is a file; the rest is an item in it.
        let depth = (0..=absolute.len()).rev().find(|depth| self.by_name.contains_key(&absolute[..*depth]))?;
        let at = self.by_name[&absolute[..depth]];
        let Some(item) = absolute.get(depth) else { return Some(Place::Module(at)) };
        let module = &self.modules[at];
        if module.defined.contains(item) {
            return Some(Place::Item(at));
        }
        let rest = &absolute[depth + 1..];
        let named = module.imports.iter().filter(|import| import.name == *item).map(|import| import.path.clone());
        let globs = module.imports.iter().filter(|import| import.name == "*" && import.path != ["super"]);
        let globs = globs.map(|import| [import.path.clone(), vec![item.clone()]].concat());
        let mut candidates = named.chain(globs).map(|path| self.follow(at, &[&path, rest].concat(), hops));
        Some(candidates.find_map(|found| found).unwrap_or(Place::Item(at)))
    }
}

/// The folders of the crates that contain several layers.
pub const CRATES: [&str; 2] = ["src/control/", "src/engine/"];

/// Returns a file's path from its layer without its ending: `src/engine/a/b.rs` and `src/engine/a/b/mod.rs` are `a/b`,
/// `src/a/lib.rs` is `a`.
pub fn in_crate(path: &str) -> &str {
    let inside = CRATES.iter().find_map(|folder| path.strip_prefix(folder));
    let inside = inside.unwrap_or_else(|| path.trim_start_matches("src/"));
    inside.trim_end_matches(".rs").trim_end_matches("/mod").trim_end_matches("/lib")
}

/// Returns the module path: `src/engine/a/b.rs` is `a`, `b`; the root of each crate is the root.
fn name_of(path: &str) -> Vec<String> {
    let bare = in_crate(path);
    if bare == "lib" { Vec::new() } else { bare.split('/').map(str::to_owned).collect() }
}

/// Returns the name in `#[cfg(test)] mod name;`.
fn child_declared(item: &str) -> Option<String> {
    let rest = &item[find_word(item, "mod").next()? + "mod".len()..];
    let name = rest.trim_start();
    let length = name.bytes().take_while(|byte| is_word(*byte)).count();
    name[length..].trim_start().starts_with(';').then(|| name[..length].to_owned())
}

fn module(path: &str, name: Vec<String>, product: &str) -> Module {
    let (mut imports, mut code) = (Vec::new(), product.as_bytes().to_vec());
    for at in find_word(product, "use").filter(|at| begins_statement(product, *at)) {
        let end = product[at..].find(';').map_or(product.len(), |length| at + length);
        let passed_on = product[..at].trim_end().ends_with("pub") || product[..at].trim_end().ends_with(')');
        spread(&product[at + "use".len()..end], &[], &mut |path, name| {
            imports.push(Import { at, passed_on, path, name });
        });
        code[at..end].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
    }
    let code = String::from_utf8_lossy(&code).into_owned();
    let defined = definitions(&code);
    Module { path: path.to_owned(), name, imports, code, defined }
}

/// Returns false for `use<'a>`, which names lifetimes.
fn begins_statement(text: &str, at: usize) -> bool {
    !text[at + "use".len()..].trim_start().starts_with('<')
}

/// Calls `found` with every path in the tree of a `use`, and the name that it introduces.
fn spread(tree: &str, before: &[String], found: &mut impl FnMut(Vec<String>, String)) {
    let tree = tree.trim().trim_start_matches("::");
    if let Some(open) = tree.find('{') {
        let prefix = [before, &parts(&tree[..open])].concat();
        let inside = &tree[open + 1..matching_brace(tree.as_bytes(), open) - 1];
        let (mut depth, mut start) = (0, 0);
        for (at, byte) in inside.bytes().enumerate() {
            match byte {
                b'{' => depth += 1,
                b'}' => depth -= 1,
                b',' if depth == 0 => {
                    spread(&inside[start..at], &prefix, found);
                    start = at + 1;
                }
                _ => {}
            }
        }
        spread(&inside[start..], &prefix, found);
        return;
    }
    if tree.is_empty() {
        return;
    }
    let (path, renamed) = match tree.split_once(" as ") {
        Some((path, name)) => (path, Some(name.trim().to_owned())),
        None => (tree, None),
    };
    let mut path = [before, &parts(path)].concat();
    if path.last().is_some_and(|last| last == "self") && path.len() > 1 {
        path.pop();
    }
    let last = path.last().cloned().unwrap_or_default();
    if last == "*" {
        path.pop();
    }
    found(path, renamed.unwrap_or(last));
}

fn parts(path: &str) -> Vec<String> {
    path.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Returns the names of items outside of braces.
fn definitions(code: &str) -> BTreeSet<String> {
    const KINDS: [&str; 9] = ["struct", "enum", "union", "trait", "type", "const", "static", "fn", "macro_rules!"];
    let outside = without_braces(code);
    let mut found = BTreeSet::new();
    for kind in KINDS {
        for at in find_word(&outside, kind) {
            let rest = outside[at + kind.len()..].trim_start();
            let rest = rest.strip_prefix("fn ").or_else(|| rest.strip_prefix("mut ")).unwrap_or(rest);
            found.insert(rest.bytes().take_while(|byte| is_word(*byte)).map(char::from).collect());
        }
    }
    // A module with a body belongs to its file.
    for at in find_word(&outside, "mod") {
        let rest = outside[at + "mod".len()..].trim_start();
        let length = rest.bytes().take_while(|byte| is_word(*byte)).count();
        if rest[length..].trim_start().starts_with('{') {
            found.insert(rest[..length].to_owned());
        }
    }
    found
}

/// Replaces everything in braces by blanks.
pub fn without_braces(code: &str) -> String {
    let (mut depth, mut out) = (0usize, String::with_capacity(code.len()));
    for character in code.chars() {
        if character == '}' {
            depth = depth.saturating_sub(1);
        }
        out.push(if depth == 0 { character } else { ' ' });
        if character == '{' {
            depth += 1;
        }
    }
    out
}

/// Returns every path of at least two names in `code`, with its offset.
pub fn paths_in(code: &str) -> Vec<(usize, Vec<String>)> {
    let bytes = code.as_bytes();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        if !is_word(bytes[at]) {
            at += 1;
            continue;
        }
        let (start, mut path) = (at, Vec::new());
        loop {
            let length = bytes[at..].iter().take_while(|byte| is_word(**byte)).count();
            path.push(code[at..at + length].to_owned());
            at += length;
            let goes_on = bytes[at..].starts_with(b"::") && bytes.get(at + 2).is_some_and(|byte| is_word(*byte));
            if !goes_on {
                break;
            }
            at += 2;
        }
        // A field or a method is not a path, nor is the text after it.
        let before = code[..start].trim_end();
        if path.len() > 1 && !before.ends_with("::") && (!before.ends_with('.') || before.ends_with("..")) {
            found.push((start, path));
        }
    }
    found
}
