//! The style of the house as a test: layers, lengths, words. Reads the sources as text; the second half checks that
//! each rule can fail.

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/lexer.rs"]
mod lexer;
#[path = "tidy/rules.rs"]
mod rules;

use std::fs;
use std::path::Path;

/// What may stand in the repository's root beside files that begin with a dot.
const ROOT: [&str; 10] = [
    "Cargo.lock",
    "Cargo.toml",
    "CHANGELOG.md",
    "LICENSE",
    "README.md",
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
fn every_source_keeps_the_rules_of_the_house() {
    let files = sources();
    assert!(files.len() > 20, "the sources were not found");
    let mut wrong: Vec<String> = files.iter().flat_map(|(path, text)| rules::check(path, text)).collect();
    wrong.extend(rules::orphans(&files));
    wrong.extend(rules::strangers().iter().map(|name| format!("{name}: a layer may use it, but it is no dependency")));
    wrong.extend(rules::STRAIGHT.iter().filter_map(|layer| circles::circle(layer, &files)));
    assert!(wrong.is_empty(), "\n{}\n", wrong.join("\n"));
}

#[test]
fn the_root_holds_what_it_should() {
    let entries = fs::read_dir(env!("CARGO_MANIFEST_DIR")).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let strange: Vec<_> = names.filter(|name| !name.starts_with('.') && !ROOT.contains(&name.as_str())).collect();
    assert!(strange.is_empty(), "{strange:?}");
}

/// The complaints about a file of this content, without its path.
fn complaints(path: &str, body: &str) -> Vec<String> {
    let text = format!("//! Owns nothing.\n{body}\n");
    rules::check(path, &text).into_iter().map(|line| line.replace(path, "")).collect()
}

fn complains(path: &str, body: &str, words: &str) {
    let found = complaints(path, body);
    assert!(found.len() == 1 && found[0].contains(words), "{path}: {body}\n{found:?}");
}

fn passes(path: &str, body: &str) {
    assert_eq!(complaints(path, body), [""; 0], "{path}: {body}");
}

#[test]
fn a_forbidden_import_is_found() {
    complains("src/base/a.rs", "use crate::wire::Span;", "base must not import wire");
    complains("src/dialect/a.rs", "use crate::{base::buf::Buf, policy::Meter};", "dialect must not import policy");
    complains("src/policy/a.rs", "fn a() { crate::dialect::b(); }", "policy must not import dialect");
    complains("src/gateway/a/b.rs", "use crate::io::clock::Clock;", "gateway must not import io");
    complains("src/io/a.rs", "use crate::gateway::Gateway;", "io must not import gateway");
    complains("src/wire/head/a.rs", "use super::super::super::policy::Plan;", "wire must not import policy");
    complains("src/wire/mod.rs", "use super::{base::limits, gateway};", "wire must not import gateway");
    complains("src/simulator/a.rs", "use crate::gateway::Gateway;", "simulator must not import gateway");
    passes("src/wire/head/a.rs", "use super::super::Span;\nuse crate::base::{limits, buf::{Buf, Pool}};");
    passes("src/gateway/a.rs", "use crate::{base, wire, dialect, policy};");
    passes("src/base/a.rs", "#[cfg(test)]\nmod tests {\n    use crate::wire::Span;\n}");
    passes("src/base/a.rs", "// crate::wire::Span\nconst A: &str = \"crate::wire\";");
}

#[test]
fn a_forbidden_crate_is_found() {
    complains("src/gateway/a.rs", "use mio::Poll;", "gateway must not use the crate mio");
    complains("src/dialect/a.rs", "fn a() { let _ = toml::from_str(b); }", "dialect must not use the crate toml");
    passes("src/io/a.rs", "use mio::Poll;");
    passes("src/gateway/a.rs", "fn a() { base::ring::b(); ringing::c(); }");
    complains("src/policy/a.rs", "use wide::u8x16;", "policy must not use the crate wide");
    complains("src/policy/a.rs", "use webpki_roots::A;", "policy must not use the crate webpki_roots");
}

#[test]
fn no_crate_is_forgotten() {
    let crates = rules::crates();
    for name in ["mio", "wide", "webpki_roots", "httpdate", "redis"] {
        assert!(crates.iter().any(|known| known == name), "{name}: {crates:?}");
    }
    assert!(!crates.iter().any(|name| ["criterion", "default", "rcgen"].contains(&name.as_str())), "{crates:?}");
}

#[test]
fn a_circle_of_imports_is_found() {
    let circle = |files: &[(&str, &str)]| {
        let files: Vec<_> = files.iter().map(|(path, text)| (format!("src/a/{path}"), (*text).to_string())).collect();
        circles::circle("a", &files)
    };
    let top = ("mod.rs", "pub mod b;\npub mod c;");
    let straight =
        [("b.rs", "use super::c::{C, d::{self, D as E}};"), ("c.rs", "mod d;"), ("c/d.rs", "use crate::b::B;")];
    assert_eq!(circle(&[&[top], &straight[..]].concat()), None);
    for (other, way) in [
        ("use super::b::B;", "a::b -> a::c -> a::b"),
        ("fn c() { crate::a::b::b(); }", "a::b -> a::c -> a::b"),
        ("mod d;\nuse d::D;\nuse super::{e, b::*};", "a::b -> a::c -> a::b"),
    ] {
        assert_eq!(circle(&[top, ("b.rs", "use super::{c::{C}};"), ("c.rs", other)]).as_deref(), Some(way), "{other}");
    }
    let parent = [top, ("c.rs", "mod d;\nuse d::D;\nstruct C;"), ("c/d.rs", "use super::C;")];
    assert_eq!(circle(&parent).as_deref(), Some("a::c -> a::c::d -> a::c"));
    let own = [top, ("b.rs", "use super::c::C;"), ("c.rs", "#[cfg(test)]\nmod tests {\n    use crate::a::b::B;\n}")];
    assert_eq!(circle(&own), None);
    assert_eq!(circle(&[top, ("b.rs", "use self::b::B;"), ("c/tests.rs", "use super::*;")]), None);
}

#[test]
fn a_map_that_takes_the_systems_entropy_is_found() {
    for body in [
        "use std::collections::hash_map::RandomState;",
        "use std::hash::{BuildHasher, RandomState};",
        "fn a() { std::hash::RandomState::new(); }",
    ] {
        complains("src/policy/a.rs", body, "ahash::RandomState");
        complains("src/cli/a.rs", body, "ahash::RandomState");
        passes("src/io/a.rs", body);
        passes("src/policy/tests.rs", body);
    }
    complains("src/policy/a.rs", "fn a() { HashMap::new(); }", "HashMap::new");
    passes("src/policy/a.rs", "fn a() { HashMap::with_hasher(ahash::RandomState::with_seeds(1, 2, 3, 4)); }");
}

#[test]
fn what_is_too_long_is_found() {
    let function = |lines: usize| format!("fn long() {{\n{}}}", "    a();\n".repeat(lines - 2));
    complains("src/base/a.rs", &function(71), "fn long has 71 lines");
    passes("src/base/a.rs", &function(70));
    passes("src/base/tests.rs", &function(71));
    complains("src/base/a.rs", "fn a();\n".repeat(601).trim_end(), "lines without tests");
    complains("src/base/a.rs", "// a\n".repeat(601).trim_end(), "lines without tests");
    let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}", "    fn a() {}\n".repeat(600));
    passes("src/base/a.rs", &tests);
    complains("src/base/a.rs", &format!("// {}", "a".repeat(118)), "longer than 120");
    complains("src/base/a.rs", &format!("const A: &str = \"{}\";", "a".repeat(118)), "longer than 120");
    passes("src/base/a.rs", &format!("// {}", "\u{e9}".repeat(117)));
    passes("src/base/a.rs", &format!("//! | {} |", "a".repeat(118)));
    passes("tests/a.rs", &format!("const A: &str = \"{}\";", "a".repeat(118)));
    complains("tests/a.rs", &format!("const A: u8 = {};", "a".repeat(118)), "longer than 120");
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
        complains("src/gateway/a.rs", body, word);
        passes("tests/a.rs", body);
        passes("src/gateway/tests.rs", body);
        passes("src/gateway/a.rs", &format!("#[cfg(test)]\nmod tests {{\n    {body}\n}}"));
        passes("src/gateway/a.rs", &format!("// {body}"));
    }
    passes("src/io/clock.rs", "fn a() { Instant::now(); }");
    passes("src/io/resolver.rs", "fn a() { thread::spawn(b); }");
    passes("src/cli/a.rs", "fn a() { println!(); }");
    passes("src/gateway/a.rs", "fn a() { b.unwrap_or_default(); reprintln!(); }");
}

#[test]
fn marks_of_unfinished_work_are_found_everywhere() {
    for marker in [concat!("TO", "DO"), concat!("FIX", "ME")] {
        for path in ["src/base/a.rs", "src/base/tests.rs", "tests/a.rs"] {
            complains(path, &format!("// {marker}: later"), "unfinished");
        }
    }
    passes("src/base/a.rs", &format!("// {}S", concat!("TO", "DO")));
}

#[test]
fn a_file_without_a_word_about_itself_is_found() {
    assert_eq!(rules::check("src/base/a.rs", "fn a() {}\n").len(), 1);
    assert_eq!(rules::check("src/base/a.rs", "//! A.\n\nfn a() {} \n").len(), 1);
    assert_eq!(rules::check("src/base/a.rs", "//! A.\n\n\tfn a() {}\n").len(), 1);
    assert_eq!(rules::check("src/base/a.rs", "//! A.\nfn a() {}").len(), 1);
}

#[test]
fn an_orphan_is_found() {
    let files = [
        ("src/lib.rs", "mod a;"),
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
fn literals_and_comments_are_not_code() {
    let text = "a /* b /* c */ d */ e \"f\\\"g\" h r#\"i\"j\"# k 'l' '\\'' 'm br\"n\" // o\np b'q' '\u{e9}' r";
    let code = lexer::code_only(text);
    let words: Vec<&str> = code.split_whitespace().collect();
    assert_eq!(words, ["a", "e", "h", "k", "m", "p", "b", "r"]);
    assert_eq!(code.len(), text.len());
}
