//! `tollgate completions SHELL`: what a shell needs to complete our commands.

use super::output::{Failure, print};
use clap::Command;
use clap_complete::{Shell, generate};

/// `tollgate completions`.
#[derive(clap::Args, Debug)]
pub struct CompletionsArgs {
    /// The shell
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Prints them for the commands of `definition`.
pub fn run(args: &CompletionsArgs, mut definition: Command) -> Result<(), Failure> {
    let mut text = Vec::new();
    generate(args.shell, &mut definition, "tollgate", &mut text);
    print(&String::from_utf8_lossy(&text))
}
