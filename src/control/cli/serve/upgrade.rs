//! Both sides of a hand-over, as threads around the channel of `io::upgrade`; `gateway::lifecycle::upgrade` defines the
//! meaning and the order. The messages, one [`HandoverMessage`] of JSON each:
//!
//! | process | line | when |
//! |---|---|---|
//! | new | `ready` | configuration, certificates, listeners are right, the ledger can be read; names its [`VERSION`] |
//! | old | `listening` | the listeners in its configuration |
//! | old | `running` | for every request that it still serves |
//! | old | `listed` | the models that providers list |
//! | old | `recorded` | failures by reason, and usual times to the first byte |
//! | old | `go` | the ledger is released, with every row committed |
//! | new | `taken` | it has the ledger, threads run: nothing can fail any more |
//! | new | `failed` | instead of any of its lines: it cannot continue, and why; it ends |
//! | old | `serve` | its listeners are closed: the new one serves |
//! | old | `row` | one of its requests has ended |
//! | new | `safe` | number of further rows committed to the ledger |
//!
//! If a process ends, the other one detects the end of the channel:
//!
//! | dies | before `go` | before `serve` | after it |
//! |---|---|---|---|
//! | new | the old one continues | the old one takes the ledger back and continues | the old one spills its rows and
//! ends |
//! | old | the new one serves | the new one serves | the new one continues |
//!
//! A successor that does not serve is killed (SIGKILL) before anything is taken back, so that never two of them serve.
//!
//! **Rows.** The old process keeps every row until `safe`. If the successor dies before that, the old one spills the
//! missing rows ([`crate::store::spill`]), and the next start reads them: another process may have the ledger by then.

mod receiver;
mod sender;

pub(super) use receiver::{HandoverReceiver, ReceivedLedger};
pub(super) use sender::HandoverSender;

use crate::gateway::counters::RecorderSums;
use crate::policy::config::Config;
use crate::policy::discover::DiscoveredModel;
use crate::policy::row::{Row, Running};
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::net::SocketAddr;

/// Version of these lines. Processes with different versions do not hand over to each other: the old one stays.
const VERSION: u32 = 5;

/// A message between the processes.
#[derive(Serialize, Deserialize, PartialEq, Debug)]
#[serde(rename_all = "lowercase")]
enum HandoverMessage {
    Ready(u32),
    Listening(Listening),
    Running(Running),
    Listed(Vec<DiscoveredModel>),
    Recorded(Box<RecorderSums>),
    Go,
    Taken,
    Failed(String),
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

    /// `None` unless it is a valid line.
    fn read(text: &str) -> Option<HandoverMessage> {
        serde_json::from_str(text).ok()
    }
}

/// Settings that an upgrade keeps. Inherited sockets stay open, so a successor warns if its own settings differ. The
/// usage of running requests belongs to the predecessor's ledger, so a successor with another one fails.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Listening {
    clients: Vec<SocketAddr>,
    admin: Option<String>,
    /// URL of the ledger, without credentials.
    ledger: String,
}

impl Listening {
    pub(super) fn from_config(config: &Config) -> Listening {
        Listening {
            clients: config.server.listen.clone(),
            admin: config.server.admin_listen.as_ref().map(ToString::to_string),
            ledger: config.store.url.to_string(),
        }
    }

    /// Fails if this process would use another ledger than its predecessor.
    pub(super) fn check(&self, before: &Listening) -> Result<(), String> {
        let (now, before) = (&self.ledger, &before.ledger);
        if now == before {
            return Ok(());
        }
        Err(format!(
            "store.url has changed from {before} to {now}, and an upgrade keeps the ledger: restart to change it"
        ))
    }

    /// Warnings for the operator about listener settings that are ignored because they differ from the predecessor's
    /// `before`.
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
        // An admin listener that the predecessor did not have has been opened.
        compare("admin_listen", before.admin.is_some() && self.admin != before.admin);
        texts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_is_one_line_and_survives_a_round_trip() {
        let at: SocketAddr = ([127, 0, 0, 1], 80).into();
        let listening = Listening { clients: vec![at], admin: None, ledger: "sqlite:t.db".to_string() };
        let lines = [
            HandoverMessage::Listed(vec![("p".into(), "m".to_string(), Some(8192))]),
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
            ledger: "sqlite:t.db".to_string(),
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
