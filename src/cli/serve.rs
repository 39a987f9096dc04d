//! `tollgate serve`.

use super::ServeArgs;
use super::output::Failure;
use std::process::ExitCode;

/// Runs the command until it is told to stop; the exit code.
pub fn run(_args: &ServeArgs) -> ExitCode {
    Failure::failed("`serve` is not built yet").report()
}
