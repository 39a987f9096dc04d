//! Code blocks of the tutorials and how-to pages: configurations are valid, and commands have the options that they use.

use super::pages::{pages, root};
use super::rig::Rig;
use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use tollgate::policy::config::{Config, Source};

const CODES: &str = include_str!("../../../src/docs/reference/exit-codes.md");
const PROXY: &str = include_str!("../../../src/docs/how-to/behind-a-proxy.md");

/// Returns the code blocks of a page with their languages, without the indentation of an enclosing list.
pub fn blocks(text: &str) -> Vec<(String, String)> {
    let (mut found, mut open) = (Vec::new(), None::<(usize, String, String)>);
    for line in text.lines() {
        let bare = line.trim_start();
        match (&mut open, bare.strip_prefix("```")) {
            (None, Some(language)) => open = Some((line.len() - bare.len(), language.to_owned(), String::new())),
            (Some(_), Some(_)) => found.extend(open.take().map(|(_, language, body)| (language, body))),
            (Some((indent, _, body)), None) => *body += &format!("{}\n", line.get(*indent..).unwrap_or_default()),
            (None, None) => {}
        }
    }
    found
}

/// Returns the blocks of one language.
fn of(text: &str, language: &str) -> Vec<String> {
    blocks(text).into_iter().filter(|(name, _)| name == language).map(|(_, body)| body).collect()
}

/// Returns a part of a configuration, completed with the required tables.
fn completed(part: &str) -> String {
    let mut text = part.to_owned();
    if !text.contains("[[providers]]") {
        text += "[[providers]]\nname = \"openai\"\nshape = \"chat\"\nbase_url = \"http://127.0.0.1:1/v1\"\n";
    }
    if !text.contains("[[models]]") {
        text += "[[models]]\nid = \"m\"\ncontext = \"1K\"\ntargets = [{ provider = \"openai\" }]\n";
    }
    text
}

#[test]
fn configurations_of_tutorials_and_how_to_pages_are_valid() {
    let mut count = 0;
    for folder in ["tutorial", "how-to", "reference", "configuration"] {
        for page in pages(&root().join("src/docs").join(folder)) {
            for part in of(&fs::read_to_string(&page).unwrap(), "toml") {
                let text = completed(&part);
                let env = |name: &str| match name.rsplit('_').next() {
                    Some("PROXY") => Some("http://proxy.example:3128".to_owned()),
                    Some("WEBHOOK") => Some("https://hooks.example.com/T0".to_owned()),
                    _ => Some("a-token-that-is-long-enough".to_owned()),
                };
                let read = |path: &str| match path.ends_with(".pem") {
                    true => Ok("-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n".to_owned()),
                    false => Ok("a-secret".to_owned()),
                };
                let run = |_: &[String], _: &[String]| Ok("a-secret".to_owned());
                let read = Config::parse(&Source { file: "t", text: &text, env: &env, read: &read, run: &run });
                assert!(read.is_ok(), "{}: {:?}\n{text}", page.display(), read.err());
                count += 1;
            }
        }
    }
    assert!(count >= 10, "{count}");
}

/// Returns the help of a command, such as `keys issue`.
fn help(command: &str) -> String {
    let words = command.split_whitespace().chain(["--help"]);
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).args(words).output().unwrap();
    assert!(output.status.success(), "tollgate {command} is unknown");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn commands_on_all_pages_have_their_options() {
    let (mut helps, mut count) = (BTreeMap::new(), 0);
    for page in pages(&root().join("src/docs")) {
        let text = fs::read_to_string(&page).unwrap();
        let shells = ["sh", "bash", "shell", "text", "console"];
        let code = blocks(&text).into_iter().filter(|(name, _)| shells.contains(&&**name)).map(|(_, body)| body);
        for line in code.flat_map(|body| body.replace("\\\n", " ").lines().map(str::to_owned).collect::<Vec<_>>()) {
            for call in line.split("tollgate ").skip(1) {
                let call = call.split(['#', '|', ';', ')', '&', '>']).next().unwrap();
                let words: Vec<&str> = call.split_whitespace().collect();
                let known =
                    ["serve", "demo", "init", "check", "ready", "keys", "models", "usage", "requests", "ledger"];
                let Some(first) = words.first().filter(|word| known.contains(*word)) else { continue };
                let depth = if ["keys", "ledger"].contains(first) { 2 } else { 1 };
                let command = words[..depth].join(" ");
                let help = helps.entry(command.clone()).or_insert_with(|| help(&command));
                for option in words.iter().filter(|word| word.starts_with("--")) {
                    let name = option.split('=').next().unwrap();
                    let has = help.split_whitespace().any(|word| word.trim_end_matches(',') == name);
                    assert!(has, "{}: tollgate {command} has no {name}", page.display());
                }
                count += 1;
            }
        }
    }
    assert!(count >= 40, "{count}");
}

#[test]
fn reverse_proxy_page_matches_the_defaults() {
    let nginx = &of(PROXY, "nginx")[0];
    let value = |name: &str| nginx.split_once(name).unwrap().1.split(';').next().unwrap().trim().to_owned();
    let text = completed("");
    let (none, read) = (|_: &str| None, |_: &str| Ok(String::new()));
    let run = |_: &[String], _: &[String]| Ok(String::new());
    let config = Config::parse(&Source { file: "t", text: &text, env: &none, read: &read, run: &run }).unwrap();
    let body: u64 = value("client_max_body_size").trim_end_matches('m').parse().unwrap();
    assert_eq!(body << 20, config.server.max_body);
    let minutes: u64 = value("proxy_read_timeout").trim_end_matches('m').parse().unwrap();
    let target = &config.catalog.models()[0].targets[0];
    assert!(minutes * 60 > target.limits.request_timeout.as_secs());
    assert_eq!((&*value("proxy_buffering"), &*value("proxy_request_buffering")), ("off", "off"));
}

#[test]
fn exit_codes_match_the_reference() {
    let rig = Rig::new("codes", "");
    let code = |args: &[&str]| rig.command(args).output().unwrap().status.code();
    for (row, calls) in [
        ("| 0 |", &[&["check"][..], &["keys", "list"], &["ledger", "verify"]][..]),
        ("| 1 |", &[&["keys", "show", "nobody"], &["ready"]]),
        ("| 2 |", &[&["bogus"], &["check", "--bogus"], &["usage", "--by", "user,model"]]),
    ] {
        let expected = row.trim_matches(['|', ' ']).parse().ok();
        assert!(CODES.contains(&format!("\n{row} ")), "{row}");
        calls.iter().for_each(|args| assert_eq!(code(args), expected, "{args:?}"));
    }
    fs::remove_file(rig.path("ledger.db")).unwrap();
    assert_eq!(code(&["usage", "--by", "user,model"]), Some(0), "expected an empty table without a ledger");
}

#[test]
fn indented_blocks_are_found() {
    let text = "1. a\n\n   ```toml\n   b = 1\n\n     c = 2\n   ```\n\n```sh\nd\n```\n";
    assert_eq!(blocks(text), [("toml".into(), "b = 1\n\n  c = 2\n".into()), ("sh".into(), "d\n".into())]);
}
