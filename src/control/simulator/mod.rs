//! The simulated provider: a second sans-I/O core, run by the same reactor as the gateway (or by a test). It implements
//! the APIs over HTTP/1.1 as strictly as the real providers, and can misbehave on request. It must never import
//! `gateway`. Run by `cli::provider`, `cli::demo` and the tests.
//!
//! **Endpoints.** Any path that ends in `/chat/completions`, `/responses` or `/messages` (POST; the last needs
//! `anthropic-version`), or in `/embeddings`, `/rerank`, `/completions`, `/audio/speech`, `/images/generations` or
//! `/moderations`; for any model, or only for those of its settings, which `GET` of a path that ends in `/models`
//! lists. `GET /stats`: `{"requests","streamed","prompt_tokens","completion_tokens","aborted","failed"}` since the
//! start. `GET /last`: head and body of the last request to such an endpoint. `GET /` and `/healthz`: 200.
//!
//! A conversation must have the order that real providers require: every call is followed directly by its result, and
//! every result follows its call.
//!
//! In the chat API, the first call of an answer of a model called `gemini-3…` or later has a thought signature, which
//! is required on that call until the next user message.
//!
//! **Tokens.** A token of a prompt is a word (a run of characters without white space) of any text in messages, system
//! prompt, tool results, arguments and compact tool definitions. A part that is neither text nor a tool's counts 10,
//! and the name of a tool call counts 1. A prompt has at least 1. A token of an answer is a word of its text with the
//! blank before it, the name of a called tool, or 6 characters of a call's arguments or of a JSON text. Every token is
//! one event of a stream. `max_tokens` (`max_completion_tokens` first) cuts the answer after that many.
//!
//! **Vectors** (`/embeddings`) depend only on their texts and are of length 1. `dimensions` (default 8) and
//! `encoding_format` are supported. **Documents** (`/rerank`) are scored by the share of the query's words that they
//! contain. For both, the directives on the head, the status and the ends of a whole answer apply, in any text or the
//! query. For a **completion**, all directives of a text apply, in its last prompt. The words of a `suffix` count as
//! prompt. A completion has the same text for each prompt `n` times, and counts it `best_of` times.
//!
//! **Speech** (`/audio/speech`) is a stream of bytes, or of events: 256 bytes for each token of a text. Its directives
//! are those of a text in `input`. **Images** (`/images/generations`) have one pixel each; as a stream, each token of a
//! text is a partial image. **Moderations** flag texts with the word `violence`.
//!
//! **Tools.** A tool is called if `tool_choice` forces one, if the directive `tool` asks for one, or if the last user
//! text contains a tool's name. After a tool's result in the last message, only `turns` decides. Arguments are made
//! from the tool's schema, and their whole numbers count up from call to call. `response_format` (chat) and
//! `output_config.format` (messages) get a JSON text made from the schema.
//!
//! **Limits** of its settings count requests, and tokens of prompts and answers, for each credential. A request that
//! exceeds one gets 429 with `retry-after`, and counts in none.
//!
//! **Stop sequences** (`stop`, `stop_sequences`) end a text before the first of them that occurs in it.
//!
//! **Directives** of the last user text: [`directives::Directives`].

pub mod answer;
pub mod ask;
pub mod chat;
pub mod directives;
pub mod event;
mod given;
mod link;
pub mod messages;
mod order;
mod passthrough;
pub mod quotas;
mod responses;
pub mod script;
mod settings;
mod signature;
pub mod stats;
#[cfg(test)]
mod tests;

use crate::base::buf::Pool;
use crate::base::seam::{Action, Conn, Core, Ending, Reply, Shut, Side, Signal};
use crate::base::slots::{Id, Slots};
use crate::base::time::{Mono, Now};
use crate::base::timers::Timers;
use link::{Shared, SimulatorLink};
use quotas::Quotas;
pub use settings::SimulatorSettings;
use stats::{Last, SimulatorStats};
use std::convert::Infallible;
use std::net::SocketAddr;

/// Maximum number of concurrent connections.
const CONNECTIONS_MAX: usize = 20_000;

/// A simulated provider.
#[derive(Debug)]
pub struct Simulator {
    links: Slots<SimulatorLink>,
    shared: Shared,
    timers: Timers,
    dirty: Vec<Conn>,
    actions: Vec<Action>,
    orders: Vec<Infallible>,
}

impl Simulator {
    /// Returns a provider without connections.
    pub fn new(settings: SimulatorSettings) -> Simulator {
        let (stats, last) = (SimulatorStats::default(), Last::default());
        let quotas = Quotas::new(settings.limits.clone());
        Simulator {
            links: Slots::default(),
            shared: Shared { settings, pool: Pool::new(usize::MAX), stats, last, serial: 0, quotas },
            timers: Timers::default(),
            dirty: Vec::new(),
            actions: Vec::new(),
            orders: Vec::new(),
        }
    }

    /// Returns the statistics since the start.
    pub fn stats(&self) -> &SimulatorStats {
        &self.shared.stats
    }

    /// Runs one step of a connection, then updates its alarm and handles its end.
    fn step(&mut self, conn: Conn, run: impl FnOnce(&mut SimulatorLink, &mut Shared)) {
        let Some(link) = self.links.get_mut(id(conn)) else { return };
        run(link, &mut self.shared);
        if let Some(shut) = link.finished() {
            return self.close(conn, shut);
        }
        let due = link.due;
        self.timers.arm(conn, due);
        self.dirty.push(conn);
    }

    fn close(&mut self, conn: Conn, shut: Shut) {
        if let Some(mut link) = self.links.remove(id(conn)) {
            self.timers.forget(conn);
            link.clear(&mut self.shared);
            self.actions.push(Action::Close { conn, shut });
        }
    }
}

fn id(conn: Conn) -> Id<SimulatorLink> {
    Id::new(conn.slot, conn.generation)
}

impl Core for Simulator {
    type Order = Infallible;
    type Notice = Infallible;

    fn accepted(&mut self, _: usize, _: SocketAddr, now: Now) -> Option<Conn> {
        if self.links.len() >= CONNECTIONS_MAX {
            return None;
        }
        let id = self.links.insert(SimulatorLink::default());
        let conn = Conn { side: Side::Client, slot: id.slot, generation: id.generation };
        self.step(conn, |link, shared| link.advance(shared, now));
        Some(conn)
    }

    fn bytes(&mut self, conn: Conn, data: &[u8], now: Now) {
        self.step(conn, |link, shared| link.push(shared, data, now));
    }

    fn closed(&mut self, conn: Conn, _: Ending, _: Now) {
        let busy = self.links.get(id(conn)).is_some_and(SimulatorLink::is_busy);
        self.shared.stats.aborted += u64::from(busy);
        self.close(conn, if busy { Shut::Abort } else { Shut::Clean });
    }

    fn wrote(&mut self, conn: Conn, count: usize, now: Now) -> bool {
        self.step(conn, |link, shared| link.wrote(shared, count, now));
        !self.unsent(conn).is_empty()
    }

    fn reply(&mut self, reply: Reply, _: Now) {
        if reply == Reply::Signal(Signal::Terminate) {
            self.actions.extend([Action::StopAccepting(usize::MAX), Action::Exit]);
        }
    }

    fn notice(&mut self, notice: Infallible, _: Now) {
        match notice {}
    }

    fn next_deadline(&self) -> Option<Mono> {
        self.timers.next().map(|(due, _)| due)
    }

    fn expire(&mut self, now: Now) -> bool {
        if self.next_deadline().is_none_or(|due| due > now.mono) {
            return false;
        }
        let Some((_, owner)) = self.timers.next() else { return false };
        let Some((id, link)) = self.links.tenant(owner.slot()) else { return false };
        let conn = Conn { side: Side::Client, slot: id.slot, generation: id.generation };
        if self.timers.fired(conn, link.due, now.mono) {
            self.step(conn, |link, shared| link.expired(shared, now));
        }
        true
    }

    fn unsent(&self, conn: Conn) -> &[u8] {
        self.links.get(id(conn)).map(SimulatorLink::unsent).unwrap_or_default()
    }

    fn wants_read(&self, conn: Conn) -> bool {
        self.links.get(id(conn)).is_some_and(SimulatorLink::wants_read)
    }

    fn dirty(&mut self) -> &mut Vec<Conn> {
        &mut self.dirty
    }

    fn actions(&mut self) -> &mut Vec<Action> {
        &mut self.actions
    }

    fn orders(&mut self) -> &mut Vec<Infallible> {
        &mut self.orders
    }

    fn panicked(&mut self, conn: Option<Conn>, _: Now) {
        if let Some(conn) = conn {
            self.close(conn, Shut::Abort);
        }
    }

    fn turned(&mut self, _: u64) {}
}
