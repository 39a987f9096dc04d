//! The new process's side of an upgrade: reports progress, waits for the ledger, and takes the rows of the
//! predecessor's last streams.

use super::{HandoverMessage, Listening, VERSION};
use crate::gateway::Gateway;
use crate::gateway::counters::RecorderSums;
use crate::gateway::orders::Notice;
use crate::io::channel::{Sender, channel};
use crate::io::mailbox::Mailbox;
use crate::io::reactor::ReactorMessage;
use crate::io::worker::start_thread;
use crate::policy::discover::DiscoveredModel;
use crate::policy::row::Running;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::net::UnixStream;

/// The channel to the predecessor.
pub(in crate::cli::serve) struct HandoverReceiver {
    lines: BufReader<UnixStream>,
    channel: UnixStream,
}

/// Data that arrives with the ledger.
#[derive(Default)]
pub(in crate::cli::serve) struct ReceivedLedger {
    /// Requests that the predecessor still serves.
    pub(in crate::cli::serve) running: Vec<Running>,
    /// Models that providers list.
    pub(in crate::cli::serve) lists: Vec<DiscoveredModel>,
    /// Sums of the predecessor's recorder.
    pub(in crate::cli::serve) recorded: RecorderSums,
    /// Listeners in the predecessor's configuration.
    pub(in crate::cli::serve) listening: Option<Listening>,
}

fn another_version() -> io::Error {
    io::Error::other("the predecessor speaks another version")
}

impl HandoverReceiver {
    pub(in crate::cli::serve) fn new(channel: UnixStream) -> io::Result<HandoverReceiver> {
        Ok(HandoverReceiver { lines: BufReader::new(channel.try_clone()?), channel })
    }

    /// The predecessor's next line; `None` if it has died, which makes this process the only one.
    fn next(&mut self) -> io::Result<Option<HandoverMessage>> {
        let mut text = String::new();
        match self.lines.read_line(&mut text)? {
            0 => Ok(None),
            _ => HandoverMessage::read(&text).map(Some).ok_or_else(another_version),
        }
    }

    /// Reports that everything is ready, and waits until the ledger is released.
    pub(in crate::cli::serve) fn await_turn(&mut self) -> io::Result<ReceivedLedger> {
        // If the predecessor has died, the next read detects it.
        let _ = HandoverMessage::Ready(VERSION).write(&self.channel);
        let mut turn = ReceivedLedger::default();
        loop {
            match self.next()? {
                Some(HandoverMessage::Listening(listening)) => turn.listening = Some(listening),
                Some(HandoverMessage::Running(one)) => turn.running.push(one),
                Some(HandoverMessage::Listed(lists)) => turn.lists = lists,
                Some(HandoverMessage::Recorded(recorded)) => turn.recorded = *recorded,
                Some(HandoverMessage::Go) | None => return Ok(turn),
                Some(_) => return Err(another_version()),
            }
        }
    }

    /// Reports that this process has the ledger, and waits for the message to serve.
    pub(in crate::cli::serve) fn await_serve(&mut self) -> io::Result<()> {
        // If the predecessor has died, the next read detects it.
        let _ = HandoverMessage::Taken.write(&self.channel);
        match self.next()? {
            Some(HandoverMessage::Serve) | None => Ok(()),
            Some(_) => Err(another_version()),
        }
    }

    /// Reports to the predecessor why this process cannot continue.
    pub(in crate::cli::serve) fn fail(&self, why: &str) {
        // A predecessor that has died needs no report.
        let _ = HandoverMessage::Failed(why.to_string()).write(&self.channel);
    }

    /// Starts a thread that takes the predecessor's rows; returns the sender for the number of committed rows.
    pub(in crate::cli::serve) fn follow(self, mailbox: Mailbox<ReactorMessage<Gateway>>) -> io::Result<Sender<u64>> {
        let (tell, safe) = channel::<u64>();
        let HandoverReceiver { lines, channel } = self;
        let follow = move || {
            for line in lines.lines().map_while(Result::ok) {
                if let Some(HandoverMessage::Row(row)) = HandoverMessage::read(&line) {
                    // The predecessor counts its rows, so none may be lost. The predecessor waits meanwhile.
                    mailbox.send_patiently(ReactorMessage::Notice(Notice::Inherited(row)));
                }
            }
            mailbox.send_patiently(ReactorMessage::Notice(Notice::PredecessorLeft));
        };
        start_thread("predecessor", Box::new(follow))?;
        let answer = move || {
            let mut out = BufWriter::new(channel);
            while let Ok(rows) = safe.recv() {
                if HandoverMessage::Safe(rows).write(&mut out).and_then(|()| out.flush()).is_err() {
                    return;
                }
            }
        };
        start_thread("answer", Box::new(answer))?;
        Ok(tell)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::Shutdown;

    fn receiver() -> (HandoverReceiver, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (HandoverReceiver::new(ours).unwrap(), theirs)
    }

    /// Any version must be able to read the version in the first line of any other.
    #[test]
    fn first_line_names_the_version() {
        let (mut receiver, mut theirs) = receiver();
        theirs.shutdown(Shutdown::Write).unwrap();
        assert!(receiver.await_turn().unwrap().running.is_empty());
        drop(receiver);
        let mut said = String::new();
        theirs.read_to_string(&mut said).unwrap();
        assert_eq!(said, format!("{{\"ready\":{VERSION}}}\n"));
    }

    #[test]
    fn lines_of_another_version_are_not_misread() {
        for line in ["go\n", "running 00 x 1 2\n", "{\"running\":{}}\n", "{\"row\":{\"r\":\"00\"}}\n", "\"serve\"\n"] {
            let (mut receiver, mut theirs) = receiver();
            theirs.write_all(line.as_bytes()).unwrap();
            theirs.shutdown(Shutdown::Write).unwrap();
            assert!(receiver.await_turn().is_err(), "{line}");
        }
    }

    #[test]
    fn successor_serves_when_permitted_or_when_the_predecessor_dies() {
        for (line, serves) in [("\"serve\"\n", true), ("", true), ("\"go\"\n", false), ("{\"nonsense\":1}\n", false)] {
            let (mut receiver, mut theirs) = receiver();
            theirs.write_all(line.as_bytes()).unwrap();
            theirs.shutdown(Shutdown::Write).unwrap();
            assert_eq!(receiver.await_serve().is_ok(), serves, "{line}");
        }
    }
}
