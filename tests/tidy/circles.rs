//! Circles of imports between the files of one layer. A path counts whether it stands in a `use` or in an expression;
//! it leads to the file of the deepest module that it names. Tests are no part of it.

use crate::lexer::{code_only, find_word, is_word, test_items, without};
use std::collections::{BTreeMap, BTreeSet};

/// A circle among the files below `src/{layer}`, as `a -> b -> a`, if there is one.
pub fn circle(layer: &str, files: &[(String, String)]) -> Option<String> {
    let folder = format!("src/{layer}/");
    let inside = files.iter().filter(|(path, _)| path.starts_with(&folder) && !path.ends_with("/tests.rs"));
    let modules: BTreeMap<String, &str> = inside.map(|(path, text)| (module(path), text.as_str())).collect();
    let mut edges: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (name, text) in &modules {
        let reached = paths(name, text, &modules).into_iter().filter_map(|path| file_of(&path, &modules));
        edges.insert(name, reached.filter(|reached| reached != name).collect());
    }
    // A file that imports none of the others is in no circle; without it the next one may be such.
    while let Some(end) = edges.iter().find(|(_, to)| to.is_empty()).map(|(end, _)| *end) {
        edges.remove(end);
        edges.values_mut().for_each(|to| to.retain(|name| *name != end));
    }
    let mut way = vec![*edges.keys().next()?];
    loop {
        let next = *edges.get(way.last()?)?.first()?;
        let seen = way.iter().position(|name| *name == next);
        way.push(next);
        if let Some(start) = seen {
            return Some(way[start..].join(" -> "));
        }
    }
}

/// `policy::config::print` of `src/policy/config/print.rs`.
fn module(path: &str) -> String {
    let path = path.trim_start_matches("src/").trim_end_matches(".rs").trim_end_matches("/mod");
    path.replace('/', "::")
}

/// The file that a path from the crate's root leads to: that of the longest beginning that is a module.
fn file_of<'a>(path: &str, modules: &'a BTreeMap<String, &str>) -> Option<&'a str> {
    let ends = path.match_indices("::").map(|(at, _)| at).chain([path.len()]);
    let longest = ends.filter_map(|end| modules.get_key_value(&path[..end])).last();
    longest.map(|(name, _)| name.as_str())
}

/// Every path in the code of the module called `name`, from the crate's root.
fn paths(name: &str, text: &str, modules: &BTreeMap<String, &str>) -> Vec<String> {
    let code = code_only(text);
    let code = without(&code, &test_items(&code));
    let children = modules.keys().filter_map(|other| other.strip_prefix(name)?.strip_prefix("::"));
    let children: Vec<&str> = children.filter(|child| !child.contains("::")).collect();
    let mut found = Vec::new();
    for first in ["crate", "self", "super"].into_iter().chain(children.iter().copied()) {
        let start = format!("{first}::");
        for at in find_word(&code, &start).filter(|at| !code[..*at].ends_with("::")) {
            let (mut rest, mut base) = (&code[at + start.len()..], name.to_string());
            match first {
                "crate" => base.clear(),
                "self" => {}
                "super" => {
                    base = parent(&base);
                    while let Some(after) = rest.strip_prefix("super::") {
                        (rest, base) = (after, parent(&base));
                    }
                }
                child => base = format!("{name}::{child}"),
            }
            spread(&base, rest, &mut found);
        }
    }
    found
}

fn parent(module: &str) -> String {
    module.rsplit_once("::").map_or_else(String::new, |(parent, _)| parent.to_string())
}

/// Appends `base` with what follows it in the code; of a group in braces, with each of its members. Answers what is
/// behind it.
fn spread<'a>(base: &str, rest: &'a str, found: &mut Vec<String>) -> &'a str {
    if let Some(mut group) = rest.strip_prefix('{') {
        loop {
            group = spread(base, group.trim_start(), found).trim_start();
            match group.strip_prefix(',') {
                Some(after) => group = after,
                None => return group.strip_prefix('}').unwrap_or(group),
            }
        }
    }
    let length = rest.bytes().take_while(|byte| is_word(*byte)).count();
    let (word, after) = rest.split_at(length);
    let full = match (base, word) {
        (base, "" | "self") => base.to_string(),
        ("", word) => word.to_string(),
        (base, word) => format!("{base}::{word}"),
    };
    match after.strip_prefix("::") {
        Some(deeper) if !word.is_empty() => spread(&full, deeper, found),
        _ => {
            found.push(full);
            // The rest of `a as b`, or of a glob.
            after.trim_start_matches(|c: char| c == ' ' || c == '*' || c.is_alphanumeric() || c == '_')
        }
    }
}
