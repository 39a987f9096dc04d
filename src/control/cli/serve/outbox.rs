//! Passes the event loop's commands to their threads: copies under short locks, without a system call in the steady
//! state. Decides nothing.

use super::capture::CaptureWriter;
use super::courier::{AlertNeeds, AlertSender};
use super::exporter::Exporter;
use super::reload::Reloader;
use super::upgrade::HandoverSender;
use crate::cli::admin_jobs;
use crate::gateway::Gateway;
use crate::gateway::counters::RecorderSums;
use crate::gateway::orders::{Captured, DeskAsk, Notice, Order, Work};
use crate::io::channel::Sender;
use crate::io::log_writer::LogWriter;
use crate::io::mailbox::Mailbox;
use crate::io::reactor::ReactorMessage;
use crate::io::secrets::SecretWatch;
use crate::io::worker::Worker;
use crate::policy::alert::AlertNews;
use crate::policy::config::Config;
use crate::policy::discover::DiscoveredModel;
use crate::policy::row::{Row, Running};
use crate::store::LedgerHandle;
use crate::store::api::Leftover;
use crate::store::spill::SpillFolder;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

/// Threads for bodies and events that are too large for the loop. Each key uses one at a time, so one key cannot delay
/// the others.
const WORK_THREADS: usize = 2;

/// Senders for the threads. They need the event loop's mailbox, so they are set after it exists.
#[derive(Default)]
pub(super) struct Helpers {
    pub(super) store: Mutex<StoreEnd>,
    pub(super) reloader: OnceLock<Reloader>,
    /// Reads secrets again from their sources.
    pub(super) secrets: OnceLock<Arc<SecretWatch>>,
    /// Runs work that takes too long for the event loop.
    pub(super) worker: OnceLock<LongWork>,
    /// Sends spans to their collector; created with the first spans.
    pub(super) exporter: OnceLock<Option<Exporter>>,
    /// Delivers alerts; there is none before they are configured.
    pub(super) alerts: OnceLock<Option<AlertSender>>,
    /// Writes captured requests; created with the first of them.
    pub(super) captures: OnceLock<Option<CaptureWriter>>,
    /// Location of the files next to the ledger.
    pub(super) place: OnceLock<SpillFolder>,
    /// Answers requests to the admin listener; started by the first of them.
    pub(super) desk: OnceLock<DeskEnd>,
    pub(super) handover: OnceLock<HandoverSender>,
    /// Reports to a predecessor how many of its rows are committed.
    pub(super) safe: OnceLock<Sender<u64>>,
}

/// The threads for work that takes too long for the event loop. Freeing memory has a separate thread: it takes
/// milliseconds, and unfreed memory still counts as buffered.
pub(super) struct LongWork {
    worker: Worker,
    freer: Worker,
    mailbox: Mailbox<ReactorMessage<Gateway>>,
}

impl LongWork {
    /// Starts the threads.
    pub(super) fn start(mailbox: Mailbox<ReactorMessage<Gateway>>) -> io::Result<LongWork> {
        Ok(LongWork { worker: Worker::start(WORK_THREADS)?, freer: Worker::start(1)?, mailbox })
    }

    fn give(&self, work: Box<Work>) {
        let (mailbox, key) = (self.mailbox.clone(), work.lane());
        let thread = if work.is_freeing() { &self.freer } else { &self.worker };
        // A full mailbox means that the event loop has ended.
        thread.give(key, Box::new(move || drop(mailbox.send(ReactorMessage::Notice(Notice::Worked(work.run()))))));
    }
}

/// Sender for the threads that answer admin API requests; each starts with its first request. Changes have a separate
/// thread, in the ordinary scheduling class: they do not wait for reports.
pub(super) struct DeskEnd {
    changes: OnceLock<Option<Worker>>,
    reads: OnceLock<Option<Worker>>,
    mailbox: Mailbox<ReactorMessage<Gateway>>,
}

impl DeskEnd {
    /// Creates a handler without requests.
    pub(super) fn new(mailbox: Mailbox<ReactorMessage<Gateway>>) -> DeskEnd {
        DeskEnd { changes: OnceLock::new(), reads: OnceLock::new(), mailbox }
    }

    fn give(&self, ask: Box<DeskAsk>) {
        let mailbox = self.mailbox.clone();
        // A full mailbox means that the event loop has ended.
        let tell = move |said| drop(mailbox.send(ReactorMessage::Notice(Notice::Desk(said))));
        let worker = match ask.is_change() {
            true => self.changes.get_or_init(|| Worker::start(1).ok()),
            false => self.reads.get_or_init(|| Worker::start_idle().ok()),
        };
        match worker {
            Some(worker) => worker.give(0, Box::new(move || tell(admin_jobs::answer(ask)))),
            None => tell(admin_jobs::unanswered(&ask)),
        }
    }
}

/// Destination of rows.
#[derive(Default)]
pub(super) struct StoreEnd {
    /// `None` before its thread exists.
    pub(super) ledger: Option<Box<dyn LedgerHandle>>,
    /// True if another process has the ledger, or is about to get it: rows go to the hand-over.
    away: bool,
}

impl Helpers {
    /// The sender for the ledger's thread, if it exists.
    #[inline]
    pub(super) fn store(&self) -> MutexGuard<'_, StoreEnd> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Performs a command. True if the command stays: its contents are taken out, and its vector is reused in the next
    /// iteration, which saves an allocation.
    fn perform(&self, order: &mut Order, log: &LogWriter) -> bool {
        match order {
            Order::Log(lines) => *lines = log.write(std::mem::take(lines)),
            Order::Rows(rows) => *rows = self.keep(std::mem::take(rows)),
            Order::Spans(config, spans) => *spans = self.export(config, std::mem::take(spans)),
            Order::Asks(asks) => self.store().ledger.iter().for_each(|store| store.ask(asks)),
            Order::Uses(uses) => self.store().ledger.iter().for_each(|store| store.used(uses)),
            Order::Releases(releases) => self.store().ledger.iter().for_each(|store| store.release(releases)),
            Order::Alerts(config, news) => {
                self.alert(config.clone(), std::mem::take(news), log);
                return false;
            }
            // The placeholder is dropped without being carried out.
            other => {
                self.perform_once(std::mem::replace(other, Order::TakeBack));
                return false;
            }
        }
        true
    }

    /// Performs a rare command.
    fn perform_once(&self, order: Order) {
        match order {
            // These are frequent, and carried out in place.
            Order::Log(_) | Order::Rows(_) | Order::Spans(..) | Order::Alerts(..) => {}
            Order::Asks(_) | Order::Uses(_) | Order::Releases(_) => {}
            Order::LookUp(ids) => {
                if let Some(store) = &self.store().ledger {
                    store.look_up(ids);
                }
            }
            Order::Capture(captured) => self.capture(captured),
            Order::Work(work) => {
                if let Some(long) = self.worker.get() {
                    long.give(work);
                }
            }
            Order::Desk(ask) => {
                if let Some(desk) = self.desk.get() {
                    desk.give(ask);
                }
            }
            Order::Reload(before) => {
                if let Some(reloader) = self.reloader.get() {
                    reloader.start(before);
                }
            }
            Order::Renew(origin) => self.secrets.get().into_iter().for_each(|secrets| secrets.ask(origin.clone())),
            Order::List(asked) => self.reloader.get().into_iter().for_each(|reloader| reloader.list(&asked)),
            Order::HandOver(running, lists, recorded) => self.hand_over(running, lists, recorded),
            Order::LetServe => self.handover.get().into_iter().for_each(HandoverSender::let_serve),
            Order::TakeBack => {
                self.store().away = false;
                self.handover.get().into_iter().for_each(HandoverSender::take_back);
            }
            Order::Acknowledge(rows) => {
                if let Some(safe) = self.safe.get() {
                    // A predecessor that has ended needs no report.
                    let _ = safe.send(rows);
                }
            }
        }
    }

    #[cold]
    fn export(&self, config: &Arc<Config>, mut spans: Vec<u8>) -> Vec<u8> {
        let start = || {
            let (reloader, long) = (self.reloader.get()?, self.worker.get()?);
            Exporter::start(reloader.security(), long.mailbox.clone()).ok()
        };
        match self.exporter.get_or_init(start) {
            Some(exporter) if !spans.is_empty() => return exporter.give(config, spans),
            _ => spans.clear(),
        }
        spans
    }

    #[cold]
    fn alert(&self, config: Arc<Config>, news: Vec<AlertNews>, log: &LogWriter) {
        let start = || {
            let (reloader, long, place) = (self.reloader.get()?, self.worker.get()?, self.place.get()?.clone());
            let (security, mailbox) = (reloader.security(), long.mailbox.clone());
            AlertSender::start(AlertNeeds { place, security, mailbox, log: log.lines() }, config.clone()).ok()
        };
        if let Some(sender) = self.alerts.get_or_init(start) {
            sender.give(config, news);
        }
    }

    #[cold]
    fn capture(&self, captured: Box<Captured>) {
        let Some(long) = self.worker.get() else { return };
        let start = || CaptureWriter::start(self.place.get()?.clone(), long.mailbox.clone()).ok();
        match self.captures.get_or_init(start) {
            Some(writer) => writer.give(captured),
            None => {
                let why = Err("no thread can be started".to_owned());
                let lost = Notice::Captured(captured.key, captured.kept(), why);
                let _ = long.mailbox.send(ReactorMessage::Notice(lost));
            }
        }
    }

    fn keep(&self, mut rows: Vec<Row>) -> Vec<Row> {
        let store = self.store();
        match (&store.ledger, self.handover.get()) {
            _ if rows.is_empty() => {}
            (_, Some(handover)) if store.away => handover.rows(std::mem::take(&mut rows)),
            (Some(ledger), _) => return ledger.write(rows),
            (None, _) => rows.clear(),
        }
        rows
    }

    /// Gives a ledger in a file to the successor, with the running requests. A shared ledger serves both processes, so
    /// each settles the requests that it has admitted.
    fn hand_over(&self, running: Vec<Running>, lists: Vec<DiscoveredModel>, recorded: Box<RecorderSums>) {
        let Some(handover) = self.handover.get() else { return };
        let mut store = self.store();
        let turn = store.ledger.as_ref().and_then(|ledger| ledger.turn());
        store.away = turn.is_some();
        let running = if store.away { running } else { Vec::new() };
        handover.hand_over(turn, running, lists, recorded);
    }

    /// Ends the threads for rows and spans, in the order in which rows pass through them. Returns the rows that could
    /// not be written anywhere and, if spans are exported, the number of spans not sent.
    pub(super) fn finish(&self) -> (Leftover, Option<u64>) {
        let exporter = self.exporter.get().and_then(Option::as_ref);
        exporter.into_iter().for_each(Exporter::close);
        if let Some(handover) = self.handover.get() {
            handover.finish();
        }
        self.alerts.get().and_then(Option::as_ref).into_iter().for_each(AlertSender::finish);
        self.captures.get().and_then(Option::as_ref).into_iter().for_each(CaptureWriter::finish);
        let ledger = self.store().ledger.take();
        let left = ledger.map(LedgerHandle::finish).unwrap_or_default();
        (left, exporter.map(Exporter::finish))
    }
}

/// Returns the function that the event loop calls once in every iteration with commands.
pub(super) fn outbox(log: Rc<LogWriter>, helpers: Arc<Helpers>) -> impl FnMut(Vec<Order>) -> Vec<Order> {
    move |mut orders| {
        // Rows go before admissions (at most one command), because finished requests free quota for new ones.
        if let Some(at) = orders.iter().position(|order| matches!(order, Order::Asks(_))) {
            orders[at..].rotate_left(1);
        }
        // In place, to keep the vector's storage.
        orders.retain_mut(|order| helpers.perform(order, &log));
        orders
    }
}
