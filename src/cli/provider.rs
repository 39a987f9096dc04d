//! `tollgate provider`.

use super::ProviderArgs;
use super::output::Failure;
use std::process::ExitCode;

/// Runs the command until it is told to stop; the exit code.
pub fn run(_args: &ProviderArgs) -> ExitCode {
    Failure::failed("`provider` is not built yet").report()
}
