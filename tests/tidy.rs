//! The project's style rules as tests: layers, lengths, words. Reads the sources as text; the second half checks that
//! each rule can fail.

#[path = "tidy/calls.rs"]
mod calls;
#[path = "tidy/dependencies.rs"]
mod dependencies;
#[path = "tidy/lexer.rs"]
mod lexer;
#[path = "tidy/paths.rs"]
mod paths;
#[path = "tidy/rules.rs"]
mod rules;
#[path = "tidy/shape.rs"]
mod shape;
#[path = "tidy/words.rs"]
mod words;

use std::fs;
use std::path::Path;

/// Files and folders in the repository's root, except those whose name starts with a dot.
const ROOT: [&str; 12] = [
    "Cargo.lock",
    "Cargo.toml",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "benches",
    "scripts",
    "src",
    "target",
    "tests",
];

fn collect(root: &Path, folder: &str, found: &mut Vec<(String, String)>) {
    let Ok(entries) = fs::read_dir(root.join(folder)) else { return };
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    for name in names {
        let path = format!("{folder}/{name}");
        if root.join(&path).is_dir() {
            collect(root, &path, found);
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(root.join(&path)).unwrap();
            found.push((path, text));
        }
    }
}

fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for folder in ["src", "tests", "benches"] {
        collect(root, folder, &mut found);
    }
    found
}

#[test]
fn every_source_follows_the_rules() {
    let files = sources();
    assert!(files.len() > 20, "no sources found");
    let mut wrong: Vec<String> = files.iter().flat_map(|(path, text)| rules::check(path, text)).collect();
    wrong.extend(rules::orphans(&files));
    wrong.extend(rules::duplicate_types(&files));
    wrong.extend(rules::unlisted().iter().map(|name| format!("{name}: a layer may use it, but it is no dependency")));
    wrong.extend(dependencies::cycles(&files));
    wrong.extend(dependencies::extensions(&files));
    wrong.extend(dependencies::machines(&files));
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn types_are_small_and_their_calls_have_no_cycle() {
    let wrong = calls::violations(&sources());
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn source_tree_has_a_readable_shape() {
    let (root, files) = (Path::new(env!("CARGO_MANIFEST_DIR")), sources());
    let mut wrong = shape::folder_circles(&files);
    wrong.extend(shape::spread(&calls::methods(&files)));
    wrong.extend(shape::large_folders(root));
    wrong.extend(shape::map(root, &fs::read_to_string(root.join("src/lib.rs")).unwrap()));
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn circle_of_folders_and_untrue_map_are_found() {
    let circle = below_src(&[
        ("io/mod.rs", "mod a; mod b;"),
        ("io/a/one.rs", "use crate::io::b::two::Two; pub struct One;"),
        ("io/b/two.rs", "pub struct Two;"),
        ("io/b/three.rs", "use crate::io::a::four::Four; pub struct Three;"),
        ("io/a/four.rs", "pub struct Four;"),
    ]);
    assert_eq!(shape::circles(&circle)["io"], [["a", "b"].map(str::to_owned).into()]);
    assert_eq!(shape::circles(&circle[..3]).len(), 0);
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let row = |cells: &str| format!("//! | {cells} |\n");
    let map = |row: &str| {
        shape::map(root, &["//! # How to change\n", &"//! | a | `src/lib.rs` |\n".repeat(10), row].concat())
    };
    assert_eq!(map(&row("a | `gateway/mod.rs`, `store/mod.rs`")), [""; 0]);
    for (cells, why) in [("a | `gateway/none.rs`", "no such file"), ("a | text", "names no file")] {
        assert!(map(&row(cells))[0].starts_with(why), "{cells}");
    }
    assert!(map(&row(&"`src/lib.rs` ".repeat(20)))[0].starts_with("longer"));
    assert!(shape::map(root, "")[0].contains("0 rows"));
}

#[test]
fn exchange_reads_its_state_once() {
    let (takers, files): (Vec<_>, Vec<_>) = sources().into_iter().partition(|(path, _)| {
        ["dispatch", "finish"].iter().any(|name| *path == format!("src/engine/gateway/exchange/{name}.rs"))
    });
    let [takers, handlers] = [&takers, &files].map(|files| calls::code_below(files, "src/engine/gateway/exchange/"));
    let found = [&takers, &handlers].map(|code| (calls::state_reads(code), calls::impossible_states(code)));
    println!("reads of the state, and exits for impossible states, where it is taken and elsewhere: {found:?}");
    assert!(found[0].0 <= calls::STATE_TAKERS_MAX && found[0].1 == 0 && found[1] == (0, 0), "{found:?}");
    let shared =
        ["cx", "memory/mod"].map(|file| calls::code_below(&files, &format!("src/engine/gateway/{file}.rs"))).concat();
    for name in ["Cx", "Memory", "Access", "Accounts", "Upstreams", "Reporting", "Connections", "Commands"] {
        let fields = calls::fields(&shared, name);
        assert!((4..=calls::FIELDS_MAX).contains(&fields), "{fields} fields of {name}");
    }
}

#[test]
fn large_type_and_cycle_of_calls_are_found() {
    let block = |body: &str| format!("struct A;\nimpl A {{\n{body}}}\n");
    let method = |name: &str, body: &str| format!("    fn {name}(&self) {{\n        {body}\n    }}\n");
    let acyclic = [("gateway/a.rs", block(&method("a", "self.b();"))), ("gateway/b.rs", block(&method("b", "")))];
    let ring = |first: &str| {
        let names = ["b", "c", "d", "a"];
        let bodies = [first, "self.c", "Self::d", "A::a"].map(|call| format!("{call}();"));
        let files = ["a", "b", "c", "d"].iter().zip(names).zip(bodies);
        let files = files.map(|((own, _), body)| (format!("gateway/{own}.rs"), block(&method(own, &body))));
        let files: Vec<(String, String)> = files.collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        calls::violations(&below_src(&files))
    };
    let files = acyclic.each_ref().map(|(path, text)| (*path, text.as_str()));
    assert_eq!(calls::violations(&below_src(&files)), [""; 0]);
    for call in ["self.b", "self\n            .b", "Self::b"] {
        assert_eq!(ring(call), ["4 files with methods of A call each other, at most 3 may"], "{call}");
    }
    assert_eq!(ring("self.other.b"), [""; 0]);
    let methods: String = (0..61).map(|number| method(&format!("m{number}"), "")).collect();
    let many = block(&methods);
    let files = below_src(&[("gateway/a.rs", many.as_str())]);
    assert_eq!(calls::violations(&files), ["A has 61 methods, at most 60 are allowed"]);
}

#[test]
fn repeated_state_read_and_impossible_state_are_found() {
    let code =
        "let State::A(a) = &mut self.state else {\n    return Effect::Nothing;\n};\nself.state = b;\nself.states;";
    assert_eq!((calls::state_reads(code), calls::impossible_states(code)), (1, 1));
    assert_eq!(calls::fields("struct Cx {\n    pub(crate) a: u8,\n    b: u8,\n}\nstruct D {\n    c: u8,\n}", "Cx"), 2);
}

#[test]
fn map_lists_the_checked_layers() {
    let map = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs")).unwrap();
    let (_, table) = map.split_once("//! | layer | what it is | imports |\n//! |---|---|---|\n").unwrap();
    let rows = table.lines().take_while(|line| line.starts_with("//! | "));
    let rows: Vec<(String, String)> = rows
        .map(|row| {
            let cells: Vec<&str> = row.split(" | ").collect();
            (cells[1].trim_matches(['[', ']', '`']).to_owned(), cells[3].trim_end_matches(" |").to_owned())
        })
        .collect();
    assert_eq!(rows, rules::layers());
}

#[test]
fn doc_comments_begin_with_a_noun_or_a_verb() {
    let files = sources();
    let product = files.iter().filter(|(path, _)| path.starts_with("src/"));
    let (all, found) =
        product.map(|(_, text)| words::openers(text)).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let percent = 100.0 * found as f64 / all as f64;
    println!("{found} of {all} doc comments ({percent:.1} %) begin with a relative or pronoun clause");
    assert!(all > 1000 && percent <= words::OPENERS_PERCENT_MAX, "{percent:.1} % of {all}");
}

#[test]
fn sources_contain_no_private_words() {
    let mut files = sources();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders = ["", "/api", "/configuration", "/tutorial", "/how-to", "/reference", "/explanation"];
    let pages = folders.map(|folder| format!("src/docs{folder}"));
    for folder in pages.into_iter().chain(["benches".to_owned(), ".".to_owned()]) {
        for entry in fs::read_dir(root.join(&folder)).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.ends_with(".md") {
                files.push((format!("{folder}/{name}"), fs::read_to_string(root.join(&folder).join(&name)).unwrap()));
            }
        }
    }
    let readable = files.iter().filter(|(path, _)| !path.starts_with("tests/") && !path.ends_with("glossary.md"));
    let found: Vec<String> = readable.flat_map(|(path, text)| words::private(path, text)).collect();
    println!("{} private words", found.len());
    assert!(found.is_empty(), "{} private words:\n{}", found.len(), found.join("\n"));
}

#[test]
fn odd_opening_and_private_word_are_found() {
    assert_eq!(words::openers("/// What it is.\nfn a() {}\n/// Returns\n/// what it is.\n"), (2, 1));
    assert_eq!(words::openers("//! Whatever comes.\n"), (1, 0));
    assert_eq!(words::private("a", "It rests, but\nwrestsing and restless do not.").len(), 1);
    assert_eq!(words::private("a", "the event `resting`, \"rests_until\" and resting").len(), 2);
}

#[test]
fn repository_root_has_only_known_files() {
    let entries = fs::read_dir(env!("CARGO_MANIFEST_DIR")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let strange: Vec<_> = names.filter(|name| !name.starts_with('.') && !ROOT.contains(&name.as_str())).collect();
    assert!(strange.is_empty(), "{strange:?}");
}

/// Returns the violations in a file with this content, without its path.
fn violations(path: &str, body: &str) -> Vec<String> {
    let text = format!("//! Owns nothing.\n{body}\n");
    rules::check(path, &text).into_iter().map(|line| line.replace(path, "")).collect()
}

fn violates(path: &str, body: &str, words: &str) {
    let found = violations(path, body);
    assert!(found.len() == 1 && found[0].contains(words), "{path}: {body}\n{found:?}");
}

fn passes(path: &str, body: &str) {
    assert_eq!(violations(path, body), [""; 0], "{path}: {body}");
}

#[test]
fn a_forbidden_import_is_found() {
    violates("src/base/a.rs", "use crate::wire::Span;", "base must not import wire");
    violates(
        "src/engine/dialect/a.rs",
        "use crate::{base::buf::Buf, policy::Meter};",
        "dialect must not import policy",
    );
    violates("src/policy/a.rs", "fn a() { crate::dialect::b(); }", "policy must not import dialect");
    violates("src/engine/gateway/a/b.rs", "use crate::io::clock::Clock;", "gateway must not import io");
    violates("src/engine/io/a.rs", "use crate::gateway::Gateway;", "io must not import gateway");
    violates("src/engine/io/a.rs", "use crate::store::ledger::Ledger;", "io must not import store");
    violates("src/wire/head/a.rs", "use super::super::super::policy::Plan;", "wire must not import policy");
    violates("src/wire/mod.rs", "use super::{base::limits, gateway};", "wire must not import gateway");
    violates("src/control/simulator/a.rs", "use crate::gateway::Gateway;", "simulator must not import gateway");
    violates("src/control/cli/a.rs", "use engine::dialect::Dialect;", "cli must not import dialect");
    violates("src/control/store/a.rs", "use engine::base;", "store must not use the crate engine");
    passes("src/wire/head/a.rs", "use super::super::Span;\nuse crate::base::{limits, buf::{Buf, Pool}};");
    passes("src/engine/gateway/a.rs", "use crate::{base, wire, dialect, policy};");
    passes("src/base/a.rs", "#[cfg(test)]\nmod tests {\n    use crate::wire::Span;\n}");
    passes("src/base/a.rs", "// crate::wire::Span\nconst A: &str = \"crate::wire\";");
}

#[test]
fn a_forbidden_crate_is_found() {
    violates("src/engine/gateway/a.rs", "use mio::Poll;", "gateway must not use the crate mio");
    violates("src/engine/dialect/a.rs", "fn a() { let _ = toml::from_str(b); }", "dialect must not use the crate toml");
    passes("src/engine/io/a.rs", "use mio::Poll;");
    passes("src/engine/gateway/a.rs", "fn a() { base::ring::b(); ringing::c(); }");
    violates("src/policy/a.rs", "use lanes::skip;", "policy must not use the crate lanes");
    violates("src/policy/a.rs", "use webpki_roots::A;", "policy must not use the crate webpki_roots");
}

#[test]
fn every_crate_of_the_layers_is_in_a_manifest() {
    let crates = rules::crates();
    for name in ["mio", "lanes", "webpki_roots", "httpdate", "rusqlite"] {
        assert!(crates.iter().any(|known| known == name), "{name}: {crates:?}");
    }
    assert!(!crates.iter().any(|name| ["criterion", "default", "rcgen"].contains(&name.as_str())), "{crates:?}");
}

#[test]
fn map_seeded_from_system_entropy_is_found() {
    for body in [
        "use std::collections::hash_map::RandomState;",
        "use std::hash::{BuildHasher, RandomState};",
        "fn a() { std::hash::RandomState::new(); }",
    ] {
        violates("src/policy/a.rs", body, "ahash::RandomState");
        violates("src/control/cli/a.rs", body, "ahash::RandomState");
        passes("src/engine/io/a.rs", body);
        passes("src/policy/tests.rs", body);
    }
    violates("src/policy/a.rs", "fn a() { HashMap::new(); }", "HashMap::new");
    passes("src/policy/a.rs", "fn a() { HashMap::with_hasher(ahash::RandomState::with_seeds(1, 2, 3, 4)); }");
}

#[test]
fn overlong_lines_functions_and_files_are_found() {
    let function = |lines: usize| format!("fn long() {{\n{}}}", "    a();\n".repeat(lines - 2));
    violates("src/base/a.rs", &function(71), "fn long has 71 lines");
    passes("src/base/a.rs", &function(70));
    passes("src/base/tests.rs", &function(71));
    violates("src/base/a.rs", "fn a();\n".repeat(601).trim_end(), "lines without tests");
    violates("src/base/a.rs", "// a\n".repeat(601).trim_end(), "lines without tests");
    let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}", "    fn a() {}\n".repeat(600));
    passes("src/base/a.rs", &tests);
    violates("src/base/a.rs", &format!("// {}", "a".repeat(118)), "longer than 120");
    violates("src/base/a.rs", &format!("const A: &str = \"{}\";", "a".repeat(118)), "longer than 120");
    passes("src/base/a.rs", &format!("// {}", "\u{e9}".repeat(117)));
    passes("src/base/a.rs", &format!("//! | {} |", "a".repeat(118)));
    passes("tests/a.rs", &format!("const A: &str = \"{}\";", "a".repeat(118)));
    violates("tests/a.rs", &format!("const A: u8 = {};", "a".repeat(118)), "longer than 120");
}

#[test]
fn banned_words_are_found_where_they_do_not_belong() {
    let everywhere = [
        ("fn a() { b.unwrap(); }", ".unwrap()"),
        ("fn a() { b.expect(c); }", ".expect("),
        ("fn a() { std::time::Instant::now(); }", "Instant::now"),
        ("use std::rc::Rc; type A = Rc<RefCell<u8>>;", "Rc<RefCell"),
        ("fn a() { println!(); }", "println!"),
        ("fn a() { dbg!(b); }", "dbg!"),
        ("fn a() { panic!(); }", "panic!"),
        ("fn a() { std::thread::spawn(b); }", "thread::"),
    ];
    for (body, word) in everywhere {
        violates("src/engine/gateway/a.rs", body, word);
        passes("tests/a.rs", body);
        passes("src/engine/gateway/tests/mod.rs", body);
        passes("src/engine/gateway/a.rs", &format!("#[cfg(test)]\nmod tests {{\n    {body}\n}}"));
        passes("src/engine/gateway/a.rs", &format!("// {body}"));
    }
    for (body, word) in [
        ("use std::fs::{File, OpenOptions};", "OpenOptions"),
        ("fn a() { File::create(b); }", "File::create"),
        ("fn a() { std::fs::rename(b, c); }", "fs::rename"),
    ] {
        violates("src/control/cli/a.rs", body, word);
        passes("src/engine/io/files.rs", body);
        passes("src/control/cli/a/tests.rs", body);
    }
    passes("src/engine/io/clock.rs", "fn a() { Instant::now(); }");
    passes("src/engine/io/resolver.rs", "fn a() { thread::spawn(b); }");
    passes("src/control/cli/a.rs", "fn a() { println!(); }");
    passes("src/engine/gateway/a.rs", "fn a() { b.unwrap_or_default(); reprintln!(); }");
}

#[test]
fn marks_of_unfinished_work_are_found_everywhere() {
    for marker in [concat!("TO", "DO"), concat!("FIX", "ME")] {
        for path in ["src/base/a.rs", "src/base/tests.rs", "tests/a.rs"] {
            violates(path, &format!("// {marker}: later"), "unfinished");
        }
    }
    passes("src/base/a.rs", &format!("// {}S", concat!("TO", "DO")));
}

#[test]
fn file_without_a_head_comment_is_found() {
    assert_eq!(rules::check("src/base/a.rs", "fn a() {}\n").len(), 1);
    assert_eq!(rules::check("src/base/a.rs", "//! A.\n\nfn a() {} \n").len(), 1);
    assert_eq!(rules::check("src/base/a.rs", "//! A.\n\n\tfn a() {}\n").len(), 1);
    assert_eq!(rules::check("src/base/a.rs", "//! A.\nfn a() {}").len(), 1);
}

#[test]
fn undeclared_file_is_found() {
    let files = [
        ("src/lib.rs", "mod a;"),
        ("src/f/lib.rs", "mod g;"),
        ("src/f/g.rs", ""),
        ("src/a/mod.rs", "pub mod b; // mod c;"),
        ("src/a/b.rs", "mod d;"),
        ("src/a/b/d.rs", ""),
        ("src/a/c.rs", ""),
        ("src/e.rs", ""),
    ];
    let files = files.map(|(path, text)| (path.to_owned(), text.to_owned()));
    assert_eq!(rules::orphans(&files), ["src/a/c.rs: no parent declares it", "src/e.rs: no parent declares it"]);
}

#[test]
fn duplicate_type_name_is_found() {
    let found = |other: &str| {
        let files = [("io/a.rs", "pub struct Line;"), ("wire/b.rs", "pub struct Column;"), ("wire/c.rs", other)];
        rules::duplicate_types(&below_src(&files))
    };
    for kind in
        ["struct Line;", "enum Line {}", "pub(crate) trait Line {}", "type Line<'a> = &'a str;", "union Line {}"]
    {
        assert_eq!(found(kind), ["src/engine/io/a.rs, src/engine/wire/c.rs: each defines a type Line"], "{kind}");
    }
    // Members of other items, tests and text do not define types of the file, and one file may define a name for two
    // targets.
    for other in [
        "impl Core for A { type Line = u8; }",
        "enum A { Line }\nfn a() { struct Line; }",
        "#[cfg(test)]\nmod tests { struct Line; }\n#[cfg(test)]\nstruct Line;",
        "// struct Line;\nconst A: &str = \"struct Line;\";",
        "#[cfg(unix)]\nstruct Row;\n#[cfg(not(unix))]\nstruct Row;",
    ] {
        assert_eq!(found(other), [""; 0], "{other}");
    }
    let tests = [("io/a.rs", "struct Line;"), ("io/tests.rs", "struct Line;"), ("io/tests/b.rs", "struct Line;")];
    assert_eq!(rules::duplicate_types(&below_src(&tests)), [""; 0]);
}

#[test]
fn literals_and_comments_are_not_code() {
    let text = "a /* b /* c */ d */ e \"f\\\"g\" h r#\"i\"j\"# k 'l' '\\'' 'm br\"n\" // o\np b'q' '\u{e9}' r";
    let code = lexer::code_only(text);
    let words: Vec<&str> = code.split_whitespace().collect();
    assert_eq!(words, ["a", "e", "h", "k", "m", "p", "b", "r"]);
    assert_eq!(code.len(), text.len());
}

/// Returns sources with these contents, by their paths below `src/engine`.
fn below_src(files: &[(&str, &str)]) -> Vec<(String, String)> {
    files.iter().map(|(path, text)| (format!("src/engine/{path}"), (*text).to_owned())).collect()
}

fn cycles(files: &[(&str, &str)]) -> Vec<String> {
    dependencies::cycles(&below_src(files))
}

#[test]
fn cycle_of_files_is_found_in_every_notation() {
    let b = ("io/b.rs", "pub struct B;\nfn b() { super::a::A; }");
    let notations = [
        "use crate::io::b::B;",
        "use super::b::B;",
        "use super::{c::C, b::{self, B as Other}};",
        "use super::b::*;",
        "use super::b;\nfn a() { b::B; }",
        "fn a() -> crate::io::b::B { todo() }",
        "use super::B;",
        "pub use super::b::B;\nfn a(_: B) {}",
        "fn a() { use super::b::B as Other; }",
        "use crate::{base, io::{c::C, b::B}};",
    ];
    for notation in notations {
        let a = format!("{notation}\npub struct A;");
        let parent = ("io/mod.rs", "pub mod a;\npub mod b;\npub use b::B;");
        let found = cycles(&[parent, ("io/a.rs", &a), b]);
        assert!(found.len() == 1 && found[0].contains("io/a.rs: a cycle of 2 files"), "{notation}: {found:?}");
    }
    let three = cycles(&[
        ("io/mod.rs", "mod a; mod b; mod c;"),
        ("io/a.rs", "use super::b::B; pub struct A;"),
        ("io/b.rs", "use super::c::C; pub struct B;"),
        ("io/c.rs", "use super::a::A; pub struct C;"),
    ]);
    assert!(three.len() == 1 && three[0].contains("a cycle of 3 files"), "{three:?}");
}

#[test]
fn child_and_parent_that_need_each_other_are_a_cycle() {
    let child = ("io/a/child.rs", "use super::Common;\npub struct Child(Common);");
    let found = cycles(&[("io/a.rs", "mod child;\nuse child::Child;\npub struct Common;"), child]);
    assert!(found.len() == 1 && found[0].contains("a cycle of 2 files"), "{found:?}");
    // A parent that only re-exports; a parent that is needed and needs nothing; a name that the parent has from another
    // file.
    let passes = [
        ("mod child;\npub use child::Child;\npub struct Common;", "use super::Common;\npub struct Child(Common);"),
        ("mod child;\npub struct Common;", "use super::Common;\npub struct Child(Common);"),
        ("mod child;\nmod other;\npub use other::Common;\nuse child::Child;", "use super::Common;\npub struct Child;"),
        ("mod child;\nuse child::Child;\npub struct Common;", "#[cfg(test)]\nmod tests { use super::super::Common; }"),
    ];
    for (parent, child) in passes {
        let other = ("io/a/other.rs", "pub struct Common;");
        let found = cycles(&[("io/a.rs", parent), ("io/a/child.rs", child), other]);
        assert!(found.is_empty(), "{parent}: {found:?}");
    }
}

#[test]
fn files_without_a_cycle_pass() {
    let parent = ("io/mod.rs", "pub mod a;\npub mod b;\n#[cfg(test)]\nmod check;");
    let b = ("io/b.rs", "pub struct B;");
    assert_eq!(cycles(&[parent, ("io/a.rs", "use super::b::B; pub struct A;"), b]), [""; 0]);
    // Tests may need anything, another rule checks other layers, and comments are not code.
    let tests = ("io/check.rs", "use super::a::A; pub struct Check;");
    let a = ("io/a.rs", "// crate::io::b::B\n#[cfg(test)]\nuse super::check::Check;\npub struct A;");
    let b = ("io/b.rs", "use super::a::A; pub struct B;");
    assert_eq!(cycles(&[parent, tests, a, b, ("base/c.rs", "use crate::io::b::B;")]), [""; 0]);
}

#[test]
fn a_method_of_the_gateway_in_another_file_is_found() {
    let found = |path: &str, text: &str| dependencies::extensions(&below_src(&[(path, text)])).len();
    for text in [
        "impl Gateway {}",
        "impl Core for Gateway {\n}",
        "impl<'a, F: Fn(u8) -> u8> Core for super::Gateway<'a, F> where F: Copy {}",
        "use super::Gateway;\n\nimpl\n    Gateway {}",
    ] {
        assert_eq!(found("gateway/client.rs", text), 1, "{text}");
        assert_eq!(found("gateway/exchange/reply.rs", text), 1, "{text}");
        assert_eq!(
            found("gateway/mod.rs", text) + found("gateway/drive/mod.rs", text) + found("cli/a.rs", text),
            0,
            "{text}"
        );
    }
    for text in [
        "impl From<Gateway> for Vitals {}",
        "impl Gateways {}",
        "#[cfg(test)]\nimpl Gateway {}",
        "fn a() -> impl Fn() {}",
    ] {
        assert_eq!(found("gateway/client.rs", text), 0, "{text}");
    }
}

#[test]
fn state_machine_that_names_another_is_found() {
    let parent = ("gateway/mod.rs", "mod client;\nmod exchange;\nmod provider;\nmod ids;\npub use exchange::Exchange;");
    let rest = [("gateway/exchange/mod.rs", "pub struct Exchange;"), ("gateway/ids.rs", "pub struct ExchangeId;")];
    let found =
        |path: &str, text: &str| dependencies::machines(&below_src(&[&[parent, (path, text)], &rest[..]].concat()));
    for text in [
        "use crate::gateway::exchange::Exchange;",
        "use super::super::exchange;",
        "use super::super::{ids::ExchangeId, exchange::{self, Exchange}};",
        "fn a(_: &crate::gateway::exchange::Exchange) {}",
        "use crate::gateway::Exchange;",
        "use super::super::provider::connection::Connection;",
    ] {
        let violations = found("gateway/client/connection_limits.rs", text);
        assert!(!violations.is_empty() && violations[0].contains("client must not know"), "{text}: {violations:?}");
    }
    assert!(
        found("gateway/provider/mod.rs", "use super::client::Connection;")[0].contains("provider must not know client")
    );
    for text in [
        "use super::super::ids::ExchangeId;",
        "use super::connection::Connection;",
        "use super::super::cx::Cx;",
        "use super::super::provider::dns::Names;",
    ] {
        assert_eq!(found("gateway/client/connection_limits.rs", text), [""; 0]);
    }
    assert_eq!(found("gateway/drive/mod.rs", "use super::{client, exchange::Exchange, provider};"), [""; 0]);
}
