//! Both ends of handing over, as threads around the channel of `io::upgrade`; what it means stands in
//! `gateway::upgrade`. What is said, one [`Line`] of JSON each:
//!
//! | process | line | when |
//! |---|---|---|
//! | new | `ready` | its configuration and certificates are right; says which [`VERSION`] of these lines it speaks |
//! | old | `running` | for every request that it still serves |
//! | old | `go` | the ledger is closed |
//! | old | `row` | one of those requests has ended |
//! | new | `safe` | so many more of those rows are in the ledger |
//!
//! The end of the channel says that the other process has ended.

use crate::base::limits::SUCCESSOR_WAIT;
use crate::gateway::Gateway;
use crate::gateway::orders::Notice;
use crate::io::mailbox::Mailbox;
use crate::io::reactor::{Note, Successor};
use crate::io::store::StoreHandle;
use crate::io::upgrade;
use crate::policy::row::{Row, Running};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Of the lines below. Processes that speak different ones do not hand over to each other: the old one stays.
const VERSION: u32 = 2;

/// What one process says to the other.
#[derive(Serialize, Deserialize, PartialEq, Debug)]
#[serde(rename_all = "lowercase")]
enum Line {
    Ready(u32),
    Running(Running),
    Go,
    Row(Row),
    Safe(u64),
}

impl Line {
    fn write(&self, mut out: impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut out, self)?;
        out.write_all(b"\n")
    }

    /// `None` for anything but a line.
    fn read(text: &str) -> Option<Line> {
        serde_json::from_str(text).ok()
    }
}

/// What the thread that hands over is given.
pub(super) enum Message {
    /// The ledger, to be closed (none if it is shared), and what is still served.
    Ledger(Option<StoreHandle>, Vec<Running>),
    /// Rows that ended after that.
    Rows(Vec<Row>),
}

/// The way of messages to the thread that passes them on, and that thread.
type Channel = (Sender<Message>, JoinHandle<()>);

/// The old process's end: starts successors, and passes rows on to the one that took over.
#[derive(Clone)]
pub(super) struct HandoverSender {
    program: Option<PathBuf>,
    admin: bool,
    mailbox: Mailbox<Note<Gateway>>,
    present: Arc<Mutex<Option<Channel>>>,
}

impl HandoverSender {
    /// `program` is what to start, `None` for the demo, whose ledger ends with it; `admin` says whether the last
    /// listener is the admin one.
    pub(super) fn new(program: Option<PathBuf>, admin: bool, mailbox: Mailbox<Note<Gateway>>) -> HandoverSender {
        HandoverSender { program, admin, mailbox, present: Arc::default() }
    }

    /// What the loop calls to have a successor started.
    pub(super) fn successor(&self) -> Successor {
        let handover = self.clone();
        Box::new(move |listeners| handover.begin(listeners))
    }

    fn begin(&self, listeners: Vec<OwnedFd>) {
        let (give, messages) = channel();
        let theirs = self.clone();
        let thread = std::thread::Builder::new().name("successor".into());
        match thread.spawn(move || theirs.accompany(listeners, &messages)) {
            Ok(thread) => *self.lock() = Some((give, thread)),
            Err(error) => self.tell(Notice::SuccessorFailed(format!("failed: no thread: {error}"))),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Channel>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, notice: Notice) {
        // A full box means that the loop is gone.
        let _ = self.mailbox.send(Note::Notice(notice));
    }

    /// Hands a message to the thread. It is given back where there is none, which the gateway does not let happen.
    pub(super) fn give(&self, message: Message) {
        if let Some((give, _)) = &*self.lock() {
            let _ = give.send(message);
        }
    }

    /// At the end: waits until the last row has been passed on.
    pub(super) fn finish(&self) {
        let present = self.lock().take();
        if let Some((give, thread)) = present {
            drop(give);
            let _ = thread.join();
        }
    }

    fn accompany(&self, listeners: Vec<OwnedFd>, messages: &Receiver<Message>) {
        let Some(program) = &self.program else {
            return self.tell(Notice::SuccessorFailed("refused: the demo has no successor".to_string()));
        };
        let mut command = Command::new(program);
        command.args(std::env::args_os().skip(1));
        let started = upgrade::start(command, listeners, self.admin);
        let (child, channel) = match started.and_then(|(child, channel)| await_ready(child, channel)) {
            Ok(both) => both,
            Err(error) => return self.tell(Notice::SuccessorFailed(format!("failed: {error}"))),
        };
        self.tell(Notice::SuccessorReady);
        self.listen_for_safe(&channel);
        // An error means that the successor has died; its own log says why. What it did not get is lost with it.
        if let Err(error) = pass_on(&channel, child.id(), messages) {
            self.tell(Notice::SuccessorFailed(format!("the successor has died: {error}")));
        }
        let _ = channel.shutdown(Shutdown::Write);
        drop(child);
    }

    /// What the successor has committed counts as committed here.
    fn listen_for_safe(&self, channel: &UnixStream) {
        let Ok(channel) = channel.try_clone() else { return };
        let mailbox = self.mailbox.clone();
        let listen = move || {
            for line in BufReader::new(channel).lines().map_while(Result::ok) {
                if let Some(Line::Safe(rows)) = Line::read(&line) {
                    let _ = mailbox.send(Note::Notice(Notice::Committed(rows)));
                }
            }
        };
        // Without this thread answers that wait for their rows end with the store's error, as they must.
        let _ = std::thread::Builder::new().name("safe".into()).spawn(listen);
    }
}

fn await_ready(mut child: Child, channel: UnixStream) -> io::Result<(Child, UnixStream)> {
    channel.set_read_timeout(Some(SUCCESSOR_WAIT))?;
    let mut line = String::new();
    let read = BufReader::with_capacity(64, &channel).read_line(&mut line);
    let said = Line::read(&line);
    if read.is_ok() && said == Some(Line::Ready(VERSION)) {
        channel.set_read_timeout(None)?;
        return Ok((child, channel));
    }
    let _ = child.kill();
    let status = child.wait()?;
    // Before these lines had versions, the first was one word.
    let another = matches!(said, Some(Line::Ready(_))) || line == "ready\n";
    Err(io::Error::other(match another {
        true => "the successor speaks another version of handing over".to_string(),
        false => format!("the successor was not ready ({status}); its log says why"),
    }))
}

fn pass_on(channel: &UnixStream, successor: u32, messages: &Receiver<Message>) -> io::Result<()> {
    let mut out = Vec::new();
    let mut channel = channel;
    while let Ok(message) = messages.recv() {
        out.clear();
        match message {
            Message::Ledger(ledger, running) => {
                // Waits for the last commit and drops the lock.
                ledger.map(StoreHandle::finish);
                upgrade::notify_successor(successor);
                for one in running {
                    Line::Running(one).write(&mut out)?;
                }
                Line::Go.write(&mut out)?;
            }
            Message::Rows(rows) => {
                for row in rows {
                    Line::Row(row).write(&mut out)?;
                }
            }
        }
        channel.write_all(&out)?;
    }
    Ok(())
}

/// The new process's end.
pub(super) struct HandoverReceiver {
    lines: BufReader<UnixStream>,
    channel: UnixStream,
}

impl HandoverReceiver {
    /// Says that everything is ready, and waits until the ledger is ours; returns what the predecessor still serves. A
    /// predecessor that dies meanwhile leaves everything to us, too.
    pub(super) fn await_turn(channel: UnixStream) -> io::Result<(HandoverReceiver, Vec<Running>)> {
        Line::Ready(VERSION).write(&channel)?;
        let mut receiver = HandoverReceiver { lines: BufReader::new(channel.try_clone()?), channel };
        let (mut running, mut line) = (Vec::new(), String::new());
        while receiver.lines.read_line(&mut line)? > 0 {
            match Line::read(&line) {
                Some(Line::Running(one)) => running.push(one),
                Some(Line::Go) => break,
                _ => return Err(io::Error::other("the predecessor speaks another version")),
            }
            line.clear();
        }
        Ok((receiver, running))
    }

    /// Takes the predecessor's rows from here on, on a thread; returns the way to tell it that they are safe.
    pub(super) fn follow(self, mailbox: Mailbox<Note<Gateway>>) -> io::Result<Sender<u64>> {
        let (tell, safe) = channel::<u64>();
        let HandoverReceiver { lines, channel } = self;
        let follow = move || {
            for line in lines.lines().map_while(Result::ok) {
                if let Some(Line::Row(row)) = Line::read(&line) {
                    let _ = mailbox.send(Note::Notice(Notice::Inherited(row)));
                }
            }
            let _ = mailbox.send(Note::Notice(Notice::PredecessorLeft));
        };
        std::thread::Builder::new().name("predecessor".into()).spawn(follow)?;
        let answer = move || {
            let mut out = BufWriter::new(channel);
            while let Ok(rows) = safe.recv() {
                if Line::Safe(rows).write(&mut out).and_then(|()| out.flush()).is_err() {
                    return;
                }
            }
        };
        std::thread::Builder::new().name("answer".into()).spawn(answer)?;
        Ok(tell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    /// A child that says `first` and then waits for the end of its channel.
    fn answered(first: &str) -> io::Result<(Child, UnixStream)> {
        let (ours, mut theirs) = UnixStream::pair()?;
        theirs.write_all(first.as_bytes())?;
        drop(theirs);
        let child = Command::new("sleep").arg("60").spawn()?;
        await_ready(child, ours)
    }

    #[test]
    fn a_successor_of_another_version_is_refused_and_ended() {
        for (first, why) in [
            ("ready\n", "another version"),
            ("{\"ready\":3}\n", "another version"),
            ("", "not ready"),
            ("{\"go\":1}\n", "not ready"),
        ] {
            let error = answered(first).err().map(|error| error.to_string());
            assert!(error.as_ref().is_some_and(|error| error.contains(why)), "{first}: {error:?}");
        }
        let (mut child, _channel) = answered("{\"ready\":2}\n").unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_predecessor_that_knows_one_word_alone_finds_another_line() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.shutdown(Shutdown::Write).unwrap();
        drop(HandoverReceiver::await_turn(ours).unwrap());
        let mut said = String::new();
        theirs.read_to_string(&mut said).unwrap();
        assert_eq!(said, "{\"ready\":2}\n");
    }

    #[test]
    fn lines_of_another_version_are_not_misread() {
        for line in ["go\n", "running 00 x 1 2\n", "{\"running\":{}}\n", "{\"row\":{\"r\":\"00\"}}\n"] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(line.as_bytes()).unwrap();
            theirs.shutdown(Shutdown::Write).unwrap();
            assert!(HandoverReceiver::await_turn(ours).is_err(), "{line}");
        }
    }
}
