//! Three hosts with one ledger: gateways with the real work of their ledger threads, a model of the ledger's scripts,
//! and faults of the hosts, of the connections between them and the ledger, and of the ledger itself.
//!
//! Invariants at every moment: over all hosts no window counts more than its limit, except requests that a host
//! admitted by a grant and could not report before the end of the grant (none without faults); no host uses a grant
//! after its end by the ledger's clock; no host uses an emptied ledger until it is adopted. At the end, when all faults
//! are over: every admission is counted, every usage record of a host that was not killed exists once, and the
//! remainder of each limit can be used up completely.

pub mod line;
pub mod server;

mod host;

use super::pair::Process;
use crate::support::setting::{KeyRing, Setting, begin};
use host::{Host, Weather};
use line::{Fate, Ledger, Line};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use tollgate::base::rng::Rng;
use tollgate::base::time::{Now, Unix};
use tollgate::gateway::{Gateway, Start};
use tollgate::policy::config::Config;
use tollgate::store::remote::LeasePlace;

const HOSTS: usize = 3;
/// Steps of one seed. No fault starts in the last fifty.
pub const STEPS: u64 = 300;
const QUIET: u64 = 50;
/// Maximum time until a host reports an admission without faults, in microseconds.
const WRITE_BEHIND: u64 = 50_000;
/// Time after a fault within which it may still have an effect, in microseconds: a lease.
const SETTLED: u64 = 15_000_000;
/// Limits of the group that contains all keys.
const REQUESTS: u64 = 100;
const TOKENS: u64 = 1200;
const BODY: &str = "{\"model\":\"small\",\"max_tokens\":8,\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}";
/// Tokens of an answer, as in `pair`.
const USED: u64 = 10;

/// Counts of a run.
#[derive(Default, Debug)]
pub struct Tally {
    pub admitted: u64,
    /// Admissions by grants.
    pub granted: u64,
    pub refused: u64,
    pub unavailable: u64,
    pub called: u64,
    /// Admissions reported after the end of their grant.
    pub late: u64,
    /// Admissions never reported, since the host was killed.
    pub lost: u64,
    /// Longest time for which a use was unreported when another one followed, in microseconds.
    pub oldest: u64,
    pub pauses: u64,
    /// Pauses of a host with unreported admissions and without an earlier fault.
    pub well_paused: u64,
    pub jumps: u64,
    pub splits: u64,
    pub slow: u64,
    pub stops: u64,
    pub emptied: u64,
    pub strange: u64,
    pub kills: u64,
    pub flaky: u64,
}

impl Tally {
    /// Returns true if every kind of event has occurred.
    pub fn is_rich(&self) -> bool {
        let Tally { admitted, granted, refused, unavailable, called, lost, .. } = *self;
        let Tally { pauses, jumps, splits, slow, stops, emptied, strange, kills, flaky, .. } = *self;
        let came = [admitted, granted, refused, unavailable, called, lost];
        let faults = [pauses, jumps, splits, slow, stops, emptied, strange, kills, flaky];
        came.iter().chain(&faults).all(|count| *count > 0)
    }
}

struct World {
    rng: Rng,
    seed: u64,
    /// True time in microseconds.
    at: u64,
    ledger: Rc<RefCell<Ledger>>,
    hosts: Vec<Option<Host>>,
    /// Time when each killed host is started again.
    starts: Vec<u64>,
    weather: Vec<Weather>,
    /// Time until which the ledger is stopped or slow, and until which each host is cut off or loses answers.
    stopped: u64,
    slow: u64,
    split: Vec<u64>,
    flaky: Vec<u64>,
    /// Time when an emptied ledger is adopted.
    adopts: Option<u64>,
    keys: KeyRing,
    config: Arc<Config>,
    durable: bool,
    limited: bool,
    /// Admissions by hosts that were killed, and how many of them were never reported, by window.
    admitted: BTreeMap<(u64, u64), i64>,
    lost: BTreeMap<(u64, u64), i64>,
    rows: Vec<[u8; 16]>,
    /// True for a fleet without faults.
    calm: bool,
    oldest: u64,
    /// The last answer 503.
    why: String,
    /// Time after which no earlier fault has an effect.
    well: u64,
}

fn request(key: &str) -> Vec<u8> {
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\nconnection: close\r\nauthorization: Bearer";
    format!("{head} {key}\r\ncontent-length: {}\r\n\r\n{BODY}", BODY.len()).into_bytes()
}

fn setting(seed: u64, durable: bool) -> Setting {
    let mut setting = Setting::default();
    let length = if seed % 5 == 4 { "20s" } else { "31d" };
    let limit = match seed % 4 {
        0 | 1 => format!("requests = {REQUESTS}"),
        2 => format!("tokens = {TOKENS}"),
        // An input token costs a thousand nano-dollars, an output token four thousand.
        _ => format!("budget = {}", TOKENS as f64 * 2.2e-6),
    };
    for (section, line) in [
        ("store", "url = \"redis://10.0.0.9/0\""),
        ("store", "hosts = 3"),
        ("store", if durable { "durability = \"before-reply\"" } else { "durability = \"write-behind\"" }),
        ("plan team", "tokens = 0"),
        ("plan team", "requests = 0"),
        ("plan own", "requests = 70"),
        ("plan own", "window = \"31d\""),
        ("group labs", &limit),
        ("group labs", &format!("window = \"{length}\"")),
    ] {
        setting.set(section, line);
    }
    setting
}

impl World {
    fn new(seed: u64) -> World {
        let mut keys = KeyRing::default();
        keys.issue("a", &["group=labs"]);
        keys.issue("b", &["plan=own", "group=labs"]);
        let durable = seed.is_multiple_of(3);
        let mut ledger = Ledger::default();
        (ledger.epoch, ledger.server.now) = (Some("first".to_string()), begin().unix.0);
        let mut world = World {
            rng: Rng::from_u64(seed),
            seed,
            at: 0,
            ledger: Rc::new(RefCell::new(ledger)),
            hosts: Vec::new(),
            starts: vec![0; HOSTS],
            weather: vec![Weather::default(); HOSTS],
            stopped: 0,
            slow: 0,
            split: vec![0; HOSTS],
            flaky: vec![0; HOSTS],
            adopts: None,
            keys,
            config: Arc::new(setting(seed, durable).high()),
            durable,
            limited: seed % 4 < 2,
            admitted: BTreeMap::new(),
            lost: BTreeMap::new(),
            rows: Vec::new(),
            calm: seed % 11 == 10,
            oldest: 0,
            why: String::new(),
            well: 0,
        };
        for index in 0..HOSTS {
            let host = world.host(index);
            world.hosts.push(Some(host));
        }
        world
    }

    fn host(&mut self, index: usize) -> Host {
        let line = Line {
            ahead: 1_000_000 * (1 + 7 * index as u64 + self.rng.below(50)),
            wall: Cell::new(begin().unix.0),
            asked: Cell::new(0),
            heard: Cell::new(0),
            is_heard: Cell::new(false),
            followed: Cell::new(0),
            fate: Cell::new(Fate::Answered),
        };
        let (config, keys) = (self.config.clone(), self.keys.records.clone());
        let seed = self.rng.next_u64().to_le_bytes().repeat(4).try_into().unwrap_or_default();
        let make = |now: Now| {
            let watch: Option<fn() -> _> = Some(host::watch);
            Gateway::new(config, Start { seed, client_listeners: 1, keys: keys.into(), watch, ..Start::default() }, now)
        };
        Host::new(&self.ledger, Rc::new(line), self.keys.records.clone(), self.durable, self.at, make)
    }

    fn step(&mut self, sum: &mut Tally, left: u64) -> Result<(), String> {
        if left > QUIET && !self.calm && self.rng.below(25) == 0 {
            self.fault(sum)?;
        }
        let micros = match self.rng.below(40) {
            0 => self.rng.below(400_000),
            1..=9 => self.rng.below(30_000),
            _ => self.rng.below(3000),
        };
        // Small steps let rounds arrive close to their due time.
        for _ in 0..micros.div_ceil(10_000).max(1) {
            self.pass(micros.min(10_000))?;
        }
        let who = self.rng.below(HOSTS as u64) as usize;
        let key = if self.rng.below(3) == 0 { "b" } else { "a" };
        let calls = 1 + self.rng.below(3);
        self.serve(who, key, calls, sum)
    }

    /// Clients of a host send requests, and its provider answers.
    fn serve(&mut self, who: usize, key: &str, calls: u64, sum: &mut Tally) -> Result<(), String> {
        let (request, at) = (request(&self.keys.texts[key]), self.at);
        let Some(host) = &mut self.hosts[who] else { return Ok(()) };
        if calls == 0 && host.process.callers.is_empty() && host.process.heard.is_empty() && !host.is_awake(at) {
            return Ok(());
        }
        host.turn(at, |process: &mut Process, now| {
            for _ in 0..calls {
                if process.callers.len() < 8 {
                    process.ask(request.clone(), now);
                }
            }
            (0..8).for_each(|which| process.say(which, true, now));
        })?;
        let parts = 3 * host.process.calls.len() as u64;
        host.turn(at, |process, now| (0..parts).for_each(|which| process.provide(which, now)))?;
        for answer in host.process.heard.drain(..) {
            match answer.get(9..12) {
                Some(b"200") => sum.admitted += 1,
                Some(b"429" | b"402" | b"403") => sum.refused += 1,
                Some(b"503") => {
                    sum.unavailable += 1;
                    self.why = String::from_utf8_lossy(&answer).into_owned();
                }
                _ => {
                    return Err(format!("an unexpected answer of the gateway: {:?}", String::from_utf8_lossy(&answer)));
                }
            }
        }
        self.holds()
    }

    /// Advances time: rounds arrive, threads run, and timers fire.
    fn pass(&mut self, micros: u64) -> Result<(), String> {
        self.at += micros;
        let at = self.at;
        self.ledger.borrow_mut().server.now = begin().unix.0 + at / 1000;
        if self.adopts.is_some_and(|due| due <= at) {
            let mut ledger = self.ledger.borrow_mut();
            let epoch = at.to_string();
            (ledger.epoch, ledger.adopted, self.adopts) = (Some(epoch.clone()), Some(epoch), None);
        }
        let first = self.rng.below(HOSTS as u64) as usize;
        for index in (0..HOSTS).map(|index| (first + index) % HOSTS) {
            if self.hosts[index].is_none() && self.starts[index] <= at && self.adopts.is_none() && self.stopped <= at {
                let host = self.host(index);
                self.hosts[index] = Some(host);
            }
            let weather = Weather {
                stopped: self.stopped > at,
                slow: if self.slow > at { 200_000 } else { 0 },
                split: self.split[index] > at,
                flaky: self.flaky[index] > at,
            };
            let Some(host) = &mut self.hosts[index] else { continue };
            host.work(at, &weather, &mut self.rng);
            if host.is_awake(at) {
                host.turn(at, |_, _| {})?;
            }
            self.weather[index] = weather;
            self.call_in();
        }
        Ok(())
    }

    /// Forwards the accounts that were called in to all hosts.
    fn call_in(&mut self) {
        let calls = std::mem::take(&mut self.ledger.borrow_mut().server.calls);
        self.ledger.borrow_mut().called += calls.len() as u64;
        for account in calls {
            for (host, weather) in self.hosts.iter_mut().zip(&self.weather) {
                if let Some(host) = host.as_mut().filter(|_| !weather.split) {
                    host.call_in(&account, self.at);
                }
            }
        }
    }

    fn fault(&mut self, sum: &mut Tally) -> Result<(), String> {
        let (at, who) = (self.at, self.rng.below(HOSTS as u64) as usize);
        let long = at + 100_000 + self.rng.below(5_000_000);
        let (kind, was_well) = (self.rng.below(10), self.well <= at);
        self.well = self.well.max(long.max(at + 5_000_000) + SETTLED);
        match kind {
            0 | 1 => {
                sum.pauses += 1;
                let Some(host) = &mut self.hosts[who] else { return Ok(()) };
                let unreported = host.unreported_for(at);
                if was_well && unreported > WRITE_BEHIND {
                    return Err(format!(
                        "a host stops that has not reported a request admitted {unreported} us before"
                    ));
                }
                sum.well_paused += u64::from(was_well && unreported > 0);
                host.pause(at, at + 5_000_000, &mut self.rng);
            }
            2 => {
                sum.jumps += 1;
                let Some(host) = &self.hosts[who] else { return Ok(()) };
                let hour = 3_600_000;
                let wall = host.line.wall.get();
                host.line.wall.set(if self.rng.below(2) == 0 { wall + hour } else { wall - hour });
            }
            3 | 4 => (sum.splits, self.split[who]) = (sum.splits + 1, long),
            5 => (sum.slow, self.slow) = (sum.slow + 1, long),
            6 => (sum.stops, self.stopped) = (sum.stops + 1, long),
            7 if self.seed.is_multiple_of(7) && self.adopts.is_none() => {
                sum.emptied += 1;
                let mut ledger = self.ledger.borrow_mut();
                let now = ledger.server.now;
                ledger.server = server::Server::default();
                ledger.server.now = now;
                (ledger.epoch, self.adopts) = (None, Some(long));
            }
            8 => (sum.flaky, self.flaky[who]) = (sum.flaky + 1, long),
            9 => {
                sum.kills += 1;
                self.starts[who] = long;
                self.kill(who, sum);
            }
            _ => {}
        }
        Ok(())
    }

    /// Kills a host. Its unreported admissions are lost.
    fn kill(&mut self, who: usize, sum: &mut Tally) {
        let Some(mut host) = self.hosts[who].take() else { return };
        for (window, count) in host.lost() {
            sum.lost += count as u64;
            *self.lost.entry(window).or_default() += count;
        }
        self.note(&host, sum);
    }

    fn note(&mut self, host: &Host, sum: &mut Tally) {
        (sum.oldest, sum.granted) = (sum.oldest.max(host.oldest), sum.granted + host.took);
        self.oldest = self.oldest.max(host.oldest);
        for (window, count) in &host.admitted {
            *self.admitted.entry(*window).or_default() += count;
        }
    }

    /// Checks the invariants that hold at every moment.
    fn holds(&self) -> Result<(), String> {
        if !self.limited {
            return Ok(());
        }
        for (place, counts) in &self.ledger.borrow().server.windows {
            let (is_it, window) = (*place.account == *"labs/window", place.bounds);
            if is_it && counts.requests - counts.late > REQUESTS as i64 {
                return Err(format!("{counts:?} in {window:?} of {REQUESTS}"));
            }
        }
        Ok(())
    }

    /// Ends all faults and waits until everything is reported.
    fn heal(&mut self, sum: &mut Tally) -> Result<(), String> {
        (self.stopped, self.slow) = (0, 0);
        (self.split, self.flaky) = (vec![0; HOSTS], vec![0; HOSTS]);
        self.adopts = self.adopts.map(|_| 0);
        self.starts = vec![0; HOSTS];
        for host in self.hosts.iter_mut().flatten() {
            host.paused = host.paused.min(self.at);
        }
        // The leases of killed hosts end last.
        for _ in 0..170 {
            self.pass(100_000)?;
            for who in 0..HOSTS {
                self.serve(who, "a", 0, sum)?;
            }
        }
        Ok(())
    }

    /// Uses up the remainder, one request at each host in turn.
    fn use_up(&mut self, sum: &mut Tally) -> Result<(), String> {
        let mut refused = 0;
        for turn in 0..2000 {
            let before = (sum.admitted, sum.unavailable);
            self.serve(turn % HOSTS, "a", 1, sum)?;
            for _ in 0..400 {
                self.pass(2000)?;
                self.serve(turn % HOSTS, "a", 0, sum)?;
                let host = self.hosts[turn % HOSTS].as_ref();
                if host.is_some_and(|host| host.process.callers.is_empty()) {
                    break;
                }
            }
            if sum.unavailable > before.1 {
                return Err(format!("unavailable without a fault: {}", self.why));
            }
            refused = if sum.admitted > before.0 { 0 } else { refused + 1 };
            if refused > 2 * HOSTS {
                return Ok(());
            }
        }
        Err("the host admits without end".to_string())
    }

    /// Checks the invariants at the end.
    fn ends(&mut self, sum: &mut Tally) -> Result<(), String> {
        for _ in 0..100 {
            self.pass(10_000)?;
        }
        for who in 0..HOSTS {
            let Some(host) = self.hosts[who].take() else { continue };
            self.rows.extend(&host.rows);
            self.note(&host, sum);
        }
        let ledger = self.ledger.borrow();
        (sum.strange, sum.called) = (sum.strange + ledger.strange, sum.called + ledger.called);
        if !ledger.server.running().is_empty() {
            return Err(format!("requests run at the end: {:?}", ledger.server.running()));
        }
        let of_labs = ledger.server.windows.iter().filter(|(place, _)| *place.account == *"labs/window");
        let last = of_labs.map(|(place, window)| (place.bounds, window)).max_by_key(|(bounds, _)| *bounds);
        let Some((bounds, window)) = last else { return Err("nothing was counted".to_string()) };
        // Each request counts in a window and a period of its key and of its group.
        sum.late += ledger.server.windows.values().map(|window| window.late as u64).sum::<u64>() / 4;
        if self.calm && (window.late > 0 || self.oldest > WRITE_BEHIND) {
            return Err(format!("reported after {} us: {window:?}", self.oldest));
        }
        let month = ((begin().unix.0 / 86_400_000) - 19) * 86_400_000;
        let (tokens, _) = ledger.server.spent("@labs", (month, month + 30 * 86_400_000));
        if self.limited && window.requests < REQUESTS as i64 {
            return Err(format!("refused at {} of {REQUESTS} in {bounds:?}", window.requests));
        }
        let most = TOKENS as i64 + (window.late + 4) * USED as i64;
        if !self.limited && (tokens < (TOKENS - USED) as i64 || tokens > most) {
            return Err(format!("{tokens} of {TOKENS} tokens, {window:?}"));
        }
        if ledger.epoch.as_deref() != Some("first") {
            return Ok(());
        }
        for (of, admitted) in &self.admitted {
            let bounds = (Unix(of.0), Unix(of.1));
            let place = LeasePlace { key: None, account: "labs/window".into(), bounds };
            let counted = ledger.server.windows.get(&place).map_or(0, |window| window.requests);
            let lost = self.lost.get(of).copied().unwrap_or(0);
            if *admitted > counted + lost || *admitted < counted {
                return Err(format!("{admitted} were admitted in {of:?}, {counted} counted and {lost} lost"));
            }
        }
        let mut there: BTreeMap<[u8; 16], u64> = BTreeMap::new();
        ledger.server.rows.iter().for_each(|row| *there.entry(row.request).or_default() += 1);
        match self.rows.iter().find(|row| there.get(*row) != Some(&1)) {
            Some(row) => Err(format!("row {row:?} exists {:?} times", there.get(row))),
            None => Ok(()),
        }
    }
}

/// Runs one seed and adds its counts to `sum`.
pub fn run(seed: u64, steps: u64, sum: &mut Tally) -> Result<(), String> {
    let mut world = World::new(seed);
    for step in 0..steps {
        world.step(sum, steps - step).map_err(|error| format!("step {step}: {error}"))?;
    }
    world.heal(sum).map_err(|error| format!("in the end: {error}"))?;
    world.use_up(sum)?;
    world.ends(sum)
}
