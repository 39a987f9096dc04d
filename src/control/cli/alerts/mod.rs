//! `tollgate alerts`: sends a test alert; and the delivery of one alert, which `serve` uses, too.

pub mod body;

use super::alerts::body::body;
use super::args::ConfigArg;
use super::http::provider_client::{ANSWER, Asker, request, send_for_status};
use super::load::{self, Secrets};
use super::output::{Failure, print};
use crate::io::clock::unix;
use crate::io::reactor::Security;
use crate::policy::alert::{Alert, AlertKind};
use crate::policy::attribution::HashKey;
use crate::policy::config::Config;
#[cfg(feature = "redis")]
use crate::policy::config::StoreUrl;
use crate::store::alerts::AlertFile;
#[cfg(feature = "redis")]
use crate::store::remote::{AlertTurn, Bounds, RemoteAlerts};
use crate::store::spill::Place;
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
    let alert = Alert { id: String::new(), what, name, subject, since: now, at: now, budget: None };
    let alert = alert.identified(&HashKey::default());
    let status = post(&config, &security, &alert).map_err(|why| Failure::failed(format!("not delivered: {why}")))?;
    print(&format!("delivered: status {status}, {}\n", alert.id))
}

/// Result of an attempt.
pub(super) enum Delivery {
    /// The webhook has accepted it. The reason why that could not be noted, if so.
    Sent(Option<String>),
    /// An alert about the same event was delivered before.
    Before,
    /// Another host is delivering it.
    #[cfg(feature = "redis")]
    Others,
    /// Why it was not accepted.
    Failed(String),
}

/// Attempts to deliver an alert, unless that was done, and notes it if it succeeds.
pub(super) fn deliver(
    config: &Config,
    security: &Security,
    alert: &Alert,
    file: &AlertFile,
    place: &Place,
) -> Delivery {
    // Without the lock another process might deliver it, too: an alert twice is better than none.
    let _lock = file.lock().ok();
    if file.facts(unix()).is_done(alert) {
        return Delivery::Before;
    }
    let done = || file.done(alert, unix());
    let mut hosts = match OtherHosts::claim(config, alert, place) {
        Ok(hosts) => hosts,
        Err(Delivery::Before) => {
            // The file need not know more than that.
            let _ = done();
            return Delivery::Before;
        }
        Err(other) => return other,
    };
    match post(config, security, alert) {
        Ok(_) => {
            let kept = done();
            hosts.sent(alert);
            Delivery::Sent(kept.err().map(|error| error.to_string()))
        }
        Err(why) => {
            hosts.unclaim(alert);
            Delivery::Failed(why)
        }
    }
}

/// Notes for the other hosts of a shared ledger that trouble of these subjects is over. Returns the alerts that a host
/// has left; `None` if the ledger cannot be reached.
#[cfg(feature = "redis")]
pub(super) fn left_by_others(config: &Config, over: &[String], place: &Place) -> Option<Vec<Alert>> {
    let server = super::store::known_server(config, place, Bounds::SERVING).ok()?;
    RemoteAlerts::new(server).ok()?.left(over, unix()).ok()
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

/// The other hosts of a shared ledger, of which one delivers each alert. If the ledger cannot be reached, each does.
struct OtherHosts {
    #[cfg(feature = "redis")]
    alerts: Option<RemoteAlerts>,
}

impl OtherHosts {
    #[cfg(feature = "redis")]
    fn claim(config: &Config, alert: &Alert, place: &Place) -> Result<OtherHosts, Delivery> {
        let StoreUrl::Redis(_) = &config.store.url else { return Ok(OtherHosts { alerts: None }) };
        let server = super::store::known_server(config, place, Bounds::SERVING).ok();
        let Some(mut alerts) = server.and_then(|server| RemoteAlerts::new(server).ok()) else {
            return Ok(OtherHosts { alerts: None });
        };
        match alerts.claim(alert, unix()) {
            Ok(AlertTurn::Ours) => Ok(OtherHosts { alerts: Some(alerts) }),
            Ok(AlertTurn::Others) => Err(Delivery::Others),
            Ok(AlertTurn::Done) => Err(Delivery::Before),
            Err(_) => Ok(OtherHosts { alerts: None }),
        }
    }

    #[cfg(not(feature = "redis"))]
    fn claim(_: &Config, _: &Alert, _: &Place) -> Result<OtherHosts, Delivery> {
        Ok(OtherHosts {})
    }

    fn sent(&mut self, _alert: &Alert) {
        #[cfg(feature = "redis")]
        if let Some(alerts) = &mut self.alerts {
            // A failure costs nothing: the file has the delivery, too.
            let _ = alerts.sent(_alert);
        }
    }

    fn unclaim(&mut self, _alert: &Alert) {
        #[cfg(feature = "redis")]
        if let Some(alerts) = &mut self.alerts {
            // If this fails, the claim expires.
            let _ = alerts.unclaim(_alert);
        }
    }
}
