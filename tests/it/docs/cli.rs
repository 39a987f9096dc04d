//! The command-line reference, generated from the definition of the commands, and the form of every error that a wrong
//! value causes. `BLESS=1 cargo test --test it docs::` writes the page.

use super::pages::{blessed, root};
use super::rig::Rig;
use clap::{Arg, Command};
use std::fmt::Write;
use std::fs;

/// Returns the commands without subcommands, with their full names.
fn leaves() -> Vec<(String, Command)> {
    fn collect(command: &Command, name: &str, found: &mut Vec<(String, Command)>) {
        if command.get_subcommands().next().is_none() {
            found.push((name.to_owned(), command.clone()));
        }
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
            collect(sub, &format!("{name} {}", sub.get_name()), found);
        }
    }
    let mut all = tollgate::cli::definition();
    all.build();
    let mut found = Vec::new();
    collect(&all, "tollgate", &mut found);
    found
}

/// Returns the arguments of a command except `--help` and `--version`.
fn arguments(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !["help", "version"].contains(&arg.get_id().as_str()))
}

/// Returns the arguments in a command's table. The top of the page describes `--config`, except that of `init`, which
/// writes the file.
fn rows(command: &Command) -> impl Iterator<Item = &Arg> {
    let writes = command.get_name() == "init";
    arguments(command).filter(move |arg| writes || arg.get_id() != "config")
}

/// Returns a help text as a single line.
fn line(text: Option<&clap::builder::StyledStr>) -> String {
    text.map(|text| text.to_string().split_whitespace().collect::<Vec<_>>().join(" ")).unwrap_or_default()
}

/// Returns the example at the end of a command's help.
fn example(name: &str, command: &Command) -> String {
    let after = command.get_after_help().unwrap_or_else(|| panic!("{name} has no example")).to_string();
    let example = after.strip_prefix("Example:\n  ").unwrap_or_else(|| panic!("{name}: {after}"));
    let words = name.split_once(' ').map_or(name, |(_, words)| words);
    assert!(example.contains(&format!("tollgate {words}")), "{name}: {example}");
    example.to_owned()
}

fn entry(name: &str, command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").replace('\n', " ");
    let mut out = format!("## `{name}`\n\n{}.\n\n```text\n{usage}\n```\n\n", line(command.get_about()));
    if rows(command).next().is_some() {
        out += "| argument | meaning |\n|---|---|\n";
    }
    for arg in rows(command) {
        let value = arg.get_value_names().map(|names| names[0].to_string());
        let shown = match (arg.get_long(), value.filter(|_| arg.get_action().takes_values())) {
            (Some(long), Some(value)) => format!("--{long} {value}"),
            (Some(long), None) => format!("--{long}"),
            (None, value) => value.unwrap_or_default(),
        };
        let mut meaning = line(arg.get_help());
        let defaults: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let choices: Vec<_> = arg.get_possible_values().iter().map(|value| value.get_name().to_owned()).collect();
        if !choices.is_empty() && arg.get_action().takes_values() {
            let _ = write!(meaning, " [possible: {}]", choices.join(", "));
        }
        if !defaults.is_empty() && arg.get_action().takes_values() {
            let _ = write!(meaning, " [default: {}]", defaults.join(", "));
        }
        let _ = writeln!(out, "| `{}` | {} |", shown.replace('|', "\\|"), meaning.replace('|', "\\|"));
    }
    let _ = write!(out, "\n```sh\n{}\n```\n\n", example(name, command));
    out.replace("\n\n\n", "\n\n")
}

#[test]
fn cli_page_has_every_command_and_option() {
    let made: String = leaves().iter().map(|(name, command)| entry(name, command)).collect();
    let page = root().join("src/docs/reference/cli.md");
    blessed(&page, &[("commands".to_owned(), made)]);
    let has_config = |command: &Command| arguments(command).any(|arg| arg.get_id() == "config");
    let without = leaves().into_iter().filter(|(_, command)| !has_config(command)).map(|(name, _)| name);
    let names: Vec<_> = without.map(|name| name.trim_start_matches("tollgate ").to_owned()).collect();
    assert_eq!(names, ["demo", "provider", "completions"]);
    assert!(fs::read_to_string(page).unwrap().contains("except `demo`, `provider` and `completions`"));
}

#[test]
fn every_help_has_an_example() {
    let mut all = tollgate::cli::definition();
    all.build();
    let groups = all.get_subcommands().filter(|sub| sub.get_subcommands().next().is_some() && sub.get_name() != "help");
    for command in groups.chain([&all]) {
        assert!(command.get_after_help().is_some(), "{} has no example", command.get_name());
    }
    for (name, command) in leaves() {
        example(&name, &command);
    }
}

/// A value that no option with a rule accepts.
const WRONG: &str = "no/such value?";

/// Options that accept any text: a name to set or to search for, or the key of the simulated provider.
const FREE: [(&str, &str); 13] = [
    ("tollgate keys issue", "name"),
    ("tollgate keys set", "name"),
    ("tollgate provider", "key"),
    ("tollgate provider", "model"),
    ("tollgate keys list", "name"),
    ("tollgate usage", "model"),
    ("tollgate usage", "session"),
    ("tollgate usage", "user"),
    ("tollgate usage", "group"),
    ("tollgate requests", "key"),
    ("tollgate requests", "id"),
    ("tollgate requests", "model"),
    ("tollgate requests", "session"),
];

#[test]
fn every_wrong_value_is_shown_with_its_rule() {
    let rig = Rig::new("wrong", "");
    let mut count = 0;
    for (name, command) in leaves() {
        for arg in arguments(&command).filter(|arg| arg.get_action().takes_values()) {
            let id = arg.get_long().unwrap_or("");
            if FREE.contains(&(name.as_str(), id)) {
                continue;
            }
            let mut words: Vec<String> = name.split(' ').skip(1).map(str::to_owned).collect();
            for other in arguments(&command).filter(|other| other.is_required_set() && other.get_id() != arg.get_id()) {
                words.extend(other.get_long().map(|long| format!("--{long}")));
                words.push("test".to_owned());
            }
            words.extend(arg.get_long().map(|long| format!("--{long}")));
            words.push(WRONG.to_owned());
            // Without a change, the command does not check the key.
            if name == "tollgate keys set" && id.is_empty() {
                words.push("--disable".to_owned());
            }
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            let mut run = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
            run.args(&words).current_dir(&rig.folder).env("TOLLGATE_CONFIG", rig.path("tollgate.toml"));
            let output = run.output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(matches!(output.status.code(), Some(1 | 2)), "{words:?}: {:?} {error}", output.status);
            assert!(error.starts_with("error: ") && error.contains(WRONG), "{words:?}: {error}");
            let rules =
                ["expected", "invalid digit", "possible values", "no plan", "no model", "no key", "No such file"];
            assert!(rules.iter().any(|rule| error.contains(rule)), "{words:?}: {error}");
            count += 1;
        }
    }
    assert!(count >= 50, "{count}");
}
