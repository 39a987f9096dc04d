//! The command line: its definition, and one file per command. It reads arguments, files and variables, calls the
//! layers below and prints; it decides nothing about requests. Called only by `main`.
//!
//! Exit codes: 0 done, 1 failed, 2 misused.

pub mod args;
mod asker;
mod build;
pub mod check;
mod cold;
pub mod completions;
pub mod connect;
pub mod demo;
pub mod demo_config;
mod desk;
mod discover;
pub mod init;
pub mod keys;
pub mod ledger;
pub mod load;
pub mod models;
pub mod output;
pub mod probe;
pub mod provider;
mod reach;
pub mod ready;
pub mod requests;
pub mod serve;
pub mod store;
pub mod usage;

use crate::io::signals;
use args::{CheckArgs, ConfigArg, DemoArgs, ModelsArgs, ServeArgs};
use clap::{CommandFactory, Parser, Subcommand};
use output::Failure;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

#[cfg(feature = "redis")]
macro_rules! features {
    () => {
        "with redis"
    };
}
#[cfg(not(feature = "redis"))]
macro_rules! features {
    () => {
        "without redis"
    };
}

/// A model gateway: keys, limits, routing and exact usage for OpenAI- and Anthropic-shaped APIs
#[derive(Parser, Debug)]
#[command(name = "tollgate", version = VERSION, max_term_width = 100)]
struct Cli {
    /// Configuration file; here or behind the command
    #[arg(long = "config", id = "early", value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

/// Version, commit, target and features.
const VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    " (",
    env!("TOLLGATE_COMMIT"),
    ", ",
    env!("TOLLGATE_TARGET"),
    ", ",
    features!(),
    ")"
);

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the gateway
    Serve(ServeArgs),
    /// Run the gateway on a simulated provider with a fresh key; needs no set-up
    Demo(DemoArgs),
    /// Run only the simulated provider
    Provider(provider::ProviderArgs),
    /// Generate tollgate.toml from API keys in the environment and local model servers
    Init(init::InitArgs),
    /// Check the configuration; errors name file, line and field
    Check(CheckArgs),
    /// Check whether a running gateway is ready (exit code 0 or 1), for container health checks
    Ready(ready::ReadyArgs),
    /// Issue, list, show, change, rotate and revoke API keys
    #[command(subcommand)]
    Keys(Box<keys::KeysCommand>),
    /// List the catalog: names, ids, context sizes, prices
    Models(ModelsArgs),
    /// Report requests, tokens and cost
    Usage(usage::UsageArgs),
    /// Show the last requests of a running gateway, and follow those that end
    Requests(requests::RequestsArgs),
    /// Verify, export, audit or adopt the ledger
    #[command(subcommand)]
    Ledger(ledger::LedgerCommand),
    /// Print a shell's completions
    Completions(completions::CompletionsArgs),
}

impl Command {
    /// Configuration options of the command, if any.
    fn config(&mut self) -> Option<&mut ConfigArg> {
        match self {
            Command::Serve(args) => Some(&mut args.config),
            Command::Init(args) => Some(&mut args.config),
            Command::Check(args) => Some(&mut args.config),
            Command::Ready(args) => Some(&mut args.config),
            Command::Keys(command) => Some(command.config()),
            Command::Models(args) => Some(&mut args.config),
            Command::Usage(args) => Some(&mut args.config),
            Command::Requests(args) => Some(&mut args.config),
            Command::Ledger(command) => Some(command.config()),
            Command::Demo(_) | Command::Provider(_) | Command::Completions(_) => None,
        }
    }
}

impl Cli {
    /// A configuration that was named before the command is the command's.
    fn settle(&mut self) -> Result<(), Failure> {
        let Some(early) = self.config.take() else { return Ok(()) };
        let place = self.command.config().ok_or_else(|| Failure::misused("this command takes no --config"))?;
        if place.config.replace(early).is_some() {
            return Err(Failure::misused("--config is given twice"));
        }
        Ok(())
    }
}

/// Definition of the command line, for completions and the man page.
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Reads `args`, the program's name first, and runs the command they name.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => return misunderstood(&error),
    };
    if let Err(failure) = cli.settle() {
        return failure.report();
    }
    if let Err(error) = signals::outlive_file_limit() {
        return Failure::failed(format!("cannot catch signals: {error}")).report();
    }
    let done = match &cli.command {
        Command::Serve(args) => return serve::run(args),
        Command::Demo(args) => return demo::run(args),
        Command::Provider(args) => return provider::run(args),
        Command::Init(args) => init::run(args),
        Command::Check(args) => check::run(args),
        Command::Ready(args) => ready::run(args),
        Command::Keys(command) => keys::run(command),
        Command::Models(args) => models::run(args),
        Command::Usage(args) => usage::run(args),
        Command::Requests(args) => requests::run(args),
        Command::Ledger(command) => ledger::run(command),
        Command::Completions(args) => completions::run(args),
    };
    done.map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

/// Help and version go to standard output with code 0, everything else to standard error with code 2. What was typed is
/// repeated without characters that could play with a terminal.
fn misunderstood(error: &clap::Error) -> ExitCode {
    let code = u8::try_from(error.exit_code()).unwrap_or(output::MISUSED);
    let text = error.render().to_string();
    if code == 0 {
        return output::print(&text).map_or_else(Failure::report, |()| ExitCode::SUCCESS);
    }
    // Without a command it is the help that comes, which is no error.
    let (whose, text) = text.strip_prefix("error: ").map_or(("", &*text), |text| ("tollgate: ", text));
    output::remark(&format!("{whose}{}", text.trim_end()));
    ExitCode::from(code)
}

#[cfg(test)]
mod tests;
