//! Both ends of handing over, as threads around the channel of `io::upgrade`; `gateway::lifecycle::upgrade` defines the
//! meaning and the order. The messages, one [`HandoverMessage`] of JSON each:
//!
//! | process | line | when |
//! |---|---|---|
//! | new | `ready` | configuration, certificates, listeners are right, the ledger can be read; names its [`VERSION`] |
//! | old | `listening` | what its configuration says of listeners |
//! | old | `running` | for every request that it still serves |
//! | old | `go` | the ledger is released, with every row committed |
//! | new | `taken` | the ledger is its own, counters are read, threads run: nothing can fail any more |
//! | new | `failed` | instead of any of its lines: it cannot go on, and why; it ends |
//! | old | `counted` | what the metrics have counted so far; and again whenever one of its last requests has ended |
//! | old | `serve` | its listeners are closed: the new one serves |
//! | old | `row` | one of its requests has ended |
//! | new | `safe` | so many more of those rows are in the ledger |
//!
//! The end of the channel says that the other process has ended:
//!
//! | dies | before `go` | before `serve` | after it |
//! |---|---|---|---|
//! | new | the old one goes on | the old one takes the ledger back and goes on | the old one writes its rows and ends |
//! | old | the new one serves | the new one serves | the new one goes on |
//!
//! A successor that does not serve is killed (SIGKILL) before anything is taken back, so that two never serve.
//!
//! **Rows.** The old one keeps every row until `safe`. Where the successor ends before, the old one writes those that
//! the ledger does not have yet whenever no other process has it, and lets go of it each time: a gateway that is
//! started meanwhile must not find it taken for long. What is left at the end is spilled (`store::spill`).

mod receiver;
mod sender;

pub(super) use receiver::{HandoverReceiver, ReceivedLedger};
pub(super) use sender::HandoverSender;

use crate::policy::config::Config;
use crate::policy::counters::Counters;
use crate::policy::row::{Row, Running};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::net::SocketAddr;

/// Version of these lines. Processes with different versions do not hand over to each other: the old one stays.
const VERSION: u32 = 4;

/// A message between the processes.
#[derive(Serialize, Deserialize, PartialEq, Debug)]
#[serde(rename_all = "lowercase")]
enum HandoverMessage {
    Ready(u32),
    Listening(Listening),
    Running(Running),
    Go,
    Taken,
    Failed(String),
    Counted(Box<Counters>),
    Serve,
    Row(Row),
    Safe(u64),
}

impl HandoverMessage {
    fn write(&self, mut out: impl Write) -> io::Result<()> {
        let mut text = serde_json::to_vec(self)?;
        text.push(b'\n');
        out.write_all(&text)
    }

    /// `None` for anything but a line.
    fn read(text: &str) -> Option<HandoverMessage> {
        serde_json::from_str(text).ok()
    }
}

/// Listeners in a configuration. Inherited sockets stay, so a successor warns if they differ.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Listening {
    clients: Vec<SocketAddr>,
    admin: Option<String>,
}

impl Listening {
    pub(super) fn of(config: &Config) -> Listening {
        Listening {
            clients: config.server.listen.clone(),
            admin: config.server.admin_listen.as_ref().map(ToString::to_string),
        }
    }

    /// Warnings for the operator if the predecessor's settings were `before`, since these settings are ignored.
    pub(super) fn warnings(&self, before: &Listening) -> Vec<String> {
        let mut texts = Vec::new();
        let mut compare = |name: &str, differs: bool| {
            if differs {
                texts.push(format!(
                    "server.{name} has changed, and an upgrade keeps the sockets: restart to change them"
                ));
            }
        };
        compare("listen", self.clients != before.clients);
        // One that was not there before has been opened.
        compare("admin_listen", before.admin.is_some() && self.admin != before.admin);
        texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_comes_back_as_it_was_and_is_one_line() {
        let at: SocketAddr = ([127, 0, 0, 1], 80).into();
        let listening = Listening { clients: vec![at], admin: None };
        let counted = HandoverMessage::Counted(Box::default());
        let lines = [
            counted,
            HandoverMessage::Ready(3),
            HandoverMessage::Listening(listening),
            HandoverMessage::Go,
            HandoverMessage::Taken,
            HandoverMessage::Serve,
            HandoverMessage::Safe(7),
        ];
        for line in lines.into_iter().chain([HandoverMessage::Failed("two\nlines".to_string())]) {
            let mut text = Vec::new();
            line.write(&mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert_eq!((text.matches('\n').count(), HandoverMessage::read(&text)), (1, Some(line)));
        }
    }

    #[test]
    fn listeners_that_an_upgrade_ignores_are_named() {
        let at = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let listening = |clients, admin: Option<SocketAddr>| Listening {
            clients: vec![at(clients)],
            admin: admin.map(|admin| admin.to_string()),
        };
        let names = |now: &Listening, before: &Listening| {
            let texts = now.warnings(before);
            texts.iter().map(|text| text.split(' ').next().unwrap_or_default().to_string()).collect::<Vec<_>>()
        };
        let before = listening(1, Some(at(2)));
        assert!(names(&before, &before).is_empty());
        assert_eq!(names(&listening(3, Some(at(2))), &before), ["server.listen"]);
        assert_eq!(names(&listening(1, None), &before), ["server.admin_listen"]);
        assert!(names(&before, &listening(1, None)).is_empty());
    }
}
