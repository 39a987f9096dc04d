//! The world: one gateway, its clients and providers, and a seed that chooses the next event.

use super::check::{Seen, cost_holds, row_holds};
use super::clients::{Client, Supply};
use super::greedy::{self, GREEDY};
use super::ledger::{HOSTS, Ledger, LedgerKind};
use super::media::Media;
use super::providers::{Book, Provider};
use super::tally::{PLACES, SECOND, Tally, UP, set_groups, set_targets, setting};
use super::traces::Traces;
use super::wider::{Fate, Upgrade, Wider};
use crate::support::answers::{request_id, request_name};
use crate::support::setting::{KeyRing, begin};
use crate::support::vitals::{nothing_is_held, vitals_hold};
use crate::support::world::{Driver, Machine, Pipe};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use tollgate::base::rng::Rng;
use tollgate::base::seam::{Action, Conn, Core, DialError, Ending, Reply, Shut, Side, Signal};
use tollgate::base::time::{Mono, Unix};
use tollgate::gateway::orders::{Notice, Order, Reloaded};
use tollgate::gateway::{Gateway, Start};
use tollgate::policy::config::Config;
use tollgate::policy::keys::{KeyAnswer, KeyNews, KeyRecord, issue};
use tollgate::policy::ledger::LedgerNotice;
use tollgate::policy::meter::Amount;
use tollgate::policy::row::Running;
use tollgate::wire::{Passthrough, Shape};

/// Maximum number of client connections.
const CLIENTS_MAX: usize = 12;
/// Seconds within which everything must have ended, well beyond every timeout for a provider.
const TIMEOUT: u64 = 300;
/// The configured `write_stall`, in microseconds.
const WRITE_STALL: u64 = 30_000_000;
/// Requests per window of the tight plan.
const TIGHT: u64 = 4;

struct World {
    machine: Machine,
    rng: Rng,
    clients: Vec<Client>,
    /// Connections that never send a key.
    strangers: Vec<Pipe>,
    providers: Vec<Provider>,
    /// Dials that are not answered yet.
    dialing: Vec<(Conn, Shape)>,
    keys: KeyRing,
    /// What providers have reported beyond reservations under strict limits.
    overruns: Amount,
    key_texts: Vec<String>,
    next_marker: u64,
    book: Book,
    seen: BTreeMap<String, Seen>,
    ledger: Ledger,
    /// True if answers wait for their usage records.
    before_reply: bool,
    /// True if a helper thread is reading the configuration again.
    reloading: bool,
    /// True if clients start nothing new.
    winding_up: bool,
    /// The present configuration.
    config: Arc<Config>,
    wider: Wider,
    steps: u64,
    successor: Successor,
    has_served: bool,
    /// The requests that ran when the ledger was handed over.
    handed_over: Option<BTreeSet<[u8; 16]>>,
    traces: Traces,
    tally: Tally,
}

/// Stage of a successor.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Successor {
    None,
    Starts,
    Waits,
    /// The successor got the ledger at this step.
    Given(u64),
    Serves,
    Dead,
    /// The successor is being ended.
    Ends,
    Gone,
}

/// Runs one seed.
pub fn run(seed: u64, steps: u64, ledger_kind: LedgerKind, wider: Wider) -> Result<Tally, String> {
    let mut world = World::new(seed, ledger_kind, wider);
    for step in 0..steps {
        world.step().map_err(|error| format!("step {step}: {error}"))?;
    }
    world.wind_up(steps)?;
    world.settle_accounts()?;
    world.tally.faults = world.book.faults;
    Ok(world.tally)
}

impl Driver for World {
    fn parts(&mut self) -> (&mut Machine, impl Iterator<Item = &mut Pipe>) {
        let clients = self.clients.iter_mut().map(|client| &mut client.pipe);
        let providers = self.providers.iter_mut().map(|provider| &mut provider.pipe);
        (&mut self.machine, clients.chain(providers).chain(&mut self.strangers))
    }

    fn take_orders(&mut self, orders: Vec<Order>) -> Result<(), String> {
        // Orders of the iteration that hands over belong to the time before.
        let mut handed_over = None;
        for order in orders {
            match order {
                Order::HandOver(running, ..) => handed_over = Some(running),
                Order::LetServe => {
                    self.tally.handovers += 1;
                    (self.successor, self.has_served) = (Successor::Serves, true);
                }
                Order::TakeBack => self.take_back()?,
                Order::Work(work) => self.machine.works.push(*work),
                Order::LookUp(ids) => self.machine.lookups.extend(ids),
                Order::Reload(_) => self.reloading = true,
                Order::Spans(_, spans) => self.traces.take(&spans)?,
                Order::Log(lines) => self.note_overruns(&lines),
                Order::Alerts(..) | Order::Renew(_) | Order::List(_) => {}
                other => self.take_order(other)?,
            }
        }
        handed_over.map_or(Ok(()), |running| self.hand_over(running))
    }

    fn dial(&mut self, conn: Conn, addr: SocketAddr) {
        let format = match addr.ip().to_string().as_str() {
            "10.0.0.2" => Shape::Messages,
            "10.0.0.4" => Shape::Responses,
            _ => Shape::Chat,
        };
        self.dialing.push((conn, format));
    }

    fn start_successor(&mut self) -> Result<(), String> {
        self.successor = Successor::Starts;
        let expects = self.wider.upgrade.is_some();
        if expects { Ok(()) } else { Err("a successor was started without an upgrade".to_string()) }
    }

    fn close(&mut self, conn: Conn, shut: Shut) -> Result<(), String> {
        if let Some(index) = self.clients.iter().position(|client| client.pipe.conn == conn) {
            return self.client_closed(index, shut);
        }
        if let Some(index) = self.strangers.iter().position(|stranger| stranger.conn == conn) {
            self.strangers.swap_remove(index);
            self.tally.strangers_closed += 1;
        } else if let Some(index) = self.providers.iter().position(|provider| provider.pipe.conn == conn) {
            self.providers.swap_remove(index);
        } else {
            let dial = self.dialing.iter().position(|(dialed, _)| *dialed == conn);
            self.dialing.swap_remove(dial.ok_or("the gateway closed a connection that was not open")?);
        }
        Ok(())
    }
}

/// Delivers up to `most` bytes. Data and FIN that arrive together are a single event in a real event loop.
fn deliver(pipe: &mut Pipe, machine: &mut Machine, most: usize) {
    let moved = pipe.deliver(&mut machine.gateway, most, machine.now);
    if moved && most > 8 && pipe.wire.is_empty() {
        pipe.deliver(&mut machine.gateway, most, machine.now);
    }
}

/// Takes up to `most` bytes that the gateway has for this connection.
fn take(pipe: &mut Pipe, machine: &mut Machine, most: usize) -> Vec<u8> {
    pipe.take(&mut machine.gateway, most, machine.now)
}

impl World {
    fn new(seed: u64, ledger_kind: LedgerKind, wider: Wider) -> World {
        let mut keys = KeyRing::default();
        keys.issue("wide", &[]);
        keys.issue("fickle", &["group=team"]);
        keys.issue("tight", &["plan=tight", "group=all"]);
        keys.issue("one", &["plan=one", "group=dept"]);
        keys.issue("firm", &["plan=firm", "strict"]);
        (4..if wider.tight || wider.queue { 10 } else { 4 })
            .for_each(|number| keys.issue(&format!("wide{number}"), [&["group=team"][..], &[]][number % 2]));
        if wider.greedy {
            keys.issue(GREEDY, &["plan=greedy"]);
        }
        let key_texts = keys.records.iter().map(|record| keys.texts[&record.name].clone()).collect();
        let now = begin();
        let mut seed_bytes = [0u8; 32];
        seed_bytes[..8].copy_from_slice(&seed.to_le_bytes());
        // In most worlds ordinary requests and answers are long work, so that any event may happen while a thread runs
        // it.
        let work_min = [Some(0), Some(100), Some(600), None][(seed % 4) as usize];
        let keys_known = keys.records.clone();
        let start =
            Start { seed: seed_bytes, client_listeners: 1, keys: keys_known.into(), work_min, ..Start::default() };
        let before_reply = seed.is_multiple_of(3) && ledger_kind != LedgerKind::Local;
        let config = Arc::new(setting(before_reply, ledger_kind, wider).high());
        World {
            machine: Machine::new(Gateway::new(config.clone(), start, now), now),
            config,
            rng: Rng::from_u64(seed),
            clients: Vec::new(),
            strangers: Vec::new(),
            providers: Vec::new(),
            dialing: Vec::new(),
            keys,
            key_texts,
            next_marker: 0,
            book: Book::default(),
            seen: BTreeMap::new(),
            ledger: Ledger::new(ledger_kind),
            before_reply,
            reloading: false,
            winding_up: false,
            wider,
            steps: 0,
            successor: Successor::None,
            has_served: false,
            handed_over: None,
            traces: Traces::default(),
            overruns: Amount::default(),
            tally: Tally::default(),
        }
    }

    fn step(&mut self) -> Result<(), String> {
        self.steps += 1;
        if self.wider.upgrade.is_some() {
            self.upgrade()?;
        }
        if self.ledger.kind != LedgerKind::File && self.rng.below(3) > 0 {
            self.ledger.act(&mut self.rng, &mut self.machine.gateway, self.machine.now);
            self.settle()?;
        }
        if self.wider.strangers && self.rng.below(2) == 0 {
            self.move_stranger()?;
        }
        match self.rng.below(16) {
            0 => self.pass_time()?,
            1 => self.connect()?,
            2 => self.outside()?,
            3..=8 => self.move_client()?,
            _ => self.move_provider()?,
        }
        if self.rng.below(2) == 0 {
            self.ledger.take_promises(&mut self.machine.gateway, self.machine.now);
        }
        self.settle()?;
        self.places_hold()?;
        self.strict_limits_hold()?;
        vitals_hold(&self.machine.gateway.vitals(), self.wider.budget() << 20)
    }

    /// Checks that no target has more requests in flight than slots, and that no request waits while a slot is free.
    fn places_hold(&mut self) -> Result<(), String> {
        let vitals = self.machine.gateway.vitals();
        if self.wider.places && vitals.flying_most > PLACES {
            return Err(format!("{} requests in flight at a target with {PLACES} slots", vitals.flying_most));
        }
        match self.machine.gateway.overlooked(self.machine.now) {
            0 => Ok(()),
            overlooked => {
                Err(format!("{overlooked} of {} requests wait although there are slots for them", vitals.queued))
            }
        }
    }

    /// Checks that use and reservations are within all strict limits, except for what providers have reported beyond
    /// their bounds.
    fn strict_limits_hold(&mut self) -> Result<(), String> {
        let (over, reported) = (self.machine.gateway.over_strict_limits(self.machine.now), self.overruns);
        match over.min(reported) == over {
            true => Ok(()),
            false => Err(format!("strict limits are exceeded by {over:?}, and {reported:?} was reported beyond them")),
        }
    }

    /// Adds what a log line reports beyond a reservation.
    fn note_overruns(&mut self, lines: &[u8]) {
        for line in String::from_utf8_lossy(lines).lines().filter(|line| line.contains("\"event\":\"overrun\"")) {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let of = |name: &str| line[name].as_u64().unwrap_or(0);
            let dollars = |name: &str| (line[name].as_f64().unwrap_or(0.0) * 1e9).round() as u64;
            self.overruns = self.overruns.plus(Amount {
                tokens: of("used").saturating_sub(of("reserved")),
                nano: dollars("used_dollars").saturating_sub(dollars("reserved_dollars")),
            });
            self.tally.overruns += 1;
        }
    }

    /// Runs the successor: it starts, is ready later, takes the ledger later; or it fails.
    fn upgrade(&mut self) -> Result<(), String> {
        let Some(Upgrade { at, ready, takes, fate }) = self.wider.upgrade else { return Ok(()) };
        let notice = match self.successor {
            Successor::None if self.steps == at && !self.machine.draining => {
                self.machine.reply(Reply::Signal(Signal::Upgrade));
                None
            }
            Successor::Starts if self.steps >= ready => match fate {
                Fate::StallsEarly => None,
                Fate::DiesEarly => Some((Notice::SuccessorFailed("failed: dead".to_string()), Successor::Dead)),
                _ => Some((Notice::SuccessorReady, Successor::Waits)),
            },
            Successor::Given(since) if self.steps >= since + takes => match fate {
                Fate::StallsWithLedger => None,
                Fate::DiesWithLedger => Some((Notice::SuccessorFailed("failed: dead".to_string()), Successor::Dead)),
                _ => Some((Notice::SuccessorTaken, Successor::Waits)),
            },
            Successor::Serves if fate == Fate::DiesServing => {
                Some((Notice::SuccessorFailed("the successor has died".to_string()), Successor::Gone))
            }
            Successor::Ends if self.rng.below(3) == 0 => Some((Notice::SuccessorGone, Successor::Gone)),
            _ => None,
        };
        if let Some((notice, next)) = notice {
            self.successor = next;
            self.machine.notice(notice);
        }
        self.settle()
    }

    /// Waits until a hand-over in progress has ended, with any result.
    fn finish_upgrade(&mut self) -> Result<(), String> {
        for _ in 0..TIMEOUT {
            if matches!(self.successor, Successor::None | Successor::Serves | Successor::Gone) {
                return Ok(());
            }
            self.steps += 1000;
            self.upgrade()?;
            self.advance(1_000_000)?;
        }
        Err(format!("the hand-over does not end: {:?}", self.successor))
    }

    /// Hands over the ledger with a list of the running requests. Until it is returned, no request may be admitted.
    fn hand_over(&mut self, running: Vec<Running>) -> Result<(), String> {
        let running = running.into_iter().map(|one| one.request).collect();
        self.successor = Successor::Given(self.steps);
        match self.handed_over.replace(running) {
            None => Ok(()),
            Some(_) => Err("the gateway handed over twice".to_string()),
        }
    }

    /// The successor does not serve, so the ledger is returned.
    fn take_back(&mut self) -> Result<(), String> {
        self.tally.taken_back += 1;
        self.handed_over = None;
        self.successor = Successor::Ends;
        if self.has_served { Err("the gateway retakes a ledger that its successor uses".to_string()) } else { Ok(()) }
    }

    /// Handles the orders that the gateway gives to its ledger, or to its successor's.
    fn take_order(&mut self, order: Order) -> Result<(), String> {
        if let Some(running) = &self.handed_over {
            let strange = match &order {
                Order::Rows(rows) => rows.iter().any(|row| !running.contains(&row.request)),
                Order::Asks(asks) => asks.iter().any(|ask| ask.admits),
                _ => false,
            };
            if strange {
                return Err(format!("admitted after the ledger was handed over: {order:?}"));
            }
        }
        self.ledger.take(order)
    }

    fn pass_time(&mut self) -> Result<(), String> {
        let micros = match self.rng.below(200) {
            0 => self.rng.below(40_000_000),
            1..=6 => self.rng.below(3_000_000),
            7..=100 => self.rng.below(50_000),
            _ => self.rng.below(500),
        };
        self.advance(micros)
    }

    fn connect(&mut self) -> Result<(), String> {
        let waits = !self.machine.gateway.wants_clients(0) && self.wider.upgrade.is_some();
        if self.winding_up || self.machine.draining || waits || self.clients.len() >= CLIENTS_MAX {
            return Ok(());
        }
        // With connections that show no key, each client has its own address, so that no client is ever closed to make
        // room.
        let own = if self.wider.strangers { (self.steps % 200) as u8 } else { 7 };
        let peer = ([192, 0, 2, own], 999).into();
        let conn = self.machine.gateway.accepted(0, peer, self.machine.now).ok_or("not accepted")?;
        let pipe = Pipe::new(conn, self.machine.now);
        let mut supply = Supply {
            keys: &self.key_texts,
            next_marker: &mut self.next_marker,
            requests: &mut self.tally.requests,
            faults: &mut self.book.faults,
            wider: self.wider,
        };
        self.clients.push(Client::new(pipe, &mut self.rng, &mut supply));
        Ok(())
    }

    /// A connection without a key is opened, waits, sends slowly or fast, reads or ends.
    fn move_stranger(&mut self) -> Result<(), String> {
        let waits = !self.machine.gateway.wants_clients(0) && self.wider.upgrade.is_some();
        if self.rng.below(3) == 0 && !self.winding_up && !self.machine.draining && !waits {
            let address = [198, 51, 100, self.rng.below(2) as u8];
            let conn = self
                .machine
                .gateway
                .accepted(0, (address, 999).into(), self.machine.now)
                .ok_or("a connection without a key was not accepted")?;
            self.strangers.push(Pipe::new(conn, self.machine.now));
            self.tally.strangers += 1;
            return self.settle();
        }
        if self.strangers.is_empty() {
            return Ok(());
        }
        let index = self.rng.below(self.strangers.len() as u64) as usize;
        let stranger = &mut self.strangers[index];
        match self.rng.below(12) {
            0 => stranger.wire.extend(b"GET / HTTP/1.1\r\nhost: g\r\n\r\n"),
            1 => {
                let key = issue("tg_", |out| out.fill(9)).text;
                let ask = format!("GET /v1/models HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\n\r\n");
                stranger.wire.extend(ask.as_bytes());
            }
            2 => stranger.wire.extend(&b"POST /v1/chat/completions HTTP/1.1\r\nhost: g\r\n\r\n".repeat(20)),
            3 => stranger.wire.extend(b"GET / HT"),
            4 if self.rng.below(4) == 0 => stranger.ending = Some(Ending::Broken),
            5..=7 => drop(take(stranger, &mut self.machine, 1 + self.rng.below(4000) as usize)),
            _ => deliver(stranger, &mut self.machine, 1 + self.rng.below(40) as usize),
        }
        self.settle()
    }

    /// Handles dials, DNS lookups, the store, and the keys.
    fn outside(&mut self) -> Result<(), String> {
        if !self.machine.works.is_empty() && self.rng.below(4) > 0 {
            let work = self.machine.works.swap_remove(self.rng.below(self.machine.works.len() as u64) as usize);
            self.machine.work(work);
            return Ok(());
        }
        if let Some(id) = self.machine.lookups.pop() {
            let answer = if self.steps.is_multiple_of(4) { KeyAnswer::Unavailable } else { KeyAnswer::Absent };
            self.machine.looked_up(id, answer);
        }
        match self.rng.below(8) {
            0..=4 => self.answer_dial(),
            5 => self.answer_name(),
            6 if self.ledger.kind == LedgerKind::File => {
                self.ledger.commit_some(&mut self.rng, &mut self.machine.gateway, self.machine.now);
            }
            _ => self.news(),
        }
        Ok(())
    }

    fn answer_dial(&mut self) {
        if self.dialing.is_empty() {
            return;
        }
        let index = self.rng.below(self.dialing.len() as u64) as usize;
        if self.rng.below(15) == 0 && !self.winding_up {
            return;
        }
        let (conn, format) = self.dialing.swap_remove(index);
        match self.rng.below(12) {
            kind @ (0 | 1) => {
                let error = if kind == 0 { DialError::Connect("refused") } else { DialError::Tls("UnknownIssuer") };
                self.book.faults.note(if kind == 0 { "connection refused" } else { "TLS to a provider fails" });
                self.machine.reply(Reply::DialFailed(conn, error));
            }
            _ => {
                self.providers.push(Provider::new(Pipe::new(conn, self.machine.now), format, self.wider));
                self.machine.reply(Reply::Dialed(conn));
            }
        }
    }

    fn answer_name(&mut self) {
        if let Some((host, port)) = self.machine.asked.pop() {
            let addr = std::net::SocketAddr::from(([10, 0, 0, 2], port));
            let addrs =
                if self.rng.below(4) == 0 || self.wider.nameless { Err("no such name") } else { Ok(vec![addr]) };
            if addrs.is_err() {
                self.book.faults.note("unknown name");
            }
            self.machine.reply(Reply::Named { host, port, addrs });
        }
    }

    fn news(&mut self) {
        match self.rng.below(12) {
            0 => {
                if self.ledger.toggle(&mut self.machine.gateway, self.machine.now) {
                    self.book.faults.note("ledger fails");
                }
            }
            1 => {
                let now = self.machine.now.unix;
                let fickle = self.keys.records.iter_mut().find(|record| record.name == "fickle");
                if let Some(record) = fickle {
                    if record.revoked.is_none() {
                        self.book.faults.note("key revoked");
                    }
                    record.revoked = if record.revoked.is_some() { None } else { Some(Unix(now.0)) };
                }
                self.machine.notice(Notice::Ledger(LedgerNotice::Keys(KeyNews::all(self.keys.records.clone()))));
            }
            2 => self.machine.reply(Reply::Signal(Signal::Reload)),
            3 | 4 if self.reloading => self.reload(),
            _ => self.ledger.recover(&mut self.machine.gateway, self.machine.now),
        }
    }

    /// Finishes a reload: the new configuration lacks a provider, has the models in another order, or is invalid.
    fn reload(&mut self) {
        let mut fresh = setting(self.before_reply, self.ledger.kind, self.wider);
        match self.rng.below(3) {
            0 => set_targets(&mut fresh, "small", &[SECOND], self.wider),
            1 => set_targets(&mut fresh, "small", &[SECOND, UP], self.wider),
            _ => {}
        }
        set_groups(&mut fresh, self.tally.reloads);
        let news = match self.rng.below(4) {
            0 => {
                self.book.faults.note("wrong configuration");
                Reloaded::Refused(vec!["test.toml:1: wrong".to_string()])
            }
            _ => {
                let config = Arc::new(fresh.high());
                self.config = config.clone();
                Reloaded::Fresh { config, unchanged: Vec::new() }
            }
        };
        self.reloading = false;
        self.tally.reloads += 1;
        self.machine.notice(Notice::Reloaded(news));
    }

    fn move_client(&mut self) -> Result<(), String> {
        if self.clients.is_empty() {
            return Ok(());
        }
        let index = self.rng.below(self.clients.len() as u64) as usize;
        let client = &mut self.clients[index];
        if !self.winding_up || !client.outbox.is_empty() {
            let mut supply = Supply {
                keys: &self.key_texts,
                next_marker: &mut self.next_marker,
                requests: &mut self.tally.requests,
                faults: &mut self.book.faults,
                wider: self.wider,
            };
            client.act(&mut self.rng, &mut supply);
        }
        let most = if client.temper.drips { 5 } else { 65_536 };
        deliver(&mut client.pipe, &mut self.machine, 1 + self.rng.below(most) as usize);
        if self.rng.below(client.temper.slowness) == 0 {
            let most = if self.rng.below(3) == 0 { 10 } else { 100_000 };
            let bytes = take(&mut client.pipe, &mut self.machine, 1 + self.rng.below(most) as usize);
            client.reading.take(&bytes, &mut client.awaiting, &self.book, &mut self.seen)?;
            let seen = self.seen.get(client.reading.id()).filter(|seen| seen.whole && seen.ended);
            if self.before_reply && !bytes.is_empty() && seen.is_some() {
                let id = client.reading.id();
                let committed = self.ledger.safe().iter().any(|row| request_id(row) == id);
                if !committed {
                    return Err(format!("{id} was answered before its row was committed"));
                }
            }
            let go_on = std::mem::take(&mut client.reading.go_on);
            if go_on {
                client.release_body(true);
            }
        }
        Ok(())
    }

    fn move_provider(&mut self) -> Result<(), String> {
        if self.providers.is_empty() {
            return Ok(());
        }
        let index = self.rng.below(self.providers.len() as u64) as usize;
        let provider = &mut self.providers[index];
        let most = if self.rng.below(4) == 0 { 16 } else { 200_000 };
        let bytes = take(&mut provider.pipe, &mut self.machine, 1 + self.rng.below(most) as usize);
        let before = provider.requests;
        provider.read(&bytes, &mut self.rng, &mut self.book)?;
        self.tally.reused += u64::from(provider.requests > before && before > 0);
        provider.write(&mut self.rng, &mut self.book);
        let most = if self.rng.below(4) == 0 { 3 } else { 65_536 };
        deliver(&mut provider.pipe, &mut self.machine, 1 + self.rng.below(most) as usize);
        let conn = provider.pipe.conn;
        self.settle()?;
        let provider = self.providers.iter().find(|provider| provider.pipe.conn == conn);
        match provider.is_some_and(|provider| provider.is_starved(&self.machine.gateway)) {
            true => Err("a request is not written to its end, since its answer came early".to_string()),
            false => Ok(()),
        }
    }

    /// Checks that the gateway had a reason to close a client's connection.
    fn client_closed(&mut self, index: usize, shut: Shut) -> Result<(), String> {
        let mut client = self.clients.swap_remove(index);
        client.pipe.closed = Some(shut);
        let left = client.pipe.ending.is_some();
        let stalled = self.machine.now.mono.0.saturating_sub(client.pipe.read_at) >= WRITE_STALL;
        // A form that is broken after its answer has begun ends that answer; an answer of bytes cannot contain the error
        // of its provider.
        if left || client.breaks_form || client.awaiting.iter().any(|ask| ask.may_be_cut(&self.book)) {
            return Ok(());
        }
        if shut == Shut::Abort {
            self.tally.cut_for_stalling += u64::from(stalled);
            return if stalled {
                Ok(())
            } else {
                Err(format!(
                    "a client was disconnected at {} without a reason: {}",
                    self.machine.now.mono.0,
                    client.brief()
                ))
            };
        }
        if client.reading.runs_to_end() {
            client.reading.closed(&mut client.awaiting, &self.book, &mut self.seen)?;
        }
        let mid_answer = !client.reading.is_between() && !client.reading.runs_to_end();
        if mid_answer {
            return Err(format!("closed in the middle of an answer: {}", client.brief()));
        }
        let all_sent = client.outbox.is_empty() && client.pipe.wire.is_empty();
        let unanswered = client.awaiting.iter().any(|ask| ask.held_body.is_none());
        if all_sent && unanswered && !client.reading.last && !self.machine.draining {
            return Err(format!("closed without an answer: {}", client.brief()));
        }
        Ok(())
    }

    /// Lets all clients finish or disconnect. The gateway is drained, or continues.
    fn wind_up(&mut self, steps: u64) -> Result<(), String> {
        self.winding_up = true;
        let drain = self.rng.below(2) == 0;
        if drain {
            self.tally.drains += 1;
            self.machine.reply(Reply::Signal(Signal::Terminate));
            self.settle()?;
        }
        for _ in 0..steps / 2 {
            self.step()?;
        }
        self.finish_upgrade()?;
        if drain {
            // drain_timeout, then write_stall for clients that do not read.
            self.advance(30_000_000 + WRITE_STALL + 5_000_000)?;
            if !self.machine.exit || !self.clients.is_empty() {
                return Err(format!("drained, but connections are left: {:?}", self.machine.gateway.vitals()));
            }
        } else if self.machine.draining {
            self.let_clients_finish()?;
            self.settle()?;
            if self.handed_over.is_none() || !self.machine.exit || !self.clients.is_empty() {
                let vitals = self.machine.gateway.vitals();
                return Err(format!("connections are left (handed over: {}): {vitals:?}", self.handed_over.is_some()));
            }
        } else {
            self.let_clients_finish()?;
            self.ask_quota()?;
            for client in &mut self.clients {
                client.pipe.ending = Some(Ending::Broken);
                deliver(&mut client.pipe, &mut self.machine, 1);
            }
            self.settle()?;
        }
        self.finish_works()?;
        // The rest reaches its deadline.
        self.advance(3_600_000_000)?;
        if self.machine.gateway.next_deadline().is_some_and(|due| due != Mono::NEVER) {
            return Err("a deadline is left after all clients have left".to_string());
        }
        nothing_is_held(&self.machine.gateway.vitals())
    }

    /// Runs all work of the helper threads and returns the results.
    fn finish_works(&mut self) -> Result<(), String> {
        while let Some(work) = self.machine.works.pop() {
            self.machine.work(work);
            self.settle()?;
        }
        Ok(())
    }

    /// All peers behave well until every deadline has passed. Then no client may still wait for an answer.
    fn let_clients_finish(&mut self) -> Result<(), String> {
        for _ in 0..TIMEOUT {
            while !self.dialing.is_empty() {
                self.answer_dial();
            }
            while !self.machine.asked.is_empty() {
                self.answer_name();
            }
            self.finish_works()?;
            for _ in 0..self.clients.len() {
                let mut client = self.clients.remove(0);
                client.pipe.wire.extend(client.outbox.drain(..));
                deliver(&mut client.pipe, &mut self.machine, 65_536);
                let bytes = take(&mut client.pipe, &mut self.machine, usize::MAX);
                client.reading.take(&bytes, &mut client.awaiting, &self.book, &mut self.seen)?;
                self.clients.push(client);
                self.settle()?;
                self.ledger.catch_up(&mut self.machine.gateway, self.machine.now);
            }
            for index in (0..self.providers.len()).rev() {
                let Some(provider) = self.providers.get_mut(index) else { continue };
                let bytes = take(&mut provider.pipe, &mut self.machine, usize::MAX);
                provider.read(&bytes, &mut self.rng, &mut self.book)?;
                provider.write(&mut self.rng, &mut self.book);
                deliver(&mut provider.pipe, &mut self.machine, 65_536);
                self.settle()?;
            }
            self.advance(1_000_000)?;
        }
        let unanswered =
            |client: &&Client| client.pipe.is_open() && client.awaiting.iter().any(|ask| ask.held_body.is_none());
        match self.clients.iter().find(unanswered) {
            Some(client) => Err(format!("a client waits forever: {}", client.brief())),
            None => Ok(()),
        }
    }

    /// Checks that the quota of each key is the sum of its usage records while no request runs.
    fn ask_quota(&mut self) -> Result<(), String> {
        for client in std::mem::take(&mut self.clients) {
            self.machine.gateway.closed(client.pipe.conn, Ending::Broken, self.machine.now);
        }
        self.machine.notice(Notice::Ledger(LedgerNotice::Keys(KeyNews::all(self.keys.records.clone()))));
        self.ledger.recover(&mut self.machine.gateway, self.machine.now);
        self.machine.gateway.actions().retain(|action| {
            !matches!(action, Action::Close { conn, .. }
            if conn.side == Side::Client)
        });
        self.settle()?;
        self.ledger.catch_up(&mut self.machine.gateway, self.machine.now);
        if self.ledger.is_dead() {
            return Ok(());
        }
        for record in self.keys.records.clone().iter().filter(|record| record.revoked.is_none()) {
            let key = self.keys.texts[&record.name].clone();
            let used = self.ledger.used(record.id);
            let answer =
                self.ask(&format!("GET /v1/quota HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {key}\r\n\r\n"))?;
            if !answer.contains(&format!("\"used\":{used},")) {
                return Err(format!("the rows of {} add up to {used}: {answer}", record.name));
            }
            self.budget_holds(record, &answer)?;
        }
        Ok(())
    }

    /// Checks that a quota shows the budget with the smallest remainder by the usage records: that of the key, or of a
    /// group that is above it now, including records of former members.
    fn budget_holds(&self, record: &KeyRecord, answer: &str) -> Result<(), String> {
        let own = self.ledger.rows.iter().filter(|row| row.key == record.id).map(|row| row.cost_nano);
        let plan = self.config.plan(&record.plan).map_or(0, |plan| plan.budget);
        let mut budgets = vec![(own.sum::<u64>(), plan)];
        let path = record.group.as_ref().and_then(|group| self.config.group(group)).map(|group| &*group.path);
        for name in path.unwrap_or_default().split('/').filter(|name| !name.is_empty()) {
            let budget = self.config.group(name).map_or(0, |group| group.limits.budget);
            budgets.push((self.ledger.cost(name), budget));
        }
        budgets.retain(|(_, total)| *total > 0);
        let left = |(used, total): &(u64, u64)| total.saturating_sub(*used);
        let least = budgets.iter().map(left).min();
        let told = budgets.iter().filter(|budget| Some(left(budget)) == least).any(|(used, total)| {
            let dollars = |nano: &u64| {
                let mut text = Vec::new();
                tollgate::base::text::push_dollars(&mut text, *nano);
                String::from_utf8(text).unwrap()
            };
            answer.contains(&format!("\"budget\":{{\"used\":{},\"total\":{},", dollars(used), dollars(total)))
        });
        match budgets.is_empty() {
            true if answer.contains("\"budget\":{\"used\"") => {
                Err(format!("{} has no budget, but the answer has one: {answer}", record.name))
            }
            false if !told => Err(format!("the rows of {} add up to {budgets:?}: {answer}", record.name)),
            _ => Ok(()),
        }
    }

    fn ask(&mut self, request: &str) -> Result<String, String> {
        let peer = "192.0.2.8:999".parse().map_err(|_| "address")?;
        let conn = self.machine.gateway.accepted(0, peer, self.machine.now).ok_or("not accepted")?;
        let mut pipe = Pipe::new(conn, self.machine.now);
        self.machine.gateway.bytes(conn, request.as_bytes(), self.machine.now);
        self.settle()?;
        self.ledger.catch_up(&mut self.machine.gateway, self.machine.now);
        let answer = take(&mut pipe, &mut self.machine, usize::MAX);
        self.machine.gateway.closed(conn, Ending::Broken, self.machine.now);
        self.machine
            .gateway
            .actions()
            .retain(|action| !matches!(action, Action::Close { conn: gone, .. } if *gone == conn));
        self.settle()?;
        String::from_utf8(answer).map_err(|_| "an answer that is not UTF-8".to_string())
    }

    /// Checks that no key pays for less than was sent and received, and that the greedy tenant stays within its budget.
    fn greedy_pays(&mut self) -> Result<(), String> {
        let mut received = BTreeMap::new();
        for seen in self.seen.values() {
            received.insert(seen.marker, seen.received);
        }
        for row in &self.ledger.rows {
            let left = greedy::row_covers(row, &received, &self.book)?;
            self.tally.charged_left += u64::from(left.is_some());
            if let Some(marker) = left.filter(|_| row.endpoint.as_passthrough().is_some_and(Passthrough::is_media)) {
                *self.tally.media_left.entry(Media::of(marker).way()).or_default() += 1;
            }
        }
        let key = self.keys.records.iter().find(|record| record.name == GREEDY).map(|record| record.id);
        if self.ledger.kind == LedgerKind::File {
            let rows = self.ledger.rows.iter().filter(|row| Some(row.key) == key);
            self.tally.greedy_nano += greedy::budget_holds(rows, &self.book)?;
        }
        Ok(())
    }

    /// Compares the ledger with all other records.
    fn settle_accounts(&mut self) -> Result<(), String> {
        let mut ids = BTreeSet::new();
        let mut per_window: BTreeMap<(bool, u64), u64> = BTreeMap::new();
        let tight = self.keys.records.iter().find(|record| record.name == "tight").map(|record| record.id);
        for row in &self.ledger.rows {
            let id = request_id(row);
            let seen = self.seen.get(&id);
            if row_holds(row, seen, &self.book)? {
                self.tally.exact_rows += 1;
            }
            self.tally.costs += u64::from(cost_holds(row, seen)?);
            if !ids.insert(id) {
                return Err(format!("settled twice: {row:?}"));
            }
            if Some(row.key) == tight {
                // Requests admitted without the shared ledger count towards the host's own share.
                let alone =
                    self.ledger.kind == LedgerKind::Local && !row.lease.as_ref().is_some_and(|lease| lease.shared);
                *per_window.entry((alone, row.admitted.0 / 60_000)).or_default() += 1;
            }
            self.tally.rows += 1;
            self.tally.relayed += u64::from(row.status == 200 && row.endpoint.is_passthrough());
            self.tally.left_rows += u64::from(row.status == 499);
            self.tally.queued_rows += u64::from(row.queued_ms > 0);
            self.tally.retried_rows += u64::from(row.attempts > 1);
        }
        if self.wider.greedy {
            self.greedy_pays()?;
        }
        let allowed = |alone: bool| if alone { TIGHT / HOSTS } else { TIGHT };
        if let Some((window, count)) = per_window.iter().find(|((alone, _), count)| **count > allowed(*alone)) {
            return Err(format!("{count} requests were admitted in window {window:?}, more than are allowed"));
        }
        self.ledger.catch_up(&mut self.machine.gateway, self.machine.now);
        self.settle()?;
        self.ledger.catch_up(&mut self.machine.gateway, self.machine.now);
        self.ledger.at_rest()?;
        self.traces.agree(&self.ledger.rows, request_id)?;
        self.tally.spans += self.traces.attempts;
        self.tally.story = self.ledger.story.clone();
        let running = self.handed_over.iter().flatten();
        if let Some(lost) = running.map(request_name).find(|id| !ids.contains(id)) {
            return Err(format!("{lost} ran when the ledger was handed over, and its row was never handed over"));
        }
        for (id, seen) in &self.seen {
            if seen.whole && !ids.contains(id) {
                return Err(format!("answered, but not in the ledger: {seen:?}"));
            }
            let tally = &mut self.tally;
            tally.answers += u64::from(seen.ended);
            tally.whole += u64::from(seen.whole && seen.ended);
            tally.crossed += u64::from(seen.whole && seen.ended && seen.crossed && seen.attempt.is_some());
            tally.timeouts += u64::from(seen.status == 504);
            tally.limited += u64::from(seen.status == 429);
            tally.unavailable += u64::from(seen.status == 503);
            tally.errors_in_streams +=
                u64::from(seen.ended && seen.status == 200 && !seen.whole && seen.attempt.is_some());
        }
        Ok(())
    }
}
