//! The command line: its definition, and one file per command. It reads arguments, files and variables, calls the
//! layers below and prints; it decides nothing about requests. Called only by `main`.
//!
//! Exit codes: 0 done, 1 failed, 2 misused.

mod admin_jobs;
pub mod alerts;
pub mod args;
mod build;
pub mod check;
pub mod completions;
pub mod demo;
mod discover;
pub mod http;
pub mod init;
pub mod keys;
pub mod ledger;
pub mod load;
pub mod models;
pub mod output;
pub mod prices;
pub mod provider;
pub mod ready;
pub mod requests;
pub mod serve;
pub mod status;
pub mod store;
pub mod usage;

use crate::io::signals;
use crate::io::upgrade::Inherited;
use args::{CheckArgs, DemoArgs, ModelsArgs, ServeArgs};
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

/// LLM gateway: API keys, limits, budgets, routing and usage for OpenAI- and Anthropic-compatible APIs
#[derive(Parser, Debug)]
#[command(name = "tollgate", version = VERSION, max_term_width = 100)]
#[command(after_help = "Example:\n  tollgate demo")]
struct Cli {
    /// Configuration file, before or after the command
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
    #[command(after_help = "Example:\n  tollgate serve --config /etc/tollgate/tollgate.toml")]
    Serve(ServeArgs),
    /// Run the gateway with a simulated provider and a new key; needs no configuration
    #[command(after_help = "Example:\n  tollgate demo --listen 127.0.0.1:8090 --pace 0")]
    Demo(DemoArgs),
    /// Run only the simulated provider
    #[command(after_help = "Example:\n  tollgate provider --listen 127.0.0.1:9000 --pace 50\n  \
                            # a line `#sim tokens=50 stall_after=3` of a prompt decides the response")]
    Provider(provider::ProviderArgs),
    /// Generate tollgate.toml from API keys in the environment and local model servers
    #[command(after_help = "Example:\n  OPENAI_API_KEY=sk-... tollgate init --config tollgate.toml")]
    Init(init::InitArgs),
    /// Check the configuration; errors name file, line and field
    #[command(after_help = "Example:\n  tollgate check --connect")]
    Check(CheckArgs),
    /// Check whether a running gateway is ready (exit code 0 or 1), for container health checks
    #[command(after_help = "Example:\n  tollgate ready --admin 127.0.0.1:9090")]
    Ready(ready::ReadyArgs),
    /// Issue, list, show, change, rotate and revoke API keys
    #[command(after_help = "Example:\n  tollgate keys issue --name ann")]
    #[command(subcommand)]
    Keys(Box<keys::KeysCommand>),
    /// Write one key's requests and responses to a file for a limited time
    #[command(after_help = "Example:\n  tollgate capture ann --for 1h")]
    Capture(keys::capture::CaptureArgs),
    /// List models: names, ids, context sizes, prices
    #[command(after_help = "Example:\n  tollgate models --json")]
    Models(ModelsArgs),
    /// Compare the configured prices with a published price list
    #[command(after_help = "Example:\n  tollgate prices --from model_prices_and_context_window.json --write")]
    Prices(prices::PricesArgs),
    /// Send a test alert to the configured webhook
    #[command(after_help = "Example:\n  tollgate alerts test")]
    #[command(subcommand)]
    Alerts(alerts::AlertsCommand),
    /// Report requests, tokens and cost
    #[command(after_help = "Example:\n  tollgate usage --by model,day --since 2026-11-01")]
    Usage(usage::UsageArgs),
    /// Show the last requests of a running gateway
    #[command(after_help = "Example:\n  tollgate requests --live --failed")]
    Requests(requests::RequestsArgs),
    /// Show whether a running gateway is healthy, and the state of its targets
    #[command(after_help = "Example:\n  tollgate status --json")]
    Status(status::StatusArgs),
    /// Verify, audit, export or adopt the ledger, and check its clock
    #[command(after_help = "Example:\n  tollgate ledger verify")]
    #[command(subcommand)]
    Ledger(ledger::LedgerCommand),
    /// Print completions for a shell
    #[command(after_help = "Example:\n  tollgate completions bash > /etc/bash_completion.d/tollgate")]
    Completions(completions::CompletionsArgs),
}

impl Command {
    /// The configuration file of the command; `None` if it uses none.
    fn config(&mut self) -> Option<&mut Option<PathBuf>> {
        match self {
            Command::Serve(args) => Some(&mut args.config.config),
            Command::Init(args) => Some(&mut args.config),
            Command::Check(args) => Some(&mut args.config.config),
            Command::Ready(args) => Some(&mut args.config.config),
            Command::Keys(command) => Some(&mut command.config().config),
            Command::Capture(args) => Some(&mut args.config.config),
            Command::Models(args) => Some(&mut args.config.config),
            Command::Prices(args) => Some(&mut args.config.config),
            Command::Alerts(command) => Some(&mut command.config().config),
            Command::Usage(args) => Some(&mut args.config.config),
            Command::Requests(args) => Some(&mut args.config.config),
            Command::Status(args) => Some(&mut args.config.config),
            Command::Ledger(command) => Some(&mut command.config().config),
            Command::Demo(_) | Command::Provider(_) | Command::Completions(_) => None,
        }
    }
}

impl Cli {
    /// Applies a configuration option given before the command.
    fn settle(&mut self) -> Result<(), Failure> {
        let Some(early) = self.config.take() else { return Ok(()) };
        let place = self
            .command
            .config()
            .ok_or_else(|| Failure::misused("this command does not use --config: leave it out"))?;
        if place.replace(early).is_some() {
            return Err(Failure::misused("--config is given twice: leave out one"));
        }
        Ok(())
    }
}

/// Definition of the command line, for completions and the man page.
pub fn definition() -> clap::Command {
    Cli::command()
}

/// Reads `args`, the program's name first, and runs the command.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let inherited = Inherited::take();
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
        Command::Serve(args) => return serve::run(args, inherited),
        Command::Demo(args) => return demo::run(args),
        Command::Provider(args) => return provider::run(args),
        Command::Init(args) => init::run(args),
        Command::Check(args) => check::run(args),
        Command::Ready(args) => ready::run(args),
        Command::Keys(command) => keys::run(command),
        Command::Capture(args) => keys::capture::run(args),
        Command::Models(args) => models::run(args),
        Command::Prices(args) => prices::run(args),
        Command::Alerts(command) => alerts::run(command),
        Command::Usage(args) => usage::run(args),
        Command::Requests(args) => requests::run(args),
        Command::Status(args) => status::run(args),
        Command::Ledger(command) => ledger::run(command),
        Command::Completions(args) => completions::run(args),
    };
    done.map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

/// Prints help and version to standard output with exit code 0, everything else to standard error with code 2. The
/// user's input is repeated without control characters.
fn misunderstood(error: &clap::Error) -> ExitCode {
    let code = u8::try_from(error.exit_code()).unwrap_or(output::MISUSED);
    let text = error.render().to_string();
    if code == 0 {
        let text = output::fitted(text);
        return output::print(&text).map_or_else(Failure::report, |()| ExitCode::SUCCESS);
    }
    output::remark(text.trim_end());
    ExitCode::from(code)
}

#[cfg(test)]
mod tests;
