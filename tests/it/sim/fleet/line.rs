//! The path from one host's thread to the ledger: connections, the ledger's epoch, the fate of each round, and the
//! host's clocks.

use super::server::Server;
use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use tollgate::base::time::{Mono, Unix};
use tollgate::io::clock;
use tollgate::policy::keys::{KeyId, KeyRecord};
use tollgate::store::api::StoreError;
use tollgate::store::follow::{KeyChanges, KeySource, KeysSeen};
use tollgate::store::remote::{Done, Holds, RemoteCommand, Speaker};
use tollgate::store::shared::SharedStore;
use tollgate::store::watch::WatchedLedger;
use tollgate::store::writer_clocks::WriterClocks;

/// Fate of a round.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The server executes and answers it.
    Answered,
    /// This number of commands arrive, and no answer returns.
    Unheard(u64),
    /// The server executes it. The process was paused while it waited for the answer, and sends the round again.
    Interrupted,
    /// The server executes all commands, but only this number of questions in time.
    Late(u64),
    /// The round is lost.
    Nowhere,
}

/// The ledger, and facts about it for the checks.
#[derive(Default)]
pub struct Ledger {
    pub server: Server,
    /// Id of the ledger; `None` while it is emptied.
    pub epoch: Option<String>,
    /// Id of an adopted ledger, which hosts accept when they connect again.
    pub adopted: Option<String>,
    /// Ends of the grants, in milliseconds, by writer and number.
    pub granted: BTreeMap<(String, u64), u64>,
    /// Number of reported admissions, by writer.
    pub told: BTreeMap<String, u64>,
    /// Number of refusals of a host because of the epoch.
    pub strange: u64,
    /// Number of recalls of grants.
    pub called: u64,
    names: u64,
}

/// The clocks of one host, and the fate of its current round.
pub struct Line {
    /// Lead of the monotonic clock, in microseconds.
    pub ahead: u64,
    /// Wall clock at the true time 0, in milliseconds.
    pub wall: Cell<u64>,
    /// True times when the current round started and when its answer arrives.
    pub asked: Cell<u64>,
    pub heard: Cell<u64>,
    pub is_heard: Cell<bool>,
    /// Clock as in `io::clock`.
    pub followed: Cell<u64>,
    pub fate: Cell<Fate>,
}

impl Line {
    pub fn mono(&self, at: u64) -> Mono {
        Mono(at + self.ahead)
    }

    pub fn unix(&self, at: u64) -> Unix {
        match self.followed.get() {
            0 => Unix(self.wall.get() + at / 1000),
            followed => Unix(followed + self.mono(at).0 / 1000),
        }
    }

    fn moment(&self) -> u64 {
        if self.is_heard.get() { self.heard.get() } else { self.asked.get() }
    }
}

/// State of one host's thread.
pub struct Store {
    pub line: Rc<Line>,
    pub ledger: Rc<RefCell<Ledger>>,
    pub keys: Vec<KeyRecord>,
    pub epoch: Option<String>,
    pub connected: bool,
}

fn error(why: &str) -> StoreError {
    StoreError::Shared("the ledger".to_string(), why.to_string())
}

impl Store {
    /// Returns the ledger if it can be reached and has the known epoch.
    fn reach(&mut self) -> Result<RefMut<'_, Ledger>, StoreError> {
        self.line.is_heard.set(true);
        if self.line.fate.get() == Fate::Nowhere {
            self.connected = false;
            return Err(error("no answer in time"));
        }
        let mut ledger = self.ledger.borrow_mut();
        let known = match (&self.epoch, &ledger.epoch) {
            (Some(known), Some(epoch)) => known == epoch || (!self.connected && ledger.adopted.as_ref() == Some(epoch)),
            (known, epoch) => known.is_none() && epoch.is_some(),
        };
        if !known {
            ledger.strange += 1;
            self.connected = false;
            return Err(error("emptied or replaced"));
        }
        if !self.connected {
            (self.connected, self.epoch) = (true, ledger.epoch.clone());
            follow(&self.line, &ledger);
        }
        Ok(ledger)
    }

    /// Runs an operation that is a single command.
    fn call<T>(&mut self, call: impl FnOnce(&mut Ledger) -> T) -> Result<T, StoreError> {
        let fate = self.line.fate.get();
        let mut ledger = self.reach()?;
        if fate == Fate::Unheard(0) {
            drop(ledger);
            return Err(self.lose());
        }
        let done = call(&mut ledger);
        drop(ledger);
        if let Fate::Unheard(_) = fate { Err(self.lose()) } else { Ok(done) }
    }

    fn lose(&mut self) -> StoreError {
        self.connected = false;
        self.line.fate.set(Fate::Nowhere);
        error("broken")
    }
}

fn follow(line: &Line, ledger: &Ledger) {
    let (asked, heard) = (line.mono(line.asked.get()), line.mono(line.heard.get()));
    line.followed.set(clock::followed(line.followed.get(), Unix(ledger.server.now), asked, heard));
}

impl KeySource for Store {
    fn key_changes(&mut self, seen: &mut KeysSeen) -> Result<KeyChanges, StoreError> {
        let before = seen.last.replace((1, String::new()));
        self.call(|_| if before.is_none() { KeyChanges::Unknown } else { KeyChanges::None })
    }

    fn key_piece(&mut self, _: &mut String) -> Result<Vec<KeyRecord>, StoreError> {
        let keys = self.keys.clone();
        self.call(|_| keys)
    }

    fn take_odd(&mut self) -> Vec<String> {
        Vec::new()
    }
}

impl WatchedLedger for Store {
    fn find_keys(&mut self, ids: &[KeyId]) -> Result<Vec<KeyRecord>, StoreError> {
        let found = self.keys.iter().filter(|key| ids.contains(&key.id)).cloned().collect();
        self.call(|_| found)
    }

    fn fold(&mut self, _: Unix, _: usize) -> Result<u64, StoreError> {
        Ok(0)
    }

    fn writer_clocks(&mut self) -> Result<WriterClocks, StoreError> {
        self.call(|_| WriterClocks::default())
    }

    fn hold_fold(&mut self, _: Option<Unix>) -> Result<(), StoreError> {
        Ok(())
    }
}

impl SharedStore for Store {
    fn is_connected(&self) -> bool {
        self.connected
    }

    fn epoch(&self) -> Option<&str> {
        self.epoch.as_deref()
    }

    fn announce(&mut self, speaker: &Speaker, old: &str, holds: &Holds) -> Result<(), StoreError> {
        self.call(|ledger| ledger.server.announce(speaker, old, holds))
    }

    fn renew(&mut self, speaker: &Speaker) -> Result<bool, StoreError> {
        self.call(|ledger| ledger.server.renew(&speaker.host))
    }

    fn leave(&mut self, speaker: &Speaker) -> Result<(), StoreError> {
        self.call(|ledger| ledger.server.end(&speaker.host))
    }

    fn send(&mut self, speaker: &Speaker, commands: &[RemoteCommand<'_>]) -> Result<Vec<Done>, StoreError> {
        let fate = self.line.fate.get();
        let mut ledger = self.reach()?;
        let most = if let Fate::Unheard(most) = fate { most as usize } else { commands.len() };
        let mut in_time = if let Fate::Late(most) = fate { most } else { u64::MAX };
        let mut all = Vec::new();
        for command in commands.iter().take(most) {
            if let RemoteCommand::Ask(_) = command {
                if in_time == 0 {
                    all.push(Done::Late);
                    continue;
                }
                in_time -= 1;
            }
            let done = ledger.server.command(speaker, command);
            let now = ledger.server.now;
            match (command, &done) {
                (_, Done::Answer(answer)) => {
                    if let Some(grant) = answer.grant {
                        ledger.granted.insert((speaker.writer.clone(), grant.number), now + 2000);
                    }
                }
                (RemoteCommand::Return(number), _) => drop(ledger.granted.remove(&(speaker.writer.clone(), *number))),
                (RemoteCommand::Rows(_, _, uses), Done::Done | Done::Ended) => {
                    *ledger.told.entry(speaker.writer.clone()).or_default() += uses.len() as u64;
                }
                _ => {}
            }
            all.push(done);
        }
        drop(ledger);
        match fate {
            Fate::Unheard(_) => Err(self.lose()),
            Fate::Interrupted => {
                self.connected = false;
                self.line.fate.set(Fate::Answered);
                Err(StoreError::Interrupted("the ledger".to_string()))
            }
            Fate::Late(_) => {
                self.line.fate.set(Fate::Answered);
                match all.iter().all(|done| *done == Done::Late) {
                    true => Err(StoreError::Interrupted("the ledger".to_string())),
                    false => Ok(all),
                }
            }
            _ => Ok(all),
        }
    }

    fn last_batch(&mut self, speaker: &Speaker) -> Result<u64, StoreError> {
        self.call(|ledger| ledger.server.last_batch(&speaker.writer))
    }

    fn follow_clock(&mut self) -> Result<(), StoreError> {
        let line = self.line.clone();
        self.call(|ledger| follow(&line, ledger))
    }

    fn watch(&self) -> Mono {
        self.line.mono(self.line.moment())
    }

    fn unix(&self) -> Unix {
        self.line.unix(self.line.moment())
    }

    fn fresh_name(&mut self) -> io::Result<String> {
        Ok(self.ledger.borrow_mut().name())
    }
}

impl Ledger {
    /// Returns a unique host name.
    pub fn name(&mut self) -> String {
        self.names += 1;
        format!("{:024x}", self.names)
    }
}
