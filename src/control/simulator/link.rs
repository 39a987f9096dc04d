//! A connection of the provider: reads requests in order, refuses invalid ones, and gives answers one after another.
//! Never answers a pipelined request before the earlier one.

use super::answer::{SimulatedAnswer, Wait, error_body, response_head};
use super::ask::{self, Complaint};
use super::quotas::Quotas;
use super::settings::SimulatorSettings;
use super::stats::{Last, SimulatorStats, credential};
use super::{chat, given, signature};
use crate::base::buf::{Buf, Pool};
use crate::base::limits::{HIGH_WATER, PIPELINE_BYTES_MAX};
use crate::base::seam::Shut;
use crate::base::time::{Mono, Now};
use crate::wire::head::{Expect, HeaderField, Method, RequestHead};
use crate::wire::inbound::{BodyRefusal, Inbound, PushError};
use crate::wire::{ModelEndpoint, Operation, Passthrough, Shape};
use std::time::Duration;

/// Maximum size in bytes of a request's head.
const HEADER_MAX: usize = 64 * 1024;
/// Maximum size in bytes of a request's body.
const BODY_MAX: u64 = 32 << 20;
/// Idle timeout of a connection without a request.
const IDLE_MAX: Duration = Duration::from_secs(3600);

/// State shared by the connections of one provider.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) settings: SimulatorSettings,
    pub(super) pool: Pool,
    pub(super) stats: SimulatorStats,
    pub(super) last: Last,
    pub(super) serial: u64,
    pub(super) quotas: Quotas,
}

/// A connection.
#[derive(Debug, Default)]
pub(super) struct SimulatorLink {
    inbound: Inbound,
    tx: Buf,
    /// Request whose body is being read.
    head: Option<RequestHead>,
    answer: Option<Box<SimulatedAnswer>>,
    /// If set, no more is read, and the connection is closed in this way after everything is written.
    ending: Option<Shut>,
    /// Next time that the connection must be processed.
    pub(super) due: Mono,
    /// Maximum number of bytes written at a time, 0 for no limit.
    drip: usize,
}

/// Endpoint of a request.
#[derive(PartialEq, Eq)]
enum SimulatorEndpoint {
    Inference(ModelEndpoint),
    Stats,
    Last,
    Models,
    Health,
}

impl SimulatorLink {
    pub(super) fn unsent(&self) -> &[u8] {
        let bytes = self.tx.bytes();
        if self.drip > 0 { &bytes[..bytes.len().min(self.drip)] } else { bytes }
    }

    pub(super) fn wants_read(&self) -> bool {
        let busy = self.answer.is_some() || self.tx.len() >= HIGH_WATER;
        self.ending.is_none() && !(busy && self.inbound.backlog() >= PIPELINE_BYTES_MAX)
    }

    /// Returns how to close the connection, if it is to be closed and everything is written.
    pub(super) fn finished(&self) -> Option<Shut> {
        self.ending.filter(|_| self.tx.is_empty())
    }

    /// True while the client still expects data.
    pub(super) fn is_busy(&self) -> bool {
        self.answer.is_some() || !self.tx.is_empty()
    }

    pub(super) fn clear(&mut self, shared: &mut Shared) {
        self.inbound.clear(&mut shared.pool);
        self.tx.release(&mut shared.pool);
    }

    pub(super) fn wrote(&mut self, shared: &mut Shared, count: usize, now: Now) {
        self.tx.consume(&mut shared.pool, count);
        if self.tx.is_empty() && self.answer.is_none() {
            self.drip = 0;
        }
        if self.tx.len() < HIGH_WATER / 2 {
            self.advance(shared, now);
        }
    }

    pub(super) fn push(&mut self, shared: &mut Shared, data: &[u8], now: Now) {
        if self.ending.is_some() {
            return;
        }
        match self.inbound.push(&mut shared.pool, data) {
            Ok(()) => {}
            Err(PushError::Overflow) => self.ending = Some(Shut::Abort),
            Err(PushError::Body(refusal)) => {
                self.head = None;
                self.refuse_body(shared, refusal);
            }
        }
        self.advance(shared, now);
    }

    pub(super) fn expired(&mut self, shared: &mut Shared, now: Now) {
        if self.answer.is_none() && self.ending.is_none() && self.due <= now.mono {
            self.ending = Some(Shut::Clean);
        }
        self.advance(shared, now);
    }

    /// Continues as far as bytes, room and time allow.
    pub(super) fn advance(&mut self, shared: &mut Shared, now: Now) {
        self.due = now.mono.after(IDLE_MAX);
        // Bounded by the requests in the buffer: each pass does one step of one of them.
        while self.ending.is_none() && self.tx.len() < HIGH_WATER {
            let went_on = if self.answer.is_some() {
                self.give(shared, now)
            } else if let Some(head) = self.head {
                self.inbound.body_progress().1 && self.handle(shared, &head, now)
            } else {
                self.next_head(shared)
            };
            if !went_on {
                return;
            }
        }
    }

    fn give(&mut self, shared: &mut Shared, now: Now) -> bool {
        let Some(answer) = &mut self.answer else { return false };
        let unsent = self.tx.len();
        let wait = self.tx.edit(&mut shared.pool, |out| answer.pump(out, unsent, &mut shared.stats, now));
        if self.tx.is_empty() {
            self.tx.release(&mut shared.pool);
        }
        match wait {
            Wait::Until(due) => self.due = self.due.min(due),
            Wait::Room => {}
            Wait::Nothing(shut) => {
                self.answer = None;
                self.ending = shut;
                return true;
            }
        }
        false
    }

    fn next_head(&mut self, shared: &mut Shared) -> bool {
        let head = match self.inbound.head(&mut shared.pool, HEADER_MAX) {
            Ok(None) => return false,
            Ok(Some(head)) => head,
            Err(error) => {
                self.respond(
                    shared,
                    error.status,
                    "application/json",
                    "",
                    &chat::error_body(error.status, error.reason),
                );
                self.ending = Some(Shut::Clean);
                return true;
            }
        };
        if let Err(complaint) = self.check_head(shared, &head) {
            shared.stats.failed += 1;
            let endpoint = endpoint_of(head.path.of(self.inbound.message().0));
            self.complain(shared, endpoint.map_or(Shape::Chat, |endpoint| endpoint.shape), &complaint);
            if self.inbound.begin_discard(&mut shared.pool).is_err() || !head.keep_alive {
                self.ending = Some(Shut::Clean);
            }
            return true;
        }
        match self.inbound.begin_body(&head, BODY_MAX) {
            Ok(complete) => {
                if !complete && head.expect == Expect::Continue {
                    self.tx.push(&mut shared.pool, b"HTTP/1.1 100 Continue\r\n\r\n");
                }
                self.head = Some(head);
            }
            Err(refusal) => self.refuse_body(shared, refusal),
        }
        true
    }

    fn refuse_body(&mut self, shared: &mut Shared, refusal: BodyRefusal) {
        shared.stats.failed += 1;
        let status = if refusal == BodyRefusal::TooLarge { 413 } else { 400 };
        self.complain(shared, Shape::Chat, &complaint(status, "the body is refused"));
        self.ending = Some(Shut::Clean);
    }

    fn check_head(&self, shared: &Shared, head: &RequestHead) -> Result<(), Complaint> {
        let bytes = self.inbound.message().0;
        let refuse = |status, message: &str| Err(complaint(status, message));
        let post = match place(head.path.of(bytes)) {
            None => return refuse(404, "there is nothing at this path"),
            Some(SimulatorEndpoint::Inference(_)) => true,
            Some(_) => false,
        };
        let secret = post || place(head.path.of(bytes)) == Some(SimulatorEndpoint::Models);
        if post != (head.method == Method::Post) || (!post && head.method != Method::Get) {
            return refuse(405, "this method is not allowed here");
        }
        let expected = shared.settings.key.as_deref().filter(|_| secret);
        if expected.is_some_and(|key| key.as_bytes() != credential(head, bytes)) {
            return refuse(401, "the key is not the expected one");
        }
        let messages = endpoint_of(head.path.of(bytes)) == Some(ModelEndpoint::MESSAGES);
        if messages && head.field(HeaderField::AnthropicVersion).is_empty() {
            return refuse(400, "anthropic-version: header is required");
        }
        Ok(())
    }

    /// Handles a complete request.
    fn handle(&mut self, shared: &mut Shared, head: &RequestHead, now: Now) -> bool {
        let (bytes, body) = self.inbound.message();
        let found = place(head.path.of(bytes));
        let shown = match found {
            Some(SimulatorEndpoint::Inference(endpoint)) => {
                let is_form = endpoint.as_passthrough().is_some_and(Passthrough::is_form);
                let form = match is_form {
                    true => {
                        given::form(head.field(HeaderField::ContentType).of(bytes), body).map(|form| form.to_string())
                    }
                    false => Ok(String::new()),
                };
                let body = if is_form { form.as_deref().unwrap_or("null").as_bytes() } else { body };
                shared.last.keep(bytes, body);
                shared.serial += 1;
                let read = form.as_ref().map_err(|why| complaint(400, why)).and_then(|_| ask::read(endpoint, body));
                let models = &shared.settings.models;
                let served = read.and_then(|ask| match models.is_empty() || models.contains(&ask.model) {
                    true => shared.quotas.admit(&ask, credential(head, bytes), now.unix).map(|()| ask),
                    false => Err(ask::no_model(&ask.model)),
                });
                self.done_reading(shared);
                match served {
                    Ok(ask) => self.begin(shared, ask, head, now),
                    Err(complaint) => {
                        shared.stats.failed += 1;
                        self.complain(shared, endpoint.shape, &complaint);
                        self.keep_or_end(head);
                    }
                }
                return true;
            }
            Some(SimulatorEndpoint::Stats) => shared.stats.json(),
            Some(SimulatorEndpoint::Last) => shared.last.json(),
            Some(SimulatorEndpoint::Models) => match models(head.path.of(bytes), &shared.settings.models) {
                Ok(list) => list,
                Err(complaint) => {
                    self.done_reading(shared);
                    self.complain(shared, Shape::Chat, &complaint);
                    self.keep_or_end(head);
                    return true;
                }
            },
            Some(SimulatorEndpoint::Health) | None => "{}".to_owned(),
        };
        self.done_reading(shared);
        self.respond(shared, 200, "application/json", "", &shown);
        self.keep_or_end(head);
        true
    }

    fn done_reading(&mut self, shared: &mut Shared) {
        self.inbound.release(&mut shared.pool);
        self.head = None;
    }

    fn keep_or_end(&mut self, head: &RequestHead) {
        if !head.keep_alive {
            self.ending = Some(Shut::Clean);
        }
    }

    fn begin(&mut self, shared: &mut Shared, ask: ask::SimulatedRequest, head: &RequestHead, now: Now) {
        let pace = shared.settings.pace;
        let answer = SimulatedAnswer::new(ask, shared.serial, pace, head.http11, head.keep_alive, now);
        self.drip = answer.drip();
        self.answer = Some(Box::new(answer));
    }

    fn complain(&mut self, shared: &mut Shared, shape: Shape, complaint: &Complaint) {
        let body = match complaint.of_gemini {
            true => signature::error_body(&complaint.message),
            false => error_body(shape, complaint.status, &complaint.message, shared.serial),
        };
        let extra = complaint.retry_after.map_or(String::new(), |seconds| format!("retry-after: {seconds}\r\n"));
        self.respond(shared, complaint.status, "application/json", &extra, &body);
    }

    fn respond(&mut self, shared: &mut Shared, status: u16, kind: &str, extra: &str, body: &str) {
        self.tx.push(&mut shared.pool, response_head(shared.serial, status, kind, extra, body.len()).as_bytes());
        self.tx.push(&mut shared.pool, body.as_bytes());
    }
}

fn complaint(status: u16, message: &str) -> Complaint {
    Complaint { status, message: message.to_owned(), of_gemini: false, retry_after: None }
}

/// Returns the endpoint of a path. Any prefix may precede it, as in base URLs of real providers.
fn place(path: &[u8]) -> Option<SimulatorEndpoint> {
    match path {
        b"/stats" => Some(SimulatorEndpoint::Stats),
        b"/last" => Some(SimulatorEndpoint::Last),
        b"/" | b"/healthz" => Some(SimulatorEndpoint::Health),
        _ if path.ends_with(b"/models") || path.windows(8).any(|part| part == b"/models/") => {
            Some(SimulatorEndpoint::Models)
        }
        _ => endpoint_of(path).map(SimulatorEndpoint::Inference),
    }
}

/// Models in the list of a provider that serves any name.
const MODELS: [&str; 4] = ["gpt-5.4-mini", "gpt-6-luna", "claude-sonnet-5-5", "sim-heron-small"];

/// Returns the list of models, or a single model. `served`: their names; none for any.
fn models(path: &[u8], served: &[String]) -> Result<String, Complaint> {
    let path = String::from_utf8_lossy(path);
    let one = |id: &str| serde_json::json!({ "id": id, "object": "model", "owned_by": "simulator" });
    match path.split_once("/models/") {
        Some((_, id)) if served.is_empty() || served.iter().any(|name| name == id) => Ok(one(id).to_string()),
        Some((_, id)) => Err(ask::no_model(id)),
        None => {
            let all: Vec<_> = match served.is_empty() {
                true => MODELS.map(one).to_vec(),
                false => served.iter().map(|name| one(name)).collect(),
            };
            Ok(serde_json::json!({ "object": "list", "data": all }).to_string())
        }
    }
}

fn endpoint_of(path: &[u8]) -> Option<ModelEndpoint> {
    let mut served = ModelEndpoint::ALL.into_iter().filter(|endpoint| endpoint.operation != Operation::CountTokens);
    served.find(|endpoint| path.ends_with(endpoint.path_below().as_bytes()))
}
