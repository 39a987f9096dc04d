//! `tollgate completions SHELL`: what a shell needs to complete our commands. The texts are made of the definitions
//! once, as the files beside this; what makes them would be forty kilobytes of the binary.

use super::output::{Failure, print};
use crate::base::packed::Packed;

/// Texts of all shells, each behind a zero byte, in the order of [`Shell`].
const TEXTS: Packed = Packed(include_bytes!(concat!(env!("OUT_DIR"), "/completions")));

/// `tollgate completions`.
#[derive(clap::Args, Debug)]
pub struct CompletionsArgs {
    /// Shell to complete in
    #[arg(value_enum)]
    pub shell: Shell,
}

/// A shell that can complete.
#[derive(Copy, Clone, Debug, clap::ValueEnum)]
#[value(rename_all = "lower")]
#[expect(missing_docs, reason = "their names say it")]
pub enum Shell {
    Bash,
    Elvish,
    Fish,
    PowerShell,
    Zsh,
}

/// Prints them.
pub fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    print(TEXTS.text().split('\0').nth(1 + args.shell as usize).unwrap_or_default())
}
