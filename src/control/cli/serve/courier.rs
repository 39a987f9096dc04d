//! Owns the thread that delivers alerts. It starts if alerts are configured, and nothing waits for it: neither a
//! request nor the loop. It keeps alerts in memory: after a restart they are raised again, and the ledger knows which
//! were delivered.

use super::exporter::host_name;
use crate::base::time::Mono;
use crate::cli::alerts::{Delivery, deliver, end};
use crate::gateway::Gateway;
use crate::gateway::orders::Notice;
use crate::io::batch_queue::{BatchQueue, IdlePolicy, Polled};
use crate::io::channel::{Receiver, RecvTimeoutError, channel};
use crate::io::clock::{Clock, unix};
use crate::io::log_writer::LogLines;
use crate::io::mailbox::Mailbox;
use crate::io::reactor::{ReactorMessage, Security};
use crate::io::worker::start_thread;
use crate::policy::alert::{Alert, AlertKind, AlertNews};
use crate::policy::config::{Config, StoreUrl};
use crate::policy::window;
use crate::store::spill::SpillFolder;
use std::collections::HashSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Alerts that wait for their delivery, and ends of trouble that wait. Beyond it they are dropped; for alerts that is
/// logged.
const ALERTS_MAX: usize = 1000;
/// Pause of the busy thread that delivers alerts.
const ALERTS_TICK: Duration = Duration::from_millis(20);
/// Interval at which targets and the ledger are looked at for alerts.
const ALERTS_LOOK: Duration = Duration::from_secs(1);
/// Attempts to deliver alerts that may be made at once.
const ALERTS_AT_ONCE: usize = 8;
/// Time at the end that the present attempts to deliver alerts are waited for.
const ALERTS_PARTING: Duration = Duration::from_secs(2);
/// Time after the first failed attempt to deliver an alert until the next; it doubles with each.
const ALERT_RETRY: Duration = Duration::from_secs(1);
/// Longest such time.
const ALERT_RETRY_MAX: Duration = Duration::from_secs(300);
/// Age of an alert after which there is no other attempt.
const ALERT_RETRIES_END: Duration = Duration::from_secs(3600);

/// The giving end.
pub(super) struct AlertSender {
    queue: BatchQueue<Vec<NewAlerts>>,
    /// Closed when the thread ends.
    ended: Receiver<()>,
}

/// The present configuration, and news.
struct NewAlerts {
    config: Arc<Config>,
    news: Vec<AlertNews>,
}

/// Resources of the alert thread that belong to the gateway.
pub(super) struct AlertNeeds {
    pub(super) place: SpillFolder,
    pub(super) security: Arc<Mutex<Security>>,
    pub(super) mailbox: Mailbox<ReactorMessage<Gateway>>,
    pub(super) log: LogLines,
}

/// An alert, or the end of trouble, that waits for an attempt or its result.
struct Pending {
    news: AlertNews,
    /// True if it was delivered or given up, which the ledger does not know yet.
    is_sent: bool,
    /// Failed attempts.
    tries: u32,
    next: Mono,
    /// Where the result of the present attempt comes from.
    attempt: Option<Receiver<Delivery>>,
}

impl Pending {
    fn new(news: AlertNews, next: Mono) -> Pending {
        Pending { news, is_sent: false, tries: 0, next, attempt: None }
    }

    fn subject(&self) -> &str {
        match &self.news {
            AlertNews::Raised(alert) => &alert.subject,
            AlertNews::Over(subject, _) => subject,
        }
    }

    /// The alert, unless this is the end of trouble.
    fn alert(&self) -> Option<&Alert> {
        match &self.news {
            AlertNews::Raised(alert) => Some(alert),
            AlertNews::Over(..) => None,
        }
    }

    /// Order of the attempts: first those about targets and the ledger, then those that were not tried yet.
    fn order(&self) -> (bool, bool, Mono) {
        (self.alert().is_some_and(|alert| !alert.what.lasts()), self.tries > 0, self.next)
    }
}

/// State of the thread.
struct Courier {
    needs: AlertNeeds,
    config: Arc<Config>,
    /// In the order in which they came. Only the first one of a subject is tried.
    pending: Vec<Pending>,
    clock: Clock,
}

impl AlertSender {
    /// Starts the thread.
    pub(super) fn start(needs: AlertNeeds, config: Arc<Config>) -> io::Result<AlertSender> {
        let (queue, (alive, ended)) = (BatchQueue::default(), channel());
        let theirs = queue.clone();
        let serve = move || {
            Courier { needs, config, pending: Vec::new(), clock: Clock::new() }.serve(&theirs);
            drop(alive);
        };
        start_thread("alerts", Box::new(serve))?;
        Ok(AlertSender { queue, ended })
    }

    /// Hands news over, and the present configuration.
    pub(super) fn give(&self, config: Arc<Config>, news: Vec<AlertNews>) {
        self.queue.put(true, |given| {
            let count: usize = given.iter().map(|given| given.news.len()).sum();
            // Beyond the bound only the configuration is taken.
            let news = if count < ALERTS_MAX { news } else { Vec::new() };
            given.push(NewAlerts { config, news });
        });
    }

    /// Closes the queue and waits for the end of the present attempts, but not for long: the next process raises what
    /// is not delivered.
    pub(super) fn finish(&self) {
        self.queue.close();
        let _ = self.ended.recv_timeout(ALERTS_PARTING);
    }
}

impl Courier {
    fn serve(mut self, queue: &BatchQueue<Vec<NewAlerts>>) {
        let (mut idle, mut given) = (IdlePolicy::new(ALERTS_TICK), Vec::new());
        let mut look = self.clock.mono();
        loop {
            let now = self.clock.mono();
            let mut next = Mono::NEVER;
            if self.config.alerts.collector.is_some() {
                if look <= now {
                    look = now.after(ALERTS_LOOK);
                    // A full box means that the loop is gone.
                    let _ = self.needs.mailbox.send(ReactorMessage::Notice(Notice::LookForTrouble));
                }
                next = self.begin_next(now).min(look);
            }
            let wait = match self.pending.iter().any(|pending| pending.attempt.is_some()) {
                true => ALERTS_TICK,
                false => Duration::from_micros(next.micros_since(now)).max(ALERTS_TICK),
            };
            match queue.poll(&mut given, &mut idle, wait, Vec::is_empty) {
                Polled::Found => self.take(&mut given),
                Polled::Nothing => {}
                Polled::Closed => return self.hear(ALERTS_PARTING),
            }
            self.hear(Duration::ZERO);
        }
    }

    /// Takes news.
    fn take(&mut self, given: &mut Vec<NewAlerts>) {
        for NewAlerts { config, news } in given.drain(..) {
            self.config = config;
            for news in news {
                match news {
                    AlertNews::Raised(alert) => self.raised(alert),
                    AlertNews::Over(subject, at) => self.over(subject, at),
                }
            }
        }
    }

    /// The newest entry of a subject.
    fn last(&self, subject: &str) -> Option<&Pending> {
        self.pending.iter().rev().find(|pending| pending.subject() == subject)
    }

    /// True if there are as many alerts as may wait, or as many ends of trouble.
    fn is_full(&self, of_alerts: bool) -> bool {
        self.pending.iter().filter(|pending| pending.alert().is_some() == of_alerts).count() >= ALERTS_MAX
    }

    fn raised(&mut self, mut alert: Box<Alert>) {
        let last = self.last(&alert.subject).and_then(Pending::alert);
        if last.is_some_and(|last| last.what.lasts() || last.since >= alert.since) {
            return;
        }
        // Hosts that have lost a shared ledger cannot agree on who sends, so each names itself.
        if let (AlertKind::Ledger, StoreUrl::Redis(_)) = (alert.what, &self.config.store.url) {
            alert.name = format!("{} (host {})", alert.name, host_name());
        }
        if self.is_full(true) {
            return self.say(&alert, "dropped", Some("too many alerts wait"));
        }
        let next = self.clock.mono().after(Duration::from_millis(alert.at.saturating_sub(unix().0)));
        self.pending.push(Pending::new(AlertNews::Raised(alert), next));
    }

    /// The trouble of a subject is over: an alert whose time has not come is not needed any more.
    fn over(&mut self, subject: String, at: u64) {
        let is_early = |alert: &Alert| alert.subject == subject && alert.at > at;
        self.pending.retain(|pending| pending.attempt.is_some() || !pending.alert().is_some_and(is_early));
        let is_known = self.last(&subject).is_some_and(|last| last.alert().is_none());
        if !is_known && !self.is_full(false) {
            self.pending.push(Pending::new(AlertNews::Over(subject, at), self.clock.mono()));
        }
    }

    /// Begins attempts that are due, up to a number at once. Returns the time of the next one.
    fn begin_next(&mut self, now: Mono) -> Mono {
        loop {
            let mut subjects = HashSet::new();
            let firsts = self.pending.iter().enumerate().filter(|(_, pending)| subjects.insert(pending.subject()));
            let (trying, waiting): (Vec<_>, Vec<_>) = firsts.partition(|(_, pending)| pending.attempt.is_some());
            let due = waiting.iter().filter(|(_, pending)| pending.next <= now);
            match due.min_by_key(|(_, pending)| pending.order()) {
                Some((at, _)) if trying.len() < ALERTS_AT_ONCE => {
                    let at = *at;
                    self.begin(at);
                }
                _ => return waiting.iter().map(|(_, pending)| pending.next).fold(Mono::NEVER, Mono::min),
            }
        }
    }

    fn begin(&mut self, at: usize) {
        let pending = &mut self.pending[at];
        let (result, comes) = channel();
        let (config, news, is_sent) = (self.config.clone(), pending.news.clone(), pending.is_sent);
        let security = self.needs.security.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let place = self.needs.place.clone();
        let attempt = move || {
            let delivery = match &news {
                AlertNews::Raised(alert) => deliver(&config, &security, &place, alert, is_sent),
                AlertNews::Over(subject, at) => end(&config, &security, &place, subject, *at, is_sent),
            };
            // The thread may have ended meanwhile.
            let _ = result.send(delivery);
        };
        match start_thread("alert", Box::new(attempt)) {
            Ok(_) => pending.attempt = Some(comes),
            Err(error) => self.failed(at, &error.to_string()),
        }
    }

    /// Takes the results of attempts that end within `wait`.
    fn hear(&mut self, wait: Duration) {
        let until = self.clock.mono().after(wait);
        for at in (0..self.pending.len()).rev() {
            let Some(comes) = &self.pending[at].attempt else { continue };
            let left = Duration::from_micros(until.micros_since(self.clock.mono()));
            if let Some(delivery) = result_of(comes, left) {
                self.pending[at].attempt = None;
                self.ended(at, delivery.unwrap_or_else(|| Delivery::Failed("the attempt panicked".to_string())));
            }
        }
    }

    /// An attempt has ended.
    fn ended(&mut self, at: usize, delivery: Delivery) {
        let (again, pending) = (self.clock.mono().after(ALERT_RETRY), &mut self.pending[at]);
        match delivery {
            Delivery::Sent(alert, unnoted) => {
                pending.is_sent = true;
                pending.next = again;
                let outcome = if pending.alert().is_some() { "sent" } else { "resolved" };
                self.say(&alert, outcome, unnoted.as_deref());
                if unnoted.is_none() {
                    self.pending.remove(at);
                }
            }
            Delivery::Done => {
                // The log has it as failing, so its end is logged, too.
                if pending.tries > 0 && !pending.is_sent {
                    self.say_of(at, "dropped", Some("this alert, or a newer one of the same kind, was delivered"));
                }
                self.pending.remove(at);
            }
            Delivery::Later => pending.next = again,
            Delivery::Failed(why) => self.failed(at, &why),
        }
    }

    /// An attempt has failed: another follows, until an hour has passed.
    fn failed(&mut self, at: usize, why: &str) {
        let (now, pending) = (self.clock.mono(), &mut self.pending[at]);
        if pending.is_sent {
            pending.next = now.after(ALERT_RETRY);
            return;
        }
        let due = match &pending.news {
            AlertNews::Raised(alert) => alert.at,
            AlertNews::Over(_, at) => *at,
        };
        let age = Duration::from_millis(unix().0.saturating_sub(due));
        let Some(wait) = pause(pending.tries, age) else {
            pending.is_sent = true;
            return self.say_of(at, "dropped", Some(why));
        };
        pending.next = now.after(wait);
        pending.tries += 1;
        if pending.tries == 1 {
            self.say_of(at, "failing", Some(why));
        }
    }

    fn say_of(&self, at: usize, outcome: &str, error: Option<&str>) {
        self.pending[at].alert().into_iter().for_each(|alert| self.say(alert, outcome, error));
    }

    fn say(&self, alert: &Alert, outcome: &str, error: Option<&str>) {
        let error = error.map_or(String::new(), |error| format!(",\"error\":{}", serde_json::Value::from(error)));
        let (id, what, name) = (&alert.id, alert.what.as_str(), serde_json::Value::from(&*alert.name));
        let event = format!("\"event\":\"alert\",\"outcome\":\"{outcome}\"");
        let alert = format!("\"id\":\"{id}\",\"what\":\"{what}\",\"name\":{name}");
        let line = format!("{{\"time\":\"{}\",{event},{alert}{error}}}\n", window::iso(unix()));
        drop(self.needs.log.write(line.into_bytes()));
    }
}

/// Result of a thread that sends one, within `wait`; `Some(None)` if it has panicked.
fn result_of<T: 'static>(comes: &Receiver<T>, wait: Duration) -> Option<Option<T>> {
    match comes.recv_timeout(wait) {
        Err(RecvTimeoutError::Timeout) => None,
        result => Some(result.ok()),
    }
}

/// Time after a failed attempt until the next one; `None` if that would be too late. `tries` failed before, and the
/// alert is due since `age`.
fn pause(tries: u32, age: Duration) -> Option<Duration> {
    let wait = ALERT_RETRY.saturating_mul(1 << tries.min(16)).min(ALERT_RETRY_MAX);
    (age + wait <= ALERT_RETRIES_END).then_some(wait)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_doubles_up_to_five_minutes_for_an_hour() {
        let seconds = |tries, age| pause(tries, Duration::from_secs(age)).map(|wait| wait.as_secs());
        assert_eq!([0, 1, 2, 8, 9, 99].map(|tries| seconds(tries, 0).unwrap()), [1, 2, 4, 256, 300, 300]);
        assert_eq!([3299, 3300, 3301].map(|age| seconds(99, age)), [Some(300), Some(300), None]);
        assert_eq!([seconds(0, 3599), seconds(0, 3600)], [Some(1), None]);
    }

    #[test]
    fn panic_of_an_attempt_is_its_result() {
        let (result, comes) = channel::<u32>();
        let (go, goes) = channel::<()>();
        let attempt = move || {
            let _result = result;
            goes.recv().unwrap();
            panic!("on purpose");
        };
        let thread = start_thread("alert", Box::new(attempt)).unwrap();
        assert_eq!(result_of(&comes, Duration::ZERO), None);
        go.send(()).unwrap();
        assert!(thread.join().is_err());
        assert_eq!(result_of(&comes, Duration::ZERO), Some(None));
        let (result, comes) = channel();
        result.send(7).unwrap();
        assert_eq!(result_of(&comes, Duration::ZERO), Some(Some(7)));
    }
}
