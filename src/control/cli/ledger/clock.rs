//! `tollgate ledger clock` and `tollgate ledger fold`: show the times that the clock is compared with, and record an
//! operator's confirmation that it is right. A running gateway follows within a second.

use crate::base::limits::CLOCK_BEHIND_MAX;
use crate::base::time::Unix;
use crate::cli::args::ConfigArg;
use crate::cli::load::{self, Secrets};
use crate::cli::output::{Failure, print, remark};
use crate::cli::{build, store};
use crate::io::clock::unix;
use crate::policy::config::Config;
use crate::policy::window::iso;
use crate::store::ledger::Ledger;
use crate::store::note::AuditLine;
use crate::store::writer_clocks::WriterClocks;
use clap::Args;

/// `tollgate ledger clock` and `tollgate ledger fold`.
#[derive(Args, Debug)]
pub struct ConfirmArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
    /// Confirm that the clock is right; the audit records it if there was something to confirm
    #[arg(long)]
    pub confirm: bool,
}

/// Returns the ledger, its known times, the current time by its clock, and the configuration.
fn look(args: &ConfirmArgs) -> Result<(Ledger, WriterClocks, Unix, Config), Failure> {
    let high = load::load(&args.config, Secrets::Optional)?;
    let mut ledger = store::existing(&high)?;
    let moments = ledger.writer_clocks().map_err(Failure::failed)?;
    // A shared ledger has been asked for its time by now.
    Ok((ledger, moments, unix(), high))
}

fn line(what: &str, now: Unix, (before, newest): (&str, Unix), after: &str) -> AuditLine {
    AuditLine {
        at: now,
        who: "command".to_string(),
        what: what.to_string(),
        key: String::new(),
        before: Some(format!("{{\"{before}\":\"{}\"}}", iso(newest))),
        after: format!("{{\"{after}\":\"{}\"}}", iso(now)),
    }
}

/// True if a clock at `now` is too far behind `date`.
fn is_behind(now: Unix, date: Unix) -> bool {
    now.0.saturating_add(CLOCK_BEHIND_MAX.as_millis() as u64) < date.0
}

/// The current time, for a change that depends on it; for a shared ledger, the ledger's time. Fails if the clock is
/// behind the newest usage record or the build date: dates computed from it would be wrong once the clock is set.
pub(in crate::cli) fn present(high: &Config) -> Result<Unix, Failure> {
    let ledger = store::open_existing(high)?;
    let moments =
        ledger.map_or(Ok(WriterClocks::default()), |mut ledger| ledger.writer_clocks().map_err(Failure::failed))?;
    let (now, newest) = (unix(), moments.newest.max(build::date()));
    match is_behind(now, newest) {
        false => Ok(now),
        true => Err(Failure::failed(format!(
            "the clock says {}, which is before {}: nothing was changed; set the clock, or see `tollgate ledger clock`",
            iso(now),
            iso(newest)
        ))),
    }
}

/// Shows the times that the clock is compared with; with `--confirm`, accepts the current time.
pub(super) fn clock(args: &ConfirmArgs) -> Result<(), Failure> {
    let (mut ledger, moments, now, _) = look(args)?;
    if is_behind(now, build::date()) {
        return Err(Failure::failed(format!(
            "the clock says {}, which is before the build date, {}: nothing is admitted; set the clock",
            iso(now),
            iso(build::date())
        )));
    }
    let record = match moments.newest {
        Unix(0) => "there is no usage record".to_string(),
        newest => format!("the newest usage record is from {}", iso(newest)),
    };
    let known = format!("the clock says {}, {record}", iso(now));
    match (is_behind(now, moments.newest), args.confirm) {
        (false, _) => print(&format!("ok: {known}\n")),
        (true, false) => Err(Failure::failed(format!(
            "{known}: nothing is admitted; set the clock, or if it is right, accept it with --confirm"
        ))),
        (true, true) => {
            let line = line("clock", now, ("newest_record", moments.newest), "accepted");
            ledger.accept_clock(now, &line).map_err(Failure::failed)?;
            remark(&format!("accepted: {} is the present time; gateways that run admit within a second", iso(now)));
            Ok(())
        }
    }
}

/// Shows whether `retention` may fold usage records; with `--confirm`, allows it.
pub(super) fn fold(args: &ConfirmArgs) -> Result<(), Failure> {
    let (mut ledger, moments, now, high) = look(args)?;
    let Some(retention) = high.store.retention else {
        return print("store.retention is not set: nothing is folded\n");
    };
    let Some(newest) = moments.gap(now, retention) else {
        return print("ok: retention folds old usage records\n");
    };
    if !args.confirm {
        return Err(Failure::failed(format!(
            "the clock says {}, and the newest usage record before that is from {}: retention folds nothing; set the \
             clock, or if it is right, let it fold with --confirm",
            iso(now),
            iso(newest)
        )));
    }
    let line = line("fold", now, ("newest_record", newest), "confirmed");
    ledger.confirm_fold(newest, &line).map_err(Failure::failed)?;
    remark("confirmed: running gateways fold old usage records again");
    Ok(())
}
