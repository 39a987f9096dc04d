//! `tollgate demo`.

use super::DemoArgs;
use super::output::Failure;
use std::process::ExitCode;

/// Runs the command until it is told to stop; the exit code.
pub fn run(_args: &DemoArgs) -> ExitCode {
    Failure::failed("`demo` is not built yet").report()
}
