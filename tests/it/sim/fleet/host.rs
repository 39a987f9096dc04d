//! A host of the fleet: a gateway with its clients and provider, the real work of its ledger thread, and faults of
//! both.

use super::super::pair::Process;
use super::line::{Fate, Ledger, Line, Store};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use tollgate::base::rng::Rng;
use tollgate::base::seam::Core;
use tollgate::base::time::{Mono, Now};
use tollgate::gateway::Gateway;
use tollgate::gateway::orders::{Notice, Order};
use tollgate::policy::keys::KeyRecord;
use tollgate::policy::ledger::LedgerNotice;
use tollgate::policy::ledger::Use;
use tollgate::policy::meter::Lease;
use tollgate::store::follow::KeysSeen;
use tollgate::store::remote::Speaker;
use tollgate::store::shared::{SharedThread, Task};
use tollgate::store::writer_clocks::FoldGuard;

/// Time for which a thread collects records before it sends them, as in `io::batch_queue`, in microseconds.
const TICK: u64 = 25_000;
/// Timeout for answers of the ledger, in microseconds.
const TIMEOUT: u64 = 2_000_000;

thread_local! {
    static WATCH: Cell<u64> = const { Cell::new(0) };
}

/// The monotonic clock of the host that currently runs.
pub fn watch() -> Mono {
    Mono(WATCH.get())
}

/// A round trip to the ledger that is in progress.
struct Flight {
    arrives: u64,
    /// Fate of the round, once it is known.
    fate: Option<Fate>,
    tasks: Vec<Task>,
}

/// Faults that affect a host at a moment.
#[derive(Clone, Default, Debug)]
pub struct Weather {
    /// True if the ledger is stopped.
    pub stopped: bool,
    /// Delay of the host in microseconds.
    pub slow: u64,
    /// True if the host is cut off from the ledger.
    pub split: bool,
    /// True if answers are lost occasionally.
    pub flaky: bool,
}

/// Number of admissions by window, for the only account with limits.
type Windows = BTreeMap<(u64, u64), i64>;

pub struct Host {
    pub process: Process,
    thread: SharedThread<Store, Box<dyn Fn(LedgerNotice)>>,
    pub line: Rc<Line>,
    ledger: Rc<RefCell<Ledger>>,
    pub writer: String,
    told: Rc<RefCell<Vec<LedgerNotice>>>,
    tasks: Vec<Task>,
    notices: VecDeque<(u64, LedgerNotice)>,
    flight: Option<Flight>,
    /// Time when the next round is due, and time before which none may start.
    next: u64,
    free: u64,
    durable: bool,
    pub paused: u64,
    /// Stale clock that the host uses in its next iteration.
    pub stale: Option<u64>,
    /// Time and window of each unreported admission, and the number of admissions removed from the front.
    pub unreported: VecDeque<(u64, (u64, u64))>,
    taken: u64,
    pub admitted: Windows,
    pub rows: Vec<[u8; 16]>,
    /// Longest time for which a use was unreported when another one followed.
    pub oldest: u64,
    pub took: u64,
    pub failures: u64,
}

/// Returns the window of the account with limits.
fn window(lease: &Lease) -> (u64, u64) {
    let of = |account: &str| lease.parts.iter().find(|part| *part.account == *account).map(|part| part.bounds);
    let (start, end) = of("labs/window").or_else(|| of("/window")).unwrap_or_default();
    (start.0, end.0)
}

impl Host {
    /// Starts a host. `make` creates its gateway.
    pub fn new(
        ledger: &Rc<RefCell<Ledger>>,
        line: Rc<Line>,
        keys: Vec<KeyRecord>,
        durable: bool,
        at: u64,
        make: impl FnOnce(Now) -> Gateway,
    ) -> Host {
        let names = || ledger.borrow_mut().name();
        let speaker = Speaker { host: names(), writer: names() };
        let (writer, told) = (speaker.writer.clone(), Rc::new(RefCell::new(Vec::new())));
        let heard = told.clone();
        let tell: Box<dyn Fn(LedgerNotice)> = Box::new(move |one| heard.borrow_mut().push(one));
        // A host reads the keys before it serves, and thereby the ledger's clock.
        line.followed.set(ledger.borrow().server.now.saturating_sub(line.mono(at).0 / 1000).max(1));
        let epoch = ledger.borrow().epoch.clone();
        let store = Store { line: line.clone(), ledger: ledger.clone(), keys, epoch, connected: false };
        let process = Process::new(make(Now { mono: line.mono(at), unix: line.unix(at) }));
        Host {
            process,
            thread: SharedThread::new(store, speaker, FoldGuard::default(), KeysSeen::default(), tell),
            line,
            ledger: ledger.clone(),
            writer,
            told,
            tasks: Vec::new(),
            notices: VecDeque::new(),
            flight: None,
            next: at,
            free: at,
            durable,
            paused: 0,
            stale: None,
            unreported: VecDeque::new(),
            taken: 0,
            admitted: Windows::new(),
            rows: Vec::new(),
            oldest: 0,
            took: 0,
            failures: 0,
        }
    }

    /// Returns the clock of the host.
    fn now(&self, at: u64) -> Now {
        let at = self.stale.unwrap_or(at);
        Now { mono: self.line.mono(at), unix: self.line.unix(at) }
    }

    /// Returns true if input has arrived for the host, or a timer is due.
    pub fn is_awake(&self, at: u64) -> bool {
        let is_due = self.process.gateway.next_deadline().is_some_and(|due| due <= self.line.mono(at));
        is_due || self.stale.is_some() || self.notices.front().is_some_and(|(due, _)| *due <= at)
    }

    /// Handles input, runs `act`, then performs the effects.
    pub fn turn(&mut self, at: u64, act: impl FnOnce(&mut Process, Now)) -> Result<(), String> {
        if self.paused > at {
            return Ok(());
        }
        WATCH.set(self.line.mono(at).0);
        while self.notices.front().is_some_and(|(due, _)| *due <= at) {
            let now = self.now(at);
            let Some((_, told)) = self.notices.pop_front() else { break };
            self.failures += u64::from(matches!(told, LedgerNotice::Failed(_)));
            self.process.gateway.notice(Notice::Ledger(told), now);
        }
        let now = self.now(at);
        act(&mut self.process, now);
        self.process.settle(now)?;
        self.stale = None;
        let now = self.now(at);
        for _ in 0..100 {
            if self.process.gateway.next_deadline().is_none_or(|due| due > now.mono) {
                break;
            }
            self.process.gateway.expire(now);
            self.process.settle(now)?;
        }
        self.process.settle(now)?;
        self.give(at)
    }

    /// Passes the orders of the gateway to the thread.
    fn give(&mut self, at: u64) -> Result<(), String> {
        let orders = std::mem::take(&mut self.process.orders);
        let mut urgent = false;
        for order in orders {
            match order {
                Order::Uses(uses) => {
                    for one in uses {
                        urgent |= matches!(one, Use::Returned(_));
                        self.used(&one, at)?;
                        self.tasks.push(Task::Use(one));
                    }
                }
                Order::Rows(rows) => {
                    urgent |= self.durable;
                    self.rows.extend(rows.iter().map(|row| row.request));
                    self.tasks.extend(rows.into_iter().map(Task::Row));
                }
                Order::Asks(asks) => {
                    urgent = true;
                    self.tasks.extend(asks.into_iter().map(Task::Ask));
                }
                Order::Releases(releases) => self.tasks.extend(releases.into_iter().map(Task::Release)),
                Order::LookUp(ids) => {
                    urgent = true;
                    self.tasks.push(Task::LookUp(ids));
                }
                other => return Err(format!("unexpected task: {other:?}")),
            }
        }
        if !self.tasks.is_empty() {
            self.next = self.next.min(if urgent { at } else { at + TICK });
        }
        Ok(())
    }

    /// Records an admission, and checks that no expired grant is used.
    fn used(&mut self, one: &Use, at: u64) -> Result<(), String> {
        let ledger = self.ledger.borrow();
        let now = ledger.server.now;
        let lease = match one {
            Use::Took(number, _, lease) => match ledger.granted.get(&(self.writer.clone(), *number)) {
                Some(until) if now < *until => lease,
                until => {
                    return Err(format!(
                        "grant {number} of {} is used at {now}, but its end is {until:?}",
                        self.writer
                    ));
                }
            },
            Use::Served(_, lease) => lease,
            Use::Left(..) | Use::Returned(_) => return Ok(()),
        };
        let told = ledger.told.get(&self.writer).copied().unwrap_or(0);
        while self.taken < told && self.unreported.pop_front().is_some() {
            self.taken += 1;
        }
        self.oldest = self.oldest.max(self.unreported.front().map_or(0, |(since, _)| at - since));
        self.unreported.push_back((at, window(lease)));
        *self.admitted.entry(window(lease)).or_default() += 1;
        self.took += u64::from(matches!(one, Use::Took(..)));
        Ok(())
    }

    /// Returns for how long the oldest admission has been unreported, in microseconds.
    pub fn unreported_for(&self, at: u64) -> u64 {
        let told = self.ledger.borrow().told.get(&self.writer).copied().unwrap_or(0);
        let oldest = self.unreported.get((told - self.taken.min(told)) as usize);
        oldest.map_or(0, |(since, _)| at.saturating_sub(*since))
    }

    /// Returns the number of admissions that were never reported, by window.
    pub fn lost(&mut self) -> Windows {
        let told = self.ledger.borrow().told.get(&self.writer).copied().unwrap_or(0);
        let mut lost = Windows::new();
        for (_, window) in self.unreported.iter().skip((told - self.taken.min(told)) as usize) {
            *lost.entry(*window).or_default() += 1;
        }
        lost
    }

    /// Runs the thread at this moment: its round arrives at the ledger, or it starts one.
    pub fn work(&mut self, at: u64, weather: &Weather, rng: &mut Rng) {
        if self.flight.as_ref().is_some_and(|flight| flight.arrives <= at) {
            return self.land(at, weather, rng);
        }
        if self.paused > at || self.flight.is_some() || at < self.free || at < self.next {
            return;
        }
        self.line.asked.set(at);
        let tasks = std::mem::take(&mut self.tasks);
        let way = weather.slow / 2 + 50 + rng.below(400);
        self.flight = Some(Flight { arrives: at + way, fate: None, tasks });
    }

    /// Pauses the process. A round that is being sent may be delayed until the end of the pause.
    pub fn pause(&mut self, at: u64, until: u64, rng: &mut Rng) {
        self.paused = until;
        self.stale = (rng.below(2) == 0).then_some(at);
        if let Some(flight) = &mut self.flight
            && rng.below(2) == 0
        {
            flight.arrives = flight.arrives.max(until);
        }
    }

    fn land(&mut self, at: u64, weather: &Weather, rng: &mut Rng) {
        let Some(mut flight) = self.flight.take() else { return };
        let fate = match flight.fate {
            Some(fate) => fate,
            None if weather.stopped => Fate::Nowhere,
            None if weather.split => {
                let arrives = at.max(self.line.asked.get() + TIMEOUT);
                self.flight = Some(Flight { arrives, fate: Some(Fate::Nowhere), ..flight });
                return;
            }
            None if weather.flaky && rng.below(4) == 0 => Fate::Unheard(rng.below(4)),
            None if self.paused > at && rng.below(2) == 0 => Fate::Interrupted,
            None if weather.slow > 0 && rng.below(2) == 0 => Fate::Late(rng.below(3)),
            None => Fate::Answered,
        };
        let heard = (at + weather.slow / 2 + 50 + rng.below(400)).max(self.paused);
        self.line.heard.set(heard);
        self.line.is_heard.set(false);
        self.line.fate.set(fate);
        let wait = self.thread.round(&mut flight.tasks);
        let told = std::mem::take(&mut *self.told.borrow_mut());
        self.notices.extend(told.into_iter().map(|one| (heard, one)));
        (self.free, self.next) = (heard, heard + wait.as_micros() as u64);
        if !self.tasks.is_empty() {
            self.next = heard;
        }
    }

    /// Tells the host that others need the grants of an account.
    pub fn call_in(&mut self, account: &str, at: u64) {
        self.tasks.push(Task::Called(account.to_string()));
        self.next = self.next.min(at);
    }
}
