//! The old process's side: starts a successor, gives it the ledger, passes rows on to it, and takes everything back
//! from a successor that does not serve. The thread follows the event loop's commands and reports what it receives.
//! `gateway::lifecycle::upgrade` decides on the order; the only timeouts here are those of the last rows.

use super::{HandoverMessage, Listening, VERSION};
use crate::base::time::Mono;
use crate::cli::serve::log_lines::spilled;
use crate::gateway::Gateway;
use crate::gateway::counters::RecorderSums;
use crate::gateway::orders::Notice;
use crate::io::channel::{Receiver, RecvTimeoutError, Sender, channel};
use crate::io::clock::{Clock, unix};
use crate::io::log_writer::LogLines;
use crate::io::mailbox::Mailbox;
use crate::io::reactor::{ReactorMessage, Successor};
use crate::io::upgrade;
use crate::io::worker::start_thread;
use crate::policy::discover::DiscoveredModel;
use crate::policy::ledger::LedgerNotice;
use crate::policy::row::{Row, Running};
use crate::store::StoreTurn;
use crate::store::api::{Batch, Leftover};
use crate::store::spill::SpillFolder;
use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of a line from a successor: a word, a number or the reason for a failure.
const SUCCESSOR_LINE_MAX: u64 = 64 * 1024;
/// Time that a process that has handed over waits at its end for the successor to confirm its last rows.
const LAST_ROWS_WAIT: Duration = Duration::from_secs(10);
/// Timeout of a stalled write to the other process of a hand-over.
const HANDOVER_STALL: Duration = Duration::from_secs(5);

/// Time for a successor that has closed its end to exit, so that its exit status can be reported.
const PARTING: Duration = Duration::from_millis(500);

/// Time in which rows that no successor accepts any more are gathered for one spill file.
const SPILL_REST: Duration = Duration::from_millis(500);

/// Command for the thread that hands over.
pub(in crate::cli::serve) enum HandoverCommand {
    /// Give the ledger away (none if it is shared), with the requests still served, the models that providers list, and
    /// what the recorder has summed up.
    HandOver(Option<StoreTurn>, Vec<Running>, Vec<DiscoveredModel>, Box<RecorderSums>),
    /// Rows of requests that ended after that.
    Rows(Vec<Row>),
    /// Let the successor serve.
    LetServe,
    /// The successor does not serve: end it, and take the ledger back.
    TakeBack,
    /// The event loop has ended: make sure that the last rows are committed.
    End,
    /// A message of the successor.
    Heard(Box<Heard>),
}

/// Event of the successor's channel; boxed on its way, one at a time.
#[allow(clippy::large_enum_variant)]
pub(in crate::cli::serve) enum Heard {
    Line(HandoverMessage),
    /// Bytes that are not a valid line.
    Nonsense,
    /// The successor has closed its end of the channel.
    End,
}

/// Sender of messages to the thread, and its handle.
type Channel = (Sender<HandoverCommand>, JoinHandle<()>);

/// Starts successors, and holds the sender for the thread of the current one.
#[derive(Clone)]
pub(in crate::cli::serve) struct HandoverSender {
    program: Option<PathBuf>,
    admin: bool,
    listening: Listening,
    spills: SpillFolder,
    log: LogLines,
    mailbox: Mailbox<ReactorMessage<Gateway>>,
    present: Arc<Mutex<Option<Channel>>>,
}

impl HandoverSender {
    /// `program`: the program to start, `None` for the demo, whose ledger ends with it. `admin`: the last listener is
    /// the admin one. `listening`: the listeners in the configuration. `spills`: the place of spill files.
    pub(in crate::cli::serve) fn new(
        program: Option<PathBuf>,
        admin: bool,
        listening: Listening,
        spills: SpillFolder,
        log: LogLines,
        mailbox: Mailbox<ReactorMessage<Gateway>>,
    ) -> HandoverSender {
        HandoverSender { program, admin, listening, spills, log, mailbox, present: Arc::default() }
    }

    /// Returns the function that the event loop calls to start a successor.
    pub(in crate::cli::serve) fn successor(&self) -> Successor {
        let handover = self.clone();
        Box::new(move |listeners| match listeners {
            Ok(listeners) => handover.begin(listeners),
            Err(error) => handover.tell(Notice::SuccessorFailed(format!("failed: no sockets: {error}"))),
        })
    }

    fn begin(&self, listeners: Vec<OwnedFd>) {
        let (give, messages) = channel();
        let (theirs, heard) = (self.clone(), give.clone());
        let serve = move || HandoverSession::start(theirs, listeners, heard).serve(&messages);
        match start_thread("successor", Box::new(serve)) {
            Ok(thread) => *self.lock() = Some((give, thread)),
            Err(error) => self.tell(Notice::SuccessorFailed(format!("failed: no thread: {error}"))),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Channel>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, notice: Notice) {
        // A full mailbox means that the event loop has ended.
        let _ = self.mailbox.send(ReactorMessage::Notice(notice));
    }

    /// Sends a message to the thread; false if there is none.
    fn give(&self, message: HandoverCommand) -> bool {
        self.lock().as_ref().is_some_and(|(give, _)| give.send(message).is_ok())
    }

    /// Gives the ledger away; see [`HandoverCommand::HandOver`].
    pub(in crate::cli::serve) fn hand_over(
        &self,
        ledger: Option<StoreTurn>,
        running: Vec<Running>,
        lists: Vec<DiscoveredModel>,
        recorded: Box<RecorderSums>,
    ) {
        self.give(HandoverCommand::HandOver(ledger, running, lists, recorded));
    }

    /// Passes rows on.
    pub(in crate::cli::serve) fn rows(&self, rows: Vec<Row>) {
        self.give(HandoverCommand::Rows(rows));
    }

    /// Lets the successor serve.
    pub(in crate::cli::serve) fn let_serve(&self) {
        self.give(HandoverCommand::LetServe);
    }

    /// Ends the successor; see [`HandoverCommand::TakeBack`].
    pub(in crate::cli::serve) fn take_back(&self) {
        if !self.give(HandoverCommand::TakeBack) {
            // The thread could not be started, or has ended with its successor.
            self.tell(Notice::SuccessorGone);
        }
    }

    /// At the end: waits until the last row is committed by the successor, spilled, or returned to the ledger's
    /// thread.
    pub(in crate::cli::serve) fn finish(&self) {
        let present = self.lock().take();
        if let Some((give, thread)) = present {
            let _ = give.send(HandoverCommand::End);
            let _ = thread.join();
        }
    }
}

/// Progress of a successor. A message out of order is invalid.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum SuccessorStage {
    Starts,
    Ready,
    Given,
    Taken,
    Serves,
}

/// State of one successor.
struct HandoverSession {
    sender: HandoverSender,
    successor: Option<(Child, UnixStream)>,
    ledger: Option<StoreTurn>,
    /// Rows that the successor has not reported as committed, oldest first.
    rows: VecDeque<Row>,
    stage: SuccessorStage,
    /// True if it has failed or ended, and the event loop has been notified.
    failed: bool,
    /// Deadline for the last rows; set when the event loop has ended.
    until: Option<Mono>,
    clock: Clock,
}

impl HandoverSession {
    fn start(sender: HandoverSender, listeners: Vec<OwnedFd>, heard: Sender<HandoverCommand>) -> HandoverSession {
        let mut session = HandoverSession {
            sender,
            successor: None,
            ledger: None,
            rows: VecDeque::new(),
            stage: SuccessorStage::Starts,
            failed: false,
            until: None,
            clock: Clock::new(),
        };
        match session.sender.program.as_ref().map(|program| session.spawn(program, listeners, heard)) {
            Some(Ok(successor)) => session.successor = Some(successor),
            Some(Err(error)) => session.fail(&error.to_string()),
            None => {
                session.failed = true;
                session.sender.tell(Notice::SuccessorFailed("refused: the demo has no successor".to_string()));
            }
        }
        session
    }

    fn spawn(
        &self,
        program: &Path,
        listeners: Vec<OwnedFd>,
        heard: Sender<HandoverCommand>,
    ) -> io::Result<(Child, UnixStream)> {
        let mut command = Command::new(program);
        command.args(std::env::args_os().skip(1));
        let (mut child, channel) = upgrade::start(command, listeners, self.sender.admin)?;
        match listen(&channel, heard) {
            Ok(()) => Ok((child, channel)),
            Err(error) => {
                let _ = child.kill();
                child.wait().and(Err(error))
            }
        }
    }

    fn serve(mut self, messages: &Receiver<HandoverCommand>) {
        loop {
            let pauses = self.serves() && self.failed && !self.rows.is_empty();
            let message = match self.until {
                None if pauses => messages.recv_timeout(SPILL_REST),
                None => messages.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(until) => {
                    let micros = until.micros_since(self.clock.mono());
                    messages.recv_timeout(Duration::from_micros(micros))
                }
            };
            match message {
                Ok(HandoverCommand::HandOver(ledger, running, lists, recorded)) => {
                    let last = [HandoverMessage::Listed(lists), HandoverMessage::Recorded(recorded)];
                    self.hand_over(ledger, running, last);
                }
                Ok(HandoverCommand::Rows(rows)) => self.pass_on(rows),
                Ok(HandoverCommand::LetServe) => self.let_serve(),
                Ok(HandoverCommand::TakeBack) => return self.take_back(),
                Ok(HandoverCommand::End) => self.until = Some(self.clock.mono().after(LAST_ROWS_WAIT)),
                Ok(HandoverCommand::Heard(heard)) => self.hear(*heard),
                Err(RecvTimeoutError::Timeout) if pauses => self.spill(),
                Err(_) => return self.take_back(),
            }
            if self.until.is_some() && (!self.serves() || self.failed || self.rows.is_empty()) {
                return self.take_back();
            }
        }
    }

    fn hear(&mut self, heard: Heard) {
        match heard {
            _ if self.failed => {}
            Heard::Line(HandoverMessage::Ready(VERSION)) if self.stage == SuccessorStage::Starts => {
                self.stage = SuccessorStage::Ready;
                self.sender.tell(Notice::SuccessorReady);
            }
            Heard::Line(HandoverMessage::Taken) if self.stage == SuccessorStage::Given => {
                self.stage = SuccessorStage::Taken;
                self.sender.tell(Notice::SuccessorTaken);
            }
            Heard::Line(HandoverMessage::Failed(why)) => self.fail(&why),
            Heard::Line(HandoverMessage::Safe(rows)) if self.serves() => {
                let safe = self.rows.len().min(usize::try_from(rows).unwrap_or(usize::MAX));
                self.rows.drain(..safe);
                self.sender.tell(Notice::Ledger(LedgerNotice::Committed(safe as u64)));
            }
            Heard::Line(_) | Heard::Nonsense => self.fail("the successor speaks another version of handing over"),
            Heard::End if self.serves() => self.fail("the successor has died"),
            Heard::End => {
                let status = self.successor.as_mut().and_then(|(child, _)| ended(child).ok());
                let status = status.map(|status| status.to_string()).unwrap_or_default();
                self.fail(&match self.stage == SuccessorStage::Starts {
                    true => format!("the successor was not ready ({status}); its log says why"),
                    false => format!("the successor has died ({status})"),
                });
            }
        }
    }

    fn serves(&self) -> bool {
        self.stage == SuccessorStage::Serves
    }

    /// Notifies the event loop, once, that this successor cannot continue.
    fn fail(&mut self, why: &str) {
        if !std::mem::replace(&mut self.failed, true) {
            let before = if self.serves() { "" } else { "failed: " };
            self.sender.tell(Notice::SuccessorFailed(format!("{before}{why}")));
        }
    }

    fn hand_over(&mut self, ledger: Option<StoreTurn>, running: Vec<Running>, last: [HandoverMessage; 2]) {
        let released = ledger.as_ref().map_or(Ok(()), StoreTurn::release);
        self.ledger = ledger;
        if let Err(error) = released {
            return self.fail(&format!("the ledger cannot be given away: {error}"));
        }
        self.stage = SuccessorStage::Given;
        let listening = HandoverMessage::Listening(self.sender.listening.clone());
        let running = running.into_iter().map(HandoverMessage::Running);
        self.write([listening].into_iter().chain(running).chain(last).chain([HandoverMessage::Go]));
    }

    fn let_serve(&mut self) {
        if let Some((child, _)) = self.successor.as_ref().filter(|_| !self.failed) {
            // By us, before we end: a manager ends the service with its main process, and the successor with it.
            upgrade::notify(&format!("MAINPID={}\n", child.id()));
        }
        self.stage = SuccessorStage::Serves;
        let rows: Vec<HandoverMessage> = self.rows.iter().cloned().map(HandoverMessage::Row).collect();
        self.write([HandoverMessage::Serve].into_iter().chain(rows));
    }

    /// Passes rows on to a serving successor. Until it serves they wait, because it may never do so.
    fn pass_on(&mut self, rows: Vec<Row>) {
        self.rows.extend(rows.iter().cloned());
        if self.serves() && !self.failed {
            self.write(rows.into_iter().map(HandoverMessage::Row));
        }
    }

    /// Spills the rows that a dead successor has not committed. If that fails, they return to the ledger's thread at
    /// the end.
    fn spill(&mut self) {
        let batch = Batch { rows: std::mem::take(&mut self.rows).into(), ..Batch::default() };
        let left = Leftover { batches: vec![batch], died: false };
        match self.sender.spills.write(&left, unix(), std::process::id()) {
            Ok(path) => {
                self.sender.log.write(spilled(left.rows(), &path));
                self.sender.tell(Notice::Ledger(LedgerNotice::Committed(left.rows())));
            }
            Err(_) => self.rows = left.batches.into_iter().flat_map(|batch| batch.rows).collect(),
        }
    }

    /// Writes lines. A failed write ends the channel, since part of a line may have been sent; that end is handled like
    /// any other.
    fn write(&mut self, lines: impl IntoIterator<Item = HandoverMessage>) {
        let Some((_, channel)) = &self.successor else { return };
        let mut out = Vec::new();
        let written = lines.into_iter().try_for_each(|line| line.write(&mut out));
        if written.and_then(|()| (&*channel).write_all(&out)).is_err() {
            let _ = channel.shutdown(Shutdown::Both);
        }
    }

    /// Ends this successor. If it serves, it is left alone, and only rows that it has not reported as committed come
    /// back.
    fn take_back(mut self) {
        if let Some((mut child, channel)) = self.successor.take() {
            match self.serves() {
                true => drop((channel.shutdown(Shutdown::Write), child.try_wait())),
                false => drop((child.kill(), child.wait())),
            }
        }
        if self.serves() && self.failed && !self.rows.is_empty() {
            self.spill();
        }
        // At the end nothing follows the last row.
        let is_done = self.until.is_some() && self.serves() && self.rows.is_empty();
        if let Some(ledger) = self.ledger.take().filter(|_| !is_done) {
            ledger.retake(self.rows.into());
        }
        self.sender.tell(Notice::SuccessorGone);
    }
}

/// Waits, for a limited time, for the exit of a process that has closed its end of the channel, as an exiting process
/// does. The process cannot be reached any more, whatever it does.
fn ended(child: &mut Child) -> io::Result<ExitStatus> {
    for _ in 0..20 {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        std::thread::sleep(PARTING / 20);
    }
    child.kill()?;
    child.wait()
}

/// The successor's next line, within a bound; `None` at its end.
fn next_line(channel: &mut impl BufRead) -> Option<Heard> {
    let mut line = Vec::new();
    channel.take(SUCCESSOR_LINE_MAX).read_until(b'\n', &mut line).ok().filter(|read| *read > 0)?;
    let text = std::str::from_utf8(&line).ok().filter(|text| text.ends_with('\n'));
    Some(text.and_then(HandoverMessage::read).map_or(Heard::Nonsense, Heard::Line))
}

/// Starts a thread that reads the successor's messages.
fn listen(channel: &UnixStream, heard: Sender<HandoverCommand>) -> io::Result<()> {
    channel.set_write_timeout(Some(HANDOVER_STALL))?;
    let mut channel = BufReader::new(channel.try_clone()?);
    let listen = move || {
        while let Some(line) = next_line(&mut channel) {
            let ends = matches!(line, Heard::Nonsense);
            if heard.send(HandoverCommand::Heard(Box::new(line))).is_err() {
                return;
            }
            if ends {
                break;
            }
        }
        // After the session there is no receiver.
        let _ = heard.send(HandoverCommand::Heard(Box::new(Heard::End)));
    };
    start_thread("heard", Box::new(listen)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_a_successor_is_read_within_a_bound() {
        let said = |text: &[u8]| match next_line(&mut BufReader::new(text)) {
            None => "end",
            Some(Heard::Line(_)) => "line",
            Some(_) => "nonsense",
        };
        assert_eq!(said(b""), "end");
        assert_eq!(said(b"\"taken\"\n\"taken\"\n"), "line");
        assert_eq!(said(b"\"taken\""), "nonsense", "it has died within it");
        let why = format!("{{\"failed\":\"{}\"}}\n", "x".repeat(60_000));
        assert_eq!(said(why.as_bytes()), "line");
        let mut endless = BufReader::new(std::io::repeat(b'x'));
        assert!(matches!(next_line(&mut endless), Some(Heard::Nonsense)));
    }
}
