//! Rules of the project: which layer may import which, maximum lengths, forbidden words.

use crate::lexer::{code_only, find_word, is_word, line_of, matching_brace, test_items, without};
use crate::paths::{in_crate, without_braces};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of lines of a function.
const FUNCTION_LINES_MAX: usize = 70;
/// Maximum number of lines of a file, without tests.
const FILE_LINES_MAX: usize = 600;
/// Maximum number of characters of a line.
const COLUMNS_MAX: usize = 120;

/// A layer: its folder, and the layers and crates that it may use. All others are forbidden.
struct Layer {
    name: &'static str,
    layers: &'static [&'static str],
    crates: &'static [&'static str],
}

const LAYERS: [Layer; 9] = [
    Layer { name: "base", layers: &[], crates: &["miniz_oxide", "ring"] },
    Layer { name: "wire", layers: &["base"], crates: &["httparse", "serde", "serde_json", "lanes"] },
    Layer { name: "dialect", layers: &["base", "wire"], crates: &["serde", "serde_json", "lanes"] },
    Layer {
        name: "policy",
        layers: &["base", "wire"],
        crates: &["ahash", "httpdate", "jiff", "serde", "serde_json", "toml"],
    },
    Layer { name: "gateway", layers: &["base", "wire", "dialect", "policy"], crates: &["ahash", "serde", "slab"] },
    Layer { name: "simulator", layers: &["base", "wire", "dialect", "policy"], crates: &["serde", "serde_json"] },
    Layer {
        name: "io",
        layers: &["base", "policy"],
        crates: &[
            "command_fds",
            "listenfd",
            "nix",
            "mio",
            "ring",
            "rustix",
            "rustls",
            "signal_hook",
            "socket2",
            "thread_priority",
            "webpki_roots",
        ],
    },
    Layer {
        name: "store",
        layers: &["base", "policy", "io"],
        crates: &["ring", "rusqlite", "rustix", "serde", "serde_json"],
    },
    Layer {
        name: "cli",
        layers: &["base", "wire", "policy", "gateway", "simulator", "io", "store"],
        crates: &["clap", "engine", "ring", "serde", "serde_json", "toml"],
    },
];

/// Returns the name of each layer and the layers that it imports, as the map describes them.
pub fn layers() -> Vec<(String, String)> {
    let words = |layer: &Layer| {
        let others: Vec<&str> = LAYERS.iter().map(|other| other.name).filter(|name| *name != layer.name).collect();
        let missing: Vec<&str> = others.iter().copied().filter(|name| !layer.layers.contains(name)).collect();
        match (layer.layers, &missing[..]) {
            ([], _) => "none".to_owned(),
            (_, [missing]) => format!("all but {missing}"),
            (layers, _) => layers.join(", "),
        }
    };
    LAYERS.iter().map(|layer| (layer.name.to_owned(), words(layer))).collect()
}

/// The manifests of the packages that contain layers.
const MANIFESTS: [&str; 5] = [
    include_str!("../../src/base/Cargo.toml"),
    include_str!("../../src/wire/Cargo.toml"),
    include_str!("../../src/policy/Cargo.toml"),
    include_str!("../../src/engine/Cargo.toml"),
    include_str!("../../src/control/Cargo.toml"),
];

/// Returns every crate in the product's manifests, as code names it. A layer must not use crates that it does not list.
pub fn crates() -> Vec<String> {
    let lines = |text: &'static str| text.lines().skip_while(|line| *line != "[dependencies]").skip(1);
    let lines = MANIFESTS.into_iter().flat_map(|text| lines(text).take_while(|line| !line.starts_with('[')));
    let names = lines.filter_map(|line| line.split_once(" = ")).map(|(name, _)| name.replace('-', "_"));
    let names = names.filter(|name| LAYERS.iter().all(|layer| layer.name != name));
    let mut names: Vec<String> = names.collect();
    names.sort();
    names.dedup();
    names
}

/// Returns crates that layers list, but no manifest.
pub fn unlisted() -> Vec<&'static str> {
    let known = crates();
    let listed = LAYERS.iter().flat_map(|layer| layer.crates);
    listed.copied().filter(|name| !known.iter().any(|known| known == name)).collect()
}

/// A word that is allowed only in files whose path starts with one of `but_in`.
struct Banned {
    word: &'static str,
    but_in: &'static [&'static str],
}

const WORLD: &[&str] = &["src/engine/io/", "src/control/store/", "src/control/cli/", "src/main.rs"];
const SPEAKERS: &[&str] = &["src/control/cli/", "src/main.rs"];
/// Files that may read process ids or start processes: a successor gets the environment variables.
const STARTERS: &[&str] = &["src/control/cli/", "src/main.rs", "src/engine/io/secrets.rs", "src/engine/io/upgrade.rs"];

/// The module that opens, replaces, copies and locks files.
const FILES: &[&str] = &["src/engine/io/files.rs"];

const BANNED: [Banned; 33] = [
    Banned { word: "Instant::now", but_in: &["src/engine/io/clock.rs"] },
    Banned { word: "SystemTime", but_in: &["src/engine/io/clock.rs"] },
    Banned { word: "Timestamp::now", but_in: &[] },
    Banned { word: "Zoned::now", but_in: &[] },
    // These maps are seeded with the system's entropy; those of the core have a fixed seed.
    Banned { word: "HashMap::new", but_in: WORLD },
    Banned { word: "HashSet::new", but_in: WORLD },
    Banned { word: "thread::", but_in: WORLD },
    Banned { word: "std::fs", but_in: WORLD },
    Banned { word: "OpenOptions", but_in: FILES },
    Banned { word: "File::open", but_in: FILES },
    Banned { word: "File::create", but_in: FILES },
    Banned { word: "fs::write", but_in: FILES },
    Banned { word: "fs::rename", but_in: FILES },
    Banned { word: "fs::copy", but_in: FILES },
    Banned { word: "fs::hard_link", but_in: FILES },
    Banned { word: "std::env", but_in: STARTERS },
    Banned { word: "std::process", but_in: STARTERS },
    Banned { word: "TcpStream", but_in: WORLD },
    Banned { word: "TcpListener", but_in: WORLD },
    Banned { word: "UdpSocket", but_in: WORLD },
    Banned { word: "to_socket_addrs", but_in: WORLD },
    Banned { word: "println!", but_in: SPEAKERS },
    Banned { word: "print!", but_in: SPEAKERS },
    Banned { word: "eprintln!", but_in: SPEAKERS },
    Banned { word: "eprint!", but_in: SPEAKERS },
    Banned { word: "Rc<RefCell", but_in: &[] },
    Banned { word: ".unwrap()", but_in: &[] },
    Banned { word: ".expect(", but_in: &[] },
    Banned { word: "panic!", but_in: &[] },
    Banned { word: "unsafe", but_in: &[] },
    Banned { word: "dbg!", but_in: &[] },
    Banned { word: "unimplemented!", but_in: &[] },
    // Split here and below, since this file is checked by its own rules.
    Banned { word: concat!("to", "do!"), but_in: &[] },
];

/// Marks of unfinished work, which are not allowed anywhere, including comments and tests.
const MARKERS: [&str; 4] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("HA", "CK")];

/// Returns all violations in one file. `path` is relative to the repository, with forward slashes.
pub fn check(path: &str, text: &str) -> Vec<String> {
    let code = code_only(text);
    let test_file = holds_tests(path);
    let items = if test_file { std::iter::once(0..code.len()).collect() } else { test_items(&code) };
    let product = without(&code, &items);
    // One flag per line: true in tests.
    let mut testing = vec![false; text.lines().count() + 1];
    for item in &items {
        testing[line_of(text, item.start) - 1..line_of(text, item.end.max(1) - 1)].fill(true);
    }
    let mut found = Vec::new();
    if !text.starts_with("//!") && !test_file {
        found.push(format!("{path}:1: the first lines say what the file owns (//!)"));
    }
    columns(path, text, &code, &testing, &mut found);
    markers(path, text, &mut found);
    let lines = text.lines().zip(&testing).filter(|(_, testing)| !**testing).count();
    if lines > FILE_LINES_MAX {
        found.push(format!("{path}: {lines} lines without tests, at most {FILE_LINES_MAX}"));
    }
    functions(path, &product, &mut found);
    banned(path, &product, &mut found);
    entropy(path, &product, &mut found);
    imports(path, &product, &mut found);
    found
}

/// Returns true for a file that is not part of the product.
fn holds_tests(path: &str) -> bool {
    let outside = path.starts_with("tests/") || path.starts_with("benches/");
    outside || path.ends_with("/tests.rs") || path.contains("/tests/")
}

/// A literal in a test may exceed the line length, since a fixture is easier to read in one piece.
fn columns(path: &str, text: &str, code: &str, testing: &[bool], found: &mut Vec<String>) {
    for (number, (line, bare)) in text.lines().zip(code.lines()).enumerate() {
        let fixture = testing[number] && line.trim_end() != bare.trim_end();
        let at = format!("{path}:{}", number + 1);
        // A row of a table in the documentation cannot be wrapped.
        let row = line.trim_start_matches(['/', '!']).starts_with(" |");
        if line.chars().count() > COLUMNS_MAX && !fixture && !row {
            found.push(format!("{at}: longer than {COLUMNS_MAX} columns"));
        }
        if line.ends_with([' ', '\t', '\r']) && line.trim_end() == bare.trim_end() {
            found.push(format!("{at}: ends in a blank"));
        }
        if line.contains('\t') && bare.contains('\t') {
            found.push(format!("{at}: a tab"));
        }
    }
    if !text.ends_with('\n') || text.ends_with("\n\n") {
        found.push(format!("{path}: ends in exactly one line feed"));
    }
}

fn markers(path: &str, text: &str, found: &mut Vec<String>) {
    for marker in MARKERS {
        for at in find_word(text, marker) {
            found.push(format!("{path}:{}: `{marker}` marks unfinished work", line_of(text, at)));
        }
    }
}

fn functions(path: &str, product: &str, found: &mut Vec<String>) {
    let bytes = product.as_bytes();
    for at in find_word(product, "fn") {
        let name: String =
            product[at + 2..].trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
        if name.is_empty() {
            continue;
        }
        let body = bytes[at..].iter().position(|byte| matches!(byte, b'{' | b';'));
        let Some(open) = body.map(|length| at + length).filter(|open| bytes[*open] == b'{') else { continue };
        let lines = line_of(product, matching_brace(bytes, open) - 1) - line_of(product, at) + 1;
        if lines > FUNCTION_LINES_MAX {
            let line = line_of(product, at);
            found.push(format!("{path}:{line}: fn {name} has {lines} lines, at most {FUNCTION_LINES_MAX}"));
        }
    }
}

fn banned(path: &str, product: &str, found: &mut Vec<String>) {
    for Banned { word, but_in } in BANNED {
        if but_in.iter().any(|allowed| path.starts_with(allowed)) {
            continue;
        }
        for at in find_word(product, word) {
            found.push(format!("{path}:{}: `{word}` does not belong here", line_of(product, at)));
        }
    }
}

/// Finds `RandomState` of the standard library by any path, since it uses the system's entropy; only `ahash`'s can be
/// seeded.
fn entropy(path: &str, product: &str, found: &mut Vec<String>) {
    if path.starts_with("src/engine/io/") || path.starts_with("src/control/store/") {
        return;
    }
    for at in find_word(product, "RandomState").filter(|at| !product[..*at].ends_with("ahash::")) {
        found.push(format!("{path}:{}: a RandomState that is not `ahash::RandomState`", line_of(product, at)));
    }
}

fn imports(path: &str, product: &str, found: &mut Vec<String>) {
    let Some(layer) = LAYERS.iter().find(|layer| in_crate(path).split('/').next() == Some(layer.name)) else { return };
    let mut edge = |at: usize, name: &str| {
        let known = LAYERS.iter().any(|other| other.name == name);
        if known && name != layer.name && !layer.layers.contains(&name) {
            let line = line_of(product, at);
            found.push(format!("{path}:{line}: {} must not import {name}", layer.name));
        }
    };
    for at in ["crate::", "control::", "engine::", "tollgate::"].into_iter().flat_map(|root| find_word(product, root)) {
        let rest = &product[at..];
        roots(&rest[rest.find("::").map_or(0, |colons| colons + 2)..]).iter().for_each(|name| edge(at, name));
    }
    for (at, name) in escapes(path, product) {
        edge(at, &name);
    }
    for name in crates().iter().filter(|name| !layer.crates.contains(&name.as_str())) {
        for at in find_word(product, name) {
            let before = product[..at].trim_end();
            let path_root = product[at + name.len()..].starts_with("::") && !before.ends_with("::");
            if path_root || before.ends_with("use") {
                found.push(format!("{path}:{}: {} must not use the crate {name}", line_of(product, at), layer.name));
            }
        }
    }
}

/// Returns the first name of a path or of each path in a group: `a::b` gives a, `{a, b::{c, d}}` gives a and b.
fn roots(rest: &str) -> Vec<String> {
    let Some(group) = rest.strip_prefix('{') else { return vec![leading(rest)] };
    let (mut names, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth == 0 => {
                names.push(leading(group[start..at].trim_start()));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                names.push(leading(group[start..at].trim_start()));
                start = at + 1;
            }
            _ => {}
        }
    }
    names
}

fn leading(text: &str) -> String {
    text.bytes().take_while(|byte| is_word(*byte)).map(char::from).collect()
}

/// Returns chains of `super::` that leave the layer, with the name that they reach.
fn escapes(path: &str, product: &str) -> Vec<(usize, String)> {
    let depth = in_crate(path).split('/').count();
    let mut found = Vec::new();
    for at in find_word(product, "super::").filter(|at| !product[..*at].ends_with("::")) {
        let mut rest = &product[at..];
        let mut steps = 0;
        while let Some(after) = rest.strip_prefix("super::") {
            rest = after;
            steps += 1;
        }
        if steps >= depth {
            found.extend(roots(rest).into_iter().map(|name| (at, name)));
        }
    }
    found
}

/// Returns files below `src` that no parent declares: dead code that the compiler does not see. `files` is everything
/// below `src`.
pub fn orphans(files: &[(String, String)]) -> Vec<String> {
    let text_of = |path: &str| files.iter().find(|(name, _)| name == path).map(|(_, text)| text.as_str());
    let mut found = Vec::new();
    for (path, _) in files.iter().filter(|(path, _)| path.starts_with("src/")) {
        let module = path.trim_end_matches(".rs").trim_end_matches("/mod");
        let Some((parent, name)) = module.rsplit_once('/') else { continue };
        if path.ends_with("/lib.rs") || path == "src/main.rs" {
            continue;
        }
        let declared = [".rs", "/mod.rs", "/lib.rs"]
            .iter()
            .filter_map(|end| text_of(&format!("{parent}{end}")))
            .any(|text| find_word(&code_only(text), &format!("mod {name};")).next().is_some());
        if !declared {
            found.push(format!("{path}: no parent declares it"));
        }
    }
    found
}

/// Returns types at the top level of files below `src` whose name is defined in several files: a search for the name
/// would find all of them.
pub fn duplicate_types(files: &[(String, String)]) -> Vec<String> {
    const KINDS: [&str; 5] = ["struct", "enum", "union", "trait", "type"];
    let mut places: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (path, text) in files.iter().filter(|(path, _)| path.starts_with("src/") && !holds_tests(path)) {
        let code = code_only(text);
        let outside = without_braces(&without(&code, &test_items(&code)));
        for kind in KINDS {
            for at in find_word(&outside, kind) {
                places.entry(leading(outside[at + kind.len()..].trim_start())).or_default().insert(path);
            }
        }
    }
    let repeated = places.into_iter().filter(|(name, paths)| !name.is_empty() && paths.len() > 1);
    let violation = |(name, paths): (String, BTreeSet<&str>)| {
        let paths: Vec<&str> = paths.into_iter().collect();
        format!("{}: each defines a type {name}", paths.join(", "))
    };
    repeated.map(violation).collect()
}
