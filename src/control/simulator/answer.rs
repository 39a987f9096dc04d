//! An answer in progress: its next bytes, their due time, and its fault. Writes into the connection's buffer as far as
//! the buffer's high-water mark and the pace allow. Owns no connection.

use super::ask::SimulatedRequest;
use super::event::{AnswerEvent, AnswerIdentity, AnswerUsage};
use super::responses::{self, ResponseEvents};
use super::script::{ScriptPart, ScriptToken};
use super::stats::SimulatorStats;
use super::{chat, messages, passthrough};
use crate::base::limits::HIGH_WATER;
use crate::base::seam::Shut;
use crate::base::time::{Mono, Now};
use crate::wire::body::{LAST_CHUNK, write_chunk};
use crate::wire::{Operation, Passthrough, Shape};
use std::time::Duration;

/// Framing of the body.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Framed {
    Length,
    Chunked,
    ToEnd,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum AnswerStage {
    /// The head is next.
    Head,
    /// The first event is next.
    Start,
    /// Tokens are next.
    Tokens,
    /// The events after the last token are next.
    Finish,
    /// No more bytes are written, but the connection stays open.
    Stalled,
    /// Everything is written.
    Done(Option<Shut>),
}

/// Event that an answer waits for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Wait {
    /// A point in time; [`Mono::NEVER`] if the answer stalls.
    Until(Mono),
    /// Room in the buffer.
    Room,
    /// No event: the answer is complete. After everything is written, the connection is closed in this way, if at all.
    Nothing(Option<Shut>),
}

/// An answer and its progress.
#[derive(Debug)]
pub struct SimulatedAnswer {
    ask: SimulatedRequest,
    id: AnswerIdentity,
    framed: Framed,
    keep_alive: bool,
    stage: AnswerStage,
    started: Mono,
    /// Tokens per second, 0 for no limit.
    pace: u64,
    emitted: u64,
    part: usize,
    within: u64,
    calls: usize,
    next_ping: Mono,
    event: Vec<u8>,
    /// State that a response's later events repeat.
    response_events: ResponseEvents,
}

impl SimulatedAnswer {
    /// Begins the answer to `ask` at `now`. `http11` and `keep_alive` are those of the request; `pace` is the
    /// provider's own.
    pub fn new(
        ask: SimulatedRequest,
        serial: u64,
        pace: u64,
        http11: bool,
        keep_alive: bool,
        now: Now,
    ) -> SimulatedAnswer {
        let streamed = ask.stream && !ask.directives.plain;
        let framed = match streamed {
            _ if ask.directives.close => Framed::ToEnd,
            true if http11 => Framed::Chunked,
            true => Framed::ToEnd,
            false => Framed::Length,
        };
        SimulatedAnswer {
            id: AnswerIdentity::new(&ask, serial, now.unix.secs()),
            framed,
            keep_alive: keep_alive && framed != Framed::ToEnd,
            stage: AnswerStage::Head,
            started: now.mono,
            pace: ask.directives.pace.unwrap_or(pace),
            emitted: 0,
            part: 0,
            within: 0,
            calls: 0,
            next_ping: Mono::NEVER,
            event: Vec::new(),
            response_events: ResponseEvents::default(),
            ask,
        }
    }

    /// True if the answer is a stream.
    pub fn is_streamed(&self) -> bool {
        self.ask.stream && !self.ask.directives.plain
    }

    /// Maximum number of bytes written at a time; 0 for no limit.
    pub fn drip(&self) -> usize {
        self.ask.directives.drip.unwrap_or(0) as usize
    }

    /// Writes the bytes that are due. Called at the start, at the time waited for, and when there is room again.
    pub fn pump(&mut self, out: &mut Vec<u8>, unsent: usize, stats: &mut SimulatorStats, now: Now) -> Wait {
        let before = out.len();
        loop {
            let stage = self.stage;
            match stage {
                AnswerStage::Done(shut) => return Wait::Nothing(shut),
                AnswerStage::Stalled => return self.stall(out, now),
                _ if unsent + (out.len() - before) >= HIGH_WATER => return Wait::Room,
                AnswerStage::Head => {
                    let due = self.head_due();
                    if due > now.mono {
                        return Wait::Until(due);
                    }
                    match self.ask.directives.fails() {
                        true => self.fail(out, stats),
                        false => self.begin(out, stats, now),
                    }
                }
                AnswerStage::Start | AnswerStage::Tokens | AnswerStage::Finish if self.fault(out, now) => {}
                AnswerStage::Start => {
                    let usage = self.usage();
                    self.put(out, &AnswerEvent::Start(usage));
                    self.stage = AnswerStage::Tokens;
                }
                AnswerStage::Tokens if self.emitted >= self.ask.script.tokens => self.stage = AnswerStage::Finish,
                AnswerStage::Tokens => {
                    let due = self.token_due(self.emitted);
                    if due > now.mono {
                        return Wait::Until(due);
                    }
                    self.token(out, stats);
                }
                AnswerStage::Finish => self.finish(out),
            }
        }
    }

    /// Usage of the tokens written so far.
    fn usage(&self) -> AnswerUsage {
        let prompt = self.ask.prompt;
        let cached = self.ask.directives.cached.min(prompt);
        let written = self.ask.directives.written.min(prompt - cached);
        let thought = match self.ask.script.parts.first() {
            Some(part @ ScriptPart::Think(_)) => part.len().min(self.emitted),
            _ => 0,
        };
        AnswerUsage { prompt, cached, written, completion: self.emitted * self.ask.made, thought }
    }

    fn token_due(&self, number: u64) -> Mono {
        match number.saturating_mul(1_000_000).checked_div(self.pace) {
            Some(micros) => self.body_start().after(Duration::from_micros(micros)),
            None => self.started,
        }
    }

    fn body_start(&self) -> Mono {
        self.started.after(Duration::from_millis(self.ask.directives.delay))
    }

    /// Due time of the head. A whole answer takes as long as its tokens.
    fn head_due(&self) -> Mono {
        let d = &self.ask.directives;
        match (d.stall_head, self.is_streamed()) {
            _ if d.fails() => self.body_start(),
            (true, _) => Mono::NEVER,
            (false, true) => self.body_start(),
            (false, false) => self.token_due(self.ask.script.tokens).max(self.body_start()),
        }
    }

    /// Writes the error that the request asks for.
    fn fail(&mut self, out: &mut Vec<u8>, stats: &mut SimulatorStats) {
        stats.failed += 1;
        let wanted = &self.ask.directives;
        let status = wanted.status.unwrap_or(502);
        let message = wanted.message.as_deref().unwrap_or("simulated failure");
        let mut extra = wanted.retry_after.map_or(String::new(), |seconds| format!("retry-after: {seconds}\r\n"));
        if !self.keep_alive {
            extra.push_str("connection: close\r\n");
        }
        let (kind, body) = match wanted.html {
            true => (
                "text/html",
                format!("<html><head><title>{status}</title></head><body><h1>{message}</h1></body></html>"),
            ),
            false => ("application/json", error_body(self.ask.endpoint.shape, status, message, self.id.serial)),
        };
        out.extend_from_slice(response_head(self.id.serial, status, kind, &extra, body.len()).as_bytes());
        out.extend_from_slice(body.as_bytes());
        self.stage = AnswerStage::Done((!self.keep_alive).then_some(Shut::Clean));
    }

    fn begin(&mut self, out: &mut Vec<u8>, stats: &mut SimulatorStats, now: Now) {
        if self.ask.directives.hint {
            out.extend_from_slice(b"HTTP/1.1 103 Early Hints\r\nlink: </sim>\r\n\r\n");
        }
        stats.began(self.is_streamed(), self.ask.prompt);
        self.next_ping =
            self.ask.directives.ping.map_or(Mono::NEVER, |wait| now.mono.after(Duration::from_millis(wait)));
        if !self.is_streamed() {
            self.whole(out, stats);
            return;
        }
        let is_audio = self.ask.endpoint.as_passthrough() == Some(Passthrough::Speech);
        let kind = self.ask.audio.filter(|_| is_audio);
        self.head(out, kind.unwrap_or("text/event-stream; charset=utf-8"), None);
        self.stage = AnswerStage::Start;
    }

    fn head(&mut self, out: &mut Vec<u8>, kind: &str, length: Option<usize>) {
        let framing = match (self.framed, length) {
            (Framed::Length, Some(length)) => format!("content-length: {length}\r\n"),
            (Framed::Chunked, _) => "transfer-encoding: chunked\r\n".to_owned(),
            _ => String::new(),
        };
        let connection = if self.keep_alive { "" } else { "connection: close\r\n" };
        let encoding = self.ask.directives.encoding.as_deref();
        let encoding = encoding.map_or(String::new(), |name| format!("content-encoding: {name}\r\n"));
        let (serial, names) = (self.id.serial, ["x-request-id", "request-id"]);
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n{framing}{connection}{encoding}{}: req_sim_{serial}\r\n{}: \
             req_sim_{serial}\r\nx-sim: upstream\r\n\r\n",
            names[0], names[1]
        );
        out.extend_from_slice(head.as_bytes());
    }

    fn whole(&mut self, out: &mut Vec<u8>, stats: &mut SimulatorStats) {
        self.emitted = self.ask.script.tokens;
        stats.tokens(self.emitted * self.ask.made);
        let usage = self.usage();
        let mut body = match (self.ask.endpoint.operation, self.ask.endpoint.shape) {
            (Operation::Passthrough(one), _) => {
                passthrough::whole(one, &self.id, &self.ask.given, &self.ask.script, usage)
            }
            (_, Shape::Chat) => chat::whole(&self.id, &self.ask.script, usage),
            (_, Shape::Messages) => messages::whole(&self.id, &self.ask.script, usage),
            (_, Shape::Responses) => responses::whole(&self.id, &self.ask.script, usage),
        };
        if self.ask.directives.garbage {
            body.truncate(body.find(':').unwrap_or(0));
        }
        let is_transcript = self.ask.endpoint.as_passthrough().is_some_and(Passthrough::is_transcript);
        self.head(out, self.ask.audio.filter(|_| is_transcript).unwrap_or("application/json"), Some(body.len()));
        let d = &self.ask.directives;
        let cut = [d.cut_after, d.reset_after, d.stall_after].into_iter().flatten().min();
        let give = cut.map_or(body.len(), |cut| (cut as usize).min(body.len()));
        out.extend_from_slice(&body.as_bytes()[..give]);
        self.stage = match (d.cut_after, d.reset_after, d.stall_after) {
            (Some(_), _, _) => AnswerStage::Done(Some(Shut::Clean)),
            (_, Some(_), _) => AnswerStage::Done(Some(Shut::Abort)),
            (_, _, Some(_)) => AnswerStage::Stalled,
            _ => AnswerStage::Done(self.shut()),
        };
    }

    fn shut(&self) -> Option<Shut> {
        (!self.keep_alive).then_some(Shut::Clean)
    }

    /// Performs the fault that is due, if any, before the next event.
    fn fault(&mut self, out: &mut Vec<u8>, now: Now) -> bool {
        let d = &self.ask.directives;
        let due = |after: Option<u64>| after.is_some_and(|after| after <= self.emitted && self.stage_reached(after));
        if due(d.error_after) {
            let message = d.message.clone().unwrap_or_else(|| "simulated failure".to_owned());
            self.put(out, &AnswerEvent::Error(&message));
            self.end_body(out);
        } else if due(d.cut_after) {
            self.stage = AnswerStage::Done(Some(Shut::Clean));
        } else if due(d.reset_after) {
            self.stage = AnswerStage::Done(Some(Shut::Abort));
        } else if due(d.stall_after) {
            self.next_ping = d.ping.map_or(Mono::NEVER, |wait| now.mono.after(Duration::from_millis(wait)));
            self.stage = AnswerStage::Stalled;
        } else {
            return false;
        }
        true
    }

    /// True if a fault may occur: with `after` 0 before the first event, otherwise after the start has been written.
    fn stage_reached(&self, after: u64) -> bool {
        after == 0 || self.stage != AnswerStage::Start
    }

    fn stall(&mut self, out: &mut Vec<u8>, now: Now) -> Wait {
        if self.next_ping <= now.mono && self.is_streamed() {
            self.put(out, &AnswerEvent::Ping);
            let wait = self.ask.directives.ping.unwrap_or(0).max(1);
            self.next_ping = now.mono.after(Duration::from_millis(wait));
        }
        Wait::Until(self.next_ping)
    }

    /// Writes one token, with the events that open and close its part.
    fn token(&mut self, out: &mut Vec<u8>, stats: &mut SimulatorStats) {
        let Some(part) = self.ask.script.parts.get(self.part) else {
            self.stage = AnswerStage::Finish;
            return;
        };
        let (last, token) = (self.within + 1 == part.len(), part.token(self.within));
        let (block, call) = (self.part, self.calls);
        match &token {
            ScriptToken::Word(piece) => {
                if self.within == 0 {
                    self.put(out, &AnswerEvent::OpenText { block });
                }
                if self.ask.directives.garbage {
                    self.put(out, &AnswerEvent::Garbage);
                } else {
                    self.put(out, &AnswerEvent::Text { block, piece });
                }
            }
            ScriptToken::Thought(piece) => {
                if self.within == 0 {
                    self.put(out, &AnswerEvent::OpenThought { block });
                }
                self.put(out, &AnswerEvent::Thought { block, piece });
            }
            ScriptToken::Name(name) => self.put(out, &AnswerEvent::OpenCall { block, call, name }),
            ScriptToken::Args(piece) => self.put(out, &AnswerEvent::Args { block, call, piece }),
        }
        self.emitted += 1;
        self.within += 1;
        stats.tokens(self.ask.made);
        if last {
            self.close_part(out);
        }
    }

    fn close_part(&mut self, out: &mut Vec<u8>) {
        let block = self.part;
        if matches!(self.ask.script.parts.get(block), Some(ScriptPart::Think(_))) {
            self.put(out, &AnswerEvent::Sign { block });
        }
        self.put(out, &AnswerEvent::Close { block });
        self.calls += usize::from(matches!(self.ask.script.parts.get(block), Some(ScriptPart::Call(_))));
        self.part += 1;
        self.within = 0;
    }

    fn finish(&mut self, out: &mut Vec<u8>) {
        if self.within > 0 {
            self.close_part(out);
        }
        let d = &self.ask.directives;
        let (no_finish, no_done, hang) = (d.no_finish, d.no_done, d.hang);
        let usage = self.usage();
        if !no_finish {
            let (finish, sequence) = (self.ask.script.finish, self.ask.script.sequence.clone());
            self.put(out, &AnswerEvent::Finish { finish, sequence: sequence.as_deref(), usage });
            self.put(out, &AnswerEvent::Usage(usage));
        }
        if !no_finish && !no_done {
            self.put(out, &AnswerEvent::End);
        }
        if hang { self.stage = AnswerStage::Stalled } else { self.end_body(out) }
    }

    fn end_body(&mut self, out: &mut Vec<u8>) {
        if self.framed == Framed::Chunked {
            out.extend_from_slice(LAST_CHUNK);
        }
        self.stage = AnswerStage::Done(self.shut());
    }

    fn put(&mut self, out: &mut Vec<u8>, event: &AnswerEvent<'_>) {
        self.event.clear();
        match (self.ask.endpoint.operation, self.ask.endpoint.shape) {
            (Operation::Passthrough(one), _) => passthrough::event(one, &self.id, event, &mut self.event),
            (_, Shape::Chat) => chat::event(&self.id, event, &mut self.event),
            (_, Shape::Messages) => messages::event(&self.id, event, &mut self.event),
            (_, Shape::Responses) => self.response_events.event(&self.id, event, &mut self.event),
        }
        if self.framed == Framed::Chunked {
            write_chunk(out, &self.event);
        } else {
            out.extend_from_slice(&self.event);
        }
    }
}

/// Head of a response whose body is complete. `extra` are more header lines.
pub(super) fn response_head(serial: u64, status: u16, kind: &str, extra: &str, length: usize) -> String {
    format!(
        "HTTP/1.1 {status} Simulated\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n\
         x-request-id: req_sim_{serial}\r\n{extra}\r\n"
    )
}

/// Body of an error in the form of the API `shape`.
pub(super) fn error_body(shape: Shape, status: u16, message: &str, serial: u64) -> String {
    match shape {
        Shape::Chat | Shape::Responses => chat::error_body(status, message),
        Shape::Messages => messages::error_body(status, message, serial),
    }
}
