//! The program: hands its arguments to the command line and leaves with its exit code.

fn main() -> std::process::ExitCode {
    tollgate::cli::run(std::env::args_os())
}
