//! `tollgate completions SHELL`: shell completions. The scripts are generated from the command definitions in advance,
//! as files next to this one; the generator would add forty kilobytes to the binary.

use super::output::{Failure, print};
use crate::base::packed::Packed;

/// Scripts of all shells, each after a zero byte, in the order of [`Shell`].
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
    Fish,
    Zsh,
}

/// Prints the script.
pub fn run(args: &CompletionsArgs) -> Result<(), Failure> {
    print(TEXTS.text().split('\0').nth(1 + args.shell as usize).unwrap_or_default())
}
