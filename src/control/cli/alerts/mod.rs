//! `tollgate alerts`: sends a test alert; and the delivery of one alert, which `serve` uses, too.

pub mod body;

use super::alerts::body::body;
use super::args::ConfigArg;
use super::http::provider_client::{ANSWER, Asker, request, send_for_status};
use super::load::{self, Secrets};
use super::output::{Failure, print};
use crate::io::clock::unix;
use crate::io::entropy::fresh_name;
use crate::io::reactor::Security;
use crate::policy::alert::{Alert, AlertKind};
use crate::policy::attribution::HashKey;
use crate::policy::config::Config;
use crate::store::alert_claims::{AlertClaim, AlertReport};
use crate::store::ledger::Ledger;
use crate::store::spill::SpillFolder;
use clap::{Args, Subcommand};

/// `tollgate alerts`.
#[derive(Subcommand, Debug)]
pub enum AlertsCommand {
    /// Send a test alert to the webhook, once
    #[command(after_help = "Example:\n  tollgate alerts test")]
    Test(TestArgs),
}

/// `tollgate alerts test`.
#[derive(Args, Debug)]
pub struct TestArgs {
    /// Configuration options.
    #[command(flatten)]
    pub config: ConfigArg,
}

impl AlertsCommand {
    /// Configuration options of the command.
    pub fn config(&mut self) -> &mut ConfigArg {
        let AlertsCommand::Test(args) = self;
        &mut args.config
    }
}

/// Runs the command.
pub fn run(command: &AlertsCommand) -> Result<(), Failure> {
    let AlertsCommand::Test(args) = command;
    let config = load::read(&load::find(&args.config)?, Secrets::Needed).map_err(Failure::Config)?;
    if config.alerts.collector.is_none() {
        return Err(Failure::failed("alerts.url is not set: add it to the configuration"));
    }
    let security = load::security(&config, None).map_err(Failure::failed)?;
    let (name, now) = ("the webhook".to_string(), unix().0);
    let (what, subject) = (AlertKind::Test, "test".to_string());
    let alert = Alert { id: String::new(), what, name, subject, since: now, at: now, budget: None, problem: None };
    let alert = alert.identified(&HashKey::default());
    let status = post(&config, &security, &alert).map_err(|why| Failure::failed(format!("not delivered: {why}")))?;
    print(&format!("delivered: status {status}, {}\n", alert.id))
}

/// Result of an attempt.
pub(super) enum Delivery {
    /// The webhook has accepted this. The reason why the ledger does not know that, if so.
    Sent(Box<Alert>, Option<String>),
    /// Nothing is to be sent, and the ledger knows that.
    Done,
    /// Another process is delivering it, or the ledger cannot be read or written.
    Later,
    /// Why it was not accepted.
    Failed(String),
}

/// Attempts to deliver an alert, unless that was done, and notes in the ledger that it is done. `is_sent`: only the
/// note is missing.
pub(super) fn deliver(
    config: &Config,
    security: &Security,
    place: &SpillFolder,
    alert: &Alert,
    is_sent: bool,
) -> Delivery {
    let mut alert = alert.clone();
    let mut claim = match Claim::take(config, place, &alert.subject) {
        Ok(Some(claim)) => Ok(claim),
        Ok(None) => return Delivery::Later,
        Err(_) if is_sent => return Delivery::Later,
        // The alert may be about the ledger: an alert twice is better than none.
        Err(why) => Err(why),
    };
    if let Ok(claim) = &mut claim {
        match claim.last.take() {
            Some(last) if last.is_done && (alert.what.lasts() || last.since >= alert.since) => return Delivery::Done,
            // Processes see the same trouble begin at different times: all of them send the alert of the first one.
            Some(last) if alert.what.lasts() => (alert.id, alert.since) = (last.id, last.since),
            _ if alert.what.lasts() => drop(claim.note(Some(&reported(&alert, false)))),
            _ => {}
        }
    }
    if !is_sent && let Err(why) = post(config, security, &alert) {
        return Delivery::Failed(why);
    }
    let noted = claim.and_then(|mut claim| claim.note(Some(&reported(&alert, true))));
    match noted {
        Ok(()) if is_sent => Delivery::Done,
        Err(_) if is_sent => Delivery::Later,
        noted => Delivery::Sent(Box::new(alert), noted.err()),
    }
}

/// Sends the end of the trouble of this subject if its beginning was sent, and notes in the ledger that it is over.
/// `is_sent`: only the note is missing.
pub(super) fn end(
    config: &Config,
    security: &Security,
    place: &SpillFolder,
    subject: &str,
    at: u64,
    is_sent: bool,
) -> Delivery {
    let Ok(Some(mut claim)) = Claim::take(config, place, subject) else { return Delivery::Later };
    let Some(last) = claim.last.take() else { return Delivery::Done };
    let resolved = if last.is_done && !is_sent { Alert::resolved(last.id, subject, last.since, at) } else { None };
    if let Some(alert) = &resolved
        && let Err(why) = post(config, security, alert)
    {
        return Delivery::Failed(why);
    }
    match (resolved, claim.note(None)) {
        (Some(alert), noted) => Delivery::Sent(Box::new(alert), noted.err()),
        (None, Ok(())) => Delivery::Done,
        (None, Err(_)) => Delivery::Later,
    }
}

fn reported(alert: &Alert, is_done: bool) -> AlertReport {
    AlertReport { id: alert.id.clone(), since: alert.since, is_done }
}

/// The ledger, in which a subject is claimed until this is dropped.
struct Claim<'a> {
    ledger: Ledger,
    subject: &'a str,
    /// Name of this attempt.
    holder: String,
    /// The last report about the subject.
    last: Option<AlertReport>,
}

impl<'a> Claim<'a> {
    /// Claims a subject; `None` if another process has claimed it.
    fn take(config: &Config, place: &SpillFolder, subject: &'a str) -> Result<Option<Claim<'a>>, String> {
        let holder = fresh_name().map_err(|error| error.to_string())?;
        let mut ledger = super::store::beside(config, place).map_err(|failure| failure.text())?;
        match ledger.claim_alert(subject, &holder, unix()).map_err(|error| error.to_string())? {
            AlertClaim::Others => Ok(None),
            AlertClaim::Ours(last) => Ok(Some(Claim { ledger, subject, holder, last })),
        }
    }

    fn note(&mut self, reported: Option<&AlertReport>) -> Result<(), String> {
        self.ledger.note_alert(self.subject, reported, unix()).map_err(|error| error.to_string())
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        // If this fails, the claim expires.
        let _ = self.ledger.release_alert(self.subject, &self.holder);
    }
}

/// Sends an alert; the status if it was accepted. A redirect is not followed.
fn post(config: &Config, security: &Security, alert: &Alert) -> Result<u16, String> {
    let Some(collector) = &config.alerts.collector else { return Err("alerts.url is not set".to_string()) };
    let body = body(alert, config.alerts.form);
    let request = request(collector, "POST", &collector.path, &[], body.as_bytes());
    match send_for_status(collector, &Asker::within(security, ANSWER), &request) {
        Ok(status) if (200..300).contains(&status) => Ok(status),
        Ok(status) => Err(format!("status {status}")),
        Err(why) => Err(why.words().to_string()),
    }
}
