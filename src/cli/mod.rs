//! The command line: what can be typed, and one file per command. It reads arguments, files and variables, calls the
//! layers below and prints; it decides nothing about requests. Called by `main` alone.
//!
//! Exit codes: 0 done, 1 failed, 2 misused (contract section 6).

pub mod args;
pub mod check;
pub mod demo;
pub mod demo_config;
pub mod keys;
pub mod ledger;
pub mod load;
pub mod models;
pub mod output;
pub mod provider;
pub mod serve;
pub mod store;
pub mod usage;

use crate::io::signals;
use args::{CheckArgs, DemoArgs, ModelsArgs, ServeArgs};
use clap::{CommandFactory, Parser, Subcommand};
use output::Failure;
use std::ffi::OsString;
use std::process::ExitCode;

/// A model gateway: keys, limits, routing and exact usage for OpenAI- and Anthropic-shaped APIs
#[derive(Parser, Debug)]
#[command(name = "tollgate", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the gateway
    Serve(ServeArgs),
    /// Run the gateway on a simulated provider with a fresh key; needs no set-up
    Demo(DemoArgs),
    /// Run the simulated provider alone
    Provider(provider::ProviderArgs),
    /// Check the configuration; errors name file, line and field
    Check(CheckArgs),
    /// Issue, list, show, rotate and revoke API keys
    #[command(subcommand)]
    Keys(keys::KeysCommand),
    /// List the catalog: names, ids, context sizes, prices
    Models(ModelsArgs),
    /// Report requests, tokens and cost
    Usage(usage::UsageArgs),
    /// Verify or export the ledger
    #[command(subcommand)]
    Ledger(ledger::LedgerCommand),
}

/// What can be typed, for completions and the man page.
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Reads `args`, the program's name first, and runs the command they name.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output with code 0, everything else to standard error with code 2.
            let code = u8::try_from(error.exit_code()).unwrap_or(output::MISUSED);
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    if let Err(error) = signals::outlive_file_limit() {
        return Failure::failed(format!("cannot catch signals: {error}")).report();
    }
    let done = match &cli.command {
        Command::Serve(args) => return serve::run(args),
        Command::Demo(args) => return demo::run(args),
        Command::Provider(args) => return provider::run(args),
        Command::Check(args) => check::run(args),
        Command::Keys(command) => keys::run(command),
        Command::Models(args) => models::run(args),
        Command::Usage(args) => usage::run(args),
        Command::Ledger(command) => ledger::run(command),
    };
    done.map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests;
