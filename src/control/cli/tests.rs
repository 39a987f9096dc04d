use super::*;
use clap::CommandFactory;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(std::iter::once("tollgate").chain(line.split_whitespace()))
}

#[test]
fn definitions_are_valid() {
    Cli::command().debug_assert();
}

#[test]
fn every_documented_command_is_parsed() {
    for line in [
        "serve",
        "serve --config a.toml",
        "demo",
        "demo --listen 127.0.0.1:0 --admin-listen 127.0.0.1:0 --pace 0",
        "provider --listen 127.0.0.1:0",
        "check",
        "check --print --config a.toml",
        "keys issue --name n",
        "keys issue --name n --plan p --models a,b --endpoints chat,messages --expires 30d",
        "keys list",
        "keys list --json",
        "keys show 0123456789ab",
        "keys show ann",
        "keys set ann --name bob --plan p --models all --endpoints chat --expires never --disable --json",
        "keys set 0123456789ab --enable --requests 5 --tokens 10M --tokens-per-window plan --concurrency 0",
        "keys issue --name n --requests 5 --tokens plan",
        "keys revoke 0123456789ab",
        "keys revoke 0123456789ab --json",
        "keys rotate 0123456789ab",
        "keys rotate 0123456789ab --grace 24h --json",
        "ledger verify --json",
        "ledger export",
        "ledger audit --limit 5 --json",
        "ready --admin unix:/run/tollgate.sock",
        "requests --live --failed --key ann --limit 5 --json --admin 127.0.0.1:9090",
        "ledger adopt --config a.toml",
        "models",
        "models --json",
        "usage",
        "usage --by key --since 2026-11-01 --until 2026-12-01",
        "usage --by model",
        "usage --by day",
        "usage --by target --json",
    ] {
        assert!(parse(line).is_ok(), "{line}: {:?}", parse(line).err());
    }
}

#[test]
fn misuse_has_code_2_and_help_has_0() {
    for line in [
        "",
        "bogus",
        "serve extra",
        "provider --listen here",
        "keys",
        "keys issue",
        "keys show",
        "usage --by week",
        "usage --since yesterday",
    ] {
        assert_eq!(parse(line).err().map(|error| error.exit_code()), Some(2), "{line}");
    }
    for line in ["--help", "--version", "keys --help"] {
        assert_eq!(parse(line).err().map(|error| error.exit_code()), Some(0), "{line}");
    }
}

#[test]
fn lists_are_split_at_commas() {
    let Ok(Cli { command: Command::Keys(command), .. }) =
        parse("keys issue --name n --models a,b --endpoints chat,quota")
    else {
        panic!("not understood");
    };
    let keys::KeysCommand::Issue(args) = *command else { panic!("not issued") };
    assert_eq!((args.options.models.len(), args.options.endpoints.len()), (2, 2));
}

/// Runs a command line that must fail, and returns its exit code.
fn code_of(line: &str) -> Option<u8> {
    let done = match parse(line).ok()?.command {
        Command::Check(args) => check::run(&args),
        Command::Models(args) => models::run(&args),
        Command::Keys(command) => keys::run(&command),
        Command::Usage(args) => usage::run(&args),
        _ => return None,
    };
    done.err().map(|failure| failure.code())
}

#[test]
fn failed_command_has_code_1_and_invalid_one_2() {
    let config = "--config /nonexistent/tollgate.toml";
    for line in ["check", "check --print", "models", "keys list", "keys issue --name n", "usage"] {
        assert_eq!(code_of(&format!("{line} {config}")), Some(output::FAILED), "{line}");
    }
    let backwards = format!("usage --since 2026-12-01 --until 2026-11-01 {config}");
    assert_eq!(code_of(&backwards), Some(output::MISUSED));
}
