//! Rules for the dependencies inside a layer: no cycle of files, one owner of the gateway's methods, three state
//! machines that do not depend on each other.

use crate::lexer::{find_word, is_word, line_of};
use crate::paths::{Place, Tree, paths_in};
use std::collections::BTreeSet;

/// Folders of the gateway with one state machine each: no file of one may name the state machine of another.
const MACHINES: [&str; 3] = ["client", "exchange", "provider"];
/// The files that may extend the gateway.
const OWNERS: [&str; 2] = ["src/engine/gateway/mod.rs", "src/engine/gateway/drive/"];

/// Returns cycles among the files of one layer. A file depends on another if it names something that the other defines,
/// however the path is written. A mere re-export (`pub use child::X`) is not a dependency of the file that contains it.
pub fn cycles(files: &[(String, String)]) -> Vec<String> {
    let tree = Tree::new(files);
    let edges: Vec<BTreeSet<usize>> = (0..tree.modules.len()).map(|from| needs(&tree, from)).collect();
    let mut found = Vec::new();
    for group in groups(&edges) {
        let names: Vec<&str> = group.iter().map(|at| tree.modules[*at].path.as_str()).collect();
        let mut steps = Vec::new();
        for from in &group {
            for to in edges[*from].iter().filter(|to| group.contains(to)) {
                steps.push(format!("    {} -> {}", tree.modules[*from].path, tree.modules[*to].path));
            }
        }
        found.push(format!("{}: a cycle of {} files:\n{}", names[0], names.len(), steps.join("\n")));
    }
    found
}

/// Returns the files of the same layer that a file depends on.
pub fn needs(tree: &Tree, from: usize) -> BTreeSet<usize> {
    let module = &tree.modules[from];
    let mut found = BTreeSet::new();
    let mut edge = |place| {
        if let Some(Place::Item(to)) = place {
            let (here, there) = (&module.name, &tree.modules[to].name);
            if to != from && !here.is_empty() && here.first() == there.first() {
                found.insert(to);
            }
        }
    };
    for import in &module.imports {
        let used = || find_word(&module.code, &import.name).next().is_some();
        if import.passed_on && (import.name == "*" || !used()) {
            continue;
        }
        match import.name.as_str() {
            // A glob import depends at least on the module's own file.
            "*" => edge(tree.resolve(from, &import.path).map(|place| Place::Item(place.file()))),
            _ => edge(tree.resolve(from, &import.path)),
        }
    }
    for (_, path) in paths_in(&module.code) {
        edge(tree.resolve(from, &path));
    }
    found
}

/// Returns the strongly connected components with more than one file, in order.
pub fn groups(edges: &[BTreeSet<usize>]) -> Vec<Vec<usize>> {
    let reach: Vec<BTreeSet<usize>> = (0..edges.len()).map(|from| reachable(edges, from)).collect();
    let mut found: Vec<Vec<usize>> = Vec::new();
    for at in 0..edges.len() {
        let group: Vec<usize> = reach[at].iter().copied().filter(|other| reach[*other].contains(&at)).collect();
        if group.len() > 1 && group.first() == Some(&at) {
            found.push(group);
        }
    }
    found
}

/// Returns everything that can be reached from `from` in one or more steps.
fn reachable(edges: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let (mut found, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(at) = next.pop() {
        next.extend(edges[at].iter().copied().filter(|to| found.insert(*to)));
    }
    found
}

/// Returns methods of `Gateway` in files that do not own it.
pub fn extensions(files: &[(String, String)]) -> Vec<String> {
    let tree = Tree::new(files);
    let mut found = Vec::new();
    for module in tree.modules.iter().filter(|module| !OWNERS.iter().any(|owner| module.path.starts_with(owner))) {
        if module.name.first().is_none_or(|layer| layer != "gateway") {
            continue;
        }
        for at in find_word(&module.code, "impl") {
            let head = module.code[at + "impl".len()..].split('{').next().unwrap_or_default();
            if implementer(head) == "Gateway" {
                let line = line_of(&module.code, at);
                found.push(format!("{}:{line}: only {} extend `Gateway`", module.path, OWNERS.join(" and ")));
            }
        }
    }
    found
}

/// Returns the name of the type in the head of an `impl`, without its path and its parameters.
pub fn implementer(head: &str) -> &str {
    // Skips the generic parameters of the `impl` itself.
    let mut rest = head.trim_start();
    if rest.starts_with('<') {
        let mut depth = 0;
        let close = rest.bytes().position(|byte| {
            depth += i32::from(byte == b'<') - i32::from(byte == b'>');
            depth == 0
        });
        rest = &rest[close.map_or(rest.len(), |at| at + 1)..];
    }
    let rest = find_word(rest, "for").last().map_or(rest, |at| &rest[at + "for".len()..]);
    let rest = rest.split(" where").next().unwrap_or_default().trim();
    let path = rest.split('<').next().unwrap_or_default().trim_end();
    let start = path.bytes().rposition(|byte| !is_word(byte)).map_or(0, |at| at + 1);
    &path[start..]
}

/// Returns state machines of the gateway that name another one.
pub fn machines(files: &[(String, String)]) -> Vec<String> {
    let tree = Tree::new(files);
    let mut found = Vec::new();
    for (from, module) in tree.modules.iter().enumerate() {
        let Some(own) = machine(&module.name) else { continue };
        let imports = module.imports.iter().map(|import| (import.at, import.path.clone()));
        for (at, path) in imports.chain(paths_in(&module.code)) {
            let written = tree.absolute(from, &path);
            let meant = tree.resolve(from, &path).map(|place| &tree.modules[place.file()].name);
            let other = [written.as_ref(), meant].into_iter().flatten().find_map(|name| machine_of(name));
            if let Some(other) = other.filter(|other| *other != own) {
                let line = line_of(&module.code, at);
                found.push(format!("{}:{line}: {own} must not know {other}", module.path));
            }
        }
    }
    found.dedup();
    found
}

/// Returns the state machine whose folder contains a module.
fn machine(name: &[String]) -> Option<&'static str> {
    let folder = name.get(1).filter(|_| name[0] == "gateway")?;
    MACHINES.into_iter().find(|machine| machine == folder)
}

/// Returns the state machine that a module is part of. A connection is a single file; the other files in its folder are
/// its parts, and types that others may share. All files of the exchange's folder are the exchange.
fn machine_of(name: &[String]) -> Option<&'static str> {
    let folder = machine(name)?;
    let inside = name.get(2).map(String::as_str);
    (folder == "exchange" || matches!(inside, Some("connection" | "Connection"))).then_some(folder)
}
