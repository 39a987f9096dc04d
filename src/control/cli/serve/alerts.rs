//! Owns the thread that delivers alerts. It keeps them in a file until then, so that a restart goes on with them. It
//! starts if alerts are configured, and nothing waits for it: neither a request nor the loop.

#[cfg(feature = "redis")]
use super::exporter::host_name;
use crate::base::limits::{
    ALERT_RETRIES_END, ALERT_RETRY, ALERT_RETRY_MAX, ALERTS_AT_ONCE, ALERTS_FILE_SPARE, ALERTS_LOOK, ALERTS_MAX,
    ALERTS_PARTING, ALERTS_ROUND, ALERTS_TICK,
};
use crate::base::time::{Mono, Unix};
#[cfg(feature = "redis")]
use crate::cli::alerts::left_by_others;
use crate::cli::alerts::{Delivery, deliver};
use crate::gateway::Gateway;
use crate::gateway::orders::Notice;
use crate::io::batch_queue::{BatchQueue, IdlePolicy, Polled};
use crate::io::channel::{Receiver, RecvTimeoutError, channel};
use crate::io::clock::{Clock, unix};
use crate::io::log_writer::LogLines;
use crate::io::mailbox::Mailbox;
use crate::io::reactor::{ReactorMessage, Security};
use crate::io::worker::start_thread;
use crate::policy::alert::{Alert, AlertNews};
use crate::policy::config::Config;
use crate::policy::window;
#[cfg(feature = "redis")]
use crate::policy::{alert::AlertKind, config::StoreUrl};
use crate::store::alerts::{AlertFacts, AlertFile, AlertLines};
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

/// The present configuration, and news.
struct NewAlerts {
    config: Arc<Config>,
    news: Vec<AlertNews>,
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
    file: AlertFile,
    /// Bytes of the file when it was read last, and when it was shrunk last.
    size: u64,
    needed: u64,
    waiting: Vec<DueAlert>,
    /// Alerts that an attempt is made for, and where its result comes from.
    trying: Vec<(DueAlert, Receiver<Delivery>)>,
    /// Time of the next look for alerts that others have left.
    round: Mono,
    /// Time of the next attempt to write the file, which has failed; `NEVER` if it has not.
    rewrite: Mono,
    #[cfg(feature = "redis")]
    hosts: SharedAlerts,
    clock: Clock,
}

/// Exchange with the other hosts of a shared ledger.
#[cfg(feature = "redis")]
#[derive(Default)]
struct SharedAlerts {
    /// Subjects whose trouble is over, which the ledger does not know yet.
    over: Vec<String>,
    /// Number of these in the present question, and the source of the alerts that other hosts have left.
    asked: Option<(usize, Receiver<Option<Vec<Alert>>>)>,
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

    /// Hands news over, and the present configuration.
    pub(super) fn give(&self, config: Arc<Config>, news: Vec<AlertNews>) {
        self.queue.put(true, |given| {
            let count: usize = given.iter().map(|given| given.news.len()).sum();
            // Beyond the bound only the configuration is taken: the file system must have stopped for that.
            let news = if count < ALERTS_MAX { news } else { Vec::new() };
            given.push(NewAlerts { config, news });
        });
    }

    /// Closes the queue and waits for the end of the present attempts, but not for long: the file has what is not
    /// delivered.
    pub(super) fn finish(&self) {
        self.queue.close();
        let _ = self.ended.recv_timeout(ALERTS_PARTING);
    }
}

impl Courier {
    fn new(needs: AlertNeeds, config: Arc<Config>) -> Courier {
        let clock = Clock::new();
        let round = clock.mono().after(ALERTS_ROUND);
        let mut courier = Courier {
            file: AlertFile::new(&needs.place),
            needs,
            config,
            size: 0,
            needed: 0,
            waiting: Vec::new(),
            trying: Vec::new(),
            round,
            rewrite: Mono::NEVER,
            #[cfg(feature = "redis")]
            hosts: SharedAlerts::default(),
            clock,
        };
        courier.shrink();
        courier.look_into_file();
        courier
    }

    /// Drops what the file need not contain any more.
    fn shrink(&mut self) {
        match self.file.shrink(unix()) {
            Ok(0) => {}
            Ok(lines) => self.log(format!("\"event\":\"alert\",\"outcome\":\"damaged\",\"lines\":{lines}")),
            Err(error) => self.unwritten(&error.to_string()),
        }
        self.needed = self.file.size();
    }

    fn serve(mut self, queue: &BatchQueue<Vec<NewAlerts>>) {
        let (mut idle, mut given) = (IdlePolicy::new(ALERTS_TICK), Vec::new());
        let mut look = self.clock.mono();
        loop {
            let now = self.clock.mono();
            if self.round <= now {
                self.round = now.after(ALERTS_ROUND);
                self.look_into_file();
                if self.size > self.needed.max(ALERTS_FILE_SPARE) * 2 {
                    self.shrink();
                }
                #[cfg(feature = "redis")]
                self.ask_hosts();
            }
            if self.rewrite <= now {
                self.write(&AlertLines::default());
            }
            self.begin_next(now);
            let mut next = self.round.min(self.rewrite);
            if self.config.alerts.collector.is_some() {
                if look <= now {
                    look = now.after(ALERTS_LOOK);
                    // A full box means that the loop is gone.
                    let _ = self.needs.mailbox.send(ReactorMessage::Notice(Notice::LookForTrouble));
                }
                next = self.waiting.iter().map(|waiting| waiting.next).fold(next.min(look), Mono::min);
            }
            let wait = match self.trying.is_empty() {
                true => Duration::from_micros(next.micros_since(now)).max(ALERTS_TICK),
                false => ALERTS_TICK,
            };
            match queue.poll(&mut given, &mut idle, wait, Vec::is_empty) {
                Polled::Found => self.take(&mut given),
                Polled::Nothing => {}
                Polled::Closed => return self.part(),
            }
            self.hear(Duration::ZERO);
            #[cfg(feature = "redis")]
            self.hear_hosts();
        }
    }

    /// Reads the facts from the file again, because another process may have written to it.
    fn facts(&self) -> AlertFacts {
        self.file.facts(unix())
    }

    /// Writes facts, with those that could not be written before.
    fn write(&mut self, lines: &AlertLines) {
        match self.file.add(lines) {
            Ok(()) => self.rewrite = Mono::NEVER,
            Err(error) => self.unwritten(&error.to_string()),
        }
    }

    /// The file cannot be written: it is tried again soon, and logged once until it can be written.
    fn unwritten(&mut self, error: &str) {
        if self.rewrite == Mono::NEVER {
            let error = serde_json::Value::from(error);
            self.log(format!("\"event\":\"alert\",\"outcome\":\"kept in memory only\",\"error\":{error}"));
        }
        self.rewrite = self.clock.mono().after(ALERT_RETRY);
    }

    /// Takes the alerts of the file: at the start, and those that a predecessor has left.
    fn look_into_file(&mut self) {
        let size = self.file.size();
        if size == self.size {
            return;
        }
        self.size = size;
        for alert in self.facts().due {
            if !self.is_waiting(&alert) {
                self.wait_for(alert);
            }
        }
    }

    fn is_waiting(&self, alert: &Alert) -> bool {
        let trying = self.trying.iter().map(|(waiting, _)| waiting);
        self.waiting.iter().chain(trying).any(|waiting| waiting.alert.id == alert.id)
    }

    fn wait_for(&mut self, alert: Alert) {
        let next = self.clock.mono().after(Duration::from_millis(alert.at.saturating_sub(unix().0)));
        self.waiting.push(DueAlert { alert, tries: 0, next });
    }

    /// Takes news, and keeps all alerts by one write.
    fn take(&mut self, given: &mut Vec<NewAlerts>) {
        let is_news = given.iter().any(|given| !given.news.is_empty());
        let (mut facts, mut lines) =
            (if is_news { self.facts() } else { AlertFacts::default() }, AlertLines::default());
        for NewAlerts { config, news } in given.drain(..) {
            self.config = config;
            for news in news {
                match news {
                    AlertNews::Raised(alert) => {
                        #[cfg(feature = "redis")]
                        let alert = self.signed(alert);
                        self.raised(alert, &mut facts, &mut lines);
                    }
                    AlertNews::Over(subject, at) => self.over(subject, at, &mut facts, &mut lines),
                }
            }
        }
        if is_news {
            self.write(&lines);
        }
    }

    fn raised(&mut self, alert: Alert, facts: &mut AlertFacts, lines: &mut AlertLines) {
        if facts.knows(&alert) || self.is_waiting(&alert) {
            return;
        }
        if self.waiting.len() + self.trying.len() >= ALERTS_MAX {
            return self.say(&alert, "dropped", Some("too many alerts wait"));
        }
        lines.due(&alert);
        facts.due.push(alert.clone());
        self.wait_for(alert);
    }

    /// The trouble of a subject is over: an alert whose time has not come is not needed any more.
    fn over(&mut self, subject: String, at: u64, facts: &mut AlertFacts, lines: &mut AlertLines) {
        self.waiting.retain(|waiting| waiting.alert.subject != subject || waiting.alert.at <= at);
        if facts.is_open(&subject) {
            lines.over(&subject, at);
            facts.over(&subject, at);
        }
        // Another host may have sent the alert.
        #[cfg(feature = "redis")]
        self.tell_hosts(subject);
    }

    /// Begins attempts for alerts that are due, up to a number at once: first alerts about targets and the ledger, then
    /// alerts that were not tried yet.
    fn begin_next(&mut self, now: Mono) {
        while self.trying.len() < ALERTS_AT_ONCE && self.config.alerts.collector.is_some() {
            let is_free = |alert: &Alert| self.trying.iter().all(|(other, _)| other.alert.subject != alert.subject);
            let due = self.waiting.iter().enumerate();
            let due = due.filter(|(_, waiting)| waiting.next <= now && is_free(&waiting.alert));
            let first = due.min_by_key(|(_, one)| (!one.alert.what.lasts(), one.tries > 0, one.next));
            let Some(at) = first.map(|(at, _)| at) else { return };
            let waiting = self.waiting.remove(at);
            let (result, comes) = channel();
            let (config, alert, file) = (self.config.clone(), waiting.alert.clone(), self.file.clone());
            let security = self.needs.security.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let place = self.needs.place.clone();
            let attempt = move || {
                // The thread may have ended meanwhile.
                let _ = result.send(deliver(&config, &security, &alert, &file, &place));
            };
            match start_thread("alert", Box::new(attempt)) {
                Ok(_) => self.trying.push((waiting, comes)),
                Err(error) => self.failed(waiting, &error.to_string()),
            }
        }
    }

    /// Takes the results of attempts that end within `wait`.
    fn hear(&mut self, wait: Duration) {
        let until = self.clock.mono().after(wait);
        for at in (0..self.trying.len()).rev() {
            let left = Duration::from_micros(until.micros_since(self.clock.mono()));
            if let Some(delivery) = result_of(&self.trying[at].1, left) {
                let (waiting, _) = self.trying.swap_remove(at);
                self.ended(waiting, delivery.unwrap_or_else(|| Delivery::Failed("the attempt panicked".to_string())));
            }
        }
    }

    /// An attempt has ended.
    fn ended(&mut self, waiting: DueAlert, delivery: Delivery) {
        match delivery {
            Delivery::Sent(unnoted) => {
                self.say(&waiting.alert, "sent", None);
                if let Some(error) = unnoted {
                    self.unwritten(&error);
                }
                // The trouble may have ended before its alert was delivered.
                #[cfg(feature = "redis")]
                if waiting.alert.what.lasts() && !self.facts().is_open(&waiting.alert.subject) {
                    self.tell_hosts(waiting.alert.subject);
                }
            }
            // The log has it as failing, so its end is logged, too.
            Delivery::Before if waiting.tries > 0 => {
                self.say(&waiting.alert, "dropped", Some("this alert, or a newer one of the same kind, was delivered"));
            }
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
        let wait = pause(waiting.tries);
        let age = Duration::from_millis(unix().0.saturating_sub(waiting.alert.at));
        if age + wait > ALERT_RETRIES_END {
            let mut lines = AlertLines::default();
            lines.done(&waiting.alert, unix());
            self.write(&lines);
            return self.say(&waiting.alert, "dropped", Some(why));
        }
        if waiting.tries == 0 {
            self.say(&waiting.alert, "failing", Some(why));
        }
        waiting.tries += 1;
        waiting.next = self.clock.mono().after(wait);
        self.waiting.push(waiting);
    }

    /// Waits for the present attempts.
    fn part(&mut self) {
        self.hear(ALERTS_PARTING);
    }

    fn say(&self, alert: &Alert, outcome: &str, error: Option<&str>) {
        let error = error.map_or(String::new(), |error| format!(",\"error\":{}", serde_json::Value::from(error)));
        let (id, what, name) = (&alert.id, alert.what.as_str(), serde_json::Value::from(&*alert.name));
        self.log(format!(
            "\"event\":\"alert\",\"outcome\":\"{outcome}\",\"id\":\"{id}\",\"what\":\"{what}\",\"name\":{name}{error}"
        ));
    }

    fn log(&self, members: String) {
        let time: Unix = unix();
        drop(self.needs.log.write(format!("{{\"time\":\"{}\",{members}}}\n", window::iso(time)).into_bytes()));
    }
}

/// Result of a thread that sends one, within `wait`; `Some(None)` if it has panicked.
fn result_of<T: 'static>(comes: &Receiver<T>, wait: Duration) -> Option<Option<T>> {
    match comes.recv_timeout(wait) {
        Err(RecvTimeoutError::Timeout) => None,
        result => Some(result.ok()),
    }
}

/// Time after a failed attempt, before which there were `tries`.
fn pause(tries: u32) -> Duration {
    ALERT_RETRY.saturating_mul(1 << tries.min(16)).min(ALERT_RETRY_MAX)
}

#[cfg(feature = "redis")]
impl SharedAlerts {
    /// Keeps the subject for the next query, once, however often its trouble ends while the ledger is unreachable.
    /// Subjects in the present query do not count.
    fn is_over(&mut self, subject: String) {
        let asked = self.asked.as_ref().map_or(0, |(count, _)| *count);
        if !self.over[asked..].contains(&subject) {
            self.over.push(subject);
        }
    }
}

#[cfg(feature = "redis")]
impl Courier {
    /// Hosts that have lost a shared ledger cannot agree on who sends, so each names itself.
    fn signed(&self, mut alert: Alert) -> Alert {
        if let (AlertKind::Ledger, StoreUrl::Redis(_)) = (alert.what, &self.config.store.url) {
            alert.name = format!("{} (host {})", alert.name, host_name());
        }
        alert
    }

    /// Has the other hosts learn that trouble is over.
    fn tell_hosts(&mut self, subject: String) {
        if let StoreUrl::Redis(_) = self.config.store.url {
            self.hosts.is_over(subject);
            self.round = self.clock.mono();
        }
    }

    /// Asks the shared ledger for alerts that other hosts have left.
    fn ask_hosts(&mut self) {
        let StoreUrl::Redis(_) = self.config.store.url else { return };
        if self.hosts.asked.is_some() {
            return;
        }
        let (result, comes) = channel();
        let (config, over, place) = (self.config.clone(), self.hosts.over.clone(), self.needs.place.clone());
        let count = over.len();
        let ask = move || {
            // The thread may have ended meanwhile.
            let _ = result.send(left_by_others(&config, &over, &place));
        };
        // Without a thread it is asked in the next round.
        self.hosts.asked = start_thread("alerts-left", Box::new(ask)).ok().map(|_| (count, comes));
    }

    /// Takes the alerts that other hosts have left.
    fn hear_hosts(&mut self) {
        let Some((count, comes)) = &self.hosts.asked else { return };
        let Some(left) = result_of(comes, Duration::ZERO) else { return };
        let count = *count;
        self.hosts.asked = None;
        // If the ledger could not be reached, the next round repeats the question.
        let Some(left) = left.flatten() else { return };
        self.hosts.over.drain(..count);
        let (mut facts, mut lines) = (self.facts(), AlertLines::default());
        for alert in left {
            self.raised(alert, &mut facts, &mut lines);
        }
        self.write(&lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_doubles_up_to_five_minutes() {
        let seconds = [0, 1, 2, 8, 9, 99].map(|tries| pause(tries).as_secs());
        assert_eq!(seconds, [1, 2, 4, 256, 300, 300]);
        assert!(crate::base::limits::ALERT_TAKEOVER > ALERT_RETRY_MAX + Duration::from_secs(10));
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

    #[cfg(feature = "redis")]
    #[test]
    fn trouble_that_ends_often_while_the_ledger_is_gone_is_kept_once() {
        let mut hosts = SharedAlerts::default();
        (0..100).for_each(|_| hosts.is_over("target/a".to_string()));
        assert_eq!(hosts.over, ["target/a"]);
        // The trouble ends again after the query was sent, so the next query contains it, too.
        hosts.asked = Some((1, channel().1));
        (0..100).for_each(|_| hosts.is_over("target/a".to_string()));
        assert_eq!(hosts.over, ["target/a", "target/a"]);
    }
}
