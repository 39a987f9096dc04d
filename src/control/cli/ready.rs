//! `tollgate ready`: reports by its exit code whether a running gateway admits requests; for health checks of
//! containers, which have no curl.

use super::args::ConfigArg;
use super::http::admin_client::{AdminArg, Listener};
use super::http::blocking_http::NoAnswer;
use super::output::{Failure, print, print_json};
use std::time::Duration;

/// Maximum time to connect to the gateway, and again for its answer: together less than the 5 s of the health check in
/// the example for Docker Compose.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Beginning of every error.
const NOT_READY: &str = "not ready: ";

/// `tollgate ready`.
#[derive(clap::Args, Debug)]
pub struct ReadyArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Gateway options.
    #[command(flatten)]
    pub admin: AdminArg,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Requests `/readyz`. Exit code 0 if requests are admitted, otherwise 1.
pub fn run(args: &ReadyArgs) -> Result<(), Failure> {
    let listener = Listener::find(&args.admin, &args.config)?;
    let ready = ask(&listener);
    if args.json {
        let why = ready.as_ref().err().map(Failure::text);
        let why = why.as_ref().map(|why| why.trim_start_matches(NOT_READY));
        print_json(&serde_json::json!({ "ready": ready.is_ok(), "admin": listener.to_string(), "why": why }))?;
    } else if ready.is_ok() {
        print("ready\n")?;
    }
    ready
}

fn ask(listener: &Listener) -> Result<(), Failure> {
    let why = match listener.get("/readyz", TIMEOUT) {
        Ok(answer) if answer.status == 200 => return Ok(()),
        Ok(answer) if answer.status == 404 => listener.is_for_clients(),
        Ok(answer) => {
            let reason = match answer.body.strip_prefix(NOT_READY.as_bytes()) {
                Some(b"clock\n") => {
                    ": the clock is behind the newest usage record or the build date; see `tollgate ledger clock`"
                }
                Some(b"ledger\n") => ": the ledger cannot be written; the gateway's log says why",
                Some(b"stopping\n") => ": the gateway is stopping",
                _ => "",
            };
            format!("{listener} returned {}{reason}", answer.status)
        }
        Err(NoAnswer::Refused(_)) => {
            format!("nothing listens at {listener}: start the gateway or check the address")
        }
        Err(_) => format!("no response from {listener}"),
    };
    Err(Failure::failed([NOT_READY, &why].concat()))
}
