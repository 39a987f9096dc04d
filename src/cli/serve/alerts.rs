//! Owns the thread that delivers alerts. It keeps them in a file until then, so that a restart goes on with them. It
//! starts if alerts are configured, and nothing waits for it: neither a request nor the loop.

use crate::base::limits::{
    ALERT_RETRIES_END, ALERT_RETRY, ALERT_RETRY_MAX, ALERTS_LOOK, ALERTS_MAX, ALERTS_PARTING, ALERTS_TICK,
};
use crate::base::time::{Mono, Unix};
use crate::cli::alerts::{Delivery, deliver};
use crate::gateway::Gateway;
use crate::gateway::orders::Notice;
use crate::io::batch_queue::{BatchQueue, IdlePolicy, Polled};
use crate::io::channel::{Receiver, channel};
use crate::io::clock::{Clock, unix};
use crate::io::log_writer::LogLines;
use crate::io::mailbox::Mailbox;
use crate::io::reactor::{ReactorMessage, Security};
use crate::io::worker::start_thread;
use crate::policy::alert::Alert;
use crate::policy::config::Config;
use crate::policy::window;
use crate::store::alerts::AlertFile;
use crate::store::spill::Place;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The giving end.
pub(super) struct AlertSender {
    queue: BatchQueue<Vec<NewAlerts>>,
    /// Closed when the thread ends.
    ended: Receiver<()>,
}

/// The present configuration, and new alerts.
struct NewAlerts {
    config: Arc<Config>,
    alerts: Vec<Alert>,
}

/// Resources of the alert thread that belong to the gateway.
pub(super) struct AlertNeeds {
    pub(super) place: Place,
    pub(super) security: Arc<Mutex<Security>>,
    pub(super) mailbox: Mailbox<ReactorMessage<Gateway>>,
    pub(super) log: LogLines,
}

/// An alert that waits for an attempt.
struct DueAlert {
    alert: Alert,
    /// Failed attempts.
    tries: u32,
    next: Mono,
}

/// State of the thread.
struct Courier {
    needs: AlertNeeds,
    config: Arc<Config>,
    file: Option<AlertFile>,
    waiting: Vec<DueAlert>,
    /// The alert that an attempt is made for, and where its result comes from.
    trying: Option<(DueAlert, Receiver<Delivery>)>,
    clock: Clock,
}

impl AlertSender {
    /// Starts the thread.
    pub(super) fn start(needs: AlertNeeds, config: Arc<Config>) -> io::Result<AlertSender> {
        let (queue, (alive, ended)) = (BatchQueue::default(), channel());
        let theirs = queue.clone();
        let serve = move || {
            Courier::new(needs, config).serve(&theirs);
            drop(alive);
        };
        start_thread("alerts", Box::new(serve))?;
        Ok(AlertSender { queue, ended })
    }

    /// Hands new alerts over, and the present configuration.
    pub(super) fn give(&self, config: Arc<Config>, alerts: Vec<Alert>) {
        self.queue.put(true, |given| {
            let count: usize = given.iter().map(|given| given.alerts.len()).sum();
            // Beyond the bound only the configuration is news: the file system must have stopped for that.
            let alerts = if count < ALERTS_MAX { alerts } else { Vec::new() };
            given.push(NewAlerts { config, alerts });
        });
    }

    /// Closes the queue and waits for the end of the present attempt, but not for long: what is not delivered is in the
    /// file.
    pub(super) fn finish(&self) {
        self.queue.close();
        let _ = self.ended.recv_timeout(ALERTS_PARTING);
    }
}

impl Courier {
    fn new(needs: AlertNeeds, config: Arc<Config>) -> Courier {
        let mut courier = Courier { needs, config, file: None, waiting: Vec::new(), trying: None, clock: Clock::new() };
        let opened = AlertFile::open(&courier.needs.place, unix());
        match opened.and_then(|file| Ok((file.read(unix())?, file))) {
            Ok((facts, file)) => {
                let now = courier.clock.mono();
                courier.waiting.extend(facts.due.into_iter().map(|alert| DueAlert { alert, tries: 0, next: now }));
                courier.file = Some(file);
            }
            Err(error) => courier.say_error("kept in memory only", &error.to_string()),
        }
        courier
    }

    fn serve(mut self, queue: &BatchQueue<Vec<NewAlerts>>) {
        let (mut idle, mut given) = (IdlePolicy::new(ALERTS_TICK), Vec::new());
        let mut look = self.clock.mono();
        loop {
            let now = self.clock.mono();
            if look <= now {
                look = now.after(ALERTS_LOOK);
                if self.config.alerts.collector.is_some() {
                    // A full box means that the loop is gone.
                    let _ = self.needs.mailbox.send(ReactorMessage::Notice(Notice::LookForTrouble));
                }
            }
            self.begin_next(now);
            let next = self.waiting.iter().map(|waiting| waiting.next).min().unwrap_or(Mono::NEVER).min(look);
            let wait = match self.trying {
                Some(_) => ALERTS_TICK,
                None => Duration::from_micros(next.micros_since(now)).max(ALERTS_TICK),
            };
            match queue.poll(&mut given, &mut idle, wait, Vec::is_empty) {
                Polled::Found => given.drain(..).for_each(|given| self.take(given)),
                Polled::Nothing => {}
                Polled::Closed => return self.part(),
            }
            if let Some((_, result)) = &self.trying
                && let Ok(delivery) = result.recv_timeout(Duration::ZERO)
            {
                self.ended(delivery);
            }
        }
    }

    /// Takes new alerts and keeps them.
    fn take(&mut self, given: NewAlerts) {
        self.config = given.config;
        for alert in given.alerts {
            let facts = self.file.as_ref().and_then(|file| file.read(unix()).ok()).unwrap_or_default();
            let trying = self.trying.as_ref().map(|(waiting, _)| waiting);
            let mut known = self.waiting.iter().chain(trying);
            if facts.knows(&alert) || known.any(|waiting| waiting.alert.is_like(&alert)) {
                continue;
            }
            if self.waiting.len() >= ALERTS_MAX {
                self.say(&alert, "dropped", Some("too many alerts wait"));
                continue;
            }
            if let Some(Err(error)) = self.file.as_ref().map(|file| file.due(&alert)) {
                self.say_error("kept in memory only", &error.to_string());
            }
            self.waiting.push(DueAlert { alert, tries: 0, next: self.clock.mono() });
        }
    }

    /// Begins an attempt for the alert that is due first, if there is none at present.
    fn begin_next(&mut self, now: Mono) {
        if self.trying.is_some() || self.config.alerts.collector.is_none() {
            return;
        }
        let due = self.waiting.iter().enumerate().filter(|(_, waiting)| waiting.next <= now);
        let Some(at) = due.min_by_key(|(_, waiting)| waiting.next).map(|(at, _)| at) else { return };
        let waiting = self.waiting.remove(at);
        let (result, comes) = channel();
        let (config, alert, file) = (self.config.clone(), waiting.alert.clone(), self.file.clone());
        let security = self.needs.security.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let place = self.needs.place.clone();
        let attempt = move || {
            // The thread may have ended meanwhile.
            let _ = result.send(deliver(&config, &security, &alert, file.as_ref(), &place));
        };
        match start_thread("alert", Box::new(attempt)) {
            Ok(_) => self.trying = Some((waiting, comes)),
            Err(error) => self.failed(waiting, &error.to_string()),
        }
    }

    /// An attempt has ended.
    fn ended(&mut self, delivery: Delivery) {
        let Some((waiting, _)) = self.trying.take() else { return };
        match delivery {
            Delivery::Sent => self.say(&waiting.alert, "sent", None),
            Delivery::Before => {}
            #[cfg(feature = "redis")]
            Delivery::Others => {
                let next = self.clock.mono().after(ALERT_RETRY);
                self.waiting.push(DueAlert { next, ..waiting });
            }
            Delivery::Failed(why) => self.failed(waiting, &why),
        }
    }

    /// An attempt has failed: another follows, until an hour has passed.
    fn failed(&mut self, mut waiting: DueAlert, why: &str) {
        let wait = ALERT_RETRY.saturating_mul(1 << waiting.tries.min(16)).min(ALERT_RETRY_MAX);
        let age = Duration::from_millis(unix().0.saturating_sub(waiting.alert.at));
        if age + wait > ALERT_RETRIES_END {
            if let Some(Err(error)) = self.file.as_ref().map(|file| file.gone(&waiting.alert)) {
                self.say_error("kept in memory only", &error.to_string());
            }
            return self.say(&waiting.alert, "dropped", Some(why));
        }
        if waiting.tries == 0 {
            self.say(&waiting.alert, "failing", Some(why));
        }
        waiting.tries += 1;
        waiting.next = self.clock.mono().after(wait);
        self.waiting.push(waiting);
    }

    /// Waits for the present attempt.
    fn part(&mut self) {
        if let Some((_, result)) = &self.trying
            && let Ok(delivery) = result.recv_timeout(ALERTS_PARTING)
        {
            self.ended(delivery);
        }
    }

    fn say(&self, alert: &Alert, outcome: &str, error: Option<&str>) {
        let error = error.map_or(String::new(), |error| format!(",\"error\":{}", serde_json::Value::from(error)));
        let (id, what, name) = (alert.id(), alert.what.name(), serde_json::Value::from(&*alert.name));
        self.log(format!(
            "\"event\":\"alert\",\"outcome\":\"{outcome}\",\"id\":\"{id}\",\"what\":\"{what}\",\"name\":{name}{error}"
        ));
    }

    fn say_error(&self, outcome: &str, error: &str) {
        let error = serde_json::Value::from(error);
        self.log(format!("\"event\":\"alert\",\"outcome\":\"{outcome}\",\"error\":{error}"));
    }

    fn log(&self, members: String) {
        let time: Unix = unix();
        drop(self.needs.log.write(format!("{{\"time\":\"{}\",{members}}}\n", window::iso(time)).into_bytes()));
    }
}
